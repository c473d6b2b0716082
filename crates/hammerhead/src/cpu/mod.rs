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
pub mod ceilings;
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

pub use pack::{LAYOUT, Panels};
pub use scalar::Scalar;
pub use threads::Threads;
#[cfg(target_arch = "x86_64")]
pub use {amx::Amx, avx2::Avx2, avx512::Avx512};

use crate::backend::{Backend, Operands, Packed};
use crate::{Activation, Config, Cost, Error, Problem, Result, Weights};

/// What tells one CPU backend from another; the rest is theirs in common.
trait CpuBackend: Send + Sync {
    const NAME: &'static str;
    const SUMMARY: &'static str;

    /// Whether this machine has the instructions.
    fn available() -> Result<()>;

    /// The speeds of the kernel that handles such activations.
    fn rates(activation: Activation) -> model::Rates;

    /// Hands the problem to the schedule with the kernel that handles its activations.
    fn run(
        problem: &Problem,
        config: &Config,
        panels: &[Panels],
        operands: Operands<'_, '_, '_>,
        threads: &Threads,
    ) -> Result<()>;
}

impl<T: CpuBackend> Backend for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn summary(&self) -> &'static str {
        T::SUMMARY
    }

    fn layout(&self) -> &'static str {
        LAYOUT
    }

    fn available(&self) -> Result<()> {
        T::available()
    }

    fn candidates(&self, problem: &Problem, threads: usize) -> Vec<Config> {
        model::candidates(problem, &T::rates(problem.activation()), threads)
    }

    fn check(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Cost> {
        model::check(T::NAME, problem, config, &T::rates(problem.activation()), threads)
    }

    fn prepack(&self, weights: &[Weights<'_>]) -> Result<Packed> {
        Ok(Packed::Panels(weights.iter().map(Panels::new).collect::<Result<_>>()?))
    }

    fn run(&self, problem: &Problem, config: &Config, operands: Operands<'_, '_, '_>, threads: &Threads) -> Result<()> {
        let Packed::Panels(panels) = operands.weights else {
            return Err(Error::Layout { backend: T::NAME, found: operands.weights.layout(), expected: LAYOUT });
        };
        T::run(problem, config, panels, operands, threads)
    }
}

/// The fastest arithmetic unit of this machine: its name, and a probe that keeps it busy and returns the operations done.
fn fastest_unit() -> (&'static str, fn() -> f64) {
    #[cfg(target_arch = "x86_64")]
    if Backend::available(&Amx).is_ok() {
        return ("AMX bf16, tiles from the first-level cache", amx::flops);
    } else if Backend::available(&Avx512).is_ok() {
        return ("AVX-512 f32 multiply-add", avx512::flops);
    } else if Backend::available(&Avx2).is_ok() {
        return ("AVX2 f32 multiply-add", avx2::flops);
    }
    ("f32 multiply and add", ceilings::portable_flops)
}

/// How far ahead of its reader a stream of packed weights is fetched, in bytes.
const STREAM_AHEAD: usize = 8 * pack::CHUNK_BYTES;

/// Asks for what comes a little later in the same stream as this chunk.
#[inline(always)]
fn prefetch_stream(chunk: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..chunk.len()).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint; it faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(chunk.as_ptr().wrapping_add(STREAM_AHEAD + line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = chunk;
}
