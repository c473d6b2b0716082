//! AVX-512: integer dot products for NVFP4 tokens, f32 multiply-adds for the others.
//!
//! A vector is one panel of 16 columns. *NVFP4 tokens* (`integer`): a byte shuffle turns nibbles into bytes, `vpdpbusd`
//! multiplies four of K at once, or `vpmaddubsw` and `vpmaddwd` do where there is no VNNI; after a block of 16 the sum
//! is converted and scaled, all exactly, and only the addition to the running sum rounds. *Dense tokens* (`dense`): the
//! low four bits of each lane pick a weight from a table in a register (`vpermps`), the scale is multiplied in,
//! exactly, and tokens are broadcast against it.

use std::arch::x86_64::*;

use format::Scaling;
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
use super::vector::{HALF_BLOCK, LANE_ORDER, Vector, keep_busy, plain_instructions};
use op::{Activation, Arithmetic, Config, Error, Operands, Problem, Result, Team};

/// Seconds to finish a result.
pub(super) const FINISH: f64 = 0.7e-9;

/// The least and the largest tile that a stream takes at once.
const STREAMED: [(usize, usize); 2] = [(1, COLUMNS), (Avx512::TOGETHER, COLUMNS)];

/// The backend for AVX-512, with VNNI or without.
#[derive(Debug)]
pub struct Avx512;

impl InstructionSet for Avx512 {
    const NAME: &'static str = "avx512";
    const SUMMARY: &'static str =
        "AVX-512: integer dot products (VNNI where there is that) for NVFP4 tokens, f32 for others";

    fn available() -> Result<()> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma");
        match has {
            true => Ok(()),
            false => Err(Error::Unavailable {
                backend: Self::NAME,
                reason: "this processor lacks AVX-512 F, BW or VL".to_owned(),
                remedy: "use 'avx2' or 'scalar', or leave the choice to 'auto'".to_owned(),
            }),
        }
    }

    fn arithmetic(activation: Activation) -> Arithmetic {
        super::backend::vector_arithmetic(activation)
    }

    fn rates(activation: Activation) -> Rates {
        let dense = || {
            Rates::of(
                &DenseKernel::<Avx512>::new(Scaling::NvFp4),
                "dense",
                FINISH,
                Speed { expand: 11e-9, multiply: 5.5e-9 },
            )
            .with_few(
                &FewKernel::<Avx512>::new(Scaling::NvFp4),
                Speed { expand: 8e-9, multiply: 3e-9 },
                &STREAMED,
            )
        };
        // The loops differ in their speeds only, and those are measured.
        let integer = || {
            Rates::of(
                &IntegerKernel::<Vnni>::new(Scaling::NvFp4),
                "integer",
                FINISH,
                Speed { expand: 5e-9, multiply: 2e-9 },
            )
            .with_stream(Speed { expand: 3e-9, multiply: 2e-9 }, &STREAMED)
        };
        if activation == Activation::NvFp4 { integer() } else { dense() }
    }

    unsafe fn run(
        problem: &Problem,
        config: &Config,
        panels: &[Panels],
        operands: Operands<'_, '_, '_>,
        team: &Team,
    ) -> Result<()> {
        match problem.activation() {
            Activation::NvFp4 if is_x86_feature_detected!("avx512vnni") => {
                schedule::run(&IntegerKernel::<Vnni>::new(problem.scaling()), problem, config, panels, operands, team)
            }
            Activation::NvFp4 => {
                schedule::run(&IntegerKernel::<Avx512>::new(problem.scaling()), problem, config, panels, operands, team)
            }
            _ if config.depth == CHUNK => {
                schedule::run(&FewKernel::<Avx512>::new(problem.scaling()), problem, config, panels, operands, team)
            }
            _ => schedule::run(&DenseKernel::<Avx512>::new(problem.scaling()), problem, config, panels, operands, team),
        }
    }

    unsafe fn run_fp8(run: Fp8Run<'_, '_, '_>) -> Result<()> {
        fp8::run(&DenseKernel::<Avx512>::new(Scaling::NvFp4), run)
    }
}

