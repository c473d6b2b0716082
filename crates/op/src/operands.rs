//! What goes into the operation: activations and weights, borrowed from wherever they lie.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use format::{Dense, GlobalScale, Matrix, Values};

use crate::{Activation, Error, Gate, Output, Problem, Result, Shape, Team};

/// The token operand A of one group, `[m, k]`.
#[derive(Clone, Debug)]
pub enum Activations<'a> {
    /// Quantised activations.
    NvFp4(Matrix<'a>),
    /// Half, bfloat16 or single precision.
    Dense(Dense<'a>),
}

impl Activations<'_> {
    /// Tokens.
    pub fn rows(&self) -> usize {
        match self {
            Activations::NvFp4(a) => a.rows(),
            Activations::Dense(a) => a.rows(),
        }
    }

    /// The summed dimension.
    pub fn k(&self) -> usize {
        match self {
            Activations::NvFp4(a) => a.k(),
            Activations::Dense(a) => a.k(),
        }
    }

    /// The scale of the whole operand.
    pub fn global(&self) -> GlobalScale {
        match self {
            Activations::NvFp4(a) => a.global(),
            Activations::Dense(a) => a.global(),
        }
    }

    /// The element type.
    pub fn element(&self) -> Activation {
        match self {
            Activations::NvFp4(_) => Activation::NvFp4,
            Activations::Dense(a) => Activation::of_values(a.values()),
        }
    }

    /// Their type and sizes.
    pub fn shape(&self) -> TokenShape {
        TokenShape { element: self.element(), rows: self.rows(), k: self.k() }
    }

    /// Writes one row as f32, exactly, without the global scale.
    pub fn unscaled_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Activations::NvFp4(a) => a.unscaled_row(row, out),
            Activations::Dense(a) => a.row(row, out),
        }
    }
}

impl<'a> From<Matrix<'a>> for Activations<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Activations::NvFp4(matrix)
    }
}

impl<'a> From<Dense<'a>> for Activations<'a> {
    fn from(dense: Dense<'a>) -> Self {
        Activations::Dense(dense)
    }
}

/// The weights of one group: gate and up (`B1`, `B2`, each `[n, k]` with its own global scale), or one plain matrix.
/// Tokens may have to be multiplied with an input scale first, one factor per column of A, and sums may have biases
/// added, one number per column of C; both are part of the operation.
#[derive(Clone, Debug)]
pub struct Weights<'a> {
    gate: Matrix<'a>,
    up: Option<Matrix<'a>>,
    input_scale: Option<Cow<'a, [f32]>>,
    /// One per matrix, or none.
    biases: Vec<Cow<'a, [f32]>>,
}

impl<'a> Weights<'a> {
    /// The two matrices of a gated layer; they must have the same shape.
    pub fn gated(gate: Matrix<'a>, up: Matrix<'a>) -> Result<Self> {
        let shapes = [&gate, &up].map(|matrix| (matrix.rows(), matrix.k()));
        if shapes[0] != shapes[1] {
            return Err(Error::GateAndUp { gate: shapes[0], up: shapes[1] });
        }
        Ok(Self { gate, up: Some(up), input_scale: None, biases: Vec::new() })
    }

    /// One matrix, for a plain GEMM.
    pub fn plain(matrix: Matrix<'a>) -> Self {
        Self { gate: matrix, up: None, input_scale: None, biases: Vec::new() }
    }

    /// The same weights, for tokens that are multiplied with k finite numbers first, column by column: what AWQ leaves
    /// in a checkpoint as `pre_quant_scale`.
    pub fn with_input_scale(self, scale: impl Into<Cow<'a, [f32]>>) -> Result<Self> {
        let scale = scale.into();
        if scale.len() != self.k() {
            return Err(Error::InputScaleLength { length: scale.len(), k: self.k() });
        }
        if let Some(column) = scale.iter().position(|factor| !factor.is_finite()) {
            return Err(Error::InputScaleValue { column, value: scale[column] });
        }
        Ok(Self { input_scale: Some(scale), ..self })
    }

