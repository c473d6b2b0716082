//! What a sitting leaves behind: the record that goes into the ledger, complete enough to be judged again.

use serde::{Deserialize, Serialize};

use crate::contestant::{Fault, Guard};
use crate::settings::{RefereeSettings, Temperature};
use crate::stats::LogRatio;

/// One of the two that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Who is to be beaten.
    Champion,
    /// Who wants to.
    Challenger,
}

impl Side {
    /// Its place where there is something for each.
    pub(crate) fn index(self) -> usize {
        match self {
            Side::Champion => 0,
            Side::Challenger => 1,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Side::Champion => "champion",
            Side::Challenger => "challenger",
        })
    }
}

/// Who swims against the champion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// The champion itself: there must be no difference.
    Control,
    /// The champion with a planted slowdown: it must be found.
    Plant,
    /// The champion's own code behind the fence: what that costs a stranger.
    Fence,
    /// The challenger.
    Duel,
}

impl std::fmt::Display for Pairing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Pairing::Control => "control",
            Pairing::Plant => "plant",
            Pairing::Fence => "fence",
            Pairing::Duel => "duel",
        })
    }
}

/// What a budget of time allows, found before anything is decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scout {
    /// Seconds that the sitting may take.
    pub budget_seconds: f64,
    /// Seconds that a pair of processes takes.
    pub seconds_a_process: f64,
    /// Seconds that one measurement may take.
    pub seconds_a_measurement: f64,
    /// Quartets of every shape that a process swims.
    #[serde(default)]
    pub quartets_per_process: usize,
    /// What the figures of two processes of the same code differ by today, as a logarithm's deviation.
    pub spread: f64,
    /// Quartets at which the evidence is looked at.
    pub looks: Vec<usize>,
    /// The gain that can be seen, as a fraction.
    pub sees: f64,
}

impl std::fmt::Display for Scout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "noise: processes of the same code differ by {:.1} % here; in {:.0} s, with up to {} quartets, a gain of {:.1} % can be seen",
            100.0 * self.spread,
            self.budget_seconds,
            self.looks.last().copied().unwrap_or(0),
            100.0 * self.sees
        )
    }
}

/// A ratio of speeds with its interval. Above 1 is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speedup {
    /// The estimate.
    pub estimate: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Speedup {
    /// One gain after another: where both ends of both intervals hold, so do these.
    pub fn times(&self, other: &Speedup) -> Speedup {
        let product = |a: f64, b: f64| a * b;
        Speedup {
            estimate: product(self.estimate, other.estimate),
            low: product(self.low, other.low),
            high: product(self.high, other.high),
        }
    }
}

impl From<LogRatio> for Speedup {
    fn from(d: LogRatio) -> Self {
        Self { estimate: (-d.estimate).exp(), low: (-d.high()).exp(), high: (-d.low()).exp() }
    }
}

impl std::fmt::Display for Speedup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.4}× [{:.4}, {:.4}]", self.estimate, self.low, self.high)
    }
}

/// One shape at one temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShapeResult {
    /// The problem, as it is written everywhere.
    pub shape: String,
    /// The champion's median seconds for one computation.
    pub champion_seconds: f64,
    /// The challenger's.
    pub challenger_seconds: f64,
    /// How much faster the challenger is, from quartets and not from those medians.
    pub speedup: Speedup,
    /// Every quartet's log-ratio of challenger over champion, process by process.
    pub quartets: Vec<f64>,
}

/// All shapes at one temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The geometric mean over shapes.
    pub geomean: Speedup,
    /// Each shape.
    pub shapes: Vec<ShapeResult>,
}

/// What was seen at one look.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Quartets of every shape so far.
    pub quartets: usize,
    /// The geometric mean so far, at the temperature that decides.
    pub geomean: Speedup,
}

/// Why a measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// The interval is as narrow as was asked for.
    Precise,
    /// The question it was for is answered.
    Decided,
    /// It was the last look.
    LastLook,
    /// Its share of the budget is spent.
    Budget,
    /// A deal's quick probe found a shape too slow to go on.
    Probe,
}

/// One pairing, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Who swam against the champion.
    pub pairing: Pairing,
    /// The seed of its orders, inputs and resamples; drawn from the operating system.
    pub seed: u64,
    /// Pairs of fresh processes.
    pub processes: usize,
    /// Quartets of every shape.
    pub quartets: usize,
    /// The part of cases in which such intervals hold the truth, each.
    pub confidence: f64,
    /// With cold weights.
    pub cold: Summary,
    /// With warm weights.
    pub warm: Summary,
    /// The champion's own time in each process, as a logarithm: the mean over shapes, at the temperature that decides.
    #[serde(default)]
    pub champion: Vec<f64>,
    /// What was seen on the way.
    pub looks: Vec<Look>,
    /// Why it ended.
    pub stopped: Stop,
}

