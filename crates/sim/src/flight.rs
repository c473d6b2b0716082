//! Work in flight beside the threads: copies and multiplications that were issued and complete when the schedule says
//! so.
//!
//! What a piece of work may touch was checked when it was issued. Completing it moves the bytes and tells whoever
//! counts: a barrier for copies into shared memory, the issuing thread's groups for stores, the warpgroup for
//! multiplications.

use std::collections::VecDeque;
use std::ops::Range;

use ptx::RegId;
use ptx::descriptor::{Swizzle, WgmmaDescriptor};
use ptx::instr::MatrixElement;

use crate::clock::Knowledge;
use crate::lanes::Words;
use crate::memory::SharedMemory;
use crate::race::{Piece, RecordId, Writers};
use crate::tensor_core;
use crate::tensor_memory::{BlockScaled, Dense, LANES};
use crate::tma;

/// A piece of work, and the instruction that issued it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) block: usize,
    pub(crate) warp: usize,
    pub(crate) lanes: u32,
    pub(crate) pc: u32,
    pub(crate) work: Work,
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Bytes on their way into a block's shared memory.
    Incoming(Incoming),
    /// Bytes that the threads of a warp copy into their block's shared memory, one by one.
    ByThreads(ByThreads),
    /// Bytes of shared memory on their way to global memory, not yet read.
    Reading(Outgoing),
    /// The same, read and not yet written.
    Writing(Outgoing, Vec<u8>),
    /// The next multiplication of a warpgroup.
    Multiply { group: usize },
    /// The next piece of work of a lane's tcgen05 pipeline.
    Tensor {
        lane: usize,
        /// The blocks whose memory it needs, one bit each.
        touched: u32,
    },
}

impl Job {
    /// The access that its end will complete.
    pub(crate) fn record(&self) -> Option<RecordId> {
        match &self.work {
            Work::Incoming(copy) => Some(copy.record),
            _ => None,
        }
    }

    /// The queue that does its work in order, if it is one's: a warpgroup's multiplications, or a lane's tcgen05
    /// pipeline.
    pub(crate) fn queue(&self) -> Option<(usize, usize, usize)> {
        match &self.work {
            Work::Multiply { group } => Some((self.block, *group, 0)),
            Work::Tensor { lane, .. } => Some((self.block, self.warp, 1 + lane)),
            _ => None,
        }
    }

    /// Whether the work still needs a block's shared memory.
    pub(crate) fn touches(&self, rank: usize) -> bool {
        match &self.work {
            Work::Incoming(copy) => copy.target == rank || copy.source_block == Some(rank),
            Work::ByThreads(_) | Work::Reading(_) | Work::Multiply { .. } => self.block == rank,
            Work::Tensor { touched, .. } => touched >> rank & 1 == 1,
            Work::Writing(..) => false,
        }
    }
}

/// Where a part of a copy comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopySource {
    /// A global address.
    Global(u64),
    /// Zeros, for what lies outside of a tensor.
    Zero,
    /// The shared memory of the issuing block, by offset.
    Shared(u32),
    /// These bytes.
    Bytes([u8; 16]),
}

/// A part of a copy into shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) source: CopySource,
    /// How its pieces of 16 bytes are permuted, if it is a row of a tensor's box.
    pub(crate) permuted: Option<Swizzle>,
}

impl Part {
    /// Bytes that arrive as they are.
    pub(crate) fn plain(offset: u32, bytes: u32, source: CopySource) -> Self {
        Part { offset, bytes, source, permuted: None }
    }

    /// Whether it fills the bytes from its offset on, in whatever order.
    pub(crate) fn fills_its_place(self) -> bool {
        self.permuted.is_none_or(|swizzle| tma::keeps_place(swizzle, self.offset + SharedMemory::START, self.bytes))
    }

    /// Its pieces as they lie in shared memory: (offset, bytes, source).
    pub(crate) fn pieces(self) -> impl Iterator<Item = (u32, u32, CopySource)> {
        let whole = self.permuted.is_none().then_some((self.offset, self.bytes, self.source));
        let mut done = 0;
        let swizzle = self.permuted.into_iter();
        let cut = swizzle.flat_map(move |s| tma::permuted(s, self.offset + SharedMemory::START, self.bytes));
        whole.into_iter().chain(cut.map(move |(address, bytes)| {
            let source = match self.source {
                CopySource::Global(start) => CopySource::Global(start + u64::from(done)),
                source => source,
            };
            done += bytes;
            (address - SharedMemory::START, bytes, source)
        }))
    }
}

/// A copy into shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub(crate) target: usize,
    pub(crate) parts: Vec<Part>,
    /// Block whose shared memory is the source, if one is.
    pub(crate) source_block: Option<usize>,
    /// Block and offset of the barrier that counts.
    pub(crate) barrier: (usize, u32),
    pub(crate) bytes: u32,
    pub(crate) record: RecordId,
}

/// Copies that the lanes of a warp have issued with one instruction.
#[derive(Clone, Debug)]
pub(crate) struct ByThreads {
    /// Its name among those of the warp that are in flight.
    pub(crate) name: u64,
    pub(crate) parts: Vec<Part>,
}

/// A copy out of shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// (offset, bytes, global address) of each part.
    pub(crate) parts: Vec<(u32, u32, u64)>,
    pub(crate) lane: usize,
    /// The thread's group it belongs to, from one.
    pub(crate) group: u32,
}

/// A thread's bulk stores.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub(crate) read_slot: u32,
    pub(crate) write_slot: u32,
    pub(crate) committed: u32,
    /// Reads and writes outstanding, by group; the last may be open.
    pub(crate) outstanding: Vec<[u32; 2]>,
    /// Groups whose reads the thread has waited for.
    pub(crate) awaited: u32,
    /// The last store issued.
    pub(crate) last: u32,
}

