//! The front door: load weights once, run them on tokens.
//!
//! An [`Engine`] knows which backends this machine has and how many threads to use. A [`Layer`] is weights packed by an
//! engine, with their gate. Both can be shared between threads.

use std::sync::Arc;

use format::{Dense, Fp8Matrix, Values};
use half::{bf16, f16};
use op::operands::problem_of;
use op::{
    Activation, Activations, Addend, Backend, Call, Config, Error, Gate, Output, PackedWeights, Precision, Problem,
    Request, Result, Shape, Target, Team, Weights, Workers,
};

use crate::memory::filled;
use crate::planner::Planner;
use crate::scaling::InputScales;
use crate::steady::Steady;
use crate::{Plan, backends};

/// The environment variable that forces a backend by name.
pub const BACKEND_VARIABLE: &str = "HAMMERHEAD_BACKEND";

/// How an engine is set up. The default leaves everything to the engine.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Force this backend; `"cpu"` is the processor's, and leaves the choice among those to the plan. `None` or
    /// `"auto"`: what [`BACKEND_VARIABLE`] says, else the best that this machine has.
    pub backend: Option<String>,
    /// Threads to use. `None`: as many as this process may run on.
    pub threads: Option<usize>,
    /// What every configuration must grant.
    pub request: Request,
}

/// Tokens per group with which layouts of weights are compared when a layer is loaded: more than one at a time, fewer
/// than a prompt.
const TYPICAL_TOKENS: usize = 16;

/// Backends and threads, ready to compute.
#[derive(Debug)]
pub struct Engine {
    /// One per layout of weights; a layer is packed for one of them.
    planners: Vec<Planner>,
    /// The same for whole layers, in the same order.
    steady: Vec<Steady>,
    request: Request,
    team: Team,
}

/// The weights of every group of a layer, packed once, and the gate that joins them. Clones share the packed weights.
#[derive(Clone, Debug)]
pub struct Layer {
    packed: Arc<dyn PackedWeights>,
    gate: Gate,
    input_scales: InputScales,
    checkpoint_bytes: usize,
    precision: Precision,
}

impl Layer {
    /// Weights that were packed before, for a gate that takes as many matrices as they have.
    pub(crate) fn from_packed(packed: Arc<dyn PackedWeights>, gate: Gate, input_scales: InputScales) -> Self {
        let checkpoint_bytes = packed.bytes();
        Self { packed, gate, input_scales, checkpoint_bytes, precision: Precision::Exact }
    }

    /// The same, from weights that took so many bytes where they came from.
    pub(crate) fn with_checkpoint_bytes(self, checkpoint_bytes: usize) -> Self {
        Self { checkpoint_bytes, ..self }
    }

    /// The same layer, whose runs round dense tokens and weights to a precision before they multiply them.
    /// [`Precision::Fp8`] changes results, as [`op::precision`] defines, and is computed by Hopper GPUs alone: others
    /// refuse to run the layer, and NVFP4 tokens are refused.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same layer with some of its groups, in this order, where they can be had without the others.
    pub(crate) fn only(&self, groups: &[usize]) -> Option<Self> {
        let (packed, input_scales) = (self.packed.only(groups)?, self.input_scales.only(groups));
        Some(Self { packed, input_scales, ..*self })
    }

    /// The same layer with packed weights in memory of their own, if copying those is quicker than packing them again.
    pub fn copied(&self) -> Result<Option<Self>> {
        let packed = self.packed.copied()?;
        Ok(packed.map(|packed| Self { packed, ..self.clone() }))
    }

    /// What runs round dense tokens and weights to.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// `(n, k)` of every group.
    pub fn shapes(&self) -> &[(usize, usize)] {
        self.packed.shapes()
    }

    /// The gate.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// What the tokens of a group are multiplied with, column by column, before they meet its weights, if there is
    /// that. Every run of the layer does it.
    pub fn input_scale(&self, group: usize) -> Option<&[f32]> {
        self.input_scales.get(group)
    }

