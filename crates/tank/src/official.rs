//! The referee on this machine: entries become contestants, are examined and are timed.
//!
//! Built-in entries run in fresh processes of our own command, and programs in theirs, all over the same protocol: a
//! champion that did not have to answer through a pipe would win by the pipe. Where both are our own on one GPU, its
//! clock decides, in which there is no pipe, and they run in this process: [`Operation::ours_on_device`] says why.

use std::collections::HashMap;
use std::sync::Arc;

use hammerhead::cpu::ceilings::Ceilings;
use referee::contestant::protocol::Residence;
use referee::contestant::{Contestant, Fault, Program, Workshop, blank, sweep};
use referee::stats::median;
use referee::task::Task;
use referee::{
    Clock, Correctness, Course, CourseReport, Examination, Floor, Halt, Outcome, Pairing, Pool, Precedence,
    RefereeSettings, Side, Sitting, Terms, Timing, Wall, Watched, Wrong, examine, sit,
};

use crate::entry::{Entry, Way};
use crate::operation::Operation;
use crate::{Error, Result};

/// Who is told how sittings go.
type Watcher = Box<dyn Fn(&str)>;

/// The referee on this machine.
pub struct Official {
    operation: Box<dyn Operation>,
    settings: RefereeSettings,
    worker: Vec<String>,
    threads: Option<usize>,
    /// What was built, where, and the seal of what came of it.
    built: HashMap<(Vec<String>, Vec<String>), Built>,
    watcher: Option<Watcher>,
}

/// What contestants compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// This machine's processor, whose rates are their ceiling.
    Processor,
    /// A GPU, with its own clock.
    Device(usize),
    /// One of them is a program, which may compute on whatever it finds.
    Unknown,
    /// Each on something else.
    Apart,
}

/// What came of a build.
struct Built {
    seal: String,
    /// Whether all is there that is started.
    whole: bool,
    workshop: Option<Arc<Workshop>>,
}

/// A champion timed alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Alone {
    /// For each problem: the median seconds with weights of the temperature that decides, and the floor where it is
    /// known.
    pub shapes: Vec<(f64, Option<Floor>)>,
    /// The machine's rates, where they were measured.
    pub ceilings: Option<(f64, f64)>,
}

impl Official {
    /// A referee for an operation's problems. `worker` is a command that serves what its last argument describes, one
    /// of our own configurations, in a fresh process. Where it is empty, built-in entries run in this process. What
    /// referees that were killed have left in shared memory is taken away first.
    pub fn new(
        operation: Box<dyn Operation>,
        settings: RefereeSettings,
        worker: Vec<String>,
        threads: Option<usize>,
    ) -> Result<Self> {
        settings.timing.check()?;
        sweep();
        Ok(Self { operation, settings, worker, threads, built: HashMap::new(), watcher: None })
    }

    /// Tells somebody how sittings go.
    pub fn watched(mut self, watcher: impl Fn(&str) + 'static) -> Self {
        self.watcher = Some(Box::new(watcher));
        self
    }

    /// The problems.
    pub fn problems(&self) -> &[Arc<dyn Task>] {
        self.operation.problems()
    }

