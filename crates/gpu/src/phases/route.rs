//! Which experts a token goes to, and with which weights: from a row of logits, in single precision.
//!
//! A warp has a token, and a lane every 32nd of its logits. Numbers are compared as keys, whole numbers in the same
//! order, of which the warp finds the largest in one instruction; equal ones are told apart by the lower index. What
//! has been taken gets the key 0, which no number has. A logit that is NaN counts as less than every other. Whatever
//! the logits are, a token's experts are different ones; but sums over numbers that are not finite are none either, and
//! spoil the weights of their token alone.
//!
//! Softmax rises with the logit, so experts are chosen by logits there, and so are those whose sigmoid multiplies their
//! input: rounding makes no ties that way. Where sigmoids, or roots of softplus, are divided by their sum, they are
//! also what is compared, as models do it.

use ptx::instr::{LoadOrder, ReduceOp, ShuffleMode};
use ptx::{Addr, Builder, Error, F32, Global, Reg, S32, U32, U64};

use op::routing::{Router, Scoring};

use super::exponential;
use crate::products::MOST_EXPERTS;

/// The most experts of a token: a lane each.
pub const MOST_TOP: u32 = 32;
/// The most groups of experts: a lane each.
const MOST_GROUPS: u32 = 32;
/// What sums of sigmoids are raised by before something is divided by them.
const LEAST_SUM: f32 = 1e-20;

/// What a logit becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Score {
    /// Its share of the sum of all exponentials.
    Softmax,
    /// Its sigmoid.
    Sigmoid,
    /// The root of its softplus, √ln(1 + eˣ).
    SqrtSoftplus,
}

/// Groups of experts of which only some are looked at: those whose two best scores are the largest together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grouped {
    /// Groups of neighbouring experts.
    pub groups: u32,
    /// How many of them are looked at.
    pub kept: u32,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteSpec {
    /// Experts.
    pub experts: u32,
    /// Experts of a token.
    pub top: u32,
    /// What logits become.
    pub score: Score,
    /// Whether a token's weights are divided by their sum.
    pub renormalised: bool,
    /// Whether experts are chosen by their scores plus a correction each; weights are without it.
    pub corrected: bool,
    /// Whether experts are chosen inside some of their groups.
    pub grouped: Option<Grouped>,
}

impl RouteSpec {
    /// What a router does, apart from its numbers.
    pub fn of(router: &Router) -> Self {
        let scoring = router.scoring();
        let score = match scoring {
            Scoring::Softmax | Scoring::SoftmaxRenorm | Scoring::TopKSoftmax => Score::Softmax,
            Scoring::Sigmoid | Scoring::SigmoidPlain | Scoring::SigmoidInput => Score::Sigmoid,
            Scoring::SqrtSoftplus => Score::SqrtSoftplus,
        };
        RouteSpec {
            experts: router.experts() as u32,
            top: router.top_k() as u32,
            score,
            // Softmax divided by the sum over the chosen ones is the softmax of those.
            renormalised: !matches!(scoring, Scoring::Softmax | Scoring::SigmoidPlain | Scoring::SigmoidInput),
            corrected: !router.correction().is_empty(),
            grouped: router.groups().map(|groups| Grouped { groups: groups.count as u32, kept: groups.best as u32 }),
        }
    }

    /// Whether such experts can be chosen.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !(1..=MOST_EXPERTS).contains(&self.experts) {
            return refuse("experts", self.experts, "1 to 1024");
        }
        if !(1..=MOST_TOP.min(self.experts)).contains(&self.top) {
            return refuse("experts of a token", self.top, "1 to 32, and no more than there are");
        }
        if (self.corrected || self.grouped.is_some()) && self.score == Score::Softmax {
            return refuse(
                "corrections or groups of experts",
                1,
                "scores of one logit each: nobody corrects or groups a softmax",
            );
        }
        let Some(Grouped { groups, kept }) = self.grouped else { return Ok(()) };
        if !(1..=MOST_GROUPS).contains(&groups) || !self.experts.is_multiple_of(groups) || self.experts < 2 * groups {
            return refuse("groups of experts", groups, "1 to 32, all of one size, two experts or more in each");
        }
        if !(1..=groups).contains(&kept) || kept * (self.experts / groups) < self.top {
            return refuse(
                "groups that are looked at",
                kept,
                "enough for a token's experts, and no more than there are",
            );
        }
        Ok(())
    }

    /// Experts of a lane.
    fn places(&self) -> u32 {
        self.experts.div_ceil(32)
    }

    /// Whether experts are chosen by their scores, and not by the logits.
    fn by_score(&self) -> bool {
        self.corrected || self.grouped.is_some() || (self.score != Score::Softmax && self.renormalised)
    }
}

