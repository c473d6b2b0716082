//! The groups of a launch, and the tiles they are cut into. The table of groups is the one that all kernels share; a
//! second one, or tensor maps, say where their tokens are. The experts of a layer, whose numbers of tokens only the
//! device knows, have one shape and stand in a layout in the device's memory, which a block copies to shared memory
//! when it begins.

use ptx::{Builder, F32, ParamTable, Reg, SpecialRegister, TensorMapAddress, TensorMapParam, U32, U64};

use super::{Parts, Place, Products, TensorMultiplySpec};
use crate::families::sm100::arrange;
use crate::families::sm100::slabs::{BLOCK_ROWS, ROW_BYTES, SCALE_BYTES, UNIT};
use crate::phases::experts::{ExpertTiles, ExpertWork};
use crate::phases::groups::{GroupTable, Groups};
use crate::phases::owner::Owner;
use crate::phases::table::{address, at};
use op::Schedule;

/// Words of a group in the table of tokens: an address.
pub const TOKEN_WORDS: u32 = 2;
/// Tensor maps of shared slabs: of codes, and of scales.
const SLAB_MAPS: u32 = 2;

/// The arguments that describe the work.
pub(super) struct Work {
    config: TensorMultiplySpec,
    place: Place,
    tokens: TokenPlaces,
    pub groups: Groups,
    /// The gate's limit.
    pub clamp: Reg<F32>,
}

/// What says where tokens are.
enum TokenPlaces {
    /// The addresses of their slabs; where two pairs share them, the tensor maps of all slabs, and addresses from
    /// there.
    Slabs(ParamTable, Option<TensorMapParam>),
    /// Tensor maps.
    Maps(TensorMapParam),
}

/// A tile, as far as all who work on it need to know.
pub(super) struct Tile {
    pub owner: Owner,
    /// Which of the block's tiles it is.
    pub round: Reg<U32>,
    /// The number of its group.
    group: Reg<U32>,
    /// Which of the group's tiles along its tokens, and how many there are.
    token_tile: Reg<U32>,
    token_tiles: Reg<U32>,
    /// First token of the tile within its group.
    pub first_token: Reg<U32>,
    /// Tokens of the tile.
    pub tokens: Reg<U32>,
    /// Tokens and columns of the group.
    pub m: Reg<U32>,
    pub n: Reg<U32>,
    /// First column of the tile.
    pub column: Reg<U32>,
    /// The part of k that this block sums: its first step of a stage's depth, steps, and units of 64 in them.
    pub first_step: Reg<U32>,
    pub steps: Reg<U32>,
    pub units: Reg<U32>,
    /// Which of the two parts it is, where two blocks share k.
    pub half: Option<Reg<U32>>,
}

/// Where rows of an operand are: the first row, codes and the block of scales of the first slab, and bytes from slab to
/// slab.
pub(super) struct Rows {
    pub first: Reg<U32>,
    pub codes: Reg<U64>,
    pub scales: Reg<U64>,
    pub stride: Reg<U64>,
}

impl Work {
    pub fn declare(k: &mut Builder, config: TensorMultiplySpec, place: Place) -> Self {
        let tokens = match config.element {
            None => {
                let places = k.table("tokens", config.groups * TOKEN_WORDS);
                TokenPlaces::Slabs(places, config.shares().then(|| k.tensor_maps("slabs", SLAB_MAPS)))
            }
            Some(_) => TokenPlaces::Maps(k.tensor_maps("tokens", config.groups)),
        };
        let matrices = if config.products == Products::Single { 1 } else { 2 };
        let (columns, threads, biased) = (config.columns, config.threads(), config.biased);
        let tiles = ExpertTiles { columns, threads, matrices, biased, rounded: false, by_column: false };
        let groups = Groups::declare(k, config.groups, config.experts, tiles);
        Work { config, place, tokens, groups, clamp: k.param("clamp") }
    }

