//! Checks what stands around the kernels on the GPU of the machine it runs on: `gpu_engine RESULT.json [STAGE]…`.
//!
//! Compiled kernels on disk, grids of clusters, the expansion of tokens, memory and streams of the caller's, graphs,
//! several threads and streams at once, and everything that a caller can get wrong. Results are compared to the bit
//! with what the same backend computes from the host's memory, which `gpu_check` compares with the reference. Exit
//! status 1 if anything is wrong.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use format::{Dense, Matrix, Values};
use gpu::device::{self, Device};
use gpu::driver::{CUBIN_VARIABLE, Context, DeviceMemory, EncodedLaunch, Event, Function, Origin, Stream};
use gpu::expand::{PARTS, TokenForm};
use gpu::expansion::{self, Segment};
use gpu::{Argument, DeviceOutput, DeviceTokens, Launch, Spec};
use half::{bf16, f16};
use hammerhead::gpu::Queue;
use hammerhead::{
    Activation, Activations, Backend, Engine, Error, Gate, Layer, Options, Output, Plan, Precision, Request, Result,
    Shape,
};
use hammerhead_testkit::cases::{Case, Inputs, Instance, Suite};
use hammerhead_testkit::stages::{self, Stage};
use ptx::{Addr, Builder, Global, Kernel, LaunchBounds, Scope, SpecialRegister, U32};
use serde_json::{Value, json};

const STAGES: [Stage; 9] = [
    ("compiled-kernels", compiled_kernels),
    ("clusters", clusters),
    ("expansion", expansion),
    ("tensors", device_tensors),
    ("graphs", graphs),
    ("lifetimes", lifetimes),
    ("threads", threads_and_streams),
    ("mistakes", mistakes),
    ("host", host_runs),
];

fn main() -> ExitCode {
    stages::run(&STAGES)
}

fn engine() -> Result<Engine> {
    Engine::new(Options { backend: Some(device::NAME.into()), threads: None, request: Request::default() })
}

fn case(groups: &[(usize, usize, usize)], activation: Activation) -> Case {
    let groups = groups.iter().map(|&(m, n, k)| Shape::new(m, n, k)).collect();
    let (why, inputs) = ("an engine's shape", Inputs::Realistic);
    Case {
        suite: Suite::Edge,
        why,
        groups,
        gate: Gate::Silu,
        activation,
        output: Output::F16,
        precision: Precision::Exact,
        inputs,
        timed: false,
    }
}

/// Blocks in clusters that count themselves and take a multiprocessor each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CountBlocks {
    cluster: u32,
}

impl Spec for CountBlocks {
    fn kernel(self) -> Result<Kernel, ptx::Error> {
        let launch = LaunchBounds { threads: 32, cluster: Some([self.cluster, 1, 1]), min_blocks: None };
        let mut k = Builder::new("count_blocks", gpu::Cuda::FIRST.family().target(), launch);
        let counter = k.pointer("counter");
        k.shared("all", 160 << 10, 16);
        let thread = k.special(SpecialRegister::TidX);
        let first = k.eq(thread, 0);
        k.if_(first, |k| {
            k.atomic_add::<U32, Global>(Scope::Gpu, Addr::of(counter), 1);
        });
        k.finish()
    }
}

/// A strided grid of clusters has as many as run at the same time, and one that is not all that were asked for.
fn clusters() -> Result<Value> {
    let device = Device::of(0)?;
    let (context, stream) = (device.context, Stream::new(device.context)?);
    let (mut rows, mut passed) = (Vec::new(), true);
    for cluster in [2, 4, 8] {
        let whole = device.facts.multiprocessors / cluster * cluster;
        let blocks = |strided| {
            let counter = DeviceMemory::holding(context, "a counter", &[0; 4], &stream)?;
            let (kernel, arguments) = (CountBlocks { cluster }.into(), vec![Argument::Pointer(counter.address())]);
            let launch = Launch { kernel, grid: [whole, 1, 1], arguments, overlapping: false, strided };
            let function = Arc::new(Function::new(context, launch.kernel.build()?)?);
            // SAFETY: the counter outlives the stream's work, which is waited for.
            unsafe { EncodedLaunch::new(function, &launch)?.queue(&stream) }?;
            let mut bytes = [0; 4];
            counter.get(0, &mut bytes, &stream)?;
            Ok::<_, Error>(u32::from_ne_bytes(bytes))
        };
        let [fit, all] = [blocks(true)?, blocks(false)?];
        passed &= all == whole && fit <= whole && fit.is_multiple_of(cluster) && fit > 0;
        rows.push(json!({"cluster": cluster, "strided": fit, "asked for": all}));
    }
    Ok(json!({"passed": passed, "blocks": rows}))
}

