//! Whole models as the real packages write them: what is found in them, and that every quantised matrix decodes to what
//! the package itself decodes it to.

use std::fs;
use std::path::{Path, PathBuf};

use hammerhead_format::checkpoint::{
    Arrangement, Checkpoint, Content, Format, GateFunction, GateUpOrder, Options, Precision, Role,
};
use hammerhead_format::tensors::{File, Tensor};
use hammerhead_format::{Error, GlobalScale};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(data(name)).unwrap()
}

/// Every tensor of the expected file is among the checkpoint's weights, with the same shape and the same values.
fn assert_decodes_as_expected(model: &Checkpoint, expected: &Path) {
    let (weights, expected) = (model.weights().unwrap(), File::open(expected).unwrap());
    assert!(expected.names().count() > 0);
    for name in expected.names() {
        let weight = weights.iter().find(|weight| weight.name == name).unwrap_or_else(|| panic!("no {name}"));
        let theirs = expected.tensor(name).unwrap();
        assert_eq!(theirs.shape, weight.shape, "{name}");
        let theirs: Vec<f32> = theirs.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let ours = model.matrix(weight).unwrap().dequantize();
        assert!(theirs.iter().any(|&value| value != 0.0), "{name}");
        for (at, (&ours, &theirs)) in ours.iter().zip(&theirs).enumerate() {
            let (ours, theirs) = (f64::from(ours), f64::from(theirs));
            assert!((ours - theirs).abs() <= theirs.abs() * 2f64.powi(-22), "{name}[{at}]: {ours:e}, not {theirs:e}");
        }
    }
}

fn quantised(format: Format) -> Content {
    Content::Quantised { format, precision: Precision::NvFp4 }
}

#[test]
fn a_modelopt_model_is_read_as_modelopt_reads_it() {
    let model = open("modelopt_dense");
    assert_decodes_as_expected(&model, &data("modelopt_dense.expected.safetensors"));
    assert_eq!(model.model_type(), Some("llama"));
    assert_eq!(model.gate(0), GateFunction::Silu);
    assert_eq!((model.tower(), model.layers().len()), ("model.layers", 1));
    let pair = &model.layers()[0].pairs[0];
    assert_eq!(
        (pair.role, pair.arrangement, &pair.content),
        (Role::Dense, Arrangement::Apart, &quantised(Format::ModelOpt))
    );
    let layer = model.layer(0).unwrap();
    assert_eq!((layer.experts.len(), layer.shared.len(), layer.has_bias), (1, 0, false));
    assert_eq!((layer.experts[0].gate.rows(), layer.experts[0].gate.k()), (112, 256));
}

#[test]
fn a_compressed_tensors_model_is_read_as_compressed_tensors_reads_it() {
    let model = open("compressed_tensors_dense");
    assert_decodes_as_expected(&model, &data("compressed_tensors_dense.expected.safetensors"));
    let pair = &model.layers()[0].pairs[0];
    assert_eq!(pair.content, quantised(Format::CompressedTensors));
    let stored = File::open(data("compressed_tensors_dense/model.safetensors")).unwrap();
    let divisor = stored.tensor("model.layers.0.mlp.up_proj.weight_global_scale").unwrap().scalar_f32().unwrap();
    assert_eq!(model.global(&pair.up).unwrap(), GlobalScale::Divides(divisor));
}

#[test]
fn experts_are_found_in_shards() {
    let model = open("modelopt_qwen3_moe");
    assert!(model.files().count() > 1);
    assert_decodes_as_expected(&model, &data("modelopt_qwen3_moe.expected.safetensors"));
    let layers: Vec<(usize, usize)> = model.layers().iter().map(|l| (l.index, l.pairs.len())).collect();
    assert_eq!(layers, [(0, 4), (1, 1)]);
    let layer = model.layer(0).unwrap();
    assert_eq!(layer.experts[3].name, "model.layers.0.mlp.experts.3");
    assert_eq!(layer.experts[3].up.codes(), model.expert(0, 3).unwrap().up.codes());
    assert_eq!(model.layers()[1].pairs[0].role, Role::Dense);
}

#[test]
fn experts_of_awq_bring_the_vector_that_tokens_are_multiplied_with() {
    let model = open("modelopt_awq");
    assert_decodes_as_expected(&model, &data("modelopt_awq.expected.safetensors"));
    let stored = File::open(data("modelopt_awq/model.safetensors")).unwrap();
    let vector = stored.tensor("model.layers.0.mlp.experts.1.up_proj.pre_quant_scale").unwrap();
    let mut expected = vec![0.0; 32];
    let shape = vec![1, 32];
    Tensor { shape, ..vector }.into_dense(1.0).unwrap().row(0, &mut expected);
    let layer = model.layer(0).unwrap();
    assert_eq!(layer.experts[1].pre_scale.as_deref(), Some(&expected[..]));
    assert_eq!(expected[..2], [1.125, 1.203125]);
    assert!(model.layers()[0].pairs.iter().all(|pair| pair.has_pre_scale));
    // That of the dense layer went into its norm.
    assert_eq!(model.expert(1, 0).unwrap().pre_scale, None);
}

