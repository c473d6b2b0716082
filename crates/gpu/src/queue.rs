//! Launches on memory of the caller's, in the caller's stream.
//!
//! A [`LaunchQueue`] is one stream with the working memory of what is queued there. [`LaunchQueue::prepare`] looks at addresses, compiles and
//! allocates, and [`LaunchQueue::launch`] queues what was prepared: without an allocation and without waiting for anything, so
//! that it can be captured in a CUDA graph. Who decides on the configuration stands above this crate.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use op::operands::TokenShape;
use op::{Activation, Config, Error, PackedWeights, Problem, Result, check_weights};

use super::device::{self, Device, DeviceWeights};
use super::driver::{Context, DeviceMemory, EncodedLaunch, Stream, graveyard};
use super::expand::TokenForm;
use super::family::Family;
use super::launches::{self, Site, TokenPlace};
use super::operands::{ALIGNMENT, DeviceOutput, DeviceTokens, check_place};
use super::packed::PackedGroup;

/// Calls that a queue remembers.
const REMEMBERED: usize = 512;

/// A call whose launches are known.
#[derive(Debug)]
struct Ready {
    problem: Problem,
    config: Config,
    tokens: Vec<DeviceTokens>,
    outputs: Vec<DeviceOutput>,
    launches: Vec<EncodedLaunch>,
    /// Whose the weights are; the layer may go, and what was prepared for it is then of no use.
    weights: Weak<dyn PackedWeights>,
    /// What the launches work in, kept for as long as they are.
    workspace: Option<Arc<DeviceMemory>>,
}

impl Ready {
    fn is_for(&self, weights: &Arc<dyn PackedWeights>, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> bool {
        std::ptr::addr_eq(self.weights.as_ptr(), Arc::as_ptr(weights))
            && self.tokens == tokens
            && self.outputs == outputs
    }
}

/// A call that was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared(u64);

/// What the graph that is being captured has been given to keep.
#[derive(Debug)]
struct Captured {
    id: u64,
    workspace: Option<Arc<DeviceMemory>>,
    weights: Vec<Weak<dyn PackedWeights>>,
}

/// A stream, and the working memory of what is queued there.
///
/// It may be dropped while work is queued: that is waited for. (In the middle of a capture nobody waits; the memory is then given
/// back later.)
#[derive(Debug)]
pub struct LaunchQueue {
    device: &'static Device,
    stream: Arc<Stream>,
    ready: HashMap<u64, Ready>,
    workspace: Option<Arc<DeviceMemory>>,
    captured: Option<Captured>,
}

impl LaunchQueue {
    /// A queue with a stream of its own on a device.
    pub fn new(device: usize) -> Result<Self> {
        Self::over(device, Stream::new)
    }

    /// A queue on a stream of the caller's: a `CUstream` or `cudaStream_t` as a number, or 0 for the default stream. The stream
    /// must belong to the device's primary context, as those of CUDA's runtime and of PyTorch do.
    ///
    /// # Safety
    ///
    /// The stream must exist, and live as long as the queue.
    pub unsafe fn on_stream(device: usize, stream: u64) -> Result<Self> {
        // SAFETY: the caller's promise is the same.
        Self::over(device, |context| unsafe { Stream::borrowed(context, stream) })
    }

