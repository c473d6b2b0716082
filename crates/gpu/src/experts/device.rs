//! A layer of experts in a device's memory, and the queue that computes it on tensors of the caller's.
//!
//! The first call with some tensors looks at them, compiles and allocates; the same call again only queues its launches. Nothing is
//! read back and nothing waited for, so that a call can be captured in a CUDA graph, which then serves whatever routing the tensors
//! hold when it is launched.
//!
//! What only the device sees cannot be refused, and is defined instead. An id outside of 0..experts is nobody's: it costs nothing and adds
//! nothing, and what its weight is does not matter. A logit that is NaN counts as less than every other; weights of logits that are not finite
//! may be NaN, and then so are the results of that token and of no other. Tokens, weights and biases that are not finite spoil results of
//! the tokens that meet them. What the host knows is refused: a workspace that is too small for the number of tokens, with how large it
//! must be; tensors that are elsewhere; a token's experts beyond 32 or beyond those that there are.

use std::collections::HashMap;
use std::sync::Arc;

use op::{Error, Result};

use super::layer::{self, Choice, LayerCall, LayerKernels, LayerShape, LayerSite, LayerWeights};
use super::packed::PackedExpert;
use crate::device::{self, Device};
use crate::driver::{DeviceMemory, EncodedLaunch, Graph, Stream, graveyard};
use crate::families::sm90::Sm90;
use crate::family::Family;
use crate::launch::Launch;
use crate::operands::{ALIGNMENT, check_place};

/// Calls that a queue remembers.
const REMEMBERED: usize = 512;

/// The weights of a layer in a device's memory.
#[derive(Debug)]
pub struct DeviceExperts {
    shape: LayerShape,
    device: &'static Device,
    weights: LayerWeights,
    bytes: usize,
    memory: Arc<Vec<DeviceMemory>>,
}

impl DeviceExperts {
    /// Puts a layer's experts into a device's memory, one after another as they come.
    pub fn new(
        device: usize,
        shape: LayerShape,
        experts: impl IntoIterator<Item = Result<Arc<PackedExpert>>>,
    ) -> Result<Self> {
        shape.check()?;
        graveyard::sweep();
        let device = Device::of(device)?;
        if device.family.name() != Sm90.name() {
            let reason = format!("there are no kernels for layers of experts on {}", device.facts.name);
            let remedy = "use a Hopper GPU (H100, H200, GH200), or a CPU backend".to_owned();
            return Err(Error::Unavailable { backend: device::NAME, reason, remedy });
        }
        let stream = Stream::new(device.context)?;
        let stride: usize = shape.matrix_bytes().iter().sum();
        let count = shape.experts as usize;
        let matrices = DeviceMemory::new(device.context, "the experts' weights", stride * count)?;
        let (mut factors, mut biases): (Vec<f32>, [Vec<f32>; 3]) = Default::default();
        let mut placed = 0;
        for expert in experts {
            let expert = expert?;
            if placed < count {
                // SAFETY: the copy is waited for before the expert goes.
                unsafe { matrices.write(placed * stride, expert.matrices(), &stream) }?;
                stream.synchronize()?;
            }
            factors.extend(expert.factors().as_flattened());
            for (all, one) in biases.iter_mut().zip(expert.biases()) {
                all.extend(one);
            }
            placed += 1;
        }
        if placed != count {
            let (found, expected) = (placed.to_string(), count.to_string());
            return Err(Error::Mismatch { group: 0, what: "the number of experts", found, expected });
        }
        let mut memory = vec![matrices];
        let mut place = |values: &[f32]| {
            let placed =
                DeviceMemory::holding(device.context, "an experts' layer", bytemuck::cast_slice(values), &stream)?;
            let address = placed.address();
            memory.push(placed);
            Ok::<u64, Error>(address)
        };
        let factors = place(&factors)?;
        let biases = [place(&biases[0])?, place(&biases[1])?, place(&biases[2])?];
        let weights = LayerWeights { matrices: memory[0].address(), factors, biases };
        let bytes = memory.iter().map(DeviceMemory::bytes).sum();
        Ok(DeviceExperts { shape, device, weights, bytes, memory: Arc::new(memory) })
    }

