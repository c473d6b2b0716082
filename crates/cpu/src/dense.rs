//! Dense tokens on vector units: f16, bf16 and f32 tokens, widened to f32 and multiplied with weights as f32, both
//! exactly. For very few of them there is `few`.
//!
//! Blocks of weights are expanded once per tile of tokens, and a band of tokens is multiplied with one or two panels at
//! a time. The band's sums stay in registers along the whole slab: each step of K loads a vector or two of weights,
//! broadcasts one number of each token, and issues a multiply-add for each pair. Twelve tokens by two vectors (AVX-512)
//! or six by two (AVX2) make as many independent sums as the units' latency asks for, and leave registers for the
//! operands. Tokens are prepared in pairs, the two numbers of one k side by side: so a band of twelve is read through
//! six pointers, which fit the integer registers.
//!
//! An element's products are added one after the other, in the order in which packed codes stand: so its bits do not
//! depend on the depth of a slab.

use std::marker::PhantomData;

use format::{BLOCK, Scaling, Values};
use half::slice::HalfFloatSliceExt;
use op::Activations;

use super::expansion::{Expand, Expansion};
use super::finish::Finish;
use super::fp8::{BYTES, ByteKernel, FewBytes};
use super::kernel::{Band, Banded, Kernel, Product};
use super::pack::{CODE_BYTES, COLUMNS};
use super::scalar::FloatBlock;
use super::scale::two_powers;
use super::source::GroupTokens;
use super::vector::{HALF_BLOCK, LANE_ORDER, Vector, scale_unit};

/// Tokens that are prepared together.
const ROWS: usize = 2;
/// Steps of K between two looks at the loop's end: four instructions a cycle are not many more than the multiply-adds
/// and their loads.
const UNROLLED: usize = 4;

/// The loops of this module, compiled for one instruction set.
///
/// # Safety
///
/// Every function wants the processor to have the instructions.
pub(super) trait DenseLoops: Sized + Sync {
    type Vector: Vector;

    /// Pairs of tokens, and panels, whose sums fit the registers together.
    const PAIRS: usize;
    const PANELS: usize;

    /// [`expand`].
    unsafe fn expand<const MX: bool>(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock);

    /// [`expand_bytes`].
    unsafe fn expand_bytes(exponents: Option<&[u8; COLUMNS]>, numbers: &[u8; BYTES], out: &mut FloatBlock);

    /// [`few_bytes`].
    unsafe fn few_bytes<const TOKENS: usize, const PANELS: usize>(few: FewBytes<'_, f32, PANELS>);

    /// [`Band::add`].
    unsafe fn band<const TOKENS: usize, const PANELS: usize>(band: Band<'_, DenseKernel<Self>, PANELS>);

    /// [`Finish::write`].
    unsafe fn finish(finish: Finish<'_>);
}

/// Implements [`DenseLoops`]: the same functions for every unit, each compiled with its features.
macro_rules! dense_loops {
    ($loops:ident, $vector:ty, $features:literal, pairs $pairs:literal, panels $panels:literal) => {
        impl DenseLoops for $loops {
            type Vector = $vector;

            const PAIRS: usize = $pairs;
            const PANELS: usize = $panels;

            #[target_feature(enable = $features)]
            unsafe fn expand<const MX: bool>(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { dense::expand::<$vector, MX>(scales, codes, out) }
            }

            #[target_feature(enable = $features)]
            unsafe fn expand_bytes(exponents: Option<&[u8; COLUMNS]>, numbers: &[u8; BYTES], out: &mut FloatBlock) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { dense::expand_bytes::<$vector>(exponents, numbers, out) }
            }

            #[target_feature(enable = $features)]
            unsafe fn few_bytes<const TOKENS: usize, const PANELS: usize>(few: FewBytes<'_, f32, PANELS>) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { dense::few_bytes::<$vector, TOKENS, PANELS>(few) }
            }

            #[target_feature(enable = $features)]
            unsafe fn band<const TOKENS: usize, const PANELS: usize>(band: Band<'_, DenseKernel<Self>, PANELS>) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { band.add::<TOKENS>() }
            }

            #[target_feature(enable = $features)]
            unsafe fn finish(finish: Finish<'_>) {
                write(finish);
            }
        }
    };
}
pub(super) use dense_loops;

/// Dense tokens, widened to f32, beside weights with such scales.
pub(super) struct DenseKernel<L>(Scaling, PhantomData<L>);

impl<L> DenseKernel<L> {
    pub(super) const fn new(scaling: Scaling) -> Self {
        Self(scaling, PhantomData)
    }
}

impl<L: DenseLoops> Expand for DenseKernel<L> {
    type Block = FloatBlock;

    const BLANK: FloatBlock = FloatBlock::BLANK;

    #[inline(always)]
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe {
            match self.0.is_mx() {
                true => L::expand::<true>(scales, codes, out),
                false => L::expand::<false>(scales, codes, out),
            }
        }
    }
}

impl<L: DenseLoops> ByteKernel for DenseKernel<L> {
    fn expand_bytes(&self, exponents: Option<&[u8; COLUMNS]>, numbers: &[u8; BYTES], out: &mut FloatBlock) {
        // SAFETY: a run takes this kernel only where its backend found the instructions.
        unsafe { L::expand_bytes(exponents, numbers, out) }
    }

