//! Issuing multiplications to the tensor cores and waiting for them.

use ptx::descriptor::WgmmaDescriptor;
use ptx::instr::{Accumulate, MatrixA, Wgmma};
use ptx::{Operand, RegId};

use super::{Exec, Flow};
use crate::error::FaultKind;
use crate::flight::{Job, Mma, Work};
use crate::lanes::{FULL, Lanes};
use crate::race::Proxy;
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
        let last = &mut self.warp.used[reg.index as usize];
        if *last != Use::None && *last != used {
            return Err(FaultKind::MissingFence { reg });
        }
        *last = used;
        Ok(())
    }

    fn descriptor(&self, reg: RegId) -> Result<WgmmaDescriptor, FaultKind> {
        let bits = self.uniform("a matrix descriptor", Operand::Reg(reg))?;
        let desc = WgmmaDescriptor::decode(bits);
        tensor_core::check(&desc)?;
        Ok(desc)
    }

    fn issue(&mut self, op: &Wgmma) -> Result<(), FaultKind> {
        let Wgmma::Mma { n, element, d, a, b, accumulate, negate_a, negate_b, transpose_b } = op else { return Ok(()) };
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
                fragments = Some(regs.map(|reg| (*self.warp.get(reg), self.warp.tainted(reg))));
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
        let mma = Mma {
            pc: self.pc,
            issued: 0,
            n: *n,
            element: *element,
            d: d.clone(),
            fragments: Vec::new(),
            tainted: Vec::new(),
            a: a_desc,
            b: b_desc,
            accumulate,
            negate: [*negate_a, *negate_b],
            record: self.detached(Proxy::Async, FULL, 0, 0),
        };
        self.enqueue(mma, fragments)?;
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
    fn enqueue(&mut self, mma: Mma, fragments: Option<[(Lanes, u32); 4]>) -> Result<(), FaultKind> {
        let (group, part) = (self.warp.index / 4, self.warp.index % 4);
        self.warp.issued += 1;
        let number = self.warp.issued;
        let block = self.cluster.blocks[self.rank].id;
        let queue = &mut self.cluster.blocks[self.rank].warpgroups[group];
        let at = (number - queue.done - 1) as usize;
        if at == queue.queue.len() {
            self.core.log.complete(mma.record, queue.slot, number);
            queue.queue.push_back(mma);
        } else {
            let other = &queue.queue[at];
            let same = (other.pc, other.a, other.b, other.accumulate) == (mma.pc, mma.a, mma.b, mma.accumulate);
            if !same {
                let warp = 4 * group + other.issued.trailing_zeros() as usize;
                let site = self.core.program.site(block, warp, FULL, other.pc);
                return Err(FaultKind::WarpgroupMismatch { other: Box::new(site) });
            }
        }
        let queue = &mut self.cluster.blocks[self.rank].warpgroups[group];
        let mma = &mut queue.queue[at];
        mma.issued |= 1 << part;
        if let Some(fragments) = fragments {
            mma.fragments.resize(4, [[0; 32]; 4]);
            mma.tainted.resize(4, [0; 4]);
            mma.fragments[part] = fragments.map(|(values, _)| values);
            mma.tainted[part] = fragments.map(|(_, tainted)| tainted);
        }
        let (complete, record, n, a, b) = (mma.issued == 15, mma.record, mma.n, mma.a, mma.b);
        for (desc, rows, transposed) in [a.map(|(desc, t)| (desc, 64, t)), Some((b.0, n, b.1))].into_iter().flatten() {
            for (address, bytes) in tensor_core::joined(&tensor_core::pieces(&desc, rows, transposed)) {
                let span = self.described_span(address, bytes)?;
                self.touch_shared(span, bytes, false, None, record)?;
                if let Some(fault) = self.unwritten(span, bytes) {
                    // What was never written is in the results of its rows; that is for those to tell who use them.
                    self.core.origins.entry(self.pc).or_insert(fault);
                }
            }
        }
        if complete {
            let (block, warp, pc) = (self.rank, self.warp.index, self.pc);
            self.cluster.jobs.push(Job { block, warp, lanes: FULL, pc, work: Work::Multiply { group } });
        }
        Ok(())
    }
}
