//! The backend `sim`: the GPU's kernels, instruction by instruction on the CPU.
//!
//! It runs exactly what `cuda` runs, launch for launch, on a machine that has no GPU, under a schedule that the simulator
//! makes as awkward as the machine's rules allow, and stops at the first race, deadlock or stray access. It is there to
//! test kernels, not to be fast: problems beyond a thousand tile steps are refused.
//!
//! It lives here, beside `cuda`, and not in the command line or the simulator's crate, because all it consists of is the
//! private joint between `two_pass` and a device. The arrow to the simulator is optional (feature `sim`) and closes no
//! circle: the simulator knows instructions only.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sim::{Arg, Buffer, Limits, Schedule};

use super::two_pass::{Device, How, PackedGroup, PackedMatrix, run};
use super::{Argument, Launch, model};
use crate::backend::{Backend, Operands, Packed};
use crate::cpu::Threads;
use crate::{Config, Cost, Error, Problem, Result, Weights};

/// The backend's name.
pub const NAME: &str = "sim";
/// The name of its weights' layout.
pub const LAYOUT: &str = "64x64 chunks for the simulator";
/// Steps of one block over 64 of K that a problem may take.
const MOST_STEPS: usize = 1024;

/// The simulator, under one schedule.
#[derive(Clone, Copy, Debug)]
pub struct Simulated(pub Schedule);

/// A simulated GPU with the memory of one run.
struct Gpu {
    machine: Mutex<sim::Gpu>,
    schedule: Schedule,
}

impl Gpu {
    fn machine(&self) -> MutexGuard<'_, sim::Gpu> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Gpu {
    type Memory = Buffer;

    fn allocate(&self, what: &'static str, bytes: usize) -> Result<Buffer> {
        Ok(self.machine().alloc(what, bytes))
    }

    fn upload(&self, what: &'static str, bytes: &[u8]) -> Result<Buffer> {
        Ok(self.machine().upload(what, bytes))
    }

    fn address(memory: &Buffer) -> u64 {
        memory.address
    }

    fn launch(&self, launch: &Launch) -> Result<()> {
        let args = launch.arguments.iter().map(|argument| match argument {
            Argument::Pointer(address) => Arg::Pointer(*address),
            Argument::U32(value) => Arg::U32(*value),
            Argument::U64(value) => Arg::U64(*value),
            Argument::F32(value) => Arg::F32(*value),
            Argument::Map(map) => Arg::Map(map.clone()),
        });
        let sim_launch = sim::Launch { grid: launch.grid, args: args.collect() };
        self.machine().run(&launch.which.build()?, &sim_launch, self.schedule)?;
        Ok(())
    }

    fn download(&self, memory: &Buffer, bytes: &mut [u8]) -> Result<()> {
        let machine = self.machine();
        let found = machine.download(*memory).map_err(|first| Error::Unwritten { first })?;
        bytes.copy_from_slice(found);
        Ok(())
    }
}

impl Backend for Simulated {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the GPU's kernels, instruction by instruction in the simulator; for tests and small problems"
    }

    fn layout(&self) -> &'static str {
        LAYOUT
    }

    fn available(&self) -> Result<()> {
        Ok(())
    }

    fn candidates(&self, problem: &Problem, _threads: usize) -> Vec<Config> {
        model::candidates(NAME, problem)
    }

    fn check(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<Cost> {
        let cost = model::check(NAME, problem, config)?;
        let steps = model::tile_steps(problem, config);
        if steps > MOST_STEPS {
            let reason = format!(
                "{problem} takes {steps} steps of a tile over 64 of K, and the simulator is for at most {MOST_STEPS}; \
                 make the problem smaller, or compute it with another backend"
            );
            return Err(Error::Illegal { backend: NAME, config: *config, reason });
        }
        // A step takes the simulator about a millisecond, whatever it would take a GPU.
        Ok(Cost { seconds: steps as f64 * 1e-3, bound_by: "simulating", ..cost })
    }

    fn prepack(&self, weights: &[Weights<'_>]) -> Result<Packed> {
        Ok(Packed::Simulated(weights.iter().map(|weights| PackedGroup::new(weights, Ok)).collect::<Result<_>>()?))
    }

    fn run(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        _threads: &Threads,
    ) -> Result<()> {
        let Packed::Simulated(groups) = operands.weights else {
            return Err(Error::Layout { backend: NAME, found: operands.weights.layout(), expected: LAYOUT });
        };
        let illegal = |reason| Error::Illegal { backend: NAME, config: *config, reason };
        let multiply = model::multiply_config(config).map_err(illegal)?;
        let how = How { gate: problem.gate(), output: problem.output(), multiply };
        let groups = groups.iter().zip(operands.activations).zip(operands.largest);
        for (((weights, activations), &largest), target) in groups.zip(operands.targets.iter_mut()) {
            let gpu = Gpu { machine: Mutex::new(sim::Gpu::new(Limits::h200())), schedule: self.0 };
            let uploaded = PackedGroup { n: weights.n, k: weights.k, matrices: upload(&gpu, &weights.matrices)? };
            run(&gpu, &how, &uploaded, activations, largest, target)?;
        }
        Ok(())
    }
}

fn upload(gpu: &Gpu, matrices: &[PackedMatrix<Vec<u8>>]) -> Result<Vec<PackedMatrix<Buffer>>> {
    let each = |matrix: &PackedMatrix<Vec<u8>>| {
        Ok(PackedMatrix { global: matrix.global, memory: gpu.upload("weights", &matrix.memory)? })
    };
    matrices.iter().map(each).collect()
}
