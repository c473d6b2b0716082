//! The real course: two sessions, lots in shared memory, the referee's clock.
//!
//! **A sample** is one `run` of enough jobs for the clock. Every job has tokens that nobody has seen before, written just
//! now, and an output that was poisoned just now, so nothing can be replayed. Before the clock starts there is one job that
//! does not count, on the layer that came last, so that all of a contestant's threads are awake. *Warm* jobs take
//! that layer again. While one side swims, the other stands still, stopped with all its threads and children; and a side is stopped again before its
//! outputs are read, so what was not written when it said `done` is not there.
//!
//! **Cold** jobs take layers in turn, and more than twice L3 goes through it before the same layer comes
//! again. Where everyone computes on the processor, the referee makes sure of that itself: when both sides have packed
//! their weights, it reads through so much memory of its own, and then there are as many layers as a process has cold jobs,
//! so that each comes once. That is fairer too, because whoever packs last has weights in the caches. Where more than twice
//! the cache is fewer layers than that, or a GPU's own cache counts, the layers themselves fill it.
//!
//! **Checked after every sample**: no element of any output still holds the poison, some elements of one output, drawn after
//! the run, agree with float64, and the tokens are as they were written. One sample in eight, drawn after the run as well, has
//! one of its outputs compared whole. A contestant that is lazy in a part of its runs has to be so in half of them to move
//! a median, and is then found in all but 2⁻ⁿ of cases. When a process ends, its weights are compared with the originals.

use std::sync::Arc;

use fastrand::Rng;
use hammerhead::cpu::ceilings::{Ceilings, Prober};
use hammerhead::reference::Reference;
use hammerhead::{Arithmetic, Shape, bound};
use hammerhead::{Team, cpu};
use testkit::cases::Case;

use super::clock::{Clock, jobs_a_sample};
use super::duel::{Course, Floor, Halt};
use super::record::{CourseReport, Pairing, Side};
use super::seeds::derive;
use super::settings::{RefereeSettings, Temperature};
use super::stats;
use super::yardstick::Yardstick;
use crate::contestant::{Contestant, Fault, Job, LayerWeights, Lot, Poison, Readiness, Session, Tokens};
use crate::{Error, Result};

/// Runs without jobs by which the round trip is told.
const ROUND_TRIPS: usize = 32;
/// Bytes that all jobs of one sample move, about, at most.
const SAMPLE_BYTES: f64 = (256u64 << 20) as f64;
/// How much faster than the unit that the prober measures a processor's integer dot products are, at most.
const INTEGER_FACTOR: f64 = 4.0;

/// The course on this machine.
pub struct Pool<'a> {
    contestants: [&'a dyn Contestant; 2],
    cases: Vec<Case>,
    settings: &'a RefereeSettings,
    clock: &'a dyn Clock,
    seed: u64,
    rng: Rng,
    yardstick: Yardstick,
    /// For each shape, once it was met.
    shapes: Vec<Option<Ground>>,
    sides: Option<[Box<dyn Session>; 2]>,
    pairing: Pairing,
    shape: usize,
    processor: Option<Processor>,
    report: CourseReport,
}

struct Ground {
    lots: [Lot; 2],
    /// Jobs that make a sample.
    jobs: usize,
    /// Where each side is in its rotation.
    next_layer: [usize; 2],
}

/// What the processor can do at most, and the memory by which its caches are swept.
struct Processor {
    prober: Prober,
    threads: Team,
    best: Ceilings,
}

