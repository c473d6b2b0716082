//! How far a backend may be from the reference: derived here, once, and used by every test.
//!
//! Write ε = 2⁻²⁴, the rounding error of one f32 operation.
//!
//! **Operands** are exact: a code times its block scale has six significant bits, and backends may not round
//! activations, but once each where these are multiplied with an input scale first. **A sum** is off by what the backend's [`Arithmetic`] loses in additions; `arithmetic.rs` derives it. Where all
//! products are multiples of a quantum q and Σ|a·b| ≤ 2²³·q, every partial sum is exact in f32, in whatever order, and nothing is
//! forgiven: community inputs for groups are of that kind.
//!
//! **Scaling** by α rounds twice, and **a bias** that is not zero is added with one rounding. **The gate** moves with its sum as far as [`Gate`] says of itself, and is
//! computed within a multiple of ε of itself that is stated beside its code. **The
//! product** with the up value and **the cast** to the output type round once each. Values that leave f32's normal range
//! are flushed to within its smallest normal number (sums that α brings beyond f32 are infinite, and what comes of them is
//! not asked); matrix units flush already inside a sum. CPU backends scale tokens
//! until what is lost is below 2⁻¹²⁴ of a group's largest activation for each product. GPUs take tokens as they are and
//! weights as 2⁻⁷ of themselves, so that they lose what is below 2⁻¹¹⁸ of each product. A value that the output type
//! cannot hold may be infinite.

use crate::reference::{Element, Sum};
use crate::{Arithmetic, Gate, Output};

const EPSILON: f64 = 1.0 / (1u32 << 24) as f64;

/// The distance from the reference within which a backend's element must lie, its cast to `output` included.
pub fn bound(element: &Element, gate: Gate, k: usize, output: Output, arithmetic: Arithmetic) -> f64 {
    let error = unrounded_error(element, gate, k, arithmetic);
    error + half_ulp(element.value.abs() + error, output)
}

/// The same before the cast, in f32.
pub(crate) fn unrounded_error(element: &Element, gate: Gate, k: usize, arithmetic: Arithmetic) -> f64 {
    let smallest = f64::from(f32::MIN_POSITIVE);
    let sum_error = |sum: &Sum| {
        let accumulated = arithmetic.error(sum, k) + sum.negligible + sum.rounded;
        let scaled = accumulated + 2.0 * EPSILON * ((sum.value - sum.bias).abs() + accumulated);
        if sum.bias == 0.0 { scaled } else { scaled + EPSILON * (sum.value.abs() + scaled) }
    };
    if element.sums().any(|sum| sum.value.abs() + sum_error(sum) > f64::from(f32::MAX)) {
        return f64::INFINITY;
    }
    let gate_error = sum_error(&element.gate);
    let activation = gate.activation(element.gate.value);
    let activation_error = {
        let change = gate.change(element.gate.value, gate_error);
        let evaluation = gate.evaluation_error(element.gate.value) * EPSILON;
        change + evaluation * (activation.abs() + change) + gate.flushed(element.gate.value)
    };
    let before_cast = match &element.up {
        None => activation_error,
        Some(up) => {
            let (up_error, up_factor) = (sum_error(up), gate.up_factor(up.value).abs());
            activation_error * (up_factor + up_error)
                + activation.abs() * up_error
                + 2.0 * EPSILON * element.value.abs()
        }
    };
    before_cast + smallest
}

/// Whether a backend's value is what it may be.
pub fn accepts(element: &Element, found: f64, gate: Gate, k: usize, output: Output, arithmetic: Arithmetic) -> bool {
    let bound = bound(element, gate, k, output, arithmetic);
    if bound.is_infinite() || bound.is_nan() {
        return true;
    }
    if found.is_infinite() {
        return element.value.abs() + bound >= largest(output) && found.signum() == element.value.signum();
    }
    (found - element.value).abs() <= bound
}

/// Half the distance between neighbours of the output type around a magnitude.
pub(crate) fn half_ulp(magnitude: f64, output: Output) -> f64 {
    let (relative, absolute): (f64, f64) = match output {
        Output::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        Output::BF16 => (2f64.powi(-8), 2f64.powi(-134)),
        Output::F32 => (EPSILON, 2f64.powi(-150)),
    };
    (magnitude * relative).max(absolute)
}

/// The magnitude from which a value rounds to infinity.
pub(crate) fn largest(output: Output) -> f64 {
    match output {
        Output::F16 => 65520.0,
        Output::BF16 => 2f64.powi(128) * (1.0 - 2f64.powi(-9)),
        Output::F32 => 2f64.powi(128) * (1.0 - 2f64.powi(-25)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(gate: f64, up: f64, magnitude: f64, exact: bool) -> Element {
        let sum = |value| Sum { exact, ..Sum::rough(value, magnitude) };
        Element { gate: sum(gate), up: Some(sum(up)), value: Gate::Silu.apply(gate, up) }
    }

    #[test]
    fn an_exact_sum_is_forgiven_only_the_gate_and_the_cast() {
        let e = element(2.0, 3.0, 10.0, true);
        let bound = bound(&e, Gate::Silu, 7168, Output::F32, Arithmetic::Unknown);
        assert!(bound < 20.0 * EPSILON * e.value, "{bound}");
    }

    #[test]
    fn a_bias_is_granted_one_rounding_of_the_sum_that_it_makes_and_none_where_it_is_zero() {
        let at = |bias: f64| {
            let gate = Sum { exact: true, ..Sum::rough(3.0, 10.0) }.biased(bias);
            let element = Element { gate, up: None, value: gate.value };
            bound(&element, Gate::None, 16, Output::F32, Arithmetic::Unknown) - half_ulp(element.value, Output::F32)
        };
        let granted = |bias| (at(bias) / EPSILON * 1000.0).round() / 1000.0;
        assert_eq!((granted(0.0), granted(5.0)), (6.0, 6.0 + 8.0));
    }

    #[test]
    fn a_value_beyond_half_precision_may_be_infinite_with_the_right_sign_only() {
        let e = element(500.0, 400.0, 500.0, true);
        let at = |found| accepts(&e, found, Gate::Silu, 16, Output::F16, Arithmetic::Unknown);
        assert!(at(f64::INFINITY) && !at(f64::NEG_INFINITY) && !at(f64::NAN) && !at(65504.0));
        assert!(!accepts(&e, f64::INFINITY, Gate::Silu, 16, Output::F32, Arithmetic::Unknown));
    }
}
