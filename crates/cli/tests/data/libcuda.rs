//! A CUDA driver that is none, for tests of what is said where a driver or a GPU is not as it should be.
//!
//! `rustc --crate-type cdylib libcuda.rs -o libcuda.so.1` makes the library; a program finds it by `LD_LIBRARY_PATH`.
//! It has a GPU whose memory is the host's and whose kernels compute nothing. `FAKE_DRIVER` says what else is wrong
//! with it, as words: `init=802` (what `cuInit` answers), `version=12040`, `devices=0`, `capability=100`, `link=209`
//! (what its linker answers), `load=222` (what its compiler answers), `run=719` (what waiting for a kernel answers) or
//! `run=hangs`. Built with `--cfg old`, it lacks the functions that came last.

#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::alloc::{Layout, alloc};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Any handle: nothing is behind it.
const HANDLE: *mut c_void = 256 as *mut c_void;
/// What the linker makes.
static IMAGE: [u8; 16] = *b"a fake cubin....";
/// Whether a kernel was launched: only then is there something to wait for.
static LAUNCHED: AtomicBool = AtomicBool::new(false);

/// What the environment says of something.
fn said(what: &str) -> Option<String> {
    let all = std::env::var("FAKE_DRIVER").ok()?;
    let value = |word: &str| Some(word.strip_prefix(what)?.strip_prefix('=')?.to_owned());
    all.split_whitespace().find_map(value)
}

