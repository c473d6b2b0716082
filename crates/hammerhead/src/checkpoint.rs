//! From a layer of a model on disk to weights ready to run.
//!
//! `format::checkpoint` finds gated pairs and reads them; here they become a [`Layer`](crate::Layer) with the gate that
//! the model declares. What this operation does not compute (another gate, biases) is refused rather than left out.

use format::checkpoint::{Checkpoint, Expert, GateFunction};

use op::{Error, Gate, Result, Weights};

use crate::{Engine, Layer};

/// Which gated pairs of a layer are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ExpertSelection<'a> {
    /// All numbered experts in order, or where there are none the layer's one pair.
    #[default]
    All,
    /// The experts of these numbers, in this order.
    Only(&'a [usize]),
    /// Those that see every token beside numbered experts.
    Shared,
}

/// The gate that a model declares, if it is computed here.
pub fn declared_gate(gate: &GateFunction) -> Result<Gate> {
    match gate {
        GateFunction::Silu => Ok(Gate::Silu),
        GateFunction::SiluLimited { limit } => Ok(Gate::SiluLimited { limit: *limit }),
        GateFunction::GeluTanh => Ok(Gate::GeluTanh),
        GateFunction::GptOss { clamp } => Ok(Gate::gpt_oss(*clamp)),
        other => Err(Error::UnknownName {
            what: "gate",
            name: other.to_string(),
            known: "silu, gelu-tanh, gpt-oss; give one of them if the model means it".to_owned(),
        }),
    }
}

impl Engine {
    /// Reads gated pairs of a model's layer and packs them, one group each. Without a `gate`, the model's own is taken.
    pub fn load_checkpoint(
        &self,
        model: &Checkpoint,
        layer: usize,
        experts: ExpertSelection<'_>,
        gate: Option<Gate>,
    ) -> Result<Layer> {
        let pairs = match experts {
            ExpertSelection::All => model.experts(layer)?,
            ExpertSelection::Only(numbers) => {
                numbers.iter().map(|&expert| model.expert(layer, expert)).collect::<Result<_, _>>()?
            }
            ExpertSelection::Shared => model.layer(layer)?.shared,
        };
        if pairs.is_empty() {
            return Err(Error::NoGroups);
        }
        let found = model.layers().iter().flat_map(|layer| &layer.pairs);
        let mut biased = found.filter(|pair| pair.has_bias && pairs.iter().any(|read| read.name == pair.name));
        if let Some(pair) = biased.next() {
            return Err(Error::Bias { name: pair.name.clone() });
        }
        let gate = gate.map_or_else(|| declared_gate(&model.gate(layer)), Ok)?;
        self.load(&pairs.into_iter().map(weights_of).collect::<Result<Vec<_>>>()?, gate)
    }
}

