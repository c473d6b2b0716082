//! The products of a tile with `mma.sync`: weights dequantised in registers, tokens and weights brought by `cp.async`.
//!
//! Weights are the rows of a multiplication (16) and tokens its columns (8), so that any small number of tokens is met
//! well. A *fragment* is 16 rows: with gate and up interleaved eight columns of C, rows r from the gate and rows r + 8
//! from the up matrix, so that one thread has both sums of the same elements; else sixteen columns of one matrix. Warps
//! share the fragments of a tile out among themselves, and the steps of k where there are few fragments; never the
//! tokens, since whatever two warps have in common they would both dequantise.
//!
//! Where the target's tensor cores take NVFP4 itself, weights are packed for that ([`crate::pack::pack_codes`]), and
//! NVFP4 tokens, arranged alike (by `sm120`), meet them as they are: one multiplication covers a unit of k, and nothing
//! is dequantised. Tokens of 16 bits meet the same weights dequantised, from their other order.
//!
//! All threads copy and all compute. `pipeline` has the stages in shared memory and the one barrier per stage; `load`
//! what each thread copies; `fragments` and `consume` the multiplications, `codes` those of NVFP4 by NVFP4, `bytes` the
//! weights of FP8; `finish` the way from sums to C; `work` which tile is whose.

mod bytes;
mod codes;
mod consume;
mod finish;
mod fragments;
mod load;
mod pipeline;
mod work;

use format::Scaling;
use ptx::{Builder, Error, Feature, Kernel, LaunchBounds, SpecialRegister, Target};

use crate::families::choice::CAPACITIES;
pub use crate::families::choice::{Products, Tokens};
use crate::fp8::stretch;
use crate::launch::Spec;
use crate::pack::{Chunk, Codes};
use crate::phases::experts::Experts;
use crate::phases::gates::Function;
use crate::products::MOST_EXPERTS;
use op::{Epilogue, Output, Schedule};
use pipeline::Pipeline;
pub use work::TOKEN_WORDS;
use work::Work;

/// Columns of k of a unit: one chunk of packed weights, and 128 bytes of a token.
pub const UNIT: u32 = 64;
/// Bytes of a token in one unit.
const TOKEN_BYTES: u32 = UNIT * 2;
/// Rows of packed weights that lie together in a chunk: a *strip*.
const STRIP_ROWS: u32 = 8;
/// Bytes of a strip's codes and of its scales, of NVFP4.
const STRIP_CODES: u32 = crate::pack::CODE_BYTES / 4;
const STRIP_SCALES: u32 = (crate::pack::CHUNK_BYTES - crate::pack::CODE_BYTES) / 4;
/// Steps of 16 along k in a unit.
const SLICES: u32 = 4;
/// Warps of a block.
const MOST_WARPS: u32 = 8;
/// The most stages a pipeline may have.
const MOST_STAGES: u32 = 16;
/// Stages below which nothing could be read ahead of the one that is multiplied.
const LEAST_STAGES: u32 = 3;
/// Registers of a thread, at most.
const MOST_REGISTERS: u32 = 255;
/// Registers that a thread needs beside what `held_registers` counts, as far as the assembler has been seen to.
const SPARE_REGISTERS: u32 = 2;

/// How a kernel is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpMultiplySpec {
    /// What it is assembled for, which says how weights are packed.
    pub target: Target,
    /// How the packed weights share scales.
    pub scaling: Scaling,
    /// Which products.
    pub products: Products,
    /// Blocks that are to share a multiprocessor: one finishes while the other multiplies.
    pub resident: u32,
    /// Tokens of a tile: a multiple of 8, at most 128.
    pub tokens: u32,
    /// Columns of C of a tile.
    pub columns: u32,
    /// Units of 64 along k in a stage: 1, 2 or 4.
    pub units: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// How values get to C: directly, or staged.
    pub epilogue: Epilogue,
    /// Which block computes which tile.
    pub schedule: Schedule,
    /// What tokens are made of.
    pub element: Tokens,
    /// What becomes of gate and up.
    pub function: Function,
    /// The type of C.
    pub output: Output,
    /// Groups that a launch may have.
    pub groups: u32,
    /// Whether sums have biases added to them.
    pub biased: bool,
    /// The layer whose experts the groups are, if they are: then the device alone knows how many tokens each has.
    pub experts: Option<Experts>,
}

