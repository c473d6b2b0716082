//! What the tests of contestants share: programs, small problems, quick settings.
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hammerhead::{Output, Plan, Shape, backends};
use referee::contestant::{
    About, Contestant, DeviceTime, Fault, Guard, Job, Limits, Program, Readiness, Session, Tensors,
};
use referee::task::Task;
use referee::{Checking, Clock, Correctness, Outcome, Pool, RefereeSettings, Side, Terms, Timing, examine, sit};
use tank::entry::Way;
use tank::exploits::Suite;
use tank::operations::dual_gemm::{Builtin, tasks};
use testkit::cases::{self, Case, Inputs};

/// A problem of one group with NVFP4 tokens and SiLU.
pub fn case(m: usize, n: usize, k: usize, inputs: Inputs) -> Case {
    let edge = cases::suite(cases::Suite::Edge);
    Case { groups: vec![Shape::new(m, n, k)], inputs, timed: true, ..edge[1].clone() }
}

/// A few small questions.
pub fn few_questions() -> Vec<Case> {
    let mut single = case(5, 7, 48, Inputs::Integers);
    single.output = Output::F32;
    vec![case(3, 9, 32, Inputs::Realistic), case(4, 8, 64, Inputs::HardScales), single]
}

/// Limits under which a test that hangs is over soon.
pub fn limits() -> Limits {
    Limits { hello_seconds: 20.0, prepare_seconds: 20.0, run_seconds: 20.0, bye_seconds: 0.5, ..Limits::default() }
}

/// A clock that moves by a millisecond with every look at it, so that no test depends on how busy the machine is.
#[derive(Default)]
pub struct Steady(Cell<f64>);

impl Clock for Steady {
    fn now(&self) -> f64 {
        self.0.set(self.0.get() + 1e-3);
        self.0.get()
    }
}

/// Settings with few samples, for a clock by which all take the same time.
pub fn quick() -> RefereeSettings {
    RefereeSettings {
        timing: Timing {
            looks: vec![6],
            quartets_per_process: 2,
            resamples: 200,
            sample_jobs: 2,
            most_layers: 2,
            // By that clock a planted slowdown is a whole tick.
            plant_tolerance: 10.0,
            sample_ticks: 1e-3,
            ..Timing::default()
        },
        checking: Checking { whole_every: 2, ..Checking::default() },
        limits: limits(),
    }
}

/// The interpreter itself: what a path names may be a script that looks for it.
fn python() -> String {
    static PYTHON: OnceLock<String> = OnceLock::new();
    let ask = || {
        let output = std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        String::from_utf8(output.expect("the cheats are written in Python").stdout).unwrap().trim().to_owned()
    };
    PYTHON.get_or_init(ask).clone()
}

/// The example in Python.
pub fn plain_python() -> Program {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/contestants/plain.py");
    Program::new("plain Python", vec![python(), path.display().to_string()], limits())
}

/// The suite of exploits, written once.
pub fn suite() -> &'static Suite {
    static SUITE: OnceLock<Suite> = OnceLock::new();
    let written = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suite");
        std::fs::create_dir_all(&folder).unwrap();
        Suite::at(&folder).unwrap()
    };
    SUITE.get_or_init(written)
}

/// The honest contestant that all cheats are made from.
pub fn honest() -> Program {
    suite().honest("plain", limits())
}

/// A cheat of the suite, or a bungler.
pub fn cheat(trick: &str) -> Program {
    suite().exploit(trick, limits())
}

/// A few small questions of the suite's operation.
pub fn asked(seed: u64) -> Vec<Arc<dyn Task>> {
    suite().operation().unwrap().questions(2, 0, seed).unwrap()
}

/// The example in Rust. Cargo builds examples when it runs all tests of the crate.
pub fn plain_rust() -> Option<Program> {
    let here = std::env::current_exe().ok()?;
    let path = here.parent()?.parent()?.join("examples/contestant");
    path.exists().then(|| Program::new("plain Rust", vec![path.display().to_string()], limits()))
}

