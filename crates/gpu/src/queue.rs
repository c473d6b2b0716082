//! Launches on memory of the caller's, in the caller's stream: products, and whole layers.
//!
//! A [`LaunchQueue`] is one stream with the working memory of what is queued there. Preparing a call looks at
//! addresses, compiles and allocates; queueing what was prepared does neither and waits for nothing, so that it can be
//! captured in a CUDA graph. Who decides on the configuration of products stands above this crate.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use op::operands::TokenShape;
use op::{Activation, Config, Error, PackedWeights, Precision, Problem, Result, check_weights};

use super::away::Task;
use super::bell::Bell;
use super::device::{self, Device, DeviceWeights};
use super::driver::{Capture, Context, DeviceMemory, EncodedLaunch, Event, Graph, PinnedMemory, Stream, graveyard};
use super::expand::TokenForm;
use super::experts::ALIGNMENT;
use super::experts::call::{Choice, LayerCall};
use super::experts::kernels::LayerKernels;
use super::experts::layer::Fetch;
use super::experts::order;
use super::families;
use super::family::Family;
use super::launch::Launch;
use super::launches::{self, Site, TokenPlace};
use super::loaded::DeviceExperts;
use super::operands::{DeviceOutput, DeviceTokens, check_place};
use super::packed::PackedGroup;
use super::plan;

/// Calls that a queue remembers.
const REMEMBERED: usize = 512;
/// Launches from which on they are queued as one graph, which takes the host a quarter of the time. Fewer are queued
/// one by one: the first of them may then begin beside what is before it in the stream.
const GRAPH_LAUNCHES: usize = 4;
/// What memory is pinned for.
const EXCHANGED: &str = "what is exchanged with experts on the host";

/// What a call computes, and on what.
#[derive(Debug)]
enum Call {
    /// The products of some groups.
    Products {
        weights: Weak<dyn PackedWeights>,
        problem: Problem,
        config: Config,
        tokens: Vec<DeviceTokens>,
        outputs: Vec<DeviceOutput>,
    },
    /// A whole layer.
    Layer { layer: Weak<DeviceExperts>, kernels: LayerKernels, call: LayerCall },
}

/// What a call reads beside its tensors: kept by graphs, waited for before it goes.
enum Owner {
    Weights(Arc<dyn PackedWeights>),
    Layer(Arc<DeviceExperts>),
}

impl Call {
    /// Whose weights they are; the owner may go, and what was prepared for it is then of no use.
    fn owner(&self) -> Option<Owner> {
        match self {
            Call::Products { weights, .. } => weights.upgrade().map(Owner::Weights),
            Call::Layer { layer, .. } => layer.upgrade().map(Owner::Layer),
        }
    }

    fn is_alive(&self) -> bool {
        match self {
            Call::Products { weights, .. } => weights.strong_count() > 0,
            Call::Layer { layer, .. } => layer.strong_count() > 0,
        }
    }

    /// Bytes that its launches work in, and of the places that weights are brought to.
    fn workspace_bytes(&self, device: &Device) -> [usize; 2] {
        match self {
            Call::Products { problem, config, .. } => [launches::workspace_bytes(device.family, problem, config), 0],
            Call::Layer { layer, call, .. } => {
                layer.upgrade().map_or([0; 2], |layer| layer.workspace_with(call.tokens, call.lots()))
            }
        }
    }

    /// Bytes that its launches exchange with the host.
    fn exchange_bytes(&self) -> usize {
        match self {
            Call::Products { .. } => 0,
            Call::Layer { layer, call, .. } => layer.upgrade().map_or(0, |layer| layer.exchange_bytes(call)),
        }
    }

