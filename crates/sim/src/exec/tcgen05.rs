//! Blackwell's tensor cores: allocating tensor memory, issuing copies and multiplications, reading results back.
//!
//! Of the copies into tensor memory and multiplications of one thread, only those pairs are in order that the ISA
//! lists; a commit behind them tells a barrier when they are done. Between threads, tensor memory needs the tcgen05
//! fences around whatever synchronises them, besides the synchronisation itself.

use std::ops::Range;

use ptx::descriptor::{DenseShape, ScaledShape, Tcgen05Descriptor, WgmmaDescriptor};
use ptx::instr::{CellShape, Collector, ScaledKind, Tcgen05, TensorA};
use ptx::{Address, CtaGroup, Operand, RegId, Space};

use super::{Exec, Flow, SharedSpan};
use crate::blocks::Collective;
use crate::clock::{Knowledge, PREDECESSOR};
use crate::error::FaultKind;
use crate::flight::{Job, Pieces, TensorOp, TensorPipe, Work};
use crate::lanes::{self, FULL, lanes};
use crate::limits::Rules;
use crate::memory::SharedMemory;
use crate::race::{ISSUED, Issued, Observer, Piece, Proxy, RecordId};
use crate::tensor_core;
use crate::tensor_memory::{Allocation, BlockScaled, Collected, Dense, LANES, TensorMemory};
use crate::warp::{Loading, Wait, Warp};

/// The two ways a warp reaches tensor memory, each with its own wait.
const LOADS: usize = 0;
const STORES: usize = 1;

/// What first columns of scales are multiples of. The ISA does not say. On silicon an odd column of B's scales is a
/// misaligned address, which ends the context (Modular, `linalg/arch/sm100/mma.mojo`; gau-nernst's submissions; Triton
/// and CUTLASS never make one). Scales of A, and copies, are of whole blocks of four columns in every kernel that has
/// run: others are untried.
const SCALES_OF_A: u64 = 4;
const SCALES_OF_B: u64 = 2;
const COPIED_SCALES: u64 = 4;

/// Some cells of tensor memory: lanes × columns.
#[derive(Clone, Copy)]
struct Cells {
    /// Whose tensor memory.
    block: usize,
    lane: u32,
    lanes: u32,
    column: u32,
    columns: u32,
}

impl Exec<'_, '_> {
    pub(crate) fn tcgen05(&mut self, op: &Tcgen05) -> Result<Flow, FaultKind> {
        match op {
            Tcgen05::Alloc { dst, columns, group } => self.tensor_alloc(*dst, *columns, *group),
            Tcgen05::Dealloc { addr, columns, group } => self.tensor_free(*addr, *columns, *group),
            Tcgen05::RelinquishAllocPermit { group } => {
                if let Some(wait) = self.gather(FULL)? {
                    return Ok(wait);
                }
                if let Some(wait) = self.meet_partner(*group, Collective::Relinquish)? {
                    return Ok(wait);
                }
                self.warp.collective = None;
                self.tensor_memory().closed = true;
                Ok(Flow::Next)
            }
            Tcgen05::CopyScales { dst, src, group } => {
                self.each_lane(|exec, lane| exec.copy_scales(*dst, *src, *group, lane))
            }
            Tcgen05::Mma { .. } => self.each_lane(|exec, lane| exec.block_scaled(op, lane)),
            Tcgen05::MmaDense { .. } => self.each_lane(|exec, lane| exec.dense(op, lane)),
            Tcgen05::Commit { bar, multicast, .. } => self.each_lane(|exec, lane| exec.commit(*bar, *multicast, lane)),
            Tcgen05::Load { shape, dsts, addr } => self.tensor_columns((*shape, *addr), dsts, LOADS),
            Tcgen05::Store { shape, addr, srcs } => self.tensor_columns((*shape, *addr), srcs, STORES),
            Tcgen05::WaitLoad => self.tensor_wait(LOADS),
            Tcgen05::WaitStore => self.tensor_wait(STORES),
            Tcgen05::FenceBeforeSync => {
                self.warp.learn(self.mask, |known| {
                    known.generic.join(&known.tensor);
                    known.executed.join(&known.tensor);
                });
                self.tell_issued();
                Ok(Flow::Next)
            }
            Tcgen05::FenceAfterSync => {
                // However relaxed the synchronisation was: it has to order execution, no more.
                self.warp.learn(self.mask, |known| known.tensor.join(&known.executed));
                Ok(Flow::Next)
            }
        }
    }

