//! What the tensor cores are given for tokens.

use op::{Activation, Arithmetic, Precision, Problem};

use crate::products::ProductShape;

/// What tokens are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tokens {
    /// Halves.
    F16,
    /// bfloat16.
    Bf16,
    /// Three bfloat16 each, of which the sum is meant.
    Bf16Sum,
    /// e4m3 numbers with a factor per row: only of tokens that were rounded to them.
    E4m3,
    /// NVFP4 itself: codes and scales.
    NvFp4,
}

impl Tokens {
    /// What tokens of a type become before tensor cores that take numbers of 16 bits multiply them.
    pub fn of(activation: Activation) -> Self {
        match activation {
            Activation::NvFp4 | Activation::F16 => Tokens::F16,
            Activation::BF16 => Tokens::Bf16,
            Activation::F32 => Tokens::Bf16Sum,
        }
    }

    /// The same for tokens of a problem, which may ask for them to be rounded.
    pub fn of_problem(problem: &Problem) -> Self {
        Tokens::in_precision(problem.activation(), problem.precision())
    }

    /// The same for rows of a product of experts.
    pub fn of_product(product: &ProductShape) -> Self {
        Tokens::in_precision(product.activation, product.precision)
    }

    /// The same for tokens that are rounded as a precision says.
    pub fn in_precision(activation: Activation, precision: Precision) -> Self {
        match precision {
            Precision::Exact => Tokens::of(activation),
            Precision::Fp8 => Tokens::E4m3,
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> u32 {
        if self == Tokens::E4m3 { 1 } else { 2 }
    }

    /// Numbers that make up one token's element.
    pub fn parts(self) -> u32 {
        if self == Tokens::Bf16Sum { 3 } else { 1 }
    }

    /// How tensor cores add their products up.
    pub(crate) fn arithmetic(self) -> Arithmetic {
        match self {
            Tokens::F16 => Arithmetic::F16_TENSOR_CORES,
            Tokens::Bf16 | Tokens::Bf16Sum => Arithmetic::bf16_tensor_cores(self.parts()),
            Tokens::E4m3 => Arithmetic::Fp8TensorCores,
            Tokens::NvFp4 => Arithmetic::BlockScaledTensorCores,
        }
    }
}
