//! What runs: clusters of blocks of warps, and what all of them share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use ptx::VariableSpace;

use crate::barrier::{ClusterBarrier, NamedBarrier};
use crate::clock::{Clock, Knowledge};
use crate::columns::{Columns, Tenancy};
use crate::error::{Fault, FaultKind};
use crate::flight::{Job, Stores, TensorPipe, Warpgroup};
use crate::invocation::Invocation;
use crate::lanes::Lanes;
use crate::limits::Rules;
use crate::memory::{GlobalMemory, GlobalTrace, SharedMemory};
use crate::profile::Profile;
use crate::program::{Program, Stops};
use crate::race::Log;
use crate::schedule::{Chooser, Schedule};
use crate::tensor_memory::TensorMemory;
use crate::timeline::Recorder;
use crate::warp::{Rest, Warp};

/// A kernel and its launch, ready to run.
#[derive(Clone)]
pub(crate) struct Grid<'k> {
    pub(crate) program: Rc<Program<'k>>,
    pub(crate) launch: &'k Invocation,
    /// Where the kernel's variables begin, once they are somewhere.
    pub(crate) variables: Rc<[u64]>,
}

impl Grid<'_> {
    /// Bytes of a variable for the whole grid.
    pub(crate) fn variable_bytes(&self, variable: &ptx::Variable) -> u64 {
        let blocks = self.launch.grid.iter().map(|side| u64::from(*side)).fold(1, u64::saturating_mul);
        let threads = blocks.saturating_mul(self.program.kernel.launch.threads.into());
        match variable.space {
            VariableSpace::Local => threads.saturating_mul(variable.bytes.next_multiple_of(variable.align).into()),
            VariableSpace::Global | VariableSpace::Constant => variable.bytes.into(),
        }
    }

    /// Sets the kernel's variables into memory.
    pub(crate) fn place_variables(&mut self, memory: &mut GlobalMemory) {
        let place = |variable: &ptx::Variable| {
            let mut data = variable.initial.clone();
            data.resize(self.variable_bytes(variable) as usize, 0);
            memory.add(&variable.name, data, variable.space != VariableSpace::Local, 0).address
        };
        self.variables = self.program.kernel.variables.iter().map(place).collect();
    }
}

/// What all clusters share.
#[derive(Clone)]
pub(crate) struct Core<'k> {
    pub(crate) rules: Rules,
    pub(crate) program: Rc<Program<'k>>,
    pub(crate) launch: &'k Invocation,
    /// Where the variables of its kernel begin.
    pub(crate) variables: Rc<[u64]>,
    pub(crate) cluster_shape: [u32; 3],
    /// Bytes by which accesses to global memory are told apart, in all grids.
    pub(crate) global_unit: u32,
    /// Number of the grid's first cluster: they are counted through all grids of a sequence.
    pub(crate) first_cluster: u32,
    /// The grids before this one.
    pub(crate) earlier: Vec<Grid<'k>>,
    /// Whether a thread of this grid has waited for the one before.
    pub(crate) waited: bool,
    /// Whether a block of this grid let the next one begin, or ended, before it had waited.
    pub(crate) hasty: bool,
    pub(crate) memory: GlobalMemory,
    pub(crate) trace: GlobalTrace,
    pub(crate) log: Log,
    pub(crate) profile: Profile,
    pub(crate) schedule: Schedule,
    pub(crate) chooser: Chooser,
    /// For each instruction that has read what was never written, what that was.
    pub(crate) origins: BTreeMap<u32, FaultKind>,
    /// Instructions since something changed that another could see.
    pub(crate) idle: u64,
    /// Cycle counter: instructions in all, and how many there may be.
    pub(crate) clock: u64,
    pub(crate) instructions: u64,
    pub(crate) multiprocessors: u32,
    /// What an arrival publishes, while it is put together.
    pub(crate) published: Knowledge,
    /// Clusters that have not begun, in the order in which they will.
    pub(crate) waiting: VecDeque<u32>,
    /// How many run at a time, and how many blocks a multiprocessor holds.
    pub(crate) room: usize,
    pub(crate) residents: usize,
    /// Who has which columns, by multiprocessors that a cluster's blocks are on together.
    pub(crate) places: Vec<Vec<Columns>>,
    /// What a load brings, while it is put together.
    pub(crate) loaded: Vec<Lanes>,
    /// Where the run stops, unless it goes on to its end.
    pub(crate) stops: Option<Stops<'k>>,
    /// Whether it has mattered which instructions can be reached from which.
    pub(crate) looked_ahead: bool,
    /// What broke a rule so far, where a run goes on after that.
    pub(crate) findings: Option<Findings>,
    /// What happens, where somebody wants a picture of it.
    pub(crate) recorder: Option<Box<Recorder>>,
}