    fn byte_unit(&self, source: GroupTokens<'_>) -> f64 {
        self.unit(source)
    }

    fn few_bytes<const PANELS: usize>(&self, few: FewBytes<'_, f32, PANELS>) -> bool {
        // SAFETY: a run takes this kernel only where its backend found the instructions.
        unsafe {
            match few.tokens.len() / few.group_len {
                1 => L::few_bytes::<2, PANELS>(few),
                2 => L::few_bytes::<4, PANELS>(few),
                _ => return false,
            }
        }
        true
    }
}

impl<L: DenseLoops> Kernel for DenseKernel<L> {
    type Token = f32;

    const ROWS: usize = ROWS;
    const BLOCKS: usize = 1;
    const PANELS: usize = 2;

    /// Pairs of tokens a multiple of a page apart would all want the same few places of L1 and L2. Those get 33 lines
    /// more.
    fn group_len(blocks: usize) -> usize {
        const PAGE_BLOCKS: usize = 4096 / (ROWS * BLOCK * size_of::<f32>());
        const APART: usize = 33 * 64 / size_of::<f32>();
        ROWS * BLOCK * blocks + if blocks.is_multiple_of(PAGE_BLOCKS) { APART } else { 0 }
    }

    fn prepare(&self, source: GroupTokens<'_>, group: usize, out: &mut [f32]) {
        prepare(source, source.f32_exponent(self.0), group, out);
    }

