//! `hammerhead check`: anybody's PTX in the simulator.
//!
//! A text and a file that says how it is launched are all it takes: no GPU, no driver, no toolkit. The kernel runs
//! under adversarial schedules; what breaks a rule of the machine, and what comes out wrong, is a finding.

mod arrays;
mod launch;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use ptx::Kernel;
use ptx::parse::{Module, Shape};
use serde::Serialize;
use sim::{Fault, FaultKind, Gpu, Limits, Profile, Rules, Schedule};

use crate::{Error, Result, console};
use launch::Launch;

/// Run anybody's PTX kernel in the simulator, and look for races
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Run a PTX kernel of any compiler in the simulator, under adversarial schedules: asynchronous work done at once, as \
    late as can be, and as drawn from seeds. It needs no GPU.\n\n\
    The launch file says which entry, how many blocks of how many threads, what is in memory and what the arguments are; \
    docs/check.md describes it. Races, deadlocks, reads of what was never written, accesses out of bounds and \
    broken rules of barriers, copies and tensor cores are findings, and so are results that differ from those expected.\n\n\
    Exit status: 0 nothing was found, 1 something was, 2 the kernel could not be run.\n\n\
    Examples:\n  \
    hammerhead check matmul.ptx --launch matmul.toml\n  \
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
    /// Print JSON
    #[arg(long)]
    json: bool,
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
    findings: Vec<Finding>,
    /// What a run that found nothing has moved and computed.
    profile: Vec<String>,
}

#[derive(Serialize)]
struct Finding {
    /// A short name of the rule.
    rule: &'static str,
    /// The first schedule that led there; the same one leads there again.
    schedule: String,
    /// The line of the text, counted from one.
    line: Option<u32>,
    /// Where it was written, by the compiler's word: the file and line, and those of the calls around it.
    source: Option<String>,
    message: String,
}

/// Checks a kernel.
pub fn check(args: &Args) -> Result<()> {
    let cannot = |what: String| Error::CannotCheck { what };
    let text = std::fs::read_to_string(&args.kernel)
        .map_err(|error| cannot(format!("cannot read {:?}: {error}; name a file of PTX", args.kernel)))?;
    let launch = Launch::open(&args.launch)?;
    let refused = |error: ptx::Error| cannot(format!("{:?}: {error}", args.kernel));
    let module = Module::read(&text).map_err(refused)?;
    let entry = match (&launch.entry, &module.entries()[..]) {
        (Some(entry), _) => entry.clone(),
        (None, [entry]) => (*entry).to_owned(),
        (None, entries) => {
            let which = entries.join(", ");
            return Err(cannot(format!(
                "{:?} has the entries {which:?}; name one as `entry` in the launch file",
                args.kernel
            )));
        }
    };
    let shape = Shape { block: launch.block, cluster: launch.cluster, dynamic_shared: launch.shared };
    let kernel = module.kernel(&entry, shape).map_err(refused)?;
    let report = explore(&kernel, &launch, args)?;
    match args.json {
        true => console::print_json(&report)?,
        false => console::print(&words(&report, &text))?,
    }
    match report.findings.len() {
        0 => Ok(()),
        findings => Err(Error::Findings { findings, kernel: kernel.name }),
    }
}

/// Runs the kernel under each schedule, and keeps the first finding of each kind at each place.
fn explore(kernel: &Kernel, launch: &Launch, args: &Args) -> Result<Report> {
    let mut schedules = Schedule::several(args.schedules.saturating_sub(2));
    schedules.truncate(args.schedules as usize);
    let rules = match args.rules {
        RulesName::Practice => Rules::Practice,
        RulesName::Letter => Rules::Letter,
    };
    let limits = if kernel.target.has(ptx::Feature::Tcgen05) { Limits::b200() } else { Limits::h200() };
    let (device, buffers) = launch.memory(Gpu::new(limits).with_rules(rules));
    let invocation = launch.invocation(kernel, &buffers)?;
    let (mut findings, mut seen, mut profile) = (Vec::new(), BTreeSet::new(), Profile::default());
    for &schedule in &schedules {
        let mut gpu = device.clone();
        match gpu.run(kernel, &invocation, schedule) {
            Ok(done) => {
                profile = done;
                for (name, message) in launch.wrong(&gpu, &buffers) {
                    if seen.insert((name.clone(), 0)) {
                        let schedule = schedule.to_string();
                        findings.push(Finding { rule: "wrong result", schedule, line: None, source: None, message });
                    }
                }
            }
            Err(fault) => {
                if matches!(
                    fault.kind,
                    FaultKind::Unsupported { .. } | FaultKind::BadLaunch { .. } | FaultKind::OverLimit { .. }
                ) {
                    return Err(Error::CannotCheck { what: format!("kernel {}: {}", kernel.name, fault.kind) });
                }
                let place = fault.site.as_ref().map_or(0, |site| site.position);
                if seen.insert((fault.kind.name().to_owned(), place)) {
                    findings.push(found(&fault));
                }
            }
        }
    }
    let profile = profile.to_string().lines().map(str::to_owned).collect();
    Ok(Report { kernel: kernel.name.clone(), schedules: schedules.len(), findings, profile })
}

fn found(fault: &Fault) -> Finding {
    Finding {
        rule: fault.kind.name(),
        schedule: fault.schedule.to_string(),
        line: fault.site.as_ref().and_then(|site| site.line),
        source: fault.site.as_ref().map(|site| site.phase.clone()),
        message: fault.to_string().trim_end().to_owned(),
    }
}

fn words(report: &Report, text: &str) -> String {
    let Report { kernel, schedules, findings, profile } = report;
    if findings.is_empty() {
        return format!("{kernel}: nothing found under {schedules} schedules\n\n{}\n", profile.join("\n"));
    }
    let mut words = String::new();
    for Finding { rule, line, message, .. } in findings {
        words += &format!("{rule}\n{message}\n");
        let written = line.and_then(|line| text.lines().nth(line as usize - 1));
        if let (Some(line), Some(written)) = (line, written) {
            words += &format!("  line {line} of the text: {}\n", written.trim());
        }
        words += "\n";
    }
    words
}
