//! The sitting: controls, then the duel, then the duel again.
//!
//! A [`Course`] is what the clock runs over: it starts fresh processes, makes a shape ready and takes one sample. The
//! real one is [`crate::Pool`]; tests and calibration use a synthetic one with a known truth. Everything that is
//! decided is decided here, from the samples alone.
//!
//! 0. **Scout**, where there is a budget of time: three pairs of the champion's own processes say how much processes
//!    differ today and how long one takes. From that follows how many the budget allows, when they are looked at, and
//!    which difference can be seen; it is said before anything is decided. What was scouted is not used again, so the
//!    looks are settled before the first of them.
//! 1. **Control.** The champion against itself, in two processes of its own each time. If its interval leaves out zero
//!    and the difference is beyond the tolerance, it is held again; if that shows one too, the referee favours a side,
//!    and is void if by more than a challenger could make up for.
//! 2. **Plant.** The champion against itself with more inside the clock: 5 %, or as much as the control's interval says
//!    that can be seen. If that is not found, or found at another size, twice, the referee is blind today: void.
//! 3. **Fence**, where one of them is a stranger: the champion's own code behind the fence against itself without.
//! 4. **Duel.** Looks at 24, 48 and 96 quartets, or those that the budget's rest allows, each with its share of α, so
//!    it may stop at any of them for any reason. It stops when the answer is known, when the interval leaves room for
//!    neither a gain nor a loss that would count, or when it is narrow and no shape is unsettled.
//! 5. **Again.** Whoever stops at a good moment has an estimate that flatters. So what seems faster, on the whole or in
//!    part, is measured again with new seeds, stopping for precision only, and has to be so again; that figure is the
//!    published one. How precise is settled before, by how far the first was beyond the margin.
//!
//! **The margin** that a duel has to clear is what the referee itself may be off by: what the control shows, and how
//! well it knows that, taken together with the duel's own interval as the errors of two independent measurements are. A
//! noisy machine widens both, and a gain that is large beside them is still found; noise alone is no reason for VOID.
//! Whoever slows its rival gains nothing: what the champion took longer beside the challenger than beside itself is
//! added to the margin.

use fastrand::Rng;

use crate::contestant::Fault;
use crate::disturbances::Disturbances;
use crate::record::{
    Control, CourseReport, Look, Measurement, Outcome, Pairing, RooflineCheck, Scout, ShapeResult, Side, Sitting,
    Speedup, Stop, Summary, Terms,
};
use crate::samples::{Process, Samples, Take};
use crate::scout;
use crate::seeds::derive;
use crate::settings::{RefereeSettings, Temperature, Timing};
use crate::{Error, Result, stats};

