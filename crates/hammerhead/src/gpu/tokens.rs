//! Tokens as halves, exactly.
//!
//! The tensor cores multiply halves. NVFP4 tokens are halves already: a code times its scale has six significant bits
//! between 2⁻¹⁰ and 2688. bfloat16 and single precision have more range or more bits, so they are scaled by a power of two
//! that brings the group's largest magnitude just below 2¹⁴, and split: the first part is the value rounded to a half, the
//! next what is left times 2¹¹, and so on until nothing is left, or nothing that counts. Parts become rows of their own,
//! and the sums over them are put together again by the join.
//!
//! How many parts that takes follows from the numbers: one for bfloat16 whose magnitudes lie within 2³⁰ of each other,
//! three for common single-precision data.

use std::borrow::Cow;

use format::Values;
use half::f16;

use crate::Activations;

/// Bits from one part to the next: the significand of a half.
pub const PART_BITS: u32 = 11;

/// What a part is multiplied by to become the next one's measure.
const NEXT: f64 = (1u32 << PART_BITS) as f64;

/// The most parts there can be: each takes eleven bits, and what counts lies within 124.
pub const MOST_PARTS: usize = 12;

/// Exponent below which the largest magnitude is brought: a little under a half's largest, 2¹⁶.
const TOP: i32 = 14;

/// What may be left of a value when splitting stops, as a part of the group's largest magnitude (see `bound`).
const NEGLIGIBLE: f64 = 1.0 / (1u128 << 124) as f64;

/// The tokens of a group, ready for the tensor cores.
#[derive(Debug)]
pub struct Halves<'a> {
    /// `parts` matrices `[m, k]` one after another, the leading part first.
    pub values: Cow<'a, [f16]>,
    /// How many parts there are, at least one.
    pub parts: usize,
    /// The values are 2^exponent times the tokens.
    pub exponent: i32,
}

impl<'a> Halves<'a> {
    /// Expands or splits a group's tokens, of which the largest magnitude is known if they are dense.
    pub fn new(activations: &'a Activations<'_>, largest: f32) -> Self {
        let whole = |values| Halves { values, parts: 1, exponent: 0 };
        match activations {
            Activations::NvFp4(matrix) => {
                let mut row = vec![0f32; matrix.k()];
                let mut values = Vec::with_capacity(matrix.rows() * matrix.k());
                for index in 0..matrix.rows() {
                    matrix.unscaled_row(index, &mut row);
                    values.extend(row.iter().map(|&x| f16::from_f32(x)));
                }
                whole(values.into())
            }
            Activations::Dense(dense) => match dense.values() {
                Values::F16(values) => whole(Cow::Borrowed(&values[..])),
                Values::BF16(values) => split(values.iter().map(|x| x.to_f64()), largest),
                Values::F32(values) => split(values.iter().map(|&x| f64::from(x)), largest),
            },
        }
    }
}

/// Splits values into parts until nothing that counts is left.
fn split(values: impl Iterator<Item = f64>, largest: f32) -> Halves<'static> {
    let exponent = if largest == 0.0 { 0 } else { TOP - 1 - exponent_of(largest.into()) };
    let scale = 2f64.powi(exponent);
    let mut left: Vec<f64> = values.map(|x| x * scale).collect();
    let (mut halves, mut parts) = (Vec::with_capacity(left.len()), 0);
    let mut negligible = f64::from(largest) * scale * NEGLIGIBLE;
    loop {
        // What is left is scaled up with each part, and so is what does not count.
        negligible *= NEXT;
        let mut counts = false;
        for x in &mut left {
            let part = f16::from_f64(*x);
            halves.push(part);
            *x = (*x - part.to_f64()) * NEXT;
            counts |= x.abs() > negligible;
        }
        parts += 1;
        if !counts {
            return Halves { values: halves.into(), parts, exponent };
        }
    }
}

/// The exponent of a positive number's leading bit.
fn exponent_of(x: f64) -> i32 {
    (x.to_bits() >> 52) as i32 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{Dense, Matrix};

    fn rebuilt(halves: &Halves<'_>, count: usize) -> Vec<f64> {
        let part = |j: usize, i: usize| {
            halves.values[j * count + i].to_f64() * 2f64.powi(-halves.exponent - (PART_BITS as usize * j) as i32)
        };
        (0..count).map(|i| (0..halves.parts).map(|j| part(j, i)).sum()).collect()
    }

    fn dense(values: Vec<f32>) -> Activations<'static> {
        Dense::new(1, values.len(), values, 1.0).unwrap().into()
    }

    #[test]
    fn nvfp4_tokens_are_halves_as_they_are() {
        let scales: Vec<u8> = (0..=255u8).filter(|s| s & 0x7F != 0x7F).collect();
        let codes: Vec<u8> = (0..scales.len() * 8).map(|i| (i * 37) as u8).collect();
        let matrix = Matrix::new(scales.len(), 16, codes, scales, 1.0).unwrap();
        let activations = Activations::from(matrix.clone());
        let halves = Halves::new(&activations, 0.0);
        let mut row = [0f32; 16];
        for index in 0..matrix.rows() {
            matrix.unscaled_row(index, &mut row);
            let found = halves.values[16 * index..][..16].iter().map(|x| x.to_f32());
            assert!(found.zip(row).all(|(x, y)| x == y), "row {index}");
        }
    }

    #[test]
    fn single_precision_survives_splitting_to_the_last_bit() {
        let values: Vec<f32> = (0..160).map(|i| (i as f32 - 80.3).powi(3) * 1.234_567e-4).collect();
        let largest = values.iter().fold(0f32, |a, b| a.max(b.abs()));
        let activations = dense(values.clone());
        let halves = Halves::new(&activations, largest);
        assert_eq!(halves.parts, 3);
        assert!(rebuilt(&halves, values.len()).iter().zip(&values).all(|(x, &y)| *x == f64::from(y)));
    }

    #[test]
    fn values_of_any_magnitude_survive_as_far_as_they_count() {
        let values: Vec<f32> = (0..16).map(|i| 1.7 * 2f32.powi(127 - 17 * i)).collect();
        let activations = dense(values.clone());
        let halves = Halves::new(&activations, values[0]);
        for (x, &y) in rebuilt(&halves, 16).iter().zip(&values) {
            assert!((x - f64::from(y)).abs() <= f64::from(values[0]) * NEGLIGIBLE, "{x} for {y}");
        }
        let tiny = dense(vec![f32::from_bits(1); 16]);
        assert_eq!(rebuilt(&Halves::new(&tiny, f32::from_bits(1)), 16)[0], 2f64.powi(-149));
        let zero = dense(vec![0.0; 16]);
        assert_eq!(Halves::new(&zero, 0.0).parts, 1);
    }

    #[test]
    fn common_bfloat16_takes_one_part() {
        let values: Vec<half::bf16> = (1..=160).map(|i| half::bf16::from_f32(0.37 * i as f32 - 30.0)).collect();
        let activations = Activations::from(Dense::new(1, 160, values, 1.0).unwrap());
        assert_eq!(Halves::new(&activations, 30.0).parts, 1);
    }
}
