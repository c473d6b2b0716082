//! A layer of experts in a device's memory, as it was packed. It is computed on tensors of the host's, where tokens and
//! their experts go there and results come back; or on tensors that are there, in a stream of the caller's.
//!
//! Weights can be multiplied with every type of tokens, and so one copy of them serves all calls; they are in order for
//! bfloat16, which models have. What a call works with is kept for the next one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use op::routing::{Router, Scoring};
use op::{
    Activation, Adapters, Choose, Error, LayerOperands, LayerSpec, LoadedLayer, MlpWeights, Result, SharedWeights, Team,
};

use crate::away::{AwayExperts, EMPTY, change_residents, check_resident, experts_by_number, slots_for};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::experts::call::{Choice, Exchange, LayerCall, Placement};
use crate::experts::lots::Lots;
use crate::experts::packed::PackedExpert;
use crate::experts::shape::LayerShape;
use crate::family::Family;
use crate::launches::dense_bytes;
use crate::loaded::{DeviceAdapters, DeviceExperts};
use crate::operands::{DeviceOutput, DeviceTokens};
use crate::queue::LaunchQueue;

/// A layer, with the expert that computes every token if there is one.
#[derive(Debug)]
pub struct HostExperts {
    device: usize,
    experts: Arc<DeviceExperts>,
    shared: Option<Arc<DeviceExperts>>,
    kept: Mutex<Option<Kept>>,
    /// The layer with its shared expert as calls have had it: other types of tokens and results, other numbers of a
    /// token's experts.
    views: Mutex<Vec<Arc<DeviceExperts>>>,
    /// The expert in every slot, where the host has the others.
    resident: Mutex<Vec<u32>>,
    /// Bytes that a call may exchange with the host at a time: more tokens are computed in pieces.
    exchanged: AtomicUsize,
}

/// Bytes that calls of a layer in two places may exchange with the host at a time, where so many can be pinned.
const MOST_EXCHANGED: usize = 256 << 20;

/// How tokens on the device find their experts.
#[derive(Clone, Copy, Debug)]
pub enum DeviceRouting<'a> {
    /// By logits `[tokens, experts]` in f32 at an address, and a router's rule.
    Logits {
        /// Where they are.
        logits: u64,
        /// The rule.
        router: &'a Router,
    },
    /// By the caller.
    Given {
        /// Where the ids `[tokens, top]` are.
        ids: u64,
        /// Whether they have 64 bits, and not 32.
        wide: bool,
        /// Where the weights `[tokens, top]` are, in f32.
        weights: u64,
        /// Experts of a token.
        top: usize,
        /// Whether weights multiply what experts are given.
        on_input: bool,
    },
    /// There is one, and it computes all of them.
    Everyone,
}

impl DeviceRouting<'_> {
    /// Experts of a token, and whether weights multiply what they are given.
    fn kind(&self) -> (usize, bool) {
        match *self {
            DeviceRouting::Logits { router, .. } => (router.top_k(), router.scoring() == Scoring::SigmoidInput),
            DeviceRouting::Given { top, on_input, .. } => (top, on_input),
            DeviceRouting::Everyone => (1, false),
        }
    }
}

/// What a call leaves for the next one.
#[derive(Debug)]
struct Kept {
    queue: LaunchQueue,
    /// Tokens, ids, weights, adapters' numbers and results.
    places: [Option<DeviceMemory>; 5],
}

