//! What to compute, and nothing about how.
//!
//! A [`Problem`] is a list of groups (one for a dense layer, one per expert for a mixture of experts), a gate, and the
//! types that go in and come out. It is checked once, when it is made: whoever holds a `Problem` may multiply its sizes
//! without fear of overflow. A whole layer of experts ([`Problem::layer`]) is such a problem with more behind it
//! ([`Whole`]).

use std::fmt;
use std::str::FromStr;

use format::{BLOCK, Scaling, Values};

use crate::{Error, Gate, Intermediate, Precision, Result, Shape, Whole};

/// The element type of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Output {
    /// IEEE half precision. Values beyond ±65504 become infinite.
    #[default]
    F16,
    /// bfloat16.
    BF16,
    /// Single precision.
    F32,
}

impl Output {
    /// Every output type, in the order in which they are listed to users.
    pub const ALL: [Output; 3] = [Output::F16, Output::BF16, Output::F32];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Output::F16 | Output::BF16 => 2,
            Output::F32 => 4,
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Output::F16 => "f16",
            Output::BF16 => "bf16",
            Output::F32 => "f32",
        })
    }
}

impl FromStr for Output {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Output::ALL.into_iter().find(|o| o.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "output type",
            name: name.to_owned(),
            known: "f16, bf16, f32".to_owned(),
        })
    }
}

/// The element type of A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Quantised like the weights.
    NvFp4,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Single precision.
    F32,
}

impl Activation {
    /// Every activation type.
    pub const ALL: [Activation; 4] = [Activation::NvFp4, Activation::F16, Activation::BF16, Activation::F32];

    /// The type of dense values.
    pub fn of_values(values: &Values<'_>) -> Self {
        match values {
            Values::F16(_) => Activation::F16,
            Values::BF16(_) => Activation::BF16,
            Values::F32(_) => Activation::F32,
        }
    }

    /// Bytes that `k` elements of one row take, scales included.
    pub const fn row_bytes(self, k: usize) -> usize {
        match self {
            Activation::NvFp4 => k / 2 + k / BLOCK,
            Activation::F16 | Activation::BF16 => 2 * k,
            Activation::F32 => 4 * k,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Activation::NvFp4 => "nvfp4",
            Activation::F16 => "f16",
            Activation::BF16 => "bf16",
            Activation::F32 => "f32",
        })
    }
}

impl FromStr for Activation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Activation::ALL.into_iter().find(|a| a.to_string() == name).ok_or_else(|| Error::UnknownName {
            what: "activation type",
            name: name.to_owned(),
            known: "nvfp4, f16, bf16, f32".to_owned(),
        })
    }
}

/// What to compute: for each group `C = gate(α₁·A·B1ᵀ) ∘ (α₂·A·B2ᵀ)`, or `C = α₁·A·B1ᵀ` with [`Gate::None`].
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    groups: Vec<Shape>,
    gate: Gate,
    activation: Activation,
    output: Output,
    precision: Precision,
    scaling: Scaling,
    whole: Option<Whole>,
}

impl Problem {
    /// Checks the sizes and the gate and makes the problem.
    pub fn new(groups: Vec<Shape>, gate: Gate, activation: Activation, output: Output) -> Result<Self> {
        if groups.is_empty() {
            return Err(Error::NoGroups);
        }
        gate.check()?;
        let mut total = 0usize;
        for (group, shape) in groups.iter().enumerate() {
            if shape.n == 0 {
                return Err(Error::NoColumns { group });
            }
            if shape.k == 0 || shape.k % BLOCK != 0 {
                return Err(Error::K { group, k: shape.k });
            }
            let sum = most_bytes(shape).and_then(|bytes| total.checked_add(bytes));
            total = sum.filter(|&sum| isize::try_from(sum).is_ok()).ok_or(Error::TooLarge { group, shape: *shape })?;
        }
        let (precision, scaling) = (Precision::Exact, Scaling::NvFp4);
        Ok(Self { groups, gate, activation, output, precision, scaling, whole: None })
    }

    /// A whole layer of so many experts, of which each makes `inner` columns of tokens with `k` and the layer's results
    /// of those. The groups are its experts, with the rows that they get where chance spreads the tokens.
    pub fn layer(
        experts: usize,
        [k, inner]: [usize; 2],
        gate: Gate,
        (activation, output): (Activation, Output),
        whole: Whole,
    ) -> Result<Self> {
        let rows = whole.spread(experts);
        let groups = rows.iter().map(|&rows| Shape::new(rows, inner, k)).collect();
        let problem = Problem::new(groups, gate, activation, output)?;
        // What goes the other way must be countable, too.
        Problem::new(
            rows.iter().map(|&rows| Shape::new(rows, whole.width, inner)).collect(),
            gate,
            activation,
            output,
        )?;
        Ok(Self { whole: Some(whole), ..problem })
    }

