//! What can go wrong with a kernel, with enough of a trace to find it.
//!
//! A [`Fault`] is a typed [`FaultKind`], the [`Site`] where it showed (block, warp, lanes, instruction, phase), the
//! last steps of that block, and the [`Schedule`] that led there: running the same kernel with the same inputs under
//! that schedule leads there again.

use std::fmt;

use ptx::RegId;
use thiserror::Error;

use crate::schedule::Schedule;

/// A failed run.
#[derive(Clone, Debug, Error)]
pub struct Fault {
    /// What is wrong.
    #[source]
    pub kind: FaultKind,
    /// Where it showed, if at an instruction.
    pub site: Option<Site>,
    /// The last instructions of that block that others could see, oldest first.
    pub recent: Vec<Site>,
    /// The schedule that leads here.
    pub schedule: Schedule,
    /// The kernel's name.
    pub kernel: String,
}

impl Fault {
    /// What tells findings apart: the rule, and the instructions that break it.
    pub fn key(&self) -> (&'static str, usize, usize) {
        let here = self.site.as_ref().map_or(0, |site| site.position);
        match &self.kind {
            FaultKind::Race { first, second, .. } => (self.kind.name(), first.site.position, second.site.position),
            FaultKind::Unfinished { work } => (self.kind.name(), work.position, 0),
            FaultKind::Outlived { visit, .. } => (self.kind.name(), visit.position, 0),
            kind => (kind.name(), here, 0),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {} under schedule {}: {}", self.kernel, self.schedule, self.kind)?;
        if let Some(site) = &self.site {
            writeln!(f, "  at    {site}")?;
        }
        for site in &self.recent {
            writeln!(f, "  after {site}")?;
        }
        Ok(())
    }
}

/// Where in a run something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Block in the grid.
    pub block: [u32; 3],
    /// Warp in the block.
    pub warp: u32,
    /// The lanes concerned, one bit each.
    pub lanes: u32,
    /// Position in the kernel's body.
    pub position: usize,
    /// The line of the text that it was read from, if it was.
    pub line: Option<u32>,
    /// The instruction as text.
    pub instruction: String,
    /// The phases it is in, outermost first.
    pub phase: String,
}

impl Site {
    /// Block, warp and lanes in words.
    pub fn who(&self) -> String {
        let [x, y, z] = self.block;
        format!("block ({x}, {y}, {z}) warp {}, {}", self.warp, Lanes(self.lanes))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.who())?;
        match self.line {
            Some(line) => write!(f, "{}, line {line}: {}", self.phase, self.instruction),
            None => write!(f, "phase {}, [{}] {}", self.phase, self.position, self.instruction),
        }
    }
}

/// Lanes in words.
struct Lanes(u32);

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.count_ones() {
            32 => f.write_str("all lanes"),
            1 => write!(f, "lane {}", self.0.trailing_zeros()),
            _ => write!(f, "lanes {:#010x}", self.0),
        }
    }
}

/// Some bytes of memory, named as the kernel's author knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// "shared", "global" or "tensor".
    pub space: &'static str,
    /// The block that owns them, if shared.
    pub block: Option<[u32; 3]>,
    /// The region or buffer, and the byte within it.
    pub name: String,
    /// Address of the first byte.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {} memory at {:#x} ({}", self.bytes, self.space, self.address, self.name)?;
        match self.block {
            Some([x, y, z]) => write!(f, ", block ({x}, {y}, {z}))"),
            None => f.write_str(")"),
        }
    }
}

/// One side of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whether it writes.
    pub write: bool,
    /// Whether it is made by the copy engine or the tensor cores rather than by a thread.
    pub asynchronous: bool,
    /// Whether it is asynchronous and was not known to have finished by anyone.
    pub in_flight: bool,
    /// The instruction.
    pub site: Site,
}

