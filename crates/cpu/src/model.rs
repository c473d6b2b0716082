//! What a configuration costs: which are legal, what they need, and a prediction of their time.
//!
//! The prediction counts, for every tile, blocks to expand, blocks to multiply and passes over the sums, at speeds that
//! the kernel's author measured once; spreads the tiles over the threads; and takes the time that the weights need from
//! memory where that is longer. It has to rank configurations, not to be right to the
//! microsecond.

use format::BLOCK;

use super::kernel::Kernel;
use super::pack::{CHUNK, COLUMNS};
use super::schedule::OWN_TOKENS;
use super::sums::Lanes;
use op::Tile;
use op::{Config, Cost, Epilogue, Error, Problem, Result, Schedule, Shape, Strategy};

/// Bytes a second that one thread reads from memory, and all together.
const THREAD_BANDWIDTH: f64 = 13e9;
const MACHINE_BANDWIDTH: f64 = 200e9;
/// Bytes a second of sums carried from one stretch of K to the next, and of planes between passes.
const SUM_BANDWIDTH: f64 = 30e9;
const PLANE_BANDWIDTH: f64 = 10e9;
/// What a tile costs to start and a run to spread over threads.
const TILE_OVERHEAD: f64 = 1e-6;
const RUN_OVERHEAD: f64 = 10e-6;
/// The part of computing that shows although memory takes longer, or the other way round.
const UNHIDDEN: f64 = 0.1;
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
    speed: Speed,
    /// The speed of [`Kernel::stream`], and the shapes of tile it takes: tokens and columns.
    stream: Option<(Speed, &'static [(usize, usize)])>,
    resident: Option<Resident>,
}

/// The speed of [`Kernel::resident`], and the tiles that it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub speed: Speed,
    pub depth: usize,
    /// Weights are expanded once for so many groups of rows.
    pub groups: usize,
    /// The most panels, of all matrices, and the most groups of rows of a tile.
    pub panels: usize,
    pub tile_groups: usize,
}

/// What a kernel's author measured, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// To expand one block of 16 × 16.
    pub expand: f64,
    /// To multiply one group of rows with one block.
    pub multiply: f64,
}

impl Rates {
    /// The sizes of a kernel, and its speed.
    pub(super) fn of<K: Kernel>(kernel: &K, speed: Speed) -> Self {
        Self {
            rows: K::ROWS,
            parts: kernel.parts(),
            panels: K::PANELS,
            block_bytes: size_of::<K::Block>(),
            token_bytes: size_of::<K::Token>() * kernel.group_len(K::BLOCKS) / K::BLOCKS,
            speed,
            stream: None,
            resident: None,
        }
    }

    /// With a stream for tiles of these shapes.
    pub(super) fn with_stream(self, speed: Speed, tiles: &'static [(usize, usize)]) -> Self {
        Self { stream: Some((speed, tiles)), ..self }
    }

    /// With a loop for tiles of many tokens and columns.
    pub(super) fn with_resident(self, resident: Resident) -> Self {
        Self { resident: Some(resident), ..self }
    }

    /// Whether a configuration is one whose tokens stay in the first-level cache.
    fn resides(&self, config: &Config, matrices: usize) -> Option<Resident> {
        let fits = |resident: &Resident| {
            config.strategy == Strategy::PingPong
                && (config.depth, config.stages) == (resident.depth, 2)
                && self.row_groups(config.tile.tokens) <= resident.tile_groups
                && (resident.panels / 2..=resident.panels).contains(&(matrices * config.tile.columns / COLUMNS))
        };
        self.resident.filter(fits)
    }

    /// Whether a configuration is one that the kernel streams.
    fn streams(&self, config: &Config) -> Option<Speed> {
        let (speed, tiles) = self.stream?;
        let shape = (config.tile.tokens * self.parts, config.tile.columns);
        let streamed = config.strategy == Strategy::PingPong && config.depth == CHUNK && config.stages == 2;
        (streamed && tiles.contains(&shape)).then_some(speed)
    }

