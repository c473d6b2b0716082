//! `hammerhead doctor`: what it finds in checkpoints that the real packages wrote, and in copies that were broken one
//! way each.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{assert_refused, hammerhead, stderr, stdout, succeed};
use format::tensors::{self, Dtype, File, Tensor};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

fn data(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../format/tests/data").join(model)
}

/// The report of a model; the exit status must be that of its findings.
fn examine(path: &Path) -> Value {
    let output = hammerhead(["doctor".as_ref(), path.as_os_str(), "--json".as_ref()]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let expected = i32::from(report["errors"] != 0);
    assert_eq!(output.status.code(), Some(expected), "{}", stderr(&output));
    report
}

fn codes(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|finding| finding["code"].as_str().unwrap()).collect()
}

fn finding<'r>(report: &'r Value, code: &str) -> &'r Value {
    let mut findings = report["findings"].as_array().unwrap().iter();
    findings.find(|finding| finding["code"] == code).unwrap_or_else(|| panic!("no {code} in {report:#}"))
}

type Tensors = Vec<Tensor<'static>>;

/// A copy of a model whose tensors and whose config.json are changed.
fn changed(model: &str, tensors: impl Fn(&mut Tensors), config: impl Fn(&mut Value)) -> TempDir {
    let folder = tempdir().unwrap();
    for entry in fs::read_dir(data(model)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config(&mut value);
    fs::write(&path, value.to_string()).unwrap();
    let path = folder.path().join("model.safetensors");
    let file = File::open(&path).unwrap();
    let owned = |name: &str| {
        let Tensor { name, dtype, shape, bytes } = file.tensor(name).unwrap();
        Tensor { name, dtype, shape, bytes: bytes.into_owned().into() }
    };
    let mut all: Tensors = file.names().map(owned).collect();
    tensors(&mut all);
    tensors::write(&path, &all, file.metadata().cloned()).unwrap();
    folder
}

fn tensor<'t>(tensors: &'t mut Tensors, ending: &str) -> &'t mut Tensor<'static> {
    tensors.iter_mut().find(|tensor| tensor.name.ends_with(ending)).unwrap()
}

fn set(tensors: &mut Tensors, ending: &str, change: impl Fn(f32) -> f32) {
    let bytes = tensor(tensors, ending).bytes.to_mut();
    let value = f32::from_le_bytes(bytes[..4].try_into().unwrap());
    bytes[..4].copy_from_slice(&change(value).to_le_bytes());
}

fn set_scale(tensors: &mut Tensors, change: impl Fn(u8) -> u8) {
    let bytes = tensor(tensors, "mlp.gate_proj.weight_scale").bytes.to_mut();
    bytes[3] = change(bytes[3]);
}

fn remove(tensors: &mut Tensors, part: &str) {
    let before = tensors.len();
    tensors.retain(|tensor| !tensor.name.contains(part));
    assert!(tensors.len() < before, "{part}");
}

fn add(tensors: &mut Tensors, name: &str, values: Vec<f32>) {
    let shape: Vec<usize> = if values.len() == 1 { vec![] } else { vec![values.len()] };
    tensors.push(Tensor::from_f32(format!("model.layers.0.{name}"), shape, values));
}

/// Makes the up projection a plain one.
fn expand_up(tensors: &mut Tensors) {
    remove(tensors, "mlp.up_proj.");
    let name = "model.layers.0.mlp.up_proj.weight";
    tensors.push(Tensor::from_bytes(name, Dtype::BF16, vec![112, 256], vec![0; 2 * 112 * 256]));
}

fn no_tensors(_: &mut Tensors) {}

fn no_config(_: &mut Value) {}

