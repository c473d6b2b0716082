//! Which configurations the GPU kernels can run, and what they should cost on an H200.
//!
//! The model is arithmetic on published and measured rates: a multiprocessor issues the products of 64 weight rows, T
//! tokens and 16 of K in T/2 cycles, or in as long as dequantising takes, about 24 + T/3; one block runs on each at a time,
//! so blocks come in waves; and the weights come from memory once per launch.

use ptx::Kernel;

use super::sm90::{DEPTH, ROWS};
use super::tokens::MOST_PARTS;
use super::{Which, join, sm90};
use crate::{Activation, Config, Cost, Epilogue, Error, Problem, Result, Schedule, Shape, Strategy, Tile};

/// Multiprocessors of an H200.
const MULTIPROCESSORS: usize = 132;
/// Cycles per second that it keeps up under load.
const CLOCK: f64 = 1.7e9;
/// Bytes per second from its memory.
const BANDWIDTH: f64 = 4.0e12;
/// Seconds that each launch takes besides.
const LAUNCH: f64 = 3e-6;

/// Every size worth trying, with as many stages as there is room for, up to eight: more than hides a copy's latency.
pub(super) fn candidates(backend: &'static str, problem: &Problem) -> Vec<Config> {
    let mut configs = Vec::new();
    for tokens in [8, 16, 32, 64, 128, 256] {
        for warpgroups in 1..=3 {
            let most = sm90::Config { tokens, stages: 2, warpgroups }.most_stages();
            let tile = Tile { tokens: tokens as usize, columns: (ROWS * warpgroups) as usize };
            let (strategy, depth) = (Strategy::TwoPass, DEPTH as usize);
            let (epilogue, schedule) = (Epilogue::Direct, Schedule::PerTile);
            let config = Config { strategy, tile, depth, stages: most.min(8) as usize, epilogue, schedule };
            if check(backend, problem, &config).is_ok() {
                configs.push(config);
            }
        }
    }
    configs
}

/// Whether a configuration is legal for a problem, and what it should cost.
pub(super) fn check(backend: &'static str, problem: &Problem, config: &Config) -> Result<Cost> {
    let illegal = |reason| Error::Illegal { backend, config: *config, reason };
    let multiply = multiply_config(config).map_err(illegal)?;
    let parts = |most: bool| match problem.activation() {
        Activation::NvFp4 | Activation::F16 => 1,
        _ if most => MOST_PARTS,
        Activation::BF16 => 1,
        Activation::F32 => 3,
    };
    for shape in problem.groups() {
        check_shape(shape, &multiply, parts(true)).map_err(illegal)?;
    }
    let matrices = problem.matrices();
    let cost = |shape: &Shape| group_cost(shape, &multiply, parts(false), matrices);
    let (compute, memory): (f64, f64) =
        problem.groups().iter().map(cost).fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let launches = problem.groups().iter().filter(|shape| shape.m > 0).count() * (matrices + 1);
    let scratch = problem.groups().iter().map(|s| parts(false) * s.m * (matrices * 4 * s.n + 2 * s.k)).max();
    Ok(Cost {
        seconds: compute.max(memory) + launches as f64 * LAUNCH,
        bound_by: if compute > memory { "tensor cores" } else { "device memory" },
        scratch_bytes: scratch.unwrap_or(0),
    })
}

/// The GEMM that a configuration asks for, or why there is none.
pub(super) fn multiply_config(config: &Config) -> Result<sm90::Config, String> {
    if config.strategy != Strategy::TwoPass {
        return Err("on GPUs only strategy=two-pass is built".to_owned());
    }
    if (config.epilogue, config.schedule) != (Epilogue::Direct, Schedule::PerTile) {
        return Err("on GPUs only epilogue=direct with schedule=tile is built".to_owned());
    }
    if config.depth != DEPTH as usize {
        return Err(format!("a stage holds {DEPTH} of K; ask for depth={DEPTH}"));
    }
    let rows = ROWS as usize;
    if !config.tile.columns.is_multiple_of(rows) {
        let columns = config.tile.columns;
        return Err(format!("a tile of {columns} columns; each warpgroup takes {rows}, so ask for 64, 128 or 192"));
    }
    let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let (tokens, stages) = (narrow(config.tile.tokens), narrow(config.stages));
    let multiply = sm90::Config { tokens, stages, warpgroups: narrow(config.tile.columns / rows) };
    multiply.check().map_err(|error| error.to_string())?;
    Ok(multiply)
}

/// Whether a group's sizes fit the kernels' 32-bit arguments and the grid.
fn check_shape(shape: &Shape, multiply: &sm90::Config, parts: usize) -> Result<(), String> {
    let most_tokens = 65535 * multiply.tokens as usize / parts;
    if shape.m > most_tokens {
        return Err(format!("{} tokens; such tiles cover at most {most_tokens} in one launch, split them", shape.m));
    }
    let most = i32::MAX as usize;
    if shape.n > most || shape.k > most || shape.m * shape.n / join::THREADS as usize >= most {
        return Err(format!("{shape} is beyond 32-bit sizes; split it"));
    }
    Ok(())
}

/// Seconds of the tensor cores and seconds of memory for one group.
fn group_cost(shape: &Shape, multiply: &sm90::Config, parts: usize, matrices: usize) -> (f64, f64) {
    let Shape { m, n, k } = *shape;
    let (tokens, warpgroups) = (f64::from(multiply.tokens), f64::from(multiply.warpgroups));
    let blocks = n.div_ceil((ROWS * multiply.warpgroups) as usize) * (m * parts).div_ceil(multiply.tokens as usize);
    let waves = blocks.div_ceil(MULTIPROCESSORS);
    let cycles = warpgroups * k.div_ceil(16) as f64 * (tokens / 2.0).max(24.0 + tokens / 3.0);
    let filling = 1500.0;
    let compute = matrices as f64 * waves as f64 * (cycles + filling) / CLOCK;
    let weights = matrices * super::pack::packed_bytes(n, k) * usize::from(m > 0);
    let planes = parts * m * (2 * k + matrices * 8 * n) + 4 * m * n;
    // A memory read by few blocks is not read at its full speed.
    let reading = (blocks as f64 / MULTIPROCESSORS as f64).clamp(0.05, 1.0);
    (compute, (weights as f64 / reading + planes as f64) / BANDWIDTH)
}

/// The kernels that a configuration runs for a problem, in the order in which they run.
pub fn kernels(problem: &Problem, config: &Config) -> Result<Vec<Kernel>> {
    let illegal = |reason| Error::Illegal { backend: super::cuda::NAME, config: *config, reason };
    let multiply = Which::Multiply(multiply_config(config).map_err(illegal)?);
    let join = Which::Join(join::Config::new(problem.gate(), problem.output()));
    [multiply, join].into_iter().map(Which::build).collect()
}

/// How many times a block takes a step over 64 of K, in all.
#[cfg(feature = "sim")]
pub(super) fn tile_steps(problem: &Problem, config: &Config) -> usize {
    let parts = if problem.activation() == Activation::F32 { 3 } else { 1 };
    let tiles = |s: &Shape| (s.m * parts).div_ceil(config.tile.tokens) * s.n.div_ceil(config.tile.columns);
    let steps = |s: &Shape| tiles(s) * s.k.div_ceil(DEPTH as usize) * problem.matrices();
    problem.groups().iter().map(steps).sum()
}
