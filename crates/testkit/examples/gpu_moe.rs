//! Checks layers of experts on the GPU of the machine it runs on, then times them: `gpu_moe RESULT.json [STAGE]…`.
//!
//! First small layers of every kind, in every tile, against double precision, with ids that are nobody's among them;
//! then one captured graph replayed with other routings in the same memory; then a few tokens of layers as large as
//! models have them, and one token in batches of all sizes. Only if all that is right, whole layers are timed by the
//! device's clock, each kernel of them apart, and other tiles and kernels beside those that are chosen; then the
//! products once more without parts of what their consumers compute, which says what takes their time; and the host's
//! time for a call. Where kernels multiply FP8, layers of every kind and large ones are checked and timed in that, too.
//! Small layers with MXFP4 weights are checked as well. Exit status 1 if anything is wrong.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use format::{Dense, Scaling, Values};
use gpu::LaunchQueue;
use gpu::device;
use gpu::driver::{Context, DeviceMemory, EncodedLaunch, Event, Stream};
use gpu::experts::call::{Choice, LayerCall};
use gpu::experts::kernels::{LayerKernels, of_both};
use gpu::experts::route::RouteSpec;
use gpu::experts::shape::LayerShape;
use gpu::families::sm90::kernel::MultiplySpec;
use gpu::loaded::DeviceExperts;
use gpu::{Launch, Spec, plan};
use half::{bf16, f16};
use hammerhead::{Engine, Experts, LayerOptions, Options};
use hammerhead_testkit::experts::{self, Layer, PLAIN};
use hammerhead_testkit::stages::{self, Stage};
use op::SharedWeights;
use op::layer_reference::LayerReference;
use op::routing::{Groups, Ids, Router, Scoring};
use op::{Activation, Arithmetic, Config, Gate, Intermediate, Output, Precision, Result, Routed};
use ptx::Kernel;
use serde_json::{Value, json};

/// Calls with inputs of their own that take turns in a graph.
const TURNS: usize = 16;
/// Graph launches that are timed.
const SAMPLES: usize = 15;
/// Configurations that are timed beside the one that is taken: the cheapest by their prices.
const COMPARED: usize = 12;
/// Experts of a large layer that differ.
const DIFFERENT: usize = 2;

const STAGES: [Stage; 13] = [
    ("kinds", kinds),
    ("graph", graph),
    ("front", front),
    ("models", || models(Precision::Exact)),
    ("company", company),
    ("timing", || timing(Precision::Exact)),
    ("fp8-kinds", fp8_kinds),
    ("fp8-models", || models(Precision::Fp8)),
    ("fp8-timing", || timing(Precision::Fp8)),
    ("mx-kinds", mx_kinds),
    ("parts", || parts(Precision::Exact)),
    ("fp8-parts", || parts(Precision::Fp8)),
    ("host", host),
];

fn main() -> ExitCode {
    stages::run(&STAGES)
}

/// A layer of experts, as models have them.
struct Model {
    name: &'static str,
    shape: LayerShape,
    router: Router,
}

fn model(name: &'static str, [experts, top, hidden, inner]: [u32; 4]) -> Result<Model> {
    let shape = LayerShape { experts, top, hidden, inner, ..PLAIN };
    Ok(Model { name, shape, router: Router::new(Scoring::SoftmaxRenorm, experts as usize, top as usize)? })
}

fn all_models() -> Result<[Model; 3]> {
    let mut gpt = model("gpt-oss-120b", [128, 4, 2880, 2880])?;
    (gpt.shape.gate, gpt.shape.biased) = (Gate::GPT_OSS, true);
    let mut deepseek = model("DeepSeek-V3", [256, 8, 7168, 2048])?;
    let correction: Vec<f32> = (0..256).map(|e| (e % 7) as f32 / 64.0).collect();
    deepseek.router = Router::new(Scoring::Sigmoid, 256, 8)?
        .with_correction(correction)?
        .with_groups(Groups { count: 8, best: 4 })?
        .with_scaling(2.5)?;
    Ok([model("Qwen3-30B-A3B", [128, 8, 2048, 768])?, gpt, deepseek])
}

/// A call's tensors in the device's memory.
struct Tensors {
    tokens: usize,
    x: Vec<f32>,
    logits: Vec<f32>,
    x_at: DeviceMemory,
    logits_at: DeviceMemory,
    correction: DeviceMemory,
    out: DeviceMemory,
}

