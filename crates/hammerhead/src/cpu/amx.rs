//! AMX: tiles of bf16, for every kind of token.
//!
//! A code times its scale has six significant bits, so it is exact in bf16, and so is every product of two such numbers
//! in the f32 sums. Tokens that bf16 cannot hold are split into parts that it can (an f16 into two, an f32 into three):
//! each part is a row of its own and the rows' sums are added in the end. Nothing is rounded but the sums.
//!
//! **Expansion** goes through half precision, where there is a vector multiplication: a table look-up makes 2⁸·w, the
//! scale's byte shifted by seven is 2⁻⁸·s, and their product w·s is exact. Shifting its fields right by three makes it a
//! bf16 number that is 2⁻¹¹² times as large (the exponent's bias differs by 112), without ever being subnormal. Tokens
//! are scaled up by a power of two in return, so that the sums stand in the middle of f32's range: AMX takes subnormal
//! numbers for zero, and there are none, but for products 2¹²⁴ times smaller than their group's largest activation.
//!
//! **Products**: one tile of 16 token rows against four panels (two of gate, two of up), so that each token tile, which
//! comes from the second-level cache, is used four times, while the expanded weights stay in the first. Between the tile
//! instructions, which take 16 cycles each, there is room for the expansion of the next slab.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use format::BLOCK;
use half::bf16;

use super::kernel::{Expansion, Finish, Kernel, Lanes, Product, Source};
use super::model::Rates;
use super::pack::COLUMNS;
use super::{CpuBackend, Panels, Threads, avx512, prefetch_stream, schedule};
use crate::backend::Operands;
use crate::{Activation, Config, Error, Problem, Result};

/// Rows of a tile, and k in one.
const TILE_ROWS: usize = 16;
const TILE_K: usize = 32;
/// What expanded weights are smaller by, as a power of two: half precision's exponent bias is 15, bf16's 127.
const WEIGHT_EXPONENT: i32 = 127 - 15;
/// Quantised tokens are at most 2688 < 2¹²; so scaled, they and their sums stay in range.
const QUANTISED_EXPONENT: i32 = 100;
/// The exponent that the largest dense token of a group is brought to.
const DENSE_EXPONENT: i32 = 110;

/// The backend for AMX with bf16.
#[derive(Debug)]
pub struct Amx;

impl CpuBackend for Amx {
    const NAME: &'static str = "amx";
    const SUMMARY: &'static str = "AMX tiles of bf16, dense tokens split exactly into bf16 parts";

    fn available() -> Result<()> {
        let unavailable = |reason: &str, remedy: &str| {
            Err(Error::Unavailable { backend: Self::NAME, reason: reason.to_owned(), remedy: remedy.to_owned() })
        };
        let instead = "use 'avx512' or leave the choice to 'auto'";
        if super::Backend::available(&super::Avx512).is_err() || !is_x86_feature_detected!("avx512fp16") {
            return unavailable("it expands weights with AVX-512 FP16, which this processor lacks", instead);
        }
        if !processor_has_tiles() {
            return unavailable("this processor has no AMX bf16 tiles", instead);
        }
        if !permitted() {
            return unavailable("the system does not grant this process the tile registers", "use Linux 5.16 or later");
        }
        Ok(())
    }

    fn rates(activation: Activation) -> Rates {
        Rates::of(&AmxKernel { parts: parts(activation) }, 7e-9, 3.5e-9, 0.9)
    }

    fn run(problem: &Problem, config: &Config, panels: &[Panels], operands: Operands<'_, '_, '_>, threads: &Threads) {
        let kernel = AmxKernel { parts: parts(problem.activation()) };
        schedule::run(&kernel, problem, config, panels, operands, threads);
    }
}

/// bf16 numbers that one activation becomes: 8 significant bits each.
fn parts(activation: Activation) -> usize {
    match activation {
        Activation::NvFp4 | Activation::BF16 => 1,
        Activation::F16 => 2,
        Activation::F32 => 3,
    }
}

/// CPUID leaf 7: AMX-BF16 is bit 22 and AMX-TILE bit 24 of EDX; XCR0 bits 17 and 18 say that the system saves tiles.
fn processor_has_tiles() -> bool {
    const TILES_AND_BF16: u32 = 1 << 22 | 1 << 24;
    const STATE: u64 = 0b11 << 17;
    let leaf = __cpuid_count(7, 0);
    if leaf.edx & TILES_AND_BF16 != TILES_AND_BF16 || !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: the processor has XSAVE, so XGETBV can be executed.
    unsafe { _xgetbv(0) & STATE == STATE }
}

