//! `hammerhead run --checkpoint M --layer L --mlp`: a whole feed-forward layer of a model, from tokens to what the layer adds to them.
//!
//! Tokens come from a file or from a seed. Experts are chosen by the model's own router (its product with the tokens, then its rule), or by `ids` and
//! `weights` beside the tokens. A layer without experts is computed by its one MLP.

use std::path::Path;
use std::time::Instant;

use format::checkpoint::FeedForward;
use format::tensors::{self, Tensor};
use format::{Dense, Values};
use hammerhead::layer_reference::LayerReference;
use hammerhead::{Engine, ExpertWeights, Experts, Gate, Ids, LayerOptions, Output, Routed, feed_forward};
use serde::Serialize;
use testkit::moe;

use crate::layer::Opened;
use crate::timing::Spread;
use crate::{Error, Result, console, table};

/// Runs that are timed, at most, and seconds after which no further one is begun.
const RUNS: usize = 7;
const SECONDS: f64 = 1.0;
/// Rows that are held against the reference where no result is written.
const CHECKED: usize = 4;

/// What is asked of a run.
pub struct Wish<'a> {
    pub gate: Option<Gate>,
    pub out: Output,
    pub seed: u64,
    pub output: Option<&'a Path>,
    /// Where the packed layer goes, if anywhere.
    pub save: Option<&'a Path>,
    pub json: bool,
    pub quiet: bool,
}

#[derive(Serialize)]
struct Report {
    model: String,
    layer: usize,
    tokens: usize,
    experts: usize,
    top_k: usize,
    /// What chose the experts.
    routing: String,
    shared: bool,
    /// Of tokens, of the intermediate and of results.
    widths: [usize; 3],
    gate: String,
    output_type: String,
    threads: usize,
    packed_bytes: usize,
    seconds: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// Elements that were held against the reference, and the largest part of the bound that one used.
    compared: usize,
    max_error_of_bound: f64,
}

/// Computes the layer: into a file, or checked and timed.
pub fn run(opened: &Opened, wish: &Wish<'_>, engine: &Engine) -> Result<()> {
    let stored = opened.feed_forward()?;
    let tokens = opened.dense_tokens(wish.seed)?;
    let (routed, routing) = route(opened, &stored, &tokens)?;
    let rule = feed_forward::router(&stored)?;
    let weights = feed_forward::expert_weights(stored, Some(opened.gate(wish.gate)?))?;
    let layer = Experts::new(engine, &weights, LayerOptions::default())?;
    if let Some(path) = wish.save {
        layer.save(engine, path, rule.as_ref())?;
    }
    let (mut seconds, mut result) = (Vec::new(), None);
    let begun = Instant::now();
    while result.is_none() || (wish.output.is_none() && seconds.len() < RUNS && begun.elapsed().as_secs_f64() < SECONDS)
    {
        let clock = Instant::now();
        result = Some(layer.run(engine, &tokens, &routed, wish.out)?);
        seconds.push(clock.elapsed().as_secs_f64());
    }
    let Some(result) = result else { return Ok(()) };
    let mut report = Report {
        model: opened.model.path().display().to_string(),
        layer: opened.number(),
        tokens: tokens.rows(),
        experts: layer.count(),
        top_k: routed.top_k(),
        routing,
        shared: weights.shared().is_some(),
        widths: layer.widths(),
        gate: weights.gate().to_string(),
        output_type: wish.out.to_string(),
        threads: engine.threads(),
        packed_bytes: layer.packed_bytes(),
        seconds: Spread::of(&seconds),
        output: wish.output.map(|path| path.display().to_string()),
        compared: 0,
        max_error_of_bound: 0.0,
    };
    let mut failed = None;
    match wish.output {
        Some(path) => write(path, &result)?,
        None => {
            let checked = check(&weights, &tokens, &routed, &result, engine)?;
            (report.compared, report.max_error_of_bound) = (checked.compared, checked.max_ratio);
            failed = (!checked.passed()).then_some(checked.failures);
        }
    }
    tell(wish, &report, failed)?;
    match failed {
        None => Ok(()),
        Some(failed) => {
            Err(Error::Failed { failed, all: report.compared, remedy: "see hammerhead verify --suite moe" })
        }
    }
}

