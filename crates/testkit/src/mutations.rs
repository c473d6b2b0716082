//! The kernels broken on purpose, to prove that the simulator notices.
//!
//! [`sim::mutate`] makes, from the kernel as it is printed, every kernel that differs by one plausible mistake. Here each of
//! them runs on small problems whose sums are exact, under several schedules: a mistake must show as a fault or as a wrong
//! sum under one of them, and the kernel as it is must show neither under any. The few mistakes that change nothing are named
//! with the reason.

use rayon::prelude::*;
use sim::mutate::{Mutant, mutants};
use sim::{Arg, Buffer, Finding, Gpu, Invocation, Limits, Profile, Rules, Schedule, explore};

use gpu::families::sm80;
use gpu::families::sm80::kernel::WarpMultiplySpec;
use gpu::families::sm90::kernel::{self, Products, Tokens};
use gpu::gating::Function;
use gpu::pack;
use gpu::table::{self, Record};
use op::{Activation, Epilogue, Error, Gate, Output, Result, Schedule as Dealing, Shape};

use crate::cases::{Case, Inputs, Suite};

/// A way of putting the phases together that is broken: small enough to run thousands of times, with two consumer
/// warpgroups so that they share stages and the registers of a block are contested. One matrix, so that sums are exact.
const PLAIN: kernel::MultiplySpec = kernel::MultiplySpec {
    products: Products::Single,
    ping_pong: false,
    tokens: 16,
    columns: 128,
    units: 1,
    stages: 2,
    epilogue: Epilogue::Direct,
    schedule: Dealing::PerTile,
    element: Tokens::F16,
    function: Function::None,
    output: Output::F32,
    groups: 1,
    experts: None,
};

/// The same for GPUs since Ampere: two warps along the columns.
const PLAIN_WARPS: WarpMultiplySpec = WarpMultiplySpec {
    target: ptx::Target::Sm80,
    products: Products::Single,
    resident: 1,
    tokens: 16,
    columns: 32,
    fragments: 1,
    units: 1,
    stages: 3,
    epilogue: Epilogue::Direct,
    schedule: Dealing::PerTile,
    element: Tokens::F16,
    function: Function::None,
    output: Output::F32,
    groups: 1,
};

/// A kernel that is broken.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// Hopper's.
    Hopper(kernel::MultiplySpec),
    /// That of GPUs since Ampere.
    Ampere(WarpMultiplySpec),
}

/// The ways that are broken: what each is called, and what it is. On Hopper few tokens take the coarse main loop, many the fine one. Of the
/// others, one has warps along k, and one several tiles per block, two fragments per warp and values that are turned around.
pub const WAYS: [(&str, Way); 5] = [
    ("a tile per block, few tokens", Way::Hopper(kernel::MultiplySpec { units: 2, ..PLAIN })),
    (
        "two blocks per tile, many tokens",
        Way::Hopper(kernel::MultiplySpec { tokens: 80, schedule: Dealing::SplitK, ..PLAIN }),
    ),
    ("mma.sync, warps along k", Way::Ampere(WarpMultiplySpec { units: 2, ..PLAIN_WARPS })),
    (
        "mma.sync, several tiles per block",
        Way::Ampere(WarpMultiplySpec {
            tokens: 40,
            columns: 64,
            fragments: 2,
            epilogue: Epilogue::Staged,
            schedule: Dealing::Persistent,
            ..PLAIN_WARPS
        }),
    ),
    (
        "mma.sync with block scales",
        Way::Ampere(WarpMultiplySpec {
            target: ptx::Target::Sm120f,
            element: Tokens::NvFp4,
            tokens: 24,
            ..PLAIN_WARPS
        }),
    ),
];

impl Way {
    fn kernel(self) -> Result<ptx::Kernel> {
        let built = match self {
            Way::Hopper(config) => kernel::kernel(config),
            Way::Ampere(config) => sm80::kernel::kernel(config),
        };
        built.map_err(|error| Error::Kernel(error.into()))
    }