    /// Examines a challenger, and beside it the champion, whose precision it is held to. Nothing is timed.
    pub fn examine(&mut self, champion: (&str, &Entry), challenger: (&str, &Entry), seed: u64) -> Result<Correctness> {
        let checking = &self.settings.checking;
        let questions = self.operation.questions(checking.held_out, checking.other_edges, seed)?;
        let contestant = match self.examined(challenger)? {
            Ok(contestant) => contestant,
            Err(fault) => return Ok(Correctness { fault: Some(fault), ..Correctness::new(challenger.0, seed) }),
        };
        let ours = champion.1;
        let champion = self.examined(champion)?.map_err(|fault| failed_champion(&fault))?;
        let [mut found, theirs] = examine([contestant.as_ref(), champion.as_ref()], &questions, seed)?;
        let blind = self.problems().iter().find(|task| theirs.blind().any(|name| name == task.name()));
        if let (Some(task), true) = (blind, found.correctness.passed()) {
            return Err(Error::Blind { problem: task.name() });
        }
        if theirs.correctness.fault.is_some() && found.correctness.fault.is_none() {
            let doing = |fault: &Fault| self.is_the_champions_doing(ours, fault);
            found = without_the_champion(contestant.as_ref(), champion.as_ref(), doing, &questions, seed)?;
        } else if found.correctness.passed() {
            // Whoever is right need not be as precise as one that is wrong.
            match theirs.correctness.wrong.first() {
                Some(wrong) => found.correctness.champion_wrong = Some(wrong.clone()),
                None => found.compare(&theirs, &self.settings.checking),
            }
        }
        if let Entry::Program { build, command, .. } = challenger.1 {
            found.correctness.program =
                self.built.get(&(build.clone(), command.clone())).map(|built| built.seal.clone());
        }
        Ok(self.must_support(found.correctness))
    }

    /// Whoever does not do the season's own problems cannot be timed on them.
    fn must_support(&self, mut found: Correctness) -> Correctness {
        for task in self.operation.problems() {
            let name = task.name();
            let prefix = format!("{name}: ");
            let refused = found.unsupported.iter().find_map(|reason| reason.strip_prefix(&prefix));
            if let (Some(reason), None) = (refused, &found.fault) {
                found.fault = Some(Fault::Unsupported { problem: name, reason: reason.to_owned() });
            }
        }
        found
    }

    /// Holds a sitting.
    pub fn sit(
        &mut self,
        champion: (&str, &Entry),
        challenger: (&str, &Entry),
        terms: &Terms,
        seed: u64,
    ) -> Result<Sitting> {
        let (clock, place) = (Wall::new(), self.place(&[champion.1, challenger.1]));
        let ours = self.timed(champion, place)?.map_err(|fault| failed_champion(&fault))?;
        let theirs = match self.timed(challenger, place)? {
            Ok(theirs) => theirs,
            Err(fault) => return Ok(self.unheld(champion.0, challenger.0, seed, fault)),
        };
        let fenced = self.behind_the_fence(champion, challenger)?;
        let pool = self.pool(ours.as_ref(), theirs.as_ref(), &clock, seed, place)?;
        let mut pool = pool.with_fence(fenced.as_ref().map(|fenced| fenced as &dyn Contestant));
        let precedence = Precedence::take();
        let mut sitting = sit(&mut pool, &self.settings, terms, seed)?;
        sitting.course.remarks.extend(precedence.remark());
        Ok(sitting)
    }

    /// Times a champion alone, or says what it does wrong by itself.
    pub fn time_alone(&mut self, champion: (&str, &Entry), seed: u64) -> Result<Result<Alone, Fault>> {
        let (clock, place) = (Wall::new(), self.place(&[champion.1]));
        let contestant = self.timed(champion, place)?.map_err(|fault| failed_champion(&fault))?;
        let mut pool = self.pool(contestant.as_ref(), contestant.as_ref(), &clock, seed, place)?;
        let _precedence = Precedence::take();
        let seconds = match alone(&mut pool, self.problems().len(), &self.settings.timing) {
            Ok(seconds) => seconds,
            Err(Halt::Fault(_, fault)) if self.is_the_champions_doing(champion.1, &fault) => return Ok(Err(fault)),
            Err(Halt::Fault(_, fault)) => return Err(failed_champion(&fault)),
            Err(Halt::Error(error)) => return Err(error.into()),
        };
        let floors = pool.floors();
        let floor = |shape: usize| floors.as_ref().map(|floors| floors[shape]);
        Ok(Ok(Alone {
            shapes: seconds.into_iter().enumerate().map(|(shape, seconds)| (seconds, floor(shape))).collect(),
            ceilings: pool.ceilings().map(|Ceilings { flops, bytes }| (flops, bytes)),
        }))
    }

