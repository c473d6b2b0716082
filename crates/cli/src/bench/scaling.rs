//! What threads and grouping bring: a case against itself on one thread, and against its groups one after another.
//!
//! The rivals are timed in the same rounds as the case, each with cold weights, and each round gives one ratio: so a
//! slow minute of a shared machine falls on both sides of it.

use format::{Dense, Matrix, Values};
use hammerhead::{Activations, Engine, Layer, Problem, Shape};
use serde::Serialize;
use testkit::cases::{Case, Instance};
use testkit::verify::Expected;

use super::checked::{checked, computed};
use super::rotation::Rotation;
use crate::Result;
use crate::subject::Subject;
use crate::timing::Spread;

/// The other ways to compute a case, and how they compared.
#[derive(Debug)]
pub struct Rivals {
    /// All of it, planned for one thread.
    one_thread: Option<Subject>,
    /// A group at a time, each planned for itself.
    apart: Vec<Subject>,
    threads: Vec<f64>,
    grouping: Vec<f64>,
}

/// Ratios of times in the same round; absent where there is nothing to compare.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scaling {
    /// The time on one thread over the time on all of them.
    pub one_thread: Option<Spread>,
    /// The time of all groups together over the time of one after another.
    pub grouped: Option<Spread>,
}

impl Rivals {
    /// Plans the rivals of a case and checks each once. `single` is an engine with one thread.
    pub fn new(
        case: &Case,
        instance: &Instance,
        [engine, single]: [&Engine; 2],
        layer: &Layer,
        expected: &Expected,
        seed: u64,
    ) -> Result<Self> {
        let subject = |engine: &Engine, instance: &Instance| computed(case, instance, engine, layer);
        let one_thread = if engine.threads() > 1 { Some(subject(single, instance)?) } else { None };
        let with_tokens: Vec<usize> = (0..case.groups.len()).filter(|&group| case.groups[group].m > 0).collect();
        let mut apart = Vec::new();
        if with_tokens.len() > 1 {
            for group in with_tokens {
                apart.push(subject(engine, &one_group(instance, group)?)?);
            }
        }
        for rivals in [one_thread.as_slice(), &apart].into_iter().filter(|rivals| !rivals.is_empty()) {
            checked(case, rivals, expected, seed)?;
        }
        Ok(Self { one_thread, apart, threads: Vec::new(), grouping: Vec::new() })
    }

    /// Times the rivals once, each with a layer of its own, against the time that the case itself took.
    pub fn time(&mut self, taken: f64, [engine, single]: [&Engine; 2], layers: &mut Rotation) -> Result<()> {
        if let Some(subject) = &mut self.one_thread {
            self.threads.push(subject.compute(single, layers.turn())? / taken);
        }
        if !self.apart.is_empty() {
            let layer = layers.turn();
            let mut seconds = 0.0;
            for subject in &mut self.apart {
                seconds += subject.compute(engine, layer)?;
            }
            self.grouping.push(taken / seconds);
        }
        Ok(())
    }

    /// How they compared.
    pub fn report(&self) -> Scaling {
        let spread = |ratios: &[f64]| (!ratios.is_empty()).then(|| Spread::of(ratios));
        Scaling { one_thread: spread(&self.threads), grouped: spread(&self.grouping) }
    }
}

/// The same weights with the tokens of one group only.
fn one_group(instance: &Instance, group: usize) -> Result<Instance> {
    let all = instance.problem.groups();
    let shapes = all.iter().enumerate().map(|(g, s)| Shape::new(if g == group { s.m } else { 0 }, s.n, s.k)).collect();
    let mut activations = instance.activations.clone();
    for (g, tokens) in activations.iter_mut().enumerate().filter(|(g, _)| *g != group) {
        *tokens = match tokens {
            Activations::NvFp4(a) => Activations::NvFp4(Matrix::new(0, all[g].k, Vec::new(), Vec::new(), a.global())?),
            Activations::Dense(a) => {
                let none = match a.values() {
                    Values::F16(_) => Values::F16(Vec::new().into()),
                    Values::BF16(_) => Values::BF16(Vec::new().into()),
                    Values::F32(_) => Values::F32(Vec::new().into()),
                };
                Activations::Dense(Dense::new(0, all[g].k, none, a.global())?)
            }
        };
    }
    let given = &instance.problem;
    let problem = Problem::new(shapes, given.gate(), given.activation(), given.output())?;
    Ok(Instance { activations, weights: Vec::new(), problem })
}
