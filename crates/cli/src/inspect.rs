//! `hammerhead inspect`: what a checkpoint is, and what was concluded about it, before anything is computed with it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use format::checkpoint::{Arrangement, Checkpoint, Content, Format, Layer, Pair, Role, Weight};
use serde::Serialize;

use crate::model::{self, Reading};
use crate::table::{self, Table};
use crate::{Result, console};

/// Say what a checkpoint holds and how it would be read
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Say what a checkpoint holds and how it would be read: whose layout, which layers and experts, their \
    sizes, how gate and up stand, whether the down projections are there, how experts are chosen, their global scales, whether tokens are multiplied with a vector first (pre_quant_scale, \
    from AWQ), and which files they are in. Weights themselves are not read.\n\n\
    MODEL is a folder, an index of shards (*.safetensors.index.json), or one .safetensors or .gguf file. What could be \
    read in two ways is refused, with the option that settles it.\n\n\
    Examples:\n  \
    hammerhead inspect Qwen3-30B-A3B-NVFP4\n  \
    hammerhead inspect model.gguf --json\n  \
    hammerhead inspect experts.safetensors --gate-up-order interleaved"
)]
pub struct Args {
    /// The model to look at
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Serialize)]
struct Report {
    model: String,
    model_type: Option<String>,
    /// What the model says it was quantised by, and where.
    declared: Option<Declared>,
    formats: Vec<Layout>,
    gate: String,
    /// Where the gate is known from.
    gate_source: String,
    /// How the model chooses experts, as far as it declares that.
    routing: Option<String>,
    tower: String,
    other_towers: Vec<String>,
    files: Vec<FileReport>,
    layers: Vec<LayerReport>,
    /// All quantised matrices, those of other modules too.
    quantised_weights: usize,
    /// Each of them, where no layer was found.
    matrices: Vec<MatrixReport>,
}

#[derive(Serialize)]
struct MatrixReport {
    name: String,
    n: usize,
    k: usize,
    /// A number that multiplies.
    global: f64,
}

#[derive(Serialize)]
struct Declared {
    summary: String,
    file: String,
}

#[derive(Serialize)]
struct Layout {
    format: String,
    nibbles: &'static str,
    global_scale: &'static str,
}

#[derive(Serialize)]
struct FileReport {
    name: String,
    bytes: u64,
}

#[derive(Serialize)]
struct LayerReport {
    index: usize,
    name: String,
    /// How its weights are stored; several where they differ.
    stored: Vec<String>,
    experts: usize,
    shared: usize,
    n: usize,
    k: usize,
    gate_up: Vec<String>,
    /// MLPs that have a down projection, so that they can be computed whole.
    down: usize,
    has_bias: bool,
    /// Whether tokens must be multiplied with the model's `pre_quant_scale` first.
    has_pre_scale: bool,
    /// The smallest and the largest global scale, each a number that multiplies.
    gate_globals: Option<[f64; 2]>,
    up_globals: Option<[f64; 2]>,
    /// Positions in the list of files.
    files: Vec<usize>,
}

/// Describes a checkpoint from its headers alone.
pub fn inspect(args: &Args) -> Result<()> {
    let report = report(&args.reading.open(&args.model)?)?;
    if args.json { console::print_json(&report) } else { console::print(&text(&report)) }
}

fn report(model: &Checkpoint) -> Result<Report> {
    let weights = model.weights()?;
    let described = if model.layers().is_empty() { &weights[..] } else { &[] };
    let files: Vec<&Path> = model.files().collect();
    let (gate, source) = model.gate_and_source(None);
    let formats: BTreeSet<Format> = pairs(model).filter_map(|pair| format_of(&pair.content)).collect();
    let layout = |format: Format| Layout {
        format: format.to_string(),
        nibbles: format.nibbles(),
        global_scale: format.global(),
    };
    Ok(Report {
        model: model.path().display().to_string(),
        model_type: model.model_type().map(str::to_owned),
        declared: model.declared().map(|(summary, file)| Declared { summary: summary.to_owned(), file: name_of(file) }),
        formats: formats.into_iter().map(layout).collect(),
        gate: gate.to_string(),
        gate_source: source.to_owned(),
        routing: model.routing().map(|rule| rule.to_string()),
        tower: model.tower().to_owned(),
        other_towers: model.other_towers().to_vec(),
        layers: model.layers().iter().map(|layer| describe(model, layer, &files)).collect::<Result<_>>()?,
        quantised_weights: weights.len(),
        matrices: described.iter().map(|weight| describe_matrix(model, weight)).collect::<Result<_>>()?,
        files: files.iter().map(|file| FileReport { name: name_of(file), bytes: length(file) }).collect(),
    })
}

fn pairs(model: &Checkpoint) -> impl Iterator<Item = &Pair> {
    model.layers().iter().flat_map(|layer| &layer.pairs)
}

fn format_of(content: &Content) -> Option<Format> {
    match content {
        Content::Quantised { format, .. } => Some(*format),
        Content::Other(_) => None,
    }
}

fn name_of(file: &Path) -> String {
    file.file_name().map_or_else(|| file.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len())
}

fn describe_matrix(model: &Checkpoint, weight: &Weight) -> Result<MatrixReport> {
    let [n, k] = weight.shape;
    Ok(MatrixReport { name: weight.name.clone(), n, k, global: model.global(weight)?.value() })
}

