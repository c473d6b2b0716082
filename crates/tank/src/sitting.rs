//! What a season asks of a referee, and what the referee answers.
//!
//! The rules of the game stand on one side of this boundary and clocks and processes on the other, so that the rules are
//! tested with a referee that reads its answers from a script.

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::entry::Entry;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effort {
    /// A quick look, to stop what is plainly slower.
    Probe,
    /// All that a verdict needs.
    Full,
}

/// A ratio with its confidence interval; above 1 the challenger is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The estimate.
    pub value: f64,
    /// The lower end of its interval.
    pub low: f64,
    /// The upper end of its interval.
    pub high: f64,
}

/// One problem of a sitting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShapeResult {
    /// The problem's name.
    pub problem: String,
    /// Champion's time over challenger's.
    pub speedup: Ratio,
    /// The champion's median, in seconds.
    pub champion_seconds: f64,
    /// The challenger's median, in seconds.
    pub challenger_seconds: f64,
    /// The least time that the machine's measured rates allow, where they are known.
    pub floor_seconds: Option<f64>,
    /// Quartets that were timed.
    pub quartets: usize,
}

/// The sitting's checks on itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Controls {
    /// The champion against itself.
    pub same: Ratio,
    /// The champion against itself with a slowdown planted.
    pub planted: Ratio,
    /// The slowdown that was planted, as a ratio: 1/1.05 for five per cent.
    pub plant: f64,
    /// The difference that this sitting sees between equals, as a part of one.
    pub noise: f64,
}

/// One run of the clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sitting {
    /// The seed of everything random in it.
    pub seed: u64,
    /// How much was measured.
    pub effort: Effort,
    /// Its checks on itself.
    pub controls: Controls,
    /// Every problem.
    pub shapes: Vec<ShapeResult>,
    /// The geometric mean over the problems.
    pub geomean: Ratio,
    /// Why the sitting counts for nothing, if it does.
    pub void: Option<String>,
    /// What else a reader should know: cold against warm, the null round trip, how long it took.
    #[serde(default)]
    pub remarks: Vec<String>,
}

/// What became of a challenger before any clock started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Verified {
    /// All was as it should be.
    Correct {
        /// The seed that nobody had seen.
        seed: u64,
        /// Runs that were checked.
        checks: usize,
        /// The largest error as a part of what is allowed.
        worst: f64,
    },
    /// Something was wrong.
    Wrong {
        /// The seed that shows it.
        seed: u64,
        /// What was wrong, and where.
        finding: String,
    },
    /// It does not build, does not start, or does not keep to the protocol.
    Broken {
        /// What happened.
        finding: String,
    },
    /// It cannot be run here: no such device, or it says itself that it does not support this.
    Unsupported {
        /// What is missing.
        finding: String,
    },
}

/// The champion alone, before the first round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Each problem's name, the champion's seconds, and the floor where it is known.
    pub shapes: Vec<BaselineShape>,
    /// Floating-point operations a second that the machine's fastest unit does.
    pub flops_per_second: Option<f64>,
    /// Bytes a second that its memory gives.
    pub bytes_per_second: Option<f64>,
}

/// One problem of a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaselineShape {
    /// The problem's name.
    pub problem: String,
    /// The champion's median, in seconds.
    pub seconds: f64,
    /// The least time that the machine's measured rates allow, where they are known.
    pub floor_seconds: Option<f64>,
    /// Operations that must be done.
    pub flops: f64,
    /// Bytes that must move.
    pub bytes: f64,
}

/// Who decides what is correct and what is faster.
pub trait Referee {
    /// Times the champion alone.
    fn baseline(&mut self, champion: &Entry) -> Result<Baseline>;

    /// Checks a challenger for correctness. Nothing is timed.
    fn verify(&mut self, challenger: &Entry, seed: u64) -> Result<Verified>;

    /// Times a challenger against the champion. Timed outputs are checked too; where one is wrong, that is the answer.
    fn sit(&mut self, champion: &Entry, challenger: &Entry, seed: u64, effort: Effort) -> Result<Sat>;
}

/// How a sitting ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ended")]
pub enum Sat {
    /// With figures.
    Timed(Sitting),
    /// With a challenger that was caught or lost: a wrong timed output, a crash, a hang.
    Caught {
        /// The seed that shows it.
        seed: u64,
        /// What happened.
        finding: String,
    },
}
