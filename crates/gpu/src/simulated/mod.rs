//! The backend `sim`: the GPU's kernels, instruction by instruction on the CPU.
//!
//! It runs exactly what `cuda` runs, launch for launch, on a machine that has no GPU, under a schedule that the
//! simulator makes as awkward as the machine's rules allow, and stops at the first race, deadlock or stray access. It
//! is there to test kernels, not to be fast: problems beyond a thousand tile steps are refused.
//!
//! It lives here, beside `cuda`, and not in the command line or the simulator's crate, because all it consists of is
//! the private joint between `launches` and a device. The arrow to the simulator is optional (feature `sim`) and closes
//! no circle: the simulator knows instructions only.

mod layer;
mod machine;

use std::sync::Arc;

use format::{Fp8Matrix, Scaling};
use op::backend::packed_as;
use op::fp8::Segments;
use op::{
    Activation, Activations, Arithmetic, Backend, Choose, Config, Cost, Error, LayerSpec, LoadedLayer, Operands,
    PackedWeights, Problem, Result, Setting, Team, Weights,
};
use ptx::{Feature, Target};
use sim::{Arg, Buffer, Limits, Profile, Rules, Schedule};

use super::expand::TokenForm;
use super::experts::shape::LayerShape;
use super::facts::Facts;
use super::families;
use super::family::Family;
use super::fp8;
use super::launch::{Argument, Launch};
use super::launches::{Site, TokenPlace, bytes_of, launches, workspace_bytes};
use super::operands::DeviceOutput;
use super::packed::{PackedGroup, PackedGroups, PackedMatrix};
use super::plan;

use layer::SimulatedLayer;
pub use machine::SimulatedMachine;

/// The backend's name.
pub const NAME: &str = "sim";
/// Steps of one block over 64 of K that a problem may take.
const MOST_STEPS: usize = 1024;
/// Multiprocessors that the launches are made for: few, so that a block has several tiles also in a small problem.
const MULTIPROCESSORS: u32 = 3;

/// The simulator of a device that runs one family's kernels, under one schedule.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    name: &'static str,
    family: &'static dyn Family,
    /// The name of its weights' layout: not the family's, since those are in a device's memory.
    layout: &'static str,
    schedule: Schedule,
}

impl Simulated {
    /// Hopper's kernels under the schedule that is used where nobody asks for another.
    pub const DEFAULT: Simulated = Simulated {
        name: NAME,
        family: &families::sm90::Sm90,
        layout: "32x64 chunks for the simulator",
        schedule: Schedule::Random(1),
    };

    /// Every family's kernels; the first is what the simulator is where nobody asks for another.
    const FAMILIES: [Simulated; 4] = [
        Simulated::DEFAULT,
        Simulated { name: "sim:sm80", family: &families::sm80::Sm80, ..Simulated::DEFAULT },
        Simulated {
            name: "sim:sm120",
            family: &families::sm120::Sm120,
            layout: "32x64 chunks of plain codes for the simulator",
            ..Simulated::DEFAULT
        },
        Simulated {
            name: "sim:sm100",
            layout: "swizzled slabs for the simulator",
            family: &families::sm100::Sm100,
            ..Simulated::DEFAULT
        },
    ];

    /// A family's kernels by the backend's name: `sim`, or `sim:sm80` and so on, or the architecture's as the assembler
    /// spells it (`sim:sm_90a`, `sim:sm_100a`, `sim:sm_120a`).
    pub fn by_name(name: &str) -> Option<&'static Simulated> {
        static FAMILIES: [Simulated; 4] = Simulated::FAMILIES;
        let called = |family: &dyn Family| {
            name.strip_prefix(NAME).and_then(|rest| rest.strip_prefix(':')).is_some_and(|asked| family.is_called(asked))
        };
        FAMILIES.iter().find(|simulated| simulated.name == name || called(simulated.family))
    }

    /// The same under another schedule.
    pub fn under(self, schedule: Schedule) -> Self {
        Simulated { schedule, ..self }
    }

    /// The kernels.
    pub fn family(&self) -> &'static dyn Family {
        self.family
    }

    /// The device that stands for all that the kernels are for: the one with the least of everything.
    pub fn facts(&self) -> Facts {
        match self.family.target() {
            Target::Sm80 => Facts::a100(),
            Target::Sm120f => Facts::rtx5090(),
            Target::Sm100f => Facts::b200(),
            _ => Facts::h200(),
        }
    }

    fn limits(&self) -> Limits {
        let (facts, clusters) = (self.facts(), self.family.target().has(Feature::Clusters));
        let (shared_bytes, multiprocessors) = (facts.shared_bytes as u32, facts.multiprocessors);
        let h200 = Limits::h200();
        let cluster_blocks = if clusters { h200.cluster_blocks } else { 1 };
        Limits { shared_bytes, multiprocessors, cluster_blocks, ..h200 }
    }

    fn illegal(&self, config: &Config, reason: String) -> Error {
        Error::Illegal { backend: self.name, config: Box::new(*config), reason }
    }
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