impl Stores {
    pub(crate) fn new(read_slot: u32, write_slot: u32) -> Self {
        Stores { read_slot, write_slot, committed: 0, outstanding: Vec::new(), awaited: 0, last: 0 }
    }

    /// Groups done, counted from the first: all their sources read, or also all their destinations written.
    pub(crate) fn done(&self, read: bool) -> u32 {
        let closed = &self.outstanding[..(self.committed as usize).min(self.outstanding.len())];
        let unfinished = closed.iter().position(|left| left[usize::from(!read)] > 0);
        unfinished.map_or(self.committed, |at| at as u32)
    }
}

/// A multiplication that a warpgroup has issued, at least in part.
#[derive(Clone, Debug)]
pub(crate) struct Mma {
    pub(crate) pc: u32,
    /// One bit for each warp that has issued it.
    pub(crate) issued: u32,
    pub(crate) n: u32,
    pub(crate) element: MatrixElement,
    pub(crate) d: Vec<RegId>,
    /// Each warp's fragments, or a descriptor and whether the matrix is M-major.
    pub(crate) fragments: Vec<[Words; 4]>,
    /// Lanes in which each fragment's register comes of what was never written.
    pub(crate) tainted: Vec<[u32; 4]>,
    pub(crate) a: Option<(WgmmaDescriptor, bool)>,
    pub(crate) b: (WgmmaDescriptor, bool),
    /// The addresses of the pieces of A, if it is in shared memory, and of B; and the ranges that they come to.
    pub(crate) pieces: [Vec<u32>; 2],
    pub(crate) ranges: Vec<(u32, u32)>,
    /// The writes that made them what they are, once a warp has noted them.
    pub(crate) writers: Option<Writers>,
    pub(crate) accumulate: bool,
    pub(crate) negate: [bool; 2],
    pub(crate) record: RecordId,
}

/// The queue of a warpgroup's tensor core.
#[derive(Clone, Debug)]
pub(crate) struct Warpgroup {
    /// Slot that counts finished multiplications.
    pub(crate) slot: u32,
    pub(crate) queue: VecDeque<Mma>,
    /// Multiplications done.
    pub(crate) done: u32,
}

impl Warpgroup {
    pub(crate) fn new(slot: u32) -> Self {
        Warpgroup { slot, queue: VecDeque::new(), done: 0 }
    }
}

/// The shared addresses of the sixteen-byte pieces of a multiplication's operands in each block: of A, and of its part
/// of B.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    pub(crate) a: Vec<u32>,
    pub(crate) b: Vec<u32>,
}

impl Pieces {
    pub(crate) fn of(a: &WgmmaDescriptor, b: &WgmmaDescriptor, rows_of_b: u32) -> Self {
        Pieces { a: tensor_core::pieces(a, LANES, false), b: tensor_core::pieces(b, rows_of_b, false) }
    }
}

/// A piece of work for Blackwell's tensor cores.
#[derive(Clone, Debug)]
pub(crate) enum TensorOp {
    /// 32 rows of 16 bytes at these shared addresses, to four columns from this one on, for each quarter of the lanes.
    CopyScales {
        /// The blocks that do it, each within its own memories.
        workers: Range<usize>,
        column: u32,
        pieces: Vec<u32>,
    },
    /// By the blocks that do it: each has its rows of A, and all of them together those of B.
    Multiply(Range<usize>, BlockScaled, Pieces),
    /// The same without block scales; A's pieces are none where it is in tensor memory.
    MultiplyDense(Range<usize>, Dense, Pieces),
    /// Tells barriers (by block and offset) that all before it is done, and so is what that had been waited for.
    Commit { barriers: Vec<(usize, u32)>, known: Box<Knowledge> },
}

impl TensorOp {
    /// What it is to those that come after it; nothing if it does no work itself.
    pub(crate) fn piece(&self) -> Option<Piece> {
        match self {
            TensorOp::CopyScales { .. } => Some(Piece::Copy),
            TensorOp::Multiply(_, mma, _) => Some(mma.piece()),
            TensorOp::MultiplyDense(_, mma, _) => Some(mma.piece()),
            TensorOp::Commit { .. } => None,
        }
    }

    /// The blocks whose memory or barriers it needs, one bit each.
    pub(crate) fn blocks(&self) -> u32 {
        match self {
            TensorOp::CopyScales { workers, .. }
            | TensorOp::Multiply(workers, ..)
            | TensorOp::MultiplyDense(workers, ..) => workers.clone().fold(0, |blocks, rank| blocks | 1 << rank),
            TensorOp::Commit { barriers, .. } => barriers.iter().fold(0, |blocks, (rank, _)| blocks | 1 << rank),
        }
    }
}

/// How much of other threads' work must be done before a piece, by warp and lane.
pub(crate) type Before = Vec<((usize, usize), u32)>;

/// The work that one thread has issued to Blackwell's tensor cores. It is done in order here; what may rely on that is
/// for [`Piece::precedes`] to say.
#[derive(Clone, Debug)]
pub(crate) struct TensorPipe {
    pub(crate) slot: u32,
    pub(crate) queue: VecDeque<(Before, TensorOp)>,
    /// Copies and multiplications issued, and how many are done.
    pub(crate) issued: Vec<Piece>,
    pub(crate) done: u32,
}

impl TensorPipe {
    pub(crate) fn new(slot: u32) -> Self {
        TensorPipe { slot, queue: VecDeque::new(), issued: Vec::new(), done: 0 }
    }
}