#[test]
fn w1_is_gate_w3_is_up_and_the_parts_of_a_weight_may_lie_in_different_shards() {
    let model = open("compressed_tensors_mixtral");
    assert_decodes_as_expected(&model, &data("compressed_tensors_mixtral.expected.safetensors"));
    let pair = &model.layers()[0].pairs[1];
    assert_eq!(
        (pair.role, pair.gate.name.as_str()),
        (Role::Expert(1), "model.layers.0.block_sparse_moe.experts.1.w1.weight")
    );
    assert_eq!(pair.up.name, "model.layers.0.block_sparse_moe.experts.1.w3.weight");
    assert!(model.layers()[0].pairs.iter().any(|pair| model.files_of(&pair.gate).len() > 1));
    assert!(model.weights().unwrap().iter().all(|weight| !weight.name.contains("experts.2.w2")));
}

#[test]
fn fused_stacked_and_transposed_experts_are_taken_apart() {
    let model = open("modelopt_llama4");
    assert_decodes_as_expected(&model, &data("modelopt_llama4.expected.safetensors"));
    let layer = model.layer(0).unwrap();
    assert_eq!((layer.experts.len(), layer.shared.len()), (3, 1));
    assert_eq!(layer.shared[0].name, "model.layers.0.feed_forward.shared_expert");
    assert_eq!((layer.experts[0].gate.rows(), layer.experts[0].gate.k()), (32, 96));
    assert_eq!(model.layers()[0].pairs[0].arrangement, Arrangement::Fused(GateUpOrder::GateFirst));
}

#[test]
fn gpt_oss_comes_row_by_row_with_its_own_gate_and_widened_exactly() {
    let model = open("gpt_oss");
    assert_decodes_as_expected(&model, &data("gpt_oss.expected.safetensors"));
    let pair = &model.layers()[0].pairs[0];
    assert_eq!(pair.content, Content::Quantised { format: Format::GptOss, precision: Precision::MxFp4 });
    assert_eq!(pair.arrangement, Arrangement::Fused(GateUpOrder::Interleaved));
    let layer = model.layer(0).unwrap();
    assert_eq!(layer.gate, GateFunction::GptOss { clamp: 7.0 });
    assert!(layer.has_bias);
    assert_eq!((layer.experts.len(), layer.experts[0].gate.rows()), (2, 24));
}

#[test]
fn mxfp4_of_compressed_tensors_is_widened_exactly() {
    let model = open("compressed_tensors_mxfp4");
    assert_decodes_as_expected(&model, &data("compressed_tensors_mxfp4.expected.safetensors"));
    let content = Content::Quantised { format: Format::CompressedTensors, precision: Precision::MxFp4 };
    assert_eq!(model.layers()[0].pairs[0].content, content);
}

#[test]
fn deepseek_s_experts_are_found_by_its_own_names_and_types() {
    let model = open("deepseek_v4");
    assert_decodes_as_expected(&model, &data("deepseek_v4.expected.safetensors"));
    assert_eq!((model.tower(), model.layers().len()), ("layers", 2));
    let layer = &model.layers()[0];
    let content = Content::Quantised { format: Format::DeepSeek, precision: Precision::MxFp4 };
    assert!(layer.experts().iter().all(|pair| pair.content == content));
    assert_eq!(layer.experts()[2].name, "layers.0.ffn.experts.2");
    assert_eq!(layer.shared()[0].content, Content::Other("FP8 (F8_E4M3)".to_owned()));
    assert_eq!(model.gate(0), GateFunction::SiluLimited { limit: 10.0 });
    let experts = model.experts(0).unwrap();
    assert_eq!((experts.len(), experts[0].gate.rows(), experts[0].gate.k()), (3, 32, 64));
    let error = model.layer(0).unwrap_err().to_string();
    assert!(error.contains("shared_experts.w1") && error.contains("FP8"), "{error}");
    assert_decodes_as_expected(&open("deepseek_v41"), &data("deepseek_v41.expected.safetensors"));
}

