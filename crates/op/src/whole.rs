//! What makes a problem a whole layer of experts.

use std::cmp::Ordering;

use crate::Intermediate;

/// What a problem is beside the gated products of its groups where it is a whole layer of experts: tokens find their
/// experts, which are the groups; a second product makes results of what the first leaves; and each token's are added
/// up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Whole {
    /// Tokens.
    pub tokens: usize,
    /// Experts of a token.
    pub top: usize,
    /// Columns of the results.
    pub width: usize,
    /// What stands between the two products.
    pub intermediate: Intermediate,
    /// Whether what goes into each product is multiplied with a factor per column first.
    pub scaled: [bool; 2],
    /// Whether a token's result may depend on nothing but that token and the weights.
    pub batch_invariant: bool,
}

/// Rows of an expert beyond which chance makes no difference to speak of: 1/√500 is a twentieth.
const MANY: f64 = 500.0;

impl Whole {
    /// The rows of each of so many experts where chance spreads the tokens over them, the most first: those that divide
    /// a Poisson distribution into equal parts.
    pub fn spread(&self, experts: usize) -> Vec<usize> {
        let entries = self.tokens.saturating_mul(self.top);
        let mean = entries as f64 / experts.max(1) as f64;
        let mut rows = vec![entries / experts.max(1); experts];
        if mean < MANY {
            // The chance of exactly so many rows, and of at most so many.
            let (mut count, mut chance) = (0, (-mean).exp());
            let mut below = chance;
            for (index, rows) in rows.iter_mut().enumerate() {
                while below < (index as f64 + 0.5) / experts as f64 && count < entries {
                    count += 1;
                    chance *= mean / count as f64;
                    below += chance;
                }
                *rows = count;
            }
        }
        rows.reverse();
        // What is left over or was given too often, one by one, from the experts in the middle on.
        let mut given: usize = rows.iter().sum();
        for index in (0..experts).map(|index| (index + experts / 2) % experts).cycle() {
            match given.cmp(&entries) {
                Ordering::Equal => break,
                Ordering::Less => (rows[index], given) = (rows[index] + 1, given + 1),
                Ordering::Greater if rows[index] > 0 => (rows[index], given) = (rows[index] - 1, given - 1),
                Ordering::Greater => {}
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Gate, Output, Precision, Problem};

    const QWEN3: Whole = Whole {
        tokens: 64,
        top: 8,
        width: 2048,
        intermediate: Intermediate::Tokens,
        scaled: [false; 2],
        batch_invariant: false,
    };

    #[test]
    fn chance_leaves_some_experts_without_rows_and_gives_others_twice_the_mean() {
        for tokens in [0, 1, 5, 16, 64, 1000, 100_000] {
            let rows = Whole { tokens, ..QWEN3 }.spread(128);
            assert_eq!(rows.iter().sum::<usize>(), 8 * tokens, "{tokens} tokens");
        }
        let rows = QWEN3.spread(128);
        let idle = rows.iter().filter(|rows| **rows == 0).count();
        assert!((1..=4).contains(&idle), "e⁻⁴ of 128: {rows:?}");
        assert!((8..=10).contains(&rows[0]), "{rows:?}");
        assert_eq!(Whole { tokens: 3, top: 1, ..QWEN3 }.spread(1), [3]);
    }

    #[test]
    fn the_work_of_a_layer_is_that_of_its_products() {
        let types = (Activation::BF16, Output::BF16);
        let layer = Problem::layer(128, [2048, 768], Gate::Silu, types, QWEN3).unwrap();
        assert_eq!(layer.to_string(), "64 tokens, 8 of 128 experts, 2048→768→2048");
        assert_eq!(layer.flops(), 2.0 * 512.0 * 3.0 * 2048.0 * 768.0);
        let products = layer.products().unwrap();
        assert_eq!(products.iter().map(Problem::flops).sum::<f64>(), layer.flops());
        assert_eq!(products[1].activation(), Activation::BF16);
        let hit = layer.groups().iter().filter(|shape| shape.m > 0).count();
        let weights = hit * 3 * 2048 * 768 * 9 / 16;
        assert_eq!(layer.bytes(), (weights + 64 * 2048 * 4) as f64, "tokens are read once, results written once");
        let scaled = Whole { scaled: [true; 2], ..QWEN3 };
        let layer = Problem::layer(128, [2048, 768], Gate::Silu, types, scaled).unwrap();
        assert!(layer.products().unwrap().iter().all(|product| product.activation() == Activation::F32));
        assert!(Problem::layer(0, [2048, 768], Gate::Silu, types, QWEN3).is_err());
    }

    #[test]
    fn both_products_of_a_layer_have_its_precision() {
        let layer =
            |whole| Problem::layer(128, [2048, 768], Gate::Silu, (Activation::BF16, Output::BF16), whole).unwrap();
        let rounded = layer(QWEN3).with_precision(Precision::Fp8).unwrap();
        assert!(rounded.products().unwrap().iter().all(|product| product.precision() == Precision::Fp8));
        let fewer = Whole { intermediate: Intermediate::NvFp4, ..QWEN3 };
        assert!(layer(fewer).with_precision(Precision::Fp8).is_err());
    }
}
