//! Which experts of a call the device has, and which it has not, where a layer's experts lie in two places.
//!
//! A table says of every expert which *slot* of the device holds it, if one does. Each entry, one of a token's experts,
//! becomes its slot for the device's own kernels. If there is none, it is [`AWAY`]: its expert's number goes to the
//! host, in memory that both reach, and for the device's products it is nobody's. The table is read here and nowhere
//! else, so that device and host agree on every entry whoever changes the table meanwhile.
//!
//! How often each expert was asked for is counted besides: that is what a better placement goes by.

use ptx::{Addr, Builder, Error, Global, Kernel, LaunchBounds, Reg, Scope, SpecialRegister, Target, U32};

use super::{NOBODY, Portable, await_predecessor, id_of, launch_dependents};

/// The slot of an entry that the host computes. Like [`NOBODY`], no slot has that number.
pub const AWAY: u32 = NOBODY - 1;
/// Threads of a block, one for each entry.
const THREADS: u32 = 128;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlaceSpec {
    /// Experts of the layer, wherever they are.
    pub experts: u32,
    /// Whether ids have 64 bits, and not 32.
    pub wide: bool,
}

/// Blocks for so many entries.
pub fn blocks(entries: u32) -> u32 {
    entries.div_ceil(THREADS)
}

impl Portable for PlaceSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: ids `[entries]`, the slot of every expert or [`AWAY`], how often each
/// was asked for, slots `[entries]`, ids for the host `[entries]`, and the number of entries.
pub fn kernel(spec: PlaceSpec, target: Target) -> Result<Kernel, Error> {
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("place", target, launch);
    let [ids, slots, asked, placed, away] = ["ids", "slots", "asked", "placed", "away"].map(|name| k.pointer(name));
    let entries: Reg<U32> = k.param("entries");
    launch_dependents(&mut k, target);
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let entry = k.mul_add(block, THREADS, thread);
    let exists = k.lt(entry, entries);
    await_predecessor(&mut k, target);
    k.if_(exists, |k| {
        let id = id_of(k, ids, entry, spec.wide);
        let (slot, elsewhere): (Reg<U32>, Reg<U32>) = (k.variable(NOBODY), k.variable(NOBODY));
        let somebodys = k.lt(id, spec.experts);
        k.if_(somebodys, |k| {
            let slot_at = Addr::<Global>::of(k.mul_wide_add(id, 4, slots));
            let found = k.phase("find", |k| k.load(slot_at));
            k.set(slot, found);
            let away = k.eq(found, AWAY);
            let for_host = k.select(away, id, NOBODY);
            k.set(elsewhere, for_host);
            let asked_at = Addr::<Global>::of(k.mul_wide_add(id, 4, asked));
            k.phase("count", |k| k.reduce_add(Scope::Gpu, asked_at, 1));
        });
        k.phase("store", |k| {
            for (array, value) in [(placed, slot), (away, elsewhere)] {
                let at = Addr::<Global>::of(k.mul_wide_add(entry, 4, array));
                k.store(at, value);
            }
        });
    });
    k.finish()
}
