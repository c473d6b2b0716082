//! The GPU's kernels in the simulator, against the reference, on odd shapes under several schedules.
//!
//! Results over whole numbers are exact whatever the order of sums, so those are compared to the bit; the others under
//! the derived bound.

use std::collections::BTreeSet;

use fastrand::Rng;
use format::{Dense, Matrix, Scaling};
use gpu::simulated::Staged;
use gpu::{Foretold, Simulated};
use hammerhead::reference::Reference;
use hammerhead::{
    Activation, Backend, Config, Engine, Error, Gate, Options, Output, Plan, Precision, Problem, Request, Shape,
    Target, cpu,
};
use hammerhead_testkit::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead_testkit::verify::{Expected, poisoned};
use op::{Call, Operands, Weights};
use rayon::prelude::*;
use sim::Schedule;

/// The simulators of every family's kernels.
const HOPPER: &str = "sim";
const AMPERE: &str = "sim:sm80";
const DESKTOP: &str = "sim:sm120";
const BLACKWELL: &str = "sim:sm_100a";

fn simulator(name: &str, schedule: Schedule) -> Simulated {
    Simulated::by_name(name).expect("a family's simulator").under(schedule)
}

/// What a simulated GPU makes of an instance, in poisoned memory. Input scales are multiplied with on the device, as a
/// queue does.
fn simulate(instance: &Instance, (name, request): (&str, &str), schedule: Schedule) -> Vec<Dense<'static>> {
    let backend: &'static dyn Backend = Box::leak(Box::new(simulator(name, schedule)));
    let request: Request = request.parse().unwrap();
    let scaled = instance.weights.iter().any(|weights| weights.input_scale().is_some());
    let problem = &instance.problem;
    let activation = if scaled { Activation::F32 } else { problem.activation() };
    let problem = Problem::new(problem.groups().to_vec(), problem.gate(), activation, problem.output()).unwrap();
    let packed = backend.prepack(&instance.weights, &cpu::team(Some(1)).unwrap()).unwrap();
    let problem = problem.with_scaling(packed.scaling()).unwrap();
    let plan =
        Plan::best(problem.clone(), &[backend], &request, 1).unwrap_or_else(|error| panic!("{request:?}: {error}"));
    let mut results = poisoned(instance);
    let (team, targets) = (cpu::team(Some(1)).unwrap(), &mut Target::all(&mut results));
    let choice = (plan.backend(), *plan.config());
    let ran = if scaled {
        let largest = vec![0.0; instance.activations.len()];
        let (weights, activations) = (packed.as_ref(), &instance.activations[..]);
        let operands = Operands { weights, activations, largest: &largest, addends: &[], targets };
        simulator(name, schedule).launch_multiplying(&problem, plan.config(), operands).map(drop)
    } else {
        Call::new(choice, &problem, packed.as_ref(), &instance.activations, targets, &team).and_then(Call::run)
    };
    if let Err(error) = ran {
        panic!("{} of {} under {schedule}: {error}", plan.config(), instance.problem);
    }
    let shapes = instance.problem.groups().iter();
    shapes.zip(results).map(|(s, values)| Dense::new(s.m, s.n, values, 1.0).unwrap()).collect()
}

fn case(groups: &[(usize, usize, usize)], activation: Activation, gate: Gate, output: Output) -> Case {
    let groups = groups.iter().map(|&(m, n, k)| Shape::new(m, n, k)).collect();
    let inputs = Inputs::Realistic;
    Case {
        suite: Suite::Edge,
        why: "odd",
        groups,
        gate,
        activation,
        output,
        precision: Precision::Exact,
        inputs,
        timed: false,
    }
}

/// Checks one way of computing a case under the bound.
fn check(case: &Case, (name, request): (&str, &str), schedule: Schedule) {
    let threads = cpu::team(Some(1)).unwrap();
    let instance = case.instance(7).unwrap();
    let expected = Expected::new(&instance, false, 7, &threads);
    let arithmetic = simulator(name, schedule).arithmetic_of(&case.computed_problem().unwrap());
    let report = expected.check(&simulate(&instance, (name, request), schedule), arithmetic);
    let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(report.passed(), "{case} with {request} on {name} under {schedule}: {} wrong; {first}", report.failures);
}

/// The bits of results in f32.
fn bits(dense: &Dense<'_>) -> Vec<u32> {
    match dense.values() {
        format::Values::F32(values) => values.iter().map(|x| x.to_bits()).collect(),
        _ => panic!("asked for f32"),
    }
}

/// A request, and the sizes of groups.
type Way = (&'static str, &'static [(usize, usize, usize)]);

