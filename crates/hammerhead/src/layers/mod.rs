//! Whole feed-forward layers: an [`Mlp`], and [`Experts`], of which a few compute each token.
//!
//! ```text
//! tokens, their experts ──► sort by expert ──► gather ──► gate/up ──► down ──► combine ──► out
//! ```
//!
//! Rows are sorted by a stable counting sort, so that an expert's rows lie side by side, and each product is one
//! grouped call, with one set of tiles, over experts that have rows. The combination adds a token's experts in their
//! order, in f32, and rounds once. What is rounded in between is the caller's choice, [`Intermediate`];
//! [`op::layer_reference`] defines all of it.
//!
//! **Memory.** Tokens are computed in pieces whose rows take at most [`LayerOptions::workspace_bytes`].
//!
//! **Determinism.** Results are the same to the bit for any number of threads: see `steady.rs`. With
//! [`LayerOptions::batch_invariant`] a token's result depends on that token and the weights only. Two more things stand
//! against that. Kernels scale the tokens of a group by a power of two that its largest decides; that changes nothing
//! but what becomes of numbers some 2¹²⁰ times as small. So rows of very different magnitudes are computed apart, and
//! each magnitude has its own fixed power. And AMX multiplies f16 tokens in one of two ways, by the smallest of them
//! all: they are widened to f32.
//!
//! **NaN and infinity** in tokens, logits or weights, or where a product or an intermediate is beyond its type, are
//! computed with as IEEE arithmetic has them: they spoil the results of their token and of no other. An NVFP4
//! intermediate has no codes for them: the results of its row are NaN.
//!
//! **A backend that computes layers whole** ([`op::Backend::load_layer`]: every GPU, and the simulator of each) takes
//! the place of all that where an engine has nothing but that backend, or where it should be faster than the processor:
//! it gets tokens, a [`Routed`] and where the result goes; checks and routing before it stay as they are. How each
//! number of tokens is computed is planned as for products: from candidates, their prices, and what the tank has
//! measured. An MLP is a layer of one expert there. [`crate::gpu::Queue`] computes such layers on tensors that are in a
//! GPU's memory.

mod processor;
mod rows;
mod saved;
mod sorted;
mod stack;
mod whole;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use format::Dense;
use gpu::host::{DeviceRouting, HostExperts};
use gpu::loaded::DeviceAdapters;
use gpu::{DeviceOutput, DeviceTokens, LaunchQueue};
use half::{bf16, f16};
use op::{
    Activation, Adapted, Adapters, Error, ExpertWeights, Gate, Ids, Intermediate, MlpWeights, Output, Precision,
    Problem, Result, Routed, Router, Streaming, Target, Team, Whole,
};

use crate::{Engine, Layer, Plan};
use rows::{cut, each, part};
use sorted::Sorted;
use stack::{Rows, Stack, element};
use whole::WholeLayer;

/// How a layer is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerOptions {
    /// What stands between the two products.
    pub intermediate: Intermediate,
    /// What the operands of both products are rounded to. [`Precision::Fp8`] changes results, as [`op::precision`]
    /// defines, and is computed by Hopper GPUs alone: others refuse.
    pub precision: Precision,
    /// Whether a token's result may depend on nothing but that token and the weights.
    pub batch_invariant: bool,
    /// What the rows that are computed at a time may take: a token's inputs, intermediates and outputs, once per
    /// expert. One token is always computed.
    pub workspace_bytes: usize,
    /// Bytes of a device's memory that the weights may take, where a device computes the layer; without a number, all
    /// that there is. Experts beyond it lie in the host's memory, and the processor computes them while the device
    /// computes the others.
    pub gpu_bytes: Option<usize>,
    /// When the device computes the experts beyond it itself, with weights that it brings over for the while. What it
    /// brings takes as much of the host's memory again as all experts do, page-locked. A layer that is
    /// `batch_invariant` does it never or in all calls, from one row on.
    pub stream: Streaming,
}

impl Default for LayerOptions {
    fn default() -> Self {
        let (intermediate, workspace_bytes) = (Intermediate::Tokens, 512 << 20);
        let precision = Precision::Exact;
        let (gpu_bytes, stream) = (None, Streaming::Never);
        Self { intermediate, precision, batch_invariant: false, workspace_bytes, gpu_bytes, stream }
    }
}

