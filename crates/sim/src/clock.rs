//! Who knows what has happened.
//!
//! Every source of memory accesses has a *slot*: each thread, each warpgroup's tensor-core queue, each barrier's incoming
//! bytes, each thread's bulk stores. A slot counts upwards; an access is stamped with its slot's count. A [`Clock`] says, for
//! each slot, up to which count its owner knows the work to be done: an access is ordered before an observer exactly
//! if the observer's clock has reached its stamp. Clocks travel through barriers, fences and flags, by taking the larger count
//! slot by slot.
//!
//! Slots are numbered within a cluster of blocks, where nearly all synchronisation happens; what is known of other
//! clusters (through flags in global memory) is kept beside, and is usually nothing.

use std::ops::Range;

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

    /// The count known of a slot.
    pub(crate) fn get(&self, cluster: u32, slot: u32) -> u32 {
        let counts = if cluster == self.cluster {
            &self.home
        } else {
            match self.abroad.iter().find(|(of, _)| *of == cluster) {
                Some((_, counts)) => counts,
                None => return 0,
            }
        };
        counts.get(slot as usize).copied().unwrap_or(0)
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
        for lane in crate::lanes::lanes(lanes) {
            self.raise(first + lane as u32, count);
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

/// What a thread knows, in four grades. They differ because a synchronisation may order threads without ordering what the
/// copy engine and the tensor cores, which reach memory by another way (the *async proxy*), see of their writes.
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
