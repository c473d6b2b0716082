//! What low-rank adapters add to the products of a layer, as [`op::adapters`] defines it: a kernel before each product,
//! which leaves B·t of every row that has an adapter. The product's epilogue adds that.
//!
//! A block has some rows, and computes t = scaling·(A·x) of them first: its warps have every eighth 32 of k, and where A
//! and x are of the same 16 bits tensor cores multiply. Then its threads multiply with B, four neighbouring columns each.
//! A row finds its pair of matrices by its expert and its adapter, both of which the sort has left. Where rows are few, a
//! block has one, and one part of the columns: then t is computed by several. Where they are many, it has sixteen
//! neighbours, which have the same expert mostly: it goes through the pairs that they have, reads each once, and every row
//! takes what is its own.
//!
//! Rows without an adapter are neither read nor written, and a block that has no others ends when it knows that.
//!
//! **Sums by tensor cores.** A step takes sixteen products and the sum before, each cut off at 2⁻²³ of the largest at
//! worst: 34·ε of all magnitudes for k/128 steps of a warp, which is less than a third of what [`op::adapters`] grants a
//! sum of k.
//!
//! **When.** Before the first product, the kernel waits for the sort and only then lets the product begin, which thereby
//! knows what the sort has left: it waits for this kernel only where it adds. Before the second, A and B of few rows are
//! asked for before the first product is waited for.
//!
//! In memory, adapters are padded with zeros to one rank: A `[adapters, experts, matrices, rank, k]` and B's columns
//! `[adapters, experts, matrices, rank, n]`.

use op::{Adapters, Error as OpError, Gate, Output, Projection, Result as OpResult};
use ptx::instr::{MatrixElement, ShuffleMode};
use ptx::{
    Addr, Builder, Error, F32, Global, Kernel, LaunchBounds, Reg, Shared, SharedRegion, SpecialRegister, Target, U32,
    U64,
};

use super::combine::{floats, load, store};
use super::route::warp_sum;
use super::{NOBODY, Portable, await_predecessor, launch_dependents};
use crate::expand::{self, Float, UNIT};

/// Warps and threads of a block.
const WARPS: u32 = 8;
const THREADS: u32 = 32 * WARPS;
/// Columns of a thread.
const COLUMNS: u32 = 4;
/// What ranks are rounded up to.
const RANKS: u32 = 8;
/// Units from one of a warp's steps along k to its next: a step has four, one for each lane of a row.
const STEP: u32 = 4 * WARPS;
/// Rows from which on blocks have several, and how many.
const MANY: u32 = 1024;
const TOGETHER: u32 = 16;

/// The adapters of a layer on a device: how many, the rank that they are padded to, and the type of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptedShape {
    /// Adapters.
    pub adapters: u32,
    /// Their rank, a multiple of eight.
    pub rank: u32,
    /// The type of A and B.
    pub numbers: Output,
}

/// Where a layer's adapters are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdapterPlaces {
    /// A of gate and up, and of down.
    pub a: [u64; 2],
    /// B's columns, of the same.
    pub b: [u64; 2],
    /// What each adapter's results are multiplied with.
    pub scalings: u64,
}

/// Adapters as the kernels take them.
#[derive(Debug)]
pub struct PackedAdapters {
    /// What they are.
    pub shape: AdaptedShape,
    /// A of gate and up, A of down, B of the same, scalings: each as bytes.
    arrays: [Vec<u8>; 5],
}

