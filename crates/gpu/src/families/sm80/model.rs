//! Configurations that the kernels can run on a device, and what they should cost there.
//!
//! Arithmetic on rates of the device. Per unit of 64 of k a block takes as long as the tensor cores and a good half of
//! all other instructions (dequantisation before all) one after the other, or as shared memory, from which each warp
//! reads all tokens: so an H200 was measured, in whichever order the instructions stand; longer where so few warps are
//! there that they do not hide each other's waits. A tile is that many units, and some cycles to fill the pipeline and
//! to finish. Tiles are dealt to multiprocessors in waves. Weights come from memory once, fast if enough bytes are
//! asked for ahead. The larger of the two times, a part of the smaller, and what launching takes, is the prediction. It
//! has to rank: an H200's times are mostly within a tenth of it, and what it finds cheapest is within four percent of
//! the best.

use op::{Config, Cost, Epilogue, Own, Problem, Result, Schedule, Shape, Strategy, Tile};

use ptx::Target;

use super::choice::{blocks_leaving_sums, joins, kernel_of};
use super::experts;
use super::kernel::{Products, Tokens, UNIT, WarpMultiplySpec};
use crate::expand::TokenForm;
use crate::facts::Facts;
use crate::families::choice::{ending, passes_twice};
use crate::families::{cut, limits};
use crate::products::ProductShape;

/// Instructions of a warp per slice of 16 of k: to make a fragment of weights as f16 or as bfloat16, and for the rest.
const DEQUANTISE: f64 = 22.0;
const DEQUANTISE_WIDE: f64 = 26.0;
/// The same from plain codes.
const DEQUANTISE_PLAIN: f64 = 30.0;
/// The same of FP8 weights, as f16 or as bfloat16, and to scale the sums of a fragment and eight tokens. Counted, not
/// measured.
const DEQUANTISE_BYTES: f64 = 16.0;
const DEQUANTISE_BYTES_WIDE: f64 = 20.0;
const SCALE_SUMS: f64 = 8.0;
const SLICE: f64 = 13.0;
/// How many times as fast codes are multiplied as halves, and instructions per unit to read a fragment and eight tokens
/// of codes. Not measured: the rates that are published for an RTX 5090.
const CODES_RATE: f64 = 8.0;
const CODES_FRAGMENT: f64 = 5.0;
const CODES_EIGHT: f64 = 1.5;
/// What a piece that is copied costs a warp, in instructions: there are three, and the rest is for the way into shared
/// memory.
const COPY: f64 = 18.0;
/// The share of other instructions that is not hidden behind multiplications.
const UNHIDDEN: f64 = 0.5;
/// Warps of a multiprocessor that hide each other's waits, and how much longer fewer take.
const ENOUGH_WARPS: f64 = 8.0;
const FEW_WARPS: f64 = 1.1;
/// The part of the smaller of the two times that is not hidden behind the larger.
const NOT_BESIDE: f64 = 0.17;
/// Bytes per cycle of shared memory.
const SHARED_RATE: f64 = 128.0;
/// Cycles of a change of stage, to fill a pipeline and to finish a tile: of blocks with a tile each, and with several.
const CHANGE_STAGE: f64 = 40.0;
const FILL: f64 = 3400.0;
const FILL_AGAIN: f64 = 4150.0;
/// Cycles more with every further unit of a stage, where each tile is another expert's and begins with an empty stage.
const FILL_UNIT: f64 = 500.0;
/// The part of that which remains where another block multiplies meanwhile.
const FILL_BESIDE: f64 = 0.44;
/// Bytes that a multiprocessor must have asked for so that memory is busy.
const IN_FLIGHT: f64 = 40e3;
/// Seconds that a launch takes.
pub(in crate::families) const LAUNCH: f64 = 1.2e-6;
/// Bytes of the memory of a multiprocessor that each block costs besides.
const BLOCK_SHARED: usize = 1024;

/// Sizes worth trying: tokens, and fragments, of a tile.
const TOKENS: [usize; 8] = [8, 16, 24, 32, 48, 64, 96, 128];
const FRAGMENTS: [usize; 10] = [1, 2, 3, 4, 6, 8, 10, 12, 16, 32];

