//! Checks layers whose experts lie in two places, a GPU's memory and the host's, then times them: `gpu_split
//! RESULT.json [STAGE]…`.
//!
//! First small layers as models have them, with experts divided in every way, against double precision; then one
//! captured graph with other routings, and with experts that move while it runs; then a host that fails, and one that
//! takes its time. Only if all that is right, whole layers of large models are timed with parts of their experts on the
//! device: computed by the host where they are not there, and brought over, with the bits of the whole layer.
//! `THREADS`, `MODELS`, `PERCENT` and `TOKENS` say with how many threads, which models, which parts and which numbers
//! of tokens. Exit status 1 if anything is wrong.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use format::{Dense, Values};
use gpu::device;
use gpu::driver::{DeviceMemory, EncodedLaunch, Event, PinnedMemory, Stream};
use gpu::experts::For;
use gpu::experts::fetch::FetchSpec;
use gpu::experts::plan::Cheapest;
use gpu::host::{DeviceRouting, HostExperts};
use gpu::{Argument, DeviceOutput, DeviceTokens, KernelSpec, Launch, LaunchQueue};
use half::bf16;
use hammerhead::gpu::Queue;
use hammerhead::layer_reference::LayerReference;
use hammerhead::{Engine, Experts, LayerOptions, Options, Streaming};
use hammerhead_testkit::moe::{self, Instance, Model};
use hammerhead_testkit::stages::{self, Stage};
use op::bound::Bounded;
use op::{
    Activation, Alone, Backend, Error, HostCall, HostRows, Intermediate, LayerSpec, Output, Precision, Result, Routed,
    Split, Team,
};
use serde_json::{Value, json};

/// Routings that take turns, so that no cache holds the experts of the next call.
const TURNS: usize = 12;

const STAGES: [Stage; 6] = [
    ("places", places),
    ("graph", graph),
    ("failure", failure),
    ("waiting", waiting),
    ("bus", bus),
    ("timing", timing),
];

fn main() -> ExitCode {
    stages::run(&STAGES)
}

/// The GPU, with as many threads as the environment says, or all that there are.
fn engine() -> Result<Engine> {
    let threads = std::env::var("THREADS").ok().and_then(|count| count.parse().ok());
    Engine::new(Options { backend: Some("cuda".to_owned()), threads, ..Options::default() })
}

fn model(name: &str) -> Model {
    moe::models().into_iter().find(|model| model.name == name).expect("a model of the list")
}

/// Options that leave so many experts on the device.
fn divided(instance: &Instance, intermediate: Intermediate, slots: usize, stream: Streaming) -> Result<LayerOptions> {
    let weights = instance.weights()?;
    let spec =
        LayerSpec { weights: &weights, intermediate, precision: Precision::Exact, batch_invariant: false, split: None };
    let cuda = hammerhead::backends::by_name("cuda")?;
    let [each, always] =
        cuda.layer_bytes(&spec, stream != Streaming::Never).expect("a layer that there are kernels for");
    Ok(LayerOptions { intermediate, gpu_bytes: Some(always + slots * each), stream, ..LayerOptions::default() })
}