    fn pool<'a>(
        &'a self,
        champion: &'a dyn Contestant,
        challenger: &'a dyn Contestant,
        clock: &'a dyn Clock,
        seed: u64,
        place: Place,
    ) -> Result<Pool<'a>> {
        let pool = Pool::new(champion, challenger, self.problems().to_vec(), &self.settings, clock, seed)?;
        let pool = pool.watched(self.watcher.as_deref());
        match place {
            Place::Processor => Ok(pool.on_the_processor()?),
            Place::Device(device) => Ok(pool.on_device(Watched::open(device)?)),
            Place::Unknown if !self.worker.is_empty() => {
                let blank = blank::program(&self.worker, self.settings.limits.clone());
                Ok(pool.perhaps_on_device(Watched::open(0)?, Box::new(blank)))
            }
            Place::Unknown | Place::Apart => Ok(pool),
        }
    }

    /// What all these entries compute on. A program may compute on whatever it finds.
    fn place(&self, entries: &[&Entry]) -> Place {
        let place = |entry: &&Entry| match entry {
            Entry::Builtin { ways } => self.operation.device(ways).map_or(Place::Processor, Place::Device),
            Entry::Program { .. } if gpu::device::context(0).is_err() => Place::Processor,
            Entry::Program { .. } => Place::Unknown,
        };
        let places: Vec<Place> = entries.iter().map(place).collect();
        match places.as_slice() {
            [first, others @ ..] if others.iter().all(|other| other == first) => *first,
            places if places.contains(&Place::Unknown) => Place::Unknown,
            _ => Place::Apart,
        }
    }

    /// An entry as it is timed at a place.
    fn timed(&mut self, (name, entry): (&str, &Entry), place: Place) -> Result<Result<Box<dyn Contestant>, Fault>> {
        match (entry, place) {
            (Entry::Builtin { ways }, Place::Device(device)) => {
                self.operation.ours_on_device(name, ways, device).map(Ok)
            }
            _ => self.contestant((name, entry), place),
        }
    }

    /// Where tensors of our own configurations are in a process of their own. Beside a program, which may ask for a
    /// GPU's memory, they are there where they are used; beside our own on the processor they have to come from the
    /// host's.
    fn memory(&self, ways: &[Way], place: Place) -> Residence {
        match (place, self.operation.device(ways)) {
            (Place::Unknown, Some(0)) => Residence::Cuda,
            _ => Residence::Host,
        }
    }

    /// An entry as it is examined: where it is ours on a GPU, in this process, whose compiled kernels are timed later.
    fn examined(&mut self, (name, entry): (&str, &Entry)) -> Result<Result<Box<dyn Contestant>, Fault>> {
        match entry {
            Entry::Builtin { ways } if self.operation.device(ways).is_some() => {
                self.operation.ours(name, ways, self.threads).map(Ok)
            }
            _ => self.contestant((name, entry), Place::Processor),
        }
    }

    /// The champion's own code as a stranger, where it is ours and the other is somebody's program.
    fn behind_the_fence(&self, champion: (&str, &Entry), challenger: (&str, &Entry)) -> Result<Option<Program>> {
        let (Entry::Builtin { ways }, Entry::Program { .. }) = (champion.1, challenger.1) else { return Ok(None) };
        if self.worker.is_empty() {
            return Ok(None);
        }
        let told = self.operation.ours_told(champion.0, ways, self.threads, self.memory(ways, Place::Unknown))?;
        let program = Program::fresh(champion.0, &told, &self.worker, self.settings.limits.clone());
        Ok(Some(Program { trusted: false, ..program }))
    }

    /// The contestant that an entry describes, built if it has to be.
    fn contestant(
        &mut self,
        (name, entry): (&str, &Entry),
        place: Place,
    ) -> Result<Result<Box<dyn Contestant>, Fault>> {
        let limits = self.settings.limits.clone();
        Ok(match entry {
            Entry::Builtin { ways } => Ok(match self.worker.is_empty() {
                true => self.operation.ours(name, ways, self.threads)?,
                false => {
                    let told = self.operation.ours_told(name, ways, self.threads, self.memory(ways, place))?;
                    Box::new(Program::fresh(name, &told, &self.worker, limits))
                }
            }),
            Entry::Program { build, command, sealed } => {
                let mut program = Program { build: build.clone(), ..Program::new(name, command.clone(), limits) };
                let key = (build.clone(), command.clone());
                if !self.built.contains_key(&key) {
                    if let Err(fault) = program.build() {
                        return Ok(Err(fault));
                    }
                    let (seal, whole) = (program.digest(), program.is_whole());
                    let built = Built { seal, whole, workshop: program.built.clone() };
                    self.built.insert(key.clone(), built);
                }
                if let Some(built) = self.built.get(&key) {
                    program.built.clone_from(&built.workshop);
                    program.sealed = sealed.clone().or_else(|| Some(built.seal.clone()));
                }
                Ok(Box::new(program))
            }
        })
    }

    /// Whether a fault of a champion that is alone is its own doing. So is a build that makes other files than those
    /// which were examined: it works in a folder that nobody else writes to. Where something is missing that it made
    /// then, this machine may lack what makes it.
    fn is_the_champions_doing(&self, champion: &Entry, fault: &Fault) -> bool {
        let made_others = || match champion {
            Entry::Program { build, command, sealed: Some(sealed) } if !build.is_empty() => {
                let built = self.built.get(&(build.clone(), command.clone()));
                built.is_some_and(|built| built.workshop.is_some() && built.whole && built.seal != *sealed)
            }
            _ => false,
        };
        fault.is_its_own_doing() || (matches!(fault, Fault::Tampering { .. }) && made_others())
    }

    /// The record of a sitting that could not begin.
    fn unheld(&self, champion: &str, challenger: &str, seed: u64, fault: Fault) -> Sitting {
        Sitting {
            seed,
            champion: champion.to_owned(),
            challenger: challenger.to_owned(),
            settings: self.settings.clone(),
            course: CourseReport::default(),
            scout: None,
            control: None,
            plant: None,
            fence: None,
            margin: self.settings.timing.least_margin,
            first: None,
            second: None,
            roofline: Vec::new(),
            outcome: Outcome::Faulted { side: Side::Challenger, fault },
        }
    }
}

