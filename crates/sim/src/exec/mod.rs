//! What each instruction does, family by family.

mod collective;
mod compute;
mod copy;
mod fragment;
mod generic;
mod memory;
mod mma;
mod sync;
mod tcgen05;
mod wgmma;

pub(crate) use mma::sums;
pub(crate) use sync::{settle_cluster, settle_named, settle_signals};

use ptx::instr::{Access, Accumulate, Arith, Control, Fragments, Memory, StoreOrder, Warp as WarpOp, Wgmma};
use ptx::{Address, Bank, Base, Op, Operand, RegId, Scope, Space};

use crate::blocks::{Cluster, Core, Visit};
use crate::clock::PREDECESSOR;
use crate::error::{self, Edge, FaultKind};
use crate::flag::Agent;
use crate::lanes::{FULL, Lanes, lanes};
use crate::limits::Rules;
use crate::memory::{GlobalSpan, SharedMemory};
use crate::program::Traits;
use crate::race::{Conflict, IN_FLIGHT, Observer, Proxy, Record, RecordId};
use crate::warp::{Use, Wait, Warp};

/// One instruction of one warp, being executed.
pub(crate) struct Exec<'a, 'k> {
    pub(crate) core: &'a mut Core<'k>,
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) warp: &'a mut Warp,
    /// The warp's block within the cluster.
    pub(crate) rank: usize,
    pub(crate) pc: u32,
    /// The lanes that execute it.
    pub(crate) mask: u32,
    /// The lanes in which it computes with what was never written, and the load that read that.
    pub(crate) spread: u32,
    pub(crate) origin: u32,
}

/// How an instruction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// On to the next one.
    Next,
    /// The lanes continue elsewhere.
    Jump(u32),
    /// The lanes wait here.
    Wait(Wait),
    /// The lanes wait here, each for what has been set.
    Stay,
    /// The lanes are done.
    Exit,
}

/// An address in shared memory, resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedSpan {
    pub(crate) block: usize,
    pub(crate) offset: u32,
}

impl Core<'_> {
    /// Notes an access to global memory, if there is nothing to say against it. The buffer is looked for in `last`
    /// first.
    fn note_global(
        &mut self,
        who: &mut Observer<'_>,
        last: &mut usize,
        (address, bytes): (u64, u64),
        write: bool,
    ) -> Option<GlobalSpan> {
        let near = self.memory.find_in(*last, address, bytes);
        let span = near.or_else(|| self.memory.find(address, bytes))?;
        *last = span.buffer;
        if self.memory.buffers[span.buffer].awaited && !who.knows_origin(&self.log) {
            return None;
        }
        let shadow = &mut self.trace.shadows[span.buffer];
        shadow.note(&self.log, who, span.offset, bytes as usize, write).ok()?;
        Some(span)
    }

    /// Notes that some bytes of global memory are read, if there are any.
    fn note_run(&mut self, who: &mut Observer<'_>, last: &mut usize, run: (u64, u64)) -> Option<()> {
        if run.1 > 0 {
            self.note_global(who, last, run, false)?;
        }
        Some(())
    }
}

impl Exec<'_, '_> {
    /// Executes; says how it ended and whether others can see it.
    pub(crate) fn execute(&mut self, op: &Op) -> Result<(Flow, bool), FaultKind> {
        match op {
            Op::Arith(op) => self.arith(op).map(|()| (Flow::Next, false)),
            Op::Memory(op) => self.memory(op).map(|()| (Flow::Next, true)),
            Op::Warp(op) => self.collective(op).map(|flow| (flow, false)),
            Op::Barrier(op) => self.barrier(op).map(|flow| (flow, true)),
            Op::Fence(op) => self.fence(*op).map(|()| (Flow::Next, true)),
            Op::Copy(op) => self.copy(op).map(|flow| (flow, true)),
            Op::Mma(op) => self.mma(op).map(|flow| (flow, false)),
            Op::Fragments(op) => self.fragments(op).map(|flow| (flow, !matches!(op, Fragments::Multiply { .. }))),
            Op::Wgmma(op) => self.wgmma(op).map(|flow| (flow, true)),
            Op::Tcgen05(op) => self.tcgen05(op).map(|flow| (flow, true)),
            Op::Control(op) => self.control(*op),
            Op::Unknown(_) => Err(self.unsupported()),
        }
    }

