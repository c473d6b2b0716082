//! Nothing is timed that is wrong.

use hammerhead::{Engine, Layer};
use testkit::cases::{Case, Instance};
use testkit::verify::{Expected, Report};

use crate::subject::Subject;
use crate::{Error, Result};

/// Computes a case once as planned.
pub fn computed(case: &Case, instance: &Instance, engine: &Engine, layer: &Layer) -> Result<Subject> {
    let plan = engine.plan(layer, &instance.activations, case.output)?;
    let mut subject = Subject::new(instance, plan);
    subject.compute(engine, layer)?;
    Ok(subject)
}

/// Judges what several computed, each of them some groups of one case, and refuses to go on if it is wrong.
pub fn checked(case: &Case, subjects: &[Subject], expected: &Expected, seed: u64) -> Result<Report> {
    let report = Subject::judge_together(subjects, expected)?;
    match (report.first.clone(), subjects.first().map(Subject::plan)) {
        (Some(first), Some(plan)) => {
            let (backend, config) = (plan.backend().name(), plan.config().to_string());
            Err(Error::Wrong { case: case.to_string(), backend, config, seed, first })
        }
        _ => Ok(report),
    }
}
