//! NVFP4 tokens as small integers, for the kernels that have integer dot products.
//!
//! Twice an e2m1 value is an integer of at most ±12, so the dot product of two blocks of 16 is an exact integer and the
//! two block scales multiply it once. The instructions multiply unsigned with signed bytes: weights are looked up as
//! 2·w + 12, and every sum starts from −12·Σa, which takes the surplus off again, exactly.
//!
//! A block of one token costs four such products and three more instructions, to convert the sum and to multiply it
//! with both scales: that, not the products, is what bounds these loops. Bands of tokens share loaded weights, and two
//! panels broadcast words.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use format::{BLOCK, Scaling, e2m1, e4m3};
use op::Activations;

use super::expansion::{Expand, Expansion};
use super::finish::Finish;
use super::kernel::{Band, Banded, Kernel, PanelStream, Product, TileStream, for_tokens};
use super::pack::{Ahead, CHUNK_BLOCKS, CODE_BYTES, COLUMNS, chunk_bytes, shared};
use super::source::GroupTokens;
use super::vector::{Vector, scale_unit};

/// Twice the value of a code, plus 12.
pub(super) const WEIGHT_TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = (2.0 * e2m1::VALUES[code] + 12.0) as u8;
        code += 1;
    }
    table
};

/// For each byte of a token, twice the values of its two codes: the low one's in the first byte of a word, the high
/// one's in the third. A lane's low nibbles stand in the order k = 0 4 1 5, its high ones 2 6 3 7 (see `pack`): so two
/// words, one of them shifted by a byte, make one of the weights' order.
static SPREAD: [u32; 256] = {
    let mut words = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let [low, high] = [doubled(byte), doubled(byte >> 4)];
        words[byte] = low as u8 as u32 | (high as u8 as u32) << 16;
        byte += 1;
    }
    words
};

/// The sum of the two.
static SUMS: [i8; 256] = {
    let mut sums = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        sums[byte] = doubled(byte) + doubled(byte >> 4);
        byte += 1;
    }
    sums
};

/// Twice the value of a code.
const fn doubled(code: usize) -> i8 {
    (2.0 * e2m1::VALUES[code % 16]) as i8
}

/// A block of 16 k × 16 columns: four vectors of four k a column, each weight as `WEIGHT_TABLE` has it, and the scales.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct IntegerBlock {
    pub weights: [[u8; 4 * COLUMNS]; 4],
    pub scales: [f32; COLUMNS],
}

impl IntegerBlock {
    /// A block of zeros.
    pub(super) const BLANK: Self = Self { weights: [[12; 4 * COLUMNS]; 4], scales: [0.0; COLUMNS] };
}

/// One block of one token.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct IntegerToken {
    /// Twice the values, four bytes per word, in the order of the weights' nibbles.
    pub values: [i32; 4],
    /// −12 times their sum.
    pub start: i32,
    /// The block's scale, times [`RAISED`].
    pub scale: f32,
}

/// What tokens' scales are larger by: so the least of products, 2⁻²⁶ of it with e4m3 scales and 2⁻¹²⁷ with powers of
/// two, is no subnormal number, nor does any sum become infinite for it.
const RAISED: f32 = (1u64 << 40) as f32;

/// Both operands are doubled.
const UNIT: f64 = 0.25 / RAISED as f64;

/// Lanes of four bytes, one lane per column.
///
/// # Safety
///
/// Every function wants the processor to have the lanes' instructions.
pub(super) trait ByteLanes: Copy {
    unsafe fn load(from: *const u8) -> Self;

    unsafe fn store(self, to: *mut u8);

    /// What [`WEIGHT_TABLE`] has for the low nibble of every byte, and for the high one.
    unsafe fn look_up(self) -> [Self; 2];
}

/// What the loops ask of a unit for integer dot products.
///
/// # Safety
///
/// Every function wants the processor to have the unit's instructions.
pub(super) trait Dots {
    /// f32 lanes, one per column.
    type Floats: Vector;
    /// As many lanes of four bytes.
    type Bytes: ByteLanes;

