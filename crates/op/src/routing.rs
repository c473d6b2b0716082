//! Which experts compute a token, and with which weight: from a router's logits as models do it, or as the caller says.
//!
//! | scoring | experts | weights | models |
//! |---|---|---|---|
//! | `softmax` | the k largest logits | softmax over all experts | Qwen without `norm_topk_prob` |
//! | `softmax-renorm` | the same | the same, divided by their sum | Qwen3, Mixtral |
//! | `topk-softmax` | the same | softmax of those k | gpt-oss |
//! | `sigmoid` | the k largest of sigmoid + correction, inside the best groups | sigmoid (without correction), divided by (their sum + 10⁻²⁰) | DeepSeek-V3, Kimi, GLM, MiniMax, Nemotron |
//! | `sigmoid-plain` | the same; the k largest logits where there is neither a correction nor groups | sigmoid (without correction) | the same with `norm_topk_prob` off |
//! | `sqrt-softplus` | as `sigmoid`, with √ln(1 + eˣ) in place of the sigmoid | the same, divided by (their sum + 10⁻²⁰) | DeepSeek-V4, but for its first layers |
//! | `sigmoid-input` | the k largest logits | sigmoid; it multiplies the expert's *input*, before its weights, and the output counts once | Llama-4 |
//!
//! All weights are then multiplied with the scaling factor. Softmax keeps the order of logits, so that experts are
//! chosen by logits. A sigmoid is rounded to f32 and its correction is added in f32, and so are the best two of a
//! group, before they are compared: as models do it, so that equal means the same to them and to us. Among equals the
//! lower index is taken. A weight is one rounding to f32 away from its formula. A token's experts stand in the order in
//! which they were chosen, largest first.
//!
//! A model may choose experts by something else than logits and still weigh them by these, as DeepSeek-V4's first
//! layers do, which look them up by the token's number: [`Router::weigh_chosen`]. A router that says so
//! ([`Router::with_table`]) chooses none.
//!
//! An id outside 0..E says that the expert is nobody's here: it is computed elsewhere (experts may be spread over
//! machines), or not at all. It adds nothing, and its weight is not looked at.

use std::fmt;
use std::str::FromStr;

use crate::{Adapted, Error, Result};

/// How logits become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over all experts, divided by the sum over those that were chosen.
    SoftmaxRenorm,
    /// Softmax of the logits of those that were chosen.
    TopKSoftmax,
    /// Sigmoid of each logit, divided by the sum over those that were chosen.
    Sigmoid,
    /// Sigmoid of each logit.
    SigmoidPlain,
    /// Sigmoid of each logit, which multiplies the expert's input.
    SigmoidInput,
    /// √ln(1 + eˣ) of each logit, divided by the sum over those that were chosen.
    SqrtSoftplus,
}

impl Scoring {
    /// Every scoring.
    pub const ALL: [Scoring; 7] = [
        Scoring::Softmax,
        Scoring::SoftmaxRenorm,
        Scoring::TopKSoftmax,
        Scoring::Sigmoid,
        Scoring::SigmoidPlain,
        Scoring::SigmoidInput,
        Scoring::SqrtSoftplus,
    ];

    /// What a logit becomes by itself, where that is not a softmax.
    fn score(self, logit: f32) -> f64 {
        let x = f64::from(logit);
        match self {
            Scoring::SqrtSoftplus => (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt(),
            _ => 1.0 / (1.0 + (-x).exp()),
        }
    }

    /// Whether experts may be corrected and grouped.
    fn is_corrected(self) -> bool {
        matches!(self, Scoring::Sigmoid | Scoring::SigmoidPlain | Scoring::SqrtSoftplus)
    }
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scoring::Softmax => "softmax",
            Scoring::SoftmaxRenorm => "softmax-renorm",
            Scoring::TopKSoftmax => "topk-softmax",
            Scoring::Sigmoid => "sigmoid",
            Scoring::SigmoidPlain => "sigmoid-plain",
            Scoring::SigmoidInput => "sigmoid-input",
            Scoring::SqrtSoftplus => "sqrt-softplus",
        })
    }
}

