//! Computing on memory of the caller's, in the caller's stream: what a program uses whose tensors are on the GPU
//! already.
//!
//! The first call with a layer and tensors looks at addresses, plans, compiles and allocates; the same call again only
//! queues the launches, without an allocation and without waiting for anything, and can be captured in a CUDA graph.
//! Work that was queued before it in the stream is done before, work that is queued after it sees its results, as with
//! any kernel.
//!
//! Several queues may be used at the same time, from several threads: each has memory of its own, and layers are only
//! read. One queue serves one stream, since what is queued there shares its working memory one after another.
//!
//! ```no_run
//! use hammerhead::gpu::{DeviceOutput, DeviceTokens, Queue};
//! # fn example(layer: &hammerhead::Layer, tokens: u64, c: u64, stream: u64) -> hammerhead::Result<()> {
//! // Device 0, and a stream of the caller's by its handle; 0 is the default stream. Kept while the stream is used.
//! // SAFETY: the stream lives as long as the queue.
//! let mut queue = unsafe { Queue::on_stream(0, stream) }?;
//! let tokens = [DeviceTokens::f16(tokens, 256, 7168)];
//! let outputs = [DeviceOutput::f16(c)];
//! // SAFETY: the tensors are as large as that and stay until the stream has done the work.
//! unsafe { queue.enqueue(layer, &tokens, &outputs) }?;
//! // Dropping a queue, or a layer, waits for the work that uses it.
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use gpu::driver::Stream;
use gpu::host::DeviceRouting;
use gpu::loaded::DeviceAdapters;
use gpu::{Cuda, DeviceOutput, DeviceTokens, LaunchQueue, Prepared};
use op::operands::problem_of;
use op::{Error, Problem, Request, Result};

use crate::planner::Planner;
use crate::{Experts, Fp8Linear, Layer, Mlp};

/// A stream, and the plans and the working memory of what is queued there.
#[derive(Debug)]
pub struct Queue {
    launches: LaunchQueue,
    planner: Planner,
}

impl Queue {
    /// A queue with a stream of its own on a device.
    pub fn new(device: usize) -> Result<Self> {
        Self::over(device, LaunchQueue::new(device)?)
    }

    /// A queue on a stream of the caller's: a `CUstream` or `cudaStream_t` as a number, or 0 for the default stream.
    /// The stream must belong to the device's primary context, as those of CUDA's runtime and of PyTorch do.
    ///
    /// # Safety
    ///
    /// The stream must exist, and live as long as the queue.
    pub unsafe fn on_stream(device: usize, stream: u64) -> Result<Self> {
        // SAFETY: the caller's promise is the same.
        Self::over(device, unsafe { LaunchQueue::on_stream(device, stream) }?)
    }

    fn over(device: usize, launches: LaunchQueue) -> Result<Self> {
        Ok(Queue { launches, planner: planner(Cuda::on(device)?, Request::default()) })
    }

    /// The same queue, in which every configuration grants a request. What was planned before is planned anew.
    pub fn with_request(mut self, request: Request) -> Self {
        self.launches.forget();
        let planner = Planner::new(self.planner.backends().to_vec(), request, self.planner.threads());
        Queue { planner, ..self }
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        self.launches.stream()
    }

    /// Bytes of working memory that it holds.
    pub fn workspace_bytes(&self) -> usize {
        self.launches.workspace_bytes()
    }

    /// Queues a whole layer of experts over tokens `[rows, k]`; results `[rows, k]` go to `out`. Returns before it is
    /// computed: ids, weights and logits stay on the device, and nothing waits for them. The layer must be in the
    /// device's memory as a whole, as one that an engine of `cuda` alone has packed is. `workspace` is memory of the
    /// caller's to work in, its address a multiple of 256, and how many bytes there are: at least what
    /// [`Experts::queue_workspace_bytes`] says. Without one the queue uses its own, and in a graph one that the graph
    /// keeps.
    ///
    /// In a stream that is being captured this needs a call with the same layer, number of tokens and types before. The
    /// graph serves whatever the tensors hold when it is launched, and keeps the layer.
    ///
    /// What only the device sees is defined, not refused: see [`gpu::loaded`].
    ///
    /// # Safety
    ///
    /// As for [`Queue::enqueue`], for logits, ids, weights and a workspace too. Graphs of calls that bring weights over
    /// ([`Experts::streams_from`]), captured in one queue and without a workspace of the caller's, are launched one
    /// after another: they bring them to the same places.
    pub unsafe fn enqueue_experts(
        &mut self,
        layer: &Experts,
        tokens: DeviceTokens,
        routing: DeviceRouting<'_>,
        out: DeviceOutput,
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { layer.enqueue(&mut self.launches, tokens, routing, None, out, workspace) }
    }

