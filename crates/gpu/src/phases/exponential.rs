//! The exponential and the sigmoid, for gates and for scores of routings.
//!
//! The hardware's `ex2.approx` (3·2⁻²⁴) is corrected for the rounding of its argument (1). A sigmoid adds the sum with
//! one (1) and `rcp.approx` (2).

use std::f32::consts::{LN_2, LOG2_E};

use ptx::{Builder, F32, Reg};

/// What log₂e has beyond f32.
const LOG2_E_REST: f32 = 1.925_963e-8;

/// 1/(1 + e⁻ʸ), for y clipped at ±88: then every number on the way is finite and normal but for the result, which is
/// zero where it would be subnormal (y below −87.3), so that those instructions can be used that flush such numbers.
/// NaN becomes a number here, and the gate value that it is multiplied with is NaN then.
///
/// e⁻ʸ is 2ᵗ for t = −y·log₂e, rounded. What the rounding took away, and what log₂e has beyond f32, is d: 2ᵈ is 1 +
/// d·ln 2.
pub(crate) fn sigmoid(k: &mut Builder, y: Reg<F32>) -> Reg<F32> {
    let y = k.max(y, -88.0);
    let y = k.min(y, 88.0);
    let power = power(k, y, -1.0);
    let below = k.add(power, 1.0);
    k.rcp_flushed(below)
}

/// eʸ for a y that is not positive; below −87.3, where it would be subnormal, and for NaN it is zero.
pub(crate) fn exponential(k: &mut Builder, y: Reg<F32>) -> Reg<F32> {
    let y = k.max(y, -88.0);
    power(k, y, 1.0)
}

/// e to the power of y times a sign, for |y| of at most 88.
fn power(k: &mut Builder, y: Reg<F32>, sign: f32) -> Reg<F32> {
    let t = k.mul(y, sign * LOG2_E);
    let opposite = k.neg(t);
    let lost = k.fma(y, sign * LOG2_E, opposite);
    let lost = k.fma(y, sign * LOG2_E_REST, lost);
    let factor = k.mul(lost, LN_2);
    let power = k.exp2_flushed(t);
    k.fma(power, factor, power)
}
