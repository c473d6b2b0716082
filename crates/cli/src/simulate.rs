//! `hammerhead sim`: the GPU's kernels in the simulator, as they are and broken on purpose.
//!
//! As it is, it must pass under every schedule, and what it did is counted. With `--mutations` every kernel that
//! differs from it by one plausible mistake runs too, and a table tells which fault gave each away, and under which
//! schedule.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use page::{Page, escape};
use serde::Serialize;
use sim::Schedule;
use sim::mutate::Mutant;
use testkit::mutations::{Trial, Verdict, WAYS, Way};

use crate::table::Table;
use crate::{Error, Result, console, files, timeline};

/// Run a GPU's kernels in the simulator, and try to break them
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Run the kernels of a GPU architecture in the simulator, on small problems, under adversarial schedules: \
    asynchronous work done at once, as late as can be, and as drawn from seeds. It needs no GPU.\n\n\
    With --mutations, every kernel that differs from one of them by one plausible mistake is run as well (a fence or an arrive \
    left out, a parity swapped, too few bytes expected, a stage released early, a wrong descriptor, …). Each must be \
    caught, by a fault or by a wrong result, under some schedule, unless it is excused for a reason; else \
    the command fails. So it does where one that is excused is caught.\n\n\
    Examples:\n  \
    hammerhead sim\n  \
    hammerhead sim --mutations --way 1\n  \
    hammerhead sim --arch sm_100a --mutations\n  \
    hammerhead sim --way 1 --html timeline.html\n  \
    hammerhead sim --mutations --seeds 20 --json"
)]
pub struct Args {
    /// Break the kernel in every plausible way, and say what gave each mistake away
    #[arg(long)]
    mutations: bool,
    /// The architecture
    #[arg(long, value_enum, default_value_t = Arch::Sm90a)]
    arch: Arch,
    /// Which way of putting its kernels together, from 1: `hammerhead sim` has them all, with their names
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    way: Option<u8>,
    /// Random schedules to try, besides the earliest and the latest
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(..=10_000))]
    seeds: u64,
    /// Write a page with the timeline of one way's kernel to this file
    #[arg(long, value_name = "FILE", requires = "way")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The architectures whose kernels are broken.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Arch {
    /// Every GPU since Ampere
    #[value(name = "sm_80", alias = "sm80")]
    Sm80,
    /// Hopper
    #[value(name = "sm_90a", alias = "sm90")]
    Sm90a,
    /// Data-centre Blackwell
    #[value(name = "sm_100a", aliases = ["sm_100f", "sm100"])]
    Sm100a,
    /// Desktop Blackwell
    #[value(name = "sm_120a", aliases = ["sm_120f", "sm120"])]
    Sm120a,
}

impl Arch {
    fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm90a => "sm_90a",
            Arch::Sm100a => "sm_100a",
            Arch::Sm120a => "sm_120a",
        }
    }
}

/// What came of all ways.
#[derive(Serialize)]
struct Report {
    ways: Vec<WayReport>,
    schedules: usize,
    caught: usize,
    equivalent: usize,
    missed: usize,
}

#[derive(Serialize)]
struct WayReport {
    kernel: String,
    profile: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mutations: Vec<Row>,
    /// Reasons that excuse more or fewer mutations of this kernel than are pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    miscounted: Vec<String>,
    caught: usize,
    equivalent: usize,
    missed: usize,
}