    /// Its launches, in a workspace and with places for weights at these addresses, and what the host does beside them,
    /// in memory that both reach. Tokens of products are multiplied with the weights' input scales.
    fn work(
        &self,
        device: &'static Device,
        [workspace, brought]: [u64; 2],
        exchange: Option<&Arc<PinnedMemory>>,
    ) -> Result<Work> {
        match (self, self.owner()) {
            (Call::Products { problem, config, tokens, outputs, .. }, Some(Owner::Weights(weights))) => {
                let operands = (&tokens[..], true, &outputs[..]);
                let launches = product_launches(device, &*weights, (problem, config), operands, workspace)?;
                Ok(Work { launches, host: None, fetches: Vec::new() })
            }
            (Call::Layer { kernels, call, .. }, Some(Owner::Layer(layer))) => {
                let there = exchange.map_or(0, |exchange| exchange.address());
                let launches = layer.launches(kernels, call, [workspace, brought, there])?;
                let host = launches.host.zip(layer.away()).zip(exchange).map(|((part, away), exchange)| {
                    let (away, exchange) = (Arc::clone(away), Arc::clone(exchange));
                    let task = Arc::new(Task::new(away, exchange, layer.shape(), call.tokens));
                    let bell = Arc::new(Bell::new(device.context, task)?);
                    Ok::<_, Error>(Box::new(Beside { after: part.after, send: part.send, bell }))
                });
                Ok(Work { launches: launches.all, host: host.transpose()?, fetches: launches.fetches })
            }
            _ => Err(Error::Forgotten),
        }
    }
}

impl Owner {
    fn address(&self) -> usize {
        match self {
            Owner::Weights(weights) => Arc::as_ptr(weights).addr(),
            Owner::Layer(layer) => Arc::as_ptr(layer).addr(),
        }
    }

    /// Remembers that work in a stream will read it.
    fn read_by(&self, stream: &Arc<Stream>, device: &Device) -> Result<()> {
        match self {
            Owner::Weights(weights) => DeviceWeights::on(&**weights, device)?.read_by(stream),
            Owner::Layer(layer) => layer.read_by(stream),
        }
        Ok(())
    }

    /// What went wrong on the host in an earlier call, if some experts are there.
    fn take_failure(&self) -> Result<()> {
        match self {
            Owner::Weights(_) => Ok(()),
            Owner::Layer(layer) => layer.away().map_or(Ok(()), |away| away.take_failure()),
        }
    }

    /// Gives it to a graph to keep.
    fn keep(self, capture: &Capture) -> Result<()> {
        match self {
            Owner::Weights(weights) => capture.keep(weights),
            Owner::Layer(layer) => capture.keep(layer),
        }
    }
}

/// A call whose launches are known.
#[derive(Debug)]
struct Ready {
    call: Call,
    /// Nothing of one that was prepared in the middle of a capture: the graph gives it memory of its own.
    launches: Option<Queued>,
    /// Memory of the caller's that it works in, its address and bytes; else the queue's, and when that is replaced the
    /// call is forgotten.
    lent: Option<(u64, usize)>,
}

/// A call's launches, and the host's part if it has one.
#[derive(Debug)]
struct Work<L = Launch> {
    launches: Vec<L>,
    host: Option<Box<Beside<L>>>,
    /// Which of the launches bring weights over, beside the others.
    fetches: Vec<Fetch>,
}

/// The host's part after so many launches, beside the others and before the last: what brings tokens to it, and the
/// bell that it then answers.
#[derive(Debug)]
struct Beside<L> {
    after: usize,
    send: L,
    bell: Arc<Bell>,
}

impl Work<EncodedLaunch> {
    /// Queues all of it, the host's part in a stream of its own.
    ///
    /// # Safety
    ///
    /// What it reads and writes must be there until the stream, or every graph of which it becomes a part, has done the
    /// work; and so must the host's part, which a graph keeps.
    unsafe fn queue(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        let each = |launches: &[EncodedLaunch]| launches.iter().try_for_each(|launch| unsafe { launch.queue(stream) });
        if !self.fetches.is_empty() {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.queue_with_fetches(stream) };
        }
        let (Some(host), Some((last, others))) = (&self.host, self.launches.split_last()) else {
            return each(&self.launches);
        };
        let Beside { after, send, bell } = &**host;
        if let Some(capture) = stream.capturing()? {
            capture.keep(Arc::clone(bell))?;
        }
        let beside = Stream::new(stream.context())?;
        each(&others[..*after])?;
        beside.wait_for(&Event::record(stream)?)?;
        // SAFETY: the caller's promise is the same.
        unsafe { send.queue(&beside).and_then(|()| bell.ring(&beside)) }?;
        each(&others[*after..])?;
        stream.wait_for(&Event::record(&beside)?)?;
        each(std::slice::from_ref(last))
    }
}

