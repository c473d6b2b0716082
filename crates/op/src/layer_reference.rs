//! A whole layer of experts in double precision, as simply as it can be written, and how far a backend may be from it.
//!
//! ```text
//! h = gate(α₁·Σ x·Wg + bg, α₂·Σ x·Wu + bu)      rounded as the layer's Intermediate says
//! y = α₃·Σ h·Wd + bd                            f32
//! out[t] = Σ_j w[t,j]·y_{e[t,j]} + σ(x·v)·shared   f32, j = 0..k−1 in this order, the shared expert last; rounded once
//! ```
//!
//! Where a token has an adapter, that adds to all three products: [`adapters`](crate::adapters).
//!
//! In FP8 the operands of both products are rounded to e4m3 first, and y to bf16, as
//! [`precision`](mod@crate::precision) says.
//!
//! Where weights multiply inputs (Llama-4), `x·w` stands in the place of x, rounded to f32 at most, and the outputs are
//! added as they are.
//!
//! **The bound** follows a value through the layer, as an interval: a reference value and how far a backend's may be
//! from it.
//!
//! 1. The first product and its gate are what [`bound`](crate::bound) says of them, without its cast: h is within e of
//!    the reference.
//! 2. Rounding is monotone: what a backend rounds lies between h − e and h + e, so its result lies between what these
//!    two become. As a rule both become the same number, and then the backend has that very number: nothing is
//!    forgiven, although rounding to bf16 takes away 2⁻⁹. Where they do not, all numbers between the two are allowed.
//!    For NVFP4 the scale of 16 values jumps too: the interval is the hull over every scale that the largest of the 16
//!    may lead to. For FP8 the factor of a row jumps with its largest: the hull is over every factor possible.
//! 3. The second product's inputs are off by d: its sum moves by Σ d·|Wd|, and is then off by what the backend's
//!    arithmetic loses.
//! 4. The combination adds |w|·error of each y, and rounds twice per expert: the product, and the sum so far. σ(x·v)
//!    moves by a quarter of what the sum inside loses, in whatever order it is added up.
//! 5. The cast to the output type rounds once.

use format::{BLOCK, Dense, Values};
use half::{bf16, f16};

use crate::bound::Bounded;
use crate::reference::{Element, Reference, Sum};
use crate::{
    Activation, Activations, Arithmetic, Error, ExpertWeights, Gate, Intermediate, LowRank, MlpWeights, Precision,
    Projection, Result, Routed, precision,
};

const EPSILON: f64 = 1.0 / (1u32 << 24) as f64;
/// Tokens of one expert are taken to be no further apart than this: see `negligible` in [`crate::reference::Sum`].
const APART: f64 = (1u64 << 40) as f64;

/// A layer and its tokens.
#[derive(Debug)]
pub struct LayerReference<'a, 'b> {
    /// The weights.
    pub weights: &'a ExpertWeights<'b>,
    /// What the intermediate is rounded to.
    pub intermediate: Intermediate,
    /// What the operands of both products are rounded to.
    pub precision: Precision,
    /// The tokens.
    pub tokens: &'a Dense<'a>,
    /// Their experts.
    pub routed: &'a Routed,
}