/// A pair's weights, with the input scale that the model has for them.
pub fn weights_of(pair: Expert<'_>) -> Result<Weights<'_>> {
    let weights = Weights::gated(pair.gate, pair.up)?;
    match pair.pre_scale {
        Some(scale) => weights.with_input_scale(scale),
        None => Ok(weights),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use format::Dense;
    use format::tensors::{self, File, Tensor};

    use super::*;
    use crate::{Options, Output};

    fn model(name: &str) -> Checkpoint {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../format/tests/data");
        Checkpoint::open(data.join(name)).unwrap()
    }

    fn engine() -> Engine {
        Engine::new(Options { backend: Some("scalar".to_owned()), ..Options::default() }).unwrap()
    }

    #[test]
    fn a_layer_computes_what_its_matrices_do() {
        let (model, engine) = (model("modelopt_dense"), engine());
        let layer = engine.load_checkpoint(&model, 0, ExpertSelection::All, None).unwrap();
        let pair = model.expert(0, 0).unwrap();
        let weights = engine.load(&[Weights::gated(pair.gate, pair.up).unwrap()], Gate::Silu).unwrap();
        let k = layer.shapes()[0].1;
        let tokens = Dense::new(2, k, (0..2 * k).map(|i| (i as f32).sin()).collect::<Vec<_>>(), 1.0).unwrap();
        let run = |layer| engine.run(layer, &[tokens.as_borrowed().into()], Output::F32).unwrap().remove(0);
        let (mut ours, mut expected) = (vec![0.0; layer.shapes()[0].0], vec![0.0; layer.shapes()[0].0]);
        for row in 0..2 {
            run(&layer).row(row, &mut ours);
            run(&weights).row(row, &mut expected);
            assert_eq!(ours, expected);
        }
    }

    #[test]
    fn tokens_are_multiplied_with_the_models_pre_quant_scale() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let (plain, engine) = (model("modelopt_dense"), engine());
        let file = File::open(plain.files().next().unwrap()).unwrap();
        let mut tensors: Vec<Tensor<'_>> = file.names().map(|name| file.tensor(name).unwrap()).collect();
        let pair = plain.expert(0, 0).unwrap();
        let (name, k) = (&pair.name, pair.gate.k());
        let scale: Vec<f32> = (0..k).map(|i| 0.25 + (i % 13) as f32 / 3.0).collect();
        for part in ["gate_proj", "up_proj"] {
            tensors.push(Tensor::from_f32(format!("{name}.{part}.pre_quant_scale"), [k], scale.clone()));
        }
        tensors::write(&path, &tensors, None).unwrap();
        let scaled = engine.load_checkpoint(&Checkpoint::open(&path).unwrap(), 0, ExpertSelection::All, None).unwrap();
        assert_eq!(scaled.input_scale(0), Some(&scale[..]));
        let plain = engine.load_checkpoint(&plain, 0, ExpertSelection::All, None).unwrap();
        let numbers: Vec<f32> = (0..2 * k).map(|i| (i as f32).sin()).collect();
        let products: Vec<f32> = numbers.iter().enumerate().map(|(i, x)| x * scale[i % k]).collect();
        let run = |layer, numbers: Vec<f32>| {
            let results = engine.run(layer, &[Dense::new(2, k, numbers, 1.0).unwrap().into()], Output::F32).unwrap();
            format!("{results:?}")
        };
        assert_eq!(run(&scaled, numbers.clone()), run(&plain, products));
        assert_ne!(run(&scaled, numbers.clone()), run(&plain, numbers));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let (model, engine) = (model("modelopt_dense"), engine());
        let load = |layer, experts| engine.load_checkpoint(&model, layer, experts, None).unwrap_err().to_string();
        assert!(load(999, ExpertSelection::All).contains("no layer 999"));
        assert!(load(0, ExpertSelection::Only(&[7])).contains("no expert 7"));
        assert!(load(0, ExpertSelection::Only(&[])).contains("no groups"));
        assert!(load(0, ExpertSelection::Shared).contains("no groups"));
    }

    #[test]
    fn tokens_that_must_be_multiplied_first_are_not_forgotten() {
        let (model, engine) = (model("modelopt_awq"), engine());
        for (experts, numbers) in [(ExpertSelection::All, &[0, 1][..]), (ExpertSelection::Only(&[1]), &[1])] {
            let layer = engine.load_checkpoint(&model, 0, experts, None).unwrap();
            for (group, &expert) in numbers.iter().enumerate() {
                let scale = model.expert(0, expert).unwrap().pre_scale;
                assert!(scale.is_some() && layer.input_scale(group) == scale.as_deref(), "expert {expert}");
            }
        }
        assert_eq!(engine.load_checkpoint(&model, 1, ExpertSelection::All, None).unwrap().input_scale(0), None);
    }

    #[test]
    fn a_declared_limit_is_the_gates() {
        let gate = declared_gate(&GateFunction::SiluLimited { limit: 10.0 }).unwrap();
        assert_eq!(gate, Gate::SiluLimited { limit: 10.0 });
        assert_eq!(declared_gate(&GateFunction::GptOss { clamp: 5.0 }).unwrap(), Gate::gpt_oss(5.0));
    }

    #[test]
    fn a_gate_that_nobody_here_computes_is_named() {
        let error = declared_gate(&GateFunction::Other("relu2".to_owned())).unwrap_err().to_string();
        assert!(error.contains("relu2") && error.contains("silu"), "{error}");
    }
}
