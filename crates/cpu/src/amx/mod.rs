//! AMX: tiles of bf16, for every kind of token.
//!
//! A code times its scale has six significant bits, so it is exact in bf16, and so is every product of two such numbers
//! in the f32 sums. Tokens that bf16 cannot hold are split into parts that it can (an f16 into two, an f32 into three):
//! each part is a row of its own and the rows' sums are added in the end. Nothing is rounded but the sums.
//!
//! Processors with AMX-FP16 multiply tiles of f16 as well: there f16 tokens are one part, unless some are so small
//! beside the largest that they would be subnormal, which that instruction may take for zero. Both kinds of tile go
//! through the same loops. No such processor was at hand: its tiles are tested up to the instruction, which has not
//! been run.
//!
//! `expand` makes tiles of packed weights and `tokens` of activations, each scaled by a power of two so that no sum is
//! subnormal, which AMX would take for zero. A tile product takes 16 cycles, and in its shade the vector units have
//! time to expand weights, if the products' own operands come quickly enough: tokens from L2, weights, just expanded,
//! from the first. Three loops do that: `stream` for a tile whose sums stay in registers along all of K, `resident` for
//! one of many tokens and many columns, whose tokens come from L1 as well, and `walk` for any other.

mod expand;
mod resident;
mod stream;
mod tiles;
mod tokens;
mod walk;

use std::arch::x86_64::*;
use std::sync::OnceLock;

use format::{BLOCK, Scaling};

use self::expand::{BYTE_EXPONENT, Expander, HALF_EXPONENT, WEIGHT_EXPONENT, byte_block};
use self::resident::Resident;
use self::stream::{STREAMED, Stream};
use self::tiles::{Configured, HalfTile, TILE_K, TILE_ROWS, TokenTile, load, product, zero};
use self::tokens::parts;
use super::backend::InstructionSet;
use super::expansion::{Expand, Expansion};
use super::finish::Finish;
use super::fp8::{self, BYTES, ByteKernel, Fp8Run};
use super::kernel::{Kernel, Product, TileStream};
use super::model::Rates;
use super::pack::{CODE_BYTES, COLUMNS, Panels, chunk_bytes};
use super::source::GroupTokens;
use super::speeds::Speed;
use super::{avx512, schedule};
use op::{Activation, Arithmetic, Config, Error, Operands, Problem, Result, Team};

/// The backend for AMX with bf16.
#[derive(Debug)]
pub struct Amx;

impl InstructionSet for Amx {
    const NAME: &'static str = "amx";
    const SUMMARY: &'static str = "AMX tiles of bf16, dense tokens split exactly into bf16 parts";

