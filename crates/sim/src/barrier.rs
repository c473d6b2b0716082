//! Barriers: in shared memory (arrivals and bytes, by phases), named hardware barriers of a block, the barrier of a
//! cluster.

use crate::clock::{Clock, Knowledge};
use crate::error::FaultKind;
use crate::flag::Stamp;
use crate::race::RecordId;

/// A warp of a cluster: block rank and warp in the block.
pub(crate) type WarpName = (usize, usize);

/// What the arrivals of one phase hand to those who wait.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    /// By threads of the barrier's own block.
    pub(crate) local: Knowledge,
    /// By threads of other blocks, at cluster scope.
    pub(crate) remote: Option<Knowledge>,
    /// By everyone, ordered or not.
    pub(crate) executed: Clock,
}

impl Published {
    fn new(cluster: u32) -> Self {
        Published { local: Knowledge::new(cluster), remote: None, executed: Clock::new(cluster) }
    }

    fn restart(&mut self, cluster: u32) {
        self.local.restart(cluster);
        self.remote = None;
        self.executed.restart(cluster);
    }
}

/// How an arrival's knowledge reaches those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carry {
    /// Fully: ordered, from the same block.
    Local,
    /// Fully, to waits of cluster scope: ordered at cluster scope, from another block.
    Remote,
    /// Only that it was executed.
    Executed,
}

/// A barrier in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Mbarrier {
    pub(crate) expected: u32,
    pub(crate) pending: u32,
    /// Bytes expected less bytes that came, in the current phase.
    pub(crate) bytes: i64,
    /// Number of the current phase.
    pub(crate) phase: u32,
    /// The slot that counts completed phases, known to those who waited for them.
    pub(crate) slot: u32,
    /// The access that initialised it, and its lane.
    pub(crate) init: RecordId,
    pub(crate) init_lane: u32,
    /// Whether a fence has made the initialisation visible to asynchronous work.
    pub(crate) published: bool,
    /// The threads that have released the initialisation to the cluster by fence.mbarrier_init. Whoever comes after
    /// that, however it learnt of it, knows the barrier.
    pub(crate) released: Vec<Stamp>,
    gathering: Published,
    pub(crate) done: Published,
    /// Who arrived in this phase, and in all phases.
    pub(crate) arrived: Vec<(WarpName, u32)>,
    pub(crate) regulars: Vec<WarpName>,
}

impl Mbarrier {
    pub(crate) fn new(cluster: u32, expected: u32, slot: u32, init: RecordId, init_lane: u32) -> Self {
        Mbarrier {
            expected,
            pending: expected,
            bytes: 0,
            phase: 0,
            slot,
            init,
            init_lane,
            published: false,
            released: Vec::new(),
            gathering: Published::new(cluster),
            done: Published::new(cluster),
            arrived: Vec::new(),
            regulars: Vec::new(),
        }
    }

    /// Whether it is as it was initialised, for so many arrivals.
    pub(crate) fn is_new(&self, expected: u32) -> bool {
        [self.expected, self.pending] == [expected; 2] && self.phase == 0 && self.bytes == 0 && self.arrived.is_empty()
    }

    /// Whether a wait for `parity` may pass: the phase of that parity is the one just completed.
    pub(crate) fn passes(&self, parity: u32) -> bool {
        self.phase & 1 != parity & 1
    }

    /// Changes the bytes awaited: raised by expectations, lowered by copies.
    pub(crate) fn add_bytes(&mut self, name: impl Fn() -> String, bytes: i64) -> Result<(), FaultKind> {
        self.bytes += bytes;
        if self.bytes.abs() >= 1 << 20 {
            return Err(FaultKind::TransactionOverflow { barrier: name(), phase: self.phase, bytes: self.bytes });
        }
        Ok(())
    }

    /// Takes in what an arrival publishes.
    pub(crate) fn publish(&mut self, cluster: u32, carry: Carry, knowledge: &Knowledge) {
        match carry {
            Carry::Local => self.gathering.local.join(knowledge),
            Carry::Remote => {
                self.gathering.remote.get_or_insert_with(|| Knowledge::new(cluster)).join(knowledge);
            }
            Carry::Executed => {}
        }
        self.gathering.executed.join(&knowledge.executed);
    }

    /// Counts arrivals.
    pub(crate) fn arrive(&mut self, name: impl Fn() -> String, who: WarpName, count: u32) -> Result<(), FaultKind> {
        if count > self.pending {
            return Err(FaultKind::OverArrival {
                barrier: name(),
                phase: self.phase,
                arriving: count,
                lacking: self.pending,
                expected: self.expected,
            });
        }
        self.pending -= count;
        match self.arrived.iter_mut().find(|(other, _)| *other == who) {
            Some((_, total)) => *total += count,
            None => self.arrived.push((who, count)),
        }
        if !self.regulars.contains(&who) {
            self.regulars.push(who);
        }
        Ok(())
    }

    /// Goes on to the next phase if nothing is missing from this one.
    pub(crate) fn settle(&mut self, cluster: u32) {
        if self.pending > 0 || self.bytes != 0 {
            return;
        }
        self.phase += 1;
        self.pending = self.expected;
        self.arrived.clear();
        std::mem::swap(&mut self.done, &mut self.gathering);
        self.gathering.restart(cluster);
        self.done.local.raise(self.slot, self.phase);
        self.done.executed.raise(self.slot, self.phase);
    }
}

/// One of a block's sixteen hardware barriers.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedBarrier {
    /// Threads that must meet, as the first to come said; `None` for all of the block.
    pub(crate) threads: Option<u32>,
    pub(crate) arrived: u32,
    /// Warps that have arrived, one bit each.
    pub(crate) there: u32,
    /// Warps that wait.
    pub(crate) waiting: Vec<usize>,
    pub(crate) gathered: Option<Knowledge>,
    /// What the fences of those who are there have covered, as far as they reach the whole device.
    pub(crate) fenced: Option<Knowledge>,
}

/// The barrier of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterBarrier {
    pub(crate) phase: u32,
    pub(crate) arrived: u32,
    pub(crate) gathered: Knowledge,
    pub(crate) done: Knowledge,
}

impl ClusterBarrier {
    pub(crate) fn new(cluster: u32) -> Self {
        let nothing = Knowledge::new(cluster);
        ClusterBarrier { phase: 0, arrived: 0, gathered: nothing.clone(), done: nothing }
    }
}