    /// The same weights, with n finite numbers for each matrix that are added to its sums in f32, after all scales and
    /// before the gate: one vector for gate and one for up, or one for the only matrix. What a checkpoint has in 16
    /// bits is widened before.
    pub fn with_bias<B: Into<Cow<'a, [f32]>>>(self, biases: impl IntoIterator<Item = B>) -> Result<Self> {
        let biases: Vec<Cow<'a, [f32]>> = biases.into_iter().map(Into::into).collect();
        let (found, expected) = (biases.len(), self.matrices().count());
        if found != expected {
            return Err(Error::BiasCount { found, expected });
        }
        for (bias, matrix) in biases.iter().zip(["b1", "b2"]) {
            if bias.len() != self.n() {
                return Err(Error::BiasLength { matrix, length: bias.len(), n: self.n() });
            }
            if let Some(column) = bias.iter().position(|x| !x.is_finite()) {
                return Err(Error::BiasValue { matrix, column, value: bias[column] });
            }
        }
        Ok(Self { biases, ..self })
    }

    /// What is added to the sums of a matrix (0 is gate or the only one, 1 is up), column by column, if there is that.
    pub fn bias(&self, matrix: usize) -> Option<&[f32]> {
        self.biases.get(matrix).map(|bias| &bias[..])
    }

    /// What tokens are multiplied with first, column by column, if there is that.
    pub fn input_scale(&self) -> Option<&[f32]> {
        self.input_scale.as_deref()
    }

    /// The same weights, borrowed from these.
    pub fn as_borrowed(&self) -> Weights<'_> {
        Weights {
            gate: self.gate.as_borrowed(),
            up: self.up.as_ref().map(Matrix::as_borrowed),
            input_scale: self.input_scale.as_deref().map(Cow::Borrowed),
            biases: self.biases.iter().map(|bias| Cow::Borrowed(&bias[..])).collect(),
        }
    }

    /// The same weights, independent of whoever lent them.
    pub fn into_owned(self) -> Weights<'static> {
        Weights {
            gate: self.gate.into_owned(),
            up: self.up.map(Matrix::into_owned),
            input_scale: self.input_scale.map(|scale| Cow::Owned(scale.into_owned())),
            biases: self.biases.into_iter().map(|bias| Cow::Owned(bias.into_owned())).collect(),
        }
    }

    /// Rows of each matrix: columns of C.
    pub fn n(&self) -> usize {
        self.gate.rows()
    }

    /// The summed dimension.
    pub fn k(&self) -> usize {
        self.gate.k()
    }

    /// The gate matrix B1, or the only one.
    pub fn gate(&self) -> &Matrix<'a> {
        &self.gate
    }

    /// The up matrix B2.
    pub fn up(&self) -> Option<&Matrix<'a>> {
        self.up.as_ref()
    }

    /// Gate and up, or the only matrix.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix<'a>> {
        std::iter::once(&self.gate).chain(self.up.as_ref())
    }

    /// The bytes that these weights take in a checkpoint.
    pub fn checkpoint_bytes(&self) -> usize {
        let matrices = self.matrices().map(|m| m.codes().len() + m.scales().len()).sum::<usize>();
        let biases = self.biases.iter().map(|bias| size_of_val(&bias[..])).sum::<usize>();
        matrices + biases + self.input_scale().map_or(0, size_of_val)
    }
}

/// What a problem needs to know of one group's tokens, wherever they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenShape {
    /// The element type.
    pub element: Activation,
    /// Tokens.
    pub rows: usize,
    /// The summed dimension.
    pub k: usize,
}

impl fmt::Display for TokenShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{} of {}", self.rows, self.k, self.element)
    }
}

/// Joins tokens and the `(n, k)` of every group's weights to a problem, refusing what does not belong together.
pub fn problem_of(
    tokens: impl ExactSizeIterator<Item = TokenShape>,
    shapes: &[(usize, usize)],
    gate: Gate,
    output: Output,
) -> Result<Problem> {
    if tokens.len() != shapes.len() {
        return Err(Error::Mismatch {
            group: tokens.len().min(shapes.len()),
            what: "the number of groups of activations",
            found: tokens.len().to_string(),
            expected: format!("{} (one per group of weights)", shapes.len()),
        });
    }
    let mut first = None;
    let mut groups = Vec::with_capacity(shapes.len());
    for (group, (a, &(n, k))) in tokens.zip(shapes).enumerate() {
        if a.k == 0 || a.k % format::BLOCK != 0 {
            return Err(Error::K { group, k: a.k });
        }
        if a.k != k {
            return Err(Error::Mismatch {
                group,
                what: "k of the activations (a)",
                found: a.k.to_string(),
                expected: format!("{k}, as the weights have,"),
            });
        }
        let element = *first.get_or_insert(a.element);
        if a.element != element {
            return Err(Error::Mismatch {
                group,
                what: "the activations' element type",
                found: a.element.to_string(),
                expected: format!("{element}, as group 0 has,"),
            });
        }
        groups.push(Shape::new(a.rows, n, k));
    }
    Problem::new(groups, gate, first.unwrap_or(Activation::NvFp4), output)
}

