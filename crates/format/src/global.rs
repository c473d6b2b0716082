//! The one scale of a whole matrix, as its file has it.
//!
//! Most formats store a number that multiplies; compressed-tensors stores one that divides. Its reciprocal in f32 would
//! be off by half an ulp, and with it every result. So the stored number stays what it is until the factor of a product
//! is formed, in f64, of all the scales that go into it.

use std::fmt;

/// The global scale of a matrix. A plain f32 is one that multiplies.
///
/// ```
/// use hammerhead_format::{GlobalScale, Matrix};
///
/// let multiplied = Matrix::new(1, 16, vec![0x22; 8], vec![0x38], 0.25)?;
/// let divided = Matrix::new(1, 16, vec![0x22; 8], vec![0x38], GlobalScale::Divides(4.0))?;
/// assert_eq!(multiplied.dequantize(), divided.dequantize());
/// # Ok::<(), hammerhead_format::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GlobalScale {
    /// Every element is multiplied by this number.
    Multiplies(f32),
    /// Every element is divided by this number.
    Divides(f32),
}

impl GlobalScale {
    /// The factor that it stands for: exact if it multiplies, rounded to f64 if it divides.
    pub fn value(self) -> f64 {
        match self {
            Self::Multiplies(factor) => factor.into(),
            Self::Divides(divisor) => 1.0 / f64::from(divisor),
        }
    }

    /// The number in the file, whichever it does.
    pub fn stored(self) -> f32 {
        match self {
            Self::Multiplies(factor) => factor,
            Self::Divides(divisor) => divisor,
        }
    }

    /// The scale whose [`value`](Self::value) is nearest to a number. A number that was a value comes back as the scale
    /// it was of, so `1.0 / g` in f64 says exactly "divides by g".
    pub fn nearest(value: f64) -> Self {
        let (factor, divisor) = (value as f32, value.recip() as f32);
        let distance = |scale: Self| (scale.value() - value).abs();
        let (multiplies, divides) = (Self::Multiplies(factor), Self::Divides(divisor));
        // Beyond the range of f32 no scale can be used, and the number itself makes the clearest complaint.
        if factor.is_finite() && divides.is_usable() && distance(divides) < distance(multiplies) {
            divides
        } else {
            multiplies
        }
    }

    /// A number times the scale, rounded once.
    pub fn apply(self, number: f32) -> f32 {
        match self {
            Self::Multiplies(factor) => number * factor,
            Self::Divides(divisor) => number / divisor,
        }
    }

    /// The scale times a power of two, if that is a scale too.
    pub(crate) fn times_power_of_two(self, exponent: i32) -> Option<Self> {
        let shifted = |number: f32, exponent| {
            let wide = f64::from(number) * 2f64.powi(exponent);
            (f64::from(wide as f32) == wide).then_some(wide as f32)
        };
        match self {
            Self::Multiplies(factor) => shifted(factor, exponent).map(Self::Multiplies),
            Self::Divides(divisor) => shifted(divisor, -exponent).map(Self::Divides),
        }
    }

    /// Whether it makes numbers of numbers: finite, as stored and as a factor.
    pub fn is_usable(self) -> bool {
        match self {
            Self::Multiplies(factor) => factor.is_finite(),
            Self::Divides(divisor) => divisor.is_finite() && divisor.recip().is_finite(),
        }
    }
}

impl From<f32> for GlobalScale {
    fn from(factor: f32) -> Self {
        Self::Multiplies(factor)
    }
}

/// The factor, or `1/` the divisor.
impl fmt::Display for GlobalScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Multiplies(factor) => factor.fmt(f),
            Self::Divides(divisor) => {
                f.write_str("1/")?;
                divisor.fmt(f)
            }
        }
    }
}