impl HostExperts {
    /// Packs the weights on a team's threads, and puts them into a device's memory: all experts, or those that there is
    /// room for. Calls are computed as `choose` says.
    pub fn new(device: usize, spec: &LayerSpec<'_>, choose: Arc<dyn Choose>, team: &Team) -> Result<Self> {
        let LayerSpec { weights, intermediate, precision, batch_invariant: invariant, split } = *spec;
        let family = Device::of(device)?.family;
        let shape_of = |mlps: &[MlpWeights<'_>], gated: bool, experts: usize| {
            let shape = LayerShape::of(mlps, weights.gate(), intermediate);
            let (experts, scaling) = (experts as u32, family.scaling(shape.scaling));
            LayerShape { experts, scaling, invariant, gated, ..shape }.in_precision(precision)
        };
        let packed = |shape: &LayerShape, mlp: &MlpWeights<'_>| PackedExpert::new((family, team), shape, mlp);
        let of_all = |shared: &SharedWeights<'_>| {
            let shape = shape_of(std::slice::from_ref(shared.mlp()), shared.gate().is_some(), 1);
            let expert = packed(&shape, shared.mlp()).map(|packed| match shared.gate() {
                Some(vector) => packed.with_gate(vector),
                None => packed,
            });
            DeviceExperts::new(device, shape, [expert.map(Arc::new)])
        };
        let shared = weights.shared().map(of_all).transpose()?;
        let shared = shared.map(|shared| Arc::new(shared.computed_as(Arc::clone(&choose))));
        let mlps = weights.experts();
        let all = mlps.len() as u32;
        let resident = split.map_or(Vec::new(), |split| split.resident.clone());
        let every: Vec<u32> = (0..all).collect();
        let slots = if split.is_some() { slots_for(&resident) } else { &every[..] };
        let shape = shape_of(mlps, false, slots.len());
        let mut away = split.map(|split| AwayExperts::new(device, &shape, all, split)).transpose()?;
        let lots = away.as_ref().and_then(AwayExperts::all_lots).copied();
        let by_number = lots.map_or(slots.to_vec(), |lots| experts_by_number(&lots, slots, all));
        let mut last: Option<(u32, Arc<PackedExpert>)> = None;
        let experts = by_number.into_iter().enumerate().map(|(number, expert)| {
            // Numbers of nobody's are one expert's.
            let again = last.take().filter(|(before, _)| *before == expert);
            let (_, packed) = match again {
                Some(again) => again,
                None => (expert, Arc::new(packed(&shape, &mlps[expert as usize])?)),
            };
            last = Some((expert, Arc::clone(&packed)));
            if let (Some(away), true) = (&mut away, lots.is_some_and(|lots| number >= lots.first() as usize)) {
                away.keep(expert as usize, &packed);
            }
            Ok(packed)
        });
        let mut experts = DeviceExperts::new(device, shape, experts)?.computed_as(choose);
        if let Some(away) = away {
            experts = experts.among(Arc::new(with_room(away, device)?));
        }
        let (experts, resident) = (Arc::new(experts), Mutex::new(resident));
        let (kept, views, exchanged) = (Mutex::default(), Mutex::default(), AtomicUsize::new(MOST_EXCHANGED));
        Ok(Self { device, experts, shared, kept, views, resident, exchanged })
    }

    /// Whose kernels compute it.
    pub fn family(&self) -> &'static dyn Family {
        self.experts.device().family
    }

    /// Puts adapters of the layer into the device's memory.
    pub fn adapters(&self, adapters: &Adapters) -> Result<Arc<DeviceAdapters>> {
        DeviceAdapters::new(self.device, adapters, self.experts.shape().gate).map(Arc::new)
    }

    /// How often each expert was asked for since the layer was made, where they lie in two places.
    pub fn asked(&self) -> Result<Option<Vec<u32>>> {
        self.experts.away().map(|away| away.asked()).transpose()
    }

    /// What went wrong on the host in earlier calls and nobody was told of yet, where experts lie in two places.
    pub fn host_failure(&self) -> Option<String> {
        self.experts.away()?.failure()
    }

    /// What went wrong on the host in earlier calls, once, where experts lie in two places. Calls that are queued say
    /// it themselves; graphs that are launched again do not.
    pub fn check_host(&self) -> Result<()> {
        self.experts.away().map_or(Ok(()), |away| away.take_failure())
    }

    /// Queues the change to as many other residents: calls that were queued before find the old ones, calls behind it
    /// the new. `pack` makes an expert as the device takes it. Graphs of calls are to be launched in the queue's
    /// stream, or in the order of that.
    pub fn place(
        &self,
        queue: &LaunchQueue,
        wanted: &[u32],
        pack: impl Fn(&LayerShape, u32) -> Result<PackedExpert>,
    ) -> Result<()> {
        queue.unless_capturing("experts must be moved", || Ok(()))?;
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.experts.away().map_or(0, |away| away.experts());
        check_resident(wanted, all)?;
        // Slots are empty where an earlier change has failed: then it is as many as there are experts, too.
        let full = resident.iter().filter(|expert| **expert != EMPTY).count();
        let Some(away) = self.experts.away().filter(|_| [resident.len(), full].contains(&wanted.len())) else {
            let (what, found) = ("the number of experts on the device", wanted.len().to_string());
            let expected = format!("{}, one for each of its slots,", resident.len());
            return Err(Error::Mismatch { group: 0, what, found, expected });
        };
        let mut free: Vec<usize> = (0..resident.len()).filter(|&slot| !wanted.contains(&resident[slot])).collect();
        free.sort_by_key(|&slot| resident[slot] == EMPTY);
        let coming = wanted.iter().filter(|expert| !resident.contains(expert));
        let moves =
            free.into_iter().zip(coming).map(|(slot, &expert)| Ok((slot, expert, pack(self.experts.shape(), expert)?)));
        let moves = moves.collect::<Result<Vec<_>>>()?;
        let tell = |resident: &[u32]| away.place(resident, queue.stream());
        let fill = |slot, packed: &_| self.experts.fill_slot(slot, packed, queue.stream());
        change_residents(&mut resident, moves, tell, fill)
    }

    /// Bytes that a queued call works in, at most: with so many tokens of a type, of which each has so many experts.
    pub fn workspace_bytes(&self, tokens: usize, activation: Activation, top: usize) -> Result<usize> {
        let [count, top] = [tokens, top].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        // Weights that go with the rows take room.
        let view = self.view(LayerShape { top, on_input: true, activation, ..*self.experts.shape() }, None)?;
        Ok(view.workspace_bytes(count))
    }

    /// Queues tokens in the device's memory, whose results go there, in a queue's stream; in a workspace of the
    /// caller's if there is one. `adapted` has adapters, and where each token's number of one is: 32 bits, on the
    /// device.
    ///
    /// # Safety
    ///
    /// As for [`LaunchQueue::launch`].
    pub unsafe fn enqueue(
        &self,
        queue: &mut LaunchQueue,
        tokens: DeviceTokens,
        routing: DeviceRouting<'_>,
        adapted: Option<(&Arc<DeviceAdapters>, u64)>,
        out: DeviceOutput,
        workspace: Option<(u64, usize)>,
    ) -> Result<()> {
        let (view, call) = self.call(tokens, routing, adapted, out)?;
        // SAFETY: the caller's promise is the same, and these are parts of its call.
        self.in_pieces((&view, &call), queue, |queue, piece| unsafe { queue.enqueue_layer(&view, piece, workspace) })
    }

    /// Does everything that comes before the queueing of the same: compiles, allocates, and makes a graph of the
    /// launches.
    pub fn prepare(
        &self,
        queue: &mut LaunchQueue,
        tokens: DeviceTokens,
        routing: DeviceRouting<'_>,
        out: DeviceOutput,
    ) -> Result<()> {
        let (view, call) = self.call(tokens, routing, None, out)?;
        self.in_pieces((&view, &call), queue, |queue, piece| queue.prepare_layer(&view, piece, None).map(drop))
    }

    /// Does something with a call in pieces, for which experts are not yet found. Where there is too little memory for
    /// what they need besides, they are made to need less: nothing was queued of them before.
    fn in_pieces(
        &self,
        (view, call): (&Arc<DeviceExperts>, &LayerCall),
        queue: &mut LaunchQueue,
        mut act: impl FnMut(&mut LaunchQueue, &LayerCall) -> Result<()>,
    ) -> Result<()> {
        let (shape, rows) = (view.shape(), call.tokens as usize * view.shape().top as usize);
        if call.tokens == 0 {
            return Ok(());
        }
        let Some(away) = view.away() else { return act(queue, call) };
        let (mut most, mut placement) = (self.exchanged.load(Ordering::Relaxed), away.placement(rows));
        let mut without = None;
        loop {
            let call = LayerCall { placement: Some(placement), ..*call };
            let done = pieces(shape, &call, most).iter().try_for_each(|piece| act(queue, piece));
            let Err(error) = done else {
                // It was for lack of what this call has done without, and later ones of its size would fail alike.
                self.exchanged.fetch_min(most, Ordering::Relaxed);
                without.into_iter().for_each(|reason| away.stop(reason));
                return Ok(());
            };
            // What would be computed instead was not prepared.
            if queue.stream().capturing()?.is_some() {
                return Err(error);
            }
            match less(&error, (shape, placement), most) {
                Some(Less::Exchanged(bytes)) => most = bytes,
                Some(Less::Brought) => {
                    without = Some(format!("weights are no longer brought over: {error}"));
                    placement = away.by_host();
                }
                None => return Err(error),
            }
        }
    }

    /// The layer as a call sees it, and the call, for which experts are not yet found.
    fn call(
        &self,
        tokens: DeviceTokens,
        routing: DeviceRouting<'_>,
        adapted: Option<(&Arc<DeviceAdapters>, u64)>,
        out: DeviceOutput,
    ) -> Result<(Arc<DeviceExperts>, LayerCall)> {
        let hidden = self.experts.shape().hidden as usize;
        let mismatch = |what, found: String, expected: String| Error::Mismatch { group: 0, what, found, expected };
        if tokens.k != hidden {
            return Err(mismatch("k of the tokens", tokens.k.to_string(), hidden.to_string()));
        }
        let global = tokens.place.global.value();
        if global != 1.0 {
            let expected = "1 for a whole layer; multiply the tokens with it".to_owned();
            return Err(mismatch("the tokens' scale", global.to_string(), expected));
        }
        let Ok(count) = u32::try_from(tokens.rows) else {
            return Err(mismatch("the number of tokens", tokens.rows.to_string(), "less than 2³²".to_owned()));
        };
        let (top, on_input) = routing.kind();
        let (activation, output, top) = (tokens.element, out.element(), u32::try_from(top).unwrap_or(u32::MAX));
        let (adapters, adapter_ids) = adapted.unzip();
        let view = self.view(LayerShape { top, on_input, activation, output, ..*self.experts.shape() }, adapters)?;
        let choice = match routing {
            DeviceRouting::Logits { logits, router } => view.choice(router, logits)?,
            DeviceRouting::Given { ids, wide, weights, .. } => Choice::Given { ids, wide, weights },
            DeviceRouting::Everyone => Choice::Everyone,
        };
        let call = LayerCall {
            tokens: count,
            x: tokens.place.values,
            choice,
            addend: None,
            adapters: adapter_ids.unwrap_or(0),
            placement: None,
            out: out.address,
        };
        Ok((view, call))
    }

    /// The layer with its shared expert as a call has it: one that was used before, or a new one over the same weights.
    fn view(&self, shape: LayerShape, adapters: Option<&Arc<DeviceAdapters>>) -> Result<Arc<DeviceExperts>> {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let adapted = |view: &DeviceExperts| view.adapters().map(Arc::as_ptr) == adapters.map(Arc::as_ptr);
        let alike = |view: &DeviceExperts| LayerShape { adapted: None, ..*view.shape() } == shape;
        if let Some(view) = views.iter().find(|view| adapted(view) && alike(view)) {
            return Ok(Arc::clone(view));
        }
        // Adapters that nobody but a view has any longer go with it.
        views.retain(|view| view.adapters().is_none_or(|adapters| Arc::strong_count(adapters) > 1));
        let mut view = self.experts.seen_as(shape)?;
        if let Some(adapters) = adapters {
            view = view.adapted(Arc::clone(adapters))?;
        }
        if let Some(shared) = &self.shared {
            let as_tokens = LayerShape { activation: shape.activation, ..*shared.shape() };
            let mut shared = shared.seen_as(as_tokens)?;
            if let Some(adapters) = adapters.and_then(|adapters| adapters.shared()) {
                shared = shared.adapted(Arc::clone(adapters))?;
            }
            view = view.with_shared(Arc::new(shared))?;
        }
        views.push(Arc::new(view));
        Ok(Arc::clone(&views[views.len() - 1]))
    }

    /// Queues the copies and what lies between them.
    fn queue_all(&self, call: LayerOperands<'_>, kept: &mut Kept) -> Result<()> {
        let LayerOperands { tokens: x, top, on_input, target: mut out, .. } = call;
        let activation = Activation::of_values(x.values());
        let (tokens, output) = (x.rows() as u32, out.element());
        let shape = LayerShape { top: top as u32, on_input, activation, output, ..*self.experts.shape() };
        let adapters = call.adapted.map(|adapted| self.adapters(adapted.adapters())).transpose()?;
        let layer = self.view(shape, adapters.as_ref())?;
        let numbers = call.adapted.map_or(&[][..], |adapted| adapted.ids());
        let contents: [&[u8]; 4] = [
            dense_bytes(x),
            bytemuck::cast_slice(call.ids),
            bytemuck::cast_slice(call.weights),
            bytemuck::cast_slice(numbers),
        ];
        let results = x.rows() * shape.hidden as usize * output.bytes();
        let [x, ids, weights, adapters, results] =
            self.places(kept, contents.map(<[u8]>::len).into_iter().chain([results]))?;
        for (place, bytes) in kept.places.iter().flatten().zip(contents) {
            // SAFETY: `run` waits for the stream before the caller's slices go, and the place has as many bytes.
            unsafe { place.write(0, bytes, kept.queue.stream()) }?;
        }
        let choice = Choice::Given { ids, wide: false, weights };
        let call = LayerCall { tokens, x, choice, addend: None, adapters, placement: None, out: results };
        self.in_pieces((&layer, &call), &mut kept.queue, |queue, piece| {
            // SAFETY: all of it is in `places`, as large as the layer says, and stays until `run` has waited for the
            // stream.
            unsafe { queue.enqueue_layer(&layer, piece, None) }
        })?;
        match &kept.places[4] {
            // SAFETY: `run` waits for the stream, and nobody looks at the results before that.
            Some(place) => unsafe { place.read(0, out.bytes_mut(), kept.queue.stream()) },
            None => Ok(()),
        }
    }

    /// Where tensors of so many bytes are to be.
    fn places(&self, kept: &mut Kept, lengths: impl Iterator<Item = usize>) -> Result<[u64; 5]> {
        let context = Device::of(self.device)?.context;
        let mut addresses = [0; 5];
        for ((place, bytes), address) in kept.places.iter_mut().zip(lengths).zip(&mut addresses) {
            if place.as_ref().is_none_or(|place| place.bytes() < bytes) {
                // Nothing is queued that uses what goes: every call waits for its own.
                *place = Some(DeviceMemory::new(context, "tensors of a layer of experts", bytes.max(1))?);
            }
            *address = place.as_ref().map_or(0, DeviceMemory::address);
        }
        Ok(addresses)
    }
}

