//! Tokens as tiles: quantised ones in one part of bf16, dense ones in as many as hold all their bits; and f16
//! tokens as they are, for processors that multiply tiles of f16.
//!
//! Tokens are scaled up by a power of two, because expanded weights are scaled down by one: so the sums stand in the
//! middle of f32's range. AMX takes subnormal numbers for zero, and there are none, but for products 2¹²⁴ times smaller
//! than their group's largest activation.

use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use format::{BLOCK, Matrix, Values};
use half::{bf16, f16};

use super::expand::{Expander, WEIGHT_EXPONENT};
use super::tiles::{TILE_K, TILE_ROWS, TokenTile};
use crate::scale::two_powers;
use crate::source::GroupTokens;
use op::{Activation, Activations};

/// Quantised tokens are at most 2688 < 2¹²; so scaled, they and their sums stay in range.
const QUANTISED_EXPONENT: i32 = 60;

/// The exponent that the largest dense token of a group is brought to. Weights whose scales are powers of two are not
/// scaled down: they are 2¹¹ at most, and 2⁻¹¹⁹ at least.
const fn dense_exponent(mx: bool) -> i32 {
    if mx { 82 } else { 110 }
}

/// bf16 numbers that one activation becomes: 8 significant bits each.
pub(super) fn parts(activation: Activation) -> usize {
    match activation {
        Activation::NvFp4 | Activation::BF16 => 1,
        Activation::F16 => 2,
        Activation::F32 => 3,
    }
}

/// The power of two that tokens are scaled by, beside weights whose scales are powers of two or not.
pub(super) fn exponent(source: GroupTokens<'_>, mx: bool) -> i32 {
    match source.activations.element() {
        Activation::NvFp4 => QUANTISED_EXPONENT,
        _ => source.exponent_to(dense_exponent(mx)),
    }
}

/// Writes a group of 16 rows, scaled by 2^`exponent`, zeros where there are no tokens or no K.
///
/// # Safety
///
/// The processor must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
pub(super) unsafe fn prepare(
    activations: &Activations<'_>,
    exponent: i32,
    parts: usize,
    group: usize,
    out: &mut [TokenTile],
) {
    let rows = group * TILE_ROWS..((group + 1) * TILE_ROWS).min(activations.rows() * parts);
    if rows.len() < TILE_ROWS || !activations.k().is_multiple_of(TILE_K) {
        out.fill(TokenTile::zeroed());
    }
    if let Activations::NvFp4(matrix) = activations {
        for row in rows {
            expand_row(matrix, row, row % TILE_ROWS, out);
        }
        return;
    }
    let Activations::Dense(dense) = activations else { return };
    let [first, second] = two_powers(exponent).map(|power| _mm512_set1_ps(power));
    for token in rows.start / parts..rows.end.div_ceil(parts) {
        let place = token * dense.k()..(token + 1) * dense.k();
        let mut places = Places { parts: token * parts..(token + 1) * parts, rows: rows.clone(), out: &mut *out };
        let mut put = |tile: usize, values: [__m512; 2]| {
            places.put(tile, values.map(|values| _mm512_mul_ps(_mm512_mul_ps(values, first), second)));
        };
        match dense.values() {
            Values::F16(values) => each_tile(&values[place], |values| widened_f16(values), &mut put),
            Values::BF16(values) => each_tile(&values[place], |values| widened_bf16(values), &mut put),
            Values::F32(values) => each_tile(&values[place], |values| widened_f32(values), &mut put),
        }
    }
}

/// The power of two by which f16 tokens are scaled for tiles of f16: it brings the largest to the top of their range.
pub(super) fn f16_exponent(source: GroupTokens<'_>) -> i32 {
    source.exponent_to(15)
}

