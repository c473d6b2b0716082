//! A layer of experts that a GPU computes whole: the engine's tokens and results, the GPU's kernels.

use format::Dense;
use gpu::experts::device::ExpertQueue;
use gpu::experts::host::{DeviceRouting, HostCall, HostExperts};
use gpu::{Cuda, DeviceOutput, DeviceTokens};
use op::{Error, ExpertWeights, Result, Routed, Target};

use super::{LayerOptions, sigmoid_of_product};
use crate::Engine;

/// A layer in a GPU's memory.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    layer: HostExperts,
    /// Whether there is an expert that computes every token, and the vector of its sigmoid.
    shared: bool,
    gate: Option<Box<[f32]>>,
}

impl DeviceLayer {
    /// The layer in the memory of the engine's GPU, if it has nothing else and that has kernels for such a layer.
    pub(super) fn new(engine: &Engine, weights: &ExpertWeights<'_>, options: LayerOptions) -> Result<Option<Self>> {
        let backends = engine.backends();
        let only = if let [only] = backends[..] { Cuda::by_name(only.name()) } else { None };
        let Some(cuda) = only.filter(|cuda| HostExperts::suits(cuda.device(), weights, options.intermediate)) else {
            return Ok(None);
        };
        let layer = HostExperts::new(cuda.device(), weights, options.intermediate, options.batch_invariant)?;
        let (shared, gate) = (weights.shared(), weights.shared().and_then(|shared| shared.gate()));
        Ok(Some(Self { layer, shared: shared.is_some(), gate: gate.map(Box::from) }))
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.layer.bytes()
    }

    /// Queues tokens that are in the device's memory.
    ///
    /// # Safety
    ///
    /// As for [`ExpertQueue::enqueue`].
    pub(super) unsafe fn enqueue(
        &self,
        queue: &mut ExpertQueue,
        tokens: DeviceTokens,
        routing: DeviceRouting<'_>,
        out: DeviceOutput,
    ) -> Result<()> {
        if self.gate.is_some() {
            let (reason, remedy) = (
                "the shared expert has a gate, σ(x·v), for which there is no kernel".to_owned(),
                "give tokens in the CPU's memory, or compute the shared expert apart".to_owned(),
            );
            return Err(Error::Unavailable { backend: "cuda", reason, remedy });
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.layer.enqueue(queue, tokens, routing, out) }
    }

    /// Whether an expert computes every token.
    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Computes some tokens, of which the first is `first` of those that were routed.
    pub(super) fn run(&self, (x, first): (&Dense<'_>, usize), routed: &Routed, out: Target<'_>) -> Result<()> {
        let top = routed.top_k();
        let range = first * top..(first + x.rows()) * top;
        let factor = |token| self.gate.as_deref().map_or(1.0, |gate| sigmoid_of_product(x, token, gate));
        let shared: Vec<f32> = if self.shared { (0..x.rows()).map(factor).collect() } else { Vec::new() };
        let (ids, weights) = (&routed.ids()[range.clone()], &routed.weights()[range]);
        self.layer.run(HostCall { x, ids, weights, top, on_input: routed.is_on_input(), shared: &shared, out })
    }
}