/// How long each way to a compiled kernel takes, and that all of them lead to the same one.
fn compiled_kernels() -> Result<Value> {
    let context = device::context(0)?;
    let directory = std::env::temp_dir().join(format!("hammerhead-engine-{}", std::process::id()));
    let problem = case(&[(256, 4096, 7168)], Activation::NvFp4).problem()?;
    let plan = Plan::best(problem, &[gpu::Cuda::on(0)? as &dyn Backend], &Request::default(), 1)?;
    let (mut rows, mut passed) = (Vec::new(), true);
    for kernel in gpu::Cuda::FIRST.family().kernels(plan.problem(), plan.config())? {
        let load = |cache: &std::ffi::OsStr| {
            // SAFETY: no other thread of this program looks at the environment now.
            unsafe { std::env::set_var(CUBIN_VARIABLE, cache) };
            let begun = Instant::now();
            let function = Function::new(context, kernel.clone())?;
            let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
            let (registers, spilled) = function.registers_and_spills()?;
            println!("{:24} {:?} in {milliseconds:.2} ms: {registers} registers", kernel.name, function.origin());
            Ok::<_, Error>((function.origin(), milliseconds, registers, spilled))
        };
        let compiled = load("off".as_ref())?;
        let kept = load(directory.as_os_str())?;
        let found = load(directory.as_os_str())?;
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let _ = std::fs::write(entry.path(), b"hammerhead cubin, but damaged");
        }
        let damaged = load(directory.as_os_str())?;
        passed &= [kept, found, damaged].iter().all(|other| (other.2, other.3) == (compiled.2, compiled.3));
        passed &= kept.0 != Origin::Kept || (found.0 == Origin::Disk && damaged.0 == Origin::Kept);
        let row = |(origin, ms, registers, spilled): (Origin, f64, i32, i32)| {
            json!([format!("{origin:?}"), ms, registers, spilled])
        };
        rows.push(json!({"kernel": kernel.name, "compiled": row(compiled), "kept": row(kept), "disk": row(found),
            "damaged": row(damaged)}));
    }
    let _ = std::fs::remove_dir_all(&directory);
    // SAFETY: no other thread of this program looks at the environment now.
    unsafe { std::env::remove_var(CUBIN_VARIABLE) };
    Ok(json!({"passed": passed, "kernels": rows}))
}

/// Seconds of one launch, of many in a row.
fn time(stream: &Stream, launches: &[EncodedLaunch]) -> Result<f64> {
    let mut best = f64::INFINITY;
    // SAFETY: the memory that the launches use outlives the stream's work, which is waited for.
    let graph = stream.capture(|| (0..20).try_for_each(|i| unsafe { launches[i % launches.len()].queue(stream) }))?;
    for _ in 0..10 {
        let start = Event::record(stream)?;
        // SAFETY: the memory that the graph's launches use outlives the stream's work: the second event is waited for.
        unsafe { graph.launch(stream) }?;
        best = best.min(start.seconds_until(&Event::record(stream)?)? / 20.0);
    }
    Ok(best)
}