    /// `body` for each tile of this block: its own, or every tile at a stride of the grid's size.
    pub fn each_tile(&self, k: &mut Builder, body: impl FnOnce(&mut Builder, Tile)) {
        let table = match &self.groups {
            Groups::Table(table) => *table,
            Groups::Experts(work) => {
                let round = k.variable(0);
                return work.each_tile(k, |k, number| {
                    let tile = self.find_expert(k, work, number, round);
                    body(k, tile);
                    let following = k.add(round, 1);
                    k.set(round, following);
                });
            }
        };
        let block = k.special(SpecialRegister::CtaidX);
        // Blocks of a pair have the same tiles, and pairs that share tokens neighbouring ones.
        let pairing = self.config.cluster_blocks().trailing_zeros();
        let block = if self.config.paired() { k.shr(block, pairing) } else { block };
        let round = k.variable(0);
        match self.config.schedule {
            Schedule::PerTile => {
                let tile = self.find(k, table, block, round, None);
                body(k, tile);
            }
            Schedule::SplitK => {
                let (number, half) = (k.shr(block, 1), k.and(block, 1));
                let tile = self.find(k, table, number, round, Some(half));
                body(k, tile);
            }
            Schedule::Persistent => {
                let blocks = k.special(SpecialRegister::NctaidX);
                let blocks = if self.config.paired() { k.shr(blocks, pairing) } else { blocks };
                let number = k.variable(block);
                k.repeat_while(|k| {
                    let tile = self.find(k, table, number, round, None);
                    body(k, tile);
                    let (next, following) = (k.add(number, blocks), k.add(round, 1));
                    k.set(number, next);
                    k.set(round, following);
                    k.lt(number, table.tiles)
                });
            }
        }
    }

    fn find_expert(&self, k: &mut Builder, work: &ExpertWork, number: Reg<U32>, round: Reg<U32>) -> Tile {
        let found = work.locate(k, number);
        let (column_tile, token_tile) =
            (k.div(found.inside, found.token_tiles), k.rem(found.inside, found.token_tiles));
        let before = k.mul(token_tile, self.config.tokens);
        let left = k.sub(found.m, before);
        let [first_step, steps, units] = self.share(k, work.k, None);
        Tile {
            round,
            group: found.expert.index,
            owner: Owner::Expert(found.expert),
            token_tile,
            token_tiles: found.token_tiles,
            first_token: k.add(found.first_row, before),
            tokens: k.min(left, self.config.tokens),
            m: found.m,
            n: work.n,
            column: k.mul(column_tile, self.config.columns),
            first_step,
            steps,
            units,
            half: None,
        }
    }

    fn find(
        &self,
        k: &mut Builder,
        table: GroupTable,
        number: Reg<U32>,
        round: Reg<U32>,
        half: Option<Reg<U32>>,
    ) -> Tile {
        let (group, record, owner) = table.locate(k, number);
        let [first_tile, token_tiles, tile_tokens, m, n, depth] =
            [at::FIRST_TILE, at::TOKEN_TILES, at::TILE_TOKENS, at::M, at::N, at::K]
                .map(|place| k.table_word::<U32>(record, place));
        let inside = k.sub(number, first_tile);
        let (column_tile, token_tile) = (k.div(inside, token_tiles), k.rem(inside, token_tiles));
        let first_token = k.mul(token_tile, tile_tokens);
        let left = k.sub(m, first_token);
        let [first_step, steps, units] = self.share(k, depth, half);
        let (first_column, tokens) = (k.mul(column_tile, self.config.shared_columns()), k.min(left, tile_tokens));
        let (column, tokens) = self.own_columns(k, n, first_column, tokens);
        Tile {
            owner,
            round,
            group,
            token_tile,
            token_tiles,
            first_token,
            tokens,
            m,
            n,
            column,
            first_step,
            steps,
            units,
            half,
        }
    }

    /// The first column of this pair's tile, and its tokens. Where the other pair has the group's last columns there
    /// are none left for this one, which still brings its part of the tokens: it computes the other one's tile as well,
    /// of no tokens.
    fn own_columns(&self, k: &mut Builder, n: Reg<U32>, first: Reg<U32>, tokens: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
        let Some(pair) = self.place.pair else { return (first, tokens) };
        let own = k.mul_add(pair, self.config.columns, first);
        let there = k.lt(own, n);
        (k.select(there, own, first), k.select(there, tokens, 0u32))
    }

    /// What of k this block sums, in whole stages: all, or one half.
    fn share(&self, k: &mut Builder, depth: Reg<U32>, half: Option<Reg<U32>>) -> [Reg<U32>; 3] {
        let units = k.add(depth, UNIT - 1);
        let units = k.shr(units, UNIT.trailing_zeros());
        let steps = k.add(depth, self.config.depth() - 1);
        let steps = k.shr(steps, self.config.depth().trailing_zeros());
        let Some(half) = half else { return [k.variable(0), steps, units] };
        let second = k.ne(half, 0);
        let first = k.add(steps, 1);
        let first = k.shr(first, 1);
        let before = k.mul(first, self.config.depth() / UNIT);
        let before = k.min(before, units);
        let (rest, behind) = (k.sub(steps, first), k.sub(units, before));
        [k.select(second, first, 0u32), k.select(second, rest, first), k.select(second, behind, before)]
    }

