//! NVFP4 tokens as small integers, for the kernels that have integer dot products.
//!
//! Twice an e2m1 value is an integer of at most ±12, so the dot product of two blocks of 16 is an exact integer and the
//! two block scales multiply it once. The instructions multiply unsigned with signed bytes: weights are looked up as
//! 2·w + 12, and every sum starts from −12·Σa, which takes the surplus off again, exactly.

use bytemuck::{Pod, Zeroable};
use format::{BLOCK, Matrix, e2m1, e4m3};

use super::pack::COLUMNS;
use op::Activations;

/// Twice the value of a code, plus 12.
pub(super) const WEIGHT_TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (2.0 * e2m1::VALUES[code] + 12.0) as u8;
        code += 1;
    }
    table
};

/// The order of k in which a lane's low nibbles, then its high nibbles, stand (see `pack`), for 16 of K.
const NIBBLE_ORDER: [usize; BLOCK] = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];

/// A block of 16 k × 16 columns: four vectors of four k a column, each weight as `WEIGHT_TABLE` has it, and the scales.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct IntegerBlock {
    pub weights: [[u8; 4 * COLUMNS]; 4],
    pub scales: [f32; COLUMNS],
}

impl IntegerBlock {
    /// A block of zeros.
    pub(super) const BLANK: Self = Self { weights: [[12; 4 * COLUMNS]; 4], scales: [0.0; COLUMNS] };
}

/// One block of one token.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct IntegerToken {
    /// Twice the values, four bytes per word, in the order of the weights' nibbles.
    pub values: [i32; 4],
    /// −12 times their sum.
    pub start: i32,
    /// The block's scale.
    pub scale: f32,
}

/// Both operands are doubled.
pub(super) const UNIT: f64 = 0.25;

/// Prepares one row of tokens.
pub(super) fn prepare(activations: &Activations<'_>, row: usize, out: &mut [IntegerToken]) {
    let Activations::NvFp4(matrix) = activations else { unreachable!("integer kernels are handed NVFP4 tokens") };
    prepare_row(matrix, row, out);
}

fn prepare_row(matrix: &Matrix<'_>, row: usize, out: &mut [IntegerToken]) {
    let codes = matrix.row_codes(row).chunks_exact(BLOCK / 2);
    for ((codes, &scale), out) in codes.zip(matrix.row_scales(row)).zip(out) {
        let value = |k: usize| (2.0 * e2m1::decode(codes[k / 2] >> (4 * (k % 2)))) as i8;
        let values = NIBBLE_ORDER.map(value);
        let word = |i: usize| i32::from_le_bytes([0, 1, 2, 3].map(|j| values[4 * i + j] as u8));
        let sum: i32 = values.iter().map(|&v| i32::from(v)).sum();
        *out = IntegerToken { values: [0, 1, 2, 3].map(word), start: -12 * sum, scale: e4m3::decode(scale) };
    }
}