    fn row_groups(&self, tokens: usize) -> usize {
        (tokens * self.parts).div_ceil(self.rows)
    }

    /// Working memory: each thread's slabs, sums and tokens, the prepared tokens of all, and two-pass's planes.
    fn scratch(&self, problem: &Problem, config: &Config, threads: usize) -> usize {
        let tokens = problem.groups().iter().map(|s| s.m).max().unwrap_or(0).min(config.tile.tokens);
        let columns = problem.groups().iter().map(|s| s.n).max().unwrap_or(0).min(config.tile.columns);
        let rows = self.row_groups(tokens) * self.rows;
        let staged = if config.epilogue == Epilogue::Staged { 1 } else { 0 };
        let sums = (problem.matrices() * rows + staged) * columns.div_ceil(COLUMNS) * size_of::<Lanes>();
        let shared: usize = problem
            .groups()
            .iter()
            .map(|s| {
                let planes = if config.strategy == Strategy::TwoPass { 8 * s.m * s.n } else { 0 };
                self.row_groups(s.m) * s.k / BLOCK * self.token_bytes + planes
            })
            .sum();
        let deepest = problem.groups().iter().map(|s| s.k).max().unwrap_or(0);
        // The most tokens and the deepest K may be of different groups, whose product nobody has checked.
        let copy = (rows / self.rows).saturating_mul(deepest / BLOCK).saturating_mul(self.token_bytes);
        let copy = if threads > 1 && copy <= OWN_TOKENS { copy } else { 0 };
        threads.saturating_mul(self.slabs(config) + sums + copy).saturating_add(shared)
    }

    fn slabs(&self, config: &Config) -> usize {
        config.stages * self.panels * config.depth / BLOCK * self.block_bytes
    }
}

/// Configurations worth trying: tiles of all tokens or of some, narrow and wide, in every strategy; and those that the
/// kernel has tighter loops for.
pub(super) fn candidates(problem: &Problem, rates: &Rates, threads: usize) -> Vec<Config> {
    let largest = problem.groups().iter().map(|s| s.m).max().unwrap_or(0).max(1);
    let whole = largest.next_multiple_of(rates.rows).min(512);
    let tokens = || [64, 128, 256].into_iter().filter(|&t| t < whole).chain([whole]);
    let mut configs = Vec::new();
    for tokens in tokens() {
        for (columns, depth) in [(32, 128), (32, 256), (128, 256), (512, 256)] {
            for (strategy, stages) in Strategy::ALL.into_iter().zip([1, 1, 1, 2]) {
                configs.push(plain(strategy, Tile { tokens, columns }, depth, stages));
            }
        }
    }
    let streamed = rates.stream.map_or(&[][..], |(_, tiles)| tiles);
    for &(rows, columns) in streamed.iter().filter(|(rows, _)| rows % rates.parts == 0) {
        let tile = Tile { tokens: rows / rates.parts, columns };
        configs.push(plain(Strategy::PingPong, tile, CHUNK, 2));
    }
    if let Some(resident) = rates.resident {
        let columns = resident.panels / problem.matrices() * COLUMNS;
        let config = |tokens| plain(Strategy::PingPong, Tile { tokens, columns }, resident.depth, 2);
        configs.extend(tokens().map(config));
    }
    configs.retain(|config| permitted(problem, config, rates, threads).is_ok());
    configs
}

/// A configuration with the epilogue and the schedule that are simplest: the model does not tell the others from them.
fn plain(strategy: Strategy, tile: Tile, depth: usize, stages: usize) -> Config {
    Config { strategy, tile, depth, stages, epilogue: Epilogue::Direct, schedule: Schedule::PerTile }
}

