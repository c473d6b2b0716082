//! NVFP4 matrices in the order in which Blackwell's tensor cores read them: tokens and weights alike.
//!
//! A *slab* is 256 of k of all rows, and slabs follow each other along k, padded with zeros at the edges:
//!
//! ```text
//! codes   for every row 128 bytes as a checkpoint has them, sixteen-byte pieces permuted as the 128-byte swizzle
//!         has them in shared memory
//! scales  for every tile of 128 rows (of tokens: for every tile of C), and every 64 of k, 512 bytes: four scales
//!         of a row at 16 · (row mod 32) + 4 · (row / 32), the blocked layout that NVIDIA's libraries share
//! ```
//!
//! So any rows that begin at a multiple of eight are one plain copy, and lie in shared memory as the multiplication
//! wants them.
//!
//! The tensor cores take scales for unsigned. A negative one is made positive here and its sign given to the codes of
//! its block. A scale over codes that are all zero becomes zero: then no scale is more than twice what it scales, which
//! the bound of the arithmetic ([`op::Arithmetic`]) rests on.

use format::{BLOCK, Matrix};
use op::Team;

/// The name of the layout.
pub const LAYOUT: &str = "swizzled slabs of 256 in the GPU's memory";
/// Columns of k of a slab.
pub const DEPTH: u32 = 256;
/// Columns of k that share a scale block, and that one multiplication sums.
pub const UNIT: u32 = 64;
/// Units of a slab.
pub const UNITS: u32 = DEPTH / UNIT;
/// Bytes of a row's codes in a slab.
pub const ROW_BYTES: u32 = DEPTH / 2;
/// Rows that share a block of scales.
pub const BLOCK_ROWS: u32 = 128;
/// Bytes of a scale block: 128 rows of one unit.
pub const UNIT_SCALES: u32 = 512;
/// Bytes of the scales of 128 rows in a slab.
pub const SCALE_BYTES: u32 = UNITS * UNIT_SCALES;
/// Rows within which pieces are permuted, each in another order.
pub const PERIOD_ROWS: u32 = 8;

/// Bytes of a packed matrix: those of a checkpoint, once rows are rounded up to 128 and k to 256.
pub fn packed_bytes(rows: usize, k: usize) -> usize {
    k.div_ceil(DEPTH as usize) * slab_bytes(rows)
}

/// Bytes of a slab of weights.
fn slab_bytes(rows: usize) -> usize {
    let blocks = rows.div_ceil(BLOCK_ROWS as usize);
    blocks * (BLOCK_ROWS * ROW_BYTES + SCALE_BYTES) as usize
}

/// Packs a matrix on a team's threads, where there are as many zeros as [`packed_bytes`] says.
pub fn pack(matrix: &Matrix<'_>, team: &Team, zeros: &mut [u8]) {
    debug_assert_eq!(zeros.len(), packed_bytes(matrix.rows(), matrix.k()));
    let slabs = zeros.chunks_mut(slab_bytes(matrix.rows())).enumerate();
    team.for_each(slabs, |(slab, bytes)| pack_slab(matrix, slab * DEPTH as usize, bytes));
}

fn pack_slab(matrix: &Matrix<'_>, column: usize, slab: &mut [u8]) {
    let padded = matrix.rows().next_multiple_of(BLOCK_ROWS as usize);
    let (codes, scales) = slab.split_at_mut(padded * ROW_BYTES as usize);
    let blocks = (matrix.k() - column).min(DEPTH as usize) / BLOCK;
    for row in 0..matrix.rows() {
        let bytes = &mut codes[row * ROW_BYTES as usize..][..ROW_BYTES as usize];
        let tile = &mut scales[row / BLOCK_ROWS as usize * SCALE_BYTES as usize..][..SCALE_BYTES as usize];
        for block in 0..blocks {
            let at = column / BLOCK + block;
            let source = &matrix.row_codes(row)[at * BLOCK / 2..][..BLOCK / 2];
            let scale = matrix.row_scales(row)[at];
            let flip = if scale & 0x80 == 0 { 0 } else { 0x88 };
            let empty = source.iter().all(|byte| byte & 0x77 == 0);
            tile[scale_place(row % BLOCK_ROWS as usize, block)] = if empty { 0 } else { scale & 0x7f };
            let place = code_place(row, block);
            for (to, from) in bytes[place..place + BLOCK / 2].iter_mut().zip(source) {
                *to = from ^ flip;
            }
        }
    }
}

