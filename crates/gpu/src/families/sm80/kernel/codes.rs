//! NVFP4 by NVFP4: the main loop where tensor cores take codes and scales as they are.
//!
//! A multiplication covers a whole unit of k, so there are no slices, and nothing is made before it: a fragment's words
//! and scales are read from a stage, tokens four eights at a time, the next four while the present ones are multiplied.
//! Scales of four eights are one register: lane c of a quad has those of its eight, and each multiplication says which
//! lane to look at. Of a fragment's scales, even lanes have those of rows r, odd ones those of rows r + 8.

use ptx::instr::{Mma, Scaling};
use ptx::{Addr, Builder, F32, Reg, Shared, U32};

use super::{Products, STRIP_CODES, STRIP_SCALES, WarpMultiplySpec};

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
    /// Two sets.
    tokens: [Eights; 2],
    /// Bytes from a unit's tokens to this lane's words.
    words_at: Reg<U32>,
    /// Bytes from a unit's tokens to this lane's scales in the first four eights, and in the last four, which may be
    /// fewer.
    scales_at: Reg<U32>,
    last_scales_at: Reg<U32>,
}

/// Where a lane reads the weights of a unit: its words and scales in the first strip, and the strips of each fragment.
pub(super) struct UnitWeights {
    pub words: Addr<Shared>,
    pub scales: Addr<Shared>,
    pub strips: Vec<[u32; 2]>,
}

/// Words of each of four eights, and their scales.
struct Eights {
    words: [[Reg<U32>; 2]; QUAD as usize],
    scales: Reg<U32>,
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
            tokens: [0, 1].map(|_| Eights { words: std::array::from_fn(|_| k.registers()), scales: k.register() }),
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

    /// Reads four eights of tokens, or what there is of them, of a unit in which this lane's words and scales are at
    /// these addresses.
    fn load_tokens(&self, k: &mut Builder, quad: u32, eights: u32, words: Addr<Shared>, scales: Addr<Shared>) {
        let Eights { words: registers, scales: register } = &self.tokens[quad as usize % 2];
        let first = quad * QUAD * EIGHT_BYTES;
        for (eight, registers) in registers.iter().take((eights - quad * QUAD) as usize).enumerate() {
            let at = words.plus((first + eight as u32 * EIGHT_BYTES).cast_signed());
            let found: [Reg<U32>; 2] = k.load_vector(at);
            k.set(registers[0], found[0]);
            k.set(registers[1], found[1]);
        }
        let found: Reg<U32> = k.load(scales.plus(first.cast_signed()));
        k.set(*register, found);
    }

    /// One unit: its weights, of which this lane's words and scales are at these addresses and fragments have these
    /// strips, by its tokens, which begin at an address and constants behind it, to these sums of each fragment.
    pub fn multiply(
        &self,
        k: &mut Builder,
        weights: &UnitWeights,
        tokens: (Reg<U32>, u32),
        sums: &[Vec<[Reg<F32>; 4]>],
    ) {
        k.phase("load", |k| {
            for (index, strips) in weights.strips.iter().enumerate() {
                self.load_weights(k, index, weights.words, weights.scales, *strips);
            }
        });
        let (first, further) = tokens;
        let [words, scales, last_scales] = [self.words_at, self.scales_at, self.last_scales_at]
            .map(|at| Addr::<Shared>::of(k.add(first, at)).plus(further.cast_signed()));
        let eights = sums[0].len() as u32;
        let quads = eights.div_ceil(QUAD);
        let load = |k: &mut Builder, quad: u32| {
            let scales = if quad + 1 == quads { last_scales } else { scales };
            k.phase("load", |k| self.load_tokens(k, quad, eights, words, scales));
        };
        load(k, 0);
        for quad in 0..quads {
            if quad + 1 < quads {
                load(k, quad + 1);
            }
            self.multiply_quad(k, quad, sums);
        }
    }

    fn multiply_quad(&self, k: &mut Builder, quad: u32, sums: &[Vec<[Reg<F32>; 4]>]) {
        let Eights { words: tokens, scales: scale_b } = &self.tokens[quad as usize % 2];
        for ((words, scale_a), sums) in self.weights.iter().zip(sums) {
            let sums = sums.iter().skip((quad * QUAD) as usize);
            for (eight, (sums, tokens)) in sums.zip(tokens).enumerate() {
                k.emit(Mma::BlockScaled {
                    scaling: Scaling::NvFp4,
                    d: sums.map(Reg::id),
                    a: words.map(Reg::id),
                    b: tokens.map(Reg::id),
                    scale_a: scale_a.id(),
                    lanes_a: 0,
                    byte_a: 0,
                    scale_b: scale_b.id(),
                    lane_b: eight as u32,
                    byte_b: 0,
                });
            }
        }
    }
}
