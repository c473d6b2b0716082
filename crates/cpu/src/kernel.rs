//! What an instruction set must be able to do, and the pieces of work it is handed.
//!
//! A kernel prepares tokens (once a run), expands blocks of codes into the form it multiplies (a *slab*: a few panels, a
//! stretch of K, small enough for the first-level cache), and multiplies tokens with a slab into sums. The schedule
//! decides what is done when; a kernel never sees a strategy. Only one hint reaches it: an [`Expansion`] of a later slab
//! that it may advance between its products, so that dequantisation fills the gaps that matrix instructions leave.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::memory::{Arena, Lease};
use super::pack::{
    self, BLOCK_BYTES, CHUNK_BLOCKS, CHUNK_BYTES, CODE_BYTES, COLUMNS, PanelMatrix, Stretch, prefetch_stream,
};
use super::target::SharedTarget;
use op::{Activations, Gate, Result};

/// One group's tokens as they came.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub activations: &'a Activations<'a>,
    /// The largest magnitude among dense activations.
    pub largest: f32,
}

/// Powers of two that f32 has, so that two factors reach any scale that tokens are brought to.
const LARGEST_POWER: i32 = 127;
/// Where a group's largest dense token may lie, as powers of two, for f32 sums of its products to be neither subnormal nor
/// infinite: weights are between 2⁻¹⁰ and 2¹².
const COMFORTABLE: Range<i32> = -20..60;

impl Source<'_> {
    /// The power of two that brings the largest dense token to 2^`place`, or as near as two factors of f32 can.
    pub(super) fn exponent_to(self, place: i32) -> i32 {
        if self.largest == 0.0 {
            return 0;
        }
        (place - exponent_of(self.largest.into())).min(2 * LARGEST_POWER)
    }

    /// The power of two by which kernels that multiply in f32 scale dense tokens: none, unless their products would leave
    /// f32's normal range.
    pub(super) fn f32_exponent(self) -> i32 {
        if self.largest == 0.0 || COMFORTABLE.contains(&exponent_of(self.largest.into())) {
            return 0;
        }
        self.exponent_to(0)
    }

    /// Writes one token as f32, times a power of two.
    pub(super) fn scaled_row(self, row: usize, exponent: i32, out: &mut [f32]) {
        self.activations.unscaled_row(row, out);
        if exponent != 0 {
            let [first, second] = two_powers(exponent);
            out.iter_mut().for_each(|value| *value = *value * first * second);
        }
    }
}

/// The exponent of a number's leading bit.
fn exponent_of(number: f64) -> i32 {
    number.abs().log2().floor() as i32
}

/// A power of two that may be beyond f32 as two that are not.
pub(super) fn two_powers(exponent: i32) -> [f32; 2] {
    [exponent / 2, exponent - exponent / 2].map(|exponent| 2f32.powi(exponent))
}

/// The sums of one prepared row for the columns of one panel.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub [f32; COLUMNS]);

/// One instruction set's way with one kind of activations.
pub(super) trait Kernel: Sync + Sized {
    /// 16 of K by 16 columns, ready to be multiplied.
    type Block: Pod + Send + Sync;
    /// What prepared tokens are made of.
    type Token: Pod + Send + Sync;

    /// A block of zeros.
    const BLANK: Self::Block;
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
    fn group_len(&self, blocks: usize) -> usize;

    /// Writes one group of prepared rows, zeros where there are no tokens or no K; `group` counts groups of rows.
    fn prepare(&self, source: Source<'_>, group: usize, out: &mut [Self::Token]);

    /// What the sums must be multiplied with, beside the global scales: a power of two.
    fn unit(&self, _: Source<'_>) -> f64 {
        1.0
    }

    /// Expands one block: a scale a column, then two vectors of codes.
    fn expand(&self, scales: &[u8; COLUMNS], codes: &[u8; CODE_BYTES], out: &mut Self::Block);

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
        let Product { tokens, group_len, blocks, slab, sums, fresh, .. } = self;
        let elements = ahead.kernel.group_len(1);
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
    /// For each panel, its packed bytes; panels stand in the order of their sums.
    pub panels: Vec<&'a [u8]>,
    /// What this thread will most likely stream next, panel for panel; empty if that is not known.
    pub next: Vec<&'a [u8]>,
    /// A page for each panel, to expand into.
    pub ring: &'a mut [K::Block],
    /// For each panel, the sums of every row; garbage at first.
    pub sums: &'a mut [Lanes],
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

/// Memory for expanded panels. Each panel begins at the same place of a page, and the slab of every second stage half a
/// page on: so a load from one stage rarely has the low 12 address bits of a store to the next that is still under way,
/// which the processor would take for the same place, and wait.
pub(super) struct Slab<'a, B: Pod> {
    memory: Lease<'a, B>,
    start: usize,
    stride: usize,
}

const PAGE: usize = 4096;

/// A slab to read from.
pub(super) struct SlabView<'a, B> {
    blocks: &'a [B],
    stride: usize,
    pub panels: usize,
}

