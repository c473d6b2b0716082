//! Few dense tokens, straight from packed codes.
//!
//! Memory is the bottleneck here, and a core must get through 25 to 45 weights per nanosecond to keep up with it: every
//! instruction per weight counts. Expanded weights would pass through L1 for nothing, so codes are looked up in
//! registers; and their scales are left to the end of a block: the products of 16 k are added up as they are, and their
//! sum is multiplied with the column's scale when it joins the total, in one multiply-add. Each block's sums begin at
//! zero, so the units need not wait for one block before they start the next.
//!
//! As many tokens as have room for their sums in registers share a look-up.
//!
//! A configuration with a depth of one chunk is computed so, whatever else it says, and others by `dense`: an element's
//! bits depend on the depth alone. Tiles that cannot be streamed (a panel with fewer columns, a K that is no multiple
//! of a chunk) take the same steps over copies of the packed blocks.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use format::{BLOCK, Scaling};

use super::expansion::{Expand, Expansion};
use super::finish::Finish;
use super::kernel::{Kernel, PanelStream, Product, TileStream, for_tokens};
use super::pack::{Ahead, CHUNK_BLOCKS, CODE_BYTES, COLUMNS, chunk_bytes, shared};
use super::source::GroupTokens;
use super::sums::Lanes;
use super::vector::{Vector, scale_unit};

/// The loops of this module, compiled for one instruction set.
///
/// # Safety
///
/// Every function wants the processor to have the instructions.
pub(super) trait FewLoops: Sized + Sync {
    type Vector: Vector;

    /// The most tokens that share a look-up: four or eight.
    const TOGETHER: usize;

