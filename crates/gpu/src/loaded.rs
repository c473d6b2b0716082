//! A layer of experts in a device's memory, which [`LaunchQueue`](crate::LaunchQueue) computes on tensors of the
//! caller's. Nothing of a call is read back, so that one captured in a CUDA graph serves whatever routing the tensors
//! hold when it is launched. A layer that is dropped waits for the streams that read it.
//!
//! What only the device sees cannot be refused, and is defined instead. An id outside of 0..experts is nobody's: it
//! costs nothing and adds nothing, and what its weight is does not matter. A token whose adapter's number is no
//! adapter's has none. A logit that is NaN counts as less than
//! every other; weights of logits that are not finite may be NaN, and then so are the results of that token and of no
//! other. Tokens, weights and biases that are not finite spoil results of the tokens that meet them. What the host
//! knows is refused: a workspace that is too small for the number of tokens, with how large it must be; tensors that
//! are elsewhere; a token's experts beyond 32 or beyond those that there are.

use std::sync::{Arc, Mutex, PoisonError};

use op::routing::Router;
use op::{Adapters, Choose, Error, Gate, Intermediate, Output, Result};

use crate::away::AwayExperts;
use crate::device::{Device, Readers};
use crate::driver::{DeviceMemory, Stream, graveyard};
use crate::experts::adapters::{AdaptedShape, AdapterPlaces, PackedAdapters};
use crate::experts::call::{Choice, Exchange, LayerCall, LayerWeights};
use crate::experts::kernels::LayerKernels;
use crate::experts::layer::{self, LayerLaunches, LayerSite};
use crate::experts::lots::Lots;
use crate::experts::packed::{Numbers, PackedExpert};
use crate::experts::plan::Cheapest;
use crate::experts::route::RouteSpec;
use crate::experts::shape::LayerShape;
use crate::families::choice::illegal;
use crate::operands::{ALIGNMENT, check_place};

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
    /// Who says how calls are computed.
    choose: Arc<dyn Choose>,
    /// Where experts are, if the host has some of them: then the shape's are slots.
    away: Option<Arc<AwayExperts>>,
    /// What tokens may have added to their products.
    adapters: Option<Arc<DeviceAdapters>>,
}

/// A layer's adapters in a device's memory.
#[derive(Debug)]
pub struct DeviceAdapters {
    shape: AdaptedShape,
    places: AdapterPlaces,
    memory: Vec<DeviceMemory>,
    readers: Readers,
    /// What they add to the layer's shared expert, if anything.
    shared: Option<Arc<DeviceAdapters>>,
}

impl DeviceAdapters {
    /// Puts adapters into a device's memory, for a layer with this gate.
    pub fn new(device: usize, adapters: &Adapters, gate: Gate) -> Result<Self> {
        graveyard::sweep();
        let shared = adapters.shared().map(|shared| Self::new(device, shared, gate).map(Arc::new)).transpose()?;
        let (device, packed) = (Device::of(device)?, PackedAdapters::new(adapters, gate)?);
        let (stream, mut memory) = (Stream::new(device.context)?, Vec::new());
        let places = packed.placed(|bytes| {
            let placed = DeviceMemory::holding(device.context, "a layer's adapters", bytes, &stream)?;
            let address = placed.address();
            memory.push(placed);
            Ok::<u64, Error>(address)
        })?;
        Ok(Self { shape: packed.shape, places, memory, readers: Readers::default(), shared })
    }

    /// What they add to the layer's shared expert, if anything.
    pub fn shared(&self) -> Option<&Arc<DeviceAdapters>> {
        self.shared.as_ref()
    }

    /// Bytes of the device's memory that they take.
    pub fn bytes(&self) -> usize {
        let own: usize = self.memory.iter().map(DeviceMemory::bytes).sum();
        own + self.shared.as_ref().map_or(0, |shared| shared.bytes())
    }
}

impl Drop for DeviceAdapters {
    fn drop(&mut self) {
        if !self.readers.waited_for() {
            graveyard::bury(Box::new(std::mem::take(&mut self.memory)));
        }
    }
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
    /// Puts a layer's experts into a device's memory, one after another as they come. Of those beyond the shape's only
    /// the numbers beside the matrices go there.
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
        if placed < count {
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
        let choose = Arc::new(Cheapest { family: device.family, facts: device.facts.clone() });
        Ok(DeviceExperts {
            shape,
            device,
            weights,
            bytes,
            memory: Arc::new(memory),
            shared: None,
            choose,
            away: None,
            adapters: None,
        })
    }

