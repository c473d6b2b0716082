//! The devices of this process: their contexts, if the kernels can run there, and the kernels compiled for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use op::backend::packed_as;
use op::{Error, PackedWeights, Result};

use super::driver::{Absent, Context, DeviceMemory, Function};
use super::launch::KernelSpec;
use super::pack::{PackedGroup, PackedGroups};

/// The name of the backend that computes there.
pub const NAME: &str = "cuda";
/// The name of its weights' layout.
pub const LAYOUT: &str = "32x64 chunks in the GPU's memory";
/// The compute capability that the kernels are built for.
const CAPABILITY: (i32, i32) = (9, 0);

/// The context of a device, or why there is none.
pub fn context(device: usize) -> Result<&'static Context> {
    Context::of(device).and_then(check_capability).map_err(|Absent { reason, remedy }| Error::Unavailable {
        backend: NAME,
        reason,
        remedy,
    })
}

/// The kernels use instructions that only this generation has.
fn check_capability(context: &'static Context) -> Result<&'static Context, Absent> {
    let info = context.info();
    let ((major, minor), name) = (info.capability, info.name.as_str());
    if info.capability == CAPABILITY {
        return Ok(context);
    }
    Err(Absent {
        reason: format!("the GPU is a {name} of compute capability {major}.{minor}, and the kernels are for 9.0"),
        remedy: "use a Hopper GPU (H100, H200, GH200), or a CPU backend".to_owned(),
    })
}

type Functions = HashMap<(usize, KernelSpec), Arc<Function>>;

/// Every kernel that was compiled, by device.
fn functions() -> MutexGuard<'static, Functions> {
    static FUNCTIONS: OnceLock<Mutex<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel, if it was compiled already.
pub(super) fn compiled(context: &Context, spec: KernelSpec) -> Option<Arc<Function>> {
    functions().get(&(context.ordinal(), spec)).map(Arc::clone)
}

/// A compiled kernel, made at its first use.
pub fn function(context: &'static Context, spec: KernelSpec) -> Result<Arc<Function>> {
    let mut functions = functions();
    if let Some(function) = functions.get(&(context.ordinal(), spec)) {
        return Ok(Arc::clone(function));
    }
    let function = Arc::new(Function::new(context, spec.build()?)?);
    functions.insert((context.ordinal(), spec), Arc::clone(&function));
    Ok(function)
}

impl PackedGroups<DeviceMemory> {
    /// The weights of a layer, if they are in this device's memory.
    pub(super) fn on<'p>(packed: &'p dyn PackedWeights, context: &Context) -> Result<&'p [PackedGroup<DeviceMemory>]> {
        let packed: &PackedGroups<DeviceMemory> = packed_as(packed, NAME, LAYOUT)?;
        let memories = packed.groups().iter().flat_map(|group| group.matrices.iter().map(|matrix| &matrix.memory));
        for (group, memory) in memories.enumerate() {
            if memory.context().ordinal() != context.ordinal() {
                let (found, expected) = (memory.context().ordinal(), context.ordinal());
                let [found, expected] = [found, expected].map(|device| format!("device {device}"));
                return Err(Error::Mismatch { group, what: "the place of the weights", found, expected });
            }
        }
        Ok(packed.groups())
    }
}
