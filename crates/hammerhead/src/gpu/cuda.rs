//! The backend `cuda`: Hopper GPUs through NVIDIA's driver.
//!
//! There is one context in a process, opened when somebody first asks, and one compiled kernel for each config. Weights go
//! to the device once, in `prepack`. A run copies tokens there, launches, and copies results back: its time on the host
//! is mostly those copies. [`time`] leaves them out and measures with the device's own clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::driver::{Absent, Context, DeviceMemory, Event, Function, Stream};
use super::multiply::{GroupOperands, launches, workspace_bytes};
use super::pack::PackedGroup;
use super::{Launch, Which, model, tokens};
use crate::backend::{Backend, Operands, Packed, Target};
use crate::cpu::Threads;
use crate::{Activations, Config, Cost, Error, Problem, Result, Weights};

/// The backend's name.
pub const NAME: &str = "cuda";
/// The name of its weights' layout.
pub const LAYOUT: &str = "32x64 chunks in the GPU's memory";
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

impl Gpu {
    fn upload(&self, bytes: &[u8]) -> Result<DeviceMemory<'static>> {
        let mut memory = DeviceMemory::new(self.context, bytes.len())?;
        memory.write(bytes, &self.stream)?;
        Ok(memory)
    }

    fn launch(&self, launch: &Launch) -> Result<()> {
        let function = function(self.context, launch.which)?;
        // SAFETY: `prepare` made the memory for these sizes and its owner keeps it until the launches are done; memory is
        // freed by a call that waits for the device.
        unsafe { function.launch(launch.grid, &launch.arguments, launch.overlapping, &self.stream) }
    }
}

/// A problem ready to be computed: its operands are on the device, its launches are known.
struct Prepared {
    launches: Vec<Launch>,
    results: Vec<DeviceMemory<'static>>,
    /// Memory that the launches use.
    _used: Vec<DeviceMemory<'static>>,
}

/// Brings tokens to the device and plans the launches.
fn prepare(
    gpu: &Gpu,
    problem: &Problem,
    config: &Config,
    weights: &[PackedGroup<DeviceMemory<'static>>],
    activations: &[Activations<'_>],
) -> Result<Prepared> {
    let (mut operands, mut results, mut used) = (Vec::new(), Vec::new(), Vec::new());
    for (weights, activations) in weights.iter().zip(activations) {
        let (m, global) = (activations.rows(), f64::from(activations.global()));
        let tokens = gpu.upload(&tokens::expand(activations))?;
        let out = DeviceMemory::new(gpu.context, m * weights.n * problem.output().bytes())?;
        let (addresses, globals) = weights.both(DeviceMemory::address);
        operands.push(GroupOperands {
            weights: addresses,
            tokens: tokens.address(),
            part_bytes: (2 * m * weights.k) as u64,
            out: out.address(),
            alphas: globals.map(|matrix| matrix * global),
        });
        results.push(out);
        used.push(tokens);
    }
    let workspace = DeviceMemory::new(gpu.context, workspace_bytes(problem, config))?;
    let multiprocessors = gpu.context.info().multiprocessors;
    let launches = launches(problem, config, &operands, workspace.address(), multiprocessors)?;
    used.push(workspace);
    Ok(Prepared { launches, results, _used: used })
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
        "Hopper's tensor cores in half precision, through NVIDIA's driver"
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
        let group = |weights| PackedGroup::new(weights, |bytes| gpu.upload(&bytes));
        Ok(Packed::Device(weights.iter().map(group).collect::<Result<_>>()?))
    }

    fn run(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        _threads: &Threads,
    ) -> Result<()> {
        let gpu = Gpu::new()?;
        let prepared = prepare(&gpu, problem, config, groups(operands.weights)?, operands.activations)?;
        prepared.launches.iter().try_for_each(|launch| gpu.launch(launch))?;
        for (result, target) in prepared.results.iter().zip(operands.targets.iter_mut()) {
            let bytes = match target {
                Target::F16(c) => bytemuck::cast_slice_mut(c),
                Target::BF16(c) => bytemuck::cast_slice_mut(c),
                Target::F32(c) => bytemuck::cast_slice_mut(c),
            };
            result.read(bytes, &gpu.stream)?;
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
    let gpu = Gpu::new()?;
    let prepared = layers.iter().map(|layer| prepare(&gpu, problem, config, groups(layer)?, activations));
    let prepared = prepared.collect::<Result<Vec<_>>>()?;
    let mut turns = prepared.iter().cycle();
    let mut compute = |times: usize| -> Result<()> {
        for prepared in turns.by_ref().take(times) {
            prepared.launches.iter().try_for_each(|launch| gpu.launch(launch))?;
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
    let context = context()?;
    let function = function(context, Which::Multiply(model::kernel_config(problem, config)?))?;
    let (registers, spilled) = function.registers_and_spills()?;
    Ok(vec![(function.kernel().name.clone(), registers, spilled)])
}
