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

use thiserror::Error;

/// Rows of a chunk.
pub const CHUNK_ROWS: usize = 64;
/// Columns of k of a chunk.
pub const CHUNK_DEPTH: usize = 64;
/// Bytes of a chunk's codes.
pub const CODE_BYTES: u32 = 2048;
/// Bytes of a chunk.
pub const CHUNK_BYTES: u32 = 2304;
/// Elements that share a scale.
const BLOCK: usize = 16;

/// Where in a word's half the four weights' magnitudes and signs lie.
const PLACES: [(u32, u32); 4] = [(9, 15), (6, 12), (3, 14), (0, 13)];

/// An NVFP4 matrix as checkpoints have it.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'w> {
    /// Rows: output features.
    pub rows: usize,
    /// Columns: input features, a multiple of 16.
    pub k: usize,
    /// e2m1 codes, row-major, two a byte, the even column in the low half.
    pub codes: &'w [u8],
    /// e4m3 scales, row-major, one per 16 columns.
    pub scales: &'w [u8],
}

/// Why a matrix cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PackError {
    /// k is no multiple of the block.
    #[error("k is {k}; NVFP4 has one scale per 16 columns, so k must be a positive multiple of 16")]
    Depth {
        /// What it is.
        k: usize,
    },
    /// Too few bytes, or too many.
    #[error("{found} bytes of {what} for a {rows} × {k} matrix; it has {wanted}")]
    Bytes {
        /// "codes" or "scales".
        what: &'static str,
        /// How many were given.
        found: usize,
        /// How many there must be.
        wanted: usize,
        /// Rows.
        rows: usize,
        /// Columns.
        k: usize,
    },
    /// A scale that is not a number.
    #[error("the scale of row {row}, columns {column} to {}, is NaN; the checkpoint is damaged", column + 15)]
    NanScale {
        /// Row.
        row: usize,
        /// First column of its block.
        column: usize,
    },
}

impl Weights<'_> {
    fn check(&self) -> Result<(), PackError> {
        let Weights { rows, k, codes, scales } = *self;
        if k == 0 || !k.is_multiple_of(BLOCK) {
            return Err(PackError::Depth { k });
        }
        for (what, found, wanted) in [("codes", codes.len(), rows * k / 2), ("scales", scales.len(), rows * k / BLOCK)]
        {
            if found != wanted {
                return Err(PackError::Bytes { what, found, wanted, rows, k });
            }
        }
        match scales.iter().position(|scale| scale & 0x7f == 0x7f) {
            Some(at) => Err(PackError::NanScale { row: at / (k / BLOCK), column: at % (k / BLOCK) * BLOCK }),
            None => Ok(()),
        }
    }

    /// The scale of an element, or zero beyond the edge.
    fn scale(&self, row: usize, column: usize) -> u8 {
        let inside = row < self.rows && column < self.k;
        if inside { self.scales[row * (self.k / BLOCK) + column / BLOCK] } else { 0 }
    }

    /// The code of an element with its scale's sign in it, or zero beyond the edge.
    fn code(&self, row: usize, column: usize) -> u32 {
        if row >= self.rows || column >= self.k {
            return 0;
        }
        let byte = self.codes[(row * self.k + column) / 2];
        let code = if column.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        u32::from(code ^ (self.scale(row, column) >> 4 & 8))
    }
}

/// Bytes of a packed matrix.
pub fn packed_bytes(rows: usize, k: usize) -> usize {
    rows.div_ceil(CHUNK_ROWS) * k.div_ceil(CHUNK_DEPTH) * CHUNK_BYTES as usize
}

/// Packs a matrix.
pub fn pack(weights: &Weights<'_>) -> Result<Vec<u8>, PackError> {
    weights.check()?;
    let mut packed = Vec::with_capacity(packed_bytes(weights.rows, weights.k));
    for row in (0..weights.rows).step_by(CHUNK_ROWS) {
        for column in (0..weights.k).step_by(CHUNK_DEPTH) {
            pack_chunk(weights, row, column, &mut packed);
        }
    }
    Ok(packed)
}

fn pack_chunk(weights: &Weights<'_>, row: usize, column: usize, packed: &mut Vec<u8>) {
    for (warp, lane, slice) in lane_words() {
        let word = word(weights, row + 16 * warp + lane / 4, column + BLOCK * slice + 2 * (lane % 4));
        packed.extend(word.to_le_bytes());
    }
    for pair in 0..CHUNK_ROWS / 2 {
        let upper = row + 16 * (pair / 8) + pair % 8;
        for first in [column, column + 2 * BLOCK] {
            let second = first + BLOCK;
            let places = [(upper, second), (upper, first), (upper + 8, second), (upper + 8, first)];
            packed.extend(places.map(|(row, column)| scale_byte(weights.scale(row, column))));
        }
    }
}

/// The words of a chunk in their order: warp, lane, step of 16 along k.
fn lane_words() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..512).map(|word| (word / 128, word / 4 % 32, word % 4))
}

/// One thread's eight weights of one wgmma.
fn word(weights: &Weights<'_>, row: usize, column: usize) -> u32 {
    let corners = [(row, column), (row + 8, column), (row, column + 8), (row + 8, column + 8)];
    let mut word = 0;
    for ((row, column), (magnitude, sign)) in corners.into_iter().zip(PLACES) {
        for odd in 0..2 {
            let code = weights.code(row, column + odd);
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
            let packed = pack(&Weights { rows, k, codes: &codes, scales: &scales }).expect("a sound matrix");
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
    fn a_nan_scale_is_refused_by_position() {
        let (codes, mut scales) = everything(2, 32);
        scales[3] = 0xff;
        let refused = pack(&Weights { rows: 2, k: 32, codes: &codes, scales: &scales });
        assert_eq!(refused, Err(PackError::NanScale { row: 1, column: 16 }));
    }

    #[test]
    fn a_depth_that_splits_a_block_is_refused() {
        let refused = pack(&Weights { rows: 1, k: 24, codes: &[0; 12], scales: &[0; 2] });
        assert_eq!(refused, Err(PackError::Depth { k: 24 }));
    }

    #[test]
    fn missing_bytes_are_refused_by_name() {
        let refused = pack(&Weights { rows: 4, k: 16, codes: &[0; 32], scales: &[0; 3] });
        assert_eq!(refused, Err(PackError::Bytes { what: "scales", found: 3, wanted: 4, rows: 4, k: 16 }));
    }
}