/// What broke a rule, once per rule and pair of instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) all: Vec<Fault>,
    keys: BTreeSet<(&'static str, usize, usize)>,
}

impl Core<'_> {
    /// Whether something of the kind was found at these instructions.
    pub(crate) fn has_found(&self, key: (&'static str, usize, usize)) -> bool {
        self.findings.as_ref().is_some_and(|findings| findings.keys.contains(&key))
    }

    /// Keeps a finding, if it is a new one.
    pub(crate) fn find(&mut self, fault: Box<Fault>) {
        if let Some(findings) = &mut self.findings
            && findings.keys.insert(fault.key())
        {
            findings.all.push(*fault);
        }
    }
}

/// Blocks that may synchronise with each other.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) index: u32,
    pub(crate) blocks: Vec<Block>,
    /// Work in flight, in the order in which it was issued; by reference, since any of it may be the next to be taken
    /// out.
    #[expect(clippy::vec_box, reason = "those behind one that is taken out move up, and there can be a thousand")]
    pub(crate) jobs: Vec<Box<Job>>,
    pub(crate) barrier: ClusterBarrier,
    pub(crate) slots: u32,
    /// Whether one of its threads has seen that no further cluster's work is to be had.
    pub(crate) refused: bool,
    /// Which of the places that multiprocessors have for clusters it has.
    pub(crate) place: usize,
}

impl Cluster {
    /// A slot for something new that does work.
    pub(crate) fn slot(&mut self) -> u32 {
        self.slots += 1;
        self.slots - 1
    }

    /// Whether a block has not ended, or something that one left behind, such as a store, has not arrived.
    pub(crate) fn running(&self) -> bool {
        self.blocks.iter().any(|block| !block.shared.ended) || !self.jobs.is_empty()
    }
}

/// A block.
#[derive(Clone)]
pub(crate) struct Block {
    pub(crate) id: [u32; 3],
    pub(crate) shared: SharedMemory,
    pub(crate) named: [NamedBarrier; 16],
    /// The warps; `None` while one runs.
    pub(crate) warps: Vec<Option<Box<Warp>>>,
    /// What each warp's waits come to, as of the end of its last turn.
    pub(crate) rests: Vec<Rest>,
    pub(crate) warpgroups: Vec<Warpgroup>,
    /// Bulk stores, by warp and lane.
    pub(crate) stores: BTreeMap<(usize, usize), Stores>,
    /// Tensor memory, once there is some.
    pub(crate) tensor: Option<Box<TensorMemory>>,
    /// Whose the columns of its multiprocessor's are.
    pub(crate) tenancy: Tenancy,
    /// What it has come to that the blocks of a pair do together, and to how many the other one has.
    pub(crate) collectives: Vec<Collective>,
    pub(crate) partners_collectives: u32,
    /// Pipelines of the tensor cores, by warp and lane.
    pub(crate) pipes: BTreeMap<(usize, usize), TensorPipe>,
    /// Registers free for the taking.
    pub(crate) pool: u32,
    /// The slots of its threads.
    pub(crate) slots: Range<u32>,
    /// Threads of other blocks that have reached into this one's memory: the last time of each, by slot.
    pub(crate) visits: BTreeMap<u32, Visit>,
    /// What its threads knew to be over when they left.
    pub(crate) farewell: Clock,
    pub(crate) recent: VecDeque<(usize, u32, u32)>,
}

/// What the blocks of a pair do together, one warp of each, about their tensor memory: so many columns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    Allocate(u32),
    GiveBack(u32),
    Relinquish,
}

/// An access to another block's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) count: u32,
    /// Rank, warp, lane and instruction.
    pub(crate) from: (usize, usize, usize, u32),
}
