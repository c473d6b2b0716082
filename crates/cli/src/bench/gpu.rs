//! Timings by a GPU's own clock: how long one call takes on the device, and how near that is to what the device could
//! do.
//!
//! Each case is checked first, through the host's memory. Then calls on the device's memory are timed as [`clock`] does
//! it: graphs of calls, weights and tokens and results in rotation beyond the device's cache, after a pause (burst) and
//! under load (sustained). Tokens are f16, as most who run quantised weights on Hopper have them, and NVFP4, whose
//! expansion is part of the time.

use std::slice;

use gpu::{Cuda, device};
use hammerhead::{Engine, Layer, Precision, Problem, Request};
use indicatif::ProgressBar;
use testkit::cases::Instance;
use testkit::clock;
use testkit::verify::Expected;

use super::args::Args;
use super::checked::{checked, computed};
use super::record::{Device, DeviceCase, DeviceCeilings, DeviceRecord, Head};
use super::rotation::Kind;
use super::stop;
use crate::computed::{Clock, Computed};
use crate::selection::Chosen;
use crate::timing::Spread;
use crate::{Error, Result, console};

/// What the device's tensor cores reach in half precision on large matrices of random numbers. Measured once on an H200
/// with NVIDIA's library (8192 × 8192 × 8192, 769 to 798 · 10¹²): there is none here to measure it with.
const TENSOR_FLOPS: f64 = 790e12;
/// Bytes in rotation, as a multiple of the device's cache.
const ROTATION: usize = 4;
/// Copies in rotation, at least and at most.
const COPIES: [usize; 2] = [2, 64];

impl DeviceCeilings {
    /// The least time for a problem. Numbers of eight bits are multiplied at twice the rate.
    fn seconds(&self, problem: &Problem) -> f64 {
        let rate = match problem.precision() {
            Precision::Exact => self.flops_per_second,
            Precision::Fp8 => 2.0 * self.flops_per_second,
        };
        (problem.flops() / rate).max(problem.bytes() / self.bytes_per_second)
    }
}

/// Copies of a layer, and what they are copies of.
struct Loaded {
    kind: Kind,
    layers: Vec<Layer>,
}

/// Checks and times every case. Those that are wrong come beside the record of the others.
pub fn measure(args: &Args, cases: &[Chosen], engine: &Engine) -> Result<(DeviceRecord, Vec<Error>)> {
    let device = Cuda::by_name(engine.backends()[0].name()).map_or(0, Cuda::device);
    let info = device::context(device)?.info();
    let ceilings = DeviceCeilings { flops_per_second: TENSOR_FLOPS, bytes_per_second: clock::bandwidth(device)? };
    let bar = console::progress(cases.len());
    let (mut timed, mut wrong, mut loaded) = (Vec::new(), Vec::new(), None);
    for case in cases.iter().take_while(|_| !stop::asked()) {
        match time(args, case, engine, device, ceilings, &mut loaded, &bar) {
            Ok(case) => timed.push(case),
            // The others may still be right, and time on a GPU is dear.
            Err(error @ Error::Wrong { .. }) => wrong.push(error),
            Err(error) => return Err(error),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let record = DeviceRecord {
        head: Head::new(engine, args.selection.seed),
        device: Device {
            name: info.name.clone(),
            multiprocessors: info.multiprocessors,
            cache_bytes: info.cache_bytes,
            driver: info.driver,
        },
        ceilings,
        wrong: wrong.iter().map(ToString::to_string).collect(),
        cases: timed,
    };
    Ok((record, wrong))
}

/// Checks a case, then times it.
fn time(
    args: &Args,
    chosen: &Chosen,
    engine: &Engine,
    device: usize,
    ceilings: DeviceCeilings,
    loaded: &mut Option<Loaded>,
    bar: &ProgressBar,
) -> Result<DeviceCase> {
    let (case, seed) = (&chosen.case, args.selection.seed);
    bar.set_message(format!("loading and checking {case}"));
    let instance = chosen.instance(seed)?;
    let kind = Kind::of(case);
    if loaded.as_ref().is_none_or(|loaded| loaded.kind != kind) {
        // The old ones go first: they may be what there is no room for beside the new.
        *loaded = None;
        *loaded = Some(load(kind, &instance, engine, device)?);
    }
    let layers = loaded.as_ref().map_or(&[][..], |loaded| &loaded.layers);
    let own = engine.load(&instance.weights, case.gate)?.with_precision(case.precision);
    let subject = computed(case, &instance, engine, &own)?;
    let expected = Expected::new(&instance, case.is_community(), seed, engine.team());
    let checked = checked(case, slice::from_ref(&subject), &expected, seed)?;
    drop(own);
    bar.set_message(format!("timing {case}"));
    let (plan, problem) = (subject.plan(), subject.plan().problem());
    let request = Request::from(*plan.config());
    let timing = clock::time(device, layers, &instance.activations, case.output, request)?;
    let (burst, sustained) = (Spread::of(&timing.burst), Spread::of(&timing.sustained));
    let floor_seconds = ceilings.seconds(problem);
    Ok(DeviceCase {
        computed: Computed::of(chosen.origin.clone(), plan, Clock::Device, &checked),
        bytes: problem.bytes(),
        copies: layers.len(),
        rotated_bytes: timing.rotated_bytes,
        burst,
        sustained,
        floor_seconds,
        burst_of_floor: floor_seconds / burst.median,
        sustained_of_floor: floor_seconds / sustained.median,
    })
}

/// So many copies that they do not fit into the device's cache together, whatever tokens come with them.
fn load(kind: Kind, instance: &Instance, engine: &Engine, device: usize) -> Result<Loaded> {
    let wanted = ROTATION * device::context(device)?.info().cache_bytes;
    let loaded = || Ok::<_, Error>(engine.load(&instance.weights, kind.gate)?.with_precision(kind.precision));
    let first = loaded()?;
    let copies = wanted.div_ceil(first.packed_bytes().max(1)).clamp(COPIES[0], COPIES[1]);
    let mut layers = vec![first];
    for _ in 1..copies {
        layers.push(loaded()?);
    }
    Ok(Loaded { kind, layers })
}
