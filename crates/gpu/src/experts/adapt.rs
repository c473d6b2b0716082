//! What low-rank adapters add to the products of a layer, as [`op::adapters`] defines it. A kernel before the first
//! product leaves B·t of every row that has an adapter, and the product's epilogue adds it before the gate. The same
//! kernel behind the second product adds it to the rows in place.
//!
//! A block has some rows, and computes t = scaling·(A·x) of them first: its warps have every eighth 32 of k, and where
//! A and x are of the same 16 bits tensor cores multiply. Then its threads multiply with B, four neighbouring columns
//! each. A row finds its pair of matrices by its expert and its adapter, both of which the sort has left. Where rows
//! are few, a block has one. Where they are many, it has 32 neighbours, or half of them, which mostly have the same
//! expert: it reads each of their pairs once for all of its rows, and four blocks share out the pairs.
//!
//! Where blocks are few, more of them share the columns. Where pairs are large, too, those are a *cluster* and share k
//! as well: each computes a part of t, and all add up those parts in the same order. On targets without clusters, and
//! where bits must not depend on the number of tokens, each computes all of t.
//!
//! Where the products of one or two tokens find their tiles themselves ([`crate::phases::direct`]), there is no sort,
//! and rows are entries: each block finds out whose its own is, all of its warps alike. What the second product has
//! added, both products compute themselves ([`crate::phases::low_rank`]).
//!
//! Rows without an adapter are neither read nor written, and a block that has no others ends when it knows that.
//!
//! **Sums by tensor cores.** A multiplication takes sixteen products and the sum before, each cut off at 2⁻²³ of the
//! largest at worst: 34·ε of all magnitudes, for each of a warp's k/128 or two. That is less than a third of the (k +
//! 1)·ε that [`op::adapters`] grants, from a k of 256 on. Below that the count alone does not say so.
//!
//! **When.** Before the first product, the kernel waits for the sort, or for the launch before the call, and only then
//! lets the product begin. That thereby knows what the sort, or that launch, has left, and waits for this kernel only
//! where it adds. Behind the second, A and B of few rows are asked for before that product is waited for. A kernel that
//! began beside the sort, by entries, was slower: the product could then be launched only when the sort and A·x were
//! over.
//!
//! How A and B lie in memory is in [`super::adapters`].

use op::Output;
use ptx::instr::{MatrixElement, Semantics, ShuffleMode};
use ptx::{
    Addr, Builder, Cluster, Error, F32, Global, Kernel, LaunchBounds, Pred, Reg, Shared, SharedRegion, SpecialRegister,
    Target, U32, U64,
};

use super::adapters::RANKS;
use super::whose::{Found, Whose, word};
use super::{NOBODY, Portable, await_predecessor, launch_dependents};
use crate::expand::{self, Float, UNIT};
use crate::phases::route::{Ids, warp_sum};
use crate::phases::sum::{floats, load, store};

/// Warps and threads of a block.
const WARPS: u32 = 8;
const THREADS: u32 = 32 * WARPS;
/// Columns of a thread.
const COLUMNS: u32 = 4;
/// Units from one of a warp's steps along k to its next: a step has four, one for each lane of a row.
const STEP: u32 = 4 * WARPS;
/// Rows from which on blocks have several, and how many.
const MANY: u32 = 1024;
const TOGETHER: u32 = 32;
/// Ranks up to which they are as many, and half of them above: their sums take shared memory.
const FEW_RANKS: u32 = 32;
/// Rows that are multiplied at a time.
const AT_ONCE: u32 = 16;
/// Blocks that have the same rows, where those are several: each has some of their pairs.
const SLOTS: u32 = 4;
/// Rows that a thread adds to at a time.
const ADDED: u32 = 4;
/// Blocks of which there are enough; and in clusters, with a row each and with several.
const ENOUGH: u32 = 512;
const ENOUGH_ALONE: u32 = 256;
const ENOUGH_SHARING: u32 = 2048;
/// The most blocks of a cluster, and bytes of a pair of matrices that are worth one.
const MOST_PARTS: u32 = 8;
const PART_BYTES: u32 = 64 << 10;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptSpec {
    /// The type of x.
    pub x: Float,
    /// Whether it comes before the first product, and not behind the second: x has a row per token then, and not per
    /// row, and what is added is left by itself.
    pub first: bool,
    /// How a block finds its row, which is an entry then, where tokens are so few that there is no sort.
    pub entries: Option<Ids>,
    /// Whether sums are multiplied with a factor per row.
    pub factored: bool,
    /// The type of A and B.
    pub numbers: Output,
    /// Matrices that have something added: gate and up, or one.
    pub matrices: u32,
    /// The rank, a multiple of eight.
    pub rank: u32,
    /// Rows of a block: [`AdaptSpec::placed`].
    pub together: u32,
    /// Blocks that have the same rows and columns, and each some of the rows' pairs.
    pub slots: u32,
    /// Blocks that share the columns of the same rows.
    pub parts: u32,
    /// Whether they are a cluster, which shares k as well.
    pub clustered: bool,
}

