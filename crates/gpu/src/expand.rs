//! Tokens as the tensor cores take them, made on the device: NVFP4 becomes f16 and single precision three bf16 parts.
//!
//! Both are exact. A code times its scale has six significant bits between 2⁻¹⁰ and 2688, which a half holds. A float
//! of 24 significant bits is the sum of three bf16 numbers of eight: the upper half of its bits is the first, the upper
//! half of what is left the second, and the rest the third. Cutting instead of rounding keeps the parts of one sign and
//! cannot overflow; only bits below 2⁻¹³³, bf16's last, are lost. A power of two that is multiplied on beforehand keeps
//! groups of very small or very large numbers away from there.
//!
//! Tokens that a layer's input scale multiplies, one factor per column, become floats by that (the one rounding here)
//! and are split in the same breath.
//!
//! The others need not know rows and columns: elements, blocks of 16 and scales follow each other in the same order. So
//! a launch is over [segments](crate::expansion::Segment), runs of elements; groups that lie one after another in
//! memory are one run.
//!
//! A thread takes eight elements at a time, so that what it writes is 16 bytes and what a warp writes is whole lines.
//! The kernel lets its successor start at once (that one waits for the end of this by itself) and waits for its own
//! predecessor before it touches memory, on GPUs where grids can overlap.

use ptx::instr::Width;
use ptx::{Addr, Builder, Error, F16x2, F32, Feature, Global, Kernel, Pred, Reg, SpecialRegister, Target, U32, U64};

use crate::launch::Spec;
use op::{Activation, Output};

/// Threads of a block: so few that their registers are there beside two blocks that multiply.
const THREADS: u32 = 128;
/// Blocks that find room beside two blocks that multiply on every multiprocessor without driving any of those away.
const FEW_BLOCKS: u32 = 60;
/// Units that the threads of a block take in all their rounds, at most.
pub(super) const MOST_THREAD_UNITS: u32 = THREADS * MOST_ROUNDS;
const MOST_ROUNDS: u32 = 4;
/// Elements that a thread takes at a time.
pub const UNIT: usize = 8;
/// Segments of one launch, at most: their addresses are the kernel's arguments.
pub const MOST_SEGMENTS: usize = 8;
/// Parts that a float becomes.
pub const PARTS: usize = 3;

/// What is expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenForm {
    /// Codes with a scale for each 16, which become f16.
    NvFp4,
    /// Floats, which become three planes of bf16.
    Single,
    /// Rows of numbers that are multiplied with a factor per column, as floats, and become three planes of bf16.
    Scaled(Float),
}

/// A type of numbers that can be multiplied with factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// Half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Single precision.
    F32,
}

impl Float {
    /// The numbers of dense tokens; NVFP4's, expanded, are halves.
    pub fn of(activation: Activation) -> Self {
        match activation {
            Activation::F16 | Activation::NvFp4 => Float::F16,
            Activation::BF16 => Float::BF16,
            Activation::F32 => Float::F32,
        }
    }
}

impl From<Output> for Float {
    fn from(ty: Output) -> Self {
        match ty {
            Output::F16 => Float::F16,
            Output::BF16 => Float::BF16,
            Output::F32 => Float::F32,
        }
    }
}

impl TokenForm {
    /// How tokens of a type are expanded; f16 and bf16 are taken as they are.
    pub fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::NvFp4 => Some(TokenForm::NvFp4),
            Activation::F32 => Some(TokenForm::Single),
            Activation::F16 | Activation::BF16 => None,
        }
    }

    /// How tokens of a type are expanded that must be multiplied with factors first; NVFP4 cannot be.
    pub fn scaled(activation: Activation) -> Option<Self> {
        (activation != Activation::NvFp4).then(|| TokenForm::Scaled(Float::of(activation)))
    }

    /// Bytes of the source that are one unit, scales aside.
    pub(crate) fn unit_bytes(self) -> u32 {
        match self {
            TokenForm::NvFp4 => UNIT as u32 / 2,
            TokenForm::Single | TokenForm::Scaled(Float::F32) => UNIT as u32 * 4,
            TokenForm::Scaled(Float::F16 | Float::BF16) => UNIT as u32 * 2,
        }
    }

    /// Bytes that the expanded elements take, all parts together.
    pub fn expanded_bytes(self, elements: usize) -> usize {
        let parts = if self == TokenForm::NvFp4 { 1 } else { PARTS };
        parts * elements * Output::F16.bytes()
    }
}

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpandSpec {
    /// What is expanded.
    pub source: TokenForm,
    /// Segments that it has arguments for.
    pub segments: usize,
    /// Times that a thread takes a unit.
    pub rounds: u32,
    /// What it is assembled for.
    pub target: Target,
}