/// Processes of a deal's quick probe.
const PROBE_PROCESSES: usize = 2;
/// The part of a budget that may be spent on waiting for neighbours to go.
const WAITING: f64 = 0.1;
/// Seconds that are waited for neighbours at a time. Whoever has not gone by then may stay for hours.
const PATIENCE: f64 = 2.0;
/// Processes that are measured before they are waited for again, if that was in vain; twice as many each time.
const UNTIL_NEXT_WAIT: usize = 4;
/// A planted slowdown is so many half-widths of the control's interval, so that it is missed about once in a hundred
/// times.
const PLANT_HALF_WIDTHS: f64 = 2.0;
/// Standard deviations beyond which the champion's loss beside a challenger is no longer the machine's own doing.
const BEYOND_CHANCE: f64 = 5.0;
/// The largest slowdown that is planted, as a fraction.
const LARGEST_PLANT: f64 = 2.0;
/// What lies between the first measurement's estimate and the margin is so many half-widths of the second, at least:
/// seven standard deviations, of which the interval takes two and a half.
const CLEAR_HALF_WIDTHS: f64 = 3.0;
/// The widest interval of a second measurement that stops for precision, as a multiple of the precision asked for.
const LEAST_PRECISE: f64 = 2.0;

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

    /// Takes one sample of the shape made ready last.
    fn sample(&mut self, side: Side, temperature: Temperature) -> Result<Take, Halt>;

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

    /// Has the next plants be of this size, as a fraction.
    fn plant(&mut self, size: f64);

    /// Waits until the machine is quiet, for so many seconds at most. Says how long it waited.
    fn wait_for_quiet(&mut self, _most: f64) -> f64 {
        0.0
    }

    /// Whether others compute on the device whose clock decides. All processes of a pairing are ended first.
    fn has_neighbours(&mut self) -> bool {
        false
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
    let start = course.now();
    let mut referee = Referee {
        course,
        precision: settings.timing.precision,
        timing: settings.timing.clone(),
        terms,
        start,
        least_plant: settings.timing.plant,
        doubts: Vec::new(),
        slowed: 0.0,
        allowance: None,
        neighbours: Neighbours { quiet, vain: 0, unasked: 0 },
        disturbances: Disturbances::default(),
    };
    match referee.proceed(&mut sitting) {
        Ok(outcome) => sitting.outcome = outcome,
        // Somebody else's work on the same GPU, and what it takes of it, is nobody's doing here.
        Err(Halt::Fault(side, fault))
            if may_be_neighbours(side, &fault, sitting.plant.is_none()) && referee.course.has_neighbours() =>
        {
            let why = format!("others compute on this GPU, so that nobody can say whose doing it is: {fault}");
            sitting.outcome = Outcome::Void { why: vec![why] };
        }
        // A champion that fails beside a challenger is no win for that, which may have made it fail. In control and
        // plant it is timed against itself, and then it is its own doing, unless the system killed it: whose memory
        // was short then nobody knows.
        Err(Halt::Fault(Side::Champion, fault)) if sitting.plant.is_some() || fault.is_a_kill() => {
            sitting.outcome = Outcome::Void { why: vec![format!("the champion failed: {fault}")] };
        }
        Err(Halt::Fault(side, fault)) => sitting.outcome = Outcome::Faulted { side, fault },
        Err(Halt::Error(error)) => return Err(error),
    }
    sitting.settings.timing = referee.timing.clone();
    sitting.course = referee.course.report();
    sitting.course.retaken = referee.disturbances.retaken();
    sitting.course.remarks.extend(referee.disturbances.remark());
    Ok(sitting)
}

/// Whether others on the GPU may be what a fault comes from: of a champion that is timed against itself, any.
fn may_be_neighbours(side: Side, fault: &Fault, against_itself: bool) -> bool {
    matches!(fault, Fault::Tampering { .. }) || (against_itself && side == Side::Champion)
}

struct Referee<'a> {
    course: &'a mut dyn Course,
    timing: Timing,
    /// How narrow an interval has to be to stop for that alone, as a fraction.
    precision: f64,
    terms: &'a Terms,
    /// When the sitting began.
    start: f64,
    /// The slowdown that is planted on a quiet machine.
    least_plant: f64,
    /// What it has shown where there is no difference: in its control, and of the fence.
    doubts: Vec<Doubt>,
    /// How much longer the champion took beside this challenger than beside itself, as a logarithm.
    slowed: f64,
    /// Seconds that one measurement may take, where there is a budget.
    allowance: Option<f64>,
    neighbours: Neighbours,
    disturbances: Disturbances,
}

/// What the referee may be off by, as logarithms: what it showed where there is no difference, and half the width of
/// that's interval.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    shown: f64,
    half_width: f64,
}

impl Doubt {
    fn of(found: Speedup) -> Self {
        Self { shown: found.estimate.ln().abs(), half_width: half_width(found) }
    }

    /// What an interval of this half-width has to leave between itself and no difference. Both are measured, each with
    /// its own error: the difference of the two has the root of the sum of squares, of which the interval has its own
    /// part already.
    fn beside(&self, half_width: f64) -> f64 {
        self.shown + self.half_width.hypot(half_width) - half_width
    }
}

/// How much longer the champion took beside another than beside itself, as a logarithm. Times of two measurements are
/// not paired: they differ by what came and went between them, as processes of one measurement do.
struct Difference {
    estimate: f64,
    /// Its standard deviation.
    deviation: f64,
}