/// The largest part of what either place is allowed that some tokens' results are off by.
fn worst(
    (instance, intermediate): (&Instance, Intermediate),
    (tokens, routed): (&Dense<'_>, &Routed),
    result: &Dense<'_>,
    step: usize,
) -> Result<f64> {
    let weights = instance.weights()?;
    let reference = LayerReference { weights: &weights, intermediate, precision: Precision::Exact, tokens, routed };
    let there: &dyn Backend = hammerhead::backends::by_name("cuda")?;
    let here: &dyn Backend = hammerhead::backends::by_name("avx2")?;
    let (mut worst, mut values) = (0f64, vec![0f32; result.k()]);
    for row in (0..tokens.rows()).step_by(step) {
        result.row(row, &mut values);
        let both = [there, here].map(|backend| reference.row(row, &|activation| backend.layer_arithmetic(activation)));
        let [there, here] = both;
        for ((there, here), &found) in there?.into_iter().zip(here?).zip(&values) {
            let allowed = Bounded { error: there.error.max(here.error), ..there }.allowed(Output::BF16);
            let part = (f64::from(found) - there.value).abs() / allowed;
            worst = worst.max(if part.is_nan() { f64::INFINITY } else { part });
        }
    }
    Ok(worst)
}

/// Experts divided in every way, on tensors of the host's.
fn places() -> Result<Value> {
    let engine = engine()?;
    let (mut rows, mut passed) = (Vec::new(), true);
    for (index, model) in moe::models().into_iter().enumerate() {
        let model = model.scaled_down();
        let instance = model.instance([1, 33, 300][index % 3], Activation::BF16, usize::MAX, index as u64)?;
        let intermediate = match Intermediate::ALL[index % 3] {
            Intermediate::NvFp4 if model.input_scales => Intermediate::F32,
            other => other,
        };
        let (weights, routed, count) = (instance.weights()?, instance.routed()?, model.experts[0]);
        let computed =
            |options| Experts::new(&engine, &weights, options)?.run(&engine, &instance.tokens, &routed, Output::BF16);
        let whole = computed(LayerOptions { intermediate, ..LayerOptions::default() })?;
        for slots in [0, 1, count / 2, count - 1] {
            let options = |stream| divided(&instance, intermediate, slots, stream);
            let brought = computed(options(Streaming::From(1))?)?;
            passed &= bits(&brought) == bits(&whole);
            let layer = Experts::new(&engine, &weights, options(Streaming::Never)?)?;
            let held = layer.resident().map(|held| held.len());
            let run = || layer.run(&engine, &instance.tokens, &routed, Output::BF16);
            let (found, again) = (run()?, run()?);
            let part = worst((&instance, intermediate), (&instance.tokens, &routed), &found, 5)?;
            let right = part <= 1.0 && bits(&found) == bits(&again) && held == Some(slots);
            let same = if bits(&brought) == bits(&whole) { "the same bits" } else { "OTHER BITS" };
            println!(
                "{:20} {slots:3} of {count:3} experts: {part:.3} of what is allowed; brought over: {same}",
                model.name
            );
            passed &= right;
            rows.push(json!({"model": model.name, "slots": slots, "worst": part, "right": right}));
        }
    }
    Ok(json!({"passed": passed, "rows": rows}))
}

fn bits(dense: &Dense<'_>) -> Vec<u16> {
    match dense.values() {
        Values::BF16(values) => values.iter().map(|x| x.to_bits()).collect(),
        _ => Vec::new(),
    }
}

/// A call's tensors in the device's memory.
struct Tensors {
    rows: usize,
    x: DeviceMemory,
    logits: DeviceMemory,
    out: DeviceMemory,
}

impl Tensors {
    fn new(instance: &Instance, stream: &Stream) -> Result<Self> {
        let Values::BF16(x) = instance.tokens.values() else { return Err(Error::NoGroups) };
        let context = device::context(0)?;
        let hold = |what, bytes: &[u8]| DeviceMemory::holding(context, what, bytes, stream);
        Ok(Tensors {
            rows: instance.tokens.rows(),
            x: hold("tokens", bytemuck::cast_slice(&x.iter().map(|x| x.to_bits()).collect::<Vec<u16>>()))?,
            logits: hold("logits", bytemuck::cast_slice(&instance.logits))?,
            out: DeviceMemory::new(context, "results", 2 * x.len())?,
        })
    }

    fn places(&self, k: usize) -> (DeviceTokens, DeviceOutput) {
        (DeviceTokens::bf16(self.x.address(), self.rows, k), DeviceOutput::bf16(self.out.address()))
    }

    /// Queues a call.
    fn queue(&self, queue: &mut Queue, layer: &Experts, instance: &Instance) -> Result<()> {
        let (tokens, out) = self.places(instance.tokens.k());
        let routing = DeviceRouting::Logits { logits: self.logits.address(), router: &instance.router };
        // SAFETY: the tensors are as large as that, and whoever queues waits for the stream before they go.
        unsafe { queue.enqueue_experts(layer, tokens, routing, out, None) }
    }

    fn results(&self, k: usize, stream: &Stream) -> Result<Dense<'static>> {
        let mut found = vec![0u16; self.rows * k];
        self.out.get(0, bytemuck::cast_slice_mut(&mut found), stream)?;
        Ok(Dense::new(self.rows, k, found.into_iter().map(bf16::from_bits).collect::<Vec<_>>(), 1.0)?)
    }
}

