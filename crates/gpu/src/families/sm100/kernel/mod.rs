//! The Blackwell kernel: C = gate(α₁·A·B1ᵀ) ∘ (α₂·A·B2ᵀ), tokens A (m × k) times NVFP4 weights B (n × k), for one
//! problem or for a ragged group of them in one launch. It has not run on silicon: it is assembled, and it runs in the
//! simulator.
//!
//! *NVFP4 tokens*: the tensor cores multiply e2m1 codes under scales of 16 themselves (`tcgen05.mma.kind::mxf4nvf4`),
//! so nothing is dequantised: codes go from memory to shared memory, scales from there to tensor memory, and sums stay
//! in tensor memory until a tile is complete.
//!
//! *Tokens of 16 bits* (and single precision, as three parts of bfloat16): weights become numbers of 16 bits on their
//! way to shared memory, exactly, and the tensor cores multiply those (`kind::f16`).
//!
//! A multiplication has 128 rows and any multiple of 16 columns up to 256, or 8 (not of numbers of 16 bits). Tiles of
//! 128 tokens have tokens for rows and weights for columns. For fewer tokens roles are *swapped*: 128 rows of weights,
//! and as many columns as there are tokens, in such steps. A tile of 64 rows does not exist.
//!
//! A *pair* of blocks computes a tile of 256 rows: 256 tokens, or 256 columns of C with roles swapped. Each block has
//! 128 of the rows, with their accumulators, and brings half of the columns' operand, which the other one's tensor
//! cores read as well: so half of it is read from memory for each. The first block of a pair gives the work to both.
//!
//! Two pairs side by side may share their tokens (`multicast`): a cluster of four blocks computes two tiles with the
//! same tokens, of which each block brings a quarter, half of what it needs itself, and the copy engine delivers it to
//! the block of the other pair with the same rows as well.
//!
//! Every strategy is made of the same phases. A [`TensorMultiplySpec`] says how they are put together; [`kernel`] is
//! where it happens:
//!
//! - `work`: the groups, and which tile of which group a block computes next;
//! - `pipeline`: the stages in shared memory, the accumulators in tensor memory, and the barriers of both;
//! - `produce`: two threads fill the stages, one with tokens and one with weights;
//! - `dequantise`: where tokens have 16 bits, four warps fill them with weights;
//! - `issue`: one thread gives the tensor cores their work;
//! - `finish`: four warps bring sums to C.
//!
//! Where gate is *ahead* of up, over some last stages of k or over all of it, the finishing warps get its sums earlier
//! and compute its function while up's products are summed.

mod dequantise;
mod finish;
mod issue;
mod pipeline;
mod produce;
mod work;

use ptx::descriptor::Swizzle;
use ptx::instr::Semantics;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{
    Barriers, Builder, CtaGroup, Error, Kernel, LaunchBounds, Reg, Scope, Shared, SpecialRegister, Target,
    TensorAddress, U32, Value,
};

use super::arrange::Padding;
use super::slabs::{BLOCK_ROWS, DEPTH, PERIOD_ROWS, ROW_BYTES, SCALE_BYTES, UNIT};
use crate::families::choice::CAPACITIES;
pub use crate::families::choice::{Products, Tokens};
use crate::launch::Spec;
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::MOST_EXPERTS;
use op::{Epilogue, Output, Schedule};
use pipeline::Pipeline;
use work::Work;

pub(super) use work::TOKEN_WORDS;