impl ExpandSpec {
    /// The kernel for so many runs of so many elements in all.
    pub fn new(target: Target, source: TokenForm, runs: usize, elements: usize) -> Self {
        let segments = if runs == 1 { 1 } else { MOST_SEGMENTS };
        // As much in flight as hides memory's latency: eight floats are two loads already. Twice that where it leaves
        // few blocks.
        let least = if source == TokenForm::NvFp4 { MOST_ROUNDS / 2 } else { 1 };
        let with = |rounds| ExpandSpec { source, segments, rounds, target };
        let few = |config: &ExpandSpec| config.blocks(elements) <= FEW_BLOCKS;
        [least, 2 * least].map(with).into_iter().find(few).unwrap_or(with(least))
    }

    /// Blocks for a run of so many elements.
    pub(crate) fn blocks(&self, elements: usize) -> u32 {
        (elements / UNIT).div_ceil((THREADS * self.rounds) as usize) as u32
    }
}

/// Whether so many elements are expanded by so few blocks that they are no trouble to others.
pub fn by_few_blocks(source: TokenForm, elements: usize) -> bool {
    ExpandSpec::new(Target::Sm90a, source, 1, elements).blocks(elements) <= FEW_BLOCKS
}

/// A segment as the kernel is told of it.
#[derive(Clone, Copy)]
struct Run {
    source: Reg<U64>,
    /// NVFP4: where the scales are. Else: bytes from one part to the next.
    beside: Reg<U64>,
    /// Single: what all numbers are multiplied by.
    factor: Option<Reg<F32>>,
    /// Scaled: where the factors of the columns are, and units of a row.
    columns: Option<(Reg<U64>, Reg<U32>)>,
    target: Reg<U64>,
    units: Reg<U32>,
    first_block: Reg<U32>,
}

impl Run {
    fn declare(k: &mut Builder, source: TokenForm, index: usize) -> Self {
        let at = k.pointer(&format!("source{index}"));
        let (beside, factor, columns) = match source {
            TokenForm::NvFp4 => (k.pointer(&format!("scales{index}")), None, None),
            TokenForm::Single => (k.param(&format!("plane{index}")), Some(k.param(&format!("factor{index}"))), None),
            TokenForm::Scaled(_) => {
                let factors = k.pointer(&format!("factors{index}"));
                let row_units = k.param(&format!("row_units{index}"));
                (k.param(&format!("plane{index}")), None, Some((factors, row_units)))
            }
        };
        Run {
            source: at,
            beside,
            factor,
            columns,
            target: k.pointer(&format!("target{index}")),
            units: k.param(&format!("units{index}")),
            first_block: k.param(&format!("first_block{index}")),
        }
    }

    /// This run where the predicate holds, else the other.
    fn or(self, k: &mut Builder, chosen: Pred, other: Run) -> Run {
        Run {
            source: k.select(chosen, self.source, other.source),
            beside: k.select(chosen, self.beside, other.beside),
            factor: self.factor.zip(other.factor).map(|(this, that)| k.select(chosen, this, that)),
            columns: self
                .columns
                .zip(other.columns)
                .map(|(this, that)| (k.select(chosen, this.0, that.0), k.select(chosen, this.1, that.1))),
            target: k.select(chosen, self.target, other.target),
            units: k.select(chosen, self.units, other.units),
            first_block: k.select(chosen, self.first_block, other.first_block),
        }
    }
}

