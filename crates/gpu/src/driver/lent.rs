//! Memory of a device that one process has allocated and another uses.
//!
//! The owner names it by a handle of 64 bytes, which may be told through any pipe; whoever opens it has it at an
//! address of its own, until it is closed. The owner must not give it back before: the driver does not look after that.

use std::fmt;

use super::symbols::MemoryHandle;
use super::{Context, DeviceMemory, Stream};
use op::{Error, Result};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the only way that the driver knows.
const LAZY: u32 = 1;

impl DeviceMemory {
    /// A name by which other processes can open it. It must have been allocated in whole pages of the device, 2 MiB:
    /// the driver names pages.
    pub fn handle(&self) -> Result<[u8; 64]> {
        let context = self.context();
        let _entered = context.enter()?;
        let mut handle = MemoryHandle([0; 64]);
        // SAFETY: writes one handle, of memory that is allocated.
        let status = unsafe { (context.symbols.memory_export)(&mut handle, self.address()) };
        context.called("cuIpcGetMemHandle", status)?;
        Ok(handle.0)
    }
}

/// Memory that another process has allocated, closed when it is dropped.
pub struct LentMemory {
    context: &'static Context,
    address: u64,
    bytes: usize,
}

impl fmt::Debug for LentMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of another process at {:#x}", self.bytes, self.address)
    }
}

impl LentMemory {
    /// Opens memory by its handle. It must have so many bytes, for as long as this value lives: its owner says so.
    pub fn open(context: &'static Context, handle: [u8; 64], bytes: usize) -> Result<Self> {
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address. A handle that names nothing is refused by the driver.
        let status = unsafe { (context.symbols.memory_import)(&mut address, MemoryHandle(handle), LAZY) };
        context.called("cuIpcOpenMemHandle", status)?;
        Ok(Self { context, address, bytes })
    }

    /// Where it is in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Copies a part of it to the host, and waits for the copy.
    pub fn get(&self, at: usize, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.bytes) {
            let text = format!("{} bytes at {at} of {}", bytes.len(), self.bytes);
            return Err(Error::Driver {
                call: "cuMemcpyAsync",
                name: "a range found wrong before the call".to_owned(),
                text,
            });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (target, source) = (bytes.as_mut_ptr().cast(), self.address + at as u64);
        // SAFETY: both sides have that many bytes, and the copy is waited for below.
        let status = unsafe { (self.context.symbols.copy_to_host)(target, source, bytes.len(), stream.raw()) };
        let queued = self.context.called("cuMemcpyDtoHAsync", status);
        let done = stream.synchronize();
        queued.and(done)
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: opened by `open` and closed once. Whoever queues work that uses it keeps it until that is done.
            unsafe { (self.context.symbols.memory_close)(self.address) };
        }
    }
}
