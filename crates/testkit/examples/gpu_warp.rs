//! Times the kernels for GPUs since Ampere on the GPU of the machine it runs on, beside what that can do at all:
//! `HAMMERHEAD_FAMILY=sm80 gpu_warp RESULT.json [CANDIDATES]`.
//!
//! Ceilings in the same run, before and after: a loop of nothing but mma.sync from registers, and reading memory. Each
//! number of tokens is timed in the configurations that the model finds cheapest, so that the record shows what it is
//! worth, over five sets of weights in turn so that they come from memory. Hopper's own kernels are timed beside them
//! where they run.
//!
//! What bounds them is asked in two ways. The loop of multiplications is timed with other instructions among them,
//! which shows what each kind costs beside a multiplication. And the fastest configuration is timed without some of its
//! phases: what it computes then is nonsense, and how long it takes shows what the phase costs.

use std::process::ExitCode;
use std::sync::Arc;

use format::Matrix;
use gpu::device::{self, Device};
use gpu::driver::{Context, DeviceMemory, EncodedLaunch, Event, Function, Stream};
use gpu::families::sm80::{Sm80, kernel::WarpMultiplySpec};
use gpu::families::sm90::Sm90;
use gpu::{Argument, Family, GroupOperands, KernelSpec, Launch, Spec};
use hammerhead::{Activation, Config, Gate, Output, Problem, Result, Shape};
use ptx::instr::{LoadOrder, MatrixElement, Warp};
use ptx::{
    Addr, Builder, F16x2, F32, Global, Kernel, LaunchBounds, PhaseId, Reg, Shared, SpecialRegister, Target, U32,
};
use serde_json::{Value, json};

/// Columns and K of the problems, and the numbers of tokens.
const SIZES: (usize, usize) = (4096, 7168);
const TOKENS: [usize; 7] = [1, 16, 32, 64, 128, 256, 512];
/// Sets of weights that are used in turn: more bytes than any cache holds.
const SETS: usize = 5;
/// Launches of one graph, and graphs of one measurement.
const LAUNCHES: usize = 20;
const REPEATS: usize = 12;

/// A loop of multiplications from registers, and so many other instructions for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MultiplyLoop {
    operands: Values,
    beside: Beside,
    count: u32,
}

/// What a multiplication takes.
type Operands = ([Reg<U32>; 4], [Reg<U32>; 2]);

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Values {
    /// The same few bits again and again, for which the tensor cores need the least power.
    Same,
    /// Numbers of every sign and mantissa, other ones from one multiplication to the next.
    Changing,
}

/// An instruction of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Beside {
    /// lop3 of three registers: the integer pipe.
    Logic,
    /// lop3 of one register and a constant, of two kinds in turn so that none can be left out.
    Mask,
    /// shf: the same pipe, or so one would think.
    Shift,
    /// imad: the pipe of multiplications.
    Integers,
    /// hmul2.
    Halves,
    /// ldmatrix of sixteen bytes per lane, of what the next multiplications take: so many for four of them.
    Matrix,
    /// cp.async of sixteen bytes per lane from L2: so many for sixteen multiplications.
    Copy,
}

const PLAIN: MultiplyLoop = MultiplyLoop { operands: Values::Same, beside: Beside::Logic, count: 0 };
/// Sets of operands that change.
const SETS_OF_OPERANDS: usize = 4;
/// Registers that the others go around in: none waits for the one before it.
const OTHERS: usize = 8;

impl Beside {
    /// How many are tried.
    fn counts(self) -> &'static [u32] {
        match self {
            Beside::Matrix => &[1, 2, 4],
            Beside::Copy => &[1, 2],
            _ => &[1, 2, 3],
        }
    }

    /// One that computes, on one of some registers; the others are memory's.
    fn compute(self, k: &mut Builder, at: usize, reg: Reg<U32>, other: Reg<U32>, third: Reg<U32>) {
        let value = match self {
            Beside::Logic => k.lop3(reg, other, third, 0x6a),
            Beside::Mask if (at / OTHERS).is_multiple_of(2) => k.and(reg, 0x7357_9bdfu32),
            Beside::Mask => k.or(reg, 0x0420_1090u32),
            Beside::Shift => k.funnel_left(reg, other, 3),
            Beside::Integers => k.mul_add(reg, other, other),
            Beside::Halves => k.mul(reg.cast::<F16x2>(), other.cast::<F16x2>()).cast(),
            Beside::Matrix | Beside::Copy => return,
        };
        k.set(reg, value);
    }
}