impl Access {
    /// Whether it reads or writes, and by whom, in words.
    pub fn how(&self) -> String {
        let kind = if self.write { "write" } else { "read" };
        let how = match (self.asynchronous, self.in_flight) {
            (true, true) => "asynchronous, still in flight",
            (true, false) => "asynchronous",
            _ => "by threads",
        };
        format!("{kind} ({how})")
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.how(), self.site)
    }
}

/// What would put the two sides of a race in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Anything at all: neither is known to happen before the other.
    Order,
    /// The end of asynchronous work, which the second side has not learnt of.
    Completion,
    /// A fence between the generic and the async proxy: the two are in order otherwise.
    ProxyFence,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Edge::Order => "an order: nothing makes the second wait for the first",
            Edge::Completion => "a wait: the second does not know the first, asynchronous one to be over",
            Edge::ProxyFence => "a fence between the generic and the async proxy: the two are in order otherwise",
        })
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// By the letter of the ISA only; nobody has seen hardware mind.
    Letter,
    /// By the letter, and hardware was seen to misbehave: with the report.
    Seen(&'static str),
    /// By any reading.
    Broken,
}

impl Grade {
    /// One word, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Letter => "letter",
            Grade::Seen(_) => "seen",
            Grade::Broken => "broken",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grade::Letter => f.write_str("by the letter; no hardware is known to mind"),
            Grade::Seen(report) => write!(f, "by the letter, and hardware has misbehaved: {report}"),
            Grade::Broken => f.write_str("broken"),
        }
    }
}

/// A warp that waits for what will not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who waits, and at which instruction.
    pub site: Site,
    /// For what: the barrier, the phase and what it lacks.
    pub awaited: String,
    /// Who has arrived there before, and where they are now.
    pub candidates: Vec<String>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n  {} waits for {}", self.site, self.awaited)?;
        for candidate in &self.candidates {
            write!(f, "\n    {candidate}")?;
        }
        Ok(())
    }
}

struct Each<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Each<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|item| item.fmt(f))
    }
}

