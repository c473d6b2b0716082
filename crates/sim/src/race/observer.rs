//! Who makes an access, and whether another one is ordered before it.

use ptx::instr::DenseKind;

use super::log::{EVERY_LANE, IN_FLIGHT, Log, Mark, Proxy, Record, RecordId};
use crate::clock::{Cleared, Clock, Knowledge, PREDECESSOR};
use crate::lanes::lanes;
use crate::limits::Rules;
use crate::warp::Copies;

/// A copy or a multiplication, as far as others are ordered behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Copy,
    Multiply(Multiplied),
}

/// What two multiplications have in common that run in the order in which they were issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multiplied {
    /// First column and first lane of the accumulator.
    pub(crate) sums: (u32, u32),
    /// Rows of each block, and columns.
    pub(crate) shape: (u32, u32),
    /// None is that with block scales.
    pub(crate) kind: Option<DenseKind>,
}

impl Piece {
    /// Whether this one is done before another that the same thread issues later: whether the ISA lists the pair as
    /// pipelined. In practice a copy comes behind everything: CUTLASS's block-scaled products copy a step's scales over
    /// those of the step before.
    pub(crate) fn precedes(self, later: Piece, rules: Rules) -> bool {
        match (self, later) {
            (_, Piece::Copy) => rules == Rules::Practice,
            (Piece::Copy, Piece::Multiply(..)) => true,
            (Piece::Multiply(..), Piece::Multiply(..)) => self == later,
        }
    }
}

/// What a pipeline was given: its slot, and the pieces.
pub(crate) type Issued<'a> = (u32, &'a [Piece]);

/// Slots from a pipeline's to the one that tells how much of it was issued, though it need not be done.
pub(crate) const ISSUED: u32 = 1;

/// Who makes an access, and what it knows.
#[derive(Clone)]
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
    /// The last record of which this knowledge orders every lane's write, or every lane's read, before whatever this
    /// warp does.
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
        log.is_over(0, self.waited())
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
    pub(super) fn remembers(&self, mark: Mark, is_read: bool) -> bool {
        let told = |(cleared, _): (&Cleared, &Knowledge)| cleared.holds(mark.record().0, is_read);
        self.last[usize::from(is_read)] == Some(mark.record()) || self.cleared.is_some_and(told)
    }

    /// Whether the marked access is ordered before this one. In practice, of a read it is enough that it was executed.
    pub(super) fn knows(&mut self, log: &Log, mark: Mark, is_read: bool) -> bool {
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
            && !self.needs_fence_after(record, is_read)
    }

    /// The clock that tells of an access.
    fn clock(&self, record: &Record, is_read: bool) -> &Clock {
        // In practice, a finished copy may be overwritten by another one as soon as it is known to be over: nobody's
        // view is involved. So is what the tensor cores have written themselves: where columns were allocated. DeepGEMM
        // reads that behind a relaxed barrier of the cluster.
        let written_for_threads = record.proxy == Proxy::Async && !record.detached;
        let over = self.rules != Rules::Letter && (is_read || record.detached && self.replaces || written_for_threads);
        match (self.tensor, over) {
            (true, _) => &self.knowledge.tensor,
            (false, true) => &self.knowledge.executed,
            (false, false) => &self.knowledge.generic,
        }
    }

    /// Whether asynchronous work of this observer's needs a fence to see an access of threads.
    /// In practice, bytes of global memory that were only read may do without.
    fn needs_fence(&self, is_read: bool) -> bool {
        self.proxy == Proxy::Async && (self.rules == Rules::Letter || !is_read || !self.global)
    }

    /// The same of one access: what was written on the way of asynchronous work is there for such work.
    fn needs_fence_after(&self, record: &Record, is_read: bool) -> bool {
        record.proxy == Proxy::Generic && self.needs_fence(is_read)
    }

    /// Whether the marked access would be ordered before this one if both went the same way to memory.
    pub(super) fn lacks_only_a_fence(&self, log: &Log, mark: Mark, is_read: bool) -> bool {
        let same_way = Observer { proxy: Proxy::Generic, last: [None; 2], cleared: None, ..self.clone() };
        self.needs_fence(is_read) && { same_way }.knows(log, mark, is_read)
    }

    fn fenced(&self) -> &Clock {
        if self.global { &self.knowledge.async_global } else { &self.knowledge.async_shared }
    }

    /// Whether an access is ordered before this one in all of its lanes, whichever lane this one is of.
    fn knows_record(&self, log: &Log, record: &Record, is_read: bool) -> bool {
        if let Some(grid) = log.earlier(record) {
            return log.is_over(grid, self.waited());
        }
        let clock = self.clock(record, is_read);
        if record.detached && self.is_pipelined(record) {
            return true;
        }
        let all = |clock: &Clock| clock.reached(record.cluster, record.slot, record.lanes, record.count);
        if record.detached && !record.by_lane {
            let one = |clock: &Clock| clock.get(record.cluster, record.slot) >= record.count;
            let fenced = || !self.needs_fence_after(record, is_read) || one(self.fenced());
            // In practice tensor memory needs no fences of its own around a synchronisation.
            let told = one(clock) || self.tensor && self.rules == Rules::Practice && one(&self.knowledge.executed);
            return record.count != IN_FLIGHT && told && fenced();
        }
        all(clock) && (!self.needs_fence_after(record, is_read) || all(self.fenced()))
    }

    /// Whether this access belongs to a pipeline in which the other one comes before it: one thread's own, or that of
    /// another thread of the block, as far as a fence, a synchronisation and a fence tell what that one had issued.
    fn is_pipelined(&self, record: &Record) -> bool {
        let Some((own, piece, pipes)) = self.pipe.filter(|_| record.cluster == self.cluster) else { return false };
        let Some((slot, pieces)) = pipes.iter().find(|(slot, _)| *slot == record.slot) else { return false };
        let told = || self.knowledge.tensor.get(self.cluster, slot + ISSUED) >= record.count;
        let precedes = |before: &Piece| before.precedes(piece, self.rules);
        (*slot == own || told()) && pieces.get(record.count as usize - 1).is_some_and(precedes)
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
            let done = || match record.by_lane {
                true => record.slot == self.copies.slot && self.copies.awaited[lane] >= record.count,
                false => record.slot == self.slot,
            };
            (own && done() || told(clock)) && (!self.needs_fence_after(record, is_read) || told(self.fenced()))
        })
    }

    /// Whether the marked read was made by lanes that all execute this instruction, too: what comes after this one
    /// comes after that one. (Counting all lanes of this instruction as readers errs on the side of a race.)
    pub(super) fn supersedes(&mut self, log: &Log, mark: Mark) -> bool {
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
