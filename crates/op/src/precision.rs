//! What tokens are multiplied as: what they are, or FP8.
//!
//! **Exact** is the rule: no operand is rounded. **FP8** is a choice that must be asked for, since it changes results.
//! It rounds dense tokens and weights to e4m3, the eight-bit float with four bits of exponent and three of mantissa, so
//! that tensor cores multiply them at twice the rate of 16-bit numbers. In this order:
//!
//! 1. **Tokens**, row by row. Where there is an input scale, they are multiplied with it first, and the product is
//!    rounded to f32. The row's factor 2^e has the largest e for which no magnitude exceeds 448, within −126 and 126
//!    ([`token_exponent`]). x̂ is x·2^e, rounded to the nearest e4m3 number, ties to even. Numbers keep four
//!    significant bits down to 2⁻¹³ of the row's largest, fewer below, and may become zero from 2⁻¹⁷ of it on. A row
//!    with a number that is not finite has NaN for all of its results.
//! 2. **Weights**, matrix by matrix. The factor 2^l brings the power of two of the matrix's largest scale to 2⁸, if l
//!    is at most 15 ([`weight_lift`]). ŵ is code·scale·2^(l−7), rounded to the nearest e4m3 number, ties to even. A
//!    product of a code and a scale has up to six significant bits, and e4m3 has four: 1.5, 3 and 6 round with five of
//!    the eight mantissas of scales, by at most 1/21 of themselves, and nothing else does, as long as the scale is at
//!    least 2⁻⁶ of the largest. (Scales that are powers of two, as MXFP4's are, lose nothing down to 2⁻⁹ of the
//!    largest.) Below that, ŵ is a multiple of 2⁻⁹ and off by up to 2⁻¹⁰, where 6 times the largest scale is 12 to
//!    22.5.
//! 3. **Sums** Σ x̂·ŵ have f32's exponents, and of its bits as many as the tensor cores keep, see
//!    [`crate::arithmetic`]. They are not promoted on their way.
//! 4. Sums times the global scales and 2^(7−l−e), then biases and the gate, as always.
//!
//! All factors here are powers of two, so that nothing but these roundings changes a number.
//!
//! **A whole layer** rounds before each of its products. Gate and up are given tokens as above. Where a token's
//! weights multiply what its experts are given, they multiply the sums Σ x̂·ŵ, before biases: x̂ does not depend on
//! them. What is between the products is first rounded as [`Intermediate`] says, to the tokens' type or to f32, then
//! multiplied with down's input scale if there is one, rounded to f32, and then rounded like a row of tokens, with a
//! factor of its own. What an expert makes of a token is rounded to bf16, whatever the tokens are, before it is
//! weighed: that is half the memory to write and to read. An expert of every token does the same. Its own gate σ(x·v),
//! routing and the sum over experts stay exact in their operands.

use std::fmt;
use std::str::FromStr;

use format::{Matrix, e4m3};

use crate::{Error, Intermediate, Result};

/// What tokens and weights are rounded to before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Nothing: operands are what they are.
    #[default]
    Exact,
    /// e4m3, dense tokens with a factor per row; see [`mod@crate::precision`].
    Fp8,
}

impl Precision {
    /// Both.
    pub const ALL: [Precision; 2] = [Precision::Exact, Precision::Fp8];

    /// Refuses what whole layers do not combine: FP8 with what has fewer bits already, or with adapters.
    pub fn check_layer(self, intermediate: Intermediate, adapted: bool) -> Result<()> {
        let refused = |reason: &str| Err(Error::Fp8Tokens { reason: reason.to_owned() });
        match (self, intermediate) {
            (Precision::Fp8, Intermediate::NvFp4) => {
                refused("an nvfp4 intermediate has fewer bits; take intermediate=tokens or f32, or ask for exact")
            }
            (Precision::Fp8, _) if adapted => {
                refused("adapters are added to exact layers only; load the layer with exact")
            }
            _ => Ok(()),
        }
    }

    /// Refuses FP8 for a layer in two places, of which the processor would compute a part exactly.
    pub fn check_places(self, two: bool) -> Result<()> {
        if self == Precision::Fp8 && two {
            let reason = "a layer in two places is computed exactly only; give no gpu_bytes, or ask for exact";
            return Err(Error::Fp8Tokens { reason: reason.to_owned() });
        }
        Ok(())
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Precision::Exact => "exact",
            Precision::Fp8 => "fp8",
        })
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Precision::ALL.into_iter().find(|p| p.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "precision of tokens",
            name: name.to_owned(),
            known: "exact, fp8".to_owned(),
        })
    }
}

/// Exponents of the factors that rows are multiplied by, at most: their inverses are f32's, too.
pub const MOST_TOKEN_EXPONENT: i32 = 126;
/// The largest power of two that scales are multiplied by.
pub const MOST_LIFT: u32 = 15;
/// What ŵ is besides, times code and scale: 2 to this power.
pub const WEIGHT_EXPONENT: i32 = -7;