/// What the kernels are assembled for.
pub(super) const TARGET: Target = Target::Sm100f;
/// Warps that finish tiles: one for each quarter of tensor memory's lanes. Then those that bring weights, the one that
/// brings tokens, and the one that multiplies.
const FINISHING_WARPS: u32 = 4;
const FINISHING_THREADS: u32 = FINISHING_WARPS * 32;
/// The warp, one of those that finish, that allocates tensor memory and gives it back.
const FREEING_WARP: u32 = 0;
/// The thread that makes barriers: of another warp, since the one that allocates must be whole for it.
const FIRST_THREAD: u32 = 32;
/// Warps that bring weights where they are dequantised.
const EXPANDING_WARPS: u32 = 4;
const EXPANDING_THREADS: u32 = EXPANDING_WARPS * 32;
/// Columns by which multiplications go. The ISA has steps of eight for block-scaled ones of one block, of which silicon
/// is only known to take the first.
pub(super) const WIDE_STEP: u32 = 16;
/// Tokens, or columns, of a pair's tile, and the blocks of it.
const PAIR_ROWS: u32 = 2 * BLOCK_ROWS;
const BOTH_BLOCKS: u16 = 3;
/// The blocks of a cluster of two pairs, and of those the ones that have the same tokens as the first.
const ALL_BLOCKS: u16 = 0b1111;
const SAME_TOKENS: u16 = 0b0101;
/// The hardware barrier of the finishing warps.
const FINISHING_BARRIER: u32 = 1;
/// Columns of tensor memory that a block of scales of one stage takes: four for each unit.
const BLOCK_COLUMNS: u32 = 16;
/// Columns of tensor memory, and what allocations of them are at least.
const TENSOR_COLUMNS: u32 = 512;
const LEAST_COLUMNS: u32 = 32;
/// Bytes that are stored at a time.
const STORE_BYTES: u32 = 16;
/// The most stages a pipeline may have.
const MOST_STAGES: u32 = 16;

/// How a kernel is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMultiplySpec {
    /// Which products.
    pub products: Products,
    /// Sets of accumulators: with two, one is finished while the other is summed.
    pub sets: u32,
    /// What tokens are made of, unless they are NVFP4.
    pub element: Option<Tokens>,
    /// Tokens of a tile: 128, or 256 for a pair of blocks; or a multiple of 16 below, or 8 (not of 16 bits, nor for a
    /// pair).
    pub tokens: u32,
    /// Columns of C of a tile: 64 or 128, of 16-bit tokens 32 as well; with fewer than 128 tokens 128, or 256 for a
    /// pair of blocks.
    pub columns: u32,
    /// Stages of the pipeline, each 256 of k (of 16 bits: 64).
    pub stages: u32,
    /// How values get to C.
    pub epilogue: Epilogue,
    /// Which block computes which tile.
    pub schedule: Schedule,
    /// Tiles side by side that share their tokens' copies: two pairs, or 1.
    pub multicast: u32,
    /// Stages at the end of k over which gate is ahead of up.
    pub ahead: u32,
    /// Whether rows of every group's C are a multiple of 16 bytes.
    pub aligned: bool,
    /// What becomes of gate and up.
    pub function: Function,
    /// The type of C.
    pub output: Output,
    /// Groups that a launch may have: one of [`CAPACITIES`].
    pub groups: u32,
    /// Whether sums have biases added to them.
    pub biased: bool,
    /// The layer whose experts the groups are, if they are: then the device alone knows how many tokens each has.
    pub experts: Option<Experts>,
}

impl TensorMultiplySpec {
    /// Whether weights are the rows of multiplications, and tokens the columns.
    pub fn swapped(&self) -> bool {
        self.tokens < BLOCK_ROWS
    }

    /// Whether two blocks compute a tile together.
    pub fn paired(&self) -> bool {
        self.tokens == PAIR_ROWS || self.columns == PAIR_ROWS
    }

    /// Blocks that compute a tile together.
    pub fn partners(&self) -> u32 {
        if self.paired() { 2 } else { 1 }
    }

    /// Whether two pairs share the copies of their tokens.
    fn shares(&self) -> bool {
        self.multicast > 1
    }

    /// Whether the gate's sums are handed over before the up matrix's are there: always where gate goes through k
    /// first.
    fn gates_ahead(&self) -> bool {
        (self.ahead > 0 || self.products == Products::Sequential) && !self.leaves_sums()
    }

    /// Blocks of a cluster.
    pub fn cluster_blocks(&self) -> u32 {
        self.partners() * self.multicast
    }

    /// Columns of C of the tiles that share tokens.
    pub fn shared_columns(&self) -> u32 {
        self.columns * self.multicast
    }

    /// Blocks that each sum a part of k.
    pub fn splits(&self) -> u32 {
        if self.schedule == Schedule::SplitK { 2 } else { 1 }
    }

    /// What a tile's tokens are filled up to.
    pub fn padding(&self) -> Padding {
        match (self.swapped(), self.width_step()) {
            (false, _) => Padding::Rows,
            (true, PERIOD_ROWS) => Padding::FewColumns,
            (true, _) => Padding::Columns,
        }
    }