impl LayerOptions {
    /// Tokens that are computed at a time, if each has so many rows.
    fn tokens(&self, [k, inner, width]: [usize; 3], rows: usize) -> usize {
        (self.workspace_bytes / (4 * (k + inner + width) * rows.max(1))).max(1)
    }
}

/// A layer's sizes, and what it computes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    experts: usize,
    /// Of tokens, of the intermediate and of results.
    widths: [usize; 3],
    gate: Gate,
    /// Whether what goes into each product is multiplied with a scale.
    scaled: [bool; 2],
    options: LayerOptions,
}

impl Sizes {
    fn of(weights: &ExpertWeights<'_>, options: LayerOptions) -> Self {
        let mlps = weights.experts();
        let scaled = |product: fn(&MlpWeights<'_>) -> bool| mlps.iter().any(product);
        Self {
            experts: mlps.len(),
            widths: mlps[0].widths(),
            gate: weights.gate(),
            scaled: [scaled(|mlp| mlp.up().input_scale().is_some()), scaled(|mlp| mlp.down().input_scale().is_some())],
            options,
        }
    }

    /// The problem that a call is: so many tokens, which have so many experts each, of a type, and results of another.
    fn problem(&self, tokens: usize, top: usize, types: (Activation, Output)) -> Result<Problem> {
        let ([k, inner, width], scaled) = (self.widths, self.scaled);
        let LayerOptions { intermediate, precision, batch_invariant, .. } = self.options;
        let whole = Whole { tokens, top, width, intermediate, scaled, batch_invariant };
        Problem::layer(self.experts, [k, inner], self.gate, types, whole)?.with_precision(precision)
    }
}

/// An MLP, packed: `y = down(gate(x·Wgᵀ + bg, x·Wuᵀ + bu)) + bd`. A layer of one expert, which computes every token.
#[derive(Debug)]
pub struct Mlp(Experts);

impl Mlp {
    /// Packs the weights.
    pub fn new(engine: &Engine, weights: &MlpWeights<'_>, gate: Gate, options: LayerOptions) -> Result<Self> {
        gate.check()?;
        Experts::new(engine, &ExpertWeights::new(vec![weights.clone()], gate)?, options).map(Self)
    }

    /// The width of tokens, of the intermediate and of results.
    pub fn widths(&self) -> [usize; 3] {
        self.0.widths()
    }

    /// The bytes that the packed weights take.
    pub fn packed_bytes(&self) -> usize {
        self.0.packed_bytes()
    }

    /// Writes the packed weights to a file, from which [`Mlp::open`] maps them back. Only weights of the CPU's layout
    /// can be.
    pub fn save(&self, engine: &Engine, path: impl AsRef<Path>) -> Result<()> {
        self.0.save(engine, path, None)
    }

    /// Maps an MLP that [`Mlp::save`] wrote. The file must not be changed while the MLP lives.
    pub fn open(engine: &Engine, path: impl AsRef<Path>, options: LayerOptions) -> Result<Self> {
        Self::of(Experts::open(engine, path.as_ref(), options)?.0, path.as_ref())
    }

    /// What [`Mlp::save`] would write, as bytes.
    pub fn to_bytes(&self, engine: &Engine) -> Result<Vec<u8>> {
        self.0.to_bytes(engine, None)
    }

    /// The MLP that [`Mlp::to_bytes`] made bytes of. They are copied, and checked as a whole.
    pub fn from_bytes(engine: &Engine, bytes: &[u8], options: LayerOptions) -> Result<Self> {
        Self::of(Experts::from_bytes(engine, bytes, options)?.0, Path::new(saved::BYTES))
    }

    /// What was read from there, if it is one MLP.
    fn of(layer: Experts, path: &Path) -> Result<Self> {
        if layer.count() == 1 && !layer.has_shared() {
            return Ok(Self(layer));
        }
        let problem = format!("it holds {} experts", layer.count());
        Err(Error::LayerFile { path: path.into(), problem, remedy: "open it as a layer of experts" })
    }

