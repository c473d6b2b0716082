//! Our own backends as contestants.
//!
//! A [`Builtin`] names a backend and a whole configuration for each problem. The [`Bench`] does the work: it maps a
//! lot's files, packs the weights and runs jobs. It serves in this process, where a session calls it, and in a fresh
//! one, where [`super::serve`] calls it for whoever speaks the protocol: the same code behind the same messages as
//! anyone's program has, because a champion that need not answer through a pipe would win by the pipe.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16};
use hammerhead::Team;
use hammerhead::format::{Dense, GlobalScale, Matrix};
use hammerhead::{
    Activation, Activations, Engine, ExpertWeights, Experts, Ids, Layer, LayerOptions, MlpWeights, Options, Output,
    Plan, Problem, Request as Wish, Routed, Target, Weights, Whole, backends,
};
use memmap2::{Mmap, MmapMut};
use referee::contestant::protocol::{Prepare, Residence};
use referee::contestant::{
    About, Accounts, Contestant, DeviceTime, Fault, Guard, Job, Queued, Readiness, Session, Stage, Tensors,
};
use referee::{Error, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::operands::{MatrixPlace, Operands, TokensPlace, WeightsPlace};
use super::problem::name;
use crate::entry::Way;

/// Configurations of our own backends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Builtin {
    /// Its name.
    pub name: String,
    /// A way for each problem it was made for. Other problems, of which the referee has many, get one of these ways by
    /// their sizes, so that all of them are examined.
    pub ways: Vec<Way>,
    /// Threads to use; all that there are where it does not say.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Where its tensors are, in a process of its own: on the GPU only where all of its ways compute there.
    #[serde(default)]
    pub memory: Residence,
}

impl Builtin {
    /// The way for a problem.
    fn way(&self, problem: &Problem, name: &str) -> Option<&Way> {
        let spread: usize = problem.groups().iter().map(|s| s.m + s.n + s.k / 16).sum();
        let other = || self.ways.get(spread % self.ways.len().max(1));
        self.ways.iter().find(|way| way.problem == name).or_else(other)
    }
}

impl Contestant for Builtin {
    fn about(&self) -> About {
        let mut ways: Vec<String> = self.ways.iter().map(|way| format!("{} {}", way.backend, way.config)).collect();
        ways.dedup();
        About { name: self.name.clone(), runs: ways.join("; "), trusted: true }
    }

    fn start(&self) -> Result<Box<dyn Session>, Fault> {
        let tensors = Tensors::new().map_err(|error| Fault::Start { reason: error.to_string() })?;
        Ok(Box::new(InProcess { bench: Bench::new(self.clone()), tensors, jobs: Vec::new(), accounts: None }))
    }
}

/// A built-in contestant in this process.
struct InProcess {
    bench: Bench,
    tensors: Tensors,
    jobs: Vec<Job>,
    accounts: Option<Accounts>,
}

impl Session for InProcess {
    fn deterministic(&self) -> bool {
        true
    }

    fn tensors(&mut self) -> &mut Tensors {
        &mut self.tensors
    }

    fn prepare(&mut self) -> Result<Readiness, Fault> {
        let message = self.tensors.message(String::new());
        let prepared = message.and_then(|message| self.bench.prepare(&message));
        prepared.map_err(|error| failed(Stage::Prepare, &error))
    }

    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        self.jobs = jobs.to_vec();
        self.accounts = Some(Accounts::of([std::process::id()]));
        Ok(())
    }

    fn queued(&mut self) -> Option<Queued> {
        Accounts::of([std::process::id()]).since(self.accounts.as_ref()?)
    }

    fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
        self.bench.run(&self.jobs).map_err(|error| failed(Stage::Run, &error))?;
        Ok(None)
    }

    fn guards(&self) -> Vec<Guard> {
        Vec::new()
    }
}

pub(super) fn failed(stage: Stage, error: &Error) -> Fault {
    Fault::Crash { stage, status: error.to_string(), words: String::new() }
}

