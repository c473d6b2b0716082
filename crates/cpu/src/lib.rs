//! The CPU: one layout of weights, one schedule, one file an instruction set.
//!
//! `pack` lays weights out once, for all of them. `kernel` says what an instruction set must be able to do: prepare
//! tokens, expand a block of codes, multiply. `schedule` cuts a problem in tiles and walks them with those three, in
//! the order that the strategy says. `model` predicts what that costs.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod backend;
pub mod ceilings;
mod environment;
#[cfg(target_arch = "x86_64")]
mod integer;
mod kernel;
mod memory;
mod model;
mod pack;
mod scalar;
mod schedule;
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
