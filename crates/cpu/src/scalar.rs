//! Plain Rust, for every machine: the backend that the others are understood by.
//!
//! Weights are expanded to f32 (exactly), tokens are f32 rows, and a product is a multiplication and an addition. The
//! inner loops run over the 16 columns of a panel, so a compiler may use whatever vectors the target's baseline has.

use bytemuck::{Pod, Zeroable};
use format::{BLOCK, Scaling};
use half::f16;

use super::backend::InstructionSet;
use super::expansion::{Expand, Expansion};
use super::finish::Finish;
use super::fp8::{self, BYTES, ByteKernel, Fp8Run};
use super::kernel::{Band, Banded, Kernel, Product};
use super::model::Rates;
use super::pack::{CODE_BYTES, COLUMNS, LANE_ORDER, Panels};
use super::schedule;
use super::source::GroupTokens;
use super::speeds::Speed;
use super::sums::Lanes;
use op::{Activation, Arithmetic, Config, Operands, Problem, Result, Team};

/// The backend without special instructions.
#[derive(Debug)]
pub struct Scalar;

impl InstructionSet for Scalar {
    const NAME: &'static str = "scalar";
    const SUMMARY: &'static str = "plain Rust, f32 arithmetic, any machine";

    fn available() -> Result<()> {
        Ok(())
    }

    fn arithmetic(_: Activation) -> Arithmetic {
        Arithmetic::Separate
    }

    fn rates(_: Activation) -> Rates {
        Rates::of(&ScalarKernel(Scaling::NvFp4), "float", 4e-9, Speed { expand: 150e-9, multiply: 30e-9 })
    }

    unsafe fn run(
        problem: &Problem,
        config: &Config,
        panels: &[Panels],
        operands: Operands<'_, '_, '_>,
        team: &Team,
    ) -> Result<()> {
        schedule::run(&ScalarKernel(problem.scaling()), problem, config, panels, operands, team)
    }

    unsafe fn run_fp8(run: Fp8Run<'_, '_, '_>) -> Result<()> {
        fp8::run(&ScalarKernel(Scaling::NvFp4), run)
    }
}

/// f32 tokens, f32 weights, which have such scales.
pub(super) struct ScalarKernel(pub Scaling);

/// A block as f32: for each k, the 16 columns.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct FloatBlock(pub [[f32; COLUMNS]; BLOCK]);

impl FloatBlock {
    /// A block of zeros.
    pub(super) const BLANK: Self = Self([[0.0; COLUMNS]; BLOCK]);
}

impl Expand for ScalarKernel {
    type Block = FloatBlock;

    const BLANK: FloatBlock = FloatBlock::BLANK;

    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock) {
        for (vector, lanes) in codes.chunks_exact(4 * COLUMNS).enumerate() {
            for column in 0..COLUMNS {
                let scale = match self.0.is_mx() {
                    true => power(scales[column]),
                    false => format::e4m3::decode(scales[column]),
                };
                for (byte, &pair) in lanes[4 * column..][..4].iter().enumerate() {
                    // A lane's bytes hold k = (0, 2) (4, 6) (1, 3) (5, 7).
                    let k = 8 * vector + 4 * (byte % 2) + byte / 2;
                    out.0[k][column] = format::e2m1::decode(pair & 15) * scale;
                    out.0[k + 2][column] = format::e2m1::decode(pair >> 4) * scale;
                }
            }
        }
    }
}

/// A power of two by its exponent's bits.
fn power(bits: u8) -> f32 {
    f32::from_bits(u32::from(bits) << 23)
}

impl ByteKernel for ScalarKernel {
    fn expand_bytes(&self, exponents: Option<&[u8; COLUMNS]>, numbers: &[u8; BYTES], out: &mut FloatBlock) {
        let power = |column: usize| exponents.map_or(1.0, |bits| power(bits[column]));
        for (row, numbers) in numbers.as_chunks::<COLUMNS>().0.iter().enumerate() {
            let values = &mut out.0[row / 8 * 8 + LANE_ORDER[row % 8]];
            for (column, (value, &number)) in values.iter_mut().zip(numbers).enumerate() {
                *value = format::e4m3::decode(number) * power(column);
            }
        }
    }

    fn byte_unit(&self, source: GroupTokens<'_>) -> f64 {
        self.unit(source)
    }
}

impl Kernel for ScalarKernel {
    type Token = f32;

    const ROWS: usize = 1;
    const BLOCKS: usize = 1;
    const PANELS: usize = 2;

    fn group_len(blocks: usize) -> usize {
        blocks * BLOCK
    }

    fn prepare(&self, source: GroupTokens<'_>, group: usize, out: &mut [f32]) {
        source.scaled_row(group, source.f32_exponent(self.0), out);
    }

    fn unit(&self, source: GroupTokens<'_>) -> f64 {
        2f64.powi(-source.f32_exponent(self.0))
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        product.by_bands(self, ahead);
    }

    fn finish(&self, finish: Finish<'_>) {
        finish.write(|values| values.map(f16::from_f32));
    }
}

impl Banded for ScalarKernel {
    const GROUPS: usize = 1;
    const TOGETHER: usize = 1;

    fn band<const PANELS: usize>(&self, band: Band<'_, Self, PANELS>) {
        let Band { tokens, blocks, weights, sums, fresh, .. } = band;
        let tokens = &tokens[blocks.start * BLOCK..blocks.end * BLOCK];
        for (panel, sums) in weights.into_iter().zip(sums) {
            let mut row = if fresh { Lanes::default() } else { sums[0] };
            for (token, block) in tokens.chunks_exact(BLOCK).zip(panel) {
                for (&token, weights) in token.iter().zip(&block.0) {
                    for (sum, &weight) in row.0.iter_mut().zip(weights) {
                        *sum += token * weight;
                    }
                }
            }
            sums[0] = row;
        }
    }
}
