//! The devices of this process: their contexts, if the kernels can run there, the kernels compiled for them, and
//! weights in their memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use format::{Fp8Matrix, Scaling};
use op::backend::packed_as;
use op::{Error, PackedWeights, Result, Team, Weights};

use crate::driver::{Absent, Context, DeviceInfo, DeviceMemory, Function, Stream, graveyard};
use crate::facts::Facts;
use crate::families::{self, Choice, FAMILY_VARIABLE};
use crate::family::Family;
use crate::launch::KernelSpec;
use crate::packed::{PackedGroup, PackedGroups};
use crate::trial::{self, Tried};

/// The name of the backend that computes there.
pub const NAME: &str = "cuda";

/// A device that our kernels run on.
#[derive(Debug)]
pub struct Device {
    /// Its context.
    pub context: &'static Context,
    /// The kernels for it.
    pub family: &'static dyn Family,
    /// Why those.
    pub choice: Choice,
    /// What it is, and which ways plans go without there.
    pub facts: Facts,
    /// What came of trying kernels that were never measured on such a GPU.
    pub tried: Option<Tried>,
}

impl Device {
    /// A device by its number, or why it cannot be used. Kernels that were never measured on such a GPU are tried
    /// first.
    pub fn of(ordinal: usize) -> Result<&'static Device> {
        type Outcome = Result<&'static Device, Absent>;
        static DEVICES: Mutex<Vec<(usize, Outcome)>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = devices.iter().find(|(known, _)| *known == ordinal).map(|(_, outcome)| outcome.clone());
        let outcome = match known {
            Some(outcome) => outcome,
            None => {
                let device = Device::untried(ordinal)?;
                let tried = if device.choice.measured { Ok(None) } else { device.on_trial().map(Some) };
                // Lives as long as the process, as its context does.
                let outcome = tried.map(|tried| &*Box::leak(Box::new(device.having(tried))));
                devices.push((ordinal, outcome.clone()));
                outcome
            }
        };
        outcome.map_err(unavailable)
    }

    /// A device by its number, whether or not its kernels have been tried.
    pub(super) fn untried(ordinal: usize) -> Result<Device> {
        let opened = Context::of(ordinal).and_then(|context| Ok((context, choice(context.info())?)));
        let (context, choice) = opened.map_err(unavailable)?;
        Ok(Device { context, family: choice.family, choice, facts: Facts::of(context.info()), tried: None })
    }

    fn on_trial(&self) -> Result<Tried, Absent> {
        trial::of_device(self.context, (self.family, &self.facts))
            .map_err(|Absent { reason, remedy }| Absent { reason: format!("its {}: {reason}", self.choice), remedy })
    }

    fn having(self, tried: Option<Tried>) -> Device {
        let left_out = tried.as_ref().map_or_else(Vec::new, |tried| tried.left_out.clone());
        Device { facts: Facts { left_out, ..self.facts }, tried, ..self }
    }
}

fn unavailable(Absent { reason, remedy }: Absent) -> Error {
    Error::Unavailable { backend: NAME, reason, remedy }
}

/// The context of a device, or why there is none.
pub fn context(device: usize) -> Result<&'static Context> {
    Device::of(device).map(|device| device.context)
}

/// The kernels for a device: those that the environment asks for, or the best.
fn choice(info: &DeviceInfo) -> Result<Choice, Absent> {
    let asked = std::env::var(FAMILY_VARIABLE).ok();
    families::choose(info.capability, info.driver, asked.as_deref())
        .map_err(|Absent { reason, remedy }| Absent { reason: format!("the GPU is a {}: {reason}", info.name), remedy })
}

type Functions = HashMap<usize, HashMap<KernelSpec, Arc<Function>>>;

/// Every kernel that was compiled, by device.
fn functions() -> MutexGuard<'static, Functions> {
    static FUNCTIONS: OnceLock<Mutex<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel, if it was compiled already.
pub(super) fn compiled(context: &Context, spec: &KernelSpec) -> Option<Arc<Function>> {
    functions().get(&context.ordinal())?.get(spec).map(Arc::clone)
}

/// A compiled kernel, made at its first use.
pub fn function(context: &'static Context, spec: &KernelSpec) -> Result<Arc<Function>> {
    let mut functions = functions();
    let functions = functions.entry(context.ordinal()).or_default();
    if let Some(function) = functions.get(spec) {
        return Ok(Arc::clone(function));
    }
    let function = Arc::new(Function::new(context, spec.build()?)?);
    functions.insert(spec.clone(), Arc::clone(&function));
    Ok(function)
}

/// The weights of a layer in a device's memory. They may be dropped while work that reads them is queued: that is
/// waited for.
#[derive(Debug)]
pub(super) struct DeviceWeights {
    packed: PackedGroups<DeviceMemory>,
    device: &'static Device,
    readers: Readers,
}

