//! One thread gives the tensor cores their work: scales from a stage to tensor memory, and the products of codes in the
//! stage.
//!
//! Per 64 of k a block-scaled multiplication takes 128 rows against up to 256 columns. Where tokens are the rows, they
//! meet the weights of gate and up one after the other, and the second time may come from the collector; where they are
//! the columns, gate and up weights are the rows of one multiplication each.
//!
//! Where gate is ahead of up, a tile's last stages are gone through twice: once with gate, and once more, before any of
//! them is empty, with up.

use std::ops::Range;

use ptx::descriptor::{BlockScaledShape, HalvesShape, MatrixLayout, Swizzle};
use ptx::instr::Collector;
use ptx::{Builder, MmaShape, Multiply, MultiplyHalves, Pred, Reg, Tcgen05Matrix, TensorAddress, U32};

use super::pipeline::Turn;
use super::work::Tile;
use super::{BLOCK_COLUMNS, Parts, Tokens};
use crate::families::sm100::slabs::{BLOCK_ROWS, ROW_BYTES, SCALE_BYTES, UNIT, UNIT_SCALES, UNITS};

/// Scales in shared memory: eight rows of sixteen bytes after eight rows.
const SCALE_LAYOUT: MatrixLayout = MatrixLayout { swizzle: Swizzle::None, leading: 16, stride: 128 };
/// Codes there.
const CODE_LAYOUT: MatrixLayout = MatrixLayout::K_MAJOR_128;
/// Columns of tensor memory that the scales of 128 rows and one unit take.
const UNIT_COLUMNS: u32 = 4;
/// Slices of 16 of a unit of numbers of 16 bits, and the bytes of a row in one.
const SLICES: u32 = 4;
const SLICE_BYTES: u32 = ROW_BYTES / SLICES;
/// Where an instruction descriptor has its columns, in eights.
const SHAPE_COLUMNS: u32 = 17;

/// One lane of a warp issues everything; in the second block of a pair it tells the first what is there.
pub(super) fn multiply(k: &mut Builder, parts: &Parts, base: Reg<TensorAddress>) {
    let elected = k.elect();
    k.if_(elected, |k| match parts.place.rank {
        None => lead(k, parts, base),
        Some(rank) => {
            let (leads, follows) = (k.eq(rank, 0), k.ne(rank, 0));
            k.if_(leads, |k| lead(k, parts, base));
            k.if_(follows, |k| follow(k, parts));
        }
    });
}

/// The second block of a pair passes on that its stages are full.
fn follow(k: &mut Builder, parts: &Parts) {
    let turn = parts.pipe.start(k);
    parts.work.each_tile(k, |k, tile| {
        for _ in 0..parts.config.passes() {
            k.repeat(tile.steps, |k, _| {
                parts.pipe.pass_on(k, &turn);
                parts.pipe.advance(k, &turn);
            });
        }
    });
}

/// Multiplies what stages hold as they fill, tile after tile, and hands the sums over.
fn lead(k: &mut Builder, parts: &Parts, base: Reg<TensorAddress>) {
    let turn = parts.pipe.start(k);
    parts.work.each_tile(k, |k, tile| {
        parts.pipe.wait_drained(k, tile.round);
        let sums = parts.pipe.accumulators(k, base, tile.round);
        let shape = shape(k, parts, &tile);
        let sum = Sum { parts, tile: &tile, base, sums, shape };
        for pass in 0..parts.config.passes() {
            let left = k.variable(tile.units);
            let ahead = (parts.config.ahead > 0).then(|| k.min(tile.steps, parts.config.ahead));
            let together = ahead.map_or(tile.steps, |ahead| k.sub(tile.steps, ahead));
            let every = 0..parts.config.matrices();
            k.repeat(together, |k, step| {
                parts.pipe.wait_full(k, &turn);
                let later = k.ne(step, 0);
                sum.products(k, &turn, (pass, every.clone()), left, later);
                parts.pipe.release(k, &turn);
                parts.pipe.advance(k, &turn);
            });
            match ahead {
                Some(ahead) => sum.gate_ahead(k, &turn, [together, ahead], left),
                None if pass == 0 => parts.pipe.hand_gate_over(k, tile.round),
                None => {}
            }
        }
        parts.pipe.hand_over(k, tile.round);
    });
}

/// What is added to the sums of a tile: `base` is where tensor memory begins, `sums` its first accumulator.
struct Sum<'a> {
    parts: &'a Parts,
    tile: &'a Tile,
    base: Reg<TensorAddress>,
    sums: Reg<U32>,
    shape: Reg<MmaShape>,
}

