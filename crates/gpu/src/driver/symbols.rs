//! The CUDA driver's functions by name, and the few C structures that they take.
//!
//! The library is opened when somebody asks for it, so that neither building nor running on a machine without a GPU
//! needs anything of NVIDIA's. Some fifty functions are all we call; a binding of the whole API would bring its own
//! ideas of loading, of errors and of when to panic, to save the table below.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::Absent;

/// A status; zero is success.
pub type Status = c_int;
/// A context, a module, a function, a stream, an event, a graph or a linker.
pub type Handle = *mut c_void;

/// Where Linux and Windows have the driver's library.
pub const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// 128 opaque bytes that a kernel takes by value.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct EncodedMap(pub [u8; 128]);

/// A name for memory of a device, by which other processes open it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryHandle(pub [u8; 64]);

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute`: a number that says what it is, and a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    pub id: c_int,
    pub padding: [u8; 4],
    pub value: [c_uint; 16],
}

macro_rules! symbols {
    ($($field:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The driver's functions. The library stays open as long as they can be called.
        pub struct Symbols {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> Status,)*
            _library: Library,
        }

        impl Symbols {
            /// Opens a library and finds every function in it.
            pub fn open(path: &str) -> Result<Self, Absent> {
                // SAFETY: opening runs the library's initialisers. It is NVIDIA's driver, or whatever the system's
                // administrator put under that name.
                let library = unsafe { Library::new(path) }.map_err(|error| Absent::no_library(path, &error))?;
                $(
                    // SAFETY: the type is that of the function in NVIDIA's header of this name and version.
                    let $field = *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| Absent::no_symbol(path, $symbol))?;
                )*
                Ok(Symbols { $($field,)* _library: library })
            }
        }
    };
}

symbols! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (Status, *mut *const c_char);
    error_string = "cuGetErrorString" (Status, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_memory = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_bus = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_get = "cuCtxGetCurrent" (*mut Handle);
    context_set = "cuCtxSetCurrent" (Handle);
    context_synchronize = "cuCtxSynchronize" ();
    context_reset_persisting = "cuCtxResetPersistingL2Cache" ();
    link_create = "cuLinkCreate_v2" (c_uint, *mut c_int, *mut *mut c_void, *mut Handle);
    link_add = "cuLinkAddData_v2" (
        Handle, c_int, *mut c_void, usize, *const c_char, c_uint, *mut c_int, *mut *mut c_void
    );
    link_complete = "cuLinkComplete" (Handle, *mut *mut c_void, *mut usize);
    link_destroy = "cuLinkDestroy" (Handle);
    module_load = "cuModuleLoadDataEx" (*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    module_unload = "cuModuleUnload" (Handle);
    module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    function_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Handle);
    set_function_attribute = "cuFuncSetAttribute" (Handle, c_int, c_int);
    memory_alloc = "cuMemAlloc_v2" (*mut u64, usize);
    memory_free = "cuMemFree_v2" (u64);
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    memory_set = "cuMemsetD8Async" (u64, u8, usize, Handle);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_address = "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
    memory_export = "cuIpcGetMemHandle" (*mut MemoryHandle, u64);
    memory_import = "cuIpcOpenMemHandle_v2" (*mut u64, MemoryHandle, c_uint);
    memory_close = "cuIpcCloseMemHandle" (u64);
    pointer_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, u64);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    copy_within = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Handle);
    stream_create = "cuStreamCreate" (*mut Handle, c_uint);
    stream_context = "cuStreamGetCtx" (Handle, *mut Handle);
    stream_synchronize = "cuStreamSynchronize" (Handle);
    stream_wait_event = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    stream_wait_value = "cuStreamWaitValue32_v2" (Handle, u64, u32, c_uint);
    stream_write_value = "cuStreamWriteValue32_v2" (Handle, u64, u32, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    stream_capture_info = "cuStreamGetCaptureInfo_v2" (
        Handle, *mut c_int, *mut u64, *mut Handle, *mut *const Handle, *mut usize
    );
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    user_object_create = "cuUserObjectCreate" (
        *mut Handle, *mut c_void, unsafe extern "C" fn(*mut c_void), c_uint, c_uint
    );
    graph_retain_user_object = "cuGraphRetainUserObject" (Handle, Handle, c_uint, c_uint);
    capture_begin = "cuStreamBeginCapture_v2" (Handle, c_int);
    capture_end = "cuStreamEndCapture" (Handle, *mut Handle);
    graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    graph_launch = "cuGraphLaunch" (Handle, Handle);
    graph_exec_destroy = "cuGraphExecDestroy" (Handle);
    graph_destroy = "cuGraphDestroy" (Handle);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_query = "cuEventQuery" (Handle);
    event_synchronize = "cuEventSynchronize" (Handle);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
    encode_tiled = "cuTensorMapEncodeTiled" (
        *mut EncodedMap, c_int, c_uint, *mut c_void, *const u64, *const u64, *const c_uint, *const c_uint,
        c_int, c_int, c_int, c_int
    );
    clusters_that_fit = "cuOccupancyMaxActiveClusters" (*mut c_int, Handle, *const LaunchConfig);
    launch_kernel = "cuLaunchKernelEx" (*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
}
