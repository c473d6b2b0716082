//! The CUDA driver, as far as we need it: a context, modules made from PTX, memory, streams, events, tensor maps, launches.
//!
//! Loaded at run time from the driver's own library (see `symbols`): no toolkit, nothing of NVIDIA's at build time, and
//! where it is missing, too old, or without a GPU, [`Context::open`] says so and what to do ([`Absent`]). Every status is
//! looked at; one that is not success becomes [`Error::Driver`] with the call's name and the driver's own words.
//!
//! What the driver hands out lives no longer than the [`Context`] and is given back when it is dropped. A context is made
//! current before each call that needs one, so all of this may be used from any thread.

mod symbols;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::{null, null_mut};

use ptx::descriptor::Swizzle;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{DataType, Kernel, ParamType};

use self::symbols::{EncodedMap, Handle, LIBRARY, LaunchAttribute, LaunchConfig, Status, Symbols};
use super::Argument;
use crate::{Error, Result};

/// The driver that reads PTX 9.0: CUDA 13.0.
const OLDEST_DRIVER: i32 = 13000;

/// `CU_DEVICE_ATTRIBUTE_…`, `CU_FUNC_ATTRIBUTE_…`, `CU_JIT_…` and `CU_LAUNCH_ATTRIBUTE_…` by their numbers.
mod number {
    use std::ffi::c_int;

    pub const MULTIPROCESSORS: c_int = 16;
    pub const CAPABILITY_MAJOR: c_int = 75;
    pub const CAPABILITY_MINOR: c_int = 76;
    pub const LOCAL_BYTES: c_int = 3;
    pub const REGISTERS: c_int = 4;
    pub const MOST_DYNAMIC_SHARED: c_int = 8;
    pub const JIT_ERROR_LOG: c_int = 5;
    pub const JIT_ERROR_LOG_BYTES: c_int = 6;
    pub const CLUSTER_DIMENSION: c_int = 4;
    pub const PROGRAMMATIC_SERIALIZATION: c_int = 6;
    pub const STREAM_NON_BLOCKING: u32 = 1;
    pub const L2_PROMOTION_256: c_int = 3;
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
        let remedy = "install NVIDIA's driver (580 or newer); in a container, start it with access to the GPU";
        let said = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        Absent::new(format!("the CUDA driver's library {path} cannot be opened ({said})"), remedy)
    }

    fn no_symbol(path: &str, symbol: &str) -> Self {
        let remedy = "update NVIDIA's driver to 580 or newer";
        Absent::new(format!("{path} has no function {symbol}, so it is no driver or one too old"), remedy)
    }
}

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// The CUDA version that its driver supports, as 1000 · major + 10 · minor.
    pub driver: i32,
}

/// The first GPU's primary context.
pub struct Context {
    symbols: Symbols,
    device: c_int,
    raw: Handle,
    info: DeviceInfo,
}

// SAFETY: the driver's functions may be called from any thread, and a context may be current in several.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Context {
    /// Opens the driver and its first device.
    pub fn open() -> Result<Self, Absent> {
        Self::open_library(LIBRARY)
    }

    fn open_library(path: &str) -> Result<Self, Absent> {
        let symbols = Symbols::open(path)?;
        let failed = |call: &'static str, status| {
            let (name, text) = words(&symbols, status);
            let remedy = "see whether nvidia-smi lists a GPU; in a container, start it with access to one";
            Absent::new(format!("{call} failed with {name} ({text})"), remedy)
        };
        let called = |call, status: Status| if status == 0 { Ok(()) } else { Err(failed(call, status)) };
        let (mut driver, mut count, mut device, mut raw) = (0, 0, 0, null_mut());
        // SAFETY: cuInit comes first, and the pointers are to places of the types that the functions write.
        unsafe {
            called("cuInit", (symbols.init)(0))?;
            called("cuDriverGetVersion", (symbols.driver_version)(&mut driver))?;
            called("cuDeviceGetCount", (symbols.device_count)(&mut count))?;
        }
        check_driver(driver)?;
        if count == 0 {
            return Err(Absent::new("the driver sees no GPU", "see whether nvidia-smi lists one"));
        }
        // SAFETY: device 0 exists; the pointers are to places of the types that the functions write.
        unsafe {
            called("cuDeviceGet", (symbols.device_get)(&mut device, 0))?;
            called("cuDevicePrimaryCtxRetain", (symbols.context_retain)(&mut raw, device))?;
        }
        let info = describe(&symbols, device, driver).map_err(|(call, status)| failed(call, status))?;
        Ok(Context { symbols, device, raw, info })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn called(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let (name, text) = words(&self.symbols, status);
        Err(Error::Driver { call, name, text })
    }

    /// Makes the context current in this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained until `self` is dropped.
        self.called("cuCtxSetCurrent", unsafe { (self.symbols.context_set)(self.raw) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `open_library` and released once. A failure leaves nothing to do.
        unsafe { (self.symbols.context_release)(self.device) };
    }
}

