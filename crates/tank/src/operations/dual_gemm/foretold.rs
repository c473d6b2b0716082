//! A referee for a GPU that is not there. It times nothing: seconds are what the model of the kernels expects, an
//! examination is one tile of every problem, or a small layer, in the simulator against float64, and what it decides is
//! a prediction, with the model's error for its interval.

use hammerhead::{Error as Refused, Problem};
use referee::contestant::Fault;
use referee::{
    Correctness, CourseReport, Measurement, Outcome, Pairing, Precision, RefereeSettings, ShapeResult, Sitting,
    Speedup, Stop, Summary, Terms, Wrong,
};
use testkit::counters::{counters, small_layer};
use testkit::verify::Report;

use crate::court::{Baseline, BaselineShape, Referee, Swimmer};
use crate::entry::{Entry, Way};
use crate::{Error, Result};

use super::ProblemSpec;
use super::planner::simulator;

/// What a predicted time may be off by, either way: docs/blackwell.md says where that is from.
const ERROR: f64 = 1.25;

/// The referee of a season whose backend is foretold.
pub struct Foretold {
    device: &'static gpu::Foretold,
    /// Each with its name.
    problems: Vec<(String, Problem)>,
    settings: RefereeSettings,
    threads: usize,
}

impl Foretold {
    /// The referee for these problems, if that is what the backend asks for.
    pub fn of(
        problems: Vec<ProblemSpec>,
        backend: &str,
        threads: Option<usize>,
        settings: &RefereeSettings,
    ) -> Result<Option<Self>> {
        let Some(device) = gpu::Foretold::by_name(backend) else { return Ok(None) };
        let problems = problems.iter().map(|spec| Ok((spec.name()?, spec.problem()?))).collect::<Result<_>>()?;
        Ok(Some(Self { device, problems, settings: settings.clone(), threads: threads.unwrap_or(1) }))
    }

    /// An entry's ways; a program cannot be foretold.
    fn ways<'a>(&self, swimmer: Swimmer<'a>) -> Result<&'a [Way]> {
        match swimmer.entry {
            Entry::Builtin { ways } => Ok(ways),
            Entry::Program { .. } => Err(Error::Rules {
                what: format!("'{}'", swimmer.name),
                problem: "it is a program, and what one would take on a GPU that is not there nobody can say"
                    .to_owned(),
                remedy: "pitch configurations, or play on the GPU itself".to_owned(),
            }),
        }
    }

    /// What the model expects of an entry, problem by problem.
    fn seconds(&self, swimmer: Swimmer<'_>) -> Result<Vec<f64>> {
        let priced = |((_, problem), way): (&(String, Problem), &Way)| {
            Ok(way.plan(problem.clone(), self.threads)?.cost().seconds)
        };
        self.problems.iter().zip(self.ways(swimmer)?).map(priced).collect()
    }

    fn summary(&self, champion: &[f64], challenger: &[f64]) -> Summary {
        let between = |ratio: f64| Speedup { estimate: ratio, low: ratio / ERROR, high: ratio * ERROR };
        let shape = |(((name, _), old), new): ((&(String, Problem), &f64), &f64)| ShapeResult {
            shape: name.clone(),
            champion_seconds: *old,
            challenger_seconds: *new,
            speedup: between(old / new),
            quartets: Vec::new(),
        };
        let shapes: Vec<ShapeResult> = self.problems.iter().zip(champion).zip(challenger).map(shape).collect();
        let logs: f64 = shapes.iter().map(|shape| shape.speedup.estimate.ln()).sum();
        Summary { geomean: between((logs / shapes.len() as f64).exp()), shapes }
    }

    /// How a prediction ends, by the margins that sittings have.
    fn outcome(&self, summary: &Summary, margin: f64, terms: &Terms) -> Outcome {
        let most_loss = terms.most_loss.unwrap_or(self.settings.timing.most_loss).min(self.settings.timing.most_loss);
        let slow = summary.shapes.iter().filter(|shape| shape.speedup.estimate < 1.0 - most_loss);
        let slow: Vec<String> = slow.map(|shape| shape.shape.clone()).collect();
        match summary.geomean {
            Speedup { high, .. } if high < 1.0 => Outcome::Slower,
            Speedup { low, .. } if low <= 1.0 + margin => {
                let why = format!("predicted {}: not beyond what the model may be off by", summary.geomean);
                Outcome::Inconclusive { why }
            }
            _ if slow.is_empty() => Outcome::Faster,
            _ => Outcome::Mixed { shapes: slow },
        }
    }

    /// One tile of a problem in the simulator, or a small layer.
    fn examined(&self, (name, problem): &(String, Problem), way: &Way, found: &mut Correctness) -> Result<()> {
        let plan = way.plan(problem.clone(), self.threads)?;
        let family = self.device.family().name();
        let unknown = || hammerhead::Error::UnknownName {
            what: "simulator of family",
            name: family.to_owned(),
            known: gpu::simulated::NAME.to_owned(),
        };
        let simulator = simulator(self.device).ok_or_else(unknown)?;
        found.runs += 1;
        found.cases += 1;
        let (what, report): (_, Result<Report, Refused>) = match problem.whole() {
            Some(_) => ("a small layer", small_layer(simulator, plan.problem(), plan.config())),
            None => ("a tile", counters(simulator, plan.problem(), plan.config()).map(|(_, report)| report)),
        };
        let wrong = match report {
            Ok(report) => {
                found.compared += report.compared as u64;
                found.precision = Precision {
                    rms: found.precision.rms.max(report.rms_ratio),
                    worst: found.precision.worst.max(report.max_ratio),
                };
                report.first.map(|failure| failure.to_string())
            }
            Err(error) => Some(error.to_string()),
        };
        let case = format!("{what} of {name} in the simulator");
        found.wrong.extend(wrong.map(|what| Wrong { case, inputs: "realistic".to_owned(), what }));
        Ok(())
    }
}

