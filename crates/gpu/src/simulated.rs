//! The backend `sim`: the GPU's kernels, instruction by instruction on the CPU.
//!
//! It runs exactly what `cuda` runs, launch for launch, on a machine that has no GPU, under a schedule that the simulator
//! makes as awkward as the machine's rules allow, and stops at the first race, deadlock or stray access. It is there to
//! test kernels, not to be fast: problems beyond a thousand tile steps are refused.
//!
//! It lives here, beside `cuda`, and not in the command line or the simulator's crate, because all it consists of is the
//! private joint between `launches` and a device. The arrow to the simulator is optional (feature `sim`) and closes no
//! circle: the simulator knows instructions only.

use std::sync::Arc;

use op::backend::packed_as;
use op::{
    Activation, Activations, Arithmetic, Backend, Config, Cost, Error, Operands, PackedWeights, Problem, Result, Team,
    Weights,
};
use sim::{Arg, Buffer, Limits, Profile, Rules, Schedule};

use super::expand::TokenForm;
use super::facts::Facts;
use super::families;
use super::family::Family;
use super::launch::{Argument, Launch};
use super::launches::{Site, TokenPlace, bytes_of, launches, workspace_bytes};
use super::packed::{PackedGroup, PackedGroups, PackedMatrix};

/// The backend's name.
pub const NAME: &str = "sim";
/// The name of its weights' layout.
pub const LAYOUT: &str = "32x64 chunks for the simulator";
/// Steps of one block over 64 of K that a problem may take.
const MOST_STEPS: usize = 1024;
/// Multiprocessors that the launches are made for: few, so that a block has several tiles also in a small problem.
const MULTIPROCESSORS: u32 = 3;

/// The kernels that it runs.
const FAMILY: &dyn Family = families::ALL[0];

/// The simulator, under one schedule.
#[derive(Clone, Copy, Debug)]
pub struct Simulated(pub Schedule);

impl Simulated {
    /// The simulator under the schedule that is used where nobody asks for another.
    pub const DEFAULT: Simulated = Simulated(Schedule::Random(1));
}

fn illegal(config: &Config, reason: String) -> Error {
    Error::Illegal { backend: NAME, config: *config, reason }
}

/// An argument as the simulator takes it.
fn argument(argument: &Argument) -> Arg {
    match argument {
        Argument::Pointer(address) => Arg::Pointer(*address),
        Argument::U32(value) => Arg::U32(*value),
        Argument::U64(value) => Arg::U64(*value),
        Argument::F32(value) => Arg::F32(*value),
        Argument::Map(map) => Arg::Map(map.clone()),
        Argument::Maps(maps) => Arg::Maps(maps.clone()),
        Argument::Words(words) => Arg::Words(words.clone()),
    }
}

/// Puts a group's tokens into the simulated memory as they come, as a kernel before the first would have left them there.
fn place(gpu: &mut sim::Gpu, activations: &Activations<'_>, largest: f32) -> TokenPlace {
    let [values, scales] = bytes_of(activations).map(|bytes| {
        let buffer = gpu.upload("tokens", bytes);
        gpu.await_predecessor(buffer);
        buffer.address
    });
    TokenPlace::of(activations, largest, values, scales)
}

/// Puts a group's weights there.
fn place_weights(gpu: &mut sim::Gpu, weights: &PackedGroup<Vec<u8>>) -> PackedGroup<Buffer> {
    let matrices = weights
        .matrices
        .iter()
        .map(|matrix| PackedMatrix { global: matrix.global, memory: gpu.upload("weights", &matrix.memory) });
    let matrices = matrices.collect();
    let input_scale = weights.input_scale.as_ref().map(|scale| gpu.upload("factors", scale));
    PackedGroup { bytes: weights.bytes, matrices, input_scale }
}

/// Runs launches as a queue does: each may begin before the one before it has ended.
fn run_launches(gpu: &mut sim::Gpu, launches: &[Launch], schedule: Schedule) -> Result<Vec<Profile>> {
    let simulated = |launch: &Launch| {
        let args = launch.arguments.iter().map(argument).collect();
        Ok((launch.kernel.build()?, sim::Invocation { grid: launch.grid, args }))
    };
    let launches: Vec<_> = launches.iter().map(simulated).collect::<Result<_>>()?;
    let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
    gpu.run_sequence(&sequence, schedule).map_err(|fault| Error::Fault(fault))
}

