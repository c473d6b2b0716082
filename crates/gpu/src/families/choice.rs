//! What a configuration means for a problem, whichever family's kernels compute it: which products, on what tokens, how
//! they end. What else a kernel is made of is its family's.

use op::{Config, Error, Output, Problem, Result, Setting, Shape, Strategy};

use crate::pack::CHUNK_DEPTH;
use crate::phases::gates::Function;
pub use crate::phases::tokens::Tokens;

/// Numbers of groups that kernels are built for; a launch takes the next larger one.
pub const CAPACITIES: [u32; 4] = [1, 8, 32, 128];
/// Groups with tokens of one launch.
pub(super) const MOST_GROUPS: usize = CAPACITIES[CAPACITIES.len() - 1] as usize;

/// The number of groups that a kernel for so many is built for.
pub(super) fn capacity(groups: usize) -> u32 {
    CAPACITIES.into_iter().find(|&capacity| capacity as usize >= groups).unwrap_or(MOST_GROUPS as u32)
}

/// Which products a tile needs, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Products {
    /// Gate and up at every step of k, in one fragment.
    Interleaved,
    /// Gate over all of k, then up over all of k.
    Sequential,
    /// One matrix only.
    Single,
}

impl Products {
    /// Which products a strategy's kernel computes for a problem.
    pub(super) fn of(problem: &Problem, strategy: Strategy) -> Self {
        match (problem.matrices(), strategy) {
            (1, _) | (_, Strategy::TwoPass) => Products::Single,
            (_, Strategy::Sequential) => Products::Sequential,
            (_, Strategy::Interleaved | Strategy::PingPong) => Products::Interleaved,
        }
    }
}

/// Whether the sums of two matrices go through memory.
pub(super) fn passes_twice(problem: &Problem, config: &Config) -> bool {
    config.strategy == Strategy::TwoPass && problem.matrices() == 2
}

/// The gate and the output type of a strategy's kernel: sums that go through memory are neither gated nor rounded.
pub(super) fn ending(problem: &Problem, strategy: Strategy) -> (Function, Output) {
    if strategy == Strategy::TwoPass && problem.matrices() == 2 {
        (Function::None, Output::F32)
    } else {
        (Function::of(problem.gate()), problem.output())
    }
}

/// The sizes of a configuration as kernels count them, of a family with these settings of its own: tokens and columns
/// of a tile, chunks of weights along k in a stage, and stages.
pub(super) fn sizes(family: &str, config: &Config, settings: &[Setting]) -> Result<[u32; 4], String> {
    config.own.check(family, settings)?;
    if !config.depth.is_multiple_of(CHUNK_DEPTH) {
        return Err(format!("a stage holds chunks of {CHUNK_DEPTH} of K; ask for depth=64, 128 or 256"));
    }
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Ok([config.tile.tokens, config.tile.columns, config.depth / CHUNK_DEPTH, config.stages].map(narrow))
}

/// A configuration that a family's kernels refuse, as an error.
pub(crate) fn illegal(config: &Config) -> impl Fn(String) -> Error {
    move |reason| Error::Illegal { backend: "cuda", config: Box::new(*config), reason }
}

/// How many times a block takes a step over a chunk's depth of K, in all.
pub(super) fn steps(problem: &Problem, config: &Config) -> usize {
    let parts = Tokens::of_problem(problem).parts() as usize;
    let tiles = |s: &Shape| s.m.div_ceil(config.tile.tokens) * s.n.div_ceil(config.tile.columns);
    let along_k = |s: &Shape| s.k.div_ceil(CHUNK_DEPTH) * problem.matrices() * parts;
    problem.groups().iter().fold(0, |steps: usize, s| steps.saturating_add(tiles(s).saturating_mul(along_k(s))))
}