/// Every configuration worth trying, with as many stages as there is room for.
pub(in crate::families) fn candidates(target: Target, problem: &Problem, facts: &Facts) -> Vec<Config> {
    let mut configs = Vec::new();
    let longest = problem.groups().iter().map(|shape| shape.m).max().unwrap_or(0);
    let widest = problem.groups().iter().map(|shape| shape.n).max().unwrap_or(0);
    let sizes = TOKENS.iter().position(|&tokens| tokens >= longest).map_or(TOKENS.len(), |last| last + 1);
    for strategy in Strategy::ALL {
        let single = Products::of(problem, strategy) != Products::Interleaved;
        for (tokens, fragments) in TOKENS[..sizes].iter().flat_map(|&tokens| FRAGMENTS.map(|rows| (tokens, rows))) {
            let tile = Tile { tokens, columns: fragments * if single { 16 } else { 8 } };
            if tile.columns >= 2 * widest.max(16) {
                continue;
            }
            for schedule in Schedule::ALL {
                let bytes = ending(problem, strategy).1.bytes();
                let aligned = problem.groups().iter().all(|shape| (shape.n * bytes).is_multiple_of(16));
                let staged = aligned && schedule != Schedule::SplitK && (tile.columns * bytes).is_multiple_of(16);
                let epilogue = if staged { Epilogue::Staged } else { Epilogue::Direct };
                let with = |depth| Config { strategy, tile, depth, stages: 1, epilogue, schedule, own: Own::NONE };
                configs.extend(
                    [256, 128, 64].into_iter().filter_map(|depth| deepest(target, problem, with(depth), facts)),
                );
            }
        }
    }
    configs
}

/// The configuration with as many stages as fit, but no more than hide memory's latency.
fn deepest(target: Target, problem: &Problem, config: Config, facts: &Facts) -> Option<Config> {
    let enough = |config: &Config| {
        kernel_of(target, problem, config)
            .is_ok_and(|kernel| in_flight(&kernel) >= 2.0 * IN_FLIGHT / f64::from(kernel.resident))
    };
    let fits = |stages: &usize| legal(target, problem, &Config { stages: *stages, ..config }, facts).is_ok();
    let with = |stages| Config { stages, ..config };
    let fitting: Vec<usize> = (3..=12).filter(fits).collect();
    let first = fitting.iter().copied().map(with).find(enough);
    first.or_else(|| fitting.last().copied().map(with))
}

