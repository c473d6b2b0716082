//! Correct first: the examination that everyone passes before any clock starts.
//!
//! **What is asked.** Every edge of the case list; the season's own problems, each with realistic numbers, whole numbers,
//! extreme scales, zeros, negative zeros and the largest codes; and shapes drawn from the seed that are in no list, half of
//! them neighbours of the season's. All numbers come from a seed that the operating system gave and that is told afterwards.
//!
//! **How it is asked.** Each problem is run three times in the same buffers: twice with the same inputs into outputs that
//! were filled with two different poisons, so that an element nobody writes shows; then with the tokens rewritten in
//! place, both layers' weights in one run, so that what was remembered by address or from before is wrong. Inputs are
//! compared with the referee's own copy after every run. Whoever says that it is deterministic must give the same bits.
//!
//! **How it is judged.** Against the float64 reference under the derived bound: every element up to 2³⁰ products, and beyond
//! that on rows and columns that are drawn after the run, with every element on the [`Yardstick`] besides.
//!
//! **Beside each other.** Whoever is examined together is asked the same questions in turn. The float64 reference, which
//! takes most of the time, is computed once a question and judges them all.
//!
//! **Precision.** A challenger may be within the bound and yet much less precise than the champion: speed bought with
//! digits. The root mean squares of error over bound, on the problems that both have done, may differ by a factor only.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use hammerhead::{Activation, Arithmetic, Gate, Output, Shape};
use hammerhead::{Team, cpu};
use testkit::cases::{self, Case, Inputs, Instance, Suite};
use testkit::verify::{Expected, Report};

use super::record::{Correctness, Precision, Wrong};
use super::seeds::derive;
use super::settings::Checking;
use super::yardstick::Yardstick;
use crate::contestant::{Contestant, Fault, Job, LayerWeights, Lot, Poison, Readiness, Session};
use crate::{Error, Result};

/// Products beyond which the reference looks at drawn rows and columns only, and the yardstick at the rest.
const EXHAUSTIVE: f64 = (1u64 << 30) as f64;
/// Wrong problems after which an examination ends: more would say nothing new.
const ENOUGH: usize = 5;
/// The kinds of numbers that a season's problems are examined with.
const KINDS: [Inputs; 6] =
    [Inputs::Realistic, Inputs::Integers, Inputs::HardScales, Inputs::Zero, Inputs::NegativeZero, Inputs::Maximal];

/// What a contestant is asked, for these problems of a season and this seed.
pub fn questions(problems: &[Case], checking: &Checking, seed: u64) -> Vec<Case> {
    let mut questions = cases::suite(Suite::Edge);
    // The protocol has no words for input scales and biases.
    questions.retain(|case| !case.is_scaled() && !case.is_biased());
    for problem in problems {
        questions.extend(KINDS.map(|inputs| Case { inputs, ..problem.clone() }));
    }
    questions.extend(held_out(problems, checking.held_out, seed));
    questions
}

/// Shapes that are in no list.
fn held_out(problems: &[Case], count: usize, seed: u64) -> Vec<Case> {
    let mut rng = Rng::with_seed(derive(seed, &[0x4e1d]));
    let mut drawn = Vec::new();
    for index in 0..count {
        let model = (!problems.is_empty()).then(|| &problems[rng.usize(..problems.len())]);
        let groups = match model {
            // A neighbour: the same weights' sizes, other numbers of tokens, small enough to be judged whole.
            Some(case) if index % 2 == 0 => {
                let neighbour = |s: &Shape| Shape::new(rng.usize(1..=s.m.clamp(1, 64) + 1), s.n, s.k);
                case.groups.iter().take(4).map(neighbour).collect()
            }
            _ => {
                let groups = if rng.u8(..4) == 0 { rng.usize(2..5) } else { 1 };
                let shape = |rng: &mut Rng| Shape::new(rng.usize(1..100), rng.usize(1..300), 16 * rng.usize(1..65));
                (0..groups).map(|_| shape(&mut rng)).collect()
            }
        };
        drawn.push(Case {
            suite: Suite::Edge,
            why: "drawn from the seed: in no list",
            groups,
            gate: model.map_or(Gate::Silu, |case| case.gate),
            activation: model.map_or(Activation::NvFp4, |case| case.activation),
            output: model.map_or(Output::F16, |case| case.output),
            inputs: [Inputs::Realistic, Inputs::Integers, Inputs::GlobalsApart][rng.usize(..3)],
            timed: false,
        });
    }
    drawn
}

