//! Tokens in the order of their experts: every token's row is copied to as many places as it has experts, so that each
//! expert's tokens lie together, in the order in which they came.
//!
//! A stable counting sort, in one launch of any number of blocks that need not hear of each other: each has a run of
//! tokens and counts *all* ids, and those before its run besides. Sums over the experts are then the same in every
//! block, and where a block's own tokens go follows from them. So the result does not depend on who was first, and is
//! the same to the bit every time. Reading all ids in every block costs little: they are few bytes, and in L2.
//!
//! An id outside of 0..experts is nobody's: such an entry has no place, and nobody reads it or writes for it.
//!
//! Besides the rows it leaves the *layout* for the products: where each expert's rows begin, `[experts + 1]`, and the
//! number of its first tile of tokens, `[experts + 1]`; the *inverse*: the row of every entry, or [`NOBODY`]; and, if
//! somebody asks for them, the *owners*: the expert of every row, and with adapters the *order*: its entry, and the
//! adapter of its token.
//!
//! Where experts want their tokens multiplied with an input scale, a factor per column, that is done as they are
//! copied: in f32, and rounded to that.
//!
//! Where the ids are still to be chosen and tokens are few, every block chooses those of all tokens itself, which is
//! sooner done than to wait for another launch; the first one leaves the weights.

use ptx::instr::ShuffleMode;
use ptx::{
    Addr, Builder, Error, F32, Global, Kernel, LaunchBounds, Pred, Reg, Scope, Shared, SharedRegion, SpecialRegister,
    Target, U32, U64,
};

use super::{NOBODY, Portable, await_predecessor, id_of, launch_dependents};
use crate::expand::{self, Float};
pub use crate::phases::route::Ids;
use crate::phases::route::{Logits, MOST_TOP, Routed};
use crate::products::MOST_EXPERTS;

/// Threads of a block, and so the most entries of its run.
const THREADS: u32 = 512;
const WARPS: u32 = THREADS / 32;
/// Elements of a row that a thread copies at a time.
const UNIT: u32 = 8;
/// Ids that a thread asks for at a time, and pieces of rows.
const COUNTED: u32 = 8;
const COPIED: u32 = 4;
/// The most tokens whose experts every block chooses itself.
pub const MOST_ROUTED: u32 = 32;

/// What rows are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// What is copied, 16 bytes to a unit.
    Copied,
    /// Floats, which become three planes of bf16.
    Floats,
    /// Numbers of a type that are multiplied with their expert's factors, a float per column, and become three planes
    /// of bf16.
    Scaled(Float),
}

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SortSpec {
    /// Experts.
    pub experts: u32,
    /// Experts of a token.
    pub top: u32,
    /// Where ids come from.
    pub ids: Ids,
    /// What rows are made of.
    pub rows: Rows,
    /// Whether weights go with the rows.
    pub factors: bool,
    /// Whether the expert of every row is left.
    pub owners: bool,
    /// Whether the entry of every row is left.
    pub order: bool,
    /// Whether tokens were divided by a number each, which goes with the rows.
    pub divided: bool,
}

impl SortSpec {
    /// Tokens of a block's run, for so many tokens on a device: no more than its threads can place.
    pub fn run(&self, tokens: u32, multiprocessors: u32) -> u32 {
        tokens.div_ceil(2 * multiprocessors).clamp(1, THREADS / self.top)
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !(1..=MOST_EXPERTS).contains(&self.experts) {
            return refuse("experts", self.experts, "1 to 1024");
        }
        if !(1..=MOST_TOP).contains(&self.top) {
            return refuse("experts of a token", self.top, "1 to 32");
        }
        if self.ids == Ids::Everyone && self.experts * self.top != 1 {
            return refuse("experts of a token", self.experts * self.top, "the only one, where all tokens are its");
        }
        if let Ids::Routed(route) = self.ids {
            route.check()?;
            if (route.experts, route.top) != (self.experts, self.top) {
                return refuse("experts of the routing", route.experts, "the same as those that are sorted for");
            }
        }
        Ok(())
    }
}

