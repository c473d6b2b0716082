//! Whole layers of experts on every CPU backend, and in the simulator of every family: against the reference, in every
//! way to the same bits, and what is refused.

use std::sync::Arc;

use format::{Dense, Values};
use gpu::Simulated;
use gpu::experts::plan::Cheapest;
use hammerhead::layer_reference::LayerReference;
use hammerhead::{
    Activation, Backend, Engine, Error, ExpertWeights, Experts, Gate, Ids, Intermediate, LayerOptions, Mlp, MlpWeights,
    Options, Output, Precision, Routed, Streaming, Target, Weights, backends, cpu,
};
use hammerhead_testkit::moe::{self, Instance, Model};
use op::{Alone, HostCall, HostRows, LayerOperands, LayerSpec, Split, Team};
use rayon::prelude::*;
use sim::Schedule;

const DENSE: [Activation; 3] = [Activation::BF16, Activation::F32, Activation::F16];

fn available() -> impl Iterator<Item = &'static dyn Backend> {
    backends::all().iter().copied().filter(|b| b.layout() == cpu::LAYOUT && b.available().is_ok())
}

fn engine(backend: &str, threads: usize) -> Engine {
    Engine::new(Options { backend: Some(backend.to_owned()), threads: Some(threads), ..Options::default() }).unwrap()
}

fn model(name: &str) -> Model {
    moe::models().into_iter().find(|model| model.name == name).unwrap().scaled_down()
}

/// The simulator of each family.
fn simulators() -> impl Iterator<Item = &'static dyn Backend> {
    ["sim", "sim:sm80", "sim:sm120", "sim:sm100"].into_iter().map(|name| backends::by_name(name).unwrap())
}

/// The numbers of a result, as bits.
fn bits(result: &Dense<'_>) -> Vec<Vec<u32>> {
    let mut values = vec![0f32; result.k()];
    let mut row = |row| {
        result.row(row, &mut values);
        values.iter().map(|x| x.to_bits()).collect()
    };
    (0..result.rows()).map(&mut row).collect()
}

/// Some rows of dense values.
fn picked(dense: &Dense<'_>, rows: &[usize]) -> Dense<'static> {
    let k = dense.k();
    let values: Values<'static> = match dense.values() {
        Values::F16(x) => rows.iter().flat_map(|row| x[row * k..][..k].to_vec()).collect::<Vec<_>>().into(),
        Values::BF16(x) => rows.iter().flat_map(|row| x[row * k..][..k].to_vec()).collect::<Vec<_>>().into(),
        Values::F32(x) => rows.iter().flat_map(|row| x[row * k..][..k].to_vec()).collect::<Vec<_>>().into(),
    };
    Dense::new(rows.len(), k, values, dense.global()).unwrap()
}

