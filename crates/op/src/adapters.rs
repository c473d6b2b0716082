//! Low-rank adapters (LoRA) beside packed weights: what they add, where, and how far a backend may be from it.
//!
//! An adapter has for some matrices W `[n, k]` of a layer a pair A `[r, k]`, B `[n, r]` with r of at most
//! [`MOST_RANK`], and one factor, its scaling (peft's α/r). Each token has one adapter, or none. Where it has one, what
//! its product with W becomes is
//!
//! ```text
//! t = scaling·(A·x)          f32: every product and every sum rounds, in any order; so does the scaling
//! v = (α·Σ x·W + b) + B·t    f32: B·t is summed by itself, and added last, with one rounding
//! ```
//!
//! and v goes on to where the product would have gone: gate and up to the gate, down to the weighted sum over a token's
//! experts or to the cast. A is given what its matrix is given, but for an input scale (AWQ), which belongs to the
//! packed weights: the tokens, times their weights where these multiply inputs, and what stands between the products,
//! rounded as the layer's [`Intermediate`](crate::Intermediate) says. That is not NVFP4, which has no adapters.
//! Adapters' numbers are taken as they are, in f16, bf16 or f32, each exactly a number of f32. A shared expert has
//! pairs of its own, and a token's adapter is the same there.
//!
//! **The bound.** Write ε = 2⁻²⁴. A sum of n products in f32, fused or not, in any order, is off by less than
//! (n + 1)·ε·Σ|products| (Higham's γ, with room for its second order while n ≤ 2¹⁶). So A·x is off by (k + 1)·ε·|A|·|x|
//! and by what x itself is off, t by another rounding, B·t by (r + 1)·ε·|B|·|t| and |B| times what t is off; the
//! addition rounds once. [`bound`](crate::bound) adds that to what the product itself may be off by.

use std::sync::Arc;

use format::{Dense, Values};
use half::{bf16, f16};

use crate::bound::Bounded;
use crate::{Error, Result};

/// The largest rank.
pub const MOST_RANK: usize = 64;

const EPSILON: f64 = 1.0 / (1u32 << 24) as f64;

/// What an adapter adds to one matrix's product.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// A `[rank, k]`.
    down: Dense<'static>,
    /// B as its columns, `[rank, n]`: each is added as a whole.
    up: Dense<'static>,
}

impl LowRank {
    /// A pair A `[rank, k]` and B `[n, rank]`, as peft has them: `lora_A` and `lora_B`.
    pub fn new(a: &Dense<'_>, b: &Dense<'_>) -> Result<Self> {
        let rank = a.rows();
        if !(1..=MOST_RANK).contains(&rank) {
            return Err(mismatch("the rank of an adapter", rank, format!("1 to {MOST_RANK}")));
        }
        if b.k() != rank {
            return Err(mismatch("the columns of an adapter's B", b.k(), format!("{rank}, the rows of its A,")));
        }
        if [a, b].iter().any(|matrix| matrix.global().value() != 1.0) {
            return Err(mismatch("the global scale of an adapter", "another", "1; multiply its scaling with it"));
        }
        Ok(Self { down: a.as_borrowed().into_owned(), up: transposed(b)? })
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.down.rows()
    }

    /// (n, k) of the matrix that it belongs to.
    pub fn shape(&self) -> (usize, usize) {
        (self.up.k(), self.down.k())
    }

    /// A `[rank, k]`.
    pub fn a(&self) -> &Dense<'static> {
        &self.down
    }

    /// B's columns, `[rank, n]`.
    pub fn b_columns(&self) -> &Dense<'static> {
        &self.up
    }

    /// What it adds to a row's product, in double precision, and how far a backend's may be from that. The row's
    /// numbers may be off already.
    pub(crate) fn delta(&self, x: &[Bounded], scaling: f64) -> Vec<Bounded> {
        let (n, k) = self.shape();
        let mut deltas = vec![Bounded { value: 0.0, error: 0.0 }; n];
        let mut magnitudes = vec![0.0; n];
        let (mut a, mut b) = (vec![0f32; k], vec![0f32; n]);
        for rank in 0..self.rank() {
            self.down.row(rank, &mut a);
            self.up.row(rank, &mut b);
            let products = || a.iter().zip(x).map(|(&a, x)| (f64::from(a), x));
            let sum: f64 = products().map(|(a, x)| a * x.value).sum();
            let most: f64 = products().map(|(a, x)| a.abs() * (x.value.abs() + x.error)).sum();
            let moved: f64 = products().map(|(a, x)| a.abs() * x.error).sum();
            let error = scaling.abs() * (moved + (k as f64 + 1.0) * EPSILON * most);
            let (t, error) = (scaling * sum, error + 2.0 * EPSILON * (scaling.abs() * most + error));
            for ((delta, magnitude), &b) in deltas.iter_mut().zip(&mut magnitudes).zip(&b) {
                let b = f64::from(b);
                delta.value += b * t;
                delta.error += b.abs() * error;
                *magnitude += b.abs() * (t.abs() + error);
            }
        }
        for (delta, magnitude) in deltas.iter_mut().zip(magnitudes) {
            delta.error += (self.rank() as f64 + 1.0) * EPSILON * magnitude + f64::from(f32::MIN_POSITIVE);
        }
        deltas
    }
}