impl PackedAdapters {
    /// Pads adapters to one rank, in the type that all of them have, or f32.
    pub fn new(adapters: &Adapters, gate: Gate) -> OpResult<Self> {
        let (all, experts, [k, inner, out]) = (adapters.len(), adapters.experts(), adapters.widths());
        if all == 0 || all * experts > (1 << 24) {
            let expected = format!("1 to {} for {experts} experts", (1 << 24) / experts.max(1));
            return Err(OpError::Mismatch {
                group: 0,
                what: "the number of adapters",
                found: all.to_string(),
                expected,
            });
        }
        let rank = (adapters.rank() as u32).next_multiple_of(RANKS).max(RANKS);
        let numbers = numbers_of(adapters);
        let outer = [Projection::Gate, Projection::Up];
        let products: [(&[Projection], [usize; 2]); 2] =
            [(&outer[..gate.matrices()], [k, inner]), (&[Projection::Down], [inner, out])];
        let [gate_up, down] = products.map(|(projections, [k, n])| {
            let side = |width: usize, rows: fn(&op::LowRank) -> &format::Dense<'static>| {
                let mut bytes = Vec::with_capacity(all * experts * projections.len() * rank as usize * width);
                for (adapter, expert) in (0..all).flat_map(|adapter| (0..experts).map(move |expert| (adapter, expert)))
                {
                    for &projection in projections {
                        let pair = adapters.pair(adapter, expert, projection).map(|(pair, _)| rows(pair));
                        extend(&mut bytes, pair, [rank as usize, width], numbers);
                    }
                }
                bytes
            };
            [side(k, op::LowRank::a), side(n, op::LowRank::b_columns)]
        });
        let scalings: Vec<f32> = adapters.each().iter().map(|adapter| adapter.scaling).collect();
        let [(a_up, b_up), (a_down, b_down)] = [gate_up, down].map(|[a, b]| (a, b));
        let arrays = [a_up, a_down, b_up, b_down, bytemuck::cast_slice(&scalings).to_vec()];
        Ok(Self { shape: AdaptedShape { adapters: all as u32, rank, numbers }, arrays })
    }

    /// Where everything is, once `place` has put the arrays somewhere.
    pub fn placed<E>(&self, place: impl FnMut(&[u8]) -> Result<u64, E>) -> Result<AdapterPlaces, E> {
        let places = self.arrays.iter().map(|bytes| &bytes[..]).map(place).collect::<Result<Vec<u64>, E>>()?;
        let [a_up, a_down, b_up, b_down, scalings] = std::array::from_fn(|index| places[index]);
        Ok(AdapterPlaces { a: [a_up, a_down], b: [b_up, b_down], scalings })
    }
}

/// The type that all of the adapters' numbers have, or f32.
fn numbers_of(adapters: &Adapters) -> Output {
    let pairs = || adapters.each().iter().flat_map(|adapter| adapter.experts.iter().flatten().flatten());
    let all = |is: fn(&format::Values<'_>) -> bool| {
        pairs().all(|pair| [pair.a(), pair.b_columns()].iter().all(|matrix| is(matrix.values())))
    };
    if all(|values| matches!(values, format::Values::BF16(_))) {
        Output::BF16
    } else if all(|values| matches!(values, format::Values::F16(_))) {
        Output::F16
    } else {
        Output::F32
    }
}

/// Appends the rows of a matrix, or zeros, `[rank, width]` of a type.
fn extend(bytes: &mut Vec<u8>, matrix: Option<&format::Dense<'_>>, [rank, width]: [usize; 2], numbers: Output) {
    let end = bytes.len() + rank * width * numbers.bytes();
    if let Some(matrix) = matrix {
        match (matrix.values(), numbers) {
            (format::Values::BF16(values), Output::BF16) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            (format::Values::F16(values), Output::F16) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            _ => {
                let mut row = vec![0f32; width];
                for rank in 0..matrix.rows() {
                    matrix.row(rank, &mut row);
                    bytes.extend_from_slice(bytemuck::cast_slice(&row));
                }
            }
        }
    }
    bytes.resize(end, 0);
}

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptSpec {
    /// The type of x.
    pub x: Float,
    /// Whether it comes before the first product: x has a row per token then, and not per row.
    pub first: bool,
    /// Whether sums are multiplied with a factor per row.
    pub factored: bool,
    /// The type of A and B.
    pub numbers: Output,
    /// Matrices that have something added: gate and up, or one.
    pub matrices: u32,
    /// The rank, a multiple of eight.
    pub rank: u32,
    /// Rows of a block: [`AdaptSpec::together`].
    pub together: u32,
}

impl AdaptSpec {
    /// Whether tensor cores multiply A and x: both have the same 16 bits.
    fn on_tensor_cores(&self) -> bool {
        self.numbers != Output::F32 && self.x == Float::from(self.numbers)
    }

    /// The same kernel for so many rows: where they are many, blocks have several, which share what they read.
    pub fn together(self, rows: u32) -> Self {
        let together = if rows >= MANY && self.on_tensor_cores() { TOGETHER } else { 1 };
        AdaptSpec { together, ..self }
    }

