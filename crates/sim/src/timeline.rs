//! What happened in a run, for pictures: who did what, in the order in which a schedule let it happen.
//!
//! Time is logical: it is one further with every event (an instruction that others can see, or the end of a piece of
//! asynchronous work), and says nothing of how long things take on silicon. One cluster of the grid is followed, the
//! first to start.

/// A cluster's run, event by event.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The blocks of the cluster, by their place in the grid.
    pub blocks: Vec<[u32; 3]>,
    /// Warps of a block.
    pub warps: u32,
    /// Instructions that others can see.
    pub steps: Vec<Step>,
    /// Asynchronous work.
    pub works: Vec<Work>,
    /// Times in which a warp could not go on.
    pub waits: Vec<Wait>,
    /// Events in all.
    pub length: u32,
    /// Whether the run went on beyond what is kept here.
    pub cut: bool,
}

/// An instruction that others can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub at: u32,
    /// The block's place in the cluster, and the warp.
    pub warp: (usize, u32),
    /// Its lanes, one bit each.
    pub lanes: u32,
    /// The instruction, by its position in the kernel's body.
    pub position: usize,
}

/// What asynchronous work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Brings bytes into shared memory.
    Copy,
    /// Takes bytes out of shared memory.
    Store,
    /// Brings what was taken out of it to global memory.
    Write,
    /// Multiplies on the tensor cores.
    Multiply,
    /// Tells a barrier that a thread's work on the tensor cores is over.
    Commit,
}

/// Asynchronous work, from where it was issued to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it does.
    pub kind: Kind,
    /// When it was issued.
    pub from: u32,
    /// When it was over, if it was.
    pub to: Option<u32>,
    /// The block and the warp that issued it.
    pub warp: (usize, u32),
    /// The instruction, by its position in the kernel's body.
    pub position: usize,
    /// The shared memory that it writes or reads, as far as it has a name.
    pub place: Option<String>,
    /// Which stage of a pipeline that is, if it has come from one: stages are told apart by the barrier that counts
    /// their copies, and are numbered as they come.
    pub stage: Option<u32>,
}

/// A time in which a warp could not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When it began to wait.
    pub from: u32,
    /// When it could go on, if it could.
    pub to: Option<u32>,
    /// The block and the warp that waits.
    pub warp: (usize, u32),
    /// The instruction that it waits at.
    pub position: usize,
    /// Whose deed let it go on: a warp's, or that of a piece of work by its number among them.
    pub by: Option<Cause>,
}

/// What lets a warp go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A warp's instruction.
    Warp(usize, u32),
    /// The end of a piece of work.
    Work(usize),
}

/// Work that is not over: where it is kept, with its instruction, its warp and whether it writes what a store has read,
/// since places are used again; its number among all; and the queue that it is done in the order of, if it is in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) kept: (usize, u32, usize, bool),
    pub(crate) work: usize,
    pub(crate) queue: Option<(usize, usize, usize)>,
}

/// A barrier, by the block that it is in and its place in shared memory.
pub(crate) type Barrier = (usize, u32);
/// Bytes of shared memory, from and to.
pub(crate) type Bytes = (u32, u32);

/// A timeline that is being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) timeline: Timeline,
    /// The cluster that is followed, once there is one.
    pub(crate) cluster: Option<u32>,
    /// Work that is not over.
    pub(crate) open: Vec<Open>,
    /// Warps that wait, by the number of their wait.
    pub(crate) asleep: Vec<usize>,
    /// Each stage's barrier, and the shared memory that its copies fill.
    pub(crate) stages: Vec<(Barrier, Vec<Bytes>)>,
}

impl Recorder {
    /// Events that are kept: what a page can show.
    const MOST: u32 = 4_000;

    /// Whether a cluster is the one that is followed, and there is room for more.
    pub(crate) fn follows(&mut self, cluster: u32) -> bool {
        let followed = *self.cluster.get_or_insert(cluster) == cluster;
        self.timeline.cut |= followed && self.timeline.length >= Self::MOST;
        followed && !self.timeline.cut
    }

    /// The time of the next event.
    pub(crate) fn tick(&mut self) -> u32 {
        self.timeline.length += 1;
        self.timeline.length - 1
    }

    /// Notes the end of one that is open, and gives its number. Of a queue the first is over, whichever was taken.
    pub(crate) fn end(&mut self, ended: usize, at: u32) -> usize {
        let queue = self.open[ended].queue;
        let alike = (0..self.open.len()).filter(|other| queue.is_some() && self.open[*other].queue == queue);
        let first = alike.min_by_key(|other| self.open[*other].work).unwrap_or(ended);
        let (work, other) = (self.open[first].work, self.open[ended].work);
        self.open[first].work = other;
        self.open.remove(ended);
        self.timeline.works[work].to = Some(at);
        work
    }

    /// The stage that a barrier counts the copies of, and that these bytes belong to from now on.
    pub(crate) fn stage_of_copy(&mut self, barrier: Barrier, bytes: Bytes) -> u32 {
        let found = self.stages.iter().position(|(known, _)| *known == barrier);
        let stage = found.unwrap_or_else(|| {
            self.stages.push((barrier, Vec::new()));
            self.stages.len() - 1
        });
        if !self.stages[stage].1.contains(&bytes) {
            self.stages[stage].1.push(bytes);
        }
        stage as u32
    }

    /// The stage that a byte of shared memory belongs to.
    pub(crate) fn stage_at(&self, offset: u32) -> Option<u32> {
        let holds = |ranges: &[Bytes]| ranges.iter().any(|(start, end)| (*start..*end).contains(&offset));
        self.stages.iter().position(|(_, ranges)| holds(ranges)).map(|stage| stage as u32)
    }
}
