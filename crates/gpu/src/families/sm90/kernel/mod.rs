//! The Hopper kernels: C = gate(α₁·A·B1ᵀ) ∘ (α₂·A·B2ᵀ), tokens A (m × k) in 16 bits times FP4 weights B (n × k), for
//! one problem or for a ragged group of them in one launch.
//!
//! Hopper's tensor cores know no FP4, so the weights become halves (or bfloat16) in registers, exactly, on their way to
//! `wgmma`. That works because wgmma takes its A operand from registers: the roles are swapped, weight rows are the M =
//! 64 side and tokens the N side, any multiple of 8 of them.
//!
//! Every strategy is made of the same phases. A [`MultiplySpec`] says how they are put together; [`kernel`] is where it
//! happens:
//!
//! - `work`: the groups, and which tile of which group a block computes next, also where only the device knows them;
//!   blocks with several tiles have one lane that finds them for the consumers;
//! - `pipeline`: the stages in shared memory and the two barriers of each, with everything that is ever done to them;
//! - `produce`: two threads fill the stages, one with tokens through a tensor map and one with chunks of weights by
//!   bulk copy;
//! - `fragments`: codes and scales of a chunk become a fragment of weights; `bytes`: those of FP8 do;
//! - `consume`: the main loop, one warpgroup's fragments against the tokens of a stage;
//! - `overlap`: main loops of blocks with several tiles in which the tile before is stored;
//! - `combine`: sums of the same elements that several warpgroups or blocks hold are added up;
//! - `epilogue`: the gate, the rounding, and the way to C;
//! - `beside`: what low-rank adapters add there to few tokens.
//!
//! A *block of rows* is what one wgmma covers: 64 weight rows from two chunks (see [`crate::pack`]). Where gate and up
//! are interleaved, the two chunks are of the same 32 columns of both matrices, so a thread holds a column's gate and
//! up sums side by side; elsewhere they are 64 neighbouring columns of one matrix.
//!
//! FP8 weights, of plain products, have the same phases, too: chunks of eight bits per weight, and factors of columns
//! in the epilogue. Where scales are of blocks, the sums of a unit begin from zero and are added to the total with
//! their scale; that takes a second set of sums, so tiles have up to some 136 tokens. While one warpgroup adds, the
//! others multiply.
//!
//! Tokens that were rounded to e4m3, if that is asked for ([`op::Precision::Fp8`]), have the same phases: weights
//! become e4m3 on their way, two slices of 16 are one multiplication of 32, and a row of tokens in shared memory holds
//! two units. Tensor copies of rows of one unit, 64 bytes, are slower: layers with 4096 tokens took 1 to 2 % longer.
//!
//! A multiprocessor has one block with all of its shared memory and registers; or, where few tokens need little of
//! both, two. Then a launch begins beside the one before it: while that one computes, its blocks ask for the weights of
//! their first stages, which depend on nobody, and wait for their tokens.
//!
//! **Below about 100 tokens the bottleneck is instruction issue.** A wgmma of 64 rows, T tokens and 16 of k takes T/2
//! cycles of the tensor core, and a warp issues one instruction per cycle: dequantising the operand, loading its words
//! and starting the wgmma take some twenty. Every instruction less helps. Reading the words seemed to cost another 9 to
//! 12 cycles between 16 and 96 tokens. They were instructions too: the loop without loads that it was compared with had
//! lost its masks, which the assembler had moved in front of it (14 instructions per slice instead of 24). Loading
//! later, or two units ahead, changed nothing: 38.6, 38.4 and 38.1 cycles with 48 tokens and four warpgroups.
//!
//! With up to 16 tokens warps can multiply by themselves ([`MultiplySpec::by_warps`]). That takes about as many
//! instructions (as assembled, 307 instead of 323 for four units and 8 tokens, 329 for 16), but there is no fence
//! before a unit's products, nor a wait behind them. Sums are added in the same order, and had the same bits in the
//! simulator and in all layers that were tried on an H200; nothing says that tensor cores cut both off alike. Layers
//! take up to 3 % less time so. Plain products take more, 10.97, 11.03, 11.08 and 12.37 µs with 1, 4, 8 and 16 tokens
//! instead of 10.86, 10.90, 10.95 and 11.31 (4096×7168).