/// Every way of putting the phases together, each with a problem that reaches its corners: tokens, columns and K beyond
/// the last tile, more stages than steps and fewer, several tiles per block.
const WAYS: [Way; 39] = [
    ("strategy=interleaved,tile=8x32,depth=64,stages=2,epilogue=direct,schedule=tile", &[(9, 40, 208)]),
    ("strategy=interleaved,tile=8x32,depth=256,stages=4,epilogue=staged,schedule=tile", &[(5, 40, 1088)]),
    ("strategy=interleaved,tile=16x64,depth=64,stages=1,epilogue=direct,schedule=tile", &[(17, 70, 336)]),
    ("strategy=interleaved,tile=24x96,depth=128,stages=2,epilogue=staged,schedule=tile", &[(25, 104, 336)]),
    ("strategy=interleaved,tile=40x128,depth=64,stages=3,epilogue=staged,schedule=tile", &[(41, 136, 208)]),
    ("strategy=interleaved,tile=96x64,depth=64,stages=2,epilogue=staged,schedule=tile", &[(70, 40, 144), (20, 64, 80)]),
    ("strategy=interleaved,tile=16x32,depth=64,stages=4,epilogue=staged,schedule=persistent", &[(33, 72, 272)]),
    (
        "strategy=interleaved,tile=96x64,depth=64,stages=2,epilogue=direct,schedule=persistent",
        &[(97, 40, 80), (0, 64, 64), (3, 70, 208), (66, 33, 16)],
    ),
    ("strategy=interleaved,tile=16x64,depth=128,stages=5,epilogue=staged,schedule=persistent", &[(17, 200, 336)]),
    ("strategy=interleaved,tile=16x64,depth=64,stages=2,epilogue=direct,schedule=split-k", &[(9, 70, 336)]),
    ("strategy=interleaved,tile=16x32,depth=128,stages=2,epilogue=staged,schedule=split-k", &[(17, 40, 592)]),
    // The second block's last stage is not full.
    ("strategy=interleaved,tile=16x32,depth=128,stages=2,epilogue=direct,schedule=split-k", &[(17, 40, 528)]),
    (
        "strategy=interleaved,tile=32x96,depth=64,stages=3,epilogue=staged,schedule=split-k",
        &[(20, 104, 16), (40, 32, 272)],
    ),
    ("strategy=sequential,tile=8x64,depth=64,stages=2,epilogue=direct,schedule=tile", &[(9, 70, 208)]),
    ("strategy=sequential,tile=16x128,depth=128,stages=3,epilogue=staged,schedule=tile", &[(17, 136, 336)]),
    ("strategy=sequential,tile=16x192,depth=64,stages=2,epilogue=staged,schedule=persistent", &[(40, 200, 208)]),
    ("strategy=sequential,tile=16x64,depth=64,stages=4,epilogue=staged,schedule=persistent", &[(40, 136, 144)]),
    ("strategy=sequential,tile=16x128,depth=64,stages=2,epilogue=direct,schedule=split-k", &[(9, 70, 208)]),
    ("strategy=two-pass,tile=8x64,depth=64,stages=2,epilogue=direct,schedule=tile", &[(9, 70, 208), (3, 9, 64)]),
    ("strategy=two-pass,tile=16x128,depth=128,stages=3,epilogue=staged,schedule=persistent", &[(40, 264, 336)]),
    ("strategy=two-pass,tile=32x192,depth=64,stages=2,epilogue=staged,schedule=split-k", &[(20, 200, 208)]),
    ("strategy=two-pass,tile=16x256,depth=64,stages=2,epilogue=staged,schedule=tile", &[(20, 264, 144)]),
    ("strategy=ping-pong,tile=16x32,depth=64,stages=3,epilogue=direct,schedule=persistent", &[(33, 70, 208)]),
    (
        "strategy=ping-pong,tile=16x64,depth=128,stages=2,epilogue=staged,schedule=persistent",
        &[(40, 200, 208), (9, 72, 80)],
    ),
    ("strategy=ping-pong,tile=96x32,depth=64,stages=1,epilogue=staged,schedule=persistent", &[(97, 104, 80)]),
    ("strategy=interleaved,tile=16x64,depth=64,stages=6,epilogue=direct,schedule=tile", &[(9, 70, 144)]),
    ("strategy=interleaved,tile=8x64,depth=256,stages=2,epilogue=direct,schedule=persistent", &[(20, 129, 400)]),
    ("strategy=interleaved,tile=72x64,depth=128,stages=2,epilogue=staged,schedule=tile", &[(73, 40, 272)]),
    ("strategy=interleaved,tile=72x32,depth=256,stages=2,epilogue=direct,schedule=tile", &[(9, 33, 1104)]),
    ("strategy=interleaved,tile=72x32,depth=128,stages=4,epilogue=staged,schedule=persistent", &[(73, 40, 592)]),
    ("strategy=interleaved,tile=24x96,depth=128,stages=2,epilogue=staged,schedule=tile", &[(25, 104, 336)]),
    ("strategy=interleaved,tile=136x64,depth=64,stages=2,epilogue=staged,schedule=persistent", &[(200, 136, 80)]),
    ("strategy=interleaved,tile=32x96,depth=64,stages=3,epilogue=staged,schedule=split-k", &[(40, 104, 272)]),
    // Four warpgroups.
    ("strategy=interleaved,tile=48x64,depth=64,stages=2,epilogue=direct,schedule=tile", &[(49, 70, 336)]),
    ("strategy=interleaved,tile=64x64,depth=128,stages=4,epilogue=staged,schedule=split-k", &[(65, 72, 1104)]),
    ("strategy=interleaved,tile=48x64,depth=128,stages=2,epilogue=staged,schedule=persistent", &[(41, 200, 272)]),
    ("strategy=two-pass,tile=40x128,depth=64,stages=2,epilogue=staged,schedule=tile", &[(41, 136, 208)]),
    // So many tiles that the other multiprocessors repeat some.
    ("strategy=interleaved,tile=8x32,depth=64,stages=2,epilogue=staged,schedule=tile", &[(5, 2248, 80)]),
    ("strategy=interleaved,tile=16x64,depth=64,stages=2,epilogue=staged,schedule=split-k", &[(9, 2248, 144)]),
];

