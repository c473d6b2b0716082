//! The operation, as simply as it can be written: what every backend is measured against.
//!
//! One element of C is two dot products over K, each scaled by its two global scales, joined by the gate:
//!
//! ```text
//! gate = αₐ·α₁ · Σₖ a[k]·b1[k]      up = αₐ·α₂ · Σₖ a[k]·b2[k]      c = silu(gate)·up
//! ```
//!
//! The operands are read exactly: a code times its block scale has at most six significant bits. A product of two
//! operands is exact in f64, and sums are kept in f64, so a reference value is good to about K·2⁻⁵³ of the sum of
//! magnitudes, which is nothing beside the f32 arithmetic that it judges.
//!
//! Beside each sum stand two numbers that say how hard it was to compute, from which [`crate::bound`] derives what a
//! backend may be off by: the sum of magnitudes Σ|a·b|, and the *quantum*, a power of two that divides every product.

use crate::{Activations, Gate, Weights};

/// A row of an operand, exact and without its global scale, and the largest power of two that divides its values.
#[derive(Clone, Debug)]
pub struct Row {
    values: Vec<f32>,
    quantum: f64,
}

impl Row {
    /// Keeps a row and finds its quantum: the least place value that any of its numbers uses.
    pub fn new(values: Vec<f32>) -> Self {
        let lowest = values.iter().filter_map(|&x| lowest_place(x)).min();
        Self { values, quantum: lowest.map_or(f64::INFINITY, |place| 2f64.powi(place)) }
    }
}

/// The place of a number's lowest set bit, as a power of two; none for zero, which everything divides.
fn lowest_place(x: f32) -> Option<i32> {
    let (magnitude, mantissa_bits) = (x.to_bits() & 0x7FFF_FFFF, 23);
    if magnitude == 0 {
        return None;
    }
    let (exponent, fraction) = (magnitude >> mantissa_bits, magnitude & 0x007F_FFFF);
    let significand = if exponent == 0 { fraction } else { fraction | 0x0080_0000 };
    Some(exponent.max(1) as i32 - 150 + significand.trailing_zeros() as i32)
}

/// One dot product, and how hard it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// α·Σ a·b.
    pub value: f64,
    /// |α|·Σ |a·b|; infinite where Σ |a·b| itself is beyond f32, so that no f32 sum can be held to anything.
    pub magnitude: f64,
    /// Whether every partial sum, in any order, is a number that f32 can hold exactly.
    pub exact: bool,
    /// What products may be lost that vanish beside the group's largest activation, or in f32 altogether.
    pub negligible: f64,
}

/// Multiplies and adds two rows, the first one of a group whose largest activation is `largest`. Eight running sums instead of one, so that an f64 pipeline is kept busy.
pub fn dot(a: &Row, b: &Row, alpha: f64, largest: f64) -> Sum {
    const LANES: usize = 8;
    let (mut sums, mut magnitudes) = ([0f64; LANES], [0f64; LANES]);
    for (a, b) in a.values.chunks_exact(LANES).zip(b.values.chunks_exact(LANES)) {
        for lane in 0..LANES {
            let product = f64::from(a[lane]) * f64::from(b[lane]);
            sums[lane] += product;
            magnitudes[lane] += product.abs();
        }
    }
    let (value, magnitude) = (sums.iter().sum::<f64>(), magnitudes.iter().sum::<f64>());
    // 2²⁴ quanta are exact in f32; half of that leaves room for operands split into parts.
    let exact = magnitude == 0.0 || magnitude / (a.quantum * b.quantum) <= f64::from(1 << 23);
    let overflows = magnitude > f64::from(f32::MAX) / 2.0;
    Sum {
        value: alpha * value,
        magnitude: if overflows { f64::INFINITY } else { alpha.abs() * magnitude },
        exact,
        negligible: alpha.abs() * a.values.len() as f64 * (largest * 2f64.powi(-124) + 2f64.powi(-118)),
    }
}

/// One element of C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// The scaled gate sum.
    pub gate: Sum,
    /// The scaled up sum, absent without a gate.
    pub up: Option<Sum>,
    /// c, before it is rounded to an output type.
    pub value: f64,
}

