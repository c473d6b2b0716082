//! What the game knows of configurations of our own, where an operation has them: they can be forecast, completed,
//! drawn by lot and kept for the planner. What is in one is the operation's.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::entry::{Entry, Run, Way};

/// The configurations that an operation has on this machine, for the problems of a season.
pub trait Configurations: fmt::Debug {
    /// What the planner makes of these words, any part of a configuration, problem by problem.
    fn planned(&self, words: &str) -> Result<Entry>;

    /// What a pitch would run, or why it cannot.
    fn entry(&self, run: &Run) -> Result<Entry>;

    /// What the planner would run in place of an entry if nobody forced anything.
    fn unforced(&self, entry: &Entry) -> Result<Entry>;

    /// What the analytic model expects of an entry on one problem.
    fn forecast(&self, entry: &Entry, problem: usize) -> Option<Forecast>;

    /// What is known of a pitch before anything is built.
    fn profile(&self, run: &Run) -> Profile;

    /// The version of everyone's kernels.
    fn kernels(&self) -> BTreeMap<String, String>;

    /// A legal configuration that nobody has tried, drawn by the place in the season and not by anyone's wish.
    fn draw(&self, champion: &Entry, tried: &dyn Fn(&Entry) -> bool, place: &str) -> Option<Run>;

    /// Whether both ways read the same weights, so that a plan weighs the two.
    fn share_weights(&self, way: &Way, other: &Way) -> bool;

    /// Puts ways with their speedups where the planner looks, in this folder. What is there already stays, so that this
    /// may be done again.
    fn install(&self, folder: &Path, ways: &[(Way, f64)], proof: &Proof<'_>) -> Result<()>;
}

/// What says that a way is faster.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    /// The version of everyone's kernels when it was measured.
    pub kernels: &'a BTreeMap<String, String>,
    /// The hash of the ledger's record.
    pub record: &'a str,
    /// When it was written.
    pub at: &'a str,
}

/// What a model expects.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds of one run.
    pub seconds: f64,
    /// What bounds it, in words.
    pub bound_by: String,
    /// Working memory.
    pub scratch_bytes: usize,
}

/// What is known of a configuration before anything is built: of a GPU's all of it, of a processor's where its time
/// should go. Nothing of what cannot be planned: the refusal says why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// What the simulator counts in one tile of the first problem.
    pub simulated: Vec<Counter>,
    /// What it finds wrong there.
    pub simulated_wrong: Option<String>,
    /// What the assembler makes of its kernels for the first problem, where there is an assembler.
    pub assembled: Vec<KernelEvidence>,
    /// What happens on the first problem, by the model.
    pub phases: Vec<PhaseShare>,
    /// By which model, and on what, in words.
    pub phases_by: String,
}

/// Something that the simulator counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// What is counted.
    pub what: String,
    /// How many.
    pub count: u64,
}

/// One phase of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseShare {
    /// What happens in it.
    pub phase: String,
    /// The part of the run's time that it takes.
    pub share: f64,
    /// What bounds it.
    pub bound_by: String,
}

impl fmt::Display for PhaseShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.1} % of the time, bound by {}", self.phase, 100.0 * self.share, self.bound_by)
    }
}

/// One kernel of a GPU's configuration, as NVIDIA's assembler makes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelEvidence {
    /// The kernel's name.
    pub kernel: String,
    /// Registers per thread at launch.
    pub registers: u32,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
    /// Bytes of registers that went to memory for want of room, per thread.
    pub spilled_bytes: u32,
    /// Blocks that a multiprocessor holds at once.
    pub blocks: u32,
    /// The part of a multiprocessor's warps that they are.
    pub occupancy: f64,
}

impl fmt::Display for KernelEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, registers, shared_bytes, spilled_bytes, blocks, occupancy } = self;
        write!(f, "{kernel}: {registers} registers, {shared_bytes} bytes of shared memory, ")?;
        match spilled_bytes {
            0 => write!(f, "no spills")?,
            bytes => write!(f, "{bytes} bytes spilled")?,
        }
        write!(f, ", {blocks} blocks on a multiprocessor, {:.0} % of its warps", 100.0 * occupancy)
    }
}
