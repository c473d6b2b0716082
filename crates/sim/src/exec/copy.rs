//! Issuing asynchronous copies. Everything a copy may touch is checked and noted here, with what the issuing thread
//! knows; the bytes move when the schedule says so.

use std::borrow::Cow;

use ptx::instr::AsyncCopy;
use ptx::tensor_map::TensorMap;
use ptx::{Address, CtaGroup, Operand, RegId, Space};

use super::{Exec, Flow, SharedSpan};
use crate::error::FaultKind;
use crate::flight::{ByThreads, CopySource, Incoming, Job, Outgoing, Part, Stores, Work};
use crate::invocation::Invocation;
use crate::lanes::{Lanes, Words, lanes};
use crate::launch_control;
use crate::limits::Rules;
use crate::memory::SharedMemory;
use crate::race::{Proxy, RecordId};
use crate::tma;
use crate::warp::Wait;

/// Bytes of a row that a tensor's box begins at a multiple of. The ISA does not say; to an H200 any other is an illegal
/// instruction (triton-lang/triton#7385, and tried).
const ROW_STEP: i64 = 16;

/// A copy into shared memory, as one lane asked for it.
struct Request {
    lane: usize,
    proxy: Proxy,
    /// Block that receives.
    target: usize,
    barrier: (usize, u32),
    parts: Vec<Part>,
    source_block: Option<usize>,
    bytes: u32,
}