/// Asks Linux, once a process, for the permission to use tile data.
fn permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    #[cfg(target_os = "linux")]
    let ask = || {
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const TILE_DATA: usize = 18;
        // SAFETY: the call takes two numbers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    };
    #[cfg(not(target_os = "linux"))]
    let ask = || false;
    *PERMITTED.get_or_init(ask)
}

/// Tokens in so many parts.
struct AmxKernel {
    parts: usize,
}

/// A block as half a tile: eight rows of 16 columns, two k each.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct HalfTile([[u16; 2 * COLUMNS]; BLOCK / 2]);

/// One row of a token tile: 32 k.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct TokenRow([u16; TILE_K]);

impl Kernel for AmxKernel {
    type Block = HalfTile;
    type Token = TokenRow;

    const BLANK: HalfTile = HalfTile([[0; 2 * COLUMNS]; BLOCK / 2]);
    const ZERO: TokenRow = TokenRow([0; TILE_K]);
    const ROWS: usize = TILE_ROWS;
    const BLOCKS: usize = TILE_K / BLOCK;
    const PANELS: usize = 4;

    fn parts(&self) -> usize {
        self.parts
    }

    fn group_len(&self, blocks: usize) -> usize {
        blocks.div_ceil(Self::BLOCKS) * TILE_ROWS
    }

    fn prepare(&self, source: Source<'_>, group: usize, out: &mut [TokenRow]) {
        let activations = source.activations;
        // In two steps: the whole factor may be beyond f32.
        let exponent = self.exponent(source);
        let factors = [exponent / 2, exponent - exponent / 2].map(|exponent| 2f32.powi(exponent));
        let rows = group * TILE_ROWS..((group + 1) * TILE_ROWS).min(activations.rows() * self.parts);
        let mut values = vec![0f32; activations.k()];
        for token in rows.start / self.parts..rows.end.div_ceil(self.parts) {
            activations.unscaled_row(token, &mut values);
            values.iter_mut().for_each(|value| *value = *value * factors[0] * factors[1]);
            for row in token * self.parts..(token + 1) * self.parts {
                split_off(&mut values, row - rows.start.min(row), rows.contains(&row).then_some(&mut *out));
            }
        }
    }

    fn unit(&self, source: Source<'_>) -> f64 {
        2f64.powi(WEIGHT_EXPONENT - self.exponent(source))
    }

    #[inline(always)]
    fn expand(&self, blocks: usize, bytes: &[u8], out: &mut [HalfTile]) {
        // SAFETY: the schedule runs this kernel only where `available` found the instructions.
        unsafe { expand(blocks, bytes, out) }
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        // SAFETY: as above, and `enter` has configured this thread's tiles.
        unsafe { multiply(product, ahead) }
    }

    fn enter(&self) {
        // SAFETY: as above.
        unsafe { configure() }
    }

    fn leave(&self) {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: as above.
        unsafe { avx512::write(finish) }
    }
}

/// Takes the leading 8 bits off every value, as bf16, leaves the rest, and puts the former into a row of the tiles.
fn split_off(values: &mut [f32], row: usize, mut out: Option<&mut [TokenRow]>) {
    for (tile, values) in values.chunks_mut(TILE_K).enumerate() {
        let mut leading = [0; TILE_K];
        for (leading, value) in leading.iter_mut().zip(values) {
            // The upper half of an f32 is the bf16 number below it.
            *leading = (value.to_bits() >> 16) as u16;
            *value -= bf16::from_bits(*leading).to_f32();
        }
        if let Some(out) = &mut out {
            out[tile * TILE_ROWS + row].0 = leading;
        }
    }
}

