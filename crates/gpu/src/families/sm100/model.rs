//! Configurations that the kernels can run, and what they should cost on a device: from first principles and published
//! microbenchmarks, since these kernels have not run on silicon. The equations are those of `streams`; here is what
//! Blackwell puts into them.
//!
//! *Tensor cores*: a multiplication of 128 rows × N columns × 64 takes max(N/2, 32 + N/4) cycles, by a pair of blocks
//! max(N/2, 32 + N/6) for twice the rows (SemiAnalysis, microbench-blackwell: shared memory gives 128 bytes per cycle,
//! and the cores 32,768 FLOP). *L2*: public notes put what multiprocessors read of it at 13 to 24 TB/s on such GPUs; 17
//! here. *Memory*: seven eighths of what the data sheet says, if 64 KB are asked for ahead (the same microbenchmarks).
//! *Pairs*: their stages are passed on one by one. How far it may be off is said in docs/blackwell.md.

use op::{Activation, Config, Cost, Epilogue, Own, Problem, Result, Schedule, Strategy, Tile};

use super::choice::{AHEAD, MULTICAST, blocks_leaving_sums, depth, joins, kernel_of};
use super::kernel::TensorMultiplySpec;
use super::multiply::arranged_bytes;
use super::slabs::{SCALE_BYTES, UNIT};
use crate::facts::Facts;
use crate::families::choice::passes_twice;
use crate::families::streams::{FINISH, Rates, Streams};
use crate::families::{cut, limits};
use crate::family::Phase;

/// L2 at 17 TB/s and 1.69 GHz, and what must be in flight.
const RATES: Rates = Rates { cache_bytes_per_cycle: 10_000.0, in_flight: 64e3 };
/// Cycles per stage in which the second block of a pair hears of it and tells the first: an arrival that publishes to
/// the cluster took an H200 316 of them, a wait before it 14 (benchmarks/h200/silicon.cu).
const PASS_ON: f64 = 330.0;
/// Cycles of a tile's way to C per accumulator and thread of it, and what of that is left to do where gate was ahead:
/// reading, two factors, a product, rounding and storing, some four instructions per value of a warp.
const FINISH_COLUMN: f64 = 14.0;
const FINISH_UP: f64 = 4.0;
/// The most rows whose slabs are counted in 32 bits.
const MOST_ROWS: usize = u32::MAX as usize / 256;

/// Sizes worth trying: tokens of swapped tiles, columns of the others.
const TOKENS: [usize; 8] = [8, 16, 32, 48, 64, 80, 96, 112];
const COLUMNS: [usize; 3] = [32, 64, 128];

/// Every configuration worth trying, with as many stages as there is room for.
pub(super) fn candidates(problem: &Problem, facts: &Facts) -> Vec<Config> {
    let longest = problem.groups().iter().map(|shape| shape.m).max().unwrap_or(0);
    // Multiplications of numbers of 16 bits go by 16 columns.
    let step = if problem.activation() == Activation::NvFp4 { 8 } else { 16 };
    let sizes: Vec<usize> = TOKENS.into_iter().filter(|tokens| tokens.is_multiple_of(step)).collect();
    let count = sizes.iter().position(|&tokens| tokens >= longest).map_or(sizes.len(), |last| last + 1);
    let swapped = sizes[..count].iter().flat_map(|&tokens| [128, 256].map(|columns| Tile { tokens, columns }));
    // A tile of 256 is a pair's: half of it would be empty with fewer tokens.
    let rows = [(128, 64), (256, 128)].into_iter().filter(|(_, beyond)| longest > *beyond);
    let upright = rows.flat_map(|(tokens, _)| COLUMNS.map(|columns| Tile { tokens, columns }));
    let tiles: Vec<Tile> = swapped.chain(upright).collect();
    let mut configs = Vec::new();
    // What shares tokens comes last: of two that should take as long, the simpler one is taken.
    for (multicast, tile) in [1, 2].into_iter().flat_map(|multicast| tiles.iter().map(move |tile| (multicast, *tile))) {
        for (strategy, schedule) in Strategy::ALL.into_iter().flat_map(|s| Schedule::ALL.map(|schedule| (s, schedule)))
        {
            let (depth, epilogue) = (depth(problem.activation()), Epilogue::Direct);
            let own = |ahead| Own::of([(MULTICAST, multicast), (AHEAD, ahead)]);
            let with = |stages| Config { strategy, tile, depth, stages, epilogue, schedule, own: own(0) };
            let fits = |config: &Config| legal(problem, config, facts).is_ok();
            let Some(config) = (2..=8).rev().map(with).find(fits) else { continue };
            let ahead = [1, config.stages as u32].map(|ahead| Config { own: own(ahead), ..config });
            configs.extend(std::iter::once(config).chain(ahead.into_iter().filter(fits)));
        }
    }
    configs
}

