//! How long the simulator takes for a fixed suite of kernels, schedules and mutants: `sim_speed [--against PROGRAM]
//! [--rounds N]`, `sim_speed --only PART` (words that its name has), or `sim_speed --outcomes`.
//!
//! Prints seconds per part on one thread, by the clock that counts while the thread runs, and a digest of what came of
//! each: profiles, results, and the whole text of every fault. Making kernels, problems and references does not count.
//! With another build of this program, the two take turns and are compared part by part: the ratio of their shortest
//! times, and whether they found the same. `--outcomes` prints what the digests are of, a line each, for a look at what
//! differs.

#[path = "../../sim/tests/it/kernels.rs"]
mod kernels;

#[path = "../../sim/tests/problems/mod.rs"]
mod problems;

#[path = "../../sim/tests/problems/cases.rs"]
mod cases;

#[path = "../../sim/tests/problems/block_scaled.rs"]
mod block_scaled;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::{Command, exit};
use std::sync::OnceLock;
use std::time::Instant;

use format::Dense;
use gpu::Simulated;
use hammerhead::{Activation, Backend, Gate, Output, Plan, Precision, Problem, Request, Shape, Target, cpu};
use hammerhead_testkit::cases::{Case, Inputs, Suite};
use hammerhead_testkit::mutations::{Trial, WAYS, Way};
use hammerhead_testkit::verify::poisoned;
use op::Call;
use ptx::Kernel;
use sim::mutate::{self, Mutant};
use sim::{Finding, Gpu, Profile, Schedule, explore, explore_mutants};

/// One in so many mutants is run.
const STRIDE: usize = 6;

/// What came of each run, in words, and the seconds they took.
#[derive(Default)]
struct Outcomes {
    words: Vec<String>,
    seconds: f64,
}

impl Outcomes {
    /// Does something that counts.
    fn time(&mut self, run: impl FnOnce() -> String) {
        self.time_all(|| vec![run()]);
    }

    /// Does several things at once.
    fn time_all(&mut self, run: impl FnOnce() -> Vec<String>) {
        let start = busy();
        let words = run();
        self.seconds += busy() - start;
        self.words.extend(words);
    }
}

/// Seconds that this thread has run; where the system does not tell, those of the clock on the wall.
fn busy() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| START.get_or_init(Instant::now).elapsed().as_secs_f64(), |count| count * 1e-9)
}

/// A part of the suite.
type Part = (&'static str, fn() -> Outcomes);

const PARTS: [Part; 5] = [
    ("GEMM on Hopper", gemm),
    ("block-scaled tile on Blackwell", blackwell),
    ("products of both families", products),
    ("whole calls, all strategies", calls),
    ("mutants of the products", mutants),
];

fn outcome(found: &Result<Profile, Finding>) -> String {
    match found {
        Ok(profile) => format!("{profile:?}"),
        Err(finding) => finding.to_string(),
    }
}

/// The GEMM as it is under many schedules, and some of its mutants.
fn gemm() -> Outcomes {
    let (cases, kernel, mut found) = (cases::all(), problems::multiply(), Outcomes::default());
    for schedule in Schedule::several(4) {
        found.time(|| outcome(&cases::examine(&cases, &kernel, &[schedule])));
    }
    let mutants = mutate::mutants(&kernel);
    let some: Vec<&Kernel> = mutants.iter().step_by(STRIDE).map(|mutant| &mutant.kernel).collect();
    found.time_all(|| {
        cases::examine_mutants(&cases, (&kernel, &some), &Schedule::several(2)).iter().map(outcome).collect()
    });
    found
}

/// The same for tensor memory.
fn blackwell() -> Outcomes {
    let (kernel, expected, mut found) = (block_scaled::kernel(), block_scaled::product(), Outcomes::default());
    let (gpu, launch, out) = block_scaled::prepare();
    let verify = |gpu: &Gpu| match gpu.floats(out) == expected {
        true => Ok(()),
        false => Err("the tile is wrong".to_string()),
    };
    let prepare = || (gpu.clone(), launch.clone());
    for schedule in Schedule::several(6) {
        found.time(|| outcome(&explore(&kernel, &[schedule], prepare, verify)));
    }
    let mutants = mutate::mutants(&kernel);
    let some: Vec<&Kernel> = mutants.iter().step_by(STRIDE).map(|mutant| &mutant.kernel).collect();
    found.time_all(|| {
        explore_mutants((&kernel, &some), &Schedule::several(2), prepare, verify).iter().map(outcome).collect()
    });
    found
}

/// Ways of putting products together: a plain one of each family, and the one with most of everything.
fn ways() -> impl Iterator<Item = &'static Way> {
    let names = [
        "a tile per block, few tokens",
        "two blocks per tile, many tokens",
        "mma.sync, warps along k",
        "mma.sync, several tiles per block",
    ];
    WAYS.iter().filter(move |way| names.contains(&way.name))
}

/// The products as they are.
fn products() -> Outcomes {
    let mut found = Outcomes::default();
    for way in ways() {
        let trial = Trial::new(way).expect("a kernel");
        Schedule::several(3).into_iter().for_each(|schedule| found.time(|| outcome(&trial.original(&[schedule]))));
    }
    found
}

/// Some of their mutants.
fn mutants() -> Outcomes {
    let mut found = Outcomes::default();
    for way in ways() {
        let trial = Trial::new(way).expect("a kernel");
        let mutants = mutate::mutants(trial.kernel());
        let some: Vec<&Mutant> = mutants.iter().step_by(STRIDE).collect();
        found.time_all(|| {
            let words = |finding: Option<Finding>| finding.map_or("survives".into(), |finding| finding.to_string());
            trial.examine(&some, &Schedule::several(1)).into_iter().map(words).collect()
        });
    }
    found
}

