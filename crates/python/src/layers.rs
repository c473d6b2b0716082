//! Whole feed-forward layers, as Python holds them: an MLP, or experts with their router.

use std::path::PathBuf;

use hammerhead::feed_forward::{self, expert_weights, joined_weights, mlp_weights};
use hammerhead::format::Dense;
use hammerhead::gpu::DeviceRouting;
use hammerhead::routing::Groups;
use hammerhead::{
    Adapted, Engine, ExpertWeights, Experts, LayerOptions, Mlp, Routed, Router, SharedWeights, Streaming, Target,
    declared_gate,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::adapters::{AdapterParts, Adapters};
use crate::borrowed::{BorrowedMlp, MlpParts, NumberParts, check_apart, common_place};
use crate::checkpoint::Checkpoint;
use crate::cuda;
use crate::dlpack::{Array, Place};
use crate::engines::Wish;
use crate::error::{Error, Result};
use crate::fill_numbers;
use crate::interrupt::computed;
use crate::layer::{gate_of, unwritten};

/// Where a projection is: the name of its tensor without its parts' endings, the matrix of a stack, and which rows of
/// it.
type Projection = (String, usize, String);
/// The gate and up projections, or up alone, and down.
type NamedMlp = (Projection, Option<Projection>, Projection);
/// The gate's name and its limit.
type GateParts = (String, Option<f32>);
/// What all whole layers can be asked for: what stands between the products, what operands are rounded to, whether
/// results may depend on the token alone, the bytes that rows may take, those that weights may take on a GPU, and
/// whether others are brought there and from how many rows on; then backend, threads and configuration.
type OptionParts = (
    String,
    String,
    bool,
    Option<usize>,
    Option<usize>,
    (bool, Option<usize>),
    Option<String>,
    Option<i64>,
    Option<String>,
);
/// Scoring, experts per token, correction, groups and how many are looked into, scaling.
type RouterParts = (String, usize, Option<Vec<f32>>, Option<(usize, usize)>, f32);

fn asked(
    (intermediate, precision, batch_invariant, workspace, gpu_bytes, stream, backend, threads, config): OptionParts,
) -> Result<(LayerOptions, Wish)> {
    let workspace_bytes = workspace.unwrap_or(LayerOptions::default().workspace_bytes);
    let (intermediate, precision) = (intermediate.parse()?, precision.parse()?);
    let stream = match stream {
        (false, _) => Streaming::Never,
        (true, None) => Streaming::Planned,
        (true, Some(rows)) => Streaming::From(rows),
    };
    let options = LayerOptions { intermediate, precision, batch_invariant, workspace_bytes, gpu_bytes, stream };
    Ok((options, Wish::new(backend, threads, config)?))
}

fn router_of((scoring, top_k, correction, groups, scaling): RouterParts, experts: usize) -> Result<Router> {
    let mut router = Router::new(scoring.parse()?, experts, top_k)?.with_scaling(scaling)?;
    if let Some((count, best)) = groups {
        router = router.with_groups(Groups { count, best })?;
    }
    if let Some(correction) = correction {
        router = router.with_correction(correction)?;
    }
    Ok(router)
}

/// An array of numbers, with the name its owner has for its type.
struct Numbers {
    array: Array,
    element: String,
}

impl Numbers {
    fn borrow((object, element): NumberParts<'_>, what: &str, in_order: bool) -> Result<Self> {
        Ok(Self { array: Array::borrow(&object, what, in_order)?, element })
    }

    fn dense(&self) -> Result<Dense<'_>> {
        let (rows, k) = self.array.matrix_shape()?;
        Ok(Dense::new(rows, k, self.array.values(&self.element)?, 1.0)?)
    }

    fn target(&mut self) -> Result<Target<'_>> {
        self.array.target(&self.element)
    }
}

/// What says which experts compute which tokens.
enum Routing {
    /// Nobody: there is one.
    Everyone,
    Logits(Array),
    Given {
        ids: Array,
        weights: Array,
        on_input: bool,
    },
}

