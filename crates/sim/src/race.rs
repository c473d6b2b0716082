//! Races: two accesses to the same bytes, at least one a write, of which neither is known to have happened before the other.
//!
//! Every access is a [`Record`] in a log; every unit of memory (the smallest access the kernel makes, at most 16 bytes)
//! remembers the record of its last write and of the reads since. An access is checked against these with the clocks of
//! whoever makes it, so a race is reported whatever the order in which the two happened to run.
//!
//! What an asynchronous operation touches is checked and remembered when it is *issued*; until its completion is known, its
//! stamp is out of everyone's reach, so touching those bytes is a race at any time before.

use std::ops::Range;
use std::rc::Rc;

use ptx::Scope;

use crate::clock::{Cleared, Clock, Knowledge, PREDECESSOR};
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

/// What a pipeline was given: its slot, and the pieces.
pub(crate) type Issued<'a> = (u32, &'a [Piece]);

/// Slots from a pipeline's to the one that tells how much of it was issued, though it need not be done.
pub(crate) const ISSUED: u32 = 1;

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
#[derive(Clone, Debug)]
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
        if self.grids.last().is_some_and(|first| *first <= record.cluster) {
            return None;
        }
        Some(self.grids.partition_point(|first| *first <= record.cluster))
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

/// Writes, by thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writers(Vec<Mark>);

impl Writers {
    fn add(&mut self, unit: &Unit) {
        for mark in [unit.write, unit.plain] {
            if !mark.is_none() && self.0.last() != Some(&mark) && !self.0.contains(&mark) {
                self.0.push(mark);
            }
        }
    }

    /// Whether all of them are ordered before what an observer does.
    pub(crate) fn precede(&self, log: &Log, who: &mut Observer<'_>) -> bool {
        self.0.iter().all(|mark| who.knows(log, *mark, false))
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
    /// The pipeline that this access belongs to, what this is, and all pipelines of the block.
    pub(crate) pipe: Option<(u32, Piece, &'a [Issued<'a>])>,
    pub(crate) rules: Rules,
    /// The last record of which this knowledge orders every lane's write, or every lane's read, before whatever this warp does.
    pub(crate) last: [Option<RecordId>; 2],
    /// Others of the kind, as far as that follows from what all lanes of the warp know, which is this.
    pub(crate) cleared: Option<(&'a Cleared, &'a Knowledge)>,
    /// The last record all of whose reads were made by lanes that execute this instruction, too.
    pub(crate) superseded: Option<RecordId>,
}

impl<'a> Observer<'a> {
    /// The same as the maker of an asynchronous write, or not.
    pub(crate) fn replacing(mut self, replaces: bool) -> Self {
        self.replaces = replaces;
        if replaces && self.rules == Rules::Practice {
            // That is content with less than other accesses are.
            self.cleared = None;
        }
        self
    }

    /// Whether the preceding grid is known to have ended.
    fn waited(&self) -> bool {
        self.knowledge.generic.get(self.cluster, PREDECESSOR) > 0
    }

    /// Whether what came before all grids is known to be over.
    pub(crate) fn knows_origin(&self, log: &Log) -> bool {
        log.reach == 0 && (self.waited() || log.granted > 0)
    }

    /// Goes on as another lane of the same warp.
    pub(crate) fn becomes(&mut self, lane: usize, knowledge: &'a Knowledge) {
        self.lane = Some(lane as u32);
        if !std::ptr::eq(self.knowledge, knowledge) {
            (self.knowledge, self.last) = (knowledge, [None; 2]);
        }
    }

    /// Whether the marked access was found to be ordered before whatever this warp does.
    #[inline]
    fn remembers(&self, mark: Mark, is_read: bool) -> bool {
        let told = |(cleared, _): (&Cleared, &Knowledge)| cleared.holds(mark.record().0, is_read);
        self.last[usize::from(is_read)] == Some(mark.record()) || self.cleared.is_some_and(told)
    }

