//! The backend `cuda`: GPUs since Ampere through NVIDIA's driver, with the kernels of the best family for each.
//!
//! Weights go to the device once, in `prepack`. Programs whose tensors are on the device use a queue. A run over slices
//! of the host's memory does the same between two copies: tokens to the device, results back. What it works with (a
//! queue and memory for both copies) is kept for the next run on the same team, and goes with it.
//!
//! Copies are plain asynchronous ones: memory of the caller's is not page-locked as a rule, and the driver then moves
//! it through buffers of its own. They take most of such a run's time; who minds keeps tensors on the device.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use format::{Fp8Matrix, Scaling};
use op::fp8::Segments;
use op::{
    Activation, Activations, Arithmetic, Backend, Choose, Config, Cost, Error, LayerSpec, LoadedLayer, Operands,
    PackedWeights, Problem, Result, Setting, Team, Weights,
};

use super::device::{Device, DeviceWeights, NAME, context};
use super::driver::{Absent, DeviceInfo, DeviceMemory, Function};
use super::experts::shape::LayerShape;
use super::facts::Facts;
use super::families::{self, Choice};
use super::family::Family;
use super::fp8;
use super::host::HostExperts;
use super::launches::bytes_of;
use super::operands::{DeviceOutput, DeviceTokens};
use super::plan;
use super::queue::LaunchQueue;
use super::trial::{self, Trial, Tried};

/// Runs over the host's memory that may keep what they worked with.
const KEPT: usize = 4;