fn number(what: &str, otherwise: c_int) -> c_int {
    said(what).and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Waits for whatever was launched.
fn finish() -> c_int {
    if LAUNCHED.load(Ordering::Relaxed) && said("run").as_deref() == Some("hangs") {
        std::thread::park();
    }
    if LAUNCHED.load(Ordering::Relaxed) { number("run", 0) } else { 0 }
}

unsafe fn write_text(text: &CStr, to: *mut c_char, bytes: c_int) {
    let text = text.to_bytes_with_nul();
    assert!(text.len() <= bytes as usize);
    unsafe { text.as_ptr().copy_to_nonoverlapping(to.cast(), text.len()) };
}

/// Functions that only succeed.
macro_rules! succeed {
    ($($name:ident)*) => { $(#[unsafe(no_mangle)] pub extern "C" fn $name() -> c_int { 0 })* };
}

/// Functions that write a handle to their first place, or to another.
macro_rules! give_handles {
    ($($name:ident ($($before:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($(_: $before,)* to: *mut *mut c_void) -> c_int {
            unsafe { to.write(HANDLE) };
            0
        }
    )* };
}

succeed! {
    cuCtxSetCurrent cuCtxResetPersistingL2Cache cuLinkDestroy cuModuleUnload cuFuncSetAttribute cuMemFree_v2 cuMemFreeHost cuMemHostRegister_v2 cuIpcGetMemHandle
    cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuPointerGetAttribute cuStreamWaitEvent
    cuStreamWaitValue32_v2 cuStreamWriteValue32_v2 cuStreamDestroy_v2 cuThreadExchangeStreamCaptureMode
    cuGraphRetainUserObject cuStreamBeginCapture_v2 cuGraphLaunch cuGraphExecDestroy cuGraphDestroy cuEventRecord
    cuEventQuery cuEventDestroy_v2 cuTensorMapEncodeTiled
}

give_handles! {
    cuDevicePrimaryCtxRetain();
    cuCtxGetCurrent();
    cuLinkCreate_v2(u32, *mut c_int, *mut *mut c_void);
    cuModuleGetFunction();
    cuStreamCreate();
    cuStreamGetCtx(*mut c_void);
    cuUserObjectCreate();
    cuStreamEndCapture(*mut c_void);
    cuGraphInstantiateWithFlags();
    cuEventCreate();
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> c_int {
    number("init", 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(to: *mut c_int) -> c_int {
    unsafe { to.write(number("version", 13000)) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(status: c_int, to: *mut *const c_char) -> c_int {
    let name = match status {
        100 => c"CUDA_ERROR_NO_DEVICE",
        221 => c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        802 => c"CUDA_ERROR_SYSTEM_NOT_READY",
        _ => return 1,
    };
    unsafe { to.write(name.as_ptr()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_status: c_int, _to: *mut *const c_char) -> c_int {
    1
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(to: *mut c_int) -> c_int {
    unsafe { to.write(number("devices", 1)) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> c_int {
    unsafe { to.write(ordinal) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, bytes: c_int, _device: c_int) -> c_int {
    unsafe { write_text(c"Fake GPU", to, bytes) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, bytes: c_int, _device: c_int) -> c_int {
    unsafe { write_text(c"0000:00:00.0", to, bytes) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(to: *mut usize, _device: c_int) -> c_int {
    unsafe { to.write(1 << 36) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(to: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    let value = match attribute {
        // Clocks in kHz, multiprocessors, bits of the bus, L2, shared memory of a block.
        13 => 1_965_000,
        16 => 148,
        36 => 3_996_000,
        37 => 8192,
        38 => 126 << 20,
        75 => number("capability", 100) / 10,
        76 => number("capability", 100) % 10,
        97 => 227 << 10,
        _ => 0,
    };
    unsafe { to.write(value) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    finish()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(_stream: *mut c_void) -> c_int {
    finish()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(_event: *mut c_void) -> c_int {
    finish()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLinkAddData_v2() -> c_int {
    number("link", 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkComplete(_linker: *mut c_void, image: *mut *const u8, bytes: *mut usize) -> c_int {
    unsafe {
        image.write(IMAGE.as_ptr());
        bytes.write(IMAGE.len());
    }
    0
}

/// Without options it is given machine code, and with two of them text, and a place and a size for what its compiler
/// says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    to: *mut *mut c_void,
    _image: *const c_void,
    options: u32,
    _names: *mut c_int,
    values: *mut *mut c_void,
) -> c_int {
    let status = if options == 0 { 0 } else { number("load", 0) };
    unsafe {
        to.write(HANDLE);
        if status != 0 {
            write_text(c"ptxas fatal: says the fake compiler", values.read().cast(), 8192);
        }
    }
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(to: *mut c_int, _attribute: c_int, _function: *mut c_void) -> c_int {
    unsafe { to.write(0) };
    0
}

/// Memory that is never given back: these processes are short.
fn memory(bytes: usize) -> *mut u8 {
    let layout = Layout::from_size_align(bytes.max(1), 256).expect("a size");
    unsafe { alloc(layout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, bytes: usize) -> c_int {
    unsafe { to.write(memory(bytes) as u64) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(to: *mut *mut u8, bytes: usize, _flags: u32) -> c_int {
    unsafe { to.write(memory(bytes)) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(to: *mut u64, host: *mut c_void, _flags: u32) -> c_int {
    unsafe { to.write(host.addr() as u64) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, all: *mut usize) -> c_int {
    unsafe {
        free.write(1 << 35);
        all.write(1 << 36);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: *mut u8, value: u8, bytes: usize, _stream: *mut c_void) -> c_int {
    unsafe { to.write_bytes(value, bytes) };
    0
}

/// Copies, whichever way: all memory is the host's.
macro_rules! copy {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(to: *mut u8, from: *const u8, bytes: usize, _stream: *mut c_void) -> c_int {
            unsafe { from.copy_to(to, bytes) };
            0
        }
    )* };
}

copy! { cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 }

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCaptureInfo_v2(_stream: *mut c_void, to: *mut c_int) -> c_int {
    unsafe { to.write(0) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(to: *mut f32) -> c_int {
    unsafe { to.write(1.0) };
    0
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveClusters(to: *mut c_int) -> c_int {
    unsafe { to.write(8) };
    0
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx() -> c_int {
    LAUNCHED.store(true, Ordering::Relaxed);
    0
}