/// `vpdpbusd`.
pub(super) struct Quads;

impl Dots for Quads {
    type Floats = __m512;
    type Bytes = __m512i;

    #[inline(always)]
    unsafe fn dot(weights: [__m512i; 4], words: &[i32; 4], start: i32) -> __m512 {
        // SAFETY: the processor has the instructions: the caller's promise.
        unsafe {
            let mut dot = _mm512_set1_epi32(start);
            for (weights, word) in weights.into_iter().zip(words) {
                dot = _mm512_dpbusd_epi32(dot, weights, _mm512_set1_epi32(*word));
            }
            _mm512_cvtepi32_ps(dot)
        }
    }
}

/// AVX-512 with VNNI.
pub(super) struct Vnni;

integer_loops!(Vnni, Quads, "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma", tokens 6, panels 2, few 8);

impl ByteLanes for __m512i {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the processor has the instruction, and there are 64 bytes to read: the caller's promises.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the processor has the instruction, and there is room for 64 bytes: the caller's promises.
        unsafe { _mm512_storeu_si512(to.cast(), self) }
    }

    #[inline(always)]
    unsafe fn look_up(self) -> [Self; 2] {
        // SAFETY: the processor has the instructions (the caller's promise), and the table has 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(WEIGHT_TABLE.as_ptr().cast()));
            let low = _mm512_set1_epi8(15);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(self), low);
            [_mm512_shuffle_epi8(table, _mm512_and_si512(self, low)), _mm512_shuffle_epi8(table, high)]
        }
    }
}

/// `vpmaddubsw` and `vpmaddwd`, for processors without VNNI.
pub(super) struct Pairs;

impl Dots for Pairs {
    type Floats = __m512;
    type Bytes = __m512i;

    /// Sums of pairs are at most 2·24·12 = 576, so four of them have room in 16 bits.
    #[inline(always)]
    unsafe fn dot(weights: [__m512i; 4], words: &[i32; 4], start: i32) -> __m512 {
        // SAFETY: the processor has the instructions: the caller's promise.
        unsafe {
            let first = _mm512_maddubs_epi16(weights[0], _mm512_set1_epi32(words[0]));
            let second = _mm512_maddubs_epi16(weights[1], _mm512_set1_epi32(words[1]));
            let third = _mm512_maddubs_epi16(weights[2], _mm512_set1_epi32(words[2]));
            let fourth = _mm512_maddubs_epi16(weights[3], _mm512_set1_epi32(words[3]));
            let pairs = _mm512_add_epi16(_mm512_add_epi16(first, second), _mm512_add_epi16(third, fourth));
            let dot = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
            _mm512_cvtepi32_ps(_mm512_add_epi32(dot, _mm512_set1_epi32(start)))
        }
    }
}

integer_loops!(Avx512, Pairs, "avx512f,avx512bw,avx512vl,f16c,fma", tokens 6, panels 2, few 8);

dense_loops!(Avx512, __m512, "avx512f,avx512bw,avx512vl,f16c,fma", pairs 6, panels 2);
few_loops!(Avx512, __m512, "avx512f,avx512bw,avx512vl,f16c,fma", together 8);

impl Vector for __m512 {
    const LANES: usize = COLUMNS;

    type Codes = __m512i;

    plain_instructions!(
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_mul_ps,
        _mm512_fmadd_ps
    );

