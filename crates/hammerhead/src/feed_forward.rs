//! From a whole feed-forward layer of a model on disk to the weights and the router of the operation.
//!
//! `format::checkpoint` reads what is stored; here it becomes what is computed. What a model leaves open (a gate that
//! it does not declare, a rule of routing that is not known) must be said, and what is not computed is refused by name.

use format::checkpoint::{FeedForward, Linear, Projections, RoutingRule, Score};
use op::{Error, ExpertWeights, Gate, Groups, MlpWeights, Result, Router, Scoring, SharedWeights, Weights};

use crate::checkpoint::declared_gate;

/// The weights of a layer's experts (of its one MLP, where it has no experts) and of the one that sees every token.
/// Without a `gate`, the model's own is taken.
pub fn expert_weights(layer: FeedForward<'_>, gate: Option<Gate>) -> Result<ExpertWeights<'_>> {
    let FeedForward { gate: declared, experts, shared, shared_gate, .. } = layer;
    let gate = gate.map_or_else(|| declared_gate(&declared), Ok)?;
    let experts = experts.into_iter().map(mlp_weights).collect::<Result<Vec<_>>>()?;
    let weights = ExpertWeights::new(experts, gate)?;
    let mut shared = shared.into_iter();
    let Some(first) = shared.next() else { return Ok(weights) };
    if let Some(second) = shared.next() {
        return Err(Error::Mlp {
            what: "the layer",
            found: format!("{:?} and {:?} beside its experts", first.name, second.name),
            expected: "one MLP that sees every token, or none".to_owned(),
        });
    }
    let first = SharedWeights::new(mlp_weights(first)?);
    weights.with_shared(match shared_gate {
        Some(gate) => first.with_gate(gate)?,
        None => first,
    })
}

/// The router of a layer, if the model has one and its rule is known: logits are made by the caller, with
/// [`format::checkpoint::Router::weight`] and its bias. Where a table chooses the experts, the router weighs them.
pub fn router(layer: &FeedForward<'_>) -> Result<Option<Router>> {
    let Some(stored) = &layer.router else { return Ok(None) };
    let Some(RoutingRule { score, top, renormalise, groups, scaling }) = stored.rule else { return Ok(None) };
    let scoring = match (score, renormalise) {
        (Score::Softmax, false) => Scoring::Softmax,
        (Score::Softmax, true) => Scoring::SoftmaxRenorm,
        (Score::SoftmaxOfChosen, _) => Scoring::TopKSoftmax,
        (Score::Sigmoid, true) => Scoring::Sigmoid,
        (Score::Sigmoid, false) => Scoring::SigmoidPlain,
        (Score::SigmoidOnInput, _) => Scoring::SigmoidInput,
        (Score::SqrtSoftplus, true) => Scoring::SqrtSoftplus,
        _ => return Ok(None),
    };
    let mut router = Router::new(scoring, layer.experts.len(), top)?.with_scaling(scaling)?;
    if let Some([count, best]) = groups {
        router = router.with_groups(Groups { count, best })?;
    }
    if stored.table.is_some() {
        return Ok(Some(router.with_table()));
    }
    match &stored.correction {
        Some(correction) => router.with_correction(correction.clone()).map(Some),
        None => Ok(Some(router)),
    }
}

/// The weights of one linear layer, with its bias and what tokens are multiplied with first.
pub fn linear_weights(linear: Linear<'_>) -> Result<Weights<'_>> {
    let mut weights = Weights::plain(linear.matrix);
    if let Some(scale) = linear.pre_scale {
        weights = weights.with_input_scale(scale)?;
    }
    match linear.bias {
        Some(bias) => weights.with_bias([bias]),
        None => Ok(weights),
    }
}

fn gated_weights<'a>(gate: Linear<'a>, up: Linear<'a>) -> Result<Weights<'a>> {
    if gate.pre_scale != up.pre_scale {
        return Err(Error::Mlp {
            what: "the MLP",
            found: "a gate projection and an up projection that want tokens multiplied differently".to_owned(),
            expected: "one pre_quant_scale for both, since both see the same tokens".to_owned(),
        });
    }
    let mut weights = Weights::gated(gate.matrix, up.matrix)?;
    if let Some(scale) = gate.pre_scale {
        weights = weights.with_input_scale(scale)?;
    }
    let n = weights.n();
    // Where one of the two has a bias, the other's is zero.
    match (gate.bias, up.bias) {
        (None, None) => Ok(weights),
        (gate, up) => weights.with_bias([gate, up].map(|bias| bias.unwrap_or_else(|| vec![0.0; n]))),
    }
}

/// The weights of one MLP.
pub fn mlp_weights(projections: Projections<'_>) -> Result<MlpWeights<'_>> {
    let Projections { gate, up, down, .. } = projections;
    joined_weights(gate, Some(up), down)
}

/// The weights of an MLP made of these projections: gate, up and down, or up and down where nothing gates.
pub fn joined_weights<'a>(first: Linear<'a>, second: Option<Linear<'a>>, down: Linear<'a>) -> Result<MlpWeights<'a>> {
    let input_scale = down.input_scale;
    let first = match second {
        Some(second) => gated_weights(first, second)?,
        None => linear_weights(first)?,
    };
    let weights = MlpWeights::new(first, linear_weights(down)?)?;
    match input_scale {
        Some(scale) => weights.with_intermediate_scale(scale),
        None => Ok(weights),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use format::checkpoint::Checkpoint;
    use format::{Dense, GlobalScale, Matrix};
    use op::routing::Ids;

    use super::*;

    fn model(name: &str) -> Checkpoint {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../format/tests/data");
        Checkpoint::open(data.join(name)).unwrap()
    }

    #[test]
    fn experts_and_router_of_a_model_become_weights_and_a_rule() {
        let model = model("modelopt_qwen3_moe");
        let layer = model.feed_forward(0).unwrap();
        let router = router(&layer).unwrap().unwrap();
        assert_eq!((router.scoring(), router.experts(), router.top_k()), (Scoring::Softmax, 4, 2));
        let scale = layer.experts[2].down.input_scale.unwrap();
        let weights = expert_weights(layer, None).unwrap();
        assert_eq!((weights.experts().len(), weights.gate()), (4, Gate::Silu));
        assert_eq!(weights.experts()[2].widths(), [64, 48, 64]);
        assert_eq!(weights.experts()[2].intermediate_scale(), scale);
    }

    #[test]
    fn a_layer_with_a_table_weighs_experts_and_chooses_none() {
        let model = model("deepseek_v4");
        let [first, second] = [0, 1].map(|layer| model.routed_experts(layer).unwrap());
        let [table, choice] = [&first, &second].map(|layer| router(layer).unwrap().unwrap());
        assert_eq!((table.scoring(), table.scaling(), table.has_table()), (Scoring::SqrtSoftplus, 1.5, true));
        let logits = [0.5f32, -1.0, 2.0];
        assert!(table.route(&logits, 1).is_err());
        let root = |logit: f32| f64::from(logit).exp().ln_1p().sqrt();
        let [one, other] = [root(2.0), root(-1.0)];
        let weights = table.weigh_chosen(&logits, Ids::I64(&[2, 1]), 1).unwrap();
        for (found, expected) in weights.weights().iter().zip([one, other].map(|score| 1.5 * score / (one + other))) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found}, not {expected}");
        }
        assert_eq!((choice.has_table(), choice.correction().len()), (false, 3));
        assert_eq!(choice.route(&logits, 1).unwrap().weights().len(), 2);
        let weights = expert_weights(first, None).unwrap();
        assert_eq!((weights.experts().len(), weights.gate()), (3, Gate::SiluLimited { limit: 10.0 }));
    }

    #[test]
    fn a_shared_expert_comes_along() {
        let model = model("modelopt_llama4");
        let weights = expert_weights(model.feed_forward(0).unwrap(), None).unwrap();
        assert_eq!(weights.shared().unwrap().mlp().widths(), [96, 32, 96]);
    }

    fn linear(rows: usize, k: usize) -> Linear<'static> {
        let matrix = Matrix::new(rows, k, vec![0x22; rows * k / 2], vec![0x38; rows * k / 16], 1.0).unwrap();
        Linear { matrix, bias: None, pre_scale: None, input_scale: None }
    }

    fn layer(stored: Option<format::checkpoint::Router>, shared: usize) -> FeedForward<'static> {
        let mlp = |name: &str| Projections {
            name: name.to_owned(),
            gate: linear(16, 32),
            up: Linear { bias: Some(vec![2.0; 16]), ..linear(16, 32) },
            down: Linear {
                bias: Some(vec![3.0; 32]),
                pre_scale: Some(vec![0.5; 16]),
                input_scale: Some(GlobalScale::Divides(8.0)),
                ..linear(32, 16)
            },
        };
        FeedForward {
            gate: format::checkpoint::GateFunction::Silu,
            experts: vec![mlp("e0"), mlp("e1")],
            shared: (0..shared).map(|number| mlp(&format!("shared{number}"))).collect(),
            shared_gate: Some(vec![1.0; 32]),
            router: stored,
        }
    }

    #[test]
    fn biases_and_scales_stand_where_they_belong() {
        let weights = expert_weights(layer(None, 1), Some(Gate::GeluTanh)).unwrap();
        assert_eq!(weights.gate(), Gate::GeluTanh);
        let expert = &weights.experts()[1];
        assert_eq!((expert.up().bias(0), expert.up().bias(1)), (Some(&[0.0; 16][..]), Some(&[2.0; 16][..])));
        assert_eq!((expert.down().bias(0), expert.down().input_scale()), (Some(&[3.0; 32][..]), Some(&[0.5; 16][..])));
        assert_eq!(expert.intermediate_scale(), GlobalScale::Divides(8.0));
        assert_eq!(weights.shared().unwrap().gate(), Some(&[1.0; 32][..]));
    }

    #[test]
    fn two_that_see_every_token_are_refused_by_name() {
        let error = expert_weights(layer(None, 2), None).unwrap_err().to_string();
        assert!(error.contains("shared0") && error.contains("shared1"), "{error}");
    }

    #[test]
    fn a_rule_becomes_a_router_and_what_is_not_known_none() {
        let rule = |rule| {
            let weight = Dense::new(2, 32, vec![0f32; 64], 1.0).unwrap();
            let correction = Some(vec![0.25, -0.25]);
            router(&layer(Some(format::checkpoint::Router { weight, bias: None, correction, table: None, rule }), 0))
        };
        let sigmoid =
            RoutingRule { score: Score::Sigmoid, top: 1, renormalise: true, groups: Some([2, 1]), scaling: 2.5 };
        let found = rule(Some(sigmoid)).unwrap().unwrap();
        assert_eq!((found.scoring(), found.top_k()), (Scoring::Sigmoid, 1));
        let routed = found.route(&[0.0, 0.1], 1).unwrap();
        assert_eq!(routed.of(0).collect::<Vec<_>>(), [(0, 2.5)], "the correction chooses, and scaling is applied");
        let plain = rule(Some(RoutingRule { renormalise: false, ..sigmoid })).unwrap().unwrap();
        assert_eq!(plain.scoring(), Scoring::SigmoidPlain);
        assert!(rule(None).unwrap().is_none());
        assert!(rule(Some(RoutingRule { top: 3, ..sigmoid })).is_err(), "more than there are");
    }
}
