//! The sitting: controls, then the duel, then the duel again.
//!
//! A [`Course`] is what the clock runs over: it starts fresh processes, makes a shape ready and takes one sample. The real
//! one is [`super::Pool`]; tests and calibration use a synthetic one with a known truth. Everything that is decided is
//! decided here, from the samples alone.
//!
//! 0. **Scout**, where there is a budget of time: three pairs of the champion's own processes say how much processes differ today and how
//!    long one takes. From that follows how many the budget allows, when they are looked at, and which difference can be seen; it is
//!    said before anything is decided. What was scouted is not used again, so the looks are settled before the first of them.
//! 1. **Control.** The champion against itself, in two processes of its own each time. If its interval leaves out zero and
//!    the difference is beyond the tolerance, it is held again; if that shows one too, the margin grows to cover it, for both sides. A
//!    margin that nobody could clear is void.
//! 2. **Plant.** The champion against itself with 5 % more inside the clock. If that is not found, or found at another
//!    size, twice, the referee is blind today: void.
//! 3. **Fence**, where one of them is a stranger: the champion's own code behind the fence against itself without. What that costs the
//!    margin covers.
//! 4. **Duel.** Looks at 24, 48 and 96 quartets, or those that the scout found, each with its share of α, so it may stop at any of them
//!    for any reason. It stops when the answer is known or the interval is narrow and no shape is unsettled.
//! 5. **Again.** Whoever stops at a good moment has an estimate that flatters. So what seems faster, on the whole or in part, is measured
//!    again with new seeds, stopping for precision only, and has to be so again; that figure is the published one.

use fastrand::Rng;

use super::record::{
    Control, CourseReport, Look, Measurement, Outcome, Pairing, RooflineCheck, Scout, ShapeResult, Side, Sitting,
    Speedup, Stop, Summary, Terms,
};
use super::samples::{Process, Samples};
use super::scout;
use super::seeds::derive;
use super::settings::{RefereeSettings, Temperature, Timing};
use crate::contestant::Fault;
use crate::{Error, Result};

/// Processes of a deal's quick probe.
const PROBE_PROCESSES: usize = 2;
/// The part of a budget that may be spent on waiting for neighbours to go.
const WAITING: f64 = 0.25;

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

    /// Whether one of the two is a stranger, so that what the fence costs has to be known.
    fn has_strangers(&self) -> bool {
        false
    }

    /// The time, in seconds since some moment, by which a budget is kept.
    fn now(&self) -> f64;

    /// Waits until the machine is quiet, for so many seconds at most. Says how long it waited.
    fn wait_for_quiet(&mut self, _most: f64) -> f64 {
        0.0
    }

    /// Tells whoever watches how it goes.
    fn say(&mut self, _line: &str) {}
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
        scout: None,
        control: None,
        plant: None,
        fence: None,
        margin: settings.timing.least_margin,
        first: None,
        second: None,
        roofline: Vec::new(),
        outcome: Outcome::Void { why: Vec::new() },
    };
    let quiet = terms.budget_seconds.map_or(0.0, |budget| WAITING * budget);
    let mut referee = Referee { course, timing: settings.timing.clone(), terms, bias: 0.0, allowance: None, quiet };
    match referee.proceed(&mut sitting) {
        Ok(outcome) => sitting.outcome = outcome,
        // A champion that fails is no win for the challenger.
        Err(Halt::Fault(Side::Champion, fault)) => {
            sitting.outcome = Outcome::Void { why: vec![format!("the champion failed: {fault}")] };
        }
        Err(Halt::Fault(side, fault)) => sitting.outcome = Outcome::Faulted { side, fault },
        Err(Halt::Error(error)) => return Err(error),
    }
    sitting.settings.timing = referee.timing.clone();
    sitting.course = referee.course.report();
    Ok(sitting)
}

struct Referee<'a> {
    course: &'a mut dyn Course,
    timing: Timing,
    terms: &'a Terms,
    /// What the control showed twice: neither side is believed below it.
    bias: f64,
    /// Seconds that one measurement may take, where there is a budget.
    allowance: Option<f64>,
    /// Seconds that may still be waited for neighbours to go.
    quiet: f64,
}

