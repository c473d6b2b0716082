//! Running a kernel under many schedules.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use ptx::Kernel;
use thiserror::Error;

use crate::branch::Mutants;
use crate::error::{Fault, FaultKind, Grade, Race, Site};
use crate::gpu::Gpu;
use crate::invocation::Invocation;
use crate::limits::Rules;
use crate::mutate;
use crate::profile::Profile;
use crate::schedule::Schedule;

/// What an exploration found wrong.
#[derive(Clone, Debug, Error)]
pub enum Finding {
    /// A rule of the machine was broken.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// Every rule was kept, and the result is wrong.
    #[error("under schedule {schedule}: {what}")]
    WrongResult {
        /// The schedule that leads there.
        schedule: Schedule,
        /// What the verifier said.
        what: String,
    },
}

impl Finding {
    /// A short name of what was found, for tables.
    pub fn name(&self) -> &'static str {
        match self {
            Finding::Fault(fault) => fault.kind.name(),
            Finding::WrongResult { .. } => "wrong result",
        }
    }

    /// Where it showed, if at an instruction; of work that was left behind, where that was issued.
    pub fn site(&self) -> Option<&Site> {
        match self {
            Finding::Fault(fault) => fault.site.as_ref().or(match &fault.kind {
                FaultKind::Unfinished { work } => Some(work),
                FaultKind::Outlived { visit, .. } => Some(visit),
                _ => None,
            }),
            Finding::WrongResult { .. } => None,
        }
    }

    /// Of a race, its two sides and what is missing between them.
    pub fn race(&self) -> Option<Race<'_>> {
        match self {
            Finding::Fault(fault) => fault.kind.race(),
            Finding::WrongResult { .. } => None,
        }
    }

    /// The schedule that leads there.
    pub fn schedule(&self) -> Schedule {
        match self {
            Finding::Fault(fault) => fault.schedule,
            Finding::WrongResult { schedule, .. } => *schedule,
        }
    }
}

/// Runs mutants of a kernel as [`explore`] would each of them; see [`Gpu::run_mutants`].
pub fn explore_mutants(
    (original, mutants): (&Kernel, &[&Kernel]),
    schedules: &[Schedule],
    mut prepare: impl FnMut() -> (Gpu, Invocation),
    verify: impl Fn(&Gpu) -> Result<(), String>,
) -> Vec<Result<Profile, Finding>> {
    let mut found: Vec<Result<Profile, Finding>> = mutants.iter().map(|_| Ok(Profile::default())).collect();
    let mutants = Mutants::new(original, mutants);
    for &schedule in schedules {
        let left: Vec<usize> = (0..found.len()).filter(|number| found[*number].is_ok()).collect();
        let (gpu, launch) = prepare();
        let outcomes = gpu.run_mutants(&[(original, &launch)], (&mutants, &left), schedule, |run| {
            let (gpu, profiles) = run.map_err(Finding::Fault)?;
            verify(gpu).map_err(|what| Finding::WrongResult { schedule, what })?;
            Ok(profiles.first().cloned().unwrap_or_default())
        });
        left.into_iter().zip(outcomes).for_each(|(number, outcome)| found[number] = outcome);
    }
    found
}

/// A mistake that was made in a kernel on purpose, and what became of it.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The kind of mistake.
    pub mistake: &'static str,
    /// The instruction that it is about, by its position in the body.
    pub position: usize,
    /// What was found, by its short name; nothing if nothing was.
    pub caught: Option<&'static str>,
}

/// Instructions whose mutants are tried together: what they have in common is run once, and each of them is a kernel.
const TOGETHER: usize = 32;

/// Tries every [mutant](mutate::mutants) of a kernel under the schedules, until one catches it, on as many cores as
/// there are. Of the kernel itself nothing must be found.
pub fn try_mutants(
    kernel: &Kernel,
    schedules: &[Schedule],
    prepare: impl Fn() -> (Gpu, Invocation) + Sync,
    verify: impl Fn(&Gpu) -> Result<(), String> + Sync,
) -> Vec<Tried> {
    let parts: Vec<Range<usize>> = (0..kernel.body.len()).step_by(TOGETHER).map(|at| at..at + TOGETHER).collect();
    let tried = in_parallel(&parts, |part| {
        let mutants = mutate::mutants_within(kernel, part.clone());
        let kernels: Vec<&Kernel> = mutants.iter().map(|mutant| &mutant.kernel).collect();
        let found = explore_mutants((kernel, &kernels), schedules, &prepare, &verify);
        let tried = |(mutant, found): (&mutate::Mutant, Result<Profile, Finding>)| Tried {
            mistake: mutant.mistake,
            position: mutant.position,
            caught: found.err().map(|finding| finding.name()),
        };
        mutants.iter().zip(found).map(tried).collect::<Vec<_>>()
    });
    tried.into_iter().flatten().collect()
}