/// What an engine was made for: a backend, and, for whole layers, the configuration that it is held to.
type Made = (String, String);

/// What computes: engines by what they were made for, and the problem that was prepared last.
pub struct Bench {
    contestant: Builtin,
    /// The processors that its threads are pinned to, where the process is its own.
    processors: Vec<usize>,
    engines: HashMap<Made, Engine>,
    ready: Option<Ready>,
}

/// A problem that can be computed: its plan, and its weights as the backend wants them.
pub(super) struct Loaded {
    /// Which of the engines computes it.
    engine: Made,
    pub(super) plan: Plan,
    pub(super) operands: Operands,
    pub(super) layers: Layers,
}

/// Weights in as many sets as there are: those of products, or of whole layers.
pub(super) enum Layers {
    Products(Vec<Layer>),
    Whole(Vec<Experts>),
}

struct Ready {
    loaded: Loaded,
    tokens: Mmap,
    outputs: MmapMut,
}

impl Bench {
    /// A bench for one contestant, in a process that has other things to do.
    pub fn new(contestant: Builtin) -> Self {
        Self { contestant, processors: Vec::new(), engines: HashMap::new(), ready: None }
    }

    /// A bench for one contestant, in a process of its own.
    pub(super) fn alone(contestant: Builtin) -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect();
        Self { processors, ..Self::new(contestant) }
    }

    /// Packs the weights of a problem, unless no way of this contestant's is legal for it.
    pub fn prepare(&mut self, message: &Prepare) -> Result<Readiness> {
        self.ready = None;
        let files = message.files.as_ref().ok_or_else(no_files)?;
        let loaded = match self.load(message, &map(&files.constants)?, None)? {
            Ok(loaded) => loaded,
            Err(reason) => return Ok(Readiness::Unsupported(reason)),
        };
        self.ready = Some(Ready { loaded, tokens: map(&files.inputs)?, outputs: map_mut(&files.outputs)? });
        Ok(Readiness::Ready)
    }

    /// The plan for a problem and its packed weights, or why no way of this contestant's is legal for it. Weights that
    /// earlier sessions have packed, where they are kept, are copied: to pack them takes a hundred times as long.
    pub(super) fn load(
        &mut self,
        message: &Prepare,
        weights: &[u8],
        kept: Option<&Tensors>,
    ) -> Result<Result<Loaded, String>> {
        let operands = Operands::of(message)?;
        let problem = &operands.problem;
        let Some(way) = self.contestant.way(problem, &name(problem)).cloned() else {
            return Ok(Err("it has no configuration at all".to_owned()));
        };
        let backend = backends::by_name(&way.backend)?;
        let whole = problem.whole().copied();
        let made = (way.backend.clone(), whole.map_or(String::new(), |_| way.config.clone()));
        let engine = match self.engine(&made) {
            Ok(engine) => engine,
            Err(Error::Machine(error @ hammerhead::Error::Unavailable { .. })) => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        let plan = match Plan::best(problem.clone(), &[backend], &way.config.parse::<Wish>()?, engine.threads()) {
            Ok(plan) => plan,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let layers = match whole {
            None => {
                let load = |places: &Vec<WeightsPlace>| {
                    let weights = weights_at(weights, problem, places)?;
                    Ok(engine.load(&weights, problem.gate())?)
                };
                let pack = || operands.layers.iter().map(load).collect::<Result<Vec<Layer>>>();
                Layers::Products(match kept {
                    None => pack()?,
                    Some(tensors) => {
                        let packed = tensors.kept(&made.0, pack)?;
                        let copy = |(layer, places): (&Layer, _)| layer.copied()?.map_or_else(|| load(places), Ok);
                        packed.iter().zip(&operands.layers).map(copy).collect::<Result<_>>()?
                    }
                })
            }
            Some(Whole { batch_invariant, .. }) => {
                let options = LayerOptions { batch_invariant, ..LayerOptions::default() };
                let load = |places: &Vec<WeightsPlace>| {
                    Ok(Experts::new(engine, &experts_at(weights, problem, places)?, options)?)
                };
                Layers::Whole(operands.layers.iter().map(load).collect::<Result<_>>()?)
            }
        };
        Ok(Ok(Loaded { engine: made, plan, operands, layers }))
    }

    /// Does jobs, one after the other.
    pub fn run(&mut self, jobs: &[Job]) -> Result<()> {
        let Some(ready) = &mut self.ready else {
            if jobs.is_empty() {
                return Ok(());
            }
            return Err(Error::Protocol { reason: "a run came before anything was prepared".to_owned() });
        };
        let Some(engine) = self.engines.get(&ready.loaded.engine) else {
            return Err(Error::Protocol { reason: "a run came before anything was prepared".to_owned() });
        };
        jobs.iter().try_for_each(|job| ready.run(engine, *job))
    }

    fn engine(&mut self, made: &Made) -> Result<&Engine> {
        if !self.engines.contains_key(made) {
            let (backend, request) = (Some(made.0.clone()), made.1.parse::<Wish>()?);
            let engine = Engine::new(Options { backend, threads: self.contestant.threads, request })?;
            pin(engine.team(), &self.processors);
            self.engines.insert(made.clone(), engine);
        }
        Ok(&self.engines[made])
    }
}

impl Ready {
    fn run(&mut self, engine: &Engine, job: Job) -> Result<()> {
        let missing = || Error::Protocol { reason: format!("{job:?} names what was not prepared") };
        let Loaded { plan, operands, layers, .. } = &self.loaded;
        let inputs = operands.inputs.get(job.input).ok_or_else(missing)?;
        let places = operands.outputs.get(job.output).ok_or_else(missing)?;
        let mut targets = targets_at(&mut self.outputs, &operands.problem, places)?;
        match layers {
            Layers::Products(layers) => {
                let layer = layers.get(job.layer).ok_or_else(missing)?;
                let activations = tokens_at(&self.tokens, operands, inputs)?;
                Ok(engine.run_planned(plan, layer, &activations, &mut targets)?)
            }
            Layers::Whole(layers) => {
                let layer = layers.get(job.layer).ok_or_else(missing)?;
                let (tokens, routed) = routed_at(&self.tokens, &operands.problem, inputs)?.ok_or_else(missing)?;
                let target = targets.pop().ok_or_else(missing)?;
                Ok(layer.run_into(engine, &tokens, &routed, target)?)
            }
        }
    }
}

/// Gives every thread a processor of its own, where there are enough. A scheduler that finds all processors busy, be it
/// for the moment in which the referee asks, puts two threads on one and leaves them there for milliseconds: longer
/// than a sample takes.
fn pin(threads: &Team, processors: &[usize]) {
    let Some((first, others)) = processors.split_first() else { return };
    if processors.len() < threads.count() {
        return;
    }
    // The caller belongs to every engine, so it has the same processor in each.
    let caller = std::thread::current().id();
    let (all_here, next) = (Barrier::new(threads.count()), AtomicUsize::new(0));
    threads.run(|| {
        // Nobody goes on before everyone is here, so each of these calls is another thread's.
        all_here.wait();
        let processor = match std::thread::current().id() == caller {
            true => *first,
            false => others[next.fetch_add(1, Ordering::Relaxed)],
        };
        let mut own = CpuSet::new();
        own.set(processor);
        // Where it is refused, all still works, with more noise.
        let _ = sched_setaffinity(None, &own);
    });
}

fn open(path: &Path, writable: bool) -> Result<File> {
    let failed = |source| Error::SharedMemory { what: "open", path: path.to_owned(), source };
    OpenOptions::new().read(true).write(writable).open(path).map_err(failed)
}

pub(super) fn map(path: &Path) -> Result<Mmap> {
    let failed = |source| Error::SharedMemory { what: "map", path: path.to_owned(), source };
    let file = open(path, false)?;
    // SAFETY: the referee writes its files between runs only, and never shortens them.
    unsafe { Mmap::map(&file) }.map_err(failed)
}

fn map_mut(path: &Path) -> Result<MmapMut> {
    let failed = |source| Error::SharedMemory { what: "map", path: path.to_owned(), source };
    let file = open(path, true)?;
    // SAFETY: the referee touches outputs between runs only, and never shortens them.
    unsafe { MmapMut::map_mut(&file) }.map_err(failed)
}

fn no_files() -> Error {
    Error::Protocol { reason: "tensors in files were asked for, and a GPU's memory came".to_owned() }
}

fn outside() -> Error {
    Error::Protocol { reason: "an offset lies outside of its file".to_owned() }
}

fn part(bytes: &[u8], offset: u64, length: usize) -> Result<&[u8]> {
    let start = usize::try_from(offset).map_err(|_| outside())?;
    bytes.get(start..start.checked_add(length).ok_or_else(outside)?).ok_or_else(outside)
}

fn matrix_at(bytes: &[u8], rows: usize, k: usize, [codes, scales]: [u64; 2], global: f64) -> Result<Matrix<'_>> {
    let (codes, scales) = (part(bytes, codes, rows * k / 2)?, part(bytes, scales, rows * k / 16)?);
    Ok(Matrix::new(rows, k, codes, scales, GlobalScale::nearest(global)).map_err(hammerhead::Error::from)?)
}

