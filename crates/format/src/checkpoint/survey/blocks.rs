//! What a weight's block scales are: how many are NaN, negative, or zero where codes are not.
//!
//! A scale is a byte, so a tensor of them is counted into 256 bins, and everything but the zeros follows from the
//! counts.

use super::super::Precision;
use super::super::coded::{Bytes, Coded};
use crate::{BLOCK, Result, e4m3, scales};

/// The block scales of a weight, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScales {
    /// How many there are.
    pub count: usize,
    /// Those that are NaN.
    pub nan: usize,
    /// Those below zero.
    pub negative: usize,
    /// Those that are zero although codes of their blocks are not, so that these elements are lost.
    pub zero: usize,
    /// The largest magnitude.
    pub largest: f64,
    /// The mean of their squares.
    pub mean_square: f64,
}

impl BlockScales {
    /// Counts the scales of a weight.
    pub(super) fn of(coded: &Coded<'_>) -> Result<Self> {
        let per_block = coded.precision.block() / 2;
        match coded.bytes {
            Bytes::Apart { codes, scales, transposed: false } => {
                Ok(Self::counted(scales, coded.precision, |at| &codes[at * per_block..][..per_block]))
            }
            Bytes::Apart { codes, scales, transposed: true } => {
                // Byte j of a block stands j rows of columns further on.
                let blocks = coded.k / coded.precision.block();
                let mut block = Self::counted(scales, coded.precision, |_| &[]);
                block.zero = zeros(scales, coded.precision)
                    .filter(|at| {
                        let (row, block) = (at % coded.rows, at / coded.rows % blocks);
                        let member = at / (coded.rows * blocks);
                        let first = (member * coded.k / 2 + block * per_block) * coded.rows + row;
                        (0..per_block).any(|j| codes[first + j * coded.rows] & MAGNITUDES != 0)
                    })
                    .count();
                Ok(block)
            }
            Bytes::Swizzled { codes, scales } => {
                let scales = scales::from_blocked(scales, coded.stack * coded.rows, coded.k / BLOCK)?;
                Ok(Self::counted(&scales, coded.precision, |at| &codes[at * per_block..][..per_block]))
            }
            Bytes::Ggml(bytes) => {
                let (group, per_group) = match coded.precision {
                    Precision::NvFp4 => (36, 4),
                    Precision::MxFp4 => (17, 1),
                };
                let scale = |&byte: &u8| match (coded.precision, byte) {
                    // ggml's scales have no sign, and 0x7F stands for zero.
                    (Precision::NvFp4, 0x7F) => 0,
                    (Precision::NvFp4, 0..=0xFE) => byte & 0x7F,
                    _ => byte,
                };
                let groups = bytes.chunks_exact(group);
                let scales: Vec<u8> = groups.flat_map(|group| group[..per_group].iter().map(scale)).collect();
                Ok(Self::counted(&scales, coded.precision, |at| {
                    &bytes[at / per_group * group + per_group + at % per_group * per_block..][..per_block]
                }))
            }
        }
    }

    /// Counts scales; `codes` are those of a block.
    fn counted<'c>(scales: &[u8], precision: Precision, codes: impl Fn(usize) -> &'c [u8]) -> Self {
        let mut bins = [0usize; 256];
        for &scale in scales {
            bins[usize::from(scale)] += 1;
        }
        let mut found = Self { count: scales.len(), ..Self::default() };
        for (byte, &count) in (0..=u8::MAX).zip(&bins).filter(|(_, count)| **count > 0) {
            let value = match precision {
                Precision::NvFp4 => f64::from(e4m3::decode(byte)),
                Precision::MxFp4 if byte == u8::MAX => f64::NAN,
                Precision::MxFp4 => 2f64.powi(i32::from(byte) - 127),
            };
            if value.is_nan() {
                found.nan += count;
                continue;
            }
            found.negative += if value < 0.0 { count } else { 0 };
            found.largest = found.largest.max(value.abs());
            found.mean_square += value * value * count as f64 / scales.len() as f64;
        }
        if bins[0] + bins[0x80] > 0 {
            let is_lost = |at: &usize| codes(*at).iter().any(|code| code & MAGNITUDES != 0);
            found.zero = zeros(scales, precision).filter(is_lost).count();
        }
        found
    }
}

/// The bits of two codes that are not signs.
const MAGNITUDES: u8 = 0x77;

/// Where scales are zero, which powers of two never are.
fn zeros(scales: &[u8], precision: Precision) -> impl Iterator<Item = usize> {
    let is_zero = move |scale: u8| precision == Precision::NvFp4 && scale & 0x7F == 0;
    scales.iter().enumerate().filter(move |(_, scale)| is_zero(**scale)).map(|(at, _)| at)
}