/// Runs a kernel under each schedule, on a fresh device from `prepare`, and has `verify` judge what it left in memory.
/// Stops at the first thing found; gives the profile of the last run if nothing is.
pub fn explore(
    kernel: &Kernel,
    schedules: &[Schedule],
    mut prepare: impl FnMut() -> (Gpu, Invocation),
    mut verify: impl FnMut(&Gpu) -> Result<(), String>,
) -> Result<Profile, Finding> {
    let mut profile = Profile::default();
    for &schedule in schedules {
        let (mut gpu, launch) = prepare();
        profile = gpu.run(kernel, &launch, schedule).map_err(Finding::Fault)?;
        verify(&gpu).map_err(|what| Finding::WrongResult { schedule, what })?;
    }
    Ok(profile)
}

/// A finding, and how bad it is.
#[derive(Clone, Debug)]
pub struct Graded {
    /// How bad.
    pub grade: Grade,
    /// What it is.
    pub finding: Finding,
}

/// What came of a kernel under several schedules.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Once per rule and pair of instructions, the worst first, and of one grade in the order of schedules.
    pub findings: Vec<Graded>,
    /// What a run did that came to its end, if one did.
    pub profile: Option<Profile>,
}

/// Runs a kernel under each schedule, on a fresh device from `prepare`, goes on after what can be gone on from, and
/// has `judge` say what is wrong with what it left in memory. Schedules run side by side, as many as there are cores.
///
/// By [`Rules::Practice`] everything found is [broken](Grade::Broken), or [seen](Grade::Seen) where there is a report
/// of hardware that misbehaved. By [`Rules::Letter`] the kernel is held to both: what only the letter forbids is of
/// grade [`Grade::Letter`].
pub fn survey(
    kernel: &Kernel,
    schedules: &[Schedule],
    rules: Rules,
    prepare: impl Fn() -> (Gpu, Invocation) + Sync,
    judge: impl Fn(&Gpu) -> Vec<String> + Sync,
) -> Survey {
    let both = [Rules::Practice, Rules::Letter];
    let held_to = if rules == Rules::Letter { &both[..] } else { &both[..1] };
    let runs: Vec<(Rules, Schedule)> =
        held_to.iter().flat_map(|rules| schedules.iter().map(|schedule| (*rules, *schedule))).collect();
    let run = |&(rules, schedule): &(Rules, Schedule)| {
        let (gpu, launch) = prepare();
        let mut gpu = gpu.with_rules(rules);
        let (faults, profile) = gpu.survey(kernel, &launch, schedule);
        let mut found: Vec<Finding> = faults.into_iter().map(|fault| Finding::Fault(Box::new(fault))).collect();
        if profile.is_some() {
            found.extend(judge(&gpu).into_iter().map(|what| Finding::WrongResult { schedule, what }));
        }
        (found, profile)
    };
    let mut survey = Survey::default();
    let mut keys = BTreeSet::new();
    for ((rules, _), (found, profile)) in runs.iter().zip(in_parallel(&runs, run)) {
        survey.profile = profile.or(survey.profile);
        for finding in found {
            let (key, grade) = match &finding {
                Finding::Fault(fault) => (fault.key(), fault.kind.grade()),
                Finding::WrongResult { .. } => (("wrong result", 0, 0), Grade::Broken),
            };
            if keys.insert(key) {
                let grade = if *rules == Rules::Letter { Grade::Letter } else { grade };
                survey.findings.push(Graded { grade, finding });
            }
        }
    }
    survey.findings.sort_by_key(|graded| std::cmp::Reverse(graded.grade));
    survey
}

/// Does each piece of work, as many at a time as there are cores; what comes of them is in their order.
fn in_parallel<W: Sync, T: Send>(work: &[W], each: impl Fn(&W) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(work.len());
    let (next, each) = (AtomicUsize::new(0), &each);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = work.get(place) else { return done };
            done.push((place, each(piece)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mut done = worker();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}