    fn available() -> Result<()> {
        let unavailable = |reason: &str, remedy: &str| {
            Err(Error::Unavailable { backend: Self::NAME, reason: reason.to_owned(), remedy: remedy.to_owned() })
        };
        let instead = "use 'avx512' or leave the choice to 'auto'";
        if super::avx512::Avx512::available().is_err() || !is_x86_feature_detected!("avx512fp16") {
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

    fn arithmetic(activation: Activation) -> Arithmetic {
        Arithmetic::Tiles { parts: parts(activation) as u32 }
    }

    fn rates(activation: Activation) -> Rates {
        Rates::of(
            &AmxKernel::<false, false> { parts: planned_parts(activation) },
            "tiles",
            avx512::FINISH,
            Speed { expand: 15e-9, multiply: 9e-9 },
        )
        .with_stream(Speed { expand: 11e-9, multiply: 5e-9 }, &STREAMED)
        .with_resident(resident::RATES)
    }

    unsafe fn run(
        problem: &Problem,
        config: &Config,
        panels: &[Panels],
        operands: Operands<'_, '_, '_>,
        team: &Team,
    ) -> Result<()> {
        let mut sources = operands.activations.iter().zip(operands.largest);
        let fits = |(activations, &largest)| tokens::fit_f16(GroupTokens { activations, largest });
        let halves = problem.activation() == Activation::F16 && problem.scaling() != Scaling::WideMxFp4;
        let halves = halves && processor_has_f16_tiles() && sources.all(fits);
        let parts = if halves { 1 } else { parts(problem.activation()) };
        macro_rules! run {
            ($f16:literal, $mx:literal) => {
                schedule::run(&AmxKernel::<$f16, $mx> { parts }, problem, config, panels, operands, team)
            };
        }
        match (halves, problem.scaling().is_mx()) {
            (true, true) => run!(true, true),
            (true, false) => run!(true, false),
            (false, true) => run!(false, true),
            (false, false) => run!(false, false),
        }
    }

    unsafe fn run_fp8(run: Fp8Run<'_, '_, '_>) -> Result<()> {
        let kernel = AmxKernel::<false, false> { parts: parts(run.tokens.element()) };
        fp8::run(&kernel, run)
    }
}

/// Parts that tokens of this type become as a rule: f16 tokens whose range is too wide for tiles of f16 still become
/// two.
fn planned_parts(activation: Activation) -> usize {
    if activation == Activation::F16 && processor_has_f16_tiles() { 1 } else { parts(activation) }
}

/// CPUID leaf 7, second part: AMX-FP16 is bit 21 of EAX. The first part's EAX says whether there is a second.
fn processor_has_f16_tiles() -> bool {
    static HAS_F16_TILES: OnceLock<bool> = OnceLock::new();
    let ask = || processor_has_tiles() && __cpuid_count(7, 0).eax >= 1 && __cpuid_count(7, 1).eax & 1 << 21 != 0;
    *HAS_F16_TILES.get_or_init(ask)
}

/// CPUID leaf 7: AMX-BF16 is bit 22 and AMX-TILE bit 24 of EDX; XCR0 bits 17 and 18 say that the system saves tiles.
fn processor_has_tiles() -> bool {
    // Asked before every run, and a virtual machine traps CPUID, which takes microseconds.
    static HAS_TILES: OnceLock<bool> = OnceLock::new();
    *HAS_TILES.get_or_init(ask_for_tiles)
}

fn ask_for_tiles() -> bool {
    const TILES_AND_BF16: u32 = 1 << 22 | 1 << 24;
    const STATE: u64 = 0b11 << 17;
    let leaf = __cpuid_count(7, 0);
    if leaf.edx & TILES_AND_BF16 != TILES_AND_BF16 || !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: `xsave` is detected only where the processor has it and the system has enabled it, so XGETBV can be
    // executed.
    unsafe { _xgetbv(0) & STATE == STATE }
}

/// Asks Linux, once per process, for the permission to use tile data.
fn permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    #[cfg(target_os = "linux")]
    let ask = || {
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const TILE_DATA: usize = 18;
        // SAFETY: this request takes two numbers, reads and writes no memory of ours, and changes nothing but a
        // permission.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    };
    #[cfg(not(target_os = "linux"))]
    let ask = || false;
    *PERMITTED.get_or_init(ask)
}

/// Tiles of f16 or of bf16, of weights whose scales are powers of two or not; tokens in so many parts.
struct AmxKernel<const F16: bool, const MX: bool> {
    parts: usize,
}

impl<const F16: bool, const MX: bool> Expand for AmxKernel<F16, MX> {
    type Block = HalfTile;

    const BLANK: HalfTile = HalfTile([[0; 2 * COLUMNS]; BLOCK / 2]);

    #[inline(always)]
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut HalfTile) {
        // SAFETY: the schedule runs this kernel only where `available` found the instructions; the arrays have 16
        // scales and 128 bytes of codes, and a reference to a half tile is aligned to its 512 bytes.
        unsafe { Expander::<F16, MX>::new().block(scales.as_ptr(), codes.as_ptr(), out) }
    }
}

impl ByteKernel for AmxKernel<false, false> {
    fn expand_bytes(&self, exponents: Option<&[u8; COLUMNS]>, numbers: &[u8; BYTES], out: &mut HalfTile) {
        // SAFETY: a run takes this kernel only where `available` found the instructions.
        unsafe { byte_block(exponents, numbers, out) }
    }