impl Work<EncodedLaunch> {
    /// Queues launches of which some bring weights over, those in a stream of their own.
    ///
    /// # Safety
    ///
    /// As for [`Work::queue`].
    unsafe fn queue_with_fetches(&self, stream: &Stream) -> Result<()> {
        let beside = Stream::new(stream.context())?;
        let turns = order::turns(self.launches.len(), &self.fetches);
        let mut ends: HashMap<usize, Event> = HashMap::new();
        for (turn, launch) in turns.iter().zip(&self.launches) {
            let line = if turn.beside { &beside } else { stream };
            if let Some(before) = turn.after {
                // It was recorded: who is waited for comes before.
                line.wait_for(&ends[&before])?;
            }
            // SAFETY: the caller's promise is the same.
            unsafe { launch.queue(line) }?;
            if turns.iter().any(|later| later.after == Some(turn.launch)) {
                ends.insert(turn.launch, Event::record(line)?);
            }
        }
        Ok(())
    }
}

/// Work, ready to be queued.
#[derive(Debug)]
enum Queued {
    Each(Work<EncodedLaunch>),
    Graph(Graph),
}

impl Queued {
    fn new(device: &Device, work: Work<EncodedLaunch>) -> Result<Self> {
        if work.launches.len() < GRAPH_LAUNCHES {
            return Ok(Queued::Each(work));
        }
        let beside = Stream::new(device.context)?;
        // SAFETY: nothing is computed: the launches become a graph.
        beside.capture(|| unsafe { work.queue(&beside) }).map(Queued::Graph)
    }

    /// Queues it.
    ///
    /// # Safety
    ///
    /// What it reads and writes must be there until the stream has done the work.
    unsafe fn queue(&self, stream: &Stream) -> Result<()> {
        match self {
            // SAFETY: the caller's promise is the same.
            Queued::Each(work) => unsafe { work.queue(stream) },
            // SAFETY: the caller's promise is the same.
            Queued::Graph(graph) => unsafe { graph.launch(stream) },
        }
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
    /// What weights are brought to.
    places: Option<Arc<DeviceMemory>>,
    exchange: Option<Arc<PinnedMemory>>,
    /// Addresses of weights and layers.
    owners: Vec<usize>,
}

/// A stream, and the working memory of what is queued there.
///
/// It may be dropped while work is queued: that is waited for. (In the middle of a capture nobody waits; the memory is
/// then given back later.)
#[derive(Debug)]
pub struct LaunchQueue {
    device: &'static Device,
    stream: Arc<Stream>,
    ready: HashMap<u64, Ready>,
    workspace: Option<Arc<DeviceMemory>>,
    /// What is exchanged with the host, where that computes some experts.
    exchange: Option<Arc<PinnedMemory>>,
    /// What graphs bring weights to, all that are captured here.
    places: Option<Arc<DeviceMemory>>,
    captured: Option<Captured>,
}

impl LaunchQueue {
    /// A queue with a stream of its own on a device.
    pub fn new(device: usize) -> Result<Self> {
        Self::over(device, Stream::new)
    }

    /// A queue on a stream of the caller's: a `CUstream` or `cudaStream_t` as a number, or 0 for the default stream.
    /// The stream must belong to the device's primary context, as those of CUDA's runtime and of PyTorch do.
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
        let (ready, workspace, exchange) = (HashMap::new(), None, None);
        Ok(LaunchQueue { device, stream, ready, workspace, exchange, places: None, captured: None })
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of working memory that it holds.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.as_ref().map_or(0, |workspace| workspace.bytes())
    }

    /// Forgets every call that was prepared, once the stream has done what was queued of them.
    pub fn forget(&mut self) {
        device::waited_for(&self.stream);
        self.ready.clear();
    }