    fn control(&mut self, op: Control) -> Result<(Flow, bool), FaultKind> {
        match op {
            Control::Label(_) => Ok((Flow::Next, false)),
            Control::Branch { target, uniform } => {
                if uniform && self.mask != self.warp.live {
                    let active = lanes(self.warp.live).filter(|&lane| self.warp.pc[lane] == self.pc);
                    let active = active.fold(0, |mask, lane| mask | 1 << lane);
                    if active != self.mask {
                        return Err(FaultKind::Divergence { wanted: active, found: self.mask });
                    }
                }
                Ok((Flow::Jump(self.core.program.target(target)), false))
            }
            Control::Exit => Ok((Flow::Exit, true)),
            Control::Trap => Err(FaultKind::Trap),
            Control::SetMaxRegisters { change, count } => self.set_registers(change, count).map(|flow| (flow, true)),
            Control::GridDependencyWait => {
                self.core.waited = true;
                self.warp.learn(self.mask, |known| known.raise(PREDECESSOR, 1));
                Ok((Flow::Next, true))
            }
            Control::LaunchDependents => {
                self.core.hasty |= !self.waited(self.mask);
                Ok((Flow::Next, true))
            }
        }
    }

    /// Whether lanes have waited for the grid before this one.
    pub(crate) fn waited(&self, mask: u32) -> bool {
        lanes(mask).all(|lane| self.warp.knowledge(lane).generic.get(self.cluster.index, PREDECESSOR) > 0)
    }

    pub(crate) fn unsupported(&self) -> FaultKind {
        let instr = self.core.program.instr(self.pc);
        let text = |instr: &ptx::Instr| {
            let text = self.core.program.kernel.instruction(instr).trim().to_string();
            let line = instr.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            match &instr.op {
                Op::Unknown(ptx::instr::Unknown { wanted: Some(wanted), .. }) => {
                    format!("{line}{text} (expected {wanted})")
                }
                _ => line + &text,
            }
        };
        FaultKind::Unsupported { instruction: instr.map(text).unwrap_or_default() }
    }

    /// Whether the lanes of `wanted` are all here; if the others may still come, or wait here already, these wait too.
    pub(crate) fn gather(&mut self, wanted: u32) -> Result<Option<Flow>, FaultKind> {
        let missing = wanted & !self.mask;
        if missing == 0 {
            return Ok(None);
        }
        let (warp, core, pc) = (&*self.warp, &mut *self.core, self.pc);
        let comes = |lane: usize| {
            let (lives, at) = (warp.live >> lane & 1 == 1, warp.pc[lane]);
            core.looked_ahead |= lives && at > pc;
            lives && (at <= pc || core.program.reaches(at, pc))
        };
        if lanes(missing).all(comes) {
            return Ok(Some(Flow::Wait(Wait::Lanes { mask: wanted })));
        }
        Err(FaultKind::Divergence { wanted, found: self.mask })
    }

    pub(crate) fn check_defined(&self, reg: RegId, mask: u32) -> Result<(), FaultKind> {
        match self.warp.undefined(reg, mask) {
            0 => Ok(()),
            lanes => Err(FaultKind::UndefinedRegister { reg, lanes }),
        }
    }