fn weight_at<'a>(bytes: &'a [u8], [rows, k]: [usize; 2], place: MatrixPlace) -> Result<Matrix<'a>> {
    let MatrixPlace { codes, scales, global } = place;
    let global = part(bytes, global, 8)?.try_into().map_err(|_| outside())?;
    matrix_at(bytes, rows, k, [codes, scales], f64::from_le_bytes(global))
}

fn weights_at<'a>(bytes: &'a [u8], problem: &Problem, places: &[WeightsPlace]) -> Result<Vec<Weights<'a>>> {
    let group = |(shape, place): (&hammerhead::Shape, &WeightsPlace)| {
        let matrix = |place| weight_at(bytes, [shape.n, shape.k], place);
        let gate = matrix(place.gate)?;
        Ok(match place.up {
            Some(up) => Weights::gated(gate, matrix(up)?)?,
            None => Weights::plain(gate),
        })
    };
    problem.groups().iter().zip(places).map(group).collect()
}

/// The experts of a whole layer.
fn experts_at<'a>(bytes: &'a [u8], problem: &Problem, places: &[WeightsPlace]) -> Result<ExpertWeights<'a>> {
    let first = weights_at(bytes, problem, places)?.into_iter();
    let expert = |((up, shape), place): ((Weights<'a>, &hammerhead::Shape), &WeightsPlace)| {
        let place = place.down.ok_or_else(outside)?;
        Ok(MlpWeights::new(up, Weights::plain(weight_at(bytes, [shape.k, shape.n], place)?))?)
    };
    let experts = first.zip(problem.groups()).zip(places).map(expert).collect::<Result<_>>()?;
    Ok(ExpertWeights::new(experts, problem.gate())?)
}

