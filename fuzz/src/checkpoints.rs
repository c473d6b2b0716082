//! What a fuzzer calls with the bytes of a checkpoint: each opens them, held in memory, and reads all that can be read.
//! Errors are fine; panics, endless loops and reads outside the files are not. The tests of `format` replay the corpus
//! through these same functions.

use hammerhead_format::checkpoint::{Checkpoint, GateUpOrder, Options};

/// What a fuzzer calls with bytes.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 3] = [("safetensors", safetensors), ("gguf", gguf), ("folder", folder)];

/// The bytes are one safetensors file.
pub fn safetensors(bytes: &[u8]) {
    read(&[("model.safetensors", bytes)]);
}

/// The bytes are one GGUF file.
pub fn gguf(bytes: &[u8]) {
    read(&[("model.gguf", bytes)]);
}

/// The bytes are a folder: three lengths of two bytes each, then `config.json`, `hf_quant_config.json`, the index of
/// shards and one shard.
pub fn folder(bytes: &[u8]) {
    let Some((lengths, mut rest)) = bytes.split_first_chunk::<6>() else { return };
    let mut part = |at: usize| {
        let length = usize::from(u16::from_le_bytes([lengths[at], lengths[at + 1]])).min(rest.len());
        let (part, after) = rest.split_at(length);
        rest = after;
        part
    };
    let (config, declaration, index) = (part(0), part(2), part(4));
    read(&[
        ("config.json", config),
        ("hf_quant_config.json", declaration),
        ("model.safetensors.index.json", index),
        ("model-00001-of-00001.safetensors", rest),
    ]);
}

/// Reads everything, and again in the way that an option settles where it is not clear.
fn read(files: &[(&str, &[u8])]) {
    let open = |options: &Options| {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes));
        Checkpoint::open_held(files, options).map(|model| read_all(&model))
    };
    if let Err(error) = open(&Options::default()) {
        let message = error.to_string();
        assert!(!message.is_empty());
        if message.contains("--gate-up-order") {
            let _ = open(&Options { gate_up_order: Some(GateUpOrder::Interleaved), ..Options::default() });
        }
    }
}

/// More elements than this are not turned to numbers: that is slow, and tells nothing new.
const FEW: usize = 1 << 12;

fn read_all(model: &Checkpoint) {
    let _ = (model.gate_and_source(None), model.declared(), model.model_type(), model.files().count());
    for layer in model.layers().iter().take(2) {
        if layer.pairs.len() <= 64 {
            let _ = model.layer(layer.index).map(|mlp| mlp.experts.len() + mlp.shared.len());
            let whole = model.feed_forward(layer.index).or_else(|_| model.routed_experts(layer.index));
            if let Ok(whole) = whole {
                let rows = whole.router.map_or(whole.experts.len(), |router| router.weight.rows());
                assert_eq!(rows, whole.experts.len());
                assert!(whole.experts.iter().all(|e| e.down.matrix.k() == e.gate.matrix.rows()));
            }
        }
        if let Ok(pair) = model.expert(layer.index, 0) {
            assert!(pair.pre_scale.is_none_or(|scale| scale.len() == pair.gate.k()));
        }
    }
    for weight in model.weights().unwrap_or_default().iter().take(64) {
        let _ = (model.files_of(weight), model.pre_scale(weight));
        let global = model.global(weight);
        if let Ok(matrix) = model.matrix(weight) {
            assert!(global.is_ok() && matrix.global().value().is_finite());
            assert_eq!([matrix.rows(), matrix.k()], weight.shape);
            if matrix.rows() * matrix.k() <= FEW {
                assert_eq!(matrix.dequantize().len(), matrix.rows() * matrix.k());
            }
        }
    }
}