/// Where ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ids {
    /// Memory, 32 bits each.
    Narrow,
    /// Memory, 64 bits each.
    Wide,
    /// Logits, of which they are chosen here: where tokens are few.
    Routed(RouteSpec),
    /// Nowhere: there is one expert, and it computes every token.
    Everyone,
}

/// Where a routing's numbers are.
#[derive(Clone, Copy)]
pub(crate) struct Logits {
    spec: RouteSpec,
    /// How they are read.
    order: LoadOrder,
    logits: Reg<U64>,
    correction: Option<Reg<U64>>,
    /// What all weights are multiplied with.
    scale: Reg<F32>,
}

/// A token's experts: one for each of the first lanes.
pub(crate) struct Routed {
    pub expert: Reg<U32>,
    pub weight: Reg<F32>,
}

impl Logits {
    /// Declares the arguments: logits, the correction if there is one, and what weights are multiplied with.
    pub fn declare(k: &mut Builder, spec: RouteSpec) -> Self {
        Logits {
            spec,
            order: LoadOrder::Weak,
            logits: k.pointer("logits"),
            correction: spec.corrected.then(|| k.pointer("correction")),
            scale: k.param("scale"),
        }
    }

    /// The same numbers, read in some order.
    pub fn read_as(self, order: LoadOrder) -> Self {
        Logits { order, ..self }
    }

    /// The experts of a token. All lanes of a warp have the same one.
    pub fn route(&self, k: &mut Builder, token: Reg<U32>, lane: Reg<U32>) -> Routed {
        let row = self.row(k, token);
        let expert = self.choose(k, row, lane);
        let weight = k.phase("weigh", |k| self.weigh(k, row, expert, lane));
        Routed { expert, weight }
    }

    /// Where a token's logits are.
    pub fn row(&self, k: &mut Builder, token: Reg<U32>) -> Reg<U64> {
        k.mul_wide_add(token, 4 * self.spec.experts, self.logits)
    }

    /// The experts of a token whose logits are there.
    pub fn choose(&self, k: &mut Builder, row: Reg<U64>, lane: Reg<U32>) -> Reg<U32> {
        let spec = self.spec;
        let keys = k.phase("score", |k| self.keys(k, row, lane));
        if let Some(grouped) = spec.grouped {
            k.phase("group", |k| keep_groups(k, spec, grouped, &keys, lane));
        }
        let expert = k.variable(0);
        k.phase("choose", |k| {
            k.repeat(spec.top, |k, turn| {
                let (_, best) = best(k, &keys, lane);
                let mine = k.eq(lane, turn);
                k.when(mine, |k| k.set(expert, best));
                take(k, &keys, best, lane);
            });
        });
        expert
    }

    fn logit(&self, k: &mut Builder, row: Reg<U64>, expert: Reg<U32>) -> Reg<F32> {
        let at = k.mul_wide_add(expert, 4, row);
        let [logit] = k.load_as(self.order, Addr::<Global>::of(at));
        logit
    }

    /// A lane's experts as keys; 0 where there is none.
    fn keys(&self, k: &mut Builder, row: Reg<U64>, lane: Reg<U32>) -> Vec<Reg<U32>> {
        let spec = self.spec;
        let load = |place| {
            let expert = k.add(lane, 32 * place);
            let exists = k.lt(expert, spec.experts);
            let last = k.min(expert, spec.experts - 1);
            let logit = self.logit(k, row, last);
            let correction = self.correction.map(|at| {
                let at = k.mul_wide_add(last, 4, at);
                k.load::<F32, Global>(Addr::of(at))
            });
            (exists, logit, correction)
        };
        let loaded: Vec<_> = (0..spec.places()).map(load).collect();
        let keyed = loaded.into_iter().map(|(exists, logit, correction)| {
            let mut value = logit;
            if spec.by_score() {
                value = alone(k, spec.score, logit);
            }
            if let Some(correction) = correction {
                value = k.add(value, correction);
            }
            let key = key(k, value);
            let key = k.select(exists, key, 0);
            k.variable(key)
        });
        keyed.collect()
    }