    /// How it is computed.
    pub fn options(&self) -> LayerOptions {
        self.0.options()
    }

    /// The gate.
    pub fn gate(&self) -> Gate {
        self.0.gate()
    }

    /// Computes tokens `[m, k]`.
    pub fn run(&self, engine: &Engine, tokens: &Dense<'_>, output: Output) -> Result<Dense<'static>> {
        result(tokens.rows(), self.widths()[2], output, |target| self.run_into(engine, tokens, target))
    }

    /// The same, into memory of the caller's.
    pub fn run_into(&self, engine: &Engine, tokens: &Dense<'_>, target: Target<'_>) -> Result<()> {
        self.0.run_only_into(engine, tokens, target)
    }

    /// The same, with an adapter beside the weights for tokens that have one.
    pub fn run_adapted_into(
        &self,
        engine: &Engine,
        tokens: &Dense<'_>,
        adapted: &Adapted,
        target: Target<'_>,
    ) -> Result<()> {
        self.0.run_only_adapted_into(engine, tokens, Some(adapted), target)
    }

    /// Whether [`crate::gpu::Queue`] takes it, or why it does not.
    pub fn queueable(&self) -> Result<()> {
        self.0.queueable()
    }

    /// Bytes that [`crate::gpu::Queue::enqueue_mlp`] works in, at most, for so many tokens of a type.
    pub fn queue_workspace_bytes(&self, tokens: usize, element: Activation) -> Result<usize> {
        self.0.queue_workspace_bytes(tokens, element, 1)
    }

    /// Queues tokens that are in a device's memory.
    ///
    /// # Safety
    ///
    /// As for [`LaunchQueue::launch`].
    pub(crate) unsafe fn enqueue(
        &self,
        queue: &mut LaunchQueue,
        x: DeviceTokens,
        out: DeviceOutput,
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.enqueue(queue, x, DeviceRouting::Everyone, None, out, workspace) }
    }
}

impl From<Mlp> for Experts {
    fn from(mlp: Mlp) -> Self {
        mlp.0
    }
}

/// Refuses FP8 where products are computed one by one, by backends of an engine that do not compute this layer whole.
fn refuse_rounding(engine: &Engine, options: LayerOptions) -> Result<()> {
    if options.precision == Precision::Exact {
        return Ok(());
    }
    let names: Vec<&str> = engine.backends().iter().map(|backend| backend.name()).collect();
    let reason = format!(
        "{} compute this layer exactly only; use backend cuda on a Hopper GPU, or ask for exact",
        names.join(", ")
    );
    Err(Error::Fp8Tokens { reason })
}

/// A layer of experts, packed: `y[t] = Σ_j w[t,j]·MLP_{e[t,j]}(x[t]) + shared(x[t])`.
#[derive(Debug)]
pub struct Experts {
    products: Products,
    sizes: Sizes,
    /// What calls leave for the next ones.
    kept: Mutex<Vec<Workspace>>,
}

/// Who computes a layer of experts.
#[derive(Debug)]
enum Products {
    /// An engine's backends, product by product.
    Engine { stack: Stack, shared: Option<Box<Shared>> },
    /// One backend, as a whole.
    Whole(WholeLayer),
}

impl Products {
    fn packed_bytes(&self) -> usize {
        match self {
            Products::Engine { stack, shared } => {
                stack.packed_bytes() + shared.as_ref().map_or(0, |shared| shared.stack.packed_bytes())
            }
            Products::Whole(whole) => whole.packed_bytes(),
        }
    }

    /// The weights as they can be written to a file.
    fn written<'a>(&'a self, router: Option<&'a Router>) -> Result<saved::Written<'a>> {
        let Products::Engine { stack, shared } = self else {
            let (backend, found) = ("a file of packed weights", "a device's layer");
            return Err(Error::Layout { backend, found, expected: cpu::LAYOUT });
        };
        let shared = shared.as_ref().map(|shared| (&shared.stack, shared.gate.as_deref()));
        Ok(saved::Written { stack, shared, router })
    }

