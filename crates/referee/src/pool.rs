//! The real course: two sessions, lots in shared memory, the referee's clock.
//!
//! **A sample** is one `run` of enough jobs for the clock, and nothing of it is known before the clock runs. First
//! there is one job that does not count, so that a contestant's caches of code, its threads and its files are as they
//! are in use. Then it stands still, and only now are the inputs written that nobody has seen before, the outputs
//! poisoned, and layers and places drawn. It is woken when the clock already runs, and the clock runs on until it
//! stands still again, with all its threads and children: what is not written then is not there, and what it did after
//! its `done` was timed. While one side swims the other stands still, and what it consumes of the processors meanwhile
//! is its fault.
//!
//! **Cold** jobs: between the job that does not count and the clock the referee reads through more than twice L3 of its
//! own memory, so that whatever was fetched beforehand is gone again. Where both sides are our own code one such sweep
//! serves several samples: each takes layers that were not touched since, and jobs that do not count are done before
//! it. Where nobody knows what a contestant computes on, layers rotate instead, in an order of their own for every
//! process, and more than twice L3 goes through before the same layer comes again. *Warm* jobs take the layer of the
//! job that did not count.
//!
//! **On a GPU** that both sides compute on the device's own clock counts ([`Watched`]): the host's says that it did not
//! run fast, and the wait for the whole device that nothing ran outside of it. Programs that queue their runs behind a
//! latch are timed by it too, less what a kernel that does nothing takes there ([`crate::contestant::blank`]). L2 is
//! swept before a cold run, and layers rotate beyond it in the run. A planted slowdown is jobs more, which the clock
//! has to find by itself.
//!
//! **Checked after every sample**: no element of any output still holds the poison, some elements, each of a job drawn
//! after the run, agree with the reference, and the inputs are as they were written. One sample in eight, drawn after
//! the run as well, has one of its outputs compared whole (of our own code, which the examination has compared whole,
//! one in 64). A contestant that is lazy in a part of its runs has to be so in half of them to move a median, and is
//! then found in all but 2⁻ⁿ of cases. The errors of those elements are held against the champion's too, so that digits
//! are worth as much here as in the examination. When a process ends, its constants are compared with the originals.

use std::sync::Arc;

use cpu::ceilings::{Ceilings, Prober};
use fastrand::Rng;
use op::Team;

use crate::clock::{Clock, jobs_a_sample};
use crate::contestant::{Contestant, Fault, Guard, Job, Lot, Poison, Readiness, Session};
use crate::device::{RESOLUTION, Watched};
use crate::duel::{Course, Floor, Halt};
use crate::neighbours;
use crate::record::{CourseReport, Pairing, Side};
use crate::samples::Take;
use crate::seeds::derive;
use crate::settings::{RefereeSettings, Temperature};
use crate::stats;
use crate::task::{Bundle, Spec, Task, Timed};
use crate::waiting::Waiting;
use crate::{Error, Result};

/// Runs without jobs by which the round trip is told.
const ROUND_TRIPS: usize = 32;
/// Runs of a kernel that does nothing, each time that the sides are made ready: their median is good to a microsecond.
const BLANKS: usize = 9;
/// A sample lasts so many round trips at least, so that they are a small part of it.
const SAMPLE_TRIPS: f64 = 20.0;
/// Timed elements of each side from which their errors are compared.
const ENOUGH_ELEMENTS: u64 = 200;
/// Bytes of inputs and outputs that all jobs of one sample have, about, at most: they are made and looked at one by
/// one. On a GPU they take so little time that a sample needs more of them.
const SAMPLE_BYTES: f64 = (256u64 << 20) as f64;
const SAMPLE_BYTES_ON_DEVICE: f64 = (1u64 << 30) as f64;
/// A challenger's sample takes so many times as long as the champion's at most, where fewer jobs can help.
const SLOWER: f64 = 4.0;
/// Samples of one side that one sweep serves at most, where it serves several, and the bytes of their layers.
const SAMPLES_A_SWEEP: usize = 6;
const LAYERS_BYTES: f64 = (64u64 << 20) as f64;
/// Of timed outputs of our own code, which was compared whole in the examination, so many times fewer are compared
/// whole as of a stranger's.
const OWN_WHOLE: usize = 8;
/// How much faster than the unit that the prober measures a processor's integer dot products are, at most.
const INTEGER_FACTOR: f64 = 4.0;

