//! An FP8 matrix: rows of K e4m3 numbers along which products are summed, and scales beside them.
//!
//! Models that are NVFP4 for the most part have such matrices among their others: attention, shared experts, the head.
//! Their scales come in four shapes ([`Fp8Scales`]). Whoever holds an [`Fp8Matrix`] may rely on what
//! [`Fp8Matrix::new`] checked: lengths agree with the shape, and no number and no scale is NaN or infinite.

use std::borrow::Cow;

use crate::matrix::{check_k, check_length, first_nan};
use crate::{Error, MX_BLOCK, Result, Scaling, e4m3};

/// The sides of blocks, in elements of a row, are multiples of this.
const BLOCK_STEP: usize = 32;

/// The exponent byte of MXFP8 that is NaN.
const MX_NAN: u8 = 0xFF;

/// The exponent byte of MXFP8 that stands for 1.
const MX_ONE: i32 = 127;

/// What the numbers of an FP8 matrix are multiplied with.
#[derive(Clone, Debug, PartialEq)]
pub enum Fp8Scales<'a> {
    /// One number for the whole matrix.
    Matrix(f32),
    /// One number per row.
    Rows(Cow<'a, [f32]>),
    /// One number per block of so many rows and so many elements of each, row-major; the last block of either side may
    /// be smaller.
    Blocks {
        /// Rows and elements of a block.
        block: [usize; 2],
        /// `[⌈rows / block rows⌉, ⌈K / block elements⌉]` numbers.
        scales: Cow<'a, [f32]>,
    },
    /// MXFP8: an exponent byte s per [`MX_BLOCK`] elements of a row, `[rows, K/32]`, which stands for 2^(s−127).
    Mx(Cow<'a, [u8]>),
}

/// An FP8 matrix of shape [rows, K]: `codes` holds one e4m3 byte per element, row after row.
///
/// ```
/// use hammerhead_format::{Fp8Matrix, Fp8Scales};
///
/// // 0x38 is 1.0 and 0xC0 is −2.0.
/// let codes = [vec![0x38; 16], vec![0xC0; 16]].concat();
/// let matrix = Fp8Matrix::new(2, 16, codes, Fp8Scales::Rows(vec![0.5, 3.0].into()))?;
/// assert_eq!(matrix.dequantize()[15..17], [0.5, -6.0]);
/// # Ok::<(), hammerhead_format::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fp8Matrix<'a> {
    rows: usize,
    k: usize,
    codes: Cow<'a, [u8]>,
    scales: Fp8Scales<'a>,
}

impl<'a> Fp8Matrix<'a> {
    /// Checks the parts against each other and puts them together.
    ///
    /// # Errors
    ///
    /// If `k` is zero or no multiple of 16 (of 32 for MXFP8), if the shape is too large to address, if a length does
    /// not fit the shape, if a block has no rows or another number of elements than a multiple of 32, or if a number or
    /// a scale is NaN or infinite.
    pub fn new(rows: usize, k: usize, codes: impl Into<Cow<'a, [u8]>>, scales: Fp8Scales<'a>) -> Result<Self> {
        check_k(k)?;
        let elements = rows.checked_mul(k).ok_or(Error::TooLarge { rows, columns: k })?;
        let codes = codes.into();
        check_length("FP8 numbers", rows, k, elements, codes.len())?;
        if let Some(at) = first_nan(&codes) {
            return Err(Error::Fp8Nan { row: at / k, column: at % k, byte: codes[at] });
        }
        match &scales {
            Fp8Scales::Matrix(scale) => finite(&[*scale])?,
            Fp8Scales::Rows(scales) => {
                check_length("scales", rows, k, rows, scales.len())?;
                finite(scales)?;
            }
            Fp8Scales::Blocks { block: [height, width], scales } => {
                if *height == 0 || *width == 0 || !width.is_multiple_of(BLOCK_STEP) {
                    return Err(Error::Fp8Block { rows: *height, columns: *width });
                }
                check_length("scales", rows, k, rows.div_ceil(*height) * k.div_ceil(*width), scales.len())?;
                finite(scales)?;
            }
            Fp8Scales::Mx(exponents) => {
                if !k.is_multiple_of(MX_BLOCK) {
                    return Err(Error::UnevenMx { k });
                }
                let blocks = k / MX_BLOCK;
                check_length("exponents", rows, k, rows * blocks, exponents.len())?;
                if let Some(at) = exponents.iter().position(|&exponent| exponent == MX_NAN) {
                    return Err(Error::Fp8Scale { index: at, came: f32::NAN });
                }
            }
        }
        Ok(Self { rows, k, codes, scales })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The e4m3 numbers, [rows, K].
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The e4m3 numbers of one row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row_codes(&self, row: usize) -> &[u8] {
        &self.codes[row * self.k..][..self.k]
    }

    /// What they are multiplied with.
    pub fn scales(&self) -> &Fp8Scales<'a> {
        &self.scales
    }

    /// How they share scales where they were packed: blocks are cut at every 64 elements, or at every 32 where they end
    /// between those.
    pub fn scaling(&self) -> Scaling {
        match &self.scales {
            Fp8Scales::Matrix(_) | Fp8Scales::Rows(_) => Scaling::Fp8,
            Fp8Scales::Mx(_) => Scaling::MxFp8,
            Fp8Scales::Blocks { block: [_, width], .. } if width.is_multiple_of(2 * BLOCK_STEP) => Scaling::Fp8By64,
            Fp8Scales::Blocks { .. } => Scaling::Fp8By32,
        }
    }

