//! The vector that AWQ has tokens multiplied with comes with its gated pair, or not at all.

use hammerhead_format::checkpoint::{Checkpoint, Options};
use hammerhead_format::tensors::{self, Dtype, Tensor};
use tempfile::{TempDir, tempdir};

const K: usize = 32;
const GATE: &str = "model.layers.0.mlp.gate_proj";
const UP: &str = "model.layers.0.mlp.up_proj";
const FUSED: &str = "model.layers.0.mlp.experts.gate_up_proj";

/// A weight of two rows as ModelOpt writes it.
fn weight(stem: &str) -> Vec<Tensor<'static>> {
    vec![
        Tensor::from_bytes(format!("{stem}.weight"), Dtype::U8, [2, K / 2], vec![0x21; K]),
        Tensor::from_bytes(format!("{stem}.weight_scale"), Dtype::F8_E4M3, [2, K / 16], vec![0x38; K / 8]),
        Tensor::from_f32(format!("{stem}.weight_scale_2"), [], vec![1.0]),
    ]
}

/// Three experts, stacked and fused.
fn stack() -> Vec<Tensor<'static>> {
    vec![
        Tensor::from_bytes(FUSED, Dtype::U8, [3, 4, K / 2], vec![0x21; 6 * K]),
        Tensor::from_bytes(format!("{FUSED}_weight_scale"), Dtype::F8_E4M3, [3, 4, K / 16], vec![0x38; 3 * K / 4]),
        Tensor::from_f32(format!("{FUSED}_weight_scale_2"), [], vec![1.0]),
    ]
}

fn open(tensors: &[Tensor<'_>]) -> (TempDir, Checkpoint) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    tensors::write(&path, tensors, None).unwrap();
    let options = Options { gate_up_order: Some("gate-first".parse().unwrap()), ..Options::default() };
    let model = Checkpoint::open_with(path, &options).unwrap();
    (folder, model)
}

/// The pair of gate and up with these tensors beside them.
fn pair_with(beside: impl IntoIterator<Item = Tensor<'static>>) -> (TempDir, Checkpoint) {
    open(&[weight(GATE), weight(UP), beside.into_iter().collect()].concat())
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| 0.5 + i as f32 / 64.0).collect()
}

fn scale(stem: &str, values: Vec<f32>) -> Tensor<'static> {
    Tensor::from_f32(format!("{stem}.pre_quant_scale"), [values.len()], values)
}

fn refused(model: &Checkpoint, fragments: &[&str]) {
    let error = model.expert(0, 0).unwrap_err().to_string();
    for fragment in fragments {
        assert!(error.contains(fragment), "no {fragment:?} in {error}");
    }
    assert!(model.layer(0).is_err());
}

#[test]
fn gate_and_up_that_agree_bring_their_vector() {
    let (_folder, model) = pair_with([scale(GATE, numbers(K)), scale(UP, numbers(K))]);
    assert!(model.layers()[0].pairs[0].has_pre_scale);
    assert_eq!(model.expert(0, 0).unwrap().pre_scale, Some(numbers(K)));
    assert_eq!(model.layer(0).unwrap().experts[0].pre_scale, Some(numbers(K)));
    let (_folder, model) = pair_with([]);
    assert_eq!(model.expert(0, 0).unwrap().pre_scale, None);
}

#[test]
fn sixteen_bits_are_widened_exactly() {
    let values: Vec<half::bf16> = numbers(K).into_iter().map(half::bf16::from_f32).collect();
    let wide: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
    let vector = |stem: &str| Tensor::from_bf16(format!("{stem}.pre_quant_scale"), [K], values.clone());
    let (_folder, model) = pair_with([vector(GATE), vector(UP)]);
    assert_eq!(model.expert(0, 0).unwrap().pre_scale, Some(wide));
}

#[test]
fn one_of_them_alone_is_refused_with_both_names() {
    for (with, without) in [(GATE, UP), (UP, GATE)] {
        let (_folder, model) = pair_with([scale(with, numbers(K))]);
        let says = format!("weight \"{without}.weight\": it has no pre_quant_scale, but \"{with}.weight\" has one");
        refused(&model, &[&says]);
    }
}

#[test]
fn different_vectors_are_refused_with_the_first_column_that_differs() {
    let mut other = numbers(K);
    other[5] = 7.0;
    let (_folder, model) = pair_with([scale(GATE, numbers(K)), scale(UP, other)]);
    refused(&model, &[GATE, UP, "column 5", "0.578125", "is 7"]);
}

#[test]
fn a_vector_of_another_length_type_or_value_is_refused_by_name() {
    let name = format!("{GATE}.pre_quant_scale");
    let mut infinite = numbers(K);
    infinite[3] = f32::INFINITY;
    for (spoilt, fragment) in [
        (scale(GATE, numbers(K - 1)), "[31]"),
        (Tensor::from_f32(&name, [], vec![1.0]), "[]"),
        (Tensor::from_f32(&name, [2, K], numbers(2 * K)), "[2, 32]"),
        (Tensor::from_bytes(&name, Dtype::I32, [K], vec![0; 4 * K]), "I32"),
        (scale(GATE, infinite), "column 3 is inf"),
    ] {
        let (_folder, model) = pair_with([spoilt, scale(UP, numbers(K))]);
        refused(&model, &[&name, fragment]);
    }
}

#[test]
fn stacked_experts_have_one_vector_for_all_or_one_each() {
    let with = |shape: &[usize]| {
        let values = numbers(shape.iter().product());
        open(&[stack(), vec![Tensor::from_f32(format!("{FUSED}_pre_quant_scale"), shape, values)]].concat())
    };
    let (_folder, model) = with(&[K]);
    assert_eq!(model.expert(0, 2).unwrap().pre_scale, Some(numbers(K)));
    for shape in [&[3, K][..], &[3, 1, K]] {
        let (_folder, model) = with(shape);
        assert_eq!(model.expert(0, 2).unwrap().pre_scale.as_deref(), Some(&numbers(3 * K)[2 * K..]));
    }
    let (_folder, model) = with(&[2, K]);
    refused(&model, &["[2, 32]", "3 weights of K = 32"]);
}

#[test]
fn a_weight_beside_gated_pairs_has_its_own() {
    let down = "model.layers.0.mlp.down_proj";
    let (_folder, model) = pair_with([weight(down), vec![scale(down, numbers(K))]].concat());
    let weights = model.weights().unwrap();
    let of = |stem: &str| {
        let weight = weights.iter().find(|weight| weight.name == format!("{stem}.weight")).unwrap();
        model.pre_scale(weight).unwrap()
    };
    assert_eq!((of(down), of(GATE)), (Some(numbers(K)), None));
}
