//! The front door: load weights once, run them on tokens.
//!
//! An [`Engine`] knows which backends this machine has and how many threads to use. A [`Layer`] is weights packed by an
//! engine, with their gate. Both can be shared between threads.

use std::sync::Arc;

use format::{Dense, Values};
use half::{bf16, f16};

use crate::backend::{self, Backend, Operands, Packed, Target};
use crate::cpu::Threads;
use crate::operands::{self, Activations, Weights};
use crate::{Error, Gate, Output, Plan, Request, Result};

/// The environment variable that forces a backend by name.
pub const BACKEND_VARIABLE: &str = "HAMMERHEAD_BACKEND";

/// How an engine is set up. The default leaves everything to the engine.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Force this backend. `None` or `"auto"`: what [`BACKEND_VARIABLE`] says, else the best that this machine has.
    pub backend: Option<String>,
    /// Threads to use. `None`: as many as this process may run on.
    pub threads: Option<usize>,
    /// What every configuration must grant.
    pub request: Request,
}

/// Backends and threads, ready to compute.
#[derive(Debug)]
pub struct Engine {
    backends: Vec<&'static dyn Backend>,
    threads: Threads,
    request: Request,
}

/// The weights of every group of a layer, packed once, and the gate that joins them.
#[derive(Debug)]
pub struct Layer {
    packed: Arc<Packed>,
    columns: Vec<(usize, usize)>,
    gate: Gate,
    checkpoint_bytes: usize,
}

impl Layer {
    /// `(n, k)` of every group.
    pub fn columns(&self) -> &[(usize, usize)] {
        &self.columns
    }

