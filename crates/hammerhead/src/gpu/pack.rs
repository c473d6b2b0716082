//! NVFP4 weights in the order in which the Hopper kernels read them.
//!
//! Row-major codes and scales become *chunks* of 64 rows × 64 columns of k, `[rows/64][k/64]` of them one after another,
//! padded with zeros at the edges. A chunk is 2304 bytes that one bulk copy brings to shared memory:
//!
//! ```text
//! 0..2048     codes: for each of 4 warps (16 rows each), for each of 32 lanes, four words, one per 16 of k
//! 2048..2304  scales: for each of 4 warps, for each of 8 row pairs (r, r + 8), two words, one per 32 of k
//! ```
//!
//! **A word** holds the eight weights that one thread of a warp contributes to one wgmma: with r = lane / 4 and
//! c = lane % 4, rows r and r + 8 of its warp at columns 2c, 2c + 1, 2c + 8 and 2c + 9 of the sixteen. A code is a sign
//! and three bits of magnitude; in the low half of the word (even columns; odd ones are 16 bits further up) they lie at
//!
//! | weight         | magnitude | sign |
//! |----------------|-----------|------|
//! | row r, 2c      | 9..12     | 15   |
//! | row r + 8, 2c  | 6..9      | 12   |
//! | row r, 2c + 8  | 3..6      | 14   |
//! | row r+8, 2c+8  | 0..3      | 13   |
//!
//! so that the word itself, the word shifted left by 3, and two products of it with constants bring each pair to
//! bits 15 and 9..12 of both halves. There the code's bits are a half with the weight's value times 2⁻¹⁴.
//!
//! **A scale byte** is scale · 2⁷ as an unsigned float with five bits of exponent and three of mantissa, in other words
//! bits 7..15 of a half; every finite e4m3 value has one, subnormal ones too. A negative scale is made positive and its
//! sign given to the codes of its block. A word's bytes, from the lowest, are the scales of (r, second 16 of k),
//! (r, first 16), (r + 8, second), (r + 8, first): shifted right by one, or left by seven, and masked, two of them are a
//! pair of halves.

use format::{BLOCK, Matrix};
use rayon::prelude::*;

/// Rows of a chunk.
pub const CHUNK_ROWS: usize = 64;
/// Columns of k of a chunk.
pub const CHUNK_DEPTH: usize = 64;
/// Bytes of a chunk's codes.
pub const CODE_BYTES: u32 = 2048;
/// Bytes of a chunk.
pub const CHUNK_BYTES: u32 = 2304;

/// Where in a word's half the four weights' magnitudes and signs lie.
const PLACES: [(u32, u32); 4] = [(9, 15), (6, 12), (3, 14), (0, 13)];

/// Bytes of a packed matrix: 9/16 of a byte for each weight, as in a checkpoint, once rows and k are rounded up to 64.
pub fn packed_bytes(rows: usize, k: usize) -> usize {
    rows.div_ceil(CHUNK_ROWS) * run_bytes(k)
}

/// Bytes of the chunks of 64 rows.
fn run_bytes(k: usize) -> usize {
    k.div_ceil(CHUNK_DEPTH) * CHUNK_BYTES as usize
}

/// Packs a matrix, on as many threads as the process has.
pub fn pack(matrix: &Matrix<'_>) -> Vec<u8> {
    let mut packed = vec![0; packed_bytes(matrix.rows(), matrix.k())];
    packed.par_chunks_mut(run_bytes(matrix.k())).enumerate().for_each(|(run, bytes)| {
        for (step, chunk) in bytes.chunks_exact_mut(CHUNK_BYTES as usize).enumerate() {
            pack_chunk(matrix, run * CHUNK_ROWS, step * CHUNK_DEPTH, chunk);
        }
    });
    packed
}