    /// Tiles along `m` tokens, tokens of each, columns of each, and blocks that share one.
    fn tiles(self, m: u32) -> [u32; 4] {
        match self {
            Way::Hopper(config) => {
                let (count, tokens) = config.cut(m);
                [count, tokens, config.columns, config.blocks_per_tile()]
            }
            Way::Ampere(config) => [m.div_ceil(config.tokens), config.tokens, config.columns, config.blocks_per_tile()],
        }
    }

    /// Whether tokens stay codes.
    fn takes_codes(self) -> bool {
        matches!(self, Way::Ampere(WarpMultiplySpec { element: Tokens::NvFp4, .. }))
    }

    fn schedule(self) -> Dealing {
        match self {
            Way::Hopper(config) => config.schedule,
            Way::Ampere(config) => config.schedule,
        }
    }

    /// The arguments of a launch over one group.
    fn arguments(self, record: Record, tokens: Buffer, tiles: u32) -> Vec<Arg> {
        let table = Arg::Words(table::words(&[record], 1));
        let rest = [Arg::U32(tiles), Arg::F32(0.0)];
        match self {
            Way::Hopper(config) => {
                let map = config.token_map(tokens.address, [record.m, record.k], 0);
                [Arg::Maps(vec![map]), table].into_iter().chain(rest).collect()
            }
            Way::Ampere(_) => {
                let words = vec![tokens.address as u32, (tokens.address >> 32) as u32, 0, 0];
                [Arg::Words(words), table].into_iter().chain(rest).collect()
            }
        }
    }
}

/// The problems, which between them use all of the kernel: tokens, rows and K beyond the last tile, a single stage, and a
/// pipeline that wraps around often enough for a barrier that counts wrongly to fall behind, a last stage that is not full.
const SHAPES: [Shape; 5] = [
    Shape { m: 77, n: 132, k: 384 },
    Shape { m: 16, n: 64, k: 16 },
    Shape { m: 5, n: 72, k: 1680 },
    Shape { m: 9, n: 40, k: 176 },
    Shape { m: 68, n: 40, k: 592 },
];

/// Instructions after which a run is given up: many times what the kernels take.
const MOST_INSTRUCTIONS: u64 = 4_000_000;

/// Mistakes that nothing can tell from the original: which, in which instruction, and why.
const EQUIVALENT: [(&str, &str, &str); 17] = [
    ("condition dropped", "/produce: @", "the producer's loops are never empty: k is positive"),
    ("guard dropped", "griddepcontrol.wait", "waiting again for a kernel that has ended costs nothing"),
    (
        "ordering relaxed",
        "mbarrier.arrive.expect_tx",
        "who announces bytes publishes nothing by it: the copies signal for themselves",
    ),
    (
        "ordering relaxed",
        "/prepare: barrier.cluster.arrive",
        "there are only barriers to tell of, and the fence of their initialisation releases them",
    ),
    (
        "register budget left alone",
        "setmaxnreg.inc",
        "how many registers the code needs is for the assembler to say, and its report is tested",
    ),
    (
        "wgmma fence dropped",
        "/multiply: wgmma.fence",
        "fragments are made two multiplications ahead, so the fence before this one covers them; the assembler wants each",
    ),
    (
        "commit dropped",
        "/multiply: wgmma.commit_group",
        "the last two multiplications become one group, and the wait that follows is for both",
    ),
    ("condition dropped", "/finish: @!", "tokens beyond the tile are computed for nothing, and not stored"),
    ("condition dropped", "/finish/store: @!", "the same for a warp's tokens"),
    ("condition dropped", "/finish/stage: @!", "the same where values are turned around"),
    (
        "condition dropped",
        "/multiply/copy: @!",
        "a stage beyond the last is copied to a place that nobody reads any more, and waited for",
    ),
    (
        "guard dropped",
        "/multiply/copy: @",
        "pieces behind those of the last stage that is asked for in the beginning land where the next one is copied to later",
    ),
    ("condition dropped", "/combine: @!", "warps that have left their sums add the others' to them, and nobody looks"),
    ("condition dropped", "/consume: @", "k is long enough for both blocks in these problems"),
    (
        "guard dropped",
        "/finish: @",
        "in these problems a tile's tokens end within its first or its last eight; the guard is the same in all of them",
    ),
    ("guard dropped", "/consume: @", "with two stages every other step closes the ring"),
    (
        "guard inverted",
        "/prepare: @",
        "with two stages there is one other thread to make the barrier, and it may be that",
    ),
];

