//! Weights as numbers of 16 bits, made on the way to a stage: four warps read codes and scales from memory and leave
//! halves, or bfloat16, in shared memory as multiplications want them.
//!
//! Exact: a code times its scale has six significant bits, and all sums lack the same factor of 2⁷
//! ([`crate::pack::WEIGHT_FACTOR`]). A code's bits, brought to where a half has its sign, exponent and mantissa, are a
//! half of its value times 2⁻¹⁴; so are a scale's, times 2⁻⁸.
//!
//! A thread takes 32 of k of a row at a time: sixteen bytes of codes and two scales. It asks for those of the next
//! stage before it waits for the present one to be empty.

use ptx::instr::Width;
use ptx::{Addr, Bf16x2, Builder, F16x2, F32, Global, Pred, Reg, Shared, U32, U64};

use super::work::{Rows, Tile};
use super::{EXPANDING_THREADS, Parts};
use crate::families::choice::Tokens;
use crate::families::sm100::slabs::{BLOCK_ROWS, PERIOD_ROWS, ROW_BYTES, UNIT_SCALES, UNITS};

/// Rows of a stage that threads take one after the other are so many pieces of 32 of k.
const ROW_PIECES: u32 = 2;
/// 2¹⁵ twice, as halves.
const SCALE_FACTOR: u64 = 0x7800_7800;

/// Four warps fill the stages with weights.
pub(super) fn weights(k: &mut Builder, parts: &Parts, thread: Reg<U32>) {
    let turn = parts.pipe.start(k);
    parts.work.each_tile(k, |k, tile| {
        for pass in 0..parts.config.passes() {
            let pieces = pieces(k, parts, &tile, pass, thread);
            let unit = k.variable(tile.first_step);
            let ahead: Vec<Raw> = pieces.iter().map(|_| Raw::new(k)).collect();
            let load = |k: &mut Builder| {
                for (piece, raw) in pieces.iter().zip(&ahead) {
                    piece.load(k, unit, raw);
                }
            };
            load(k);
            k.repeat(tile.steps, |k, step| {
                let present: Vec<Raw> = ahead.iter().map(|raw| raw.copied(k)).collect();
                let (next, further) = (k.add(unit, 1), k.add(step, 1));
                k.set(unit, next);
                let more = k.lt(further, tile.steps);
                k.if_(more, load);
                parts.pipe.wait_empty(k, &turn);
                let [_, stage] = parts.pipe.codes(k, &turn);
                for (piece, raw) in pieces.iter().zip(&present) {
                    piece.store(k, parts, raw, stage);
                }
                parts.pipe.fill_by_thread(k, &turn);
                parts.pipe.advance(k, &turn);
            });
        }
    });
}

/// 32 of k of one row.
struct Piece {
    /// Where its row's codes are in the first slab, its scales, and bytes from slab to slab.
    codes: Reg<U64>,
    scales: Reg<U64>,
    stride: Reg<U64>,
    /// Which half of a unit it is, and the row's turn in the permutation of pieces.
    half: Reg<U32>,
    turn: Reg<U32>,
    /// Where the row begins, from where a stage's weights do.
    row_at: Reg<U32>,
    /// Whether there is such a piece, where that is a question.
    there: Option<Pred>,
}

/// Codes and scales as they come.
struct Raw {
    words: [Reg<U32>; 4],
    scales: Reg<U32>,
}

impl Raw {
    fn new(k: &mut Builder) -> Self {
        Raw { words: [0u32; 4].map(|zero| k.variable(zero)), scales: k.variable(0) }
    }

    fn copied(&self, k: &mut Builder) -> Self {
        Raw { words: self.words.map(|word| k.variable(word)), scales: k.variable(self.scales) }
    }
}

