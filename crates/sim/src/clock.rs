//! Who knows what has happened.
//!
//! Every source of memory accesses has a *slot*: each thread, each warpgroup's tensor-core queue, each barrier's
//! incoming bytes, each thread's bulk stores. A slot counts upwards; an access is stamped with its slot's count. A
//! [`Clock`] says, for each slot, up to which count its owner knows the work to be done: an access is ordered before an
//! observer exactly if the observer's clock has reached its stamp. Clocks travel through barriers, fences and flags, by
//! taking the larger count slot by slot.
//!
//! Slots are numbered within a cluster of blocks, where nearly all synchronisation happens; what is known of other
//! clusters (through flags in global memory) is kept beside, and is usually nothing.

use std::cell::Cell;
use std::ops::Range;

use crate::lanes::FULL;

/// Slot of the grid before this one.
pub(crate) const PREDECESSOR: u32 = 0;

/// Counts known, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    cluster: u32,
    home: Vec<u32>,
    abroad: Vec<(u32, Vec<u32>)>,
}

fn raise(counts: &mut Vec<u32>, slot: u32, count: u32) {
    let slot = slot as usize;
    if counts.len() <= slot {
        counts.resize(slot + 1, 0);
    }
    counts[slot] = counts[slot].max(count);
}

fn join(counts: &mut Vec<u32>, other: &[u32]) {
    if counts.len() < other.len() {
        counts.resize(other.len(), 0);
    }
    for (mine, theirs) in counts.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

impl Clock {
    /// A clock of a cluster's thread that knows nothing.
    pub(crate) fn new(cluster: u32) -> Self {
        Clock { cluster, home: Vec::new(), abroad: Vec::new() }
    }

    /// The counts known of a cluster's slots.
    fn counts(&self, cluster: u32) -> &[u32] {
        if cluster == self.cluster {
            return &self.home;
        }
        self.abroad.iter().find(|(of, _)| *of == cluster).map_or(&[], |(_, counts)| counts)
    }

    /// The count known of a slot.
    pub(crate) fn get(&self, cluster: u32, slot: u32) -> u32 {
        self.counts(cluster).get(slot as usize).copied().unwrap_or(0)
    }

    /// Whether the threads of `lanes`, whose slots start at `first`, are known to have reached a count.
    pub(crate) fn reached(&self, cluster: u32, first: u32, lanes: u32, count: u32) -> bool {
        let counts = self.counts(cluster);
        match counts.get(first as usize..first as usize + 32) {
            // Without a way out in between, all lanes are compared at once.
            Some(counts) if lanes == FULL => counts.iter().fold(true, |all, known| all & (*known >= count)),
            _ => {
                crate::lanes::lanes(lanes).all(|lane| counts.get(first as usize + lane).copied().unwrap_or(0) >= count)
            }
        }
    }

    /// Forgets everything, and becomes one of a cluster's.
    pub(crate) fn restart(&mut self, cluster: u32) {
        self.cluster = cluster;
        self.home.clear();
        self.abroad.clear();
    }

    /// Whether anything is known of these slots of the own cluster.
    pub(crate) fn any(&self, slots: &Range<u32>) -> bool {
        let end = self.home.len().min(slots.end as usize);
        self.home.get(slots.start as usize..end).is_some_and(|counts| counts.iter().any(|count| *count > 0))
    }

    /// Forgets what is known of some slots of the own cluster, and of other clusters.
    pub(crate) fn forget(&mut self, slots: &Range<u32>) {
        let end = self.home.len().min(slots.end as usize);
        if let Some(counts) = self.home.get_mut(slots.start as usize..end) {
            counts.fill(0);
        }
        self.abroad.clear();
    }

    /// Learns that a slot of the own cluster has reached a count.
    pub(crate) fn raise(&mut self, slot: u32, count: u32) {
        raise(&mut self.home, slot, count);
    }

    /// Learns that the threads of `lanes`, whose slots start at `first`, have reached a count.
    pub(crate) fn raise_lanes(&mut self, first: u32, lanes: u32, count: u32) {
        let (first, end) = (first as usize, first as usize + 32);
        let needed = end - lanes.leading_zeros() as usize;
        if lanes != 0 && self.home.len() < needed {
            self.home.resize(needed, 0);
        }
        if lanes == FULL {
            self.home[first..end].iter_mut().for_each(|known| *known = (*known).max(count));
        } else {
            crate::lanes::lanes(lanes).for_each(|lane| self.home[first + lane] = self.home[first + lane].max(count));
        }
    }

    /// Learns all that another clock knows.
    pub(crate) fn join(&mut self, other: &Clock) {
        self.join_part(other.cluster, &other.home);
        for (cluster, counts) in &other.abroad {
            self.join_part(*cluster, counts);
        }
    }

    fn join_part(&mut self, cluster: u32, counts: &[u32]) {
        if cluster == self.cluster {
            return join(&mut self.home, counts);
        }
        if counts.is_empty() {
            return;
        }
        match self.abroad.iter_mut().find(|(of, _)| *of == cluster) {
            Some((_, mine)) => join(mine, counts),
            None => self.abroad.push((cluster, counts.to_vec())),
        }
    }
}

/// What a thread knows, in four grades. They differ because a synchronisation may order threads without ordering what
/// the copy engine and the tensor cores, which reach memory by another way (the *async proxy*), see of their writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// Accesses whose effects this thread sees.
    pub(crate) generic: Clock,
    /// Accesses that have been executed: enough to overwrite what they read. Relaxed barriers carry only this.
    pub(crate) executed: Clock,
    /// Generic accesses to shared memory that asynchronous work issued by this thread sees.
    pub(crate) async_shared: Clock,
    /// The same for global memory.
    pub(crate) async_global: Clock,
    /// Accesses to tensor memory that this thread's own come after. It is the thread's own business: the tcgen05 fences
    /// exchange it with what is known in general.
    pub(crate) tensor: Clock,
}