/// The same for the kernels of GPUs since Ampere: warps along columns and along k, one, two and four fragments each, a
/// last eight tokens that are not half of sixteen, tiles of columns that are no whole chunks, units and stages beyond
/// the end.
const AMPERE_WAYS: [Way; 26] = [
    ("strategy=interleaved,tile=8x32,depth=64,stages=3,epilogue=direct,schedule=tile", &[(9, 40, 208)]),
    ("strategy=interleaved,tile=8x8,depth=256,stages=3,epilogue=staged,schedule=tile", &[(5, 40, 1088)]),
    ("strategy=interleaved,tile=8x16,depth=256,stages=4,epilogue=direct,schedule=tile", &[(5, 33, 1104)]),
    ("strategy=interleaved,tile=16x24,depth=128,stages=3,epilogue=staged,schedule=tile", &[(17, 72, 336)]),
    ("strategy=interleaved,tile=24x40,depth=128,stages=5,epilogue=direct,schedule=tile", &[(25, 104, 336)]),
    ("strategy=interleaved,tile=40x48,depth=64,stages=3,epilogue=staged,schedule=tile", &[(41, 136, 208)]),
    ("strategy=interleaved,tile=32x64,depth=128,stages=4,epilogue=staged,schedule=tile", &[(33, 72, 272)]),
    ("strategy=interleaved,tile=64x128,depth=64,stages=3,epilogue=direct,schedule=tile", &[(65, 130, 144)]),
    ("strategy=interleaved,tile=16x96,depth=64,stages=4,epilogue=staged,schedule=tile", &[(20, 104, 272)]),
    ("strategy=interleaved,tile=32x256,depth=64,stages=3,epilogue=staged,schedule=tile", &[(9, 264, 144)]),
    ("strategy=interleaved,tile=128x128,depth=64,stages=3,epilogue=direct,schedule=tile", &[(130, 33, 80)]),
    ("strategy=interleaved,tile=8x32,depth=256,stages=3,epilogue=staged,schedule=persistent", &[(33, 200, 592)]),
    (
        "strategy=interleaved,tile=32x32,depth=64,stages=4,epilogue=direct,schedule=persistent",
        &[(97, 40, 80), (0, 64, 64), (3, 70, 208), (66, 33, 16)],
    ),
    ("strategy=interleaved,tile=8x32,depth=64,stages=3,epilogue=direct,schedule=split-k", &[(9, 70, 336)]),
    (
        "strategy=interleaved,tile=16x32,depth=128,stages=4,epilogue=direct,schedule=split-k",
        &[(17, 40, 592), (3, 9, 16)],
    ),
    ("strategy=sequential,tile=8x64,depth=64,stages=3,epilogue=direct,schedule=tile", &[(9, 70, 208)]),
    ("strategy=sequential,tile=16x128,depth=128,stages=3,epilogue=staged,schedule=tile", &[(17, 136, 336)]),
    ("strategy=sequential,tile=32x32,depth=64,stages=4,epilogue=staged,schedule=persistent", &[(40, 136, 144)]),
    ("strategy=sequential,tile=16x16,depth=256,stages=3,epilogue=direct,schedule=split-k", &[(9, 70, 208)]),
    ("strategy=two-pass,tile=8x64,depth=64,stages=3,epilogue=direct,schedule=tile", &[(9, 70, 208), (3, 9, 64)]),
    ("strategy=two-pass,tile=32x128,depth=64,stages=3,epilogue=staged,schedule=persistent", &[(40, 264, 336)]),
    ("strategy=ping-pong,tile=16x32,depth=64,stages=3,epilogue=direct,schedule=persistent", &[(33, 70, 208)]),
    ("strategy=ping-pong,tile=32x64,depth=64,stages=4,epilogue=staged,schedule=tile", &[(40, 200, 208), (9, 72, 80)]),
    ("strategy=ping-pong,tile=8x16,depth=128,stages=6,epilogue=direct,schedule=tile", &[(3, 40, 1040)]),
    ("strategy=ping-pong,tile=16x32,depth=128,stages=3,epilogue=direct,schedule=split-k", &[(17, 40, 592)]),
    ("strategy=interleaved,tile=48x64,depth=128,stages=3,epilogue=staged,schedule=tile", &[(49, 72, 1104)]),
];

/// What is different where tensor cores take NVFP4 itself: one eight of tokens, a last four of which there are one, two
/// or three, more than four, every number of fragments, warps along k, passes and blocks that share k.
const DESKTOP_WAYS: [Way; 9] = [
    ("strategy=interleaved,tile=8x8,depth=256,stages=3,epilogue=staged,schedule=tile", &[(5, 40, 1088)]),
    ("strategy=interleaved,tile=16x24,depth=128,stages=3,epilogue=direct,schedule=persistent", &[(17, 72, 336)]),
    ("strategy=interleaved,tile=24x40,depth=64,stages=5,epilogue=direct,schedule=tile", &[(25, 104, 208)]),
    ("strategy=interleaved,tile=48x64,depth=128,stages=3,epilogue=staged,schedule=tile", &[(49, 72, 592)]),
    ("strategy=interleaved,tile=128x128,depth=64,stages=3,epilogue=staged,schedule=tile", &[(130, 136, 80)]),
    (
        "strategy=interleaved,tile=40x32,depth=64,stages=3,epilogue=direct,schedule=persistent",
        &[(41, 40, 80), (0, 64, 64), (3, 70, 208), (7, 33, 16)],
    ),
    ("strategy=sequential,tile=32x32,depth=64,stages=3,epilogue=direct,schedule=split-k", &[(33, 70, 208)]),
    ("strategy=two-pass,tile=16x32,depth=128,stages=3,epilogue=staged,schedule=tile", &[(20, 72, 272)]),
    ("strategy=ping-pong,tile=16x32,depth=128,stages=3,epilogue=direct,schedule=split-k", &[(17, 40, 592)]),
];

