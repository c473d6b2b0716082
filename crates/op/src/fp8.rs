//! The plain product with an FP8 matrix, C = A·Wᵀ + bias: its definition in double precision, and how far a backend may
//! be from it.
//!
//! An element of W is its e4m3 number times a scale (see [`Fp8Matrix`]). Backends hold the numbers exactly: four
//! significant bits, also times a power of two. A scale of a whole matrix or of a row multiplies the finished sum, like
//! the global scales of NVFP4, and a scale of MXFP8 its numbers, without rounding: so [`crate::bound`] holds as it is.
//! A scale per block multiplies the sum of its products, which rounds once, and the result is added to the others',
//! which rounds again. That grants, for s segments of K and ε = 2⁻²⁴, ε·(Σ|a·w| + s·P) more, where P is the largest sum
//! on the way. Where sums are exact with the scales multiplied in, they are exact, and nothing more is granted.
//!
//! A backend may end a segment earlier than its scale does: GPUs multiply sums of at most 64 of K with a scale, and in
//! that way also MXFP8's before f16 tokens ([`Segments`]). Each of those counts as a segment.
//!
//! Scales of one row may span [`SPREAD`] powers of two, so that none of its numbers leaves the range of bf16 or f32
//! beside the others. Rows among each other may span as many as they like.

use format::{Dense, Fp8Matrix, Fp8Scales, e4m3};

use crate::bound::Bounded;
use crate::reference::{Element, Row, Sum, dot};
use crate::{Arithmetic, Error, Gate, Result};

/// Powers of two that the scales of a row may span.
pub const SPREAD: i32 = 56;

/// A row's scales as a power of two and factors below two.
#[derive(Clone, Debug, PartialEq)]
pub struct RowScales {
    /// What its finished sum is multiplied with.
    pub row: f64,
    /// What the numbers, or the sums, of each segment are multiplied with before: exact in f32.
    pub segments: Vec<f32>,
}

impl RowScales {
    /// Takes a row's scales apart. Segments whose numbers are all zero count for nothing.
    pub fn of(matrix: &Fp8Matrix<'_>, row: usize) -> Result<Self> {
        if matches!(matrix.scales(), Fp8Scales::Matrix(_) | Fp8Scales::Rows(_)) {
            return Ok(Self { row: matrix.scale(row, 0), segments: vec![1.0] });
        }
        let is_zero = |codes: &[u8]| codes.iter().all(|code| code & 0x7F == 0);
        let segments = matrix.row_codes(row).chunks(matrix.segment()).enumerate();
        let scales: Vec<f64> =
            segments.map(|(at, codes)| if is_zero(codes) { 0.0 } else { matrix.scale(row, at) }).collect();
        // Every f32 is a normal number as an f64, whose exponent is then what its bits say.
        let exponent = |scale: &f64| (scale.abs().to_bits() >> 52) as i32 - 1023;
        let exponents = || scales.iter().filter(|scale| **scale != 0.0).map(exponent);
        let (Some(least), Some(most)) = (exponents().min(), exponents().max()) else {
            return Ok(Self { row: 1.0, segments: vec![0.0; scales.len()] });
        };
        if most - least > SPREAD {
            return Err(Error::Fp8Spread { row, span: most - least, most: SPREAD });
        }
        let power = 2f64.powi(most);
        Ok(Self { row: power, segments: scales.iter().map(|scale| (scale / power) as f32).collect() })
    }
}

/// Where a backend multiplies sums with scales of their own, and adds them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// At the end of every block.
    Blocks,
    /// At every so many elements of K, whatever shares a scale.
    Every(usize),
}

impl Segments {
    /// How many sums of an element are multiplied with a scale of their own.
    fn count(self, matrix: &Fp8Matrix<'_>) -> usize {
        match (self, matrix.scales()) {
            (Segments::Every(stretch), _) => matrix.k().div_ceil(stretch),
            (Segments::Blocks, Fp8Scales::Blocks { .. }) => matrix.k().div_ceil(matrix.segment()),
            (Segments::Blocks, _) => 0,
        }
    }
}

