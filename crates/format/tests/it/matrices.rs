//! What makes a matrix, what does not, and what one decodes to.

use std::borrow::Cow;

use half::{bf16, f16};
use hammerhead_format::{Dense, Error, GlobalScale, Matrix, Values, e2m1, e4m3};
use proptest::prelude::*;

/// Scale byte 0x38 is 1.
const ONE: u8 = 0x38;

fn message<T>(result: Result<T, Error>) -> String {
    let message = result.err().expect("an error is expected").to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn the_even_element_is_in_the_low_nibble() {
    let mut codes = [0u8; 8];
    codes[0] = 0x72;
    codes[7] = 0x9F;
    let matrix = Matrix::new(1, 16, &codes[..], &[ONE][..], 1.0).unwrap();
    let values = matrix.dequantize();
    assert_eq!(values[..2], [1.0, 6.0]);
    assert_eq!(values[14..], [-6.0, -0.5]);
}

#[test]
fn each_block_has_its_own_scale_and_the_global_scale_multiplies() {
    let codes = vec![0x22; 2 * 16];
    let scales = [ONE, 0x40, 0x7E, 0x01 | 0x80];
    let matrix = Matrix::new(2, 32, codes, &scales[..], 0.25).unwrap();
    let expected = [0.25, 0.5, 112.0, -1.0 / 2048.0];
    for (block, value) in matrix.dequantize().chunks(16).zip(expected) {
        assert_eq!(block, [value; 16]);
    }
    assert_eq!(matrix.row_scales(1), [0x7E, 0x81]);
    assert_eq!(matrix.row_codes(1), [0x22; 16]);
    assert_eq!((matrix.rows(), matrix.k(), matrix.blocks(), matrix.global()), (2, 32, 2, 0.25.into()));
}

#[test]
fn a_k_that_is_not_whole_blocks_is_refused() {
    for k in [0, 1, 8, 15, 17, 24, 33] {
        let error = Matrix::new(1, k, vec![0; k / 2], vec![ONE; k / 16], 1.0);
        assert!(message(error).contains(&format!("K is {k}")));
    }
}

#[test]
fn wrong_lengths_are_refused_with_what_was_expected_and_what_came() {
    let error = message(Matrix::new(3, 32, vec![0; 47], vec![ONE; 6], 1.0));
    assert!(error.contains("codes") && error.contains("48") && error.contains("47"), "{error}");
    let error = message(Matrix::new(3, 32, vec![0; 48], vec![ONE; 7], 1.0));
    assert!(error.contains("scales") && error.contains('6') && error.contains('7'), "{error}");
    let error = message(Dense::new(3, 5, vec![0f32; 14], 1.0));
    assert!(error.contains("values") && error.contains("15") && error.contains("14"), "{error}");
}

#[test]
fn shapes_beyond_memory_are_refused() {
    assert!(matches!(Matrix::new(usize::MAX, 32, vec![], vec![], 1.0), Err(Error::TooLarge { .. })));
    assert!(matches!(Dense::new(usize::MAX, 2, Vec::<f32>::new(), 1.0), Err(Error::TooLarge { .. })));
}

#[test]
fn global_scales_must_be_finite_and_may_be_negative_or_zero() {
    let matrix = Matrix::new(1, 16, vec![0x22; 8], vec![ONE], 1.0).unwrap();
    let dense = Dense::new(1, 1, vec![1f32], 1.0).unwrap();
    for global in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(matches!(Matrix::new(1, 16, vec![0; 8], vec![ONE], global), Err(Error::Global { .. })));
        assert!(message(matrix.clone().with_global(global)).contains("finite"));
        assert!(message(dense.clone().with_global(global)).contains("finite"));
        assert!(matches!(Dense::new(1, 1, vec![1f32], global), Err(Error::Global { .. })));
    }
    assert_eq!(matrix.clone().with_global(-2.0).unwrap().dequantize(), [-2.0; 16]);
    assert_eq!(matrix.with_global(0.0).unwrap().dequantize(), [0.0; 16]);
    assert_eq!(dense.with_global(-3.0).unwrap().global(), GlobalScale::Multiplies(-3.0));
}

#[test]
fn a_matrix_without_rows_is_a_matrix() {
    let matrix = Matrix::new(0, 16, vec![], vec![], 1.0).unwrap();
    assert!(matrix.dequantize().is_empty());
    assert!(Dense::new(0, 3, Vec::<f16>::new(), 1.0).unwrap().values().is_empty());
}