/// The kernel and the number of tiles of a configuration, if it is legal for a problem on a device.
pub(in crate::families) fn legal(
    target: Target,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<(WarpMultiplySpec, usize), String> {
    let kernel = kernel_of(target, problem, config)?;
    problem.groups().iter().try_for_each(|shape| check_rows(shape, config, &kernel))?;
    // A multiprocessor has as much shared memory as one block may have, and what a block costs besides.
    let there = (facts.shared_bytes + BLOCK_SHARED) / kernel.resident as usize - BLOCK_SHARED;
    if kernel.shared_bytes() as usize > there {
        return Err(format!(
            "{} bytes of shared memory, of which each of {} blocks on a multiprocessor of this GPU ({}) can have {there}; \
             ask for fewer stages, less depth or a smaller tile",
            kernel.shared_bytes(),
            kernel.resident,
            facts.name
        ));
    }
    let tiles = limits::check(problem, config, joins(problem, config), 1)?;
    Ok((kernel, tiles))
}

/// Whether a group's rows of C are such as the epilogue writes.
fn check_rows(shape: &Shape, config: &Config, kernel: &WarpMultiplySpec) -> Result<(), String> {
    let bytes = kernel.output.bytes();
    let staged = config.epilogue == Epilogue::Staged;
    if staged && !((shape.n * bytes).is_multiple_of(16) && (config.tile.columns * bytes).is_multiple_of(16)) {
        return Err(format!(
            "epilogue=staged writes 16 bytes at a time, and rows of {} {} elements, or of a tile, are not a multiple of that; \
             ask for epilogue=direct",
            shape.n, kernel.output
        ));
    }
    Ok(())
}

/// What a legal configuration should cost, or why it is not legal.
pub(in crate::families) fn check(
    target: Target,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<Cost, String> {
    let (kernel, tiles) = legal(target, problem, config, facts)?;
    let passes = if passes_twice(problem, config) { problem.matrices() } else { 1 };
    let workspace = cut::workspace_bytes(problem, config, blocks_leaving_sums(config));
    let expands = TokenForm::of(problem.activation()).is_some();
    let launches = passes + usize::from(joins(problem, config)) + usize::from(expands);
    Ok(price(problem, (&kernel, tiles, passes), (workspace, launches), facts))
}

/// The same for a product of experts that have a problem's rows.
pub(in crate::families) fn check_experts(
    target: Target,
    shape: &ProductShape,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<Cost, String> {
    let kernel = experts::kernel(target, shape, config, facts.shared_bytes)?;
    let tiles = limits::check(problem, config, false, 1)?;
    Ok(price(problem, (&kernel, tiles, 1), (0, 1), facts))
}

/// What so many tiles of a kernel should cost, in so many passes over a workspace and so many launches.
fn price(
    problem: &Problem,
    (kernel, tiles, passes): (&WarpMultiplySpec, usize, usize),
    (workspace, launches): (usize, usize),
    facts: &Facts,
) -> Cost {
    let multiprocessors = f64::from(facts.multiprocessors);
    let blocks = tiles * kernel.blocks_per_tile() as usize;
    let waves = blocks as f64 / multiprocessors / f64::from(kernel.resident);
    // How many tiles experts have is chance: of many waves, as often as not, some blocks have one more than others.
    let waves = if kernel.experts.is_some() && waves > 2.0 { waves + 0.5 } else { waves.ceil().max(1.0) };
    // The last wave may leave a multiprocessor with one block where it could have two.
    let together = (blocks as f64 / multiprocessors).ceil().min(f64::from(kernel.resident)).max(1.0);
    let longest = problem.groups().iter().map(|shape| shape.k).max().unwrap_or(0);
    let units = longest.div_ceil(UNIT as usize) as f64 / f64::from(kernel.blocks_per_tile());
    let few = f64::from(kernel.threads() / 32) * together < ENOUGH_WARPS;
    let unit = unit_cycles(kernel, facts) * if few { FEW_WARPS } else { 1.0 };
    let looped = units * f64::from(kernel.passes()) * unit * together;
    // A block that shares its multiprocessor finishes while the other multiplies.
    let apart = if together > 1.0 { FILL_BESIDE } else { 1.0 };
    let filled = if kernel.schedule == Schedule::Persistent && waves > 1.0 { FILL_AGAIN } else { FILL };
    let filled = filled * f64::from(kernel.passes());
    let filled = if kernel.experts.is_some() { filled + FILL_UNIT * f64::from(kernel.units - 1) } else { filled };
    let compute = passes as f64 * waves * (looped + apart * filled) / facts.clock;
    let starved = (IN_FLIGHT / (in_flight(kernel) * together)).max(1.0).sqrt();
    let used = (blocks as f64 / multiprocessors).clamp(0.05, 1.0);
    let memory =
        (problem.bytes() + 2.0 * workspace as f64) / (facts.bandwidth * used.sqrt()) * starved + FILL / facts.clock;
    Cost {
        seconds: compute.max(memory) + NOT_BESIDE * compute.min(memory) + launches as f64 * LAUNCH,
        bound_by: if compute > memory { "tensor cores" } else { "device memory" },
        copying: 0.0,
        scratch_bytes: workspace,
    }
}

/// Bytes that a block has asked for and not yet got.
fn in_flight(kernel: &WarpMultiplySpec) -> f64 {
    f64::from((kernel.stages - 2) * kernel.units * kernel.unit_bytes()[1])
}

/// Cycles of a block, alone on its multiprocessor, for a unit of k.
fn unit_cycles(kernel: &WarpMultiplySpec, facts: &Facts) -> f64 {
    let parts = f64::from(kernel.element.parts());
    let [along_n, along_k, fragments] = kernel.shares().map(f64::from);
    let eights = f64::from(kernel.tokens) / 8.0 * parts;
    let warps = along_n * along_k;
    // Of a unit's four slices, which warps along k have to themselves.
    let slices = 4.0;
    let multiply = along_n * fragments * eights * slices * facts.mma_cycles / warps.min(4.0);
    if kernel.element == Tokens::NvFp4 {
        // One multiplication covers all slices, and nothing is made before it.
        let issue = along_n * (fragments * (eights + CODES_FRAGMENT) + eights * CODES_EIGHT) / 4.0;
        let bytes = along_n * f64::from(kernel.unit_bytes()[0]) + 2.0 * f64::from(kernel.unit_bytes()[1]);
        return (multiply / CODES_RATE + UNHIDDEN * issue).max(bytes / SHARED_RATE)
            + CHANGE_STAGE / f64::from(kernel.units);
    }
    let dequantise = match kernel.element {
        Tokens::F16 if kernel.scaling.is_fp8() => DEQUANTISE_BYTES,
        _ if kernel.scaling.is_fp8() => DEQUANTISE_BYTES_WIDE,
        _ if kernel.takes_codes() => DEQUANTISE_PLAIN,
        Tokens::F16 => DEQUANTISE,
        _ => DEQUANTISE_WIDE,
    };
    let scale =
        kernel.scaled_slices().map_or(0.0, |slices| SCALE_SUMS * f64::from(kernel.tokens) / 8.0 / f64::from(slices));
    let of_warp = fragments * (dequantise + eights + scale) + eights / 2.0 + SLICE;
    let copies = f64::from(kernel.unit_bytes().iter().sum::<u32>()) / 16.0 / 32.0 * COPY;
    let issue = (along_n * slices * of_warp + copies) / 4.0;
    let shared = (along_n * slices * eights * 8.0 * 32.0 + 3.0 * f64::from(kernel.unit_bytes()[1])) / SHARED_RATE;
    (multiply + UNHIDDEN * issue).max(shared) + CHANGE_STAGE / f64::from(kernel.units)
}
