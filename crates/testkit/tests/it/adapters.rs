//! Low-rank adapters beside packed weights, on every CPU backend and in the simulator of every family: against the
//! reference, with and without an adapter in one batch, to the same bits in every way, and what is refused.

use std::sync::Arc;

use fastrand::Rng;
use format::{Dense, Matrix, Values};
use half::{bf16, f16};
use hammerhead::layer_reference::LayerReference;
use hammerhead::{
    Activation, Adapted, Adapter, Adapters, Backend, Engine, ExpertWeights, Experts, Intermediate, LayerOptions,
    LowRank, Mlp, Options, Output, Precision, Routed, Target, backends, cpu,
};
use hammerhead_testkit::moe::{self, Model};
use op::Projection;
use rayon::prelude::*;

const DENSE: [Activation; 3] = [Activation::BF16, Activation::F32, Activation::F16];

/// A kind of adapters, and why it is tried.
struct Kind {
    why: &'static str,
    ranks: &'static [usize],
    /// The type of A and B of each adapter in turn.
    numbers: &'static [Output],
    /// Which of gate, up and down have a pair: the bits of a number, another for every adapter and expert in turn.
    pairs: &'static [u8],
    scaling: f32,
}

const KINDS: [Kind; 4] = [
    Kind {
        why: "what peft writes for all three projections: bf16, α/r of two",
        ranks: &[16],
        numbers: &[Output::BF16],
        pairs: &[7],
        scaling: 2.0,
    },
    Kind {
        why: "ranks that fill no vector, of several adapters with several types",
        ranks: &[1, 3, 10],
        numbers: &[Output::F32, Output::F16, Output::BF16],
        pairs: &[7],
        scaling: 0.3,
    },
    Kind {
        why: "projections and whole experts that an adapter leaves alone",
        ranks: &[4, 8],
        numbers: &[Output::F16],
        pairs: &[1, 4, 0, 2, 5],
        scaling: -1.5,
    },
    Kind { why: "the largest rank", ranks: &[64], numbers: &[Output::F32], pairs: &[7], scaling: 0.25 },
];

fn dense(rng: &mut Rng, rows: usize, k: usize, numbers: Output, size: f32) -> Dense<'static> {
    let values: Vec<f32> = (0..rows * k).map(|_| (rng.f32() * 2.0 - 1.0) * size).collect();
    let values: Values<'static> = match numbers {
        Output::F16 => values.into_iter().map(f16::from_f32).collect::<Vec<_>>().into(),
        Output::BF16 => values.into_iter().map(bf16::from_f32).collect::<Vec<_>>().into(),
        Output::F32 => values.into(),
    };
    Dense::new(rows, k, values, 1.0).unwrap()
}

/// Adapters of a kind for a layer, as large as to change results by about as much as the weights do.
fn adapters(kind: &Kind, experts: usize, [k, inner, out]: [usize; 3], matrices: usize, seed: u64) -> Arc<Adapters> {
    let rng = &mut Rng::with_seed(seed);
    let adapter = |number: usize| {
        let (rank, numbers) = (kind.ranks[number % kind.ranks.len()], kind.numbers[number % kind.numbers.len()]);
        let expert = |expert: usize| {
            let pairs = kind.pairs[(number + expert) % kind.pairs.len()];
            [(0, k, inner), (1, k, inner), (2, inner, out)].map(|(which, k, n)| {
                let there = pairs >> which & 1 == 1 && (which != 1 || matrices == 2);
                there.then(|| {
                    let a = dense(rng, rank, k, numbers, 2.0 / (k as f32).sqrt());
                    LowRank::new(&a, &dense(rng, n, rank, numbers, 1.0)).unwrap()
                })
            })
        };
        let experts = (0..experts).map(expert);
        Adapter { scaling: kind.scaling, experts: experts.collect() }
    };
    let count = kind.ranks.len().max(2);
    Arc::new(Adapters::new((0..count).map(adapter).collect(), experts, [k, inner, out]).unwrap())
}

/// The same with others of its shared expert, if it has one.
fn adapters_of(kind: &Kind, weights: &ExpertWeights<'_>, seed: u64) -> Arc<Adapters> {
    let (experts, matrices) = (weights.experts(), weights.gate().matrices());
    let own = adapters(kind, experts.len(), experts[0].widths(), matrices, seed);
    let Some(shared) = weights.shared() else { return own };
    let shared = adapters(kind, 1, shared.mlp().widths(), matrices, seed + 100);
    Arc::new(Adapters::clone(&own).with_shared(Adapters::clone(&shared)).unwrap())
}

/// Tokens with every adapter and without one, in turns.
fn adapted(adapters: &Arc<Adapters>, tokens: usize) -> Adapted {
    let ids: Vec<i32> = (0..tokens as i32).map(|token| (token * 2 + 1) % (adapters.len() as i32 + 1) - 1).collect();
    Adapted::new(Arc::clone(adapters), &ids).unwrap()
}

