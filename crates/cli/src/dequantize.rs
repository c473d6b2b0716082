//! `hammerhead dequantize`: a checkpoint's quantised weights as ordinary numbers, so that anyone can check what was
//! read.
//!
//! One matrix is in memory at a time, in its quantised form, and one row of numbers.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use format::checkpoint::{Checkpoint, Weight};
use format::tensors::{Dtype, Writer};
use serde::Serialize;

use crate::model::Reading;
use crate::pattern::matches;
use crate::{Error, Result, console, files, table};

/// Write a checkpoint's quantised weights as F32
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Write every quantised weight of a checkpoint, or those that match a pattern, to a safetensors file \
    as F32 [rows, K], under the name it had before it was quantised. Fused and stacked experts are taken apart: \
    `…experts.gate_up_proj` gives `…experts.0.gate_proj.weight`, `…experts.0.up_proj.weight` and so on, and GGUF's \
    `blk.0.ffn_gate_exps` gives `model.layers.0.mlp.experts.0.gate_proj.weight`. What is not quantised is left out.\n\n\
    MODEL is a folder, an index of shards (*.safetensors.index.json), or one .safetensors or .gguf file. Values are \
    (code · block scale) · global scale, rounded once. Where a model multiplies tokens with a vector before they meet a \
    weight (pre_quant_scale, from AWQ), that vector is not folded into the weight, and a note says so. Memory use does not grow with the model; the output takes 7 \
    times the bytes of the quantised weights.\n\n\
    Examples:\n  \
    hammerhead dequantize Qwen3-30B-A3B-NVFP4 layer0.safetensors --tensor 'model.layers.0.mlp.*'\n  \
    hammerhead dequantize model.gguf weights.safetensors"
)]
pub struct Args {
    /// The model to read
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The safetensors file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Only weights whose name matches; `*` stands for any characters, `?` for one; may be given several times
    #[arg(long, value_name = "PATTERN")]
    tensor: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Serialize)]
struct Report {
    weights: Vec<Written>,
    bytes: usize,
    output: String,
}

#[derive(Serialize)]
struct Written {
    name: String,
    shape: [usize; 2],
    /// Whether the model multiplies tokens with a vector before they meet this weight.
    has_pre_scale: bool,
}

/// Writes the weights that match, one after another.
pub fn dequantize(args: &Args) -> Result<()> {
    let model = args.reading.open(&args.model)?;
    for input in model.files() {
        files::check_output(input, &args.output)?;
    }
    let chosen = choose(&model, &args.tensor)?;
    let mut weights = Vec::new();
    for weight in &chosen {
        let has_pre_scale = model.pre_scale(weight)?.is_some();
        weights.push(Written { name: weight.name.clone(), shape: weight.shape, has_pre_scale });
    }
    let described = chosen.iter().map(|weight| (weight.name.as_str(), Dtype::F32, &weight.shape[..]));
    let mut writer = Writer::new(&args.output, described, None)?;
    let bar = console::progress(chosen.len());
    for weight in &chosen {
        bar.set_message(weight.name.clone());
        write(&model, weight, &mut writer)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    writer.finish()?;
    let bytes = chosen.iter().map(|weight| weight.shape[0] * weight.shape[1] * size_of::<f32>()).sum();
    let report = Report { weights, bytes, output: args.output.display().to_string() };
    if args.json {
        return console::print_json(&report);
    }
    console::remark(&format!(
        "{} weights, {} → {}",
        report.weights.len(),
        table::bytes(bytes as f64),
        args.output.display()
    ));
    let scaled = report.weights.iter().filter(|weight| weight.has_pre_scale).count();
    if scaled > 0 {
        console::remark(&format!(
            "note: {scaled} of them are as stored: the model multiplies tokens with its pre_quant_scale before they meet these"
        ));
    }
    Ok(())
}

/// The weights that are to be written, sorted by name.
fn choose(model: &Checkpoint, patterns: &[String]) -> Result<Vec<Weight>> {
    let mut weights = model.weights()?;
    weights.sort_by(|left, right| left.name.cmp(&right.name));
    let none = |pattern: &str| {
        let mut examples: Vec<String> = weights.iter().take(3).map(|weight| format!("{:?}", weight.name)).collect();
        examples.push(format!("{} in all", weights.len()));
        let (path, pattern) = (model.path().to_path_buf(), pattern.to_owned());
        Err(Error::NoWeight { path, pattern, examples: examples.join(", ") })
    };
    for pattern in patterns {
        if !weights.iter().any(|weight| matches(pattern, &weight.name)) {
            return none(pattern);
        }
    }
    if weights.is_empty() {
        return none("*");
    }
    weights.retain(|weight| patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, &weight.name)));
    Ok(weights)
}

fn write(model: &Checkpoint, weight: &Weight, writer: &mut Writer) -> Result<()> {
    let matrix = model.matrix(weight)?;
    let mut values = vec![0.0f32; matrix.k()];
    let mut bytes = vec![0u8; matrix.k() * size_of::<f32>()];
    for row in 0..matrix.rows() {
        matrix.unscaled_row(row, &mut values);
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(&values) {
            *bytes = matrix.global().apply(*value).to_le_bytes();
        }
        writer.push(&bytes)?;
    }
    Ok(())
}