impl Referee for Foretold {
    fn baseline(&mut self, champion: Swimmer<'_>, seed: u64) -> Result<Baseline> {
        let examined = self.examine(champion, champion, seed)?;
        if let Some(wrong) = examined.wrong.first() {
            return Ok(Baseline::wrong(format!("{}: {}", wrong.case, wrong.what)));
        }
        let (flops, bytes) = self.device.facts().ceilings();
        let shape = |((name, problem), seconds): (&(String, Problem), f64)| BaselineShape {
            problem: name.clone(),
            seconds,
            floor_seconds: Some((problem.flops() / flops).max(problem.bytes() / bytes)),
            flops: problem.flops(),
            bytes: problem.bytes(),
        };
        let seconds = self.seconds(champion)?;
        let shapes = self.problems.iter().zip(seconds).map(shape).collect();
        Ok(Baseline { shapes, flops_per_second: Some(flops), bytes_per_second: Some(bytes), wrong: None })
    }

    fn examine(&mut self, _champion: Swimmer<'_>, challenger: Swimmer<'_>, seed: u64) -> Result<Correctness> {
        let mut found = Correctness::new(challenger.name, seed);
        match self.ways(challenger) {
            Ok(ways) => {
                for (problem, way) in self.problems.iter().zip(ways) {
                    self.examined(problem, way, &mut found)?;
                }
            }
            Err(error) => {
                let problem = self.problems.first().map(|(name, _)| name.clone()).unwrap_or_default();
                found.fault = Some(Fault::Unsupported { problem, reason: error.to_string() });
            }
        }
        Ok(found)
    }

    fn sit(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, terms: &Terms, seed: u64) -> Result<Sitting> {
        let summary = self.summary(&self.seconds(champion)?, &self.seconds(challenger)?);
        let rules = self.settings.timing.least_margin;
        let margin = rules.max(terms.least_gain.unwrap_or(0.0));
        let outcome = self.outcome(&summary, margin, terms);
        let promising = summary.geomean.low > 1.0 + rules;
        let predicted = Measurement {
            pairing: Pairing::Duel,
            seed,
            processes: 0,
            quartets: 0,
            confidence: 0.0,
            cold: summary.clone(),
            warm: summary,
            champion: Vec::new(),
            looks: Vec::new(),
            stopped: Stop::Decided,
        };
        let device = self.device.facts().name.clone();
        Ok(Sitting {
            seed,
            champion: champion.name.to_owned(),
            challenger: challenger.name.to_owned(),
            settings: self.settings.clone(),
            course: CourseReport { foretold: Some(device), ..CourseReport::default() },
            scout: None,
            control: None,
            plant: None,
            fence: None,
            margin,
            // There is no second measurement of what was not measured once; what is crowned is crowned as a prediction.
            second: promising.then(|| predicted.clone()),
            first: Some(predicted),
            roofline: Vec::new(),
            outcome,
        })
    }
}
