//! One product of a layer of experts, as the families of kernels are asked for it.

use format::Scaling;
use op::{Activation, Gate, Output, Precision, Problem, Result, Setting, Shape};

use crate::pack::Codes;

/// The most experts of a layer.
pub const MOST_EXPERTS: u32 = 1024;

/// Steps of 64 of K of a block's tile under which the tile before it is stored; 0 where it is stored before that.
pub const UNDER: Setting = Setting::new("under", 0);

/// 1 where each warp multiplies by itself (`mma.sync`), for tiles of few tokens; 0 where warpgroups do (`wgmma`).
pub const WARPS: Setting = Setting::new("warps", 0);

/// A product: rows `[rows, k]` in the order of their experts, times every expert's own weights, gives `[rows, n]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductShape {
    /// Experts.
    pub experts: u32,
    /// Columns of the result.
    pub n: u32,
    /// The summed dimension.
    pub k: u32,
    /// How two matrices' sums become one value, or what becomes of the only one's.
    pub gate: Gate,
    /// What rows were, before they were made what the tensor cores take.
    pub activation: Activation,
    /// What rows and weights are rounded to.
    pub precision: Precision,
    /// What the words of weights are in order for.
    pub codes: Codes,
    /// How the codes of weights share scales.
    pub scaling: Scaling,
    /// The type of the result.
    pub output: Output,
    /// Whether sums have biases added.
    pub biased: bool,
    /// Whether sums are multiplied with a factor per row.
    pub factored: bool,
    /// Whether it comes right behind a product with the same layout.
    pub follows: bool,
    /// Whether rows may have something added to their sums, which the launch before leaves.
    pub added: bool,
    /// Whether a row's sums are added in the same order whatever the tile: then nobody shares k.
    pub invariant: bool,
}

impl ProductShape {
    /// The product as a problem, where the experts have these rows.
    pub(crate) fn problem(&self, rows: impl Iterator<Item = usize>) -> Result<Problem> {
        let groups = rows.map(|rows| Shape::new(rows, self.n as usize, self.k as usize)).collect();
        let problem = Problem::new(groups, self.gate, self.activation, self.output)?;
        problem.with_precision(self.precision)?.with_scaling(self.scaling)
    }
}

/// Where a product's operands are. All of them begin at multiples of 16.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProductOperands {
    /// The rows as the tensor cores take them, and bytes from one part of them to the next, where they have several.
    pub rows: u64,
    /// Bytes between parts.
    pub plane: u64,
    /// The layout that the sort has left.
    pub layout: u64,
    /// The first expert's packed matrices: gate and up, or only one.
    pub weights: [u64; 2],
    /// Bytes from one expert's matrices to the next one's.
    pub stride: u32,
    /// The first expert's factors of the first of those matrices.
    pub factors: u64,
    /// The first expert's biases, one `[n]` after the other.
    pub biases: [u64; 2],
    /// A factor per row.
    pub row_factors: u64,
    /// Where rows and weights are rounded to e4m3: what each row was divided by, and the first expert's lift of the
    /// first of those matrices, a word.
    pub rounded: [u64; 2],
    /// Where sums have something added: the adapter of every row, how many adapters there are, and `[rows, matrices,
    /// n]` for the rows of which the adapter is one of those.
    pub added: (u64, u32, u64),
    /// The result.
    pub out: u64,
}
