//! Work in flight beside the threads: copies and multiplications that were issued and complete when the schedule says so.
//!
//! What a piece of work may touch was checked when it was issued. Completing it moves the bytes and tells whoever counts:
//! a barrier for copies into shared memory, the issuing thread's groups for stores, the warpgroup for multiplications.

use std::collections::VecDeque;
use std::ops::Range;

use ptx::RegId;
use ptx::descriptor::WgmmaDescriptor;
use ptx::instr::MatrixElement;

use crate::barrier::Carry;
use crate::clock::Knowledge;
use crate::error::FaultKind;
use crate::machine::{Block, Cluster, Core};
use crate::memory::SharedMemory;
use crate::race::RecordId;
use crate::tensor_core;
use crate::tensor_memory::{self, BlockScaled};
use crate::warp::{Lanes, lanes};

/// A piece of work, and the instruction that issued it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) block: usize,
    pub(crate) warp: usize,
    pub(crate) lanes: u32,
    pub(crate) pc: u32,
    pub(crate) work: Work,
}

#[derive(Debug)]
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

/// A copy into shared memory.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) target: usize,
    /// (offset, bytes, source) of each part.
    pub(crate) parts: Vec<(u32, u32, CopySource)>,
    /// Block whose shared memory is the source, if one is.
    pub(crate) source_block: Option<usize>,
    /// Block and offset of the barrier that counts.
    pub(crate) barrier: (usize, u32),
    pub(crate) bytes: u32,
    pub(crate) record: RecordId,
}

/// Copies that the lanes of a warp have issued with one instruction.
#[derive(Debug)]
pub(crate) struct ByThreads {
    /// Its name among those of the warp that are in flight.
    pub(crate) name: u64,
    /// (offset, bytes, source) of each part.
    pub(crate) parts: Vec<(u32, u32, CopySource)>,
}

/// A copy out of shared memory.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// (offset, bytes, global address) of each part.
    pub(crate) parts: Vec<(u32, u32, u64)>,
    pub(crate) lane: usize,
    /// The thread's group it belongs to, from one.
    pub(crate) group: u32,
}

/// A thread's bulk stores.
#[derive(Debug)]
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
#[derive(Debug)]
pub(crate) struct Mma {
    pub(crate) pc: u32,
    /// One bit for each warp that has issued it.
    pub(crate) issued: u32,
    pub(crate) n: u32,
    pub(crate) element: MatrixElement,
    pub(crate) d: Vec<RegId>,
    /// Each warp's fragments, or a descriptor and whether the matrix is M-major.
    pub(crate) fragments: Vec<[Lanes; 4]>,
    /// Lanes in which each fragment's register comes of what was never written.
    pub(crate) tainted: Vec<[u32; 4]>,
    pub(crate) a: Option<(WgmmaDescriptor, bool)>,
    pub(crate) b: (WgmmaDescriptor, bool),
    pub(crate) accumulate: bool,
    pub(crate) negate: [bool; 2],
    pub(crate) record: RecordId,
}

/// The queue of a warpgroup's tensor core.
#[derive(Debug)]
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

/// A piece of work for Blackwell's tensor cores.
#[derive(Debug)]
pub(crate) enum TensorOp {
    /// 32 rows of 16 bytes at these shared addresses, to four columns from this one on, for each quarter of the lanes.
    CopyScales {
        /// The blocks that do it, each within its own memories.
        workers: Range<usize>,
        column: u32,
        pieces: Vec<u32>,
    },
    /// By the blocks that do it: each has its rows of A, and all of them together those of B.
    Multiply(Range<usize>, BlockScaled),
    /// Tells barriers (by block and offset) that all before it is done.
    Commit { barriers: Vec<(usize, u32)> },
}

impl TensorOp {
    /// What it is to those that come after it; nothing if it does no work itself.
    pub(crate) fn piece(&self) -> Option<Piece> {
        match self {
            TensorOp::CopyScales { .. } => Some(Piece::Copy),
            TensorOp::Multiply(_, mma) => Some(Piece::Multiply(mma.d, mma.n)),
            TensorOp::Commit { .. } => None,
        }
    }

    /// The blocks whose memory or barriers it needs, one bit each.
    pub(crate) fn blocks(&self) -> u32 {
        match self {
            TensorOp::CopyScales { workers, .. } | TensorOp::Multiply(workers, _) => {
                workers.clone().fold(0, |blocks, rank| blocks | 1 << rank)
            }
            TensorOp::Commit { barriers } => barriers.iter().fold(0, |blocks, (rank, _)| blocks | 1 << rank),
        }
    }
}

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

