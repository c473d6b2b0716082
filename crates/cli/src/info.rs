//! `hammerhead info`: the machine, and which backends it can run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use hammerhead::cpu::Speeds;
use hammerhead::machine::Machine;
use hammerhead::speeds::{self, Origin};
use hammerhead::tuning::{self, Standing, TUNING_VARIABLE, Tuning};
use hammerhead::{BACKEND_VARIABLE, Backend, Engine, backends};
use serde::Serialize;

use crate::table::Table;
use crate::{Result, console};

/// Show the machine and which backends it can run
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Show the machine, every backend with whether it can run here and if not why, and which of them \
    are used when none is forced.\n\nExamples:\n  hammerhead info\n  HAMMERHEAD_BACKEND=scalar hammerhead info --json"
)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    threads: usize,
    backends: Vec<Listed>,
    /// Backends that compute nothing: GPUs that need not be there, for plans and prices.
    foretold: Vec<&'static str>,
    /// The backends that a plan chooses among when none is forced by argument, best first.
    auto: Vec<&'static str>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_error: Option<String>,
    /// What the environment variable says.
    forced_by_environment: Option<String>,
    tuning: TuningReport,
    speeds: SpeedsReport,
}

/// What the planner knows of the processor's speed.
#[derive(Serialize)]
struct SpeedsReport {
    /// The file that they are kept in; none if they are those of the kernels' authors.
    file: Option<PathBuf>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Bytes per second, and seconds per piece of work.
    numbers: BTreeMap<String, f64>,
}

impl SpeedsReport {
    fn new() -> Self {
        let (file, reason) = match speeds::settled() {
            Origin::Measured(file) => (Some(file.clone()), None),
            Origin::Off => (None, Some(format!("{TUNING_VARIABLE} is off, or there is no home to keep them in"))),
            Origin::Refused(reason) => (None, Some(reason.clone())),
        };
        Self { file, reason, numbers: Speeds::installed().entries().into_iter().collect() }
    }

    fn text(&self) -> String {
        let gigabytes = |name: &str| self.numbers.get(name).map_or(0.0, |bytes| bytes / 1e9);
        let memory = format!(
            "memory {:.1} GB/s per thread, {:.1} in all",
            gigabytes("bytes thread"),
            gigabytes("bytes machine")
        );
        match (&self.file, &self.reason) {
            (Some(file), _) => format!("speeds    measured: {memory}; in {}\n", file.display()),
            (None, reason) => format!("speeds    assumed: {memory} ({})\n", reason.as_deref().unwrap_or_default()),
        }
    }
}

/// What the planner knows from the tank.
#[derive(Serialize)]
struct TuningReport {
    /// Where it is kept; nowhere if it is switched off.
    folder: Option<PathBuf>,
    /// Configurations that it knows, each for a kind of problems and a backend.
    champions: usize,
    /// Those that were measured with other kernels, and are not used.
    outdated: usize,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    complaint: Option<String>,
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    summary: &'static str,
    layout: &'static str,
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Which kernels a GPU is given, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernels: Option<String>,
}

impl Listed {
    fn of(backend: &dyn Backend) -> Self {
        let reason = backend.available().err().map(|error| error.to_string());
        Self {
            name: backend.name(),
            summary: backend.summary(),
            layout: backend.layout(),
            available: reason.is_none(),
            reason,
            kernels: gpu::Cuda::by_name(backend.name()).and_then(gpu::Cuda::choice),
        }
    }
}

/// Describes the machine; a backend that is missing is no failure here.
pub fn info(args: &Args) -> Result<()> {
    let machine = Machine::detect();
    let (auto, threads, auto_error) = match Engine::auto() {
        Ok(engine) => (engine.backends().iter().map(|b| b.name()).collect(), engine.threads(), None),
        Err(error) => (Vec::new(), machine.cores, Some(error.to_string())),
    };
    let tuned = Tuning::installed();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        threads,
        backends: backends::all().iter().map(|b| Listed::of(*b)).collect(),
        foretold: gpu::Foretold::names().collect(),
        auto,
        auto_error,
        forced_by_environment: std::env::var(BACKEND_VARIABLE).ok().filter(|name| !name.is_empty()),
        tuning: TuningReport {
            folder: tuning::folder(),
            champions: tuned.len(),
            outdated: tuned.history().iter().filter(|entry| tuned.standing(entry) == Standing::Outdated).count(),
            complaint: tuned.complaint().map(str::to_owned),
        },
        speeds: SpeedsReport::new(),
        machine,
    };
    if args.json { console::print_json(&report) } else { console::print(&text(&report)) }
}

fn text(report: &Report) -> String {
    let Machine { cpu, arch, os, cores, memory_gib, isa, fingerprint, .. } = &report.machine;
    let mut text = format!(
        "hammerhead {}\nmachine   {cpu}, {cores} cores, {memory_gib} GiB, {arch} {os} ({fingerprint})\n",
        report.version
    );
    text +=
        &format!("          {}\n", if isa.is_empty() { "no vector extensions known".into() } else { isa.join(" ") });
    text += &format!("threads   {}\n", report.threads);
    match (&report.auto_error, &report.forced_by_environment) {
        (Some(error), _) => text += &format!("auto      nothing: {error}\n"),
        (None, Some(name)) => text += &format!("auto      {} ({BACKEND_VARIABLE}={name})\n", report.auto.join(", ")),
        (None, None) => {
            text += &format!("auto      {} (planned for each problem; best first)\n", report.auto.join(", "));
        }
    }
    text += &match &report.tuning {
        TuningReport { complaint: Some(complaint), .. } => format!("tuning    {complaint}\n"),
        TuningReport { folder: None, .. } => format!("tuning    off ({TUNING_VARIABLE}, or no home to keep it in)\n"),
        TuningReport { folder: Some(folder), champions, outdated, .. } => {
            let others = if *outdated > 0 { format!(", {outdated} of other kernels") } else { String::new() };
            format!("tuning    {champions} configurations measured by the tank{others}, in {}\n", folder.display())
        }
    };
    text += &report.speeds.text();
    let mut table = Table::new(&["backend", "here", "what it uses, or why it is not there"]);
    for listed in &report.backends {
        let here = if listed.available { "yes" } else { "no" };
        let summary = || listed.kernels.iter().fold(listed.summary.to_owned(), |text, kernels| text + "; " + kernels);
        let about = listed.reason.clone().unwrap_or_else(summary);
        table.row([listed.name.to_owned(), here.to_owned(), about]);
    }
    let foretold = report.foretold.iter().map(|name| name.trim_start_matches(gpu::foretold::PREFIX));
    let foretold: Vec<&str> = foretold.collect();
    text + "\n"
        + &table.text()
        + &format!(
            "\nGPUs that need not be there, for plans and prices ({}NAME, or run --explain --device NAME):\n{}\n",
            gpu::foretold::PREFIX,
            foretold.join(", ")
        )
}
