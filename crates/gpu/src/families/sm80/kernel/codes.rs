//! NVFP4 by NVFP4: the main loop where tensor cores take codes and scales as they are.
//!
//! A multiplication covers a whole unit of k, so there are no slices, and nothing is made before it: a fragment's words and scales are read
//! from a stage, tokens four eights at a time, the next four while the present ones are multiplied. Scales of four eights are one register: lane c
//! of a quad has those of its eight, and each multiplication says which lane to look at. Of a fragment's scales, even lanes have those of
//! rows r, odd ones those of rows r + 8.

use ptx::instr::Mma;
use ptx::{Addr, Builder, Reg, Shared, U32};

use super::consume::Consumer;
use super::load::Copies;
use super::work::Tile;
use super::{Division, Parts, Products, STRIP_CODES, STRIP_SCALES, WarpMultiplySpec};

/// Eights of tokens that are read at a time.
const QUAD: u32 = 4;
/// Registers that tokens take.
pub(super) const TOKEN_REGISTERS: u32 = 2 * (2 * QUAD + 1);
/// Bytes of eight tokens in one unit.
const EIGHT_BYTES: u32 = STRIP_CODES + STRIP_SCALES;

/// The operands of a warp, and where they are read.
pub(super) struct CodeOperands {
    /// Words and scales of each fragment.
    weights: Vec<([Reg<U32>; 4], Reg<U32>)>,
    /// Two sets: words of each of four eights, and their scales.
    tokens: [([[Reg<U32>; 2]; QUAD as usize], Reg<U32>); 2],
    /// Bytes from a unit's tokens to this lane's words.
    words_at: Reg<U32>,
    /// Bytes from a unit's tokens to this lane's scales in the first four eights, and in the last four, which may be fewer.
    scales_at: Reg<U32>,
    last_scales_at: Reg<U32>,
}

impl CodeOperands {
    pub fn new(k: &mut Builder, config: &WarpMultiplySpec, lane: Reg<U32>) -> Self {
        let eights = config.tokens / 8;
        let (row, quarter) = (k.shr(lane, 2), k.and(lane, 3));
        let row_at = k.mul_add(row, 4, STRIP_CODES);
        // A lane without an eight looks at the last: nobody asks it.
        let there = k.min(quarter, (eights - 1) % QUAD);
        CodeOperands {
            weights: (0..config.division().fragments).map(|_| (k.registers(), k.register())).collect(),
            tokens: [0, 1].map(|_| (std::array::from_fn(|_| k.registers()), k.register())),
            words_at: k.shl(lane, 3),
            scales_at: k.mul_add(quarter, EIGHT_BYTES, row_at),
            last_scales_at: k.mul_add(there, EIGHT_BYTES, row_at),
        }
    }

    /// Bytes from a strip's scales to those that this lane reads of a fragment.
    pub fn weight_scales(k: &mut Builder, config: &WarpMultiplySpec, lane: Reg<U32>) -> Reg<U32> {
        let apart = if config.products == Products::Interleaved { config.strips() / 2 } else { 1 };
        let (row, second) = (k.shr(lane, 2), k.and(lane, 1));
        let row_at = k.shl(row, 2);
        k.mul_add(second, apart * STRIP_SCALES, row_at)
    }

    /// Reads the words and scales of a fragment whose strips these are.
    fn load_weights(&self, k: &mut Builder, index: usize, words: Addr<Shared>, scales: Addr<Shared>, strips: [u32; 2]) {
        let (registers, scale) = &self.weights[index];
        for (row, strip) in strips.into_iter().enumerate() {
            let found: [Reg<U32>; 2] = k.load_vector(words.plus((strip * STRIP_CODES).cast_signed()));
            k.set(registers[row], found[0]);
            k.set(registers[row + 2], found[1]);
        }
        let found: Reg<U32> = k.load(scales.plus((strips[0] * STRIP_SCALES).cast_signed()));
        k.set(*scale, found);
    }

