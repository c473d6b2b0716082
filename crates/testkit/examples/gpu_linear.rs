//! Checks plain products with FP8 weights on the GPU of the machine it runs on, then times them with the kernels of
//! `sm80` and of `sm90` in turn, whichever of them plans would take: `gpu_linear RESULT.json [CONFIGURATIONS [KINDS
//! [TOKENS]]]`, such as `gpu_linear linear.json 8 rows,blocks 16,32,64`. No configurations: it only checks.
//!
//! Every case of the suite `fp8-weights` is held against the reference first, as planned and in several configurations
//! (with `HAMMERHEAD_FAMILY=sm80` all by those kernels).
//!
//! Of each family the configurations are timed that its model finds cheapest, no tile twice, so that the record shows
//! what the model is worth and from which number of tokens which family is ahead. All graphs of a problem take turns,
//! over as many copies of the weights as no cache holds. Before that, every result is held against that of the first
//! configuration. Exit status 1 if anything is wrong.

use std::process::ExitCode;

use format::{Fp8Matrix, Fp8Scales, e4m3};
use gpu::device::{self, Device};
use gpu::driver::{Context, DeviceMemory, EncodedLaunch, Event, Graph, Stream};
use gpu::families::{sm80::Sm80, sm90::Sm90};
use gpu::{Family, GroupOperands, fp8};
use half::{bf16, f16};
use hammerhead::{Activation, Config, Gate, Output, Problem, Result, Shape, backends};
use hammerhead_testkit::fp8::{cases, configs, verify_in};
use op::Error;
use serde_json::{Value, json};

/// Columns and K of the problems, and the numbers of tokens.
const SIZES: [(usize, usize); 2] = [(4096, 4096), (7168, 2048)];
const TOKENS: [usize; 8] = [1, 16, 32, 64, 128, 256, 512, 4096];
/// How weights are scaled, and what tokens are.
const KINDS: [(&str, Activation); 4] =
    [("rows", Activation::BF16), ("rows-f16", Activation::F16), ("mx", Activation::BF16), ("blocks", Activation::BF16)];
/// Bytes of weights that take turns: more than twice an H200's L2.
const HELD: usize = 160 << 20;
/// Launches of one graph for few tokens, and for many; and rounds in which each graph is launched once.
const LAUNCHES: [usize; 2] = [20, 5];
const ROUNDS: usize = 15;
/// What results in 16 bits may differ by, of the largest.
const TOLERANCE: f32 = 0.01;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let listed = |place: usize| arguments.get(place).map(|list| list.split(',').collect::<Vec<_>>());
    let Some(path) = arguments.first() else {
        eprintln!("usage: gpu_linear RESULT.json [CONFIGURATIONS [KINDS [TOKENS]]]");
        return ExitCode::from(2);
    };
    let count = arguments.get(1).and_then(|count| count.parse().ok()).unwrap_or(8);
    let kinds: Vec<_> =
        KINDS.into_iter().filter(|(name, _)| listed(2).is_none_or(|names| names.contains(name))).collect();
    let tokens: Vec<usize> = listed(3)
        .map_or_else(|| TOKENS.to_vec(), |listed| listed.iter().filter_map(|tokens| tokens.parse().ok()).collect());
    let record = measure(count, &kinds, &tokens).unwrap_or_else(|error| json!({"error": error.to_string()}));
    let failed = record["error"].is_string() || record["different"] != json!(0) || record["wrong"] != json!(0);
    if let Err(error) = std::fs::write(path, format!("{record:#}\n")) {
        eprintln!("cannot write {path}: {error}");
    }
    println!("{}", if failed { format!("FAILED {}", record["error"]) } else { "PASSED".to_owned() });
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn measure(count: usize, kinds: &[(&str, Activation)], tokens: &[usize]) -> Result<Value> {
    let device = Device::of(0)?;
    println!("{}, {}", device.facts.name, device.choice);
    let [checked, wrong, most] = check()?;
    println!("{checked} checks, {wrong} wrong, the worst at {most:.2} of its bound");
    let (mut rows, mut different) = (Vec::new(), 0);
    for &(kind, activation) in kinds.iter().filter(|_| count > 0 && wrong == 0.0) {
        for size in SIZES {
            let linear = Linear::new(device, (kind, activation), size, tokens.iter().copied().max().unwrap_or(1))?;
            for &m in tokens {
                let (row, wrong) = linear.compare(m, count)?;
                different += wrong;
                rows.push(row);
            }
        }
    }
    Ok(json!({"device": device.facts.name, "checked": checked as usize, "wrong": wrong as usize, "worst": most,
        "different": different, "rows": rows}))
}