/// Whether f16 tokens, so scaled, are normal numbers or zero. Matrix instructions may take subnormal ones for zero, and
/// forty powers of two from a subnormal number to the largest are more than the thirty of f16's normal ones.
pub(super) fn fit_f16(source: GroupTokens<'_>) -> bool {
    let Activations::Dense(dense) = source.activations else { return false };
    let Values::F16(values) = dense.values() else { return false };
    // Less one, zero is the largest of all; magnitudes compare like their bits do.
    let smallest =
        values.iter().map(|value| (value.to_bits() & 0x7FFF).wrapping_sub(1)).min().map(|m| m.wrapping_add(1));
    let smallest = f16::from_bits(smallest.unwrap_or(0)).to_f32();
    smallest == 0.0 || smallest * 2f32.powi(f16_exponent(source)) >= f16::MIN_POSITIVE.to_f32()
}

/// Writes a group of 16 rows of f16 tokens as tiles of f16, zeros where there are no tokens or no K.
///
/// # Safety
///
/// The processor must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
pub(super) unsafe fn prepare_f16(source: GroupTokens<'_>, group: usize, out: &mut [TokenTile]) {
    let Activations::Dense(dense) = source.activations else { return };
    let Values::F16(values) = dense.values() else { return };
    let rows = group * TILE_ROWS..((group + 1) * TILE_ROWS).min(dense.rows());
    if rows.len() < TILE_ROWS {
        out.fill(TokenTile::zeroed());
    }
    let power = _mm512_set1_ps(2f32.powi(f16_exponent(source)));
    for row in rows {
        let mut put = |tile: usize, values: [__m512; 2]| {
            // Exact: a normal number of f16 times a power of two that leaves it in range.
            let halves = values.map(|v| _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_mul_ps(v, power)));
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1]);
            // SAFETY: a row of the tile is 64 bytes.
            unsafe { _mm512_storeu_si512(out[tile].0[row % TILE_ROWS].as_mut_ptr().cast(), both) };
        };
        each_tile(&values[row * dense.k()..(row + 1) * dense.k()], |values| widened_f16(values), &mut put);
    }
}

/// Hands a row over in pieces of one tile's K, each as two vectors of f32; what is missing of the last is zero.
#[inline(always)]
fn each_tile<T: Pod>(
    row: &[T],
    widened: impl Fn(&[T; TILE_K]) -> [__m512; 2],
    put: &mut impl FnMut(usize, [__m512; 2]),
) {
    let (whole, rest) = row.as_chunks();
    whole.iter().enumerate().for_each(|(tile, values)| put(tile, widened(values)));
    if !rest.is_empty() {
        let mut values = [T::zeroed(); TILE_K];
        values[..rest.len()].copy_from_slice(rest);
        put(whole.len(), widened(&values));
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn widened_f16(values: &[f16; TILE_K]) -> [__m512; 2] {
    // SAFETY: each load reads half of the 64 bytes, and wants no alignment.
    [0, TILE_K / 2].map(|at| _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(values.as_ptr().add(at).cast()) }))
}

/// The upper half of an f32 is the bf16 number below it.
#[target_feature(enable = "avx512f")]
#[inline]
fn widened_bf16(values: &[bf16; TILE_K]) -> [__m512; 2] {
    [0, TILE_K / 2].map(|at| {
        // SAFETY: each load reads half of the 64 bytes, and wants no alignment.
        let values = _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(values.as_ptr().add(at).cast()) });
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(values))
    })
}

#[target_feature(enable = "avx512f")]
#[inline]
fn widened_f32(values: &[f32; TILE_K]) -> [__m512; 2] {
    // SAFETY: each load reads half of the 128 bytes, and wants no alignment.
    [0, TILE_K / 2].map(|at| unsafe { _mm512_loadu_ps(values.as_ptr().add(at)) })
}

/// Where the parts of a token go: the rows that they are, those of them that are among the group's, and the tiles.
struct Places<'a> {
    parts: Range<usize>,
    rows: Range<usize>,
    out: &'a mut [TokenTile],
}

