//! How backends add products up, and how far the sum may be off for it.
//!
//! Write ε = 2⁻²⁴, the rounding error of one f32 operation to nearest, and S = Σ|a·b|. Operands are exact, and so are
//! products but where said otherwise: what is lost is lost in additions, and there it is a part of the sum so far. So
//! the bound counts additions and asks how large a sum they are made to. The reference has seen that, for every order
//! in which a backend adds (see [`Sum`]): on average and at most. That is half of S and S where all products have one
//! sign, and a few √K products where signs are mixed. Errors are then taken to add up in the worst way. That they would
//! cancel like random ones, as √K of them, is true of most inputs and false of others: products just below half a unit
//! in the last place of the sum are all lost, whether it rounds or truncates. The bound is nevertheless smaller than
//! with √K·S where signs are mixed, and notices one forgotten product there.
//!
//! What is known of each arithmetic, and from whom:
//!
//! - **x86 vector units and scalar code** round every operation to nearest (IEEE 754).
//! - **AMX**, TDPBF16PS: per tile of 32 of K, even and odd products are added up by fused operations in two sums of
//!   their own from zero, these two are added, and their sum is added to the running one; every addition rounds to
//!   nearest even, with subnormal numbers taken for zero, whatever MXCSR says (Intel 64 and IA-32 Software Developer's
//!   Manual, volume 2, TDPBF16PS, "Operation").
//! - **Hopper's tensor cores**, wgmma with f16 or bf16 operands and f32 sums: NVIDIA documents nothing. By experiment
//!   the sixteen exact products of an instruction and the running sum are aligned to the largest exponent among them
//!   (that of a product being the sum of its operands', not normalised), cut off 25 bits behind its point, added
//!   exactly, and the result is cut to f32, towards zero both times. Fasi, Higham, Mikaitis and Pranesh, "Numerical
//!   behavior of NVIDIA tensor cores" (PeerJ CS 7:e330, 2021), found the method on Volta, Turing and Ampere, with fewer
//!   bits; Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores" (arXiv:2512.07004, 2025), and Xie, Wang, Yang
//!   and Yang, "MMA-Sim" (arXiv:2511.10909, 2025), the numbers for Hopper, which models confirm to the bit. Both cuts
//!   are systematic: with products of one sign they all go the same way.
//! - **The same with e4m3 operands**: 32 products and the running sum are aligned and cut in the same way, but 13 bits
//!   behind the point of the largest, and so is their sum ("MMA-Sim"; DeepSeek-V3's report, arXiv:2412.19437, has found
//!   the 14 bits by experiment). Kernels that promote sums to f32 every 128 of K lose less; ours do not, since two sets
//!   of sums leave no registers for tiles of 256 tokens. What is lost is derived from the products themselves, by the
//!   reference ([`Sum::coarse`]): each less than the place of that bit where it is not a multiple of it.
//! - **Blackwell's tensor cores**, tcgen05: with f16 or bf16 operands as Hopper's. With NVFP4 operands and their
//!   scales, an instruction's 64 products are added up exactly within each block of 16, multiplied with the two scales
//!   exactly, and these four and the running sum aligned to the largest exponent among those of the scales' products
//!   and of the sum, cut off 35 bits behind its point, added exactly, and the result cut to f32 (MMA-Sim, confirmed to
//!   the bit on a B200). Our packing leaves no scale that is more than twice the largest magnitude of its block.
//! - **The simulator** adds an instruction's products to the running sum one after another and rounds each time to
//!   nearest. It does not model Hopper's cuts; where all partial sums are exact, both give the same bits.

use crate::reference::Sum;

const EPSILON: f64 = 1.0 / (1u32 << 24) as f64;
/// Standard deviations that errors which are as good as random stay within, but for one chance in 10¹³.
const LAMBDA: f64 = 8.0;

/// How products are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Somehow, in f32. At most 2K + 8 roundings, which are taken to be random: then they stay below λ·√n·ε·S but for a
    /// chance of 2·exp(−λ²/2) (Higham and Mary, 2019). For others' results on inputs that nobody has made adverse.
    Unknown,
    /// One product after the other, rounded, and added, rounded.
    Separate,
    /// Fused multiply-adds: one product after the other; or each block of 16 from zero in two sums, without its scale,
    /// which multiplies their sum when that is added to the total, fused again.
    Fused,
    /// Blocks of 16 as exact integers, each added by one fused multiply-add.
    Blocks,
    /// AMX tiles of bf16; dense activations as the sum of so many parts, each with sums of its own.
    Tiles {
        /// Parts of an activation.
        parts: u32,
    },
    /// Hopper's tensor cores; activations as the sum of so many parts, all added to the same sums.
    TensorCores {
        /// Parts of an activation.
        parts: u32,
        /// Operands' least normal exponent, below which they count as if they had that one.
        least_exponent: i32,
    },
    /// Hopper's tensor cores on e4m3 operands.
    Fp8TensorCores,
    /// Blackwell's tensor cores on NVFP4 operands.
    BlockScaledTensorCores,
    /// The simulated tensor cores.
    Simulated {
        /// Parts of an activation.
        parts: u32,
    },
}

