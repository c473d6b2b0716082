//! How often the referee is right on real clocks: sittings of a configuration of ours against itself, slowed by a known
//! part, in this very process.
//!
//! `cargo run --release -p hammerhead-tank --example real_clocks [SITTINGS [BUDGET [THREADS]]]`: a budget is in seconds
//! per sitting, and without a number of threads the planner's is taken. Prints one line per truth.

use std::collections::BTreeMap;
use std::time::Instant;

use hammerhead::{Request, backends};
use referee::contestant::{About, Contestant, DeviceTime, Fault, Guard, Job, Queued, Readiness, Session, Tensors};
use referee::{Outcome, Pool, Precedence, RefereeSettings, Terms, Wall, seeds, sit};
use tank::entry::Entry;
use tank::operations::dual_gemm::{Builtin, ProblemSpec, tasks};

type Failure = Box<dyn std::error::Error>;

/// A contestant that takes a part longer than it need.
struct Slowed(Builtin, f64);

struct SlowedSession(Box<dyn Session>, f64);

impl Contestant for Slowed {
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
        self.0.go()?;
        let whole = start.elapsed().mul_f64(1.0 + self.1);
        while start.elapsed() < whole {
            std::hint::spin_loop();
        }
        Ok(None)
    }

    fn queued(&mut self) -> Option<Queued> {
        self.0.queued()
    }

    fn guards(&self) -> Vec<Guard> {
        self.0.guards()
    }
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let sittings: usize = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let budget: f64 = arguments.next().map_or(Ok(20.0), |text| text.parse())?;
    let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let problems = [ProblemSpec::single(1, 3072, 1024), ProblemSpec::single(8, 3072, 1024)];
    let auto: Vec<_> = backends::all().iter().copied().filter(|b| b.available().is_ok() && b.name() != "sim").collect();
    let threads: Option<usize> = arguments.next().map(|text| text.parse()).transpose()?;
    let planned_for = threads.map_or_else(|| std::thread::available_parallelism().map(usize::from), Ok)?;
    let Entry::Builtin { ways } = Entry::planned(&problems, &auto, &Request::default(), planned_for)? else {
        return Err("the planner chooses configurations".into());
    };
    let builtin = Builtin { name: "ours".to_owned(), ways, threads, ..Builtin::default() };
    let cases = problems.iter().map(ProblemSpec::case).collect::<Result<Vec<_>, _>>()?;
    let (settings, terms) = (RefereeSettings::default(), Terms { budget_seconds: Some(budget), ..Terms::default() });
    for truth in [0.0, 0.03] {
        let (champion, challenger) = (Slowed(builtin.clone(), truth), Slowed(builtin.clone(), 0.0));
        let (mut found, before) = (BTreeMap::<&str, usize>::new(), load());
        let mut sees = Vec::new();
        for _ in 0..sittings {
            let clock = Wall::new();
            let pool = Pool::new(&champion, &challenger, tasks(&cases)?, &settings, &clock, seeds::fresh()?)?;
            let mut pool = pool.on_the_processor()?;
            let _precedence = Precedence::take();
            let sitting = sit(&mut pool, &settings, &terms, seeds::fresh()?)?;
            sees.extend(sitting.scout.map(|scout| scout.sees));
            let name = match sitting.outcome {
                Outcome::Faster => "faster",
                Outcome::Slower => "slower",
                Outcome::Mixed { .. } => "mixed",
                Outcome::Inconclusive { .. } => "inconclusive",
                Outcome::Void { .. } => "void",
                Outcome::Faulted { .. } | Outcome::Stopped { .. } => "other",
            };
            *found.entry(name).or_default() += 1;
        }
        sees.sort_by(f64::total_cmp);
        let median = sees.get(sees.len() / 2).copied().unwrap_or(f64::NAN);
        println!(
            "{:.0} % faster: {found:?} of {sittings}; could see {:.1} % in the median; load {} to {}",
            100.0 * truth,
            100.0 * median,
            before.trim(),
            load().trim()
        );
    }
    Ok(())
}
