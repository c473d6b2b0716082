//! NEON, the vectors of 64-bit ARM: eight columns in two registers, two such to a panel.
//!
//! *NVFP4 tokens* (`integer`): `sdot` multiplies four of K at once where the processor has dot products (FEAT_DotProd:
//! most since 2018); elsewhere `smlal` adds products in 16 bits. The weights' surplus keeps them positive,
//! and small enough for signed bytes. *Dense tokens* (`dense`): a look-up in a table of bytes (`tbl`) finds the upper
//! half of a weight as f32; the lower half is zero.
//!
//! Right under emulation; no processor with these instructions was at hand, so the speeds here are AVX2's, until a
//! machine measures its own.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use format::{Scaling, e2m1};
use half::f16;

use super::backend::InstructionSet;
use super::dense::{self, DenseKernel, DenseLoops, dense_loops};
use super::few::{FewKernel, FewLoops, Stretch, few_loops};
use super::finish::Finish;
use super::fp8::{self, BYTES, FewBytes, Fp8Run};
use super::integer::{self, ByteLanes, Dots, IntegerBlock, IntegerKernel, IntegerLoops, WEIGHT_TABLE, integer_loops};
use super::kernel::{Band, PanelStream};
use super::model::Rates;
use super::pack::{CHUNK, CODE_BYTES, COLUMNS, Panels};
use super::scalar::FloatBlock;
use super::schedule;
use super::speeds::Speed;
use super::vector::{HALF_BLOCK, Vector, keep_busy};
use op::{Activation, Arithmetic, Config, Operands, Problem, Result, Team};

/// Seconds to finish a result.
const FINISH: f64 = 1.2e-9;

/// Columns of a register.
const QUAD: usize = 4;

/// The least and the largest tile that a stream takes at once.
const STREAMED: [(usize, usize); 2] = [(1, COLUMNS), (Neon::TOGETHER, COLUMNS)];

/// The backend for NEON, with dot products or without.
#[derive(Debug)]
pub struct Neon;

impl InstructionSet for Neon {
    const NAME: &'static str = "neon";
    const SUMMARY: &'static str = "NEON: integer dot products for NVFP4 tokens, f32 for others";

    /// Every 64-bit ARM processor that Rust's standard library runs on has it.
    fn available() -> Result<()> {
        Ok(())
    }

    fn arithmetic(activation: Activation) -> Arithmetic {
        super::backend::vector_arithmetic(activation)
    }

    fn rates(activation: Activation) -> Rates {
        if activation == Activation::NvFp4 {
            Rates::of(
                &IntegerKernel::<Neon>::new(Scaling::NvFp4),
                "integer",
                FINISH,
                Speed { expand: 10e-9, multiply: 8e-9 },
            )
            .with_stream(Speed { expand: 8e-9, multiply: 8e-9 }, &STREAMED)
        } else {
            Rates::of(
                &DenseKernel::<Neon>::new(Scaling::NvFp4),
                "dense",
                FINISH,
                Speed { expand: 25e-9, multiply: 11e-9 },
            )
            .with_few(
                &FewKernel::<Neon>::new(Scaling::NvFp4),
                Speed { expand: 12e-9, multiply: 6e-9 },
                &STREAMED,
            )
        }
    }

    unsafe fn run(
        problem: &Problem,
        config: &Config,
        panels: &[Panels],
        operands: Operands<'_, '_, '_>,
        team: &Team,
    ) -> Result<()> {
        match problem.activation() {
            Activation::NvFp4 if is_aarch64_feature_detected!("dotprod") => schedule::run(
                &IntegerKernel::<DotProduct>::new(problem.scaling()),
                problem,
                config,
                panels,
                operands,
                team,
            ),
            Activation::NvFp4 => {
                schedule::run(&IntegerKernel::<Neon>::new(problem.scaling()), problem, config, panels, operands, team)
            }
            _ if config.depth == CHUNK => {
                schedule::run(&FewKernel::<Neon>::new(problem.scaling()), problem, config, panels, operands, team)
            }
            _ => schedule::run(&DenseKernel::<Neon>::new(problem.scaling()), problem, config, panels, operands, team),
        }
    }

    unsafe fn run_fp8(run: Fp8Run<'_, '_, '_>) -> Result<()> {
        fp8::run(&DenseKernel::<Neon>::new(Scaling::NvFp4), run)
    }
}

