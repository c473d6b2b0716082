//! MXFP4 as NVFP4, where that is exact.
//!
//! MXFP4 has the same codes, but one scale for 32 elements, and that scale is a power of two, 2^(s−127). So a block
//! becomes two blocks of sixteen with equal scales. e4m3 has the powers from 2⁻⁹ to 2⁸, eighteen of them; a global
//! scale that is itself a power of two moves that window to where the matrix needs it. Blocks of zeros need nothing. A
//! matrix whose other blocks span more than eighteen powers of two has no such form and is refused: rounding is not for
//! a reader to do.

use std::borrow::Cow;

use crate::matrix::check_length;
use crate::{Error, GlobalScale, Matrix, Result};

/// Elements that share a scale.
pub(super) const BLOCK: usize = 32;

/// The scale byte that is NaN.
const NAN: u8 = 0xFF;

/// The scale byte that is 1.
const BIAS: i32 = 127;

/// The exponents of e4m3's powers of two.
const LOWEST: i32 = -9;
const HIGHEST: i32 = 8;

/// The NVFP4 matrix that is equal to an MXFP4 one: `codes` [rows, K/2], even k low; `exponents` [rows, K/32].
pub(super) fn widen<'a>(
    rows: usize,
    k: usize,
    codes: Cow<'a, [u8]>,
    exponents: &[u8],
    global: GlobalScale,
) -> Result<Matrix<'a>> {
    check_length("codes", rows, k, rows * k / 2, codes.len())?;
    check_length("scales", rows, k, rows * k / BLOCK, exponents.len())?;
    let blocks = k / BLOCK;
    let (mut least, mut most): (Option<(u8, usize, usize)>, _) = (None, None);
    for (at, (&exponent, codes)) in exponents.iter().zip(codes.chunks_exact(BLOCK / 2)).enumerate() {
        let (row, block) = (at / blocks, at % blocks);
        if exponent == NAN {
            return Err(Error::NanScale { row, block, byte: exponent });
        }
        if is_zero(codes) {
            continue;
        }
        if least.is_none_or(|(least, ..)| exponent < least) {
            least = Some((exponent, row, block));
        }
        most = most.max(Some((exponent, row, block)));
    }
    let shift = match (least, most) {
        (Some((least, row, block)), Some((most, most_row, most_block))) => {
            let (least, most) = (i32::from(least) - BIAS, i32::from(most) - BIAS);
            if most - least > HIGHEST - LOWEST {
                return Err(Error::Widening { least, at: [row, block], most, most_at: [most_row, most_block] });
            }
            // Of the windows that hold all powers that of the global scale nearest to 1.
            0.clamp(most - HIGHEST, least - LOWEST)
        }
        _ => 0,
    };
    let scales =
        exponents.iter().flat_map(|&exponent| [power(i32::from(exponent) - BIAS - shift); 2]).collect::<Vec<_>>();
    let Some(shifted) = global.times_power_of_two(shift) else {
        return Err(Error::WideningGlobal { came: global, exponent: shift });
    };
    Matrix::new(rows, k, codes, scales, shifted)
}

/// 2^`exponent` as e4m3, for a block that needs it; for a block of zeros the nearest there is.
fn power(exponent: i32) -> u8 {
    match exponent.clamp(LOWEST, HIGHEST) {
        // Subnormals: units of 2⁻⁹ in the mantissa.
        exponent @ ..-6 => 1 << (exponent - LOWEST),
        exponent => ((exponent + 7) as u8) << 3,
    }
}

/// Whether all codes are 0 or −0.
fn is_zero(codes: &[u8]) -> bool {
    codes.iter().all(|byte| byte & 0x77 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e4m3;

    const ONE: GlobalScale = GlobalScale::Multiplies(1.0);

    #[test]
    fn every_power_of_two_of_e4m3_is_found() {
        for exponent in LOWEST..=HIGHEST {
            assert_eq!(f64::from(e4m3::decode(power(exponent))), 2f64.powi(exponent));
        }
    }

    #[test]
    fn eighteen_powers_of_two_are_exact_wherever_they_lie() {
        for lowest in [1u8, 60, 110, 127, 200, 234] {
            let exponents: Vec<u8> = (lowest..lowest + 18).collect();
            let codes: Vec<u8> = (0..18 * 16).map(|i| (i * 37 + 1) as u8).collect();
            let matrix = widen(18, 32, Cow::Borrowed(&codes), &exponents, ONE).unwrap();
            let values = matrix.dequantize();
            for (at, &value) in values.iter().enumerate() {
                let code = codes[at / 2] >> (4 * (at % 2)) & 0xF;
                let exact = f64::from(crate::e2m1::decode(code)) * 2f64.powi(i32::from(exponents[at / 32]) - 127);
                assert_eq!(f64::from(value), exact, "lowest {lowest}, element {at}");
            }
        }
    }

    #[test]
    fn nineteen_powers_are_refused_unless_the_outlier_is_a_block_of_zeros() {
        let mut codes = vec![0x11; 32];
        let wide = widen(1, 64, Cow::Borrowed(&codes), &[100, 118], ONE);
        assert!(matches!(wide, Err(Error::Widening { least: -27, most: -9, at: [0, 0], most_at: [0, 1] })));
        codes[..16].fill(0x80);
        let zero = widen(1, 64, Cow::Borrowed(&codes), &[0, 118], ONE).unwrap().dequantize();
        assert!(zero[..32].iter().all(|&value| value == 0.0));
        assert!(zero[32..].iter().all(|&value| f64::from(value) == 0.5 * 2f64.powi(-9)));
    }

    #[test]
    fn a_global_scale_is_shifted_exactly_or_refused() {
        let widened = |global| widen(1, 32, Cow::Borrowed(&[0x11; 16]), &[BIAS as u8 - 30], global);
        let third = GlobalScale::Divides(3.0);
        assert_eq!(widened(third).unwrap().global(), GlobalScale::Divides(3.0 * 2f32.powi(21)));
        // Shifted by 2⁻²¹, this one would lose bits as a subnormal number.
        let small = GlobalScale::Multiplies(1.5 * f32::MIN_POSITIVE);
        assert!(widened(small).is_ok(), "two bits fit");
        let full = GlobalScale::Multiplies(f32::from_bits(f32::MIN_POSITIVE.to_bits() | 0x7F_FFFF));
        assert!(matches!(widened(full), Err(Error::WideningGlobal { exponent: -21, .. })));
    }

    #[test]
    fn a_nan_scale_is_refused_even_of_zeros() {
        let refused = widen(1, 32, Cow::Borrowed(&[0; 16]), &[NAN], ONE);
        assert!(matches!(refused, Err(Error::NanScale { row: 0, block: 0, byte: NAN })));
    }
}
