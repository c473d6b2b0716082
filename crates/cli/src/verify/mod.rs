//! `hammerhead verify`: every case of some suites, on every backend, in many configurations, against the reference.

mod layers;
mod linears;

use clap::Args as ClapArgs;
use gpu::simulated;
use hammerhead::cpu::{self, LAYOUT};
use hammerhead::{
    BACKEND_VARIABLE, Config, Engine, Epilogue, Options, Output, Plan, Problem, Request, Schedule, Setting, Strategy,
    Tile, backends,
};
use indicatif::ProgressBar;
use serde::Serialize;
use testkit::cases::{Instance, Suite};
use testkit::verify::{Expected, Report};

use crate::options::{each_once, thread_count};
use crate::selection::{self, Chosen, Defaults, Layers, Selection, SuiteName};
use crate::subject::Subject;
use crate::{Error, Result, console};

/// Operations up to which a case is tried in every configuration; beyond, once per strategy.
const SMALL: f64 = 1e9;

/// Check results against a double-precision reference
#[derive(Debug, ClapArgs)]
#[command(mut_arg("suite", |suite| suite.help(selection::suite_help("edge, adverse and decode"))))]
#[command(
    long_about = "Check results against a double-precision reference: every case of the suites, on every backend \
    that this machine has, in several configurations, under an error bound that is derived from the sums and from how the \
    backend adds. Outputs are filled with NaN before, so an element that nobody writes is found.\n\n\
    Without --suite and --shape the suites edge, adverse and decode are checked, a minute or so on two cores. Small cases are tried as \
    planned and in every strategy with several tiles, depths and stages; large ones as planned and once in every \
    strategy. --full tries large ones like small ones. The suite moe checks models' whole layers of experts, scaled down, with \
    every intermediate, batch-invariant and not; the suite fp8-weights checks plain products with FP8 and MXFP8 weights. \
    Of large results a sample is compared, drawn from the seed, corners included. Cases that a backend refuses are left out and counted. The simulator is checked where it is asked \
    for by name, and refuses all but small problems.\n\n\
    Examples:\n  \
    hammerhead verify\n  \
    hammerhead verify --suite dual --suite group --backend scalar\n  \
    hammerhead verify --backend sim\n  \
    hammerhead verify --suite moe --model deepseek-v3\n  \
    hammerhead verify --suite fp8-weights --backend cuda\n  \
    hammerhead verify --shape 256x4096x7168 --shape 80,176,128x4096x7168 --activation bf16\n  \
    hammerhead verify --suite edge --config strategy=ping-pong,stages=3 --seed 7"
)]
pub struct Args {
    /// Check this backend; may be given several times [default: HAMMERHEAD_BACKEND if set, else each one that this
    /// machine has]
    #[arg(long, value_name = "NAME", value_parser = known_backend)]
    backend: Vec<String>,
    /// Check this configuration, any part of one, with the keys of `hammerhead run --config`; may be given several
    /// times [default: a range of them]
    #[arg(long, value_name = "KEY=VALUE,…")]
    config: Vec<Request>,
    /// Threads to use [default: as many as this process may run on]
    #[arg(long, value_name = "N", value_parser = thread_count())]
    threads: Option<usize>,
    /// Try large cases in every configuration too
    #[arg(long)]
    full: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    layers: Layers,
}

#[derive(Serialize)]
struct Summary {
    seed: u64,
    passed: usize,
    failed: usize,
    /// Configurations that a backend called illegal for a case; they were not asked for by name.
    illegal: usize,
    /// Cases that a backend refused altogether, and one of its reasons.
    refused: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    backends: Vec<&'static str>,
    skipped: Vec<String>,
    failures: Vec<Wrong>,
    bound_used: Vec<Used>,
}

/// How much of what the bound allows a backend's worst result took, in a suite's cases of one output type: casts to
/// half precision take all of it, so that single precision tells more.
#[derive(Serialize)]
struct Used {
    suite: String,
    backend: &'static str,
    output: String,
    most: f64,
}

impl Summary {
    fn note_used(&mut self, suite: &str, backend: &'static str, output: Output, most: f64) {
        let (suite, output) = (suite.to_owned(), output.to_string());
        let same = |used: &&mut Used| used.suite == suite && used.backend == backend && used.output == output;
        match self.bound_used.iter_mut().find(same) {
            Some(used) => used.most = used.most.max(most),
            None => self.bound_used.push(Used { suite, backend, output, most }),
        }
    }
}

/// A check that failed.
#[derive(Serialize)]
struct Wrong {
    suite: String,
    case: String,
    why: &'static str,
    backend: &'static str,
    config: String,
    seed: u64,
    wrong: usize,
    compared: usize,
    first: String,
}