fn encoded(activation: Activation, values: &mut [f32]) -> Vec<u8> {
    let bits = |x: &mut f32| match activation {
        Activation::F16 => {
            *x = f16::from_f32(*x).to_f32();
            f16::from_f32(*x).to_le_bytes().to_vec()
        }
        Activation::BF16 => {
            *x = bf16::from_f32(*x).to_f32();
            bf16::from_f32(*x).to_le_bytes().to_vec()
        }
        _ => x.to_le_bytes().to_vec(),
    };
    values.iter_mut().flat_map(bits).collect()
}

impl Tensors {
    fn new(context: &'static Context, stream: &Stream, model: &Model, tokens: usize, seed: u64) -> Result<Self> {
        let shape = &model.shape;
        let mut rng = fastrand::Rng::with_seed(seed);
        let hidden = shape.hidden as usize;
        let mut x: Vec<f32> = (0..tokens * hidden).map(|_| rng.f32() * 2.0 - 1.0).collect();
        let bytes = encoded(shape.activation, &mut x);
        let logits: Vec<f32> = (0..tokens * shape.experts as usize).map(|_| rng.f32() * 8.0 - 4.0).collect();
        let hold = |what, bytes: &[u8]| DeviceMemory::holding(context, what, bytes, stream);
        let out = DeviceMemory::new(context, "results", x.len() * shape.output.bytes())?;
        // SAFETY: waited for.
        unsafe { out.fill(0xFF, stream) }?;
        stream.synchronize()?;
        Ok(Tensors {
            tokens,
            x_at: hold("tokens", &bytes)?,
            logits_at: hold("logits", bytemuck::cast_slice(&logits))?,
            correction: hold("a correction", bytemuck::cast_slice(model.router.correction()))?,
            out,
            x,
            logits,
        })
    }

    /// Routes as many tokens to every expert.
    fn even(&mut self, model: &Model, stream: &Stream) -> Result<()> {
        let [experts, top] = [model.shape.experts, model.shape.top].map(|count| count as usize);
        self.logits.iter_mut().enumerate().for_each(|(at, logit)| {
            let (token, expert) = (at / experts, at % experts);
            let chosen = (expert + experts - token * top % experts) % experts < top;
            *logit = if chosen { 8.0 } else { 0.0 };
        });
        // SAFETY: waited for, and as long as what lies there.
        unsafe { self.logits_at.write(0, bytemuck::cast_slice(&self.logits), stream) }?;
        stream.synchronize()
    }

    fn call(&self, router: &Router) -> LayerCall {
        LayerCall {
            tokens: self.tokens as u32,
            x: self.x_at.address(),
            choice: Choice::Logits {
                logits: self.logits_at.address(),
                spec: RouteSpec::of(router),
                correction: self.correction.address(),
                scale: router.scaling(),
            },
            addend: None,
            adapters: 0,
            placement: None,
            out: self.out.address(),
        }
    }

    fn results(&self, output: Output, stream: &Stream) -> Result<Vec<f32>> {
        let mut bytes = vec![0u8; self.out.bytes()];
        // SAFETY: waited for before anybody looks.
        unsafe { self.out.read(0, &mut bytes, stream) }?;
        stream.synchronize()?;
        Ok(match output {
            Output::F32 => bytemuck::pod_collect_to_vec(&bytes),
            Output::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Output::BF16 => bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        })
    }
}

/// The worst of some figures, of which each may be an error.
fn worst(figures: impl Iterator<Item = Result<f64>>) -> Result<f64> {
    figures.collect::<Result<Vec<f64>>>().map(|all| all.into_iter().fold(0.0, f64::max))
}

/// Small layers of every kind, in every tile, with ids of the caller's of which some are nobody's, and from logits.
fn kinds() -> Result<Value> {
    let common = model("", [40, 3, 256, 192])?.shape;
    let odd = ("odd sizes", LayerShape { hidden: 208, inner: 112, ..common });
    right(experts::kinds(common).into_iter().chain([odd]), &[8, 16, 24, 48, 96, 160])
}

/// The same of layers in FP8, where a family has such.
fn fp8_kinds() -> Result<Value> {
    if !device::Device::of(0)?.family.multiplies_fp8() {
        return Ok(json!({"passed": true, "skipped": "this family multiplies exactly only"}));
    }
    let common = model("", [40, 3, 256, 192])?.shape;
    let odd = LayerShape { hidden: 208, inner: 112, ..common }.in_precision(Precision::Fp8);
    right(experts::fp8_kinds(common).into_iter().chain([("fp8, odd sizes", odd)]), &[8, 16, 24, 48, 96, 160, 256])
}