/// The same for data-centre Blackwell: tokens as rows and as columns of multiplications, scale blocks that tiles share,
/// tiles cut alike, more stages than slabs and fewer, units of a slab and rows of a block beyond the end, rows of C
/// that are whole sixteens of bytes and not.
const BLACKWELL_WAYS: [Way; 28] = [
    ("strategy=interleaved,tile=8x128,depth=256,stages=2,epilogue=direct,schedule=tile", &[(3, 9, 16)]),
    ("strategy=interleaved,tile=8x128,depth=256,stages=2,epilogue=direct,schedule=tile", &[(11, 137, 592)]),
    ("strategy=interleaved,tile=32x128,depth=256,stages=2,epilogue=direct,schedule=tile", &[(41, 137, 592)]),
    ("strategy=interleaved,tile=64x128,depth=256,stages=1,epilogue=direct,schedule=tile", &[(40, 40, 528)]),
    ("strategy=interleaved,tile=128x64,depth=256,stages=2,epilogue=direct,schedule=tile", &[(130, 200, 592)]),
    ("strategy=interleaved,tile=128x64,depth=256,stages=4,epilogue=direct,schedule=tile", &[(40, 70, 336)]),
    ("strategy=interleaved,tile=128x128,depth=256,stages=2,epilogue=direct,schedule=tile", &[(9, 136, 80)]),
    (
        "strategy=interleaved,tile=16x128,depth=256,stages=2,epilogue=direct,schedule=persistent",
        &[(33, 40, 272), (0, 64, 64), (3, 140, 208), (17, 33, 16), (9, 8, 64)],
    ),
    ("strategy=interleaved,tile=128x64,depth=256,stages=3,epilogue=direct,schedule=persistent", &[(140, 65, 272)]),
    ("strategy=ping-pong,tile=16x128,depth=256,stages=2,epilogue=direct,schedule=persistent", &[(70, 130, 272)]),
    ("strategy=ping-pong,tile=128x64,depth=256,stages=2,epilogue=direct,schedule=persistent", &[(9, 264, 80)]),
    ("strategy=sequential,tile=16x128,depth=256,stages=2,epilogue=direct,schedule=tile", &[(9, 40, 592)]),
    ("strategy=sequential,tile=128x64,depth=256,stages=3,epilogue=direct,schedule=persistent", &[(9, 200, 272)]),
    ("strategy=two-pass,tile=16x128,depth=256,stages=2,epilogue=direct,schedule=tile", &[(17, 136, 336), (3, 9, 64)]),
    ("strategy=interleaved,tile=16x128,depth=256,stages=2,epilogue=direct,schedule=split-k", &[(17, 40, 592)]),
    // Pairs of blocks: a second block without tokens, or without columns.
    ("strategy=interleaved,tile=256x64,depth=256,stages=2,epilogue=direct,schedule=tile", &[(300, 72, 592)]),
    ("strategy=ping-pong,tile=256x64,depth=256,stages=2,epilogue=direct,schedule=persistent", &[(140, 70, 272)]),
    (
        "strategy=interleaved,tile=32x256,depth=256,stages=2,epilogue=direct,schedule=persistent",
        &[(40, 130, 272), (0, 8, 16), (5, 300, 80)],
    ),
    ("strategy=sequential,tile=16x256,depth=256,stages=2,epilogue=direct,schedule=split-k", &[(17, 140, 592)]),
    ("strategy=interleaved,tile=256x128,depth=256,stages=3,epilogue=direct,schedule=persistent", &[(9, 376, 336)]),
    (
        "strategy=ping-pong,tile=128x64,depth=256,stages=1,epilogue=direct,schedule=persistent",
        &[(20, 184, 80), (3, 8, 16)],
    ),
    // Gate ahead of up: over some of the stages, all of them, and more than there are steps.
    (
        "strategy=interleaved,tile=128x64,depth=256,stages=3,epilogue=direct,schedule=persistent,ahead=2",
        &[(140, 65, 1104), (3, 8, 16)],
    ),
    ("strategy=interleaved,tile=32x128,depth=256,stages=2,epilogue=direct,schedule=tile,ahead=2", &[(41, 137, 592)]),
    (
        "strategy=interleaved,tile=256x64,depth=256,stages=3,epilogue=direct,schedule=tile,multicast=2,ahead=1",
        &[(9, 184, 592)],
    ),
    // Two pairs that share tokens: both with columns, and the second without.
    (
        "strategy=interleaved,tile=256x64,depth=256,stages=2,epilogue=direct,schedule=persistent,multicast=2",
        &[(260, 136, 592), (0, 8, 16), (3, 40, 80)],
    ),
    (
        "strategy=interleaved,tile=256x64,depth=256,stages=3,epilogue=direct,schedule=tile,multicast=2",
        &[(140, 136, 80)],
    ),
    (
        "strategy=sequential,tile=256x64,depth=256,stages=2,epilogue=direct,schedule=split-k,multicast=2",
        &[(9, 65, 592)],
    ),
    (
        "strategy=ping-pong,tile=256x64,depth=256,stages=1,epilogue=direct,schedule=persistent,multicast=2",
        &[(9, 376, 80)],
    ),
];

/// The same for tokens of 16 bits: threads with one, two and four pieces of weights, and with none.
const BLACKWELL_HALVES_WAYS: [Way; 10] = [
    ("strategy=interleaved,tile=16x128,depth=64,stages=2,epilogue=direct,schedule=tile", &[(17, 40, 208)]),
    ("strategy=interleaved,tile=128x32,depth=64,stages=3,epilogue=direct,schedule=tile", &[(9, 72, 272)]),
    ("strategy=interleaved,tile=128x64,depth=64,stages=2,epilogue=direct,schedule=persistent", &[(130, 72, 80)]),
    (
        "strategy=ping-pong,tile=48x128,depth=64,stages=2,epilogue=direct,schedule=persistent",
        &[(40, 137, 144), (0, 8, 16), (60, 9, 336)],
    ),
    ("strategy=two-pass,tile=128x32,depth=64,stages=2,epilogue=direct,schedule=tile", &[(9, 40, 144)]),
    ("strategy=sequential,tile=32x128,depth=64,stages=3,epilogue=direct,schedule=split-k", &[(9, 40, 336)]),
    ("strategy=interleaved,tile=256x32,depth=64,stages=2,epilogue=direct,schedule=tile", &[(130, 40, 208)]),
    ("strategy=ping-pong,tile=32x256,depth=64,stages=2,epilogue=direct,schedule=persistent", &[(20, 264, 144)]),
    (
        "strategy=interleaved,tile=32x128,depth=64,stages=3,epilogue=direct,schedule=persistent,ahead=3",
        &[(40, 137, 336)],
    ),
    (
        "strategy=interleaved,tile=256x32,depth=64,stages=2,epilogue=direct,schedule=persistent,multicast=2",
        &[(130, 40, 208), (3, 8, 80)],
    ),
];