/// Expanded tokens to the bit, and how long that takes for 512 × 7168.
fn expansion() -> Result<Value> {
    let context = device::context(0)?;
    let stream = Stream::new(context)?;
    let (rows, k) = (512, 7168);
    let elements = rows * k;
    let codes: Vec<u8> = (0..elements / 2).map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
    let finite: Vec<u8> = (0..=255u8).filter(|scale| scale & 0x7F != 0x7F).collect();
    let scales: Vec<u8> = (0..elements / 16).map(|i: usize| finite[i.wrapping_mul(40_503) % finite.len()]).collect();
    let matrix = Matrix::new(rows, k, codes.clone(), scales.clone(), 1.0)?;
    let (mut row, mut halves) = (vec![0f32; k], Vec::new());
    for index in 0..rows {
        matrix.unscaled_row(index, &mut row);
        halves.extend(row.iter().map(|&x| f16::from_f32(x).to_bits()));
    }
    let sets = (0..8).map(|_| {
        let codes = DeviceMemory::holding(context, "codes", &codes, &stream)?;
        let scales = DeviceMemory::holding(context, "scales", &scales, &stream)?;
        Ok((codes, scales, DeviceMemory::new(context, "halves", 2 * elements)?))
    });
    let sets = sets.collect::<Result<Vec<_>>>()?;
    let segment = |source: &DeviceMemory, scales: u64, target: &DeviceMemory| Segment {
        source: source.address(),
        scales,
        target: target.address(),
        plane: 2 * elements as u64,
        factor: 1.0,
        k,
        elements,
    };
    let encode = |source, segment| {
        let launch = expansion::launches(ptx::Target::Sm90a, source, &[segment]).remove(0);
        EncodedLaunch::new(device::function(context, &launch.kernel)?, &launch)
    };
    let launches =
        sets.iter().map(|(codes, scales, out)| encode(TokenForm::NvFp4, segment(codes, scales.address(), out)));
    let launches = launches.collect::<Result<Vec<_>>>()?;
    let nvfp4 = time(&stream, &launches)?;
    let equal = read::<u16>(&sets[0].2, &stream)? == halves;

    let floats: Vec<f32> = (0..elements).map(|i| ((i * 7919) % 100_003) as f32 * 1.234_567e-3 - 60.0).collect();
    let source = DeviceMemory::holding(context, "floats", bytemuck::cast_slice(&floats), &stream)?;
    let parts = DeviceMemory::new(context, "parts", PARTS * 2 * elements)?;
    let launches = [encode(TokenForm::Single, segment(&source, 0, &parts))?];
    let single = time(&stream, &launches)?;
    let parts = read::<u16>(&parts, &stream)?;
    let part = |plane: usize, i: usize| f64::from(bf16::from_bits(parts[plane * elements + i]));
    let exact =
        floats.iter().enumerate().all(|(i, x)| (0..PARTS).map(|plane| part(plane, i)).sum::<f64>() == f64::from(*x));
    Ok(json!({"passed": equal && exact, "nvfp4 to the bit": equal, "single to the bit": exact,
        "nvfp4 microseconds for 512x7168": nvfp4 * 1e6, "single microseconds": single * 1e6}))
}

fn read<T: bytemuck::Pod>(memory: &DeviceMemory, stream: &Stream) -> Result<Vec<T>> {
    let mut bytes = vec![0u8; memory.bytes()];
    // SAFETY: waited for before anybody looks.
    unsafe { memory.read(0, &mut bytes, stream) }?;
    stream.synchronize()?;
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}

/// A layer, tokens of it in the device's memory, places for results, and what the results must be.
struct Tensors {
    layer: Layer,
    tokens: Vec<DeviceTokens>,
    outputs: Vec<DeviceOutput>,
    results: Vec<DeviceMemory>,
    expected: Vec<Vec<u16>>,
    _kept: Vec<DeviceMemory>,
}

impl Tensors {
    fn new(groups: &[(usize, usize, usize)], activation: Activation, seed: u64) -> Result<Self> {
        Self::of(&case(groups, activation), seed)
    }

