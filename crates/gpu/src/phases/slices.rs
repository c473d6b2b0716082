//! Codes and scales of packed words as pairs of 16-bit numbers, for the kernels that dequantise in registers. The
//! layout of words and scale bytes is described in [`crate::pack`], that of FP8 in [`crate::fp8`].

use ptx::instr::{Arith, BinaryOp, FloatMode};
use ptx::{Builder, PackedPair, Reg, U32, Value, W32};

use super::tokens::Tokens;
use crate::pack::Codes;

/// A signs-only mask for bits that shifts have brought there: (a & b) | c.
pub(crate) const AND_OR: u8 = 0xea;

/// Signs of a pair of FP8 numbers, and its magnitudes as halves and as bfloat16.
pub(crate) const SIGNS: u32 = 0x8000_8000;
const HALVES: u32 = 0x3f80_3f80;
const BFLOATS: u32 = 0x07f0_07f0;
/// 2⁸, which moved bits of FP8 lack as halves, and 2¹²⁰, which they lack as bfloat16: pairs.
pub(crate) const TO_HALVES: u64 = 0x5c00_5c00;
pub(crate) const TO_BFLOATS: u64 = 0x7b80_7b80;

/// The scales of the two slices that one of a unit's two words covers, as a pair of floats.
pub(crate) fn scale_pair(k: &mut Builder, element: Tokens, scales: Reg<U32>, word: usize) -> Reg<U32> {
    match element {
        Tokens::F16 => {
            let moved = if word == 0 { k.shr(scales, 1) } else { k.shl(scales, 7) };
            k.and(moved, 0x7f80_7f80)
        }
        _ => {
            let moved = if word == 0 { k.shr(scales, 4) } else { k.shl(scales, 4) };
            let exponent = k.variable(0x7000_7000);
            k.lop3(moved, 0x0ff0_0ff0, exponent, AND_OR)
        }
    }
}

/// The power of two of one of a unit's two words, of which a row's two bytes are `scales`, as a pair of floats.
pub(crate) fn power_pair(k: &mut Builder, element: Tokens, scales: Reg<U32>, word: usize) -> Reg<U32> {
    let byte = if word == 0 { k.and(scales, 0xff) } else { k.shr(scales, 8) };
    // The lowest bit of both numbers' exponents, and what exponents are more than bytes.
    let (bits, more) = match element {
        Tokens::F16 => (0x0400_0400u32, -105i32),
        _ => (0x0080_0080, 119),
    };
    k.mul_add(byte, bits, bits.wrapping_mul(more.cast_unsigned()))
}

/// The two pairs of codes that a word holds for one slice, each where the element has its exponent and mantissa.
pub(crate) fn pairs_of_slice(
    k: &mut Builder,
    (element, order): (Tokens, Codes),
    word: Reg<U32>,
    second: usize,
) -> [Reg<U32>; 2] {
    match order {
        Codes::Halves => codes_of_slice(k, element, word, second),
        Codes::Bfloats if element == Tokens::F16 => halves_of_bfloats(k, word, second),
        Codes::Bfloats => bfloats_of_slice(k, word, second),
        Codes::Nibbles => unreachable!("e4m3 numbers are looked up, and others are not in this order"),
    }
}

/// The same of a word that is in order for halves.
fn codes_of_slice(k: &mut Builder, element: Tokens, word: Reg<U32>, second: usize) -> [Reg<U32>; 2] {
    let masked = |k: &mut Builder, mask: u32, factor: u32, keep: u32| {
        let bits = k.and(word, mask);
        let moved = k.mul(bits, factor);
        k.and(moved, keep)
    };
    match (element, second) {
        (Tokens::F16, 0) => {
            let shifted = k.shl(word, 3);
            [k.and(word, 0x8e00_8e00), k.and(shifted, 0x8e00_8e00)]
        }
        (Tokens::F16, _) => [masked(k, 0x4038_4038, 66, 0x8e00_8e00), masked(k, 0x2007_2007, 516, 0x8e00_8e00)],
        (_, 0) => {
            let shifted = k.shr(word, 3);
            let magnitude = k.and(shifted, 0x01c0_01c0);
            let first = k.lop3(word, 0x8000_8000, magnitude, AND_OR);
            [first, masked(k, 0x11c0_11c0, 9, 0x81c0_81c0)]
        }
        _ => {
            let shifted = k.shl(word, 3);
            let magnitude = k.and(shifted, 0x01c0_01c0);
            let sign = k.shl(word, 1);
            let first = k.lop3(sign, 0x8000_8000, magnitude, AND_OR);
            [first, masked(k, 0x2007_2007, 68, 0x81c0_81c0)]
        }
    }
}

/// The same of a word that is in order for bfloat16.
fn bfloats_of_slice(k: &mut Builder, word: Reg<U32>, second: usize) -> [Reg<U32>; 2] {
    const KEPT: u32 = 0x81c0_81c0;
    let rotated = |k: &mut Builder, bits: u32| k.funnel_right(word, word, bits);
    let pairs = if second == 0 {
        [word, rotated(k, 3)]
    } else {
        let bits = k.and(word, 0x001b_001b);
        [rotated(k, 6), k.mul(bits, 0x4108)]
    };
    pairs.map(|pair| k.and(pair, KEPT))
}

/// Halves of a word that is in order for bfloat16: the magnitudes 3 bits further up.
fn halves_of_bfloats(k: &mut Builder, word: Reg<U32>, second: usize) -> [Reg<U32>; 2] {
    bfloats_of_slice(k, word, second).map(|pair| {
        let both = k.mul(pair, 9);
        k.and(both, 0x8e00_8e00)
    })
}

/// The two pairs of a word of FP8, each where the element has its sign, exponent and mantissa: times 2⁸ they are halves
/// of the numbers' value, or times 2¹²⁰ bfloat16.
pub(crate) fn pairs_of_bytes(k: &mut Builder, element: Tokens, word: Reg<U32>) -> [Reg<U32>; 2] {
    let halves = element == Tokens::F16;
    let near = if halves {
        k.and(word, SIGNS | HALVES)
    } else {
        let moved = k.shr(word, 3);
        let magnitude = k.and(moved, BFLOATS);
        k.lop3(word, SIGNS, magnitude, AND_OR)
    };
    let moved = k.shl(word, if halves { 7 } else { 4 });
    let magnitude = k.and(moved, if halves { HALVES } else { BFLOATS });
    let sign = k.shl(word, 1);
    [near, k.lop3(sign, SIGNS, magnitude, AND_OR)]
}

/// 2¹²⁰ times the power of two of 32 numbers of MXFP8, twice a bfloat16: of a row's two bytes the first or the second,
/// and 120 more.
pub(crate) fn byte_power(k: &mut Builder, bytes: Reg<U32>, second: bool) -> Reg<U32> {
    let byte = if second { k.shr(bytes, 8) } else { k.and(bytes, 0xff) };
    k.mul_add(byte, 0x0080_0080u32, 120 * 0x0080_0080)
}

/// Multiplies a pair of floats, given as bits, by another into a register that multiplications read round after round.
pub(crate) fn multiply_into<P: PackedPair<Width = W32>>(k: &mut Builder, bits: Reg<U32>, by: Reg<P>, dst: Reg<U32>) {
    let (a, b) = (Value::from(bits).operand(), Value::from(by).operand());
    k.emit(Arith::Binary { op: BinaryOp::Mul, ty: P::DATA, mode: FloatMode::PLAIN, dst: dst.id(), a, b });
}
