//! `hammerhead run`: the main job. Computes one problem from a file, or, without one, problems that it makes, checked
//! against the reference before their time is given.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgGroup, Args as ClapArgs};
use format::Values;
use format::tensors::File;
use gpu::foretold;
use half::{bf16, f16};
use hammerhead::{Engine, Output, Plan, Problem, Target, Weights, backends, expect_finite};
use serde::Serialize;
use testkit::cases::{Instance, Suite};
use testkit::verify::{Expected, Report};

use crate::computed::{COPIES_NOTE, Clock, Computed, Planned, on_device};
use crate::explain::{self, Weighed};
use crate::floor::{Floor, Rates};
use crate::layer::{Choice, Opened};
use crate::options::{How, each_once};
use crate::problem_file::ProblemFile;
use crate::selection::{self, Chosen, Defaults, Layers, Origin, Selection};
use crate::subject::Subject;
use crate::table::{self, Table};
use crate::timing::Spread;
use crate::whole_layer::{self, LayerArgs, Wish};
use crate::{Error, Result, console, files, memory, predict, shapes};

/// Runs of a case that are timed, at most.
const RUNS: usize = 7;
/// Seconds after which no further run of a case is begun.
const SECONDS: f64 = 1.0;

/// Compute a problem from a file, or problems made from a seed
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("source").args(["input", "checkpoint"]).conflicts_with_all(["suite", "shape", "activation", "all"]))]
#[command(mut_arg("suite", |suite| suite.help(selection::suite_help("dual and group"))))]
#[command(mut_arg("gate", |gate| gate.help("The gate: silu, silu:limit=10, gelu-tanh, gpt-oss (or gpt-oss:alpha=1.702,beta=1,limit=7); of a single product relu2 or none \
    [default: each case's own, and silu for a shape; with --input silu if there is a b2, else none; with --checkpoint the model's own]")))]
#[command(long_about = "Compute C = gate(A·B1ᵀ) ∘ (A·B2ᵀ).\n\n\
    Without --input, problems are made from a seed, computed as planned, checked against a double-precision reference \
    (all of small problems, a sample of large ones) and timed: those of the suites dual and group, or of the suites and \
    shapes that are named. `floor` is the least time that this machine's arithmetic and memory would allow, both \
    measured in the same run, as a part of the time taken; `bound` is the largest error as a part of what the derived bound allows.\n\n\
    With --input and --output, one problem is read from safetensors and its result written:\n  \
    a, b1, b2                    U8 [rows, K/2], even k in the low nibble\n  \
    a_scale, b1_scale, b2_scale  F8_E4M3 [rows, K/16]\n  \
    a_global, …                  F32 scalars that multiply (or a_scale_2, …), 1 if absent\n\
    `a` may instead be F16, BF16 or F32 [M, K] without a scale. Without b2 it is a plain GEMM. A group is the same names \
    prefixed g0., g1., … The result is c (or g0.c, …), [M, N].\n\n\
    A file with x instead is a whole layer of experts, y[t] = Σ_j w[t,j]·MLP_e(x[t]), e = ids[t,j], with \
    MLP(x) = down(gate(x·B1ᵀ + b1, x·B2ᵀ + b2)) + b3:\n  \
    x                       F16, BF16 or F32 [T, K]\n  \
    logits                  F32 [T, E], with --routing and --top-k; correction F32 [E] for sigmoid, if there is one; or\n  \
    ids, weights            I32 or I64, and F32, [T, top]; ids outside 0..E add nothing\n  \
    e0.b1, e0.b2, e0.down   U8 [rows, K/2] for each expert e0, e1, …, no b2 where the gate takes one matrix; each with\n  \
    …_scale, …_global       F8_E4M3 [rows, K/16], and F32 that multiplies, 1 if absent\n  \
    …_bias                  F32, BF16 or F16 [rows], if there are any\n  \
    e0.b1_input_scale, e0.down_input_scale  F32 [K], what tokens are multiplied with first (AWQ), if anything\n  \
    e0.down_input_global    F32, the scale of an nvfp4 intermediate, 1 if absent\n  \
    shared.…                the same names: an expert for every token; shared.gate F32 [K] multiplies it with σ(x·v)\n\
    Its result is y, [T, K].\n\n\
    With --checkpoint and --layer, the weights are those of a model's layer, one group per expert. With --output the \
    result is written, c or g0.c, …; without, it is checked and timed like a problem of the suites. With --whole it is the whole feed-forward \
    layer, from the router to the sum, and the result is y.\n\n\
    Examples:\n  \
    hammerhead run\n  \
    hammerhead run --shape 256x4096x7168 --activation bf16 --result bf16\n  \
    hammerhead run --shape 80,176,128x4096x7168 --gate gelu-tanh\n  \
    hammerhead run --checkpoint Qwen3-30B-A3B-NVFP4 --layer 0 --experts 0,3,5 --m 32\n  \
    hammerhead run --checkpoint Qwen3-30B-A3B-NVFP4 --layer 0 --whole --m 32\n  \
    hammerhead run --suite decode --threads 2\n  \
    hammerhead run --input problem.safetensors --output c.safetensors --result bf16\n  \
    hammerhead run --input layer.safetensors --output y.safetensors --routing softmax-renorm --top-k 8 --save layer.packed\n  \
    hammerhead run --input tokens.safetensors --output y.safetensors --packed layer.packed\n  \
    hammerhead run --suite dual --config strategy=interleaved,tile=128x64 --explain\n  \
    hammerhead run --suite dual --explain --device b200\n  \
    hammerhead run --suite dual --explain --device h200,b200 --html phases.html\n  \
    hammerhead run --suite moe --model qwen3-30b-a3b --explain --device h200")]
