//! Issuing multiplications to the tensor cores and waiting for them.

use ptx::descriptor::WgmmaDescriptor;
use ptx::instr::{Accumulate, MatrixA, Wgmma};
use ptx::{Operand, RegId};

use super::{Exec, Flow};
use crate::error::FaultKind;
use crate::flight::{Job, Mma, Work};
use crate::lanes::{FULL, Words};
use crate::memory::SharedMemory;
use crate::race::{Proxy, RecordId, Writers};
use crate::tensor_core;
use crate::warp::{Owned, Use, Wait};

impl Exec<'_, '_> {
    pub(crate) fn wgmma(&mut self, op: &Wgmma) -> Result<Flow, FaultKind> {
        if let Some(wait) = self.gather(FULL)? {
            return Ok(wait);
        }
        if self.cluster.blocks[self.rank].warps.len() < 4 * (self.warp.index / 4 + 1) {
            let (what, found) = ("warps of the warpgroup", self.cluster.blocks[self.rank].warps.len() as u64 % 4);
            return Err(FaultKind::BadOperand { what, found, wanted: "4" });
        }
        match op {
            Wgmma::Fence => self.warp.used.fill(Use::None),
            Wgmma::Mma { .. } => self.issue(op)?,
            Wgmma::Commit => self.warp.groups.push(self.warp.issued),
            Wgmma::Wait { pending } => return Ok(self.wait_groups(*pending)),
        }
        Ok(Flow::Next)
    }

    fn wait_groups(&mut self, pending: u32) -> Flow {
        let closed = self.warp.groups.len().saturating_sub(pending as usize);
        let number = closed.checked_sub(1).map_or(0, |last| self.warp.groups[last]);
        let group = &self.cluster.blocks[self.rank].warpgroups[self.warp.index / 4];
        if group.done < number {
            return Flow::Wait(Wait::Wgmma { number });
        }
        let slot = group.slot;
        self.warp.retired = self.warp.retired.max(number);
        self.warp.learn(FULL, |known| known.raise(slot, number));
        Flow::Next
    }

    /// A register may enter a multiplication only behind a fence, and not while another one owns it otherwise. Only
    /// multiplications of the same shape may follow each other on an accumulator without one.
    fn enter(&mut self, reg: RegId, used: Use) -> Result<(), FaultKind> {
        let owned = self.warp.owned[reg.index as usize];
        if owned.number > self.warp.retired && (owned.accumulator != matches!(used, Use::Accumulator(_))) {
            return self.check_owned(reg);
        }
        let last = self.warp.used[reg.index as usize];
        if last != Use::None && last != used {
            self.offend(FaultKind::MissingFence { reg })?;
        }
        self.warp.used[reg.index as usize] = used;
        Ok(())
    }

    fn descriptor(&self, reg: RegId) -> Result<WgmmaDescriptor, FaultKind> {
        let bits = self.uniform("a matrix descriptor", Operand::Reg(reg))?;
        let between = bits & WgmmaDescriptor::BETWEEN;
        if between != 0 {
            let (what, wanted) = ("the bits between the fields of a matrix descriptor", "0: is the address masked?");
            return Err(FaultKind::BadOperand { what, found: between, wanted });
        }
        let desc = WgmmaDescriptor::decode(bits);
        tensor_core::check(&desc)?;
        Ok(desc)
    }

