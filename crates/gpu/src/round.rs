//! Tokens rounded to e4m3 on the device, a factor per row, as [`op::precision`] defines it; and their launches.
//!
//! Some warps of a block take a row: they find the largest magnitude, make the power of two that brings it to 448 or
//! just below, and round. Numbers stay in registers between the two, so a row is read once. As few warps as can take it
//! in two rounds do: with rows of experts' intermediates, which are short and many, few threads have nothing to do.
//! Bits of magnitudes are ordered as the magnitudes are, and those of infinities and NaN are beyond all others: the
//! row's factor is NaN then.
//!
//! **The order of k.** A thread's word of packed weights ([`crate::pack`]) has, of a step of 16, columns 2c, 2c + 1,
//! 2c + 8 and 2c + 9, and tensor cores take four neighbours from it. So tokens have those columns side by side: of
//! every 16, column o lies at 4·⌊(o mod 8)/2⌋ + 2·⌊o/8⌋ + o mod 2.

use op::precision::MOST_TOKEN_EXPONENT;
use ptx::instr::ReduceOp;
use ptx::{
    Addr, Builder, Error, F32, Global, Kernel, LaunchBounds, Pred, Reg, Shared, SpecialRegister, Target, U32, U64,
};

use crate::expand::{Float, MOST_SEGMENTS, load_floats};
use crate::launch::{Argument, Launch, Spec};

/// Threads of a block.
const THREADS: u32 = 256;
/// Elements that a thread takes at a time: one step of 16.
const STEP: u32 = 16;
const WARPS: u32 = THREADS / 32;
/// Steps of a thread, as long as there are warps to take the others, and the most, as registers allow; and the longest
/// row that follows from that.
const FEW_ROUNDS: u32 = 2;
const MOST_ROUNDS: u32 = 8;
/// The longest row that can be rounded.
pub const MOST_K: usize = (THREADS * STEP * MOST_ROUNDS) as usize;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoundSpec {
    /// What tokens are.
    pub float: Float,
    /// Whether they are multiplied with a factor per column first.
    pub scaled: bool,
    /// Experts of which each has such factors, where a table says whose each row is; none where a group has them.
    pub owners: Option<u32>,
    /// Groups that it has arguments for.
    pub segments: usize,
    /// Warps that take a row, a power of two.
    pub warps: u32,
    /// Steps of a thread: as many as the longest row needs.
    pub rounds: u32,
    /// What it is assembled for.
    pub target: Target,
}

impl RoundSpec {
    /// The kernel for so many groups with rows of at most `k` numbers.
    pub fn new(target: Target, (float, scaled): (Float, bool), groups: usize, k: usize) -> Self {
        let segments = if groups == 1 { 1 } else { MOST_SEGMENTS };
        let needed = k.div_ceil((32 * STEP) as usize).next_power_of_two() as u32;
        let warps = (needed / FEW_ROUNDS).clamp(1, WARPS);
        RoundSpec { float, scaled, owners: None, segments, warps, rounds: needed / warps, target }
    }

    /// Rows of a block.
    pub fn rows(&self) -> u32 {
        WARPS / self.warps
    }
}

/// A group's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows {
    /// Where the numbers are, a multiple of 16.
    pub source: u64,
    /// Where the factors of columns are, a multiple of 16, if there are some.
    pub columns: u64,
    /// Where e4m3 numbers go, a multiple of 16.
    pub target: u64,
    /// Where what each row was divided by goes, a float each.
    pub factors: u64,
    /// Rows, and numbers of each, a multiple of 16.
    pub sides: [usize; 2],
}

/// Whose rows are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Owners {
    /// How many experts there are, each with a factor per column, one's behind another's.
    pub experts: u32,
    /// Where the number of every row's expert is. Behind the last row that is somebody's there may be anything.
    pub of_rows: u64,
}

/// Bytes of the rounded tokens of so many rows, and of their factors.
pub fn rounded_bytes([rows, k]: [usize; 2]) -> [usize; 2] {
    [rows * k, (rows * size_of::<f32>()).next_multiple_of(STEP as usize)]
}

/// The launches that round these groups' tokens.
pub fn launches(target: Target, kind: (Float, bool), groups: &[Rows]) -> Vec<Launch> {
    let with_rows: Vec<Rows> = groups.iter().copied().filter(|rows| rows.sides[0] > 0).collect();
    with_rows.chunks(MOST_SEGMENTS).map(|groups| launch(spec_of(target, kind, groups), groups, None)).collect()
}

/// The launch that rounds rows times the factors of their experts.
pub fn launch_by_owner(target: Target, float: Float, rows: Rows, owners: Owners) -> Launch {
    let spec = RoundSpec { owners: Some(owners.experts), ..spec_of(target, (float, true), &[rows]) };
    launch(spec, &[rows], Some(owners.of_rows))
}

