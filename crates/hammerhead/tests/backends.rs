//! Every backend that this machine has, over the one list of cases, against the reference.

use format::Dense;
use hammerhead::backend::{self, Target};
use hammerhead::cases::{self, Case, Instance, Suite};
use hammerhead::cpu::Threads;
use hammerhead::verify::{Expected, poisoned};
use hammerhead::{Backend, Engine, Options, Request, Strategy};

fn available() -> impl Iterator<Item = &'static dyn Backend> {
    backend::all().iter().copied().filter(|b| match b.available() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("not tested here: {error}");
            false
        }
    })
}

fn engine(backend: &str, threads: usize, request: &str) -> Engine {
    let request: Request = request.parse().unwrap();
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

/// The one tester: this case, this seed, these engines.
fn assert_correct(case: &Case, seed: u64, engines: &[(String, Engine)]) {
    let instance = case.instance(seed).unwrap();
    let expected = Expected::new(&instance, case.is_community(), seed, &Threads::new(None).unwrap());
    for (name, engine) in engines {
        let report = expected.check(&compute(engine, &instance));
        let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(report.passed(), "{name} on {case} ({}), seed {seed}: {} wrong; {first}", case.why, report.failures);
        assert_eq!(report.compared > 0, case.groups.iter().any(|s| s.m > 0), "{case}: nothing was compared");
    }
}

/// Every strategy with tiles that cut the cases in one piece, in a few and in many, and one to three stages.
fn requests() -> Vec<String> {
    let mut requests = vec![String::new()];
    for strategy in Strategy::ALL {
        for (tile, depth, stages) in [("16x16", 64, 2), ("32x48", 128, 3), ("256x512", 512, 2), ("64x32", 256, 4)] {
            requests.push(format!("strategy={strategy},tile={tile},depth={depth},stages={stages}"));
        }
        if strategy != Strategy::PingPong {
            requests.push(format!("strategy={strategy},stages=1"));
        }
    }
    requests
}

fn engines(backend: &'static dyn Backend, threads: usize) -> Vec<(String, Engine)> {
    let named = |request: String| {
        let name = format!("{} [{request}]", backend.name());
        (name, engine(backend.name(), threads, &request))
    };
    requests().into_iter().map(named).collect()
}

#[test]
fn every_backend_and_strategy_is_right_on_every_edge_case() {
    for backend in available() {
        let engines = engines(backend, 2);
        for (seed, case) in cases::suite(Suite::Edge).iter().enumerate() {
            assert_correct(case, seed as u64, &engines);
        }
    }
}

#[test]
fn every_backend_is_right_on_the_shapes_that_serving_and_the_community_use() {
    for backend in available() {
        let engines = [(backend.name().to_owned(), engine(backend.name(), 2, ""))];
        let portable = backend.name() == "scalar";
        for (seed, case) in cases::all().iter().enumerate() {
            // The portable backend needs seconds for the largest; it sees those whose work is moderate.
            let moderate = case.problem().unwrap().flops() < 1e10;
            if case.suite != Suite::Edge && (moderate || !portable) {
                assert_correct(case, 100 + seed as u64, &engines);
            }
        }
    }
}

#[test]
fn results_are_the_same_to_the_bit_for_any_number_of_threads() {
    for backend in available() {
        for case in cases::suite(Suite::Edge).iter().filter(|c| c.why.contains("groups") || c.groups[0].m > 30) {
            let instance = case.instance(7).unwrap();
            for strategy in Strategy::ALL {
                let request = format!("strategy={strategy},tile=32x32,depth=128,stages=2");
                let bits = |threads| format!("{:?}", compute(&engine(backend.name(), threads, &request), &instance));
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
        for case in cases::suite(Suite::Edge).iter().take(20) {
            let instance = case.instance(1).unwrap();
            let layer = engine(backend.name(), 1, "").load(&instance.weights, case.gate).unwrap();
            assert!(layer.packed_bytes() * 20 <= layer.checkpoint_bytes() * 21, "{case}");
        }
    }
}
