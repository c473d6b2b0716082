//! What a token's experts made of it, added up: `out[t] = Σ_j w[t,j] · row[t,j]`, and what is added besides.
//!
//! In single precision, an expert after the other in the order in which the token has them, and rounded once. Rows that
//! are nobody's are not read.

use ptx::{Addr, Bf16x2, Builder, F16x2, F32, Global, Pred, Reg, U32, U64};

use op::Output;

use super::NOBODY;

/// Rows that a thread asks for at a time.
pub(crate) const TOGETHER: u32 = 8;

/// What is added up, and how it is stored.
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

/// An entry's row, or [`NOBODY`], where that lies, and its weight.
pub(crate) struct Found {
    pub base: Reg<U64>,
    pub row: Reg<U32>,
    pub weight: Option<Reg<F32>>,
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
pub(crate) fn load(k: &mut Builder, bytes: u32, at: Addr<Global>) -> Vec<Reg<U32>> {
    if bytes == 4 {
        return vec![k.load(at)];
    }
    if bytes == 8 {
        return k.load_vector::<U32, Global, 2>(at).to_vec();
    }
    (0..bytes / 16).flat_map(|part| k.load_vector::<U32, Global, 4>(at.plus((16 * part).cast_signed()))).collect()
}

/// Numbers of their words, exactly.
pub(crate) fn floats(k: &mut Builder, ty: Output, words: &[Reg<U32>]) -> Vec<Reg<F32>> {
    let pair = |k: &mut Builder, word: Reg<U32>| match ty {
        Output::F16 => k.unpack_pair(word.cast::<F16x2>()).map(|half| k.convert(half)).to_vec(),
        Output::BF16 => vec![k.shl(word, 16).cast(), k.and(word, 0xFFFF_0000u32).cast()],
        Output::F32 => vec![word.cast()],
    };
    words.iter().flat_map(|&word| pair(k, word)).collect()
}

/// Rounds two, four or eight numbers, and stores them.
pub(crate) fn store(k: &mut Builder, ty: Output, at: Addr<Global>, sums: &[Reg<F32>]) {
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
