//! AVX-512: integer dot products (VNNI) for NVFP4 tokens, f32 multiply-adds for the others.
//!
//! A vector is one panel of 16 columns. *Integer*: a byte shuffle turns nibbles into bytes, `vpdpbusd` multiplies four of
//! K at once, and after a block of 16 the sum is converted and scaled, all exactly; only the addition to the running
//! sum rounds. *Float*: the low four bits of each lane pick a weight from a table in a register (`vpermps`), the scale
//! is multiplied in (exactly), and tokens are broadcast against it. Several tokens share each loaded weight.

use std::arch::x86_64::*;
use std::slice::from_mut;

use half::f16;

use super::backend::InstructionSet;
use super::dense::{self, Band, DenseKernel, DenseLoops, Stream};
use super::expansion::{Expand, Expansion};
use super::finish::Finish;
use super::integer::{self, IntegerBlock, IntegerToken, WEIGHT_TABLE};
use super::kernel::{Kernel, Product, TileStream};
use super::model::Rates;
use super::pack::{CHUNK_BLOCKS, CHUNK_BYTES, CODE_BYTES, COLUMNS, Panels, prefetch_stream};
use super::scalar::FloatBlock;
use super::schedule;
use super::source::GroupTokens;
use super::speeds::Speed;
use super::sums::Lanes;
use super::vector::Vector;
use op::{Activation, Arithmetic, Config, Error, Operands, Problem, Result, Team};

/// Tokens that share a loaded weight.
const SHARED: usize = 8;

/// Seconds to finish a result.
pub(super) const FINISH: f64 = 0.7e-9;

/// Tiles that are streamed: a few tokens, and a panel of gate and one of up.
const STREAMED: [(usize, usize); SHARED] = [(1, 16), (2, 16), (3, 16), (4, 16), (5, 16), (6, 16), (7, 16), (8, 16)];

/// The backend for AVX-512 with VNNI.
#[derive(Debug)]
pub struct Avx512;

impl InstructionSet for Avx512 {
    const NAME: &'static str = "avx512";
    const SUMMARY: &'static str = "AVX-512: integer dot products (VNNI) for NVFP4 tokens, f32 for others";

    fn available() -> Result<()> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma");
        match has {
            true => Ok(()),
            false => Err(Error::Unavailable {
                backend: Self::NAME,
                reason: "this processor lacks AVX-512 F, BW, VL or VNNI".to_owned(),
                remedy: "use 'avx2' or 'scalar', or leave the choice to 'auto'".to_owned(),
            }),
        }
    }

    fn arithmetic(activation: Activation) -> Arithmetic {
        super::backend::vector_arithmetic(activation)
    }

    fn rates(activation: Activation) -> Rates {
        match activation {
            Activation::NvFp4 => Rates::of(&IntegerKernel, "integer", FINISH, Speed { expand: 5e-9, multiply: 3.5e-9 })
                .with_stream(Speed { expand: 3e-9, multiply: 2.5e-9 }, &STREAMED),
            _ => Rates::of(&DenseKernel::<Avx512>::NEW, "dense", FINISH, Speed { expand: 11e-9, multiply: 5.5e-9 })
                .with_stream(Speed { expand: 6e-9, multiply: 5.5e-9 }, &dense::STREAMED),
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
            _ => schedule::run(&DenseKernel::<Avx512>::NEW, problem, config, panels, operands, team),
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
                    [a, b, c, d, e, f, g, h] => rows_integer([a, b, c, d, e, f, g, h], panel, sums, fresh),
                    [a, b, c, d] => rows_integer([a, b, c, d], panel, sums, fresh),
                    [a, b] => rows_integer([a, b], panel, sums, fresh),
                    _ => tokens.iter().zip(sums).for_each(|(a, sum)| rows_integer([a], panel, from_mut(sum), fresh)),
                }
            }
        });
    }

    fn stream(&self, tile: TileStream<'_, Self>) -> bool {
        let (&[gate, up], rows) = (&*tile.panels, tile.tokens.len() / tile.group_len) else { return false };
        let panels = [gate.as_chunks::<CHUNK_BYTES>(), up.as_chunks()];
        if panels.iter().any(|(_, rest)| !rest.is_empty()) {
            return false;
        }
        let (panels, tokens) = (panels.map(|(chunks, _)| chunks), tile.tokens.as_chunks::<CHUNK_BLOCKS>().0);
        // SAFETY: the functions want the instructions, and the schedule runs this kernel only where `available` found them.
        unsafe {
            match rows {
                1 => stream_integer::<1>(tokens, panels, tile.sums),
                2 => stream_integer::<2>(tokens, panels, tile.sums),
                3 => stream_integer::<3>(tokens, panels, tile.sums),
                4 => stream_integer::<4>(tokens, panels, tile.sums),
                5 => stream_integer::<5>(tokens, panels, tile.sums),
                6 => stream_integer::<6>(tokens, panels, tile.sums),
                7 => stream_integer::<7>(tokens, panels, tile.sums),
                8 => stream_integer::<8>(tokens, panels, tile.sums),
                _ => return false,
            }
        }
        true
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: the functions want the instructions, and the schedule runs this kernel only where `available` found them.
        unsafe { write(finish) }
    }
}

