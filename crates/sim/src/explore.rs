//! Running a kernel under many schedules.

use ptx::Kernel;
use thiserror::Error;

use crate::branch::Mutants;
use crate::error::Fault;
use crate::gpu::Gpu;
use crate::invocation::Invocation;
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

/// Runs a kernel under each schedule, on a fresh device from `prepare`, and has `verify` judge what it left in memory. Stops at
/// the first thing found; gives the profile of the last run if nothing is.
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