/// Where the eight bytes of a block of codes are in their row.
fn code_place(row: usize, block: usize) -> usize {
    ((block / 2) ^ (row % PERIOD_ROWS as usize)) * 16 + block % 2 * 8
}

/// Where a scale is among those of its 128 rows.
fn scale_place(row: usize, block: usize) -> usize {
    block / 4 * UNIT_SCALES as usize + row % 32 * 16 + row / 32 * 4 + block % 4
}

#[cfg(test)]
mod tests {
    use op::Alone;

    use super::*;

    /// Every weight of a packed matrix, as the tensor cores read it.
    fn unpack(packed: &[u8], rows: usize, k: usize) -> Vec<f32> {
        let e2m1 = |code: u8| {
            [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
                [usize::from(code)]
        };
        let mut values = Vec::new();
        for (row, column) in (0..rows).flat_map(|row| (0..k).map(move |column| (row, column))) {
            let slab = &packed[column / 256 * slab_bytes(rows)..];
            let (inside, padded) = (column % 256, rows.next_multiple_of(128));
            let swizzled = row * 128 + ((inside / 2) ^ ((row % 8) << 4));
            let code = slab[swizzled] >> (column % 2 * 4) & 15;
            // The libraries' blocked layout, for one slab of one tile of rows.
            let offset = format::scales::blocked_offset(row % 128, inside / BLOCK, 16);
            let scale = slab[padded * 128 + row / 128 * 2048 + offset];
            assert!(scale < 0x80, "scales are unsigned");
            values.push(e2m1(code) * format::e4m3::decode(scale));
        }
        values
    }

    fn packed(matrix: &Matrix<'_>) -> Vec<u8> {
        let mut packed = vec![0; packed_bytes(matrix.rows(), matrix.k())];
        pack(matrix, &Team::new(Alone), &mut packed);
        packed
    }

    #[test]
    fn every_value_survives_packing_and_no_scale_is_more_than_twice_what_it_scales() {
        let finite: Vec<u8> = (0..=255).filter(|scale| scale & 0x7f != 0x7f).collect();
        for (rows, k) in [(1, 16), (130, 272), (254, 512)] {
            let codes: Vec<u8> =
                (0..rows * k / 2).map(|at| if at / 8 % 5 == 0 { 0x80 } else { (at * 7) as u8 }).collect();
            let scales: Vec<u8> = (0..rows * k / BLOCK).map(|at| finite[at % finite.len()]).collect();
            let matrix = Matrix::new(rows, k, &codes[..], &scales[..], 1.0).expect("a sound matrix");
            let packed = packed(&matrix);
            let mut expected = vec![0.0; k];
            for (row, found) in unpack(&packed, rows, k).chunks_exact(k).enumerate() {
                matrix.unscaled_row(row, &mut expected);
                assert_eq!(found, expected, "row {row} of {rows} × {k}");
            }
            let used: usize = packed.iter().filter(|byte| **byte != 0).count();
            assert!(used <= rows * k * 9 / 16, "the padding is zero");
        }
        let zeros = Matrix::new(1, 16, vec![0x08; 8], vec![0x7e], 1.0).expect("a sound matrix");
        assert!(packed(&zeros)[128 * 128..].iter().all(|scale| *scale == 0));
    }

    #[test]
    fn a_layers_weights_take_what_the_checkpoint_takes() {
        assert_eq!(packed_bytes(4096, 7168), 4096 * 7168 * 9 / 16);
        assert_eq!(packed_bytes(1, 16), 128 * 144, "a tiny matrix takes a whole block");
    }
}