mod beside;
mod bytes;
mod combine;
mod consume;
mod epilogue;
mod fragments;
mod overlap;
mod pipeline;
mod produce;
mod work;

use std::ops::RangeInclusive;

use ptx::descriptor::MatrixLayout;
use ptx::tensor_map::{Element, TensorMap};
use ptx::{Barriers, Builder, Error, Kernel, LaunchBounds, RegisterChange, SpecialRegister, Target};

pub use crate::families::choice::{CAPACITIES, Products, Tokens};
use crate::fp8::stretch;
use crate::launch::Spec;
use crate::pack::{Codes, Scales};
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use op::{Epilogue, Output, Schedule};
use pipeline::Pipeline;
use work::{TileRing, Work};

/// The hardware barrier of all consumer warpgroups.
const ALL_CONSUMERS: u32 = 1;
/// Columns of k that one chunk of weights holds.
pub const UNIT: u32 = 64;
/// Columns of a tile that a warpgroup has as a *strip*: a thread has one of each.
const STRIP_COLUMNS: u32 = 32;
/// Bytes of a row of tokens in shared memory: the widest swizzle, whose copies are the fastest.
const ROW_BYTES: u32 = 128;
/// How those rows lie.
const TOKEN_LAYOUT: MatrixLayout = MatrixLayout::K_MAJOR_128;
/// Steps of 16 along k in a unit: one wgmma each.
const SLICES: usize = 4;
/// Tokens by which a tile's width may be cut, where tiles have several widths; and where a block has several tiles,
/// since registers do not suffice for so many main loops then.
const WIDTH_STEP: u32 = 16;
const WIDTH_STEP_PERSISTENT: u32 = 32;
/// Tokens of the widest tiles of experts, or of tiles that are stored under the next one's products, of which the
/// widths are as many as registers suffice for also with the smaller step.
const MOST_TOKENS_IN_FINE_STEPS: u32 = 160;
/// The least such width: below it, dequantising takes as long whatever the width.
const LEAST_WIDTH: u32 = 64;
/// Tokens of the widest tiles that warps multiply by themselves: with more, tensor cores lose more by it than is saved.
const MOST_TOKENS_BY_WARPS: u32 = 16;
/// Tokens up to which multiplications are so short that they are waited for by units, not one by one.
const COARSE_TOKENS: u32 = 64;
/// Tokens of e4m3 up to which what rows were divided by is held through a tile's products.
const MOST_FORESEEN: u32 = 192;
/// The most stages a pipeline may have.
const MOST_STAGES: u32 = 16;
/// Shared memory that each of two blocks on a multiprocessor can have: half of its 228 KB, less the 1 KB that each
/// block costs. And the registers of their producers and consumers.
const SHARED_OF_TWO: u32 = (228 / 2 - 1) * 1024;
const BUDGETS_OF_TWO: (u32, u32) = (32, 104);
/// Tokens with which four warpgroups dequantise two blocks of rows, two of them each: fewer are bound by memory, and
/// with more the tensor cores are busy enough, nor are there registers.
const SHARING_TOKENS: RangeInclusive<u32> = 40..=64;

