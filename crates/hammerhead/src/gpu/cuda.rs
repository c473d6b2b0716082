//! The backend `cuda`: Hopper GPUs through NVIDIA's driver.
//!
//! There is one context a device in a process, opened when somebody first asks, and one compiled kernel for each config.
//! Weights go to the device once, in `prepack`. Programs whose tensors are on the device use a [`Queue`]. A run over slices of
//! the host's memory does the same between two copies: tokens to the device, results back. What it works with (a queue and
//! memory for both copies) is kept for the next run; [`release`] gives it back.
//!
//! Copies are plain asynchronous ones: memory of the caller's is not page-locked as a rule, and the driver then moves it through
//! buffers of its own. They take most of such a run's time; who minds keeps tensors on the device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::driver::{Absent, Context, DeviceMemory, Function, Stream};
use super::launches::bytes_of;
use super::pack::PackedGroup;
use super::queue::{DeviceOutput, DeviceTokens, Queue};
use super::{Which, model};
use crate::backend::{Backend, Operands, Packed, Target};
use crate::cpu::Threads;
use crate::{Activation, Activations, Config, Cost, Error, Plan, Problem, Request, Result, Weights};

/// The backend's name.
pub const NAME: &str = "cuda";
/// The name of its weights' layout.
pub const LAYOUT: &str = "32x64 chunks in the GPU's memory";
/// The compute capability that the kernels are built for.
const CAPABILITY: (i32, i32) = (9, 0);
/// Runs over the host's memory that may keep what they worked with.
const KEPT: usize = 4;

/// Hopper GPUs: one of them.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    name: &'static str,
    device: usize,
}

impl Cuda {
    /// The first device.
    pub const FIRST: Cuda = Cuda { name: NAME, device: 0 };

    /// Every device that can be asked for, by number.
    const DEVICES: [Cuda; 8] = {
        let names = [NAME, "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"];
        let mut devices = [Cuda::FIRST; 8];
        let mut device = 0;
        while device < devices.len() {
            devices[device] = Cuda { name: names[device], device };
            device += 1;
        }
        devices
    };

    /// A device by its number.
    pub fn on(device: usize) -> Result<&'static Cuda> {
        static DEVICES: [Cuda; 8] = Cuda::DEVICES;
        DEVICES.get(device).ok_or_else(|| Error::UnknownName {
            what: "device",
            name: device.to_string(),
            known: "0 to 7".to_owned(),
        })
    }

    /// Its number.
    pub fn device(&self) -> usize {
        self.device
    }

    /// A device by its backend's name: `cuda`, or `cuda:1` and so on.
    pub fn by_name(name: &str) -> Option<&'static Cuda> {
        let device = match name.strip_prefix(NAME)? {
            "" => 0,
            rest => rest.strip_prefix(':')?.parse().ok()?,
        };
        Cuda::on(device).ok()
    }
}

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

type Functions = HashMap<(usize, Which), Arc<Function>>;

/// Every kernel that was compiled, by device.
fn functions() -> MutexGuard<'static, Functions> {
    static FUNCTIONS: OnceLock<Mutex<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel, if it was compiled already.
pub(super) fn compiled(context: &Context, which: Which) -> Option<Arc<Function>> {
    functions().get(&(context.ordinal(), which)).map(Arc::clone)
}

/// A compiled kernel, made at its first use.
pub fn function(context: &'static Context, which: Which) -> Result<Arc<Function>> {
    let mut functions = functions();
    if let Some(function) = functions.get(&(context.ordinal(), which)) {
        return Ok(Arc::clone(function));
    }
    let function = Arc::new(Function::new(context, which.build()?)?);
    functions.insert((context.ordinal(), which), Arc::clone(&function));
    Ok(function)
}

