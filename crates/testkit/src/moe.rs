//! Layers of experts as published models have them: for correctness, scaled down, and for speed, as they are.
//!
//! A [`Model`] is sizes, routing, gate and what stands beside the experts; [`Model::instance`] makes the numbers from a
//! seed. Sizes are those of the published configurations.

use fastrand::Rng;
use format::{Dense, Scaling, Values};
use hammerhead::layer_reference::{LayerReference, value_at};
use hammerhead::routing::{Groups, Ids};
use op::{
    Activation, Arithmetic, ExpertWeights, Gate, Intermediate, MlpWeights, Output, Problem, Result, Routed, Router,
    Scoring, SharedWeights, Weights, Whole,
};

use crate::cases::{Inputs, normal};
use crate::verify::{Failure, Report};

/// A model's layer of experts.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// Why it is in the list.
    pub why: &'static str,
    /// Experts that there are, and per token.
    pub experts: [usize; 2],
    /// The width of tokens and of the intermediate.
    pub widths: [usize; 2],
    /// How it routes.
    pub scoring: Scoring,
    /// Groups of experts, of which the best may be chosen from; only with sigmoids.
    pub groups: Option<Groups>,
    /// What weights are multiplied with.
    pub scaling: f32,
    /// The shared expert's intermediate.
    pub shared: Option<usize>,
    /// Whether the shared expert is multiplied with σ(x·v).
    pub shared_gate: bool,
    /// The gate.
    pub gate: Gate,
    /// Whether all matrices have biases.
    pub biases: bool,
    /// Whether all inputs are multiplied with scales, as AWQ has it.
    pub input_scales: bool,
    /// How its published weights share scales.
    pub scales: Scaling,
    /// Whether experts are looked up by the token's number, and logits say their weights alone.
    pub looked_up: bool,
}

/// What most models have.
pub const COMMON: Model = Model {
    name: "",
    why: "",
    experts: [0; 2],
    widths: [0; 2],
    scoring: Scoring::SoftmaxRenorm,
    groups: None,
    scaling: 1.0,
    shared: None,
    shared_gate: false,
    gate: Gate::Silu,
    biases: false,
    input_scales: false,
    scales: Scaling::NvFp4,
    looked_up: false,
};