/// A code, its grade, the first name, and how modelopt_dense is broken so that it is found.
type Case = (&'static str, &'static str, &'static str, fn(&mut Tensors), fn(&mut Value));

const CASES: [Case; 31] = [
    ("scale-nan", "error", "mlp.gate_proj", |t| set_scale(t, |_| 0x7F), no_config),
    ("scale-negative", "error", "mlp.gate_proj", |t| set_scale(t, |scale| scale | 0x80), no_config),
    ("scale-zero", "warning", "mlp.gate_proj", |t| set_scale(t, |_| 0), no_config),
    ("global-broken", "error", "mlp.up_proj", |t| set(t, "mlp.up_proj.weight_scale_2", |_| 0.0), no_config),
    ("global-broken", "error", "mlp.up_proj", |t| set(t, "mlp.up_proj.weight_scale_2", |_| f32::NAN), no_config),
    ("global-broken", "error", "mlp.up_proj", |t| set(t, "mlp.up_proj.weight_scale_2", |_| f32::INFINITY), no_config),
    ("global-inverted", "error", "mlp.down_proj", |t| set(t, "down_proj.weight_scale_2", f32::recip), no_config),
    ("globals-differ", "warning", "0 gate/up", |t| set(t, "mlp.up_proj.weight_scale_2", |g| 2.0 * g), no_config),
    ("globals-differ", "warning", "0 q/k/v", |t| set(t, "k_proj.weight_scale_2", |g| 2.0 * g), no_config),
    ("input-scale-broken", "error", "mlp.down_proj", |t| set(t, "down_proj.input_scale", |_| f32::NAN), no_config),
    ("input-scale-inverted", "error", "mlp.down_proj", |t| set(t, "down_proj.input_scale", |_| 5e3), no_config),
    ("input-scale-missing", "warning", "mlp.down_proj", |t| remove(t, "down_proj.input_scale"), no_config),
    ("input-scale-differs", "warning", "gate_proj/up_proj", |t| set(t, "up_proj.input_scale", |s| 2.0 * s), no_config),
    ("awq", "warning", "mlp.gate_proj", |t| both_vectors(t, 0.5), no_config),
    ("awq-differs", "warning", "gate_proj/up_proj", |t| both_vectors(t, 2.0), no_config),
    ("awq-half", "error", "gate_proj/up_proj", |t| add(t, "mlp.up_proj.pre_quant_scale", vec![0.5; 256]), no_config),
    ("orphan-scales", "error", "mlp.up_proj", |t| t.retain(|t| !t.name.ends_with("up_proj.weight")), no_config),
    ("orphan-codes", "error", "o_proj", |t| t.retain(|t| !t.name.ends_with("o_proj.weight_scale")), no_config),
    ("incomplete-weight", "error", "mlp.up_proj", |t| remove(t, "up_proj.weight_scale_2"), no_config),
    ("refused", "error", "mlp.gate_proj", |t| remove(t, "up_proj."), no_config),
    ("ambiguous", "warning", "mlp.down_proj", no_tensors, |c| declare(c, "quant_method", json!("compressed-tensors"))),
    ("group-mixed", "warning", "gate_proj/up_proj", expand_up, no_config),
    ("mixed-precision", "note", "BF16", expand_up, no_config),
    ("declared-quantised", "warning", "mlp.up_proj", expand_up, no_config),
    ("declared-left-out", "warning", "o_proj", no_tensors, |c| declare(c, "ignore", json!(["re:.*o_proj$"]))),
    ("declared-twice", "warning", "config.json", no_tensors, |c| declare(c, "ignore", json!([]))),
    ("declared-algorithm", "warning", "mlp.down_proj", no_tensors, |c| declare(c, "quant_algo", json!("MXFP4"))),
    ("tied-head", "warning", "lm_head", no_tensors, |c| c["tie_word_embeddings"] = json!(true)),
    ("kv-scale-broken", "error", "k_proj.k_scale", |t| cache(t, &[("k", -1.0), ("v", 1.0)]), no_config),
    ("kv-scale-half", "warning", "v_proj.v_scale", |t| cache(t, &[("v", 1.0)]), no_config),
    ("mtp", "note", "mlp.down_proj", no_tensors, |c| c["num_hidden_layers"] = json!(0)),
];

/// A vector for gate, and one for up whose first number is another.
fn both_vectors(tensors: &mut Tensors, first: f32) {
    let mut vector = vec![0.5; 256];
    add(tensors, "mlp.gate_proj.pre_quant_scale", vector.clone());
    vector[0] = first;
    add(tensors, "mlp.up_proj.pre_quant_scale", vector);
}

fn declare(config: &mut Value, key: &str, value: Value) {
    config["quantization_config"][key] = value;
}

fn cache(tensors: &mut Tensors, scales: &[(&str, f32)]) {
    for (of, scale) in scales {
        add(tensors, &format!("self_attn.{of}_proj.{of}_scale"), vec![*scale]);
    }
}

#[test]
fn what_the_real_packages_wrote_has_no_errors_and_only_these_findings() {
    for (model, expected) in [
        ("modelopt_dense", &["size-refused", "size-padded"][..]),
        ("modelopt_qwen3_moe", &["size-refused", "size-padded"]),
        ("modelopt_llama4", &["size-refused", "size-padded"]),
        ("modelopt_awq", &["size-refused", "awq", "size-padded"]),
        ("compressed_tensors_dense", &["size-refused", "globals-differ", "mixed-precision", "size-padded"]),
        ("compressed_tensors_mixtral", &["size-refused", "globals-differ", "mixed-precision", "size-padded"]),
        ("compressed_tensors_mxfp4", &[]),
        ("gpt_oss", &[]),
        ("gguf_moe.gguf", &["scale-zero", "mixed-precision", "globals-apart"]),
        ("torchao", &["globals-apart"]),
    ] {
        let report = examine(&data(model));
        assert_eq!(codes(&report), expected, "{model}");
        assert_eq!(report["errors"], 0, "{model}");
    }
}

#[test]
fn a_copy_that_is_broken_in_one_way_has_the_finding_of_that_way() {
    let healthy = examine(&data("modelopt_dense"));
    for (code, grade, name, tensors, config) in CASES {
        assert!(!codes(&healthy).contains(&code), "{code}");
        let report = examine(changed("modelopt_dense", tensors, config).path());
        let finding = finding(&report, code);
        assert_eq!(finding["grade"], grade, "{code}");
        let first = finding["names"][0].as_str().unwrap();
        assert!(first.ends_with(name), "{code}: {first}");
        assert!(
            finding["says"].as_str().unwrap().ends_with('.') || code == "refused" || code == "ambiguous",
            "{finding}"
        );
    }
}

#[test]
fn merging_is_off_by_the_ratio_of_the_global_scales() {
    let double = |t: &mut Tensors| set(t, "mlp.up_proj.weight_scale_2", |global| 2.0 * global);
    let report = examine(changed("modelopt_dense", double, no_config).path());
    let merge = &report["merges"][0];
    assert_eq!((&merge["what"], &merge["keeps"]), (&json!("gate/up"), &json!("largest")));
    // The gate is read twice as large as it is, up as it is.
    assert_eq!(merge["largest_error"], 1.0);
    let weights = File::open(data("modelopt_dense.expected.safetensors")).unwrap();
    let squares = |name: &str| -> f64 {
        let bytes = weights.tensor(&format!("model.layers.0.mlp.{name}.weight")).unwrap().bytes;
        bytes.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)).powi(2)).sum()
    };
    let (gate, up) = (squares("gate_proj"), 4.0 * squares("up_proj"));
    let (estimate, truth) = (merge["frobenius_error"].as_f64().unwrap(), (gate / (gate + up)).sqrt());
    assert!((estimate / truth - 1.0).abs() < 0.02, "{estimate}, not {truth}");
    assert_eq!(report["loaders"][1]["verdict"], "wrong");
    // compressed-tensors stores divisors, and the largest of these is kept: gate is read half as large.
    let double = |t: &mut Tensors| {
        let gate =
            f32::from_le_bytes(tensor(t, "layers.0.mlp.gate_proj.weight_global_scale").bytes[..4].try_into().unwrap());
        set(t, "layers.0.mlp.up_proj.weight_global_scale", |_| 2.0 * gate);
    };
    let report = examine(changed("compressed_tensors_dense", double, no_config).path());
    let merge = &report["merges"][0];
    assert_eq!((&merge["keeps"], &merge["largest_error"]), (&json!("largest divisor"), &json!(0.5)));
}