pub struct Args {
    /// Read one problem, or a whole layer, from this safetensors file
    #[arg(long, value_name = "FILE", requires = "output", conflicts_with = "seed")]
    input: Option<PathBuf>,
    /// Write its result to this safetensors file
    #[arg(long, value_name = "FILE", requires = "source")]
    output: Option<PathBuf>,
    /// Every case of the suites, also those that are not there for their speed
    #[arg(long)]
    all: bool,
    /// Show what the planner weighed, and why it took what it took
    #[arg(long)]
    explain: bool,
    /// With --explain: say what these GPUs, which need not be there, should take, phase by phase, and compute nothing:
    /// h200, h100, a100, rtx3090, rtx4090, l40s, b200, rtx5090 or dgx-spark
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "explain", conflicts_with_all = ["input", "output", "checkpoint"])]
    device: Vec<String>,
    /// With --device: draw the phases of every problem and GPU as a page, too; it needs no network
    #[arg(long, value_name = "FILE", requires = "device")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing beside the result
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    layers: Layers,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    layer: LayerArgs,
    #[command(flatten)]
    how: How,
}

/// Takes the problem from where the options say.
pub fn run(args: &Args) -> Result<()> {
    if args.choice.mlp {
        return Err(Error::OldSpelling { old: "--mlp", new: "--whole".to_owned() });
    }
    match (&args.input, &args.choice.checkpoint, &args.output) {
        (Some(input), _, Some(output)) => run_file(args, input, output),
        (_, Some(model), output) => run_layer(args, model, output.as_deref()),
        _ => run_selected(args),
    }
}

#[derive(Serialize)]
struct FileReport {
    #[serde(flatten)]
    planned: Planned,
    output_type: String,
    threads: usize,
    seconds: f64,
    gflops: f64,
    input: String,
    output: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    considered: Option<Vec<Weighed>>,
}

fn run_file(args: &Args, input: &Path, output: &Path) -> Result<()> {
    files::check_output(input, output)?;
    let file = File::open(input)?;
    if args.layer.reads(&file) {
        return whole_layer::run_file(&file, input, output, &wish(args, Some(output)), &args.how.engine()?);
    }
    refuse_layer_options(args, "the file has no x, so it is a problem of products")?;
    compute(args, &ProblemFile::read(&file, args.selection.gate)?, input, output)
}

