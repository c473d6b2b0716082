//! Every way in which gate and up may stand in a file leads to the same matrices, and what is no NVFP4 says what it is.

use std::fs;

use hammerhead_format::checkpoint::{Arrangement, Checkpoint, Content, GateFunction, GateUpOrder, Options};
use hammerhead_format::tensors::{self, Dtype, Tensor};
use hammerhead_format::{Error, Matrix, Scaling};
use tempfile::{TempDir, tempdir};

const EXPERTS: usize = 3;
const N: usize = 10;
const K: usize = 48;

/// Bytes without a pattern, of which none is a NaN scale.
fn bytes(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * i * 31 + i * 7 + salt * 101) % 127) as u8).collect()
}

/// Codes and scales of one matrix, row-major.
#[derive(Clone)]
struct Part {
    codes: Vec<u8>,
    scales: Vec<u8>,
}

fn part(salt: usize) -> Part {
    Part { codes: bytes(N * K / 2, salt), scales: bytes(N * K / 16, salt + 50) }
}

/// Gate and up of every expert.
fn truth() -> Vec<[Part; 2]> {
    (0..EXPERTS).map(|expert| [part(2 * expert), part(2 * expert + 1)]).collect()
}

/// The rows of two matrices in one, in this order.
fn fuse(gate: &[u8], up: &[u8], order: GateUpOrder) -> Vec<u8> {
    match order {
        GateUpOrder::GateFirst => [gate, up].concat(),
        GateUpOrder::UpFirst => [up, gate].concat(),
        GateUpOrder::Interleaved => {
            let width = gate.len() / N;
            gate.chunks(width).zip(up.chunks(width)).flat_map(|(gate, up)| [gate, up].concat()).collect()
        }
    }
}

fn transpose(rows: &[u8], width: usize) -> Vec<u8> {
    (0..width).flat_map(|column| rows.chunks(width).map(move |row| row[column])).collect()
}

/// ModelOpt's tensors of stacked and fused experts.
fn fused(order: GateUpOrder, transposed: bool, globals: Tensor<'static>) -> Vec<Tensor<'static>> {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for [gate, up] in truth() {
        let (fused_codes, fused_scales) = (fuse(&gate.codes, &up.codes, order), fuse(&gate.scales, &up.scales, order));
        codes.extend(if transposed { transpose(&fused_codes, K / 2) } else { fused_codes });
        scales.extend(if transposed { transpose(&fused_scales, K / 16) } else { fused_scales });
    }
    let shape = |width| if transposed { [EXPERTS, width, 2 * N] } else { [EXPERTS, 2 * N, width] };
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    vec![
        Tensor::from_bytes(name, Dtype::U8, shape(K / 2), codes),
        Tensor::from_bytes(format!("{name}_weight_scale"), Dtype::F8_E4M3, shape(K / 16), scales),
        Tensor { name: format!("{name}_weight_scale_2"), ..globals },
    ]
}

fn one_global() -> Tensor<'static> {
    Tensor::from_f32("", [], vec![0.25])
}