    /// The call with these operands in this precision, if it was prepared.
    pub fn prepared(
        &self,
        weights: &Arc<dyn PackedWeights>,
        precision: Precision,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Option<Prepared> {
        let key = product_key(weights, precision, tokens, outputs);
        let is_it = |ready: &Ready| match &ready.call {
            Call::Products { weights: own, problem, tokens: their, outputs: results, .. } => {
                let same = std::ptr::addr_eq(own.as_ptr(), Arc::as_ptr(weights)) && their == tokens;
                same && results == outputs && problem.precision() == precision
            }
            Call::Layer { .. } => false,
        };
        self.ready.get(&key).is_some_and(|ready| ready.launches.is_some() && is_it(ready)).then_some(Prepared(key))
    }

    /// Does everything that comes before the queueing of products: looks at the operands, compiles and allocates.
    pub fn prepare(
        &mut self,
        weights: &Arc<dyn PackedWeights>,
        problem: &Problem,
        config: &Config,
        tokens: &[DeviceTokens],
        outputs: &[DeviceOutput],
    ) -> Result<Prepared> {
        let illegal = |reason| Error::Illegal { backend: device::NAME, config: Box::new(*config), reason };
        plan::legal(self.device.family, problem, config, &self.device.facts).map_err(illegal)?;
        check_weights(problem, weights.as_ref())?;
        let element = token_type(DeviceWeights::on(weights.as_ref(), self.device)?, problem, tokens)?;
        check_operands(self.stream.context(), problem, (element, tokens), outputs)?;
        let call = Call::Products {
            weights: Arc::downgrade(weights),
            problem: problem.clone(),
            config: *config,
            tokens: tokens.to_vec(),
            outputs: outputs.to_vec(),
        };
        self.remember(product_key(weights, problem.precision(), tokens, outputs), call, None)
    }

    /// Does everything that comes before the queueing of a layer. `lent` is memory of the caller's to work in, its
    /// address a multiple of 256, and how many bytes there are; without one the queue uses its own.
    pub fn prepare_layer(
        &mut self,
        layer: &Arc<DeviceExperts>,
        call: &LayerCall,
        lent: Option<(u64, usize)>,
    ) -> Result<Prepared> {
        let key = layer_key(layer, call, lent);
        if self.layer_call(key, layer, call).is_some() {
            return Ok(Prepared(key));
        }
        self.prepare_layer_with(layer, call, lent, layer.kernels_with(call.tokens, call.lots())?)
    }

    /// The same with these kernels instead of those that would be chosen.
    pub fn prepare_layer_with(
        &mut self,
        layer: &Arc<DeviceExperts>,
        call: &LayerCall,
        lent: Option<(u64, usize)>,
        kernels: LayerKernels,
    ) -> Result<Prepared> {
        self.unless_capturing("a call must be prepared", || Ok(()))?;
        self.check_layer(layer, call, lent)?;
        let key = layer_key(layer, call, lent);
        self.remember(key, Call::Layer { layer: Arc::downgrade(layer), kernels, call: *call }, lent)
    }

    /// The kernels of a layer's call that was prepared: of this layer, and not of one that is gone and whose place this
    /// one has taken.
    fn layer_call(&self, key: u64, layer: &Arc<DeviceExperts>, call: &LayerCall) -> Option<&LayerKernels> {
        match &self.ready.get(&key)?.call {
            Call::Layer { layer: own, kernels, call: prepared } => {
                let same = own.strong_count() > 0 && own.as_ptr() == Arc::as_ptr(layer) && prepared == call;
                same.then_some(kernels)
            }
            Call::Products { .. } => None,
        }
    }

    /// Makes a call's launches ready.
    fn remember(&mut self, key: u64, call: Call, lent: Option<(u64, usize)>) -> Result<Prepared> {
        // Nothing may be waited for in a stream that is being captured, nor another capture begun beside it.
        let capturing = self.stream.capturing()?.is_some();
        let launches = if capturing { None } else { Some(self.made_ready(&call, lent)?) };
        self.ready.retain(|_, ready| ready.call.is_alive());
        if self.ready.len() >= REMEMBERED && !capturing {
            self.stream.synchronize()?;
            self.ready.clear();
        }
        self.ready.insert(key, Ready { call, launches, lent });
        Ok(Prepared(key))
    }

    /// A call's launches, in memory that is lent or the queue's.
    fn made_ready(&mut self, call: &Call, lent: Option<(u64, usize)>) -> Result<Queued> {
        let [bytes, of_places] = call.workspace_bytes(self.device);
        let workspace = match lent {
            Some(_) => None,
            None => self.workspace(bytes + of_places)?,
        };
        let exchange = self.exchange(call.exchange_bytes())?;
        let address = lent.map(|(address, _)| address).or(workspace.as_deref().map(DeviceMemory::address)).unwrap_or(0);
        let work = self.encoded(call.work(self.device, [address, address + bytes as u64], exchange.as_ref())?)?;
        Queued::new(self.device, work)
    }

    /// Queues a call that was prepared. Returns before it is computed.
    ///
    /// In a stream that is being captured the launches become part of a graph. The graph keeps what they use: the
    /// weights, and working memory of its own unless that is lent, so that it may be launched beside others and after
    /// queue and layer are gone. But those of one queue that bring weights over, and to no memory that is lent, bring
    /// them to the same places, which are large: they are launched one after another.
    ///
    /// # Safety
    ///
    /// Tokens and results must lie where they were said to, be as large as the shapes say, overlap nowhere, and stay
    /// until the stream has done the work; so must memory that is lent. Graphs are launched as is said above, and one
    /// with experts on the host is made executable once.
    pub unsafe fn launch(&mut self, call: Prepared) -> Result<()> {
        let known = self.ready.get(&call.0).and_then(|ready| Some((ready, ready.call.owner()?)));
        let Some((ready, owner)) = known else { return Err(Error::Forgotten) };
        owner.take_failure()?;
        if self.stream.capturing()?.is_none() {
            owner.read_by(&self.stream, self.device)?;
            // SAFETY: the launches were made for these operands, which are the caller's promise. The working memory is
            // waited for when the queue goes or needs another, and the weights, which now know this stream, when they
            // go.
            return unsafe { ready.launches.as_ref().ok_or(Error::Forgotten)?.queue(&self.stream) };
        }
        let Some(ready) = self.ready.remove(&call.0) else { return Err(Error::Forgotten) };
        // SAFETY: the caller's promise is the same.
        let done = unsafe { self.capture(&ready.call, ready.lent) };
        if ready.launches.is_some() {
            self.ready.insert(call.0, ready);
        }
        done
    }

    /// Queues a layer's call. Returns before it is computed.
    ///
    /// In a stream that is being captured, a call of the layer with as many tokens must have been made before (or
    /// [`LaunchQueue::prepare_layer`]), so that nothing has to be compiled in it; of other tensors will do.
    ///
    /// # Safety
    ///
    /// As for [`LaunchQueue::launch`].
    pub unsafe fn enqueue_layer(
        &mut self,
        layer: &Arc<DeviceExperts>,
        call: &LayerCall,
        lent: Option<(u64, usize)>,
    ) -> Result<()> {
        if self.stream.capturing()?.is_none() {
            let prepared = self.prepare_layer(layer, call, lent)?;
            // SAFETY: the caller's promise is the same.
            return unsafe { self.launch(prepared) };
        }
        let known = self.layer_call(layer_key(layer, call, lent), layer, call);
        let kernels = match known {
            Some(kernels) => kernels.clone(),
            None => {
                self.check_layer(layer, call, lent)?;
                layer.kernels_with(call.tokens, call.lots())?
            }
        };
        let call = Call::Layer { layer: Arc::downgrade(layer), kernels, call: *call };
        // SAFETY: the caller's promise is the same.
        unsafe { self.capture(&call, lent) }
    }

    /// Queues a call in a stream that is being captured.
    ///
    /// # Safety
    ///
    /// As for [`LaunchQueue::launch`].
    unsafe fn capture(&mut self, call: &Call, lent: Option<(u64, usize)>) -> Result<()> {
        let Some(capture) = self.stream.capturing()? else { return Ok(()) };
        let captured = match self.captured.take() {
            Some(captured) if captured.id == capture.id() => captured,
            _ => Captured { id: capture.id(), workspace: None, places: None, exchange: None, owners: Vec::new() },
        };
        let captured = self.captured.insert(captured);
        let owner = call.owner().ok_or(Error::Forgotten)?;
        if !captured.owners.contains(&owner.address()) {
            captured.owners.push(owner.address());
            owner.keep(&capture)?;
        }
        let [bytes, of_places] = call.workspace_bytes(self.device);
        if lent.is_none() && bytes > 0 && captured.workspace.as_ref().is_none_or(|workspace| workspace.bytes() < bytes)
        {
            let workspace = Arc::new(DeviceMemory::new(self.stream.context(), "a graph to work in", bytes)?);
            capture.keep(Arc::clone(&workspace))?;
            captured.workspace = Some(workspace);
        }
        let too_small = |places: &Option<Arc<DeviceMemory>>| places.as_ref().is_none_or(|it| it.bytes() < of_places);
        if lent.is_none() && of_places > 0 && too_small(&captured.places) {
            if too_small(&self.places) {
                let places = DeviceMemory::new(self.stream.context(), "weights that graphs bring over", of_places)?;
                // Graphs keep those that they were captured with.
                self.places.replace(Arc::new(places)).into_iter().for_each(|old| graveyard::bury(Box::new(old)));
            }
            if let Some(places) = &self.places {
                capture.keep(Arc::clone(places))?;
                captured.places = Some(Arc::clone(places));
            }
        }
        let exchanged = call.exchange_bytes();
        if exchanged > 0 && captured.exchange.as_ref().is_none_or(|exchange| exchange.bytes() < exchanged) {
            captured.exchange = Some(Arc::new(PinnedMemory::new(self.stream.context(), EXCHANGED, exchanged)?));
        }
        let own = [&captured.workspace, &captured.places].map(|memory| memory.as_ref().map_or(0, |it| it.address()));
        let addresses = lent.map_or(own, |(address, _)| [address, address + bytes as u64]);
        let work = call.work(self.device, addresses, captured.exchange.as_ref())?;
        let work = self.encoded(work)?;
        // SAFETY: operands, and memory that is lent, are the caller's promise; the graph keeps weights, working memory
        // and the host's part.
        unsafe { work.queue(&self.stream) }
    }

    /// Queues products whose plan is made and whose operands are known to be right: tokens are multiplied with what the
    /// weights ask for.
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
        let address = workspace.as_deref().map_or(0, DeviceMemory::address);
        let launches = product_launches(self.device, weights, (problem, config), (tokens, false, outputs), address)?;
        // SAFETY: the caller's promise; the working memory is the queue's, which waits for its stream before it gives
        // it back.
        self.encode(&launches)?.iter().try_for_each(|launch| unsafe { launch.queue(&self.stream) })
    }

