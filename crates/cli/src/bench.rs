//! `hammerhead bench`: how fast, with cold and with warm weights, and how near to what the machine could do.
//!
//! *Warm* is the same layer again at once, so that whatever fits stays in the caches. *Cold* is what a model of many
//! layers sees: copies of the layer are taken in turn, so many that more than [`ROTATION`] bytes of weights pass before
//! a copy comes round again. Cases with weights of the same sizes share their copies. Timings of all cases and samples
//! of the machine's ceilings are interleaved in rounds, so that a slow minute of a shared machine falls on all of them.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Args as ClapArgs;
use hammerhead::machine::Machine;
use hammerhead::{Activation, Engine, Gate, Layer, Weights};
use indicatif::ProgressBar;
use serde::Serialize;
use testkit::cases::{Case, Inputs, Instance, Suite};
use testkit::verify::{Expected, Report};

use crate::floor::{Floor, Rates};
use crate::options::How;
use crate::scaling::{Rivals, Scaling};
use crate::selection::{self, Chosen, Defaults, Selection};
use crate::shapes::weight_bytes;
use crate::subject::Subject;
use crate::table::{self, Table};
use crate::timing::Spread;
use crate::{Error, Result, bench_gpu, console, files, memory, shapes};

/// Bytes of weights that pass before a copy comes round again, beyond any cache.
const ROTATION: f64 = 1.2e9;
/// Copies of one layer, at most.
const COPIES: usize = 128;
/// The part of the free memory that copies may take.
const SHARE: f64 = 0.7;
/// Samples of each kind that every case gets, however long they take.
const SAMPLES: usize = 3;
/// Seconds between samples of the machine's ceilings.
const PROBE_EVERY: f64 = 0.25;
/// The version of the JSON report's layout.
pub const SCHEMA: u32 = 1;

/// Measure speed, with cold and with warm weights
#[derive(Debug, ClapArgs)]
#[command(mut_arg("suite", |suite| suite.help(selection::suite_help("dual, group and decode"))))]
#[command(mut_arg("activation", |tokens| tokens.help("The tokens' type: nvfp4, f16, bf16 or f32; may be given several times \
    [default: each case's own, and nvfp4 for a shape; with --backend cuda f16 and nvfp4]")))]
#[command(
    long_about = "Measure speed. Each case is checked against the reference first, then timed with cold weights (a \
    different copy each time, more than 1.2 GB of them, as in a model of many layers) and with warm ones (the same copy \
    again). Timings of all cases and of the machine's own ceilings, arithmetic and memory, are interleaved in rounds. \
    The medians are told with the range of the middle eight tenths; `of floor` is the least time that the ceilings would \
    allow as a part of the median. Warm weights may beat the floor, because caches are faster than memory.\n\n\
    The copies take up to 1.2 GB for each size of weights, and less where memory is short; the report says how many \
    bytes were rotated.\n\n\
    On a GPU (--backend cuda) the device's own clock times graphs of calls over weights, tokens and results in rotation \
    beyond its cache, after a pause (burst) and after 300 ms of load (sustained); copies to and from the host are not part of \
    it, the expansion of NVFP4 tokens is.\n\n\
    Examples:\n  \
    hammerhead bench\n  \
    hammerhead bench --suite decode --seconds 5 --json decode.json\n  \
    hammerhead bench --shape 256x4096x7168 --shape 80,176,128x4096x7168 --activation bf16\n  \
    hammerhead bench --suite dual --backend scalar --threads 1 --config strategy=ping-pong\n  \
    hammerhead bench --suite group --scaling
  hammerhead bench --backend cuda --suite dual --activation f16 --json h200.json"
)]
pub struct Args {
    /// Every case of the suites, also those that are not there for their speed
    #[arg(long)]
    all: bool,
    /// Seconds of timing for each case, though each gets three cold and three warm runs
    #[arg(long, value_name = "T", default_value_t = 2.0, value_parser = positive)]
    seconds: f64,
    /// Time each case on one thread too, and a group's problems one after another, in the same rounds (CPU only)
    #[arg(long)]
    scaling: bool,
    /// Write a JSON report to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    how: How,
}

impl Args {
    /// Where a JSON report goes.
    pub fn json(&self) -> Option<&Path> {
        self.json.as_deref()
    }

