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
    for (kind, more, expected) in [
        ("mixtral", "", Some(RoutingRule { renormalise: true, ..PLAIN })),
        ("qwen3_moe", r#", "norm_topk_prob": true"#, Some(RoutingRule { renormalise: true, ..PLAIN })),
        ("gpt_oss", "", Some(RoutingRule { score: Score::SoftmaxOfChosen, ..PLAIN })),
        ("llama4_text", "", Some(RoutingRule { score: Score::SigmoidOnInput, ..PLAIN })),
        ("glm4_moe", "", Some(RoutingRule { score: Score::Sigmoid, renormalise: true, ..PLAIN })),
        ("deepseek_v3", r#", "scoring_func": "sqrtsoftplus""#, None),
        ("somebody_s", "", None),
    ] {
        let config = format!(r#"{{"model_type": "{kind}", "num_experts_per_tok": 2{more}}}"#);
        read(&config, &deepseek(), |layer| assert_eq!(layer.router.unwrap().rule, expected, "{kind}")).unwrap();
    }
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
