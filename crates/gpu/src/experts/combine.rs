//! What a token's experts made of it, added up: `out[t] = Σ_j w[t,j] · row[inverse[t,j]]`, and what is added besides.
//!
//! In single precision, an expert after the other in the order in which the token has them, and rounded once. Rows that
//! are nobody's are not read. A thread has as many columns of a token as sixteen bytes of a row hold, so that a warp
//! reads rows without gaps, and asks for the rows of several experts at a time.
//!
//! Where the host computes some experts, their rows lie in its memory, one at the place of each entry, and are read
//! from there.

use ptx::{
    Addr, Bf16x2, Builder, Error, F16x2, F32, Global, Kernel, LaunchBounds, Pred, Reg, SpecialRegister, Target, U32,
    U64,
};

use op::Output;

use super::place::AWAY;
use super::{NOBODY, Portable, await_predecessor, launch_dependents};

/// Threads of a block.
const THREADS: u32 = 128;
/// Bytes of a row that a thread reads at a time.
const ACCESS: u32 = 16;
/// Rows that a thread asks for at a time.
pub(crate) const TOGETHER: u32 = 8;

/// Which of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CombineSpec {
    /// Experts of a token.
    pub top: u32,
    /// The type of the rows.
    pub rows: Output,
    /// The type of the results.
    pub output: Output,
    /// Whether rows are multiplied with weights; else their weights are in them already.
    pub weighted: bool,
    /// The type of what is added to every token's sum, if something is.
    pub addend: Option<Output>,
    /// Whether some rows, of single precision as the others are, lie in the host's memory.
    pub away: bool,
}

impl CombineSpec {
    /// Blocks for so many tokens with so many columns.
    pub fn blocks(&self, tokens: u32, columns: u32) -> u32 {
        (u64::from(tokens) * u64::from(columns / self.columns())).div_ceil(THREADS.into()) as u32
    }

    /// Columns of a thread: four or eight.
    fn columns(&self) -> u32 {
        ACCESS / self.rows.bytes() as u32
    }
}

impl Portable for CombineSpec {
    fn kernel_for(self, target: Target) -> Result<Kernel, Error> {
        kernel(self, target)
    }
}

/// Builds the kernel. Its arguments, in order: rows `[rows, columns]`, inverse `[tokens, top]`, the entries' slots
/// `[tokens, top]` and the host's rows `[tokens, top, columns]` if there are some, weights `[tokens, top]` if there are
/// some, the addend `[tokens, columns]` if there is one, results `[tokens, columns]`, tokens, and columns.
pub fn kernel(spec: CombineSpec, target: Target) -> Result<Kernel, Error> {
    if spec.away && spec.rows != Output::F32 {
        let (what, found) = ("bytes of a row's numbers", spec.rows.bytes() as u64);
        return Err(Error::Field { what, found, wanted: "4, as the host's rows have" });
    }
    let launch = LaunchBounds { threads: THREADS, cluster: None, min_blocks: None };
    let mut k = Builder::new("combine", target, launch);
    let (rows, inverse) = (k.pointer("rows"), k.pointer("inverse"));
    let away = spec.away.then(|| [k.pointer("placed"), k.pointer("away")]);
    let weights = spec.weighted.then(|| k.pointer("weights"));
    let addend = spec.addend.map(|ty| (ty, k.pointer("addend")));
    let out = k.pointer("out");
    let (tokens, columns): (Reg<U32>, Reg<U32>) = (k.param("tokens"), k.param("columns"));
    launch_dependents(&mut k, target);
    let (thread, block) = (k.special(SpecialRegister::TidX), k.special(SpecialRegister::CtaidX));
    let place = k.mul_add(block, THREADS, thread);
    let units = k.shr(columns, spec.columns().trailing_zeros());
    let token = k.div(place, units);
    let before = k.mul(token, units);
    let unit = k.sub(place, before);
    let exists = k.lt(token, tokens);
    await_predecessor(&mut k, target);
    k.if_(exists, |k| {
        let sums: Vec<Reg<F32>> = (0..spec.columns()).map(|_| k.variable(0.0)).collect();
        for first in (0..spec.top).step_by(TOGETHER as usize) {
            let count = TOGETHER.min(spec.top - first);
            let sources = Sources { rows, inverse, away, weights };
            let found = sources.find(k, spec, (token, first, count));
            add_rows(k, (spec, ACCESS), &found, (units, unit), &sums);
        }
        finish(k, spec, (addend, out), [token, units, unit], &sums);
    });
    k.finish()
}

/// Adds what is added besides to a token's sums, and stores them.
pub(crate) fn finish(
    k: &mut Builder,
    spec: CombineSpec,
    (addend, out): (Option<(Output, Reg<U64>)>, Reg<U64>),
    [token, units, unit]: [Reg<U32>; 3],
    sums: &[Reg<F32>],
) {
    let columns = sums.len() as u32;
    if let Some((ty, addend)) = addend {
        let bytes = columns * ty.bytes() as u32;
        let at = element(k, addend, bytes, token, units, unit);
        let words = load(k, bytes, at);
        let values = floats(k, ty, &words);
        for (&sum, value) in sums.iter().zip(values) {
            let total = k.add(sum, value);
            k.set(sum, total);
        }
    }
    let at = element(k, out, columns * spec.output.bytes() as u32, token, units, unit);
    k.phase("store", |k| store(k, spec.output, at, sums));
}