    /// Whether the marked access is ordered before this one. In practice, of a read it is enough that it was executed.
    fn knows(&mut self, log: &Log, mark: Mark, is_read: bool) -> bool {
        if self.remembers(mark, is_read) {
            return true;
        }
        if mark.record() == self.record {
            // Lanes of one instruction: two of them writing the same bytes is a race, one of them is not.
            return mark.lane() == self.lane.unwrap_or(EVERY_LANE);
        }
        let record = log.get(mark.record());
        if self.follows(record, mark, is_read) {
            return true;
        }
        let known = self.knows_record(log, record, is_read);
        if known {
            self.last[usize::from(is_read)] = Some(mark.record());
            if let Some((cleared, _)) = self.cleared.filter(|(_, common)| std::ptr::eq(*common, self.knowledge)) {
                cleared.add(mark.record().0, is_read);
            }
        }
        let who = if mark.lane() == EVERY_LANE { record.lanes } else { 1 << mark.lane() };
        known || self.knows_lanes(log, record, who, is_read)
    }

    /// Whether the marked access is an earlier one of the same thread: what most accesses find.
    fn follows(&self, record: &Record, mark: Mark, is_read: bool) -> bool {
        (record.slot, record.cluster) == (self.slot, self.cluster)
            && self.lane == Some(mark.lane())
            && !record.detached
            && !self.needs_fence(is_read)
    }

    /// The clock that tells of an access.
    fn clock(&self, record: &Record, is_read: bool) -> &Clock {
        // In practice, a finished copy may be overwritten by another one as soon as it is known to be over: nobody's view is
        // involved.
        let over = self.rules != Rules::Letter && (is_read || record.detached && self.replaces);
        match (self.tensor, over) {
            (true, _) => &self.knowledge.tensor,
            (false, true) => &self.knowledge.executed,
            (false, false) => &self.knowledge.generic,
        }
    }

    /// Whether asynchronous work of this observer's needs a fence to see an access of threads.
    fn needs_fence(&self, is_read: bool) -> bool {
        self.proxy == Proxy::Async && (self.rules == Rules::Letter || !is_read)
    }

    fn fenced(&self) -> &Clock {
        if self.global { &self.knowledge.async_global } else { &self.knowledge.async_shared }
    }

    /// Whether an access is ordered before this one in all of its lanes, whichever lane this one is of.
    fn knows_record(&self, log: &Log, record: &Record, is_read: bool) -> bool {
        if let Some(grid) = log.earlier(record) {
            return grid >= log.reach && (self.waited() || grid < log.granted);
        }
        let clock = self.clock(record, is_read);
        if record.detached && self.is_pipelined(record) {
            return true;
        }
        let all = |clock: &Clock| clock.reached(record.cluster, record.slot, record.lanes, record.count);
        if record.by_lane {
            return all(clock) && (!self.needs_fence(is_read) || all(self.fenced()));
        }
        if record.detached {
            let one = |clock: &Clock| clock.get(record.cluster, record.slot) >= record.count;
            let fenced = || record.proxy == Proxy::Async || !self.needs_fence(is_read) || one(self.fenced());
            return record.count != IN_FLIGHT && one(clock) && fenced();
        }
        all(clock) && (!self.needs_fence(is_read) || all(self.fenced()))
    }

    /// Whether this access belongs to a pipeline in which the other one comes before it: one thread's own, or that of another thread of the
    /// block, as far as a fence, a synchronisation and a fence tell what that one had issued.
    fn is_pipelined(&self, record: &Record) -> bool {
        let Some((own, piece, pipes)) = self.pipe.filter(|_| record.cluster == self.cluster) else { return false };
        let Some((slot, pieces)) = pipes.iter().find(|(slot, _)| *slot == record.slot) else { return false };
        let told = || self.knowledge.tensor.get(self.cluster, slot + ISSUED) >= record.count;
        (*slot == own || told()) && pieces.get(record.count as usize - 1).is_some_and(|before| before.precedes(piece))
    }