fn check_driver(version: i32) -> Result<(), Absent> {
    if version >= OLDEST_DRIVER {
        return Ok(());
    }
    let found =
        format!("the driver supports CUDA {}.{} and the kernels need 13.0", version / 1000, version % 1000 / 10);
    Err(Absent::new(found, "update NVIDIA's driver to 580 or newer"))
}

/// What a device says about itself, or which call failed.
fn describe(symbols: &Symbols, device: c_int, driver: i32) -> Result<DeviceInfo, (&'static str, Status)> {
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: writes one integer.
        match unsafe { (symbols.device_attribute)(&mut value, which, device) } {
            0 => Ok(value),
            status => Err(("cuDeviceGetAttribute", status)),
        }
    };
    let mut name = [0u8; 128];
    // SAFETY: writes at most as many bytes as it is told there are, a final zero among them.
    match unsafe { (symbols.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, device) } {
        0 => {}
        status => return Err(("cuDeviceGetName", status)),
    }
    Ok(DeviceInfo {
        name: CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        capability: (attribute(number::CAPABILITY_MAJOR)?, attribute(number::CAPABILITY_MINOR)?),
        multiprocessors: attribute(number::MULTIPROCESSORS)?.cast_unsigned(),
        driver,
    })
}

/// The driver's name and words for a status.
fn words(symbols: &Symbols, status: Status) -> (String, String) {
    let read = |function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
        let mut text = null();
        // SAFETY: the function sets the pointer to a constant string of its own, or to null where it knows no such status.
        let known = unsafe { function(status, &mut text) } == 0 && !text.is_null();
        // SAFETY: a string of the driver's that ends in zero and is never freed.
        if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { format!("status {status}") }
    };
    (read(symbols.error_name), read(symbols.error_string))
}

/// Memory of the device.
pub struct DeviceMemory<'c> {
    context: &'c Context,
    address: u64,
    bytes: usize,
}

impl fmt::Debug for DeviceMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

impl<'c> DeviceMemory<'c> {
    /// Memory that nobody has written yet. Its address is a multiple of 256.
    pub fn new(context: &'c Context, bytes: usize) -> Result<Self> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: writes one address. The driver refuses to allocate nothing, so there is one byte at least.
        let status = unsafe { (context.symbols.memory_alloc)(&mut address, bytes.max(1)) };
        context.called("cuMemAlloc", status)?;
        Ok(DeviceMemory { context, address, bytes })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much there is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies from the host, and waits until that is done.
    pub fn write(&mut self, bytes: &[u8], stream: &Stream<'_>) -> Result<()> {
        self.same_length(bytes.len())?;
        self.context.enter()?;
        // SAFETY: both sides have that many bytes, and both outlive the copy because we wait for it.
        let status = unsafe {
            let copy = self.context.symbols.copy_to_device;
            copy(self.address, bytes.as_ptr().cast(), bytes.len(), stream.raw)
        };
        self.context.called("cuMemcpyHtoDAsync", status)?;
        stream.synchronize()
    }

    /// Copies to the host, and waits until that is done.
    pub fn read(&self, bytes: &mut [u8], stream: &Stream<'_>) -> Result<()> {
        self.same_length(bytes.len())?;
        self.context.enter()?;
        // SAFETY: as in `write`.
        let status = unsafe {
            let copy = self.context.symbols.copy_to_host;
            copy(bytes.as_mut_ptr().cast(), self.address, bytes.len(), stream.raw)
        };
        self.context.called("cuMemcpyDtoHAsync", status)?;
        stream.synchronize()
    }

    fn same_length(&self, host: usize) -> Result<()> {
        let name = "a mismatch found before the call".to_owned();
        let text = format!("{host} bytes on the host, {} on the device", self.bytes);
        if host == self.bytes { Ok(()) } else { Err(Error::Driver { call: "cuMemcpyAsync", name, text }) }
    }
}

impl Drop for DeviceMemory<'_> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by `new` and freed once. The driver waits for work that uses it.
            unsafe { (self.context.symbols.memory_free)(self.address) };
        }
    }
}