    fn unit(&self, source: GroupTokens<'_>) -> f64 {
        scale_unit(self.0) * 2f64.powi(-source.f32_exponent(self.0))
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        product.by_bands(self, ahead);
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe { L::finish(finish) }
    }
}

/// Writes a pair of tokens times a power of two, the two numbers of each k side by side; zeros for a token that is not
/// there.
fn prepare(source: GroupTokens<'_>, exponent: i32, pair: usize, out: &mut [f32]) {
    /// Numbers that are widened at a time.
    const STRETCH: usize = 64;
    let Activations::Dense(dense) = source.activations else { unreachable!("dense kernels are handed dense tokens") };
    let [first, second] = two_powers(exponent);
    let (pairs, _) = out.as_chunks_mut::<ROWS>();
    for row in 0..ROWS {
        let token = pair * ROWS + row;
        if token >= dense.rows() {
            pairs.iter_mut().for_each(|pair| pair[row] = 0.0);
            continue;
        }
        for (start, pairs) in (0..dense.k()).step_by(STRETCH).zip(pairs.chunks_mut(STRETCH)) {
            let range = token * dense.k() + start..token * dense.k() + dense.k().min(start + STRETCH);
            let mut stretch = [0.0; STRETCH];
            let wide = &mut stretch[..range.len()];
            match dense.values() {
                Values::F16(values) => values[range].convert_to_f32_slice(wide),
                Values::BF16(values) => values[range].convert_to_f32_slice(wide),
                Values::F32(values) => wide.copy_from_slice(&values[range]),
            }
            for (pairs, values) in pairs.chunks_exact_mut(8).zip(wide.as_chunks::<8>().0) {
                for (pair, k) in pairs.iter_mut().zip(LANE_ORDER) {
                    pair[row] = values[k] * first * second;
                }
            }
        }
    }
}

/// Expands one block: each code's value times its column's scale, which is exact; k in the order of the codes.
///
/// # Safety
///
/// The processor must have the instructions.
#[inline(always)]
pub(super) unsafe fn expand<V: Vector, const MX: bool>(
    scales: &[u8; COLUMNS],
    codes: &[u8; CODE_BYTES],
    out: &mut FloatBlock,
) {
    for column in (0..COLUMNS).step_by(V::LANES) {
        // SAFETY: the processor has the instructions (promised by the caller). There are 16 scales, two times 64 bytes
        // of codes, four per column, and 16 floats in each row of the block; `column` is less than 16 by the lanes of a
        // vector at least.
        unsafe {
            let scales = V::block_scales::<MX>(scales.as_ptr().add(column));
            for half in 0..2 {
                let mut lanes = V::codes(codes.as_ptr().add(half * HALF_BLOCK + 4 * column));
                for row in &mut out.0[8 * half..8 * half + 8] {
                    V::values(lanes).multiply(scales).store(row.as_mut_ptr().add(column));
                    lanes = V::next(lanes);
                }
            }
        }
    }
}

/// Expands one block of FP8: each number, times its column's power of two if there is one, divided by
/// [`super::vector::SCALE_UNIT`].
///
/// # Safety
///
/// The processor must have the instructions.
#[inline(always)]
pub(super) unsafe fn expand_bytes<V: Vector>(
    exponents: Option<&[u8; COLUMNS]>,
    numbers: &[u8; BYTES],
    out: &mut FloatBlock,
) {
    for column in (0..COLUMNS).step_by(V::LANES) {
        // SAFETY: the processor has the instructions (promised by the caller). There are 16 exponents, and 16 numbers
        // and 16 floats in each of the block's rows; `column` is less than 16 by the lanes of a vector at least.
        unsafe {
            // No closures: those are compiled by themselves, without the instruction set's vectors.
            let mut power = V::splat(1.0);
            if let Some(exponents) = exponents {
                power = V::powers(exponents.as_ptr().add(column));
            }
            for (numbers, row) in numbers.as_chunks::<COLUMNS>().0.iter().zip(&mut out.0) {
                let mut values = V::bytes(numbers.as_ptr().add(column));
                if exponents.is_some() {
                    values = values.multiply(power);
                }
                values.store(row.as_mut_ptr().add(column));
            }
        }
    }
}

/// The sums of a few tokens and `PANELS` panels along a stretch of K, from packed numbers: each is expanded in a
/// register and multiplied there.
///
/// # Safety
///
/// The processor must have the instructions.
#[inline(always)]
pub(super) unsafe fn few_bytes<V: Vector, const TOKENS: usize, const PANELS: usize>(few: FewBytes<'_, f32, PANELS>) {
    let FewBytes { tokens, group_len, start, numbers, exponents, mut sums } = few;
    let (blocks, parts) = (numbers[0].len(), COLUMNS / V::LANES);
    assert!((start + blocks) * BLOCK * ROWS <= group_len && tokens.len() == TOKENS / ROWS * group_len);
    assert!(numbers.iter().all(|panel| panel.len() == blocks) && sums.iter().all(|sums| sums.len() == TOKENS));
    assert!(exponents.iter().all(|panel| panel.is_empty() || panel.len() == blocks.div_ceil(2)));
    let scaled = !exponents[0].is_empty();
    // SAFETY: the processor has the instructions (promised by the caller). As asserted above, each panel has so many
    // blocks of 16 rows of 16 numbers, and 16 exponents for every two of them if `scaled`; every pair of tokens,
    // `group_len` apart, has the two numbers of as many k from the stretch's start on; and there is a sum per token.
    unsafe {
        let mut total = [[[V::zero(); 2]; PANELS]; TOKENS];
        for block in 0..blocks {
            let token = tokens.as_ptr().add((start + block) * BLOCK * ROWS);
            let mut powers = [[V::zero(); 2]; PANELS];
            if scaled {
                for (panel, powers) in powers.iter_mut().enumerate() {
                    for (part, power) in powers.iter_mut().enumerate().take(parts) {
                        *power = V::powers(exponents[panel][block / 2].as_ptr().add(part * V::LANES));
                    }
                }
            }
            for row in 0..BLOCK {
                for panel in 0..PANELS {
                    for part in 0..parts {
                        let from = numbers[panel][block].as_ptr().add(row * COLUMNS + part * V::LANES);
                        let mut weights = V::bytes(from);
                        if scaled {
                            weights = weights.multiply(powers[panel][part]);
                        }
                        for (at, total) in total.iter_mut().enumerate() {
                            let number = *token.add(at / ROWS * group_len + row * ROWS + at % ROWS);
                            total[panel][part] = weights.multiply_add(V::splat(number), total[panel][part]);
                        }
                    }
                }
            }
        }
        for (panel, sums) in sums.iter_mut().enumerate() {
            for (total, sums) in total.iter().zip(sums.iter_mut()) {
                for (part, total) in total[panel].iter().enumerate().take(parts) {
                    total.store(sums.0[part * V::LANES..].as_mut_ptr());
                }
            }
        }
    }
}

impl<L: DenseLoops> Banded for DenseKernel<L> {
    const GROUPS: usize = L::PAIRS;
    const TOGETHER: usize = L::PANELS;