impl<'a, B: Pod> Slab<'a, B> {
    /// A slab of the given stage that can hold so many panels of so many blocks.
    pub(super) fn new(arena: &'a Arena, stage: usize, panels: usize, depth: usize) -> Result<Self> {
        let stride = depth.next_multiple_of((PAGE / size_of::<B>()).max(1));
        let start = stage % 2 * (PAGE / 2 / size_of::<B>());
        Ok(Self { memory: arena.take(start + panels * stride)?, start, stride })
    }

    /// All of its memory, from the first page on.
    pub(super) fn pages(&mut self) -> &mut [B] {
        &mut self.memory
    }

    /// The slab with so many panels in use.
    pub(super) fn view(&self, panels: usize) -> SlabView<'_, B> {
        SlabView { blocks: &self.memory[self.start..][..panels * self.stride], stride: self.stride, panels }
    }
}

impl<B> SlabView<'_, B> {
    /// The blocks of a panel, and what lies behind them.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &[B] {
        &self.blocks[panel * self.stride..(panel + 1) * self.stride]
    }
}

/// The dequantisation of a slab, block by block, so that it can be done between other things.
pub(super) struct Expansion<'a, K: Kernel> {
    pub kernel: &'a K,
    /// The panels that are not yet begun, and for each place in the slab.
    sources: Sources<'a>,
    out: &'a mut [K::Block],
    stride: usize,
    /// Blocks of each panel, blank ones included.
    depth: usize,
    remaining: usize,
    /// The panel under way: where its next block goes, what of its stream is left, and the blocks of the present chunk.
    place: usize,
    left: usize,
    stream: &'a [u8],
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

impl<'a, K: Kernel> Expansion<'a, K> {
    /// The expansion of these panels into a slab, each to so many blocks.
    pub(super) fn new(kernel: &'a K, sources: Sources<'a>, depth: usize, slab: &'a mut Slab<'_, K::Block>) -> Self {
        let remaining = sources.matrices.len() * sources.panels.len() * depth;
        let (stride, out) = (slab.stride, &mut slab.memory[slab.start..]);
        Self { kernel, sources, out, stride, depth, remaining, place: 0, left: 0, stream: &[], scales: &[], codes: &[] }
    }

    /// Nothing to expand.
    pub(super) fn nothing(kernel: &'a K) -> Self {
        let sources = Sources { matrices: &[], panels: 0..1, chunks: 0..0, next: 0 };
        let (stream, scales, codes) = (&[], &[], &[]);
        let out = &mut [];
        Self { kernel, sources, out, stride: 0, depth: 0, remaining: 0, place: 0, left: 0, stream, scales, codes }
    }

    /// Blocks that are not yet expanded.
    #[inline(always)]
    pub(super) fn remaining(&self) -> usize {
        self.remaining
    }

