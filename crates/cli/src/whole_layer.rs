//! `hammerhead run` of a whole feed-forward layer, from tokens to what the layer adds to them: of a file (`--input`, or
//! `--packed` weights with it), or of a model (`--checkpoint M --layer L --whole`).
//!
//! A file's experts are chosen by its logits and the rule that options name, or by its ids and weights. A model's are
//! chosen by its own router (its product with the tokens, then its rule), or by `ids` and `weights` beside the tokens.
//! A layer without experts is computed by its one MLP.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use format::checkpoint::FeedForward;
use format::tensors::{self, File, Tensor};
use format::{Dense, Values};
use hammerhead::layer_reference::LayerReference;
use hammerhead::routing::Groups;
use hammerhead::{
    Activation, Engine, ExpertWeights, Experts, Gate, Ids, Intermediate, LayerOptions, Output, Plan, Precision, Routed,
    Router, Scoring, expect_finite, feed_forward,
};
use serde::Serialize;
use testkit::moe;

use crate::explain::{self, Weighed};
use crate::layer::Opened;
use crate::layer_file::{self, LayerFile, name_tensor};
use crate::timing::Spread;
use crate::{Error, Result, console, files, table};

/// Runs that are timed, at most, and seconds after which no further one is begun.
const RUNS: usize = 7;
const SECONDS: f64 = 1.0;
/// Rows that are held against the reference where no result is written.
const CHECKED: usize = 4;

/// What is asked of a whole layer.
#[derive(Debug, Args)]
#[command(next_help_heading = "A whole layer")]
pub struct LayerArgs {
    /// With --checkpoint: the whole feed-forward layer, that is router, gate and up, down, biases, shared expert,
    /// combination. Tokens of a file are `x` F16, BF16 or F32 [T, K]; `ids` and `weights` [T, top] beside it replace
    /// the model's router. The result is `y`
    #[arg(long, requires = "checkpoint", conflicts_with = "experts")]
    pub whole: bool,
    /// How a file's logits become experts and weights: softmax, softmax-renorm, topk-softmax, sigmoid, sigmoid-plain,
    /// sigmoid-input or sqrt-softplus
    #[arg(long, value_name = "NAME", requires_all = ["top_k", "input"])]
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
    /// What stands between the two products: tokens (their type), f32 or nvfp4 [default: tokens]
    #[arg(long, value_name = "TYPE", requires = "source")]
    intermediate: Option<Intermediate>,
    /// Let a token's result depend on that token and the weights only, to the bit
    #[arg(long, requires = "source")]
    batch_invariant: bool,
    /// Write the layer as it is packed to this file, with its rule of routing if there is one, for --packed
    #[arg(long, value_name = "FILE", requires = "source", conflicts_with = "packed")]
    save: Option<PathBuf>,
    /// Map the layer from a file that --save wrote; then --input holds x and its routing alone, and --routing may be
    /// left out
    #[arg(long, value_name = "FILE", requires = "input", conflicts_with = "gate")]
    packed: Option<PathBuf>,
}

impl LayerArgs {
    /// The first option that only a whole layer has, if one is given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            (self.routing.is_some(), "--routing"),
            (self.intermediate.is_some(), "--intermediate"),
            (self.batch_invariant, "--batch-invariant"),
            (self.save.is_some(), "--save"),
            (self.packed.is_some(), "--packed"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    /// Whether a file of the input holds a layer, and not a problem of products.
    pub fn reads(&self, file: &File) -> bool {
        self.packed.is_some() || file.contains("x")
    }

    /// The files that are written beside the result.
    pub fn written(&self) -> Option<&Path> {
        self.save.as_deref()
    }

    fn options(&self, precision: Precision) -> LayerOptions {
        let (intermediate, batch_invariant) = (self.intermediate.unwrap_or_default(), self.batch_invariant);
        LayerOptions { intermediate, precision, batch_invariant, ..LayerOptions::default() }
    }

    fn rule(&self) -> layer_file::Wish {
        let groups = self.groups.zip(self.top_groups).map(|(count, best)| Groups { count, best });
        layer_file::Wish { scoring: self.routing, top_k: self.top_k, groups, scaling: self.scaling }
    }
}

/// What is asked of a run.
pub struct Wish<'a> {
    pub layer: &'a LayerArgs,
    pub gate: Option<Gate>,
    pub out: Output,
    pub precision: Precision,
    pub seed: u64,
    pub output: Option<&'a Path>,
    pub explain: bool,
    pub json: bool,
    pub quiet: bool,
}