/// The work that one thread has issued to Blackwell's tensor cores. It is done in order here; what may rely on that is
/// for [`Piece::precedes`] to say.
#[derive(Debug)]
pub(crate) struct TensorPipe {
    pub(crate) slot: u32,
    pub(crate) queue: VecDeque<TensorOp>,
    /// Copies and multiplications issued, and how many are done.
    pub(crate) issued: Vec<Piece>,
    done: u32,
}

impl TensorPipe {
    pub(crate) fn new(slot: u32) -> Self {
        TensorPipe { slot, queue: VecDeque::new(), issued: Vec::new(), done: 0 }
    }
}

impl Core<'_> {
    /// Completes a piece of work.
    pub(crate) fn complete(&mut self, cluster: &mut Cluster, job: Job) -> Result<(), FaultKind> {
        let Job { block, warp, lanes, pc, work } = job;
        match work {
            Work::Incoming(copy) => self.deliver(cluster, block, &copy),
            Work::ByThreads(copy) => {
                self.place(cluster, block, block, &copy.parts)?;
                if let Some(warp) = &mut cluster.blocks[block].warps[warp] {
                    warp.copies.flying.retain(|(name, ..)| *name != copy.name);
                }
                Ok(())
            }
            Work::Reading(copy) => {
                let shared = &cluster.blocks[block].shared.data;
                let part = |&(offset, bytes, _): &(u32, u32, u64)| &shared[offset as usize..(offset + bytes) as usize];
                let data: Vec<u8> = copy.parts.iter().flat_map(part).copied().collect();
                self.outstanding(cluster, block, warp, &copy, 0);
                cluster.jobs.push(Job { block, warp, lanes, pc, work: Work::Writing(copy, data) });
                Ok(())
            }
            Work::Writing(copy, data) => {
                self.write_out(&copy, &data)?;
                self.outstanding(cluster, block, warp, &copy, 1);
                Ok(())
            }
            Work::Multiply { group } => {
                self.multiply(cluster, block, group);
                Ok(())
            }
            Work::Tensor { lane, .. } => self.tensor(cluster, block, (warp, lane)),
        }
    }

    fn outstanding(&self, cluster: &mut Cluster, block: usize, warp: usize, copy: &Outgoing, stage: usize) {
        if let Some(stores) = cluster.blocks[block].stores.get_mut(&(warp, copy.lane)) {
            stores.outstanding[copy.group as usize - 1][stage] -= 1;
        }
    }

    /// Writes the parts of a copy that `block` has issued into the shared memory of `target`.
    fn place(
        &mut self,
        cluster: &mut Cluster,
        block: usize,
        target: usize,
        parts: &[(u32, u32, CopySource)],
    ) -> Result<(), FaultKind> {
        for &(offset, bytes, source) in parts {
            let (offset, bytes) = (offset as usize, bytes as usize);
            if let CopySource::Shared(from) = source {
                let (shared, from) = (&cluster.blocks[block].shared, from as usize);
                let (data, written) = (shared.data[from..from + bytes].to_vec(), shared.written.clone());
                let shared = &mut cluster.blocks[target].shared;
                shared.data[offset..offset + bytes].copy_from_slice(&data);
                shared.written.copy(offset, &written, from, bytes);
                continue;
            }
            let shared = &mut cluster.blocks[target].shared;
            let to = &mut shared.data[offset..offset + bytes];
            match source {
                CopySource::Bytes(data) => to.copy_from_slice(&data[..bytes]),
                CopySource::Global(address) => {
                    let found = self.memory.find(address, bytes as u64);
                    let span = found.ok_or_else(|| self.beyond(address, bytes as u64))?;
                    let buffer = &self.memory.buffers[span.buffer];
                    to.copy_from_slice(&buffer.data[span.offset..span.offset + bytes]);
                    shared.written.copy(offset, &buffer.written, span.offset, bytes);
                    continue;
                }
                CopySource::Zero | CopySource::Shared(_) => to.fill(0),
            }
            shared.written.set(offset, bytes);
        }
        Ok(())
    }

    fn deliver(&mut self, cluster: &mut Cluster, block: usize, copy: &Incoming) -> Result<(), FaultKind> {
        self.place(cluster, block, copy.target, &copy.parts)?;
        let (rank, offset) = copy.barrier;
        let name = self.program.shared_name(offset);
        let block = &mut cluster.blocks[rank];
        let Some(bar) = block.shared.barriers.get_mut(&offset) else {
            return Err(FaultKind::NotABarrier { place: self.shared_place(block.id, offset, 8) });
        };
        self.log.complete(copy.record, bar.slot, bar.phase + 1);
        bar.add_bytes(&name, -i64::from(copy.bytes))?;
        bar.settle(cluster.index);
        Ok(())
    }

    pub(crate) fn beyond(&self, address: u64, bytes: u64) -> FaultKind {
        FaultKind::OutOfBounds { place: self.global_place(address, bytes) }
    }

    fn write_out(&mut self, copy: &Outgoing, data: &[u8]) -> Result<(), FaultKind> {
        let mut at = 0;
        for &(_, bytes, address) in &copy.parts {
            let span = self.memory.find(address, bytes.into()).ok_or_else(|| self.beyond(address, bytes.into()))?;
            let buffer = &mut self.memory.buffers[span.buffer];
            let bytes = bytes as usize;
            buffer.data[span.offset..span.offset + bytes].copy_from_slice(&data[at..at + bytes]);
            buffer.written.set(span.offset, bytes);
            at += bytes;
        }
        Ok(())
    }

    fn multiply(&mut self, cluster: &mut Cluster, rank: usize, group: usize) {
        let block = &mut cluster.blocks[rank];
        let Some(mma) = block.warpgroups[group].queue.pop_front() else { return };
        block.warpgroups[group].done += 1;
        let n = mma.n as usize;
        // The elements of an operand, and which of its rows were never written.
        let operand = |(desc, transposed): &(WgmmaDescriptor, bool), rows: u32, negate: bool| {
            let pieces = tensor_core::pieces(desc, rows, *transposed);
            let mut elements = tensor_core::widen(mma.element, &gather(&block.shared.data, &pieces));
            if negate {
                elements.iter_mut().for_each(|x| *x = -*x);
            }
            let lacks =
                |address: u32| block.shared.written.missing((address - SharedMemory::START) as usize, 16).is_some();
            let missing = tensor_core::rows_missing(&pieces, rows as usize, *transposed, lacks);
            (tensor_core::by_depth(&elements, rows as usize, *transposed), missing)
        };
        let (a, rows) = match &mma.a {
            Some(a) => operand(a, 64, mma.negate[0]),
            None => (from_fragments(&mma), tainted_rows(&mma)),
        };
        let (b, columns) = operand(&mma.b, mma.n, mma.negate[1]);
        let mut d = vec![0.0f32; 64 * n];
        let place = |warp: usize, lane: usize, reg: usize| {
            let (row, column) = (16 * warp + lane / 4 + 8 * (reg / 2 % 2), 8 * (reg / 4) + 2 * (lane % 4) + reg % 2);
            row * n + column
        };
        let warps = &mut block.warps[4 * group..4 * group + 4];
        if mma.accumulate {
            for (index, warp) in warps.iter().flatten().enumerate() {
                for (reg, id) in mma.d.iter().enumerate() {
                    let values = warp.get(*id);
                    (0..32).for_each(|lane| d[place(index, lane, reg)] = f32::from_bits(values[lane] as u32));
                }
            }
        }
        tensor_core::multiply(&mut d, &a, &b, n);
        for (index, warp) in warps.iter_mut().flatten().enumerate() {
            for (reg, id) in mma.d.iter().enumerate() {
                let before = if mma.accumulate { warp.tainted(*id) } else { 0 };
                (0..32).for_each(|lane| warp.deposit(*id, lane, d[place(index, lane, reg)].to_bits()));
                let missing = |lane: usize| {
                    let at = place(index, lane, reg);
                    let is_in = |list: &Option<Vec<bool>>, at: usize| list.as_ref().is_some_and(|list| list[at]);
                    is_in(&rows, at / n) || is_in(&columns, at % n)
                };
                if before != 0 || rows.is_some() || columns.is_some() {
                    let mask = (0..32).filter(|&lane| missing(lane)).fold(before, |mask, lane| mask | 1 << lane);
                    warp.taint(*id, mask, mma.pc);
                }
            }
        }
        self.profile.tensor_macs += 64 * u64::from(mma.n) * tensor_core::DEPTH as u64;
    }
}

