//! Timings by the host's clock, with cold and with warm weights.
//!
//! *Warm* is the same layer again at once, so that whatever fits stays in the caches. *Cold* is what a model of many
//! layers sees: copies of the layer are taken in turn, so many that more than [`ROTATION`] bytes of weights pass before
//! a copy comes round again. Cases with weights of the same sizes share their copies. Timings of all cases and samples
//! of the machine's ceilings are interleaved in rounds, so that a slow minute of a shared machine falls on all of them.
//!
//! [`ROTATION`]: super::rotation::ROTATION

use std::slice;
use std::time::Instant;

use hammerhead::Engine;
use hammerhead::machine::Machine;
use indicatif::ProgressBar;
use testkit::verify::{Expected, Report};

use super::args::Args;
use super::checked::{checked, computed};
use super::record::{Head, HostCase, HostRecord};
use super::rotation::{Kind, Roomed, Rotation, batches};
use super::scaling::Rivals;
use super::stop;
use crate::computed::{Clock, Computed, on_device};
use crate::floor::{Floor, Rates};
use crate::selection::Chosen;
use crate::shapes::weight_bytes;
use crate::subject::Subject;
use crate::timing::Spread;
use crate::{Result, console, memory};

/// The part of the free memory that copies may take.
const SHARE: f64 = 0.7;
/// Samples of each kind that every case gets, however long they take.
const SAMPLES: usize = 3;
/// Seconds between samples of the machine's ceilings.
const PROBE_EVERY: f64 = 0.25;

/// Checks every case, then times all of them.
pub fn measure(args: &Args, cases: &[Chosen], engine: &Engine) -> Result<HostRecord> {
    let single = args.scaling.then(|| args.how.engine_with(Some(1))).transpose()?;
    let engines = Engines { all: engine, single: single.as_ref() };
    let mut floor = Floor::new(engine)?;
    let bar = console::progress(cases.len());
    let mut measured = Vec::new();
    for batch in batches(cases, memory::free().map_or(f64::INFINITY, |free| SHARE * free))? {
        if stop::asked() {
            break;
        }
        measured.extend(Batch::load(args, &batch, engines, &bar)?.measure(args, engines, &mut floor, &bar)?);
    }
    bar.finish_and_clear();
    let ceilings = floor.rates();
    Ok(HostRecord {
        head: Head::new(engine, args.selection.seed),
        machine: Machine::detect(),
        threads: engine.threads(),
        cases: measured.into_iter().map(|measured| measured.report(ceilings.as_ref())).collect(),
        ceilings,
    })
}

/// Who computes: on all threads, and on one where that is compared.
#[derive(Clone, Copy)]
struct Engines<'e> {
    all: &'e Engine,
    single: Option<&'e Engine>,
}

impl Engines<'_> {
    /// Samples the ceilings of the threads that compute.
    fn probe(&self, floor: &mut Floor) {
        match self.single {
            Some(single) => floor.sample_both(self.all.team(), single.team()),
            None => floor.sample(self.all.team()),
        }
    }
}

/// A case with its timings.
struct Measured {
    chosen: Chosen,
    subject: Subject,
    rotation: usize,
    copies: usize,
    checked: Report,
    cold: Vec<f64>,
    warm: Vec<f64>,
    rivals: Option<Rivals>,
}

/// Cases that are measured together.
struct Batch {
    rotations: Vec<Rotation>,
    cases: Vec<Measured>,
}