    /// Blocks for so many rows and columns. Blocks of few rows have a part of the columns each, and all of those
    /// multiply with A.
    pub fn grid(&self, rows: u32, columns: u32) -> [u32; 3] {
        let parts = if self.together == 1 { columns.div_ceil(COLUMNS * THREADS) } else { 1 };
        [rows.div_ceil(self.together), self.matrices, parts]
    }

    /// Sixteens of ranks.
    fn sixteens(&self) -> u32 {
        self.rank.div_ceil(16)
    }

    /// Eights of rows.
    fn eights(&self) -> u32 {
        self.together.div_ceil(8)
    }

    /// Steps along k that a warp asks for at a time, as registers allow.
    fn turns(&self) -> u32 {
        let each = 2 * self.sixteens() + self.eights();
        (24 / each).max(1)
    }

    /// Whether B is asked for before A is multiplied.
    fn early(&self) -> bool {
        self.together == 1 && self.rank <= 16
    }

    /// Ranks of B that are asked for at a time.
    fn ranks(&self) -> u32 {
        if self.rank.is_multiple_of(16) { 16 } else { RANKS }
    }
}

impl Portable for AdaptSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: x `[tokens or rows, 8·units]`; A; B's columns; scalings `[adapters]`; a
/// factor per row, if there are some; the order, if x has a row per token, and experts of a token; owners, adapters of
/// rows, layout; rows, experts, adapters; what is added, `[rows, matrices, columns]`; units of a row of x, and columns.
pub fn kernel(spec: AdaptSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("adapt", target, launch);
    let adapt = Adapt::declare(&mut k, spec);
    if spec.first {
        // The product behind this kernel knows by its own beginning that the sort is over.
        await_predecessor(&mut k, target);
    }
    launch_dependents(&mut k, target);
    let rows = adapt.find(&mut k);
    if !spec.first && spec.together > 1 {
        await_predecessor(&mut k, target);
    }
    let any = k.ne(rows.adapted, 0);
    k.if_(any, |k| {
        let early = spec.early().then(|| adapt.early(k, &rows));
        let mut wait = |k: &mut Builder| {
            if !spec.first && spec.together == 1 {
                await_predecessor(k, target);
            }
        };
        k.phase("shrink", |k| match adapt.sums {
            Some(sums) => adapt.shrink(k, &rows, sums, &mut wait),
            None => adapt.shrink_by_hand(k, &rows, &mut wait),
        });
        k.phase("expand", |k| adapt.expand(k, &rows, early));
    });
    if !spec.first && spec.together == 1 {
        // A block without adapters, too, ends behind the kernel before this one, so that who waits for this one has
        // waited for both.
        await_predecessor(&mut k, target);
    }
    k.finish()
}

/// The arguments, and a block's place.
struct Adapt {
    spec: AdaptSpec,
    x: Reg<U64>,
    a: Reg<U64>,
    b: Reg<U64>,
    scalings: Reg<U64>,
    factors: Option<Reg<U64>>,
    order: Option<(Reg<U64>, Reg<U32>)>,
    owners: Reg<U64>,
    chosen: Reg<U64>,
    layout: Reg<U64>,
    rows: Reg<U32>,
    experts: Reg<U32>,
    count: Reg<U32>,
    deltas: Reg<U64>,
    units: Reg<U32>,
    columns: Reg<U32>,
    /// Sums of all warps `[warps, together, rank]`, where tensor cores make them, t `[together, rank]`, and what it is
    /// multiplied with.
    sums: Option<SharedRegion>,
    t: SharedRegion,
    terms: SharedRegion,
    thread: Reg<U32>,
    warp: Reg<U32>,
    lane: Reg<U32>,
    matrix: Reg<U32>,
    part: Reg<U32>,
    first_row: Reg<U32>,
}

/// What is known of a block's rows: each of its first lanes has one.
struct Rows {
    /// Which of all pairs is the row's, or [`NOBODY`].
    key: Reg<U32>,
    /// Its row of x.
    x: Reg<U32>,
    /// Which rows have an adapter, as bits.
    adapted: Reg<U32>,
}