/// How a kernel is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MultiplySpec {
    /// Which products.
    pub products: Products,
    /// Whether the two consumer warpgroups compute tiles of their own, in turn.
    pub ping_pong: bool,
    /// The most tokens of a tile: a multiple of 8, at most 256.
    pub tokens: u32,
    /// Columns of C of a tile.
    pub columns: u32,
    /// Units of 64 along k in a stage.
    pub units: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// How values get to C.
    pub epilogue: Epilogue,
    /// Which block computes which tile.
    pub schedule: Schedule,
    /// Units of a tile under whose products the block's tile before it is stored; 0 where it is stored before.
    pub under: u32,
    /// Whether each warp multiplies by itself.
    pub by_warps: bool,
    /// What tokens are made of.
    pub element: Tokens,
    /// What becomes of gate and up.
    pub function: Function,
    /// The type of C.
    pub output: Output,
    /// Groups that a launch may have: one of [`CAPACITIES`].
    pub groups: u32,
    /// Whether sums have biases added to them.
    pub biased: bool,
    /// How scales of weights lie.
    pub scales: Scales,
    /// The layer whose experts the groups are, if they are: then the device alone knows how many tokens each has.
    pub experts: Option<Experts>,
}

/// How the blocks of rows of a tile are shared out among warpgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    /// Consumer warpgroups with different columns.
    along_n: u32,
    /// Consumer warpgroups with different steps of k of the same columns.
    along_k: u32,
    /// Blocks of rows of each.
    blocks: u32,
}

impl MultiplySpec {
    /// What the words of weights are in order for: those of experts may be packed for the tokens that they will meet.
    fn codes(&self) -> Codes {
        self.experts.map_or(Codes::Halves, |experts| experts.codes)
    }

    /// Columns of C that one block of rows covers.
    fn block_columns(&self) -> u32 {
        if self.products == Products::Interleaved { 32 } else { 64 }
    }

    /// Blocks of rows of a tile.
    pub fn blocks(&self) -> u32 {
        self.columns / self.block_columns()
    }

    /// Accumulators of a thread for each block of rows: with gate and up apart, two sets.
    pub fn passes(&self) -> u32 {
        if self.products == Products::Sequential { 2 } else { 1 }
    }

    /// Whether two blocks of rows have two warpgroups each, every other stage for one of them. Unrolled for four units,
    /// their loop would need more registers.
    fn shared_rows(&self) -> bool {
        let simple = self.passes() == 1 && self.units < 4 && self.stages.is_multiple_of(2);
        simple && self.element != Tokens::E4m3 && SHARING_TOKENS.contains(&self.tokens)
    }

    fn division(&self) -> Division {
        let (along_n, along_k, blocks) = match (self.ping_pong, self.blocks()) {
            (true, blocks) => (1, 1, blocks),
            (false, 1) => (1, 2, 1),
            (false, 2) if self.shared_rows() => (2, 2, 1),
            (false, 4) if self.experts.is_some() && self.tokens <= COARSE_TOKENS => (4, 1, 1),
            (false, 4) => (2, 1, 2),
            (false, blocks) => (blocks, 1, 1),
        };
        Division { along_n, along_k, blocks }
    }

    /// Whether blocks find their tiles themselves, each of one row.
    fn finds_tiles(&self) -> bool {
        self.experts.is_some_and(|experts| experts.direct.is_some())
    }

    /// Columns of a warpgroup.
    pub fn piece(&self) -> u32 {
        self.division().blocks * self.block_columns()
    }

    /// Consumer warpgroups.
    fn warpgroups(&self) -> u32 {
        let Division { along_n, along_k, .. } = self.division();
        if self.ping_pong { 2 } else { along_n * along_k }
    }

    fn threads(&self) -> u32 {
        (self.warpgroups() + 1) * 128
    }

    /// Chunks of weights in one unit of k of a tile.
    fn chunks(&self) -> u32 {
        2 * self.blocks()
    }

    fn width_step(&self) -> u32 {
        let few = (self.experts.is_some() || self.under > 0) && self.tokens <= MOST_TOKENS_IN_FINE_STEPS;
        if self.schedule == Schedule::Persistent && !few { WIDTH_STEP_PERSISTENT } else { WIDTH_STEP }
    }

    /// The least of several widths. Main loops in which tiles are stored are long, so that there are but three.
    fn least_width(&self) -> u32 {
        if self.under > 0 { self.tokens.saturating_sub(2 * WIDTH_STEP).max(LEAST_WIDTH) } else { LEAST_WIDTH }
    }