/// Where everything is.
struct Sort {
    spec: SortSpec,
    source: Source,
    /// The weights: those of all entries, and where those of the rows go.
    weights: Option<Reg<U64>>,
    factors: Option<Reg<U64>>,
    /// The experts' factors per column, and per entry of the run its expert.
    scales: Option<(Reg<U64>, SharedRegion)>,
    tokens_at: Reg<U64>,
    rows: Reg<U64>,
    /// Bytes from one plane of the rows to the next.
    plane: Option<Reg<U64>>,
    layout: Reg<U64>,
    inverse: Reg<U64>,
    owners: Option<Reg<U64>>,
    order: Option<[Reg<U64>; 3]>,
    /// What tokens were divided by, and rows.
    divisors: Option<[Reg<U64>; 2]>,
    tokens: Reg<U32>,
    run: Reg<U32>,
    /// Units of a row.
    units: Reg<U32>,
    /// The most tokens of a tile.
    tile: Reg<U32>,
    /// Per expert: entries before the run, the others, and where the run's first goes.
    before: SharedRegion,
    others: SharedRegion,
    starts: SharedRegion,
    /// Per warp and expert: entries of the run.
    counts: SharedRegion,
    /// Per entry of the run: its row.
    places: SharedRegion,
    thread: Reg<U32>,
    warp: Reg<U32>,
    lane: Reg<U32>,
    block: Reg<U32>,
}

/// What was counted of an expert: its rows, those before the run, and its tiles.
struct Counted {
    expert: Reg<U32>,
    exists: Pred,
    rows: Reg<U32>,
    early: Reg<U32>,
    tiles: Reg<U32>,
}

/// Where ids are.
enum Source {
    Memory { at: Reg<U64>, wide: bool },
    Routed { logits: Logits, ids: SharedRegion, weights: SharedRegion },
    Everyone,
}

impl Sort {
    fn declare(k: &mut Builder, spec: SortSpec) -> Self {
        let source = match spec.ids {
            Ids::Narrow | Ids::Wide => Source::Memory { at: k.pointer("ids"), wide: spec.ids == Ids::Wide },
            Ids::Everyone => Source::Everyone,
            Ids::Routed(route) => Source::Routed {
                logits: Logits::declare(k, route),
                ids: k.shared("ids", 4 * MOST_ROUTED * spec.top, 4),
                weights: k.shared("chosen_weights", 4 * MOST_ROUTED * spec.top, 4),
            },
        };
        let routed = matches!(spec.ids, Ids::Routed(_));
        let weights = (spec.factors || routed).then(|| k.pointer("weights"));
        let factors = spec.factors.then(|| k.pointer("factors"));
        let scaled = matches!(spec.rows, Rows::Scaled(_));
        let scales = scaled.then(|| (k.pointer("scales"), k.shared("experts_of_entries", 4 * THREADS, 4)));
        let (tokens_at, rows) = (k.pointer("tokens"), k.pointer("rows"));
        let plane = (spec.rows != Rows::Copied).then(|| k.param("plane"));
        let (layout, inverse) = (k.pointer("layout"), k.pointer("inverse"));
        let owners = spec.owners.then(|| k.pointer("owners"));
        let order = spec.order.then(|| ["adapters", "order", "chosen"].map(|name| k.pointer(name)));
        let divisors = spec.divided.then(|| ["divisors", "row_divisors"].map(|name| k.pointer(name)));
        let [tokens, run, units, tile] = ["count", "run", "units", "tile"].map(|name| k.param(name));
        let experts = 4 * spec.experts;
        let [before, others, starts] = ["before", "others", "starts"].map(|name| k.shared(name, experts, 4));
        let (counts, places) = (k.shared("counts", WARPS * experts, 4), k.shared("places", 4 * THREADS, 4));
        let thread = k.special(SpecialRegister::TidX);
        let warp = k.shr(thread, 5);
        Sort {
            spec,
            source,
            weights,
            factors,
            scales,
            tokens_at,
            rows,
            plane,
            layout,
            inverse,
            owners,
            order,
            divisors,
            tokens,
            run,
            units,
            tile,
            before,
            others,
            starts,
            counts,
            places,
            thread,
            warp: k.broadcast(warp),
            lane: k.and(thread, 31),
            block: k.special(SpecialRegister::CtaidX),
        }
    }

    /// `body` for every so-many-th number below `count`, beginning with the thread's own.
    fn each(&self, k: &mut Builder, count: Reg<U32>, body: impl FnOnce(&mut Builder, Reg<U32>)) {
        self.each_together(k, count, 1, |k, numbers| body(k, numbers[0].0));
    }