/// A built-in contestant on the portable backend.
pub fn scalar(case: &Case) -> Builtin {
    let scalar = backends::by_name("scalar").unwrap();
    let problem = case.problem().unwrap();
    let plan = Plan::best(problem, &[scalar], &"strategy=interleaved".parse().unwrap(), 1).unwrap();
    let way = Way { problem: case.to_string(), backend: "scalar".into(), config: plan.config().to_string() };
    Builtin { name: "scalar".into(), ways: vec![way], threads: Some(1), ..Builtin::default() }
}

/// What an examination of a few of the suite's questions finds.
pub fn examined(contestant: &dyn Contestant) -> Correctness {
    let [found] = examine([contestant], &asked(6), 6).unwrap();
    found.correctness
}

/// How a sitting of a challenger against the portable backend ends.
pub fn outcome_of_a_sitting(challenger: &dyn Contestant, case: &Case) -> Outcome {
    let (settings, clock) = (quick(), Steady::default());
    let champion = scalar(case);
    let mut pool =
        Pool::new(&champion, challenger, tasks(std::slice::from_ref(case)).unwrap(), &settings, &clock, 11).unwrap();
    sit(&mut pool, &settings, &Terms::default(), 11).unwrap().outcome
}

/// The fault of a challenger that ends a sitting against the suite's honest contestant.
///
/// A sample has many jobs: whoever is lazy later and now and then has to come to that in a sample that is looked at,
/// however many of them a busy machine has taken again.
pub fn fault_in_a_sitting(challenger: &dyn Contestant) -> Fault {
    let (mut settings, clock, champion) = (quick(), Steady::default(), honest());
    settings.timing.sample_jobs = 6;
    let tasks = suite().operation().unwrap().problems().to_vec();
    let mut pool = Pool::new(&champion, challenger, tasks, &settings, &clock, 11).unwrap();
    match sit(&mut pool, &settings, &Terms::default(), 11).unwrap().outcome {
        Outcome::Faulted { side: Side::Challenger, fault } => fault,
        other => panic!("not caught: {other:?}"),
    }
}

/// Whether a process with this command line is gone soon. The kernel takes a moment to bury what was killed.
pub fn is_gone(command: &[u8]) -> bool {
    let lives = || {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut commands = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        commands.any(|line| line.starts_with(command))
    };
    (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !lives()
    })
}

/// Who looks at jobs before they are run.
pub type Staged = Rc<dyn Fn(&[Job])>;
/// Who looks at the files after a run, with the number of runs that the session did before.
pub type Gone = Rc<dyn Fn(usize, &mut Tensors)>;

/// A contestant over whose shoulder somebody looks.
pub struct Watched {
    pub contestant: Box<dyn Contestant>,
    pub staged: Staged,
    pub gone: Gone,
}

impl Watched {
    /// Nobody looks.
    pub fn new(contestant: impl Contestant + 'static) -> Self {
        Self { contestant: Box::new(contestant), staged: Rc::new(|_| ()), gone: Rc::new(|_, _| ()) }
    }
}

struct WatchedSession {
    session: Box<dyn Session>,
    staged: Staged,
    gone: Gone,
    runs: usize,
}

impl Contestant for Watched {
    fn about(&self) -> About {
        self.contestant.about()
    }

    fn start(&self) -> Result<Box<dyn Session>, Fault> {
        let (session, staged, gone) = (self.contestant.start()?, Rc::clone(&self.staged), Rc::clone(&self.gone));
        Ok(Box::new(WatchedSession { session, staged, gone, runs: 0 }))
    }
}

impl Session for WatchedSession {
    fn deterministic(&self) -> bool {
        self.session.deterministic()
    }

    fn tensors(&mut self) -> &mut Tensors {
        self.session.tensors()
    }

    fn prepare(&mut self) -> Result<Readiness, Fault> {
        self.session.prepare()
    }

    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        (self.staged)(jobs);
        self.session.stage(jobs)
    }

    fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
        let time = self.session.go()?;
        (self.gone)(self.runs, self.session.tensors());
        self.runs += 1;
        Ok(time)
    }

    fn guards(&self) -> Vec<Guard> {
        Vec::new()
    }
}
