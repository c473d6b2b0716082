//! e4m3, the 8-bit float that block scales are kept in: a sign, four exponent bits (bias 7), three
//! mantissa bits. It is the "fn" kind: no infinity, and 0x7F and 0xFF are its only NaNs, which leaves the
//! rest of the top exponent to numbers up to 448.

/// The largest value.
pub const MAX: f32 = 448.0;

/// The smallest value above zero, a subnormal: 2⁻⁹.
pub const MIN_POSITIVE: f32 = 1.0 / 512.0;

/// The code of [`MAX`]; the next one up is NaN.
const MAX_CODE: u8 = 0x7E;

/// The exponent of the smallest normal value, which the subnormals share.
const MIN_EXPONENT: i32 = -6;

const VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        values[byte] = value(byte as u8);
        byte += 1;
    }
    values
};

const fn value(byte: u8) -> f32 {
    let exponent = (byte >> 3 & 0xF) as u32;
    let mantissa = (byte & 7) as u32;
    let magnitude = if is_nan(byte) {
        f32::NAN
    } else if exponent == 0 {
        mantissa as f32 * MIN_POSITIVE
    } else {
        f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20)
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The value of a byte; NaN for 0x7F and 0xFF.
pub const fn decode(byte: u8) -> f32 {
    VALUES[byte as usize]
}

/// Whether a byte is one of the two NaNs.
pub const fn is_nan(byte: u8) -> bool {
    byte & 0x7F == 0x7F
}

/// The byte nearest to `x`: ties go to the even code, magnitudes beyond 448 saturate at 448, and the sign
/// is kept, that of zero too. `None` for NaN.
pub fn encode(x: f32) -> Option<u8> {
    (!x.is_nan()).then(|| nearest(f64::from(x)))
}

/// [`encode`] from f64, for quotients that must not be rounded twice; `x` must not be NaN.
pub(crate) fn nearest(x: f64) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    let magnitude = x.abs().min(f64::from(MAX));
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(MIN_EXPONENT);
    // In units of the last place a normal magnitude is 8 to 16 and a subnormal one 0 to 8. Codes count on
    // through the exponents, so adding eight per step gives the code, and a mantissa that rounds up to 16
    // carries into the next exponent by itself.
    let steps = (magnitude * power_of_two(3 - exponent)).round_ties_even() as i32;
    let code = (exponent - MIN_EXPONENT) * 8 + steps;
    sign | (code as u8).min(MAX_CODE)
}

/// 2^`exponent`, for the exponents of normal f64 numbers.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
