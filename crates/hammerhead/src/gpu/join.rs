//! What becomes of the sums: C = gate(α₁·S1) ∘ (α₂·S2), element by element, one thread each.
//!
//! S1 and S2 come from the GEMM as f32 planes. Where tokens were split into several parts (see `tokens`) a plane
//! has a slab for each, the leading part first; part j counts 2⁻¹¹ʲ. They are joined from the smallest part up, with one
//! rounding each.
//!
//! α is applied as two factors, a power of two and the rest, so that no intermediate result leaves f32's range unless the
//! result does. The gate is the arithmetic of the CPU's gate, step by step: an exponential by Cody and Waite's reduction
//! and a polynomial of degree 7 (the hardware's `ex2.approx` would cost |x| roundings of its argument), good to 4·2⁻²⁴,
//! the sum with one (1), `rcp.approx` (2), the product (1): within the 8 that [`crate::bound`] grants.

use std::f32::consts::LOG2_E;

use ptx::{Addr, Bf16, Builder, Error, F16, F32, Global, Kernel, Launch, Reg, SpecialRegister, Target, U32, U64};

use super::tokens::PART_BITS;
use crate::gate::{GELU_CUBIC, GELU_SCALE, GPT_OSS_SCALE};
use crate::{Gate, Output};

/// Threads of a block, and so elements.
pub const THREADS: u32 = 256;

/// The function of the gate, apart from its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// [`Gate::Silu`].
    Silu,
    /// [`Gate::GeluTanh`].
    GeluTanh,
    /// [`Gate::GptOss`]; the limit is an argument.
    GptOss,
    /// [`Gate::None`]: S2 is not looked at.
    None,
}

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The gate's function.
    pub function: Function,
    /// The type of C.
    pub output: Output,
}

impl Config {
    /// The kernel for a gate and an output type.
    pub fn new(gate: Gate, output: Output) -> Self {
        let function = match gate {
            Gate::Silu => Function::Silu,
            Gate::GeluTanh => Function::GeluTanh,
            Gate::GptOss { .. } => Function::GptOss,
            Gate::None => Function::None,
        };
        Config { function, output }
    }

    /// Blocks for so many elements.
    pub fn grid(&self, elements: u64) -> u64 {
        elements.div_ceil(THREADS.into())
    }
}

/// α as a power of two and the rest, each within f32: the two are multiplied onto a sum in this order.
///
/// Sums lie between 2⁻⁴¹ and 2⁶⁰ in magnitude, so beyond ±240 an exponent means zero or infinity anyway.
pub fn factors(alpha: f64) -> [f32; 2] {
    let exponent = if alpha == 0.0 { 0 } else { (alpha.abs().to_bits() >> 52) as i32 - 1023 };
    let mantissa = alpha * 2f64.powi(-exponent);
    let exponent = exponent.clamp(-240, 240);
    [2f32.powi(exponent / 2), (mantissa * 2f64.powi(exponent - exponent / 2)) as f32]
}

/// What the kernel is given besides the config.
struct Arguments {
    gate: Reg<U64>,
    up: Reg<U64>,
    out: Reg<U64>,
    elements: Reg<U64>,
    parts: Reg<U32>,
    gate_factors: [Reg<F32>; 2],
    up_factors: [Reg<F32>; 2],
    clamp: Reg<F32>,
}