/// Bytes for eight columns, four each.
type Bytes = [uint8x16_t; 2];

impl ByteLanes for Bytes {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: there are 32 bytes to read: the caller's promise.
        unsafe { [vld1q_u8(from), vld1q_u8(from.add(16))] }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: there is room for 32 bytes: the caller's promise.
        unsafe {
            vst1q_u8(to, self[0]);
            vst1q_u8(to.add(16), self[1]);
        }
    }

    #[inline(always)]
    unsafe fn look_up(self) -> [Self; 2] {
        // SAFETY: the table has 16 bytes.
        unsafe {
            let (table, low) = (vld1q_u8(WEIGHT_TABLE.as_ptr()), vdupq_n_u8(15));
            [
                self.map(|codes| vqtbl1q_u8(table, vandq_u8(codes, low))),
                self.map(|codes| vqtbl1q_u8(table, vshrq_n_u8::<4>(codes))),
            ]
        }
    }
}

/// `smlal`, for processors without dot products.
pub(super) struct Products;

impl Dots for Products {
    type Floats = Eight;
    type Bytes = Bytes;

    /// Sums of four products are at most 4·24·12 = 1152, which has room in 16 bits.
    #[inline(always)]
    unsafe fn dot(weights: [Bytes; 4], words: &[i32; 4], start: i32) -> Eight {
        // SAFETY: the processor has the instructions, as every one has.
        unsafe {
            Eight([0, 1].map(|quad| {
                let (mut lower, mut upper) = (vdupq_n_s16(0), vdupq_n_s16(0));
                for (weights, &word) in weights.iter().zip(words) {
                    let (weights, word) = (vreinterpretq_s8_u8(weights[quad]), vreinterpretq_s8_s32(vdupq_n_s32(word)));
                    lower = vmlal_s8(lower, vget_low_s8(weights), vget_low_s8(word));
                    upper = vmlal_high_s8(upper, weights, word);
                }
                let sums = vpaddq_s32(vpaddlq_s16(lower), vpaddlq_s16(upper));
                vcvtq_f32_s32(vaddq_s32(sums, vdupq_n_s32(start)))
            }))
        }
    }
}

integer_loops!(Neon, Products, "neon", tokens 6, panels 1, few 4);

/// `sdot`.
pub(super) struct Quads;

impl Dots for Quads {
    type Floats = Eight;
    type Bytes = Bytes;

    #[inline(always)]
    unsafe fn dot(weights: [Bytes; 4], words: &[i32; 4], start: i32) -> Eight {
        // SAFETY: the processor has the instructions: the caller's promise.
        unsafe {
            let mut sums = [vdupq_n_s32(start); 2];
            for (weights, &word) in weights.iter().zip(words) {
                let word = vreinterpretq_s8_s32(vdupq_n_s32(word));
                for (sum, &weights) in sums.iter_mut().zip(weights) {
                    *sum = sdot(*sum, vreinterpretq_s8_u8(weights), word);
                }
            }
            Eight([vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1])])
        }
    }
}