    /// The numbers of tokens for which there is a main loop, rising; a tile takes the least that covers its tokens.
    pub fn widths(&self) -> Vec<u32> {
        let several = self.tokens > LEAST_WIDTH && self.tokens.is_multiple_of(self.width_step());
        if several && self.schedule != Schedule::SplitK {
            (self.least_width()..=self.tokens).step_by(self.width_step() as usize).collect()
        } else {
            vec![self.tokens]
        }
    }

    /// Tokens that one tensor copy brings for a group of `m`: as many as its largest tile multiplies.
    fn box_tokens(&self, m: u32) -> u32 {
        if self.widths().len() > 1 { self.cut(m).1.max(self.least_width()) } else { self.tokens }
    }

    /// Bytes of a token's part in one unit of k.
    fn token_bytes(&self) -> u32 {
        UNIT * self.element.bytes()
    }

    /// Units of k in a row of tokens in shared memory, and hence in a copy of rows.
    fn row_units(&self) -> u32 {
        ROW_BYTES / self.token_bytes()
    }

    /// Bytes from a stage's tokens to those of a unit.
    fn unit_offset(&self, unit: u32) -> u32 {
        let [rows, column] = [unit / self.row_units(), unit % self.row_units()];
        rows * self.row_units() * self.unit_bytes()[0] + column * self.token_bytes()
    }

    /// Bytes of one unit of k in a stage: tokens, and weights.
    pub fn unit_bytes(&self) -> [u32; 2] {
        [self.tokens * self.element.parts() * self.token_bytes(), self.chunks() * self.scales.chunk_bytes()]
    }

    /// Blocks that a multiprocessor holds at a time. Where there is room for two, the next launch's blocks begin beside
    /// the present one's and ask for their weights while those still compute.
    pub fn resident(&self) -> u32 {
        let registers = self.held_registers() + self.spare_registers();
        let fits = self.shared_bytes() <= SHARED_OF_TWO && registers <= BUDGETS_OF_TWO.1;
        let simple = self.warpgroups() == 2 && self.passes() == 1;
        let simple = simple && (self.schedule != Schedule::Persistent || self.experts.is_some());
        if simple && fits { 2 } else { 1 }
    }

    /// Registers per thread of the producers and of the consumers: together no more than a block's threads are started
    /// with, or consumers would wait for more for ever.
    fn register_budgets(&self) -> (u32, u32) {
        match (self.resident(), self.warpgroups()) {
            (2, _) => BUDGETS_OF_TWO,
            (_, 1 | 2) => (40, 232),
            (_, 3) => (32, 160),
            _ => (32, 112),
        }
    }

    /// Whether the sums of a unit are made apart, since they have scales of their own.
    pub(super) fn scales_sums(&self) -> bool {
        self.stretch().is_some()
    }

    /// Elements of k whose sums have a scale of their own, if they have.
    fn stretch(&self) -> Option<u32> {
        stretch(self.scales.scaling(), self.element)
    }

    /// Sets of fragments of a consumer: two with the coarse main loop, which is for few tokens and several units a
    /// stage.
    fn fragment_sets(&self) -> u32 {
        if self.element == Tokens::E4m3 {
            return 2;
        }
        if self.tokens <= COARSE_TOKENS && self.units > 1 && self.stages > self.division().along_k { 2 } else { 1 }
    }

    /// Whether there is room to hold what rows were divided by through a tile's products, where they were rounded to
    /// e4m3.
    fn foresees_scales(&self) -> bool {
        self.element == Tokens::E4m3 && self.division().blocks * self.tokens <= MOST_FORESEEN
    }

    /// Whether multiplications of e4m3 numbers are waited for one by one: for the widest of a block's several tiles the
    /// assembler lacks the registers.
    pub(super) fn rounds_finely(&self) -> bool {
        self.element == Tokens::E4m3 && (self.schedule != Schedule::Persistent || self.tokens <= MOST_FORESEEN)
    }