    fn issue(&mut self, op: &Wgmma) -> Result<(), FaultKind> {
        let Wgmma::Mma { n, d, a, b, accumulate, transpose_b, .. } = op else { return Ok(()) };
        if n % 8 != 0 || !(8..=256).contains(n) || d.len() as u32 * 2 != *n {
            let (what, found) = ("columns of a multiplication", (*n).into());
            return Err(FaultKind::BadOperand {
                what,
                found,
                wanted: "a multiple of 8 up to 256, twice the accumulators",
            });
        }
        for reg in d {
            self.enter(*reg, Use::Accumulator(*n))?;
        }
        let mut fragments = None;
        let a_desc = match a {
            MatrixA::Registers(regs) => {
                for reg in regs {
                    self.enter(*reg, Use::Fragment)?;
                }
                fragments = Some(regs.map(|reg| (self.warp.words(reg), self.warp.tainted(reg))));
                regs.iter().filter(|reg| self.warp.tainted(**reg) != 0).for_each(|reg| {
                    let fault = self.core.uninitialised(self.warp.origin(*reg));
                    self.core.origins.entry(self.pc).or_insert(fault);
                });
                None
            }
            MatrixA::Shared { desc, transpose } => Some((self.descriptor(*desc)?, *transpose)),
        };
        let b_desc = (self.descriptor(*b)?, *transpose_b);
        let accumulate = match accumulate {
            Accumulate::Add => true,
            Accumulate::Replace => false,
            Accumulate::If(pred) => self.uniform("the accumulate predicate", Operand::Reg(*pred))? == 1,
        };
        if !accumulate {
            // What replaces accumulators defines them, for multiplications, too, that are issued before it is done.
            d.iter().for_each(|reg| self.warp.define(*reg, FULL));
        }
        let operands = (a_desc, b_desc, accumulate);
        let record = self.detached(Proxy::Async, FULL, 0, 0);
        self.enqueue(op, operands, record, fragments)?;
        self.own(d, a);
        Ok(())
    }

    /// Marks the registers as the multiplication's own.
    fn own(&mut self, d: &[RegId], a: &MatrixA) {
        let (number, pc) = (self.warp.issued, self.pc);
        for reg in d {
            self.warp.owned[reg.index as usize] = Owned { number, pc, accumulator: true };
        }
        if let MatrixA::Registers(regs) = a {
            for reg in regs {
                self.warp.owned[reg.index as usize] = Owned { number, pc, accumulator: false };
            }
        }
    }

    /// Joins the other warps of the warpgroup at this multiplication; it can run once all four are there.
    fn enqueue(
        &mut self,
        op: &Wgmma,
        (a, b, accumulate): Operands,
        record: RecordId,
        fragments: Option<[(Words, u32); 4]>,
    ) -> Result<(), FaultKind> {
        let (group, part) = (self.warp.index / 4, self.warp.index % 4);
        self.warp.issued += 1;
        let number = self.warp.issued;
        let block = self.cluster.blocks[self.rank].id;
        let queue = &mut self.cluster.blocks[self.rank].warpgroups[group];
        let at = (number - queue.done - 1) as usize;
        match queue.queue.get(at) {
            None => {
                self.core.log.complete(record, queue.slot, number);
                queue.queue.extend(first_issued(self.pc, op, (a, b, accumulate), record));
            }
            Some(other) if (other.pc, other.a, other.b, other.accumulate) != (self.pc, a, b, accumulate) => {
                let warp = 4 * group + other.issued.trailing_zeros() as usize;
                let site = self.core.program.site(block, warp, FULL, other.pc);
                return Err(FaultKind::WarpgroupMismatch { other: Box::new(site) });
            }
            Some(_) => {}
        }
        let Some(mma) = queue.queue.get_mut(at) else { return Ok(()) };
        mma.issued |= 1 << part;
        if let Some(fragments) = fragments {
            mma.fragments.resize(4, [[0; 32]; 4]);
            mma.tainted.resize(4, [0; 4]);
            mma.fragments[part] = fragments.map(|(values, _)| values);
            mma.tainted[part] = fragments.map(|(_, tainted)| tainted);
        }
        let (complete, record, ranges) = (mma.issued == 15, mma.record, std::mem::take(&mut mma.ranges));
        let writers = mma.writers.take();
        let writers = self.read_ranges(&ranges, writers, record)?;
        let mma = &mut self.cluster.blocks[self.rank].warpgroups[group].queue[at];
        (mma.ranges, mma.writers) = (ranges, writers);
        if complete {
            let (block, warp, pc) = (self.rank, self.warp.index, self.pc);
            self.cluster.jobs.push(Box::new(Job { block, warp, lanes: FULL, pc, work: Work::Multiply { group } }));
        }
        Ok(())
    }

