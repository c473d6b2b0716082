//! Tokens as tiles of bf16: quantised ones in one part, dense ones in as many as hold all their bits.
//!
//! Tokens are scaled up by a power of two, because expanded weights are scaled down by one: so the sums stand in the middle
//! of f32's range. AMX takes subnormal numbers for zero, and there are none, but for products 2¹²⁴ times smaller than
//! their group's largest activation.

use std::arch::x86_64::*;

use bytemuck::{Pod, Zeroable};
use format::{BLOCK, Matrix};
use half::bf16;

use super::expand::{Expander, WEIGHT_EXPONENT};
use super::{TILE_K, TILE_ROWS};
use crate::kernel::Source;
use op::{Activation, Activations};

/// Quantised tokens are at most 2688 < 2¹²; so scaled, they and their sums stay in range.
const QUANTISED_EXPONENT: i32 = 100;
/// The exponent that the largest dense token of a group is brought to.
const DENSE_EXPONENT: i32 = 110;

/// 16 rows of tokens, 32 k.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(1024))]
pub(super) struct TokenTile(pub [[u16; TILE_K]; TILE_ROWS]);

/// bf16 numbers that one activation becomes: 8 significant bits each.
pub(super) fn parts(activation: Activation) -> usize {
    match activation {
        Activation::NvFp4 | Activation::BF16 => 1,
        Activation::F16 => 2,
        Activation::F32 => 3,
    }
}

/// The power of two that tokens are scaled by.
pub(super) fn exponent(source: Source<'_>) -> i32 {
    match source.activations.element() {
        Activation::NvFp4 => QUANTISED_EXPONENT,
        _ => source.exponent_to(DENSE_EXPONENT),
    }
}

/// Writes a group of 16 rows, zeros where there are no tokens or no K.
///
/// # Safety
///
/// The processor must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
pub(super) unsafe fn prepare(source: Source<'_>, parts: usize, group: usize, out: &mut [TokenTile]) {
    let activations = source.activations;
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
    let exponent = exponent(source);
    let mut values = vec![0f32; activations.k()];
    for token in rows.start / parts..rows.end.div_ceil(parts) {
        source.scaled_row(token, exponent, &mut values);
        for row in token * parts..(token + 1) * parts {
            split_off(&mut values, row - rows.start.min(row), rows.contains(&row).then_some(&mut *out));
        }
    }
}

/// Takes the leading 8 bits off every value, as bf16, leaves the rest, and puts the former into a row of the tiles.
#[inline(always)]
fn split_off(values: &mut [f32], row: usize, mut out: Option<&mut [TokenTile]>) {
    for (tile, values) in values.chunks_mut(TILE_K).enumerate() {
        let mut leading = [0; TILE_K];
        for (leading, value) in leading.iter_mut().zip(values) {
            // The upper half of an f32 is the bf16 number below it.
            *leading = (value.to_bits() >> 16) as u16;
            *value -= bf16::from_bits(*leading).to_f32();
        }
        if let Some(out) = &mut out {
            out[tile].0[row] = leading;
        }
    }
}

/// Puts a row of quantised tokens into a row of the tiles: the weights' expansion, with the tokens' power of two added to
/// the exponent of what is not zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
fn expand_row(matrix: &Matrix<'_>, row: usize, to: usize, out: &mut [TokenTile]) {
    const LIFT: i16 = ((QUANTISED_EXPONENT + WEIGHT_EXPONENT) << 7) as i16;
    let expander = Expander::new();
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
        let values = expander.weights(codes, _mm512_castsi512_ph(scales));
        let values = _mm512_mask_add_epi16(values, _mm512_test_epi16_mask(values, magnitude), values, lift);
        // SAFETY: a row of the tile is 64 bytes.
        unsafe { _mm512_storeu_si512(tile.0[to].as_mut_ptr().cast(), values) };
    }
}

/// An e4m3 scale, its sign included, as 2⁻⁸ times it in half precision: its fields shifted into place.
fn half_scale(scale: u8) -> u16 {
    u16::from(scale & 0x80) << 8 | u16::from(scale & 0x7F) << 7
}
