//! The experts of a layer as the groups of a launch: one shape, and a layout in the device's memory that says where
//! each one's rows begin and which of the tiles of tokens is its first.
//!
//! Weights, factors and biases of all experts lie one after another, so an expert's number is all it takes to find
//! them, for every family's kernels alike.

use ptx::instr::LoadOrder;
use ptx::{Addr, Builder, F32, Global, Pred, Reg, Scope, Shared, SharedRegion, SpecialRegister, U32, U64};

use super::direct::{self, Direct};
use super::low_rank::Beside;
use crate::pack::{CHUNK_DEPTH, Codes};
use crate::products::ProductShape;

/// A layer's experts, as far as a kernel is built for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Experts {
    /// How many there are.
    pub count: u32,
    /// Whether sums are multiplied with a factor per row.
    pub factored: bool,
    /// Whether the launch before this one reads the same layout, and so begins only when that is there. Then nobody
    /// waits for that launch but who asks for what it writes, and weights are on their way before it ends.
    pub follows: bool,
    /// What the words of weights are in order for.
    pub codes: Codes,
    /// Whether rows may have something added to their sums. The launch before this one leaves that, and lets this one
    /// begin only when layout or ids are there; of a product that does not follow another one, rows are there, too:
    /// nobody waits for it but who adds.
    pub added: bool,
    /// How tiles are found where tokens are few; else by the layout.
    pub direct: Option<Direct>,
}

impl Experts {
    /// Those of a product.
    pub(crate) fn of(shape: &ProductShape) -> Self {
        let ProductShape { experts, factored, follows, codes, added, .. } = *shape;
        Experts { count: experts, factored, follows, codes, added, direct: None }
    }

    /// Words of the experts' first tiles, as bisection wants them.
    fn tile_words(self) -> u32 {
        self.count.next_power_of_two().max(self.count + 1)
    }

    /// Bytes of what a block keeps of the layout.
    pub fn layout_bytes(self) -> u32 {
        self.direct.map_or(4 * (self.tile_words() + self.count + 1), |direct| direct.kept_bytes())
    }
}

/// Bytes of the factors of an expert: two for each of gate, up and down.
pub const FACTOR_BYTES: u32 = 24;
/// Bytes of an expert's lifts, a word for each of gate, up and down.
pub const LIFT_BYTES: u32 = 12;

/// How a kernel cuts the experts' results, and who does it.
#[derive(Clone, Copy)]
pub(crate) struct ExpertTiles {
    /// Columns of a tile.
    pub columns: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Matrices that are multiplied.
    pub matrices: u32,
    /// Whether sums have biases added to them.
    pub biased: bool,
    /// Whether tokens and weights were rounded to e4m3.
    pub rounded: bool,
    /// Whether columns have factors of their own: never those of experts.
    pub by_column: bool,
}

/// The arguments that describe experts.
pub(crate) struct ExpertWork {
    tiles: ExpertTiles,
    experts: Experts,
    found_by: FoundBy,
    kept: Option<SharedRegion>,
    places: Places,
    /// Columns of C.
    pub n: Reg<U32>,
    /// The summed dimension.
    pub k: Reg<U32>,
}

/// What tiles are found by.
enum FoundBy {
    /// A layout in memory.
    Layout(Reg<U64>),
    /// What every block finds out by itself.
    Direct(direct::Work),
}

/// Where operands are.
#[derive(Clone, Copy)]
struct Places {
    weights: [Reg<U64>; 2],
    /// Bytes from one expert's weights to the next one's.
    stride: Reg<U32>,
    factors: Reg<U64>,
    biases: Option<[Reg<U64>; 2]>,
    row_factors: Option<Reg<U64>>,
    /// What rows were divided by, and the experts' lifts, where tokens and weights were rounded to e4m3.
    rounded: Option<[Reg<U64>; 2]>,
    added: Option<AddedPlaces>,
    out: Reg<U64>,
}

/// Where what is added to sums is, `[rows, matrices, n]` or in pieces ([`super::low_rank`]), of rows whose adapter is
/// one of so many; and the adapters of rows or, where blocks find their tiles themselves, of tokens, of which they keep
/// those of rows.
#[derive(Clone, Copy)]
struct AddedPlaces {
    chosen: Reg<U64>,
    kept: Option<SharedRegion>,
    count: Reg<U32>,
    deltas: Reg<U64>,
    matrices: u32,
}

/// An expert, and where its operands are.
#[derive(Clone, Copy)]
pub(crate) struct Expert {
    /// Its number.
    pub index: Reg<U32>,
    places: Places,
    /// Where C is: all experts' rows.
    pub out: Reg<U64>,
}

