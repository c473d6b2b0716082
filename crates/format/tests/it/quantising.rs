//! Quantising: the recipe is followed, every choice it leaves is the nearest one, and bad input is refused.

use half::{bf16, f16};
use hammerhead_format::{Dense, Error, Matrix, Thresholds, e2m1, e4m3, loss, quantize};
use proptest::prelude::*;

fn code(matrix: &Matrix<'_>, row: usize, k: usize) -> u8 {
    matrix.row_codes(row)[k / 2] >> (k % 2 * 4) & 0xF
}

/// Numbers of any magnitude that a weight may have, zeros of both signs among them.
fn element() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1f32..1.0,
        2 => -1e-3f32..1e-3,
        2 => -1e4f32..1e4,
        1 => Just(0.0f32),
        1 => Just(-0.0f32),
    ]
}

#[test]
fn the_largest_element_meets_the_largest_code_and_scale() {
    let mut values = vec![0.125f32; 32];
    values[20] = -2688.0;
    let matrix = quantize(&Dense::new(1, 32, values, 1.0).unwrap(), None).unwrap();
    assert_eq!(matrix.global(), 1.0.into());
    assert_eq!(code(&matrix, 0, 20), 15);
    assert_eq!(matrix.scales()[1], 0x7E);
    // 0.125/6 lies between 10/512 and 11/512; nearest is 11/512, and 0.125 in units of that rounds to 6.
    assert_eq!(e4m3::decode(matrix.scales()[0]), 11.0 / 512.0);
    assert_eq!(code(&matrix, 0, 0), 7);
}

#[test]
fn at_a_threshold_the_choice_changes_and_just_below_it_does_not() {
    let below = |x: f32| f32::from_bits(x.to_bits() - 1);
    for global in [1.0f32, 0.013, 3e-20, 4e30] {
        let block = |numbers: &[f32]| {
            let mut values = numbers.to_vec();
            values.resize(16, 0.0);
            quantize(&Dense::new(1, 16, values, 1.0).unwrap(), Some(global.into())).unwrap()
        };
        let Thresholds { scales, codes } = Thresholds::new(global.into());
        assert_eq!((scales.len(), codes.len()), (125, 126));
        for (byte, &least) in (1..).zip(&scales) {
            assert_eq!([block(&[below(least)]).scales()[0], block(&[least]).scales()[0]], [byte, byte + 1], "{global}");
        }
        for (byte, codes) in (1..).zip(codes) {
            // Of those that lead to the scale, the largest.
            let most = scales.get(usize::from(byte) - 1).map_or(f32::MAX, |&next| below(next));
            for (above, least) in (0u8..).zip(codes).filter(|(_, least)| *least <= most) {
                let matrix = block(&[most, -least, below(least)]);
                assert_eq!(matrix.scales()[0], byte);
                assert_eq!([1, 2].map(|k| code(&matrix, 0, k)), [(above + 1) | 8, above], "{global}, scale {byte}");
            }
        }
    }
}

#[test]
fn a_zero_tensor_has_global_one_and_the_smallest_scales() {
    let mut values = vec![0f32; 32];
    values[3] = -0.0;
    let matrix = quantize(&Dense::new(2, 16, values, 5.0).unwrap(), None).unwrap();
    assert_eq!(matrix.global(), 1.0.into());
    assert_eq!(matrix.scales(), [0x01, 0x01]);
    assert_eq!(code(&matrix, 0, 3), 8, "the sign of zero is kept");
    assert!(matrix.dequantize().iter().all(|&value| value == 0.0));
    let empty = quantize(&Dense::new(0, 16, Vec::<f32>::new(), 1.0).unwrap(), None).unwrap();
    assert_eq!((empty.rows(), empty.global()), (0, 1.0.into()));
}

#[test]
fn a_zero_block_keeps_the_smallest_scale() {
    let mut values = vec![0f32; 32];
    values[0] = 1.0;
    let matrix = quantize(&Dense::new(1, 32, values, 1.0).unwrap(), None).unwrap();
    assert_eq!(matrix.scales(), [0x7E, 0x01]);
}

