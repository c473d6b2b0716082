//! Loads, stores and atomics of single threads.

use ptx::instr::{AtomicOp, LoadOrder, Memory, StoreOrder};
use ptx::{Address, DataType, RegId, Space};

use super::compute::bank_bytes;
use super::{Exec, SharedSpan};
use crate::arith;
use crate::clock::Knowledge;
use crate::error::FaultKind;
use crate::race::RecordId;
use crate::warp::lanes;

/// A resolved place of either memory.
#[derive(Clone, Copy)]
enum Spot {
    Global { buffer: usize, offset: usize, address: u64 },
    Shared(SharedSpan),
}

impl Exec<'_, '_> {
    pub(crate) fn memory(&mut self, op: &Memory) -> Result<(), FaultKind> {
        match op {
            Memory::Load { space, order, width, dsts, addr } => self.load(*space, *order, width.bytes(), dsts, *addr),
            Memory::Store { space, order, width, srcs, addr } => self.store(*space, *order, width.bytes(), srcs, *addr),
            Memory::Atomic { .. } => self.atomic(op),
        }
    }

    /// Checks and notes one lane's access, and finds its bytes.
    fn touch(
        &mut self,
        space: Space,
        address: u64,
        bytes: u32,
        write: bool,
        lane: usize,
        record: RecordId,
    ) -> Result<Spot, FaultKind> {
        if !address.is_multiple_of(bytes.into()) {
            let (what, wanted) = (if write { "a store" } else { "a load" }, bytes.into());
            return Err(FaultKind::Misaligned { what, address, wanted });
        }
        if space == Space::Global {
            let span = self.touch_global(address, bytes.into(), write, lane, record)?;
            return Ok(Spot::Global { buffer: span.buffer, offset: span.offset, address });
        }
        let span = self.shared_span(space, address, bytes)?;
        self.touch_shared(span, bytes, write, Some(lane), record)?;
        Ok(Spot::Shared(span))
    }

    fn bytes(&self, spot: Spot, bytes: usize) -> &[u8] {
        match spot {
            Spot::Global { buffer, offset, .. } => &self.core.memory.buffers[buffer].data[offset..offset + bytes],
            Spot::Shared(span) => {
                let offset = span.offset as usize;
                &self.cluster.blocks[span.block].shared.data[offset..offset + bytes]
            }
        }
    }

    fn put(&mut self, spot: Spot, data: &[u8]) {
        let (memory, written, offset) = match spot {
            Spot::Global { buffer, offset, .. } => {
                let contents = &mut self.core.memory.buffers[buffer];
                (&mut contents.data, &mut contents.written, offset)
            }
            Spot::Shared(span) => {
                let shared = &mut self.cluster.blocks[span.block].shared;
                (&mut shared.data, &mut shared.written, span.offset as usize)
            }
        };
        memory[offset..offset + data.len()].copy_from_slice(data);
        written.set(offset, data.len());
    }

