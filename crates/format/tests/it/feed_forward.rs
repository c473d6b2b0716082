//! Whole feed-forward layers: down projections, biases, routers and shared experts, of models that the real packages
//! wrote and of small ones written here.

use std::path::PathBuf;

use hammerhead_format::GlobalScale;
use hammerhead_format::checkpoint::{Checkpoint, FeedForward, Linear, Options, RoutingRule, Score};
use hammerhead_format::tensors::{self, Dtype, File, Tensor};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(data(name)).unwrap()
}

/// A projection decodes to what the package that wrote it decodes it to.
fn assert_is(linear: &Linear<'_>, expected: &File, name: &str) {
    let theirs = expected.tensor(name).unwrap();
    assert_eq!(theirs.shape, [linear.matrix.rows(), linear.matrix.k()], "{name}");
    let theirs = theirs.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
    for (ours, theirs) in linear.matrix.dequantize().into_iter().zip(theirs) {
        assert!((ours - theirs).abs() <= theirs.abs() * 2f32.powi(-22), "{name}: {ours:e}, not {theirs:e}");
    }
}

const PLAIN: RoutingRule =
    RoutingRule { score: Score::Softmax, top: 2, renormalise: false, groups: None, scaling: 1.0 };

#[test]
fn experts_come_with_their_down_projections_and_the_router() {
    let (model, expected) =
        (open("modelopt_qwen3_moe"), File::open(data("modelopt_qwen3_moe.expected.safetensors")).unwrap());
    let layer = model.feed_forward(0).unwrap();
    assert_eq!((layer.experts.len(), layer.shared.len(), layer.shared_gate.is_some()), (4, 0, false));
    for expert in &layer.experts {
        for (linear, part) in [(&expert.gate, "gate_proj"), (&expert.up, "up_proj"), (&expert.down, "down_proj")] {
            assert_is(linear, &expected, &format!("{}.{part}.weight", expert.name));
            assert!(matches!(linear.input_scale, Some(GlobalScale::Multiplies(scale)) if scale > 0.0));
            assert!(linear.bias.is_none() && linear.pre_scale.is_none());
        }
    }
    let router = layer.router.unwrap();
    assert_eq!((router.weight.rows(), router.weight.k()), (4, 64));
    assert_eq!(router.rule, Some(PLAIN));
    let dense = model.feed_forward(1).unwrap();
    assert!(dense.router.is_none() && dense.experts.len() == 1);
    assert_is(&dense.experts[0].down, &expected, "model.layers.1.mlp.down_proj.weight");
}

#[test]
fn stacked_and_transposed_down_projections_are_taken_apart() {
    let (model, expected) =
        (open("modelopt_llama4"), File::open(data("modelopt_llama4.expected.safetensors")).unwrap());
    let layer = model.feed_forward(0).unwrap();
    for (number, expert) in layer.experts.iter().enumerate() {
        assert_is(&expert.down, &expected, &format!("model.layers.0.feed_forward.experts.{number}.down_proj.weight"));
    }
    assert_is(&layer.shared[0].down, &expected, "model.layers.0.feed_forward.shared_expert.down_proj.weight");
}

#[test]
fn an_input_scale_divides_where_its_name_says_so() {
    let model = open("compressed_tensors_dense");
    let stored = File::open(data("compressed_tensors_dense/model.safetensors")).unwrap();
    let divisor = stored.tensor("model.layers.0.mlp.down_proj.input_global_scale").unwrap().scalar_f32().unwrap();
    let layer = model.feed_forward(0).unwrap();
    assert_eq!(layer.experts[0].down.input_scale, Some(GlobalScale::Divides(divisor)));
}

#[test]
fn awq_s_vectors_come_with_the_projections_that_have_them() {
    let layer = open("modelopt_awq");
    let layer = layer.feed_forward(0).unwrap();
    assert!(layer.experts.iter().all(|e| e.gate.pre_scale.is_some() && e.gate.pre_scale == e.up.pre_scale));
    assert!(layer.experts.iter().all(|expert| expert.down.pre_scale.is_none()));
}