/// The weights of a layer, if they are in this device's memory.
pub(super) fn groups<'p>(packed: &'p Packed, context: &Context) -> Result<&'p [PackedGroup<DeviceMemory>]> {
    let Packed::Device(groups) = packed else {
        return Err(Error::Layout { backend: NAME, found: packed.layout(), expected: LAYOUT });
    };
    let memories = groups.iter().flat_map(|group| group.matrices.iter().map(|matrix| &matrix.memory));
    for (group, memory) in memories.enumerate() {
        if memory.context().ordinal() != context.ordinal() {
            let (found, expected) = (memory.context().ordinal(), context.ordinal());
            let [found, expected] = [found, expected].map(|device| format!("device {device}"));
            return Err(Error::Mismatch { group, what: "the place of the weights", found, expected });
        }
    }
    Ok(groups)
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        "Hopper's tensor cores in half precision, through NVIDIA's driver"
    }

    fn layout(&self) -> &'static str {
        LAYOUT
    }

    fn available(&self) -> Result<()> {
        context(self.device).map(|_| ())
    }

    fn candidates(&self, problem: &Problem, _threads: usize) -> Vec<Config> {
        model::candidates(self.name, problem)
    }

    fn check(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<Cost> {
        model::check(self.name, problem, config)
    }

    fn prepack(&self, weights: &[Weights<'_>]) -> Result<Packed> {
        let context = context(self.device)?;
        let stream = Stream::new(context)?;
        let place = |bytes: Vec<u8>| DeviceMemory::holding(context, "weights", &bytes, &stream);
        let groups = weights.iter().map(|weights| PackedGroup::new(weights, place));
        Ok(Packed::Device(groups.collect::<Result<_>>()?))
    }

    fn run(&self, problem: &Problem, config: &Config, operands: Operands<'_, '_, '_>, threads: &Threads) -> Result<()> {
        let mut desk = Desk::take(self.device)?;
        if let Some(widened) = widened(problem, &operands)? {
            let problem = Problem::new(problem.groups().to_vec(), problem.gate(), Activation::F32, problem.output())?;
            let plan = Plan::best(problem, &[Cuda::on(self.device)?], &Request::default(), threads.count())?;
            desk.run(plan.problem(), plan.config(), Operands { activations: &widened, ..operands })?;
        } else {
            desk.run(problem, config, operands)?;
        }
        desk.put_back();
        Ok(())
    }
}

/// bfloat16 tokens go to the tensor cores as they are, and sums over them leave f32's range where the tokens are near its
/// ends. Such tokens, which no model has, are computed as single precision: that is scaled on its way.
fn widened(problem: &Problem, operands: &Operands<'_, '_, '_>) -> Result<Option<Vec<Activations<'static>>>> {
    let common = 2f32.powi(-60)..2f32.powi(60);
    let rare = |largest: &f32| *largest != 0.0 && !common.contains(largest);
    if problem.activation() != Activation::BF16 || !operands.largest.iter().any(rare) {
        return Ok(None);
    }
    let widen = |activations: &Activations<'_>| {
        let (rows, k) = (activations.rows(), activations.k());
        let mut values = vec![0f32; rows * k];
        values.chunks_exact_mut(k).enumerate().for_each(|(row, out)| activations.unscaled_row(row, out));
        Ok(format::Dense::new(rows, k, values, activations.global())?.into())
    };
    operands.activations.iter().map(widen).collect::<Result<_>>().map(Some)
}

/// What a run over the host's memory works with: a queue, and memory for what is copied to and from it.
#[derive(Debug)]
struct Desk {
    device: usize,
    queue: Queue,
    operands: Option<DeviceMemory>,
}

/// What earlier runs worked with.
static DESKS: Mutex<Vec<Desk>> = Mutex::new(Vec::new());

/// Gives back the memory that runs over the host's memory have kept for the next.
pub fn release() {
    DESKS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Where a run's operands lie in the memory for copies.
#[derive(Default)]
struct Places {
    tokens: Vec<[usize; 2]>,
    outputs: Vec<usize>,
    bytes: usize,
}

impl Places {
    /// What every operand begins at a multiple of.
    const ALIGNMENT: usize = 256;

    fn of(problem: &Problem, activations: &[Activations<'_>]) -> Self {
        let mut places = Places::default();
        for (shape, activations) in problem.groups().iter().zip(activations) {
            let [values, scales] = bytes_of(activations).map(|bytes| places.take(bytes.len()));
            places.tokens.push([values, scales]);
            let out = places.take(shape.m * shape.n * problem.output().bytes());
            places.outputs.push(out);
        }
        places
    }

    fn take(&mut self, bytes: usize) -> usize {
        let at = self.bytes;
        self.bytes = (at + bytes).next_multiple_of(Self::ALIGNMENT);
        at
    }
}

fn target_bytes<'a>(target: &'a mut Target<'_>) -> &'a mut [u8] {
    match target {
        Target::F16(c) => bytemuck::cast_slice_mut(c),
        Target::BF16(c) => bytemuck::cast_slice_mut(c),
        Target::F32(c) => bytemuck::cast_slice_mut(c),
    }
}

impl Desk {
    /// One that an earlier run has left, or a new one.
    fn take(device: usize) -> Result<Self> {
        let mut desks = DESKS.lock().unwrap_or_else(PoisonError::into_inner);
        match desks.iter().rposition(|desk| desk.device == device) {
            Some(index) => Ok(desks.swap_remove(index)),
            None => Ok(Desk { device, queue: Queue::new(device)?, operands: None }),
        }
    }

    /// Leaves it for the next run. After an error it is not: whatever state that left behind goes with it.
    fn put_back(self) {
        let mut desks = DESKS.lock().unwrap_or_else(PoisonError::into_inner);
        if desks.len() < KEPT {
            desks.push(self);
        }
    }

    /// Memory for so many bytes of operands.
    fn operands(&mut self, bytes: usize) -> Result<&DeviceMemory> {
        if self.operands.as_ref().is_some_and(|memory| memory.bytes() < bytes) {
            self.operands = None;
        }
        match &mut self.operands {
            Some(memory) => Ok(memory),
            none => Ok(none.insert(DeviceMemory::new(context(self.device)?, "tokens and results", bytes)?)),
        }
    }

    fn run(&mut self, problem: &Problem, config: &Config, operands: Operands<'_, '_, '_>) -> Result<()> {
        let places = Places::of(problem, operands.activations);
        self.operands(places.bytes)?;
        let queued = self.queue_all(problem, config, operands, &places);
        // Also after an error: what was queued before it may still read and write the caller's memory.
        let done = self.queue.stream().synchronize();
        queued.and(done)
    }

    /// Queues the copies and what lies between them.
    fn queue_all(
        &mut self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        places: &Places,
    ) -> Result<()> {
        let Some(memory) = &self.operands else { return Ok(()) };
        let stream = self.queue.stream();
        let (mut tokens, mut outputs) = (Vec::new(), Vec::new());
        for (group, activations) in operands.activations.iter().enumerate() {
            for (bytes, at) in bytes_of(activations).into_iter().zip(places.tokens[group]) {
                // SAFETY: `run` waits for the stream before it gives the operands back.
                unsafe { memory.write(at, bytes, stream) }?;
            }
            let [values, scales] = places.tokens[group].map(|at| memory.address() + at as u64);
            tokens.push(DeviceTokens::of(activations, operands.largest[group], values, scales));
            outputs.push(DeviceOutput::new(problem.output(), memory.address() + places.outputs[group] as u64));
        }
        // SAFETY: operands and weights live until `run` has waited for the stream, and are as large as the problem says.
        unsafe { self.queue.enqueue_planned(operands.weights, problem, config, &tokens, &outputs) }?;
        let stream = self.queue.stream();
        for (target, &at) in operands.targets.iter_mut().zip(&places.outputs) {
            // SAFETY: as above; and nobody looks at the results before that.
            unsafe { memory.read(at, target_bytes(target), stream) }?;
        }
        Ok(())
    }
}

/// Registers per thread and spilled bytes per thread of the kernels of a configuration, as the driver compiled them.
pub fn resources(problem: &Problem, config: &Config) -> Result<Vec<(String, i32, i32)>> {
    let context = context(0)?;
    let kernels = model::kernels(problem, config)?.into_iter().map(|kernel| {
        let function = Function::new(context, kernel)?;
        let (registers, spilled) = function.registers_and_spills()?;
        Ok((function.kernel().name.clone(), registers, spilled))
    });
    kernels.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_asked_for_by_number() {
        let device = |name| Cuda::by_name(name).map(|cuda| (cuda.name(), cuda.device()));
        assert_eq!(device("cuda"), Some(("cuda", 0)));
        assert_eq!(device("cuda:0"), Some(("cuda", 0)));
        assert_eq!(device("cuda:3"), Some(("cuda:3", 3)));
        assert!(["cuda:", "cuda:x", "cuda:99", "cuda3", "cpu"].iter().all(|name| device(name).is_none()));
        assert!(matches!(Cuda::on(99), Err(Error::UnknownName { .. })));
    }

    #[test]
    fn bfloat16_near_the_ends_of_its_range_is_widened_and_other_tokens_are_not() {
        let widens = |value: f32| {
            let tokens = [format::Dense::new(1, 16, vec![half::bf16::from_f32(value); 16], 1.0).unwrap().into()];
            let shapes = vec![crate::Shape::new(1, 1, 16)];
            let problem = Problem::new(shapes, crate::Gate::None, Activation::BF16, crate::Output::F32).unwrap();
            let (weights, largest) = (Packed::Panels(Vec::new()), [value.abs()]);
            let operands = Operands { weights: &weights, activations: &tokens, largest: &largest, targets: &mut [] };
            widened(&problem, &operands).unwrap()
        };
        assert!([0.0, 1.0, -65504.0, 1e-6].iter().all(|&value| widens(value).is_none()));
        for value in [1e38, -1e-38] {
            let widened = widens(value).expect("beyond the common range");
            let mut row = [0f32; 16];
            widened[0].unscaled_row(0, &mut row);
            assert_eq!(row, [half::bf16::from_f32(value).to_f32(); 16]);
        }
    }

    #[test]
    fn operands_of_a_run_lie_apart_and_aligned() {
        let tokens = |rows| {
            let values = vec![half::f16::ONE; rows * 16];
            Activations::from(format::Dense::new(rows, 16, values, 1.0).unwrap())
        };
        let shapes = vec![crate::Shape::new(3, 5, 16), crate::Shape::new(0, 5, 16), crate::Shape::new(1, 7, 16)];
        let (gate, output) = (crate::Gate::Silu, crate::Output::F32);
        let problem = Problem::new(shapes, gate, crate::Activation::F16, output).unwrap();
        let places = Places::of(&problem, &[tokens(3), tokens(0), tokens(1)]);
        assert_eq!(places.tokens, [[0, 256], [512, 512], [512, 768]]);
        assert_eq!(places.outputs, [256, 512, 768]);
        assert_eq!(places.bytes, 1024);
    }
}
