//! The GPU's kernels in the simulator, against the reference, on odd shapes under several schedules.
//!
//! Results over whole numbers are exact whatever the order of sums, so those are compared to the bit; the others under the
//! derived bound.

use format::Dense;
use hammerhead::backend::{Operands, Target};
use hammerhead::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead::cpu::Threads;
use hammerhead::gpu::Simulated;
use hammerhead::reference::Reference;
use hammerhead::verify::{Expected, poisoned};
use hammerhead::{Activation, Backend, Config, Engine, Error, Gate, Options, Output, Plan, Request, Shape};
use sim::Schedule;

/// What the simulated GPU makes of an instance, in poisoned memory.
fn simulate(instance: &Instance, request: &str, schedule: Schedule) -> Vec<Dense<'static>> {
    let backend: &'static dyn Backend = Box::leak(Box::new(Simulated(schedule)));
    let request: Request = request.parse().unwrap();
    let plan = Plan::best(instance.problem.clone(), &[backend], &request, 1).unwrap();
    let packed = backend.prepack(&instance.weights).unwrap();
    let largest: Vec<f32> = instance.activations.iter().map(largest).collect();
    let mut results = poisoned(instance);
    let operands = Operands {
        weights: &packed,
        activations: &instance.activations,
        largest: &largest,
        targets: &mut Target::all(&mut results),
    };
    let threads = Threads::new(Some(1)).unwrap();
    if let Err(error) = backend.run(&instance.problem, plan.config(), operands, &threads) {
        panic!("{} under {schedule}: {error}", plan.config());
    }
    let shapes = instance.problem.groups().iter();
    shapes.zip(results).map(|(s, values)| Dense::new(s.m, s.n, values, 1.0).unwrap()).collect()
}

fn largest(activations: &hammerhead::Activations<'_>) -> f32 {
    let mut row = vec![0f32; activations.k()];
    let mut largest = 0f32;
    for index in 0..activations.rows() {
        activations.unscaled_row(index, &mut row);
        largest = row.iter().fold(largest, |largest, x| largest.max(x.abs()));
    }
    largest
}

fn case(shape: (usize, usize, usize), inputs: Inputs, activation: Activation, gate: Gate, output: Output) -> Case {
    let groups = vec![Shape::new(shape.0, shape.1, shape.2)];
    Case { suite: Suite::Edge, why: "odd", groups, gate, activation, output, inputs, timed: false }
}

#[test]
fn sums_of_whole_numbers_are_right_to_the_bit_on_odd_shapes_under_every_schedule() {
    let requests = ["tile=8x64,stages=2", "tile=16x128,stages=3", "tile=40x64,stages=4", "tile=24x192,stages=2"];
    let shapes = [(1, 1, 16), (7, 65, 48), (9, 64, 64), (17, 130, 208), (41, 200, 320), (33, 63, 1040)];
    for (seed, (shape, request)) in shapes.iter().flat_map(|s| requests.map(|r| (*s, r))).enumerate() {
        let case = case(shape, Inputs::Integers, Activation::NvFp4, Gate::None, Output::F32);
        let instance = case.instance(seed as u64).unwrap();
        let reference = Reference::new(&instance.activations[0], &instance.weights[0], Gate::None);
        let expected: Vec<f32> = reference.all().iter().map(|element| element.value as f32).collect();
        for schedule in Schedule::several(2) {
            let found = simulate(&instance, request, schedule);
            let format::Values::F32(found) = found[0].values() else { panic!("asked for f32") };
            assert!(found[..] == expected[..], "{case} with {request} under {schedule}");
        }
    }
}

#[test]
fn every_edge_case_is_within_the_bound() {
    let threads = Threads::new(None).unwrap();
    for (seed, case) in cases::suite(Suite::Edge).iter().enumerate() {
        let instance = case.instance(seed as u64).unwrap();
        let expected = Expected::new(&instance, case.is_community(), seed as u64, &threads);
        let report = expected.check(&simulate(&instance, "", Schedule::Random(seed as u64)));
        let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(report.passed(), "{case} ({}): {} wrong; {first}", case.why, report.failures);
    }
}

#[test]
fn a_problem_beyond_the_simulators_patience_is_refused_with_the_limit() {
    let request = Request::default();
    let engine = Engine::new(Options { backend: Some("sim".into()), threads: Some(1), request }).unwrap();
    let case = case((256, 4096, 7168), Inputs::Zero, Activation::NvFp4, Gate::Silu, Output::F16);
    let plan = Plan::best(case.problem().unwrap(), engine.backends(), &request, 1);
    assert!(matches!(&plan, Err(Error::Illegal { reason, .. }) if reason.contains("at most 1024")), "{plan:?}");
}

#[test]
fn what_the_kernels_cannot_do_is_refused_with_the_reason() {
    let problem = case((64, 128, 256), Inputs::Zero, Activation::F16, Gate::Silu, Output::F16).problem().unwrap();
    let backend = Simulated(Schedule::Earliest);
    for (request, part) in [
        ("strategy=interleaved", "two-pass"),
        ("tile=12x64", "multiple of 8"),
        ("tile=64x48", "64, 128 or 192"),
        ("tile=64x256", "1 to 3"),
        ("depth=128", "depth=64"),
        ("stages=1", "2 to 16"),
        ("tile=256x128,stages=16", "shared memory"),
    ] {
        let config: Config = request.parse::<Request>().unwrap().applied_to(backend.candidates(&problem, 1)[0]);
        let refusal = backend.check(&problem, &config, 1).unwrap_err().to_string();
        assert!(refusal.contains(part), "{request}: {refusal}");
    }
}
