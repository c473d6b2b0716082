//! Floats of eight bits and fewer: to and from them, to the bit as CUDA's own headers have it.

use half::f16;
use ptx::instr::{Direction, NarrowFloat};

/// What NaN becomes: itself, or the largest number where there is none.
fn not_a_number(to: NarrowFloat) -> u8 {
    match to {
        NarrowFloat::E4m3 | NarrowFloat::E5m2 => 0x7f,
        NarrowFloat::Ue8m0 => 0xff,
        NarrowFloat::E2m3 | NarrowFloat::E3m2 => 0x1f,
        NarrowFloat::E2m1 => 7,
    }
}

/// The code of the largest number.
fn largest(to: NarrowFloat) -> u8 {
    match to {
        NarrowFloat::E4m3 => 0x7e,
        NarrowFloat::E5m2 => 0x7b,
        NarrowFloat::Ue8m0 => 0xfe,
        NarrowFloat::E2m3 | NarrowFloat::E3m2 => 0x1f,
        NarrowFloat::E2m1 => 7,
    }
}

/// The power of two at or next to a number, by its size alone.
fn power(direction: Direction, value: f32) -> u8 {
    let bits = value.abs().to_bits();
    let (exponent, mantissa) = ((bits >> 23) as u8, bits & 0x7f_ffff);
    // Below 2^-126 there is 2^-127 alone, whose f32 is half of the smallest normal number.
    let beyond = if exponent == 0 { mantissa > 0x40_0000 } else { mantissa != 0 };
    let up = direction == Direction::Up && beyond;
    exponent.saturating_add(u8::from(up)).min(largest(NarrowFloat::Ue8m0))
}

/// The code of the number that a float is rounded to: to nearest even, a scale in a direction. What is too large
/// becomes the largest.
pub(crate) fn round(to: NarrowFloat, direction: Direction, relu: bool, value: f32) -> u8 {
    if value.is_nan() {
        return not_a_number(to);
    }
    if to == NarrowFloat::Ue8m0 {
        return power(direction, value);
    }
    if relu && value.is_sign_negative() {
        return 0;
    }
    let (exponents, mantissas) = to.parts();
    let sign = u8::from(value.is_sign_negative()) << (exponents + mantissas);
    // Numbers lie evenly up to the first power of two that is normal, and from there on 2^mantissas to a power.
    let least = 2 - (1 << (exponents - 1));
    let size = f64::from(value.abs()).min(1e6);
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(least);
    let steps = (size * 2f64.powi(mantissas as i32 - exponent)).round_ties_even() as i32;
    // The carry into the exponent makes of the last step the next power of two.
    let code = ((exponent - least) << mantissas) + steps;
    sign | code.min(largest(to).into()) as u8
}

/// The number that a code stands for.
pub(crate) fn value(of: NarrowFloat, code: u8) -> f32 {
    let (exponents, mantissas) = of.parts();
    if of == NarrowFloat::Ue8m0 {
        return if code == 0xff { f32::NAN } else { 2f64.powi(i32::from(code) - 127) as f32 };
    }
    let size = code & ((1 << (exponents + mantissas)) - 1);
    let (exponent, mantissa) = (i32::from(size >> mantissas), f32::from(size & ((1 << mantissas) - 1)));
    let least = 2 - (1 << (exponents - 1));
    let number = match (of, size) {
        (NarrowFloat::E4m3, 0x7f) | (NarrowFloat::E5m2, 0x7d..=0x7f) => f32::NAN,
        (NarrowFloat::E5m2, 0x7c) => f32::INFINITY,
        _ if exponent == 0 => mantissa * 2f32.powi(least - mantissas as i32),
        _ => (mantissa + f32::from(1u8 << mantissas)) * 2f32.powi(exponent - 1 + least - mantissas as i32),
    };
    if code >> (exponents + mantissas) & 1 == 1 { -number } else { number }
}

/// The bits of that number as f16, or of a scale as bfloat16.
pub(crate) fn half(of: NarrowFloat, relu: bool, code: u8) -> u16 {
    let number = value(of, code);
    match of {
        _ if number.is_nan() => 0x7fff,
        NarrowFloat::Ue8m0 => (number.to_bits() >> 16) as u16,
        _ if relu && number.is_sign_negative() => 0,
        _ => f16::from_f32(number).to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [NarrowFloat; 5] =
        [NarrowFloat::E4m3, NarrowFloat::E5m2, NarrowFloat::E2m3, NarrowFloat::E3m2, NarrowFloat::E2m1];

    fn rows(kind: &str) -> Vec<Vec<u32>> {
        let lines = include_str!("../tests/narrow/table.txt").lines().filter_map(|line| line.strip_prefix(kind));
        let number = |word: &str| u32::from_str_radix(word, 16).expect("a number");
        lines.map(|line| line.split_whitespace().map(number).collect()).collect()
    }

    #[test]
    fn floats_are_rounded_as_cudas_headers_round_them() {
        let rows = rows("round");
        assert!(rows.len() > 600);
        for row in rows {
            let number = f32::from_bits(row[0]);
            let found = FLOATS.map(|to| u32::from(round(to, Direction::Nearest, false, number)));
            assert_eq!(found, row[1..6], "{number:e}");
            let scale = |direction| u32::from(round(NarrowFloat::Ue8m0, direction, false, number));
            assert_eq!([scale(Direction::Zero), scale(Direction::Up)], row[6..8], "{number:e}");
        }
    }

    #[test]
    fn codes_are_widened_as_cudas_headers_widen_them() {
        for row in rows("widen") {
            let code = row[0] as u8;
            let found = FLOATS.map(|of| u32::from(half(of, false, code)));
            assert_eq!(found, row[1..6], "{code:#x}");
            assert_eq!(u32::from(half(NarrowFloat::Ue8m0, false, code)), row[6], "{code:#x}");
        }
    }

    #[test]
    fn what_is_negative_may_become_zero() {
        assert_eq!(round(NarrowFloat::E5m2, Direction::Nearest, true, -3.0), 0);
        assert_eq!((half(NarrowFloat::E2m1, true, 0xa), half(NarrowFloat::E2m1, true, 0x2)), (0, 0x3c00));
    }
}