    /// Whether the access of the marked lanes is ordered before this one, though that of every lane need not be.
    fn knows_lanes(&self, log: &Log, record: &Record, who: u32, is_read: bool) -> bool {
        if record.detached && !record.by_lane || log.earlier(record).is_some() {
            return false;
        }
        let clock = self.clock(record, is_read);
        let home = record.cluster == self.cluster;
        lanes(who).all(|lane| {
            let told = |clock: &Clock| clock.get(record.cluster, record.slot + lane as u32) >= record.count;
            let own = home && self.lane == Some(lane as u32);
            if record.by_lane {
                let awaited = own && record.slot == self.copies.slot && self.copies.awaited[lane] >= record.count;
                return (awaited || told(clock)) && (!self.needs_fence(is_read) || told(self.fenced()));
            }
            let ordered = own && record.slot == self.slot || told(clock);
            ordered && (!self.needs_fence(is_read) || told(self.fenced()))
        })
    }
}

impl Observer<'_> {
    /// Whether the marked read was made by lanes that all execute this instruction, too: what comes after this one comes
    /// after that one. (Counting all lanes of this instruction as readers errs on the side of a race.)
    fn supersedes(&mut self, log: &Log, mark: Mark) -> bool {
        if self.superseded == Some(mark.record()) {
            return true;
        }
        let (old, new) = (log.get(mark.record()), log.get(self.record));
        if old.detached || new.detached || (old.cluster, old.slot) != (new.cluster, new.slot) {
            return false;
        }
        if old.lanes & !new.lanes == 0 {
            self.superseded = Some(mark.record());
            return true;
        }
        mark.lane() != EVERY_LANE && new.lanes >> mark.lane() & 1 == 1
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

/// What is remembered of some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unit {
    write: Mark,
    /// The last write that was not strong, if strong ones came after it: they are ordered neither by nor against each other,
    /// so it must be remembered for itself.
    plain: Mark,
    read: Mark,
    /// Further unordered readers: position in `Shadow::crowds`, from one.
    crowd: u32,
}

impl Unit {
    /// What is remembered where nothing was accessed.
    const NONE: Unit = Unit { write: Mark(0), plain: Mark(0), read: Mark(0), crowd: 0 };
}

/// Bytes that are mostly accessed together: the sixteen that bulk copies, tensor cores and wide loads move at once, or a warp's lanes of a
/// column of tensor memory.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// What is remembered of all of them, unless they are told apart.
    whole: Unit,
    /// Position of their units in `Shadow::units`, from one, if they ever were told apart.
    parts: u32,
    split: bool,
}

impl Line {
    /// Tells its parts apart, if they are not: the position of its first unit.
    #[inline]
    fn split(&mut self, units: &mut Vec<Unit>, per_line: usize) -> usize {
        if self.parts == 0 {
            self.parts = units.len() as u32 + 1;
            units.resize(units.len() + per_line, Unit::default());
        }
        let first = self.parts as usize - 1;
        if !self.split {
            self.split = true;
            units[first..first + per_line].fill(self.whole);
        }
        first
    }
}

/// Bytes of a line of shared and of global memory.
const LINE: usize = 16;

/// Lines that are set aside, and shared with copies of a machine, together.
const PAGE: usize = 64;
type Page = [Line; PAGE];

/// A page of which nothing was accessed.
#[cold]
fn blank_page() -> Rc<Page> {
    Rc::new([Line::default(); PAGE])
}

/// Sets of readers. Neighbouring units mostly have the same, so a set is never changed, and named by any number of units.
#[derive(Clone, Debug, Default)]
struct Crowds {
    marks: Vec<Mark>,
    /// First mark and number of marks of each.
    sets: Vec<(u32, u32)>,
}

impl Crowds {
    fn get(&self, crowd: u32) -> &[Mark] {
        match (crowd as usize).checked_sub(1) {
            Some(at) => &self.marks[self.sets[at].0 as usize..][..self.sets[at].1 as usize],
            None => &[],
        }
    }