impl Spec for ExpandSpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// Builds the kernel. Its arguments, for each segment: source; scales, or bytes between parts and the factor, or
/// factors, units of a row and bytes between parts; target; units of eight elements; its first block.
pub fn kernel(config: ExpandSpec) -> Result<Kernel, Error> {
    let shape = ptx::LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let name = match config.source {
        TokenForm::NvFp4 => "expand_nvfp4",
        TokenForm::Single => "expand_single",
        TokenForm::Scaled(Float::F16) => "expand_scaled_f16",
        TokenForm::Scaled(Float::BF16) => "expand_scaled_bf16",
        TokenForm::Scaled(Float::F32) => "expand_scaled_f32",
    };
    let overlaps = config.target.has(Feature::GridDependency);
    let mut k = Builder::new(name, config.target, shape);
    let runs: Vec<Run> = (0..config.segments).map(|index| Run::declare(&mut k, config.source, index)).collect();
    if overlaps {
        k.launch_dependents();
    }
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let run = k.phase("choose", |k| choose(k, &runs, block));
    let within = k.sub(block, run.first_block);
    let first = k.mul_add(within, THREADS * config.rounds, thread);
    if overlaps {
        k.grid_dependency_wait();
    }
    let places: Vec<(Reg<U32>, Pred)> = (0..config.rounds).map(|round| unit(&mut k, &run, first, round)).collect();
    match config.source {
        TokenForm::NvFp4 => expand_codes(&mut k, &run, &places),
        TokenForm::Single => split_floats(&mut k, &run, Float::F32, &places),
        TokenForm::Scaled(float) => split_floats(&mut k, &run, float, &places),
    }
    k.finish()
}

/// The last run that begins at this block or before.
fn choose(k: &mut Builder, runs: &[Run], block: Reg<U32>) -> Run {
    runs[1..].iter().fold(runs[0], |chosen, run| {
        let begun = k.ge(block, run.first_block);
        run.or(k, begun, chosen)
    })
}

/// The unit of a round, and whether there is one. Where there is not, the last is read once more, and not written.
fn unit(k: &mut Builder, run: &Run, first: Reg<U32>, round: u32) -> (Reg<U32>, Pred) {
    let this = k.add(first, THREADS * round);
    let exists = k.lt(this, run.units);
    let last = k.sub(run.units, 1);
    (k.min(this, last), exists)
}

/// A code is a sign and three bits of magnitude. Those bits at 15 and 9..12 of a half are the code's value times 2⁻¹⁴,
/// and the bits of a scale moved up by 7 (8 for the sign) are the scale times 2⁻⁸. Every product below is exact.
fn expand_codes(k: &mut Builder, run: &Run, places: &[(Reg<U32>, Pred)]) {
    let loaded: Vec<_> = k.phase("load", |k| {
        let load = |&(unit, _): &(Reg<U32>, Pred)| {
            let at = k.mul_wide_add(unit, TokenForm::NvFp4.unit_bytes(), run.source);
            let block = k.shr(unit, 1);
            let scale_at = k.mul_wide_add(block, 1, run.beside);
            (k.load::<U32, Global>(Addr::of(at)), k.load_narrow::<Global>(Width::B8, Addr::of(scale_at)))
        };
        places.iter().map(load).collect()
    });
    for (&(unit, exists), (codes, scale)) in places.iter().zip(loaded) {
        let words = k.phase("expand", |k| {
            let scales = scale_pair(k, scale);
            expand_word(k, codes, scales)
        });
        k.phase("store", |k| store(k, run.target, unit, exists, words));
    }
}

/// scale · 2⁷ in both halves: at most 57344.
fn scale_pair(k: &mut Builder, scale: Reg<U32>) -> Reg<F16x2> {
    let magnitude = k.shl(scale, 7);
    let magnitude = k.and(magnitude, 0x3F80u32);
    let sign = k.shl(scale, 8);
    let bits = k.lop3(sign, 0x8000u32, magnitude, AND_OR);
    let both = k.mul(bits, 0x0001_0001u32);
    let two_to_15 = k.bits::<F16x2>(0x7800_7800);
    k.mul(both.cast::<F16x2>(), two_to_15)
}

/// `(a & b) | c` as [`Builder::lop3`] takes it.
const AND_OR: u8 = (0xF0 & 0xCC) | 0xAA;

