//! What a configuration costs: which are legal, what they need, and a prediction of their time.
//!
//! The prediction counts, for every tile, blocks to expand, blocks to multiply and passes over the sums, at rates that
//! the kernel's author measured once; adds what ping-pong cannot hide; spreads the tiles over the threads; and takes the
//! time that the weights need from memory where that is longer. It has to rank configurations, not to be right to the
//! microsecond.

use format::BLOCK;

use super::kernel::{Kernel, Lanes};
use super::pack::{CHUNK, COLUMNS};
use crate::config::Tile;
use crate::{Config, Cost, Error, Problem, Result, Shape, Strategy};

/// Bytes a second that one thread reads from memory, and all together.
const THREAD_BANDWIDTH: f64 = 15e9;
const MACHINE_BANDWIDTH: f64 = 200e9;
/// Bytes a second of sums carried from one stretch of K to the next, through the second-level cache.
const SUM_BANDWIDTH: f64 = 30e9;
/// Prepared tokens that a core's second-level cache keeps while it walks along K.
const TOKEN_CACHE: usize = 1 << 20;
/// Bytes a second of prepared tokens beyond that.
const TOKEN_BANDWIDTH: f64 = 12e9;
/// What a tile costs to start and a run to spread over threads.
const TILE_OVERHEAD: f64 = 1e-6;
const RUN_OVERHEAD: f64 = 10e-6;
/// The most memory that one thread may work in.
const SCRATCH_LIMIT: usize = 64 << 20;
const STAGES: std::ops::RangeInclusive<usize> = 1..=8;

/// A kernel's sizes and speeds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    rows: usize,
    parts: usize,
    panels: usize,
    block_bytes: usize,
    token_bytes: usize,
    /// Seconds to expand one block of 16 × 16.
    expand: f64,
    /// Seconds to multiply one group of rows with one block.
    multiply: f64,
    /// The part of the expansion that ping-pong hides behind products.
    hidden: f64,
}

impl Rates {
    /// The sizes of a kernel, and the speeds its author measured.
    pub(super) fn of<K: Kernel>(kernel: &K, expand: f64, multiply: f64, hidden: f64) -> Self {
        Self {
            rows: K::ROWS,
            parts: kernel.parts(),
            panels: K::PANELS,
            block_bytes: size_of::<K::Block>(),
            token_bytes: size_of::<K::Token>() * kernel.group_len(K::BLOCKS) / K::BLOCKS,
            expand,
            multiply,
            hidden,
        }
    }

    fn row_groups(&self, tokens: usize) -> usize {
        (tokens * self.parts).div_ceil(self.rows)
    }

    /// Working memory: each thread's slabs and sums, the prepared tokens, and two-pass's planes.
    fn scratch(&self, problem: &Problem, config: &Config, threads: usize) -> usize {
        let tokens = problem.groups().iter().map(|s| s.m).max().unwrap_or(0).min(config.tile.tokens);
        let columns = problem.groups().iter().map(|s| s.n).max().unwrap_or(0).min(config.tile.columns);
        let rows = self.row_groups(tokens) * self.rows;
        let sums = problem.matrices() * columns.div_ceil(COLUMNS) * rows * size_of::<Lanes>();
        let shared: usize = problem
            .groups()
            .iter()
            .map(|s| {
                let planes = if config.strategy == Strategy::TwoPass { 8 * s.m * s.n } else { 0 };
                self.row_groups(s.m) * s.k / BLOCK * self.token_bytes + planes
            })
            .sum();
        threads * (self.slabs(config) + sums) + shared
    }

    fn slabs(&self, config: &Config) -> usize {
        config.stages * self.panels * config.depth / BLOCK * self.block_bytes
    }
}

/// Configurations worth trying: the shapes of tile that fit the tokens and the threads, each in every strategy.
pub(super) fn candidates(problem: &Problem, rates: &Rates, threads: usize) -> Vec<Config> {
    let largest = problem.groups().iter().map(|s| s.m).max().unwrap_or(0).max(1);
    let whole = largest.next_multiple_of(rows_multiple(rates)).min(512);
    let tokens = [64, 128, 256].into_iter().filter(|&t| t < whole).chain([whole]);
    let mut configs = Vec::new();
    for tokens in tokens {
        for columns in [32, 128, 512] {
            for depth in [128, 256, 512] {
                for (strategy, stages) in Strategy::ALL.into_iter().zip([1, 1, 1, 2]) {
                    let config = Config { strategy, tile: Tile { tokens, columns }, depth, stages };
                    configs.push(config);
                }
            }
        }
    }
    configs.retain(|config| legal(problem, config, rates, threads).is_ok());
    configs
}

/// The least number of tokens that fills whole groups of prepared rows.
fn rows_multiple(rates: &Rates) -> usize {
    rates.rows
}