    /// The same, several at a time, so that what they load is under way together. Beyond the last, which the predicates
    /// tell, they are the last once more.
    fn each_together(
        &self,
        k: &mut Builder,
        count: Reg<U32>,
        together: u32,
        body: impl FnOnce(&mut Builder, &[(Reg<U32>, Pred)]),
    ) {
        let index = k.variable(self.thread);
        k.loop_while(
            |k| k.lt(index, count),
            |k| {
                let last = k.sub(count, 1);
                let numbers: Vec<(Reg<U32>, Pred)> = (0..together)
                    .map(|turn| {
                        let number = k.add(index, turn * THREADS);
                        (k.min(number, last), k.lt(number, count))
                    })
                    .collect();
                body(k, &numbers);
                let next = k.add(index, together * THREADS);
                k.set(index, next);
            },
        );
    }

    /// A word of an array in shared memory.
    fn word(&self, k: &mut Builder, region: SharedRegion, index: Reg<U32>) -> Addr<Shared> {
        let base = k.shared_address(region);
        Addr::of(k.mul_add(index, 4, base))
    }

    /// A word of an array in memory.
    fn global(&self, k: &mut Builder, base: Reg<U64>, index: Reg<U32>) -> Addr<Global> {
        Addr::of(k.mul_wide_add(index, 4, base))
    }

    /// Nobody has been counted yet.
    fn clear(&self, k: &mut Builder) {
        let zero = k.variable(0);
        for (region, words) in [(self.before, 1), (self.others, 1), (self.counts, WARPS)] {
            let count = k.variable(words * self.spec.experts);
            self.each(k, count, |k, index| {
                let at = self.word(k, region, index);
                k.store(at, zero);
            });
        }
    }

    /// Chooses the experts of all tokens, a warp per token. The first block leaves the weights for those who come
    /// later.
    fn route(&self, k: &mut Builder) {
        let Source::Routed { logits, ids, weights } = &self.source else { return };
        let token = k.variable(self.warp);
        k.loop_while(
            |k| k.lt(token, self.tokens),
            |k| {
                let Routed { expert, weight } = logits.route(k, token, self.lane);
                let chosen = k.lt(self.lane, self.spec.top);
                k.if_(chosen, |k| {
                    let entry = k.mul_add(token, self.spec.top, self.lane);
                    let (id_at, weight_at) = (self.word(k, *ids, entry), self.word(k, *weights, entry));
                    k.store(id_at, expert);
                    k.store(weight_at, weight);
                    if let Some(weights) = self.weights {
                        let first = k.eq(self.block, 0);
                        let at = self.global(k, weights, entry);
                        k.when(first, |k| k.store(at, weight));
                    }
                });
                let next = k.add(token, WARPS);
                k.set(token, next);
            },
        );
        k.sync_threads();
    }

    /// The id of an entry, and whether it is an expert's.
    fn id(&self, k: &mut Builder, entry: Reg<U32>) -> (Reg<U32>, Pred) {
        let id = match &self.source {
            Source::Everyone => k.variable(0),
            Source::Routed { ids, .. } => {
                let at = self.word(k, *ids, entry);
                k.load(at)
            }
            Source::Memory { at, wide } => id_of(k, *at, entry, *wide),
        };
        let somebodys = k.lt(id, self.spec.experts);
        (id, somebodys)
    }

    /// Counts everybody's entries: those before the run's first, and the others.
    fn count(&self, k: &mut Builder, first: Reg<U32>) {
        let entries = k.mul(self.tokens, self.spec.top);
        let (before, others) = (k.shared_address(self.before), k.shared_address(self.others));
        self.each_together(k, entries, COUNTED, |k, numbers| {
            let ids: Vec<(Reg<U32>, Pred)> = numbers.iter().map(|&(entry, _)| self.id(k, entry)).collect();
            for (&(entry, exists), (id, somebodys)) in numbers.iter().zip(ids) {
                let counts = k.both(exists, somebodys);
                let early = k.lt(entry, first);
                let base = k.select(early, before, others);
                let at = Addr::<Shared>::of(k.mul_add(id, 4, base));
                k.when(counts, |k| k.reduce_add(Scope::Block, at, 1u32));
            }
        });
    }