/// What became of a mutant.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// A fault or a wrong sum, under a schedule that it names.
    Caught(Finding),
    /// It computes the same, for this reason.
    Equivalent(&'static str),
    /// It ought to have been caught, and was not.
    Missed,
}

/// The kernel and the problems on which it and its mutants run.
#[derive(Debug)]
pub struct Trial {
    kernel: ptx::Kernel,
    problems: Vec<Problem>,
}

/// A device with the operands of one problem, and the sums it should compute.
#[derive(Debug)]
struct Problem {
    gpu: Gpu,
    launch: Invocation,
    sums: Buffer,
    expected: Vec<f32>,
    /// How many are summed in all.
    products: usize,
}

impl Trial {
    /// Builds one of the kernels and its problems.
    pub fn new(way: Way) -> Result<Self> {
        let problems = SHAPES.iter().map(|shape| Problem::new(way, *shape)).collect::<Result<_>>()?;
        Ok(Trial { kernel: way.kernel()?, problems })
    }

    /// The kernel that is broken.
    pub fn kernel(&self) -> &ptx::Kernel {
        &self.kernel
    }

    /// The kernel as it is, under every schedule on every problem: what it did on the first, or what was found.
    pub fn original(&self, schedules: &[Schedule]) -> Result<Profile, Finding> {
        let profiles: Result<Vec<Profile>, Finding> =
            self.problems.iter().map(|problem| problem.examine(&self.kernel, schedules)).collect();
        Ok(profiles?.swap_remove(0))
    }

    /// Every mutant and what became of it, in the order of the instructions.
    pub fn verdicts(&self, schedules: &[Schedule]) -> Vec<(Mutant, Verdict)> {
        let judge = |mutant: Mutant| {
            let verdict = self.verdict(&mutant, schedules);
            (mutant, verdict)
        };
        mutants(&self.kernel).into_par_iter().map(judge).collect()
    }

    /// What is found in one mutant, if anything is.
    pub fn examine(&self, mutant: &Mutant, schedules: &[Schedule]) -> Option<Finding> {
        // The smallest problem first: most mistakes show there already.
        let mut problems: Vec<&Problem> = self.problems.iter().collect();
        problems.sort_by_key(|problem| problem.products);
        problems.iter().find_map(|problem| problem.examine(&mutant.kernel, schedules).err())
    }

    fn verdict(&self, mutant: &Mutant, schedules: &[Schedule]) -> Verdict {
        let known =
            EQUIVALENT.iter().find(|(mistake, text, _)| mutant.mistake == *mistake && mutant.name.contains(text));
        match (self.examine(mutant, schedules), known) {
            (Some(finding), _) => Verdict::Caught(finding),
            (None, Some((_, _, reason))) => Verdict::Equivalent(reason),
            (None, None) => Verdict::Missed,
        }
    }
}

/// Tokens that stay codes, under scales of one: strips of eight rows, each a quarter of a chunk as weights have it.
fn strips(shape: Shape, token: impl Fn(usize, usize) -> f32) -> Result<Vec<u8>> {
    let code = |i: usize| {
        let token = token(i / shape.k, i % shape.k);
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].iter().position(|value| *value == token.abs());
        magnitude.unwrap_or(0) as u8 | if token < 0.0 { 8 } else { 0 }
    };
    let codes: Vec<u8> = (0..shape.m * shape.k / 2).map(|i| code(2 * i) | code(2 * i + 1) << 4).collect();
    let scales = vec![0x38; shape.m * shape.k / 16];
    let packed = pack::pack_codes(&format::Matrix::new(shape.m, shape.k, codes, scales, 1.0)?);
    let (chunk, codes) = (pack::CHUNK_BYTES as usize, pack::CODE_BYTES as usize);
    let units = shape.k.div_ceil(pack::CHUNK_DEPTH);
    let strip = |number: usize| {
        let (eight, unit) = (number / units, number % units);
        let chunk = &packed[(eight / 4 * units + unit) * chunk..][..chunk];
        let (words, scales) = chunk.split_at(codes);
        [&words[eight % 4 * codes / 4..][..codes / 4], &scales[eight % 4 * 32..][..32]].concat()
    };
    Ok((0..shape.m.div_ceil(8) * units).flat_map(strip).collect())
}