impl Sum<'_> {
    /// The products of a stage with some of its matrices, of which so many units of k are left.
    fn products(&self, k: &mut Builder, turn: &Turn, (pass, matrices): (u32, Range<u32>), left: Reg<U32>, later: Pred) {
        let target = Target { sums: self.sums, shape: self.shape, pass, matrices };
        match Stage::new(k, self.parts, self.tile, turn, self.base) {
            Some(stage) => stage.multiply(k, self.parts, &target, left, later),
            None => multiply_halves(k, self.parts, turn, &target, later),
        }
    }

    /// The last stages: gate's products of all of them, handed over, then up's. `before` is how many stages came before
    /// them.
    fn gate_ahead(&self, k: &mut Builder, turn: &Turn, [before, ahead]: [Reg<U32>; 2], left: Reg<U32>) {
        let pipe = &self.parts.pipe;
        let (again, still_left) = (pipe.same(k, turn), k.variable(left));
        let later = |k: &mut Builder, step: Reg<U32>| {
            let number = k.add(before, step);
            k.ne(number, 0)
        };
        k.repeat(ahead, |k, step| {
            pipe.wait_full(k, turn);
            let later = later(k, step);
            self.products(k, turn, (0, 0..1), left, later);
            pipe.advance(k, turn);
        });
        pipe.hand_gate_over(k, self.tile.round);
        k.repeat(ahead, |k, step| {
            let later = later(k, step);
            self.products(k, &again, (0, 1..2), still_left, later);
            pipe.release(k, &again);
            pipe.advance_stage(k, &again);
        });
    }
}

/// Where products go: the first accumulator of the tile, the multiplications' shape, which of several passes it is, and
/// the matrices of the stage that are multiplied with.
struct Target {
    sums: Reg<U32>,
    shape: Reg<MmaShape>,
    pass: u32,
    matrices: Range<u32>,
}

impl Target {
    /// The accumulator of a stage's matrix.
    fn accumulator(&self, k: &mut Builder, parts: &Parts, matrix: u32) -> Reg<TensorAddress> {
        k.add(self.sums, (matrix + self.pass) * parts.config.width()).cast()
    }

    /// What becomes of A: tokens that meet two matrices stay for the second.
    fn collector(&self, parts: &Parts, matrix: u32) -> Collector {
        match (parts.config.swapped() || self.matrices.len() == 1, matrix) {
            (true, _) => Collector::Discard,
            (false, 0) => Collector::Fill,
            (false, _) => Collector::LastUse,
        }
    }
}

/// The instruction descriptor of a tile: where tokens are columns, as many as it has, in steps.
fn shape(k: &mut Builder, parts: &Parts, tile: &Tile) -> Reg<MmaShape> {
    let config = &parts.config;
    let rows = BLOCK_ROWS * config.partners();
    let with = |k: &mut Builder, n| match config.element {
        None => k.block_scaled_shape(BlockScaledShape { m: rows, n, scale_a_id: 0, scale_b_id: 0 }),
        Some(element) => k.halves_shape(HalvesShape { m: rows, n, bf16: element != Tokens::F16 }),
    };
    if !config.swapped() {
        return with(k, config.width());
    }
    let least = with(k, config.width_step()).cast::<U32>();
    let beyond = k.sub(tile.tokens, 1);
    let further = k.shr(beyond, config.width_step().trailing_zeros());
    k.mul_add(further, (config.width_step() / 8) << SHAPE_COLUMNS, least).cast()
}

/// The products of one unit of numbers of 16 bits: four slices of sixteen, each part of the tokens against each matrix.
fn multiply_halves(k: &mut Builder, parts: &Parts, turn: &Turn, target: &Target, later: Pred) {
    let config = &parts.config;
    let [tokens, weights] = parts.pipe.codes(k, turn).map(|at| k.descriptor_low(CODE_LAYOUT, at));
    for slice in 0..SLICES {
        for part in 0..config.parts() {
            let part_bytes = config.token_rows() * ROW_BYTES;
            let tokens = descriptor(k, tokens, part * part_bytes + slice * SLICE_BYTES);
            let accumulate = if slice + part == 0 { later } else { k.bits(1) };
            for matrix in target.matrices.clone() {
                let weights = descriptor(k, weights, matrix * parts.pipe.matrix_bytes() + slice * SLICE_BYTES);
                let (a, b) = if config.swapped() { (weights, tokens) } else { (tokens, weights) };
                let (d, collector) = (target.accumulator(k, parts, matrix), target.collector(parts, matrix));
                let (group, shape) = (config.group(), target.shape);
                k.tensor_multiply_halves(MultiplyHalves { group, d, a, b, shape, accumulate, collector });
            }
        }
    }
}