    /// What the products are the first half of, if that is a whole layer.
    pub fn whole(&self) -> Option<&Whole> {
        self.whole.as_ref()
    }

    /// The products of a whole layer as problems of their own: the gated one of tokens that were multiplied with the
    /// input scales, and the one behind it. The only one where nothing is behind.
    pub fn products(&self) -> Result<Vec<Problem>> {
        let Some(whole) = self.whole else { return Ok(vec![self.clone()]) };
        let between = match (whole.intermediate, self.activation) {
            (Intermediate::Tokens, Activation::F16) => (Output::F16, Activation::F16),
            (Intermediate::Tokens, Activation::BF16) => (Output::BF16, Activation::BF16),
            (Intermediate::NvFp4, _) => (Output::F32, Activation::NvFp4),
            _ => (Output::F32, Activation::F32),
        };
        let scaled = |scaled: bool, activation| if scaled { Activation::F32 } else { activation };
        let second = self.groups.iter().map(|shape| Shape::new(shape.m, whole.width, shape.n)).collect();
        let first = scaled(whole.scaled[0], self.activation);
        let first = Problem::new(self.groups.clone(), self.gate, first, between.0)?;
        let second = Problem::new(second, Gate::None, scaled(whole.scaled[1], between.1), Output::F32)?;
        Ok(vec![first.like(self)?, second.like(self)?])
    }

    /// The same problem with operands in another precision. FP8 is for dense tokens, also between a layer's products.
    pub fn with_precision(self, precision: Precision) -> Result<Self> {
        if (precision, self.activation) == (Precision::Fp8, Activation::NvFp4) {
            let reason = "these tokens are NVFP4, which has fewer bits; give f16, bf16 or f32, or ask for exact";
            return Err(Error::Fp8Tokens { reason: reason.to_owned() });
        }
        if let Some(whole) = &self.whole {
            precision.check_layer(whole.intermediate, false)?;
        }
        let scaling = self.scaling;
        Self { precision, ..self }.with_scaling(scaling)
    }

    /// The same problem with weights whose scales are of another kind, as they are packed. FP8 weights are for plain
    /// products.
    pub fn with_scaling(self, scaling: Scaling) -> Result<Self> {
        if scaling.is_fp8() && (self.matrices() > 1 || self.whole.is_some() || self.precision == Precision::Fp8) {
            return Err(Error::Fp8Weights { scaling });
        }
        Ok(Self { scaling, ..self })
    }

    /// Refuses weights with powers of two beyond f16's beside tokens that GPUs multiply as f16 or less.
    pub fn check_halves(&self) -> Result<()> {
        let between = self.whole.is_some_and(|whole| whole.intermediate == Intermediate::NvFp4);
        let halves = matches!(self.activation, Activation::F16 | Activation::NvFp4) || between;
        if self.scaling == Scaling::WideMxFp4 && (halves || self.precision == Precision::Fp8) {
            let tokens = if self.precision == Precision::Fp8 { "fp8".to_owned() } else { self.activation.to_string() };
            return Err(Error::WideScales { tokens });
        }
        Ok(())
    }

    /// How the codes of packed weights share scales.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// This problem in another one's precision, with weights like that one's.
    pub fn like(self, other: &Problem) -> Result<Self> {
        self.with_precision(other.precision)?.with_scaling(other.scaling)
    }

    /// What operands are rounded to before they are multiplied.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The same products of groups of other sizes: gate, types, precision and scales stay.
    pub fn with_groups(&self, groups: Vec<Shape>) -> Result<Self> {
        Problem::new(groups, self.gate, self.activation, self.output)?.like(self)
    }

    /// The sizes of every group.
    pub fn groups(&self) -> &[Shape] {
        &self.groups
    }

    /// The gate.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// The element type of A.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// The element type of C.
    pub fn output(&self) -> Output {
        self.output
    }

    /// Weight matrices a group has: two, or one where the gate takes one.
    pub fn matrices(&self) -> usize {
        self.gate.matrices()
    }

    /// Floating-point operations that must be done: two per product, gate and rounding not counted.
    pub fn flops(&self) -> f64 {
        let down = self.whole.map_or(0, |whole| whole.width);
        let per_row = |s: &Shape| s.n as f64 * (self.matrices() as f64 * s.k as f64 + down as f64);
        2.0 * self.groups.iter().map(|s| s.m as f64 * per_row(s)).sum::<f64>()
    }

