//! A layer that one backend computes whole: the engine's tokens, routing and results, the backend's kernels.

use std::any::Any;
use std::sync::Arc;

use format::Dense;
use gpu::host::HostExperts;
use op::{Error, ExpertWeights, LayerOperands, LayerSpec, LoadedLayer, Result, Routed, Target};

use super::LayerOptions;
use crate::Engine;

/// A layer where its backend computes it.
#[derive(Debug)]
pub(super) struct WholeLayer {
    layer: Arc<dyn LoadedLayer>,
    /// Whether there is an expert that computes every token.
    shared: bool,
}

impl WholeLayer {
    /// The layer, if the engine has one backend and that computes such layers whole.
    pub(super) fn new(engine: &Engine, weights: &ExpertWeights<'_>, options: LayerOptions) -> Result<Option<Self>> {
        let [only] = engine.backends()[..] else { return Ok(None) };
        let LayerOptions { intermediate, batch_invariant, .. } = options;
        let loaded = only.load_layer(&LayerSpec { weights, intermediate, batch_invariant }, engine.team())?;
        Ok(loaded.map(|layer| Self { layer, shared: weights.shared().is_some() }))
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.layer.bytes()
    }

    /// The layer in a GPU's memory, if it is there.
    pub(super) fn on_gpu(&self) -> Result<&HostExperts> {
        let any: &dyn Any = &*self.layer;
        any.downcast_ref().ok_or(Error::Layout {
            backend: "cuda, on tensors there,",
            found: "the simulator",
            expected: "a GPU: packed for cuda alone",
        })
    }

    /// Whether an expert computes every token.
    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Computes some tokens, of which the first is `first` of those that were routed.
    pub(super) fn run(&self, (tokens, first): (&Dense<'_>, usize), routed: &Routed, target: Target<'_>) -> Result<()> {
        let top = routed.top_k();
        let range = first * top..(first + tokens.rows()) * top;
        let (ids, weights) = (&routed.ids()[range.clone()], &routed.weights()[range]);
        self.layer.run(LayerOperands { tokens, ids, weights, top, on_input: routed.is_on_input(), target })
    }
}