    /// Into how many tiles of at most 128, each with a block of scales, `m` tokens are arranged, and the tokens of each
    /// but the last.
    pub fn arranged(&self, m: u32) -> (u32, u32) {
        let (tiles, tokens) = self.cut(m);
        if self.tokens == PAIR_ROWS { (2 * tiles, BLOCK_ROWS) } else { (tiles, tokens) }
    }

    /// Columns by which multiplications go: eight where a tile has no more.
    fn width_step(&self) -> u32 {
        if self.element.is_some() || self.paired() || self.tokens != PERIOD_ROWS { WIDE_STEP } else { PERIOD_ROWS }
    }

    /// Numbers that make up one token's element.
    fn parts(&self) -> u32 {
        self.element.map_or(1, Tokens::parts)
    }

    /// Columns of k of a stage.
    pub fn depth(&self) -> u32 {
        if self.element.is_some() { UNIT } else { DEPTH }
    }

    /// Warps that bring weights.
    fn weight_warps(&self) -> u32 {
        if self.element.is_some() { EXPANDING_WARPS } else { 1 }
    }

    fn token_warp(&self) -> u32 {
        FINISHING_WARPS + self.weight_warps()
    }

    fn multiplying_warp(&self) -> u32 {
        self.token_warp() + 1
    }

    fn threads(&self) -> u32 {
        (self.multiplying_warp() + 1) * 32
    }

    /// Columns of a multiplication.
    fn width(&self) -> u32 {
        if self.swapped() { self.tokens } else { self.columns }
    }

    /// Rows of tokens, and of a matrix's weights, in a stage of a block.
    fn token_rows(&self) -> u32 {
        self.tokens / self.partners()
    }

    fn weight_rows(&self) -> u32 {
        self.columns / self.partners()
    }

    /// Rows of tokens that a block brings: all that it has in a stage, or its half of those that two blocks share.
    fn brought_rows(&self) -> u32 {
        self.token_rows() / self.multicast
    }

    /// Matrices of weights in a stage.
    pub fn matrices(&self) -> u32 {
        if self.products == Products::Interleaved { 2 } else { 1 }
    }

    /// Times that a block goes through k for a tile.
    pub fn passes(&self) -> u32 {
        if self.products == Products::Sequential { 2 } else { 1 }
    }

    /// Accumulators of a tile: one for each product.
    fn accumulators(&self) -> u32 {
        self.matrices() * self.passes()
    }

    /// Blocks of scales of a stage: one of tokens, and one of each matrix, of whose 128 rows a tile's may be half.
    fn scale_blocks(&self) -> u32 {
        if self.element.is_some() { 0 } else { 1 + self.matrices() }
    }

    /// Columns of tensor memory of one set of accumulators.
    fn set_columns(&self) -> u32 {
        self.accumulators() * self.width()
    }

    /// The column of tensor memory from which scales are.
    fn scale_column(&self) -> u32 {
        (self.sets * self.set_columns()).next_multiple_of(LEAST_COLUMNS)
    }

    /// Columns of tensor memory.
    pub fn tensor_columns(&self) -> u32 {
        let used = self.scale_column() + self.stages * self.scale_blocks() * BLOCK_COLUMNS;
        used.next_power_of_two().max(LEAST_COLUMNS)
    }

    /// Bytes of a stage: codes of tokens, codes of weights, scales.
    pub fn stage_bytes(&self) -> [u32; 3] {
        let weights = self.matrices() * self.weight_rows() * ROW_BYTES;
        [self.token_rows() * ROW_BYTES * self.parts(), weights, self.scale_blocks() * SCALE_BYTES]
    }

    /// Bytes of shared memory: what the phases declare, added up.
    pub fn shared_bytes(&self) -> u32 {
        let of_sets = 1 + u32::from(self.has_several_tiles()) + u32::from(self.gates_ahead());
        let barriers = 2 * self.stages + self.sets * of_sets;
        let stages = self.stages * self.stage_bytes().iter().sum::<u32>();
        let declared = stages + barriers * Barriers::STRIDE + 4;
        self.experts.map_or(declared, |experts| declared.next_multiple_of(16) + experts.layout_bytes())
    }