    fn byte_unit(&self, source: GroupTokens<'_>) -> f64 {
        2f64.powi(BYTE_EXPONENT - tokens::exponent(source, false))
    }
}

impl<const F16: bool, const MX: bool> Kernel for AmxKernel<F16, MX> {
    type Token = TokenTile;

    const ROWS: usize = TILE_ROWS;
    const BLOCKS: usize = TILE_K / BLOCK;
    const PANELS: usize = 4;
    const RESIDENT: Option<usize> = Some(resident::DEPTH);

    fn parts(&self) -> usize {
        self.parts
    }

    fn group_len(blocks: usize) -> usize {
        blocks.div_ceil(Self::BLOCKS)
    }

    fn prepare(&self, source: GroupTokens<'_>, group: usize, out: &mut [TokenTile]) {
        // SAFETY: the schedule runs this kernel only where `available` found the instructions.
        unsafe {
            match F16 {
                true => tokens::prepare_f16(source, group, out),
                false => {
                    let exponent = tokens::exponent(source, MX);
                    tokens::prepare(source.activations, exponent, self.parts, group, out);
                }
            }
        }
    }

    fn unit(&self, source: GroupTokens<'_>) -> f64 {
        let smaller = match (F16, MX) {
            (true, false) => -tokens::f16_exponent(source),
            (true, true) => -tokens::f16_exponent(source) - HALF_EXPONENT,
            (false, false) => WEIGHT_EXPONENT - tokens::exponent(source, MX),
            (false, true) => -tokens::exponent(source, MX),
        };
        2f64.powi(smaller)
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        // SAFETY: the schedule runs this kernel only where `available` found the instructions, and on threads that hold
        // what `enter` returned, so that their tiles are configured.
        unsafe { walk::multiply::<F16, _>(product, ahead) }
    }

    fn stream(&self, tile: TileStream<'_, Self>) -> bool {
        if !whole_chunks::<MX>(&tile.panels) {
            return false;
        }
        let weights = &tile.panels[..];
        let groups: Vec<&[TokenTile]> = tile.tokens.chunks_exact(tile.group_len).collect();
        let stream = Stream::<F16, MX> { tokens: &groups, weights, next: &tile.next, ring: tile.ring, sums: tile.sums };
        // SAFETY: the schedule runs this kernel only where `available` found the instructions, and on threads that hold
        // what `enter` returned, so that their tiles are configured.
        unsafe { stream.run() }
    }

    fn resident(&self, tile: TileStream<'_, Self>) -> bool {
        if !whole_chunks::<MX>(&tile.panels) {
            return false;
        }
        let weights = &tile.panels[..];
        let groups: Vec<&[TokenTile]> = tile.tokens.chunks_exact(tile.group_len).collect();
        let (ring, sums) = (tile.ring, tile.sums);
        let resident = Resident::<F16, MX> { tokens: &groups, weights, next: &tile.next, ring, sums };
        // SAFETY: the schedule runs this kernel only where `available` found the instructions, and on threads that hold
        // what `enter` returned, so that their tiles are configured.
        unsafe { resident.run() }
        true
    }

    fn enter(&self) -> impl Sized {
        // SAFETY: the schedule runs this kernel only where `available` found the instructions and was granted the
        // tiles.
        unsafe { Configured::until_dropped() }
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: `available` asks for all that the AVX-512 backend wants, too.
        unsafe { avx512::write(finish) }
    }
}

/// Whether panels are whole chunks: their K is a multiple of one.
fn whole_chunks<const MX: bool>(panels: &[&[u8]]) -> bool {
    panels.iter().all(|panel| panel.len().is_multiple_of(chunk_bytes(MX)))
}

/// Keeps the tile unit busy from L1; returns the operations done.
pub(super) fn flops() -> f64 {
    const ROUNDS: usize = 1 << 14;
    let tiles = [[TokenTile([[0x3F80; TILE_K]; TILE_ROWS]); 2]; 2];
    let (tokens, weights) = (tiles[0].as_ptr().cast::<u8>(), tiles[1].as_ptr().cast::<u8>());
    // SAFETY: called only where `available` found the instructions; the tiles read are the array's.
    unsafe {
        let _configured = Configured::until_dropped();
        zero!(0 1 2 3);
        for _ in 0..ROUNDS {
            load!(4, tokens);
            load!(6, weights);
            product!(false, 0, 4, 6);
            load!(7, weights.add(1024));
            product!(false, 1, 4, 7);
            load!(5, tokens.add(1024));
            product!(false, 2, 5, 6);
            product!(false, 3, 5, 7);
        }
    }
    (4 * 2 * TILE_ROWS * COLUMNS * TILE_K * ROUNDS) as f64
}

#[cfg(test)]
mod tests {
    use format::{Dense, Values};
    use half::f16;
    use op::Activations;

