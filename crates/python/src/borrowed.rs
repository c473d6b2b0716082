//! Matrices and tokens as Python lends them.

use hammerhead::Activations;
use hammerhead::format::{Dense, GlobalScale, Matrix};
use pyo3::prelude::*;

use crate::dlpack::Array;
use crate::error::{Error, Result};

/// An NVFP4 matrix as Python gives it: codes, scales and the global scale.
pub type MatrixParts<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, f64);
/// An array of numbers as Python gives it, with the name its owner has for its type.
pub type NumberParts<'py> = (Bound<'py, PyAny>, String);

/// The tokens of one group.
#[derive(FromPyObject)]
pub enum TokenParts<'py> {
    /// Quantised.
    NvFp4(MatrixParts<'py>),
    /// f16, bf16 or f32.
    Dense(NumberParts<'py>),
}

/// A borrowed NVFP4 matrix.
pub struct BorrowedMatrix {
    pub codes: Array,
    pub scales: Array,
    pub global: GlobalScale,
}

impl BorrowedMatrix {
    /// Borrows its arrays.
    pub fn new((codes, scales, global): &MatrixParts<'_>, what: &str, in_order: bool) -> Result<Self> {
        let codes = Array::borrow(codes, format!("the codes of {what}"), in_order)?;
        let scales = Array::borrow(scales, format!("the scales of {what}"), in_order)?;
        Ok(Self { codes, scales, global: GlobalScale::nearest(*global) })
    }

    /// Its rows and K.
    pub fn shape(&self) -> Result<(usize, usize)> {
        let (rows, packed) = self.codes.matrix_shape()?;
        let k = packed.saturating_mul(2);
        let (scale_rows, blocks) = self.scales.matrix_shape()?;
        if (scale_rows, blocks) != (rows, k / 16) {
            let found = format!("their shape is [{scale_rows}, {blocks}], but codes of [{rows}, {packed}] need");
            return Err(Error::value(self.scales.what(), format!("{found} [{rows}, {}]", k / 16)));
        }
        Ok((rows, k))
    }

    /// The matrix that they make.
    pub fn matrix(&self) -> Result<Matrix<'_>> {
        let (rows, k) = self.shape()?;
        Ok(Matrix::new(rows, k, self.codes.bytes()?, self.scales.bytes()?, self.global)?)
    }
}

/// Borrowed tokens.
pub enum BorrowedTokens {
    /// Quantised.
    NvFp4(BorrowedMatrix),
    /// Numbers of the type that their owner says.
    Dense(Array, String),
}

impl BorrowedTokens {
    /// Borrows its arrays.
    pub fn new(parts: &TokenParts<'_>, group: usize, in_order: bool) -> Result<Self> {
        let what = format!("the tokens of group {group}");
        Ok(match parts {
            TokenParts::NvFp4(parts) => BorrowedTokens::NvFp4(BorrowedMatrix::new(parts, &what, in_order)?),
            TokenParts::Dense((object, element)) => {
                BorrowedTokens::Dense(Array::borrow(object, what, in_order)?, element.clone())
            }
        })
    }

    /// All of its arrays.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (one, other) = match self {
            BorrowedTokens::NvFp4(matrix) => (&matrix.codes, Some(&matrix.scales)),
            BorrowedTokens::Dense(array, _) => (array, None),
        };
        std::iter::once(one).chain(other)
    }

    /// The activations that they make.
    pub fn activations(&self) -> Result<Activations<'_>> {
        Ok(match self {
            BorrowedTokens::NvFp4(matrix) => matrix.matrix()?.into(),
            BorrowedTokens::Dense(array, element) => {
                let (rows, k) = array.matrix_shape()?;
                Dense::new(rows, k, array.values(element)?, 1.0)?.into()
            }
        })
    }
}