    /// Looks at where a layer, a call's tensors and memory that is lent are.
    fn check_layer(&self, layer: &DeviceExperts, call: &LayerCall, lent: Option<(u64, usize)>) -> Result<()> {
        let [found, expected] = [layer.device(), self.device].map(|device| device.context.ordinal());
        if found != expected {
            let [found, expected] = [found, expected].map(|device| format!("device {device}"));
            return Err(Error::Mismatch { group: 0, what: "the place of the weights", found, expected });
        }
        if call.tokens > 0 {
            layer.check(call)?;
        }
        let Some((address, there)) = lent else { return Ok(()) };
        let bytes = layer.workspace_with(call.tokens, call.lots()).iter().sum();
        if there < bytes {
            let (what, found) = ("the workspace", format!("{there} bytes"));
            let expected = format!("{bytes} for {} tokens, as workspace_bytes says,", call.tokens);
            return Err(Error::Mismatch { group: 0, what, found, expected });
        }
        check_place(self.device.context, 0, "the workspace", address, there, ALIGNMENT)
    }

    /// Work as the driver takes it.
    fn encoded(&self, work: Work) -> Result<Work<EncodedLaunch>> {
        let host = work.host.map(|host| {
            let Beside { after, send, bell } = *host;
            let send = self.encode(std::slice::from_ref(&send))?.remove(0);
            Ok::<_, Error>(Box::new(Beside { after, send, bell }))
        });
        Ok(Work { launches: self.encode(&work.launches)?, host: host.transpose()?, fetches: work.fetches })
    }