/// The same of layers with MXFP4 weights, also over more powers of two than NVFP4 and f16 have.
fn mx_kinds() -> Result<Value> {
    let common = model("", [40, 3, 256, 192])?.shape;
    let kinds = experts::mx_kinds(common);
    let wide = LayerShape { scaling: Scaling::WideMxFp4, ..kinds[0].1 };
    let fp8 = kinds[1].1.in_precision(Precision::Fp8);
    let others = [
        ("mxfp4 in fp8", fp8),
        ("many powers of two", wide),
        ("many, in single precision", LayerShape { activation: Activation::F32, output: Output::F32, ..wide }),
    ];
    let family = device::Device::of(0)?.family;
    let native = |shape: &LayerShape| {
        family.scaling(shape.scaling).is_mx() && (shape.precision == Precision::Exact || family.multiplies_fp8())
    };
    right(kinds.into_iter().chain(others.into_iter().filter(|(_, shape)| native(shape))), &[8, 16, 24, 48, 96, 160])
}

fn right(kinds: impl Iterator<Item = (&'static str, LayerShape)>, tiles: &[u32]) -> Result<Value> {
    let context = device::context(0)?;
    let mut queue = LaunchQueue::new(0)?;
    let (mut rows, mut passed) = (Vec::new(), true);
    for (name, shape) in kinds {
        let layer = Layer::new(device::Device::of(0)?.family, shape, 5, 3)?;
        let placed = Arc::new(DeviceExperts::new(0, shape, layer.packed().map(Ok))?);
        let tokens = 150;
        let model = Model { shape, ..model("", [40, 3, 256, 192])? };
        let tensors = Tensors::new(context, queue.stream(), &model, tokens, 7)?;
        let ids: Vec<i64> = (0..tokens * 3).map(|at| ((at * 7919) % 47) as i64 - 3).collect();
        let weights: Vec<f32> = (0..ids.len()).map(|at| 0.2 + (at % 5) as f32 / 8.0).collect();
        let ids_at = DeviceMemory::holding(context, "ids", bytemuck::cast_slice(&ids), queue.stream())?;
        let weights_at = DeviceMemory::holding(context, "weights", bytemuck::cast_slice(&weights), queue.stream())?;
        let choice = Choice::Given { ids: ids_at.address(), wide: true, weights: weights_at.address() };
        let call = LayerCall { choice, ..tensors.call(&model.router) };
        for &tile in tiles {
            for kernels in some_kernels(&placed, tile) {
                queue.prepare_layer_with(&placed, &call, None, kernels)?;
                // SAFETY: all tensors live until the results have been read.
                unsafe { queue.enqueue_layer(&placed, &call, None) }?;
                let found = tensors.results(shape.output, queue.stream())?;
                let hidden = shape.hidden as usize;
                let token = |t: usize| {
                    let entries = (3 * t..3 * t + 3).filter(|&entry| (0..40).contains(&ids[entry]));
                    let routed: Vec<_> = entries.map(|entry| (ids[entry] as u32, weights[entry])).collect();
                    let range = t * hidden..(t + 1) * hidden;
                    layer.worst(&tensors.x[range.clone()], &routed, &[], &found[range])
                };
                let worst = worst((0..tokens).step_by(7).map(token))?;
                println!("{name:20} tiles of {tile:3}: {worst:.3} of what is allowed");
                passed &= worst <= 1.0;
                rows.push(json!({"layer": name, "tile": tile, "worst": worst}));
            }
        }
    }
    Ok(json!({"passed": passed, "rows": rows}))
}

/// Some of the kernels with tiles of so many tokens, other ones with each tile.
fn some_kernels(placed: &DeviceExperts, tile: u32) -> Vec<LayerKernels> {
    let (device::Device { family, facts, .. }, shape) = (placed.device(), placed.shape());
    let [first, second] = [shape.gate_up(), shape.down()].map(|product| family.expert_configs(&product, tile, facts));
    let pick = |all: &[Config], step: usize| all.get((tile as usize / 8 + step) % all.len().max(1)).copied();
    let both = |index: usize| {
        let config = of_both(&pick(&first, 5 * index)?, &pick(&second, 7 * index)?);
        LayerKernels::new(*family, shape, &config, facts).ok()
    };
    (0..3).filter_map(both).collect()
}

/// One captured graph, replayed after logits and tokens have changed in place.
fn graph() -> Result<Value> {
    let context = device::context(0)?;
    let mut queue = LaunchQueue::new(0)?;
    let model = model("", [40, 3, 256, 192])?;
    let shape = model.shape;
    let layer = Layer::new(device::Device::of(0)?.family, shape, 5, 3)?;
    let placed = Arc::new(DeviceExperts::new(0, shape, layer.packed().map(Ok))?);
    let (mut passed, mut rows) = (true, Vec::new());
    for tokens in [1, 20, 200] {
        let tensors = Tensors::new(context, queue.stream(), &model, tokens, 1)?;
        let call = tensors.call(&model.router);
        queue.prepare_layer(&placed, &call, None)?;
        // SAFETY: the queue outlives it.
        let stream = unsafe { Stream::borrowed(context, queue.stream().handle()) }?;
        // SAFETY: the tensors outlive the graph's launches, which are waited for.
        let graph = stream.capture(|| unsafe { queue.enqueue_layer(&placed, &call, None) })?;
        for seed in 2..6 {
            let mut other = Tensors::new(context, &stream, &model, tokens, seed)?;
            if seed == 5 {
                // All to the same experts.
                let experts = shape.experts as usize;
                other.logits.iter_mut().enumerate().for_each(|(at, x)| *x = if at % experts < 3 { 2.0 } else { -1.0 });
            }
            // SAFETY: all of it is waited for before anything goes.
            unsafe {
                tensors.x_at.copy_from(&other.x_at, &stream)?;
                tensors.logits_at.write(0, bytemuck::cast_slice(&other.logits), &stream)?;
                graph.launch(&stream)?;
            }
            let found = tensors.results(shape.output, &stream)?;
            let hidden = shape.hidden as usize;
            let routed = model.router.route(&other.logits, tokens)?;
            let token = |t: usize| {
                let experts: Vec<_> = routed.of(t).map(|(expert, weight)| (expert as u32, weight)).collect();
                let range = t * hidden..(t + 1) * hidden;
                layer.worst(&other.x[range.clone()], &experts, &[], &found[range])
            };
            let worst = worst((0..tokens).step_by(3).map(token))?;
            println!("{tokens} tokens, routing {seed}: {worst:.3} of what is allowed");
            passed &= worst <= 1.0;
            rows.push(json!({"tokens": tokens, "routing": seed, "worst": worst}));
        }
    }
    Ok(json!({"passed": passed, "rows": rows}))
}

/// Layers on tensors of the host's, through the front door, with a shared expert and its gate.
fn front() -> Result<Value> {
    let engine = Engine::new(Options { backend: Some("cuda".to_owned()), ..Options::default() })?;
    let common = model("", [5, 3, 256, 192])?.shape;
    let (mut rows, mut passed) = (Vec::new(), true);
    let values = |ty, x: &[f32]| -> Values<'static> {
        match ty {
            Activation::F16 => x.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>().into(),
            Activation::BF16 => x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>().into(),
            _ => x.to_vec().into(),
        }
    };
    for (name, shape, intermediate) in [
        ("silu", common, Intermediate::Tokens),
        ("gpt-oss with biases", LayerShape { gate: Gate::GPT_OSS, biased: true, ..common }, Intermediate::Tokens),
        ("between in f32", common, Intermediate::F32),
        ("between in nvfp4", common, Intermediate::NvFp4),
        ("input scales", LayerShape { scaled: [true; 2], ..common }, Intermediate::Tokens),
        ("on the input", LayerShape { on_input: true, ..common }, Intermediate::Tokens),
    ] {
        let layer = Layer::new(device::Device::of(0)?.family, shape, 5, 3)?;
        let [weights, other] =
            [layer.weights().clone(), Layer::new(device::Device::of(0)?.family, shape, 1, 8)?.weights().clone()];
        let vector: Vec<f32> = (0..256).map(|at| (at % 9) as f32 / 64.0 - 0.06).collect();
        let shared = SharedWeights::new(other.experts()[0].clone()).with_gate(vector)?;
        let weights = if shape.on_input { weights } else { weights.with_shared(shared)? };
        let experts = Experts::new(&engine, &weights, LayerOptions { intermediate, ..LayerOptions::default() })?;
        let ids: Vec<i64> = (0..40 * 3).map(|at| (at * 7919) % 7 - 1).collect();
        let chosen: Vec<f32> = (0..ids.len()).map(|at| 0.2 + (at % 5) as f32 / 8.0).collect();
        let routed = Routed::given(Ids::I64(&ids), &chosen, 40, 5)?;
        let routed = if shape.on_input { routed.on_input() } else { routed };
        let mut rng = fastrand::Rng::with_seed(4);
        let x: Vec<f32> = (0..40 * 256).map(|_| rng.f32() * 2.0 - 1.0).collect();
        for activation in [Activation::BF16, Activation::F16, Activation::F32] {
            let tokens = Dense::new(40, 256, values(activation, &x), 1.0)?;
            let found = experts.run(&engine, &tokens, &routed, Output::F32)?;
            let arithmetic = |activation| match activation {
                Activation::F16 | Activation::NvFp4 => Arithmetic::F16_TENSOR_CORES,
                Activation::BF16 => Arithmetic::bf16_tensor_cores(1),
                Activation::F32 => Arithmetic::bf16_tensor_cores(3),
            };
            let reference = LayerReference {
                weights: &weights,
                intermediate,
                precision: Precision::Exact,
                tokens: &tokens,
                routed: &routed,
            };
            let (mut worst, mut row) = (0f64, vec![0f32; 256]);
            for token in (0..40).step_by(3) {
                found.row(token, &mut row);
                for (bounded, found) in reference.row(token, &arithmetic)?.into_iter().zip(&row) {
                    let part = (f64::from(*found) - bounded.value).abs() / bounded.allowed(Output::F32);
                    worst = worst.max(if part.is_nan() { f64::INFINITY } else { part });
                }
            }
            println!("{name:20} {activation:?}: {worst:.3} of what is allowed");
            passed &= worst <= 1.0;
            rows.push(json!({"layer": name, "tokens": format!("{activation:?}"), "worst": worst}));
        }
    }
    Ok(json!({"passed": passed, "rows": rows}))
}