/// Computes a layer on a backend and holds every element against the reference.
fn assert_right(
    what: &str,
    backend: &'static dyn Backend,
    (weights, options): (&ExpertWeights<'_>, LayerOptions),
    (tokens, routed): (&Dense<'_>, &Routed),
    output: Output,
) {
    let engine = engine(backend.name(), 2);
    let layer = Experts::new(&engine, weights, options).unwrap();
    let result = layer
        .run(&engine, tokens, routed, output)
        .unwrap_or_else(|error| panic!("{what} on {}, {options:?}: {error}", backend.name()));
    let LayerOptions { intermediate, precision, .. } = options;
    let reference = LayerReference { weights, intermediate, precision, tokens, routed };
    let arithmetic = |activation| backend.layer_arithmetic_in(precision, activation);
    let report = moe::check(&reference, 0..tokens.rows(), &result, &arithmetic).unwrap();
    let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(report.passed(), "{what} on {}, {options:?}: {} wrong; {first}", backend.name(), report.failures);
    assert_eq!(report.compared, tokens.rows() * result.k());
}

#[test]
fn every_model_is_right_on_every_backend() {
    let backends: Vec<&dyn Backend> = available().chain(simulators()).collect();
    let cases =
        moe::models().into_iter().enumerate().flat_map(|case| backends.iter().enumerate().map(move |b| (case, b)));
    cases.collect::<Vec<_>>().into_par_iter().for_each(|((index, model), (number, &backend))| {
        let (model, simulated) = (model.scaled_down(), backend.layout() != cpu::LAYOUT);
        // A CPU takes every intermediate, simulators take turns: they are slow.
        let first = if simulated { number + index / 3 } else { 0 };
        let (turns, tokens) = if simulated { (first..first + 1, [6, 1, 6]) } else { (0..3, [1, 19, 6]) };
        for turn in turns {
            let intermediate = match Intermediate::ALL[turn % 3] {
                // An NVFP4 intermediate is not multiplied with a scale.
                Intermediate::NvFp4 if model.input_scales => Intermediate::F32,
                other => other,
            };
            let (element, output) = (DENSE[(index + turn) % 3], Output::ALL[(index + 2 * turn) % 3]);
            let instance = model.instance(tokens[(index + turn) % 3], element, usize::MAX, index as u64).unwrap();
            let batch_invariant = simulated && index % 2 == 0;
            let options = LayerOptions { intermediate, batch_invariant, ..LayerOptions::default() };
            let (weights, routed) = (instance.weights().unwrap(), instance.routed().unwrap());
            assert_right(model.name, backend, (&weights, options), (&instance.tokens, &routed), output);
        }
    });
}

#[test]
fn input_scales_of_both_products_are_part_of_the_layer() {
    let model = model("qwen3-30b-a3b");
    let instance = model.instance(5, Activation::BF16, usize::MAX, 3).unwrap();
    let scale = |width: usize, by: f32| (0..width).map(|i| by + (i % 7) as f32 / 5.0).collect::<Vec<f32>>();
    let weights = instance.weights().unwrap();
    let scaled = weights.experts().iter().enumerate().map(|(expert, mlp)| {
        let [k, inner, _] = mlp.widths();
        let up = mlp.up().as_borrowed().with_input_scale(scale(k, 0.3 + expert as f32)).unwrap();
        let down = mlp.down().as_borrowed().with_input_scale(scale(inner, 0.7)).unwrap();
        MlpWeights::new(up, down).unwrap()
    });
    let weights = ExpertWeights::new(scaled.collect(), model.gate).unwrap();
    for backend in available().chain(simulators()) {
        let (options, routed) = (LayerOptions::default(), instance.routed().unwrap());
        assert_right("AWQ", backend, (&weights, options), (&instance.tokens, &routed), Output::F32);
    }
}

/// Options under which a backend holds so many of a layer's experts, and the processor the others.
fn divided(
    backend: &dyn Backend,
    weights: &ExpertWeights<'_>,
    (intermediate, batch_invariant): (Intermediate, bool),
    slots: usize,
) -> LayerOptions {
    let precision = Precision::Exact;
    let spec = LayerSpec { weights, intermediate, precision, batch_invariant, split: None };
    let [each, always] = backend.layer_bytes(&spec, false).unwrap();
    // Just not enough for one more.
    let gpu_bytes = Some(always + (slots + 1) * each - 1);
    LayerOptions { intermediate, batch_invariant, gpu_bytes, ..LayerOptions::default() }
}

/// A layer of which so many experts lie on the device.
struct Parted<'a> {
    name: &'a str,
    backend: &'static dyn Backend,
    weights: &'a ExpertWeights<'a>,
    operands: (&'a Dense<'a>, &'a Routed),
    options: LayerOptions,
    slots: usize,
    output: Output,
}

/// Layers of several models in two places, on every simulator: none, one, half and all but one of the experts there.
fn in_two_places(check: impl Fn(Parted<'_>) + Sync) {
    let names = ["qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "llama-4-scout", "nemotron-3-nano", "qwen3-next-80b"];
    let cases = names.into_iter().enumerate().flat_map(|case| simulators().enumerate().map(move |b| (case, b)));
    cases.collect::<Vec<_>>().into_par_iter().for_each(|((index, name), (number, backend))| {
        let model = model(name);
        let (element, turn) = (DENSE[(index + number) % 3], index + number / 2);
        let instance = model.instance(7, element, usize::MAX, index as u64).unwrap();
        let (weights, routed) = (&instance.weights().unwrap(), instance.routed().unwrap());
        let slots = [0, 1, weights.experts().len() / 2, weights.experts().len() - 1][turn % 4];
        let options = divided(backend, weights, (Intermediate::ALL[turn % 3], index % 2 == 0), slots);
        let (operands, output) = ((&instance.tokens, &routed), Output::ALL[turn % 3]);
        check(Parted { name, backend, weights, operands, options, slots, output });
    });
}

#[test]
fn a_layer_in_two_places_is_right_wherever_its_experts_lie() {
    in_two_places(|Parted { name, backend, weights, operands, options, slots, output }| {
        let held = Experts::new(&engine(backend.name(), 2), weights, options).unwrap().resident();
        assert_eq!(held.map(|held| held.len()), Some(slots), "{name} on {}", backend.name());
        assert_right(&format!("{name}, {slots} there"), backend, (weights, options), operands, output);
    });
}

#[test]
fn rows_have_the_bits_of_the_place_that_computes_them_and_ids_of_nobody_add_nothing() {
    let (model, backend) = (model("qwen3-30b-a3b"), backends::by_name("sim").unwrap());
    let instance = model.instance(6, Activation::BF16, usize::MAX, 5).unwrap();
    let weights = instance.weights().unwrap();
    let experts = weights.experts().len() as i32;
    // Two on the device, two on the host, one of each, and some that are nobody's.
    let last = experts - 1;
    let ids = [[0, 1], [last, last - 1], [1, last], [last, 0], [-1, last], [experts, 0]].concat();
    let routed = Routed::given(Ids::I32(&ids), &[0.75, -0.5].repeat(6), 6, experts as usize).unwrap();
    let options = divided(backend, &weights, (Intermediate::Tokens, true), experts as usize / 2);
    let run = |engine: &Engine, options| {
        let layer = Experts::new(engine, &weights, options).unwrap();
        bits(&layer.run(engine, &instance.tokens, &routed, Output::F32).unwrap())
    };
    let (device, whole) = (engine("sim", 1), LayerOptions { gpu_bytes: None, ..options });
    let [found, again] = [2, 3].map(|threads| run(&engine("sim", threads), options));
    let there = run(&device, whole);
    assert_eq!(found, again, "the same every time");
    assert_eq!((&found[0], &found[5]), (&there[0], &there[5]), "rows of the device's");
    let is_its = |backend: &dyn Backend| {
        let here = run(&engine(backend.name(), 2), whole);
        (&found[1], &found[4]) == (&here[1], &here[4])
    };
    assert!(available().any(is_its), "rows of the host's");
}

#[test]
fn experts_that_are_brought_over_have_the_bits_of_a_layer_on_the_device() {
    in_two_places(|Parted { name, backend, weights, operands, options, slots, output }| {
        let (engine, (tokens, routed)) = (engine(backend.name(), 2), operands);
        let what = format!("{name} on {}, {slots} there", backend.name());
        let found = |options| {
            let layer = Experts::new(&engine, weights, options).unwrap();
            assert!(layer.resident().is_none_or(|held| held.len() == slots), "{what}");
            bits(&layer.run(&engine, tokens, routed, output).unwrap())
        };
        // All calls where bits may not depend on the batch.
        let rows = if options.batch_invariant { 1 } else { routed.ids().len() };
        let from = |rows| bringing(backend, weights, options, rows);
        let whole = found(LayerOptions { gpu_bytes: None, ..options });
        assert!(found(from(rows)) == whole, "{what}: bits of the device's");
        if !options.batch_invariant {
            // One row less than it takes, and the processor computes as ever.
            assert!(found(from(rows + 1)) == found(options), "{what}: too few");
        }
        assert_right(&what, backend, (weights, from(rows)), operands, output);
    });
}

/// A host that is asked for nothing.
#[derive(Debug)]
struct Unasked;

impl HostRows for Unasked {
    fn compute(&self, _: HostCall<'_>) -> Result<(), Error> {
        panic!("weights are brought over in this call");
    }
}

#[test]
fn weights_may_come_over_as_early_and_as_late_as_their_order_allows() {
    let instance = model("deepseek-v3").instance(7, Activation::BF16, usize::MAX, 1).unwrap();
    let (weights, routed) = (&instance.weights().unwrap(), instance.routed().unwrap());
    assert!(weights.experts().len() > 9, "four lots and more");
    let schedules = [Schedule::Earliest, Schedule::Latest];
    let cases = simulators().flat_map(|backend| schedules.map(|schedule| (backend.name(), schedule)));
    cases.collect::<Vec<_>>().into_par_iter().for_each(|(name, schedule)| {
        let on = Simulated::by_name(name).unwrap().under(schedule);
        let found = |split: Option<&Split>| {
            let (intermediate, precision) = (Intermediate::Tokens, Precision::Exact);
            let spec = LayerSpec { weights, intermediate, precision, batch_invariant: false, split };
            let choose = Arc::new(Cheapest { family: on.family(), facts: on.facts() });
            let layer = on.load_layer(&spec, choose, &Team::new(Alone)).unwrap().unwrap();
            let mut found = vec![0f32; instance.tokens.rows() * instance.tokens.k()];
            let operands = LayerOperands {
                tokens: &instance.tokens,
                ids: routed.ids(),
                weights: routed.weights(),
                top: routed.top_k(),
                on_input: routed.is_on_input(),
                adapted: None,
                target: Target::F32(&mut found),
            };
            layer.run(operands).unwrap();
            found
        };
        let split = Split { resident: vec![4, 1], host: Arc::new(Unasked), stream_from: Some(0) };
        assert!(found(Some(&split)) == found(None), "{name}, {schedule}");
    });
}

/// The same options, with weights that are brought over from so many rows on, and room for what goes with them.
fn bringing(backend: &dyn Backend, weights: &ExpertWeights<'_>, options: LayerOptions, rows: usize) -> LayerOptions {
    let LayerOptions { intermediate, precision, batch_invariant, gpu_bytes, .. } = options;
    let spec = LayerSpec { weights, intermediate, precision, batch_invariant, split: None };
    let [without, with] = [false, true].map(|brought| backend.layer_bytes(&spec, brought).unwrap()[1]);
    assert!(with > without, "what goes with weights takes room, too");
    let gpu_bytes = gpu_bytes.map(|bytes| bytes + with - without);
    LayerOptions { stream: Streaming::From(rows), gpu_bytes, ..options }
}

#[test]
fn a_batch_invariant_layer_brings_weights_over_in_all_calls_or_in_none() {
    let (model, backend) = (model("qwen3-30b-a3b"), backends::by_name("sim").unwrap());
    let instance = model.instance(6, Activation::BF16, usize::MAX, 5).unwrap();
    let weights = instance.weights().unwrap();
    let (engine, parted) = (engine("sim", 2), divided(backend, &weights, (Intermediate::Tokens, true), 2));
    for stream in [Streaming::From(2), Streaming::Planned] {
        let refused = Experts::new(&engine, &weights, LayerOptions { stream, ..parted }).unwrap_err().to_string();
        assert!(refused.contains("stream") && refused.contains("batch_invariant"), "{refused}");
        let whole = Experts::new(&engine, &weights, LayerOptions { stream, gpu_bytes: None, ..parted });
        assert_eq!(whole.unwrap().streams_from(), Ok(None), "all are there");
    }
    for rows in [0, 1] {
        let layer = Experts::new(&engine, &weights, bringing(backend, &weights, parted, rows)).unwrap();
        let ids: Vec<i32> = (0..12).map(|entry| entry * 5 % weights.experts().len() as i32).collect();
        let run = |tokens: &[usize]| {
            let ids: Vec<i32> = tokens.iter().flat_map(|token| ids[2 * token..][..2].to_vec()).collect();
            let given = vec![0.5; ids.len()];
            let routed = Routed::given(Ids::I32(&ids), &given, tokens.len(), weights.experts().len()).unwrap();
            bits(&layer.run(&engine, &picked(&instance.tokens, tokens), &routed, Output::F32).unwrap())
        };
        let together = run(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(run(&[3]), together[3..4], "from {rows} rows on");
    }
}

#[test]
fn a_layer_says_from_how_many_rows_on_weights_are_brought_over() {
    let (model, backend) = (model("qwen3-30b-a3b"), backends::by_name("sim").unwrap());
    let instance = model.instance(1, Activation::BF16, usize::MAX, 5).unwrap();
    let weights = instance.weights().unwrap();
    let parted = divided(backend, &weights, (Intermediate::Tokens, false), 2);
    let from = |options| Experts::new(&engine("sim", 2), &weights, options).unwrap().streams_from().unwrap();
    assert_eq!(from(parted), None);
    assert_eq!(from(LayerOptions { stream: Streaming::From(100), ..parted }), Some(100));
    assert_eq!(from(LayerOptions { stream: Streaming::From(100), gpu_bytes: None, ..parted }), None, "all are there");
    let planned = from(LayerOptions { stream: Streaming::Planned, ..parted });
    assert_eq!(planned, Some(8 * weights.experts().len()));
}

/// Routings that no router makes: all to one expert, to nobody, some to nobody, the same expert twice.
fn ragged(tokens: usize, experts: i32) -> Vec<(&'static str, Vec<i32>)> {
    let all = |f: &dyn Fn(usize) -> i32| (0..2 * tokens).map(f).collect::<Vec<i32>>();
    vec![
        ("one expert", all(&|i| if i % 2 == 0 { experts - 1 } else { -1 })),
        ("nobody", all(&|_| experts)),
        ("out of range", all(&|i| [0, -1, experts, i32::MIN, 1, i32::MAX][i % 6])),
        ("twice the same", all(&|i| (i / 2) as i32 % experts)),
    ]
}

#[test]
fn ragged_routings_are_right_and_experts_of_others_add_nothing() {
    let tokens = 21;
    for (name, biased) in [("gpt-oss-20b", true), ("glm-4.5", false)] {
        let instance = model(name).instance(tokens, Activation::BF16, usize::MAX, 9).unwrap();
        let weights = instance.weights().unwrap();
        assert_eq!(weights.experts()[0].up().bias(0).is_some(), biased);
        for (what, ids) in ragged(tokens, weights.experts().len() as i32) {
            let given: Vec<f32> =
                (0..2 * tokens).map(|i| if ids[i] < 0 { f32::NAN } else { 0.3 + i as f32 / 50.0 }).collect();
            let routed = Routed::given(Ids::I32(&ids), &given, tokens, weights.experts().len()).unwrap();
            for backend in available().chain(simulators()) {
                let options = LayerOptions::default();
                assert_right(what, backend, (&weights, options), (&instance.tokens, &routed), Output::F32);
            }
        }
    }
}

#[test]
fn bits_of_a_cpu_backend_depend_on_the_depth_of_its_configuration_alone() {
    let ways = ["sequential,tile=16x16,stages=1", "interleaved,tile=64x32,stages=2", "ping-pong,tile=16x16,stages=2"]
        .into_iter()
        .chain(["ping-pong,tile=80x16,stages=2", "ping-pong,tile=128x64,stages=3", "two-pass,tile=64x64,stages=2"]);
    // Of the two K one has a remainder in every depth, and the other's tiles of few tokens go through loops of their
    // own.
    for (k, depth) in [(1040, 64), (1040, 256), (1024, 64), (1024, 256)] {
        let model = Model { widths: [k, 528], ..wide("qwen3-30b-a3b") };
        let instance = model.instance(90, Activation::BF16, 1, 3).unwrap();
        let weights = instance.weights().unwrap();
        for backend in available() {
            let mut first: Option<Vec<u32>> = None;
            for way in ways.clone() {
                let request = format!("strategy={way},depth={depth}").parse().unwrap();
                let options = Options { backend: Some(backend.name().to_owned()), threads: Some(2), request };
                let engine = Engine::new(options).unwrap();
                let layer = engine.load(&[weights.experts()[0].up().as_borrowed()], Gate::Silu).unwrap();
                for rows in [1, 3, 17, 90] {
                    let tokens = picked(&instance.tokens, &(0..rows).collect::<Vec<_>>());
                    let found = engine.run(&layer, &[tokens.into()], Output::F32).unwrap().remove(0);
                    let found = bits(&found).remove(0);
                    let name = backend.name();
                    assert!(
                        *first.get_or_insert_with(|| found.clone()) == found,
                        "{name}, {way}, K {k}, depth {depth}, {rows} rows"
                    );
                }
            }
        }
    }
}

/// A layer wide enough for every depth of the kernels to make a difference.
fn wide(name: &str) -> Model {
    Model { experts: [4, 2], widths: [1056, 544], groups: None, shared: None, ..model(name) }
}

#[test]
fn bits_are_the_same_for_any_number_of_threads() {
    for name in ["qwen3-30b-a3b", "gpt-oss-20b", "llama-4-scout"] {
        let instance = wide(name).instance(37, Activation::BF16, usize::MAX, 5).unwrap();
        let (weights, routed) = (instance.weights().unwrap(), instance.routed().unwrap());
        for backend in available().map(Backend::name).chain(["auto"]) {
            let found = [1, 2, 16, 64].map(|threads| {
                let engine = engine(backend, threads);
                let layer = Experts::new(&engine, &weights, LayerOptions::default()).unwrap();
                bits(&layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap())
            });
            assert!(found.iter().all(|other| *other == found[0]), "{name} on {backend}");
        }
    }
}

/// A token's bits, computed beside others.
fn among(engine: &Engine, layer: &Experts, instance: &Instance, tokens: &Dense<'_>, rows: &[usize]) -> Vec<Vec<u32>> {
    let experts = instance.router.experts();
    let logits: Vec<f32> = rows.iter().flat_map(|row| instance.logits[row * experts..][..experts].to_vec()).collect();
    let routed = instance.router.route(&logits, rows.len()).unwrap();
    bits(&layer.run(engine, &picked(tokens, rows), &routed, Output::F32).unwrap())
}

#[test]
fn a_batch_invariant_token_has_the_same_bits_alone_and_in_every_batch() {
    const TOKENS: usize = 130;
    // Every so many tokens, one is looked at.
    const WATCHED: usize = 5;
    let names = ["qwen3-30b-a3b", "gpt-oss-20b", "llama-4-scout"];
    for (index, name) in names.into_iter().enumerate() {
        let mut intermediates = vec![Intermediate::ALL[index], Intermediate::Tokens];
        intermediates.dedup();
        for intermediate in intermediates {
            let instance = wide(name).instance(TOKENS, DENSE[index], usize::MAX, 5).unwrap();
            let options = LayerOptions { intermediate, batch_invariant: true, ..LayerOptions::default() };
            for backend in available().map(Backend::name).chain(["auto"]) {
                let engine = engine(backend, 2);
                let layer = Experts::new(&engine, &instance.weights().unwrap(), options).unwrap();
                let found = |rows: &[usize]| among(&engine, &layer, &instance, &instance.tokens, rows);
                let watched: Vec<usize> = (0..TOKENS).step_by(WATCHED).collect();
                let alone: Vec<_> = watched.iter().map(|&row| found(&[row]).remove(0)).collect();
                for batch in [2, 5, 17, 64, TOKENS] {
                    for first in (0..TOKENS).step_by(batch.next_multiple_of(WATCHED)) {
                        let rows: Vec<usize> = (first..TOKENS.min(first + batch)).rev().collect();
                        let beside = rows.iter().zip(found(&rows)).filter(|(row, _)| row.is_multiple_of(WATCHED));
                        for (row, bits) in beside {
                            let expected = &alone[row / WATCHED];
                            assert!(bits == *expected, "{name} on {backend}, {intermediate}, {row} of {batch}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_invariant_token_does_not_notice_others_that_are_very_much_larger() {
    // This gate passes small values on, where the others square them.
    let model = Model { biases: false, ..wide("gpt-oss-20b") };
    let instance = model.instance(6, Activation::F32, usize::MAX, 5).unwrap();
    let Values::F32(values) = instance.tokens.values() else { panic!("asked for f32") };
    let k = instance.tokens.k();
    let scales = [1.0, 1e-36, 3e-30, 1e30, 1e-8, 3e-38];
    let values: Vec<f32> = values.iter().enumerate().map(|(at, x)| x * scales[at / k]).collect();
    let tokens = Dense::new(6, k, values, 1.0).unwrap();
    for backend in available() {
        let engine = engine(backend.name(), 2);
        let options = LayerOptions { batch_invariant: true, ..LayerOptions::default() };
        let layer = Experts::new(&engine, &instance.weights().unwrap(), options).unwrap();
        let all = among(&engine, &layer, &instance, &tokens, &[0, 1, 2, 3, 4, 5]);
        for (row, beside) in all.iter().enumerate() {
            let alone = among(&engine, &layer, &instance, &tokens, &[row]).remove(0);
            assert!(alone == *beside, "token {row} on {}", backend.name());
            assert!(alone.iter().any(|bits| bits << 1 != 0), "token {row} on {} is all zero", backend.name());
        }
    }
}

#[test]
fn a_batch_invariant_number_that_is_lost_beside_a_larger_token_is_lost_alone() {
    // The weights look at the second column only, and the first decides how tokens are scaled.
    let picking = || {
        let codes = (0..16).flat_map(|_| std::iter::once(0x20).chain([0; 7])).collect::<Vec<u8>>();
        Weights::plain(format::Matrix::new(16, 16, codes, vec![0x38; 16], 1.0).unwrap())
    };
    let weights = MlpWeights::new(picking(), picking()).unwrap();
    let token = |first: f32| [first, 2f32.powi(-120)].into_iter().chain([0.0; 14]).collect::<Vec<f32>>();
    for backend in available() {
        let engine = engine(backend.name(), 1);
        let options =
            LayerOptions { batch_invariant: true, intermediate: Intermediate::F32, ..LayerOptions::default() };
        let mlp = Mlp::new(&engine, &weights, Gate::None, options).unwrap();
        let run = |tokens: &[Vec<f32>]| {
            let tokens = Dense::new(tokens.len(), 16, tokens.concat(), 1.0).unwrap();
            bits(&mlp.run(&engine, &tokens, Output::F32).unwrap()).remove(0)
        };
        assert!(run(&[token(1.0)]) == run(&[token(1.0), token(2f32.powi(20))]), "on {}", backend.name());
    }
}

#[test]
fn tokens_are_cut_to_the_working_memory_that_is_allowed() {
    let instance = model("deepseek-v3").instance(23, Activation::BF16, usize::MAX, 5).unwrap();
    let (weights, routed) = (instance.weights().unwrap(), instance.routed().unwrap());
    let engine = engine("scalar", 2);
    let run = |workspace_bytes| {
        let options = LayerOptions { batch_invariant: true, workspace_bytes, ..LayerOptions::default() };
        let layer = Experts::new(&engine, &weights, options).unwrap();
        bits(&layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap())
    };
    let whole = run(usize::MAX / 2);
    assert!(whole == run(0) && whole == run(100_000));
}

#[test]
fn an_mlp_is_a_layer_of_one_expert_with_the_weight_one() {
    let model = Model { experts: [4, 1], shared: None, ..model("gpt-oss-20b") };
    let instance = model.instance(11, Activation::BF16, usize::MAX, 5).unwrap();
    let weights = instance.weights().unwrap();
    let engine = engine("scalar", 2);
    let mlp = Mlp::new(&engine, &weights.experts()[2], Gate::GPT_OSS, LayerOptions::default()).unwrap();
    let layer = Experts::new(&engine, &weights, LayerOptions::default()).unwrap();
    let routed = Routed::given(Ids::I64(&[2; 11]), &[1.0; 11], 11, 4).unwrap();
    for output in Output::ALL {
        let [found, expected] = [
            mlp.run(&engine, &instance.tokens, output).unwrap(),
            layer.run(&engine, &instance.tokens, &routed, output).unwrap(),
        ];
        assert!(bits(&found) == bits(&expected), "{output}");
    }
}

#[test]
fn an_nvfp4_intermediate_is_the_quantiser_of_the_format_to_the_bit() {
    let model = Model { experts: [4, 1], ..model("qwen3-30b-a3b") };
    let instance = model.instance(9, Activation::BF16, usize::MAX, 5).unwrap();
    let weights = instance.weights().unwrap();
    let (engine, expert) = (engine("scalar", 2), &weights.experts()[1]);
    let up = engine.load(&[expert.up().as_borrowed()], Gate::Silu).unwrap();
    let down = engine.load(&[expert.down().as_borrowed()], Gate::None).unwrap();
    let h = engine.run(&up, &[instance.tokens.as_borrowed().into()], Output::F32).unwrap().remove(0);
    let quantized = format::quantize(&h, Some(expert.intermediate_scale())).unwrap();
    let expected = engine.run(&down, &[quantized.into()], Output::F32).unwrap().remove(0);
    let options = LayerOptions { intermediate: Intermediate::NvFp4, ..LayerOptions::default() };
    let mlp = Mlp::new(&engine, expert, Gate::Silu, options).unwrap();
    assert!(bits(&mlp.run(&engine, &instance.tokens, Output::F32).unwrap()) == bits(&expected));
}

/// A layer with everything that a file must keep: biases, input scales, a shared expert with its vector, groups and a
/// correction.
fn everything(instance: &Instance) -> ExpertWeights<'_> {
    let weights = instance.weights().unwrap();
    let scale = |width: usize| (0..width).map(|i| 0.5 + (i % 5) as f32).collect::<Vec<f32>>();
    let experts = weights.experts().iter().enumerate().map(|(expert, mlp)| {
        let [k, inner, width] = mlp.widths();
        let up = mlp.up().clone().with_bias([vec![0.25; inner], vec![-0.5; inner]]).unwrap();
        let down = mlp.down().clone().with_bias([vec![1.5; width]]).unwrap().with_input_scale(scale(inner)).unwrap();
        let up = if expert == 1 { up.with_input_scale(scale(k)).unwrap() } else { up };
        MlpWeights::new(up, down).unwrap().with_intermediate_scale(mlp.intermediate_scale()).unwrap()
    });
    let shared = weights.shared().unwrap().clone().with_gate(vec![0.125; instance.tokens.k()]).unwrap();
    ExpertWeights::new(experts.collect(), weights.gate()).unwrap().with_shared(shared).unwrap()
}

#[test]
fn an_nvfp4_intermediate_before_an_input_scale_is_refused_when_it_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layer.packed");
    let instance = model("deepseek-v3").instance(1, Activation::BF16, usize::MAX, 5).unwrap();
    let (weights, engine) = (everything(&instance), engine("scalar", 1));
    let options = LayerOptions { intermediate: Intermediate::NvFp4, ..LayerOptions::default() };
    let refused = Experts::new(&engine, &weights, options);
    assert!(matches!(refused, Err(Error::ScaledIntermediate { expert: 0 })), "{refused:?}");
    Experts::new(&engine, &weights, LayerOptions::default()).unwrap().save(&engine, &path, None).unwrap();
    let refused = Experts::open(&engine, &path, options);
    assert!(matches!(refused, Err(Error::ScaledIntermediate { expert: 0 })), "{refused:?}");
}

#[test]
fn a_packed_layer_comes_back_from_its_file_to_the_bit() {
    comes_back(&model("deepseek-v3"));
}

#[test]
fn a_packed_layer_of_mxfp4_comes_back_from_its_file_to_the_bit() {
    comes_back(&model("deepseek-v4-flash"));
}

fn comes_back(model: &Model) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layer.packed");
    let instance = model.instance(9, Activation::BF16, usize::MAX, 5).unwrap();
    let (weights, routed) = (everything(&instance), instance.routed().unwrap());
    let writer = engine("scalar", 2);
    Experts::new(&writer, &weights, LayerOptions::default())
        .unwrap()
        .save(&writer, &path, Some(&instance.router))
        .unwrap();
    let (table, other) = (instance.router.clone().with_table(), folder.path().join("table.packed"));
    let packed = Experts::new(&writer, &weights, LayerOptions::default()).unwrap();
    packed.save(&writer, &other, Some(&table)).unwrap();
    assert_eq!(Experts::open(&writer, &other, LayerOptions::default()).unwrap().1, Some(table));
    for backend in available() {
        // Quantised values are not multiplied with input scales.
        for intermediate in [Intermediate::Tokens, Intermediate::F32] {
            let engine = engine(backend.name(), 2);
            let options = LayerOptions { intermediate, ..LayerOptions::default() };
            let packed = Experts::new(&engine, &weights, options).unwrap();
            let (opened, router) = Experts::open(&engine, &path, options).unwrap();
            assert_eq!(router.as_ref(), Some(&instance.router));
            assert_eq!((opened.count(), opened.widths()), (packed.count(), packed.widths()));
            assert_eq!(opened.packed_bytes(), packed.packed_bytes());
            let [one, other] = [&packed, &opened]
                .map(|layer| bits(&layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap()));
            assert!(one == other, "{} with {intermediate}", backend.name());
        }
    }
}

#[test]
fn a_file_that_was_cut_off_damaged_or_is_of_another_kind_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layer.packed");
    let instance = model("deepseek-v3").instance(3, Activation::BF16, 4, 5).unwrap();
    let (weights, routed, engine) = (everything(&instance), instance.routed().unwrap(), engine("scalar", 2));
    let layer = Experts::new(&engine, &weights, LayerOptions::default()).unwrap();
    layer.save(&engine, &path, None).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let open = |bytes: &[u8]| {
        let path = folder.path().join("other.packed");
        std::fs::write(&path, bytes).unwrap();
        Experts::open(&engine, &path, LayerOptions::default()).map(|(layer, _)| layer).map_err(|e| e.to_string())
    };
    for cut in [1, 7, 8, 15, 31, 32, 1000, whole.len() / 2, whole.len() - 1] {
        let error = open(&whole[..cut]).unwrap_err();
        assert!(error.contains("other.packed") && error.contains(';'), "{cut}: {error}");
    }
    assert!(open(&whole[..whole.len() / 2]).unwrap_err().contains("cut off"));
    let mut newer = whole.clone();
    newer[8] = 9;
    assert!(open(&newer).unwrap_err().contains("version 9"));
    assert!(open(b"safetensors, or anything else").unwrap_err().contains("no file of a packed layer"));
    let right = bits(&layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap());
    let mut damaged = 0;
    for at in (0..whole.len()).step_by(whole.len() / 97) {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        match open(&changed) {
            // What stands between parts means nothing.
            Ok(layer) => {
                assert!(bits(&layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap()) == right, "{at}")
            }
            Err(_) => damaged += 1,
        }
    }
    assert!(damaged > 20, "{damaged}");
    let error = Mlp::open(&engine, &path, LayerOptions::default()).unwrap_err().to_string();
    assert!(error.contains("experts"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_and_named() {
    let instance = model("mixtral-8x7b").instance(4, Activation::F16, usize::MAX, 5).unwrap();
    let (weights, routed) = (instance.weights().unwrap(), instance.routed().unwrap());
    let engine = engine("scalar", 1);
    let layer = Experts::new(&engine, &weights, LayerOptions::default()).unwrap();
    let run = |tokens: &Dense<'_>| layer.run(&engine, tokens, &routed, Output::F32).unwrap_err();
    assert!(matches!(run(&picked(&instance.tokens, &[0, 1])), Error::RoutedTokens { tokens: 2, routed: 4 }));
    let narrow = Dense::new(4, 16, vec![0f32; 64], 1.0).unwrap();
    assert!(run(&narrow).to_string().contains("k of the tokens"));
    let mut short = vec![0f32; 3];
    let error = layer.run_into(&engine, &instance.tokens, &routed, Target::F32(&mut short)).unwrap_err();
    assert!(error.to_string().contains("output's length"), "{error}");
}