#[test]
fn experts_are_read_with_the_gate_s_scale_and_without_any_by_transformers() {
    let report = examine(&data("compressed_tensors_mixtral"));
    assert_eq!(report["merges"][0]["keeps"], "gate's");
    assert_eq!(report["merges"][0]["differing"], 3);
    let [transformers, vllm, llama] = [0, 1, 2].map(|at| &report["loaders"][at]);
    assert_eq!((&transformers["name"], &transformers["verdict"]), (&json!("transformers 5.22.2"), &json!("wrong")));
    assert!(transformers["says"].as_str().unwrap().contains("3.32e4 to 4.31e4 times too large"), "{transformers}");
    assert_eq!((&vllm["name"], &vllm["verdict"]), (&json!("vLLM 0.32.0"), &json!("wrong")));
    assert_eq!((&llama["name"], &llama["verdict"]), (&json!("llama.cpp b10586"), &json!("refuses")));
    let unsettled = examine(changed("modelopt_dense", |t| both_vectors(t, 0.5), no_config).path());
    assert_eq!(unsettled["loaders"][1]["verdict"], "unknown", "vLLM takes the algorithm, and has no pre_quant_scale");
    let awq = examine(&data("modelopt_awq"));
    assert!(awq["loaders"][1]["says"].as_str().unwrap().contains("NVFP4_AWQ"), "{awq}");
}

#[test]
fn sizes_are_named_where_the_rules_of_others_do_not_take_them() {
    let report = examine(&data("modelopt_dense"));
    let refused = finding(&report, "size-refused");
    assert_eq!(refused["names"], json!(["model.layers.0.mlp.down_proj"]), "its K is 112, the others' 256 or 64");
    assert!(!codes(&examine(&data("compressed_tensors_mxfp4"))).contains(&"size-padded"));
}