    /// Whether there are kernels for layers of experts on a device.
    pub fn runs_on(device: usize) -> bool {
        Device::of(device).is_ok_and(|device| device.family.name() == Sm90.name())
    }

    /// The same weights as a layer that differs in what a call may choose: the types of tokens, intermediates, rows and results, how many
    /// experts a token has, and what its weights multiply.
    pub fn seen_as(&self, shape: LayerShape) -> Result<Self> {
        shape.check()?;
        let LayerShape { top, on_input, activation, intermediate, partial, output, .. } = shape;
        let expected = LayerShape { top, on_input, activation, intermediate, partial, output, ..self.shape };
        if shape != expected {
            let [found, expected] = [shape, expected].map(|shape| format!("{shape:?}"));
            return Err(Error::Mismatch { group: 0, what: "the layer's weights", found, expected });
        }
        let (device, weights, bytes) = (self.device, self.weights, self.bytes);
        Ok(DeviceExperts { shape, device, weights, bytes, memory: Arc::clone(&self.memory) })
    }

    /// Whether another one's weights are this one's.
    pub fn shares(&self, other: &DeviceExperts) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// What the layer is.
    pub fn shape(&self) -> &LayerShape {
        &self.shape
    }

    /// Bytes of the device's memory that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that a call with so many tokens works in.
    pub fn workspace_bytes(&self, tokens: u32) -> usize {
        layer::workspace_bytes(&self.shape, tokens)
    }

    /// The launches of a call, for a workspace at an address.
    pub fn launches(&self, kernels: &LayerKernels, call: &LayerCall, workspace: u64) -> Vec<Launch> {
        let site = LayerSite { workspace, multiprocessors: self.device.facts.multiprocessors };
        layer::launches(&self.shape, kernels, &self.weights, call, site)
    }

    /// Looks at where a call's tensors are.
    fn check(&self, call: &LayerCall) -> Result<()> {
        let context = self.device.context;
        let (shape, tokens) = (&self.shape, call.tokens as usize);
        let entries = tokens * shape.top as usize;
        let place = |what, address, bytes, alignment| check_place(context, 0, what, address, bytes, alignment);
        let elements = tokens * shape.hidden as usize;
        place("the tokens", call.x, tokens * shape.activation.row_bytes(shape.hidden as usize), ALIGNMENT)?;
        place("the results", call.out, elements * shape.output.bytes(), ALIGNMENT)?;
        if let Some((ty, addend)) = call.addend {
            place("what is added to the results", addend, elements * ty.bytes(), ALIGNMENT)?;
        }
        match call.choice {
            Choice::Logits { logits, spec, correction, .. } => {
                if (spec.experts, spec.top) != (shape.experts, shape.top) {
                    let [found, expected] = [(spec.experts, spec.top), (shape.experts, shape.top)]
                        .map(|(experts, top)| format!("{top} of {experts}"));
                    return Err(Error::Mismatch { group: 0, what: "the routing's experts", found, expected });
                }
                spec.check().map_err(|error| Error::Kernel(error.into()))?;
                place("the logits", logits, 4 * tokens * shape.experts as usize, 4)?;
                if spec.corrected {
                    place("the routing's correction", correction, 4 * shape.experts as usize, 4)?;
                }
            }
            Choice::Given { ids, wide, weights } => {
                let bytes = if wide { 8 } else { 4 };
                place("the ids", ids, bytes * entries, bytes as u64)?;
                place("the weights", weights, 4 * entries, 4)?;
            }
        }
        Ok(())
    }
}

/// A call that was prepared: its launches, and what they work in.
#[derive(Debug)]
struct Ready {
    layer: Arc<DeviceExperts>,
    kernels: LayerKernels,
    call: LayerCall,
    launches: Vec<EncodedLaunch>,
    /// The same launches as one, which takes the host a quarter of the time.
    graph: Graph,
    workspace: Workspace,
}

