//! Correct first: the examination that everyone passes before any clock starts.
//!
//! **What is asked** is the operation's: edges, the season's own problems with every kind of numbers, and shapes drawn
//! from the seed that are in no list. All numbers come from a seed that the operating system gave and that is told
//! afterwards.
//!
//! **How it is asked.** Each problem is run three times in the same buffers: twice with the same inputs into outputs
//! that were filled with two different poisons, so that an element nobody writes shows; then with the input rewritten
//! in place, both sets of constants in one run, so that what was remembered by address or from before is wrong. Inputs
//! are compared with the referee's own copy after every run. Whoever says that it is deterministic must give the same
//! bits.
//!
//! **How it is judged.** Against the operation's reference in double precision, by its own rule of what is near enough.
//!
//! **Whether it can be judged.** A rule may allow so much that what is right for one input is right for every other,
//! and then an old result is, or zeros are. So results that were found right are also held against what should have
//! come out of the question's other input. A problem of which no question tells the two apart is blind
//! ([`Examination::blind`]).
//!
//! **Beside each other.** Whoever is examined together is asked the same questions in turn. The reference, which
//! takes most of the time, is computed once a question and judges them all.
//!
//! **Precision.** A challenger may be within the bound and yet much less precise than the champion: speed bought with
//! digits. The root mean squares of error over bound, on the problems that both have done, may differ by a factor only.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;

use crate::contestant::{Contestant, Fault, Job, Lot, Poison, Readiness, Session};
use crate::record::{Correctness, Precision, Wrong};
use crate::seeds::derive;
use crate::settings::Checking;
use crate::task::{Bundle, Expected, Found, Spec, Task};
use crate::{Error, Result};