    /// Registers must be defined before they are read, and left alone while a multiplication owns them.
    pub(crate) fn check_registers(&mut self, op: &Op, traits: Traits) -> Result<(), FaultKind> {
        if self.warp.taints {
            self.check_taints(op)?;
        }
        let in_flight = self.warp.issued > self.warp.retired;
        let (sound, by_threads) = (traits.sound || self.warp.is_sound(self.pc), traits.multiplied);
        if sound && self.warp.loading.is_empty() && !by_threads {
            return Ok(());
        }
        let (mut everywhere, mut doubtful) = (true, false);
        let (replaces, program) = (self.replaces(op), self.core.program.clone());
        for &(reg, access) in program.registers(self.pc) {
            if !sound && access != Access::Write {
                // In practice half of a pair may be anything: Triton packs one number for two, and takes that one out
                // again.
                let packs = matches!(op, Op::Arith(Arith::Pack { .. })) && self.core.rules == Rules::Practice;
                let excused = replaces && access == Access::Update || packs || self.taints_undefined(op, reg);
                if !excused {
                    self.check_defined(reg, self.mask)?;
                }
                doubtful |= self.warp.tainted(reg) & self.mask != 0;
                everywhere &= self.warp.undefined(reg, FULL) == 0;
            }
            // Whoever reads a register waits for the load by itself; whoever writes it has to wait.
            if let Some(&loading) = self.warp.loading.iter().find(|loading| loading.reg == reg) {
                match self.core.rules {
                    Rules::Practice if access != Access::Write => self.loads_are_over_up_to(loading.number),
                    Rules::Letter if access != Access::Read => {
                        let block = self.cluster.blocks[self.rank].id;
                        let owner = Box::new(self.core.program.site(block, self.warp.index, FULL, loading.pc));
                        self.offend(FaultKind::RegisterInFlight { reg, owner })?;
                    }
                    _ => {}
                }
            }
            if reg.bank == Bank::B32 && by_threads {
                if in_flight {
                    self.check_owned(reg)?;
                }
                self.warp.used[reg.index as usize] = Use::Thread;
            }
        }
        if !sound && everywhere {
            self.warp.make_sound(self.pc);
        }
        if doubtful { self.check_taints(op) } else { Ok(()) }
    }

    /// In practice a register that was not written may be computed with, as memory that was not: compilers hoist what
    /// one side of a branch needs. CUTLASS's persistent kernels for Blackwell divide what a refused
    /// `clusterlaunchcontrol.query_cancel` has not given, and look at the refusal then.
    fn taints_undefined(&mut self, op: &Op, reg: RegId) -> bool {
        let lanes = self.warp.undefined(reg, self.mask);
        if lanes == 0 || self.core.rules == Rules::Letter || !matches!(op, Op::Arith(_)) || !may_be_tainted(op, reg) {
            return false;
        }
        self.note_origin(|_| Some(FaultKind::UndefinedRegister { reg, lanes }));
        self.warp.set(reg, lanes, &[0; 32]);
        self.warp.taint(reg, lanes, self.pc);
        true
    }

    /// Whether a multiplication's accumulators are replaced, by what a predicate says: then they may hold anything.
    fn replaces(&self, op: &Op) -> bool {
        let Op::Wgmma(Wgmma::Mma { accumulate: Accumulate::If(pred), .. }) = op else { return false };
        self.warp.undefined(*pred, self.mask) == 0 && self.warp.holds(*pred) & self.mask == 0
    }

    /// A value of which a part was never written may be moved and computed with, but not acted upon.
    fn check_taints(&mut self, op: &Op) -> Result<(), FaultKind> {
        let program = self.core.program.clone();
        for &(reg, access) in program.registers(self.pc) {
            let tainted = self.warp.tainted(reg) & self.mask;
            if access == Access::Write || tainted == 0 {
                continue;
            }
            if !may_be_tainted(op, reg) {
                self.offend(self.core.uninitialised(self.warp.origin(reg)))?;
                self.warp.untaint(reg, tainted);
                continue;
            }
            let chosen = match op {
                Op::Arith(Arith::Select { a, b, pred, .. }) if reg != *pred => {
                    let holds = self.warp.holds(*pred);
                    let side = |operand: Operand| if operand == Operand::Reg(reg) { FULL } else { 0 };
                    holds & side(*a) | !holds & side(*b)
                }
                Op::Arith(_) => FULL,
                _ => 0,
            };
            self.spread |= tainted & chosen;
            self.origin = self.warp.origin(reg);
        }
        Ok(())
    }

