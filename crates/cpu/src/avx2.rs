//! AVX2: vectors of eight columns, two to a panel.
//!
//! *NVFP4 tokens* (`integer`): `vpmaddubsw` multiplies unsigned weights with signed tokens and adds pairs into 16 bits,
//! `vpmaddwd` adds pairs of those into 32. Processors with AVX-VNNI have one instruction for both; elsewhere its loops
//! are tested with that instruction in plain Rust. *Dense tokens* (`dense`): a look-up has eight entries, which is
//! enough for the magnitudes; the sign is moved over.

use std::arch::x86_64::*;
use std::marker::PhantomData;

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
use super::vector::{HALF_BLOCK, Vector, keep_busy, plain_instructions};
use op::{Activation, Arithmetic, Config, Error, Operands, Problem, Result, Team};

/// Seconds to finish a result.
const FINISH: f64 = 1.2e-9;

/// Columns of a vector.
const HALF: usize = COLUMNS / 2;

/// The least and the largest tile that a stream takes at once.
const STREAMED: [(usize, usize); 2] = [(1, COLUMNS), (Avx2::TOGETHER, COLUMNS)];

/// The backend for AVX2 with FMA and F16C.
#[derive(Debug)]
pub struct Avx2;

impl InstructionSet for Avx2 {
    const NAME: &'static str = "avx2";
    const SUMMARY: &'static str = "AVX2: integer dot products for NVFP4 tokens, f32 for others";

    fn available() -> Result<()> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        match has {
            true => Ok(()),
            false => Err(Error::Unavailable {
                backend: Self::NAME,
                reason: "this processor lacks AVX2, FMA or F16C".to_owned(),
                remedy: "use 'scalar', or leave the choice to 'auto'".to_owned(),
            }),
        }
    }

    fn arithmetic(activation: Activation) -> Arithmetic {
        super::backend::vector_arithmetic(activation)
    }

    fn rates(activation: Activation) -> Rates {
        let dense = || {
            Rates::of(
                &DenseKernel::<Avx2>::new(Scaling::NvFp4),
                "dense",
                FINISH,
                Speed { expand: 25e-9, multiply: 11e-9 },
            )
            .with_few(
                &FewKernel::<Avx2>::new(Scaling::NvFp4),
                Speed { expand: 12e-9, multiply: 6e-9 },
                &STREAMED,
            )
        };
        // The loops differ in their speeds only, and those are measured.
        let integer = || {
            Rates::of(
                &IntegerKernel::<Avx2>::new(Scaling::NvFp4),
                "integer",
                FINISH,
                Speed { expand: 10e-9, multiply: 8e-9 },
            )
            .with_stream(Speed { expand: 8e-9, multiply: 8e-9 }, &STREAMED)
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
            Activation::NvFp4 if is_x86_feature_detected!("avxvnni") => schedule::run(
                &IntegerKernel::<AvxVnni>::new(problem.scaling()),
                problem,
                config,
                panels,
                operands,
                team,
            ),
            Activation::NvFp4 => {
                schedule::run(&IntegerKernel::<Avx2>::new(problem.scaling()), problem, config, panels, operands, team)
            }
            _ if config.depth == CHUNK => {
                schedule::run(&FewKernel::<Avx2>::new(problem.scaling()), problem, config, panels, operands, team)
            }
            _ => schedule::run(&DenseKernel::<Avx2>::new(problem.scaling()), problem, config, panels, operands, team),
        }
    }

    unsafe fn run_fp8(run: Fp8Run<'_, '_, '_>) -> Result<()> {
        fp8::run(&DenseKernel::<Avx2>::new(Scaling::NvFp4), run)
    }
}

impl ByteLanes for __m256i {
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the processor has the instruction, and there are 32 bytes to read: the caller's promises.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the processor has the instruction, and there is room for 32 bytes: the caller's promises.
        unsafe { _mm256_storeu_si256(to.cast(), self) }
    }

    #[inline(always)]
    unsafe fn look_up(self) -> [Self; 2] {
        // SAFETY: the processor has the instructions (the caller's promise), and the table has 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(WEIGHT_TABLE.as_ptr().cast()));
            let low = _mm256_set1_epi8(15);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(self), low);
            [_mm256_shuffle_epi8(table, _mm256_and_si256(self, low)), _mm256_shuffle_epi8(table, high)]
        }
    }
}

/// `vpmaddubsw` and `vpmaddwd`.
pub(super) struct Pairs;

impl Dots for Pairs {
    type Floats = __m256;
    type Bytes = __m256i;

