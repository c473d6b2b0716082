//! A plain NVFP4 GEMM for Hopper: S = 2⁻⁷ · A·Bᵀ, half-precision tokens A (m × k) times FP4 weights B (n × k), without
//! B's global scale and in f32. What is made of the sums is the next kernel's business ([`super::join`]).
//!
//! Hopper's tensor cores know no FP4, so the weights become halves in registers, exactly, on their way to `wgmma`. That
//! works because wgmma takes its A operand from registers: the roles are swapped, weight rows are the M = 64 side and
//! tokens the N side, any multiple of 8 of them.
//!
//! A block computes `tokens` tokens × 64 weight rows per consumer warpgroup, for all of k. One producer thread keeps a
//! pipeline of stages filled: per stage 64 of k, tokens through a tensor map (128-byte swizzle, zeros out of bounds) and
//! one packed chunk of weights per consumer (see [`super::pack`]) by bulk copy. Two barriers a stage carry the
//! protocol, and `Pipeline` is the only place that touches them:
//!
//! - *full*: one arrival by the producer, with the stage's bytes; completes when they have landed. Consumers wait.
//! - *empty*: one arrival per consumer warp, once it has read the stage for the last time. The producer waits.
//!
//! A consumer holds four fragments, one per k16 of a stage, and runs two of them ahead: fragment j+2 is dequantised while
//! the tensor cores multiply fragments j and j+1, so at most two groups are ever in flight.

use ptx::descriptor::{MatrixLayout, Swizzle};
use ptx::instr::{Accumulate, Arith, BinaryOp};
use ptx::tensor_map::{Element, TensorMap};
use ptx::{
    Addr, Barriers, Builder, CopyOptions, DataType, Error, F16x2, F32, Global, Kernel, Launch, MatrixOperand, Pred,
    Reg, RegisterChange, S32, SHARED_LIMIT, Shared, SharedRegion, SpecialRegister, Target, TensorMapAddress, U32, U64,
    Value,
};

use super::pack::{CHUNK_BYTES, CODE_BYTES};

/// Weight rows of one warpgroup, and of one chunk.
pub const ROWS: u32 = 64;
/// Columns of k in one stage.
pub const DEPTH: u32 = 64;
/// Steps of 16 along k in one stage: one wgmma each.
const SLICES: usize = 4;
/// Layout of the tokens in shared memory: rows of 64 halves.
const TOKEN_LAYOUT: MatrixLayout = MatrixLayout::K_MAJOR_128;
/// A token's bytes in one stage.
const TOKEN_BYTES: u32 = DEPTH * 2;
/// The most stages a pipeline may have.
const MOST_STAGES: u32 = 16;
/// Bytes of one element of S.
pub const SUM_BYTES: u32 = 4;

/// How the kernel is cut to size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Tokens per block: a multiple of 8, at most 256.
    pub tokens: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// Consumer warpgroups, 1 to 3, each with 64 weight rows.
    pub warpgroups: u32,
}

impl Config {
    /// Blocks along x (weight rows) and y (tokens) for a problem.
    pub fn grid(&self, m: u32, n: u32) -> [u32; 2] {
        [n.div_ceil(ROWS * self.warpgroups), m.div_ceil(self.tokens)]
    }

    /// The tensor map of A, row-major halves at `address`.
    pub fn token_map(&self, address: u64, m: u32, k: u32) -> TensorMap {
        TensorMap {
            element: Element::F16,
            address,
            dims: vec![k.into(), m.into()],
            strides: vec![u64::from(k) * 2],
            tile: vec![DEPTH, self.tokens],
            swizzle: Swizzle::B128,
        }
    }

    fn threads(&self) -> u32 {
        (self.warpgroups + 1) * 128
    }

    fn stage_bytes(&self) -> u32 {
        self.tokens * TOKEN_BYTES + self.warpgroups * CHUNK_BYTES
    }

    /// Registers per thread of the producer and of the consumers, from what one block's threads have together.
    fn register_budgets(&self) -> (u32, u32) {
        if self.warpgroups <= 2 { (24, 240) } else { (32, 160) }
    }

    /// Bytes of shared memory: the stages and their barriers.
    pub fn shared_bytes(&self) -> u32 {
        self.stages * (self.stage_bytes() + 2 * Barriers::STRIDE)
    }

    /// The most stages that shared memory holds.
    pub fn most_stages(&self) -> u32 {
        (SHARED_LIMIT / (self.stage_bytes() + 2 * Barriers::STRIDE)).min(MOST_STAGES)
    }

