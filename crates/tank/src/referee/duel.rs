//! The sitting: controls, then the duel, then the duel again.
//!
//! A [`Course`] is what the clock runs over: it starts fresh processes, makes a shape ready and takes one sample. The real
//! one is [`super::Pool`]; tests and calibration use a synthetic one with a known truth. Everything that is decided is
//! decided here, from the samples alone.
//!
//! 1. **Control.** The champion against itself, in two processes of its own each time. If its interval leaves out zero and
//!    the difference is beyond the tolerance, the referee is biased today: void.
//! 2. **Plant.** The champion against itself with 5 % more inside the clock. If that is not found, or found at another
//!    size, the referee is blind today: void.
//! 3. **Duel.** Looks at 24, 48 and 96 quartets, each with a third of α, so it may stop at any of them for any reason. It
//!    stops when the answer is known or the interval is narrow.
//! 4. **Again.** Whoever stops at a good moment has an estimate that flatters. So a winner is measured again with new
//!    seeds, stopping for precision only, and has to win again; that figure is the published one.

use fastrand::Rng;

use super::record::{
    Control, CourseReport, Look, Measurement, Outcome, Pairing, RooflineCheck, ShapeResult, Side, Sitting, Speedup,
    Stop, Summary, Terms,
};
use super::samples::{Process, Samples};
use super::seeds::derive;
use super::settings::{RefereeSettings, Temperature, Timing};
use crate::contestant::Fault;
use crate::{Error, Result};

/// Processes of a deal's quick probe.
const PROBE_PROCESSES: usize = 2;

/// Why a course could not go on.
#[derive(Debug)]
pub enum Halt {
    /// A contestant's fault.
    Fault(Side, Fault),
    /// Not a contestant's fault.
    Error(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Halt::Error(error)
    }
}

/// The least seconds that a shape can take with cold and with warm weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// With cold weights: arithmetic, or bytes from memory.
    pub cold: f64,
    /// With warm weights: arithmetic alone.
    pub warm: f64,
}

/// What the clock runs over.
pub trait Course {
    /// The names of champion and challenger.
    fn names(&self) -> [String; 2];

    /// The shapes, as they are written everywhere.
    fn shapes(&self) -> Vec<String>;

    /// Starts a fresh process for each side of a pairing.
    fn enter(&mut self, pairing: Pairing, seed: u64) -> Result<(), Halt>;

    /// Makes both sides ready for a shape.
    fn prepare(&mut self, shape: usize) -> Result<(), Halt>;

    /// Takes one sample of the shape made ready last: seconds for one computation.
    fn sample(&mut self, side: Side, temperature: Temperature) -> Result<f64, Halt>;

    /// Ends both processes, with what is checked last.
    fn leave(&mut self) -> Result<(), Halt>;

    /// The least that each shape can take, if the machine's rates are known.
    fn floors(&self) -> Option<Vec<Floor>>;

    /// The conditions.
    fn report(&self) -> CourseReport;
}

/// Holds a sitting. A contestant's fault is an outcome; an error is nobody's and says what to do.
pub fn sit(course: &mut dyn Course, settings: &RefereeSettings, terms: &Terms, seed: u64) -> Result<Sitting> {
    settings.timing.check()?;
    if course.shapes().is_empty() {
        let reason = "a sitting needs at least one shape to time".to_owned();
        return Err(Error::Settings { what: "the problem set", reason });
    }
    let [champion, challenger] = course.names();
    let mut sitting = Sitting {
        seed,
        champion,
        challenger,
        settings: settings.clone(),
        course: CourseReport::default(),
        control: None,
        plant: None,
        margin: settings.timing.least_margin,
        first: None,
        second: None,
        roofline: Vec::new(),
        outcome: Outcome::Void { why: Vec::new() },
    };
    let mut referee = Referee { course, timing: &settings.timing, terms };
    match referee.proceed(&mut sitting) {
        Ok(outcome) => sitting.outcome = outcome,
        // A champion that fails is no win for the challenger.
        Err(Halt::Fault(Side::Champion, fault)) => {
            sitting.outcome = Outcome::Void { why: vec![format!("the champion failed: {fault}")] };
        }
        Err(Halt::Fault(side, fault)) => sitting.outcome = Outcome::Faulted { side, fault },
        Err(Halt::Error(error)) => return Err(error),
    }
    sitting.course = referee.course.report();
    Ok(sitting)
}

struct Referee<'a> {
    course: &'a mut dyn Course,
    timing: &'a Timing,
    terms: &'a Terms,
}