    pub(crate) fn check_owned(&mut self, reg: RegId) -> Result<(), FaultKind> {
        let owned = self.warp.owned[reg.index as usize];
        if owned.number <= self.warp.retired {
            return Ok(());
        }
        let block = self.cluster.blocks[self.rank].id;
        let owner = Box::new(self.core.program.site(block, self.warp.index, FULL, owned.pc));
        self.offend(FaultKind::RegisterInFlight { reg, owner })
    }

    /// The addresses of an operand, lane by lane.
    pub(crate) fn addresses(&self, address: Address) -> Lanes {
        let base = match address.base {
            Base::Reg(reg) => self.warp.get(reg),
            Base::SharedStart => [SharedMemory::address(self.rank, 0).into(); 32],
        };
        let wide = matches!(address.base, Base::Reg(reg) if reg.bank == Bank::B64);
        let keep = if wide { u64::MAX } else { 0xffff_ffff };
        base.map(|at| at.wrapping_add_signed(address.offset.into()) & keep)
    }

    /// A value that must be the same in all executing lanes.
    pub(crate) fn uniform(&self, what: &'static str, operand: Operand) -> Result<u64, FaultKind> {
        let values = self.warp.value(operand);
        let first = values[self.mask.trailing_zeros() as usize];
        if lanes(self.mask).any(|lane| values[lane] != first) {
            return Err(FaultKind::NotUniform { what });
        }
        Ok(first)
    }