/// Examines contestants on these questions, beside each other. A fault, or many wrong results, of the first of them ends it for
/// all: whoever is examined beside another is there for comparison. Whoever of the others is found wrong is asked no more.
pub fn examine<const N: usize>(
    contestants: [&dyn Contestant; N],
    questions: &[Case],
    seed: u64,
) -> Result<[Examination; N]> {
    let examiner = Examiner { threads: cpu::team(None)?, yardstick: Yardstick::new()?, seed };
    let mut found = contestants.map(|contestant| Examination {
        correctness: Correctness::new(&contestant.about().name, seed),
        by_case: BTreeMap::new(),
    });
    let mut sessions = Vec::new();
    for (contestant, found) in contestants.iter().zip(&mut found) {
        match contestant.start() {
            Ok(session) => sessions.push(session),
            Err(fault) => found.correctness.fault = Some(fault),
        }
    }
    for (index, case) in questions.iter().enumerate() {
        if found.first().is_some_and(Examination::is_over)
            || found.iter().any(|found| found.correctness.fault.is_some())
        {
            break;
        }
        let question = Question::new(case, index, seed)?;
        for (session, found) in sessions.iter_mut().zip(&mut found).filter(|(_, found)| !found.is_over()) {
            examiner.ask(session.as_mut(), &question, found)?;
        }
    }
    for found in &mut found {
        found.correctness.precision = overall(found.by_case.values());
    }
    Ok(found)
}

/// What an examination found, problem by problem.
#[derive(Clone, Debug)]
pub struct Examination {
    /// What goes into the record.
    pub correctness: Correctness,
    by_case: BTreeMap<usize, Errors>,
}

impl Examination {
    /// Whether nothing more needs to be asked.
    fn is_over(&self) -> bool {
        self.correctness.fault.is_some() || self.correctness.wrong.len() >= ENOUGH
    }

    /// Compares the errors with the champion's on the same questions; too much less precise is wrong.
    pub fn compare(&mut self, champion: &Examination, checking: &Checking) {
        let both = |of: &Examination, with: &Examination| {
            overall(of.by_case.iter().filter(|(case, _)| with.by_case.contains_key(case)).map(|(_, errors)| errors))
        };
        let (ours, theirs) = (both(self, champion), both(champion, self));
        self.correctness.champion_precision = Some(theirs);
        if self.correctness.wrong.is_empty() && ours.rms > checking.precision_multiple * theirs.rms {
            let what = format!(
                "its errors against float64 are {:.1} times the champion's, and {} times is allowed: precision was traded for speed",
                ours.rms / theirs.rms,
                checking.precision_multiple,
            );
            let wrong = Wrong { case: "all problems".to_owned(), inputs: "all".to_owned(), what };
            self.correctness.wrong.push(wrong);
        }
    }
}

/// The errors on one problem.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    compared: u64,
    squares: f64,
    worst: f64,
}

impl Errors {
    fn add(&mut self, report: &Report) {
        self.compared += report.compared as u64;
        self.squares += report.rms_ratio * report.rms_ratio * report.compared as f64;
        self.worst = self.worst.max(report.max_ratio);
    }
}

fn overall<'a>(errors: impl Iterator<Item = &'a Errors>) -> Precision {
    let mut sum = Errors::default();
    for e in errors {
        sum.compared += e.compared;
        sum.squares += e.squares;
        sum.worst = sum.worst.max(e.worst);
    }
    Precision { rms: (sum.squares / sum.compared.max(1) as f64).sqrt(), worst: sum.worst }
}