/// One captured graph: replayed after logits have changed in place, and after experts have moved.
fn graph() -> Result<Value> {
    let engine = engine()?;
    let (mut rows, mut passed) = (Vec::new(), true);
    let cases = [("deepseek-v3", 1), ("llama-4-scout", 40), ("qwen3-30b-a3b", 200)];
    let ways = [Streaming::Never, Streaming::From(1)];
    for ((name, tokens), stream) in cases.into_iter().flat_map(|case| ways.map(|way| (case, way))) {
        let model = model(name).scaled_down();
        let mut instance = model.instance(tokens, Activation::BF16, usize::MAX, 4)?;
        let count = model.experts[0];
        let options = divided(&instance, Intermediate::Tokens, count / 2, stream)?;
        let layer = Experts::new(&engine, &instance.weights()?, options)?;
        let mut queue = Queue::new(0)?;
        // SAFETY: the queue outlives it.
        let line = unsafe { Stream::borrowed(device::context(0)?, queue.stream().handle()) }?;
        let tensors = Tensors::new(&instance, &line)?;
        tensors.queue(&mut queue, &layer, &instance)?;
        let graph = line.capture(|| tensors.queue(&mut queue, &layer, &instance))?;
        for round in 0..8usize {
            instance.logits = model.logits(tokens, 10 + round as u64);
            tensors.logits.put(0, bytemuck::cast_slice(&instance.logits), &line)?;
            if round % 2 == 1 {
                let moved: Vec<u32> = (0..count / 2).map(|slot| ((slot + 3 * round) % count) as u32).collect();
                queue.place_experts(&layer, &moved)?;
            }
            // SAFETY: the tensors stay until the results have been read.
            unsafe { graph.launch(&line) }?;
            let found = tensors.results(instance.tokens.k(), &line)?;
            let routed = instance.routed()?;
            let part = worst((&instance, Intermediate::Tokens), (&instance.tokens, &routed), &found, 7)?;
            println!("{name:16} {tokens:3} tokens, {stream:?}, round {round}: {part:.3} of what is allowed");
            passed &= part <= 1.0;
            rows.push(json!({"model": name, "tokens": tokens, "round": round, "worst": part}));
        }
        let asked: u64 = layer.asked()?.unwrap_or_default().into_iter().map(u64::from).sum();
        // One call before the capture, and one in each round.
        passed &= asked == 9 * (tokens * model.experts[1]) as u64;
    }
    Ok(json!({"passed": passed, "rows": rows}))
}

/// A host that computes nothing but errors, until it is told otherwise.
#[derive(Debug, Default)]
struct Failing(AtomicBool);

impl HostRows for Failing {
    fn compute(&self, call: HostCall<'_>) -> Result<()> {
        match self.0.load(Ordering::Acquire) {
            true => panic!("the host is on fire"),
            false => {
                call.rows.fill(0.0);
                Err(Error::NoGroups)
            }
        }
    }
}

