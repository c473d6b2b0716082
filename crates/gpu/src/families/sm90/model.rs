//! Which configurations the GPU kernels can run, and what they should cost on an H200.
//!
//! The model is arithmetic on measured rates. A multiprocessor multiplies 64 weight rows, T tokens and 16 of K in a
//! little more than T/2 cycles, or in as long as dequantising them takes, about 21 + T/2.8, or in as long as tokens and
//! weights take from L2. A tile costs that times its blocks of rows and its steps of K, and some cycles to fill the
//! pipeline and to finish. Tiles are dealt to multiprocessors as the schedule deals them, the longest first, and the
//! busiest one is the time of the tensor cores. Weights come from memory once, fast if enough bytes are asked for
//! ahead, and tokens from L2 for every tile. The larger of the two times, and what launching takes, is the prediction;
//! a launch that begins beside the one before it takes less.

use op::{Config, Cost, Epilogue, Own, Problem, Result, Schedule, Shape, Strategy, Tile};

use super::choice::{asked_kernel, kernel_of};
use super::experts;
use super::kernel::{self, Tokens, UNIT};
use crate::expand::{self, TokenForm};
use crate::facts::Facts;
use crate::families::choice::{Products, ending, passes_twice};
use crate::families::streams::{Rates, Streams, deal};
use crate::families::{cut, limits};
use crate::family::Phase;
use crate::fp8::stretch;
use crate::products::ProductShape;

/// Bytes per cycle that a multiprocessor gets of tokens while weights come from memory.
const TOKEN_BYTES_PER_CYCLE: f64 = 134.0;
/// Bytes of weights that a block must have asked for beyond what its warpgroups read, so that memory is busy.
const IN_FLIGHT: f64 = 30e3;
/// Seconds that a launch takes besides, and how many fewer where its blocks begin while others compute.
const LAUNCH: f64 = 2.5e-6;
const OVERLAP: f64 = 1.0e-6;
/// The share of multiprocessors that must have a block of a launch for the next one to gain from beginning beside it:
/// those without one repeat a tile, and the next launch loses as much as it would have gained.
const NEARLY_ALL: f64 = 0.9;
/// Cycles until a tile's first multiplication, and from its last one to C; per token for the latter.
const FILL: f64 = 1900.0;
const FINISH: f64 = 700.0;
const FINISH_TOKEN: f64 = 9.0;
/// Cycles more where two warpgroups add up their sums, or two blocks; per token for the latter.
const JOIN_WARPGROUPS: f64 = 500.0;
const JOIN_BLOCKS: f64 = 900.0;
const JOIN_BLOCKS_TOKEN: f64 = 6.0;
/// Cycles of a change of stage, between the passes over two matrices, and from one tile to the next.
const CHANGE_STAGE: f64 = 30.0;
const CHANGE_MATRIX: f64 = 400.0;
const CHANGE_TILE: f64 = 900.0;
/// The same where the tile before is stored under the next one's products; per token.
const CHANGE_OVERLAPPED: f64 = 1500.0;
const CHANGE_OVERLAPPED_TOKEN: f64 = 3.0;
/// What it takes longer than without where no other tile of the group has the same weights: layers with as few rows per
/// expert were 1 to 4 % slower.
const CHANGE_ONLY: f64 = 300.0;

