//! A layer that one backend computes whole: the engine's tokens, routing and results, the backend's kernels.

use std::any::Any;
use std::sync::Arc;

use format::Dense;
use gpu::host::HostExperts;
use op::{
    Activation, Backend, Error, ExpertWeights, LayerOperands, LayerSpec, LoadedLayer, Output, Result, Routed, Split,
    Streaming, Target,
};

use super::processor::ProcessorExperts;
use super::{LayerOptions, Sizes};
use crate::engine::is_for_others;
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
    /// The widths of the expert that computes every token, if there is one.
    shared: Option<[usize; 3]>,
    /// The processor's experts, where the device has not all of them.
    host: Option<Arc<ProcessorExperts>>,
}

impl WholeLayer {
    /// The layer, where the engine's only backend computes such layers whole, or where one of several does and should
    /// be faster than the processor, product by product. Where its memory is full, the others compute.
    pub(super) fn new(engine: &Engine, weights: &ExpertWeights<'_>, sizes: &Sizes) -> Result<Option<Self>> {
        let backends = engine.backends();
        let LayerOptions { intermediate, precision, batch_invariant, gpu_bytes, .. } = sizes.options;
        let spec = LayerSpec { weights, intermediate, precision, batch_invariant, split: None };
        spec.check()?;
        let load = |backend: &'static dyn Backend| {
            let planner = Arc::new(engine.layer_planner(backend));
            let stream_from = stream_from(sizes.options.stream, sizes.experts);
            let held = |brought: bool| {
                let room = gpu_bytes.zip(backend.layer_bytes(&spec, brought));
                Ok::<_, Error>(room.map(|(bytes, taken)| resident(bytes, taken, sizes.experts)).transpose()?.flatten())
            };
            // Where all experts go there nothing is brought over, nor kept for it.
            let resident = match (held(false)?, stream_from) {
                (Some(_), Some(_)) => held(true)?,
                (resident, _) => resident,
            };
            precision.check_places(resident.is_some())?;
            check_bits(batch_invariant, stream_from.filter(|_| resident.is_some()))?;
            let of_host = |resident: Vec<u32>| {
                let host = ProcessorExperts::new(engine, weights.experts(), weights.gate(), sizes.options)?;
                let host = Arc::new(host);
                Ok::<_, Error>((Split { resident, host: Arc::<ProcessorExperts>::clone(&host), stream_from }, host))
            };
            let (split, host) = resident.map(of_host).transpose()?.unzip();
            let spec = LayerSpec { split: split.as_ref(), ..spec };
            let loaded = backend.load_layer(&spec, Arc::<Planner>::clone(&planner), engine.team())?;
            let shared = weights.shared().map(|shared| shared.mlp().widths());
            Ok::<_, Error>(loaded.map(|layer| Self { layer, planner, shared, host }))
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
                Ok(None) => {}
                Err(error) if is_for_others(&error) => {}
                loaded => return loaded,
            }
        }
        Ok(None)
    }

    pub(super) fn packed_bytes(&self) -> usize {
        self.layer.bytes() + self.layer.streamed_bytes() + self.host.as_ref().map_or(0, |host| host.packed_bytes())
    }

    /// The experts that the device holds, where the processor has the others.
    pub(super) fn resident(&self) -> Option<Vec<u32>> {
        self.layer.resident()
    }

    /// Rows from which on the device brings weights over, if it does; or why it does not, though it was to.
    pub(super) fn streams_from(&self) -> std::result::Result<Option<usize>, String> {
        self.layer.streams_from()
    }

    /// The processor's experts, where the device has not all of them.
    pub(super) fn host(&self) -> Option<&ProcessorExperts> {
        self.host.as_deref()
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

    /// The widths of the expert that computes every token, if there is one.
    pub(super) fn shared_widths(&self) -> Option<[usize; 3]> {
        self.shared
    }

    /// Computes some tokens, of which the first is `first` of those that were routed.
    pub(super) fn run(&self, (tokens, first): (&Dense<'_>, usize), routed: &Routed, target: Target<'_>) -> Result<()> {
        let top = routed.top_k();
        let range = first * top..(first + tokens.rows()) * top;
        let (ids, weights) = (&routed.ids()[range.clone()], &routed.weights()[range]);
        let adapted = routed.adapters().map(|adapted| adapted.part(first..first + tokens.rows()));
        let (on_input, adapted) = (routed.is_on_input(), adapted.as_ref());
        self.layer.run(LayerOperands { tokens, ids, weights, top, on_input, adapted, target })
    }
}

/// Rows per expert, on average, from which on weights are rather brought over.
///
/// The bus takes a time per byte of an expert's weights, and the processor a time per byte and row, so their sizes and
/// how many the device holds do not matter. On 16 cores with AMX behind PCIe 5 both take as long with 9 to 11 rows for
/// layers alone, and with fewer in a whole model, where the processor has more to do (benchmarks/h200). What the
/// planner predicts of the processor's products was tried, and is too little by far.
const PLANNED_ROWS: usize = 8;

/// Rows from which on a device brings weights over, if it does, in a layer of so many experts.
fn stream_from(stream: Streaming, experts: usize) -> Option<usize> {
    match stream {
        Streaming::Never => None,
        Streaming::Planned => Some(PLANNED_ROWS * experts),
        Streaming::From(rows) => Some(rows),
    }
}

/// Refuses calls of which some bring weights over and others do not, where a token's bits may not depend on how many
/// others there are: the processor adds in another order.
fn check_bits(batch_invariant: bool, stream_from: Option<usize>) -> Result<()> {
    match stream_from {
        Some(rows) if batch_invariant && rows > 1 => Err(Error::Mismatch {
            group: 0,
            what: "the number of rows from which on weights are brought over (stream)",
            found: rows.to_string(),
            expected: "1, all calls, for a layer that is batch_invariant; or do without one of the two".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The experts that go into so many bytes of a device's memory, the first ones, beside what is always there; none where
/// all of them do. One expert alone is not divided.
fn resident(bytes: usize, [each, always]: [usize; 2], experts: usize) -> Result<Option<Vec<u32>>> {
    let slots = bytes.saturating_sub(always) / each.max(1);
    if experts == 1 && slots == 0 {
        let expected = format!("at least {}, which the only expert takes; or compute on the processor", always + each);
        return Err(Error::Mismatch { group: 0, what: "gpu_bytes", found: bytes.to_string(), expected });
    }
    Ok((slots < experts).then(|| (0..slots as u32).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_experts_are_there_as_go_into_the_bytes() {
        let held = |bytes, experts| resident(bytes, [100, 30], experts).unwrap().map(|held| held.len());
        let found = [0, 29, 130, 229, 230, 430].map(|bytes| held(bytes, 4));
        assert_eq!(found, [Some(0), Some(0), Some(1), Some(1), Some(2), None]);
        assert_eq!(held(130, 1), None);
        let refused = resident(129, [100, 30], 1).unwrap_err().to_string();
        assert!(refused.contains("gpu_bytes") && refused.contains("130"), "{refused}");
    }
}
