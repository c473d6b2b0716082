//! Rows of dense values and of results: parts of them, some of them, and all of them on many threads.

use std::sync::Mutex;

use format::{Dense, Values};
use half::{bf16, f16};
use op::{Output, Result, Target, Team};

use crate::memory::filled;

/// Some rows in a row, borrowed.
pub(super) fn part<'a>(dense: &'a Dense<'_>, rows: std::ops::Range<usize>) -> Result<Dense<'a>> {
    let (k, range) = (dense.k(), rows.start * dense.k()..rows.end * dense.k());
    let values = match dense.values() {
        Values::F16(x) => Values::from(&x[range]),
        Values::BF16(x) => Values::from(&x[range]),
        Values::F32(x) => Values::from(&x[range]),
    };
    Ok(Dense::new(rows.len(), k, values, dense.global())?)
}

/// Copies of so many rows, in the order that `which` gives.
pub(super) fn picked(
    dense: &Dense<'_>,
    rows: usize,
    which: impl Fn(usize) -> usize + Sync,
    team: &Team,
) -> Result<Dense<'static>> {
    let k = dense.k();
    fn copied<T: Copy + Send + Sync>(
        (x, zero): (&[T], T),
        [rows, k]: [usize; 2],
        which: impl Fn(usize) -> usize + Sync,
        team: &Team,
    ) -> Result<Vec<T>> {
        let mut out = filled(rows * k, zero, "rows of tokens")?;
        each(&mut out, (k, 1), team, |row, out| out.copy_from_slice(&x[which(row) * k..][..k]));
        Ok(out)
    }
    let values: Values<'static> = match dense.values() {
        Values::F16(x) => copied((x, f16::ZERO), [rows, k], which, team)?.into(),
        Values::BF16(x) => copied((x, bf16::ZERO), [rows, k], which, team)?.into(),
        Values::F32(x) => copied((x, 0f32), [rows, k], which, team)?.into(),
    };
    Ok(Dense::new(rows, k, values, dense.global())?)
}

/// All rows in single precision, each multiplied with a factor of its own.
pub(super) fn widened(
    dense: &Dense<'_>,
    rows: usize,
    which: impl Fn(usize) -> (usize, f32) + Sync,
    team: &Team,
) -> Result<Dense<'static>> {
    let k = dense.k();
    let mut out = filled(rows * k, 0f32, "rows of tokens")?;
    each(&mut out, (k, 1), team, |row, out| {
        let (from, factor) = which(row);
        dense.row(from, out);
        if factor != 1.0 {
            out.iter_mut().for_each(|x| *x *= factor);
        }
    });
    Ok(Dense::new(rows, k, out, dense.global())?)
}

/// Memory for so many numbers of a type.
pub(super) fn values(output: Output, count: usize, what: &'static str) -> Result<Values<'static>> {
    Ok(match output {
        Output::F16 => filled(count, f16::ZERO, what)?.into(),
        Output::BF16 => filled(count, bf16::ZERO, what)?.into(),
        Output::F32 => filled(count, 0f32, what)?.into(),
    })
}

/// A target cut in parts of these lengths, as long as it lasts.
pub(super) fn cut<'a>(target: Target<'a>, lengths: impl Iterator<Item = usize>) -> Vec<Target<'a>> {
    fn parts<T>(mut rest: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
        let take = |length: usize| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(length);
            rest = tail;
            part
        };
        lengths.map(take).collect()
    }
    match target {
        Target::F16(c) => parts(c, lengths).into_iter().map(Target::F16).collect(),
        Target::BF16(c) => parts(c, lengths).into_iter().map(Target::BF16).collect(),
        Target::F32(c) => parts(c, lengths).into_iter().map(Target::F32).collect(),
    }
}

/// Copies rows of results to where `which` says.
pub(super) fn scatter(from: &Values<'_>, width: usize, to: &mut Target<'_>, which: impl Iterator<Item = usize>) {
    fn copy<T: Copy>(from: &[T], width: usize, to: &mut [T], which: impl Iterator<Item = usize>) {
        for (row, place) in from.chunks_exact(width).zip(which) {
            to[place * width..][..width].copy_from_slice(row);
        }
    }
    match (from, to) {
        (Values::F16(from), Target::F16(to)) => copy(from, width, to, which),
        (Values::BF16(from), Target::BF16(to)) => copy(from, width, to, which),
        (Values::F32(from), Target::F32(to)) => copy(from, width, to, which),
        _ => unreachable!("results have the type of their target"),
    }
}

/// Finds rows of f32 in which a number is not finite, which NVFP4 has no codes for, and leaves zeros there: the number
/// of the target and the row in it.
pub(super) fn take_spoilt(targets: &mut [Target<'_>], width: usize) -> Vec<(usize, usize)> {
    let mut spoilt = Vec::new();
    for (index, target) in targets.iter_mut().enumerate() {
        let Target::F32(values) = target else { continue };
        for (row, values) in values.chunks_mut(width).enumerate() {
            // Magnitudes of floats compare like their bits do, and that loop is vector code.
            let largest = values.iter().map(|x| x.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0);
            if largest >= f32::INFINITY.to_bits() {
                values.fill(0.0);
                spoilt.push((index, row));
            }
        }
    }
    spoilt
}

/// Makes some results NaN.
pub(super) fn spoil(target: &mut Target<'_>, range: std::ops::Range<usize>) {
    match target {
        Target::F16(c) => c[range].fill(f16::NAN),
        Target::BF16(c) => c[range].fill(bf16::NAN),
        Target::F32(c) => c[range].fill(f32::NAN),
    }
}

/// Numbers that a thread takes at a time, at most.
const PIECE: usize = 1 << 15;
/// Numbers that are read up to which waking others takes longer than to go on alone.
const ALONE: usize = 1 << 17;

/// Calls `work` with every row of some memory, on all threads where that is worth it; `read` numbers are read for each
/// that is written.
pub(super) fn each<T: Send>(
    memory: &mut [T],
    (width, read): (usize, usize),
    team: &Team,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let width = width.max(1);
    let rows = (memory.len() / width / team.count()).clamp(1, (PIECE / width).max(1));
    let alone = memory.len() * read <= ALONE;
    let queue = Mutex::new(memory.chunks_mut(rows * width).enumerate());
    let take_all = || {
        // A poisoned queue means that another thread panicked, which ends the run anyway.
        while let Some((index, piece)) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            piece.chunks_mut(width).enumerate().for_each(|(row, out)| work(index * rows + row, out));
        }
    };
    if alone { cpu::in_default_mode(take_all) } else { team.run(|| cpu::in_default_mode(take_all)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_alone_and_on_all_threads() {
        for (rows, width, read) in [(0, 7, 1), (1, 7, 1), (5, 40_000, 1), (300, 100, 1), (300, 100, 9)] {
            for threads in [1, 3] {
                let mut numbers = vec![0; rows * width];
                let team = cpu::team(Some(threads)).unwrap();
                each(&mut numbers, (width, read), &team, |row, out| out.iter_mut().for_each(|x| *x += row + 1));
                let expected = (0..rows * width).map(|index| index / width + 1);
                assert!(numbers.into_iter().eq(expected), "{rows} rows of {width}, {threads} threads");
            }
        }
    }
}
