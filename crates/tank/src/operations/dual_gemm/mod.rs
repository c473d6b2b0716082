//! The gated dual GEMM on NVFP4 data: the operation that this program was made for, by the same seam as anyone's.
//!
//! [`problem`] is how a season writes its problems, [`mod@planner`] makes entries of configurations and says what is
//! known of them, [`builtin`] is our own backends as contestants, [`on_device`] those of a GPU in its own memory,
//! `foretold` a referee for a GPU that is not there, [`operands`] where a message says that they lie, [`mod@task`] the
//! numbers and what should come out of them, `layer` those of whole layers, [`mod@questions`] what is asked, and
//! [`yardstick`] checks large results whole.

pub mod builtin;
mod foretold;
mod layer;
pub mod on_device;
pub mod operands;
pub mod planner;
pub mod problem;
pub mod questions;
mod serve;
pub mod task;
pub mod yardstick;

use std::sync::Arc;

use fastrand::Rng;
use gpu::Cuda;
use hammerhead::Request;
use serde_json::Value;
use testkit::cases::Case;

pub use builtin::{Bench, Builtin};
pub use foretold::Foretold;
pub use on_device::OnDevice;
pub use planner::Planner;
pub use problem::ProblemSpec;
pub use questions::questions;
pub use serve::serve;
pub use task::{Workshop, task, tasks};

use referee::contestant::Contestant;
use referee::contestant::protocol::Residence;
use referee::seeds::derive;
use referee::task::Task;

use self::layer::LayerTask;
use crate::Result;
use crate::entry::Way;
use crate::operation::Operation;

/// Its name.
pub const NAME: &str = "dual-gemm";
/// A pitch that is complete, with `NAME` for its name.
pub const PITCH: &str = include_str!("pitch.toml");
/// The line of it that says what is run.
pub const PITCH_RUN: &str = "config = \"strategy=ping-pong\"";
/// The season that is played when no other is named. It is an example of how seasons are written too.
pub const SEASON: &str = include_str!("../../../seasons/cpu.toml");
/// What to write where a pitch names nothing to run.
pub const RUN: &str = "write [run] with config = \"strategy=ping-pong\", or with program = [\"./kernel\"]";
/// What to write where a season has no problems.
pub const PROBLEM: &str =
    "write [[problem]] with groups = [[m, n, k]] or with layer, or name an operation, which brings its own";

/// Refuses words that are no part of a configuration.
pub fn check_words(words: &str) -> Result<()> {
    Ok(words.parse::<Request>().map(drop)?)
}

/// The operation with the problems of a season.
pub struct DualGemm {
    /// Those of its problems that are products, and those that are whole layers.
    cases: Vec<Case>,
    layers: Vec<LayerTask>,
    workshop: Arc<Workshop>,
    problems: Vec<Arc<dyn Task>>,
}

impl DualGemm {
    /// The operation with these problems.
    pub fn new(problems: &[ProblemSpec]) -> Result<Self> {
        let workshop = Arc::new(Workshop::new()?);
        let mut operation = Self { cases: Vec::new(), layers: Vec::new(), workshop, problems: Vec::new() };
        for spec in problems {
            let problem = spec.problem()?;
            operation.problems.push(match LayerTask::of(&problem) {
                Some(layer) => {
                    operation.layers.push(layer.clone());
                    Arc::new(layer)
                }
                None => {
                    operation.cases.push(problem::case(&problem));
                    task::with(problem::case(&problem), &operation.workshop)
                }
            });
        }
        Ok(operation)
    }
}

impl Operation for DualGemm {
    fn name(&self) -> &str {
        NAME
    }

    fn problems(&self) -> &[Arc<dyn Task>] {
        &self.problems
    }

    fn questions(&self, held_out: usize, other_edges: usize, seed: u64) -> Result<Vec<Arc<dyn Task>>> {
        let mut lots = Rng::with_seed(derive(seed, &[0x0ed6e]));
        let alike = |case: &Case| self.cases.iter().any(|own| own.gate == case.gate && own.output == case.output);
        let mut asked: Vec<Arc<dyn Task>> = Vec::new();
        for layer in &self.layers {
            asked.extend(layer.questions(held_out, seed)?.into_iter().map(|layer| Arc::new(layer) as Arc<dyn Task>));
        }
        // Whoever is timed on whole layers alone is asked nothing else.
        if self.layers.is_empty() || !self.cases.is_empty() {
            let mut cases = questions(&self.cases, held_out, seed);
            cases.retain(|case| alike(case) || lots.usize(..other_edges.max(1)) == 0);
            asked.extend(cases.into_iter().map(|case| task::with(case, &self.workshop)));
        }
        Ok(asked)
    }

    fn ours(&self, name: &str, ways: &[Way], threads: Option<usize>) -> Result<Box<dyn Contestant>> {
        Ok(Box::new(Builtin { name: name.to_owned(), ways: ways.to_vec(), threads, memory: Residence::Host }))
    }

    fn device(&self, ways: &[Way]) -> Option<usize> {
        let device = |way: &Way| Cuda::by_name(&way.backend).map(Cuda::device);
        let first = device(ways.first()?)?;
        ways.iter().all(|way| device(way) == Some(first)).then_some(first)
    }

    fn ours_on_device(&self, name: &str, ways: &[Way], device: usize) -> Result<Box<dyn Contestant>> {
        let builtin = Builtin { name: name.to_owned(), ways: ways.to_vec(), threads: None, memory: Residence::Cuda };
        Ok(Box::new(OnDevice::new(builtin, device)?))
    }

    fn ours_told(&self, name: &str, ways: &[Way], threads: Option<usize>, memory: Residence) -> Result<Value> {
        let builtin = Builtin { name: name.to_owned(), ways: ways.to_vec(), threads, memory };
        let told = serde_json::to_value(&builtin);
        Ok(told.map_err(|source| referee::Error::Protocol { reason: source.to_string() })?)
    }
}
