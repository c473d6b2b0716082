//! What kernels do, counted in the simulator, and whether it is right: evidence that needs no GPU.

use format::Dense;
use gpu::Simulated;
use hammerhead::layer_reference::LayerReference;
use hammerhead::{Engine, Experts, LayerOptions, Options};
use op::operands::largest_of;
use op::{Backend, Config, Intermediate, Operands, Problem, Request, Result, Shape, Target};
use sim::Profile;

use crate::cases::{Case, Inputs, Suite};
use crate::moe::{self, Model};
use crate::verify::{Expected, Report, poisoned};

/// K of a tile that is counted, at most.
const MOST_TILE_DEPTH: usize = 512;

/// Experts, their number per token, and tokens of a small layer.
const SMALL: [usize; 3] = [3, 2, 11];
/// The width of its tokens and of its intermediate, at most.
const SMALL_WIDTHS: [usize; 2] = [192, 128];

/// How far a layer of the same kind, small enough for a simulator, is from the reference when a configuration computes
/// it.
pub fn small_layer(backend: &Simulated, problem: &Problem, config: &Config) -> Result<Report> {
    let options =
        Options { backend: Some(backend.name().to_owned()), threads: Some(1), request: Request::from(*config) };
    let engine = Engine::new(options)?;
    let ([experts, top, tokens], shape) = (SMALL, problem.groups()[0]);
    let widths = [shape.k.min(SMALL_WIDTHS[0]), shape.n.min(SMALL_WIDTHS[1])];
    let model = Model { experts: [experts, top], widths, gate: problem.gate(), ..moe::COMMON };
    let instance = model.instance(tokens, problem.activation(), usize::MAX, 1)?;
    let (weights, routed) = (instance.weights()?, instance.routed()?);
    let whole = problem.whole();
    let intermediate = whole.map_or(Intermediate::Tokens, |whole| whole.intermediate);
    let batch_invariant = whole.is_some_and(|whole| whole.batch_invariant);
    let precision = problem.precision();
    let options = LayerOptions { intermediate, precision, batch_invariant, ..LayerOptions::default() };
    let layer = Experts::new(&engine, &weights, options)?;
    let result = layer.run(&engine, &instance.tokens, &routed, problem.output())?;
    let (weights, routed) = (&weights, &routed);
    let reference = LayerReference { weights, intermediate, precision, tokens: &instance.tokens, routed };
    moe::check(&reference, 0..tokens, &result, &|activation| backend.layer_arithmetic_in(precision, activation))
}

/// What a configuration's kernels do for one tile of a problem's first group on a simulator, counted: instructions by
/// warp, turns lost to bank conflicts, and so on, each with its name; and how far their results are from the reference.
/// No GPU is needed, and nothing is said about time.
pub fn counters(backend: &Simulated, problem: &Problem, config: &Config) -> Result<(Vec<(&'static str, u64)>, Report)> {
    let whole = problem.groups()[0];
    let tile =
        Shape::new(whole.m.min(config.tile.tokens), whole.n.min(config.tile.columns), whole.k.min(MOST_TILE_DEPTH));
    let case = Case {
        suite: Suite::Dual,
        why: "a tile to count",
        groups: vec![tile],
        gate: problem.gate(),
        activation: problem.activation(),
        output: problem.output(),
        precision: problem.precision(),
        inputs: Inputs::Realistic,
        timed: false,
    };
    let instance = case.instance(1)?;
    backend.check(&instance.problem, config, 1)?;
    let team = hammerhead::cpu::team(Some(1))?;
    let weights = backend.prepack(&instance.weights, &team)?;
    let largest = largest_of(&instance.activations, &team);
    let mut results = poisoned(&instance);
    let targets = &mut Target::all(&mut results);
    let (weights, activations) = (weights.as_ref(), &instance.activations[..]);
    let operands = Operands { weights, activations, largest: &largest, addends: &[], targets };
    let profiles = backend.launch_all(&instance.problem, config, operands)?;
    let shapes = instance.problem.groups().iter().zip(results);
    let results: Vec<Dense<'_>> =
        shapes.map(|(shape, values)| Dense::new(shape.m, shape.n, values, 1.0)).collect::<Result<_, _>>()?;
    let report = Expected::new(&instance, false, 1, &team).check(&results, backend.arithmetic_of(problem));
    let sum = |count: fn(&Profile) -> u64| profiles.iter().map(count).sum();
    let counted = vec![
        ("kernels", profiles.len() as u64),
        ("instructions by warp", sum(Profile::instructions)),
        ("multiply-adds on tensor cores", sum(|p| p.tensor_macs)),
        ("turns of shared memory", sum(|p| p.shared_turns)),
        ("turns lost to bank conflicts", sum(|p| p.bank_conflicts)),
        ("waits at barriers", sum(|p| p.barrier_waits)),
        ("barriers and fences", sum(|p| p.synchronisation)),
        ("bytes brought in by copies", sum(|p| p.copied_in)),
        ("bytes read by threads", sum(|p| p.global_read)),
    ];
    Ok((counted, report))
}