/// Results that needed a host that failed are NaN, and the next call says why; the others are right.
fn failure() -> Result<Value> {
    let instance = model("qwen3-30b-a3b").scaled_down().instance(16, Activation::BF16, usize::MAX, 2)?;
    let (weights, team) = (instance.weights()?, Team::new(Alone));
    let host = Arc::new(Failing::default());
    let split = Split { resident: vec![1, 3, 5], host: Arc::<Failing>::clone(&host), stream_from: None };
    let spec = LayerSpec {
        weights: &weights,
        intermediate: Intermediate::Tokens,
        precision: Precision::Exact,
        batch_invariant: false,
        split: Some(&split),
    };
    let device::Device { family, facts, .. } = device::Device::of(0)?;
    let choose = Arc::new(Cheapest { family: *family, facts: facts.clone() });
    let layer = HostExperts::new(0, &spec, choose, &team)?;
    let mut queue = LaunchQueue::new(0)?;
    let (k, routed) = (instance.tokens.k(), instance.routed()?);
    let mut passed = true;
    for (panics, word) in [(false, "group"), (true, "on fire")] {
        host.0.store(panics, Ordering::Release);
        let tensors = Tensors::new(&instance, queue.stream())?;
        let (tokens, out) = tensors.places(k);
        let routing = DeviceRouting::Logits { logits: tensors.logits.address(), router: &instance.router };
        // SAFETY: the tensors stay until the results have been read.
        unsafe { layer.enqueue(&mut queue, tokens, routing, None, out, None) }?;
        let found = tensors.results(k, queue.stream())?;
        let mut values = vec![0f32; k];
        for token in 0..tensors.rows {
            found.row(token, &mut values);
            let needed = routed.of(token).any(|(expert, _)| ![1, 3, 5].contains(&expert));
            passed &= values.iter().all(|x| x.is_nan() == needed);
        }
        // SAFETY: as above; it is refused.
        let refused = unsafe { layer.enqueue(&mut queue, tokens, routing, None, out, None) };
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        println!("{said}");
        passed &= said.contains(word);
    }
    Ok(json!({"passed": passed}))
}

/// A host that answers nobody until it is told to: every row is the number of its expert.
#[derive(Debug, Default)]
struct Slow {
    told: Mutex<bool>,
    bell: Condvar,
}

impl Slow {
    fn tell(&self, told: bool) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = told;
        self.bell.notify_all();
    }
}

