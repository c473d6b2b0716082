//! The CUDA driver, as far as we need it: contexts, kernels made from PTX, memory, streams, events, graphs, launches.
//!
//! Loaded at run time from the driver's own library (see `symbols`): no toolkit, nothing of NVIDIA's at build time, and
//! where it is missing, too old, or without a GPU, [`Context::of`] says so and what to do ([`Absent`]). Every status is
//! looked at; one that is not success becomes [`Error::Driver`] with the call's name and the driver's own words.
//!
//! A [`Context`] is a device's *primary* context, the one that CUDA's runtime and with it PyTorch use, so that memory
//! and streams of theirs are ours as well. There is one for each device in a process, opened when first asked for and
//! never closed. It is made current for the length of each call, and the thread's own is put back afterwards; so all of
//! this may be used from any thread, beside any other user of CUDA.
//!
//! - `memory`: memory of the device, copies, and what is known of an address of somebody else's;
//! - `lent`: memory of the device that another process has allocated;
//! - `pinned`: memory of the host that the device reaches;
//! - `stream`: streams of our own and of others, events, and graphs captured from them;
//! - `function`: kernels compiled by the driver, their arguments, tensor maps and launches;
//! - `cubin`: compiled kernels kept on disk;
//! - `monitor`: clocks, power and temperature, from a library of their own;
//! - `graveyard`: what cannot be given back at once.

mod cubin;
mod function;
pub(crate) mod graveyard;
mod lent;
mod memory;
mod monitor;
mod pinned;
mod stream;
mod symbols;

pub use cubin::{CUBIN_VARIABLE, Origin};
pub use function::{EncodedLaunch, Function};
pub use lent::LentMemory;
pub use memory::{DeviceMemory, PointerKind};
pub use monitor::{Monitor, Reading};
pub use pinned::{PinnedMemory, SharedWords};
pub use stream::{Capture, Event, Graph, Stream};

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, OnceLock, PoisonError};

use self::symbols::{Handle, LIBRARY, Status, Symbols};
use op::{Error, Result};

/// The most devices that one machine has.
const MOST_DEVICES: usize = 64;

/// `CU_DEVICE_ATTRIBUTE_…` by their numbers.
mod number {
    use std::ffi::c_int;

    pub const CLOCK_KILOHERTZ: c_int = 13;
    pub const MULTIPROCESSORS: c_int = 16;
    pub const MEMORY_CLOCK_KILOHERTZ: c_int = 36;
    pub const MEMORY_BUS_BITS: c_int = 37;
    pub const L2_BYTES: c_int = 38;
    pub const CAPABILITY_MAJOR: c_int = 75;
    pub const CAPABILITY_MINOR: c_int = 76;
    pub const SHARED_BYTES: c_int = 97;
}

/// Why there is no GPU to compute on, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// What was found.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl Absent {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Absent { reason: reason.into(), remedy: remedy.into() }
    }

    fn no_library(path: &str, error: &dyn std::error::Error) -> Self {
        let remedy = "install NVIDIA's driver (530 or newer, 580 for Hopper's and Blackwell's own kernels); in a container, \
            start it with access to the GPU";
        let said = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Absent::new(format!("the CUDA driver's library {path} cannot be opened ({said})"), remedy)
    }

    fn no_symbol(path: &str, symbol: &str) -> Self {
        let remedy = "update NVIDIA's driver to 530 or newer (580 for Hopper's and Blackwell's own kernels)";
        Absent::new(format!("{path} has no function {symbol}, so it is no driver or one too old"), remedy)
    }

    fn no_device(ordinal: usize, count: usize) -> Self {
        if count == 0 {
            return Absent::new("the driver sees no GPU", "see whether nvidia-smi lists one");
        }
        let reason = format!("there is no GPU {ordinal}: the driver sees {count}, counted from 0");
        Absent::new(reason, "choose one of those, or see whether CUDA_VISIBLE_DEVICES hides it")
    }
}