impl AmxKernel {
    /// The power of two that tokens are scaled by.
    fn exponent(&self, source: Source<'_>) -> i32 {
        match source.activations.element() {
            Activation::NvFp4 => QUANTISED_EXPONENT,
            _ if source.largest == 0.0 => 0,
            _ => DENSE_EXPONENT - f64::from(source.largest).log2().floor() as i32,
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
#[inline]
fn expand(blocks: usize, bytes: &[u8], out: &mut [HalfTile]) {
    /// Half precision of 2⁸ times each code's value, twice: the look-up reads five bits, one of them a neighbour's. Minus
    /// zero is entered as zero.
    const TABLE: [u16; 32] = {
        const MAGNITUDES: [u16; 8] = [0, 0x5800, 0x5C00, 0x5E00, 0x6000, 0x6200, 0x6400, 0x6600];
        let mut table = [0; 32];
        let mut code = 0;
        while code < 32 {
            table[code] = MAGNITUDES[code % 8] | if code % 16 > 8 { 0x8000 } else { 0 };
            code += 1;
        }
        table
    };
    /// Puts the scale of column n into the upper byte of both 16-bit halves of lane n.
    const SPREAD: [u8; 64] = {
        let mut spread = [0x80; 64];
        let mut column = 0;
        while column < COLUMNS {
            spread[4 * column + 1] = column as u8;
            spread[4 * column + 3] = column as u8;
            column += 1;
        }
        spread
    };
    prefetch_stream(bytes);
    // SAFETY: each load has its 64 or 16 bytes: the constants have that size, a block has 16 scales and 128 codes.
    // Each store has its 64 bytes and their alignment: a row of a half tile.
    unsafe {
        let (table, spread) = (_mm512_loadu_si512(TABLE.as_ptr().cast()), _mm512_loadu_si512(SPREAD.as_ptr().cast()));
        let keep = _mm512_set1_epi16(0x8FFFu16 as i16);
        let (scales, codes) = bytes.split_at(blocks * COLUMNS);
        let codes = codes.as_chunks::<64>().0.as_chunks::<2>().0;
        for ((scales, codes), out) in scales.as_chunks::<COLUMNS>().0.iter().zip(codes).zip(out) {
            let scales = _mm512_broadcast_i32x4(_mm_loadu_si128(scales.as_ptr().cast()));
            let scales = _mm512_castsi512_ph(_mm512_srli_epi16::<1>(_mm512_shuffle_epi8(scales, spread)));
            let (codes, rows) = (codes.as_ptr(), out.0.as_mut_ptr());
            let put = |row: usize, codes: __m512i| {
                let weights = _mm512_castsi512_ph(_mm512_permutexvar_epi16(codes, table));
                let product = _mm512_castph_si512(_mm512_mul_ph(weights, scales));
                // The sign stays on top; its three copies below are cleared.
                let moved = _mm512_and_si512(_mm512_srai_epi16::<3>(product), keep);
                _mm512_store_si512(rows.add(row).cast(), moved);
            };
            for half in 0..2 {
                let codes = _mm512_loadu_si512(codes.add(half).cast());
                put(4 * half, codes);
                put(4 * half + 1, _mm512_srli_epi16::<4>(codes));
                put(4 * half + 2, _mm512_srli_epi16::<8>(codes));
                put(4 * half + 3, _mm512_srli_epi16::<12>(codes));
            }
        }
    }
}

/// Shapes this thread's tiles: eight of 16 rows of 64 bytes.
///
/// # Safety
///
/// The processor must have AMX and the system must have granted its use.
unsafe fn configure() {
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }
    let mut shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    shapes.row_bytes[..8].fill(64);
    shapes.rows[..8].fill(TILE_ROWS as u8);
    // SAFETY: the 64 bytes read are the structure's.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly, preserves_flags)) }
}

/// Loads 16 rows of 64 bytes that lie together.
macro_rules! load {
    ($tile:literal, $from:expr) => {
        asm!(concat!("tileloadd tmm", $tile, ", [{} + {}*1]"), in(reg) $from, in(reg) 64usize,
            options(nostack, readonly, preserves_flags))
    };
}

/// Stores 16 rows of 64 bytes that lie together.
macro_rules! store {
    ($tile:literal, $to:expr) => {
        asm!(concat!("tilestored [{} + {}*1], tmm", $tile), in(reg) $to, in(reg) 64usize,
            options(nostack, preserves_flags))
    };
}

macro_rules! zero {
    ($tile:literal) => {
        asm!(concat!("tilezero tmm", $tile), options(nostack, nomem, preserves_flags))
    };
}

/// Adds the product of a token tile and a weight tile to a tile of sums.
macro_rules! product {
    ($sums:literal, $tokens:literal, $weights:literal) => {
        asm!(
            concat!("tdpbf16ps tmm", $sums, ", tmm", $tokens, ", tmm", $weights),
            options(nostack, nomem, preserves_flags)
        )
    };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
unsafe fn multiply(product: Product<'_, AmxKernel>, ahead: &mut Expansion<'_, AmxKernel>) {
    // SAFETY: passed on to the caller.
    unsafe {
        match product.panels() {
            1 => multiply_panels::<1>(product, ahead),
            2 => multiply_panels::<2>(product, ahead),
            3 => multiply_panels::<3>(product, ahead),
            _ => multiply_panels::<4>(product, ahead),
        }
    }
}

/// Tiles 0 to 3 are sums, 4 is tokens, 5 to 7 take turns as weights.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
#[inline]
unsafe fn multiply_panels<const PANELS: usize>(product: Product<'_, AmxKernel>, ahead: &mut Expansion<'_, AmxKernel>) {
    let (rows, tiles) = (product.rows(), product.depth() / AmxKernel::BLOCKS);
    let Product { tokens, group_len, blocks, slab, sums, fresh } = product;
    assert_eq!(slab.len(), PANELS * tiles * AmxKernel::BLOCKS, "a slab holds its panels");
    assert_eq!(sums.len(), PANELS * rows, "every row of every panel has its sums");
    let first = blocks.start / AmxKernel::BLOCKS * TILE_ROWS;
    let panel_bytes = tiles * AmxKernel::BLOCKS * size_of::<HalfTile>();
    let sum_bytes = rows * size_of::<Lanes>();
    let mut pace = Pace::new(ahead.remaining(), rows / TILE_ROWS * tiles);
    for (group, tokens) in tokens.chunks_exact(group_len).enumerate() {
        let tokens = &tokens[first..first + tiles * TILE_ROWS];
        // SAFETY: the slices above have the tiles that are read here, in order and without gaps: 16 rows of 64 bytes
        // for each step along K of tokens and of every panel, and 16 lanes of every panel's sums.
        unsafe {
            let sums = sums.as_mut_ptr().cast::<u8>().add(group * TILE_ROWS * size_of::<Lanes>());
            if fresh {
                zero!(0);
                zero!(1);
                zero!(2);
                zero!(3);
            } else {
                load!(0, sums);
                if PANELS > 1 {
                    load!(1, sums.add(sum_bytes));
                }
                if PANELS > 2 {
                    load!(2, sums.add(2 * sum_bytes));
                }
                if PANELS > 3 {
                    load!(3, sums.add(3 * sum_bytes));
                }
            }
            let (mut tokens, mut weights) = (tokens.as_ptr().cast::<u8>(), slab.as_ptr().cast::<u8>());
            for _ in 0..tiles {
                load!(4, tokens);
                load!(5, weights);
                product!(0, 4, 5);
                if PANELS > 1 {
                    load!(6, weights.add(panel_bytes));
                    product!(1, 4, 6);
                }
                if PANELS > 2 {
                    load!(7, weights.add(2 * panel_bytes));
                    product!(2, 4, 7);
                }
                if PANELS > 3 {
                    load!(5, weights.add(3 * panel_bytes));
                    product!(3, 4, 5);
                }
                tokens = tokens.add(TILE_ROWS * size_of::<TokenRow>());
                weights = weights.add(AmxKernel::BLOCKS * size_of::<HalfTile>());
                (0..pace.due()).for_each(|_| ahead.step());
            }
            store!(0, sums);
            if PANELS > 1 {
                store!(1, sums.add(sum_bytes));
            }
            if PANELS > 2 {
                store!(2, sums.add(2 * sum_bytes));
            }
            if PANELS > 3 {
                store!(3, sums.add(3 * sum_bytes));
            }
        }
    }
}

/// Spreads so many pieces of other work evenly over so many steps.
struct Pace {
    work: usize,
    steps: usize,
    owed: usize,
}

impl Pace {
    fn new(work: usize, steps: usize) -> Self {
        Self { work, steps, owed: 0 }
    }

    /// The pieces that fall to the next step.
    #[inline(always)]
    fn due(&mut self) -> usize {
        self.owed += self.work;
        let due = self.owed / self.steps;
        self.owed -= due * self.steps;
        due
    }
}

/// Keeps the tile unit busy from the first-level cache; returns the operations done.
pub(super) fn flops() -> f64 {
    const ROUNDS: usize = 1 << 14;
    let tiles = [[[TokenRow([0x3F80; TILE_K]); TILE_ROWS]; 2]; 2];
    let (tokens, weights) = (tiles[0].as_ptr().cast::<u8>(), tiles[1].as_ptr().cast::<u8>());
    // SAFETY: called only where `available` found the instructions; the tiles read are the array's.
    unsafe {
        configure();
        zero!(0);
        zero!(1);
        zero!(2);
        zero!(3);
        for _ in 0..ROUNDS {
            load!(4, tokens);
            load!(6, weights);
            product!(0, 4, 6);
            load!(7, weights.add(1024));
            product!(1, 4, 7);
            load!(5, tokens.add(1024));
            product!(2, 5, 6);
            product!(3, 5, 7);
        }
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
    (4 * 2 * TILE_ROWS * COLUMNS * TILE_K * ROUNDS) as f64
}