/// How the fragments of a tile are shared out among warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    /// Warps with different columns.
    along_n: u32,
    /// Warps with different units of the same columns.
    along_k: u32,
    /// Fragments of each.
    fragments: u32,
}

impl WarpMultiplySpec {
    /// Columns of C that one fragment covers.
    fn fragment_columns(&self) -> u32 {
        if self.products == Products::Interleaved { STRIP_ROWS } else { 2 * STRIP_ROWS }
    }

    /// Times that a tile's tokens are gone through: gate and up one after the other are two.
    pub fn passes(&self) -> u32 {
        if self.products == Products::Sequential { 2 } else { 1 }
    }

    /// Each warp has two fragments where that is possible, so that tokens are read for both at once, and more where
    /// warps would not suffice.
    fn division(&self) -> Division {
        let rows = self.columns / self.fragment_columns();
        let fragments = match rows {
            rows if !rows.is_multiple_of(2) => 1,
            ..=16 => 2,
            _ => 4,
        };
        let along_n = (rows / fragments).max(1);
        let mut along_k = 1;
        while 2 * along_k * along_n <= MOST_WARPS && 2 * along_k <= self.units {
            along_k *= 2;
        }
        Division { along_n, along_k, fragments }
    }

    /// Warps along n and along k, and fragments of each.
    pub fn shares(&self) -> [u32; 3] {
        let Division { along_n, along_k, fragments } = self.division();
        [along_n, along_k, fragments]
    }

    /// Whether warps have different units of k of the same columns.
    pub fn shares_k(&self) -> bool {
        self.division().along_k > 1
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        let Division { along_n, along_k, .. } = self.division();
        32 * along_n * along_k
    }

    /// The chunks of packed weights.
    fn chunk(&self) -> Chunk {
        Chunk::of(self.scaling)
    }

    /// Bytes of a strip's codes and of its scales.
    fn strip_bytes(&self) -> [u32; 2] {
        let Chunk { code_bytes, row_scale_bytes } = self.chunk();
        [code_bytes / 4, STRIP_ROWS * row_scale_bytes]
    }

    /// Whether sums of a stretch of k are made apart, since they have a scale of their own.
    fn scales_sums(&self) -> bool {
        self.scaled_slices().is_some()
    }

    /// Slices of such a stretch.
    pub(super) fn scaled_slices(&self) -> Option<u32> {
        stretch(self.scaling, self.element).map(|columns| columns * SLICES / UNIT)
    }

    /// Strips of weights of one unit of a tile.
    fn strips(&self) -> u32 {
        self.columns / STRIP_ROWS * if self.products == Products::Interleaved { 2 } else { 1 }
    }

    /// Bytes of one unit in a stage: tokens, and weights.
    pub fn unit_bytes(&self) -> [u32; 2] {
        let of_eight = match self.element {
            Tokens::NvFp4 => STRIP_CODES + STRIP_SCALES,
            other => STRIP_ROWS * other.parts() * TOKEN_BYTES,
        };
        [self.tokens / STRIP_ROWS * of_eight, self.strips() * self.strip_bytes().iter().sum::<u32>()]
    }

    /// Bytes of a stage.
    pub fn stage_bytes(&self) -> u32 {
        self.units * self.unit_bytes().iter().sum::<u32>()
    }

    /// Sums of a thread.
    fn sums(&self) -> u32 {
        self.division().fragments * self.passes() * self.tokens / 2
    }