    /// `start` and the products of four times four weights with the bytes of four words, for each column; as f32,
    /// exactly.
    unsafe fn dot(weights: [Self::Bytes; 4], words: &[i32; 4], start: i32) -> Self::Floats;
}

/// The loops of this module, compiled for one unit.
///
/// # Safety
///
/// Every function wants the processor to have the instructions.
pub(super) trait IntegerLoops: Sized + Sync {
    type Dots: Dots;

    /// Tokens, and panels, whose sums fit the registers together with the weights; and the tokens of a stream.
    const TOKENS: usize;
    const PANELS: usize;
    const FEW: usize;

    /// [`expand`].
    unsafe fn expand<const MX: bool>(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut IntegerBlock);

    /// [`Band::add`].
    unsafe fn band<const TOKENS: usize, const PANELS: usize>(band: Band<'_, IntegerKernel<Self>, PANELS>);

    /// [`PanelStream::run`].
    unsafe fn stream<const MX: bool, const TOKENS: usize>(stream: PanelStream<'_, IntegerKernel<Self>>);

    /// [`Finish::write`].
    unsafe fn finish(finish: Finish<'_>);
}

/// Implements [`IntegerLoops`]: the same functions for every unit, each compiled with its features.
macro_rules! integer_loops {
    ($loops:ident, $dots:ty, $features:literal, tokens $tokens:literal, panels $panels:literal, few $few:literal) => {
        impl IntegerLoops for $loops {
            type Dots = $dots;

            const TOKENS: usize = $tokens;
            const PANELS: usize = $panels;
            const FEW: usize = $few;

            #[target_feature(enable = $features)]
            unsafe fn expand<const MX: bool>(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut IntegerBlock) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { integer::expand::<$dots, MX>(scales, codes, out) }
            }

            #[target_feature(enable = $features)]
            unsafe fn band<const TOKENS: usize, const PANELS: usize>(band: Band<'_, IntegerKernel<Self>, PANELS>) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { band.add::<TOKENS>() }
            }

            #[target_feature(enable = $features)]
            unsafe fn stream<const MX: bool, const TOKENS: usize>(stream: PanelStream<'_, IntegerKernel<Self>>) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { stream.run::<MX, TOKENS>() }
            }

            #[target_feature(enable = $features)]
            unsafe fn finish(finish: Finish<'_>) {
                write(finish);
            }
        }
    };
}
pub(super) use integer_loops;

/// NVFP4 tokens, beside weights with such scales.
pub(super) struct IntegerKernel<L>(Scaling, PhantomData<L>);

impl<L> IntegerKernel<L> {
    pub(super) const fn new(scaling: Scaling) -> Self {
        Self(scaling, PhantomData)
    }
}

impl<L: IntegerLoops> Expand for IntegerKernel<L> {
    type Block = IntegerBlock;

    const BLANK: IntegerBlock = IntegerBlock::BLANK;

    #[inline(always)]
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut IntegerBlock) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe {
            match self.0.is_mx() {
                true => L::expand::<true>(scales, codes, out),
                false => L::expand::<false>(scales, codes, out),
            }
        }
    }
}

impl<L: IntegerLoops> Kernel for IntegerKernel<L> {
    type Token = IntegerToken;

    const ROWS: usize = 1;
    const BLOCKS: usize = 1;
    const PANELS: usize = 2;
    const STREAM_ROWS: Option<usize> = Some(L::FEW);

    fn group_len(blocks: usize) -> usize {
        blocks
    }

    fn prepare(&self, source: GroupTokens<'_>, row: usize, out: &mut [IntegerToken]) {
        prepare(source.activations, row, out);
    }

    fn unit(&self, _: GroupTokens<'_>) -> f64 {
        UNIT * scale_unit(self.0)
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        product.by_bands(self, ahead);
    }