impl LoadedLayer for HostExperts {
    fn bytes(&self) -> usize {
        self.experts.bytes() + self.shared.as_ref().map_or(0, |shared| shared.bytes())
    }

    fn resident(&self) -> Option<Vec<u32>> {
        self.experts.away()?;
        let resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        Some(resident.iter().copied().filter(|&expert| expert != EMPTY).collect())
    }

    fn streams_from(&self) -> std::result::Result<Option<usize>, String> {
        self.experts.away().map_or(Ok(None), |away| away.streams_from())
    }

    fn streamed_bytes(&self) -> usize {
        self.experts.away().map_or(0, |away| away.stored_bytes())
    }

    fn run(&self, call: LayerOperands<'_>) -> Result<()> {
        check_operands(&call, self.experts.shape().hidden as usize)?;
        if call.tokens.rows() == 0 {
            return Ok(());
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut kept = match kept {
            Some(kept) => kept,
            None => Kept { queue: LaunchQueue::new(self.device)?, places: std::array::from_fn(|_| None) },
        };
        let queued = self.queue_all(call, &mut kept);
        // Also after an error: what was queued before it may still read and write the caller's memory.
        let done = queued.and(kept.queue.stream().synchronize());
        // After an error, whatever state that left behind goes.
        if done.is_ok() {
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        }
        done
    }
}

/// The same, if there is room on the device for what calls with many rows bring over; else none of them do.
fn with_room(away: AwayExperts, device: usize) -> Result<AwayExperts> {
    let Some(needed) = away.all_lots().map(Lots::place_bytes) else { return Ok(away) };
    let (free, _) = Device::of(device)?.context.memory()?;
    if free >= needed {
        return Ok(away);
    }
    Ok(away.without_store(format!(
        "weights are brought to {needed} bytes of device {device}'s memory, of which {free} are free; give experts less \
         of it"
    )))
}

/// What a call can do without.
#[derive(Debug, PartialEq)]
enum Less {
    /// More memory than so much to exchange with the host at a time.
    Exchanged(usize),
    /// Places for weights that are brought over: the host computes their experts.
    Brought,
}

/// What a call that failed with an error can do without, if that was for lack of memory: calls of a layer whose bits do
/// not depend on the batch bring weights over all of them, or none.
fn less(error: &Error, (shape, placement): (&LayerShape, Placement), most: usize) -> Option<Less> {
    match error {
        Error::Pinned { .. } if most > Exchange::of(shape, 1).bytes => Some(Less::Exchanged(most / 4)),
        Error::DeviceMemory { .. } if placement.brought.is_some() && !shape.invariant => Some(Less::Brought),
        _ => None,
    }
}

/// A call as pieces that exchange no more with the host than they may: itself, where it exchanges nothing.
fn pieces(shape: &LayerShape, call: &LayerCall, most: usize) -> Vec<LayerCall> {
    let Some(placement) = call.placement.filter(|placement| placement.sends()) else { return vec![*call] };
    let most = (most / Exchange::of(shape, 1).bytes).max(1) as u32;
    let hidden = shape.hidden as usize;
    let piece = |first: u32| {
        let before = |bytes: usize| u64::from(first) * bytes as u64;
        let entry = |bytes: usize| before(bytes * shape.top as usize);
        let choice = match call.choice {
            Choice::Logits { logits, spec, correction, scale } => {
                Choice::Logits { logits: logits + before(4 * placement.experts as usize), spec, correction, scale }
            }
            Choice::Given { ids, wide, weights } => {
                let ids = ids + entry(if wide { 8 } else { 4 });
                Choice::Given { ids, wide, weights: weights + entry(4) }
            }
            Choice::Everyone => Choice::Everyone,
        };
        LayerCall {
            tokens: most.min(call.tokens - first),
            x: call.x + before(shape.activation.row_bytes(hidden)),
            choice,
            adapters: call.adapters + if shape.adapted.is_some() { before(4) } else { 0 },
            out: call.out + before(hidden * shape.output.bytes()),
            ..*call
        }
    };
    (0..call.tokens).step_by(most as usize).map(piece).collect()
}

/// Refuses slices of other lengths than a call's sizes say, for results as wide as tokens.
pub(crate) fn check_operands(call: &LayerOperands<'_>, hidden: usize) -> Result<()> {
    let rows = call.tokens.rows();
    let expected = [
        ("k of the tokens", call.tokens.k(), hidden),
        ("the number of ids", call.ids.len(), rows * call.top),
        ("the number of weights", call.weights.len(), rows * call.top),
        ("the number of results", call.target.len(), rows * hidden),
        ("the number of the tokens' adapters", call.adapted.map_or(rows, |adapted| adapted.ids().len()), rows),
    ];
    let mismatch = |what, found: String, expected: String| Err(Error::Mismatch { group: 0, what, found, expected });
    if let Some((what, found, expected)) = expected.into_iter().find(|(_, found, expected)| found != expected) {
        return mismatch(what, found.to_string(), expected.to_string());
    }
    let global = call.tokens.global().value();
    if global != 1.0 {
        return mismatch("the tokens' scale", global.to_string(), "1 on a GPU; multiply the tokens with it".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experts::call::Brought;
    use crate::families::sm90::Sm90;

    fn placement(brought: bool) -> Placement {
        let lots = Lots::of(&LayerShape::SMALL, &Sm90, 8, 1 << 20).unwrap();
        let brought = brought.then_some(Brought { lots, matrices: 0 });
        Placement { experts: 8, table: [0; 2], brought }
    }

    #[test]
    fn a_call_without_the_memory_for_it_does_with_less_as_long_as_it_can() {
        let pinned = Error::Pinned { bytes: 9, what: "a test" };
        let device = Error::DeviceMemory { bytes: 9, what: "a test", device: 0, free: 1, total: 2 };
        let (shape, invariant) = (LayerShape::SMALL, LayerShape { invariant: true, ..LayerShape::SMALL });
        let one = Exchange::of(&shape, 1).bytes;
        let found = |error, brought, most| less(error, (&shape, placement(brought)), most);
        assert_eq!(found(&pinned, false, 8 * one), Some(Less::Exchanged(2 * one)));
        assert_eq!(found(&pinned, false, one), None, "one token is the least");
        assert_eq!(found(&device, true, one), Some(Less::Brought));
        assert_eq!(found(&device, false, one), None, "the host computes already");
        assert_eq!(less(&device, (&invariant, placement(true)), one), None, "bits may not change");
        assert_eq!(found(&Error::NoGroups, true, 8 * one), None);
    }

    #[test]
    fn pieces_are_all_of_a_call_in_its_order() {
        let (shape, placement) = (LayerShape { top: 2, ..LayerShape::SMALL }, placement(false));
        let choice = Choice::Given { ids: 0, wide: true, weights: 0 };
        let place = Some(placement);
        let call = LayerCall { tokens: 7, x: 0, choice, addend: None, adapters: 0, placement: place, out: 0 };
        for (most, counts) in
            [(usize::MAX, vec![7]), (3 * Exchange::of(&shape, 1).bytes, vec![3, 3, 1]), (0, vec![1; 7])]
        {
            let found = pieces(&shape, &call, most);
            assert_eq!(found.iter().map(|piece| piece.tokens).collect::<Vec<_>>(), counts);
            let mut before = 0;
            for piece in found {
                let choice = Choice::Given { ids: 16 * before, wide: true, weights: 8 * before };
                let row = u64::from(shape.hidden) * before;
                assert_eq!((piece.x, piece.out, piece.choice), (2 * row, 2 * row, choice));
                before += u64::from(piece.tokens);
            }
        }
    }
}
