//! Checks the GPU backend on the machine it runs on, then times it: `gpu_check RESULT.json`.
//!
//! First what the driver made of the kernels; then every case of the list against the reference, small ones also
//! against the simulator bit by bit; and only if all that is right, the time of the `dual` and `decode` shapes by the
//! device's clock. What has been found so far is written after every stage, so that a hang leaves a record. Exit status
//! 1 if anything is wrong.

use std::process::ExitCode;

use format::{Dense, Values};
use gpu::device;
use hammerhead::cpu;
use hammerhead::{Activation, Engine, Error, Gate, Options, Output, Plan, Request, Result, Shape};
use hammerhead::{Target, backends};
use hammerhead_testkit::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead_testkit::clock;
use hammerhead_testkit::verify::{Expected, poisoned};
use serde_json::{Value, json};

/// Configurations that are timed for each shape.
const PROMISING: usize = 5;
/// Layers that take turns while the clock runs: together larger than the GPU's cache.
const LAYERS: u64 = 4;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: gpu_check RESULT.json");
        return ExitCode::from(2);
    };
    let mut record = json!({});
    let passed = check(&mut record, &path);
    let passed = passed.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        record["error"] = json!(error.to_string());
        false
    });
    record["passed"] = json!(passed);
    save(&record, &path);
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(record: &mut Value, path: &str) -> Result<bool> {
    let info = device::context(0)?.info();
    println!("{} {:?}, {} multiprocessors, CUDA {}", info.name, info.capability, info.multiprocessors, info.driver);
    record["device"] = json!({"name": info.name, "multiprocessors": info.multiprocessors, "driver": info.driver});
    save(record, path);
    for (stage, run) in STAGES {
        println!("== {stage}");
        let (passed, found) = run()?;
        record[stage] = found;
        save(record, path);
        if !passed {
            return Ok(false);
        }
    }
    Ok(true)
}

type Stage = fn() -> Result<(bool, Value)>;

const STAGES: [(&str, Stage); 4] =
    [("resources", resources), ("exact", exact), ("cases", all_cases), ("timing", timing)];

fn save(record: &Value, path: &str) {
    if let Err(error) = std::fs::write(path, format!("{record:#}\n")) {
        eprintln!("cannot write {path}: {error}");
    }
}

/// Registers and spills of the kernels that are planned for the timed cases, and of every gate and output type.
fn resources() -> Result<(bool, Value)> {
    let (mut passed, mut rows) = (true, Vec::new());
    let small = whole_numbers((8, 64, 64), Activation::F16);
    let gates = Gate::ALL.into_iter().map(|gate| Case { gate, output: Output::F16, ..small.clone() });
    let outputs = Output::ALL.into_iter().map(|output| Case { gate: Gate::Silu, output, ..small.clone() });
    for case in cases::all().into_iter().filter(|case| case.timed).chain(gates).chain(outputs) {
        let plan = Plan::best(case.problem()?, &[backends::by_name("cuda")?], &Request::default(), 1)?;
        let config = plan.config();
        for (kernel, registers, spilled) in gpu::cuda::resources(plan.problem(), config)? {
            println!("{kernel:18} {case} {config}: {registers} registers, {spilled} bytes spilled");
            passed &= spilled == 0;
            rows.push(json!({"kernel": kernel, "case": case.to_string(), "config": config.to_string(),
                "registers": registers, "spilled_bytes": spilled}));
        }
    }
    Ok((passed, json!(rows)))
}

fn whole_numbers(shape: (usize, usize, usize), activation: Activation) -> Case {
    let (why, inputs) = ("whole numbers: every sum is exact", Inputs::Integers);
    let groups = vec![Shape::new(shape.0, shape.1, shape.2)];
    let (suite, gate, output) = (Suite::Edge, Gate::None, Output::F32);
    Case { suite, why, groups, gate, activation, output, precision: op::Precision::Exact, inputs, timed: false }
}

/// Sums that are exact in any order must have the simulator's bits, whatever the tile.
fn exact() -> Result<(bool, Value)> {
    let requests = [
        "",
        "tile=8x32",
        "tile=40x64,stages=2",
        "tile=128x96",
        "tile=16x64,schedule=split-k",
        "tile=24x64,schedule=persistent,epilogue=direct",
        "strategy=sequential,tile=64x128",
        "strategy=two-pass,tile=32x128",
        "strategy=ping-pong,tile=16x32",
    ];
    let shapes =
        [(1, 1, 16), (7, 65, 48), (9, 64, 64), (17, 130, 208), (41, 200, 320), (33, 63, 1040), (300, 257, 144)];
    let (mut passed, mut rows) = (true, Vec::new());
    for (seed, shape) in shapes.into_iter().enumerate() {
        for activation in Activation::ALL {
            let case = whole_numbers(shape, activation);
            let instance = case.instance(seed as u64)?;
            for request in requests {
                let equal = match compute("sim", &instance, request) {
                    Ok(simulated) => bits(&compute("cuda", &instance, request)?) == bits(&simulated),
                    // Not every kernel takes every request.
                    Err(Error::Illegal { .. }) => continue,
                    Err(error) => return Err(error),
                };
                passed &= equal;
                rows.push(json!({"case": case.to_string(), "config": request, "equal": equal}));
                if !equal {
                    println!("NOT EQUAL to the simulator: {case} with {request}");
                }
            }
        }
    }
    println!("{} results compared with the simulator bit by bit", rows.len());
    Ok((passed, json!(rows)))
}