    /// Whether the hardware has room for it.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !self.tokens.is_multiple_of(8) || !(8..=256).contains(&self.tokens) {
            return refuse("tokens per block", self.tokens, "a multiple of 8 from 8 to 256: the N side of wgmma");
        }
        if !(2..=MOST_STAGES).contains(&self.stages) {
            return refuse("pipeline stages", self.stages, "2 to 16: one to fill while another is read");
        }
        if !(1..=3).contains(&self.warpgroups) {
            return refuse("consumer warpgroups", self.warpgroups, "1 to 3: with the producer's, a block's registers");
        }
        if self.warpgroups == 3 && self.tokens > 128 {
            return refuse("tokens per block", self.tokens, "at most 128 with three consumer warpgroups: registers");
        }
        if self.shared_bytes() > SHARED_LIMIT {
            return refuse("bytes of shared memory", self.shared_bytes(), "at most 232448: fewer stages or tokens");
        }
        Ok(())
    }
}

/// Builds the kernel. Its arguments, in order: packed weights, S, tensor map of A, m, n, k (a positive multiple of 16).
pub fn kernel(config: Config) -> Result<Kernel, Error> {
    config.check()?;
    let launch = Launch { threads: config.threads(), cluster: None, min_blocks: Some(1) };
    let mut k = Builder::new("nvfp4_gemm_plain", Target::Sm90a, launch);
    let (weights, sums, map) = (k.pointer("weights"), k.pointer("sums"), k.tensor_map("tokens"));
    let shape = Shape { m: k.param("m"), n: k.param("n"), k: k.param("k") };
    let pipe = Pipeline::declare(&mut k, config);

    let thread = k.special(SpecialRegister::TidX);
    let warp = k.shr(thread, 5);
    let warp = k.broadcast(warp);
    let steps = k.add(shape.k, DEPTH - 1);
    let steps = k.shr(steps, 6);
    k.phase("prepare", |k| pipe.prepare(k, thread));

    let (producer_registers, consumer_registers) = config.register_budgets();
    let produces = k.ge(warp, config.warpgroups * 4);
    k.if_else(
        produces,
        |k| {
            k.set_max_registers(RegisterChange::Decrease, producer_registers);
            let first = k.eq(warp, config.warpgroups * 4);
            k.if_(first, |k| k.phase("produce", |k| produce(k, &pipe, weights, map, shape.n, steps)));
        },
        |k| {
            k.set_max_registers(RegisterChange::Increase, consumer_registers);
            let consumer = k.phase("consume", |k| {
                let consumer = Consumer::new(k, &pipe, thread, warp);
                consumer.consume(k, &pipe, steps);
                consumer
            });
            k.phase("store", |k| consumer.store(k, config, sums, &shape));
        },
    );
    k.finish()
}

/// The problem's size, as read from the arguments.
struct Shape {
    m: Reg<U32>,
    n: Reg<U32>,
    k: Reg<U32>,
}

/// The stages in shared memory and their barriers.
struct Pipeline {
    config: Config,
    tokens: SharedRegion,
    weights: SharedRegion,
    full: Barriers,
    empty: Barriers,
}

/// A stage, and the parity of the round in which it is used.
struct Turn {
    stage: Reg<U32>,
    parity: Reg<U32>,
}

impl Pipeline {
    fn declare(k: &mut Builder, config: Config) -> Self {
        let Config { tokens, stages, warpgroups, .. } = config;
        Pipeline {
            config,
            tokens: k.shared("tokens", stages * tokens * TOKEN_BYTES, Swizzle::B128.period()),
            weights: k.shared("weights", stages * warpgroups * CHUNK_BYTES, 128),
            full: k.barriers("full", stages),
            empty: k.barriers("empty", stages),
        }
    }

    /// One thread makes the barriers; the block waits until it has.
    fn prepare(&self, k: &mut Builder, thread: Reg<U32>) {
        let first = k.eq(thread, 0);
        k.if_(first, |k| {
            for stage in 0..self.config.stages {
                k.barrier_init(self.full.at(stage), 1);
                k.barrier_init(self.empty.at(stage), self.config.warpgroups * 4);
            }
            k.fence_barrier_init();
        });
        k.sync_threads();
    }

    fn start(&self, k: &mut Builder) -> Turn {
        Turn { stage: k.variable(0), parity: k.variable(0) }
    }

    /// The next stage; the parity flips when the pipeline wraps around.
    fn advance(&self, k: &mut Builder, turn: &Turn) {
        let next = k.add(turn.stage, 1);
        let wrapped = k.eq(next, self.config.stages);
        let flipped = k.xor(turn.parity, 1);
        let next = k.select(wrapped, 0, next);
        k.set(turn.stage, next);
        k.when(wrapped, |k| k.set(turn.parity, flipped));
    }