    /// The weights of the chosen experts.
    pub fn weigh(&self, k: &mut Builder, row: Reg<U64>, expert: Reg<U32>, lane: Reg<U32>) -> Reg<F32> {
        let spec = self.spec;
        let logit = self.logit(k, row, expert);
        let chosen = k.lt(lane, spec.top);
        let score = match spec.score {
            Score::Sigmoid | Score::SqrtSoftplus => alone(k, spec.score, logit),
            Score::Softmax => {
                let most = k.broadcast(logit);
                let below = k.sub(logit, most);
                exponential::exponential(k, below)
            }
        };
        let sum = match (spec.score, spec.renormalised) {
            (Score::Sigmoid | Score::SqrtSoftplus, false) => None,
            (Score::Softmax, false) => {
                let most = k.broadcast(logit);
                Some(self.sum_of_all(k, row, most, lane))
            }
            (_, true) => {
                let counted = k.select(chosen, score, 0.0);
                Some(warp_sum(k, counted))
            }
        };
        let weight = match sum {
            None => score,
            Some(sum) => {
                let sum = if spec.score != Score::Softmax { k.add(sum, LEAST_SUM) } else { sum };
                let inverse = k.rcp(sum);
                k.mul(score, inverse)
            }
        };
        k.mul(weight, self.scale)
    }

    /// The sum of the exponentials of all logits, less the largest.
    fn sum_of_all(&self, k: &mut Builder, row: Reg<U64>, most: Reg<F32>, lane: Reg<U32>) -> Reg<F32> {
        let mut sum = k.variable(0.0);
        for place in 0..self.spec.places() {
            let expert = k.add(lane, 32 * place);
            let exists = k.lt(expert, self.spec.experts);
            let last = k.min(expert, self.spec.experts - 1);
            let logit = self.logit(k, row, last);
            let below = k.sub(logit, most);
            let power = exponential::exponential(k, below);
            let power = k.select(exists, power, 0.0);
            sum = k.add(sum, power);
        }
        warp_sum(k, sum)
    }
}

/// A number's bits as a whole number in the same order. −0 is 0; NaN is less than everything, and 0 is nobody's.
fn key(k: &mut Builder, value: Reg<F32>) -> Reg<U32> {
    let value = k.add(value, 0.0);
    let bits = value.cast::<U32>();
    let negative = k.shr(value.cast::<S32>(), 31);
    let flipped = k.or(negative.cast::<U32>(), 0x8000_0000u32);
    let key = k.xor(bits, flipped);
    let number = k.eq(value, value);
    k.select(number, key, 1)
}

/// The number of a key.
fn value(k: &mut Builder, key: Reg<U32>) -> Reg<F32> {
    let positive = k.shr(key.cast::<S32>(), 31);
    let kept = k.not(positive.cast::<U32>());
    let flipped = k.or(kept, 0x8000_0000u32);
    k.xor(key, flipped).cast()
}

/// The largest key of the warp, and the lowest expert that has it. `first` is the expert of the lane's first key.
fn best(k: &mut Builder, keys: &[Reg<U32>], first: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
    let (mut top, mut expert) = (keys[0], first);
    for (place, &key) in keys.iter().enumerate().skip(1) {
        let better = k.gt(key, top);
        let this = k.add(first, 32 * place as u32);
        top = k.select(better, key, top);
        expert = k.select(better, this, expert);
    }
    let most = k.reduce(ReduceOp::Max, top);
    let candidate = k.eq(top, most);
    let expert = k.select(candidate, expert, u32::MAX);
    (most, k.reduce(ReduceOp::Min, expert))
}

/// Takes an expert out.
fn take(k: &mut Builder, keys: &[Reg<U32>], expert: Reg<U32>, first: Reg<U32>) {
    let further = k.sub(expert, first);
    for (place, &key) in keys.iter().enumerate() {
        let taken = k.eq(further, 32 * place as u32);
        k.when(taken, |k| k.set(key, 0));
    }
}