impl Adapt {
    fn declare(k: &mut Builder, spec: AdaptSpec) -> Self {
        let [x, a, b, scalings] = ["x", "a", "b", "scalings"].map(|name| k.pointer(name));
        let factors = spec.factored.then(|| k.pointer("factors"));
        let order = spec.first.then(|| (k.pointer("order"), k.param("top")));
        let [owners, chosen, layout] = ["owners", "chosen", "layout"].map(|name| k.pointer(name));
        let [rows, experts, count] = ["rows", "experts", "count"].map(|name| k.param(name));
        let deltas = k.pointer("deltas");
        let [units, columns] = ["units", "columns"].map(|name| k.param(name));
        let row_bytes = 4 * spec.rank * spec.together;
        let (thread, tile) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
        let warp = k.shr(thread, 5);
        Adapt {
            spec,
            x,
            a,
            b,
            scalings,
            factors,
            order,
            owners,
            chosen,
            layout,
            rows,
            experts,
            count,
            deltas,
            units,
            columns,
            sums: spec.on_tensor_cores().then(|| k.shared("sums", WARPS * row_bytes, 16)),
            t: k.shared("t", row_bytes, 16),
            terms: k.shared("terms", 8 * spec.together, 16),
            thread,
            warp: k.broadcast(warp),
            lane: k.and(thread, 31),
            matrix: k.special(SpecialRegister::CtaidY),
            part: k.special(SpecialRegister::CtaidZ),
            first_row: k.mul(tile, spec.together),
        }
    }

    /// Looks up a block's rows, and leaves what theirs is multiplied with. Behind the last row there is room for what
    /// nobody has written, and what that says is not looked at.
    fn find(&self, k: &mut Builder) -> Rows {
        let last = k.sub(self.rows, 1);
        let own = k.min(self.lane, self.spec.together - 1);
        let row = k.add(self.first_row, own);
        let place = k.min(row, last);
        let word = |k: &mut Builder, base, index| {
            let at = k.mul_wide_add(index, 4, base);
            k.load::<U32, Global>(Addr::of(at))
        };
        let (end, chosen, owner, entry) = k.phase("find", |k| {
            let end = word(k, self.layout, self.experts);
            let (chosen, owner) = (word(k, self.chosen, place), word(k, self.owners, place));
            (end, chosen, owner, self.order.map(|(order, _)| word(k, order, place)))
        });
        let x = match (self.order, entry) {
            (Some((_, top)), Some(entry)) => {
                let exists = k.lt(row, end);
                let entry = k.select(exists, entry, 0);
                k.div(entry, top)
            }
            _ => place,
        };
        let (exists, known) = (k.lt(row, end), k.lt(chosen, self.count));
        let first = k.lt(self.lane, self.spec.together);
        let adapted = k.both(exists, known);
        let adapted = k.both(adapted, first);
        let key = k.mul_add(chosen, self.experts, owner);
        let key = k.select(adapted, key, NOBODY);
        let leaves = k.eq(self.warp, 0);
        let leaves = k.both(leaves, adapted);
        k.if_(leaves, |k| {
            let scaling = word(k, self.scalings, chosen);
            let factor = match self.factors {
                Some(factors) => word(k, factors, place),
                None => k.variable(1f32.to_bits()),
            };
            let base = k.shared_address(self.terms);
            let at = k.mul_add(self.lane, 8, base);
            k.store_vector(Addr::<Shared>::of(at), [factor, scaling]);
        });
        let adapted = k.ballot(adapted);
        Rows { key, x, adapted }
    }

    /// `body` for each pair that some of the rows have, and which of them do.
    fn each_key(&self, k: &mut Builder, rows: &Rows, body: impl FnOnce(&mut Builder, Reg<U32>, Reg<U32>)) {
        if self.spec.together == 1 {
            let key = k.broadcast(rows.key);
            return body(k, key, rows.adapted);
        }
        let left = k.variable(rows.adapted);
        k.repeat_while(|k| {
            let below = k.sub(left, 1);
            let others = k.not(left);
            let below = k.and(below, others);
            let lead = k.count_ones(below);
            let key = k.shuffle(ShuffleMode::Index, rows.key, lead);
            let same = k.eq(rows.key, key);
            let same = k.ballot(same);
            let others = k.not(same);
            let rest = k.and(left, others);
            k.set(left, rest);
            body(k, key, same);
            k.ne(left, 0)
        });
    }

