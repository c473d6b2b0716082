//! The gate: the function that joins the two sums, or that is applied to the only one, in two precisions.
//!
//! The gates that join two sums are all `x·sigmoid(y)` for some `y(x)`, times the up value, so one exponential serves
//! them; some limit both values first. The f64 form is the definition, used by the reference. The f32 form is what
//! backends run in their epilogues: plain arithmetic without branches or library calls, so that a compiler turns a loop
//! over it into vector code. Its error is derived beside it and is part of the bound that every backend is held to.
//!
//! As text a gate is its name, and its parameters where they are not the published ones: `silu`, `silu:limit=10`,
//! `gelu-tanh`, `gpt-oss`, `gpt-oss:alpha=1.702,beta=1,limit=7`, `relu2`, `none`. Parameters that are left out are the
//! published ones.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// How gate and up become one value, or what becomes of the only one.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Gate {
    /// `g·sigmoid(g) · u`: SwiGLU, the common one.
    #[default]
    Silu,
    /// DeepSeek-V4: `g' = min(g, limit)`, `u' = clamp(u, ±limit)`, `g'·sigmoid(g') · u'`.
    SiluLimited {
        /// The limit, 10 in the published models.
        limit: f32,
    },
    /// The tanh form of GELU, times `u`: GeGLU.
    GeluTanh,
    /// gpt-oss: `g' = min(g, limit)`, `u' = clamp(u, ±limit)`, `g'·sigmoid(alpha·g')·(u' + beta)`.
    GptOss {
        /// The factor inside the sigmoid, 1.702 in the published models: the decimal number, which backends round to
        /// f32.
        alpha: f64,
        /// What is added to the up value, 1 in the published models.
        beta: f32,
        /// The limit, 7 in the published models.
        limit: f32,
    },
    /// No second matrix: the square of what is positive of the only sum, `max(g, 0)²` (Nemotron-3).
    Relu2,
    /// No gate and no second matrix: a plain GEMM, `α₁·A·B1ᵀ`.
    None,
}

/// 2·sqrt(2/π): GELU's tanh form is `x·sigmoid(GELU_SCALE·(x + 0.044715·x³))`.
pub const GELU_SCALE: f64 = 1.595_769_121_605_730_7;
/// The factor of `x³` there.
pub const GELU_CUBIC: f64 = 0.044715;

impl Gate {
    /// The gate of gpt-oss with its published parameters.
    pub const GPT_OSS: Gate = Gate::GptOss { alpha: 1.702, beta: 1.0, limit: 7.0 };

    /// Every gate, with published parameters.
    pub const ALL: [Gate; 6] =
        [Gate::Silu, Gate::SiluLimited { limit: 10.0 }, Gate::GeluTanh, Gate::GPT_OSS, Gate::Relu2, Gate::None];

    /// Those that join two sums.
    pub const JOINING: [Gate; 4] = [Gate::Silu, Gate::SiluLimited { limit: 10.0 }, Gate::GeluTanh, Gate::GPT_OSS];

    /// gpt-oss's gate with another limit.
    pub const fn gpt_oss(limit: f32) -> Gate {
        Gate::GptOss { alpha: 1.702, beta: 1.0, limit }
    }

    /// Weight matrices that it takes: two, or one.
    pub const fn matrices(self) -> usize {
        match self {
            Gate::Silu | Gate::SiluLimited { .. } | Gate::GeluTanh | Gate::GptOss { .. } => 2,
            Gate::Relu2 | Gate::None => 1,
        }
    }

    /// What both values are limited at, if they are.
    pub const fn limit(self) -> Option<f32> {
        match self {
            Gate::SiluLimited { limit } | Gate::GptOss { limit, .. } => Some(limit),
            Gate::Silu | Gate::GeluTanh | Gate::Relu2 | Gate::None => None,
        }
    }

