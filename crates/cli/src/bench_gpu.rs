//! `hammerhead bench` on a GPU: how long one call takes on the device, and how near that is to what the device could do.
//!
//! Each case is checked first, through the host's memory. Then calls on the device's memory are timed as [`clock`] does it:
//! graphs of calls, weights and tokens and results in rotation beyond the device's cache, after a pause (burst) and under load
//! (sustained). Tokens are half precision, as most who run quantised weights on Hopper have them, and NVFP4, whose expansion is
//! part of the time.

use hammerhead::gpu::{Cuda, device as gpu_device};
use hammerhead::{Engine, Layer, Problem, Request};
use indicatif::ProgressBar;
use serde::Serialize;
use testkit::cases::{Case, Instance};
use testkit::clock;
use testkit::verify::{Expected, Report};

use crate::bench::{Args, Kind, SCHEMA};
use crate::selection::Chosen;
use crate::subject::Subject;
use crate::table::{self, Table};
use crate::timing::Spread;
use crate::{Error, Result, console, files, shapes};

/// What the device's tensor cores reach in half precision on large matrices of random numbers. Measured once on an H200 with
/// NVIDIA's library (8192 × 8192 × 8192, 769 to 798 · 10¹²): there is none here to measure it with.
const TENSOR_FLOPS: f64 = 790e12;
/// Bytes in rotation, as a multiple of the device's cache.
const ROTATION: usize = 4;
/// Copies in rotation, at least and at most.
const COPIES: [usize; 2] = [2, 64];

#[derive(Serialize)]
struct GpuReport {
    schema: u32,
    version: &'static str,
    device: Device,
    backend: &'static str,
    seed: u64,
    ceilings: Ceilings,
    /// Cases that were wrong, which are not timed.
    wrong: Vec<String>,
    cases: Vec<CaseReport>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    multiprocessors: u32,
    cache_bytes: usize,
    driver: i32,
}

/// What the device could do at most.
#[derive(Clone, Copy, Serialize)]
struct Ceilings {
    /// Half-precision operations a second of the tensor cores; a constant.
    flops_per_second: f64,
    /// Bytes a second of its memory, measured with a copy in this run.
    bytes_per_second: f64,
}

impl Ceilings {
    /// The least time for a problem.
    fn seconds(&self, problem: &Problem) -> f64 {
        (problem.flops() / self.flops_per_second).max(problem.bytes() / self.bytes_per_second)
    }
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
    config: String,
    predicted_seconds: f64,
    flops: f64,
    bytes: f64,
    copies: usize,
    rotated_bytes: usize,
    burst: Spread,
    sustained: Spread,
    floor_seconds: f64,
    burst_of_floor: f64,
    sustained_of_floor: f64,
    max_error: f64,
    compared: usize,
}

/// Copies of a layer, and what they are copies of.
struct Loaded {
    kind: Kind,
    layers: Vec<Layer>,
}