    /// Which of all matrices is a pair's own.
    fn own_matrix(&self, k: &mut Builder, key: Reg<U32>) -> Reg<U32> {
        k.mul_add(key, self.spec.matrices, self.matrix)
    }

    /// Bytes of a row of x.
    fn x_bytes(&self, k: &mut Builder) -> Reg<U32> {
        k.mul(self.units, UNIT as u32 * if self.spec.x == Float::F32 { 4 } else { 2 })
    }

    /// t by tensor cores: sixteen ranks times eight rows at a time, of every eighth 32 of k. Which eight of those 32
    /// numbers a lane has does not matter, as long as they are the same of A and of x: so it has neighbours.
    fn shrink(&self, k: &mut Builder, rows: &Rows, room: SharedRegion, wait: &mut dyn FnMut(&mut Builder)) {
        let spec = self.spec;
        let (quad, place) = (k.shr(self.lane, 2), k.and(self.lane, 3));
        let (x_bytes, a_bytes) = (self.x_bytes(k), k.mul(self.units, 2 * UNIT as u32));
        let x: Vec<Reg<U64>> = (0..spec.eights())
            .map(|eight| {
                let lane = k.add(quad, 8 * eight);
                let lane = k.min(lane, spec.together - 1);
                let row = k.shuffle(ShuffleMode::Index, rows.x, lane);
                k.mul_wide_add(row, x_bytes, self.x)
            })
            .collect();
        let grid = || (0..spec.sixteens()).flat_map(|sixteen| (0..spec.eights()).map(move |eight| (sixteen, eight)));
        let fresh =
            |k: &mut Builder| -> Vec<[Reg<F32>; 4]> { grid().map(|_| [0; 4].map(|_| k.variable(0.0))).collect() };
        let sums = fresh(k);
        self.each_key(k, rows, |k, key, same| {
            let own = self.own_matrix(k, key);
            let first = k.mul(own, spec.rank);
            let first = k.add(first, quad);
            // Of ranks behind the last, whose results nobody looks at, there may be none.
            let a: Vec<Reg<U64>> = (0..spec.sixteens() * 2)
                .map(|eight| {
                    let row = k.add(first, (8 * eight).min(spec.rank - 8));
                    k.mul_wide_add(row, a_bytes, self.a)
                })
                .collect();
            let own = if spec.together == 1 { sums.clone() } else { fresh(k) };
            self.products(k, (place, &x, &a), &own, wait);
            if spec.together == 1 {
                return;
            }
            let pair = k.shl(place, 1);
            let shifted = k.shr(same, pair);
            for (index, (_, eight)) in grid().enumerate() {
                for number in 0..4u32 {
                    let bit = k.bit_extract(shifted, 8 * eight + number % 2, 1);
                    let theirs = k.ne(bit, 0);
                    let (sum, value) = (sums[index][number as usize], own[index][number as usize]);
                    k.when(theirs, |k| k.set(sum, value));
                }
            }
        });
        let base = k.shared_address(room);
        let base = k.mul_add(self.warp, 4 * spec.rank * spec.together, base);
        let at = k.mul_add(quad, 4, base);
        let at = k.mul_add(place, 8 * spec.rank, at);
        let leads = (spec.together == 1).then(|| k.eq(place, 0));
        for (index, (sixteen, eight)) in grid().enumerate() {
            for number in 0..4u32 {
                let (rank, row) = (16 * sixteen + 8 * (number / 2), 8 * eight + number % 2);
                if rank >= spec.rank || (spec.together == 1 && row > 0) {
                    continue;
                }
                let at = Addr::<Shared>::of(at).plus((4 * (row * spec.rank + rank)).cast_signed());
                let value = sums[index][number as usize];
                match leads {
                    Some(leads) => k.when(leads, |k| k.store(at, value)),
                    None => k.store(at, value),
                }
            }
        }
        k.sync_threads();
        self.add_warps(k, room);
        k.sync_threads();
    }