/// Cycles per token in which 64 weight rows and 16 of K are multiplied: one half, and what the tensor cores idle.
const MULTIPLY_TOKEN: f64 = 0.507;
/// Cycles in which such a fragment is made and multiplied where making it takes longer: as f16, as bfloat16; per token.
const DEQUANTISE: f64 = 21.0;
const DEQUANTISE_WIDE: f64 = 24.0;
const DEQUANTISE_TOKEN: f64 = 1.0 / 2.8;
/// The same of FP8 weights; and per token where sums have scales of their own, half a multiplication for each sum of 64
/// of k. Counted, not measured.
const DEQUANTISE_BYTES: f64 = 16.0;
const DEQUANTISE_BYTES_WIDE: f64 = 19.0;
const SCALE_TOKEN: f64 = 1.0 / 8.0;
/// What they take longer where warpgroups have two blocks of rows of many tokens each: 1.04 to 1.10 on an H200.
const BYTES_BESIDE: f64 = 1.07;
/// The same where weights are rounded to e4m3, of which one multiplication takes twice as many.
const ROUND: f64 = 35.5;
const ROUND_TOKEN: f64 = 0.1;
/// The same where multiplications are not waited for one by one.
const ROUND_TOKEN_COARSE: f64 = 0.13;
/// Seconds that rounding tokens to e4m3 takes besides reading them.
const ROUNDING: f64 = 1.5e-6;
/// Cycles more per fragment where experts' tokens have several parts: those are multiplied one after another, and
/// little of it beside the making of fragments.
const BETWEEN_PARTS: f64 = 15.0;
/// Bytes per cycle that a multiprocessor gets from L2 while all others do too.
const FROM_CACHE: f64 = 50.0;
/// What a multiplication takes longer when only one warpgroup has some under way.
const ALONE: f64 = 1.2;
/// What few tokens take longer where they do not meet gate and up of one block of rows at a time, and where a stage is
/// but one unit.
const FEW_APART: f64 = 1.3;
const FEW_SHALLOW: f64 = 1.15;

/// Sizes worth trying: tokens and columns of fused tiles.
const TOKENS: [usize; 11] = [8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256];
const BLOCKS: [usize; 4] = [1, 2, 3, 4];

/// Tokens of the longest group from which FP8 weights are multiplied here: with 16 these kernels took 0.75 to 0.92 of
/// the time of `sm80`'s on an H200, with one 0.77 to 1.33.
const LEAST_FP8_TOKENS: usize = 9;
/// Tokens up to which FP8 weights are not read again for further tiles: plans with such took 1.06 to 1.39 times as
/// long.
const FP8_TOKENS_OF_ONE_TILE: usize = 64;

/// Whether FP8 weights of a problem are multiplied here, rather than by `sm80`'s kernels.
pub(super) fn computes_fp8(problem: &Problem) -> bool {
    let longest = problem.groups().iter().map(|shape| shape.m).max().unwrap_or(0);
    let halved = stretch(problem.scaling(), Tokens::of_problem(problem)).is_some_and(|stretch| stretch < UNIT);
    longest >= LEAST_FP8_TOKENS && !halved
}

/// Every configuration worth trying, with as many stages as there is room for: on a multiprocessor of its own, and
/// beside another block.
pub(super) fn candidates(problem: &Problem, facts: &Facts) -> Vec<Config> {
    let mut configs = Vec::new();
    let longest = problem.groups().iter().map(|shape| shape.m).max().unwrap_or(0);
    // A tile much larger than the longest group would only be cut; blocks that share K want a multiple of 16.
    let (least, most) = match problem.scaling().is_fp8() {
        true => (longest.min(FP8_TOKENS_OF_ONE_TILE), longest.next_multiple_of(16)),
        false => (0, longest),
    };
    let sizes = TOKENS.iter().position(|&tokens| tokens >= most).map_or(TOKENS.len(), |last| last + 1);
    let sizes = TOKENS[..sizes].iter().filter(|tokens| **tokens >= least);
    for strategy in Strategy::ALL {
        let single = Products::of(problem, strategy) != Products::Interleaved;
        for (tokens, blocks) in sizes.clone().flat_map(|&tokens| BLOCKS.map(|blocks| (tokens, blocks))) {
            let tile = Tile { tokens, columns: blocks * if single { 64 } else { 32 } };
            for schedule in Schedule::ALL {
                let widest = ending(problem, strategy).1.bytes();
                let aligned = problem.groups().iter().all(|shape| (shape.n * widest).is_multiple_of(16));
                let epilogue = if aligned { Epilogue::Staged } else { Epilogue::Direct };
                // Deep stages cost fewer instructions, but several of them are needed.
                let depths: &[usize] = if tokens <= 32 { &[256, 128, 64] } else { &[128, 64] };
                let with =
                    |&depth: &usize| Config { strategy, tile, depth, stages: 1, epilogue, schedule, own: Own::NONE };
                let with_room =
                    |resident| depths.iter().map(with).find_map(|config| deepest(problem, config, resident, facts));
                configs.extend([1, 2].into_iter().filter_map(with_room));
            }
        }
    }
    configs
}