#[test]
fn declarations_of_a_cache_and_of_any_quantisation_are_held_against_the_tensors() {
    let scales = |t: &mut Tensors| cache(t, &[("k", 1.0), ("v", 1.0)]);
    let scheme = |c: &mut Value| declare(c, "kv_cache_scheme", json!({"num_bits": 8, "type": "float"}));
    for (scales, scheme, is_found) in [
        (&scales as &dyn Fn(&mut Tensors), &no_config as &dyn Fn(&mut Value), true),
        (&no_tensors, &scheme, true),
        (&scales, &scheme, false),
    ] {
        let report = examine(changed("modelopt_dense", scales, scheme).path());
        assert_eq!(codes(&report).contains(&"kv-scale-declared"), is_found);
    }
    let silent = |c: &mut Value| c["quantization_config"] = Value::Null;
    let report = examine(changed("compressed_tensors_dense", no_tensors, silent).path());
    assert_eq!(finding(&report, "undeclared")["count"], 11);
    // An expression beyond what is understood leads to no conclusion.
    let beyond = |c: &mut Value| declare(c, "ignore", json!(["re:(model|x)\\..*up_proj"]));
    let report = examine(changed("modelopt_dense", expand_up, beyond).path());
    assert!(!codes(&report).contains(&"declared-quantised"));
}

#[test]
fn a_tensor_outside_the_index_and_a_shard_that_is_missing_are_found() {
    let folder = tempdir().unwrap();
    for entry in fs::read_dir(data("modelopt_qwen3_moe")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    assert!(!codes(&examine(folder.path())).contains(&"index-unlisted"));
    let index = folder.path().join("model.safetensors.index.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let router = "model.layers.0.mlp.gate.weight";
    value["weight_map"].as_object_mut().unwrap().remove(router).unwrap();
    fs::write(&index, value.to_string()).unwrap();
    assert_eq!(finding(&examine(folder.path()), "index-unlisted")["names"], json!([router]));
    fs::remove_file(folder.path().join("model-00002-of-00004.safetensors")).unwrap();
    let says = examine(folder.path());
    assert!(finding(&says, "unreadable")["says"].as_str().unwrap().contains("model-00002-of-00004"), "{says}");
}

#[test]
fn no_damage_to_a_file_makes_it_panic() {
    for (model, file) in [("modelopt_dense/model.safetensors", "model.safetensors"), ("gguf_moe.gguf", "model.gguf")] {
        let bytes = fs::read(data(model)).unwrap();
        let folder = tempdir().unwrap();
        let path = folder.path().join(file);
        for cut in [0, 7, 8, 100, 3000, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&path, &bytes[..cut]).unwrap();
            assert_eq!(codes(&examine(&path)), ["unreadable"], "{model} cut at {cut}");
        }
        // Every byte of the header in turn would take minutes; a stride of a prime meets all kinds of fields.
        for at in (0..bytes.len().min(6000)).step_by(499) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x15;
            fs::write(&path, &bytes).unwrap();
            let output = hammerhead(["doctor".as_ref(), path.as_os_str()]);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{model} at {at}: {}", stderr(&output));
        }
    }
    assert_refused(&hammerhead(["doctor", "/no such model"]), &["/no such model"]);
}

#[test]
fn text_fits_a_hundred_columns_and_ends_with_what_is_wrong() {
    let folder = changed("modelopt_dense", |t| set_scale(t, |_| 0x7F), no_config);
    let output = hammerhead(["doctor".as_ref(), folder.path().as_os_str()]);
    let text = stdout(&output);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for fragment in ["1 error, 1 warning, 1 note", "error scale-nan", "1 of 1792 block scales are NaN", "vLLM 0.32.0"] {
        assert!(text.contains(fragment), "no {fragment:?} in {text}");
    }
    assert_refused(&output, &["is broken", "1 finding of grade error"]);
    let healthy = succeed(["doctor".as_ref(), data("compressed_tensors_dense").as_os_str()]);
    assert!(healthy.lines().all(|line| line.chars().count() <= 100), "{healthy}");
    assert!(healthy.contains("largest divisor"), "{healthy}");
}

#[test]
fn the_page_has_every_finding_and_fetches_nothing() {
    let folder = tempdir().unwrap();
    let page = folder.path().join("report.html");
    succeed(["doctor".as_ref(), data("compressed_tensors_dense").as_os_str(), "--html".as_ref(), page.as_os_str()]);
    let html = fs::read_to_string(&page).unwrap();
    for fragment in ["globals-differ", "largest divisor", "90.8 %", "transformers 5.22.2: exact", "</html>"] {
        assert!(html.contains(fragment), "no {fragment:?} in {html}");
    }
    for outside in ["<script", "http://", "https://", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    let model = data("gpt_oss");
    let nowhere = hammerhead(["doctor", model.to_str().unwrap(), "--html", "/no such folder/page.html"]);
    assert_refused(&nowhere, &["/no such folder/page.html"]);
}
