//! A layer of experts over addresses, as launches: experts are chosen, tokens sorted, multiplied twice, and summed.
//!
//! All memory is somebody else's: tensors where the caller has them, and a workspace of [`workspace_bytes`] for what
//! lies between the launches. The host knows how many tokens there are and nothing else, so the same launches serve
//! every routing.
//!
//! **What a token's bits depend on.** Tensor cores add the products of sixteen of k to a sum at a time, from the first
//! sixteen to the last, whatever the tile; a row's sums know nothing of other rows; factors, biases, gate and rounding
//! are the same instructions in every kernel; routing and combination go by tokens. What does depend on how many tokens
//! there are is whether warps that share the columns of a tile share out k among themselves, and add up their sums in
//! the end, and whether blocks that multiply with an adapter's A do. In a layer that is [`LayerShape::invariant`] they
//! never do, and then a token's bits depend on that token and the weights only.

use op::{Output, Precision};
use ptx::Feature;

use super::adapt::AdaptSpec;
use super::adapters::AdaptedShape;
use super::between::{BetweenSpec, Form};
use super::call::{Brought, Choice, Exchange, LayerCall, LayerWeights, Placement};
use super::combine::CombineSpec;
use super::fetch::{self, FetchSpec};
use super::kernels::LayerKernels;
use super::lots::Lots;
use super::place::{self, PlaceSpec};
use super::route;
use super::send::{self, SendSpec};
use super::shape::{LayerShape, Step};
use super::share::{self, ShareSpec};
use super::sort::{Ids, MOST_ROUTED, Rows, SortSpec};
use super::{ALIGNMENT, For, Portable};
use crate::expand::{Float, TokenForm};
use crate::expansion::{self, Segment};
use crate::families::experts;
use crate::launch::{Argument, Launch};
use crate::phases::direct::{Direct, MOST_ENTRIES};
use crate::phases::experts::{FACTOR_BYTES, LIFT_BYTES};
use crate::phases::low_rank::{LEAST_PIECE, LowRank};
use crate::phases::tokens::Tokens;
use crate::products::{ProductOperands, ProductShape};
use crate::round;

/// Bytes of one number of a product's rows as the tensor cores take it: three parts of a float.
fn operand_bytes(product: &ProductShape) -> u64 {
    let tokens = Tokens::of_product(product);
    u64::from(tokens.parts() * tokens.bytes())
}

/// What lies between the launches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Between {
    ids: u64,
    placed: u64,
    weights: u64,
    inverse: u64,
    owners: u64,
    layout: u64,
    factors: u64,
    /// Where operands are rounded to e4m3: tokens, and what each was divided by; or where they are multiplied with
    /// their expert's factors first, sorted tokens. And what the rows of both products were divided by.
    rounded: [u64; 2],
    gathered: u64,
    divisors: [u64; 2],
    rows: u64,
    gated: u64,
    made: u64,
    partial: u64,
    /// What adapters need: the entry of every row, its adapter, and what is added to the first product's sums; and the
    /// pieces of what is added to the second one's, where entries are few.
    order: u64,
    chosen: u64,
    deltas: u64,
    pieces: u64,
    /// Layouts of lots of slots, and for each of the two lots that are brought over layout and weights.
    of_slots: u64,
    brought: [[u64; 2]; 2],
    end: u64,
}

impl Between {
    /// Places for so many tokens, from an address on. Where weights are brought over, to another, the shape's experts
    /// are numbers.
    fn at(shape: &LayerShape, tokens: u32, lots: Option<&Lots>, [start, brought]: [u64; 2]) -> Self {
        let mut end = start;
        let mut take = |bytes: u64| {
            let at = end;
            end = (end + bytes).next_multiple_of(ALIGNMENT);
            at
        };
        let entries = u64::from(tokens) * u64::from(shape.top);
        let [hidden, inner] = [shape.hidden, shape.inner].map(u64::from);
        let between = shape.between().bytes() as u64;
        let made = shape.step().map_or(0, |_| operand_bytes(&shape.down()));
        let (early, late) = (shape.rounds_tokens(), shape.rounds_rows());
        let row = shape.activation.row_bytes(shape.hidden as usize) as u64;
        let divisors = if shape.precision == Precision::Fp8 { 4 * entries } else { 0 };
        let mut places = Between {
            ids: take(4 * entries),
            placed: take(4 * entries),
            weights: take(4 * entries),
            inverse: take(4 * entries),
            owners: take(if shape.owned() { 4 * entries } else { 0 }),
            layout: take(8 * u64::from(shape.experts + 1)),
            factors: take(if shape.on_input { 4 * entries } else { 0 }),
            rounded: [hidden, 4].map(|each| take(if early { u64::from(tokens) * each } else { 0 })),
            gathered: take(if late { entries * row } else { 0 }),
            divisors: [0, 1].map(|_| take(divisors)),
            rows: take(entries * hidden * operand_bytes(&shape.gate_up())),
            gated: take(entries * inner * between),
            made: take(entries * inner * made),
            partial: take(entries * hidden * shape.partial.bytes() as u64),
            order: take(shape.adapted.map_or(0, |_| 4 * entries)),
            chosen: take(shape.adapted.map_or(0, |_| 4 * entries)),
            deltas: take(shape.adapted.map_or(0, |_| 4 * entries * inner * shape.gate.matrices() as u64)),
            // Of more entries, too, so that fewer tokens never need more room.
            pieces: take(shape.adapted.map_or(0, |adapted| {
                4 * entries.min(MOST_ENTRIES.into()) * u64::from(adapted.rank) * inner.div_ceil(LEAST_PIECE)
            })),
            of_slots: take(lots.map_or(0, |lots| u64::from(lots.of_slots) * lots.layout_bytes())),
            brought: lots.map_or([[0; 2]; 2], |lots| lots.places(brought)),
            end: 0,
        };
        places.end = end;
        places
    }
}