fn folder(tensors: &[Tensor<'_>], config: &str) -> TempDir {
    let folder = tempdir().unwrap();
    tensors::write(folder.path().join("model.safetensors"), tensors, None).unwrap();
    fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

fn assert_is(matrix: &Matrix<'_>, part: &Part, global: f32) {
    assert_eq!((matrix.rows(), matrix.k(), matrix.global()), (N, K, global.into()));
    assert_eq!((matrix.codes(), matrix.scales()), (&part.codes[..], &part.scales[..]));
}

#[test]
fn every_order_and_direction_of_fused_experts_gives_the_same_matrices() {
    for order in [GateUpOrder::GateFirst, GateUpOrder::UpFirst, GateUpOrder::Interleaved] {
        for transposed in [false, true] {
            let folder = folder(&fused(order, transposed, one_global()), "{}");
            let options = Options { gate_up_order: Some(order), ..Options::default() };
            let model = Checkpoint::open_with(folder.path(), &options).unwrap();
            let pair = &model.layers()[0].pairs[0];
            assert_eq!((pair.arrangement, pair.is_transposed), (Arrangement::Fused(order), transposed));
            let layer = model.layer(0).unwrap();
            assert_eq!(layer.experts.len(), EXPERTS);
            for (expert, [gate, up]) in layer.experts.iter().zip(truth()) {
                assert_is(&expert.gate, &gate, 0.25);
                assert_is(&expert.up, &up, 0.25);
            }
        }
    }
}

#[test]
fn the_kind_of_model_settles_the_order() {
    for (config, order) in [
        (r#"{"model_type":"llama4"}"#, GateUpOrder::GateFirst),
        (r#"{"model_type":"qwen3_vl_moe"}"#, GateUpOrder::GateFirst),
        (r#"{"model_type":"gpt_oss"}"#, GateUpOrder::Interleaved),
    ] {
        let folder = folder(&fused(order, true, one_global()), config);
        let model = Checkpoint::open(folder.path()).unwrap();
        assert_is(&model.expert(0, 2).unwrap().up, &truth()[2][1], 0.25);
    }
    for config in ["{}", r#"{"model_type":"never_heard_of"}"#] {
        let folder = folder(&fused(GateUpOrder::GateFirst, true, one_global()), config);
        assert!(matches!(Checkpoint::open(folder.path()), Err(Error::Ambiguous { .. })));
    }
}

#[test]
fn global_scales_may_be_one_for_all_one_an_expert_or_one_a_half() {
    let each = || (1..=EXPERTS).map(|expert| expert as f32).collect::<Vec<f32>>();
    let halves = || (1..=2 * EXPERTS).map(|half| half as f32).collect::<Vec<f32>>();
    for (globals, gate, up) in [
        (Tensor::from_f32("", [1], vec![0.5]), 0.5, 0.5),
        (Tensor::from_f32("", [EXPERTS], each()), 2.0, 2.0),
        (Tensor::from_f32("", [EXPERTS, 1, 1], each()), 2.0, 2.0),
        (Tensor::from_f32("", [EXPERTS, 2], halves()), 3.0, 4.0),
    ] {
        let folder = folder(&fused(GateUpOrder::GateFirst, false, globals), r#"{"model_type":"llama4"}"#);
        let model = Checkpoint::open(folder.path()).unwrap();
        let expert = model.expert(0, 1).unwrap();
        assert_eq!((expert.gate.global(), expert.up.global()), (gate.into(), up.into()));
    }
    let five = Tensor::from_f32("", [5], vec![1.0; 5]);
    let folder = folder(&fused(GateUpOrder::GateFirst, false, five), r#"{"model_type":"llama4"}"#);
    assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("5 global scales for 3 matrices"));
}

/// One weight as ModelOpt writes it.
fn modelopt(stem: &str, part: &Part, global: f32) -> Vec<Tensor<'static>> {
    let rows = part.codes.len() / (K / 2);
    vec![
        Tensor::from_bytes(format!("{stem}.weight"), Dtype::U8, [rows, K / 2], part.codes.clone()),
        Tensor::from_bytes(format!("{stem}.weight_scale"), Dtype::F8_E4M3, [rows, K / 16], part.scales.clone()),
        Tensor::from_f32(format!("{stem}.weight_scale_2"), [], vec![global]),
    ]
}

#[test]
fn gate_and_up_keep_global_scales_of_their_own() {
    let [gate, up] = &truth()[0];
    let mut tensors = modelopt("model.layers.0.mlp.gate_proj", gate, 0.001);
    tensors.extend(modelopt("model.layers.0.mlp.up_proj", up, 0.01));
    let folder = folder(&tensors, "{}");
    let model = Checkpoint::open(folder.path()).unwrap();
    let expert = model.expert(0, 0).unwrap();
    assert_is(&expert.gate, gate, 0.001);
    assert_is(&expert.up, up, 0.01);
    assert_eq!(expert.pre_scale, None);
}

#[test]
fn what_a_model_does_beside_the_operation_is_mentioned() {
    let [gate, up] = &truth()[0];
    let mut tensors = modelopt("model.layers.0.mlp.gate_proj", gate, 1.0);
    tensors.extend(modelopt("model.layers.0.mlp.up_proj", up, 1.0));
    tensors.push(Tensor::from_f32("model.layers.0.mlp.up_proj.bias", [N], vec![1.0; N]));
    let folder = folder(&tensors, "{}");
    let model = Checkpoint::open(folder.path()).unwrap();
    assert!(model.layer(0).unwrap().has_bias);
}

#[test]
fn a_fused_dense_layer_is_split_for_computing_and_whole_under_its_own_name() {
    let [gate, up] = &truth()[0];
    let both = Part { codes: [&gate.codes[..], &up.codes].concat(), scales: [&gate.scales[..], &up.scales].concat() };
    let folder = folder(&modelopt("model.layers.0.mlp.gate_up_proj", &both, 0.5), r#"{"model_type":"phi3"}"#);
    let model = Checkpoint::open(folder.path()).unwrap();
    let expert = model.expert(0, 0).unwrap();
    assert_is(&expert.gate, gate, 0.5);
    assert_is(&expert.up, up, 0.5);
    let names: Vec<String> = model.weights().unwrap().into_iter().map(|weight| weight.name).collect();
    assert_eq!(names, ["model.layers.0.mlp.gate_up_proj.weight"]);
}

/// Layer 0 of another kind, layer 1 NVFP4.
fn mixed(dtype: Dtype, config: &str) -> TempDir {
    let [gate, up] = &truth()[0];
    let mut tensors = modelopt("model.layers.1.mlp.gate_proj", gate, 1.0);
    tensors.extend(modelopt("model.layers.1.mlp.up_proj", up, 1.0));
    for side in ["gate_proj", "up_proj"] {
        let name = format!("model.layers.0.mlp.{side}.weight");
        tensors.push(Tensor::from_f32(format!("{name}_scale"), [], vec![1.0]));
        tensors.push(Tensor::from_bytes(name, dtype, [N, K], vec![0; N * K * dtype.bitsize() / 8]));
    }
    folder(&tensors, config)
}

#[test]
fn layers_of_other_kinds_are_named_and_the_rest_is_read() {
    for (dtype, what) in [(Dtype::F8_E4M3, "FP8 (F8_E4M3)"), (Dtype::BF16, "BF16"), (Dtype::I8, "packed integers (I8)")]
    {
        let folder = mixed(dtype, "{}");
        let model = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(model.layers()[0].pairs[0].content, Content::Other(what.to_owned()));
        let error = model.layer(0).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("quantise it first"), "{error}");
        assert_eq!(model.layer(1).unwrap().experts.len(), 1);
        assert_eq!(model.weights().unwrap().len(), 2);
    }
}

#[test]
fn a_layer_that_the_configuration_leaves_out_says_so() {
    let config = r#"{"quantization_config":{"quant_method":"modelopt","ignore":["model.layers.0.mlp*"]}}"#;
    let folder = mixed(Dtype::BF16, config);
    let error = Checkpoint::open(folder.path()).unwrap().layer(0).unwrap_err().to_string();
    assert!(error.contains("the configuration leaves this layer out"), "{error}");
}

#[test]
fn the_quantised_tower_is_taken_and_another_can_be_chosen() {
    let [gate, up] = &truth()[0];
    let mut tensors = modelopt("model.language_model.layers.0.mlp.gate_proj", gate, 1.0);
    tensors.extend(modelopt("model.language_model.layers.0.mlp.up_proj", up, 1.0));
    for layer in 0..4 {
        for side in ["gate_proj", "up_proj"] {
            let name = format!("model.visual.blocks.{layer}.mlp.{side}.weight");
            tensors.push(Tensor::from_bytes(name, Dtype::BF16, [2, 2], vec![0; 8]));
        }
    }
    let folder = folder(&tensors, "{}");
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((model.tower(), model.layers().len()), ("model.language_model.layers", 1));
    assert_eq!(model.other_towers(), ["model.visual.blocks"]);
    let tower = |name: &str| Options { tower: Some(name.to_owned()), ..Options::default() };
    let other = Checkpoint::open_with(folder.path(), &tower("model.visual.blocks")).unwrap();
    assert_eq!(other.layers().len(), 4);
    assert!(Checkpoint::open_with(folder.path(), &tower("lm")).is_err());
}

#[test]
fn a_missing_expert_is_noticed_between_others() {
    let [gate, up] = &truth()[0];
    let mut tensors = Vec::new();
    for expert in [0, 1, 3] {
        tensors.extend(modelopt(&format!("model.layers.0.mlp.experts.{expert}.gate_proj"), gate, 1.0));
        tensors.extend(modelopt(&format!("model.layers.0.mlp.experts.{expert}.up_proj"), up, 1.0));
    }
    let folder = folder(&tensors, "{}");
    let model = Checkpoint::open(folder.path()).unwrap();
    assert!(matches!(model.layer(0), Err(Error::NoExpert { expert: 2, .. })));
    assert!(model.expert(0, 3).is_ok());
}

#[test]
fn gates_are_known_from_the_configuration() {
    let [gate, up] = &truth()[0];
    let mut tensors = modelopt("model.layers.0.mlp.gate_proj", gate, 1.0);
    tensors.extend(modelopt("model.layers.0.mlp.up_proj", up, 1.0));
    for (config, expected) in [
        (r#"{"hidden_act":"silu"}"#, GateFunction::Silu),
        (r#"{"hidden_activation":"gelu_pytorch_tanh"}"#, GateFunction::GeluTanh),
        (r#"{"text_config":{"hidden_act":"swish"},"hidden_act":"gelu"}"#, GateFunction::Silu),
        (r#"{"hidden_act":"gelu"}"#, GateFunction::Other("gelu".to_owned())),
        (r#"{"model_type":"gpt_oss","swiglu_limit":5.5}"#, GateFunction::GptOss { clamp: 5.5 }),
        (r#"{"hidden_act":"silu","swiglu_limit":10.0}"#, GateFunction::SiluLimited { limit: 10.0 }),
        (r#"{"swiglu_limit":8.5}"#, GateFunction::SiluLimited { limit: 8.5 }),
        (r#"{"hidden_act":"gelu","swiglu_limit":10.0}"#, GateFunction::Other("gelu limited at 10".to_owned())),
        (r#"{"hidden_act":"swigluoai","swiglu_alpha":1.702,"swiglu_limit":7.0}"#, GateFunction::GptOss { clamp: 7.0 }),
        (r#"{"swiglu_alpha":2.0}"#, GateFunction::Other("gpt-oss's with another alpha".to_owned())),
        // Models of several kinds of input may leave out of their text's configuration what its class has by default.
        (r#"{"text_config":{"model_type":"gemma3_text"}}"#, GateFunction::GeluTanh),
        (r#"{"text_config":{"model_type":"llama"}}"#, GateFunction::Silu),
        (r#"{"model_type":"lfm2_moe"}"#, GateFunction::Silu),
        (r#"{"text_config":{"model_type":"minimax_m3_vl_text"}}"#, GateFunction::GptOss { clamp: 7.0 }),
        (r#"{"model_type":"deepseek_v4"}"#, GateFunction::Other("silu with a limit that is not declared".to_owned())),
        (
            r#"{"model_type":"somebody_s"}"#,
            GateFunction::Other("not declared by a model of type \"somebody_s\"".to_owned()),
        ),
        ("{}", GateFunction::Silu),
    ] {
        let folder = folder(&tensors, config);
        assert_eq!(Checkpoint::open(folder.path()).unwrap().gate(0), expected, "{config}");
    }
}

#[test]
fn what_is_declared_layer_by_layer_is_read_layer_by_layer() {
    let [gate, up] = &truth()[0];
    let mut tensors = modelopt("model.layers.0.mlp.gate_proj", gate, 1.0);
    tensors.extend(modelopt("model.layers.0.mlp.up_proj", up, 1.0));
    let other = |words: &str| GateFunction::Other(words.to_owned());
    let at_seven = || other("silu whose results are limited at 7");
    for (limits, expected) in [
        (r#""swiglu_limits":[0.0,null,7.0]"#, [GateFunction::Silu, GateFunction::Silu, at_seven()]),
        (r#""swiglu_limits_shared":[7.0,0.0,0.0]"#, [at_seven(), GateFunction::Silu, GateFunction::Silu]),
        (
            r#""swiglu_limit":[0.0,7.0]"#,
            [GateFunction::Silu, at_seven(), other("limited layer by layer (swiglu_limit)")],
        ),
        (
            r#""per_layer_config":{"1":{"swiglu_limit":5.0},"2":{"hidden_act":"gelu"}}"#,
            [GateFunction::Silu, GateFunction::SiluLimited { limit: 5.0 }, other("gelu")],
        ),
    ] {
        let folder = folder(&tensors, &format!(r#"{{"hidden_act":"silu",{limits}}}"#));
        let model = Checkpoint::open(folder.path()).unwrap();
        assert_eq!([0, 1, 2].map(|layer| model.gate(layer)), expected, "{limits}");
    }
}

#[test]
fn mxfp4_of_many_powers_is_read_and_has_no_nvfp4_form_which_names_both_places() {
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    let mut exponents = vec![120; 2 * 4 * 2];
    (exponents[1], exponents[4]) = (100, 125);
    let tensors = [
        Tensor::from_bytes(format!("{name}_blocks"), Dtype::U8, [2, 4, 2, 16], vec![0x21; 2 * 4 * 2 * 16]),
        Tensor::from_bytes(format!("{name}_scales"), Dtype::U8, [2, 4, 2], exponents),
    ];
    let folder = folder(&tensors, r#"{"model_type":"gpt_oss"}"#);
    let model = Checkpoint::open(folder.path()).unwrap();
    let expert = model.expert(0, 0).unwrap();
    assert_eq!(expert.gate.dequantize()[32..34], [0.5 * 2f32.powi(-27), 2f32.powi(-27)]);
    // Scales are relative to the largest.
    let error = expert.gate.in_scaling(Scaling::NvFp4).unwrap_err().to_string();
    for fragment in ["2^-17 (row 0, block 1)", "2^8 (row 1, block 0)", "no exact NVFP4 form"] {
        assert!(error.contains(fragment), "{error}");
    }
    assert!(model.expert(0, 1).unwrap().gate.in_scaling(Scaling::NvFp4).is_ok());
}

#[test]
fn a_global_scale_that_is_no_number_is_refused_by_name() {
    for (stored, divide) in
        [(f32::NAN, false), (f32::INFINITY, false), (0.0, true), (f32::NAN, true), (f32::INFINITY, true)]
    {
        let Part { codes, scales } = part(0);
        let (code_name, global_name) =
            if divide { ("weight_packed", "weight_global_scale") } else { ("weight", "weight_scale_2") };
        let mut tensors = Vec::new();
        for side in ["gate_proj", "up_proj"] {
            let stem = format!("model.layers.0.mlp.{side}");
            tensors.push(Tensor::from_bytes(format!("{stem}.{code_name}"), Dtype::U8, [N, K / 2], codes.clone()));
            tensors.push(Tensor::from_bytes(
                format!("{stem}.weight_scale"),
                Dtype::F8_E4M3,
                [N, K / 16],
                scales.clone(),
            ));
            tensors.push(Tensor::from_f32(format!("{stem}.{global_name}"), [1], vec![stored]));
        }
        let folder = folder(&tensors, "{}");
        let error = Checkpoint::open(folder.path()).unwrap().expert(0, 0).unwrap_err().to_string();
        assert!(error.contains("gate_proj") && error.contains(global_name), "{error}");
    }
}
