//! What gate and up become, as instructions: the arithmetic that every epilogue and the join share.
//!
//! α is applied as two factors, a power of two and the rest, so that no intermediate result leaves f32's range unless
//! the result does. Of the 8·2⁻²⁴ that [`op::bound`] grants a gate, the sigmoid takes 7, and the product the last one.

use ptx::{Builder, F32, Pred, Reg, U32};

use op::Gate;
use op::gate::{GELU_CUBIC, GELU_SCALE};

use super::exponential::sigmoid;
use super::owner::Owner;

/// The function of the gate. What models differ in, the limit, is an argument of kernels; what they share is part of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// [`Gate::Silu`].
    Silu,
    /// [`Gate::GeluTanh`].
    GeluTanh,
    /// [`Gate::SiluLimited`].
    SiluLimited,
    /// [`Gate::GptOss`], with the bits of alpha and beta as f32.
    GptOss {
        /// Of alpha.
        alpha: u32,
        /// Of beta.
        beta: u32,
    },
    /// [`Gate::Relu2`]: there is no S2.
    Relu2,
    /// [`Gate::None`]: there is no S2.
    None,
}

impl Function {
    /// Matrices whose sums it takes.
    pub(crate) fn matrices(self) -> u64 {
        if matches!(self, Function::Relu2 | Function::None) { 1 } else { 2 }
    }

    /// A gate's function.
    pub fn of(gate: Gate) -> Self {
        match gate {
            Gate::Silu => Function::Silu,
            Gate::GeluTanh => Function::GeluTanh,
            Gate::SiluLimited { .. } => Function::SiluLimited,
            Gate::GptOss { alpha, beta, .. } => {
                Function::GptOss { alpha: (alpha as f32).to_bits(), beta: beta.to_bits() }
            }
            Gate::Relu2 => Function::Relu2,
            Gate::None => Function::None,
        }
    }
}

/// A gate's limit, or zero where it has none.
pub fn clamp(gate: Gate) -> f32 {
    gate.limit().unwrap_or(0.0)
}

/// α as a power of two and the rest, each within f32: the two are multiplied onto a sum in this order.
///
/// A sum is below 2¹²⁷, and what lies below 2⁻¹¹⁸ does not count, so beyond ±252 an exponent means zero or infinity
/// anyway.
pub fn factors(alpha: f64) -> [f32; 2] {
    let exponent = if alpha == 0.0 { 0 } else { (alpha.abs().to_bits() >> 52) as i32 - 1023 };
    let mantissa = alpha * 2f64.powi(-exponent);
    let exponent = exponent.clamp(-252, 252);
    [2f32.powi(exponent / 2), (mantissa * 2f64.powi(exponent - exponent / 2)) as f32]
}

/// A sum times the two factors of its α.
pub(crate) fn scaled(k: &mut Builder, sum: Reg<F32>, factors: [Reg<F32>; 2]) -> Reg<F32> {
    let scaled = k.mul(sum, factors[0]);
    k.mul(scaled, factors[1])
}

/// What becomes of the only value of a gate that takes one matrix.
pub(crate) fn alone(k: &mut Builder, function: Function, value: Reg<F32>) -> Reg<F32> {
    if function != Function::Relu2 {
        return value;
    }
    // Not `max`, which takes zero for NaN.
    let zero = k.variable(0.0);
    let positive = at_least(k, value, zero);
    k.mul(positive, positive)
}

/// The gate of two values, as the CPU's epilogues have it.
pub(crate) fn apply(k: &mut Builder, function: Function, gate: Reg<F32>, up: Reg<F32>, clamp: Reg<F32>) -> Reg<F32> {
    let activation = activation(k, function, gate, clamp);
    joined(k, function, activation, up, clamp)
}

/// What becomes of the gate's value, whatever up is.
pub(crate) fn activation(k: &mut Builder, function: Function, gate: Reg<F32>, clamp: Reg<F32>) -> Reg<F32> {
    let (gate, argument) = match function {
        Function::Silu | Function::Relu2 | Function::None => (gate, gate),
        Function::SiluLimited => {
            let gate = at_most(k, gate, clamp);
            (gate, gate)
        }
        Function::GeluTanh => {
            let cubic = k.mul(gate, GELU_CUBIC as f32);
            let cubic = k.mul(cubic, gate);
            let bent = k.fma(cubic, gate, gate);
            (gate, k.mul(bent, GELU_SCALE as f32))
        }
        Function::GptOss { alpha, .. } => {
            let gate = at_most(k, gate, clamp);
            (gate, k.mul(gate, f32::from_bits(alpha)))
        }
    };
    let sigmoid = sigmoid(k, argument);
    k.mul(gate, sigmoid)
}

/// The gate of two values, of which the gate's has been activated.
pub(crate) fn joined(
    k: &mut Builder,
    function: Function,
    activation: Reg<F32>,
    up: Reg<F32>,
    clamp: Reg<F32>,
) -> Reg<F32> {
    let up = match function {
        Function::Silu | Function::GeluTanh | Function::Relu2 | Function::None => up,
        Function::SiluLimited => limited(k, up, clamp),
        Function::GptOss { beta, .. } => {
            let up = limited(k, up, clamp);
            k.add(up, f32::from_bits(beta))
        }
    };
    k.mul(activation, up)
}

/// Up within its limits.
fn limited(k: &mut Builder, up: Reg<F32>, limit: Reg<F32>) -> Reg<F32> {
    let lowest = k.neg(limit);
    let up = at_least(k, up, lowest);
    at_most(k, up, limit)
}

/// The smaller of two, or NaN if the value is that: `min` would take the limit.
fn at_most(k: &mut Builder, value: Reg<F32>, limit: Reg<F32>) -> Reg<F32> {
    let beyond = k.gt(value, limit);
    k.select(beyond, limit, value)
}

