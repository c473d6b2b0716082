//! The groups of a launch, and the tiles they are cut into. The table of groups is the one that all kernels share;
//! tokens, which have no tensor map here, stand in a second one. The experts of a layer, whose numbers of tokens only
//! the device knows, have one shape, and stand in a layout in the device's memory, which a block copies to shared
//! memory when it begins.

use ptx::{Builder, F32, ParamTable, Reg, SpecialRegister, U32, U64};

use super::{Products, UNIT, WarpMultiplySpec};
use crate::phases::experts::{ExpertTiles, ExpertWork};
use crate::phases::groups::{GroupTable, Groups};
use crate::phases::owner::Owner;
use crate::phases::table::at;
use op::Schedule;

/// Words of a group in the table of tokens: an address, and bytes from one part to the next.
pub const TOKEN_WORDS: u32 = 4;

/// The arguments that describe the work.
pub(super) struct Work {
    config: WarpMultiplySpec,
    rows: Rows,
    groups: Groups,
    /// The gate's limit.
    pub clamp: Reg<F32>,
}

/// Where rows of tokens are.
enum Rows {
    /// Of each group, in a table among the arguments.
    Table(ParamTable),
    /// Of all experts together: the address, and bytes from one part to the next.
    Together([Reg<U64>; 2]),
}

/// A tile.
pub(super) struct Tile {
    pub owner: Owner,
    /// Where tokens are, and bytes from one part to the next.
    pub tokens_at: Reg<U64>,
    pub part_bytes: Reg<U64>,
    /// First token of the tile, from where tokens and C begin.
    pub first_token: Reg<U32>,
    /// Tokens of the tile.
    pub tokens: Reg<U32>,
    /// Tokens, columns and depth of the group.
    pub m: Reg<U32>,
    pub n: Reg<U32>,
    pub k: Reg<U32>,
    /// First column of the tile.
    pub column: Reg<U32>,
    /// Units along k of the group.
    pub depth: Reg<U32>,
    /// The part of k that this block sums, in stages, and which of the two parts it is where two blocks share k.
    pub first_stage: Reg<U32>,
    pub stages: Reg<U32>,
    pub half: Option<Reg<U32>>,
}

impl Work {
    pub fn declare(k: &mut Builder, config: WarpMultiplySpec) -> Self {
        let rows = match config.experts {
            None => Rows::Table(k.table("tokens", config.groups * TOKEN_WORDS)),
            Some(_) => Rows::Together([k.pointer("rows"), k.param("plane")]),
        };
        let matrices = if config.products == Products::Single { 1 } else { 2 };
        let (columns, threads, biased) = (config.columns, config.threads(), config.biased);
        let by_column = config.scaling.is_fp8();
        let tiles = ExpertTiles { columns, threads, matrices, biased, rounded: false, by_column };
        let groups = Groups::declare(k, config.groups, config.experts, tiles);
        Work { config, rows, groups, clamp: k.param("clamp") }
    }

    /// Sets aside what the block keeps of a layout, behind everything else in shared memory.
    pub fn declare_layout(&mut self, k: &mut Builder) {
        self.groups.declare_layout(k);
    }

    /// Every thread: fetches the layout.
    pub fn fetch(&self, k: &mut Builder, thread: Reg<U32>) {
        if let Groups::Experts(work) = &self.groups {
            work.fetch(k, thread);
            k.sync_threads();
        }
    }

