//! The products of a layer of experts: which kernels, by what the host knows (how many entries there may be, and how many experts), and
//! their launches.

use op::Schedule;
use ptx::Target;

use super::kernel::{MultiplySpec, Products, Tokens, UNIT};
use crate::families::experts;
use crate::launch::{Argument, KernelSpec};
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::{ExpertKernel, ProductOperands, ProductShape};

/// Tokens of a tile up to which two blocks are on a multiprocessor, each with one block of rows.
const FEW: u32 = 16;
/// Tokens of a tile, at most: as many keep the tensor cores busy, and more experts' rows fall between the widths of wider ones.
const MOST_TOKENS: u32 = 160;
/// Blocks of rows of a wide tile, how many such tiles each multiprocessor must have, and what of their columns may be
/// beyond the last.
const WIDE: u32 = 4;
const MANY_TILES: f64 = 2.0;
const MOST_WASTE: f64 = 1.07;
/// Stages of a pipeline, at most.
const MOST_STAGES: u32 = 16;

/// The tokens of a tile, for so many entries.
pub fn tile(entries: u32, experts: u32) -> u32 {
    experts::tile(entries, experts, MOST_TOKENS)
}

/// How tiles of so many tokens are computed, the way that is taken first: blocks of rows of a tile, units of a stage where there is room,
/// and blocks on a multiprocessor. Two warpgroups share k of one block of rows, so where nobody may, tiles have two or more.
fn ways(shape: &ProductShape, tile: u32) -> Vec<(u32, u32, u32)> {
    // Multiplied part by part, four units would take too many registers.
    let whole = Tokens::of(shape.activation).parts() == 1;
    let deep = if whole && shape.k.div_ceil(UNIT) >= 16 { 4 } else { 2 };
    if tile <= FEW {
        // With more tokens, four units would take too many registers, too.
        vec![(if shape.invariant { 2 } else { 1 }, deep, 2), (4, if tile <= 8 { deep } else { 2 }, 1)]
    } else if tile <= 64 {
        vec![(4, 2, 1), (2, 2, 1)]
    } else if tile <= 128 {
        vec![(2, 2, 1), (3, 1, 1)]
    } else {
        vec![(2, 1, 1)]
    }
}

/// The kernels worth trying for a product with tiles of so many tokens; the first is the one to take where nothing is known.
pub fn kernels(shape: &ProductShape, tile: u32) -> Vec<MultiplySpec> {
    let products = if shape.gate.matrices() == 2 { Products::Interleaved } else { Products::Single };
    let width = if products == Products::Interleaved { 32 } else { 64 };
    let with = |blocks, units, stages| MultiplySpec {
        products,
        ping_pong: false,
        tokens: tile,
        columns: width * blocks,
        units,
        stages,
        epilogue: experts::epilogue(shape, tile),
        schedule: Schedule::Persistent,
        element: Tokens::of(shape.activation),
        function: Function::of(shape.gate),
        output: shape.output,
        groups: 1,
        biased: shape.biased,
        experts: Some(Experts::of(shape)),
    };
    // As many stages as there is room for, of as many units, or else of fewer.
    let deepest = |(blocks, units, resident): (u32, u32, u32)| {
        [units, units / 2, units / 4].into_iter().filter(|&units| units > 0).find_map(|units| {
            let alike = |spec: &MultiplySpec| !(shape.invariant && spec.shares_k());
            let fits = |spec: &MultiplySpec| spec.check().is_ok() && spec.resident() == resident && alike(spec);
            (2..=MOST_STAGES).rev().map(|stages| with(blocks, units, stages)).find(fits)
        })
    };
    let mut found: Vec<MultiplySpec> = ways(shape, tile).into_iter().filter_map(deepest).collect();
    // Tokens of several parts take more room.
    found.extend(deepest((1, 2, 1)).filter(|_| found.is_empty()));
    found
}

/// The kernel to take for so many entries, if there is one with such tiles. Wide tiles of few tokens have less to do besides multiplying, but
/// want more of them than there are places for blocks, and columns that they divide.
pub fn kernel(shape: &ProductShape, tile: u32, entries: u32, multiprocessors: u32) -> Option<MultiplySpec> {
    let all = kernels(shape, tile);
    let count = f64::from(shape.experts);
    let hit = count * (1.0 - (1.0 - 1.0 / count).powi(entries.cast_signed()));
    let suits = |kernel: &&MultiplySpec| {
        let columns = shape.n.next_multiple_of(kernel.columns);
        let tiles = hit * f64::from(columns / kernel.columns);
        let many = MANY_TILES * f64::from(multiprocessors);
        kernel.blocks() == WIDE && tiles >= many && f64::from(columns) <= MOST_WASTE * f64::from(shape.n)
    };
    all.iter().find(suits).or(all.first()).copied()
}

impl ExpertKernel for MultiplySpec {
    fn spec(&self) -> KernelSpec {
        (*self).into()
    }

    fn target(&self) -> Target {
        Target::Sm90a
    }

    fn tile(&self) -> [u32; 2] {
        [self.tokens, self.columns]
    }

    fn resident(&self) -> u32 {
        MultiplySpec::resident(self)
    }

    fn shares_k(&self) -> bool {
        MultiplySpec::shares_k(self)
    }

    fn rows(&self, operands: &ProductOperands, sides: [u32; 2]) -> Vec<Argument> {
        let map = |width| self.row_map(operands.rows, sides, operands.plane, width);
        vec![Argument::Maps(self.widths().into_iter().map(map).collect())]
    }
}