    /// The same layer, whose calls are computed as somebody says.
    pub fn computed_as(self, choose: Arc<dyn Choose>) -> Self {
        DeviceExperts { choose, ..self }
    }

    /// The same layer as the slots of a larger one, of which the host has the other experts.
    pub fn among(self, away: Arc<AwayExperts>) -> Self {
        DeviceExperts { away: Some(away), ..self }
    }

    /// The same layer, whose tokens may have an adapter. The host has none of its experts.
    pub fn adapted(mut self, adapters: Arc<DeviceAdapters>) -> Result<Self> {
        if self.away.is_some() {
            let (what, found) = ("the layer of the adapters", "experts in two places".to_owned());
            let expected = "all of them on one device; give no gpu_bytes, or compute on the processor".to_owned();
            return Err(Error::Mismatch { group: 0, what, found, expected });
        }
        self.shape.adapted = Some(adapters.shape);
        self.shape.check()?;
        self.weights.adapters = adapters.places;
        self.adapters = Some(adapters);
        Ok(self)
    }

    /// Its adapters, if it has some.
    pub fn adapters(&self) -> Option<&Arc<DeviceAdapters>> {
        self.adapters.as_ref()
    }

    /// Where experts are, if the host has some of them.
    pub fn away(&self) -> Option<&Arc<AwayExperts>> {
        self.away.as_ref()
    }

    /// Queues the filling of a slot with another expert's weights.
    pub(crate) fn fill_slot(&self, slot: usize, expert: &PackedExpert, stream: &Stream) -> Result<()> {
        let all = std::iter::once(expert.matrices()).chain(expert.numbers().map(bytemuck::cast_slice));
        for (memory, bytes) in self.memory.weights.iter().zip(all) {
            // SAFETY: from ordinary memory the driver has read everything when this returns, and the layer's memory
            // waits for the streams that use it.
            unsafe { memory.write(slot * bytes.len(), bytes, stream) }?;
        }
        Ok(())
    }

    /// The device that it is on.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// How calls with so many tokens bring weights over, if they do.
    fn lots(&self, tokens: u32) -> Option<&Lots> {
        self.away.as_ref()?.lots(tokens as usize * self.shape.top as usize)
    }

    /// The kernels for calls with so many tokens. Where the host computes some experts, it has as large a part of the
    /// rows; where weights are brought over, lots are computed as the whole layer would be.
    pub fn kernels(&self, tokens: u32) -> Result<LayerKernels> {
        self.kernels_with(tokens, self.lots(tokens))
    }

    /// The same where weights are brought over so, or not.
    pub(crate) fn kernels_with(&self, tokens: u32, lots: Option<&Lots>) -> Result<LayerKernels> {
        let Device { family, facts, .. } = self.device;
        let kernels = |chosen: &LayerShape, tokens: u32, shape: &LayerShape| {
            let config = self.choose.choose(&chosen.problem(tokens)?)?;
            LayerKernels::new(*family, shape, &config, facts).map_err(illegal(&config))
        };
        let Some(away) = &self.away else { return kernels(&self.shape, tokens, &self.shape) };
        let all = away.experts();
        if let Some(lots) = lots {
            let [whole, lot] = [all, lots.each].map(|experts| LayerShape { experts, ..self.shape });
            return kernels(&whole, tokens, &lot);
        }
        let rows = u64::from(tokens) * u64::from(self.shape.experts);
        kernels(&self.shape, rows.div_ceil(all.into()) as u32, &self.shape)
    }