const ROUNDS: u32 = 2048;
const INDEPENDENT: u32 = 16;
const THREADS: u32 = 256;
/// Bytes of all threads' matrices.
const MATRICES: u32 = THREADS * 16;

impl Spec for MultiplyLoop {
    fn kernel(self) -> Result<Kernel, ptx::Error> {
        let bounds = LaunchBounds { threads: THREADS, cluster: None, min_blocks: Some(1) };
        let mut k = Builder::new("multiply_loop", Target::Sm80, bounds);
        let out = k.pointer("out");
        let thread = k.special(SpecialRegister::TidX);
        let a: [Reg<U32>; 4] = std::array::from_fn(|i| k.mul(thread, 3 + i as u32));
        let b: [Reg<U32>; 2] = std::array::from_fn(|i| k.mul(thread, 11 + i as u32));
        // Halves from a half to one, of either sign.
        let mixed = |k: &mut Builder, seed: u32| {
            let bits = k.mul_add(thread, 0x9e37_79b9u32.wrapping_mul(2 * seed + 1), seed.wrapping_mul(0x85eb_ca6b));
            let bits = k.and(bits, 0x83ff_83ffu32);
            k.or(bits, 0x3800_3800u32)
        };
        let changing: Vec<Operands> = (0..SETS_OF_OPERANDS as u32)
            .map(|set| {
                let a = std::array::from_fn(|i| mixed(&mut k, 6 * set + i as u32));
                (a, std::array::from_fn(|i| mixed(&mut k, 6 * set + 4 + i as u32)))
            })
            .collect();
        let sums: Vec<[Reg<F32>; 4]> = (0..INDEPENDENT).map(|_| std::array::from_fn(|_| k.variable(0.0))).collect();
        let region = k.shared("matrices", INDEPENDENT * MATRICES, 16);
        let shared = k.shared_address(region);
        let shared = k.mul_add(thread, 16, shared);
        let matrix = |index: usize| Addr::<Shared>::of(shared).plus((index as u32 * MATRICES).cast_signed());
        (0..INDEPENDENT as usize).for_each(|index| k.store_vector(matrix(index), a));
        k.sync_threads();
        let source = k.mul_wide_add(thread, 16, out);
        let others: [Reg<U32>; OTHERS] = std::array::from_fn(|i| k.mul(thread, 17 + i as u32));
        // Two sets of what is read from shared memory: one is multiplied while the other is read.
        let read: [Vec<[Reg<U32>; 4]>; 2] =
            [0, 1].map(|_| (0..4).map(|_| std::array::from_fn(|i| k.variable(a[i]))).collect());
        k.repeat(ROUNDS, |k, _| {
            for (index, &sums) in sums.iter().enumerate() {
                let set = index / 4 % 2;
                let (a, b) = match (self.operands, self.beside) {
                    (_, Beside::Matrix) => (read[set][index % 4 * self.count as usize / 4], b),
                    (Values::Same, _) => (a, b),
                    (Values::Changing, _) => {
                        (changing[index % SETS_OF_OPERANDS].0, changing[index / 2 % SETS_OF_OPERANDS].1)
                    }
                };
                k.mma(MatrixElement::F16, sums, a, b);
                for (other, ahead) in read[1 - set].iter().enumerate().take(self.count as usize) {
                    let at = index * self.count as usize + other;
                    self.beside.compute(k, at, others[at % OTHERS], b[at % 2], thread);
                    match self.beside {
                        Beside::Matrix if other == index % 4 => {
                            let dsts = ahead.map(Reg::id).to_vec();
                            k.emit(Warp::LoadMatrix { transpose: false, dsts, addr: matrix(index).address() });
                        }
                        Beside::Copy if index == 0 => {
                            k.thread_copy(matrix(other), Addr::<Global>::of(source), 16);
                        }
                        _ => {}
                    }
                }
            }
            match self.beside {
                // Whatever was read may be something else in the next round.
                Beside::Matrix => k.store(matrix(0), others[0]),
                Beside::Copy => {
                    k.thread_commit();
                    k.thread_wait(4);
                }
                _ => {}
            }
        });
        for (sums, other) in sums.iter().zip(others) {
            let bits = k.add(sums[0], other.cast::<F32>());
            k.set(sums[0], bits);
        }
        let total = sums.into_iter().flatten().reduce(|a, b| k.add(a, b)).unwrap_or_else(|| k.variable(0.0));
        let at = k.mul_wide_add(thread, 4, out);
        k.store(Addr::<Global>::of(at), total);
        k.finish()
    }
}