    #[inline(always)]
    unsafe fn scales(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 16 scales to read.
        unsafe { _mm512_cvtph_ps(_mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())))) }
    }

    /// With its sign spread upwards and shifted by seven, a byte is a number in half precision but for the exponent's
    /// highest bit.
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 16 numbers to read.
        unsafe {
            let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
            _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(0xBFFFu16 as i16)))
        }
    }

    #[inline(always)]
    unsafe fn powers(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 16 exponents to read.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> __m512i {
        // SAFETY: the processor has the instruction, and there are 64 bytes to read.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn next(codes: __m512i) -> __m512i {
        // SAFETY: the processor has the instruction.
        unsafe { _mm512_srli_epi32::<4>(codes) }
    }

    /// The look-up reads four bits of each lane.
    #[inline(always)]
    unsafe fn values(codes: __m512i) -> Self {
        // SAFETY: the processor has the instructions, and there are 16 values to read.
        unsafe { _mm512_permutexvar_ps(codes, _mm512_loadu_ps(format::e2m1::VALUES.as_ptr())) }
    }

    /// A shift, a look-up and a multiply-add for each k, whose number is broadcast from memory. A few tokens take the
    /// block's halves side by side: one after the other these are chains of eight additions, for which the units wait.
    #[inline(always)]
    unsafe fn block<const TOKENS: usize, const PARTS: usize>(
        codes: *const u8,
        token: *const f32,
        apart: usize,
    ) -> [[Self; PARTS]; TOKENS] {
        // SAFETY: the processor has the instructions, and there are two times 64 bytes of codes and 16 numbers of each
        // token: a vector is a whole panel, so there is one part.
        unsafe {
            let mut sums = [[Self::zero(); PARTS]; TOKENS];
            if TOKENS <= 4 {
                let halves: [[Self; 2]; TOKENS] = products(codes, token, apart);
                for (sum, [first, second]) in sums.iter_mut().zip(halves) {
                    sum[0] = _mm512_add_ps(first, second);
                }
            } else {
                let first: [[Self; 1]; TOKENS] = products(codes, token, apart);
                let second: [[Self; 1]; TOKENS] = products(codes.add(HALF_BLOCK), token.add(8), apart);
                for (sum, ([first], [second])) in sums.iter_mut().zip(first.into_iter().zip(second)) {
                    sum[0] = _mm512_add_ps(first, second);
                }
            }
            sums
        }
    }
}

/// The sums of eight products without scales, for `HALVES` halves of a block.
///
/// # Safety
///
/// The processor must have the instructions, and there must be 64 bytes of codes and 8 numbers of each token, `apart`
/// from the next one's, for each half.
#[inline(always)]
unsafe fn products<const TOKENS: usize, const HALVES: usize>(
    codes: *const u8,
    token: *const f32,
    apart: usize,
) -> [[__m512; HALVES]; TOKENS] {
    // SAFETY: the caller promises the instructions and what is read.
    unsafe {
        let mut lanes = [_mm512_setzero_si512(); HALVES];
        for (half, lanes) in lanes.iter_mut().enumerate() {
            *lanes = <__m512 as Vector>::codes(codes.add(half * HALF_BLOCK));
        }
        let mut sums = [[__m512::zero(); HALVES]; TOKENS];
        for (position, k) in LANE_ORDER.into_iter().enumerate() {
            for (half, lanes) in lanes.iter_mut().enumerate() {
                let weights = __m512::values(*lanes);
                *lanes = __m512::next(*lanes);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let number = __m512::splat(*token.add(row * apart + 8 * half + k));
                    sums[half] = match position {
                        0 => weights.multiply(number),
                        _ => weights.multiply_add(number, sums[half]),
                    };
                }
            }
        }
        sums
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
pub(super) fn write(finish: Finish<'_>) {
    finish.write(|values| {
        let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(loadps(values));
        // SAFETY: both are 32 bytes, and every pattern of bits is a number in half precision.
        unsafe { std::mem::transmute::<__m256i, [f16; COLUMNS]>(halves) }
    });
}

#[target_feature(enable = "avx512f")]
#[inline]
fn loadps(values: &[f32; COLUMNS]) -> __m512 {
    // SAFETY: there are 16 floats, and the load wants no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Keeps the f32 units busy; returns the operations done.
pub(super) fn flops() -> f64 {
    #[target_feature(enable = "avx512f,fma")]
    fn busy() -> f64 {
        // SAFETY: the function wants the instructions, which this one is compiled for.
        unsafe { keep_busy::<__m512>() }
    }
    // SAFETY: called only where `available` found the instructions.
    unsafe { busy() }
}