/// B as its columns.
fn transposed(b: &Dense<'_>) -> Result<Dense<'static>> {
    fn columns<T: Copy>(values: &[T], rank: usize) -> Vec<T> {
        (0..rank).flat_map(|column| values.iter().skip(column).step_by(rank).copied()).collect()
    }
    let (n, rank) = (b.rows(), b.k());
    let values: Values<'static> = match b.values() {
        Values::F16(x) => columns::<f16>(x, rank).into(),
        Values::BF16(x) => columns::<bf16>(x, rank).into(),
        Values::F32(x) => columns::<f32>(x, rank).into(),
    };
    Ok(Dense::new(rank, n, values, 1.0)?)
}

/// Which of an expert's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The gate's, or the only one where the gate takes one.
    Gate = 0,
    /// Up.
    Up = 1,
    /// Down.
    Down = 2,
}

impl Projection {
    /// All of them, in the order in which an expert has them.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];
}

/// One adapter of a layer: for each of its experts what gate, up and down have added, if anything.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// What every pair's result is multiplied with.
    pub scaling: f32,
    /// Gate (or the only one), up and down of every expert.
    pub experts: Vec<[Option<LowRank>; 3]>,
}

/// The adapters of a layer, of which each token may have one.
#[derive(Clone, Debug)]
pub struct Adapters {
    all: Vec<Adapter>,
    experts: usize,
    widths: [usize; 3],
    /// What they add to the layer's shared expert, as adapters of a layer of one.
    shared: Option<Box<Adapters>>,
}

impl Adapters {
    /// Adapters of a layer with so many experts, of these widths: of tokens, of the intermediate and of results. An MLP
    /// is a layer of one expert.
    pub fn new(all: Vec<Adapter>, experts: usize, widths: [usize; 3]) -> Result<Self> {
        let [k, inner, out] = widths;
        let shapes = [(inner, k), (inner, k), (out, inner)];
        for adapter in &all {
            if adapter.experts.len() != experts {
                let expected = format!("{experts}, as the layer has,");
                return Err(mismatch("the number of an adapter's experts", adapter.experts.len(), expected));
            }
            if !adapter.scaling.is_finite() {
                return Err(mismatch("the scaling of an adapter", adapter.scaling, "a finite number"));
            }
            for (expert, pairs) in adapter.experts.iter().enumerate() {
                for (pair, (n, k)) in pairs.iter().zip(shapes) {
                    let Some(found) = pair.as_ref().map(LowRank::shape).filter(|&found| found != (n, k)) else {
                        continue;
                    };
                    let (found, expected) = (format!("{}×{}", found.0, found.1), format!("{n}×{k}"));
                    return Err(Error::Mismatch { group: expert, what: "an adapter's matrix", found, expected });
                }
            }
        }
        Ok(Self { all, experts, widths, shared: None })
    }

    /// The same with what each of them adds to the layer's shared expert, in their order: adapters of a layer of one.
    pub fn with_shared(self, shared: Adapters) -> Result<Self> {
        if shared.len() != self.len() {
            let expected = format!("{}, as many as of its experts,", self.len());
            return Err(mismatch("the number of adapters of a shared expert", shared.len(), expected));
        }
        let outer = |adapters: &Adapters| [adapters.widths[0], adapters.widths[2]];
        if shared.experts != 1 || outer(&shared) != outer(&self) {
            let found = format!("{} experts of widths {:?}", shared.experts, shared.widths);
            let expected = format!("one expert that takes and leaves widths {:?}", outer(&self));
            return Err(mismatch("the adapters of a shared expert", found, expected));
        }
        Ok(Self { shared: Some(Box::new(shared)), ..self })
    }

    /// What they add to the layer's shared expert, if anything.
    pub fn shared(&self) -> Option<&Adapters> {
        self.shared.as_deref()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Experts of the layer.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// The width of tokens, of the intermediate and of results.
    pub fn widths(&self) -> [usize; 3] {
        self.widths
    }

    /// The largest rank of any pair.
    pub fn rank(&self) -> usize {
        let own = self.pairs().map(LowRank::rank).max().unwrap_or(0);
        self.shared().map_or(own, |shared| own.max(shared.rank()))
    }

    /// Every adapter.
    pub fn each(&self) -> &[Adapter] {
        &self.all
    }

    /// What an adapter adds to a matrix of an expert's, and its scaling, if it adds anything.
    pub fn pair(&self, adapter: usize, expert: usize, projection: Projection) -> Option<(&LowRank, f32)> {
        let adapter = &self.all[adapter];
        Some((adapter.experts[expert][projection as usize].as_ref()?, adapter.scaling))
    }

    fn pairs(&self) -> impl Iterator<Item = &LowRank> {
        self.all.iter().flat_map(|adapter| adapter.experts.iter().flatten().flatten())
    }
}

/// The adapter of every token.
#[derive(Clone, Debug)]
pub struct Adapted {
    adapters: Arc<Adapters>,
    ids: Vec<i32>,
}

impl Adapted {
    /// The number of each token's adapter; -1 where it has none.
    pub fn new(adapters: Arc<Adapters>, ids: &[i32]) -> Result<Self> {
        let known = -1..adapters.len() as i64;
        if let Some(id) = ids.iter().find(|&&id| !known.contains(&i64::from(id))) {
            let expected = format!("-1 for none, or less than {}", adapters.len());
            return Err(mismatch("the number of a token's adapter", id, expected));
        }
        Ok(Self { adapters, ids: ids.to_vec() })
    }