    /// Sums of pairs are at most 2·24·12 = 576, so four of them have room in 16 bits.
    #[inline(always)]
    unsafe fn dot(weights: [__m256i; 4], words: &[i32; 4], start: i32) -> __m256 {
        // SAFETY: the processor has the instructions: the caller's promise.
        unsafe {
            let first = _mm256_maddubs_epi16(weights[0], _mm256_set1_epi32(words[0]));
            let second = _mm256_maddubs_epi16(weights[1], _mm256_set1_epi32(words[1]));
            let third = _mm256_maddubs_epi16(weights[2], _mm256_set1_epi32(words[2]));
            let fourth = _mm256_maddubs_epi16(weights[3], _mm256_set1_epi32(words[3]));
            let pairs = _mm256_add_epi16(_mm256_add_epi16(first, second), _mm256_add_epi16(third, fourth));
            let dot = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            _mm256_cvtepi32_ps(_mm256_add_epi32(dot, _mm256_set1_epi32(start)))
        }
    }
}

integer_loops!(Avx2, Pairs, "avx2,fma,f16c", tokens 6, panels 1, few 4);

/// AVX2 with AVX-VNNI.
pub(super) struct AvxVnni;

integer_loops!(AvxVnni, Quads<Vpdpbusd>, "avx2,fma,f16c,avxvnni", tokens 6, panels 1, few 4);

/// An instruction that multiplies unsigned with signed bytes and adds four products to each lane, or what stands for it
/// in a test.
pub(super) trait Quad {
    /// # Safety
    ///
    /// The processor must have the instruction.
    unsafe fn add(sum: __m256i, weights: __m256i, values: __m256i) -> __m256i;
}

/// `vpdpbusd` of AVX-VNNI.
pub(super) struct Vpdpbusd;

impl Quad for Vpdpbusd {
    #[inline(always)]
    unsafe fn add(sum: __m256i, weights: __m256i, values: __m256i) -> __m256i {
        // SAFETY: the processor has the instruction: the caller's promise.
        unsafe { _mm256_dpbusd_avx_epi32(sum, weights, values) }
    }
}

/// Dot products of fours.
pub(super) struct Quads<Q>(PhantomData<Q>);

impl<Q: Quad> Dots for Quads<Q> {
    type Floats = __m256;
    type Bytes = __m256i;

    #[inline(always)]
    unsafe fn dot(weights: [__m256i; 4], words: &[i32; 4], start: i32) -> __m256 {
        // SAFETY: the processor has the instructions: the caller's promise.
        unsafe {
            let mut dot = _mm256_set1_epi32(start);
            for (weights, word) in weights.into_iter().zip(words) {
                dot = Q::add(dot, weights, _mm256_set1_epi32(*word));
            }
            _mm256_cvtepi32_ps(dot)
        }
    }
}

dense_loops!(Avx2, __m256, "avx2,fma,f16c", pairs 3, panels 1);
few_loops!(Avx2, __m256, "avx2,fma,f16c", together 4);

impl Vector for __m256 {
    const LANES: usize = HALF;

    type Codes = __m256i;

    plain_instructions!(
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_mul_ps,
        _mm256_fmadd_ps
    );