impl FromStr for Scoring {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Scoring::ALL.into_iter().find(|scoring| scoring.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "routing",
            name: name.to_owned(),
            known: "softmax, softmax-renorm, topk-softmax, sigmoid, sigmoid-plain, sigmoid-input, sqrt-softplus"
                .to_owned(),
        })
    }
}

/// Experts in equal groups, of which only the best may be chosen from: those whose best two sum highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups that there are.
    pub count: usize,
    /// Groups that may be chosen from.
    pub best: usize,
}

/// A router: what it makes of logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    experts: usize,
    top_k: usize,
    scoring: Scoring,
    correction: Vec<f32>,
    groups: Option<Groups>,
    scaling: f32,
    /// Whether a table chooses, and logits weigh.
    table: bool,
}

impl Router {
    /// A router that chooses `top_k` of so many experts.
    pub fn new(scoring: Scoring, experts: usize, top_k: usize) -> Result<Self> {
        if top_k == 0 || top_k > experts {
            return Err(Error::TopK { top_k, experts });
        }
        Ok(Self { experts, top_k, scoring, correction: Vec::new(), groups: None, scaling: 1.0, table: false })
    }

    /// The same router, with a finite number per expert that is added to its score for choosing only.
    pub fn with_correction(self, correction: impl Into<Vec<f32>>) -> Result<Self> {
        let correction = correction.into();
        if correction.len() != self.experts {
            return Err(Error::RoutingLength {
                tensor: "the router's correction",
                found: correction.len(),
                expected: format!("{} (one per expert)", self.experts),
            });
        }
        finite("the router's correction", &correction, self.experts)?;
        if !self.scoring.is_corrected() {
            return Err(Error::RoutingOption { option: "a correction", routing: self.scoring.to_string() });
        }
        Ok(Self { correction, ..self })
    }

    /// The same router, which chooses among the best groups only.
    pub fn with_groups(self, groups: Groups) -> Result<Self> {
        let Groups { count, best } = groups;
        let whole = count > 0 && self.experts.is_multiple_of(count);
        if !whole || best == 0 || best > count || best * (self.experts / count) < self.top_k {
            return Err(Error::RoutingGroups { count, best, experts: self.experts, top_k: self.top_k });
        }
        if !self.scoring.is_corrected() {
            return Err(Error::RoutingOption { option: "groups of experts", routing: self.scoring.to_string() });
        }
        Ok(Self { groups: Some(groups), ..self })
    }

    /// The same router, whose weights are multiplied with a finite number in the end.
    pub fn with_scaling(self, scaling: f32) -> Result<Self> {
        finite("the router's scaling factor", &[scaling], 1)?;
        Ok(Self { scaling, ..self })
    }

    /// The same router for a layer whose experts a table chooses: it weighs them and refuses to choose.
    pub fn with_table(self) -> Self {
        Self { table: true, ..self }
    }

    /// Whether a table chooses the experts, so that logits alone do not tell them.
    pub fn has_table(&self) -> bool {
        self.table
    }

    /// This router, if it chooses experts.
    pub fn choosing(&self) -> Result<&Self> {
        if self.table { Err(Error::RoutingTable) } else { Ok(self) }
    }

    /// How logits become weights.
    pub fn scoring(&self) -> Scoring {
        self.scoring
    }

    /// Experts that there are.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Experts that compute each token.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// What is added to scores for choosing only, a number per expert; nothing where there is no correction.
    pub fn correction(&self) -> &[f32] {
        &self.correction
    }

    /// The groups that are chosen from, if there are groups.
    pub fn groups(&self) -> Option<Groups> {
        self.groups
    }

    /// What weights are multiplied with in the end.
    pub fn scaling(&self) -> f32 {
        self.scaling
    }