/// Every model.
pub fn models() -> Vec<Model> {
    let qwen = Model { experts: [128, 8], ..COMMON };
    let sigmoid = Model { scoring: Scoring::Sigmoid, ..COMMON };
    let mxfp4 = Model { scales: Scaling::MxFp4, ..COMMON };
    let gpt_oss =
        Model { scoring: Scoring::TopKSoftmax, widths: [2880, 2880], gate: Gate::GPT_OSS, biases: true, ..mxfp4 };
    let llama = Model { scoring: Scoring::SigmoidInput, widths: [5120, 8192], shared: Some(8192), ..COMMON };
    let deepseek_v4 = Model {
        scoring: Scoring::SqrtSoftplus,
        scaling: 1.5,
        gate: Gate::SiluLimited { limit: 10.0 },
        experts: [256, 6],
        widths: [4096, 2048],
        shared: Some(2048),
        ..mxfp4
    };
    let nemotron = Model { gate: Gate::Relu2, ..sigmoid };
    vec![
        Model { name: "qwen3-30b-a3b", why: "many small experts", widths: [2048, 768], ..qwen },
        Model { name: "qwen3-235b-a22b", why: "the same, four times as large", widths: [4096, 1536], ..qwen },
        Model {
            name: "qwen3-next-80b",
            why: "the most experts, and a shared one behind a sigmoid of its own",
            experts: [512, 10],
            widths: [2048, 512],
            shared: Some(512),
            shared_gate: true,
            ..COMMON
        },
        Model {
            name: "deepseek-v3",
            why: "groups of experts, a correction, a scaling factor and a shared expert",
            experts: [256, 8],
            widths: [7168, 2048],
            groups: Some(Groups { count: 8, best: 4 }),
            scaling: 2.5,
            shared: Some(2048),
            ..sigmoid
        },
        Model {
            name: "kimi-k2",
            why: "sigmoids without groups, and another scaling factor",
            experts: [384, 8],
            widths: [7168, 2048],
            scaling: 2.827,
            shared: Some(2048),
            ..sigmoid
        },
        Model {
            name: "glm-4.5",
            why: "between the large and the small ones",
            experts: [160, 8],
            widths: [5120, 1536],
            scaling: 2.5,
            shared: Some(1536),
            ..sigmoid
        },
        Model {
            name: "glm-4.7-flash",
            why: "a small model of the same kind: few experts, and few of them per token",
            experts: [64, 4],
            widths: [2048, 1536],
            scaling: 1.8,
            shared: Some(1536),
            ..sigmoid
        },
        Model {
            name: "glm-5",
            why: "as many experts as DeepSeek-V3, narrower and without groups",
            experts: [256, 8],
            widths: [6144, 2048],
            scaling: 2.5,
            shared: Some(2048),
            ..sigmoid
        },
        Model {
            name: "deepseek-v4-flash",
            why: "roots of softplus with a correction, a gate with limits, and MXFP4 weights",
            ..deepseek_v4
        },
        Model {
            name: "deepseek-v4-flash-first",
            why: "its first layers: experts by the token's number, weighed by what logits say of those",
            looked_up: true,
            ..deepseek_v4
        },
        Model {
            name: "minimax-m2",
            why: "sigmoids and nothing shared",
            experts: [256, 8],
            widths: [3072, 1536],
            ..sigmoid
        },
        Model {
            name: "minimax-m3",
            why: "gpt-oss's gate without biases, and a shared expert",
            experts: [128, 4],
            widths: [6144, 3072],
            scaling: 2.0,
            shared: Some(3072),
            gate: Gate::GPT_OSS,
            ..sigmoid
        },
        Model {
            name: "gpt-oss-20b",
            why: "MXFP4, biases on all matrices; widths of 45 chunks",
            experts: [32, 4],
            ..gpt_oss
        },
        Model { name: "gpt-oss-120b", why: "the same with four times the experts", experts: [128, 4], ..gpt_oss },
        Model { name: "llama-4-scout", why: "one expert per token, weighed on its input", experts: [16, 1], ..llama },
        Model { name: "llama-4-maverick", why: "the same with eight times the experts", experts: [128, 1], ..llama },
        Model { name: "mixtral-8x7b", why: "few large experts", experts: [8, 2], widths: [4096, 14336], ..COMMON },
        Model {
            name: "nemotron-3-nano",
            why: "squares of one product; widths that are no multiples of 128",
            experts: [128, 6],
            widths: [2688, 1856],
            scaling: 2.5,
            shared: Some(3712),
            ..nemotron
        },
        Model {
            name: "nemotron-3-super",
            why: "most experts per token",
            experts: [512, 22],
            widths: [1024, 2688],
            scaling: 5.0,
            shared: Some(5376),
            ..nemotron
        },
        Model {
            name: "qwen3-30b-a3b-awq",
            why: "input scales of every expert",
            widths: [2048, 768],
            input_scales: true,
            ..qwen
        },
    ]
}

/// A layer's operands.
#[derive(Debug)]
pub struct Instance {
    model: Model,
    /// Distinct experts: those of the layer are these over and over.
    pool: Vec<MlpWeights<'static>>,
    shared: Option<SharedWeights<'static>>,
    /// The tokens.
    pub tokens: Dense<'static>,
    /// The router.
    pub router: Router,
    /// Its logits, `[tokens, experts]`.
    pub logits: Vec<f32>,
}

impl Model {
    /// The problem that so many tokens are, of a type and with results of another, as chance spreads them over experts.
    /// The shared expert is not part of it.
    pub fn problem(&self, tokens: usize, types: (Activation, Output)) -> Result<Problem> {
        let ([experts, top], [k, inner]) = (self.experts, self.widths);
        let whole = Whole {
            tokens,
            top,
            width: k,
            intermediate: Intermediate::Tokens,
            scaled: [self.input_scales; 2],
            batch_invariant: false,
        };
        Problem::layer(experts, [k, inner], self.gate, types, whole)
    }

