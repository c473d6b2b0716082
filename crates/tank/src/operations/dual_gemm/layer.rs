//! A whole layer of experts as the referee asks it: its numbers by name, and what should come out of them.
//!
//! Constants are the experts' matrices, all of them different; an input is tokens `x`, and the `ids` and `weights` of
//! each token's experts; the result is `y`. Rows are judged against the float64 reference under its derived bound. A
//! row takes the reference as many products as all of its experts have weights, so rows are drawn where there are many,
//! each from a job of its own.

use fastrand::Rng;
use hammerhead::format::Dense;
use hammerhead::layer_reference::LayerReference;
use hammerhead::{Activation, Arithmetic, Intermediate, Precision, Problem, Routed};
use referee::seeds::derive;
use referee::task::{Bundle, Element, Expected, Found, Spec, Task, Tensor, Timed, Work};
use referee::{Error, Result};
use serde_json::Value;
use testkit::moe::{self, Instance, Model};

use super::operands::ProblemText;
use super::problem::{LayerSizes, name};
use super::task::{dense_tensor, element, matrix_tensors, values};

/// Products beyond which an examination looks at drawn rows only.
const EXHAUSTIVE: usize = 1 << 28;
/// Rows that are looked at in an examination at least, after a sample, and in an output that is compared whole.
const FEWEST: usize = 2;
const SAMPLED: usize = 1;
const WHOLE: usize = 4;

/// How tokens are spread over experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    /// By chance, as a router that was trained to be fair does it.
    Chance,
    /// All of them want the same experts.
    Same,
}

/// A layer as a task.
#[derive(Clone, Debug)]
pub(super) struct LayerTask {
    problem: Problem,
    sizes: LayerSizes,
    crowd: Crowd,
}

/// An input as it was drawn.
struct Asked {
    tokens: Dense<'static>,
    routed: Routed,
}

impl LayerTask {
    /// The task of a problem, if it is a whole layer.
    pub(super) fn of(problem: &Problem) -> Option<Self> {
        Some(Self { problem: problem.clone(), sizes: LayerSizes::of(problem)?, crowd: Crowd::Chance })
    }

    /// What is asked of whoever computes this layer: itself, with tokens by chance and with all of them in one crowd,
    /// one token of it, and small layers that are drawn from the seed and in no list.
    pub(super) fn questions(&self, held_out: usize, seed: u64) -> Result<Vec<Self>> {
        let mut rng = Rng::with_seed(derive(seed, &[0x1a7e6]));
        let mut asked = vec![self.clone(), Self { crowd: Crowd::Same, ..self.clone() }];
        asked.push(self.sized(LayerSizes { tokens: 1, ..self.sizes })?);
        for index in 0..held_out {
            let experts = rng.usize(1..24);
            let drawn = LayerSizes {
                tokens: rng.usize(1..40),
                experts,
                top: rng.usize(1..=experts.min(8)),
                hidden: 16 * rng.usize(4..20),
                inner: 16 * rng.usize(2..14),
                ..self.sizes
            };
            let crowd = [Crowd::Chance, Crowd::Same][index % 2];
            asked.push(Self { crowd, ..self.sized(drawn)? });
        }
        Ok(asked)
    }

    fn sized(&self, sizes: LayerSizes) -> Result<Self> {
        let types = (self.problem.activation(), self.problem.output());
        Ok(Self { problem: sizes.problem(self.problem.gate(), types)?, sizes, ..self.clone() })
    }

    fn model(&self) -> Model {
        let LayerSizes { experts, top, hidden, inner, .. } = self.sizes;
        let (experts, widths) = ([experts, top], [hidden, inner]);
        Model {
            name: "season",
            why: "a problem of the season",
            experts,
            widths,
            gate: self.problem.gate(),
            ..moe::COMMON
        }
    }

    /// Products that the reference needs for a row.
    fn row_products(&self) -> usize {
        let LayerSizes { top, hidden, inner, .. } = self.sizes;
        top * (self.problem.gate().matrices() + 1) * hidden * inner
    }

    /// Compares rows of a result.
    fn check(&self, weights: &Instance, asked: &Asked, rows: &[usize], output: &[Vec<u8>]) -> Result<Found> {
        let bytes = output.first().ok_or_else(|| Error::Protocol { reason: "there is no result".to_owned() })?;
        let values = values(bytes, self.problem.output());
        let result = Dense::new(self.sizes.tokens, self.sizes.hidden, values, 1.0).map_err(hammerhead::Error::from)?;
        let weights = weights.weights()?;
        let Asked { tokens, routed } = asked;
        let reference = LayerReference {
            weights: &weights,
            intermediate: Intermediate::Tokens,
            precision: Precision::Exact,
            tokens,
            routed,
        };
        let report = moe::check(&reference, rows.iter().copied(), &result, &|_| Arithmetic::Unknown)?;
        let compared = report.compared as u64;
        Ok(Found {
            wrong: report
                .first
                .map(|failure| format!("{failure}; {} of {compared} elements are wrong", report.failures)),
            compared,
            squares: report.rms_ratio * report.rms_ratio * compared as f64,
            worst: report.max_ratio,
        })
    }