impl Routing {
    /// Nothing, logits, or ids and weights.
    fn borrow(arrays: &[Bound<'_, PyAny>], on_input: bool, in_order: bool) -> Result<Self> {
        let borrow = |object, what: &str| Array::borrow(object, what, in_order);
        match arrays {
            [] => Ok(Routing::Everyone),
            [logits] => Ok(Routing::Logits(borrow(logits, "router_logits")?)),
            [ids, weights] => {
                Ok(Routing::Given { ids: borrow(ids, "ids")?, weights: borrow(weights, "weights")?, on_input })
            }
            more => {
                Err(Error::value("routing", format!("there are {} arrays, and at most ids and weights", more.len())))
            }
        }
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Routing::Everyone => Vec::new(),
            Routing::Logits(logits) => vec![logits],
            Routing::Given { ids, weights, .. } => vec![ids, weights],
        }
    }
}

/// The rule of routing of a layer that is called with logits.
fn rule(router: Option<&Router>) -> Result<&Router> {
    let found = "this layer has no rule of routing; give ids and weights, or make it with routing and top_k";
    router.ok_or_else(|| Error::value("router_logits", found))
}

/// A whole layer, packed for the engine that was asked for: experts, and what chooses among them.
#[pyclass(frozen)]
pub struct FeedForward {
    experts: Experts,
    router: Option<Router>,
    /// Whether it was made as an MLP, whose one expert computes every token.
    mlp: bool,
    wish: Wish,
}

impl FeedForward {
    fn of_mlp(mlp: Mlp, wish: Wish) -> Self {
        Self { experts: mlp.into(), router: None, mlp: true, wish }
    }

    fn of_experts((experts, router): (Experts, Option<Router>), wish: Wish) -> Self {
        Self { experts, router, mlp: false, wish }
    }
}

#[pymethods]
impl FeedForward {
    /// Packs an MLP; the arrays are not needed afterwards.
    #[staticmethod]
    fn pack_mlp(py: Python<'_>, weights: MlpParts<'_>, gate: GateParts, options: OptionParts) -> Result<Self> {
        let (gate, (options, wish)) = (gate_of(&gate.0, gate.1)?, asked(options)?);
        let borrowed = BorrowedMlp::new(weights, "the MLP")?;
        let weights = borrowed.weights()?;
        let mlp = py.detach(|| -> Result<_> { Ok(Mlp::new(&*wish.engine()?, &weights, gate, options)?) })?;
        Ok(Self::of_mlp(mlp, wish))
    }

    /// Packs an MLP of a model's layer: its only one, the expert of this number, or the one that sees every token.
    #[staticmethod]
    #[pyo3(signature = (model, layer, expert, shared, gate, options))]
    fn load_mlp(
        py: Python<'_>,
        model: &Checkpoint,
        layer: usize,
        expert: Option<usize>,
        shared: bool,
        gate: Option<GateParts>,
        options: OptionParts,
    ) -> Result<Self> {
        let gate = gate.map(|(name, clamp)| gate_of(&name, clamp)).transpose()?;
        let (options, wish) = asked(options)?;
        py.detach(|| {
            let model = &model.model;
            let gate = gate.map_or_else(|| declared_gate(&model.gate(layer)), Ok)?;
            let found = model.find_layer(layer)?;
            let pairs = if shared { found.shared() } else { found.experts() };
            let which = expert.unwrap_or(0);
            let pair = match (pairs.get(which), expert.is_some() || pairs.len() == 1) {
                (Some(pair), true) => pair,
                _ => {
                    let what = if shared { "MLPs that see every token" } else { "MLPs" };
                    let found = format!("layer {layer} has {} {what}", pairs.len());
                    return Err(Error::value("expert", format!("{found}; give the number of one that there is")));
                }
            };
            let mlp = Mlp::new(&*wish.engine()?, &mlp_weights(model.projections(pair)?)?, gate, options)?;
            Ok(Self::of_mlp(mlp, wish))
        })
    }