impl<'k> Exec<'_, 'k> {
    pub(crate) fn copy(&mut self, op: &AsyncCopy) -> Result<Flow, FaultKind> {
        match op {
            AsyncCopy::BulkLoad { dst, src, bytes, bar, multicast, policy: _ } => {
                self.bulk_load(*dst, *src, *bytes, *bar, *multicast)?;
            }
            AsyncCopy::BulkStore { dst, src, bytes, policy: _ } => self.bulk_store(*dst, *src, *bytes)?,
            AsyncCopy::BulkToCluster { dst, src, bytes, bar } => self.bulk_across(*dst, *src, *bytes, *bar)?,
            AsyncCopy::BulkPrefetch { src, bytes } => {
                let (src, bytes) = (self.addresses(*src), self.warp.value(*bytes));
                for lane in lanes(self.mask) {
                    let bytes = self.bulk_size(bytes[lane])?.into();
                    Self::demand("the source of a bulk prefetch", src[lane], 16)?;
                    let found = self.core.memory.find(src[lane], bytes);
                    found.ok_or_else(|| self.core.beyond(src[lane], bytes))?;
                }
            }
            AsyncCopy::TensorLoad { dst, map, coords, bar, multicast, policy: _, cta_group } => {
                let pair = *cta_group == Some(CtaGroup::Two);
                self.tensor_load(*dst, *map, coords, *bar, *multicast, pair)?;
            }
            AsyncCopy::TensorStore { map, coords, src, policy: _ } => self.tensor_store(*map, coords, *src)?,
            AsyncCopy::TensorPrefetch { map, coords } => {
                for lane in lanes(self.mask) {
                    self.tensor(*map, coords, lane)?;
                }
            }
            AsyncCopy::PrefetchMap { map } => {
                for lane in lanes(self.mask) {
                    self.map(*map, lane)?;
                }
            }
            AsyncCopy::CommitGroup => self.commit_stores(),
            AsyncCopy::WaitGroup { pending, read } => return Ok(self.wait_stores(*pending, *read)),
            AsyncCopy::TryCancel { dst, bar, multicast } => self.try_cancel(*dst, *bar, *multicast)?,
            AsyncCopy::StoreAsync { dst, srcs, bar } => self.store_async(*dst, srcs, *bar)?,
            AsyncCopy::ThreadCopy { dst, src, bytes, source_bytes, policy: _ } => {
                self.thread_copy(*dst, *src, *bytes, *source_bytes)?;
            }
            AsyncCopy::CommitThreadGroup => {
                lanes(self.mask).for_each(|lane| self.warp.copies.committed[lane] += 1);
            }
            AsyncCopy::WaitThreadGroup { pending } => return Ok(self.wait_copies(*pending)),
            AsyncCopy::ArriveBehindCopies { bar, expected } => self.arrive_behind_copies(*bar, *expected)?,
        }
        Ok(Flow::Next)
    }

    /// Takes a cluster from those that have not begun, if there is one and the launcher agrees, and sends the answer to
    /// whoever gets it.
    fn try_cancel(&mut self, dst: Address, bar: Address, all: bool) -> Result<(), FaultKind> {
        let (dst, bar) = (self.addresses(dst), self.addresses(bar));
        for lane in lanes(self.mask) {
            if self.cluster.refused {
                let what = "requests for another cluster behind a refusal that was seen";
                return Err(FaultKind::BadOperand { what, found: 1, wanted: "none: what they do is undefined" });
            }
            Self::demand("the answer of launch control", dst[lane], 16)?;
            let (to, bar) = self.ends(dst[lane], launch_control::BYTES, bar[lane])?;
            let answer = self.core.cancel().map_or(launch_control::REFUSED, launch_control::cancelled);
            let blocks = if all { 0..self.cluster.blocks.len() } else { self.rank..self.rank + 1 };
            for target in blocks {
                self.elsewhere(to, target, launch_control::BYTES)?;
                let bar = self.elsewhere(bar, target, 8)?;
                let parts = vec![Part::plain(to.offset, launch_control::BYTES, CopySource::Bytes(answer))];
                let (proxy, source_block, barrier) = (Proxy::Async, None, (bar.block, bar.offset));
                let bytes = launch_control::BYTES;
                self.send(Request { lane, proxy, target, barrier, parts, source_block, bytes })?;
            }
        }
        Ok(())
    }

    /// Copies of a few bytes by each lane. Lanes whose current groups differ in number are separate pieces of work.
    fn thread_copy(
        &mut self,
        dst: Address,
        src: Address,
        bytes: u32,
        source_bytes: Option<Operand>,
    ) -> Result<(), FaultKind> {
        let (dst, src) = (self.addresses(dst), self.addresses(src));
        let read = source_bytes.map_or([bytes.into(); 32], |source_bytes| self.warp.value(source_bytes));
        let mut left = self.mask;
        while left != 0 {
            let group = self.warp.copies.committed[left.trailing_zeros() as usize] + 1;
            let alike = |lane: &usize| self.warp.copies.committed[*lane] + 1 == group;
            let together = lanes(left).filter(alike).fold(0, |mask, lane| mask | 1 << lane);
            left &= !together;
            let record = self.copied_by_lanes(together, group);
            let noted = self.note_copies(together, (&dst, &src), bytes, &read, record);
            let mut parts = Vec::with_capacity(32);
            for lane in lanes(together) {
                Self::demand("the destination of a thread's copy", dst[lane], bytes.into())?;
                if read[lane] > u64::from(bytes) {
                    let (what, found) = ("the bytes that a thread's copy reads", read[lane]);
                    return Err(FaultKind::BadOperand { what, found, wanted: "at most those it writes" });
                }
                let read = read[lane] as u32;
                let to = match &noted {
                    Some(to) => SharedSpan { block: self.rank, offset: to[lane] },
                    None => self.shared_span(Space::Shared, dst[lane], bytes)?,
                };
                if read > 0 {
                    Self::demand("the source of a thread's copy", src[lane], bytes.into())?;
                    if noted.is_none() {
                        self.touch_global(src[lane], read.into(), false, lane, record)?;
                    }
                    parts.push(Part::plain(to.offset, read, CopySource::Global(src[lane])));
                }
                if noted.is_none() {
                    self.touch_shared(to, bytes, true, Some(lane), record)?;
                }
                if read < bytes {
                    parts.push(Part::plain(to.offset + read, bytes - read, CopySource::Zero));
                }
                self.warp.copies.last[lane] = (group, self.pc);
                self.core.profile.copied_in += u64::from(read);
            }
            // Every copy of a run has its own number in the log, as long as it is in flight.
            let name = self.core.clock << 6 | u64::from(together.trailing_zeros());
            self.warp.copies.flying.push((name, together, group));
            let (block, warp, pc) = (self.rank, self.warp.index, self.pc);
            let work = Work::ByThreads(ByThreads { name, parts });
            self.cluster.jobs.push(Box::new(Job { block, warp, lanes: together, pc, work }));
        }
        Ok(())
    }

    /// Notes what copies by these lanes touch, if there is nothing to say against any of it; and says where in shared
    /// memory it is.
    fn note_copies(
        &mut self,
        together: u32,
        (dst, src): (&Lanes, &Lanes),
        bytes: u32,
        read: &Lanes,
        record: RecordId,
    ) -> Option<Words> {
        let (index, rules, first) = (self.cluster.index, self.core.rules, together.trailing_zeros() as usize);
        let (warp, start) = (&*self.warp, SharedMemory::address(self.rank, 0).into());
        let shared = &mut self.cluster.blocks[self.rank].shared;
        let to = shared.offsets(together, dst, start, bytes)?;
        let by = |global| super::observer(warp, index, Some(first), record, Proxy::Generic, (global, rules));
        let (mut reader, mut writer, mut last) = (by(true), by(false).replacing(true), 0);
        let reading = |wanted: &dyn Fn(u64) -> bool| {
            lanes(together).filter(|&lane| wanted(read[lane])).fold(0, |mask, lane| mask | 1 << lane)
        };
        let (mut left, whole) = (reading(&|count| count > 0), reading(&|count| count == bytes.into()));
        if let Some((buffer, from)) = self.core.memory.offsets(whole, src, bytes)
            && !self.core.memory.buffers[buffer].awaited
        {
            let accesses = lanes(whole).map(|lane| (lane, warp.knowledge(lane), from[lane] as usize));
            let shadow = &mut self.core.trace.shadows[buffer];
            shadow.note_lanes(&self.core.log, &mut reader, accesses, bytes as usize, false).ok()?;
            left &= !whole;
        }
        for lane in lanes(left) {
            reader.becomes(lane, warp.knowledge(lane));
            self.core.note_global(&mut reader, &mut last, (src[lane], read[lane]), false)?;
        }
        let accesses = lanes(together).map(|lane| (lane, warp.knowledge(lane), to[lane] as usize));
        shared.shadow.note_lanes(&self.core.log, &mut writer, accesses, bytes as usize, true).ok()?;
        Some(to)
    }

    /// Lanes that wait do so for all of them: that is never less than what each has asked for, and what each then knows
    /// is its own.
    fn wait_copies(&mut self, pending: u32) -> Flow {
        let group = |lane: usize| self.warp.copies.awaits(lane, pending);
        let furthest = lanes(self.mask).map(group).max().unwrap_or(0);
        if !self.warp.copies.landed(self.mask, furthest) {
            return Flow::Wait(Wait::Copies { group: furthest });
        }
        for lane in lanes(self.mask) {
            let group = self.warp.copies.awaits(lane, pending);
            self.warp.copies.awaited[lane] = self.warp.copies.awaited[lane].max(group);
        }
        Flow::Next
    }

    /// A tensor map among the parameters, or one that the kernel has made in global memory. Whether its making is in
    /// order with its use is not looked at.
    fn map(&self, map: RegId, lane: usize) -> Result<Cow<'k, TensorMap>, FaultKind> {
        let (address, launch): (u64, &'k Invocation) = (self.warp.get_lane(map, lane), self.core.launch);
        let made = || {
            let span = self.core.memory.find(address, TensorMap::BYTES as u64)?;
            let buffer = &self.core.memory.buffers[span.buffer];
            let whole = address.is_multiple_of(64) && buffer.written.missing(span.offset, TensorMap::BYTES).is_none();
            TensorMap::made(buffer.data[span.offset..].first_chunk().filter(|_| whole)?)
        };
        launch.map_at(address).map(Cow::Borrowed).or_else(|| made().map(Cow::Owned)).ok_or(FaultKind::BadOperand {
            what: "the address of a tensor map",
            found: address,
            wanted: "that of a tensor map parameter, or of a whole and legal map in global memory",
        })
    }

    fn tensor(&self, map: RegId, coords: &[Operand], lane: usize) -> Result<(Cow<'k, TensorMap>, Vec<i64>), FaultKind> {
        let map = self.map(map, lane)?;
        if map.dims.len() != coords.len() {
            let (what, found) = ("coordinates of a tensor copy", coords.len() as u64);
            return Err(FaultKind::BadOperand { what, found, wanted: "as many as the tensor map has dimensions" });
        }
        let coords: Vec<i64> =
            coords.iter().map(|coord| i64::from((self.warp.value(*coord)[lane] as u32).cast_signed())).collect();
        let bits = coords[0] * i64::from(map.element.bits());
        if bits % (8 * ROW_STEP) != 0 {
            let (what, address, wanted) =
                ("the byte of a row that a box begins at", bits / 8, ROW_STEP.cast_unsigned());
            return Err(FaultKind::Misaligned { what, address: address.cast_unsigned(), wanted });
        }
        Ok((map, coords))
    }

    pub(crate) fn demand(what: &'static str, address: u64, wanted: u64) -> Result<(), FaultKind> {
        // Nearly all are powers of two, and divisions are slow.
        let aligned = match wanted.is_power_of_two() {
            true => address & (wanted - 1) == 0,
            false => address.is_multiple_of(wanted),
        };
        if aligned { Ok(()) } else { Err(FaultKind::Misaligned { what, address, wanted }) }
    }

    /// The blocks that receive what a lane sends to this place: the place's own, or those of the mask.
    pub(crate) fn receivers(
        &self,
        to: SharedSpan,
        multicast: Option<RegId>,
        lane: usize,
    ) -> Result<Vec<usize>, FaultKind> {
        let Some(mask) = multicast else { return Ok(vec![to.block]) };
        let mask = self.warp.get_lane(mask, lane);
        if mask >> self.cluster.blocks.len() != 0 || mask == 0 {
            let what = "the mask of a multicast";
            return Err(FaultKind::BadOperand { what, found: mask, wanted: "some of the blocks of the cluster" });
        }
        Ok((0..self.cluster.blocks.len()).filter(|rank| mask >> rank & 1 == 1).collect())
    }

    /// The same place in another block of the cluster.
    pub(crate) fn elsewhere(&self, span: SharedSpan, block: usize, bytes: u32) -> Result<SharedSpan, FaultKind> {
        self.shared_span(Space::Cluster, SharedMemory::address(block, span.offset).into(), bytes)
    }

    /// The barrier that counts what a block receives: its own, or for a pair of blocks the one of the pair that `bar`
    /// is in.
    fn signalled(
        &self,
        block: usize,
        bar: SharedSpan,
        multicast: Option<RegId>,
        pair: bool,
    ) -> Result<SharedSpan, FaultKind> {
        let wanted = if pair { block & !1 | bar.block & 1 } else { block };
        if multicast.is_none() && bar.block != wanted {
            let (what, found) = ("the block of the barrier that counts a copy", bar.block as u64);
            let wanted = if pair { "one of the pair that the copy goes to" } else { "the block that the copy goes to" };
            return Err(FaultKind::BadOperand { what, found, wanted });
        }
        self.elsewhere(bar, wanted, 8)
    }

    /// Sends a copy into shared memory on its way.
    fn send(&mut self, request: Request) -> Result<(), FaultKind> {
        let Request { lane, proxy, target, barrier, parts, source_block, bytes } = request;
        let span = SharedSpan { block: barrier.0, offset: barrier.1 };
        self.find_barrier(span, lane, Proxy::Async)?;
        let record = self.in_flight(proxy, lane);
        let noted = self.note_parts(target, &parts, proxy, lane, record);
        for (offset, bytes, source) in parts.iter().filter(|_| noted.is_none()).flat_map(|part| part.pieces()) {
            match source {
                CopySource::Global(address) => {
                    self.touch_global(address, bytes.into(), false, lane, record)?;
                }
                CopySource::Shared(from) => {
                    let span = SharedSpan { block: self.rank, offset: from };
                    self.touch_shared(span, bytes, false, Some(lane), record)?;
                }
                CopySource::Zero | CopySource::Bytes(_) => {}
            }
            self.touch_shared(SharedSpan { block: target, offset }, bytes, true, Some(lane), record)?;
        }
        let work = Work::Incoming(Incoming { target, parts, source_block, barrier, bytes, record });
        self.launch(lane, work);
        Ok(())
    }

    /// Notes what a copy into shared memory touches, if there is nothing to say against any of it.
    fn note_parts(&mut self, target: usize, parts: &[Part], proxy: Proxy, lane: usize, record: RecordId) -> Option<()> {
        self.visit(SharedSpan { block: target, offset: 0 }, lane, true).ok()?;
        let (index, rules) = (self.cluster.index, self.core.rules);
        let by = |global| super::observer(self.warp, index, Some(lane), record, proxy, (global, rules));
        let (mut reader, mut writer, mut last) = (by(true), by(false).replacing(true), 0);
        let shared = &mut self.cluster.blocks[target].shared;
        // What follows each other in memory is read, and written, as one.
        let (mut source, mut target) = ((0, 0), (0, 0));
        for part in parts {
            match part.source {
                CopySource::Global(address) if address == source.0 + source.1 => source.1 += u64::from(part.bytes),
                CopySource::Global(address) => {
                    let before = std::mem::replace(&mut source, (address, part.bytes.into()));
                    self.core.note_run(&mut reader, &mut last, before)?;
                }
                CopySource::Shared(_) => return None,
                CopySource::Zero | CopySource::Bytes(_) => {}
            }
            if !part.fills_its_place() {
                for (offset, bytes, _) in part.pieces() {
                    shared.note(&self.core.log, &mut writer, offset, bytes, true)?;
                }
            } else if part.offset == target.0 + target.1 {
                target.1 += part.bytes;
            } else {
                let (offset, bytes) = std::mem::replace(&mut target, (part.offset, part.bytes));
                shared.note(&self.core.log, &mut writer, offset, bytes, true)?;
            }
        }
        self.core.note_run(&mut reader, &mut last, source)?;
        shared.note(&self.core.log, &mut writer, target.0, target.1, true)
    }

    fn launch(&mut self, lane: usize, work: Work) {
        let (block, warp, pc) = (self.rank, self.warp.index, self.pc);
        self.cluster.jobs.push(Box::new(Job { block, warp, lanes: 1 << lane, pc, work }));
    }

    fn bulk_load(
        &mut self,
        dst: Address,
        src: Address,
        bytes: Operand,
        bar: Address,
        multicast: Option<RegId>,
    ) -> Result<(), FaultKind> {
        let (dst, src, bar) = (self.addresses(dst), self.addresses(src), self.addresses(bar));
        let sizes = self.warp.value(bytes);
        for lane in lanes(self.mask) {
            let bytes = self.bulk_size(sizes[lane])?;
            Self::demand("the source of a bulk copy", src[lane], 16)?;
            Self::demand("the destination of a bulk copy", dst[lane], 16)?;
            let (to, bar) = self.ends(dst[lane], bytes, bar[lane])?;
            for block in self.receivers(to, multicast, lane)? {
                let (to, bar) = (self.elsewhere(to, block, bytes)?, self.signalled(block, bar, multicast, false)?);
                let parts = vec![Part::plain(to.offset, bytes, CopySource::Global(src[lane]))];
                let barrier = (bar.block, bar.offset);
                let (proxy, source_block) = (Proxy::Async, None);
                self.send(Request { lane, proxy, target: block, barrier, parts, source_block, bytes })?;
            }
            self.core.profile.copied_in += u64::from(bytes);
        }
        Ok(())
    }

    fn bulk_size(&self, bytes: u64) -> Result<u32, FaultKind> {
        if !bytes.is_multiple_of(16) || bytes == 0 || bytes >= 1 << 20 {
            let what = "the size of a bulk copy";
            return Err(FaultKind::BadOperand { what, found: bytes, wanted: "a positive multiple of 16 below 2^20" });
        }
        Ok(bytes as u32)
    }

    /// Destination and barrier of a copy that starts in this block.
    fn ends(&self, dst: u64, bytes: u32, bar: u64) -> Result<(SharedSpan, SharedSpan), FaultKind> {
        Self::demand("a barrier", bar, 8)?;
        Ok((self.shared_span(Space::Cluster, dst, bytes)?, self.shared_span(Space::Cluster, bar, 8)?))
    }

    fn bulk_across(&mut self, dst: Address, src: Address, bytes: Operand, bar: Address) -> Result<(), FaultKind> {
        let (dst, src, bar) = (self.addresses(dst), self.addresses(src), self.addresses(bar));
        let sizes = self.warp.value(bytes);
        for lane in lanes(self.mask) {
            let bytes = self.bulk_size(sizes[lane])?;
            Self::demand("the source of a bulk copy", src[lane], 16)?;
            Self::demand("the destination of a bulk copy", dst[lane], 16)?;
            let from = self.shared_span(Space::Shared, src[lane], bytes)?;
            let (to, bar) = self.ends(dst[lane], bytes, bar[lane])?;
            let bar = self.signalled(to.block, bar, None, false)?;
            let parts = vec![Part::plain(to.offset, bytes, CopySource::Shared(from.offset))];
            let (barrier, source_block, target) = ((bar.block, bar.offset), Some(self.rank), to.block);
            self.send(Request { lane, proxy: Proxy::Async, target, barrier, parts, source_block, bytes })?;
            self.core.profile.copied_across += u64::from(bytes);
        }
        Ok(())
    }

    fn store_async(&mut self, dst: Address, srcs: &[RegId], bar: Address) -> Result<(), FaultKind> {
        let (dst, bar) = (self.addresses(dst), self.addresses(bar));
        let bytes = 4 * srcs.len() as u32;
        for lane in lanes(self.mask) {
            Self::demand("the destination of st.async", dst[lane], bytes.into())?;
            let (to, bar) = self.ends(dst[lane], bytes, bar[lane])?;
            let bar = self.signalled(to.block, bar, None, false)?;
            let mut data = [0; 16];
            for (at, src) in srcs.iter().enumerate() {
                let word = self.warp.get_lane(*src, lane) as u32;
                data[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
            }
            let parts = vec![Part::plain(to.offset, bytes, CopySource::Bytes(data))];
            let (barrier, target) = ((bar.block, bar.offset), to.block);
            // The one asynchronous store that reaches memory as threads do.
            self.send(Request { lane, proxy: Proxy::Generic, target, barrier, parts, source_block: None, bytes })?;
            self.core.profile.copied_across += u64::from(bytes);
        }
        Ok(())
    }

    /// A box may lie at any multiple of 128 bytes: the swizzle goes by the bits of the address, wherever the box
    /// begins.
    fn check_box(address: u64) -> Result<(), FaultKind> {
        Self::demand("a tensor copy's box in shared memory", address, 128)
    }

    fn tensor_load(
        &mut self,
        dst: Address,
        map: RegId,
        coords: &[Operand],
        bar: Address,
        multicast: Option<RegId>,
        pair: bool,
    ) -> Result<(), FaultKind> {
        let (dst, bar) = (self.addresses(dst), self.addresses(bar));
        for lane in lanes(self.mask) {
            let (map, coords) = self.tensor(map, coords, lane)?;
            Self::check_box(dst[lane])?;
            let bytes = map.box_bytes() as u32;
            let (to, bar) = self.ends(dst[lane], bytes, bar[lane])?;
            let part = |run: tma::Run| {
                let source = run.global.map_or(CopySource::Zero, CopySource::Global);
                Part { offset: to.offset + run.inside, bytes: run.bytes, source, permuted: Some(map.swizzle) }
            };
            let mut parts: Vec<Part> = tma::runs(&map, &coords).into_iter().map(part).collect();
            let receivers = self.receivers(to, multicast, lane)?;
            for (left, block) in (0..receivers.len()).rev().zip(receivers) {
                self.elsewhere(to, block, bytes)?;
                let bar = self.signalled(block, bar, multicast, pair)?;
                let barrier = (bar.block, bar.offset);
                let parts = if left == 0 { std::mem::take(&mut parts) } else { parts.clone() };
                let (proxy, source_block) = (Proxy::Async, None);
                self.send(Request { lane, proxy, target: block, barrier, parts, source_block, bytes })?;
            }
            self.core.profile.copied_in += u64::from(bytes);
        }
        Ok(())
    }

    /// A lane's bulk stores, with a group open.
    fn open_stores(&mut self, lane: usize) -> (u32, u32, u32) {
        let key = (self.warp.index, lane);
        if !self.cluster.blocks[self.rank].stores.contains_key(&key) {
            let stores = Stores::new(self.cluster.slot(), self.cluster.slot());
            self.cluster.blocks[self.rank].stores.insert(key, stores);
        }
        let pc = self.pc;
        let stores = self.cluster.blocks[self.rank].stores.entry(key).or_insert_with(|| Stores::new(0, 0));
        if stores.outstanding.len() == stores.committed as usize {
            stores.outstanding.push([0, 0]);
        }
        let group = stores.committed + 1;
        stores.outstanding[group as usize - 1].iter_mut().for_each(|left| *left += 1);
        stores.last = pc;
        (stores.read_slot, stores.write_slot, group)
    }

    /// Sends a copy out of shared memory on its way.
    fn store_out(&mut self, lane: usize, parts: Vec<(u32, u32, u64)>) -> Result<(), FaultKind> {
        let (read_slot, write_slot, group) = self.open_stores(lane);
        let reading: RecordId = self.detached(Proxy::Async, 1 << lane, read_slot, group);
        let writing: RecordId = self.detached(Proxy::Async, 1 << lane, write_slot, group);
        for &(offset, bytes, address) in &parts {
            let from = SharedSpan { block: self.rank, offset };
            self.touch_shared(from, bytes, false, Some(lane), reading)?;
            if let Some(fault) = self.unwritten(from, bytes) {
                return Err(fault);
            }
            self.touch_global(address, bytes.into(), true, lane, writing)?;
            self.core.profile.copied_out += u64::from(bytes);
        }
        self.launch(lane, Work::Reading(Outgoing { parts, lane, group }));
        Ok(())
    }

    fn bulk_store(&mut self, dst: Address, src: Address, bytes: Operand) -> Result<(), FaultKind> {
        let (dst, src, sizes) = (self.addresses(dst), self.addresses(src), self.warp.value(bytes));
        for lane in lanes(self.mask) {
            let bytes = self.bulk_size(sizes[lane])?;
            Self::demand("the source of a bulk copy", src[lane], 16)?;
            Self::demand("the destination of a bulk copy", dst[lane], 16)?;
            let from = self.shared_span(Space::Shared, src[lane], bytes)?;
            self.store_out(lane, vec![(from.offset, bytes, dst[lane])])?;
        }
        Ok(())
    }

    fn tensor_store(&mut self, map: RegId, coords: &[Operand], src: Address) -> Result<(), FaultKind> {
        let src = self.addresses(src);
        let mut stored: Vec<(u64, Vec<i64>, u64)> = Vec::new();
        for lane in lanes(self.mask) {
            let address = self.warp.get_lane(map, lane);
            let (map, coords) = self.tensor(map, coords, lane)?;
            // Lanes that store one box to one place store equal values, which in practice is once. CUTLASS has whole
            // warps store their tiles.
            let asked = (address, coords.clone(), src[lane]);
            if self.core.rules == Rules::Practice && stored.contains(&asked) {
                continue;
            }
            stored.push(asked);
            Self::check_box(src[lane])?;
            let from = self.shared_span(Space::Shared, src[lane], map.box_bytes() as u32)?;
            let base = from.offset + SharedMemory::START;
            let mut parts = Vec::new();
            for run in tma::runs(&map, &coords) {
                let Some(mut global) = run.global else { continue };
                for (address, length) in tma::permuted(map.swizzle, base + run.inside, run.bytes) {
                    parts.push((address - SharedMemory::START, length, global));
                    global += u64::from(length);
                }
            }
            self.store_out(lane, parts)?;
        }
        Ok(())
    }

    fn commit_stores(&mut self) {
        let (warp, block) = (self.warp.index, &mut self.cluster.blocks[self.rank]);
        for lane in lanes(self.mask) {
            if let Some(stores) = block.stores.get_mut(&(warp, lane)) {
                stores.committed += 1;
                let groups = stores.committed as usize;
                stores.outstanding.resize(groups.max(stores.outstanding.len()), [0, 0]);
            }
        }
    }

    fn wait_stores(&mut self, pending: u32, read: bool) -> Flow {
        let warp = self.warp.index;
        let mut unfinished = false;
        for lane in lanes(self.mask) {
            let Some(stores) = self.cluster.blocks[self.rank].stores.get(&(warp, lane)) else { continue };
            let group = stores.committed.saturating_sub(pending);
            unfinished |= stores.done(read) < group;
            self.warp.waits[lane] = Wait::Bulk { group, read };
        }
        if unfinished {
            return Flow::Stay;
        }
        lanes(self.mask).for_each(|lane| self.warp.waits[lane] = Wait::None);
        for lane in lanes(self.mask) {
            let Some(stores) = self.cluster.blocks[self.rank].stores.get_mut(&(warp, lane)) else { continue };
            let group = stores.committed.saturating_sub(pending);
            stores.awaited = stores.awaited.max(group);
            let (read_slot, write_slot) = (stores.read_slot, stores.write_slot);
            self.warp.learn(1 << lane, |known| {
                known.raise(read_slot, group);
                if !read {
                    known.raise(write_slot, group);
                }
            });
        }
        Flow::Next
    }
}