/// The kernel and the number of tiles of a configuration, if it is legal for a problem on a device.
pub(super) fn legal(problem: &Problem, config: &Config, facts: &Facts) -> Result<(TensorMultiplySpec, usize), String> {
    let kernel = kernel_of(problem, config)?;
    if kernel.shared_bytes() as usize > facts.shared_bytes {
        return Err(format!(
            "{} bytes of shared memory, of which a block on this GPU ({}) can have {}; ask for fewer stages or a smaller tile",
            kernel.shared_bytes(),
            facts.name,
            facts.shared_bytes
        ));
    }
    if let Some(shape) = problem.groups().iter().find(|shape| shape.n > MOST_ROWS || shape.m > MOST_ROWS) {
        return Err(format!("{shape} has a side beyond {MOST_ROWS}, the rows whose bytes 32 bits count; split it"));
    }
    let tiles = limits::check(problem, config, joins(problem, config), kernel.multicast as usize)?;
    Ok((kernel, tiles))
}

/// Bytes of memory that a configuration needs beside the operands.
pub(super) fn workspace_bytes(problem: &Problem, config: &Config) -> usize {
    let arranged = kernel_of(problem, config).map_or(0, |kernel| arranged_bytes(problem, &kernel));
    arranged as usize + cut::workspace_bytes(problem, config, blocks_leaving_sums(config))
}