fn failed_champion(fault: &Fault) -> Error {
    Error::Champion { reason: fault.to_string() }
}

/// A champion that fails beside a challenger may have been made to. Whoever fails alone as well, by its own doing,
/// holds no title against one that is right.
fn without_the_champion(
    challenger: &dyn Contestant,
    champion: &dyn Contestant,
    is_its_own_doing: impl Fn(&Fault) -> bool,
    questions: &[Arc<dyn Task>],
    seed: u64,
) -> Result<Examination> {
    let [alone] = examine([champion], questions, seed)?;
    let fault = match alone.correctness.fault {
        Some(fault) if is_its_own_doing(&fault) => fault,
        Some(fault) => return Err(failed_champion(&fault)),
        None => return Err(Error::Champion { reason: "it failed beside the challenger, and not alone".to_owned() }),
    };
    let [mut found] = examine([challenger], questions, seed)?;
    let (case, inputs) = ("the examination".to_owned(), "asked twice".to_owned());
    found.correctness.champion_wrong = Some(Wrong { case, inputs, what: fault.to_string() });
    Ok(found)
}

/// The champion's median seconds for each shape, from as many samples as it has in one process of a duel.
fn alone(course: &mut dyn Course, shapes: usize, timing: &Timing) -> Result<Vec<f64>, Halt> {
    course.enter(Pairing::Control, 0)?;
    let mut medians = Vec::new();
    for shape in 0..shapes {
        course.prepare(shape)?;
        let samples = 2 * timing.quartets_per_process;
        let seconds = (0..samples).map(|_| course.sample(Side::Champion, timing.decides).map(|take| take.seconds));
        medians.push(median(&seconds.collect::<Result<Vec<f64>, Halt>>()?));
    }
    course.leave()?;
    Ok(medians)
}