    /// Launches as the driver takes them. Their kernels are compiled, unless the stream is being captured.
    fn encode(&self, launches: &[Launch]) -> Result<Vec<EncodedLaunch>> {
        let context = self.device.context;
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
        let more = bytes.max(self.workspace_bytes() * 3 / 2);
        self.stream.synchronize()?;
        self.ready.clear();
        self.workspace = None;
        graveyard::sweep();
        let workspace =
            as_much(more, bytes, |bytes| DeviceMemory::new(self.stream.context(), "working memory", bytes))?;
        self.workspace = Some(Arc::clone(&workspace));
        Ok(Some(workspace))
    }

    /// Memory that host and device both reach, of at least so many bytes; as for [`LaunchQueue::workspace`].
    fn exchange(&mut self, bytes: usize) -> Result<Option<Arc<PinnedMemory>>> {
        if bytes == 0 {
            return Ok(None);
        }
        if let Some(exchange) = self.exchange.as_ref().filter(|exchange| exchange.bytes() >= bytes) {
            return Ok(Some(Arc::clone(exchange)));
        }
        self.unless_capturing("memory of the host must be pinned", || Ok(()))?;
        let more = bytes.max(self.exchange.as_ref().map_or(0, |exchange| exchange.bytes() * 3 / 2));
        self.stream.synchronize()?;
        self.ready.clear();
        self.exchange = None;
        let exchange = as_much(more, bytes, |bytes| PinnedMemory::new(self.stream.context(), EXCHANGED, bytes))?;
        self.exchange = Some(Arc::clone(&exchange));
        Ok(Some(exchange))
    }