    /// The readers of a set that are not known to be over, and one more.
    fn joined(&mut self, crowd: u32, newest: Mark, log: &Log, who: &mut Observer<'_>) -> u32 {
        let (start, before) = (self.marks.len(), crowd as usize);
        if let Some((first, count)) = before.checked_sub(1).map(|at| self.sets[at]) {
            for at in first..first + count {
                let mark = self.marks[at as usize];
                if !who.knows(log, mark, true) {
                    self.marks.push(mark);
                }
            }
        }
        self.marks.push(newest);
        self.sets.push((start as u32, (self.marks.len() - start) as u32));
        self.sets.len() as u32
    }
}

/// The accesses to one piece of memory: by lines, and where parts of a line are accessed by units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    shift: u32,
    /// Bytes of a line: two to this power.
    line_shift: u32,
    /// How many lines there are, and those of them that were ever accessed, by pages.
    lines: usize,
    pages: Vec<Option<Rc<Page>>>,
    units: Vec<Unit>,
    crowds: Crowds,
}

/// What was remembered of lines before one access was noted there, and is since: what has the same history goes on in the same way.
struct Histories([(Unit, Unit); 8]);

impl Default for Histories {
    fn default() -> Self {
        // No line has such a history.
        let none = Unit { crowd: u32::MAX, ..Unit::NONE };
        Histories([(none, none); 8])
    }
}

impl Histories {
    /// The place of a history.
    #[inline]
    fn of(&mut self, unit: &Unit) -> &mut (Unit, Unit) {
        let mixed = unit.read.record().0 ^ unit.write.record().0 << 1;
        &mut self.0[(mixed ^ mixed >> 2 ^ mixed >> 5) as usize % 8]
    }
}

/// An access that is being noted, and what was found on the way: neighbours mostly have the same history.
struct Noting<'n, 'o> {
    log: &'n Log,
    who: &'n mut Observer<'o>,
    mark: Mark,
    write: bool,
    /// Whether the access is strong.
    strong: bool,
    /// The last write, and the last read, that were found to be ordered before.
    ordered: [Mark; 2],
    /// The last reader that was replaced, and by what.
    replaced: [Mark; 2],
    /// The last crowd and reader that were joined, and the crowd that came of it.
    joined: (u32, Mark, u32),
}

impl<'n, 'o> Noting<'n, 'o> {
    fn new(log: &'n Log, who: &'n mut Observer<'o>, write: bool) -> Self {
        let (mark, none) = (Mark::new(who.record, who.lane), Mark::default());
        let strong = log.get(who.record).strong.is_some();
        Noting { log, who, mark, write, strong, ordered: [none; 2], replaced: [none; 2], joined: (0, none, 0) }
    }

    /// Goes on with the access of another lane: what was found for the one before need not hold for it.
    fn begin(&mut self) {
        let none = Mark::default();
        self.mark = Mark::new(self.who.record, self.who.lane);
        (self.ordered, self.replaced, self.joined) = ([none; 2], [none; 2], (0, none, 0));
    }

    fn race(&mut self, mark: Mark, was_write: bool, byte: usize) -> Result<(), Conflict> {
        let strong = |noting: &Self| noting.log.get(noting.who.record).strong_with(noting.log.get(mark.record()));
        if self.who.knows(self.log, mark, !was_write) || strong(self) {
            return Ok(());
        }
        Err(Conflict { record: mark.record(), was_write, byte })
    }

    #[inline]
    fn note(&mut self, unit: &mut Unit, crowds: &mut Crowds, byte: usize) -> Result<(), Conflict> {
        if self.write { self.note_write(unit, crowds, byte) } else { self.note_read(unit, crowds, byte) }
    }

    /// The last write comes before what is noted, or there is none.
    #[inline]
    fn follow_write(&mut self, unit: &Unit, byte: usize) -> Result<(), Conflict> {
        if unit.write.is_none() || unit.write == self.ordered[0] || self.who.remembers(unit.write, false) {
            return Ok(());
        }
        self.race(unit.write, true, byte)?;
        self.ordered[0] = unit.write;
        Ok(())
    }

