//! `hammerhead check`: anybody's PTX in the simulator.
//!
//! A text and a file that says how it is launched are all it takes: no GPU, no driver, no toolkit. The kernel runs
//! under adversarial schedules; what breaks a rule of the machine, and what comes out wrong, is a finding.

mod args;
mod arrays;
mod launch;
mod mutations;
mod page;
mod sarif;
mod suppress;

use std::path::PathBuf;

use clap::Args as ClapArgs;
use ptx::Kernel;
use ptx::parse::{Module, Shape};
use serde::Serialize;
use sim::{Access, FaultKind, Gpu, Grade, Graded, Limits, Rules, Schedule, Timeline};

use crate::{Error, Result, console, files, timeline};
use launch::Launch;
use mutations::Mutations;
use suppress::Suppressions;

/// How much longer than the kernel a mutant may run before it is given up.
const MUTANT_PATIENCE: u64 = 20;

/// Run anybody's PTX kernel in the simulator, and look for races
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Run a PTX kernel of any compiler in the simulator, under adversarial schedules: asynchronous work done at once, as \
    late as can be, and as drawn from seeds. It needs no GPU.\n\n\
    The launch file says which entry, how many blocks of how many threads, what is in memory and what the arguments are; \
    docs/check.md describes it. Races, deadlocks, reads of what was never written, accesses out of bounds and \
    broken rules of barriers, copies and tensor cores are findings, and so are results that differ from those expected.\n\n\
    A finding is broken, seen (the ISA forbids it, and hardware has misbehaved), or letter (the ISA forbids it, and no hardware is \
    known to mind); the last are looked for with --rules letter.\n\n\
    With --mutations every kernel that differs from it by one plausible mistake is run as well, and counted if that is found: a score \
    for the launch, its expected results and the schedules.\n\n\
    Exit status: 0 nothing was found, 1 something was, 2 the kernel could not be run.\n\n\
    Examples:\n  \
    hammerhead check matmul.ptx --launch matmul.toml\n  \
    hammerhead check matmul.ptx --launch matmul.toml --html matmul.html\n  \
    hammerhead check matmul.ptx --launch matmul.toml --rules letter --schedules 50 --json"
)]
pub struct Args {
    /// The text: one or more kernels as a compiler writes them
    kernel: PathBuf,
    /// How it is launched
    #[arg(long, value_name = "FILE")]
    launch: PathBuf,
    /// Whose word counts where published kernels rely on more than the ISA promises
    #[arg(long, value_enum, default_value_t = RulesName::Practice)]
    rules: RulesName,
    /// Schedules to try: the earliest, the latest, and random ones
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    schedules: u64,
    /// Findings that are known: rules, words that a finding contains, and the reason why it is let pass
    #[arg(long, value_name = "FILE")]
    suppress: Option<PathBuf>,
    /// Write what the first schedule leaves in the buffers to this folder, as numpy files
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
    /// Make every plausible mistake in it, one at a time, and say how many are found
    #[arg(long, conflicts_with_all = ["sarif", "suppress"])]
    mutations: bool,
    /// Write a page to this file: both sides of each race in the kernel's text, and timelines of the run
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print SARIF, for code hosts
    #[arg(long, conflicts_with = "json")]
    sarif: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RulesName {
    /// What hardware and published kernels do
    Practice,
    /// What the ISA promises, and no more
    Letter,
}

/// What came of all schedules.
#[derive(Serialize)]
struct Report {
    kernel: String,
    schedules: usize,
    /// The worst first, once per rule and pair of instructions.
    findings: Vec<Finding>,
    /// Findings that were let pass.
    suppressed: Vec<Suppressed>,
    /// Suppressions that nothing needed.
    unused_suppressions: Vec<String>,
    /// What a run that came to its end has moved and computed.
    profile: Vec<String>,
    /// What became of mistakes that were made on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    mutations: Option<Mutations>,
}

#[derive(Serialize)]
struct Finding {
    /// How bad it is: `broken`, `seen` or `letter`.
    grade: &'static str,
    /// The report of hardware that misbehaved, of one that is `seen`.
    report: Option<&'static str>,
    /// A short name of the rule.
    rule: &'static str,
    /// The first schedule that led there; the same one leads there again.
    schedule: String,
    /// The line of the text, counted from one.
    line: Option<u32>,
    /// Where it was written, by the compiler's word: the file and line, and those of the calls around it.
    source: Option<String>,
    /// Of a race, the line of the other side, and where that was written.
    other_line: Option<u32>,
    other_source: Option<String>,
    /// Of a race, both sides and what is missing between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    race: Option<Race>,
    message: String,
}

#[derive(Serialize)]
struct Race {
    /// The bytes, in words.
    place: String,
    first: Side,
    second: Side,
    lacks: String,
    remedy: &'static str,
}

/// One side of a race.
#[derive(Serialize)]
struct Side {
    /// Whether it reads or writes, and by whom.
    access: String,
    /// Block, warp and lanes.
    by: String,
    line: Option<u32>,
    source: String,
    instruction: String,
}

#[derive(Serialize)]
struct Suppressed {
    finding: Finding,
    reason: String,
}

/// Checks a kernel.
pub fn check(args: &Args) -> Result<()> {
    let cannot = |what: String| Error::CannotCheck { what };
    let text = std::fs::read_to_string(&args.kernel)
        .map_err(|error| cannot(format!("cannot read {:?}: {error}; name a file of PTX", args.kernel)))?;
    let launch = Launch::open(&args.launch)?;
    let refused = |error: ptx::Error| cannot(format!("{:?}: {error}", args.kernel));
    let module = Module::read(&text).map_err(refused)?;
    let entry = match &launch.entry {
        Some(entry) => entry,
        None => module.only_entry().map_err(refused)?,
    };
    let (block, cluster) = (launch.block, launch.cluster);
    let shape = Shape { block, cluster, dynamic_shared: launch.shared, cooperative: launch.cooperative };
    let kernel = module.kernel(entry, shape).map_err(refused)?;
    let suppressions = args.suppress.as_deref().map(Suppressions::open).transpose()?.unwrap_or_default();
    args.html.iter().try_for_each(|path| files::check_report(path))?;
    let report = explore(&kernel, &launch, &suppressions, args)?;
    if let Some(path) = &args.html {
        let runs = timelines(&kernel, &launch, args)?;
        files::write_report(path, &page::html(&report, (&kernel, &text), &runs))?;
    }
    match (args.json, args.sarif) {
        (true, _) => console::print_json(&report)?,
        (_, true) => console::print_json(&sarif::sarif(&report, &args.kernel.to_string_lossy()))?,
        _ => console::print(&words(&report, &text))?,
    }
    match report.findings.len() {
        0 => Ok(()),
        findings => Err(Error::Findings { findings, kernel: kernel.name }),
    }
}

impl Args {
    fn schedules(&self) -> Vec<Schedule> {
        let mut schedules = Schedule::several(self.schedules.saturating_sub(2));
        schedules.truncate(self.schedules as usize);
        schedules
    }