    fn barrier(&self, k: &mut Builder, which: Barriers, turn: &Turn) -> Reg<U32> {
        let base = k.shared_address(which.region());
        k.mul_add(turn.stage, Barriers::STRIDE, base)
    }

    fn token_tile(&self, k: &mut Builder, turn: &Turn) -> Reg<U32> {
        let base = k.shared_address(self.tokens);
        k.mul_add(turn.stage, self.config.tokens * TOKEN_BYTES, base)
    }

    fn weight_chunks(&self, k: &mut Builder, turn: &Turn) -> Reg<U32> {
        let base = k.shared_address(self.weights);
        k.mul_add(turn.stage, self.config.warpgroups * CHUNK_BYTES, base)
    }

    /// The producer waits until every consumer warp has left the stage; in the first round nobody has been there. Then it
    /// announces what will arrive.
    fn claim(&self, k: &mut Builder, turn: &Turn) -> Addr<Shared> {
        let empty = self.barrier(k, self.empty, turn);
        let before = k.xor(turn.parity, 1);
        k.wait(Addr::of(empty), before);
        let full = Addr::of(self.barrier(k, self.full, turn));
        k.arrive_expecting(full, self.config.stage_bytes());
        full
    }

    /// Consumers wait until the stage's bytes have landed.
    fn wait_full(&self, k: &mut Builder, turn: &Turn) {
        let full = self.barrier(k, self.full, turn);
        k.wait(Addr::of(full), turn.parity);
    }

    /// A consumer warp has read the stage with this empty barrier for the last time. One lane speaks for all, so the others
    /// must be done first.
    fn release(&self, k: &mut Builder, empty: Reg<U32>, speaks: Pred) {
        k.sync_warp();
        k.when(speaks, |k| k.arrive(Addr::of(empty)));
    }
}

/// One thread keeps the pipeline filled.
fn produce(
    k: &mut Builder,
    pipe: &Pipeline,
    weights: Reg<U64>,
    map: ptx::TensorMapParam,
    n: Reg<U32>,
    steps: Reg<U32>,
) {
    let elected = k.elect();
    k.if_(elected, |k| {
        let map = k.tensor_map_address(map);
        k.prefetch_map(map);
        let sources = chunk_sources(k, pipe.config, weights, n, steps);
        let token_block = k.special(SpecialRegister::CtaidY);
        let first_token: Reg<S32> = k.mul(token_block, pipe.config.tokens).cast();
        let turn = pipe.start(k);
        k.repeat(steps, |k, step| {
            let full = pipe.claim(k, &turn);
            load_weights(k, pipe, &turn, &sources, full);
            load_tokens(k, pipe, &turn, map, [step, first_token.cast()], full);
            pipe.advance(k, &turn);
        });
    });
}

/// Where each consumer's first chunk lies. A block of rows beyond the last one is replaced by the last one: its products are
/// not stored.
fn chunk_sources(k: &mut Builder, config: Config, weights: Reg<U64>, n: Reg<U32>, steps: Reg<U32>) -> Vec<Reg<U64>> {
    let row_blocks = k.add(n, ROWS - 1);
    let row_blocks = k.shr(row_blocks, 6);
    let last = k.sub(row_blocks, 1);
    let block = k.special(SpecialRegister::CtaidX);
    let first = k.mul(block, config.warpgroups);
    let run_bytes = k.mul(steps, CHUNK_BYTES);
    (0..config.warpgroups)
        .map(|warpgroup| {
            let row_block = k.add(first, warpgroup);
            let row_block = k.min(row_block, last);
            let start = k.mul_wide_add(row_block, run_bytes, weights);
            k.variable(start)
        })
        .collect()
}

fn load_weights(k: &mut Builder, pipe: &Pipeline, turn: &Turn, sources: &[Reg<U64>], full: Addr<Shared>) {
    let chunks = Addr::<Shared>::of(pipe.weight_chunks(k, turn));
    for (chunk, &source) in sources.iter().enumerate() {
        let place = chunks.plus((chunk as u32 * CHUNK_BYTES).cast_signed());
        k.bulk_load(place, Addr::of(source), CHUNK_BYTES, full, CopyOptions::default());
        let next = k.add(source, u64::from(CHUNK_BYTES));
        k.set(source, next);
    }
}

