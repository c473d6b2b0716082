//! One sitting, without a season around it: a champion and a challenger of our own backends, each in fresh processes of
//! this very program, or any program as the challenger.
//!
//! ```text
//! cargo run --release -p hammerhead-tank --example sitting -- M,N,K[;M,N,K…] BACKEND:CONFIG BACKEND:CONFIG
//! cargo run --release -p hammerhead-tank --example sitting -- 8,512,512 avx2: -- python3 examples/contestants/plain.py
//! ```

use hammerhead::backends;
use referee::{Measurement, RefereeSettings, Terms, seeds};
use tank::entry::Entry;
use tank::official::Official;
use tank::operations::dual_gemm::{DualGemm, ProblemSpec, serve};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, described] = arguments.as_slice()
        && first == "worker"
    {
        let contestant = serde_json::from_str(described)?;
        return Ok(serve(contestant, std::io::stdin().lock(), std::io::stdout().lock())?);
    }
    let [shapes, champion, rest @ ..] = arguments.as_slice() else {
        return Err("give shapes, a champion and a challenger".into());
    };
    let problems = shapes.split(';').map(problem).collect::<Result<Vec<_>, _>>()?;
    let champion = entry(&problems, champion)?;
    let challenger = match rest {
        [dashes, command @ ..] if dashes == "--" => {
            Entry::Program { build: Vec::new(), command: command.to_vec(), sealed: None }
        }
        [config] => entry(&problems, config)?,
        _ => return Err("give one challenger: BACKEND:CONFIG, or -- and a command".into()),
    };
    let worker = vec![std::env::current_exe()?.display().to_string(), "worker".to_owned()];
    let mut referee = Official::new(Box::new(DualGemm::new(&problems)?), RefereeSettings::default(), worker, None)?;
    let (champion, challenger) = (("champion", &champion), ("challenger", &challenger));
    let examined = referee.examine(champion, challenger, seeds::fresh()?)?;
    println!("{}", serde_json::to_string_pretty(&examined)?);
    if !examined.passed() {
        return Err("it is not right, so it is not timed".into());
    }
    let sitting = referee.sit(champion, challenger, &Terms::default(), seeds::fresh()?)?;
    for control in [&sitting.control, &sitting.plant].into_iter().flatten() {
        println!("{}", control.finding);
    }
    for measurement in [&sitting.first, &sitting.second].into_iter().flatten() {
        show(measurement);
    }
    println!(
        "{:?}\n{:?}\nmargin {:.2} %: {:?}",
        sitting.course,
        sitting.roofline,
        100.0 * sitting.margin,
        sitting.outcome
    );
    Ok(())
}

fn problem(text: &str) -> Result<ProblemSpec, Failure> {
    let sizes = text.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let [m, n, k] = sizes[..] else { return Err(format!("{text} is not M,N,K").into()) };
    Ok(ProblemSpec::single(m, n, k))
}

fn entry(problems: &[ProblemSpec], text: &str) -> Result<Entry, Failure> {
    let (name, config) = text.split_once(':').ok_or("write BACKEND:CONFIG; the configuration may be empty")?;
    let threads = std::thread::available_parallelism()?.get();
    Ok(Entry::planned(problems, &[backends::by_name(name)?], &config.parse()?, threads)?)
}

fn show(measurement: &Measurement) {
    let Measurement { quartets, processes, stopped, .. } = measurement;
    println!("{quartets} quartets in {processes} processes, {stopped:?}");
    for (name, summary) in [("cold", &measurement.cold), ("warm", &measurement.warm)] {
        println!("  {name}: {}", summary.geomean);
        for shape in &summary.shapes {
            let (ours, theirs) = (1e6 * shape.champion_seconds, 1e6 * shape.challenger_seconds);
            println!("    {}: {} ({ours:.1} µs, {theirs:.1} µs)", shape.shape, shape.speedup);
        }
    }
}