/// Builds the kernel. Its arguments, in order: S1, S2, C, elements of C, parts, the two factors of α₁, those of α₂, clamp.
pub fn kernel(config: Config) -> Result<Kernel, Error> {
    let launch = Launch { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("join", Target::Sm90a, launch);
    let given = Arguments {
        gate: k.pointer("gate"),
        up: k.pointer("up"),
        out: k.pointer("out"),
        elements: k.param("elements"),
        parts: k.param("parts"),
        gate_factors: [k.param("gate_power"), k.param("gate_factor")],
        up_factors: [k.param("up_power"), k.param("up_factor")],
        clamp: k.param("clamp"),
    };
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let thread: Reg<U64> = k.convert(thread);
    let element = k.mul_wide_add(block, THREADS, thread);
    let inside = k.lt(element, given.elements);
    k.if_(inside, |k| {
        let gate = k.phase("gather", |k| gather(k, given.gate, element, &given, given.gate_factors));
        let value = match config.function {
            Function::None => gate,
            function => {
                let up = k.phase("gather", |k| gather(k, given.up, element, &given, given.up_factors));
                k.phase("gate", |k| apply(k, function, gate, up, given.clamp))
            }
        };
        k.phase("store", |k| store(k, config.output, given.out, element, value));
    });
    k.finish()
}

/// An element of α·S: its parts joined, the last one first, and scaled.
fn gather(k: &mut Builder, plane: Reg<U64>, element: Reg<U64>, given: &Arguments, factors: [Reg<F32>; 2]) -> Reg<F32> {
    let slab = k.shl(given.elements, 2);
    let offset = k.shl(element, 2);
    let first = k.add(plane, offset);
    let before_last = k.sub(given.parts, 1);
    let wide: Reg<U64> = k.convert(before_last);
    let skipped = k.mul(slab, wide);
    let start = k.add(first, skipped);
    let at = k.variable(start);
    let last = k.load::<F32, Global>(Addr::of(at));
    let sum = k.variable(last);
    k.repeat(before_last, |k, _| {
        let previous = k.sub(at, slab);
        k.set(at, previous);
        let part = k.load::<F32, Global>(Addr::of(at));
        let joined = k.fma(sum, 1.0 / (1u32 << PART_BITS) as f32, part);
        k.set(sum, joined);
    });
    let scaled = k.mul(sum, factors[0]);
    k.mul(scaled, factors[1])
}

/// The gate, as the CPU's epilogues have it.
fn apply(k: &mut Builder, function: Function, gate: Reg<F32>, up: Reg<F32>, clamp: Reg<F32>) -> Reg<F32> {
    let (gate, argument, up) = match function {
        Function::Silu | Function::None => (gate, gate, up),
        Function::GeluTanh => {
            let cubic = k.mul(gate, GELU_CUBIC as f32);
            let cubic = k.mul(cubic, gate);
            let bent = k.fma(cubic, gate, gate);
            (gate, k.mul(bent, GELU_SCALE as f32), up)
        }
        Function::GptOss => {
            let gate = k.min(gate, clamp);
            let lowest = k.neg(clamp);
            let up = k.max(up, lowest);
            let up = k.min(up, clamp);
            (gate, k.mul(gate, GPT_OSS_SCALE as f32), k.add(up, 1.0))
        }
    };
    let sigmoid = sigmoid(k, argument);
    let activation = k.mul(gate, sigmoid);
    k.mul(activation, up)
}

/// 1/(1 + e⁻ʸ).
fn sigmoid(k: &mut Builder, y: Reg<F32>) -> Reg<F32> {
    let opposite = k.neg(y);
    let power = exponential(k, opposite);
    let below = k.add(power, 1.0);
    k.rcp(below)
}

/// eˣ for x clipped to [−87, 87]: x = n·ln 2 + r, where adding 1.5·2²³ rounds x/ln 2 to n and leaves n in the low bits.
fn exponential(k: &mut Builder, x: Reg<F32>) -> Reg<F32> {
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = k.max(x, -87.0);
    let x = k.min(x, 87.0);
    let shifted = k.fma(x, LOG2_E, ROUND);
    let n = k.sub(shifted, ROUND);
    let r = k.fma(n, -LN2_HIGH, x);
    let r = k.fma(n, -LN2_LOW, r);
    let mut power = k.variable(1.0f32 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = k.fma(power, r, coefficient);
    }
    let exponent = k.sub(shifted.cast::<U32>(), ROUND.to_bits());
    let exponent = k.add(exponent, 127);
    let two_to_n = k.shl(exponent, 23);
    k.mul(power, two_to_n.cast::<F32>())
}

fn store(k: &mut Builder, output: Output, out: Reg<U64>, element: Reg<U64>, value: Reg<F32>) {
    let offset = k.shl(element, output.bytes().trailing_zeros());
    let at = Addr::<Global>::of(k.add(out, offset));
    match output {
        Output::F16 => {
            let value: Reg<F16> = k.convert(value);
            k.store(at, value);
        }
        Output::BF16 => {
            let value: Reg<Bf16> = k.convert(value);
            k.store(at, value);
        }
        Output::F32 => k.store(at, value),
    }
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
