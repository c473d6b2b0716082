//! Experts of many tokens, and their weights, left in memory: [`crate::phases::route`], a warp per token.

use ptx::{Addr, Builder, Error, Global, Kernel, LaunchBounds, Reg, SpecialRegister, Target, U32};

use super::{Portable, await_predecessor, launch_dependents};
pub use crate::phases::route::{Grouped, MOST_TOP, RouteSpec, Score};
use crate::phases::route::{Logits, Routed};

/// Tokens of a block: a warp each.
const WARPS: u32 = 4;

/// Blocks for so many tokens.
pub fn blocks(tokens: u32) -> u32 {
    tokens.div_ceil(WARPS)
}

impl Portable for RouteSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: logits `[tokens, experts]`, the correction `[experts]` if there is one,
/// what weights are multiplied with, ids and weights `[tokens, top]`, and the number of tokens.
pub fn kernel(spec: RouteSpec, target: Target) -> Result<Kernel, Error> {
    spec.check()?;
    let launch = LaunchBounds { threads: 32 * WARPS, cluster: None, min_blocks: None };
    let mut k = Builder::new("route", target, launch);
    let logits = Logits::declare(&mut k, spec);
    let (ids, weights) = (k.pointer("ids"), k.pointer("weights"));
    let tokens: Reg<U32> = k.param("tokens");
    launch_dependents(&mut k, target);
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31));
    let token = k.mul_add(block, WARPS, warp);
    await_predecessor(&mut k, target);
    let exists = k.lt(token, tokens);
    k.if_(exists, |k| {
        let Routed { expert, weight } = logits.route(k, token, lane);
        let chosen = k.lt(lane, spec.top);
        k.if_(chosen, |k| {
            k.phase("store", |k| {
                let entry = k.mul_add(token, spec.top, lane);
                let (id_at, weight_at) = (k.mul_wide_add(entry, 4, ids), k.mul_wide_add(entry, 4, weights));
                k.store(Addr::<Global>::of(id_at), expert);
                k.store(Addr::<Global>::of(weight_at), weight);
            });
        });
    });
    k.finish()
}
