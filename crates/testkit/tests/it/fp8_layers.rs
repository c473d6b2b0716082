//! Whole layers in FP8: every model's in Hopper's simulator, under the bound; what a token's bits depend on; and who
//! refuses.

use std::sync::Arc;

use format::Dense;
use hammerhead::layer_reference::LayerReference;
use hammerhead::{
    Activation, Adapted, Adapter, Adapters, Engine, Error, Experts, Intermediate, LayerOptions, LowRank, Options,
    Output, Precision, backends,
};
use hammerhead_testkit::moe::{self, Model};
use rayon::prelude::*;

const DENSE: [Activation; 3] = [Activation::BF16, Activation::F32, Activation::F16];
const FP8: Precision = Precision::Fp8;

fn engine(backend: &str) -> Engine {
    Engine::new(Options { backend: Some(backend.to_owned()), threads: Some(2), ..Options::default() }).unwrap()
}

fn rounded() -> LayerOptions {
    LayerOptions { precision: FP8, ..LayerOptions::default() }
}

fn model(name: &str) -> Model {
    moe::models().into_iter().find(|model| model.name == name).unwrap().scaled_down()
}

fn bits(result: &Dense<'_>, row: usize) -> Vec<u32> {
    let mut values = vec![0f32; result.k()];
    result.row(row, &mut values);
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn every_model_in_fp8_is_within_the_bound_and_is_not_the_exact_layer() {
    let engine = engine("sim");
    let backend = backends::by_name("sim").unwrap();
    moe::models().into_par_iter().enumerate().for_each(|(index, model)| {
        let (model, turn) = (model.scaled_down(), index / 3);
        let intermediate = [Intermediate::Tokens, Intermediate::F32][turn % 2];
        let (element, output) = (DENSE[(index + turn) % 3], Output::ALL[index % 3]);
        let instance = model.instance([6, 1, 9][index % 3], element, usize::MAX, index as u64).unwrap();
        let (weights, routed) = (instance.weights().unwrap(), instance.routed().unwrap());
        let options = LayerOptions { intermediate, batch_invariant: index % 2 == 0, ..rounded() };
        let run = |options| {
            let layer = Experts::new(&engine, &weights, options).unwrap();
            layer.run(&engine, &instance.tokens, &routed, output).unwrap_or_else(|e| panic!("{}: {e}", model.name))
        };
        let result = run(options);
        let reference = LayerReference {
            weights: &weights,
            intermediate,
            precision: FP8,
            tokens: &instance.tokens,
            routed: &routed,
        };
        let arithmetic = |activation| backend.layer_arithmetic_in(FP8, activation);
        let rows = instance.tokens.rows();
        let report = moe::check(&reference, 0..rows, &result, &arithmetic).unwrap();
        let first = report.first.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(report.passed(), "{}, {options:?}: {} wrong; {first}", model.name, report.failures);
        assert_eq!(report.compared, rows * result.k());
        let exact = run(LayerOptions { precision: Precision::Exact, ..options });
        let report = moe::check(&reference, 0..rows, &exact, &arithmetic).unwrap();
        assert!(!report.passed(), "{}: the bound tells the exact layer from this one", model.name);
    });
}

#[test]
fn a_tokens_bits_depend_on_nothing_else_where_that_is_asked_for() {
    let engine = engine("sim");
    for name in ["qwen3-30b-a3b", "llama-4-scout", "deepseek-v3"] {
        let instance = model(name).instance(9, Activation::BF16, usize::MAX, 3).unwrap();
        let options = LayerOptions { batch_invariant: true, ..rounded() };
        let layer = Experts::new(&engine, &instance.weights().unwrap(), options).unwrap();
        let together = layer.run(&engine, &instance.tokens, &instance.routed().unwrap(), Output::F32).unwrap();
        for token in [0, 8] {
            let (alone, routed) = instance.alone(token).unwrap();
            let alone = layer.run(&engine, &alone, &routed, Output::F32).unwrap();
            assert_eq!(bits(&alone, 0), bits(&together, token), "{name}, token {token}");
        }
    }
}

#[test]
fn a_token_that_is_not_finite_has_nan_for_its_results_and_no_other_has() {
    let engine = engine("sim");
    let instance = model("qwen3-30b-a3b").instance(4, Activation::F32, usize::MAX, 1).unwrap();
    let k = instance.tokens.k();
    let mut values = vec![0f32; 4 * k];
    values.chunks_mut(k).enumerate().for_each(|(row, values)| instance.tokens.row(row, values));
    (values[k + 3], values[3 * k]) = (f32::NAN, f32::NEG_INFINITY);
    let tokens = Dense::new(4, k, values, 1.0).unwrap();
    let layer = Experts::new(&engine, &instance.weights().unwrap(), rounded()).unwrap();
    let result = layer.run(&engine, &tokens, &instance.routed().unwrap(), Output::F32).unwrap();
    for row in 0..4 {
        let nan = |&bits: &u32| f32::from_bits(bits).is_nan();
        let all = bits(&result, row);
        assert!(if row % 2 == 1 { all.iter().all(nan) } else { !all.iter().any(nan) }, "row {row}");
    }
}

#[test]
fn who_cannot_says_so_and_what_to_do() {
    let instance = model("qwen3-30b-a3b").instance(4, Activation::BF16, usize::MAX, 1).unwrap();
    let weights = instance.weights().unwrap();
    let refused = |backend: &str, options| {
        let error = Experts::new(&engine(backend), &weights, options).unwrap_err();
        assert!(matches!(error, Error::Fp8Tokens { .. }), "{backend}: {error}");
        error.to_string()
    };
    for name in ["scalar", "sim:sm80", "sim:sm120", "sim:sm_100a"] {
        let error = refused(name, rounded());
        assert!(error.contains("exact") && error.contains("Hopper"), "{name}: {error}");
    }
    let fewer = refused("sim", LayerOptions { intermediate: Intermediate::NvFp4, ..rounded() });
    assert!(fewer.contains("intermediate=tokens"), "{fewer}");
    let divided = refused("sim", LayerOptions { gpu_bytes: Some(1), ..rounded() });
    assert!(divided.contains("gpu_bytes"), "{divided}");

    let engine = engine("scalar");
    let saved = Experts::new(&engine, &weights, LayerOptions::default()).unwrap().to_bytes(&engine, None).unwrap();
    let error = Experts::from_bytes(&engine, &saved, rounded()).unwrap_err().to_string();
    assert!(error.contains("scalar compute this layer exactly only"), "{error}");
}

#[test]
fn adapters_are_refused_beside_it() {
    let engine = engine("sim");
    let instance = model("qwen3-30b-a3b").instance(2, Activation::BF16, usize::MAX, 1).unwrap();
    let weights = instance.weights().unwrap();
    let layer = Experts::new(&engine, &weights, rounded()).unwrap();
    let [k, inner, width] = layer.widths();
    let a = Dense::new(1, k, vec![0.5f32; k], 1.0).unwrap();
    let b = Dense::new(inner, 1, vec![0.25f32; inner], 1.0).unwrap();
    let experts = vec![[Some(LowRank::new(&a, &b).unwrap()), None, None]; weights.experts().len()];
    let adapter = Adapter { scaling: 1.0, experts };
    let adapters = Adapters::new(vec![adapter], weights.experts().len(), [k, inner, width]).unwrap();
    let adapted = Adapted::new(Arc::new(adapters), &[0, -1]).unwrap();
    let routed = instance.routed().unwrap().adapted(adapted).unwrap();
    let error = layer.run(&engine, &instance.tokens, &routed, Output::F32).unwrap_err().to_string();
    assert!(error.contains("adapters are added to exact layers only"), "{error}");
}