    #[inline(always)]
    unsafe fn scales(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 8 scales to read.
        unsafe { _mm256_cvtph_ps(_mm_slli_epi16::<7>(_mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast())))) }
    }

    /// With its sign spread upwards and shifted by seven, a byte is a number in half precision but for the exponent's
    /// highest bit.
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 8 numbers to read.
        unsafe {
            let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())));
            _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(0xBFFFu16 as i16)))
        }
    }

    #[inline(always)]
    unsafe fn powers(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 8 exponents to read.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> __m256i {
        // SAFETY: the processor has the instruction, and there are 32 bytes to read.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn next(codes: __m256i) -> __m256i {
        // SAFETY: the processor has the instruction.
        unsafe { _mm256_srli_epi32::<4>(codes) }
    }

    /// Eight magnitudes fit a vector. The whole code is moved to the top of its lane: its sign is the number's, and the
    /// three bits below it cancel those that the table has there.
    #[inline(always)]
    unsafe fn values(codes: __m256i) -> Self {
        // SAFETY: the processor has the instructions, and the table has eight lanes.
        unsafe {
            let magnitudes = _mm256_permutevar8x32_epi32(_mm256_loadu_si256(MAGNITUDES.as_ptr().cast()), codes);
            _mm256_castsi256_ps(_mm256_xor_si256(magnitudes, _mm256_slli_epi32::<28>(codes)))
        }
    }

    /// A look-up of single lanes has too few entries and serves eight weights only. One of bytes serves 32: twice, for
    /// the two bytes of a bf16 number. Interleaved they are two numbers per 32-bit lane, of which one is shifted up and
    /// the other's neighbour cleared. So lanes alternate between two k of the same column, their tokens are broadcast
    /// in pairs, and neighbours are added in the end, which puts columns back in order.
    #[inline(always)]
    unsafe fn block<const TOKENS: usize, const PARTS: usize>(
        codes: *const u8,
        token: *const f32,
        apart: usize,
    ) -> [[Self; PARTS]; TOKENS] {
        // SAFETY: the processor has the instructions, the tables have 16 bytes each, and there are two times 32 bytes
        // of codes for each vector and 16 numbers of each token.
        unsafe {
            let table = |bytes: &[u8; 16]| _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()));
            let (upper, lower) = (table(&BF16_BYTES[1]), table(&BF16_BYTES[0]));
            // Read so that the compiler does not know the masks: it would broadcast the one anew where it runs out of
            // registers, and blend with zeros instead of the other, both on the port that the look-ups need.
            let [nibble, top] = [&NIBBLES, &UPPER_HALF].map(|mask| _mm256_set1_epi32(std::ptr::read_volatile(mask)));
            // For columns 0 1 4 5 and for columns 2 3 6 7 of each vector.
            let mut sums = [[[__m256::zero(); 2]; PARTS]; TOKENS];
            for step in 0..4 {
                let (half, index) = (step / 2, step % 2);
                for part in 0..PARTS {
                    let lanes = _mm256_loadu_si256(codes.add(half * HALF_BLOCK + 4 * HALF * part).cast());
                    let lanes = if index == 1 { _mm256_srli_epi16::<4>(lanes) } else { lanes };
                    let lanes = _mm256_and_si256(lanes, nibble);
                    let (upper, lower) = (_mm256_shuffle_epi8(upper, lanes), _mm256_shuffle_epi8(lower, lanes));
                    // The bytes of a lane are k = 0 4 1 5, or 2 6 3 7.
                    let pairs = [_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)];
                    let weights = [
                        pairs.map(|pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))),
                        pairs.map(|pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, top))),
                    ];
                    for (four, weights) in weights.into_iter().enumerate() {
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let numbers = token.add(row * apart + 8 * half + 4 * four + 2 * index);
                            let numbers = _mm256_castpd_ps(_mm256_broadcast_sd(&*numbers.cast::<f64>()));
                            for (sum, weights) in sums[part].iter_mut().zip(weights) {
                                *sum = match (step, four) {
                                    (0, 0) => weights.multiply(numbers),
                                    _ => weights.multiply_add(numbers, *sum),
                                };
                            }
                        }
                    }
                }
                for sum in sums.as_flattened_mut().as_flattened_mut() {
                    in_order(sum);
                }
            }
            let mut added = [[__m256::zero(); PARTS]; TOKENS];
            for (added, [first, second]) in added.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                *added = _mm256_hadd_ps(*first, *second);
            }
            added
        }
    }
}

/// Has the compiler know this sum before it goes on. It would otherwise take one token after the other, and keep all
/// weights of a block on the stack until then.
#[target_feature(enable = "avx2")]
#[inline]
fn in_order(sum: &mut __m256) {
    // SAFETY: there is no instruction in it.
    unsafe { std::arch::asm!("/* {} */", inout(ymm_reg) * sum, options(nomem, nostack, preserves_flags)) }
}

/// The bits of each magnitude's value, its code added to those below the sign.
const MAGNITUDES: [u32; 8] = {
    let mut bits = [0; 8];
    let mut code = 0;
    while code < 8 {
        bits[code] = e2m1::VALUES[code].to_bits() ^ (code as u32) << 28;
        code += 1;
    }
    bits
};

/// The lower half of every byte of a lane.
static NIBBLES: i32 = 0x0F0F_0F0F;

/// The upper half of a lane.
static UPPER_HALF: i32 = 0xFFFF_0000_u32.cast_signed();

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

#[target_feature(enable = "avx2,fma,f16c")]
fn write(finish: Finish<'_>) {
    finish.write(|values| {
        let halves = [0, 1].map(|half| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(loadps(values, half)));
        // SAFETY: both are 32 bytes, and every pattern of bits is a number in half precision.
        unsafe { std::mem::transmute::<[__m128i; 2], [f16; COLUMNS]>(halves) }
    });
}

/// The lower or upper eight of sixteen floats.
#[target_feature(enable = "avx2")]
#[inline]
fn loadps(values: &[f32; COLUMNS], half: usize) -> __m256 {
    let values = &values[half * HALF..][..HALF];
    // SAFETY: there are 8 floats, and the load wants no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Keeps the f32 units busy; returns the operations done.
pub(super) fn flops() -> f64 {
    #[target_feature(enable = "avx2,fma")]
    fn busy() -> f64 {
        // SAFETY: the function wants the instructions, which this one is compiled for.
        unsafe { keep_busy::<__m256>() }
    }
    // SAFETY: called only where `available` found the instructions.
    unsafe { busy() }
}