    /// Does everything that comes before the queueing of such a call in the queue's own memory: looks at the operands,
    /// plans, compiles, allocates, and makes a graph of the launches.
    pub fn prepare_experts(
        &mut self,
        layer: &Experts,
        tokens: DeviceTokens,
        routing: DeviceRouting<'_>,
        out: DeviceOutput,
    ) -> Result<()> {
        layer.prepare(&mut self.launches, tokens, routing, out)
    }

    /// [`Queue::enqueue_experts`] with adapters beside the weights: those that [`Experts::device_adapters`] has put
    /// there, and where the number of each token's is, 32 bits each; a token whose number is no adapter's, such as -1,
    /// has none. A workspace of the caller's is not taken: the queue's own is.
    ///
    /// # Safety
    ///
    /// As for [`Queue::enqueue_experts`], for the numbers too.
    pub unsafe fn enqueue_adapted_experts(
        &mut self,
        layer: &Experts,
        tokens: DeviceTokens,
        routing: DeviceRouting<'_>,
        adapted: (&Arc<DeviceAdapters>, u64),
        out: DeviceOutput,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { layer.enqueue(&mut self.launches, tokens, routing, Some(adapted), out, None) }
    }

    /// Queues the move of experts to and from the device, where it holds some of a layer's and the processor has the
    /// others ([`crate::LayerOptions::gpu_bytes`]): as many as [`Experts::resident`] names. What was queued before
    /// finds the old ones there, what is queued behind it these; graphs of the layer are to be launched in this stream,
    /// or in the order of it. Nothing waits but the stream, for the copies.
    pub fn place_experts(&mut self, layer: &Experts, experts: &[u32]) -> Result<()> {
        layer.place(&self.launches, experts)
    }

    /// Queues an MLP, as [`Queue::enqueue_experts`] does a layer of experts.
    ///
    /// # Safety
    ///
    /// As for [`Queue::enqueue`].
    pub unsafe fn enqueue_mlp(
        &mut self,
        layer: &Mlp,
        tokens: DeviceTokens,
        out: DeviceOutput,
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { layer.enqueue(&mut self.launches, tokens, out, workspace) }
    }