/// What a legal configuration should cost, or why it is not legal.
pub(super) fn check(problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String> {
    let phases = phases(problem, config, facts)?;
    let longest = phases.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(Cost {
        seconds: phases.iter().map(|phase| phase.seconds).sum(),
        bound_by: longest.map_or("", |phase| phase.bound_by),
        copying: 0.0,
        scratch_bytes: workspace_bytes(problem, config),
    })
}

/// What happens one after the other, and what bounds each.
pub(super) fn phases(problem: &Problem, config: &Config, facts: &Facts) -> Result<Vec<Phase>, String> {
    let (kernel, _) = legal(problem, config, facts)?;
    let (mut blocks, mut cache_bytes, mut passed_on) = (Vec::new(), 0.0, false);
    for shape in problem.groups().iter().filter(|shape| shape.m > 0) {
        let (tiles, tokens) = kernel.cut(shape.m as u32);
        let across = shape.n.div_ceil(kernel.shared_columns() as usize);
        let count = tiles as usize * across * kernel.blocks_per_tile() as usize;
        let units = (shape.k.div_ceil(UNIT as usize) as f64 / f64::from(kernel.splits())).ceil();
        let [multiplied, passed] = [multiplication_cycles(&kernel, tokens, units), pass_on_cycles(&kernel, units)];
        passed_on |= passed > multiplied;
        blocks.push((multiplied.max(passed), count));
        cache_bytes += count as f64 * units * unit_bytes(&kernel, tokens);
    }
    let arranges = matches!(problem.activation(), Activation::NvFp4 | Activation::F32);
    let columns = f64::from(kernel.columns.min(kernel.tokens));
    let [beside, late] = up_behind(&kernel, problem);
    // What of the gate's function is done by the time that up is summed.
    let hidden = beside.min((FINISH_COLUMN - FINISH_UP) * columns);
    let streams = Streams {
        facts,
        rates: RATES,
        blocks,
        computing: if passed_on { "passing a pair's stages on" } else { "tensor cores" },
        finish: FINISH + FINISH_COLUMN * columns - hidden,
        late,
        finishes_aside: kernel.sets > 1,
        cache_bytes,
        memory_bytes: problem.bytes() + 2.0 * workspace_bytes(problem, config) as f64,
        stage_bytes: f64::from(kernel.stages) * f64::from(kernel.stage_bytes().iter().sum::<u32>()),
        passes: if passes_twice(problem, config) { problem.matrices() } else { 1 },
        before: usize::from(arranges),
        behind: usize::from(joins(problem, config)),
    };
    Ok(streams.phases())
}

/// Cycles of up's products behind the last of gate's; and of those the ones that could have been done before the last
/// bytes came, but for gate.
fn up_behind(kernel: &TensorMultiplySpec, problem: &Problem) -> [f64; 2] {
    let longest = problem.groups().iter().map(|shape| shape.k).max().unwrap_or(0);
    let tokens = problem.groups().iter().map(|shape| kernel.cut(shape.m.max(1) as u32).1).max().unwrap_or(1);
    let [one, _] = matrix_cycles(kernel, tokens).map(|cycles| cycles * f64::from(kernel.depth() / UNIT));
    let steps = longest.div_ceil(kernel.depth() as usize) as f64;
    match (f64::from(kernel.ahead).min(steps), kernel.passes()) {
        (_, 2) if !kernel.leaves_sums() => [steps * one, 0.0],
        (ahead, _) => [ahead * one, (ahead - 1.0).max(0.0) * one],
    }
}

/// Cycles of one matrix's multiplication of 64 of k, of tiles of so many tokens: with both operands from shared memory,
/// and with tokens from the collector, where they are rows and have just met the other matrix.
fn matrix_cycles(kernel: &TensorMultiplySpec, tokens: u32) -> [f64; 2] {
    let width = f64::from(if kernel.swapped() { tokens } else { kernel.columns });
    let each = (width / 2.0).max(32.0 + width / if kernel.paired() { 6.0 } else { 4.0 });
    let again = if kernel.swapped() { each } else { width / 2.0 };
    // Numbers of 16 bits are four times as many bytes.
    [each, again].map(|cycles| cycles * kernel.element.map_or(1.0, |element| 4.0 * f64::from(element.parts())))
}

/// Cycles in which the stages of so many units of 64 of k are passed on one after the other, by a pair.
fn pass_on_cycles(kernel: &TensorMultiplySpec, units: f64) -> f64 {
    let stages = (units * f64::from(UNIT) / f64::from(kernel.depth())).ceil() * f64::from(kernel.passes());
    if kernel.paired() { stages * PASS_ON } else { 0.0 }
}

/// Cycles of the multiplications of so many units of 64 of k.
fn multiplication_cycles(kernel: &TensorMultiplySpec, tokens: u32, units: f64) -> f64 {
    let [each, again] = matrix_cycles(kernel, tokens);
    if kernel.matrices() == 1 {
        return units * f64::from(kernel.passes()) * each;
    }
    let apart = f64::from(kernel.ahead * kernel.depth() / UNIT).min(units);
    (units - apart) * (each + again) + apart * 2.0 * each
}

/// Bytes that a block reads per 64 of k, of tiles of so many tokens. Weights are codes also where they are dequantised
/// on the way.
fn unit_bytes(kernel: &TensorMultiplySpec, tokens: u32) -> f64 {
    let [token_bytes, weight_bytes, scale_bytes] = kernel.stage_bytes().map(f64::from);
    let token_bytes =
        if kernel.swapped() { token_bytes * f64::from(tokens) / f64::from(kernel.tokens) } else { token_bytes };
    let weight_bytes = if kernel.element.is_some() { weight_bytes * 9.0 / 32.0 } else { weight_bytes };
    // Tokens that two blocks share are read once for both, with their scales.
    let token_scales = if kernel.element.is_some() { 0.0 } else { f64::from(SCALE_BYTES) };
    let shared = (token_bytes + token_scales) * (1.0 - 1.0 / f64::from(kernel.multicast));
    let stage = token_bytes + weight_bytes + scale_bytes - shared;
    f64::from(kernel.passes()) * stage * f64::from(UNIT) / f64::from(kernel.depth())
}

/// How many times a block takes a step over 64 of K, in all.
pub(super) fn steps(problem: &Problem, config: &Config) -> usize {
    crate::families::choice::steps(problem, config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use op::{Gate, Output, Shape};

    use super::super::choice::SETTINGS;

    /// Whether a configuration is legal for one group of such tokens.
    fn judged(config: &str, activation: Activation) -> Result<(), String> {
        let problem = Problem::new(vec![Shape::new(300, 3072, 512)], Gate::Silu, activation, Output::F16);
        let problem = problem.expect("a problem");
        let request: op::Request = config.parse().expect("a request");
        let candidate = candidates(&problem, &Facts::b200())[0];
        legal(&problem, &request.applied_to(candidate, &SETTINGS), &Facts::b200()).map(drop)
    }

    /// Seconds of the products of a problem, and what bounds them.
    fn products(shape: Shape, config: &str) -> (f64, &'static str) {
        let problem = Problem::new(vec![shape], Gate::Silu, Activation::NvFp4, Output::F16).expect("a problem");
        let request: op::Request = config.parse().expect("a request");
        let config = request.complete().expect("a configuration");
        let phases = phases(&problem, &config, &Facts::b200()).expect("a legal configuration");
        let products = phases.iter().find(|phase| phase.what == "products").expect("products");
        (products.seconds, products.bound_by)
    }

    #[test]
    fn tokens_that_two_pairs_share_are_read_once_for_both() {
        let pairs = "strategy=interleaved,tile=256x64,depth=256,stages=7,epilogue=direct,schedule=tile";
        let shape = Shape::new(256, 4096, 7168);
        let (apart, bound_by) = products(shape, pairs);
        assert_eq!(bound_by, "the L2 cache");
        let (shared, bound_by) = products(shape, &format!("{pairs},multicast=2"));
        // Of 128 rows of tokens, 64 of weights and three blocks of scales half of the tokens and of their scales.
        let bytes = [16384.0 + 8192.0 + 6144.0, 8192.0 + 8192.0 + 5120.0];
        assert!(shared < apart && shared >= apart * bytes[1] / bytes[0] - 1e-12, "{shared} of {apart}, {bound_by}");
    }

    #[test]
    fn stages_of_a_pair_are_passed_on_one_by_one() {
        let pairs = "strategy=interleaved,tile=16x256,depth=256,stages=4,epilogue=direct,schedule=tile";
        let cycles = |k: usize| products(Shape::new(16, 128, k), pairs).0 * Facts::b200().clock;
        // One tile, which neither memory nor tensor cores bound.
        assert!((cycles(16384) - 64.0 * PASS_ON).abs() < 1.0, "{} cycles", cycles(16384));
    }

    #[test]
    fn a_gate_that_is_ahead_hides_behind_up_and_pays_where_tensor_cores_bound() {
        let (facts, common) =
            (Facts::b200(), "strategy=interleaved,depth=256,epilogue=direct,schedule=tile,multicast=2");
        let seconds = |m: usize, rest: &str| {
            let shape = Shape::new(m, 4096, 7168);
            let problem = Problem::new(vec![shape], Gate::Silu, Activation::NvFp4, Output::F16).expect("a problem");
            let request: op::Request = format!("{common},{rest}").parse().expect("a request");
            check(&problem, &request.complete().expect("a configuration"), &facts).expect("legal").seconds
        };
        // Ten cycles of each of 128 columns.
        let saved = seconds(512, "tile=256x128,stages=5") - seconds(512, "tile=256x128,stages=5,ahead=5");
        assert!((saved * facts.clock - 1280.0).abs() < 1.0, "{} cycles", saved * facts.clock);
        let bound_by_memory = |ahead: usize| seconds(256, &format!("tile=256x64,stages=7,ahead={ahead}"));
        assert!(bound_by_memory(1) < bound_by_memory(0) && bound_by_memory(1) < bound_by_memory(7));
    }

    #[test]
    fn tiles_of_nvfp4_tokens_whose_scales_would_begin_at_an_odd_column_are_refused_with_the_reason() {
        let tile = |columns: u32| format!("tile=256x{columns},stages=2,epilogue=direct,schedule=tile");
        for columns in [32, 96] {
            let reason = judged(&tile(columns), Activation::NvFp4).expect_err("an odd column");
            assert!(reason.contains("even column") && reason.contains("64 or 128"), "{reason}");
        }
        for (columns, activation) in [(64, Activation::NvFp4), (128, Activation::NvFp4), (32, Activation::F16)] {
            assert_eq!(judged(&tile(columns), activation), Ok(()));
        }
    }
}