    /// Refuses parameters that make no sense.
    pub fn check(self) -> Result<()> {
        let refuse = |name, value: f64, rule| Err(Error::GateParameter { gate: self.name(), name, value, rule });
        let positive = |value: f32| value.is_normal() && value > 0.0;
        if let Some(limit) = self.limit()
            && !positive(limit)
        {
            return refuse("limit", limit.into(), "a positive, finite number");
        }
        match self {
            Gate::GptOss { alpha, .. } if !positive(alpha as f32) => {
                refuse("alpha", alpha, "a positive, finite number")
            }
            Gate::GptOss { beta, .. } if !beta.is_finite() => refuse("beta", beta.into(), "a finite number"),
            _ => Ok(()),
        }
    }

    /// The definition, in double precision. `up` is ignored where there is one matrix.
    pub fn apply(self, gate: f64, up: f64) -> f64 {
        let activation = self.activation(gate);
        if self.matrices() == 1 { activation } else { activation * self.up_factor(up) }
    }

    /// What the gate value becomes before it meets the up value.
    pub(crate) fn activation(self, gate: f64) -> f64 {
        let sigmoid = |y: f64| 1.0 / (1.0 + (-y).exp());
        let gate = match self.limit() {
            Some(limit) if gate > limit.into() => limit.into(),
            _ => gate,
        };
        match self {
            Gate::Silu | Gate::SiluLimited { .. } => gate * sigmoid(gate),
            Gate::GeluTanh => gate * sigmoid(GELU_SCALE * (gate + GELU_CUBIC * gate * gate * gate)),
            Gate::GptOss { alpha, .. } => gate * sigmoid(alpha * gate),
            // Not `max`, which takes zero for NaN.
            Gate::Relu2 => {
                if gate < 0.0 {
                    0.0
                } else {
                    gate * gate
                }
            }
            Gate::None => gate,
        }
    }

    /// What the activation is multiplied with.
    pub(crate) fn up_factor(self, up: f64) -> f64 {
        let up = self.limit().map_or(up, |limit| up.clamp(-f64::from(limit), limit.into()));
        if let Gate::GptOss { beta, .. } = self { up + f64::from(beta) } else { up }
    }

    /// The sigmoid's argument per unit of the gate value, where that is what it is; one for the others.
    fn alpha(self) -> f64 {
        if let Gate::GptOss { alpha, .. } = self { alpha } else { 1.0 }
    }

    /// What [`Self::apply_rows`] may be off by on the activation alone: relative, in units of 2⁻²⁴.
    ///
    /// Sigmoid and product take 8 roundings. A rounding of the sigmoid's argument y moves the result by |y| of them;
    /// SiLU's argument is not rounded, gpt-oss's takes two roundings, that of alpha included, GELU's six. Arguments are
    /// clipped at 87. A square is one product.
    pub(crate) fn evaluation_error(self, gate: f64) -> f64 {
        let argument = match self {
            Gate::Silu | Gate::SiluLimited { .. } => 0.0,
            Gate::GeluTanh => 6.0 * (GELU_SCALE * (gate + GELU_CUBIC * gate * gate * gate)).abs().min(87.0),
            Gate::GptOss { alpha, .. } => 2.0 * (alpha * gate).abs().min(87.0),
            Gate::Relu2 => return 1.0,
            Gate::None => return 0.0,
        };
        8.0 + argument
    }

    /// What may vanish of the activation, as an absolute number: the sigmoid ends where its argument falls below −87,
    /// and what it is multiplied with is no larger there than that argument by alpha.
    pub(crate) fn flushed(self, gate: f64) -> f64 {
        if self.matrices() == 1 {
            return 0.0;
        }
        2.0 * f64::from(f32::MIN_POSITIVE) * (1.0 + gate.abs().min(88.0 / self.alpha().min(1.0)))
    }

    /// How far the activation moves at most where the gate value moves by an error.
    ///
    /// `x·sigmoid(αx)` has a slope of at most 1.0998, whatever α is, and GELU of 1.1290. Far below zero they only fade,
    /// so that there the larger end is all that can be lost: below −1.28/α and −0.76. A square moves by 2xe + e².
    pub(crate) fn change(self, gate: f64, error: f64) -> f64 {
        match self {
            Gate::None => error,
            Gate::Relu2 => {
                if gate + error <= 0.0 {
                    0.0
                } else {
                    error * (2.0 * gate.max(0.0) + error)
                }
            }
            _ => {
                let (steepest, fading) = (LIPSCHITZ * error, -2.0 / self.alpha());
                if gate + error < fading { steepest.min(self.activation(gate + error).abs()) } else { steepest }
            }
        }
    }