/// A layer of a checkpoint: computed into a file, or checked and timed.
fn run_layer(args: &Args, path: &Path, output: Option<&Path>) -> Result<()> {
    let opened = args.choice.open(path)?;
    if args.layer.whole {
        return run_whole(args, &opened, output);
    }
    refuse_layer_options(args, "without --whole the experts' gated products are computed")?;
    match output {
        Some(output) => {
            for input in opened.model.files().chain(args.choice.tokens.as_deref()) {
                files::check_output(input, output)?;
            }
            compute(args, &opened.problem(args.selection.gate, args.selection.seed)?, path, output)?;
        }
        None => {
            let problem = opened.problem(args.selection.gate, args.selection.seed)?;
            // The weights are held as they are in the file, for the reference, and packed.
            let bytes: usize = problem.weights.iter().map(Weights::checkpoint_bytes).sum();
            memory::require(2.0 * bytes as f64, "checking this layer", "choose fewer --experts, or give an --output")?;
            let mut instance = problem.into_instance(args.selection.out.unwrap_or_default())?;
            instance.problem = instance.problem.with_precision(args.selection.precision.unwrap_or_default())?;
            let engine = args.how.engine()?;
            let mut floor = Floor::new(&engine)?;
            floor.sample(engine.team());
            let origin = Origin { suite: path.display().to_string(), why: "a layer of a checkpoint" };
            let row = run_instance(args, &instance, origin, false, &engine)?;
            floor.sample(engine.team());
            conclude(args, vec![row], &floor, &engine)?;
        }
    }
    if args.quiet { Ok(()) } else { opened.warn() }
}

/// A whole feed-forward layer of a checkpoint: computed into a file, or checked and timed.
fn run_whole(args: &Args, opened: &Opened, output: Option<&Path>) -> Result<()> {
    for input in opened.model.files().chain(args.choice.tokens.as_deref()) {
        for output in output.into_iter().chain(args.layer.written()) {
            files::check_output(input, output)?;
        }
    }
    whole_layer::run(opened, &wish(args, output), &args.how.engine()?)
}

/// What the options ask of a whole layer.
fn wish<'a>(args: &'a Args, output: Option<&'a Path>) -> Wish<'a> {
    let Selection { gate, out, precision, seed, .. } = args.selection;
    let (layer, out, precision) = (&args.layer, out.unwrap_or_default(), precision.unwrap_or_default());
    Wish { layer, gate, out, precision, seed, output, explain: args.explain, json: args.json, quiet: args.quiet }
}

/// Refuses options that only whole layers have, where this is none.
fn refuse_layer_options(args: &Args, found: &'static str) -> Result<()> {
    match args.layer.given() {
        Some(option) => Err(Error::ProductOption { option, found, remedy: "leave it out, or give a layer" }),
        None => Ok(()),
    }
}

/// Computes a problem into a file.
fn compute(args: &Args, read: &ProblemFile<'_>, input: &Path, output: &Path) -> Result<()> {
    let engine = args.how.engine()?;
    let precision = args.selection.precision.unwrap_or_default();
    let problem = read.problem(args.selection.out.unwrap_or_default())?.with_precision(precision)?;
    let output_type = problem.output();
    let mut results = room_for(&Plan::best(problem, &engine.backends(), &args.how.request(), engine.threads())?)?;
    let layer = engine.load(&read.weights, read.gate)?.with_precision(precision);
    expect_finite(&read.activations).map_err(|error| read.name_tensor(error))?;
    let plan = engine.plan(&layer, &read.activations, output_type).map_err(|error| read.name_tensor(error))?;
    let clock = Instant::now();
    engine
        .run_planned(&plan, &layer, &read.activations, &mut Target::all(&mut results))
        .map_err(|error| read.name_tensor(error))?;
    let seconds = clock.elapsed().as_secs_f64();
    read.write(output, results)?;
    tell_file(args, &plan, &engine, seconds, input, output)
}

fn tell_file(args: &Args, plan: &Plan, engine: &Engine, seconds: f64, input: &Path, output: &Path) -> Result<()> {
    let problem = plan.problem();
    let planned = Planned::of(plan, Clock::Host);
    let gflops = problem.flops() / seconds / 1e9;
    if args.json {
        return console::print_json(&FileReport {
            planned,
            output_type: problem.output().to_string(),
            threads: engine.threads(),
            seconds,
            gflops,
            input: input.display().to_string(),
            output: output.display().to_string(),
            considered: args.explain.then(|| explain::weighed(plan)),
        });
    }
    if args.explain {
        console::print(&explain::text(plan))?;
    }
    if !args.quiet {
        let how = match planned.copies_included {
            true => "copies to and from the GPU included".to_owned(),
            false => format!("on {} threads", engine.threads()),
        };
        console::remark(&format!(
            "{problem} {}, gate {}, {}: {} in {} ({} GFLOP/s) with {}, {how} → {}",
            problem.activation(),
            problem.gate(),
            problem.output(),
            plan.config(),
            table::seconds(seconds),
            table::three_digits(gflops),
            planned.backend,
            output.display(),
        ));
    }
    Ok(())
}