/// Says why a configuration cannot be run.
fn legal(problem: &Problem, config: &Config, rates: &Rates, threads: usize) -> Result<usize, String> {
    let Config { strategy, tile, depth, stages } = *config;
    if tile.tokens == 0 || tile.tokens % rows_multiple(rates) != 0 {
        return Err(format!("a tile has {} tokens; this backend takes multiples of {}", tile.tokens, rates.rows));
    }
    if tile.columns == 0 || tile.columns % COLUMNS != 0 {
        return Err(format!(
            "a tile has {} columns; weights lie in panels of {COLUMNS}, take a multiple",
            tile.columns
        ));
    }
    if depth == 0 || depth % CHUNK != 0 {
        return Err(format!("the depth is {depth}; weights lie in chunks of {CHUNK} along K, take a multiple"));
    }
    if !STAGES.contains(&stages) {
        return Err(format!("{stages} stages; take {} to {}", STAGES.start(), STAGES.end()));
    }
    if strategy == Strategy::PingPong && stages < 2 {
        return Err("ping-pong with one stage has nowhere to expand the next panel; take at least two stages".into());
    }
    let sums = tile.tokens.checked_mul(rates.parts * 8).and_then(|bytes| bytes.checked_mul(tile.columns));
    let slabs = depth.checked_mul(stages * rates.panels).and_then(|k| k.checked_mul(rates.block_bytes / BLOCK));
    match sums.zip(slabs).and_then(|(sums, slabs)| sums.checked_add(slabs)) {
        Some(bytes) if bytes <= SCRATCH_LIMIT => Ok(rates.scratch(problem, config, threads)),
        _ => Err(format!(
            "a thread would need more than {} MB to work in; take a smaller tile or depth",
            SCRATCH_LIMIT >> 20
        )),
    }
}

/// Legality and cost of a configuration.
pub(super) fn check(
    backend: &'static str,
    problem: &Problem,
    config: &Config,
    rates: &Rates,
    threads: usize,
) -> Result<Cost> {
    let scratch_bytes =
        legal(problem, config, rates, threads).map_err(|reason| Error::Illegal { backend, config: *config, reason })?;
    let mut tiles = 0.0;
    let (mut expansion, mut products, mut traffic) = (0.0, 0.0, 0.0);
    for shape in problem.groups().iter().filter(|s| s.m > 0) {
        let work = group_work(shape, problem, config, rates);
        tiles += work.tiles;
        expansion += work.expansion;
        products += work.products;
        traffic += work.traffic;
    }
    let hidden = if config.strategy == Strategy::PingPong { rates.hidden * expansion.min(products) } else { 0.0 };
    let computing = expansion + products + traffic - hidden + tiles * TILE_OVERHEAD;
    // The last round of tiles may leave threads idle.
    let threads = threads as f64;
    let spread = if tiles > 0.0 { (tiles / threads).ceil() / tiles } else { 1.0 };
    let memory = problem.bytes() / (threads * THREAD_BANDWIDTH).min(MACHINE_BANDWIDTH);
    let computing_seconds = computing * spread;
    let bound_by = if memory > computing_seconds {
        "memory"
    } else if products >= expansion && products >= traffic {
        "products"
    } else if expansion >= traffic {
        "dequantisation"
    } else {
        "cache traffic"
    };
    Ok(Cost { seconds: memory.max(computing_seconds) + RUN_OVERHEAD, bound_by, scratch_bytes })
}

/// Seconds of one thread, for a whole group.
struct Work {
    tiles: f64,
    expansion: f64,
    products: f64,
    traffic: f64,
}

fn group_work(shape: &Shape, problem: &Problem, config: &Config, rates: &Rates) -> Work {
    let token_tiles = shape.m.div_ceil(config.tile.tokens);
    let column_tiles = shape.n.div_ceil(config.tile.columns);
    let panels = (problem.matrices() * shape.n.div_ceil(COLUMNS)) as f64;
    let blocks = (shape.k / BLOCK) as f64;
    let row_groups = rates.row_groups(shape.m) as f64;
    let stretches = shape.k.div_ceil(config.depth) as f64;
    let passes =
        if matches!(config.strategy, Strategy::TwoPass | Strategy::Sequential) { problem.matrices() } else { 1 };

    let sums = 2.0 * stretches * panels * row_groups * (rates.rows * size_of::<Lanes>()) as f64 / SUM_BANDWIDTH;
    let planes =
        if config.strategy == Strategy::TwoPass { 16.0 * (shape.m * shape.n) as f64 / TOKEN_BANDWIDTH } else { 0.0 };
    // A tile walks all its tokens once for every slab; one stretch of K of them is what has to stay near.
    let tile_groups = rates.row_groups(shape.m.min(config.tile.tokens));
    let slabs = config.tile.columns.min(shape.n).div_ceil(COLUMNS) * problem.matrices() / rates.panels;
    let kept_k = if slabs > 1 { config.depth } else { shape.k };
    let far = tile_groups * kept_k / BLOCK * rates.token_bytes > TOKEN_CACHE;
    let token_walks = if slabs > 1 { column_tiles as f64 } else { panels / rates.panels as f64 };
    let token_bytes = row_groups * blocks * rates.token_bytes as f64 * passes as f64;
    let tokens = token_bytes * if far || slabs > 1 { token_walks } else { 1.0 } / TOKEN_BANDWIDTH;
    Work {
        tiles: (token_tiles * column_tiles * if config.strategy == Strategy::TwoPass { 2 } else { 1 }) as f64,
        expansion: token_tiles as f64 * panels * blocks * rates.expand,
        products: row_groups * panels * blocks * rates.multiply,
        traffic: sums + planes + tokens,
    }
}
