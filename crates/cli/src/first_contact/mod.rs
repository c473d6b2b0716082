//! `hammerhead first-contact`: all that the owner of a GPU that nobody has measured can find out in a minute or two, in
//! one file to send back and one page to look at.
//!
//! Ways of computing are tried, each against the reference; problems are verified; some are timed, and held against
//! what the model says of them. What is verified and timed runs in processes of their own with a time limit (`part`),
//! so that a fault or a kernel that does not end is a line in the report and not the end of it.

mod model;
mod page;
mod part;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args as ClapArgs;
use gpu::driver::{Monitor, Reading};
use gpu::{Cuda, device};
use hammerhead::Backend;
use hammerhead::machine::Machine;
use ptx::assemble::Assembler;
use serde::Serialize;
use serde_json::Value;

use self::model::Compared;
use self::part::Part;
use crate::{Error, Result, console, files};

/// The version of the file's layout.
const SCHEMA: u32 = 1;

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
    its own with a time limit. Writes one JSON file, which its authors would like to see, and one page that shows it.\n\n\
    Examples:\n  \
    hammerhead first-contact\n  \
    HAMMERHEAD_FAMILY=sm80 hammerhead first-contact --json sm80.json --html sm80.html"
)]
pub struct Args {
    /// The device's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: usize,
    /// The file to send back
    #[arg(long, value_name = "FILE", default_value = "first-contact.json")]
    json: PathBuf,
    /// The page that shows it
    #[arg(long, value_name = "FILE", default_value = "first-contact.html")]
    html: PathBuf,
}

/// What the file holds.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    version: &'static str,
    kernels: &'static str,
    machine: Machine,
    device: DeviceReport,
    trial: TrialReport,
    /// What `hammerhead verify --json` says, or why it says nothing.
    verify: Part,
    /// What `hammerhead bench --json` says, or why it says nothing.
    bench: Part,
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
#[derive(Debug, Serialize)]
struct TrialReport {
    ways: Vec<WayReport>,
    left_out: Vec<String>,
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
        let Reading { clock, memory_clock, watts, celsius, held_by } = reading;
        Clocks { seconds, clock_hertz: clock, memory_clock_hertz: memory_clock, watts, celsius, held_by }
    }
}

/// Finds out, and writes.
pub fn first_contact(args: &Args) -> Result<()> {
    // Better now than after minutes of work.
    if files::same_place(&args.json, &args.html) {
        return Err(Error::OneFile { path: args.html.clone() });
    }
    [&args.json, &args.html].into_iter().try_for_each(|path| files::check_report(path))?;
    let begun = Instant::now();
    let cuda = Cuda::on(args.device)?;
    let (info, choice) = cuda.described()?;
    console::remark(&format!("{}: {choice}", info.name));
    let family = choice.family.name();
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
        driver: gpu::trial::driver_version(),
        ptxas: Assembler::find(None).ok().and_then(|assembler| assembler.version()),
        family,
        choice: choice.to_string(),
    };
    let mut report = Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        kernels: cuda.kernels(),
        machine: Machine::detect(),
        device,
        trial: tried(cuda),
        verify: Part::not_yet(),
        bench: Part::not_yet(),
        model: Vec::new(),
        clocks: Vec::new(),
        seconds: 0.0,
    };
    // Written after every part: what is known by then is kept if the machine, or its owner, loses patience.
    let keep = |report: &mut Report| {
        report.seconds = begun.elapsed().as_secs_f64();
        files::write_report(&args.json, &console::json_text(report)?)?;
        files::write_report(&args.html, &page::html(report))
    };
    keep(&mut report)?;
    let of_device = ["--backend", cuda.name()];
    let verified = choices("--shape", &VERIFIED).chain(choices("--activation", &VERIFIED_TOKENS));
    console::remark("verifying problems in many configurations");
    report.verify = Part::run("verify", of_device.into_iter().chain(verified), |_| ());
    keep(&mut report)?;
    let timed = choices("--shape", &TIMED).chain(choices("--activation", &TIMED_TOKENS));
    console::remark("timing problems");
    let monitor = device::context(args.device).ok().and_then(|context| Monitor::of(context).ok());
    let clocks = &mut report.clocks;
    report.bench = Part::run("bench", of_device.into_iter().chain(timed), |seconds| {
        clocks.extend(monitor.as_ref().map(|monitor| Clocks::of(seconds, monitor.reading())));
    });
    report.model = model::compare(args.device, report.bench.said.as_ref().unwrap_or(&Value::Null));
    keep(&mut report)?;
    console::print(&text(&report, args))
}

/// An option with each of some values.
fn choices<'a>(option: &'a str, values: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    values.iter().flat_map(move |value| [option, value])
}

/// Tries every way.
fn tried(cuda: &Cuda) -> TrialReport {
    let (mut ways, begun) = (Vec::new(), Instant::now());
    let mut before = begun;
    let bar = console::progress(0);
    let tried = cuda.try_every_way(|trial, found| {
        let seconds = before.elapsed().as_secs_f64();
        before = Instant::now();
        bar.set_message(trial.way.to_string());
        ways.push(WayReport {
            way: trial.way.to_string(),
            problem: format!("{} {}", trial.problem, trial.problem.activation()),
            config: trial.config.to_string(),
            wrong: found.as_ref().err().cloned(),
            seconds,
        });
    });
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    match tried {
        Ok(tried) => {
            let left_out = tried.left_out.iter().map(ToString::to_string).collect();
            TrialReport { ways, left_out, refused: None, seconds }
        }
        Err(error) => TrialReport { ways, left_out: Vec::new(), refused: Some(error.to_string()), seconds },
    }
}

/// The report in a few lines.
fn text(report: &Report, args: &Args) -> String {
    let Report { device, trial, verify, bench, model, seconds, .. } = report;
    let wrong = trial.ways.iter().filter(|way| way.wrong.is_some()).count();
    let mut text = format!(
        "{}, driver {}: {}\ntrial     {} ways, {wrong} wrong, in {:.0} s\n",
        device.name,
        device.driver,
        device.choice,
        trial.ways.len(),
        trial.seconds
    );
    trial.refused.iter().chain(&trial.left_out).for_each(|left_out| text += &format!("          without {left_out}\n"));
    let number = |part: &Part, name: &str| part.said.as_ref().and_then(|said| said.get(name)).and_then(Value::as_u64);
    text += &match (&verify.failed, number(verify, "passed"), number(verify, "failed")) {
        (None, Some(passed), Some(failed)) => format!("verify    {passed} passed, {failed} failed\n"),
        (failed, ..) => format!("verify    {}\n", failed.as_deref().unwrap_or("nothing was said")),
    };
    if let Some(failed) = &bench.failed {
        text += &format!("bench     {failed}\n");
    }
    text += &model::table(model);
    text + &format!(
        "{} is the file to send back, {} shows it ({seconds:.0} s)\n",
        args.json.display(),
        args.html.display()
    )
}
