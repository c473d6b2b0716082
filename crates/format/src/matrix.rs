//! A matrix of four bits per element: rows of K elements along which products are summed, two codes a byte, a scale
//! for every block of elements, and one global scale. NVFP4 has an e4m3 scale for sixteen elements, MXFP4 a power of
//! two for thirty-two; codes are the same.
//!
//! The bytes are borrowed where they can be (a mapped checkpoint is tens of gigabytes) and owned where
//! they must be. Whoever holds a [`Matrix`] may rely on what [`Matrix::new`] checked: lengths agree with
//! the shape, no scale is NaN, the global scale is finite.

mod mxfp4;

use std::borrow::Cow;
use std::fmt;

use crate::error::usable;
use crate::{BLOCK, Error, GlobalScale, MX_BLOCK, Result, e2m1, e4m3};

/// How the codes of a matrix share scales; of FP8 matrices, how they do where they were packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scaling {
    /// NVFP4: an e4m3 number for 16 elements.
    #[default]
    NvFp4,
    /// MXFP4: a power of two for 32 elements, within [`Scaling::MOST_HALF_POWERS`] powers of two.
    MxFp4,
    /// The same over more powers of two. Codes times scales are exact in bfloat16 and f32, but not in f16.
    WideMxFp4,
    /// FP8 whose scales, of rows or of the whole matrix, multiply finished sums.
    Fp8,
    /// MXFP8: a power of two for 32 elements.
    MxFp8,
    /// FP8 in blocks: a number for 64 elements, which multiplies the sum of their products.
    Fp8By64,
    /// The same with a number for 32 elements.
    Fp8By32,
}

impl Scaling {
    /// The powers of two that scales may span where a code times its scale is to be an f16: 2⁸ to 2⁻¹⁶.
    pub const MOST_HALF_POWERS: usize = 25;

    /// How many elements share a scale.
    pub const fn block(self) -> usize {
        match self {
            Scaling::NvFp4 => BLOCK,
            Scaling::MxFp4 | Scaling::WideMxFp4 | Scaling::MxFp8 | Scaling::Fp8By32 => MX_BLOCK,
            Scaling::Fp8By64 => 2 * MX_BLOCK,
            Scaling::Fp8 => usize::MAX,
        }
    }

    /// Bytes of a row of `k` elements with its scales.
    pub const fn row_bytes(self, k: usize) -> usize {
        match self {
            Scaling::NvFp4 | Scaling::MxFp4 | Scaling::WideMxFp4 => k / 2 + k / self.block(),
            Scaling::Fp8 => k,
            Scaling::MxFp8 => k + k / MX_BLOCK,
            Scaling::Fp8By64 | Scaling::Fp8By32 => k + size_of::<f32>() * k.div_ceil(self.block()),
        }
    }

    /// Whether elements are e4m3 numbers.
    pub const fn is_fp8(self) -> bool {
        matches!(self, Scaling::Fp8 | Scaling::MxFp8 | Scaling::Fp8By64 | Scaling::Fp8By32)
    }

    /// Whether scales are powers of two for 32 codes of four bits.
    pub const fn is_mx(self) -> bool {
        matches!(self, Scaling::MxFp4 | Scaling::WideMxFp4)
    }

    /// What all of some matrices may have: that of the widest, or NVFP4 if one of them has that, or if there are none.
    pub fn common<'m, 'a: 'm>(matrices: impl IntoIterator<Item = &'m Matrix<'a>>) -> Self {
        let scalings = matrices.into_iter().map(Matrix::scaling);
        let joined = |one: Self, other: Self| if one.is_mx() && other.is_mx() { one.max(other) } else { Self::NvFp4 };
        scalings.reduce(joined).unwrap_or_default()
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scaling::NvFp4 => "nvfp4",
            Scaling::MxFp4 => "mxfp4",
            Scaling::WideMxFp4 => "mxfp4 over many powers of two",
            Scaling::Fp8 => "fp8",
            Scaling::MxFp8 => "mxfp8",
            Scaling::Fp8By64 => "fp8 with scales for 64",
            Scaling::Fp8By32 => "fp8 with scales for 32",
        })
    }
}

/// A matrix of four bits per element, of shape [rows, K].
///
/// `codes` holds two e2m1 codes a byte, the even k in the low nibble, row after row. `scales` holds a byte for each
/// block, row-major. For NVFP4 that is an e4m3 number for sixteen elements; a negative one is legal and means what it
/// says. For MXFP4 ([`Matrix::mx`]) it is the biased exponent s of 2^(s−127) for thirty-two.
#[derive(Clone, Debug)]
pub struct Matrix<'a> {
    rows: usize,
    k: usize,
    codes: Cow<'a, [u8]>,
    scales: Cow<'a, [u8]>,
    scaling: Scaling,
    global: GlobalScale,
}