/// A few tokens against two panels along all of K, weights and sums in registers throughout.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
fn stream_integer<const R: usize>(
    tokens: &[[IntegerToken; CHUNK_BLOCKS]],
    panels: [&[[u8; CHUNK_BYTES]]; 2],
    sums: &mut [Lanes],
) {
    let low = _mm512_set1_epi8(15);
    let table = _mm512_broadcast_i32x4(load128(&WEIGHT_TABLE));
    let (mut gate, mut up) = ([_mm512_setzero_ps(); R], [_mm512_setzero_ps(); R]);
    let chunks = panels[0].len();
    for (index, (gate_chunk, up_chunk)) in panels[0].iter().zip(panels[1]).enumerate() {
        for (totals, chunk) in [(&mut gate, gate_chunk), (&mut up, up_chunk)] {
            prefetch_stream(chunk);
            let (scales, codes) = chunk.split_at(CHUNK_BLOCKS * COLUMNS);
            let codes = codes.as_chunks::<64>().0.as_chunks::<2>().0;
            for (block, (scales, codes)) in scales.as_chunks().0.iter().zip(codes).enumerate() {
                let codes = [load512(&codes[0]), load512(&codes[1])];
                let look_up = |codes: __m512i| _mm512_shuffle_epi8(table, _mm512_and_si512(codes, low));
                let weights = [
                    look_up(codes[0]),
                    look_up(_mm512_srli_epi16::<4>(codes[0])),
                    look_up(codes[1]),
                    look_up(_mm512_srli_epi16::<4>(codes[1])),
                ];
                let scales = scales_f32(scales, 256.0);
                for (row, total) in totals.iter_mut().enumerate() {
                    *total = add_block(*total, weights, scales, &tokens[row * chunks + index][block]);
                }
            }
        }
    }
    for (total, sums) in gate.into_iter().chain(up).zip(sums) {
        // SAFETY: lanes are 16 floats.
        unsafe { _mm512_storeu_ps(sums.0.as_mut_ptr(), total) };
    }
}

/// Adds the product of one block of a token and one of weights: an exact integer, scaled twice, exactly, and rounded once.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
#[inline]
fn add_block(total: __m512, weights: [__m512i; 4], scales: __m512, token: &IntegerToken) -> __m512 {
    let words = token.values.map(|word| _mm512_set1_epi32(word));
    let even = _mm512_dpbusd_epi32(_mm512_set1_epi32(token.start), weights[0], words[0]);
    let odd = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights[1], words[1]);
    let even = _mm512_dpbusd_epi32(even, weights[2], words[2]);
    let odd = _mm512_dpbusd_epi32(odd, weights[3], words[3]);
    let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
    _mm512_fmadd_ps(_mm512_mul_ps(dot, _mm512_set1_ps(token.scale)), scales, total)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
#[inline]
fn expand_integer(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut IntegerBlock) {
    let low = _mm512_set1_epi8(15);
    let table = _mm512_broadcast_i32x4(load128(&WEIGHT_TABLE));
    for (half, codes) in codes.as_chunks().0.iter().enumerate() {
        let codes = load512(codes);
        let weights = [codes, _mm512_srli_epi16::<4>(codes)];
        for (part, codes) in weights.into_iter().enumerate() {
            let weights = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, low));
            store512(&mut out.weights[2 * half + part], weights);
        }
    }
    // SAFETY: the block's scales are 16 floats.
    unsafe { _mm512_storeu_ps(out.scales.as_mut_ptr(), scales_f32(scales, 256.0)) };
}

