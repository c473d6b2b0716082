//! NVFP4 tokens in the order in which `mma.sync` with block scales reads them: the codes stay codes.
//!
//! Tokens come row by row, k/2 bytes of codes and k/16 of scales in each, and neither rows nor scales begin where a
//! copy of sixteen bytes may. Here they become *strips* of 8 rows × 64 of k, `[⌈m/8⌉][⌈k/64⌉]` of them one after
//! another: 256 bytes of codes, for each lane its two words, and the 8 rows' words of scales. That is a quarter of a
//! chunk of weights, in the same order ([`crate::pack`]). Rows beyond m and columns beyond k are zeros. A negative
//! scale is made positive and its sign given to the codes, since tensor cores take scales without one.
//!
//! A thread makes one row of one strip. All groups are one launch, as many as the table of groups holds.

use op::Shape;
use ptx::instr::Width;
use ptx::{Addr, Builder, Error, Feature, Global, Kernel, LaunchBounds, Reg, SpecialRegister, Target, U32, U64};

use super::super::choice::{MOST_GROUPS, capacity};
use crate::family::GroupOperands;
use crate::launch::{Argument, Launch, Spec};
use crate::pack::CHUNK_DEPTH;
use crate::phases::table::{self, RECORD_BYTES, Record, address, at, locate};

/// Rows of a strip, and its bytes of codes and in all.
const STRIP_ROWS: usize = 8;
const STRIP_CODES: u32 = crate::pack::CODE_BYTES / 4;
const STRIP_BYTES: u32 = crate::pack::CHUNK_BYTES / 4;
/// Threads of a block.
const THREADS: u32 = 128;
/// Blocks of 16 along k in a strip.
const BLOCKS: usize = CHUNK_DEPTH / format::BLOCK;

/// Bytes that so many rows of so many columns take.
pub(super) fn arranged_bytes(rows: usize, k: usize) -> usize {
    rows.div_ceil(STRIP_ROWS) * k.div_ceil(CHUNK_DEPTH) * STRIP_BYTES as usize
}

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrangeSpec {
    /// Groups that a launch may have.
    pub groups: u32,
    /// What it is assembled for.
    pub target: Target,
}

impl Spec for ArrangeSpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// The launches that arrange all groups' tokens, each to its place: a group has a shape, where its tokens are, and an
/// address.
pub(super) fn launches(target: Target, groups: &[(Shape, GroupOperands, u64)]) -> Vec<Launch> {
    groups.chunks(MOST_GROUPS).map(|groups| launch(target, groups)).collect()
}

fn launch(target: Target, groups: &[(Shape, GroupOperands, u64)]) -> Launch {
    let spec = ArrangeSpec { groups: capacity(groups.len()), target };
    let (mut records, mut blocks) = (Vec::new(), 0u32);
    for (shape, operands, to) in groups {
        records.push(Record {
            first_tile: blocks,
            token_tiles: 1,
            tile_tokens: 1,
            m: shape.m as u32,
            n: 1,
            k: shape.k as u32,
            addresses: [operands.tokens, operands.token_scales, *to],
            factors: [[1.0; 2]; 2],
        });
        let rows = arranged_bytes(shape.m, shape.k) / STRIP_BYTES as usize * STRIP_ROWS;
        blocks += rows.div_ceil(THREADS as usize) as u32;
    }
    let arguments = vec![Argument::Words(table::words(&records, spec.groups))];
    let overlapping = target.has(Feature::GridDependency);
    Launch { kernel: spec.into(), grid: [blocks, 1, 1], arguments, overlapping, strided: false }
}

/// Builds the kernel. Its argument is the table of groups: addresses are those of the codes, the scales and the strips,
/// and tiles are blocks.
pub fn kernel(config: ArrangeSpec) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("arrange_nvfp4", config.target, launch);
    let table = k.table("groups", config.groups * RECORD_BYTES / 4);
    if config.target.has(Feature::GridDependency) {
        k.launch_dependents();
        k.grid_dependency_wait();
    }
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let (_, record) = locate(&mut k, table, config.groups, block);
    let [first, m, depth] = [at::FIRST_TILE, at::M, at::K].map(|place| k.table_word::<U32>(record, place));
    let [codes, scales, target] = [0, 1, 2].map(|index| address(&mut k, record, at::GATE + 8 * index));
    let units = k.add(depth, CHUNK_DEPTH as u32 - 1);
    let units = k.shr(units, CHUNK_DEPTH.trailing_zeros());
    let within = k.sub(block, first);
    let item = k.mul_add(within, THREADS, thread);
    let (strip, lane_row) = (k.shr(item, STRIP_ROWS.trailing_zeros()), k.and(item, STRIP_ROWS as u32 - 1));
    let (of_rows, unit) = (k.div(strip, units), k.rem(strip, units));
    let row = k.mul_add(of_rows, STRIP_ROWS as u32, lane_row);
    let rows = k.add(m, STRIP_ROWS as u32 - 1);
    let rows = k.and(rows, !(STRIP_ROWS as u32 - 1));
    let exists = k.lt(row, rows);
    k.if_(exists, |k| {
        let from = Source { codes, scales, row, m, depth, first: k.shl(unit, CHUNK_DEPTH.trailing_zeros()) };
        let blocks: [Block; BLOCKS] = k.phase("load", |k| std::array::from_fn(|block| from.block(k, block as u32)));
        k.phase("store", |k| {
            let at = k.mul_wide_add(strip, STRIP_BYTES, target);
            store(k, at, lane_row, &blocks);
        });
    });
    k.finish()
}