    fn rules(&self) -> Rules {
        match self.rules {
            RulesName::Practice => Rules::Practice,
            RulesName::Letter => Rules::Letter,
        }
    }
}

/// What the kernel does when, under some of the schedules.
fn timelines(kernel: &Kernel, launch: &Launch, args: &Args) -> Result<Vec<(Schedule, Timeline)>> {
    let (device, buffers) = launch.memory(Gpu::new(Limits::suiting(kernel)).with_rules(args.rules()));
    let invocation = launch.invocation(kernel, &buffers)?;
    let schedules = args.schedules();
    let run = |&schedule: &Schedule| (schedule, device.clone().timeline(kernel, &invocation, schedule));
    Ok(timeline::shown(&schedules).iter().map(run).collect())
}

/// Runs the kernel under each schedule, and keeps what was found, less what is let pass.
fn explore(kernel: &Kernel, launch: &Launch, suppressions: &Suppressions, args: &Args) -> Result<Report> {
    let (schedules, rules) = (args.schedules(), args.rules());
    let limits = Limits::suiting(kernel);
    let (device, buffers) = launch.memory(Gpu::new(limits));
    let invocation = launch.invocation(kernel, &buffers)?;
    let judge = |gpu: &Gpu| launch.wrong(gpu, &buffers).into_iter().map(|(_, message)| message).collect();
    let survey = sim::survey(kernel, &schedules, rules, || (device.clone(), invocation.clone()), judge);
    for graded in &survey.findings {
        if let sim::Finding::Fault(fault) = &graded.finding
            && let FaultKind::Unsupported { .. } | FaultKind::BadLaunch { .. } | FaultKind::OverLimit { .. } =
                fault.kind
        {
            return Err(Error::CannotCheck { what: format!("kernel {}: {}", kernel.name, fault.kind) });
        }
    }
    if let (Some(folder), Some(first)) = (&args.save, schedules.first()) {
        let mut gpu = device.clone();
        gpu.survey(kernel, &invocation, *first);
        launch.save(&gpu, &buffers, folder)?;
    }
    let (mut findings, mut suppressed) = (Vec::new(), Vec::new());
    for graded in &survey.findings {
        let finding = found(graded);
        match suppressions.reason(&finding).map(str::to_owned) {
            Some(reason) => suppressed.push(Suppressed { finding, reason }),
            None => findings.push(finding),
        }
    }
    let mutations = match &survey.profile {
        Some(profile) if args.mutations && findings.is_empty() => {
            // A mistake may make it run for long.
            let most = profile.instructions().saturating_mul(MUTANT_PATIENCE).saturating_add(1_000_000);
            let (device, _) = launch.memory(Gpu::new(Limits { instructions: most, ..limits }).with_rules(rules));
            let verify = |gpu: &Gpu| match &launch.wrong(gpu, &buffers)[..] {
                [] => Ok(()),
                [(_, message), ..] => Err(message.clone()),
            };
            let prepare = || (device.clone(), invocation.clone());
            Some(Mutations::new(kernel, &sim::try_mutants(kernel, &schedules, prepare, verify)))
        }
        _ => None,
    };
    let profile = survey.profile.map_or(String::new(), |profile| profile.to_string());
    Ok(Report {
        kernel: kernel.name.clone(),
        schedules: schedules.len(),
        findings,
        suppressed,
        unused_suppressions: suppressions.unused(),
        profile: profile.lines().map(str::to_owned).collect(),
        mutations,
    })
}

fn found(graded: &Graded) -> Finding {
    let (site, race) = (graded.finding.site(), graded.finding.race());
    let other = race.map(|race| &race.first.site);
    Finding {
        grade: graded.grade.name(),
        report: match graded.grade {
            Grade::Seen(report) => Some(report),
            _ => None,
        },
        rule: graded.finding.name(),
        schedule: graded.finding.schedule().to_string(),
        line: site.and_then(|site| site.line),
        source: site.map(|site| site.phase.clone()),
        other_line: other.and_then(|site| site.line),
        other_source: other.map(|site| site.phase.clone()),
        race: race.map(|race| Race {
            place: race.place.to_string(),
            first: side(race.first),
            second: side(race.second),
            lacks: race.edge.to_string(),
            remedy: race.remedy,
        }),
        message: graded.finding.to_string().trim_end().to_owned(),
    }
}

fn side(access: &Access) -> Side {
    Side {
        access: access.how(),
        by: access.site.who(),
        line: access.site.line,
        source: access.site.phase.clone(),
        instruction: access.site.instruction.clone(),
    }
}

fn words(report: &Report, text: &str) -> String {
    let Report { kernel, schedules, findings, suppressed, unused_suppressions, profile, mutations } = report;
    let mut words = String::new();
    for Finding { grade, report, rule, line, other_line, message, .. } in findings {
        let seen = report.map(|report| format!(" ({report})")).unwrap_or_default();
        words += &format!("{grade}{seen}: {rule}\n{message}\n");
        for line in [other_line, line].into_iter().flatten() {
            let written = text.lines().nth((*line as usize).saturating_sub(1)).unwrap_or_default();
            words += &format!("  line {line} of the text: {}\n", written.trim());
        }
        words += "\n";
    }
    for Suppressed { finding: Finding { rule, line, .. }, reason } in suppressed {
        let line = line.map(|line| format!(" at line {line}")).unwrap_or_default();
        words += &format!("let pass: {rule}{line}: {reason}\n");
    }
    for unused in unused_suppressions {
        words += &format!("let pass, and not found: {unused}; take it out of the file\n");
    }
    if findings.is_empty() {
        words += &format!("{kernel}: nothing found under {schedules} schedules\n\n{}\n", profile.join("\n"));
    }
    if let Some(mutations) = mutations {
        words += &mutations.words();
    }
    words
}