/// The models in a precision; none where a family has no such kernels.
fn models_in(precision: Precision) -> Result<Vec<Model>> {
    let there = precision == Precision::Exact || device::Device::of(0)?.family.multiplies_fp8();
    let of = |model: Model| Model { shape: model.shape.in_precision(precision), ..model };
    Ok(all_models()?.into_iter().filter(|_| there).map(of).collect())
}

/// A few tokens of layers as large as models have them.
fn models(precision: Precision) -> Result<Value> {
    let context = device::context(0)?;
    let mut queue = LaunchQueue::new(0)?;
    let (mut passed, mut rows) = (true, Vec::new());
    for model in models_in(precision)? {
        let Model { name, shape, router } = &model;
        let layer = Layer::new(device::Device::of(0)?.family, *shape, DIFFERENT, 3)?;
        let placed = Arc::new(DeviceExperts::new(0, *shape, layer.packed().map(Ok))?);
        for tokens in [1usize, 16, 64, 512, 4096] {
            let tensors = Tensors::new(context, queue.stream(), &model, tokens, 11)?;
            // SAFETY: the tensors live until the results have been read.
            unsafe { queue.enqueue_layer(&placed, &tensors.call(router), None) }?;
            let found = tensors.results(shape.output, queue.stream())?;
            // SAFETY: as before.
            unsafe { queue.enqueue_layer(&placed, &tensors.call(router), None) }?;
            let same = tensors
                .results(shape.output, queue.stream())?
                .iter()
                .map(|x| x.to_bits())
                .eq(found.iter().map(|x| x.to_bits()));
            let hidden = shape.hidden as usize;
            let routed = router.route(&tensors.logits, tokens)?;
            // The reference takes its time, so the last token speaks for all.
            let experts: Vec<_> = routed.of(tokens - 1).map(|(expert, weight)| (expert as u32, weight)).collect();
            let range = (tokens - 1) * hidden..tokens * hidden;
            let worst = layer.worst(&tensors.x[range.clone()], &experts, &[], &found[range])?;
            println!("{name:14} {tokens:4} tokens: {worst:.3} of what is allowed; the same bits twice: {same}");
            passed &= worst <= 1.0 && same;
            rows.push(json!({"model": name, "tokens": tokens, "worst": worst, "same": same}));
        }
    }
    Ok(json!({"passed": passed, "rows": rows}))
}