/// NVIDIA's GPUs: one of them.
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

    /// The kernels for it; where it is not there, those that a plan is made with all the same.
    pub fn family(&self) -> &'static dyn Family {
        Device::of(self.device).map_or(&families::sm90::Sm90, |device| device.family)
    }

    /// Which kernels it is given, and why, in words; none where it is not there.
    pub fn choice(&self) -> Option<String> {
        let device = Device::of(self.device).ok()?;
        let choice = device.choice.to_string();
        Some(device.tried.as_ref().map_or(choice.clone(), |tried| format!("{choice}; {tried}")))
    }

    /// What came of trying kernels that were never measured on such a GPU; none where they were, or where there is no
    /// GPU.
    pub fn tried(&self) -> Option<&'static Tried> {
        Device::of(self.device).ok().and_then(|device| device.tried.as_ref())
    }

    /// What the device says of itself, and which kernels it is given, tried or not.
    pub fn described(&self) -> Result<(&'static DeviceInfo, Choice)> {
        let Device { context, choice, .. } = Device::untried(self.device)?;
        Ok((context.info(), choice))
    }

    /// Tries every way of computing on this device now, whatever is known of it, each for no longer than a limit. Says
    /// of each that it is tried, and then what became of it. What came of all is kept, and serves the processes that
    /// begin after this one.
    pub fn try_every_way(
        &self,
        limit: Duration,
        told: impl FnMut(&Trial, Option<&Result<(), String>>),
    ) -> Result<Tried> {
        let Device { context, family, facts, .. } = Device::untried(self.device)?;
        let tried = trial::tried_now(context, (family, &facts), limit, told);
        tried.map_err(|Absent { reason, remedy }| Error::Unavailable { backend: NAME, reason, remedy })
    }

    /// Tries ways of computing on this device for another process, one per line that it writes to this one's standard
    /// input, and answers each with a line. A process that does this does nothing else: it ends soon after the other.
    pub fn serve_trials(&self, mut answers: impl Write) -> io::Result<()> {
        match Device::untried(self.device) {
            Ok(Device { context, family, facts, .. }) => trial::serve_device(context, (family, &facts), answers),
            Err(error) => writeln!(answers, "{}", error.to_string().replace('\n', " ")),
        }
    }

    /// What it is; where it is not there, an H200, so that kernels can be planned, printed and simulated anywhere.
    fn facts(&self) -> Cow<'static, Facts> {
        match Device::of(self.device) {
            Ok(device) => Cow::Borrowed(&device.facts),
            Err(_) => Cow::Owned(Facts::h200()),
        }
    }

    fn illegal(&self, config: &Config, reason: String) -> Error {
        Error::Illegal { backend: self.name, config: Box::new(*config), reason }
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

// SAFETY: `available` asks for a device whose architecture the kernels are built for, and `legal` is what the kernels
// and their 32-bit sizes were written for: launches of such a configuration stay inside operands of the problem's
// shapes.
unsafe impl Backend for Cuda {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        "a GPU's tensor cores in half precision, through NVIDIA's driver"
    }

    fn layout(&self) -> &'static str {
        self.family().layout()
    }

    fn device_model(&self) -> &str {
        context(self.device).map_or("", |context| &context.info().name)
    }

    fn kernels(&self) -> &'static str {
        crate::KERNELS
    }

    fn available(&self) -> Result<()> {
        Device::of(self.device).map(drop)
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        self.family().arithmetic(activation)
    }

    fn layer_arithmetic(&self, activation: Activation) -> Arithmetic {
        // Codes times scales, exact in f16.
        self.arithmetic(if activation == Activation::NvFp4 { Activation::F16 } else { activation })
    }

    fn settings(&self) -> &'static [Setting] {
        self.family().settings()
    }

    fn candidates(&self, problem: &Problem, _threads: usize) -> Vec<Config> {
        let (family, facts) = (self.family(), self.facts());
        let mut configs = plan::candidates(family, problem, &facts);
        if configs.is_empty() && !facts.left_out.is_empty() {
            // Of what failed when it was tried one stays, so that whoever checks it is told why.
            let whole = Facts { left_out: Vec::new(), ..facts.into_owned() };
            configs.extend(plan::candidates(family, problem, &whole).first());
        }
        configs
    }

    fn legal(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<()> {
        plan::legal(self.family(), problem, config, &self.facts()).map_err(|reason| self.illegal(config, reason))
    }

    fn check(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<Cost> {
        let facts = self.facts();
        let cost = plan::cost(self.family(), problem, config, &facts).map_err(|reason| self.illegal(config, reason))?;
        Ok(Cost { copying: copied_bytes(problem) / facts.host_bandwidth + COPYING, ..cost })
    }

    fn prepack(&self, weights: &[Weights<'_>], team: &Team) -> Result<Arc<dyn PackedWeights>> {
        Ok(Arc::new(DeviceWeights::new(Device::of(self.device)?, weights, team)?))
    }

    fn prepack_fp8(&self, matrix: &Fp8Matrix<'_>, bias: Option<&[f32]>, team: &Team) -> Result<Arc<dyn PackedWeights>> {
        Ok(Arc::new(DeviceWeights::of_fp8(Device::of(self.device)?, matrix, bias, team)?))
    }

    fn unpack_fp8(&self, packed: &dyn PackedWeights) -> Result<(Fp8Matrix<'static>, Option<Vec<f32>>)> {
        DeviceWeights::on(packed, Device::of(self.device)?)?.unpacked_fp8()
    }

    fn fp8_segments(&self, scaling: Scaling, activation: Activation) -> Segments {
        fp8::segments(scaling, activation)
    }

    fn layer_bytes(&self, layer: &LayerSpec<'_>, brought: bool) -> Option<[usize; 2]> {
        LayerShape::suits(layer).then_some(LayerShape::bytes_of(layer, Device::of(self.device).ok()?.family, brought))
    }

    fn load_layer(
        &self,
        layer: &LayerSpec<'_>,
        choose: Arc<dyn Choose>,
        team: &Team,
    ) -> Result<Option<Arc<dyn LoadedLayer>>> {
        plan::check_layer(self.family(), layer)?;
        if !LayerShape::suits(layer) || !goes_whole(Device::of(self.device)?, layer) {
            return Ok(None);
        }
        Ok(Some(Arc::new(HostExperts::new(self.device, layer, choose, team)?)))
    }

    unsafe fn run(
        &self,
        problem: &Problem,
        config: &Config,
        operands: Operands<'_, '_, '_>,
        team: &Team,
    ) -> Result<()> {
        let desks = team.kept::<Desks>();
        let mut desk = desks.take(self.device)?;
        if let Some(widened) = widened(problem, &operands)? {
            let (groups, scaling) = (problem.groups().to_vec(), problem.scaling());
            let problem = Problem::new(groups, problem.gate(), Activation::F32, problem.output())?;
            let problem = problem.with_scaling(scaling)?;
            let config = plan::cheapest(self.family(), &problem, &self.facts())?;
            desk.run(&problem, &config, Operands { activations: &widened, ..operands })?;
        } else {
            desk.run(problem, config, operands)?;
        }
        desks.put_back(desk);
        Ok(())
    }
}

/// Whether there is a way for a layer with any tokens on a device: where some were left out, there may be none, and the
/// layer's products are computed one by one.
fn goes_whole(device: &Device, layer: &LayerSpec<'_>) -> bool {
    let shape = LayerShape::of(layer.weights.experts(), layer.weights.gate(), layer.intermediate);
    let shape = shape.in_precision(layer.precision);
    let goes = |activation, tokens| {
        let shape = LayerShape { activation, invariant: layer.batch_invariant, ..shape };
        let problem = shape.problem(tokens);
        problem.is_ok_and(|problem| !plan::candidates(device.family, &problem, &device.facts).is_empty())
    };
    let types = [Activation::F16, Activation::BF16, Activation::F32];
    device.facts.left_out.is_empty() || types.into_iter().all(|ty| [1, 64, 4096].map(|m| goes(ty, m)) == [true; 3])
}

/// Seconds of a run over the host's memory that no byte is to blame for: two copies, and waiting for the last.
const COPYING: f64 = 25e-6;

/// Bytes that a run over the host's memory copies.
fn copied_bytes(problem: &Problem) -> f64 {
    let rows = |m: usize, k: usize, n: usize| m * (problem.activation().row_bytes(k) + n * problem.output().bytes());
    let bytes = match problem.whole() {
        Some(whole) => rows(whole.tokens, problem.groups()[0].k, whole.width) + 8 * whole.tokens * whole.top,
        None => problem.groups().iter().map(|s| rows(s.m, s.k, s.n)).sum(),
    };
    bytes as f64
}

/// bfloat16 tokens go to the tensor cores as they are, and sums over them leave f32's range where the tokens are near
/// its ends. Such tokens, which no model has, are computed as single precision: that is scaled on its way.
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
    queue: LaunchQueue,
    operands: Option<DeviceMemory>,
}

/// What earlier runs of a team worked with.
#[derive(Debug, Default)]
struct Desks(Mutex<Vec<Desk>>);

impl Desks {
    /// One that an earlier run has left, or a new one.
    fn take(&self, device: usize) -> Result<Desk> {
        let mut desks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match desks.iter().rposition(|desk| desk.device == device) {
            Some(index) => Ok(desks.swap_remove(index)),
            None => Ok(Desk { device, queue: LaunchQueue::new(device)?, operands: None }),
        }
    }

    /// Leaves it for the next run. After an error it is not: whatever state that left behind goes with it.
    fn put_back(&self, desk: Desk) {
        let mut desks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if desks.len() < KEPT {
            desks.push(desk);
        }
    }
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

impl Desk {
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
        // SAFETY: operands and weights live until `run` has waited for the stream, and are as large as the problem
        // says.
        unsafe { self.queue.enqueue_planned(operands.weights, problem, config, &tokens, &outputs) }?;
        let stream = self.queue.stream();
        for (target, &at) in operands.targets.iter_mut().zip(&places.outputs) {
            // SAFETY: `run` waits for the stream before it gives the results back, and nobody looks at them before
            // that.
            unsafe { memory.read(at, target.bytes_mut(), stream) }?;
        }
        Ok(())
    }
}

/// Registers per thread and spilled bytes per thread of the kernels of a configuration, as the driver compiled them.
pub fn resources(problem: &Problem, config: &Config) -> Result<Vec<(String, i32, i32)>> {
    let device = Device::of(0)?;
    let kernels = plan::kernels(device.family, problem, config, &device.facts)?.into_iter().map(|kernel| {
        let function = Function::new(device.context, kernel)?;
        let (registers, spilled) = function.registers_and_spills()?;
        Ok((function.kernel().name.clone(), registers, spilled))
    });
    kernels.collect()
}

#[cfg(test)]
mod tests {
    use super::super::packed::PackedGroups;
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
            let shapes = vec![op::Shape::new(1, 1, 16)];
            let problem = Problem::new(shapes, op::Gate::None, Activation::BF16, op::Output::F32).unwrap();
            let (packer, largest) = ((families::ALL[0], &Team::new(op::Alone)), [value.abs()]);
            let weights = PackedGroups::<Vec<u8>>::new("", packer, &[], Ok).unwrap();
            let (addends, targets) = (&[], &mut []);
            let operands = Operands { weights: &weights, activations: &tokens, largest: &largest, addends, targets };
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
        let shapes = vec![op::Shape::new(3, 5, 16), op::Shape::new(0, 5, 16), op::Shape::new(1, 7, 16)];
        let (gate, output) = (op::Gate::Silu, op::Output::F32);
        let problem = Problem::new(shapes, gate, op::Activation::F16, output).unwrap();
        let places = Places::of(&problem, &[tokens(3), tokens(0), tokens(1)]);
        assert_eq!(places.tokens, [[0, 256], [512, 512], [512, 768]]);
        assert_eq!(places.outputs, [256, 512, 768]);
        assert_eq!(places.bytes, 1024);
    }
}