impl AdaptSpec {
    /// Whether tensor cores multiply A and x: both have the same 16 bits.
    fn on_tensor_cores(&self) -> bool {
        self.numbers != Output::F32 && self.x == Float::from(self.numbers)
    }

    /// The same kernel for so many rows of k and columns. Where rows are many, blocks have several, which share what
    /// they read. Where blocks are few, more of them share the columns: with large matrices as clusters, if those `may`
    /// share k, and else each computes all of t.
    pub fn placed(self, [rows, k, columns]: [u32; 3], may: bool) -> Self {
        let together = match (rows >= MANY && self.on_tensor_cores(), self.rank <= FEW_RANKS) {
            (true, true) => TOGETHER,
            (true, false) => TOGETHER / 2,
            (false, _) => 1,
        };
        let slots = if together > 1 { SLOTS } else { 1 };
        let spec = AdaptSpec { together, slots, ..self };
        let [tiles, others, _] = spec.grid(rows);
        let most = ((k + columns) * self.rank * self.numbers.bytes() as u32 / PART_BYTES).min(MOST_PARTS);
        if may && self.on_tensor_cores() && most > 1 {
            let enough = if together > 1 { ENOUGH_SHARING } else { ENOUGH_ALONE };
            let parts = 1 << (enough / (tiles * others)).clamp(1, most).ilog2();
            return AdaptSpec { parts, clustered: parts > 1, ..spec };
        }
        let chunks = columns.div_ceil(COLUMNS * THREADS);
        AdaptSpec { parts: (ENOUGH / (tiles * others)).clamp(1, chunks), clustered: false, ..spec }
    }

    /// Blocks for so many rows.
    pub fn grid(&self, rows: u32) -> [u32; 3] {
        [rows.div_ceil(self.together), self.matrices * self.slots, self.parts]
    }

    /// Blocks that share k.
    fn sharers(&self) -> u32 {
        if self.clustered { self.parts } else { 1 }
    }

    /// Sixteens of ranks.
    fn sixteens(&self) -> u32 {
        self.rank.div_ceil(16)
    }

    /// Eights of rows that are multiplied at a time.
    fn eights(&self) -> u32 {
        self.together.min(AT_ONCE).div_ceil(8)
    }

    /// Steps along k that a warp asks for at a time, as registers allow.
    fn turns(&self) -> u32 {
        let each = 2 * self.sixteens() + self.eights();
        let most = if self.early() { 15 } else { 18 };
        (most / each).max(1)
    }

    /// Whether B is asked for before A is multiplied.
    fn early(&self) -> bool {
        self.together == 1 && self.rank <= 16
    }

