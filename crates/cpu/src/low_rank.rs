//! What low-rank adapters add to the rows of a product: B·(scaling·(A·x)), in f32, as [`op::adapters`] defines it.
//!
//! A·x has thirty-two sums, one per number modulo 32, that are added in the end; B·t adds one column of B after
//! another. Nothing is fused and a row's sums know nothing of other rows, so a row's bits are the same on every
//! instruction set, for any number of threads and among any other rows. The loops are plain Rust, compiled for vectors
//! of 512, 256 and 128 bits.
//!
//! Neighbours with the same pair, of which there are many where rows are sorted by expert, share what it takes to read
//! it: its numbers are widened to f32 once for [`TOGETHER`] of them. Single rows are cut instead, so that one token
//! keeps all threads busy.

use std::ops::Range;
use std::sync::Mutex;

use format::Dense;
use op::{LowRank, Team};

use super::environment::in_default_mode;

/// Rows that share a reading of their pair, at most.
const TOGETHER: usize = 8;
/// Rows of A, and columns of C, that a piece of a single row has.
const RANKS: usize = 4;
const COLUMNS: usize = 512;
const LANES: usize = 16;

/// A pair and the scaling of its adapter.
type Pair<'a> = (&'a LowRank, f32);

/// Writes what each row's pair adds, `[rows, n]`; zeros where a row has none.
pub fn deltas(x: &Dense<'_>, pairs: &[Option<Pair<'_>>], out: &mut [f32], team: &Team) {
    let rank = pairs.iter().flatten().map(|(pair, _)| pair.rank()).max().unwrap_or(0);
    let n = out.len() / pairs.len().max(1);
    let runs = runs(pairs, if pairs.len() < 4 * team.count() { 1 } else { TOGETHER });
    let mut inner = vec![0f32; pairs.len() * rank];
    let global = x.global().value() as f32;
    each_piece(&mut inner, &runs, (rank, RANKS), team, |rows, ranks, t| {
        if let Some((pair, scaling)) = pairs[rows.start] {
            let ranks = ranks.start..ranks.end.min(pair.rank());
            shrink(pair.a(), (x, rows), ranks, scaling * global, t);
        }
    });
    each_piece(out, &runs, (n, COLUMNS), team, |rows, columns, out| {
        out.fill(0.0);
        if let Some((pair, _)) = pairs[rows.start] {
            expand(pair.b_columns(), &inner[rows.start * rank..rows.end * rank], columns, out);
        }
    });
}