impl Batch {
    /// Makes the weights and tokens, and checks each case once.
    fn load(args: &Args, roomed: &[Roomed<'_>], engines: Engines<'_>, bar: &ProgressBar) -> Result<Self> {
        let mut batch = Self { rotations: Vec::new(), cases: Vec::new() };
        let seed = args.selection.seed;
        for Roomed { chosen, copies } in roomed.iter().take_while(|_| !stop::asked()) {
            let case = &chosen.case;
            bar.set_message(format!("loading and checking {case}"));
            let mut instance = chosen.instance(seed)?;
            let kind = Kind::of(case);
            let rotation = match batch.rotations.iter().position(|rotation| rotation.kind == kind) {
                Some(index) => index,
                None => {
                    batch.rotations.push(Rotation::load(kind, instance.weights.clone(), *copies, engines.all)?);
                    batch.rotations.len() - 1
                }
            };
            let weights = &batch.rotations[rotation];
            instance.weights.clone_from(&weights.weights);
            let layer = &weights.layers[0];
            let expected = Expected::new(&instance, case.is_community(), seed, engines.all.team());
            let subject = computed(case, &instance, engines.all, layer)?;
            let checked = checked(case, slice::from_ref(&subject), &expected, seed)?;
            let rivals = |single| Rivals::new(case, &instance, [engines.all, single], layer, &expected, seed);
            // Threads and grouping are questions to the processor.
            let single = engines.single.filter(|_| !on_device(subject.plan().backend()));
            let rivals = single.map(rivals).transpose()?;
            let copies = weights.layers.len();
            let (chosen, cold, warm) = ((*chosen).clone(), Vec::new(), Vec::new());
            batch.cases.push(Measured { chosen, subject, rotation, copies, checked, cold, warm, rivals });
        }
        batch.rotations.iter_mut().for_each(|rotation| rotation.weights.clear());
        Ok(batch)
    }

    /// Times all cases in rounds until each has had its time.
    fn measure(
        mut self,
        args: &Args,
        engines: Engines<'_>,
        floor: &mut Floor,
        bar: &ProgressBar,
    ) -> Result<Vec<Measured>> {
        let engine = engines.all;
        let mut probed: Option<Instant> = None;
        let before = bar.position();
        loop {
            let unfinished = self.cases.iter().filter(|m| !m.is_finished(args.seconds)).count();
            bar.set_position(before + (self.cases.len() - unfinished) as u64);
            if unfinished == 0 || stop::asked() {
                engines.probe(floor);
                self.cases.retain(|measured| !measured.cold.is_empty());
                return Ok(self.cases);
            }
            let unfinished = self.cases.iter_mut().filter(|m| !m.is_finished(args.seconds));
            for measured in unfinished.take_while(|_| !stop::asked()) {
                if probed.is_none_or(|probed| probed.elapsed().as_secs_f64() > PROBE_EVERY) {
                    engines.probe(floor);
                    probed = Some(Instant::now());
                }
                bar.set_message(format!("timing {}", measured.chosen.case));
                let rotation = &mut self.rotations[measured.rotation];
                let layer = rotation.turn();
                let cold = measured.subject.compute(engine, layer)?;
                measured.cold.push(cold);
                measured.warm.push(measured.subject.compute(engine, layer)?);
                if let (Some(rivals), Some(single)) = (&mut measured.rivals, engines.single) {
                    rivals.time(cold, [engine, single], rotation)?;
                }
            }
        }
    }
}

impl Measured {
    fn is_finished(&self, seconds: f64) -> bool {
        self.cold.len() >= SAMPLES && self.cold.iter().chain(&self.warm).sum::<f64>() >= seconds
    }

    fn report(self, ceilings: Option<&Rates>) -> HostCase {
        let Self { chosen, subject, copies, checked, cold, warm, rivals, .. } = self;
        let (cold, warm) = (Spread::of(&cold), Spread::of(&warm));
        let (plan, problem) = (subject.plan(), subject.plan().problem());
        let floor_seconds = ceilings.and_then(|rates| rates.seconds(plan));
        HostCase {
            computed: Computed::of(chosen.origin, plan, Clock::Host, &checked),
            weight_bytes: weight_bytes(problem, |s| s.m > 0),
            cold_copies: copies,
            cold_bytes: copies as f64 * weight_bytes(problem, |_| true),
            cold,
            warm,
            floor_seconds,
            cold_of_floor: floor_seconds.map(|floor| floor / cold.median),
            warm_of_floor: floor_seconds.map(|floor| floor / warm.median),
            scaling: rivals.map(|rivals| rivals.report()),
        }
    }
}