impl HostRows for Slow {
    fn compute(&self, HostCall { ids, tokens, rows, .. }: HostCall<'_>) -> Result<()> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waited for this before telling it would wait for ever.
        let waited = self.bell.wait_timeout_while(told, Duration::from_secs(30), |told| !*told);
        let (told, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(told);
        if waited.timed_out() {
            return Err(Error::NoGroups);
        }
        for (row, &id) in rows.chunks_mut(tokens.k()).zip(ids) {
            row.fill(id as f32);
        }
        Ok(())
    }
}

/// Calls behind a host that answers late return at once, and have its rows: those of the first one, and of a graph.
fn waiting() -> Result<Value> {
    let instance = model("qwen3-30b-a3b").scaled_down().instance(16, Activation::BF16, usize::MAX, 2)?;
    let (weights, team) = (instance.weights()?, Team::new(Alone));
    let device::Device { family, facts, .. } = device::Device::of(0)?;
    let found = |slow: bool| {
        let host = Arc::new(Slow::default());
        let split = Split { resident: vec![1, 3, 5], host: Arc::<Slow>::clone(&host), stream_from: None };
        let spec = LayerSpec {
            weights: &weights,
            intermediate: Intermediate::Tokens,
            precision: Precision::Exact,
            batch_invariant: false,
            split: Some(&split),
        };
        let choose = Arc::new(Cheapest { family: *family, facts: facts.clone() });
        let (layer, mut queue) = (HostExperts::new(0, &spec, choose, &team)?, LaunchQueue::new(0)?);
        // SAFETY: the queue outlives it.
        let line = unsafe { Stream::borrowed(device::context(0)?, queue.stream().handle()) }?;
        let tensors = [Tensors::new(&instance, &line)?, Tensors::new(&instance, &line)?];
        let mut enqueue = |tensors: &Tensors| {
            let (tokens, out) = tensors.places(instance.tokens.k());
            let routing = DeviceRouting::Logits { logits: tensors.logits.address(), router: &instance.router };
            // SAFETY: the tensors stay until the results have been read.
            unsafe { layer.enqueue(&mut queue, tokens, routing, None, out, None) }
        };
        // What allocates may wait for the device.
        host.tell(true);
        enqueue(&tensors[0])?;
        let graph = line.capture(|| enqueue(&tensors[1]))?;
        line.synchronize()?;
        tensors.iter().try_for_each(|tensors| tensors.out.fill_now(0xFF, &line))?;
        host.tell(!slow);
        enqueue(&tensors[0])?;
        // SAFETY: as above.
        unsafe { graph.launch(&line) }?;
        host.tell(true);
        let results = tensors.each_ref().map(|tensors| tensors.results(instance.tokens.k(), &line));
        let [first, second] = results;
        Ok::<_, Error>([bits(&first?), bits(&second?)])
    };
    let [prompt, late] = [found(false)?, found(true)?];
    let passed = prompt == late && prompt[0] == prompt[1];
    println!("a host that answers late: {}", if passed { "the same bits" } else { "OTHER BITS" });
    Ok(json!({"passed": passed}))
}

/// What the bus gives: page-locked memory read by the kernel that brings weights over, with several numbers of blocks,
/// and by the driver's own copy.
fn bus() -> Result<Value> {
    let (context, bytes, spec) = (device::context(0)?, 256usize << 20, FetchSpec { numbers: 1, lot: 1 });
    let host = PinnedMemory::new(context, "bytes to read", bytes)?;
    let place = host.at(0, bytes).expect("all of it").cast::<u32>();
    // SAFETY: there are as many bytes, aligned to 256, and nobody else has them yet.
    let words = unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), bytes / 4) };
    (0u32..).zip(&mut *words).for_each(|(at, word)| *word = at.wrapping_mul(0x9E37_79B9));
    let stream = Stream::new(context)?;
    let layout = DeviceMemory::holding(context, "a layout", bytemuck::cast_slice(&[0u32, 1, 0, 1]), &stream)?;
    let (cut, target) = (DeviceMemory::new(context, "a lot's", 16)?, DeviceMemory::new(context, "the copy", bytes)?);
    let kernel: KernelSpec = For { spec, target: device::Device::of(0)?.family.target() }.into();
    let function = device::function(context, &kernel)?;
    let rate = |queue: &dyn Fn() -> Result<()>| {
        target.fill_now(0xEE, &stream)?;
        queue()?;
        let start = Event::record(&stream)?;
        (0..4).try_for_each(|_| queue())?;
        let seconds = start.seconds_until(&Event::record(&stream)?)? / 4.0;
        let mut found = vec![0u32; bytes / 4];
        target.get(0, bytemuck::cast_slice_mut(&mut found), &stream)?;
        Ok::<_, Error>((bytes as f64 / seconds, found == *words))
    };
    let (mut rows, mut passed) = (Vec::new(), true);
    for blocks in [2, 4, 8, 16, 32, 64] {
        let mut arguments =
            [layout.address(), cut.address(), host.address(), target.address()].map(Argument::Pointer).to_vec();
        arguments.extend([0, bytes as u32, (bytes / 16) as u32].map(Argument::U32));
        let grid = [blocks, 1, 1];
        let launch = Launch { kernel: kernel.clone(), grid, arguments, overlapping: false, strided: false };
        let launch = EncodedLaunch::new(Arc::clone(&function), &launch)?;
        // SAFETY: all of it stays until `rate` has waited for the stream.
        let (rate, right) = rate(&|| unsafe { launch.queue(&stream) })?;
        println!("{blocks:3} blocks read {:5.1} GB/s of the host's memory", rate / 1e9);
        passed &= right;
        rows.push(json!({"blocks": blocks, "bytes/s": rate, "right": right}));
    }
    // SAFETY: both stay until `rate` has waited for the stream.
    let (rate, right) = rate(&|| unsafe { target.write(0, bytemuck::cast_slice(words), &stream) })?;
    println!("the driver copies {:5.1} GB/s", rate / 1e9);
    Ok(json!({"rows": rows, "copy": rate, "passed": passed && right}))
}