/// One token in batches of all sizes, in layers that are batch-invariant: the same bits, and what it costs beside
/// layers that are not.
fn company() -> Result<Value> {
    let context = device::context(0)?;
    let mut queue = LaunchQueue::new(0)?;
    let (mut passed, mut rows) = (true, Vec::new());
    for mut model in all_models()? {
        (model.shape.invariant, model.shape.output) = (true, Output::F32);
        let Model { name, shape, router } = &model;
        let (hidden, experts) = (shape.hidden as usize, shape.experts as usize);
        let layer = Layer::new(device::Device::of(0)?.family, *shape, DIFFERENT, 3)?;
        let placed = Arc::new(DeviceExperts::new(0, *shape, layer.packed().map(Ok))?);
        let free = Arc::new(placed.seen_as(LayerShape { invariant: false, ..*shape })?);
        let one = Tensors::new(context, queue.stream(), &model, 1, 99)?;
        let token = encoded(shape.activation, &mut one.x.clone());
        let mut alone = Vec::new();
        for tokens in [1usize, 2, 7, 16, 40, 64, 200, 512, 1500, 4096] {
            let tensors = Tensors::new(context, queue.stream(), &model, tokens, 12)?;
            let place = tokens * 2 / 3;
            // SAFETY: both are waited for, and within what lies there.
            unsafe {
                tensors.x_at.write(place * token.len(), &token, queue.stream())?;
                tensors.logits_at.write(4 * place * experts, bytemuck::cast_slice(&one.logits), queue.stream())?;
                queue.enqueue_layer(&placed, &tensors.call(router), None)?;
            }
            let found = tensors.results(shape.output, queue.stream())?;
            let bits: Vec<u32> = found[place * hidden..][..hidden].iter().map(|x| x.to_bits()).collect();
            let tile = placed.kernels(tokens as u32)?.tokens();
            if alone.is_empty() {
                alone = bits.clone();
            }
            let same = bits == alone;
            // SAFETY: the queue outlives it.
            let stream = unsafe { Stream::borrowed(context, queue.stream().handle()) }?;
            let call = tensors.call(router);
            let mut us = [0.0; 2];
            for (us, layer) in us.iter_mut().zip([&placed, &free]) {
                queue.prepare_layer(layer, &call, None)?;
                // SAFETY: the tensors outlive the graph's launches, which are waited for.
                *us = time(&stream, 8, || (0..8).try_for_each(|_| unsafe { queue.enqueue_layer(layer, &call, None) }))?;
            }
            let [invariant, free] = us;
            println!(
                "{name:14} {tokens:4} tokens, tiles of {tile:3}: the same bits: {same}; {invariant:.1} µs, else {free:.1}"
            );
            passed &= same;
            rows.push(
                json!({"model": name, "tokens": tokens, "tile": tile, "same": same, "us": invariant, "else_us": free}),
            );
        }
    }
    Ok(json!({"passed": passed, "rows": rows}))
}