#[test]
fn a_down_projection_that_is_not_quantised_is_named() {
    let error = open("compressed_tensors_mixtral").feed_forward(0).unwrap_err().to_string();
    assert!(error.contains("experts.2.w2"), "{error}");
    assert!(open("compressed_tensors_mixtral").layer(0).is_ok(), "gate and up can still be read");
}

#[test]
fn a_gguf_down_projection_that_is_not_its_experts_is_refused() {
    let error = open("gguf_moe.gguf").feed_forward(0).unwrap_err().to_string();
    // This file's down projections are wider than its experts, for the sake of their blocks.
    assert!(error.contains("128 × 64 where gate and up are 10 × 128"), "{error}");
}

const N: usize = 16;
const K: usize = 32;

/// A matrix as ModelOpt writes it.
fn matrix(stem: &str, rows: usize, k: usize) -> Vec<Tensor<'static>> {
    vec![
        Tensor::from_bytes(format!("{stem}.weight"), Dtype::U8, [rows, k / 2], vec![0x21; rows * k / 2]),
        Tensor::from_bytes(format!("{stem}.weight_scale"), Dtype::F8_E4M3, [rows, k / 16], vec![0x38; rows * k / 16]),
        Tensor::from_f32(format!("{stem}.weight_scale_2"), [], vec![1.0]),
    ]
}

fn mlp(module: &str) -> Vec<Tensor<'static>> {
    [("gate_proj", N, K), ("up_proj", N, K), ("down_proj", K, N)]
        .into_iter()
        .flat_map(|(name, rows, k)| matrix(&format!("{module}.{name}"), rows, k))
        .collect()
}

fn counted(name: &str, shape: &[usize]) -> Tensor<'static> {
    Tensor::from_f32(name, shape, (0..shape.iter().product()).map(|i| i as f32).collect::<Vec<_>>())
}

/// What becomes of a layer of these tensors under this configuration.
fn read(config: &str, tensors: &[Tensor<'_>], look: impl FnOnce(FeedForward<'_>)) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    tensors::write(folder.path().join("model.safetensors"), tensors, None).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let model = Checkpoint::open_with(folder.path(), &Options::default()).unwrap();
    model.feed_forward(0).map(look).map_err(|error| error.to_string())
}

const DEEPSEEK: &str = r#"{"model_type": "deepseek_v3", "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid"}"#;

/// Two experts, one that sees every token and a gate for it, and a router with a correction.
fn deepseek() -> Vec<Tensor<'static>> {
    let layer = "model.layers.0.mlp";
    let mut tensors = [mlp(&format!("{layer}.experts.0")), mlp(&format!("{layer}.experts.1"))].concat();
    tensors.extend(mlp(&format!("{layer}.shared_experts")));
    tensors.push(counted(&format!("{layer}.gate.weight"), &[2, K]));
    tensors.push(counted(&format!("{layer}.gate.e_score_correction_bias"), &[2]));
    tensors.push(counted(&format!("{layer}.shared_expert_gate.weight"), &[1, K]));
    tensors
}

#[test]
fn a_router_brings_its_correction_and_the_declared_rule() {
    read(DEEPSEEK, &deepseek(), |layer| {
        let router = layer.router.unwrap();
        assert_eq!(router.correction, Some(vec![0.0, 1.0]));
        assert_eq!(router.bias, None);
        let rule =
            RoutingRule { score: Score::Sigmoid, renormalise: true, groups: Some([4, 2]), scaling: 2.5, ..PLAIN };
        assert_eq!(router.rule, Some(rule));
        assert_eq!((layer.shared.len(), layer.shared_gate.unwrap()[3]), (1, 3.0));
    })
    .unwrap();
}

