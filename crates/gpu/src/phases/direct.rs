//! Few tokens of which every entry, one of a token's experts, is the only row of tiles of its own.
//!
//! With so few there is next to nothing to sort. So each block of either product reads the ids, or chooses them, by
//! itself, and keeps a list of entries and their experts in shared memory: the first product needs no launch before it
//! and reads tokens where they are, and the second one no layout in memory.
//!
//! The second product also adds up what a token's experts made of it. A block that has stored its tiles counts each of
//! them for its token and columns, and whoever counts the last one adds all of that token's rows in these columns, in
//! the order of its experts: the sum has the same bits whoever that is. The first product has cleared the counters.
//!
//! The second product begins when all blocks of the first one have waited for what ids are made of, so it need not wait
//! for that; but it reads past L1, which may still have what was there before.
//!
//! **With adapters** ([`super::low_rank`]) there is a launch before the first product, which leaves what they add to
//! that. All of its blocks wait for the call before, and only then let the first product begin. So the first product
//! knows by its own beginning that tokens and ids are there, and that nobody uses the workspace any more: it reads ids
//! past L1, clears the counters, and waits only before it adds. The second product begins when all blocks of the first
//! one have begun, and so knows the same. Whoever waits for the first product has waited for all before it, since each
//! of its blocks, with tiles or without, waits before it ends.

use ptx::instr::{LoadOrder, ShuffleMode};
use ptx::{Addr, Builder, F32, Global, Pred, Reg, Scope, Shared, SharedRegion, SpecialRegister, U32, U64};

use super::NOBODY;
use super::low_rank::{Beside, LowRank};
use super::route::{Ids, Logits};
use super::sum::{self, CombineSpec, Found, TOGETHER};

/// The most entries: one per lane of a warp.
pub const MOST_ENTRIES: u32 = 32;

/// How a product finds its tiles, and what it does besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Direct {
    /// Where ids come from.
    pub ids: Ids,
    /// Experts of a token.
    pub top: u32,
    /// What the second product adds up.
    pub sums: Option<CombineSpec>,
    /// What tokens may have added to both products, if anything.
    pub low_rank: Option<LowRank>,
}

/// Bytes of a row that a thread adds at a time: so few that warps have rows of all experts under way together.
const ACCESS: u32 = 8;

/// What a block keeps in shared memory: words, each array of which has [`MOST_ENTRIES`].
#[derive(Clone, Copy)]
enum Kept {
    /// Entries that are an expert's.
    Entries = 0,
    /// The same, and one of every token that has none.
    Counted = 1,
    /// Which entries are an expert's, a bit each.
    Whose = 2,
    /// Tiles that the block has counted as the last ones, a bit each.
    Last = 3,
    /// The experts of the list, and its entries.
    Experts = 4,
    Numbers = 36,
    /// By entries: their ids, where these are chosen here, and their weights.
    Ids = 68,
    Weights = 100,
    /// And the adapters of their tokens, where these may have some.
    Adapters = 132,
}

/// The arguments.
pub(super) struct Work {
    direct: Direct,
    /// Experts that there are.
    experts: u32,
    source: Source,
    tokens: Reg<U32>,
    /// Of each token and tile of columns of the second product.
    counters: Reg<U64>,
    /// How many the first product clears.
    cleared: Option<Reg<U32>>,
    sums: Option<Sums>,
    /// What is multiplied beside the second product.
    pub beside: Option<Beside>,
}

/// Where ids come from.
pub(crate) enum Source {
    Memory { at: Reg<U64>, wide: bool },
    Routed(Logits),
    Everyone,
}

/// What is added up.
struct Sums {
    spec: CombineSpec,
    /// Weights, where they are not chosen here.
    weights: Option<Reg<U64>>,
    addend: Option<Reg<U64>>,
    out: Reg<U64>,
}

/// The second product's rows `[entries, columns]`, in tiles.
pub(super) struct Rows {
    pub at: Reg<U64>,
    pub columns: Reg<U32>,
    /// Columns of a tile, and tiles along them.
    pub tile: u32,
    pub tiles: Reg<U32>,
}

