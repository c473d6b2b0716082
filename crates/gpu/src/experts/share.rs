//! What an expert that computes every token is multiplied with, where it has a gate of its own: `weights[t] =
//! σ(x[t]·v)`.
//!
//! A warp per token: each lane adds up every thirty-second eight of the products in single precision, then the lanes'
//! sums are added in pairs, in the same order for every token.

use ptx::{Addr, Builder, Error, F32, Global, Kernel, LaunchBounds, Reg, SpecialRegister, Target, U32};

use super::{Portable, await_predecessor, launch_dependents};
use crate::expand::{self, Float};
use crate::phases::route::{sigmoid, warp_sum};

/// Warps of a block.
const WARPS: u32 = 4;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareSpec {
    /// The tokens' type.
    pub tokens: Float,
}

/// Blocks for so many tokens.
pub fn blocks(tokens: u32) -> u32 {
    tokens.div_ceil(WARPS)
}

impl Portable for ShareSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: tokens `[count, 8·units]`, the vector `[8·units]`, weights `[count]`,
/// the number of tokens, and units of a row.
pub fn kernel(spec: ShareSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: 32 * WARPS, cluster: None, min_blocks: None };
    let mut k = Builder::new("share", target, launch);
    let [tokens, vector, weights] = ["tokens", "vector", "weights"].map(|name| k.pointer(name));
    let [count, units]: [Reg<U32>; 2] = ["count", "units"].map(|name| k.param(name));
    launch_dependents(&mut k, target);
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31));
    let token = k.mul_add(block, WARPS, warp);
    await_predecessor(&mut k, target);
    let exists = k.lt(token, count);
    k.if_(exists, |k| {
        let row_bytes = k.mul(units, if spec.tokens == Float::F32 { 32 } else { 16 });
        let row = k.mul_wide_add(token, row_bytes, tokens);
        let (sum, unit): (Reg<F32>, Reg<U32>) = (k.variable(0.0), k.variable(lane));
        k.loop_while(
            |k| k.lt(unit, units),
            |k| {
                let (x, v) = k.phase("load", |k| {
                    (expand::load_floats(k, spec.tokens, row, unit), expand::load_floats(k, Float::F32, vector, unit))
                });
                for (x, v) in x.into_iter().zip(v) {
                    let more = k.fma(x, v, sum);
                    k.set(sum, more);
                }
                let next = k.add(unit, 32);
                k.set(unit, next);
            },
        );
        let total = k.phase("add", |k| warp_sum(k, sum));
        let weight = sigmoid(k, total);
        let first = k.eq(lane, 0);
        let at = k.mul_wide_add(token, 4, weights);
        k.phase("store", |k| k.when(first, |k| k.store(Addr::<Global>::of(at), weight)));
    });
    k.finish()
}
