//! FP8 weights in the order in which kernels read them, and the factors of their rows.
//!
//! Chunks are those of [`crate::pack`], 32 rows × 64 columns of k, with a byte per weight and scales as
//! [`Chunk`] says:
//!
//! ```text
//! 0..2048   weights: for each of 4 strips (8 rows each), for each of 32 lanes, a word per 16 of k
//! 2048..    scales: for each of 32 rows, nothing (fp8), a byte per 32 of k (mxfp8), or a float per 64 or per 32
//! ```
//!
//! **A word** holds four weights of one row, those that one thread contributes to a step of 16 of `mma.sync` or wgmma:
//! with c = lane % 4, columns 2c, 2c + 1, 2c + 8 and 2c + 9 of a step of 16. Each half of the word has two of them,
//! even columns in the low one: 2c with its sign in bit 15 and its magnitude in bits 7..14, where these are a half
//! worth 2⁻⁸ of the weight, and 2c + 8 with its sign in bit 14 and its magnitude in bits 0..7.
//!
//! **Scales** of a row are taken apart as [`RowScales`] does: a factor of the row, which multiplies finished sums, and
//! what is left for its segments, at most 2. A byte of MXFP8 is the biased exponent of that, at most 127. **A factor**
//! of a row is a float and the exponent of a power of two that multiplies it: eight bytes.

use std::iter;

use format::{Fp8Matrix, Fp8Scales, Scaling};
use op::fp8::{RowScales, Segments};
use op::{Activation, Error, Result, Team};

use crate::pack::{CHUNK_DEPTH, CHUNK_ROWS, Chunk, parts, pieces};
use crate::phases::table::factor_words;
use crate::phases::tokens::Tokens;

/// Columns of k of a step.
const STEP: usize = 16;
/// The biased exponent of 1.
const ONE: u8 = 127;

/// Elements of k whose sums kernels make apart, since they are multiplied with a scale of their own, if they are. A
/// half does not hold MXFP8's powers of two; bfloat16 does, and weights are multiplied with them.
pub(crate) fn stretch(scaling: Scaling, tokens: Tokens) -> Option<u32> {
    match (scaling, tokens) {
        (Scaling::Fp8By64, _) => Some(64),
        (Scaling::Fp8By32, _) | (Scaling::MxFp8, Tokens::F16) => Some(32),
        _ => None,
    }
}

/// The same in the words of the bound: whichever family computes, sums are made of the same stretches.
pub(crate) fn segments(scaling: Scaling, activation: Activation) -> Segments {
    let stretch = stretch(scaling, Tokens::of(activation));
    stretch.map_or(Segments::Blocks, |stretch| Segments::Every(stretch as usize))
}

/// A packed matrix.
#[derive(Debug)]
pub struct PackedBytes {
    /// Its chunks.
    pub chunks: Vec<u8>,
    /// The factors of its rows.
    pub factors: Vec<u8>,
}

/// Packs a matrix on a team's threads.
pub fn pack(matrix: &Fp8Matrix<'_>, team: &Team) -> Result<PackedBytes> {
    let (count, k, chunk) = (matrix.rows(), matrix.k(), Chunk::of(matrix.scaling()));
    let run = k.div_ceil(CHUNK_DEPTH) * chunk.bytes() as usize;
    let bytes = count.div_ceil(CHUNK_ROWS).checked_mul(run);
    let too_large = || Error::Format(format::Error::TooLarge { rows: count, columns: k });
    let (mut chunks, parts) = (vec![0; bytes.ok_or_else(too_large)?], parts(PLACES));
    let mut rows: Vec<Result<Vec<RowScales>>> = chunks.chunks(run).map(|_| Ok(Vec::new())).collect();
    team.for_each(chunks.chunks_mut(run).zip(&mut rows).enumerate(), |(index, (chunks, rows))| {
        let first = index * CHUNK_ROWS;
        *rows = (first..count.min(first + CHUNK_ROWS)).map(|row| RowScales::of(matrix, row)).collect();
        let Ok(rows) = rows else { return };
        for row in 0..CHUNK_ROWS {
            let mut last = [0; CHUNK_DEPTH];
            let codes = pieces(if row < rows.len() { matrix.row_codes(first + row) } else { &[] }, &mut last);
            let scales = scales_of(matrix, rows.get(row));
            let chunks = chunks.chunks_exact_mut(chunk.bytes() as usize).enumerate();
            for ((step, bytes), codes) in chunks.zip(codes) {
                let (code_places, scale_places) = bytes.split_at_mut(chunk.code_bytes as usize);
                pack_codes(&parts, codes, &mut code_places.as_chunks_mut().0[row]);
                let size = chunk.row_scale_bytes as usize;
                scale_places[row * size..][..size].copy_from_slice(&scales[step * size..][..size]);
            }
        }
    });
    let rows = rows.into_iter().collect::<Result<Vec<_>>>()?;
    let factors: Vec<[u32; 2]> = rows.iter().flatten().map(|row| factor_words(row.row)).collect();
    Ok(PackedBytes { chunks, factors: bytemuck::cast_slice(&factors).to_vec() })
}