    /// A warp's sums of its steps along k, several at a time: as much must be under way. What of A comes next is asked
    /// for before it is needed, and the first of it before anything waits.
    fn products(
        &self,
        k: &mut Builder,
        (place, x, a): (Reg<U32>, &[Reg<U64>], &[Reg<U64>]),
        sums: &[[Reg<F32>; 4]],
        wait: &mut dyn FnMut(&mut Builder),
    ) {
        let (spec, turns) = (self.spec, self.spec.turns());
        let element = if spec.numbers == Output::BF16 { MatrixElement::Bf16 } else { MatrixElement::F16 };
        let last = k.sub(self.units, 1);
        let unit = k.mul_add(self.warp, 4, place);
        let unit = k.variable(unit);
        let words: Vec<[Reg<U32>; 4]> = (0..turns as usize * a.len()).map(|_| k.registers()).collect();
        let ask = |k: &mut Builder| {
            k.phase("load", |k| {
                for turn in 0..turns {
                    let unit = k.add(unit, turn * STEP);
                    let unit = k.min(unit, last);
                    for (row, &from) in a.iter().enumerate() {
                        let at = k.mul_wide_add(unit, 2 * UNIT as u32, from);
                        let loaded: [Reg<U32>; 4] = k.load_vector(Addr::<Global>::of(at));
                        let kept = words[turn as usize * a.len() + row];
                        kept.into_iter().zip(loaded).for_each(|(kept, loaded)| k.set(kept, loaded));
                    }
                }
            });
        };
        let first = k.sub(unit, place);
        let some = k.lt(first, self.units);
        k.if_(some, |k| ask(k));
        wait(k);
        // All lanes of a warp go on as long as the first of four has something left.
        k.loop_while(
            |k| {
                let first = k.sub(unit, place);
                k.lt(first, self.units)
            },
            |k| {
                let tokens: Vec<Vec<[Reg<U32>; 4]>> = k.phase("load", |k| {
                    let of = |turn: u32| {
                        let unit = k.add(unit, turn * STEP);
                        let exists = k.lt(unit, self.units);
                        let unit = k.min(unit, last);
                        let load = |&from: &Reg<U64>| {
                            let at = k.mul_wide_add(unit, 2 * UNIT as u32, from);
                            let words: [Reg<U32>; 4] = k.load_vector(Addr::<Global>::of(at));
                            words.map(|word| k.select(exists, word, 0))
                        };
                        x.iter().map(load).collect()
                    };
                    (0..turns).map(of).collect()
                });
                for (turn, tokens) in tokens.iter().enumerate() {
                    let words = &words[turn * a.len()..][..a.len()];
                    for half in [0, 2] {
                        for (sixteen, rows) in words.chunks_exact(2).enumerate() {
                            let a = [rows[0][half], rows[1][half], rows[0][half + 1], rows[1][half + 1]];
                            for (eight, x) in tokens.iter().enumerate() {
                                let sums = sums[sixteen * tokens.len() + eight];
                                k.mma(element, sums, a, [x[half], x[half + 1]]);
                            }
                        }
                    }
                }
                let next = k.add(unit, turns * STEP);
                k.set(unit, next);
                let first = k.sub(unit, place);
                let more = k.lt(first, self.units);
                k.if_(more, |k| ask(k));
            },
        );
    }

    /// Adds up what the warps have, a thread per rank and row.
    fn add_warps(&self, k: &mut Builder, room: SharedRegion) {
        let (rank, together) = (self.spec.rank, self.spec.together);
        let (sums, t) = (k.shared_address(room), k.shared_address(self.t));
        for first in (0..rank * together).step_by(THREADS as usize) {
            let index = k.add(self.thread, first);
            let inside = k.lt(index, rank * together);
            k.if_(inside, |k| {
                let at = Addr::<Shared>::of(k.mul_add(index, 4, sums));
                let parts: Vec<Reg<F32>> =
                    (0..WARPS).map(|warp| k.load(at.plus((4 * warp * rank * together).cast_signed()))).collect();
                let total = parts[1..].iter().fold(parts[0], |sum, &part| k.add(sum, part));
                let row = k.div(index, rank);
                let value = self.with_terms(k, row, total);
                let at = Addr::<Shared>::of(k.mul_add(index, 4, t));
                k.store(at, value);
            });
        }
    }

