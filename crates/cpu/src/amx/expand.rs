//! Packed weights to tiles of bf16.
//!
//! The way goes through half precision, where there is a vector multiplication: a table look-up makes 2⁸·w, the scale's
//! byte shifted by seven is 2⁻⁸·s, and their product w·s is exact. Shifting its fields right by three makes it a bf16
//! number that is 2⁻¹¹² times as large (the exponent's bias differs by 112), without ever being subnormal. In half
//! precision w·s is not subnormal either: it is 2⁻¹⁰ at least, and the smallest normal number 2⁻¹⁴.
//!
//! Powers of two need no multiplication. The table has w times the largest of them, 2⁸, and what a scale's exponent is
//! below that is taken off the number's, by a subtraction that ends at zero: so zeros stay, and all else is w·s itself.

use std::arch::x86_64::*;

use super::tiles::HalfTile;
use crate::fp8::BYTES;
use crate::pack::COLUMNS;
use crate::vector::{SCALE_UNIT, Vector};

/// What weights expanded to bf16 are smaller by, as a power of two: half precision's exponent bias is 15, bf16's 127.
pub(super) const WEIGHT_EXPONENT: i32 = 127 - 15;

/// What weights with scales that are powers of two are larger by as f16: with 25 of those, 2⁸ to 2⁻¹⁶, the least is
/// 2⁻¹² then and the largest 3·2¹⁴.
pub(super) const HALF_EXPONENT: i32 = 5;

/// The byte of the largest power of two, 2⁸.
const LARGEST_POWER: i8 = 135u8 as i8;

/// Each code's value with this exponent, as a number with so many bits of mantissa behind biased exponents, twice: the
/// look-up reads five bits, one of them a neighbour's. Minus zero is entered as zero.
const fn table(biased: u16, mantissa: u32) -> [u16; 32] {
    // Exponent and two bits of mantissa of ½ 1 1½ 2 3 4 6, from those of ½ on.
    const MAGNITUDES: [u16; 7] = [0, 4, 6, 8, 10, 12, 14];
    let mut table = [0; 32];
    let mut code = 0;
    while code < 32 {
        if code % 8 > 0 {
            let magnitude = ((biased - 1) << mantissa) + (MAGNITUDES[code % 8 - 1] << (mantissa - 2));
            table[code] = magnitude | if code % 16 > 8 { 0x8000 } else { 0 };
        }
        code += 1;
    }
    table
}

/// Half precision of 2⁸ times values, for scales of e4m3.
const TABLE: [u16; 32] = table(15 + 8, 10);
/// The same of 2⁸ times values for powers of two: bf16, and half precision 2⁵ times as large.
const BF16_TABLE: [u16; 32] = table(127 + 8, 7);
const F16_TABLE: [u16; 32] = table(15 + 8 + HALF_EXPONENT as u16, 10);

/// Puts the scale of column n into the upper byte of both 16-bit halves of lane n.
const SPREAD: [u8; 64] = {
    let mut spread = [0x80; 64];
    let mut column = 0;
    while column < COLUMNS {
        spread[4 * column + 1] = column as u8;
        spread[4 * column + 3] = column as u8;
        column += 1;
    }
    spread
};

/// The constants of the expansion, in registers. For tiles of f16 the way ends at half precision.
#[derive(Clone, Copy)]
pub(super) struct Expander<const F16: bool, const MX: bool> {
    table: __m512i,
    spread: __m512i,
    keep: __m512i,
}

impl<const F16: bool, const MX: bool> Expander<F16, MX> {
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(super) fn new() -> Self {
        let table = match (MX, F16) {
            (false, _) => &TABLE,
            (true, false) => &BF16_TABLE,
            (true, true) => &F16_TABLE,
        };
        // SAFETY: all constants have 64 bytes.
        let load = |bytes: *const u8| unsafe { _mm512_loadu_si512(bytes.cast()) };
        let keep = _mm512_set1_epi16(0x8FFFu16 as i16);
        Self { table: load(table.as_ptr().cast()), spread: load(SPREAD.as_ptr()), keep }
    }

