//! Memory of the device: ours, and what the driver knows of an address of somebody else's.

use std::ffi::{c_int, c_void};
use std::fmt;

use super::symbols::Handle;
use super::{Context, Stream};
use op::{Error, Result};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;

/// `CU_POINTER_ATTRIBUTE_…` and `CU_MEMORYTYPE_…` by their numbers.
mod number {
    use std::ffi::c_int;

    pub const CONTEXT: c_int = 1;
    pub const MEMORY_TYPE: c_int = 2;
    pub const DEVICE_ORDINAL: c_int = 9;
    pub const RANGE_START: c_int = 11;
    pub const RANGE_BYTES: c_int = 12;
    pub const TYPE_HOST: u32 = 1;
    pub const TYPE_DEVICE: u32 = 2;
}

/// Memory of a device, given back when it is dropped.
pub struct DeviceMemory {
    context: &'static Context,
    address: u64,
    bytes: usize,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

impl DeviceMemory {
    /// Memory that nobody has written yet. Its address is a multiple of 256.
    pub fn new(context: &'static Context, what: &'static str, bytes: usize) -> Result<Self> {
        let _entered = context.enter()?;
        let _unhindered = context.unhindered()?;
        let mut address = 0;
        // SAFETY: writes one address. The driver refuses to allocate nothing, so there is one byte at least.
        let status = unsafe { (context.symbols.memory_alloc)(&mut address, bytes.max(1)) };
        if status == OUT_OF_MEMORY {
            let (free, total) = context.memory().unwrap_or((0, 0));
            return Err(Error::DeviceMemory { bytes, what, device: context.ordinal, free, total });
        }
        context.called("cuMemAlloc", status)?;
        Ok(DeviceMemory { context, address, bytes })
    }