    /// Applies the gate to whole rows in single precision: `gate[i]` becomes the result. `up` is not looked at where
    /// there is one matrix.
    #[inline(always)]
    pub fn apply_rows(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Gate::Silu => join(gate, up, |g, u| g * sigmoid(g) * u),
            Gate::SiluLimited { limit } => join(gate, up, |g, u| {
                let (g, u) = limited(g, u, limit);
                g * sigmoid(g) * u
            }),
            Gate::GeluTanh => {
                join(gate, up, |g, u| g * sigmoid(GELU_SCALE as f32 * (g + GELU_CUBIC as f32 * g * g * g)) * u)
            }
            Gate::GptOss { alpha, beta, limit } => join(gate, up, |g, u| {
                let (g, u) = limited(g, u, limit);
                g * sigmoid(alpha as f32 * g) * (u + beta)
            }),
            Gate::Relu2 => gate.iter_mut().for_each(|g| {
                let positive = if *g < 0.0 { 0.0 } else { *g };
                *g = positive * positive;
            }),
            Gate::None => {}
        }
    }

    fn name(self) -> &'static str {
        match self {
            Gate::Silu | Gate::SiluLimited { .. } => "silu",
            Gate::GeluTanh => "gelu-tanh",
            Gate::GptOss { .. } => "gpt-oss",
            Gate::Relu2 => "relu2",
            Gate::None => "none",
        }
    }
}

/// The steepest slope of any `x·sigmoid(y)` here.
const LIPSCHITZ: f64 = 1.13;

/// Gate and up within their limits. Not `min`, which takes the limit for NaN.
#[inline(always)]
fn limited(gate: f32, up: f32, limit: f32) -> (f32, f32) {
    (if gate > limit { limit } else { gate }, up.clamp(-limit, limit))
}

#[inline(always)]
fn join(gate: &mut [f32], up: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = f(*g, u);
    }
}

/// `1/(1 + e⁻ʸ)`, and zero where that is about to leave f32's normal range: what is multiplied with it may be very
/// large.
#[inline(always)]
fn sigmoid(y: f32) -> f32 {
    let sigmoid = 1.0 / (1.0 + exp(-y));
    if y < -87.0 { 0.0 } else { sigmoid }
}

/// `eˣ` for x clipped to [−87, 87], within 4·2⁻²⁴ relative.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2. Adding 1.5·2²³ rounds x/ln 2 to the integer n and leaves n in the low bits of
/// the sum. ln 2 is subtracted in two parts, the first of few enough bits that n times it is exact. The Taylor
/// polynomial of degree 7 leaves r⁸/8! < 2⁻²⁷; 2ⁿ is put together as bits.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5·2²³
    const LN2_HIGH: f32 = 0.693_359_4; // 355/512, exactly
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut power = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    power * f32::from_bits(exponent << 23)
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Gate::SiluLimited { limit } => f.pad(&format!("silu:limit={limit}")),
            Gate::GptOss { alpha, beta, limit } if *self != Gate::GPT_OSS => {
                f.pad(&format!("gpt-oss:alpha={alpha},beta={beta},limit={limit}"))
            }
            _ => f.pad(self.name()),
        }
    }
}

