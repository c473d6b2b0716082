//! AVX2: the same two ways as AVX-512, in halves of eight columns.
//!
//! *Integer*: `vpmaddubsw` multiplies unsigned weights with signed tokens and adds pairs into 16 bits (at most
//! 2·24·12 = 576, far from saturation), `vpmaddwd` adds pairs of those into 32. *Float*: a look-up has eight entries, which
//! is enough for the magnitudes; the sign is moved over.

use std::arch::x86_64::*;
use std::slice::from_mut;

use half::f16;

use super::backend::InstructionSet;
use super::dense::{self, Band, DenseKernel, DenseLoops, Stream};
use super::expansion::{Expand, Expansion};
use super::finish::Finish;
use super::integer::{self, IntegerBlock, IntegerToken, WEIGHT_TABLE};
use super::kernel::{Kernel, Product};
use super::model::Rates;
use super::pack::{CODE_BYTES, COLUMNS, Panels};
use super::scalar::FloatBlock;
use super::schedule;
use super::source::GroupTokens;
use super::speeds::Speed;
use super::sums::Lanes;
use super::vector::Vector;
use op::{Activation, Arithmetic, Config, Error, Operands, Problem, Result, Team};

/// Tokens that share a loaded weight.
const SHARED: usize = 4;
/// Seconds to finish a result.
const FINISH: f64 = 1.2e-9;

/// Columns of a vector.
const HALF: usize = COLUMNS / 2;

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
        match activation {
            Activation::NvFp4 => Rates::of(&IntegerKernel, "integer", FINISH, Speed { expand: 10e-9, multiply: 10e-9 }),
            _ => Rates::of(&DenseKernel::<Avx2>::NEW, "dense", FINISH, Speed { expand: 25e-9, multiply: 11e-9 })
                .with_stream(Speed { expand: 20e-9, multiply: 11e-9 }, &dense::STREAMED),
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
            Activation::NvFp4 => schedule::run(&IntegerKernel, problem, config, panels, operands, team),
            _ => schedule::run(&DenseKernel::<Avx2>::NEW, problem, config, panels, operands, team),
        }
    }
}

/// NVFP4 tokens.
struct IntegerKernel;

impl Expand for IntegerKernel {
    type Block = IntegerBlock;

    const BLANK: IntegerBlock = IntegerBlock::BLANK;

    #[inline(always)]
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut IntegerBlock) {
        // SAFETY: the schedule runs this kernel only where `available` found the instructions.
        unsafe { expand_integer(scales, codes, out) }
    }
}

impl Kernel for IntegerKernel {
    type Token = IntegerToken;

    const ROWS: usize = 1;
    const BLOCKS: usize = 1;
    const PANELS: usize = 2;

    fn group_len(blocks: usize) -> usize {
        blocks
    }

    fn prepare(&self, source: GroupTokens<'_>, group: usize, out: &mut [IntegerToken]) {
        integer::prepare(source.activations, group, out);
    }

    fn unit(&self, _: GroupTokens<'_>) -> f64 {
        integer::UNIT
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        product.by_rows::<SHARED>(ahead, |tokens, panel, sums, fresh| {
            // SAFETY: the functions want the instructions, and the schedule runs this kernel only where `available` found them.
            unsafe {
                match *tokens {
                    [a, b, c, d] => rows_integer([a, b, c, d], panel, sums, fresh),
                    [a, b] => rows_integer([a, b], panel, sums, fresh),
                    _ => tokens.iter().zip(sums).for_each(|(a, sum)| rows_integer([a], panel, from_mut(sum), fresh)),
                }
            }
        });
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: the functions want the instructions, and the schedule runs this kernel only where `available` found them.
        unsafe { write(finish) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn expand_integer(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut IntegerBlock) {
    let low = _mm256_set1_epi8(15);
    let table = _mm256_broadcastsi128_si256(load128(&WEIGHT_TABLE));
    for (quarter, codes) in codes.as_chunks().0.iter().enumerate() {
        let (vector, half) = (quarter / 2, quarter % 2);
        let codes = load256(codes);
        for (part, codes) in [codes, _mm256_srli_epi16::<4>(codes)].into_iter().enumerate() {
            let weights = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, low));
            let place = &mut out.weights[2 * vector + part].as_chunks_mut::<32>().0[half];
            // SAFETY: the place has 32 bytes.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), weights) };
        }
    }
    for (half, scales) in scales_f32(scales).into_iter().enumerate() {
        // SAFETY: half of the scales is 8 floats.
        unsafe { _mm256_storeu_ps(out.scales.as_mut_ptr().add(half * HALF), scales) };
    }
}

/// Sixteen e4m3 scales as f32: shifted into place, a byte is the half-precision number 2⁻⁸ times the scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn scales_f32(scales: &[u8; COLUMNS]) -> [__m256; 2] {
    let halves = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(load128(scales)));
    let parts = [_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves)];
    parts.map(|part| _mm256_mul_ps(_mm256_cvtph_ps(part), _mm256_set1_ps(256.0)))
}