/// Memory for the results, if there is enough for them and for everything else that the plan needs.
fn room_for(plan: &Plan) -> Result<Vec<Values<'static>>> {
    let problem = plan.problem();
    let groups = problem.groups();
    let result_bytes: f64 = groups.iter().map(|s| s.m as f64 * s.n as f64 * problem.output().bytes() as f64).sum();
    // The results are there twice while they are written.
    let needed = 2.0 * result_bytes + shapes::weight_bytes(problem, |_| true) + plan.cost().scratch_bytes as f64;
    let remedy = "split the problem by tokens, or use a machine with more memory";
    memory::require(needed, format!("the problem {problem}"), remedy)?;
    fn blank<T: Clone>(elements: usize, zero: T) -> Result<Vec<T>> {
        let mut values = Vec::new();
        values.try_reserve_exact(elements).map_err(|_| Error::Memory {
            what: "the result".to_owned(),
            needed: elements as f64 * size_of::<T>() as f64,
            free: memory::free().unwrap_or(0.0),
            remedy: "split the problem by tokens, or use a machine with more memory",
        })?;
        values.resize(elements, zero);
        Ok(values)
    }
    let elements = groups.iter().map(|s| s.m * s.n);
    match problem.output() {
        Output::F16 => elements.map(|e| Ok(blank(e, f16::ZERO)?.into())).collect(),
        Output::BF16 => elements.map(|e| Ok(blank(e, bf16::ZERO)?.into())).collect(),
        Output::F32 => elements.map(|e| Ok(blank(e, 0f32)?.into())).collect(),
    }
}

#[derive(Serialize)]
struct SuiteReport {
    seed: u64,
    threads: usize,
    ceilings: Option<Rates>,
    cases: Vec<Row>,
}

/// One case, computed, checked and timed.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    computed: Computed,
    seconds: Spread,
    gflops: f64,
    floor_seconds: Option<f64>,
    of_floor: Option<f64>,
    elements: usize,
    passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    considered: Option<Vec<Weighed>>,
    #[serde(skip)]
    plan: Plan,
}

/// Refuses a backend that does not compute on a GPU of that name.
fn expect_computes_on(backend: &str, device: &str) -> Result<()> {
    let on_gpus = backends::by_name(backend).is_ok_and(on_device);
    let foretold = backend.strip_prefix(foretold::PREFIX).is_some_and(|name| name.eq_ignore_ascii_case(device));
    if backend == "auto" || on_gpus || foretold {
        return Ok(());
    }
    Err(Error::OtherBackend { backend: backend.to_owned(), device: device.to_owned() })
}

fn run_selected(args: &Args) -> Result<()> {
    args.selection.expect_timed()?;
    let models = args.selection.models(&args.layers)?;
    let devices = each_once(&args.device);
    let explained = |problems: &[Problem]| {
        predict::explain(&devices, problems, &args.how.request(), (args.json, args.html.as_deref()))
    };
    if !models.is_empty() && !devices.is_empty() {
        let Selection { activation, out, .. } = &args.selection;
        return explained(&predict::layers(&models, activation, *out)?);
    }
    if !models.is_empty() {
        let remedy = "take hammerhead verify or bench with --suite moe, or --explain and --device here";
        return Err(Error::LayerOption { option: "run", remedy });
    }
    let defaults = Defaults { suites: &[Suite::Dual, Suite::Group], activations: &[], timed: !args.all };
    let cases = args.selection.cases(defaults)?;
    if !devices.is_empty() {
        devices.iter().try_for_each(|device| expect_computes_on(&args.how.backend, device))?;
        return explained(&predict::products(&cases)?);
    }
    let engine = args.how.engine()?;
    let mut floor = Floor::new(&engine)?;
    let bar = console::progress(cases.len());
    let mut rows = Vec::new();
    for case in &cases {
        bar.set_message(case.case.to_string());
        floor.sample(engine.team());
        rows.push(run_case(args, case, &engine)?);
        floor.sample(engine.team());
        bar.inc(1);
    }
    bar.finish_and_clear();
    conclude(args, rows, &floor, &engine)
}