/// Why a question was not answered to its end.
enum Halted {
    Fault(Fault),
    Wrong(String),
}

impl From<Fault> for Halted {
    fn from(fault: Fault) -> Self {
        Halted::Fault(fault)
    }
}

/// One question: a problem, numbers for it, and what should come out.
struct Question<'a> {
    case: &'a Case,
    index: usize,
    layers: Arc<Vec<LayerWeights>>,
    /// The first layer with the first tokens, the first layer with the second tokens, the second layer with those.
    instances: [Instance; 3],
    expected: [OnceCell<Expected>; 3],
}

impl<'a> Question<'a> {
    fn new(case: &'a Case, index: usize, seed: u64) -> Result<Self> {
        let instance = |which| case.instance(derive(seed, &[index as u64, which]));
        let [first, second] = [instance(1)?, instance(2)?];
        let layers = Arc::new(vec![first.weights.clone(), second.weights.clone()]);
        let mixed = Instance { activations: second.activations.clone(), ..first.clone() };
        Ok(Self { case, index, layers, instances: [first, mixed, second], expected: Default::default() })
    }
}

struct Examiner {
    threads: Team,
    yardstick: Yardstick,
    seed: u64,
}

impl Examiner {
    /// Asks one contestant a question, and notes how it was answered.
    fn ask(&self, session: &mut dyn Session, question: &Question<'_>, found: &mut Examination) -> Result<()> {
        // As many places as a sitting may have: what is asked must not tell what is only examined.
        let mut lots = Rng::with_seed(derive(self.seed, &[question.index as u64, 4]));
        let (pattern, places) = (question.instances[0].activations.clone(), lots.usize(2..6));
        let lot = Lot::new(question.case.problem()?, Arc::clone(&question.layers), pattern, places, places)?;
        session.tensors().lay(&lot)?;
        match session.prepare() {
            Ok(Readiness::Ready) => {}
            Ok(Readiness::Unsupported(reason)) => {
                found.correctness.unsupported.push(format!("{}: {reason}", question.case));
                return Ok(());
            }
            Err(fault) => {
                found.correctness.fault = Some(fault);
                return Ok(());
            }
        }
        found.correctness.cases += 1;
        match (Hearing { examiner: self, session, question, found: &mut *found, lots, places }).hear()? {
            Ok(()) => {}
            Err(Halted::Fault(fault)) => found.correctness.fault = Some(fault),
            Err(Halted::Wrong(what)) => {
                let case = question.case;
                let wrong = Wrong { case: case.to_string(), inputs: format!("{:?}", case.inputs), what };
                found.correctness.wrong.push(wrong);
            }
        }
        Ok(())
    }

    /// What should come out of one of a question's instances, computed when it is first asked for.
    fn expected<'q>(&self, question: &'q Question<'_>, which: usize) -> &'q Expected {
        question.expected[which].get_or_init(|| {
            let drawn = derive(self.seed, &[question.index as u64, 3]);
            Expected::new(&question.instances[which], question.case.is_community(), drawn, &self.threads)
        })
    }
}

/// One question being answered.
struct Hearing<'a, 'q> {
    examiner: &'a Examiner,
    session: &'a mut dyn Session,
    question: &'a Question<'q>,
    found: &'a mut Examination,
    lots: Rng,
    places: usize,
}