    /// Routes tokens by their logits, `[tokens, experts]`. A token of which a logit is NaN gets NaN for all its
    /// weights, and one with a logit of +∞ does where weights are a softmax; experts are the first ones where a logit
    /// is NaN. A logit of −∞ is that of an expert that is not to be chosen.
    pub fn route(&self, logits: &[f32], tokens: usize) -> Result<Routed> {
        self.choosing()?.check_logits(logits, tokens)?;
        let (mut ids, mut weights) = (Vec::with_capacity(tokens * self.top_k), Vec::with_capacity(tokens * self.top_k));
        let mut scratch = Scratch::default();
        for logits in logits.chunks_exact(self.experts) {
            if logits.iter().any(|logit| logit.is_nan()) {
                ids.extend(0..self.top_k as u32);
                weights.extend(std::iter::repeat_n(f32::NAN, self.top_k));
                continue;
            }
            self.choose(logits, &mut scratch);
            let first = ids.len();
            ids.extend(scratch.chosen.iter().map(|&(_, expert)| expert));
            self.weigh(logits, &ids[first..], &mut weights);
        }
        let on_input = self.scoring == Scoring::SigmoidInput;
        Ok(Routed { top_k: self.top_k, ids, weights, on_input, adapted: None })
    }

    /// Finds a token's experts, largest first.
    fn choose(&self, logits: &[f32], scratch: &mut Scratch) {
        let Scratch { keys, chosen } = scratch;
        keys.clear();
        let by_logits = self.scoring == Scoring::SigmoidPlain && self.correction.is_empty() && self.groups.is_none();
        if self.scoring.is_corrected() && !by_logits {
            let correction = self.correction.iter().copied().chain(std::iter::repeat(0.0));
            let scores = logits.iter().map(|&logit| self.scoring.score(logit) as f32);
            keys.extend(scores.zip(correction).map(|(score, correction)| score + correction));
            self.close_groups(keys);
        } else {
            keys.extend_from_slice(logits);
        }
        chosen.clear();
        for (expert, &key) in keys.iter().enumerate() {
            // Behind those that are larger or equal: the lower index stands first among equals.
            if chosen.len() == self.top_k && chosen.last().is_some_and(|&(last, _)| last >= key) {
                continue;
            }
            let place = chosen.partition_point(|&(other, _)| other >= key);
            chosen.truncate(self.top_k - 1);
            chosen.insert(place.min(chosen.len()), (key, expert as u32));
        }
    }