    /// A sum times its row's factor and its adapter's scaling. What a row without an adapter has nobody looks at.
    fn with_terms(&self, k: &mut Builder, row: Reg<U32>, total: Reg<F32>) -> Reg<F32> {
        let base = k.shared_address(self.terms);
        let at = k.mul_add(row, 8, base);
        let [factor, scaling]: [Reg<F32>; 2] = k.load_vector(Addr::<Shared>::of(at));
        let total = if self.spec.factored { k.mul(total, factor) } else { total };
        k.mul(total, scaling)
    }

    /// t of a block's only row without tensor cores, where A and x are not of the same 16 bits: a warp has every eighth
    /// rank, and its lanes every thirty-second eight of the products.
    fn shrink_by_hand(&self, k: &mut Builder, rows: &Rows, wait: &mut dyn FnMut(&mut Builder)) {
        let (spec, numbers) = (self.spec, Float::from(self.spec.numbers));
        wait(k);
        // What it is multiplied with has been left by the first warp.
        k.sync_threads();
        let (x_bytes, key) = (self.x_bytes(k), k.broadcast(rows.key));
        let a_bytes = k.mul(self.units, (UNIT * spec.numbers.bytes()) as u32);
        let (own, row) = (self.own_matrix(k, key), k.broadcast(rows.x));
        let (first, x) = (k.mul(own, spec.rank), k.mul_wide_add(row, x_bytes, self.x));
        let (t, last) = (k.shared_address(self.t), k.sub(self.units, 1));
        k.repeat(spec.rank / WARPS, |k, turn| {
            let rank = k.mul_add(turn, WARPS, self.warp);
            let place = k.add(first, rank);
            let a = k.mul_wide_add(place, a_bytes, self.a);
            let (sum, unit) = (k.variable(0.0), k.variable(self.lane));
            k.loop_while(
                |k| k.lt(unit, self.units),
                |k| {
                    let loaded: Vec<_> = k.phase("load", |k| {
                        let of = |turn: u32| {
                            let number = k.add(unit, 32 * turn);
                            let (exists, place) = (k.lt(number, self.units), k.min(number, last));
                            let x = expand::load_floats(k, spec.x, x, place);
                            (exists, x, expand::load_floats(k, numbers, a, place))
                        };
                        (0..4).map(of).collect()
                    });
                    for (exists, x, a) in loaded {
                        for (x, a) in x.into_iter().zip(a) {
                            k.when(exists, |k| {
                                let more = k.fma(x, a, sum);
                                k.set(sum, more);
                            });
                        }
                    }
                    let next = k.add(unit, 32 * 4);
                    k.set(unit, next);
                },
            );
            let total = k.phase("add", |k| warp_sum(k, sum));
            let zero = k.variable(0);
            let value = self.with_terms(k, zero, total);
            let leads = k.eq(self.lane, 0);
            let at = Addr::<Shared>::of(k.mul_add(rank, 4, t));
            k.when(leads, |k| k.store(at, value));
        });
        k.sync_threads();
    }

    /// Units of four columns.
    fn column_units(&self, k: &mut Builder) -> Reg<U32> {
        k.shr(self.columns, COLUMNS.trailing_zeros())
    }

    /// B of some ranks, from one on, in a thread's columns.
    fn columns_of_b(&self, k: &mut Builder, key: Reg<U32>, unit: Reg<U32>, first: Reg<U32>) -> Vec<Vec<Reg<U32>>> {
        let bytes = self.spec.numbers.bytes() as u32;
        let (own, row_bytes) = (self.own_matrix(k, key), k.mul(self.columns, bytes));
        let row = k.mul_add(own, self.spec.rank, first);
        let b = k.mul_wide_add(unit, COLUMNS * bytes, self.b);
        k.phase("load", |k| {
            let of = |rank: u32| {
                let row = k.add(row, rank);
                let at = k.mul_wide_add(row, row_bytes, b);
                load(k, COLUMNS * bytes, Addr::of(at))
            };
            (0..self.spec.ranks()).map(of).collect()
        })
    }

    /// All of B that a thread needs for its first columns.
    fn early(&self, k: &mut Builder, rows: &Rows) -> Vec<Vec<Reg<U32>>> {
        let (unit, units) = (k.mul_add(self.part, THREADS, self.thread), self.column_units(k));
        let last = k.sub(units, 1);
        let (unit, key, first) = (k.min(unit, last), k.broadcast(rows.key), k.variable(0));
        self.columns_of_b(k, key, unit, first)
    }