/// A queue of work for the device.
pub struct Stream<'c> {
    context: &'c Context,
    raw: Handle,
}

impl<'c> Stream<'c> {
    /// A queue of its own, which waits for no other.
    pub fn new(context: &'c Context) -> Result<Self> {
        context.enter()?;
        let mut raw = null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { (context.symbols.stream_create)(&mut raw, number::STREAM_NON_BLOCKING) };
        context.called("cuStreamCreate", status)?;
        Ok(Stream { context, raw })
    }

    /// Waits until all that was queued is done. What went wrong on the device is reported here.
    pub fn synchronize(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        self.context.called("cuStreamSynchronize", unsafe { (self.context.symbols.stream_synchronize)(self.raw) })
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created by `new` and destroyed once.
            unsafe { (self.context.symbols.stream_destroy)(self.raw) };
        }
    }
}

/// A moment in a stream.
pub struct Event<'c> {
    context: &'c Context,
    raw: Handle,
}

impl<'c> Event<'c> {
    /// The moment when a stream has done all that was queued before.
    pub fn record(context: &'c Context, stream: &Stream<'c>) -> Result<Self> {
        context.enter()?;
        let mut raw = null_mut();
        // SAFETY: writes one handle.
        context.called("cuEventCreate", unsafe { (context.symbols.event_create)(&mut raw, 0) })?;
        let event = Event { context, raw };
        // SAFETY: both are alive.
        context.called("cuEventRecord", unsafe { (context.symbols.event_record)(raw, stream.raw) })?;
        Ok(event)
    }

    /// Seconds from this moment to a later one, for which it waits.
    pub fn seconds_until(&self, later: &Event<'c>) -> Result<f64> {
        self.context.enter()?;
        let mut milliseconds = 0f32;
        // SAFETY: both are recorded, and the later one is waited for; writes one number.
        unsafe {
            self.context.called("cuEventSynchronize", (self.context.symbols.event_synchronize)(later.raw))?;
            let status = (self.context.symbols.event_elapsed)(&mut milliseconds, self.raw, later.raw);
            self.context.called("cuEventElapsedTime", status)?;
        }
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created by `record` and destroyed once.
            unsafe { (self.context.symbols.event_destroy)(self.raw) };
        }
    }
}

/// A kernel, compiled and ready to be launched.
pub struct Function<'c> {
    context: &'c Context,
    module: Handle,
    raw: Handle,
    kernel: Kernel,
}

// SAFETY: the handles belong to the driver, which may be called from any thread.
unsafe impl Send for Function<'_> {}
// SAFETY: as above.
unsafe impl Sync for Function<'_> {}

