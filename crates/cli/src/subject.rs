//! A case made ready to be computed and judged: its tokens, its plan, and memory for C.

use std::borrow::Cow;
use std::time::Instant;

use format::{Dense, Values};
use hammerhead::Target;
use hammerhead::{Activations, Engine, Layer, Plan};
use testkit::cases::Instance;
use testkit::verify::{Expected, Report, poisoned};

use crate::Result;

/// Tokens, a plan, and memory for the results. The weights are a [`Layer`] and come with each computation.
#[derive(Debug)]
pub struct Subject {
    activations: Vec<Activations<'static>>,
    plan: Plan,
    results: Vec<Values<'static>>,
}

impl Subject {
    /// Takes the tokens of an instance. The results are poisoned, so that an element nobody writes is found.
    pub fn new(instance: &Instance, plan: Plan) -> Self {
        Self { activations: instance.activations.clone(), plan, results: poisoned(instance) }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Computes once, and says how many seconds that took.
    pub fn compute(&mut self, engine: &Engine, layer: &Layer) -> Result<f64> {
        let mut targets = Target::all(&mut self.results);
        let clock = Instant::now();
        engine.run_planned(&self.plan, layer, &self.activations, &mut targets)?;
        Ok(clock.elapsed().as_secs_f64())
    }

    /// Judges what was computed last.
    pub fn judge(&self, expected: &Expected) -> Result<Report> {
        Self::judge_together(std::slice::from_ref(self), expected)
    }

    /// Judges what several computed last, each of them some groups of one problem: those that it has tokens for.
    pub fn judge_together(subjects: &[Self], expected: &Expected) -> Result<Report> {
        let groups = subjects.first().map_or(0, |subject| subject.results.len());
        let of = |group: usize| {
            let of_group = |subject: &&Self| subject.plan.problem().groups()[group].m > 0;
            subjects.iter().find(of_group).unwrap_or(&subjects[0])
        };
        let dense = |group: usize| {
            let subject = of(group);
            let shape = subject.plan.problem().groups()[group];
            Dense::new(shape.m, shape.n, borrowed(&subject.results[group]), 1.0)
        };
        let results: Vec<Dense<'_>> = (0..groups).map(dense).collect::<Result<_, _>>()?;
        Ok(expected.check_groups(&results, |group| of(group).plan.arithmetic()))
    }
}

fn borrowed<'a>(values: &'a Values<'static>) -> Values<'a> {
    match values {
        Values::F16(c) => Values::F16(Cow::Borrowed(c)),
        Values::BF16(c) => Values::BF16(Cow::Borrowed(c)),
        Values::F32(c) => Values::F32(Cow::Borrowed(c)),
    }
}
