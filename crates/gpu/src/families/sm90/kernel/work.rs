//! The groups of a launch, and the tiles they are cut into.
//!
//! Tiles are numbered through all groups of the launch's table (`crate::table`); within a group, tiles of the same columns are
//! neighbours, so that blocks which run together read the same weights.

use ptx::{Builder, F32, ParamTable, Reg, SpecialRegister, TensorMapAddress, TensorMapParam, U32, U64};

use super::{MultiplySpec, UNIT};
use crate::table::{RECORD_BYTES, address, at, factors, locate};
use op::Schedule;

/// The arguments that describe the work.
pub(super) struct Work {
    config: MultiplySpec,
    maps: TensorMapParam,
    table: ParamTable,
    tiles: Reg<U32>,
    /// The gate's limit.
    pub clamp: Reg<F32>,
}

/// A tile, as far as all who work on it need to know.
pub(super) struct Tile {
    record: ParamTable,
    group: Reg<U32>,
    /// First token of the tile within its group.
    pub first_token: Reg<U32>,
    /// Tokens of the tile.
    pub tokens: Reg<U32>,
    /// Tokens of the group's largest tile.
    pub most_tokens: Reg<U32>,
    /// First column of the tile.
    pub column: Reg<U32>,
    /// Columns of the group.
    pub n: Reg<U32>,
    /// Units along k of the group.
    pub depth: Reg<U32>,
    /// The part of k that this block sums.
    pub share: Share,
}

/// A part of k: some stages, and the units in them. Only the last stage of all may hold fewer units than the others.
pub(super) struct Share {
    /// First stage, if it is not the group's first.
    pub first: Option<Reg<U32>>,
    /// Stages.
    pub stages: Reg<U32>,
    /// Units.
    pub units: Reg<U32>,
}

impl Work {
    pub fn declare(k: &mut Builder, config: MultiplySpec) -> Self {
        Work {
            config,
            maps: k.tensor_maps("tokens", config.groups),
            table: k.table("groups", config.groups * RECORD_BYTES / 4),
            tiles: k.param("tiles"),
            clamp: k.param("clamp"),
        }
    }

    /// `body` for each tile of this block, with the tile's number among the block's own: blocks take every so-many-th tile.
    pub fn each_tile(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, Tile, Reg<U32>)) {
        let block = k.special(SpecialRegister::CtaidX);
        match self.config.schedule {
            Schedule::PerTile => {
                let tile = self.find(k, block);
                let round = k.variable(0);
                body(k, tile, round);
            }
            Schedule::SplitK => {
                let number = k.shr(block, 1);
                let tile = self.find(k, number);
                let round = k.variable(0);
                body(k, tile, round);
            }
            Schedule::Persistent => {
                let blocks = k.special(SpecialRegister::NctaidX);
                let (number, round) = (k.variable(block), k.variable(0));
                k.repeat_while(|k| {
                    let tile = self.find(k, number);
                    body(k, tile, round);
                    let (next, following) = (k.add(number, blocks), k.add(round, 1));
                    k.set(number, next);
                    k.set(round, following);
                    k.lt(number, self.tiles)
                });
            }
        }
    }

    /// Finds a tile in its group. A block beyond the last tile does the work of one of the first over again, and has no
    /// tokens to store.
    fn find(&self, k: &mut Builder, number: Reg<U32>) -> Tile {
        let beyond = (self.config.resident() > 1).then(|| k.ge(number, self.tiles));
        let number = match beyond {
            Some(beyond) => {
                let again = k.sub(number, self.tiles);
                k.select(beyond, again, number)
            }
            None => number,
        };
        let (group, record) = locate(k, self.table, self.config.groups, number);
        let word = |k: &mut Builder, place| -> Reg<U32> { k.table_word(record, place) };
        let first_tile = word(k, at::FIRST_TILE);
        let (token_tiles, tile_tokens) = (word(k, at::TOKEN_TILES), word(k, at::TILE_TOKENS));
        let inside = k.sub(number, first_tile);
        let [column_tile, token_tile] = self.split(k, inside, token_tiles);
        let first_token = k.mul(token_tile, tile_tokens);
        let m = word(k, at::M);
        let left = k.sub(m, first_token);
        let tokens = k.min(left, tile_tokens);
        let tokens = beyond.map_or(tokens, |beyond| k.select(beyond, 0, tokens));
        let depth = word(k, at::K);
        let depth = k.add(depth, UNIT - 1);
        let depth = k.shr(depth, UNIT.trailing_zeros());
        Tile {
            record,
            group,
            first_token,
            tokens,
            most_tokens: tile_tokens,
            column: k.mul(column_tile, self.config.columns),
            n: word(k, at::N),
            depth,
            share: self.share(k, depth),
        }
    }

    /// A tile's place along the columns and along the tokens. Few tokens make one tile, and a division takes long.
    fn split(&self, k: &mut Builder, inside: Reg<U32>, token_tiles: Reg<U32>) -> [Reg<U32>; 2] {
        let (column, token) = (k.variable(inside), k.variable(0));
        let several = k.gt(token_tiles, 1);
        k.if_(several, |k| {
            let (quotient, rest) = (k.div(inside, token_tiles), k.rem(inside, token_tiles));
            k.set(column, quotient);
            k.set(token, rest);
        });
        [column, token]
    }

    /// What of k this block sums: all of it, or one half, in whole stages.
    fn share(&self, k: &mut Builder, depth: Reg<U32>) -> Share {
        let units = self.config.units;
        let stages = k.add(depth, units - 1);
        let stages = k.shr(stages, units.trailing_zeros());
        if self.config.schedule != Schedule::SplitK {
            return Share { first: None, stages, units: depth };
        }
        let rank = k.special(SpecialRegister::ClusterCtaRank);
        let second = k.ne(rank, 0);
        let half = k.add(stages, 1);
        let half = k.shr(half, 1);
        let units_before = k.mul(half, units);
        let before = k.min(units_before, depth);
        let (rest, units_after) = (k.sub(stages, half), k.sub(depth, before));
        Share {
            first: Some(k.select(second, half, 0)),
            stages: k.select(second, rest, half),
            units: k.select(second, units_after, before),
        }
    }

    /// The tensor map of a tile's tokens.
    pub fn map(&self, k: &mut Builder, tile: &Tile) -> Reg<TensorMapAddress> {
        if self.config.groups == 1 { k.tensor_map_address(self.maps) } else { k.tensor_map_at(self.maps, tile.group) }
    }
}

impl Tile {
    /// Where a matrix's packed weights are: 0 is the gate's, 1 the up matrix's.
    pub fn weights(&self, k: &mut Builder, matrix: u32) -> Reg<U64> {
        address(k, self.record, at::GATE + 8 * matrix)
    }

    /// Where C is.
    pub fn out(&self, k: &mut Builder) -> Reg<U64> {
        address(k, self.record, at::OUT)
    }

    /// The two factors of a matrix's sums.
    pub fn factors(&self, k: &mut Builder, matrix: u32) -> [Reg<F32>; 2] {
        factors(k, self.record, matrix)
    }
}
