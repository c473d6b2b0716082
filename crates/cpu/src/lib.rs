//! The CPU: one layout of weights, one schedule, one file per instruction set.
//!
//! `pack` lays weights out once, for all of them. `kernel` says what an instruction set must be able to do with the pieces of
//! work that it is handed: tokens as they came (`source`) are prepared, packed blocks are expanded (`expansion`) into slabs (`slab`),
//! products are added up (`sums`), and a tile's sums become values of C (`finish`, `scale`, `target`). `schedule` cuts a
//! problem into tiles and walks them with those, in the order that the strategy says, in working `memory` and in a floating-point
//! `environment` of ours. `model` predicts what that costs.
//!
//! Arrows point one way: instruction sets → `schedule`, `model` → `kernel` → the pieces → `pack`.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod backend;
pub mod ceilings;
mod environment;
mod expansion;
mod finish;
#[cfg(target_arch = "x86_64")]
mod integer;
mod kernel;
mod memory;
mod model;
mod pack;
mod scalar;
mod scale;
mod schedule;
mod slab;
mod source;
mod sums;
mod target;
mod threads;

pub use backend::Cpu;
pub use pack::LAYOUT;
pub use threads::team;

use op::Backend;

/// Every CPU backend, best first. Adding one is adding its file and its line here.
pub fn backends() -> &'static [&'static dyn Backend] {
    &[
        #[cfg(target_arch = "x86_64")]
        &Cpu::<amx::Amx>::NEW,
        #[cfg(target_arch = "x86_64")]
        &Cpu::<avx512::Avx512>::NEW,
        #[cfg(target_arch = "x86_64")]
        &Cpu::<avx2::Avx2>::NEW,
        &Cpu::<scalar::Scalar>::NEW,
    ]
}