impl Measurement {
    /// The summary at one temperature.
    pub fn at(&self, temperature: Temperature) -> &Summary {
        match temperature {
            Temperature::Cold => &self.cold,
            Temperature::Warm => &self.warm,
        }
    }
}

/// Whether a control showed what it must.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// What was measured.
    pub measurement: Measurement,
    /// Whether it is as it must be.
    pub passed: bool,
    /// What was found, in words.
    pub finding: String,
}

/// A shape's times against the least that this machine could take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RooflineCheck {
    /// The problem.
    pub shape: String,
    /// The temperature of the weights.
    pub temperature: Temperature,
    /// The least seconds that the machine's rates allow.
    pub floor_seconds: f64,
    /// The faster side's median seconds.
    pub seconds: f64,
    /// Whether that is possible.
    pub possible: bool,
}

/// What a course says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CourseReport {
    /// Seconds between two readings of the clock that differ.
    pub clock_resolution: f64,
    /// Seconds that the champion takes to answer a run without jobs.
    pub champion_round_trip: Option<f64>,
    /// The same of the challenger.
    pub challenger_round_trip: Option<f64>,
    /// The size of the cache that weights rotate through: L3, or a GPU's L2.
    pub cache_bytes: u64,
    /// For each shape, the bytes that go through the caches before the same weights come again.
    pub rotated_bytes: Vec<u64>,
    /// Timed outputs of which some elements were computed in float64.
    pub outputs_sampled: u64,
    /// Timed outputs that were compared whole.
    pub outputs_compared: u64,
    /// Seconds that were waited for neighbours to go.
    #[serde(default)]
    pub waited_seconds: f64,
    /// Samples of champion and challenger that were taken again, because they had waited for a processor which others
    /// had.
    #[serde(default)]
    pub retaken: [u64; 2],
    /// What stood around a stranger's process, and what did not; empty where nobody was a stranger.
    #[serde(default)]
    pub guards: Vec<Guard>,
    /// The root mean squares of error over bound in timed outputs, of champion and challenger.
    #[serde(default)]
    pub timed_precision: Option<[f64; 2]>,
    /// The GPU on which both sides computed, where its clock decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
    /// The GPU that was not there, where nothing was timed and all of it is predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foretold: Option<String>,
    /// What a reader should know of the conditions, for example a fence that this machine does not allow.
    pub remarks: Vec<String>,
}

/// A device while a sitting was held on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// The CUDA version of its driver, as 1000 · major + 10 · minor.
    pub driver: i32,
    /// Operations per second that nobody can exceed there.
    pub flops_per_second: f64,
    /// Bytes per second that its memory cannot exceed.
    pub bytes_per_second: f64,
    /// The lowest and the highest clock of its multiprocessors that were read, in cycles per second.
    pub clock: Option<[f64; 2]>,
    /// The same of its memory.
    pub memory_clock: Option<[f64; 2]>,
    /// The least and the most watts.
    pub watts: Option<[f64; 2]>,
    /// The lowest and the highest temperature, in degrees Celsius.
    pub celsius: Option<[f64; 2]>,
    /// What held its clock down at some time.
    pub held_by: Vec<String>,
    /// The most seconds that the whole device was waited for after a run's last event, or for which others were at work
    /// around it.
    pub longest_wait: f64,
    /// What a run of a kernel that does nothing takes behind a latch, where runs are queued behind one; taken off every
    /// run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blank_seconds: Option<f64>,
}

impl std::fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let between = |of: Option<[f64; 2]>, unit: f64, name: &str| {
            of.map(|[low, high]| format!(", {:.0} to {:.0} {name}", low / unit, high / unit)).unwrap_or_default()
        };
        write!(f, "{}, CUDA {}.{}", self.name, self.driver / 1000, self.driver % 1000 / 10)?;
        f.write_str(&between(self.clock, 1e6, "MHz"))?;
        f.write_str(&between(self.memory_clock, 1e6, "MHz of memory"))?;
        f.write_str(&between(self.watts, 1.0, "W"))?;
        f.write_str(&between(self.celsius, 1.0, "°C"))?;
        if !self.held_by.is_empty() {
            write!(f, ", held down by {}", self.held_by.join(" and by "))?;
        }
        match self.blank_seconds {
            None => write!(f, "; waited at most {:.0} µs for it after a run", 1e6 * self.longest_wait),
            Some(blank) => write!(
                f,
                "; runs behind a latch, less the {:.1} µs of one that does nothing; others at work for at most {:.0} µs around a run",
                1e6 * blank,
                1e6 * self.longest_wait
            ),
        }
    }
}

