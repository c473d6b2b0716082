//! e2m1, the 4-bit float: a sign, two exponent bits, one mantissa bit, no infinity and no NaN.
//!
//! There are only eight magnitudes, so decoding is a table and encoding is counting how many of the
//! seven midpoints between neighbours lie below the number.

/// The value of each code; bit 3 is the sign, so code 8 is −0.
pub const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The two values of each packed byte, low nibble first.
pub(crate) static PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [VALUES[byte & 0xF], VALUES[byte >> 4]];
        byte += 1;
    }
    pairs
};

/// The value of a code. Only the low nibble counts.
pub const fn decode(code: u8) -> f32 {
    VALUES[(code & 0xF) as usize]
}

/// The code nearest to `x`: ties go to the even code, magnitudes beyond 6 saturate at 6, and the sign is
/// kept, that of zero too. `None` for NaN, which e2m1 cannot say.
pub fn encode(x: f32) -> Option<u8> {
    (!x.is_nan()).then(|| nearest(f64::from(x), &midpoints(1.0)))
}

/// The midpoints between neighbouring magnitudes, times `unit`.
///
/// A number is quantised by comparing it with these rather than by dividing it by `unit`. A midpoint has
/// at most three significant bits, a block scale four and a global scale 24, so their product is exact in
/// f64 and the comparison decides ties truly, where a quotient would have been rounded first.
pub(crate) fn midpoints(unit: f64) -> [f64; 7] {
    [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].map(|midpoint| midpoint * unit)
}

/// The code nearest to `x` among the values that lie around `midpoints`; `x` must not be NaN.
pub(crate) fn nearest(x: f64, midpoints: &[f64; 7]) -> u8 {
    let magnitude = x.abs();
    let [a, b, c, d, e, f, g] = *midpoints;
    // A midpoint below an even code belongs to that code, one above it does too: hence > and ≥ in turn.
    let code = u8::from(magnitude > a)
        + u8::from(magnitude >= b)
        + u8::from(magnitude > c)
        + u8::from(magnitude >= d)
        + u8::from(magnitude > e)
        + u8::from(magnitude >= f)
        + u8::from(magnitude > g);
    code | (u8::from(x.is_sign_negative()) << 3)
}
