//! What an instruction set must be able to do, and the pieces of work it is handed.
//!
//! A kernel prepares tokens (once a run), expands blocks of codes into the form it multiplies (a *slab*: a few panels, a
//! stretch of K, small enough for the first-level cache), and multiplies tokens with a slab into sums. The schedule
//! decides what is done when; a kernel never sees a strategy. Only one hint reaches it: an [`Expansion`] of a later slab
//! that it may advance between its products, so that dequantisation fills the gaps that matrix instructions leave.

use std::ops::Range;

use super::pack::{BLOCK_BYTES, CHUNK_BLOCKS, COLUMNS, PanelMatrix};
use super::target::SharedTarget;
use crate::{Activations, Gate};

/// One group's tokens as they came.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub activations: &'a Activations<'a>,
    /// The largest magnitude among dense activations.
    pub largest: f32,
}

/// The sums of one prepared row for the columns of one panel.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub [f32; COLUMNS]);

/// One instruction set's way with one kind of activations.
pub(super) trait Kernel: Sync + Sized {
    /// 16 of K by 16 columns, ready to be multiplied.
    type Block: Copy + Send + Sync;
    /// What prepared tokens are made of.
    type Token: Copy + Send + Sync;

    /// A block of zeros.
    const BLANK: Self::Block;
    /// A token element of zero.
    const ZERO: Self::Token;
    /// Prepared rows come in groups of so many; missing ones are zero.
    const ROWS: usize;
    /// Blocks along K come in groups of so many; missing ones are blank.
    const BLOCKS: usize;
    /// Panels that are multiplied together.
    const PANELS: usize;

    /// Prepared rows that one token becomes: their sums are added in the end.
    fn parts(&self) -> usize;

    /// Token elements that a group of [`Self::ROWS`] rows takes, K being so many blocks.
    fn group_len(&self, blocks: usize) -> usize;

    /// Writes one group of prepared rows; `group` counts groups of rows, and `out` is zero.
    fn prepare(&self, source: Source<'_>, group: usize, out: &mut [Self::Token]);

    /// What the sums must be multiplied with, beside the global scales: a power of two.
    fn unit(&self, source: Source<'_>) -> f64;

    /// Expands the blocks of a full-width chunk: `BLOCK_BYTES` bytes each, all scales first.
    fn expand(&self, blocks: usize, bytes: &[u8], out: &mut [Self::Block]);

    /// Multiplies tokens with a slab, advancing the expansion of a later one between products if it can.
    fn multiply(&self, product: Product<'_, Self>, ahead: &mut Expansion<'_, Self>);

    /// Called on every thread before its first product, and `leave` after its last.
    fn enter(&self) {}

    /// See [`Self::enter`].
    fn leave(&self) {}

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
    pub slab: &'a [K::Block],
    /// For each panel, the sums of every row of every group.
    pub sums: &'a mut [Lanes],
    /// Whether the sums start at zero here (they hold garbage then).
    pub fresh: bool,
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
        self.slab.len() / self.depth()
    }
}

impl<'a, K: Kernel> Product<'a, K> {
    /// Hands each panel to `rows`, with a few tokens at a time (`SHARED`, or what is left of them): for kernels whose
    /// groups are single rows. What is ahead is expanded in between.
    #[inline(always)]
    pub(super) fn by_rows<const SHARED: usize>(
        self,
        ahead: &mut Expansion<'_, K>,
        rows: impl Fn(&[&[K::Token]], &[K::Block], &mut [Lanes], bool),
    ) {
        let (depth, count, panels) = (self.depth(), self.rows(), self.panels());
        let Product { tokens, group_len, blocks, slab, sums, fresh } = self;
        let elements = ahead.kernel.group_len(1);
        let stretch = blocks.start * elements..blocks.end * elements;
        let share = ahead.remaining().div_ceil(count.div_ceil(SHARED) * panels);
        for (panel, sums) in slab.chunks_exact(depth).zip(sums.chunks_exact_mut(count)) {
            for (tokens, sums) in tokens.chunks(SHARED * group_len).zip(sums.chunks_mut(SHARED)) {
                let mut few: [&[K::Token]; SHARED] = [&[]; SHARED];
                for (few, token) in few.iter_mut().zip(tokens.chunks_exact(group_len)) {
                    *few = &token[stretch.clone()];
                }
                rows(&few[..sums.len()], panel, sums, fresh);
                (0..share).for_each(|_| ahead.step());
            }
        }
    }
}

/// The dequantisation of a slab, chunk by chunk, so that it can be done between other things.
pub(super) struct Expansion<'a, K: Kernel> {
    kernel: &'a K,
    /// The matrices whose panels alternate in the slab.
    matrices: &'a [PanelMatrix],
    panels: Range<usize>,
    chunks: Range<usize>,
    out: &'a mut [K::Block],
    done: usize,
}

impl<'a, K: Kernel> Expansion<'a, K> {
    /// The expansion of these panels of every matrix, panels of the first matrix first.
    pub(super) fn new(
        kernel: &'a K,
        matrices: &'a [PanelMatrix],
        panels: Range<usize>,
        chunks: Range<usize>,
        out: &'a mut [K::Block],
    ) -> Self {
        Self { kernel, matrices, panels, chunks, out, done: 0 }
    }

    /// Nothing to expand.
    pub(super) fn nothing(kernel: &'a K) -> Self {
        Self { kernel, matrices: &[], panels: 0..0, chunks: 0..0, out: &mut [], done: 0 }
    }