fn engine(backend: &str, threads: usize) -> Engine {
    Engine::new(Options { backend: Some(backend.to_owned()), threads: Some(threads), ..Options::default() }).unwrap()
}

fn model(name: &str) -> Model {
    moe::models().into_iter().find(|model| model.name == name).unwrap().scaled_down()
}

fn available() -> impl Iterator<Item = &'static dyn Backend> {
    backends::all().iter().copied().filter(|b| b.layout() == cpu::LAYOUT && b.available().is_ok())
}

fn simulators() -> impl Iterator<Item = &'static dyn Backend> {
    ["sim", "sim:sm80", "sim:sm120", "sim:sm100"].into_iter().map(|name| backends::by_name(name).unwrap())
}

#[test]
fn adapters_of_every_kind_are_right_on_every_backend() {
    // Plain; a shared expert, and one with a gate of its own; biases and another gate; weights on the input; one
    // matrix; input scales, which adapters do not see.
    let names = [
        "qwen3-30b-a3b",
        "deepseek-v3",
        "qwen3-next-80b",
        "gpt-oss-20b",
        "llama-4-scout",
        "nemotron-3-nano",
        "qwen3-30b-a3b-awq",
    ];
    let backends: Vec<&dyn Backend> = available().chain(simulators()).collect();
    let cases = names.into_iter().enumerate().flat_map(|case| backends.iter().enumerate().map(move |b| (case, b)));
    cases.collect::<Vec<_>>().into_par_iter().for_each(|((index, name), (number, &backend))| {
        let (model, simulated) = (model(name), backend.layout() != cpu::LAYOUT);
        let kinds = if simulated { (index + number) % 4..(index + number) % 4 + 1 } else { 0..4 };
        for turn in kinds {
            let kind = &KINDS[turn];
            let (element, output) = (DENSE[(index + number + turn) % 3], Output::ALL[(index + 2 * turn) % 3]);
            let tokens = if simulated { [6, 1, 9] } else { [1, 19, 6] }[(index + turn) % 3];
            let instance = model.instance(tokens, element, usize::MAX, index as u64).unwrap();
            let intermediate = [Intermediate::Tokens, Intermediate::F32][turn % 2];
            let options = LayerOptions { intermediate, batch_invariant: number % 2 == 0, ..LayerOptions::default() };
            let weights = instance.weights().unwrap();
            let adapters = adapters_of(kind, &weights, turn as u64);
            let routed = instance.routed().unwrap().adapted(adapted(&adapters, tokens)).unwrap();
            let engine = engine(backend.name(), 2);
            let layer = Experts::new(&engine, &weights, options).unwrap();
            let what = format!("{name} on {}, {}", backend.name(), kind.why);
            let result =
                layer.run(&engine, &instance.tokens, &routed, output).unwrap_or_else(|e| panic!("{what}: {e}"));
            let reference = LayerReference {
                weights: &weights,
                intermediate,
                precision: Precision::Exact,
                tokens: &instance.tokens,
                routed: &routed,
            };
            let report = moe::check(&reference, 0..tokens, &result, &|a| backend.layer_arithmetic(a)).unwrap();
            let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
            assert!(report.passed(), "{what}, {options:?}: {} wrong; {first}", report.failures);
            let without = layer.run(&engine, &instance.tokens, &instance.routed().unwrap(), output).unwrap();
            let report = moe::check(&reference, 0..tokens, &without, &|a| backend.layer_arithmetic(a)).unwrap();
            assert!(tokens == 1 || !report.passed(), "{what}: adapters that are forgotten are noticed");
        }
    });
}

