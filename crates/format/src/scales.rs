//! The two layouts block scales are kept in.
//!
//! Checkpoints keep them row-major, [rows, K/16]. Tensor cores (and cuBLAS, CUTLASS,
//! `torch._scaled_mm`) want them *blocked*: rows padded to 128, K/16 padded to 4, cut into tiles of
//! 128×4 bytes that follow each other along K first. Inside a tile the 128 rows are folded into four
//! groups of 32 that stand side by side, so that 16 consecutive bytes hold rows r, r+32, r+64 and r+96
//! with four scales each. The padding is zero here.

use crate::matrix::check_length;
use crate::{Error, Result};

const TILE_ROWS: usize = 128;
const TILE_BLOCKS: usize = 4;
const TILE_BYTES: usize = TILE_ROWS * TILE_BLOCKS;

/// How many bytes the blocked layout takes, padding included.
///
/// # Errors
///
/// If that is more than can be addressed.
pub fn blocked_len(rows: usize, blocks: usize) -> Result<usize> {
    rows.div_ceil(TILE_ROWS)
        .checked_mul(blocks.div_ceil(TILE_BLOCKS))
        .and_then(|tiles| tiles.checked_mul(TILE_BYTES))
        .ok_or(Error::TooLarge { rows, columns: blocks })
}

/// Where the scale of (`row`, `block`) stands in the blocked layout of a matrix with `blocks` scales a
/// row.
pub fn blocked_offset(row: usize, block: usize, blocks: usize) -> usize {
    let tile = (row / TILE_ROWS) * blocks.div_ceil(TILE_BLOCKS) + block / TILE_BLOCKS;
    let inside = 16 * (row % 32) + 4 * (row % TILE_ROWS / 32) + block % TILE_BLOCKS;
    tile * TILE_BYTES + inside
}

/// Row-major scales, [`rows`, `blocks`], in the blocked layout.
///
/// # Errors
///
/// If the shape is too large to address, or if the length does not fit it.
pub fn to_blocked(row_major: &[u8], rows: usize, blocks: usize) -> Result<Vec<u8>> {
    let padded = blocked_len(rows, blocks)?;
    check_length("row-major scales", rows, blocks, rows * blocks, row_major.len())?;
    let mut blocked = vec![0; padded];
    for_each_run(rows, blocks, |from, to, length| {
        blocked[to..to + length].copy_from_slice(&row_major[from..from + length]);
    });
    Ok(blocked)
}

/// Blocked scales back in row-major order, [`rows`, `blocks`]; the padding is dropped, whatever it holds.
///
/// # Errors
///
/// If the shape is too large to address, or if the length does not fit its padded form.
pub fn from_blocked(blocked: &[u8], rows: usize, blocks: usize) -> Result<Vec<u8>> {
    check_length("blocked scales", rows, blocks, blocked_len(rows, blocks)?, blocked.len())?;
    let mut row_major = vec![0; rows * blocks];
    for_each_run(rows, blocks, |to, from, length| {
        row_major[to..to + length].copy_from_slice(&blocked[from..from + length]);
    });
    Ok(row_major)
}

/// Calls `copy` with (row-major offset, blocked offset, length) for every run of up to four scales that
/// lie together in both layouts.
fn for_each_run(rows: usize, blocks: usize, mut copy: impl FnMut(usize, usize, usize)) {
    if blocks == 0 {
        return;
    }
    for row in 0..rows {
        for block in (0..blocks).step_by(TILE_BLOCKS) {
            let length = TILE_BLOCKS.min(blocks - block);
            copy(row * blocks + block, blocked_offset(row, block, blocks), length);
        }
    }
}