/// Every case against the reference: how many checks, how many wrong, and how much of its bound the worst takes.
fn check() -> Result<[f64; 3]> {
    let (backend, team) = (backends::by_name(device::NAME)?, hammerhead::cpu::team(None)?);
    let mut found = [0.0, 0.0, 0f64];
    for case in cases() {
        let ways = configs(&case, backend, &team)?.into_iter().map(Some);
        for config in std::iter::once(None).chain(ways) {
            let checked = verify_in(&case, backend, config, &team)?;
            if let Some(first) = checked.first {
                println!("{} in {config:?}: {} wrong, {first}", case.reason, checked.wrong);
                found[1] += 1.0;
            }
            found = [found[0] + 1.0, found[1], found[2].max(checked.most)];
        }
    }
    Ok(found)
}

/// A layer's weights, as often as no cache holds them, and room for its tokens and results.
struct Linear {
    device: &'static Device,
    kind: String,
    scaling: format::Scaling,
    activation: Activation,
    size: (usize, usize),
    weights: Vec<[DeviceMemory; 2]>,
    tokens: DeviceMemory,
    out: DeviceMemory,
    stream: Stream,
}

/// One of a family's configurations.
#[derive(Clone, Copy)]
struct Way {
    family: &'static dyn Family,
    config: Config,
    expected: f64,
}

impl Linear {
    fn new(
        device: &'static Device,
        (kind, activation): (&str, Activation),
        (n, k): (usize, usize),
        most: usize,
    ) -> Result<Self> {
        let stream = Stream::new(device.context)?;
        let mut draw = fastrand::Rng::with_seed(7);
        let codes: Vec<u8> = (0..n * k).map(|_| draw.u8(..)).map(|c| if e4m3::is_nan(c) { 0 } else { c }).collect();
        let mut floats = |count: usize| -> Vec<f32> { (0..count).map(|_| draw.f32() * 0.02 + 1e-3).collect() };
        let scales = match kind {
            "mx" => Fp8Scales::Mx((0..n * k / 32).map(|at| 110 + (at * 7 % 13) as u8).collect::<Vec<u8>>().into()),
            "blocks" => Fp8Scales::Blocks { block: [128, 128], scales: floats(n / 128 * k / 128).into() },
            _ => Fp8Scales::Rows(floats(n).into()),
        };
        let matrix = Fp8Matrix::new(n, k, codes, scales)?;
        let packed = fp8::pack(&matrix, &hammerhead::cpu::team(None)?)?;
        let hold = |context: &'static Context, bytes: &[u8]| DeviceMemory::holding(context, "operands", bytes, &stream);
        let both = || Ok([hold(device.context, &packed.chunks)?, hold(device.context, &packed.factors)?]);
        let token = |number: f32| match activation {
            Activation::F16 => f16::from_f32(number).to_le_bytes(),
            _ => bf16::from_f32(number).to_le_bytes(),
        };
        let tokens: Vec<u8> = (0..most * k).flat_map(|_| token(draw.f32() - 0.5)).collect();
        Ok(Linear {
            device,
            kind: kind.to_owned(),
            scaling: matrix.scaling(),
            activation,
            size: (n, k),
            weights: (0..HELD.div_ceil(n * k)).map(|_| both()).collect::<Result<_>>()?,
            tokens: hold(device.context, &tokens)?,
            out: DeviceMemory::new(device.context, "results", most * n * 2)?,
            stream,
        })
    }

    fn problem(&self, m: usize) -> Result<Problem> {
        let shape = Shape::new(m, self.size.0, self.size.1);
        Problem::new(vec![shape], Gate::None, self.activation, Output::BF16)?.with_scaling(self.scaling)
    }

    /// The configurations that a family's model finds cheapest, no tile twice.
    fn cheapest(&self, family: &'static dyn Family, problem: &Problem, count: usize) -> Vec<Way> {
        let facts = &self.device.facts;
        let price =
            |config: Config| Some(Way { family, config, expected: family.cost(problem, &config, facts).ok()?.seconds });
        let mut priced: Vec<Way> = family.candidates(problem, facts).into_iter().filter_map(price).collect();
        priced.sort_by(|a, b| a.expected.total_cmp(&b.expected));
        let mut chosen: Vec<Way> = Vec::new();
        for way in priced {
            if !chosen.iter().any(|other| other.config.tile == way.config.tile) {
                chosen.push(way);
            }
        }
        chosen.truncate(count);
        chosen
    }