/// A backend, a request and the shape of a problem.
type Example = (&'static str, &'static str, (usize, usize, usize));

const CALLS: [Example; 8] = [
    ("sim", "strategy=interleaved,tile=24x96,depth=128,stages=2,epilogue=staged,schedule=tile", (25, 104, 336)),
    ("sim", "strategy=sequential,tile=16x192,depth=64,stages=2,epilogue=staged,schedule=persistent", (40, 200, 208)),
    ("sim", "strategy=two-pass,tile=32x192,depth=64,stages=2,epilogue=staged,schedule=split-k", (20, 200, 208)),
    ("sim", "strategy=ping-pong,tile=16x64,depth=128,stages=2,epilogue=staged,schedule=persistent", (40, 200, 208)),
    ("sim:sm80", "strategy=interleaved,tile=40x48,depth=64,stages=3,epilogue=staged,schedule=tile", (41, 136, 208)),
    (
        "sim:sm80",
        "strategy=sequential,tile=32x32,depth=64,stages=4,epilogue=staged,schedule=persistent",
        (40, 136, 144),
    ),
    ("sim:sm80", "strategy=two-pass,tile=32x128,depth=64,stages=3,epilogue=staged,schedule=persistent", (40, 264, 336)),
    ("sim:sm80", "strategy=ping-pong,tile=16x32,depth=128,stages=3,epilogue=direct,schedule=split-k", (17, 40, 592)),
];

/// Calls of a backend from tokens in NVFP4 to gated results: expansion, product, gate.
fn calls() -> Outcomes {
    let mut found = Outcomes::default();
    let seeds = Schedule::several(1);
    CALLS.iter().for_each(|way| seeds.iter().for_each(|schedule| call(*way, *schedule, &mut found)));
    found
}

fn call((name, request, (m, n, k)): Example, schedule: Schedule, found: &mut Outcomes) {
    let case = Case {
        suite: Suite::Edge,
        why: "speed",
        groups: vec![Shape::new(m, n, k)],
        gate: Gate::Silu,
        activation: Activation::NvFp4,
        output: Output::F16,
        precision: Precision::Exact,
        inputs: Inputs::Realistic,
        timed: false,
    };
    let instance = case.instance(7).expect("a case");
    let simulator = Simulated::by_name(name).expect("a family's simulator").under(schedule);
    let backend: &'static dyn Backend = Box::leak(Box::new(simulator));
    let problem: &Problem = &instance.problem;
    let request: Request = request.parse().expect("a request");
    let plan = Plan::best(problem.clone(), &[backend], &request, 1).expect("a plan");
    let team = cpu::team(Some(1)).expect("a team");
    let packed = backend.prepack(&instance.weights, &team).expect("weights");
    let mut results = poisoned(&instance);
    let targets = &mut Target::all(&mut results);
    let choice = (plan.backend(), *plan.config());
    let call = Call::new(choice, problem, packed.as_ref(), &instance.activations, targets, &team);
    found.time(|| match call.and_then(Call::run) {
        Ok(()) => "passes".to_string(),
        Err(error) => error.to_string(),
    });
    found.words.push(format!("{:?}", Dense::new(m, n, results.swap_remove(0), 1.0)));
}

/// Runs the suite, or the parts with a name like this, and prints each one's seconds and digest.
fn measure(only: &str) {
    for (name, part) in PARTS.into_iter().filter(|(name, _)| name.contains(only)) {
        let Outcomes { words, seconds } = part();
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        println!("{name:<32} {seconds:9.4} {:016x}", hasher.finish());
    }
}

/// Seconds and digest of each part, as another build prints them.
fn child(program: &str) -> Vec<(f64, String)> {
    let output = Command::new(program).output().unwrap_or_else(|error| {
        eprintln!("{program}: {error}");
        exit(1)
    });
    let text = String::from_utf8_lossy(&output.stdout);
    let row = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let digest = words.next()?.to_string();
        Some((words.next()?.parse().ok()?, digest))
    };
    text.lines().filter_map(row).collect()
}

/// Lets two builds take turns.
fn compare(own: &str, other: &str, rounds: usize) {
    let mut best = [[f64::INFINITY; 2]; PARTS.len()];
    let mut same = [true; PARTS.len()];
    for _ in 0..rounds {
        let (mine, others) = (child(own), child(other));
        assert_eq!((mine.len(), others.len()), (PARTS.len(), PARTS.len()), "both must run this suite to its end");
        for (part, ((mine, found), (others, expected))) in mine.into_iter().zip(others).enumerate() {
            best[part] = [best[part][0].min(mine), best[part][1].min(others)];
            same[part] &= found == expected;
        }
    }
    println!("{:<32} {:>9} {:>9} {:>7}  outcomes", "part", "this, s", "other, s", "ratio");
    let row = |name: &str, [mine, others]: [f64; 2], same: bool| {
        let verdict = if same { "the same" } else { "DIFFERENT" };
        println!("{name:<32} {mine:9.4} {others:9.4} {:7.2}  {verdict}", others / mine);
    };
    PARTS.iter().zip(best).zip(same).for_each(|(((name, _), best), same)| row(name, best, same));
    let sum = |build: usize| best.iter().map(|best| best[build]).sum();
    row("all", [sum(0), sum(1)], same.iter().all(|same| *same));
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    if args.iter().any(|arg| arg == "--outcomes") {
        for (name, part) in PARTS {
            part().words.iter().for_each(|outcome| println!("{name}: {}", outcome.replace('\n', " | ")));
        }
    } else if let Some(other) = after("--against") {
        compare(&args[0], other, after("--rounds").and_then(|rounds| rounds.parse().ok()).unwrap_or(3));
    } else {
        measure(after("--only").map_or("", |only| &only[..]));
    }
}
