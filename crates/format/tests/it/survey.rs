//! The survey of a checkpoint counts what the reader reads, whichever way scales are laid out, and goes on where that
//! refuses.

use std::fs;
use std::path::{Path, PathBuf};

use hammerhead_format::checkpoint::{Checkpoint, Options, Survey};
use hammerhead_format::e4m3;
use hammerhead_format::tensors::{self, Dtype, File, Tensor};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn survey(path: &Path) -> Survey {
    Survey::open(path, &Options::default()).unwrap()
}

/// Blocks, lost blocks and the largest scale, as the matrices that the reader gives have them.
fn read(path: &Path) -> (usize, usize, f32) {
    let model = Checkpoint::open(path).unwrap();
    let (mut count, mut lost, mut largest) = (0, 0, 0.0f32);
    for weight in model.weights().unwrap() {
        let matrix = model.matrix(&weight).unwrap();
        for (&scale, codes) in matrix.scales().iter().zip(matrix.codes().chunks_exact(8)) {
            count += 1;
            lost += usize::from(scale & 0x7F == 0 && codes.iter().any(|code| code & 0x77 != 0));
            largest = largest.max(e4m3::decode(scale));
        }
    }
    (count, lost, largest)
}

fn counted(path: &Path) -> (usize, usize, f32) {
    let survey = survey(path);
    let modules = survey.modules();
    assert!(modules.iter().all(|module| module.problem.is_none()));
    let blocks = || modules.iter().filter_map(|module| module.blocks);
    let largest = blocks().map(|blocks| blocks.largest).fold(0.0, f64::max);
    (blocks().map(|blocks| blocks.count).sum(), blocks().map(|blocks| blocks.zero).sum(), largest as f32)
}

/// A copy of a model of one file in which every so many-th block scale is zero.
fn with_zeros(model: &str, every: usize) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("survey_{model}"));
    fs::create_dir_all(&folder).unwrap();
    fs::copy(data(model).join("config.json"), folder.join("config.json")).unwrap();
    let file = File::open(data(model).join("model.safetensors")).unwrap();
    let zeroed = |name: &str| {
        let mut tensor = file.tensor(name).unwrap();
        if tensor.dtype == Dtype::F8_E4M3 {
            tensor.bytes.to_mut().iter_mut().step_by(every).for_each(|byte| *byte = 0);
        }
        tensor
    };
    let tensors: Vec<Tensor<'_>> = file.names().map(zeroed).collect();
    tensors::write(folder.join("model.safetensors"), &tensors, file.metadata().cloned()).unwrap();
    folder
}

#[test]
fn a_survey_counts_the_scales_that_the_reader_reads() {
    for model in ["modelopt_dense", "modelopt_llama4", "compressed_tensors_mixtral", "torchao"] {
        assert_eq!(counted(&data(model)), read(&data(model)), "{model}");
    }
}

#[test]
fn blocks_that_are_lost_are_found_row_major_transposed_and_blocked() {
    for model in ["modelopt_dense", "modelopt_llama4", "torchao"] {
        let path = with_zeros(model, 5);
        let (_, lost, _) = counted(&path);
        assert!(lost > 0, "{model}");
        assert_eq!(counted(&path), read(&path), "{model}");
    }
}

#[test]
fn lost_blocks_of_gguf_are_found_among_its_codes() {
    let survey = survey(&data("gguf_moe.gguf"));
    let modules = survey.modules();
    let model = Checkpoint::open(data("gguf_moe.gguf")).unwrap();
    let weights = model.weights().unwrap();
    for name in ["model.layers.0.mlp.shared_expert.gate_proj", "model.layers.0.mlp.shared_expert.down_proj"] {
        let module = modules.iter().find(|module| module.name == name).unwrap();
        let weight = weights.iter().find(|weight| weight.name == format!("{name}.weight")).unwrap();
        let matrix = model.matrix(weight).unwrap();
        let blocks = matrix.scales().iter().zip(matrix.codes().chunks_exact(8));
        let lost = blocks.filter(|(scale, codes)| **scale == 0 && codes.iter().any(|code| code & 0x77 != 0)).count();
        assert_eq!(module.blocks.unwrap().zero, lost, "{name}");
    }
}