/// Rows in a row that have the same pair, at most so many at a time.
fn runs(pairs: &[Option<Pair<'_>>], most: usize) -> Vec<Range<usize>> {
    let same = |one: &Option<Pair<'_>>, other: &Option<Pair<'_>>| match (one, other) {
        (Some((one, _)), Some((other, _))) => std::ptr::eq(*one, *other),
        (None, None) => true,
        _ => false,
    };
    let mut runs: Vec<Range<usize>> = Vec::new();
    for row in 0..pairs.len() {
        match runs.last_mut() {
            Some(run) if run.len() < most && same(&pairs[run.start], &pairs[row]) => run.end = row + 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

/// Calls `work` on all threads with every run of rows and its memory, `[rows, width]`; single rows in pieces.
fn each_piece(
    memory: &mut [f32],
    runs: &[Range<usize>],
    (width, piece): (usize, usize),
    team: &Team,
    work: impl Fn(Range<usize>, Range<usize>, &mut [f32]) + Sync,
) {
    let mut rest = memory;
    let mut pieces = Vec::new();
    for rows in runs {
        let (own, behind) = std::mem::take(&mut rest).split_at_mut(rows.len() * width);
        rest = behind;
        let length = if rows.len() == 1 { piece } else { own.len().max(1) };
        for (index, part) in own.chunks_mut(length).enumerate() {
            let first = index * piece;
            let columns = if rows.len() == 1 { first..first + part.len() } else { 0..width };
            pieces.push((rows.clone(), columns, part));
        }
    }
    let queue = Mutex::new(pieces.into_iter());
    let take_all = || {
        // A poisoned queue means that another thread panicked, which ends the run anyway.
        while let Some((rows, columns, part)) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            work(rows, columns, part);
        }
    };
    team.run(|| in_default_mode(take_all));
}

/// Compiles a loop for the widest vectors that there are, and calls that.
macro_rules! widest {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $body:block) => {
        $(#[$doc])*
        fn $name($($argument: $type),*) {
            #[inline(always)]
            fn plain($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
                fn wide($($argument: $type),*) { plain($($argument),*) }
                #[target_feature(enable = "avx2")]
                fn middle($($argument: $type),*) { plain($($argument),*) }
                if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                    // SAFETY: the processor has these instructions; AVX-512F stands below the others.
                    return unsafe { wide($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has these instructions.
                    return unsafe { middle($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    };
}

/// scaling·(A·x) for some rows of x and some of A. `t` has as many places for each row of x as it has room for; those
/// beyond the ranks stay as they are.
fn shrink(a: &Dense<'_>, (x, rows): (&Dense<'_>, Range<usize>), ranks: Range<usize>, scaling: f32, t: &mut [f32]) {
    let (k, stride) = (a.k(), t.len() / rows.len());
    let (mut tokens, mut weights) = (vec![0f32; rows.len() * k], vec![0f32; k]);
    for (index, row) in rows.enumerate() {
        x.row(row, &mut tokens[index * k..][..k]);
    }
    for (place, rank) in ranks.enumerate() {
        a.row(rank, &mut weights);
        for (token, t) in tokens.chunks_exact(k).zip(t.chunks_exact_mut(stride)) {
            let mut sum = 0.0;
            dot(token, &weights, &mut sum);
            t[place] = scaling * sum;
        }
    }
}

/// The sums over ranks of t times B's columns, for some of the columns of C.
fn expand(b: &Dense<'_>, t: &[f32], columns: Range<usize>, out: &mut [f32]) {
    let mut weights = vec![0f32; b.k()];
    let (rows, width) = (out.len() / columns.len(), columns.len());
    let stride = t.len() / rows;
    for rank in 0..b.rows() {
        b.row(rank, &mut weights);
        for (t, out) in t.chunks_exact(stride).zip(out.chunks_exact_mut(width)) {
            add(t[rank], &weights[columns.clone()], out);
        }
    }
}

widest! {
    /// Σ x·a.
    fn dot(x: &[f32], a: &[f32], sum: &mut f32) {
        let mut sums = [[0f32; LANES]; 2];
        let rest = x.len() / (2 * LANES) * 2 * LANES;
        for (x, a) in x.chunks_exact(2 * LANES).zip(a.chunks_exact(2 * LANES)) {
            for (half, sums) in sums.iter_mut().enumerate() {
                for (lane, sum) in sums.iter_mut().enumerate() {
                    *sum += x[half * LANES + lane] * a[half * LANES + lane];
                }
            }
        }
        for (lane, (x, a)) in x[rest..].iter().zip(&a[rest..]).enumerate() {
            sums[lane / LANES][lane % LANES] += x * a;
        }
        *sum = sums[0].iter().zip(&sums[1]).map(|(one, other)| one + other).sum();
    }
}

widest! {
    /// Adds t·b.
    fn add(t: f32, b: &[f32], out: &mut [f32]) {
        for (out, b) in out.iter_mut().zip(b) {
            *out += t * b;
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn dense(rng: &mut Rng, rows: usize, k: usize) -> Dense<'static> {
        Dense::new(rows, k, (0..rows * k).map(|_| rng.f32() - 0.5).collect::<Vec<f32>>(), 1.0).unwrap()
    }

    #[test]
    fn every_row_gets_its_own_pair_and_the_same_bits_alone_and_among_others() {
        let rng = &mut Rng::with_seed(4);
        let (k, n) = (75, 600);
        let pair = |rng: &mut Rng, rank| LowRank::new(&dense(rng, rank, k), &dense(rng, n, rank)).unwrap();
        let [one, other] = [3, 9].map(|rank| pair(rng, rank));
        let pairs: Vec<Option<Pair<'_>>> = (0..40)
            .map(|row| [Some((&one, 2.0)), Some((&one, 2.0)), None, Some((&other, 0.5))][(row / 7) % 4])
            .collect();
        let x = dense(rng, pairs.len(), k);
        let mut all = vec![f32::NAN; pairs.len() * n];
        deltas(&x, &pairs, &mut all, &crate::team(Some(1)).unwrap());
        let mut spread = vec![f32::NAN; pairs.len() * n];
        deltas(&x, &pairs, &mut spread, &crate::team(Some(16)).unwrap());
        assert_eq!(all, spread, "single rows are cut, and have the same sums");
        let mut token = vec![0f32; k];
        for (row, pair) in pairs.iter().enumerate() {
            x.row(row, &mut token);
            let expected = |column: usize| {
                let (pair, scaling) = (*pair)?;
                let (mut a, mut b) = (vec![0f32; k], vec![0f32; n]);
                let of_rank = |rank| {
                    pair.a().row(rank, &mut a);
                    pair.b_columns().row(rank, &mut b);
                    let t: f64 = a.iter().zip(&token).map(|(&a, &x)| f64::from(a) * f64::from(x)).sum();
                    t * f64::from(b[column])
                };
                Some(f64::from(scaling) * (0..pair.rank()).map(of_rank).sum::<f64>())
            };
            for column in [0, 15, 511, 512, n - 1] {
                let (found, expected) = (f64::from(all[row * n + column]), expected(column).unwrap_or(0.0));
                assert!((found - expected).abs() < 1e-5, "row {row}, column {column}: {found} for {expected}");
            }
        }
    }
}