/// The exponent of the power of two that a row is multiplied by whose largest magnitude is this.
pub fn token_exponent(largest: f32) -> i32 {
    // 448 is 1.75·2⁸: what has a larger mantissa than 1.75 counts as the next power of two.
    let bits = largest.to_bits() & 0x7FFF_FFFF;
    let exponent = (bits.saturating_add(0x001F_FFFF) >> 23).cast_signed() - 127;
    (8 - exponent).clamp(-MOST_TOKEN_EXPONENT, MOST_TOKEN_EXPONENT)
}

/// A row as e4m3 numbers, exactly, and the exponent that they were multiplied by. All of them are NaN where one number
/// is not finite.
pub fn round_row(values: &[f32]) -> (Vec<f32>, i32) {
    let largest =
        values.iter().fold(0f32, |largest, x| if x.is_finite() { largest.max(x.abs()) } else { f32::INFINITY });
    if largest.is_infinite() {
        return (vec![f32::NAN; values.len()], 0);
    }
    let exponent = token_exponent(largest);
    let factor = 2f32.powi(exponent);
    (values.iter().map(|x| nearest(x * factor)).collect(), exponent)
}

/// The exponent of the power of two that a matrix's scales are multiplied by.
pub fn weight_lift(matrix: &Matrix<'_>) -> u32 {
    let scale = matrix.largest_scale();
    // The exponents of e4m3 numbers are −9 to 8, and powers of two of MXFP4 are at most 2⁸.
    let exponent = if scale > 0.0 { (scale.to_bits() >> 23).cast_signed() - 127 } else { 8 };
    (8 - exponent).unsigned_abs().min(MOST_LIFT)
}

/// Weights, each a code times its scale, as e4m3 numbers.
pub fn round_weights(weights: &[f32], lift: u32) -> Vec<f32> {
    let factor = 2f32.powi(lift.cast_signed() + WEIGHT_EXPONENT);
    weights.iter().map(|w| nearest(w * factor)).collect()
}

/// The nearest e4m3 number to one that is.
pub(crate) fn nearest(x: f32) -> f32 {
    e4m3::encode(x).map_or(f32::NAN, e4m3::decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_a_row_comes_within_a_factor_of_two_of_448() {
        for (largest, exponent) in [(448.0, 0), (448.1, -1), (1.0, 8), (1.75, 8), (1.76, 7), (f32::MAX, -120)] {
            assert_eq!(token_exponent(largest), exponent, "{largest}");
            let there = f64::from(largest) * 2f64.powi(exponent);
            assert!(there > 224.0 && there <= 448.0, "{largest}: {there}");
        }
        assert_eq!([token_exponent(0.0), token_exponent(f32::from_bits(1))], [126; 2]);
    }

    #[test]
    fn a_row_is_rounded_to_nearest_even_and_one_huge_value_drowns_the_small_ones() {
        assert_eq!(round_row(&[448.0, -17.0, 19.0, 0.0]), (vec![448.0, -16.0, 20.0, 0.0], 0));
        let (row, exponent) = round_row(&[2.9e38, 1.0, -2f32.powi(110)]);
        assert_eq!((row[1], exponent), (0.0, -119));
        assert_eq!(row[2], -2f32.powi(-9), "2⁻¹⁸ of the largest is the smallest number that there is");
        assert!(round_row(&[1.0, f32::NEG_INFINITY]).0.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn only_three_magnitudes_round_and_only_with_five_mantissas_by_a_twentyfirst_at_most() {
        let (mut rounded, mut worst) = (Vec::new(), 0f32);
        for mantissa in 0..8u8 {
            let scale = e4m3::decode(0x38 | mantissa);
            for code in [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0f32] {
                let exact = code * scale;
                let found = round_weights(&[exact], 8)[0] / 2.0;
                worst = worst.max((found / exact - 1.0).abs());
                if found != exact {
                    rounded.push((mantissa, code));
                }
            }
        }
        let mantissas: Vec<u8> = rounded.iter().step_by(3).map(|(mantissa, _)| *mantissa).collect();
        assert_eq!((rounded.len(), mantissas.len()), (15, 5), "{rounded:?}");
        assert!(rounded.iter().all(|(_, code)| [1.5, 3.0, 6.0].contains(code)), "{rounded:?}");
        assert!(worst <= 1.0 / 21.0 + 1e-6, "{worst}");
    }

    #[test]
    fn powers_of_two_are_exact_down_to_two_to_the_minus_nine_of_the_largest() {
        let exact = |below: i32| {
            [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0f32].iter().all(|code| {
                let weight = code * 2f32.powi(8 - below);
                round_weights(&[weight], 0)[0] == weight / 128.0
            })
        };
        assert!((0..=9).all(exact) && !exact(10));
    }
}