/// All of C row by row, as a backend that adds up in this way may have it before its cast.
pub fn bounded(
    tokens: &Dense<'_>,
    matrix: &Fp8Matrix<'_>,
    bias: Option<&[f32]>,
    (arithmetic, segments): (Arithmetic, Segments),
) -> Result<Vec<Bounded>> {
    let rows: Vec<Row> = (0..tokens.rows())
        .map(|row| {
            let mut values = vec![0.0; tokens.k()];
            tokens.row(row, &mut values);
            Row::new(values)
        })
        .collect();
    let largest = rows.iter().map(Row::largest).fold(0.0, f64::max);
    let mut columns = Vec::with_capacity(matrix.rows());
    for row in 0..matrix.rows() {
        let scales = RowScales::of(matrix, row)?;
        // Exact in f64, and its places are those of f32: 4 bits times 24.
        let numbers = matrix.row_codes(row).chunks(matrix.segment()).zip(&scales.segments);
        let pairs: Vec<(f32, f32)> =
            numbers.flat_map(|(codes, &s)| codes.iter().map(move |&code| (e4m3::decode(code), s))).collect();
        let (codes, factors): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        columns.push((Row::scaled(&codes, &factors), scales));
    }
    let segments = segments.count(matrix);
    let global = tokens.global().value();
    let element = |token: &Row, (column, scales): &(Row, RowScales), bias: f32| {
        // The roundings of segments are granted here, not those of an input scale.
        let sum = dot(token, column, global * scales.row, largest);
        let rounded = if sum.exact || segments == 0 { 0.0 } else { segment_error(&sum, segments) };
        let gate = Sum { rounded, ..sum }.biased(bias.into());
        Bounded::new(&Element { gate, up: None, value: gate.value }, Gate::None, matrix.k(), arithmetic)
    };
    let bias = |column: usize| bias.map_or(0.0, |bias| bias[column]);
    Ok(rows
        .iter()
        .flat_map(|token| columns.iter().enumerate().map(|(at, column)| element(token, column, bias(at))))
        .collect())
}

/// What multiplying the sums of so many segments, and adding them up, may lose.
fn segment_error(sum: &Sum, segments: usize) -> f64 {
    let partial = sum.magnitude.min(sum.peak + sum.burst);
    2f64.powi(-24) * (sum.magnitude + segments as f64 * partial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_worked_by_hand() {
        // 1.0 and −2.0 in blocks of 32 with scales 3 and ½.
        let codes = [vec![0x38; 32], vec![0xC0; 32]].concat();
        let scales = Fp8Scales::Blocks { block: [1, 32], scales: vec![3.0, 0.5].into() };
        let matrix = Fp8Matrix::new(1, 64, codes, scales).unwrap();
        let tokens = Dense::new(1, 64, vec![0.5f32; 64], 2.0).unwrap();
        let found = bounded(&tokens, &matrix, Some(&[1.0]), (Arithmetic::Fused, Segments::Blocks)).unwrap();
        assert_eq!(found[0].value, 32.0 * 3.0 - 64.0 * 0.5 + 1.0);
        assert!(found[0].error < 1e-4);
    }

    #[test]
    fn scales_of_a_row_are_taken_apart_exactly_or_refused() {
        let matrix = |exponents: Vec<u8>| {
            let mut codes = vec![0x38; 64];
            codes[32..].fill(if exponents[1] == 0 { 0x80 } else { 0x38 });
            Fp8Matrix::new(1, 64, codes, Fp8Scales::Mx(exponents.into())).unwrap()
        };
        let scales = RowScales::of(&matrix(vec![254, 250]), 0).unwrap();
        assert_eq!(scales, RowScales { row: 2f64.powi(127), segments: vec![1.0, 2f32.powi(-4)] });
        let zero = RowScales::of(&matrix(vec![200, 0]), 0).unwrap();
        assert_eq!(zero.segments, [1.0, 0.0], "a block of zeros may have any scale");
        let wide = RowScales::of(&matrix(vec![200, 200 - SPREAD as u8 - 1]), 0).unwrap_err();
        assert!(matches!(wide, Error::Fp8Spread { row: 0, span: 57, .. }), "{wide}");
    }
}