/// Where rows are, and what says which.
struct Sources {
    rows: Reg<U64>,
    inverse: Reg<U64>,
    /// The entries' slots, and the host's rows.
    away: Option<[Reg<U64>; 2]>,
    weights: Option<Reg<U64>>,
}

/// An entry's row, or [`NOBODY`], where that lies, and its weight.
pub(crate) struct Found {
    pub base: Reg<U64>,
    pub row: Reg<U32>,
    pub weight: Option<Reg<F32>>,
}

impl Sources {
    /// Finds some of a token's entries.
    fn find(&self, k: &mut Builder, spec: CombineSpec, (token, first, count): (Reg<U32>, u32, u32)) -> Vec<Found> {
        let entry = k.mul(token, spec.top);
        let at = |k: &mut Builder, base, index: u32| -> Addr<Global> {
            Addr::of(k.mul_wide_add(entry, 4, base)).plus((4 * (first + index)).cast_signed())
        };
        k.phase("find", |k| {
            let find = |index| {
                let place_at = at(k, self.inverse, index);
                let weight = self.weights.map(|weights| {
                    let at = at(k, weights, index);
                    k.load(at)
                });
                let (base, row) = (self.rows, k.load(place_at));
                let Some([placed, host_rows]) = self.away else { return Found { base, row, weight } };
                let placed_at = at(k, placed, index);
                let slot: Reg<U32> = k.load(placed_at);
                let away = k.eq(slot, AWAY);
                let number = k.add(entry, first + index);
                Found { base: k.select(away, host_rows, base), row: k.select(away, number, row), weight }
            };
            (0..count).map(find).collect()
        })
    }
}

/// Adds the rows of some of a token's experts, so many bytes of each.
pub(crate) fn add_rows(
    k: &mut Builder,
    (spec, bytes): (CombineSpec, u32),
    found: &[Found],
    (units, unit): (Reg<U32>, Reg<U32>),
    sums: &[Reg<F32>],
) {
    let loaded: Vec<(Pred, Vec<Reg<U32>>)> = k.phase("load", |k| {
        let load = |found: &Found| {
            let somebodys = k.ne(found.row, NOBODY);
            let at = element(k, found.base, bytes, found.row, units, unit);
            (somebodys, k.when(somebodys, |k| load(k, bytes, at)))
        };
        found.iter().map(load).collect()
    });
    k.phase("add", |k| {
        for (Found { weight, .. }, (somebodys, words)) in found.iter().zip(loaded) {
            k.when(somebodys, |k| {
                let values = floats(k, spec.rows, &words);
                for (&sum, value) in sums.iter().zip(values) {
                    // Two roundings, as on a CPU and where experts are spread over machines: the sum has the same bits
                    // however it is put together.
                    let weighted = weight.map_or(value, |weight| k.mul(value, weight));
                    let total = k.add(sum, weighted);
                    k.set(sum, total);
                }
            });
        }
    });
}

/// Where a thread's part of a row is, of which each has so many bytes.
fn element(
    k: &mut Builder,
    base: Reg<U64>,
    bytes: u32,
    row: Reg<U32>,
    units: Reg<U32>,
    unit: Reg<U32>,
) -> Addr<Global> {
    let row_bytes = k.mul(units, bytes);
    let row = k.mul_wide_add(row, row_bytes, base);
    Addr::of(k.mul_wide_add(unit, bytes, row))
}

/// So many bytes as words.
pub(super) fn load(k: &mut Builder, bytes: u32, at: Addr<Global>) -> Vec<Reg<U32>> {
    if bytes == 4 {
        return vec![k.load(at)];
    }
    if bytes == 8 {
        return k.load_vector::<U32, Global, 2>(at).to_vec();
    }
    (0..bytes / 16).flat_map(|part| k.load_vector::<U32, Global, 4>(at.plus((16 * part).cast_signed()))).collect()
}

/// Numbers of their words, exactly.
pub(super) fn floats(k: &mut Builder, ty: Output, words: &[Reg<U32>]) -> Vec<Reg<F32>> {
    let pair = |k: &mut Builder, word: Reg<U32>| match ty {
        Output::F16 => k.unpack_pair(word.cast::<F16x2>()).map(|half| k.convert(half)).to_vec(),
        Output::BF16 => vec![k.shl(word, 16).cast(), k.and(word, 0xFFFF_0000u32).cast()],
        Output::F32 => vec![word.cast()],
    };
    words.iter().flat_map(|&word| pair(k, word)).collect()
}

/// Rounds two, four or eight numbers, and stores them.
pub(super) fn store(k: &mut Builder, ty: Output, at: Addr<Global>, sums: &[Reg<F32>]) {
    let pair = |pair: &[Reg<F32>]| match ty {
        Output::BF16 => k.convert_pair::<Bf16x2>(pair[0], pair[1]).cast(),
        _ => k.convert_pair::<F16x2>(pair[0], pair[1]).cast(),
    };
    let words: Vec<Reg<U32>> = match ty {
        Output::F16 | Output::BF16 => sums.chunks(2).map(pair).collect(),
        Output::F32 => sums.iter().map(|sum| sum.cast()).collect(),
    };
    if let [one] = words[..] {
        return k.store(at, one);
    }
    if let Ok(both) = <[Reg<U32>; 2]>::try_from(&words[..]) {
        return k.store_vector(at, both);
    }
    for (part, four) in words.chunks_exact(4).enumerate() {
        k.store_vector(at.plus(16 * part as i32), [four[0], four[1], four[2], four[3]]);
    }
}
