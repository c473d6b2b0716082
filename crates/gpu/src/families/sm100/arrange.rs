//! Tokens in slabs, made on the device: codes, as they come, are copied to where the tensor cores want them, and so are
//! their scales.
//!
//! Nothing is dequantised. What `slabs` says of weights holds of tokens; but that tiles of C, not blocks of 128 rows,
//! have scale blocks of their own, so that a tile may begin at any multiple of eight tokens.
//!
//! A thread takes 64 of k of one token: 32 bytes of codes and four scales. A block takes a slab of 32 tokens of a tile,
//! and four blocks the slab of a tile, also where it has fewer tokens: all scales of a tile are copied, so all of them
//! are written.

use ptx::instr::Width;
use ptx::{Addr, Builder, Error, Global, Kernel, LaunchBounds, ParamTable, Reg, SpecialRegister, Target, U32, U64};

use super::slabs::{BLOCK_ROWS, DEPTH, PERIOD_ROWS, ROW_BYTES, SCALE_BYTES, UNIT, UNIT_SCALES, UNITS};
use crate::launch::Spec;
use crate::phases::table::{RECORD_BYTES, address, at, locate};

/// Threads of a block.
const THREADS: u32 = 128;
/// Tokens of a block.
const BLOCK_TOKENS: u32 = THREADS / UNITS;
/// Blocks of a slab of a tile.
const TILE_BLOCKS: u32 = BLOCK_ROWS / BLOCK_TOKENS;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrangeSpec {
    /// Rows that tiles are filled up to with zeros.
    pub padding: Padding,
    /// Groups that a launch may have.
    pub groups: u32,
    /// What it is assembled for.
    pub target: Target,
}

/// What a tile's tokens are filled up to with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// 128 rows: tokens are the rows of a multiplication.
    Rows,
    /// Eight: tokens are its columns, eight at most.
    FewColumns,
    /// Sixteen: tokens are its columns; of a pair's, eight at a time for each block.
    Columns,
}

impl Padding {
    /// Rows of codes of `m` tokens in so many tiles.
    pub fn code_rows(self, m: u32, tiles: u32) -> u32 {
        match self {
            Padding::Rows => tiles * BLOCK_ROWS,
            Padding::FewColumns => m.next_multiple_of(PERIOD_ROWS),
            Padding::Columns => m.next_multiple_of(2 * PERIOD_ROWS),
        }
    }

    /// The same, computed by a kernel.
    pub(super) fn rows(self, k: &mut Builder, m: Reg<U32>, tiles: Reg<U32>) -> Reg<U32> {
        match self {
            Padding::Rows => k.mul(tiles, BLOCK_ROWS),
            Padding::FewColumns => round_up(k, m, PERIOD_ROWS),
            Padding::Columns => round_up(k, m, 2 * PERIOD_ROWS),
        }
    }

    /// Bytes of `m` tokens in so many tiles.
    pub fn bytes(self, m: u32, tiles: u32, k: u32) -> u64 {
        let slab =
            u64::from(self.code_rows(m, tiles)) * u64::from(ROW_BYTES) + u64::from(tiles) * u64::from(SCALE_BYTES);
        u64::from(k.div_ceil(DEPTH)) * slab
    }
}

/// A number rounded up to a multiple of a power of two.
fn round_up(k: &mut Builder, number: Reg<U32>, step: u32) -> Reg<U32> {
    let beyond = k.add(number, step - 1);
    k.and(beyond, !(step - 1))
}

/// Bytes of a slab of tokens, from its rows of codes and its tiles, computed by a kernel.
pub(super) fn slab_bytes(k: &mut Builder, rows: Reg<U32>, tiles: Reg<U32>) -> Reg<U64> {
    let scales = k.mul_wide(tiles, SCALE_BYTES);
    k.mul_wide_add(rows, ROW_BYTES, scales)
}

/// Blocks for so many tiles of a group.
pub fn blocks(tiles: u32, k: u32) -> u32 {
    tiles * k.div_ceil(DEPTH) * TILE_BLOCKS
}

impl Spec for ArrangeSpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// A thread's token: where it is in its tile, in its group, and in the slabs.
struct Place {
    /// The token's row among those of its tile, and the tile.
    local: Reg<U32>,
    tile: Reg<U32>,
    /// Its row in its group.
    row: Reg<U32>,
    /// The slab, and the unit of 64 in it.
    slab: Reg<U32>,
    unit: Reg<U32>,
}

/// Builds the kernel. Its arguments, in order: the table of groups (addresses are those of codes, scales and slabs;
/// tiles are blocks of this kernel), and the number of blocks.
pub fn kernel(config: ArrangeSpec) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("arrange", config.target, launch);
    let table = k.table("groups", config.groups * RECORD_BYTES / 4);
    let _: Reg<U32> = k.param("blocks");
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    k.launch_dependents();
    k.grid_dependency_wait();
    let (_, record) = locate(&mut k, table, config.groups, block);
    let place = k.phase("place", |k| find(k, record, block, thread));
    let blocks = k.phase("load", |k| [0, 1, 2, 3].map(|block| load(k, record, &place, block)));
    k.phase("store", |k| store(k, config, record, &place, blocks));
    k.finish()
}