/// The working memory of a configuration, or why it cannot be run.
fn permitted(problem: &Problem, config: &Config, rates: &Rates, threads: usize) -> Result<usize, String> {
    let Config { strategy, tile, depth, stages, epilogue, schedule } = *config;
    // Whatever was asked for: only what is left over whole groups of rows decides.
    let whole_groups = |tokens: usize| (tokens % rates.rows * rates.parts).is_multiple_of(rates.rows);
    if tile.tokens == 0 || !whole_groups(tile.tokens) {
        let multiple = (1..=rates.rows).find(|&tokens| whole_groups(tokens)).unwrap_or(rates.rows);
        return Err(format!("a tile has {} tokens; for these activations take a multiple of {multiple}", tile.tokens));
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
    if epilogue == Epilogue::Bulk {
        return Err("a CPU has no copy engine; take epilogue=direct or epilogue=staged".into());
    }
    if schedule == Schedule::SplitK {
        return Err("a sum is added up by one thread, in one order; take schedule=tile or schedule=persistent".into());
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

/// The working memory of a configuration that is legal.
pub(super) fn legal(
    backend: &'static str,
    problem: &Problem,
    config: &Config,
    rates: &Rates,
    threads: usize,
) -> Result<usize> {
    permitted(problem, config, rates, threads).map_err(|reason| Error::Illegal { backend, config: *config, reason })
}

/// Legality and cost of a configuration.
pub(super) fn check(
    backend: &'static str,
    problem: &Problem,
    config: &Config,
    rates: &Rates,
    threads: usize,
) -> Result<Cost> {
    let scratch_bytes = legal(backend, problem, config, rates, threads)?;
    let mut tiles = 0.0;
    let (mut expansion, mut products, mut traffic) = (0.0, 0.0, 0.0);
    for shape in problem.groups().iter().filter(|s| s.m > 0) {
        let work = group_work(shape, problem, config, rates);
        tiles += work.tiles;
        expansion += work.expansion;
        products += work.products;
        traffic += work.traffic;
    }
    let computing = expansion + products + traffic + tiles * TILE_OVERHEAD;
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
    // The shorter of the two hides behind the longer one, but not quite.
    let seconds = memory.max(computing_seconds) + UNHIDDEN * memory.min(computing_seconds) + RUN_OVERHEAD;
    Ok(Cost { seconds, bound_by, copying: 0.0, scratch_bytes })
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
    // The tighter loops take whole chunks only.
    let whole = shape.k.is_multiple_of(CHUNK);
    let streamed = rates.streams(config).filter(|_| whole);
    let resident = rates.resides(config, problem.matrices()).filter(|_| whole);
    let speed = streamed.or(resident.map(|resident| resident.speed)).unwrap_or(rates.speed);
    // Between two stretches of K sums are written and read again, unless they stay in registers or that has been counted
    // with the products.
    let counted = streamed.is_some() || resident.is_some();
    let stretches = if counted { 0.0 } else { shape.k.div_ceil(config.depth) as f64 };
    // Tokens are walked in parts of a tile where the loop says so, and each part has its weights expanded.
    let expanded = resident.map_or(token_tiles, |resident| {
        let parts = |tokens: usize| rates.row_groups(tokens).div_ceil(resident.groups);
        shape.m / config.tile.tokens * parts(config.tile.tokens) + parts(shape.m % config.tile.tokens)
    });
    let sums = 2.0 * stretches * panels * row_groups * (rates.rows * size_of::<Lanes>()) as f64 / SUM_BANDWIDTH;
    let planes = if config.strategy == Strategy::TwoPass { 16 * shape.m * shape.n } else { 0 };
    // Tokens are walked once for every slab, and for both matrices again where those are apart.
    let apart = matches!(config.strategy, Strategy::TwoPass | Strategy::Sequential);
    let repeated = if apart { problem.matrices() as f64 } else { 1.0 };
    let tokens = repeated * row_groups * blocks * rates.token_bytes as f64;
    Work {
        tiles: (token_tiles * column_tiles * if config.strategy == Strategy::TwoPass { 2 } else { 1 }) as f64,
        expansion: expanded as f64 * panels * blocks * speed.expand,
        products: row_groups * panels * blocks * speed.multiply,
        traffic: sums + (planes as f64 + tokens) / PLANE_BANDWIDTH,
    }
}
