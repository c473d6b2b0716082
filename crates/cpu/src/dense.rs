//! Dense tokens on vector units: f16, bf16 and f32 tokens, widened to f32 and multiplied with weights as f32, both exactly.
//!
//! *Many tokens*: blocks of weights are expanded once per tile of tokens, and a band of tokens is multiplied with one or two
//! panels at a time. The band's sums stay in registers along the whole slab: each step of K loads a vector or two of
//! weights, broadcasts one number of each token, and issues a multiply-add for each pair. Twelve tokens by two
//! vectors (AVX-512) or six by two (AVX2) make as many independent sums as the units' latency asks for, and leave registers for the
//! operands. Tokens are prepared in pairs, the two numbers of one k side by side: so a band of twelve is read through six
//! pointers, which fit the integer registers.
//!
//! *One to four tokens*: memory is the bottleneck, and expanded weights would pass through L1 for nothing. Each code's value is
//! looked up in a register, scaled and multiplied right there, gate and up side by side.
//!
//! Either way an element's products are added one after the other, in the order in which packed codes stand: so its bits
//! depend on neither.

use std::marker::PhantomData;
use std::ops::Range;

use format::{BLOCK, Values};
use half::slice::HalfFloatSliceExt;
use op::Activations;

use super::expansion::{Expand, Expansion, Pace};
use super::finish::Finish;
use super::kernel::{Kernel, Product, TileStream};
use super::pack::{CHUNK_BLOCKS, CHUNK_BYTES, CODE_BYTES, COLUMNS, prefetch_panel};
use super::scalar::FloatBlock;
use super::scale::two_powers;
use super::source::GroupTokens;
use super::sums::Lanes;
use super::vector::Vector;

/// Tokens that are prepared together.
const ROWS: usize = 2;
/// The most tokens that are multiplied with codes as they are packed.
const FEW: usize = 4;
/// Steps of K between two looks at the loop's end: four instructions a cycle are not many more than the multiply-adds and their loads.
const UNROLLED: usize = 4;
/// The order of k in which a lane's codes stand (see `pack`), and prepared tokens with them.
const LANE_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Bytes of the codes of eight k in a full panel.
const VECTOR_BYTES: usize = CODE_BYTES / 2;

/// The shapes of tile that are streamed: rows and columns.
pub(super) const STREAMED: [(usize, usize); 2] = [(ROWS, COLUMNS), (FEW, COLUMNS)];

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
    unsafe fn expand(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock);

    /// [`Band::add`].
    unsafe fn band<const TOKENS: usize, const PANELS: usize>(band: Band<'_, PANELS>);

    /// [`Stream::run`].
    unsafe fn stream<const TOKENS: usize, const PANELS: usize>(stream: Stream<'_, PANELS>);

    /// [`Finish::write`].
    unsafe fn finish(finish: Finish<'_>);
}

/// Dense tokens, widened to f32.
pub(super) struct DenseKernel<L>(PhantomData<L>);

impl<L> DenseKernel<L> {
    pub(super) const NEW: Self = Self(PhantomData);
}

impl<L: DenseLoops> Expand for DenseKernel<L> {
    type Block = FloatBlock;

    const BLANK: FloatBlock = FloatBlock::BLANK;

    #[inline(always)]
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe { L::expand(scales, codes, out) }
    }
}

impl<L: DenseLoops> Kernel for DenseKernel<L> {
    type Token = f32;

    const ROWS: usize = ROWS;
    const BLOCKS: usize = 1;
    const PANELS: usize = 2;

    /// Pairs of tokens a multiple of a page apart would all want the same few places of L1 and L2. Those get 33 lines more.
    fn group_len(blocks: usize) -> usize {
        const PAGE_BLOCKS: usize = 4096 / (ROWS * BLOCK * size_of::<f32>());
        const APART: usize = 33 * 64 / size_of::<f32>();
        ROWS * BLOCK * blocks + if blocks.is_multiple_of(PAGE_BLOCKS) { APART } else { 0 }
    }

    fn prepare(&self, source: GroupTokens<'_>, group: usize, out: &mut [f32]) {
        prepare(source, group, out);
    }

    fn unit(&self, source: GroupTokens<'_>) -> f64 {
        2f64.powi(-source.f32_exponent())
    }

    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe { multiply(product, ahead) }
    }

    fn stream(&self, tile: TileStream<'_, Self>) -> bool {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe { stream(tile) }
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe { L::finish(finish) }
    }
}