/// Launches as the simulator takes them.
fn simulated_launches(launches: &[Launch]) -> Result<Vec<(ptx::Kernel, sim::Invocation)>> {
    let simulated = |launch: &Launch| {
        let args = launch.arguments.iter().map(argument).collect();
        Ok((launch.kernel.build()?, sim::Invocation { grid: launch.grid, args }))
    };
    launches.iter().map(simulated).collect()
}

/// Puts a group's tokens into the simulated memory as they come, as a kernel before the first would have left them
/// there.
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
    let matrices = weights.matrices.iter().map(|matrix| PackedMatrix {
        global: matrix.global,
        lift: matrix.lift,
        memory: gpu.upload("weights", &matrix.memory),
    });
    let matrices = matrices.collect();
    let input_scale = weights.input_scale.as_ref().map(|scale| gpu.upload("factors", scale));
    let biases = weights.biases.iter().map(|bias| gpu.upload("biases", bias)).collect();
    let row_factors = weights.row_factors.as_ref().map(|factors| gpu.upload("factors of rows", factors));
    PackedGroup { bytes: weights.bytes, matrices, input_scale, biases, row_factors }
}

/// A problem's launches, and a device with their operands in its memory, before the first has run.
#[derive(Debug)]
pub struct Staged {
    /// The device.
    pub gpu: sim::Gpu,
    /// The launches, in their order. They run as in a queue: where grids can overlap, each may begin before the one
    /// before it has ended.
    pub launches: Vec<(ptx::Kernel, sim::Invocation)>,
    /// Where each group's result will be.
    pub results: Vec<Buffer>,
    /// What lies between the launches.
    pub workspace: Buffer,
}