    /// Reads four eights of tokens, or what there is of them, of a unit in which this lane's words and scales are at these addresses.
    fn load_tokens(&self, k: &mut Builder, quad: u32, eights: u32, words: Addr<Shared>, scales: Addr<Shared>) {
        let (registers, scale) = &self.tokens[quad as usize % 2];
        let first = quad * QUAD * EIGHT_BYTES;
        for (eight, registers) in registers.iter().take((eights - quad * QUAD) as usize).enumerate() {
            let at = words.plus((first + eight as u32 * EIGHT_BYTES).cast_signed());
            let found: [Reg<U32>; 2] = k.load_vector(at);
            k.set(registers[0], found[0]);
            k.set(registers[1], found[1]);
        }
        let found: Reg<U32> = k.load(scales.plus(first.cast_signed()));
        k.set(*scale, found);
    }
}

impl Consumer {
    /// All of this block's share of k, for one pass.
    pub(super) fn multiply_codes(
        &self,
        k: &mut Builder,
        operands: &CodeOperands,
        parts: &Parts,
        copies: &Copies,
        tile: &Tile,
        pass: usize,
    ) {
        let turn = parts.pipe.start(k, copies, tile.stages);
        let left = k.variable(tile.stages);
        k.repeat_while(|k| {
            for unit in 0..self.own_units() {
                if unit + 1 == self.own_units() {
                    parts.pipe.exchange(k, copies, tile.stages, &turn);
                }
                self.multiply_unit(k, operands, turn.here, unit, pass);
            }
            parts.pipe.advance(k, &turn);
            let rest = k.sub(left, 1);
            k.set(left, rest);
            k.gt(left, 0u32)
        });
    }

    /// One of the warp's units of a stage.
    fn multiply_unit(&self, k: &mut Builder, operands: &CodeOperands, stage: Reg<U32>, unit: u32, pass: usize) {
        let Division { along_k, .. } = self.config.division();
        let [token_bytes, weight_bytes] = self.config.unit_bytes().map(|bytes| unit * along_k * bytes);
        let address = |k: &mut Builder, from: Reg<U32>, at: Reg<U32>, further: u32| {
            Addr::<Shared>::of(k.add(from, at)).plus(further.cast_signed())
        };
        k.phase("load", |k| {
            let words = address(k, stage, self.words_at, weight_bytes);
            let scales = address(k, stage, self.scales_at, weight_bytes);
            for index in 0..operands.weights.len() {
                operands.load_weights(k, index, words, scales, self.strips_of(index as u32));
            }
        });
        let own = k.add(stage, self.tokens_at);
        let (eights, quads) = (self.config.tokens / 8, (self.config.tokens / 8).div_ceil(QUAD));
        let words = address(k, own, operands.words_at, token_bytes);
        let scales = address(k, own, operands.scales_at, token_bytes);
        let last_scales = address(k, own, operands.last_scales_at, token_bytes);
        let load = |k: &mut Builder, quad: u32| {
            let scales = if quad + 1 == quads { last_scales } else { scales };
            k.phase("load", |k| operands.load_tokens(k, quad, eights, words, scales));
        };
        load(k, 0);
        for quad in 0..quads {
            if quad + 1 < quads {
                load(k, quad + 1);
            }
            self.multiply_quad(k, operands, quad, pass);
        }
    }

    fn multiply_quad(&self, k: &mut Builder, operands: &CodeOperands, quad: u32, pass: usize) {
        let (tokens, scale_b) = &operands.tokens[quad as usize % 2];
        for (index, (words, scale_a)) in operands.weights.iter().enumerate() {
            let sums = &self.sums[pass * operands.weights.len() + index];
            let sums = sums.iter().skip((quad * QUAD) as usize);
            for (eight, (sums, tokens)) in sums.zip(tokens).enumerate() {
                k.emit(Mma::BlockScaled {
                    d: sums.map(Reg::id),
                    a: words.map(Reg::id),
                    b: tokens.map(Reg::id),
                    scale_a: scale_a.id(),
                    lanes_a: 0,
                    scale_b: scale_b.id(),
                    lane_b: eight as u32,
                });
            }
        }
    }
}