fn tokens_at<'a>(bytes: &'a [u8], operands: &Operands, places: &[TokensPlace]) -> Result<Vec<Activations<'a>>> {
    let Operands { problem, globals, .. } = operands;
    let group = |((shape, &global), place): ((&hammerhead::Shape, &f64), &TokensPlace)| match *place {
        TokensPlace::Quantised { codes, scales } => {
            Ok(matrix_at(bytes, shape.m, shape.k, [codes, scales], global)?.into())
        }
        TokensPlace::Dense { values } | TokensPlace::Routed { values, .. } => {
            Ok(dense_at(bytes, problem.activation(), [shape.m, shape.k], values, global)?.into())
        }
    };
    problem.groups().iter().zip(globals).zip(places).map(group).collect()
}

fn dense_at(bytes: &[u8], activation: Activation, [m, k]: [usize; 2], values: u64, global: f64) -> Result<Dense<'_>> {
    let global = GlobalScale::nearest(global);
    let wide = |width: usize| part(bytes, values, m * k * width);
    let dense = match activation {
        Activation::F16 => Dense::new(m, k, bytemuck::cast_slice::<u8, f16>(wide(2)?), global),
        Activation::BF16 => Dense::new(m, k, bytemuck::cast_slice::<u8, bf16>(wide(2)?), global),
        _ => Dense::new(m, k, bytemuck::cast_slice::<u8, f32>(wide(4)?), global),
    };
    Ok(dense.map_err(hammerhead::Error::from)?)
}