    #[inline]
    fn note_read(&mut self, unit: &mut Unit, crowds: &mut Crowds, byte: usize) -> Result<(), Conflict> {
        self.follow_write(unit, byte)?;
        if !unit.plain.is_none() && !self.who.knows(self.log, unit.plain, false) {
            return Err(Conflict { record: unit.plain.record(), was_write: true, byte });
        }
        let before = unit.read;
        if before.is_none() || before == self.mark {
            unit.read = self.mark;
            return Ok(());
        }
        if before == self.replaced[0] {
            unit.read = self.replaced[1];
            return Ok(());
        }
        if before.record() == self.mark.record() || self.who.supersedes(self.log, before) {
            unit.read = Mark::new(self.who.record, None);
        } else if self.who.knows(self.log, before, true) {
            unit.read = self.mark;
        } else {
            // Several unordered readers: the newest in front, the others behind.
            if (unit.crowd, before) != (self.joined.0, self.joined.1) {
                self.joined = (unit.crowd, before, crowds.joined(unit.crowd, before, self.log, self.who));
            }
            unit.crowd = self.joined.2;
            unit.read = self.mark;
            return Ok(());
        }
        self.replaced = [before, unit.read];
        Ok(())
    }

    #[inline]
    fn note_write(&mut self, unit: &mut Unit, crowds: &Crowds, byte: usize) -> Result<(), Conflict> {
        self.follow_write(unit, byte)?;
        if !unit.plain.is_none() {
            self.race(unit.plain, true, byte)?;
        }
        if !unit.read.is_none() && unit.read != self.ordered[1] && !self.who.remembers(unit.read, true) {
            self.race(unit.read, false, byte)?;
            self.ordered[1] = unit.read;
        }
        for mark in crowds.get(unit.crowd) {
            self.race(*mark, false, byte)?;
        }
        if !self.strong {
            *unit = Unit { write: self.mark, ..Unit::default() };
            return Ok(());
        }
        if !unit.write.is_none() && self.log.get(unit.write.record()).strong.is_none() {
            unit.plain = unit.write;
        }
        unit.write = self.mark;
        Ok(())
    }
}

impl Shadow {
    /// For `bytes` bytes, told apart in units of `unit` bytes.
    pub(crate) fn new(bytes: usize, unit: u32) -> Self {
        Self::by_lines(bytes, unit, LINE)
    }

    /// The same with lines of so many bytes.
    pub(crate) fn by_lines(bytes: usize, unit: u32, line: usize) -> Self {
        let (shift, line_shift) = (unit.trailing_zeros(), line.trailing_zeros());
        let lines = bytes.div_ceil(line);
        let pages = vec![None; lines.div_ceil(PAGE)];
        Shadow { shift, line_shift, lines, pages, units: Vec::new(), crowds: Crowds::default() }
    }

    /// Units of a line.
    fn per_line(&self) -> usize {
        1 << (self.line_shift - self.shift)
    }

    /// A line that was accessed.
    fn line(&self, at: usize) -> Option<&Line> {
        self.pages.get(at / PAGE)?.as_ref().map(|page| &page[at % PAGE])
    }

    /// A line that is being accessed.
    #[inline(always)]
    fn line_mut(pages: &mut [Option<Rc<Page>>], at: usize) -> &mut Line {
        &mut Self::page_mut(pages, at / PAGE)[at % PAGE]
    }

    #[inline(always)]
    fn page_mut(pages: &mut [Option<Rc<Page>>], at: usize) -> &mut Page {
        Rc::make_mut(pages[at].get_or_insert_with(blank_page))
    }

    /// Notes an access.
    pub(crate) fn note(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        start: usize,
        bytes: usize,
        write: bool,
    ) -> Result<(), Conflict> {
        self.note_bytes(&mut Noting::new(log, who, write), start, bytes)
    }

    /// Notes accesses to as many bytes from each of some places on.
    pub(crate) fn note_pieces(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        starts: &[usize],
        bytes: usize,
        write: bool,
    ) -> Result<(), Conflict> {
        let mut noting = Noting::new(log, who, write);
        starts.iter().try_for_each(|start| self.note_bytes(&mut noting, *start, bytes))
    }