    fn over(device: usize, stream: impl FnOnce(&'static Context) -> Result<Stream>) -> Result<Self> {
        let device = Device::of(device)?;
        let stream = Arc::new(stream(device.context)?);
        Ok(LaunchQueue { device, stream, ready: HashMap::new(), workspace: None, captured: None })
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of working memory that it holds.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.as_ref().map_or(0, |workspace| workspace.bytes())
    }

    /// Forgets every call that was prepared.
    pub fn forget(&mut self) {
        self.ready.clear();
    }

    /// The call with these operands, if it was prepared.
    pub fn prepared(
        &self,
        weights: &Arc<dyn PackedWeights>,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Option<Prepared> {
        let key = key(weights, tokens, outputs);
        self.ready.get(&key).is_some_and(|ready| ready.is_for(weights, tokens, outputs)).then_some(Prepared(key))
    }

    /// Does everything that comes before the queueing: looks at the operands, compiles and allocates.
    pub fn prepare(
        &mut self,
        weights: &Arc<dyn PackedWeights>,
        problem: &Problem,
        config: &Config,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Result<Prepared> {
        let illegal = |reason| Error::Illegal { backend: device::NAME, config: *config, reason };
        self.device.family.legal(problem, config, &self.device.facts).map_err(illegal)?;
        check_weights(problem, weights.as_ref())?;
        let element = token_type(DeviceWeights::on(weights.as_ref(), self.device)?, problem, tokens)?;
        check_operands(self.stream.context(), problem, (element, tokens), outputs)?;
        let workspace = self.workspace(launches::workspace_bytes(self.device.family, problem, config))?;
        let launches =
            self.launches(weights.as_ref(), problem, config, (tokens, true, outputs), workspace.as_deref())?;
        self.ready.retain(|_, ready| ready.weights.strong_count() > 0);
        if self.ready.len() >= REMEMBERED {
            self.ready.clear();
        }
        let ready = Ready {
            problem: problem.clone(),
            config: *config,
            launches,
            tokens: tokens.to_vec(),
            outputs: outputs.to_vec(),
            weights: Arc::downgrade(weights),
            workspace,
        };
        let key = key(weights, tokens, outputs);
        self.ready.insert(key, ready);
        Ok(Prepared(key))
    }

    /// Queues a call that was prepared. Returns before it is computed.
    ///
    /// In a stream that is being captured the launches become part of a graph. The graph keeps what they use: the weights, and
    /// working memory of its own, so that it may be launched beside others and after queue and layer are gone.
    ///
    /// # Safety
    ///
    /// Tokens and results must lie where they were said to, be as large as the shapes say, overlap nowhere, and stay until the
    /// stream has done the work.
    pub unsafe fn launch(&mut self, call: Prepared) -> Result<()> {
        let Some((ready, weights)) = self.ready.get(&call.0).and_then(|ready| Some((ready, ready.weights.upgrade()?)))
        else {
            return Err(Error::Forgotten);
        };
        let Some(capture) = self.stream.capturing()? else {
            DeviceWeights::on(weights.as_ref(), self.device)?.read_by(&self.stream);
            // SAFETY: the launches were made for these operands, which are the caller's promise. The working memory is waited for
            // when the queue goes or needs another, and the weights, which now know this stream, when they go.
            return ready.launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) });
        };
        let captured = match self.captured.take() {
            Some(captured) if captured.id == capture.id() => captured,
            _ => Captured { id: capture.id(), workspace: None, weights: Vec::new() },
        };
        let captured = self.captured.insert(captured);
        if !captured.weights.iter().any(|kept| std::ptr::addr_eq(kept.as_ptr(), Arc::as_ptr(&weights))) {
            capture.keep(Arc::clone(&weights))?;
            captured.weights.push(Arc::downgrade(&weights));
        }
        let Some(bytes) = ready
            .workspace
            .as_ref()
            .map(|_| launches::workspace_bytes(self.device.family, &ready.problem, &ready.config))
        else {
            // SAFETY: the operands are the caller's promise, and the graph keeps the weights.
            return ready.launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) });
        };
        if captured.workspace.as_ref().is_none_or(|workspace| workspace.bytes() < bytes) {
            let workspace = Arc::new(DeviceMemory::new(self.stream.context(), "a graph to work in", bytes)?);
            capture.keep(Arc::clone(&workspace))?;
            captured.workspace = Some(workspace);
        }
        let workspace = captured.workspace.clone();
        let operands = (&ready.tokens[..], true, &ready.outputs[..]);
        let launches =
            self.launches(weights.as_ref(), &ready.problem, &ready.config, operands, workspace.as_deref())?;
        // SAFETY: the operands are the caller's promise, and the graph keeps weights and working memory.
        launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) })
    }

    /// Queues a problem whose plan is made and whose operands are known to be right: tokens are multiplied with what the weights
    /// ask for.
    ///
    /// # Safety
    ///
    /// As for [`LaunchQueue::launch`], for the weights too.
    pub(super) unsafe fn enqueue_planned(
        &mut self,
        weights: &dyn PackedWeights,
        problem: &Problem,
        config: &Config,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Result<()> {
        let workspace = self.workspace(launches::workspace_bytes(self.device.family, problem, config))?;
        let launches = self.launches(weights, problem, config, (tokens, false, outputs), workspace.as_deref())?;
        // SAFETY: the caller's promise; the working memory is the queue's, which waits for its stream before it gives it back.
        launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) })
    }

    /// The launches of a problem, over memory of as many bytes as they need to work in. Tokens are still to be multiplied with the
    /// weights' input scales, or not.
    fn launches(
        &self,
        weights: &dyn PackedWeights,
        problem: &Problem,
        config: &Config,
        (tokens, multiply, outputs): (&[DeviceTokens], bool, &[DeviceOutput]),
        workspace: Option<&DeviceMemory>,
    ) -> Result<Vec<EncodedLaunch>> {
        let context = self.device.context;
        let weights = DeviceWeights::on(weights, self.device)?;
        let (source, places) = sources(self.device.family, weights.groups(), problem, tokens, multiply);
        let targets: Vec<u64> = outputs.iter().map(|output| output.address).collect();
        let site = Site {
            family: self.device.family,
            workspace: workspace.map_or(0, DeviceMemory::address),
            multiprocessors: self.device.facts.multiprocessors,
        };
        let (groups, tokens) = (weights.groups(), (source, &places[..]));
        let launches = launches::launches(site, problem, config, groups, DeviceMemory::address, tokens, &targets)?;
        let encoded = launches.iter().map(|launch| {
            let function = match device::compiled(context, &launch.kernel) {
                Some(function) => function,
                None => {
                    self.unless_capturing("a kernel must be compiled", || device::function(context, &launch.kernel))?
                }
            };
            EncodedLaunch::new(function, launch)
        });
        encoded.collect()
    }

    /// Working memory of at least so many bytes. What is outgrown is given back once the stream has done what uses it.
    fn workspace(&mut self, bytes: usize) -> Result<Option<Arc<DeviceMemory>>> {
        if bytes == 0 {
            return Ok(None);
        }
        if let Some(workspace) = self.workspace.as_ref().filter(|workspace| workspace.bytes() >= bytes) {
            return Ok(Some(Arc::clone(workspace)));
        }
        self.unless_capturing("working memory must be allocated", || Ok(()))?;
        // Half as much again as there was, so that tokens that come in ever larger numbers are not an allocation each.
        let bytes = bytes.max(self.workspace_bytes() * 3 / 2);
        self.stream.synchronize()?;
        self.ready.clear();
        self.workspace = None;
        graveyard::sweep();
        let workspace = Arc::new(DeviceMemory::new(self.stream.context(), "working memory", bytes)?);
        self.workspace = Some(Arc::clone(&workspace));
        Ok(Some(workspace))
    }

    fn unless_capturing<T>(&self, what: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.stream.capturing()?.is_some() { Err(Error::Capture { what }) } else { act() }
    }
}

