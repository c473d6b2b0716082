//! Races: two accesses to the same bytes, at least one a write, of which neither is known to have happened before the other.
//!
//! Every access is a [`Record`] in a log; every unit of memory (the smallest access the kernel makes, at most 16 bytes)
//! remembers the record of its last write and of the reads since. An access is checked against these with the clocks of
//! whoever makes it, so a race is reported whatever the order in which the two happened to run.
//!
//! What an asynchronous operation touches is checked and remembered when it is *issued*; until its completion is known, its
//! stamp is out of everyone's reach, so touching those bytes is a race at any time before.

use ptx::Scope;

use crate::clock::{Clock, Knowledge, PREDECESSOR};
use crate::flag::Agent;
use crate::lanes::lanes;
use crate::limits::Rules;
use crate::warp::Copies;

/// A copy or a multiplication, as far as others are ordered behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Copy,
    /// By the accumulator's first column, and columns.
    Multiply(u32, u32),
}

impl Piece {
    /// Whether the ISA lists the pair as pipelined: this one is done before another that the same thread issues later.
    pub(crate) fn precedes(self, later: Piece) -> bool {
        match self {
            Piece::Copy => matches!(later, Piece::Multiply(..)),
            Piece::Multiply(..) => self == later,
        }
    }
}

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
    fn strong_with(&self, other: &Record) -> bool {
        let agent = |record: &Record| Agent { cluster: record.cluster, block: record.block };
        match (self.strong, other.strong) {
            (Some(mine), Some(others)) => agent(self).mutual(mine, agent(other), others),
            _ => false,
        }
    }
}

/// The accesses that some memory remembers. Records are named by their position, from one; when there are many, those that
/// nobody remembers any more are found, and their places used again.
#[derive(Debug)]
pub(crate) struct Log {
    records: Vec<Record>,
    /// Places that may be used again.
    free: Vec<u32>,
    /// Records at which it is time to look for some.
    limit: usize,
    /// The first cluster of each grid so far. What came before all of them counts as grid 0, so they are numbered from 1.
    grids: Vec<u32>,
    /// The first grid that those know to be over who have waited for this one's predecessor. A grid that has waited ends after
    /// the one before it; one that has not may end earlier.
    reach: usize,
    /// The first grid of which a thread of this one knows nothing from the start: a predecessor that lets others in only once it has
    /// waited has begun what it does behind the grids before it, and so have they.
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

    /// Goes on to the next grid, whose clusters are numbered from `first`. `waited` is whether the one that has ended waited for
    /// its predecessor, and `hasty` whether one of its blocks let the next grid begin before it had.
    pub(crate) fn succeed(&mut self, first: u32, waited: bool, hasty: bool) {
        if !waited {
            self.reach = self.grids.len();
        }
        self.granted = if waited && !hasty { self.grids.len() } else { 0 };
        self.grids.push(first);
    }