#[test]
fn every_way_of_multiplying_on_blackwell_is_right_under_every_schedule() {
    let codes = BLACKWELL_WAYS.into_par_iter().map(|way| (way, Activation::NvFp4));
    let halves = BLACKWELL_HALVES_WAYS.into_par_iter().map(|way| (way, Activation::F16));
    codes.chain(halves).for_each(|((request, groups), activation)| {
        for schedule in Schedule::several(2) {
            check(&case(groups, activation, Gate::Silu, Output::F16), (BLACKWELL, request), schedule);
        }
    });
}

/// What a B200 would be planned to run for shapes drawn by a seed, each way of it once, with the smallest problem that
/// has tiles at odd positions and beyond the last. The simulator decodes every descriptor and every column of scales,
/// and refuses what silicon does (docs/silicon.md).
#[test]
fn plans_for_unseen_shapes_keep_to_what_silicon_demands() {
    let mut rng = Rng::with_seed(30);
    let device: &'static dyn Backend = Foretold::by_name("foretold:b200").unwrap();
    let mut plans = BTreeSet::new();
    for _ in 0..200 {
        let m = 1 << rng.usize(..13);
        let (m, n, k) = (m + rng.usize(..m), 8 * rng.usize(1..1500) + rng.usize(..8), 16 * rng.usize(1..500));
        let activation = [Activation::NvFp4, Activation::NvFp4, Activation::F16, Activation::F32][rng.usize(..4)];
        let problem = Problem::new(vec![Shape::new(m, n, k)], Gate::Silu, activation, Output::F16).unwrap();
        let config = *Plan::modelled(problem, &[device], &Request::default(), 1).unwrap().config();
        let is_upright = config.tile.tokens >= 128;
        assert!(!(activation == Activation::NvFp4 && is_upright) || config.tile.columns.is_multiple_of(64), "{config}");
        plans.insert((
            activation.to_string(),
            config.tile.tokens,
            config.tile.columns,
            config.depth,
            config.to_string(),
        ));
    }
    assert!(plans.len() > 25, "{} ways", plans.len());
    plans.into_par_iter().for_each(|(activation, tokens, columns, depth, request)| {
        let activation = activation.parse().unwrap();
        let shares = if request.contains("multicast=2") { 2 } else { 1 };
        let groups = [(tokens.min(128) + 3, columns * shares + columns / 2 + 9, depth + 80)];
        check(&case(&groups, activation, Gate::Silu, Output::F16), (BLACKWELL, &request), Schedule::Earliest);
    });
}

#[test]
fn rows_of_sixteens_of_bytes_that_are_not_thirty_twos_end_where_they_end_on_blackwell() {
    check(
        &case(&[(9, 36, 80)], Activation::NvFp4, Gate::Silu, Output::F32),
        (BLACKWELL, "strategy=interleaved,tile=128x64,stages=2,epilogue=direct,schedule=tile"),
        Schedule::Earliest,
    );
}

#[test]
fn parts_of_single_precision_are_read_where_they_lie_in_tiles_of_any_width_and_of_blocks_that_share_them() {
    let ways: [(&str, Way); 2] = [
        // Fewer tokens than a tile may have take a narrower main loop; parts are as far apart as in the widest.
        (HOPPER, ("strategy=interleaved,tile=96x64,depth=64,stages=2,epilogue=direct,schedule=tile", &[(70, 40, 144)])),
        (
            BLACKWELL,
            (
                "strategy=interleaved,tile=256x32,depth=64,stages=2,epilogue=direct,schedule=tile,multicast=2",
                &[(130, 40, 144)],
            ),
        ),
    ];
    ways.into_par_iter().for_each(|(name, (request, groups))| {
        check(&case(groups, Activation::F32, Gate::Silu, Output::F32), (name, request), Schedule::Earliest);
    });
}

#[test]
fn nothing_is_arranged_where_the_grid_before_may_still_read() {
    // Calls of a queue share a workspace, and rows and scales of zeros are written by threads that read no token.
    let ways = [
        (BLACKWELL, "strategy=interleaved,tile=16x128,depth=256,schedule=tile"),
        (BLACKWELL, "strategy=interleaved,tile=128x64,depth=256,schedule=tile"),
        (BLACKWELL, "strategy=interleaved,tile=32x256,depth=256,schedule=tile"),
        (DESKTOP, "strategy=interleaved"),
    ];
    for (name, request) in ways {
        let case = case(&[(19, 40, 272), (3, 9, 16)], Activation::NvFp4, Gate::Silu, Output::F16);
        let (instance, team) = (case.instance(7).unwrap(), cpu::team(Some(1)).unwrap());
        let backend: &'static dyn Backend = Simulated::by_name(name).unwrap();
        let request: Request = request.parse().unwrap();
        let plan = Plan::best(instance.problem.clone(), &[backend], &request, 1).unwrap();
        let packed = backend.prepack(&instance.weights, &team).unwrap();
        let mut results = poisoned(&instance);
        let operands = Operands {
            weights: packed.as_ref(),
            activations: &instance.activations,
            largest: &[0.0; 2],
            addends: &[],
            targets: &mut Target::all(&mut results),
        };
        let simulator = simulator(name, Schedule::Earliest);
        let mut staged = simulator.staged((&instance.problem, plan.config()), &operands, 1).unwrap();
        staged.gpu.await_predecessor(staged.workspace);
        let arranges = |(kernel, _): &&(ptx::Kernel, sim::Invocation)| kernel.name.starts_with("arrange");
        let sequence: Vec<_> =
            staged.launches.iter().filter(arranges).map(|(kernel, launch)| (kernel, launch)).collect();
        assert!(!sequence.is_empty(), "{name} arranges tokens");
        staged.gpu.run_sequence(&sequence, Schedule::Earliest).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    }
}