/// Microseconds of one of so many calls that `queue` queues, after a pause: the median.
fn time(stream: &Stream, calls: usize, queue: impl FnOnce() -> Result<()>) -> Result<f64> {
    let graph = stream.capture(queue)?;
    // SAFETY: what the graph uses outlives this function, which waits for every launch.
    let launch = || unsafe { graph.launch(stream) };
    launch()?;
    stream.synchronize()?;
    std::thread::sleep(Duration::from_millis(40));
    launch()?;
    let mut moments = vec![Event::record(stream)?];
    for _ in 0..SAMPLES {
        launch()?;
        moments.push(Event::record(stream)?);
    }
    let mut seconds = moments.windows(2).map(|pair| pair[0].seconds_until(&pair[1])).collect::<Result<Vec<f64>>>()?;
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[SAMPLES / 2] / calls as f64 * 1e6)
}

/// Whole layers, their kernels, and other tiles and kernels.
fn timing(precision: Precision) -> Result<Value> {
    let context = device::context(0)?;
    let mut rows = Vec::new();
    for model in models_in(precision)? {
        let Model { name, shape, router } = &model;
        let layer = Layer::new(device::Device::of(0)?.family, *shape, DIFFERENT, 3)?;
        let placed = Arc::new(DeviceExperts::new(0, *shape, layer.packed().map(Ok))?);
        for tokens in [1usize, 16, 64, 512, 4096] {
            let stream = Stream::new(context)?;
            let turns = if tokens > 512 { 3 } else { TURNS };
            let tensors = (0..turns).map(|turn| Tensors::new(context, &stream, &model, tokens, 20 + turn as u64));
            let tensors = tensors.collect::<Result<Vec<_>>>()?;
            let bytes = placed.workspace_bytes(tokens as u32);
            let spaces = (0..turns).map(|_| DeviceMemory::new(context, "a workspace", bytes));
            let spaces = spaces.collect::<Result<Vec<_>>>()?;
            let chosen = placed.kernels(tokens as u32)?;
            let encode = |kernels: &LayerKernels, turn: usize, space: usize| -> Result<Vec<EncodedLaunch>> {
                let call = tensors[turn].call(router);
                let launches = placed.launches(kernels, &call, [spaces[space].address(), 0, 0])?.all;
                launches
                    .iter()
                    .map(|launch| EncodedLaunch::new(device::function(context, &launch.kernel)?, launch))
                    .collect()
            };
            let whole = |kernels: &LayerKernels| -> Result<f64> {
                // One workspace, as a model has it.
                let calls = (0..turns).map(|turn| encode(kernels, turn, 0)).collect::<Result<Vec<_>>>()?;
                // SAFETY: everything that the launches use outlives the graph.
                time(&stream, turns, || calls.iter().flatten().try_for_each(|launch| unsafe { launch.queue(&stream) }))
            };
            let apart = |kernels: &LayerKernels| -> Result<Vec<f64>> {
                let calls = (0..turns).map(|turn| encode(kernels, turn, turn)).collect::<Result<Vec<_>>>()?;
                // SAFETY: everything that the launches use outlives the stream's work, which `time` waits for.
                calls.iter().flatten().try_for_each(|launch| unsafe { launch.queue(&stream) })?;
                let kernel = |index: usize| {
                    // SAFETY: everything that the launches use outlives the graph.
                    time(&stream, turns, || calls.iter().try_for_each(|call| unsafe { call[index].queue(&stream) }))
                };
                (0..calls[0].len()).map(kernel).collect()
            };
            let names: Vec<String> = placed
                .launches(&chosen, &tensors[0].call(router), [spaces[0].address(), 0, 0])?
                .all
                .iter()
                .map(|launch| launch.kernel.build().map(|kernel| kernel.name))
                .collect::<Result<_>>()?;
            let (total, kernels) = (whole(&chosen)?, apart(&chosen)?);
            let each: Vec<String> = names.iter().zip(&kernels).map(|(name, us)| format!("{name} {us:.1}")).collect();
            println!("{name:14} {tokens:4} tokens: {total:.1} µs ({})", each.join(", "));
            let (device::Device { family, facts, .. }, problem) = (placed.device(), shape.problem(tokens as u32)?);
            let price = |config: &Config| Some((plan::cost(*family, &problem, config, facts).ok()?.seconds, *config));
            let mut priced: Vec<(f64, Config)> =
                plan::candidates(*family, &problem, facts).iter().filter_map(price).collect();
            priced.sort_by(|(one, _), (other, _)| one.total_cmp(other));
            let (mut others, mut best) = (Vec::new(), total);
            for (seconds, config) in priced.into_iter().take(COMPARED) {
                let other = LayerKernels::new(*family, shape, &config, facts).expect("a candidate is legal");
                let us = whole(&other)?;
                best = best.min(us);
                println!("    {us:.1} µs, {:.1} predicted: {config}", seconds * 1e6);
                others.push(json!({"config": config.to_string(), "us": us, "predicted_us": seconds * 1e6}));
            }
            println!("    {:.3} of the best of these", total / best);
            rows.push(json!({"model": name, "tokens": tokens, "us": total, "kernels": each, "best_us": best,
                "others": others}));
        }
    }
    Ok(json!({"rows": rows}))
}

