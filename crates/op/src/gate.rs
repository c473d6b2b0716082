//! The gate: the function that joins the two sums, in two precisions.
//!
//! Every gate here is `x·sigmoid(y)` for some `y(x)`, times the up value, so one exponential serves them all. The f64
//! form is the definition, used by the reference. The f32 form is what backends run in their epilogues: plain
//! arithmetic without branches or library calls, so that a compiler turns a loop over it into vector code. Its error is
//! derived beside it and is part of the bound that every backend is held to.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// How gate and up become one value.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Gate {
    /// `g·sigmoid(g) · u`: SwiGLU, the common one.
    #[default]
    Silu,
    /// The tanh form of GELU, times `u`: GeGLU.
    GeluTanh,
    /// gpt-oss: `g' = min(g, clamp)`, `u' = clamp(u, ±clamp)`, `g'·sigmoid(1.702·g')·(u' + 1)`.
    GptOss {
        /// The limit, 7 in the published models.
        clamp: f32,
    },
    /// No gate and no second matrix: a plain GEMM, `α₁·A·B1ᵀ`.
    None,
}

/// 2·sqrt(2/π): GELU's tanh form is `x·sigmoid(GELU_SCALE·(x + 0.044715·x³))`.
pub const GELU_SCALE: f64 = 1.595_769_121_605_730_7;
/// The factor of `x³` there.
pub const GELU_CUBIC: f64 = 0.044715;
/// The factor of the gate inside gpt-oss's sigmoid.
pub const GPT_OSS_SCALE: f64 = 1.702;

impl Gate {
    /// The gate of gpt-oss with its published limit.
    pub const GPT_OSS: Gate = Gate::GptOss { clamp: 7.0 };

    /// Every gate, with gpt-oss's published limit.
    pub const ALL: [Gate; 4] = [Gate::Silu, Gate::GeluTanh, Gate::GPT_OSS, Gate::None];

    /// Refuses a limit that makes no sense.
    pub fn check(self) -> Result<()> {
        match self {
            Gate::GptOss { clamp } if !(clamp.is_finite() && clamp > 0.0) => Err(Error::Clamp { clamp }),
            _ => Ok(()),
        }
    }

    /// The definition, in double precision. `up` is ignored by [`Gate::None`].
    pub fn apply(self, gate: f64, up: f64) -> f64 {
        let activation = self.activation(gate);
        match self {
            Gate::Silu | Gate::GeluTanh => activation * up,
            Gate::GptOss { clamp } => activation * (up.clamp(-f64::from(clamp), clamp.into()) + 1.0),
            Gate::None => activation,
        }
    }

    /// What the gate value becomes before it meets the up value.
    pub(crate) fn activation(self, gate: f64) -> f64 {
        let sigmoid = |y: f64| 1.0 / (1.0 + (-y).exp());
        match self {
            Gate::Silu => gate * sigmoid(gate),
            Gate::GeluTanh => gate * sigmoid(GELU_SCALE * (gate + GELU_CUBIC * gate * gate * gate)),
            Gate::GptOss { clamp } => {
                let gate = if gate > clamp.into() { clamp.into() } else { gate };
                gate * sigmoid(GPT_OSS_SCALE * gate)
            }
            Gate::None => gate,
        }
    }

    /// What [`Self::apply_rows`] may be off by on the activation alone: relative, in units of 2⁻²⁴.
    ///
    /// Sigmoid and product take 8 roundings. A rounding of the sigmoid's argument y moves the result by |y| of them;
    /// SiLU's argument is not rounded, gpt-oss's takes two roundings, GELU's six. Arguments are clipped at 87.
    pub(crate) fn evaluation_error(self, gate: f64) -> f64 {
        let argument = match self {
            Gate::Silu | Gate::None => 0.0,
            Gate::GeluTanh => 6.0 * (GELU_SCALE * (gate + GELU_CUBIC * gate * gate * gate)).abs().min(87.0),
            Gate::GptOss { .. } => 2.0 * (GPT_OSS_SCALE * gate).abs().min(87.0),
        };
        8.0 + argument
    }

    /// What may vanish of the activation, as an absolute number: the sigmoid ends where its argument falls below −87, and what
    /// it is multiplied with is no larger there than that argument.
    pub(crate) fn flushed(self, gate: f64) -> f64 {
        2.0 * f64::from(f32::MIN_POSITIVE) * (1.0 + gate.abs().min(88.0))
    }

    /// Applies the gate to whole rows in single precision: `gate[i]` becomes the result.
    #[inline(always)]
    pub fn apply_rows(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Gate::Silu => join(gate, up, |g, u| g * sigmoid(g) * u),
            Gate::GeluTanh => {
                join(gate, up, |g, u| g * sigmoid(GELU_SCALE as f32 * (g + GELU_CUBIC as f32 * g * g * g)) * u)
            }
            Gate::GptOss { clamp } => join(gate, up, |g, u| {
                // Not `min`, which takes the limit for NaN.
                let (g, u) = (if g > clamp { clamp } else { g }, u.clamp(-clamp, clamp));
                g * sigmoid(GPT_OSS_SCALE as f32 * g) * (u + 1.0)
            }),
            Gate::None => {}
        }
    }
}

#[inline(always)]
fn join(gate: &mut [f32], up: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (g, &u) in gate.iter_mut().zip(up) {
        *g = f(*g, u);
    }
}

/// `1/(1 + e⁻ʸ)`, and zero where that is about to leave f32's normal range: what is multiplied with it may be very large.
#[inline(always)]
fn sigmoid(y: f32) -> f32 {
    let sigmoid = 1.0 / (1.0 + exp(-y));
    if y < -87.0 { 0.0 } else { sigmoid }
}

/// `eˣ` for x clipped to [−87, 87], within 4·2⁻²⁴ relative.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2. Adding 1.5·2²³ rounds x/ln 2 to the integer n and leaves n in the low bits of the
/// sum. ln 2 is subtracted in two parts, the first of few enough bits that n times it is exact. The Taylor polynomial
/// of degree 7 leaves r⁸/8! < 2⁻²⁷; 2ⁿ is put together as bits.
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
        f.pad(match self {
            Gate::Silu => "silu",
            Gate::GeluTanh => "gelu-tanh",
            Gate::GptOss { .. } => "gpt-oss",
            Gate::None => "none",
        })
    }
}

impl FromStr for Gate {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Gate::ALL.into_iter().find(|g| g.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "gate",
            name: name.to_owned(),
            known: "silu, gelu-tanh, gpt-oss, none".to_owned(),
        })
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
        for gate in Gate::ALL {
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
        for (gate, g, u) in [Gate::Silu, Gate::GeluTanh, Gate::GPT_OSS]
            .into_iter()
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
    fn a_clamp_that_is_not_a_positive_number_is_refused() {
        for clamp in [0.0, -7.0, f32::NAN, f32::INFINITY] {
            assert!(matches!(Gate::GptOss { clamp }.check(), Err(Error::Clamp { .. })));
        }
    }

    #[test]
    fn names_read_back_as_themselves() {
        for gate in Gate::ALL {
            assert_eq!(gate.to_string().parse::<Gate>().unwrap(), gate);
        }
        assert!("swish".parse::<Gate>().is_err());
    }
}
