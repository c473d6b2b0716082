//! MXFP4 matrices: the codes of NVFP4, with one scale for 32 elements that is a power of two, 2^(s−127).
//!
//! What scales have in common goes into the global scale, which is multiplied with that power of two: the largest
//! scale that matters is then at most 2⁸, as e4m3's are, and where they span no more powers of two than e4m3 has,
//! 2⁻⁹ to 2⁸, they are within those. Blocks of zeros have any of these. So a byte that is kept stands for the same
//! range in every matrix, kernels need no more than an offset to make a float of it, and a matrix that has an NVFP4
//! form has it under the same global scale, with every scale twice.
//!
//! Scales may span 127 powers of two, since a code times any of those, 2⁸ to 2⁻¹¹⁸, is a normal bfloat16 with 2⁻⁷ to
//! spare. A matrix that spans more is refused: rounding is not for a reader to do.

use std::borrow::Cow;

use super::{Matrix, Scaling, check_length};
use crate::error::usable;
use crate::{BLOCK, Error, GlobalScale, MX_BLOCK, Result};

/// The scale byte that is NaN.
const NAN: u8 = 0xFF;

/// The scale byte that is 1.
const BIAS: i32 = 127;

/// The exponents of e4m3's powers of two.
const LOWEST: i32 = -9;
const HIGHEST: i32 = 8;

/// The most powers of two that scales may span.
const MOST_POWERS: i32 = 127;

/// A scale byte's value.
pub(super) fn decode(byte: u8) -> f32 {
    2f32.powi(i32::from(byte) - BIAS)
}

/// A scale's exponent, and its row and block.
type Extreme = (i32, [usize; 2]);

impl<'a> Matrix<'a> {
    /// Checks the parts of an MXFP4 matrix against each other and puts them together: `exponents` has a byte s for each
    /// 32 elements, row-major [rows, K/32], which stands for 2^(s−127). What they have in common becomes a part of the
    /// global scale, exactly.
    ///
    /// # Errors
    ///
    /// If `k` is zero or no multiple of 32, if the shape is too large to address, if a length does not fit the shape,
    /// if an exponent is 255, which is NaN, if those of blocks that are not zero span more than 127 powers of two, or
    /// if `global` is not finite, or not exact with its share of them.
    pub fn mx(
        rows: usize,
        k: usize,
        codes: impl Into<Cow<'a, [u8]>>,
        exponents: &[u8],
        global: impl Into<GlobalScale>,
    ) -> Result<Self> {
        if k == 0 || !k.is_multiple_of(MX_BLOCK) {
            return Err(Error::UnevenMx { k });
        }
        let elements = rows.checked_mul(k).ok_or(Error::TooLarge { rows, columns: k })?;
        let (codes, global) = (codes.into(), usable(global)?);
        check_length("codes", rows, k, elements / 2, codes.len())?;
        check_length("scales", rows, k, elements / MX_BLOCK, exponents.len())?;
        if let Some(at) = exponents.iter().position(|&exponent| exponent == NAN) {
            let blocks = k / MX_BLOCK;
            return Err(Error::NanScale { row: at / blocks, block: at % blocks, byte: NAN });
        }
        let (mut shift, mut scaling) = (0, Scaling::MxFp4);
        if let Some([(least, at), (most, most_at)]) = extremes(exponents, &codes, k) {
            if most - least >= MOST_POWERS {
                return Err(Error::Powers { least, at, most, most_at });
            }
            // Of the windows that hold all powers that of the global scale nearest to 1, if e4m3's is wide enough.
            shift = (most - HIGHEST).max(0.min(least - LOWEST));
            if most - least >= Scaling::MOST_HALF_POWERS as i32 {
                scaling = Scaling::WideMxFp4;
            }
        }
        let blocks = exponents.iter().zip(codes.chunks_exact(MX_BLOCK / 2));
        // Most are within anyway, and their codes are not looked at: those may still be on a disk.
        let kept = |(&exponent, codes): (&u8, &[u8])| {
            let exponent = i32::from(exponent) - shift;
            let within = exponent.clamp(BIAS + LOWEST, BIAS + HIGHEST);
            (if within != exponent && is_zero(codes) { within } else { exponent }) as u8
        };
        let scales = blocks.map(kept).collect::<Vec<u8>>();
        let Some(global) = global.times_power_of_two(shift) else {
            return Err(Error::WideningGlobal { came: global, exponent: shift });
        };
        Ok(Self { rows, k, codes, scales: Cow::Owned(scales), scaling, global })
    }