    /// The adapters.
    pub fn adapters(&self) -> &Arc<Adapters> {
        &self.adapters
    }

    /// The number of each token's, or -1.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// Those of some tokens.
    pub fn part(&self, tokens: std::ops::Range<usize>) -> Self {
        Self { adapters: Arc::clone(&self.adapters), ids: self.ids[tokens].to_vec() }
    }

    /// A token's, if it has one.
    pub fn of(&self, token: usize) -> Option<usize> {
        usize::try_from(self.ids[token]).ok()
    }
}

impl PartialEq for Adapted {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.adapters, &other.adapters) && self.ids == other.ids
    }
}

fn mismatch(what: &'static str, found: impl ToString, expected: impl ToString) -> Error {
    Error::Mismatch { group: 0, what, found: found.to_string(), expected: expected.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(rows: usize, k: usize, values: impl Fn(usize) -> f32) -> Dense<'static> {
        Dense::new(rows, k, (0..rows * k).map(values).collect::<Vec<f32>>(), 1.0).unwrap()
    }

    #[test]
    fn a_pair_adds_b_times_a_times_x_times_its_scaling() {
        // A = [[0, 1, 2], [3, 4, 5]] and B = [[0, 1], [2, 3], [4, 5], [6, 7]] on x = (1, 1, -1).
        let pair = LowRank::new(&dense(2, 3, |i| i as f32), &dense(4, 2, |i| i as f32)).unwrap();
        let x = [1.0, 1.0, -1.0].map(|value| Bounded { value, error: 0.0 });
        let values: Vec<f64> = pair.delta(&x, 0.5).iter().map(|delta| delta.value).collect();
        assert_eq!((pair.shape(), pair.rank()), ((4, 3), 2));
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0]); // t = 0.5·(-1, 2)
    }

    #[test]
    fn an_input_that_may_be_elsewhere_moves_a_delta_as_far_as_both_matrices_take_it() {
        let pair = LowRank::new(&dense(1, 2, |_| -3.0), &dense(1, 1, |_| 2.0)).unwrap();
        let x = [Bounded { value: 1.0, error: 0.25 }, Bounded { value: 0.0, error: 0.0 }];
        let [delta] = pair.delta(&x, 4.0)[..] else { panic!("there is one column") };
        assert_eq!(delta.value, -24.0);
        assert!((6.0..6.001).contains(&delta.error), "{delta:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused_by_its_name() {
        let pair = |rank, k, n| LowRank::new(&dense(rank, k, |_| 1.0), &dense(n, rank, |_| 1.0));
        assert!(pair(65, 16, 16).unwrap_err().to_string().contains("rank"));
        assert!(LowRank::new(&dense(2, 16, |_| 1.0), &dense(16, 3, |_| 1.0)).is_err());
        let adapters = |k, scaling| {
            let experts = vec![[Some(pair(2, k, 32).unwrap()), None, None]];
            Adapters::new(vec![Adapter { scaling, experts }], 1, [16, 32, 16])
        };
        let adapted = Adapted::new(Arc::new(adapters(16, 1.0).unwrap()), &[0, -1]).unwrap();
        assert_eq!((adapted.of(0), adapted.of(1)), (Some(0), None));
        assert!(Adapted::new(Arc::clone(adapted.adapters()), &[1]).is_err());
        assert!(Adapted::new(Arc::clone(adapted.adapters()), &[-2]).is_err());
        assert!(adapters(48, 1.0).unwrap_err().to_string().contains("32×48"));
        assert!(adapters(16, f32::NAN).unwrap_err().to_string().contains("scaling"));
        let shared = |count, experts, widths| {
            let each = Adapter { scaling: 1.0, experts: vec![[None, None, None]; experts] };
            adapters(16, 1.0).unwrap().with_shared(Adapters::new(vec![each; count], experts, widths).unwrap())
        };
        assert!(shared(1, 1, [16, 48, 16]).is_ok());
        assert!(shared(2, 1, [16, 48, 16]).unwrap_err().to_string().contains("number of adapters"));
        assert!(shared(1, 2, [16, 48, 16]).unwrap_err().to_string().contains("one expert"));
        assert!(shared(1, 1, [32, 48, 16]).unwrap_err().to_string().contains("[16, 16]"));
    }
}