    use super::*;
    use crate::scalar::{FloatBlock, ScalarKernel};

    const K: usize = 48;

    /// Tokens of every size from the largest down by so many powers of two, and zeros.
    fn tokens(rows: usize, largest: i32, range: i32) -> Activations<'static> {
        let value = |i: usize| match i % 7 {
            0 => 0.0,
            _ => (1.0 + (i % 1021) as f64 / 1024.0) * 2f64.powi(largest - (i as i32 * 5) % range) * [1.0, -1.0][i % 2],
        };
        let values: Vec<f16> = (0..rows * K).map(|i| f16::from_f64(value(i + 1))).collect();
        Dense::new(rows, K, values, 1.0).unwrap().into()
    }

    fn source<'a>(activations: &'a Activations<'a>) -> GroupTokens<'a> {
        let Activations::Dense(dense) = activations else { panic!("tokens are dense") };
        let Values::F16(values) = dense.values() else { panic!("tokens are f16") };
        GroupTokens { activations, largest: values.iter().map(|v| v.to_f32().abs()).fold(0.0, f32::max) }
    }

    #[test]
    fn f16_tokens_go_to_tiles_of_f16_unless_some_would_be_subnormal() {
        for (largest, range, fit) in [(15, 30, true), (15, 31, false), (0, 30, true), (-10, 15, true), (7, 32, false)] {
            assert_eq!(tokens::fit_f16(source(&tokens(20, largest, range))), fit, "2^{largest} and 2^{range} below");
        }
        let zeros = Dense::new(2, K, vec![f16::ZERO; 2 * K], 1.0).unwrap().into();
        assert!(tokens::fit_f16(source(&zeros)));
    }

    /// What the instruction multiplies, looked at number by number: each exact, none subnormal.
    #[test]
    fn tiles_of_f16_hold_tokens_and_weights_exactly() {
        if Amx::available().is_err() {
            return eprintln!("not tested here: no AVX-512 FP16");
        }
        for (rows, largest, range) in [(20, 15, 30), (16, -10, 14), (3, 2, 20)] {
            let activations = tokens(rows, largest, range);
            let (source, kernel) = (source(&activations), AmxKernel::<true, false> { parts: 1 });
            let groups = rows.div_ceil(TILE_ROWS);
            let mut tiles =
                vec![TokenTile([[0x7FFF; TILE_K]; TILE_ROWS]); AmxKernel::<true, false>::group_len(K / BLOCK)];
            for group in 0..groups {
                kernel.prepare(source, group, &mut tiles);
                for (row, k) in (0..TILE_ROWS).flat_map(|row| (0..K.next_multiple_of(TILE_K)).map(move |k| (row, k))) {
                    let found = f16::from_bits(tiles[k / TILE_K].0[row][k % TILE_K]);
                    let token = group * TILE_ROWS + row;
                    let mut values = [0.0; K];
                    if token < rows {
                        activations.unscaled_row(token, &mut values);
                    }
                    let expected = values.get(k).map_or(0.0, |&value| f64::from(value));
                    assert_eq!(found.to_f64() * kernel.unit(source), expected, "token {token}, k {k}");
                    assert!(found.to_f32() == 0.0 || found.is_normal());
                }
            }
        }
    }