/// The course on this machine.
pub struct Pool<'a> {
    contestants: [&'a dyn Contestant; 2],
    /// The champion's own code behind the fence, where one of them is a stranger.
    fenced: Option<&'a dyn Contestant>,
    /// Whoever watches.
    watcher: Option<&'a dyn Fn(&str)>,
    tasks: Vec<Arc<dyn Task>>,
    settings: &'a RefereeSettings,
    clock: &'a dyn Clock,
    seed: u64,
    /// Samples that were drawn so far: each has a seed of its own, from which nothing follows for the next.
    drawn: u64,
    /// For each shape, once it was met.
    shapes: Vec<Option<Ground>>,
    sides: Option<[Box<dyn Session>; 2]>,
    waiting: Waiting,
    pairing: Pairing,
    shape: usize,
    processor: Option<Processor>,
    device: Option<Watched>,
    /// The slowdown that is planted, as a fraction.
    plant: f64,
    /// A GPU whose clock decides if both sides queue their runs, until that is known, and who then tells what is to be
    /// taken off.
    perhaps: Option<(Watched, Box<dyn Contestant>)>,
    /// Whether they do: who tells, once it was started.
    blank: Option<Box<dyn Session>>,
    errors: [Errors; 2],
    report: CourseReport,
}

struct Ground {
    lot: Lot,
    /// Jobs that make a sample.
    jobs: usize,
    /// The champion's seconds for one of them.
    one: f64,
    /// Jobs that make a sample of a challenger, once it was met: fewer where it is many times as slow.
    challenger_jobs: Option<usize>,
    /// The order in which layers come for each side, the next one first.
    order: [Vec<usize>; 2],
    /// Where one sweep serves several samples: how many at the head of that order were not touched since.
    untouched: [usize; 2],
}

/// The errors of timed elements, as parts of their bounds.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    compared: u64,
    squares: f64,
}