/// The matrix of a shape that was packed so: the same numbers, and scales that are worth the same. Those of blocks come
/// per row.
pub(crate) fn unpack(packed: &PackedBytes, (rows, k): (usize, usize), scaling: Scaling) -> Result<Fp8Matrix<'static>> {
    let chunk = Chunk::of(scaling);
    let chunk_at = |row: usize, column: usize| {
        let number = row / CHUNK_ROWS * k.div_ceil(CHUNK_DEPTH) + column / CHUNK_DEPTH;
        &packed.chunks[number * chunk.bytes() as usize..][..chunk.bytes() as usize]
    };
    let code = |row: usize, column: usize| {
        let (within, inside) = (row % CHUNK_ROWS, column % CHUNK_DEPTH);
        let lane = within % 8 * 4 + inside % 8 / 2;
        let at = within / 8 * 512 + lane * 16 + inside / STEP * 4 + 2 * (inside % 2);
        let bytes = chunk_at(row, column);
        let half = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if inside % STEP < 8 {
            (half >> 8 & 0x80 | half >> 7 & 0x7f) as u8
        } else {
            (half >> 7 & 0x80 | half & 0x7f) as u8
        }
    };
    let codes: Vec<u8> = (0..rows * k).map(|at| code(at / k, at % k)).collect();
    let factors: Vec<(f64, i32)> = packed
        .factors
        .chunks_exact(8)
        .map(|bytes| {
            let [number, exponent] = bytemuck::pod_read_unaligned(bytes);
            (f64::from(f32::from_bits(number)), u32::cast_signed(exponent))
        })
        .collect();
    let factor = |row: usize| factors[row].0 * 2f64.powi(factors[row].1);
    // The scale of a row's segment, as it lies in a chunk.
    let scale = |row: usize, segment: usize, bytes: usize| {
        let column = segment * scaling.block();
        let at = chunk.code_bytes as usize
            + row % CHUNK_ROWS * chunk.row_scale_bytes as usize
            + column % CHUNK_DEPTH / scaling.block() * bytes;
        &chunk_at(row, column)[at..at + bytes]
    };
    let segments = k.div_ceil(scaling.block());
    let places = || (0..rows).flat_map(|row| (0..segments).map(move |segment| (row, segment)));
    let scales = match scaling {
        Scaling::MxFp8 => {
            let exponent = |(row, at): (usize, usize)| (factors[row].1 + i32::from(scale(row, at, 1)[0])) as u8;
            Fp8Scales::Mx(places().map(exponent).collect())
        }
        Scaling::Fp8By64 | Scaling::Fp8By32 => {
            let own = |(row, at): (usize, usize)| f64::from(bytemuck::pod_read_unaligned::<f32>(scale(row, at, 4)));
            let scales = places().map(|place| (factor(place.0) * own(place)) as f32).collect();
            Fp8Scales::Blocks { block: [1, scaling.block()], scales }
        }
        _ => Fp8Scales::Rows((0..rows).map(|row| factor(row) as f32).collect()),
    };
    Ok(Fp8Matrix::new(rows, k, codes, scales)?)
}