    /// Chunks that are not yet expanded.
    #[inline(always)]
    pub(super) fn remaining(&self) -> usize {
        self.matrices.len() * self.panels.len() * self.chunks.len() - self.done
    }

    /// Expands one more chunk, if any is left.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if self.remaining() == 0 {
            return;
        }
        let (panel, chunk) = (self.done / self.chunks.len(), self.done % self.chunks.len());
        let matrix = &self.matrices[panel / self.panels.len()];
        let source = matrix.chunk(self.panels.start + panel % self.panels.len(), self.chunks.start + chunk);
        let depth = self.out.len() / (self.matrices.len() * self.panels.len());
        let start = panel * depth + chunk * CHUNK_BLOCKS;
        let out = &mut self.out[start..panel * depth + depth.min((chunk + 1) * CHUNK_BLOCKS)];
        let (filled, padding) = out.split_at_mut(source.blocks);
        if source.width == COLUMNS {
            self.kernel.expand(source.blocks, source.bytes, filled);
        } else {
            let mut wide = [0; CHUNK_BLOCKS * BLOCK_BYTES];
            let length = source.widened(&mut wide);
            self.kernel.expand(source.blocks, &wide[..length], filled);
        }
        padding.fill(K::BLANK);
        self.done += 1;
    }

    /// Expands what is left.
    #[inline(always)]
    pub(super) fn complete(&mut self) {
        while self.remaining() > 0 {
            self.step();
        }
    }
}

/// The sums of a tile, slab by slab: for each slab, each matrix, each panel, the sums of every row.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumLayout {
    /// Rows of the tile, whole groups.
    pub rows: usize,
    /// Matrices that are multiplied together.
    pub matrices: usize,
    /// Panels of the tile, of each matrix.
    pub panels: usize,
    /// Panels of a slab, of each matrix; the last slab may have fewer.
    pub slab: usize,
}

impl SumLayout {
    /// Slabs of the tile.
    pub(super) fn slabs(&self) -> usize {
        self.panels.div_ceil(self.slab)
    }

    /// The panels of a slab, of each matrix.
    pub(super) fn panels_of(&self, slab: usize) -> Range<usize> {
        slab * self.slab..self.panels.min((slab + 1) * self.slab)
    }

    /// Where the sums of a slab stand.
    pub(super) fn slab_range(&self, slab: usize) -> Range<usize> {
        let panels = self.panels_of(slab);
        panels.start * self.matrices * self.rows..panels.end * self.matrices * self.rows
    }

    /// Where the sums of one panel of one matrix stand.
    #[inline(always)]
    fn panel_range(&self, matrix: usize, panel: usize) -> Range<usize> {
        let panels = self.panels_of(panel / self.slab);
        let position = panels.start * self.matrices + matrix * panels.len() + (panel - panels.start);
        position * self.rows..(position + 1) * self.rows
    }

    /// The sums of the whole tile.
    pub(super) fn len(&self) -> usize {
        self.matrices * self.panels * self.rows
    }
}

/// The sums of one matrix of a tile.
#[derive(Clone, Copy)]
pub(super) struct MatrixSums<'a> {
    pub sums: &'a [Lanes],
    pub layout: SumLayout,
    /// Which matrix of the layout.
    pub matrix: usize,
}

/// A finished tile on its way to C: sums in, scaled, gated and rounded values out.
pub(super) struct Finish<'a> {
    pub gate: MatrixSums<'a>,
    /// The same as `gate` where there is no gate; not looked at then.
    pub up: MatrixSums<'a>,
    pub function: Gate,
    /// What gate sums and up sums are multiplied with.
    pub alpha: [f64; 2],
    /// Prepared rows a token.
    pub parts: usize,
    pub tokens: Range<usize>,
    pub columns: Range<usize>,
    pub out: &'a SharedTarget,
}

impl Finish<'_> {
    /// Scales, gates, rounds and stores every token of the tile. Inlined into each instruction set's own function, so
    /// that the loops become its vector code.
    #[inline(always)]
    pub(super) fn write(&self) {
        let width = self.columns.len();
        let mut rows = vec![0f32; 2 * width.next_multiple_of(COLUMNS)];
        let (gate, up) = rows.split_at_mut(width.next_multiple_of(COLUMNS));
        for (index, token) in self.tokens.clone().enumerate() {
            let lines = index * self.parts..(index + 1) * self.parts;
            scale(&self.gate, lines.clone(), self.alpha[0], gate);
            if self.function != Gate::None {
                scale(&self.up, lines, self.alpha[1], up);
                self.function.apply_rows(gate, up);
            }
            // SAFETY: the target is borrowed for the whole run, and tiles do not overlap.
            unsafe { self.out.store(token, self.columns.clone(), &gate[..width]) };
        }
    }
}

/// Adds up a token's rows and multiplies with alpha, in f64 so that no pair of global scales overflows on the way.
#[inline(always)]
fn scale(sums: &MatrixSums<'_>, lines: Range<usize>, alpha: f64, out: &mut [f32]) {
    for (panel, out) in out.chunks_exact_mut(COLUMNS).enumerate() {
        let rows = &sums.sums[sums.layout.panel_range(sums.matrix, panel)][lines.clone()];
        for (column, out) in out.iter_mut().enumerate() {
            let sum: f64 = rows.iter().map(|row| f64::from(row.0[column])).sum();
            *out = (sum * alpha) as f32;
        }
    }
}
