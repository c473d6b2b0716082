//! The commands on whole models that the real packages wrote: what they say of them, what they decode them to, and what
//! a layer of them computes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{assert_refused, hammerhead, stderr, succeed};
use format::tensors::{self, Dtype, File, Tensor};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

/// Every model, and the name of what its package decodes it to.
const MODELS: [(&str, &str); 12] = [
    ("modelopt_dense", "modelopt_dense"),
    ("modelopt_qwen3_moe", "modelopt_qwen3_moe"),
    ("modelopt_llama4", "modelopt_llama4"),
    ("modelopt_awq", "modelopt_awq"),
    ("compressed_tensors_dense", "compressed_tensors_dense"),
    ("compressed_tensors_mixtral", "compressed_tensors_mixtral"),
    ("compressed_tensors_mxfp4", "compressed_tensors_mxfp4"),
    ("gpt_oss", "gpt_oss"),
    ("deepseek_v4", "deepseek_v4"),
    ("deepseek_v41", "deepseek_v41"),
    ("gguf_moe.gguf", "gguf_moe"),
    ("torchao", "torchao"),
];

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../format/tests/data").join(name)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn inspect(model: &str) -> Value {
    serde_json::from_str(&succeed(["inspect", path(&data(model)), "--json"])).unwrap()
}

fn values(file: &File, name: &str) -> Vec<f64> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype, Dtype::F32, "{name}");
    tensor.bytes.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes))).collect()
}