    /// Takes the experts of all but the best groups out of the choice.
    fn close_groups(&self, keys: &mut [f32]) {
        let Some(Groups { count, best }) = self.groups else { return };
        let size = keys.len() / count;
        let best_two = |group: &[f32]| {
            let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for &key in group {
                second = second.max(first.min(key));
                first = first.max(key);
            }
            if group.len() == 1 { first } else { first + second }
        };
        let mut order: Vec<(f32, usize)> = keys.chunks_exact(size).map(best_two).zip(0..).collect();
        order.sort_by(|(one, _), (other, _)| other.partial_cmp(one).unwrap_or(std::cmp::Ordering::Equal));
        for &(_, group) in &order[best..] {
            keys[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
        }
    }

    /// Weighs experts that were chosen by something else than logits: ids and logits, `[tokens, top_k]` and `[tokens,
    /// experts]`, become the same ids with the weights that this router gives them.
    pub fn weigh_chosen(&self, logits: &[f32], ids: Ids<'_>, tokens: usize) -> Result<Routed> {
        self.check_logits(logits, tokens)?;
        let mut routed = Routed::given(ids, &vec![0.0; tokens * self.top_k], tokens, self.experts)?;
        let rows = logits.chunks_exact(self.experts).zip(routed.ids.chunks_exact(self.top_k));
        let mut weights = Vec::with_capacity(routed.ids.len());
        for (token, (logits, ids)) in rows.enumerate() {
            // Weights of which one expert is computed elsewhere are none that could be divided by their sum.
            if let Some(at) = ids.iter().position(|&id| id == Routed::NOBODY) {
                let found = format!("number {at} of token {token}, which is none of them");
                let expected = format!("an expert's number, 0 to {}", self.experts - 1);
                return Err(Error::Mismatch { group: 0, what: "an expert that was chosen", found, expected });
            }
            self.weigh(logits, ids, &mut weights);
        }
        routed.weights = weights;
        routed.on_input = self.scoring == Scoring::SigmoidInput;
        Ok(routed)
    }

    fn check_logits(&self, logits: &[f32], tokens: usize) -> Result<()> {
        if logits.len() == tokens * self.experts {
            return Ok(());
        }
        Err(Error::RoutingLength {
            tensor: "logits",
            found: logits.len(),
            expected: format!("{} ({tokens} tokens, {} experts)", tokens * self.experts, self.experts),
        })
    }

    /// The weights of the experts that were chosen.
    fn weigh(&self, logits: &[f32], chosen: &[u32], weights: &mut Vec<f32>) {
        let chosen = || chosen.iter().map(|&expert| logits[expert as usize]);
        let scaling = f64::from(self.scaling);
        match self.scoring {
            Scoring::Softmax | Scoring::SoftmaxRenorm | Scoring::TopKSoftmax => {
                let all = self.scoring == Scoring::Softmax;
                let largest = if all { logits.iter().copied().reduce(f32::max) } else { chosen().reduce(f32::max) };
                let largest = f64::from(largest.unwrap_or(0.0));
                let power = |logit: f32| (f64::from(logit) - largest).exp();
                let sum: f64 = if all { logits.iter().copied().map(power).sum() } else { chosen().map(power).sum() };
                weights.extend(chosen().map(|logit| (scaling * power(logit) / sum) as f32));
            }
            Scoring::Sigmoid | Scoring::SqrtSoftplus => {
                let score = |logit| f64::from(self.scoring.score(logit) as f32);
                let sum = chosen().map(score).sum::<f64>() + 1e-20;
                weights.extend(chosen().map(|logit| (scaling * score(logit) / sum) as f32));
            }
            Scoring::SigmoidPlain | Scoring::SigmoidInput => {
                weights.extend(chosen().map(|logit| (scaling * self.scoring.score(logit)) as f32));
            }
        }
    }
}

/// What choosing works in.
#[derive(Default)]
struct Scratch {
    keys: Vec<f32>,
    /// Key and expert, largest first.
    chosen: Vec<(f32, u32)>,
}

/// Refuses a tensor of rows of `width` numbers in which one is not finite.
fn finite(tensor: &'static str, values: &[f32], width: usize) -> Result<()> {
    match values.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(Error::RoutingValue { tensor, row: at / width, column: at % width, value: values[at] }),
        None => Ok(()),
    }
}

/// Expert ids as callers have them.
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    /// 32 bits, as engines hand them over.
    I32(&'a [i32]),
    /// 64 bits, as indices of tensors are.
    I64(&'a [i64]),
}

/// The experts of every token, and their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    top_k: usize,
    /// [`Routed::NOBODY`] where the expert is nobody's here.
    ids: Vec<u32>,
    weights: Vec<f32>,
    on_input: bool,
    adapted: Option<Adapted>,
}

impl Routed {
    /// The id of an expert that is nobody's here.
    pub const NOBODY: u32 = u32::MAX;

    /// Experts and weights as the caller gives them, `[tokens, top_k]` each, of so many experts that are here.
    pub fn given(ids: Ids<'_>, weights: &[f32], tokens: usize, experts: usize) -> Result<Self> {
        let count = match ids {
            Ids::I32(ids) => ids.len(),
            Ids::I64(ids) => ids.len(),
        };
        if (tokens == 0 && count != 0) || (tokens != 0 && !count.is_multiple_of(tokens)) {
            let expected = format!("a multiple of {tokens} (top-k per token)");
            return Err(Error::RoutingLength { tensor: "ids", found: count, expected });
        }
        if weights.len() != count {
            let expected = format!("{count} (as many as ids)");
            return Err(Error::RoutingLength { tensor: "weights", found: weights.len(), expected });
        }
        let here = |id: i64| u32::try_from(id).ok().filter(|&id| (id as usize) < experts).unwrap_or(Self::NOBODY);
        let ids: Vec<u32> = match ids {
            Ids::I32(ids) => ids.iter().map(|&id| here(id.into())).collect(),
            Ids::I64(ids) => ids.iter().map(|&id| here(id)).collect(),
        };
        let top_k = count.checked_div(tokens).unwrap_or(0);
        Ok(Self { top_k, ids, weights: weights.to_vec(), on_input: false, adapted: None })
    }