/// Every case of the list within the bound, as planned; the small ones side by side with the simulator, and the common
/// ones in every strategy.
fn all_cases() -> Result<(bool, Value)> {
    let (mut passed, mut rows) = (true, Vec::new());
    let threads = cpu::team(None)?;
    for (seed, case) in cases::all().iter().enumerate() {
        let instance = case.instance(seed as u64)?;
        let expected = Expected::new(&instance, case.is_community(), seed as u64, &threads);
        let common = case.gate == Gate::Silu && case.output == Output::F16;
        let requests = [
            "",
            "strategy=two-pass",
            "strategy=sequential",
            "strategy=ping-pong",
            "schedule=split-k",
            "epilogue=direct",
        ];
        for request in &requests[..if common { requests.len() } else { 1 }] {
            let found = match compute("cuda", &instance, request) {
                Err(Error::Illegal { .. }) if !request.is_empty() => continue,
                found => found?,
            };
            let computed = case.computed_problem()?.activation();
            let report = expected.check(&found, backends::by_name("cuda")?.arithmetic(computed));
            let simulated = match (case.suite, *request) {
                (Suite::Edge, "") => Some(bits(&compute("sim", &instance, request)?) == bits(&found)),
                _ => None,
            };
            passed &= report.passed();
            let first = report.first.as_ref().map(ToString::to_string);
            if let Some(first) = &first {
                println!(
                    "WRONG: {case} ({}) [{request}]: {} of {}; {first}",
                    case.why, report.failures, report.compared
                );
            }
            rows.push(json!({"case": case.to_string(), "suite": case.suite.to_string(), "why": case.why,
                "config": request, "compared": report.compared, "failures": report.failures,
                "worst_part_of_bound": report.max_ratio, "first": first, "same_bits_as_simulator": simulated}));
        }
    }
    let worst = rows.iter().filter_map(|row| row["worst_part_of_bound"].as_f64()).fold(0.0, f64::max);
    let same = rows.iter().filter(|row| row["same_bits_as_simulator"] == true).count();
    let other = rows.iter().filter(|row| row["same_bits_as_simulator"] == false).count();
    println!("{} checks; worst {worst:.3} of the bound; {same} as simulated to the bit, {other} not", rows.len());
    Ok((passed, json!(rows)))
}

/// Device time of the timed shapes with half-precision tokens, in the configurations that promise most.
fn timing() -> Result<(bool, Value)> {
    let cuda_backend = backends::by_name("cuda")?;
    let (backend, request) = (Some("cuda".to_owned()), Request::default());
    let engine = Engine::new(Options { backend, threads: None, request })?;
    let mut rows = Vec::new();
    let timed = cases::all().into_iter().filter(|case| case.timed && case.suite != Suite::Group);
    for case in timed.chain(cases::suite(Suite::Group).into_iter().filter(|case| case.timed).take(1)) {
        let case = Case { activation: Activation::F16, inputs: Inputs::Realistic, ..case };
        let instances = (0..LAYERS).map(|seed| case.instance(seed)).collect::<Result<Vec<Instance>>>()?;
        let layers = instances.iter().map(|i| engine.load(&i.weights, case.gate)).collect::<Result<Vec<_>>>()?;
        let (problem, tokens) = (&instances[0].problem, &instances[0].activations);
        let plan = Plan::best(problem.clone(), &[cuda_backend], &Request::default(), 1)?;
        let planned = *plan.config();
        let mut found = Vec::new();
        for config in plan.considered().iter().take(PROMISING).map(|way| way.config) {
            let mut seconds = clock::time(0, &layers, tokens, case.output, config.into())?.burst;
            seconds.sort_by(f64::total_cmp);
            let (median, least) = (seconds[seconds.len() / 2], seconds[0]);
            let predicted = cuda_backend.check(problem, &config, 1)?.seconds;
            rows.push(json!({"case": case.to_string(), "suite": case.suite.to_string(), "config": config.to_string(),
                "planned": config == planned, "microseconds": median * 1e6, "least": least * 1e6,
                "predicted": predicted * 1e6, "teraflops": problem.flops() / median / 1e12}));
            found.push((median, config));
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = found.iter().find(|(_, config)| *config == planned).map_or(f64::NAN, |(median, _)| *median);
        println!("{case}: best {:.1} µs [{}], planned {:.1} µs [{planned}]", found[0].0 * 1e6, found[0].1, at * 1e6);
    }
    Ok((true, json!(rows)))
}

/// Computes an instance on a backend, in poisoned memory.
fn compute(backend: &str, instance: &Instance, request: &str) -> Result<Vec<Dense<'static>>> {
    let request: Request = request.parse()?;
    let engine = Engine::new(Options { backend: Some(backend.to_owned()), threads: Some(1), request })?;
    let layer = engine.load(&instance.weights, instance.problem.gate())?;
    let mut results = poisoned(instance);
    engine.run_into(&layer, &instance.activations, &mut Target::all(&mut results))?;
    let shapes = instance.problem.groups();
    shapes.iter().zip(results).map(|(s, values)| Ok(Dense::new(s.m, s.n, values, 1.0)?)).collect()
}

/// The bits of results, one number an element.
fn bits(results: &[Dense<'_>]) -> Vec<u32> {
    let bits = |result: &Dense<'_>| -> Vec<u32> {
        match result.values() {
            Values::F16(c) => c.iter().map(|x| x.to_bits().into()).collect(),
            Values::BF16(c) => c.iter().map(|x| x.to_bits().into()).collect(),
            Values::F32(c) => c.iter().map(|x| x.to_bits()).collect(),
        }
    };
    results.iter().flat_map(bits).collect()
}