/// The pieces of a stage that a thread takes.
fn pieces(k: &mut Builder, parts: &Parts, tile: &Tile, pass: u32, thread: Reg<U32>) -> Vec<Piece> {
    let config = &parts.config;
    let first = if config.passes() > 1 { pass } else { 0 };
    let matrices: Vec<Rows> = (0..config.matrices()).map(|i| parts.work.weights(k, parts, tile, first + i)).collect();
    let (of_matrix, all) = (ROW_PIECES * config.weight_rows(), ROW_PIECES * config.weight_rows() * config.matrices());
    let taken = all.div_ceil(EXPANDING_THREADS);
    let piece = |k: &mut Builder, round: u32| {
        let number = k.add(thread, round * EXPANDING_THREADS);
        let there = (all < EXPANDING_THREADS).then(|| k.lt(number, all));
        let (half, row) = (k.and(number, ROW_PIECES - 1), k.shr(number, 1));
        let inside = k.and(row, config.weight_rows() - 1);
        let second = k.ge(number, of_matrix);
        let choose = |k: &mut Builder, of: &dyn Fn(&Rows) -> Reg<U64>| match &matrices[..] {
            [gate, up] => k.select(second, of(up), of(gate)),
            rows => of(&rows[0]),
        };
        let (codes, scales) = (choose(k, &|rows| rows.codes), choose(k, &|rows| rows.scales));
        let block_row = k.and(matrices[0].first, BLOCK_ROWS - 1);
        let block_row = k.add(block_row, inside);
        let (lane, quarter) = (k.and(block_row, 31), k.shr(block_row, 5));
        let scales = k.mul_wide_add(lane, 16, scales);
        let scales = k.mul_wide_add(quarter, 4, scales);
        Piece {
            codes: k.mul_wide_add(inside, ROW_BYTES, codes),
            scales: k.mul_wide_add(half, 2, scales),
            stride: matrices[0].stride,
            half,
            turn: k.and(inside, PERIOD_ROWS - 1),
            row_at: k.mul(row, ROW_BYTES),
            there,
        }
    };
    (0..taken).map(|round| piece(k, round)).collect()
}

/// `body`, where there is such a piece.
fn guarded(k: &mut Builder, there: Option<Pred>, body: impl FnOnce(&mut Builder)) {
    match there {
        Some(there) => k.when(there, body),
        None => body(k),
    }
}

impl Piece {
    /// Asks for the piece of a unit.
    fn load(&self, k: &mut Builder, unit: Reg<U32>, raw: &Raw) {
        let (slab, inside) = (k.shr(unit, UNITS.trailing_zeros()), k.and(unit, UNITS - 1));
        let slab: Reg<U64> = k.convert(slab);
        let number = k.mul_add(inside, 2, self.half);
        let number = k.xor(number, self.turn);
        let codes = k.mul_add(slab, self.stride, self.codes);
        let codes = k.mul_wide_add(number, 16, codes);
        let scales = k.mul_add(slab, self.stride, self.scales);
        let scales = k.mul_wide_add(inside, UNIT_SCALES, scales);
        guarded(k, self.there, |k| {
            let words: [Reg<U32>; 4] = k.load_vector(Addr::<Global>::of(codes));
            for (to, from) in raw.words.into_iter().zip(words) {
                k.set(to, from);
            }
            let loaded = k.load_narrow::<Global>(Width::B16, Addr::of(scales));
            k.set(raw.scales, loaded);
        });
    }

    /// Leaves it in a stage: four pieces of eight numbers.
    fn store(&self, k: &mut Builder, parts: &Parts, raw: &Raw, stage: Reg<U32>) {
        let row = k.add(stage, self.row_at);
        let first = k.shl(self.half, 2);
        let scales = [k.and(raw.scales, 0xff), k.shr(raw.scales, 8)].map(|scale| scale_pair(k, scale));
        for (index, word) in (0..).zip(raw.words) {
            let pairs = [0, 1, 2, 3].map(|pair| numbers(k, parts, word, pair, scales[index as usize / 2]));
            let number = k.add(first, index);
            let number = k.xor(number, self.turn);
            let at = k.mul_add(number, 16, row);
            guarded(k, self.there, |k| k.store_vector(Addr::<Shared>::of(at), pairs));
        }
    }
}

/// A scale times 2⁷, twice.
fn scale_pair(k: &mut Builder, scale: Reg<U32>) -> Reg<F16x2> {
    let halves = k.mul(scale, 0x0080_0080u32).cast::<F16x2>();
    let factor: Reg<F16x2> = k.bits(SCALE_FACTOR);
    k.mul(halves, factor)
}

/// Two neighbouring weights of a word, times 2⁻⁷.
fn numbers(k: &mut Builder, parts: &Parts, word: Reg<U32>, pair: u32, scale: Reg<F16x2>) -> Reg<U32> {
    let byte = k.bit_extract(word, 8 * pair, 8);
    // The first code's bits to the lower half, the second's to the upper.
    let spread = k.mul(byte, 0x1001u32);
    let (magnitude, sign) = (k.and(spread, 0x0007_0007), k.and(spread, 0x0008_0008));
    let (magnitude, sign) = (k.shl(magnitude, 9), k.shl(sign, 12));
    let codes = k.or(magnitude, sign).cast::<F16x2>();
    let product: Reg<F16x2> = k.mul(codes, scale);
    match parts.config.element {
        Some(Tokens::Bf16 | Tokens::Bf16Sum) => {
            let [low, high]: [Reg<F32>; 2] = k.unpack_pair(product).map(|half| k.convert(half));
            k.convert_pair::<Bf16x2>(low, high).cast()
        }
        _ => product.cast(),
    }
}
