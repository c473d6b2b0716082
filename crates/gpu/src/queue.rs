//! Launches on memory of the caller's, in the caller's stream.
//!
//! A [`LaunchQueue`] is one stream with the working memory of what is queued there. [`LaunchQueue::prepare`] looks at addresses, compiles and
//! allocates, and [`LaunchQueue::launch`] queues what was prepared: without an allocation and without waiting for anything, so
//! that it can be captured in a CUDA graph. Who decides on the configuration stands above this crate.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use op::{Config, Error, PackedWeights, Problem, Result};

use super::device;
use super::driver::{Context, DeviceMemory, EncodedLaunch, Stream};
use super::launches::{self, TokenPlace};
use super::operands::{ALIGNMENT, DeviceOutput, DeviceTokens, check_place};
use super::pack::PackedGroups;

/// Calls that a queue remembers.
const REMEMBERED: usize = 512;

/// A call whose launches are known.
#[derive(Debug)]
struct Ready {
    tokens: Vec<DeviceTokens>,
    outputs: Vec<DeviceOutput>,
    launches: Vec<EncodedLaunch>,
    /// What the launches use besides the caller's memory, kept for as long as they are.
    weights: Arc<dyn PackedWeights>,
    workspace: Option<Arc<DeviceMemory>>,
}

impl Ready {
    fn is_for(&self, weights: &Arc<dyn PackedWeights>, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> bool {
        Arc::ptr_eq(&self.weights, weights) && self.tokens == tokens && self.outputs == outputs
    }
}

/// A call that was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared(u64);

/// A stream, and the working memory of what is queued there.
#[derive(Debug)]
pub struct LaunchQueue {
    stream: Stream,
    ready: HashMap<u64, Ready>,
    workspace: Option<Arc<DeviceMemory>>,
    /// Working memory that graphs may use: kept as long as the queue.
    captured: Vec<Arc<DeviceMemory>>,
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
        let stream = stream(device::context(device)?)?;
        Ok(LaunchQueue { stream, ready: HashMap::new(), workspace: None, captured: Vec::new() })
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

    /// Does everything that comes before the queueing: looks at the operands, compiles and allocates. Tokens, outputs and weights
    /// are of the problem's shapes and types, and the configuration is legal for it.
    pub fn prepare(
        &mut self,
        weights: &Arc<dyn PackedWeights>,
        problem: &Problem,
        config: &Config,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Result<Prepared> {
        let context = self.stream.context();
        for (group, shape) in problem.groups().iter().enumerate().filter(|(_, shape)| shape.m > 0) {
            tokens[group].check(context, group)?;
            let bytes = shape.m * shape.n * problem.output().bytes();
            check_place(context, group, "the results", outputs[group].address, bytes, ALIGNMENT)?;
        }
        let (launches, workspace) = self.launches(weights.as_ref(), problem, config, tokens, outputs)?;
        if self.ready.len() >= REMEMBERED {
            self.ready.clear();
        }
        let (key, weights) = (key(weights, tokens, outputs), Arc::clone(weights));
        let ready = Ready { launches, tokens: tokens.to_vec(), outputs: outputs.to_vec(), weights, workspace };
        self.ready.insert(key, ready);
        Ok(Prepared(key))
    }

    /// Queues a call that was prepared. Returns before it is computed.
    ///
    /// # Safety
    ///
    /// Tokens and results must lie where they were said to, be as large as the shapes say, overlap nowhere, and stay until the
    /// stream has done the work; so must the weights and the queue itself.
    pub unsafe fn launch(&mut self, call: Prepared) -> Result<()> {
        let Some(ready) = self.ready.get(&call.0) else { return Ok(()) };
        if let Some(workspace) = &ready.workspace
            && !self.captured.iter().any(|kept| Arc::ptr_eq(kept, workspace))
            && self.stream.is_capturing()?
        {
            self.captured.push(Arc::clone(workspace));
        }
        // SAFETY: the launches were made for these operands, which are the caller's promise; working memory and weights are
        // kept beside them.
        ready.launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) })
    }

    /// Queues a problem whose plan is made and whose operands are known to be right.
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
        let (launches, _workspace) = self.launches(weights, problem, config, tokens, outputs)?;
        // SAFETY: the caller's promise; the working memory is the queue's, which gives it back only after waiting for the
        // device.
        launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) })
    }

    /// The launches of a problem, and the memory they work in.
    fn launches(
        &mut self,
        weights: &dyn PackedWeights,
        problem: &Problem,
        config: &Config,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Result<(Vec<EncodedLaunch>, Option<Arc<DeviceMemory>>)> {
        let context = self.stream.context();
        let groups = PackedGroups::on(weights, context)?;
        let workspace = self.workspace(launches::workspace_bytes(problem, config))?;
        let places: Vec<TokenPlace> = tokens.iter().map(|tokens| tokens.place).collect();
        let targets: Vec<u64> = outputs.iter().map(|output| output.address).collect();
        let at = workspace.as_ref().map_or(0, |workspace| workspace.address());
        let device = (at, context.info().multiprocessors);
        let launches = launches::launches(problem, config, groups, DeviceMemory::address, &places, &targets, device)?;
        let encoded = launches.iter().map(|launch| {
            let function = match device::compiled(context, launch.kernel) {
                Some(function) => function,
                None => {
                    self.unless_capturing("a kernel must be compiled", || device::function(context, launch.kernel))?
                }
            };
            EncodedLaunch::new(function, launch)
        });
        Ok((encoded.collect::<Result<_>>()?, workspace))
    }

    /// Working memory of at least so many bytes. What is outgrown goes when nothing that was remembered uses it.
    fn workspace(&mut self, bytes: usize) -> Result<Option<Arc<DeviceMemory>>> {
        if bytes == 0 {
            return Ok(None);
        }
        if let Some(workspace) = self.workspace.as_ref().filter(|workspace| workspace.bytes() >= bytes) {
            return Ok(Some(Arc::clone(workspace)));
        }
        let context = self.stream.context();
        // Half as much again as there was, so that tokens that come in ever larger numbers are not an allocation each.
        let bytes = bytes.max(self.workspace_bytes() * 3 / 2);
        self.unless_capturing("working memory must be allocated", || Ok(()))?;
        self.ready.clear();
        self.workspace = None;
        let workspace = Arc::new(DeviceMemory::new(context, "working memory", bytes)?);
        self.workspace = Some(Arc::clone(&workspace));
        Ok(Some(workspace))
    }

    fn unless_capturing<T>(&self, what: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.stream.is_capturing()? { Err(Error::Capture { what }) } else { act() }
    }
}

fn key(weights: &Arc<dyn PackedWeights>, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> u64 {
    let mut hasher = DefaultHasher::new();
    Arc::as_ptr(weights).addr().hash(&mut hasher);
    for token in tokens {
        let TokenPlace { values, scales, global, exponent } = token.place;
        (values, scales, global.to_bits(), exponent, token.rows).hash(&mut hasher);
    }
    outputs.iter().for_each(|output| output.address.hash(&mut hasher));
    hasher.finish()
}