    /// All of them.
    pub(crate) fn input_scales(&self) -> &InputScales {
        &self.input_scales
    }

    /// The packed weights.
    pub(crate) fn packed(&self) -> &Arc<dyn PackedWeights> {
        &self.packed
    }

    /// The bytes these weights take in memory.
    pub fn packed_bytes(&self) -> usize {
        self.packed.bytes()
    }

    /// The bytes they took where they came from.
    pub fn checkpoint_bytes(&self) -> usize {
        self.checkpoint_bytes
    }
}

impl Engine {
    /// The best this machine has, unless [`BACKEND_VARIABLE`] says otherwise.
    pub fn auto() -> Result<Self> {
        Self::new(Options::default())
    }

    /// An engine set up as asked, on threads of its own.
    pub fn new(options: Options) -> Result<Self> {
        let team = cpu::team(options.threads)?;
        Self::with_team(options, team)
    }

    /// An engine set up as asked, on threads that the caller brings: those of the host program, where it has a pool, or
    /// [`cpu::OpenMp`]'s. The options' number of threads is not looked at; there are as many as the workers say.
    ///
    /// ```
    /// use hammerhead::{Engine, Options, Workers};
    ///
    /// #[derive(Debug)]
    /// struct Mine;
    ///
    /// impl Workers for Mine {
    ///     fn count(&self) -> usize {
    ///         2
    ///     }
    ///
    ///     fn run(&self, work: &(dyn Fn() + Sync)) {
    ///         std::thread::scope(|scope| {
    ///             scope.spawn(work);
    ///             work();
    ///         });
    ///     }
    /// }
    ///
    /// let engine = Engine::with_workers(Options::default(), Mine)?;
    /// assert_eq!(engine.threads(), 2);
    /// # Ok::<(), hammerhead::Error>(())
    /// ```
    pub fn with_workers(options: Options, workers: impl Workers + 'static) -> Result<Self> {
        let threads = workers.count();
        match threads {
            0 => Err(Error::Threads { threads, reason: "the workers say that there are none of them".to_owned() }),
            _ => Self::with_team(options, Team::new(workers)),
        }
    }

    /// The processor's backends on the same threads, whatever this one computes with.
    pub fn processor(&self) -> Result<Self> {
        Ok(Self::of(available(is_processor)?, self.request, self.team.clone()))
    }

    fn with_team(options: Options, team: Team) -> Result<Self> {
        let forced = options
            .backend
            .filter(|name| name != "auto")
            .or_else(|| std::env::var(BACKEND_VARIABLE).ok().filter(|name| !name.is_empty() && name != "auto"));
        let backends = match forced.as_deref() {
            Some(backends::PROCESSOR) => available(is_processor)?,
            Some(name) => {
                let backend = backends::by_name(name)?;
                backend.available()?;
                vec![backend]
            }
            None => available(|_| true)?,
        };
        Ok(Self::of(backends, options.request, team))
    }

    /// These backends on these threads.
    fn of(backends: Vec<&'static dyn Backend>, request: Request, team: Team) -> Self {
        let mut families: Vec<Vec<&'static dyn Backend>> = Vec::new();
        for backend in backends {
            match families.iter_mut().find(|family| family[0].layout() == backend.layout()) {
                Some(family) => family.push(backend),
                None => families.push(vec![backend]),
            }
        }
        let planner = |family: &Vec<_>| Planner::new(family.clone(), request, team.count());
        let planners = families.iter().map(planner).collect();
        let steady = |family| Steady::new(family, request, team.count());
        let steady = families.into_iter().map(steady).collect();
        Self { planners, steady, request, team }
    }