    /// What the numbers are made from.
    pub fn seed(&self) -> u64 {
        self.selection.seed
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if f64::is_finite(seconds) && seconds > 0.0 => Ok(seconds),
        _ => Err("a number of seconds above zero is expected".to_owned()),
    }
}

#[derive(Serialize)]
struct BenchReport {
    schema: u32,
    version: &'static str,
    machine: Machine,
    threads: usize,
    backend: String,
    seed: u64,
    ceilings: Option<Rates>,
    cases: Vec<CaseReport>,
}

#[derive(Serialize)]
struct CaseReport {
    suite: String,
    why: &'static str,
    problem: String,
    groups: Vec<[usize; 3]>,
    activation: String,
    gate: String,
    output: String,
    backend: &'static str,
    config: String,
    predicted_seconds: f64,
    flops: f64,
    weight_bytes: f64,
    cold_copies: usize,
    cold_bytes: f64,
    cold: Spread,
    warm: Spread,
    floor_seconds: Option<f64>,
    cold_of_floor: Option<f64>,
    warm_of_floor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<Scaling>,
    seed: u64,
    max_error: f64,
    compared: usize,
}

/// Does the command.
pub fn bench(args: &Args) -> Result<()> {
    let engine = args.how.engine()?;
    let on_gpu = engine.backends()[0].layout() == hammerhead::gpu::pack::LAYOUT;
    let activations: &[Activation] = if on_gpu { &[Activation::F16, Activation::NvFp4] } else { &[] };
    let suites = &[Suite::Dual, Suite::Group, Suite::Decode];
    let cases = args.selection.cases(Defaults { suites, activations, timed: !args.all })?;
    // Better now than after minutes of work.
    args.json.as_deref().map_or(Ok(()), files::check_report)?;
    if on_gpu {
        if args.scaling {
            return Err(Error::NoScaling { backend: engine.backends()[0].name() });
        }
        return bench_gpu::bench(args, &cases, &engine);
    }
    let single = args.scaling.then(|| args.how.engine_with(Some(1))).transpose()?;
    let engines = Engines { all: &engine, single: single.as_ref() };
    let mut floor = Floor::new(&engine)?;
    let bar = console::progress(cases.len());
    let mut measured = Vec::new();
    for batch in batches(&cases, memory::free().map_or(f64::INFINITY, |free| SHARE * free))? {
        measured.extend(Batch::load(args, &batch, engines, &bar)?.measure(args, engines, &mut floor, &bar)?);
    }
    bar.finish_and_clear();
    let ceilings = floor.rates();
    let report = BenchReport {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::detect(),
        threads: engine.threads(),
        backend: engine.backends().iter().map(|b| b.name()).collect::<Vec<_>>().join(", "),
        seed: args.selection.seed,
        cases: measured.into_iter().map(|m| m.report(args, ceilings.as_ref())).collect(),
        ceilings,
    };
    if let Some(path) = &args.json {
        files::write_report(path, &console::json_text(&report)?)?;
    }
    tell(&report)
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

/// What cases must have in common to use the same weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    columns: Vec<(usize, usize)>,
    /// The gate.
    pub gate: Gate,
    inputs: Inputs,
}

impl Kind {
    /// What a case's weights are like.
    pub fn of(case: &Case) -> Self {
        Self { columns: case.groups.iter().map(|s| (s.n, s.k)).collect(), gate: case.gate, inputs: case.inputs }
    }
}

/// A case and how many copies of its weights there is room for.
struct Planned<'c> {
    chosen: &'c Chosen,
    copies: usize,
}

/// Cuts the list of cases where the copies of their weights would no longer fit in memory together.
fn batches(cases: &[Chosen], room: f64) -> Result<Vec<Vec<Planned<'_>>>> {
    let mut batches: Vec<Vec<Planned<'_>>> = vec![Vec::new()];
    let mut taken = 0.0;
    for chosen in cases {
        let case = &chosen.case;
        let layer = weight_bytes(&case.problem()?, |_| true);
        let copies = ((ROTATION / layer).ceil() as usize).min(COPIES).min((room / layer) as usize).max(1);
        // The weights they are made from and those being checked are there beside the copies.
        let bytes = (copies + 2) as f64 * layer;
        let shared = |batch: &Vec<Planned<'_>>| batch.iter().any(|p| Kind::of(&p.chosen.case) == Kind::of(case));
        if batches.last().is_some_and(|batch| !batch.is_empty() && !shared(batch)) && taken + bytes > room {
            batches.push(Vec::new());
            taken = 0.0;
        }
        if let Some(batch) = batches.last_mut() {
            taken += if shared(batch) { 0.0 } else { bytes };
            batch.push(Planned { chosen, copies });
        }
    }
    Ok(batches)
}

