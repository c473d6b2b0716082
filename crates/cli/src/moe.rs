//! `hammerhead moe`: a layer of experts from a file, computed whole.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args as ClapArgs;
use format::Values;
use format::tensors::{self, File, Tensor};
use hammerhead::routing::Groups;
use hammerhead::{Experts, Gate, Intermediate, LayerOptions, Output, Scoring, expect_finite};
use serde::Serialize;

use crate::layer_file::{self, LayerFile, Wish, name_tensor};
use crate::options::How;
use crate::{Result, console, files, table};

/// Compute a layer of experts from a file: routing, both products, combination
#[derive(Debug, ClapArgs)]
#[command(long_about = "Compute a layer of experts: y[t] = Σ_j w[t,j]·MLP_e(x[t]), e = ids[t,j], with \
    MLP(x) = down(gate(x·B1ᵀ + b1, x·B2ᵀ + b2)) + b3.\n\n\
    Tensors of the input, safetensors:\n  \
    x                       F16, BF16 or F32 [T, K]\n  \
    logits                  F32 [T, E], with --routing and --top-k; correction F32 [E] for sigmoid, if there is one; or\n  \
    ids, weights            I32 or I64, and F32, [T, top]; ids outside 0..E add nothing\n  \
    e0.b1, e0.b2, e0.down   U8 [rows, K/2] for each expert e0, e1, …, no b2 where the gate takes one matrix; each with\n  \
    …_scale, …_global       F8_E4M3 [rows, K/16], and F32 that multiplies (or …_scale_2), 1 if absent\n  \
    …_bias                  F32, BF16 or F16 [rows], if there are any\n  \
    e0.b1_input_scale, e0.down_input_scale  F32 [K], what tokens are multiplied with first (AWQ), if anything\n  \
    e0.down_input_global    F32, the scale of an nvfp4 intermediate, 1 if absent\n  \
    shared.…                the same names: an expert for every token; shared.gate F32 [K] multiplies it with σ(x·v)\n\
    The result is y, [T, K].\n\n\
    Examples:\n  \
    hammerhead moe --input layer.safetensors --output y.safetensors --routing softmax-renorm --top-k 8 --out bf16\n  \
    hammerhead moe --input routed.safetensors --output y.safetensors --gate gpt-oss --batch-invariant\n  \
    hammerhead moe --input layer.safetensors --output y.safetensors --routing softmax --top-k 2 --save layer.packed\n  \
    hammerhead moe --input tokens.safetensors --output y.safetensors --packed layer.packed")]
pub struct Args {
    /// Read layer, tokens and routing from this safetensors file
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// Write the result to this safetensors file
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// The element type of the result: f16, bf16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    out: Output,
    /// The gate: silu, silu:limit=10, gelu-tanh, gpt-oss (or gpt-oss:alpha=1.702,beta=1,limit=7); of one matrix relu2 or none
    /// [default: silu if there is a b2, else none]
    #[arg(long, value_name = "NAME")]
    gate: Option<Gate>,
    /// How logits become experts and weights: softmax, softmax-renorm, topk-softmax, sigmoid, sigmoid-plain
    /// or sigmoid-input
    #[arg(long, value_name = "NAME", requires = "top_k")]
    routing: Option<Scoring>,
    /// Experts per token
    #[arg(long, value_name = "N", requires = "routing")]
    top_k: Option<usize>,
    /// With sigmoid: so many groups of experts …
    #[arg(long, value_name = "N", requires_all = ["top_groups", "routing"])]
    groups: Option<usize>,
    /// … of which so many may be chosen from, those whose best two sum highest
    #[arg(long, value_name = "N", requires = "groups")]
    top_groups: Option<usize>,
    /// What the router's weights are multiplied with [default: 1]
    #[arg(long, value_name = "FACTOR", requires = "routing", allow_negative_numbers = true)]
    scaling: Option<f32>,
    /// What stands between the two products: tokens (their type), f32 or nvfp4
    #[arg(long, value_name = "TYPE", default_value = "tokens")]
    intermediate: Intermediate,
    /// Let a token's result depend on that token and the weights only, to the bit
    #[arg(long)]
    batch_invariant: bool,
    /// Write the layer as it is packed to this file, with the rule of routing if there is one, for --packed
    #[arg(long, value_name = "FILE", conflicts_with = "packed")]
    save: Option<PathBuf>,
    /// Map the layer from a file that --save wrote; then --input holds x and its routing alone, and --routing may be left out
    #[arg(long, value_name = "FILE", conflicts_with = "gate")]
    packed: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing beside the result
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Serialize)]
struct Report {
    tokens: usize,
    experts: usize,
    top_k: usize,
    /// Of tokens, of the intermediate and of results.
    widths: [usize; 3],
    gate: String,
    intermediate: String,
    batch_invariant: bool,
    output_type: String,
    threads: usize,
    seconds: f64,
    input: String,
    output: String,
}