/// A mutation and what became of it.
#[derive(Serialize)]
struct Row {
    mutation: String,
    mistake: &'static str,
    /// Phase and instruction.
    place: String,
    /// The fault, `wrong result`, `equivalent`, `NOT CAUGHT` or `NOT EQUIVALENT`.
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

/// Runs the kernels, and their mutations where they are asked for.
pub fn sim(args: &Args) -> Result<()> {
    let schedules = Schedule::several(args.seeds);
    let ways: Vec<&'static Way> = WAYS.iter().filter(|way| way.arch == args.arch.name()).collect();
    let chosen = match args.way {
        None => &ways[..],
        Some(number) => {
            let chosen = ways.get(usize::from(number) - 1..usize::from(number));
            chosen.ok_or(Error::NoSuchWay { number, arch: args.arch.name(), ways: ways.len() })?
        }
    };
    args.html.iter().try_for_each(|path| files::check_report(path))?;
    let ways: Vec<WayReport> =
        chosen.iter().map(|way| try_way(way, &schedules, args.mutations)).collect::<Result<_>>()?;
    let sum = |of: fn(&WayReport) -> usize| ways.iter().map(of).sum();
    let (caught, equivalent, missed) = (sum(|way| way.caught), sum(|way| way.equivalent), sum(|way| way.missed));
    let report = Report { ways, schedules: schedules.len(), caught, equivalent, missed };
    if let (Some(path), [way]) = (&args.html, chosen) {
        files::write_report(path, &drawn(way, &schedules)?)?;
    }
    if args.json {
        console::print_json(&report)?
    } else {
        console::print(&text(&report))?
    }
    match missed {
        0 => Ok(()),
        _ => Err(Error::Missed { missed, all: caught + equivalent + missed }),
    }
}

/// The page of one kernel.
fn drawn(way: &'static Way, schedules: &[Schedule]) -> Result<String> {
    let trial = Trial::new(way)?;
    let runs: Vec<_> =
        timeline::shown(schedules).iter().map(|schedule| (*schedule, trial.timeline(*schedule))).collect();
    let about = format!("<p>{}</p>\n", escape(way.name));
    let page = Page::new(&trial.kernel().name, &about);
    Ok(page.section("timelines", "Timelines", &timeline::panes(trial.kernel(), &runs)).html())
}

/// Runs one kernel.
fn try_way(way: &'static Way, schedules: &[Schedule], mutations: bool) -> Result<WayReport> {
    let trial = Trial::new(way)?;
    let kernel = format!("{} ({})", trial.kernel().name, way.name);
    let profile = trial
        .original(schedules)
        .map_err(|finding| Error::Faulty { kernel: kernel.clone(), finding: Box::new(finding) })?;
    let verdicts = if mutations { trial.verdicts(schedules, 0, 1) } else { Vec::new() };
    let miscounted = if mutations { trial.miscounted() } else { Vec::new() };
    let count = |which: fn(&Verdict) -> bool| verdicts.iter().filter(|(_, verdict)| which(verdict)).count();
    Ok(WayReport {
        kernel,
        profile: profile.to_string().lines().map(str::to_owned).collect(),
        caught: count(|verdict| matches!(verdict, Verdict::Caught(_, None))),
        equivalent: count(|verdict| matches!(verdict, Verdict::Equivalent(_))),
        missed: count(|verdict| !verdict.is_right()) + miscounted.len(),
        miscounted,
        mutations: verdicts.iter().map(row).collect(),
    })
}

fn row((mutant, verdict): &(Mutant, Verdict)) -> Row {
    let (caught_by, finding, reason) = match verdict {
        Verdict::Caught(finding, None) => (finding.name(), Some(finding), None),
        Verdict::Caught(finding, reason) => ("NOT EQUIVALENT", Some(finding), *reason),
        Verdict::Equivalent(reason) => ("equivalent", None, Some(*reason)),
        Verdict::Missed => ("NOT CAUGHT", None, None),
    };
    Row {
        mutation: mutant.name.clone(),
        mistake: mutant.mistake,
        place: mutant.place.clone(),
        caught_by: caught_by.to_owned(),
        schedule: finding.map(|finding| finding.schedule().to_string()),
        finding: finding.map(ToString::to_string),
        reason,
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for WayReport { kernel, profile, mutations, miscounted, caught, equivalent, missed } in &report.ways {
        text += &format!("{kernel}: passes under {} schedules\n\n{}\n\n", report.schedules, profile.join("\n"));
        if mutations.is_empty() {
            continue;
        }
        let mut table = Table::new(&["caught by", "schedule", "mutation"]);
        for row in mutations {
            let schedule = row.schedule.clone().unwrap_or_else(|| "-".to_owned());
            table.row([row.caught_by.clone(), schedule, row.mutation.clone()]);
        }
        text += &table.text();
        let excused: Vec<&Row> = mutations.iter().filter(|row| row.reason.is_some()).collect();
        if !excused.is_empty() {
            text += "\nequivalent, because:\n";
            let line = |row: &&Row| format!("  {}: {}\n", row.mutation, row.reason.unwrap_or_default());
            text.extend(excused.iter().map(line));
        }
        text.extend(miscounted.iter().map(|miscount| format!("MISCOUNTED {miscount}\n")));
        let all = mutations.len();
        text += &format!("\n{all} mutations: {caught} caught, {equivalent} equivalent, {missed} not caught\n\n");
    }
    let Report { ways, caught, equivalent, missed, .. } = report;
    if ways.len() > 1 && caught + equivalent + missed > 0 {
        let all = caught + equivalent + missed;
        text += &format!("in all {all} mutations: {caught} caught, {equivalent} equivalent, {missed} not caught\n");
    }
    text
}
