//! A layer of experts that a GPU computes whole: the engine's tokens and results, the GPU's kernels.

use format::Dense;
use gpu::experts::device::ExpertQueue;
use gpu::experts::host::{DeviceRouting, HostCall, HostExperts};
use gpu::{Cuda, DeviceOutput, DeviceTokens};
use op::{Activation, ExpertWeights, Result, Routed, Target};

use super::LayerOptions;
use crate::Engine;

/// A layer in a GPU's memory.
#[derive(Debug)]
pub(super) struct DeviceLayer {
    layer: HostExperts,
    /// Whether there is an expert that computes every token.
    shared: bool,
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
        Ok(Some(Self { layer, shared: weights.shared().is_some() }))
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.layer.bytes()
    }

    /// Bytes that a queued call works in, at most.
    pub(super) fn workspace_bytes(&self, tokens: usize, element: Activation, top: usize) -> Result<usize> {
        self.layer.workspace_bytes(tokens, element, top)
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
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.layer.enqueue(queue, tokens, routing, out, workspace) }
    }

    /// Whether an expert computes every token.
    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Computes some tokens, of which the first is `first` of those that were routed.
    pub(super) fn run(&self, (x, first): (&Dense<'_>, usize), routed: &Routed, out: Target<'_>) -> Result<()> {
        let top = routed.top_k();
        let range = first * top..(first + x.rows()) * top;
        let (ids, weights) = (&routed.ids()[range.clone()], &routed.weights()[range]);
        self.layer.run(HostCall { x, ids, weights, top, on_input: routed.is_on_input(), out })
    }
}