    /// Whether a block may have several tiles.
    fn has_several_tiles(&self) -> bool {
        self.schedule == Schedule::Persistent
    }

    /// Blocks that take part in one tile, or in those that share tokens.
    pub fn blocks_per_tile(&self) -> u32 {
        self.splits() * self.cluster_blocks()
    }

    /// Whether sums are left in planes of their own, neither gated nor rounded, for others to join.
    pub fn leaves_sums(&self) -> bool {
        self.schedule == Schedule::SplitK
    }

    /// The type of what is stored.
    fn stored(&self) -> Output {
        if self.leaves_sums() { Output::F32 } else { self.output }
    }

    /// Into how many tiles `m` tokens are cut, and the tokens of each but the last: alike in steps where tokens are
    /// columns.
    pub fn cut(&self, m: u32) -> (u32, u32) {
        let tiles = m.div_ceil(self.tokens);
        if !self.swapped() {
            return (tiles, self.tokens);
        }
        let tokens = m.div_ceil(tiles).next_multiple_of(self.width_step());
        (m.div_ceil(tokens), tokens)
    }

    fn group(&self) -> CtaGroup {
        if self.paired() { CtaGroup::Two } else { CtaGroup::One }
    }

    /// What a barrier that the other block tells of is waited for at.
    fn scope(&self) -> Scope {
        if self.paired() { Scope::Cluster } else { Scope::Block }
    }

    /// The tensor map of a group's tokens of 16 bits: `m` rows of `k` numbers at `address`, and further parts
    /// `part_bytes` apart.
    pub fn token_map(&self, address: u64, [m, k]: [u32; 2], part_bytes: u64) -> TensorMap {
        let element = if self.element == Some(Tokens::F16) { Element::F16 } else { Element::Bf16 };
        let mut map = TensorMap {
            element,
            address,
            dims: vec![k.into(), m.into()],
            strides: vec![u64::from(k) * 2],
            tile: vec![UNIT, self.brought_rows()],
            swizzle: Swizzle::B128,
        };
        if self.parts() > 1 {
            map.dims.push(self.parts().into());
            map.strides.push(part_bytes);
            map.tile.push(1);
        }
        map
    }

    /// The tensor maps of slabs that two pairs share, `bytes` of them at `address`: rows of 128 bytes, as many as a
    /// block brings of codes, and of scales. Slabs are in order already, so a plain copy would do; but of copies that
    /// several blocks receive only those by tensor maps are known from silicon.
    pub fn slab_maps(&self, address: u64, bytes: u64) -> Vec<TensorMap> {
        let map = |rows: u32| TensorMap {
            element: Element::U8,
            address,
            dims: vec![ROW_BYTES.into(), bytes / u64::from(ROW_BYTES)],
            strides: vec![ROW_BYTES.into()],
            tile: vec![ROW_BYTES, rows],
            swizzle: Swizzle::None,
        };
        [self.brought_rows(), SCALE_BYTES / self.multicast / ROW_BYTES].map(map).into()
    }