    /// 32 codes, one in the low bits of each 16-bit lane, times as many scales.
    #[target_feature(enable = "avx512f,avx512bw,avx512fp16")]
    #[inline]
    pub(super) fn weights(&self, codes: __m512i, scales: __m512i) -> __m512i {
        let weights = _mm512_permutexvar_epi16(codes, self.table);
        if MX {
            return _mm512_subs_epu16(weights, scales);
        }
        let [weights, scales] = [weights, scales].map(|halves| _mm512_castsi512_ph(halves));
        let product = _mm512_castph_si512(_mm512_mul_ph(weights, scales));
        if F16 {
            return product;
        }
        // The sign stays on top; its three copies below are cleared.
        _mm512_and_si512(_mm512_srai_epi16::<3>(product), self.keep)
    }

    /// Expands one block: about five operations for each row of 32 weights, or three where scales are powers of two.
    ///
    /// # Safety
    ///
    /// There must be 16 scales and 128 bytes of codes to read, and an aligned half tile to write.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    #[inline]
    pub(super) unsafe fn block(&self, scales: *const u8, codes: *const u8, out: *mut HalfTile) {
        // SAFETY: the caller promises 16 scales, 128 bytes of codes (of which vectors begin at 0, 1 and 64) and room
        // for eight rows of 64 bytes, aligned.
        unsafe {
            let scales = _mm_loadu_si128(scales.cast());
            let scales = if MX { _mm_sub_epi8(_mm_set1_epi8(LARGEST_POWER), scales) } else { scales };
            // Seven bits up for e4m3's mantissa or bf16's, ten for that of f16.
            let scales = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(scales), self.spread);
            let scales = if MX && F16 { _mm512_slli_epi16::<2>(scales) } else { _mm512_srli_epi16::<1>(scales) };
            let rows = out.cast::<[u16; 2 * COLUMNS]>();
            let put = |row: usize, codes: __m512i| {
                _mm512_store_si512(rows.add(row).cast(), self.weights(codes, scales));
            };
            // A shift by eight is a load one byte on, as long as that stays inside the block: the vector ports are the
            // bottleneck, the load ports are not, and bits above the fifth do not count.
            let [first, second] = [codes, codes.add(64)].map(|codes| _mm512_loadu_si512(codes.cast()));
            let eight_on = _mm512_loadu_si512(codes.add(1).cast());
            put(0, first);
            put(1, _mm512_srli_epi16::<4>(first));
            put(2, eight_on);
            put(3, _mm512_srli_epi16::<4>(eight_on));
            put(4, second);
            put(5, _mm512_srli_epi16::<4>(second));
            put(6, _mm512_srli_epi16::<8>(second));
            put(7, _mm512_srli_epi16::<12>(second));
        }
    }
}

/// What FP8 weights are smaller by as bf16, as a power of two: so the least of them, 2⁻⁹ times the least power of a
/// row's scales, is no subnormal number, which AMX would take for zero, and sums stay in range.
pub(super) const BYTE_EXPONENT: i32 = 60;

/// Expands one block of FP8 by way of f32. A block has its even k before its odd ones, eight at a time, so that a row
/// of pairs is made of two rows that stand four apart. Cutting off the lower half is exact: there are four bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) fn byte_block(exponents: Option<&[u8; COLUMNS]>, numbers: &[u8; BYTES], out: &mut HalfTile) {
    let unit = (SCALE_UNIT * 2f64.powi(-BYTE_EXPONENT)) as f32;
    let (numbers, _) = numbers.as_chunks::<COLUMNS>();
    // SAFETY: the function is compiled for the instructions. There are 16 exponents, 16 numbers in each row of the
    // block, and 64 bytes in each row of the tile.
    unsafe {
        let power = _mm512_set1_ps(unit);
        let power = exponents.map_or(power, |exponents| __m512::powers(exponents.as_ptr()).multiply(power));
        let value = |row: usize| _mm512_castps_si512(__m512::bytes(numbers[row].as_ptr()).multiply(power));
        for (pair, row) in out.0.iter_mut().enumerate() {
            let even = pair / 4 * 8 + pair % 4;
            let high = _mm512_and_si512(value(even + 4), _mm512_set1_epi32(0xFFFF_0000u32 as i32));
            let both = _mm512_or_si512(high, _mm512_srli_epi32::<16>(value(even)));
            _mm512_storeu_si512(row.as_mut_ptr().cast(), both);
        }
    }
}