fn spec_of(target: Target, kind: (Float, bool), groups: &[Rows]) -> RoundSpec {
    RoundSpec::new(target, kind, groups.len(), groups.iter().map(|rows| rows.sides[1]).max().unwrap_or(0))
}

fn launch(spec: RoundSpec, groups: &[Rows], owners: Option<u64>) -> Launch {
    let (mut arguments, mut all) = (Vec::new(), 0u32);
    for index in 0..spec.segments {
        let rows = groups[index.min(groups.len() - 1)];
        arguments.push(Argument::Pointer(rows.source));
        arguments.extend(spec.scaled.then_some(Argument::Pointer(rows.columns)));
        arguments.extend([Argument::Pointer(rows.target), Argument::Pointer(rows.factors)]);
        arguments.extend([Argument::U32(rows.sides[1] as u32 / STEP), Argument::U32(all)]);
        if index < groups.len() {
            all += rows.sides[0] as u32;
        }
    }
    arguments.extend(owners.map(Argument::Pointer));
    arguments.push(Argument::U32(all));
    let grid = [all.div_ceil(spec.rows()), 1, 1];
    Launch { kernel: spec.into(), grid, arguments, overlapping: true, strided: false }
}

/// A group as the kernel is told of it.
#[derive(Clone, Copy)]
struct Segment {
    source: Reg<U64>,
    columns: Option<Reg<U64>>,
    target: Reg<U64>,
    factors: Reg<U64>,
    steps: Reg<U32>,
    first_row: Reg<U32>,
}

impl Segment {
    fn declare(k: &mut Builder, scaled: bool, index: usize) -> Self {
        Segment {
            source: k.pointer(&format!("source{index}")),
            columns: scaled.then(|| k.pointer(&format!("columns{index}"))),
            target: k.pointer(&format!("target{index}")),
            factors: k.pointer(&format!("factors{index}")),
            steps: k.param(&format!("steps{index}")),
            first_row: k.param(&format!("first_row{index}")),
        }
    }

    /// The same with the factors of a row's expert; of a row that is nobody's, those of the last.
    fn of_owner(self, k: &mut Builder, (experts, owners): (u32, Reg<U64>), row: Reg<U32>) -> Segment {
        let at = k.mul_wide_add(row, 4, owners);
        let owner: Reg<U32> = k.load(Addr::<Global>::of(at));
        let owner = k.min(owner, experts - 1);
        let row_bytes = k.mul(self.steps, 4 * STEP);
        Segment { columns: self.columns.map(|columns| k.mul_wide_add(owner, row_bytes, columns)), ..self }
    }

    fn or(self, k: &mut Builder, chosen: Pred, other: Segment) -> Segment {
        Segment {
            source: k.select(chosen, self.source, other.source),
            columns: self.columns.zip(other.columns).map(|(this, that)| k.select(chosen, this, that)),
            target: k.select(chosen, self.target, other.target),
            factors: k.select(chosen, self.factors, other.factors),
            steps: k.select(chosen, self.steps, other.steps),
            first_row: k.select(chosen, self.first_row, other.first_row),
        }
    }
}

impl Spec for RoundSpec {
    fn kernel(self) -> Result<Kernel, Error> {
        kernel(self)
    }
}