/// Where a word has the bits of columns 2c, 2c + 1, 2c + 8 and 2c + 9, from the lowest to the sign.
const PLACES: [[u32; 8]; 4] = [
    [7, 8, 9, 10, 11, 12, 13, 15],
    [23, 24, 25, 26, 27, 28, 29, 31],
    [0, 1, 2, 3, 4, 5, 6, 14],
    [16, 17, 18, 19, 20, 21, 22, 30],
];

/// Writes a row's weights in a chunk, of which `parts` has what each byte is in a word: for each lane's quarter, a word
/// per step.
fn pack_codes(parts: &[[u32; 256]; 4], codes: &[u8; CHUNK_DEPTH], out: &mut [u8; CHUNK_DEPTH]) {
    for (quarter, places) in out.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
        for (place, codes) in places.as_chunks_mut().0.iter_mut().zip(codes.as_chunks::<STEP>().0) {
            let [a, b, c, d] = [0, 1, 8, 9].map(|byte| usize::from(codes[2 * quarter + byte]));
            *place = u32::to_le_bytes(parts[0][a] | parts[1][b] | parts[2][c] | parts[3][d]);
        }
    }
}

/// The scales of a row, or of one that is not there, in all chunks. Those beyond the edge are 1.
fn scales_of(matrix: &Fp8Matrix<'_>, row: Option<&RowScales>) -> Vec<u8> {
    if matrix.scaling() == Scaling::Fp8 {
        return Vec::new();
    }
    let block = matrix.scaling().block();
    let own = row.into_iter().flat_map(|row| &row.segments);
    let own = own.flat_map(|scale| iter::repeat_n(*scale, matrix.segment() / block));
    let scales = own.chain(iter::repeat(1.0)).take(matrix.k().next_multiple_of(CHUNK_DEPTH) / block);
    if matrix.scaling() != Scaling::MxFp8 {
        return scales.flat_map(f32::to_le_bytes).collect();
    }
    let byte = |power: f32| {
        // Exact powers of two; zero stands for a segment of zeros.
        let byte = if power == 0.0 { ONE } else { (power.to_bits() >> 23) as u8 };
        debug_assert!(byte <= ONE);
        byte
    };
    scales.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use format::e4m3;
    use half::f16;
    use op::Alone;

    use super::*;

    /// A matrix with every number there is, and some scales.
    fn matrix(rows: usize, k: usize, scales: Fp8Scales<'static>) -> Fp8Matrix<'static> {
        let code = |at: usize| Some((at * 7 + at / 61) as u8).filter(|code| !e4m3::is_nan(*code)).unwrap_or(0);
        Fp8Matrix::new(rows, k, (0..rows * k).map(code).collect::<Vec<u8>>(), scales).unwrap()
    }

    /// A packed matrix read as kernels read it.
    fn unpacked(packed: &PackedBytes, scaling: Scaling, row: usize, column: usize, k: usize) -> f64 {
        let chunk = Chunk::of(scaling);
        let number = row / CHUNK_ROWS * k.div_ceil(CHUNK_DEPTH) + column / CHUNK_DEPTH;
        let bytes = &packed.chunks[number * chunk.bytes() as usize..][..chunk.bytes() as usize];
        let (within, inside) = (row % CHUNK_ROWS, column % CHUNK_DEPTH);
        let (lane, slice) = (within % 8 * 4 + inside % 8 / 2, inside / STEP);
        let at = within / 8 * 512 + lane * 16 + slice * 4 + 2 * (inside % 2);
        let half = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let bits = if inside % STEP < 8 { half & 0xbf80 } else { half << 7 & 0x3f80 | half << 1 & 0x8000 };
        let scales = &bytes[2048 + within * chunk.row_scale_bytes as usize..][..chunk.row_scale_bytes as usize];
        let scale = match scaling {
            Scaling::MxFp8 => f64::from(f32::from_bits(u32::from(scales[inside / 32]) << 23)),
            Scaling::Fp8 => 1.0,
            other => f64::from(bytemuck::pod_read_unaligned::<f32>(&scales[inside / other.block() * 4..][..4])),
        };
        let factor: [u32; 2] = bytemuck::pod_read_unaligned(&packed.factors[8 * row..][..8]);
        let factor = f64::from(f32::from_bits(factor[0])) * 2f64.powi(factor[1].cast_signed());
        f16::from_bits(bits).to_f64() * 256.0 * scale * factor
    }

    #[test]
    fn every_weight_is_found_where_a_thread_looks_for_it() {
        let blocks = |block: [usize; 2], count: usize| {
            let scales = (0..count).map(|at| (at as f32 - 1.5) * 0.3).collect::<Vec<f32>>().into();
            Fp8Scales::Blocks { block, scales }
        };
        let cases = [
            (40, 80, Fp8Scales::Matrix(-0.013)),
            (3, 64, Fp8Scales::Rows(vec![1e-30, 0.0, -3e20].into())),
            (33, 96, Fp8Scales::Mx((0..33 * 3).map(|at| 100 + at as u8 % 57).collect::<Vec<u8>>().into())),
            (70, 208, blocks([64, 128], 4)),
            (5, 160, blocks([2, 96], 6)),
        ];
        let team = Team::new(Alone);
        for (rows, k, scales) in cases {
            let matrix = matrix(rows, k, scales);
            let (packed, scaling) = (pack(&matrix, &team).unwrap(), matrix.scaling());
            for (row, column) in (0..rows).flat_map(|row| (0..k).map(move |column| (row, column))) {
                let expected = f64::from(e4m3::decode(matrix.row_codes(row)[column]))
                    * matrix.scale(row, column / matrix.segment());
                let found = unpacked(&packed, scaling, row, column, k);
                assert_eq!(found, expected, "{scaling}, row {row}, column {column}");
            }
            let again = unpack(&packed, (rows, k), scaling).unwrap();
            assert_eq!((again.codes(), again.dequantize()), (matrix.codes(), matrix.dequantize()), "{scaling}");
        }
    }

    /// One thread's four weights of one row and step, as they are described.
    fn word(matrix: &Fp8Matrix<'_>, row: usize, column: usize) -> u32 {
        let code = |column: usize| {
            let inside = row < matrix.rows() && column < matrix.k();
            if inside { u32::from(matrix.row_codes(row)[column]) } else { 0 }
        };
        let half = |odd: usize| {
            let (near, far) = (code(column + odd), code(column + 8 + odd));
            (near & 0x80) << 8 | (near & 0x7f) << 7 | (far & 0x80) << 7 | far & 0x7f
        };
        half(0) | half(1) << 16
    }

    #[test]
    fn every_word_is_what_its_four_weights_one_by_one_make() {
        for (rows, k) in [(1, 32), (31, 64), (33, 96), (65, 224)] {
            let exponents: Vec<u8> = (0..rows * k / 32).map(|at| 100 + at as u8 % 50).collect();
            for scales in [Fp8Scales::Matrix(0.5), Fp8Scales::Mx(exponents.into())] {
                let matrix = matrix(rows, k, scales);
                let (packed, chunk) = (pack(&matrix, &Team::new(Alone)).unwrap(), Chunk::of(matrix.scaling()));
                for (number, bytes) in packed.chunks.chunks_exact(chunk.bytes() as usize).enumerate() {
                    let across = k.div_ceil(CHUNK_DEPTH);
                    let (row, column) = (number / across * CHUNK_ROWS, number % across * CHUNK_DEPTH);
                    let words =
                        bytes[..chunk.code_bytes as usize].as_chunks().0.iter().map(|at| u32::from_le_bytes(*at));
                    for (at, found) in words.enumerate() {
                        let (strip, lane, slice) = (at / 128, at / 4 % 32, at % 4);
                        let (row, column) = (row + 8 * strip + lane / 4, column + STEP * slice + 2 * (lane % 4));
                        assert_eq!(found, word(&matrix, row, column), "{rows} × {k}: row {row}, column {column}");
                    }
                }
            }
        }
    }

    #[test]
    fn edges_are_zeros_and_scales_that_are_numbers() {
        let matrix = matrix(1, 32, Fp8Scales::Mx(vec![3].into()));
        let packed = pack(&matrix, &Team::new(Alone)).unwrap();
        assert_eq!(packed.chunks[2048..], [ONE; 64]);
        assert!(packed.chunks[512..2048].iter().all(|byte| *byte == 0));
        assert_eq!(packed.factors.len(), 8);
    }
}
