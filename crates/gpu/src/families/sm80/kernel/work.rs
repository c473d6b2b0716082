//! The groups of a launch, and the tiles they are cut into. The table of groups is the one that all kernels share; tokens, which have
//! no tensor map here, stand in a second one.

use ptx::{Builder, F32, ParamTable, Reg, SpecialRegister, U32, U64};

use super::{Products, UNIT, WarpMultiplySpec};
use crate::table::{RECORD_BYTES, address, at, factors, locate};
use op::Schedule;

/// Words of a group in the table of tokens: an address, and bytes from one part to the next.
pub const TOKEN_WORDS: u32 = 4;

/// The arguments that describe the work.
pub(super) struct Work {
    config: WarpMultiplySpec,
    table: ParamTable,
    token_table: ParamTable,
    tiles: Reg<U32>,
    /// The gate's limit.
    pub clamp: Reg<F32>,
}

/// A tile.
pub(super) struct Tile {
    record: ParamTable,
    /// Where the group's tokens are, and bytes from one part to the next.
    pub tokens_at: Reg<U64>,
    pub part_bytes: Reg<U64>,
    /// First token of the tile within its group.
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
        Work {
            config,
            token_table: k.table("tokens", config.groups * TOKEN_WORDS),
            table: k.table("groups", config.groups * RECORD_BYTES / 4),
            tiles: k.param("tiles"),
            clamp: k.param("clamp"),
        }
    }

    /// `body` for each tile of this block: blocks take every so-many-th tile.
    pub fn each_tile(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, Tile)) {
        let block = k.special(SpecialRegister::CtaidX);
        match self.config.schedule {
            Schedule::PerTile => {
                let tile = self.find(k, block, None);
                body(k, tile);
            }
            Schedule::SplitK => {
                let (number, half) = (k.shr(block, 1), k.and(block, 1));
                let tile = self.find(k, number, Some(half));
                body(k, tile);
            }
            Schedule::Persistent => {
                let blocks = k.special(SpecialRegister::NctaidX);
                let number = k.variable(block);
                k.repeat_while(|k| {
                    let tile = self.find(k, number, None);
                    body(k, tile);
                    let next = k.add(number, blocks);
                    k.set(number, next);
                    k.lt(number, self.tiles)
                });
            }
        }
    }

    fn find(&self, k: &mut Builder, number: Reg<U32>, half: Option<Reg<U32>>) -> Tile {
        let (group, record) = locate(k, self.table, self.config.groups, number);
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
        let place = k.table_row(self.token_table, group, TOKEN_WORDS * 4);
        let [low, high, part_low, part_high] = [0, 4, 8, 12].map(|word| k.table_word::<U32>(place, word));
        Tile {
            record,
            tokens_at: k.pack_words(low, high),
            part_bytes: k.pack_words(part_low, part_high),
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
            Products::Interleaved => [0, 1].map(|matrix| address(k, self.record, at::GATE + 8 * matrix)).to_vec(),
            Products::Sequential | Products::Single => vec![address(k, self.record, at::GATE + 8 * pass)],
        }
    }

    /// Where C is, or where planes of sums begin.
    pub fn out(&self, k: &mut Builder) -> Reg<U64> {
        address(k, self.record, at::OUT)
    }

    /// The two factors of a matrix's sums.
    pub fn factors(&self, k: &mut Builder, matrix: u32) -> [Reg<F32>; 2] {
        factors(k, self.record, matrix)
    }
}