impl Knowledge {
    pub(crate) fn new(cluster: u32) -> Self {
        let clock = Clock::new(cluster);
        Knowledge {
            generic: clock.clone(),
            executed: clock.clone(),
            async_shared: clock.clone(),
            async_global: clock.clone(),
            tensor: clock,
        }
    }

    /// Forgets everything, and keeps the memory for what is learnt next.
    pub(crate) fn restart(&mut self, cluster: u32) {
        [&mut self.generic, &mut self.executed, &mut self.async_shared, &mut self.async_global, &mut self.tensor]
            .into_iter()
            .for_each(|clock| clock.restart(cluster));
    }

    /// Learns what another thread has published.
    pub(crate) fn join(&mut self, other: &Knowledge) {
        self.generic.join(&other.generic);
        self.executed.join(&other.executed);
        self.async_shared.join(&other.async_shared);
        self.async_global.join(&other.async_global);
    }

    /// Learns that work beside the threads (a copy, a multiplication) has reached a count.
    pub(crate) fn raise(&mut self, slot: u32, count: u32) {
        self.generic.raise(slot, count);
        self.executed.raise(slot, count);
    }
}

/// Records of which a warp knows every lane's write, and every lane's read, to be ordered before whatever it does: some
/// that were found to be so. Knowledge grows, so they remain so, until their names are given to others.
#[derive(Clone, Debug)]
pub(crate) struct Cleared([[Cell<u32>; Self::PLACES]; 2]);

impl Default for Cleared {
    fn default() -> Self {
        Cleared([const { [const { Cell::new(0) }; Cleared::PLACES] }; 2])
    }
}

impl Cleared {
    const PLACES: usize = 64;

    pub(crate) fn holds(&self, record: u32, is_read: bool) -> bool {
        self.0[usize::from(is_read)][record as usize % Self::PLACES].get() == record
    }

    pub(crate) fn add(&self, record: u32, is_read: bool) {
        self.0[usize::from(is_read)][record as usize % Self::PLACES].set(record);
    }

    /// Names of records are about to be used again.
    pub(crate) fn forget(&self) {
        self.0.iter().flatten().for_each(|place| place.set(0));
    }
}
