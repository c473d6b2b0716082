//! Whole models as the real packages write them: what is found in them, and that every quantised matrix decodes to what
//! the package itself decodes it to.

use std::fs;
use std::path::{Path, PathBuf};

use hammerhead_format::Error;
use hammerhead_format::checkpoint::{Arrangement, Checkpoint, Content, Format, GateFunction, Precision, Role};
use hammerhead_format::tensors::File;

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
    assert_eq!(model.gate(), GateFunction::Silu);
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
    assert_eq!(model.global(&pair.up).unwrap(), 1.0 / divisor);
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
    assert_eq!(model.gate_and_source(), (GateFunction::Silu, "assumed, since nothing says"));
}