    fn of(case: &Case, seed: u64) -> Result<Self> {
        let context = device::context(0)?;
        let stream = Stream::new(context)?;
        let engine = engine()?;
        let Instance { activations, weights, .. } = case.instance(seed)?;
        let layer = engine.load(&weights, Gate::Silu)?;
        let expected = engine.run(&layer, &activations, Output::F16)?.iter().map(bits).collect();
        let (mut tokens, mut results, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for (activations, &Shape { m, n, k }) in activations.iter().zip(&case.groups) {
            let mut place = |bytes: &[u8]| {
                let memory = DeviceMemory::holding(context, "tokens", bytes, &stream)?;
                kept.push(memory);
                Ok::<u64, Error>(kept[kept.len() - 1].address())
            };
            tokens.push(match activations {
                Activations::NvFp4(a) => DeviceTokens::nvfp4(place(a.codes())?, place(a.scales())?, m, k, a.global()),
                Activations::Dense(a) => match a.values() {
                    Values::F16(v) => DeviceTokens::f16(place(bytemuck::cast_slice(v))?, m, k),
                    Values::BF16(v) => DeviceTokens::bf16(place(bytemuck::cast_slice(v))?, m, k),
                    Values::F32(v) => DeviceTokens::f32(place(bytemuck::cast_slice(v))?, m, k),
                },
            });
            results.push(DeviceMemory::new(context, "results", 2 * m * n)?);
        }
        let outputs = results.iter().map(|memory| DeviceOutput::f16(memory.address())).collect();
        Ok(Tensors { layer, tokens, outputs, results, expected, _kept: kept })
    }

    fn poison(&self, stream: &Stream) -> Result<()> {
        self.results.iter().try_for_each(|memory| {
            // SAFETY: the tensors live until the stream was waited for.
            unsafe { memory.fill(0xFF, stream) }
        })
    }

    fn enqueue(&self, queue: &mut Queue) -> Result<()> {
        // SAFETY: the tensors are as large as they say and live until the stream was waited for.
        unsafe { queue.enqueue(&self.layer, &self.tokens, &self.outputs) }
    }

    /// Whether the results are what they must be, once the stream has done its work.
    fn right(&self, stream: &Stream) -> Result<bool> {
        let found = self.results.iter().map(|memory| read::<u16>(memory, stream)).collect::<Result<Vec<_>>>()?;
        Ok(found == self.expected)
    }
}

fn bits(result: &Dense<'_>) -> Vec<u16> {
    match result.values() {
        Values::F16(values) => values.iter().map(|x| x.to_bits()).collect(),
        _ => Vec::new(),
    }
}

const GROUPS: [(usize, usize, usize); 4] = [(64, 512, 1024), (0, 256, 512), (17, 256, 512), (130, 136, 208)];

/// Every type of tokens, taken as they are and multiplied with input scales, from memory of the caller's, on a stream
/// of ours and on the default stream.
fn device_tensors() -> Result<Value> {
    let mut rows = Vec::new();
    let mut passed = true;
    let scaled = |activation| Case { inputs: Inputs::InputScales, ..case(&GROUPS, activation) };
    let dense = Activation::ALL.into_iter().filter(|activation| *activation != Activation::NvFp4);
    for case in Activation::ALL.into_iter().map(|activation| case(&GROUPS, activation)).chain(dense.map(scaled)) {
        let tensors = Tensors::of(&case, 3)?;
        // SAFETY: the default stream is always there.
        for (mut queue, which) in [(Queue::new(0)?, "own"), (unsafe { Queue::on_stream(0, 0) }?, "default")] {
            tensors.poison(queue.stream())?;
            tensors.enqueue(&mut queue)?;
            let begun = Instant::now();
            for _ in 0..200 {
                tensors.enqueue(&mut queue)?;
            }
            let microseconds = begun.elapsed().as_secs_f64() * 1e6 / 200.0;
            let right = tensors.right(queue.stream())?;
            passed &= right;
            let scaled = case.inputs == Inputs::InputScales;
            rows.push(
                json!({"tokens": case.activation.to_string(), "input scales": scaled, "stream": which, "right": right,
                "host microseconds per call": microseconds}),
            );
        }
    }
    Ok(json!({"passed": passed, "calls": rows}))
}

/// A captured call computes what the call does; one whose kernels are not compiled is refused.
fn graphs() -> Result<Value> {
    let (first, second) =
        (Tensors::new(&GROUPS, Activation::NvFp4, 5)?, Tensors::new(&[(96, 512, 512)], Activation::F16, 6)?);
    let mut queue = Queue::new(0)?;
    queue.prepare(&first.layer, &first.tokens, &first.outputs)?;
    queue.prepare(&second.layer, &second.tokens, &second.outputs)?;
    let stream = Stream::new(queue.stream().context())?;
    let handle = queue.stream().handle();
    // SAFETY: the queue outlives it.
    let borrowed = unsafe { Stream::borrowed(queue.stream().context(), handle) }?;
    let graph = borrowed.capture(|| {
        first.enqueue(&mut queue)?;
        second.enqueue(&mut queue)
    })?;
    let mut right = true;
    for _ in 0..3 {
        first.poison(&stream)?;
        second.poison(&stream)?;
        stream.synchronize()?;
        // SAFETY: tensors, layers and queue are alive, and the stream is waited for.
        unsafe { graph.launch(&stream) }?;
        stream.synchronize()?;
        right &= first.right(&stream)? && second.right(&stream)?;
    }
    // Another queue has prepared nothing, and needs nothing but compiled kernels.
    let mut fresh = Queue::new(0)?;
    let handle = fresh.stream().handle();
    // SAFETY: the queue outlives it.
    let borrowed = unsafe { Stream::borrowed(fresh.stream().context(), handle) }?;
    let elsewhere = borrowed.capture(|| first.enqueue(&mut fresh))?;
    first.poison(&stream)?;
    stream.synchronize()?;
    // SAFETY: tensors, layers and queue are alive, and the stream is waited for.
    unsafe { elsewhere.launch(&stream) }?;
    stream.synchronize()?;
    right &= first.right(&stream)?;
    let unknown = Tensors::new(&[(200, 72, 1024)], Activation::BF16, 7)?;
    let refused = borrowed.capture(|| unknown.enqueue(&mut fresh));
    let text = refused.as_ref().err().map(ToString::to_string);
    let refused = matches!(refused, Err(Error::Capture { .. }));
    first.enqueue(&mut fresh)?;
    let after = first.right(fresh.stream())?;
    Ok(
        json!({"passed": right && refused && after, "replays right": right, "not compiled": text, "usable after": after}),
    )
}

/// Layers and queues that go while work is queued, while a graph is captured, or before a graph is launched; and two
/// graphs of one queue launched side by side.
fn lifetimes() -> Result<Value> {
    let context = device::context(0)?;
    let free = || Ok::<usize, Error>(context.memory()?.0);
    let shape = [(256, 4096, 7168)];

    // A layer that goes with work queued gives its memory back at once, and the work is right.
    let mut tensors = Tensors::new(&shape, Activation::NvFp4, 21)?;
    let mut queue = Queue::new(0)?;
    (0..20).try_for_each(|_| tensors.enqueue(&mut queue))?;
    let (spare, before) = (Tensors::new(&[(1, 32, 64)], Activation::F16, 1)?.layer, free()?);
    drop(std::mem::replace(&mut tensors.layer, spare));
    let returned = free()?.saturating_sub(before);
    let layer_goes = tensors.right(queue.stream())? && returned >= 30 << 20;

    // So does a queue.
    let tensors = Tensors::new(&shape, Activation::NvFp4, 22)?;
    let mut queue = Queue::new(0)?;
    (0..20).try_for_each(|_| tensors.enqueue(&mut queue))?;
    drop(queue);
    let queue_goes = tensors.right(&Stream::new(context)?)?;

    // Two graphs of one queue, launched on two streams again and again, each with its own tokens.
    let pair = [Tensors::new(&shape, Activation::NvFp4, 23)?, Tensors::new(&shape, Activation::NvFp4, 24)?];
    let mut queue = Queue::new(0)?;
    let mut graphs = Vec::new();
    for tensors in &pair {
        queue.prepare(&tensors.layer, &tensors.tokens, &tensors.outputs)?;
        // SAFETY: the queue outlives it.
        let stream = unsafe { Stream::borrowed(context, queue.stream().handle()) }?;
        graphs.push(stream.capture(|| tensors.enqueue(&mut queue))?);
    }
    let streams = [Stream::new(context)?, Stream::new(context)?];
    let mut side_by_side = true;
    for _ in 0..20 {
        for (tensors, stream) in pair.iter().zip(&streams) {
            tensors.poison(stream)?;
        }
        for (graph, stream) in graphs.iter().zip(&streams).cycle().take(10) {
            // SAFETY: the tensors are alive, and the streams are waited for below.
            unsafe { graph.launch(stream) }?;
        }
        for (tensors, stream) in pair.iter().zip(&streams) {
            side_by_side &= tensors.right(stream)?;
        }
    }

    // A graph outlives queue and layer; then their memory is given back.
    let [mut kept, other] = pair;
    let spare = Tensors::new(&[(1, 32, 64)], Activation::F16, 1)?.layer;
    drop((queue, std::mem::replace(&mut kept.layer, spare)));
    kept.poison(&streams[0])?;
    // SAFETY: the graph keeps what it uses besides the tensors, which are alive.
    unsafe { graphs[0].launch(&streams[0]) }?;
    let graph_keeps = kept.right(&streams[0])?;
    let before = free()?;
    drop(graphs);
    let mut queue = Queue::new(0)?;
    other.enqueue(&mut queue)?;
    let graph_returned = free()?.saturating_sub(before);
    let queue_fine = other.right(queue.stream())?;

    // A layer that goes in the middle of a capture does not spoil it, and its memory comes back afterwards.
    let mut gone = Tensors::new(&shape, Activation::F16, 25)?;
    gone.enqueue(&mut queue)?;
    gone.right(queue.stream())?;
    let (spare, before) = (Tensors::new(&[(1, 32, 64)], Activation::F16, 1)?.layer, free()?);
    let layer = std::mem::replace(&mut gone.layer, spare);
    // SAFETY: the queue outlives it.
    let stream = unsafe { Stream::borrowed(context, queue.stream().handle()) }?;
    let graph = stream.capture(|| {
        other.enqueue(&mut queue)?;
        drop(layer);
        other.enqueue(&mut queue)
    })?;
    other.poison(&streams[0])?;
    // SAFETY: the tensors are alive.
    unsafe { graph.launch(&streams[0]) }?;
    let capture_unharmed = other.right(&streams[0])?;
    drop(Tensors::new(&[(1, 32, 64)], Activation::F16, 1)?);
    let swept = free()?.saturating_sub(before);

    let passed = layer_goes
        && queue_goes
        && side_by_side
        && graph_keeps
        && queue_fine
        && graph_returned >= 20 << 20
        && capture_unharmed
        && swept >= 20 << 20;
    Ok(json!({"passed": passed, "a layer goes": layer_goes, "bytes returned": returned, "a queue goes": queue_goes,
        "graphs side by side": side_by_side, "a graph keeps": graph_keeps, "bytes after the graph": graph_returned,
        "the queue after it": queue_fine, "capture unharmed": capture_unharmed, "bytes swept": swept}))
}

/// Two threads with two streams each, all at once, each with memory of its own and two shared layers.
fn threads_and_streams() -> Result<Value> {
    let work = |seed: u64| -> Result<bool> {
        let tensors = [
            Tensors::new(&GROUPS, Activation::NvFp4, seed)?,
            Tensors::new(&[(33, 384, 640)], Activation::F16, seed + 10)?,
        ];
        let mut queues = [Queue::new(0)?, Queue::new(0)?];
        let mut right = true;
        for _ in 0..50 {
            for (tensors, queue) in tensors.iter().zip(&mut queues) {
                tensors.poison(queue.stream())?;
                tensors.enqueue(queue)?;
            }
            for (tensors, queue) in tensors.iter().zip(&queues) {
                right &= tensors.right(queue.stream())?;
            }
        }
        Ok(right)
    };
    let results = std::thread::scope(|scope| {
        let threads = [1, 2].map(|seed| scope.spawn(move || work(seed)));
        threads.map(|thread| thread.join().unwrap_or(Ok(false)))
    });
    let passed = results.into_iter().collect::<Result<Vec<bool>>>()?;
    Ok(json!({"passed": passed.iter().all(|right| *right), "threads": passed}))
}

/// Everything that a caller can get wrong is an error that says so, and leaves everything usable.
fn mistakes() -> Result<Value> {
    let context = device::context(0)?;
    let tensors = Tensors::new(&[(16, 128, 256)], Activation::F16, 7)?;
    let mut queue = Queue::new(0)?;
    let (address, out) = (tensors.results[0].address(), tensors.outputs[0]);
    let token = tensors.tokens[0];
    let host = vec![0u8; 1 << 20];
    let tokens_at = |address| DeviceTokens::f16(address, 16, 256);
    let mut said = Vec::new();
    let mut passed = true;
    let mut expect = |what: &str, part: &str, result: Result<()>| {
        let text = result.err().map(|error| error.to_string()).unwrap_or_default();
        passed &= text.contains(part);
        println!("   {what}: {text}");
        said.push(json!({"mistake": what, "answer": text, "as expected": text.contains(part)}));
    };
    let mut attempt =
        |tokens: &[DeviceTokens], outputs: &[DeviceOutput]| queue.prepare(&tensors.layer, tokens, outputs);
    expect("null tokens", "is null", attempt(&[tokens_at(0)], &[out]));
    expect("null results", "is null", attempt(&[token], &[DeviceOutput::f16(0)]));
    expect("host memory", "not the device's memory", attempt(&[tokens_at(host.as_ptr().addr() as u64 & !15)], &[out]));
    expect("misaligned", "multiple of 16", attempt(&[tokens_at(address + 2)], &[out]));
    expect(
        "too short",
        "bytes behind it",
        attempt(&[tokens_at(address + tensors.results[0].bytes() as u64 - 16)], &[out]),
    );
    expect("k = 24", "multiple of 16", attempt(&[DeviceTokens::f16(address, 16, 24)], &[out]));
    expect("another k", "k of the activations", attempt(&[DeviceTokens::f16(address, 16, 512)], &[out]));
    expect("no groups", "number of outputs", attempt(&[], &[]));
    expect("two outputs", "number of outputs", attempt(&[token], &[out, out]));
    expect("device 7", "no GPU 7", Queue::new(7).map(|_| ()));
    let huge = DeviceMemory::new(context, "everything", 1 << 44).map(|_| ());
    expect("out of memory", "bytes free", huge);
    let (free, _) = context.memory()?;
    let hoard = DeviceMemory::new(context, "hoard", free - (64 << 20))?;
    let engine = engine()?;
    let Instance { activations, .. } = case(&[(1 << 20, 128, 256)], Activation::F16).instance(1)?;
    let starved = engine.run(&tensors.layer, &activations, Output::F16).map(|_| ());
    expect("a run without memory", "bytes free", starved);
    drop(hoard);
    tensors.enqueue(&mut queue)?;
    let usable = tensors.right(queue.stream())?;
    Ok(json!({"passed": passed && usable, "usable afterwards": usable, "answers": said}))
}

/// Runs over the host's memory, one after another and from two threads.
fn host_runs() -> Result<Value> {
    let engine = Arc::new(engine()?);
    let instance = case(&[(256, 4096, 7168)], Activation::F16).instance(1)?;
    let layer = Arc::new(engine.load(&instance.weights, Gate::Silu)?);
    let expected = bits(&engine.run(&layer, &instance.activations, Output::F16)?[0]);
    let begun = Instant::now();
    let mut right = true;
    for _ in 0..10 {
        right &= bits(&engine.run(&layer, &instance.activations, Output::F16)?[0]) == expected;
    }
    let milliseconds = begun.elapsed().as_secs_f64() * 100.0;
    let both = std::thread::scope(|scope| {
        let work = || {
            (0..10)
                .all(|_| engine.run(&layer, &instance.activations, Output::F16).is_ok_and(|c| bits(&c[0]) == expected))
        };
        [scope.spawn(work), scope.spawn(work)].map(|thread| thread.join().unwrap_or(false))
    });
    let (before, total) = Context::memory(device::context(0)?)?;
    drop((layer, engine));
    let (after, _) = Context::memory(device::context(0)?)?;
    Ok(json!({"passed": right && both == [true, true] && after > before, "milliseconds per run": milliseconds,
        "bytes given back": after - before, "bytes in all": total}))
}