/// The descriptor of rows that begin some bytes from where a low word says.
fn descriptor(k: &mut Builder, low: Reg<U32>, bytes: u32) -> Reg<Tcgen05Matrix> {
    let low = k.add(low, bytes / 16);
    k.tcgen05_descriptor(CODE_LAYOUT, low)
}

/// Where a stage's operands are, if they have scales: low words of descriptors, and columns of tensor memory for
/// scales.
struct Stage {
    tokens: Reg<U32>,
    weights: Reg<U32>,
    scales: Reg<U32>,
    columns: Reg<U32>,
    /// Columns of the weights' scales to leave out, where a tile is half of their block: none, or the two of its first
    /// 64 rows. An odd column is a misaligned address to the tensor cores.
    skipped: Option<Reg<U32>>,
}

impl Stage {
    fn new(k: &mut Builder, parts: &Parts, tile: &Tile, turn: &Turn, base: Reg<TensorAddress>) -> Option<Self> {
        let scales = parts.pipe.scales(k, turn)?;
        let scales = k.descriptor_low(SCALE_LAYOUT, scales);
        let [tokens, weights] = parts.pipe.codes(k, turn).map(|at| k.descriptor_low(CODE_LAYOUT, at));
        let first = k.add(base.cast::<U32>(), parts.config.scale_column());
        let columns = k.mul_add(turn.stage, parts.config.scale_blocks() * BLOCK_COLUMNS, first);
        let skipped = (parts.config.columns < BLOCK_ROWS).then(|| {
            let row = k.and(tile.column, BLOCK_ROWS - 1);
            k.shr(row, 5)
        });
        Some(Stage { tokens, weights, scales, columns, skipped })
    }

    /// The products of a slab, of which so many units of k are left: the first in any case.
    fn multiply(&self, k: &mut Builder, parts: &Parts, target: &Target, left: Reg<U32>, later: Pred) {
        self.step(k, parts, target, 0, later);
        for unit in 1..UNITS {
            let there = k.gt(left, unit);
            k.if_(there, |k| {
                let accumulate = k.bits(1);
                self.step(k, parts, target, unit, accumulate);
            });
        }
        let rest = k.sub(left, UNITS);
        k.set(left, rest);
    }

    /// Where the scales of an operand's unit are in tensor memory.
    fn scale_columns(&self, k: &mut Builder, [block, unit]: [u32; 2]) -> Reg<U32> {
        k.add(self.columns, block * BLOCK_COLUMNS + unit * UNIT_COLUMNS)
    }

    /// Copies the scales of an operand's unit to tensor memory and says where they are. `block` is the operand's among
    /// the stage's.
    fn copy_scales(&self, k: &mut Builder, parts: &Parts, [block, unit]: [u32; 2]) -> Reg<U32> {
        let to = self.scale_columns(k, [block, unit]);
        let from = k.add(self.scales, (block * SCALE_BYTES + unit * UNIT_SCALES) / 16);
        let from = k.tcgen05_descriptor(SCALE_LAYOUT, from);
        k.tensor_copy_scales(parts.config.group(), to.cast(), from);
        to
    }

    /// The products of one unit of k.
    fn step(&self, k: &mut Builder, parts: &Parts, target: &Target, unit: u32, accumulate: Pred) {
        let config = &parts.config;
        let tokens = descriptor(k, self.tokens, unit * UNIT / 2);
        // With up alone, those of tokens are there: gate has been multiplied with the same stage.
        let token_scales: Reg<TensorAddress> = match target.matrices.start {
            0 => self.copy_scales(k, parts, [0, unit]).cast(),
            _ => self.scale_columns(k, [0, unit]).cast(),
        };
        let copied = |matrix: u32| self.copy_scales(k, parts, [1 + matrix, unit]);
        let scales: Vec<Reg<U32>> = target.matrices.clone().map(copied).collect();
        for (matrix, weight_scales) in target.matrices.clone().zip(scales) {
            let weights = descriptor(k, self.weights, matrix * parts.pipe.matrix_bytes() + unit * UNIT / 2);
            let weight_scales = self.skipped.map_or(weight_scales, |skipped| k.add(weight_scales, skipped)).cast();
            let (tokens, weights) = ((tokens, token_scales), (weights, weight_scales));
            let ((a, scale_a), (b, scale_b)) = if config.swapped() { (weights, tokens) } else { (tokens, weights) };
            let (d, collector) = (target.accumulator(k, parts, matrix), target.collector(parts, matrix));
            let (group, shape) = (config.group(), target.shape);
            k.tensor_multiply(Multiply { group, d, a, b, shape, scale_a, scale_b, accumulate, collector });
        }
    }
}