/// The configuration with as many stages as fit, so many blocks being on a multiprocessor, but no more than hide a
/// copy's latency, if enough do.
fn deepest(problem: &Problem, config: Config, resident: u32, facts: &Facts) -> Option<Config> {
    let most = if config.tile.tokens <= 32 { 14 } else { 6 };
    let least = match config.depth {
        256 => 4,
        128 => 3,
        _ => 2,
    };
    // Most of what is asked for here is none, and nobody reads why.
    let asked = asked_kernel(problem, &config).ok()?;
    let fits = |&stages: &usize| {
        let kernel = kernel::MultiplySpec { stages: stages as u32, ..asked };
        let there = kernel.check().is_ok() && kernel.resident() == resident;
        there && kernel.shared_bytes() as usize <= facts.shared_bytes
    };
    let stages = (least..=most).rev().find(fits)?;
    let config = Config { stages, ..config };
    legal(problem, &config).is_ok().then_some(config)
}

/// The kernel and the number of tiles of a configuration, if it is legal for a problem.
pub(super) fn legal(problem: &Problem, config: &Config) -> Result<(kernel::MultiplySpec, usize), String> {
    let kernel = kernel_of(problem, config)?;
    problem.groups().iter().try_for_each(|shape| check_rows(shape, config, &kernel))?;
    let tiles = limits::check(problem, config, passes_twice(problem, config), 1)?;
    Ok((kernel, tiles))
}

/// Whether a configuration is legal for a problem, and what it should cost.
pub(super) fn check(problem: &Problem, config: &Config, facts: &Facts) -> Result<Cost, String> {
    let (kernel, tiles) = legal(problem, config)?;
    let passes = if config.strategy == Strategy::TwoPass { problem.matrices() } else { 1 };
    Ok(price(problem, (&kernel, tiles, passes), cut::workspace_bytes(problem, config, 1), facts))
}