/// Whole layers with parts of their experts on the device, in a graph, each call with another routing.
fn timing() -> Result<Value> {
    let engine = engine()?;
    let ceilings = hammerhead::cpu::ceilings::Prober::new()?.sample(engine.team());
    println!("the host reads {:.0} GB/s with {} threads", ceilings.bytes / 1e9, engine.threads());
    let mut rows = Vec::new();
    let wanted = |name: &str, default: &[usize]| -> Vec<usize> {
        let said = std::env::var(name).ok();
        said.map_or(default.to_vec(), |said| said.split(',').filter_map(|number| number.parse().ok()).collect())
    };
    let models = std::env::var("MODELS").unwrap_or_else(|_| "qwen3-30b-a3b,qwen3-235b-a22b,deepseek-v3".to_owned());
    let mut passed = true;
    for name in models.split(',') {
        let model = model(name);
        let ([experts, top], (_, expert_bytes)) = (model.experts, model.cost(model.widths[1]));
        let seed = model.instance(1, Activation::BF16, 2, 1)?;
        let weights = seed.weights()?;
        let whole = Experts::new(&engine, &weights, LayerOptions::default())?;
        let ways = wanted("PERCENT", &[0, 25, 50, 75, 100]).into_iter().flat_map(|percent| {
            let ways = if percent < 100 { &[Streaming::Never, Streaming::From(1)][..] } else { &[Streaming::Never] };
            ways.iter().map(move |&way| (percent, way))
        });
        for (percent, stream) in ways {
            let begun = Instant::now();
            let options = divided(&seed, Intermediate::Tokens, experts * percent / 100, stream)?;
            let layer = Experts::new(&engine, &weights, options)?;
            let loaded = begun.elapsed().as_secs_f64();
            for tokens in wanted("TOKENS", &[1, 8, 64, 512]) {
                let mut queue = Queue::new(0)?;
                // SAFETY: the queue outlives it.
                let line = unsafe { Stream::borrowed(device::context(0)?, queue.stream().handle()) }?;
                let mut instance = model.instance(tokens, Activation::BF16, 1, 3)?;
                let turns = if tokens > 64 { 3 } else { TURNS };
                let tensors = (0..turns).map(|_| Tensors::new(&instance, &line)).collect::<Result<Vec<_>>>()?;
                let mut hits = 0f64;
                for (turn, each) in tensors.iter().enumerate() {
                    let logits = model.logits(tokens, 100 + turn as u64);
                    each.logits.put(0, bytemuck::cast_slice(&logits), &line)?;
                    let routed = instance.router.route(&logits, tokens)?;
                    let mut away: Vec<u32> = routed.ids().to_vec();
                    away.retain(|&id| id as usize >= experts * percent / 100);
                    away.sort_unstable();
                    away.dedup();
                    hits += away.len() as f64;
                    each.queue(&mut queue, &layer, &instance)?;
                }
                instance.logits = model.logits(tokens, 100);
                let (found, routed) = (tensors[0].results(instance.tokens.k(), &line)?, instance.routed()?);
                let part = worst((&seed, Intermediate::Tokens), (&instance.tokens, &routed), &found, tokens)?;
                let mut right = part <= 1.0;
                if stream != Streaming::Never {
                    tensors[0].queue(&mut queue, &whole, &instance)?;
                    right &= bits(&tensors[0].results(instance.tokens.k(), &line)?) == bits(&found);
                }
                passed &= right;
                let mut times = Vec::new();
                for _ in 0..if tokens > 64 { 3 } else { 5 } {
                    let start = Event::record(&line)?;
                    tensors.iter().try_for_each(|each| each.queue(&mut queue, &layer, &instance))?;
                    let end = Event::record(&line)?;
                    // Whoever waits for a device as CUDA does takes a core from the host's experts.
                    while !end.is_reached()? {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    times.push(start.seconds_until(&end)? / turns as f64);
                }
                times.sort_by(f64::total_cmp);
                let seconds = times[times.len() / 2];
                let host_bytes = hits / turns as f64 * expert_bytes;
                println!(
                    "{name:16} {percent:3} % on the device, {stream:?}, {tokens:3} tokens of {top}: {:9.1} µs, {:.1} GB/s of weights beyond it, {part:.3} of what is allowed, {right} (loaded in {loaded:.1} s)",
                    seconds * 1e6,
                    host_bytes / seconds / 1e9
                );
                rows.push(json!({"model": name, "percent": percent, "stream": format!("{stream:?}"), "tokens": tokens,
                    "seconds": seconds, "host_bytes": host_bytes, "bandwidth": ceilings.bytes, "times": times,
                    "worst": part, "right": right}));
            }
        }
    }
    Ok(json!({"rows": rows, "threads": engine.threads(), "passed": passed}))
}