/// Hopper's kernels take three launches for them, and two for a shared expert's own.
#[test]
fn one_and_two_tokens_with_adapters_of_every_kind_are_right() {
    // A layer by itself; a shared expert, and one with a gate of its own; biases and another gate; one matrix.
    let names = ["qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b", "gpt-oss-20b", "nemotron-3-nano"];
    let cases = names.into_iter().enumerate().flat_map(|case| KINDS.iter().enumerate().map(move |kind| (case, kind)));
    cases.collect::<Vec<_>>().into_par_iter().for_each(|((index, name), (turn, kind))| {
        let (model, backend) = (model(name), backends::by_name("sim").unwrap());
        for tokens in [1, 2] {
            let element = [Activation::BF16, Activation::F16][(index + turn + tokens) % 2];
            let instance = model.instance(tokens, element, usize::MAX, (index + turn) as u64).unwrap();
            let weights = instance.weights().unwrap();
            let adapters = adapters_of(kind, &weights, turn as u64);
            // One token has the last adapter.
            let numbers: Vec<i32> = (0..tokens as i32).map(|token| adapters.len() as i32 - 1 - token).collect();
            let adapted = Adapted::new(Arc::clone(&adapters), &numbers).unwrap();
            let routed = instance.routed().unwrap().adapted(adapted).unwrap();
            let engine = engine("sim", 1);
            let layer = Experts::new(&engine, &weights, LayerOptions::default()).unwrap();
            let result = layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap();
            let reference = LayerReference {
                weights: &weights,
                intermediate: Intermediate::Tokens,
                precision: Precision::Exact,
                tokens: &instance.tokens,
                routed: &routed,
            };
            let report = moe::check(&reference, 0..tokens, &result, &|a| backend.layer_arithmetic(a)).unwrap();
            let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
            assert!(report.passed(), "{name}, {tokens} tokens, {}: {} wrong; {first}", kind.why, report.failures);
            let without = layer.run(&engine, &instance.tokens, &instance.routed().unwrap(), Output::F32).unwrap();
            let report = moe::check(&reference, 0..tokens, &without, &|a| backend.layer_arithmetic(a)).unwrap();
            assert!(!report.passed(), "{name}, {}: adapters that are forgotten are noticed", kind.why);
        }
    });
}

/// A matrix with what a pair adds to it, in double precision.
fn merged(matrix: &Matrix<'_>, pair: Option<(&LowRank, f32)>) -> Vec<Vec<f64>> {
    let k = matrix.k();
    let mut rows: Vec<Vec<f64>> =
        matrix.dequantize().chunks(k).map(|row| row.iter().map(|&w| w.into()).collect()).collect();
    let Some((pair, scaling)) = pair else { return rows };
    let (mut a, mut b) = (vec![0f32; k], vec![0f32; rows.len()]);
    for rank in 0..pair.rank() {
        pair.a().row(rank, &mut a);
        pair.b_columns().row(rank, &mut b);
        for (row, &b) in rows.iter_mut().zip(&b) {
            let by = f64::from(scaling) * f64::from(b);
            row.iter_mut().zip(&a).for_each(|(w, &a)| *w += by * f64::from(a));
        }
    }
    rows
}