/// Sixteen e4m3 scales (their signs are folded into the codes) as f32. Shifted into place, a byte is the half-precision
/// number 2⁻⁸ times the scale, subnormal or not.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn scales_f32(scales: &[u8; COLUMNS], factor: f32) -> __m512 {
    let halves = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(load128(scales)));
    _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(factor))
}

/// A few tokens against one panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma")]
#[inline]
fn rows_integer<const R: usize>(tokens: [&[IntegerToken]; R], panel: &[IntegerBlock], sums: &mut [Lanes], fresh: bool) {
    let mut totals = [_mm512_setzero_ps(); R];
    for (total, sums) in totals.iter_mut().zip(sums.iter()).filter(|_| !fresh) {
        *total = loadps(&sums.0);
    }
    for (index, block) in panel[..tokens[0].len()].iter().enumerate() {
        let weights = [0, 1, 2, 3].map(|i| load512(&block.weights[i]));
        let scales = loadps(&block.scales);
        for (total, tokens) in totals.iter_mut().zip(tokens) {
            *total = add_block(*total, weights, scales, &tokens[index]);
        }
    }
    for (total, sums) in totals.into_iter().zip(sums) {
        // SAFETY: lanes are 16 floats.
        unsafe { _mm512_storeu_ps(sums.0.as_mut_ptr(), total) };
    }
}

impl DenseLoops for Avx512 {
    type Vector = __m512;

    const PAIRS: usize = 6;
    const PANELS: usize = 2;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
    unsafe fn expand(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock) {
        // SAFETY: the function wants the instructions, which the caller promises.
        unsafe { dense::expand::<__m512>(scales, codes, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
    unsafe fn band<const TOKENS: usize, const PANELS: usize>(band: Band<'_, PANELS>) {
        // SAFETY: the function wants the instructions, which the caller promises.
        unsafe { band.add::<__m512, TOKENS>() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
    unsafe fn stream<const TOKENS: usize, const PANELS: usize>(stream: Stream<'_, PANELS>) {
        // SAFETY: the function wants the instructions, which the caller promises.
        unsafe { stream.run::<__m512, TOKENS>() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c,fma")]
    unsafe fn finish(finish: Finish<'_>) {
        write(finish);
    }
}

impl Vector for __m512 {
    const LANES: usize = COLUMNS;
    const REGISTERS: usize = 32;

    type Codes = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the processor has the instruction, as for all that follows: the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the processor has the instruction.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the processor has the instruction, and there are 16 floats to read.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the processor has the instruction, and there is room for 16 floats.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn multiply(self, factor: Self) -> Self {
        // SAFETY: the processor has the instruction.
        unsafe { _mm512_mul_ps(self, factor) }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: the processor has the instruction.
        unsafe { _mm512_fmadd_ps(self, factor, sum) }
    }

    #[inline(always)]
    unsafe fn scales(from: *const u8) -> Self {
        // SAFETY: the processor has the instructions, and there are 16 scales to read.
        unsafe { scales_f32(&*from.cast(), 256.0) }
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
fn load512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: there are 64 bytes, and the load wants no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store512(bytes: &mut [u8; 64], value: __m512i) {
    // SAFETY: there are 64 bytes, and the store wants no alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn loadps(values: &[f32; COLUMNS]) -> __m512 {
    // SAFETY: there are 16 floats, and the load wants no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: there are 16 bytes, and the load wants no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Keeps the f32 units busy; returns the operations done.
pub(super) fn flops() -> f64 {
    const ROUNDS: usize = 1 << 20;
    const CHAINS: usize = 16;

    #[target_feature(enable = "avx512f,fma")]
    fn busy() -> f32 {
        let (mut sums, factor) = ([_mm512_set1_ps(1.0); CHAINS], _mm512_set1_ps(std::hint::black_box(0.999)));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, factor);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }
    // SAFETY: called only where `available` found the instructions.
    std::hint::black_box(unsafe { busy() });
    (2 * COLUMNS * CHAINS * ROUNDS) as f64
}