    /// The layer in a device's memory, if it is there as a whole.
    fn on_device(&self) -> Result<&HostExperts> {
        match self {
            Products::Whole(whole) => whole.on_gpu(),
            Products::Engine { .. } => Err(Error::Layout {
                backend: "cuda, on tensors there,",
                found: "the CPU, or for one product at a time",
                expected: "a whole layer: packed for cuda alone, with results as wide as tokens",
            }),
        }
    }
}

/// An expert that computes every token, and the vector of its sigmoid.
#[derive(Debug)]
struct Shared {
    stack: Stack,
    gate: Option<Box<[f32]>>,
}

/// What a call works in.
#[derive(Debug, Default)]
struct Workspace {
    sorted: Sorted,
    outputs: Vec<f32>,
    shared: Vec<f32>,
}

impl Experts {
    /// Packs the weights.
    pub fn new(engine: &Engine, weights: &ExpertWeights<'_>, options: LayerOptions) -> Result<Self> {
        let sizes = Sizes::of(weights, options);
        let products = match WholeLayer::new(engine, weights, &sizes)? {
            Some(whole) => Products::Whole(whole),
            None => {
                refuse_rounding(engine, options)?;
                Self::products(engine, weights, options)?
            }
        };
        Ok(Self { products, sizes, kept: Mutex::default() })
    }

    fn products(engine: &Engine, weights: &ExpertWeights<'_>, options: LayerOptions) -> Result<Products> {
        let stack = Stack::new(engine, weights.experts(), weights.gate(), options)?;
        let mut shared = None;
        if let Some(weights_of_all) = weights.shared() {
            let mlp = std::slice::from_ref(weights_of_all.mlp());
            let stack = Stack::new(engine, mlp, weights.gate(), options)?;
            shared = Some(Box::new(Shared { stack, gate: weights_of_all.gate().map(Box::from) }));
        }
        Ok(Products::Engine { stack, shared })
    }

    /// Writes the packed weights to a file, and a router's rule beside them if there is one; [`Experts::open`] maps
    /// them back. Only weights of the CPU's layout can be.
    pub fn save(&self, engine: &Engine, path: impl AsRef<Path>, router: Option<&Router>) -> Result<()> {
        saved::write(path.as_ref(), &self.products.written(router)?, engine.team())
    }

    /// Maps a layer that [`Experts::save`] wrote, and gives the router's rule that was written with it. The file is
    /// read once, to see that it is whole, and must not be changed while the layer lives.
    pub fn open(engine: &Engine, path: impl AsRef<Path>, options: LayerOptions) -> Result<(Self, Option<Router>)> {
        refuse_rounding(engine, options)?;
        Ok(Self::of(saved::open(engine, path.as_ref(), options)?, options))
    }

    /// What [`Experts::save`] would write, as bytes.
    pub fn to_bytes(&self, engine: &Engine, router: Option<&Router>) -> Result<Vec<u8>> {
        saved::to_bytes(&self.products.written(router)?, engine.team())
    }

    /// The layer that [`Experts::to_bytes`] made bytes of, and the router's rule among them. They are copied, and
    /// checked as a whole.
    pub fn from_bytes(engine: &Engine, bytes: &[u8], options: LayerOptions) -> Result<(Self, Option<Router>)> {
        refuse_rounding(engine, options)?;
        Ok(Self::of(saved::from_bytes(engine, bytes, options)?, options))
    }

    fn of(opened: saved::Opened, options: LayerOptions) -> (Self, Option<Router>) {
        let saved::Opened { stack, shared, router } = opened;
        let (gate, widths, experts) = (stack.layers().0.gate(), stack.widths(), stack.scales().len());
        let (up, down) = stack.layers();
        let scaled = [up, down].map(|layer| layer.input_scales().exist());
        let shared = shared.map(|(stack, gate)| Box::new(Shared { stack, gate }));
        let sizes = Sizes { experts, widths, gate, scaled, options };
        (Self { products: Products::Engine { stack, shared }, sizes, kept: Mutex::default() }, router)
    }

    /// The gate of all experts.
    pub fn gate(&self) -> Gate {
        self.sizes.gate
    }

    /// Experts that there are, the shared one not counted.
    pub fn count(&self) -> usize {
        self.sizes.experts
    }