    /// Notes that the tensor cores read some ranges of this block's shared memory. The four warps of a warpgroup do so
    /// together: what the first has found there remains, for whoever changed it now would be reported; so the others
    /// look only at who wrote it.
    fn read_ranges(
        &mut self,
        ranges: &[(u32, u32)],
        writers: Option<Writers>,
        record: RecordId,
    ) -> Result<Option<Writers>, FaultKind> {
        let (index, rules) = (self.cluster.index, self.core.rules);
        if let Some(writers) = writers {
            let mut who = super::observer(self.warp, index, None, record, Proxy::Async, (false, rules));
            if writers.precede(&self.core.log, &mut who) {
                return Ok(Some(writers));
            }
        }
        let noted = self.note_ranges(ranges, record);
        if noted.is_some() && self.are_written(ranges) {
            return Ok(noted);
        }
        for &(address, bytes) in ranges {
            let span = self.described_span(address, bytes)?;
            if noted.is_none() {
                self.touch_shared(span, bytes, false, None, record)?;
            }
            if self.is_unwritten(span, bytes) {
                // What was never written is in the results of its rows; that is for those to tell who use them.
                self.note_origin(|exec| exec.unwritten(span, bytes));
            }
        }
        Ok(noted)
    }

    /// Whether some ranges, and all between them, were written.
    fn are_written(&self, ranges: &[(u32, u32)]) -> bool {
        let (first, end) = span(ranges);
        let written = &self.cluster.blocks[self.rank].shared.written;
        written.missing((first - SharedMemory::START) as usize, (end - first) as usize).is_none()
    }

    /// Notes that some ranges are read, if there is nothing to say against any of it, and gives the writes that made
    /// them what they are.
    fn note_ranges(&mut self, ranges: &[(u32, u32)], record: RecordId) -> Option<Writers> {
        let (index, rules) = (self.cluster.index, self.core.rules);
        let mut who = super::observer(self.warp, index, None, record, Proxy::Async, (false, rules));
        let shared = &mut self.cluster.blocks[self.rank].shared;
        let (first, end) = span(ranges);
        first.checked_sub(SharedMemory::START)?;
        let is_data = |start: u32, bytes: u32| shared.is_data(start - SharedMemory::START, bytes);
        if !is_data(first, end - first) && !ranges.iter().all(|(start, bytes)| is_data(*start, *bytes)) {
            return None;
        }
        let offsets = ranges.iter().map(|(start, bytes)| ((start - SharedMemory::START) as usize, *bytes as usize));
        shared.shadow.note_ranges(&self.core.log, &mut who, offsets).ok()
    }
}

/// The first byte of some ranges, and the first behind them.
fn span(ranges: &[(u32, u32)]) -> (u32, u32) {
    let first = ranges.iter().map(|(start, _)| *start).fold(u32::MAX, u32::min);
    (first, ranges.iter().map(|(start, bytes)| start + bytes).fold(first, u32::max))
}

/// Descriptors of A, unless it is in registers, and of B, each with whether the matrix is transposed; and whether to
/// accumulate.
type Operands = (Option<(WgmmaDescriptor, bool)>, (WgmmaDescriptor, bool), bool);

/// A multiplication as the first of the four warps issues it.
fn first_issued(pc: u32, op: &Wgmma, (a, b, accumulate): Operands, record: RecordId) -> Option<Mma> {
    let Wgmma::Mma { n, element, d, negate_a, negate_b, .. } = op else { return None };
    let pieces_of_a = a.map_or(Vec::new(), |(desc, transposed)| tensor_core::pieces(&desc, 64, transposed));
    let pieces = [pieces_of_a, tensor_core::pieces(&b.0, *n, b.1)];
    let mut ranges = tensor_core::joined(&pieces[0]);
    ranges.extend(tensor_core::joined(&pieces[1]));
    Some(Mma {
        pc,
        issued: 0,
        n: *n,
        element: *element,
        d: d.clone(),
        fragments: Vec::new(),
        tainted: Vec::new(),
        a,
        b,
        pieces,
        ranges,
        writers: None,
        accumulate,
        negate: [*negate_a, *negate_b],
        record,
    })
}