    fn stream(&self, tile: TileStream<'_, Self>) -> bool {
        tile.by_panels(self.0.is_mx(), L::FEW, |stream| {
            // SAFETY: the schedule runs this kernel only where its backend found the instructions.
            unsafe { for_tokens!(self.0, stream.sums.len(), L::FEW, L::stream(stream)) }
        })
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe { L::finish(finish) }
    }
}

impl<L: IntegerLoops> Banded for IntegerKernel<L> {
    const GROUPS: usize = L::TOKENS;
    const TOGETHER: usize = L::PANELS;

    fn band<const PANELS: usize>(&self, band: Band<'_, Self, PANELS>) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe {
            match band.tokens.len() / band.group_len {
                1 => L::band::<1, PANELS>(band),
                2 => L::band::<2, PANELS>(band),
                3 => L::band::<3, PANELS>(band),
                4 => L::band::<4, PANELS>(band),
                5 if L::TOKENS >= 5 => L::band::<5, PANELS>(band),
                6 if L::TOKENS >= 6 => L::band::<6, PANELS>(band),
                more => unreachable!("a band of {more} tokens"),
            }
        }
    }
}

/// Prepares one row of tokens.
fn prepare(activations: &Activations<'_>, row: usize, out: &mut [IntegerToken]) {
    let Activations::NvFp4(matrix) = activations else { unreachable!("integer kernels are handed NVFP4 tokens") };
    let codes = matrix.row_codes(row).chunks_exact(BLOCK / 2);
    for ((codes, &scale), out) in codes.zip(matrix.row_scales(row)).zip(out) {
        let word = |first: usize, second: usize| {
            (SPREAD[usize::from(codes[first])] | SPREAD[usize::from(codes[second])] << 8).cast_signed()
        };
        let values = [word(0, 2), word(1, 3), word(4, 6), word(5, 7)];
        let sum: i32 = codes.iter().map(|&code| i32::from(SUMS[usize::from(code)])).sum();
        *out = IntegerToken { values, start: -12 * sum, scale: e4m3::decode(scale) * RAISED };
    }
}

/// Expands one block: a look-up per nibble, and the scales as f32.
///
/// # Safety
///
/// The processor must have the instructions.
#[inline(always)]
pub(super) unsafe fn expand<D: Dots, const MX: bool>(
    scales: &[u8; COLUMNS],
    codes: &[u8; CODE_BYTES],
    out: &mut IntegerBlock,
) {
    for column in (0..COLUMNS).step_by(D::Floats::LANES) {
        // SAFETY: the processor has the instructions (promised by the caller). There are 16 scales, two times 64 bytes
        // of codes and four times 64 of weights, four per column; `column` is less than 16 by the lanes of a vector at
        // least.
        unsafe {
            D::Floats::block_scales::<MX>(scales.as_ptr().add(column)).store(out.scales.as_mut_ptr().add(column));
            for half in 0..2 {
                let [low, high] = D::Bytes::load(codes.as_ptr().add(half * CODE_BYTES / 2 + 4 * column)).look_up();
                low.store(out.weights[2 * half].as_mut_ptr().add(4 * column));
                high.store(out.weights[2 * half + 1].as_mut_ptr().add(4 * column));
            }
        }
    }
}

/// Adds the product of one block of a token and one of weights: an exact integer, scaled twice, exactly, and rounded
/// once.
///
/// # Safety
///
/// The processor must have the instructions.
#[inline(always)]
unsafe fn add_block<D: Dots>(total: &mut D::Floats, weights: [D::Bytes; 4], scales: D::Floats, token: &IntegerToken) {
    // SAFETY: the processor has the instructions (promised by the caller).
    unsafe {
        let dot = D::dot(weights, &token.values, token.start).multiply(D::Floats::splat(token.scale));
        *total = dot.multiply_add(scales, *total);
    }
}

