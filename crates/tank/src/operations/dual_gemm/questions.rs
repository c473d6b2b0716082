//! What is asked of whoever computes the dual GEMM: every edge of the case list; the season's own problems, each with
//! realistic numbers, whole numbers, extreme scales, zeros, negative zeros and the largest codes; and shapes drawn from
//! the seed that are in no list, half of them neighbours of the season's.

use fastrand::Rng;
use hammerhead::{Activation, Gate, Output, Precision, Shape};
use testkit::cases::{self, Case, Inputs, Suite};

use referee::seeds::derive;

/// The kinds of numbers that a season's problems are examined with.
const KINDS: [Inputs; 6] =
    [Inputs::Realistic, Inputs::Integers, Inputs::HardScales, Inputs::Zero, Inputs::NegativeZero, Inputs::Maximal];

/// What a contestant is asked, for these problems of a season and this seed.
pub fn questions(problems: &[Case], held_out: usize, seed: u64) -> Vec<Case> {
    let mut questions = cases::suite(Suite::Edge);
    // The protocol has no words for input scales and biases.
    questions.retain(|case| !case.is_scaled() && !case.is_biased());
    for problem in problems {
        questions.extend(KINDS.map(|inputs| Case { inputs, ..problem.clone() }));
    }
    questions.extend(in_no_list(problems, held_out, seed));
    questions
}

/// Shapes that are in no list.
fn in_no_list(problems: &[Case], count: usize, seed: u64) -> Vec<Case> {
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
            precision: model.map_or(Precision::Exact, |case| case.precision),
            inputs: [Inputs::Realistic, Inputs::Integers, Inputs::GlobalsApart][rng.usize(..3)],
            timed: false,
        });
    }
    drawn
}