/// Bytes that [`launches`] need to work in, for so many tokens, with weights that are brought over or without: the
/// places that those are brought to are not among them.
pub fn workspace_bytes(shape: &LayerShape, lots: Option<&Lots>, tokens: u32) -> usize {
    Between::at(&numbered(shape, lots), tokens, lots, [0; 2]).end as usize
}

/// The layer whose experts are the numbers that rows are sorted by.
fn numbered(shape: &LayerShape, lots: Option<&Lots>) -> LayerShape {
    LayerShape { experts: lots.map_or(shape.experts, Lots::numbers), ..*shape }
}

/// What happens around a layer's products for so many tokens: what it is, and the bytes of memory that it reads and
/// writes.
pub(crate) fn around(shape: &LayerShape, tokens: u32) -> Vec<(&'static str, f64)> {
    let [tokens, top] = [tokens, shape.top].map(f64::from);
    let [hidden, inner] = [shape.hidden, shape.inner].map(f64::from);
    let entries = tokens * top;
    let token = shape.activation.row_bytes(1) as f64;
    let rows = hidden * operand_bytes(&shape.gate_up()) as f64;
    let mut all = match (shape.rounds_tokens(), shape.rounds_rows()) {
        (true, _) => vec![
            ("tokens rounded", tokens * (hidden * token + rows)),
            ("tokens to their experts", (tokens + entries) * rows),
        ],
        (_, true) => vec![
            ("tokens to their experts", (tokens + entries) * hidden * token),
            ("tokens rounded", entries * (hidden * token + rows)),
        ],
        _ => vec![("tokens to their experts", tokens * hidden * token + entries * rows)],
    };
    if shape.step().is_some() {
        let made = operand_bytes(&shape.down()) as f64;
        all.push(("between the products", entries * inner * (shape.between().bytes() as f64 + made)));
    }
    let [partial, output] = [shape.partial, shape.output].map(|each| each.bytes() as f64);
    all.push(("each token's results summed", hidden * (entries * partial + tokens * output)));
    all
}

/// Where a layer is computed.
#[derive(Clone, Copy, Debug)]
pub struct LayerSite {
    /// The address of the workspace, a multiple of 256.
    pub workspace: u64,
    /// That of the places that weights are brought to, [`Lots::place_bytes`] of them, where weights are.
    pub brought: u64,
    /// The address of what is exchanged with the host, a multiple of 256, where some experts are there.
    pub exchange: u64,
    /// Multiprocessors that the launches are made for.
    pub multiprocessors: u32,
}

/// The launches of a call, in their order.
#[derive(Clone, Debug, Default)]
pub struct LayerLaunches {
    /// All of them.
    pub all: Vec<Launch>,
    /// When the host computes, where it has experts.
    pub host: Option<HostPart>,
    /// Which of them bring weights over, in their order and beside the others.
    pub fetches: Vec<Fetch>,
}

/// A launch that brings weights over to one of two places. It waits until those that it replaces there have been read:
/// what the last but one brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Its place among all launches.
    pub at: usize,
    /// That of the launch that reads what it brings, and waits for it.
    pub reader: usize,
}

/// When the host computes its experts: beside the launches that come after some of them, and before the last one.
#[derive(Clone, Debug)]
pub struct HostPart {
    /// How many launches come before it begins.
    pub after: usize,
    /// What brings tokens to it.
    pub send: Launch,
}