#[test]
fn bad_elements_are_refused_by_position() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1f32; 48];
        values[37] = bad;
        let source = Dense::new(3, 16, values, 1.0).unwrap();
        for global in [None, Some(1.0.into())] {
            let error = quantize(&source, global).unwrap_err();
            assert!(matches!(error, Error::NotFinite { row: 2, column: 5, .. }), "{error}");
            assert!(error.to_string().contains("row 2, column 5"), "{error}");
        }
        let ones = quantize(&Dense::new(3, 16, vec![1f32; 48], 1.0).unwrap(), None).unwrap();
        assert!(matches!(loss(&source, &ones), Err(Error::NotFinite { row: 2, column: 5, .. })));
    }
    // Finite by itself, but not once the global scale is applied.
    let overflowing = Dense::new(1, 16, vec![f32::MAX; 16], 2.0).unwrap();
    assert!(matches!(quantize(&overflowing, None), Err(Error::NotFinite { row: 0, column: 0, .. })));
}

#[test]
fn an_unusable_global_scale_or_k_is_refused() {
    let source = Dense::new(1, 16, vec![1f32; 16], 1.0).unwrap();
    for global in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(quantize(&source, Some(global.into())), Err(Error::QuantizingGlobal { .. })));
    }
    let uneven = Dense::new(1, 20, vec![1f32; 20], 1.0).unwrap();
    assert!(matches!(quantize(&uneven, None), Err(Error::UnevenK { k: 20 })));
}

#[test]
fn a_given_global_scale_that_does_not_fit_clamps_the_block_scales() {
    let source = Dense::new(1, 16, vec![100f32; 16], 1.0).unwrap();
    let too_small = quantize(&source, Some(1e-6.into())).unwrap();
    assert_eq!((too_small.scales()[0], code(&too_small, 0, 0)), (0x7E, 7));
    let too_large = quantize(&source, Some(1e9.into())).unwrap();
    assert_eq!((too_large.scales()[0], code(&too_large, 0, 0)), (0x01, 0));
}

#[test]
fn the_ends_of_the_f32_range_survive() {
    for magnitude in [f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), f32::from_bits(0x0000_1234)] {
        for global in [None, Some(f32::from_bits(1).into()), Some(f32::MAX.into())] {
            let source = Dense::new(1, 16, vec![magnitude; 16], 1.0).unwrap();
            let matrix = quantize(&source, global).unwrap();
            if global.is_none() {
                assert!((matrix.global().value() as f32).is_normal());
                let back = f64::from(matrix.dequantize()[0]);
                let distance = (back - f64::from(magnitude)).abs();
                // The smallest normal global under the smallest scale makes steps of 2⁻¹³⁶: nothing finer is kept.
                let allowed = f64::max(f64::from(magnitude) / 17.0, 2f64.powi(-137));
                assert!(distance <= allowed, "{magnitude:e} became {back:e}");
            }
        }
    }
}

#[test]
fn half_and_bfloat16_sources_give_what_their_f32_values_give() {
    let halves: Vec<f16> = (0..64).map(|i| f16::from_f32((i as f32 * 0.7).sin())).collect();
    let brains: Vec<bf16> = halves.iter().map(|half| bf16::from_f32(half.to_f32())).collect();
    let half_singles: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
    let brain_singles: Vec<f32> = brains.iter().map(|brain| brain.to_f32()).collect();
    let quantised = |source: Dense<'_>| {
        let matrix = quantize(&source, None).unwrap();
        (matrix.codes().to_vec(), matrix.scales().to_vec(), matrix.global())
    };
    let from_halves = quantised(Dense::new(2, 32, halves, 1.0).unwrap());
    assert_eq!(from_halves, quantised(Dense::new(2, 32, half_singles, 1.0).unwrap()));
    let from_brains = quantised(Dense::new(2, 32, brains, 1.0).unwrap());
    assert_eq!(from_brains, quantised(Dense::new(2, 32, brain_singles, 1.0).unwrap()));
}

#[test]
fn loss_is_measured_by_hand() {
    let source = Dense::new(1, 16, vec![2f32; 16], 1.5).unwrap();
    // All codes 1 (0.5), scale 2, global 2: every element is 2 where 3 is wanted.
    let matrix = Matrix::new(1, 16, vec![0x11; 8], vec![0x40], 2.0).unwrap();
    let measured = loss(&source, &matrix).unwrap();
    assert_eq!((measured.max_abs, measured.rms), (1.0, 1.0));
    assert!((measured.relative - 1.0 / 3.0).abs() < 1e-15);
    let other = Dense::new(2, 16, vec![2f32; 32], 1.0).unwrap();
    assert!(matches!(loss(&other, &matrix), Err(Error::ShapesDiffer { .. })));
}

