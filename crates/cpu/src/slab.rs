//! Where expanded panels stand.

use bytemuck::Pod;

use super::memory::PAGE;

/// Memory for expanded panels. Each panel begins at the same place of a page, and the slab of every second stage half a
/// page on: so a load from one stage rarely has the low 12 address bits of a store to the next that is still under way,
/// which the processor would take for the same place, and wait.
pub(super) struct Slab<'a, B> {
    memory: &'a mut [B],
    start: usize,
    stride: usize,
}

/// A slab to read from.
pub(super) struct SlabView<'a, B> {
    blocks: &'a [B],
    stride: usize,
    pub panels: usize,
}

impl<'a, B: Pod> Slab<'a, B> {
    /// Blocks between the beginnings of two panels of so many blocks.
    fn stride(depth: usize) -> usize {
        depth.next_multiple_of((PAGE / size_of::<B>()).max(1))
    }

    /// Where the slab of a stage begins.
    fn start(stage: usize) -> usize {
        stage % 2 * (PAGE / 2 / size_of::<B>())
    }

    /// Memory that the slab of a stage needs for so many panels of so many blocks.
    pub(super) fn room(stage: usize, panels: usize, depth: usize) -> usize {
        Self::start(stage) + panels * Self::stride(depth)
    }

    /// The slab of the given stage in memory that begins at a page.
    pub(super) fn new(memory: &'a mut [B], stage: usize, depth: usize) -> Self {
        Self { memory, start: Self::start(stage), stride: Self::stride(depth) }
    }

    /// All of its memory, from the first page on.
    pub(super) fn pages(&mut self) -> &mut [B] {
        self.memory
    }

    /// Where its panels begin, one every so many blocks, to be written.
    pub(super) fn panels(&mut self) -> (&mut [B], usize) {
        (&mut self.memory[self.start..], self.stride)
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
