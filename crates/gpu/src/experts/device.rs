//! A layer of experts in a device's memory, and the queue that computes it on tensors of the caller's.
//!
//! The first call with some tensors looks at them, compiles and allocates; the same call again only queues its launches. Nothing is
//! read back and nothing waited for, so that a call can be captured in a CUDA graph, which then serves whatever routing the tensors
//! hold when it is launched. A layer that is dropped waits for the streams that read it.
//!
//! What only the device sees cannot be refused, and is defined instead. An id outside of 0..experts is nobody's: it costs nothing and adds
//! nothing, and what its weight is does not matter. A logit that is NaN counts as less than every other; weights of logits that are not finite
//! may be NaN, and then so are the results of that token and of no other. Tokens, weights and biases that are not finite spoil results of
//! the tokens that meet them. What the host knows is refused: a workspace that is too small for the number of tokens, with how large it
//! must be; tensors that are elsewhere; a token's experts beyond 32 or beyond those that there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use op::routing::Router;
use op::{Error, Intermediate, Output, Result};

use super::layer::{self, Choice, LayerCall, LayerKernels, LayerShape, LayerSite, LayerWeights};
use super::packed::{Numbers, PackedExpert};
use super::route::RouteSpec;
use crate::device::{self, Device, Readers};
use crate::driver::{DeviceMemory, EncodedLaunch, Graph, Stream, graveyard};
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
    memory: Arc<Placed>,
    /// The expert that computes every token, a layer of one.
    shared: Option<Arc<DeviceExperts>>,
}

/// Memory that all layers over the same weights share.
#[derive(Debug)]
struct Placed {
    weights: Vec<DeviceMemory>,
    /// The corrections of routers that calls have had.
    corrections: Mutex<Vec<(Box<[f32]>, DeviceMemory)>>,
    readers: Readers,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if !self.readers.waited_for() {
            graveyard::bury(Box::new((std::mem::take(&mut self.weights), std::mem::take(&mut self.corrections))));
        }
    }
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
        let stream = Stream::new(device.context)?;
        let stride: usize = shape.matrix_bytes(device.family).iter().sum();
        let count = shape.experts as usize;
        let matrices = DeviceMemory::new(device.context, "the experts' weights", stride * count)?;
        let (mut numbers, mut placed) = (Numbers::default(), 0);
        for expert in experts {
            let expert = expert?;
            if placed < count {
                // SAFETY: the copy is waited for before the expert goes.
                unsafe { matrices.write(placed * stride, expert.matrices(), &stream) }?;
                stream.synchronize()?;
            }
            numbers.add(&expert);
            placed += 1;
        }
        if placed != count {
            let (found, expected) = (placed.to_string(), count.to_string());
            return Err(Error::Mismatch { group: 0, what: "the number of experts", found, expected });
        }
        numbers.check(&shape)?;
        let (first, mut memory) = (matrices.address(), vec![matrices]);
        let weights = numbers.placed(first, |values| {
            let placed =
                DeviceMemory::holding(device.context, "an experts' layer", bytemuck::cast_slice(values), &stream)?;
            let address = placed.address();
            memory.push(placed);
            Ok::<u64, Error>(address)
        })?;
        let bytes = memory.iter().map(DeviceMemory::bytes).sum();
        let memory = Placed { weights: memory, corrections: Mutex::default(), readers: Readers::default() };
        Ok(DeviceExperts { shape, device, weights, bytes, memory: Arc::new(memory), shared: None })
    }

    /// The device that it is on.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The kernels for calls with so many tokens.
    pub fn kernels(&self, tokens: u32) -> Result<LayerKernels> {
        LayerKernels::choose(self.device.family, &self.shape, tokens, &self.device.facts)
    }

    /// The same weights as a layer that differs in what a call may choose: the types of tokens, intermediates, rows and results, how many
    /// experts a token has, what its weights multiply, and whether bits depend on the batch.
    pub fn seen_as(&self, shape: LayerShape) -> Result<Self> {
        shape.check()?;
        let LayerShape { top, on_input, activation, intermediate, invariant, partial, output, .. } = shape;
        let expected = LayerShape { top, on_input, activation, intermediate, invariant, partial, output, ..self.shape };
        // The factors of down are those of an NVFP4 intermediate, or of another.
        let [quantised, wanted] = [self.shape.intermediate, intermediate].map(|each| each == Intermediate::NvFp4);
        if shape != expected || quantised != wanted {
            let [found, expected] = [shape, expected].map(|shape| format!("{shape:?}"));
            return Err(Error::Mismatch { group: 0, what: "the layer's weights", found, expected });
        }
        let Self { device, weights, bytes, .. } = *self;
        Ok(DeviceExperts { shape, device, weights, bytes, memory: Arc::clone(&self.memory), shared: None })
    }

    /// The same layer with an expert that computes every token, whose results are added to the others' in f32. It is a layer of one, on the
    /// same device, of tokens of the same type.
    pub fn with_shared(mut self, shared: Arc<DeviceExperts>) -> Result<Self> {
        let LayerShape { experts, top, hidden, on_input, activation, output, .. } = shared.shape;
        let found = (experts, top, hidden, on_input, activation, output);
        let expected = (1, 1, self.shape.hidden, false, self.shape.activation, Output::F32);
        if found != expected || !std::ptr::eq(shared.device, self.device) {
            let [found, expected] = [found, expected].map(|shape| format!("{shape:?}"));
            return Err(Error::Mismatch { group: 0, what: "the shared expert's shape", found, expected });
        }
        self.shared = Some(shared);
        Ok(self)
    }

    /// How a router chooses among the experts by logits at an address. What it corrects them with is put beside the weights the first time.
    pub fn choice(&self, router: &Router, logits: u64) -> Result<Choice> {
        let (spec, scale) = (RouteSpec::of(router), router.scaling());
        let mut correction = 0;
        if spec.corrected {
            let mut known = self.memory.corrections.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known.iter().find(|(numbers, _)| **numbers == *router.correction());
            correction = match found {
                Some((_, memory)) => memory.address(),
                None => {
                    let bytes = bytemuck::cast_slice(router.correction());
                    let stream = Stream::new(self.device.context)?;
                    let memory = DeviceMemory::holding(self.device.context, "a router's correction", bytes, &stream)?;
                    let address = memory.address();
                    known.push((router.correction().into(), memory));
                    address
                }
            };
        }
        Ok(Choice::Logits { logits, spec, correction, scale })
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
        layer::whole_workspace_bytes(&self.shape, self.shared.as_ref().map(|shared| &shared.shape), tokens)
    }

    /// The launches of a call, for a workspace at an address; those of the shared expert come first.
    pub fn launches(&self, kernels: &LayerKernels, call: &LayerCall, workspace: u64) -> Result<Vec<Launch>> {
        let site = LayerSite { workspace, multiprocessors: self.device.facts.multiprocessors };
        let shared = match &self.shared {
            Some(shared) => Some((&shared.shape, shared.kernels(call.tokens)?, &shared.weights)),
            None => None,
        };
        let shared = shared.as_ref().map(|(shape, kernels, weights)| (*shape, kernels, *weights));
        Ok(layer::whole_launches((&self.shape, kernels, &self.weights), shared, call, site))
    }

    /// Remembers that work in a stream will read the weights.
    fn read_by(&self, stream: &Arc<Stream>) {
        self.memory.readers.add(stream);
        if let Some(shared) = &self.shared {
            shared.memory.readers.add(stream);
        }
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
        if let (Some(_), Some(_)) = (call.addend, &self.shared) {
            let (what, found) = ("what is added to the results", "a tensor and a shared expert".to_owned());
            return Err(Error::Mismatch { group: 0, what, found, expected: "one of them".to_owned() });
        }
        if let Some((ty, addend)) = call.addend {
            place("what is added to the results", addend, elements * ty.bytes(), ALIGNMENT)?;
        }
        if shape.gated && call.choice != Choice::Everyone {
            let (what, found) = ("the weights of an expert with a gate of its own", "given, or chosen".to_owned());
            return Err(Error::Mismatch { group: 0, what, found, expected: "left to that".to_owned() });
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
            Choice::Everyone if shape.experts == 1 => {}
            Choice::Everyone => {
                let (what, found) = ("the number of experts", shape.experts.to_string());
                return Err(Error::Mismatch { group: 0, what, found, expected: "1, where all tokens are its".into() });
            }
        }
        Ok(())
    }
}