    /// A small copy with the same traits, in which a reference can be computed whole: a sixteenth of the experts and a
    /// thirty-second of the widths, about.
    pub fn scaled_down(self) -> Self {
        let block = self.scales.block();
        let width = |width: usize| (width / 32).next_multiple_of(block).max(3 * block);
        let [experts, top_k] = self.experts;
        Self {
            experts: [(experts / 16).max(top_k).max(4).next_multiple_of(self.groups.map_or(1, |g| g.count)), top_k],
            widths: self.widths.map(width),
            shared: self.shared.map(width),
            ..self
        }
    }

    /// The operands from a seed: tokens of a type, and so many distinct experts at most.
    pub fn instance(&self, tokens: usize, element: Activation, distinct: usize, seed: u64) -> Result<Instance> {
        let mut rng = Rng::with_seed(seed);
        let ([experts, top_k], [hidden, inner]) = (self.experts, self.widths);
        let mlp = |rng: &mut Rng, inner| {
            mlp(rng, self.gate, [hidden, inner], self.biases, [self.input_scales; 2], self.scales)
        };
        let pool = (0..experts.min(distinct)).map(|_| mlp(&mut rng, inner)).collect::<Result<_>>()?;
        let mut shared = None;
        if let Some(inner) = self.shared {
            let own = SharedWeights::new(mlp(&mut rng, inner)?);
            let gate: Vec<f32> = (0..hidden).map(|_| normal(&mut rng) / (hidden as f32).sqrt()).collect();
            shared = Some(if self.shared_gate { own.with_gate(gate)? } else { own });
        }
        let mut router = Router::new(self.scoring, experts, top_k)?.with_scaling(self.scaling)?;
        if matches!(self.scoring, Scoring::Sigmoid | Scoring::SqrtSoftplus) {
            router = router.with_correction((0..experts).map(|_| normal(&mut rng) / 8.0).collect::<Vec<_>>())?;
        }
        if let Some(groups) = self.groups {
            router = router.with_groups(groups)?;
        }
        let tokens = Inputs::Realistic.dense(&mut rng, tokens, hidden, element)?;
        let logits = self.logits(tokens.rows(), rng.u64(..));
        Ok(Instance { model: *self, pool, shared, tokens, router, logits })
    }

    /// A router's logits for so many tokens, from a seed.
    pub fn logits(&self, tokens: usize, seed: u64) -> Vec<f32> {
        let mut rng = Rng::with_seed(seed);
        (0..tokens * self.experts[0]).map(|_| normal(&mut rng)).collect()
    }

    /// What one row costs in an MLP with an intermediate of this width: floating-point operations, and bytes of weights
    /// once per MLP.
    pub fn cost(&self, inner: usize) -> (f64, f64) {
        let elements = ((self.gate.matrices() + 1) * self.widths[0] * inner) as f64;
        (2.0 * elements, elements * (0.5 + 1.0 / self.scales.block() as f64))
    }
}

/// An MLP with numbers as a trained layer has them; with biases of both products, and input scales of either.
pub(crate) fn mlp(
    rng: &mut Rng,
    gate: Gate,
    [hidden, inner]: [usize; 2],
    biased: bool,
    scaled: [bool; 2],
    scaling: Scaling,
) -> Result<MlpWeights<'static>> {
    let inputs = match scaling {
        Scaling::MxFp4 => Inputs::PowersOfTwo,
        Scaling::WideMxFp4 => Inputs::ManyPowers,
        _ => Inputs::Realistic,
    };
    let mut weights = |[rows, k]: [usize; 2], spreads: &[f32], scaled: bool| -> Result<Weights<'static>> {
        let alpha = inputs.alpha(Activation::F32, k);
        let mut matrix = |spread: f32| inputs.matrix(rng, rows, k, spread * alpha, false);
        let mut weights = match *spreads {
            [gate, up] => Weights::gated(matrix(gate)?, matrix(up)?)?,
            _ => Weights::plain(matrix(spreads[0])?),
        };
        if biased {
            let mut bias = || (0..rows).map(|_| normal(rng) / 2.0).collect::<Vec<f32>>();
            weights = weights.with_bias(spreads.iter().map(|_| bias()).collect::<Vec<_>>())?;
        }
        if scaled {
            weights = weights.with_input_scale((0..k).map(|_| 0.5 + rng.f32()).collect::<Vec<f32>>())?;
        }
        Ok(weights)
    };
    let up = weights([inner, hidden], &[1.0, 1.25][..gate.matrices()], scaled[0])?;
    let down = weights([hidden, inner], &[1.5], scaled[1])?;
    MlpWeights::new(up, down)?.with_intermediate_scale(0.01 + rng.f32() / 50.0)
}