/// The launches of a call.
pub fn launches(
    shape: &LayerShape,
    kernels: &LayerKernels,
    weights: &LayerWeights,
    call: &LayerCall,
    site: LayerSite,
) -> LayerLaunches {
    if call.tokens == 0 {
        return LayerLaunches::default();
    }
    let brought = call.placement.and_then(|placement| placement.brought);
    let lots = call.lots();
    let numbered = numbered(shape, lots);
    let between = Between::at(&numbered, call.tokens, lots, [site.workspace, site.brought]);
    let entries = call.tokens * shape.top;
    let maker = Maker { shape: &numbered, kernels, weights, call, between, entries, site };
    let mut all: Vec<Launch> = maker.route().into_iter().chain(maker.share()).chain(maker.place()).collect();
    let sends = call.placement.is_some_and(|placement| placement.sends());
    let host = sends.then(|| HostPart { after: all.len(), send: maker.send() });
    if let Some(few) = maker.direct() {
        all.extend(few);
        return LayerLaunches { all, host: None, fetches: Vec::new() };
    }
    all.extend(maker.round_tokens());
    all.push(maker.sort());
    all.extend(maker.round_rows());
    all.extend(maker.adapt(Half::GateUp, false));
    let mut fetches = Vec::new();
    maker.product(Half::GateUp, brought.as_ref(), &mut all, &mut fetches);
    all.extend(maker.between());
    maker.product(Half::Down, brought.as_ref(), &mut all, &mut fetches);
    all.extend(maker.adapt(Half::Down, false));
    all.push(maker.combine());
    LayerLaunches { all, host, fetches }
}

/// Bytes of the results of a layer's shared expert.
fn shared_bytes(shape: &LayerShape, tokens: u32) -> u64 {
    let results = u64::from(tokens) * u64::from(shape.hidden) * Output::F32.bytes() as u64;
    results.next_multiple_of(ALIGNMENT)
}

/// Bytes that [`whole_launches`] need to work in, for so many tokens of a layer with a shared expert or without. Its
/// results come first; what it works in is free again when they are there.
pub fn whole_workspace_bytes(
    shape: &LayerShape,
    lots: Option<&Lots>,
    shared: Option<&LayerShape>,
    tokens: u32,
) -> usize {
    let own = workspace_bytes(shape, lots, tokens);
    shared.map_or(own, |shared| shared_bytes(shape, tokens) as usize + own.max(workspace_bytes(shared, None, tokens)))
}

/// A layer, how its products are computed, and where its weights are.
pub type Part<'a> = (&'a LayerShape, &'a LayerKernels, &'a LayerWeights);

/// The launches of a call of a layer, and before them those of its shared expert, a layer of one, if it has one: its
/// results are added.
pub fn whole_launches(own: Part<'_>, shared: Option<Part<'_>>, call: &LayerCall, site: LayerSite) -> LayerLaunches {
    let (shape, kernels, weights) = own;
    let Some((shared_shape, shared_kernels, shared_weights)) = shared else {
        return launches(shape, kernels, weights, call, site);
    };
    let results = site.workspace;
    let site = LayerSite { workspace: results + shared_bytes(shape, call.tokens), ..site };
    let of_all = LayerCall { choice: Choice::Everyone, out: results, addend: None, placement: None, ..*call };
    let mut all = launches(shared_shape, shared_kernels, shared_weights, &of_all, site).all;
    let call = LayerCall { addend: Some((Output::F32, results)), ..*call };
    let own = launches(shape, kernels, weights, &call, site);
    let host = own.host.map(|host| HostPart { after: all.len() + host.after, ..host });
    let behind = all.len();
    let fetches = own.fetches.iter().map(|fetch| Fetch { at: behind + fetch.at, reader: behind + fetch.reader });
    let fetches = fetches.collect();
    all.extend(own.all);
    LayerLaunches { all, host, fetches }
}

/// Experts whose weights lie one after another, and whose layout begins with the first of them.
#[derive(Clone, Copy)]
struct Lot {
    /// The number of the first.
    first: u32,
    /// How many there are.
    experts: u32,
    layout: u64,
    /// The first one's first matrix of the product, and bytes to the next one's.
    matrices: u64,
    stride: u32,
}

/// One of a layer's products, and the adapters of its matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Half {
    GateUp = 0,
    Down = 1,
}

/// What the launches are made of.
struct Maker<'a> {
    shape: &'a LayerShape,
    kernels: &'a LayerKernels,
    weights: &'a LayerWeights,
    call: &'a LayerCall,
    between: Between,
    entries: u32,
    site: LayerSite,
}

