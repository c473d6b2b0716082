//! `hammerhead quantize`: a checkpoint's matrices to NVFP4, in the layout that ModelOpt writes.
//!
//! A matrix `X` becomes `X` (U8 [N, K/2], even k in the low nibble), `X_scale` (F8_E4M3 [N, K/16]) and `X_scale_2` (a
//! F32 scalar that multiplies), so `proj.weight` gets ModelOpt's own names `proj.weight_scale` and
//! `proj.weight_scale_2`. Everything else is copied. The input is mapped; the quantised tensors are held in memory
//! until the file is written.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use format::tensors::{self, Dtype, File, Tensor};
use format::{BLOCK, Dense, Loss};
use serde::Serialize;

use crate::pattern::matches;
use crate::table::{self, Table};
use crate::{Error, Result, console, files};

/// Quantise the matrices of a safetensors file to NVFP4
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Quantise every two-dimensional F16, BF16 or F32 tensor of a safetensors file, or those that match \
    a pattern, to NVFP4 in the layout that ModelOpt writes:\n\n  \
    X          U8 [N, K/2]         two codes per byte, even k in the low nibble\n  \
    X_scale    F8_E4M3 [N, K/16]   a scale for every 16 elements\n  \
    X_scale_2  F32 []              a scale for the whole matrix; it multiplies\n\n\
    so `q.weight` becomes `q.weight`, `q.weight_scale` and `q.weight_scale_2`. All other tensors and the file's metadata \
    are copied. A matrix whose K is no multiple of 16 is copied too, and named; if a pattern asks for it, it is an \
    error. Embeddings, routers and scales of other kinds of quantisation are matrices as well: name what you mean with \
    --tensor.\n\n\
    The input is read in place; the quantised tensors are held in memory until they are written, about 0.57 bytes per \
    element.\n\n\
    Examples:\n  \
    hammerhead quantize model.safetensors model-nvfp4.safetensors --tensor '*_proj.weight'\n  \
    hammerhead quantize in.safetensors out.safetensors --tensor 'layers.0.*' --tensor 'layers.1.*' --json"
)]
pub struct Args {
    /// The safetensors file to read
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The safetensors file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Quantise only tensors whose name matches; `*` stands for any characters, `?` for one; may be given several times
    #[arg(long, value_name = "PATTERN")]
    tensor: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    quantised: Vec<Quantised>,
    /// Matrices that were copied because their K is no multiple of 16.
    uneven: Vec<Uneven>,
    /// How many tensors were copied, those included.
    copied: usize,
    bytes_before: usize,
    bytes_after: usize,
}

#[derive(Serialize)]
struct Quantised {
    name: String,
    shape: [usize; 2],
    dtype: String,
    global: f32,
    relative_error: f64,
    rms_error: f64,
    max_error: f64,
}

#[derive(Serialize)]
struct Uneven {
    name: String,
    shape: Vec<usize>,
}

/// Quantises what matches and copies the rest.
pub fn quantize(args: &Args) -> Result<()> {
    files::check_output(&args.input, &args.output)?;
    let file = File::open(&args.input)?;
    let chosen = choose(&file, &args.tensor)?;
    check_names(&file, &chosen)?;
    let mut report = Report { quantised: Vec::new(), uneven: Vec::new(), copied: 0, bytes_before: 0, bytes_after: 0 };
    let mut written: Vec<Tensor<'_>> = Vec::new();
    let bar = console::progress(chosen.len());
    for name in file.names() {
        let tensor = file.tensor(name)?;
        report.bytes_before += tensor.bytes.len();
        if chosen.contains(name) {
            bar.set_message(name.to_owned());
            let (quantised, parts) = quantize_one(file.path(), tensor)?;
            report.quantised.push(quantised);
            written.extend(parts);
            bar.inc(1);
        } else {
            if is_matrix(&tensor) {
                let uneven = Uneven { name: name.to_owned(), shape: tensor.shape.clone() };
                report.uneven.extend(args.tensor.is_empty().then_some(uneven));
            }
            report.copied += 1;
            written.push(tensor);
        }
    }
    bar.finish_and_clear();
    report.bytes_after = written.iter().map(|tensor| tensor.bytes.len()).sum();
    tensors::write(&args.output, &written, file.metadata().cloned())?;
    if args.json { console::print_json(&report) } else { console::print(&text(&report)) }
}