    /// Registers that a consumer's sums, fragments, words and scales take.
    fn held_registers(&self) -> u32 {
        let Division { blocks, .. } = self.division();
        let set = fragments::SET_REGISTERS / if self.element == Tokens::E4m3 { 2 } else { 1 };
        let fragments = fragments::Fragments::word_registers(self.scales) + set * self.fragment_sets();
        let sets = if self.under > 0 || self.scales_sums() { 2 } else { self.passes() };
        let foreseen = if self.foresees_scales() { self.tokens.div_ceil(32) } else { 0 };
        blocks * (sets * self.tokens / 2 + fragments) + foreseen
    }

    /// What else it holds, as far as the assembler has been seen to need: more where there are main loops for several
    /// widths or long ones, and where warpgroups take turns with tiles.
    fn spare_registers(&self) -> u32 {
        match (self.ping_pong, self.tokens, self.units) {
            (true, ..) | (false, ..=96, 4) => 52,
            (false, ..=96, _) => 28,
            (false, ..) if self.element == Tokens::E4m3 && self.experts.is_some() => 60,
            (false, ..) if self.scales.is_fp8() && self.schedule == Schedule::Persistent => 50,
            (false, ..) => 46,
        }
    }

    /// Bytes of shared memory: what the phases declare, added up.
    pub fn shared_bytes(&self) -> u32 {
        let [tokens, weights] = self.unit_bytes().map(|bytes| bytes * self.units * self.stages);
        let barriers = 2 * self.stages + if self.ping_pong { 2 } else { 0 };
        let declared = tokens + weights + barriers * Barriers::STRIDE;
        // Scratch memory is a part of the stages where it can be.
        let reuses = self.schedule != Schedule::Persistent;
        let apart =
            |end: u32, bytes: u32| if reuses && bytes <= tokens { end } else { end.next_multiple_of(16) + bytes };
        let end = combine::Combine::scratch_bytes(self).map_or(declared, |bytes| apart(declared, bytes));
        let end = combine::Combine::received_bytes(self)
            .map_or(end, |bytes| end.next_multiple_of(16) + bytes + self.division().along_n * Barriers::STRIDE);
        let end = epilogue::Finish::scratch_bytes(self).map_or(end, |bytes| apart(end, bytes));
        let shrunk = self.shrunk_bytes();
        let end = if shrunk > 0 { end.next_multiple_of(16) + shrunk } else { end };
        let ring = work::TileRing::bytes(self);
        let end = if ring > 0 { end.next_multiple_of(16) + ring } else { end };
        self.experts.map_or(end, |experts| end.next_multiple_of(16) + experts.layout_bytes())
    }

    /// Whether two warpgroups have different steps of k of the same columns.
    pub fn shares_k(&self) -> bool {
        self.division().along_k > 1
    }

    /// Blocks that take part in one tile.
    pub fn blocks_per_tile(&self) -> u32 {
        if self.schedule == Schedule::SplitK { 2 } else { 1 }
    }

    /// Into how many tiles `m` tokens are cut, and the tokens of each but the last: alike as far as widths allow.
    pub fn cut(&self, m: u32) -> (u32, u32) {
        let tiles = m.div_ceil(self.tokens);
        if self.widths().len() > 1 {
            let tokens = m.div_ceil(tiles).next_multiple_of(self.width_step());
            (m.div_ceil(tokens), tokens)
        } else {
            (tiles, self.tokens)
        }
    }

    /// The tensor map of a group's tokens: `m` rows of `k` numbers at `address`, and further parts `part_bytes` apart.
    pub fn token_map(&self, address: u64, [m, k]: [u32; 2], part_bytes: u64) -> TensorMap {
        self.row_map(address, [m, k], part_bytes, self.box_tokens(m))
    }

