//! The columns of a multiprocessor's tensor memory: those of all blocks that it holds. What is in them is each block's
//! own business, since nobody may read what another has left there; who has which is not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::tensor_memory::COLUMNS;

/// Who has which columns of one multiprocessor.
pub(crate) type Columns = Rc<RefCell<Vec<Lease>>>;

/// Columns of one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// Its cluster, and its rank in that.
    tenant: (u32, usize),
    column: u32,
    columns: u32,
    /// Whether the block has them; else the other one of its pair has allocated them for both.
    taken: bool,
}

/// Copies of who has what, by where the originals are: blocks that share a multiprocessor share its copy, and with
/// nobody else.
#[derive(Default)]
pub(crate) struct Copies(BTreeMap<*const RefCell<Vec<Lease>>, Columns>);

impl Copies {
    pub(crate) fn of(&mut self, original: &Columns) -> Columns {
        let copy = || Rc::new(RefCell::new(original.borrow().clone()));
        Rc::clone(self.0.entry(Rc::as_ptr(original)).or_insert_with(copy))
    }
}

/// A block on its multiprocessor, and where the other one of its pair is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tenancy {
    name: (u32, usize),
    own: Columns,
    partners: Option<Columns>,
}

impl Tenancy {
    /// A block of a cluster whose blocks are on these multiprocessors, by rank.
    pub(crate) fn new(multiprocessors: &[Columns], cluster: u32, rank: usize) -> Self {
        let of = |rank: usize| multiprocessors.get(rank).map(Rc::clone);
        Tenancy { name: (cluster, rank), own: of(rank).unwrap_or_default(), partners: of(rank ^ 1) }
    }

    /// The same block on a copy of its multiprocessor.
    pub(crate) fn copied(&self, copies: &mut Copies) -> Self {
        let partners = self.partners.as_ref().map(|partners| copies.of(partners));
        Tenancy { name: self.name, own: copies.of(&self.own), partners }
    }

    /// The first column of what the other block of its pair has allocated for this one.
    fn reserved(&self, columns: u32) -> Option<u32> {
        let own = self.own.borrow();
        let lease = own.iter().find(|lease| lease.tenant == self.name && !lease.taken && lease.columns == columns);
        lease.map(|lease| lease.column)
    }

    /// The runs of so many columns, aligned to their size, that the block can have, of a pair on both multiprocessors.
    pub(crate) fn places(&self, columns: u32, pair: bool) -> Vec<u32> {
        if let Some(reserved) = self.reserved(columns).filter(|_| pair) {
            return vec![reserved];
        }
        let tables: Vec<&Columns> = std::iter::once(&self.own).chain(self.partners.iter().filter(|_| pair)).collect();
        let free = |start: &u32| {
            let apart = |lease: &Lease| lease.column + lease.columns <= *start || start + columns <= lease.column;
            tables.iter().all(|table| table.borrow().iter().all(apart))
        };
        (0..COLUMNS / columns).map(|i| i * columns).filter(free).collect()
    }

    /// The block takes columns, and where it is of a pair the other one will have the same.
    pub(crate) fn take(&self, column: u32, columns: u32, pair: bool) {
        let (cluster, rank) = self.name;
        let reserved = pair && self.reserved(columns) == Some(column);
        let mut own = self.own.borrow_mut();
        if reserved {
            let lease = own.iter_mut().find(|lease| (lease.tenant, lease.column) == (self.name, column));
            lease.into_iter().for_each(|lease| lease.taken = true);
            return;
        }
        own.push(Lease { tenant: self.name, column, columns, taken: true });
        if let Some(partners) = self.partners.as_ref().filter(|_| pair) {
            partners.borrow_mut().push(Lease { tenant: (cluster, rank ^ 1), column, columns, taken: false });
        }
    }

    /// The block gives columns back.
    pub(crate) fn give_back(&self, column: u32) {
        self.own.borrow_mut().retain(|lease| (lease.tenant, lease.column) != (self.name, column));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_multiprocessor_do_not_get_each_others_columns() {
        let multiprocessor = [Columns::default()];
        let [first, second] = [3, 4].map(|cluster| Tenancy::new(&multiprocessor, cluster, 0));
        first.take(0, 32, false);
        assert_eq!(second.places(32, false)[0], 32);
        assert_eq!(second.places(128, false), [128, 256, 384]);
        assert!(second.places(512, false).is_empty());
        first.give_back(0);
        assert_eq!(second.places(512, false), [0]);
    }

    #[test]
    fn copies_share_a_multiprocessor_with_each_other_and_not_with_the_originals() {
        let multiprocessor = [Columns::default()];
        let originals = [3, 4].map(|cluster| Tenancy::new(&multiprocessor, cluster, 0));
        originals[0].take(0, 32, false);
        let mut copies = Copies::default();
        let [first, second] = originals.each_ref().map(|original| original.copied(&mut copies));
        first.take(32, 32, false);
        assert_eq!(second.places(32, false)[0], 64);
        assert_eq!(originals[1].places(32, false)[0], 32);
    }

    #[test]
    fn the_blocks_of_a_pair_get_the_same_columns() {
        let multiprocessors = [Columns::default(), Columns::default()];
        let block = |cluster, rank| Tenancy::new(&multiprocessors, cluster, rank);
        block(7, 1).take(0, 256, false);
        assert_eq!(block(8, 0).places(128, true), [256, 384], "of what is free on both");
        block(8, 0).take(256, 128, true);
        assert_eq!(block(8, 1).places(128, true), [256]);
        block(8, 1).take(256, 128, true);
        assert_eq!(block(9, 1).places(128, true), [384]);
    }
}
