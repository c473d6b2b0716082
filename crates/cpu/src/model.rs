//! What a configuration costs: which are legal, what they need, and a prediction of their time.
//!
//! The prediction counts, for every tile, blocks to expand, blocks to multiply and passes over the sums, at speeds that
//! were measured on this machine or else by the kernel's author; spreads the tiles over the threads; and takes the time
//! that the weights need from memory where that is longer. It has to rank configurations, not to be right to the
//! microsecond. For the same speeds it always says the same.

use format::BLOCK;

use super::kernel::Kernel;
use super::pack::{CHUNK, COLUMNS, row_bytes};
use super::schedule::OWN_TOKENS;
use super::speeds::{Bandwidth, Speed, Speeds};
use super::sums::Lanes;
use op::{Config, Cost, Epilogue, Error, Own, Phase, Precision, Problem, Result, Schedule, Shape, Strategy, Tile};

/// Bytes per second of sums carried from one stretch of K to the next, where they and the tokens of a stretch stay near
/// (in an L2 of the smaller kind) and where they do not; and of planes between passes.
const SUM_BANDWIDTH: f64 = 30e9;
const FAR_SUM_BANDWIDTH: f64 = 15e9;
const PLANE_BANDWIDTH: f64 = 10e9;
const NEAR: usize = 1 << 20;
/// Bytes per second of tokens that are read again for every tile of columns; most of it hides behind products.
const TOKEN_BANDWIDTH: f64 = 150e9;
/// How often a matrix may be read, on average, for its tiles of tokens to be streamed. A stream reads packed words once
/// per tile and expands them each time: that is the best way as long as a cache has them, and up to 1.5 times slower
/// than one expansion for all tokens where they come from memory, which no speed that is measured in a cache tells.
const STREAM_READINGS: usize = 8;
/// How many times the least price by the author's speeds a way may have to be weighed by those of this machine: they
/// are measured in moments that may be unlike each other, and a way that is wrong by more than this is never chosen.
const PLAUSIBLE: f64 = 1.5;
/// What a tile costs to start and a run to spread over threads.
const TILE_OVERHEAD: f64 = 0.7e-6;
const RUN_OVERHEAD: f64 = 10e-6;
/// The part of the first reading of weights from memory that shows although computing takes longer, or the other way
/// round: where they are expanded slab by slab, and where they are streamed.
const UNHIDDEN_WALK: f64 = 0.9;
const UNHIDDEN_STREAM: f64 = 0.5;
/// The part of a tile by which the slowest thread is behind the others in the end. Were all equally fast, the last of
/// sixteen would be nearly half a tile behind their mean; processors that others use differ by up to twice.
const UNEVEN: f64 = 0.7;
/// The most memory that one thread may work in.
const SCRATCH_LIMIT: usize = 64 << 20;
const STAGES: std::ops::RangeInclusive<usize> = 1..=8;

/// A kernel's sizes and speeds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    kernel: &'static str,
    sizes: Sizes,
    parts: usize,
    panels: usize,
    /// Seconds to scale, gate, round and store one result.
    finish: f64,
    speed: Speed,
    /// The speed of [`Kernel::stream`], and the shapes of tile it takes: tokens and columns.
    stream: Option<(Speed, &'static [(usize, usize)])>,
    /// Where tiles of any shape are streamed, how many rows share what is done once per block.
    together: Option<usize>,
    /// The sizes of another kernel that has all configurations with a depth of one chunk.
    few: Option<Sizes>,
    resident: Option<Resident>,
}

/// What a kernel's memory is made of.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rows: usize,
    block_bytes: usize,
    /// Bytes of a group of prepared rows, K being so many blocks.
    group_bytes: fn(usize) -> usize,
}

impl Sizes {
    fn of<K: Kernel>() -> Self {
        Self {
            rows: K::ROWS,
            block_bytes: size_of::<K::Block>(),
            group_bytes: |blocks| K::group_len(blocks).saturating_mul(size_of::<K::Token>()),
        }
    }
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

/// One of a kernel's loops, and two configurations that it computes and that differ in their tokens.
pub(super) struct Loop {
    pub name: &'static str,
    pub stated: Speed,
    pub configs: [Config; 2],
}

impl Rates {
    /// The sizes of a kernel, what it is called among those of its instruction set, and what its author found:
    /// seconds per result, and the speed of the loop that takes every shape.
    pub(super) fn of<K: Kernel>(kernel: &K, name: &'static str, finish: f64, speed: Speed) -> Self {
        Self {
            kernel: name,
            sizes: Sizes::of::<K>(),
            parts: kernel.parts(),
            panels: K::PANELS,
            finish,
            speed,
            stream: None,
            together: K::STREAM_ROWS,
            few: None,
            resident: None,
        }
    }

