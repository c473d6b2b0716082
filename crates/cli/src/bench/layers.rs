//! Layers of experts as models have them, by the host's clock, from a router's logits to the combined result.
//!
//! Layers are as large as the models' own. Copies of a layer and routings are taken in turn, so that no call finds in a
//! cache what the last one read. The floor is the larger of what the experts that are hit take to read and of what the
//! rows take to compute.

use std::time::Instant;

use format::{Dense, Values};
use half::{bf16, f16};
use hammerhead::layer_reference::LayerReference;
use hammerhead::machine::Machine;
use hammerhead::{Activation, Engine, Experts, LayerOptions, Output, Precision, Routed, Target};
use indicatif::ProgressBar;
use serde::Serialize;
use testkit::moe::{self, Instance, Model};

use super::args::Args;
use super::record::Head;
use super::rotation::ROTATION;
use super::stop;
use crate::floor::{Floor, Rates};
use crate::table::{self, Table};
use crate::timing::Spread;
use crate::{Error, Result, console, memory};

/// Experts that differ; a layer's are these over and over, each in memory of its own.
const DISTINCT: usize = 8;
/// Routings that are taken in turn.
const ROUTINGS: usize = 16;
/// Rows that are held against the reference before anything is timed.
const CHECKED: usize = 2;
/// Calls that every case gets, however long they take.
const SAMPLES: usize = 3;

/// Layers that were timed by the host's clock.
#[derive(Debug, Serialize)]
pub struct LayerRecord {
    #[serde(flatten)]
    head: Head,
    machine: Machine,
    threads: usize,
    ceilings: Option<Rates>,
    pub cases: Vec<LayerCase>,
}

/// A model's layer with some tokens.
#[derive(Debug, Serialize)]
pub struct LayerCase {
    suite: &'static str,
    problem: String,
    model: &'static str,
    tokens: usize,
    experts: usize,
    top_k: usize,
    widths: [usize; 2],
    activation: String,
    gate: String,
    output: String,
    backend: String,
    packed_bytes: usize,
    copies: usize,
    flops: f64,
    /// Of the experts that a call hits, on average.
    weight_bytes: f64,
    cold: Spread,
    floor_seconds: Option<f64>,
    cold_of_floor: Option<f64>,
    max_error: f64,
    /// The largest error as a part of what the derived bound allows.
    max_error_of_bound: f64,
    compared: usize,
}

/// Checks and times every model with every number of tokens.
pub fn measure(args: &Args, models: &[Model], engine: &Engine) -> Result<LayerRecord> {
    let mut floor = Floor::new(engine)?;
    let bar = console::progress(models.len() * args.tokens.len());
    let mut timed = Vec::new();
    for model in models.iter().take_while(|_| !stop::asked()) {
        timed.extend(Loaded::new(args, model, engine, &bar)?.time(args, engine, &mut floor, &bar)?);
    }
    bar.finish_and_clear();
    let ceilings = floor.rates();
    let cases = timed.into_iter().map(|case| case.against(ceilings.as_ref())).collect();
    let (head, threads) = (Head::new(engine, args.selection.seed), engine.threads());
    Ok(LayerRecord { head, machine: Machine::detect(), threads, ceilings, cases })
}

/// A model's layer, packed several times, and its cases.
struct Loaded<'m> {
    model: &'m Model,
    layers: Vec<Experts>,
    cases: Vec<Timed>,
}

/// Tokens, and what came of them.
struct Timed {
    instance: Instance,
    logits: Vec<Vec<f32>>,
    out: Values<'static>,
    seconds: Vec<f64>,
    case: LayerCase,
}