    /// The gate.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// The packed weights.
    pub(crate) fn packed(&self) -> &Arc<Packed> {
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

    /// An engine set up as asked.
    pub fn new(options: Options) -> Result<Self> {
        let forced = options
            .backend
            .filter(|name| name != "auto")
            .or_else(|| std::env::var(BACKEND_VARIABLE).ok().filter(|name| !name.is_empty() && name != "auto"));
        let backends = match forced {
            Some(name) => {
                let backend = backend::by_name(&name)?;
                backend.available()?;
                vec![backend]
            }
            None => best_family()?,
        };
        Ok(Self { backends, threads: Threads::new(options.threads)?, request: options.request })
    }

    /// The backends this engine chooses among, best first. They share one layout of weights.
    pub fn backends(&self) -> &[&'static dyn Backend] {
        &self.backends
    }

    /// The number of threads it computes on.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// The pool it computes on.
    pub fn pool(&self) -> &Threads {
        &self.threads
    }

    /// Packs the weights of every group. The originals are not needed afterwards.
    pub fn load(&self, weights: &[Weights<'_>], gate: Gate) -> Result<Layer> {
        gate.check()?;
        for (group, w) in weights.iter().enumerate() {
            let (found, expected) = match (gate, w.up()) {
                (Gate::None, Some(_)) => ("two matrices (b1 and b2)", "one (b1) because the gate is 'none'"),
                (Gate::None, None) | (_, Some(_)) => continue,
                (_, None) => ("one matrix (b1)", "b1 and b2 because there is a gate"),
            };
            return Err(Error::Mismatch { group, what: "the weights", found: found.into(), expected: expected.into() });
        }
        Ok(Layer {
            packed: Arc::new(self.backends[0].prepack(weights)?),
            columns: operands::columns_of(weights),
            gate,
            checkpoint_bytes: weights.iter().map(Weights::checkpoint_bytes).sum(),
        })
    }

    /// How these activations would be computed.
    pub fn plan(&self, layer: &Layer, activations: &[Activations<'_>], output: Output) -> Result<Plan> {
        let problem = operands::problem_of(activations, &layer.columns, layer.gate, output)?;
        Plan::best(problem, &self.backends, &self.request, self.threads())
    }

    /// Computes C of every group, `[m, n]` each, as the output type asks.
    pub fn run(&self, layer: &Layer, activations: &[Activations<'_>], output: Output) -> Result<Vec<Dense<'static>>> {
        let plan = self.plan(layer, activations, output)?;
        let results = plan.problem().groups().iter().map(|s| match output {
            Output::F16 => Ok(filled(s.m * s.n, f16::ZERO)?.into()),
            Output::BF16 => Ok(filled(s.m * s.n, bf16::ZERO)?.into()),
            Output::F32 => Ok(filled(s.m * s.n, 0f32)?.into()),
        });
        let mut results = results.collect::<Result<Vec<Values<'static>>>>()?;
        self.run_planned(&plan, layer, activations, &mut Target::all(&mut results))?;
        let shapes = plan.problem().groups().iter();
        shapes.zip(results).map(|(s, values)| Ok(Dense::new(s.m, s.n, values, 1.0)?)).collect()
    }

    /// Computes into memory of the caller's: row-major `[m, n]` for every group.
    pub fn run_into(&self, layer: &Layer, activations: &[Activations<'_>], targets: &mut [Target<'_>]) -> Result<()> {
        let output = targets.first().map_or(Output::F16, Target::element);
        let plan = self.plan(layer, activations, output)?;
        self.run_planned(&plan, layer, activations, targets)
    }

    /// Computes as planned, into memory of the caller's. The plan may be kept for as long as the shapes stay the same.
    pub fn run_planned(
        &self,
        plan: &Plan,
        layer: &Layer,
        activations: &[Activations<'_>],
        targets: &mut [Target<'_>],
    ) -> Result<()> {
        let problem = plan.problem();
        let actual = operands::problem_of(activations, &layer.columns, layer.gate, problem.output())?;
        if actual != *problem {
            return Err(Error::Mismatch {
                group: 0,
                what: "the problem of these operands",
                found: actual.to_string(),
                expected: format!("{problem}, as planned,"),
            });
        }
        check_targets(plan, targets)?;
        let largest = operands::largest_of(activations)?;
        if plan.backend().layout() != layer.packed.layout() {
            return Err(Error::Layout {
                backend: plan.backend().name(),
                found: layer.packed.layout(),
                expected: plan.backend().layout(),
            });
        }
        let operands = Operands { weights: &layer.packed, activations, largest: &largest, targets };
        plan.backend().run(problem, plan.config(), operands, &self.threads)
    }
}

/// The available backends that share the layout of the best available one.
fn best_family() -> Result<Vec<&'static dyn Backend>> {
    let mut family: Vec<&'static dyn Backend> = Vec::new();
    let mut refusal = None;
    for &backend in backend::all() {
        match backend.available() {
            Ok(()) if family.first().is_none_or(|best| best.layout() == backend.layout()) => family.push(backend),
            Ok(()) => {}
            Err(error) => refusal = Some(error),
        }
    }
    match refusal {
        Some(error) if family.is_empty() => Err(error),
        _ => Ok(family),
    }
}

/// Memory for results, or an error where there is none.
fn filled<T: Copy>(length: usize, value: T) -> Result<Vec<T>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(length).map_err(|_| Error::Memory {
        bytes: length * size_of::<T>(),
        what: "the results",
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    memory.resize(length, value);
    Ok(memory)
}

fn check_targets(plan: &Plan, targets: &[Target<'_>]) -> Result<()> {
    let shapes = plan.problem().groups();
    let mismatch = |group, what, found: String, expected| Err(Error::Mismatch { group, what, found, expected });
    if targets.len() != shapes.len() {
        let group = targets.len().min(shapes.len());
        return mismatch(group, "the number of outputs", targets.len().to_string(), shapes.len().to_string());
    }
    for (group, (target, shape)) in targets.iter().zip(shapes).enumerate() {
        if target.element() != plan.problem().output() {
            let expected = plan.problem().output().to_string();
            return mismatch(group, "the output's element type", target.element().to_string(), expected);
        }
        if target.len() != shape.m * shape.n {
            let expected = format!("{} ({} tokens of {} columns)", shape.m * shape.n, shape.m, shape.n);
            return mismatch(group, "the output's length", target.len().to_string(), expected);
        }
    }
    Ok(())
}