    /// What the lanes have issued to the tensor cores comes before what they do next, and so in the pipelines of
    /// whoever learns of that.
    fn tell_issued(&mut self) {
        for lane in lanes(self.mask) {
            if let Some(pipe) = self.cluster.blocks[self.rank].pipes.get(&(self.warp.index, lane)) {
                let (slot, issued) = (pipe.slot + ISSUED, pipe.issued.len() as u32);
                self.warp.learn(1 << lane, |known| known.executed.raise(slot, issued));
            }
        }
    }

    fn each_lane(&mut self, act: impl Fn(&mut Self, usize) -> Result<(), FaultKind>) -> Result<Flow, FaultKind> {
        for lane in lanes(self.mask) {
            act(self, lane)?;
        }
        Ok(Flow::Next)
    }

    fn tensor_memory(&mut self) -> &mut TensorMemory {
        self.cluster.blocks[self.rank].tensor.get_or_insert_default()
    }

    /// One warp of each block of a pair does this, in the same order in both; whether the first to come waits is the
    /// schedule's to say.
    fn meet_partner(&mut self, group: CtaGroup, what: Collective) -> Result<Option<Flow>, FaultKind> {
        let partner = self.rank ^ 1;
        if group == CtaGroup::One || partner >= self.cluster.blocks.len() {
            return Ok(None);
        }
        let number = match self.warp.collective {
            Some(number) => number,
            None => {
                let own = &mut self.cluster.blocks[self.rank].collectives;
                own.push(what);
                let number = own.len() as u32;
                self.warp.collective = Some(number);
                self.cluster.blocks[partner].partners_collectives = number;
                number
            }
        };
        let others = self.cluster.blocks[partner].collectives.get(number as usize - 1);
        if others.is_some_and(|others| *others != what) {
            let what = "what the blocks of a pair do about their tensor memory";
            return Err(FaultKind::NotUniform { what });
        }
        let waits = others.is_none() && self.core.chooser.meets();
        Ok(waits.then_some(Flow::Wait(Wait::Pair { number })))
    }