/// The same for a product of experts that have a problem's rows.
pub(super) fn check_experts(
    shape: &ProductShape,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<Cost, String> {
    let kernel = experts::kernel(shape, config)?;
    let tiles = limits::check(problem, config, false, 1)?;
    Ok(price(problem, (&kernel, tiles, 1), 0, facts))
}

/// What so many tiles of a kernel should cost, in so many passes over a workspace.
fn price(
    problem: &Problem,
    (kernel, tiles, passes): (&kernel::MultiplySpec, usize, usize),
    workspace: usize,
    facts: &Facts,
) -> Cost {
    let multiprocessors = f64::from(facts.multiprocessors);
    let mut compute = passes as f64 * busiest(problem, kernel, facts) / facts.clock;
    let mut memory = (problem.bytes() + 2.0 * workspace as f64) / facts.bandwidth * starved(kernel)
        + cached_token_bytes(problem, kernel) / (TOKEN_BYTES_PER_CYCLE * multiprocessors * facts.clock);
    // Multiprocessors' worth of blocks.
    let waves = tiles as f64 * f64::from(kernel.blocks_per_tile()) / multiprocessors;
    let finishing = finish_cycles(kernel, f64::from(kernel.tokens)) / facts.clock;
    let mut launching = LAUNCH * if workspace > 0 { 3.0 } else { 1.0 };
    if kernel.element == Tokens::E4m3 && kernel.experts.is_none() {
        launching += ROUNDING;
    }
    if kernel.resident() > 1 && waves > NEARLY_ALL {
        memory += finishing;
        let elements = problem.groups().iter().map(|shape| shape.m * shape.k).sum();
        let little_before = |source| expand::by_few_blocks(source, elements);
        if waves > 1.0 || TokenForm::of(problem.activation()).is_none_or(little_before) {
            launching -= OVERLAP;
        } else {
            // Blocks that expand tokens take the room on some multiprocessors, and others get two blocks.
            compute *= 2.0;
        }
    } else {
        // Memory idles at both ends of every block.
        let times = if kernel.schedule == Schedule::Persistent { 1.0 } else { waves.ceil() };
        memory += times * finishing + (times - 1.0).max(0.0) * FILL / facts.clock;
        if kernel.resident() > 1 {
            launching += OVERLAP;
        }
    }
    Cost {
        seconds: compute.max(memory) + launching,
        bound_by: if compute > memory { "tensor cores" } else { "device memory" },
        copying: 0.0,
        scratch_bytes: workspace,
    }
}

/// Of L2, NVIDIA says 5120 bytes per cycle of GA100, and no more of GH100; what must be in flight is what memory gives
/// in a microsecond.
const RATES: Rates = Rates { cache_bytes_per_cycle: 5120.0, in_flight: 32e3 };

/// What a configuration should take from first principles: tensor cores take 4096 operations per cycle, and
/// dequantising is not looked at.
pub(super) fn phases(problem: &Problem, config: &Config, facts: &Facts) -> Result<Vec<Phase>, String> {
    let (kernel, _) = legal(problem, config)?;
    let workspace = cut::workspace_bytes(problem, config, 1);
    let splits = kernel.blocks_per_tile() as usize;
    let (mut blocks, mut cache_bytes) = (Vec::new(), 0.0);
    for shape in problem.groups().iter().filter(|shape| shape.m > 0) {
        let (tiles, tokens) = kernel.cut(shape.m as u32);
        let width = kernel.widths().iter().copied().find(|&width| width >= tokens).unwrap_or(kernel.tokens);
        let count = tiles as usize * shape.n.div_ceil(kernel.columns as usize) * splits;
        let units = f64::from(kernel.passes()) * shape.k.div_ceil(UNIT as usize) as f64 / splits as f64;
        let slice = f64::from(width * kernel.element.parts() * kernel.element.bytes()) / 4.0;
        blocks.push((units * 4.0 * f64::from(kernel.blocks()) * slice, count));
        let [token_bytes, weight_bytes] = kernel.unit_bytes().map(f64::from);
        let unit_bytes = token_bytes * f64::from(width) / f64::from(kernel.tokens) + weight_bytes;
        cache_bytes += count as f64 * units * unit_bytes;
    }
    let streams = Streams {
        facts,
        rates: RATES,
        blocks,
        computing: "tensor cores",
        finish: FINISH + FINISH_TOKEN * f64::from(kernel.tokens),
        finishes_aside: kernel.ping_pong,
        late: 0.0,
        cache_bytes,
        memory_bytes: problem.bytes() + 2.0 * workspace as f64,
        stage_bytes: f64::from(kernel.stages * kernel.units) * f64::from(kernel.unit_bytes().iter().sum::<u32>()),
        passes: if passes_twice(problem, config) { 2 } else { 1 },
        before: usize::from(TokenForm::of(problem.activation()).is_some() || kernel.element == Tokens::E4m3),
        behind: usize::from(workspace > 0),
    };
    Ok(streams.phases())
}

/// Whether a group's rows of C are such as the epilogue writes.
fn check_rows(shape: &Shape, config: &Config, kernel: &kernel::MultiplySpec) -> Result<(), String> {
    let row = shape.n * kernel.output.bytes();
    if config.epilogue != Epilogue::Direct && !row.is_multiple_of(16) {
        return Err(format!(
            "epilogue={} writes 16 bytes at a time, and rows of {} {} elements are not a multiple of that; \
             ask for epilogue=direct",
            config.epilogue, shape.n, kernel.output
        ));
    }
    Ok(())
}

/// Cycles of a tile with so many tokens of a group, so many such tiles sharing a multiprocessor, and of that one's
/// columns perhaps the only one.
fn tile_cycles(kernel: &kernel::MultiplySpec, tokens: u32, k: usize, (together, only): (u32, bool)) -> f64 {
    let widths = kernel.widths();
    let width = widths.iter().copied().find(|&width| width >= tokens).unwrap_or(kernel.tokens);
    let width = f64::from(width);
    let rounded = kernel.element == Tokens::E4m3;
    let multiplying = f64::from(kernel.element.parts()) * width * MULTIPLY_TOKEN / if rounded { 2.0 } else { 1.0 };
    let made = match kernel.element {
        Tokens::E4m3 if kernel.rounds_finely() => ROUND + width * ROUND_TOKEN,
        Tokens::E4m3 => ROUND + width * ROUND_TOKEN_COARSE,
        Tokens::F16 if kernel.scales.is_fp8() => DEQUANTISE_BYTES + width * DEQUANTISE_TOKEN,
        _ if kernel.scales.is_fp8() => DEQUANTISE_BYTES_WIDE + width * DEQUANTISE_TOKEN,
        Tokens::F16 => DEQUANTISE + width * DEQUANTISE_TOKEN,
        _ => DEQUANTISE_WIDE + width * DEQUANTISE_TOKEN,
    };
    let made = if kernel.scales_sums() { made + width * SCALE_TOKEN } else { made };
    let slice = match kernel.element.parts() {
        parts if parts > 1 && kernel.experts.is_some() => {
            (multiplying + BETWEEN_PARTS).max(made + width * f64::from(parts - 1) * MULTIPLY_TOKEN)
        }
        _ => multiplying.max(made),
    };
    // A warpgroup alone does not keep the tensor cores busy.
    let slice = if kernel.ping_pong { slice * ALONE } else { slice };
    let moved = f64::from(kernel.unit_bytes().iter().sum::<u32>()) * width / f64::from(kernel.tokens) / FROM_CACHE;
    let slice = if kernel.experts.is_some() { slice * crowded(kernel) } else { slice };
    let slice =
        if kernel.scales.is_fp8() && kernel.blocks() > 3 && width > 96.0 { slice * BYTES_BESIDE } else { slice };
    let apart = kernel.tokens <= 64 && (kernel.passes() > 1 || kernel.blocks() > 3 && kernel.experts.is_none());
    let slice = if apart { slice * FEW_APART } else { slice };
    let slice = if kernel.tokens <= 96 && kernel.units == 1 { slice * FEW_SHALLOW } else { slice };
    let unit = (f64::from(kernel.blocks()) * 4.0 * slice).max(moved);
    let units = f64::from(kernel.passes()) * k.div_ceil(UNIT as usize) as f64;
    let units = if kernel.schedule == Schedule::SplitK { units / 2.0 } else { units };
    let loops =
        units * (unit + CHANGE_STAGE / f64::from(kernel.units)) + f64::from(kernel.passes() - 1) * CHANGE_MATRIX;
    let overhead = match (kernel.ping_pong, kernel.schedule) {
        (true, _) => 0.0,
        (false, _) if kernel.under > 0 && only => CHANGE_TILE + CHANGE_ONLY + finish_cycles(kernel, width),
        (false, _) if kernel.under > 0 => CHANGE_OVERLAPPED + width * CHANGE_OVERLAPPED_TOKEN,
        (false, Schedule::Persistent) => CHANGE_TILE + finish_cycles(kernel, width),
        (false, _) => FILL + finish_cycles(kernel, width),
    };
    loops * f64::from(together) + overhead
}

/// How much longer a block of rows of experts' weights takes where so many share the registers that little is under way
/// in each, or where two blocks share the stages.
fn crowded(kernel: &kernel::MultiplySpec) -> f64 {
    match (kernel.blocks(), kernel.tokens) {
        (3, ..=8 | 65..) => 1.06,
        (4.., 65..=96) => 1.08,
        (4.., 97..) => 1.35,
        _ if kernel.resident() == 2 && kernel.units == 4 && kernel.stages <= 5 => 1.03,
        _ => 1.0,
    }
}

/// How much slower memory is where a block has few bytes in flight: a fit, like all else here.
fn starved(kernel: &kernel::MultiplySpec) -> f64 {
    let read = if kernel.shares_k() { 3 } else { 2 };
    let stages = f64::from(kernel.stages.saturating_sub(read)).max(0.5);
    let in_flight = stages * f64::from(kernel.units * kernel.unit_bytes()[1]);
    (IN_FLIGHT / in_flight).max(1.0).sqrt()
}

/// Bytes of tokens that all tiles together read.
fn cached_token_bytes(problem: &Problem, kernel: &kernel::MultiplySpec) -> f64 {
    let of_group = |shape: &Shape| {
        let (tiles, tokens) = kernel.cut(shape.m as u32);
        let columns = shape.n.div_ceil(kernel.columns as usize) as f64;
        f64::from(tiles)
            * f64::from(tokens * kernel.element.parts())
            * columns
            * shape.k as f64
            * f64::from(kernel.element.bytes())
    };
    problem.groups().iter().filter(|shape| shape.m > 0).map(of_group).sum()
}

/// Cycles from a tile's last multiplication to C.
fn finish_cycles(kernel: &kernel::MultiplySpec, width: f64) -> f64 {
    let finish = FINISH + FINISH_TOKEN * width / f64::from(kernel.blocks_per_tile());
    let between_blocks = if kernel.blocks_per_tile() > 1 { JOIN_BLOCKS + JOIN_BLOCKS_TOKEN * width } else { 0.0 };
    finish + between_blocks + if kernel.shares_k() { JOIN_WARPGROUPS } else { 0.0 }
}

/// Cycles of the busiest multiprocessor: tiles go, the longest first, to whoever is free first, or in turn.
fn busiest(problem: &Problem, kernel: &kernel::MultiplySpec, facts: &Facts) -> f64 {
    let multiprocessors = facts.multiprocessors as usize;
    let cut = |shape: &Shape| (kernel.cut(shape.m as u32), shape.n.div_ceil(kernel.columns as usize));
    let groups = || problem.groups().iter().filter(|shape| shape.m > 0);
    let blocks: usize =
        groups().map(|shape| cut(shape).0.0 as usize * cut(shape).1).sum::<usize>() * kernel.blocks_per_tile() as usize;
    // Where each multiprocessor has but one block of this launch, the other one is of the next and waits.
    let together = if blocks > multiprocessors { kernel.resident() } else { 1 };
    let mut tiles: Vec<(f64, usize)> = Vec::new();
    for shape in groups() {
        let ((token_tiles, tokens), columns) = cut(shape);
        let last = shape.m as u32 - (token_tiles - 1) * tokens;
        let cycles = |tokens| tile_cycles(kernel, tokens, shape.k, (together, token_tiles == 1));
        tiles.push((cycles(tokens.min(shape.m as u32)), (token_tiles as usize - 1) * columns));
        tiles.push((cycles(last), columns));
    }
    tiles.sort_by(|a, b| b.0.total_cmp(&a.0));
    let workers = multiprocessors * together as usize / kernel.blocks_per_tile() as usize;
    match kernel.schedule {
        // How many tiles experts have is chance: of many rounds, as often as not, some blocks have one more than
        // others.
        Schedule::Persistent if kernel.experts.is_some() && blocks > 2 * workers => {
            let all: f64 = tiles.iter().map(|(cycles, count)| cycles * *count as f64).sum();
            all / workers as f64 + tiles[0].0 / 2.0 + FILL + FINISH
        }
        Schedule::Persistent => in_turn(&tiles, workers) + FILL + FINISH,
        Schedule::PerTile | Schedule::SplitK => deal(&tiles, workers),
    }
}

/// When the first of some workers is done, who gets the longest tile of every round.
fn in_turn(tiles: &[(f64, usize)], workers: usize) -> f64 {
    let (mut total, mut next, mut before) = (0.0, 0, 0);
    for &(cycles, count) in tiles {
        before += count;
        let rounds = before.saturating_sub(next).div_ceil(workers);
        total += cycles * rounds as f64;
        next += rounds * workers;
    }
    total
}