impl Arithmetic {
    /// Hopper's tensor cores with f16 operands.
    pub const F16_TENSOR_CORES: Self = Arithmetic::TensorCores { parts: 1, least_exponent: -14 };

    /// Hopper's tensor cores with bf16 operands, in so many parts.
    pub const fn bf16_tensor_cores(parts: u32) -> Self {
        Arithmetic::TensorCores { parts, least_exponent: -126 }
    }

    /// How far the sum of `k` products may be off.
    pub fn error(self, sum: &Sum, k: usize) -> f64 {
        let (all, k) = (sum.magnitude, k as f64);
        if self == Arithmetic::Fp8TensorCores && all.is_finite() {
            return sum.coarse + if sum.coarse > 0.0 { JOINS * EPSILON * all } else { 0.0 };
        }
        if sum.exact || all.is_infinite() {
            return if sum.exact && all.is_finite() { 0.0 } else { f64::INFINITY };
        }
        // No sum is larger on its way than this; on average, when a product is added, it is `sum.average`.
        let partial = all.min(sum.peak + sum.burst);
        let error = match self {
            Arithmetic::Unknown => {
                let roundings = 2.0 * k + 8.0;
                roundings.min(LAMBDA * roundings.sqrt()) * all
            }
            Arithmetic::Separate => k * sum.average + all,
            // `average` holds for any order of the products within a stretch. It counts a stretch's magnitude at each
            // of its 16 products or more, so k times it is 16·S at least, of which blocks by themselves would ask for
            // 9·S (eight roundings in either sum, and one where they meet) and a sixteenth of the rest. What is exact
            // with scales is exact without them, having fewer bits.
            Arithmetic::Fused => k * sum.average,
            Arithmetic::Blocks => k / 16.0 * sum.average,
            Arithmetic::Tiles { parts } => {
                // A first part is off by less than 2⁻⁷ of its activation, and later parts are no larger than that.
                let apart = if parts > 1 { all * 2f64.powi(-6) } else { 0.0 };
                let within = k.min(32.0) + 1.0;
                within * (all + apart) + (k / 32.0).ceil() * (sum.average + apart) + f64::from(parts - 1) * all
            }
            Arithmetic::TensorCores { parts, least_exponent } => {
                let instructions = (k / 16.0).ceil() * f64::from(parts);
                let cut = 2.0 * instructions * sum.average;
                cut + aligned(sum, partial, k * f64::from(parts), instructions, least_exponent) + JOINS * partial
            }
            Arithmetic::Fp8TensorCores => 0.0,
            Arithmetic::BlockScaledTensorCores => {
                let instructions = (k / 64.0).ceil();
                let scales = sum.alpha * 4.0 * sum.operands[0] * sum.operands[1];
                // Four blocks and the running sum are each cut 35 bits behind the largest's point, and their sum behind
                // its 24th.
                let cut = 5.0 * 2f64.powi(24 - 35) * (partial + scales) + 2.0 * sum.average;
                instructions * cut + JOINS * partial
            }
            Arithmetic::Simulated { parts } => k * f64::from(parts) * sum.average + JOINS * partial,
        };
        EPSILON * error
    }
}

/// Additions of sums that two warpgroups, and then two blocks, have of the same element.
const JOINS: f64 = 2.0;