impl FromStr for Gate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        const KNOWN: &str = "silu, silu:limit=10, gelu-tanh, gpt-oss, gpt-oss:alpha=1.702,beta=1,limit=7, relu2, none";
        let unknown = |what: &'static str| Error::UnknownName { what, name: text.to_owned(), known: KNOWN.to_owned() };
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let mut gate = Gate::ALL.into_iter().find(|gate| gate.name() == name).ok_or_else(|| unknown("gate"))?;
        if parameters.is_empty() {
            return if text.ends_with(':') { Err(unknown("gate")) } else { Ok(gate) };
        }
        if gate == Gate::Silu {
            gate = Gate::SiluLimited { limit: 10.0 };
        }
        for entry in parameters.split(',') {
            let (key, value) = entry.split_once('=').ok_or_else(|| unknown("parameter of the gate"))?;
            let value: f64 = value.parse().map_err(|_| unknown("value of the gate's parameter"))?;
            match (&mut gate, key) {
                (Gate::SiluLimited { limit } | Gate::GptOss { limit, .. }, "limit") => *limit = value as f32,
                (Gate::GptOss { alpha, .. }, "alpha") => *alpha = value,
                (Gate::GptOss { beta, .. }, "beta") => *beta = value as f32,
                _ => return Err(unknown("parameter of the gate")),
            }
        }
        gate.check()?;
        Ok(gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPSILON: f64 = 1.0 / (1 << 24) as f64;

    #[test]
    fn the_single_precision_exponential_is_within_four_half_ulps() {
        for i in -870_000..=870_000 {
            let x = i as f32 / 10_000.0;
            let exact = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(relative <= 4.0 * EPSILON, "e^{x}: off by {:.2}·2⁻²⁴", relative / EPSILON);
        }
    }

    #[test]
    fn every_gate_in_single_precision_stays_within_its_stated_error() {
        for gate in Gate::ALL.into_iter().chain([Gate::GptOss { alpha: 0.25, beta: -0.5, limit: 100.0 }]) {
            for i in -40_000..=40_000 {
                let (g, u) = (i as f32 / 500.0, 1.25);
                let mut row = [g];
                gate.apply_rows(&mut row, &[u]);
                let exact = gate.apply(g.into(), u.into());
                let flushed = gate.flushed(g.into()) * (f64::from(u) + 1.0);
                let allowed = gate.evaluation_error(g.into()) * EPSILON * exact.abs() + flushed;
                assert!((f64::from(row[0]) - exact).abs() <= allowed, "{gate}({g}) = {} not {exact}", row[0]);
            }
        }
    }

    #[test]
    fn gates_are_right_at_the_ends_of_the_range_and_pass_nan_on() {
        let magnitudes = [0.0, 1e-41, 1e-30, 0.7, 7.5, 90.0, 1.6e13, 3e30, 2.5e38, f32::INFINITY, f32::NAN];
        let values = magnitudes.iter().flat_map(|&x| [x, -x]);
        for (gate, g, u) in Gate::ALL
            .into_iter()
            .chain([Gate::GptOss { alpha: 0.25, beta: -0.5, limit: 100.0 }])
            .flat_map(|gate| values.clone().flat_map(move |g| magnitudes.map(|u| (gate, g, u))))
        {
            let mut row = [g];
            gate.apply_rows(&mut row, &[u]);
            let (found, exact) = (f64::from(row[0]), gate.apply(g.into(), u.into()));
            let allowed = gate.evaluation_error(g.into()) * EPSILON * exact.abs()
                + gate.flushed(g.into()) * (f64::from(u).abs() + 1.0).min(1e300)
                + 2f64.powi(-149);
            let whole = g.is_finite() && u.is_finite();
            let spoilt = !whole && !exact.is_finite() && !found.is_finite();
            let infinite = exact.abs() > f32::MAX.into() && found == f64::INFINITY.copysign(exact);
            assert!(
                spoilt || infinite || (found - exact).abs() <= allowed,
                "{gate} of {g} and {u}: {found} not {exact}"
            );
        }
    }

    #[test]
    fn gpt_oss_clamps_the_gate_above_only_and_the_up_value_on_both_sides() {
        let at = |g, u| Gate::GPT_OSS.apply(g, u);
        assert_eq!(at(100.0, 0.5), at(7.0, 0.5));
        assert_ne!(at(-100.0, 0.5), at(-7.0, 0.5));
        assert_eq!((at(1.0, 100.0), at(1.0, -100.0)), (at(1.0, 7.0), at(1.0, -7.0)));
    }

    #[test]
    fn gelu_agrees_with_its_tanh_form() {
        for x in [-3.0f64, -0.5, 0.0, 0.7, 4.0] {
            let tanh = 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
            assert!((Gate::GeluTanh.apply(x, 1.0) - tanh).abs() < 1e-14);
        }
    }

    #[test]
    fn a_limited_silu_clamps_the_gate_above_only_and_the_up_value_on_both_sides() {
        let at = |g, u| Gate::SiluLimited { limit: 10.0 }.apply(g, u);
        assert_eq!(at(100.0, 0.5), Gate::Silu.apply(10.0, 0.5));
        assert_eq!(at(-20.0, 0.5), Gate::Silu.apply(-20.0, 0.5));
        assert_eq!((at(1.0, 100.0), at(1.0, -100.0)), (Gate::Silu.apply(1.0, 10.0), Gate::Silu.apply(1.0, -10.0)));
    }

    #[test]
    fn gpt_oss_takes_its_parameters_in_their_places() {
        let gate = Gate::GptOss { alpha: 0.5, beta: 3.0, limit: 2.0 };
        let sigmoid = |y: f64| 1.0 / (1.0 + (-y).exp());
        assert_eq!(gate.apply(1.5, 0.25), 1.5 * sigmoid(0.75) * 3.25);
        assert_eq!(gate.apply(9.0, -9.0), 2.0 * sigmoid(1.0));
    }

    #[test]
    fn relu2_squares_what_is_positive_and_does_not_look_at_a_second_value() {
        assert_eq!([3.0, -3.0, 0.0].map(|x| Gate::Relu2.apply(x, f64::NAN)), [9.0, 0.0, 0.0]);
        let mut row = [3.0, -3.0, f32::NAN];
        Gate::Relu2.apply_rows(&mut row, &[]);
        assert!(row[0] == 9.0 && row[1] == 0.0 && row[2].is_nan(), "{row:?}");
        assert_eq!(Gate::ALL.map(Gate::matrices), [2, 2, 2, 2, 1, 1]);
    }

    #[test]
    fn parameters_that_make_no_sense_are_refused() {
        for bad in [0.0, -7.0, f32::NAN, f32::INFINITY] {
            for gate in [Gate::gpt_oss(bad), Gate::SiluLimited { limit: bad }] {
                assert!(matches!(gate.check(), Err(Error::GateParameter { name: "limit", .. })), "{gate}");
            }
            let gate = Gate::GptOss { alpha: bad.into(), beta: 1.0, limit: 7.0 };
            assert!(matches!(gate.check(), Err(Error::GateParameter { name: "alpha", .. })), "{gate}");
        }
        let gate = Gate::GptOss { alpha: 1.0, beta: f32::NAN, limit: 7.0 };
        assert!(matches!(gate.check(), Err(Error::GateParameter { name: "beta", .. })));
    }

    #[test]
    fn names_read_back_as_themselves() {
        let others = [Gate::SiluLimited { limit: 0.1 }, Gate::GptOss { alpha: 1.5, beta: 0.0, limit: 3.3 }];
        for gate in Gate::ALL.into_iter().chain(others) {
            assert_eq!(gate.to_string().parse::<Gate>().unwrap(), gate);
        }
        let read = |text: &str| text.parse::<Gate>().unwrap();
        assert_eq!(read("gpt-oss:limit=5"), Gate::gpt_oss(5.0));
        assert_eq!(read("gpt-oss:alpha=1.702,beta=1,limit=7"), Gate::GPT_OSS);
        assert_eq!(Gate::GPT_OSS.to_string(), "gpt-oss");
        for text in
            ["swish", "silu:", "silu:beta=1", "relu2:limit=1", "gpt-oss:limit", "gpt-oss:limit=x", "silu:limit=-1"]
        {
            assert!(text.parse::<Gate>().is_err(), "{text}");
        }
    }

    #[test]
    fn no_gate_moves_further_than_the_bound_assumes() {
        for gate in Gate::ALL.into_iter().chain([Gate::GptOss { alpha: 0.25, beta: 0.0, limit: 100.0 }]) {
            for i in -10_000..10_000 {
                let x = f64::from(i) / 500.0;
                for error in [1e-6, 0.01, 3.0] {
                    let granted = gate.change(x, error) * (1.0 + 1e-9) + 1e-12;
                    for end in [x - error, x + error] {
                        let moved = (gate.activation(end) - gate.activation(x)).abs();
                        assert!(moved <= granted, "{gate} from {x} to {end}: {moved} of {granted}");
                    }
                }
            }
        }
    }
}