/// Copies of a layer that are taken in turn.
pub struct Rotation {
    kind: Kind,
    weights: Vec<Weights<'static>>,
    layers: Vec<Layer>,
    next: usize,
}

impl Rotation {
    fn load(kind: Kind, weights: Vec<Weights<'static>>, copies: usize, engine: &Engine) -> Result<Self> {
        let (begun, layers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        engine.team().run(|| {
            while begun.fetch_add(1, Ordering::Relaxed) < copies {
                let layer = engine.load(&weights, kind.gate);
                if let Ok(mut layers) = layers.lock() {
                    layers.push(layer);
                }
            }
        });
        let layers: Vec<Layer> = layers.into_inner().unwrap_or_default().into_iter().collect::<Result<_, _>>()?;
        Ok(Self { kind, weights, layers, next: 0 })
    }

    /// The copy that was used the longest ago.
    pub fn turn(&mut self) -> &Layer {
        self.next = (self.next + 1) % self.layers.len();
        &self.layers[self.next]
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
    fn load(args: &Args, planned: &[Planned<'_>], engines: Engines<'_>, bar: &ProgressBar) -> Result<Self> {
        let mut batch = Self { rotations: Vec::new(), cases: Vec::new() };
        for Planned { chosen, copies } in planned {
            let case = &chosen.case;
            bar.set_message(format!("loading and checking {case}"));
            let mut instance = chosen.instance(args.selection.seed)?;
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
            let expected = Expected::new(&instance, case.is_community(), args.selection.seed, engines.all.team());
            let (subject, checked) = check(args, case, &instance, engines.all, layer, &expected)?;
            let rivals =
                |single| Rivals::new(case, &instance, [engines.all, single], layer, &expected, args.selection.seed);
            let rivals = engines.single.map(rivals).transpose()?;
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
            if unfinished == 0 {
                engines.probe(floor);
                return Ok(self.cases);
            }
            for measured in self.cases.iter_mut().filter(|m| !m.is_finished(args.seconds)) {
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

/// Computes a case once and refuses to go on if the result is wrong.
fn check(
    args: &Args,
    case: &Case,
    instance: &Instance,
    engine: &Engine,
    layer: &Layer,
    expected: &Expected,
) -> Result<(Subject, Report)> {
    let plan = engine.plan(layer, &instance.activations, case.output)?;
    let (backend, config) = (plan.backend().name(), plan.config().to_string());
    let mut subject = Subject::new(instance, plan);
    subject.compute(engine, layer)?;
    let report = subject.judge(expected)?;
    match report.first {
        Some(first) => Err(Error::Wrong { case: case.to_string(), backend, config, seed: args.selection.seed, first }),
        None => Ok((subject, report)),
    }
}

impl Measured {
    fn is_finished(&self, seconds: f64) -> bool {
        self.cold.len() >= SAMPLES && self.cold.iter().chain(&self.warm).sum::<f64>() >= seconds
    }

    fn report(self, args: &Args, ceilings: Option<&Rates>) -> CaseReport {
        let Self { chosen: Chosen { suite, case }, subject, copies, checked, cold, warm, rivals, .. } = self;
        let (cold, warm) = (Spread::of(&cold), Spread::of(&warm));
        let (plan, problem) = (subject.plan(), subject.plan().problem());
        let floor_seconds = ceilings.map(|rates| rates.seconds(problem)).filter(|floor| *floor > 0.0);
        CaseReport {
            suite,
            why: case.why,
            problem: problem.to_string(),
            groups: shapes::numbers(problem),
            activation: case.activation.to_string(),
            gate: case.gate.to_string(),
            output: case.output.to_string(),
            backend: plan.backend().name(),
            config: plan.config().to_string(),
            predicted_seconds: plan.cost().seconds,
            flops: problem.flops(),
            weight_bytes: weight_bytes(problem, |s| s.m > 0),
            cold_copies: copies,
            cold_bytes: copies as f64 * weight_bytes(problem, |_| true),
            cold,
            warm,
            floor_seconds,
            cold_of_floor: floor_seconds.map(|floor| floor / cold.median),
            warm_of_floor: floor_seconds.map(|floor| floor / warm.median),
            scaling: rivals.map(|rivals| rivals.report()),
            seed: args.selection.seed,
            max_error: checked.max_error,
            compared: checked.compared,
        }
    }
}

fn tell(report: &BenchReport) -> Result<()> {
    let mut table = Table::new(&[
        "shape m×n×k",
        "backend",
        "configuration",
        ">cold",
        ">p10…p90",
        ">weights GB/s",
        ">of floor",
        ">warm",
        ">p10…p90",
        ">GFLOP/s",
        ">of floor",
        ">max error",
    ]);
    let mut lukewarm = false;
    for case in &report.cases {
        let short = case.cold_bytes < ROTATION;
        lukewarm |= short;
        let range = |spread: &Spread| format!("{}…{}", table::seconds(spread.p10), table::seconds(spread.p90));
        table.row([
            case.problem.clone(),
            case.backend.to_owned(),
            case.config.clone(),
            table::seconds(case.cold.median) + if short { "*" } else { "" },
            range(&case.cold),
            table::three_digits(case.weight_bytes / case.cold.median / 1e9),
            table::percent(case.cold_of_floor),
            table::seconds(case.warm.median),
            range(&case.warm),
            table::three_digits(case.flops / case.warm.median / 1e9),
            table::percent(case.warm_of_floor),
            format!("{:.1e}", case.max_error),
        ]);
    }
    let mut text = table.text();
    if lukewarm {
        text += "* less than 1.2 GB of weights could be rotated, so caches may have helped\n";
    }
    console::print(&text)?;
    tell_scaling(report)?;
    console::remark(&format!("seed {}, {} threads, {}", report.seed, report.threads, report.machine.cpu));
    if let Some(rates) = &report.ceilings {
        console::remark(&rates.text());
    }
    Ok(())
}

fn tell_scaling(report: &BenchReport) -> Result<()> {
    let mut table =
        Table::new(&["shape m×n×k", ">1 thread ÷ all", ">p10…p90", ">groups together ÷ one by one", ">p10…p90"]);
    for (case, scaling) in report.cases.iter().filter_map(|case| Some((case, case.scaling?))) {
        let median = |ratios: Option<Spread>| ratios.map_or(String::new(), |ratios| format!("{:.2}", ratios.median));
        let range = |ratios: Option<Spread>| {
            ratios.map_or(String::new(), |ratios| format!("{:.2}…{:.2}", ratios.p10, ratios.p90))
        };
        let Scaling { one_thread, grouped } = scaling;
        table.row([case.problem.clone(), median(one_thread), range(one_thread), median(grouped), range(grouped)]);
    }
    if report.cases.iter().any(|case| case.scaling.is_some()) {
        console::print(&table.text())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use testkit::cases;

    use super::*;

    fn chosen(suites: &[Suite]) -> Vec<Chosen> {
        let cases = suites.iter().flat_map(|&suite| cases::suite(suite));
        cases.map(|case| Chosen { suite: case.suite.to_string(), case }).collect()
    }

    #[test]
    fn cases_with_weights_of_one_kind_stay_together_and_share_their_room() {
        let decode = chosen(&[Suite::Decode]);
        let batches = batches(&decode, 1.5e9).unwrap();
        assert_eq!(batches.len(), 1);
        assert!(batches[0].iter().all(|planned| planned.copies as f64 * 33e6 > ROTATION));
    }

    #[test]
    fn cases_that_do_not_fit_together_are_measured_one_after_another() {
        let cases = chosen(&[Suite::Dual, Suite::Decode]);
        let batches = batches(&cases, 2.5e9).unwrap();
        assert!(batches.len() > 1);
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), cases.len());
    }

    #[test]
    fn where_memory_is_short_there_are_fewer_copies_but_always_one() {
        let decode = chosen(&[Suite::Decode]);
        assert_eq!(batches(&decode, 100e6).unwrap()[0][0].copies, 3);
        assert_eq!(batches(&decode, 0.0).unwrap()[0][0].copies, 1);
    }
}