/// How a sitting ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Outcome {
    /// Faster by more than the margin, twice, and no shape too slow.
    Faster,
    /// Certainly slower.
    Slower,
    /// Faster on the whole, but not on these shapes, which are slower than is allowed.
    Mixed {
        /// The shapes.
        shapes: Vec<String>,
    },
    /// Not known to be faster by more than the margin.
    Inconclusive {
        /// What is missing.
        why: String,
    },
    /// A quick probe found this shape too slow to go on.
    Stopped {
        /// The shape.
        shape: String,
        /// What it lost, as a fraction.
        loss: f64,
    },
    /// The sitting's own controls failed: nothing can be said.
    Void {
        /// Which, and how.
        why: Vec<String>,
    },
    /// A contestant failed while the clock was running.
    Faulted {
        /// The side that it runs for.
        side: Side,
        /// What it did.
        fault: Fault,
    },
}

/// A whole sitting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sitting {
    /// The seed that everything random in it was drawn from, drawn itself from the operating system.
    pub seed: u64,
    /// The champion's name.
    pub champion: String,
    /// The challenger's.
    pub challenger: String,
    /// What it was held under.
    pub settings: RefereeSettings,
    /// The clock, the caches and the conditions.
    pub course: CourseReport,
    /// What the budget allows, where there is one.
    #[serde(default)]
    pub scout: Option<Scout>,
    /// The champion against itself.
    pub control: Option<Control>,
    /// The planted slowdown.
    pub plant: Option<Control>,
    /// What the fence costs a stranger, where one of the two is.
    #[serde(default)]
    pub fence: Option<Control>,
    /// The gain that had to be shown, as a fraction.
    pub margin: f64,
    /// The first measurement of the challenger: it decides whether there is a second.
    pub first: Option<Measurement>,
    /// The second, with new seeds, of a challenger that seemed faster: the only figure that is published of it.
    pub second: Option<Measurement>,
    /// Times against the machine's floor.
    pub roofline: Vec<RooflineCheck>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Sitting {
    /// The measurement whose figures may be published: the second where there is one, and none of a void sitting.
    pub fn published(&self) -> Option<&Measurement> {
        match self.outcome {
            Outcome::Void { .. } | Outcome::Faulted { .. } => None,
            _ => self.second.as_ref().or(self.first.as_ref()),
        }
    }
}

/// What a deal asks beyond the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// The gain that must be shown, as a fraction: 0.4 for 1.4×.
    pub least_gain: Option<f64>,
    /// The most that any shape may lose, as a fraction, if stricter than the settings.
    pub most_loss: Option<f64>,
    /// A quick probe before the measurement: a shape that loses more than this, as a fraction, ends it.
    pub probe_loss: Option<f64>,
    /// Seconds that the sitting may take; as long as the settings' looks take where it does not say.
    pub budget_seconds: Option<f64>,
}

/// One thing that was wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wrong {
    /// The problem.
    pub case: String,
    /// Its kind of inputs.
    pub inputs: String,
    /// What was wrong, in words.
    pub what: String,
}

/// How far from float64 a contestant was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    /// The root mean square of error over bound.
    pub rms: f64,
    /// The largest error over bound: above 1 is wrong.
    pub worst: f64,
}

/// What an examination found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correctness {
    /// Who was examined.
    pub contestant: String,
    /// The seed of all inputs, drawn from the operating system and told only now.
    pub seed: u64,
    /// Problems that were computed.
    pub cases: usize,
    /// Problems that the contestant said it cannot do, with its reasons.
    pub unsupported: Vec<String>,
    /// Runs altogether.
    pub runs: usize,
    /// Elements compared with float64.
    pub compared: u64,
    /// Its errors.
    pub precision: Precision,
    /// The champion's on the same inputs, if it was examined beside it.
    pub champion_precision: Option<Precision>,
    /// Whether repeated runs gave the same bits; absent where it does not promise that.
    pub repeated: Option<bool>,
    /// What the champion got wrong on the same questions, if it did: a slower one that is right replaces it.
    #[serde(default)]
    pub champion_wrong: Option<Wrong>,
    /// Tells the program's files that were examined, where it is one.
    #[serde(default)]
    pub program: Option<String>,
    /// What was wrong; the first of each problem.
    pub wrong: Vec<Wrong>,
    /// A crash, a hang or garbage, if that ended it.
    pub fault: Option<Fault>,
}

impl Correctness {
    /// Of someone who was asked nothing yet.
    pub fn new(contestant: &str, seed: u64) -> Self {
        Self {
            contestant: contestant.to_owned(),
            seed,
            cases: 0,
            unsupported: Vec::new(),
            runs: 0,
            compared: 0,
            precision: Precision::default(),
            champion_precision: None,
            repeated: None,
            champion_wrong: None,
            program: None,
            wrong: Vec::new(),
            fault: None,
        }
    }

    /// Whether it may be timed.
    pub fn passed(&self) -> bool {
        self.wrong.is_empty() && self.fault.is_none() && self.cases > 0
    }
}
