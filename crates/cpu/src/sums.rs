//! Where sums stand between products.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::pack::COLUMNS;

/// The sums of one prepared row for the columns of one panel.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub [f32; COLUMNS]);

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

impl<'a> MatrixSums<'a> {
    /// The sums of a panel, by row.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &'a [Lanes] {
        &self.sums[self.layout.panel_range(self.matrix, panel)]
    }
}
