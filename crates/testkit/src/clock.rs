//! How long a computation takes on the device, by the device's own clock.
//!
//! Many calls are captured in one graph and the graph is timed between two events, so that neither the host nor the
//! gaps between launches of a slow host count. The calls take turns with copies of weights, tokens and results, so many
//! that nothing is left of a copy in the device's cache when its turn comes again. What is measured is all that a call
//! queues: the expansion of tokens too.
//!
//! A GPU that has been idle runs faster than one that has worked for a while: its clock falls when it draws more power
//! than it may. So there are two figures: *burst*, after a pause, and *sustained*, after `LOAD` of the same work.

use std::time::{Duration, Instant};

use gpu::driver::{DeviceMemory, Event, Graph, Stream};
use gpu::launches::bytes_of;
use gpu::{DeviceOutput, DeviceTokens, device};
use hammerhead::Layer;
use hammerhead::gpu::Queue;
use op::{Activations, Output, Request, Result};

/// How long the device works before sustained times are taken.
const LOAD: Duration = Duration::from_millis(300);
/// How long it rests before burst times are taken.
const REST: Duration = Duration::from_millis(150);
/// Graph launches that are timed, and those before them that are not.
const SAMPLES: usize = 21;
const WARM_UP: usize = 2;
/// Calls in a graph, at least.
const CALLS: usize = 20;
/// Bytes that are copied to measure the memory's speed, and how often.
const COPIED: usize = 1 << 30;
const COPIES: usize = 5;

/// Seconds of single calls.
#[derive(Clone, Debug)]
pub struct Timing {
    /// After a pause.
    pub burst: Vec<f64>,
    /// Under load.
    pub sustained: Vec<f64>,
    /// Bytes of weights, tokens and results that take turns.
    pub rotated_bytes: usize,
}

/// One of the copies that take turns.
struct Turn<'a> {
    layer: &'a Layer,
    tokens: Vec<DeviceTokens>,
    outputs: Vec<DeviceOutput>,
    /// What tokens and results are in.
    memory: Vec<DeviceMemory>,
}

impl<'a> Turn<'a> {
    fn new(stream: &Stream, layer: &'a Layer, activations: &[Activations<'_>], output: Output) -> Result<Self> {
        let context = stream.context();
        let mut turn = Turn { layer, tokens: Vec::new(), outputs: Vec::new(), memory: Vec::new() };
        for (activations, &(n, _)) in activations.iter().zip(layer.shapes()) {
            let [values, scales] =
                bytes_of(activations).map(|bytes| DeviceMemory::holding(context, "tokens", bytes, stream));
            let (values, scales) = (values?, scales?);
            let out = DeviceMemory::new(context, "results", activations.rows() * n * output.bytes())?;
            turn.tokens.push(DeviceTokens::of(activations, 1.0, values.address(), scales.address()));
            turn.outputs.push(DeviceOutput::new(output, out.address()));
            turn.memory.extend([values, scales, out]);
        }
        Ok(turn)
    }

    fn bytes(&self) -> usize {
        self.layer.packed_bytes() + self.memory.iter().map(DeviceMemory::bytes).sum::<usize>()
    }
}

/// Times a call, as planned under a request, on a device. The layers, all of the same shapes, take turns, each with
/// tokens and results of its own.
pub fn time(
    device: usize,
    layers: &[Layer],
    activations: &[Activations<'_>],
    output: Output,
    request: Request,
) -> Result<Timing> {
    let mut queue = Queue::new(device)?.with_request(request);
    let turns = layers.iter().map(|layer| Turn::new(queue.stream(), layer, activations, output));
    let turns = turns.collect::<Result<Vec<_>>>()?;
    for turn in &turns {
        queue.prepare(turn.layer, &turn.tokens, &turn.outputs)?;
    }
    let calls = CALLS.next_multiple_of(turns.len().max(1));
    // A handle of its own, since the queue itself is used while the stream is captured.
    // SAFETY: the queue outlives it.
    let stream = unsafe { Stream::borrowed(queue.stream().context(), queue.stream().handle()) }?;
    let graph = stream.capture(|| {
        // SAFETY: tokens and results are the turns', which outlive the graph; it is waited for before they go.
        turns
            .iter()
            .cycle()
            .take(calls)
            .try_for_each(|turn| unsafe { queue.enqueue(turn.layer, &turn.tokens, &turn.outputs) })
    })?;
    let run = Run { graph, stream, calls };
    run.repeat(WARM_UP)?;
    std::thread::sleep(REST);
    run.repeat(WARM_UP)?;
    let burst = run.samples()?;
    let begun = Instant::now();
    while begun.elapsed() < LOAD {
        run.repeat(WARM_UP)?;
    }
    let sustained = run.samples()?;
    Ok(Timing { burst, sustained, rotated_bytes: turns.iter().map(Turn::bytes).sum() })
}

/// A graph of so many calls.
struct Run {
    graph: Graph,
    stream: Stream,
    calls: usize,
}

impl Run {
    fn launch(&self) -> Result<()> {
        // SAFETY: `time` keeps what the graph uses, and every sample is waited for.
        unsafe { self.graph.launch(&self.stream) }
    }

    /// Launches it several times, and waits.
    fn repeat(&self, times: usize) -> Result<()> {
        (0..times).try_for_each(|_| self.launch())?;
        self.stream.synchronize()
    }

    /// Seconds of a call, once for each timed launch; all are queued before the first is looked at.
    fn samples(&self) -> Result<Vec<f64>> {
        let mut moments = vec![Event::record(&self.stream)?];
        for _ in 0..SAMPLES {
            self.launch()?;
            moments.push(Event::record(&self.stream)?);
        }
        let seconds = moments.windows(2).map(|pair| Ok(pair[0].seconds_until(&pair[1])? / self.calls as f64));
        seconds.collect()
    }
}

/// Bytes per second that the device's memory reads and writes together, in a large copy.
pub fn bandwidth(device: usize) -> Result<f64> {
    let context = device::context(device)?;
    let stream = Stream::new(context)?;
    let (from, to) = (DeviceMemory::new(context, "a copy", COPIED)?, DeviceMemory::new(context, "a copy", COPIED)?);
    // SAFETY: both are kept to the end of this function, and the last event is waited for.
    unsafe {
        from.fill(0x5A, &stream)?;
        to.copy_from(&from, &stream)?;
    }
    let mut best = f64::INFINITY;
    for _ in 0..COPIES {
        let start = Event::record(&stream)?;
        // SAFETY: both are kept, and the event that follows is waited for.
        unsafe { to.copy_from(&from, &stream) }?;
        best = best.min(start.seconds_until(&Event::record(&stream)?)?);
    }
    Ok(2.0 * COPIED as f64 / best)
}