    /// Whether an expert computes every token beside them.
    pub fn has_shared(&self) -> bool {
        self.shared_widths().is_some()
    }

    /// The width of tokens, of the intermediate and of results.
    pub fn widths(&self) -> [usize; 3] {
        self.sizes.widths
    }

    /// The same of the shared expert, if there is one.
    pub fn shared_widths(&self) -> Option<[usize; 3]> {
        match &self.products {
            Products::Engine { shared, .. } => shared.as_ref().map(|shared| shared.stack.widths()),
            Products::Whole(whole) => whole.shared_widths(),
        }
    }

    /// How it is computed.
    pub fn options(&self) -> LayerOptions {
        self.sizes.options
    }

    /// How so many tokens of a type would be computed, which have so many experts each, if chance spreads them: the
    /// plan of the whole, or those of both products where they are computed one by one. The shared expert is not looked
    /// at.
    pub fn plans(&self, engine: &Engine, tokens: usize, top: usize, types: (Activation, Output)) -> Result<Vec<Plan>> {
        let problem = self.sizes.problem(tokens, top, types)?;
        match &self.products {
            Products::Whole(whole) => Ok(vec![whole.plan(&problem)?]),
            Products::Engine { stack, .. } => {
                let (up, down) = stack.layers();
                let plan = |(product, layer): (&Problem, &Layer)| {
                    engine.plan_steady(layer, product, self.options().batch_invariant)
                };
                problem.products()?.iter().zip([up, down]).map(plan).collect()
            }
        }
    }

    /// The bytes that the packed weights take.
    pub fn packed_bytes(&self) -> usize {
        self.products.packed_bytes()
    }

    /// Whether [`crate::gpu::Queue`] takes it, or why it does not.
    pub fn queueable(&self) -> Result<()> {
        self.products.on_device().map(drop)
    }

    /// The experts that a device holds, where the processor has the others.
    pub fn resident(&self) -> Option<Vec<u32>> {
        match &self.products {
            Products::Whole(whole) => whole.resident(),
            Products::Engine { .. } => None,
        }
    }

    /// Rows (tokens times experts of each) from which on a call has a device bring over the weights of experts that it
    /// does not hold, if calls do that; or why they do not, though [`LayerOptions::stream`] asks for it: then the
    /// processor computes them.
    pub fn streams_from(&self) -> std::result::Result<Option<usize>, String> {
        match &self.products {
            Products::Whole(whole) => whole.streams_from(),
            Products::Engine { .. } => Ok(None),
        }
    }

    /// How often each expert was asked for since the layer was made, modulo 2³², where a device has some of them and
    /// the processor the others.
    pub fn asked(&self) -> Result<Option<Vec<u32>>> {
        self.products.on_device()?.asked()
    }

    /// What [`Experts::check_host`] would tell, which still tells it: for those who only watch.
    pub fn host_failure(&self) -> Option<String> {
        self.products.on_device().ok()?.host_failure()
    }

    /// What went wrong in the processor's part of earlier calls, once, where a device has the other: their results are
    /// NaN. The next call that is queued is refused with it; who launches graphs again queues none, and asks here.
    pub fn check_host(&self) -> Result<()> {
        self.products.on_device().map_or(Ok(()), HostExperts::check_host)
    }

    /// Puts adapters of this layer into the device's memory, beside its weights: for
    /// [`crate::gpu::Queue::enqueue_adapted_experts`].
    pub fn device_adapters(&self, adapters: &Adapters) -> Result<Arc<DeviceAdapters>> {
        self.check_adapters(adapters)?;
        self.products.on_device()?.adapters(adapters)
    }

    /// Queues the move of as many experts as the device holds: what was queued before finds the old ones there, what
    /// comes behind it these.
    pub(crate) fn place(&self, queue: &LaunchQueue, experts: &[u32]) -> Result<()> {
        let on_device = self.products.on_device()?;
        let host = match &self.products {
            Products::Whole(whole) => whole.host(),
            Products::Engine { .. } => None,
        };
        let (what, found) = ("the layer", "all experts on the device".to_owned());
        let expected = "some of them on the host, as gpu_bytes leaves them".to_owned();
        let host = host.ok_or(Error::Mismatch { group: 0, what, found, expected })?;
        on_device.place(queue, experts, |shape, expert| host.packed_for(on_device.family(), shape, expert))
    }