    /// With a stream for tiles of these shapes.
    pub(super) fn with_stream(self, speed: Speed, tiles: &'static [(usize, usize)]) -> Self {
        Self { stream: Some((speed, tiles)), ..self }
    }

    /// With another kernel for a depth of one chunk.
    pub(super) fn with_few<K: Kernel>(self, _: &K, speed: Speed, tiles: &'static [(usize, usize)]) -> Self {
        Self { few: Some(Sizes::of::<K>()), together: K::STREAM_ROWS, ..self.with_stream(speed, tiles) }
    }

    /// The same with the sizes of the kernel that computes configurations of this depth.
    fn for_depth(self, depth: usize) -> Self {
        Self { sizes: self.few.filter(|_| depth == CHUNK).unwrap_or(self.sizes), ..self }
    }

    /// With a loop for tiles of many tokens and columns.
    pub(super) fn with_resident(self, resident: Resident) -> Self {
        Self { resident: Some(resident), ..self }
    }

    /// The same at the speeds that were measured, where they were.
    pub(super) fn at(self, backend: &str, speeds: &Speeds) -> Self {
        let find = |way: &str, what: &str, stated| speeds.find([backend, self.kernel, way, what]).unwrap_or(stated);
        let measured = |way: &str, stated: Speed| Speed {
            expand: find(way, "expand", stated.expand),
            multiply: find(way, "multiply", stated.multiply),
        };
        Self {
            finish: speeds.find([backend, self.kernel, "finish"]).unwrap_or(self.finish),
            speed: measured("walk", self.speed),
            stream: self.stream.map(|(speed, tiles)| (measured("stream", speed), tiles)),
            resident: self.resident.map(|each| Resident { speed: measured("resident", each.speed), ..each }),
            ..self
        }
    }

    /// The same with every loop at one speed, and results as well.
    fn at_once(self, speed: Speed, finish: f64) -> Self {
        Self {
            finish,
            speed,
            stream: self.stream.map(|(_, tiles)| (speed, tiles)),
            resident: self.resident.map(|each| Resident { speed, ..each }),
            ..self
        }
    }

    /// What the kernel is called, and what its author found one result to take.
    pub(super) fn kernel(&self) -> (&'static str, f64) {
        (self.kernel, self.finish)
    }

    /// The kernel's loops, the one for every shape first.
    pub(super) fn loops(&self) -> Vec<Loop> {
        let configs = |strategy, groups: [usize; 2], columns, depth, stages| {
            let tokens = |groups: usize| (groups * self.sizes.rows).div_ceil(self.parts);
            groups.map(|groups| plain(strategy, Tile { tokens: tokens(groups), columns }, depth, stages))
        };
        let walk = configs(Strategy::Interleaved, [1, 8], 128, 256, 1);
        let mut loops = vec![Loop { name: "walk", stated: self.speed, configs: walk }];
        if let Some((stated, [first, .., last])) = self.stream {
            let tile = |&(rows, columns): &(usize, usize)| Tile { tokens: rows / self.parts, columns };
            let configs = [first, last].map(|shape| plain(Strategy::PingPong, tile(shape), CHUNK, 2));
            loops.push(Loop { name: "stream", stated, configs });
        }
        if let Some(Resident { speed: stated, depth, groups, panels, .. }) = self.resident {
            let configs = configs(Strategy::PingPong, [1, groups], panels / 2 * COLUMNS, depth, 2);
            loops.push(Loop { name: "resident", stated, configs });
        }
        loops
    }

    /// Whether a configuration is one whose tokens stay in L1.
    fn resides(&self, config: &Config, matrices: usize) -> Option<Resident> {
        let fits = |resident: &Resident| {
            config.strategy == Strategy::PingPong
                && (config.depth, config.stages) == (resident.depth, 2)
                && self.row_groups(config.tile.tokens) <= resident.tile_groups
                && (resident.panels / 2..=resident.panels).contains(&(matrices * config.tile.columns / COLUMNS))
        };
        self.resident.filter(fits)
    }