impl Errors {
    fn rms(&self) -> f64 {
        (self.squares / self.compared.max(1) as f64).sqrt()
    }
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
        tasks: Vec<Arc<dyn Task>>,
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
            rotated_bytes: vec![0; tasks.len()],
            ..CourseReport::default()
        };
        Ok(Self {
            contestants: [champion, challenger],
            fenced: None,
            watcher: None,
            shapes: tasks.iter().map(|_| None).collect(),
            tasks,
            settings,
            clock,
            seed,
            drawn: 0,
            sides: None,
            waiting: Waiting::default(),
            pairing: Pairing::Control,
            shape: 0,
            processor: None,
            device: None,
            plant: settings.timing.plant,
            perhaps: None,
            blank: None,
            errors: [Errors::default(); 2],
            report,
        })
    }

    /// Measures the processor's rates beside the contestants, so that what is faster than they allow is found, and
    /// sweeps its caches. For contestants that compute on the processor.
    pub fn on_the_processor(mut self) -> Result<Self> {
        let (prober, threads) = (Prober::new()?, cpu::team(None)?);
        self.processor = Some(Processor { prober, threads, best: Ceilings { flops: 0.0, bytes: 0.0 } });
        Ok(self)
    }

    /// Has the clock of a GPU decide, and its cache swept. For contestants that compute there, with tensors in its
    /// memory.
    pub fn on_device(mut self, device: Watched) -> Self {
        self.be_on_device(device);
        self
    }

    fn be_on_device(&mut self, device: Watched) {
        self.report.cache_bytes = device.cache_bytes;
        self.report.clock_resolution = RESOLUTION;
        self.report.remarks.extend(device.unread.clone());
        self.device = Some(device);
    }

    /// Has the clock of a GPU decide if both sides queue their runs behind a latch there. What runs without jobs of
    /// `blank` take is taken off every run.
    pub fn perhaps_on_device(mut self, device: Watched, blank: Box<dyn Contestant>) -> Self {
        self.perhaps = Some((device, blank));
        self
    }

    /// Has what the fence costs measured too, by the champion's own code behind it.
    pub fn with_fence(mut self, fenced: Option<&'a dyn Contestant>) -> Self {
        self.fenced = fenced;
        self
    }

    /// Tells somebody how it goes.
    pub fn watched(mut self, watcher: Option<&'a dyn Fn(&str)>) -> Self {
        self.watcher = watcher;
        self
    }

    /// The best rates that were seen so far, or those that a GPU cannot exceed, if they are known.
    pub fn ceilings(&self) -> Option<Ceilings> {
        let of_device = |Watched { report, .. }: &Watched| Ceilings {
            flops: report.flops_per_second,
            bytes: report.bytes_per_second,
        };
        self.processor.as_ref().map(|processor| processor.best).or_else(|| self.device.as_ref().map(of_device))
    }

    /// Bytes that go through the caches before the same weights come again.
    fn turn_bytes(&self) -> f64 {
        self.settings.timing.rotation * self.report.cache_bytes as f64
    }

    /// Random numbers for the next thing that is drawn.
    fn lots(&mut self) -> Rng {
        self.drawn += 1;
        Rng::with_seed(derive(self.seed, &[7, self.drawn]))
    }

    /// How many layers a shape needs if so many jobs make a sample, and the bytes that pass before one comes again.
    fn rotation(&mut self, shape: usize, jobs: usize) -> (usize, u64) {
        let (timing, layer_bytes) = (&self.settings.timing, self.tasks[shape].work().constant_bytes.max(1.0));
        let most = timing.most_layers.max(2);
        let (filling, swept) = ((self.turn_bytes() / layer_bytes).ceil() as usize, self.turn_bytes() as u64);
        match self.processor {
            // For several samples of each side between two sweeps, and the job that does not count.
            Some(_) if self.sweep_serves_several() => {
                let room = (LAYERS_BYTES / layer_bytes) as usize;
                (room.clamp(2 * jobs + 1, SAMPLES_A_SWEEP * jobs + 1).clamp(2, most), swept)
            }
            // A few more than are wanted, and not always as many: their number tells nothing.
            Some(_) => ((jobs + 1 + self.lots().usize(..3)).clamp(2, most), swept),
            None => {
                let layers = filling.clamp(2, most);
                (layers, (layers as f64 * layer_bytes) as u64)
            }
        }
    }

    /// Jobs that are planted beside so many, where that is how a slowdown is planted.
    fn planted(&self, jobs: usize) -> usize {
        if self.device.is_some() { (jobs as f64 * self.plant).round() as usize } else { 0 }
    }

    /// Places for so many jobs: one more, for the job that does not count, and some that are never used.
    fn places(&mut self, jobs: usize) -> usize {
        jobs + 1 + self.lots().usize(..3) + self.planted(jobs)
    }

    fn ground(&mut self, shape: usize, layers: usize, jobs: usize) -> Result<Ground> {
        let (places, task) = (self.places(jobs), &self.tasks[shape]);
        let known = self.shapes[shape].as_ref().map(|ground| &ground.lot);
        let lot = match known.filter(|lot| lot.constants().len() == layers) {
            Some(lot) => lot.with_places(places),
            None => {
                let layer = |layer| task.constants(derive(self.seed, &[1, shape as u64, layer as u64]));
                let layers: Arc<Vec<Bundle>> = Arc::new((0..layers).map(layer).collect::<Result<_>>()?);
                let pattern = task.input(derive(self.seed, &[2, shape as u64]))?;
                Lot::new(Arc::clone(task), layers, pattern, places, places)
            }
        };
        Ok(Ground { lot, jobs, one: 0.0, challenger_jobs: None, order: [Vec::new(), Vec::new()], untouched: [0; 2] })
    }

    /// Meets a shape for the first time: the champion's time for one job says how many make a sample, and that says how
    /// many layers are wanted.
    fn survey(&mut self, shape: usize) -> Result<(), Halt> {
        // On a device as many as it takes, whatever makes a sample.
        let first = if self.device.is_some() { self.rotation(shape, 1).0 } else { 2 };
        self.shapes[shape] = Some(self.ground(shape, first, 1)?);
        self.make_ready(Side::Champion)?;
        let mut fastest = f64::INFINITY;
        for _ in 0..3 {
            fastest = fastest.min(self.swim(Side::Champion, Some(1), &[0], false, false)?.seconds);
        }
        let (timing, resolution) = (&self.settings.timing, self.report.clock_resolution);
        // A device's clock has no round trips in it.
        let trips = match self.device {
            Some(_) => 0.0,
            None => SAMPLE_TRIPS * self.report.champion_round_trip.unwrap_or(0.0),
        };
        // Problems that move little are over soon, and a sample needs many of them.
        let moved = self.shapes[shape].as_ref().ok_or(Error::Samples)?.lot.job_bytes();
        let most = if self.device.is_some() { SAMPLE_BYTES_ON_DEVICE } else { SAMPLE_BYTES };
        let most = ((most / (moved as f64).max(1.0)) as usize).clamp(1, timing.sample_jobs);
        let least = timing.sample_seconds.max(0.5 * trips);
        let mut jobs = jobs_a_sample(fastest, resolution, timing.sample_ticks, least, most);
        if self.device.is_some() {
            // So many that the slowdown which is planted is whole jobs.
            jobs = jobs.next_multiple_of((1.0 / timing.plant).round().max(1.0) as usize);
        }
        let (layers, passing) = self.rotation(shape, jobs);
        self.report.rotated_bytes[shape] = passing;
        self.shapes[shape] = Some(Ground { one: fastest, ..self.ground(shape, layers, jobs)? });
        Ok(())
    }

    /// Meets a challenger on a shape for the first time: whoever is many times as slow does fewer jobs in a sample, or
    /// nobody would live to see its end. The round trip is then a smaller part of its sample than of the champion's, by
    /// a twentieth at most, which is nothing beside that.
    fn meet(&mut self) -> Result<(), Halt> {
        let mut fastest = f64::INFINITY;
        for _ in 0..2 {
            fastest = fastest.min(self.swim(Side::Challenger, None, &[0], false, false)?.seconds);
        }
        let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
        let jobs = (ground.jobs as f64 * (SLOWER * ground.one / fastest).min(1.0)).ceil();
        ground.challenger_jobs = Some((jobs as usize).max(1));
        Ok(())
    }

    /// Jobs that make a sample of a side.
    fn jobs(&self, side: Side) -> Result<usize, Halt> {
        let ground = self.shapes[self.shape].as_ref().ok_or(Error::Samples)?;
        let challenges = self.pairing == Pairing::Duel && side == Side::Challenger;
        Ok(ground.challenger_jobs.filter(|_| challenges).unwrap_or(ground.jobs))
    }

    /// Has a side prepare for the shape that is to be timed.
    fn make_ready(&mut self, side: Side) -> Result<(), Halt> {
        let mut lots = self.lots();
        let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
        let mut order: Vec<usize> = (0..ground.lot.constants().len()).collect();
        lots.shuffle(&mut order);
        ground.order[side.index()] = order;
        // What was just prepared is in the caches.
        ground.untouched = [0; 2];
        let session = self.sides.as_mut().ok_or(Error::Samples)?[side.index()].as_mut();
        session.tensors().lay(&ground.lot)?;
        let faulted = |fault| Halt::Fault(self_or_champion(self.pairing, side), fault);
        if let Readiness::Unsupported(reason) = session.prepare().map_err(faulted)? {
            return Err(faulted(Fault::Unsupported { problem: self.tasks[self.shape].name(), reason }));
        }
        Ok(())
    }

    /// Measures what a run of a kernel that does nothing takes behind a latch, where that is to be taken off: without
    /// inputs, and with those of a sample, once it is known how many jobs make one.
    fn take_blanks(&mut self) -> Result<(), Halt> {
        let (Some(session), Some(device)) = (&mut self.blank, &mut self.device) else { return Ok(()) };
        let ours = |fault: Fault| Halt::Error(Error::Blank { reason: fault.to_string() });
        let mut counts = vec![0];
        if let Some(ground) = &self.shapes[self.shape] {
            session.tensors().lay(&ground.lot.without_constants())?;
            session.prepare().map_err(ours)?;
            counts.push(ground.jobs);
        }
        for count in counts {
            let jobs: Vec<Job> = (0..count).map(|slot| Job { layer: 0, input: slot, output: slot }).collect();
            let mut seconds = Vec::with_capacity(BLANKS);
            // The first with jobs after it was prepared has no latch.
            for _ in 0..BLANKS + usize::from(count > 0) {
                let passed = session.stage(&jobs).and_then(|()| session.go()).map_err(ours)?;
                seconds.extend(passed.map(|time| time.seconds));
            }
            device.note_blanks(self.shape, count, &seconds);
        }
        Ok(())
    }

    /// Whether one sweep serves several samples of each side: layers that were not touched since are as cold for the
    /// last as for the first. Not with strangers, who could fetch them beforehand in an earlier one. Reading through
    /// the caches takes far longer than a sample.
    fn sweep_serves_several(&self) -> bool {
        self.processor.is_some() && self.contestants.iter().all(|contestant| contestant.about().trusted)
    }

    /// Cold layers for a sample, where one sweep serves several. Where none are left, both sides do a job that does not
    /// count, and the caches are swept.
    fn draw_untouched(&mut self, side: Side) -> Result<Vec<usize>, Halt> {
        let jobs = self.jobs(side)?;
        let ground = self.shapes[self.shape].as_ref().ok_or(Error::Samples)?;
        let wanted = jobs.min(ground.order[side.index()].len() - 1);
        if ground.untouched[side.index()] < wanted {
            for side in [Side::Champion, Side::Challenger] {
                let (awakening, _) = self.draw_layers(side, Temperature::Warm)?;
                self.awaken(side, awakening)?;
            }
            if let Some(Processor { prober, threads, .. }) = &self.processor {
                prober.sweep(self.turn_bytes() as u64, threads);
            }
            let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
            ground.untouched = [ground.order[0].len() - 1, ground.order[1].len() - 1];
        }
        let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
        ground.untouched[side.index()] -= wanted;
        let order = &mut ground.order[side.index()];
        let layers = order[..wanted].iter().cycle().take(jobs).copied().collect();
        order.rotate_left(wanted);
        Ok(layers)
    }

    /// The layer of the job that does not count, and those of the jobs that do.
    fn draw_layers(&mut self, side: Side, temperature: Temperature) -> Result<(usize, Vec<usize>), Halt> {
        let (mut lots, swept) = (self.lots(), self.processor.is_some());
        let jobs = self.jobs(side)?;
        let planted = self.pairing == Pairing::Plant && side == Side::Challenger;
        let jobs = jobs + if planted { self.planted(jobs) } else { 0 };
        let ground = self.shapes[self.shape].as_mut().ok_or(Error::Samples)?;
        let order = &mut ground.order[side.index()];
        if swept {
            lots.shuffle(order);
        }
        let last = order[order.len() - 1];
        Ok(match temperature {
            Temperature::Warm => (last, vec![last; jobs]),
            Temperature::Cold => {
                let layers = order.iter().cycle().take(jobs).copied().collect();
                let turn = jobs % order.len().max(1);
                order.rotate_left(turn);
                (last, layers)
            }
        })
    }

    /// A job that does not count.
    fn awaken(&mut self, side: Side, layer: usize) -> Result<(), Halt> {
        let (place, poison) = (self.lots().usize(..), Poison::Ones);
        let places = self.shapes[self.shape].as_ref().ok_or(Error::Samples)?.lot.inputs();
        self.run(side, &[Job { layer, input: place % places, output: place % places }], poison)?;
        Ok(())
    }

    /// One run: a job that does not count, unless one sweep serves several samples, then fresh inputs and poison, the
    /// clock, and what is seen when it stands.
    fn swim(
        &mut self,
        side: Side,
        awakening: Option<usize>,
        layers: &[usize],
        cold: bool,
        checked: bool,
    ) -> Result<Take, Halt> {
        let mut lots = self.lots();
        let poison = if lots.bool() { Poison::Ones } else { Poison::Sevens };
        let places = self.shapes[self.shape].as_ref().ok_or(Error::Samples)?.lot.inputs();
        let mut places = [(0..places).collect::<Vec<_>>(), (0..places).collect()];
        places.iter_mut().for_each(|places| lots.shuffle(places));
        let job = |slot: usize, layer| Job { layer, input: places[0][slot], output: places[1][slot] };
        let jobs: Vec<Job> = layers.iter().enumerate().map(|(slot, &layer)| job(slot, layer)).collect();
        if let Some(layer) = awakening {
            self.run(side, &[job(jobs.len(), layer)], poison)?;
            let turn = self.turn_bytes() as u64;
            match &self.processor {
                Some(Processor { prober, threads, .. }) if cold => prober.sweep(turn, threads),
                None if cold => {
                    self.sides.as_mut().ok_or(Error::Samples)?[side.index()].sweep(turn);
                }
                _ => {}
            }
        }
        let take = self.run(side, &jobs, poison)?;
        if checked {
            self.inspect(side, &jobs, poison)?;
        }
        Ok(take)
    }

    /// Writes what some jobs need while the contestant stands still, and times them.
    fn run(&mut self, side: Side, jobs: &[Job], poison: Poison) -> Result<Take, Halt> {
        let mut inputs = Vec::with_capacity(jobs.len());
        for _ in jobs {
            self.drawn += 1;
            inputs.push(self.tasks[self.shape].input(derive(self.seed, &[8, self.drawn]))?);
        }
        let session = self.sides.as_mut().ok_or(Error::Samples)?[side.index()].as_mut();
        let faulted = |fault| Halt::Fault(self_or_champion(self.pairing, side), fault);
        session.tensors().write(jobs, inputs, poison)?;
        session.stage(jobs).map_err(faulted)?;
        let start = self.clock.now();
        let by_device = session.go().map_err(faulted)?;
        if let (Some(device), Some(time)) = (&mut self.device, by_device) {
            let of = (self.shape, jobs.len());
            let seconds = device.note(side, of, time, self.clock.now() - start).map_err(faulted)?;
            return Ok(Take { seconds, waited: 0.0 });
        }
        if self.pairing == Pairing::Plant && side == Side::Challenger {
            let planted = (self.clock.now() - start) * (1.0 + self.plant);
            while self.clock.now() - start < planted {
                std::hint::spin_loop();
            }
        }
        let seconds = self.clock.now() - start;
        // Whose threads are more than the processors stands in line behind itself, and that is its own time.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let queued = session.queued().filter(|queued| queued.threads <= processors);
        Ok(Take { seconds, waited: queued.map_or(0.0, |queued| queued.seconds) })
    }

    /// Looks at the outputs of a sample, on copies. What is looked at is drawn only now, from a seed of its own: places
    /// and poison were drawn before, and a contestant has seen them.
    fn inspect(&mut self, side: Side, jobs: &[Job], poison: Poison) -> Result<(), Halt> {
        let mut lots = self.lots();
        let trusted = self.contestants[self_or_champion(self.pairing, side).index()].about().trusted;
        let task = &self.tasks[self.shape];
        let tensors = self.sides.as_mut().ok_or(Error::Samples)?[side.index()].tensors();
        let (blame, name) = (self_or_champion(self.pairing, side), task.name());
        let wrong = |what: String| Halt::Fault(blame, Fault::Wrong { problem: name.clone(), what });
        let tampered = |what: &str| Halt::Fault(blame, Fault::Tampering { what: format!("{what} of {name}") });
        let outputs = match tensors.read_outputs(jobs) {
            Err(Error::Shortened { .. }) => return Err(tampered("the file of outputs")),
            outputs => outputs?,
        };
        let specs = task.outputs();
        if let Some(place) = outputs.iter().find_map(|output| poisoned(output, poison, &specs)) {
            return Err(wrong(format!("element {place} of a timed output was not written when it said done")));
        }
        if !tensors.inputs_are_intact(jobs)? {
            return Err(tampered("the inputs of a timed run"));
        }
        let constants = tensors.constants()?;
        let mut run = Vec::with_capacity(jobs.len());
        for (job, output) in jobs.iter().zip(&outputs) {
            run.push(Timed { constants: &constants[job.layer], input: tensors.input(job.input)?, output });
        }
        let found = task.look(&run, self.settings.checking.elements, &mut lots)?;
        if let Some(what) = found.wrong {
            return Err(wrong(format!("a timed output: {what}")));
        }
        if self.pairing == Pairing::Duel {
            let errors = &mut self.errors[side.index()];
            errors.compared += found.compared;
            errors.squares += found.squares;
        }
        self.report.outputs_sampled += 1;
        let whole_every = self.settings.checking.whole_every.max(1) * if trusted { OWN_WHOLE } else { 1 };
        if lots.usize(..whole_every) == 0 {
            self.report.outputs_compared += 1;
            if let Some(what) = task.look_whole(run[lots.usize(..run.len())])? {
                return Err(wrong(format!("a timed output: {what}")));
            }
        }
        Ok(())
    }

    /// Whether the challenger's timed results are as precise as the champion's.
    fn compare_precision(&mut self) -> Result<(), Halt> {
        let [champion, challenger] = self.errors;
        if self.pairing != Pairing::Duel || champion.compared.min(challenger.compared) < ENOUGH_ELEMENTS {
            return Ok(());
        }
        self.report.timed_precision = Some([champion.rms(), challenger.rms()]);
        let most = self.settings.checking.precision_multiple;
        if challenger.rms() <= most * champion.rms() {
            return Ok(());
        }
        let what = format!(
            "its errors against float64 in timed runs are {:.1} times the champion's, and {most} times is allowed: precision was traded \
             for speed",
            challenger.rms() / champion.rms(),
        );
        Err(Halt::Fault(Side::Challenger, Fault::Wrong { problem: "all problems".to_owned(), what }))
    }

    /// Whether the weights of both sides still are what was laid out. Our own code maps them for reading only.
    fn compare_weights(&mut self) -> Result<(), Halt> {
        for side in [Side::Champion, Side::Challenger] {
            let who = self_or_champion(self.pairing, side);
            if self.contestants[who.index()].about().trusted {
                continue;
            }
            let Some(sides) = &mut self.sides else { continue };
            if !sides[side.index()].tensors().constants_are_intact()? {
                let fault = Fault::Tampering { what: format!("the constants of {}", self.tasks[self.shape].name()) };
                return Err(Halt::Fault(who, fault));
            }
        }
        Ok(())
    }

    /// Whether all that the two sides did on a GPU was in its clock.
    fn settle(&mut self) -> Result<(), Halt> {
        let Some(device) = &mut self.device else { return Ok(()) };
        for side in [Side::Champion, Side::Challenger] {
            device.settle(side).map_err(|fault| Halt::Fault(self_or_champion(self.pairing, side), fault))?;
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
        Ok(stats::median(&seconds))
    }

    /// Settles whose clock counts, when somebody has said hello for the first time: a GPU's where both sides queue,
    /// also where only one of them is here now.
    fn settle_clock(&mut self, sides: &mut [Box<dyn Session>; 2]) -> Result<(), Halt> {
        if let Some((device, blank)) = self.perhaps.take() {
            let [champion, challenger] = self.contestants;
            let mut queue = sides.iter().all(|side| side.queues());
            if queue && self.pairing != Pairing::Duel && champion.about() != challenger.about() {
                let other = challenger.start().map_err(|fault| Halt::Fault(Side::Challenger, fault))?;
                queue = other.queues();
            }
            if queue {
                self.be_on_device(device);
                self.blank = Some(self.start_blank(blank.as_ref())?);
            }
        }
        for side in [Side::Champion, Side::Challenger] {
            match (self.blank.is_some(), sides[side.index()].queues()) {
                (true, false) => {
                    let reason = "it queued its runs behind the latch before, and does not now".to_owned();
                    return Err(Halt::Fault(self_or_champion(self.pairing, side), Fault::Start { reason }));
                }
                (false, true) => {
                    let other = if side == Side::Champion { Side::Challenger } else { Side::Champion };
                    if self.pairing == Pairing::Duel && !sides[other.index()].queues() {
                        let name = self.contestants[other.index()].about().name;
                        let why = "does not queue its runs behind a latch on the GPU, and its rival does";
                        self.report.remarks.push(format!("the host's clock times both: {name} {why}"));
                    }
                    sides[side.index()].by_the_host();
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts who tells what is to be taken off. It is shown the least of a problem that there is, and looks at nothing
    /// of it but the latch.
    fn start_blank(&mut self, blank: &dyn Contestant) -> Result<Box<dyn Session>, Halt> {
        let lot = self.ground(0, 1, 0)?.lot;
        let ours = |fault: Fault| Halt::Error(Error::Blank { reason: fault.to_string() });
        let mut session = blank.start().map_err(ours)?;
        session.tensors().lay(&lot)?;
        session.prepare().map_err(ours)?;
        Ok(session)
    }

    /// Two processes that have said hello and stand still.
    fn pair(&mut self, pairing: Pairing) -> Result<[Box<dyn Session>; 2], Halt> {
        let sides = [Side::Champion, Side::Challenger];
        let who = sides.map(|side| self_or_champion(pairing, side).index());
        let mut kinds = who;
        let mut contestants = who.map(|who| self.contestants[who]);
        if let Some(fenced) = self.fenced.filter(|_| pairing == Pairing::Fence) {
            (kinds[1], contestants[1]) = (self.contestants.len(), fenced);
        }
        let faulted = |(place, fault): (usize, Fault)| Halt::Fault(self_or_champion(pairing, sides[place]), fault);
        self.waiting.pair(kinds, contestants).map_err(faulted)
    }

    /// Measures the round trip of a side that is met for the first time, and notes what stands around it.
    fn welcome(&mut self, side: Side, pairing: Pairing, session: &mut dyn Session) -> Result<(), Halt> {
        let who = self_or_champion(pairing, side);
        let faulted = |fault| Halt::Fault(who, fault);
        let known = match who {
            Side::Champion => self.report.champion_round_trip,
            Side::Challenger => self.report.challenger_round_trip,
        };
        if known.is_none() {
            let seconds = self.round_trip(session).map_err(faulted)?;
            match who {
                Side::Champion => self.report.champion_round_trip = Some(seconds),
                Side::Challenger => self.report.challenger_round_trip = Some(seconds),
            }
            let guards = session.guards();
            let missing = guards.iter().filter(|guard| !guard.present);
            let remark = |guard: &Guard| format!("{who}: no {} here: {}", guard.name, guard.without);
            self.report.remarks.extend(missing.map(remark));
            if !guards.is_empty() {
                self.report.guards = guards;
            }
        }
        Ok(())
    }
}

impl Course for Pool<'_> {
    fn names(&self) -> [String; 2] {
        self.contestants.map(|contestant| contestant.about().name)
    }

    fn shapes(&self) -> Vec<String> {
        self.tasks.iter().map(|task| task.name()).collect()
    }

    fn enter(&mut self, pairing: Pairing, _seed: u64) -> Result<(), Halt> {
        self.pairing = pairing;
        self.sides = None;
        if let Some(Processor { prober, threads, best }) = &mut self.processor {
            let now = prober.sample(threads);
            *best = Ceilings { flops: best.flops.max(now.flops), bytes: best.bytes.max(now.bytes) };
        }
        let mut sides = self.pair(pairing)?;
        for side in [Side::Champion, Side::Challenger] {
            self.welcome(side, pairing, sides[side.index()].as_mut())?;
        }
        self.settle_clock(&mut sides)?;
        self.sides = Some(sides);
        Ok(())
    }

    fn prepare(&mut self, shape: usize) -> Result<(), Halt> {
        self.compare_weights()?;
        self.settle()?;
        self.shape = shape;
        if self.shapes[shape].is_none() {
            self.take_blanks()?;
            self.survey(shape)?;
        }
        self.take_blanks()?;
        for side in [Side::Champion, Side::Challenger] {
            self.make_ready(side)?;
        }
        let met = self.shapes[shape].as_ref().is_some_and(|ground| ground.challenger_jobs.is_some());
        if self.pairing == Pairing::Duel && self.device.is_none() && !met {
            self.meet()?;
        }
        Ok(())
    }

    fn has_neighbours(&mut self) -> bool {
        self.sides = None;
        self.waiting.end();
        self.device.as_ref().is_some_and(Watched::has_neighbours)
    }

    fn sample(&mut self, side: Side, temperature: Temperature) -> Result<Take, Halt> {
        let cold = temperature == Temperature::Cold;
        let (awakening, layers) = match cold && self.sweep_serves_several() {
            true => (None, self.draw_untouched(side)?),
            false => self.draw_layers(side, temperature).map(|(awakening, layers)| (Some(awakening), layers))?,
        };
        let Take { seconds, waited } = self.swim(side, awakening, &layers, cold, true)?;
        let jobs = self.jobs(side)? as f64;
        Ok(Take { seconds: seconds / jobs, waited: waited / jobs })
    }

    fn leave(&mut self) -> Result<(), Halt> {
        self.compare_weights()?;
        self.settle()?;
        self.sides = None;
        self.compare_precision()
    }

    fn has_strangers(&self) -> bool {
        self.fenced.is_some()
    }

    fn now(&self) -> f64 {
        self.clock.now()
    }

    fn plant(&mut self, size: f64) {
        self.plant = size;
        // What is planted on a device are jobs, and there has to be room for them.
        let mut met = std::mem::take(&mut self.shapes);
        for ground in met.iter_mut().flatten() {
            ground.lot = ground.lot.with_places(self.places(ground.jobs));
        }
        self.shapes = met;
    }

    /// What others do on the processors is in no device's clock.
    fn wait_for_quiet(&mut self, most: f64) -> f64 {
        if self.device.is_some() {
            return 0.0;
        }
        let waited = neighbours::wait(self.settings.timing.busy, most);
        self.report.waited_seconds += waited;
        if waited > 1.0 {
            self.say(&format!("waited {waited:.0} s for neighbours to go"));
        }
        waited
    }

    fn say(&mut self, line: &str) {
        if let Some(watcher) = self.watcher {
            watcher(line);
        }
    }

    fn floors(&self) -> Option<Vec<Floor>> {
        let mut best = self.ceilings()?;
        if self.processor.is_some() {
            best.flops *= INTEGER_FACTOR;
        }
        let floor = |(task, &rotated): (&Arc<dyn Task>, &u64)| {
            let work = task.work();
            let warm = work.flops? / best.flops;
            // Whatever a cache keeps of what goes through it, it keeps no more than it holds.
            let missed = (1.0 - self.report.cache_bytes as f64 / rotated.max(1) as f64).max(0.0);
            Some(Floor { cold: warm.max(missed * work.constant_bytes / best.bytes), warm })
        };
        self.tasks.iter().zip(&self.report.rotated_bytes).map(floor).collect()
    }

    fn report(&self) -> CourseReport {
        let mut report = self.report.clone();
        report.device = self.device.as_ref().map(|device| device.report.clone());
        report.remarks.sort();
        report.remarks.dedup();
        report
    }
}

/// Whose session stands on a side: in a control and in a plant, both are the champion's.
fn self_or_champion(pairing: Pairing, side: Side) -> Side {
    if pairing == Pairing::Duel { side } else { Side::Champion }
}

/// The first element of an output that still holds the poison, in tensors where no result looks like it.
fn poisoned(output: &[Vec<u8>], poison: Poison, specs: &[Spec]) -> Option<usize> {
    let mut before = 0;
    for (tensor, spec) in output.iter().zip(specs).filter(|(_, spec)| spec.element.has_nan()) {
        // Gigabytes go through here: an element is compared as a whole where it has a width that machines have.
        let place = match spec.element.bytes() {
            2 => holding(tensor, [poison.byte(); 2]),
            4 => holding(tensor, [poison.byte(); 4]),
            8 => holding(tensor, [poison.byte(); 8]),
            width => tensor.chunks_exact(width).position(|element| element.iter().all(|&byte| byte == poison.byte())),
        };
        if let Some(place) = place {
            return Some(before + place);
        }
        before += tensor.len() / spec.element.bytes();
    }
    None
}

/// The first element that has these bytes.
fn holding<const WIDTH: usize>(tensor: &[u8], bytes: [u8; WIDTH]) -> Option<usize> {
    tensor.as_chunks().0.iter().position(|element: &[u8; WIDTH]| *element == bytes)
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