impl LayerReference<'_, '_> {
    /// One row of the result, given how the backend adds up products with activations of a type.
    pub fn row(&self, token: usize, arithmetic: &dyn Fn(Activation) -> Arithmetic) -> Result<Vec<Bounded>> {
        self.precision.check_layer(self.intermediate, self.routed.adapters().is_some())?;
        let mut x = vec![0.0; self.tokens.k()];
        self.tokens.row(token, &mut x);
        let element = Activations::Dense(self.tokens.as_borrowed()).element();
        let global = self.tokens.global();
        let width = self.weights.experts()[0].widths()[2];
        let mut out = vec![Combined::default(); width];
        let adapted = self.routed.adapters().and_then(|adapted| Some((adapted.adapters(), adapted.of(token)?)));
        let mut compute = |mlp: &MlpWeights<'_>, expert: Option<usize>, factor: Option<f32>, weight: Bounded| {
            let deltas = |projection| {
                let (all, adapter) = adapted?;
                match expert {
                    Some(expert) => all.pair(adapter, expert, projection),
                    None => all.shared()?.pair(adapter, 0, projection),
                }
            };
            // What is rounded to e4m3 does not depend on the weight, which multiplies the sums.
            let (factor, of_sums) = if self.precision == Precision::Fp8 { (None, factor) } else { (factor, None) };
            let scaled: Vec<f32> = x.iter().map(|&x| x * factor.unwrap_or(1.0)).collect();
            let activations = Dense::new(1, x.len(), if factor.is_some() { scaled } else { x.clone() }, global)?;
            let first = if factor.is_some() { Activation::F32 } else { element };
            let rounding = match self.intermediate {
                Intermediate::Tokens => Rounding::to(element),
                Intermediate::F32 => Rounding::F32,
                Intermediate::NvFp4 => Rounding::NvFp4(mlp.intermediate_scale().value()),
            };
            let deltas = Projection::ALL.map(deltas);
            let (gate, precision, of_sums) = (self.weights.gate(), self.precision, of_sums.map(f64::from));
            let layer = Mlp { mlp, gate, precision, rounding, first, of_sums, deltas };
            for (out, y) in out.iter_mut().zip(layer.row(&activations.into(), factor.is_some(), arithmetic)?) {
                out.add(weight, y);
            }
            Ok::<(), Error>(())
        };
        for (expert, weight) in self.routed.of(token) {
            let (factor, weight) = if self.routed.is_on_input() { (Some(weight), 1.0) } else { (None, weight) };
            let weight = Bounded { value: weight.into(), error: 0.0 };
            compute(&self.weights.experts()[expert], Some(expert), factor, weight)?;
        }
        if let Some(shared) = self.weights.shared() {
            compute(shared.mlp(), None, None, shared.gate().map_or(ONE, |gate| gating(&x, gate, global.value())))?;
        }
        Ok(out.into_iter().map(|sum| sum.bounded).collect())
    }
}

const ONE: Bounded = Bounded { value: 1.0, error: 0.0 };

/// σ(x·v).
fn gating(x: &[f32], gate: &[f32], global: f64) -> Bounded {
    let products = || x.iter().zip(gate).map(|(&x, &v)| global * f64::from(x) * f64::from(v));
    let (sum, magnitude) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
    let value = 1.0 / (1.0 + (-sum).exp());
    Bounded { value, error: (x.len() as f64 + 2.0) * EPSILON * magnitude / 4.0 + 12.0 * EPSILON * value }
}

/// A sum of products on its way.
#[derive(Clone, Copy)]
struct Combined {
    bounded: Bounded,
    /// No partial sum is larger.
    magnitude: f64,
}

impl Default for Combined {
    fn default() -> Self {
        Self { bounded: Bounded { value: 0.0, error: 0.0 }, magnitude: 0.0 }
    }
}

impl Combined {
    fn add(&mut self, weight: Bounded, y: Bounded) {
        let product = weight.value * y.value;
        let moved = weight.value.abs() * y.error + weight.error * (y.value.abs() + y.error);
        self.magnitude += product.abs() + moved;
        self.bounded.value += product;
        // The product and the sum so far round, and what is below f32's normal numbers may vanish.
        let rounded = EPSILON * (product.abs() + moved + self.magnitude + self.bounded.error);
        self.bounded.error += moved + rounded + f64::from(f32::MIN_POSITIVE);
    }
}

/// What the intermediate is rounded to.
#[derive(Clone, Copy)]
enum Rounding {
    F16,
    BF16,
    F32,
    NvFp4(f64),
}

impl Rounding {
    fn to(element: Activation) -> Self {
        match element {
            Activation::F16 => Rounding::F16,
            Activation::BF16 => Rounding::BF16,
            Activation::F32 => Rounding::F32,
            Activation::NvFp4 => unreachable!("tokens of a layer are dense"),
        }
    }