    /// Whether a configuration is one that the kernel streams, or computes like that.
    fn streams(&self, config: &Config) -> Option<Speed> {
        let (speed, tiles) = self.stream?;
        let shape = (config.tile.tokens * self.parts, config.tile.columns);
        let streamed = config.strategy == Strategy::PingPong && config.stages == 2 && tiles.contains(&shape);
        (config.depth == CHUNK && (streamed || self.together.is_some())).then_some(speed)
    }

    /// Whether a tile's sums, with the tokens of a stretch of K, stay near from one stretch to the next.
    fn sums_stay_near(&self, shape: &Shape, problem: &Problem, config: &Config) -> bool {
        let groups = self.row_groups(shape.m.min(config.tile.tokens));
        let panels = shape.n.min(config.tile.columns).div_ceil(COLUMNS);
        let sums = problem.matrices() * panels * groups * self.sizes.rows * size_of::<Lanes>();
        let tokens = groups.saturating_mul((self.sizes.group_bytes)(shape.k.min(config.depth) / BLOCK));
        sums.saturating_add(tokens) <= NEAR
    }

    /// Tiles worth streaming where the largest group has so many tokens. Those of any shape have all of its tokens, or
    /// as many as share what is done once per block; and one panel or more, since to start a tile takes as long as to
    /// read a few KB.
    fn stream_tiles(&self, largest: usize) -> Vec<Tile> {
        match (self.stream, self.together) {
            (None, _) => Vec::new(),
            (Some(_), Some(together)) => {
                let mut tokens = vec![largest.min(together), largest];
                tokens.dedup();
                let tile = |tokens| move |panels| Tile { tokens, columns: panels * COLUMNS };
                tokens.into_iter().flat_map(|tokens| [1, 2, 4, 8].map(tile(tokens))).collect()
            }
            (Some((_, shapes)), None) => {
                let whole = shapes.iter().filter(|(rows, _)| rows % self.parts == 0);
                whole.map(|&(rows, columns)| Tile { tokens: rows / self.parts, columns }).collect()
            }
        }
    }

    /// How often the blocks of so many tokens are expanded, or looked up, in tiles of `tile` tokens.
    fn expansions(&self, tokens: usize, config: &Config) -> usize {
        let groups = match self.together {
            Some(together) if config.depth == CHUNK => config.tile.tokens.div_ceil(together),
            _ => 1,
        };
        tokens.div_ceil(config.tile.tokens.div_ceil(groups))
    }

    fn row_groups(&self, tokens: usize) -> usize {
        (tokens * self.parts).div_ceil(self.sizes.rows)
    }

    /// Working memory: each thread's slabs, sums and tokens, the prepared tokens of all, and two-pass's planes.
    fn scratch(&self, problem: &Problem, config: &Config, threads: usize) -> usize {
        let tokens = problem.groups().iter().map(|s| s.m).max().unwrap_or(0).min(config.tile.tokens);
        let columns = problem.groups().iter().map(|s| s.n).max().unwrap_or(0).min(config.tile.columns);
        let rows = self.row_groups(tokens) * self.sizes.rows;
        let staged = if config.epilogue == Epilogue::Staged { 1 } else { 0 };
        let sums = (problem.matrices() * rows + staged) * columns.div_ceil(COLUMNS) * size_of::<Lanes>();
        let shared: usize = problem
            .groups()
            .iter()
            .map(|s| {
                let planes = if config.strategy == Strategy::TwoPass { 8 * s.m * s.n } else { 0 };
                self.row_groups(s.m).saturating_mul((self.sizes.group_bytes)(s.k / BLOCK)).saturating_add(planes)
            })
            .fold(0, usize::saturating_add);
        let deepest = problem.groups().iter().map(|s| s.k).max().unwrap_or(0);
        // The most tokens and the deepest K may be of different groups, whose product nobody has checked.
        let copy = (rows / self.sizes.rows).saturating_mul((self.sizes.group_bytes)(deepest / BLOCK));
        let copy = if threads > 1 && copy <= OWN_TOKENS { copy } else { 0 };
        threads.saturating_mul(self.slabs(config) + sums + copy).saturating_add(shared)
    }

