//! The weights of whole feed-forward layers: an MLP, `y = down(gate(x·Wgᵀ + bg, x·Wuᵀ + bu)) + bd`, and a layer of
//! experts, of which each token is computed by a few: `y[t] = Σ_j w[t,j]·MLP_{e[t,j]}(x[t]) + shared(x[t])`.
//!
//! What stands between the two products is a choice that belongs to the operation, since it rounds: see
//! [`Intermediate`](crate::Intermediate).

use std::borrow::Cow;

use format::GlobalScale;

use crate::{Error, Gate, Result, Weights};

/// The weights of one MLP.
#[derive(Clone, Debug)]
pub struct MlpWeights<'a> {
    up: Weights<'a>,
    down: Weights<'a>,
    intermediate_scale: GlobalScale,
}

impl<'a> MlpWeights<'a> {
    /// Gate and up (or up alone, for a gate that takes one matrix), and down, each with its biases and input scale if
    /// there are any. The columns of down are the rows of the others.
    pub fn new(up: Weights<'a>, down: Weights<'a>) -> Result<Self> {
        if down.up().is_some() {
            return Err(Error::Mlp { what: "down", found: "two matrices".into(), expected: "one".into() });
        }
        if down.k() != up.n() {
            let (found, expected) = (format!("k = {}", down.k()), format!("{}, the rows of up", up.n()));
            return Err(Error::Mlp { what: "down", found, expected });
        }
        Ok(Self { up, down, intermediate_scale: 1.0.into() })
    }

    /// The same weights, with the global scale of an NVFP4 intermediate: ModelOpt's `input_scale` of the down
    /// projection. It is 1 if none is given.
    pub fn with_intermediate_scale(self, scale: impl Into<GlobalScale>) -> Result<Self> {
        let intermediate_scale = scale.into();
        if !(intermediate_scale.is_usable() && intermediate_scale.value() > 0.0) {
            let (found, expected) = (format!("{intermediate_scale}"), "a positive, finite number".into());
            return Err(Error::Mlp { what: "the intermediate's scale", found, expected });
        }
        Ok(Self { intermediate_scale, ..self })
    }

    /// Gate and up, or up alone.
    pub fn up(&self) -> &Weights<'a> {
        &self.up
    }

    /// The down projection.
    pub fn down(&self) -> &Weights<'a> {
        &self.down
    }

    /// The global scale of an NVFP4 intermediate.
    pub fn intermediate_scale(&self) -> GlobalScale {
        self.intermediate_scale
    }

    /// The width of tokens, of the intermediate and of results.
    pub fn widths(&self) -> [usize; 3] {
        [self.up.k(), self.up.n(), self.down.n()]
    }

    /// The same weights, borrowed from these.
    pub fn as_borrowed(&self) -> MlpWeights<'_> {
        let (up, down) = (self.up.as_borrowed(), self.down.as_borrowed());
        MlpWeights { up, down, intermediate_scale: self.intermediate_scale }
    }

    /// The same weights, independent of whoever lent them.
    pub fn into_owned(self) -> MlpWeights<'static> {
        MlpWeights {
            up: self.up.into_owned(),
            down: self.down.into_owned(),
            intermediate_scale: self.intermediate_scale,
        }
    }
}

/// An MLP that computes every token beside the experts.
#[derive(Clone, Debug)]
pub struct SharedWeights<'a> {
    mlp: MlpWeights<'a>,
    gate: Option<Cow<'a, [f32]>>,
}

impl<'a> SharedWeights<'a> {
    /// An MLP whose result is added as it is.
    pub fn new(mlp: MlpWeights<'a>) -> Self {
        Self { mlp, gate: None }
    }

    /// The same, times sigmoid(x·v) for a vector of as many finite numbers as tokens are wide (Qwen3-Next).
    pub fn with_gate(self, gate: impl Into<Cow<'a, [f32]>>) -> Result<Self> {
        let (gate, width) = (gate.into(), self.mlp.up.k());
        if gate.len() != width || !gate.iter().all(|x| x.is_finite()) {
            let (found, expected) = (format!("{} numbers", gate.len()), format!("{width}, all finite"));
            return Err(Error::Mlp { what: "the shared expert's gate", found, expected });
        }
        Ok(Self { gate: Some(gate), ..self })
    }

    /// The same weights, borrowed from these.
    pub fn as_borrowed(&self) -> SharedWeights<'_> {
        SharedWeights { mlp: self.mlp.as_borrowed(), gate: self.gate.as_deref().map(Cow::Borrowed) }
    }

    /// Its MLP.
    pub fn mlp(&self) -> &MlpWeights<'a> {
        &self.mlp
    }

    /// The vector v, if there is one.
    pub fn gate(&self) -> Option<&[f32]> {
        self.gate.as_deref()
    }
}