    /// Finds the bytes of a shared address, within bounds.
    pub(crate) fn shared_span(&self, space: Space, address: u64, bytes: u32) -> Result<SharedSpan, FaultKind> {
        let (block, at) = (address as u32 / SharedMemory::WINDOW, address as u32 % SharedMemory::WINDOW);
        let block = block as usize;
        let reachable = block == self.rank || block < self.cluster.blocks.len() && space == Space::Cluster;
        let size = if reachable { self.cluster.blocks[block].shared.data.len() as u32 } else { 0 };
        let offset = at.wrapping_sub(SharedMemory::START);
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            let name = match reachable {
                true => format!("the block has {size} bytes from {:#x} on", SharedMemory::address(block, 0)),
                false => "not in this block's window".to_string(),
            };
            let block = Some(self.cluster.blocks[self.rank].id);
            let place = error::Place { space: "shared", block, name, address, bytes: bytes.into() };
            return Err(FaultKind::OutOfBounds { place });
        }
        if self.cluster.blocks[block].shared.ended {
            let place = self.core.shared_place(self.cluster.blocks[block].id, offset, bytes);
            return Err(FaultKind::BlockEnded { place });
        }
        Ok(SharedSpan { block, offset })
    }

    /// Finds the bytes of an address that a matrix descriptor gives: it has too few bits to name a block, and means
    /// this one.
    pub(crate) fn described_span(&self, address: u32, bytes: u32) -> Result<SharedSpan, FaultKind> {
        let base = SharedMemory::address(self.rank, 0) - SharedMemory::START;
        self.shared_span(Space::Shared, u64::from(base + address), bytes)
    }

    /// The executing block, for scopes.
    pub(crate) fn agent(&self) -> Agent {
        Agent { cluster: self.cluster.index, block: self.rank as u32 }
    }

    /// A record of this instruction's access by the threads themselves.
    pub(crate) fn record(&mut self, strong: Option<Scope>) -> RecordId {
        let (slot, count) = (self.warp.slot, self.warp.tick);
        self.add_record(slot, count, Proxy::Generic, false, strong, self.mask)
    }

    /// A record of what the tensor cores write for this instruction, done when it is.
    pub(crate) fn written_by_tensor_cores(&mut self) -> RecordId {
        let (slot, count) = (self.warp.slot, self.warp.tick);
        self.add_record(slot, count, Proxy::Async, false, None, self.mask)
    }

    /// A record of an asynchronous access, done when `slot` reaches `count`.
    pub(crate) fn detached(&mut self, proxy: Proxy, lanes: u32, slot: u32, count: u32) -> RecordId {
        self.add_record(slot, count, proxy, true, None, lanes)
    }

    /// A record of an asynchronous access whose completion a barrier will announce.
    pub(crate) fn in_flight(&mut self, proxy: Proxy, lane: usize) -> RecordId {
        self.detached(proxy, 1 << lane, 0, IN_FLIGHT)
    }

    fn add_record(
        &mut self,
        slot: u32,
        count: u32,
        proxy: Proxy,
        detached: bool,
        strong: Option<Scope>,
        lanes: u32,
    ) -> RecordId {
        let (cluster, block, warp, pc) = (self.cluster.index, self.rank as u32, self.warp.index as u32, self.pc);
        let by_lane = false;
        self.core.log.add(Record { cluster, block, warp, lanes, pc, slot, count, proxy, detached, by_lane, strong })
    }

    /// A record of copies that lanes make one by one, done for each when its own slot reaches `group`.
    pub(crate) fn copied_by_lanes(&mut self, lanes: u32, group: u32) -> RecordId {
        let (cluster, block, warp, pc) = (self.cluster.index, self.rank as u32, self.warp.index as u32, self.pc);
        let (slot, proxy, strong) = (self.warp.copies.slot, Proxy::Generic, None);
        let (detached, by_lane, count) = (true, true, group);
        self.core.log.add(Record { cluster, block, warp, lanes, pc, slot, count, proxy, detached, by_lane, strong })
    }

    /// A lane reaches into a block of the cluster, by itself or by asynchronous work: another block must be known to
    /// have begun, and must not end before it knows that this is over. (The end of asynchronous work is for its barrier
    /// to tell.)
    pub(crate) fn visit(&mut self, span: SharedSpan, lane: usize, detached: bool) -> Result<(), FaultKind> {
        if span.block == self.rank {
            return Ok(());
        }
        let block = &mut self.cluster.blocks[span.block];
        if !self.warp.knowledge(lane).executed.any(&block.slots) {
            return Err(FaultKind::NotStarted { place: self.core.shared_place(block.id, span.offset, 8) });
        }
        if !detached {
            let from = (self.rank, self.warp.index, lane, self.pc);
            block.visits.insert(self.warp.slot + lane as u32, Visit { count: self.warp.tick, from });
        }
        Ok(())
    }

    /// Notes an access to shared memory and checks it against all others.
    pub(crate) fn touch_shared(
        &mut self,
        span: SharedSpan,
        bytes: u32,
        write: bool,
        lane: Option<usize>,
        record: RecordId,
    ) -> Result<(), FaultKind> {
        if let Some(lane) = lane {
            let detached = self.core.log.get(record).detached;
            self.visit(span, lane, detached)?;
        }
        let block = &mut self.cluster.blocks[span.block];
        let (start, length) = (span.offset as usize, bytes as usize);
        if start + length > block.shared.data.len() {
            return Err(FaultKind::OutOfBounds { place: self.core.shared_place(block.id, span.offset, bytes) });
        }
        if block.shared.barrier_in(span.offset, bytes) {
            return Err(FaultKind::BarrierAsData { place: self.core.shared_place(block.id, span.offset, bytes) });
        }
        let access = self.core.log.get(record);
        let replaces = write && access.detached;
        // What is done when its instruction is needs no fence behind what threads did.
        let proxy = if access.detached { access.proxy } else { Proxy::Generic };
        let mut observer =
            observer(self.warp, self.cluster.index, lane, record, proxy, (false, self.core.rules)).replacing(replaces);
        let Err(first) = block.shared.shadow.note(&self.core.log, &mut observer, start, length, write) else {
            return Ok(());
        };
        let conflicts = match self.core.findings {
            Some(_) => block.shared.shadow.note_anyway(&self.core.log, &mut observer, start, length, write),
            None => vec![first],
        };
        let (block, unit) = (block.id, self.core.program.shared_unit);
        self.conflicts(conflicts, record, write, |core, byte| core.shared_place(block, byte as u32, unit))
    }

    /// Reports conflicts of an access, by pairs of instructions.
    pub(crate) fn conflicts(
        &mut self,
        conflicts: Vec<Conflict>,
        record: RecordId,
        write: bool,
        place: impl Fn(&Core<'_>, usize) -> error::Place,
    ) -> Result<(), FaultKind> {
        let mut last = None;
        for conflict in conflicts {
            let (other, here) = (self.core.log.get(conflict.record).pc, self.pc);
            if last == Some(other) || self.core.has_found(("race", other as usize, here as usize)) {
                continue;
            }
            last = Some(other);
            let place = place(self.core, conflict.byte);
            let race = self.race(place, conflict, record, write);
            self.offend(race)?;
        }
        Ok(())
    }

    /// Reports what breaks a rule: the run is over, unless findings are collected and it can be gone on from.
    pub(crate) fn offend(&mut self, kind: FaultKind) -> Result<(), FaultKind> {
        if self.core.findings.is_none() || !kind.may_be_gone_on_from() {
            return Err(kind);
        }
        let fault = self.core.raise(self.cluster, self.rank, self.warp.index, self.mask, self.pc, kind);
        self.core.find(fault);
        Ok(())
    }

    /// Remembers what this instruction has read that was never written: the first time, in words.
    pub(crate) fn note_origin(&mut self, fault: impl Fn(&Self) -> Option<FaultKind>) {
        if !self.core.origins.contains_key(&self.pc)
            && let Some(fault) = fault(self)
        {
            self.core.origins.insert(self.pc, fault);
        }
    }

    /// Whether some bytes of shared memory were never written.
    pub(crate) fn is_unwritten(&self, span: SharedSpan, bytes: u32) -> bool {
        let written = &self.cluster.blocks[span.block].shared.written;
        written.missing(span.offset as usize, bytes as usize).is_some()
    }

    /// What is wrong with reading bytes of shared memory, if some of them were never written.
    pub(crate) fn unwritten(&self, span: SharedSpan, bytes: u32) -> Option<FaultKind> {
        let (block, start) = (&self.cluster.blocks[span.block], span.offset as usize);
        let byte = block.shared.written.missing(start, bytes as usize)?;
        let place = self.core.shared_place(block.id, span.offset, bytes);
        Some(FaultKind::Uninitialised { place, byte: (byte - start) as u64 })
    }

    /// Notes an access to global memory and checks it against all others.
    pub(crate) fn touch_global(
        &mut self,
        address: u64,
        bytes: u64,
        write: bool,
        lane: usize,
        record: RecordId,
    ) -> Result<GlobalSpan, FaultKind> {
        let span = self.core.memory.find(address, bytes).ok_or_else(|| self.core.beyond(address, bytes))?;
        let buffer = &self.core.memory.buffers[span.buffer];
        let access = self.core.log.get(record);
        let replaces = write && access.detached;
        let mut observer =
            observer(self.warp, self.cluster.index, Some(lane), record, access.proxy, (true, self.core.rules))
                .replacing(replaces);
        if buffer.awaited && !observer.knows_origin(&self.core.log) {
            self.offend(FaultKind::BeforeGridDependency { place: self.core.global_place(address, bytes) })?;
            return Ok(span);
        }
        let (start, length) = (span.offset, bytes as usize);
        let shadow = &mut self.core.trace.shadows[span.buffer];
        let Err(first) = shadow.note(&self.core.log, &mut observer, start, length, write) else { return Ok(span) };
        let conflicts = match self.core.findings {
            Some(_) => shadow.note_anyway(&self.core.log, &mut observer, start, length, write),
            None => vec![first],
        };
        let (from, unit) = (self.core.memory.buffers[span.buffer].address, self.core.global_unit.into());
        self.conflicts(conflicts, record, write, |core, byte| core.global_place(from + byte as u64, unit))?;
        Ok(span)
    }

    pub(crate) fn race(&self, place: error::Place, conflict: Conflict, record: RecordId, write: bool) -> FaultKind {
        let access = |id: RecordId, write: bool| {
            let record = self.core.log.get(id);
            let site = self.core.record_site(record);
            let in_flight = record.detached && record.count == IN_FLIGHT;
            error::Access { write, asynchronous: record.detached, in_flight, site }
        };
        let (first, second) = (access(conflict.record, conflict.was_write), access(record, write));
        let edge = match (conflict.unfenced, first.asynchronous) {
            (true, _) => Edge::ProxyFence,
            (false, true) => Edge::Completion,
            (false, false) => Edge::Order,
        };
        let by_lane = [conflict.record, record].map(|id| self.core.log.get(id).by_lane);
        let remedy = match by_lane {
            [true, _] => {
                "wait for the group of the copy (cp.async.wait_group), then put a barrier between its thread and others"
            }
            [_, true] => "put a barrier between the access and the copy that overwrites it",
            _ => remedy(&first, &second, self.core.log.get(record).proxy),
        };
        FaultKind::Race { place, first: Box::new(first), second: Box::new(second), edge, remedy }
    }
}