fn find(k: &mut Builder, record: ParamTable, block: Reg<U32>, thread: Reg<U32>) -> Place {
    let [first, tile_tokens, depth] =
        [at::FIRST_TILE, at::TILE_TOKENS, at::K].map(|place| k.table_word::<U32>(record, place));
    let slabs = k.add(depth, DEPTH - 1);
    let slabs = k.shr(slabs, DEPTH.trailing_zeros());
    let inside = k.sub(block, first);
    let (quarter, number) = (k.and(inside, TILE_BLOCKS - 1), k.shr(inside, TILE_BLOCKS.trailing_zeros()));
    let (tile, slab) = (k.div(number, slabs), k.rem(number, slabs));
    let within = k.shr(thread, UNITS.trailing_zeros());
    let local = k.mul_add(quarter, BLOCK_TOKENS, within);
    Place { local, tile, row: k.mul_add(tile, tile_tokens, local), slab, unit: k.and(thread, UNITS - 1) }
}

/// A block of 16: two words of codes with its scale's sign in them, and the scale without. Zeros where there is none.
fn load(k: &mut Builder, record: ParamTable, place: &Place, block: u32) -> ([Reg<U32>; 2], Reg<U32>) {
    let [tile_tokens, m, depth] = [at::TILE_TOKENS, at::M, at::K].map(|place| k.table_word::<U32>(record, place));
    let unit = k.mul_add(place.slab, UNITS, place.unit);
    let column = k.mul(unit, UNIT);
    let column = k.add(column, 16 * block);
    let (within, exists, inside) = (k.lt(place.local, tile_tokens), k.lt(place.row, m), k.lt(column, depth));
    let there = k.both(within, exists);
    let there = k.both(there, inside);
    let (row_blocks, number) = (k.shr(depth, 4), k.shr(column, 4));
    let number: Reg<U64> = k.convert(number);
    let number = k.mul_wide_add(place.row, row_blocks, number);
    let (codes, scales) = (address(k, record, at::GATE), address(k, record, at::GATE + 8));
    let (codes, scale_at) = (k.mul_add(number, 8u64, codes), k.add(scales, number));
    let (words, scale) = ([k.variable(0u32), k.variable(0u32)], k.variable(0u32));
    k.when(there, |k| {
        for (word, offset) in words.into_iter().zip([0, 4]) {
            let loaded: Reg<U32> = k.load(Addr::<Global>::of(codes).plus(offset));
            k.set(word, loaded);
        }
        let loaded = k.load_narrow::<Global>(Width::B8, Addr::of(scale_at));
        k.set(scale, loaded);
    });
    let any = k.or(words[0], words[1]);
    let any = k.and(any, 0x7777_7777);
    let empty = k.eq(any, 0);
    let sign = k.and(scale, 0x80);
    let negative = k.ne(sign, 0);
    let flip = k.select(negative, 0x8888_8888u32, 0u32);
    let magnitude = k.and(scale, 0x7f);
    (words.map(|word| k.xor(word, flip)), k.select(empty, 0u32, magnitude))
}

fn store(
    k: &mut Builder,
    config: ArrangeSpec,
    record: ParamTable,
    place: &Place,
    blocks: [([Reg<U32>; 2], Reg<U32>); 4],
) {
    let [tiles, m] = [at::TOKEN_TILES, at::M].map(|place| k.table_word::<U32>(record, place));
    let rows = config.padding.rows(k, m, tiles);
    let (start, slab): (Reg<U64>, Reg<U64>) = (address(k, record, at::OUT), k.convert(place.slab));
    let slab_bytes = slab_bytes(k, rows, tiles);
    let start = k.mul_add(slab, slab_bytes, start);
    let scales = k.mul_wide_add(rows, ROW_BYTES, start);
    let scales = k.mul_wide_add(place.tile, SCALE_BYTES, scales);
    let scales = k.mul_wide_add(place.unit, UNIT_SCALES, scales);
    let (lane, quarter) = (k.and(place.local, 31), k.shr(place.local, 5));
    let scales = k.mul_wide_add(lane, 16, scales);
    let scales = k.mul_wide_add(quarter, 4, scales);
    let [first, second, third, fourth] = blocks.map(|(_, scale)| scale);
    let (low, high) = (k.mul_add(second, 1u32 << 8, first), k.mul_add(fourth, 1u32 << 8, third));
    let word = k.mul_add(high, 1u32 << 16, low);
    k.store(Addr::<Global>::of(scales), word);
    // Rows that no multiplication reads have no codes.
    let tile_tokens = k.table_word::<U32>(record, at::TILE_TOKENS);
    let (within, exists) = match config.padding {
        Padding::Rows => (k.lt(place.local, BLOCK_ROWS), k.lt(place.row, rows)),
        Padding::FewColumns | Padding::Columns => (k.lt(place.local, tile_tokens), k.lt(place.row, rows)),
    };
    let there = k.both(within, exists);
    let row = k.mul_wide_add(place.row, ROW_BYTES, start);
    let turn = k.and(place.local, PERIOD_ROWS - 1);
    for half in 0..2 {
        let piece = k.mul_add(place.unit, 2, half);
        let piece = k.xor(piece, turn);
        let at = k.mul_wide_add(piece, 16, row);
        let [(first, _), (second, _)] = [blocks[2 * half as usize], blocks[2 * half as usize + 1]];
        k.when(there, |k| k.store_vector(Addr::<Global>::of(at), [first[0], first[1], second[0], second[1]]));
    }
}