/// Adds four products of bytes to each lane. The standard library has this one for unstable compilers only.
///
/// # Safety
///
/// The processor must have dot products.
#[inline(always)]
unsafe fn sdot(sum: int32x4_t, weights: int8x16_t, values: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the processor has the instruction (promised by the caller), and it does nothing else.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {weights:v}.16b, {values:v}.16b",
            sum = inout(vreg) sum,
            weights = in(vreg) weights,
            values = in(vreg) values,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// NEON with dot products.
pub(super) struct DotProduct;

integer_loops!(DotProduct, Quads, "neon", tokens 6, panels 1, few 4);

dense_loops!(Neon, Eight, "neon", pairs 3, panels 1);
few_loops!(Neon, Eight, "neon", together 4);

/// Eight lanes in two registers.
#[derive(Clone, Copy)]
pub(super) struct Eight([float32x4_t; 2]);

impl Eight {
    /// What an instruction makes of each register and its like.
    #[inline(always)]
    fn with(self, other: Self, instruction: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self([instruction(self.0[0], other.0[0]), instruction(self.0[1], other.0[1])])
    }

    /// e4m3 numbers divided by 256, whose bits are where f32 has its own: but for its sign, such a number's bits are
    /// those of an f32 2¹¹² times smaller, subnormal or not.
    #[inline(always)]
    fn of_e4m3(bits: [uint32x4_t; 2]) -> Self {
        // SAFETY: the processor has the instructions, as every one has.
        unsafe { Self(bits.map(|bits| vmulq_n_f32(vreinterpretq_f32_u32(bits), 2f32.powi(112)))) }
    }
}

/// Eight bytes, each in 32 bits.
///
/// # Safety
///
/// There must be eight bytes.
#[inline(always)]
unsafe fn widened(from: *const u8) -> [uint32x4_t; 2] {
    // SAFETY: there are eight bytes: the caller's promise.
    unsafe {
        let words = vmovl_u8(vld1_u8(from));
        [vmovl_u16(vget_low_u16(words)), vmovl_high_u16(words)]
    }
}

impl Vector for Eight {
    const LANES: usize = 2 * QUAD;

    type Codes = [uint32x4_t; 2];

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller promises the same.
        unsafe { Self::splat(0.0) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the processor has the instruction, as every one has.
        unsafe { Self([vdupq_n_f32(value); 2]) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: there are eight floats to read.
        unsafe { Self([vld1q_f32(from), vld1q_f32(from.add(QUAD))]) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: there is room for eight floats.
        unsafe {
            vst1q_f32(to, self.0[0]);
            vst1q_f32(to.add(QUAD), self.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: Self) -> Self {
        // SAFETY: the processor has the instruction, as every one has.
        self.with(factor, |one, other| unsafe { vmulq_f32(one, other) })
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: the processor has the instruction, as every one has.
        unsafe { Self([vfmaq_f32(sum.0[0], self.0[0], factor.0[0]), vfmaq_f32(sum.0[1], self.0[1], factor.0[1])]) }
    }

    #[inline(always)]
    unsafe fn scales(from: *const u8) -> Self {
        // SAFETY: there are eight scales to read.
        unsafe { Self::of_e4m3(widened(from).map(|bytes| vshlq_n_u32::<20>(bytes))) }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self {
        // SAFETY: there are eight numbers to read.
        unsafe {
            Self::of_e4m3(widened(from).map(|bytes| {
                let sign = vandq_u32(vshlq_n_u32::<24>(bytes), vdupq_n_u32(1 << 31));
                let rest = vandq_u32(vshlq_n_u32::<20>(bytes), vdupq_n_u32(0x7F << 20));
                vorrq_u32(sign, rest)
            }))
        }
    }

    #[inline(always)]
    unsafe fn powers(from: *const u8) -> Self {
        // SAFETY: there are eight exponents to read.
        unsafe { Self(widened(from).map(|bytes| vreinterpretq_f32_u32(vshlq_n_u32::<23>(bytes)))) }
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> [uint32x4_t; 2] {
        // SAFETY: there are 32 bytes to read.
        unsafe { Bytes::load(from).map(|bytes| vreinterpretq_u32_u8(bytes)) }
    }

    #[inline(always)]
    unsafe fn next(codes: [uint32x4_t; 2]) -> [uint32x4_t; 2] {
        // SAFETY: the processor has the instruction, as every one has.
        unsafe { codes.map(|codes| vshrq_n_u32::<4>(codes)) }
    }

    /// Of each lane's bytes the upper two are looked up, in tables one behind the other; where an index is beyond both,
    /// as those of the lower two are, `tbl` writes zero.
    #[inline(always)]
    unsafe fn values(codes: [uint32x4_t; 2]) -> Self {
        // SAFETY: the tables have 16 bytes each.
        unsafe {
            let tables = uint8x16x2_t(vld1q_u8(BF16_BYTES[0].as_ptr()), vld1q_u8(BF16_BYTES[1].as_ptr()));
            Self(codes.map(|codes| {
                let code = vandq_u32(codes, vdupq_n_u32(15));
                let indices = vmlaq_u32(vdupq_n_u32(0x1000_FFFF), code, vdupq_n_u32(0x0101_0000));
                vreinterpretq_f32_u8(vqtbl2q_u8(tables, vreinterpretq_u8_u32(indices)))
            }))
        }
    }

    /// A look-up of bytes serves 16 weights, twice: for the two bytes of a bf16 number. Interleaved they are two
    /// numbers per 32-bit lane, of which one is shifted up and the other's neighbour cleared. So lanes alternate
    /// between two k of the same column, their tokens are broadcast in pairs, and neighbours are added in the end,
    /// which puts columns back in order.
    #[inline(always)]
    unsafe fn block<const TOKENS: usize, const PARTS: usize>(
        codes: *const u8,
        token: *const f32,
        apart: usize,
    ) -> [[Self; PARTS]; TOKENS] {
        // SAFETY: the tables have 16 bytes each, and there are two times 32 bytes of codes for each vector and 16
        // numbers of each token.
        unsafe {
            let [lower, upper] = [vld1q_u8(BF16_BYTES[0].as_ptr()), vld1q_u8(BF16_BYTES[1].as_ptr())];
            let (nibble, top) = (vdupq_n_u8(15), vdupq_n_u32(0xFFFF_0000));
            // For columns 0 and 1, and for columns 2 and 3, of each register.
            let mut sums = [[[[vdupq_n_f32(0.0); 2]; 2]; PARTS]; TOKENS];
            for step in 0..4 {
                let (half, index) = (step / 2, step % 2);
                for part in 0..PARTS {
                    for quad in 0..2 {
                        let lanes = vld1q_u8(codes.add(half * HALF_BLOCK + 4 * QUAD * (2 * part + quad)));
                        let lanes = if index == 1 { vshrq_n_u8::<4>(lanes) } else { vandq_u8(lanes, nibble) };
                        let (lower, upper) = (vqtbl1q_u8(lower, lanes), vqtbl1q_u8(upper, lanes));
                        // The bytes of a lane are k = 0 4 1 5, or 2 6 3 7.
                        let pairs = [vzip1q_u8(lower, upper), vzip2q_u8(lower, upper)];
                        let pairs = pairs.map(|pairs| vreinterpretq_u32_u8(pairs));
                        let weights = [
                            pairs.map(|pairs| vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))),
                            pairs.map(|pairs| vreinterpretq_f32_u32(vandq_u32(pairs, top))),
                        ];
                        for (four, weights) in weights.into_iter().enumerate() {
                            for (row, sums) in sums.iter_mut().enumerate() {
                                let numbers = token.add(row * apart + 8 * half + 4 * four + 2 * index);
                                let numbers = vreinterpretq_f32_u64(vld1q_dup_u64(numbers.cast()));
                                for (sum, weights) in sums[part][quad].iter_mut().zip(weights) {
                                    *sum = vfmaq_f32(*sum, weights, numbers);
                                }
                            }
                        }
                    }
                }
            }
            sums.map(|parts| parts.map(|quads| Self(quads.map(|[first, second]| vpaddq_f32(first, second)))))
        }
    }
}

/// The bytes of each code's value as a bf16 number: the lower ones, the upper ones.
const BF16_BYTES: [[u8; 16]; 2] = {
    let mut bytes = [[0; 16]; 2];
    let mut code = 0;
    while code < 16 {
        let [_, _, lower, upper] = e2m1::VALUES[code].to_le_bytes();
        (bytes[0][code], bytes[1][code]) = (lower, upper);
        code += 1;
    }
    bytes
};

fn write(finish: Finish<'_>) {
    finish.write(halves);
}

/// Rounds to half precision, to nearest. The standard library has its type for unstable compilers only.
#[inline(always)]
fn halves(values: &[f32; COLUMNS]) -> [f16; COLUMNS] {
    let mut halves = [f16::ZERO; COLUMNS];
    for (halves, values) in halves.as_chunks_mut::<QUAD>().0.iter_mut().zip(values.as_chunks::<QUAD>().0) {
        // SAFETY: every processor has the instruction, which does nothing else; there are four floats, and every
        // pattern of 64 bits is four numbers in half precision.
        unsafe {
            let four = vld1q_f32(values.as_ptr());
            let rounded: uint16x4_t;
            asm!("fcvtn {:v}.4h, {:v}.4s", out(vreg) rounded, in(vreg) four, options(pure, nomem, nostack, preserves_flags));
            vst1_u16(halves.as_mut_ptr().cast(), rounded);
        }
    }
    halves
}

/// Keeps the f32 units busy; returns the operations done.
pub(super) fn flops() -> f64 {
    // SAFETY: every processor has the instructions.
    unsafe { keep_busy::<Eight>() }
}