/// What a GPU is.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Where it is plugged in, as NVIDIA's libraries name it: the same whichever devices a process may see.
    pub bus: String,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Its highest clock, in cycles per second.
    pub clock_hertz: f64,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Bytes per second of its memory, nominally.
    pub memory_bandwidth: f64,
    /// Bytes of its L2 cache.
    pub cache_bytes: usize,
    /// Bytes of shared memory that a block can have.
    pub shared_bytes: usize,
    /// The CUDA version that its driver supports, as 1000 · major + 10 · minor.
    pub driver: i32,
}

/// The driver's library, opened once.
struct Driver {
    symbols: Symbols,
    version: i32,
    devices: usize,
}

impl Driver {
    /// The driver of this machine, or why there is none.
    fn get() -> Result<&'static Driver, Absent> {
        static DRIVER: OnceLock<Result<Driver, Absent>> = OnceLock::new();
        DRIVER.get_or_init(|| Driver::open(LIBRARY)).as_ref().map_err(Absent::clone)
    }

    fn open(path: &str) -> Result<Self, Absent> {
        let symbols = Symbols::open(path)?;
        let (mut version, mut count) = (0, 0);
        // SAFETY: cuInit comes first, and the pointers are to places of the types that the functions write.
        unsafe {
            opened(&symbols, "cuInit", (symbols.init)(0))?;
            opened(&symbols, "cuDriverGetVersion", (symbols.driver_version)(&mut version))?;
            opened(&symbols, "cuDeviceGetCount", (symbols.device_count)(&mut count))?;
        }
        Ok(Driver { symbols, version, devices: usize::try_from(count).unwrap_or(0) })
    }
}

/// A status of a call on the way to a context.
fn opened(symbols: &Symbols, call: &'static str, status: Status) -> Result<(), Absent> {
    if status == 0 {
        return Ok(());
    }
    let (name, text) = words(symbols, status);
    Err(Absent::new(format!("{call} failed with {name} ({text})"), remedy(status)))
}

/// What to do about a status of the driver, `CUDA_ERROR_…` by its number, on the way to a context or to a kernel.
fn remedy(status: Status) -> &'static str {
    match status {
        // OUT_OF_MEMORY
        2 => "free memory of the GPU, of which other programs may hold it all (nvidia-smi lists them)",
        // DEVICE_UNAVAILABLE
        46 => "another program has the GPU to itself (nvidia-smi -q -d COMPUTE); end it, or set the mode to Default",
        // NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION
        209 | 218 | 222 => "update NVIDIA's driver to 580 or newer",
        // JIT_COMPILER_NOT_FOUND
        221 => {
            "install the driver's compiler, libnvidia-ptxjitcompiler; in a container, start it with \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        }
        // JIT_COMPILATION_DISABLED
        223 => "kernels are compiled by the driver: start without CUDA_DISABLE_PTX_JIT",
        // SYSTEM_NOT_READY: several GPUs behind a switch of their own (HGX) are started by a service.
        802 => {
            "start nvidia-fabricmanager, of the driver's own version, and wait until nvidia-smi says that it is done"
        }
        // SYSTEM_DRIVER_MISMATCH
        803 => {
            "the driver's library and the kernel's module are of two versions: restart the machine, or load the module again"
        }
        // COMPAT_NOT_SUPPORTED_ON_DEVICE
        804 => "take the cuda-compat package off the library path: it is not for this GPU; or update the driver itself",
        _ => "see whether nvidia-smi lists a GPU; in a container, start it with access to one",
    }
}

/// A GPU's primary context.
pub struct Context {
    symbols: &'static Symbols,
    ordinal: usize,
    raw: Handle,
    info: DeviceInfo,
}

// SAFETY: the handle is not memory of ours but a name for the driver, whose functions may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: a context may be current in several threads at once, and no function here changes what it names.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("ordinal", &self.ordinal).field("info", &self.info).finish_non_exhaustive()
    }
}

/// A context made current in this thread; the one that was is put back at the end.
struct Entered<'c> {
    context: &'c Context,
    before: Option<Handle>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it was current before, or there was none, which null stands for.
            unsafe { (self.context.symbols.context_set)(before) };
        }
    }
}