impl<'c> Function<'c> {
    /// Has the driver compile a kernel's PTX.
    pub fn new(context: &'c Context, kernel: Kernel) -> Result<Self> {
        context.enter()?;
        let module = load_module(context, &kernel)?;
        let mut function = Function { context, module, raw: null_mut(), kernel };
        let name = CString::new(function.kernel.name.as_str()).unwrap_or_default();
        // SAFETY: the module is loaded; writes one handle.
        let status = unsafe { (context.symbols.module_function)(&mut function.raw, module, name.as_ptr()) };
        context.called("cuModuleGetFunction", status)?;
        let bytes = function.kernel.shared_bytes().cast_signed();
        // SAFETY: the function belongs to the module.
        let status =
            unsafe { (context.symbols.set_function_attribute)(function.raw, number::MOST_DYNAMIC_SHARED, bytes) };
        context.called("cuFuncSetAttribute", status)?;
        Ok(function)
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Registers per thread, and bytes per thread that did not fit into them, as the driver compiled it.
    pub fn registers_and_spills(&self) -> Result<(i32, i32)> {
        self.context.enter()?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function is alive; writes one integer.
            let status = unsafe { (self.context.symbols.function_attribute)(&mut value, which, self.raw) };
            self.context.called("cuFuncGetAttribute", status).map(|()| value)
        };
        Ok((attribute(number::REGISTERS)?, attribute(number::LOCAL_BYTES)?))
    }

    /// Queues a launch.
    ///
    /// # Safety
    ///
    /// Every pointer and tensor map among the arguments must stay valid, for as many bytes as the kernel reads and writes
    /// there, until the stream has done the work.
    pub unsafe fn launch(
        &self,
        grid: [u32; 3],
        arguments: &[Argument],
        overlapping: bool,
        stream: &Stream<'_>,
    ) -> Result<()> {
        let mut places = self.encode(arguments)?;
        let mut pointers: Vec<*mut c_void> = places.iter_mut().map(|place| place.as_mut_ptr().cast()).collect();
        let attribute = |id, values: &[u32]| {
            let mut value = [0; 16];
            value[..values.len()].copy_from_slice(values);
            LaunchAttribute { id, padding: [0; 4], value }
        };
        let cluster = self.kernel.launch.cluster.map(|shape| attribute(number::CLUSTER_DIMENSION, &shape));
        let overlap = overlapping.then(|| attribute(number::PROGRAMMATIC_SERIALIZATION, &[1]));
        let attributes: Vec<LaunchAttribute> = cluster.into_iter().chain(overlap).collect();
        let config = LaunchConfig {
            grid,
            block: [self.kernel.launch.threads, 1, 1],
            shared_bytes: self.kernel.shared_bytes(),
            stream: stream.raw,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as u32,
        };
        self.context.enter()?;
        // SAFETY: one place for each of the kernel's parameters, of its size; the driver copies them before it returns.
        let status =
            unsafe { (self.context.symbols.launch_kernel)(&config, self.raw, pointers.as_mut_ptr(), null_mut()) };
        self.context.called("cuLaunchKernelEx", status)
    }

    /// The arguments as the kernel takes them: as many places for each as it needs.
    fn encode(&self, arguments: &[Argument]) -> Result<Vec<Vec<EncodedMap>>> {
        let wrong = |text| Error::Driver { call: "cuLaunchKernelEx", name: "wrong arguments".into(), text };
        if arguments.len() != self.kernel.params.len() {
            return Err(wrong(format!("{} for {} parameters", arguments.len(), self.kernel.params.len())));
        }
        let each = arguments.iter().zip(&self.kernel.params).map(|(argument, param)| match (argument, param.ty) {
            (Argument::Pointer(address), ParamType::Pointer) => Ok(place(&address.to_ne_bytes())),
            (Argument::U32(value), ParamType::Scalar(DataType::U32)) => Ok(place(&value.to_ne_bytes())),
            (Argument::U64(value), ParamType::Scalar(DataType::U64)) => Ok(place(&value.to_ne_bytes())),
            (Argument::F32(value), ParamType::Scalar(DataType::F32)) => Ok(place(&value.to_ne_bytes())),
            (Argument::Map(map), ParamType::TensorMap) => Ok(vec![self.context.encode(map)?]),
            (Argument::Maps(maps), ParamType::TensorMaps(count)) if maps.len() <= count as usize => {
                let mut places = maps.iter().map(|map| self.context.encode(map)).collect::<Result<Vec<_>>>()?;
                places.resize_with(count as usize, || EncodedMap([0; 128]));
                Ok(places)
            }
            (Argument::Words(words), ParamType::Words(count)) if words.len() == count as usize => {
                Ok(bytemuck::cast_slice(words).chunks(128).flat_map(place).collect())
            }
            (argument, ty) => Err(wrong(format!("{argument:?} for parameter {} of type {ty:?}", param.name))),
        });
        each.collect()
    }
}