/// A few tokens against one panel.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn rows_integer<const R: usize>(tokens: [&[IntegerToken]; R], panel: &[IntegerBlock], sums: &mut [Lanes], fresh: bool) {
    let ones = _mm256_set1_epi16(1);
    for half in 0..2 {
        let mut totals = [_mm256_setzero_ps(); R];
        for (total, sums) in totals.iter_mut().zip(sums.iter()).filter(|_| !fresh) {
            *total = loadps(&sums.0, half);
        }
        for (index, block) in panel[..tokens[0].len()].iter().enumerate() {
            let weights = [0, 1, 2, 3].map(|i| load256(&block.weights[i].as_chunks::<32>().0[half]));
            let scales = loadps(&block.scales, half);
            for (total, tokens) in totals.iter_mut().zip(tokens) {
                let token = &tokens[index];
                let mut dot = _mm256_set1_epi32(token.start);
                for (weights, word) in weights.into_iter().zip(token.values) {
                    let pairs = _mm256_maddubs_epi16(weights, _mm256_set1_epi32(word));
                    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
                }
                let dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(token.scale));
                *total = _mm256_fmadd_ps(dot, scales, *total);
            }
        }
        totals.into_iter().zip(sums.iter_mut()).for_each(|(total, sums)| storeps(&mut sums.0, half, total));
    }
}

impl DenseLoops for Avx2 {
    type Vector = __m256;

    const PAIRS: usize = 3;
    const PANELS: usize = 1;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn expand(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock) {
        // SAFETY: the function wants the instructions, which the caller promises.
        unsafe { dense::expand::<__m256>(scales, codes, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn band<const TOKENS: usize, const PANELS: usize>(band: Band<'_, PANELS>) {
        // SAFETY: the function wants the instructions, which the caller promises.
        unsafe { band.add::<__m256, TOKENS>() }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn stream<const TOKENS: usize, const PANELS: usize>(stream: Stream<'_, PANELS>) {
        // SAFETY: the function wants the instructions, which the caller promises.
        unsafe { stream.run::<__m256, TOKENS>() }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn finish(finish: Finish<'_>) {
        write(finish);
    }
}

impl Vector for __m256 {
    const LANES: usize = HALF;
    const REGISTERS: usize = 16;

    type Codes = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the processor has the instruction, as for all that follows: the caller's promise.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the processor has the instruction.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the processor has the instruction, and there are 8 floats to read.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the processor has the instruction, and there is room for 8 floats.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: Self) -> Self {
        // SAFETY: the processor has the instruction.
        unsafe { _mm256_mul_ps(self, factor) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: the processor has the instruction.
        unsafe { _mm256_fmadd_ps(self, factor, sum) }
    }

    #[inline(always)]
    unsafe fn scales(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 8 scales to read.
        unsafe {
            let halves = _mm_slli_epi16::<7>(_mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast())));
            _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0))
        }
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

    /// Eight magnitudes fit a vector; the code's sign bit is moved to the top of its lane.
    #[inline(always)]
    unsafe fn values(codes: __m256i) -> Self {
        // SAFETY: the processor has the instructions, and the first eight of the values are read.
        unsafe {
            let magnitudes = _mm256_permutevar8x32_ps(_mm256_loadu_ps(format::e2m1::VALUES.as_ptr()), codes);
            let signs = _mm256_and_si256(_mm256_slli_epi32::<28>(codes), _mm256_set1_epi32(i32::MIN));
            _mm256_xor_ps(magnitudes, _mm256_castsi256_ps(signs))
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn write(finish: Finish<'_>) {
    finish.write(|values| {
        let halves = [0, 1].map(|half| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(loadps(values, half)));
        // SAFETY: both are 32 bytes, and every pattern of bits is a number in half precision.
        unsafe { std::mem::transmute::<[__m128i; 2], [f16; COLUMNS]>(halves) }
    });
}

#[target_feature(enable = "avx2")]
#[inline]
fn load256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: there are 32 bytes, and the load wants no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: there are 16 bytes, and the load wants no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The lower or upper eight of sixteen floats.
#[target_feature(enable = "avx2")]
#[inline]
fn loadps(values: &[f32; COLUMNS], half: usize) -> __m256 {
    let values = &values[half * HALF..][..HALF];
    // SAFETY: there are 8 floats, and the load wants no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn storeps(values: &mut [f32; COLUMNS], half: usize, value: __m256) {
    let values = &mut values[half * HALF..][..HALF];
    // SAFETY: there are 8 floats, and the store wants no alignment.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), value) }
}

/// Keeps the f32 units busy; returns the operations done.
pub(super) fn flops() -> f64 {
    const ROUNDS: usize = 1 << 20;
    const CHAINS: usize = 12;

    #[target_feature(enable = "avx2,fma")]
    fn busy() -> [f32; COLUMNS] {
        let (mut sums, factor) = ([_mm256_set1_ps(1.0); CHAINS], _mm256_set1_ps(std::hint::black_box(0.999)));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, factor);
            }
        }
        let mut out = [0.0; COLUMNS];
        sums.into_iter().enumerate().for_each(|(chain, sum)| storeps(&mut out, chain % 2, sum));
        out
    }
    // SAFETY: called only where `available` found the instructions.
    std::hint::black_box(unsafe { busy() });
    (2 * HALF * CHAINS * ROUNDS) as f64
}