/// Takes out the experts of all groups but the best.
fn keep_groups(k: &mut Builder, spec: RouteSpec, Grouped { groups, kept }: Grouped, keys: &[Reg<U32>], lane: Reg<U32>) {
    let size = spec.experts / groups;
    let group_of: Vec<Reg<U32>> = (0..keys.len() as u32)
        .map(|place| {
            let expert = k.add(lane, 32 * place);
            k.div(expert, size)
        })
        .collect();
    // Lane g has group g.
    let mine = k.variable(0);
    for group in 0..groups {
        // The group's experts are of some of the lanes' places only.
        let places = group * size / 32..((group + 1) * size).div_ceil(32);
        let first = k.add(lane, 32 * places.start);
        let inside: Vec<Reg<U32>> = places
            .map(|place| {
                let (key, of) = (keys[place as usize], group_of[place as usize]);
                let inside = k.eq(of, group);
                let key = k.select(inside, key, 0);
                k.variable(key)
            })
            .collect();
        let (most, expert) = best(k, &inside, first);
        take(k, &inside, expert, first);
        let (next, _) = best(k, &inside, first);
        let (most, next) = (value(k, most), value(k, next));
        let both = k.add(most, next);
        let key = key(k, both);
        let own = k.eq(lane, group);
        k.when(own, |k| k.set(mine, key));
    }
    let chosen = k.variable(0);
    k.repeat(kept, |k, _| {
        let (_, group) = best(k, &[mine], lane);
        let one = k.variable(1);
        let bit = k.shl(one, group);
        let more = k.or(chosen, bit);
        k.set(chosen, more);
        take(k, &[mine], group, lane);
    });
    for (&key, of) in keys.iter().zip(group_of) {
        let bit = k.shr(chosen, of);
        let bit = k.and(bit, 1);
        let out = k.eq(bit, 0);
        k.when(out, |k| k.set(key, 0));
    }
}

/// A number's sigmoid; NaN stays that.
pub(crate) fn sigmoid(k: &mut Builder, x: Reg<F32>) -> Reg<F32> {
    let sigmoid = exponential::sigmoid(k, x);
    let number = k.eq(x, x);
    k.select(number, sigmoid, x)
}

/// What becomes of a logit by itself; NaN stays that.
fn alone(k: &mut Builder, score: Score, logit: Reg<F32>) -> Reg<F32> {
    match score {
        Score::SqrtSoftplus => sqrt_softplus(k, logit),
        Score::Sigmoid | Score::Softmax => sigmoid(k, logit),
    }
}

/// √ln(1 + eˣ). With t = e^−|x| it is √(x + ln(1 + t)) above zero and e^(x/2)·√(ln(1 + t)/t) below, where ln(1 + t)
/// would lose all its digits. ln(1 + t) is 2·artanh(t/(2 + t)): of that series, whose argument is at most a third,
/// eight terms leave less than 10⁻⁹.
fn sqrt_softplus(k: &mut Builder, x: Reg<F32>) -> Reg<F32> {
    const TERMS: u32 = 8;
    let away = k.abs(x);
    let half = k.mul(away, -0.5);
    let root = exponential::exponential(k, half);
    let t = k.mul(root, root);
    let below = k.add(t, 2.0);
    let inverse = k.rcp(below);
    let z = k.mul(t, inverse);
    let square = k.mul(z, z);
    let last = 1.0 / (2 * TERMS - 1) as f32;
    let mut series = k.variable(last);
    for term in (0..TERMS - 1).rev() {
        series = k.fma(square, series, 1.0 / (2 * term + 1) as f32);
    }
    let twice = k.mul(inverse, 2.0);
    let ratio = k.mul(series, twice);
    let whole = k.fma(t, ratio, away);
    let (small, large) = (k.sqrt(ratio), k.sqrt(whole));
    let small = k.mul(root, small);
    let positive = k.gt(x, 0.0);
    let score = k.select(positive, large, small);
    let number = k.eq(x, x);
    k.select(number, score, x)
}

/// The sum over a warp's lanes, the same in each: every lane adds the same pairs.
pub(crate) fn warp_sum(k: &mut Builder, value: Reg<F32>) -> Reg<F32> {
    [16, 8, 4, 2, 1].into_iter().fold(value, |sum, distance| {
        let other = k.shuffle(ShuffleMode::Butterfly, sum, distance);
        k.add(sum, other)
    })
}