    /// Expands one more block, if any is left.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if self.scales.is_empty() {
            self.next_chunk();
        }
        if let ([scales, more_scales @ ..], [codes, more_codes @ ..]) = (self.scales, self.codes) {
            self.kernel.expand(scales, codes, &mut self.out[self.place]);
            (self.scales, self.codes) = (more_scales, more_codes);
            self.advance(1);
        }
    }

    #[inline(always)]
    fn advance(&mut self, blocks: usize) {
        self.place += blocks;
        self.left -= blocks;
        self.remaining -= blocks;
    }

    /// Goes to the next chunk, of the next panel if need be, and asks for what follows it in its stream. Blocks that have
    /// to be made up are made up here: blank ones behind the last, and those of a panel with fewer columns.
    #[inline(never)]
    fn next_chunk(&mut self) {
        while self.stream.is_empty() {
            self.out[self.place..self.place + self.left].fill(K::BLANK);
            self.advance(self.left);
            let Some(stretch) = self.sources.next() else { return };
            self.place = (self.sources.next - 1) * self.stride;
            self.left = self.depth;
            self.stream = stretch.bytes;
            if stretch.width < COLUMNS {
                self.expand_narrow(stretch);
            }
        }
        let blocks = CHUNK_BLOCKS.min(self.stream.len() / BLOCK_BYTES);
        let (chunk, stream) = self.stream.split_at(blocks * BLOCK_BYTES);
        prefetch_stream(chunk);
        let (scales, codes) = chunk.split_at(blocks * COLUMNS);
        (self.scales, self.codes, self.stream) = (scales.as_chunks().0, codes.as_chunks().0, stream);
    }

    /// Expands all of a panel that has fewer columns.
    #[cold]
    fn expand_narrow(&mut self, stretch: Stretch<'a>) {
        for chunk in stretch.bytes.chunks(CHUNK_BYTES / COLUMNS * stretch.width) {
            let (wide, blocks) = pack::widened(chunk, stretch.width);
            let (scales, codes) = wide[..blocks * BLOCK_BYTES].split_at(blocks * COLUMNS);
            for (scales, codes) in scales.as_chunks().0.iter().zip(codes.as_chunks().0) {
                self.kernel.expand(scales, codes, &mut self.out[self.place]);
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
    pub out: &'a SharedTarget<'a>,
    /// Room for a row of the tile, where rows are to be finished before they are written.
    pub staging: Option<&'a mut [Lanes]>,
}

impl Finish<'_> {
    /// Scales, gates, rounds and stores every token of the tile, 16 columns at a time: panel after panel, or row after
    /// row where there is room to gather one. Inlined into each instruction set's own function, with its way to round to
    /// half precision, so that the loops become its vector code.
    #[inline(always)]
    pub(super) fn write(mut self, half: impl Fn(&[f32; COLUMNS]) -> [f16; COLUMNS]) {
        let scales = self.alpha.map(Scale::new);
        let panels = self.columns.len().div_ceil(COLUMNS);
        match self.staging.take() {
            None => {
                for panel in 0..panels {
                    let sums = [self.gate.panel(panel), self.up.panel(panel)];
                    for index in 0..self.tokens.len() {
                        self.store(index, panel, &self.result(&scales, index, sums), &half);
                    }
                }
            }
            Some(row) => {
                for index in 0..self.tokens.len() {
                    for (panel, lanes) in row[..panels].iter_mut().enumerate() {
                        lanes.0 = self.result(&scales, index, [self.gate.panel(panel), self.up.panel(panel)]);
                    }
                    for (panel, lanes) in row[..panels].iter().enumerate() {
                        self.store(index, panel, &lanes.0, &half);
                    }
                }
            }
        }
    }

    /// A token's results in one panel, of its gate sums and its up sums.
    #[inline(always)]
    fn result(&self, scales: &[Scale; 2], index: usize, [gate, up]: [&[Lanes]; 2]) -> [f32; COLUMNS] {
        let rows = index * self.parts..(index + 1) * self.parts;
        let mut result = scales[0].apply(&gate[rows.clone()]);
        if self.function != Gate::None {
            self.function.apply_rows(&mut result, &scales[1].apply(&up[rows]));
        }
        result
    }

    #[inline(always)]
    fn store(
        &self,
        index: usize,
        panel: usize,
        result: &[f32; COLUMNS],
        half: &impl Fn(&[f32; COLUMNS]) -> [f16; COLUMNS],
    ) {
        let start = self.columns.start + panel * COLUMNS;
        let columns = start..self.columns.end.min(start + COLUMNS);
        // SAFETY: the schedule cuts each group into tiles that do not overlap and hands each to one thread, and this is
        // a row of this tile, with columns of this tile only.
        unsafe { self.out.store(self.tokens.start + index, columns, result, half) };
    }
}

impl<'a> MatrixSums<'a> {
    /// The sums of a panel, by row.
    #[inline(always)]
    fn panel(&self, panel: usize) -> &'a [Lanes] {
        &self.sums[self.layout.panel_range(self.matrix, panel)]
    }
}

/// A factor that may be beyond f32, as three that are not: a number between ½ and 1, which can make no sum infinite, and two
/// powers of two.
#[derive(Clone, Copy)]
struct Scale([f32; 3]);

impl Scale {
    fn new(factor: f64) -> Self {
        if factor == 0.0 {
            return Self([0.0, 1.0, 1.0]);
        }
        let exponent = (exponent_of(factor) + 1).clamp(-2 * (LARGEST_POWER - 1), 2 * LARGEST_POWER);
        let [first, second] = two_powers(exponent);
        // What is still beyond f32 makes every sum infinite but zero, and so does the largest number that is not.
        let largest = f64::from(f32::MAX);
        Self([(factor * 2f64.powi(-exponent)).clamp(-largest, largest) as f32, first, second])
    }

    /// Adds up a token's rows and multiplies.
    #[inline(always)]
    fn apply(&self, rows: &[Lanes]) -> [f32; COLUMNS] {
        let Self([number, first, second]) = *self;
        let mut sums = rows[0].0;
        for row in &rows[1..] {
            sums.iter_mut().zip(row.0).for_each(|(sum, part)| *sum += part);
        }
        sums.map(|sum| sum * number * first * second)
    }
}