// SAFETY: the simulator checks every access of the kernels that it runs.
unsafe impl Backend for Simulated {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the GPU's kernels, instruction by instruction in the simulator; for tests and small problems"
    }

    fn layout(&self) -> &'static str {
        LAYOUT
    }

    fn kernels(&self) -> &'static str {
        crate::KERNELS
    }

    fn available(&self) -> Result<()> {
        Ok(())
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        // The same kernels, so the same parts; but products are added one by one here.
        match FAMILY.arithmetic(activation) {
            Arithmetic::TensorCores { parts, .. } => Arithmetic::Simulated { parts },
            other => other,
        }
    }

    fn candidates(&self, problem: &Problem, _threads: usize) -> Vec<Config> {
        FAMILY.candidates(problem, &Facts::h200())
    }

    fn legal(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<()> {
        FAMILY.legal(problem, config).map_err(|reason| illegal(config, reason))?;
        let steps = FAMILY.steps(problem, config);
        if steps > MOST_STEPS {
            let reason = format!(
                "{problem} takes {steps} steps of a tile over 64 of K, and the simulator is for at most {MOST_STEPS}; \
                 make the problem smaller, or compute it with another backend"
            );
            return Err(illegal(config, reason));
        }
        Ok(())
    }

    fn check(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Cost> {
        self.legal(problem, config, threads)?;
        let cost = FAMILY.cost(problem, config, &Facts::h200()).map_err(|reason| illegal(config, reason))?;
        // A step takes the simulator about a millisecond, whatever it would take a GPU.
        let seconds = FAMILY.steps(problem, config) as f64 * 1e-3;
        Ok(Cost { seconds, bound_by: "simulating", ..cost })
    }

    fn prepack(&self, weights: &[Weights<'_>]) -> Result<Arc<dyn PackedWeights>> {
        Ok(Arc::new(PackedGroups::new(LAYOUT, FAMILY, weights, Ok)?))
    }

    unsafe fn run(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        _team: &Team,
    ) -> Result<()> {
        self.launch_all(problem, config, operands).map(drop)
    }
}

impl Simulated {
    /// Runs every launch of a problem, and says what each of them did.
    pub fn launch_all(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
    ) -> Result<Vec<Profile>> {
        self.launch_from(TokenForm::of(problem.activation()), problem, config, operands)
    }

    /// The same as a queue over a device's memory launches it: dense tokens of any type are multiplied there with the input scales
    /// that the weights have, so that they become the problem's single precision.
    pub fn launch_multiplying(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
    ) -> Result<Vec<Profile>> {
        let source = operands.activations.first().and_then(|tokens| TokenForm::scaled(tokens.element()));
        self.launch_from(source, problem, config, operands)
    }

    fn launch_from(
        &self,
        source: Option<TokenForm>,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
    ) -> Result<Vec<Profile>> {
        let packed: &PackedGroups<Vec<u8>> = packed_as(operands.weights, NAME, LAYOUT)?;
        let groups = packed.groups();
        let mut gpu = sim::Gpu::new(Limits::h200()).with_rules(Rules::Letter);
        let (mut tokens, mut weights, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for (group, shape) in problem.groups().iter().enumerate() {
            let (packed, given) = (place_weights(&mut gpu, &groups[group]), &operands.activations[group]);
            let place = place(&mut gpu, given, operands.largest[group]);
            tokens.push(match (source, &packed.input_scale) {
                (Some(TokenForm::Scaled(_)), Some(scale)) => TokenPlace { scales: scale.address, exponent: 0, ..place },
                _ => place,
            });
            weights.push(packed);
            results.push(gpu.alloc("result", shape.m * shape.n * problem.output().bytes()));
        }
        let workspace = gpu.alloc("workspace", workspace_bytes(FAMILY, problem, config));
        let outputs: Vec<u64> = results.iter().map(|buffer| buffer.address).collect();
        let site = Site { family: FAMILY, workspace: workspace.address, multiprocessors: MULTIPROCESSORS };
        let address = |buffer: &Buffer| buffer.address;
        let launches = launches(site, problem, config, &weights, address, (source, &tokens), &outputs)?;
        let profiles = run_launches(&mut gpu, &launches, self.0)?;
        for (result, target) in results.into_iter().zip(operands.targets.iter_mut()) {
            let found = gpu.download(result).map_err(|first| Error::Unwritten { first })?;
            target.bytes_mut().copy_from_slice(found);
        }
        Ok(profiles)
    }
}