/// Checks every case in every way, and fails if one is wrong or none could be checked.
pub fn verify(args: &Args) -> Result<()> {
    let (engines, skipped) = engines(args)?;
    let defaults = Defaults { suites: &[Suite::Edge, Suite::Adverse, Suite::Decode], activations: &[], timed: false };
    let cases = args.selection.cases(defaults)?;
    let models = args.selection.models(&args.layers)?;
    let linears = args.selection.linears()?;
    if !linears.is_empty() && !args.config.is_empty() {
        return Err(Error::SuiteOption { option: "--config", suite: SuiteName::FP8_WEIGHTS });
    }
    let all = cases.len() + models.len() + linears.len();
    let bar = console::progress(all);
    let backends = engines.iter().map(|engine| engine.backends()[0].name()).collect();
    let mut summary = Summary {
        seed: args.selection.seed,
        passed: 0,
        failed: 0,
        illegal: 0,
        refused: 0,
        refusal: None,
        backends,
        skipped,
        failures: Vec::new(),
        bound_used: Vec::new(),
    };
    for case in &cases {
        bar.set_message(case.case.to_string());
        check_case(args, case, &engines, &mut summary, &bar)?;
        bar.inc(1);
    }
    layers::check(&args.selection, &models, &engines, &mut summary, &bar)?;
    linears::check(&linears, &engines, &mut summary, &bar)?;
    bar.finish_and_clear();
    if summary.passed + summary.failed == 0 {
        let reason = summary.refusal.unwrap_or_else(|| "there are none".to_owned());
        return Err(Error::NothingChecked { cases: all, reason });
    }
    tell(args, &summary)?;
    let (failed, all) = (summary.failed, summary.passed + summary.failed);
    match failed {
        0 => Ok(()),
        _ => Err(Error::Failed { failed, all, remedy: "each is listed above with what reproduces it" }),
    }
}

/// An engine for each backend, and why there is none for the others.
fn engines(args: &Args) -> Result<(Vec<Engine>, Vec<String>)> {
    let (mut engines, mut skipped) = (Vec::new(), Vec::new());
    let engine = |name: &str| {
        Engine::new(Options { backend: Some(name.to_owned()), threads: args.threads, ..Options::default() })
    };
    let environment = std::env::var(BACKEND_VARIABLE).ok().filter(|name| !name.is_empty() && name != "auto");
    let forced = if args.backend.is_empty() { Vec::from_iter(environment) } else { each_once(&args.backend) };
    for name in forced {
        engines.push(engine(&name)?);
    }
    if engines.is_empty() {
        for backend in backends::all() {
            match backend.available() {
                Ok(()) if backend.name() == simulated::NAME => skipped.push(format!(
                    "backend '{}' is slow and takes small problems only; ask for it with --backend {0}",
                    backend.name()
                )),
                Ok(()) => engines.push(engine(backend.name())?),
                Err(error) => skipped.push(error.to_string()),
            }
        }
    }
    Ok((engines, skipped))
}

/// A backend that is in the list.
fn known_backend(name: &str) -> hammerhead::Result<String> {
    backends::by_name(name).map(|backend| backend.name().to_owned())
}

fn check_case(
    args: &Args,
    chosen: &Chosen,
    engines: &[Engine],
    summary: &mut Summary,
    bar: &ProgressBar,
) -> Result<()> {
    let case = &chosen.case;
    let problem = case.computed_problem()?;
    let mut ways = Vec::new();
    for engine in engines {
        match plans(args, &problem, engine)? {
            Ok((plans, illegal)) => {
                summary.illegal += illegal;
                ways.push((engine, plans));
            }
            Err(refusal) => {
                summary.refused += 1;
                summary.refusal.get_or_insert(refusal);
            }
        }
    }
    if ways.is_empty() {
        return Ok(());
    }
    let instance = chosen.instance(args.selection.seed)?;
    let expected = Expected::new(&instance, case.is_community(), args.selection.seed, &cpu::team(args.threads)?);
    for (engine, plans) in ways {
        let layer = engine.load(&instance.weights, case.gate)?.with_precision(case.precision);
        for plan in plans {
            let (backend, config) = (plan.backend().name(), plan.config().to_string());
            bar.set_message(format!("{case} {backend} {config}"));
            let mut subject = Subject::new(&instance, plan);
            let outcome = subject.compute(engine, &layer).and_then(|_| subject.judge(&expected));
            if let Ok(report) = &outcome {
                summary.note_used(&chosen.origin.suite, backend, case.output, report.max_ratio);
            }
            match wrong(outcome, &instance) {
                None => summary.passed += 1,
                Some((wrong, compared, first)) => {
                    summary.failed += 1;
                    let (suite, seed) = (chosen.origin.suite.clone(), args.selection.seed);
                    let (case, why) = (case.to_string(), case.why);
                    summary.failures.push(Wrong { suite, case, why, backend, config, seed, wrong, compared, first });
                }
            }
        }
    }
    Ok(())
}

/// How many elements are wrong, of how many, and the first of them; nothing if all is well.
fn wrong(outcome: Result<Report>, instance: &Instance) -> Option<(usize, usize, String)> {
    match outcome {
        Ok(report) if judged(&report, instance) => None,
        Ok(Report { failures, compared, first, .. }) => {
            Some((failures, compared, first.map_or_else(|| "nothing was compared".into(), |first| first.to_string())))
        }
        Err(error) => Some((0, 0, error.to_string())),
    }
}

