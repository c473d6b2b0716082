#![doc = include_str!("../../../docs/candle.md")]

#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
#[allow(unsafe_code, reason = "lends tensors by their addresses")]
mod cuda;
mod experts;
mod grouped;
mod tokens;

use std::sync::Arc;

use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Module, Result, Shape, Tensor};
pub use hammerhead;
use hammerhead::feed_forward::{linear_weights, mlp_weights};
use hammerhead::format::Dense;
use hammerhead::format::checkpoint::Checkpoint;
use hammerhead::gpu::{DeviceOutput, DeviceTokens, Queue};
use hammerhead::{Engine, Gate, Layer, LayerOptions, MlpWeights, Target, Weights, declared_gate};

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
        Ok(Self { operation: OnTokens::shared("hammerhead-linear", n, engine, layer), widths: [k, n] })
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
        Ok(Self { operation: OnTokens::shared("hammerhead-mlp", widths[2], engine, mlp), widths })
    }

    /// Reads and packs the MLP of a layer that has one, with the gate that the model declares; of a layer with experts,
    /// the one that sees every token.
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
        let gate = declared_gate(&model.gate(layer)).map_err(theirs)?;
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

/// What is computed from tokens alone, in the CPU's memory or in a GPU's.
trait TokenLayer: Send + Sync + 'static {
    fn run(&self, engine: &Engine, tokens: &Dense<'_>, target: Target<'_>) -> hammerhead::Result<()>;

    /// # Safety
    ///
    /// As for [`Queue::enqueue`].
    #[allow(unsafe_code, reason = "passes on what the caller promises of addresses")]
    unsafe fn enqueue(&self, queue: &mut Queue, tokens: DeviceTokens, output: DeviceOutput) -> hammerhead::Result<()>;
}

impl TokenLayer for Layer {
    fn run(&self, engine: &Engine, tokens: &Dense<'_>, target: Target<'_>) -> hammerhead::Result<()> {
        engine.run_into(self, &[tokens.as_borrowed().into()], &mut [target])
    }

    #[allow(unsafe_code, reason = "passes on what the caller promises of addresses")]
    unsafe fn enqueue(&self, queue: &mut Queue, tokens: DeviceTokens, output: DeviceOutput) -> hammerhead::Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { queue.enqueue(self, &[tokens], &[output]) }
    }
}

impl TokenLayer for hammerhead::Mlp {
    fn run(&self, engine: &Engine, tokens: &Dense<'_>, target: Target<'_>) -> hammerhead::Result<()> {
        self.run_into(engine, tokens, target)
    }

    #[allow(unsafe_code, reason = "passes on what the caller promises of addresses")]
    unsafe fn enqueue(&self, queue: &mut Queue, tokens: DeviceTokens, output: DeviceOutput) -> hammerhead::Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { queue.enqueue_mlp(self, tokens, output, None) }
    }
}

/// An operation on tokens alone, and the engine that it computes on.
struct OnTokens<L> {
    name: &'static str,
    width: usize,
    engine: Arc<Engine>,
    layer: L,
}

impl<L: TokenLayer> OnTokens<L> {
    fn shared(name: &'static str, width: usize, engine: &Arc<Engine>, layer: L) -> Operation {
        Arc::new(Box::new(Self { name, width, engine: Arc::clone(engine), layer }))
    }
}

impl<L: TokenLayer> CustomOp1 for OnTokens<L> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        compute(self.name, (storage, layout), self.width, |tokens, target| self.layer.run(&self.engine, tokens, target))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::compute(self.name, (storage, layout), [], self.width, |queue, tokens, [], output| {
            // SAFETY: `compute` gives addresses of tensors of these shapes that stay until the stream has done the
            // work.
            #[allow(unsafe_code, reason = "lends tensors by their addresses")]
            unsafe {
                self.layer.enqueue(queue, tokens, output)
            }
        })
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        elsewhere(self.name, "a Metal device")
    }
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use super::*;
    use hammerhead::format::Matrix;

    // The CPU's build of candle has a CUDA storage that holds nothing.
    #[test]
    fn tensors_of_a_device_are_refused_with_what_to_do() {
        let engine = Arc::new(Engine::auto().unwrap());
        let matrix = Matrix::new(16, 16, vec![0; 128], vec![0; 16], 1.0).unwrap();
        let layer = engine.load(&[Weights::plain(matrix)], Gate::None).unwrap();
        let operation = OnTokens::shared("hammerhead-linear", 16, &engine, layer);
        let error = operation.cuda_fwd(&CudaStorage, &Layout::contiguous((1, 16))).unwrap_err().to_string();
        assert!(error.contains("CUDA device") && error.contains("to_device(&Device::Cpu)"), "{error}");
    }
}