#[derive(Serialize)]
struct Report {
    /// The model, or the file.
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<usize>,
    tokens: usize,
    experts: usize,
    top_k: usize,
    /// What chose the experts.
    routing: String,
    shared: bool,
    /// Of tokens, of the intermediate and of results.
    widths: [usize; 3],
    gate: String,
    intermediate: String,
    precision: String,
    batch_invariant: bool,
    output_type: String,
    threads: usize,
    packed_bytes: usize,
    seconds: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// Elements that were held against the reference, and the largest part of the bound that one used.
    compared: usize,
    max_error_of_bound: f64,
    /// What was weighed, for each plan: of the whole, or of both products.
    #[serde(skip_serializing_if = "Option::is_none")]
    considered: Option<Vec<Vec<Weighed>>>,
    #[serde(skip)]
    plans: Vec<Plan>,
}

/// A layer, packed, with what it is called on.
struct Loaded<'a> {
    layer: Experts,
    tokens: Dense<'a>,
    routed: Routed,
    routing: String,
}

impl Loaded<'_> {
    fn report(
        &self,
        source: &Path,
        number: Option<usize>,
        wish: &Wish<'_>,
        engine: &Engine,
        seconds: &[f64],
    ) -> Result<Report> {
        let LayerOptions { intermediate, precision, batch_invariant, .. } = self.layer.options();
        let plans = match wish.explain {
            true => {
                let types = (Activation::of_values(self.tokens.values()), wish.out);
                self.layer.plans(engine, self.tokens.rows(), self.routed.top_k(), types)?
            }
            false => Vec::new(),
        };
        Ok(Report {
            source: source.display().to_string(),
            layer: number,
            tokens: self.tokens.rows(),
            experts: self.layer.count(),
            top_k: self.routed.top_k(),
            routing: self.routing.clone(),
            shared: self.layer.has_shared(),
            widths: self.layer.widths(),
            gate: self.layer.gate().to_string(),
            intermediate: intermediate.to_string(),
            precision: precision.to_string(),
            batch_invariant,
            output_type: wish.out.to_string(),
            threads: engine.threads(),
            packed_bytes: self.layer.packed_bytes(),
            seconds: Spread::of(seconds),
            output: wish.output.map(|path| path.display().to_string()),
            compared: 0,
            max_error_of_bound: 0.0,
            considered: wish.explain.then(|| plans.iter().map(explain::weighed).collect()),
            plans,
        })
    }
}

/// In words what chose experts.
fn chosen_by(router: Option<&Router>) -> String {
    let rule = |rule: &Router| format!("{}, top {}", rule.scoring(), rule.top_k());
    router.map_or("ids and weights of the file".to_owned(), rule)
}

/// Computes a layer from a file into a file.
pub fn run_file(file: &File, input: &Path, output: &Path, wish: &Wish<'_>, engine: &Engine) -> Result<()> {
    for read in [Some(input), wish.layer.packed.as_deref()].into_iter().flatten() {
        for written in [Some(output), wish.layer.written()].into_iter().flatten() {
            files::check_output(read, written)?;
        }
    }
    let loaded = load_file(file, wish, engine)?;
    expect_finite(&[loaded.tokens.clone().into()]).map_err(|error| name_tensor(file, error))?;
    let clock = Instant::now();
    let result = loaded.layer.run(engine, &loaded.tokens, &loaded.routed, wish.out);
    let result = result.map_err(|error| name_tensor(file, error))?;
    let seconds = [clock.elapsed().as_secs_f64()];
    write(output, &result)?;
    tell(wish, &loaded.report(input, None, wish, engine, &seconds)?, None)
}