    fn element(self) -> Activation {
        match self {
            Rounding::F16 => Activation::F16,
            Rounding::BF16 => Activation::BF16,
            Rounding::F32 => Activation::F32,
            Rounding::NvFp4(_) => Activation::NvFp4,
        }
    }

    /// A row, rounded: the numbers, and how far each backend's may be from them.
    fn row(self, values: &[Bounded]) -> Vec<Bounded> {
        let ends = |values: &[Bounded], round: &dyn Fn(f64) -> f64| {
            let between = |x: &Bounded| hull([round(x.value), round(x.value - x.error), round(x.value + x.error)]);
            values.iter().map(between).collect()
        };
        match self {
            Rounding::F16 => ends(values, &|x| f16::from_f64(x).to_f64()),
            Rounding::BF16 => ends(values, &|x| bf16::from_f64(x).to_f64()),
            Rounding::F32 => ends(values, &|x| f64::from(x as f32)),
            Rounding::NvFp4(global) => values.chunks(BLOCK).flat_map(|block| quantized(block, global)).collect(),
        }
    }
}

/// The first of some numbers, with an error that reaches all others.
fn hull<const N: usize>(values: [f64; N]) -> Bounded {
    let error = values.iter().fold(0f64, |error, x| error.max((x - values[0]).abs()));
    Bounded { value: values[0], error }
}

/// A row as e4m3 numbers with one factor, divided by that again: the numbers, and how far a backend's may be from them.
fn e4m3_row(values: &[Bounded]) -> Vec<Bounded> {
    let amax = |by: f64| values.iter().fold(0f64, |most, x| most.max(x.value.abs() + by * x.error));
    if values.iter().any(|x| !(x.value.abs() + x.error).is_finite()) {
        return vec![Bounded { value: f64::NAN, error: f64::INFINITY }; values.len()];
    }
    let exponent = |by: f64| precision::token_exponent(amax(by) as f32);
    let round =
        |x: f64, exponent: i32| f64::from(precision::nearest(x as f32 * 2f32.powi(exponent))) * 2f64.powi(-exponent);
    let (chosen, exponents) = (exponent(0.0), exponent(1.0)..=exponent(-1.0));
    let between = |x: &Bounded| {
        let value = round(x.value, chosen);
        let ends = exponents.clone().flat_map(|e| [x.value - x.error, x.value + x.error].map(|end| round(end, e)));
        Bounded { value, error: ends.fold(0f64, |error, end| error.max((end - value).abs())) }
    };
    values.iter().map(between).collect()
}

/// Sixteen values as NVFP4.
fn quantized(block: &[Bounded], global: f64) -> Vec<Bounded> {
    let scale = |amax: f64| nearest(&positive_e4m3(), (amax / (6.0 * global)).clamp(2f64.powi(-9), 448.0));
    let amax = |by: f64| block.iter().fold(0f64, |most, x| most.max((x.value.abs() + by * x.error).max(0.0)));
    let chosen = scale(amax(0.0));
    let scales: Vec<f64> =
        positive_e4m3().into_iter().filter(|s| (scale(amax(-1.0))..=scale(amax(1.0))).contains(s)).collect();
    let code = |x: f64, scale: f64| {
        let unit = scale * global;
        nearest(&[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], (x / unit).abs()).copysign(x) * unit
    };
    let value = |x: &Bounded| {
        let value = code(x.value, chosen);
        let ends = scales.iter().flat_map(|&scale| [code(x.value - x.error, scale), code(x.value + x.error, scale)]);
        Bounded { value, error: ends.fold(0f64, |error, end| error.max((end - value).abs())) }
    };
    block.iter().map(value).collect()
}

/// The positive e4m3 numbers, ascending from 2⁻⁹.
fn positive_e4m3() -> Vec<f64> {
    (1..=0x7E).map(|byte| f64::from(format::e4m3::decode(byte))).collect()
}

