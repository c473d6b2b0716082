//! The cases on which a broken kernel must be caught.

use ptx::Kernel;
use sim::{Buffer, Finding, Gpu, Invocation, Profile, Schedule, explore};

use crate::problems::Problem;

/// A problem made ready, and its answer.
pub struct Case {
    gpu: Gpu,
    launch: Invocation,
    out: Buffer,
    expected: Vec<f32>,
}

/// Cases that between them exercise all of the kernel: a few steps, none, and so many that a barrier with one of its 128
/// arrivals miscounted falls behind, or gets ahead, by a whole phase.
pub fn all() -> Vec<Case> {
    let case = |k: usize| {
        let problem = Problem { m: 64, n: 64, k };
        let (gpu, launch, out) = problem.prepare();
        Case { gpu, launch, out, expected: problem.product() }
    };
    [6, 0, 4 * 132].map(|steps| case(64 * steps)).into()
}

/// What exploring a kernel finds, on any of the cases.
pub fn examine(cases: &[Case], kernel: &Kernel, schedules: &[Schedule]) -> Result<Profile, Finding> {
    let mut profile = Profile::default();
    for case in cases {
        let prepare = || (case.gpu.clone(), case.launch.clone());
        let verify = |gpu: &Gpu| match gpu.floats(case.out) == case.expected {
            true => Ok(()),
            false => Err("the product is wrong".to_string()),
        };
        profile = explore(kernel, schedules, prepare, verify)?;
    }
    Ok(profile)
}
