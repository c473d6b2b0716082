//! Every backend that this machine has, over the one list of cases, against the reference.
//!
//! A backend for CPUs takes every configuration that is asked for here, for every case. Others (a GPU, the simulator)
//! say what they can run: what they refuse is left out, and their own candidates are tried in its place.

use format::Dense;
use hammerhead::{Activation, Backend, Engine, Error, Options, Output, Plan, Problem, Request, Shape, Strategy, cpu};
use hammerhead::{Target, backends};
use hammerhead_testkit::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead_testkit::verify::{Expected, poisoned};

fn available() -> impl Iterator<Item = &'static dyn Backend> {
    backends::all().iter().copied().filter(|b| match b.available() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("not tested here: {error}");
            false
        }
    })
}

fn engine(backend: &str, threads: usize, request: Request) -> Engine {
    Engine::new(Options { backend: Some(backend.to_owned()), threads: Some(threads), request }).unwrap()
}

/// Runs an instance into poisoned memory.
fn compute(engine: &Engine, instance: &Instance) -> Vec<Dense<'static>> {
    let layer = engine.load(&instance.weights, instance.problem.gate()).unwrap();
    let mut results = poisoned(instance);
    engine.run_into(&layer, &instance.activations, &mut Target::all(&mut results)).unwrap();
    let shapes = instance.problem.groups();
    shapes.iter().zip(results).map(|(s, values)| Dense::new(s.m, s.n, values, 1.0).unwrap()).collect()
}

/// The requests that a backend is tried with: all of `wanted` on a CPU; elsewhere those that are granted, and some of
/// the backend's own candidates.
fn tried(backend: &'static dyn Backend, problem: &Problem, wanted: &[Request]) -> Vec<Request> {
    if backend.layout() == cpu::LAYOUT {
        return wanted.to_vec();
    }
    let granted = |request: &Request| match Plan::best(problem.clone(), &[backend], request, 1) {
        Ok(_) => true,
        Err(Error::Illegal { .. }) => false,
        Err(error) => panic!("{} on {problem}: {error}", backend.name()),
    };
    let own = backend.candidates(problem, 1);
    let few = own.len().div_ceil(4).max(1);
    let own = own.into_iter().step_by(few).map(Request::from);
    wanted.iter().copied().chain(own).filter(granted).collect()
}

