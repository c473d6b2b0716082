//! The cases on which a broken kernel must be caught.

use ptx::Kernel;
use sim::{Buffer, Finding, Gpu, Invocation, Profile, Schedule, explore, explore_mutants};

use crate::problems::Problem;

/// A problem made ready, and its answer.
pub struct Case {
    gpu: Gpu,
    launch: Invocation,
    out: Buffer,
    expected: Vec<f32>,
}

/// Cases that between them exercise all of the kernel: a few steps, none, and so many that a barrier with one of its
/// 128 arrivals miscounted falls behind, or gets ahead, by a whole phase.
pub fn all() -> Vec<Case> {
    let case = |k: usize| {
        let problem = Problem { m: 64, n: 64, k };
        let (gpu, launch, out) = problem.prepare();
        Case { gpu, launch, out, expected: problem.product() }
    };
    [6, 0, 4 * 132].map(|steps| case(64 * steps)).into()
}

impl Case {
    fn prepare(&self) -> (Gpu, Invocation) {
        (self.gpu.clone(), self.launch.clone())
    }

    fn verify(&self, gpu: &Gpu) -> Result<(), String> {
        match gpu.floats(self.out) == self.expected {
            true => Ok(()),
            false => Err("the product is wrong".to_string()),
        }
    }
}

/// What exploring a kernel finds, on any of the cases.
pub fn examine(cases: &[Case], kernel: &Kernel, schedules: &[Schedule]) -> Result<Profile, Finding> {
    let mut profile = Profile::default();
    for case in cases {
        profile = explore(kernel, schedules, || case.prepare(), |gpu| case.verify(gpu))?;
    }
    Ok(profile)
}

/// The same for each mutant of a kernel.
pub fn examine_mutants(
    cases: &[Case],
    (original, mutants): (&Kernel, &[&Kernel]),
    schedules: &[Schedule],
) -> Vec<Result<Profile, Finding>> {
    let mut found: Vec<Result<Profile, Finding>> = mutants.iter().map(|_| Ok(Profile::default())).collect();
    for case in cases {
        let left: Vec<usize> = (0..mutants.len()).filter(|number| found[*number].is_ok()).collect();
        let kernels: Vec<&Kernel> = left.iter().map(|number| mutants[*number]).collect();
        let all = (original, &kernels[..]);
        let outcomes = explore_mutants(all, schedules, || case.prepare(), |gpu| case.verify(gpu));
        left.into_iter().zip(outcomes).for_each(|(number, outcome)| found[number] = outcome);
    }
    found
}