/// What consumers can be made to leave out, by the names of phases: what it tells apart, and the phases.
const LEFT_OUT: [(&str, &[&str]); 5] = [
    ("all", &[]),
    ("loads alone, without ends", NOTHING),
    ("without dequantising", &["dequantise", "load"]),
    ("loads alone", &["multiply", "dequantise", "load"]),
    (EVEN, &[]),
];
/// Nothing is left out, and every expert has as many tokens.
const EVEN: &str = "all, routed evenly";
/// All but waiting for stages and releasing them. (Without ends nothing is multiplied either: the assembler leaves out
/// what nobody uses.)
const NOTHING: &[&str] = &["multiply", "dequantise", "load", "foresee", "combine", "finish", "meet", "stage", "store"];

/// A product's kernel whose consumers leave something out; what comes of it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Without(MultiplySpec, &'static [&'static str]);

impl Spec for Without {
    fn kernel(self) -> Result<Kernel, ptx::Error> {
        let mut kernel = self.0.kernel()?;
        let left_out = |phase: &ptx::Phase| self.1.contains(&phase.name.as_str());
        let left_out: Vec<bool> = kernel.phases.iter().map(left_out).collect();
        kernel.body.retain(|instr| !left_out[instr.phase.0 as usize]);
        Ok(kernel)
    }
}