#[test]
fn loss_of_zero_is_zero_or_infinite() {
    let zero = Dense::new(1, 16, vec![0f32; 16], 1.0).unwrap();
    let exact = loss(&zero, &quantize(&zero, None).unwrap()).unwrap();
    assert_eq!((exact.max_abs, exact.rms, exact.relative), (0.0, 0.0, 0.0));
    let ones = Matrix::new(1, 16, vec![0x22; 8], vec![0x38], 1.0).unwrap();
    assert_eq!(loss(&zero, &ones).unwrap().relative, f64::INFINITY);
}

proptest! {
    #[test]
    fn every_scale_and_code_is_the_nearest_one(
        values in prop::collection::vec(element(), 2 * 32),
        own_global in prop_oneof![Just(1f32), 1e-3f32..1e3, -10f32..-0.1],
        given in prop::option::of(1e-5f32..10.0),
    ) {
        let source = Dense::new(2, 32, &values[..], own_global).unwrap();
        let matrix = quantize(&source, given.map(Into::into)).unwrap();
        let global = matrix.global().value();
        let exact: Vec<f64> = values.iter().map(|&value| f64::from(value) * f64::from(own_global)).collect();
        for (index, block) in exact.chunks(16).enumerate() {
            let amax = block.iter().fold(0f64, |largest, value| largest.max(value.abs()));
            let wanted = amax / 6.0 / global;
            let scale = matrix.scales()[index];
            prop_assert!((0x01..=0x7E).contains(&scale));
            let miss = |byte: u8| (f64::from(e4m3::decode(byte)) - wanted).abs();
            let best = (0x01..=0x7E).map(miss).fold(f64::INFINITY, f64::min);
            prop_assert!(miss(scale) <= best * (1.0 + 1e-12), "scale {scale:#04x} for {wanted}");

            let unit = f64::from(e4m3::decode(scale)) * global;
            for (inside, &value) in block.iter().enumerate() {
                let at = index * 16 + inside;
                let chosen = code(&matrix, at / 32, at % 32);
                let miss = |code: u8| (f64::from(e2m1::decode(code)) * unit - value).abs();
                let best = (0..16).map(miss).fold(f64::INFINITY, f64::min);
                prop_assert_eq!(miss(chosen), best);
                prop_assert_eq!(chosen >= 8, value.is_sign_negative());
            }
        }
    }

    /// A block whose scale is normal holds a code of ±6, since rounding moved the scale by at most 1/16 and everything
    /// beyond 5 rounds to 6. So its amax names its scale again, and each element lies on a code.
    #[test]
    fn quantising_what_was_dequantised_changes_nothing(values in prop::collection::vec(element(), 4 * 64)) {
        let first = quantize(&Dense::new(4, 64, values, 1.0).unwrap(), None).unwrap();
        let dequantised = Dense::new(4, 64, first.dequantize(), 1.0).unwrap();
        let second = quantize(&dequantised, Some(first.global())).unwrap();
        for block in 0..16 {
            if first.scales()[block] >= 0x08 {
                prop_assert_eq!(first.scales()[block], second.scales()[block]);
                prop_assert_eq!(&first.codes()[block * 8..][..8], &second.codes()[block * 8..][..8]);
            }
        }
    }

    #[test]
    fn elements_move_by_no_more_than_half_a_gap_at_the_top(values in prop::collection::vec(element(), 64)) {
        let source = Dense::new(1, 64, &values[..], 1.0).unwrap();
        let matrix = quantize(&source, None).unwrap();
        let measured = loss(&source, &matrix).unwrap();
        // The widest gap, 4 to 6, is two units wide; beyond 6 a scale that rounded down leaves at most 3/8 of a unit.
        let widest = matrix.scales().iter().map(|&scale| f64::from(e4m3::decode(scale))).fold(0.0, f64::max);
        prop_assert!(measured.max_abs <= widest * matrix.global().value() * (1.0 + 1e-9));
        prop_assert!(measured.rms <= measured.max_abs);
    }
}