#[test]
fn rules_are_told_by_the_kind_of_model_and_others_are_not_guessed() {
    const SIGMOID: RoutingRule = RoutingRule { score: Score::Sigmoid, renormalise: true, scaling: 1.8, ..PLAIN };
    let grouped = RoutingRule { groups: Some([2, 1]), ..SIGMOID };
    let root = RoutingRule { score: Score::SqrtSoftplus, scaling: 1.5, ..SIGMOID };
    for (kind, more, expected) in [
        ("mixtral", "", Some(RoutingRule { renormalise: true, ..PLAIN })),
        ("mixtral", r#", "norm_topk_prob": false"#, None),
        ("qwen3_moe", r#", "norm_topk_prob": true"#, Some(RoutingRule { renormalise: true, ..PLAIN })),
        ("qwen3_moe", "", Some(PLAIN)),
        ("qwen3_next", "", Some(RoutingRule { renormalise: true, ..PLAIN })),
        ("qwen3_next", r#", "norm_topk_prob": false"#, Some(PLAIN)),
        ("qwen3_5_moe_text", "", Some(RoutingRule { renormalise: true, ..PLAIN })),
        ("qwen3_vl_moe_text", "", Some(RoutingRule { renormalise: true, ..PLAIN })),
        ("qwen3_vl_moe_text", r#", "norm_topk_prob": false"#, None),
        ("gpt_oss", "", Some(RoutingRule { score: Score::SoftmaxOfChosen, ..PLAIN })),
        ("llama4_text", "", Some(RoutingRule { score: Score::SigmoidOnInput, ..PLAIN })),
        ("glm4_moe", "", Some(RoutingRule { score: Score::Sigmoid, renormalise: true, ..PLAIN })),
        ("glm4_moe_lite", r#", "routed_scaling_factor": 1.8"#, Some(SIGMOID)),
        ("glm_moe_dsa", r#", "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1"#, Some(SIGMOID)),
        ("deepseek_v32", r#", "routed_scaling_factor": 1.8, "n_group": 2, "topk_group": 1"#, Some(grouped)),
        ("minimax_m3_vl", r#", "routed_scaling_factor": 1.8, "scoring_func": "sigmoid""#, Some(SIGMOID)),
        ("minimax_m3_vl", "", None),
        ("deepseek_v3", "", None),
        ("deepseek_v3", r#", "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1"#, Some(SIGMOID)),
        ("deepseek_v3", r#", "routed_scaling_factor": 1.8"#, None),
        ("deepseek_v32", r#", "routed_scaling_factor": 1.8, "n_group": 2"#, None),
        ("glm4_moe_lite", r#", "routed_scaling_factor": 1.8, "n_group": 2"#, Some(grouped)),
        ("glm4_moe_lite", r#", "routed_scaling_factor": 1.8, "topk_method": "greedy""#, None),
        ("kimi_k2", r#", "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1"#, Some(SIGMOID)),
        ("kimi_k2", r#", "n_group": 1, "topk_group": 1"#, None),
        ("minimax_m2", "", Some(RoutingRule { scaling: 1.0, ..SIGMOID })),
        ("minimax_m2", r#", "routed_scaling_factor": 1.8"#, None),
        ("deepseek_v3", r#", "scoring_func": "sqrtsoftplus""#, None),
        ("deepseek_v4", r#", "routed_scaling_factor": 1.5"#, Some(root)),
        ("deepseek_v4", r#", "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus""#, Some(root)),
        ("deepseek_v4", r#", "routed_scaling_factor": 1.5, "scoring_func": "sigmoid""#, None),
        ("deepseek_v4", r#", "routed_scaling_factor": 1.5, "norm_topk_prob": false"#, None),
        ("deepseek_v4", r#", "routed_scaling_factor": 1.5, "n_group": 8"#, None),
        ("deepseek_v4", "", None),
        ("somebody_s", "", None),
    ] {
        let config = format!(r#"{{"model_type": "{kind}", "num_experts_per_tok": 2{more}}}"#);
        read(&config, &deepseek(), |layer| assert_eq!(layer.router.unwrap().rule, expected, "{kind}")).unwrap();
    }
}

#[test]
fn a_rule_that_is_declared_for_one_layer_holds_for_that_layer() {
    for (layer, top) in [("0", 1), ("1", 2)] {
        let config = format!(
            r#"{{"model_type": "mixtral", "num_experts_per_tok": 2, "per_layer_config": {{"{layer}": {{"num_experts_per_tok": 1}}}}}}"#
        );
        read(&config, &deepseek(), |found| assert_eq!(found.router.unwrap().rule.unwrap().top, top)).unwrap();
    }
}

#[test]
fn a_layer_of_deepseek_v4_has_a_table_or_a_correction_that_is_named_a_bias() {
    let model = open("deepseek_v4");
    let stored = File::open(data("deepseek_v4/model.safetensors")).unwrap();
    let rule = Some(RoutingRule { score: Score::SqrtSoftplus, renormalise: true, scaling: 1.5, ..PLAIN });
    let (first, second) = (model.routed_experts(0).unwrap(), model.routed_experts(1).unwrap());
    let [first, second] = [first, second].map(|layer| (layer.experts.len(), layer.shared.len(), layer.router.unwrap()));
    for (experts, shared, router) in [&first, &second] {
        assert_eq!((*experts, *shared, router.rule, &router.bias), (3, 0, rule, &None));
    }
    let table = first.2.table.unwrap();
    let ids = stored.tensor("layers.0.ffn.gate.tid2eid").unwrap();
    let ids: Vec<u32> = ids.bytes.as_chunks().0.iter().map(|&id| i64::from_le_bytes(id) as u32).collect();
    assert_eq!((table.top(), table.experts(31), table.experts(32)), (2, Some(&ids[62..]), None));
    assert_eq!((first.2.correction, second.2.table), (None, None));
    let bias = stored.tensor("layers.1.ffn.gate.bias").unwrap();
    let bias: Vec<f32> = bias.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    assert_eq!(second.2.correction, Some(bias));
    assert!(model.feed_forward(0).unwrap_err().to_string().contains("shared_experts"), "which is FP8");
}

#[test]
fn no_rule_covers_tokens_of_images_that_have_a_correction_of_their_own() {
    let layer = ["gate.bias", "gate.bias_vl"].map(|name| counted(&format!("layers.0.ffn.{name}"), &[2]));
    let tensors = [root_of_softplus(), layer.to_vec()].concat();
    read(ROOT_OF_SOFTPLUS, &tensors, |layer| assert_eq!(layer.router.unwrap().rule, None)).unwrap();
    let tensors = [root_of_softplus(), layer[..1].to_vec()].concat();
    read(ROOT_OF_SOFTPLUS, &tensors, |layer| assert!(layer.router.unwrap().rule.is_some())).unwrap();
    let router = open("deepseek_v41").routed_experts(0).unwrap().router.unwrap();
    assert_eq!((router.rule, router.correction.map(|correction| correction.len())), (None, Some(3)));
}

const ROOT_OF_SOFTPLUS: &str =
    r#"{"model_type": "deepseek_v4", "num_experts_per_tok": 2, "routed_scaling_factor": 1.5}"#;

/// Two experts and a router by DeepSeek's own names, without what chooses.
fn root_of_softplus() -> Vec<Tensor<'static>> {
    let mut tensors = [mlp("layers.0.ffn.experts.0"), mlp("layers.0.ffn.experts.1")].concat();
    tensors.push(counted("layers.0.ffn.gate.weight", &[2, K]));
    tensors
}

#[test]
fn a_table_that_chooses_no_experts_is_refused() {
    let table = |dtype, shape: &[usize], bytes: &[u8]| {
        Tensor::from_bytes("layers.0.ffn.gate.tid2eid", dtype, shape, bytes.to_vec())
    };
    let one = |id: i32| [id, 0].map(i32::to_le_bytes).concat();
    for (tensor, sentence) in [
        (None, "neither a bias nor a tid2eid"),
        (Some(table(Dtype::I32, &[1, 2], &one(2))), "names an expert that is none of 2"),
        (Some(table(Dtype::I32, &[1, 2], &one(-1))), "names an expert that is none of 2"),
        (Some(table(Dtype::I32, &[2, 1], &one(1))), "has 1 experts per token, and 2 are declared"),
        (Some(table(Dtype::I32, &[1, 2, 1], &one(1))), "[vocabulary, experts per token]"),
        (Some(table(Dtype::U8, &[1, 2], &[1, 0])), "type U8, where I32 or I64"),
    ] {
        let tensors: Vec<Tensor<'_>> = root_of_softplus().into_iter().chain(tensor).collect();
        let error = read(ROOT_OF_SOFTPLUS, &tensors, |_| ()).unwrap_err();
        assert!(error.contains(sentence) && error.contains("layers.0.ffn.gate"), "{error}");
    }
    let right = root_of_softplus().into_iter().chain([table(Dtype::I32, &[1, 2], &one(1))]).collect::<Vec<_>>();
    read(ROOT_OF_SOFTPLUS, &right, |layer| assert!(layer.router.unwrap().table.is_some())).unwrap();
}

#[test]
fn biases_of_fused_experts_go_with_the_rows() {
    let stem = "model.layers.0.mlp.experts";
    let fused = |rows: usize, k: usize, name: &str| {
        vec![
            Tensor::from_bytes(format!("{stem}.{name}_blocks"), Dtype::U8, [2, rows, k / 32, 16], vec![0x21; rows * k]),
            Tensor::from_bytes(format!("{stem}.{name}_scales"), Dtype::U8, [2, rows, k / 32], vec![127; rows * k / 16]),
        ]
    };
    let mut tensors = [fused(2 * K, K, "gate_up_proj"), fused(K, K, "down_proj")].concat();
    tensors.push(counted(&format!("{stem}.gate_up_proj_bias"), &[2, 2 * K]));
    tensors.push(counted(&format!("{stem}.down_proj_bias"), &[2, K]));
    tensors.push(counted("model.layers.0.mlp.router.weight", &[2, K]));
    tensors.push(counted("model.layers.0.mlp.router.bias", &[2]));
    let config = r#"{"model_type": "gpt_oss", "num_experts_per_tok": 2}"#;
    read(config, &tensors, |layer| {
        let second = &layer.experts[1];
        let [gate, up, down] = [&second.gate, &second.up, &second.down].map(|linear| linear.bias.clone().unwrap());
        assert_eq!((gate.len(), gate[..2].to_vec()), (K, vec![64.0, 66.0]));
        assert_eq!((up.len(), up[..2].to_vec()), (K, vec![65.0, 67.0]));
        assert_eq!((down.len(), down[0]), (K, 32.0));
        assert_eq!(layer.router.unwrap().bias, Some(vec![0.0, 1.0]));
    })
    .unwrap();
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Vec<Tensor<'static>>), fragments: &[&str]| {
        let mut tensors = deepseek();
        change(&mut tensors);
        let error = read(DEEPSEEK, &tensors, |_| ()).unwrap_err();
        for fragment in fragments {
            assert!(error.contains(fragment), "no {fragment:?} in {error}");
        }
    };
    let layer = "model.layers.0.mlp";
    let drop = |tensors: &mut Vec<Tensor<'static>>, part: &str| tensors.retain(|tensor| !tensor.name.contains(part));
    refused(&|tensors| drop(tensors, "experts.1.down_proj"), &["experts.1", "no down projection"]);
    refused(
        &|tensors| {
            drop(tensors, "experts.0.down_proj");
            tensors.extend(matrix(&format!("{layer}.experts.0.down_proj"), K, K));
        },
        &["experts.0", "32 × 32 where gate and up are 16 × 32"],
    );
    refused(
        &|tensors| {
            drop(tensors, "mlp.gate.weight");
            tensors.push(counted(&format!("{layer}.gate.weight"), &[3, K]));
        },
        &["mlp.gate.weight", "[3, 32]", "2 experts"],
    );
    refused(&|tensors| drop(tensors, "e_score_correction_bias"), &["mlp.gate", "no e_score_correction_bias"]);
    refused(
        &|tensors| tensors.push(counted(&format!("{layer}.experts.0.up_proj.bias"), &[N + 1])),
        &["up_proj.bias", "[17]", "16 rows"],
    );
    refused(
        &|tensors| tensors.push(Tensor::from_f32(format!("{layer}.experts.0.up_proj.bias"), [N], vec![f32::NAN; N])),
        &["up_proj.bias", "number 0 is NaN"],
    );
    refused(
        &|tensors| tensors.push(Tensor::from_f32(format!("{layer}.experts.0.down_proj.input_scale"), [], vec![-1.0])),
        &["input_scale", "-1"],
    );
    refused(
        &|tensors| tensors.push(Tensor::from_bytes(format!("{layer}.gate.bias"), Dtype::I32, [2], vec![0; 8])),
        &["gate.bias", "I32"],
    );
}
