//! The backend `cuda`: Hopper GPUs through NVIDIA's driver.
//!
//! There is one context in a process, opened when somebody first asks, and one compiled kernel for each config. Weights go
//! to the device once, in `prepack`. A run copies tokens there, launches, and copies results back: its time on the host
//! is mostly those copies. [`time`] leaves them out and measures with the device's own clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::driver::{Absent, Context, DeviceMemory, Event, Function, Stream};
use super::two_pass::{Device, How, PackedGroup, prepare, run};
use super::{Launch, Which, model};
use crate::backend::{Backend, Operands, Packed};
use crate::cpu::Threads;
use crate::{Activations, Config, Cost, Error, Problem, Result, Weights, operands};

/// The backend's name.
pub const NAME: &str = "cuda";
/// The name of its weights' layout.
pub const LAYOUT: &str = "64x64 chunks in the GPU's memory";
/// The compute capability that the kernels are built for.
const CAPABILITY: (i32, i32) = (9, 0);

/// Hopper GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Cuda;

/// The process's context, or why there is none.
pub fn context() -> Result<&'static Context> {
    static CONTEXT: OnceLock<Result<Context, Absent>> = OnceLock::new();
    CONTEXT.get_or_init(|| Context::open().and_then(check_capability)).as_ref().map_err(|absent| {
        let Absent { reason, remedy } = absent.clone();
        Error::Unavailable { backend: NAME, reason, remedy }
    })
}

/// The kernels use instructions that only this generation has.
fn check_capability(context: Context) -> Result<Context, Absent> {
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

/// The compiled kernel, made at its first use.
fn function(context: &'static Context, which: Which) -> Result<Arc<Function<'static>>> {
    static FUNCTIONS: OnceLock<Mutex<HashMap<Which, Arc<Function<'static>>>>> = OnceLock::new();
    let mut functions = FUNCTIONS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = functions.get(&which) {
        return Ok(Arc::clone(function));
    }
    let function = Arc::new(Function::new(context, which.build()?)?);
    functions.insert(which, Arc::clone(&function));
    Ok(function)
}

/// The GPU with a queue for one run.
struct Gpu {
    context: &'static Context,
    stream: Stream<'static>,
}

impl Gpu {
    fn new() -> Result<Self> {
        let context = context()?;
        Ok(Gpu { context, stream: Stream::new(context)? })
    }
}

impl Device for Gpu {
    type Memory = DeviceMemory<'static>;

    fn allocate(&self, _what: &'static str, bytes: usize) -> Result<Self::Memory> {
        DeviceMemory::new(self.context, bytes)
    }

    fn upload(&self, _what: &'static str, bytes: &[u8]) -> Result<Self::Memory> {
        let mut memory = DeviceMemory::new(self.context, bytes.len())?;
        memory.write(bytes, &self.stream)?;
        Ok(memory)
    }

    fn address(memory: &Self::Memory) -> u64 {
        memory.address()
    }

    fn launch(&self, launch: &Launch) -> Result<()> {
        let function = function(self.context, launch.which)?;
        // SAFETY: `two_pass` made the memory for these sizes and keeps it until it has downloaded the result, for which it
        // waits; memory is freed by a call that waits for the device.
        unsafe { function.launch(launch.grid, &launch.arguments, &self.stream) }
    }

    fn download(&self, memory: &Self::Memory, bytes: &mut [u8]) -> Result<()> {
        memory.read(bytes, &self.stream)
    }
}

fn how(problem: &Problem, config: &Config) -> Result<How> {
    let illegal = |reason| Error::Illegal { backend: NAME, config: *config, reason };
    let multiply = model::multiply_config(config).map_err(illegal)?;
    Ok(How { gate: problem.gate(), output: problem.output(), multiply })
}

fn groups(packed: &Packed) -> Result<&[PackedGroup<DeviceMemory<'static>>]> {
    match packed {
        Packed::Device(groups) => Ok(groups),
        other => Err(Error::Layout { backend: NAME, found: other.layout(), expected: LAYOUT }),
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "Hopper's tensor cores in half precision, through NVIDIA's driver; two passes and a join"
    }

    fn layout(&self) -> &'static str {
        LAYOUT
    }

    fn available(&self) -> Result<()> {
        context().map(|_| ())
    }

    fn candidates(&self, problem: &Problem, _threads: usize) -> Vec<Config> {
        model::candidates(NAME, problem)
    }

    fn check(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<Cost> {
        model::check(NAME, problem, config)
    }

    fn prepack(&self, weights: &[Weights<'_>]) -> Result<Packed> {
        let gpu = Gpu::new()?;
        let group = |weights| PackedGroup::new(weights, |bytes| gpu.upload("weights", &bytes));
        Ok(Packed::Device(weights.iter().map(group).collect::<Result<_>>()?))
    }

    fn run(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        _threads: &Threads,
    ) -> Result<()> {
        let (gpu, how) = (Gpu::new()?, how(problem, config)?);
        let groups = groups(operands.weights)?.iter().zip(operands.activations).zip(operands.largest);
        for (((weights, activations), &largest), target) in groups.zip(operands.targets.iter_mut()) {
            run(&gpu, &how, weights, activations, largest, target)?;
        }
        Ok(())
    }
}

/// Seconds on the device that one computation takes, without copies to and from the host: one number for each of
/// `batches`, each the mean over `repeats` computations between two events.
///
/// Several layers of the same shapes take turns, so that weights come from memory and not from a cache that a layer alone
/// would fit into.
pub fn time(
    problem: &Problem,
    config: &Config,
    layers: &[Packed],
    activations: &[Activations<'_>],
    [batches, repeats]: [usize; 2],
) -> Result<Vec<f64>> {
    let (gpu, how, largest) = (Gpu::new()?, how(problem, config)?, operands::largest_of(activations)?);
    let mut prepared = Vec::new();
    for layer in layers {
        let mut launches = Vec::new();
        for ((weights, activations), &largest) in groups(layer)?.iter().zip(activations).zip(&largest) {
            launches.extend(prepare(&gpu, &how, weights, activations, largest)?);
        }
        prepared.push(launches);
    }
    let mut turns = prepared.iter().cycle();
    let mut compute = |times: usize| -> Result<()> {
        for groups in turns.by_ref().take(times) {
            groups.iter().flat_map(|group| &group.launches).try_for_each(|launch| gpu.launch(launch))?;
        }
        Ok(())
    };
    compute(repeats.max(layers.len()))?;
    let mut seconds = Vec::with_capacity(batches);
    for _ in 0..batches {
        let start = Event::record(gpu.context, &gpu.stream)?;
        compute(repeats)?;
        let end = Event::record(gpu.context, &gpu.stream)?;
        seconds.push(start.seconds_until(&end)? / repeats as f64);
    }
    Ok(seconds)
}

/// Registers per thread and spilled bytes per thread of the kernels of a configuration, as the driver compiled them.
pub fn resources(problem: &Problem, config: &Config) -> Result<Vec<(String, i32, i32)>> {
    let (context, how) = (context()?, how(problem, config)?);
    let join = super::join::Config::new(how.gate, how.output);
    let each = [Which::Multiply(how.multiply), Which::Join(join)].map(|which| {
        let function = function(context, which)?;
        let (registers, spilled) = function.registers_and_spills()?;
        Ok((function.kernel().name.clone(), registers, spilled))
    });
    each.into_iter().collect()
}