    /// Notes that ranges of bytes are read, by offset and length, and gives the writes that made them what they are.
    pub(crate) fn note_ranges(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        ranges: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Writers, Conflict> {
        let (mut noting, mut writers) = (Noting::new(log, who, false), Writers::default());
        let (mut histories, shift, inside) = (Histories::default(), self.line_shift, (1 << self.line_shift) - 1);
        for (start, bytes) in ranges {
            if (start | bytes) & inside == 0 {
                let lines = start >> shift..((start + bytes) >> shift).min(self.lines);
                self.note_lines(&mut noting, &mut histories, lines, |unit| writers.add(unit))?;
            } else {
                self.note_bytes(&mut noting, start, bytes)?;
                self.history(start, bytes).for_each(|unit| writers.add(unit));
            }
        }
        Ok(writers)
    }

    /// Notes accesses of lanes of one warp, of as many bytes each: by lane, what that knows, and the first byte.
    pub(crate) fn note_lanes<'o>(
        &mut self,
        log: &Log,
        who: &mut Observer<'o>,
        accesses: impl Iterator<Item = (usize, &'o Knowledge, usize)>,
        bytes: usize,
        write: bool,
    ) -> Result<(), Conflict> {
        let (mut noting, shift, length) = (Noting::new(log, who, write), self.line_shift, 1 << self.line_shift);
        // The last line whose parts are told apart, and the position of its first unit: neighbours mostly are in the same.
        let mut near = (usize::MAX, 0);
        for (lane, knowledge, start) in accesses {
            noting.who.becomes(lane, knowledge);
            noting.begin();
            let (at, inside) = (start >> shift, start & (length - 1));
            let part = inside >> self.shift;
            if inside + bytes > length || at >= self.lines {
                self.note_bytes(&mut noting, start, bytes)?;
            } else if bytes > 1 << self.shift || (inside + bytes - 1) >> self.shift != part || self.per_line() == 1 {
                self.note_in_line(&mut noting, at, start..start + bytes)?;
            } else {
                if near.0 != at {
                    let per_line = self.per_line();
                    near = (at, Self::line_mut(&mut self.pages, at).split(&mut self.units, per_line));
                }
                noting.note(&mut self.units[near.1 + part], &mut self.crowds, start & !((1 << self.shift) - 1))?;
            }
        }
        Ok(())
    }

    #[inline]
    fn note_bytes(&mut self, noting: &mut Noting<'_, '_>, start: usize, bytes: usize) -> Result<(), Conflict> {
        let (end, shift, length) = (start + bytes, self.line_shift, 1 << self.line_shift);
        if (start | bytes) & (length - 1) == 0 {
            let lines = start >> shift..(end >> shift).min(self.lines);
            return match lines.len() {
                1 => self.note_in_line(noting, lines.start, start..end),
                _ => self.note_lines(noting, &mut Histories::default(), lines, |_| ()),
            };
        }
        for at in start >> shift..((end + length - 1) >> shift).min(self.lines) {
            self.note_in_line(noting, at, start.max(at << shift)..end.min((at + 1) << shift))?;
        }
        Ok(())
    }

    /// Notes an access to whole lines. `met` is shown what is remembered of them, once where neighbours have the same history.
    fn note_lines(
        &mut self,
        noting: &mut Noting<'_, '_>,
        histories: &mut Histories,
        lines: Range<usize>,
        mut met: impl FnMut(&Unit),
    ) -> Result<(), Conflict> {
        let (mut at, shift) = (lines.start, self.line_shift);
        while at < lines.end {
            let (inside, page) = (at % PAGE, Self::page_mut(&mut self.pages, at / PAGE));
            let count = (PAGE - inside).min(lines.end - at);
            let mut told_apart = None;
            for (line, place) in page[inside..inside + count].iter_mut().zip(at..) {
                if line.split {
                    told_apart = Some(place);
                    break;
                }
                let (before, known) = (line.whole, histories.of(&line.whole));
                if known.0 == before {
                    line.whole = known.1;
                    continue;
                }
                noting.note(&mut line.whole, &mut self.crowds, place << shift)?;
                *known = (before, line.whole);
                met(&line.whole);
            }
            at = match told_apart {
                Some(place) => {
                    self.note_in_line(noting, place, place << shift..(place + 1) << shift)?;
                    self.line(place).into_iter().flat_map(|line| self.parts(line)).for_each(&mut met);
                    place + 1
                }
                None => at + count,
            };
        }
        Ok(())
    }

    /// Notes an access to bytes of one line.
    #[inline]
    fn note_in_line(&mut self, noting: &mut Noting<'_, '_>, at: usize, bytes: Range<usize>) -> Result<(), Conflict> {
        let (shift, start, per_line) = (self.shift, at << self.line_shift, self.per_line());
        let Shadow { pages, units, crowds, .. } = self;
        let (line, whole) = (Self::line_mut(pages, at), bytes.len() == per_line << shift);
        if !line.split && (whole || per_line == 1) {
            return noting.note(&mut line.whole, crowds, start);
        }
        let first = line.split(units, per_line);
        let (part, behind) = ((bytes.start - start) >> shift, (bytes.end - start + (1 << shift) - 1) >> shift);
        if behind == part + 1 {
            return noting.note(&mut units[first + part], crowds, start + (part << shift));
        }
        for (unit, part) in units[first + part..first + behind].iter_mut().zip(part..) {
            noting.note(unit, crowds, start + (part << shift))?;
        }
        if noting.write && whole && !noting.strong {
            (line.whole, line.split) = (units[first], false);
        }
        Ok(())
    }

    /// What is remembered of each unit that some bytes are in.
    fn history(&self, start: usize, bytes: usize) -> impl Iterator<Item = &Unit> {
        let units = start >> self.shift..(start + bytes + (1 << self.shift) - 1) >> self.shift;
        let (to_line, inside) = (self.line_shift - self.shift, self.per_line() - 1);
        units.filter_map(move |unit| {
            let untouched = (unit >> to_line < self.lines).then_some(&Unit::NONE);
            let Some(line) = self.line(unit >> to_line) else { return untouched };
            Some(if line.split { &self.units[line.parts as usize - 1 + (unit & inside)] } else { &line.whole })
        })
    }

    /// What is remembered of a line.
    fn parts<'s>(&'s self, line: &'s Line) -> &'s [Unit] {
        match line.split {
            true => &self.units[line.parts as usize - 1..][..self.per_line()],
            false => std::slice::from_ref(&line.whole),
        }
    }

    /// Forgets all accesses to some lines.
    pub(crate) fn clear(&mut self, start: usize, bytes: usize) {
        for at in start >> self.line_shift..(start + bytes) >> self.line_shift {
            let line = Self::line_mut(&mut self.pages, at);
            (line.whole, line.split) = (Unit::default(), false);
        }
    }

    /// Tells which records it remembers.
    pub(crate) fn remember(&self, remembered: &mut Remembered) {
        let lines = self.pages.iter().flatten().flat_map(|page| page.iter());
        for unit in lines.flat_map(|line| self.parts(line)) {
            [unit.write, unit.plain, unit.read].into_iter().for_each(|mark| remembered.keep_mark(mark));
            self.crowds.get(unit.crowd).iter().for_each(|mark| remembered.keep_mark(*mark));
        }
    }

    /// A number that changes when any of the bytes is written anew.
    pub(crate) fn fingerprint(&self, start: usize, bytes: usize) -> u64 {
        let mix = |sum: u64, unit: &Unit| (sum ^ u64::from(unit.write.0)).wrapping_mul(0x0000_0100_0000_01b3);
        self.history(start, bytes).fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Whether any of the bytes were written by this kernel.
    pub(crate) fn written(&self, log: &Log, start: usize, bytes: usize) -> bool {
        let by_this = |unit: &Unit| !unit.write.is_none() && log.earlier(log.get(unit.write.record())).is_none();
        self.history(start, bytes).any(by_this)
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