    fn tensor_alloc(&mut self, dst: Address, columns: Operand, group: CtaGroup) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        let columns = self.uniform("columns of tensor memory", columns)? as u32;
        let span = self.alloc_target(dst)?;
        if !columns.is_power_of_two() || !(32..=512).contains(&columns) {
            let (what, found) = ("columns of tensor memory", columns.into());
            return Err(FaultKind::BadOperand { what, found, wanted: "a power of two from 32 to 512" });
        }
        let memory = self.tensor_memory();
        if memory.least.is_some_and(|least| columns > least) {
            let (what, found) = ("columns of tensor memory", columns.into());
            return Err(FaultKind::BadOperand { what, found, wanted: "no more than in the block's allocation before" });
        }
        if memory.closed {
            let (what, found) = ("an allocation of tensor memory", columns.into());
            return Err(FaultKind::BadOperand { what, found, wanted: "one before the permit is relinquished" });
        }
        self.demand_partner(group)?;
        if let Some(wait) = self.meet_partner(group, Collective::Allocate(columns))? {
            return Ok(wait);
        }
        let pair = group == CtaGroup::Two;
        let places = self.cluster.blocks[self.rank].tenancy.places(columns, pair);
        if places.is_empty() {
            return Ok(Flow::Wait(Wait::Tensor { columns, pair }));
        }
        // By the letter columns may be any; published kernels that are alone on a multiprocessor count on the first.
        let start = match self.core.rules {
            Rules::Letter => places[self.core.chooser.place(places.len())],
            Rules::Practice => places[0],
        };
        self.warp.collective = None;
        self.cluster.blocks[self.rank].tenancy.take(start, columns, pair);
        let allocation = Allocation { column: start, columns, warp: self.warp.index };
        self.tensor_memory().allocate(allocation);
        // To the ISA this is a weak store, of a proxy that it does not name. Triton lets copies overwrite the word
        // without a fence.
        let record = match self.core.rules {
            Rules::Letter => self.record(None),
            Rules::Practice => self.written_by_tensor_cores(),
        };
        self.touch_shared(span, 4, true, Some(0), record)?;
        let shared = &mut self.cluster.blocks[self.rank].shared;
        let at = span.offset as usize;
        shared.data[at..at + 4].copy_from_slice(&start.to_le_bytes());
        shared.written.set(at, 4);
        Ok(Flow::Next)
    }

    /// A pair's columns are allocated where the other block is known to have begun: the ISA leaves that to the warp
    /// that allocates (`tcgen05.alloc`); a tutorial that did not was found by the sanitizer (NVIDIA/cutlass#3316).
    fn demand_partner(&self, group: CtaGroup) -> Result<(), FaultKind> {
        let Some(partner) = self.cluster.blocks.get(self.rank ^ 1).filter(|_| group == CtaGroup::Two) else {
            return Ok(());
        };
        if self.warp.knowledge(0).executed.any(&partner.slots) {
            return Ok(());
        }
        Err(FaultKind::NotStarted { place: TensorMemory::place(partner.id, 0, 0) })
    }

    /// Where an allocation leaves its address, the same for all lanes.
    fn alloc_target(&self, dst: Address) -> Result<SharedSpan, FaultKind> {
        let addresses = self.addresses(dst);
        if addresses.iter().any(|address| *address != addresses[0]) {
            return Err(FaultKind::NotUniform { what: "where an allocation leaves its address" });
        }
        Self::demand("where an allocation leaves its address", addresses[0], 4)?;
        self.shared_span(Space::Shared, addresses[0], 4)
    }

    /// The blocks that work for an instruction: this one, or the pair that it is of. Either of a pair may issue
    /// (*Issue Granularity*), though published kernels leave it to the first.
    fn workers(&self, group: CtaGroup) -> Result<Range<usize>, FaultKind> {
        match group {
            CtaGroup::One => Ok(self.rank..self.rank + 1),
            CtaGroup::Two if self.rank | 1 < self.cluster.blocks.len() => Ok(self.rank & !1..(self.rank | 1) + 1),
            CtaGroup::Two => {
                let (what, found) = ("the rank of a block that gives work to a pair", self.rank as u64);
                Err(FaultKind::BadOperand { what, found, wanted: "one of two blocks of a cluster" })
            }
        }
    }

    fn tensor_free(&mut self, addr: RegId, columns: Operand, group: CtaGroup) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        let start = self.uniform("the address of tensor memory", Operand::Reg(addr))? as u32;
        let columns = self.uniform("columns of tensor memory", columns)? as u32;
        let allocated = &self.tensor_memory().allocated;
        let Some(found) = allocated.iter().position(|found| (found.column, found.columns) == (start, columns)) else {
            return Err(FaultKind::TensorMemory { column: start & 0xffff, columns });
        };
        let (by, own) = (allocated[found].warp, self.warp.index);
        if by != own && self.core.rules == Rules::Letter {
            let what = "the warp that gives tensor memory back";
            return Err(FaultKind::BadOperand { what, found: own as u64, wanted: "the one that has allocated it" });
        }
        if let Some(wait) = self.meet_partner(group, Collective::GiveBack(columns))? {
            return Ok(wait);
        }
        self.warp.collective = None;
        // Giving columns back is the last access to them: everything else must be known to be over, of a pair in both
        // blocks. Published kernels count on any barrier for that; by the letter it takes the fences as of every other
        // access.
        let before = self.warp.known.tensor.clone();
        if self.core.rules == Rules::Practice {
            let Knowledge { tensor, executed, .. } = &mut self.warp.known;
            tensor.join(executed);
            let warps = self.cluster.blocks.iter().flat_map(|block| block.warps.iter().flatten());
            for (slot, _) in warps.flat_map(|warp| warp.tensor) {
                tensor.raise(slot, executed.get(self.cluster.index, slot + Warp::AWAITED));
            }
        }
        self.touch_freed(start, columns, group)?;
        self.warp.known.tensor = before;
        let freed = self.tensor_memory().allocated.remove(found);
        self.cluster.blocks[self.rank].tenancy.give_back(freed.column);
        Ok(Flow::Next)
    }

    /// Notes the last access to columns, of a pair in both blocks, and forgets all before it.
    fn touch_freed(&mut self, start: u32, columns: u32, group: CtaGroup) -> Result<(), FaultKind> {
        let (slot, count) = self.number(STORES);
        let record = self.detached(Proxy::Generic, FULL, slot, count);
        let pair = self.rank & !1..(self.rank | 1) + 1;
        let blocks = if group == CtaGroup::Two { pair } else { self.rank..self.rank + 1 };
        for block in blocks.start..blocks.end.min(self.cluster.blocks.len()) {
            let owned = self.cluster.blocks[block].tensor.as_ref().is_some_and(|memory| memory.owns(start, columns));
            if owned {
                let cells = Cells { block, lane: 0, lanes: LANES, column: start, columns };
                self.touch_tensor(cells, true, None, record, None)?;
                let memory = self.cluster.blocks[block].tensor.get_or_insert_default();
                memory.shadow.clear(TensorMemory::byte(0, start), TensorMemory::byte(0, columns));
            }
        }
        Ok(())
    }

    /// The slot and the next number of the warp's loads or stores.
    fn number(&mut self, way: usize) -> (u32, u32) {
        let (slot, issued) = &mut self.warp.tensor[way];
        *issued += 1;
        (*slot, *issued)
    }

    /// Notes an access to tensor memory and checks it against all others. `piece` is what the thread's pipeline is
    /// given, if the access is that one's.
    fn touch_tensor(
        &mut self,
        cells: Cells,
        write: bool,
        lane: Option<usize>,
        record: RecordId,
        piece: Option<Piece>,
    ) -> Result<(), FaultKind> {
        // The pipeline is the issuer's, whosever memory it works on. All are taken out while others are borrowed.
        let pipes = std::mem::take(&mut self.cluster.blocks[self.rank].pipes);
        let issued: Vec<Issued<'_>> = pipes.values().map(|pipe| (pipe.slot, &pipe.issued[..])).collect();
        let own = lane.and_then(|lane| pipes.get(&(self.warp.index, lane)));
        let order = own.zip(piece).map(|(own, piece)| (own.slot, piece, &issued[..]));
        let result = self.touch_cells(cells, write, lane, record, order);
        self.cluster.blocks[self.rank].pipes = pipes;
        result
    }

    fn touch_cells(
        &mut self,
        cells: Cells,
        write: bool,
        lane: Option<usize>,
        record: RecordId,
        pipe: Option<(u32, Piece, &[Issued<'_>])>,
    ) -> Result<(), FaultKind> {
        let Cells { block: rank, lane: first, lanes, column, columns } = cells;
        let (index, block) = (self.cluster.index, self.cluster.blocks[rank].id);
        let memory = self.cluster.blocks[rank].tensor.get_or_insert_default();
        if !memory.owns(column, columns) {
            return Err(FaultKind::TensorMemory { column, columns });
        }
        let rules = self.core.rules;
        let observer = super::observer(self.warp, index, lane, record, Proxy::Generic, (false, rules));
        let mut observer = Observer { tensor: true, pipe, cleared: None, ..observer };
        let mut conflicts = Vec::new();
        for column in column..column + columns {
            let (start, bytes) = (TensorMemory::byte(first, column), 4 * lanes as usize);
            if let Err(first) = memory.shadow.note(&self.core.log, &mut observer, start, bytes, write) {
                conflicts.push(first);
                if self.core.findings.is_none() {
                    break;
                }
                conflicts.extend(memory.shadow.note_anyway(&self.core.log, &mut observer, start, bytes, write));
            }
        }
        self.conflicts(conflicts, record, write, |_, byte| {
            let cell = (byte / 4) as u32;
            TensorMemory::place(block, cell % LANES, cell / LANES)
        })
    }

    /// A warp's load or store of cells of its 32 lanes.
    fn tensor_columns(
        &mut self,
        (shape, addr): (CellShape, RegId),
        regs: &[RegId],
        way: usize,
    ) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        let address = self.uniform("the address of tensor memory", Operand::Reg(addr))? as u32;
        let (lane, column, count) = (address >> 16, address & 0xffff, regs.len() as u32);
        let own = 32 * (self.warp.index as u32 % 4);
        // In practice lane 0 is each warp's first: so DeepGEMM's warps load their sums.
        let lane = if lane == 0 && self.core.rules == Rules::Practice { own } else { lane };
        if lane != own && (shape.lanes() == 32 || lane != own + 16) {
            let (what, found) = ("the lane of a warp's access to tensor memory", lane.into());
            let wanted = "32 times the warp's place in its warpgroup, or 16 more where it reaches 16 lanes";
            return Err(FaultKind::BadOperand { what, found, wanted });
        }
        let (slot, issued) = self.number(way);
        let record = self.detached(Proxy::Generic, FULL, slot, issued);
        for (first, columns) in shape.columns(count) {
            let cells = Cells { block: self.rank, lane, lanes: shape.lanes(), column: column + first, columns };
            self.touch_tensor(cells, way == STORES, None, record, None)?;
        }
        for (number, reg) in (0..).zip(regs) {
            let cell = |thread: usize| {
                let (lanes_on, columns_on) = shape.cell(thread as u32, number);
                (lane + lanes_on, column + columns_on)
            };
            if way == STORES {
                let values = self.warp.words(*reg);
                for (thread, value) in values.into_iter().enumerate() {
                    let (lane, column) = cell(thread);
                    self.tensor_memory().put(lane, column, value);
                }
            } else {
                let memory = self.tensor_memory();
                let values = std::array::from_fn(|thread| {
                    let (lane, column) = cell(thread);
                    memory.get(lane, column)
                });
                let missing = lanes::mask_of(|thread| {
                    let (lane, column) = cell(thread);
                    !memory.is_written(lane, column)
                });
                self.warp.set_words(*reg, self.mask, &values);
                if missing != 0 {
                    let (lane, column) = cell(missing.trailing_zeros() as usize);
                    let place = TensorMemory::place(self.cluster.blocks[self.rank].id, lane, column);
                    self.note_origin(|_| Some(FaultKind::Uninitialised { place: place.clone(), byte: 0 }));
                    self.warp.taint(*reg, missing, self.pc);
                }
                self.warp.loading.push(Loading { reg: *reg, pc: self.pc, number: issued });
            }
        }
        Ok(Flow::Next)
    }

    fn tensor_wait(&mut self, way: usize) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        self.tensor_accesses_are_over(way, self.warp.tensor[way].1);
        if way == LOADS {
            self.warp.loading.clear();
        }
        Ok(Flow::Next)
    }

    /// The warp's loads from tensor memory, or its stores, are over, so many of them.
    fn tensor_accesses_are_over(&mut self, way: usize, count: u32) {
        let (slot, rules) = (self.warp.tensor[way].0, self.core.rules);
        self.warp.learn(FULL, |known| {
            known.tensor.raise(slot, count);
            known.executed.raise(slot + Warp::AWAITED, count);
            if rules == Rules::Practice {
                known.executed.raise(slot, count);
            }
        });
    }

    /// A load of which a register was read is over, and in practice what it read may then be overwritten: assemblers
    /// keep track of registers. CUTLASS's block-scaled products give their columns back behind such loads.
    pub(crate) fn loads_are_over_up_to(&mut self, number: u32) {
        self.warp.loading.retain(|loading| loading.number != number);
        let before = self.warp.loading.iter().map(|loading| loading.number - 1).min();
        self.tensor_accesses_are_over(LOADS, before.unwrap_or(number).min(number));
    }

    fn tensor_descriptor(&self, reg: RegId, lane: usize) -> Result<WgmmaDescriptor, FaultKind> {
        let bits = self.warp.get_lane(reg, lane);
        let wrong = |_| FaultKind::BadOperand {
            what: "a tcgen05 matrix descriptor",
            found: bits,
            wanted: "version 1, a known swizzle, and zeros between the fields",
        };
        let Tcgen05Descriptor { start, layout, base_offset } = Tcgen05Descriptor::decode(bits).map_err(wrong)?;
        let desc = WgmmaDescriptor { start, layout, base_offset };
        tensor_core::check(&desc)?;
        Ok(desc)
    }

    /// This thread's pipeline, and a record for its next piece of work.
    fn pipe(&mut self, lane: usize) -> (u32, RecordId) {
        let key = (self.warp.index, lane);
        let slot = match self.cluster.blocks[self.rank].pipes.get(&key) {
            Some(pipe) => pipe.slot,
            None => {
                let slot = self.cluster.slot();
                self.cluster.slots += ISSUED;
                self.cluster.blocks[self.rank].pipes.insert(key, TensorPipe::new(slot));
                slot
            }
        };
        let issued = self.cluster.blocks[self.rank].pipes.get(&key).map_or(0, |pipe| pipe.issued.len() as u32) + 1;
        (slot, self.detached(Proxy::Async, 1 << lane, slot, issued))
    }

    fn enqueue_tensor(&mut self, lane: usize, op: TensorOp) {
        let (block, warp, pc) = (self.rank, self.warp.index, self.pc);
        let touched = op.blocks();
        let known = &self.warp.knowledge(lane).tensor;
        let told = |pipe: &TensorPipe| known.get(self.cluster.index, pipe.slot + ISSUED);
        let pipes = self.cluster.blocks[block].pipes.iter().filter(|(key, _)| **key != (warp, lane));
        let after = pipes.filter(|(_, pipe)| told(pipe) > pipe.done).map(|(key, pipe)| (*key, told(pipe))).collect();
        if let Some(pipe) = self.cluster.blocks[block].pipes.get_mut(&(warp, lane)) {
            pipe.issued.extend(op.piece());
            pipe.queue.push_back((after, op));
        }
        self.cluster.jobs.push(Box::new(Job {
            block,
            warp,
            lanes: 1 << lane,
            pc,
            work: Work::Tensor { lane, touched },
        }));
    }

    fn read_operand(&mut self, block: usize, pieces: &[u32], lane: usize, record: RecordId) -> Result<(), FaultKind> {
        let ranges = tensor_core::joined(pieces);
        if block == self.rank && self.note_operand(&ranges, lane, record).is_some() {
            return Ok(());
        }
        for (address, bytes) in ranges {
            let span = self.described_span(address, bytes)?;
            let span = self.elsewhere(span, block, bytes)?;
            self.touch_shared(span, bytes, false, Some(lane), record)?;
            if let Some(fault) = self.unwritten(span, bytes) {
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Notes that this block's tensor cores read some ranges, if there is nothing to say against any of them. What was
    /// noted when there is does no harm: the same is noted again by whoever says what it is.
    fn note_operand(&mut self, ranges: &[(u32, u32)], lane: usize, record: RecordId) -> Option<()> {
        let (index, rules) = (self.cluster.index, self.core.rules);
        let mut who = super::observer(self.warp, index, Some(lane), record, Proxy::Async, (false, rules));
        let shared = &mut self.cluster.blocks[self.rank].shared;
        for &(address, bytes) in ranges {
            let offset = address.checked_sub(SharedMemory::START)?;
            shared.note(&self.core.log, &mut who, offset, bytes, false)?;
            if shared.written.missing(offset as usize, bytes as usize).is_some() {
                return None;
            }
        }
        Some(())
    }

    /// The column of an address whose cells are of all lanes: it names the first of them.
    fn first_column(&self, what: &'static str, reg: RegId, lane: usize) -> Result<u32, FaultKind> {
        let address = self.warp.get_lane(reg, lane) as u32;
        if address >> 16 != 0 {
            return Err(FaultKind::BadOperand { what, found: address.into(), wanted: "a column of lane 0" });
        }
        Ok(address)
    }

    fn copy_scales(&mut self, dst: RegId, src: RegId, group: CtaGroup, lane: usize) -> Result<(), FaultKind> {
        let column = self.first_column("where scales are copied to", dst, lane)?;
        Self::demand("the column of tensor memory that scales are copied to", column.into(), COPIED_SCALES)?;
        let pieces: Vec<u32> =
            tensor_core::pieces(&self.tensor_descriptor(src, lane)?, 32, false).into_iter().step_by(2).collect();
        let (_, record) = self.pipe(lane);
        let workers = self.workers(group)?;
        for block in workers.clone() {
            self.read_operand(block, &pieces, lane, record)?;
            let cells = Cells { block, lane: 0, lanes: LANES, column, columns: 4 };
            self.touch_tensor(cells, true, Some(lane), record, Some(Piece::Copy))?;
        }
        self.enqueue_tensor(lane, TensorOp::CopyScales { workers, column, pieces });
        Ok(())
    }

    fn block_scaled(&mut self, op: &Tcgen05, lane: usize) -> Result<(), FaultKind> {
        let Tcgen05::Mma { kind, group, d, a, b, shape, scale_a, scale_b, accumulate, collector } = op else {
            return Ok(());
        };
        let workers = self.workers(*group)?;
        let blocks = workers.len() as u32;
        let bits = self.warp.get_lane(*shape, lane) as u32;
        let decoded = ScaledShape::decode(*kind, bits).ok();
        if decoded.is_some_and(|shape| shape.m < LANES * blocks) {
            // 64 rows in each block of a pair.
            return Err(self.unsupported());
        }
        let shape = decoded
            .filter(|shape| shape.m == LANES * blocks && (*kind != ScaledKind::NvFp4 || shape.scale_ids == [0, 0]))
            .filter(|shape| shape.n.is_multiple_of(8 * blocks));
        let Some(shape) = shape else {
            let (what, found) = ("the instruction descriptor of a multiplication", bits.into());
            return Err(FaultKind::BadOperand {
                what,
                found,
                wanted: "elements and scale ids of the instruction's kind (e2m1 and 0 for kind::mxf4nvf4, e2m1 for \
                    kind::mxf4, e4m3 or e5m2 for kind::mxf8f6f4), 128 rows and multiples of 8 columns (of a pair 256 and 16)",
            });
        };
        let mma = BlockScaled {
            kind: *kind,
            elements: shape.elements,
            scale_ids: shape.scale_ids,
            d: self.first_column("the accumulator", *d, lane)?,
            n: shape.n,
            a: self.tensor_descriptor(*a, lane)?,
            b: self.tensor_descriptor(*b, lane)?,
            scale_a: self.first_column("the scales of A", *scale_a, lane)?,
            scale_b: self.first_column("the scales of B", *scale_b, lane)?,
            accumulate: self.warp.get_lane(*accumulate, lane) == 1,
        };
        Self::demand("the first column of A's scales in tensor memory", mma.scale_a.into(), SCALES_OF_A)?;
        Self::demand("the first column of B's scales in tensor memory", mma.scale_b.into(), SCALES_OF_B)?;
        for (column, rows) in [(mma.scale_a, LANES), (mma.scale_b, mma.n)] {
            if column < mma.d + mma.n && mma.d < column + rows.div_ceil(32) {
                let (what, found) = ("the column of scales that a multiplication reads", column.into());
                return Err(FaultKind::BadOperand { what, found, wanted: "one besides the sums that it writes" });
            }
        }
        let (slot, record) = self.pipe(lane);
        let pieces = Pieces::of(&mma.a, &mma.b, mma.n / blocks);
        for block in workers.clone() {
            self.touch_multiplied(block, &mma, &pieces, lane, record)?;
        }
        self.collect(slot, mma.a, &pieces, *collector, workers.clone())?;
        self.enqueue_tensor(lane, TensorOp::Multiply(workers, mma, pieces));
        Ok(())
    }

    fn dense(&mut self, op: &Tcgen05, lane: usize) -> Result<(), FaultKind> {
        let Tcgen05::MmaDense { kind, group, d, a, b, shape, accumulate, collector } = op else { return Ok(()) };
        let workers = self.workers(*group)?;
        let blocks = workers.len() as u32;
        let bits = self.warp.get_lane(*shape, lane) as u32;
        let decoded = DenseShape::decode(*kind, bits).ok();
        if decoded.is_some_and(|shape| blocks == 2 && shape.m == LANES) {
            // 64 rows in each block of a pair.
            return Err(self.unsupported());
        }
        let Some(shape) = decoded.filter(|shape| [LANES * blocks, LANES / 2].contains(&shape.m)) else {
            let (what, found) = ("the instruction descriptor of a multiplication", bits.into());
            let wanted =
                "types of the instruction's kind, f32 sums, 64 or 128 rows (of a pair 256) and multiples of 16 columns";
            return Err(FaultKind::BadOperand { what, found, wanted });
        };
        let address = self.warp.get_lane(*d, lane) as u32;
        let (first_lane, rows) = (address >> 16, shape.m / blocks);
        if first_lane != 0 && (rows == LANES || first_lane != 16) {
            let (what, found) = ("the accumulator", address.into());
            return Err(FaultKind::BadOperand {
                what,
                found,
                wanted: "a column of lane 0, of 64 rows also of lane 16",
            });
        }
        let tensor_a = match a {
            TensorA::Tensor(a) => Some(self.warp.get_lane(*a, lane) as u32 & 0xffff),
            TensorA::Shared(_) => None,
        };
        let DenseShape { n, elements, negate, transpose, .. } = shape;
        let accumulate = self.warp.get_lane(*accumulate, lane) == 1;
        let (kind, d) = (*kind, address & 0xffff);
        let mma = Dense { kind, d, first_lane, rows, n, tensor_a, accumulate, elements, negate, transpose };
        let depth = elements[0].depth();
        let desc = self.tensor_descriptor(*b, lane)?;
        let mut pieces = Pieces { a: Vec::new(), b: tensor_core::pieces_of(&desc, (depth, n / blocks), transpose[1]) };
        let (slot, record) = self.pipe(lane);
        let mut desc_a = None;
        if let TensorA::Shared(a) = a {
            let desc = self.tensor_descriptor(*a, lane)?;
            pieces.a = tensor_core::pieces_of(&desc, (depth, rows), transpose[0]);
            desc_a = Some(desc);
        }
        for block in workers.clone() {
            self.read_operand(block, &pieces.a, lane, record)?;
            self.read_operand(block, &pieces.b, lane, record)?;
            for (first, lanes) in mma.lanes() {
                let piece = Some(mma.piece());
                let of = |column: u32, columns: u32| Cells { block, lane: first, lanes, column, columns };
                if let Some(column) = tensor_a {
                    self.touch_tensor(of(column, Dense::COLUMNS_OF_A), false, Some(lane), record, piece)?;
                }
                self.touch_sums(of(mma.d, mma.n), accumulate, lane, record, piece)?;
            }
        }
        if let Some(desc) = desc_a {
            self.collect(slot, desc, &pieces, *collector, workers.clone())?;
        }
        self.enqueue_tensor(lane, TensorOp::MultiplyDense(workers, mma, pieces));
        Ok(())
    }

    /// The accumulators of a multiplication in one block, or some of them.
    fn touch_sums(
        &mut self,
        cells: Cells,
        accumulate: bool,
        lane: usize,
        record: RecordId,
        piece: Option<Piece>,
    ) -> Result<(), FaultKind> {
        if accumulate {
            self.touch_tensor(cells, false, Some(lane), record, piece)?;
        }
        self.touch_tensor(cells, true, Some(lane), record, piece)
    }

    /// What a multiplication reads and writes in one block: 128 rows of A with their scales and their accumulators, a
    /// part of the rows of B, and the scales of all of them.
    fn touch_multiplied(
        &mut self,
        block: usize,
        mma: &BlockScaled,
        pieces: &Pieces,
        lane: usize,
        record: RecordId,
    ) -> Result<(), FaultKind> {
        self.read_operand(block, &pieces.a, lane, record)?;
        self.read_operand(block, &pieces.b, lane, record)?;
        let piece = Some(mma.piece());
        for (column, rows) in [(mma.scale_a, LANES), (mma.scale_b, mma.n)] {
            let cells = Cells { block, lane: 0, lanes: LANES, column, columns: rows.div_ceil(32) };
            self.touch_tensor(cells, false, Some(lane), record, piece)?;
        }
        let cells = Cells { block, lane: 0, lanes: LANES, column: mma.d, columns: mma.n };
        self.touch_sums(cells, mma.accumulate, lane, record, piece)
    }

    /// Takes A from the collector, or leaves it there, as the instruction says. Hardware may read the matrix again all
    /// the same, so what it has to be is what it was when the collector was filled.
    fn collect(
        &mut self,
        pipe: u32,
        a: WgmmaDescriptor,
        pieces: &Pieces,
        collector: Collector,
        workers: Range<usize>,
    ) -> Result<(), FaultKind> {
        if collector == Collector::Discard {
            self.tensor_memory().collected = None;
            return Ok(());
        }
        let (mut writes, ranges) = (0u64, tensor_core::joined(&pieces.a));
        for shared in self.cluster.blocks[workers].iter().map(|block| &block.shared) {
            for &(address, bytes) in &ranges {
                let start = (address - SharedMemory::START) as usize;
                writes = writes.rotate_left(7) ^ shared.shadow.fingerprint(start, bytes as usize);
            }
        }
        let now = Some(Collected { pipe, a, writes });
        let memory = self.tensor_memory();
        if matches!(collector, Collector::Use | Collector::LastUse) && memory.collected != now {
            return Err(FaultKind::NotCollected);
        }
        memory.collected = if matches!(collector, Collector::Fill | Collector::Use) { now } else { None };
        Ok(())
    }

    fn commit(&mut self, bar: Address, multicast: Option<RegId>, lane: usize) -> Result<(), FaultKind> {
        let address = self.addresses(bar)[lane];
        if !address.is_multiple_of(8) {
            return Err(FaultKind::Misaligned { what: "a barrier", address, wanted: 8 });
        }
        let bar = self.shared_span(Space::Cluster, address, 8)?;
        let mut barriers = Vec::new();
        for block in self.receivers(bar, multicast, lane)? {
            let span: SharedSpan = self.elsewhere(bar, block, 8)?;
            self.find_barrier(span, lane, Proxy::Async)?;
            barriers.push((span.block, span.offset));
        }
        self.pipe(lane);
        let mut known = self.awaited(lane);
        self.preceding(lane).into_iter().for_each(|(slot, count)| known.raise(slot, count));
        self.enqueue_tensor(lane, TensorOp::Commit { barriers, known: Box::new(known) });
        Ok(())
    }

    /// What other threads of the block have issued that is over when this thread's multiplications are, since they come
    /// behind it in a pipeline: by slot, how much.
    fn preceding(&self, lane: usize) -> Vec<(u32, u32)> {
        let (key, tensor) = ((self.warp.index, lane), &self.warp.knowledge(lane).tensor);
        let pipes = &self.cluster.blocks[self.rank].pipes;
        let own = pipes.get(&key).map_or(&[][..], |pipe| &pipe.issued);
        let before = |pipe: &TensorPipe| {
            let told = tensor.get(self.cluster.index, pipe.slot + ISSUED) as usize;
            let precedes = |piece: &&Piece| own.iter().any(|later| piece.precedes(*later, self.core.rules));
            (pipe.slot, pipe.issued.iter().take(told).take_while(precedes).count() as u32)
        };
        pipes.iter().filter(|(other, _)| **other != key).map(|(_, pipe)| before(pipe)).collect()
    }

    /// The copies and multiplications that a thread knows to be over: what it issues to the tensor cores comes after
    /// them, and so does whoever waits for that. Of what threads have done, a commit tells nobody anything.
    fn awaited(&self, lane: usize) -> Knowledge {
        let Knowledge { generic, executed, .. } = self.warp.knowledge(lane).clone();
        let mut known = Knowledge { generic, executed, ..Knowledge::new(self.cluster.index) };
        let threads = self.cluster.blocks.iter().map(|block| block.slots.clone());
        for slots in threads.chain(std::iter::once(PREDECESSOR..PREDECESSOR + 1)) {
            known.generic.forget(&slots);
            known.executed.forget(&slots);
        }
        known
    }
}