/// The weights of a layer of experts.
#[derive(Clone, Debug)]
pub struct ExpertWeights<'a> {
    experts: Vec<MlpWeights<'a>>,
    shared: Option<SharedWeights<'a>>,
    gate: Gate,
}

impl<'a> ExpertWeights<'a> {
    /// Experts of one shape, all with the same gate.
    pub fn new(experts: Vec<MlpWeights<'a>>, gate: Gate) -> Result<Self> {
        gate.check()?;
        let first = experts.first().ok_or(Error::NoGroups)?.widths();
        for (expert, mlp) in experts.iter().enumerate() {
            let matrices = mlp.up.matrices().count();
            if mlp.widths() != first || matrices != gate.matrices() {
                let describe = |widths: [usize; 3], matrices| format!("{matrices} matrices into {widths:?}");
                return Err(Error::Mismatch {
                    group: expert,
                    what: "the expert's shape",
                    found: describe(mlp.widths(), matrices),
                    expected: format!("{}, as expert 0 and the gate '{gate}' have,", describe(first, gate.matrices())),
                });
            }
        }
        Ok(Self { experts, shared: None, gate })
    }

    /// The same layer with a shared expert, which has the experts' gate and may have an intermediate of its own width.
    pub fn with_shared(self, shared: SharedWeights<'a>) -> Result<Self> {
        let ([k, _, n], [own_k, _, own_n]) = (self.experts[0].widths(), shared.mlp.widths());
        let matrices = shared.mlp.up.matrices().count();
        if [k, n, self.gate.matrices()] != [own_k, own_n, matrices] {
            let found = format!("{matrices} matrices from {own_k} to {own_n}");
            let expected = format!("{} from {k} to {n}, as the experts have", self.gate.matrices());
            return Err(Error::Mlp { what: "the shared expert", found, expected });
        }
        Ok(Self { shared: Some(shared), ..self })
    }

    /// The experts.
    pub fn experts(&self) -> &[MlpWeights<'a>] {
        &self.experts
    }

    /// The shared expert.
    pub fn shared(&self) -> Option<&SharedWeights<'a>> {
        self.shared.as_ref()
    }

    /// The gate of all of them.
    pub fn gate(&self) -> Gate {
        self.gate
    }
}

#[cfg(test)]
mod tests {
    use format::Matrix;

    use super::*;

    fn matrix(n: usize, k: usize) -> Matrix<'static> {
        Matrix::new(n, k, vec![0; n * k / 2], vec![0; n * k / 16], 1.0).unwrap()
    }

    fn mlp(k: usize, width: usize) -> MlpWeights<'static> {
        let up = Weights::gated(matrix(width, k), matrix(width, k)).unwrap();
        MlpWeights::new(up, Weights::plain(matrix(k, width))).unwrap()
    }

    #[test]
    fn weights_that_do_not_belong_together_are_refused_and_named() {
        let up = || Weights::gated(matrix(32, 48), matrix(32, 48)).unwrap();
        let refusals = [
            (MlpWeights::new(up(), Weights::plain(matrix(48, 48))).unwrap_err(), "down"),
            (MlpWeights::new(up(), Weights::gated(matrix(48, 32), matrix(48, 32)).unwrap()).unwrap_err(), "down"),
            (mlp(48, 32).with_intermediate_scale(0.0).unwrap_err(), "scale"),
            (ExpertWeights::new(vec![mlp(48, 32), mlp(48, 16)], Gate::Silu).unwrap_err(), "group 1"),
            (ExpertWeights::new(vec![mlp(48, 32)], Gate::Relu2).unwrap_err(), "relu2"),
            (ExpertWeights::new(vec![], Gate::Silu).unwrap_err(), "no groups"),
            (SharedWeights::new(mlp(48, 32)).with_gate(vec![0.0; 47]).unwrap_err(), "47"),
        ];
        for (error, word) in refusals {
            assert!(error.to_string().contains(word), "{error} says nothing of {word}");
        }
        let layer = || ExpertWeights::new(vec![mlp(48, 32)], Gate::Silu).unwrap();
        assert!(layer().with_shared(SharedWeights::new(mlp(48, 96))).is_ok(), "of another inner width");
        assert!(layer().with_shared(SharedWeights::new(mlp(64, 32))).is_err());
    }
}