impl Context {
    /// The context of a device, counted from 0 as the driver counts them.
    pub fn of(ordinal: usize) -> Result<&'static Context, Absent> {
        static CONTEXTS: Mutex<Vec<(usize, &'static Context)>> = Mutex::new(Vec::new());
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, context)) = contexts.iter().find(|(known, _)| *known == ordinal) {
            return Ok(context);
        }
        // Lives as long as the process: there are as many as there are devices, and memory and kernels refer to them.
        let context: &'static Context = Box::leak(Box::new(Context::open(Driver::get()?, ordinal)?));
        contexts.push((ordinal, context));
        Ok(context)
    }

    /// How many devices the driver sees.
    pub fn devices() -> Result<usize, Absent> {
        Ok(Driver::get()?.devices)
    }

    fn open(driver: &'static Driver, ordinal: usize) -> Result<Self, Absent> {
        let symbols = &driver.symbols;
        if ordinal >= driver.devices.min(MOST_DEVICES) {
            return Err(Absent::no_device(ordinal, driver.devices));
        }
        let (mut device, mut raw) = (0, null_mut());
        // SAFETY: the device exists; the pointers are to places of the types that the functions write.
        unsafe {
            opened(symbols, "cuDeviceGet", (symbols.device_get)(&mut device, ordinal as c_int))?;
            opened(symbols, "cuDevicePrimaryCtxRetain", (symbols.context_retain)(&mut raw, device))?;
        }
        let info = describe(symbols, device, driver.version)?;
        Ok(Context { symbols, ordinal, raw, info })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Waits until all that was queued on the device is done, in every stream of this process.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: a context is current.
        self.called("cuCtxSynchronize", unsafe { (self.symbols.context_synchronize)() })
    }

    /// Makes the lines of L2 that kernels have asked to persist lines like any other, which a sweep evicts. Where the
    /// device has no such lines, nothing is to be done.
    pub fn reset_persisting(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: a context is current.
        match unsafe { (self.symbols.context_reset_persisting)() } {
            NOT_SUPPORTED => Ok(()),
            status => self.called("cuCtxResetPersistingL2Cache", status),
        }
    }

    fn called(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let (name, text) = words(self.symbols, status);
        Err(Error::Driver { call, name, text })
    }

    /// Makes the context current in this thread for as long as the result lives.
    fn enter(&self) -> Result<Entered<'_>> {
        let mut before = null_mut();
        // SAFETY: writes one handle.
        self.called("cuCtxGetCurrent", unsafe { (self.symbols.context_get)(&mut before) })?;
        if before == self.raw {
            return Ok(Entered { context: self, before: None });
        }
        // SAFETY: the context is retained for as long as the process lives.
        self.called("cuCtxSetCurrent", unsafe { (self.symbols.context_set)(self.raw) })?;
        Ok(Entered { context: self, before: Some(before) })
    }
}

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: Status = 801;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// Lets this thread allocate and free while streams are captured, be it by others who forbade that: nothing we allocate
/// is part of their graphs. The mode that was is put back at the end.
struct Unhindered<'c> {
    context: &'c Context,
    before: c_int,
}

impl Context {
    fn unhindered(&self) -> Result<Unhindered<'_>> {
        let mut mode = RELAXED;
        // SAFETY: reads and writes one number.
        let status = unsafe { (self.symbols.exchange_capture_mode)(&mut mode) };
        self.called("cuThreadExchangeStreamCaptureMode", status)?;
        Ok(Unhindered { context: self, before: mode })
    }
}

impl Drop for Unhindered<'_> {
    fn drop(&mut self) {
        // SAFETY: reads and writes one number.
        unsafe { (self.context.symbols.exchange_capture_mode)(&mut self.before) };
    }
}

