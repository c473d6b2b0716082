//! Memory: buffers on the device and a block's shared memory. Every byte knows whether it was ever written, and every
//! access is held to the bounds of what was set aside.

use std::collections::BTreeMap;
use std::sync::Arc;

use ptx::Kernel;

use crate::barrier::Mbarrier;
use crate::flag::Flag;
use crate::lanes::{Lanes, Words, lanes};
use crate::race::{Log, Observer, Shadow};

/// One bit per byte: written or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(Vec<u64>);

impl Written {
    pub(crate) fn new(bytes: usize, written: bool) -> Self {
        Written(vec![if written { u64::MAX } else { 0 }; bytes.div_ceil(64)])
    }

    /// Calls `each` with every word and the mask of the range's bits in it.
    fn masks(start: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = start + bytes;
        (start / 64..end.div_ceil(64)).map(move |word| {
            let low = start.saturating_sub(word * 64).min(64) as u32;
            let high = (end - word * 64).min(64) as u32;
            (word, u64::MAX << low & u64::MAX >> (64 - high))
        })
    }

    /// The word of a range and its mask there, if it is in one word, as nearly all are.
    fn within(start: usize, bytes: usize) -> Option<(usize, u64)> {
        let low = start % 64;
        (bytes > 0 && low + bytes <= 64).then(|| (start / 64, u64::MAX >> (64 - bytes) << low))
    }

    #[inline]
    pub(crate) fn set(&mut self, start: usize, bytes: usize) {
        if let Some((word, mask)) = Self::within(start, bytes) {
            self.0[word] |= mask;
            return;
        }
        Self::masks(start, bytes).for_each(|(word, mask)| self.0[word] |= mask);
    }

    /// Forgets that bytes were written.
    pub(crate) fn clear(&mut self, start: usize, bytes: usize) {
        Self::masks(start, bytes).for_each(|(word, mask)| self.0[word] &= !mask);
    }

    /// Takes over what another memory knows of the bytes that were copied from there.
    #[inline]
    pub(crate) fn copy(&mut self, start: usize, other: &Written, from: usize, bytes: usize) {
        self.set(start, bytes);
        if other.missing(from, bytes).is_some() {
            (0..bytes)
                .filter(|byte| other.missing(from + byte, 1).is_some())
                .for_each(|byte| self.clear(start + byte, 1));
        }
    }

    /// The first unwritten byte of a range.
    pub(crate) fn missing(&self, start: usize, bytes: usize) -> Option<usize> {
        if let Some((word, mask)) = Self::within(start, bytes)
            && mask & !self.0[word] == 0
        {
            return None;
        }
        // Without a way out in between, many words are looked at at once.
        if self.0[start / 64..(start + bytes).div_ceil(64)].iter().fold(u64::MAX, |all, word| all & word) == u64::MAX {
            return None;
        }
        Self::masks(start, bytes).find_map(|(word, mask)| {
            let missing = mask & !self.0[word];
            (missing != 0).then(|| word * 64 + missing.trailing_zeros() as usize)
        })
    }
}

/// A buffer in device memory, as handed to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// What the device keeps of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) name: String,
    pub(crate) address: u64,
    /// What it holds, and which of it was written: shared with copies of the device until it is written to.
    pub(crate) data: Arc<Vec<u8>>,
    pub(crate) written: Arc<Written>,
    /// Produced by the grid before this one: may be touched only after waiting for it.
    pub(crate) awaited: bool,
}

/// Device memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct GlobalMemory {
    pub(crate) buffers: Vec<Contents>,
}

/// Where a global access lands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalSpan {
    pub(crate) buffer: usize,
    pub(crate) offset: usize,
}

impl GlobalMemory {
    const START: u64 = 0x7000_0000_0000;
    /// Space left between buffers, so that an index out of bounds meets nothing.
    const GAP: u64 = 1 << 20;