/// Writes a pair of tokens, the two numbers of each k side by side; zeros for a token that is not there.
fn prepare(source: GroupTokens<'_>, pair: usize, out: &mut [f32]) {
    /// Numbers that are widened at a time.
    const STRETCH: usize = 64;
    let Activations::Dense(dense) = source.activations else { unreachable!("dense kernels are handed dense tokens") };
    let [first, second] = two_powers(source.f32_exponent());
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
pub(super) unsafe fn expand<V: Vector>(scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut FloatBlock) {
    for column in (0..COLUMNS).step_by(V::LANES) {
        // SAFETY: the processor has the instructions (promised by the caller). There are 16 scales, two times 64 bytes of codes,
        // four per column, and 16 floats in each row of the block; `column` is less than 16 by the lanes of a vector at least.
        unsafe {
            let scales = V::scales(scales.as_ptr().add(column));
            for half in 0..2 {
                let mut lanes = V::codes(codes.as_ptr().add(half * VECTOR_BYTES + 4 * column));
                for row in &mut out.0[8 * half..8 * half + 8] {
                    V::values(lanes).multiply(scales).store(row.as_mut_ptr().add(column));
                    lanes = V::next(lanes);
                }
            }
        }
    }
}

/// Multiplies every token with every panel of the slab, a band at a time; what is ahead is expanded in between.
///
/// # Safety
///
/// The processor must have the instructions.
unsafe fn multiply<L: DenseLoops>(mut product: Product<'_, DenseKernel<L>>, ahead: &mut Expansion<'_, DenseKernel<L>>) {
    let (pairs, panels) = (product.rows() / ROWS, product.panels());
    let bands = pairs.div_ceil(L::PAIRS);
    let mut pace = Pace::new(ahead.remaining(), bands * panels.div_ceil(L::PANELS));
    for panel in (0..panels).step_by(L::PANELS) {
        for band in 0..bands {
            // As even as can be: a band of few tokens has too few sums to keep the units busy.
            let band = band * pairs / bands..(band + 1) * pairs / bands;
            // SAFETY: the functions want what this function's caller promises.
            unsafe {
                match L::PANELS.min(panels - panel) {
                    1 => Band::<1>::of(&mut product, band, panel).multiply::<L>(),
                    _ => Band::<2>::of(&mut product, band, panel).multiply::<L>(),
                }
            }
            (0..pace.due()).for_each(|_| ahead.step());
        }
    }
}

/// Some tokens and `PANELS` panels along a slab's K, and where their sums stand.
pub(super) struct Band<'a, const PANELS: usize> {
    /// Pairs of tokens, each `group_len` on.
    tokens: &'a [f32],
    group_len: usize,
    /// Where the slab stands in K.
    k: Range<usize>,
    /// For each panel, its blocks along that K.
    weights: [&'a [FloatBlock]; PANELS],
    /// For each panel, the sums of the tokens.
    sums: [&'a mut [Lanes]; PANELS],
    /// Whether the sums start at zero.
    fresh: bool,
}

impl<'a, const PANELS: usize> Band<'a, PANELS> {
    /// Some pairs of tokens of a product, and panels from this one on.
    fn of<L: DenseLoops>(product: &'a mut Product<'_, DenseKernel<L>>, pairs: Range<usize>, panel: usize) -> Self {
        let rows = product.rows();
        let Product { tokens, group_len, blocks, slab, sums, fresh, .. } = product;
        let mut panels = sums.chunks_exact_mut(rows).skip(panel);
        let rows = pairs.start * ROWS..pairs.end * ROWS;
        Self {
            tokens: &tokens[pairs.start * *group_len..pairs.end * *group_len],
            group_len: *group_len,
            k: blocks.start * BLOCK..blocks.end * BLOCK,
            weights: std::array::from_fn(|index| &slab.panel(panel + index)[..blocks.len()]),
            sums: std::array::from_fn(|_| panels.next().map_or(&mut [][..], |sums| &mut sums[rows.clone()])),
            fresh: *fresh,
        }
    }

    /// # Safety
    ///
    /// The processor must have the instructions.
    unsafe fn multiply<L: DenseLoops>(self) {
        // SAFETY: the functions want what this function's caller promises.
        unsafe {
            match self.tokens.len() / self.group_len {
                1 => L::band::<2, PANELS>(self),
                2 => L::band::<4, PANELS>(self),
                3 => L::band::<6, PANELS>(self),
                4 if L::PAIRS >= 4 => L::band::<8, PANELS>(self),
                5 if L::PAIRS >= 5 => L::band::<10, PANELS>(self),
                6 if L::PAIRS >= 6 => L::band::<12, PANELS>(self),
                more => unreachable!("a band of {more} pairs"),
            }
        }
    }

    /// Adds the products of `TOKENS` tokens, all sums in registers.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn add<V: Vector, const TOKENS: usize>(self) {
        let Self { tokens, group_len, k, weights, mut sums, fresh } = self;
        let depth = k.len();
        assert!(
            depth.is_multiple_of(UNROLLED) && k.end * ROWS <= group_len && tokens.len() == TOKENS / ROWS * group_len
        );
        assert!(
            weights.iter().all(|panel| panel.len() * BLOCK == depth) && sums.iter().all(|sums| sums.len() == TOKENS)
        );
        let token = tokens[k.start * ROWS..].as_ptr();
        let weights = weights.map(|panel| panel.as_ptr().cast::<f32>());
        let parts = COLUMNS / V::LANES;
        // SAFETY: the processor has the instructions (promised by the caller). As asserted above, there are `depth` rows of 16
        // weights per panel, and of every pair of tokens, `group_len` apart, the two numbers of as many k from `token` on.
        unsafe {
            let mut total = [[[V::zero(); 2]; PANELS]; TOKENS];
            if !fresh {
                for (panel, sums) in sums.iter().enumerate() {
                    for (total, sums) in total.iter_mut().zip(sums.iter()) {
                        for (part, total) in total[panel].iter_mut().enumerate().take(parts) {
                            *total = V::load(sums.0[part * V::LANES..].as_ptr());
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
                        total.store(sums.0[part * V::LANES..].as_mut_ptr());
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
/// The processor must have the instructions. There must be 16 weights of that k for each panel, and its numbers of every pair of tokens,
/// `group_len` apart.
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

/// Multiplies up to four tokens with a tile's panels along all of K, from the packed codes; says whether it did.
///
/// # Safety
///
/// The processor must have the instructions.
unsafe fn stream<L: DenseLoops>(tile: TileStream<'_, DenseKernel<L>>) -> bool {
    let TileStream { tokens, group_len, rows, panels, next, sums, .. } = tile;
    if rows > FEW || panels.iter().any(|panel| panel.len() % CHUNK_BYTES != 0) {
        return false;
    }
    let padded = tokens.len() / group_len * ROWS;
    // Two panels at a time, whose sums do not wait for each other, where those leave room in the registers.
    let sums_of_two = 2 * rows * COLUMNS / L::Vector::LANES;
    let pairs = panels.len().is_multiple_of(2) && 3 * sums_of_two <= L::Vector::REGISTERS;
    let mut later = panels.iter().chain(&next).copied().skip(if pairs { 2 } else { 1 });
    if pairs {
        for (panels, sums) in panels.as_chunks().0.iter().zip(sums.chunks_exact_mut(2 * padded)) {
            let (first, second) = sums.split_at_mut(padded);
            let next = [later.next(), later.next()];
            // SAFETY: the function wants what this function's caller promises.
            unsafe { Stream::<2> { tokens, group_len, panels: *panels, next, sums: [first, second] }.start::<L>(rows) }
        }
    } else {
        for (&panel, sums) in panels.iter().zip(sums.chunks_exact_mut(padded)) {
            let next = [later.next()];
            // SAFETY: the function wants what this function's caller promises.
            unsafe { Stream::<1> { tokens, group_len, panels: [panel], next, sums: [sums] }.start::<L>(rows) }
        }
    }
    true
}

/// A few tokens on their way along `PANELS` panels.
pub(super) struct Stream<'a, const PANELS: usize> {
    /// Pairs of tokens, each `group_len` on.
    tokens: &'a [f32],
    group_len: usize,
    /// For each panel, its packed bytes, whole chunks.
    panels: [&'a [u8]; PANELS],
    /// What is read after each, if that is known.
    next: [Option<&'a [u8]>; PANELS],
    /// For each panel, the sums of the tokens; garbage at first.
    sums: [&'a mut [Lanes]; PANELS],
}

impl<const PANELS: usize> Stream<'_, PANELS> {
    /// # Safety
    ///
    /// The processor must have the instructions.
    unsafe fn start<L: DenseLoops>(self, tokens: usize) {
        // SAFETY: the functions want what this function's caller promises.
        unsafe {
            match tokens {
                1 => L::stream::<1, PANELS>(self),
                2 => L::stream::<2, PANELS>(self),
                3 => L::stream::<3, PANELS>(self),
                _ => L::stream::<4, PANELS>(self),
            }
        }
    }

    /// Computes the sums of `TOKENS` tokens.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector, const TOKENS: usize>(self) {
        let panels: [&[[u8; CHUNK_BYTES]]; PANELS] = self.panels.map(|panel| panel.as_chunks().0);
        let chunks = panels[0].len();
        assert!(panels.iter().all(|panel| panel.len() == chunks) && self.sums.iter().all(|sums| sums.len() >= TOKENS));
        assert!(chunks * CHUNK_BLOCKS * BLOCK * ROWS <= self.group_len);
        assert!(self.tokens.len() >= TOKENS.div_ceil(ROWS) * self.group_len);
        let parts = COLUMNS / V::LANES;
        let mut token = self.tokens.as_ptr();
        // SAFETY: the processor has the instructions (promised by the caller). A chunk has the scales of four blocks, 16 each, and
        // their codes, 128 bytes each, four per column and eight k. `token` points to a block of the first pair of tokens, one of four
        // per chunk, and the other pairs stand `group_len` on (asserted above).
        unsafe {
            let mut total = [[[V::zero(); 2]; TOKENS]; PANELS];
            for chunk in 0..chunks {
                for (panel, next) in panels.iter().zip(self.next) {
                    prefetch_panel(panel, chunk, next);
                }
                for block in 0..CHUNK_BLOCKS {
                    // Panel by panel: the processor looks far enough ahead to have the sums of both under way.
                    let packed = panels.map(|panel| {
                        let chunk = panel.as_ptr().add(chunk).cast::<u8>();
                        (chunk.add(block * COLUMNS), chunk.add(CHUNK_BLOCKS * COLUMNS + block * CODE_BYTES))
                    });
                    add_block(&mut total[0], packed[0], token, self.group_len);
                    if PANELS == 2 {
                        add_block(&mut total[PANELS - 1], packed[PANELS - 1], token, self.group_len);
                    }
                    token = token.add(BLOCK * ROWS);
                }
            }
            for (total, sums) in total.into_iter().zip(self.sums) {
                for (total, sums) in total.into_iter().zip(sums) {
                    for (part, total) in total.iter().enumerate().take(parts) {
                        total.store(sums.0[part * V::LANES..].as_mut_ptr());
                    }
                }
            }
        }
    }
}

/// Adds the products of one block of a panel, which has one vector or two.
///
/// # Safety
///
/// The processor must have the instructions. There must be 16 scales, 128 bytes of codes, and 16 numbers of every pair of tokens,
/// `group_len` apart.
#[inline(always)]
unsafe fn add_block<V: Vector, const TOKENS: usize>(
    total: &mut [[V; 2]; TOKENS],
    (scales, codes): (*const u8, *const u8),
    token: *const f32,
    group_len: usize,
) {
    let parts = COLUMNS / V::LANES;
    // SAFETY: the caller promises the instructions and what is read.
    unsafe {
        let mut scale = [V::zero(); 2];
        for (part, scale) in scale.iter_mut().enumerate().take(parts) {
            *scale = V::scales(scales.add(part * V::LANES));
        }
        for half in 0..2 {
            let mut lanes = [V::codes(codes.add(half * VECTOR_BYTES)); 2];
            for (part, lanes) in lanes.iter_mut().enumerate().take(parts) {
                *lanes = V::codes(codes.add(half * VECTOR_BYTES + 4 * part * V::LANES));
            }
            for k in 8 * half..8 * half + 8 {
                let token = token.add(k * ROWS);
                for part in 0..parts {
                    let weights = V::values(lanes[part]).multiply(scale[part]);
                    lanes[part] = V::next(lanes[part]);
                    for (row, total) in total.iter_mut().enumerate() {
                        let number = V::splat(*token.add(row / ROWS * group_len + row % ROWS));
                        total[part] = weights.multiply_add(number, total[part]);
                    }
                }
            }
        }
    }
}