/// Eight codes times their scale. Shifts bring codes i and i + 4 to the two halves of a word; bytes are put in order at
/// the end.
fn expand_word(k: &mut Builder, codes: Reg<U32>, scales: Reg<F16x2>) -> [Reg<U32>; 4] {
    let two_to_7 = k.bits::<F16x2>(0x5800_5800);
    let pairs: [Reg<U32>; 4] = std::array::from_fn(|i| {
        let up = 4 * i as u32;
        let sign = if up < 12 { k.shl(codes, 12 - up) } else { codes };
        let magnitude = if up < 9 { k.shl(codes, 9 - up) } else { k.shr(codes, up - 9) };
        let magnitude = k.and(magnitude, 0x0E00_0E00u32);
        let bits = k.lop3(sign, 0x8000_8000u32, magnitude, AND_OR);
        let product = k.mul(bits.cast::<F16x2>(), scales);
        k.mul(product, two_to_7).cast()
    });
    const LOW_HALVES: u32 = 0x5410;
    const HIGH_HALVES: u32 = 0x7632;
    [(0, LOW_HALVES), (2, LOW_HALVES), (0, HIGH_HALVES), (2, HIGH_HALVES)]
        .map(|(pair, halves)| k.permute(pairs[pair], pairs[pair + 1], halves))
}

/// A bf16 number is the upper half of a float. Cutting the lower half off leaves the part, and subtracting the part
/// leaves the rest, exactly.
fn split_floats(k: &mut Builder, run: &Run, float: Float, places: &[(Reg<U32>, Pred)]) {
    for &(unit, exists) in places {
        let mut rest = k.phase("load", |k| load_floats(k, float, run.source, unit));
        if let Some(factor) = run.factor {
            rest = rest.map(|x| k.mul(x, factor));
        }
        if let Some((factors, row_units)) = run.columns {
            // A row is whole units, so all eight elements are of one.
            let factors = k.phase("load", |k| {
                let column = k.rem(unit, row_units);
                load_floats(k, Float::F32, factors, column)
            });
            rest = std::array::from_fn(|i| k.mul(rest[i], factors[i]));
        }
        let mut target = run.target;
        for words in k.phase("split", |k| split(k, rest)) {
            k.phase("store", |k| store(k, target, unit, exists, words));
            target = k.add(target, run.beside);
        }
    }
}

/// Eight floats as the parts that they are the sum of.
pub(crate) fn split(k: &mut Builder, floats: [Reg<F32>; UNIT]) -> Vec<[Reg<U32>; 4]> {
    const UPPER_HALVES: u32 = 0x7632;
    let mut rest = floats;
    let part = |part| {
        let leading = rest;
        if part + 1 < PARTS {
            rest = rest.map(|x| without_leading_part(k, x));
        }
        std::array::from_fn(|i| {
            let (even, odd): (Reg<U32>, Reg<U32>) = (leading[2 * i].cast(), leading[2 * i + 1].cast());
            k.permute(even, odd, UPPER_HALVES)
        })
    };
    (0..PARTS).map(part).collect()
}

/// The eight numbers of a unit, as floats: exactly.
pub(crate) fn load_floats(k: &mut Builder, float: Float, source: Reg<U64>, unit: Reg<U32>) -> [Reg<F32>; UNIT] {
    let at = Addr::<Global>::of(k.mul_wide_add(unit, TokenForm::Scaled(float).unit_bytes(), source));
    if float == Float::F32 {
        let (low, high): ([Reg<F32>; 4], [Reg<F32>; 4]) = (k.load_vector(at), k.load_vector(at.plus(16)));
        return std::array::from_fn(|i| if i < 4 { low[i] } else { high[i - 4] });
    }
    let words: [Reg<U32>; 4] = k.load_vector(at);
    let pairs = words.map(|word| match float {
        Float::F16 => k.unpack_pair(word.cast::<F16x2>()).map(|half| k.convert(half)),
        _ => [k.shl(word, 16), k.and(word, 0xFFFF_0000u32)].map(|bits| bits.cast()),
    });
    std::array::from_fn(|i| pairs[i / 2][i % 2])
}

fn without_leading_part(k: &mut Builder, x: Reg<F32>) -> Reg<F32> {
    let leading = k.and(x.cast::<U32>(), 0xFFFF_0000u32);
    k.sub(x, leading.cast::<F32>())
}

/// Eight values of 16 bits to their place.
fn store(k: &mut Builder, target: Reg<U64>, unit: Reg<U32>, exists: Pred, words: [Reg<U32>; 4]) {
    let at = k.mul_wide_add(unit, 2 * UNIT as u32, target);
    k.when(exists, |k| k.store_vector(Addr::<Global>::of(at), words));
}
