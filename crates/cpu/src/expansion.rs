//! From packed codes to what a kernel multiplies, block by block, so that it can be done between other things.

use std::ops::Range;

use bytemuck::Pod;

use super::pack::{self, CODE_BYTES, COLUMNS, PanelMatrix, Stretch, prefetch_stream};
use super::slab::Slab;

/// An instruction set's way to expand a block.
pub(super) trait Expand {
    /// 16 of K by 16 columns, ready to be multiplied.
    type Block: Pod + Send + Sync;

    /// A block of zeros.
    const BLANK: Self::Block;

    /// Expands one block: a scale per column, then two vectors of codes.
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut Self::Block);
}

/// The dequantisation of a slab, block by block, so that it can be done between other things.
pub(super) struct Expansion<'a, K: Expand> {
    pub kernel: &'a K,
    /// The panels that are not yet begun, and for each place in the slab.
    sources: Sources<'a>,
    out: &'a mut [K::Block],
    stride: usize,
    /// Blocks of each panel, blank ones included.
    depth: usize,
    remaining: usize,
    /// The panel under way: where its next block goes, what of its stream is left, and the blocks of the present chunk,
    /// of which one or two share scales.
    place: usize,
    left: usize,
    stream: &'a [u8],
    mx: bool,
    scales: &'a [[u8; COLUMNS]],
    codes: &'a [[u8; CODE_BYTES]],
}

/// The panels of a slab: those of the first matrix, then those of the second.
#[derive(Clone)]
pub(super) struct Sources<'a> {
    pub matrices: &'a [PanelMatrix],
    pub panels: Range<usize>,
    pub chunks: Range<usize>,
    pub next: usize,
}

impl<'a> Sources<'a> {
    fn next(&mut self) -> Option<Stretch<'a>> {
        let matrix = self.matrices.get(self.next / self.panels.len())?;
        let panel = self.panels.start + self.next % self.panels.len();
        self.next += 1;
        Some(matrix.stretch(panel, self.chunks.clone()))
    }
}

impl<'a, K: Expand> Expansion<'a, K> {
    /// The expansion of these panels into a slab, each to so many blocks.
    pub(super) fn new(kernel: &'a K, sources: Sources<'a>, depth: usize, slab: &'a mut Slab<'_, K::Block>) -> Self {
        let remaining = sources.matrices.len() * sources.panels.len() * depth;
        let (out, stride) = slab.panels();
        Self { out, stride, depth, remaining, ..Self::of(kernel, sources) }
    }

    /// Nothing to expand.
    pub(super) fn nothing(kernel: &'a K) -> Self {
        Self::of(kernel, Sources { matrices: &[], panels: 0..1, chunks: 0..0, next: 0 })
    }

    /// Nothing of these panels.
    fn of(kernel: &'a K, sources: Sources<'a>) -> Self {
        let (stream, scales, codes) = (&[], &[], &[]);
        let (stride, depth, remaining, place, left, mx) = (0, 0, 0, 0, 0, false);
        Self { kernel, sources, out: &mut [], stride, depth, remaining, place, left, stream, mx, scales, codes }
    }

    /// Blocks that are not yet expanded.
    #[inline(always)]
    pub(super) fn remaining(&self) -> usize {
        self.remaining
    }

    /// Expands one more block, if any is left.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if self.codes.is_empty() {
            self.next_chunk();
        }
        if let ([scales, more_scales @ ..], [codes, more_codes @ ..]) = (self.scales, self.codes) {
            self.kernel.expand(scales, codes, &mut self.out[self.place]);
            // An even number of blocks is left behind every second one.
            if more_codes.len().is_multiple_of(pack::shared(self.mx)) {
                self.scales = more_scales;
            }
            self.codes = more_codes;
            self.advance(1);
        }
    }

    #[inline(always)]
    fn advance(&mut self, blocks: usize) {
        self.place += blocks;
        self.left -= blocks;
        self.remaining -= blocks;
    }

    /// Goes to the next chunk, of the next panel if need be, and asks for what follows it in its stream. Blocks that
    /// have to be made up are made up here: blank ones behind the last, and those of a panel with fewer columns.
    #[inline(never)]
    fn next_chunk(&mut self) {
        while self.stream.is_empty() {
            self.out[self.place..self.place + self.left].fill(K::BLANK);
            self.advance(self.left);
            let Some(stretch) = self.sources.next() else { return };
            self.place = (self.sources.next - 1) * self.stride;
            self.left = self.depth;
            (self.stream, self.mx) = (stretch.bytes, stretch.mx);
            if stretch.width < COLUMNS {
                self.expand_narrow(stretch);
            }
        }
        let (chunk, stream) = self.stream.split_at(self.stream.len().min(pack::chunk_bytes(self.mx)));
        prefetch_stream(chunk);
        let (scales, codes) = pack::split(chunk, self.mx);
        (self.scales, self.codes, self.stream) = (scales.as_chunks().0, codes.as_chunks().0, stream);
    }

    /// Expands all of a panel that has fewer columns.
    #[cold]
    fn expand_narrow(&mut self, stretch: Stretch<'a>) {
        for chunk in stretch.bytes.chunks(pack::chunk_bytes(stretch.mx) / COLUMNS * stretch.width) {
            let (wide, length) = pack::widened(chunk, stretch.width, stretch.mx);
            let (scales, codes) = pack::split(&wide[..length], stretch.mx);
            let scales = scales.as_chunks().0;
            for (block, codes) in codes.as_chunks().0.iter().enumerate() {
                self.kernel.expand(&scales[block / pack::shared(stretch.mx)], codes, &mut self.out[self.place]);
                self.advance(1);
            }
        }
        self.stream = &[];
    }

    /// Expands what is left.
    #[inline(always)]
    pub(super) fn complete(&mut self) {
        while self.remaining > 0 {
            self.step();
        }
    }
}

/// Spreads so many pieces of other work evenly over so many steps.
pub(super) struct Pace {
    work: usize,
    steps: usize,
    owed: usize,
}

impl Pace {
    pub(super) fn new(work: usize, steps: usize) -> Self {
        Self { work, steps, owed: 0 }
    }

    /// The pieces that fall to the next step.
    #[inline(always)]
    pub(super) fn due(&mut self) -> usize {
        self.owed += self.work;
        let mut due = 0;
        while self.owed >= self.steps {
            self.owed -= self.steps;
            due += 1;
        }
        due
    }
}
