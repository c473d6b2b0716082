//! How far a backend may be from the reference: derived here, once, and used by every test.
//!
//! Write ε = 2⁻²⁴, the rounding error of one f32 operation.
//!
//! **Operands** are exact: a code times its block scale has six significant bits, and backends may not round
//! activations, but once each where these are multiplied with an input scale first. **A sum** is off by what the
//! backend's [`Arithmetic`] loses in additions; `arithmetic.rs` derives it. Where all products are multiples of a
//! quantum q and Σ|a·b| ≤ 2²³·q, every partial sum is exact in f32, in whatever order, and nothing is forgiven:
//! community inputs for groups are of that kind.
//!
//! **Scaling** by α rounds twice, **a bias** that is not zero is added with one rounding, and what an adapter adds, if
//! anything, with another, beside what that itself is off by ([`crate::adapters`]). **The gate** moves with
//! its sum as far as [`Gate`] says of itself, and is computed within a multiple of ε of itself that is stated beside
//! its code. **The product** with the up value and **the cast** to the output type round once each. Values that leave
//! f32's normal range are flushed to within its smallest normal number (sums that α brings beyond f32 are infinite, and
//! what comes of them is not asked); matrix units flush already inside a sum. CPU backends scale tokens until what is
//! lost is below 2⁻¹²⁴ of a group's largest activation for each product. GPUs take tokens as they are and weights as
//! 2⁻⁷ of themselves, so that they lose what is below 2⁻¹¹⁸ of each product. A value that the output type cannot hold
//! may be infinite.

use crate::reference::{Element, Sum};
use crate::{Arithmetic, Gate, Output};

const EPSILON: f64 = 1.0 / (1u32 << 24) as f64;

/// A reference value, and how far a backend's may be from it before its cast to an output type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounded {
    /// The value.
    pub value: f64,
    /// The largest distance.
    pub error: f64,
}

impl Bounded {
    /// An element that a backend computes from exact operands, K products to a sum.
    pub fn new(element: &Element, gate: Gate, k: usize, arithmetic: Arithmetic) -> Self {
        Self { value: element.value, error: error(element, gate, k, arithmetic) }
    }

    /// Whether a backend's result is what it may be, its cast to the output type included.
    pub fn accepts(self, found: f64, output: Output) -> bool {
        let allowed = self.allowed(output);
        if allowed.is_infinite() || allowed.is_nan() {
            return true;
        }
        if found.is_infinite() {
            return self.value.abs() + allowed >= largest(output) && found.signum() == self.value.signum();
        }
        (found - self.value).abs() <= allowed
    }

    /// How far a result may be off, its cast included.
    pub fn allowed(self, output: Output) -> f64 {
        self.error + half_ulp(self.value.abs() + self.error, output)
    }
}

/// How far an element may be off in f32.
fn error(element: &Element, gate: Gate, k: usize, arithmetic: Arithmetic) -> f64 {
    let smallest = f64::from(f32::MIN_POSITIVE);
    let sum_error = |sum: &Sum| {
        let accumulated = arithmetic.error(sum, k) + sum.negligible + sum.rounded;
        let ([addend, addend_error], biased) = (sum.addend, sum.value - sum.addend[0]);
        let mut error = accumulated + 2.0 * EPSILON * ((biased - sum.bias).abs() + accumulated);
        if sum.bias != 0.0 {
            error += EPSILON * (biased.abs() + error);
        }
        if addend != 0.0 || addend_error != 0.0 {
            error += addend_error + EPSILON * (sum.value.abs() + error + addend_error);
        }
        error
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

/// Half the distance between neighbours of the output type around a magnitude.
fn half_ulp(magnitude: f64, output: Output) -> f64 {
    let (relative, absolute): (f64, f64) = match output {
        Output::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        Output::BF16 => (2f64.powi(-8), 2f64.powi(-134)),
        Output::F32 => (EPSILON, 2f64.powi(-150)),
    };
    (magnitude * relative).max(absolute)
}

/// The magnitude from which a value rounds to infinity.
fn largest(output: Output) -> f64 {
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
        let bound = Bounded::new(&e, Gate::Silu, 7168, Arithmetic::Unknown).allowed(Output::F32);
        assert!(bound < 20.0 * EPSILON * e.value, "{bound}");
    }

    #[test]
    fn a_bias_is_granted_one_rounding_of_the_sum_that_it_makes_and_none_where_it_is_zero() {
        let at = |bias: f64| {
            let gate = Sum { exact: true, ..Sum::rough(3.0, 10.0) }.biased(bias);
            let element = Element { gate, up: None, value: gate.value };
            Bounded::new(&element, Gate::None, 16, Arithmetic::Unknown).error
        };
        let granted = |bias| (at(bias) / EPSILON * 1000.0).round() / 1000.0;
        assert_eq!((granted(0.0), granted(5.0)), (6.0, 6.0 + 8.0));
    }

    #[test]
    fn a_value_beyond_half_precision_may_be_infinite_with_the_right_sign_only() {
        let e = element(500.0, 400.0, 500.0, true);
        let at = |found, output| Bounded::new(&e, Gate::Silu, 16, Arithmetic::Unknown).accepts(found, output);
        assert!(at(f64::INFINITY, Output::F16) && !at(f64::INFINITY, Output::F32));
        assert!([f64::NEG_INFINITY, f64::NAN, 65504.0].iter().all(|&found| !at(found, Output::F16)));
    }
}