/// One row's tokens, from a column on.
struct Source {
    codes: Reg<U64>,
    scales: Reg<U64>,
    row: Reg<U32>,
    m: Reg<U32>,
    depth: Reg<U32>,
    first: Reg<U32>,
}

/// Sixteen codes under one scale.
struct Block {
    words: [Reg<U32>; 2],
    scale: Reg<U32>,
}

impl Source {
    /// One of the unit's blocks, or zeros where there is none.
    fn block(&self, k: &mut Builder, number: u32) -> Block {
        let column = k.add(self.first, number * format::BLOCK as u32);
        let (inside, is_row) = (k.lt(column, self.depth), k.lt(self.row, self.m));
        let exists = k.both(inside, is_row);
        let (words, scale): ([Reg<U32>; 2], Reg<U32>) = ([k.variable(0u32), k.variable(0u32)], k.variable(0u32));
        let wide: Reg<U64> = k.convert(column);
        let element = k.mul_wide_add(self.row, self.depth, wide);
        let (code_at, scale_at) = (k.shr(element, 1), k.shr(element, format::BLOCK.trailing_zeros()));
        let (code_at, scale_at) = (k.add(code_at, self.codes), k.add(scale_at, self.scales));
        k.if_(exists, |k| {
            let found = k.load_narrow(Width::B8, Addr::<Global>::of(scale_at));
            let negative = k.ge(found, 0x80u32);
            let flip: Reg<U32> = k.select(negative, 0x8888_8888u32, 0u32);
            for (index, word) in words.into_iter().enumerate() {
                let codes: Reg<U32> = k.load(Addr::<Global>::of(code_at).plus(4 * index as i32));
                let codes = k.xor(codes, flip);
                let ordered = ordered(k, codes);
                k.set(word, ordered);
            }
            let magnitude = k.and(found, 0x7fu32);
            k.set(scale, magnitude);
        });
        Block { words, scale }
    }
}

/// Eight neighbours with those of even columns in the low half and those of odd columns in the high half.
fn ordered(k: &mut Builder, codes: Reg<U32>) -> Reg<U32> {
    const BYTES_0_AND_2: u32 = 0x6420;
    let odd = k.shr(codes, 4);
    let [even, odd] = [codes, odd].map(|nibbles| {
        let apart = k.and(nibbles, 0x0f0f_0f0fu32);
        let moved = k.shr(apart, 4);
        k.or(apart, moved)
    });
    k.permute(even, odd, BYTES_0_AND_2)
}

/// A row's codes, for each quarter of 32 columns one word of either half of the 64, and its scales.
fn store(k: &mut Builder, strip: Reg<U64>, row: Reg<U32>, blocks: &[Block; BLOCKS]) {
    // Quarter c of half h is the word c % 2 of block 2h + c / 2.
    let word = |quarter: usize, half: usize| blocks[2 * half + quarter / 2].words[quarter % 2];
    let at = k.mul_wide_add(row, STRIP_CODES / STRIP_ROWS as u32, strip);
    for quarters in [0, 2] {
        let words = [0, 1, 2, 3].map(|i| word(quarters + i / 2, i % 2));
        k.store_vector(Addr::<Global>::of(at).plus(8 * quarters as i32), words);
    }
    let scales = blocks.iter().enumerate().map(|(number, block)| (8 * number as u32, block.scale));
    let scales = scales.fold(None, |sum: Option<Reg<U32>>, (up, scale)| {
        let moved = k.shl(scale, up);
        Some(sum.map_or(moved, |sum| k.or(sum, moved)))
    });
    let at = k.mul_wide_add(row, 4, strip);
    if let Some(scales) = scales {
        k.store(Addr::<Global>::of(at).plus(STRIP_CODES.cast_signed()), scales);
    }
}