    /// Packs projections that are found by their whole names: those of every expert, or of one MLP.
    #[staticmethod]
    fn load_named(
        py: Python<'_>,
        model: &Checkpoint,
        mlps: Vec<NamedMlp>,
        experts: bool,
        gate: GateParts,
        options: OptionParts,
    ) -> Result<Self> {
        let (gate, (options, wish)) = (gate_of(&gate.0, gate.1)?, asked(options)?);
        py.detach(|| {
            let model = &model.model;
            let read = |(stem, member, rows): &Projection| -> Result<_> {
                Ok(model.projection(stem, *member, rows.parse()?)?)
            };
            let weights = mlps.iter().map(|(first, second, down)| -> Result<_> {
                Ok(joined_weights(read(first)?, second.as_ref().map(read).transpose()?, read(down)?)?)
            });
            let mut weights = weights.collect::<Result<Vec<_>>>()?;
            let engine = wish.engine()?;
            if experts {
                let experts = Experts::new(&engine, &ExpertWeights::new(weights, gate)?, options)?;
                return Ok(Self::of_experts((experts, None), wish));
            }
            let Some(mlp) = weights.pop().filter(|_| weights.is_empty()) else {
                return Err(Error::value("mlps", "one is expected, unless they are experts"));
            };
            Ok(Self::of_mlp(Mlp::new(&engine, &mlp, gate, options)?, wish))
        })
    }

    /// Maps an MLP from a file that `save` wrote.
    #[staticmethod]
    fn open_mlp(py: Python<'_>, path: PathBuf, options: OptionParts) -> Result<Self> {
        let (options, wish) = asked(options)?;
        py.detach(|| {
            let mlp = Mlp::open(&*wish.engine()?, path, options)?;
            Ok(Self::of_mlp(mlp, wish))
        })
    }

    /// Packs experts; the arrays are not needed afterwards.
    #[staticmethod]
    #[pyo3(signature = (experts, shared, shared_gate, router, gate, options))]
    fn pack_experts(
        py: Python<'_>,
        experts: Vec<MlpParts<'_>>,
        shared: Option<MlpParts<'_>>,
        shared_gate: Option<Vec<f32>>,
        router: Option<RouterParts>,
        gate: GateParts,
        options: OptionParts,
    ) -> Result<Self> {
        let (gate, (options, wish)) = (gate_of(&gate.0, gate.1)?, asked(options)?);
        let router = router.map(|router| router_of(router, experts.len())).transpose()?;
        let borrow = |(expert, parts)| BorrowedMlp::new(parts, format!("expert {expert}"));
        let borrowed = experts.into_iter().enumerate().map(borrow).collect::<Result<Vec<_>>>()?;
        let shared = shared.map(|parts| BorrowedMlp::new(parts, "the shared expert")).transpose()?;
        let mlps = borrowed.iter().map(BorrowedMlp::weights).collect::<Result<Vec<_>>>()?;
        let mut weights = ExpertWeights::new(mlps, gate)?;
        if let Some(shared) = &shared {
            let own = SharedWeights::new(shared.weights()?);
            weights = weights.with_shared(match shared_gate {
                Some(gate) => own.with_gate(gate)?,
                None => own,
            })?;
        }
        let experts = py.detach(|| -> Result<_> { Ok(Experts::new(&*wish.engine()?, &weights, options)?) })?;
        Ok(Self::of_experts((experts, router), wish))
    }

    /// Packs the experts of a model's layer, all or those of these numbers, with the one that sees every token or
    /// without. Without a router, the model's own is taken, if its rule is known and all experts are there.
    #[staticmethod]
    #[pyo3(signature = (model, layer, numbers, shared, router, gate, options))]
    #[expect(clippy::too_many_arguments, reason = "they are options of one Python function")]
    fn load_experts(
        py: Python<'_>,
        model: &Checkpoint,
        layer: usize,
        numbers: Option<Vec<usize>>,
        shared: bool,
        router: Option<RouterParts>,
        gate: Option<GateParts>,
        options: OptionParts,
    ) -> Result<Self> {
        let gate = gate.map(|(name, clamp)| gate_of(&name, clamp)).transpose()?;
        let (options, wish) = asked(options)?;
        py.detach(|| {
            let model = &model.model;
            let mut stored = if shared { model.feed_forward(layer)? } else { model.routed_experts(layer)? };
            if let Some(numbers) = &numbers {
                let found = stored.experts.len();
                if let Some(number) = numbers.iter().find(|number| **number >= found) {
                    return Err(Error::value("experts", format!("{number} is not among layer {layer}'s {found}")));
                }
                stored.experts = numbers.iter().map(|&number| stored.experts[number].clone()).collect();
            }
            // Whatever weighs experts that a table chooses: logits do not choose them.
            let has_table = stored.router.as_ref().is_some_and(|router| router.table.is_some());
            let router = match router {
                Some(router) => {
                    let router = router_of(router, stored.experts.len())?;
                    Some(if has_table { router.with_table() } else { router })
                }
                None if numbers.is_some() => None,
                None => feed_forward::router(&stored)?,
            };
            let experts = Experts::new(&*wish.engine()?, &expert_weights(stored, gate)?, options)?;
            Ok(Self::of_experts((experts, router), wish))
        })
    }