/// The products' kernels whole, and without parts of what their consumers compute.
fn parts(precision: Precision) -> Result<Value> {
    let context = device::context(0)?;
    let mut rows = Vec::new();
    for model in models_in(precision)?.into_iter().take(2) {
        let Model { name, shape, router } = &model;
        let layer = Layer::new(device::Device::of(0)?.family, *shape, DIFFERENT, 3)?;
        let placed = Arc::new(DeviceExperts::new(0, *shape, layer.packed().map(Ok))?);
        for tokens in [64usize, 512, 4096] {
            let stream = Stream::new(context)?;
            let turns = if tokens > 512 { 3 } else { TURNS };
            let tensors = (0..turns).map(|turn| Tensors::new(context, &stream, &model, tokens, 20 + turn as u64));
            let mut tensors = tensors.collect::<Result<Vec<_>>>()?;
            let bytes = placed.workspace_bytes(tokens as u32);
            let spaces = (0..turns).map(|_| DeviceMemory::new(context, "a workspace", bytes));
            let spaces = spaces.collect::<Result<Vec<_>>>()?;
            let kernels = placed.kernels(tokens as u32)?;
            let launches = placed.launches(&kernels, &tensors[0].call(router), [spaces[0].address(), 0, 0])?.all;
            let is_product = |launch: &Launch| launch.kernel.downcast::<MultiplySpec>().is_some();
            let products = || (0..launches.len()).filter(|&index| is_product(&launches[index]));
            let mut times = Vec::new();
            for (what, left_out) in LEFT_OUT {
                if what == EVEN {
                    tensors.iter_mut().try_for_each(|tensors| tensors.even(&model, &stream))?;
                }
                let encode = |turn: usize| -> Result<Vec<EncodedLaunch>> {
                    let launches =
                        placed.launches(&kernels, &tensors[turn].call(router), [spaces[turn].address(), 0, 0])?.all;
                    let encode = |mut launch: Launch| {
                        if let Some(spec) = launch.kernel.downcast::<MultiplySpec>() {
                            launch.kernel = Without(spec, left_out).into();
                        }
                        EncodedLaunch::new(device::function(context, &launch.kernel)?, &launch)
                    };
                    launches.into_iter().map(encode).collect()
                };
                let calls = (0..turns).map(encode).collect::<Result<Vec<_>>>()?;
                // SAFETY: everything that the launches use outlives the stream's work, which `time` waits for.
                calls.iter().flatten().try_for_each(|launch| unsafe { launch.queue(&stream) })?;
                let product = |index: usize| {
                    // SAFETY: everything that the launches use outlives the graph.
                    time(&stream, turns, || calls.iter().try_for_each(|call| unsafe { call[index].queue(&stream) }))
                };
                let both = products().map(product).collect::<Result<Vec<f64>>>()?;
                println!("{name:14} {tokens:4} tokens, {what}: {both:.1?}");
                times.push(json!({"what": what, "us": both}));
            }
            rows.push(json!({"model": name, "tokens": tokens, "times": times}));
        }
    }
    Ok(json!({"rows": rows}))
}

/// The host's time for a call: of the queue, and of a graph that holds one.
fn host() -> Result<Value> {
    let context = device::context(0)?;
    let mut rows = Vec::new();
    let [model, ..] = all_models()?;
    let Model { name, shape, router } = &model;
    let layer = Layer::new(device::Device::of(0)?.family, *shape, DIFFERENT, 3)?;
    let placed = Arc::new(DeviceExperts::new(0, *shape, layer.packed().map(Ok))?);
    for tokens in [1usize, 16, 64] {
        let mut queue = LaunchQueue::new(0)?;
        let tensors = Tensors::new(context, queue.stream(), &model, tokens, 4)?;
        let call = tensors.call(router);
        queue.prepare_layer(&placed, &call, None)?;
        // SAFETY: the queue outlives it.
        let stream = unsafe { Stream::borrowed(context, queue.stream().handle()) }?;
        // SAFETY: the tensors outlive all launches, which are waited for.
        let graph = stream.capture(|| unsafe { queue.enqueue_layer(&placed, &call, None) })?;
        let calls = 20;
        let each = |one: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let mut batch = || {
                let begun = Instant::now();
                (0..calls).try_for_each(|_| one())?;
                let taken = begun.elapsed().as_secs_f64() / f64::from(calls) * 1e6;
                stream.synchronize().map(|()| taken)
            };
            let mut times = (0..101).map(|_| batch()).collect::<Result<Vec<f64>>>()?;
            times.sort_by(f64::total_cmp);
            Ok(times[50])
        };
        // SAFETY: as for the graph.
        let queued = each(&mut || unsafe { queue.enqueue_layer(&placed, &call, None) })?;
        // SAFETY: as for the graph.
        let launched = each(&mut || unsafe { graph.launch(&stream) })?;
        println!("{name} {tokens} tokens: {queued:.2} µs of the host for a call, {launched:.2} for a graph of one");
        rows.push(json!({"tokens": tokens, "queued_us": queued, "graph_us": launched}));
    }
    Ok(json!({"rows": rows}))
}
