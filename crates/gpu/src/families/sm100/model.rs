//! Configurations that the kernels can run, and what they should cost on a device: from first principles and published microbenchmarks,
//! since these kernels have not run on silicon.
//!
//! A tile takes as long as its slowest stream. *Tensor cores*: a multiplication of 128 rows × N columns × 64 takes
//! max(N/2, 32 + N/4) cycles (SemiAnalysis, microbench-blackwell: shared memory gives 128 bytes per cycle, and the cores 32,768 FLOP).
//! *L2*: what all blocks of a wave read of it, which public notes put at 13 to 24 TB/s on such GPUs; 17 here. *Memory*: operands once.
//! To the slowest come the way through an empty pipeline, the last tile's way to C, and what launching takes. It has to rank; how far it
//! may be off is said in docs/blackwell.md.

use op::{Activation, Config, Cost, Epilogue, Problem, Result, Schedule, Strategy, Tile};

use super::choice::{blocks_leaving_sums, depth, joins, kernel_of};
use super::kernel::TensorMultiplySpec;
use super::multiply::arranged_bytes;
use super::slabs::UNIT;
use crate::facts::Facts;
use crate::families::choice::passes_twice;
use crate::families::{cut, limits};

/// Bytes per second that multiprocessors read from L2, together.
const CACHE_RATE: f64 = 17e12;
/// Seconds until the first bytes of an empty pipeline are there.
const FILL: f64 = 1.2e-6;
/// Cycles of a tile's way to C, and per accumulator and thread of it.
const FINISH: f64 = 700.0;
const FINISH_COLUMN: f64 = 14.0;
/// Bytes that a multiprocessor must have asked for so that memory is busy.
const IN_FLIGHT: f64 = 64e3;
/// Seconds that a launch takes, and one that begins while the one before it ends.
const LAUNCH: f64 = 2.5e-6;
const FOLLOWING_LAUNCH: f64 = 1.0e-6;
/// The most rows whose slabs are counted in 32 bits.
const MOST_ROWS: usize = u32::MAX as usize / 256;

/// Sizes worth trying: tokens of swapped tiles, columns of the others.
const TOKENS: [usize; 9] = [8, 16, 24, 32, 48, 64, 80, 96, 112];
const COLUMNS: [usize; 3] = [32, 64, 128];

/// Every configuration worth trying, with as many stages as there is room for.
pub(super) fn candidates(problem: &Problem, facts: &Facts) -> Vec<Config> {
    let longest = problem.groups().iter().map(|shape| shape.m).max().unwrap_or(0);
    // Multiplications of numbers of 16 bits go by 16 columns.
    let step = if problem.activation() == Activation::NvFp4 { 8 } else { 16 };
    let sizes: Vec<usize> = TOKENS.into_iter().filter(|tokens| tokens.is_multiple_of(step)).collect();
    let count = sizes.iter().position(|&tokens| tokens >= longest).map_or(sizes.len(), |last| last + 1);
    let swapped = sizes[..count].iter().map(|&tokens| Tile { tokens, columns: 128 });
    let upright = COLUMNS.iter().map(|&columns| Tile { tokens: 128, columns }).filter(|_| longest > 64);
    let mut configs = Vec::new();
    for tile in swapped.chain(upright) {
        for strategy in Strategy::ALL {
            for schedule in Schedule::ALL {
                let with = |stages| Config {
                    strategy,
                    tile,
                    depth: depth(problem.activation()),
                    stages,
                    epilogue: Epilogue::Direct,
                    schedule,
                };
                configs.extend((2..=8).rev().map(with).find(|config| legal(problem, config, facts).is_ok()));
            }
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
    let tiles = limits::check(problem, config, joins(problem, config))?;
    Ok((kernel, tiles))
}

/// Bytes of memory that a configuration needs beside the operands.
pub(super) fn workspace_bytes(problem: &Problem, config: &Config) -> usize {
    let arranged = kernel_of(problem, config).map_or(0, |kernel| arranged_bytes(problem, &kernel));
    arranged as usize + cut::workspace_bytes(problem, config, blocks_leaving_sums(config))
}

/// What a legal configuration should cost, or why it is not legal.
pub(super) fn check(problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String> {
    let (kernel, tiles) = legal(problem, config, facts)?;
    let passes = if passes_twice(problem, config) { problem.matrices() } else { 1 };
    let workspace = workspace_bytes(problem, config);
    let multiprocessors = f64::from(facts.multiprocessors);
    let blocks = (tiles * kernel.blocks_per_tile() as usize) as f64;
    let waves = (blocks / multiprocessors).ceil().max(1.0);
    let longest = problem.groups().iter().map(|shape| shape.k).max().unwrap_or(0);
    let units = (longest.div_ceil(UNIT as usize) as f64 / f64::from(kernel.blocks_per_tile())).ceil();
    let finish = (FINISH + FINISH_COLUMN * f64::from(kernel.columns.min(kernel.tokens))) / facts.clock;
    let summed = units * unit_cycles(&kernel) / facts.clock;
    // With two sets of accumulators all tiles but the last are finished beside the next one's sums.
    let tile = if kernel.sets > 1 { summed.max(finish) } else { summed + finish };
    let compute = passes as f64 * (waves * tile + if kernel.sets > 1 { finish } else { 0.0 });
    let cache = passes as f64 * blocks * units * unit_bytes(&kernel) / CACHE_RATE + finish;
    let stages = f64::from(kernel.stages) * f64::from(kernel.stage_bytes().iter().sum::<u32>());
    let starved = (IN_FLIGHT / stages).max(1.0).sqrt();
    let used = (blocks / multiprocessors).clamp(0.05, 1.0);
    let memory = (problem.bytes() + 2.0 * workspace as f64) / (facts.bandwidth * used.sqrt()) * starved + finish;
    let arranges = usize::from(problem.activation() == Activation::NvFp4 || problem.activation() == Activation::F32);
    let following = passes - 1 + arranges + usize::from(joins(problem, config));
    let (seconds, bound_by) = [(compute, "tensor cores"), (cache, "the L2 cache"), (memory, "device memory")]
        .into_iter()
        .fold((0.0, ""), |most, this| if this.0 > most.0 { this } else { most });
    Ok(Cost {
        seconds: seconds + FILL + LAUNCH + following as f64 * FOLLOWING_LAUNCH,
        bound_by,
        copying: 0.0,
        scratch_bytes: workspace,
    })
}

/// Cycles of the multiplications of 64 of k.
fn unit_cycles(kernel: &TensorMultiplySpec) -> f64 {
    let width = f64::from(if kernel.swapped() { kernel.tokens } else { kernel.columns });
    let each = (width / 2.0).max(32.0 + width / 4.0);
    // Where tokens are rows they come from the collector for the second matrix, and only weights from shared memory.
    let again = if kernel.swapped() { each } else { width / 2.0 };
    let once = match (kernel.matrices(), kernel.passes()) {
        (2, _) => each + again,
        (_, passes) => f64::from(passes) * each,
    };
    // Numbers of 16 bits are four times as many bytes.
    once * kernel.element.map_or(1.0, |element| 4.0 * f64::from(element.parts()))
}

/// Bytes that a block reads per 64 of k.
fn unit_bytes(kernel: &TensorMultiplySpec) -> f64 {
    let stage = f64::from(kernel.stage_bytes().iter().sum::<u32>());
    f64::from(kernel.passes()) * stage * f64::from(UNIT) / f64::from(kernel.depth())
}

/// How many times a block takes a step over 64 of K, in all.
pub(super) fn steps(problem: &Problem, config: &Config) -> usize {
    crate::families::choice::steps(problem, config)
}