impl Drop for Function<'_> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded by `new` and unloaded once.
            unsafe { (self.context.symbols.module_unload)(self.module) };
        }
    }
}

fn place(bytes: &[u8]) -> Vec<EncodedMap> {
    let mut place = EncodedMap([0; 128]);
    place.0[..bytes.len()].copy_from_slice(bytes);
    vec![place]
}

/// Compiles PTX; if the driver refuses it, what its compiler said is in the error.
fn load_module(context: &Context, kernel: &Kernel) -> Result<Handle> {
    let source = CString::new(kernel.to_ptx()).unwrap_or_default();
    let mut log = vec![0u8; 8192];
    let mut options = [number::JIT_ERROR_LOG, number::JIT_ERROR_LOG_BYTES];
    // The second value is a number in place of a pointer: that is how the driver takes it.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
    let mut module = null_mut();
    // SAFETY: the source ends in zero; there are two options with two values; the log has the stated length.
    let status = unsafe {
        let load = context.symbols.module_load;
        load(&mut module, source.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    if status == 0 {
        return Ok(module);
    }
    let (name, text) = words(&context.symbols, status);
    let said = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().trim().to_owned()).unwrap_or_default();
    Err(Error::Jit { kernel: kernel.name.clone(), name, text, log: said })
}

impl Context {
    /// A tensor map as the hardware reads it.
    fn encode(&self, map: &TensorMap) -> Result<EncodedMap> {
        map.check()?;
        self.enter()?;
        let element = match map.element {
            Element::U8 => 0,
            Element::U16 => 1,
            Element::U32 => 2,
            Element::F16 => 6,
            Element::F32 => 7,
            Element::Bf16 => 9,
            Element::U4x16 => 13,
        };
        let swizzle = match map.swizzle {
            Swizzle::None => 0,
            Swizzle::B32 => 1,
            Swizzle::B64 => 2,
            Swizzle::B128 => 3,
        };
        let mut encoded = EncodedMap([0; 128]);
        let steps = vec![1u32; map.dims.len()];
        let address = std::ptr::without_provenance_mut(map.address as usize);
        // SAFETY: as many sizes, box sizes and steps as the rank says and one stride fewer (`check` has seen to it); no
        // interleaving; zeros out of bounds. The address is only encoded.
        let status = unsafe {
            (self.symbols.encode_tiled)(
                &mut encoded,
                element,
                map.dims.len() as u32,
                address,
                map.dims.as_ptr(),
                map.strides.as_ptr(),
                map.tile.as_ptr(),
                steps.as_ptr(),
                0,
                swizzle,
                number::L2_PROMOTION_256,
                0,
            )
        };
        self.called("cuTensorMapEncodeTiled", status)?;
        Ok(encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_a_remedy() {
        let absent = Context::open_library("libcuda-that-is-not-there.so.1").unwrap_err();
        assert!(absent.reason.contains("libcuda-that-is-not-there.so.1"), "{absent:?}");
        assert!(absent.remedy.contains("driver"), "{absent:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_the_drivers_functions_is_refused_by_the_first_that_is_missing() {
        let absent = Context::open_library("libc.so.6").unwrap_err();
        assert!(absent.reason.contains("cuInit"), "{absent:?}");
        assert!(absent.remedy.contains("580"), "{absent:?}");
    }

    #[test]
    fn a_driver_older_than_the_ptx_version_is_refused_by_version() {
        assert_eq!(check_driver(13000), Ok(()));
        let absent = check_driver(12040).unwrap_err();
        assert!(absent.reason.contains("12.4") && absent.reason.contains("13.0"), "{absent:?}");
    }
}