/// Whether an instruction takes this register as a value that it only computes with or hands on.
fn may_be_tainted(op: &Op, reg: RegId) -> bool {
    match op {
        Op::Arith(Arith::Param { .. } | Arith::MapShared { .. }) => false,
        Op::Arith(_) => true,
        Op::Memory(Memory::Store { space, order: StoreOrder::Weak, srcs, addr, .. }) => {
            *space != Space::Global && srcs.contains(&reg) && addr.base != Base::Reg(reg)
        }
        Op::Warp(WarpOp::Shuffle { a, lane, .. }) => reg == *a && *lane != Operand::Reg(reg),
        Op::Warp(WarpOp::StoreMatrix { srcs, addr, .. }) => srcs.contains(&reg) && addr.base != Base::Reg(reg),
        Op::Wgmma(Wgmma::Mma { .. }) | Op::Mma(_) => reg.bank == Bank::B32,
        Op::Fragments(Fragments::Multiply { .. }) => true,
        Op::Fragments(Fragments::Store { space, srcs, addr, stride, .. }) => {
            let elsewhere = addr.base == Base::Reg(reg) || *stride == Some(Operand::Reg(reg));
            *space != Space::Global && srcs.contains(&reg) && !elsewhere
        }
        _ => false,
    }
}

/// What usually orders a pair of accesses.
fn remedy(first: &error::Access, second: &error::Access, proxy: Proxy) -> &'static str {
    match (first.asynchronous, second.asynchronous) {
        (true, _) if first.write => "wait at the barrier that counts the copy's bytes, in the right phase",
        (true, _) => "wait for the group (wgmma or bulk) that reads the bytes, then arrive where the writer waits",
        (false, true) if first.write && proxy == Proxy::Async => {
            "after the write: fence.proxy.async, then a barrier between writer and issuer"
        }
        (false, true) => {
            "let the readers arrive at a barrier for which the issuer waits, with fence.proxy.async on either side of it"
        }
        (false, false) => "put a barrier, or release and acquire, between the two",
    }
}

/// The executing warp, or a lane of it, as the maker of an access.
fn observer(
    warp: &Warp,
    cluster: u32,
    lane: Option<usize>,
    record: RecordId,
    proxy: Proxy,
    (global, rules): (bool, Rules),
) -> Observer<'_> {
    let knowledge = lane.map_or(&warp.known, |lane| warp.knowledge(lane));
    let lane = lane.map(|lane| lane as u32);
    let cleared = match (proxy, global) {
        (Proxy::Generic, _) => &warp.cleared[0],
        (Proxy::Async, false) => &warp.cleared[1],
        (Proxy::Async, true) => &warp.cleared[2],
    };
    Observer {
        knowledge,
        cluster,
        slot: warp.slot,
        lane,
        copies: &warp.copies,
        record,
        proxy,
        global,
        replaces: false,
        tensor: false,
        pipe: None,
        rules,
        last: [None; 2],
        cleared: Some((cleared, &warp.known)),
        superseded: None,
    }
}