    /// Queues C of every group. Returns before it is computed.
    ///
    /// In a stream that is being captured this needs a call with the same layer, shapes and types before the capture
    /// (or [`Queue::prepare`]), so that nothing has to be compiled in it. The graph keeps the layer's weights and
    /// working memory of its own: it may be launched for as long as the tensors live, beside other graphs, and after
    /// queue and layer are gone. What it kept is given back by the first call of this library after the graph was
    /// destroyed.
    ///
    /// Activations are not looked at: a value that is not finite spoils its row (but for infinite sums that the limits
    /// of gpt-oss's gate cut off like any large one), and sums of single precision or bfloat16 that leave f32's range
    /// are infinite.
    ///
    /// # Safety
    ///
    /// Tokens and results must lie where they are said to, be as large as the shapes say, overlap nowhere, and stay
    /// until the stream has done the work. (Layer and queue need not: dropping either waits for what was queued.)
    pub unsafe fn enqueue(&mut self, layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<()> {
        let call = self.prepared(layer, tokens, outputs)?;
        // SAFETY: the call was prepared for these operands, and the rest is the caller's promise.
        unsafe { self.launches.launch(call) }
    }

    /// Queues an FP8 linear layer, as [`Queue::enqueue`] does any other product. It must be in the device's memory, as
    /// one that an engine of `cuda` alone has packed is.
    ///
    /// # Safety
    ///
    /// As for [`Queue::enqueue`].
    pub unsafe fn enqueue_fp8(&mut self, layer: &Fp8Linear, tokens: DeviceTokens, out: DeviceOutput) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.enqueue(layer.on_device()?, &[tokens], &[out]) }
    }

    /// Does everything that comes before the queueing of such a call.
    pub fn prepare_fp8(&mut self, layer: &Fp8Linear, tokens: DeviceTokens, out: DeviceOutput) -> Result<()> {
        self.prepare(layer.on_device()?, &[tokens], &[out])
    }

    /// Does everything that comes before the queueing: looks at the operands, plans, compiles and allocates.
    pub fn prepare(&mut self, layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<()> {
        self.prepared(layer, tokens, outputs).map(drop)
    }

    fn prepared(&mut self, layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<Prepared> {
        if let Some(call) = self.launches.prepared(layer.packed(), layer.precision(), tokens, outputs) {
            return Ok(call);
        }
        let problem = device_problem(layer, tokens, outputs)?;
        let (_, config) = self.planner.choose(&problem)?;
        self.launches.prepare(layer.packed(), &problem, &config, tokens, outputs)
    }
}

/// The device does not care for threads, but what was measured here is filed under their number.
fn planner(backend: &'static Cuda, request: Request) -> Planner {
    Planner::new(vec![backend], request, std::thread::available_parallelism().map_or(1, Into::into))
}

/// Joins tokens, layer and places for results to a problem, refusing what does not belong together.
fn device_problem(layer: &Layer, tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> Result<Problem> {
    let mismatch = |group, what, found: String, expected: String| Error::Mismatch { group, what, found, expected };
    let groups = layer.shapes().len();
    if outputs.len() != groups {
        let expected = format!("{groups} (one per group of weights)");
        return Err(mismatch(outputs.len().min(groups), "the number of outputs", outputs.len().to_string(), expected));
    }
    let Some(first) = outputs.first() else { return Err(Error::NoGroups) };
    if let Some(group) = outputs.iter().position(|place| place.element() != first.element()) {
        let expected = format!("{}, as group 0 has,", first.element());
        return Err(mismatch(group, "the output's element type", outputs[group].element().to_string(), expected));
    }
    let problem = problem_of(tokens.iter().map(DeviceTokens::shape), layer.shapes(), layer.gate(), first.element())?;
    layer.input_scales().problem(problem.with_precision(layer.precision())?.with_scaling(layer.packed().scaling())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::Matrix;
    use op::{Activation, Gate, Output, Shape, Weights};

    use crate::{Engine, Options};

    /// A layer of two groups, 8 × 32 and 4 × 64. Shapes are looked at before places, so it need not be on a device.
    fn layer() -> Layer {
        let options = Options { backend: Some("scalar".into()), threads: Some(1), ..Options::default() };
        let zeros = |n, k| Matrix::new(n, k, vec![0; n * k / 2], vec![0; n * k / 16], 1.0).unwrap();
        let weights = [(8, 32), (4, 64)].map(|(n, k)| Weights::plain(zeros(n, k)));
        Engine::new(options).unwrap().load(&weights, Gate::None).unwrap()
    }

    fn refusal(tokens: &[DeviceTokens], outputs: &[DeviceOutput]) -> String {
        device_problem(&layer(), tokens, outputs).unwrap_err().to_string()
    }

    #[test]
    fn tokens_and_places_that_fit_a_layer_are_a_problem() {
        let tokens = [DeviceTokens::bf16(0, 3, 32), DeviceTokens::bf16(0, 0, 64)];
        let problem = device_problem(&layer(), &tokens, &[DeviceOutput::f32(0); 2]).unwrap();
        assert_eq!(problem.groups(), [Shape::new(3, 8, 32), Shape::new(0, 4, 64)]);
        assert_eq!((problem.activation(), problem.output()), (Activation::BF16, Output::F32));
    }

    #[test]
    fn tokens_with_an_input_scale_are_a_problem_of_single_precision_and_cannot_be_quantised() {
        let options = Options { backend: Some("scalar".into()), threads: Some(1), ..Options::default() };
        let matrix = Matrix::new(8, 32, vec![0; 128], vec![0; 16], 1.0).unwrap();
        let weights = [Weights::plain(matrix).with_input_scale(vec![2.0; 32]).unwrap()];
        let layer = Engine::new(options).unwrap().load(&weights, Gate::None).unwrap();
        let problem = device_problem(&layer, &[DeviceTokens::f16(0, 3, 32)], &[DeviceOutput::f16(0)]).unwrap();
        assert_eq!((problem.activation(), problem.output()), (Activation::F32, Output::F16));
        let refused = device_problem(&layer, &[DeviceTokens::nvfp4(0, 0, 3, 32, 1.0)], &[DeviceOutput::f16(0)]);
        assert!(matches!(refused, Err(Error::QuantizedTokens { group: 0 })), "{refused:?}");
    }

    #[test]
    fn tensors_that_do_not_fit_the_layer_are_refused_by_group() {
        let (tokens, outputs) = ([DeviceTokens::f16(0, 3, 32), DeviceTokens::f16(0, 1, 64)], [DeviceOutput::f16(0); 2]);
        assert!(refusal(&tokens[..1], &outputs).contains("number of groups of activations is 1"));
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
}