    /// Registers that sums, fragments, tokens and the places of copies take.
    pub fn held_registers(&self) -> u32 {
        let (threads, [tokens, weights]) = (self.threads(), self.unit_bytes());
        let rounds = [tokens, weights].map(|bytes| (bytes * self.units / 16).div_ceil(threads)).iter().sum::<u32>();
        let fragments = self.division().fragments;
        let operands = match self.element {
            Tokens::NvFp4 => codes::TOKEN_REGISTERS + 5 * fragments,
            // Powers of two and the bytes that they are made of.
            _ if self.scaling == Scaling::MxFp8 => self.tokens / 2 + 24 * fragments,
            _ if self.scaling.is_fp8() => self.tokens / 2 + 20 * fragments,
            _ => self.tokens / 2 + 14 * fragments,
        };
        // Scales that end within a unit are held beside those that end with it, and a few values more.
        let scales = |slices: u32| 4 * fragments * SLICES / slices + 4;
        let apart = self.scaled_slices().map_or(0, |slices| self.sums() + scales(slices));
        self.sums() + apart + operands + 3 * rounds
    }

    /// Registers that a thread may have.
    fn register_budget(&self) -> u32 {
        (65_536 / (self.resident * self.threads()) / 8 * 8).min(MOST_REGISTERS)
    }

    /// Bytes of the stages, which are also where sums meet and values are turned around when nobody reads them any
    /// more.
    fn region_bytes(&self) -> u32 {
        let stages = self.stages * self.stage_bytes();
        stages.max(finish::combine_bytes(self)).max(finish::staging_bytes(self))
    }

    /// Bytes of shared memory: the stages, and what a block keeps of experts' layout.
    pub fn shared_bytes(&self) -> u32 {
        let layout = self.experts.map_or(0, Experts::layout_bytes);
        self.region_bytes().next_multiple_of(16) + layout
    }

    /// What the words of weights are in order for: those of experts may be packed for the tokens that they will meet.
    fn codes(&self) -> Codes {
        self.experts.map_or(Codes::Halves, |experts| experts.codes)
    }

    /// Whether the target's tensor cores take NVFP4 itself, for which weights are packed then.
    pub fn takes_codes(&self) -> bool {
        self.target.has(Feature::BlockScaledMma)
    }

    /// What sums are multiplied by, since dequantised weights are smaller than they should be.
    pub fn weight_factor(&self) -> f64 {
        if self.element == Tokens::NvFp4 || self.scaling.is_fp8() { 1.0 } else { crate::pack::WEIGHT_FACTOR }
    }

    /// Blocks that take part in one tile.
    pub fn blocks_per_tile(&self) -> u32 {
        if self.schedule == Schedule::SplitK { 2 } else { 1 }
    }

    /// Whether sums are left in planes of their own, neither gated nor rounded, for others to join.
    pub fn leaves_sums(&self) -> bool {
        self.schedule == Schedule::SplitK
    }