    /// [`PanelStream::run`].
    unsafe fn stream<const MX: bool, const TOKENS: usize>(stream: PanelStream<'_, FewKernel<Self>>);

    /// [`Stretch::add`].
    unsafe fn add<const MX: bool, const TOKENS: usize>(stretch: Stretch<'_>);

    /// [`Finish::write`].
    unsafe fn finish(finish: Finish<'_>);
}

/// Implements [`FewLoops`]: the same functions for every unit, each compiled with its features.
macro_rules! few_loops {
    ($loops:ident, $vector:ty, $features:literal, together $together:literal) => {
        impl FewLoops for $loops {
            type Vector = $vector;

            const TOGETHER: usize = $together;

            #[target_feature(enable = $features)]
            unsafe fn stream<const MX: bool, const TOKENS: usize>(stream: PanelStream<'_, FewKernel<Self>>) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { stream.run::<MX, TOKENS>() }
            }

            #[target_feature(enable = $features)]
            unsafe fn add<const MX: bool, const TOKENS: usize>(stretch: Stretch<'_>) {
                // SAFETY: the function wants the instructions, which the caller promises.
                unsafe { stretch.add::<$vector, MX, TOKENS>() }
            }

            #[target_feature(enable = $features)]
            unsafe fn finish(finish: Finish<'_>) {
                write(finish);
            }
        }
    };
}
pub(super) use few_loops;

/// Few dense tokens, widened to f32, beside weights with such scales.
pub(super) struct FewKernel<L>(Scaling, PhantomData<L>);

impl<L> FewKernel<L> {
    pub(super) const fn new(scaling: Scaling) -> Self {
        Self(scaling, PhantomData)
    }
}

/// A block as it is packed.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PackedBlock {
    scales: [u8; COLUMNS],
    codes: [u8; CODE_BYTES],
}

impl<L> Expand for FewKernel<L> {
    type Block = PackedBlock;

    const BLANK: PackedBlock = PackedBlock { scales: [0; COLUMNS], codes: [0; CODE_BYTES] };

    #[inline(always)]
    fn expand(&self, &scales: &[u8; COLUMNS], &codes: &[u8; CODE_BYTES], out: &mut PackedBlock) {
        *out = PackedBlock { scales, codes };
    }
}

impl<L: FewLoops> Kernel for FewKernel<L> {
    type Token = f32;

    const ROWS: usize = 1;
    const BLOCKS: usize = 1;
    const PANELS: usize = 2;
    const STREAM_ROWS: Option<usize> = Some(L::TOGETHER);

    /// Tokens a multiple of a page apart would want the same places of L1: they get a line more.
    fn group_len(blocks: usize) -> usize {
        BLOCK * blocks + 64 / size_of::<f32>()
    }

    fn prepare(&self, source: GroupTokens<'_>, row: usize, out: &mut [f32]) {
        let k = source.activations.k();
        source.scaled_row(row, source.f32_exponent(self.0), &mut out[..k]);
    }

    fn unit(&self, source: GroupTokens<'_>) -> f64 {
        scale_unit(self.0) * 2f64.powi(-source.f32_exponent(self.0))
    }

    fn multiply(&self, product: Product<'_, Self>, _: &mut Expansion<'_, Self>) {
        let (rows, group_len, first) = (product.rows(), product.group_len, product.blocks.start * BLOCK);
        let together = rows.div_ceil(rows.div_ceil(L::TOGETHER));
        for (panel, sums) in product.sums.chunks_exact_mut(rows).enumerate() {
            let blocks = &product.slab.panel(panel)[..product.blocks.len()];
            for (sums, tokens) in sums.chunks_mut(together).zip(product.tokens.chunks(together * group_len)) {
                let (count, tokens) = (sums.len(), &tokens[first..]);
                let stretch = Stretch { tokens, group_len, blocks, sums, fresh: product.fresh };
                // SAFETY: the schedule runs this kernel only where its backend found the instructions.
                unsafe { for_tokens!(self.0, count, L::TOGETHER, L::add(stretch)) }
            }
        }
    }

    fn stream(&self, tile: TileStream<'_, Self>) -> bool {
        tile.by_panels(self.0.is_mx(), L::TOGETHER, |stream| {
            // SAFETY: the schedule runs this kernel only where its backend found the instructions.
            unsafe { for_tokens!(self.0, stream.sums.len(), L::TOGETHER, L::stream(stream)) }
        })
    }

    fn finish(&self, finish: Finish<'_>) {
        // SAFETY: the schedule runs this kernel only where its backend found the instructions.
        unsafe { L::finish(finish) }
    }
}

/// The running sums of some tokens and a panel, which has one vector or two.
type Totals<V, const TOKENS: usize> = [[V; 2]; TOKENS];

/// A few tokens and a panel along some blocks.
pub(super) struct Stretch<'a> {
    /// The tokens from the first block on, `group_len` apart.
    tokens: &'a [f32],
    group_len: usize,
    blocks: &'a [PackedBlock],
    /// The sums of every token.
    sums: &'a mut [Lanes],
    /// Whether the sums start at zero here (they hold garbage then).
    fresh: bool,
}

impl Stretch<'_> {
    /// Adds the products of `TOKENS` tokens.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn add<V: Vector, const MX: bool, const TOKENS: usize>(self) {
        let Self { tokens, group_len, blocks, sums, fresh } = self;
        assert!(sums.len() == TOKENS && tokens.len() >= (TOKENS - 1) * group_len + blocks.len() * BLOCK);
        // SAFETY: the processor has the instructions (promised by the caller). Every token has 16 numbers for each
        // block, `group_len` apart (asserted above).
        unsafe {
            let mut totals: Totals<V, TOKENS> = [[V::zero(); 2]; TOKENS];
            if !fresh {
                for (total, sums) in totals.iter_mut().zip(&*sums) {
                    for (total, lanes) in total.iter_mut().zip(sums.0.chunks_exact(V::LANES)) {
                        *total = V::load(lanes.as_ptr());
                    }
                }
            }
            for (index, block) in blocks.iter().enumerate() {
                let packed = (&block.scales, &block.codes);
                add_block::<V, MX, TOKENS>(&mut totals, packed, tokens.as_ptr().add(index * BLOCK), group_len);
            }
            store(&totals, sums);
        }
    }
}