/// The larger of two, or NaN if the value is that.
fn at_least(k: &mut Builder, value: Reg<F32>, limit: Reg<F32>) -> Reg<F32> {
    let beyond = k.lt(value, limit);
    k.select(beyond, limit, value)
}

/// What is made of a tile's gate sums and up sums.
#[derive(Clone, Copy)]
pub(crate) struct Gates {
    function: Function,
    /// The factors of gate, or of the only matrix, and of up.
    factors: [[Reg<F32>; 2]; 2],
    clamp: Reg<F32>,
}

impl Gates {
    /// For the sums of one matrix, or of two.
    pub fn new(k: &mut Builder, owner: &Owner, single: bool, function: Function, clamp: Reg<F32>) -> Self {
        let gate = owner.factors(k, 0);
        // Experts' factors end with those of their last matrix.
        let up = if single { gate } else { owner.factors(k, 1) };
        Gates { function, factors: [gate, up], clamp }
    }

    /// The same for one of `n` columns, which may have factors of its own.
    pub fn of_column(self, k: &mut Builder, owner: &Owner, column: Reg<U32>, n: Reg<U32>) -> Self {
        match owner.column_factors(k, column, n) {
            Some(factors) => Gates { factors: [factors; 2], ..self },
            None => self,
        }
    }

    /// A matrix's sum times its factors and its row's, plus its column's bias.
    fn finished(&self, k: &mut Builder, matrix: usize, sum: Reg<F32>, terms: Terms) -> Reg<F32> {
        let scaled = match terms.scale {
            None => scaled(k, sum, self.factors[matrix]),
            // A power of two like the first factor, and possibly as large as that is small.
            Some(scale) => {
                let scaled = k.mul(sum, self.factors[matrix][0]);
                let scaled = k.mul(scaled, scale);
                k.mul(scaled, self.factors[matrix][1])
            }
        };
        let scaled = terms.factor.map_or(scaled, |factor| k.mul(scaled, factor));
        let value = terms.bias.map_or(scaled, |bias| k.add(scaled, bias));
        let Some((theirs, delta)) = terms.delta else { return value };
        let value = k.variable(value);
        k.when(theirs, |k| {
            let sum = k.add(value, delta);
            k.set(value, sum);
        });
        value
    }

    /// The value of a gate sum and an up sum, or of the only one, with their biases and what their row has.
    pub fn apply(
        &self,
        k: &mut Builder,
        (gate, up): (Reg<F32>, Option<Reg<F32>>),
        biases: [Option<Reg<F32>>; 2],
        row: RowTerms,
    ) -> Reg<F32> {
        let RowTerms { scale, factor, deltas } = row;
        let gate = self.finished(k, 0, gate, Terms { scale, factor, bias: biases[0], delta: deltas[0] });
        match up {
            None => alone(k, self.function, gate),
            Some(up) => {
                let up = self.finished(k, 1, up, Terms { scale, factor, bias: biases[1], delta: deltas[1] });
                apply(k, self.function, gate, up, self.clamp)
            }
        }
    }

    /// What becomes of the only sum.
    pub fn alone(&self, k: &mut Builder, sum: Reg<F32>, terms: Terms) -> Reg<F32> {
        let value = self.finished(k, 0, sum, terms);
        alone(k, self.function, value)
    }

    /// What becomes of a gate sum, whatever up is.
    pub fn activate(&self, k: &mut Builder, sum: Reg<F32>, terms: Terms) -> Reg<F32> {
        let gate = self.finished(k, 0, sum, terms);
        activation(k, self.function, gate, self.clamp)
    }

    /// What becomes of that and an up sum.
    pub fn join(&self, k: &mut Builder, activation: Reg<F32>, sum: Reg<F32>, terms: Terms) -> Reg<F32> {
        let up = self.finished(k, 1, sum, terms);
        joined(k, self.function, activation, up, self.clamp)
    }
}

/// What is added to a sum, where a predicate holds.
pub(crate) type Delta = Option<(Pred, Reg<F32>)>;

/// What both sums of a row are multiplied with, besides the factors of their matrices, and what is added to each.
#[derive(Clone, Copy, Default)]
pub(crate) struct RowTerms {
    /// What the row was divided by before it was rounded: a power of two.
    pub scale: Option<Reg<F32>>,
    pub factor: Option<Reg<F32>>,
    pub deltas: [Delta; 2],
}

/// What a sum is multiplied with and has added, besides the factors of its matrix.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    /// What a row was divided by before it was rounded: a power of two.
    pub scale: Option<Reg<F32>>,
    pub factor: Option<Reg<F32>>,
    pub bias: Option<Reg<F32>>,
    pub delta: Delta,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_factors_make_alpha_to_half_an_ulp_wherever_the_product_is_a_number() {
        for alpha in [1.0, -0.3, 1e-30, 3.7e30, 1e-60, 2f64.powi(-150), 7.7e50, -1.9e-44] {
            let [power, rest] = factors(alpha).map(f64::from);
            assert!((power * rest / alpha - 1.0).abs() <= 2f64.powi(-24), "{alpha}: {power}·{rest}");
            assert_eq!(power.log2().fract(), 0.0, "{power} is a power of two");
        }
        assert_eq!(factors(0.0)[1], 0.0);
    }

    #[test]
    fn factors_of_an_alpha_beyond_any_result_are_finite_and_keep_its_sign() {
        for alpha in [1e-200, -1e-200, 1e200, -1e200] {
            let [power, rest] = factors(alpha);
            assert!(power.is_finite() && rest.is_finite() && rest != 0.0, "{alpha}");
            assert_eq!(rest.is_sign_negative(), alpha < 0.0, "{alpha}");
        }
    }
}