/// The streams in which work was queued that reads some memory: who gives it back waits for them.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<Vec<Weak<Stream>>>);

impl Readers {
    /// Remembers that work in a stream will read it.
    pub(super) fn add(&self, stream: &Arc<Stream>) {
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| reader.strong_count() > 0);
        if !readers.iter().any(|reader| std::ptr::eq(reader.as_ptr(), Arc::as_ptr(stream))) {
            readers.push(Arc::downgrade(stream));
        }
    }

    /// Waits for all of them, and says whether that was possible. A stream that is gone was waited for by its queue.
    pub(super) fn waited_for(&mut self) -> bool {
        let readers = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        readers.iter().filter_map(Weak::upgrade).all(|stream| waited_for(&stream))
    }
}

impl DeviceWeights {
    /// Packs weights on a team's threads, and puts them into a device's memory.
    pub(super) fn new(device: &'static Device, weights: &[Weights<'_>], team: &Team) -> Result<Self> {
        graveyard::sweep();
        let (context, family) = (device.context, device.family);
        let stream = Stream::new(context)?;
        let place = |bytes: Vec<u8>| DeviceMemory::holding(context, "weights", &bytes, &stream);
        let packed = PackedGroups::new(family.layout(), (family, team), weights, place)?;
        Ok(Self { packed, device, readers: Readers::default() })
    }

    /// Packs an FP8 matrix and its bias, and puts them into a device's memory.
    pub(super) fn of_fp8(
        device: &'static Device,
        matrix: &Fp8Matrix<'_>,
        bias: Option<&[f32]>,
        team: &Team,
    ) -> Result<Self> {
        graveyard::sweep();
        let stream = Stream::new(device.context)?;
        let place = |bytes: Vec<u8>| DeviceMemory::holding(device.context, "weights", &bytes, &stream);
        let packed = PackedGroups::of_fp8(device.family.layout(), (matrix, team), bias, place)?;
        Ok(Self { packed, device, readers: Readers::default() })
    }

    /// The FP8 matrix and the bias that [`DeviceWeights::of_fp8`] was given.
    pub(super) fn unpacked_fp8(&self) -> Result<(Fp8Matrix<'static>, Option<Vec<f32>>)> {
        let stream = Stream::new(self.device.context)?;
        self.packed.unpacked_fp8(|memory| {
            let mut bytes = vec![0; memory.bytes()];
            // SAFETY: the copy is waited for before either side goes.
            let read = unsafe { memory.read(0, &mut bytes, &stream) };
            stream.synchronize()?;
            read.map(|()| bytes)
        })
    }

    /// The weights of a layer, if they are in this device's memory.
    pub(super) fn on<'p>(packed: &'p dyn PackedWeights, device: &Device) -> Result<&'p DeviceWeights> {
        let weights: &DeviceWeights = packed_as(packed, NAME, device.family.layout())?;
        let [found, expected] = [weights.device.context.ordinal(), device.context.ordinal()];
        if found != expected {
            let [found, expected] = [found, expected].map(|device| format!("device {device}"));
            return Err(Error::Mismatch { group: 0, what: "the place of the weights", found, expected });
        }
        Ok(weights)
    }

    /// Whether tokens must be multiplied with factors first.
    pub(super) fn are_scaled(&self) -> bool {
        self.packed.are_scaled()
    }

    /// Each group's.
    pub(super) fn groups(&self) -> &[PackedGroup<DeviceMemory>] {
        self.packed.groups()
    }

    /// Remembers that work in a stream will read them.
    pub(super) fn read_by(&self, stream: &Arc<Stream>) {
        self.readers.add(stream);
    }
}

impl Drop for DeviceWeights {
    fn drop(&mut self) {
        if !self.readers.waited_for() {
            graveyard::bury(Box::new(self.packed.take()));
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

    fn scaling(&self) -> Scaling {
        self.packed.scaling()
    }

    fn copied(&self) -> Result<Option<Arc<dyn PackedWeights>>> {
        graveyard::sweep();
        let context = self.device.context;
        let stream = Stream::new(context)?;
        let copy = |from: &DeviceMemory| {
            let to = DeviceMemory::new(context, "weights", from.bytes())?;
            // SAFETY: the copy is waited for, whatever became of it, so that both sides outlive it.
            let queued = unsafe { to.copy_from(from, &stream) };
            let done = stream.synchronize();
            queued.and(done).map(|()| to)
        };
        let packed = self.packed.copied(copy)?;
        Ok(Some(Arc::new(DeviceWeights { packed, device: self.device, readers: Readers::default() })))
    }
}
