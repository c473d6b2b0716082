//! A layer that one backend computes whole: the engine's tokens, routing and results, the backend's kernels.

use std::any::Any;
use std::sync::Arc;

use format::Dense;
use gpu::host::HostExperts;
use op::{
    Activation, Backend, Error, ExpertWeights, LayerOperands, LayerSpec, LoadedLayer, Output, Result, Routed, Target,
};

use super::{LayerOptions, Sizes};
use crate::planner::Planner;
use crate::{Engine, Plan};

/// Tokens of a call for which whoever should be fastest gets a layer, as for single products; and experts of each.
const TYPICAL_TOKENS: usize = 16;
const TYPICAL_TOP: usize = 8;

/// A layer where its backend computes it.
#[derive(Debug)]
pub(super) struct WholeLayer {
    layer: Arc<dyn LoadedLayer>,
    planner: Arc<Planner>,
    /// Whether there is an expert that computes every token.
    shared: bool,
}

impl WholeLayer {
    /// The layer, where the engine's only backend computes such layers whole, or where one of several does and should
    /// be faster than the processor, product by product. Where its memory is full, the others compute.
    pub(super) fn new(engine: &Engine, weights: &ExpertWeights<'_>, sizes: &Sizes) -> Result<Option<Self>> {
        let backends = engine.backends();
        let LayerOptions { intermediate, batch_invariant, .. } = sizes.options;
        let spec = LayerSpec { weights, intermediate, batch_invariant };
        let load = |backend: &'static dyn Backend| {
            let planner = Arc::new(engine.layer_planner(backend));
            let loaded = backend.load_layer(&spec, Arc::<Planner>::clone(&planner), engine.team())?;
            Ok::<_, Error>(loaded.map(|layer| Self { layer, planner, shared: weights.shared().is_some() }))
        };
        if let [only] = backends[..] {
            return load(only);
        }
        let typical =
            sizes.problem(TYPICAL_TOKENS, TYPICAL_TOP.min(sizes.experts), (Activation::BF16, Output::BF16))?;
        let by_products = engine.product_seconds(&typical).unwrap_or(f64::INFINITY);
        let seconds = |backend: &'static dyn Backend| {
            let plan = engine.layer_planner(backend).plan(&typical).ok()?;
            Some((plan.cost().seconds + plan.cost().copying, backend))
        };
        let mut faster: Vec<_> = backends.into_iter().filter_map(seconds).collect();
        faster.retain(|(seconds, _)| *seconds < by_products);
        faster.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        for (_, backend) in faster {
            match load(backend) {
                Err(Error::DeviceMemory { .. }) | Ok(None) => {}
                loaded => return loaded,
            }
        }
        Ok(None)
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.layer.bytes()
    }

    /// How a call would be computed.
    pub(super) fn plan(&self, problem: &op::Problem) -> Result<Plan> {
        self.planner.plan(problem)
    }

    /// The layer in a GPU's memory, if it is there.
    pub(super) fn on_gpu(&self) -> Result<&HostExperts> {
        let any: &dyn Any = &*self.layer;
        any.downcast_ref().ok_or(Error::Layout {
            backend: "cuda, on tensors there,",
            found: "the simulator",
            expected: "a GPU: packed for cuda",
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