impl Element {
    /// The scaled sums that it is made of.
    pub fn sums(&self) -> impl Iterator<Item = &Sum> {
        std::iter::once(&self.gate).chain(&self.up)
    }
}

/// A group's operands with the rows that are to be computed read out.
#[derive(Debug)]
pub struct Reference<'a, 'b> {
    activations: &'a Activations<'b>,
    weights: &'a Weights<'b>,
    gate: Gate,
    largest: f64,
}

impl<'a, 'b> Reference<'a, 'b> {
    /// A group's operands and its gate. With [`Gate::None`] the up matrix is not looked at.
    pub fn new(activations: &'a Activations<'b>, weights: &'a Weights<'b>, gate: Gate) -> Self {
        let mut values = vec![0f32; activations.k()];
        let mut largest = 0f32;
        for row in 0..activations.rows() {
            activations.unscaled_row(row, &mut values);
            largest = values.iter().fold(largest, |largest, x| largest.max(x.abs()));
        }
        Self { activations, weights, gate, largest: largest.into() }
    }

    /// A row of A.
    pub fn token(&self, row: usize) -> Row {
        let mut values = vec![0.0; self.activations.k()];
        self.activations.unscaled_row(row, &mut values);
        Row::new(values)
    }

    /// The rows of B1 and B2 that make one column of C.
    pub fn column(&self, column: usize) -> Vec<Row> {
        let matrices = self.weights.matrices().take(if self.gate == Gate::None { 1 } else { 2 });
        let read = |matrix: &format::Matrix<'_>| {
            let mut values = vec![0.0; matrix.k()];
            matrix.unscaled_row(column, &mut values);
            Row::new(values)
        };
        matrices.map(read).collect()
    }

    /// The element where a token and a column meet.
    pub fn element(&self, token: &Row, column: &[Row]) -> Element {
        let alpha = |matrix: &format::Matrix<'_>| f64::from(self.activations.global()) * f64::from(matrix.global());
        let gate = dot(token, &column[0], alpha(self.weights.gate()), self.largest);
        let up = match (self.gate, self.weights.up()) {
            (Gate::None, _) | (_, None) => None,
            (_, Some(matrix)) => Some(dot(token, &column[1], alpha(matrix), self.largest)),
        };
        let value = self.gate.apply(gate.value, up.map_or(0.0, |sum| sum.value));
        Element { gate, up, value }
    }

    /// All of C, row by row.
    pub fn all(&self) -> Vec<Element> {
        let columns: Vec<Vec<Row>> = (0..self.weights.n()).map(|n| self.column(n)).collect();
        let mut elements = Vec::with_capacity(self.activations.rows() * columns.len());
        for row in 0..self.activations.rows() {
            let token = self.token(row);
            elements.extend(columns.iter().map(|column| self.element(&token, column)));
        }
        elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantum_of_a_row_is_the_lowest_bit_of_its_numbers() {
        for (x, place) in
            [(1.0, 1.0), (-6.0, 2.0), (0.5, 0.5), (1.5, 0.5), (448.0, 64.0), (f32::from_bits(1), 2f64.powi(-149))]
        {
            assert_eq!(Row::new(vec![x]).quantum, place, "{x}");
            assert_eq!(Row::new(vec![0.0, 1024.0, x]).quantum, place, "{x} among larger ones");
        }
        assert_eq!(Row::new(vec![-0.0]).quantum, f64::INFINITY);
    }

    #[test]
    fn a_dot_product_worked_by_hand() {
        let mut a = vec![0.0; 16];
        let mut b = vec![0.0; 16];
        (a[0], b[0], a[9], b[9]) = (1.5, 2.0, -0.5, 6.0);
        let sum = dot(&Row::new(a), &Row::new(b), 2.0, 0.0);
        assert_eq!((sum.value, sum.magnitude, sum.exact), (0.0, 12.0, true));
        assert!(sum.negligible < 1e-33);
    }

    #[test]
    fn a_sum_with_more_bits_than_f32_is_not_called_exact() {
        let a = Row::new([vec![1.0; 15], vec![2f32.powi(-30)]].concat());
        let b = Row::new(vec![1.0; 16]);
        assert!(!dot(&a, &b, 1.0, 0.0).exact);
    }
}