    /// Does what may not be done while the stream is being captured, or says so.
    pub(crate) fn unless_capturing<T>(&self, what: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.stream.capturing()?.is_some() { Err(Error::Capture { what }) } else { act() }
    }
}

/// Memory of so many bytes, or where they cannot be had, of as many as are needed.
fn as_much<T>(more: usize, needed: usize, allocate: impl Fn(usize) -> Result<T>) -> Result<Arc<T>> {
    match allocate(more) {
        Err(Error::DeviceMemory { .. } | Error::Pinned { .. }) if more > needed => allocate(needed),
        allocated => allocated,
    }
    .map(Arc::new)
}

impl Drop for LaunchQueue {
    fn drop(&mut self) {
        let holds = [&self.workspace, &self.places].iter().any(|memory| memory.is_some()) || self.exchange.is_some();
        if holds && !device::waited_for(&self.stream) {
            let (ready, memory) = (std::mem::take(&mut self.ready), [self.workspace.take(), self.places.take()]);
            graveyard::bury(Box::new((ready, memory, self.exchange.take())));
        }
    }
}

/// The launches of products, in a workspace at an address. Tokens are still to be multiplied with the weights' input
/// scales, or not.
fn product_launches(
    device: &'static Device,
    weights: &dyn PackedWeights,
    (problem, config): (&Problem, &Config),
    (tokens, multiply, outputs): (&[DeviceTokens], bool, &[DeviceOutput]),
    workspace: u64,
) -> Result<Vec<Launch>> {
    let weights = DeviceWeights::on(weights, device)?;
    let family = families::computing(device.family, problem);
    let (source, places) = sources(family, weights.groups(), problem, tokens, multiply);
    let targets: Vec<u64> = outputs.iter().map(|output| output.address).collect();
    let site = Site { family: device.family, workspace, multiprocessors: device.facts.multiprocessors };
    let (groups, tokens) = (weights.groups(), (source, &places[..]));
    launches::launches(site, problem, config, groups, DeviceMemory::address, tokens, &targets)
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

/// The type that tokens must have: the problem's, or any dense one where weights have input scales, by which it becomes
/// the problem's.
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

/// Whether tokens and places for results have a problem's shapes and types (tokens this one), and can be where they are
/// said to be.
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
            let alignment = DeviceOutput::alignment(output.element(), shape.n);
            check_place(context, group, "the results", output.address, bytes, alignment)?;
        }
    }
    Ok(())
}

fn product_key(
    weights: &Arc<dyn PackedWeights>,
    precision: Precision,
    tokens: &[DeviceTokens],
    outputs: &[DeviceOutput],
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (Arc::as_ptr(weights).addr(), precision).hash(&mut hasher);
    for token in tokens {
        let TokenPlace { values, scales, global, exponent } = token.place;
        (values, scales, global.value().to_bits(), exponent, token.rows).hash(&mut hasher);
    }
    outputs.iter().for_each(|output| output.address.hash(&mut hasher));
    hasher.finish()
}

fn layer_key(layer: &Arc<DeviceExperts>, call: &LayerCall, lent: Option<(u64, usize)>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let chosen = match call.choice {
        Choice::Logits { logits, correction, .. } => [logits, correction],
        Choice::Given { ids, weights, .. } => [ids, weights],
        Choice::Everyone => [0; 2],
    };
    let lent = lent.map(|(address, _)| address);
    (Arc::as_ptr(layer).addr(), [call.x, call.out, call.adapters], chosen, call.tokens, lent).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_had_where_more_cannot_be() {
        let room_for = |most: usize| {
            move |bytes: usize| match bytes <= most {
                true => Ok(bytes),
                false => Err(Error::Pinned { bytes, what: "a test" }),
            }
        };
        let found = |most, more, needed| as_much(more, needed, room_for(most)).ok().map(|bytes| *bytes);
        assert_eq!([found(9, 9, 6), found(8, 9, 6), found(5, 9, 6)], [Some(9), Some(6), None]);
        let lost = as_much(9, 6, |_| Err::<usize, _>(Error::Forgotten));
        assert!(matches!(lost, Err(Error::Forgotten)), "other errors are not tried again");
    }
}