impl Referee<'_> {
    fn proceed(&mut self, sitting: &mut Sitting) -> Result<Outcome, Halt> {
        let control = self.control(derive(sitting.seed, &[1]))?;
        let noise = noise(&control.measurement, self.timing.decides);
        sitting.margin = sitting.margin.max(noise).max(self.terms.least_gain.unwrap_or(0.0));
        let plant = self.plant(derive(sitting.seed, &[2]))?;
        let failed: Vec<String> =
            [&control, &plant].into_iter().filter(|c| !c.passed).map(|c| c.finding.clone()).collect();
        (sitting.control, sitting.plant) = (Some(control), Some(plant));
        if !failed.is_empty() {
            return Ok(Outcome::Void { why: failed });
        }
        let margin = sitting.margin;
        let first = self.measure(Pairing::Duel, derive(sitting.seed, &[3]), |referee, summary| {
            referee.judge(summary, margin).is_some()
        })?;
        let outcome = self.conclude(&first, margin);
        sitting.roofline = self.roofline(&first);
        let faster = outcome == Outcome::Faster;
        sitting.first = Some(first);
        if let Some(void) = impossible(&sitting.roofline) {
            return Ok(void);
        }
        if !faster {
            return Ok(outcome);
        }
        let second = self.measure(Pairing::Duel, derive(sitting.seed, &[4]), |_, _| false)?;
        let again = self.conclude(&second, margin);
        sitting.roofline = self.roofline(&second);
        let estimate = second.at(self.timing.decides).geomean;
        sitting.second = Some(second);
        if let Some(void) = impossible(&sitting.roofline) {
            return Ok(void);
        }
        Ok(match again {
            Outcome::Inconclusive { .. } => Outcome::Inconclusive {
                why: format!("it seemed faster, but measured again with new seeds it is {estimate}"),
            },
            other => other,
        })
    }

    fn control(&mut self, seed: u64) -> Result<Control, Halt> {
        let (decides, wide) = (self.timing.decides, self.timing.least_margin);
        // Narrower than the margin is narrow enough for a control.
        let measurement = self.measure(Pairing::Control, seed, |_, summary| half_width(summary.geomean) <= wide)?;
        let found = measurement.at(decides).geomean;
        let shows = (found.low > 1.0 || found.high < 1.0) && found.estimate.ln().abs() > self.timing.control_tolerance;
        let finding = match shows {
            true => {
                format!("the champion against itself shows a difference: {found}; quieten the machine and sit again")
            }
            false => format!("the champion against itself: {found}"),
        };
        Ok(Control { measurement, passed: !shows, finding })
    }

    fn plant(&mut self, seed: u64) -> Result<Control, Halt> {
        let decides = self.timing.decides;
        let measurement = self.measure(Pairing::Plant, seed, |_, summary| summary.geomean.high < 1.0)?;
        let found = measurement.at(decides).geomean;
        let truth = 1.0 / (1.0 + self.timing.plant);
        let near = (found.estimate / truth).ln().abs() <= self.timing.plant_tolerance;
        let passed = found.high < 1.0 && (near || (found.low <= truth && truth <= found.high));
        let percent = 100.0 * self.timing.plant;
        let finding = match passed {
            true => format!("the planted slowdown of {percent} % was found: {found}"),
            false => {
                format!("the planted slowdown of {percent} % was missed: {found}; quieten the machine and sit again")
            }
        };
        Ok(Control { measurement, passed, finding })
    }

    /// Measures a pairing until `decided` says so of the summary that decides, or it is precise, or it is the last look.
    fn measure(
        &mut self,
        pairing: Pairing,
        seed: u64,
        decided: impl Fn(&Self, &Summary) -> bool,
    ) -> Result<Measurement, Halt> {
        let mut samples = Samples::new(self.course.shapes(), self.timing.quartets_per_process);
        let mut looks = Vec::new();
        let mut rng = Rng::with_seed(seed);
        loop {
            let process = samples.processes();
            self.process(pairing, derive(seed, &[process as u64]), &mut rng, &mut samples)?;
            let probed = pairing == Pairing::Duel && samples.processes() == PROBE_PROCESSES;
            if let Some(loss) = self.terms.probe_loss.filter(|_| probed) {
                let summary = samples.summary(self.timing.decides, self.timing, seed);
                if summary.shapes.iter().any(|s| s.speedup.estimate < 1.0 - loss) {
                    return Ok(samples.measurement(pairing, seed, self.timing, looks, Stop::Probe));
                }
            }
            if !self.timing.looks.contains(&samples.quartets()) {
                continue;
            }
            let summary = samples.summary(self.timing.decides, self.timing, seed);
            looks.push(Look { quartets: samples.quartets(), geomean: summary.geomean });
            let stop = if half_width(summary.geomean) <= self.timing.precision {
                Stop::Precise
            } else if decided(self, &summary) {
                Stop::Decided
            } else if looks.len() == self.timing.looks.len() {
                Stop::LastLook
            } else {
                continue;
            };
            return Ok(samples.measurement(pairing, seed, self.timing, looks, stop));
        }
    }

    /// One pair of fresh processes: every shape in random order, every quartet in random order, cold and warm in turn.
    fn process(&mut self, pairing: Pairing, seed: u64, rng: &mut Rng, samples: &mut Samples) -> Result<(), Halt> {
        self.course.enter(pairing, seed)?;
        let mut order: Vec<usize> = (0..samples.shapes.len()).collect();
        rng.shuffle(&mut order);
        let mut process = Process::new(order.len());
        for shape in order {
            self.course.prepare(shape)?;
            for side in [Side::Champion, Side::Challenger] {
                self.course.sample(side, Temperature::Warm)?;
            }
            for _ in 0..self.timing.quartets_per_process {
                for temperature in [Temperature::Cold, Temperature::Warm] {
                    self.quartet(shape, temperature, rng, &mut process)?;
                }
            }
        }
        self.course.leave()?;
        Ok(samples.push(process)?)
    }

    fn quartet(
        &mut self,
        shape: usize,
        temperature: Temperature,
        rng: &mut Rng,
        process: &mut Process,
    ) -> Result<(), Halt> {
        let champion_outside = rng.bool();
        let (outside, inside) = match champion_outside {
            true => (Side::Champion, Side::Challenger),
            false => (Side::Challenger, Side::Champion),
        };
        let mut seconds = [0.0; 4];
        for (seconds, side) in seconds.iter_mut().zip([outside, inside, inside, outside]) {
            *seconds = self.course.sample(side, temperature)?;
        }
        let (outside, inside) = ([seconds[0], seconds[3]], [seconds[1], seconds[2]]);
        let (champion, challenger) = if champion_outside { (outside, inside) } else { (inside, outside) };
        process.add(shape, temperature, champion, challenger);
        Ok(())
    }

    /// What a summary settles, if it settles anything.
    fn judge(&self, summary: &Summary, margin: f64) -> Option<Outcome> {
        let most_loss = self.terms.most_loss.map_or(self.timing.most_loss, |loss| loss.min(self.timing.most_loss));
        if summary.geomean.high < 1.0 {
            return Some(Outcome::Slower);
        }
        if summary.geomean.low <= 1.0 + margin {
            return None;
        }
        let too_slow = |s: &&ShapeResult| s.speedup.high < 1.0 - most_loss;
        let slow: Vec<String> = summary.shapes.iter().filter(too_slow).map(|s| s.shape.clone()).collect();
        if !slow.is_empty() {
            return Some(Outcome::Mixed { shapes: slow });
        }
        summary.shapes.iter().all(|s| s.speedup.low >= 1.0 - most_loss).then_some(Outcome::Faster)
    }

    /// What a finished measurement comes to.
    fn conclude(&self, measurement: &Measurement, margin: f64) -> Outcome {
        let summary = measurement.at(self.timing.decides);
        if measurement.stopped == Stop::Probe {
            let slowest = summary.shapes.iter().min_by(|a, b| a.speedup.estimate.total_cmp(&b.speedup.estimate));
            let (shape, loss) = slowest.map_or((String::new(), 0.0), |s| (s.shape.clone(), 1.0 - s.speedup.estimate));
            return Outcome::Stopped { shape, loss };
        }
        self.judge(summary, margin).unwrap_or_else(|| {
            let found = summary.geomean;
            let why = match found.low > 1.0 + margin {
                true => {
                    "faster on the whole, but a shape may be slower than is allowed: the evidence does not settle it"
                }
                false => "the interval does not clear the margin",
            };
            Outcome::Inconclusive { why: format!("{why}: {found}, margin {:.2} %", 100.0 * margin) }
        })
    }

    fn roofline(&self, measurement: &Measurement) -> Vec<RooflineCheck> {
        let Some(floors) = self.course.floors() else { return Vec::new() };
        let possible = 1.0 - self.timing.floor_tolerance;
        let checks = |(index, floor): (usize, &Floor)| {
            [(Temperature::Cold, floor.cold), (Temperature::Warm, floor.warm)].map(|(temperature, floor_seconds)| {
                let shape = &measurement.at(temperature).shapes[index];
                let seconds = shape.champion_seconds.min(shape.challenger_seconds);
                let possible = seconds >= possible * floor_seconds;
                RooflineCheck { shape: shape.shape.clone(), temperature, floor_seconds, seconds, possible }
            })
        };
        floors.iter().take(measurement.cold.shapes.len()).enumerate().flat_map(checks).collect()
    }
}

/// What the champion may seem to differ from itself by, as a fraction: the far end of the control's interval.
fn noise(control: &Measurement, decides: Temperature) -> f64 {
    let found = control.at(decides).geomean;
    found.high.ln().abs().max(found.low.ln().abs()).exp_m1()
}

/// Half the width of an interval, as a fraction.
fn half_width(found: Speedup) -> f64 {
    (0.5 * (found.high.ln() - found.low.ln())).exp_m1()
}

fn impossible(checks: &[RooflineCheck]) -> Option<Outcome> {
    let why = |check: &RooflineCheck| {
        let RooflineCheck { shape, floor_seconds, seconds, .. } = check;
        format!("{shape} took {seconds:.3e} s, but this machine cannot take less than {floor_seconds:.3e} s")
    };
    let why: Vec<String> = checks.iter().filter(|check| !check.possible).map(why).collect();
    (!why.is_empty()).then_some(Outcome::Void { why })
}