#[test]
fn every_way_of_putting_the_phases_together_is_right_under_every_schedule() {
    let ways = WAYS.map(|way| (HOPPER, way)).into_par_iter().chain(AMPERE_WAYS.map(|way| (AMPERE, way)));
    let ways = ways.map(|way| (Activation::F16, way));
    let desktop = [Activation::NvFp4, Activation::F16].into_par_iter();
    let desktop = desktop.flat_map(|activation| DESKTOP_WAYS.map(|way| (activation, (DESKTOP, way))));
    ways.chain(desktop).for_each(|(activation, (name, (request, groups)))| {
        for schedule in Schedule::several(2) {
            check(&case(groups, activation, Gate::Silu, Output::F16), (name, request), schedule);
        }
    });
}

/// Few tokens of Hopper's, in every way that warps multiply by themselves: a stage for each warpgroup and several,
/// stages that are not full, tiles one after another, blocks that share k, and two blocks of rows a warpgroup.
const FEW_WAYS: [Way; 8] = [
    ("strategy=interleaved,tile=8x32,depth=256,stages=4,epilogue=staged,schedule=tile", &[(5, 40, 1088)]),
    ("strategy=interleaved,tile=16x32,depth=64,stages=2,epilogue=direct,schedule=tile", &[(17, 70, 336)]),
    ("strategy=interleaved,tile=16x64,depth=64,stages=1,epilogue=direct,schedule=tile", &[(17, 70, 336)]),
    ("strategy=interleaved,tile=16x32,depth=64,stages=4,epilogue=staged,schedule=persistent", &[(33, 72, 272)]),
    ("strategy=interleaved,tile=16x64,depth=128,stages=5,epilogue=staged,schedule=persistent", &[(17, 200, 336)]),
    ("strategy=interleaved,tile=16x32,depth=128,stages=2,epilogue=direct,schedule=split-k", &[(17, 40, 528)]),
    (
        "strategy=interleaved,tile=8x64,depth=256,stages=2,epilogue=direct,schedule=persistent",
        &[(20, 129, 400), (0, 64, 64), (3, 70, 208)],
    ),
    ("strategy=two-pass,tile=16x256,depth=128,stages=2,epilogue=staged,schedule=tile", &[(20, 264, 144)]),
];

#[test]
fn products_by_warps_have_the_bits_of_products_by_warpgroups() {
    let activations = [Activation::F16, Activation::BF16, Activation::NvFp4];
    let ways = FEW_WAYS.into_par_iter().flat_map(|way| activations.map(|activation| (way, activation)));
    ways.for_each(|((request, groups), activation)| {
        let instance = case(groups, activation, Gate::Silu, Output::F32).instance(7).unwrap();
        let found = |request: &str, schedule| -> Vec<u32> {
            simulate(&instance, (HOPPER, request), schedule).iter().flat_map(bits).collect()
        };
        let expected = found(request, Schedule::Earliest);
        for schedule in Schedule::several(2) {
            let by_warps = found(&format!("{request},warps=1"), schedule);
            assert_eq!(by_warps, expected, "{request} for {activation} under {schedule}");
        }
    });
}

#[test]
fn every_activation_and_output_goes_through_every_strategy() {
    let strategies = ["two-pass", "sequential", "interleaved", "ping-pong"];
    let all: Vec<_> = strategies.iter().flat_map(|s| Activation::ALL.map(|activation| (s, activation))).collect();
    all.into_par_iter().enumerate().for_each(|(index, (strategy, activation))| {
        let schedule = if *strategy == "ping-pong" { ",schedule=persistent" } else { "" };
        let gates = [Gate::GeluTanh, Gate::None, Gate::GPT_OSS, Gate::SiluLimited { limit: 0.5 }, Gate::Relu2];
        for (output, gate) in Output::ALL.into_iter().cycle().zip(gates) {
            for (name, sizes) in [
                (HOPPER, "depth=64,stages=2"),
                (AMPERE, "depth=64,stages=3"),
                (DESKTOP, "depth=64,stages=3"),
                (BLACKWELL, "stages=2"),
            ] {
                let request = format!("strategy={strategy},{sizes}{schedule}");
                let case = case(&[(11, 48, 144)], activation, gate, output);
                check(&case, (name, &request), Schedule::Random(index as u64));
            }
        }
    });
}

#[test]
fn groups_that_follow_each_other_in_one_array_are_stored_wherever_they_begin() {
    let names = [HOPPER, AMPERE, DESKTOP, BLACKWELL].into_par_iter();
    names.flat_map(|name| Output::ALL.map(|output| (name, output))).for_each(|(name, output)| {
        let case = case(&[(3, 37, 80), (5, 37, 80)], Activation::F16, Gate::Silu, output);
        for result in staged(&case.instance(7).unwrap(), name).results {
            assert_eq!(result.address % 16, output.bytes() as u64, "{name}: no better aligned than one element");
        }
        for strategy in ["two-pass", "sequential", "interleaved", "ping-pong"] {
            check(&case, (name, &format!("strategy={strategy}")), Schedule::Random(3));
        }
    });
}