/// Builds the kernel. Its arguments, for each group: source; factors of columns, if there are some; target; factors of
/// rows; steps of 16 in a row; its first row among all. Then the expert of every row, if factors are those of experts,
/// and the number of all rows.
pub fn kernel(spec: RoundSpec) -> Result<Kernel, Error> {
    let mut k =
        Builder::new("round_tokens", spec.target, LaunchBounds { threads: THREADS, cluster: None, min_blocks: None });
    let segments: Vec<Segment> = (0..spec.segments).map(|index| Segment::declare(&mut k, spec.scaled, index)).collect();
    let owners = spec.owners.map(|experts| (experts, k.pointer("owners")));
    let all: Reg<U32> = k.param("rows");
    let shared = (spec.warps > 1).then(|| k.shared("largest", WARPS * 4, 16));
    k.launch_dependents();
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let team = k.shr(thread, (32 * spec.warps).trailing_zeros());
    let place = k.mul_add(block, spec.rows(), team);
    let thread = k.and(thread, 32 * spec.warps - 1);
    // Threads behind the last row take it once more, and store nothing.
    let (there, last_row) = (k.lt(place, all), k.sub(all, 1));
    let place = k.min(place, last_row);
    let segment = segments[1..].iter().fold(segments[0], |chosen, segment| {
        let begun = k.ge(place, segment.first_row);
        segment.or(&mut k, begun, chosen)
    });
    let row = k.sub(place, segment.first_row);
    k.grid_dependency_wait();
    let segment = match owners {
        None => segment,
        Some((experts, owners)) => k.phase("find", |k| segment.of_owner(k, (experts, owners), row)),
    };

    // A step behind the row's end is its last one over again, and is not stored.
    let first = k.mul(row, segment.steps);
    let last = k.sub(segment.steps, 1);
    let mut steps = Vec::new();
    for round in 0..spec.rounds {
        let step = k.add(thread, 32 * spec.warps * round);
        let (exists, inside) = (k.lt(step, segment.steps), k.min(step, last));
        let numbers = k.phase("load", |k| load(k, &spec, &segment, first, inside));
        steps.push((step, exists, numbers));
    }

    let largest = k.phase("largest", |k| {
        let all = steps.iter().flat_map(|(_, _, numbers)| numbers);
        let most = k.variable(0u32);
        for &number in all {
            let magnitude = k.and(number.cast::<U32>(), 0x7FFF_FFFFu32);
            let larger = k.max(most, magnitude);
            k.set(most, larger);
        }
        let of_warp = k.reduce(ReduceOp::Max, most);
        shared.map_or(of_warp, |shared| largest_of_team(k, (shared, spec.warps), (team, thread), of_warp))
    });

    // 448 is 1.75·2⁸: a larger mantissa counts as the next power of two.
    let bumped = k.add(largest, 0x001F_FFFFu32);
    let exponent = k.shr(bumped, 23);
    let bias = k.variable(127 + 8 + 127u32);
    let biased = k.sub(bias, exponent);
    let biased = k.max(biased, (127 - MOST_TOKEN_EXPONENT).cast_unsigned());
    let biased = k.min(biased, (127 + MOST_TOKEN_EXPONENT).cast_unsigned());
    let factor = k.shl(biased, 23).cast::<F32>();

    k.phase("store", |k| {
        for (step, exists, numbers) in steps {
            let pairs: Vec<_> = numbers
                .chunks_exact(2)
                .map(|pair| {
                    let (low, high) = (k.mul(pair[0], factor), k.mul(pair[1], factor));
                    k.e4m3_of_floats(low, high)
                })
                .collect();
            let words: [Reg<U32>; 4] = std::array::from_fn(|c| k.pack_halfwords(pairs[c], pairs[c + 4]));
            let place = k.add(first, step);
            let at = k.mul_wide_add(place, STEP, segment.target);
            let stores = k.both(exists, there);
            k.when(stores, |k| k.store_vector(Addr::<Global>::of(at), words));
        }
        let first = k.eq(thread, 0);
        let leads = k.both(first, there);
        k.if_(leads, |k| {
            let opposite = k.variable(254u32);
            let opposite = k.sub(opposite, biased);
            let inverse = k.shl(opposite, 23);
            let finite = k.lt(largest, 0x7F80_0000u32);
            let nan = k.variable(0x7FFF_FFFFu32);
            let inverse = k.select(finite, inverse, nan);
            let at = k.mul_wide_add(row, 4, segment.factors);
            k.store(Addr::<Global>::of(at), inverse);
        });
    });
    k.finish()
}

/// The sixteen numbers of a row's step as floats, times the factors of their columns if they have some.
fn load(k: &mut Builder, spec: &RoundSpec, segment: &Segment, first: Reg<U32>, step: Reg<U32>) -> Vec<Reg<F32>> {
    let columns = segment.columns.map(|columns| sixteen(k, Float::F32, columns, step));
    let place = k.add(first, step);
    let numbers = sixteen(k, spec.float, segment.source, place);
    match columns {
        None => numbers,
        Some(columns) => numbers.into_iter().zip(columns).map(|(x, factor)| k.mul(x, factor)).collect(),
    }
}

/// The sixteen numbers of a step from an address on.
fn sixteen(k: &mut Builder, float: Float, from: Reg<U64>, step: Reg<U32>) -> Vec<Reg<F32>> {
    let unit = k.shl(step, 1);
    let next = k.add(unit, 1);
    let mut numbers = load_floats(k, float, from, unit).to_vec();
    numbers.extend(load_floats(k, float, from, next));
    numbers
}

/// The largest of the words that the warps of a team have each.
fn largest_of_team(
    k: &mut Builder,
    (shared, warps): (ptx::SharedRegion, u32),
    (team, thread): (Reg<U32>, Reg<U32>),
    of_warp: Reg<U32>,
) -> Reg<U32> {
    let base = k.shared_address(shared);
    let base = k.mul_add(team, 4 * warps, base);
    let (lane, warp) = (k.and(thread, 31), k.shr(thread, 5));
    let leads = k.eq(lane, 0);
    let at = k.mul_add(warp, 4, base);
    k.when(leads, |k| k.store(Addr::<Shared>::of(at), of_warp));
    k.sync_threads();
    let words: Vec<Reg<U32>> =
        (0..warps).map(|warp| k.load(Addr::<Shared>::of(base).plus((4 * warp).cast_signed()))).collect();
    words[1..].iter().fold(words[0], |most, &word| k.max(most, word))
}
