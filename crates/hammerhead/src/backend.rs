//! What a backend is: four questions, and no others.
//!
//! Which configurations are worth trying for a problem (`candidates`); is this one legal and what does it cost
//! (`check`); how are weights laid out (`prepack`, once); and `run`. One table lists every backend, best first.

use format::Values;
use half::{bf16, f16};

use crate::cpu;
use crate::gpu::{self, PackedGroup};
use crate::{Activations, Config, Error, Output, Problem, Result, Weights};

/// What a configuration costs on a backend, as far as arithmetic can tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Predicted time.
    pub seconds: f64,
    /// What bounds the prediction, in words.
    pub bound_by: &'static str,
    /// Working memory beside the operands, over all threads.
    pub scratch_bytes: usize,
}

/// Weights in the layout that a family of backends reads.
#[derive(Debug)]
#[non_exhaustive]
pub enum Packed {
    /// For every CPU backend: panels of 16 columns, one set a group.
    Panels(Vec<cpu::Panels>),
    /// For the GPU, and in its memory.
    Device(Vec<PackedGroup<gpu::driver::DeviceMemory>>),
    /// For the simulated GPU.
    #[cfg(feature = "sim")]
    Simulated(Vec<PackedGroup<Vec<u8>>>),
}

impl Packed {
    /// The layout's name, as [`Backend::layout`] gives it.
    pub fn layout(&self) -> &'static str {
        match self {
            Packed::Panels(_) => cpu::LAYOUT,
            Packed::Device(_) => gpu::cuda::LAYOUT,
            #[cfg(feature = "sim")]
            Packed::Simulated(_) => gpu::simulated::LAYOUT,
        }
    }

    /// The bytes these weights take in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Packed::Panels(groups) => groups.iter().map(cpu::Panels::bytes).sum(),
            Packed::Device(groups) => groups.iter().map(PackedGroup::bytes).sum(),
            #[cfg(feature = "sim")]
            Packed::Simulated(groups) => groups.iter().map(PackedGroup::bytes).sum(),
        }
    }
}

/// Where one group's C goes: row-major `[m, n]`.
#[derive(Debug)]
pub enum Target<'a> {
    /// Half precision.
    F16(&'a mut [f16]),
    /// bfloat16.
    BF16(&'a mut [bf16]),
    /// Single precision.
    F32(&'a mut [f32]),
}

impl<'a> Target<'a> {
    /// Owned values as the places to write results to.
    pub fn all(results: &'a mut [Values<'static>]) -> Vec<Self> {
        let target = |values: &'a mut Values<'static>| match values {
            Values::F16(c) => Target::F16(c.to_mut()),
            Values::BF16(c) => Target::BF16(c.to_mut()),
            Values::F32(c) => Target::F32(c.to_mut()),
        };
        results.iter_mut().map(target).collect()
    }

    /// The element type.
    pub fn element(&self) -> Output {
        match self {
            Target::F16(_) => Output::F16,
            Target::BF16(_) => Output::BF16,
            Target::F32(_) => Output::F32,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Target::F16(c) => c.len(),
            Target::BF16(c) => c.len(),
            Target::F32(c) => c.len(),
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A run's operands: weights packed earlier, activations now, and where the results go, one of each a group.
#[derive(Debug)]
pub struct Operands<'a, 'i, 'o> {
    /// The weights, packed by this backend's `prepack` or one of the same family.
    pub weights: &'a Packed,
    /// The tokens.
    pub activations: &'a [Activations<'i>],
    /// The largest magnitude in each group of dense activations; not used for quantised ones.
    pub largest: &'a [f32],
    /// The results.
    pub targets: &'a mut [Target<'o>],
}

/// One way of computing.
pub trait Backend: Send + Sync {
    /// The name by which it is forced.
    fn name(&self) -> &'static str;

    /// One line on what it uses.
    fn summary(&self) -> &'static str;

    /// The name of the layout that its `prepack` makes. Backends of one layout can run each other's weights.
    fn layout(&self) -> &'static str;

    /// Whether it can run here; if not, [`Error::Unavailable`] with the reason and the remedy.
    fn available(&self) -> Result<()>;

    /// Configurations worth trying for this problem on so many threads. Each is legal.
    fn candidates(&self, problem: &Problem, threads: usize) -> Vec<Config>;

    /// Whether a configuration is legal for a problem, and what it costs; if not, [`Error::Illegal`] with the reason.
    fn check(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Cost>;

    /// Lays weights out for this backend. Done once; the result serves every problem with these weights.
    fn prepack(&self, weights: &[Weights<'_>]) -> Result<Packed>;

    /// Computes. The problem, the operands and the configuration fit together: [`Plan`](crate::Plan) saw to it.
    fn run(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        threads: &cpu::Threads,
    ) -> Result<()>;
}

impl std::fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Every backend, best first. Adding one is adding its file and its line here.
///
/// The GPU stands behind the CPU: weights move to its memory, and a run over the host's memory copies tokens and results, so it
/// is used where it is asked for by name. An engine left to itself takes the first that is available and those of its
/// layout, and the portable backend always is. The simulator is never a sensible choice and stays last.
pub fn all() -> &'static [&'static dyn Backend] {
    &[
        #[cfg(target_arch = "x86_64")]
        &cpu::Amx,
        #[cfg(target_arch = "x86_64")]
        &cpu::Avx512,
        #[cfg(target_arch = "x86_64")]
        &cpu::Avx2,
        &cpu::Scalar,
        &gpu::Cuda::FIRST,
        #[cfg(feature = "sim")]
        &gpu::Simulated(sim::Schedule::Random(1)),
    ]
}

/// The backend of that name, whether or not it can run here. `cuda:1` is the second GPU, and so on.
pub fn by_name(name: &str) -> Result<&'static dyn Backend> {
    let listed = all().iter().copied().find(|b| b.name() == name);
    let device = || gpu::Cuda::by_name(name).map(|cuda| cuda as &'static dyn Backend);
    listed.or_else(device).ok_or_else(|| Error::UnknownName {
        what: "backend",
        name: name.to_owned(),
        known: all().iter().map(|b| b.name()).chain(["auto"]).collect::<Vec<_>>().join(", "),
    })
}
