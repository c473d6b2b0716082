//! Our own kernels on a GPU as a contestant: tensors in the device's memory, and the device's clock.
//!
//! Times of a GPU through the host's memory are times of copies. Here inputs and outputs are where the kernels want
//! them, nothing is copied while the clock runs, and the clock is the device's ([`DeviceClock`]). So it does not matter
//! that this contestant lives in the referee's process and answers through no pipe: the host's part of a run is outside
//! of what counts. What a fresh process would draw anew, places in memory, a fresh session draws too; and kernels are
//! compiled once instead of once per process, which takes more than a second each. Weights are packed once, too, and
//! each session copies them within the device.

use std::collections::HashMap;

use gpu::driver::{Context, LentMemory, Stream};
use gpu::host::DeviceRouting;
use gpu::{DeviceOutput, DeviceTokens, device};
use hammerhead::format::GlobalScale;
use hammerhead::gpu::Queue;
use hammerhead::{Activation, Problem, Request, Shape};
use referee::contestant::device::DeviceClock;
use referee::contestant::protocol::{DeviceFiles, LATCH_DONE, OnGpu, Prepare};
use referee::contestant::{About, Contestant, DeviceTime, Fault, Guard, Job, Readiness, Session, Stage, Tensors};
use referee::digits::unhex;
use referee::{Error, Result};

use super::builtin::{Bench, Builtin, Layers, Loaded, Worker, failed, map};
use super::operands::{Operands, TokensPlace};

/// Calls that a queue is made ready for before there is a new one: fewer than it remembers.
const REMEMBERED: usize = 400;

/// Configurations of our own on one GPU.
#[derive(Debug)]
pub struct OnDevice {
    contestant: Builtin,
    device: usize,
    context: &'static Context,
}

impl OnDevice {
    /// These configurations on this GPU, or why it is not there.
    pub fn new(contestant: Builtin, device: usize) -> Result<Self> {
        Ok(Self { contestant, device, context: device::context(device)? })
    }
}

impl Contestant for OnDevice {
    fn about(&self) -> About {
        self.contestant.about()
    }

    fn start(&self) -> Result<Box<dyn Session>, Fault> {
        let tensors = Tensors::on_device(self.context).map_err(|error| Fault::Start { reason: error.to_string() })?;
        let (bench, clock) = (Bench::new(self.contestant.clone()), DeviceClock::new(self.context));
        Ok(Box::new(Swimmer { bench, device: self.device, tensors, clock, ready: None, calls: Vec::new() }))
    }
}

/// A session of it.
struct Swimmer {
    bench: Bench,
    device: usize,
    clock: DeviceClock,
    /// What was prepared, and what of it is to be run next. Both go before the tensors that they name.
    ready: Option<Ready>,
    calls: Vec<Call>,
    tensors: Tensors,
}

struct Ready {
    loaded: Loaded,
    queue: Queue,
    /// Calls that the queue was made ready for.
    prepared: usize,
    /// The lent memory, where another process has allocated it.
    memory: Option<DeviceFiles>,
}

/// Our own kernels in a process of their own, on memory of a GPU that the referee has allocated: how they meet a
/// program.
pub(super) struct Guest {
    bench: Bench,
    context: &'static Context,
    ready: Option<Ready>,
    /// Memory of the referee's, by its handle. It stays open: the same comes again.
    opened: HashMap<String, LentMemory>,
}

impl Guest {
    /// These configurations on the first GPU, or why it is not there.
    pub(super) fn new(contestant: Builtin) -> Result<Self> {
        let context = device::context(0)?;
        Ok(Self { bench: Bench::alone(contestant), context, ready: None, opened: HashMap::new() })
    }

    fn open(&mut self, piece: &OnGpu) -> Result<&LentMemory> {
        if !self.opened.contains_key(&piece.handle) {
            let garbled = || Error::Protocol { reason: format!("{:?} is no handle", piece.handle) };
            let handle = unhex(&piece.handle).and_then(|bytes| bytes.try_into().ok()).ok_or_else(garbled)?;
            let memory = LentMemory::open(self.context, handle, piece.bytes as usize)?;
            self.opened.insert(piece.handle.clone(), memory);
        }
        Ok(&self.opened[&piece.handle])
    }

    /// Jobs as the queue wants them, at the addresses that the lent memory has here.
    fn calls(&self, jobs: &[Job]) -> Result<Vec<Call>> {
        let ready = self.ready.as_ref().ok_or_else(unprepared)?;
        let memory = ready.memory.as_ref().ok_or_else(unprepared)?;
        let at = |piece: &OnGpu| self.opened.get(&piece.handle).map(LentMemory::address);
        let (inputs, outputs) = at(&memory.inputs).zip(at(&memory.outputs)).ok_or_else(unprepared)?;
        jobs.iter().map(|job| ready.call(*job, inputs, outputs)).collect()
    }
}

