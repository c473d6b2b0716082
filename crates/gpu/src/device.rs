//! The devices of this process: their contexts, if the kernels can run there, the kernels compiled for them, and weights in their memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use op::backend::packed_as;
use op::{Error, PackedWeights, Result, Weights};

use super::driver::{Absent, Context, DeviceMemory, Function, Stream, graveyard};
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

/// The weights of a layer in a device's memory. They may be dropped while work that reads them is queued: that is waited for.
#[derive(Debug)]
pub(super) struct DeviceWeights {
    packed: PackedGroups<DeviceMemory>,
    context: &'static Context,
    /// The streams in which work that reads them was queued.
    readers: Mutex<Vec<Weak<Stream>>>,
}

impl DeviceWeights {
    /// Packs weights and puts them into a device's memory.
    pub(super) fn new(context: &'static Context, weights: &[Weights<'_>]) -> Result<Self> {
        graveyard::sweep();
        let stream = Stream::new(context)?;
        let place = |bytes: Vec<u8>| DeviceMemory::holding(context, "weights", &bytes, &stream);
        let packed = PackedGroups::new(LAYOUT, weights, place)?;
        Ok(Self { packed, context, readers: Mutex::default() })
    }

    /// The weights of a layer, if they are in this device's memory.
    pub(super) fn on<'p>(packed: &'p dyn PackedWeights, context: &Context) -> Result<&'p DeviceWeights> {
        let weights: &DeviceWeights = packed_as(packed, NAME, LAYOUT)?;
        let [found, expected] = [weights.context.ordinal(), context.ordinal()];
        if found != expected {
            let [found, expected] = [found, expected].map(|device| format!("device {device}"));
            return Err(Error::Mismatch { group: 0, what: "the place of the weights", found, expected });
        }
        Ok(weights)
    }

    /// Each group's.
    pub(super) fn groups(&self) -> &[PackedGroup<DeviceMemory>] {
        self.packed.groups()
    }

    /// Remembers that work in a stream will read them.
    pub(super) fn read_by(&self, stream: &Arc<Stream>) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| reader.strong_count() > 0);
        if !readers.iter().any(|reader| std::ptr::eq(reader.as_ptr(), Arc::as_ptr(stream))) {
            readers.push(Arc::downgrade(stream));
        }
    }
}

impl Drop for DeviceWeights {
    fn drop(&mut self) {
        let readers = self.readers.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A stream that is gone was waited for by its queue.
        for stream in readers.iter().filter_map(Weak::upgrade) {
            if !waited_for(&stream) {
                graveyard::bury(Box::new(self.packed.take()));
                return;
            }
        }
    }
}

/// Waits until a stream has done what was queued, unless it is being captured, or the driver does not answer.
pub(super) fn waited_for(stream: &Stream) -> bool {
    matches!(stream.capturing(), Ok(None)) && stream.synchronize().is_ok()
}

// SAFETY: what the packed groups say of themselves is true, and nothing is added here.
unsafe impl PackedWeights for DeviceWeights {
    fn layout(&self) -> &'static str {
        self.packed.layout()
    }

    fn shapes(&self) -> &[(usize, usize)] {
        self.packed.shapes()
    }

    fn matrices(&self) -> usize {
        self.packed.matrices()
    }

    fn bytes(&self) -> usize {
        self.packed.bytes()
    }
}