impl<'a> Pool<'a> {
    /// A course over these problems, with numbers from a seed.
    pub fn new(
        champion: &'a dyn Contestant,
        challenger: &'a dyn Contestant,
        cases: Vec<Case>,
        settings: &'a RefereeSettings,
        clock: &'a dyn Clock,
        seed: u64,
    ) -> Result<Self> {
        let cache_bytes = last_level_cache().unwrap_or(settings.timing.cache_bytes);
        let resolution = clock.resolution();
        if !resolution.is_finite() {
            let reason = "the clock stands still; nothing can be timed by it".to_owned();
            return Err(Error::Settings { what: "the clock", reason });
        }
        let report = CourseReport {
            clock_resolution: resolution,
            cache_bytes,
            rotated_bytes: vec![0; cases.len()],
            ..CourseReport::default()
        };
        Ok(Self {
            contestants: [champion, challenger],
            shapes: cases.iter().map(|_| None).collect(),
            cases,
            settings,
            clock,
            seed,
            rng: Rng::with_seed(derive(seed, &[7])),
            yardstick: Yardstick::new()?,
            sides: None,
            pairing: Pairing::Control,
            shape: 0,
            processor: None,
            report,
        })
    }

    /// Measures the processor's rates beside the contestants, so that what is faster than they allow is found, and sweeps
    /// its caches. For contestants that compute on the processor.
    pub fn on_the_processor(mut self) -> Result<Self> {
        let (prober, threads) = (Prober::new()?, cpu::team(None)?);
        self.processor = Some(Processor { prober, threads, best: Ceilings { flops: 0.0, bytes: 0.0 } });
        Ok(self)
    }

    /// The best rates that were seen so far, if they are measured.
    pub fn ceilings(&self) -> Option<Ceilings> {
        self.processor.as_ref().map(|processor| processor.best)
    }

    /// Bytes that go through the caches before the same weights come again.
    fn turn_bytes(&self) -> f64 {
        self.settings.timing.rotation * self.report.cache_bytes as f64
    }

    /// How many layers a shape needs if so many jobs make a sample, and the bytes that pass before one comes again.
    fn rotation(&self, shape: usize, jobs: usize) -> (usize, u64) {
        let (timing, layer_bytes) = (&self.settings.timing, weight_bytes(&self.cases[shape]));
        let most = timing.most_layers.max(2);
        let filling = (self.turn_bytes() / layer_bytes).ceil() as usize;
        // What comes before the first cold sample has a layer of its own.
        let once = 2 * timing.quartets_per_process * jobs + 1;
        match self.processor {
            Some(_) if once <= filling.min(most) => (once, self.turn_bytes() as u64),
            _ => {
                let layers = filling.clamp(2, most);
                (layers, (layers as f64 * layer_bytes) as u64)
            }
        }
    }

    fn ground(&self, shape: usize, layers: usize, jobs: usize) -> Result<Ground> {
        let case = &self.cases[shape];
        let layer = |layer| Ok(case.instance(derive(self.seed, &[shape as u64, layer as u64]))?.weights);
        let layers: Arc<Vec<LayerWeights>> = Arc::new((0..layers).map(layer).collect::<Result<_>>()?);
        // One more place, for the job that does not count.
        let places = jobs + 1;
        let (problem, tokens) = (case.problem()?, vec![tokens(case, self.seed)?; places]);
        let lot = || Lot::new(problem.clone(), Arc::clone(&layers), tokens.clone(), places);
        Ok(Ground { lots: [lot()?, lot()?], jobs, next_layer: [0; 2] })
    }

    /// Meets a shape for the first time: the champion's time for one job says how many make a sample, and that says how
    /// many layers are wanted.
    fn survey(&mut self, shape: usize) -> Result<(), Halt> {
        self.shapes[shape] = Some(self.ground(shape, 1, 1)?);
        self.make_ready(Side::Champion)?;
        let mut fastest = f64::INFINITY;
        for _ in 0..3 {
            fastest = fastest.min(self.swim(Side::Champion, 0, &[0], false)?);
        }
        let (timing, resolution) = (&self.settings.timing, self.report.clock_resolution);
        // Problems that move little are over soon, and a sample needs many of them.
        let bytes = self.cases[shape].problem().map_err(Error::from)?.bytes().max(1.0);
        let most = ((SAMPLE_BYTES / bytes) as usize).clamp(1, timing.sample_jobs);
        let jobs = jobs_a_sample(fastest, resolution, timing.sample_ticks, timing.sample_seconds, most);
        let (layers, passing) = self.rotation(shape, jobs);
        self.report.rotated_bytes[shape] = passing;
        self.shapes[shape] = Some(self.ground(shape, layers, jobs)?);
        Ok(())
    }