impl Core<'_> {
    /// Does the next piece of work of a tcgen05 pipeline.
    fn tensor(&mut self, cluster: &mut Cluster, rank: usize, key: (usize, usize)) -> Result<(), FaultKind> {
        let Some(pipe) = cluster.blocks[rank].pipes.get_mut(&key) else { return Ok(()) };
        let Some(op) = pipe.queue.pop_front() else { return Ok(()) };
        pipe.done += u32::from(op.piece().is_some());
        let (slot, done) = (pipe.slot, pipe.done);
        match op {
            TensorOp::CopyScales { workers, column, pieces } => {
                for block in &mut cluster.blocks[workers] {
                    let memory = block.tensor.get_or_insert_default();
                    let bytes = bytes_at(&block.shared.data, &pieces);
                    for (cell, word) in bytes.chunks_exact(4).enumerate() {
                        let (row, column) = (cell as u32 / 4, column + cell as u32 % 4);
                        let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                        (0..4).for_each(|quarter| memory.put(32 * quarter + row, column, bits));
                    }
                }
            }
            TensorOp::Multiply(workers, mma) => {
                let blocks = &mut cluster.blocks[workers];
                let rows_of_b = mma.n / blocks.len() as u32;
                let operand =
                    |block: &Block, desc, rows| bytes_at(&block.shared.data, &tensor_core::pieces(desc, rows, false));
                let b: Vec<u8> = blocks.iter().flat_map(|block| operand(block, &mma.b, rows_of_b)).collect();
                for block in blocks {
                    let a = operand(block, &mma.a, tensor_memory::LANES);
                    let memory = block.tensor.get_or_insert_default();
                    memory.check_operands(block.id, &mma)?;
                    memory.multiply(&mma, &a, &b);
                    self.profile.tensor_macs += u64::from(tensor_memory::LANES * mma.n) * tensor_memory::DEPTH as u64;
                }
            }
            TensorOp::Commit { barriers } => {
                let mut published = Knowledge::new(cluster.index);
                published.raise(slot, done);
                for (rank, offset) in barriers {
                    let name = self.program.shared_name(offset);
                    let block = &mut cluster.blocks[rank];
                    let Some(bar) = block.shared.barriers.get_mut(&offset) else {
                        return Err(FaultKind::NotABarrier { place: self.shared_place(block.id, offset, 8) });
                    };
                    bar.publish(cluster.index, Carry::Local, &published);
                    bar.arrive(&name, (rank, key.0), 1)?;
                    bar.settle(cluster.index);
                }
            }
        }
        Ok(())
    }
}

