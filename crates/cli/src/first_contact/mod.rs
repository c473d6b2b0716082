//! `hammerhead first-contact`: all that the owner of a GPU that nobody has measured can find out in a minute or two, in
//! one file to send back and one page to look at.
//!
//! Ways of computing are tried, each against the reference; problems are verified; some are timed, and held against
//! what the model says of them. Each way, and each problem that is verified or timed (`part`), runs in a process of its
//! own with a time limit, so that a fault or a kernel that does not end is a line in the report and not the end of it.
//! The report is written before and after each of them: wherever the command, or the machine, is stopped, the file says
//! what was known by then, and what was being done.

mod model;
mod page;
mod part;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use gpu::driver::{Monitor, Reading};
use gpu::{Cuda, device, trial};
use hammerhead::Backend;
use hammerhead::machine::Machine;
use ptx::assemble::Assembler;
use serde::Serialize;

use self::model::Compared;
use self::part::Part;
use crate::{Error, Result, console, files};

/// The version of the file's layout.
const SCHEMA: u32 = 2;

/// Problems that are verified, in some twenty configurations each: around the edges of tiles, and several groups. Most
/// of their time is the driver's compiler's.
const VERIFIED: [&str; 3] = ["19x328x272", "147x328x272", "7,0,130,64x264x272"];
const VERIFIED_TOKENS: [&str; 3] = ["nvfp4", "f16", "f32"];
/// Problems that are timed.
const TIMED: [&str; 5] = ["1x4096x7168", "16x4096x7168", "128x4096x7168", "512x4096x7168", "80,176,128,72x4096x2048"];
const TIMED_TOKENS: [&str; 2] = ["f16", "nvfp4"];

/// Try, verify and measure a GPU that nobody has measured, and write a file to send back
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Find out in a minute or two what there is to know of a GPU that nobody has measured: which ways of computing go there, \
    whether results are right, how fast they come, and how far the model is off. Everything that could fault or hang runs in a process of \
    its own with a time limit. Writes one JSON file, which its authors would like to see, and one page that shows it; both are written \
    again after every step, and say what is known by then.\n\n\
    Examples:\n  \
    hammerhead first-contact\n  \
    HAMMERHEAD_FAMILY=sm80 hammerhead first-contact --report sm80.json --html sm80.html"
)]
pub struct Args {
    /// The device's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: usize,
    /// The file to send back
    #[arg(long = "report", value_name = "FILE", default_value = "first-contact.json")]
    json: PathBuf,
    /// The page that shows it
    #[arg(long, value_name = "FILE", default_value = "first-contact.html")]
    html: PathBuf,
    /// Seconds that one way, and one problem, may take
    #[arg(long, value_name = "SECONDS", default_value_t = trial::LIMIT.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
}

/// What the file holds.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    version: &'static str,
    kernels: &'static str,
    machine: Machine,
    device: DeviceReport,
    /// What was being done when this was written, in words; nothing at the end.
    doing: Option<String>,
    trial: TrialReport,
    /// What `hammerhead verify --json` says of each problem, or why it says nothing.
    verify: Vec<Part>,
    /// What `hammerhead bench --export` says of each problem, or why it says nothing.
    bench: Vec<Part>,
    /// What was timed, held against the model.
    model: Vec<Compared>,
    /// The device while it was timed.
    clocks: Vec<Clocks>,
    seconds: f64,
}

/// The device, its driver, and what kernels it is given.
#[derive(Debug, Serialize)]
struct DeviceReport {
    name: String,
    capability: String,
    multiprocessors: u32,
    clock_hertz: f64,
    memory_bytes: usize,
    memory_bandwidth: f64,
    cache_bytes: usize,
    shared_bytes: usize,
    /// The CUDA version that the driver supports, and the driver's own version where the system tells.
    cuda: String,
    driver: String,
    /// NVIDIA's assembler on this machine, which nothing here needs.
    ptxas: Option<String>,
    family: &'static str,
    choice: String,
}