    /// The tensor map of a tile's tokens, if they have one.
    pub fn map(&self, k: &mut Builder, tile: &Tile) -> Option<Reg<TensorMapAddress>> {
        match self.tokens {
            TokenPlaces::Slabs(..) => None,
            TokenPlaces::Maps(maps) if self.config.groups == 1 => Some(k.tensor_map_address(maps)),
            TokenPlaces::Maps(maps) => Some(k.tensor_map_at(maps, tile.group)),
        }
    }

    /// The tensor maps of slabs that two pairs share: of codes, and of scales.
    pub fn slab_maps(&self, k: &mut Builder) -> Option<[Reg<TensorMapAddress>; 2]> {
        let TokenPlaces::Slabs(_, maps) = self.tokens else { return None };
        let codes = k.tensor_map_address(maps?);
        let scales = k.variable(1);
        Some([codes, k.tensor_map_at(maps?, scales)])
    }

    /// Where a block's tokens of a tile are, from `first` on, if they are in slabs.
    pub fn tokens(&self, k: &mut Builder, parts: &Parts, tile: &Tile, first: Reg<U32>) -> Option<Rows> {
        let TokenPlaces::Slabs(table, _) = self.tokens else { return None };
        let place = k.table_row(table, tile.group, TOKEN_WORDS * 4);
        let tokens = address(k, place, 0);
        // A tile of a pair whose rows are tokens is arranged as two, one per block.
        let (scale_tile, scale_tiles) = if self.config.paired() && !self.config.swapped() {
            let (before, tiles) = (k.shl(tile.token_tile, 1), k.shl(tile.token_tiles, 1));
            (parts.own(k, 1u32, before), tiles)
        } else {
            (tile.token_tile, tile.token_tiles)
        };
        let rows = self.config.padding().rows(k, tile.m, scale_tiles);
        let stride = arrange::slab_bytes(k, rows, scale_tiles);
        let start = self.start(k, tile, tokens, stride);
        let scales = k.mul_wide_add(rows, ROW_BYTES, start);
        Some(Rows {
            first,
            codes: k.mul_wide_add(first, ROW_BYTES, start),
            scales: k.mul_wide_add(scale_tile, SCALE_BYTES, scales),
            stride,
        })
    }

    /// Where the first slab of a tile's share begins; of all of k, where stages are less than a slab.
    fn start(&self, k: &mut Builder, tile: &Tile, address: Reg<U64>, stride: Reg<U64>) -> Reg<U64> {
        if self.config.element.is_some() {
            return address;
        }
        let first: Reg<U64> = k.convert(tile.first_step);
        k.mul_add(first, stride, address)
    }

    /// Where a block's weights of a tile are: matrix 0 is the gate's, 1 the up matrix's. Scales are those of a whole
    /// block of rows: of this block's, where weights are the rows of a multiplication, and of the tile's where they are
    /// its columns.
    pub fn weights(&self, k: &mut Builder, parts: &Parts, tile: &Tile, matrix: u32) -> Rows {
        let blocks = k.add(tile.n, BLOCK_ROWS - 1);
        let blocks = k.shr(blocks, BLOCK_ROWS.trailing_zeros());
        let stride = k.mul_wide(blocks, BLOCK_ROWS * ROW_BYTES + SCALE_BYTES);
        let matrix = tile.owner.weights(k, matrix);
        let start = self.start(k, tile, matrix, stride);
        let scales = k.mul_wide_add(blocks, BLOCK_ROWS * ROW_BYTES, start);
        let mut first = parts.own(k, self.config.weight_rows(), tile.column);
        if self.config.paired() && self.config.swapped() {
            // Behind the last rows there are none: the second block repeats the first's, for nobody.
            let last = k.sub(blocks, 1);
            let last = k.shl(last, BLOCK_ROWS.trailing_zeros());
            first = k.min(first, last);
        }
        let scaled = if self.config.swapped() { first } else { tile.column };
        let block = k.shr(scaled, BLOCK_ROWS.trailing_zeros());
        let scales = k.mul_wide_add(block, SCALE_BYTES, scales);
        Rows { first, codes: k.mul_wide_add(first, ROW_BYTES, start), scales, stride }
    }
}
