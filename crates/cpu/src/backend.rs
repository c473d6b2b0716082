//! What all CPU backends have in common: one layout, one schedule, one model. An instruction set adds its name, its
//! speeds and its kernels.

use std::marker::PhantomData;
use std::sync::Arc;

use op::backend::packed_as;
use op::{
    Activation, Arithmetic, Backend, Config, Cost, Operands, PackedWeights, Phase, Precision, Problem, Result, Team,
    Weights,
};

use super::environment::in_default_mode;
use super::fp8::Fp8Run;
use super::model;
use super::pack::{LAYOUT, PackedPanels, Panels};
use super::speeds::Speeds;

/// What tells one CPU backend from another; the rest is theirs in common.
pub(super) trait InstructionSet: Send + Sync {
    const NAME: &'static str;
    const SUMMARY: &'static str;

    /// Whether this machine has the instructions.
    fn available() -> Result<()>;

    /// How the kernel that handles such activations adds products up.
    fn arithmetic(activation: Activation) -> Arithmetic;

    /// The speeds of the kernel that handles such activations.
    fn rates(activation: Activation) -> model::Rates;

    /// Hands the problem to the schedule with the kernel that handles its activations.
    ///
    /// # Safety
    ///
    /// As for [`Backend::run`].
    unsafe fn run(
        problem: &Problem,
        config: &Config,
        panels: &[Panels],
        operands: Operands<'_, '_, '_>,
        team: &Team,
    ) -> Result<()>;

    /// Computes a plain product with FP8 weights.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions, and operands must fit.
    unsafe fn run_fp8(run: Fp8Run<'_, '_, '_>) -> Result<()>;
}

/// How vector units add up: quantised activations as integers, block by block, and dense ones as f32.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn vector_arithmetic(activation: Activation) -> Arithmetic {
    if activation == Activation::NvFp4 { Arithmetic::Blocks } else { Arithmetic::Fused }
}

/// A backend of this crate, with what the model knows of it.
pub(super) trait CpuBackend: Backend {
    /// The speeds of the kernel that handles such activations, as its author found them.
    fn rates(&self, activation: Activation) -> model::Rates;

    /// Computes a plain product with FP8 weights.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions, and operands must fit.
    unsafe fn run_fp8(&self, run: Fp8Run<'_, '_, '_>) -> Result<()>;
}

impl<T: InstructionSet> CpuBackend for Cpu<T> {
    fn rates(&self, activation: Activation) -> model::Rates {
        T::rates(activation)
    }

    unsafe fn run_fp8(&self, run: Fp8Run<'_, '_, '_>) -> Result<()> {
        // SAFETY: the processor has the instructions, and the operands fit: the caller's promise.
        in_default_mode(|| unsafe { T::run_fp8(run) })
    }
}

/// The CPU, by one instruction set.
#[derive(Debug)]
pub struct Cpu<T>(PhantomData<T>);

impl<T> Cpu<T> {
    pub(super) const NEW: Self = Self(PhantomData);
}

// SAFETY: `available` asks the processor for every instruction that the kernels of `T` use, and `legal` is what the
// schedule was written for: tiles, slabs and sums of any such configuration lie inside the memory that it takes for
// them.
unsafe impl<T: InstructionSet> Backend for Cpu<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn summary(&self) -> &'static str {
        T::SUMMARY
    }

    fn layout(&self) -> &'static str {
        LAYOUT
    }

    fn kernels(&self) -> &'static str {
        crate::KERNELS
    }

    fn available(&self) -> Result<()> {
        T::available()
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        T::arithmetic(activation)
    }

    fn adds(&self) -> bool {
        true
    }

    fn candidates(&self, problem: &Problem, threads: usize) -> Vec<Config> {
        if problem.whole().is_some() || problem.precision() != Precision::Exact {
            return Vec::new();
        }
        model::candidates(problem, &T::rates(problem.activation()), threads)
    }

    fn check(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Cost> {
        let speeds = Speeds::installed();
        let rates = T::rates(problem.activation()).at(T::NAME, speeds);
        model::check(T::NAME, problem, config, (&rates, speeds.bandwidth()), threads)
    }

    fn phases(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Vec<Phase>> {
        let speeds = Speeds::installed();
        let rates = T::rates(problem.activation()).at(T::NAME, speeds);
        model::phases(T::NAME, problem, config, (&rates, speeds.bandwidth()), threads)
    }

    fn legal(&self, problem: &Problem, config: &Config, threads: usize) -> Result<()> {
        model::legal(T::NAME, problem, config, &T::rates(problem.activation()), threads).map(drop)
    }

    fn prepack(&self, weights: &[Weights<'_>], team: &Team) -> Result<Arc<dyn PackedWeights>> {
        Ok(Arc::new(PackedPanels::new(weights, team)?))
    }

    unsafe fn run(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        team: &Team,
    ) -> Result<()> {
        let panels: &PackedPanels = packed_as(operands.weights, T::NAME, LAYOUT)?;
        // SAFETY: the processor has the instructions, and the operands fit: the caller's promise.
        in_default_mode(|| unsafe { T::run(problem, config, panels.groups(), operands, team) })
    }
}