    /// The fewest bytes that must move: each weight and activation read once, each output written once. Groups without
    /// tokens cost nothing.
    pub fn bytes(&self) -> f64 {
        let matrix = |n: usize, k: usize| n * self.scaling.row_bytes(k);
        let rows = |m: usize, k: usize, n: usize| m * (self.activation.row_bytes(k) + n * self.output.bytes());
        let groups = self.groups.iter().filter(|s| s.m > 0);
        let weights = groups.clone().map(|s| {
            let down = self.whole.map_or(0, |whole| matrix(whole.width, s.n));
            (self.matrices() * matrix(s.n, s.k) + down) as f64
        });
        let moved: f64 = match &self.whole {
            Some(whole) => rows(whole.tokens, self.groups[0].k, whole.width) as f64,
            None => groups.map(|s| rows(s.m, s.k, s.n) as f64).sum(),
        };
        weights.sum::<f64>() + moved
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(whole) = &self.whole {
            let Shape { n, k, .. } = self.groups[0];
            let (tokens, top, width) = (whole.tokens, whole.top, whole.width);
            return write!(f, "{tokens} tokens, {top} of {} experts, {k}→{n}→{width}", self.groups.len());
        }
        match self.groups.as_slice() {
            [one] => write!(f, "{one}"),
            many => {
                let (n, k) = (many[0].n, many[0].k);
                let m: Vec<String> = many.iter().map(|s| s.m.to_string()).collect();
                if many.iter().all(|s| (s.n, s.k) == (n, k)) {
                    write!(f, "[{}]×{n}×{k}", m.join(","))
                } else {
                    let shapes: Vec<String> = many.iter().map(Shape::to_string).collect();
                    write!(f, "[{}]", shapes.join(", "))
                }
            }
        }
    }
}

/// The bytes of everything a group could ever have in memory at once, or `None` where an address could not hold it:
/// both weight matrices, A and both sums of C as f32.
fn most_bytes(shape: &Shape) -> Option<usize> {
    let area =
        |rows: usize, columns: usize| rows.checked_add(256)?.checked_mul(columns.checked_add(256)?)?.checked_mul(16);
    area(shape.n, shape.k)?.checked_add(area(shape.m, shape.k)?)?.checked_add(area(shape.m, shape.n)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(groups: &[Shape]) -> Result<Problem> {
        Problem::new(groups.to_vec(), Gate::Silu, Activation::NvFp4, Output::F16)
    }

    #[test]
    fn a_k_that_is_not_a_multiple_of_16_is_refused() {
        let error = problem(&[Shape::new(1, 1, 16), Shape::new(1, 1, 24)]).unwrap_err();
        assert!(matches!(error, Error::K { group: 1, k: 24 }), "{error}");
        assert!(matches!(problem(&[Shape::new(1, 1, 0)]), Err(Error::K { k: 0, .. })));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for shape in
            [Shape::new(usize::MAX, 1, 16), Shape::new(1, usize::MAX, 16), Shape::new(1, 1, usize::MAX / 16 * 16)]
        {
            assert!(matches!(problem(&[shape]), Err(Error::TooLarge { .. })), "{shape}");
        }
        let half = Shape::new(1, 1 << 40, 1 << 19);
        assert!(matches!(problem(&[half, half]), Err(Error::TooLarge { .. })), "the sum over groups counts");
    }

    #[test]
    fn a_group_without_tokens_is_legal_and_costs_nothing() {
        let problem = problem(&[Shape::new(0, 64, 64)]).unwrap();
        assert_eq!((problem.flops(), problem.bytes()), (0.0, 0.0));
    }

    #[test]
    fn no_groups_and_no_columns_are_refused() {
        assert!(matches!(problem(&[]), Err(Error::NoGroups)));
        assert!(matches!(problem(&[Shape::new(1, 0, 16)]), Err(Error::NoColumns { group: 0 })));
    }

    #[test]
    fn flops_and_bytes_of_the_dual_case_are_what_one_counts_by_hand() {
        let problem = problem(&[Shape::new(256, 4096, 7168)]).unwrap();
        assert_eq!(problem.flops(), 4.0 * 256.0 * 4096.0 * 7168.0);
        let weights = 2 * 4096 * (7168 / 2 + 7168 / 16);
        assert_eq!(problem.bytes(), (weights + 256 * (7168 / 2 + 7168 / 16) + 256 * 4096 * 2) as f64);
    }
}