/// The experts of every token, and in words what chose them.
fn route(opened: &Opened, stored: &FeedForward<'_>, tokens: &Dense<'_>) -> Result<(Routed, String)> {
    let experts = stored.experts.len();
    if let Some(routed) = opened.given_experts(tokens.rows(), experts)? {
        return Ok((routed, "ids and weights of the file".to_owned()));
    }
    if experts == 1 && stored.router.is_none() {
        let rows = tokens.rows();
        return Ok((Routed::given(Ids::I32(&vec![0; rows]), &vec![1.0; rows], rows, 1)?, "one MLP".to_owned()));
    }
    let (Some(router), Some(rule)) = (&stored.router, feed_forward::router(stored)?) else {
        let remedy = "give ids and weights beside x in a file of --tokens";
        return opened.missing("router whose rule is known".to_owned(), remedy);
    };
    let mut logits = Vec::with_capacity(tokens.rows() * experts);
    let (mut token, mut row) = (vec![0f32; tokens.k()], vec![0f32; tokens.k()]);
    for index in 0..tokens.rows() {
        tokens.row(index, &mut token);
        for expert in 0..experts {
            router.weight.row(expert, &mut row);
            let sum: f64 = token.iter().zip(&row).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            let bias = router.bias.as_ref().map_or(0.0, |bias| f64::from(bias[expert]));
            logits.push((sum * tokens.global().value() + bias) as f32);
        }
    }
    let routing = format!("{}, top {}", rule.scoring(), rule.top_k());
    Ok((rule.route(&logits, tokens.rows())?, routing))
}

/// Holds the first rows against the reference.
fn check(
    weights: &ExpertWeights<'_>,
    tokens: &Dense<'_>,
    routed: &Routed,
    result: &Dense<'_>,
    engine: &Engine,
) -> Result<testkit::verify::Report> {
    let intermediate = LayerOptions::default().intermediate;
    let reference = LayerReference { weights, intermediate, tokens, routed };
    let backend = engine.backends()[0];
    let arithmetic = |activation| backend.layer_arithmetic(activation);
    Ok(moe::check(&reference, 0..CHECKED.min(tokens.rows()), result, &arithmetic)?)
}

fn write(path: &Path, result: &Dense<'_>) -> Result<()> {
    let shape = [result.rows(), result.k()];
    let y = match result.values().clone() {
        Values::F16(y) => Tensor::from_f16("y", shape, y.into_owned()),
        Values::BF16(y) => Tensor::from_bf16("y", shape, y.into_owned()),
        Values::F32(y) => Tensor::from_f32("y", shape, y.into_owned()),
    };
    Ok(tensors::write(path, &[y], None)?)
}

fn tell(wish: &Wish<'_>, report: &Report, failed: Option<usize>) -> Result<()> {
    if wish.json {
        return console::print_json(report);
    }
    let Report { tokens, experts, routing, widths: [k, inner, n], gate, output_type, threads, .. } = report;
    let shared = if report.shared { " and a shared one" } else { "" };
    let end = match (&report.output, failed) {
        (Some(path), _) => format!("→ {path}"),
        (None, None) => format!("right in {} elements, {:.2} of the bound", report.compared, report.max_error_of_bound),
        (None, Some(failed)) => format!("WRONG in {failed} of {} elements", report.compared),
    };
    let text = format!(
        "{tokens} tokens, {experts} experts{shared} of {k}→{inner}→{n}, {routing}, gate {gate}, {output_type}: {} on {threads} threads, {} packed; {end}",
        table::seconds(report.seconds.median),
        table::bytes(report.packed_bytes as f64),
    );
    match wish.output {
        Some(_) if wish.quiet => Ok(()),
        Some(_) => {
            console::remark(&text);
            Ok(())
        }
        None => console::print(&format!("{text}\n")),
    }
}