/// Wrong problems after which an examination ends: more would say nothing new.
const ENOUGH: usize = 5;
/// Examines contestants on these questions, beside each other. A fault, or many wrong results, of the first of them
/// ends it for all: whoever is examined beside another is there for comparison. Whoever of the others is found wrong is
/// asked no more.
pub fn examine<const N: usize>(
    contestants: [&dyn Contestant; N],
    questions: &[Arc<dyn Task>],
    seed: u64,
) -> Result<[Examination; N]> {
    let examiner = Examiner { seed };
    let mut found = contestants.map(|contestant| Examination {
        correctness: Correctness::new(&contestant.about().name, seed),
        by_case: BTreeMap::new(),
        told_apart: BTreeMap::new(),
    });
    let mut sessions = Vec::new();
    for (contestant, found) in contestants.iter().zip(&mut found) {
        match contestant.spawn() {
            Ok(session) => sessions.push(session),
            Err(fault) => found.correctness.fault = Some(fault),
        }
    }
    if sessions.len() == N {
        for (session, found) in sessions.iter_mut().zip(&mut found) {
            found.correctness.fault = session.greet().err();
        }
    }
    for (index, task) in questions.iter().enumerate() {
        if found.first().is_some_and(Examination::is_over)
            || found.iter().any(|found| found.correctness.fault.is_some())
        {
            break;
        }
        let question = Question::new(task, index, seed)?;
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
    /// By the names of problems: whether a result of one input was ever wrong for another.
    told_apart: BTreeMap<String, bool>,
}

impl Examination {
    /// Whether nothing more needs to be asked.
    fn is_over(&self) -> bool {
        self.correctness.fault.is_some() || self.correctness.wrong.len() >= ENOUGH
    }

    /// The problems that were answered rightly, and whose rule takes the results of different inputs for each other.
    pub fn blind(&self) -> impl Iterator<Item = &str> {
        self.told_apart.iter().filter(|(_, told_apart)| !**told_apart).map(|(name, _)| name.as_str())
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
    fn add(&mut self, found: &Found) {
        self.compared += found.compared;
        self.squares += found.squares;
        self.worst = self.worst.max(found.worst);
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
    task: &'a Arc<dyn Task>,
    index: usize,
    constants: Arc<Vec<Bundle>>,
    inputs: [Bundle; 2],
    expected: [OnceCell<Box<dyn Expected>>; 3],
}

/// Which set of constants and which input make what comes out: the first of each, the first with the second input, the
/// second of each.
const PAIRS: [(usize, usize); 3] = [(0, 0), (0, 1), (1, 1)];

impl<'a> Question<'a> {
    fn new(task: &'a Arc<dyn Task>, index: usize, seed: u64) -> Result<Self> {
        let seed = |which| derive(seed, &[index as u64, which]);
        let constants = Arc::new(vec![task.constants(seed(1))?, task.constants(seed(2))?]);
        let inputs = [task.input(seed(1))?, task.input(seed(2))?];
        Ok(Self { task, index, constants, inputs, expected: Default::default() })
    }
}

struct Examiner {
    seed: u64,
}

impl Examiner {
    /// Asks one contestant a question, and notes how it was answered.
    fn ask(&self, session: &mut dyn Session, question: &Question<'_>, found: &mut Examination) -> Result<()> {
        // As many places as a sitting may have: what is asked must not tell what is only examined.
        let mut lots = Rng::with_seed(derive(self.seed, &[question.index as u64, 4]));
        let (pattern, places) = (question.inputs[0].clone(), lots.usize(2..6));
        let lot = Lot::new(Arc::clone(question.task), Arc::clone(&question.constants), pattern, places, places);
        session.tensors().lay(&lot)?;
        match session.prepare() {
            Ok(Readiness::Ready) => {}
            Ok(Readiness::Unsupported(reason)) => {
                found.correctness.unsupported.push(format!("{}: {reason}", question.task.name()));
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
                let wrong = Wrong { case: question.task.name(), inputs: question.task.numbers(), what };
                found.correctness.wrong.push(wrong);
            }
        }
        Ok(())
    }

    /// What should come out of one of a question's pairs, computed when it is first asked for.
    fn expected<'q>(&self, question: &'q Question<'_>, which: usize) -> Result<&'q dyn Expected> {
        let cell = &question.expected[which];
        if let Some(known) = cell.get() {
            return Ok(known.as_ref());
        }
        let ((constants, input), drawn) = (PAIRS[which], derive(self.seed, &[question.index as u64, 3]));
        let expected = question.task.expected(&question.constants[constants], &question.inputs[input], drawn)?;
        Ok(cell.get_or_init(|| expected).as_ref())
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
        if let Some(place) = unwritten(&outputs[0], &outputs[1], &self.question.task.outputs()) {
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
        // The same places, another input; and both sets of constants in one run, the new one last.
        let jobs = [job, Job { layer: 1, input, output: places[1] }];
        let results = match self.run(1, &jobs, Poison::Ones)? {
            Ok(results) => results,
            Err(halted) => return Ok(Err(halted)),
        };
        for (which, result) in [1, 2].into_iter().zip(&results) {
            if let Err(halted) = self.judge(which, result)? {
                return Ok(Err(halted));
            }
        }
        self.confuse(&outputs[0], &results[0])?;
        Ok(Ok(()))
    }

    /// Whether the results of the two inputs, each right for its own, are told apart.
    fn confuse(&mut self, first: &[Vec<u8>], second: &[Vec<u8>]) -> Result<()> {
        let [one, other] = &self.question.inputs;
        if one.tensors == other.tensors {
            return Ok(());
        }
        let known = self.found.told_apart.entry(self.question.task.name()).or_default();
        let wrong = |which: usize, output: &[Vec<u8>]| {
            Ok::<bool, Error>(self.examiner.expected(self.question, which)?.check(output)?.wrong.is_some())
        };
        *known = *known || wrong(0, second)? || wrong(1, first)?;
        Ok(())
    }

    /// Runs jobs on one of the question's inputs, each into its output, and takes copies of the outputs.
    fn run(&mut self, input: usize, jobs: &[Job], poison: Poison) -> Result<Result<Vec<Vec<Vec<u8>>>, Halted>> {
        self.session.tensors().write(jobs, vec![self.question.inputs[input].clone(); jobs.len()], poison)?;
        if let Err(fault) = self.session.stage(jobs).and_then(|()| self.session.go()) {
            return Ok(Err(fault.into()));
        }
        self.found.correctness.runs += 1;
        let tampered =
            |what: &str| Ok(Err(Fault::Tampering { what: format!("{what} {}", self.question.task.name()) }.into()));
        let tensors = self.session.tensors();
        let outputs = match tensors.read_outputs(jobs) {
            Err(Error::Shortened { .. }) => return tampered("the file of outputs of"),
            outputs => outputs?,
        };
        if !tensors.inputs_are_intact(jobs)? || !tensors.constants_are_intact()? {
            return tampered("its inputs for");
        }
        Ok(Ok(outputs))
    }

    fn judge(&mut self, which: usize, output: &[Vec<u8>]) -> Result<Result<(), Halted>> {
        let found = self.examiner.expected(self.question, which)?.check(output)?;
        self.found.correctness.compared += found.compared;
        self.found.by_case.entry(self.question.index).or_default().add(&found);
        Ok(found.wrong.map_or(Ok(()), |what| Err(Halted::Wrong(what))))
    }
}

/// The first element that holds its run's poison and something else in the other run. A result that happens to look
/// like a poison looks the same in both.
fn unwritten(ones: &[Vec<u8>], sevens: &[Vec<u8>], specs: &[Spec]) -> Option<usize> {
    let filled = |bytes: &[u8], poison: Poison| bytes.iter().all(|&byte| byte == poison.byte());
    let elements = |((a, b), spec): ((&'_ Vec<u8>, &'_ Vec<u8>), &Spec)| {
        let width = spec.element.bytes();
        let pairs = a.chunks_exact(width).zip(b.chunks_exact(width));
        pairs.map(|(a, b)| a != b && (filled(a, Poison::Ones) || filled(b, Poison::Sevens))).collect::<Vec<_>>()
    };
    ones.iter().zip(sevens).zip(specs).flat_map(elements).position(|missing| missing)
}

#[cfg(test)]
mod tests {
    use super::examine;
    use crate::doubling::{Doubler, within};

    #[test]
    fn a_rule_that_takes_every_result_for_right_is_found_to_be_blind() {
        // Numbers are below one, so that twice one of them is always within ten of twice another.
        for (allowed, blind) in [(0.0, &[][..]), (1e-3, &[]), (10.0, &["64 numbers"])] {
            let [found] = examine([&Doubler::named("doubler")], &[within(allowed)], 3).unwrap();
            assert!(found.correctness.passed(), "{allowed}");
            assert_eq!(found.blind().collect::<Vec<_>>(), blind, "{allowed}");
        }
    }
}