/// What is added to the sums of a row in a column: that of its first matrix, and bytes to the next row's and matrix's.
#[derive(Clone, Copy)]
pub(crate) struct Deltas {
    at: Reg<U64>,
    row_bytes: Reg<U32>,
    matrix_bytes: Reg<U32>,
}

impl Deltas {
    /// Those of so many rows further.
    pub fn further(self, k: &mut Builder, rows: u32) -> Self {
        if rows == 0 { self } else { Deltas { at: k.mul_wide_add(self.row_bytes, rows, self.at), ..self } }
    }

    /// What is added to a matrix's sum, where `theirs` says that something is.
    pub fn of(self, k: &mut Builder, matrix: u32, theirs: Pred) -> (Pred, Reg<F32>) {
        let at = self.place(k, matrix);
        (theirs, k.when(theirs, |k| k.load(at)))
    }

    /// The same wherever it is, also where nobody has left anything.
    pub fn read(self, k: &mut Builder, matrix: u32) -> Reg<F32> {
        let at = self.place(k, matrix);
        k.load(at)
    }

    fn place(self, k: &mut Builder, matrix: u32) -> Addr<Global> {
        Addr::of(if matrix == 0 { self.at } else { k.mul_wide_add(self.matrix_bytes, matrix, self.at) })
    }
}

/// What is known of a tile.
pub(crate) struct Found {
    pub expert: Expert,
    /// Its number among the expert's.
    pub inside: Reg<U32>,
    /// Tiles along the expert's rows.
    pub token_tiles: Reg<U32>,
    /// The expert's rows, and the first of them.
    pub m: Reg<U32>,
    pub first_row: Reg<U32>,
}

impl ExpertWork {
    pub fn declare(k: &mut Builder, tiles: ExpertTiles, experts: Experts) -> Self {
        let found_by = match experts.direct {
            None => FoundBy::Layout(k.pointer("layout")),
            Some(direct) => FoundBy::Direct(direct.declare(k, experts.count)),
        };
        let gate = k.pointer("gate");
        let two = tiles.matrices == 2;
        let up = if two { k.pointer("up") } else { gate };
        let (stride, factors) = (k.param("stride"), k.pointer("factors"));
        let biases = tiles.biased.then(|| {
            let gate = k.pointer("gate_bias");
            [gate, if two { k.pointer("up_bias") } else { gate }]
        });
        let row_factors = experts.factored.then(|| k.pointer("row_factors"));
        let rounded = tiles.rounded.then(|| ["row_scales", "lifts"].map(|name| k.pointer(name)));
        let added = experts.added.then(|| AddedPlaces {
            chosen: k.pointer("chosen"),
            kept: None,
            count: k.param("adapters"),
            deltas: k.pointer("deltas"),
            matrices: tiles.matrices,
        });
        let out = k.pointer("out");
        let places = Places { weights: [gate, up], stride, factors, biases, row_factors, rounded, added, out };
        ExpertWork { tiles, experts, found_by, kept: None, places, n: k.param("n"), k: k.param("k") }
    }

    pub fn declare_layout(&mut self, k: &mut Builder) {
        self.kept = Some(k.shared("layout", self.experts.layout_bytes(), 16));
        if let (FoundBy::Direct(_), Some(added)) = (&self.found_by, &mut self.places.added) {
            added.kept = self.kept;
        }
    }

    /// What is multiplied beside the second product, where tiles are found here and tokens may have adapters; and where
    /// the pieces of that are, for those who add it.
    pub fn beside(&self) -> Option<(&Beside, Reg<U64>)> {
        match (&self.found_by, self.places.added) {
            (FoundBy::Direct(work), Some(added)) => Some((work.beside.as_ref()?, added.deltas)),
            _ => None,
        }
    }

    /// Whether the layout is there when this launch begins.
    pub fn knows_layout(&self) -> bool {
        self.experts.follows || self.experts.added
    }

    fn kept(&self) -> SharedRegion {
        self.kept.unwrap_or(SharedRegion { offset: 0, bytes: 0 })
    }

    /// A word of what the block keeps: first tiles from the first on, and behind them rows.
    fn word(&self, k: &mut Builder, index: Reg<U32>, further: u32) -> Addr<Shared> {
        let base = k.shared_address(self.kept());
        Addr::of(k.mul_add(index, 4, base)).plus((4 * further).cast_signed())
    }

    fn first_row(&self, k: &mut Builder, expert: Reg<U32>, further: u32) -> Reg<U32> {
        let at = self.word(k, expert, self.experts.tile_words() + further);
        k.load(at)
    }

    fn first_tile(&self, k: &mut Builder, expert: Reg<U32>, further: u32) -> Reg<U32> {
        let at = self.word(k, expert, further);
        k.load(at)
    }