    fn slabs(&self, config: &Config) -> usize {
        config.stages * self.panels * config.depth / BLOCK * self.sizes.block_bytes
    }
}

/// Configurations worth trying: tiles of all tokens or of some, narrow and wide, in every strategy; and those that the
/// kernel has tighter loops for. The rates are those that the kernel's author found, and what they price far above the
/// best is left out, whatever this machine's speeds say.
pub(super) fn candidates(problem: &Problem, rates: &Rates, threads: usize) -> Vec<Config> {
    let largest = problem.groups().iter().map(|s| s.m).max().unwrap_or(0).max(1);
    let whole = largest.next_multiple_of(rates.sizes.rows).min(512);
    let tokens = || [64, 128, 256].into_iter().filter(|&t| t < whole).chain([whole]);
    let mut configs = Vec::new();
    for tokens in tokens() {
        for (columns, depth) in [(32, 128), (32, 256), (128, 256), (512, 256)] {
            for (strategy, stages) in Strategy::ALL.into_iter().zip([1, 1, 1, 2]) {
                configs.push(plain(strategy, Tile { tokens, columns }, depth, stages));
            }
        }
    }
    let groups = || problem.groups().iter().filter(|s| s.m > 0);
    let readings = |tokens: usize| groups().map(|s| s.m.div_ceil(tokens)).sum::<usize>();
    for tile in rates.stream_tiles(largest) {
        let at_a_time = rates.together.map_or(tile.tokens, |together| tile.tokens.min(together));
        if readings(at_a_time) <= STREAM_READINGS * groups().count() {
            configs.push(plain(Strategy::PingPong, tile, CHUNK, 2));
        }
    }
    if let Some(resident) = rates.resident {
        let columns = resident.panels / problem.matrices() * COLUMNS;
        let config = |tokens| plain(Strategy::PingPong, Tile { tokens, columns }, resident.depth, 2);
        // Also tiles of whole blocks.
        let block = resident.groups * rates.sizes.rows / rates.parts;
        let blocks =
            [block, 2 * block, 4 * block].into_iter().filter(|&t| t < whole && tokens().all(|other| t != other));
        configs.extend(tokens().chain(blocks).map(config));
    }
    let price = |config: &Config| price(problem, config, rates, Speeds::stated().bandwidth(), threads).seconds;
    let mut priced: Vec<(Config, f64)> = (configs.into_iter())
        .filter(|config| permitted(problem, config, rates, threads).is_ok())
        .map(|config| (config, price(&config)))
        .collect();
    let least = priced.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
    priced.retain(|(_, seconds)| *seconds <= PLAUSIBLE * least);
    priced.into_iter().map(|(config, _)| config).collect()
}

/// A configuration with the epilogue and the schedule that are simplest: the model does not tell the others from them.
fn plain(strategy: Strategy, tile: Tile, depth: usize, stages: usize) -> Config {
    let (epilogue, schedule) = (Epilogue::Direct, Schedule::PerTile);
    Config { strategy, tile, depth, stages, epilogue, schedule, own: Own::NONE }
}

/// The working memory of a configuration, or why it cannot be run.
fn permitted(problem: &Problem, config: &Config, rates: &Rates, threads: usize) -> Result<usize, String> {
    let Config { strategy, tile, depth, stages, schedule, .. } = *config;
    let (rates, rows) = (rates.for_depth(depth), rates.for_depth(depth).sizes.rows);
    // Whatever was asked for: only what is left over whole groups of rows decides.
    let whole_groups = |tokens: usize| (tokens % rows * rates.parts).is_multiple_of(rows);
    if tile.tokens == 0 || !whole_groups(tile.tokens) {
        let multiple = (1..=rows).find(|&tokens| whole_groups(tokens)).unwrap_or(rows);
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
    if schedule == Schedule::SplitK {
        return Err("a sum is added up by one thread, in one order; take schedule=tile or schedule=persistent".into());
    }
    let sums = tile.tokens.checked_mul(rates.parts * 8).and_then(|bytes| bytes.checked_mul(tile.columns));
    let slabs = depth.checked_mul(stages * rates.panels).and_then(|k| k.checked_mul(rates.sizes.block_bytes / BLOCK));
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
    let known = match problem.whole() {
        _ if problem.precision() == Precision::Fp8 => {
            Err("processors multiply exactly only; fp8 tokens are for Hopper GPUs (backend cuda): ask for exact"
                .to_owned())
        }
        None => config.own.check(backend, &[]),
        Some(_) => Err("a processor computes the products of a layer one by one; ask for a plan of each".to_owned()),
    };
    let permitted = known.and_then(|()| permitted(problem, config, rates, threads));
    permitted.map_err(|reason| Error::Illegal { backend, config: Box::new(*config), reason })
}

/// Legality and cost of a configuration.
pub(super) fn check(
    backend: &'static str,
    problem: &Problem,
    config: &Config,
    (rates, bandwidth): (&Rates, Bandwidth),
    threads: usize,
) -> Result<Cost> {
    let scratch_bytes = legal(backend, problem, config, rates, threads)?;
    Ok(Cost { scratch_bytes, ..price(problem, config, rates, bandwidth, threads) })
}

/// The cost of a legal configuration, but for its working memory.
fn price(problem: &Problem, config: &Config, rates: &Rates, bandwidth: Bandwidth, threads: usize) -> Cost {
    let Work { tiles, expansion, products, traffic, results } = work(problem, config, rates);
    let computing = expansion + products + traffic + results + tiles * TILE_OVERHEAD;
    let spread = spread(tiles, passes(problem, config), threads);
    let threads = threads as f64;
    let bandwidth = (threads * bandwidth.thread).min(bandwidth.machine);
    let first = problem.bytes() / bandwidth;
    let memory = first + reread(problem, config) / bandwidth;
    let computing_seconds = computing * spread;
    let bound_by = if memory > computing_seconds {
        "memory"
    } else if products >= expansion && products >= traffic && products >= results {
        "products"
    } else if expansion >= traffic && expansion >= results {
        "dequantisation"
    } else if results >= traffic {
        "results"
    } else {
        "cache traffic"
    };
    // The shorter of the two hides behind the longer one in part. What is read again is in a cache as often as not.
    let unhidden = if rates.streams(config).is_some() { UNHIDDEN_STREAM } else { UNHIDDEN_WALK };
    let seconds = memory.max(computing_seconds) + unhidden * first.min(computing_seconds) + RUN_OVERHEAD;
    Cost { seconds, bound_by, copying: 0.0, scratch_bytes: 0 }
}

/// Passes over the tiles, each of which ends when all are done.
fn passes(problem: &Problem, config: &Config) -> f64 {
    if config.strategy == Strategy::TwoPass { problem.matrices() as f64 } else { 1.0 }
}

/// The part of all tiles' time that passes until the last one is done. A pass's last round may leave threads idle, and
/// threads are not equally fast: a part of one more tile is waited for.
fn spread(tiles: f64, passes: f64, threads: usize) -> f64 {
    let waiting = if threads > 1 { UNEVEN } else { 0.0 };
    if tiles > 0.0 { passes * ((tiles / passes / threads as f64).ceil() + waiting) / tiles } else { 1.0 }
}

/// Bytes of weights that are read again, by every tile of tokens but the first.
fn reread(problem: &Problem, config: &Config) -> f64 {
    let again = |shape: &Shape| shape.m.div_ceil(config.tile.tokens).saturating_sub(1) as f64;
    let weights = |shape: &Shape| (shape.n as f64) * row_bytes(shape.k, problem.scaling().is_mx()) as f64;
    let groups = problem.groups().iter();
    groups.map(|shape| problem.matrices() as f64 * again(shape) * weights(shape)).sum()
}

/// Where the time that [`check`] predicts goes.
pub(super) fn phases(
    backend: &'static str,
    problem: &Problem,
    config: &Config,
    rates: (&Rates, Bandwidth),
    threads: usize,
) -> Result<Vec<Phase>> {
    let all = check(backend, problem, config, rates, threads)?.seconds;
    let Work { tiles, expansion, products, traffic, results } = work(problem, config, rates.0);
    let spread = spread(tiles, passes(problem, config), threads);
    let phase = |what, seconds, bound_by| Phase { what, seconds, bound_by };
    let mut phases = vec![
        phase("dequantising", expansion * spread, "vector units"),
        phase("products", products * spread, "multiplying units"),
        phase("sums and tokens", traffic * spread, "caches"),
        phase("results", results * spread, "vector units"),
        phase("starting", tiles * TILE_OVERHEAD * spread + RUN_OVERHEAD, "threads"),
    ];
    let computing: f64 = phases.iter().map(|phase| phase.seconds).sum();
    phases.push(phase("weights that are waited for", (all - computing).max(0.0), "memory"));
    Ok(phases)
}

/// How often each measured piece of work is done, on one thread, and the seconds that the rest takes.
pub(super) struct Parts {
    pub expansions: f64,
    pub products: f64,
    pub results: f64,
    pub rest: f64,
}

/// What one thread takes for a problem, in parts: the model turned round, for whoever measures speeds by it.
pub(super) fn parts(problem: &Problem, config: &Config, rates: &Rates) -> Parts {
    let units = rates.at_once(Speed { expand: 1.0, multiply: 1.0 }, 1.0);
    let Work { tiles, expansion, products, traffic, results } = work(problem, config, &units);
    Parts { expansions: expansion, products, results, rest: traffic + tiles * TILE_OVERHEAD + RUN_OVERHEAD }
}

/// Seconds of one thread.
#[derive(Default)]
struct Work {
    tiles: f64,
    expansion: f64,
    products: f64,
    traffic: f64,
    results: f64,
}

/// All groups together.
fn work(problem: &Problem, config: &Config, rates: &Rates) -> Work {
    let rates = &rates.for_depth(config.depth);
    let mut total = Work::default();
    for shape in problem.groups().iter().filter(|s| s.m > 0) {
        let work = group_work(shape, problem, config, rates);
        total.tiles += work.tiles;
        total.expansion += work.expansion;
        total.products += work.products;
        total.traffic += work.traffic;
        total.results += work.results;
    }
    total
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
    // Between two stretches of K sums are written and read again, unless they stay in registers or that has been
    // counted with the products.
    let counted = streamed.is_some() || resident.is_some();
    let stretches = if counted { 0.0 } else { shape.k.div_ceil(config.depth) as f64 };
    // Tokens are walked in parts of a tile where the loop says so, and each part has its weights expanded.
    let expanded = resident.map_or(rates.expansions(shape.m, config), |resident| {
        let parts = |tokens: usize| rates.row_groups(tokens).div_ceil(resident.groups);
        shape.m / config.tile.tokens * parts(config.tile.tokens) + parts(shape.m % config.tile.tokens)
    });
    let near = rates.sums_stay_near(shape, problem, config);
    let sum_bandwidth = if near { SUM_BANDWIDTH } else { FAR_SUM_BANDWIDTH };
    let sums = 2.0 * stretches * panels * row_groups * (rates.sizes.rows * size_of::<Lanes>()) as f64 / sum_bandwidth;
    let planes = if config.strategy == Strategy::TwoPass { 16 * shape.m * shape.n } else { 0 };
    // Tokens are walked once for every slab, and for both matrices again where those are apart.
    let apart = matches!(config.strategy, Strategy::TwoPass | Strategy::Sequential);
    let repeated = if apart { problem.matrices() as f64 } else { 1.0 };
    let tokens = repeated * row_groups * (rates.sizes.group_bytes)(shape.k / BLOCK) as f64;
    let again = if counted { 0.0 } else { column_tiles as f64 * tokens / TOKEN_BANDWIDTH };
    Work {
        tiles: (token_tiles * column_tiles) as f64 * passes(problem, config),
        expansion: expanded as f64 * panels * blocks * speed.expand,
        products: row_groups * panels * blocks * speed.multiply,
        traffic: sums + again + (planes as f64 + tokens) / PLANE_BANDWIDTH,
        results: (shape.m * shape.n) as f64 * rates.finish,
    }
}

#[cfg(test)]
mod tests {
    use op::{Activation, Gate, Output};

    use super::*;
    use crate::table;

    /// Seconds that the portable backend's first candidate is predicted to take, at these speeds.
    fn predicted(speeds: &[(&str, f64)]) -> f64 {
        let problem = Problem::new(vec![Shape::new(64, 256, 512)], Gate::Silu, Activation::NvFp4, Output::F16).unwrap();
        let mut entries = Speeds::stated().entries();
        for &(name, number) in speeds {
            entries.retain(|(known, _)| known != name);
            entries.push((name.to_owned(), number));
        }
        let speeds = Speeds::from_entries(&entries).unwrap();
        let backend = table().last().unwrap();
        let rates = backend.rates(problem.activation()).at(backend.name(), &speeds);
        let config = candidates(&problem, &rates, 2)[0];
        check(backend.name(), &problem, &config, (&rates, speeds.bandwidth()), 2).unwrap().seconds
    }

    #[test]
    fn phases_add_up_to_what_is_predicted() {
        for (m, k) in [(1, 4096), (64, 512)] {
            let problem =
                Problem::new(vec![Shape::new(m, 2048, k)], Gate::Silu, Activation::NvFp4, Output::F16).unwrap();
            for backend in table().iter() {
                for config in candidates(&problem, &backend.rates(problem.activation()), 2) {
                    let phases = backend.phases(&problem, &config, 2).unwrap();
                    let (sum, all) = (
                        phases.iter().map(|p| p.seconds).sum::<f64>(),
                        backend.check(&problem, &config, 2).unwrap().seconds,
                    );
                    assert!((sum / all - 1.0).abs() < 1e-9, "{config}: {phases:?} are not {all}");
                    assert!(phases.iter().all(|phase| phase.seconds >= 0.0));
                }
            }
        }
    }

    /// The cheapest of these, and what it costs.
    fn cheapest(configs: &[Config], seconds: impl Fn(&Config) -> f64) -> Config {
        *configs.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap()
    }

    #[test]
    fn speeds_that_are_off_by_half_do_not_choose_a_way_that_takes_half_as_long_again() {
        let mut rng = fastrand::Rng::with_seed(28);
        for (backend, activation) in table().iter().flat_map(|b| [Activation::NvFp4, Activation::BF16].map(|a| (b, a)))
        {
            let rates = backend.rates(activation);
            for (m, threads) in [1, 8, 32, 100, 256, 512].into_iter().flat_map(|m| [1, 2, 16].map(|t| (m, t))) {
                let shape = Shape::new(m, 4096, 4096);
                let problem = Problem::new(vec![shape], Gate::Silu, activation, Output::F16).unwrap();
                let configs = candidates(&problem, &rates, threads);
                let price = |config: &Config, rates: &Rates, bandwidth: Bandwidth| {
                    check(backend.name(), &problem, config, (rates, bandwidth), threads).unwrap().seconds
                };
                let stated = Speeds::stated().bandwidth();
                let best = price(&cheapest(&configs, |c| price(c, &rates, stated)), &rates, stated);
                for _ in 0..40 {
                    let mut off = |speed: f64| speed * (0.6 + rng.f64());
                    let (name, finish) = rates.kernel();
                    let mut entries = vec![(format!("{} {name} finish", backend.name()), off(finish))];
                    for Loop { name: way, stated, .. } in rates.loops() {
                        entries.push((format!("{} {name} {way} expand", backend.name()), off(stated.expand)));
                        entries.push((format!("{} {name} {way} multiply", backend.name()), off(stated.multiply)));
                    }
                    let bandwidth = Bandwidth { thread: off(stated.thread), machine: off(stated.machine) };
                    let noisy = rates.at(backend.name(), &Speeds::of(bandwidth, entries));
                    let chosen = cheapest(&configs, |config| price(config, &noisy, bandwidth));
                    let regret = price(&chosen, &rates, stated) / best;
                    assert!(regret < 1.5, "{} {activation} {m} on {threads}: {chosen} at {regret:.2}", backend.name());
                }
            }
        }
    }

    #[test]
    fn many_tokens_are_not_streamed() {
        for backend in table() {
            for activation in [Activation::NvFp4, Activation::BF16] {
                let rates = backend.rates(activation);
                let streams = |groups: &[usize]| {
                    let shapes = groups.iter().map(|&m| Shape::new(m, 512, 512)).collect();
                    let problem = Problem::new(shapes, Gate::Silu, activation, Output::F16).unwrap();
                    candidates(&problem, &rates, 2).iter().any(|config| rates.streams(config).is_some())
                };
                let Some((_, [.., (rows, _)])) = rates.stream else { continue };
                let (tile, most) = (rows / rates.parts, rows / rates.parts * STREAM_READINGS);
                assert!(streams(&[tile]) && streams(&[tile, 1, 0, tile]), "{}", backend.name());
                assert!(!streams(&[most + 1]) && !streams(&[1, 0, 0, 2 * most]), "{}", backend.name());
            }
        }
    }

    #[test]
    fn the_same_speeds_make_the_same_prediction_and_each_of_them_counts() {
        let stated = predicted(&[]);
        assert_eq!(stated, predicted(&[]));
        assert_eq!(stated, predicted(&[("amx tiles walk expand", 1.0)]), "another backend's speed");
        for slower in ["scalar float walk expand", "scalar float walk multiply", "scalar float finish"] {
            assert!(predicted(&[(slower, 1e-6)]) > stated, "{slower}");
        }
        assert!(predicted(&[("bytes thread", 1e6)]) > stated);
        assert!(predicted(&[("bytes machine", 1e6)]) > stated);
    }
}