impl Drop for LaunchQueue {
    fn drop(&mut self) {
        if self.workspace.is_some() && !device::waited_for(&self.stream) {
            self.ready.clear();
            graveyard::bury(Box::new(self.workspace.take()));
        }
    }
}

/// How tokens are expanded, and from where. Where they are still to be multiplied, the factors lie with the weights.
fn sources(
    family: &dyn Family,
    groups: &[PackedGroup<DeviceMemory>],
    problem: &Problem,
    tokens: &[DeviceTokens],
    multiply: bool,
) -> (Option<TokenForm>, Vec<TokenPlace>) {
    let factors: Option<Vec<u64>> =
        groups.iter().map(|group| group.input_scale.as_ref().map(DeviceMemory::address)).collect();
    match factors.filter(|_| multiply).zip(tokens.first()) {
        Some((factors, first)) => {
            let places = tokens.iter().zip(factors).map(|(tokens, scales)| TokenPlace { scales, ..tokens.place });
            (TokenForm::scaled(first.element), places.collect())
        }
        None => (family.expansion(problem.activation()), tokens.iter().map(|tokens| tokens.place).collect()),
    }
}

/// The type that tokens must have: the problem's, or any dense one where weights have input scales, by which it becomes the problem's.
fn token_type(weights: &DeviceWeights, problem: &Problem, tokens: &[DeviceTokens]) -> Result<Activation> {
    let Some(first) = tokens.first().filter(|_| weights.are_scaled()) else { return Ok(problem.activation()) };
    match (first.element, problem.activation()) {
        (Activation::NvFp4, _) => Err(Error::QuantizedTokens { group: 0 }),
        (element, Activation::F32) => Ok(element),
        (_, other) => Err(Error::Mismatch {
            group: 0,
            what: "the problem's type of activations",
            found: other.to_string(),
            expected: "f32, as tokens times an input scale are,".to_owned(),
        }),
    }
}

/// Whether tokens and places for results have a problem's shapes and types (tokens this one), and can be where they are said to be.
fn check_operands(
    context: &Context,
    problem: &Problem,
    (element, tokens): (Activation, &[DeviceTokens]),
    outputs: &[DeviceOutput],
) -> Result<()> {
    let mismatch = |group, what, found: String, expected: String| Error::Mismatch { group, what, found, expected };
    let groups = problem.groups();
    for (count, what) in [(tokens.len(), "the number of groups of tokens"), (outputs.len(), "the number of outputs")] {
        if count != groups.len() {
            return Err(mismatch(count.min(groups.len()), what, count.to_string(), groups.len().to_string()));
        }
    }
    for (group, ((tokens, output), shape)) in tokens.iter().zip(outputs).zip(groups).enumerate() {
        let expected = TokenShape { element, rows: shape.m, k: shape.k };
        if tokens.shape() != expected {
            let [found, expected] = [tokens.shape(), expected].map(|shape| shape.to_string());
            return Err(mismatch(group, "the tokens", found, expected));
        }
        if output.element() != problem.output() {
            let [found, expected] = [output.element(), problem.output()].map(|element| element.to_string());
            return Err(mismatch(group, "the output's element type", found, expected));
        }
        if shape.m > 0 {
            tokens.check(context, group)?;
            let bytes = shape.m * shape.n * problem.output().bytes();
            check_place(context, group, "the results", output.address, bytes, ALIGNMENT)?;
        }
    }
    Ok(())
}

fn key(weights: &Arc<dyn PackedWeights>, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> u64 {
    let mut hasher = DefaultHasher::new();
    Arc::as_ptr(weights).addr().hash(&mut hasher);
    for token in tokens {
        let TokenPlace { values, scales, global, exponent } = token.place;
        (values, scales, global.value().to_bits(), exponent, token.rows).hash(&mut hasher);
    }
    outputs.iter().for_each(|output| output.address.hash(&mut hasher));
    hasher.finish()
}
