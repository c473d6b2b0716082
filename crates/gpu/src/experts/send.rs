//! Tokens that the host needs, copied to memory that it reaches: those of which it computes an expert, and their
//! weights where these multiply what experts are given. Others' places are left as they are.
//!
//! A block per token. A copy by the driver would bring all of them, and in a graph it would insist on the allocation
//! that it was made for; a kernel takes whatever lies at an address.

use ptx::{Addr, Builder, Error, F32, Global, Kernel, LaunchBounds, Pred, Reg, SpecialRegister, Target, U32};

use super::place::AWAY;
use super::{Portable, await_predecessor, launch_dependents};

/// Threads of a block.
const THREADS: u32 = 256;
/// Bytes that a thread copies at a time.
pub const UNIT: u32 = 16;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendSpec {
    /// Experts of a token.
    pub top: u32,
    /// Whether weights go with the tokens.
    pub weights: bool,
}

impl Portable for SendSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: the entries' slots `[tokens, top]`, tokens `[tokens, 16·units]` in
/// bytes, where they go, the entries' weights and where those go if they do, and units of a token. A block for each
/// token.
pub fn kernel(spec: SendSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("send", target, launch);
    let [placed, tokens, sent] = ["placed", "tokens", "sent"].map(|name| k.pointer(name));
    let weights = spec.weights.then(|| ["weights", "sent_weights"].map(|name| k.pointer(name)));
    let units: Reg<U32> = k.param("units");
    launch_dependents(&mut k, target);
    let (thread, token) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let first = k.mul(token, spec.top);
    await_predecessor(&mut k, target);
    let slots = Addr::<Global>::of(k.mul_wide_add(first, 4, placed));
    let is_away: Vec<Pred> = k.phase("find", |k| {
        let slots: Vec<Reg<U32>> = (0..spec.top).map(|j| k.load(slots.plus(4 * j.cast_signed()))).collect();
        slots.into_iter().map(|slot| k.eq(slot, AWAY)).collect()
    });
    let any = is_away.into_iter().reduce(|one, other| k.either(one, other));
    let Some(any) = any else {
        return Err(Error::Field { what: "experts of a token", found: 0, wanted: "at least 1" });
    };
    k.if_(any, |k| {
        let row_bytes = k.mul(units, UNIT);
        let [from, to] = [tokens, sent].map(|base| k.mul_wide_add(token, row_bytes, base));
        let unit = k.variable(thread);
        k.phase("copy", |k| {
            k.loop_while(
                |k| k.lt(unit, units),
                |k| {
                    let [from, to] = [from, to].map(|row| Addr::<Global>::of(k.mul_wide_add(unit, UNIT, row)));
                    let piece: [Reg<U32>; 4] = k.load_vector(from);
                    k.store_vector(to, piece);
                    let next = k.add(unit, THREADS);
                    k.set(unit, next);
                },
            );
        });
        if let Some(weights) = weights {
            let mine = k.lt(thread, spec.top);
            k.if_(mine, |k| {
                let entry = k.add(first, thread);
                let [from, to] = weights.map(|base| Addr::<Global>::of(k.mul_wide_add(entry, 4, base)));
                let weight: Reg<F32> = k.load(from);
                k.phase("store", |k| k.store(to, weight));
            });
        }
    });
    k.finish()
}