    fn drawn(&self, count: usize, lots: &mut Rng) -> Vec<usize> {
        let tokens = self.sizes.tokens;
        if count >= tokens { (0..tokens).collect() } else { lots.choose_multiple(0..tokens, count) }
    }
}

fn weights_of(constants: &Bundle) -> Result<&Instance> {
    constants.made_from().ok_or_else(|| Error::Protocol { reason: "these constants are no experts".to_owned() })
}

fn asked_of(input: &Bundle) -> Result<&Asked> {
    input.made_from().ok_or_else(|| Error::Protocol { reason: "this input is no tokens".to_owned() })
}

impl Task for LayerTask {
    fn name(&self) -> String {
        name(&self.problem)
    }

    fn numbers(&self) -> String {
        format!("{:?}", self.crowd)
    }

    fn operation(&self) -> String {
        super::NAME.to_owned()
    }

    fn work(&self) -> Work {
        let elements = (self.problem.gate().matrices() + 1) * self.sizes.hidden * self.sizes.inner;
        let constant_bytes = (self.sizes.experts * (elements / 2 + elements / 16)) as f64;
        Work { flops: Some(self.problem.flops()), bytes: self.problem.bytes(), constant_bytes }
    }

    fn outputs(&self) -> Vec<Spec> {
        vec![Spec::new("y", element(self.problem.output()), [self.sizes.tokens, self.sizes.hidden])]
    }

    fn constants(&self, seed: u64) -> Result<Bundle> {
        let instance = self.model().instance(0, Activation::F32, self.sizes.experts, seed)?;
        let mut tensors = Vec::new();
        for (expert, mlp) in instance.weights()?.experts().iter().enumerate() {
            let first = ["gate", "up"].into_iter().zip(mlp.up().matrices());
            for (name, matrix) in first.chain(["down"].into_iter().zip(mlp.down().matrices())) {
                tensors.extend(matrix_tensors(&format!("{name}.{expert}"), matrix)?);
            }
        }
        Ok(Bundle::new(tensors).meaning(instance))
    }

    fn input(&self, seed: u64) -> Result<Bundle> {
        let LayerSizes { tokens, experts, top, .. } = self.sizes;
        let drawn = self.model().instance(tokens, self.problem.activation(), 0, seed)?;
        let mut logits = drawn.logits;
        if self.crowd == Crowd::Same {
            for token in 1..tokens {
                logits.copy_within(..experts, token * experts);
            }
        }
        let routed = drawn.router.route(&logits, tokens)?;
        let spec = |name: &str, element| Spec::new(name, element, [tokens, top]);
        let tensors = vec![
            dense_tensor("x", &drawn.tokens),
            Tensor { spec: spec("ids", Element::I32), bytes: bytemuck::cast_slice(routed.ids()).to_vec() },
            Tensor { spec: spec("weights", Element::F32), bytes: bytemuck::cast_slice(routed.weights()).to_vec() },
        ];
        Ok(Bundle::new(tensors).meaning(Asked { tokens: drawn.tokens, routed }))
    }

    fn expected(&self, constants: &Bundle, input: &Bundle, seed: u64) -> Result<Box<dyn Expected>> {
        let count = (EXHAUSTIVE / self.row_products().max(1)).max(FEWEST);
        let rows = self.drawn(count, &mut Rng::with_seed(seed));
        Ok(Box::new(Rows { task: self.clone(), constants: constants.clone(), input: input.clone(), rows }))
    }

    /// A row has at least as many elements as anyone asks for.
    fn look(&self, run: &[Timed<'_>], _elements: usize, lots: &mut Rng) -> Result<Found> {
        let Timed { constants, input, output } = run[lots.usize(..run.len())];
        self.check(weights_of(constants)?, asked_of(input)?, &self.drawn(SAMPLED, lots), output)
    }

    /// Some more rows: all of them would take longer than the contest.
    fn look_whole(&self, Timed { constants, input, output }: Timed<'_>) -> Result<Option<String>> {
        let rows = self.drawn(WHOLE, &mut Rng::with_seed(referee::seeds::fresh()?));
        Ok(self.check(weights_of(constants)?, asked_of(input)?, &rows, output)?.wrong)
    }

    fn described(&self) -> Value {
        serde_json::to_value(ProblemText::new(&self.problem, Vec::new())).unwrap_or_default()
    }
}

/// Rows of what should come out. They are computed when there is something to compare.
struct Rows {
    task: LayerTask,
    constants: Bundle,
    input: Bundle,
    rows: Vec<usize>,
}

impl Expected for Rows {
    fn check(&self, output: &[Vec<u8>]) -> Result<Found> {
        self.task.check(weights_of(&self.constants)?, asked_of(&self.input)?, &self.rows, output)
    }
}
