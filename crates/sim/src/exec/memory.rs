//! Loads, stores and atomics of single threads.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use ptx::instr::{AtomicOp, LoadOrder, Memory, StoreOrder, Width};
use ptx::{DataType, Operand, RegId, Scope, Space};

use super::compute::bank_bytes;
use super::{Exec, SharedSpan};
use crate::arith;
use crate::blocks::Findings;
use crate::clock::Knowledge;
use crate::error::{Fault, FaultKind, Place};
use crate::flag::{Flag, Publication, Stamp, Version, narrower};
use crate::lanes::{Lanes, Words, lanes};
use crate::limits::Rules;
use crate::memory::SharedMemory;
use crate::race::{Proxy, RecordId};

/// A resolved place of either memory.
#[derive(Clone, Copy)]
pub(super) enum Spot {
    Global { buffer: usize, offset: usize, address: u64 },
    Shared(SharedSpan),
}

/// Where the bytes of a warp's lanes begin, by lane: in one buffer of global memory, or in the shared memory of its own
/// block.
struct Spots {
    buffer: Option<usize>,
    offsets: Words,
}

impl Exec<'_, '_> {
    pub(crate) fn memory(&mut self, op: &Memory) -> Result<(), FaultKind> {
        let (Memory::Load { space, addr, .. } | Memory::Store { space, addr, .. } | Memory::Atomic { space, addr, .. }) =
            op;
        let addresses = self.addresses(*addr);
        match space {
            Space::Generic => self.by_windows(op, &addresses),
            space => self.access(op, *space, &addresses),
        }
    }