    /// The grid that made an access, unless it is the one that runs.
    fn earlier(&self, record: &Record) -> Option<usize> {
        let grid = self.grids.partition_point(|first| *first <= record.cluster);
        (grid < self.grids.len()).then_some(grid)
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
pub(crate) struct RecordId(u32);

/// Which records are remembered.
pub(crate) struct Remembered(Vec<bool>);

impl Remembered {
    pub(crate) fn keep(&mut self, id: RecordId) {
        self.0[id.0 as usize - 1] = true;
    }

    fn keep_mark(&mut self, mark: Mark) {
        if !mark.is_none() {
            self.keep(mark.record());
        }
    }
}

/// A record and a lane of it (or all), in one word; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark(u32);

const EVERY_LANE: u32 = 63;

impl Mark {
    fn new(record: RecordId, lane: Option<u32>) -> Self {
        Mark(record.0 << 6 | lane.unwrap_or(EVERY_LANE))
    }

    fn record(self) -> RecordId {
        RecordId(self.0 >> 6)
    }

    fn lane(self) -> u32 {
        self.0 & 63
    }

    fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Who makes an access, and what it knows.
pub(crate) struct Observer<'a> {
    pub(crate) knowledge: &'a Knowledge,
    pub(crate) cluster: u32,
    /// Slot of lane 0 of the warp.
    pub(crate) slot: u32,
    /// The lane, or `None` for the warp as a whole.
    pub(crate) lane: Option<u32>,
    /// What the warp's threads have copied one by one.
    pub(crate) copies: &'a Copies,
    /// Record of the access itself.
    pub(crate) record: RecordId,
    pub(crate) proxy: Proxy,
    pub(crate) global: bool,
    /// Whether the access is an asynchronous write.
    pub(crate) replaces: bool,
    /// Whether the memory is tensor memory.
    pub(crate) tensor: bool,
    /// The pipeline that this access belongs to: its slot, what it was given, and what this is.
    pub(crate) pipe: Option<(u32, &'a [Piece], Piece)>,
    pub(crate) rules: Rules,
}

impl Observer<'_> {
    /// Whether the preceding grid is known to have ended.
    fn waited(&self) -> bool {
        self.knowledge.generic.get(self.cluster, PREDECESSOR) > 0
    }

    /// Whether what came before all grids is known to be over.
    pub(crate) fn knows_origin(&self, log: &Log) -> bool {
        log.reach == 0 && (self.waited() || log.granted > 0)
    }

    /// Whether the marked access is ordered before this one. In practice, of a read it is enough that it was executed.
    fn knows(&self, log: &Log, mark: Mark, is_read: bool) -> bool {
        let record = log.get(mark.record());
        if mark.record() == self.record {
            // Lanes of one instruction: two of them writing the same bytes is a race, one of them is not.
            return mark.lane() == self.lane.unwrap_or(EVERY_LANE);
        }
        if let Some(grid) = log.earlier(record) {
            return grid >= log.reach && (self.waited() || grid < log.granted);
        }
        // In practice, a finished copy may be overwritten by another one as soon as it is known to be over: nobody's view is
        // involved.
        let letter = self.rules == Rules::Letter;
        let over = !letter && (is_read || record.detached && self.replaces);
        let clock = match (self.tensor, over) {
            (true, _) => &self.knowledge.tensor,
            (false, true) => &self.knowledge.executed,
            (false, false) => &self.knowledge.generic,
        };
        if let Some((slot, pieces, piece)) = self.pipe
            && record.detached
            && (record.slot, record.cluster) == (slot, self.cluster)
            && pieces[record.count as usize - 1].precedes(piece)
        {
            return true;
        }
        let who = if mark.lane() == EVERY_LANE { record.lanes } else { 1 << mark.lane() };
        if record.by_lane {
            let mine = (record.cluster, record.slot) == (self.cluster, self.copies.slot);
            let awaited =
                |lane: usize| mine && self.lane == Some(lane as u32) && self.copies.awaited[lane] >= record.count;
            let told = |lane: usize| clock.get(record.cluster, record.slot + lane as u32) >= record.count;
            return lanes(who).all(|lane| awaited(lane) || told(lane));
        }
        if record.detached {
            return record.count != IN_FLIGHT && clock.get(record.cluster, record.slot) >= record.count;
        }
        let seen = |clock: &Clock, lane: usize| clock.get(record.cluster, record.slot + lane as u32) >= record.count;
        let fenced = if self.global { &self.knowledge.async_global } else { &self.knowledge.async_shared };
        let mine = record.cluster == self.cluster && record.slot == self.slot;
        lanes(who).all(|lane| {
            let ordered = mine && self.lane == Some(lane as u32) || seen(clock, lane);
            ordered && (self.proxy == Proxy::Generic || is_read && !letter || seen(fenced, lane))
        })
    }
}

impl Observer<'_> {
    /// Whether the marked read was made by lanes that all execute this instruction, too: what comes after this one comes
    /// after that one. (Counting all lanes of this instruction as readers errs on the side of a race.)
    fn supersedes(&self, log: &Log, mark: Mark) -> bool {
        let (old, new) = (log.get(mark.record()), log.get(self.record));
        let who = if mark.lane() == EVERY_LANE { old.lanes } else { 1 << mark.lane() };
        !old.detached && !new.detached && (old.cluster, old.slot) == (new.cluster, new.slot) && who & !new.lanes == 0
    }
}

/// The other side of a race.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) record: RecordId,
    pub(crate) was_write: bool,
    /// First byte of the unit in question.
    pub(crate) byte: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Mark,
    /// The last write that was not strong, if strong ones came after it: they are ordered neither by nor against each other,
    /// so it must be remembered for itself.
    plain: Mark,
    read: Mark,
    /// Further unordered readers: position in `Shadow::crowds`, from one.
    crowd: u32,
}

/// The accesses to one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    shift: u32,
    cells: Vec<Cell>,
    crowds: Vec<Vec<Mark>>,
}

impl Shadow {
    /// For `bytes` bytes, told apart in units of `unit` bytes.
    pub(crate) fn new(bytes: usize, unit: u32) -> Self {
        let shift = unit.trailing_zeros();
        Shadow { shift, cells: vec![Cell::default(); bytes.div_ceil(unit as usize)], crowds: Vec::new() }
    }

    fn units(&self, start: usize, bytes: usize) -> std::ops::Range<usize> {
        start >> self.shift..(start + bytes).div_ceil(1 << self.shift).min(self.cells.len())
    }

