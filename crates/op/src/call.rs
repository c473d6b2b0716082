//! A run that is known to be right before it starts.
//!
//! Backends execute instructions that a machine may lack and trust sizes that operands may not have. A [`Call`] is the
//! only safe way to a backend's `run`: it can be made for any backend, configuration and operands, and making it fails
//! unless the backend is available, the configuration legal for this very problem, and every operand of the problem's
//! shape and type.

use crate::backend::{Addend, Backend, Operands, PackedWeights};
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
    addends: &'a [Addend<'a>],
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
        let largest = operands::largest_of(activations, team);
        Ok(Self { backend, problem, config, weights, activations, largest, addends: &[], targets, team })
    }

    /// The same call, in which numbers are added to every group's sums behind their biases and before the gate.
    pub fn with_addends(self, addends: &'a [Addend<'a>]) -> Result<Self> {
        let groups = self.problem.groups();
        if !self.backend.adds() {
            let (found, expected) = (self.backend.name(), "one that adds to sums, as the CPU's do");
            return Err(mismatch(0, "the backend of products with adapters", found, expected));
        }
        if addends.len() != groups.len() {
            return Err(mismatch(0, "the number of addends", addends.len(), groups.len()));
        }
        for (group, (planes, shape)) in addends.iter().zip(groups).enumerate() {
            for plane in &planes[..self.problem.matrices()] {
                if plane.len() != shape.m * shape.n {
                    return Err(mismatch(group, "the length of an addend", plane.len(), shape.m * shape.n));
                }
            }
        }
        Ok(Self { addends, ..self })
    }

    /// The same call, in which the largest activation of every group is taken to be at least so large. Backends scale
    /// tokens by it: so tokens are scaled alike whatever else is in their group, as long as none is larger.
    pub fn with_largest(mut self, largest: f32) -> Self {
        self.largest.iter_mut().for_each(|own| *own = own.max(largest));
        self
    }

    /// Computes.
    pub fn run(self) -> Result<()> {
        let Call { backend, problem, config, weights, activations, largest, addends, targets, team } = self;
        let operands = Operands { weights, activations, largest: &largest, addends, targets };
        // SAFETY: `Call::new` has seen that the backend is available, that it finds the configuration legal for the
        // problem on this team, and that layout, shapes, types and lengths of all operands are the problem's; since
        // then nobody could change any of them: they are borrowed.
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
    if weights.scaling() != problem.scaling() {
        return Err(mismatch(0, "the scales of the weights", weights.scaling(), problem.scaling()));
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
        if let Activations::NvFp4(a) = a
            && a.scaling().is_mx()
        {
            return Err(mismatch(group, "the activations' scales", a.scaling(), "nvfp4 (`Matrix::in_scaling`)"));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use format::Dense;

    use super::*;
    use crate::{
        Activation, Alone, Arithmetic, Cost, Epilogue, Gate, Output, Own, Schedule, Shape, Strategy, Tile, Weights,
    };

    const SHAPES: [(usize, usize); 2] = [(3, 32), (5, 16)];

    #[derive(Debug)]
    struct Packed(&'static str, usize);

    // SAFETY: nobody reads any memory by its word.
    unsafe impl PackedWeights for Packed {
        fn layout(&self) -> &'static str {
            self.0
        }

        fn shapes(&self) -> &[(usize, usize)] {
            &SHAPES[..self.1]
        }

        fn matrices(&self) -> usize {
            2
        }

        fn bytes(&self) -> usize {
            0
        }
    }

    /// Writes one everywhere, if it is there and likes the number of stages.
    struct Ones {
        there: bool,
    }

    // SAFETY: it touches the targets only, through slices.
    unsafe impl Backend for Ones {
        fn name(&self) -> &'static str {
            "ones"
        }

        fn summary(&self) -> &'static str {
            "ones"
        }

        fn layout(&self) -> &'static str {
            "ones"
        }

        fn kernels(&self) -> &'static str {
            "1"
        }

        fn available(&self) -> Result<()> {
            let (reason, remedy) = (String::new(), String::new());
            if self.there { Ok(()) } else { Err(Error::Unavailable { backend: "ones", reason, remedy }) }
        }

        fn arithmetic(&self, _: Activation) -> Arithmetic {
            Arithmetic::Unknown
        }

        fn candidates(&self, _: &Problem, _: usize) -> Vec<Config> {
            vec![CONFIG]
        }

        fn legal(&self, _: &Problem, config: &Config, _: usize) -> Result<()> {
            let reason = String::new();
            if config.stages == 1 {
                Ok(())
            } else {
                Err(Error::Illegal { backend: "ones", config: Box::new(*config), reason })
            }
        }

        fn check(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Cost> {
            self.legal(problem, config, threads)?;
            Ok(Cost { seconds: 0.0, bound_by: "nothing", copying: 0.0, scratch_bytes: 0 })
        }

        fn prepack(&self, _: &[Weights<'_>], _: &Team) -> Result<Arc<dyn PackedWeights>> {
            Ok(Arc::new(Packed("ones", 2)))
        }

        unsafe fn run(&self, _: &Problem, _: &Config, operands: Operands<'_, '_, '_>, team: &Team) -> Result<()> {
            assert_eq!(team.count(), 1);
            for target in operands.targets.iter_mut() {
                if let Target::F32(c) = target {
                    c.fill(1.0);
                }
            }
            Ok(())
        }
    }

    const CONFIG: Config = Config {
        strategy: Strategy::TwoPass,
        tile: Tile { tokens: 1, columns: 1 },
        depth: 16,
        stages: 1,
        epilogue: Epilogue::Direct,
        schedule: Schedule::PerTile,
        own: Own::NONE,
    };

    fn problem(tokens: [usize; 2]) -> Problem {
        let groups = tokens.iter().zip(SHAPES).map(|(&m, (n, k))| Shape::new(m, n, k)).collect();
        Problem::new(groups, Gate::Silu, Activation::F32, Output::F32).unwrap()
    }

    fn tokens(rows: [usize; 2]) -> Vec<Activations<'static>> {
        let group = |(rows, k): (usize, usize)| Dense::new(rows, k, vec![1f32; rows * k], 1.0).unwrap().into();
        rows.into_iter().zip([32, 16]).map(group).collect()
    }

    /// What becomes of a call with targets of these lengths.
    fn called(
        (there, config): (bool, Config),
        packed: &Packed,
        problem: &Problem,
        activations: &[Activations<'_>],
        lengths: [usize; 2],
    ) -> Result<Vec<Vec<f32>>> {
        let (backend, team) = (Ones { there }, Team::new(Alone));
        let mut results = lengths.map(|length| vec![0f32; length]);
        let mut targets: Vec<Target<'_>> = results.iter_mut().map(|c| Target::F32(c)).collect();
        Call::new((&backend, config), problem, packed, activations, &mut targets, &team)?.run()?;
        drop(targets);
        Ok(results.to_vec())
    }

    #[test]
    fn a_call_runs_when_everything_fits() {
        let packed = Packed("ones", 2);
        let found = called((true, CONFIG), &packed, &problem([2, 0]), &tokens([2, 0]), [6, 0]).unwrap();
        assert_eq!(found, [vec![1.0; 6], vec![]]);
    }

    #[test]
    fn no_call_is_made_where_anything_does_not_fit() {
        let (right, fits) = (Packed("ones", 2), problem([2, 1]));
        let refusal = |backend, packed: &Packed, tokens: &[Activations<'_>], lengths| {
            called(backend, packed, &fits, tokens, lengths).expect_err("it does not fit")
        };
        let (rows, lengths) = (tokens([2, 1]), [6, 5]);
        let there = (true, CONFIG);
        assert!(matches!(refusal((false, CONFIG), &right, &rows, lengths), Error::Unavailable { .. }));
        let two_stages = (true, Config { stages: 2, ..CONFIG });
        assert!(matches!(refusal(two_stages, &right, &rows, lengths), Error::Illegal { .. }));
        assert!(matches!(refusal(there, &Packed("twos", 2), &rows, lengths), Error::Layout { .. }));
        let mismatches = [
            refusal(there, &Packed("ones", 1), &rows, lengths),
            refusal(there, &right, &tokens([3, 1]), lengths),
            refusal(there, &right, &rows[..1], lengths),
            refusal(there, &right, &rows, [5, 5]),
            refusal(there, &right, &rows, [6, 6]),
        ];
        for error in mismatches {
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        }
    }
}