    /// Copies the layout, or finds out what it would say. Behind the last expert's first tile comes the number of
    /// tiles, and then nothing that a tile could be of.
    pub fn fetch(&self, k: &mut Builder, thread: Reg<U32>) {
        let (count, words) = (self.experts.count, self.experts.tile_words());
        let threads = self.tiles.threads;
        let layout = match &self.found_by {
            FoundBy::Layout(layout) => *layout,
            FoundBy::Direct(work) => {
                let adapters = self.places.added.map(|added| added.chosen);
                return work.find(k, self.kept(), (thread, threads), adapters);
            }
        };
        for first in (0..words).step_by(threads as usize) {
            let index = k.add(thread, first);
            let exists = k.le(index, count);
            let row_at = Addr::<Global>::of(k.mul_wide_add(index, 4, layout));
            k.if_(exists, |k| {
                // Past L1, which may still have what was there when another kernel read it.
                let order = LoadOrder::Relaxed(Scope::Gpu);
                let [row]: [Reg<U32>; 1] = k.load_as(order, row_at);
                let [tile]: [Reg<U32>; 1] = k.load_as(order, row_at.plus((4 * (count + 1)).cast_signed()));
                let (rows, tiles) = (self.word(k, index, words), self.word(k, index, 0));
                k.store(rows, row);
                k.store(tiles, tile);
            });
            if words > count + 1 {
                let (behind, within) = (k.gt(index, count), k.lt(index, words));
                let padding = k.both(behind, within);
                let (at, most) = (self.word(k, index, 0), k.variable(u32::MAX));
                k.when(padding, |k| k.store(at, most));
            }
        }
    }

    /// `body` for the number of each tile of this block: blocks take every so-many-th, and may have none.
    pub fn each_tile(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, Reg<U32>)) {
        let (block, blocks) = (k.special(SpecialRegister::CtaidX), k.special(SpecialRegister::NctaidX));
        let (tiles, number) = (self.count(k), k.variable(block));
        k.loop_while(
            |k| k.lt(number, tiles),
            |k| {
                body(k, number);
                let next = k.add(number, blocks);
                k.set(number, next);
            },
        );
    }

    fn column_tiles(&self, k: &mut Builder) -> Reg<U32> {
        let rounded = k.add(self.n, self.tiles.columns - 1);
        k.div(rounded, self.tiles.columns)
    }

    /// Tiles of all experts.
    pub fn count(&self, k: &mut Builder) -> Reg<U32> {
        let token_tiles = match &self.found_by {
            FoundBy::Layout(_) => {
                let end = k.variable(self.experts.count);
                self.first_tile(k, end, 0)
            }
            FoundBy::Direct(work) => work.count(k, self.kept()),
        };
        let columns = self.column_tiles(k);
        k.mul(token_tiles, columns)
    }

    /// Units along k.
    pub fn depth(&self, k: &mut Builder) -> Reg<U32> {
        let depth = k.add(self.k, CHUNK_DEPTH as u32 - 1);
        k.shr(depth, CHUNK_DEPTH.trailing_zeros())
    }

    /// The expert of this number.
    pub fn expert(&self, index: Reg<U32>) -> Expert {
        Expert { index, places: self.places, out: self.places.out }
    }

    /// The expert of a tile: the last whose first tile is not behind it.
    pub fn locate(&self, k: &mut Builder, number: Reg<U32>) -> Found {
        let columns = self.column_tiles(k);
        let tile = k.div(number, columns);
        if let FoundBy::Direct(work) = &self.found_by {
            let before = k.mul(tile, columns);
            let [index, first_row] = work.entry(k, self.kept(), tile);
            let (expert, inside, one) = (self.expert(index), k.sub(number, before), k.variable(1));
            return Found { expert, inside, token_tiles: one, m: one, first_row };
        }
        let index = k.variable(0);
        let mut step = self.experts.count.next_power_of_two() / 2;
        while step > 0 {
            let first = self.first_tile(k, index, step);
            let reached = k.le(first, tile);
            let probe = k.add(index, step);
            k.when(reached, |k| k.set(index, probe));
            step /= 2;
        }
        let [first_tile, next_tile] = [0, 1].map(|further| self.first_tile(k, index, further));
        let [first_row, next_row] = [0, 1].map(|further| self.first_row(k, index, further));
        let before = k.mul(first_tile, columns);
        let (token_tiles, m) = (k.sub(next_tile, first_tile), k.sub(next_row, first_row));
        Found { expert: self.expert(index), inside: k.sub(number, before), token_tiles, m, first_row }
    }
}