/// The one tester: this case, this seed, each backend in each of the ways that it grants. What is right is computed
/// once for all.
fn assert_correct(case: &Case, seed: u64, backends: &[&'static dyn Backend], wanted: &[Request]) {
    let problem = case.computed_problem().unwrap();
    let instance = case.instance(seed).unwrap();
    let expected = Expected::new(&instance, case.is_community(), seed, &cpu::team(None).unwrap());
    for &backend in backends {
        let requests = tried(backend, &problem, wanted);
        if requests.is_empty() {
            eprintln!("not tested: {} refuses {case}", backend.name());
        }
        let arithmetic = backend.arithmetic_of(&problem);
        for request in requests {
            let report = expected.check(&compute(&engine(backend.name(), 2, request), &instance), arithmetic);
            let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
            let name = backend.name();
            assert!(
                report.passed(),
                "{name} with {request:?} on {case} ({}), seed {seed}: {} wrong; {first}",
                case.why,
                report.failures
            );
            assert_eq!(report.compared > 0, case.groups.iter().any(|s| s.m > 0), "{case}: nothing was compared");
        }
    }
}

/// A quarter of the requests beside the plain one, which every case gets: every fourth case meets the same. `hammerhead
/// verify --suite edge` has every case meet all of them.
fn quarter(requests: &[Request], case: usize) -> Vec<Request> {
    let (plain, others) = requests.split_at(1);
    let others = others.iter().enumerate().filter(|(index, _)| (index + case).is_multiple_of(4));
    plain.iter().chain(others.map(|(_, request)| request)).copied().collect()
}

/// Every strategy with tiles that cut the cases in one piece, in a few and in many, and one to three stages; the other
/// epilogue and the other schedule with some of them.
fn requests() -> Vec<Request> {
    let mut requests = vec![String::new()];
    for strategy in Strategy::ALL {
        for (tile, depth, stages) in
            [("16x16", 64, 2), ("32x48", 128, 3), ("256x512", 512, 2), ("64x32", 256, 4), ("128x64", 256, 2)]
        {
            requests.push(format!("strategy={strategy},tile={tile},depth={depth},stages={stages}"));
        }
        if strategy != Strategy::PingPong {
            requests.push(format!("strategy={strategy},stages=1"));
        }
        requests.push(format!("strategy={strategy},tile=32x48,epilogue=staged,schedule=persistent"));
    }
    requests.iter().map(|request| request.parse().unwrap()).collect()
}

#[test]
fn every_backend_and_strategy_is_right_on_every_edge_case() {
    let (backends, requests): (Vec<_>, _) = (available().collect(), requests());
    for (seed, case) in cases::suite(Suite::Edge).iter().enumerate() {
        assert_correct(case, seed as u64, &backends, &quarter(&requests, seed));
    }
}

#[test]
fn every_cpu_backend_takes_mxfp4_over_more_powers_than_nvfp4_and_f16_have_with_all_tokens() {
    let backends: Vec<_> = available().filter(|backend| backend.layout() == cpu::LAYOUT).collect();
    for (seed, activation) in Activation::ALL.into_iter().enumerate() {
        let groups = vec![Shape::new(19, 37, 224), Shape::new(1, 48, 128), Shape::new(0, 16, 32)];
        let why = "forty powers of two, K of whole chunks and of half of one";
        let case = Case { activation, output: Output::F32, ..Case::new(Suite::Edge, groups, Inputs::ManyPowers, why) };
        assert_correct(&case, seed as u64, &backends, &requests());
    }
}

#[test]
fn every_backend_is_right_on_the_shapes_that_serving_and_the_community_use() {
    // The portable backend needs seconds for the largest, and the simulator for what a GPU does in a microsecond; they
    // see those cases whose work is moderate for them.
    let most = |backend: &dyn Backend| match backend.name() {
        "scalar" => 1e10,
        "sim" => 1e8,
        _ => f64::INFINITY,
    };
    for (seed, case) in cases::all().iter().enumerate().filter(|(_, case)| case.suite != Suite::Edge) {
        let flops = case.problem().unwrap().flops();
        // The best backend sees all of them, and every other one every second.
        let seen = |index: usize| index == 0 || (index + seed).is_multiple_of(2);
        let backends = available().enumerate().filter(|&(index, backend)| seen(index) && flops < most(backend));
        let backends: Vec<_> = backends.map(|(_, backend)| backend).collect();
        assert_correct(case, 100 + seed as u64, &backends, &[Request::default()]);
    }
}

#[test]
fn results_are_the_same_to_the_bit_for_any_number_of_threads() {
    // A GPU, simulated or not, computes on none of them.
    for backend in available().filter(|backend| backend.layout() == cpu::LAYOUT) {
        for case in cases::suite(Suite::Edge).iter().filter(|c| c.why.contains("groups") || c.groups[0].m > 30) {
            let instance = case.instance(7).unwrap();
            let cut = |strategy| format!("strategy={strategy},tile=32x32,depth=128,stages=2");
            let mut cuts: Vec<Request> = Strategy::ALL.map(|strategy| cut(strategy).parse().unwrap()).to_vec();
            cuts.push(format!("{},schedule=persistent", cut(Strategy::Interleaved)).parse().unwrap());
            cuts.push("strategy=ping-pong,tile=64x16,depth=256,stages=2".parse().unwrap());
            for &request in &cuts {
                let bits = |threads| format!("{:?}", compute(&engine(backend.name(), threads, request), &instance));
                let alone = bits(1);
                for threads in [2, 5] {
                    assert!(alone == bits(threads), "{} on {case} with {threads} threads", backend.name());
                }
            }
        }
    }
}

#[test]
fn packed_weights_take_no_more_than_the_checkpoint() {
    for backend in available() {
        // GPU kernels read whole chunks of 64 rows and 64 of K; small matrices are filled up to them.
        let whole = if backend.layout() == cpu::LAYOUT { 1 } else { 64 };
        for case in cases::suite(Suite::Edge).iter().take(20) {
            let instance = case.instance(1).unwrap();
            let layer = engine(backend.name(), 1, Request::default()).load(&instance.weights, case.gate).unwrap();
            let filled = |n: usize, k: usize| n.next_multiple_of(whole) * k.next_multiple_of(whole) * 9 / 16;
            let matrices = instance.problem.matrices();
            let checkpoint: usize = case.groups.iter().map(|s| matrices * filled(s.n, s.k)).sum();
            assert!(whole > 1 || checkpoint == layer.checkpoint_bytes(), "{case}");
            assert!(layer.packed_bytes() * 20 <= checkpoint * 21, "{} on {case}", backend.name());
        }
    }
}
