//! The products of a layer of experts: which kernel, by what the host knows, and its launch.
//!
//! Tiles of few tokens have warps along k, as products of few tokens have anyhow; the more tokens, the more warps stand along the columns.
//! How many stages there are is what the device has room for.

use std::sync::Arc;

use op::Schedule;
use ptx::Target;

use super::kernel::{Products, Tokens, WarpMultiplySpec};
use crate::families::experts;
use crate::launch::{Argument, KernelSpec};
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::{ExpertKernel, ProductOperands, ProductShape};

/// Tokens of a tile, at most; and where they are of several parts, which take more room.
const MOST_TOKENS: u32 = 128;
const MOST_WIDE_TOKENS: u32 = 64;
/// Stages of a pipeline: fewer are not legal, and more hide nothing.
const STAGES: std::ops::RangeInclusive<u32> = 3..=8;

/// The tokens of a tile, for so many entries that are of several parts or not.
pub fn tile(entries: u32, experts: u32, wide: bool) -> u32 {
    experts::tile(entries, experts, if wide { MOST_WIDE_TOKENS } else { MOST_TOKENS })
}

/// The kernels for a product with tiles of so many tokens, on a device whose blocks have so many bytes of shared
/// memory.
pub fn kernels(target: Target, shape: &ProductShape, tile: u32, shared_bytes: u32) -> Vec<Arc<dyn ExpertKernel>> {
    let products = if shape.gate.matrices() == 2 { Products::Interleaved } else { Products::Single };
    let with = |fragments: u32, units, stages| {
        let columns = fragments * if products == Products::Interleaved { 8 } else { 16 };
        WarpMultiplySpec {
            target,
            products,
            resident: 1,
            tokens: tile,
            columns,
            fragments: WarpMultiplySpec::sensible_fragments(products, columns),
            units,
            stages,
            epilogue: experts::epilogue(shape, tile),
            schedule: Schedule::Persistent,
            element: Tokens::of(shape.activation),
            function: Function::of(shape.gate),
            output: shape.output,
            groups: 1,
            biased: shape.biased,
            experts: Some(Experts { follows: false, ..Experts::of(shape) }),
        }
    };
    // The most fragments and units first, then what takes less room. Where nobody may share k, as many fragments as keep all warps busy.
    let sizes: &[(u32, u32)] = match tile {
        _ if shape.invariant => &[(16, 4), (16, 2), (16, 1), (8, 1), (4, 1)],
        ..=32 => &[(4, 4), (4, 2), (4, 1), (2, 1)],
        33..=64 => &[(8, 2), (8, 1), (4, 1), (2, 1)],
        _ => &[(16, 1)],
    };
    let alike = |spec: &WarpMultiplySpec| !(shape.invariant && spec.shares_k());
    let fits = |spec: &WarpMultiplySpec| spec.check().is_ok() && spec.shared_bytes() <= shared_bytes && alike(spec);
    let deepest = |&(fragments, units)| STAGES.rev().map(|stages| with(fragments, units, stages)).find(fits);
    sizes.iter().filter_map(deepest).map(|spec| Arc::new(spec) as Arc<dyn ExpertKernel>).collect()
}

impl ExpertKernel for WarpMultiplySpec {
    fn spec(&self) -> KernelSpec {
        (*self).into()
    }

    fn target(&self) -> Target {
        self.target
    }

    fn tile(&self) -> [u32; 2] {
        [self.tokens, self.columns]
    }

    fn resident(&self) -> u32 {
        self.resident
    }

    fn shares_k(&self) -> bool {
        WarpMultiplySpec::shares_k(self)
    }

    fn rows(&self, operands: &ProductOperands, _: [u32; 2]) -> Vec<Argument> {
        vec![Argument::Pointer(operands.rows), Argument::U64(operands.plane)]
    }
}