// SAFETY: the simulator checks every access of the kernels that it runs.
unsafe impl Backend for Simulated {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        "the GPU's kernels, instruction by instruction in the simulator; for tests and small problems"
    }

    fn layout(&self) -> &'static str {
        self.layout
    }

    fn kernels(&self) -> &'static str {
        crate::KERNELS
    }

    fn available(&self) -> Result<()> {
        Ok(())
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        // The same kernels, so the same parts; but products are added one by one here.
        match self.family.arithmetic(activation) {
            Arithmetic::TensorCores { parts, .. } => Arithmetic::Simulated { parts },
            Arithmetic::BlockScaledTensorCores => Arithmetic::Simulated { parts: 1 },
            other => other,
        }
    }

    fn fp8_arithmetic(&self) -> Arithmetic {
        Arithmetic::Simulated { parts: 1 }
    }

    fn settings(&self) -> &'static [Setting] {
        self.family.settings()
    }

    fn candidates(&self, problem: &Problem, _threads: usize) -> Vec<Config> {
        plan::candidates(self.family, problem, &self.facts())
    }

    fn legal(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<()> {
        plan::legal(self.family, problem, config, &self.facts()).map_err(|reason| self.illegal(config, reason))?;
        let steps = families::computing(self.family, problem).steps(problem, config);
        // Whole layers are looked at once it is known which experts have rows.
        if steps > MOST_STEPS && problem.whole().is_none() {
            let reason = format!(
                "{problem} takes {steps} steps of a tile over 64 of K, and the simulator is for at most {MOST_STEPS}; \
                 make the problem smaller, or compute it with another backend"
            );
            return Err(self.illegal(config, reason));
        }
        Ok(())
    }

    fn check(&self, problem: &Problem, config: &Config, threads: usize) -> Result<Cost> {
        self.legal(problem, config, threads)?;
        let cost =
            plan::cost(self.family, problem, config, &self.facts()).map_err(|reason| self.illegal(config, reason))?;
        // A step takes the simulator about a millisecond, whatever it would take a GPU.
        let seconds = families::computing(self.family, problem).steps(problem, config) as f64 * 1e-3;
        Ok(Cost { seconds, bound_by: "simulating", ..cost })
    }

    fn prepack(&self, weights: &[Weights<'_>], team: &Team) -> Result<Arc<dyn PackedWeights>> {
        Ok(Arc::new(PackedGroups::new(self.layout, (self.family, team), weights, Ok)?))
    }

    fn prepack_fp8(&self, matrix: &Fp8Matrix<'_>, bias: Option<&[f32]>, team: &Team) -> Result<Arc<dyn PackedWeights>> {
        Ok(Arc::new(PackedGroups::of_fp8(self.layout, (matrix, team), bias, Ok)?))
    }

    fn unpack_fp8(&self, packed: &dyn PackedWeights) -> Result<(Fp8Matrix<'static>, Option<Vec<f32>>)> {
        let packed: &PackedGroups<Vec<u8>> = packed_as(packed, NAME, self.layout)?;
        packed.unpacked_fp8(|bytes| Ok(bytes.clone()))
    }

    fn fp8_segments(&self, scaling: Scaling, activation: Activation) -> Segments {
        fp8::segments(scaling, activation)
    }

    fn layer_bytes(&self, layer: &LayerSpec<'_>, brought: bool) -> Option<[usize; 2]> {
        LayerShape::suits(layer).then_some(LayerShape::bytes_of(layer, self.family, brought))
    }

    fn load_layer(
        &self,
        layer: &LayerSpec<'_>,
        choose: Arc<dyn Choose>,
        team: &Team,
    ) -> Result<Option<Arc<dyn LoadedLayer>>> {
        plan::check_layer(self.family, layer)?;
        if !LayerShape::suits(layer) {
            return Ok(None);
        }
        Ok(Some(Arc::new(SimulatedLayer::new(*self, layer, choose, team)?)))
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
        let family = families::computing(self.family, problem);
        self.launch_from(family.expansion(problem.activation()), problem, config, operands)
    }

    /// The same as a queue over a device's memory launches it: dense tokens of any type are multiplied there with the
    /// input scales that the weights have, so that they become the problem's single precision.
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
        let Staged { mut gpu, launches, results, .. } =
            self.stage_from(source, (problem, config), &operands, MULTIPROCESSORS)?;
        let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
        let profiles = gpu.run_sequence(&sequence, self.schedule).map_err(|fault| Error::Fault(fault))?;
        for (result, target) in results.into_iter().zip(operands.targets.iter_mut()) {
            let found = gpu.download(result).map_err(|first| Error::Unwritten { first })?;
            target.bytes_mut().copy_from_slice(found);
        }
        Ok(profiles)
    }

    /// Makes everything ready for a problem's launches on so many multiprocessors, and runs none of them.
    pub fn staged(
        &self,
        chosen: (&Problem, &Config),
        operands: &Operands<'_, '_, '_>,
        multiprocessors: u32,
    ) -> Result<Staged> {
        let family = families::computing(self.family, chosen.0);
        self.stage_from(family.expansion(chosen.0.activation()), chosen, operands, multiprocessors)
    }

    fn stage_from(
        &self,
        source: Option<TokenForm>,
        (problem, config): (&Problem, &Config),
        operands: &Operands<'_, '_, '_>,
        multiprocessors: u32,
    ) -> Result<Staged> {
        let packed: &PackedGroups<Vec<u8>> = packed_as(operands.weights, NAME, self.layout)?;
        let groups = packed.groups();
        let mut gpu = sim::Gpu::new(self.limits()).with_rules(Rules::Letter);
        let (mut tokens, mut weights, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for (group, shape) in problem.groups().iter().enumerate() {
            let (packed, given) = (place_weights(&mut gpu, &groups[group]), &operands.activations[group]);
            let place = place(&mut gpu, given, operands.largest[group]);
            tokens.push(match (source, &packed.input_scale) {
                (Some(TokenForm::Scaled(_)), Some(scale)) => TokenPlace { scales: scale.address, exponent: 0, ..place },
                _ => place,
            });
            weights.push(packed);
            // No better aligned than a caller's need be.
            let (output, n) = (problem.output(), shape.n);
            let beyond = DeviceOutput::alignment(output, n);
            results.push(gpu.alloc_beyond("result", shape.m * n * output.bytes(), beyond));
        }
        let workspace = gpu.alloc("workspace", workspace_bytes(self.family, problem, config));
        let outputs: Vec<u64> = results.iter().map(|buffer| buffer.address).collect();
        let site = Site { family: self.family, workspace: workspace.address, multiprocessors };
        let address = |buffer: &Buffer| buffer.address;
        let launches = launches(site, problem, config, &weights, address, (source, &tokens), &outputs)?;
        let launches = simulated_launches(&launches)?;
        Ok(Staged { gpu, launches, results, workspace })
    }
}
