//! Computing on memory of the caller's, in the caller's stream: what a program uses whose tensors are on the GPU already.
//!
//! A [`Queue`] is one stream with the working memory of what is queued there. [`Queue::enqueue`] looks at addresses, plans,
//! compiles and allocates the first time it sees them; the same call again only queues the launches, without an allocation
//! and without waiting for anything, and can be captured in a CUDA graph. Work that was queued before it in the stream is
//! done before, work that is queued after it sees its results, as with any kernel.
//!
//! Several queues may be used at the same time, from several threads: each has memory of its own, and layers are only read.
//! One queue serves one stream, since what is queued there shares its working memory one after another.
//!
//! ```no_run
//! use hammerhead::gpu::{DeviceOutput, DeviceTokens, Queue};
//! # fn example(layer: &hammerhead::Layer, tokens: u64, c: u64, stream: u64) -> hammerhead::Result<()> {
//! // Device 0, and a stream of the caller's by its handle; 0 is the default stream.
//! // SAFETY: the stream lives as long as the queue.
//! let mut queue = unsafe { Queue::on_stream(0, stream) }?;
//! let tokens = [DeviceTokens::f16(tokens, 256, 7168)];
//! let outputs = [DeviceOutput::f16(c)];
//! // SAFETY: the tensors are as large as that and stay until the stream has done the work.
//! unsafe { queue.enqueue(layer, &tokens, &outputs) }
//! # }
//! ```

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::cuda::{self, Cuda};
use super::driver::{Context, DeviceMemory, EncodedLaunch, PointerKind, Stream};
use super::launches::{self, TokenPlace};
use crate::backend::Packed;
use crate::{Activation, Activations, Config, Error, Layer, Output, Plan, Problem, Request, Result, Shape};

/// Calls that a queue remembers.
const REMEMBERED: usize = 512;
/// Problems whose plans a queue remembers.
const PLANNED: usize = 64;
/// What addresses of dense tokens and of results must be a multiple of.
const ALIGNMENT: u64 = 16;
/// What addresses of codes must be a multiple of.
const CODE_ALIGNMENT: u64 = 4;

/// The tokens of one group, `[rows, k]` without gaps, in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceTokens {
    element: Activation,
    place: TokenPlace,
    rows: usize,
    k: usize,
}

impl DeviceTokens {
    fn dense(element: Activation, values: u64, rows: usize, k: usize) -> Self {
        DeviceTokens { element, place: TokenPlace { values, scales: 0, global: 1.0, exponent: 0 }, rows, k }
    }

    /// Half-precision tokens at an address that is a multiple of 16.
    pub fn f16(address: u64, rows: usize, k: usize) -> Self {
        Self::dense(Activation::F16, address, rows, k)
    }

    /// bfloat16 tokens at an address that is a multiple of 16.
    pub fn bf16(address: u64, rows: usize, k: usize) -> Self {
        Self::dense(Activation::BF16, address, rows, k)
    }

    /// Single-precision tokens at an address that is a multiple of 16.
    pub fn f32(address: u64, rows: usize, k: usize) -> Self {
        Self::dense(Activation::F32, address, rows, k)
    }

    /// NVFP4 tokens: codes `[rows, k/2]` at an address that is a multiple of 4, the low half of a byte first; row-major e4m3
    /// scales `[rows, k/16]`, none of them NaN; and the scale of the whole.
    pub fn nvfp4(codes: u64, scales: u64, rows: usize, k: usize, global: f32) -> Self {
        let place = TokenPlace { values: codes, scales, global, exponent: 0 };
        DeviceTokens { element: Activation::NvFp4, place, rows, k }
    }

    /// The same tokens, all multiplied by a number.
    pub fn scaled_by(self, global: f32) -> Self {
        DeviceTokens { place: TokenPlace { global, ..self.place }, ..self }
    }

    /// Copies of the host's activations at these addresses, of which the largest magnitude is known if they are dense.
    pub(super) fn of(activations: &Activations<'_>, largest: f32, values: u64, scales: u64) -> Self {
        let (element, rows, k) = (activations.element(), activations.rows(), activations.k());
        DeviceTokens { element, place: TokenPlace::of(activations, largest, values, scales), rows, k }
    }

    /// Looks at where they are.
    fn check(&self, context: &Context, group: usize) -> Result<()> {
        let bytes = self.rows * self.element.row_bytes(self.k);
        if self.element != Activation::NvFp4 {
            return check_place(context, group, "the tokens", self.place.values, bytes, ALIGNMENT);
        }
        let scales = self.rows * self.k / format::BLOCK;
        check_place(context, group, "the tokens' codes", self.place.values, bytes - scales, CODE_ALIGNMENT)?;
        check_place(context, group, "the tokens' scales", self.place.scales, scales, 1)
    }
}