impl<'m> Loaded<'m> {
    fn new(args: &Args, model: &'m Model, engine: &Engine, bar: &ProgressBar) -> Result<Self> {
        bar.set_message(format!("loading {}", model.name));
        let (_, expert) = model.cost(model.widths[1]);
        let layer = expert * model.experts[0] as f64 + model.shared.map_or(0.0, |inner| model.cost(inner).1);
        let most = args.tokens.iter().copied().max().unwrap_or(1) as f64;
        // Tokens, results, and rows on their way from one product to the next.
        let rows = most * 8.0 * (model.experts[1] + 2) as f64 * (2 * model.widths[0] + model.widths[1]) as f64;
        let pool = expert * DISTINCT as f64;
        let remedy = "choose others with --model, or fewer --tokens";
        memory::require(layer + pool + rows, format!("the layer of {}", model.name), remedy)?;
        let room = memory::free().map_or(f64::INFINITY, |free| (0.7 * free - pool - rows) / layer);
        let copies = ((ROTATION / layer).ceil()).min(room).max(1.0) as usize;
        let element = args.selection.activation.first().copied().unwrap_or(Activation::BF16);
        let instance = |tokens| model.instance(tokens, element, DISTINCT, args.selection.seed);
        let first = instance(1)?;
        let precision = args.selection.precision.unwrap_or_default();
        let pack = |_| Experts::new(engine, &first.weights()?, LayerOptions { precision, ..LayerOptions::default() });
        let layers = (0..copies).map(pack).collect::<hammerhead::Result<Vec<_>>>()?;
        let mut cases = Vec::with_capacity(args.tokens.len());
        for &tokens in args.tokens.iter().take_while(|_| !stop::asked()) {
            bar.set_message(format!("checking {} with {tokens} tokens", model.name));
            cases.push(Timed::new(args, model, instance(tokens)?, &layers, engine)?);
        }
        Ok(Self { model, layers, cases })
    }

    /// Times all cases in turn until each has had its time.
    fn time(mut self, args: &Args, engine: &Engine, floor: &mut Floor, bar: &ProgressBar) -> Result<Vec<LayerCase>> {
        bar.set_message(format!("timing {}", self.model.name));
        let finished =
            |timed: &Timed| timed.seconds.len() >= SAMPLES && timed.seconds.iter().sum::<f64>() >= args.seconds;
        let mut turn = 0;
        while !self.cases.iter().all(finished) && !stop::asked() {
            floor.sample(engine.team());
            for timed in self.cases.iter_mut().filter(|timed| !finished(timed)) {
                turn += 1;
                timed.call(engine, &self.layers[turn % self.layers.len()], turn)?;
            }
        }
        floor.sample(engine.team());
        bar.inc(self.cases.len() as u64);
        let report = |timed: Timed| LayerCase { cold: Spread::of(&timed.seconds), ..timed.case };
        Ok(self.cases.into_iter().filter(|timed| !timed.seconds.is_empty()).map(report).collect())
    }
}