/// The largest finite magnitude in each group of dense activations; quantised ones are left at 0. A number that is not
/// finite spoils the sums of its own row only, and must not decide what the others are scaled by. Many numbers are
/// looked through by the whole team: one thread would take a tenth of the time that sixteen then compute.
pub fn largest_of(activations: &[Activations<'_>], team: &Team) -> Vec<f32> {
    /// Numbers that a thread takes at a time, and up to which it goes on alone: waking others would take longer.
    const PIECE: usize = 1 << 15;
    const ALONE: usize = 1 << 17;
    // Magnitudes of floats compare like their bits do.
    let largest: Vec<AtomicU32> = activations.iter().map(|_| AtomicU32::new(0)).collect();
    let groups = || {
        activations.iter().zip(&largest).filter_map(|(activations, largest)| match activations {
            Activations::Dense(dense) => Some((dense, largest)),
            Activations::NvFp4(_) => None,
        })
    };
    let numbers = |dense: &Dense<'_>| dense.rows() * dense.k();
    let pieces = groups().flat_map(|(dense, largest)| {
        let all = 0..numbers(dense);
        all.clone().step_by(PIECE).map(move |start| (dense, start..all.end.min(start + PIECE), largest))
    });
    let look = |(dense, range, largest): (&Dense<'_>, Range<usize>, &AtomicU32)| {
        largest.fetch_max(largest_in(dense.values(), range).to_bits(), Ordering::Relaxed);
    };
    match groups().map(|(dense, _)| numbers(dense)).sum::<usize>() {
        ..=ALONE => pieces.for_each(look),
        _ => team.for_each(pieces, look),
    }
    largest.into_iter().map(|bits| f32::from_bits(bits.into_inner())).collect()
}

/// The largest finite magnitude of some values.
fn largest_in(values: &Values<'_>, range: Range<usize>) -> f32 {
    match values {
        Values::F16(v) => {
            let bits = || v[range.clone()].iter().map(|x| x.to_bits() & 0x7FFF);
            half::f16::from_bits(largest_below(half::f16::INFINITY.to_bits(), bits)).to_f32()
        }
        Values::BF16(v) => {
            let bits = || v[range.clone()].iter().map(|x| x.to_bits() & 0x7FFF);
            half::bf16::from_bits(largest_below(half::bf16::INFINITY.to_bits(), bits)).to_f32()
        }
        Values::F32(v) => {
            let bits = || v[range.clone()].iter().map(|x| x.to_bits() & 0x7FFF_FFFF);
            f32::from_bits(largest_below(f32::INFINITY.to_bits(), bits))
        }
    }
}

/// The largest of some magnitudes that is less than infinity. The loop is vector code; the second one is needed only
/// where a number is not finite.
fn largest_below<B: Copy + Default + Ord, I: Iterator<Item = B>>(infinity: B, bits: impl Fn() -> I) -> B {
    let largest = bits().max().unwrap_or_default();
    if largest < infinity { largest } else { bits().filter(|&bits| bits < infinity).max().unwrap_or_default() }
}

/// Refuses activations of which one is not finite, and names it: for callers who would rather know than have it spoil
/// its row's results.
pub fn expect_finite(activations: &[Activations<'_>]) -> Result<()> {
    for (group, a) in activations.iter().enumerate() {
        let Activations::Dense(dense) = a else { continue };
        let mut values = vec![0.0; dense.k()];
        for row in 0..dense.rows() {
            dense.row(row, &mut values);
            if let Some(column) = values.iter().position(|x| !x.is_finite()) {
                return Err(Error::NotFinite { group, row, column, value: values[column] });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Alone;

    #[test]
    fn what_is_not_finite_does_not_count_as_the_largest_and_is_found_by_who_asks() {
        let dense = |values: Vec<f32>| Activations::from(Dense::new(2, 16, values, 1.0).unwrap());
        let mut spoiled = vec![-3.0; 32];
        assert!(expect_finite(&[dense(spoiled.clone())]).is_ok());
        (spoiled[4], spoiled[21]) = (f32::NEG_INFINITY, f32::NAN);
        let none = vec![f32::NAN; 32];
        let team = Team::new(Alone);
        assert_eq!(largest_of(&[dense(spoiled.clone()), dense(none)], &team), [3.0, 0.0]);
        let halves = spoiled.iter().map(|&x| half::f16::from_f32(x)).collect::<Vec<_>>();
        let brains = spoiled.iter().map(|&x| half::bf16::from_f32(x)).collect::<Vec<_>>();
        let narrow = [Dense::new(2, 16, halves, 1.0).unwrap().into(), Dense::new(2, 16, brains, 1.0).unwrap().into()];
        assert_eq!(largest_of(&narrow, &team), [3.0, 3.0]);
        let found = expect_finite(&[dense(vec![0.0; 32]), dense(spoiled)]).unwrap_err();
        assert!(matches!(found, Error::NotFinite { group: 1, row: 0, column: 4, .. }), "{found}");
    }

    #[test]
    fn the_largest_of_many_numbers_is_found_wherever_it_is() {
        const ROWS: usize = 40;
        const K: usize = 8192;
        for place in [0, 1 << 15, (1 << 17) + 5, ROWS * K - 1] {
            let mut values = vec![half::bf16::from_f32(0.25); ROWS * K];
            values[place] = half::bf16::from_f32(-7.0);
            values[(place + 1) % (ROWS * K)] = half::bf16::INFINITY;
            let many = Activations::from(Dense::new(ROWS, K, values, 1.0).unwrap());
            let few = Activations::from(Dense::new(1, 16, vec![2f32; 16], 1.0).unwrap());
            let codes = Matrix::new(1, 16, vec![0x77; 8], vec![0x38; 1], 1.0).unwrap().into();
            assert_eq!(largest_of(&[few, codes, many], &Team::new(Alone)), [2.0, 0.0, 7.0], "at {place}");
        }
    }

    #[test]
    fn an_input_scale_is_k_finite_numbers() {
        let weights = || Weights::plain(Matrix::new(1, 16, vec![0; 8], vec![0; 1], 1.0).unwrap());
        let refused = |scale: Vec<f32>| weights().with_input_scale(scale).unwrap_err();
        assert!(matches!(refused(vec![1.0; 15]), Error::InputScaleLength { length: 15, k: 16 }));
        let mut infinite = vec![1.0; 16];
        infinite[9] = f32::INFINITY;
        assert!(matches!(refused(infinite), Error::InputScaleValue { column: 9, .. }));
        let scaled = weights().with_input_scale(vec![-2.0; 16]).unwrap().into_owned();
        assert_eq!(scaled.input_scale(), Some(&[-2.0; 16][..]));
    }

    #[test]
    fn there_is_a_finite_bias_for_each_column_of_each_matrix() {
        let matrix = || Matrix::new(3, 16, vec![0; 24], vec![0; 3], 1.0).unwrap();
        let weights = || Weights::gated(matrix(), matrix()).unwrap();
        let refused = |biases: &[Vec<f32>]| weights().with_bias(biases.to_vec()).unwrap_err();
        assert!(matches!(refused(&[vec![0.0; 3]]), Error::BiasCount { found: 1, expected: 2 }));
        let error = refused(&[vec![0.0; 3], vec![0.0; 4]]);
        assert!(matches!(error, Error::BiasLength { matrix: "b2", length: 4, n: 3 }), "{error}");
        let error = refused(&[vec![0.0, 0.0, f32::NAN], vec![0.0; 3]]);
        assert!(matches!(error, Error::BiasValue { matrix: "b1", column: 2, .. }), "{error}");
        let biased = weights().with_bias([vec![1.0; 3], vec![2.0; 3]]).unwrap().into_owned();
        assert_eq!((biased.bias(0), biased.bias(1)), (Some(&[1.0; 3][..]), Some(&[2.0; 3][..])));
        assert_eq!(weights().bias(0), None);
    }
}