/// The names that are to be quantised.
fn choose<'f>(file: &'f File, patterns: &[String]) -> Result<BTreeSet<&'f str>> {
    for pattern in patterns {
        if !file.names().any(|name| matches(pattern, name)) {
            let mut examples: Vec<String> = file.names().take(3).map(|name| format!("{name:?}")).collect();
            examples.push(format!("{} tensors in all", file.names().count()));
            let (path, pattern) = (file.path().to_path_buf(), pattern.clone());
            return Err(Error::NoMatch { path, pattern, examples: examples.join(", ") });
        }
    }
    let mut chosen = BTreeSet::new();
    for name in file.names() {
        let tensor = file.tensor(name)?;
        let asked = patterns.iter().any(|pattern| matches(pattern, name));
        let by_its_name = patterns.iter().any(|pattern| pattern == name);
        match obstacle(&tensor) {
            None if asked || patterns.is_empty() => {
                chosen.insert(name);
            }
            // A pattern such as `*` may well meet a bias; a matrix of that kind it should not, and a name means it.
            Some(problem) if by_its_name || asked && is_matrix(&tensor) => {
                let (path, name) = (file.path().to_path_buf(), name.to_owned());
                let (dtype, shape) = (tensor.dtype, tensor.shape);
                return Err(Error::Unquantisable { path, name, dtype, shape, problem });
            }
            _ => {}
        }
    }
    Ok(chosen)
}

/// Why a tensor cannot be quantised, if it cannot.
fn obstacle(tensor: &Tensor<'_>) -> Option<&'static str> {
    match tensor.shape[..] {
        _ if !is_float(tensor.dtype) => Some("only F16, BF16 and F32 can be"),
        [_, k] if k > 0 && k % BLOCK == 0 => None,
        [_, _] => Some("K, its second side, is no positive multiple of 16"),
        _ => Some("it is no matrix [N, K]"),
    }
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32)
}

fn is_matrix(tensor: &Tensor<'_>) -> bool {
    is_float(tensor.dtype) && tensor.shape.len() == 2
}

fn scale_names(name: &str) -> [String; 2] {
    [format!("{name}_scale"), format!("{name}_scale_2")]
}

/// Refuses scales whose names are taken.
fn check_names(file: &File, chosen: &BTreeSet<&str>) -> Result<()> {
    let mut made = BTreeSet::new();
    for tensor in chosen {
        for name in scale_names(tensor) {
            if file.contains(&name) || !made.insert(name.clone()) {
                let (path, tensor) = (file.path().to_path_buf(), tensor.to_string());
                return Err(Error::Collision { path, tensor, name });
            }
        }
    }
    Ok(())
}

fn quantize_one(path: &Path, tensor: Tensor<'_>) -> Result<(Quantised, [Tensor<'static>; 3])> {
    let (name, dtype) = (tensor.name.clone(), tensor.dtype);
    let in_tensor = |reason| {
        let (path, name) = (path.to_path_buf(), name.clone());
        format::Error::InTensor { path, name, reason: Box::new(reason) }
    };
    let source: Dense<'_> = tensor.into_dense(1.0).map_err(in_tensor)?;
    let matrix = format::quantize(&source, None).map_err(in_tensor)?;
    let Loss { max_abs, rms, relative } = format::loss(&source, &matrix).map_err(in_tensor)?;
    let (rows, k) = (matrix.rows(), matrix.k());
    // Exact: the scale that quantising chooses multiplies.
    let global = matrix.global().value() as f32;
    let [scale, scale_2] = scale_names(&name);
    let parts = [
        Tensor::from_bytes(&name, Dtype::U8, [rows, k / 2], matrix.codes().to_vec()),
        Tensor::from_bytes(scale, Dtype::F8_E4M3, [rows, k / BLOCK], matrix.scales().to_vec()),
        Tensor::from_f32(scale_2, [], vec![global]),
    ];
    let quantised = Quantised {
        name,
        shape: [rows, k],
        dtype: dtype.to_string(),
        global,
        relative_error: relative,
        rms_error: rms,
        max_error: max_abs,
    };
    Ok((quantised, parts))
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["tensor", "shape", "was", ">relative error", ">rms error", ">max error"]);
    for Quantised { name, shape: [rows, k], dtype, relative_error, rms_error, max_error, .. } in &report.quantised {
        table.row([
            name.clone(),
            format!("{rows}×{k}"),
            dtype.clone(),
            format!("{:.2} %", 100.0 * relative_error),
            format!("{rms_error:.2e}"),
            format!("{max_error:.2e}"),
        ]);
    }
    let mut text = table.text();
    for Uneven { name, shape } in &report.uneven {
        text += &format!("copied: {name} {shape:?}, whose K is no positive multiple of 16\n");
    }
    let Report { quantised, copied, bytes_before, bytes_after, .. } = report;
    text += &format!(
        "{} quantised, {copied} copied, {} before, {} after\n",
        quantised.len(),
        table::bytes(*bytes_before as f64),
        table::bytes(*bytes_after as f64),
    );
    text
}