    /// Bytes that [`crate::gpu::Queue::enqueue_experts`] works in, at most, for so many tokens of a type that have so
    /// many experts each.
    pub fn queue_workspace_bytes(&self, tokens: usize, element: Activation, top_k: usize) -> Result<usize> {
        self.products.on_device()?.workspace_bytes(tokens, element, top_k)
    }

    /// Queues tokens that are in a device's memory.
    ///
    /// # Safety
    ///
    /// As for [`LaunchQueue::launch`].
    pub(crate) unsafe fn enqueue(
        &self,
        queue: &mut LaunchQueue,
        x: DeviceTokens,
        routing: DeviceRouting<'_>,
        adapted: Option<(&Arc<DeviceAdapters>, u64)>,
        out: DeviceOutput,
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        self.check_routing(&routing)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.products.on_device()?.enqueue(queue, x, routing, adapted, out, workspace) }
    }

    /// Does everything that comes before the queueing of the same without adapters.
    pub(crate) fn prepare(
        &self,
        queue: &mut LaunchQueue,
        x: DeviceTokens,
        routing: DeviceRouting<'_>,
        out: DeviceOutput,
    ) -> Result<()> {
        self.check_routing(&routing)?;
        self.products.on_device()?.prepare(queue, x, routing, out)
    }

    /// Whether a routing chooses among this layer's experts.
    fn check_routing(&self, routing: &DeviceRouting<'_>) -> Result<()> {
        let choosable = match routing {
            DeviceRouting::Logits { router, .. } => router.choosing()?.experts(),
            DeviceRouting::Given { .. } => self.count(),
            DeviceRouting::Everyone => 1,
        };
        if choosable != self.count() {
            let (found, expected) = (choosable.to_string(), self.count().to_string());
            return Err(Error::Mismatch { group: 0, what: "the number of the routing's experts", found, expected });
        }
        Ok(())
    }

