//! How often the referee is right on real clocks: sittings of a configuration of ours against itself, slowed by a known
//! part, in this very process.
//!
//! `cargo run --release -p hammerhead-tank --example real_clocks PLACE PART [SITTINGS [SECONDS [THREADS]]]`: the place
//! is `cpu` or `cuda`, the part 0.03 or 0 for equal code, the seconds are those of a sitting, and without a number of
//! threads the planner's is taken. On a processor the slower one waits; on a GPU its clock is read as so much later.

use std::collections::BTreeMap;
use std::time::Instant;

use hammerhead::{Request, backends};
use referee::contestant::{About, Contestant, DeviceTime, Fault, Guard, Job, Queued, Readiness, Session, Tensors};
use referee::{Outcome, Pool, Precedence, RefereeSettings, Terms, Wall, Watched, seeds, sit};
use tank::entry::Entry;
use tank::operations::dual_gemm::problem::case;
use tank::operations::dual_gemm::{Builtin, OnDevice, ProblemSpec, tasks};

type Failure = Box<dyn std::error::Error>;

/// A contestant that takes a part longer than it need.
struct Slowed<C>(C, f64);

struct SlowedSession(Box<dyn Session>, f64);

impl<C: Contestant> Contestant for Slowed<C> {
    fn about(&self) -> About {
        self.0.about()
    }

    fn start(&self) -> Result<Box<dyn Session>, Fault> {
        Ok(Box::new(SlowedSession(self.0.start()?, self.1)))
    }
}

impl Session for SlowedSession {
    fn deterministic(&self) -> bool {
        self.0.deterministic()
    }

    fn tensors(&mut self) -> &mut Tensors {
        self.0.tensors()
    }

    fn prepare(&mut self) -> Result<Readiness, Fault> {
        self.0.prepare()
    }

    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        self.0.stage(jobs)
    }

    fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
        let start = Instant::now();
        if let Some(DeviceTime { seconds, outside, whole: [device, host] }) = self.0.go()? {
            let more = seconds * self.1;
            return Ok(Some(DeviceTime { seconds: seconds + more, outside, whole: [device + more, host + more] }));
        }
        let whole = start.elapsed().mul_f64(1.0 + self.1);
        while start.elapsed() < whole {
            std::hint::spin_loop();
        }
        Ok(None)
    }

    fn sweep(&mut self, bytes: u64) -> bool {
        self.0.sweep(bytes)
    }

    fn queued(&mut self) -> Option<Queued> {
        self.0.queued()
    }

    fn guards(&self) -> Vec<Guard> {
        self.0.guards()
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize| arguments.get(index).map(String::as_str);
    let (on_gpu, part) = match (word(0), word(1)) {
        (Some("cpu"), Some(part)) => (false, part.parse::<f64>()?),
        (Some("cuda"), Some(part)) => (true, part.parse::<f64>()?),
        _ => return Err("say where and how much: real_clocks cpu 0.03, or real_clocks cuda 0".into()),
    };
    let sittings: usize = word(2).map_or(Ok(20), str::parse)?;
    let terms = Terms { budget_seconds: Some(word(3).map_or(Ok(20.0), str::parse)?), ..Terms::default() };
    let threads: Option<usize> = word(4).map(str::parse).transpose()?;
    let [n, k] = if on_gpu { [4096, 7168] } else { [3072, 1024] };
    let problems = [ProblemSpec::single(1, n, k), ProblemSpec::single(8, n, k)];
    let wanted = |name: &str| if on_gpu { name == "cuda" } else { name != "cuda" && name != "sim" };
    let among: Vec<_> = backends::all().iter().copied().filter(|b| b.available().is_ok() && wanted(b.name())).collect();
    let planned_for = threads.map_or_else(|| std::thread::available_parallelism().map(usize::from), Ok)?;
    let Entry::Builtin { ways } = Entry::planned(&problems, &among, &Request::default(), planned_for)? else {
        return Err("the planner chooses configurations".into());
    };
    let builtin = Builtin { name: "ours".to_owned(), ways, threads, ..Builtin::default() };
    let cases = problems.iter().map(|spec| spec.problem().map(|problem| case(&problem)));
    let cases = cases.collect::<Result<Vec<_>, _>>()?;
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let (settings, before, began) = (RefereeSettings::default(), load(), Instant::now());
    let (mut found, mut sees) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for number in 1..=sittings {
        let sides: [Box<dyn Contestant>; 2] = if on_gpu {
            let ours = || OnDevice::new(builtin.clone(), 0);
            [Box::new(Slowed(ours()?, part)), Box::new(ours()?)]
        } else {
            [Box::new(Slowed(builtin.clone(), part)), Box::new(Slowed(builtin.clone(), 0.0))]
        };
        let (clock, seed) = (Wall::new(), seeds::fresh()?);
        let pool = Pool::new(sides[0].as_ref(), sides[1].as_ref(), tasks(&cases)?, &settings, &clock, seed)?;
        let mut pool = if on_gpu { pool.on_device(Watched::open(0)?) } else { pool.on_the_processor()? };
        let _precedence = Precedence::take();
        let sitting = sit(&mut pool, &settings, &terms, seeds::fresh()?)?;
        let published = sitting.published().map(|found| found.at(settings.timing.decides).geomean.to_string());
        let measured = published.unwrap_or_else(|| "no figure".to_owned());
        let saw = sitting.scout.map(|scout| scout.sees);
        // A sitting that ended before its scout saw nothing, and says nothing of what one can see.
        sees.extend(saw);
        let name = match sitting.outcome {
            Outcome::Faster => "faster",
            Outcome::Slower => "slower",
            Outcome::Mixed { .. } => "mixed",
            Outcome::Inconclusive { .. } => "inconclusive",
            Outcome::Void { .. } => "void",
            Outcome::Faulted { .. } | Outcome::Stopped { .. } => "other",
        };
        *found.entry(name).or_default() += 1;
        // Whoever stops it after an hour keeps what was found by then.
        let took = began.elapsed().as_secs_f64();
        println!(
            "sitting {number} of {sittings}: {name}, {measured}; could see {:.1} %; {took:.0} s so far, load {}",
            100.0 * saw.unwrap_or(f64::NAN),
            load().trim()
        );
    }
    sees.sort_by(f64::total_cmp);
    let median = sees.get(sees.len() / 2).copied().unwrap_or(f64::NAN);
    println!(
        "{} faster by {:.0} %: {found:?} of {sittings}, {:.0} s each; could see {:.1} % in the median; load {} to {}",
        if on_gpu { "cuda" } else { "cpu" },
        100.0 * part,
        began.elapsed().as_secs_f64() / sittings.max(1) as f64,
        100.0 * median,
        before.trim(),
        load().trim()
    );
    Ok(())
}