    /// Whether the hardware has room for it, and the phases fit together.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        let tokens = self.tokens == PAIR_ROWS || (PERIOD_ROWS..=BLOCK_ROWS).contains(&self.tokens);
        if !self.tokens.is_multiple_of(self.width_step()) || !tokens {
            let wanted = "128, 256 for a pair of blocks, a multiple of 16 below, or 8 of NVFP4 tokens by one block: the \
                rows or the columns of a multiplication";
            return refuse("tokens of a tile", self.tokens, wanted);
        }
        if self.swapped() && ![BLOCK_ROWS, PAIR_ROWS].contains(&self.columns) {
            let wanted = "128 with fewer than 128 tokens, or 256 for a pair of blocks: tensor memory has 128 lanes, \
                kind::mxf4nvf4 fills all of them and there is no multiplication of 64 rows, so weights are its rows then; \
                or ask for 128 tokens";
            return refuse("columns of a tile", self.columns, wanted);
        }
        if !self.swapped() && self.element.is_none() && ![64, 128].contains(&self.columns) {
            // Tiles of 32 and 96 would begin at an odd one.
            let wanted = "64 or 128 with NVFP4 tokens: scales of 32 rows of weights share a column of tensor memory, and a \
                multiplication's scales begin at an even column";
            return refuse("columns of a tile", self.columns, wanted);
        }
        if !self.swapped() && self.element.is_some() && ![32, 64, 128].contains(&self.columns) {
            let wanted = "32, 64 or 128 with tokens of 16 bits: four warps dequantise as many rows each";
            return refuse("columns of a tile", self.columns, wanted);
        }
        if self.multicast != 1 && (self.multicast != 2 || self.tokens != PAIR_ROWS) {
            let wanted = "1, or 2 with tiles of 256 tokens: two pairs, a cluster of four blocks, have the same tokens as rows; where \
                tokens are columns, weights are most of what is read";
            return refuse("tiles that share tokens (multicast)", self.multicast, wanted);
        }
        if self.ahead > 0 && (self.products != Products::Interleaved || self.sets > 1 || self.leaves_sums()) {
            let wanted = "0, or with strategy=interleaved and schedule=tile or persistent up to as many as there are stages: two passes and \
                split-k leave sums as they are, sequential has gate ahead over all of k, and ping-pong finishes beside the next tile";
            return refuse("stages over which gate is ahead", self.ahead, wanted);
        }
        if self.ahead > self.stages {
            let wanted = "at most as many as the pipeline has: up finds them where gate has left them";
            return refuse("stages over which gate is ahead", self.ahead, wanted);
        }
        if !(1..=MOST_STAGES).contains(&self.stages) {
            return refuse("pipeline stages", self.stages, "1 to 16");
        }
        if !(1..=2).contains(&self.sets) {
            return refuse("sets of accumulators", self.sets, "1 or 2");
        }
        if self.sets > 1 && !self.has_several_tiles() {
            let wanted = "schedule=persistent: a block needs several tiles to finish one while it sums the next";
            return refuse("tiles of a ping-pong block", 1, wanted);
        }
        if self.epilogue != Epilogue::Direct {
            let wanted = "epilogue=direct: sums go from tensor memory to registers, and from there to C";
            return refuse("staged rows of C", 1, wanted);
        }
        if !CAPACITIES.contains(&self.groups) {
            return refuse("groups of a launch", self.groups, "1, 8, 32 or 128");
        }
        if let Some(experts) = self.experts {
            self.check_experts(experts)?;
        }
        if self.tensor_columns() > TENSOR_COLUMNS {
            let wanted = "at most 512: fewer stages, each of which has columns for its scales, or a smaller tile";
            return refuse("columns of tensor memory", self.tensor_columns(), wanted);
        }
        if self.shared_bytes() > TARGET.shared_limit() {
            let wanted = "at most 232448 bytes: fewer stages or a smaller tile";
            return refuse("bytes of shared memory", self.shared_bytes(), wanted);
        }
        Ok(())
    }

    fn check_experts(&self, experts: Experts) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !(1..=MOST_EXPERTS).contains(&experts.count) {
            return refuse("experts", experts.count, "1 to 1024");
        }
        if self.schedule != Schedule::Persistent {
            let wanted = "schedule=persistent: only the device knows how many there are";
            return refuse("tiles of a block", 1, wanted);
        }
        if self.paired() {
            return refuse("blocks of an expert's tile", 2, "1: tiles of at most 128 tokens and 128 columns");
        }
        if self.element.is_none() {
            return refuse("bits of an expert's rows", 4, "16: rows lie where tensor maps find them");
        }
        Ok(())
    }
}

/// What every phase works with.
struct Parts {
    config: TensorMultiplySpec,
    work: Work,
    pipe: Pipeline,
    place: Place,
}

/// Where a block is in its cluster.
#[derive(Clone, Copy)]
struct Place {
    /// Which block of its pair.
    rank: Option<Reg<U32>>,
    /// Which of two pairs.
    pair: Option<Reg<U32>>,
}

impl Place {
    fn new(k: &mut Builder, config: TensorMultiplySpec) -> Self {
        if !config.paired() {
            return Place { rank: None, pair: None };
        }
        let rank = k.special(SpecialRegister::ClusterCtaRank);
        if !config.shares() {
            return Place { rank: Some(rank), pair: None };
        }
        Place { rank: Some(k.and(rank, 1)), pair: Some(k.shr(rank, 1)) }
    }
}