impl<L: IntegerLoops, const PANELS: usize> Band<'_, IntegerKernel<L>, PANELS> {
    /// Adds the products of `TOKENS` tokens, a vector of each panel at a time, the sums in registers.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn add<const TOKENS: usize>(self) {
        let Self { tokens, group_len, blocks, weights, mut sums, fresh } = self;
        assert!(blocks.end <= group_len && tokens.len() == TOKENS * group_len);
        assert!(weights.iter().all(|panel| panel.len() == blocks.len()));
        assert!(sums.iter().all(|sums| sums.len() == TOKENS));
        let token = tokens[blocks.start..].as_ptr();
        for column in (0..COLUMNS).step_by(<L::Dots as Dots>::Floats::LANES) {
            // SAFETY: the processor has the instructions (promised by the caller). As asserted above, there are as many
            // blocks of every panel as from `token` on of every token, `group_len` apart; `column` is less than 16 by
            // the lanes of a vector at least.
            unsafe {
                let mut total = [[<L::Dots as Dots>::Floats::zero(); PANELS]; TOKENS];
                if !fresh {
                    for (panel, sums) in sums.iter().enumerate() {
                        for (total, sums) in total.iter_mut().zip(sums.iter()) {
                            total[panel] = Vector::load(sums.0[column..].as_ptr());
                        }
                    }
                }
                for block in 0..blocks.len() {
                    let mut loaded = [[ByteLanes::load(weights[0].as_ptr().cast()); 4]; PANELS];
                    let mut scales = [<L::Dots as Dots>::Floats::zero(); PANELS];
                    for ((loaded, scales), weights) in loaded.iter_mut().zip(&mut scales).zip(weights) {
                        let block = &*weights.as_ptr().add(block);
                        for (loaded, weights) in loaded.iter_mut().zip(&block.weights) {
                            *loaded = ByteLanes::load(weights.as_ptr().add(4 * column));
                        }
                        *scales = Vector::load(block.scales.as_ptr().add(column));
                    }
                    for (row, total) in total.iter_mut().enumerate() {
                        let token = &*token.add(row * group_len + block);
                        for ((total, weights), scales) in total.iter_mut().zip(loaded).zip(scales) {
                            add_block::<L::Dots>(total, weights, scales, token);
                        }
                    }
                }
                for (panel, sums) in sums.iter_mut().enumerate() {
                    for (total, sums) in total.iter().zip(sums.iter_mut()) {
                        total[panel].store(sums.0[column..].as_mut_ptr());
                    }
                }
            }
        }
    }
}