    /// The tensor map of so many rows of which a copy brings `tokens`.
    pub fn row_map(&self, address: u64, [m, k]: [u32; 2], part_bytes: u64, tokens: u32) -> TensorMap {
        let parts = self.element.parts();
        let mut map = TensorMap {
            element: match self.element {
                Tokens::F16 => Element::F16,
                Tokens::E4m3 => Element::U8,
                _ => Element::Bf16,
            },
            address,
            dims: vec![k.into(), m.into()],
            strides: vec![u64::from(k * self.element.bytes())],
            tile: vec![UNIT * self.row_units(), tokens],
            swizzle: TOKEN_LAYOUT.swizzle,
        };
        if parts > 1 {
            map.dims.push(parts.into());
            map.strides.push(part_bytes);
            map.tile.push(1);
        }
        map
    }

    /// Whether the hardware has room for it, and the phases fit together.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !self.tokens.is_multiple_of(8) || !(8..=256).contains(&self.tokens) {
            return refuse("tokens of a tile", self.tokens, "a multiple of 8 from 8 to 256: the N side of wgmma");
        }
        let most_blocks = if self.ping_pong { 2 } else { 4 };
        if !self.columns.is_multiple_of(self.block_columns()) || !(1..=most_blocks).contains(&self.blocks()) {
            let wanted = match (self.products, self.ping_pong) {
                (Products::Interleaved, false) => "32, 64, 96 or 128: wgmma takes 32 columns of gate and up",
                (Products::Interleaved, true) => "32 or 64: each warpgroup has a tile of its own",
                (_, false) => "64, 128, 192 or 256: wgmma takes 64 columns of a matrix",
                (_, true) => "64 or 128: each warpgroup has a tile of its own",
            };
            return refuse("columns of a tile", self.columns, wanted);
        }
        if ![1, 2, 4].contains(&self.units) {
            let found = u64::from(self.units) * u64::from(UNIT);
            let (what, wanted) = ("depth of a stage", "64, 128 or 256: one, two or four chunks");
            return Err(Error::Field { what, found, wanted });
        }
        if !(1..=MOST_STAGES).contains(&self.stages) {
            return refuse("pipeline stages", self.stages, "1 to 16");
        }
        if self.division().along_k > 1 && !self.stages.is_multiple_of(2) {
            let wanted = "an even number where two warpgroups share K: each has every other stage";
            return refuse("pipeline stages", self.stages, wanted);
        }
        if self.element == Tokens::E4m3 {
            self.check_rounded()?;
        }
        if self.scales.is_fp8() {
            self.check_fp8()?;
        }
        if self.ping_pong && self.schedule != Schedule::Persistent {
            let wanted = "schedule=persistent: a block needs several tiles for its warpgroups to take turns";
            return refuse("tiles of a ping-pong block", 1, wanted);
        }
        if self.schedule == Schedule::SplitK && !self.tokens.is_multiple_of(16) {
            return refuse(
                "tokens of a tile",
                self.tokens,
                "a multiple of 16 with schedule=split-k: each block finishes half",
            );
        }
        if self.under > 0 {
            self.check_overlap()?;
        }
        if self.by_warps {
            self.check_by_warps()?;
        }
        self.check_low_rank()?;
        if self.held_registers() + self.spare_registers() > self.register_budgets().1 {
            let wanted = "fewer tokens or columns: sums and fragments must leave room in a thread's registers";
            return refuse("registers of a consumer thread", self.held_registers(), wanted);
        }
        if let Some(experts) = self.experts {
            if !(1..=crate::products::MOST_EXPERTS).contains(&experts.count) {
                return refuse("experts", experts.count, "1 to 1024");
            }
            if self.schedule != Schedule::Persistent {
                let wanted = "schedule=persistent: only the device knows how many there are";
                return refuse("tiles of a block", 1, wanted);
            }
        }
        if !CAPACITIES.contains(&self.groups) {
            return refuse("groups of a launch", self.groups, "1, 8, 32 or 128");
        }
        if self.shared_bytes() > Target::Sm90a.shared_limit() {
            let wanted = "at most 232448 bytes: fewer stages, less depth, or a smaller tile";
            return refuse("bytes of shared memory", self.shared_bytes(), wanted);
        }
        Ok(())
    }

    /// Whether there is such a kernel for tokens that were rounded to e4m3.
    fn check_rounded(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if self.ping_pong || self.products == Products::Sequential {
            let wanted = "none: with fp8 tokens, tiles are computed interleaved and one after another";
            return refuse("other ways of a tile with fp8 tokens", 1, wanted);
        }
        if self.shares_k() {
            return refuse("blocks of rows of a tile with fp8 tokens", 1, "2 to 4: warpgroups do not share k");
        }
        if self.units < 2 || self.stages < 2 {
            let wanted = "a depth of 128 or 256 and two stages: one unit is dequantised while another is multiplied";
            return refuse("units or stages with fp8 tokens", self.units.min(self.stages), wanted);
        }
        Ok(())
    }

    /// Whether there is such a kernel for FP8 weights.
    fn check_fp8(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if self.products != Products::Single || self.experts.is_some() || self.by_warps {
            return refuse("other products with FP8 weights", 1, "none: one matrix, by warpgroups, and not of experts");
        }
        let Some(stretch) = self.stretch() else { return Ok(()) };
        if stretch != UNIT {
            return refuse("elements of K that share a scale", stretch, "64: sums are scaled by units");
        }
        if self.ping_pong || self.under > 0 {
            let wanted = "none: where sums have scales, tiles are stored one after another, by both warpgroups";
            return refuse("other ways of a tile with scales of blocks", 1, wanted);
        }
        if self.units > 1 && self.fragment_sets() == 1 {
            let wanted = "a depth of 64 for so many tokens: the assembler would hold the sums of two units at once";
            return refuse("units with scales of blocks", self.units, wanted);
        }
        if self.stages <= self.division().along_k {
            let wanted = "more than warpgroups that share K: one stage is dequantised while another is multiplied";
            return refuse("pipeline stages with scales of blocks", self.stages, wanted);
        }
        Ok(())
    }

    /// Whether tiles can be stored under the next one's products.
    fn check_overlap(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !self.under.is_multiple_of(self.units) {
            return refuse("units that a tile is stored under", self.under, "whole stages");
        }
        let simple = !self.ping_pong && !self.shares_k() && self.element != Tokens::E4m3;
        if !simple || self.schedule != Schedule::Persistent {
            let wanted = "0, or schedule=persistent without ping-pong, warpgroups that share k, or fp8 tokens";
            return refuse("units that a tile is stored under", self.under, wanted);
        }
        if self.products != Products::Single || self.epilogue != Epilogue::Direct {
            let wanted = "0, or epilogue=direct and one matrix: between products there is no time for more";
            return refuse("units that a tile is stored under", self.under, wanted);
        }
        if self.stages < 2 || self.fragment_sets() > 1 {
            let wanted = "0, or two stages, and more than 64 tokens or a depth of 64";
            return refuse("units that a tile is stored under", self.under, wanted);
        }
        Ok(())
    }

    /// Whether warps can multiply by themselves.
    fn check_by_warps(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if self.tokens > MOST_TOKENS_BY_WARPS {
            return refuse("tokens of a tile with warps=1", self.tokens, "8 or 16: more are for warpgroups, warps=0");
        }
        if !matches!(self.element, Tokens::F16 | Tokens::Bf16) {
            let wanted = "16 bits a number, in one part: f16, bf16 or NVFP4 tokens";
            return refuse(
                "bits of a token's number with warps=1",
                8 * self.element.bytes() * self.element.parts(),
                wanted,
            );
        }
        if self.ping_pong || self.passes() > 1 || self.under > 0 {
            let wanted = "none: with warps=1, tiles are computed interleaved, stored, and one after another";
            return refuse("other ways of a tile with warps=1", 1, wanted);
        }
        Ok(())
    }

    /// Whether it can compute a sum over so many: the stages under which a tile is stored are never the next one's
    /// last.
    pub(super) fn check_depth(&self, k: usize) -> Result<(), String> {
        match k.div_ceil(UNIT as usize) > self.under as usize {
            true => Ok(()),
            false => Err(format!("under={} takes a K of more than {}, and it is {k}", self.under, self.under * UNIT)),
        }
    }

    fn builder(&self) -> Builder {
        let cluster = (self.schedule == Schedule::SplitK).then_some([2, 1, 1]);
        let launch = LaunchBounds { threads: self.threads(), cluster, min_blocks: Some(self.resident()) };
        Builder::new("nvfp4_dual_gemm", Target::Sm90a, launch)
    }
}

