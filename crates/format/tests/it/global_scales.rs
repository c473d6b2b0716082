//! Global scales are kept as they are stored, whether they multiply or divide.

use hammerhead_format::{Dense, Error, GlobalScale, Matrix, quantize};
use proptest::prelude::*;

/// 1 as e4m3.
const ONE: u8 = 0x38;

fn matrix(global: impl Into<GlobalScale>) -> Result<Matrix<'static>, Error> {
    // 1, 6, −0.5 and 0 in turn.
    Matrix::new(1, 16, [0x72, 0x09].repeat(4), vec![ONE], global)
}

#[test]
fn a_plain_number_multiplies() {
    assert_eq!(matrix(0.25).unwrap().global(), GlobalScale::Multiplies(0.25));
    assert_eq!(Dense::new(1, 1, vec![1f32], 0.25).unwrap().global(), 0.25.into());
}

#[test]
fn a_divisor_is_not_turned_into_a_rounded_factor() {
    let global = matrix(GlobalScale::Divides(61.0)).unwrap().global();
    assert_eq!(global, GlobalScale::Divides(61.0));
    assert_eq!((61.0 * global.value()) as f32, 1.0);
    let rounded = 1f32 / 61.0;
    assert_ne!((61.0 * f64::from(rounded)) as f32, 1.0, "this divisor would show nothing");
}

#[test]
fn dequantising_under_a_divisor_rounds_once() {
    // 6/61 in f32, which 6 · (1/61) is not.
    let values = matrix(GlobalScale::Divides(61.0)).unwrap().dequantize();
    assert_eq!(values[..4], [1.0 / 61.0, 6.0 / 61.0, -0.5 / 61.0, 0.0]);
    assert_ne!(values[1], 6.0 * (1f32 / 61.0), "this divisor would show nothing");
}

#[test]
fn a_scale_that_makes_no_number_is_refused_and_shown_as_it_is_stored() {
    // The reciprocal of the smallest subnormal is beyond f32; that of the largest number is within.
    for divisor in [0.0, -0.0, f32::NAN, f32::INFINITY, f32::from_bits(1)] {
        let error = matrix(GlobalScale::Divides(divisor)).unwrap_err();
        assert!(matches!(error, Error::Global { .. }));
        assert!(error.to_string().contains(&format!("1/{divisor}")), "{error}");
    }
    assert!(matrix(GlobalScale::Divides(f32::MAX)).is_ok());
    assert!(matrix(GlobalScale::Divides(-3.0)).is_ok());
}

#[test]
fn a_number_that_no_f32_can_stand_for_stays_itself() {
    assert_eq!(GlobalScale::nearest(1e39), GlobalScale::Multiplies(f32::INFINITY));
    assert_eq!(GlobalScale::nearest(0.0), GlobalScale::Multiplies(0.0));
    assert!(matches!(GlobalScale::nearest(f64::NAN), GlobalScale::Multiplies(number) if number.is_nan()));
    assert_eq!(GlobalScale::nearest(0.1), GlobalScale::Divides(10.0), "0.1 is no f32, but 1/10 in f64");
}

#[test]
fn what_was_quantised_under_a_divisor_keeps_it() {
    let source = Dense::new(1, 16, vec![0.3f32; 16], 1.0).unwrap();
    let divisor = GlobalScale::Divides(61.0);
    assert_eq!(quantize(&source, Some(divisor)).unwrap().global(), divisor);
    for unusable in [0.0, -61.0] {
        let refused = quantize(&source, Some(GlobalScale::Divides(unusable)));
        assert!(matches!(refused, Err(Error::QuantizingGlobal { .. })));
    }
}

proptest! {
    #[test]
    fn the_value_of_a_scale_says_which_scale_it_was(bits in any::<u32>(), divides in any::<bool>()) {
        let number = f32::from_bits(bits);
        let scale = if divides { GlobalScale::Divides(number) } else { GlobalScale::Multiplies(number) };
        prop_assume!(scale.is_usable());
        let again = GlobalScale::nearest(scale.value());
        prop_assert_eq!(again.value().to_bits(), scale.value().to_bits());
        // A power of two may come back as either.
        prop_assert!(again == scale || (number.to_bits() << 9).count_ones() < 2, "{scale} came back as {again}");
    }
}