    /// An access at addresses in one window.
    pub(crate) fn access(&mut self, op: &Memory, space: Space, addresses: &Lanes) -> Result<(), FaultKind> {
        match op {
            Memory::Load { order, width, dsts, .. } => self.load(space, *order, *width, dsts, addresses),
            Memory::Store { order, width, srcs, .. } => self.store(space, *order, width.bytes(), srcs, addresses),
            Memory::Atomic { .. } => self.atomic(op, space, addresses),
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

    /// Notes the accesses of all executing lanes, and finds their bytes, if they are in one memory, and there is
    /// nothing to say against any of them: then it is enough to look up once what they have in common. Otherwise
    /// `touch` is for each, which says what is wrong; it takes no offence at what was noted here.
    fn touch_all(
        &mut self,
        space: Space,
        addresses: &Lanes,
        bytes: u32,
        write: bool,
        record: RecordId,
    ) -> Option<Spots> {
        if !bytes.is_power_of_two() || lanes(self.mask).any(|lane| addresses[lane] & u64::from(bytes - 1) != 0) {
            return None;
        }
        let (global, first, index) = (space == Space::Global, self.mask.trailing_zeros() as usize, self.cluster.index);
        let (warp, log) = (&*self.warp, &self.core.log);
        let mut who = super::observer(warp, index, Some(first), record, Proxy::Generic, (global, self.core.rules));
        let (buffer, offsets, shadow) = if global {
            let (buffer, offsets) = self.core.memory.offsets(self.mask, addresses, bytes)?;
            let knows = |lane: usize| {
                who.becomes(lane, warp.knowledge(lane));
                who.knows_origin(log)
            };
            if self.core.memory.buffers[buffer].awaited && !lanes(self.mask).all(knows) {
                return None;
            }
            (Some(buffer), offsets, &mut self.core.trace.shadows[buffer])
        } else {
            let start = SharedMemory::address(self.rank, 0).into();
            let shared = &mut self.cluster.blocks[self.rank].shared;
            (None, shared.offsets(self.mask, addresses, start, bytes)?, &mut shared.shadow)
        };
        let accesses = lanes(self.mask).map(|lane| (lane, warp.knowledge(lane), offsets[lane] as usize));
        shadow.note_lanes(log, &mut who, accesses, bytes as usize, write).ok()?;
        Some(Spots { buffer, offsets })
    }

    /// One of them.
    fn spot(&self, spots: &Spots, lane: usize) -> Spot {
        let offset = spots.offsets[lane];
        match spots.buffer {
            Some(buffer) => {
                let address = self.core.memory.buffers[buffer].address + u64::from(offset);
                Spot::Global { buffer, offset: offset as usize, address }
            }
            None => Spot::Shared(SharedSpan { block: self.rank, offset }),
        }
    }

    /// Loads words that were all written, as nearly all were, and says whether it has.
    fn load_words(&mut self, spots: &Spots, dsts: &[RegId]) -> bool {
        let (data, written) = match spots.buffer {
            Some(buffer) => {
                let contents = &self.core.memory.buffers[buffer];
                (&contents.data[..], &*contents.written)
            }
            None => {
                let shared = &self.cluster.blocks[self.rank].shared;
                (&shared.data[..], &shared.written)
            }
        };
        let offset = |lane: usize| spots.offsets[lane] as usize;
        if lanes(self.mask).any(|lane| written.missing(offset(lane), 4 * dsts.len()).is_some()) {
            return false;
        }
        for (at, dst) in dsts.iter().enumerate() {
            let mut words = [0; 32];
            for lane in lanes(self.mask) {
                let word = data[offset(lane) + 4 * at..].first_chunk();
                words[lane] = word.map_or(0, |word| u32::from_le_bytes(*word));
            }
            self.warp.set_words(*dst, self.mask, &words);
        }
        true
    }

    /// Stores words.
    fn store_words(&mut self, spots: &Spots, srcs: &[RegId]) {
        let (data, written, flags, start) = match spots.buffer {
            Some(buffer) => {
                let contents = &mut self.core.memory.buffers[buffer];
                let (data, written) = (Arc::make_mut(&mut contents.data), Arc::make_mut(&mut contents.written));
                (data, written, &mut self.core.trace.flags, contents.address)
            }
            None => {
                let shared = &mut self.cluster.blocks[self.rank].shared;
                (&mut shared.data, &mut shared.written, &mut shared.flags, 0)
            }
        };
        for (at, src) in srcs.iter().enumerate() {
            let words = self.warp.words(*src);
            for lane in lanes(self.mask) {
                let offset = spots.offsets[lane] as usize + 4 * at;
                data[offset..offset + 4].copy_from_slice(&words[lane].to_le_bytes());
            }
        }
        for lane in lanes(self.mask) {
            let offset = spots.offsets[lane];
            written.set(offset as usize, 4 * srcs.len());
            if !flags.is_empty() {
                flags.remove(&(start + u64::from(offset)));
            }
        }
    }

    /// Whether some of the bytes from a place on were never written.
    pub(super) fn lacks(&self, spot: Spot, at: u32, bytes: u32) -> bool {
        let (written, start) = match spot {
            Spot::Global { buffer, offset, .. } => (&*self.core.memory.buffers[buffer].written, offset),
            Spot::Shared(span) => (&self.cluster.blocks[span.block].shared.written, span.offset as usize),
        };
        written.missing(start + at as usize, bytes as usize).is_some()
    }

    /// What is wrong with reading some of the bytes from a place on, if they were never written.
    pub(super) fn unwritten_at(&self, spot: Spot, at: u32, bytes: u32) -> Option<FaultKind> {
        match spot {
            Spot::Global { buffer, offset, address } => {
                let start = offset + at as usize;
                let byte = self.core.memory.buffers[buffer].written.missing(start, bytes as usize)?;
                let place = self.core.global_place(address + u64::from(at), bytes.into());
                Some(FaultKind::Uninitialised { place, byte: (byte - start) as u64 })
            }
            Spot::Shared(span) => self.unwritten(SharedSpan { offset: span.offset + at, ..span }, bytes),
        }
    }

    pub(super) fn bytes(&self, spot: Spot, bytes: usize) -> &[u8] {
        match spot {
            Spot::Global { buffer, offset, .. } => &self.core.memory.buffers[buffer].data[offset..offset + bytes],
            Spot::Shared(span) => {
                let offset = span.offset as usize;
                &self.cluster.blocks[span.block].shared.data[offset..offset + bytes]
            }
        }
    }

    pub(super) fn put(&mut self, spot: Spot, data: &[u8]) {
        let (memory, written, offset) = match spot {
            Spot::Global { buffer, offset, .. } => {
                let contents = &mut self.core.memory.buffers[buffer];
                (Arc::make_mut(&mut contents.data), Arc::make_mut(&mut contents.written), offset)
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
        element: Width,
        dsts: &[RegId],
        addresses: &Lanes,
    ) -> Result<(), FaultKind> {
        let strong = match order {
            LoadOrder::Relaxed(scope) | LoadOrder::Acquire(scope) => Some(scope),
            LoadOrder::Weak | LoadOrder::ReadOnly | LoadOrder::Streaming => None,
        };
        let record = self.record(strong);
        let width = element.bytes();
        let total = width * dsts.len() as u32;
        let plain = strong.is_none();
        let spots = if plain { self.touch_all(space, addresses, total, false, record) } else { None };
        if let (Some(spots), LoadOrder::Weak, 4) = (&spots, order, width)
            && self.load_words(spots, dsts)
        {
            self.count(space, addresses, total, false);
            return Ok(());
        }
        let mut values = std::mem::take(&mut self.core.loaded);
        values.resize(values.len().max(dsts.len()), [0; 32]);
        let mut tainted = Vec::new();
        for lane in lanes(self.mask) {
            let spot = match &spots {
                Some(spots) => self.spot(spots, lane),
                None => self.touch(space, addresses[lane], total, false, lane, record)?,
            };
            if self.lacks(spot, 0, total) {
                if strong.is_some()
                    && let Some(fault) = self.unwritten_at(spot, 0, total)
                {
                    return Err(fault);
                }
                self.note_origin(|exec| exec.unwritten_at(spot, 0, total));
                tainted.resize(dsts.len(), 0u32);
                for (at, tainted) in (0..).step_by(width as usize).zip(&mut tainted) {
                    *tainted |= u32::from(self.lacks(spot, at, width)) << lane;
                }
            }
            if let (LoadOrder::ReadOnly | LoadOrder::Streaming, Spot::Global { buffer, offset, address }) =
                (order, spot)
                && self.core.trace.shadows[buffer].written(&self.core.log, offset, total as usize)
            {
                self.offend(FaultKind::NotReadOnly { place: self.core.global_place(address, total.into()) })?;
            }
            let seen = match strong {
                Some(scope) => {
                    self.observe_flag(spot, total, lane, scope, matches!(order, LoadOrder::Acquire(_)), false)?
                }
                None => None,
            };
            let bytes = seen.as_deref().unwrap_or_else(|| self.bytes(spot, total as usize));
            match width {
                4 => {
                    let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
                    values.iter_mut().zip(words).for_each(|(value, word)| value[lane] = word.into());
                }
                _ => {
                    let words = bytes.chunks_exact(width as usize).map(word);
                    values.iter_mut().zip(words).for_each(|(value, word)| value[lane] = word);
                }
            }
        }
        for (dst, values) in dsts.iter().zip(&mut values) {
            if element.is_signed() {
                let unused = 64 - 8 * width;
                let extended = |value: u64| ((value << unused).cast_signed() >> unused).cast_unsigned();
                *values = values.map(extended);
            }
            self.set(*dst, values);
        }
        for (dst, tainted) in dsts.iter().zip(tainted) {
            self.warp.taint(*dst, tainted, self.pc);
        }
        self.core.loaded = values;
        self.count(space, addresses, total, false);
        Ok(())
    }

    fn store(
        &mut self,
        space: Space,
        order: StoreOrder,
        width: u32,
        srcs: &[RegId],
        addresses: &Lanes,
    ) -> Result<(), FaultKind> {
        let strong = match order {
            StoreOrder::Relaxed(scope) | StoreOrder::Release(scope) => Some(scope),
            StoreOrder::Weak => None,
        };
        let record = self.record(strong);
        let total = width * srcs.len() as u32;
        let plain = strong.is_none();
        let spots = if plain { self.touch_all(space, addresses, total, true, record) } else { None };
        if let (Some(spots), 4, false) = (&spots, width, self.warp.taints) {
            self.store_words(spots, srcs);
            self.count(space, addresses, total, true);
            return Ok(());
        }
        let mut written: Vec<(u64, [u8; 32])> = Vec::new();
        for lane in lanes(self.mask) {
            let mut data = [0u8; 32];
            for (at, src) in srcs.iter().enumerate() {
                let (value, start) = (self.warp.get_lane(*src, lane).to_le_bytes(), at * width as usize);
                match width {
                    4 => data[start..start + 4].copy_from_slice(&value[..4]),
                    _ => data[start..start + width as usize].copy_from_slice(&value[..width as usize]),
                }
            }
            // Of lanes that write to one place by one instruction any may be the last: that is no matter where they
            // write the same, though by the letter it is a race.
            if plain && spots.is_none() && self.core.rules == Rules::Practice {
                if written.contains(&(addresses[lane], data)) {
                    continue;
                }
                written.push((addresses[lane], data));
            }
            let spot = match &spots {
                Some(spots) => self.spot(spots, lane),
                None => {
                    match self.touch_stored(space, addresses[lane], &data[..total as usize], (lane, plain), record)? {
                        Some(spot) => spot,
                        None => continue,
                    }
                }
            };
            let data = &data[..total as usize];
            self.raise_flag(spot, lane, data, matches!(order, StoreOrder::Release(_)), strong, false);
            self.put(spot, data);
            if let (true, Spot::Shared(span)) = (self.warp.taints, spot) {
                let written = &mut self.cluster.blocks[span.block].shared.written;
                for (at, src) in (span.offset..).step_by(width as usize).zip(srcs) {
                    if self.warp.tainted(*src) >> lane & 1 == 1 {
                        written.clear(at as usize, width as usize);
                    }
                }
            }
        }
        self.count(space, addresses, total, true);
        Ok(())
    }

    /// Checks and notes one lane's store, and finds its bytes; nothing where it only repeats what another thread
    /// stores there at any time. Compilers let all warps write one value, which is no matter in practice.
    fn touch_stored(
        &mut self,
        space: Space,
        address: u64,
        data: &[u8],
        (lane, plain): (usize, bool),
        record: RecordId,
    ) -> Result<Option<Spot>, FaultKind> {
        let bytes = data.len() as u32;
        let there = match space {
            Space::Global => self.core.memory.find(address, bytes.into()).map(|span| Spot::Global {
                buffer: span.buffer,
                offset: span.offset,
                address,
            }),
            _ => self.shared_span(space, address, bytes).ok().map(Spot::Shared),
        };
        let same = |spot: Spot| !self.lacks(spot, 0, bytes) && self.bytes(spot, data.len()) == data;
        let granted = plain && self.core.rules == Rules::Practice && self.core.earlier.is_empty();
        if !granted || !there.is_some_and(same) {
            return self.touch(space, address, bytes, true, lane, record).map(Some);
        }
        let findings = self.core.findings.replace(Findings::default());
        let touched = self.touch(space, address, bytes, true, lane, record);
        let found = std::mem::replace(&mut self.core.findings, findings).unwrap_or_default().all;
        let repeats = |fault: &Fault| match &fault.kind {
            FaultKind::Race { first, .. } => first.write && !first.asynchronous,
            _ => false,
        };
        if !found.is_empty() && found.iter().all(repeats) {
            return Ok(None);
        }
        found.into_iter().try_for_each(|fault| self.offend(fault.kind))?;
        touched.map(Some)
    }

    fn atomic(&mut self, op: &Memory, space: Space, addresses: &Lanes) -> Result<(), FaultKind> {
        let Memory::Atomic { op, ty, acq_rel, scope, dst, a, b, .. } = op else { return Ok(()) };
        let width = bank_bytes(ty.bank());
        let record = self.record(Some(*scope));
        let operand = self.warp.value(*a);
        let second = self.warp.value(b.unwrap_or(Operand::Imm(0)));
        let mut old = [0; 32];
        for lane in lanes(self.mask) {
            let read = self.touch(space, addresses[lane], width, false, lane, record)?;
            if let Some(fault) = self.unwritten_at(read, 0, width) {
                return Err(fault);
            }
            let spot = self.touch(space, addresses[lane], width, true, lane, record)?;
            old[lane] = word(self.bytes(spot, width as usize));
            let new = combine(*op, *ty, old[lane], [operand[lane], second[lane]]).to_le_bytes();
            if *acq_rel || dst.is_some() {
                self.observe_flag(spot, width, lane, *scope, *acq_rel, true)?;
            }
            self.raise_flag(spot, lane, &new[..width as usize], *acq_rel, Some(*scope), true);
            self.put(spot, &new[..width as usize]);
        }
        if let Some(dst) = dst {
            self.set(*dst, &old);
        }
        self.count(space, addresses, width, true);
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
            profile.shared_access(self.mask, addresses, bytes);
        }
    }

    fn flag(&mut self, spot: Spot) -> (&mut BTreeMap<u64, Flag>, u64) {
        match spot {
            Spot::Global { address, .. } => (&mut self.core.trace.flags, address),
            Spot::Shared(span) => (&mut self.cluster.blocks[span.block].shared.flags, span.offset.into()),
        }
    }

    /// A load that may synchronise: what the flag's writer published is learnt now, or at the next fence. Gives the
    /// value that is seen, if it is an older one; an atomic sees the newest.
    fn observe_flag(
        &mut self,
        spot: Spot,
        bytes: u32,
        lane: usize,
        scope: Scope,
        acquire: bool,
        atomic: bool,
    ) -> Result<Option<Vec<u8>>, FaultKind> {
        let newest = self.bytes(spot, bytes as usize).to_vec();
        let (flags, at) = self.flag(spot);
        let Some(mut flag) = flags.remove(&at).filter(|flag| flag.holds(&newest)) else { return Ok(None) };
        let thread = (self.cluster.index, self.warp.slot + lane as u32);
        let known = &self.warp.knowledge(lane).generic;
        let knows =
            |stamp: Stamp| (stamp.cluster, stamp.slot) == thread || known.get(stamp.cluster, stamp.slot) >= stamp.count;
        let visible = if atomic { 1 } else { flag.visible(thread, knows) };
        let back = self.core.chooser.staleness(visible);
        let (version, published) = flag.see(thread, back, acquire.then_some(scope));
        let (written, published) = (version.written, published.to_vec());
        let older = (back > 0).then(|| version.data.clone());
        self.flag(spot).0.insert(at, flag);
        if !written {
            return Err(FaultKind::Uninitialised { place: self.place(spot, bytes), byte: 0 });
        }
        for publication in published {
            match acquire {
                true => self.acquire(lane, scope, &publication),
                false => self.warp.glimpse(lane, publication),
            }
        }
        Ok(older)
    }

    fn place(&self, spot: Spot, bytes: u32) -> Place {
        match spot {
            Spot::Global { address, .. } => self.core.global_place(address, bytes.into()),
            Spot::Shared(span) => self.core.shared_place(self.cluster.blocks[span.block].id, span.offset, bytes),
        }
    }

    /// A lane learns what was published, if it and the publisher are in each other's scope.
    pub(crate) fn acquire(&mut self, lane: usize, scope: Scope, publication: &Publication) {
        if self.agent().mutual(scope, publication.by, publication.scope) {
            self.warp.learn(1 << lane, |known| known.join(&publication.knowledge));
        }
    }

    /// A store that may synchronise: it publishes what the thread knows, or what its last fence covered. A plain store
    /// takes the flag's meaning away; an atomic adds to it.
    fn raise_flag(&mut self, spot: Spot, lane: usize, data: &[u8], release: bool, strong: Option<Scope>, atomic: bool) {
        let Some(scope) = strong else {
            let (flags, at) = self.flag(spot);
            if !flags.is_empty() {
                flags.remove(&at);
            }
            return;
        };
        let (by, count) = (self.agent(), self.warp.tick);
        let writer = Stamp { cluster: self.cluster.index, slot: self.warp.slot + lane as u32, count };
        let mut published = Vec::new();
        if release {
            let mut knowledge = Knowledge::new(self.cluster.index);
            self.warp.publish(1 << lane, &mut knowledge);
            published.push(Publication { by, scope, knowledge: Rc::new(knowledge) });
        } else if let Some(fenced) = &self.warp.fenced[lane] {
            published.push(Publication { scope: narrower(scope, fenced.scope), ..fenced.clone() });
        }
        let before = self.bytes(spot, data.len()).to_vec();
        let written = match spot {
            Spot::Global { buffer, offset, .. } => {
                self.core.memory.buffers[buffer].written.missing(offset, data.len()).is_none()
            }
            Spot::Shared(span) => {
                let shared = &self.cluster.blocks[span.block].shared;
                shared.written.missing(span.offset as usize, data.len()).is_none()
            }
        };
        let (flags, at) = self.flag(spot);
        if flags.get(&at).is_some_and(|flag| !flag.holds(&before)) {
            flags.remove(&at);
        }
        let flag = flags
            .entry(at)
            .or_insert_with(|| Flag::new(Version { data: before, written, writer: None, published: Vec::new() }));
        if atomic {
            published.extend_from_slice(flag.published());
        }
        flag.push(Version { data: data.to_vec(), written: true, writer: Some(writer), published });
    }
}

/// Little-endian bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    match *bytes {
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        _ => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

fn combine(op: AtomicOp, ty: DataType, old: u64, [operand, second]: [u64; 2]) -> u64 {
    use ptx::instr::{BinaryOp, FloatMode};
    match op {
        AtomicOp::Add => arith::binary(BinaryOp::Add, ty, FloatMode::PLAIN, old, operand),
        AtomicOp::Min => arith::binary(BinaryOp::Min, ty, FloatMode::PLAIN, old, operand),
        AtomicOp::Max => arith::binary(BinaryOp::Max, ty, FloatMode::PLAIN, old, operand),
        AtomicOp::Exchange => operand,
        AtomicOp::And => old & operand,
        AtomicOp::Or => old | operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Increment if old >= operand => 0,
        AtomicOp::Increment => old + 1,
        AtomicOp::Decrement if old == 0 || old > operand => operand,
        AtomicOp::Decrement => old - 1,
        AtomicOp::CompareExchange if old == operand => second,
        AtomicOp::CompareExchange => old,
    }
}