/// Reads memory: every thread sixteen bytes at a time, several at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ReadLoop;

const AT_ONCE: u32 = 8;
const READ_BYTES: usize = 1 << 30;
const READ_BLOCKS: u32 = 8;

impl Spec for ReadLoop {
    fn kernel(self) -> Result<Kernel, ptx::Error> {
        let bounds = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
        let mut k = Builder::new("read_loop", Target::Sm80, bounds);
        let (source, out) = (k.pointer("source"), k.pointer("out"));
        let rounds: Reg<U32> = k.param("rounds");
        let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
        let blocks = k.special(SpecialRegister::NctaidX);
        let (total, number) = (k.variable(0u32), k.variable(block));
        k.repeat(rounds, |k, _| {
            let first = k.mul_wide_add(number, THREADS * 16 * AT_ONCE, source);
            let at = k.mul_wide_add(thread, 16, first);
            let loaded: Vec<[Reg<U32>; 4]> = (0..AT_ONCE)
                .map(|i| k.load_as(LoadOrder::ReadOnly, Addr::<Global>::of(at).plus((i * THREADS * 16).cast_signed())))
                .collect();
            for word in loaded.into_iter().flatten() {
                let mixed = k.xor(total, word);
                k.set(total, mixed);
            }
            let next = k.add(number, blocks);
            k.set(number, next);
        });
        let at = k.mul_wide_add(thread, 4, out);
        k.store(Addr::<Global>::of(at), total);
        k.finish()
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (path, count) = (arguments.next(), arguments.next().and_then(|count| count.parse().ok()).unwrap_or(12));
    let Some(path) = path else {
        eprintln!("usage: gpu_warp RESULT.json [CANDIDATES]");
        return ExitCode::from(2);
    };
    match measure(count) {
        Ok(record) => {
            let written = std::fs::write(&path, format!("{record:#}\n"));
            written.map_or_else(
                |error| {
                    eprintln!("cannot write {path}: {error}");
                    ExitCode::FAILURE
                },
                |()| ExitCode::SUCCESS,
            )
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Median seconds of one of some launches, which are queued in turn.
fn time(stream: &Stream, turns: &[Vec<EncodedLaunch>]) -> Result<f64> {
    // SAFETY: the memory that the launches use outlives the stream's work, which is waited for.
    let queue = |turn: &Vec<EncodedLaunch>| turn.iter().try_for_each(|launch| unsafe { launch.queue(stream) });
    let graph = stream.capture(|| (0..LAUNCHES).try_for_each(|i| queue(&turns[i % turns.len()])))?;
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let start = Event::record(stream)?;
        // SAFETY: the same memory, and the second event is waited for.
        unsafe { graph.launch(stream) }?;
        seconds.push(start.seconds_until(&Event::record(stream)?)? / LAUNCHES as f64);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

fn launched<S: Spec>(context: &'static Context, spec: S, grid: u32, arguments: Vec<Argument>) -> Result<EncodedLaunch> {
    let launch = Launch { kernel: spec.into(), grid: [grid, 1, 1], arguments, overlapping: false, strided: false };
    EncodedLaunch::new(Arc::new(Function::new(context, launch.kernel.build()?)?), &launch)
}

/// FLOP per second of the loop of multiplications, and bytes per second of reading.
fn ceilings(device: &Device, stream: &Stream) -> Result<[f64; 2]> {
    let (context, multiprocessors) = (device.context, device.facts.multiprocessors);
    let out = DeviceMemory::new(context, "results", 4096)?;
    let source = DeviceMemory::new(context, "something to read", READ_BYTES)?;
    let grid = 2 * multiprocessors;
    let multiply = launched(context, PLAIN, grid, vec![Argument::Pointer(out.address())])?;
    let flops = f64::from(grid * THREADS / 32) * f64::from(ROUNDS) * f64::from(INDEPENDENT) * 4096.0;
    let blocks = READ_BLOCKS * multiprocessors;
    let rounds = (READ_BYTES / (THREADS * 16 * AT_ONCE) as usize) as u32 / blocks;
    let arguments = vec![Argument::Pointer(source.address()), Argument::Pointer(out.address()), Argument::U32(rounds)];
    let read = launched(context, ReadLoop, blocks, arguments)?;
    let bytes = f64::from(rounds) * f64::from(blocks) * f64::from(THREADS * 16 * AT_ONCE);
    let flops = flops / time(stream, &[vec![multiply]])?;
    Ok([flops, bytes / time(stream, &[vec![read]])?])
}

/// How much longer the loop takes with other instructions in it, with as many warps as the kernels have: by kind, for
/// one to three per multiplication, or as the kind says.
fn beside(device: &Device, stream: &Stream) -> Result<Value> {
    let (context, grid) = (device.context, device.facts.multiprocessors);
    let out = DeviceMemory::new(context, "results", 4096)?;
    let seconds = |spec| {
        let launch = launched(context, spec, grid, vec![Argument::Pointer(out.address())])?;
        time(stream, &[vec![launch]])
    };
    let alone = seconds(PLAIN)?;
    let changing = seconds(MultiplyLoop { operands: Values::Changing, ..PLAIN })?;
    println!("multiplications of changing numbers take {:.3} of the time of always the same ones", changing / alone);
    let mut rows = vec![json!({"kind": "changing numbers", "longer": changing / alone})];
    use Beside::{Copy, Halves, Integers, Logic, Mask, Matrix, Shift};
    for kind in [Logic, Mask, Shift, Integers, Halves, Matrix, Copy] {
        let longer = kind
            .counts()
            .iter()
            .map(|&count| Ok(seconds(MultiplyLoop { beside: kind, count, ..PLAIN })? / alone))
            .collect::<Result<Vec<f64>>>()?;
        println!("multiplications with {kind:?} beside them take {longer:.3?} of the time without");
        rows.push(json!({"kind": format!("{kind:?}"), "longer": longer}));
    }
    Ok(json!(rows))
}

/// A kernel without one of its phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Without {
    spec: WarpMultiplySpec,
    phase: &'static str,
}

/// What is done to the kernel that a configuration means.
#[derive(Clone, Copy)]
enum Change {
    Nothing,
    /// One of its phases is left out.
    Without(&'static str),
    /// Warps have so many fragments.
    Fragments(u32),
}

impl Change {
    /// The changed kernel, if there is one.
    fn of(self, spec: WarpMultiplySpec) -> Option<KernelSpec> {
        match self {
            Change::Nothing => Some(spec.into()),
            Change::Without(phase) => Some(Without { spec, phase }.into()),
            Change::Fragments(fragments) => {
                let changed = WarpMultiplySpec { fragments, ..spec };
                (changed != spec && changed.check().is_ok()).then(|| changed.into())
            }
        }
    }
}

/// Phases of the main loop: filling stages, waiting for them, reading them, making fragments of weights; and the way to
/// C.
const PHASES: [&str; 5] = ["multiply/copy", "multiply/wait", "multiply/load", "multiply/dequantise", "/finish"];

impl Spec for Without {
    fn kernel(self) -> Result<Kernel, ptx::Error> {
        let mut kernel = self.spec.kernel()?;
        let phases: Vec<bool> = (0..kernel.phases.len() as u32)
            .map(|phase| kernel.phase_path(PhaseId(phase)).contains(self.phase))
            .collect();
        kernel.body.retain(|instr| !phases[instr.phase.0 as usize]);
        Ok(kernel)
    }
}

/// Everything that a problem's launches read and write.
struct Memory {
    weights: Vec<[DeviceMemory; 2]>,
    tokens: DeviceMemory,
    out: DeviceMemory,
    workspace: DeviceMemory,
}

impl Memory {
    fn new(context: &'static Context, stream: &Stream) -> Result<Self> {
        let ((n, k), most) = (SIZES, TOKENS[TOKENS.len() - 1]);
        let hold = |bytes: &[u8]| DeviceMemory::holding(context, "operands", bytes, stream);
        let team = hammerhead::cpu::team(None)?;
        let packed = |seed: usize| -> Result<DeviceMemory> {
            let codes: Vec<u8> = (0..n * k / 2).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 9) as u8).collect();
            let scales: Vec<u8> = (0..n * k / 16).map(|i| 0x20 + ((i + seed) % 32) as u8).collect();
            let matrix = Matrix::new(n, k, codes, scales, 1.0)?;
            hold(&Sm80.pack(&matrix, gpu::pack::Codes::Halves, matrix.scaling(), &team)?)
        };
        let halves = |i: usize| half::f16::from_f32(((i * 7 + i / k) % 17) as f32 / 8.0 - 1.0).to_le_bytes();
        Ok(Memory {
            weights: (0..SETS).map(|set| Ok([packed(2 * set)?, packed(2 * set + 1)?])).collect::<Result<_>>()?,
            tokens: hold(&(0..most * k).flat_map(halves).collect::<Vec<u8>>())?,
            out: DeviceMemory::new(context, "results", most * n * 4)?,
            workspace: DeviceMemory::new(context, "working memory", 4 * most * n * 4 + 4096)?,
        })
    }

    /// A configuration's launches, a turn for each set of weights, with a changed kernel of products; no turns if there
    /// is no such.
    fn turns(
        &self,
        device: &Device,
        family: &dyn Family,
        problem: &Problem,
        config: &Config,
        change: Change,
    ) -> Result<Vec<Vec<EncodedLaunch>>> {
        self.weights
            .iter()
            .map(|[gate, up]| {
                let operands = GroupOperands {
                    weights: [gate.address(), up.address()],
                    tokens: self.tokens.address(),
                    token_scales: 0,
                    part_bytes: 0,
                    out: self.out.address(),
                    alphas: [0.01, 0.02],
                    biases: [0; 2],
                    lifts: [0; 2],
                    column_factors: 0,
                };
                let (workspace, count) = (self.workspace.address(), device.facts.multiprocessors);
                let mut launches = family.launches(problem, config, &[operands], workspace, count)?;
                if let Some(spec) = launches[0].kernel.downcast() {
                    let Some(changed) = change.of(spec) else { return Ok(Vec::new()) };
                    launches[0].kernel = changed;
                }
                let encode =
                    |launch: &Launch| EncodedLaunch::new(device::function(device.context, &launch.kernel)?, launch);
                launches.iter().map(encode).collect()
            })
            .collect()
    }
}

/// The configurations that a family's model finds cheapest, with the seconds that it expects: of those with one
/// strategy and one tile the cheapest two.
fn cheapest(family: &dyn Family, problem: &Problem, device: &Device, count: usize) -> Vec<(f64, Config)> {
    let price = |config: Config| Some((family.cost(problem, &config, &device.facts).ok()?.seconds, config));
    let mut priced: Vec<(f64, Config)> =
        family.candidates(problem, &device.facts).into_iter().filter_map(price).collect();
    priced.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut chosen: Vec<(f64, Config)> = Vec::new();
    for (seconds, config) in priced {
        let alike = |(_, other): &&(f64, Config)| (other.strategy, other.tile) == (config.strategy, config.tile);
        let same_loop = |(_, other): &(f64, Config)| {
            (other.strategy, other.tile, other.depth) == (config.strategy, config.tile, config.depth)
        };
        if chosen.iter().filter(alike).count() < 2 && !chosen.iter().any(same_loop) {
            chosen.push((seconds, config));
        }
    }
    chosen.truncate(count);
    chosen
}

fn measure(count: usize) -> Result<Value> {
    let device = Device::of(0)?;
    let stream = Stream::new(device.context)?;
    println!("{}, {}", device.facts.name, device.choice);
    let before = ceilings(device, &stream)?;
    println!("ceilings: {:.1} TFLOP/s of mma.sync, {:.2} TB/s", before[0] / 1e12, before[1] / 1e12);
    let beside = beside(device, &stream)?;
    let memory = Memory::new(device.context, &stream)?;
    let mut rows = Vec::new();
    for m in TOKENS {
        let problem = Problem::new(vec![Shape::new(m, SIZES.0, SIZES.1)], Gate::Silu, Activation::F16, Output::F16)?;
        let (flops, bytes) = (4.0 * (m * SIZES.0 * SIZES.1) as f64, problem.bytes());
        let shares = |seconds: f64| [flops / seconds / before[0], bytes / seconds / before[1]];
        let mut measured: Vec<(f64, f64, Config)> = Vec::new();
        for (expected, config) in cheapest(&Sm80, &problem, device, count) {
            let seconds = time(&stream, &memory.turns(device, &Sm80, &problem, &config, Change::Nothing)?)?;
            let [of_flops, of_bytes] = shares(seconds);
            println!(
                "{m:4} {config}: {:.2} us (model {:.2}), {of_flops:.3} of flops, {of_bytes:.3} of bytes",
                seconds * 1e6,
                expected * 1e6
            );
            measured.push((seconds, expected, config));
            for fragments in [1, 2, 4] {
                let turns = memory.turns(device, &Sm80, &problem, &config, Change::Fragments(fragments))?;
                if !turns.is_empty() && !turns[0].is_empty() {
                    let seconds = time(&stream, &turns)?;
                    println!("{m:4}   with {fragments} fragments per warp: {:.2} us", seconds * 1e6);
                }
            }
        }
        let hopper = cheapest(&Sm90, &problem, device, 1).pop().filter(|_| Sm90.supports(device.facts.capability));
        let hopper = hopper
            .map(|(_, config)| time(&stream, &memory.turns(device, &Sm90, &problem, &config, Change::Nothing)?))
            .transpose()?;
        let planned = measured[0];
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        let best = measured[0];
        let row = |(seconds, expected, config): (f64, f64, Config)| {
            let [of_flops, of_bytes] = shares(seconds);
            json!({"config": config.to_string(), "us": seconds * 1e6, "model_us": expected * 1e6, "of_mma_sync": of_flops, "of_memory": of_bytes})
        };
        println!(
            "{m:4} planned {:.2} us, best {:.2} us, sm90 {:.2} us",
            planned.0 * 1e6,
            best.0 * 1e6,
            hopper.unwrap_or(0.0) * 1e6
        );
        let mut phases = serde_json::Map::new();
        for phase in PHASES {
            let seconds = time(&stream, &memory.turns(device, &Sm80, &problem, &best.2, Change::Without(phase))?)?;
            println!("{m:4} without {phase}: {:.2} us", seconds * 1e6);
            phases.insert(phase.to_owned(), json!(seconds * 1e6));
        }
        let all: Vec<Value> = measured.iter().copied().map(row).collect();
        rows.push(json!({"m": m, "n": SIZES.0, "k": SIZES.1, "planned": row(planned), "best": row(best),
            "sm90_us": hopper.map(|seconds| seconds * 1e6), "without_us": phases, "measured": all}));
    }
    let after = ceilings(device, &stream)?;
    let rates = |[flops, bytes]: [f64; 2]| json!({"mma_sync_tflops": flops / 1e12, "memory_tbps": bytes / 1e12});
    Ok(
        json!({"device": device.facts.name, "choice": device.choice.to_string(), "before": rates(before), "after": rates(after),
        "beside_multiplications": beside,
        "sizes": rows}),
    )
}