#[test]
fn the_reference_is_the_layer_with_adapters_folded_into_its_weights() {
    let model = model("qwen3-30b-a3b");
    let instance = model.instance(3, Activation::F32, usize::MAX, 11).unwrap();
    let weights = instance.weights().unwrap();
    let widths = weights.experts()[0].widths();
    let adapters = adapters(&KINDS[2], weights.experts().len(), widths, 2, 6);
    let routed = instance.routed().unwrap().adapted(adapted(&adapters, 3)).unwrap();
    let intermediate = Intermediate::F32;
    let reference = LayerReference {
        weights: &weights,
        intermediate,
        precision: Precision::Exact,
        tokens: &instance.tokens,
        routed: &routed,
    };
    let product = |rows: &[Vec<f64>], x: &[f64]| -> Vec<f64> {
        rows.iter().map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    for token in 0..3 {
        let mut x = vec![0f32; widths[0]];
        instance.tokens.row(token, &mut x);
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        let mut expected = vec![0f64; widths[2]];
        for (expert, weight) in routed.of(token) {
            let mlp = &weights.experts()[expert];
            let adapter = routed.adapters().unwrap().of(token);
            let pair = |projection| adapters.pair(adapter?, expert, projection);
            let gate = product(&merged(mlp.up().gate(), pair(Projection::Gate)), &x);
            let up = product(&merged(mlp.up().up().unwrap(), pair(Projection::Up)), &x);
            let h: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| weights.gate().apply(g, u)).collect();
            let down = product(&merged(mlp.down().gate(), pair(Projection::Down)), &h);
            expected.iter_mut().zip(down).for_each(|(sum, y)| *sum += f64::from(weight) * y);
        }
        let found = reference.row(token, &|_| hammerhead::Arithmetic::Fused).unwrap();
        for (found, expected) in found.iter().zip(expected) {
            // The intermediate is rounded to f32 once.
            assert!((found.value - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{found:?} {expected}");
        }
    }
}

#[test]
fn a_token_without_an_adapter_has_the_bits_of_a_layer_without_any() {
    let model = model("qwen3-30b-a3b");
    let instance = model.instance(7, Activation::BF16, usize::MAX, 3).unwrap();
    let weights = instance.weights().unwrap();
    let adapters = adapters(&KINDS[0], weights.experts().len(), weights.experts()[0].widths(), 2, 1);
    let nobody = Adapted::new(adapters, &[-1; 7]).unwrap();
    for backend in available() {
        let engine = engine(backend.name(), 3);
        let layer = Experts::new(&engine, &weights, LayerOptions::default()).unwrap();
        let run = |routed: &Routed| {
            let mut out = vec![0f32; 7 * layer.widths()[2]];
            layer.run_into(&engine, &instance.tokens, routed, Target::F32(&mut out)).unwrap();
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let routed = instance.routed().unwrap();
        assert_eq!(run(&routed), run(&routed.clone().adapted(nobody.clone()).unwrap()), "{}", backend.name());
    }
}

#[test]
fn a_tokens_adapter_is_its_own_however_tokens_are_cut_and_whoever_else_is_there() {
    let model = model("deepseek-v3");
    let instance = model.instance(12, Activation::F16, usize::MAX, 5).unwrap();
    let weights = instance.weights().unwrap();
    let adapters = adapters_of(&KINDS[1], &weights, 2);
    assert!(adapters.shared().is_some(), "its shared expert has adapters, too");
    let routed = instance.routed().unwrap().adapted(adapted(&adapters, 12)).unwrap();
    for backend in available() {
        let bits = |threads: usize, workspace_bytes: usize| {
            let engine = engine(backend.name(), threads);
            let options = LayerOptions { batch_invariant: true, workspace_bytes, ..LayerOptions::default() };
            let layer = Experts::new(&engine, &weights, options).unwrap();
            let mut out = vec![0f32; 12 * layer.widths()[2]];
            layer.run_into(&engine, &instance.tokens, &routed, Target::F32(&mut out)).unwrap();
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let whole = bits(1, 512 << 20);
        assert_eq!(whole, bits(4, 512 << 20), "{}: threads", backend.name());
        assert_eq!(whole, bits(2, 1), "{}: a token at a time", backend.name());
    }
}

#[test]
fn an_mlp_takes_adapters_as_a_layer_of_one_does() {
    let model = model("mixtral-8x7b");
    let instance = model.instance(5, Activation::BF16, usize::MAX, 8).unwrap();
    let weights = instance.weights().unwrap();
    let mlp = &weights.experts()[0];
    let adapted = adapted(&adapters(&KINDS[0], 1, mlp.widths(), 2, 4), 5);
    let only = ExpertWeights::new(vec![mlp.as_borrowed()], model.gate).unwrap();
    let routed =
        Routed::given(hammerhead::Ids::I32(&[0; 5]), &[1.0; 5], 5, 1).unwrap().adapted(adapted.clone()).unwrap();
    for backend in available() {
        let engine = engine(backend.name(), 2);
        let layer = Mlp::new(&engine, mlp, model.gate, LayerOptions::default()).unwrap();
        let mut out = vec![bf16::ZERO; 5 * layer.widths()[2]];
        layer.run_adapted_into(&engine, &instance.tokens, &adapted, Target::BF16(&mut out)).unwrap();
        let out = Dense::new(5, layer.widths()[2], out, 1.0).unwrap();
        let intermediate = Intermediate::Tokens;
        let reference = LayerReference {
            weights: &only,
            intermediate,
            precision: Precision::Exact,
            tokens: &instance.tokens,
            routed: &routed,
        };
        let report = moe::check(&reference, 0..5, &out, &|a| backend.layer_arithmetic(a)).unwrap();
        assert!(report.passed(), "{}: {:?}", backend.name(), report.first);
    }
}

#[test]
fn what_adapters_cannot_be_added_to_is_refused() {
    let model = model("qwen3-30b-a3b");
    let instance = model.instance(2, Activation::BF16, usize::MAX, 3).unwrap();
    let weights = instance.weights().unwrap();
    let (experts, widths) = (weights.experts().len(), weights.experts()[0].widths());
    let own = adapters(&KINDS[0], experts, widths, 2, 1);
    let engine = engine("scalar", 1);
    let refused = |options: LayerOptions, adapters: &Arc<Adapters>| {
        let layer = Experts::new(&engine, &weights, options).unwrap();
        let routed = instance.routed().unwrap().adapted(adapted(adapters, 2)).unwrap();
        layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap_err().to_string()
    };
    let quantised = LayerOptions { intermediate: Intermediate::NvFp4, ..LayerOptions::default() };
    assert!(refused(quantised, &own).contains("NVFP4 intermediate"));
    let [k, inner, out] = widths;
    let wider = adapters(&KINDS[0], experts, [k, inner + 16, out], 2, 1);
    assert!(refused(LayerOptions::default(), &wider).contains("the layer of the adapters"));
    let only = adapters(&KINDS[0], 1, widths, 2, 1);
    let shared = Arc::new(Adapters::clone(&own).with_shared(Adapters::clone(&only)).unwrap());
    assert!(refused(LayerOptions::default(), &shared).contains("no shared expert"));
    let two = adapted(&own, 2);
    assert!(instance.routed().unwrap().adapted(two.part(0..1)).is_err(), "one number for two tokens");
}
