//! The products of a layer of experts: which kernel, by what the host knows, and its launch.
//!
//! Tiles of few tokens have warps along k, as products of few tokens have anyhow; the more tokens, the more warps stand along the columns.
//! How many stages there are is what the device has room for.

use op::Schedule;
use ptx::{Feature, Target};

use super::kernel::{Products, Tokens, WarpMultiplySpec};
use crate::families::experts::{self, Experts};
use crate::gating::{self, Function};
use crate::launch::{Argument, Launch};
use crate::products::{ProductOperands, ProductShape};

/// Tokens of a tile, at most; and where they are of several parts, which take more room.
const MOST_TOKENS: u32 = 128;
const MOST_WIDE_TOKENS: u32 = 64;
/// Stages of a pipeline: fewer are not legal, and more hide nothing.
const STAGES: std::ops::RangeInclusive<u32> = 3..=8;

/// The tokens of a tile, for so many entries that are of several parts or not.
pub fn tile(entries: u32, experts: u32, wide: bool) -> u32 {
    experts::tile(entries, experts, if wide { MOST_WIDE_TOKENS } else { MOST_TOKENS })
}

/// The kernel for a product with tiles of so many tokens, on a device whose blocks have so many bytes of shared memory; if there is one.
pub fn kernel(target: Target, shape: &ProductShape, tile: u32, shared_bytes: u32) -> Option<WarpMultiplySpec> {
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
    sizes.iter().find_map(|&(fragments, units)| STAGES.rev().map(|stages| with(fragments, units, stages)).find(fits))
}

/// A product's launch over so many rows, of which the layout says which are whose.
pub fn launch(
    shape: &ProductShape,
    kernel: WarpMultiplySpec,
    operands: &ProductOperands,
    rows: u32,
    multiprocessors: u32,
) -> Launch {
    let two = kernel.products != Products::Single;
    let mut arguments = vec![Argument::Pointer(operands.rows), Argument::U64(operands.plane)];
    arguments.extend(experts::arguments(shape, operands, two));
    arguments.push(Argument::F32(gating::clamp(shape.gate)));
    let most = experts::most_tiles(shape, rows, [kernel.tokens, kernel.columns]);
    let grid = [most.min(multiprocessors * kernel.resident), 1, 1];
    let overlapping = kernel.target.has(Feature::GridDependency);
    Launch { kernel: kernel.into(), grid, arguments, overlapping }
}