    /// One warp adds up what comes before each expert, rows and tiles: a lane has some neighbouring experts. The first
    /// block leaves both sums for the products, and every block the places of its own first entries.
    fn scan(&self, k: &mut Builder) {
        let experts = self.spec.experts;
        let leaves = k.eq(self.block, 0);
        let tiles_at = k.variable(u64::from(4 * (experts + 1)));
        let tiles_at = k.add(self.layout, tiles_at);
        let leave = |k: &mut Builder, expert, exists: Pred, [rows, tiles]: [Reg<U32>; 2]| {
            let (row_at, tile_at) = (self.global(k, self.layout, expert), self.global(k, tiles_at, expert));
            let leaves = k.both(leaves, exists);
            k.when(leaves, |k| {
                k.store(row_at, rows);
                k.store(tile_at, tiles);
            });
        };
        let each = experts.div_ceil(32);
        let own: Vec<Counted> = (0..each).map(|turn| self.counted(k, each, turn)).collect();
        let sums = own.iter().fold([k.variable(0); 2], |[rows, tiles], counted| {
            [k.add(rows, counted.rows), k.add(tiles, counted.tiles)]
        });
        let mut next = sums.map(|sum| self.preceding(k, sum));
        for counted in own {
            leave(k, counted.expert, counted.exists, next);
            let (place, at) = (k.add(next[0], counted.early), self.word(k, self.starts, counted.expert));
            k.when(counted.exists, |k| k.store(at, place));
            next = [k.add(next[0], counted.rows), k.add(next[1], counted.tiles)];
        }
        let end = k.variable(experts);
        let last = k.eq(self.lane, 31);
        leave(k, end, last, next);
    }

    /// What was counted of one of the experts that a lane has; of one that there is not, nothing.
    fn counted(&self, k: &mut Builder, each: u32, turn: u32) -> Counted {
        let first = k.mul(self.lane, each);
        let expert = k.add(first, turn);
        let exists = k.lt(expert, self.spec.experts);
        let (others_at, early_at) = (self.word(k, self.others, expert), self.word(k, self.before, expert));
        let (rows, early) = (k.variable(0), k.variable(0));
        k.if_(exists, |k| {
            let (others, before): (Reg<U32>, Reg<U32>) = (k.load(others_at), k.load(early_at));
            let all = k.add(others, before);
            k.set(rows, all);
            k.set(early, before);
        });
        let rounded = k.sub(self.tile, 1);
        let rounded = k.add(rows, rounded);
        Counted { expert, exists, rows, early, tiles: k.div(rounded, self.tile) }
    }

    /// The sum of what the lanes before each have.
    fn preceding(&self, k: &mut Builder, value: Reg<U32>) -> Reg<U32> {
        let sum = [1, 2, 4, 8, 16].into_iter().fold(value, |sum, distance| {
            let other = k.shuffle(ShuffleMode::Up, sum, distance);
            let reached = k.ge(self.lane, distance);
            let other = k.select(reached, other, 0);
            k.add(sum, other)
        });
        k.sub(sum, value)
    }