/// What came of trying every way.
#[derive(Debug, Default, Serialize)]
struct TrialReport {
    ways: Vec<WayReport>,
    /// What plans go without; nothing as long as ways are tried.
    left_out: Option<Vec<String>>,
    /// Why the device cannot be used at all, if it cannot.
    refused: Option<String>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct WayReport {
    way: String,
    problem: String,
    config: String,
    /// What was wrong; nothing if it was right.
    wrong: Option<String>,
    seconds: f64,
}

/// A reading while problems were timed.
#[derive(Debug, Serialize)]
struct Clocks {
    seconds: f64,
    clock_hertz: Option<f64>,
    memory_clock_hertz: Option<f64>,
    watts: Option<f64>,
    celsius: Option<f64>,
    held_by: Vec<&'static str>,
}

impl Clocks {
    fn of(seconds: f64, reading: Reading) -> Self {
        let Reading { clock, memory_clock, watts, celsius, held_by, .. } = reading;
        Clocks { seconds, clock_hertz: clock, memory_clock_hertz: memory_clock, watts, celsius, held_by }
    }
}

/// A report, and where it is written.
struct Kept<'a> {
    report: Report,
    args: &'a Args,
    begun: Instant,
}

impl Kept<'_> {
    /// Writes what is known, and what is done next.
    fn write(&mut self, doing: Option<String>) -> Result<()> {
        self.report.doing = doing;
        self.report.seconds = self.begun.elapsed().as_secs_f64();
        files::write_report(&self.args.json, &console::json_text(&self.report)?)?;
        files::write_report(&self.args.html, &page::html(&self.report))
    }
}

/// Finds out, and writes.
pub fn first_contact(args: &Args) -> Result<()> {
    // Better now than after minutes of work.
    if files::same_place(&args.json, &args.html) {
        return Err(Error::OneFile { path: args.html.clone() });
    }
    [&args.json, &args.html].into_iter().try_for_each(|path| files::check_report(path))?;
    let cuda = Cuda::on(args.device)?;
    let mut kept = Kept { report: described(cuda)?, args, begun: Instant::now() };
    // Each of the other parts would try every way again.
    trial::can_be_kept().map_err(|problem| Error::NotKept { problem, variable: trial::TRIALS_VARIABLE })?;
    console::remark(&format!("{}: {}", kept.report.device.name, kept.report.device.choice));
    try_ways(&mut kept, cuda)?;
    if kept.report.trial.refused.is_none() {
        check_problems(&mut kept, cuda)?;
        time_problems(&mut kept, cuda)?;
    }
    kept.write(None)?;
    console::print(&text(&kept.report, args))
}

/// A report of a device, before anything was tried.
fn described(cuda: &Cuda) -> Result<Report> {
    let (info, choice) = cuda.described()?;
    let device = DeviceReport {
        name: info.name.clone(),
        capability: format!("{}.{}", info.capability.0, info.capability.1),
        multiprocessors: info.multiprocessors,
        clock_hertz: info.clock_hertz,
        memory_bytes: info.memory_bytes,
        memory_bandwidth: info.memory_bandwidth,
        cache_bytes: info.cache_bytes,
        shared_bytes: info.shared_bytes,
        cuda: format!("{}.{}", info.driver / 1000, info.driver % 1000 / 10),
        driver: trial::driver_version(),
        ptxas: Assembler::find(None).ok().and_then(|assembler| assembler.version()),
        family: choice.family.name(),
        choice: choice.to_string(),
    };
    Ok(Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        kernels: cuda.kernels(),
        machine: Machine::detect(),
        device,
        doing: None,
        trial: TrialReport::default(),
        verify: Vec::new(),
        bench: Vec::new(),
        model: Vec::new(),
        clocks: Vec::new(),
        seconds: 0.0,
    })
}

/// Tries every way.
fn try_ways(kept: &mut Kept<'_>, cuda: &Cuda) -> Result<()> {
    let (begun, mut before) = (Instant::now(), Instant::now());
    let (bar, mut written) = (console::waiting(), Ok(()));
    let tried = cuda.try_every_way(Duration::from_secs(kept.args.limit), |trial, found| {
        let doing = found.is_none().then(|| format!("trying {}", trial.way));
        if let Some(found) = found {
            kept.report.trial.ways.push(WayReport {
                way: trial.way.to_string(),
                problem: format!("{} {}", trial.problem, trial.problem.activation()),
                config: trial.config.to_string(),
                wrong: found.as_ref().err().cloned(),
                seconds: before.elapsed().as_secs_f64(),
            });
        }
        before = Instant::now();
        kept.report.trial.seconds = begun.elapsed().as_secs_f64();
        if let Some(doing) = &doing {
            bar.set_message(format!("{} ways tried; {doing}", kept.report.trial.ways.len()));
            // The first failure is told of, and others are of the same kind.
            let now = kept.write(Some(doing.clone()));
            written = std::mem::replace(&mut written, Ok(())).and(now);
        }
    });
    bar.finish_and_clear();
    let trial = &mut kept.report.trial;
    match tried {
        Ok(tried) => trial.left_out = Some(tried.left_out.iter().map(ToString::to_string).collect()),
        Err(error) => trial.refused = Some(error.to_string()),
    }
    trial.seconds = begun.elapsed().as_secs_f64();
    written
}