/// What a rule of the machine was broken by. In brackets: where the PTX ISA has the rule, by the names of its chapters,
/// since their numbers change from version to version.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// Nobody can go on.
    #[error("deadlock: {}", Each(waiting))]
    Deadlock {
        /// Everyone who waits.
        waiting: Vec<Waiting>,
    },
    /// Threads go round without changing anything that another could see.
    #[error("no progress in {steps} instructions: a loop waits for what does not come")]
    NoProgress {
        /// Instructions since the last change.
        steps: u64,
    },
    /// Two accesses to the same bytes without an order between them (*Memory Consistency Model: Causality Order,
    /// Proxies, Data-races*; for copies *cp.async.bulk* and *Async proxy*).
    #[error("race on {place}\n  first  {first}\n  second {second}\n  lacks  {edge}\n  remedy {remedy}")]
    Race {
        /// The bytes.
        place: Place,
        /// The one that ran first this time.
        first: Box<Access>,
        /// The one that ran second.
        second: Box<Access>,
        /// What is missing between them.
        edge: Edge,
        /// What usually orders such a pair.
        remedy: &'static str,
    },
    /// Bytes were read that nobody wrote, and what came of them was used: as an address, to decide something, or as a
    /// result.
    #[error("read of {place}, of which byte {byte} was never written, and use of what came of it")]
    Uninitialised {
        /// The bytes.
        place: Place,
        /// The first unwritten one, from the start of the access.
        byte: u64,
    },
    /// An access outside of everything.
    #[error("access out of bounds: {place}")]
    OutOfBounds {
        /// What was asked for, and what is nearby.
        place: Place,
    },
    /// A shared-memory access to a block that has ended (*State Spaces: Shared State Space*, *barrier.cluster*).
    #[error(
        "access to {place} after that block has ended; blocks of a cluster must wait for each other before they exit"
    )]
    BlockEnded {
        /// The bytes.
        place: Place,
    },
    /// A shared-memory access to a block that may not have begun (the same).
    #[error(
        "access to {place}, a block that is not known to have started; blocks of a cluster must meet before they reach into each other"
    )]
    NotStarted {
        /// The bytes.
        place: Place,
    },
    /// A block ended that another may still have been about to reach into.
    #[error(
        "block {block:?} ends, and does not know this access to its memory to be over: {visit}; blocks of a cluster must wait for each other before they exit"
    )]
    Outlived {
        /// The block that ended.
        block: [u32; 3],
        /// The access.
        visit: Box<Site>,
    },
    /// A read through the read-only path of bytes that this kernel writes (*ld.global.nc*).
    #[error("read-only load of {place}, which this kernel has written; load it without .nc")]
    NotReadOnly {
        /// The bytes.
        place: Place,
    },
    /// A read or write of what the preceding grid produces, before waiting for it (*griddepcontrol*).
    #[error("access to {place}, which the preceding grid may still be writing; wait with griddepcontrol.wait first")]
    BeforeGridDependency {
        /// The bytes.
        place: Place,
    },
    /// An address that the hardware would refuse (*Operands: Addresses as Operands*, and each instruction's own).
    #[error("{what} is at {address:#x}; it must be a multiple of {wanted}")]
    Misaligned {
        /// The operand that lies wrong.
        what: &'static str,
        /// Its address.
        address: u64,
        /// The alignment it needs.
        wanted: u64,
    },
    /// An operand out of its range.
    #[error("{what}: {found}; expected {wanted}")]
    BadOperand {
        /// The operand.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        wanted: &'static str,
    },
    /// A barrier operation where there is no barrier (*mbarrier.init*).
    #[error("{place} is no barrier: initialise it first")]
    NotABarrier {
        /// The eight bytes.
        place: Place,
    },
    /// A barrier was made where one is alive (*mbarrier.inval*).
    #[error("{place} is a barrier in use; invalidate it before initialising it again")]
    Reinitialised {
        /// The eight bytes.
        place: Place,
    },
    /// An ordinary access to a barrier's bytes (*Size and alignment of mbarrier object*).
    #[error("{place} holds a barrier, and is accessed as data")]
    BarrierAsData {
        /// The bytes.
        place: Place,
    },
    /// More arrivals than a phase expects (*Phase of the mbarrier object*, *Arrive-on operation*).
    #[error("barrier {barrier}: {arriving} arrivals in phase {phase}, which lacks only {lacking} of {expected}")]
    OverArrival {
        /// The barrier's name.
        barrier: String,
        /// Its phase.
        phase: u32,
        /// Arrivals of this instruction.
        arriving: u32,
        /// Arrivals the phase still lacks.
        lacking: u32,
        /// Arrivals it expects in all.
        expected: u32,
    },
    /// A transaction count beyond what the hardware can hold (*Contents of the mbarrier object*).
    #[error("barrier {barrier}: transaction count {bytes} in phase {phase} is beyond ±(2^20 − 1)")]
    TransactionOverflow {
        /// The barrier's name.
        barrier: String,
        /// Its phase.
        phase: u32,
        /// The count.
        bytes: i64,
    },
    /// A block ended with a barrier whose bytes do not add up (*Tracking asynchronous operations by the mbarrier
    /// object*).
    #[error(
        "barrier {barrier}: transaction count is {bytes} in phase {phase} at the end of the block; bytes expected and bytes copied differ"
    )]
    TransactionImbalance {
        /// The barrier's name.
        barrier: String,
        /// Its phase.
        phase: u32,
        /// Bytes expected less bytes copied.
        bytes: i64,
    },
    /// A block ended while something still worked on its memory.
    #[error("the block ends with work in flight: {work}")]
    Unfinished {
        /// The work.
        work: Box<Site>,
    },
    /// Participants disagree about a named barrier (*barrier{.cta}*).
    #[error(
        "named barrier {id}: {found} threads here, {expected} threads elsewhere; all who meet must give the same number"
    )]
    NamedBarrierMismatch {
        /// Which barrier.
        id: u32,
        /// This instruction's count.
        found: u32,
        /// The count of those already there.
        expected: u32,
    },
    /// Lanes are missing where the warp must be together (each instruction's *.aligned*).
    #[error("divergence: lanes {wanted:#010x} must execute this together, only {found:#010x} do")]
    Divergence {
        /// Lanes that must be here.
        wanted: u32,
        /// Lanes that are.
        found: u32,
    },
    /// Lanes disagree about what must be the same for all.
    #[error("{what} differs between lanes, warps or blocks that must agree")]
    NotUniform {
        /// What.
        what: &'static str,
    },
    /// The warps of a warpgroup did not execute the same matrix instruction (*wgmma.mma_async*).
    #[error("the warps of the warpgroup disagree: another warp executed {other}")]
    WarpgroupMismatch {
        /// The other instruction.
        other: Box<Site>,
    },
    /// A register was read before it was written.
    #[error("register {reg} is read before it is written, in lanes {lanes:#010x}")]
    UndefinedRegister {
        /// The register.
        reg: RegId,
        /// The lanes.
        lanes: u32,
    },
    /// A register was touched that a running multiplication owns (*wgmma.wait_group*), or overwritten while a load of
    /// tensor memory may still write it (*tcgen05: Register dependencies, same thread*).
    #[error("register {reg} is touched while asynchronous work owns it: {owner}; wait for that first")]
    RegisterInFlight {
        /// The register.
        reg: RegId,
        /// The multiplication or load.
        owner: Box<Site>,
    },
    /// A register was used otherwise, and then by a multiplication, without a fence between (*wgmma.fence*).
    #[error(
        "register {reg} is used by a multiplication, and was used otherwise since the last wgmma.fence: by a thread, by a multiplication of another shape, or before there was any fence"
    )]
    MissingFence {
        /// The register.
        reg: RegId,
    },
    /// A multiplication wants from the collector what is not in it (*tcgen05.mma: collector usage*).
    #[error(
        "the collector does not hold this A as it is now: fill it with this matrix, and multiply with no other until its last use"
    )]
    NotCollected,
    /// Columns of tensor memory were used that are not allocated, or not as said (*Tensor Memory Allocation*).
    #[error("{columns} columns of tensor memory from {column} on are not allocated, or not together")]
    TensorMemory {
        /// The first column.
        column: u32,
        /// How many.
        columns: u32,
    },
    /// A block ended with tensor memory allocated (*tcgen05.dealloc*).
    #[error("the block ends without giving back {columns} columns of tensor memory from {column} on")]
    TensorMemoryLeak {
        /// The first column.
        column: u32,
        /// How many.
        columns: u32,
    },
    /// More of something than there is.
    #[error("{what}: {asked} asked for, {limit} there")]
    OverLimit {
        /// Of what.
        what: &'static str,
        /// How much was wanted.
        asked: u64,
        /// How much there is.
        limit: u64,
    },
    /// The launch does not fit the kernel.
    #[error("launch: {what}; {remedy}")]
    BadLaunch {
        /// What does not fit.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The run breaks no rule, and the kernel does.
    #[error("it runs, but no GPU would take the kernel: {what}")]
    Illegal {
        /// What [`ptx::Kernel::check`] says.
        what: String,
    },
    /// An instruction this simulator cannot execute.
    #[error("not simulated: {instruction}")]
    Unsupported {
        /// The instruction.
        instruction: String,
    },
    /// The kernel reported a failure of its own.
    #[error("the kernel executed trap")]
    Trap,
}