    #[test]
    fn weights_are_expanded_to_tiles_of_f16_exactly() {
        if Amx::available().is_err() {
            return eprintln!("not tested here: no AVX-512 FP16");
        }
        // Every scale that packed weights can have with every code: 127 scales by 16 codes.
        for scale in 0..=0x7E {
            expands::<true, false>(Scaling::NvFp4, scale, 0, f16_value);
        }
    }

    /// Every power of two that packed weights can have, with every code.
    #[test]
    fn weights_with_powers_of_two_are_expanded_to_tiles_exactly_and_to_no_subnormal_number() {
        if Amx::available().is_err() {
            return eprintln!("not tested here: no AVX-512 FP16");
        }
        for scale in 9..=135 {
            expands::<false, true>(Scaling::WideMxFp4, scale, 0, bf16_value);
        }
        for scale in 135 - Scaling::MOST_HALF_POWERS as u8 + 1..=135 {
            expands::<true, true>(Scaling::MxFp4, scale, HALF_EXPONENT, f16_value);
        }
    }

    fn f16_value(bits: u16) -> (f64, bool) {
        (f16::from_bits(bits).to_f64(), f16::from_bits(bits).is_normal())
    }

    fn bf16_value(bits: u16) -> (f64, bool) {
        (half::bf16::from_bits(bits).to_f64(), half::bf16::from_bits(bits).is_normal())
    }

    /// Expands codes under one scale and compares them with what plain Rust makes of them, times a power of two.
    fn expands<const F16: bool, const MX: bool>(
        scaling: Scaling,
        scale: u8,
        larger: i32,
        value: fn(u16) -> (f64, bool),
    ) {
        let codes: [u8; CODE_BYTES] = std::array::from_fn(|i| (i * 17 + i / 3) as u8);
        let (mut tile, mut plain) = (AmxKernel::<F16, MX>::BLANK, FloatBlock::BLANK);
        AmxKernel::<F16, MX> { parts: 1 }.expand(&[scale; COLUMNS], &codes, &mut tile);
        ScalarKernel(scaling).expand(&[scale; COLUMNS], &codes, &mut plain);
        for (k, column) in (0..BLOCK).flat_map(|k| (0..COLUMNS).map(move |column| (k, column))) {
            let (found, normal) = value(tile.0[k / 2][2 * column + k % 2]);
            let expected = f64::from(plain.0[k][column]) * 2f64.powi(larger);
            assert_eq!(found, expected, "scale {scale:#x}, k {k}, column {column}");
            assert!(found == 0.0 || normal);
        }
    }

    /// Every number that FP8 weights can have with the least and the largest power of two of a row.
    #[test]
    fn fp8_weights_are_expanded_to_tiles_of_bf16_exactly_and_to_no_subnormal_number() {
        if crate::avx512::Avx512::available().is_err() {
            return eprintln!("not tested here: no AVX-512");
        }
        let numbers: [u8; BYTES] = std::array::from_fn(|i| if i & 0x7F == 0x7F { 0 } else { i as u8 });
        for exponents in [None, Some([127 - op::fp8::SPREAD as u8; COLUMNS]), Some([127; COLUMNS])] {
            let (mut tile, mut plain) = (AmxKernel::<false, false>::BLANK, FloatBlock::BLANK);
            // SAFETY: the processor has AVX-512, which is all that the function is compiled for.
            unsafe { byte_block(exponents.as_ref(), &numbers, &mut tile) };
            ScalarKernel(Scaling::NvFp4).expand_bytes(exponents.as_ref(), &numbers, &mut plain);
            for (k, column) in (0..BLOCK).flat_map(|k| (0..COLUMNS).map(move |column| (k, column))) {
                let found = half::bf16::from_bits(tile.0[k / 2][2 * column + k % 2]);
                let expected = f64::from(plain.0[k][column]) * 2f64.powi(-BYTE_EXPONENT);
                assert_eq!(found.to_f64(), expected, "k {k}, column {column}");
                assert!(expected == 0.0 || found.is_normal());
            }
        }
    }
}