    /// Memory that holds these bytes. Waits until they are there.
    pub fn holding(context: &'static Context, what: &'static str, bytes: &[u8], stream: &Stream) -> Result<Self> {
        let memory = DeviceMemory::new(context, what, bytes.len())?;
        // SAFETY: the copy is waited for, so that both sides outlive it.
        unsafe { memory.write(0, bytes, stream) }?;
        stream.synchronize()?;
        Ok(memory)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much there is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a copy from the host to a place in it.
    ///
    /// # Safety
    ///
    /// Both sides must stay where they are until the stream has done the copy. (From ordinary memory the driver has
    /// read everything when this returns, but from page-locked memory it has not.)
    pub unsafe fn write(&self, at: usize, bytes: &[u8], stream: &Stream) -> Result<()> {
        self.check_range(at, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (target, source) = (self.address + at as u64, bytes.as_ptr().cast());
        // SAFETY: both sides have that many bytes, for as long as the caller promises.
        let status = unsafe { (self.context.symbols.copy_to_device)(target, source, bytes.len(), stream.raw()) };
        self.context.called("cuMemcpyHtoDAsync", status)
    }

    /// Queues a copy of a part of it to the host.
    ///
    /// # Safety
    ///
    /// As for [`DeviceMemory::write`]; and the host's side must not be looked at before.
    pub unsafe fn read(&self, at: usize, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        self.check_range(at, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let (target, source) = (bytes.as_mut_ptr().cast(), self.address + at as u64);
        // SAFETY: both sides have that many bytes, for as long as the caller promises.
        let status = unsafe { (self.context.symbols.copy_to_host)(target, source, bytes.len(), stream.raw()) };
        self.context.called("cuMemcpyDtoHAsync", status)
    }

    /// Queues a copy from other memory of the device, of as many bytes as both have.
    ///
    /// # Safety
    ///
    /// Both must stay until the stream has done the copy.
    pub unsafe fn copy_from(&self, source: &DeviceMemory, stream: &Stream) -> Result<()> {
        let _entered = self.context.enter()?;
        let bytes = self.bytes.min(source.bytes);
        // SAFETY: both sides have that many bytes, and the caller keeps both until the stream has done the copy.
        let status = unsafe { (self.context.symbols.copy_within)(self.address, source.address, bytes, stream.raw()) };
        self.context.called("cuMemcpyDtoDAsync", status)
    }

    /// Queues the filling of all of it with one byte.
    ///
    /// # Safety
    ///
    /// It must stay until the stream has done the filling.
    pub unsafe fn fill(&self, byte: u8, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.fill_part(0, self.bytes, byte, stream) }
    }

    /// Queues the filling of a part of it with one byte.
    ///
    /// # Safety
    ///
    /// As for [`DeviceMemory::fill`].
    pub unsafe fn fill_part(&self, at: usize, bytes: usize, byte: u8, stream: &Stream) -> Result<()> {
        self.check_range(at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let start = self.address + at as u64;
        // SAFETY: there are that many bytes, and the caller keeps them until the stream has done the filling.
        let status = unsafe { (self.context.symbols.memory_set)(start, byte, bytes, stream.raw()) };
        self.context.called("cuMemsetD8Async", status)
    }

    /// Fills all of it with one byte, and waits for that.
    pub fn fill_now(&self, byte: u8, stream: &Stream) -> Result<()> {
        // SAFETY: the filling is waited for, whatever became of it.
        let queued = unsafe { self.fill(byte, stream) };
        let done = stream.synchronize();
        queued.and(done)
    }

    /// Copies from the host to a place in it, and waits for the copy.
    pub fn put(&self, at: usize, bytes: &[u8], stream: &Stream) -> Result<()> {
        // SAFETY: the copy is waited for, whatever became of it, so that both sides outlive it.
        let queued = unsafe { self.write(at, bytes, stream) };
        let done = stream.synchronize();
        queued.and(done)
    }

    /// Queues copies of parts of other memory of the device: from an offset there to one here, so many bytes.
    ///
    /// # Safety
    ///
    /// Both must stay until the stream has done the copies.
    pub unsafe fn copy_parts(
        &self,
        source: &DeviceMemory,
        parts: &[(usize, usize, usize)],
        stream: &Stream,
    ) -> Result<()> {
        let _entered = self.context.enter()?;
        parts.iter().filter(|(_, _, bytes)| *bytes > 0).try_for_each(|&(from, to, bytes)| {
            source.check_range(from, bytes)?;
            self.check_range(to, bytes)?;
            let (from, to) = (source.address + from as u64, self.address + to as u64);
            // SAFETY: both sides have that many bytes, and the caller keeps both until the stream has done the copies.
            let status = unsafe { (self.context.symbols.copy_within)(to, from, bytes, stream.raw()) };
            self.context.called("cuMemcpyDtoDAsync", status)
        })
    }

    /// Copies a part of it to the host, and waits for the copy.
    pub fn get(&self, at: usize, bytes: &mut [u8], stream: &Stream) -> Result<()> {
        // SAFETY: the copy is waited for, whatever became of it, so that both sides outlive it and nobody looks before.
        let queued = unsafe { self.read(at, bytes, stream) };
        let done = stream.synchronize();
        queued.and(done)
    }

    fn check_range(&self, at: usize, bytes: usize) -> Result<()> {
        if at.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let name = "a range found wrong before the call".to_owned();
        let text = format!("{bytes} bytes at {at} of {}", self.bytes);
        Err(Error::Driver { call: "cuMemcpyAsync", name, text })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let (Ok(_entered), Ok(_unhindered)) = (self.context.enter(), self.context.unhindered()) {
            // SAFETY: allocated by `new` and freed once. Whoever queues work that uses it keeps it until that is done.
            unsafe { (self.context.symbols.memory_free)(self.address) };
        }
    }
}

/// What is behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Memory of a device.
    Device {
        /// Which device.
        ordinal: usize,
        /// Whether it belongs to another context than the device's primary one.
        foreign: bool,
        /// Bytes from the address to the end of what was allocated, where the driver knows.
        bytes: Option<usize>,
    },
    /// Memory of the host that the driver knows of.
    Host,
    /// Nothing that the driver knows of: ordinary memory of the host, or nothing at all.
    Unknown,
}

impl Context {
    /// Bytes of the device's memory that are free, and all there are.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        self.called("cuMemGetInfo", unsafe { (self.symbols.memory_info)(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// What the driver knows of an address.
    pub fn pointer_kind(&self, address: u64) -> Result<PointerKind> {
        let _entered = self.enter()?;
        match self.attribute::<u32>(number::MEMORY_TYPE, address) {
            Some(number::TYPE_DEVICE) => {}
            Some(number::TYPE_HOST) => return Ok(PointerKind::Host),
            _ => return Ok(PointerKind::Unknown),
        }
        let ordinal = self.attribute::<c_int>(number::DEVICE_ORDINAL, address).unwrap_or(-1);
        let owner = self.attribute::<usize>(number::CONTEXT, address).unwrap_or(0);
        let start = self.attribute::<u64>(number::RANGE_START, address);
        let bytes = self.attribute::<usize>(number::RANGE_BYTES, address);
        Ok(PointerKind::Device {
            ordinal: usize::try_from(ordinal).unwrap_or(usize::MAX),
            // Memory from a pool or mapped by hand belongs to no context.
            foreign: owner != 0 && owner != (self.raw as Handle).addr() && ordinal == self.ordinal as c_int,
            bytes: start.zip(bytes).map(|(start, bytes)| bytes.saturating_sub((address - start) as usize)),
        })
    }

    /// An attribute of an address, or nothing where the driver knows none. `T` is as large as the attribute.
    fn attribute<T: Copy + Default>(&self, which: c_int, address: u64) -> Option<T> {
        let mut value = [0u64; 1];
        // SAFETY: each of the attributes above is a number of at most eight bytes.
        let status = unsafe { (self.symbols.pointer_attribute)(value.as_mut_ptr().cast::<c_void>(), which, address) };
        // SAFETY: `T` is one of the integers above, no larger than eight bytes, of which any bits are a value;
        // little-endian machines, the only ones with this driver, have the low bytes first.
        (status == 0).then(|| unsafe { value.as_ptr().cast::<T>().read() })
    }
}
