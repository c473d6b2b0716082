//! The groups of a launch, of either kind: those that the host knows stand in a table among the kernel's parameters,
//! and the experts of a layer, whose numbers of tokens only the device knows, in a layout in its memory.

use ptx::{Builder, ParamTable, Reg, U32};

use super::experts::{ExpertTiles, ExpertWork, Experts};
use super::owner::Owner;
use super::table::{BIAS_BYTES, COLUMNS_BYTES, RECORD_BYTES, ROUNDED_BYTES, locate};

/// Where groups are described.
pub(crate) enum Groups {
    Table(GroupTable),
    Experts(Box<ExpertWork>),
}

/// In a table among the arguments.
#[derive(Clone, Copy)]
pub(crate) struct GroupTable {
    records: ParamTable,
    /// Where each group's biases are, if sums have some.
    biases: Option<ParamTable>,
    /// What each group's rounded tokens and weights are multiplied with, if they are.
    rounded: Option<ParamTable>,
    /// Where the factors of each group's columns are, if they have some.
    columns: Option<ParamTable>,
    /// Records that there are.
    capacity: u32,
    /// Tiles of all groups.
    pub tiles: Reg<U32>,
}

impl Groups {
    /// Declares a kernel's parameters for so many groups, or for experts.
    pub fn declare(k: &mut Builder, capacity: u32, experts: Option<Experts>, tiles: ExpertTiles) -> Self {
        match experts {
            None => Groups::Table(GroupTable {
                records: k.table("groups", capacity * RECORD_BYTES / 4),
                biases: tiles.biased.then(|| k.table("biases", capacity * BIAS_BYTES / 4)),
                rounded: tiles.rounded.then(|| k.table("rounded", capacity * ROUNDED_BYTES / 4)),
                columns: tiles.by_column.then(|| k.table("columns", capacity * COLUMNS_BYTES / 4)),
                capacity,
                tiles: k.param("tiles"),
            }),
            Some(experts) => Groups::Experts(Box::new(ExpertWork::declare(k, tiles, experts))),
        }
    }

    /// Sets aside what the block keeps of a layout, behind everything else in shared memory.
    pub fn declare_layout(&mut self, k: &mut Builder) {
        if let Groups::Experts(work) = self {
            work.declare_layout(k);
        }
    }

    /// Every thread, in kernels that ask for weights before the launch before them ends: fetches the layout. Where that
    /// launch leaves it, it is waited for first, and only then may the next one begin, so that it knows the layout to
    /// be there. Where that launch has waited for the layout, it is there.
    pub fn fetch_layout(&self, k: &mut Builder, thread: Reg<U32>) {
        if let Groups::Experts(work) = self {
            if !work.knows_layout() {
                k.grid_dependency_wait();
            }
            k.launch_dependents();
            work.fetch(k, thread);
        }
    }
}

impl GroupTable {
    /// The group of a tile, its record, and as the tile's owner.
    pub fn locate(&self, k: &mut Builder, number: Reg<U32>) -> (Reg<U32>, ParamTable, Owner) {
        let (group, record) = locate(k, self.records, self.capacity, number);
        (group, record, self.owner(k, group, record))
    }

    /// The record of a group, and the group as a tile's owner.
    pub fn group(&self, k: &mut Builder, group: Reg<U32>) -> (ParamTable, Owner) {
        let record = if self.capacity == 1 { self.records } else { k.table_row(self.records, group, RECORD_BYTES) };
        (record, self.owner(k, group, record))
    }

    fn owner(&self, k: &mut Builder, group: Reg<U32>, record: ParamTable) -> Owner {
        let mut row = |all, bytes| if self.capacity == 1 { all } else { k.table_row(all, group, bytes) };
        let biases = self.biases.map(|all| row(all, BIAS_BYTES));
        let rounded = self.rounded.map(|all| row(all, ROUNDED_BYTES));
        let columns = self.columns.map(|all| row(all, COLUMNS_BYTES));
        Owner::Group { record, biases, rounded, columns }
    }
}
