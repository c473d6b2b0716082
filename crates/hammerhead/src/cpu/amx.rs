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
//! **Products**: six tile registers can hold sums, so three groups of 16 token rows meet a gate panel and an up panel, or
//! one group meets two of each. Between the tile instructions, which take 16 cycles each, there is room for the expansion
//! of what comes next. Two loops do that: `Stream` for a tile whose sums stay in registers along all of K, and `Walk` for
//! any other.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use format::BLOCK;
use half::bf16;

use super::kernel::{Expansion, Finish, Kernel, Lanes, Pace, Product, Source, TileStream};
use super::model::{Rates, Speed};
use super::pack::{CHUNK_BLOCKS, CHUNK_BYTES, CODE_BYTES, COLUMNS};
use super::{CpuBackend, Panels, Threads, avx512, schedule};
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
        Rates::of(&AmxKernel { parts: parts(activation) }, Speed { expand: 15e-9, multiply: 9e-9 })
            .with_stream(Speed { expand: 11e-9, multiply: 4.5e-9 }, &[(16, 32), (32, 16), (48, 16)])
    }

    fn run(
        problem: &Problem,
        config: &Config,
        panels: &[Panels],
        operands: Operands<'_, '_, '_>,
        threads: &Threads,
    ) -> Result<()> {
        let kernel = AmxKernel { parts: parts(problem.activation()) };
        schedule::run(&kernel, problem, config, panels, operands, threads)
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
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(512))]
struct HalfTile([[u16; 2 * COLUMNS]; BLOCK / 2]);

/// 16 rows of tokens, 32 k.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(1024))]
struct TokenTile([[u16; TILE_K]; TILE_ROWS]);

impl Kernel for AmxKernel {
    type Block = HalfTile;
    type Token = TokenTile;

    const BLANK: HalfTile = HalfTile([[0; 2 * COLUMNS]; BLOCK / 2]);
    const ROWS: usize = TILE_ROWS;
    const BLOCKS: usize = TILE_K / BLOCK;
    const PANELS: usize = 4;

    fn parts(&self) -> usize {
        self.parts
    }

    fn group_len(&self, blocks: usize) -> usize {
        blocks.div_ceil(Self::BLOCKS)
    }

    fn prepare(&self, source: Source<'_>, group: usize, out: &mut [TokenTile]) {
        let activations = source.activations;
        // In two steps: the whole factor may be beyond f32.
        let exponent = self.exponent(source);
        let factors = [exponent / 2, exponent - exponent / 2].map(|exponent| 2f32.powi(exponent));
        let rows = group * TILE_ROWS..((group + 1) * TILE_ROWS).min(activations.rows() * self.parts);
        if rows.len() < TILE_ROWS || !activations.k().is_multiple_of(TILE_K) {
            out.fill(TokenTile::zeroed());
        }
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
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut HalfTile) {
        // SAFETY: the schedule runs this kernel only where `available` found the instructions.
        unsafe { Expander::new().block(scales.as_ptr(), codes.as_ptr(), out) }
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        // SAFETY: as above, and `enter` has configured this thread's tiles.
        unsafe { multiply(product, ahead) }
    }