    /// What is added: B·t, four neighbouring columns per thread.
    fn expand(&self, k: &mut Builder, rows: &Rows, early: Option<Vec<Vec<Reg<U32>>>>) {
        let units = self.column_units(k);
        let unit = k.mul_add(self.part, THREADS, self.thread);
        match early {
            Some(words) => {
                let inside = k.lt(unit, units);
                k.if_(inside, |k| {
                    let deltas: Vec<Reg<F32>> = (0..COLUMNS).map(|_| k.variable(0.0)).collect();
                    let first = k.variable(0);
                    self.add_row(k, (0, first), &words, &deltas);
                    self.leave(k, 0, unit, &deltas);
                });
            }
            None => {
                let (unit, parts) = (k.variable(unit), k.special(SpecialRegister::NctaidZ));
                // A block goes through all of its keys at once, and a thread without columns goes with its warp.
                let step = k.mul(parts, THREADS);
                let start = k.sub(unit, self.thread);
                k.loop_while(
                    |k| k.lt(start, units),
                    |k| {
                        self.expand_columns(k, rows, unit, units);
                        for place in [unit, start] {
                            let next = k.add(place, step);
                            k.set(place, next);
                        }
                    },
                );
            }
        }
    }

    fn expand_columns(&self, k: &mut Builder, rows: &Rows, unit: Reg<U32>, units: Reg<U32>) {
        let (spec, last) = (self.spec, k.sub(units, 1));
        let place = k.min(unit, last);
        let deltas: Vec<Vec<Reg<F32>>> =
            (0..spec.together).map(|_| (0..COLUMNS).map(|_| k.variable(0.0)).collect()).collect();
        self.each_key(k, rows, |k, key, same| {
            k.repeat(spec.rank / spec.ranks(), |k, turn| {
                let first = k.mul(turn, spec.ranks());
                let words = self.columns_of_b(k, key, place, first);
                for (row, deltas) in (0..).zip(&deltas) {
                    self.if_row(k, same, row, |k| self.add_row(k, (row, first), &words, deltas));
                }
            });
        });
        let inside = k.lt(unit, units);
        k.if_(inside, |k| {
            for (row, deltas) in (0..).zip(&deltas) {
                self.if_row(k, rows.adapted, row, |k| self.leave(k, row, unit, deltas));
            }
        });
    }

    /// `body` if a row is among some.
    fn if_row(&self, k: &mut Builder, rows: Reg<U32>, row: u32, body: impl FnOnce(&mut Builder)) {
        if self.spec.together == 1 {
            return body(k);
        }
        let bit = k.bit_extract(rows, row, 1);
        let theirs = k.ne(bit, 0);
        k.if_(theirs, body);
    }

    /// Adds some ranks' part to a thread's columns of a row.
    fn add_row(&self, k: &mut Builder, (row, first): (u32, Reg<U32>), words: &[Vec<Reg<U32>>], deltas: &[Reg<F32>]) {
        let base = k.shared_address(self.t);
        let at = Addr::<Shared>::of(k.mul_add(first, 4, base)).plus((4 * row * self.spec.rank).cast_signed());
        for (four, words) in words.chunks_exact(4).enumerate() {
            let t: [Reg<F32>; 4] = k.load_vector(at.plus(16 * four as i32));
            for (t, words) in t.into_iter().zip(words) {
                for (&delta, b) in deltas.iter().zip(floats(k, self.spec.numbers, words)) {
                    let more = k.fma(t, b, delta);
                    k.set(delta, more);
                }
            }
        }
    }

    /// Leaves what is added to a thread's columns of a row.
    fn leave(&self, k: &mut Builder, row: u32, unit: Reg<U32>, deltas: &[Reg<F32>]) {
        let row = k.add(self.first_row, row);
        let (place, bytes) = (k.mul_add(row, self.spec.matrices, self.matrix), k.mul(self.columns, 4));
        let at = k.mul_wide_add(place, bytes, self.deltas);
        let at = k.mul_wide_add(unit, 4 * COLUMNS, at);
        k.phase("store", |k| store(k, Output::F32, Addr::of(at), deltas));
    }
}