fn load_file<'a>(file: &'a File, wish: &Wish<'_>, engine: &Engine) -> Result<Loaded<'a>> {
    let (options, rule) = (wish.layer.options(wish.precision), wish.layer.rule());
    if let Some(packed) = &wish.layer.packed {
        let (layer, router) = Experts::open(engine, packed, options)?;
        let routing = match rule.scoring.zip(rule.top_k).filter(|_| file.contains("logits")) {
            Some((scoring, top)) => format!("{scoring}, top {top}"),
            None => chosen_by(router.as_ref().filter(|_| file.contains("logits"))),
        };
        let (tokens, routed) = layer_file::read_inputs(file, (layer.count(), layer.widths()[0]), rule, router)?;
        return Ok(Loaded { layer, tokens, routed, routing });
    }
    let LayerFile { weights, tokens, routed, router } = LayerFile::read(file, wish.gate, rule)?;
    let layer = Experts::new(engine, &weights, options)?;
    if let Some(path) = &wish.layer.save {
        layer.save(engine, path, router.as_ref())?;
    }
    Ok(Loaded { layer, tokens, routed, routing: chosen_by(router.as_ref()) })
}

/// Computes a model's layer: into a file, or checked and timed.
pub fn run(opened: &Opened, wish: &Wish<'_>, engine: &Engine) -> Result<()> {
    let stored = opened.feed_forward()?;
    let tokens = opened.dense_tokens(wish.seed)?;
    let (routed, routing) = route(opened, &stored, &tokens)?;
    let rule = feed_forward::router(&stored)?;
    let weights = feed_forward::expert_weights(stored, Some(opened.gate(wish.gate)?))?;
    let layer = Experts::new(engine, &weights, wish.layer.options(wish.precision))?;
    if let Some(path) = &wish.layer.save {
        layer.save(engine, path, rule.as_ref())?;
    }
    let loaded = Loaded { layer, tokens, routed, routing };
    let (mut seconds, mut result) = (Vec::new(), None);
    let begun = Instant::now();
    while result.is_none() || (wish.output.is_none() && seconds.len() < RUNS && begun.elapsed().as_secs_f64() < SECONDS)
    {
        let clock = Instant::now();
        result = Some(loaded.layer.run(engine, &loaded.tokens, &loaded.routed, wish.out)?);
        seconds.push(clock.elapsed().as_secs_f64());
    }
    let Some(result) = result else { return Ok(()) };
    let mut report = loaded.report(opened.model.path(), Some(opened.number()), wish, engine, &seconds)?;
    let mut failed = None;
    match wish.output {
        Some(path) => write(path, &result)?,
        None => {
            let checked = check(&weights, &loaded, &result, engine)?;
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
        return Ok((routed, chosen_by(None)));
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
    Ok((rule.route(&logits, tokens.rows())?, chosen_by(Some(&rule))))
}

/// Holds the first rows against the reference.
fn check(
    weights: &ExpertWeights<'_>,
    loaded: &Loaded<'_>,
    result: &Dense<'_>,
    engine: &Engine,
) -> Result<testkit::verify::Report> {
    let Loaded { layer, tokens, routed, .. } = loaded;
    let LayerOptions { intermediate, precision, .. } = layer.options();
    let reference = LayerReference { weights, intermediate, precision, tokens, routed };
    let backend = engine.backends()[0];
    let arithmetic = |activation| backend.layer_arithmetic_in(precision, activation);
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
    console::print(&report.plans.iter().map(explain::text).collect::<String>())?;
    let Report { tokens, experts, routing, widths: [k, inner, n], gate, output_type, threads, .. } = report;
    let shared = if report.shared { " and a shared one" } else { "" };
    let end = match (&report.output, failed) {
        (Some(path), _) => format!("→ {path}"),
        (None, None) => {
            let part = table::of_bound(report.max_error_of_bound);
            format!("right in {} elements, the largest error {part} of the bound", report.compared)
        }
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