impl Source {
    pub fn declare(k: &mut Builder, ids: Ids) -> Self {
        let past_l1 = LoadOrder::Relaxed(Scope::Gpu);
        match ids {
            Ids::Narrow | Ids::Wide => Source::Memory { at: k.pointer("ids"), wide: ids == Ids::Wide },
            Ids::Routed(spec) => Source::Routed(Logits::declare(k, spec).read_as(past_l1)),
            Ids::Everyone => Source::Everyone,
        }
    }

    /// The id of an entry, the first, second and so on of a token's. All lanes of a warp ask for the same one.
    pub fn expert(&self, k: &mut Builder, entry: Reg<U32>, [token, which, lane]: [Reg<U32>; 3]) -> Reg<U32> {
        match self {
            Source::Everyone => k.variable(0),
            Source::Memory { at, wide } => given(k, *at, entry, *wide),
            Source::Routed(logits) => {
                let row = logits.row(k, token);
                let chosen = logits.choose(k, row, lane);
                k.shuffle(ShuffleMode::Index, chosen, which)
            }
        }
    }
}

impl Direct {
    /// Bytes of what a block keeps.
    pub(super) fn kept_bytes(&self) -> u32 {
        let last = if self.low_rank.is_some() { Kept::Adapters } else { Kept::Weights };
        4 * (last as u32 + MOST_ENTRIES)
    }

    /// Declares the arguments, for so many experts.
    pub(super) fn declare(self, k: &mut Builder, experts: u32) -> Work {
        let source = Source::declare(k, self.ids);
        let (tokens, counters) = (k.param("count"), k.pointer("counters"));
        let cleared = self.sums.is_none().then(|| k.param("cleared"));
        let read = |spec: CombineSpec| spec.weighted && !matches!(self.ids, Ids::Routed(_));
        let sums = self.sums.map(|spec| Sums {
            spec,
            weights: read(spec).then(|| k.pointer("weights")),
            addend: spec.addend.map(|_| k.pointer("addend")),
            out: k.pointer("results"),
        });
        let beside = self.low_rank.map(|spec| Beside::declare(k, spec, experts, self.sums.is_some()));
        Work { direct: self, experts, source, tokens, counters, cleared, sums, beside }
    }
}

/// An id in memory; one that 32 bits cannot hold is [`NOBODY`]'s.
fn given(k: &mut Builder, ids: Reg<U64>, entry: Reg<U32>, wide: bool) -> Reg<U32> {
    if !wide {
        return fresh(k, ids, entry);
    }
    let at = Addr::<Global>::of(k.mul_wide_add(entry, 8, ids));
    let [low, high]: [Reg<U32>; 2] = k.load_as(LoadOrder::Relaxed(Scope::Gpu), at);
    let small = k.eq(high, 0);
    k.select(small, low, NOBODY)
}

/// The number of the adapter of an entry's token, that a block keeps.
pub(super) fn adapter(k: &mut Builder, region: SharedRegion, entry: Reg<U32>) -> Reg<U32> {
    let at = word(k, region, Kept::Adapters, entry);
    k.load(at)
}

/// A word of what is kept.
fn word(k: &mut Builder, region: SharedRegion, array: Kept, index: Reg<U32>) -> Addr<Shared> {
    let base = k.shared_address(region);
    Addr::of(k.mul_add(index, 4, base)).plus(4 * array as i32)
}

/// The same of which there is but one.
fn only(k: &mut Builder, region: SharedRegion, which: Kept) -> Addr<Shared> {
    Addr::of(k.shared_address(region)).plus(4 * which as i32)
}

/// A word of an array in memory, past L1.
fn fresh(k: &mut Builder, array: Reg<U64>, index: Reg<U32>) -> Reg<U32> {
    let at = Addr::<Global>::of(k.mul_wide_add(index, 4, array));
    let [word] = k.load_as(LoadOrder::Relaxed(Scope::Gpu), at);
    word
}

