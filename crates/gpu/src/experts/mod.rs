//! A layer of experts whose counts live on the device: nothing of it is read by the host, so that one captured graph
//! serves every routing of as many tokens.
//!
//! `shape` is what a layer is, `call` what a call of it is given, `kernels` says what computes its products, and
//! `layer` has its launches. `route` chooses experts from logits, `sort` brings tokens into the order of their experts,
//! the products are the family's with the layout that `sort` leaves, `between` makes what the first one leaves what the
//! second one takes, where experts differ in that, and `combine` adds up what a token's experts made of it. `share`
//! weighs an expert that computes every token, where it has a gate of its own. `adapt` adds what low-rank `adapters` do
//! to both products, by `whose` rows are. Where some experts are not in the device's memory, `place` tells theirs from
//! the others' entries, `send` brings their tokens to the host, and [`crate::away`] has it compute them meanwhile; or,
//! with many rows, `fetch` brings their weights to the device, `lots` by lots, in the `order` that keeps them from
//! being overwritten.

pub mod adapt;
pub mod adapters;
pub mod between;
pub mod call;
pub mod combine;
pub mod fetch;
pub mod kernels;
pub mod layer;
pub mod lots;
pub(crate) mod order;
pub mod packed;
pub mod place;
pub mod plan;
pub mod route;
pub mod send;
pub mod shape;
pub mod share;
pub mod sort;
mod whose;

use std::fmt;
use std::hash::Hash;

use ptx::{Addr, Builder, Error, Feature, Global, Kernel, Reg, Target, U32, U64};

use crate::launch::Spec;
pub use crate::phases::NOBODY;

/// What every part of a workspace, and of what is exchanged with the host, begins at a multiple of.
pub(crate) const ALIGNMENT: u64 = 256;

/// A kernel that runs on every GPU for which there are products.
pub trait Portable: Copy + fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// Builds it for a target.
    fn kernel_for(self, target: Target) -> Result<Kernel, Error>;
}

/// Such a kernel for one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct For<S> {
    /// Which kernel.
    pub spec: S,
    /// What it is assembled for.
    pub target: Target,
}

impl<S: Portable> Spec for For<S> {
    fn kernel(self) -> Result<Kernel, Error> {
        self.spec.kernel_for(self.target)
    }
}

/// Lets the next launch begin, where the target can.
fn launch_dependents(k: &mut Builder, target: Target) {
    if target.has(Feature::GridDependency) {
        k.launch_dependents();
    }
}

/// Waits for the launch before this one, unless the target has them one after the other anyhow.
fn await_predecessor(k: &mut Builder, target: Target) {
    if target.has(Feature::GridDependency) {
        k.grid_dependency_wait();
    }
}

/// The id of an entry in memory, of 32 bits or 64; one that 32 bits cannot hold is [`NOBODY`]'s.
fn id_of(k: &mut Builder, ids: Reg<U64>, entry: Reg<U32>, wide: bool) -> Reg<U32> {
    if !wide {
        let at = Addr::<Global>::of(k.mul_wide_add(entry, 4, ids));
        return k.load(at);
    }
    let at = Addr::<Global>::of(k.mul_wide_add(entry, 8, ids));
    let [low, high]: [Reg<U32>; 2] = k.load_vector(at);
    let small = k.eq(high, 0);
    k.select(small, low, NOBODY)
}