/// Adds to every row how near it is to the least possible time, prints them, and fails if one is wrong.
fn conclude(args: &Args, mut rows: Vec<Row>, floor: &Floor, engine: &Engine) -> Result<()> {
    let ceilings = floor.rates();
    for row in &mut rows {
        row.floor_seconds = ceilings.as_ref().and_then(|rates| rates.seconds(&row.plan));
        row.of_floor = row.floor_seconds.map(|floor| floor / row.seconds.median);
    }
    let failed = rows.iter().filter(|row| !row.passed).count();
    let all = rows.len();
    tell_suites(args, SuiteReport { seed: args.selection.seed, threads: engine.threads(), ceilings, cases: rows })?;
    match failed {
        0 => Ok(()),
        _ => Err(Error::Failed { failed, all, remedy: "see the verdicts above; hammerhead verify says more" }),
    }
}

fn run_case(args: &Args, chosen: &Chosen, engine: &Engine) -> Result<Row> {
    run_instance(
        args,
        &chosen.instance(args.selection.seed)?,
        chosen.origin.clone(),
        chosen.case.is_community(),
        engine,
    )
}

/// Computes a problem, checks it, and only then times it.
fn run_instance(args: &Args, instance: &Instance, origin: Origin, community: bool, engine: &Engine) -> Result<Row> {
    let layer = engine.load(&instance.weights, instance.problem.gate())?;
    let layer = layer.with_precision(instance.problem.precision());
    let plan = engine.plan(&layer, &instance.activations, instance.problem.output())?;
    let mut subject = Subject::new(instance, plan.clone());
    let first = subject.compute(engine, &layer)?;
    let expected = Expected::new(instance, community, args.selection.seed, engine.team());
    let report = subject.judge(&expected)?;
    // The first run warms everything up; where it is all there is time for, it has to do.
    let mut samples = Vec::new();
    let mut spent = first;
    while spent < SECONDS && samples.len() < RUNS {
        let seconds = subject.compute(engine, &layer)?;
        spent += seconds;
        samples.push(seconds);
    }
    if samples.is_empty() {
        samples.push(first);
    }
    Ok(row(args, origin, plan, &report, Spread::of(&samples)))
}

fn row(args: &Args, origin: Origin, plan: Plan, report: &Report, seconds: Spread) -> Row {
    Row {
        computed: Computed::of(origin, &plan, Clock::Host, report),
        seconds,
        gflops: plan.problem().flops() / seconds.median / 1e9,
        floor_seconds: None,
        of_floor: None,
        elements: report.elements,
        passed: report.passed(),
        failure: report.first.as_ref().map(ToString::to_string),
        considered: args.explain.then(|| explain::weighed(&plan)),
        plan,
    }
}

fn tell_suites(args: &Args, report: SuiteReport) -> Result<()> {
    if args.json {
        return console::print_json(&report);
    }
    let mut text = String::new();
    if args.explain {
        text.extend(report.cases.iter().map(|row| explain::text(&row.plan) + "\n"));
    }
    let mut table =
        Table::new(&["shape m×n×k", ">time", ">GFLOP/s", ">floor", "a/gate/c", "backend", ">bound", "check"]);
    for row in &report.cases {
        let Computed { planned, max_error_of_bound, compared, .. } = &row.computed;
        let sample = if *compared == row.elements { String::new() } else { format!(" ({compared})") };
        table.row([
            planned.sizes(),
            table::seconds(row.seconds.median),
            table::three_digits(row.gflops),
            table::of_floor(row.of_floor),
            row.computed.types(),
            planned.backend_text(),
            table::of_bound(*max_error_of_bound),
            if row.passed { format!("ok{sample}") } else { "WRONG".to_owned() },
        ]);
    }
    text += &table.text();
    if report.cases.iter().any(|row| row.computed.planned.copies_included) {
        text += COPIES_NOTE;
    }
    for row in &report.cases {
        let Computed { planned, origin, .. } = &row.computed;
        let line = |failure: &String| format!("wrong: {} ({}): {failure}\n", planned.problem, origin.why);
        text.extend(row.failure.as_ref().map(line));
    }
    console::print(&text)?;
    if !args.quiet {
        console::remark(&format!("seed {}, {} threads", report.seed, report.threads));
        if let Some(rates) = &report.ceilings {
            console::remark(&rates.text());
        }
    }
    Ok(())
}