    /// Computes tokens `[m, k]` by the experts that they were routed to.
    pub fn run(&self, engine: &Engine, tokens: &Dense<'_>, routed: &Routed, output: Output) -> Result<Dense<'static>> {
        result(tokens.rows(), self.widths()[2], output, |target| self.run_into(engine, tokens, routed, target))
    }

    /// The same, into memory of the caller's.
    pub fn run_into(&self, engine: &Engine, tokens: &Dense<'_>, routed: &Routed, target: Target<'_>) -> Result<()> {
        let widths = self.widths();
        check(widths, tokens, &target)?;
        if routed.tokens() != tokens.rows() {
            return Err(Error::RoutedTokens { tokens: tokens.rows(), routed: routed.tokens() });
        }
        self.check_adapted(routed.adapters())?;
        let (stack, shared) = match &self.products {
            Products::Engine { stack, shared } => (stack, shared.as_deref()),
            Products::Whole(whole) => {
                let at_a_time = self.options().tokens(widths, routed.top_k() + usize::from(self.has_shared()));
                return pieces(tokens, (target, widths[2]), at_a_time, |tokens, first, target| {
                    whole.run((tokens, first), routed, target)
                });
            }
        };
        let mut workspace = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let at_a_time = self.options().tokens(widths, routed.top_k() + usize::from(shared.is_some()));
        let done = pieces(tokens, (target, widths[2]), at_a_time, |tokens, first, target| {
            self.piece(engine, (stack, shared), (tokens, first), routed, target, &mut workspace)
        });
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        done
    }

    /// Refuses adapters of another layer, and where there is no way to add them.
    fn check_adapted(&self, adapted: Option<&Adapted>) -> Result<()> {
        adapted.map_or(Ok(()), |adapted| self.check_adapters(adapted.adapters()))
    }

    fn check_adapters(&self, adapters: &Adapters) -> Result<()> {
        let (found, expected) = ((adapters.experts(), adapters.widths()), (self.count(), self.widths()));
        if found != expected {
            let (what, [found, expected]) = ("the layer of the adapters", [found, expected].map(described));
            return Err(Error::Mismatch { group: 0, what, found, expected });
        }
        if let Some(shared) = adapters.shared() {
            let (found, expected) = (Some(shared.widths()), self.shared_widths());
            if found != expected {
                let of = |widths: Option<[usize; 3]>| match widths {
                    Some(widths) => format!("a shared expert of widths {widths:?}"),
                    None => "no shared expert".to_owned(),
                };
                let (what, [found, expected]) = ("the layer of the adapters", [found, expected].map(of));
                return Err(Error::Mismatch { group: 0, what, found, expected });
            }
        }
        if self.options().intermediate == Intermediate::NvFp4 {
            return Err(Error::AdaptedIntermediate);
        }
        Ok(())
    }

    /// Computes tokens `[m, k]` by the only expert, all of them, into memory of the caller's.
    pub fn run_only_into(&self, engine: &Engine, tokens: &Dense<'_>, target: Target<'_>) -> Result<()> {
        self.run_only_adapted_into(engine, tokens, None, target)
    }

    /// The same, with an adapter beside the weights for tokens that have one.
    pub fn run_only_adapted_into(
        &self,
        engine: &Engine,
        tokens: &Dense<'_>,
        adapted: Option<&Adapted>,
        target: Target<'_>,
    ) -> Result<()> {
        let widths = self.widths();
        if self.count() != 1 || self.has_shared() {
            let found = format!("{}{}", self.count(), if self.has_shared() { " and a shared one" } else { "" });
            let (what, expected) = ("the number of experts", "1, for tokens that are not routed,".to_owned());
            return Err(Error::Mismatch { group: 0, what, found, expected });
        }
        check(widths, tokens, &target)?;
        self.check_adapted(adapted)?;
        if let Some(adapted) = adapted.filter(|adapted| adapted.ids().len() != tokens.rows()) {
            let (found, expected) = (adapted.ids().len(), format!("{}, one per token", tokens.rows()));
            return Err(Error::RoutingLength { tensor: "adapters", found, expected });
        }
        pieces(tokens, (target, widths[2]), self.options().tokens(widths, 1), |tokens, first, target| {
            let stack = match &self.products {
                Products::Engine { stack, .. } => stack,
                Products::Whole(whole) => {
                    let rows = tokens.rows();
                    let mut everyone = Routed::given(Ids::I32(&vec![0; rows]), &vec![1.0; rows], rows, 1)?;
                    if let Some(adapted) = adapted {
                        everyone = everyone.adapted(adapted.part(first..first + rows))?;
                    }
                    return whole.run((tokens, 0), &everyone, target);
                }
            };
            let offsets = [0, tokens.rows()];
            let adapted = adapted.map(|all| (&**all.adapters(), &all.ids()[first..first + tokens.rows()]));
            let rows = Rows { values: tokens, offsets: &offsets, element: element(tokens), adapted };
            stack.run(engine, &rows, target)
        })
    }

    /// Computes some tokens, of which the first is `first` of those that were routed.
    fn piece(
        &self,
        engine: &Engine,
        (stack, own): (&Stack, Option<&Shared>),
        (tokens, first): (&Dense<'_>, usize),
        routed: &Routed,
        target: Target<'_>,
        Workspace { sorted, outputs, shared }: &mut Workspace,
    ) -> Result<()> {
        let (width, element) = (self.widths()[2], element(tokens));
        sorted.sort(routed, first..first + tokens.rows(), self.count());
        outputs.resize(sorted.len() * width, 0.0);
        if sorted.len() > 0 {
            let values = sorted.gather(tokens, routed, engine.team())?;
            let numbers = routed.adapters().map(|adapted| sorted.adapters(adapted));
            let adapted = routed.adapters().zip(numbers.as_deref()).map(|(all, numbers)| (&**all.adapters(), numbers));
            let rows = Rows { values: &values, offsets: sorted.offsets(), element, adapted };
            stack.run(engine, &rows, Target::F32(outputs))?;
        }
        if let Some(own) = own {
            shared.resize(tokens.rows() * width, 0.0);
            let adapted = routed
                .adapters()
                .and_then(|all| Some((all.adapters().shared()?, &all.ids()[first..first + tokens.rows()])));
            let rows = Rows { values: tokens, offsets: &[0, tokens.rows()], element, adapted };
            own.stack.run(engine, &rows, Target::F32(shared))?;
        }
        let shared = own.map(|own| (own.gate.as_deref(), &shared[..]));
        let sources = Sources { sorted, outputs, routed, tokens, shared };
        match target {
            Target::F16(out) => combine(&sources, width, out, engine.team(), f16::from_f32),
            Target::BF16(out) => combine(&sources, width, out, engine.team(), bf16::from_f32),
            Target::F32(out) => combine(&sources, width, out, engine.team(), |x| x),
        }
        Ok(())
    }
}

/// Experts and widths in words.
fn described((experts, widths): (usize, [usize; 3])) -> String {
    format!("{experts} experts of widths {widths:?}")
}

/// What results are combined of.
struct Sources<'a> {
    sorted: &'a Sorted,
    outputs: &'a [f32],
    routed: &'a Routed,
    tokens: &'a Dense<'a>,
    /// The shared expert's vector, and its results.
    shared: Option<(Option<&'a [f32]>, &'a [f32])>,
}

/// Adds up every token's experts, j = 0..k−1 and then the shared one, and rounds.
fn combine<T: Send>(sources: &Sources<'_>, width: usize, out: &mut [T], team: &Team, round: impl Fn(f32) -> T + Sync) {
    let Sources { sorted, outputs, routed, tokens, shared } = sources;
    each(out, (width, routed.top_k() + 1), team, |token, out| {
        let mut sums = vec![0f32; width];
        let mut add = |weight: f32, y: &[f32]| sums.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
        for (row, weight) in sorted.of(token, routed) {
            add(weight, &outputs[row * width..][..width]);
        }
        if let Some((gate, y)) = shared {
            let factor = gate.map_or(1.0, |gate| sigmoid_of_product(tokens, token, gate));
            add(factor, &y[token * width..][..width]);
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = round(sum));
    });
}

/// σ(x·v), in double precision, rounded once.
fn sigmoid_of_product(tokens: &Dense<'_>, token: usize, gate: &[f32]) -> f32 {
    let mut x = vec![0f32; tokens.k()];
    tokens.row(token, &mut x);
    let sum: f64 = x.iter().zip(gate).map(|(&x, &v)| f64::from(x) * f64::from(v)).sum();
    (1.0 / (1.0 + (-sum * tokens.global().value()).exp())) as f32
}

/// Whether tokens and a target are those of a layer.
fn check([k, _, width]: [usize; 3], tokens: &Dense<'_>, target: &Target<'_>) -> Result<()> {
    let mismatch =
        |what, found: usize, expected| Err(Error::Mismatch { group: 0, what, found: found.to_string(), expected });
    if tokens.k() != k {
        return mismatch("k of the tokens (x)", tokens.k(), format!("{k}, as the weights have,"));
    }
    if target.len() != tokens.rows() * width {
        let expected = format!("{} ({} tokens of {width} columns)", tokens.rows() * width, tokens.rows());
        return mismatch("the output's length", target.len(), expected);
    }
    Ok(())
}

/// Does `work` on so many tokens at a time, with the number of the first and where their results go.
fn pieces(
    tokens: &Dense<'_>,
    (target, width): (Target<'_>, usize),
    at_a_time: usize,
    mut work: impl FnMut(&Dense<'_>, usize, Target<'_>) -> Result<()>,
) -> Result<()> {
    let ranges = || (0..tokens.rows()).step_by(at_a_time).map(|first| first..tokens.rows().min(first + at_a_time));
    let targets = cut(target, ranges().map(|range| range.len() * width));
    ranges().zip(targets).try_for_each(|(range, target)| work(&part(tokens, range.clone())?, range.start, target))
}

/// A result of the library's own memory.
fn result(
    rows: usize,
    width: usize,
    output: Output,
    compute: impl FnOnce(Target<'_>) -> Result<()>,
) -> Result<Dense<'static>> {
    let mut values = [rows::values(output, rows * width, "the results")?];
    compute(Target::all(&mut values).remove(0))?;
    let [values] = values;
    Ok(Dense::new(rows, width, values, 1.0)?)
}