    /// The launches of a way, for each copy of the weights.
    fn turns(&self, problem: &Problem, way: &Way) -> Result<Vec<EncodedLaunch>> {
        let launch = |[chunks, factors]: &[DeviceMemory; 2]| -> Result<EncodedLaunch> {
            let operands = GroupOperands {
                weights: [chunks.address(); 2],
                tokens: self.tokens.address(),
                out: self.out.address(),
                alphas: [1.0; 2],
                column_factors: factors.address(),
                ..GroupOperands::default()
            };
            let count = self.device.facts.multiprocessors;
            let launches = way.family.launches(problem, &way.config, &[operands], 0, count)?;
            EncodedLaunch::new(device::function(self.device.context, &launches[0].kernel)?, &launches[0])
        };
        self.weights.iter().map(launch).collect()
    }

    /// The results of a launch.
    fn results(&self, m: usize, launch: &EncodedLaunch) -> Result<Vec<f32>> {
        self.out.fill_now(0xff, &self.stream)?;
        // SAFETY: the memory that the launch uses outlives the stream's work, which is waited for.
        unsafe { launch.queue(&self.stream) }?;
        let mut bytes = vec![0; m * self.size.0 * 2];
        self.out.get(0, &mut bytes, &self.stream)?;
        Ok(bytes.chunks_exact(2).map(|two| bf16::from_le_bytes([two[0], two[1]]).to_f32()).collect())
    }

    /// All ways for so many tokens: what they take, and how many have other results than the first.
    fn compare(&self, m: usize, count: usize) -> Result<(Value, usize)> {
        let problem = self.problem(m)?;
        let mut ways = self.cheapest(&Sm80, &problem, count.div_ceil(2));
        ways.extend(self.cheapest(&Sm90, &problem, count));
        let turns = ways.iter().map(|way| self.turns(&problem, way)).collect::<Result<Vec<_>>>()?;
        let expected = self.results(m, &turns[0][0])?;
        let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
        let mut wrong = 0;
        for (way, turns) in ways.iter().zip(&turns).skip(1) {
            let found = self.results(m, &turns[0])?;
            let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest);
            let off = off.fold(0f32, |most, off| if off.is_nan() { f32::INFINITY } else { most.max(off) });
            if off > TOLERANCE {
                println!("{} {} is off by {off}", way.family.name(), way.config);
                wrong += 1;
            }
        }
        let seconds = self.time(m, &turns)?;
        let name = format!("{} {m}x{}x{}", self.kind, self.size.0, self.size.1);
        let best = |family: &str| {
            let of = ways.iter().zip(&seconds).filter(|(way, _)| way.family.name() == family);
            of.map(|(_, seconds)| seconds * 1e6).fold(f64::INFINITY, f64::min)
        };
        println!("{name}: sm80 {:.2} us, sm90 {:.2} us at best", best("sm80"), best("sm90"));
        let each: Vec<Value> = ways
            .iter()
            .zip(&seconds)
            .map(|(way, seconds)| {
                let (family, config, us) = (way.family.name(), way.config.to_string(), seconds * 1e6);
                println!("    {us:8.2} us, {:8.2} predicted: {family} {config}", way.expected * 1e6);
                json!({"family": family, "config": config, "us": us, "predicted_us": way.expected * 1e6})
            })
            .collect();
        let row = json!({"kind": self.kind, "tokens": m, "n": self.size.0, "k": self.size.1,
            "sm80_us": best("sm80"), "sm90_us": best("sm90"), "ways": each});
        Ok((row, wrong))
    }

    /// Median seconds of one launch of each way; graphs of all ways take turns.
    fn time(&self, m: usize, ways: &[Vec<EncodedLaunch>]) -> Result<Vec<f64>> {
        let launches = LAUNCHES[usize::from(m > 1024)];
        let graph = |turns: &Vec<EncodedLaunch>| -> Result<Graph> {
            // SAFETY: the memory that the launches use outlives the stream's work, which is waited for.
            let queue = |at: usize| unsafe { turns[at % turns.len()].queue(&self.stream) };
            self.stream.capture(|| (0..launches).try_for_each(queue))
        };
        let graphs = ways.iter().map(graph).collect::<Result<Vec<_>, Error>>()?;
        let mut samples = vec![Vec::new(); graphs.len()];
        for _ in 0..ROUNDS {
            for (graph, samples) in graphs.iter().zip(&mut samples) {
                let start = Event::record(&self.stream)?;
                // SAFETY: the same memory, and the second event is waited for.
                unsafe { graph.launch(&self.stream) }?;
                samples.push(start.seconds_until(&Event::record(&self.stream)?)? / launches as f64);
            }
        }
        let median = |samples: &mut Vec<f64>| {
            samples.sort_by(f64::total_cmp);
            samples[samples.len() / 2]
        };
        Ok(samples.iter_mut().map(median).collect())
    }
}