    /// Elements of a row that share a scale.
    pub fn segment(&self) -> usize {
        match &self.scales {
            Fp8Scales::Matrix(_) | Fp8Scales::Rows(_) => self.k,
            Fp8Scales::Blocks { block: [_, width], .. } => *width,
            Fp8Scales::Mx(_) => MX_BLOCK,
        }
    }

    /// The scale of a row's segment: exact, since f64 holds every f32 and every power of two of MXFP8.
    ///
    /// # Panics
    ///
    /// If there is no such row or segment.
    pub fn scale(&self, row: usize, segment: usize) -> f64 {
        match &self.scales {
            Fp8Scales::Matrix(scale) => f64::from(*scale),
            Fp8Scales::Rows(scales) => f64::from(scales[row]),
            Fp8Scales::Blocks { block: [height, width], scales } => {
                f64::from(scales[row / height * self.k.div_ceil(*width) + segment])
            }
            Fp8Scales::Mx(exponents) => 2f64.powi(i32::from(exponents[row * (self.k / MX_BLOCK) + segment]) - MX_ONE),
        }
    }

    /// Bytes of numbers and scales.
    pub fn bytes(&self) -> usize {
        self.codes.len()
            + match &self.scales {
                Fp8Scales::Matrix(_) => size_of::<f32>(),
                Fp8Scales::Rows(scales) | Fp8Scales::Blocks { scales, .. } => size_of_val(&scales[..]),
                Fp8Scales::Mx(exponents) => exponents.len(),
            }
    }

    /// The whole matrix, row-major, in f32. The one rounding is that of the product with the scale.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.codes.len());
        for row in 0..self.rows {
            for (segment, codes) in self.row_codes(row).chunks(self.segment()).enumerate() {
                let scale = self.scale(row, segment);
                values.extend(codes.iter().map(|&code| (f64::from(e4m3::decode(code)) * scale) as f32));
            }
        }
        values
    }
}

/// Refuses a scale that makes no numbers.
fn finite(scales: &[f32]) -> Result<()> {
    match scales.iter().position(|scale| !scale.is_finite()) {
        Some(index) => Err(Error::Fp8Scale { index, came: scales[index] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ones(rows: usize, k: usize, scales: Fp8Scales<'static>) -> Result<Fp8Matrix<'static>> {
        Fp8Matrix::new(rows, k, vec![0x38; rows * k], scales)
    }

    #[test]
    fn every_shape_of_scales_reaches_its_elements() {
        let matrix = ones(3, 32, Fp8Scales::Matrix(0.25)).unwrap().dequantize();
        assert!(matrix.iter().all(|&value| value == 0.25));
        let rows = ones(3, 32, Fp8Scales::Rows(vec![1.0, -2.0, 0.0].into())).unwrap().dequantize();
        assert_eq!([rows[0], rows[32], rows[95]], [1.0, -2.0, 0.0]);
        // Five rows in blocks of four by 64 of 96: the last block of either side is smaller.
        let scales = Fp8Scales::Blocks { block: [4, 64], scales: vec![1.0, 2.0, 3.0, 4.0].into() };
        let blocks = ones(5, 96, scales).unwrap().dequantize();
        assert_eq!([blocks[0], blocks[64], blocks[4 * 96], blocks[4 * 96 + 95]], [1.0, 2.0, 3.0, 4.0]);
        let mx = ones(1, 64, Fp8Scales::Mx(vec![127, 120].into())).unwrap().dequantize();
        assert_eq!([mx[31], mx[32]], [1.0, 2f32.powi(-7)]);
    }

    #[test]
    fn what_makes_no_numbers_is_refused_where_it_stands() {
        let mut codes = vec![0x38; 32];
        codes[17] = 0xFF;
        let nan = Fp8Matrix::new(2, 16, codes, Fp8Scales::Matrix(1.0)).unwrap_err();
        assert!(matches!(nan, Error::Fp8Nan { row: 1, column: 1, byte: 0xFF }), "{nan}");
        let infinite = ones(2, 16, Fp8Scales::Rows(vec![1.0, f32::INFINITY].into())).unwrap_err();
        assert!(matches!(infinite, Error::Fp8Scale { index: 1, .. }), "{infinite}");
        let nan = ones(1, 64, Fp8Scales::Mx(vec![127, 255].into())).unwrap_err();
        assert!(matches!(nan, Error::Fp8Scale { index: 1, .. }), "{nan}");
        assert!(matches!(ones(1, 24, Fp8Scales::Matrix(1.0)), Err(Error::UnevenK { k: 24 })));
        assert!(matches!(ones(1, 48, Fp8Scales::Mx(vec![127].into())), Err(Error::UnevenMx { k: 48 })));
        assert!(matches!(ones(2, 16, Fp8Scales::Rows(vec![1.0].into())), Err(Error::Length { .. })));
        let narrow = Fp8Scales::Blocks { block: [128, 16], scales: vec![1.0; 2].into() };
        assert!(matches!(ones(1, 32, narrow), Err(Error::Fp8Block { columns: 16, .. })));
    }
}