    /// The row of each entry of the run, a thread each: behind those of the run's entries before it that have the same
    /// expert.
    fn place(&self, k: &mut Builder, first: Reg<U32>, entries: Reg<U32>) {
        let nobody = self.spec.experts;
        let mine = k.lt(self.thread, entries);
        let entry = k.add(first, self.thread);
        let id = k.variable(nobody);
        k.if_(mine, |k| {
            let (found, somebodys) = self.id(k, entry);
            k.when(somebodys, |k| k.set(id, found));
        });
        let somebodys = k.ne(id, nobody);
        let alike = self.alike(k, id);
        let one = k.variable(1);
        let earlier = k.shl(one, self.lane);
        let earlier = k.sub(earlier, 1);
        let earlier = k.and(earlier, alike);
        let (rank, count) = (k.count_ones(earlier), k.count_ones(alike));
        let leads = k.eq(rank, 0);
        let leads = k.both(leads, somebodys);
        let row = k.mul_add(self.warp, self.spec.experts, id);
        let at = self.word(k, self.counts, row);
        k.when(leads, |k| k.store(at, count));
        // Also for the warp that has scanned.
        k.sync_threads();
        let place = k.variable(NOBODY);
        k.if_(somebodys, |k| {
            let at = self.word(k, self.starts, id);
            let start: Reg<U32> = k.load(at);
            let start = k.add(start, rank);
            k.set(place, start);
            k.repeat(self.warp, |k, warp| {
                let at = k.mul_add(warp, self.spec.experts, id);
                let at = self.word(k, self.counts, at);
                let before: Reg<U32> = k.load(at);
                let further = k.add(place, before);
                k.set(place, further);
            });
        });
        let at = self.word(k, self.places, self.thread);
        k.store(at, place);
        let at = self.global(k, self.inverse, entry);
        k.when(mine, |k| k.store(at, place));
        if let Some((_, experts)) = self.scales {
            let at = self.word(k, experts, self.thread);
            k.store(at, id);
        }
        if let Some(owners) = self.owners {
            let at = self.global(k, owners, place);
            k.when(somebodys, |k| k.store(at, id));
        }
        if let Some([adapters, order, chosen]) = self.order {
            k.if_(somebodys, |k| {
                let token = k.div(entry, self.spec.top);
                let (from, to) = (self.global(k, adapters, token), self.global(k, chosen, place));
                let adapter: Reg<U32> = k.load(from);
                k.store(to, adapter);
                let at = self.global(k, order, place);
                k.store(at, entry);
            });
        }
        if let Some([divisors, of_rows]) = self.divisors {
            k.if_(somebodys, |k| {
                let token = k.div(entry, self.spec.top);
                let (from, to) = (self.global(k, divisors, token), self.global(k, of_rows, place));
                let divisor: Reg<F32> = k.load(from);
                k.store(to, divisor);
            });
        }
        if let Some(factors) = self.factors {
            k.if_(somebodys, |k| {
                let weight = self.weight(k, entry);
                let at = self.global(k, factors, place);
                k.store(at, weight);
            });
        }
    }

    /// The lanes whose id is this lane's.
    fn alike(&self, k: &mut Builder, id: Reg<U32>) -> Reg<U32> {
        let mut alike = k.variable(u32::MAX);
        for bit in 0..u32::BITS - self.spec.experts.leading_zeros() {
            let value = k.bit_extract(id, bit, 1);
            let set = k.ne(value, 0);
            let with = k.ballot(set);
            let without = k.not(with);
            let same = k.select(set, with, without);
            alike = k.and(alike, same);
        }
        alike
    }

    fn weight(&self, k: &mut Builder, entry: Reg<U32>) -> Reg<F32> {
        match (&self.source, self.weights) {
            (Source::Memory { .. }, Some(weights)) => {
                let at = self.global(k, weights, entry);
                k.load(at)
            }
            (Source::Routed { weights, .. }, _) => {
                let at = self.word(k, *weights, entry);
                k.load(at)
            }
            (Source::Memory { .. } | Source::Everyone, _) => k.variable(1.0),
        }
    }

    /// Copies the rows of the run's tokens to their places.
    fn copy(&self, k: &mut Builder, first_token: Reg<U32>, run: Reg<U32>) {
        let pieces = k.mul(run, self.units);
        let row_bytes = k.mul(self.units, 2 * UNIT);
        self.each_together(k, pieces, COPIED, |k, pieces| {
            let read = |&(piece, exists): &(Reg<U32>, Pred)| {
                let token = k.div(piece, self.units);
                let before = k.mul(token, self.units);
                let unit = k.sub(piece, before);
                let row = k.add(first_token, token);
                (token, unit, exists, self.read(k, row, unit))
            };
            let read: Vec<_> = pieces.iter().map(read).collect();
            for (token, unit, exists, piece) in read {
                let entry = k.mul(token, self.spec.top);
                let at = self.word(k, self.places, entry);
                for choice in 0..self.spec.top {
                    let place: Reg<U32> = k.load(at.plus((4 * choice).cast_signed()));
                    let somebodys = k.ne(place, NOBODY);
                    let goes = k.both(somebodys, exists);
                    let to = k.mul_wide_add(place, row_bytes, self.rows);
                    let to = k.mul_wide_add(unit, 2 * UNIT, to);
                    match &piece {
                        Piece::Parts(parts) => self.write(k, to, parts, Some(goes)),
                        Piece::Floats(floats) => k.if_(goes, |k| {
                            let entry = k.add(entry, choice);
                            let parts = self.scaled(k, *floats, entry, unit);
                            self.write(k, to, &parts, None);
                        }),
                    }
                }
            }
        });
    }