    /// The same numbers with scales of another kind, borrowing this matrix's bytes where they stay.
    ///
    /// # Errors
    ///
    /// If that is not exact: NVFP4 has eighteen powers of two, and MXFP4 nothing but those, for 32 elements. If the
    /// scales are those of FP8.
    pub fn in_scaling(&self, scaling: Scaling) -> Result<Matrix<'_>> {
        if scaling.is_fp8() {
            return Err(Error::CodesOfFp8 { asked: scaling.to_string() });
        }
        let (scales, scaling) = match (self.scaling.is_mx(), scaling.is_mx()) {
            (true, false) => (self.sixteens()?, scaling),
            (false, true) => (self.thirty_twos()?, Scaling::MxFp4),
            (true, true) if self.scaling > scaling => {
                let found = extremes(&self.scales, &self.codes, self.k).unwrap_or_default();
                return Err(Error::Powers { least: found[0].0, at: found[0].1, most: found[1].0, most_at: found[1].1 });
            }
            _ => return Ok(self.as_borrowed()),
        };
        let (rows, k, codes) = (self.rows, self.k, Cow::Borrowed(&self.codes[..]));
        Ok(Matrix { rows, k, codes, scales: Cow::Owned(scales), scaling, global: self.global })
    }

    /// Every scale as e4m3, twice.
    fn sixteens(&self) -> Result<Vec<u8>> {
        let twice = |&byte: &u8| Some([power(i32::from(byte) - BIAS)?; 2]);
        let scales: Option<Vec<[u8; 2]>> = self.scales.iter().map(twice).collect();
        match (scales, extremes(&self.scales, &self.codes, self.k)) {
            (None, Some([(least, at), (most, most_at)])) => Err(Error::Widening { least, at, most, most_at }),
            (scales, _) => Ok(scales.unwrap_or_default().into_flattened()),
        }
    }

    /// Pairs of equal powers of two as one exponent each.
    fn thirty_twos(&self) -> Result<Vec<u8>> {
        if !self.k.is_multiple_of(MX_BLOCK) {
            return Err(Error::UnevenMx { k: self.k });
        }
        let found = |pair: &[u8]| {
            let exponent = (LOWEST..=HIGHEST).find(|&exponent| power(exponent) == Some(pair[0]))?;
            (pair[0] == pair[1]).then_some((exponent + BIAS) as u8)
        };
        let exponents: Vec<Option<u8>> = self.scales.chunks_exact(MX_BLOCK / BLOCK).map(found).collect();
        let refused = |at: usize| {
            let blocks = self.k / MX_BLOCK;
            Error::Narrowing { row: at / blocks, block: at % blocks }
        };
        exponents.into_iter().enumerate().map(|(at, byte)| byte.ok_or_else(|| refused(at))).collect()
    }
}

/// The smallest and the largest scale of blocks that are not zero.
fn extremes(exponents: &[u8], codes: &[u8], k: usize) -> Option<[Extreme; 2]> {
    const CHUNK: usize = 4096;
    let blocks = k / MX_BLOCK;
    let [mut least, mut most] = [None::<(u8, usize)>; 2];
    for (index, chunk) in exponents.chunks(CHUNK).enumerate() {
        // Most are neither, and few chunks have one that is: this compiles to vector instructions.
        let known = least.map_or(u8::MAX, |(least, _)| least)..=most.map_or(0, |(most, _)| most);
        if chunk.iter().fold(true, |within, exponent| within & known.contains(exponent)) {
            continue;
        }
        for (inside, &exponent) in chunk.iter().enumerate() {
            let (smaller, larger) =
                (least.is_none_or(|(least, _)| exponent < least), most.is_none_or(|(most, _)| exponent > most));
            let at = index * CHUNK + inside;
            if (smaller || larger) && !is_zero(&codes[at * MX_BLOCK / 2..][..MX_BLOCK / 2]) {
                least = if smaller { Some((exponent, at)) } else { least };
                most = if larger { Some((exponent, at)) } else { most };
            }
        }
    }
    let extreme = |(exponent, at): (u8, usize)| (i32::from(exponent) - BIAS, [at / blocks, at % blocks]);
    Some([extreme(least?), extreme(most?)])
}

