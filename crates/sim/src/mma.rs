//! What a warp's tensor core instructions compute, and which lane holds what.
//!
//! Products are exact in f32. They are added to the accumulator one after the other by rising k, each sum rounded to
//! nearest: see `tensor_core` for what hardware does otherwise.

use ptx::instr::{MatrixElement, NarrowFloat, Scaling};

use crate::lanes::Words;
use crate::narrow;
use crate::tensor_core::{wide_rows, widen};
use crate::tensor_memory::{e2m1, ue4m3};

/// Rows of A, columns of B.
pub(crate) const ROWS: usize = 16;
pub(crate) const COLUMNS: usize = 8;
/// Depth with 16-bit elements, and with block-scaled ones.
pub(crate) const DEPTH: usize = 16;
pub(crate) const SCALED_DEPTH: usize = 64;

/// The accumulators of a warp, row by row.
pub(crate) type Sums = [[f32; COLUMNS]; ROWS];

/// The row and the column of one of a lane's four accumulators.
pub(crate) fn place(lane: usize, register: usize) -> (usize, usize) {
    (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2)
}

/// Accumulators from the registers of a warp: a pair of registers has eight rows, of which each lane has two
/// neighbours.
pub(crate) fn sums(registers: [&Words; 4]) -> Sums {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (rows, pair) in sums.as_chunks_mut::<8>().0.iter_mut().zip(registers.as_chunks::<2>().0) {
        let neighbours = rows.as_flattened_mut().as_chunks_mut::<2>().0.iter_mut();
        neighbours.zip(pair[0].iter().zip(pair[1])).for_each(|(two, (left, right))| {
            *two = [f32::from_bits(*left), f32::from_bits(*right)];
        });
    }
    sums
}

/// Accumulators as the registers of a warp.
pub(crate) fn fragment(sums: &Sums) -> [Words; 4] {
    let mut registers = [[0; 32]; 4];
    for (rows, pair) in sums.as_chunks::<8>().0.iter().zip(registers.as_chunks_mut::<2>().0) {
        let [left, right] = pair;
        let neighbours = rows.as_flattened().as_chunks::<2>().0.iter();
        neighbours.zip(left.iter_mut().zip(right)).for_each(|(two, (left, right))| {
            (*left, *right) = (two[0].to_bits(), two[1].to_bits());
        });
    }
    registers
}

/// D += A·B, by rising k, with `a` as [row][k] and `b` as [k][column].
pub(crate) fn multiply<const DEPTH: usize>(sums: &mut Sums, a: &[[f32; DEPTH]], b: &[[f32; COLUMNS]]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: this machine has what the function needs.
        unsafe { multiply_eight(sums, a, b) };
        return;
    }
    add_products(sums, a, b);
}

/// The same with a row of eight columns in a register.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_eight<const DEPTH: usize>(sums: &mut Sums, a: &[[f32; DEPTH]], b: &[[f32; COLUMNS]]) {
    add_products(sums, a, b);
}

/// The same, four rows at a time, which stay in registers.
#[inline(always)]
fn add_products<const DEPTH: usize>(sums: &mut Sums, a: &[[f32; DEPTH]], b: &[[f32; COLUMNS]]) {
    let Some(b) = b.first_chunk::<DEPTH>() else { return };
    for (sums, a) in sums.as_chunks_mut::<4>().0.iter_mut().zip(a.as_chunks::<4>().0) {
        let mut held = *sums;
        for (k, b) in b.iter().enumerate() {
            for (held, a) in held.iter_mut().zip(a) {
                held.iter_mut().zip(b).for_each(|(sum, b)| *sum += a[k] * b);
            }
        }
        *sums = held;
    }
}

/// The 16-bit elements of a register, which covers eight rows and eight of k: four lanes have a row, two neighbours
/// each.
fn halves(register: &Words) -> [[u16; 8]; 8] {
    let mut rows = [[0; 8]; 8];
    for (two, word) in rows.as_flattened_mut().as_chunks_mut::<2>().0.iter_mut().zip(register) {
        *two = [*word as u16, (*word >> 16) as u16];
    }
    rows
}