/// The nearest of ascending numbers; between two of them, the one that is even among all. Of e4m3's this list has no
/// zero, so that the odd places are even there.
fn nearest(numbers: &[f64], x: f64) -> f64 {
    let above = numbers.partition_point(|&number| number < x);
    if above == 0 || above == numbers.len() {
        return numbers[above.min(numbers.len() - 1)];
    }
    let (low, high) = (numbers[above - 1], numbers[above]);
    let even = |index: usize| (index + usize::from(numbers[0] != 0.0)).is_multiple_of(2);
    match (x - low).partial_cmp(&(high - x)) {
        Some(std::cmp::Ordering::Less) => low,
        Some(std::cmp::Ordering::Equal) if even(above - 1) => low,
        _ => high,
    }
}

/// One MLP.
struct Mlp<'a, 'b> {
    mlp: &'a MlpWeights<'b>,
    gate: Gate,
    precision: Precision,
    rounding: Rounding,
    /// The type of its tokens.
    first: Activation,
    /// What the sums of gate and up are multiplied with before their biases are added.
    of_sums: Option<f64>,
    /// What an adapter adds to gate, up and down.
    deltas: [Option<(&'a LowRank, f32)>; 3],
}

impl Mlp<'_, '_> {
    /// A token's result, in f32, or in FP8 in bf16. Tokens may have been rounded already, when they were multiplied
    /// with a weight.
    fn row(
        &self,
        x: &Activations<'_>,
        rounded: bool,
        arithmetic: &dyn Fn(Activation) -> Arithmetic,
    ) -> Result<Vec<Bounded>> {
        let first = if self.mlp.up().input_scale().is_some() { Activation::F32 } else { self.first };
        let h = self.first_product(x, rounded, arithmetic(first));
        let h = self.rounding.row(&h);
        match self.precision {
            Precision::Exact => self.second_product(&h, arithmetic),
            Precision::Fp8 => {
                let y = self.second_rounded_product(&h, arithmetic(self.rounding.element()))?;
                Ok(Rounding::BF16.row(&y))
            }
        }
    }

    /// h before it is rounded.
    fn first_product(&self, x: &Activations<'_>, rounded: bool, arithmetic: Arithmetic) -> Vec<Bounded> {
        let reference = Reference::in_precision(x, self.mlp.up(), self.gate, self.precision);
        let reference = reference.among_tokens_apart_by(APART);
        let token = reference.token(0);
        let token = if rounded { token.rounded() } else { token };
        let mut values = vec![0.0; x.k()];
        x.unscaled_row(0, &mut values);
        let global = x.global().value();
        // Tokens times weights round where a backend multiplies them, before A or behind it.
        let error = |x: f64| if rounded { EPSILON * x.abs() } else { 0.0 };
        let values: Vec<Bounded> =
            values.iter().map(|&x| global * f64::from(x)).map(|value| Bounded { value, error: error(value) }).collect();
        let deltas = [0, 1].map(|matrix| self.delta(matrix, &values));
        let element = |n: usize| {
            let Element { gate, up, .. } = reference.element(&token, &reference.column(n));
            let with = |sum: Sum, matrix: usize| {
                let sum = self.of_sums.map_or(sum, |factor| sum.times(factor));
                match &deltas[matrix] {
                    Some(deltas) => sum.added(deltas[n].value, deltas[n].error),
                    None => sum,
                }
            };
            let (gate, up) = (with(gate, 0), up.map(|up| with(up, 1)));
            Element { gate, up, value: self.gate.apply(gate.value, up.map_or(0.0, |up| up.value)) }
        };
        (0..self.mlp.up().n()).map(|n| Bounded::new(&element(n), self.gate, x.k(), arithmetic)).collect()
    }

    /// What an adapter adds to a matrix's product.
    fn delta(&self, matrix: usize, x: &[Bounded]) -> Option<Vec<Bounded>> {
        self.deltas[matrix].map(|(pair, scaling)| pair.delta(x, scaling.into()))
    }

    /// y, of an intermediate that a backend may have slightly otherwise, rounded to e4m3.
    fn second_rounded_product(&self, h: &[Bounded], arithmetic: Arithmetic) -> Result<Vec<Bounded>> {
        let down = self.mlp.down();
        let values: Vec<f32> = h.iter().map(|h| h.value as f32).collect();
        let inputs = Dense::new(1, h.len(), values, 1.0)?.into();
        let reference = Reference::in_precision(&inputs, down, Gate::None, Precision::Fp8);
        let reference = reference.among_tokens_apart_by(APART);
        let rounded = match down.input_scale() {
            None => e4m3_row(h),
            Some(scale) => {
                let product = |x: f64, s: f32| f64::from(x as f32 * s);
                let scaled = |(h, &s): (&Bounded, &f32)| {
                    hull([h.value, h.value - h.error, h.value + h.error].map(|x| product(x, s)))
                };
                e4m3_row(&h.iter().zip(scale).map(scaled).collect::<Vec<_>>())
            }
        };
        let errors: Vec<f64> = rounded.iter().map(|x| x.error).collect();
        let token = reference.token(0).moved_by(errors.clone());
        let column = |n: usize| {
            let column = reference.column(n);
            let moved: f64 = column[0].factors(None).zip(&errors).map(|(w, error)| w.abs() * error).sum();
            let mut sum = reference.element(&token, &column).gate;
            sum.exact &= moved == 0.0;
            let element = Element { gate: sum, up: None, value: sum.value };
            let y = Bounded::new(&element, Gate::None, h.len(), arithmetic);
            // Moved inputs round otherwise: a little more than the reference's do.
            Bounded { error: y.error + moved * (1.0 + 4.0 * h.len() as f64 * EPSILON), ..y }
        };
        Ok((0..down.n()).map(column).collect())
    }

    /// y, of an intermediate that a backend may have slightly otherwise.
    fn second_product(&self, h: &[Bounded], arithmetic: &dyn Fn(Activation) -> Arithmetic) -> Result<Vec<Bounded>> {
        let down = self.mlp.down();
        let element = if down.input_scale().is_some() { Activation::F32 } else { self.rounding.element() };
        let arithmetic = arithmetic(element);
        // The numbers are those of a type within f32. Of NVFP4 they are codes times scales times a global scale: near
        // enough to f32 for judging how a sum is added up, and what is missing is added to it.
        let narrow: Vec<f32> = h.iter().map(|h| h.value as f32).collect();
        let narrowed: Vec<f64> = h.iter().zip(&narrow).map(|(h, &x)| h.value - f64::from(x)).collect();
        let inputs = Dense::new(1, h.len(), narrow, 1.0)?.into();
        let reference = Reference::new(&inputs, down, Gate::None).among_tokens_apart_by(APART);
        let token = reference.token(0);
        let deltas = self.delta(2, h);
        let column = |n: usize| {
            let column = reference.column(n);
            let weights: Vec<f64> = column[0].factors(down.input_scale()).collect();
            let missing: f64 = weights.iter().zip(&narrowed).map(|(w, x)| w * x).sum();
            let moved: f64 = weights.iter().zip(h).map(|(w, h)| w.abs() * h.error).sum();
            let mut sum = reference.element(&token, &column).gate;
            sum.exact &= moved == 0.0 && narrowed.iter().all(|&x| x == 0.0);
            sum.value += missing;
            if let Some(deltas) = &deltas {
                sum = sum.added(deltas[n].value, deltas[n].error);
            }
            let element = Element { gate: sum, up: None, value: sum.value };
            let y = Bounded::new(&element, Gate::None, h.len(), arithmetic);
            // Moved inputs round otherwise: a little more than the reference's do.
            Bounded { error: y.error + moved * (1.0 + 4.0 * h.len() as f64 * EPSILON), ..y }
        };
        Ok((0..down.n()).map(column).collect())
    }
}

/// An element of dense values.
pub fn value_at(values: &Values<'_>, index: usize) -> f64 {
    match values {
        Values::F16(c) => c[index].to_f64(),
        Values::BF16(c) => c[index].to_f64(),
        Values::F32(c) => c[index].into(),
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use format::Matrix;

    use super::*;
    use crate::{Ids, Output, SharedWeights, Weights};

    fn matrix(rng: &mut Rng, n: usize, k: usize) -> Matrix<'static> {
        let codes: Vec<u8> = (0..n * k / 2).map(|_| rng.u8(..)).collect();
        let scales: Vec<u8> = (0..n * k / 16).map(|_| rng.u8(0x30..0x40)).collect();
        Matrix::new(n, k, codes, scales, 0.05).unwrap()
    }

    fn mlp(rng: &mut Rng, [k, width]: [usize; 2]) -> MlpWeights<'static> {
        let up = Weights::gated(matrix(rng, width, k), matrix(rng, width, k)).unwrap();
        MlpWeights::new(up, Weights::plain(matrix(rng, k, width))).unwrap()
    }

    /// The layer by loops over plain numbers, without a thought of errors.
    fn plainly(weights: &ExpertWeights<'_>, x: &[f32], routed: &Routed, shared_factor: f64) -> Vec<f64> {
        let one = |mlp: &MlpWeights<'_>, x: &[f64]| -> Vec<f64> {
            let product = |matrix: &Matrix<'_>, x: &[f64]| -> Vec<f64> {
                let wide = matrix.dequantize();
                let rows = wide.chunks(matrix.k());
                rows.map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
            };
            let gate = product(mlp.up().gate(), x);
            let up = product(mlp.up().up().unwrap(), x);
            let h: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| weights.gate().apply(g, u)).collect();
            product(mlp.down().gate(), &h)
        };
        let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        let mut out = vec![0.0; x.len()];
        for (expert, weight) in routed.of(0) {
            for (out, y) in out.iter_mut().zip(one(&weights.experts()[expert], &x)) {
                *out += f64::from(weight) * y;
            }
        }
        if let Some(shared) = weights.shared() {
            out.iter_mut().zip(one(shared.mlp(), &x)).for_each(|(out, y)| *out += shared_factor * y);
        }
        out
    }

    #[test]
    fn a_layer_without_rounding_is_what_plain_loops_make_of_it() {
        let mut rng = Rng::with_seed(1);
        let experts = (0..3).map(|_| mlp(&mut rng, [32, 48])).collect();
        let v: Vec<f32> = (0..32).map(|_| rng.f32() - 0.5).collect();
        let shared = SharedWeights::new(mlp(&mut rng, [32, 16])).with_gate(v.clone()).unwrap();
        let weights = ExpertWeights::new(experts, Gate::Silu).unwrap().with_shared(shared).unwrap();
        let x: Vec<f32> = (0..32).map(|_| rng.f32() * 2.0 - 1.0).collect();
        let routed = Routed::given(Ids::I32(&[2, 7, 0]), &[0.75, 5.0, -0.5], 1, 3).unwrap();
        let tokens = Dense::new(1, 32, x.clone(), 1.0).unwrap();
        let reference = LayerReference {
            weights: &weights,
            intermediate: Intermediate::F32,
            precision: Precision::Exact,
            tokens: &tokens,
            routed: &routed,
        };
        let dot: f64 = x.iter().zip(&v).map(|(&x, &v)| f64::from(x) * f64::from(v)).sum();
        let expected = plainly(&weights, &x, &routed, 1.0 / (1.0 + (-dot).exp()));
        let found = reference.row(0, &|_| Arithmetic::Fused).unwrap();
        for (found, expected) in found.iter().zip(expected) {
            assert!((found.value - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{found:?} {expected}");
            assert!(found.error < 1e-3 * (1.0 + expected.abs()), "{found:?}");
            assert!(!found.accepts(expected + 2.0 * found.allowed(Output::F32), Output::F32));
        }
    }

    #[test]
    fn values_that_round_to_one_number_are_that_number() {
        let bounded = |value, error| Bounded { value, error };
        let row = Rounding::BF16.row(&[bounded(1.001, 1e-4), bounded(1.0 + 2f64.powi(-8), 1e-6), bounded(3.0, 0.0)]);
        assert_eq!((row[0], row[2]), (bounded(1.0, 0.0), bounded(3.0, 0.0)));
        assert_eq!(row[1].error, 2f64.powi(-7), "at the middle of two numbers either is right");
    }

    #[test]
    fn sixteen_values_are_quantised_as_the_format_does_it() {
        let mut rng = Rng::with_seed(2);
        for global in [1.0f32, 0.013, 40.0] {
            let values: Vec<f32> = (0..160).map(|_| (rng.f32() - 0.5) * 10f32.powi(rng.i32(-4..4))).collect();
            let matrix =
                format::quantize(&Dense::new(1, 160, values.clone(), 1.0).unwrap(), Some(global.into())).unwrap();
            let mut expected = vec![0.0; 160];
            matrix.unscaled_row(0, &mut expected);
            let row: Vec<Bounded> = values.iter().map(|&x| Bounded { value: x.into(), error: 0.0 }).collect();
            let found = Rounding::NvFp4(global.into()).row(&row);
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!((found.value, found.error), (f64::from(expected) * f64::from(global), 0.0));
            }
        }
    }

    #[test]
    fn a_scale_that_may_jump_makes_room_for_both_outcomes() {
        let mut block = vec![Bounded { value: 1.0, error: 0.0 }; 16];
        // 6·1.0625 lies between the scales 1 and 1.125.
        block[3] = Bounded { value: 6.0 * 1.0625, error: 1e-6 };
        let found = quantized(&block, 1.0);
        let [low, high] = [1.0, 1.125].map(|scale: f64| (1.0 / scale).round() * scale);
        assert!(found[0].error >= (high - low).abs() && found[0].error > 0.1, "{:?}", found[0]);
        block[3].error = 0.0;
        assert_eq!(quantized(&block, 1.0)[0].error, 0.0);
    }

    /// A product with both operands rounded to e4m3, by loops over plain numbers.
    fn rounded_product(matrix: &Matrix<'_>, x: &[f32]) -> Vec<f64> {
        let (x, exponent) = precision::round_row(x);
        let lift = precision::weight_lift(matrix);
        let alpha = matrix.global().value() * 2f64.powi(-exponent - lift.cast_signed() - precision::WEIGHT_EXPONENT);
        let row = |n: usize| {
            let mut weights = vec![0.0; matrix.k()];
            matrix.unscaled_row(n, &mut weights);
            let weights = precision::round_weights(&weights, lift);
            weights.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>() * alpha
        };
        (0..matrix.rows()).map(row).collect()
    }

    #[test]
    fn a_layer_in_fp8_rounds_tokens_and_intermediate_row_by_row_and_weighs_sums_on_the_input() {
        let mut rng = Rng::with_seed(5);
        let weights = ExpertWeights::new((0..3).map(|_| mlp(&mut rng, [32, 48])).collect(), Gate::Silu).unwrap();
        let x: Vec<bf16> = (0..32).map(|_| bf16::from_f32(rng.f32() * 2.0 - 1.0)).collect();
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let tokens = Dense::new(1, 32, x, 1.0).unwrap();
        for (on_input, between) in [(false, Intermediate::Tokens), (true, Intermediate::F32)] {
            let routed = Routed::given(Ids::I32(&[2, 0]), &[0.75, -0.5], 1, 3).unwrap();
            let routed = if on_input { routed.on_input() } else { routed };
            let mut expected = vec![0.0; 32];
            for (expert, weight) in routed.of(0) {
                let mlp = &weights.experts()[expert];
                let of_sums = if on_input { f64::from(weight) } else { 1.0 };
                let sums = |matrix| rounded_product(matrix, &wide).into_iter().map(move |sum| of_sums * sum);
                let h = sums(mlp.up().gate()).zip(sums(mlp.up().up().unwrap())).map(|(g, u)| Gate::Silu.apply(g, u));
                let h: Vec<f32> = match between {
                    Intermediate::F32 => h.map(|h| h as f32).collect(),
                    _ => h.map(|h| bf16::from_f64(h).to_f32()).collect(),
                };
                let of_result = if on_input { 1.0 } else { f64::from(weight) };
                let y = rounded_product(mlp.down().gate(), &h);
                expected.iter_mut().zip(y).for_each(|(out, y)| *out += of_result * bf16::from_f64(y).to_f64());
            }
            let (weights, tokens, routed) = (&weights, &tokens, &routed);
            let fp8 = LayerReference { weights, intermediate: between, precision: Precision::Fp8, tokens, routed };
            let found = fp8.row(0, &|_| Arithmetic::Simulated { parts: 1 }).unwrap();
            let exact = LayerReference { precision: Precision::Exact, ..fp8 }.row(0, &|_| Arithmetic::Fused).unwrap();
            let mut differ = 0;
            for ((found, expected), exact) in found.iter().zip(expected).zip(exact) {
                assert!((found.value - expected).abs() < 1e-9 * (1.0 + expected.abs()), "{found:?} {expected}");
                differ += usize::from(!found.accepts(exact.value, Output::F32));
            }
            assert!(differ > 16, "the exact layer is another: {differ} of 32 elements differ by more than the bound");
        }
    }

    #[test]
    fn a_row_whose_largest_is_at_448_has_room_for_both_factors_and_for_no_more() {
        let row = |error: f64| e4m3_row(&[Bounded { value: 448.0, error }, Bounded { value: 17.0 / 16.0, error: 0.0 }]);
        assert_eq!(row(0.0)[1], Bounded { value: 1.0, error: 0.0 }, "ties to even");
        // With half the factor the second rounds as before, and so does the first.
        assert_eq!(row(1e-3).iter().map(|x| x.error).collect::<Vec<_>>(), [0.0, 0.0]);
        let tiny = |error: f64| {
            let small = 2f64.powi(-9) * 3.0;
            e4m3_row(&[Bounded { value: 448.0, error }, Bounded { value: small, error: 0.0 }])[1]
        };
        assert_eq!(tiny(0.0), Bounded { value: 3.0 * 2f64.powi(-9), error: 0.0 });
        assert_eq!(tiny(1e-3).error, 2f64.powi(-9), "with half the factor it is a multiple of 2⁻⁸, and ties to even");
    }

    #[test]
    fn sums_of_what_may_have_moved_are_multiples_of_nothing() {
        // Sums of ones are whole numbers, of which thirteen bits lose nothing; a backend's need not be.
        let ones = |error: f64| e4m3_row(&vec![Bounded { value: 1.0, error }; 4096]);
        assert!(ones(1e-3).iter().all(|x| x.error == 0.0), "far from the middle of two numbers");
        let inputs = Dense::new(1, 4096, vec![1f32; 4096], 1.0).unwrap().into();
        let matrix = Matrix::new(1, 4096, vec![0x22; 2048], vec![0x38; 256], 1.0).unwrap();
        let weights = Weights::plain(matrix);
        let reference = Reference::in_precision(&inputs, &weights, Gate::None, Precision::Fp8);
        let coarse =
            |moved: Vec<f64>| reference.element(&reference.token(0).moved_by(moved), &reference.column(0)).gate.coarse;
        assert_eq!(coarse(Vec::new()), 0.0);
        let mut moved = vec![0.0; 4096];
        moved[5] = 0.125;
        let lost = coarse(moved);
        // 128 instructions lose at most the last place of a sum below 4096 or 8192 twice each.
        assert!(lost > 1.0 && lost < 128.0 * 3.0, "{lost}");
    }

    #[test]
    fn fp8_is_refused_for_what_has_fewer_bits_and_beside_adapters() {
        let fewer = Precision::Fp8.check_layer(Intermediate::NvFp4, false).unwrap_err().to_string();
        assert!(fewer.contains("nvfp4") && fewer.contains("exact"), "{fewer}");
        let adapted = Precision::Fp8.check_layer(Intermediate::Tokens, true).unwrap_err().to_string();
        assert!(adapted.contains("adapters"), "{adapted}");
        assert!(Precision::Exact.check_layer(Intermediate::NvFp4, true).is_ok());
    }
}