    /// Whether the phases fit together, and the registers suffice.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !self.tokens.is_multiple_of(8) || !(8..=128).contains(&self.tokens) {
            return refuse("tokens of a tile", self.tokens, "a multiple of 8 from 8 to 128: the columns of mma.sync");
        }
        let rows = self.columns / self.fragment_columns();
        let divides = (1..=MOST_WARPS).contains(&self.division().along_n);
        if !self.columns.is_multiple_of(self.fragment_columns())
            || rows == 0
            || !divides
            || !rows.is_multiple_of(self.division().fragments)
        {
            let wanted = match self.products {
                Products::Interleaved => "8 to 64 in steps of 8, to 128 in steps of 16, to 256 in steps of 32",
                _ => "16 to 128 in steps of 16, to 256 in steps of 32, to 512 in steps of 64",
            };
            return refuse("columns of a tile", self.columns, wanted);
        }
        if ![1, 2, 4].contains(&self.units) {
            let found = u64::from(self.units) * u64::from(UNIT);
            let (what, wanted) = ("depth of a stage", "64, 128 or 256: one, two or four chunks");
            return Err(Error::Field { what, found, wanted });
        }
        if !(LEAST_STAGES..=MOST_STAGES).contains(&self.stages) {
            let wanted = "3 to 16: one that is read, one that is read ahead, and others on their way";
            return refuse("pipeline stages", self.stages, wanted);
        }
        if !(1..=2).contains(&self.resident) {
            return refuse("blocks on a multiprocessor", self.resident, "1 or 2");
        }
        if self.held_registers() + SPARE_REGISTERS > self.register_budget() {
            let wanted = "fewer tokens or columns: sums and fragments must leave room in a thread's registers";
            return refuse("registers of a thread", self.held_registers(), wanted);
        }
        if !CAPACITIES.contains(&self.groups) {
            return refuse("groups of a launch", self.groups, "1, 8, 32 or 128");
        }
        if self.shared_bytes() > self.target.shared_limit() {
            let wanted = "what a block can have: fewer stages, less depth, or a smaller tile";
            return refuse("bytes of shared memory", self.shared_bytes(), wanted);
        }
        if self.element == Tokens::NvFp4 && !self.takes_codes() {
            return refuse("tensor cores for NVFP4", 0, "tokens of 16 bits: this target's take nothing else");
        }
        self.check_scaling()?;
        self.experts.map_or(Ok(()), |experts| self.check_experts(experts))
    }

    fn check_scaling(&self) -> Result<(), Error> {
        let plain = self.products == Products::Single && self.experts.is_none() && self.schedule != Schedule::SplitK;
        let wanted = match self.scaling {
            Scaling::NvFp4 => return Ok(()),
            Scaling::MxFp4 | Scaling::WideMxFp4 if self.takes_codes() => {
                "nvfp4, to which mxfp4 is widened before it is packed for these tensor cores"
            }
            Scaling::WideMxFp4 if self.element == Tokens::F16 => "at most 25 powers of two, which is what f16 has",
            Scaling::MxFp4 | Scaling::WideMxFp4 => return Ok(()),
            _ if plain && !self.takes_codes() => return Ok(()),
            _ => "one matrix, not of experts and with all of k in a block, on tensor cores of 16 bits: that is FP8's",
        };
        Err(Error::Field { what: "scaling of weights", found: self.scaling as u64, wanted })
    }

    fn check_experts(&self, experts: Experts) -> Result<(), Error> {
        let refuse = |what, found: u32, wanted| Err(Error::Field { what, found: found.into(), wanted });
        if !(1..=MOST_EXPERTS).contains(&experts.count) {
            return refuse("experts", experts.count, "1 to 1024");
        }
        if self.schedule != Schedule::Persistent {
            return refuse(
                "tiles of a block",
                1,
                "schedule=persistent: only the device knows how many tiles there are",
            );
        }
        Ok(())
    }
}

/// What every phase works with.
struct Parts {
    config: WarpMultiplySpec,
    work: Work,
    pipe: Pipeline,
}

impl Spec for WarpMultiplySpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// Builds the kernel. Its arguments, in order: the table of the groups' tokens (address, and bytes from one part to the
/// next), the table of groups, that of biases if there are some, that of columns' factors if they have some, the number
/// of tiles, and the gate's limit. For experts: all rows, bytes from one part of them to the next, then what
/// [`ExpertWork`](crate::phases::experts) declares, and the gate's limit.
pub fn kernel(config: WarpMultiplySpec) -> Result<Kernel, Error> {
    config.check()?;
    let launch = LaunchBounds { threads: config.threads(), cluster: None, min_blocks: Some(config.resident) };
    let mut k = Builder::new("nvfp4_dual_gemm_mma", config.target, launch);
    let mut parts = Parts { config, work: Work::declare(&mut k, config), pipe: Pipeline::declare(&mut k, config) };
    parts.work.declare_layout(&mut k);
    let thread = k.special(SpecialRegister::TidX);
    let consumer = consume::Consumer::new(&mut k, config, thread);
    if config.target.has(Feature::GridDependency) {
        k.launch_dependents();
        k.grid_dependency_wait();
    }
    k.phase("prepare", |k| parts.work.fetch(k, thread));
    parts.work.each_tile(&mut k, |k, tile| {
        consumer.clear(k);
        for pass in 0..config.passes() {
            let copies = k.phase("plan", |k| load::Copies::new(k, &parts, &tile, pass, thread));
            k.phase("multiply", |k| consumer.main_loop(k, &parts, &copies, &tile, pass as usize));
        }
        k.phase("combine", |k| finish::combine(k, &parts, &consumer));
        k.phase("finish", |k| finish::finish(k, &parts, &consumer, &tile));
    });
    k.finish()
}
