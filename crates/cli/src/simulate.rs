//! `hammerhead sim`: the GPU's kernels in the simulator, as they are and broken on purpose.
//!
//! As it is, it must pass under every schedule, and what it did is counted. With `--mutations` every kernel that differs
//! from it by one plausible mistake runs too, and a table tells which fault gave each away, and under which schedule.

use clap::Args as ClapArgs;
use serde::Serialize;
use sim::Schedule;
use sim::mutate::Mutant;
use testkit::mutations::{Trial, Verdict, WAYS};

use crate::table::Table;
use crate::{Error, Result, console};

/// Run the GPU's kernel in the simulator, and try to break it
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Run one of the GPU's kernels in the simulator, on small problems with exact sums, under adversarial schedules: \
    asynchronous work done at once, as late as can be, and as drawn from seeds. It needs no GPU.\n\n\
    With --mutations, every kernel that differs from it by one plausible mistake is run as well (a fence or an arrive \
    left out, a parity swapped, too few bytes expected, a stage released early, a wrong descriptor, …). Each must be \
    caught, by a fault or by a wrong sum, under some schedule, unless it is named as equivalent with the reason; else \
    the command fails.\n\n\
    Examples:\n  \
    hammerhead sim\n  \
    hammerhead sim --mutations\n  \
    hammerhead sim --mutations --seeds 20 --json"
)]
pub struct Args {
    /// Break the kernel in every plausible way, and say what gave each mistake away
    #[arg(long)]
    mutations: bool,
    /// Which way of putting a kernel together: 1 is a block for each tile, 2 is two; 3 and 4 are of the kernels for GPUs since Ampere
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    way: u8,
    /// Random schedules to try, besides the earliest and the latest
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(..=10_000))]
    seeds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    schedules: usize,
    profile: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mutations: Vec<Row>,
    caught: usize,
    equivalent: usize,
    missed: usize,
}

/// A mutation and what became of it.
#[derive(Serialize)]
struct Row {
    mutation: String,
    /// The fault, `wrong result`, `equivalent` or `NOT CAUGHT`.
    caught_by: String,
    /// The schedule under which it was caught.
    schedule: Option<String>,
    /// All that the simulator says about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    finding: Option<String>,
    /// Why it is no mistake, if it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// Runs the kernel, and its mutations where they are asked for.
pub fn sim(args: &Args) -> Result<()> {
    let (way, config) = WAYS[usize::from(args.way) - 1];
    let (trial, schedules) = (Trial::new(config)?, Schedule::several(args.seeds));
    let kernel = format!("{} ({way})", trial.kernel().name);
    let profile = trial
        .original(&schedules)
        .map_err(|finding| Error::Faulty { kernel: kernel.clone(), finding: Box::new(finding) })?;
    let verdicts = if args.mutations { trial.verdicts(&schedules) } else { Vec::new() };
    let count = |which: fn(&Verdict) -> bool| verdicts.iter().filter(|(_, verdict)| which(verdict)).count();
    let report = Report {
        kernel,
        schedules: schedules.len(),
        profile: profile.to_string().lines().map(str::to_owned).collect(),
        caught: count(|verdict| matches!(verdict, Verdict::Caught(_))),
        equivalent: count(|verdict| matches!(verdict, Verdict::Equivalent(_))),
        missed: count(|verdict| matches!(verdict, Verdict::Missed)),
        mutations: verdicts.iter().map(row).collect(),
    };
    if args.json {
        console::print_json(&report)?
    } else {
        console::print(&text(&report))?
    }
    match (report.missed, report.mutations.len()) {
        (0, _) => Ok(()),
        (missed, all) => Err(Error::Missed { missed, all }),
    }
}

fn row((mutant, verdict): &(Mutant, Verdict)) -> Row {
    let (caught_by, finding, reason) = match verdict {
        Verdict::Caught(finding) => (finding.name(), Some(finding), None),
        Verdict::Equivalent(reason) => ("equivalent", None, Some(*reason)),
        Verdict::Missed => ("NOT CAUGHT", None, None),
    };
    Row {
        mutation: mutant.name.clone(),
        caught_by: caught_by.to_owned(),
        schedule: finding.map(|finding| finding.schedule().to_string()),
        finding: finding.map(ToString::to_string),
        reason,
    }
}

fn text(report: &Report) -> String {
    let Report { kernel, schedules, profile, mutations, caught, equivalent, missed } = report;
    let mut text = format!("{kernel}: passes under {schedules} schedules\n\n{}\n", profile.join("\n"));
    if mutations.is_empty() {
        return text;
    }
    let mut table = Table::new(&["caught by", "schedule", "mutation"]);
    for row in mutations {
        let schedule = row.schedule.clone().unwrap_or_else(|| "-".to_owned());
        table.row([row.caught_by.clone(), schedule, row.mutation.clone()]);
    }
    text += "\n";
    text += &table.text();
    let excused: Vec<&Row> = mutations.iter().filter(|row| row.reason.is_some()).collect();
    if !excused.is_empty() {
        text += "\nequivalent, because:\n";
        let line = |row: &&Row| format!("  {}: {}\n", row.mutation, row.reason.unwrap_or_default());
        text.extend(excused.iter().map(line));
    }
    let all = mutations.len();
    text + &format!("\n{all} mutations: {caught} caught, {equivalent} equivalent, {missed} not caught\n")
}