fn pack_chunk(matrix: &Matrix<'_>, row: usize, column: usize, chunk: &mut [u8]) {
    let (codes, scales) = chunk.split_at_mut(CODE_BYTES as usize);
    for (place, (warp, lane, slice)) in codes.chunks_exact_mut(4).zip(lane_words()) {
        let word = word(matrix, row + 16 * warp + lane / 4, column + BLOCK * slice + 2 * (lane % 4));
        place.copy_from_slice(&word.to_le_bytes());
    }
    for (pair, place) in scales.chunks_exact_mut(8).enumerate() {
        let upper = row + 16 * (pair / 8) + pair % 8;
        for (place, first) in place.chunks_exact_mut(4).zip([column, column + 2 * BLOCK]) {
            let second = first + BLOCK;
            let places = [(upper, second), (upper, first), (upper + 8, second), (upper + 8, first)];
            place.copy_from_slice(&places.map(|(row, column)| scale_byte(scale(matrix, row, column))));
        }
    }
}

/// The scale of an element, or zero beyond the edge.
fn scale(matrix: &Matrix<'_>, row: usize, column: usize) -> u8 {
    let inside = row < matrix.rows() && column < matrix.k();
    if inside { matrix.row_scales(row)[column / BLOCK] } else { 0 }
}

/// The code of an element with its scale's sign in it, or zero beyond the edge.
fn code(matrix: &Matrix<'_>, row: usize, column: usize) -> u32 {
    if row >= matrix.rows() || column >= matrix.k() {
        return 0;
    }
    let byte = matrix.row_codes(row)[column / 2];
    let code = if column.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    u32::from(code ^ (scale(matrix, row, column) >> 4 & 8))
}

/// The words of a chunk in their order: warp, lane, step of 16 along k.
fn lane_words() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..512).map(|word| (word / 128, word / 4 % 32, word % 4))
}

/// One thread's eight weights of one wgmma.
fn word(matrix: &Matrix<'_>, row: usize, column: usize) -> u32 {
    let corners = [(row, column), (row + 8, column), (row, column + 8), (row + 8, column + 8)];
    let mut word = 0;
    for ((row, column), (magnitude, sign)) in corners.into_iter().zip(PLACES) {
        for odd in 0..2 {
            let code = code(matrix, row, column + odd);
            word |= ((code & 7) << magnitude | (code >> 3) << sign) << (16 * odd);
        }
    }
    word
}