/// A by row, then k.
fn rows_of_a(element: MatrixElement, registers: [&Words; 4]) -> [f32; ROWS * DEPTH] {
    let mut bits = [0; ROWS * DEPTH];
    for (register, values) in registers.into_iter().enumerate() {
        let first = 8 * (register % 2) * DEPTH + 8 * (register / 2);
        for (row, elements) in halves(values).iter().enumerate() {
            bits[first + row * DEPTH..][..8].copy_from_slice(elements);
        }
    }
    let mut wide = [0.0; ROWS * DEPTH];
    widen(element, &bits, &mut wide);
    wide
}

/// B by k, then column.
fn columns_of_b(element: MatrixElement, registers: [&Words; 2]) -> [f32; COLUMNS * DEPTH] {
    let mut bits = [0; COLUMNS * DEPTH];
    for (values, bits) in registers.into_iter().zip(bits.as_chunks_mut::<64>().0) {
        let columns = halves(values);
        for (k, bits) in bits.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bits = std::array::from_fn(|column| columns[column][k]);
        }
    }
    let mut wide = [0.0; COLUMNS * DEPTH];
    widen(element, &bits, &mut wide);
    wide
}

/// 16 × 8 × depth.
pub(crate) fn multiply_dense(sums: &mut Sums, element: MatrixElement, a: [&Words; 4], b: [&Words; 2]) {
    if element.bits() != 16 {
        let depth = element.depth() as usize;
        let (a, of_b) = (wide_rows(element, &rows_of_bytes(&a)), wide_rows(element, &rows_of_bytes(&b)));
        let b: Vec<f32> = (0..depth * COLUMNS).map(|at| of_b[at % COLUMNS * depth + at / COLUMNS]).collect();
        return multiply_deep(sums, depth, &a, &b);
    }
    let (a, b) = (rows_of_a(element, a), columns_of_b(element, b));
    multiply(sums, a.as_chunks::<DEPTH>().0, b.as_chunks().0);
}

/// D += A·B for a depth that is known when it runs, with `a` by row, then k, and `b` by k, then column.
pub(crate) fn multiply_deep(sums: &mut Sums, depth: usize, a: &[f32], b: &[f32]) {
    let b = b.as_chunks().0;
    match depth {
        8 => multiply(sums, a.as_chunks::<8>().0, b),
        32 => multiply(sums, a.as_chunks::<32>().0, b),
        _ => multiply(sums, a.as_chunks::<DEPTH>().0, b),
    }
}