fn load_tokens(
    k: &mut Builder,
    pipe: &Pipeline,
    turn: &Turn,
    map: Reg<TensorMapAddress>,
    [step, first_token]: [Reg<U32>; 2],
    full: Addr<Shared>,
) {
    let depth: Reg<S32> = k.mul(step, DEPTH).cast();
    let first_token: Reg<S32> = first_token.cast();
    let tile = pipe.token_tile(k, turn);
    let at: [Value<S32>; 2] = [depth.into(), first_token.into()];
    k.tensor_load(Addr::of(tile), map, &at, full, CopyOptions::default());
}

/// What one thread of a consumer warpgroup holds.
struct Consumer {
    /// The lane that speaks for its warp at the barriers.
    leads: Pred,
    /// Bytes from a stage's first chunk to this lane's words.
    words_at: Reg<U32>,
    /// Bytes from a stage's first chunk to this quad's scales.
    scales_at: Reg<U32>,
    /// First weight row of this thread within the block's; the second is 8 further.
    row: Reg<U32>,
    /// First token of this thread within the block's.
    token: Reg<U32>,
    accumulators: Vec<Reg<F32>>,
    /// One A operand per k16 of a stage.
    fragments: [[Reg<F16x2>; 4]; SLICES],
    words: [Reg<U32>; SLICES],
    /// Two of the four steps each: see the byte order in `pack`.
    scales: [Reg<U32>; 2],
}

impl Consumer {
    fn new(k: &mut Builder, pipe: &Pipeline, thread: Reg<U32>, warp: Reg<U32>) -> Self {
        let lane = k.and(thread, 31);
        let (warpgroup, quarter) = (k.shr(warp, 2), k.and(warp, 3));
        let (quad, place) = (k.shr(lane, 2), k.and(lane, 3));
        let chunk = k.mul(warpgroup, CHUNK_BYTES);
        let words_at = k.mul_add(quarter, 512, chunk);
        let scales_at = k.mul_add(quarter, 64, chunk);
        let scales_at = k.mul_add(quad, 8, scales_at);
        let row = k.mul_add(warp, 16, quad);
        Consumer {
            leads: k.eq(lane, 0),
            words_at: k.mul_add(lane, 16, words_at),
            scales_at: k.add(scales_at, CODE_BYTES),
            row,
            token: k.shl(place, 1),
            accumulators: (0..pipe.config.tokens / 2).map(|_| k.variable(0.0f32)).collect(),
            fragments: std::array::from_fn(|_| k.registers()),
            words: k.registers(),
            scales: k.registers(),
        }
    }

    /// All of k. The last step prepares no further one, so it stands after the loop.
    fn consume(&self, k: &mut Builder, pipe: &Pipeline, steps: Reg<U32>) {
        let turn = pipe.start(k);
        let previous = k.variable(0u32);
        k.phase("wait", |k| pipe.wait_full(k, &turn));
        k.phase("load", |k| self.load(k, pipe, &turn));
        self.dequantise(k, 0);
        self.dequantise(k, 1);
        let before_last = k.sub(steps, 1);
        k.repeat(before_last, |k, step| self.step(k, pipe, &turn, previous, step, true));
        self.step(k, pipe, &turn, previous, before_last, false);
        k.wgmma_wait(0);
    }

    /// Multiplies one stage. Fragments 0 and 1 are ready; 2 and 3, and if there are `more` stages the next one's 0 and 1,
    /// are made while the tensor cores are busy.
    fn step(&self, k: &mut Builder, pipe: &Pipeline, turn: &Turn, previous: Reg<U32>, step: Reg<U32>, more: bool) {
        let tile = pipe.token_tile(k, turn);
        let tokens = k.descriptor_low(TOKEN_LAYOUT, tile);
        let empty = pipe.barrier(k, pipe.empty, turn);
        self.multiply(k, 0, tokens);
        self.refill(k, 2);
        self.multiply(k, 1, tokens);
        self.refill(k, 3);
        if more {
            // No group of the stage before is in flight any more. Before the last step nobody waits for it.
            k.phase("release", |k| {
                let later = k.ne(step, 0);
                let speaks = k.both(self.leads, later);
                pipe.release(k, previous, speaks);
                k.set(previous, empty);
            });
            pipe.advance(k, turn);
            k.phase("wait", |k| pipe.wait_full(k, turn));
            k.phase("load", |k| self.load(k, pipe, turn));
        }
        self.multiply(k, 2, tokens);
        if more {
            self.refill(k, 0);
        }
        self.multiply(k, 3, tokens);
        if more {
            self.refill(k, 1);
        }
    }