/// Reads, computes and writes.
pub fn moe(args: &Args) -> Result<()> {
    for input in [Some(&args.input), args.packed.as_ref()].into_iter().flatten() {
        for output in [Some(&args.output), args.save.as_ref()].into_iter().flatten() {
            files::check_output(input, output)?;
        }
    }
    let file = File::open(&args.input)?;
    let groups = args.groups.zip(args.top_groups).map(|(count, best)| Groups { count, best });
    let wish = Wish { scoring: args.routing, top_k: args.top_k, groups, scaling: args.scaling };
    let engine = args.how.engine()?;
    let options = LayerOptions {
        intermediate: args.intermediate,
        batch_invariant: args.batch_invariant,
        ..LayerOptions::default()
    };
    let (layer, tokens, routed) = match &args.packed {
        Some(packed) => {
            let (layer, router) = Experts::open(&engine, packed, options)?;
            let (tokens, routed) = layer_file::read_inputs(&file, (layer.count(), layer.widths()[0]), wish, router)?;
            (layer, tokens, routed)
        }
        None => {
            let LayerFile { weights, tokens, routed, router } = LayerFile::read(&file, args.gate, wish)?;
            let layer = Experts::new(&engine, &weights, options)?;
            if let Some(path) = &args.save {
                layer.save(&engine, path, router.as_ref())?;
            }
            (layer, tokens, routed)
        }
    };
    expect_finite(&[tokens.clone().into()]).map_err(|error| name_tensor(&file, error))?;
    let clock = Instant::now();
    let result = layer.run(&engine, &tokens, &routed, args.out).map_err(|error| name_tensor(&file, error))?;
    let seconds = clock.elapsed().as_secs_f64();
    let shape = [result.rows(), result.k()];
    let y = match result.values().clone() {
        Values::F16(y) => Tensor::from_f16("y", shape, y.into_owned()),
        Values::BF16(y) => Tensor::from_bf16("y", shape, y.into_owned()),
        Values::F32(y) => Tensor::from_f32("y", shape, y.into_owned()),
    };
    tensors::write(&args.output, &[y], None)?;
    let report = Report {
        tokens: tokens.rows(),
        experts: layer.count(),
        top_k: routed.top_k(),
        widths: layer.widths(),
        gate: layer.gate().to_string(),
        intermediate: args.intermediate.to_string(),
        batch_invariant: args.batch_invariant,
        output_type: args.out.to_string(),
        threads: engine.threads(),
        seconds,
        input: args.input.display().to_string(),
        output: args.output.display().to_string(),
    };
    tell(args, &report)
}

fn tell(args: &Args, report: &Report) -> Result<()> {
    if args.json {
        return console::print_json(report);
    }
    if !args.quiet {
        let Report { tokens, experts, top_k, widths: [k, inner, width], gate, output_type, threads, .. } = report;
        console::remark(&format!(
            "{tokens} tokens, {top_k} of {experts} experts of {k}→{inner}→{width}, gate {gate}, {output_type}: {} on {threads} threads → {}",
            table::seconds(report.seconds),
            report.output,
        ));
    }
    Ok(())
}