    /// The backends this engine chooses among: the first is the only one, or the one that computes most layers.
    pub fn backends(&self) -> Vec<&'static dyn Backend> {
        self.planners.iter().flat_map(|planner| planner.backends().iter().copied()).collect()
    }

    /// The number of threads it computes on.
    pub fn threads(&self) -> usize {
        self.team.count()
    }

    /// The threads it computes on.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Packs the weights of every group. The originals are not needed afterwards.
    pub fn load(&self, weights: &[Weights<'_>], gate: Gate) -> Result<Layer> {
        gate.check()?;
        for (group, w) in weights.iter().enumerate() {
            let (found, expected) = match (gate.matrices(), w.up()) {
                (1, Some(_)) => ("two matrices (b1 and b2)", format!("one (b1) because the gate is '{gate}'")),
                (1, None) | (_, Some(_)) => continue,
                (_, None) => ("one matrix (b1)", format!("b1 and b2 because the gate '{gate}' joins two")),
            };
            return Err(Error::Mismatch { group, what: "the weights", found: found.into(), expected });
        }
        Ok(Layer {
            packed: self.pack(weights, gate)?,
            gate,
            input_scales: InputScales::of(weights),
            checkpoint_bytes: weights.iter().map(Weights::checkpoint_bytes).sum(),
            precision: Precision::Exact,
        })
    }

    /// Packs an FP8 matrix and its bias for a device's backend, as a layer of one plain product.
    pub(crate) fn load_fp8(
        &self,
        backend: &'static dyn Backend,
        matrix: &Fp8Matrix<'_>,
        bias: Option<&[f32]>,
    ) -> Result<Layer> {
        let packed = backend.prepack_fp8(matrix, bias, &self.team)?;
        let layer = Layer::from_packed(packed, Gate::None, InputScales::from_groups(vec![None]));
        Ok(layer.with_checkpoint_bytes(matrix.bytes() + bias.map_or(0, size_of_val)))
    }

    /// Packs weights for the backends that are predicted to compute a typical number of tokens soonest, copies to a
    /// device and back included; for the next best where a device's memory is full, or its kernels do not take scales
    /// such as these.
    fn pack(&self, weights: &[Weights<'_>], gate: Gate) -> Result<Arc<dyn PackedWeights>> {
        let mut planners: Vec<&Planner> = self.planners.iter().collect();
        if planners.len() > 1 {
            let groups = weights.iter().map(|w| Shape::new(TYPICAL_TOKENS, w.n(), w.k())).collect();
            let typical =
                InputScales::of(weights).problem(Problem::new(groups, gate, Activation::BF16, Output::BF16)?)?;
            let seconds = |planner: &&Planner| {
                let cost = planner.plan(&typical).map(|plan| plan.cost().seconds + plan.cost().copying);
                cost.unwrap_or(f64::INFINITY)
            };
            let mut priced: Vec<(f64, &Planner)> =
                planners.iter().map(|planner| (seconds(planner), *planner)).collect();
            priced.sort_by(|(one, _), (other, _)| one.total_cmp(other));
            planners = priced.into_iter().map(|(_, planner)| planner).collect();
        }
        let (last, first) = planners.split_last().ok_or(Error::NoGroups)?;
        for planner in first {
            match planner.backends()[0].prepack(weights, &self.team) {
                Err(error) if is_for_others(&error) => {}
                packed => return packed,
            }
        }
        last.backends()[0].prepack(weights, &self.team)
    }

    /// A planner of whole layers for one of the backends.
    pub(crate) fn layer_planner(&self, backend: &'static dyn Backend) -> Planner {
        Planner::new(vec![backend], self.request, self.threads())
    }

    /// What the products of a whole layer should take one by one on the processor, in seconds, if it computes here at
    /// all.
    pub(crate) fn product_seconds(&self, problem: &Problem) -> Option<f64> {
        let planner = self.planners.iter().find(|planner| planner.backends()[0].layout() == cpu::LAYOUT)?;
        let seconds = |product: &Problem| Some(planner.plan(product).ok()?.cost().seconds);
        problem.products().ok()?.iter().map(seconds).sum()
    }

    /// The planner of the backends that read a layer's weights.
    fn planner(&self, layer: &Layer) -> Result<&Planner> {
        let found = layer.packed.layout();
        self.planners.iter().find(|planner| planner.backends()[0].layout() == found).ok_or_else(|| {
            let backend = self.planners[0].backends()[0];
            Error::Layout { backend: backend.name(), found, expected: backend.layout() }
        })
    }

    fn problem(&self, layer: &Layer, activations: &[Activations<'_>], output: Output) -> Result<Problem> {
        let problem = problem_of(activations.iter().map(Activations::shape), layer.shapes(), layer.gate, output)?;
        layer.input_scales.problem(problem.with_precision(layer.precision)?.with_scaling(layer.packed.scaling())?)
    }

    /// How these activations would be computed.
    pub fn plan(&self, layer: &Layer, activations: &[Activations<'_>], output: Output) -> Result<Plan> {
        self.planner(layer)?.plan(&self.problem(layer, activations, output)?)
    }

    /// Computes C of every group, `[m, n]` each, as the output type asks.
    pub fn run(&self, layer: &Layer, activations: &[Activations<'_>], output: Output) -> Result<Vec<Dense<'static>>> {
        let problem = self.problem(layer, activations, output)?;
        let results = problem.groups().iter().map(|s| match output {
            Output::F16 => Ok(filled(s.m * s.n, f16::ZERO, "the results")?.into()),
            Output::BF16 => Ok(filled(s.m * s.n, bf16::ZERO, "the results")?.into()),
            Output::F32 => Ok(filled(s.m * s.n, 0f32, "the results")?.into()),
        });
        let mut results = results.collect::<Result<Vec<Values<'static>>>>()?;
        self.compute(&problem, layer, activations, &mut Target::all(&mut results))?;
        let shapes = problem.groups().iter();
        shapes.zip(results).map(|(s, values)| Ok(Dense::new(s.m, s.n, values, 1.0)?)).collect()
    }

    /// Computes into memory of the caller's: row-major `[m, n]` for every group.
    pub fn run_into(&self, layer: &Layer, activations: &[Activations<'_>], targets: &mut [Target<'_>]) -> Result<()> {
        let output = targets.first().map_or(Output::F16, Target::element);
        self.compute(&self.problem(layer, activations, output)?, layer, activations, targets)
    }

    /// Computes as planned for this kind of problem.
    fn compute(
        &self,
        problem: &Problem,
        layer: &Layer,
        activations: &[Activations<'_>],
        targets: &mut [Target<'_>],
    ) -> Result<()> {
        self.call(self.planner(layer)?.choose(problem)?, problem, layer, activations, targets)
    }

    /// Computes with bits that do not depend on the number of threads. With `largest`, which no activation exceeds,
    /// they do not depend on what else is in a group either. `added` goes to the sums, if there is any.
    pub(crate) fn run_steady(
        &self,
        layer: &Layer,
        activations: &[Activations<'_>],
        added: Option<&[Addend<'_>]>,
        targets: &mut [Target<'_>],
        largest: Option<f32>,
    ) -> Result<()> {
        let output = targets.first().map_or(Output::F16, Target::element);
        let problem = self.problem(layer, activations, output)?;
        let choice = self.steady(layer)?.choose(&problem, largest.is_some())?;
        let activations = layer.input_scales.apply(activations, &self.team)?;
        let mut call = Call::new(choice, &problem, layer.packed.as_ref(), &activations, targets, &self.team)?;
        if let Some(added) = added {
            call = call.with_addends(added)?;
        }
        match largest {
            // Tokens were multiplied with input scales since they were measured.
            Some(largest) => call.with_largest((largest * layer.input_scales.largest()).min(f32::MAX)).run(),
            None => call.run(),
        }
    }

    /// How [`Engine::run_steady`] would compute a problem with these weights.
    pub(crate) fn plan_steady(&self, layer: &Layer, problem: &Problem, invariant: bool) -> Result<Plan> {
        self.steady(layer)?.plan(problem, invariant)
    }

    /// Who chooses among the backends that read a layer's weights.
    fn steady(&self, layer: &Layer) -> Result<&Steady> {
        let layout = self.planner(layer)?.backends()[0].layout();
        let mut all = self.planners.iter().zip(&self.steady);
        let found = all.find(|(planner, _)| planner.backends()[0].layout() == layout);
        found.map(|(_, steady)| steady).ok_or(Error::NoGroups)
    }

    /// Computes in one way, once tokens are multiplied with what the layer asks for.
    fn call(
        &self,
        choice: (&dyn Backend, Config),
        problem: &Problem,
        layer: &Layer,
        activations: &[Activations<'_>],
        targets: &mut [Target<'_>],
    ) -> Result<()> {
        let activations = layer.input_scales.apply(activations, &self.team)?;
        Call::new(choice, problem, layer.packed.as_ref(), &activations, targets, &self.team)?.run()
    }

    /// Computes as planned, into memory of the caller's. The plan may be kept for as long as the shapes stay the same,
    /// and need not know how weights are packed.
    pub fn run_planned(
        &self,
        plan: &Plan,
        layer: &Layer,
        activations: &[Activations<'_>],
        targets: &mut [Target<'_>],
    ) -> Result<()> {
        let actual = self.problem(layer, activations, plan.problem().output())?;
        if plan.problem().clone().with_scaling(actual.scaling()).ok().as_ref() != Some(&actual) {
            return Err(Error::Mismatch {
                group: 0,
                what: "the problem of these operands",
                found: actual.to_string(),
                expected: format!("{}, as planned,", plan.problem()),
            });
        }
        self.call((plan.backend(), *plan.config()), &actual, layer, activations, targets)
    }
}

/// Whether other backends may compute what one of them has refused so: its memory is full, or scales of MXFP4 span more
/// powers of two than it takes.
pub(crate) fn is_for_others(error: &Error) -> bool {
    matches!(error, Error::DeviceMemory { .. } | Error::Format(format::Error::Widening { .. }))
}

fn is_processor(backend: &dyn Backend) -> bool {
    backend.layout() == cpu::LAYOUT
}

/// The backends among some that can run here and are sensible: a GPU first, which computes all layers but small ones
/// sooner.
fn available(among: fn(&dyn Backend) -> bool) -> Result<Vec<&'static dyn Backend>> {
    let mut available: Vec<&'static dyn Backend> = Vec::new();
    let mut refusal = None;
    for &backend in backends::all().iter().filter(|backend| backends::is_sensible(**backend) && among(**backend)) {
        match backend.available() {
            Ok(()) if is_processor(backend) => available.push(backend),
            Ok(()) => available.insert(0, backend),
            Err(error) => refusal = Some(error),
        }
    }
    match refusal {
        Some(error) if available.is_empty() => Err(error),
        _ => Ok(available),
    }
}

#[cfg(test)]
mod tests {
    use format::{Matrix, Scaling};

    use super::*;

    #[test]
    fn scales_that_a_gpu_does_not_take_are_for_the_next_backend() {
        // More powers of two than NVFP4 has, as CPUs compute with.
        let powers: Vec<u8> = (100..119).collect();
        let wide = Matrix::mx(19, 32, vec![0x11; 19 * 16], &powers, 1.0).unwrap();
        assert!(is_for_others(&wide.in_scaling(Scaling::NvFp4).unwrap_err().into()));
        assert!(!is_for_others(&wide.in_scaling(Scaling::Fp8).unwrap_err().into()), "nobody's");
        assert!(!is_for_others(&Error::NoGroups));
    }
}