    /// Makes a fragment anew. Each multiplication is a group of its own and two are younger than this fragment's last one,
    /// so that one is done when no more than two are in flight.
    fn refill(&self, k: &mut Builder, slice: usize) {
        k.wgmma_wait(2);
        self.dequantise(k, slice);
    }

    /// This thread's words and scales of a stage.
    fn load(&self, k: &mut Builder, pipe: &Pipeline, turn: &Turn) {
        let chunks = pipe.weight_chunks(k, turn);
        let (words_at, scales_at) = (k.add(chunks, self.words_at), k.add(chunks, self.scales_at));
        let words: [Reg<U32>; SLICES] = k.load_vector(Addr::<Shared>::of(words_at));
        let scales: [Reg<U32>; 2] = k.load_vector(Addr::<Shared>::of(scales_at));
        for (held, loaded) in self.words.iter().chain(&self.scales).zip(words.iter().chain(&scales)) {
            k.set(*held, *loaded);
        }
    }

    /// Eight weights of a word, as halves: each code's bits are put where a half has them, which is w · 2⁻¹⁴, and
    /// multiplied by scale · 2⁷. Both factors and the product are exact.
    fn dequantise(&self, k: &mut Builder, slice: usize) {
        k.phase("dequantise", |k| {
            let word = self.words[slice];
            let shifted = k.shl(word, 3);
            let third = k.and(word, 0x4038_4038u32);
            let third = k.mul(third, 66u32);
            let fourth = k.and(word, 0x2007_2007u32);
            let fourth = k.mul(fourth, 516u32);
            let scales = self.scales[slice / 2];
            let scales = if slice.is_multiple_of(2) { k.shr(scales, 1) } else { k.shl(scales, 7) };
            let scales = k.and(scales, 0x7f80_7f80u32);
            let [upper, lower] = k.unpack_pair(scales.cast::<F16x2>());
            let (upper, lower) = (k.pack_pair(upper, upper), k.pack_pair(lower, lower));
            let pairs = [(word, upper), (shifted, lower), (third, upper), (fourth, lower)];
            for ((bits, scale), dst) in pairs.into_iter().zip(self.fragments[slice]) {
                let codes = k.and(bits, 0x8e00_8e00u32);
                multiply_into(k, dst, codes.cast(), scale);
            }
        });
    }

    /// Starts the multiplication of one k16, as a group of its own. A fence stands before each, since a fragment has been
    /// written before each; where one is missing, the assembler puts one in, and says so.
    fn multiply(&self, k: &mut Builder, slice: usize, tokens: Reg<U32>) {
        k.phase("multiply", |k| {
            let low = k.add(tokens, 2 * slice as u32);
            let b = k.wgmma_descriptor(TOKEN_LAYOUT, low);
            k.wgmma_fence();
            k.wgmma(&self.accumulators, MatrixOperand::F16(self.fragments[slice]), b, Accumulate::Add);
            k.wgmma_commit();
        });
    }

    /// Writes what lies within S, element by element: the eight quads of a warp are neighbours in a row of S.
    fn store(&self, k: &mut Builder, config: Config, sums: Reg<U64>, shape: &Shape) {
        let (rows, tokens) = (k.special(SpecialRegister::CtaidX), k.special(SpecialRegister::CtaidY));
        let token = k.mul_add(tokens, config.tokens, self.token);
        let row = k.mul_add(rows, ROWS * config.warpgroups, self.row);
        for half in 0..2 {
            let column = k.add(row, 8 * half as u32);
            let wide: Reg<U64> = k.convert(column);
            let element = k.mul_wide_add(token, shape.n, wide);
            let bytes = k.shl(element, SUM_BYTES.trailing_zeros());
            let start = k.add(sums, bytes);
            let inside = k.lt(column, shape.n);
            k.if_(inside, |k| {
                for (group, values) in self.accumulators.chunks_exact(4).enumerate() {
                    for neighbour in 0..2 {
                        let further = 8 * group as u32 + neighbour as u32;
                        let this = k.add(token, further);
                        let exists = k.lt(this, shape.m);
                        let at = k.mul_wide_add(shape.n, further * SUM_BYTES, start);
                        k.when(exists, |k| k.store(Addr::<Global>::of(at), values[2 * half + neighbour]));
                    }
                }
            });
        }
    }
}

/// The product goes into a register that a multiplication reads round after round.
fn multiply_into(k: &mut Builder, dst: Reg<F16x2>, a: Reg<F16x2>, b: Reg<F16x2>) {
    let (a, b) = (Value::from(a).operand(), Value::from(b).operand());
    k.emit(Arith::Binary { op: BinaryOp::Mul, ty: DataType::F16x2, dst: dst.id(), a, b });
}