impl<'a> Matrix<'a> {
    /// Checks the parts of an NVFP4 matrix against each other and puts them together.
    ///
    /// # Errors
    ///
    /// If `k` is zero or no multiple of 16, if the shape is too large to address, if a length does not
    /// fit the shape, if a scale byte is NaN, or if `global` is not finite.
    pub fn new(
        rows: usize,
        k: usize,
        codes: impl Into<Cow<'a, [u8]>>,
        scales: impl Into<Cow<'a, [u8]>>,
        global: impl Into<GlobalScale>,
    ) -> Result<Self> {
        check_k(k)?;
        let elements = rows.checked_mul(k).ok_or(Error::TooLarge { rows, columns: k })?;
        let (codes, scales) = (codes.into(), scales.into());
        check_length("codes", rows, k, elements / 2, codes.len())?;
        check_length("scales", rows, k, elements / BLOCK, scales.len())?;
        if let Some(position) = first_nan(&scales) {
            let blocks = k / BLOCK;
            return Err(Error::NanScale { row: position / blocks, block: position % blocks, byte: scales[position] });
        }
        Ok(Self { rows, k, codes, scales, scaling: Scaling::NvFp4, global: usable(global)? })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of elements in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How codes share scales.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// The number of scales in a row, K/16 or K/32.
    pub fn blocks(&self) -> usize {
        self.k / self.scaling.block()
    }

    /// The scale of every element.
    pub fn global(&self) -> GlobalScale {
        self.global
    }

    /// The packed codes, [rows, K/2].
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales, [rows, K/16] or [rows, K/32].
    pub fn scales(&self) -> &[u8] {
        &self.scales
    }

    /// The packed codes of one row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row_codes(&self, row: usize) -> &[u8] {
        &self.codes[row * (self.k / 2)..][..self.k / 2]
    }

    /// The scales of one row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row_scales(&self, row: usize) -> &[u8] {
        &self.scales[row * self.blocks()..][..self.blocks()]
    }

    /// The same bytes under another global scale.
    ///
    /// # Errors
    ///
    /// If `global` is not finite.
    pub fn with_global(self, global: impl Into<GlobalScale>) -> Result<Self> {
        Ok(Self { global: usable(global)?, ..self })
    }

    /// The same matrix, independent of what it borrowed from.
    pub fn into_owned(self) -> Matrix<'static> {
        Matrix {
            rows: self.rows,
            k: self.k,
            codes: Cow::Owned(self.codes.into_owned()),
            scales: Cow::Owned(self.scales.into_owned()),
            scaling: self.scaling,
            global: self.global,
        }
    }

    /// The same matrix, borrowing this one's bytes; nothing is copied or checked again.
    pub fn as_borrowed(&self) -> Matrix<'_> {
        Matrix {
            rows: self.rows,
            k: self.k,
            codes: Cow::Borrowed(&self.codes),
            scales: Cow::Borrowed(&self.scales),
            scaling: self.scaling,
            global: self.global,
        }
    }

    /// One row as code · scale, without the global scale: at most six significant bits, so exact in f32 and bf16
    /// (and in f16, but for [`Scaling::WideMxFp4`]).
    ///
    /// # Panics
    ///
    /// If there is no such row, or if `out` is not K long.
    pub fn unscaled_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.k, "a row has K elements");
        let block = self.scaling.block();
        let blocks = out.chunks_exact_mut(block).zip(self.row_codes(row).chunks_exact(block / 2));
        for ((out, codes), &scale) in blocks.zip(self.row_scales(row)) {
            let scale = self.scale(scale);
            for (pair, &byte) in out.chunks_exact_mut(2).zip(codes) {
                let [low, high] = e2m1::PAIRS[usize::from(byte)];
                pair[0] = low * scale;
                pair[1] = high * scale;
            }
        }
    }

    /// A scale byte's value.
    fn scale(&self, byte: u8) -> f32 {
        if self.scaling.is_mx() { mxfp4::decode(byte) } else { e4m3::decode(byte) }
    }

    /// The largest magnitude of a scale; 0 without any.
    pub fn largest_scale(&self) -> f32 {
        // Bytes without their sign rise with what they mean.
        let magnitude = if self.scaling.is_mx() { 0xFF } else { 0x7F };
        self.scales.iter().map(|scale| scale & magnitude).max().map_or(0.0, |largest| self.scale(largest))
    }

    /// The whole matrix, row-major, as (code · scale) · global in f32. The one rounding is that of the
    /// last product, or quotient.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.k];
        for (row, out) in values.chunks_exact_mut(self.k).enumerate() {
            self.unscaled_row(row, out);
            out.iter_mut().for_each(|value| *value = self.global.apply(*value));
        }
        values
    }
}

/// Refuses a K that blocks of sixteen do not fill.
pub(crate) fn check_k(k: usize) -> Result<()> {
    if k == 0 || !k.is_multiple_of(BLOCK) {
        return Err(Error::UnevenK { k });
    }
    Ok(())
}

/// Refuses a buffer that does not fit its shape.
pub(crate) fn check_length(part: &'static str, rows: usize, k: usize, expected: usize, came: usize) -> Result<()> {
    if came != expected {
        return Err(Error::Length { part, rows, columns: k, expected, came });
    }
    Ok(())
}

/// Where the first NaN stands among e4m3 numbers, if there is one.
///
/// A checkpoint has gigabytes of them and hardly ever a NaN, so each chunk is first reduced without a branch, which
/// compiles to vector instructions, and only a chunk with a hit is searched.
pub(crate) fn first_nan(numbers: &[u8]) -> Option<usize> {
    const CHUNK: usize = 4096;
    let (index, chunk) = numbers
        .chunks(CHUNK)
        .enumerate()
        .find(|(_, chunk)| chunk.iter().fold(false, |hit, &byte| hit | e4m3::is_nan(byte)))?;
    let inside = chunk.iter().position(|&byte| e4m3::is_nan(byte))?;
    Some(index * CHUNK + inside)
}