impl<L: IntegerLoops> PanelStream<'_, IntegerKernel<L>> {
    /// Computes the sums of `TOKENS` tokens, weights looked up in registers.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn run<const MX: bool, const TOKENS: usize>(self) {
        let Self { panel, next, sums, .. } = self;
        let chunks = panel.len() / chunk_bytes(MX);
        assert!(chunks * CHUNK_BLOCKS <= self.group_len && sums.len() == TOKENS);
        assert!(self.tokens.len() == TOKENS * self.group_len);
        let (lanes, token) = (<L::Dots as Dots>::Floats::LANES, self.tokens.as_ptr());
        // SAFETY: the processor has the instructions (promised by the caller). A chunk has the scales of four blocks,
        // 16 each or for each two, and their codes, 128 bytes each, four per column and eight k; every token has four
        // blocks per chunk (asserted above).
        unsafe {
            // A panel has one vector or two.
            let mut total = [[<L::Dots as Dots>::Floats::zero(); 2]; TOKENS];
            for index in 0..chunks {
                let ahead = Ahead::of::<MX>(panel, index, next);
                let chunk = panel.as_ptr().add(index * chunk_bytes(MX));
                for block in 0..CHUNK_BLOCKS {
                    ahead.fetch(block);
                    let codes = chunk.add(CHUNK_BLOCKS / shared(MX) * COLUMNS + block * CODE_BYTES);
                    for part in 0..COLUMNS / lanes {
                        let [first, second] = <L::Dots as Dots>::Bytes::load(codes.add(4 * part * lanes)).look_up();
                        let [third, fourth] =
                            <L::Dots as Dots>::Bytes::load(codes.add(CODE_BYTES / 2 + 4 * part * lanes)).look_up();
                        let scales = Vector::block_scales::<MX>(chunk.add(block / shared(MX) * COLUMNS + part * lanes));
                        for (row, total) in total.iter_mut().enumerate() {
                            let token = &*token.add(row * self.group_len + index * CHUNK_BLOCKS + block);
                            add_block::<L::Dots>(&mut total[part], [first, second, third, fourth], scales, token);
                        }
                    }
                }
            }
            for (total, sums) in total.into_iter().zip(sums) {
                for (part, total) in total.iter().enumerate().take(COLUMNS / lanes) {
                    total.store(sums.0[part * lanes..].as_mut_ptr());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use format::{Matrix, Values};
    use op::{
        Activation, Arithmetic, Backend, Call, Config, Gate, Operands, Output, Problem, Request, Result, Shape, Target,
        Team, Weights,
    };

    use super::*;
    use crate::backend::{Cpu, InstructionSet};
    use crate::model::Rates;
    use crate::pack::Panels;
    use crate::schedule;
    use crate::speeds::Speed;
    use crate::threads::team;

    /// A backend of one unit's loops and nothing else.
    struct Alone<L>(PhantomData<L>);

    impl<L: IntegerLoops + Send> InstructionSet for Alone<L> {
        const NAME: &'static str = "alone";
        const SUMMARY: &'static str = "one unit's loops";

        fn available() -> Result<()> {
            Ok(())
        }

        fn arithmetic(_: Activation) -> Arithmetic {
            Arithmetic::Blocks
        }

        fn rates(_: Activation) -> Rates {
            Rates::of(&IntegerKernel::<L>::new(Scaling::NvFp4), "integer", 1e-9, Speed { expand: 1e-9, multiply: 1e-9 })
        }

        unsafe fn run(
            problem: &Problem,
            config: &Config,
            panels: &[Panels],
            operands: Operands<'_, '_, '_>,
            team: &Team,
        ) -> Result<()> {
            schedule::run(&IntegerKernel::<L>::new(problem.scaling()), problem, config, panels, operands, team)
        }

        /// Integer loops take no other tokens than NVFP4.
        unsafe fn run_fp8(run: crate::fp8::Fp8Run<'_, '_, '_>) -> Result<()> {
            crate::fp8::run(&crate::scalar::ScalarKernel(Scaling::NvFp4), run)
        }
    }

    fn matrix(rows: usize, k: usize, seed: u64) -> Matrix<'static> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let codes: Vec<u8> = (0..rows * k / 2).map(|_| rng.u8(..)).collect();
        let scales: Vec<u8> = (0..rows * k / BLOCK).map(|_| rng.u8(..0x7F)).collect();
        Matrix::new(rows, k, codes, scales, 1.0).unwrap()
    }

    /// What every unit of every processor makes of the problems below.
    const DIGEST: u64 = 8_290_127_590_747_353_017;

    /// A digest of all bits of the results of problems of odd sizes, in a stream and in bands of one to six tokens.
    fn digest<L: IntegerLoops + Send + 'static>() -> u64 {
        let (backend, team): (&'static dyn Backend, _) = (const { &Cpu::<Alone<L>>::NEW }, team(Some(2)).unwrap());
        let mut bits = Vec::new();
        for (m, n, k) in [(1, 16, 64), (3, 40, 128), (4, 48, 192), (5, 33, 208), (8, 32, 320), (17, 51, 336)] {
            let problem = Problem::new(vec![Shape::new(m, n, k)], Gate::Silu, Activation::NvFp4, Output::F32).unwrap();
            let weights = [Weights::gated(matrix(n, k, 1), matrix(n, k, 2)).unwrap()];
            let packed = backend.prepack(&weights, &team).unwrap();
            let tokens = [matrix(m, k, 3).into()];
            let results = |way: &str| {
                let config = format!("{way},epilogue=direct,schedule=tile").parse::<Request>().unwrap();
                let config = config.complete().unwrap();
                let mut c = [Values::from(vec![f32::NAN; m * n])];
                let mut targets = Target::all(&mut c);
                let call = Call::new((backend, config), &problem, packed.as_ref(), &tokens, &mut targets, &team);
                call.unwrap().run().unwrap();
                let Values::F32(c) = &c[0] else { unreachable!("results are f32") };
                c.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            };
            let streamed = results("strategy=ping-pong,tile=8x16,depth=64,stages=2");
            for alike in
                ["strategy=sequential,tile=5x48,depth=64,stages=1", "strategy=ping-pong,tile=20x32,depth=64,stages=3"]
            {
                assert!(results(alike) == streamed, "{m}x{n}x{k}: {alike}");
            }
            bits.extend(streamed);
            bits.extend(results("strategy=interleaved,tile=64x32,depth=128,stages=1"));
        }
        assert!(bits.iter().all(|&bits| !f32::from_bits(bits).is_nan()));
        bits.iter()
            .fold(0xCBF2_9CE4_8422_2325, |digest, &bits| (digest ^ u64::from(bits)).wrapping_mul(0x100_0000_01B3))
    }

    #[cfg(target_arch = "x86_64")]
    mod x86_64 {
        use std::arch::x86_64::__m256i;

        use super::*;
        use crate::avx2::{Avx2, Quad, Quads};
        use crate::avx512::{Avx512, Vnni};
        use crate::{finish::Finish, integer};

        /// `vpdpbusd` in plain Rust, for processors that lack AVX-VNNI.
        struct InPlainRust;

        impl Quad for InPlainRust {
            unsafe fn add(sum: __m256i, weights: __m256i, values: __m256i) -> __m256i {
                // SAFETY: all are 32 bytes, and every pattern of bits is a number.
                let (mut sum, weights, values): ([i32; 8], [[u8; 4]; 8], [[i8; 4]; 8]) =
                    unsafe { std::mem::transmute((sum, weights, values)) };
                for ((sum, weights), values) in sum.iter_mut().zip(weights).zip(values) {
                    *sum += weights.into_iter().zip(values).map(|(w, v)| i32::from(w) * i32::from(v)).sum::<i32>();
                }
                // SAFETY: both are 32 bytes, and every pattern of bits is a number.
                unsafe { std::mem::transmute(sum) }
            }
        }

        struct Emulated;

        fn write(finish: Finish<'_>) {
            finish.write(|values| values.map(half::f16::from_f32));
        }

        integer_loops!(Emulated, Quads<InPlainRust>, "avx2,fma,f16c", tokens 6, panels 1, few 4);

        #[test]
        fn every_unit_gives_the_same_bits() {
            if Avx2::available().is_err() {
                return eprintln!("not tested here: no AVX2");
            }
            assert_eq!(digest::<Avx2>(), DIGEST);
            assert_eq!(digest::<Emulated>(), DIGEST, "AVX-VNNI, emulated");
            if Avx512::available().is_ok() {
                assert_eq!(digest::<Avx512>(), DIGEST, "AVX-512 without VNNI");
                if is_x86_feature_detected!("avx512vnni") {
                    assert_eq!(digest::<Vnni>(), DIGEST, "AVX-512 with VNNI");
                }
            }
        }
    }

    #[cfg(target_arch = "aarch64")]
    mod aarch64 {
        use super::*;
        use crate::neon::{DotProduct, Neon};

        #[test]
        fn every_unit_gives_the_same_bits() {
            assert_eq!(digest::<Neon>(), DIGEST);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                assert_eq!(digest::<DotProduct>(), DIGEST, "with dot products");
            }
        }
    }
}