/// What every phase works with.
struct Parts {
    config: MultiplySpec,
    work: Work,
    pipe: Pipeline,
    combine: combine::Combine,
    epilogue: epilogue::Finish,
    /// The tiles of blocks that have several.
    tiles: Option<TileRing>,
}

impl Parts {
    fn declare(k: &mut Builder, config: MultiplySpec) -> Self {
        let mut work = Work::declare(k, config);
        let pipe = Pipeline::declare(k, config);
        let combine = combine::Combine::declare(k, config, &pipe);
        let epilogue = epilogue::Finish::declare(k, config, &pipe);
        let tiles = TileRing::declare(k, config);
        work.groups.declare_layout(k);
        Parts { config, work, pipe, combine, epilogue, tiles }
    }
}

impl Spec for MultiplySpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// Builds the kernel. Its arguments, in order: the tensor maps of the groups' tokens, the table of groups, that of
/// biases if there are some, that of columns' factors if they have some, the number of tiles, and the gate's limit. For
/// experts: the tensor maps of all rows, one for each width; the layout; the first expert's gate and up weights (or
/// only those), bytes from one expert's to the next one's; factors; gate and up biases (or only those), if there are
/// some; a factor per row, if there is one; what each row was divided by and the experts' lifts, if tokens were rounded
/// to e4m3; C; its columns, the summed dimension, and the gate's limit.
///
/// One warpgroup has two threads that produce and, where a block has several tiles, one that finds them; the others
/// consume. Who waits for whom is in `pipeline`, in the ring of `work`, in `combine` and in the barriers of `epilogue`,
/// and nowhere else.
pub fn kernel(config: MultiplySpec) -> Result<Kernel, Error> {
    config.check()?;
    let mut k = config.builder();
    let parts = Parts::declare(&mut k, config);
    let thread = k.special(SpecialRegister::TidX);
    let warp = k.shr(thread, 5);
    let warp = k.broadcast(warp);
    k.phase("prepare", |k| {
        let makes = k.lt(thread, config.stages);
        k.if_(makes, |k| {
            parts.pipe.prepare(k, thread);
            parts.combine.prepare(k, thread);
            parts.tiles.iter().for_each(|tiles| tiles.prepare(k, thread));
            k.fence_barrier_init();
        });
        parts.work.groups.fetch_layout(k, thread);
        k.sync_threads();
        parts.combine.announce(k);
        if config.experts.is_none() {
            k.launch_dependents();
        }
    });
    let (producer_registers, consumer_registers) = config.register_budgets();
    let produces = k.ge(warp, config.warpgroups() * 4);
    k.if_else(
        produces,
        |k| {
            k.set_max_registers(RegisterChange::Decrease, producer_registers);
            let (first, second) = (k.eq(warp, config.warpgroups() * 4), k.eq(warp, config.warpgroups() * 4 + 1));
            k.if_(first, |k| k.phase("produce", |k| produce::weights(k, &parts)));
            k.if_(second, |k| k.phase("produce", |k| produce::tokens(k, &parts)));
            if let Some(tiles) = &parts.tiles {
                let third = k.eq(warp, config.warpgroups() * 4 + 2);
                k.if_(third, |k| k.phase("search", |k| tiles.fill(k, &parts.work)));
            }
        },
        |k| {
            k.set_max_registers(RegisterChange::Increase, consumer_registers);
            k.phase("consume", |k| consume::consume(k, &parts, thread, warp));
        },
    );
    k.finish()
}