/// Where one group's C goes: row-major `[rows, n]` in the device's memory, at an address that is a multiple of 16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceOutput {
    element: Output,
    address: u64,
}

impl DeviceOutput {
    /// A place for results of this type.
    pub fn new(element: Output, address: u64) -> Self {
        DeviceOutput { element, address }
    }

    /// A place for half-precision results.
    pub fn f16(address: u64) -> Self {
        Self::new(Output::F16, address)
    }

    /// A place for bfloat16 results.
    pub fn bf16(address: u64) -> Self {
        Self::new(Output::BF16, address)
    }

    /// A place for single-precision results.
    pub fn f32(address: u64) -> Self {
        Self::new(Output::F32, address)
    }
}

/// A call whose launches are known.
#[derive(Debug)]
struct Ready {
    tokens: Vec<DeviceTokens>,
    outputs: Vec<DeviceOutput>,
    launches: Vec<EncodedLaunch>,
    /// What the launches use besides the caller's memory, kept for as long as they are.
    weights: Arc<Packed>,
    workspace: Option<Arc<DeviceMemory>>,
}

impl Ready {
    fn is_for(&self, weights: &Arc<Packed>, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> bool {
        Arc::ptr_eq(&self.weights, weights) && self.tokens == tokens && self.outputs == outputs
    }
}

/// A stream, and the working memory of what is queued there.
#[derive(Debug)]
pub struct Queue {
    stream: Stream,
    backend: &'static Cuda,
    request: Request,
    plans: Vec<(Problem, Config)>,
    ready: HashMap<u64, Ready>,
    workspace: Option<Arc<DeviceMemory>>,
    /// Working memory that graphs may use: kept as long as the queue.
    captured: Vec<Arc<DeviceMemory>>,
}

impl Queue {
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
        let (backend, context) = (Cuda::on(device)?, cuda::context(device)?);
        let (plans, ready, captured) = (Vec::new(), HashMap::new(), Vec::new());
        let (stream, request) = (stream(context)?, Request::default());
        Ok(Queue { stream, backend, request, plans, ready, workspace: None, captured })
    }

    /// The same queue, in which every configuration grants a request.
    pub fn with_request(self, request: Request) -> Self {
        Queue { request, ..self }
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of working memory that it holds.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.as_ref().map_or(0, |workspace| workspace.bytes())
    }

