//! Where expanded panels stand.

use bytemuck::Pod;
use op::Result;

use super::memory::{Arena, Lease};

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