    /// Maps experts from a file that `save` wrote.
    #[staticmethod]
    fn open_experts(py: Python<'_>, path: PathBuf, options: OptionParts) -> Result<Self> {
        let (options, wish) = asked(options)?;
        py.detach(|| {
            let (experts, router) = Experts::open(&*wish.engine()?, path, options)?;
            Ok(Self::of_experts((experts, router), wish))
        })
    }

    /// Writes the packed weights, and the rule of routing if there is one, to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        py.detach(|| Ok(self.experts.save(&*self.wish.engine()?, path, self.router.as_ref())?))
    }

    /// The layer as bytes, with the rule of routing if there is one.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        let bytes =
            py.detach(|| -> Result<_> { Ok(self.experts.to_bytes(&*self.wish.engine()?, self.router.as_ref())?) });
        Ok(PyBytes::new(py, &bytes.map_err(unwritten)?))
    }

    /// The MLP that these are the bytes of.
    #[staticmethod]
    fn mlp_from_bytes(py: Python<'_>, bytes: &[u8], options: OptionParts) -> Result<Self> {
        let (options, wish) = asked(options)?;
        py.detach(|| {
            let mlp = Mlp::from_bytes(&*wish.engine()?, bytes, options)?;
            Ok(Self::of_mlp(mlp, wish))
        })
    }

    /// The experts that these are the bytes of.
    #[staticmethod]
    fn experts_from_bytes(py: Python<'_>, bytes: &[u8], options: OptionParts) -> Result<Self> {
        let (options, wish) = asked(options)?;
        py.detach(|| {
            let (experts, router) = Experts::from_bytes(&*wish.engine()?, bytes, options)?;
            Ok(Self::of_experts((experts, router), wish))
        })
    }

    /// What was asked of the layer and of the engine.
    #[getter]
    fn options(&self) -> OptionParts {
        let LayerOptions { intermediate, precision, batch_invariant, workspace_bytes, gpu_bytes, stream } =
            self.experts.options();
        let stream = match stream {
            Streaming::Never => (false, None),
            Streaming::Planned => (true, None),
            Streaming::From(rows) => (true, Some(rows)),
        };
        let (backend, threads, config) = self.wish.parts();
        let (intermediate, precision) = (intermediate.to_string(), precision.to_string());
        (intermediate, precision, batch_invariant, Some(workspace_bytes), gpu_bytes, stream, backend, threads, config)
    }

    /// Adapters of this layer, copied from arrays of the host's.
    fn adapters(&self, parts: Vec<AdapterParts<'_>>) -> Result<Adapters> {
        Adapters::new(&self.experts, parts)
    }

    /// Computes tokens; experts with their logits, or with ids and weights, which may multiply inputs; with adapters
    /// and each token's number of one, if there are some. For arrays on a GPU, in the stream with this handle.
    #[pyo3(signature = (x, routing, on_input, out, stream, adapted = None))]
    #[expect(clippy::too_many_arguments, reason = "they are parts of one call")]
    fn run(
        &self,
        py: Python<'_>,
        x: NumberParts<'_>,
        routing: Vec<Bound<'_, PyAny>>,
        on_input: bool,
        out: NumberParts<'_>,
        stream: Option<u64>,
        adapted: Option<(Bound<'_, Adapters>, Bound<'_, PyAny>)>,
    ) -> Result<()> {
        let in_order = stream.is_some();
        let routing = Routing::borrow(&routing, on_input, in_order)?;
        let numbers = adapted.as_ref().map(|(_, ids)| Array::borrow(ids, "adapter_ids", in_order)).transpose()?;
        let adapted = adapted.as_ref().zip(numbers.as_ref()).map(|((adapters, _), ids)| (adapters.get(), ids));
        let (x, mut out) = (Numbers::borrow(x, "x", in_order)?, Numbers::borrow(out, "out", in_order)?);
        let read = || std::iter::once(&x.array).chain(routing.arrays()).chain(adapted.map(|(_, ids)| ids));
        check_apart(read(), std::iter::once(&out.array))?;
        match (common_place(read().chain([&out.array]))?, stream) {
            (Place::Cuda(device), Some(stream)) => self.queue(py, (device, stream), &x, &routing, adapted, &out),
            _ => {
                let (tokens, target) = (x.dense()?, out.target()?);
                let engine = self.wish.engine_at(py)?;
                let adapted = adapted.map(|(adapters, ids)| adapters.of(ids)).transpose()?;
                self.compute(py, &engine, &tokens, &routing, adapted, target)
            }
        }
    }

    /// Writes the weights that the rule of routing gives experts which something else has chosen.
    fn weigh(
        &self,
        py: Python<'_>,
        logits: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
    ) -> Result<()> {
        let (logits, ids) = (Array::borrow(logits, "router_logits", false)?, Array::borrow(ids, "ids", false)?);
        let mut weights = Array::borrow(weights, "weights", false)?;
        let (rule, logits, ids) = (rule(self.router.as_ref())?, logits.singles()?, ids.ids()?);
        let routed = py.detach(|| rule.weigh_chosen(logits, ids, logits.len() / rule.experts()))?;
        fill_numbers(&mut weights, routed.weights())
    }

    /// Experts that there are, the shared one not counted; of an MLP, one.
    #[getter]
    fn count(&self) -> usize {
        self.experts.count()
    }

    /// Whether it was made as an MLP.
    #[getter]
    fn is_mlp(&self) -> bool {
        self.mlp
    }

    /// Whether an expert computes every token beside the others.
    #[getter]
    fn has_shared(&self) -> bool {
        self.experts.has_shared()
    }

    /// The experts that a GPU holds, where the processor has the others.
    #[getter]
    fn resident(&self) -> Option<Vec<u32>> {
        self.experts.resident()
    }

    /// Rows from which on weights are brought to the GPU, if they are; and why they are not, though they were to be.
    #[getter]
    fn streams_from(&self) -> (Option<usize>, Option<String>) {
        match self.experts.streams_from() {
            Ok(rows) => (rows, None),
            Err(reason) => (None, Some(reason)),
        }
    }

    /// How often each expert was asked for, where a GPU holds some of them.
    #[getter]
    fn asked(&self, py: Python<'_>) -> Result<Option<Vec<u32>>> {
        py.detach(|| Ok(self.experts.asked()?))
    }

    /// What `check_host` would raise, which still raises it.
    fn host_failure(&self) -> Option<String> {
        self.experts.host_failure()
    }

    /// Raises what went wrong in the processor's part of earlier calls, once, where a GPU has the other.
    fn check_host(&self) -> Result<()> {
        Ok(self.experts.check_host()?)
    }

    /// Moves experts to and from the GPU of this number, in its stream with this handle.
    fn place(&self, py: Python<'_>, experts: Vec<u32>, device: i32, stream: u64) -> Result<()> {
        cuda::in_stream(py, (device, stream), |queue| queue.place_experts(&self.experts, &experts))
    }

    /// Scoring and experts per token, if there is a router.
    #[getter]
    fn routing(&self) -> Option<(String, usize)> {
        self.router.as_ref().map(|rule| (rule.scoring().to_string(), rule.top_k()))
    }

    /// Whether a table chooses the experts, and the routing weighs them.
    #[getter]
    fn has_table(&self) -> bool {
        self.router.as_ref().is_some_and(Router::has_table)
    }

    /// The width of tokens, of the intermediate and of results.
    #[getter]
    fn widths(&self) -> [usize; 3] {
        self.experts.widths()
    }

    /// The gate's name.
    #[getter]
    fn gate(&self) -> String {
        self.experts.gate().to_string()
    }

    /// The bytes the packed weights take.
    #[getter]
    fn packed_bytes(&self) -> usize {
        self.experts.packed_bytes()
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

/// A layer that is called with what it has no use for, or without what it needs.
fn misrouted() -> Error {
    Error::value("routing", "an MLP takes none, and experts take logits, or ids and weights")
}

impl FeedForward {
    /// Computes tokens in the CPU's memory.
    fn compute(
        &self,
        py: Python<'_>,
        engine: &Engine,
        tokens: &Dense<'_>,
        routing: &Routing,
        adapted: Option<Adapted>,
        target: Target<'_>,
    ) -> Result<()> {
        let experts = &self.experts;
        match (self.mlp, routing) {
            (true, Routing::Everyone) => {
                computed(py, || experts.run_only_adapted_into(engine, tokens, adapted.as_ref(), target))
            }
            (false, Routing::Logits(logits)) => {
                let (rule, logits) = (rule(self.router.as_ref())?, logits.singles()?);
                computed(py, || {
                    let routed = with_adapters(rule.route(logits, tokens.rows())?, adapted)?;
                    experts.run_into(engine, tokens, &routed, target)
                })
            }
            (false, Routing::Given { ids, weights, on_input }) => {
                let (ids, weights) = (ids.ids()?, weights.singles()?);
                computed(py, || {
                    let routed = Routed::given(ids, weights, tokens.rows(), experts.count())?;
                    let routed = with_adapters(if *on_input { routed.on_input() } else { routed }, adapted)?;
                    experts.run_into(engine, tokens, &routed, target)
                })
            }
            _ => Err(misrouted()),
        }
    }

    /// Queues tokens in a GPU's memory.
    fn queue(
        &self,
        py: Python<'_>,
        stream: (i32, u64),
        x: &Numbers,
        routing: &Routing,
        adapted: Option<(&Adapters, &Array)>,
        out: &Numbers,
    ) -> Result<()> {
        let (tokens, rows) = cuda::dense_tokens(&x.array, &x.element)?;
        let output = cuda::output(&out.array, &out.element, rows * self.widths()[2])?;
        let experts = &self.experts;
        experts.queueable()?;
        let routing = match (self.mlp, routing) {
            (true, Routing::Everyone) => DeviceRouting::Everyone,
            (false, Routing::Given { ids, weights, on_input }) => {
                let top = top_of(ids, rows)?;
                weights.expect_len(ids.len())?;
                weights.number("float32")?;
                let (wide, on_input) = (ids.wide_ids()?, *on_input);
                DeviceRouting::Given { ids: ids.address(), wide, weights: weights.address(), top, on_input }
            }
            (false, Routing::Logits(logits)) => {
                logits.expect_len(rows * experts.count())?;
                logits.number("float32")?;
                DeviceRouting::Logits { logits: logits.address(), router: rule(self.router.as_ref())? }
            }
            _ => return Err(misrouted()),
        };
        let adapted = adapted.map(|(adapters, ids)| adapters.on_device(experts, ids, rows)).transpose()?;
        cuda::in_stream(py, stream, |queue| match &adapted {
            // SAFETY: their owner lends arrays of these shapes and types, which share no memory, and frees memory in
            // the order of the stream.
            None => unsafe { queue.enqueue_experts(experts, tokens, routing, output, None) },
            // SAFETY: the same holds for the numbers of adapters.
            Some((adapters, ids)) => unsafe {
                queue.enqueue_adapted_experts(experts, tokens, routing, (adapters, *ids), output)
            },
        })
    }
}

/// A routing whose tokens have adapters, if there are some.
fn with_adapters(routed: Routed, adapted: Option<Adapted>) -> hammerhead::Result<Routed> {
    match adapted {
        Some(adapted) => routed.adapted(adapted),
        None => Ok(routed),
    }
}

/// Experts per token.
fn top_of(ids: &Array, tokens: usize) -> Result<usize> {
    match ids.len().checked_rem(tokens) {
        None => Ok(1),
        Some(0) => Ok(ids.len() / tokens),
        Some(_) => {
            let found = format!("there are {} for {tokens} tokens; every token needs as many", ids.len());
            Err(Error::value(ids.what(), found))
        }
    }
}