    /// `body` for each tile of this block: blocks take every so-many-th tile.
    pub fn each_tile(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, Tile)) {
        let table = match &self.groups {
            Groups::Table(table) => *table,
            Groups::Experts(work) => {
                return work.each_tile(k, |k, number| {
                    let tile = self.find_expert(k, work, number);
                    body(k, tile);
                });
            }
        };
        let block = k.special(SpecialRegister::CtaidX);
        match self.config.schedule {
            Schedule::PerTile => {
                let tile = self.find(k, table, block, None);
                body(k, tile);
            }
            Schedule::SplitK => {
                let (number, half) = (k.shr(block, 1), k.and(block, 1));
                let tile = self.find(k, table, number, Some(half));
                body(k, tile);
            }
            Schedule::Persistent => {
                let blocks = k.special(SpecialRegister::NctaidX);
                let number = k.variable(block);
                k.repeat_while(|k| {
                    let tile = self.find(k, table, number, None);
                    body(k, tile);
                    let next = k.add(number, blocks);
                    k.set(number, next);
                    k.lt(number, table.tiles)
                });
            }
        }
    }

    fn find_expert(&self, k: &mut Builder, work: &ExpertWork, number: Reg<U32>) -> Tile {
        let found = work.locate(k, number);
        let (column_tile, token_tile) =
            (k.div(found.inside, found.token_tiles), k.rem(found.inside, found.token_tiles));
        let before = k.mul(token_tile, self.config.tokens);
        let left = k.sub(found.m, before);
        let depth = work.depth(k);
        let [first_stage, stages] = self.share(k, depth, None);
        let [tokens_at, part_bytes] = self.rows_of(k, found.expert.index);
        Tile {
            owner: Owner::Expert(found.expert),
            tokens_at,
            part_bytes,
            first_token: k.add(found.first_row, before),
            tokens: k.min(left, self.config.tokens),
            m: found.m,
            n: work.n,
            k: work.k,
            column: k.mul(column_tile, self.config.columns),
            depth,
            first_stage,
            stages,
            half: None,
        }
    }

    fn find(&self, k: &mut Builder, table: GroupTable, number: Reg<U32>, half: Option<Reg<U32>>) -> Tile {
        let (group, record, owner) = table.locate(k, number);
        let [first_tile, token_tiles, tile_tokens, m, n, depth] =
            [at::FIRST_TILE, at::TOKEN_TILES, at::TILE_TOKENS, at::M, at::N, at::K]
                .map(|place| k.table_word::<U32>(record, place));
        let inside = k.sub(number, first_tile);
        let (column_tile, token_tile) = (k.div(inside, token_tiles), k.rem(inside, token_tiles));
        let first_token = k.mul(token_tile, tile_tokens);
        let left = k.sub(m, first_token);
        let tokens = k.min(left, tile_tokens);
        let units = k.add(depth, UNIT - 1);
        let units = k.shr(units, UNIT.trailing_zeros());
        let [first_stage, stages] = self.share(k, units, half);
        let [tokens_at, part_bytes] = self.rows_of(k, group);
        Tile {
            owner,
            tokens_at,
            part_bytes,
            first_token,
            tokens,
            m,
            n,
            k: depth,
            column: k.mul(column_tile, self.config.columns),
            depth: units,
            first_stage,
            stages,
            half,
        }
    }

    /// Where a group's rows are, and bytes from one part to the next.
    fn rows_of(&self, k: &mut Builder, group: Reg<U32>) -> [Reg<U64>; 2] {
        match self.rows {
            Rows::Together(places) => places,
            Rows::Table(table) => {
                let place = k.table_row(table, group, TOKEN_WORDS * 4);
                let [low, high, part_low, part_high] = [0, 4, 8, 12].map(|word| k.table_word::<U32>(place, word));
                [k.pack_words(low, high), k.pack_words(part_low, part_high)]
            }
        }
    }

    /// What of k this block sums, in whole stages: all, or one half.
    fn share(&self, k: &mut Builder, units: Reg<U32>, half: Option<Reg<U32>>) -> [Reg<U32>; 2] {
        let stages = k.add(units, self.config.units - 1);
        let stages = k.shr(stages, self.config.units.trailing_zeros());
        let Some(half) = half else { return [k.variable(0), stages] };
        let second = k.ne(half, 0);
        let first = k.add(stages, 1);
        let first = k.shr(first, 1);
        let rest = k.sub(stages, first);
        [k.select(second, first, 0u32), k.select(second, rest, first)]
    }
}

impl Tile {
    /// Where the packed weights of a pass are: one matrix, or gate and up.
    pub fn weights(&self, k: &mut Builder, products: Products, pass: u32) -> Vec<Reg<U64>> {
        match products {
            Products::Interleaved => vec![self.owner.weights(k, 0), self.owner.weights(k, 1)],
            Products::Sequential | Products::Single => vec![self.owner.weights(k, pass)],
        }
    }

    /// What is added to a matrix's sums in a column, if something is.
    pub fn bias(&self, k: &mut Builder, matrix: u32, column: Reg<U32>) -> Option<Reg<F32>> {
        self.owner.bias(k, matrix, column, self.n)
    }

    /// What the sums of a token of the tile are multiplied with, if they are; beyond the last token it is that one's.
    pub fn row_factor(&self, k: &mut Builder, token: Reg<U32>) -> Option<Reg<F32>> {
        if !self.owner.is_factored() {
            return None;
        }
        let row = self.row(k, token);
        self.owner.row_factor(k, row)
    }

    /// The row of a token of the tile; beyond the last token it is that one's.
    pub fn row(&self, k: &mut Builder, token: Reg<U32>) -> Reg<U32> {
        let last = k.sub(self.tokens, 1);
        let token = k.min(token, last);
        k.add(self.first_token, token)
    }
}