impl Difference {
    fn of(alone: &[&Measurement], beside: &Measurement) -> Self {
        let alone: Vec<f64> = alone.iter().flat_map(|measurement| &measurement.champion).copied().collect();
        let [(alone, one), (beside, other)] = [&alone, &beside.champion].map(|logs| {
            let (mean, deviation) = stats::mean_and_deviation(logs);
            (mean, deviation / (logs.len().max(1) as f64).sqrt())
        });
        Self { estimate: beside - alone, deviation: one.hypot(other) }
    }

    /// Nobody is blamed for what chance explains.
    fn beyond_chance(&self) -> f64 {
        self.estimate - self.deviation
    }
}

/// How long neighbours were waited for.
struct Neighbours {
    /// Seconds that may still be waited for them to go.
    quiet: f64,
    /// Processes that pass without waiting after the last wait in vain.
    vain: usize,
    /// Processes until they are waited for again.
    unasked: usize,
}

impl Referee<'_> {
    fn proceed(&mut self, sitting: &mut Sitting) -> Result<Outcome, Halt> {
        if let Some(budget) = self.terms.budget_seconds {
            let scout = self.scout(budget, derive(sitting.seed, &[0]))?;
            self.course.say(&scout.to_string());
            self.timing.looks.clone_from(&scout.looks);
            self.timing.quartets_per_process = scout.quartets_per_process;
            self.allowance = Some(scout.seconds_a_measurement);
            sitting.scout = Some(scout);
        }
        if let Some(void) = self.check_itself(sitting)? {
            return Ok(void);
        }
        self.share_the_rest(sitting);
        let first = self.measure(Pairing::Duel, derive(sitting.seed, &[3]), |referee, summary| {
            referee.judge(summary).is_some() || referee.are_alike(summary)
        })?;
        let void = self.judge_against_the_machine(sitting, &first)?;
        let (outcome, found) = (self.conclude(&first), first.at(self.timing.decides).geomean);
        sitting.margin = self.margin(found);
        let promising = found.low > 1.0 + self.margin_of_the_rules(found) && first.stopped != Stop::Probe;
        sitting.first = Some(first);
        if let Some(void) = void {
            return Ok(void);
        }
        if !promising {
            return Ok(outcome);
        }
        let clear = (found.estimate / (1.0 + sitting.margin)).ln() / CLEAR_HALF_WIDTHS;
        self.precision = self.precision.max(clear.exp_m1()).min(LEAST_PRECISE * self.precision);
        let second =
            self.measure(Pairing::Duel, derive(sitting.seed, &[4]), |referee, summary| referee.are_alike(summary))?;
        // The second has to clear what either has shown.
        let before = self.slowed;
        let void = self.judge_against_the_machine(sitting, &second)?;
        self.slowed = self.slowed.max(before);
        let (again, confirmed) = (self.conclude(&second), second.at(self.timing.decides).geomean);
        sitting.margin = self.margin(confirmed);
        sitting.second = Some(second);
        Ok(void.unwrap_or_else(|| self.together((outcome, found), (again, confirmed))))
    }

    /// What two measurements come to, of which the first was promising: each an outcome with its geomean.
    fn together(&self, first: (Outcome, Speedup), second: (Outcome, Speedup)) -> Outcome {
        let ((outcome, found), (again, confirmed)) = (first, second);
        let inconclusive = |why: String| Outcome::Inconclusive { why };
        match (outcome, again) {
            // It was faster on the whole both times, and what a shape might lose the second has settled.
            (Outcome::Inconclusive { .. }, Outcome::Faster) if found.low > 1.0 + self.margin(found) => Outcome::Faster,
            (Outcome::Inconclusive { .. }, Outcome::Faster) => inconclusive(format!(
                "it has to clear {:.2} % twice, and did so the second time only: {found}, then with new seeds {confirmed}",
                100.0 * self.margin(found)
            )),
            (Outcome::Mixed { shapes }, Outcome::Faster) => inconclusive(format!(
                "{} was too slow at first and is not with new seeds: {found}, then {confirmed}",
                shapes.join(", ")
            )),
            (_, Outcome::Inconclusive { why }) => inconclusive(format!(
                "it seemed faster ({found}), and measured again with new seeds that is not settled: {why}"
            )),
            (_, other) => other,
        }
    }

    /// Control, plant and fence: what the referee may be off by. Gives an outcome if nothing can be decided today.
    fn check_itself(&mut self, sitting: &mut Sitting) -> Result<Option<Outcome>, Halt> {
        let decides = self.timing.decides;
        let doubt = |control: &Control| Doubt::of(control.measurement.at(decides).geomean);
        let mut control = self.control(derive(sitting.seed, &[1]))?;
        let mut own = doubt(&control);
        if !control.passed {
            self.course.say(&format!("{}; it is held again", control.finding));
            let again = self.control(derive(sitting.seed, &[1, 1]))?;
            // Shown once it was chance; shown twice it is believed, the larger of the two.
            let shown = if again.passed { 0.0 } else { own.shown };
            own = Doubt { shown: doubt(&again).shown.max(shown), ..doubt(&again) };
            control = again;
        }
        self.doubts = vec![own];
        let (passed, finding) = (control.passed, control.finding.clone());
        sitting.control = Some(control);
        if !passed && own.shown.exp_m1() > self.timing.widest_margin {
            return Ok(Some(Outcome::Void { why: vec![finding] }));
        }
        self.size_the_plant(own.half_width);
        let mut plant = self.plant(derive(sitting.seed, &[2]))?;
        if !plant.passed {
            self.course.say(&format!("{}; it is planted again", plant.finding));
            self.size_the_plant(own.half_width.max(doubt(&plant).half_width));
            plant = self.plant(derive(sitting.seed, &[2, 1]))?;
        }
        let missed = (!plant.passed).then(|| Outcome::Void { why: vec![plant.finding.clone()] });
        sitting.plant = Some(plant);
        if missed.is_none() && self.course.has_strangers() {
            let fence = self.fence(derive(sitting.seed, &[5]))?;
            self.doubts.push(doubt(&fence));
            sitting.fence = Some(fence);
        }
        Ok(missed)
    }

    /// A slowdown that can be seen beside an interval of this half-width: whole multiples of the least, so that jobs
    /// can make it up.
    fn size_the_plant(&mut self, half_width: f64) {
        let least = self.least_plant;
        let wanted = (PLANT_HALF_WIDTHS * half_width).exp_m1().min(LARGEST_PLANT);
        self.timing.plant = least * (wanted / least).ceil().max(1.0);
        self.course.plant(self.timing.plant);
    }

    /// Shares what is left of the budget between the duel and its repetition. The controls stop early on a quiet
    /// machine.
    fn share_the_rest(&mut self, sitting: &Sitting) {
        let Some(scout) = &sitting.scout else { return };
        let left = scout.budget_seconds - (self.course.now() - self.start);
        let seconds = scout.seconds_a_measurement.max(0.5 * left);
        self.timing.looks = scout::looks_within(seconds, scout.seconds_a_process, scout.quartets_per_process);
        self.allowance = Some(seconds);
    }

    /// The gain that an interval has to clear by the rules, as a fraction: the least that is worth a change, or what
    /// the referee may be off by; and beyond that what the champion lost beside this challenger.
    fn margin_of_the_rules(&self, found: Speedup) -> f64 {
        (self.timing.least_margin.max(self.off_by(found)).ln_1p() + self.slowed).exp_m1()
    }

    /// The gain that an interval has to clear, as a fraction: by the rules, or by the deal where that asks for more.
    fn margin(&self, found: Speedup) -> f64 {
        self.margin_of_the_rules(found).max(self.terms.least_gain.unwrap_or(0.0))
    }

    /// What the referee may be off by beyond an interval, as a fraction.
    fn off_by(&self, found: Speedup) -> f64 {
        let doubts = self.doubts.iter().map(|doubt| doubt.beside(half_width(found)));
        doubts.fold(0.0, f64::max).exp_m1()
    }

    /// Waits for neighbours to go, unless that was in vain a short while ago.
    fn wait_for_quiet(&mut self) {
        if self.neighbours.unasked > 0 {
            self.neighbours.unasked -= 1;
            return;
        }
        let most = self.neighbours.quiet.min(PATIENCE);
        let waited = self.course.wait_for_quiet(most);
        self.neighbours.quiet -= waited;
        self.neighbours.vain = if waited < most { 0 } else { UNTIL_NEXT_WAIT.max(2 * self.neighbours.vain) };
        self.neighbours.unasked = self.neighbours.vain;
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
        self.slowed = 0.0;
        let Some(control) = &sitting.control else { return Ok(None) };
        let found = duel.at(self.timing.decides).geomean;
        let margin = self.margin(found);
        // In plant and fence, too, its own side is the champion beside itself.
        let others = [&sitting.plant, &sitting.fence].into_iter().flatten().map(|control| &control.measurement);
        let alone: Vec<&Measurement> = [&control.measurement].into_iter().chain(others).collect();
        let before = Difference::of(&alone, duel);
        let tolerance = self.timing.champion_tolerance.max((BEYOND_CHANCE * before.deviation).exp_m1());
        let before = before.beyond_chance();
        // It matters where it would turn a gain into none, or is beyond all tolerance.
        let matters = found.low > 1.0 + margin && found.low <= (1.0 + margin) * before.exp();
        if !matters && before <= tolerance.ln_1p() {
            return Ok(None);
        }
        // Machines drift. Whoever was slowed by its rival is as fast as before without it.
        let after = self.measure(Pairing::Control, derive(duel.seed, &[6]), |_, _| false)?;
        self.slowed = before.min(Difference::of(&[&after], duel).beyond_chance()).max(0.0);
        let percent = 100.0 * self.slowed.exp_m1();
        Ok((self.slowed > tolerance.ln_1p()).then(|| Outcome::Void {
            why: vec![format!(
                "the champion took {percent:.0} % longer beside the challenger than beside itself, before and after: something slows it"
            )],
        }))
    }

    /// The champion's own code behind the fence against itself without.
    fn fence(&mut self, seed: u64) -> Result<Control, Halt> {
        let wide = self.timing.least_margin;
        let measurement =
            self.measure(Pairing::Fence, seed, |_, summary| half_width(summary.geomean).exp_m1() <= wide)?;
        let found = measurement.at(self.timing.decides).geomean;
        let finding = format!("the champion's own code behind the fence, against itself without: {found}");
        Ok(Control { measurement, passed: true, finding })
    }

    fn control(&mut self, seed: u64) -> Result<Control, Halt> {
        let (decides, wide) = (self.timing.decides, self.timing.least_margin);
        // Narrower than the margin is narrow enough for a control.
        let measurement =
            self.measure(Pairing::Control, seed, |_, summary| half_width(summary.geomean).exp_m1() <= wide)?;
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
        let near = (found.estimate / truth).ln().abs() <= self.timing.plant_tolerance + self.off_by(found);
        let passed = found.high < 1.0 && (near || (found.low <= truth && truth <= found.high));
        let percent = (100.0 * self.timing.plant).round();
        let finding = match passed {
            true => format!("the planted slowdown of {percent} % was found: {found}"),
            false => {
                format!("the planted slowdown of {percent} % was missed: {found}")
            }
        };
        Ok(Control { measurement, passed, finding })
    }

    /// Measures a pairing until `decided` says so of the summary that decides, or it is precise, or it is the last
    /// look.
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
        self.disturbances.begin();
        loop {
            self.wait_for_quiet();
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

    /// Whether more would not change what is known: the geomean to within the precision, and of a duel no shape whose
    /// interval holds the most that it may lose.
    fn is_precise(&self, summary: &Summary, pairing: Pairing) -> bool {
        let limit = 1.0 - self.most_loss();
        let unsettled = |shape: &ShapeResult| shape.speedup.low < limit && limit <= shape.speedup.high;
        let settled = pairing != Pairing::Duel || !summary.shapes.iter().any(unsettled);
        settled && half_width(summary.geomean).exp_m1() <= self.precision
    }

    /// Whether an interval leaves room for neither a gain nor a loss that would count: whatever is measured beyond it,
    /// the verdict is that nothing is settled.
    fn are_alike(&self, summary: &Summary) -> bool {
        let found = summary.geomean;
        found.high <= 1.0 + self.margin_of_the_rules(found) && found.low >= 1.0 / (1.0 + self.off_by(found))
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

    /// One sample that was not disturbed, if there is one in so many takes; otherwise the one that waited least. What a
    /// take took is not asked.
    fn take(&mut self, side: Side, temperature: Temperature) -> Result<f64, Halt> {
        let mut best = self.course.sample(side, temperature)?;
        let mut disturbed = self.disturbances.note(side, best, &self.timing);
        for _ in 0..self.timing.retakes {
            if !disturbed || !self.disturbances.excuse(side) {
                break;
            }
            let take = self.course.sample(side, temperature)?;
            disturbed = self.disturbances.note(side, take, &self.timing);
            if take.waited <= best.waited {
                best = take;
            }
        }
        Ok(best.seconds)
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
            *seconds = self.take(side, temperature)?;
        }
        let (outside, inside) = ([seconds[0], seconds[3]], [seconds[1], seconds[2]]);
        let (champion, challenger) = if champion_outside { (outside, inside) } else { (inside, outside) };
        process.add(shape, temperature, champion, challenger);
        Ok(())
    }

    /// What a summary settles, if it settles anything.
    fn judge(&self, summary: &Summary) -> Option<Outcome> {
        let most_loss = self.most_loss();
        if summary.geomean.high < 1.0 / (1.0 + self.off_by(summary.geomean)) {
            return Some(Outcome::Slower);
        }
        if summary.geomean.low <= 1.0 + self.margin(summary.geomean) {
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
    fn conclude(&self, measurement: &Measurement) -> Outcome {
        let summary = measurement.at(self.timing.decides);
        if measurement.stopped == Stop::Probe {
            let slowest = summary.shapes.iter().min_by(|a, b| a.speedup.estimate.total_cmp(&b.speedup.estimate));
            let (shape, loss) = slowest.map_or((String::new(), 0.0), |s| (s.shape.clone(), 1.0 - s.speedup.estimate));
            return Outcome::Stopped { shape, loss };
        }
        self.judge(summary).unwrap_or_else(|| Outcome::Inconclusive { why: self.unsettled(summary) })
    }

    /// Why a summary settles nothing, with what could have been seen.
    fn unsettled(&self, summary: &Summary) -> String {
        let (found, margin, most_loss) = (summary.geomean, self.margin(summary.geomean), self.most_loss());
        if found.low <= 1.0 + margin {
            let sees = (margin.ln_1p() + half_width(found)).exp_m1();
            let slowed = match self.slowed > 0.0 {
                true => format!(
                    ", of which {:.1} % because the champion took that much longer beside it than beside itself",
                    100.0 * self.slowed.exp_m1()
                ),
                false => String::new(),
            };
            return format!(
                "the interval does not clear the margin: {found}, margin {:.2} %{slowed}; with this noise it could only have seen {:.1} %",
                100.0 * margin,
                100.0 * sees
            );
        }
        let unsettled = summary.shapes.iter().filter(|s| s.speedup.low < 1.0 - most_loss);
        let shapes: Vec<String> = unsettled.map(|s| format!("{} ({})", s.shape, s.speedup)).collect();
        format!(
            "faster on the whole ({found}), but none may lose more than {:.0} %, and that is not settled of {}: more time would settle it",
            100.0 * most_loss,
            shapes.join(" and of ")
        )
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

/// Half the width of an interval, as a logarithm.
fn half_width(found: Speedup) -> f64 {
    0.5 * (found.high.ln() - found.low.ln())
}

fn impossible(checks: &[RooflineCheck]) -> Option<Outcome> {
    let why = |check: &RooflineCheck| {
        let RooflineCheck { shape, floor_seconds, seconds, .. } = check;
        format!("{shape} took {seconds:.3e} s, but this machine cannot take less than {floor_seconds:.3e} s")
    };
    let why: Vec<String> = checks.iter().filter(|check| !check.possible).map(why).collect();
    (!why.is_empty()).then_some(Outcome::Void { why })
}