    /// The same weights as a layer that differs in what a call may choose: the types of tokens, intermediates, rows and
    /// results, how many experts a token has, what its weights multiply, and whether bits depend on the batch.
    pub fn seen_as(&self, shape: LayerShape) -> Result<Self> {
        shape.check()?;
        let LayerShape { top, on_input, activation, intermediate, invariant, partial, output, .. } = shape;
        let expected = LayerShape { top, on_input, activation, intermediate, invariant, partial, output, ..self.shape };
        // The factors and words of down are for an NVFP4 intermediate, or for another.
        let [quantised, wanted] = [self.shape.intermediate, intermediate].map(|each| each == Intermediate::NvFp4);
        if shape != expected || quantised != wanted {
            let [found, expected] = [shape, expected].map(|shape| format!("{shape:?}"));
            return Err(Error::Mismatch { group: 0, what: "the layer's weights", found, expected });
        }
        let Self { device, weights, bytes, .. } = *self;
        let (memory, choose, away) = (Arc::clone(&self.memory), Arc::clone(&self.choose), self.away.clone());
        Ok(DeviceExperts { shape, device, weights, bytes, memory, shared: None, choose, away, adapters: None })
    }

    /// The same layer with an expert that computes every token, whose results are added to the others' in f32. It is a
    /// layer of one, on the same device, of tokens of the same type.
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

    /// How a router chooses among the experts by logits at an address. What it corrects them with is put beside the
    /// weights the first time.
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
        self.workspace_with(tokens, self.lots(tokens)).iter().sum()
    }

    /// The same where weights are brought over so, or not; and bytes of the places that they are brought to, which may
    /// lie behind the others.
    pub(crate) fn workspace_with(&self, tokens: u32, lots: Option<&Lots>) -> [usize; 2] {
        let shared = self.shared.as_ref().map(|shared| &shared.shape);
        let own = layer::whole_workspace_bytes(&self.shape, lots, shared, tokens);
        [own, lots.map_or(0, Lots::place_bytes)]
    }

    /// Bytes that a call exchanges with the host.
    pub(crate) fn exchange_bytes(&self, call: &LayerCall) -> usize {
        let sends = call.placement.is_some_and(|placement| placement.sends());
        if sends { Exchange::of(&self.shape, call.tokens).bytes } else { 0 }
    }

    /// The launches of a call, for a workspace, for what is brought over and for what is exchanged with the host at
    /// these addresses; those of the shared expert come first.
    pub fn launches(
        &self,
        kernels: &LayerKernels,
        call: &LayerCall,
        [workspace, brought, exchange]: [u64; 3],
    ) -> Result<LayerLaunches> {
        let site = LayerSite { workspace, brought, exchange, multiprocessors: self.device.facts.multiprocessors };
        let shared = match &self.shared {
            Some(shared) => Some((&shared.shape, shared.kernels(call.tokens)?, &shared.weights)),
            None => None,
        };
        let shared = shared.as_ref().map(|(shape, kernels, weights)| (*shape, kernels, *weights));
        Ok(layer::whole_launches((&self.shape, kernels, &self.weights), shared, call, site))
    }

    /// Remembers that work in a stream will read the weights.
    pub(crate) fn read_by(&self, stream: &Arc<Stream>) {
        self.memory.readers.add(stream);
        if let Some(adapters) = &self.adapters {
            adapters.readers.add(stream);
        }
        if let Some(shared) = &self.shared {
            shared.read_by(stream);
        }
    }

    /// Looks at where a call's tensors are.
    pub(crate) fn check(&self, call: &LayerCall) -> Result<()> {
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
        if shape.adapted.is_some() {
            place("the tokens' adapters", call.adapters, 4 * tokens, 4)?;
        }
        if shape.gated && call.choice != Choice::Everyone {
            let (what, found) = ("the weights of an expert with a gate of its own", "given, or chosen".to_owned());
            return Err(Error::Mismatch { group: 0, what, found, expected: "left to that".to_owned() });
        }
        match call.choice {
            Choice::Logits { logits, spec, correction, .. } => {
                let experts = call.placement.map_or(shape.experts, |placement| placement.experts);
                if (spec.experts, spec.top) != (experts, shape.top) {
                    let [found, expected] = [(spec.experts, spec.top), (experts, shape.top)]
                        .map(|(experts, top)| format!("{top} of {experts}"));
                    return Err(Error::Mismatch { group: 0, what: "the routing's experts", found, expected });
                }
                spec.check().map_err(|error| Error::Kernel(error.into()))?;
                place("the logits", logits, 4 * tokens * experts as usize, 4)?;
                if spec.corrected {
                    place("the routing's correction", correction, 4 * experts as usize, 4)?;
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
