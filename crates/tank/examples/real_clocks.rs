//! How often the referee is right on real clocks: sittings of a configuration of ours against itself, slowed by a known
//! part, in this very process.
//!
//! `cargo run --release -p hammerhead-tank --example real_clocks PLACE PART [SITTINGS [SECONDS [THREADS]]]`: the place
//! is `cpu` or `cuda`, the part 0.03 or 0 for equal code, the seconds are those of a sitting, and without a number of
//! threads the planner's is taken. On a processor the slower one waits; on a GPU its clock is read as so much later.
//!
//! Each sitting is a line of JSON: how it ended, what was measured, the pairs of processes that each part took, and
//! where its seconds went. What contestants did not take is the referee's: numbers, copies and looking at results.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use hammerhead::{Request, backends};
use referee::contestant::{About, Contestant, DeviceTime, Fault, Guard, Job, Queued, Readiness, Session, Tensors};
use referee::{Measurement, Outcome, Pool, Precedence, RefereeSettings, Terms, Wall, Watched, seeds, sit};
use serde_json::json;
use tank::entry::Entry;
use tank::operations::dual_gemm::problem::case;
use tank::operations::dual_gemm::{Builtin, OnDevice, ProblemSpec, tasks};

type Failure = Box<dyn std::error::Error>;

/// What contestants do, and the seconds that they have spent on each.
const PARTS: [&str; 4] = ["start", "prepare", "stage", "go"];
type Spent = Rc<[Cell<f64>; PARTS.len()]>;

/// Does one of [`PARTS`], and notes how long it took.
fn noted<T>(spent: &Spent, part: usize, does: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = does();
    spent[part].set(spent[part].get() + began.elapsed().as_secs_f64());
    done
}

/// A contestant that takes a part longer than it need.
struct Slowed<C>(C, f64, Spent);

struct SlowedSession(Box<dyn Session>, f64, Spent);

impl<C: Contestant> Contestant for Slowed<C> {
    fn about(&self) -> About {
        self.0.about()
    }

    fn start(&self) -> Result<Box<dyn Session>, Fault> {
        let session = noted(&self.2, 0, || self.0.start())?;
        Ok(Box::new(SlowedSession(session, self.1, Rc::clone(&self.2))))
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
        noted(&self.2, 1, || self.0.prepare())
    }

    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        noted(&self.2, 2, || self.0.stage(jobs))
    }

    fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
        let start = Instant::now();
        let timed = noted(&self.2, 3, || self.0.go())?;
        if let Some(DeviceTime { seconds, outside, whole: [device, host] }) = timed {
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
    let mut found = BTreeMap::<&str, usize>::new();
    for number in 1..=sittings {
        let (start, spent) = (Instant::now(), Spent::default());
        let slowed = |part| -> Result<Box<dyn Contestant>, Failure> {
            let spent = Rc::clone(&spent);
            Ok(match on_gpu {
                true => Box::new(Slowed(OnDevice::new(builtin.clone(), 0)?, part, spent)),
                false => Box::new(Slowed(builtin.clone(), part, spent)),
            })
        };
        let sides = [slowed(part)?, slowed(0.0)?];
        let (clock, seed) = (Wall::new(), seeds::fresh()?);
        let pool = Pool::new(sides[0].as_ref(), sides[1].as_ref(), tasks(&cases)?, &settings, &clock, seed)?;
        let mut pool = if on_gpu { pool.on_device(Watched::open(0)?) } else { pool.on_the_processor()? };
        let _precedence = Precedence::take();
        let sitting = sit(&mut pool, &settings, &terms, seeds::fresh()?)?;
        let name = match sitting.outcome {
            Outcome::Faster => "faster",
            Outcome::Slower => "slower",
            Outcome::Mixed { .. } => "mixed",
            Outcome::Inconclusive { .. } => "inconclusive",
            Outcome::Void { .. } => "void",
            Outcome::Faulted { .. } | Outcome::Stopped { .. } => "other",
        };
        *found.entry(name).or_default() += 1;
        let of = |measured: Option<&Measurement>| {
            measured.map(|m| json!({ "pairs": m.processes, "speedup": m.at(settings.timing.decides).geomean }))
        };
        let [control, plant] =
            [&sitting.control, &sitting.plant].map(|control| of(control.as_ref().map(|control| &control.measurement)));
        let spent: BTreeMap<_, _> = PARTS.iter().zip(spent.iter().map(Cell::get)).collect();
        println!(
            "{}",
            json!({
                "sitting": number,
                "place": if on_gpu { "cuda" } else { "cpu" },
                "part": part,
                "outcome": sitting.outcome,
                "measured": of(sitting.published()),
                "control": control,
                "plant": plant,
                "first": of(sitting.first.as_ref()),
                "margin": sitting.margin,
                "scout": sitting.scout,
                "seconds": start.elapsed().as_secs_f64(),
                "spent": spent,
                "load": load().trim(),
            })
        );
    }
    let (took, load) = (began.elapsed().as_secs_f64() / sittings.max(1) as f64, load());
    eprintln!("{found:?} of {sittings}, {took:.0} s each; load {} to {}", before.trim(), load.trim());
    Ok(())
}