    fn load(
        &mut self,
        space: Space,
        order: LoadOrder,
        width: u32,
        dsts: &[RegId],
        addr: Address,
    ) -> Result<(), FaultKind> {
        let strong = matches!(order, LoadOrder::Relaxed(_) | LoadOrder::Acquire(_));
        let (record, addresses) = (self.record(strong), self.addresses(addr));
        let total = width * dsts.len() as u32;
        let mut values = vec![[0u64; 32]; dsts.len()];
        for lane in lanes(self.mask) {
            let spot = self.touch(space, addresses[lane], total, false, lane, record)?;
            if let (LoadOrder::ReadOnly | LoadOrder::Streaming, Spot::Global { buffer, offset, address }) =
                (order, spot)
                && self.core.trace.shadows[buffer].written(offset, total as usize)
            {
                return Err(FaultKind::NotReadOnly { place: self.core.global_place(address, total.into()) });
            }
            let bytes = self.bytes(spot, total as usize);
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(width as usize)) {
                value[lane] = word(bytes);
            }
            if strong {
                self.observe_flag(spot, lane, matches!(order, LoadOrder::Acquire(_)));
            }
        }
        for (dst, values) in dsts.iter().zip(&values) {
            self.set(*dst, values);
        }
        self.count(space, &addresses, total, false);
        Ok(())
    }

    fn store(
        &mut self,
        space: Space,
        order: StoreOrder,
        width: u32,
        srcs: &[RegId],
        addr: Address,
    ) -> Result<(), FaultKind> {
        let strong = order != StoreOrder::Weak;
        let (record, addresses) = (self.record(strong), self.addresses(addr));
        let total = width * srcs.len() as u32;
        let values: Vec<_> = srcs.iter().map(|src| *self.warp.get(*src)).collect();
        for lane in lanes(self.mask) {
            let spot = self.touch(space, addresses[lane], total, true, lane, record)?;
            let data: Vec<u8> =
                values.iter().flat_map(|value| value[lane].to_le_bytes().into_iter().take(width as usize)).collect();
            self.put(spot, &data);
            self.raise_flag(spot, lane, matches!(order, StoreOrder::Release(_)), strong, false);
        }
        self.count(space, &addresses, total, true);
        Ok(())
    }

    fn atomic(&mut self, op: &Memory) -> Result<(), FaultKind> {
        let Memory::Atomic { space, op, ty, acq_rel, scope: _, dst, addr, a } = op else { return Ok(()) };
        let width = bank_bytes(ty.bank());
        let (record, addresses) = (self.record(true), self.addresses(*addr));
        let operand = self.warp.value(*a);
        let mut old = [0; 32];
        for lane in lanes(self.mask) {
            self.touch(*space, addresses[lane], width, false, lane, record)?;
            let spot = self.touch(*space, addresses[lane], width, true, lane, record)?;
            old[lane] = word(self.bytes(spot, width as usize));
            let new = combine(*op, *ty, old[lane], operand[lane]);
            self.put(spot, &new.to_le_bytes()[..width as usize]);
            if *acq_rel || dst.is_some() {
                self.observe_flag(spot, lane, *acq_rel);
            }
            self.raise_flag(spot, lane, *acq_rel, true, true);
        }
        if let Some(dst) = dst {
            self.set(*dst, &old);
        }
        self.count(*space, &addresses, width, true);
        Ok(())
    }

    fn count(&mut self, space: Space, addresses: &[u64; 32], bytes: u32, write: bool) {
        let profile = &mut self.core.profile;
        let total = u64::from(bytes * self.mask.count_ones());
        match (space, write) {
            (Space::Global, false) => profile.global_read += total,
            (Space::Global, true) => profile.global_written += total,
            (_, false) => profile.shared_read += total,
            (_, true) => profile.shared_written += total,
        }
        if space != Space::Global {
            let places: Vec<_> = lanes(self.mask).map(|lane| (lane as u32, addresses[lane] as u32)).collect();
            profile.shared_access(&places, bytes);
        }
    }

    fn flag(&mut self, spot: Spot) -> (&mut std::collections::BTreeMap<u64, Knowledge>, u64) {
        match spot {
            Spot::Global { address, .. } => (&mut self.core.trace.flags, address),
            Spot::Shared(span) => (&mut self.cluster.blocks[span.block].shared.flags, span.offset.into()),
        }
    }

    /// A load that may synchronise: what the flag's writer published is learnt now, or at the next fence.
    fn observe_flag(&mut self, spot: Spot, lane: usize, acquire: bool) {
        let (flags, at) = self.flag(spot);
        let Some(published) = flags.get(&at).cloned() else { return };
        if acquire {
            self.warp.learn(1 << lane, |known| known.join(&published));
        } else {
            match &mut self.warp.glimpsed {
                Some(glimpsed) => glimpsed.join(&published),
                none => *none = Some(Box::new(published)),
            }
        }
    }

    /// A store that may synchronise: it publishes what the thread knows, or what its last fence covered. A plain store takes
    /// the flag's meaning away; an atomic adds to it.
    fn raise_flag(&mut self, spot: Spot, lane: usize, release: bool, strong: bool, atomic: bool) {
        let mut published = Knowledge::new(self.cluster.index);
        if release {
            self.warp.publish(1 << lane, &mut published);
        } else if strong && let Some(fenced) = &self.warp.fenced {
            published.join(fenced);
        }
        let (flags, at) = self.flag(spot);
        match (flags.get_mut(&at), strong) {
            (Some(old), true) if atomic => old.join(&published),
            (Some(old), true) => *old = published,
            (Some(_), false) => {
                flags.remove(&at);
            }
            (None, true) => {
                flags.insert(at, published);
            }
            (None, false) => {}
        }
    }
}

/// Little-endian bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn combine(op: AtomicOp, ty: DataType, old: u64, operand: u64) -> u64 {
    use ptx::instr::BinaryOp;
    match op {
        AtomicOp::Add => arith::binary(BinaryOp::Add, ty, old, operand),
        AtomicOp::Min => arith::binary(BinaryOp::Min, ty, old, operand),
        AtomicOp::Max => arith::binary(BinaryOp::Max, ty, old, operand),
        AtomicOp::Exchange => operand,
    }
}