impl Worker for Guest {
    fn prepare(&mut self, message: &Prepare) -> Result<Readiness> {
        self.ready = None;
        let absent = || Error::Protocol { reason: "tensors on the GPU were asked for, and files came".to_owned() };
        let memory = message.memory.clone().ok_or_else(absent)?;
        let (stream, mut weights) = (Stream::new(self.context)?, vec![0; memory.constants.bytes as usize]);
        self.open(&memory.constants)?.get(0, &mut weights, &stream)?;
        for piece in [&memory.inputs, &memory.outputs].into_iter().chain(&memory.latch) {
            self.open(piece)?;
        }
        let loaded = match self.bench.load(message, &weights, None)? {
            Ok(loaded) => loaded,
            Err(reason) => return Ok(Readiness::Unsupported(reason)),
        };
        let queue = Queue::new(0)?.with_request(Request::from(*loaded.plan.config()));
        self.ready = Some(Ready { loaded, queue, prepared: 0, memory: Some(memory) });
        Ok(Readiness::Ready)
    }

    fn run(&mut self, jobs: &[Job]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let calls = self.calls(jobs)?;
        let ready = self.ready.as_mut().ok_or_else(unprepared)?;
        // SAFETY: the tensors are where the referee laid them out for this problem, apart from each other, and stay:
        // they are open for as long as this process lives, and the device is waited for below, whatever became of the
        // queueing.
        let queued = unsafe { ready.enqueue(&calls) };
        let done = self.context.synchronize();
        queued.and(done.map_err(Error::from))
    }

    fn queue(&mut self, jobs: &[Job], value: u32) -> Result<()> {
        let calls = self.calls(jobs)?;
        let ready = self.ready.as_mut().ok_or_else(unprepared)?;
        let latch = ready.memory.as_ref().and_then(|memory| memory.latch.as_ref());
        let latch = latch.and_then(|piece| self.opened.get(&piece.handle)).ok_or_else(unprepared)?.address();
        // Kernels are loaded and memory is allocated before anything waits: both may wait for the device.
        ready.make_ready(0, &calls)?;
        // SAFETY: the latch is a page that stays open for as long as this process lives, and its two words lie in it.
        unsafe { ready.queue.stream().wait_for_word(latch, value) }?;
        // SAFETY: the tensors are where the referee laid them out for this problem, apart from each other, and stay
        // open for as long as this process lives; the next thing that is queued waits in the same stream.
        unsafe { ready.enqueue(&calls) }?;
        // SAFETY: the second word lies in the same page as the first.
        Ok(unsafe { ready.queue.stream().write_word(latch + LATCH_DONE, value) }?)
    }
}

fn unprepared() -> Error {
    Error::Protocol { reason: "a run came before anything was prepared".to_owned() }
}

/// One job, as the queue wants it.
struct Call {
    layer: usize,
    tokens: Vec<DeviceTokens>,
    /// The numbers and weights of the tokens' experts, of a whole layer.
    routing: Option<DeviceRouting<'static>>,
    outputs: Vec<DeviceOutput>,
}

impl Swimmer {
    fn load(&mut self) -> Result<Readiness> {
        (self.ready, self.calls) = (None, Vec::new());
        let message = self.tensors.message(String::new())?;
        let constants = &message.files.as_ref().ok_or_else(unprepared)?.constants;
        let loaded = match self.bench.load(&message, &map(constants)?, Some(&self.tensors))? {
            Ok(loaded) => loaded,
            Err(reason) => return Ok(Readiness::Unsupported(reason)),
        };
        let queue = Queue::new(self.device)?.with_request(Request::from(*loaded.plan.config()));
        self.ready = Some(Ready { loaded, queue, prepared: 0, memory: None });
        Ok(Readiness::Ready)
    }

    /// Looks at addresses, compiles and allocates, so that nothing is left but to queue.
    fn make_ready(&mut self, jobs: &[Job]) -> Result<()> {
        self.calls.clear();
        if jobs.is_empty() {
            return Ok(());
        }
        let (inputs, outputs) = self.tensors.addresses().ok_or_else(unprepared)?;
        let ready = self.ready.as_mut().ok_or_else(unprepared)?;
        self.calls = jobs.iter().map(|job| ready.call(*job, inputs, outputs)).collect::<Result<_>>()?;
        ready.make_ready(self.device, &self.calls)
    }

    fn time(&mut self) -> Result<Option<DeviceTime>> {
        let (Some(ready), false) = (self.ready.as_mut(), self.calls.is_empty()) else { return Ok(None) };
        // A handle of its own, since the queue itself is used while the stream is timed.
        // SAFETY: the queue, whose stream it is, outlives it.
        let stream = unsafe { Stream::borrowed(ready.queue.stream().context(), ready.queue.stream().handle()) }?;
        let calls = &self.calls;
        // SAFETY: the tensors are this session's, as large as they were laid out for this problem and apart from each
        // other; the clock waits for the whole device before anyone gives them back.
        let timed = self.clock.time(&stream, || unsafe { ready.enqueue(calls) });
        timed.map(Some)
    }
}