    fn band<const PANELS: usize>(&self, band: Band<'_, Self, PANELS>) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe {
            match band.tokens.len() / band.group_len {
                1 => L::band::<2, PANELS>(band),
                2 => L::band::<4, PANELS>(band),
                3 => L::band::<6, PANELS>(band),
                4 if L::PAIRS >= 4 => L::band::<8, PANELS>(band),
                5 if L::PAIRS >= 5 => L::band::<10, PANELS>(band),
                6 if L::PAIRS >= 6 => L::band::<12, PANELS>(band),
                more => unreachable!("a band of {more} pairs"),
            }
        }
    }
}

impl<L: DenseLoops, const PANELS: usize> Band<'_, DenseKernel<L>, PANELS> {
    /// Adds the products of `TOKENS` tokens, all sums in registers.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn add<const TOKENS: usize>(self) {
        let Self { tokens, group_len, blocks, weights, mut sums, fresh } = self;
        let depth = blocks.len() * BLOCK;
        assert!(blocks.end * BLOCK * ROWS <= group_len && tokens.len() == TOKENS / ROWS * group_len);
        assert!(weights.iter().all(|panel| panel.len() == blocks.len()));
        assert!(sums.iter().all(|sums| sums.len() == TOKENS));
        let token = tokens[blocks.start * BLOCK * ROWS..].as_ptr();
        let weights = weights.map(|panel| panel.as_ptr().cast::<f32>());
        let parts = COLUMNS / L::Vector::LANES;
        // SAFETY: the processor has the instructions (promised by the caller). As asserted above, there are `depth`
        // rows of 16 weights per panel, and of every pair of tokens, `group_len` apart, the two numbers of as many k
        // from `token` on.
        unsafe {
            let mut total = [[[L::Vector::zero(); 2]; PANELS]; TOKENS];
            if !fresh {
                for (panel, sums) in sums.iter().enumerate() {
                    for (total, sums) in total.iter_mut().zip(sums.iter()) {
                        for (part, total) in total[panel].iter_mut().enumerate().take(parts) {
                            *total = L::Vector::load(sums.0[part * L::Vector::LANES..].as_ptr());
                        }
                    }
                }
            }
            for k in (0..depth).step_by(UNROLLED) {
                let (token, weights) = (token.add(k * ROWS), weights.map(|panel| panel.add(k * COLUMNS)));
                step(&mut total, token, group_len, weights, 0);
                step(&mut total, token, group_len, weights, 1);
                step(&mut total, token, group_len, weights, 2);
                step(&mut total, token, group_len, weights, 3);
            }
            for (panel, sums) in sums.iter_mut().enumerate() {
                for (total, sums) in total.iter().zip(sums.iter_mut()) {
                    for (part, total) in total[panel].iter().enumerate().take(parts) {
                        total.store(sums.0[part * L::Vector::LANES..].as_mut_ptr());
                    }
                }
            }
        }
    }
}

/// Adds the products of one k, so far on from the pointers. A panel has one vector or two.
///
/// # Safety
///
/// The processor must have the instructions. There must be 16 weights of that k for each panel, and its numbers of
/// every pair of tokens, `group_len` apart.
#[inline(always)]
unsafe fn step<V: Vector, const PANELS: usize, const TOKENS: usize>(
    total: &mut [[[V; 2]; PANELS]; TOKENS],
    token: *const f32,
    group_len: usize,
    weights: [*const f32; PANELS],
    k: usize,
) {
    let parts = COLUMNS / V::LANES;
    // SAFETY: the caller promises the instructions and what is read.
    unsafe {
        let mut loaded = [[V::zero(); 2]; PANELS];
        for (loaded, weights) in loaded.iter_mut().zip(weights) {
            for (part, loaded) in loaded.iter_mut().enumerate().take(parts) {
                *loaded = V::load(weights.add(k * COLUMNS + part * V::LANES));
            }
        }
        for (row, total) in total.iter_mut().enumerate() {
            let number = V::splat(*token.add(row / ROWS * group_len + k * ROWS + row % ROWS));
            for (total, weights) in total.iter_mut().zip(loaded) {
                for part in 0..parts {
                    total[part] = weights[part].multiply_add(number, total[part]);
                }
            }
        }
    }
}
