//! Kernels as the driver has compiled them, their arguments as they take them, and launches.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use ptx::descriptor::Swizzle;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{DataType, Kernel, ParamType};

use super::cubin::{self, Origin};
use super::symbols::{EncodedMap, Handle, LaunchAttribute, LaunchConfig};
use super::{Context, Stream};
use crate::launch::{Argument, Launch};
use op::{Error, Result};

/// `CU_FUNC_ATTRIBUTE_…`, `CU_LAUNCH_ATTRIBUTE_…` and `CU_TENSOR_MAP_…` by their numbers.
mod number {
    use std::ffi::c_int;

    pub const LOCAL_BYTES: c_int = 3;
    pub const REGISTERS: c_int = 4;
    pub const MOST_DYNAMIC_SHARED: c_int = 8;
    pub const SHARED_CARVEOUT: c_int = 9;
    pub const CLUSTER_DIMENSION: c_int = 4;
    pub const PROGRAMMATIC_SERIALIZATION: c_int = 6;
    pub const L2_PROMOTION_256: c_int = 3;
}

/// Parameters that a kernel may have. Their addresses are gathered on the stack for every launch.
const MOST_PARAMETERS: usize = 256;

/// A kernel, compiled and ready to be launched.
pub struct Function {
    context: &'static Context,
    module: Handle,
    raw: Handle,
    kernel: Kernel,
    origin: Origin,
}

// SAFETY: the handles belong to the driver, which may be called from any thread, and so may it to unload the module.
unsafe impl Send for Function {}
// SAFETY: the driver takes a function's handle from several threads at once; nothing here changes after `new`.
unsafe impl Sync for Function {}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {} ({:?})", self.kernel.name, self.origin)
    }
}

impl Function {
    /// Has the driver compile a kernel, or load it where it was compiled before.
    pub fn new(context: &'static Context, kernel: Kernel) -> Result<Self> {
        let _entered = context.enter()?;
        let (module, origin) = cubin::load(context, &kernel)?;
        let mut function = Function { context, module, raw: null_mut(), kernel, origin };
        let name = CString::new(function.kernel.name.as_str()).unwrap_or_default();
        // SAFETY: the module is loaded; writes one handle.
        let status = unsafe { (context.symbols.module_function)(&mut function.raw, module, name.as_ptr()) };
        context.called("cuModuleGetFunction", status)?;
        let bytes = function.kernel.shared_bytes().cast_signed();
        // All of the memory that a multiprocessor's cache and shared memory have in common, as a percentage: kernels
        // whose carve-outs differ could not be on one multiprocessor together.
        for (attribute, value) in [(number::MOST_DYNAMIC_SHARED, bytes), (number::SHARED_CARVEOUT, 100)] {
            // SAFETY: the function belongs to the module.
            let status = unsafe { (context.symbols.set_function_attribute)(function.raw, attribute, value) };
            context.called("cuFuncSetAttribute", status)?;
        }
        Ok(function)
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Where its machine code came from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Registers per thread, and bytes per thread that did not fit into them, as the driver compiled it.
    pub fn registers_and_spills(&self) -> Result<(i32, i32)> {
        let _entered = self.context.enter()?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function is alive; writes one integer.
            let status = unsafe { (self.context.symbols.function_attribute)(&mut value, which, self.raw) };
            self.context.called("cuFuncGetAttribute", status).map(|()| value)
        };
        Ok((attribute(number::REGISTERS)?, attribute(number::LOCAL_BYTES)?))
    }

    /// The arguments as the kernel takes them.
    fn encode(&self, arguments: &[Argument]) -> Result<Encoded> {
        let wrong = |text| Error::Driver { call: "cuLaunchKernelEx", name: "wrong arguments".into(), text };
        let wanted = self.kernel.params.len();
        if arguments.len() != wanted || wanted > MOST_PARAMETERS {
            return Err(wrong(format!("{} for {wanted} parameters", arguments.len())));
        }
        let mut encoded = Encoded::default();
        for (argument, param) in arguments.iter().zip(&self.kernel.params) {
            match (argument, param.ty) {
                (Argument::Pointer(address), ParamType::Pointer) => encoded.push(&address.to_ne_bytes()),
                (Argument::U32(value), ParamType::Scalar(DataType::U32)) => encoded.push(&value.to_ne_bytes()),
                (Argument::U64(value), ParamType::Scalar(DataType::U64)) => encoded.push(&value.to_ne_bytes()),
                (Argument::F32(value), ParamType::Scalar(DataType::F32)) => encoded.push(&value.to_ne_bytes()),
                (Argument::Map(map), ParamType::TensorMap) => encoded.push(&self.context.encode(map)?.0),
                (Argument::Maps(maps), ParamType::TensorMaps(count)) if maps.len() <= count as usize => {
                    let maps = maps.iter().map(|map| Ok(self.context.encode(map)?.0)).collect::<Result<Vec<_>>>()?;
                    encoded.push_table(maps.as_flattened(), count as usize * size_of::<EncodedMap>());
                }
                (Argument::Words(words), ParamType::Words(count)) if words.len() <= count as usize => {
                    encoded.push_table(bytemuck::cast_slice(words), count as usize * size_of::<u32>());
                }
                (argument, ty) => return Err(wrong(format!("{argument:?} for {} of type {ty:?}", param.name))),
            }
        }
        Ok(encoded)
    }
}