impl Problem {
    /// Whole numbers for tokens and scaled codes for weights: every sum is exact in f32, in any order.
    fn new(way: Way, shape: Shape) -> Result<Self> {
        let case = |inputs| Case {
            suite: Suite::Edge,
            why: "exact sums",
            groups: vec![shape],
            gate: Gate::None,
            activation: Activation::F16,
            output: Output::F32,
            inputs,
            timed: false,
        };
        let Shape { m, n, k } = shape;
        let weights = case(Inputs::Realistic).instance(1)?.weights.swap_remove(0);
        let weights = weights.gate();
        // Of the numbers up to six, codes have all but five.
        let token = |row: usize, column: usize| match ((row * 7 + column * 3) % 13) as f32 - 6.0 {
            five if way.takes_codes() && five.abs() == 5.0 => five.signum(),
            other => other,
        };
        let halves = || (0..m * k).flat_map(|i| half::f16::from_f32(token(i / k, i % k)).to_le_bytes()).collect();
        let tokens: Vec<u8> = if way.takes_codes() { strips(shape, token)? } else { halves() };
        let mut expected = vec![0f32; m * n];
        let mut row = vec![0f32; k];
        for column in 0..n {
            weights.unscaled_row(column, &mut row);
            for at in 0..m {
                let sum: f32 = row.iter().enumerate().map(|(i, w)| w * token(at, i)).sum();
                expected[at * n + column] = sum;
            }
        }
        let mut gpu = Gpu::new(Limits { instructions: MOST_INSTRUCTIONS, ..Limits::h200() }).with_rules(Rules::Letter);
        let packed = if way.takes_codes() { pack::pack_codes(weights) } else { pack::pack(weights) };
        let packed = gpu.upload("weights", &packed);
        let tokens = gpu.upload("tokens", &tokens);
        let sums = gpu.alloc("sums", m * n * 4);
        gpu.await_predecessor(tokens);
        let [m, n, k] = [m as u32, n as u32, k as u32];
        let [token_tiles, tile_tokens, columns, shared] = way.tiles(m);
        let tiles = token_tiles * n.div_ceil(columns);
        let addresses = [packed.address, packed.address, sums.address];
        let factors = [[if way.takes_codes() { 1.0 } else { 128.0 }, 1.0]; 2];
        let record = Record { first_tile: 0, token_tiles, tile_tokens, m, n, k, addresses, factors };
        let args = way.arguments(record, tokens, tiles);
        let blocks = match way.schedule() {
            Dealing::Persistent => 1,
            Dealing::PerTile | Dealing::SplitK => tiles * shared,
        };
        let products = expected.len() * k as usize;
        Ok(Problem { gpu, launch: Invocation { grid: [blocks, 1, 1], args }, sums, expected, products })
    }

    fn examine(&self, kernel: &ptx::Kernel, schedules: &[Schedule]) -> Result<Profile, Finding> {
        let prepare = || (self.gpu.clone(), self.launch.clone());
        let verify = |gpu: &Gpu| {
            let found = gpu.floats(self.sums);
            match found.iter().zip(&self.expected).position(|(found, expected)| found != expected) {
                None => Ok(()),
                Some(at) => Err(format!("sum {at} is {}, should be {}", found[at], self.expected[at])),
            }
        };
        explore(kernel, schedules, prepare, verify)
    }
}