impl Work {
    /// Every thread of a block of so many, once what ids are made of is there: makes the list, with the tokens'
    /// adapters where they may have some. Threads have to meet before they look at it.
    pub fn find(
        &self,
        k: &mut Builder,
        region: SharedRegion,
        (thread, threads): (Reg<U32>, u32),
        adapters: Option<Reg<U64>>,
    ) {
        self.clear(k, thread, threads);
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31));
        let warp = k.broadcast(warp);
        if let Source::Routed(logits) = &self.source {
            k.phase("route", |k| self.route(k, logits, region, [warp, lane], threads / 32));
            k.sync_threads();
        }
        let first = k.eq(warp, 0);
        k.if_(first, |k| k.phase("list", |k| self.list(k, region, lane, adapters)));
    }

    /// The first block clears the counters.
    fn clear(&self, k: &mut Builder, thread: Reg<U32>, threads: u32) {
        let Some(count) = self.cleared else { return };
        let block = k.special(SpecialRegister::CtaidX);
        let first = k.eq(block, 0);
        let (index, zero) = (k.variable(thread), k.variable(0));
        k.if_(first, |k| {
            k.loop_while(
                |k| k.lt(index, count),
                |k| {
                    let at = Addr::<Global>::of(k.mul_wide_add(index, 4, self.counters));
                    k.store(at, zero);
                    let next = k.add(index, threads);
                    k.set(index, next);
                },
            );
        });
    }

    /// Chooses the experts of all tokens, a warp per token, and their weights if somebody asks for them.
    fn route(&self, k: &mut Builder, logits: &Logits, region: SharedRegion, [warp, lane]: [Reg<U32>; 2], warps: u32) {
        let token = k.variable(warp);
        k.loop_while(
            |k| k.lt(token, self.tokens),
            |k| {
                let row = logits.row(k, token);
                let expert = logits.choose(k, row, lane);
                let weight = self.sums.as_ref().map(|_| k.phase("weigh", |k| logits.weigh(k, row, expert, lane)));
                let chosen = k.lt(lane, self.direct.top);
                k.if_(chosen, |k| {
                    let entry = k.mul_add(token, self.direct.top, lane);
                    let at = word(k, region, Kept::Ids, entry);
                    k.store(at, expert);
                    if let Some(weight) = weight {
                        let at = word(k, region, Kept::Weights, entry);
                        k.store(at, weight);
                    }
                });
                let next = k.add(token, warps);
                k.set(token, next);
            },
        );
    }

    /// One warp lists the entries that are an expert's, or are to be counted.
    fn list(&self, k: &mut Builder, region: SharedRegion, lane: Reg<U32>, adapters: Option<Reg<U64>>) {
        let top = self.direct.top;
        let entries = k.mul(self.tokens, top);
        let exists = k.lt(lane, entries);
        let id = k.variable(NOBODY);
        k.if_(exists, |k| {
            let found = self.id(k, region, lane);
            let known = k.lt(found, self.experts);
            k.when(known, |k| k.set(id, found));
            if let Some(weights) = self.sums.as_ref().and_then(|sums| sums.weights) {
                let (weight, at) = (fresh(k, weights, lane), word(k, region, Kept::Weights, lane));
                k.store(at, weight);
            }
            if let Some(adapters) = adapters {
                let token = k.div(lane, top);
                let (adapter, at) = (fresh(k, adapters, token), word(k, region, Kept::Adapters, lane));
                k.store(at, adapter);
            }
        });
        let somebodys = k.ne(id, NOBODY);
        let whose = k.ballot(somebodys);
        let one = k.variable(1);
        let before = k.shl(one, lane);
        let before = k.sub(before, 1);
        let rank = |k: &mut Builder, among| {
            let earlier = k.and(among, before);
            k.count_ones(earlier)
        };
        let (count, place) = (k.count_ones(whose), rank(k, whose));
        let place = k.variable(place);
        let leads = k.eq(lane, 0);
        let at = only(k, region, Kept::Entries);
        k.when(leads, |k| k.store(at, count));
        let mut listed = somebodys;
        if self.sums.is_some() {
            // Behind them one of every token that has none.
            let (token, own) = (k.div(lane, top), self.of_token(k, whose, lane));
            let first = k.mul(token, top);
            let (first, none) = (k.eq(first, lane), k.eq(own, 0));
            let alone = k.both(first, none);
            let alone = k.both(alone, exists);
            let others = k.ballot(alone);
            let (more, behind) = (k.count_ones(others), rank(k, others));
            let behind = k.add(behind, count);
            k.when(alone, |k| k.set(place, behind));
            listed = k.either(somebodys, alone);
            let counted = k.add(count, more);
            for (which, value) in [(Kept::Counted, counted), (Kept::Whose, whose)] {
                let at = only(k, region, which);
                k.when(leads, |k| k.store(at, value));
            }
        }
        k.if_(listed, |k| {
            let (experts, numbers) = (word(k, region, Kept::Experts, place), word(k, region, Kept::Numbers, place));
            k.store(experts, id);
            k.store(numbers, lane);
        });
    }

    /// The id of an entry.
    fn id(&self, k: &mut Builder, region: SharedRegion, entry: Reg<U32>) -> Reg<U32> {
        match &self.source {
            Source::Everyone => k.variable(0),
            Source::Routed(_) => {
                let at = word(k, region, Kept::Ids, entry);
                k.load(at)
            }
            Source::Memory { at, wide } => given(k, *at, entry, *wide),
        }
    }

    /// Of bits of all entries those of one entry's token, the first of them lowest.
    fn of_token(&self, k: &mut Builder, whose: Reg<U32>, entry: Reg<U32>) -> Reg<U32> {
        let top = self.direct.top;
        let token = k.div(entry, top);
        let first = k.mul(token, top);
        let own = k.shr(whose, first);
        k.and(own, u32::MAX >> (32 - top))
    }

    /// Entries that have tiles.
    pub fn count(&self, k: &mut Builder, region: SharedRegion) -> Reg<U32> {
        let at = only(k, region, Kept::Entries);
        k.load(at)
    }

    /// The expert and the number of an entry of the list.
    pub fn entry(&self, k: &mut Builder, region: SharedRegion, place: Reg<U32>) -> [Reg<U32>; 2] {
        [Kept::Experts, Kept::Numbers].map(|array| {
            let at = word(k, region, array, place);
            k.load(at)
        })
    }

    /// The row that the first product reads for an entry: its token.
    pub fn source_row(&self, k: &mut Builder, entry: Reg<U32>) -> Reg<U32> {
        if self.sums.is_some() { entry } else { k.div(entry, self.direct.top) }
    }

    /// Some warps of a block, each of its threads with its number among theirs, when all of the block's tiles are
    /// stored: the first counts these, and all add up what that has counted the last tile of. `meet` lets all of them
    /// wait for each other.
    pub fn sum(
        &self,
        k: &mut Builder,
        region: SharedRegion,
        rows: &Rows,
        thread: Reg<U32>,
        meet: impl Fn(&mut Builder),
    ) {
        let Some(sums) = &self.sums else { return };
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31));
        let warp = k.broadcast(warp);
        let counts = k.eq(warp, 0);
        // The addend comes from the launch before the first product, and counters from that.
        k.grid_dependency_wait();
        let (block, blocks) = (k.special(SpecialRegister::CtaidX), k.special(SpecialRegister::NctaidX));
        let at = only(k, region, Kept::Counted);
        let counted: Reg<U32> = k.load(at);
        let all = k.mul(counted, rows.tiles);
        let at = only(k, region, Kept::Whose);
        let whose: Reg<U32> = k.load(at);
        let first = k.variable(block);
        k.loop_while(
            |k| k.lt(first, all),
            |k| {
                meet(k);
                k.if_(counts, |k| {
                    let last = self.count_tiles(k, region, rows, (all, whose), [first, blocks, lane]);
                    let last = k.ballot(last);
                    let (at, leads) = (only(k, region, Kept::Last), k.eq(lane, 0));
                    k.when(leads, |k| k.store(at, last));
                });
                meet(k);
                let at = only(k, region, Kept::Last);
                let left: Reg<U32> = k.load(at);
                let left = k.variable(left);
                k.loop_while(
                    |k| k.ne(left, 0),
                    |k| {
                        let below = k.sub(left, 1);
                        let lower = k.not(left);
                        let lower = k.and(lower, below);
                        let turn = k.count_ones(lower);
                        let number = k.mul_add(turn, blocks, first);
                        let [entry, column] = self.place(k, region, rows, number);
                        self.sum_tile(k, region, (sums, rows), whose, [entry, column, thread]);
                        let rest = k.and(left, below);
                        k.set(left, rest);
                    },
                );
                let next = k.mul_add(blocks, 32, first);
                k.set(first, next);
            },
        );
    }

    /// The entry and the tile of columns of a tile.
    fn place(&self, k: &mut Builder, region: SharedRegion, rows: &Rows, number: Reg<U32>) -> [Reg<U32>; 2] {
        let place = k.div(number, rows.tiles);
        let before = k.mul(place, rows.tiles);
        let at = word(k, region, Kept::Numbers, place);
        [k.load(at), k.sub(number, before)]
    }

    /// A lane counts one of the block's tiles, if there are so many, and says whether it was the last one of its token
    /// and columns. What the block has stored is published before, and what others have is seen behind.
    fn count_tiles(
        &self,
        k: &mut Builder,
        region: SharedRegion,
        rows: &Rows,
        (all, whose): (Reg<U32>, Reg<U32>),
        [first, blocks, lane]: [Reg<U32>; 3],
    ) -> Pred {
        let number = k.mul_add(lane, blocks, first);
        let exists = k.lt(number, all);
        let end = k.sub(all, 1);
        let number = k.min(number, end);
        let [entry, column] = self.place(k, region, rows, number);
        let token = k.div(entry, self.direct.top);
        let counter = k.mul_add(token, rows.tiles, column);
        let at = Addr::<Global>::of(k.mul_wide_add(counter, 4, self.counters));
        let own = self.of_token(k, whose, entry);
        let wanted = k.count_ones(own);
        let wanted = k.max(wanted, 1);
        k.fence(Scope::Gpu);
        let before = k.variable(NOBODY);
        k.if_(exists, |k| {
            let found = k.phase("count", |k| k.atomic_add(Scope::Gpu, at, 1));
            k.set(before, found);
        });
        k.fence(Scope::Gpu);
        let counted = k.add(before, 1);
        k.eq(counted, wanted)
    }

    /// Adds up the rows of an entry's token in a tile's columns.
    fn sum_tile(
        &self,
        k: &mut Builder,
        region: SharedRegion,
        (sums, rows): (&Sums, &Rows),
        whose: Reg<U32>,
        [entry, column, thread]: [Reg<U32>; 3],
    ) {
        let (spec, top) = (sums.spec, self.direct.top);
        let each = ACCESS / spec.rows.bytes() as u32;
        let (own, token) = (self.of_token(k, whose, entry), k.div(entry, top));
        let first_entry = k.mul(token, top);
        let units = k.shr(rows.columns, each.trailing_zeros());
        // There are more threads than that.
        let unit = k.mul_add(column, rows.tile / each, thread);
        let (inside, within) = (k.lt(thread, rows.tile / each), k.lt(unit, units));
        let exists = k.both(inside, within);
        k.if_(exists, |k| {
            let totals: Vec<Reg<F32>> = (0..each).map(|_| k.variable(0.0)).collect();
            for first in (0..top).step_by(TOGETHER as usize) {
                let find = |index: u32| {
                    let entry = k.add(first_entry, index);
                    let weight = spec.weighted.then(|| {
                        let at = word(k, region, Kept::Weights, entry);
                        k.load(at)
                    });
                    let bit = k.bit_extract(own, index, 1);
                    let somebodys = k.ne(bit, 0);
                    Found { base: rows.at, row: k.select(somebodys, entry, NOBODY), weight }
                };
                let found: Vec<Found> = (first..top.min(first + TOGETHER)).map(find).collect();
                sum::add_rows(k, (spec, ACCESS), &found, (units, unit), &totals);
            }
            let addend = spec.addend.zip(sums.addend);
            sum::finish(k, spec, (addend, sums.out), [token, units, unit], &totals);
        });
    }
}