impl Instance {
    /// The weights of the layer, borrowed.
    pub fn weights(&self) -> Result<ExpertWeights<'_>> {
        let experts = (0..self.model.experts[0]).map(|expert| self.pool[expert % self.pool.len()].as_borrowed());
        let weights = ExpertWeights::new(experts.collect(), self.model.gate)?;
        match &self.shared {
            Some(shared) => weights.with_shared(shared.as_borrowed()),
            None => Ok(weights),
        }
    }

    /// The tokens' type.
    pub fn element(&self) -> Activation {
        match self.tokens.values() {
            Values::F16(_) => Activation::F16,
            Values::BF16(_) => Activation::BF16,
            Values::F32(_) => Activation::F32,
        }
    }

    /// The experts of every token.
    pub fn routed(&self) -> Result<Routed> {
        self.routed_from(0, &self.logits)
    }

    /// The experts of tokens from one on, by as many logits.
    fn routed_from(&self, first: usize, logits: &[f32]) -> Result<Routed> {
        let [experts, top] = self.model.experts;
        let tokens = logits.len() / experts;
        if !self.model.looked_up {
            return self.router.route(logits, tokens);
        }
        let ids = (first..first + tokens).flat_map(|token| (0..top).map(move |at| ((token * 7 + at) % experts) as i64));
        self.router.weigh_chosen(logits, Ids::I64(&ids.collect::<Vec<_>>()), tokens)
    }

    /// One of the tokens, and its experts.
    pub fn alone(&self, token: usize) -> Result<(Dense<'_>, Routed)> {
        let (k, experts) = (self.tokens.k(), self.model.experts[0]);
        let range = token * k..(token + 1) * k;
        let values: Values<'_> = match self.tokens.values() {
            Values::F16(x) => x[range].into(),
            Values::BF16(x) => x[range].into(),
            Values::F32(x) => x[range].into(),
        };
        let routed = self.routed_from(token, &self.logits[token * experts..(token + 1) * experts])?;
        Ok((Dense::new(1, k, values, self.tokens.global())?, routed))
    }
}

/// Judges some rows of a layer's result.
pub fn check(
    reference: &LayerReference<'_, '_>,
    rows: impl Iterator<Item = usize>,
    result: &Dense<'_>,
    arithmetic: &dyn Fn(Activation) -> Arithmetic,
) -> Result<Report> {
    let output = match result.values() {
        Values::F16(_) => Output::F16,
        Values::BF16(_) => Output::BF16,
        Values::F32(_) => Output::F32,
    };
    let mut compared = Vec::new();
    for row in rows {
        compared.extend(reference.row(row, arithmetic)?.into_iter().enumerate().map(|(column, bounded)| {
            let found = value_at(result.values(), row * result.k() + column);
            Failure::judged((0, row, column), found, bounded, output)
        }));
    }
    Ok(Report::of(result.rows() * result.k(), compared.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_a_reason_and_keeps_its_traits_when_scaled_down() {
        for model in models() {
            assert!(!model.why.is_empty());
            let small = model.scaled_down();
            assert!(small.experts[0] < model.experts[0] && small.experts[1] == model.experts[1], "{}", model.name);
            let instance = small.instance(3, Activation::BF16, 2, 1).unwrap();
            assert_eq!(instance.weights().unwrap().experts().len(), small.experts[0]);
            let routed = instance.routed().unwrap();
            assert_eq!(routed.tokens(), 3);
            let (_, alone) = instance.alone(2).unwrap();
            assert!(alone.of(0).eq(routed.of(2)), "{}", model.name);
        }
    }
}
