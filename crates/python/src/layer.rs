//! Weights packed for an engine, as Python holds them, and the runs over them.

use hammerhead::feed_forward::linear_weights;
use hammerhead::{ExpertSelection, Gate, Target, Weights};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::borrowed::{
    BorrowedTokens, BorrowedWeights, NumberParts, TokenParts, WeightParts, check_apart, common_place,
};
use crate::checkpoint::Checkpoint;
use crate::cuda;
use crate::dlpack::{Array, Place};
use crate::engines::{EngineParts, Wish};
use crate::error::{Error, Result};
use crate::interrupt::computed;

/// The weights of every group, packed for the engine that was asked for.
#[pyclass(frozen)]
pub struct Layer {
    layer: hammerhead::Layer,
    wish: Wish,
}

#[pymethods]
impl Layer {
    /// Packs the weights of every group; the arrays are not needed afterwards.
    #[staticmethod]
    #[pyo3(signature = (groups, gate, clamp, backend, threads, config))]
    fn pack(
        py: Python<'_>,
        groups: Vec<WeightParts<'_>>,
        gate: &str,
        clamp: Option<f32>,
        backend: Option<String>,
        threads: Option<i64>,
        config: Option<String>,
    ) -> Result<Self> {
        let (gate, wish) = (gate_of(gate, clamp)?, Wish::new(backend, threads, config)?);
        if groups.is_empty() {
            return Err(hammerhead::Error::NoGroups.into());
        }
        let borrow = |(group, parts)| BorrowedWeights::new(parts, ["b1", "b2"], &format!("group {group}"));
        let borrowed = groups.into_iter().enumerate().map(borrow).collect::<Result<Vec<_>>>()?;
        let weights = borrowed.iter().map(BorrowedWeights::weights).collect::<Result<Vec<Weights<'_>>>>()?;
        let layer = py.detach(|| -> Result<_> { Ok(wish.engine()?.load(&weights, gate)?) })?;
        Ok(Self { layer, wish })
    }

    /// Packs gated pairs of a model's layer: all numbered ones, those of these numbers, or the shared ones.
    #[staticmethod]
    #[pyo3(signature = (model, layer, experts, shared, gate, clamp, backend, threads, config))]
    #[expect(clippy::too_many_arguments, reason = "they are options of one Python function")]
    fn load(
        py: Python<'_>,
        model: &Checkpoint,
        layer: usize,
        experts: Option<Vec<usize>>,
        shared: bool,
        gate: Option<&str>,
        clamp: Option<f32>,
        backend: Option<String>,
        threads: Option<i64>,
        config: Option<String>,
    ) -> Result<Self> {
        let gate = gate.map(|name| gate_of(name, clamp)).transpose()?;
        let wish = Wish::new(backend, threads, config)?;
        let experts = match &experts {
            Some(numbers) => ExpertSelection::Only(numbers),
            None if shared => ExpertSelection::Shared,
            None => ExpertSelection::All,
        };
        let load = || -> Result<_> { Ok(wish.engine()?.load_checkpoint(&model.model, layer, experts, gate)?) };
        let layer = py.detach(load)?;
        Ok(Self { layer, wish })
    }

    /// Packs one matrix of a model, with its bias and its input scale if it has them, by the name of its module.
    #[staticmethod]
    #[pyo3(signature = (model, name, backend, threads, config))]
    fn load_linear(
        py: Python<'_>,
        model: &Checkpoint,
        name: &str,
        backend: Option<String>,
        threads: Option<i64>,
        config: Option<String>,
    ) -> Result<Self> {
        let wish = Wish::new(backend, threads, config)?;
        let load = || -> Result<_> {
            let weights = linear_weights(model.model.linear(name)?)?;
            Ok(wish.engine()?.load(&[weights], Gate::None)?)
        };
        let layer = py.detach(load)?;
        Ok(Self { layer, wish })
    }

    /// The same weights, computed in a precision.
    fn with_precision(&self, precision: &str) -> Result<Self> {
        Ok(Self { layer: self.layer.clone().with_precision(precision.parse()?), wish: self.wish.clone() })
    }

    /// What tokens and weights are rounded to.
    #[getter]
    fn precision(&self) -> String {
        self.layer.precision().to_string()
    }