/// The tokens of a whole layer and the experts of each, if that is what lies there.
fn routed_at<'a>(bytes: &'a [u8], problem: &Problem, places: &[TokensPlace]) -> Result<Option<(Dense<'a>, Routed)>> {
    let (Some(whole), [TokensPlace::Routed { values, ids, weights }]) = (problem.whole(), places) else {
        return Ok(None);
    };
    let tokens = dense_at(bytes, problem.activation(), [whole.tokens, whole.width], *values, 1.0)?;
    let entries = whole.tokens * whole.top;
    let ids = Ids::I32(bytemuck::cast_slice(part(bytes, *ids, 4 * entries)?));
    let weights = bytemuck::cast_slice(part(bytes, *weights, 4 * entries)?);
    Ok(Some((tokens, Routed::given(ids, weights, whole.tokens, problem.groups().len())?)))
}

/// The places of one output's groups, which follow each other in the file.
fn targets_at<'a>(mut bytes: &'a mut [u8], problem: &Problem, places: &[u64]) -> Result<Vec<Target<'a>>> {
    let (mut passed, mut targets) = (0, Vec::new());
    let sizes: Vec<usize> = match problem.whole() {
        Some(whole) => vec![whole.tokens * whole.width],
        None => problem.groups().iter().map(|shape| shape.m * shape.n).collect(),
    };
    for (size, &place) in sizes.into_iter().zip(places) {
        let start = usize::try_from(place).ok().and_then(|place| place.checked_sub(passed)).ok_or_else(outside)?;
        let length = size * problem.output().bytes();
        let (_, rest) = bytes.split_at_mut_checked(start).ok_or_else(outside)?;
        let (target, rest) = rest.split_at_mut_checked(length).ok_or_else(outside)?;
        passed += start + length;
        bytes = rest;
        targets.push(match problem.output() {
            Output::F16 => Target::F16(bytemuck::cast_slice_mut(target)),
            Output::BF16 => Target::BF16(bytemuck::cast_slice_mut(target)),
            Output::F32 => Target::F32(bytemuck::cast_slice_mut(target)),
        });
    }
    Ok(targets)
}

/// What a process of our own computes with: the host's memory, or a GPU's.
pub(super) trait Worker {
    /// Packs the weights of a problem, unless no way of this contestant's is legal for it.
    fn prepare(&mut self, message: &Prepare) -> Result<Readiness>;

    /// Does jobs, one after the other, to the end.
    fn run(&mut self, jobs: &[Job]) -> Result<()>;

    /// Queues jobs behind a latch in a GPU's memory whose words are to hold a value, where one was lent.
    fn queue(&mut self, _jobs: &[Job], _value: u32) -> Result<()> {
        Err(Error::Protocol { reason: "a run came with a latch, and none was lent".to_owned() })
    }
}

impl Worker for Bench {
    fn prepare(&mut self, message: &Prepare) -> Result<Readiness> {
        Bench::prepare(self, message)
    }

    fn run(&mut self, jobs: &[Job]) -> Result<()> {
        Bench::run(self, jobs)
    }
}