    /// Has a side pack the weights of the shape that is to be timed.
    fn make_ready(&mut self, side: Side) -> Result<(), Halt> {
        let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
        ground.next_layer[index(side)] = 0;
        let session = self.sides.as_mut().ok_or(Error::Samples)?[index(side)].as_mut();
        let faulted = |fault| Halt::Fault(self_or_champion(self.pairing, side), fault);
        let readiness = session.prepare(&ground.lots[index(side)]).map_err(faulted)?;
        if let Readiness::Unsupported(reason) = readiness {
            return Err(faulted(Fault::Unsupported { problem: self.cases[self.shape].to_string(), reason }));
        }
        session.rest().map_err(faulted)
    }

    /// One run: fresh tokens, poisoned outputs, the clock, and what is seen when it stands.
    fn swim(&mut self, side: Side, last_layer: usize, layers: &[usize], checked: bool) -> Result<f64, Halt> {
        let at = index(side);
        let jobs: Vec<Job> =
            layers.iter().enumerate().map(|(slot, &layer)| Job { layer, input: slot, output: slot }).collect();
        let poison = if self.rng.bool() { Poison::Ones } else { Poison::Sevens };
        let case = &self.cases[self.shape];
        let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
        for job in &jobs {
            ground.lots[at].write_input(job.input, tokens(case, self.rng.u64(..))?)?;
            ground.lots[at].poison(job.output, poison)?;
        }
        let session = self.sides.as_mut().ok_or(Error::Samples)?[at].as_mut();
        let faulted = |fault| Halt::Fault(self_or_champion(self.pairing, side), fault);
        // It has a place of its own for its result: nothing that is looked at may be written before the clock starts.
        let awakening = Job { layer: last_layer, input: jobs.len(), output: jobs.len() };
        session.stage(&[awakening]).map_err(faulted)?;
        session.go().map_err(faulted)?;
        session.stage(&jobs).map_err(faulted)?;
        let start = self.clock.now();
        session.go().map_err(faulted)?;
        if self.pairing == Pairing::Plant && side == Side::Challenger {
            let planted = (self.clock.now() - start) * (1.0 + self.settings.timing.plant);
            while self.clock.now() - start < planted {
                std::hint::spin_loop();
            }
        }
        let seconds = self.clock.now() - start;
        session.rest().map_err(faulted)?;
        if checked {
            self.inspect(side, &jobs, poison)?;
        }
        Ok(seconds)
    }