    /// Part by part, to where the first goes; if that is a question, where it does.
    fn write(&self, k: &mut Builder, mut to: Reg<U64>, parts: &[[Reg<U32>; 4]], goes: Option<Pred>) {
        for (part, &words) in parts.iter().enumerate() {
            if let Some(plane) = self.plane.filter(|_| part > 0) {
                to = k.add(to, plane);
            }
            let store = |k: &mut Builder| k.store_vector(Addr::<Global>::of(to), words);
            match goes {
                Some(goes) => k.when(goes, store),
                None => store(k),
            }
        }
    }

    /// Eight elements times the factors of an entry's expert, as rows have them.
    fn scaled(
        &self,
        k: &mut Builder,
        floats: [Reg<F32>; UNIT as usize],
        entry: Reg<U32>,
        unit: Reg<U32>,
    ) -> Vec<[Reg<U32>; 4]> {
        let Some((scales, experts)) = self.scales else { return Vec::new() };
        let at = self.word(k, experts, entry);
        let expert: Reg<U32> = k.load(at);
        let row_bytes = k.mul(self.units, 4 * UNIT);
        let factors = k.mul_wide_add(expert, row_bytes, scales);
        let factors = expand::load_floats(k, Float::F32, factors, unit);
        let products = std::array::from_fn(|i| k.mul(floats[i], factors[i]));
        expand::split(k, products)
    }

    /// Eight elements of a token.
    fn read(&self, k: &mut Builder, row: Reg<U32>, unit: Reg<U32>) -> Piece {
        let bytes = UNIT * if matches!(self.spec.rows, Rows::Floats | Rows::Scaled(Float::F32)) { 4 } else { 2 };
        let row_bytes = k.mul(self.units, bytes);
        let at = k.mul_wide_add(row, row_bytes, self.tokens_at);
        match self.spec.rows {
            Rows::Copied => {
                let at = k.mul_wide_add(unit, bytes, at);
                Piece::Parts(vec![k.load_vector(Addr::<Global>::of(at))])
            }
            Rows::Floats => {
                let floats = expand::load_floats(k, Float::F32, at, unit);
                Piece::Parts(expand::split(k, floats))
            }
            Rows::Scaled(float) => Piece::Floats(expand::load_floats(k, float, at, unit)),
        }
    }
}

/// Eight elements of a token: as rows have them, or as they are before they meet an expert's factors.
enum Piece {
    Parts(Vec<[Reg<U32>; 4]>),
    Floats([Reg<F32>; UNIT as usize]),
}

impl Portable for SortSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: ids `[count, top]`, or logits, the correction if there is one and what
/// weights are multiplied with; weights `[count, top]`, where they are chosen here (to be written) or go with the rows,
/// and then the place of the rows' own; experts' factors `[experts, 8·units]`, if there are some; tokens `[count,
/// 8·units]`; rows, and bytes between their planes if there are several; the layout; the inverse; the owners, if they
/// are asked for; adapters of tokens, and where the order and the adapters of rows go, if there are adapters; what
/// tokens were divided by and where that of rows goes, if they were; the number of tokens, of tokens of a block's run,
/// of units of a row, and the most tokens of a tile.
pub fn kernel(spec: SortSpec, target: Target) -> Result<Kernel, Error> {
    spec.check()?;
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("sort", target, launch);
    let sort = Sort::declare(&mut k, spec);
    launch_dependents(&mut k, target);
    k.phase("clear", |k| sort.clear(k));
    await_predecessor(&mut k, target);
    let first_token = k.mul(sort.block, sort.run);
    let left = k.sub(sort.tokens, first_token);
    let run = k.min(left, sort.run);
    let (first, entries) = (k.mul(first_token, spec.top), k.mul(run, spec.top));
    k.phase("route", |k| sort.route(k));
    k.sync_threads();
    k.phase("count", |k| sort.count(k, first));
    k.sync_threads();
    let scans = k.eq(sort.warp, 0);
    k.if_(scans, |k| k.phase("scan", |k| sort.scan(k)));
    k.phase("place", |k| sort.place(k, first, entries));
    k.sync_threads();
    k.phase("copy", |k| sort.copy(k, first_token, run));
    k.finish()
}