/// The 32 bytes along k of each row: a register has sixteen of them in eight rows, four lanes to a row.
fn rows_of_bytes(registers: &[&Words]) -> Vec<[u8; 32]> {
    let blocks = registers.len() / 2;
    let mut rows = vec![[0; 32]; 8 * blocks];
    for (register, words) in registers.iter().enumerate() {
        for (lane, word) in words.iter().enumerate() {
            let (row, first) = (lane / 4 + 8 * (register % blocks), 16 * (register / blocks) + 4 * (lane % 4));
            rows[row][first..first + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
    rows
}

/// A by row, then k, from the registers of one warp.
pub(crate) fn elements_of_a(element: MatrixElement, registers: [&Words; 4]) -> Vec<f32> {
    match element.bits() {
        16 => rows_of_a(element, registers).to_vec(),
        _ => wide_rows(element, &rows_of_bytes(&registers)),
    }
}

/// Accumulators of integers with products added, which are exact as floats: 32 of two numbers of eight bits are less
/// than 2^24.
pub(crate) fn add_integers(before: [Words; 4], products: &Sums, saturate: bool) -> [Words; 4] {
    let mut sums = before;
    for (sums, products) in sums.iter_mut().zip(fragment(products)) {
        for (sum, product) in sums.iter_mut().zip(products) {
            let (old, product) = (sum.cast_signed(), f32::from_bits(product) as i32);
            let new = if saturate { old.saturating_add(product) } else { old.wrapping_add(product) };
            *sum = new.cast_unsigned();
        }
    }
    sums
}

/// The codes of a fragment times their scales, each put where `place` says by row and k: a register covers eight rows
/// and 32 of k, eight codes to a lane.
fn spread_codes<const R: usize, const N: usize>(
    registers: [&Words; R],
    scale: impl Fn(usize, usize) -> f32,
    place: impl Fn(usize, usize) -> usize,
) -> [f32; N] {
    let (mut values, rows) = ([0.0; N], N / SCALED_DEPTH);
    let blocks = rows / 8;
    for (register, words) in registers.into_iter().enumerate() {
        for (lane, word) in words.iter().enumerate() {
            let row = lane / 4 + 8 * (register % blocks);
            let first = 8 * (lane % 4) + 32 * (register / blocks);
            let scale = scale(row, first / 16);
            for code in 0..8 {
                values[place(row, first + code)] = e2m1((*word >> (4 * code)) as u8 & 15) * scale;
            }
        }
    }
    values
}

/// The scales of one side: the register that holds them, which lanes of a quad give them, and their first byte.
pub(crate) type Scales<'w> = (&'w Words, u32, u32);

/// 16 × 8 × 32 or 64 with block scales.
pub(crate) fn multiply_scaled(
    sums: &mut Sums,
    scaling: Scaling,
    a: [&Words; 4],
    b: [&Words; 2],
    [(scales_a, lanes_a, byte_a), (scales_b, lane_b, byte_b)]: [Scales<'_>; 2],
) {
    let decode = |word: u32, block: usize, first: u32| match scaling {
        Scaling::NvFp4 => ue4m3((word >> (8 * block)) as u8),
        // Two blocks of sixteen have one scale.
        Scaling::MxFp4 => narrow::value(NarrowFloat::Ue8m0, (word >> (8 * (first as usize + block / 2))) as u8),
        Scaling::Mx(_) => narrow::value(NarrowFloat::Ue8m0, (word >> (8 * first)) as u8),
    };
    let of_row = |row, block| decode(scales_a[4 * (row % 8) + 2 * lanes_a as usize + row / 8], block, byte_a);
    let of_column = |column, block| decode(scales_b[4 * column + lane_b as usize], block, byte_b);
    if let Scaling::Mx([of_a, of_b]) = scaling {
        let (a, b) = (rows_of_bytes(&a), rows_of_bytes(&b));
        for (row, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                // Scales of two sides may be too large for f32 though their product is not.
                let scale = f64::from(of_row(row, 0)) * f64::from(of_column(column, 0));
                for (a, b) in a[row].iter().zip(&b[column]) {
                    let product = f64::from(contained(of_a, *a)) * f64::from(contained(of_b, *b)) * scale;
                    *sum = (f64::from(*sum) + product) as f32;
                }
            }
        }
        return;
    }
    let a: [f32; ROWS * SCALED_DEPTH] = spread_codes(a, of_row, |row, k| row * SCALED_DEPTH + k);
    let b: [f32; COLUMNS * SCALED_DEPTH] = spread_codes(b, of_column, |column, k| k * COLUMNS + column);
    multiply(sums, a.as_chunks::<SCALED_DEPTH>().0, b.as_chunks().0);
}

/// The number in a byte: one of six bits has the lower ones, one of four those in the middle.
fn contained(of: NarrowFloat, byte: u8) -> f32 {
    narrow::value(of, if of == NarrowFloat::E2m1 { byte >> 2 & 15 } else { byte })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register per lane, from the element at each place.
    fn spread<const R: usize>(value: impl Fn(usize, usize) -> f32) -> [Words; R] {
        let blocks = R / 2;
        let bits = |x: f32| u32::from(half::f16::from_f32(x).to_bits());
        let register = |r: usize, lane: usize| {
            let (row, k) = (lane / 4 + 8 * (r % blocks), 2 * (lane % 4) + 8 * (r / blocks));
            bits(value(row, k)) | bits(value(row, k + 1)) << 16
        };
        std::array::from_fn(|r| std::array::from_fn(|lane| register(r, lane)))
    }

    #[test]
    fn a_single_one_picks_its_row_and_its_column() {
        // A has a one at (row 9, k 11) alone, so D's row 9 is B's elements at k 11.
        let a: [Words; 4] = spread(|row, k| f32::from(u8::from((row, k) == (9, 11))));
        let b: [Words; 2] = spread(|column, k| (column * 16 + k) as f32);
        let mut found = [[0.5; COLUMNS]; ROWS];
        multiply_dense(&mut found, MatrixElement::F16, a.each_ref(), b.each_ref());
        for (at, sum) in found.as_flattened().iter().copied().enumerate() {
            let (row, column) = (at / COLUMNS, at % COLUMNS);
            let expected = if row == 9 { (column * 16 + 11) as f32 + 0.5 } else { 0.5 };
            assert_eq!(sum, expected, "row {row} column {column}");
        }
        assert_eq!(sums(fragment(&found).each_ref()), found);
    }

    #[test]
    fn registers_are_where_the_isa_says() {
        // ISA 9.7.14.5.8: a2 is (row g; k 2c + 8, 2c + 9), b1 the same k of column g, c3 (row g + 8; column 2c + 1).
        let mut a = [[0; 32]; 4];
        a[2][4 * 3 + 1] = 0x3c00 << 16; // (row 3, k 11) = 1
        let mut b = [[0; 32]; 2];
        b[1][4 * 5 + 1] = 0x4000 << 16; // (k 11, column 5) = 2
        let mut found = [[0.0; COLUMNS]; ROWS];
        multiply_dense(&mut found, MatrixElement::F16, a.each_ref(), b.each_ref());
        assert_eq!(found.as_flattened().iter().position(|x| *x != 0.0), Some(3 * COLUMNS + 5));
        assert_eq!(found[3][5], 2.0);
        assert_eq!((place(7, 3), place(30, 0)), ((9, 7), (7, 4)));
    }

    #[test]
    fn block_scales_come_from_the_lanes_that_give_them() {
        // Ones everywhere, of which A's row r has scale 2^(r % 4) in block 3 and zero elsewhere, B's columns 1.
        let (a, b) = ([[0x2222_2222; 32]; 4], [[0x2222_2222; 32]; 2]);
        let one = 0x38u32;
        let of_row = |row: usize| (one + 8 * (row as u32 % 4)) << 24;
        let mut scales_a: Words = [0x7f7f_7f7f; 32];
        for row in 0..16 {
            scales_a[4 * (row % 8) + 2 + row / 8] = of_row(row);
        }
        let mut scales_b: Words = [0x7f7f_7f7f; 32];
        for column in 0..8 {
            scales_b[4 * column + 3] = one * 0x0101_0101;
        }
        let mut found = [[0.0; COLUMNS]; ROWS];
        let four = Scaling::NvFp4;
        multiply_scaled(&mut found, four, a.each_ref(), b.each_ref(), [(&scales_a, 1, 0), (&scales_b, 3, 0)]);
        for (at, sum) in found.as_flattened().iter().copied().enumerate() {
            assert_eq!(sum, 16.0 * 2f32.powi((at / COLUMNS % 4) as i32), "{at}");
        }
        // The other lanes hold NaN.
        multiply_scaled(&mut found, four, a.each_ref(), b.each_ref(), [(&scales_a, 0, 0), (&scales_b, 3, 0)]);
        assert!(found.as_flattened().iter().all(|sum| sum.is_nan()));
    }
}
