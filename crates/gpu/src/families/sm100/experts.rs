//! The products of a layer of experts: which kernels, and what they are to launches.
//!
//! Rows are numbers of 16 bits, so weights are dequantised on their way to the tensor cores. A tile of fewer than 128
//! tokens has weights for rows of its multiplications, as products of few tokens have; two sets of accumulators let one
//! tile be finished while the next is summed.

use op::{Epilogue, Schedule};
use ptx::Target;

use super::kernel::{Products, TARGET, TensorMultiplySpec, Tokens};
use crate::families::experts;
use crate::launch::{Argument, KernelSpec};
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::{ExpertKernel, ProductOperands, ProductShape};

/// Tokens of a tile, at most: the rows of a multiplication; and where they are of several parts, which take more room.
const MOST_TOKENS: u32 = 128;
const MOST_WIDE_TOKENS: u32 = 64;
/// By how many tokens tiles of fewer go: columns of multiplications of 16-bit numbers.
const STEP: u32 = 16;
/// Columns of a tile worth trying, the widest first. Tiles of fewer than 128 tokens have 128.
const COLUMNS: [u32; 2] = [128, 64];
/// Stages of a pipeline: fewer hide nothing, and more hide no more.
const STAGES: std::ops::RangeInclusive<u32> = 2..=8;

/// The tokens of a tile, for so many entries that are of several parts or not.
pub fn tile(entries: u32, experts: u32, wide: bool) -> u32 {
    experts::tile(entries, experts, if wide { MOST_WIDE_TOKENS } else { MOST_TOKENS }).next_multiple_of(STEP)
}

/// The kernels for a product with tiles of so many tokens, the one to take first.
pub fn kernels(shape: &ProductShape, tile: u32) -> Vec<TensorMultiplySpec> {
    let products = if shape.gate.matrices() == 2 { Products::Interleaved } else { Products::Single };
    let with = |columns, sets, stages| TensorMultiplySpec {
        products,
        sets,
        element: Some(Tokens::of(shape.activation)),
        tokens: tile,
        columns,
        stages,
        epilogue: Epilogue::Direct,
        schedule: Schedule::Persistent,
        multicast: 1,
        ahead: 0,
        aligned: (shape.n as usize * shape.output.bytes()).is_multiple_of(16),
        function: Function::of(shape.gate),
        output: shape.output,
        groups: 1,
        biased: shape.biased,
        experts: Some(Experts::of(shape)),
    };
    let fits = |spec: &TensorMultiplySpec| spec.check().is_ok();
    let deepest = |(columns, sets)| STAGES.rev().map(|stages| with(columns, sets, stages)).find(fits);
    COLUMNS.iter().flat_map(|&columns| [(columns, 2), (columns, 1)]).filter_map(deepest).collect()
}

impl ExpertKernel for TensorMultiplySpec {
    fn spec(&self) -> KernelSpec {
        (*self).into()
    }

    fn target(&self) -> Target {
        TARGET
    }

    fn tile(&self) -> [u32; 2] {
        [self.tokens, self.columns]
    }

    fn resident(&self) -> u32 {
        1
    }

    fn shares_k(&self) -> bool {
        false
    }

    fn rows(&self, operands: &ProductOperands, sides: [u32; 2]) -> Vec<Argument> {
        vec![Argument::Maps(vec![self.token_map(operands.rows, sides, operands.plane)])]
    }
}
