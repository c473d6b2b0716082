//! Matrices, weights and tokens as Python lends them.

use hammerhead::format::{Dense, GlobalScale, MX_BLOCK, Matrix};
use hammerhead::{Activations, MlpWeights, Weights};
use pyo3::prelude::*;

use crate::dlpack::{Array, Place};
use crate::error::{Error, Result};

/// An NVFP4 or MXFP4 matrix as Python gives it: codes, scales, the global scale and how many elements share a scale.
pub type MatrixParts<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, f64, usize);
/// An array of numbers as Python gives it, with the name its owner has for its type.
pub type NumberParts<'py> = (Bound<'py, PyAny>, String);

/// The weights of one product: one matrix or two, a bias per matrix if there are any, and what tokens are multiplied
/// with first.
pub type WeightParts<'py> = (MatrixParts<'py>, Option<MatrixParts<'py>>, Option<Vec<Vec<f32>>>, Option<Vec<f32>>);
/// The weights of an MLP: gate and up (or up alone), down, and the global scale of an NVFP4 intermediate.
pub type MlpParts<'py> = (WeightParts<'py>, WeightParts<'py>, f64);

/// The tokens of one group.
#[derive(FromPyObject)]
pub enum TokenParts<'py> {
    /// Quantised.
    NvFp4(MatrixParts<'py>),
    /// f16, bf16 or f32.
    Dense(NumberParts<'py>),
}

/// A borrowed NVFP4 or MXFP4 matrix.
pub struct BorrowedMatrix {
    pub codes: Array,
    pub scales: Array,
    pub global: GlobalScale,
    block: usize,
}

impl BorrowedMatrix {
    /// Borrows its arrays.
    pub fn new((codes, scales, global, block): &MatrixParts<'_>, what: &str, in_order: bool) -> Result<Self> {
        let codes = Array::borrow(codes, format!("the codes of {what}"), in_order)?;
        let scales = Array::borrow(scales, format!("the scales of {what}"), in_order)?;
        Ok(Self { codes, scales, global: GlobalScale::nearest(*global), block: *block })
    }

    /// Its rows and K.
    pub fn shape(&self) -> Result<(usize, usize)> {
        let (rows, packed) = self.codes.matrix_shape()?;
        let k = packed.saturating_mul(2);
        let (scale_rows, blocks) = self.scales.matrix_shape()?;
        let expected = k / self.block;
        if (scale_rows, blocks) != (rows, expected) {
            let found = format!("their shape is [{scale_rows}, {blocks}], but codes of [{rows}, {packed}] need");
            return Err(Error::value(self.scales.what(), format!("{found} [{rows}, {expected}]")));
        }
        Ok((rows, k))
    }

    /// The matrix that they make.
    pub fn matrix(&self) -> Result<Matrix<'_>> {
        let (rows, k) = self.shape()?;
        let (codes, scales) = (self.codes.bytes()?, self.scales.bytes()?);
        match self.block {
            MX_BLOCK => Ok(Matrix::mx(rows, k, codes, scales, self.global)?),
            _ => Ok(Matrix::new(rows, k, codes, scales, self.global)?),
        }
    }
}

/// The borrowed weights of one product.
pub struct BorrowedWeights {
    first: BorrowedMatrix,
    second: Option<BorrowedMatrix>,
    biases: Option<Vec<Vec<f32>>>,
    input_scale: Option<Vec<f32>>,
}

impl BorrowedWeights {
    /// Borrows its arrays, which are called so in complaints.
    pub fn new(parts: WeightParts<'_>, [first_name, second_name]: [&str; 2], of: &str) -> Result<Self> {
        let (first, second, biases, input_scale) = parts;
        let borrow = |parts: &MatrixParts<'_>, name| BorrowedMatrix::new(parts, &format!("{name} of {of}"), false);
        let second = second.as_ref().map(|second| borrow(second, second_name)).transpose()?;
        Ok(Self { first: borrow(&first, first_name)?, second, biases, input_scale })
    }

    /// The weights that they make.
    pub fn weights(&self) -> Result<Weights<'_>> {
        let mut weights = match &self.second {
            Some(second) => Weights::gated(self.first.matrix()?, second.matrix()?)?,
            None => Weights::plain(self.first.matrix()?),
        };
        if let Some(biases) = &self.biases {
            weights = weights.with_bias(biases.iter().map(Vec::as_slice))?;
        }
        match &self.input_scale {
            Some(scale) => Ok(weights.with_input_scale(&scale[..])?),
            None => Ok(weights),
        }
    }
}

/// The borrowed weights of an MLP.
pub struct BorrowedMlp {
    of: String,
    up: BorrowedWeights,
    down: BorrowedWeights,
    intermediate_scale: GlobalScale,
}

impl BorrowedMlp {
    /// Borrows its arrays. `of` names the MLP in complaints.
    pub fn new((up, down, scale): MlpParts<'_>, of: impl Into<String>) -> Result<Self> {
        let of = of.into();
        let up = BorrowedWeights::new(up, ["b1", "b2"], &of)?;
        let down = BorrowedWeights::new(down, ["down", "down"], &of)?;
        Ok(Self { of, up, down, intermediate_scale: GlobalScale::nearest(scale) })
    }

    /// The weights that they make.
    pub fn weights(&self) -> Result<MlpWeights<'_>> {
        let named = |what: &str, error: Error| match error {
            Error::Operation(error) => Error::value(format!("{what} of {}", self.of), error.to_string()),
            other => other,
        };
        let up = self.up.weights().map_err(|error| named("b1 or b2", error))?;
        let down = self.down.weights().map_err(|error| named("down", error))?;
        let whole = MlpWeights::new(up, down).and_then(|mlp| mlp.with_intermediate_scale(self.intermediate_scale));
        whole.map_err(|error| Error::value(&self.of, error.to_string()))
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

/// Refuses results that would be written over each other or over what is read.
pub fn check_apart<'a>(read: impl Iterator<Item = &'a Array>, written: impl Iterator<Item = &'a Array>) -> Result<()> {
    let mut ranges: Vec<_> = read.map(|array| (array, false)).chain(written.map(|array| (array, true))).collect();
    ranges.retain(|(array, _)| !array.addresses().is_empty());
    ranges.sort_by_key(|(array, _)| array.addresses().start);
    // Of what was read so far and of what was written so far: the array that reaches furthest.
    let mut furthest: [Option<&Array>; 2] = [None, None];
    for (array, writes) in ranges {
        let rivals = if writes { &furthest[..] } else { &furthest[1..] };
        let overlaps = |rival: &&Array| rival.addresses().end > array.addresses().start;
        if let Some(rival) = rivals.iter().flatten().find(|rival| overlaps(rival)) {
            return Err(Error::value(array.what(), format!("it shares memory with {}", rival.what())));
        }
        let furthest = &mut furthest[usize::from(writes)];
        if furthest.is_none_or(|so_far| so_far.addresses().end < array.addresses().end) {
            *furthest = Some(array);
        }
    }
    Ok(())
}

/// Where all arrays of a call lie, of which the first are the tokens.
pub fn common_place<'a>(mut arrays: impl Iterator<Item = &'a Array>) -> Result<Place> {
    let place = arrays.next().map_or(Place::Host, Array::place);
    match arrays.find(|array| array.place() != place) {
        None => Ok(place),
        Some(other) => {
            let found = format!("it lies on {}, and the tokens on {place}; bring all to one", other.place());
            Err(Error::value(other.what(), found))
        }
    }
}