/// Whether a report says that all is well, and that anything was looked at where there was something.
fn judged(report: &Report, instance: &Instance) -> bool {
    let something = instance.problem.groups().iter().any(|s| s.m > 0);
    report.passed() && (report.compared > 0) == something
}

/// The ways in which a case is tried on an engine's backend, each once, and how many the backend called illegal; or why
/// the backend refuses the case whatever the configuration.
fn plans(args: &Args, problem: &Problem, engine: &Engine) -> Result<Result<(Vec<Plan>, usize), String>> {
    let plan = |request: &Request| Plan::best(problem.clone(), &engine.backends(), request, engine.threads());
    let planned = match plan(&Request::default()) {
        Ok(planned) => planned,
        Err(hammerhead::Error::Illegal { reason, .. } | hammerhead::Error::Fp8Tokens { reason }) => {
            return Ok(Err(reason));
        }
        Err(error) => return Err(error.into()),
    };
    if !args.config.is_empty() {
        let plans: Result<Vec<Plan>> = args.config.iter().map(|request| Ok(plan(request)?)).collect();
        return Ok(Ok((plans?, 0)));
    }
    let mut plans: Vec<Plan> = vec![planned];
    let mut illegal = 0;
    for request in requests(args.full || problem.flops() <= SMALL).into_iter().chain(own_sizes(engine, problem)) {
        // A configuration that some backend cannot run for some problem is not a failure of that backend.
        match plan(&request) {
            Ok(new) if plans.iter().all(|old| way(old) != way(&new)) => plans.push(new),
            Ok(_) => {}
            Err(_) => illegal += 1,
        }
    }
    Ok(Ok((plans, illegal)))
}

/// Some of the sizes that a backend has of its own, where it has not those of the CPU's; and each of its settings with
/// each strategy.
fn own_sizes(engine: &Engine, problem: &Problem) -> Vec<Request> {
    let backend = engine.backends()[0];
    if backend.layout() == LAYOUT {
        return Vec::new();
    }
    let own = backend.candidates(problem, engine.threads());
    let set = |(setting, strategy): (&Setting, Strategy)| {
        let has =
            |config: &&Config| config.strategy == strategy && config.own.iter().any(|(key, _)| key == setting.key());
        own.iter().find(has)
    };
    let with_settings = backend.settings().iter().flat_map(|setting| Strategy::ALL.map(|strategy| (setting, strategy)));
    let some = own.len().div_ceil(8).max(1);
    own.iter().step_by(some).chain(with_settings.filter_map(set)).map(|config| Request::from(*config)).collect()
}

fn way(plan: &Plan) -> (&'static str, Config) {
    (plan.backend().name(), *plan.config())
}

/// Every strategy as planned; and, if that is not enough, with tiles that cut small problems in many pieces, in a few
/// and not at all, with one to four stages, and persistent with every epilogue.
fn requests(many: bool) -> Vec<Request> {
    let mut requests = Vec::new();
    for strategy in Strategy::ALL {
        let as_planned = Request { strategy: Some(strategy), ..Request::default() };
        requests.push(as_planned);
        let shapes = [(16, 16, 64, 2), (32, 48, 128, 3), (256, 512, 512, 1), (64, 32, 256, 4)];
        for (tokens, columns, depth, stages) in shapes.into_iter().filter(|_| many) {
            let tile = Some(Tile { tokens, columns });
            // Ping-pong expands one panel while it multiplies another.
            let stages = if strategy == Strategy::PingPong { stages.max(2) } else { stages };
            requests.push(Request { tile, depth: Some(depth), stages: Some(stages), ..as_planned });
        }
        let epilogues = Epilogue::ALL.into_iter().filter(|_| many);
        let schedule = Some(Schedule::Persistent);
        requests.extend(epilogues.map(|epilogue| Request { epilogue: Some(epilogue), schedule, ..as_planned }));
    }
    requests
}

fn tell(args: &Args, summary: &Summary) -> Result<()> {
    if args.json {
        return console::print_json(summary);
    }
    let mut text = String::new();
    for skipped in &summary.skipped {
        text += &format!("skipped: {skipped}\n");
    }
    for wrong in &summary.failures {
        let Wrong { suite, case, why, backend, config, seed, wrong, compared, first } = wrong;
        text += &format!(
            "FAILED: {suite} {case} ({why}) on {backend} with {config}, seed {seed}: {wrong} of {compared} wrong; {first}\n"
        );
    }
    for Used { suite, backend, output, most } in &summary.bound_used {
        text += &format!("bound: {backend} used at most {most:.3} of it in {suite}, with {output} results\n");
    }
    let Summary { passed, failed, illegal, refused, refusal, backends, seed, .. } = summary;
    if let Some(refusal) = refusal {
        text += &format!("not tried: {refused} cases that a backend refuses, the first because {refusal}\n");
    }
    if *illegal > 0 {
        text += &format!("not tried: {illegal} configurations that a backend calls illegal for a case\n");
    }
    text += &format!("{passed} passed, {failed} failed on {} (seed {seed})\n", backends.join(", "));
    console::print(&text)
}
