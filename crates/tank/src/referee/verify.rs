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
//! **Precision.** A challenger may be within the bound and yet much less precise than the champion: speed bought with
//! digits. The root mean squares of error over bound, on the problems that both have done, may differ by a factor only.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use hammerhead::cases::{self, Case, Inputs, Instance, Suite};
use hammerhead::cpu::Threads;
use hammerhead::verify::{Expected, Report};
use hammerhead::{Activation, Gate, Output, Shape};

use super::record::{Correctness, Precision, Wrong};
use super::seeds::derive;
use super::settings::Checking;
use super::yardstick::Yardstick;
use crate::contestant::{Contestant, Fault, Job, Lot, Poison, Readiness, Session};
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

/// Examines a contestant on these questions.
pub fn examine(contestant: &dyn Contestant, questions: &[Case], seed: u64) -> Result<Examination> {
    let mut examiner = Examiner { threads: Threads::new(None)?, yardstick: Yardstick::new()?, seed };
    let mut found = Examination {
        correctness: Correctness {
            contestant: contestant.about().name,
            seed,
            cases: 0,
            unsupported: Vec::new(),
            runs: 0,
            compared: 0,
            precision: Precision::default(),
            champion_precision: None,
            repeated: None,
            wrong: Vec::new(),
            fault: None,
        },
        by_case: BTreeMap::new(),
    };
    if let Err(Halted::Fault(fault)) = examiner.all(contestant, questions, &mut found)? {
        found.correctness.fault = Some(fault);
    }
    found.correctness.precision = overall(found.by_case.values());
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

struct Examiner {
    threads: Threads,
    yardstick: Yardstick,
    seed: u64,
}

impl Examiner {
    fn all(
        &mut self,
        contestant: &dyn Contestant,
        questions: &[Case],
        found: &mut Examination,
    ) -> Result<Result<(), Halted>> {
        let mut session = match contestant.start() {
            Ok(session) => session,
            Err(fault) => return Ok(Err(fault.into())),
        };
        for (index, case) in questions.iter().enumerate() {
            match self.question(session.as_mut(), index, case, found)? {
                Ok(()) => {}
                Err(Halted::Wrong(what)) => {
                    let wrong = Wrong { case: case.to_string(), inputs: format!("{:?}", case.inputs), what };
                    found.correctness.wrong.push(wrong);
                    if found.correctness.wrong.len() >= ENOUGH {
                        return Ok(Ok(()));
                    }
                }
                fault => return Ok(fault),
            }
        }
        Ok(Ok(()))
    }

    fn question(
        &mut self,
        session: &mut dyn Session,
        index: usize,
        case: &Case,
        found: &mut Examination,
    ) -> Result<Result<(), Halted>> {
        let instance = |which| case.instance(derive(self.seed, &[index as u64, which]));
        let [first, second] = [instance(1)?, instance(2)?];
        let layers = Arc::new(vec![first.weights.clone(), second.weights.clone()]);
        let mut lot = Lot::new(case.problem()?, layers, vec![first.activations.clone()], 2)?;
        match session.prepare(&lot) {
            Ok(Readiness::Ready) => {}
            Ok(Readiness::Unsupported(reason)) => {
                found.correctness.unsupported.push(format!("{case}: {reason}"));
                return Ok(Ok(()));
            }
            Err(fault) => return Ok(Err(fault.into())),
        }
        found.correctness.cases += 1;
        let mut hearing = Hearing { examiner: self, session, case, index, found };
        hearing.hear(&mut lot, first, second)
    }

    fn expected(&self, case: &Case, instance: &Instance, index: usize) -> Expected {
        Expected::new(instance, case.is_community(), derive(self.seed, &[index as u64, 3]), &self.threads)
    }
}

/// One question being answered.
struct Hearing<'a> {
    examiner: &'a Examiner,
    session: &'a mut dyn Session,
    case: &'a Case,
    index: usize,
    found: &'a mut Examination,
}

impl Hearing<'_> {
    fn hear(&mut self, lot: &mut Lot, first: Instance, second: Instance) -> Result<Result<(), Halted>> {
        let job = Job { layer: 0, input: 0, output: 0 };
        let mut outputs = Vec::new();
        for poison in [Poison::Ones, Poison::Sevens] {
            match self.run(lot, &[job], poison)? {
                Ok(mut results) => outputs.append(&mut results),
                Err(halted) => return Ok(Err(halted)),
            }
        }
        if let Some(place) = unwritten(&outputs[0], &outputs[1], self.case.output.bytes()) {
            return Ok(Err(Halted::Wrong(format!("element {place} of the result was never written"))));
        }
        if let Err(halted) = self.judge(lot, &first, &outputs[0])? {
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
        } else if let Err(halted) = self.judge(lot, &first, &outputs[1])? {
            return Ok(Err(halted));
        }
        // The same places, other tokens; and both layers in one run, the new one last.
        lot.write_input(0, second.activations.clone())?;
        let jobs = [job, Job { layer: 1, input: 0, output: 1 }];
        let results = match self.run(lot, &jobs, Poison::Ones)? {
            Ok(results) => results,
            Err(halted) => return Ok(Err(halted)),
        };
        let mixed = Instance { activations: second.activations.clone(), ..first };
        for (instance, result) in [mixed, second].iter().zip(&results) {
            if let Err(halted) = self.judge(lot, instance, result)? {
                return Ok(Err(halted));
            }
        }
        Ok(Ok(()))
    }

    /// Runs jobs, each into its output, and takes copies of the outputs.
    fn run(&mut self, lot: &Lot, jobs: &[Job], poison: Poison) -> Result<Result<Vec<Vec<Vec<u8>>>, Halted>> {
        for job in jobs {
            lot.poison(job.output, poison)?;
        }
        let ran = self.session.stage(jobs).and_then(|()| self.session.go()).and_then(|()| self.session.rest());
        if let Err(fault) = ran {
            return Ok(Err(fault.into()));
        }
        self.found.correctness.runs += 1;
        let tampered = |what: &str| Ok(Err(Fault::Tampering { what: format!("{what} {}", self.case) }.into()));
        let outputs = match jobs.iter().map(|job| lot.read_output(job.output)).collect::<Result<Vec<_>>>() {
            Err(Error::Shortened { .. }) => return tampered("the file of outputs of"),
            outputs => outputs?,
        };
        if !lot.input_is_intact(0)? || !lot.weights_are_intact()? {
            return tampered("its inputs for");
        }
        Ok(Ok(outputs))
    }

    fn judge(&mut self, lot: &Lot, instance: &Instance, output: &[Vec<u8>]) -> Result<Result<(), Halted>> {
        let results = lot.as_results(output)?;
        let report = self.examiner.expected(self.case, instance, self.index).check(&results);
        self.found.correctness.compared += report.compared as u64;
        self.found.by_case.entry(self.index).or_default().add(&report);
        if let Some(failure) = report.first {
            let what = format!("{failure}; {} of {} elements are wrong", report.failures, report.compared);
            return Ok(Err(Halted::Wrong(what)));
        }
        if products(&self.case.groups) > EXHAUSTIVE {
            let Instance { activations, weights, problem } = instance;
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