/// A copy of a model without some of its files.
fn copy_without(model: &str, left_out: &[&str]) -> TempDir {
    let folder = tempdir().unwrap();
    for entry in fs::read_dir(data(model)).unwrap() {
        let entry = entry.unwrap();
        if !left_out.contains(&entry.file_name().to_str().unwrap()) {
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    folder
}

#[test]
fn every_model_dequantises_to_what_its_package_decodes_it_to() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    for (model, name) in MODELS {
        succeed(["dequantize", path(&data(model)), path(&out)]);
        let ours = File::open(&out).unwrap();
        let theirs = File::open(data(&format!("{name}.expected.safetensors"))).unwrap();
        for name in theirs.names() {
            assert_eq!(ours.tensor(name).unwrap().shape, theirs.tensor(name).unwrap().shape);
            for (ours, theirs) in values(&ours, name).into_iter().zip(values(&theirs, name)) {
                assert!(
                    (ours - theirs).abs() <= theirs.abs() * 2f64.powi(-22),
                    "{model} {name}: {ours:e}, not {theirs:e}"
                );
            }
        }
    }
}

#[test]
fn patterns_choose_what_is_dequantised() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let model = data("modelopt_llama4");
    let report = succeed(["dequantize", path(&model), path(&out), "--tensor", "*experts.1.*", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["weights"].as_array().unwrap().len(), 3);
    assert_eq!(report["weights"][0]["name"], "model.layers.0.feed_forward.experts.1.down_proj.weight");
    assert_eq!(File::open(&out).unwrap().names().count(), 3);
    let none = hammerhead(["dequantize", path(&model), path(&out), "--tensor", "*.q_proj.weight"]);
    assert_refused(&none, &["no quantised weight", "q_proj", "in all"]);
}

#[test]
fn the_vector_of_awq_is_mentioned_wherever_it_matters() {
    let (folder, model) = (tempdir().unwrap(), data("modelopt_awq"));
    let out = folder.path().join("out.safetensors");
    assert!(succeed(["inspect", path(&model)]).contains("apart, tokens × pre_quant_scale"));
    let written = hammerhead(["dequantize", path(&model), path(&out)]);
    assert!(stderr(&written).contains("note: 4 of them are as stored"), "{}", stderr(&written));
    let report = succeed(["dequantize", path(&model), path(&out), "--json", "--tensor", "*experts.0.*"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let weights = report["weights"].as_array().unwrap();
    let told: Vec<bool> = weights.iter().map(|weight| weight["has_pre_scale"].as_bool().unwrap()).collect();
    assert_eq!(told, [false, true, true], "of down, gate and up");
}

#[test]
fn dequantising_into_the_model_itself_is_refused() {
    let folder = copy_without("modelopt_dense", &[]);
    let file = folder.path().join("model.safetensors");
    let before = fs::read(&file).unwrap();
    assert_refused(&hammerhead(["dequantize", path(folder.path()), path(&file)]), &["is the input file itself"]);
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn inspect_tells_what_was_found_and_concluded() {
    let text = succeed(["inspect", path(&data("modelopt_llama4"))]);
    for fragment in [
        "a llama4_text",
        "modelopt 0.47.0 NVFP4",
        "fused gate-first, transposed",
        "3+1",
        "32 × 96",
        "silu",
        "even k low",
    ] {
        assert!(text.contains(fragment), "no {fragment:?} in:\n{text}");
    }
    let text = succeed(["inspect", path(&data("gpt_oss"))]);
    for fragment in
        ["MXFP4 gpt-oss", "fused interleaved, biases", "gpt-oss (clamped at 7)", "model_type and swiglu_limit"]
    {
        assert!(text.contains(fragment), "no {fragment:?} in:\n{text}");
    }
    let text = succeed(["inspect", path(&data("deepseek_v4"))]);
    for fragment in
        ["a deepseek_v4", "MXFP4 deepseek", "3+1", "32 × 64", "silu (limited at 10)", "root of softplus, top 2"]
    {
        assert!(text.contains(fragment), "no {fragment:?} in:\n{text}");
    }
    let text = succeed(["inspect", path(&data("compressed_tensors_dense"))]);
    for fragment in ["BF16", "global scale divides", "dense"] {
        assert!(text.contains(fragment), "no {fragment:?} in:\n{text}");
    }
}

#[test]
fn inspect_gives_machines_the_same() {
    let report = inspect("compressed_tensors_mixtral");
    assert_eq!(report["model_type"], "mixtral");
    assert_eq!(report["formats"][0]["global_scale"], "divides");
    assert_eq!(report["layers"][0]["experts"], 3);
    assert_eq!((&report["layers"][0]["n"], &report["layers"][0]["k"]), (&48.into(), &64.into()));
    assert!(report["layers"][0]["files"].as_array().unwrap().len() > 1);
    let report = inspect("gguf_moe.gguf");
    assert_eq!(report["formats"][0]["nibbles"], "first half of a block low, second half high");
    assert_eq!(report["layers"][2]["stored"][0], "F16");
    assert_eq!(report["layers"][2]["gate_globals"], Value::Null);
    let range = &report["layers"][0]["gate_globals"];
    assert!(range[0].as_f64() < range[1].as_f64());
}

#[test]
fn what_can_be_read_in_two_ways_is_refused_with_the_option_that_settles_it() {
    // The tensors of Llama 4's own path tell their order; under another path only the configuration could.
    let folder = copy_without("modelopt_llama4", &["config.json"]);
    let file = folder.path().join("model.safetensors");
    let source = File::open(&file).unwrap();
    let renamed: Vec<Tensor<'_>> = source
        .names()
        .map(|name| Tensor { name: name.replace("feed_forward", "mlp"), ..source.tensor(name).unwrap() })
        .collect();
    tensors::write(&file, &renamed, None).unwrap();
    let model = path(folder.path());
    assert_refused(&hammerhead(["inspect", model]), &["fused", "--gate-up-order", "experts.gate_up_proj"]);
    for order in ["gate-first", "up-first", "interleaved"] {
        let text = succeed(["inspect", model, "--gate-up-order", order]);
        assert!(text.contains(&format!("fused {order}")), "{text}");
    }
    let declared = copy_without("modelopt_dense", &["config.json", "hf_quant_config.json"]);
    fs::copy(data("compressed_tensors_dense/config.json"), declared.path().join("config.json")).unwrap();
    let model = path(declared.path());
    assert_refused(&hammerhead(["inspect", model]), &["declares compressed-tensors", "--format"]);
    assert!(succeed(["inspect", model, "--format", "modelopt"]).contains("global scale multiplies"));
}

/// Tokens `[m, k]`, from −1 to 1 in steps that every type holds.
fn token_values(m: usize, k: usize) -> Vec<f32> {
    (0..m * k).map(|i| ((i * 37 % 65) as f32 - 32.0) / 32.0).collect()
}

fn gated(
    tokens: &[f32],
    gate: &[f64],
    up: &[f64],
    m: usize,
    n: usize,
    k: usize,
    join: impl Fn(f64, f64) -> f64,
) -> Vec<f64> {
    let dot = |row: usize, column: usize, weights: &[f64]| -> f64 {
        (0..k).map(|i| f64::from(tokens[row * k + i]) * weights[column * k + i]).sum()
    };
    (0..m * n).map(|at| join(dot(at / n, at % n, gate), dot(at / n, at % n, up))).collect()
}

fn silu(gate: f64, up: f64) -> f64 {
    gate / (1.0 + (-gate).exp()) * up
}

fn gpt_oss(gate: f64, up: f64) -> f64 {
    let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
    gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
}

#[test]
fn a_layer_computes_what_its_decoded_weights_give() {
    for (model, name, experts, module, join, [n, k]) in [
        (
            "modelopt_llama4",
            "modelopt_llama4",
            "2,0",
            "model.layers.0.feed_forward.experts",
            silu as fn(f64, f64) -> f64,
            [32, 96],
        ),
        ("modelopt_qwen3_moe", "modelopt_qwen3_moe", "all", "model.layers.0.mlp.experts", silu, [48, 64]),
        ("gpt_oss", "gpt_oss", "1", "model.layers.0.mlp.experts", gpt_oss, [24, 64]),
        ("gguf_moe.gguf", "gguf_moe", "1,2", "model.layers.0.mlp.experts", silu, [10, 128]),
    ] {
        let folder = tempdir().unwrap();
        let (input, out) = (folder.path().join("a.safetensors"), folder.path().join("c.safetensors"));
        let tokens = token_values(5, k);
        tensors::write(&input, &[Tensor::from_f32("a", [5, k], tokens.clone())], None).unwrap();
        succeed([
            "run",
            "--checkpoint",
            path(&data(model)),
            "--layer",
            "0",
            "--experts",
            experts,
            "--tokens",
            path(&input),
            "--output",
            path(&out),
            "--result",
            "f32",
        ]);
        let (result, expected) =
            (File::open(&out).unwrap(), File::open(data(&format!("{name}.expected.safetensors"))).unwrap());
        let experts: Vec<&str> = if experts == "all" { vec!["0", "1", "2", "3"] } else { experts.split(',').collect() };
        for (group, expert) in experts.iter().enumerate() {
            let weight = |projection| values(&expected, &format!("{module}.{expert}.{projection}.weight"));
            let truth = gated(&tokens, &weight("gate_proj"), &weight("up_proj"), 5, n, k, join);
            let c = if experts.len() == 1 { "c".to_owned() } else { format!("g{group}.c") };
            let largest = truth.iter().fold(0.0f64, |most, value| most.max(value.abs()));
            for (ours, truth) in values(&result, &c).into_iter().zip(truth) {
                assert!(
                    (ours - truth).abs() <= 1e-4 * truth.abs() + 1e-5 * largest,
                    "{model} {expert}: {ours}, not {truth}"
                );
            }
        }
    }
}

#[test]
fn without_an_output_a_layer_is_checked_and_timed() {
    let model = data("modelopt_qwen3_moe");
    let text =
        succeed(["run", "--checkpoint", path(&model), "--layer", "0", "--experts", "0,2", "--m", "3", "--quiet"]);
    assert!(text.contains("  ok\n"), "{text}");
    let model = data("gguf_moe.gguf");
    let shared = ["run", "--checkpoint", path(&model), "--layer", "0", "--experts", "shared", "--json"];
    let report: Value = serde_json::from_str(&succeed(shared)).unwrap();
    assert_eq!(report["cases"][0]["groups"], serde_json::json!([[16, 10, 128]]));
    assert_eq!(report["cases"][0]["passed"], true);
}

#[test]
fn biases_that_are_not_applied_are_mentioned() {
    let output = hammerhead(["run", "--checkpoint", path(&data("gpt_oss")), "--layer", "0", "--m", "2"]);
    assert!(stderr(&output).contains("biases"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn layers_experts_and_tokens_that_do_not_fit_are_refused() {
    let folder = tempdir().unwrap();
    let tokens = folder.path().join("a.safetensors");
    let run = |model: &str, more: &[&str]| {
        let model = data(model);
        hammerhead(["run", "--checkpoint", path(&model)].iter().chain(more).copied().collect::<Vec<_>>())
    };
    assert_refused(
        &run("compressed_tensors_dense", &["--layer", "1"]),
        &["BF16", "not NVFP4", "leaves this layer out"],
    );
    assert_refused(&run("modelopt_dense", &["--layer", "9"]), &["no layer 9", "from 0 to 0"]);
    assert_refused(&run("gpt_oss", &["--layer", "0", "--experts", "1,7"]), &["no expert 7", "inspect"]);
    assert_refused(&run("gpt_oss", &["--layer", "0", "--experts", "shared"]), &["no pair beside"]);
    let given = ["--layer", "0", "--tokens", path(&tokens)];
    tensors::write(&tokens, &[Tensor::from_f32("a", [1, 32], vec![0.0; 32])], None).unwrap();
    assert_refused(&run("gpt_oss", &given), &["its K is 32"]);
    let three = [0, 1, 2].map(|group| Tensor::from_f32(format!("g{group}.a"), [1, 64], vec![0.0; 64]));
    tensors::write(&tokens, &three, None).unwrap();
    assert_refused(&run("gpt_oss", &given), &["3 groups", "2 experts"]);
    tensors::write(&tokens, &[Tensor::from_f32("b1", [1, 64], vec![0.0; 64])], None).unwrap();
    assert_refused(&run("gpt_oss", &given), &["weights come from the checkpoint"]);
}

#[test]
fn options_that_make_no_sense_together_are_not_understood() {
    for args in [
        &["run", "--checkpoint", "m"][..],
        &["run", "--layer", "0"],
        &["run", "--checkpoint", "m", "--layer", "0", "--suite", "dual"],
        &["run", "--checkpoint", "m", "--layer", "0", "--input", "f", "--output", "g"],
        &["run", "--checkpoint", "m", "--layer", "0", "--m", "1", "--tokens", "t"],
        &["run", "--checkpoint", "m", "--layer", "0", "--experts", "some"],
        &["inspect", "m", "--format", "zip"],
    ] {
        assert_eq!(hammerhead(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_pre_quant_scale_is_applied_to_tokens_and_not_left_to_the_caller() {
    let folder = tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let plain = data("modelopt_dense").join("model.safetensors");
    let file = File::open(&plain).unwrap();
    let mut tensors: Vec<Tensor<'_>> = file.names().map(|name| file.tensor(name).unwrap()).collect();
    let stem = "model.layers.0.mlp";
    let k = 2 * file.tensor(&format!("{stem}.gate_proj.weight")).unwrap().shape[1];
    let scale: Vec<f32> = (0..k).map(|i| 0.25 + (i % 13) as f32 / 3.0).collect();
    for part in ["gate_proj", "up_proj"] {
        tensors.push(Tensor::from_f32(format!("{stem}.{part}.pre_quant_scale"), [k], scale.clone()));
    }
    tensors::write(place("scaled.safetensors"), &tensors, None).unwrap();
    let numbers: Vec<f32> = (0..3 * k).map(|i| (i as f32).sin()).collect();
    let products: Vec<f32> = numbers.iter().enumerate().map(|(i, x)| x * scale[i % k]).collect();
    let run = |model: &Path, tokens: Vec<f32>| {
        tensors::write(place("tokens.safetensors"), &[Tensor::from_f32("a", [3, k], tokens)], None).unwrap();
        let (tokens, out) = (place("tokens.safetensors"), place("out.safetensors"));
        let args = ["run", "--checkpoint", path(model), "--layer", "0", "--tokens", path(&tokens), "--result", "f32"];
        let output = hammerhead(args.into_iter().chain(["--output", path(&out)]));
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!stderr(&output).contains("pre_quant_scale"), "{}", stderr(&output));
        values(&File::open(&out).unwrap(), "c")
    };
    assert_eq!(run(&place("scaled.safetensors"), numbers.clone()), run(&plain, products));
    assert_ne!(run(&place("scaled.safetensors"), numbers.clone()), run(&plain, numbers));
    // Computed from bf16 tokens of its own making, and checked against the reference.
    succeed(["run", "--checkpoint", path(&place("scaled.safetensors")), "--layer", "0", "--m", "5"]);
}

/// A matrix of a model as its package decodes it.
fn matrix(file: &File, name: &str) -> (Vec<f64>, usize) {
    (values(file, name), file.tensor(name).unwrap().shape[1])
}

fn product((matrix, k): &(Vec<f64>, usize), x: &[f64]) -> Vec<f64> {
    matrix.chunks(*k).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

#[test]
fn a_whole_layer_is_what_its_package_s_matrices_make_of_tokens() {
    let (folder, model) = (tempdir().unwrap(), data("modelopt_qwen3_moe"));
    let [tokens, out, packed, again] =
        ["x", "y", "packed", "again"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let (k, ids, weights) = (64, [[0i32, 3], [2, -1], [1, 1]], [0.5f32, 0.75, 1.0, 9.0, 0.25, 0.5]);
    let x: Vec<f32> = (0..3 * k).map(|i| (i as f32 * 0.3).sin()).collect();
    let id_bytes: Vec<u8> = ids.iter().flatten().flat_map(|id| id.to_le_bytes()).collect();
    let given = [
        Tensor::from_f32("x", [3, k], x.clone()),
        Tensor::from_bytes("ids", Dtype::I32, [3, 2], &id_bytes),
        Tensor::from_f32("weights", [3, 2], weights.to_vec()),
    ];
    tensors::write(&tokens, &given, None).unwrap();
    let run = ["run", "--checkpoint", path(&model), "--layer", "0", "--whole"];
    let save = ["--save", path(&packed)];
    succeed(run.iter().chain(&["--tokens", path(&tokens), "--output", path(&out), "--result", "f32"]).chain(&save));
    succeed(["run", "--packed", path(&packed), "--input", path(&tokens), "--output", path(&again), "--result", "f32"]);
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&again).unwrap());
    let found = values(&File::open(&out).unwrap(), "y");
    let theirs = File::open(data("modelopt_qwen3_moe.expected.safetensors")).unwrap();
    for (token, ids) in ids.iter().enumerate() {
        let x: Vec<f64> = x[token * k..][..k].iter().map(|&x| x.into()).collect();
        let mut expected = vec![0.0; k];
        for (j, expert) in ids.iter().enumerate().filter(|(_, id)| **id >= 0) {
            let part = |part| matrix(&theirs, &format!("model.layers.0.mlp.experts.{expert}.{part}_proj.weight"));
            let (gate, up) = (product(&part("gate"), &x), product(&part("up"), &x));
            let h: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let weight = f64::from(weights[2 * token + j]);
            expected.iter_mut().zip(product(&part("down"), &h)).for_each(|(sum, y)| *sum += weight * y);
        }
        let largest = expected.iter().fold(0f64, |largest, y| largest.max(y.abs()));
        for (found, expected) in found[token * k..][..k].iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5 * largest, "token {token}: {found}, not {expected}");
        }
    }
    let report: Value = serde_json::from_str(&succeed(run.iter().chain(&["--m", "9", "--json"]))).unwrap();
    assert_eq!((&report["routing"], &report["compared"]), (&"softmax, top 2".into(), &(4 * k).into()));
    let dense = data("modelopt_dense");
    let text = succeed(["run", "--checkpoint", path(&dense), "--layer", "0", "--whole"]);
    assert!(text.contains("one MLP") && text.contains("right in"), "{text}");
}

#[test]
fn a_whole_layer_is_explained_by_its_plan_or_by_those_of_its_products() {
    let model = data("modelopt_qwen3_moe");
    let run = ["run", "--checkpoint", path(&model), "--layer", "0", "--whole", "--m", "3", "--explain"];
    let text = succeed(run.iter().chain(&["--backend", "scalar"]));
    assert_eq!(text.matches("taken: scalar").count(), 2, "{text}");
    for family in ["sim", "sim:sm80", "sim:sm_100a", "sim:sm_120a"] {
        let text = succeed(run.iter().chain(&["--backend", family]));
        let words = ["3 tokens, 2 of 4 experts, ", "legal ways were weighed", ",down=", "right in"];
        assert!(words.iter().all(|word| text.contains(word)), "{family}: {text}");
    }
    let json = succeed(run.iter().chain(&["--backend", "sim", "--json", "--config", "tile=8x64"]));
    let report: Value = serde_json::from_str(&json).unwrap();
    let ways = report["considered"][0].as_array().unwrap();
    assert!(ways.iter().all(|way| way["config"].as_str().unwrap().contains("tile=8x64")), "{json}");
    let refused = hammerhead(run.iter().chain(&["--backend", "sim", "--config", "schedule=tile"]));
    assert_refused(&refused, &["schedule=persistent"]);
}

#[test]
fn inspect_tells_how_experts_are_chosen_and_whether_layers_are_whole() {
    let report = inspect("modelopt_qwen3_moe");
    assert_eq!((&report["routing"], &report["layers"][0]["down"]), (&"softmax, top 2".into(), &4.into()));
    assert_eq!(inspect("modelopt_dense")["routing"], Value::Null);
    assert!(succeed(["inspect", path(&data("modelopt_qwen3_moe"))]).contains("whole"));
}

#[test]
fn the_suite_of_models_is_checked_and_goes_with_nothing_that_it_cannot_use() {
    let verify =
        ["verify", "--suite", "moe", "--model", "gpt-oss-20b", "--model", "deepseek-v3", "--backend", "scalar"];
    let report: Value = serde_json::from_str(&succeed(verify.iter().chain(&["--json"]))).unwrap();
    assert_eq!((&report["passed"], &report["failed"]), (&12.into(), &0.into()));
    for (more, fragments) in [
        (&["verify", "--model", "glm-4.5"][..], &["--model", "--suite moe"][..]),
        (&["verify", "--suite", "moe", "--gate", "silu"], &["--gate"]),
        (&["bench", "--suite", "moe", "--suite", "dual"], &["a run of their own"]),
        (&["bench", "--suite", "moe", "--scaling"], &["--scaling"]),
        (&["bench", "--suite", "moe", "--activation", "nvfp4"], &["nvfp4"]),
        (&["run", "--suite", "moe"], &["verify or bench"]),
    ] {
        assert_refused(&hammerhead(more), fragments);
    }
}