    /// A buffer so many bytes beyond a multiple of 64 KiB.
    pub(crate) fn add(&mut self, name: &str, data: Vec<u8>, written: bool, beyond: u64) -> Buffer {
        let end = self.buffers.last().map_or(Self::START, |last| last.address + last.data.len() as u64);
        let address = (end + Self::GAP).next_multiple_of(1 << 16) + beyond;
        let (written, data) = (Arc::new(Written::new(data.len(), written)), Arc::new(data));
        let buffer = Buffer { address, bytes: data.len() as u64 };
        self.buffers.push(Contents { name: name.into(), address, data, written, awaited: false });
        buffer
    }

    /// The same, if the buffer is this one.
    pub(crate) fn find_in(&self, buffer: usize, address: u64, bytes: u64) -> Option<GlobalSpan> {
        let contents = self.buffers.get(buffer)?;
        let offset = address.checked_sub(contents.address)?;
        (offset.checked_add(bytes)? <= contents.data.len() as u64)
            .then_some(GlobalSpan { buffer, offset: offset as usize })
    }

    /// The buffer that holds all these bytes.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<GlobalSpan> {
        let buffer = self.buffers.partition_point(|buffer| buffer.address <= address).checked_sub(1)?;
        self.find_in(buffer, address, bytes)
    }

    /// The buffer that holds the bytes of all lanes that are accessed at these addresses, and where they begin there,
    /// by lane.
    pub(crate) fn offsets(&self, mask: u32, addresses: &Lanes, bytes: u32) -> Option<(usize, Words)> {
        let (mut offsets, first) = ([0; 32], mask.trailing_zeros() as usize);
        let buffer = self.find(*addresses.get(first)?, bytes.into())?.buffer;
        for lane in lanes(mask) {
            offsets[lane] = u32::try_from(self.find_in(buffer, addresses[lane], bytes.into())?.offset).ok()?;
        }
        Some((buffer, offsets))
    }

    /// The buffer nearest below an address, and the offset from its start, in words.
    pub(crate) fn name(&self, address: u64) -> String {
        match self.buffers.iter().rfind(|buffer| buffer.address <= address) {
            Some(near) => {
                format!("{}+{}, a buffer of {} bytes", near.name, address - near.address, near.data.len())
            }
            None => "no buffer".into(),
        }
    }
}

/// What a run keeps about device memory: who touched it, and what flags in it have published.
#[derive(Clone, Debug)]
pub(crate) struct GlobalTrace {
    pub(crate) shadows: Vec<Shadow>,
    pub(crate) flags: BTreeMap<u64, Flag>,
}

impl GlobalTrace {
    /// Bytes of a row that the copy engine mostly brings at once.
    const ROW: usize = 128;

    /// Accesses are told apart in units of `unit` bytes. `by_threads` is whether threads copy from there one by one.
    pub(crate) fn new(memory: &GlobalMemory, unit: u32, by_threads: bool) -> Self {
        let shadow = |bytes: usize| match by_threads {
            true => Shadow::new(bytes, unit),
            false => Shadow::by_lines(bytes, unit, Self::ROW),
        };
        let shadows = memory.buffers.iter().map(|buffer| shadow(buffer.data.len())).collect();
        GlobalTrace { shadows, flags: BTreeMap::new() }
    }
}

/// A block's shared memory.
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory {
    pub(crate) data: Vec<u8>,
    pub(crate) written: Written,
    pub(crate) shadow: Shadow,
    /// Live barriers, by offset.
    pub(crate) barriers: BTreeMap<u32, Mbarrier>,
    /// The first byte of the first one, and the first behind the last: they mostly lie together behind the data, so two
    /// comparisons settle nearly every access.
    barrier_span: (u32, u32),
    pub(crate) flags: BTreeMap<u64, Flag>,
    /// Whether the block has exited.
    pub(crate) ended: bool,
}

