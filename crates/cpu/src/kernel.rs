//! What an instruction set must be able to do, and the pieces of work it is handed.
//!
//! A kernel prepares tokens (once per run), expands blocks of codes into the form it multiplies (a *slab*: a few panels, a
//! stretch of K, small enough for the L1 cache), and multiplies tokens with a slab into sums. The schedule
//! decides what is done when; a kernel never sees a strategy. Only one hint reaches it: an [`Expansion`] of a later slab
//! that it may advance between its products, so that dequantisation fills the gaps that matrix instructions leave.

use std::ops::Range;

use bytemuck::Pod;

use super::expansion::{Expand, Expansion, Pace};
use super::finish::Finish;
use super::slab::SlabView;
use super::source::GroupTokens;
use super::sums::Lanes;

/// One instruction set's way with one kind of activations.
pub(super) trait Kernel: Expand + Sync + Sized {
    /// What prepared tokens are made of.
    type Token: Pod + Send + Sync;

    /// Prepared rows come in groups of so many; missing ones are zero.
    const ROWS: usize;
    /// Blocks along K come in groups of so many; missing ones are blank.
    const BLOCKS: usize;
    /// Panels that are multiplied together.
    const PANELS: usize;
    /// The depth at which [`Self::resident`] is asked, if ever.
    const RESIDENT: Option<usize> = None;

    /// Prepared rows that one token becomes: their sums are added in the end.
    fn parts(&self) -> usize {
        1
    }

    /// Token elements that a group of [`Self::ROWS`] rows takes, K being so many blocks.
    fn group_len(blocks: usize) -> usize;

    /// Writes one group of prepared rows, zeros where there are no tokens or no K; `group` counts groups of rows.
    fn prepare(&self, source: GroupTokens<'_>, group: usize, out: &mut [Self::Token]);

    /// What the sums must be multiplied with, beside the global scales: a power of two.
    fn unit(&self, _: GroupTokens<'_>) -> f64 {
        1.0
    }

    /// Multiplies tokens with a slab, advancing the expansion of a later one between products if it can.
    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>);

    /// Computes all sums of a tile in one go, if this kernel has a tighter loop for its shape; says whether it did.
    fn stream(&self, _: TileStream<'_, Self>) -> bool {
        false
    }

    /// The same for a tile of any number of panels and the depth [`Self::RESIDENT`].
    fn resident(&self, _: TileStream<'_, Self>) -> bool {
        false
    }

    /// Makes a thread ready for products, until what is returned is dropped.
    fn enter(&self) -> impl Sized {}

    /// Writes a tile of results: [`Finish::write`], compiled for this instruction set.
    fn finish(&self, finish: Finish<'_>);
}

/// Tokens times a slab.
pub(super) struct Product<'a, K: Kernel> {
    /// Every group of rows of the tile, `group_len` elements each.
    pub tokens: &'a [K::Token],
    /// Elements of a group of rows.
    pub group_len: usize,
    /// Blocks along K, from the first: where the slab stands.
    pub blocks: Range<usize>,
    /// The slab: for each panel, `blocks` (rounded up to [`Kernel::BLOCKS`]) blocks.
    pub slab: SlabView<'a, K::Block>,
    /// For each panel, the sums of every row of every group.
    pub sums: &'a mut [Lanes],
    /// Whether the sums start at zero here (they hold garbage then).
    pub fresh: bool,
    /// Whether this is the last stretch of K.
    pub last: bool,
    /// Whether the tile is this one slab wide: then all products from the fresh to the last one are about the same sums,
    /// one after the other on the same thread, and sums may stay in registers in between.
    pub alone: bool,
}

impl<K: Kernel> Product<'_, K> {
    /// Blocks of each panel of the slab.
    pub(super) fn depth(&self) -> usize {
        self.blocks.len().next_multiple_of(K::BLOCKS)
    }

    /// Rows of the tile, whole groups.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len() / self.group_len * K::ROWS
    }

    /// Panels of the slab.
    pub(super) fn panels(&self) -> usize {
        self.slab.panels
    }
}

impl<K: Kernel> Product<'_, K> {
    /// Hands each panel to `rows`, with a few tokens at a time (`SHARED`, or what is left of them): for kernels whose
    /// groups are single rows. What is ahead is expanded in between.
    #[inline(always)]
    pub(super) fn by_rows<const SHARED: usize>(
        self,
        ahead: &mut Expansion<'_, K>,
        rows: impl Fn(&[&[K::Token]], &[K::Block], &mut [Lanes], bool),
    ) {
        let (depth, count, panels) = (self.depth(), self.rows(), self.panels());
        let Product { tokens, group_len, blocks, slab, sums, fresh, .. } = self;
        let elements = K::group_len(1);
        let stretch = blocks.start * elements..blocks.end * elements;
        let mut pace = Pace::new(ahead.remaining(), count.div_ceil(SHARED) * panels);
        for (panel, sums) in sums.chunks_exact_mut(count).enumerate() {
            let panel = &slab.panel(panel)[..depth];
            for (tokens, sums) in tokens.chunks(SHARED * group_len).zip(sums.chunks_mut(SHARED)) {
                let mut few: [&[K::Token]; SHARED] = [&[]; SHARED];
                for (few, token) in few.iter_mut().zip(tokens.chunks_exact(group_len)) {
                    *few = &token[stretch.clone()];
                }
                rows(&few[..sums.len()], panel, sums, fresh);
                (0..pace.due()).for_each(|_| ahead.step());
            }
        }
    }
}

/// A whole tile along all of K, in ping-pong with two stages.
pub(super) struct TileStream<'a, K: Kernel> {
    /// Every group of rows of the tile, `group_len` elements each.
    pub tokens: &'a [K::Token],
    pub group_len: usize,
    /// Rows of the tile that tokens have become, without those that fill a group up.
    pub rows: usize,
    /// For each panel, its packed bytes; panels stand in the order of their sums.
    pub panels: Vec<&'a [u8]>,
    /// What this thread will most likely stream next, panel for panel; empty if that is not known.
    pub next: Vec<&'a [u8]>,
    /// A page for each panel, to expand into.
    pub ring: &'a mut [K::Block],
    /// For each panel, the sums of every row; garbage at first.
    pub sums: &'a mut [Lanes],
}
