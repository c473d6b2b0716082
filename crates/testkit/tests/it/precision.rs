//! Products in FP8: the suite's cases and every way of Hopper's kernels, simulated, under the bound; and who refuses.
//!
//! The reference rounds tokens and weights as `op::precision` defines it, so that the simulator, which adds in f32, has
//! no more room than with exact operands.

use format::{Dense, Matrix};
use gpu::Simulated;
use hammerhead::{Activation, Backend, Engine, Error, Gate, Options, Output, Plan, Precision, Problem, Request, Shape};
use hammerhead::{Target, Weights, backends, cpu};
use hammerhead_testkit::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead_testkit::verify::{Expected, poisoned};
use op::{Call, Operands};
use rayon::prelude::*;
use sim::Schedule;

/// What the simulator makes of an instance; input scales are multiplied with on the device, as a queue does.
fn simulate(case: &Case, instance: &Instance, request: &str, schedule: Schedule) -> Vec<Dense<'static>> {
    let simulator = Simulated::by_name("sim").unwrap().under(schedule);
    let backend: &'static dyn Backend = Box::leak(Box::new(simulator));
    let request: Request = request.parse().unwrap();
    let (problem, team) = (case.computed_problem().unwrap(), cpu::team(Some(1)).unwrap());
    let packed = backend.prepack(&instance.weights, &team).unwrap();
    let problem = problem.with_scaling(packed.scaling()).unwrap();
    let plan = Plan::best(problem.clone(), &[backend], &request, 1).unwrap_or_else(|error| panic!("{case}: {error}"));
    let mut results = poisoned(instance);
    let targets = &mut Target::all(&mut results);
    let ran = if case.is_scaled() {
        let largest = vec![0.0; instance.activations.len()];
        let (weights, activations) = (packed.as_ref(), &instance.activations[..]);
        let operands = Operands { weights, activations, largest: &largest, addends: &[], targets };
        simulator.launch_multiplying(&problem, plan.config(), operands).map(drop)
    } else {
        let choice = (plan.backend(), *plan.config());
        Call::new(choice, &problem, packed.as_ref(), &instance.activations, targets, &team).and_then(Call::run)
    };
    if let Err(error) = ran {
        panic!("{} of {case} under {schedule}: {error}", plan.config());
    }
    let shapes = problem.groups().iter().zip(results);
    shapes.map(|(s, values)| Dense::new(s.m, s.n, values, 1.0).unwrap()).collect()
}

fn check(case: &Case, request: &str, schedule: Schedule) {
    let instance = case.instance(7).unwrap();
    let expected = Expected::new(&instance, false, 7, &cpu::team(Some(1)).unwrap());
    let arithmetic = Simulated::by_name("sim").unwrap().arithmetic_of(&case.computed_problem().unwrap());
    let report = expected.check(&simulate(case, &instance, request, schedule), arithmetic);
    let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(report.passed(), "{case} with {request} under {schedule}: {} wrong; {first}", report.failures);
}

#[test]
fn every_case_is_within_the_bound_as_planned() {
    let small: Vec<Case> = cases::suite(Suite::Fp8).into_iter().filter(|case| !case.timed).collect();
    small.par_iter().for_each(|case| check(case, "", Schedule::Random(3)));
}

/// Every way of putting the phases together, with a problem that reaches its corners.
const WAYS: [(&str, [usize; 3]); 9] = [
    ("tile=8x64,depth=128,stages=2,epilogue=direct,schedule=tile", [9, 70, 208]),
    ("tile=16x96,depth=256,stages=4,epilogue=staged,schedule=tile", [17, 104, 1104]),
    ("tile=24x128,depth=128,stages=3,epilogue=direct,schedule=tile", [41, 136, 336]),
    ("tile=48x64,depth=128,stages=2,epilogue=staged,schedule=tile", [49, 72, 592]),
    ("tile=96x64,depth=128,stages=2,epilogue=staged,schedule=persistent", [97, 200, 272]),
    ("tile=160x64,depth=128,stages=2,epilogue=staged,schedule=tile", [130, 72, 144]),
    ("tile=256x64,depth=128,stages=2,epilogue=staged,schedule=tile", [209, 40, 400]),
    ("tile=16x64,depth=128,stages=2,epilogue=direct,schedule=split-k", [9, 70, 592]),
    ("tile=64x64,depth=128,stages=3,epilogue=staged,schedule=split-k", [65, 72, 1104]),
];

#[test]
fn every_way_is_within_the_bound_under_several_schedules() {
    let ways: Vec<_> = WAYS.into_iter().flat_map(|way| [Gate::Silu, Gate::None].map(|gate| (way, gate))).collect();
    ways.par_iter().for_each(|&((request, [m, n, k]), gate)| {
        // Of one matrix a block of rows has twice as many columns.
        let wide = |text: &str| text.replace("x128", "x256").replace("x96", "x192").replace("x64", "x128");
        let request = if gate == Gate::None { wide(request) } else { request.to_owned() };
        let template = cases::suite(Suite::Fp8).swap_remove(0);
        let (groups, inputs) = (vec![Shape::new(m, n, k)], Inputs::Realistic);
        let case = Case { groups, gate, inputs, activation: Activation::BF16, ..template };
        for schedule in [Schedule::Random(1), Schedule::Random(2)] {
            check(&case, &request, schedule);
        }
    });
}

#[test]
fn a_row_that_is_not_finite_is_nan_and_no_other_is() {
    let (m, n, k) = (4, 64, 128);
    let mut values = vec![1f32; m * k];
    (values[5], values[2 * k + 90]) = (f32::INFINITY, f32::NAN);
    let tokens = [Dense::new(m, k, values, 1.0).unwrap().into()];
    let weights = [Weights::plain(Matrix::new(n, k, vec![0x22; n * k / 2], vec![0x38; n * k / 16], 1.0).unwrap())];
    let engine = Engine::new(Options { backend: Some("sim".into()), threads: Some(1), ..Options::default() });
    let engine = engine.unwrap();
    let layer = engine.load(&weights, Gate::None).unwrap().with_precision(Precision::Fp8);
    let results = engine.run(&layer, &tokens, Output::F32).unwrap();
    for row in 0..m {
        let mut found = vec![0.0; n];
        results[0].row(row, &mut found);
        let right = |x: &f32| if row % 2 == 0 { x.is_nan() } else { *x == k as f32 };
        assert!(found.iter().all(right), "row {row}: {found:?}");
    }
}

#[test]
fn who_cannot_says_so_and_what_to_do() {
    let problem = |activation| Problem::new(vec![Shape::new(8, 64, 64)], Gate::Silu, activation, Output::F16).unwrap();
    let rounded = problem(Activation::BF16).with_precision(Precision::Fp8).unwrap();
    for name in ["scalar", "sim:sm80", "sim:sm120", "sim:sm_100a"] {
        let backend = backends::by_name(name).unwrap();
        let error = Plan::best(rounded.clone(), &[backend], &Request::default(), 1).unwrap_err();
        assert!(matches!(error, Error::Fp8Tokens { .. }) && error.to_string().contains("exact"), "{name}: {error}");
    }
    let quantised = problem(Activation::NvFp4).with_precision(Precision::Fp8).unwrap_err().to_string();
    assert!(quantised.contains("give f16, bf16 or f32"), "{quantised}");
    let refused = Plan::best(rounded, &[backends::by_name("sim").unwrap()], &"strategy=sequential".parse().unwrap(), 1);
    assert!(refused.unwrap_err().to_string().contains("strategy=interleaved"));
}