    /// Looks at the outputs of a sample, on copies.
    fn inspect(&mut self, side: Side, jobs: &[Job], poison: Poison) -> Result<(), Halt> {
        let case = &self.cases[self.shape];
        let ground = self.shapes[self.shape].as_ref().ok_or(Error::Samples)?;
        let lot = &ground.lots[index(side)];
        let blame = self_or_champion(self.pairing, side);
        let wrong = |what: String| Halt::Fault(blame, Fault::Wrong { problem: case.to_string(), what });
        let tampered = |what: &str| Halt::Fault(blame, Fault::Tampering { what: format!("{what} of {case}") });
        let outputs = match jobs.iter().map(|job| lot.read_output(job.output)).collect::<Result<Vec<_>>>() {
            Err(Error::Shortened { .. }) => return Err(tampered("the file of outputs")),
            outputs => outputs?,
        };
        for (output, job) in outputs.iter().zip(jobs) {
            if let Some(place) = poisoned(output, poison, case.output.bytes()) {
                return Err(wrong(format!("element {place} of a timed output was not written when it said done")));
            }
            if !lot.input_is_intact(job.input)? {
                return Err(tampered("the tokens of a timed run"));
            }
        }
        let drawn = self.rng.usize(..jobs.len());
        let (job, results) = (jobs[drawn], lot.as_results(&outputs[drawn])?);
        let (tokens, weights) = (lot.input(job.input), &lot.layers()[job.layer]);
        let reference = |(tokens, weights)| Reference::new(tokens, weights, case.gate);
        let references: Vec<Reference<'_, '_>> = tokens.iter().zip(weights).map(reference).collect();
        for _ in 0..self.settings.checking.elements {
            let group = self.rng.usize(..tokens.len());
            let shape = case.groups[group];
            if shape.m == 0 {
                continue;
            }
            let (row, column) = (self.rng.usize(..shape.m), self.rng.usize(..shape.n));
            let reference = &references[group];
            let element = reference.element(&reference.token(row), &reference.column(column));
            let mut values = vec![0.0; shape.n];
            results[group].row(row, &mut values);
            let found = f64::from(values[column]);
            if !bound::accepts(&element, found, case.gate, shape.k, case.output, Arithmetic::Unknown) {
                let expected = element.value;
                return Err(wrong(format!(
                    "a timed output: group {group}, c[{row}, {column}] is {found}, not {expected}"
                )));
            }
        }
        self.report.outputs_sampled += 1;
        if self.rng.usize(..self.settings.checking.whole_every.max(1)) == 0 {
            self.report.outputs_compared += 1;
            if let Some(what) = self.yardstick.check(lot.problem(), tokens, weights, &results)? {
                return Err(wrong(format!("a timed output: {what}")));
            }
        }
        Ok(())
    }

    /// The median time that a fresh session takes to answer a run without jobs.
    fn round_trip(&self, session: &mut dyn Session) -> Result<f64, Fault> {
        let mut seconds = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            session.stage(&[])?;
            let start = self.clock.now();
            session.go()?;
            seconds.push(self.clock.now() - start);
        }
        session.rest()?;
        Ok(stats::median(&seconds))
    }

    fn start(&mut self, side: Side, pairing: Pairing) -> Result<Box<dyn Session>, Halt> {
        let who = self_or_champion(pairing, side);
        let faulted = |fault| Halt::Fault(who, fault);
        let mut session = self.contestants[index(who)].start().map_err(faulted)?;
        let known = match who {
            Side::Champion => self.report.champion_round_trip,
            Side::Challenger => self.report.challenger_round_trip,
        };
        if known.is_none() {
            let seconds = self.round_trip(session.as_mut()).map_err(faulted)?;
            match who {
                Side::Champion => self.report.champion_round_trip = Some(seconds),
                Side::Challenger => self.report.challenger_round_trip = Some(seconds),
            }
            for remark in session.remarks() {
                self.report.remarks.push(format!("{who}: {remark}"));
            }
        }
        Ok(session)
    }
}