/// An instance with something else for each of its matrices.
fn mapped(instance: &Instance, matrix: impl Fn(&Matrix<'static>) -> Matrix<'static>) -> Instance {
    let weights = instance.weights.iter().map(|weights| match weights.up() {
        Some(up) => Weights::gated(matrix(weights.gate()), matrix(up)).unwrap(),
        None => Weights::plain(matrix(weights.gate())),
    });
    Instance { weights: weights.collect(), ..instance.clone() }
}

#[test]
fn mxfp4_weights_have_the_same_bits_as_with_scales_of_nvfp4_in_fewer_bytes() {
    let ways = [
        "",
        "strategy=two-pass",
        "strategy=sequential",
        "strategy=ping-pong",
        "schedule=split-k",
        "tile=8x32,depth=256",
    ];
    let on = |name| Activation::ALL.into_iter().flat_map(move |activation| ways.map(|way| (name, activation, way)));
    let cases = [HOPPER, AMPERE].into_iter().flat_map(on);
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(name, activation, request)| {
        let case = case(&[(19, 40, 288), (0, 33, 64), (35, 72, 32)], activation, Gate::Silu, Output::F32);
        let case = Case { inputs: Inputs::PowersOfTwo, ..case };
        let instance = case.instance(3).unwrap();
        let nvfp4 = mapped(&instance, |matrix| matrix.in_scaling(Scaling::NvFp4).unwrap().into_owned());
        let [native, detour] =
            [&instance, &nvfp4].map(|instance| simulate(instance, (name, request), Schedule::Random(5)));
        for (one, other) in native.iter().zip(&detour) {
            assert_eq!(bits(one), bits(other), "{case} with {request} on {name}");
        }
        check(&case, (name, request), Schedule::Latest);
        let team = cpu::team(Some(1)).unwrap();
        let packed = |weights: &[Weights<'static>]| simulator(name, Schedule::Latest).prepack(weights, &team).unwrap();
        let (own, wider) = (packed(&instance.weights), packed(&nvfp4.weights));
        assert_eq!((own.scaling(), wider.scaling()), (Scaling::MxFp4, Scaling::NvFp4));
        assert_eq!(own.bytes() * 18, wider.bytes() * 17);
    });
}

/// The same matrix, whose scales are all powers of two that halves have.
fn of_all_halves(matrix: &Matrix<'static>) -> Matrix<'static> {
    let exponents: Vec<u8> = (0..matrix.scales().len()).map(|at| 135 - (at * 7 % 25) as u8).collect();
    let codes = matrix.codes().to_vec();
    let matrix = Matrix::mx(matrix.rows(), matrix.k(), codes, &exponents, matrix.global()).unwrap();
    assert!(matrix.scaling() == Scaling::MxFp4 && matrix.in_scaling(Scaling::NvFp4).is_err());
    matrix
}

#[test]
fn mxfp4_scales_beyond_those_of_nvfp4_are_exact_with_tokens_of_halves() {
    for (name, activation) in
        [HOPPER, AMPERE].into_iter().flat_map(|name| [Activation::F16, Activation::NvFp4].map(|of| (name, of)))
    {
        let case = case(&[(19, 40, 288), (3, 33, 64)], activation, Gate::Silu, Output::F32);
        let case = Case { inputs: Inputs::PowersOfTwo, ..case };
        let instance = mapped(&case.instance(2).unwrap(), of_all_halves);
        let expected = Expected::new(&instance, false, 2, &cpu::team(Some(1)).unwrap());
        let arithmetic = simulator(name, Schedule::Latest).arithmetic_of(&case.computed_problem().unwrap());
        let report = expected.check(&simulate(&instance, (name, ""), Schedule::Latest), arithmetic);
        assert!(report.passed(), "{case} on {name}: {} wrong; {:?}", report.failures, report.first);
    }
}

#[test]
fn mxfp4_scales_beyond_those_of_nvfp4_and_of_halves_are_exact_with_bfloat16_and_f32() {
    let ways = [(Activation::BF16, ""), (Activation::F32, ""), (Activation::BF16, "tile=8x32,depth=256")];
    for (name, (activation, request)) in [HOPPER, AMPERE].into_iter().flat_map(|name| ways.map(|way| (name, way))) {
        let case = case(&[(19, 40, 288), (3, 33, 64)], activation, Gate::Silu, Output::F32);
        check(&Case { inputs: Inputs::ManyPowers, ..case }, (name, request), Schedule::Random(1));
    }
    let case = case(&[(3, 40, 64)], Activation::F16, Gate::Silu, Output::F32);
    let instance = Case { inputs: Inputs::ManyPowers, ..case }.instance(1).unwrap();
    let engine = Engine::new(Options { backend: Some("sim".to_owned()), ..Options::default() }).unwrap();
    let layer = engine.load(&instance.weights, Gate::Silu).unwrap();
    let refused = engine.run(&layer, &instance.activations, Output::F32).unwrap_err().to_string();
    assert!(refused.contains("give bf16 or f32 tokens"), "{refused}");
    for name in [BLACKWELL, DESKTOP] {
        let packed = simulator(name, Schedule::Latest).prepack(&instance.weights, &cpu::team(Some(1)).unwrap());
        let refused = packed.unwrap_err().to_string();
        assert!(refused.contains("no exact NVFP4 form"), "{name}: {refused}");
    }
}

/// A simulated GPU before the first launch of what is planned for an instance.
fn staged(instance: &Instance, name: &str) -> Staged {
    let simulator = Simulated::by_name(name).expect("a family's simulator");
    let plan = Plan::best(instance.problem.clone(), &[simulator], &Request::default(), 1).unwrap();
    let packed = simulator.prepack(&instance.weights, &cpu::team(Some(1)).unwrap()).unwrap();
    let (mut results, largest) = (poisoned(instance), vec![4.0; instance.activations.len()]);
    let (weights, activations, targets) = (packed.as_ref(), &instance.activations[..], &mut Target::all(&mut results));
    let operands = Operands { weights, activations, largest: &largest, addends: &[], targets };
    simulator.staged((&instance.problem, plan.config()), &operands, 3).unwrap()
}

#[test]
fn sums_of_whole_numbers_are_right_to_the_bit_on_odd_shapes_under_every_schedule() {
    let requests = [
        (HOPPER, "strategy=interleaved,tile=8x64,stages=2,epilogue=direct"),
        (HOPPER, "strategy=sequential,tile=16x128,stages=3,epilogue=direct"),
        (HOPPER, "strategy=two-pass,tile=40x64,stages=4,depth=64,epilogue=direct"),
        (HOPPER, "strategy=ping-pong,tile=24x64,stages=2,depth=64,schedule=persistent,epilogue=direct"),
        (AMPERE, "strategy=interleaved,tile=8x64,stages=3,epilogue=direct"),
        (AMPERE, "strategy=sequential,tile=32x64,stages=4,epilogue=direct"),
        (AMPERE, "strategy=two-pass,tile=40x32,stages=4,depth=64,epilogue=direct"),
        (AMPERE, "strategy=ping-pong,tile=24x32,stages=3,depth=64,schedule=split-k,epilogue=direct"),
        (DESKTOP, "strategy=interleaved,tile=8x64,stages=3,epilogue=direct"),
        (DESKTOP, "strategy=two-pass,tile=40x32,stages=4,depth=64,epilogue=direct"),
        (BLACKWELL, "strategy=interleaved,tile=16x128,stages=2"),
        (BLACKWELL, "strategy=sequential,tile=128x64,stages=3"),
    ];
    let shapes = [(1, 1, 16), (7, 65, 48), (9, 64, 64), (17, 130, 208), (33, 63, 1040)];
    let all: Vec<_> = shapes.iter().flat_map(|&shape| requests.map(|request| (shape, request))).collect();
    all.into_par_iter().enumerate().for_each(|(seed, (shape, request))| {
        for activation in [Activation::NvFp4, Activation::BF16] {
            let case = Case { inputs: Inputs::Integers, ..case(&[shape], activation, Gate::None, Output::F32) };
            let instance = case.instance(seed as u64).unwrap();
            let reference = Reference::new(&instance.activations[0], &instance.weights[0], Gate::None);
            let expected: Vec<f32> = reference.all().iter().map(|element| element.value as f32).collect();
            let schedule = Schedule::Random(seed as u64);
            let found = simulate(&instance, request, schedule);
            let format::Values::F32(found) = found[0].values() else { panic!("asked for f32") };
            assert!(found[..] == expected[..], "{case} with {request:?} under {schedule}");
        }
    });
}

#[test]
fn every_edge_case_is_within_the_bound() {
    let cases: Vec<Case> = cases::suite(Suite::Edge);
    let simulators = [HOPPER, AMPERE, DESKTOP, BLACKWELL];
    let all = cases.par_iter().enumerate().flat_map_iter(|case| simulators.map(|name| (name, case)));
    all.for_each(|(name, (seed, case))| {
        let threads = cpu::team(Some(1)).unwrap();
        let instance = case.instance(seed as u64).unwrap();
        let expected = Expected::new(&instance, case.is_community(), seed as u64, &threads);
        let schedule = Schedule::Random(seed as u64);
        let arithmetic = simulator(name, schedule).arithmetic_of(&case.computed_problem().unwrap());
        let report = expected.check(&simulate(&instance, (name, ""), schedule), arithmetic);
        let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(report.passed(), "{case} ({}) on {name}: {} wrong; {first}", case.why, report.failures);
    });
}

#[test]
fn a_problem_beyond_the_simulators_patience_is_refused_with_the_limit() {
    let request = Request::default();
    let engine = Engine::new(Options { backend: Some("sim".into()), threads: Some(1), request }).unwrap();
    let case = case(&[(256, 4096, 7168)], Activation::NvFp4, Gate::Silu, Output::F16);
    let plan = Plan::best(case.problem().unwrap(), &engine.backends(), &request, 1);
    assert!(matches!(&plan, Err(Error::Illegal { reason, .. }) if reason.contains("at most 1024")), "{plan:?}");
}

#[test]
fn what_the_kernels_cannot_do_is_refused_with_the_reason() {
    let problem = case(&[(64, 132, 256)], Activation::F16, Gate::Silu, Output::F16).problem().unwrap();
    let backend = Simulated::DEFAULT.under(Schedule::Earliest);
    for (request, part) in [
        ("tile=12x64", "multiple of 8"),
        ("tile=64x48", "32, 64, 96 or 128"),
        ("strategy=sequential,tile=64x96", "64, 128, 192 or 256"),
        ("strategy=ping-pong,tile=64x96,schedule=persistent", "32 or 64"),
        ("strategy=ping-pong,schedule=tile", "schedule=persistent"),
        ("tile=24x64,schedule=split-k", "multiple of 16"),
        ("depth=192", "64, 128 or 256"),
        ("depth=80", "depth=64, 128 or 256"),
        ("stages=17", "1 to 16"),
        ("tile=64x32,stages=3", "even number"),
        ("tile=256x96,depth=64,stages=2", "registers"),
        ("tile=256x64,stages=16", "shared memory"),
        ("epilogue=staged", "epilogue=direct"),
        ("multicast=2", "sm90 has no setting multicast"),
    ] {
        let base = "strategy=interleaved,tile=64x64,depth=64,stages=2,epilogue=direct,schedule=tile";
        let base: Config = base.parse::<Request>().unwrap().applied_to(backend.candidates(&problem, 1)[0], &[]);
        let config = request.parse::<Request>().unwrap().applied_to(base, &[]);
        let refusal = backend.check(&problem, &config, 1).unwrap_err().to_string();
        assert!(refusal.contains(part), "{request}: {refusal}");
    }
}