impl Hearing<'_, '_> {
    fn hear(&mut self) -> Result<Result<(), Halted>> {
        let input = self.lots.usize(..self.places);
        let mut places: Vec<usize> = (0..self.places).collect();
        self.lots.shuffle(&mut places);
        let job = Job { layer: 0, input, output: places[0] };
        let mut outputs = Vec::new();
        for poison in [Poison::Ones, Poison::Sevens] {
            match self.run(0, &[job], poison)? {
                Ok(mut results) => outputs.append(&mut results),
                Err(halted) => return Ok(Err(halted)),
            }
        }
        if let Some(place) = unwritten(&outputs[0], &outputs[1], self.question.case.output.bytes()) {
            return Ok(Err(Halted::Wrong(format!("element {place} of the result was never written"))));
        }
        if let Err(halted) = self.judge(0, &outputs[0])? {
            return Ok(Err(halted));
        }
        let same = outputs[0] == outputs[1];
        if self.session.deterministic() {
            let repeated = self.found.correctness.repeated.unwrap_or(true);
            self.found.correctness.repeated = Some(repeated && same);
            if !same {
                let what = "the same inputs gave other bits the second time, and it says that it is deterministic";
                return Ok(Err(Halted::Wrong(what.to_owned())));
            }
        } else if let Err(halted) = self.judge(0, &outputs[1])? {
            return Ok(Err(halted));
        }
        // The same places, other tokens; and both layers in one run, the new one last.
        let jobs = [job, Job { layer: 1, input, output: places[1] }];
        let results = match self.run(2, &jobs, Poison::Ones)? {
            Ok(results) => results,
            Err(halted) => return Ok(Err(halted)),
        };
        for (which, result) in [1, 2].into_iter().zip(&results) {
            if let Err(halted) = self.judge(which, result)? {
                return Ok(Err(halted));
            }
        }
        Ok(Ok(()))
    }

    /// Runs jobs on the tokens of one of the question's instances, each into its output, and takes copies of the outputs.
    fn run(&mut self, tokens: usize, jobs: &[Job], poison: Poison) -> Result<Result<Vec<Vec<Vec<u8>>>, Halted>> {
        for job in jobs {
            self.session.tensors().write_input(job.input, self.question.instances[tokens].activations.clone())?;
            self.session.tensors().poison(job.output, poison)?;
        }
        if let Err(fault) = self.session.stage(jobs).and_then(|()| self.session.go()) {
            return Ok(Err(fault.into()));
        }
        self.found.correctness.runs += 1;
        let tampered = |what: &str| Ok(Err(Fault::Tampering { what: format!("{what} {}", self.question.case) }.into()));
        let tensors = self.session.tensors();
        let outputs = match jobs.iter().map(|job| tensors.read_output(job.output)).collect::<Result<Vec<_>>>() {
            Err(Error::Shortened { .. }) => return tampered("the file of outputs of"),
            outputs => outputs?,
        };
        if !tensors.input_is_intact(jobs[0].input)? || !tensors.weights_are_intact()? {
            return tampered("its inputs for");
        }
        Ok(Ok(outputs))
    }

    fn judge(&mut self, which: usize, output: &[Vec<u8>]) -> Result<Result<(), Halted>> {
        let results = self.session.tensors().as_results(output)?;
        let report = self.examiner.expected(self.question, which).check(&results, Arithmetic::Unknown);
        self.found.correctness.compared += report.compared as u64;
        self.found.by_case.entry(self.question.index).or_default().add(&report);
        if let Some(failure) = report.first {
            let what = format!("{failure}; {} of {} elements are wrong", report.failures, report.compared);
            return Ok(Err(Halted::Wrong(what)));
        }
        if products(&self.question.case.groups) > EXHAUSTIVE {
            let Instance { activations, weights, problem } = &self.question.instances[which];
            if let Some(wrong) = self.examiner.yardstick.check(problem, activations, weights, &results)? {
                return Ok(Err(Halted::Wrong(wrong)));
            }
        }
        Ok(Ok(()))
    }
}

/// The first element that holds its run's poison and something else in the other run. A result that happens to look like a
/// poison looks the same in both.
fn unwritten(ones: &[Vec<u8>], sevens: &[Vec<u8>], width: usize) -> Option<usize> {
    let filled = |bytes: &[u8], poison: Poison| bytes.iter().all(|&byte| byte == poison.byte());
    let mut pairs = ones.iter().zip(sevens).flat_map(|(a, b)| a.chunks_exact(width).zip(b.chunks_exact(width)));
    pairs.position(|(a, b)| a != b && (filled(a, Poison::Ones) || filled(b, Poison::Sevens)))
}

fn products(groups: &[Shape]) -> f64 {
    groups.iter().map(|s| s.m as f64 * s.n as f64 * s.k as f64).sum()
}