    fn stream(&self, tile: TileStream<'_, Self>) -> bool {
        let groups: Vec<&[TokenTile]> = tile.tokens.chunks_exact(tile.group_len).collect();
        let panels: Vec<_> = tile.panels.iter().map(|panel| panel.as_chunks::<CHUNK_BYTES>()).collect();
        let written_out = matches!((groups.len(), panels.len()), (1, 2 | 4) | (2 | 3, 2));
        if !written_out || panels.iter().any(|(_, rest)| !rest.is_empty()) {
            return false;
        }
        let weights: Vec<_> = panels.into_iter().map(|(chunks, _)| chunks).collect();
        // SAFETY: as above, and `enter` has configured this thread's tiles.
        unsafe { Stream { tokens: &groups, weights: &weights, ring: tile.ring, sums: tile.sums }.run() };
        true
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
fn split_off(values: &mut [f32], row: usize, mut out: Option<&mut [TokenTile]>) {
    for (tile, values) in values.chunks_mut(TILE_K).enumerate() {
        let mut leading = [0; TILE_K];
        for (leading, value) in leading.iter_mut().zip(values) {
            // The upper half of an f32 is the bf16 number below it.
            *leading = (value.to_bits() >> 16) as u16;
            *value -= bf16::from_bits(*leading).to_f32();
        }
        if let Some(out) = &mut out {
            out[tile].0[row] = leading;
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

/// Half precision of 2⁸ times each code's value, twice: the look-up reads five bits, one of them a neighbour's. Minus zero
/// is entered as zero.
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

/// The constants of the expansion, in registers.
#[derive(Clone, Copy)]
struct Expander {
    table: __m512i,
    spread: __m512i,
    keep: __m512i,
}

impl Expander {
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn new() -> Self {
        // SAFETY: both constants have 64 bytes.
        let load = |bytes: *const u8| unsafe { _mm512_loadu_si512(bytes.cast()) };
        let keep = _mm512_set1_epi16(0x8FFFu16 as i16);
        Self { table: load(TABLE.as_ptr().cast()), spread: load(SPREAD.as_ptr()), keep }
    }

    /// Expands one block: about five operations for each row of 32 weights.
    ///
    /// # Safety
    ///
    /// There must be 16 scales and 128 bytes of codes to read, and an aligned half tile to write.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    #[inline]
    unsafe fn block(&self, scales: *const u8, codes: *const u8, out: *mut HalfTile) {
        // SAFETY: passed on to the caller.
        unsafe {
            let scales = _mm512_broadcast_i32x4(_mm_loadu_si128(scales.cast()));
            let scales = _mm512_castsi512_ph(_mm512_srli_epi16::<1>(_mm512_shuffle_epi8(scales, self.spread)));
            let rows = out.cast::<[u16; 2 * COLUMNS]>();
            let put = |row: usize, codes: __m512i| {
                let weights = _mm512_castsi512_ph(_mm512_permutexvar_epi16(codes, self.table));
                let product = _mm512_castph_si512(_mm512_mul_ph(weights, scales));
                // The sign stays on top; its three copies below are cleared.
                let moved = _mm512_and_si512(_mm512_srai_epi16::<3>(product), self.keep);
                _mm512_store_si512(rows.add(row).cast(), moved);
            };
            for half in 0..2 {
                let codes = _mm512_loadu_si512(codes.add(64 * half).cast());
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

/// Tiles that sums can be in.
const SUM_TILES: usize = 6;

/// Loads the first `count` tiles of sums.
///
/// # Safety
///
/// So many pointers must be to 1 KB each, and tiles must be configured.
#[inline(always)]
unsafe fn load_sums(count: usize, from: [*mut u8; SUM_TILES]) {
    // SAFETY: passed on to the caller.
    unsafe {
        load!(0, from[0]);
        if count > 1 {
            load!(1, from[1]);
        }
        if count > 2 {
            load!(2, from[2]);
        }
        if count > 3 {
            load!(3, from[3]);
        }
        if count > 4 {
            load!(4, from[4]);
            load!(5, from[5]);
        }
    }
}

/// Stores the first `count` tiles of sums.
///
/// # Safety
///
/// As [`load_sums`].
#[inline(always)]
unsafe fn store_sums(count: usize, to: [*mut u8; SUM_TILES]) {
    // SAFETY: passed on to the caller.
    unsafe {
        store!(0, to[0]);
        if count > 1 {
            store!(1, to[1]);
        }
        if count > 2 {
            store!(2, to[2]);
        }
        if count > 3 {
            store!(3, to[3]);
        }
        if count > 4 {
            store!(4, to[4]);
            store!(5, to[5]);
        }
    }
}

/// Clears every tile of sums.
///
/// # Safety
///
/// Tiles must be configured.
#[inline(always)]
unsafe fn zero_sums() {
    // SAFETY: passed on to the caller.
    unsafe {
        zero!(0);
        zero!(1);
        zero!(2);
        zero!(3);
        zero!(4);
        zero!(5);
    }
}

/// Multiplies every group of rows with every panel of the slab, as many at once as tile registers can hold sums for: one
/// group with four panels, or three groups with two.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
unsafe fn multiply(product: Product<'_, AmxKernel>, ahead: &mut Expansion<'_, AmxKernel>) {
    let (groups, panels, tiles) = (product.rows() / TILE_ROWS, product.panels(), product.depth() / AmxKernel::BLOCKS);
    let together = if groups == 1 { (1, 4) } else { (3, 2) };
    // Sums that are complete in one pass, and are the only ones of the tile, stay in the registers.
    let stay = product.alone && groups <= together.0 && panels <= together.1;
    let mut walk = Walk {
        pace: Pace::new(ahead.remaining(), groups * panels * tiles),
        zero: product.fresh,
        load: !product.fresh && !stay,
        store: product.last || !stay,
        product,
        tiles,
    };
    for panel in (0..panels).step_by(together.1) {
        for group in (0..groups).step_by(together.0) {
            // SAFETY: passed on to the caller.
            unsafe {
                match (together.0.min(groups - group), together.1.min(panels - panel)) {
                    (1, 1) => walk.pass::<1, 1>(group, panel, ahead),
                    (1, 2) => walk.pass::<1, 2>(group, panel, ahead),
                    (1, 3) => walk.pass::<1, 3>(group, panel, ahead),
                    (1, _) => walk.pass::<1, 4>(group, panel, ahead),
                    (2, 1) => walk.pass::<2, 1>(group, panel, ahead),
                    (2, _) => walk.pass::<2, 2>(group, panel, ahead),
                    (_, 1) => walk.pass::<3, 1>(group, panel, ahead),
                    _ => walk.pass::<3, 2>(group, panel, ahead),
                }
            }
        }
    }
}

/// One product on its way through the tile registers.
struct Walk<'a> {
    product: Product<'a, AmxKernel>,
    pace: Pace,
    /// Tiles along K.
    tiles: usize,
    zero: bool,
    load: bool,
    store: bool,
}

impl Walk<'_> {
    /// `GROUPS` groups of rows against `PANELS` panels, at most six sums: those of group g and panel p are in tile
    /// `g·PANELS + p`. Between any two tile products there is room for a part of what is ahead: the processor looks only so
    /// far, and a longer stretch of other work would hide the next product from it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    #[inline]
    unsafe fn pass<const GROUPS: usize, const PANELS: usize>(
        &mut self,
        first: usize,
        first_panel: usize,
        ahead: &mut Expansion<'_, AmxKernel>,
    ) {
        let Product { tokens, group_len, blocks, slab, sums, .. } = &mut self.product;
        let start = blocks.start / AmxKernel::BLOCKS;
        let rows = tokens.len() / *group_len * TILE_ROWS;
        let token = |group: usize| tokens[(first + group) * *group_len + start..][..self.tiles].as_ptr().cast::<u8>();
        let weight =
            |panel: usize| slab.panel(first_panel + panel)[..self.tiles * AmxKernel::BLOCKS].as_ptr().cast::<u8>();
        let mut a: [*const u8; GROUPS] = std::array::from_fn(token);
        let mut b: [*const u8; PANELS] = std::array::from_fn(weight);
        let sums: [*mut u8; SUM_TILES] = std::array::from_fn(|tile| {
            let (group, panel) = (tile / PANELS % GROUPS, tile % PANELS);
            sums[(first_panel + panel) * rows + (first + group) * TILE_ROWS..][..TILE_ROWS].as_mut_ptr().cast::<u8>()
        });
        let pace = &mut self.pace;
        macro_rules! ahead {
            () => {
                for _ in 0..pace.due() {
                    ahead.step();
                }
            };
        }
        // SAFETY: every pointer was taken from a slice that has the tiles that are read or written through it: `tiles` of
        // them for tokens and weights, one for sums.
        unsafe {
            if self.zero {
                zero_sums();
            } else if self.load {
                load_sums(GROUPS * PANELS, sums);
            }
            for _ in 0..self.tiles {
                match (GROUPS, PANELS) {
                    (1, 1) => {
                        load!(6, a[0]);
                        load!(7, b[0]);
                        product!(0, 6, 7);
                        ahead!();
                    }
                    (1, _) => {
                        load!(4, a[0]);
                        load!(5, b[0]);
                        product!(0, 4, 5);
                        ahead!();
                        load!(6, b[1]);
                        product!(1, 4, 6);
                        ahead!();
                        if PANELS > 2 {
                            load!(7, b[2]);
                            product!(2, 4, 7);
                            ahead!();
                        }
                        if PANELS > 3 {
                            load!(5, b[3]);
                            product!(3, 4, 5);
                            ahead!();
                        }
                    }
                    (_, 1) => {
                        load!(6, b[0]);
                        load!(7, a[0]);
                        product!(0, 7, 6);
                        ahead!();
                        load!(5, a[1]);
                        product!(1, 5, 6);
                        ahead!();
                        if GROUPS > 2 {
                            load!(4, a[2]);
                            product!(2, 4, 6);
                            ahead!();
                        }
                    }
                    (2, _) => {
                        load!(4, a[0]);
                        load!(6, b[0]);
                        product!(0, 4, 6);
                        load!(7, b[1]);
                        ahead!();
                        product!(1, 4, 7);
                        load!(5, a[1]);
                        ahead!();
                        product!(2, 5, 6);
                        ahead!();
                        product!(3, 5, 7);
                        ahead!();
                    }
                    _ => {
                        // Six sums leave two registers: the weights stay, the tokens pass by, there and back.
                        load!(6, b[0]);
                        load!(7, a[0]);
                        product!(0, 7, 6);
                        load!(7, a[1]);
                        ahead!();
                        product!(2, 7, 6);
                        load!(7, a[2]);
                        ahead!();
                        product!(4, 7, 6);
                        load!(6, b[1]);
                        ahead!();
                        product!(5, 7, 6);
                        load!(7, a[1]);
                        ahead!();
                        product!(3, 7, 6);
                        load!(7, a[0]);
                        ahead!();
                        product!(1, 7, 6);
                        ahead!();
                    }
                }
                a = a.map(|tile| tile.add(size_of::<TokenTile>()));
                b = b.map(|tile| tile.add(AmxKernel::BLOCKS * size_of::<HalfTile>()));
            }
            if self.store {
                store_sums(GROUPS * PANELS, sums);
            }
        }
    }
}

/// A tile of C whose sums all fit the registers, along all of K: ping-pong in its tightest form.
struct Stream<'a> {
    /// For each group of rows, its tiles along K.
    tokens: &'a [&'a [TokenTile]],
    /// For each panel, gate before up, its chunks along K.
    weights: &'a [&'a [[u8; CHUNK_BYTES]]],
    /// For each panel, a page that holds four tiles: two to be read and two to be written.
    ring: &'a mut [HalfTile],
    /// For each panel, the sums of every row.
    sums: &'a mut [Lanes],
}

/// Half tiles of a page.
const RING: usize = 8;
/// How far ahead of the expansion weights are fetched, in chunks. The processor has them in its second-level cache by then; a
/// longer reach only fills the buffers that the tokens come through.
const FETCH_AHEAD: usize = 2;

impl Stream<'_> {
    /// Runs the stream if its shape is one that has been written out.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    unsafe fn run(self) {
        // SAFETY: passed on to the caller.
        unsafe {
            match (self.tokens.len(), self.weights.len()) {
                (1, 2) => self.walk::<1, 2>(),
                (1, 4) => self.walk::<1, 4>(),
                (2, 2) => self.walk::<2, 2>(),
                _ => self.walk::<3, 2>(),
            }
        }
    }

    /// `GROUPS` groups of rows against `PANELS` panels. While 64 of K are multiplied, the next 64 are expanded, a block or two
    /// between any two tile products: the processor looks only so far, and a longer stretch of other work would hide the
    /// next product from it.
    ///
    /// Step s along K reads the quarter s mod 4 of each panel's page, and the expansion writes the quarter two further on:
    /// so no load has the low 12 address bits of a store that is still under way, which the processor would take for the
    /// same place, and wait.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions, and this thread's tiles must be configured.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512fp16")]
    unsafe fn walk<const GROUPS: usize, const PANELS: usize>(self) {
        let chunks = self.weights[0].len();
        assert!(self.tokens.len() == GROUPS && self.tokens.iter().all(|tiles| tiles.len() == 2 * chunks));
        assert!(self.weights.len() == PANELS && self.weights.iter().all(|panel| panel.len() == chunks));
        assert!(self.ring.len() >= PANELS * RING && self.sums.len() == PANELS * GROUPS * TILE_ROWS);
        let expander = Expander::new();
        let ring = self.ring.as_mut_ptr();
        let mut a: [*const u8; GROUPS] = std::array::from_fn(|group| self.tokens[group].as_ptr().cast());
        let mut w: [*const u8; PANELS] = std::array::from_fn(|panel| self.weights[panel].as_ptr().cast());
        // SAFETY: in all that follows `w` points to the chunk that is expanded, one of the panel's; `a` to a tile of the
        // group's; a place in the ring is a multiple of half tiles below `PANELS * RING` (all asserted above).
        unsafe {
            // Block `block` of half `half` of the chunk, to step `step` of the ring.
            macro_rules! expand {
                ($panel:expr, $half:expr, $block:expr, $step:expr) => {
                    expander.block(
                        w[$panel].add((2 * $half + $block) * COLUMNS),
                        w[$panel].add(CHUNK_BLOCKS * COLUMNS + (2 * $half + $block) * CODE_BYTES),
                        ring.add($panel * RING + 2 * $step + $block),
                    )
                };
            }
            // Half of the lines of a chunk.
            macro_rules! fetch {
                ($panel:expr, $half:expr) => {
                    for line in 5 * $half..5 + 4 * $half {
                        _mm_prefetch::<_MM_HINT_T0>(
                            w[$panel].wrapping_add(FETCH_AHEAD * CHUNK_BYTES + 64 * line).cast(),
                        )
                    }
                };
            }
            for (panel, block) in (0..PANELS).flat_map(|panel| (0..CHUNK_BLOCKS).map(move |block| (panel, block))) {
                expand!(panel, block / 2, block % 2, block / 2);
            }
            zero_sums();
            for chunk in 0..chunks {
                if chunk + 1 < chunks {
                    w = w.map(|panel| panel.add(CHUNK_BYTES));
                }
                let (read, write) = (chunk % 2 * 2, 2 - chunk % 2 * 2);
                macro_rules! step {
                    ($half:literal) => {
                        let b = |panel: usize| ring.add(panel * RING + 2 * (read + $half)).cast::<u8>();
                        let to = write + $half;
                        match (GROUPS, PANELS) {
                            (1, _) => {
                                load!(4, a[0]);
                                load!(6, b(0));
                                product!(0, 4, 6);
                                load!(7, b(1));
                                fetch!(0, $half);
                                expand!(0, $half, 0, to);
                                expand!(0, $half, 1, to);
                                product!(1, 4, 7);
                                if PANELS == 4 {
                                    load!(5, b(2));
                                }
                                fetch!(1, $half);
                                expand!(1, $half, 0, to);
                                expand!(1, $half, 1, to);
                                if PANELS == 4 {
                                    product!(2, 4, 5);
                                    load!(6, b(3));
                                    fetch!(2, $half);
                                    expand!(2, $half, 0, to);
                                    expand!(2, $half, 1, to);
                                    product!(3, 4, 6);
                                    fetch!(3, $half);
                                    expand!(3, $half, 0, to);
                                    expand!(3, $half, 1, to);
                                }
                            }
                            (2, _) => {
                                load!(4, a[0]);
                                load!(6, b(0));
                                product!(0, 4, 6);
                                load!(7, b(1));
                                fetch!(0, $half);
                                expand!(0, $half, 0, to);
                                product!(1, 4, 7);
                                load!(5, a[1]);
                                expand!(0, $half, 1, to);
                                product!(2, 5, 6);
                                fetch!(1, $half);
                                expand!(1, $half, 0, to);
                                product!(3, 5, 7);
                                expand!(1, $half, 1, to);
                            }
                            _ => {
                                // Six sums leave two registers: the weights stay, the tokens pass by, there and back.
                                load!(6, b(0));
                                load!(7, a[0]);
                                product!(0, 7, 6);
                                load!(7, a[1]);
                                fetch!(0, $half);
                                expand!(0, $half, 0, to);
                                product!(2, 7, 6);
                                load!(7, a[2]);
                                expand!(0, $half, 1, to);
                                product!(4, 7, 6);
                                load!(6, b(1));
                                product!(5, 7, 6);
                                load!(7, a[1]);
                                fetch!(1, $half);
                                expand!(1, $half, 0, to);
                                product!(3, 7, 6);
                                load!(7, a[0]);
                                expand!(1, $half, 1, to);
                                product!(1, 7, 6);
                            }
                        }
                        a = a.map(|tile| tile.add(size_of::<TokenTile>()));
                    };
                }
                step!(0);
                step!(1);
            }
            let sums = self.sums.as_mut_ptr();
            let place = |tile: usize| {
                let (group, panel) = (tile / PANELS % GROUPS, tile % PANELS);
                sums.add((panel * GROUPS + group) * TILE_ROWS).cast::<u8>()
            };
            store_sums(GROUPS * PANELS, std::array::from_fn(place));
        }
    }
}

/// Keeps the tile unit busy from the first-level cache; returns the operations done.
pub(super) fn flops() -> f64 {
    const ROUNDS: usize = 1 << 14;
    let tiles = [[TokenTile([[0x3F80; TILE_K]; TILE_ROWS]); 2]; 2];
    let (tokens, weights) = (tiles[0].as_ptr().cast::<u8>(), tiles[1].as_ptr().cast::<u8>());
    // SAFETY: called only where `available` found the instructions; the tiles read are the array's.
    unsafe {
        configure();
        zero_sums();
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