/// Problems of some shapes with some tokens, one by one, and the options that ask for each.
fn each<'a>(cuda: &Cuda, shapes: &'a [&'a str], tokens: &'a [&'a str]) -> impl Iterator<Item = (String, [&'a str; 6])> {
    let backend = cuda.name();
    shapes.iter().flat_map(move |shape| {
        let options = move |tokens| ["--backend", backend, "--shape", *shape, "--activation", tokens];
        tokens.iter().map(move |tokens| (format!("{shape} {tokens}"), options(*tokens)))
    })
}

/// Verifies problems in many configurations.
fn check_problems(kept: &mut Kept<'_>, cuda: &Cuda) -> Result<()> {
    let bar = console::waiting();
    for (problem, options) in each(cuda, &VERIFIED, &VERIFIED_TOKENS) {
        bar.set_message(format!("verifying {problem}"));
        kept.write(Some(format!("verifying {problem}")))?;
        let part = Part::run("verify", &options, Duration::from_secs(kept.args.limit), || ());
        kept.report.verify.push(part);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Times problems, and holds them against the model.
fn time_problems(kept: &mut Kept<'_>, cuda: &Cuda) -> Result<()> {
    let monitor = device::context(kept.args.device).ok().and_then(|context| Monitor::of(context).ok());
    let (bar, begun) = (console::waiting(), Instant::now());
    for (problem, options) in each(cuda, &TIMED, &TIMED_TOKENS) {
        bar.set_message(format!("timing {problem}"));
        kept.write(Some(format!("timing {problem}")))?;
        let clocks = &mut kept.report.clocks;
        let part = Part::run("bench", &options, Duration::from_secs(kept.args.limit), || {
            let seconds = begun.elapsed().as_secs_f64();
            clocks.extend(monitor.as_ref().map(|monitor| Clocks::of(seconds, monitor.reading())));
        });
        kept.report.model.extend(part.said.iter().flat_map(|record| model::compare(kept.args.device, record)));
        kept.report.bench.push(part);
    }
    bar.finish_and_clear();
    Ok(())
}

impl TrialReport {
    /// How many were wrong.
    fn wrong(&self) -> usize {
        self.ways.iter().filter(|way| way.wrong.is_some()).count()
    }

    fn text(&self) -> String {
        let mut text = format!("trial     {} ways, {} wrong, in {:.0} s", self.ways.len(), self.wrong(), self.seconds);
        let without = self.left_out.iter().flatten().map(|left_out| format!("without {left_out}"));
        without.chain(self.refused.clone()).for_each(|line| text += &format!("\n          {line}"));
        text
    }
}

/// What verifying came to, in words.
fn verified(parts: &[Part]) -> String {
    let sum = |name: &str| parts.iter().filter_map(|part| part.number(name)).sum::<u64>();
    let seconds: f64 = parts.iter().map(|part| part.seconds).sum();
    format!("verify    {} passed, {} failed, in {seconds:.0} s{}", sum("passed"), sum("failed"), failures(parts))
}

/// What went wrong with parts, a line each.
fn failures(parts: &[Part]) -> String {
    let failed = parts.iter().filter_map(|part| Some((part, part.failed.as_ref()?)));
    failed.map(|(part, failed)| format!("\n          {}: {failed}", part.command)).collect()
}

/// The report in a few lines.
fn text(report: &Report, args: &Args) -> String {
    let Report { device, bench, model, seconds, .. } = report;
    let mut text = format!("{}, driver {}: {}\n{}\n", device.name, device.driver, device.choice, report.trial.text());
    if report.trial.refused.is_none() {
        text += &format!("{}\nbench     {} timed{}\n", verified(&report.verify), model.len(), failures(bench));
    }
    text += &model::table(model);
    text + &format!(
        "{} is the file to send back, {} shows it ({seconds:.0} s)\n",
        args.json.display(),
        args.html.display()
    )
}