/// What alignment cuts off, in units of ε: up to 2⁻²⁵ of the largest addend from every product and from the running
/// sum, and nothing where all of them are multiples of that.
fn aligned(sum: &Sum, partial: f64, products: f64, instructions: f64, least_exponent: i32) -> f64 {
    // Dequantised weights are 2⁻⁷ of themselves.
    let [token, weight] = sum.operands;
    let least = 2f64.powi(least_exponent);
    let product = sum.alpha * token.max(least) * weight.max(least * 128.0);
    let most = partial.max(product);
    if sum.quantum >= most * 2f64.powi(-25) {
        return 0.0;
    }
    let largest = most.min(sum.average + product);
    (products * largest / 2.0).min(sum.magnitude / EPSILON) + instructions * largest / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{Row, dot};
    use fastrand::Rng;

    const EVERY: [Arithmetic; 9] = [
        Arithmetic::Separate,
        Arithmetic::Fused,
        Arithmetic::Blocks,
        Arithmetic::Tiles { parts: 1 },
        Arithmetic::Tiles { parts: 3 },
        Arithmetic::F16_TENSOR_CORES,
        Arithmetic::bf16_tensor_cores(1),
        Arithmetic::BlockScaledTensorCores,
        Arithmetic::Simulated { parts: 1 },
    ];
    const K: usize = 7168;

    /// Products of a code and a scale, as a layer has them; of one sign if asked for.
    fn row(rng: &mut Rng, one_sign: bool) -> Row {
        let codes = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let mut value = || {
            let scale = (8 + rng.i32(..8)) as f32 / 8.0 * 2f32.powi(rng.i32(-2..2));
            let sign = if rng.bool() && !one_sign { -1.0 } else { 1.0 };
            sign * codes[rng.usize(..7)] * scale
        };
        Row::new((0..K).map(|_| value()).collect())
    }

    #[test]
    fn one_forgotten_product_of_average_size_is_noticed_where_signs_are_mixed() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..50 {
            let sum = dot(&row(&mut rng, false), &row(&mut rng, false), 1.0, 0.0);
            for arithmetic in EVERY.into_iter().chain([Arithmetic::Unknown]) {
                let average = sum.magnitude / K as f64;
                let error = arithmetic.error(&sum, K);
                assert!(error < average, "{arithmetic:?}: {error} of {average}");
            }
        }
    }

    #[test]
    fn truncation_is_granted_linearly_and_with_every_instruction() {
        let mut rng = Rng::with_seed(2);
        let [a, b] = [row(&mut rng, true), row(&mut rng, true)];
        let sum = dot(&a, &b, 1.0, 0.0);
        let [once, twice] = [K, 2 * K].map(|k| Arithmetic::F16_TENSOR_CORES.error(&sum, k) / (EPSILON * sum.magnitude));
        assert!((twice / once - 2.0).abs() < 0.01, "{once}, {twice}");
        assert!(once >= 2.0 * (K / 16) as f64);
    }

    /// What Hopper is described to make of two rows of 16-bit floats: sixteen products and the running sum at a time.
    fn hopper(a: &[f32], b: &[f32]) -> f64 {
        let exponent = |x: f64| if x == 0.0 { -300 } else { x.abs().log2().floor() as i32 };
        let mut sum = 0f64;
        for (a, b) in a.chunks(16).zip(b.chunks(16)) {
            let pairs = || a.iter().zip(b).map(|(&a, &b)| (f64::from(a), f64::from(b)));
            let highest = pairs().map(|(a, b)| exponent(a) + exponent(b)).fold(exponent(sum), i32::max);
            let grid = 2f64.powi(highest - 25);
            let total = pairs().map(|(a, b)| a * b).chain([sum]).map(|x| (x / grid).trunc()).sum::<f64>() * grid;
            let last_place = 2f64.powi(exponent(total) - 23);
            sum = (total / last_place).trunc() * last_place;
        }
        sum
    }

    #[test]
    fn what_hopper_is_described_to_do_is_within_the_bound_and_a_good_part_of_it() {
        let mut rng = Rng::with_seed(3);
        let small = |first: f32, rest: f32| [vec![first], vec![0.0; 15], vec![rest; K - 16]].concat();
        let mut values = |one_sign| row(&mut rng, one_sign).values();
        // Of one large product and small ones, each just below what is cut off, nothing is left but the large one.
        let inputs = [
            (values(false), values(false), 0.0),
            (values(true), values(true), 0.1),
            (small(1024.0, 0.9375), small(1024.0, 0.0625), 0.1),
            (small(1024.0, 0.96875), small(1024.0, 0.03125), 0.5),
        ];
        for (a, b, least) in inputs {
            let sum = dot(&Row::new(a.clone()), &Row::new(b.clone()), 1.0, 0.0);
            let used = (hopper(&a, &b) - sum.value).abs() / Arithmetic::F16_TENSOR_CORES.error(&sum, K);
            assert!((least..=1.0).contains(&used), "{used} of the bound");
        }
    }

    #[test]
    fn exact_sums_are_granted_nothing_and_sums_beyond_f32_everything() {
        let ones = Row::new(vec![1.0; 64]);
        let large = Row::new(vec![3e38; 64]);
        for arithmetic in EVERY {
            assert_eq!(arithmetic.error(&dot(&ones, &ones, 1.0, 0.0), 64), 0.0);
            assert_eq!(arithmetic.error(&dot(&large, &ones, 1.0, 0.0), 64), f64::INFINITY);
        }
    }

    #[test]
    fn alignment_cuts_nothing_where_every_product_is_a_multiple_of_the_cut() {
        let Arithmetic::TensorCores { least_exponent, .. } = Arithmetic::F16_TENSOR_CORES else { unreachable!() };
        let cut = |weight: f32| {
            let a = Row::new([vec![1024.0; 16], vec![1.0; 48]].concat());
            let b = Row::new([vec![weight; 16], vec![0.5; 48]].concat());
            let sum = dot(&a, &b, 1.0, 0.0);
            assert!(!sum.exact, "more bits than f32 holds");
            aligned(&sum, sum.magnitude, 64.0, 4.0, least_exponent)
        };
        assert_eq!(cut(768.0), 0.0, "but no more than 25 behind the point");
        assert!(cut(3072.0) > 0.0);
    }
}