/// Arguments one after another, each aligned as a tensor map must be.
#[derive(Default)]
struct Encoded {
    bytes: Vec<EncodedMap>,
    /// Where each begins.
    starts: Vec<usize>,
}

impl Encoded {
    fn push(&mut self, argument: &[u8]) {
        self.push_table(argument, argument.len());
    }

    /// A table that need not be full: the driver copies all of it.
    fn push_table(&mut self, filled: &[u8], bytes: usize) {
        let start = self.bytes.len();
        self.starts.push(start);
        for piece in filled.chunks(size_of::<EncodedMap>()) {
            let mut place = EncodedMap([0; 128]);
            place.0[..piece.len()].copy_from_slice(piece);
            self.bytes.push(place);
        }
        self.bytes.resize(start + bytes.div_ceil(size_of::<EncodedMap>()), EncodedMap([0; 128]));
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: loaded by `new` and unloaded once.
            unsafe { (self.context.symbols.module_unload)(self.module) };
        }
    }
}

/// A launch with everything that the driver wants to know of it; queueing it makes and allocates nothing.
pub struct EncodedLaunch {
    function: Arc<Function>,
    grid: [u32; 3],
    arguments: Encoded,
    attributes: [LaunchAttribute; 2],
    attribute_count: u32,
}

impl fmt::Debug for EncodedLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} over {:?}", self.function, self.grid)
    }
}

impl EncodedLaunch {
    /// A launch of a compiled kernel.
    pub fn new(function: Arc<Function>, launch: &Launch) -> Result<Self> {
        let attribute = |id: c_int, values: &[u32]| {
            let mut value = [0; 16];
            value[..values.len()].copy_from_slice(values);
            LaunchAttribute { id, padding: [0; 4], value }
        };
        let mut attributes = [attribute(0, &[]); 2];
        let cluster = function.kernel.launch.cluster.map(|sides| attribute(number::CLUSTER_DIMENSION, &sides));
        let overlapping = launch.overlapping.then(|| attribute(number::PROGRAMMATIC_SERIALIZATION, &[1]));
        let mut attribute_count = 0;
        for (place, attribute) in attributes.iter_mut().zip(cluster.into_iter().chain(overlapping)) {
            *place = attribute;
            attribute_count += 1;
        }
        let arguments = function.encode(&launch.arguments)?;
        let mut encoded = EncodedLaunch { function, grid: launch.grid, arguments, attributes, attribute_count };
        if launch.strided {
            encoded.grid = encoded.fitting()?;
        }
        Ok(encoded)
    }

    /// The grid, or as much of it as runs at the same time where blocks are in clusters: those are each in one GPC, so
    /// fewer fit than the multiprocessors have room for, and who comes in a second turn doubles the time.
    fn fitting(&self) -> Result<[u32; 3]> {
        let [x, y, z] = self.grid;
        let Some([blocks, 1, 1]) = self.function.kernel.launch.cluster.filter(|_| [y, z] == [1, 1]) else {
            return Ok(self.grid);
        };
        let context = self.function.context;
        let _entered = context.enter()?;
        let mut clusters = 0;
        // SAFETY: writes one integer; the function and what the configuration points to are alive.
        let status =
            unsafe { (context.symbols.clusters_that_fit)(&mut clusters, self.function.raw, &self.config(null_mut())) };
        context.called("cuOccupancyMaxActiveClusters", status)?;
        Ok([x.min(clusters.max(1).cast_unsigned() * blocks), 1, 1])
    }

    /// What the driver is told of a launch on a stream.
    fn config(&self, stream: Handle) -> LaunchConfig {
        LaunchConfig {
            grid: self.grid,
            block: [self.function.kernel.launch.threads, 1, 1],
            shared_bytes: self.function.kernel.shared_bytes(),
            stream,
            attributes: if self.attribute_count == 0 { null() } else { self.attributes.as_ptr() },
            attribute_count: self.attribute_count,
        }
    }

    /// Queues it.
    ///
    /// # Safety
    ///
    /// Every pointer and tensor map among the arguments must stay valid, for as many bytes as the kernel reads and
    /// writes there, until the stream has done the work.
    pub unsafe fn queue(&self, stream: &Stream) -> Result<()> {
        let context = self.function.context;
        let mut pointers = [null_mut::<c_void>(); MOST_PARAMETERS];
        for (pointer, &start) in pointers.iter_mut().zip(&self.arguments.starts) {
            *pointer = self.arguments.bytes[start..].as_ptr().cast_mut().cast();
        }
        let config = self.config(stream.raw());
        let _entered = context.enter()?;
        // SAFETY: an argument for each of the kernel's parameters, of its size; the driver copies from them, and only
        // that, before it returns.
        let status =
            unsafe { (context.symbols.launch_kernel)(&config, self.function.raw, pointers.as_mut_ptr(), null_mut()) };
        context.called("cuLaunchKernelEx", status)
    }
}

impl Context {
    /// A tensor map as the hardware reads it.
    fn encode(&self, map: &TensorMap) -> Result<EncodedMap> {
        map.check().map_err(|error| Error::Kernel(error.into()))?;
        let _entered = self.enter()?;
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
            Swizzle::B128Pieces32 => 4,
        };
        let mut encoded = EncodedMap([0; 128]);
        let steps = [1u32; 5];
        let address = std::ptr::without_provenance_mut(map.address as usize);
        // SAFETY: as many sizes, box sizes and steps as the rank says, which is at most five, and one stride fewer
        // (`check` has seen to it); no interleaving; zeros out of bounds. The address is only encoded.
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