    /// Notes a read.
    pub(crate) fn read(&mut self, log: &Log, who: &Observer<'_>, start: usize, bytes: usize) -> Result<(), Conflict> {
        let mark = Mark::new(who.record, who.lane);
        let mine = log.get(who.record);
        let mut cleared = Mark::default();
        for unit in self.units(start, bytes) {
            let cell = &mut self.cells[unit];
            if !cell.write.is_none() && cell.write != cleared {
                let ordered = mine.strong_with(log.get(cell.write.record())) || who.knows(log, cell.write, false);
                if !ordered {
                    return Err(Conflict { record: cell.write.record(), was_write: true, byte: unit << self.shift });
                }
                cleared = cell.write;
            }
            if !cell.plain.is_none() && !who.knows(log, cell.plain, false) {
                return Err(Conflict { record: cell.plain.record(), was_write: true, byte: unit << self.shift });
            }
            if cell.read.is_none() || cell.read == mark {
                cell.read = mark;
            } else if cell.read.record() == mark.record() || who.supersedes(log, cell.read) {
                cell.read = Mark::new(who.record, None);
            } else if who.knows(log, cell.read, true) {
                cell.read = mark;
            } else {
                Self::join_crowd(&mut self.crowds, cell, log, who);
            }
        }
        Ok(())
    }

    /// Several unordered readers: the newest in front, the others behind, those known to be over dropped.
    fn join_crowd(crowds: &mut Vec<Vec<Mark>>, cell: &mut Cell, log: &Log, who: &Observer<'_>) {
        if cell.crowd == 0 {
            crowds.push(Vec::new());
            cell.crowd = crowds.len() as u32;
        }
        let crowd = &mut crowds[cell.crowd as usize - 1];
        crowd.retain(|other| !who.knows(log, *other, true));
        crowd.push(cell.read);
        cell.read = Mark::new(who.record, who.lane);
    }

    /// Notes a write.
    pub(crate) fn write(&mut self, log: &Log, who: &Observer<'_>, start: usize, bytes: usize) -> Result<(), Conflict> {
        let mine = log.get(who.record);
        let strong = mine.strong.is_some();
        let race = |mark: Mark, was_write: bool, unit: usize, shift: u32| {
            let ordered = mine.strong_with(log.get(mark.record())) || who.knows(log, mark, !was_write);
            if ordered { Ok(()) } else { Err(Conflict { record: mark.record(), was_write, byte: unit << shift }) }
        };
        let (mut written, mut read) = (Mark::default(), Mark::default());
        for unit in self.units(start, bytes) {
            let cell = &mut self.cells[unit];
            if !cell.write.is_none() && cell.write != written {
                race(cell.write, true, unit, self.shift)?;
                written = cell.write;
            }
            if !cell.plain.is_none() {
                race(cell.plain, true, unit, self.shift)?;
            }
            if !cell.read.is_none() && cell.read != read {
                race(cell.read, false, unit, self.shift)?;
                read = cell.read;
            }
            if cell.crowd != 0 {
                for mark in &self.crowds[cell.crowd as usize - 1] {
                    race(*mark, false, unit, self.shift)?;
                }
            }
            if !strong {
                cell.plain = Mark::default();
                cell.read = Mark::default();
                if cell.crowd != 0 {
                    self.crowds[cell.crowd as usize - 1].clear();
                }
            } else if !cell.write.is_none() && log.get(cell.write.record()).strong.is_none() {
                cell.plain = cell.write;
            }
            cell.write = Mark::new(who.record, who.lane);
        }
        Ok(())
    }

    /// Forgets all accesses to some bytes.
    pub(crate) fn clear(&mut self, start: usize, bytes: usize) {
        let units = self.units(start, bytes);
        self.cells[units].fill(Cell::default());
    }

    /// Tells which records it remembers.
    pub(crate) fn remember(&self, remembered: &mut Remembered) {
        for cell in &self.cells {
            [cell.write, cell.plain, cell.read].into_iter().for_each(|mark| remembered.keep_mark(mark));
        }
        self.crowds.iter().flatten().for_each(|mark| remembered.keep_mark(*mark));
    }

    /// A number that changes when any of the bytes is written anew.
    pub(crate) fn fingerprint(&self, start: usize, bytes: usize) -> u64 {
        let mix = |sum: u64, cell: &Cell| (sum ^ u64::from(cell.write.0)).wrapping_mul(0x0000_0100_0000_01b3);
        self.cells[self.units(start, bytes)].iter().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Whether any of the bytes were written by this kernel.
    pub(crate) fn written(&self, log: &Log, start: usize, bytes: usize) -> bool {
        let by_this = |cell: &Cell| !cell.write.is_none() && log.earlier(log.get(cell.write.record())).is_none();
        self.cells[self.units(start, bytes)].iter().any(by_this)
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