impl ExpertWork {
    /// The row that is read for a row of C, where that is another one.
    pub fn source_row(&self, k: &mut Builder, row: Reg<U32>) -> Reg<U32> {
        match &self.found_by {
            FoundBy::Layout(_) => row,
            FoundBy::Direct(work) => work.source_row(k, row),
        }
    }

    /// Whether blocks add up what a token's experts made of it.
    pub fn sums(&self) -> bool {
        self.experts.direct.is_some_and(|direct| direct.sums.is_some())
    }

    /// Threads of a block that can `meet`, at least 128, add up what is complete, when they have stored the block's
    /// tiles.
    pub fn sum(&self, k: &mut Builder, thread: Reg<U32>, meet: impl Fn(&mut Builder)) {
        if let FoundBy::Direct(work) = &self.found_by {
            let tiles = self.column_tiles(k);
            let rows = direct::Rows { at: self.places.out, columns: self.n, tile: self.tiles.columns, tiles };
            work.sum(k, self.kept(), &rows, thread, meet);
        }
    }
}

impl Expert {
    pub fn weights(&self, k: &mut Builder, matrix: u32) -> Reg<U64> {
        k.mul_wide_add(self.index, self.places.stride, self.places.weights[matrix as usize])
    }

    pub fn factors(&self, k: &mut Builder, matrix: u32) -> [Reg<F32>; 2] {
        let at = Addr::<Global>::of(k.mul_wide_add(self.index, FACTOR_BYTES, self.places.factors));
        k.load_vector(at.plus((8 * matrix).cast_signed()))
    }

    /// What is added to a matrix's sums in a column, if something is. Behind the last column it is that one's.
    pub fn bias(&self, k: &mut Builder, matrix: u32, column: Reg<U32>, n: Reg<U32>) -> Option<Reg<F32>> {
        self.places.biases.map(|biases| {
            let last = k.sub(n, 1);
            let column = k.min(column, last);
            let row_bytes = k.mul(n, 4);
            let row = k.mul_wide_add(self.index, row_bytes, biases[matrix as usize]);
            let at = k.mul_wide_add(column, 4, row);
            k.load(Addr::<Global>::of(at))
        })
    }

    /// What a row was divided by before it was rounded to e4m3, if it was.
    pub fn row_scale(&self, k: &mut Builder, row: Reg<U32>) -> Option<Reg<F32>> {
        self.places.rounded.map(|[scales, _]| {
            let at = k.mul_wide_add(row, 4, scales);
            k.load(Addr::<Global>::of(at))
        })
    }

    /// What a matrix's scales are multiplied with before its weights are rounded to e4m3, if they are.
    pub fn lift(&self, k: &mut Builder, matrix: u32) -> Option<Reg<U32>> {
        self.places.rounded.map(|[_, lifts]| {
            let at = k.mul_wide_add(self.index, LIFT_BYTES, lifts);
            k.load(Addr::<Global>::of(at).plus((4 * matrix).cast_signed()))
        })
    }

    /// Whether the sums of rows may have something added.
    pub fn is_adapted(&self) -> bool {
        self.places.added.is_some()
    }

    /// The number of a row's adapter, if rows may have some.
    pub fn chosen(&self, k: &mut Builder, row: Reg<U32>) -> Option<Reg<U32>> {
        self.places.added.map(|added| {
            if let Some(kept) = added.kept {
                return direct::adapter(k, kept, row);
            }
            let at = k.mul_wide_add(row, 4, added.chosen);
            k.load(Addr::<Global>::of(at))
        })
    }

    /// Whether such a number is an adapter's.
    pub fn is_adapter(&self, k: &mut Builder, number: Reg<U32>) -> Option<Pred> {
        self.places.added.map(|added| k.lt(number, added.count))
    }

    /// What is added to the sums of a row in a column, if something may be. Behind the last column it is that one's.
    pub fn deltas(&self, k: &mut Builder, [row, column, n]: [Reg<U32>; 3]) -> Option<Deltas> {
        self.places.added.map(|added| {
            let last = k.sub(n, 1);
            let column = k.min(column, last);
            let matrix_bytes = k.mul(n, 4);
            let row_bytes = k.mul(matrix_bytes, added.matrices);
            let at = k.mul_wide_add(row, row_bytes, added.deltas);
            Deltas { at: k.mul_wide_add(column, 4, at), row_bytes, matrix_bytes }
        })
    }

    /// Whether the sums of rows have factors.
    pub fn is_factored(&self) -> bool {
        self.places.row_factors.is_some()
    }

    pub fn row_factor(&self, k: &mut Builder, row: Reg<U32>) -> Option<Reg<F32>> {
        self.places.row_factors.map(|factors| {
            let at = k.mul_wide_add(row, 4, factors);
            k.load(Addr::<Global>::of(at))
        })
    }
}
