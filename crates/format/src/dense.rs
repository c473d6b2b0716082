//! A matrix of ordinary floats, in whichever of the three common widths it came, with a global scale as
//! an NVFP4 matrix has one. It is what is quantised, and what activations that stay 16-bit come as.

use std::borrow::Cow;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::error::usable;
use crate::matrix::check_length;
use crate::{Error, GlobalScale, Result};

/// The elements of a [`Dense`] matrix, in the type they came in.
#[derive(Clone, Debug)]
pub enum Values<'a> {
    /// IEEE half precision.
    F16(Cow<'a, [f16]>),
    /// bfloat16.
    BF16(Cow<'a, [bf16]>),
    /// IEEE single precision.
    F32(Cow<'a, [f32]>),
}

impl Values<'_> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F16(values) => values.len(),
            Self::BF16(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn into_owned(self) -> Values<'static> {
        match self {
            Self::F16(values) => Values::F16(Cow::Owned(values.into_owned())),
            Self::BF16(values) => Values::BF16(Cow::Owned(values.into_owned())),
            Self::F32(values) => Values::F32(Cow::Owned(values.into_owned())),
        }
    }

    fn as_borrowed(&self) -> Values<'_> {
        match self {
            Self::F16(values) => Values::F16(Cow::Borrowed(values)),
            Self::BF16(values) => Values::BF16(Cow::Borrowed(values)),
            Self::F32(values) => Values::F32(Cow::Borrowed(values)),
        }
    }
}

macro_rules! values_from {
    ($($element:ty => $variant:ident),*) => {$(
        impl From<Vec<$element>> for Values<'_> {
            fn from(values: Vec<$element>) -> Self {
                Self::$variant(Cow::Owned(values))
            }
        }

        impl<'a> From<&'a [$element]> for Values<'a> {
            fn from(values: &'a [$element]) -> Self {
                Self::$variant(Cow::Borrowed(values))
            }
        }

        impl<'a> From<Cow<'a, [$element]>> for Values<'a> {
            fn from(values: Cow<'a, [$element]>) -> Self {
                Self::$variant(values)
            }
        }
    )*};
}

values_from!(f16 => F16, bf16 => BF16, f32 => F32);

/// A row-major [rows, K] matrix of ordinary floats; each element is its value times the global scale.
///
/// K may be any positive number. Values may be NaN or infinite: whoever minds says so when it matters.
#[derive(Clone, Debug)]
pub struct Dense<'a> {
    rows: usize,
    k: usize,
    values: Values<'a>,
    global: GlobalScale,
}

impl<'a> Dense<'a> {
    /// Checks the parts against each other and puts them together; `global` is 1 where there is none.
    ///
    /// # Errors
    ///
    /// If `k` is zero, if the shape is too large to address, if the number of values does not fit the
    /// shape, or if `global` is not finite.
    pub fn new(rows: usize, k: usize, values: impl Into<Values<'a>>, global: impl Into<GlobalScale>) -> Result<Self> {
        if k == 0 {
            return Err(Error::ZeroK);
        }
        let elements = rows.checked_mul(k).ok_or(Error::TooLarge { rows, columns: k })?;
        let values = values.into();
        check_length("values", rows, k, elements, values.len())?;
        Ok(Self { rows, k, values, global: usable(global)? })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The scale of every element.
    pub fn global(&self) -> GlobalScale {
        self.global
    }

    /// The elements, without the global scale.
    pub fn values(&self) -> &Values<'a> {
        &self.values
    }

    /// The same values under another global scale.
    ///
    /// # Errors
    ///
    /// If `global` is not finite.
    pub fn with_global(self, global: impl Into<GlobalScale>) -> Result<Self> {
        Ok(Self { global: usable(global)?, ..self })
    }

    /// The same matrix, independent of what it borrowed from.
    pub fn into_owned(self) -> Dense<'static> {
        Dense { rows: self.rows, k: self.k, values: self.values.into_owned(), global: self.global }
    }

    /// The same matrix, borrowing this one's values; nothing is copied or checked again.
    pub fn as_borrowed(&self) -> Dense<'_> {
        Dense { rows: self.rows, k: self.k, values: self.values.as_borrowed(), global: self.global }
    }

    /// One row widened to f32, which is exact, without the global scale.
    ///
    /// # Panics
    ///
    /// If there is no such row, or if `out` is not K long.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let range = row * self.k..(row + 1) * self.k;
        match &self.values {
            Values::F16(values) => values[range].convert_to_f32_slice(out),
            Values::BF16(values) => values[range].convert_to_f32_slice(out),
            Values::F32(values) => out.copy_from_slice(&values[range]),
        }
    }
}