impl Ready {
    /// Has all that these calls need compiled and allocated.
    fn make_ready(&mut self, device: usize, calls: &[Call]) -> Result<()> {
        // Layers and places are drawn anew each time, and a queue forgets all that it has prepared when it has become
        // much: not while it is timed.
        self.prepared += calls.len();
        if self.prepared > REMEMBERED {
            self.queue = Queue::new(device)?.with_request(Request::from(*self.loaded.plan.config()));
            self.prepared = calls.len();
        }
        for Call { layer, tokens, routing, outputs } in calls {
            match (&self.loaded.layers, *routing) {
                (Layers::Products(layers), _) => self.queue.prepare(&layers[*layer], tokens, outputs)?,
                (Layers::Whole(layers), Some(routing)) => {
                    self.queue.prepare_experts(&layers[*layer], tokens[0], routing, outputs[0])?;
                }
                (Layers::Whole(_), None) => return Err(unprepared()),
            }
        }
        Ok(())
    }

    /// Queues calls.
    ///
    /// # Safety
    ///
    /// Their tensors are as large as this problem's, apart from each other, and stay until the queue's stream has done
    /// all of it.
    unsafe fn enqueue(&mut self, calls: &[Call]) -> Result<()> {
        for Call { layer, tokens, routing, outputs } in calls {
            match (&self.loaded.layers, *routing) {
                (Layers::Products(layers), _) => {
                    // SAFETY: the caller's promise is the same.
                    unsafe { self.queue.enqueue(&layers[*layer], tokens, outputs) }?;
                }
                (Layers::Whole(layers), Some(routing)) => {
                    // SAFETY: the caller's promise is the same, for ids and weights too.
                    unsafe { self.queue.enqueue_experts(&layers[*layer], tokens[0], routing, outputs[0], None) }?;
                }
                (Layers::Whole(_), None) => return Err(unprepared()),
            }
        }
        Ok(())
    }

    fn call(&self, job: Job, inputs: u64, outputs: u64) -> Result<Call> {
        let missing = || Error::Protocol { reason: format!("{job:?} names what was not prepared") };
        let prepared = match &self.loaded.layers {
            Layers::Products(layers) => layers.len(),
            Layers::Whole(layers) => layers.len(),
        };
        if job.layer >= prepared {
            return Err(missing());
        }
        let Operands { problem, globals, .. } = &self.loaded.operands;
        let places = self.loaded.operands.inputs.get(job.input).ok_or_else(missing)?;
        let (tokens, routing) = match (problem.whole(), &places[..]) {
            (Some(whole), &[TokensPlace::Routed { values, ids, weights }]) => {
                let shape = [whole.tokens, whole.width];
                let (wide, on_input) = (false, false);
                let (ids, weights) = (inputs + ids, inputs + weights);
                let routing = DeviceRouting::Given { ids, wide, weights, top: whole.top, on_input };
                (vec![dense_at(problem.activation(), inputs + values, shape)], Some(routing))
            }
            _ => {
                let groups = problem.groups().iter().zip(globals).zip(places);
                let tokens = groups.map(|((shape, &global), place)| tokens_at(problem, shape, inputs, place, global));
                (tokens.collect(), None)
            }
        };
        let places = self.loaded.operands.outputs.get(job.output).ok_or_else(missing)?;
        let places = places.iter().map(|place| DeviceOutput::new(problem.output(), outputs + place));
        Ok(Call { layer: job.layer, tokens, routing, outputs: places.collect() })
    }
}

/// Rows of numbers in the device's memory.
fn dense_at(activation: Activation, address: u64, [m, k]: [usize; 2]) -> DeviceTokens {
    let dense = match activation {
        Activation::F16 => DeviceTokens::f16,
        Activation::BF16 => DeviceTokens::bf16,
        _ => DeviceTokens::f32,
    };
    dense(address, m, k)
}

/// A group's tokens in the device's memory.
fn tokens_at(problem: &Problem, shape: &Shape, base: u64, place: &TokensPlace, global: f64) -> DeviceTokens {
    let (Shape { m, k, .. }, global) = (*shape, GlobalScale::nearest(global));
    match place {
        TokensPlace::Quantised { codes, scales } => DeviceTokens::nvfp4(base + codes, base + scales, m, k, global),
        TokensPlace::Dense { values } | TokensPlace::Routed { values, .. } => {
            dense_at(problem.activation(), base + values, [m, k]).scaled_by(global)
        }
    }
}

impl Session for Swimmer {
    fn deterministic(&self) -> bool {
        true
    }

    fn tensors(&mut self) -> &mut Tensors {
        &mut self.tensors
    }

    fn prepare(&mut self) -> Result<Readiness, Fault> {
        self.load().map_err(|error| failed(Stage::Prepare, &error))
    }

    fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
        self.make_ready(jobs).map_err(|error| failed(Stage::Run, &error))
    }

    fn sweep(&mut self, bytes: u64) -> bool {
        self.clock.sweep(bytes);
        true
    }

    fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
        self.time().map_err(|error| failed(Stage::Run, &error))
    }

    fn guards(&self) -> Vec<Guard> {
        Vec::new()
    }
}