/// What launches work in.
#[derive(Clone, Debug)]
enum Workspace {
    /// The queue's own.
    Own(Arc<DeviceMemory>),
    /// The caller's, at an address.
    Lent(u64),
}

impl Workspace {
    fn address(&self) -> u64 {
        match self {
            Workspace::Own(memory) => memory.address(),
            Workspace::Lent(address) => *address,
        }
    }
}

/// Which call: the layer, the tensors' addresses and their number, and the workspace if it is lent.
type Key = (usize, [u64; 4], u32, Option<u64>);

/// A stream, and the working memory of the layers of experts that are queued there.
#[derive(Debug)]
pub struct ExpertQueue {
    device: &'static Device,
    stream: Arc<Stream>,
    ready: HashMap<Key, Ready>,
    own: Option<Arc<DeviceMemory>>,
    /// The graph that is being captured, and what it works in.
    captured: Option<(u64, Arc<DeviceMemory>)>,
}

impl ExpertQueue {
    /// A queue with a stream of its own on a device.
    pub fn new(device: usize) -> Result<Self> {
        let device = Device::of(device)?;
        let stream = Arc::new(Stream::new(device.context)?);
        Ok(ExpertQueue { device, stream, ready: HashMap::new(), own: None, captured: None })
    }

    /// A queue on a stream of the caller's, by its handle.
    ///
    /// # Safety
    ///
    /// The stream must exist, and live as long as the queue.
    pub unsafe fn on_stream(device: usize, stream: u64) -> Result<Self> {
        let device = Device::of(device)?;
        // SAFETY: the caller's promise is the same.
        let stream = Arc::new(unsafe { Stream::borrowed(device.context, stream) }?);
        Ok(ExpertQueue { device, stream, ready: HashMap::new(), own: None, captured: None })
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Queues a call. Returns before it is computed. `workspace` is memory of the caller's to work in, its address a multiple of 256,
    /// and how many bytes there are; without one the queue uses its own.
    ///
    /// In a stream that is being captured, a call with the same tensors must have been made before (or [`ExpertQueue::prepare`]). The
    /// graph keeps the layer, and working memory of its own unless that is lent.
    ///
    /// # Safety
    ///
    /// Tensors must lie where they are said to, be as large as the layer and the number of tokens say, overlap nowhere, and stay until
    /// the stream has done the work; so must a workspace that is lent.
    pub unsafe fn enqueue(
        &mut self,
        layer: &Arc<DeviceExperts>,
        call: &LayerCall,
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        let key = self.prepared(layer, call, workspace)?;
        let ready = &self.ready[&key];
        let Some(capture) = self.stream.capturing()? else {
            // SAFETY: the tensors are the caller's promise; the queue keeps the layer and its working memory, and waits for the stream before
            // it gives them back.
            return unsafe { ready.graph.launch(&self.stream) };
        };
        if let Workspace::Own(_) = ready.workspace {
            let bytes = layer.workspace_bytes(call.tokens);
            let memory = match self.captured.take() {
                Some((id, memory)) if id == capture.id() && memory.bytes() >= bytes => memory,
                _ => {
                    let memory = Arc::new(DeviceMemory::new(self.device.context, "a graph to work in", bytes)?);
                    capture.keep(Arc::clone(&memory))?;
                    memory
                }
            };
            capture.keep(Arc::clone(layer))?;
            let launches = self.encode(layer, &ready.kernels, call, memory.address())?;
            self.captured = Some((capture.id(), memory));
            // SAFETY: the tensors are the caller's promise, and the graph keeps weights and working memory.
            return launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) });
        }
        capture.keep(Arc::clone(layer))?;
        // SAFETY: tensors and workspace are the caller's promise, and the graph keeps the weights.
        ready.launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) })
    }

    /// Does everything that comes before the queueing: looks at the tensors, compiles and allocates.
    pub fn prepare(
        &mut self,
        layer: &Arc<DeviceExperts>,
        call: &LayerCall,
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        self.prepared(layer, call, workspace).map(drop)
    }

    fn prepared(&mut self, layer: &Arc<DeviceExperts>, call: &LayerCall, lent: Option<(u64, usize)>) -> Result<Key> {
        let key = key(layer, call, lent);
        if self.ready.get(&key).is_some_and(|ready| ready.call == *call) {
            return Ok(key);
        }
        let kernels = LayerKernels::choose(&layer.shape, call.tokens)?;
        self.prepare_with(layer, call, lent, kernels)?;
        Ok(key)
    }

    /// Prepares a call with these kernels instead of those that would be chosen.
    pub fn prepare_with(
        &mut self,
        layer: &Arc<DeviceExperts>,
        call: &LayerCall,
        lent: Option<(u64, usize)>,
        kernels: LayerKernels,
    ) -> Result<()> {
        if self.stream.capturing()?.is_some() {
            return Err(Error::Capture { what: "a call must be prepared" });
        }
        if call.tokens > 0 {
            layer.check(call)?;
        }
        let bytes = layer.workspace_bytes(call.tokens);
        let workspace = match lent {
            Some((_, there)) if there < bytes => {
                let (what, found) = ("the workspace", format!("{there} bytes"));
                let expected = format!("{bytes} for {} tokens, as workspace_bytes says,", call.tokens);
                return Err(Error::Mismatch { group: 0, what, found, expected });
            }
            Some((address, there)) => {
                check_place(self.device.context, 0, "the workspace", address, there, layer::ALIGNMENT)?;
                Workspace::Lent(address)
            }
            None => Workspace::Own(self.workspace(bytes)?),
        };
        let launches = self.encode(layer, &kernels, call, workspace.address())?;
        if self.ready.len() >= REMEMBERED {
            self.stream.synchronize()?;
            self.ready.clear();
        }
        let beside = Stream::new(self.device.context)?;
        // SAFETY: nothing is computed: the launches become a graph.
        let graph = beside.capture(|| launches.iter().try_for_each(|launch| unsafe { launch.queue(&beside) }))?;
        let ready = Ready { layer: Arc::clone(layer), kernels, call: *call, launches, graph, workspace };
        self.ready.insert(key(layer, call, lent), ready);
        Ok(())
    }

    fn encode(
        &self,
        layer: &DeviceExperts,
        kernels: &LayerKernels,
        call: &LayerCall,
        workspace: u64,
    ) -> Result<Vec<EncodedLaunch>> {
        let encode =
            |launch: &Launch| EncodedLaunch::new(device::function(self.device.context, &launch.kernel)?, launch);
        layer.launches(kernels, call, workspace).iter().map(encode).collect()
    }

    /// Working memory of at least so many bytes. What is outgrown is given back once the stream has done what uses it.
    fn workspace(&mut self, bytes: usize) -> Result<Arc<DeviceMemory>> {
        if let Some(own) = self.own.as_ref().filter(|own| own.bytes() >= bytes) {
            return Ok(Arc::clone(own));
        }
        self.stream.synchronize()?;
        self.ready.clear();
        self.own = None;
        let own = Arc::new(DeviceMemory::new(self.device.context, "working memory", bytes)?);
        self.own = Some(Arc::clone(&own));
        Ok(own)
    }
}

impl Drop for ExpertQueue {
    fn drop(&mut self) {
        if !device::waited_for(&self.stream) {
            let kept: Vec<_> = self.ready.drain().map(|(_, ready)| (ready.layer, ready.workspace)).collect();
            graveyard::bury(Box::new((kept, self.own.take())));
        }
    }
}

fn key(layer: &Arc<DeviceExperts>, call: &LayerCall, lent: Option<(u64, usize)>) -> Key {
    let [first, second] = match call.choice {
        Choice::Logits { logits, correction, .. } => [logits, correction],
        Choice::Given { ids, weights, .. } => [ids, weights],
    };
    (Arc::as_ptr(layer).addr(), [call.x, call.out, first, second], call.tokens, lent.map(|(address, _)| address))
}
