//! The tile instructions, and the shape that all eight tiles have: 16 rows of 64 bytes.

use std::arch::asm;

use super::TILE_ROWS;

/// Shapes this thread's tiles.
///
/// # Safety
///
/// The processor must have AMX and the system must have granted its use.
pub(super) unsafe fn configure() {
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }
    let mut shapes = Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    shapes.row_bytes[..8].fill(64);
    shapes.rows[..8].fill(TILE_ROWS as u8);
    // SAFETY: the 64 bytes read are the structure's.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly, preserves_flags)) }
}

/// Gives this thread's tiles back.
///
/// # Safety
///
/// As [`configure`].
pub(super) unsafe fn release() {
    // SAFETY: passed on to the caller.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// Loads 16 rows of 64 bytes that lie together.
macro_rules! load {
    ($tile:literal, $from:expr) => {
        std::arch::asm!(concat!("tileloadd tmm", $tile, ", [{} + {}*1]"), in(reg) $from, in(reg) 64usize,
            options(nostack, readonly, preserves_flags))
    };
}

/// The same past the first-level cache, for what lies in the second and is not read again soon: a quarter faster from
/// there, and the expanded weights stay in the first.
macro_rules! load_past {
    ($tile:literal, $from:expr) => {
        std::arch::asm!(concat!("tileloaddt1 tmm", $tile, ", [{} + {}*1]"), in(reg) $from, in(reg) 64usize,
            options(nostack, readonly, preserves_flags))
    };
}

/// Stores 16 rows of 64 bytes that lie together.
macro_rules! store {
    ($tile:literal, $to:expr) => {
        std::arch::asm!(concat!("tilestored [{} + {}*1], tmm", $tile), in(reg) $to, in(reg) 64usize,
            options(nostack, preserves_flags))
    };
}

/// Asks for a line to be stored to.
macro_rules! own {
    ($line:expr) => {
        std::arch::asm!("prefetchw [{}]", in(reg) $line, options(nostack, readonly, preserves_flags))
    };
}

macro_rules! zero {
    ($($tile:literal)*) => {
        $(std::arch::asm!(concat!("tilezero tmm", $tile), options(nostack, nomem, preserves_flags));)*
    };
}

/// Adds the product of a token tile and a weight tile to a tile of sums.
macro_rules! product {
    ($sums:literal, $tokens:literal, $weights:literal) => {
        std::arch::asm!(
            concat!("tdpbf16ps tmm", $sums, ", tmm", $tokens, ", tmm", $weights),
            options(nostack, nomem, preserves_flags)
        )
    };
}

pub(super) use {load, load_past, own, product, store, zero};
