//! The CPU: one layout of weights, one schedule, one file per instruction set.
//!
//! `pack` lays weights out once, for all of them, and `saved` knows them in files. `kernel` says what an instruction
//! set must be able to do with the pieces of work that it is handed: tokens as they came (`source`) are prepared,
//! packed blocks are expanded (`expansion`) into slabs (`slab`), products are added up (`sums`), and a tile's sums
//! become values of C (`finish`, `scale`, `target`). What vector units say alike is written once, over a small trait
//! (`vector`): the loops for dense tokens (`dense`, and `few` for the fewest). `schedule` cuts a problem into tiles and
//! walks them with those, in the order that the strategy says, in working `memory` and in a floating-point
//! `environment` of ours. `fp8` is the plain product with FP8 weights, through the same kernels. `low_rank` makes what
//! adapters add to a tile's sums. `model` predicts what that costs, at the `speeds` that `measure` finds or the
//! kernels' authors found.
//!
//! Arrows point one way: instruction sets → `schedule`, `model` → `kernel` → the pieces → `pack`.
//!
//! Programs use the crate `hammerhead`, which chooses among these backends. One by itself:
//!
//! ```
//! use format::{Dense, Matrix, Values}; // the crate `hammerhead-format`
//! use op::{Activation, Call, Error, Gate, Output, Problem, Shape, Target, Weights}; // `hammerhead-op`
//!
//! let problem = Problem::new(vec![Shape::new(1, 32, 64)], Gate::Silu, Activation::F32, Output::F32)?;
//! let scalar = *hammerhead_cpu::backends().last().expect("plain Rust runs everywhere");
//! let team = hammerhead_cpu::team(Some(1))?;
//!
//! let ones = || Matrix::new(32, 64, vec![0x22; 32 * 32], vec![0x38; 32 * 4], 1.0);
//! let packed = scalar.prepack(&[Weights::gated(ones()?, ones()?)?], &team)?;
//! let config = scalar.candidates(&problem, team.count())[0];
//! let tokens = [Dense::new(1, 64, vec![0.25f32; 64], 1.0)?.into()];
//! let mut c = [Values::from(vec![0f32; 32])];
//! Call::new((scalar, config), &problem, packed.as_ref(), &tokens, &mut Target::all(&mut c), &team)?.run()?;
//! # Ok::<(), Error>(())
//! ```

// Some of what kernels are handed is read by the matrix unit's alone.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod backend;
pub mod ceilings;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod dense;
mod environment;
mod expansion;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod few;
mod finish;
mod fp8;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod integer;
mod kernel;
mod low_rank;
mod measure;
mod memory;
mod model;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
pub mod saved;
mod scalar;
mod scale;
mod schedule;
mod shares;
mod slab;
mod source;
mod speeds;
mod sums;
mod target;
mod threads;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;

pub use backend::Cpu;
pub use environment::in_default_mode;
pub use fp8::Fp8Panels;
pub use low_rank::deltas;
pub use pack::{LAYOUT, unpacked};
pub use speeds::Speeds;
pub use threads::{Joined, OpenMp, ParallelFor, available, team};

use std::sync::OnceLock;

use op::{Backend, Result};

use backend::CpuBackend;

/// The version of the kernels and of the model that prices them: the package's, and a digest of the sources by
/// `build.rs`.
pub const KERNELS: &str = env!("HAMMERHEAD_KERNELS");

/// Every CPU backend, best first. Adding one is adding its file and its line here.
fn table() -> &'static [&'static dyn CpuBackend] {
    &[
        #[cfg(target_arch = "x86_64")]
        &Cpu::<amx::Amx>::NEW,
        #[cfg(target_arch = "x86_64")]
        &Cpu::<avx512::Avx512>::NEW,
        #[cfg(target_arch = "x86_64")]
        &Cpu::<avx2::Avx2>::NEW,
        #[cfg(target_arch = "aarch64")]
        &Cpu::<neon::Neon>::NEW,
        &Cpu::<scalar::Scalar>::NEW,
    ]
}

/// Every CPU backend, best first.
pub fn backends() -> &'static [&'static dyn Backend] {
    static BACKENDS: OnceLock<Vec<&'static dyn Backend>> = OnceLock::new();
    BACKENDS.get_or_init(|| table().iter().map(|backend| *backend as &dyn Backend).collect())
}

/// Measures how fast this machine is at what the planner weighs, which takes less than a second.
pub fn measure() -> Result<Speeds> {
    measure::measure(table())
}