/// |scale| · 2⁷ as bits 7..15 of a half. The exponent of an e4m3 number is biased by 7, that of a half by 15: a normal
/// scale keeps its mantissa and gains 15. A subnormal one, m · 2⁻⁹, is m/4 after scaling: normal as a half.
fn scale_byte(scale: u8) -> u8 {
    let (exponent, mantissa) = (scale >> 3 & 15, scale & 7);
    match (exponent, mantissa) {
        (0, 0) => 0,
        (0, m) => {
            let top = m.ilog2() as u8;
            (top + 13) << 3 | (m << (3 - top) & 7)
        }
        (e, m) => (e + 15) << 3 | m,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An e2m1 code's value.
    fn e2m1(code: u8) -> f64 {
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        if code & 8 == 0 { magnitude } else { -magnitude }
    }

    /// An e4m3 scale's value.
    fn e4m3(scale: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(scale >> 3 & 15), f64::from(scale & 7) / 8.0);
        let magnitude =
            if exponent == 0 { mantissa * 2f64.powi(-6) } else { (1.0 + mantissa) * 2f64.powi(exponent - 7) };
        if scale & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// An IEEE half's value.
    fn half(bits: u16) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
        assert!(exponent < 31, "{bits:#x} is not finite");
        let magnitude =
            if exponent == 0 { mantissa * 2f64.powi(-14) } else { (1.0 + mantissa) * 2f64.powi(exponent - 15) };
        if bits >> 15 == 0 { magnitude } else { -magnitude }
    }

    /// What the kernel does with a word: the four pairs of halves, low half first.
    fn spread(word: u32) -> [u32; 4] {
        let pairs = [word, word << 3, (word & 0x4038_4038).wrapping_mul(66), (word & 0x2007_2007).wrapping_mul(516)];
        pairs.map(|pair| pair & 0x8e00_8e00)
    }

    /// Every weight of a packed matrix, read as the kernel reads it: value = half · half, times 2⁷.
    fn unpack(packed: &[u8], rows: usize, k: usize) -> Vec<f64> {
        let (across, down) = (k.div_ceil(CHUNK_DEPTH), rows.div_ceil(CHUNK_ROWS));
        let mut values = vec![f64::NAN; down * CHUNK_ROWS * across * CHUNK_DEPTH];
        let word_at = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
        for chunk in 0..across * down {
            let start = chunk * CHUNK_BYTES as usize;
            for (index, (warp, lane, slice)) in lane_words().enumerate() {
                let scales = word_at(start + CODE_BYTES as usize + 64 * warp + 8 * (lane / 4) + 4 * (slice / 2));
                let scales = if slice.is_multiple_of(2) { scales >> 1 } else { scales << 7 } & 0x7f80_7f80;
                for (register, pair) in spread(word_at(start + 4 * index)).into_iter().enumerate() {
                    let scale = half((scales >> (16 * (register % 2))) as u16);
                    let row = chunk / across * CHUNK_ROWS + 16 * warp + lane / 4 + 8 * (register % 2);
                    let first = chunk % across * CHUNK_DEPTH + BLOCK * slice + 2 * (lane % 4) + 8 * (register / 2);
                    for odd in 0..2 {
                        let value = half((pair >> (16 * odd)) as u16) * scale * 128.0;
                        values[row * across * CHUNK_DEPTH + first + odd] = value;
                    }
                }
            }
        }
        let wide = across * CHUNK_DEPTH;
        assert!(values.iter().all(|value| !value.is_nan()), "every place is written");
        let beyond = values.iter().enumerate().filter(|(at, _)| at / wide >= rows || at % wide >= k);
        assert!(beyond.into_iter().all(|(_, value)| *value == 0.0), "the padding is zero");
        (0..rows * k).map(|at| values[at / k * wide + at % k]).collect()
    }

    /// A matrix in which every pair of code and scale occurs, NaN scales excepted.
    fn everything(rows: usize, k: usize) -> (Vec<u8>, Vec<u8>) {
        let finite: Vec<u8> = (0..=255).filter(|scale| scale & 0x7f != 0x7f).collect();
        let codes = (0..rows * k / 2).map(|at| ((at * 2 + at / 8) as u8 & 15) | (at as u8 ^ 5) << 4).collect();
        let scales = (0..rows * k / BLOCK).map(|at| finite[at % finite.len()]).collect();
        (codes, scales)
    }

    #[test]
    fn every_value_survives_packing_for_every_scale() {
        for (rows, k) in [(1, 16), (64, 64), (65, 80), (130, 208), (254, 256)] {
            let (codes, scales) = everything(rows, k);
            let packed = pack(&Matrix::new(rows, k, &codes[..], &scales[..], 1.0).expect("a sound matrix"));
            assert_eq!(packed.len(), packed_bytes(rows, k));
            for (at, value) in unpack(&packed, rows, k).into_iter().enumerate() {
                let code = codes[at / 2] >> (at % 2 * 4) & 15;
                let expected = e2m1(code) * e4m3(scales[at / BLOCK]);
                assert_eq!(value, expected, "row {} column {} of {rows} × {k}", at / k, at % k);
            }
        }
    }

    #[test]
    fn every_scale_times_128_is_a_half_with_three_bits_of_mantissa() {
        for scale in (0..=0x7e).chain(0x80..=0xfe) {
            let bits = u16::from(scale_byte(scale)) << 7;
            assert_eq!(half(bits), e4m3(scale).abs() * 128.0, "{scale:#x}");
        }
    }

    #[test]
    fn a_layers_weights_take_what_the_checkpoint_takes_and_ragged_edges_little_more() {
        let checkpoint = |rows: usize, k: usize| rows * k * 9 / 16;
        assert_eq!(packed_bytes(4096, 7168), checkpoint(4096, 7168));
        assert!(packed_bytes(4100, 7168 + 16) * 20 <= checkpoint(4100, 7168 + 16) * 21);
        assert_eq!(packed_bytes(1, 16), CHUNK_BYTES as usize, "a tiny matrix takes a whole chunk");
    }
}
