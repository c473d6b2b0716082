//! What fragments hold, and what their multiplication gives.
//!
//! Products of narrow floats are exact in f32. They are added to C one after the other by rising k, each sum rounded to
//! nearest in f32; sums in f16 are rounded to it once, in the end. In double precision each product is fused with its
//! addition. Integers are added up exactly and then wrap around, or stop at the ends of their range.

use half::f16;
use ptx::instr::{Fragment, MatrixElement, MatrixType};

use crate::tensor_core::decode;

/// A matrix, row by row, of elements as the arithmetic takes them.
pub(crate) struct Matrix<T> {
    columns: usize,
    elements: Vec<T>,
}

impl<T: Copy + Default> Matrix<T> {
    /// From the elements that lanes hold.
    pub(crate) fn gather(fragment: Fragment, held: impl Fn(usize, usize) -> T) -> Self {
        let [rows, columns] = fragment.sides();
        let mut matrix = Matrix { columns, elements: vec![T::default(); rows * columns] };
        for lane in 0..32 {
            for element in 0..fragment.elements() {
                let (row, column) = fragment.place(lane, element);
                matrix.elements[row * columns + column] = held(lane, element);
            }
        }
        matrix
    }

    pub(crate) fn at(&self, (row, column): (usize, usize)) -> T {
        self.elements[row * self.columns + column]
    }

    /// Each element of C with the products of its row and column added to it by rising k.
    fn added(mut self, a: &Matrix<T>, b: &Matrix<T>, add: impl Fn(T, T, T) -> T) -> Self {
        let (depth, columns) = (a.columns, self.columns);
        for (row, sums) in self.elements.chunks_exact_mut(columns).enumerate() {
            for k in 0..depth {
                let factor = a.elements[row * depth + k];
                let others = &b.elements[k * columns..(k + 1) * columns];
                sums.iter_mut().zip(others).for_each(|(sum, other)| *sum = add(*sum, factor, *other));
            }
        }
        self
    }

    fn map(&self, bits: impl Fn(T) -> u64) -> Matrix<u64> {
        Matrix { columns: self.columns, elements: self.elements.iter().map(|element| bits(*element)).collect() }
    }
}

fn single(ty: MatrixType, bits: u64) -> f32 {
    match ty {
        MatrixType::Of(element) => decode(element, &bits.to_le_bytes()[..element.bits() as usize / 8]),
        _ => f32::from_bits(bits as u32),
    }
}

fn integer(ty: MatrixType, bits: u64) -> i64 {
    match ty {
        MatrixType::Of(MatrixElement::U8) => i64::from(bits as u8),
        MatrixType::Of(_) => i64::from((bits as u8).cast_signed()),
        _ => i64::from((bits as u32).cast_signed()),
    }
}

/// D = A·B + C, of elements as bits.
pub(crate) fn multiply(
    [d, a, b, c]: [MatrixType; 4],
    [of_a, of_b, of_c]: [&Matrix<u64>; 3],
    saturate: bool,
) -> Matrix<u64> {
    fn read<T>(matrix: &Matrix<u64>, element: impl Fn(u64) -> T) -> Matrix<T> {
        Matrix { columns: matrix.columns, elements: matrix.elements.iter().map(|bits| element(*bits)).collect() }
    }
    match d {
        MatrixType::F64 => {
            let [of_a, of_b, of_c] = [of_a, of_b, of_c].map(|matrix| read(matrix, f64::from_bits));
            of_c.added(&of_a, &of_b, |sum, a, b| a.mul_add(b, sum)).map(f64::to_bits)
        }
        MatrixType::S32 => {
            let of = |matrix, ty| read(matrix, |bits| integer(ty, bits));
            let sums = of(of_c, c).added(&of(of_a, a), &of(of_b, b), |sum, a, b| sum + a * b);
            let held = |sum: i64| sum.clamp(i32::MIN.into(), i32::MAX.into());
            sums.map(|sum| u64::from((if saturate { held(sum) } else { sum }) as u32))
        }
        _ => {
            let of = |matrix, ty| read(matrix, |bits| single(ty, bits));
            let sums = of(of_c, c).added(&of(of_a, a), &of(of_b, b), |sum, a, b| sum + a * b);
            sums.map(|sum| match d {
                MatrixType::Of(_) => f16::from_f32(sum).to_bits().into(),
                _ => sum.to_bits().into(),
            })
        }
    }
}