impl Course for Pool<'_> {
    fn names(&self) -> [String; 2] {
        self.contestants.map(|contestant| contestant.about().name)
    }

    fn shapes(&self) -> Vec<String> {
        self.cases.iter().map(Case::to_string).collect()
    }

    fn enter(&mut self, pairing: Pairing, _seed: u64) -> Result<(), Halt> {
        self.pairing = pairing;
        self.sides = None;
        if let Some(Processor { prober, threads, best }) = &mut self.processor {
            let now = prober.sample(threads);
            *best = Ceilings { flops: best.flops.max(now.flops), bytes: best.bytes.max(now.bytes) };
        }
        self.sides = Some([self.start(Side::Champion, pairing)?, self.start(Side::Challenger, pairing)?]);
        Ok(())
    }

    fn prepare(&mut self, shape: usize) -> Result<(), Halt> {
        self.shape = shape;
        if self.shapes[shape].is_none() {
            self.survey(shape)?;
        }
        for side in [Side::Champion, Side::Challenger] {
            self.make_ready(side)?;
        }
        if let Some(Processor { prober, threads, .. }) = &self.processor {
            prober.sweep(self.turn_bytes() as u64, threads);
        }
        Ok(())
    }

    fn sample(&mut self, side: Side, temperature: Temperature) -> Result<f64, Halt> {
        let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
        let (jobs, count) = (ground.jobs, ground.lots[0].layers().len());
        let next = &mut ground.next_layer[index(side)];
        let last = (*next + count - 1) % count;
        let layers: Vec<usize> = match temperature {
            Temperature::Cold => (0..jobs).map(|job| (*next + job) % count).collect(),
            Temperature::Warm => vec![last; jobs],
        };
        if temperature == Temperature::Cold {
            *next = (*next + jobs) % count;
        }
        Ok(self.swim(side, last, &layers, true)? / jobs as f64)
    }

    fn leave(&mut self) -> Result<(), Halt> {
        self.sides = None;
        for side in [Side::Champion, Side::Challenger] {
            // Our own code maps its weights for reading only.
            if self.contestants[index(self_or_champion(self.pairing, side))].about().trusted {
                continue;
            }
            for (ground, case) in self.shapes.iter().zip(&self.cases) {
                if ground.as_ref().map_or(Ok(true), |ground| ground.lots[index(side)].weights_are_intact())? {
                    continue;
                }
                let fault = Fault::Tampering { what: format!("the weights of {case}") };
                return Err(Halt::Fault(self_or_champion(self.pairing, side), fault));
            }
        }
        Ok(())
    }

    fn floors(&self) -> Option<Vec<Floor>> {
        let best = self.processor.as_ref()?.best;
        let floor = |(case, &rotated): (&Case, &u64)| {
            let problem = case.problem().ok()?;
            let warm = problem.flops() / (INTEGER_FACTOR * best.flops);
            // Whatever a cache keeps of what goes through it, it keeps no more than it holds.
            let missed = (1.0 - self.report.cache_bytes as f64 / rotated.max(1) as f64).max(0.0);
            Some(Floor { cold: warm.max(missed * weight_bytes(case) / best.bytes), warm })
        };
        self.cases.iter().zip(&self.report.rotated_bytes).map(floor).collect()
    }

    fn report(&self) -> CourseReport {
        let mut report = self.report.clone();
        report.remarks.sort();
        report.remarks.dedup();
        report
    }
}

/// Whose session stands on a side: in a control and in a plant, both are the champion's.
fn self_or_champion(pairing: Pairing, side: Side) -> Side {
    if pairing == Pairing::Duel { side } else { Side::Champion }
}

fn index(side: Side) -> usize {
    match side {
        Side::Champion => 0,
        Side::Challenger => 1,
    }
}

/// Tokens for a problem: those of the same case with a single column, because weights are not wanted again.
fn tokens(case: &Case, seed: u64) -> Result<Tokens> {
    let groups = case.groups.iter().map(|s| Shape::new(s.m, 1, s.k)).collect();
    Ok(Case { groups, ..case.clone() }.instance(seed)?.activations)
}

/// The bytes of one layer's weights.
fn weight_bytes(case: &Case) -> f64 {
    let matrices = case.gate.matrices();
    case.groups.iter().map(|s| (matrices * s.n * (s.k / 2 + s.k / 16)) as f64).sum()
}

/// The first element of an output that still holds the poison.
fn poisoned(output: &[Vec<u8>], poison: Poison, width: usize) -> Option<usize> {
    let mut elements = output.iter().flat_map(|group| group.chunks_exact(width));
    elements.position(|element| element.iter().all(|&byte| byte == poison.byte()))
}

/// The size of the largest cache that the first processor has.
fn last_level_cache() -> Option<u64> {
    let size = |index: usize| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        let kibibytes: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kibibytes << 10)
    };
    (0..8).filter_map(size).max()
}