#[test]
fn the_gate_of_a_gguf_file_is_known_by_its_architecture_or_not_guessed() {
    let file = fs::read(data("gguf_moe.gguf")).unwrap();
    let unknown = |name: &str| GateFunction::Other(format!("not declared by a model of type {name:?}"));
    for (name, expected) in [
        ("qwen3moe", GateFunction::Silu),
        ("minicpm3", GateFunction::Silu),
        ("gemma4-x", GateFunction::GeluTanh),
        // ReLU, and xIELU.
        ("smallthi", unknown("smallthi")),
        ("apertus_", unknown("apertus_")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let mut bytes = file.clone();
        let places: Vec<usize> = (0..bytes.len() - 8).filter(|&at| file[at..].starts_with(b"qwen3moe")).collect();
        places.iter().for_each(|&at| bytes[at..at + 8].copy_from_slice(name.as_bytes()));
        fs::write(&path, bytes).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().gate(0), expected, "{name}");
    }
}

#[test]
fn gguf_decodes_as_its_own_package_decodes_it() {
    let model = open("gguf_moe.gguf");
    assert_decodes_as_expected(&model, &data("gguf_moe.expected.safetensors"));
    let layer = model.layer(0).unwrap();
    assert_eq!((layer.experts.len(), layer.shared.len()), (3, 1));
    assert_ne!(layer.experts[0].gate.global(), layer.experts[0].up.global());
    assert_ne!(layer.experts[0].gate.global(), layer.experts[1].gate.global());
    assert_eq!(
        model.layers()[1].pairs[0].content,
        Content::Quantised { format: Format::Gguf, precision: Precision::MxFp4 }
    );
    assert_eq!(model.layers()[2].pairs[0].content, Content::Other("F16".to_owned()));
}

#[test]
fn torchao_s_scales_are_read_row_major_and_blocked() {
    let model = open("torchao");
    assert_decodes_as_expected(&model, &data("torchao.expected.safetensors"));
    assert_eq!(model.layers()[0].pairs[0].content, quantised(Format::TorchAo));
}

#[test]
fn a_layer_that_was_left_out_says_what_it_is() {
    let model = open("compressed_tensors_dense");
    assert_eq!(model.layers()[1].pairs[0].content, Content::Other("BF16".to_owned()));
    let error = model.layer(1).unwrap_err().to_string();
    for fragment in ["model.layers.1.mlp.gate_proj", "BF16", "not NVFP4", "leaves this layer out"] {
        assert!(error.contains(fragment), "{error}");
    }
}

#[test]
fn a_layer_or_expert_that_is_not_there_is_refused_with_those_that_are() {
    let model = open("modelopt_dense");
    let error = model.layer(7).unwrap_err();
    assert!(matches!(error, Error::NoLayer { layer: 7, .. }), "{error}");
    assert!(error.to_string().contains("from 0 to 0"), "{error}");
    assert!(matches!(model.expert(0, 3), Err(Error::NoExpert { layer: 0, expert: 3, .. })));
    assert_eq!(model.expert(0, 0).unwrap().name, "model.layers.0.mlp");
}

#[test]
fn one_file_is_read_like_the_folder_it_is_in() {
    let (folder, file) = (open("modelopt_dense"), open("modelopt_dense/model.safetensors"));
    assert_eq!(folder.layers().len(), file.layers().len());
    assert_eq!(file.model_type(), Some("llama"));
    assert_eq!(file.declared().unwrap().0, "modelopt 0.47.0 NVFP4");
}

#[test]
fn matrices_that_lie_in_their_final_form_are_borrowed_from_the_map() {
    let model = open("modelopt_dense");
    let expert = model.expert(0, 0).unwrap();
    let again = model.expert(0, 0).unwrap();
    assert_eq!(expert.gate.codes().as_ptr(), again.gate.codes().as_ptr());
    assert_eq!(expert.up.scales().as_ptr(), again.up.scales().as_ptr());
}

#[test]
fn modelopt_s_own_declaration_will_do_without_a_config() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "hf_quant_config.json"] {
        fs::copy(data("modelopt_dense").join(name), folder.path().join(name)).unwrap();
    }
    let model = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(model.declared().unwrap().0, "modelopt 0.47.0 NVFP4");
    assert_eq!(model.gate_and_source(None), (GateFunction::Silu, "assumed, since nothing says"));
}

#[test]
fn a_model_whose_files_are_held_is_the_same_as_on_disk() {
    for name in ["modelopt_qwen3_moe", "gguf_moe.gguf"] {
        let path = data(name);
        let paths: Vec<PathBuf> = match path.is_dir() {
            true => fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            false => vec![path.clone()],
        };
        let file = |path: &PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap());
        let held = Checkpoint::open_held(paths.iter().map(file), &Options::default()).unwrap();
        let mapped = open(name);
        assert_eq!(held.model_type(), mapped.model_type());
        let (ours, theirs) = (held.weights().unwrap(), mapped.weights().unwrap());
        assert!(!ours.is_empty() && ours.len() == theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours.name, theirs.name);
            assert_eq!(held.matrix(ours).unwrap().dequantize(), mapped.matrix(theirs).unwrap().dequantize());
        }
    }
}
