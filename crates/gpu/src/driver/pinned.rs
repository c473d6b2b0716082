//! Memory of the host that stays in its place, so that kernels and copies of the device reach it at any time.

use std::ffi::c_int;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU32;

use memmap2::MmapMut;

use super::Context;
use op::{Error, Result};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`: in every context, and in the device's addresses.
const EVERYWHERE: u32 = 1 | 2;
/// `CUDA_ERROR_OUT_OF_MEMORY`, `…_OPERATING_SYSTEM`, `…_NOT_PERMITTED` and `…_NOT_SUPPORTED`: what drivers say where
/// pages cannot be held, be it that there are too few, that the system will not, or that a container may not.
const NOT_HELD: [c_int; 4] = [2, 304, 800, 801];

/// Memory of the host that the device reaches, given back when it is dropped. Its address is the same for both.
pub struct PinnedMemory {
    context: &'static Context,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory; whoever reads or writes it answers for the order.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of the host at {:p}", self.bytes, self.start)
    }
}

impl PinnedMemory {
    /// Memory that nobody has written yet. Its address is a multiple of 256.
    pub fn new(context: &'static Context, what: &'static str, bytes: usize) -> Result<Self> {
        let _entered = context.enter()?;
        let _unhindered = context.unhindered()?;
        let mut start = null_mut();
        // SAFETY: writes one address.
        let status = unsafe { (context.symbols.host_alloc)(&mut start, bytes.max(1), EVERYWHERE) };
        if NOT_HELD.contains(&status) {
            return Err(Error::Pinned { bytes, what });
        }
        context.called("cuMemHostAlloc", status)?;
        let start = NonNull::new(start.cast()).ok_or(Error::Pinned { bytes, what })?;
        Ok(PinnedMemory { context, start, bytes })
    }

    /// Where it is, for the host and for the device.
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// How much there is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes a byte everywhere.
    ///
    /// # Safety
    ///
    /// Nobody else uses it meanwhile.
    pub unsafe fn fill(&self, byte: u8) {
        // SAFETY: there are as many bytes, and nobody else uses them, as the caller promises.
        unsafe { self.start.write_bytes(byte, self.bytes) };
    }

    /// A place in it, behind which there are at least so many bytes.
    pub fn at(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
        // SAFETY: the place is within the memory, or one behind its end.
        end.map(|_| unsafe { self.start.add(offset) })
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let (Ok(_entered), Ok(_unhindered)) = (self.context.enter(), self.context.unhindered()) {
            // SAFETY: allocated by `new` and freed once. Whoever queues work that uses it keeps it until that is done.
            unsafe { (self.context.symbols.host_free)(self.start.as_ptr().cast()) };
        }
    }
}

/// Words that host and device both reach until the process ends. They are the host's own memory, which the driver only
/// holds in place: a thread may look at them also while the process ends, when the driver has taken back its own. No
/// other memory is in their pages, and a forked child has none of these, so that they stay where the device knows them.
#[derive(Debug)]
pub struct SharedWords {
    words: &'static [AtomicU32],
    /// Where the device finds them.
    address: u64,
}

/// What is said where there are none.
const WORDS: &str = "words between a stream and the host";

impl SharedWords {
    /// So many words, all zero.
    pub fn new(context: &'static Context, count: usize) -> Result<Self> {
        let Self { words, .. } = Self::of_host(count)?;
        let (start, bytes) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
        let _entered = context.enter()?;
        let _unhindered = context.unhindered()?;
        // SAFETY: the memory is there, and stays.
        let status = unsafe { (context.symbols.host_register)(start, bytes, EVERYWHERE) };
        if NOT_HELD.contains(&status) {
            return Err(Error::Pinned { bytes, what: WORDS });
        }
        context.called("cuMemHostRegister", status)?;
        let mut address = 0;
        // SAFETY: writes one address.
        let status = unsafe { (context.symbols.host_address)(&mut address, start, 0) };
        context.called("cuMemHostGetDevicePointer", status)?;
        Ok(SharedWords { words, address })
    }

    /// The same where no device reaches them.
    pub(crate) fn of_host(count: usize) -> Result<Self> {
        let bytes = count * size_of::<AtomicU32>();
        let memory = MmapMut::map_anon(bytes).map_err(|_| Error::Pinned { bytes, what: WORDS })?;
        // Where it cannot be said, nothing is lost but in a program that forks on an old kernel.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::DontFork);
        let start = Box::leak(Box::new(memory)).as_mut_ptr().cast::<AtomicU32>();
        // SAFETY: whole pages of zeros, which are never given back; nobody reaches them but by this slice.
        let words = unsafe { std::slice::from_raw_parts(start, count) };
        Ok(SharedWords { words, address: 0 })
    }

    /// The words, for the host.
    pub fn host(&self) -> &'static [AtomicU32] {
        self.words
    }

    /// Where the device finds one of them.
    pub fn address(&self, word: usize) -> u64 {
        self.address + (word * size_of::<AtomicU32>()) as u64
    }
}