impl Referee<'_> {
    fn proceed(&mut self, sitting: &mut Sitting) -> Result<Outcome, Halt> {
        if let Some(budget) = self.terms.budget_seconds {
            let scout = self.scout(budget, derive(sitting.seed, &[0]))?;
            self.course.say(&scout.to_string());
            self.timing.looks.clone_from(&scout.looks);
            self.allowance = Some(scout.seconds_a_measurement);
            sitting.scout = Some(scout);
        }
        if let Some(void) = self.check_itself(sitting)? {
            return Ok(void);
        }
        let (margin, rules) = (sitting.margin.max(self.terms.least_gain.unwrap_or(0.0)), sitting.margin);
        sitting.margin = margin;
        let first = self.measure(Pairing::Duel, derive(sitting.seed, &[3]), |referee, summary| {
            referee.judge(summary, margin).is_some()
        })?;
        let outcome = self.conclude(&first, margin);
        let promising = first.at(self.timing.decides).geomean.low > 1.0 + rules && first.stopped != Stop::Probe;
        let void = self.judge_against_the_machine(sitting, &first)?;
        sitting.first = Some(first);
        if let Some(void) = void {
            return Ok(void);
        }
        if !promising {
            return Ok(outcome);
        }
        let second = self.measure(Pairing::Duel, derive(sitting.seed, &[4]), |_, _| false)?;
        let again = self.conclude(&second, margin);
        let (estimate, void) =
            (second.at(self.timing.decides).geomean, self.judge_against_the_machine(sitting, &second)?);
        sitting.second = Some(second);
        if let Some(void) = void {
            return Ok(void);
        }
        Ok(match (outcome, again) {
            (Outcome::Inconclusive { .. }, Outcome::Faster) => Outcome::Inconclusive {
                why: format!("it did not clear the margin at first; measured again with new seeds it is {estimate}"),
            },
            (Outcome::Mixed { .. }, Outcome::Faster) => Outcome::Inconclusive {
                why: format!("a shape was too slow at first and is not with new seeds: {estimate}"),
            },
            (_, Outcome::Inconclusive { .. }) => Outcome::Inconclusive {
                why: format!("it seemed faster, but measured again with new seeds it is {estimate}"),
            },
            (_, other) => other,
        })
    }

    /// Control, plant and fence. Sets the margin of the rules; gives an outcome if nothing can be decided today.
    fn check_itself(&mut self, sitting: &mut Sitting) -> Result<Option<Outcome>, Halt> {
        let mut control = self.control(derive(sitting.seed, &[1]))?;
        if !control.passed {
            self.course.say(&format!("{}; it is held again", control.finding));
            let again = self.control(derive(sitting.seed, &[1, 1]))?;
            let far = |control: &Control| noise(&control.measurement, self.timing.decides);
            if !again.passed {
                self.bias = far(&again).max(far(&control));
            }
            control = again;
        }
        let decides = self.timing.decides;
        sitting.margin = sitting.margin.max(noise(&control.measurement, decides)).max(self.bias);
        let finding = control.finding.clone();
        sitting.control = Some(control);
        if sitting.margin > self.timing.widest_margin {
            return Ok(Some(Outcome::Void { why: vec![finding] }));
        }
        let mut plant = self.plant(derive(sitting.seed, &[2]))?;
        if !plant.passed {
            self.course.say(&format!("{}; it is planted again", plant.finding));
            plant = self.plant(derive(sitting.seed, &[2, 1]))?;
        }
        let missed = (!plant.passed).then(|| Outcome::Void { why: vec![plant.finding.clone()] });
        sitting.plant = Some(plant);
        if missed.is_none() && self.course.has_strangers() {
            let fence = self.fence(derive(sitting.seed, &[5]))?;
            sitting.margin = sitting.margin.max(noise(&fence.measurement, decides));
            sitting.fence = Some(fence);
        }
        Ok(missed)
    }

    /// Three pairs of the champion's processes: how much they differ, how long they take, and what follows.
    fn scout(&mut self, budget: f64, seed: u64) -> Result<Scout, Halt> {
        let start = self.course.now();
        let mut samples = Samples::new(self.course.shapes(), self.timing.quartets_per_process);
        let mut rng = Rng::with_seed(seed);
        for process in 0..scout::PROCESSES {
            self.process(Pairing::Control, derive(seed, &[process as u64]), &mut rng, &mut samples)?;
        }
        let seconds = self.course.now() - start;
        let quartets = samples.of_processes(self.timing.decides);
        Ok(scout::plan(&quartets, seconds, budget, &self.timing))
    }

    /// Times that are impossible, or a champion that is not itself beside this challenger.
    fn judge_against_the_machine(
        &mut self,
        sitting: &mut Sitting,
        duel: &Measurement,
    ) -> Result<Option<Outcome>, Halt> {
        sitting.roofline = self.roofline(duel);
        if let Some(void) = impossible(&sitting.roofline) {
            return Ok(Some(void));
        }
        let Some(control) = &sitting.control else { return Ok(None) };
        if self.slowed(&control.measurement, duel) <= self.timing.champion_tolerance {
            return Ok(None);
        }
        // Machines drift. Whoever was slowed by its rival is as fast as before without it.
        let after = self.measure(Pairing::Control, derive(duel.seed, &[6]), |_, _| true)?;
        let slowed = self.slowed(&after, duel);
        Ok((slowed > self.timing.champion_tolerance).then(|| Outcome::Void {
            why: vec![format!(
                "the champion took {:.0} % longer beside the challenger than beside itself, before and after: something slows it",
                100.0 * slowed
            )],
        }))
    }

    /// How much longer the champion took in one measurement than in another, as a fraction.
    fn slowed(&self, alone: &Measurement, beside: &Measurement) -> f64 {
        let pairs = alone.at(self.timing.decides).shapes.iter().zip(&beside.at(self.timing.decides).shapes);
        let logs: Vec<f64> =
            pairs.map(|(alone, beside)| (beside.champion_seconds / alone.champion_seconds).ln()).collect();
        (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp_m1()
    }

    /// The champion's own code behind the fence against itself without.
    fn fence(&mut self, seed: u64) -> Result<Control, Halt> {
        let wide = self.timing.least_margin;
        let measurement = self.measure(Pairing::Fence, seed, |_, summary| half_width(summary.geomean) <= wide)?;
        let found = measurement.at(self.timing.decides).geomean;
        let finding = format!("the champion's own code behind the fence, against itself without: {found}");
        Ok(Control { measurement, passed: true, finding })
    }

    fn control(&mut self, seed: u64) -> Result<Control, Halt> {
        let (decides, wide) = (self.timing.decides, self.timing.least_margin);
        // Narrower than the margin is narrow enough for a control.
        let measurement = self.measure(Pairing::Control, seed, |_, summary| half_width(summary.geomean) <= wide)?;
        let found = measurement.at(decides).geomean;
        let shows = (found.low > 1.0 || found.high < 1.0) && found.estimate.ln().abs() > self.timing.control_tolerance;
        let finding = match shows {
            true => {
                format!("the champion against itself shows a difference: {found}")
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
        let near = (found.estimate / truth).ln().abs() <= self.timing.plant_tolerance + self.bias;
        let passed = found.high < 1.0 && (near || (found.low <= truth && truth <= found.high));
        let percent = 100.0 * self.timing.plant;
        let finding = match passed {
            true => format!("the planted slowdown of {percent} % was found: {found}"),
            false => {
                format!("the planted slowdown of {percent} % was missed: {found}")
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
        let (start, most) = (self.course.now(), self.timing.looks.last().copied().unwrap_or(0));
        loop {
            self.quiet -= self.course.wait_for_quiet(self.quiet);
            let process = samples.processes();
            self.process(pairing, derive(seed, &[process as u64]), &mut rng, &mut samples)?;
            let probed = pairing == Pairing::Duel && samples.processes() == PROBE_PROCESSES;
            if let Some(loss) = self.terms.probe_loss.filter(|_| probed) {
                let summary = samples.summary(self.timing.decides, &self.timing, seed);
                if summary.shapes.iter().any(|s| s.speedup.estimate < 1.0 - loss) {
                    return Ok(samples.measurement(pairing, seed, &self.timing, looks, Stop::Probe));
                }
            }
            if !self.timing.looks.contains(&samples.quartets()) {
                continue;
            }
            let summary = samples.summary(self.timing.decides, &self.timing, seed);
            self.course.say(&format!(
                "{pairing}: {} after {} of at most {most} quartets",
                summary.geomean,
                samples.quartets()
            ));
            looks.push(Look { quartets: samples.quartets(), geomean: summary.geomean });
            let stop = if decided(self, &summary) {
                Stop::Decided
            } else if self.is_precise(&summary, pairing) {
                Stop::Precise
            } else if looks.len() == self.timing.looks.len() {
                Stop::LastLook
            } else if self.allowance.is_some_and(|seconds| self.course.now() - start > seconds) {
                Stop::Budget
            } else {
                continue;
            };
            return Ok(samples.measurement(pairing, seed, &self.timing, looks, stop));
        }
    }

    /// Whether more would not change what is known: the geomean to within the precision, and of a duel no shape whose interval holds the
    /// most that it may lose.
    fn is_precise(&self, summary: &Summary, pairing: Pairing) -> bool {
        let limit = 1.0 - self.most_loss();
        let unsettled = |shape: &ShapeResult| shape.speedup.low < limit && limit <= shape.speedup.high;
        let settled = pairing != Pairing::Duel || !summary.shapes.iter().any(unsettled);
        settled && half_width(summary.geomean) <= self.timing.precision
    }

    fn most_loss(&self) -> f64 {
        self.terms.most_loss.map_or(self.timing.most_loss, |loss| loss.min(self.timing.most_loss))
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
        let most_loss = self.most_loss();
        if summary.geomean.high < 1.0 / (1.0 + self.bias) {
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

/// What the champion may seem to differ from itself by, as a fraction: the far end of the control's interval, or of the fence's.
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
