//! Tokens as they came, and the power of two by which kernels multiply them so that no product leaves f32's normal
//! range.

use std::ops::Range;

use format::Scaling;
use op::Activations;

use super::scale::{LARGEST_POWER, exponent_of, two_powers};

/// One group's tokens as they came.
#[derive(Clone, Copy)]
pub(super) struct GroupTokens<'a> {
    pub activations: &'a Activations<'a>,
    /// The largest finite magnitude among dense activations.
    pub largest: f32,
}

/// Where a group's largest dense token may lie, as powers of two, for f32 sums of its products to be neither subnormal
/// nor infinite: weights are between 2⁻¹⁷ and 2¹².
const COMFORTABLE: Range<i32> = -20..60;

/// Where it is brought beside MXFP4 weights over many powers of two, 2⁻¹¹⁹ to 2¹¹: so products with the least of them
/// are no smaller than comfortable ones are, and 2³³ of the largest are no infinite sum.
const BESIDE_MANY_POWERS: i32 = 82;

impl GroupTokens<'_> {
    /// The power of two that brings the largest dense token to 2^`place`, or as near as two factors of f32 can.
    pub(super) fn exponent_to(self, place: i32) -> i32 {
        if self.largest == 0.0 {
            return 0;
        }
        (place - exponent_of(self.largest.into())).min(2 * LARGEST_POWER)
    }

    /// The power of two by which kernels that multiply in f32 scale dense tokens: none, unless their products with such
    /// weights would leave f32's normal range.
    pub(super) fn f32_exponent(self, weights: Scaling) -> i32 {
        if weights == Scaling::WideMxFp4 {
            return self.exponent_to(BESIDE_MANY_POWERS);
        }
        if self.largest == 0.0 || COMFORTABLE.contains(&exponent_of(self.largest.into())) {
            return 0;
        }
        self.exponent_to(0)
    }

    /// Writes one token as f32, times a power of two.
    pub(super) fn scaled_row(self, row: usize, exponent: i32, out: &mut [f32]) {
        self.activations.unscaled_row(row, out);
        if exponent != 0 {
            let [first, second] = two_powers(exponent);
            out.iter_mut().for_each(|value| *value = *value * first * second);
        }
    }
}
