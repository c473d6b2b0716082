//! Powers of two beyond what one f32 can hold, by which tokens are brought into range and sums brought back.

use super::pack::COLUMNS;
use super::sums::Lanes;

/// The largest power of two that f32 has.
pub(super) const LARGEST_POWER: i32 = 127;

/// The exponent of a number's leading bit.
pub(super) fn exponent_of(number: f64) -> i32 {
    number.abs().log2().floor() as i32
}

/// A power of two that may be beyond f32 as two that are not.
pub(super) fn two_powers(exponent: i32) -> [f32; 2] {
    [exponent / 2, exponent - exponent / 2].map(|exponent| 2f32.powi(exponent))
}

/// A factor that may be beyond f32, as three that are not: a number between ½ and 1, which can make no sum infinite,
/// and two powers of two.
#[derive(Clone, Copy)]
pub(super) struct Scale([f32; 3]);

impl Scale {
    pub(super) fn new(factor: f64) -> Self {
        if factor == 0.0 {
            return Self([0.0, 1.0, 1.0]);
        }
        let exponent = (exponent_of(factor) + 1).clamp(-2 * (LARGEST_POWER - 1), 2 * LARGEST_POWER);
        let [first, second] = two_powers(exponent);
        // What is still beyond f32 makes every sum infinite but zero, and so does the largest number that is not.
        let largest = f64::from(f32::MAX);
        Self([(factor * 2f64.powi(-exponent)).clamp(-largest, largest) as f32, first, second])
    }

    /// What sums are multiplied with, one after the other.
    pub(super) fn factors(&self) -> [f32; 3] {
        self.0
    }

    /// Adds up a token's rows and multiplies.
    #[inline(always)]
    pub(super) fn apply(&self, rows: &[Lanes]) -> [f32; COLUMNS] {
        let Self([number, first, second]) = *self;
        let mut sums = rows[0].0;
        for row in &rows[1..] {
            sums.iter_mut().zip(row.0).for_each(|(sum, part)| *sum += part);
        }
        sums.map(|sum| sum * number * first * second)
    }
}
