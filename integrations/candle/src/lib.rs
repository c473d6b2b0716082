#![doc = include_str!("../../../docs/candle.md")]

mod experts;
mod grouped;
mod tokens;

use std::sync::Arc;

use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Module, Result, Shape, Tensor};
pub use hammerhead;
use hammerhead::feed_forward::{linear_weights, mlp_weights};
use hammerhead::format::Dense;
use hammerhead::format::checkpoint::Checkpoint;
use hammerhead::{Engine, Gate, LayerOptions, MlpWeights, Target, Weights, declared_gate};

pub use experts::Experts;
pub use grouped::Grouped;
use tokens::{compute, elsewhere, theirs};

/// What candle keeps of an operation on one tensor.
type Operation = Arc<Box<dyn CustomOp1 + Send + Sync>>;

/// One NVFP4 matrix, `x·Wᵀ + b`: what stands where a model has a `candle_nn::Linear`. Clones share the weights.
#[derive(Clone)]
pub struct Linear {
    operation: Operation,
    widths: [usize; 2],
}

/// A gated MLP, `down(gate(x·B1ᵀ, x·B2ᵀ))`, computed as a whole. Clones share the weights.
#[derive(Clone)]
pub struct Mlp {
    operation: Operation,
    widths: [usize; 3],
}

impl Linear {
    /// Packs one matrix, with its bias and input scale if it has them. The originals are not needed afterwards.
    pub fn new(engine: &Arc<Engine>, weights: &Weights<'_>) -> Result<Self> {
        let layer = engine.load(&[weights.as_borrowed()], Gate::None).map_err(theirs)?;
        let (n, k) = layer.shapes()[0];
        let run = move |engine: &Engine, tokens: &Dense<'_>, target: Target<'_>| {
            engine.run_into(&layer, &[tokens.as_borrowed().into()], &mut [target])
        };
        Ok(Self { operation: OnTokens::shared("hammerhead-linear", n, engine, run), widths: [k, n] })
    }

    /// Reads and packs the matrix of a module of a model, such as `model.layers.0.self_attn.q_proj`.
    pub fn from_checkpoint(engine: &Arc<Engine>, model: &Checkpoint, module: &str) -> Result<Self> {
        let linear = model.linear(module).map_err(theirs)?;
        Self::new(engine, &linear_weights(linear).map_err(theirs)?)
    }

    /// The width of tokens and of results.
    pub fn widths(&self) -> [usize; 2] {
        self.widths
    }
}

impl Mlp {
    /// Packs the weights.
    pub fn new(engine: &Arc<Engine>, weights: &MlpWeights<'_>, gate: Gate, options: LayerOptions) -> Result<Self> {
        let mlp = hammerhead::Mlp::new(engine, weights, gate, options).map_err(theirs)?;
        let widths = mlp.widths();
        let run = move |engine: &Engine, tokens: &Dense<'_>, target: Target<'_>| mlp.run_into(engine, tokens, target);
        Ok(Self { operation: OnTokens::shared("hammerhead-mlp", widths[2], engine, run), widths })
    }

    /// Reads and packs the MLP of a layer that has one, with the gate that the model declares; of a layer with experts, the one that sees every token.
    pub fn from_checkpoint(
        engine: &Arc<Engine>,
        model: &Checkpoint,
        layer: usize,
        options: LayerOptions,
    ) -> Result<Self> {
        let found = model.find_layer(layer).map_err(theirs)?;
        let (dense, shared) = (found.experts(), found.shared());
        let [pair] = (if shared.is_empty() { &dense } else { &shared })[..] else {
            candle_core::bail!(
                "layer {layer} has {} experts and no MLP that sees every token: load it as Experts",
                dense.len()
            );
        };
        let weights = model.projections(pair).map_err(theirs)?;
        let gate = declared_gate(&model.gate()).map_err(theirs)?;
        Self::new(engine, &mlp_weights(weights).map_err(theirs)?, gate, options)
    }

    /// The width of tokens, of the intermediate and of results.
    pub fn widths(&self) -> [usize; 3] {
        self.widths
    }
}

impl Module for Linear {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        tokens.contiguous()?.apply_op1_arc(Arc::clone(&self.operation))
    }
}

impl Module for Mlp {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        tokens.contiguous()?.apply_op1_arc(Arc::clone(&self.operation))
    }
}

impl std::fmt::Debug for Linear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Linear({} → {}, NVFP4)", self.widths[0], self.widths[1])
    }
}

impl std::fmt::Debug for Mlp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mlp({} → {} → {}, NVFP4)", self.widths[0], self.widths[1], self.widths[2])
    }
}

/// An operation on tokens alone, and the engine that it computes on.
struct OnTokens<F> {
    name: &'static str,
    width: usize,
    engine: Arc<Engine>,
    run: F,
}

impl<F> OnTokens<F>
where
    F: Fn(&Engine, &Dense<'_>, Target<'_>) -> hammerhead::Result<()> + Send + Sync + 'static,
{
    fn shared(name: &'static str, width: usize, engine: &Arc<Engine>, run: F) -> Operation {
        Arc::new(Box::new(Self { name, width, engine: Arc::clone(engine), run }))
    }
}

impl<F> CustomOp1 for OnTokens<F>
where
    F: Fn(&Engine, &Dense<'_>, Target<'_>) -> hammerhead::Result<()>,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        compute(self.name, (storage, layout), self.width, |tokens, target| (self.run)(&self.engine, tokens, target))
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        elsewhere(self.name, "a CUDA device")
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        elsewhere(self.name, "a Metal device")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The CPU's build of candle has a CUDA storage that holds nothing.
    #[test]
    fn tensors_of_a_device_are_refused_with_what_to_do() {
        let engine = Arc::new(Engine::auto().unwrap());
        let run = |_: &Engine, _: &Dense<'_>, _: Target<'_>| Ok(());
        let operation = OnTokens::shared("hammerhead-linear", 16, &engine, run);
        let error = operation.cuda_fwd(&CudaStorage, &Layout::contiguous((1, 16))).unwrap_err().to_string();
        assert!(error.contains("CUDA device") && error.contains("to_device(&Device::Cpu)"), "{error}");
    }
}