/// The rows of A of which a part was never written, if it is in registers and there are some.
fn tainted_rows(mma: &Mma) -> Option<Vec<bool>> {
    let mut rows = vec![false; 64];
    for (warp, registers) in mma.tainted.iter().enumerate() {
        for (reg, mask) in registers.iter().enumerate() {
            lanes(*mask).for_each(|lane| rows[16 * warp + lane / 4 + 8 * (reg % 2)] = true);
        }
    }
    rows.contains(&true).then_some(rows)
}

/// The bytes at these shared addresses, sixteen at each.
fn bytes_at(shared: &[u8], pieces: &[u32]) -> Vec<u8> {
    let piece = |&address: &u32| {
        let at = (address - SharedMemory::START) as usize;
        &shared[at..at + 16]
    };
    pieces.iter().flat_map(piece).copied().collect()
}

/// The 16-bit elements at these shared addresses, eight at each.
fn gather(shared: &[u8], pieces: &[u32]) -> Vec<u16> {
    let piece = |&address: &u32| {
        let at = (address - SharedMemory::START) as usize;
        shared[at..at + 16].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
    };
    pieces.iter().flat_map(piece).collect()
}

/// A by depth, then row, from the registers of four warps.
fn from_fragments(mma: &Mma) -> Vec<f32> {
    let mut bits = vec![0u16; tensor_core::DEPTH * 64];
    for (warp, fragments) in mma.fragments.iter().enumerate() {
        for (reg, values) in fragments.iter().enumerate() {
            for (lane, value) in values.iter().enumerate() {
                let (row, k) = (16 * warp + lane / 4 + 8 * (reg % 2), 2 * (lane % 4) + 8 * (reg / 2));
                bits[k * 64 + row] = *value as u16;
                bits[(k + 1) * 64 + row] = (*value >> 16) as u16;
            }
        }
    }
    let mut elements = tensor_core::widen(mma.element, &bits);
    if mma.negate[0] {
        elements.iter_mut().for_each(|x| *x = -*x);
    }
    elements
}