impl Timed {
    /// Makes routings and room for results, and holds some rows against the reference.
    fn new(args: &Args, model: &Model, instance: Instance, layers: &[Experts], engine: &Engine) -> Result<Self> {
        let tokens = instance.tokens.rows();
        let output = args.selection.out.unwrap_or(Output::BF16);
        let logits: Vec<Vec<f32>> = (0..ROUTINGS as u64).map(|turn| model.logits(tokens, turn)).collect();
        let out = zeros(output, tokens * model.widths[0]);
        let mut hit = 0.0;
        for logits in &logits {
            hit += experts_hit(&instance.router.route(logits, tokens)?, model.experts[0]) / ROUTINGS as f64;
        }
        let (row_flops, expert_bytes) = model.cost(model.widths[1]);
        let (shared_flops, shared_bytes) = model.shared.map_or((0.0, 0.0), |inner| model.cost(inner));
        let case = LayerCase {
            suite: "moe",
            problem: format!("{}, {tokens} tokens", model.name),
            model: model.name,
            tokens,
            experts: model.experts[0],
            top_k: model.experts[1],
            widths: model.widths,
            activation: match args.selection.precision.unwrap_or_default() {
                Precision::Exact => instance.element().to_string(),
                Precision::Fp8 => format!("{} as fp8", instance.element()),
            },
            gate: model.gate.to_string(),
            output: output.to_string(),
            backend: engine.backends().iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", "),
            packed_bytes: layers[0].packed_bytes(),
            copies: layers.len(),
            flops: tokens as f64 * (model.experts[1] as f64 * row_flops + shared_flops),
            weight_bytes: hit * expert_bytes + shared_bytes,
            cold: Spread::of(&[]),
            floor_seconds: None,
            cold_of_floor: None,
            max_error: 0.0,
            max_error_of_bound: 0.0,
            compared: 0,
        };
        let mut timed = Self { instance, logits, out, seconds: Vec::new(), case };
        timed.check(args, engine, &layers[0])?;
        Ok(timed)
    }

    fn check(&mut self, args: &Args, engine: &Engine, layer: &Experts) -> Result<()> {
        self.call(engine, layer, 0)?;
        self.seconds.clear();
        let tokens = &self.instance.tokens;
        let (weights, routed) = (self.instance.weights()?, self.instance.router.route(&self.logits[0], tokens.rows())?);
        let LayerOptions { intermediate, precision, .. } = layer.options();
        let reference = LayerReference { weights: &weights, intermediate, precision, tokens, routed: &routed };
        let result = Dense::new(tokens.rows(), self.case.widths[0], self.out.clone(), 1.0)?;
        // Whichever backend computed: one of one layout, and the least exact of them is what all are held to.
        let backend = engine.backends()[0];
        let arithmetic = |tokens| backend.layer_arithmetic_in(precision, tokens);
        let report = moe::check(&reference, 0..CHECKED.min(tokens.rows()), &result, &arithmetic)?;
        if let Some(first) = report.first {
            let (case, config) = (self.case.problem.clone(), "as planned".to_owned());
            return Err(Error::Wrong { case, backend: backend.name(), config, seed: args.selection.seed, first });
        }
        (self.case.max_error, self.case.compared) = (report.max_error, report.compared);
        self.case.max_error_of_bound = report.max_ratio;
        Ok(())
    }

    /// One call, from logits to results.
    fn call(&mut self, engine: &Engine, layer: &Experts, turn: usize) -> Result<()> {
        let tokens = &self.instance.tokens;
        let target = Target::all(std::slice::from_mut(&mut self.out)).remove(0);
        let clock = Instant::now();
        let routed = self.instance.router.route(&self.logits[turn % ROUTINGS], tokens.rows())?;
        layer.run_into(engine, tokens, &routed, target)?;
        self.seconds.push(clock.elapsed().as_secs_f64());
        Ok(())
    }
}

impl LayerCase {
    fn against(self, ceilings: Option<&Rates>) -> Self {
        let floor_seconds = ceilings.map(|rates| {
            let (flops, bytes) = (rates.flops_per_second.median, rates.bytes_per_second.median);
            (self.flops / flops).max(self.weight_bytes / bytes)
        });
        let cold_of_floor = floor_seconds.map(|floor| floor / self.cold.median);
        Self { floor_seconds, cold_of_floor, ..self }
    }
}

/// Experts that have rows.
fn experts_hit(routed: &Routed, experts: usize) -> f64 {
    let mut hit = vec![false; experts];
    routed.ids().iter().for_each(|&id| hit[id as usize] = true);
    hit.into_iter().filter(|hit| *hit).count() as f64
}

fn zeros(output: Output, count: usize) -> Values<'static> {
    match output {
        Output::F16 => vec![f16::ZERO; count].into(),
        Output::BF16 => vec![bf16::ZERO; count].into(),
        Output::F32 => vec![0f32; count].into(),
    }
}

/// What was measured, for people.
pub fn table(record: &LayerRecord) -> String {
    let mut table = Table::new(&[
        "model",
        ">tokens",
        ">cold",
        ">p10…p90",
        ">GB/s",
        ">GFLOP/s",
        ">floor",
        "x/gate/y",
        "backends",
        ">bound",
    ]);
    for case in &record.cases {
        table.row([
            case.model.to_owned(),
            case.tokens.to_string(),
            table::seconds(case.cold.median),
            table::seconds_between(case.cold.p10, case.cold.p90),
            table::three_digits(case.weight_bytes / case.cold.median / 1e9),
            table::three_digits(case.flops / case.cold.median / 1e9),
            table::of_floor(case.cold_of_floor),
            format!("{}/{}/{}", case.activation, case.gate, case.output),
            case.backend.clone(),
            table::of_bound(case.max_error_of_bound),
        ]);
    }
    table.text()
}

/// What stands beside it.
pub fn remarks(record: &LayerRecord) -> String {
    let machine = format!("seed {}, {} threads, {}", record.head.seed, record.threads, record.machine.cpu);
    record.ceilings.as_ref().map_or(machine.clone(), |rates| format!("{machine}\n{}", rates.text()))
}