    /// Queues C of every group. Returns before it is computed.
    ///
    /// In a stream that is being captured this needs a call with the same layer, shapes and types before the capture (or
    /// [`Queue::prepare`]), so that nothing has to be compiled or allocated in it. A graph captured so may be launched for as long
    /// as queue, layer and tensors live, by one stream at a time.
    ///
    /// Activations are not looked at: a value that is not finite spoils its row, and sums of single precision or bfloat16
    /// that leave f32's range are infinite.
    ///
    /// # Safety
    ///
    /// Tokens and results must lie where they are said to, be as large as the shapes say, overlap nowhere, and stay until the
    /// stream has done the work; so must the layer and the queue itself.
    pub unsafe fn enqueue(&mut self, layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<()> {
        let key = self.remembered(layer, tokens, outputs)?;
        let Some(ready) = self.ready.get(&key) else { return Ok(()) };
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

    /// Does everything that comes before the queueing: looks at the operands, plans, compiles and allocates.
    pub fn prepare(&mut self, layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<()> {
        self.remembered(layer, tokens, outputs).map(|_| ())
    }

    /// The key under which a call is remembered; it is prepared if it was not.
    fn remembered(&mut self, layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<u64> {
        let key = key(layer, tokens, outputs);
        if !self.ready.get(&key).is_some_and(|ready| ready.is_for(layer.packed(), tokens, outputs)) {
            let ready = self.make_ready(layer, tokens, outputs)?;
            if self.ready.len() >= REMEMBERED {
                self.ready.clear();
            }
            self.ready.insert(key, ready);
        }
        Ok(key)
    }

    fn make_ready(&mut self, layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<Ready> {
        let context = self.stream.context();
        let problem = problem_of(layer, tokens, outputs)?;
        for (group, shape) in problem.groups().iter().enumerate().filter(|(_, shape)| shape.m > 0) {
            tokens[group].check(context, group)?;
            let bytes = shape.m * shape.n * problem.output().bytes();
            check_place(context, group, "the results", outputs[group].address, bytes, ALIGNMENT)?;
        }
        let config = self.planned(&problem)?;
        let (launches, workspace) = self.launches(layer.packed(), &problem, &config, tokens, outputs)?;
        Ok(Ready {
            launches,
            tokens: tokens.to_vec(),
            outputs: outputs.to_vec(),
            weights: Arc::clone(layer.packed()),
            workspace,
        })
    }

    /// How a problem is computed, planned the first time. The latest stand last.
    fn planned(&mut self, problem: &Problem) -> Result<Config> {
        if let Some(at) = self.plans.iter().position(|(known, _)| known == problem) {
            self.plans[at..].rotate_left(1);
        } else {
            // The device does not care, but what was measured here is filed under the number of threads.
            let threads = std::thread::available_parallelism().map_or(1, Into::into);
            let config = *Plan::best(problem.clone(), &[self.backend], &self.request, threads)?.config();
            if self.plans.len() >= PLANNED {
                self.plans.remove(0);
            }
            self.plans.push((problem.clone(), config));
        }
        Ok(self.plans[self.plans.len() - 1].1)
    }

    /// Queues a problem whose plan is made and whose operands are known to be right.
    ///
    /// # Safety
    ///
    /// As for [`Queue::enqueue`], for the weights too.
    pub(super) unsafe fn enqueue_planned(
        &mut self,
        weights: &Packed,
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
        weights: &Packed,
        problem: &Problem,
        config: &Config,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Result<(Vec<EncodedLaunch>, Option<Arc<DeviceMemory>>)> {
        let context = self.stream.context();
        let groups = cuda::groups(weights, context)?;
        let workspace = self.workspace(launches::workspace_bytes(problem, config))?;
        let places: Vec<TokenPlace> = tokens.iter().map(|tokens| tokens.place).collect();
        let targets: Vec<u64> = outputs.iter().map(|output| output.address).collect();
        let at = workspace.as_ref().map_or(0, |workspace| workspace.address());
        let device = (at, context.info().multiprocessors);
        let launches = launches::launches(problem, config, groups, DeviceMemory::address, &places, &targets, device)?;
        let encoded = launches.iter().map(|launch| {
            let function = match cuda::compiled(context, launch.which) {
                Some(function) => function,
                None => self.unless_capturing("a kernel must be compiled", || cuda::function(context, launch.which))?,
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

fn key(layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> u64 {
    let mut hasher = DefaultHasher::new();
    Arc::as_ptr(layer.packed()).addr().hash(&mut hasher);
    for token in tokens {
        let TokenPlace { values, scales, global, exponent } = token.place;
        (values, scales, global.to_bits(), exponent, token.rows).hash(&mut hasher);
    }
    outputs.iter().for_each(|output| output.address.hash(&mut hasher));
    hasher.finish()
}

/// Joins tokens, layer and places for results to a problem, refusing what does not belong together.
fn problem_of(layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<Problem> {
    let columns = layer.columns();
    let mismatch = |group, what, found: String, expected: String| Error::Mismatch { group, what, found, expected };
    for (count, what) in [(tokens.len(), "the number of groups of tokens"), (outputs.len(), "the number of outputs")] {
        if count != columns.len() {
            let expected = format!("{} (one a group of weights)", columns.len());
            return Err(mismatch(count.min(columns.len()), what, count.to_string(), expected));
        }
    }
    let (Some(first), Some(output)) = (tokens.first(), outputs.first()) else { return Err(Error::NoGroups) };
    let mut shapes = Vec::with_capacity(columns.len());
    for (group, ((token, place), &(n, k))) in tokens.iter().zip(outputs).zip(columns).enumerate() {
        if token.k % format::BLOCK != 0 || token.k == 0 {
            return Err(Error::K { group, k: token.k });
        }
        if token.k != k {
            let expected = format!("{k}, as the weights have,");
            return Err(mismatch(group, "k of the tokens", token.k.to_string(), expected));
        }
        if token.element != first.element {
            let expected = format!("{}, as group 0 has,", first.element);
            return Err(mismatch(group, "the tokens' element type", token.element.to_string(), expected));
        }
        if place.element != output.element {
            let expected = format!("{}, as group 0 has,", output.element);
            return Err(mismatch(group, "the output's element type", place.element.to_string(), expected));
        }
        shapes.push(Shape::new(token.rows, n, k));
    }
    Problem::new(shapes, layer.gate(), first.element, output.element)
}

/// Whether there can be so many bytes of the device's memory at an address.
fn check_place(
    context: &Context,
    group: usize,
    what: &'static str,
    address: u64,
    bytes: usize,
    alignment: u64,
) -> Result<()> {
    let refuse = |reason: String, remedy| Err(Error::Pointer { group, what, address, reason, remedy });
    if address == 0 {
        return refuse("is null".to_owned(), "give the tensor's data pointer");
    }
    if !address.is_multiple_of(alignment) {
        let reason = format!("is not a multiple of {alignment}");
        return refuse(reason, "copy the tensor to memory of its own, or take whole rows of it");
    }
    let device = context.ordinal();
    match context.pointer_kind(address)? {
        PointerKind::Unknown => {
            refuse("is not the device's memory".to_owned(), "copy the tensor to the GPU, or run with host slices")
        }
        PointerKind::Host => {
            refuse("is memory of the host".to_owned(), "copy the tensor to the GPU, or run with host slices")
        }
        PointerKind::Device { ordinal, .. } if ordinal != device => {
            let reason = format!("is memory of device {ordinal}, and the queue's is device {device}");
            refuse(reason, "load the layer and open the queue on the tensor's device")
        }
        PointerKind::Device { foreign: true, .. } => {
            let reason = "belongs to a context that is not the device's primary one".to_owned();
            refuse(reason, "allocate it in the primary context (cuDevicePrimaryCtxRetain), as CUDA's runtime does")
        }
        PointerKind::Device { bytes: Some(there), .. } if there < bytes => {
            let reason = format!("has {there} bytes behind it where {bytes} are needed");
            refuse(reason, "check shape and element type of the tensor")
        }
        PointerKind::Device { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Gate, Options, Weights};
    use format::Matrix;

    /// A layer of two groups, 8 × 32 and 4 × 64. Shapes are looked at before places, so it need not be on a device.
    fn layer() -> Layer {
        let options = Options { backend: Some("scalar".into()), threads: Some(1), ..Options::default() };
        let zeros = |n, k| Matrix::new(n, k, vec![0; n * k / 2], vec![0; n * k / 16], 1.0).unwrap();
        let weights = [(8, 32), (4, 64)].map(|(n, k)| Weights::plain(zeros(n, k)));
        Engine::new(options).unwrap().load(&weights, Gate::None).unwrap()
    }

    fn refusal(tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> String {
        problem_of(&layer(), tokens, outputs).unwrap_err().to_string()
    }

    #[test]
    fn tokens_and_places_that_fit_a_layer_are_a_problem() {
        let tokens = [DeviceTokens::bf16(0, 3, 32), DeviceTokens::bf16(0, 0, 64)];
        let problem = problem_of(&layer(), &tokens, &[DeviceOutput::f32(0); 2]).unwrap();
        assert_eq!(problem.groups(), [Shape::new(3, 8, 32), Shape::new(0, 4, 64)]);
        assert_eq!((problem.activation(), problem.output()), (Activation::BF16, Output::F32));
    }

    #[test]
    fn tensors_that_do_not_fit_the_layer_are_refused_by_group() {
        let (tokens, outputs) = ([DeviceTokens::f16(0, 3, 32), DeviceTokens::f16(0, 1, 64)], [DeviceOutput::f16(0); 2]);
        assert!(refusal(&tokens[..1], &outputs).contains("number of groups of tokens is 1"));
        assert!(refusal(&tokens, &outputs[..1]).contains("number of outputs is 1"));
        let short = refusal(&[tokens[0], DeviceTokens::f16(0, 1, 24)], &outputs);
        assert!(short.contains("group 1 has k = 24") && short.contains("multiple of 16"), "{short}");
        let other = refusal(&[tokens[0], DeviceTokens::f16(0, 1, 32)], &outputs);
        assert!(other.contains("group 1") && other.contains("is 32") && other.contains("64"), "{other}");
        let mixed = refusal(&[tokens[0], DeviceTokens::nvfp4(0, 0, 1, 64, 1.0)], &outputs);
        assert!(mixed.contains("nvfp4") && mixed.contains("f16"), "{mixed}");
        let mixed = refusal(&tokens, &[outputs[0], DeviceOutput::bf16(0)]);
        assert!(mixed.contains("bf16") && mixed.contains("group 1"), "{mixed}");
    }

    #[test]
    fn calls_with_other_tensors_are_remembered_apart() {
        let (layer, out) = (layer(), [DeviceOutput::f16(64)]);
        let keys = [16, 32].map(|address| key(&layer, &[DeviceTokens::f16(address, 1, 32)], &out));
        assert_ne!(keys[0], keys[1]);
    }
}