fn describe(model: &Checkpoint, layer: &Layer, files: &[&Path]) -> Result<LayerReport> {
    let mut gate_globals: Option<[f64; 2]> = None;
    let mut up_globals: Option<[f64; 2]> = None;
    let mut used = BTreeSet::new();
    for pair in &layer.pairs {
        if format_of(&pair.content).is_some() {
            widen(&mut gate_globals, model.global(&pair.gate)?.value());
            widen(&mut up_globals, model.global(&pair.up)?.value());
        }
        for weight in [&pair.gate, &pair.up] {
            used.extend(model.files_of(weight).into_iter().filter_map(|file| files.iter().position(|f| *f == file)));
        }
    }
    let shape = layer.pairs.first().map_or([0, 0], |pair| pair.gate.shape);
    let numbered = layer.pairs.iter().filter(|pair| matches!(pair.role, Role::Expert(_))).count();
    Ok(LayerReport {
        index: layer.index,
        name: layer.name.clone(),
        stored: each_once(layer.pairs.iter().map(|pair| model::stored(&pair.content))),
        experts: numbered,
        shared: layer.pairs.len() - numbered.max(1),
        n: shape[0],
        k: shape[1],
        gate_up: each_once(layer.pairs.iter().map(arrangement)),
        down: layer.pairs.iter().filter(|pair| pair.down.is_some()).count(),
        has_bias: layer.pairs.iter().any(|pair| pair.has_bias),
        has_pre_scale: layer.pairs.iter().any(|pair| pair.has_pre_scale),
        gate_globals,
        up_globals,
        files: used.into_iter().collect(),
    })
}

fn widen(range: &mut Option<[f64; 2]>, value: f64) {
    *range = Some(range.map_or([value; 2], |[least, most]| [least.min(value), most.max(value)]));
}

fn each_once(words: impl Iterator<Item = String>) -> Vec<String> {
    words.collect::<BTreeSet<_>>().into_iter().collect()
}

fn arrangement(pair: &Pair) -> String {
    let turned = if pair.is_transposed { ", transposed" } else { "" };
    match pair.arrangement {
        Arrangement::Apart => format!("apart{turned}"),
        Arrangement::Fused(order) => format!("fused {order}{turned}"),
    }
}

fn text(report: &Report) -> String {
    let mut text = report.model.clone();
    if let Some(kind) = &report.model_type {
        text += &format!(", a {kind}");
    }
    if let Some(Declared { summary, file }) = &report.declared {
        text += &format!(", quantised by {summary} ({file})");
    }
    let bytes: u64 = report.files.iter().map(|file| file.bytes).sum();
    let files = report.files.len();
    text += &format!("\n{files} {}, {}", if files == 1 { "file" } else { "files" }, table::bytes(bytes as f64));
    text += &format!("; {} quantised matrices\n", report.quantised_weights);
    for Layout { format, nibbles, global_scale } in &report.formats {
        text += &format!("{format}: nibbles {nibbles}; global scale {global_scale}\n");
    }
    if report.layers.is_empty() {
        text += "no layer with a gated pair was found\n";
        return if report.matrices.is_empty() { text } else { text + &matrices(&report.matrices) };
    }
    text += &format!("gate {} ({})\n", report.gate, report.gate_source);
    if let Some(routing) = &report.routing {
        text += &format!("routing {routing}\n");
    }
    if !report.other_towers.is_empty() {
        text += &format!("{} of several lists of layers; also {}\n", report.tower, report.other_towers.join(", "));
    }
    let mut table = Table::new(&[
        "layer",
        "stored",
        ">experts",
        ">n × k",
        "gate and up",
        "down",
        ">gate global",
        ">up global",
        "files",
    ]);
    for layer in &report.layers {
        let shared = if layer.shared > 0 { format!("+{}", layer.shared) } else { String::new() };
        let all = layer.experts.max(1) + layer.shared;
        let down = match layer.down {
            down if down == all => "whole".to_owned(),
            0 => "none".to_owned(),
            down => format!("{down} of {all}"),
        };
        let bias = if layer.has_bias { ", biases" } else { "" };
        let pre_scale = if layer.has_pre_scale { ", tokens × pre_quant_scale" } else { "" };
        table.row([
            layer.name.clone(),
            layer.stored.join("; "),
            if layer.experts == 0 { format!("dense{shared}") } else { format!("{}{shared}", layer.experts) },
            format!("{} × {}", layer.n, layer.k),
            layer.gate_up.join("; ") + bias + pre_scale,
            down,
            range(layer.gate_globals),
            range(layer.up_globals),
            layer.files.iter().map(|&at| report.files[at].name.as_str()).collect::<Vec<_>>().join(" "),
        ]);
    }
    text + &table.text()
}

fn matrices(found: &[MatrixReport]) -> String {
    let mut table = Table::new(&["matrix", ">n × k", ">global"]);
    for MatrixReport { name, n, k, global } in found {
        table.row([name.clone(), format!("{n} × {k}"), format!("{global:.4e}")]);
    }
    table.text()
}

fn range(globals: Option<[f64; 2]>) -> String {
    match globals {
        Some([least, most]) if least == most => format!("{least:.4e}"),
        Some([least, most]) => format!("{least:.4e} … {most:.4e}"),
        None => "-".to_owned(),
    }
}