impl<L: FewLoops> PanelStream<'_, FewKernel<L>> {
    /// Computes the sums of `TOKENS` tokens.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn run<const MX: bool, const TOKENS: usize>(self) {
        let Self { panel, next, sums, .. } = self;
        assert!(sums.len() == TOKENS && self.tokens.len() == TOKENS * self.group_len);
        assert!(panel.len() / chunk_bytes(MX) * CHUNK_BLOCKS * BLOCK <= self.group_len);
        let mut token = self.tokens.as_ptr();
        // SAFETY: the processor has the instructions (promised by the caller). A chunk has the scales of four blocks,
        // 16 each or for each two, and their codes, 128 bytes each. `token` points to a block of the first token, one
        // of four per chunk, and the others stand `group_len` on (asserted above).
        unsafe {
            let mut totals: Totals<L::Vector, TOKENS> = [[L::Vector::zero(); 2]; TOKENS];
            for (index, chunk) in panel.chunks_exact(chunk_bytes(MX)).enumerate() {
                let ahead = Ahead::of::<MX>(panel, index, next);
                for block in 0..CHUNK_BLOCKS {
                    ahead.fetch(block);
                    let scales = chunk.as_ptr().add(block / shared(MX) * COLUMNS);
                    let codes = chunk.as_ptr().add(CHUNK_BLOCKS / shared(MX) * COLUMNS + block * CODE_BYTES);
                    add_block::<_, MX, TOKENS>(&mut totals, (&*scales.cast(), &*codes.cast()), token, self.group_len);
                    token = token.add(BLOCK);
                }
            }
            store(&totals, sums);
        }
    }
}

/// Adds the products of one block. One token has registers for the sums of two vectors side by side: as many additions
/// again that do not wait for each other, and half of its broadcasts.
///
/// # Safety
///
/// The processor must have the instructions. There must be 16 numbers of every token, `apart` from the next one's.
#[inline(always)]
unsafe fn add_block<V: Vector, const MX: bool, const TOKENS: usize>(
    totals: &mut Totals<V, TOKENS>,
    packed: (&[u8; COLUMNS], &[u8; CODE_BYTES]),
    token: *const f32,
    apart: usize,
) {
    let parts = COLUMNS / V::LANES;
    // SAFETY: the caller promises the same, and these are all the vectors that a panel has.
    unsafe {
        if TOKENS == 1 && parts == 2 {
            return add_parts::<V, MX, TOKENS, 2>(totals, packed, 0, token, apart);
        }
        for part in 0..parts {
            add_parts::<V, MX, TOKENS, 1>(totals, packed, part, token, apart);
        }
    }
}

/// The same for `PARTS` vectors of the panel from this one on.
///
/// # Safety
///
/// As [`add_block`]; the panel must have these vectors.
#[inline(always)]
unsafe fn add_parts<V: Vector, const MX: bool, const TOKENS: usize, const PARTS: usize>(
    totals: &mut Totals<V, TOKENS>,
    (scales, codes): (&[u8; COLUMNS], &[u8; CODE_BYTES]),
    first: usize,
    token: *const f32,
    apart: usize,
) {
    // SAFETY: the processor has the instructions, the panel these vectors, and tokens are what they should be (all
    // promised by the caller). There are 16 scales, and two times 64 bytes of codes, four per column.
    unsafe {
        let sums: [[V; PARTS]; TOKENS] = V::block(codes.as_ptr().add(4 * first * V::LANES), token, apart);
        for part in 0..PARTS {
            let scales = V::block_scales::<MX>(scales.as_ptr().add((first + part) * V::LANES));
            for (total, sums) in totals.iter_mut().zip(&sums) {
                total[first + part] = sums[part].multiply_add(scales, total[first + part]);
            }
        }
    }
}

/// # Safety
///
/// The processor must have the instructions.
#[inline(always)]
unsafe fn store<V: Vector, const TOKENS: usize>(totals: &Totals<V, TOKENS>, sums: &mut [Lanes]) {
    for (total, sums) in totals.iter().zip(sums) {
        for (total, lanes) in total.iter().zip(sums.0.chunks_exact_mut(V::LANES)) {
            // SAFETY: the processor has the instructions (promised by the caller), and there are as many lanes.
            unsafe { total.store(lanes.as_mut_ptr()) };
        }
    }
}