impl Maker<'_> {
    /// Whether the sort chooses the experts itself.
    fn sort_routes(&self) -> bool {
        let (few, placed) = (self.call.tokens <= MOST_ROUTED, self.call.placement.is_some());
        matches!(self.call.choice, Choice::Logits { .. }) && few && !placed
    }

    /// The launch of a kernel that is none of the products.
    fn around<S: Portable>(&self, spec: S, grid: [u32; 3], arguments: Vec<Argument>) -> Launch {
        let target = self.kernels.family.target();
        let overlapping = target.has(Feature::GridDependency);
        Launch { kernel: For { spec, target }.into(), grid, arguments, overlapping, strided: false }
    }

    /// Where the entries' weights are, or will be.
    fn entry_weights(&self) -> u64 {
        match self.call.choice {
            Choice::Logits { .. } | Choice::Everyone => self.between.weights,
            Choice::Given { weights, .. } => weights,
        }
    }

    fn route(&self) -> Option<Launch> {
        let Choice::Logits { spec, .. } = self.call.choice else { return None };
        if self.sort_routes() {
            return None;
        }
        let mut arguments = self.logits();
        arguments.extend([self.between.ids, self.between.weights].map(Argument::Pointer));
        arguments.push(Argument::U32(self.call.tokens));
        let grid = [route::blocks(self.call.tokens), 1, 1];
        Some(self.around(spec, grid, arguments))
    }

    /// Which entries are the device's and which the host's, where both have experts.
    fn place(&self) -> Option<Launch> {
        let Placement { experts, table: [slots, asked], .. } = self.call.placement?;
        let (ids, wide) = match self.call.choice {
            Choice::Logits { .. } | Choice::Everyone => (self.between.ids, false),
            Choice::Given { ids, wide, .. } => (ids, wide),
        };
        // Nobody looks at what is written there where the host computes nothing: it goes where ids came from.
        let sent = self.call.placement.is_some_and(|placement| placement.sends());
        let away = if sent { self.site.exchange + self.exchange().ids as u64 } else { self.between.ids };
        let mut arguments = [ids, slots, asked, self.between.placed, away].map(Argument::Pointer).to_vec();
        arguments.push(Argument::U32(self.entries));
        Some(self.around(PlaceSpec { experts, wide }, [place::blocks(self.entries), 1, 1], arguments))
    }

    /// Brings tokens to the host.
    fn send(&self) -> Launch {
        let (shape, exchange) = (self.shape, self.exchange());
        let there = |place: usize| Argument::Pointer(self.site.exchange + place as u64);
        let mut arguments = [self.between.placed, self.call.x].map(Argument::Pointer).to_vec();
        arguments.push(there(exchange.tokens));
        if shape.on_input {
            arguments.extend([Argument::Pointer(self.entry_weights()), there(exchange.weights)]);
        }
        let row = shape.activation.row_bytes(shape.hidden as usize) as u32;
        arguments.push(Argument::U32(row / send::UNIT));
        let spec = SendSpec { top: shape.top, weights: shape.on_input };
        // It is not in line with the others, so it begins when what it waits for is done.
        Launch { overlapping: false, ..self.around(spec, [self.call.tokens, 1, 1], arguments) }
    }

    fn exchange(&self) -> Exchange {
        Exchange::of(self.shape, self.call.tokens)
    }

    /// What becomes of the only expert's own gate: the weights of all tokens.
    fn share(&self) -> Option<Launch> {
        let (shape, call) = (self.shape, self.call);
        if !shape.gated {
            return None;
        }
        let spec = ShareSpec { tokens: Float::of(shape.activation) };
        let mut arguments = [call.x, self.weights.gate, self.between.weights].map(Argument::Pointer).to_vec();
        arguments.extend([call.tokens, shape.hidden / 8].map(Argument::U32));
        Some(self.around(spec, [share::blocks(call.tokens), 1, 1], arguments))
    }

    /// The arguments of a routing.
    fn logits(&self) -> Vec<Argument> {
        let Choice::Logits { logits, spec, correction, scale } = self.call.choice else { return Vec::new() };
        let correction = spec.corrected.then_some(Argument::Pointer(correction));
        [Argument::Pointer(logits)].into_iter().chain(correction).chain([Argument::F32(scale)]).collect()
    }

    /// Tokens as e4m3 numbers, where those are the same for all of their experts.
    fn round_tokens(&self) -> Vec<Launch> {
        if !self.shape.rounds_tokens() {
            return Vec::new();
        }
        let ([target, factors], source) = (self.between.rounded, self.call.x);
        let sides = [self.call.tokens, self.shape.hidden].map(|side| side as usize);
        let kind = (Float::of(self.shape.activation), false);
        round::launches(
            self.kernels.family.target(),
            kind,
            &[round::Rows { source, columns: 0, target, factors, sides }],
        )
    }

    /// Sorted tokens as e4m3 numbers, where their experts multiply them with factors first.
    fn round_rows(&self) -> Option<Launch> {
        let (source, columns) = (self.between.gathered, self.weights.scales[0]);
        let (target, factors) = (self.between.rows, self.between.divisors[0]);
        let sides = [self.entries, self.shape.hidden].map(|side| side as usize);
        let rows = round::Rows { source, columns, target, factors, sides };
        self.shape.rounds_rows().then(|| self.round_by_expert(Float::of(self.shape.activation), rows))
    }

    fn round_by_expert(&self, float: Float, rows: round::Rows) -> Launch {
        let owners = round::Owners { experts: self.shape.experts, of_rows: self.between.owners };
        round::launch_by_owner(self.kernels.family.target(), float, rows, owners)
    }

    fn sort(&self) -> Launch {
        let (shape, between) = (self.shape, &self.between);
        let (ids, mut arguments) = match self.call.choice {
            _ if self.call.placement.is_some() => (Ids::Narrow, vec![Argument::Pointer(between.placed)]),
            Choice::Logits { spec, .. } if self.sort_routes() => (Ids::Routed(spec), self.logits()),
            Choice::Logits { .. } => (Ids::Narrow, vec![Argument::Pointer(between.ids)]),
            Choice::Given { ids, wide, .. } => {
                (if wide { Ids::Wide } else { Ids::Narrow }, vec![Argument::Pointer(ids)])
            }
            Choice::Everyone => (Ids::Everyone, Vec::new()),
        };
        let rows = match (shape.scaled[0], Float::of(shape.activation)) {
            _ if shape.precision == Precision::Fp8 => Rows::Copied,
            (true, float) => Rows::Scaled(float),
            (false, Float::F32) => Rows::Floats,
            (false, Float::F16 | Float::BF16) => Rows::Copied,
        };
        let (experts, top, order) = (shape.experts, shape.top, shape.adapted.is_some());
        let (factors, owners, divided) = (shape.on_input, shape.owned(), shape.rounds_tokens());
        let spec = SortSpec { experts, top, ids, rows, factors, owners, order, divided };
        // What is copied, to where, and units of it: sixteen bytes, or eight numbers.
        let (from, to, units) = match (shape.rounds_tokens(), shape.rounds_rows()) {
            (true, _) => (between.rounded[0], between.rows, shape.hidden / 16),
            (_, true) => (self.call.x, between.gathered, shape.activation.row_bytes(shape.hidden as usize) as u32 / 16),
            _ => (self.call.x, between.rows, shape.hidden / 8),
        };
        if self.sort_routes() || shape.on_input {
            arguments.push(Argument::Pointer(self.entry_weights()));
        }
        arguments.extend(shape.on_input.then_some(Argument::Pointer(between.factors)));
        let multiplied = matches!(rows, Rows::Scaled(_));
        arguments.extend(multiplied.then_some(Argument::Pointer(self.weights.scales[0])));
        arguments.extend([from, to].map(Argument::Pointer));
        arguments.extend((rows != Rows::Copied).then_some(Argument::U64(self.plane(shape.hidden))));
        arguments.extend([between.layout, between.inverse].map(Argument::Pointer));
        arguments.extend(spec.owners.then_some(Argument::Pointer(between.owners)));
        if spec.order {
            arguments.extend([self.call.adapters, between.order, between.chosen].map(Argument::Pointer));
        }
        if divided {
            arguments.extend([between.rounded[1], between.divisors[0]].map(Argument::Pointer));
        }
        let run = spec.run(self.call.tokens, self.site.multiprocessors);
        arguments.extend([self.call.tokens, run, units, self.kernels.tokens()].map(Argument::U32));
        let grid = [self.call.tokens.div_ceil(run), 1, 1];
        self.around(spec, grid, arguments)
    }

    /// Bytes from one part of rows with so many columns to the next.
    fn plane(&self, columns: u32) -> u64 {
        2 * u64::from(self.entries) * u64::from(columns)
    }

    fn matrix_bytes(&self) -> Vec<usize> {
        self.shape.matrix_bytes(self.kernels.family)
    }

    fn stride(&self) -> u32 {
        self.matrix_bytes().iter().sum::<usize>() as u32
    }

    /// One of the products, of all experts at once; or lot by lot, of slots and then of those whose weights are brought
    /// over.
    fn product(&self, half: Half, brought: Option<&Brought>, all: &mut Vec<Launch>, fetches: &mut Vec<Fetch>) {
        let (stride, before) = (self.stride(), self.bytes_before(half));
        let (experts, matrices) = (self.shape.experts, self.weights.matrices + before);
        let Some(Brought { lots, matrices: of_all }) = brought else {
            let lot = Lot { first: 0, experts, layout: self.between.layout, matrices, stride };
            return all.push(self.product_of(half, &lot, self.site.multiprocessors));
        };
        let (experts, bytes) = (lots.each, lots.bytes[half as usize] as u32);
        let others = self.site.multiprocessors.saturating_sub(fetch::BLOCKS).max(self.site.multiprocessors / 2);
        let product = |lot: &Lot| alone(self.product_of(half, lot, others));
        let brought = |index: u32, turn: usize| {
            let [layout, matrices] = self.between.brought[turn % 2];
            let lot = Lot { first: lots.first() + experts * index, experts, layout, matrices, stride: bytes };
            let source = of_all + before + u64::from(experts * index) * u64::from(stride);
            (lot, self.fetch(&lot, source, bytes / fetch::UNIT))
        };
        // The first is on its way while slots are computed.
        let (mut next, mut coming) = (brought(0, fetches.len()), all.len());
        all.push(next.1.clone());
        for index in 0..lots.of_slots {
            let (first, layout) = (experts * index, self.between.of_slots + u64::from(index) * lots.layout_bytes());
            let matrices = matrices + u64::from(first) * u64::from(stride);
            let lot = Lot { first, experts, layout, matrices, stride };
            all.extend((half == Half::GateUp).then(|| self.fetch(&lot, 0, 0)));
            all.push(product(&lot));
        }
        for index in 0..lots.of_all {
            if index > 0 {
                (next, coming) = (brought(index, fetches.len()), all.len());
                all.push(next.1.clone());
            }
            fetches.push(Fetch { at: coming, reader: all.len() });
            all.push(product(&next.0));
        }
    }

    /// Brings so many units of each of a lot's experts over, and leaves the lot's layout.
    fn fetch(&self, lot: &Lot, source: u64, units: u32) -> Launch {
        let spec = FetchSpec { numbers: self.shape.experts, lot: lot.experts };
        let mut arguments = [self.between.layout, lot.layout, source, lot.matrices].map(Argument::Pointer).to_vec();
        arguments.extend([lot.first, self.stride(), units].map(Argument::U32));
        alone(self.around(spec, [spec.blocks(units), 1, 1], arguments))
    }

    /// Bytes of an expert's matrices before those of a product.
    fn bytes_before(&self, half: Half) -> u64 {
        let bytes = self.matrix_bytes();
        let before: usize = bytes[..bytes.len() - 1].iter().sum();
        if half == Half::Down { before as u64 } else { 0 }
    }

    fn product_of(&self, half: Half, lot: &Lot, multiprocessors: u32) -> Launch {
        let of_lot = LayerShape { experts: lot.experts, ..*self.shape };
        let (shape, kernel) = match half {
            Half::GateUp => (of_lot.gate_up(), &*self.kernels.gate_up),
            Half::Down => (of_lot.down(), &*self.kernels.down),
        };
        let operands = match half {
            Half::GateUp => self.gate_up(lot),
            Half::Down => self.down(lot),
        };
        experts::launch(kernel, &shape, &operands, self.entries, multiprocessors)
    }

    /// Where an array of the weights' with so many numbers for each expert begins for a lot.
    fn of_lot(lot: &Lot, array: u64, numbers: u32) -> u64 {
        array + 4 * u64::from(lot.first) * u64::from(numbers)
    }

    fn gate_up(&self, lot: &Lot) -> ProductOperands {
        let up = lot.matrices + self.matrix_bytes()[0] as u64;
        let adapters = self.shape.adapted.map_or(0, |adapted| adapted.adapters);
        let biases = [0, 1].map(|matrix| Self::of_lot(lot, self.weights.biases[matrix], self.shape.inner));
        ProductOperands {
            rows: self.between.rows,
            plane: self.plane(self.shape.hidden),
            layout: lot.layout,
            weights: [lot.matrices, up],
            stride: lot.stride,
            factors: Self::of_lot(lot, self.weights.factors, FACTOR_BYTES / 4),
            biases,
            row_factors: self.between.factors,
            rounded: [self.between.divisors[0], Self::of_lot(lot, self.weights.lifts, LIFT_BYTES / 4)],
            added: (self.between.chosen, adapters, self.between.deltas),
            out: self.between.gated,
        }
    }

    /// What adapters add to the first product's sums, before it, or to the second one's, behind it: of sorted rows, or
    /// of entries.
    fn adapt(&self, half: Half, of_entries: bool) -> Option<Launch> {
        let (shape, between, adapters) = (self.shape, &self.between, &self.weights.adapters);
        let AdaptedShape { rank, numbers, adapters: count } = shape.adapted?;
        let (x, [k, columns], float, matrices) = match half {
            Half::GateUp => {
                let matrices = shape.gate.matrices() as u32;
                (self.call.x, [shape.hidden, shape.inner], Float::of(shape.activation), matrices)
            }
            Half::Down => (between.gated, [shape.inner, shape.hidden], shape.between().into(), 1),
        };
        let first = half == Half::GateUp;
        let factored = first && shape.on_input;
        let (together, slots, parts, clustered) = (1, 1, 1, false);
        let (ids, found_by) = self.found_by();
        let entries = of_entries.then_some(ids);
        let spec = AdaptSpec {
            x: float,
            first,
            entries,
            factored,
            numbers,
            matrices,
            rank,
            together,
            slots,
            parts,
            clustered,
        };
        // What a token's bits are must not depend on how many there are.
        let shares = self.kernels.family.target().has(Feature::Clusters) && !shape.invariant;
        let spec = spec.placed([self.entries, k, columns], shares);
        let number = half as usize;
        let mut arguments =
            [x, adapters.a[number], adapters.b[number], adapters.scalings].map(Argument::Pointer).to_vec();
        arguments.extend(factored.then_some(Argument::Pointer(between.factors)));
        if of_entries {
            arguments.extend(found_by);
            arguments.extend([Argument::U32(shape.top), Argument::Pointer(self.call.adapters)]);
        } else {
            arguments.extend(first.then_some(Argument::Pointer(between.order)));
            arguments.extend(first.then_some(Argument::U32(shape.top)));
            arguments.extend([between.owners, between.chosen, between.layout].map(Argument::Pointer));
        }
        arguments.extend([self.entries, shape.experts, count].map(Argument::U32));
        arguments.push(Argument::Pointer(if first { between.deltas } else { between.partial }));
        arguments.extend([k / 8, columns].map(Argument::U32));
        Some(self.around(spec, spec.grid(self.entries), arguments))
    }

    /// What lies between the products as the tensor cores take it, where that is not how the first one leaves it.
    fn between(&self) -> Vec<Launch> {
        let form = match self.shape.step() {
            None => return Vec::new(),
            Some(Step::Own(form)) => return vec![self.own(form)],
            Some(Step::Round) => return self.round_between(),
            Some(Step::Split) => TokenForm::Single,
        };
        let segment = Segment {
            source: self.between.gated,
            scales: 0,
            target: self.between.made,
            plane: self.plane(self.shape.inner),
            factor: 1.0,
            k: self.shape.inner as usize,
            elements: self.entries as usize * self.shape.inner as usize,
        };
        expansion::launches(self.kernels.family.target(), form, &[segment])
    }

    /// What lies between the products as e4m3 numbers.
    fn round_between(&self) -> Vec<Launch> {
        let (shape, between) = (self.shape, &self.between);
        let (source, target, factors) = (between.gated, between.made, between.divisors[1]);
        let sides = [self.entries, shape.inner].map(|side| side as usize);
        let (float, columns) = (Float::from(shape.between()), self.weights.scales[1]);
        let rows = round::Rows { source, columns, target, factors, sides };
        match shape.scaled[1] {
            true => vec![self.round_by_expert(float, rows)],
            false => round::launches(self.kernels.family.target(), (float, false), &[rows]),
        }
    }

    /// What is a matter of each row's expert.
    fn own(&self, form: Form) -> Launch {
        let (shape, between) = (self.shape, &self.between);
        let spec = BetweenSpec { form, experts: shape.experts };
        let numbers = if form == Form::Quantised { self.weights.tables } else { self.weights.scales[1] };
        let places = [between.gated, numbers, between.owners, between.layout, between.made];
        let mut arguments: Vec<Argument> = places.map(Argument::Pointer).to_vec();
        arguments.extend((form != Form::Quantised).then_some(Argument::U64(self.plane(shape.inner))));
        arguments.push(Argument::U32(shape.inner / spec.unit()));
        self.around(spec, [spec.blocks(self.entries, shape.inner), 1, 1], arguments)
    }

    fn down(&self, lot: &Lot) -> ProductOperands {
        let lifts = Self::of_lot(lot, self.weights.lifts, LIFT_BYTES / 4);
        ProductOperands {
            rows: if self.shape.step().is_some() { self.between.made } else { self.between.gated },
            plane: self.plane(self.shape.inner),
            layout: lot.layout,
            weights: [lot.matrices; 2],
            stride: lot.stride,
            factors: Self::of_lot(lot, self.weights.factors, FACTOR_BYTES / 4) + u64::from(FACTOR_BYTES / 3 * 2),
            biases: [Self::of_lot(lot, self.weights.biases[2], self.shape.hidden); 2],
            row_factors: 0,
            rounded: [self.between.divisors[1], lifts + u64::from(LIFT_BYTES / 3 * 2)],
            added: Default::default(),
            out: self.between.partial,
        }
    }

    /// Whether tokens are so few that the products may find their tiles themselves, where there are kernels for that.
    fn is_few(&self) -> bool {
        let (shape, call) = (self.shape, self.call);
        let few = self.entries <= MOST_ENTRIES && call.tokens <= self.kernels.direct;
        let few = few && (call.choice != Choice::Everyone || call.tokens == 1);
        // Rows of 16 bits would take more registers than there are.
        let plain = shape.precision == Precision::Exact && shape.partial == Output::F32;
        let plain = plain && shape.step().is_none() && !shape.scaled[0];
        // What adapters add to the second product is summed by tiles.
        let varies = shape.adapted.is_some() && shape.invariant;
        few && plain && call.placement.is_none() && !shape.on_input && !varies
    }

    /// The launches of a call with so few tokens: both products, and before them what adapters add to the first.
    fn direct(&self) -> Option<Vec<Launch>> {
        if !self.is_few() {
            return None;
        }
        let (shape, call, kernels) = (self.shape, self.call, self.kernels);
        let (ids, found_by) = self.found_by();
        let (top, sums, low_rank) = (shape.top, self.combine_spec(), self.low_rank());
        let gate_up = kernels.gate_up.direct(Direct { ids, top, sums: None, low_rank })?;
        let down = kernels.down.direct(Direct { ids, top, sums: Some(sums), low_rank })?;
        // Rows are not copied, so there is room for counters.
        let counters = [Argument::U32(call.tokens), Argument::Pointer(self.between.rows)];
        let cleared = call.tokens * shape.hidden.div_ceil(down.tile()[1]);
        let (mut first, mut second) = (found_by.clone(), found_by);
        first.extend(counters.clone());
        first.push(Argument::U32(cleared));
        second.extend(counters);
        let weighted = sums.weighted && !matches!(ids, Ids::Routed(_));
        second.extend(weighted.then_some(Argument::Pointer(self.entry_weights())));
        second.extend(call.addend.map(|(_, at)| Argument::Pointer(at)));
        second.push(Argument::Pointer(call.out));
        if low_rank.is_some() {
            let adapters = &self.weights.adapters;
            first.extend([adapters.a[1], self.between.pieces].map(Argument::Pointer));
            second.extend([adapters.b[1], adapters.scalings].map(Argument::Pointer));
        }
        let [tokens, gated] = self.few_operands();
        let (multiprocessors, entries) = (self.site.multiprocessors, self.entries);
        let shapes = [shape.gate_up(), ProductShape { added: low_rank.is_some(), ..shape.down() }];
        let rows = [call.tokens, entries];
        let gate_up = experts::launch_direct(&*gate_up, (&shapes[0], &tokens), rows, first, multiprocessors);
        let down = experts::launch_direct(&*down, (&shapes[1], &gated), [entries; 2], second, multiprocessors);
        Some(self.adapt(Half::GateUp, true).into_iter().chain([gate_up, down]).collect())
    }

    /// What both products of few tokens are given: tokens where they are, and adapters of tokens.
    fn few_operands(&self) -> [ProductOperands; 2] {
        let experts = self.shape.experts;
        let (layout, matrices, stride) = (0, self.weights.matrices, self.stride());
        let lot = |half| Lot { first: 0, experts, layout, matrices: matrices + self.bytes_before(half), stride };
        let count = self.shape.adapted.map_or(0, |adapted| adapted.adapters);
        let added = |what| (self.call.adapters, count, what);
        let tokens = self.gate_up(&lot(Half::GateUp));
        [
            ProductOperands { rows: self.call.x, added: added(self.between.deltas), ..tokens },
            ProductOperands { added: added(self.between.pieces), ..self.down(&lot(Half::Down)) },
        ]
    }

    /// How blocks of few tokens find entries, and the arguments for that.
    fn found_by(&self) -> (Ids, Vec<Argument>) {
        match self.call.choice {
            Choice::Logits { spec, .. } => (Ids::Routed(spec), self.logits()),
            Choice::Given { ids, wide, .. } => {
                (if wide { Ids::Wide } else { Ids::Narrow }, vec![Argument::Pointer(ids)])
            }
            Choice::Everyone => (Ids::Everyone, Vec::new()),
        }
    }

    /// What adapters add to the second product, where tokens are few.
    fn low_rank(&self) -> Option<LowRank> {
        let AdaptedShape { rank, numbers, .. } = self.shape.adapted?;
        Some(LowRank { rank, numbers, pieces: self.shape.inner.div_ceil(self.kernels.gate_up.piece()) })
    }

    fn combine_spec(&self) -> CombineSpec {
        let (shape, call) = (self.shape, self.call);
        CombineSpec {
            top: shape.top,
            rows: shape.partial,
            output: shape.output,
            weighted: !shape.on_input && (shape.gated || call.choice != Choice::Everyone),
            addend: call.addend.map(|(ty, _)| ty),
            away: call.placement.is_some_and(|placement| placement.sends()),
        }
    }

    fn combine(&self) -> Launch {
        let (shape, call, spec) = (self.shape, self.call, self.combine_spec());
        let mut arguments = vec![Argument::Pointer(self.between.partial), Argument::Pointer(self.between.inverse)];
        if spec.away {
            let rows = self.site.exchange + self.exchange().rows as u64;
            arguments.extend([self.between.placed, rows].map(Argument::Pointer));
        }
        arguments.extend(spec.weighted.then_some(Argument::Pointer(self.entry_weights())));
        arguments.extend(call.addend.map(|(_, at)| Argument::Pointer(at)));
        arguments.extend([Argument::Pointer(call.out), Argument::U32(call.tokens), Argument::U32(shape.hidden)]);
        let grid = [spec.blocks(call.tokens, shape.hidden), 1, 1];
        let launch = self.around(spec, grid, arguments);
        // Where it waits for the host as well, it does not begin before the launch ahead of it is done.
        Launch { overlapping: launch.overlapping && !spec.away, ..launch }
    }
}

/// A launch that begins when what is before it is done.
fn alone(launch: Launch) -> Launch {
    Launch { overlapping: false, ..launch }
}