    /// The same, with weights that multiply the experts' inputs instead of their outputs (Llama-4).
    pub fn on_input(self) -> Self {
        Self { on_input: true, ..self }
    }

    /// The same, with an adapter beside the weights for tokens that have one.
    pub fn adapted(self, adapted: Adapted) -> Result<Self> {
        if adapted.ids().len() != self.tokens() {
            let (tensor, found, expected) =
                ("adapters", adapted.ids().len(), format!("{}, one per token", self.tokens()));
            return Err(Error::RoutingLength { tensor, found, expected });
        }
        Ok(Self { adapted: Some(adapted), ..self })
    }

    /// The adapter of every token, if any has one.
    pub fn adapters(&self) -> Option<&Adapted> {
        self.adapted.as_ref()
    }

    /// Experts per token.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len().checked_div(self.top_k).unwrap_or(0)
    }

    /// The experts, `[tokens, top_k]`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Their weights, `[tokens, top_k]`.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Whether the weights multiply inputs.
    pub fn is_on_input(&self) -> bool {
        self.on_input
    }

    /// A token's experts that are here, in order, with their weights.
    pub fn of(&self, token: usize) -> impl Iterator<Item = (usize, f32)> {
        let range = token * self.top_k..(token + 1) * self.top_k;
        let pairs = self.ids[range.clone()].iter().zip(&self.weights[range]);
        pairs.filter(|(id, _)| **id != Self::NOBODY).map(|(&id, &weight)| (id as usize, weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(scoring: Scoring, top_k: usize, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let routed = Router::new(scoring, logits.len(), top_k).unwrap().route(logits, 1).unwrap();
        (routed.ids, routed.weights)
    }

    fn near(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) / expected - 1.0).abs() < 1e-7, "{found} {expected}");
        }
    }

    fn sigmoid(logit: f32) -> f64 {
        Scoring::Sigmoid.score(logit)
    }

    const LOGITS: [f32; 5] = [0.5, 2.0, -1.0, 2.0, 1.0];

    #[test]
    fn softmax_scorings_differ_in_what_they_divide_by_and_ties_go_to_the_lower_index() {
        let powers = LOGITS.map(|x| f64::from(x).exp());
        let (all, three) = (powers.iter().sum::<f64>(), powers[1] + powers[3] + powers[4]);
        for (scoring, sum) in [(Scoring::Softmax, all), (Scoring::SoftmaxRenorm, three), (Scoring::TopKSoftmax, three)]
        {
            let (ids, weights) = routed(scoring, 3, &LOGITS);
            assert_eq!(ids, [1, 3, 4], "{scoring}");
            near(&weights, &[powers[1] / sum, powers[3] / sum, powers[4] / sum]);
        }
        assert_eq!(routed(Scoring::Softmax, 1, &LOGITS).0, [1]);
        assert_eq!(routed(Scoring::Softmax, 5, &[1.0; 5]).0, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn large_logits_overflow_nothing() {
        near(&routed(Scoring::Softmax, 2, &[3e38, -3e38, 3e38]).1, &[0.5, 0.5]);
    }

    #[test]
    fn a_correction_chooses_and_does_not_weigh() {
        let router = Router::new(Scoring::Sigmoid, 5, 2).unwrap();
        let router = router.with_correction([0.0, 0.0, 10.0, 0.0, 0.0]).unwrap().with_scaling(2.5).unwrap();
        let found = router.route(&LOGITS, 1).unwrap();
        assert_eq!(found.ids, [2, 1]);
        let [third, second] = [-1.0, 2.0].map(sigmoid);
        near(&found.weights, &[2.5 * third / (third + second), 2.5 * second / (third + second)]);
    }

    #[test]
    fn plain_sigmoids_are_divided_by_nothing() {
        let router = Router::new(Scoring::SigmoidPlain, 5, 2).unwrap();
        let corrected = router.clone().with_correction([0.0, 0.0, 10.0, 0.0, 0.0]).unwrap().with_scaling(2.5).unwrap();
        let found = corrected.route(&LOGITS, 1).unwrap();
        assert!(found.ids == [2, 1] && !found.is_on_input());
        near(&found.weights, &[2.5 * sigmoid(-1.0), 2.5 * sigmoid(2.0)]);
        assert_eq!(router.route(&[20.0, 30.0, 0.0, 0.0, 0.0], 1).unwrap().ids, [1, 0], "by logits");
    }

    #[test]
    fn only_the_groups_whose_best_two_sum_highest_are_chosen_from() {
        // The best expert of all stands in a group whose second is bad.
        let logits = [3.0, -9.0, 2.0, 1.9, -9.0, -9.0, 1.0, 2.1];
        let router = Router::new(Scoring::Sigmoid, 8, 2).unwrap();
        let ids = |best| router.clone().with_groups(Groups { count: 4, best }).unwrap().route(&logits, 1).unwrap().ids;
        assert_eq!(ids(1), [2, 3]);
        assert_eq!(ids(2), [7, 2]);
        assert_eq!(ids(4), [0, 7]);
    }

    #[test]
    fn scores_that_f32_does_not_tell_apart_are_equal() {
        assert_eq!(routed(Scoring::Sigmoid, 1, &[20.0, 30.0]).0, [0]);
    }

    #[test]
    fn the_root_of_a_softplus_is_chosen_by_and_divided_as_a_sigmoid_is() {
        let score = |x: f64| (1.0 + x.exp()).ln().sqrt();
        let router = Router::new(Scoring::SqrtSoftplus, 5, 2).unwrap().with_scaling(1.5).unwrap();
        let found = router.route(&LOGITS, 1).unwrap();
        assert_eq!(found.ids, [1, 3]);
        near(&found.weights, &[0.75, 0.75]);
        let corrected = router.with_correction([0.0, 0.0, 10.0, 0.0, 0.0]).unwrap();
        let found = corrected.route(&LOGITS, 1).unwrap();
        assert_eq!(found.ids, [2, 1]);
        let sum = score(-1.0) + score(2.0);
        near(&found.weights, &[1.5 * score(-1.0) / sum, 1.5 * score(2.0) / sum]);
        // Far out the exponential is lost beside one, or beyond every number: neither may be.
        near(&routed(Scoring::SqrtSoftplus, 2, &[1e4, -40.0]).1, &[1.0, (-20f64).exp() / 100.0]);
    }

    #[test]
    fn experts_that_a_table_has_chosen_are_weighed_as_if_logits_had() {
        for scoring in Scoring::ALL {
            let router = Router::new(scoring, 5, 3).unwrap().with_scaling(2.0).unwrap();
            let chosen = router.route(&LOGITS, 1).unwrap();
            let ids: Vec<i64> = chosen.ids.iter().map(|&id| id.into()).collect();
            assert_eq!(router.weigh_chosen(&LOGITS, Ids::I64(&ids), 1).unwrap(), chosen, "{scoring}");
        }
        let router = Router::new(Scoring::SqrtSoftplus, 5, 2).unwrap().with_table();
        let error = router.route(&LOGITS, 1).unwrap_err().to_string();
        assert!(error.contains("a table chooses"), "{error}");
        let found = router.weigh_chosen(&[LOGITS; 2].concat(), Ids::I32(&[4, 2, 0, 1]), 2).unwrap();
        assert_eq!(found.ids, [4, 2, 0, 1]);
        let score = |x: f64| (1.0 + x.exp()).ln().sqrt();
        near(&found.weights[..1], &[score(1.0) / (score(1.0) + score(-1.0))]);
        let error = router.weigh_chosen(&LOGITS, Ids::I32(&[4, 5]), 1).unwrap_err().to_string();
        assert!(error.contains("0 to 4"), "{error}");
        assert!(router.weigh_chosen(&LOGITS, Ids::I32(&[4]), 1).is_err(), "one expert, where two are asked for");
    }

    #[test]
    fn llama_4_weighs_inputs_by_a_sigmoid_that_nothing_divides() {
        let routed = Router::new(Scoring::SigmoidInput, 5, 1).unwrap().route(&LOGITS, 1).unwrap();
        assert!(routed.is_on_input() && routed.ids == [1]);
        near(&routed.weights, &[sigmoid(2.0)]);
    }

    #[test]
    fn ids_outside_are_nobodys_whatever_their_weight() {
        let (ids, weights) = ([0, -1, 4, 3], [0.5, f32::NAN, f32::INFINITY, 0.25]);
        let found = Routed::given(Ids::I32(&ids), &weights, 2, 4).unwrap();
        assert_eq!(found.ids(), [0, Routed::NOBODY, Routed::NOBODY, 3]);
        assert_eq!(found.of(0).collect::<Vec<_>>(), [(0, 0.5)]);
        assert_eq!(found.of(1).collect::<Vec<_>>(), [(3, 0.25)]);
        let wide = Routed::given(Ids::I64(&[1 << 32, 2]), &[1.0, 1.0], 2, 4).unwrap();
        assert_eq!(wide.ids(), [Routed::NOBODY, 2]);
    }

    #[test]
    fn a_logit_that_is_nan_spoils_the_weights_of_its_token_alone() {
        for scoring in Scoring::ALL {
            let router = Router::new(scoring, 5, 2).unwrap();
            let mut logits = [LOGITS; 3].concat();
            logits[7] = f32::NAN;
            let (found, whole) = (router.route(&logits, 3).unwrap(), router.route(&LOGITS, 1).unwrap());
            assert!(found.weights[2..4].iter().all(|weight| weight.is_nan()), "{scoring}");
            assert_eq!((&found.ids[..2], &found.weights[..2]), (&whole.ids[..], &whole.weights[..]));
            assert_eq!((&found.ids[4..], &found.weights[4..]), (&whole.ids[..], &whole.weights[..]));
        }
    }

    #[test]
    fn an_expert_with_a_logit_of_minus_infinity_is_not_chosen_and_weighs_nothing() {
        for scoring in Scoring::ALL {
            let masked = [0.5, f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
            let (ids, weights) = routed(scoring, 3, &masked);
            assert_eq!(ids[..2], [2, 0], "{scoring}");
            assert!(weights[0] > weights[1] && weights[2] == 0.0, "{scoring}: {weights:?}");
        }
        let (_, weights) = routed(Scoring::Softmax, 2, &[f32::INFINITY, 0.0, 1.0]);
        assert!(weights.iter().any(|weight| weight.is_nan()), "as a softmax over it is: {weights:?}");
    }

    #[test]
    fn what_cannot_be_routed_is_refused_and_named() {
        for top_k in [0, 6] {
            assert!(matches!(Router::new(Scoring::Softmax, 5, top_k), Err(Error::TopK { .. })));
        }
        let router = || Router::new(Scoring::Sigmoid, 4, 3).unwrap();
        let refusals = [
            (router().route(&[0.0; 7], 2).unwrap_err(), "logits"),
            (router().with_correction([0.0; 3]).unwrap_err(), "correction"),
            (router().with_scaling(f32::INFINITY).unwrap_err(), "scaling"),
            (router().with_groups(Groups { count: 3, best: 1 }).unwrap_err(), "3 groups"),
            (router().with_groups(Groups { count: 2, best: 1 }).unwrap_err(), "top-k"),
            (Router::new(Scoring::Softmax, 4, 1).unwrap().with_correction([0.0; 4]).unwrap_err(), "softmax"),
            (Routed::given(Ids::I32(&[0; 5]), &[0.0; 5], 2, 4).unwrap_err(), "ids"),
            (Routed::given(Ids::I32(&[0; 4]), &[0.0; 5], 2, 4).unwrap_err(), "weights"),
        ];
        for (error, word) in refusals {
            assert!(error.to_string().contains(word), "{error} says nothing of {word}");
        }
    }

    #[test]
    fn names_read_back_as_themselves() {
        for scoring in Scoring::ALL {
            assert_eq!(scoring.to_string().parse::<Scoring>().unwrap(), scoring);
        }
        assert!("hash".parse::<Scoring>().is_err());
    }
}