impl SharedMemory {
    /// Where the kernel's shared memory starts in the window: behind what the system keeps for itself.
    pub(crate) const START: u32 = 1024;
    /// Distance between two blocks' windows in the cluster window, which begins with that of rank 0. A block's own
    /// addresses are those of its window there, so that bit 24 of one tells the blocks of a pair apart.
    pub(crate) const WINDOW: u32 = 1 << 24;

    /// Where the cluster window begins among generic addresses. Their low halves are addresses in the window.
    const GENERIC: u64 = 0x7f00_0000_0000;

    /// An address in the window of a block that no cluster has.
    pub(crate) const NOWHERE: u32 = 255 * Self::WINDOW;

    /// An address of the cluster window as a generic one.
    pub(crate) fn to_generic(address: u32) -> u64 {
        Self::GENERIC + u64::from(address)
    }

    /// The address in the cluster window that a generic one is, if it is one.
    pub(crate) fn of_generic(address: u64) -> Option<u32> {
        u32::try_from(address.checked_sub(Self::GENERIC)?).ok()
    }

    /// The address of a byte of a block, by its rank in the cluster.
    pub(crate) fn address(block: usize, offset: u32) -> u32 {
        block as u32 * Self::WINDOW + Self::START + offset
    }

    pub(crate) fn new(kernel: &Kernel, unit: u32) -> Self {
        let bytes = kernel.shared_bytes() as usize;
        let mut written = Written::new(bytes, false);
        for region in kernel.shared.iter().filter(|region| region.zeroed) {
            written.set(region.offset as usize, region.bytes as usize);
        }
        SharedMemory {
            data: vec![0; bytes],
            written,
            shadow: Shadow::new(bytes, unit),
            barriers: BTreeMap::new(),
            barrier_span: (0, 0),
            flags: BTreeMap::new(),
            ended: false,
        }
    }

    /// Makes a barrier of eight bytes, or ordinary bytes of a barrier.
    pub(crate) fn set_barrier(&mut self, offset: u32, barrier: Option<Mbarrier>) {
        match barrier {
            Some(barrier) => self.barriers.insert(offset, barrier),
            None => self.barriers.remove(&offset),
        };
        let (first, last) = (self.barriers.first_key_value(), self.barriers.last_key_value());
        self.barrier_span = first.zip(last).map_or((0, 0), |((first, _), (last, _))| (*first, last + 8));
    }

    /// Where the bytes of lanes begin that are accessed at these addresses less `start`, by lane, if all of them are
    /// data.
    pub(crate) fn offsets(&self, mask: u32, addresses: &Lanes, start: u64, bytes: u32) -> Option<Words> {
        let (mut offsets, size) = ([0; 32], self.data.len() as u64);
        for lane in lanes(mask) {
            let offset = addresses[lane].checked_sub(start)?;
            if offset.checked_add(bytes.into())? > size || self.barrier_in(offset as u32, bytes) {
                return None;
            }
            offsets[lane] = offset as u32;
        }
        Some(offsets)
    }

    /// Notes an access to data, if there is nothing to say against it.
    pub(crate) fn note(
        &mut self,
        log: &Log,
        who: &mut Observer<'_>,
        offset: u32,
        bytes: u32,
        write: bool,
    ) -> Option<()> {
        self.is_data(offset, bytes).then_some(())?;
        self.shadow.note(log, who, offset as usize, bytes as usize, write).ok()
    }

    /// Whether some bytes are there, and none of them belongs to a live barrier.
    pub(crate) fn is_data(&self, offset: u32, bytes: u32) -> bool {
        let inside = offset.checked_add(bytes).is_some_and(|end| end as usize <= self.data.len());
        inside && !self.barrier_in(offset, bytes)
    }

    /// Whether a live barrier overlaps the bytes.
    pub(crate) fn barrier_in(&self, offset: u32, bytes: u32) -> bool {
        let among = offset < self.barrier_span.1 && self.barrier_span.0 < offset + bytes;
        among && self.barriers.range(offset.saturating_sub(7)..offset + bytes).next().is_some()
    }
}