    /// The layer as bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| Ok(self.layer.to_bytes(&*self.wish.engine()?)?)).map_err(unwritten)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The layer that these are the bytes of.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: &[u8], options: EngineParts) -> Result<Self> {
        let wish = Wish::new(options.0, options.1, options.2)?;
        let layer = py.detach(|| -> Result<_> { Ok(hammerhead::Layer::from_bytes(&*wish.engine()?, bytes)?) })?;
        Ok(Self { layer, wish })
    }

    /// What was asked of the engine.
    #[getter]
    fn options(&self) -> EngineParts {
        self.wish.parts()
    }

    /// Computes every group's tokens into its output; for arrays on a GPU, in the stream with this handle.
    #[pyo3(signature = (tokens, outputs, stream))]
    fn run(
        &self,
        py: Python<'_>,
        tokens: Vec<TokenParts<'_>>,
        outputs: Vec<NumberParts<'_>>,
        stream: Option<u64>,
    ) -> Result<()> {
        let in_order = stream.is_some();
        let tokens = tokens.iter().enumerate().map(|(group, parts)| BorrowedTokens::new(parts, group, in_order));
        let tokens = tokens.collect::<Result<Vec<_>>>()?;
        let outputs = outputs.into_iter().enumerate().map(|(group, (object, element))| {
            Ok((Array::borrow(&object, format!("the output of group {group}"), in_order)?, element))
        });
        let mut outputs = outputs.collect::<Result<Vec<_>>>()?;
        let read = || tokens.iter().flat_map(BorrowedTokens::arrays);
        let written = || outputs.iter().map(|(array, _)| array);
        check_apart(read(), written())?;
        if let (Place::Cuda(device), Some(stream)) = (common_place(read().chain(written()))?, stream) {
            return cuda::run(py, &self.layer, (device, stream), &tokens, &outputs);
        }
        let activations = tokens.iter().map(BorrowedTokens::activations).collect::<Result<Vec<_>>>()?;
        let targets = outputs.iter_mut().map(|(array, element)| array.target(element));
        let mut targets: Vec<Target<'_>> = targets.collect::<Result<_>>()?;
        let engine = self.wish.engine_at(py)?;
        computed(py, || engine.run_into(&self.layer, &activations, &mut targets))
    }

    /// `(n, k)` of every group.
    #[getter]
    fn columns(&self) -> Vec<(usize, usize)> {
        self.layer.shapes().to_vec()
    }

    /// What each group's tokens are multiplied with first, if they are.
    #[getter]
    fn input_scales(&self) -> Vec<Option<Vec<f32>>> {
        (0..self.layer.shapes().len()).map(|group| self.layer.input_scale(group).map(<[f32]>::to_vec)).collect()
    }

    /// The gate's name.
    #[getter]
    fn gate(&self) -> String {
        self.layer.gate().to_string()
    }

    /// The bytes the packed weights take.
    #[getter]
    fn packed_bytes(&self) -> usize {
        self.layer.packed_bytes()
    }

    /// The bytes the weights took where they came from.
    #[getter]
    fn checkpoint_bytes(&self) -> usize {
        self.layer.checkpoint_bytes()
    }

    /// The backends that are chosen among, best first.
    #[getter]
    fn backends(&self) -> Result<Vec<&'static str>> {
        self.wish.backends()
    }

    /// The threads that are computed on.
    #[getter]
    fn threads(&self) -> Result<usize> {
        Ok(self.wish.engine()?.threads())
    }
}

/// Why a layer is not to be had as bytes.
pub fn unwritten(error: Error) -> Error {
    match error {
        Error::Operation(hammerhead::Error::Layout { .. }) => {
            let found = "it is packed for a GPU, and only layers of the CPU's backends are pickled";
            Error::kind("the layer", format!("{found}; make it again from its weights where it is needed"))
        }
        other => other,
    }
}

/// The gate of that text; SiLU and gpt-oss's have a limit to set.
pub fn gate_of(name: &str, clamp: Option<f32>) -> Result<Gate> {
    match (name.parse()?, clamp) {
        (Gate::GptOss { alpha, beta, .. }, Some(limit)) => Ok(Gate::GptOss { alpha, beta, limit }),
        (Gate::Silu | Gate::SiluLimited { .. }, Some(limit)) => Ok(Gate::SiluLimited { limit }),
        (gate, None) => Ok(gate),
        (gate, Some(clamp)) => Err(Error::value("clamp", format!("{clamp} was given, but the gate '{gate}' has none"))),
    }
}