/// A call that was prepared: its launches, and what they work in.
#[derive(Debug)]
struct Ready {
    layer: Weak<DeviceExperts>,
    kernels: LayerKernels,
    call: LayerCall,
    /// The launches as one, which takes the host a quarter of the time.
    graph: Graph,
}

impl Ready {
    /// Whether it is this call of this layer, and not of one that is gone and whose place this one has taken.
    fn is_for(&self, layer: &Arc<DeviceExperts>, call: &LayerCall) -> bool {
        self.call == *call && self.layer.strong_count() > 0 && self.layer.as_ptr() == Arc::as_ptr(layer)
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
    own: Option<DeviceMemory>,
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
    /// In a stream that is being captured, a call of the layer with as many tokens must have been made before (or
    /// [`ExpertQueue::prepare`]), so that nothing has to be compiled in it. The graph keeps the layer, and working memory of its own unless that
    /// is lent.
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
        let Some(capture) = self.stream.capturing()? else {
            let key = self.prepared(layer, call, workspace)?;
            layer.read_by(&self.stream);
            // SAFETY: the tensors are the caller's promise; the layer knows the stream and waits for it before it goes, and so does the queue
            // with its working memory.
            return unsafe { self.ready[&key].graph.launch(&self.stream) };
        };
        let known = self.ready.get(&key(layer, call, workspace)).filter(|ready| ready.is_for(layer, call));
        let kernels = match known {
            Some(ready) => ready.kernels.clone(),
            None => {
                self.check(layer, call)?;
                layer.kernels(call.tokens)?
            }
        };
        let address = match workspace {
            Some(lent) => self.lent(layer, call, lent)?,
            None => {
                let bytes = layer.workspace_bytes(call.tokens);
                let memory = match self.captured.take() {
                    Some((id, memory)) if id == capture.id() && memory.bytes() >= bytes => memory,
                    _ => {
                        let memory = Arc::new(DeviceMemory::new(self.device.context, "a graph to work in", bytes)?);
                        capture.keep(Arc::clone(&memory))?;
                        memory
                    }
                };
                self.captured.insert((capture.id(), memory)).1.address()
            }
        };
        let launches = self.encode(layer, &kernels, call, address)?;
        capture.keep(Arc::clone(layer))?;
        // SAFETY: the tensors, and a workspace that is lent, are the caller's promise; the graph keeps weights and working memory.
        launches.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) })
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
        if self.ready.get(&key).is_some_and(|ready| ready.is_for(layer, call)) {
            return Ok(key);
        }
        let kernels = layer.kernels(call.tokens)?;
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
        self.check(layer, call)?;
        let address = match lent {
            Some(lent) => self.lent(layer, call, lent)?,
            None => self.workspace(layer.workspace_bytes(call.tokens))?,
        };
        let launches = self.encode(layer, &kernels, call, address)?;
        self.ready.retain(|_, ready| ready.layer.strong_count() > 0);
        if self.ready.len() >= REMEMBERED {
            self.stream.synchronize()?;
            self.ready.clear();
        }
        let beside = Stream::new(self.device.context)?;
        // SAFETY: nothing is computed: the launches become a graph.
        let graph = beside.capture(|| launches.iter().try_for_each(|launch| unsafe { launch.queue(&beside) }))?;
        let ready = Ready { layer: Arc::downgrade(layer), kernels, call: *call, graph };
        self.ready.insert(key(layer, call, lent), ready);
        Ok(())
    }

    /// Looks at where a layer and a call's tensors are.
    fn check(&self, layer: &DeviceExperts, call: &LayerCall) -> Result<()> {
        let [found, expected] = [layer.device, self.device].map(|device| device.context.ordinal());
        if found != expected {
            let [found, expected] = [found, expected].map(|device| format!("device {device}"));
            return Err(Error::Mismatch { group: 0, what: "the place of the weights", found, expected });
        }
        if call.tokens > 0 { layer.check(call) } else { Ok(()) }
    }

    /// The address of a workspace of the caller's, if it is large enough.
    fn lent(&self, layer: &DeviceExperts, call: &LayerCall, (address, there): (u64, usize)) -> Result<u64> {
        let bytes = layer.workspace_bytes(call.tokens);
        if there < bytes {
            let (what, found) = ("the workspace", format!("{there} bytes"));
            let expected = format!("{bytes} for {} tokens, as workspace_bytes says,", call.tokens);
            return Err(Error::Mismatch { group: 0, what, found, expected });
        }
        check_place(self.device.context, 0, "the workspace", address, there, layer::ALIGNMENT)?;
        Ok(address)
    }

    fn encode(
        &self,
        layer: &DeviceExperts,
        kernels: &LayerKernels,
        call: &LayerCall,
        workspace: u64,
    ) -> Result<Vec<EncodedLaunch>> {
        let context = self.device.context;
        let encode = |launch: &Launch| {
            let function = match device::compiled(context, &launch.kernel) {
                Some(function) => function,
                None if self.stream.capturing()?.is_some() => {
                    return Err(Error::Capture { what: "a kernel must be compiled" });
                }
                None => device::function(context, &launch.kernel)?,
            };
            EncodedLaunch::new(function, launch)
        };
        layer.launches(kernels, call, workspace)?.iter().map(encode).collect()
    }

    /// The address of working memory of at least so many bytes. What is outgrown is given back once the stream has done what uses it.
    fn workspace(&mut self, bytes: usize) -> Result<u64> {
        if let Some(own) = self.own.as_ref().filter(|own| own.bytes() >= bytes) {
            return Ok(own.address());
        }
        self.stream.synchronize()?;
        self.ready.clear();
        self.own = None;
        graveyard::sweep();
        let own = self.own.insert(DeviceMemory::new(self.device.context, "working memory", bytes)?);
        Ok(own.address())
    }

    /// Bytes of working memory that it holds.
    pub fn workspace_bytes(&self) -> usize {
        self.own.as_ref().map_or(0, DeviceMemory::bytes)
    }
}

impl Drop for ExpertQueue {
    fn drop(&mut self) {
        if !device::waited_for(&self.stream) {
            graveyard::bury(Box::new(self.own.take()));
        }
    }
}

fn key(layer: &Arc<DeviceExperts>, call: &LayerCall, lent: Option<(u64, usize)>) -> Key {
    let [first, second] = match call.choice {
        Choice::Logits { logits, correction, .. } => [logits, correction],
        Choice::Given { ids, weights, .. } => [ids, weights],
        Choice::Everyone => [0; 2],
    };
    (Arc::as_ptr(layer).addr(), [call.x, call.out, first, second], call.tokens, lent.map(|(address, _)| address))
}