/// What a device says about itself, or which call failed.
fn describe(symbols: &Symbols, device: c_int, driver: i32) -> Result<DeviceInfo, Absent> {
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: writes one integer.
        let status = unsafe { (symbols.device_attribute)(&mut value, which, device) };
        opened(symbols, "cuDeviceGetAttribute", status).map(|()| value)
    };
    let mut name = [0u8; 128];
    // SAFETY: writes at most as many bytes as it is told there are, a final zero among them.
    let status = unsafe { (symbols.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, device) };
    opened(symbols, "cuDeviceGetName", status)?;
    let mut bus = [0u8; 32];
    // SAFETY: writes at most as many bytes as it is told there are, a final zero among them.
    let status = unsafe { (symbols.device_bus)(bus.as_mut_ptr().cast(), bus.len() as c_int, device) };
    opened(symbols, "cuDeviceGetPCIBusId", status)?;
    let mut memory_bytes = 0;
    // SAFETY: writes one number.
    opened(symbols, "cuDeviceTotalMem", unsafe { (symbols.device_memory)(&mut memory_bytes, device) })?;
    // Both edges of the clock carry data.
    let memory_transfers = 2.0 * f64::from(attribute(number::MEMORY_CLOCK_KILOHERTZ)?);
    let text = |bytes: &[u8]| CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned());
    Ok(DeviceInfo {
        name: text(&name).unwrap_or_default(),
        bus: text(&bus).unwrap_or_default(),
        capability: (attribute(number::CAPABILITY_MAJOR)?, attribute(number::CAPABILITY_MINOR)?),
        multiprocessors: attribute(number::MULTIPROCESSORS)?.cast_unsigned(),
        clock_hertz: 1e3 * f64::from(attribute(number::CLOCK_KILOHERTZ)?),
        memory_bytes,
        memory_bandwidth: memory_transfers * 1e3 * f64::from(attribute(number::MEMORY_BUS_BITS)?) / 8.0,
        shared_bytes: usize::try_from(attribute(number::SHARED_BYTES)?).unwrap_or(0),
        cache_bytes: usize::try_from(attribute(number::L2_BYTES)?).unwrap_or(0),
        driver,
    })
}

/// The driver's name and words for a status.
fn words(symbols: &Symbols, status: Status) -> (String, String) {
    let read = |function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
        let mut text = null();
        // SAFETY: the function sets the pointer to a constant string of its own, or to null where it knows no such
        // status.
        let known = unsafe { function(status, &mut text) } == 0 && !text.is_null();
        // SAFETY: a string of the driver's that ends in zero and is never freed.
        if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { format!("status {status}") }
    };
    (read(symbols.error_name), read(symbols.error_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &str) -> Absent {
        Driver::open(path).map(|driver| driver.version).unwrap_err()
    }

    #[test]
    fn a_missing_library_is_named_with_a_remedy() {
        let absent = refusal("libcuda-that-is-not-there.so.1");
        assert!(absent.reason.contains("libcuda-that-is-not-there.so.1"), "{absent:?}");
        assert!(absent.remedy.contains("driver"), "{absent:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_the_drivers_functions_is_refused_by_the_first_that_is_missing() {
        let absent = refusal("libc.so.6");
        assert!(absent.reason.contains("cuInit"), "{absent:?}");
        assert!(absent.remedy.contains("580"), "{absent:?}");
    }

    #[test]
    fn what_keeps_a_driver_from_compiling_or_starting_has_its_own_remedy() {
        for (status, part) in
            [(222, "update"), (221, "ptxjitcompiler"), (223, "CUDA_DISABLE_PTX_JIT"), (2, "free memory")]
        {
            assert!(remedy(status).contains(part), "{status}: {}", remedy(status));
        }
        for (status, part) in [(802, "fabricmanager"), (803, "two versions"), (804, "cuda-compat"), (100, "nvidia-smi")]
        {
            assert!(remedy(status).contains(part), "{status}: {}", remedy(status));
        }
        assert_eq!(remedy(12345), remedy(100), "the rest");
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_with_the_number_that_are() {
        let absent = Absent::no_device(3, 2);
        assert!(absent.reason.contains("no GPU 3") && absent.reason.contains("sees 2"), "{absent:?}");
        assert!(Absent::no_device(0, 0).reason.contains("no GPU"));
    }
}