#[test]
fn borrowing_copies_nothing_and_owning_keeps_everything() {
    let (codes, scales) = (vec![0x5A; 16], vec![ONE, 0x7E]);
    let matrix = Matrix::new(1, 32, &codes[..], &scales[..], 3.0).unwrap();
    let borrowed = matrix.as_borrowed();
    assert_eq!(borrowed.codes().as_ptr(), codes.as_ptr());
    assert_eq!(borrowed.scales().as_ptr(), scales.as_ptr());
    let owned = borrowed.into_owned();
    assert_ne!(owned.codes().as_ptr(), codes.as_ptr());
    assert_eq!(owned.dequantize(), matrix.dequantize());

    let values = [1f32, 2.0];
    let dense = Dense::new(1, 2, &values[..], 1.0).unwrap();
    assert!(
        matches!(dense.as_borrowed().values(), Values::F32(Cow::Borrowed(inner)) if inner.as_ptr() == values.as_ptr())
    );
    assert!(matches!(dense.into_owned().values(), Values::F32(Cow::Owned(inner)) if inner[..] == values));
}

#[test]
fn dense_rows_are_widened_exactly_and_without_the_global_scale() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = bits.iter().map(|&bits| f16::from_bits(bits)).collect();
    let brains: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
    let (half_matrix, brain_matrix) =
        (Dense::new(256, 256, &halves[..], 7.0).unwrap(), Dense::new(256, 256, &brains[..], 7.0).unwrap());
    let mut out = [0f32; 256];
    for row in 0..256 {
        half_matrix.row(row, &mut out);
        for (half, wide) in halves[row * 256..].iter().zip(out) {
            assert!(half.is_nan() && wide.is_nan() || half.to_f64() == f64::from(wide));
        }
        brain_matrix.row(row, &mut out);
        for (brain, wide) in brains[row * 256..].iter().zip(out) {
            assert!(brain.is_nan() && wide.is_nan() || brain.to_f64() == f64::from(wide));
        }
    }
    let singles = Dense::new(2, 3, vec![1f32, 2.0, 3.0, 4.0, 5.0, f32::NAN], 7.0).unwrap();
    let mut row = [0f32; 3];
    singles.row(1, &mut row);
    assert_eq!(row[..2], [4.0, 5.0]);
    assert!(row[2].is_nan());
}

#[test]
fn a_dense_row_of_no_elements_is_refused() {
    assert!(message(Dense::new(3, 0, Vec::<f32>::new(), 1.0)).contains("K is 0"));
}

proptest! {
    #[test]
    fn a_nan_scale_is_refused_by_position(rows in 1usize..200, blocks in 1usize..70, at in any::<prop::sample::Index>(), negative: bool) {
        let at = at.index(rows * blocks);
        let mut scales = vec![0x7E; rows * blocks];
        scales[at] = if negative { 0xFF } else { 0x7F };
        match Matrix::new(rows, blocks * 16, vec![0; rows * blocks * 8], scales, 1.0) {
            Err(Error::NanScale { row, block, byte }) => {
                prop_assert_eq!((row, block), (at / blocks, at % blocks));
                prop_assert_eq!(byte, if negative { 0xFF } else { 0x7F });
            }
            other => prop_assert!(false, "{:?}", other.map(|_| ())),
        }
    }

    #[test]
    fn dequantising_multiplies_code_scale_and_global(
        codes in prop::collection::vec(any::<u8>(), 3 * 16),
        scales in prop::collection::vec((any::<u8>()).prop_filter("NaN", |&b| !e4m3::is_nan(b)), 3 * 2),
        global in -1e6f32..1e6,
    ) {
        let matrix = Matrix::new(3, 32, &codes[..], &scales[..], global).unwrap();
        let mut unscaled = [0f32; 32];
        let values = matrix.dequantize();
        for row in 0..3 {
            matrix.unscaled_row(row, &mut unscaled);
            for k in 0..32 {
                let code = codes[row * 16 + k / 2] >> (k % 2 * 4) & 0xF;
                let scale = scales[row * 2 + k / 16];
                let exact = e2m1::decode(code) * e4m3::decode(scale);
                prop_assert_eq!(unscaled[k].to_bits(), exact.to_bits());
                prop_assert_eq!(values[row * 32 + k].to_bits(), (exact * global).to_bits());
            }
        }
    }
}
