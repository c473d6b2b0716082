//! Checks the GPU backend's kernels beyond what `hammerhead verify --backend cuda` does, on the machine it runs on:
//! `gpu_check RESULT.json [STAGE]…`.
//!
//! What the driver made of the kernels that are planned, and sums that are exact in any order, which must have the
//! simulator's bits whatever the tile. Exit status 1 if anything is wrong.

use std::process::ExitCode;

use format::{Dense, Values};
use hammerhead::{Activation, Engine, Error, Gate, Options, Output, Plan, Request, Result, Shape};
use hammerhead::{Target, backends};
use hammerhead_testkit::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead_testkit::stages::{self, Stage};
use hammerhead_testkit::verify::poisoned;
use serde_json::{Value, json};

const STAGES: [Stage; 2] = [("resources", resources), ("exact", exact)];

fn main() -> ExitCode {
    stages::run(&STAGES)
}

/// Registers and spills of the kernels that are planned for the timed cases, and of every gate and output type.
fn resources() -> Result<Value> {
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
    Ok(json!({"passed": passed, "rows": rows}))
}

fn whole_numbers(shape: (usize, usize, usize), activation: Activation) -> Case {
    let (why, inputs) = ("whole numbers: every sum is exact", Inputs::Integers);
    let groups = vec![Shape::new(shape.0, shape.1, shape.2)];
    let (suite, gate, output) = (Suite::Edge, Gate::None, Output::F32);
    Case { suite, why, groups, gate, activation, output, precision: op::Precision::Exact, inputs, timed: false }
}

/// Sums that are exact in any order must have the simulator's bits, whatever the tile.
fn exact() -> Result<Value> {
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
    Ok(json!({"passed": passed, "rows": rows}))
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