    /// Blocks that a multiprocessor holds at a time, as registers allow.
    fn resident(&self) -> u32 {
        if self.on_tensor_cores() && self.rank <= 16 { 2 } else { 1 }
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
/// rows, layout; or for entries ids, or what they are chosen by, experts of a token, and adapters of tokens; rows,
/// experts, adapters; `[rows, matrices, columns]` for what is added, or to add it to; units of a row of x, and columns.
pub fn kernel(spec: AdaptSpec, target: Target) -> Result<Kernel, Error> {
    let cluster = spec.clustered.then_some([1, 1, spec.parts]);
    let launch = LaunchBounds { threads: THREADS, cluster, min_blocks: Some(spec.resident()) };
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
        let mut before = None;
        let mut wait = |k: &mut Builder| {
            if !spec.first && spec.together == 1 {
                await_predecessor(k, target);
                before = if spec.early() { adapt.first_columns(k) } else { None };
            }
        };
        k.phase("shrink", |k| match adapt.sums {
            Some(sums) => adapt.shrink(k, &rows, sums, &mut wait),
            None => adapt.shrink_by_hand(k, &rows, &mut wait),
        });
        k.phase("expand", |k| adapt.expand(k, &rows, early, before));
        if spec.clustered {
            // Nobody leaves while another block reads what is its own.
            k.cluster_wait(true);
        }
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
    whose: Whose,
    deltas: Reg<U64>,
    units: Reg<U32>,
    columns: Reg<U32>,
    /// Sums of all warps `[warps, together, rank]`, where tensor cores make them, t `[together, rank]`, what it is
    /// multiplied with, and a list of rows for every warp.
    sums: Option<SharedRegion>,
    /// What a block of a cluster has of t.
    share: Option<SharedRegion>,
    t: SharedRegion,
    terms: SharedRegion,
    list: Option<SharedRegion>,
    thread: Reg<U32>,
    warp: Reg<U32>,
    lane: Reg<U32>,
    matrix: Reg<U32>,
    /// Which of the pairs are the block's.
    slot: Option<Reg<U32>>,
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

/// Some rows of a block that are multiplied together: from one on, of a list of so many; or a block's only one.
struct Batch {
    list: Option<Reg<U32>>,
    first: Option<Reg<U32>>,
    count: Reg<U32>,
}

impl Batch {
    /// One of them, and whether there is such a one: behind the last it is that.
    fn row(&self, k: &mut Builder, number: Reg<U32>) -> (Reg<U32>, Pred) {
        let number = self.first.map_or(number, |first| k.add(first, number));
        let exists = k.lt(number, self.count);
        let Some(list) = self.list else { return (k.variable(0), exists) };
        let last = k.sub(self.count, 1);
        let number = k.min(number, last);
        let at = k.mul_add(number, 4, list);
        let row = k.load(Addr::<Shared>::of(at));
        (row, exists)
    }
}

impl Adapt {
    fn declare(k: &mut Builder, spec: AdaptSpec) -> Self {
        let [x, a, b, scalings] = ["x", "a", "b", "scalings"].map(|name| k.pointer(name));
        let factors = spec.factored.then(|| k.pointer("factors"));
        let whose = Whose::declare(k, spec.entries, spec.first);
        let deltas = k.pointer("deltas");
        let [units, columns] = ["units", "columns"].map(|name| k.param(name));
        let row_bytes = 4 * spec.rank * spec.together;
        let (thread, tile) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
        let warp = k.shr(thread, 5);
        let other = k.special(SpecialRegister::CtaidY);
        Adapt {
            spec,
            x,
            a,
            b,
            scalings,
            factors,
            whose,
            deltas,
            units,
            columns,
            sums: spec.on_tensor_cores().then(|| k.shared("sums", WARPS * row_bytes, 16)),
            share: spec.clustered.then(|| k.shared("share", row_bytes, 16)),
            t: k.shared("t", row_bytes, 16),
            terms: k.shared("terms", 8 * spec.together, 16),
            list: (spec.together > 1).then(|| k.shared("list", 4 * WARPS * spec.together, 16)),
            thread,
            warp: k.broadcast(warp),
            lane: k.and(thread, 31),
            matrix: if spec.slots > 1 { k.rem(other, spec.matrices) } else { other },
            slot: (spec.slots > 1).then(|| k.div(other, spec.matrices)),
            part: k.special(SpecialRegister::CtaidZ),
            first_row: k.mul(tile, spec.together),
        }
    }

    /// Looks up a block's rows, and leaves what theirs is multiplied with.
    fn find(&self, k: &mut Builder) -> Rows {
        let own = k.min(self.lane, self.spec.together - 1);
        let row = k.add(self.first_row, own);
        let Found { x, expert, adapter, adapted } = self.whose.find(k, row, self.lane);
        let first = k.lt(self.lane, self.spec.together);
        let adapted = k.both(adapted, first);
        let adapted = self.slot.map_or(adapted, |slot| {
            // Neighbours among experts, and their adapters, are different blocks'.
            let number = k.mul_add(expert, 2, adapter);
            let number = k.rem(number, self.spec.slots);
            let own = k.eq(number, slot);
            k.both(adapted, own)
        });
        let key = k.mul_add(adapter, self.whose.experts, expert);
        let key = k.select(adapted, key, NOBODY);
        let leaves = k.eq(self.warp, 0);
        let leaves = k.both(leaves, adapted);
        k.if_(leaves, |k| {
            let scaling = word(k, self.scalings, adapter);
            let factor = match self.factors {
                Some(factors) => {
                    let last = self.whose.last(k);
                    let place = k.min(row, last);
                    word(k, factors, place)
                }
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
            let (below, others) = (k.sub(left, 1), k.not(left));
            let below = k.and(below, others);
            let lead = k.count_ones(below);
            let key = k.shuffle(ShuffleMode::Index, rows.key, lead);
            let same = k.eq(rows.key, key);
            let same = k.ballot(same);
            body(k, key, same);
            let others = k.not(same);
            let rest = k.and(left, others);
            k.set(left, rest);
            k.ne(left, 0)
        });
    }

    /// `body` for some rows, several at a time, and whether there are so many: behind the last they are the first of
    /// those.
    fn each_row(&self, k: &mut Builder, some: Reg<U32>, body: impl FnOnce(&mut Builder, &[(Reg<U32>, Option<Pred>)])) {
        if self.spec.together == 1 {
            let only = k.variable(0);
            return body(k, &[(only, None)]);
        }
        let left = k.variable(some);
        k.repeat_while(|k| {
            let mut rows: Vec<(Reg<U32>, Option<Pred>)> = Vec::new();
            for _ in 0..ADDED {
                let (below, others) = (k.sub(left, 1), k.not(left));
                let lowest = k.and(below, others);
                let row = k.count_ones(lowest);
                match rows.first() {
                    None => rows.push((row, None)),
                    Some(&(first, _)) => {
                        let exists = k.ne(left, 0);
                        rows.push((k.select(exists, row, first), Some(exists)));
                    }
                }
                let rest = k.and(left, below);
                k.set(left, rest);
            }
            body(k, &rows);
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
        let a_bytes = k.mul(self.units, 2 * UNIT as u32);
        let base = k.shared_address(room);
        let base = k.mul_add(self.warp, 4 * spec.rank * spec.together, base);
        let base = k.mul_add(quad, 4, base);
        self.each_key(k, rows, |k, key, same| {
            let own = self.own_matrix(k, key);
            let first = k.mul(own, spec.rank);
            let first = k.add(first, quad);
            // What comes of ranks behind the last nobody looks at.
            let a: Vec<Reg<U64>> = (0..spec.sixteens() * 2)
                .map(|eight| {
                    let row = k.add(first, (8 * eight).min(spec.rank - 8));
                    k.mul_wide_add(row, a_bytes, self.a)
                })
                .collect();
            self.each_batch(k, same, |k, batch| {
                let x: Vec<Reg<U64>> = (0..spec.eights())
                    .map(|eight| {
                        let number = k.add(quad, 8 * eight);
                        let (row, _) = batch.row(k, number);
                        let row = k.shuffle(ShuffleMode::Index, rows.x, row);
                        let x_bytes = self.x_bytes(k);
                        k.mul_wide_add(row, x_bytes, self.x)
                    })
                    .collect();
                let sums: Vec<[Reg<F32>; 4]> =
                    (0..spec.sixteens() * spec.eights()).map(|_| [0; 4].map(|_| k.variable(0.0))).collect();
                self.products(k, (place, &x, &a), &sums, wait);
                let neighbours = if spec.together == 1 { 1 } else { 2 };
                for (eight, neighbour) in (0..spec.eights()).flat_map(|eight| (0..neighbours).map(move |n| (eight, n)))
                {
                    let number = k.mul_add(place, 2, 8 * eight + neighbour);
                    let (row, exists) = batch.row(k, number);
                    let at = k.mul_add(row, 4 * spec.rank, base);
                    for rank in (0..spec.rank).step_by(8) {
                        let (sixteen, half) = (rank / 16, rank / 8 % 2);
                        let value = sums[(sixteen * spec.eights() + eight) as usize][(2 * half + neighbour) as usize];
                        let at = Addr::<Shared>::of(at).plus((4 * rank).cast_signed());
                        k.when(exists, |k| k.store(at, value));
                    }
                }
            });
        });
        k.sync_threads();
        self.add_warps(k, rows, room);
        k.sync_threads();
    }

    /// `body` for as many of some rows as are multiplied at a time, until all of them are.
    fn each_batch(&self, k: &mut Builder, all: Reg<U32>, body: impl FnOnce(&mut Builder, &Batch)) {
        let Some(list) = self.list else {
            let count = k.variable(1);
            return body(k, &Batch { list: None, first: None, count });
        };
        let one = k.variable(1);
        let own = k.shl(one, self.lane);
        let before = k.sub(own, 1);
        let before = k.and(before, all);
        let (number, count) = (k.count_ones(before), k.count_ones(all));
        let base = k.shared_address(list);
        let base = k.mul_add(self.warp, 4 * self.spec.together, base);
        let bit = k.and(own, all);
        let theirs = k.ne(bit, 0);
        let at = k.mul_add(number, 4, base);
        // Nobody still reads what was there.
        k.sync_warp();
        k.when(theirs, |k| k.store(Addr::<Shared>::of(at), self.lane));
        k.sync_warp();
        let first = k.variable(0);
        k.repeat_while(|k| {
            body(k, &Batch { list: Some(base), first: Some(first), count });
            let next = k.add(first, AT_ONCE);
            k.set(first, next);
            k.lt(first, count)
        });
    }

    /// A warp's sums of its steps along k, several at a time: as much must be under way. The first of A is asked for
    /// before anything waits.
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
        let step = STEP * spec.sharers();
        let warp = if spec.clustered { k.mul_add(self.part, WARPS, self.warp) } else { self.warp };
        let unit = k.mul_add(warp, 4, place);
        let unit = k.variable(unit);
        let [of_a, of_x] = [a, x]
            .map(|rows| -> Vec<[Reg<U32>; 4]> { (0..turns as usize * rows.len()).map(|_| k.registers()).collect() });
        let ask = |k: &mut Builder, rows: &[Reg<U64>], words: &[[Reg<U32>; 4]]| {
            k.phase("load", |k| {
                for (turn, words) in words.chunks_exact(rows.len()).enumerate() {
                    let unit = k.add(unit, turn as u32 * step);
                    let unit = k.min(unit, last);
                    for (&from, kept) in rows.iter().zip(words) {
                        let at = k.mul_wide_add(unit, 2 * UNIT as u32, from);
                        let loaded: [Reg<U32>; 4] = k.load_vector(Addr::<Global>::of(at));
                        kept.iter().zip(loaded).for_each(|(&kept, loaded)| k.set(kept, loaded));
                    }
                }
            });
        };
        let first = k.sub(unit, place);
        let some = k.lt(first, self.units);
        k.if_(some, |k| ask(k, a, &of_a));
        wait(k);
        k.if_(some, |k| ask(k, x, &of_x));
        // All lanes of a warp go on as long as the first of four has something left.
        k.loop_while(
            |k| {
                let first = k.sub(unit, place);
                k.lt(first, self.units)
            },
            |k| {
                for (turn, words) in of_a.chunks_exact(a.len()).enumerate() {
                    let number = k.add(unit, turn as u32 * step);
                    let exists = k.lt(number, self.units);
                    let tokens = &of_x[turn * x.len()..][..x.len()];
                    let tokens: Vec<[Reg<U32>; 4]> =
                        tokens.iter().map(|words| words.map(|word| k.select(exists, word, 0))).collect();
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
                let next = k.add(unit, turns * step);
                k.set(unit, next);
                let first = k.sub(unit, place);
                let more = k.lt(first, self.units);
                k.if_(more, |k| {
                    ask(k, a, &of_a);
                    ask(k, x, &of_x);
                });
            },
        );
    }

    /// Adds up what the warps have, a thread per rank and row, and in a cluster what the blocks have of that.
    fn add_warps(&self, k: &mut Builder, rows: &Rows, room: SharedRegion) {
        let each = 4 * self.spec.rank * self.spec.together;
        let t = k.shared_address(self.t);
        let own = |k: &mut Builder, index| {
            let sums = k.shared_address(room);
            let at = Addr::<Shared>::of(k.mul_add(index, 4, sums));
            let parts: Vec<Reg<F32>> = (0..WARPS).map(|warp| k.load(at.plus((warp * each).cast_signed()))).collect();
            parts[1..].iter().fold(parts[0], |sum, &part| k.add(sum, part))
        };
        let leave = |k: &mut Builder, (index, row), total| {
            let value = self.with_terms(k, row, total);
            let at = Addr::<Shared>::of(k.mul_add(index, 4, t));
            k.store(at, value);
        };
        let Some(share) = self.share else {
            return self.each_sum(k, rows, |k, (index, row)| {
                let total = own(k, index);
                leave(k, (index, row), total);
            });
        };
        let share = k.shared_address(share);
        self.each_sum(k, rows, |k, (index, _)| {
            let total = own(k, index);
            let at = Addr::<Shared>::of(k.mul_add(index, 4, share));
            k.store(at, total);
        });
        k.cluster_arrive(Semantics::Ordered, true);
        k.cluster_wait(true);
        self.each_sum(k, rows, |k, (index, row)| {
            let at = k.mul_add(index, 4, share);
            let parts: Vec<Reg<F32>> = (0..self.spec.parts)
                .map(|part| {
                    let at = k.map_shared(at, part);
                    k.load(Addr::<Cluster>::of(at))
                })
                .collect();
            let total = parts[1..].iter().fold(parts[0], |sum, &part| k.add(sum, part));
            leave(k, (index, row), total);
        });
        k.cluster_arrive(Semantics::Ordered, true);
    }

    /// `body` for each sum of a row that has an adapter, a thread per rank and row: its place and its row.
    fn each_sum(&self, k: &mut Builder, rows: &Rows, mut body: impl FnMut(&mut Builder, (Reg<U32>, Reg<U32>))) {
        let (rank, together) = (self.spec.rank, self.spec.together);
        for first in (0..rank * together).step_by(THREADS as usize) {
            let index = k.add(self.thread, first);
            let inside = k.lt(index, rank * together);
            let row = k.div(index, rank);
            let bit = k.shr(rows.adapted, row);
            let bit = k.and(bit, 1);
            let adapted = k.ne(bit, 0);
            let adds = k.both(inside, adapted);
            k.if_(adds, |k| body(k, (index, row)));
        }
    }

    /// A sum times its row's factor and its adapter's scaling.
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

    /// The block's units of four columns: the first, and the end. Parts are whole sectors of B.
    fn column_units(&self, k: &mut Builder) -> [Reg<U32>; 2] {
        let units = k.shr(self.columns, COLUMNS.trailing_zeros());
        if self.spec.parts == 1 {
            return [k.variable(0), units];
        }
        let each = k.add(units, 4 * self.spec.parts - 1);
        let each = k.div(each, 4 * self.spec.parts);
        let each = k.mul(each, 4);
        let first = k.mul(self.part, each);
        let end = k.add(first, each);
        [first, k.min(end, units)]
    }

    /// The unit that a thread has of its block's first, or the last there is.
    fn first_unit(&self, k: &mut Builder) -> Reg<U32> {
        let [first, _] = self.column_units(k);
        let (unit, units) = (k.add(first, self.thread), k.shr(self.columns, COLUMNS.trailing_zeros()));
        let last = k.sub(units, 1);
        k.min(unit, last)
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
        let (unit, key, first) = (self.first_unit(k), k.broadcast(rows.key), k.variable(0));
        self.columns_of_b(k, key, unit, first)
    }

    /// What a thread's first columns of a block's only row are added to.
    fn first_columns(&self, k: &mut Builder) -> Option<Vec<Reg<U32>>> {
        let ([first, end], zero) = (self.column_units(k), k.variable(0));
        let unit = k.add(first, self.thread);
        let inside = k.lt(unit, end);
        self.before(k, [zero, unit], inside)
    }

    /// What is added: B·t, four neighbouring columns per thread.
    fn expand(&self, k: &mut Builder, rows: &Rows, early: Option<Vec<Vec<Reg<U32>>>>, before: Option<Vec<Reg<U32>>>) {
        let [first, end] = self.column_units(k);
        let (start, unit) = (k.variable(first), k.add(first, self.thread));
        let unit = k.variable(unit);
        let advance = |k: &mut Builder| {
            for place in [unit, start] {
                let next = k.add(place, THREADS);
                k.set(place, next);
            }
        };
        if let Some(words) = early {
            let inside = k.lt(unit, end);
            k.if_(inside, |k| {
                let zero = k.variable(0);
                let deltas = self.zeros(k);
                self.add_row(k, [zero, zero], &words, &deltas);
                self.leave(k, [zero, unit], &deltas, before);
            });
            advance(k);
        }
        // A thread without columns goes with its block, whose warps look for their rows' pairs together.
        k.loop_while(
            |k| k.lt(start, end),
            |k| {
                self.expand_columns(k, rows, unit, end);
                advance(k);
            },
        );
    }

    fn zeros(&self, k: &mut Builder) -> Vec<Reg<F32>> {
        (0..COLUMNS).map(|_| k.variable(0.0)).collect()
    }

    fn expand_columns(&self, k: &mut Builder, rows: &Rows, unit: Reg<U32>, end: Reg<U32>) {
        let (spec, last) = (self.spec, k.sub(end, 1));
        let (place, inside) = (k.min(unit, last), k.lt(unit, end));
        self.each_key(k, rows, |k, key, same| {
            // What all rows of a pair multiply with, if it goes into registers.
            let zero = k.variable(0);
            let all = (spec.rank == spec.ranks()).then(|| self.columns_of_b(k, key, place, zero));
            self.each_row(k, same, |k, rows| {
                // What all of them are added to is under way together.
                let rows: Vec<_> = rows
                    .iter()
                    .map(|&(row, exists)| (row, exists.map_or(inside, |exists| k.both(inside, exists))))
                    .collect();
                let before: Vec<_> = rows.iter().map(|&(row, exists)| self.before(k, [row, unit], exists)).collect();
                let deltas: Vec<_> = rows.iter().map(|_| self.zeros(k)).collect();
                let add = |k: &mut Builder, first: Reg<U32>, words: &[Vec<Reg<U32>>]| {
                    let each = rows.iter().zip(&deltas);
                    each.for_each(|(&(row, _), deltas)| self.add_row(k, [row, first], words, deltas));
                };
                match &all {
                    Some(words) => add(k, zero, words),
                    None => k.repeat(spec.rank / spec.ranks(), |k, turn| {
                        let first = k.mul(turn, spec.ranks());
                        let words = self.columns_of_b(k, key, place, first);
                        add(k, first, &words);
                    }),
                }
                for ((&(row, exists), deltas), before) in rows.iter().zip(&deltas).zip(before) {
                    k.if_(exists, |k| self.leave(k, [row, unit], deltas, before));
                }
            });
        });
    }

    /// Adds some ranks' part to a thread's columns of a row.
    fn add_row(&self, k: &mut Builder, [row, first]: [Reg<U32>; 2], words: &[Vec<Reg<U32>>], deltas: &[Reg<F32>]) {
        let base = k.shared_address(self.t);
        let at = k.mul_add(row, 4 * self.spec.rank, base);
        let at = Addr::<Shared>::of(k.mul_add(first, 4, at));
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

    /// Where a thread's columns of a row are.
    fn place(&self, k: &mut Builder, row: Reg<U32>, unit: Reg<U32>) -> Addr<Global> {
        let row = k.add(self.first_row, row);
        let (place, bytes) = (k.mul_add(row, self.spec.matrices, self.matrix), k.mul(self.columns, 4));
        let at = k.mul_wide_add(place, bytes, self.deltas);
        Addr::of(k.mul_wide_add(unit, 4 * COLUMNS, at))
    }

    /// What a thread's columns of a row are added to, if they are and the thread has such: others are being written.
    fn before(&self, k: &mut Builder, [row, unit]: [Reg<U32>; 2], exists: Pred) -> Option<Vec<Reg<U32>>> {
        if self.spec.first {
            return None;
        }
        let at = self.place(k, row, unit);
        Some(k.phase("load", |k| k.when(exists, |k| load(k, 4 * COLUMNS, at))))
    }

    /// Leaves what is added to a thread's columns of a row, or adds it to what was there.
    fn leave(&self, k: &mut Builder, [row, unit]: [Reg<U32>; 2], deltas: &[Reg<F32>], before: Option<Vec<Reg<U32>>>) {
        let at = self.place(k, row, unit);
        let sums: Vec<Reg<F32>> = match before {
            None => deltas.to_vec(),
            Some(before) => before.iter().zip(deltas).map(|(before, &delta)| k.add(before.cast(), delta)).collect(),
        };
        k.phase("store", |k| store(k, Output::F32, at, &sums));
    }
}
