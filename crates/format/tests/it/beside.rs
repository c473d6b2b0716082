//! A weight with which more is stored than is read is refused by the name of what is not.

use hammerhead_format::checkpoint::{Checkpoint, Options, Survey};
use hammerhead_format::tensors::{self, Dtype, Tensor};
use tempfile::{TempDir, tempdir};

const K: usize = 32;
const MLP: &str = "model.layers.0.mlp";
const FUSED: &str = "model.layers.0.mlp.experts.gate_up_proj";
const FP8: &str = "model.layers.0.self_attn.q_proj";

/// A weight of K rows as ModelOpt writes it.
fn weight(stem: &str) -> Vec<Tensor<'static>> {
    vec![
        Tensor::from_bytes(format!("{stem}.weight"), Dtype::U8, [K, K / 2], vec![0x21; K * K / 2]),
        Tensor::from_bytes(format!("{stem}.weight_scale"), Dtype::F8_E4M3, [K, K / 16], vec![0x38; K * K / 16]),
        Tensor::from_f32(format!("{stem}.weight_scale_2"), [], vec![1.0]),
    ]
}

/// An MLP, and an FP8 weight.
fn model() -> Vec<Tensor<'static>> {
    let mut tensors: Vec<_> =
        ["gate_proj", "up_proj", "down_proj"].iter().flat_map(|name| weight(&format!("{MLP}.{name}"))).collect();
    tensors.push(Tensor::from_bytes(format!("{FP8}.weight"), Dtype::F8_E4M3, [K, K], vec![0x38; K * K]));
    tensors.push(Tensor::from_f32(format!("{FP8}.weight_scale"), [], vec![1.0]));
    tensors
}

fn number(name: &str) -> Tensor<'static> {
    Tensor::from_f32(name, [1], vec![1.0])
}

fn open(tensors: &[Tensor<'_>], config: &str) -> (TempDir, Checkpoint) {
    let folder = tempdir().unwrap();
    tensors::write(folder.path().join("model.safetensors"), tensors, None).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let options = Options { gate_up_order: Some("gate-first".parse().unwrap()), ..Options::default() };
    let model = Checkpoint::open_with(folder.path(), &options).unwrap();
    (folder, model)
}

fn with(name: &str) -> (TempDir, Checkpoint) {
    open(&[model(), vec![number(name)]].concat(), "{}")
}

#[test]
fn what_belongs_to_a_weight_and_is_not_read_is_named() {
    for part in [
        "down_proj.weight_zero_point",
        "down_proj.weight_g_idx",
        "down_proj.lora_A.default.weight",
        "down_proj.weight_quantizer.svdquant_lora_a",
        "down_proj.R4_input.weight",
        "down_proj.input_smooth",
        "down_proj.scale",
        "down_proj.weight_scale_inv",
        "down_proj._weight_zero_point",
        "up_proj.weight_zero_point",
        "ffn_sub_norm.weight",
    ] {
        let name = format!("{MLP}.{part}");
        let (folder, model) = with(&name);
        let error = model.feed_forward(0).unwrap_err().to_string();
        assert!(error.contains(&format!("{name:?}")) && error.contains("export the model without"), "{error}");
        if !part.starts_with("ffn") {
            let stem = format!("{MLP}.{}", part.split('.').next().unwrap());
            assert_eq!(model.linear(&stem).unwrap_err().to_string(), error);
            let error = Checkpoint::open_by_name(folder.path()).unwrap().stored().unwrap_err().to_string();
            assert!(error.contains(&name), "{error}");
            let survey = Survey::open(folder.path(), &Options::default()).unwrap();
            assert!(survey.modules().iter().any(|module| module.name == stem && module.problem.is_some()), "{part}");
        }
    }
}

#[test]
fn what_changes_no_product_is_passed_over() {
    for name in ["input_zero_point", "weight_shape", "k_scale", "output_scale", "input_scale"] {
        let (_folder, model) = with(&format!("{MLP}.down_proj.{name}"));
        assert!(model.feed_forward(0).is_ok(), "{name}");
    }
    // Another module, whose name begins with that of the weight.
    let (_folder, beside) = with(&format!("{MLP}.down_proj_norm.weight"));
    assert!(beside.linear(&format!("{MLP}.down_proj")).is_ok());
    let gate = Tensor::from_f32(format!("{MLP}.shared_expert_gate.weight"), [1, K], vec![1.0; K]);
    let (_folder, model) = open(&[self::model(), vec![gate]].concat(), "{}");
    assert!(model.feed_forward(0).is_ok());
}

#[test]
fn parts_of_stacked_experts_are_joined_with_an_underscore() {
    let stack = vec![
        Tensor::from_bytes(FUSED, Dtype::U8, [3, 4, K / 2], vec![0x21; 6 * K]),
        Tensor::from_bytes(format!("{FUSED}_weight_scale"), Dtype::F8_E4M3, [3, 4, K / 16], vec![0x38; 3 * K / 4]),
        Tensor::from_f32(format!("{FUSED}_weight_scale_2"), [], vec![1.0]),
    ];
    let name = format!("{FUSED}_weight_zero_point");
    let (_folder, model) = open(&[stack.clone(), vec![number(&name)]].concat(), "{}");
    assert!(model.expert(0, 1).unwrap_err().to_string().contains(&name));
    let (_folder, model) = open(&[stack, vec![number(&format!("{FUSED}_output_scale"))]].concat(), "{}");
    assert!(model.expert(0, 1).is_ok());
}

#[test]
fn fp8_weights_are_refused_with_what_only_others_may_have() {
    for (part, is_read) in [
        ("input_scale", true),
        ("activation_scale", true),
        ("bias", false),
        ("weight_zero_point", false),
        ("pre_quant_scale", false),
        ("weight_scale_2", false),
    ] {
        let (_folder, model) = with(&format!("{FP8}.{part}"));
        let read = model.fp8(FP8);
        assert_eq!(read.is_ok(), is_read, "{part}: {read:?}");
        assert!(is_read || read.unwrap_err().to_string().contains(part));
    }
}

#[test]
fn a_low_rank_part_is_found_beside_the_weight_that_it_is_added_to() {
    let stem = "model.layers.0.self_attn.o_proj";
    let tensors = [weight(&format!("{stem}.base_layer")), vec![number(&format!("{stem}.lora_A.weight"))]].concat();
    let (_folder, model) = open(&tensors, "{}");
    let error = model.linear(&format!("{stem}.base_layer")).unwrap_err().to_string();
    assert!(error.contains("o_proj.lora_A.weight"), "{error}");
}

#[test]
fn rotations_that_are_declared_must_all_be_in_the_weights() {
    let config = |place: &str| {
        let apply = format!(r#"[{{"location":"{place}","targets":["Linear"]}}]"#);
        format!(r#"{{"quantization_config":{{"transform_config":{{"config_groups":{{"R4":{{"apply":{apply}}}}}}}}}}}"#)
    };
    let (_folder, model) = open(&self::model(), &config("input"));
    let error = model.feed_forward(0).unwrap_err().to_string();
    assert!(error.contains("transform_config") && error.contains("gate_proj"), "{error}");
    let (_folder, model) = open(&self::model(), &config("weight_input"));
    assert!(model.feed_forward(0).is_ok());
}