/// 2^`exponent` as e4m3, if it is one of its powers.
fn power(exponent: i32) -> Option<u8> {
    match exponent {
        // Subnormals: units of 2⁻⁹ in the mantissa.
        LOWEST..-6 => Some(1 << (exponent - LOWEST)),
        -6..=HIGHEST => Some(((exponent + 7) as u8) << 3),
        _ => None,
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

    /// Codes times powers of two, in double precision.
    fn exact(codes: &[u8], exponents: &[u8]) -> Vec<f64> {
        let code = |at: usize| f64::from(crate::e2m1::decode(codes[at / 2] >> (4 * (at % 2)) & 0xF));
        (0..2 * codes.len()).map(|at| code(at) * 2f64.powi(i32::from(exponents[at / 32]) - 127)).collect()
    }

    fn values(matrix: &Matrix<'_>) -> Vec<f64> {
        matrix.dequantize().into_iter().map(f64::from).collect()
    }

    fn many_codes(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i * 37 + 1) as u8).collect()
    }

    #[test]
    fn the_first_extremes_of_blocks_that_are_not_zero_are_found_wherever_they_are() {
        let (mut exponents, mut codes) = (vec![120u8; 12_000], vec![0x21; 12_000 * MX_BLOCK / 2]);
        for (at, exponent) in [(5000, 90), (8200, 200), (9000, 110), (9001, 130), (11_000, 110)] {
            exponents[at] = exponent;
        }
        for at in [0, 5000, 8200] {
            codes[at * MX_BLOCK / 2..][..MX_BLOCK / 2].fill(0x80);
        }
        let found = extremes(&exponents, &codes, 100 * MX_BLOCK);
        assert_eq!(found, Some([(110 - BIAS, [90, 0]), (130 - BIAS, [90, 1])]));
        assert_eq!(extremes(&exponents[..1], &codes, MX_BLOCK), None);
    }

    #[test]
    fn every_power_of_two_of_e4m3_is_found() {
        for exponent in LOWEST..=HIGHEST {
            assert_eq!(power(exponent).map(|byte| f64::from(e4m3::decode(byte))), Some(2f64.powi(exponent)));
        }
        assert_eq!([LOWEST - 1, HIGHEST + 1].map(power), [None; 2]);
    }

    #[test]
    fn eighteen_powers_of_two_are_exact_wherever_they_lie_in_either_scaling() {
        for lowest in [1u8, 60, 110, 127, 200, 234] {
            let exponents: Vec<u8> = (lowest..lowest + 18).collect();
            let codes = many_codes(18 * 16);
            let matrix = Matrix::mx(18, 32, &codes[..], &exponents, ONE).unwrap();
            assert_eq!((matrix.scaling(), matrix.largest_scale() <= 256.0), (Scaling::MxFp4, true));
            assert_eq!(values(&matrix), exact(&codes, &exponents), "lowest {lowest}");
            let widened = matrix.in_scaling(Scaling::NvFp4).unwrap();
            assert_eq!((widened.scaling(), widened.blocks()), (Scaling::NvFp4, 2));
            assert_eq!((values(&widened), widened.global()), (values(&matrix), matrix.global()));
            let back = widened.in_scaling(Scaling::MxFp4).unwrap();
            assert_eq!((back.scales(), back.scaling()), (matrix.scales(), Scaling::MxFp4));
        }
    }

    #[test]
    fn more_powers_have_no_nvfp4_form_and_beyond_halves_are_known_as_wide() {
        for (powers, scaling) in [(19, Scaling::MxFp4), (25, Scaling::MxFp4), (26, Scaling::WideMxFp4)] {
            let exponents: Vec<u8> = (100..100 + powers).collect();
            let codes = many_codes(usize::from(powers) * 16);
            let matrix = Matrix::mx(powers.into(), 32, &codes[..], &exponents, ONE).unwrap();
            assert_eq!((matrix.scaling(), matrix.largest_scale()), (scaling, 256.0));
            assert_eq!(values(&matrix), exact(&codes, &exponents));
            let refused = matrix.in_scaling(Scaling::NvFp4);
            assert!(matches!(refused, Err(Error::Widening { most: 8, at: [0, 0], .. })), "{refused:?}");
            assert_eq!(matrix.in_scaling(Scaling::MxFp4).is_ok(), scaling == Scaling::MxFp4);
            assert!(matrix.in_scaling(Scaling::WideMxFp4).is_ok());
        }
        let codes = [0x11; 32];
        let span = |least, most| Matrix::mx(1, 64, &codes[..], &[least, most], ONE);
        assert_eq!(values(&span(20, 146).unwrap()), exact(&codes, &[20, 146]));
        let refused = span(20, 147);
        assert!(matches!(refused, Err(Error::Powers { least: -107, most: 20, at: [0, 0], most_at: [0, 1] })));
    }

    #[test]
    fn blocks_of_zeros_widen_nothing() {
        let mut codes = [0x11; 32];
        codes[..16].fill(0x80);
        let matrix = Matrix::mx(1, 64, &codes[..], &[0, 118], ONE).unwrap();
        assert_eq!(matrix.scaling(), Scaling::MxFp4);
        let found = matrix.in_scaling(Scaling::NvFp4).unwrap().dequantize();
        assert!(found[..32].iter().all(|&value| value == 0.0));
        assert!(found[32..].iter().all(|&value| f64::from(value) == 0.5 * 2f64.powi(-9)));
        let nothing = Matrix::mx(1, 64, &[0; 32][..], &[0, 254], ONE).unwrap();
        assert!(nothing.in_scaling(Scaling::NvFp4).unwrap().dequantize().iter().all(|&value| value == 0.0));
    }

    #[test]
    fn codes_of_four_bits_have_no_scales_of_fp8() {
        let codes = [0x11; 16];
        let both = [Matrix::new(1, 32, &codes[..], vec![0x38; 2], 1.0), Matrix::mx(1, 32, &codes[..], &[127], ONE)];
        for matrix in both.map(Result::unwrap) {
            for asked in [Scaling::Fp8, Scaling::MxFp8, Scaling::Fp8By64, Scaling::Fp8By32] {
                let refused = matrix.in_scaling(asked).map(|matrix| matrix.scaling());
                assert!(matches!(refused, Err(Error::CodesOfFp8 { .. })), "{refused:?}");
            }
        }
    }

    #[test]
    fn only_equal_powers_of_two_are_mxfp4() {
        let codes = [0x23; 16];
        let of = |scales: [u8; 2]| Matrix::new(1, 32, &codes[..], scales.to_vec(), 1.0).unwrap();
        assert!(of([0x38, 0x38]).in_scaling(Scaling::MxFp4).is_ok());
        for scales in [[0x38, 0x40], [0x39, 0x39], [0xB8, 0xB8], [0, 0]] {
            let refused = of(scales).in_scaling(Scaling::MxFp4).map(|matrix| matrix.scales().to_vec());
            assert!(matches!(refused, Err(Error::Narrowing { row: 0, block: 0 })), "{scales:?}");
        }
    }

    #[test]
    fn what_matrices_have_in_common_is_the_widest_powers_or_nvfp4() {
        let (codes, [nv, mx, wide]) = ([0x11; 32], [Scaling::NvFp4, Scaling::MxFp4, Scaling::WideMxFp4]);
        let all = [
            Matrix::new(1, 64, &codes[..], vec![0x38; 4], 1.0).unwrap(),
            Matrix::mx(1, 64, &codes[..], &[120, 121], 1.0).unwrap(),
            Matrix::mx(1, 64, &codes[..], &[90, 121], 1.0).unwrap(),
        ];
        let common = |which: &[usize]| Scaling::common(which.iter().map(|&at| &all[at]));
        assert_eq!([common(&[0]), common(&[1]), common(&[2])], [nv, mx, wide]);
        assert_eq!([common(&[1, 2]), common(&[2, 1, 1]), common(&[1, 0]), common(&[])], [wide, wide, nv, nv]);
    }

    #[test]
    fn a_global_scale_is_shifted_exactly_or_refused() {
        let shifted = |global| Matrix::mx(1, 32, &[0x11; 16][..], &[BIAS as u8 - 30], global);
        let third = GlobalScale::Divides(3.0);
        assert_eq!(shifted(third).unwrap().global(), GlobalScale::Divides(3.0 * 2f32.powi(21)));
        // Shifted by 2⁻²¹, this one would lose bits as a subnormal number.
        let small = GlobalScale::Multiplies(1.5 * f32::MIN_POSITIVE);
        assert!(shifted(small).is_ok(), "two bits fit");
        let full = GlobalScale::Multiplies(f32::from_bits(f32::MIN_POSITIVE.to_bits() | 0x7F_FFFF));
        assert!(matches!(shifted(full), Err(Error::WideningGlobal { exponent: -21, .. })));
    }

    #[test]
    fn what_is_no_matrix_is_refused() {
        let refused = Matrix::mx(1, 32, &[0; 16][..], &[NAN], ONE);
        assert!(matches!(refused, Err(Error::NanScale { row: 0, block: 0, byte: NAN })), "even of zeros");
        assert!(matches!(Matrix::mx(1, 48, &[0; 24][..], &[0], ONE), Err(Error::UnevenMx { k: 48 })));
        assert!(matches!(Matrix::mx(1, 32, &[0; 16][..], &[0; 2], ONE), Err(Error::Length { part: "scales", .. })));
        assert!(matches!(Matrix::mx(2, 32, &[0; 16][..], &[0; 2], ONE), Err(Error::Length { part: "codes", .. })));
    }
}
