//! The log of accesses: who made them, and when they were done.

use ptx::Scope;

use crate::flag::Agent;

/// The way to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// Loads and stores of threads.
    Generic,
    /// The copy engine and the tensor cores.
    Async,
}

/// Stamp of an asynchronous operation that has not completed.
pub(crate) const IN_FLIGHT: u32 = u32::MAX;

/// One access, by one instruction of one warp.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) cluster: u32,
    /// Block within its cluster.
    pub(crate) block: u32,
    pub(crate) warp: u32,
    pub(crate) lanes: u32,
    pub(crate) pc: u32,
    /// Slot of lane 0 for accesses of threads; the operation's slot otherwise.
    pub(crate) slot: u32,
    /// Count at which the access is done.
    pub(crate) count: u32,
    pub(crate) proxy: Proxy,
    /// Whether the access belongs to an asynchronous operation, whichever way it reaches memory.
    pub(crate) detached: bool,
    /// Whether each lane's part of an asynchronous operation is counted in a slot of its own, from the record's on.
    pub(crate) by_lane: bool,
    /// The scope of an access that is strong: two of these do not race if each is in the other's.
    pub(crate) strong: Option<Scope>,
}

impl Record {
    /// Whether two accesses are strong, and in each other's scope.
    pub(super) fn strong_with(&self, other: &Record) -> bool {
        let agent = |record: &Record| Agent { cluster: record.cluster, block: record.block };
        match (self.strong, other.strong) {
            (Some(mine), Some(others)) => agent(self).mutual(mine, agent(other), others),
            _ => false,
        }
    }
}

/// The accesses that some memory remembers. Records are named by their position, from one; when there are many, those
/// that nobody remembers any more are found, and their places used again.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    records: Vec<Record>,
    /// Places that may be used again.
    free: Vec<u32>,
    /// Records at which it is time to look for some.
    limit: usize,
    /// The first cluster of each grid so far. What came before all of them counts as grid 0, so they are numbered from
    /// 1.
    grids: Vec<u32>,
    /// The first grid that those know to be over who have waited for this one's predecessor. A grid that has waited
    /// ends after the one before it; one that has not may end earlier.
    reach: usize,
    /// The first grid of which a thread of this one knows nothing from the start: a predecessor that lets others in
    /// only once it has waited has begun what it does behind the grids before it, and so have they.
    granted: usize,
}

impl Default for Log {
    fn default() -> Self {
        Log { records: Vec::new(), free: Vec::new(), limit: Self::LEAST, grids: vec![0], reach: 0, granted: 0 }
    }
}

impl Log {
    /// Records below which it is not worth looking.
    const LEAST: usize = 1 << 18;
    /// Records that can be told apart, less what may come between two looks.
    pub(crate) const MOST: usize = 1 << 25;

    pub(crate) fn add(&mut self, record: Record) -> RecordId {
        if let Some(place) = self.free.pop() {
            self.records[place as usize] = record;
            return RecordId(place + 1);
        }
        self.records.push(record);
        RecordId(self.records.len() as u32)
    }

    /// Goes on to the next grid, whose clusters are numbered from `first`. `waited` is whether the one that has ended
    /// waited for its predecessor, and `hasty` whether one of its blocks let the next grid begin before it had.
    pub(crate) fn succeed(&mut self, first: u32, waited: bool, hasty: bool) {
        if !waited {
            self.reach = self.grids.len();
        }
        // A grid that lets others in before it has waited has begun behind those of which it knew from the start.
        if waited && !hasty {
            self.granted = self.grids.len();
        }
        self.grids.push(first);
    }

    /// The grid that made an access, unless it is the one that runs.
    pub(super) fn earlier(&self, record: &Record) -> Option<usize> {
        if self.grids.last().is_some_and(|first| *first <= record.cluster) {
            return None;
        }
        Some(self.grids.partition_point(|first| *first <= record.cluster))
    }

    /// Whether a thread knows a grid before its own to be over, having waited for the one before or not.
    pub(super) fn is_over(&self, grid: usize, waited: bool) -> bool {
        grid >= self.reach && (waited || grid < self.granted)
    }

    /// Whether it is time to look for records that nobody remembers.
    pub(crate) fn crowded(&self) -> bool {
        self.free.is_empty() && self.records.len() >= self.limit
    }

    /// One flag per record, to be set for those that are remembered.
    pub(crate) fn nobody(&self) -> Remembered {
        Remembered(vec![false; self.records.len()])
    }

    /// Keeps what is remembered. Says how much that is.
    pub(crate) fn sweep(&mut self, remembered: &Remembered) -> usize {
        let forgotten = remembered.0.iter().enumerate().filter(|(_, kept)| !**kept);
        self.free = forgotten.map(|(place, _)| place as u32).collect();
        let kept = self.records.len() - self.free.len();
        self.limit = self.records.len().max(2 * kept).clamp(Self::LEAST, Self::MOST);
        kept
    }

    /// All of them, to be changed.
    pub(crate) fn records_mut(&mut self) -> &mut [Record] {
        &mut self.records
    }

    pub(crate) fn get(&self, id: RecordId) -> &Record {
        &self.records[id.0 as usize - 1]
    }

    /// Settles when an asynchronous access is done.
    pub(crate) fn complete(&mut self, id: RecordId, slot: u32, count: u32) {
        let record = &mut self.records[id.0 as usize - 1];
        (record.slot, record.count) = (slot, count);
    }
}

/// Name of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordId(pub(super) u32);

/// Which records are remembered.
pub(crate) struct Remembered(Vec<bool>);

impl Remembered {
    pub(crate) fn keep(&mut self, id: RecordId) {
        self.0[id.0 as usize - 1] = true;
    }

    pub(super) fn keep_mark(&mut self, mark: Mark) {
        if !mark.is_none() {
            self.keep(mark.record());
        }
    }
}

/// A record and a lane of it (or all), in one word; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(pub(super) u32);

pub(super) const EVERY_LANE: u32 = 63;

impl Mark {
    pub(super) fn new(record: RecordId, lane: Option<u32>) -> Self {
        Mark(record.0 << 6 | lane.unwrap_or(EVERY_LANE))
    }

    pub(super) fn record(self) -> RecordId {
        RecordId(self.0 >> 6)
    }

    pub(super) fn lane(self) -> u32 {
        self.0 & 63
    }

    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pc: u32) -> Record {
        let (cluster, block, warp, lanes, slot, count) = (0, 0, 0, 1, 1, 1);
        let (proxy, detached, by_lane, strong) = (Proxy::Generic, false, false, None);
        Record { cluster, block, warp, lanes, pc, slot, count, proxy, detached, by_lane, strong }
    }

    #[test]
    fn the_log_forgets_what_nobody_remembers_and_keeps_the_rest() {
        let mut log = Log::default();
        let ids: Vec<RecordId> = (0..Log::LEAST as u32).map(|pc| log.add(record(pc))).collect();
        assert!(log.crowded());
        let mut remembered = log.nobody();
        remembered.keep(ids[7]);
        assert_eq!(log.sweep(&remembered), 1);
        for pc in 0..Log::LEAST as u32 - 1 {
            assert!(!log.crowded());
            assert_ne!(log.add(record(pc)), ids[7]);
        }
        assert!(log.crowded() && log.records.len() == Log::LEAST);
        assert_eq!(log.get(ids[7]).pc, 7);
    }
}