impl Parts {
    /// `rows` times this block's place in its pair, added to `first`.
    fn own(&self, k: &mut Builder, rows: impl Into<Value<U32>>, first: Reg<U32>) -> Reg<U32> {
        match self.place.rank {
            Some(rank) => k.mul_add(rank, rows, first),
            None => first,
        }
    }
}

impl Spec for TensorMultiplySpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// Builds the kernel. Its arguments, in order: the table of where tokens are (of 16 bits: their tensor maps), the
/// tensor maps of slabs that two pairs share, the table of groups, that of biases if there are some, the number of
/// tiles, and the gate's limit. For experts: the tensor map of all rows, then what [`crate::phases::experts`] declares,
/// and the gate's limit.
///
/// Who waits for whom is in `pipeline`, and nowhere else; but that the finishing warps, of a pair those of both blocks,
/// meet before tensor memory is given back.
pub fn kernel(config: TensorMultiplySpec) -> Result<Kernel, Error> {
    config.check()?;
    let cluster = config.paired().then_some([config.cluster_blocks(), 1, 1]);
    let launch = LaunchBounds { threads: config.threads(), cluster, min_blocks: Some(1) };
    let mut k = Builder::new("nvfp4_dual_gemm_tcgen05", TARGET, launch);
    let place = Place::new(&mut k, config);
    let (mut work, pipe) = (Work::declare(&mut k, config, place), Pipeline::declare(&mut k, config, place));
    work.groups.declare_layout(&mut k);
    let parts = Parts { config, work, pipe, place };
    let thread = k.special(SpecialRegister::TidX);
    let warp = k.shr(thread, 5);
    let warp = k.broadcast(warp);
    let address = parts.pipe.tensor_address.at(0);
    let base = k.phase("prepare", |k| {
        if config.paired() {
            k.cluster_arrive(Semantics::Relaxed, true);
        }
        let first = k.eq(thread, FIRST_THREAD);
        k.if_(first, |k| {
            parts.pipe.prepare(k);
            k.fence_barrier_init();
        });
        if config.paired() {
            // Columns of a pair are allocated when both blocks are known to have begun.
            k.cluster_wait(true);
        }
        let allocates = k.eq(warp, FREEING_WARP);
        k.if_(allocates, |k| {
            k.tensor_alloc(config.group(), address, config.tensor_columns());
            k.tensor_relinquish(config.group());
        });
        parts.work.groups.fetch_layout(k, thread);
        k.tensor_fence_before_sync();
        if config.paired() {
            // All blocks' barriers and columns are there before either is told of anything.
            k.cluster_arrive(Semantics::Ordered, true);
            k.cluster_wait(true);
        } else {
            k.sync_threads();
        }
        k.tensor_fence_after_sync();
        if config.experts.is_none() {
            k.launch_dependents();
        }
        k.load::<TensorAddress, Shared>(address)
    });
    let (finishes, brings) = (k.lt(warp, FINISHING_WARPS), k.lt(warp, config.token_warp()));
    let not_finishing = k.opposite(finishes);
    let weights = k.both(brings, not_finishing);
    let (tokens, multiplies) = (k.eq(warp, config.token_warp()), k.eq(warp, config.multiplying_warp()));
    k.if_(weights, |k| match config.element {
        None => k.phase("produce", |k| produce::weights(k, &parts)),
        Some(_) => k.phase("dequantise", |k| {
            let own = k.sub(thread, FINISHING_THREADS);
            dequantise::weights(k, &parts, own);
        }),
    });
    k.if_(tokens, |k| k.phase("produce", |k| produce::tokens(k, &parts)));
    k.if_(multiplies, |k| k.phase("multiply", |k| issue::multiply(k, &parts, base)));
    k.if_(finishes, |k| {
        k.phase("finish", |k| finish::finish(k, &parts, base, warp));
        k.phase("leave", |k| {
            k.tensor_fence_before_sync();
            if config.paired() {
                k.cluster_arrive(Semantics::Ordered, true);
                k.cluster_wait(true);
            } else {
                k.named_sync(FINISHING_BARRIER, FINISHING_THREADS);
            }
            let frees = k.eq(warp, FREEING_WARP);
            k.if_(frees, |k| {
                k.tensor_fence_after_sync();
                k.tensor_dealloc(config.group(), base, config.tensor_columns());
            });
        });
    });
    k.finish()
}