/// The report of a copy that overwrote shared memory while threads still read it, though a barrier lay between.
const READ_THEN_COPIED: &str = "DeepEP 621, on GB200";

/// A race, taken apart: what [`FaultKind::Race`] holds.
#[derive(Clone, Copy, Debug)]
pub struct Race<'f> {
    /// The bytes.
    pub place: &'f Place,
    /// The access that ran first this time.
    pub first: &'f Access,
    /// The one that ran second.
    pub second: &'f Access,
    /// What is missing between them.
    pub edge: Edge,
    /// What usually orders such a pair.
    pub remedy: &'static str,
}

impl FaultKind {
    /// The two sides, if it is a race.
    pub fn race(&self) -> Option<Race<'_>> {
        match self {
            FaultKind::Race { place, first, second, edge, remedy } => {
                Some(Race { place, first, second, edge: *edge, remedy })
            }
            _ => None,
        }
    }

    /// How bad it is where published kernels are held to it, too ([`Rules::Practice`](crate::Rules::Practice)).
    pub(crate) fn grade(&self) -> Grade {
        match self {
            FaultKind::Race { edge: Edge::ProxyFence, first, .. } if !first.write => Grade::Seen(READ_THEN_COPIED),
            _ => Grade::Broken,
        }
    }

    /// Whether a run can go on after it as if it were not there.
    pub(crate) fn may_be_gone_on_from(&self) -> bool {
        matches!(
            self,
            FaultKind::Race { .. }
                | FaultKind::Uninitialised { .. }
                | FaultKind::NotReadOnly { .. }
                | FaultKind::BeforeGridDependency { .. }
                | FaultKind::RegisterInFlight { .. }
                | FaultKind::MissingFence { .. }
                | FaultKind::Unfinished { .. }
                | FaultKind::Outlived { .. }
                | FaultKind::TransactionImbalance { .. }
                | FaultKind::TensorMemoryLeak { .. }
        )
    }

    /// A short name of the rule, for tables.
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::Deadlock { .. } => "deadlock",
            FaultKind::NoProgress { .. } => "no progress",
            FaultKind::Race { .. } => "race",
            FaultKind::Uninitialised { .. } => "uninitialised read",
            FaultKind::OutOfBounds { .. } => "out of bounds",
            FaultKind::BlockEnded { .. } | FaultKind::Outlived { .. } => "block ended",
            FaultKind::NotStarted { .. } => "block not started",
            FaultKind::NotReadOnly { .. } => "not read-only",
            FaultKind::BeforeGridDependency { .. } => "before grid dependency",
            FaultKind::Misaligned { .. } => "misaligned",
            FaultKind::BadOperand { .. } => "bad operand",
            FaultKind::NotABarrier { .. } => "not a barrier",
            FaultKind::Reinitialised { .. } => "re-initialised barrier",
            FaultKind::BarrierAsData { .. } => "barrier as data",
            FaultKind::OverArrival { .. } => "over-arrival",
            FaultKind::TransactionOverflow { .. } => "transaction overflow",
            FaultKind::TransactionImbalance { .. } => "transaction imbalance",
            FaultKind::Unfinished { .. } => "unfinished work",
            FaultKind::NamedBarrierMismatch { .. } => "named barrier mismatch",
            FaultKind::Divergence { .. } => "divergence",
            FaultKind::NotUniform { .. } => "not uniform",
            FaultKind::WarpgroupMismatch { .. } => "warpgroup mismatch",
            FaultKind::UndefinedRegister { .. } => "undefined register",
            FaultKind::RegisterInFlight { .. } => "register in flight",
            FaultKind::MissingFence { .. } => "missing wgmma fence",
            FaultKind::NotCollected => "not collected",
            FaultKind::TensorMemory { .. } => "tensor memory not allocated",
            FaultKind::TensorMemoryLeak { .. } => "tensor memory leaked",
            FaultKind::OverLimit { .. } => "over limit",
            FaultKind::BadLaunch { .. } => "bad launch",
            FaultKind::Illegal { .. } => "illegal kernel",
            FaultKind::Unsupported { .. } => "not simulated",
            FaultKind::Trap => "trap",
        }
    }
}
