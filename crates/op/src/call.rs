//! A run that is known to be right before it starts.
//!
//! Backends execute instructions that a machine may lack and trust sizes that operands may not have. A [`Call`] is the only safe way
//! to a backend's `run`: it can be made for any backend, configuration and operands, and making it fails unless the backend is
//! available, the configuration legal for this very problem, and every operand of the problem's shape and type.

use crate::backend::{Backend, Operands, PackedWeights};
use crate::{Activations, Config, Error, Problem, Result, Target, Team, operands};

/// A backend, a configuration and operands that fit together.
#[derive(Debug)]
pub struct Call<'a, 'i, 'o> {
    backend: &'a dyn Backend,
    problem: &'a Problem,
    config: Config,
    weights: &'a dyn PackedWeights,
    activations: &'a [Activations<'i>],
    largest: Vec<f32>,
    targets: &'a mut [Target<'o>],
    team: &'a Team,
}

impl<'a, 'i, 'o> Call<'a, 'i, 'o> {
    /// Checks that everything fits. What is found wrong is named with its group.
    pub fn new(
        (backend, config): (&'a dyn Backend, Config),
        problem: &'a Problem,
        weights: &'a dyn PackedWeights,
        activations: &'a [Activations<'i>],
        targets: &'a mut [Target<'o>],
        team: &'a Team,
    ) -> Result<Self> {
        backend.available()?;
        backend.legal(problem, &config, team.count())?;
        if backend.layout() != weights.layout() {
            let (found, expected) = (weights.layout(), backend.layout());
            return Err(Error::Layout { backend: backend.name(), found, expected });
        }
        check_weights(problem, weights)?;
        check_activations(problem, activations)?;
        check_targets(problem, targets)?;
        let largest = operands::largest_of(activations)?;
        Ok(Self { backend, problem, config, weights, activations, largest, targets, team })
    }

    /// Computes.
    pub fn run(self) -> Result<()> {
        let Call { backend, problem, config, weights, activations, largest, targets, team } = self;
        let operands = Operands { weights, activations, largest: &largest, targets };
        // SAFETY: `Call::new` has seen that the backend is available, that it finds the configuration legal for the problem on this
        // team, and that layout, shapes, types and lengths of all operands are the problem's; since then nobody could
        // change any of them: they are borrowed.
        unsafe { backend.run(problem, &config, operands, team) }
    }
}

fn mismatch(group: usize, what: &'static str, found: impl ToString, expected: impl ToString) -> Error {
    Error::Mismatch { group, what, found: found.to_string(), expected: expected.to_string() }
}

/// Whether packed weights have a problem's shapes.
pub fn check_weights(problem: &Problem, weights: &dyn PackedWeights) -> Result<()> {
    let (shapes, groups) = (weights.shapes(), problem.groups());
    if shapes.len() != groups.len() {
        let group = shapes.len().min(groups.len());
        return Err(mismatch(group, "the number of groups of weights", shapes.len(), groups.len()));
    }
    if weights.matrices() != problem.matrices() {
        return Err(mismatch(0, "the number of weight matrices", weights.matrices(), problem.matrices()));
    }
    for (group, (&(n, k), shape)) in shapes.iter().zip(groups).enumerate() {
        if (n, k) != (shape.n, shape.k) {
            let expected = format!("{}×{}", shape.n, shape.k);
            return Err(mismatch(group, "the shape of the weights", format!("{n}×{k}"), expected));
        }
    }
    Ok(())
}

fn check_activations(problem: &Problem, activations: &[Activations<'_>]) -> Result<()> {
    let groups = problem.groups();
    if activations.len() != groups.len() {
        let group = activations.len().min(groups.len());
        return Err(mismatch(group, "the number of groups of activations", activations.len(), groups.len()));
    }
    for (group, (a, shape)) in activations.iter().zip(groups).enumerate() {
        if a.element() != problem.activation() {
            return Err(mismatch(group, "the activations' element type", a.element(), problem.activation()));
        }
        if (a.rows(), a.k()) != (shape.m, shape.k) {
            let expected = format!("{}×{}", shape.m, shape.k);
            return Err(mismatch(group, "the shape of the activations", format!("{}×{}", a.rows(), a.k()), expected));
        }
    }
    Ok(())
}

fn check_targets(problem: &Problem, targets: &[Target<'_>]) -> Result<()> {
    let shapes = problem.groups();
    if targets.len() != shapes.len() {
        let group = targets.len().min(shapes.len());
        return Err(mismatch(group, "the number of outputs", targets.len(), shapes.len()));
    }
    for (group, (target, shape)) in targets.iter().zip(shapes).enumerate() {
        if target.element() != problem.output() {
            return Err(mismatch(group, "the output's element type", target.element(), problem.output()));
        }
        if target.len() != shape.m * shape.n {
            let expected = format!("{} ({} tokens of {} columns)", shape.m * shape.n, shape.m, shape.n);
            return Err(mismatch(group, "the output's length", target.len(), expected));
        }
    }
    Ok(())
}