/// Does the command on a GPU.
pub fn bench(args: &Args, cases: &[Chosen], engine: &Engine) -> Result<()> {
    let backend = engine.backends()[0].name();
    let device = Cuda::by_name(backend).map_or(0, Cuda::device);
    let info = gpu_device::context(device)?.info();
    let ceilings = Ceilings { flops_per_second: TENSOR_FLOPS, bytes_per_second: clock::bandwidth(device)? };
    let bar = console::progress(cases.len());
    let (mut reports, mut wrong, mut loaded) = (Vec::new(), Vec::new(), None);
    for case in cases {
        match measure(args, case, engine, device, ceilings, &mut loaded, &bar) {
            Ok(report) => reports.push(report),
            // The others may still be right, and time on a GPU is dear.
            Err(error @ Error::Wrong { .. }) => wrong.push(error),
            Err(error) => return Err(error),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let report = GpuReport {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        device: Device {
            name: info.name.clone(),
            multiprocessors: info.multiprocessors,
            cache_bytes: info.cache_bytes,
            driver: info.driver,
        },
        backend,
        seed: args.seed(),
        ceilings,
        wrong: wrong.iter().map(ToString::to_string).collect(),
        cases: reports,
    };
    if let Some(path) = args.json() {
        files::write_report(path, &console::json_text(&report)?)?;
    }
    tell(&report)?;
    wrong.iter().skip(1).for_each(|error| console::remark(&error.to_string()));
    wrong.into_iter().next().map_or(Ok(()), Err)
}

/// Checks a case, then times it.
fn measure(
    args: &Args,
    chosen: &Chosen,
    engine: &Engine,
    device: usize,
    ceilings: Ceilings,
    loaded: &mut Option<Loaded>,
    bar: &ProgressBar,
) -> Result<CaseReport> {
    let case = &chosen.case;
    bar.set_message(format!("loading and checking {case}"));
    let instance = chosen.instance(args.seed())?;
    let kind = Kind::of(case);
    if loaded.as_ref().is_none_or(|loaded| loaded.kind != kind) {
        // The old ones go first: they may be what there is no room for beside the new.
        *loaded = None;
        *loaded = Some(load(kind, &instance, engine, device)?);
    }
    let layers = loaded.as_ref().map_or(&[][..], |loaded| &loaded.layers);
    let (subject, checked) = check(args, case, &instance, engine)?;
    bar.set_message(format!("timing {case}"));
    let (plan, problem) = (subject.plan(), subject.plan().problem());
    let request = Request::from(*plan.config());
    let timing = clock::time(device, layers, &instance.activations, case.output, request)?;
    let (burst, sustained) = (Spread::of(&timing.burst), Spread::of(&timing.sustained));
    let floor_seconds = ceilings.seconds(problem);
    Ok(CaseReport {
        suite: chosen.suite.clone(),
        why: case.why,
        problem: problem.to_string(),
        groups: shapes::numbers(problem),
        activation: case.activation.to_string(),
        gate: case.gate.to_string(),
        output: case.output.to_string(),
        config: plan.config().to_string(),
        predicted_seconds: plan.cost().seconds,
        flops: problem.flops(),
        bytes: problem.bytes(),
        copies: layers.len(),
        rotated_bytes: timing.rotated_bytes,
        burst,
        sustained,
        floor_seconds,
        burst_of_floor: floor_seconds / burst.median,
        sustained_of_floor: floor_seconds / sustained.median,
        max_error: checked.max_error,
        compared: checked.compared,
    })
}

/// So many copies that they do not fit into the device's cache together, whatever tokens come with them.
fn load(kind: Kind, instance: &Instance, engine: &Engine, device: usize) -> Result<Loaded> {
    let wanted = ROTATION * gpu_device::context(device)?.info().cache_bytes;
    let first = engine.load(&instance.weights, kind.gate)?;
    let copies = wanted.div_ceil(first.packed_bytes().max(1)).clamp(COPIES[0], COPIES[1]);
    let mut layers = vec![first];
    for _ in 1..copies {
        layers.push(engine.load(&instance.weights, kind.gate)?);
    }
    Ok(Loaded { kind, layers })
}

/// Computes a case once, with its own weights, and refuses to go on if the result is wrong.
fn check(args: &Args, case: &Case, instance: &Instance, engine: &Engine) -> Result<(Subject, Report)> {
    let layer = engine.load(&instance.weights, case.gate)?;
    let plan = engine.plan(&layer, &instance.activations, case.output)?;
    let (backend, config) = (plan.backend().name(), plan.config().to_string());
    let mut subject = Subject::new(instance, plan);
    subject.compute(engine, &layer)?;
    let report = subject.judge(&Expected::new(instance, case.is_community(), args.seed(), engine.team()))?;
    match report.first {
        Some(first) => Err(Error::Wrong { case: case.to_string(), backend, config, seed: args.seed(), first }),
        None => Ok((subject, report)),
    }
}

fn tell(report: &GpuReport) -> Result<()> {
    let mut table = Table::new(&[
        "shape m×n×k",
        "tokens",
        "configuration",
        ">burst µs",
        ">p10…p90",
        ">of floor",
        ">sustained µs",
        ">p10…p90",
        ">of floor",
        ">floor µs",
        ">TFLOP/s",
        ">max error",
    ]);
    let microseconds = |seconds: f64| format!("{:.2}", seconds * 1e6);
    let range = |spread: &Spread| format!("{}…{}", microseconds(spread.p10), microseconds(spread.p90));
    for case in &report.cases {
        table.row([
            case.problem.clone(),
            case.activation.clone(),
            case.config.clone(),
            microseconds(case.burst.median),
            range(&case.burst),
            table::percent(Some(case.burst_of_floor)),
            microseconds(case.sustained.median),
            range(&case.sustained),
            table::percent(Some(case.sustained_of_floor)),
            microseconds(case.floor_seconds),
            table::three_digits(case.flops / case.burst.median / 1e12),
            format!("{:.1e}", case.max_error),
        ]);
    }
    console::print(&table.text())?;
    let Ceilings { flops_per_second, bytes_per_second } = report.ceilings;
    console::remark(&format!(
        "seed {}, {}; ceilings: {} TFLOP/s (known), {} TB/s read and written (a copy in this run)",
        report.seed,
        report.device.name,
        table::three_digits(flops_per_second / 1e12),
        table::three_digits(bytes_per_second / 1e12),
    ));
    Ok(())
}