impl Places<'_> {
    /// Takes the leading 8 bits off every value, as bf16, for each part in turn, and puts them into its row of the
    /// tile.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn put(&mut self, tile: usize, mut values: [__m512; 2]) {
        let leading = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
        for row in self.parts.clone() {
            let parts = values.map(|values| _mm512_and_si512(_mm512_castps_si512(values), leading));
            if self.rows.contains(&row) {
                let halves = parts.map(|part| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(part)));
                let leading = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1]);
                // SAFETY: a row of the tile is 64 bytes.
                unsafe { _mm512_storeu_si512(self.out[tile].0[row - self.rows.start].as_mut_ptr().cast(), leading) };
            }
            values = [0, 1].map(|half| {
                let rest = _mm512_sub_ps(values[half], _mm512_castsi512_ps(parts[half]));
                // Nothing is left of what is infinite or NaN: the first part says it all.
                _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(rest, rest), rest)
            });
        }
    }
}

/// Puts a row of quantised tokens into a row of the tiles: the weights' expansion, with the tokens' power of two added
/// to the exponent of what is not zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
fn expand_row(matrix: &Matrix<'_>, row: usize, to: usize, out: &mut [TokenTile]) {
    const LIFT: i16 = ((QUANTISED_EXPONENT + WEIGHT_EXPONENT) << 7) as i16;
    let expander = Expander::<false, false>::new();
    let (magnitude, lift) = (_mm512_set1_epi16(0x7FFF), _mm512_set1_epi16(LIFT));
    let codes = matrix.row_codes(row).chunks(TILE_K / 2);
    let scales = matrix.row_scales(row).chunks(TILE_K / BLOCK);
    for ((codes, scales), tile) in codes.zip(scales).zip(out) {
        let mut bytes = [0; TILE_K / 2];
        bytes[..codes.len()].copy_from_slice(codes);
        // SAFETY: there are 16 bytes, and the load wants no alignment.
        let codes = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) });
        // The upper nibble to the upper half of its lane; bits above a look-up's fifth do not count.
        let codes = _mm512_or_si512(codes, _mm512_slli_epi32::<12>(codes));
        let scales = [scales[0], scales.get(1).copied().unwrap_or(0)].map(|scale| half_scale(scale) as i16);
        let scales = _mm512_inserti64x4::<1>(_mm512_set1_epi16(scales[0]), _mm256_set1_epi16(scales[1]));
        let values = expander.weights(codes, scales);
        let values = _mm512_mask_add_epi16(values, _mm512_test_epi16_mask(values, magnitude), values, lift);
        // SAFETY: a row of the tile is 64 bytes.
        unsafe { _mm512_storeu_si512(tile.0[to].as_mut_ptr().cast(), values) };
    }
}

/// An e4m3 scale, its sign included, as 2⁻⁸ times it in half precision: its fields shifted into place.
fn half_scale(scale: u8) -> u16 {
    u16::from(scale & 0x80) << 8 | u16::from(scale & 0x7F) << 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_says_all_of_what_is_not_finite() {
        if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512bw") {
            return;
        }
        let odd = f32::from_bits(0x3F81_2345);
        let mut values = [odd; TILE_K];
        (values[3], values[17], values[31]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
        let mut tiles = [TokenTile::zeroed()];
        let mut places = Places { parts: 0..3, rows: 0..TILE_ROWS, out: &mut tiles };
        // SAFETY: the processor has the instructions.
        unsafe { places.put(0, widened_f32(&values)) };
        let part = |row: usize, k: usize| bf16::from_bits(tiles[0].0[row][k]).to_f32();
        for (k, value) in values.into_iter().enumerate() {
            let parts = [0, 1, 2].map(|row| part(row, k));
            if value == odd {
                assert!(parts.iter().sum::<f32>() == odd && parts[1] != 0.0, "{parts:?}");
            } else {
                assert_eq!(parts[0].to_bits(), value.to_bits());
                assert_eq!(parts[1..], [0.0; 2], "{value}");
            }
        }
    }
}
