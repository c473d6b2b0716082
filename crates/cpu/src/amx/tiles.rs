//! The tile instructions, and the shape that all eight tiles have: 16 rows of 64 bytes.
//!
//! Each instruction is a piece of inline assembly of its own, with other code between them, and what one leaves in a
//! tile another reads. To the compiler such a piece says which tile it changes; that a tile keeps its contents from one
//! piece to the next it does not promise by itself, but has no way to break: it uses tile registers only in functions
//! with the target features `amx-*`, which no function of this crate has and which stable Rust does not let any have,
//! and functions that are called in between (of ours, without AMX) do not either. The pieces are not marked `pure`, so
//! they keep their order.

use std::arch::asm;
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use format::BLOCK;

use crate::pack::COLUMNS;

/// Rows of a tile, and k in one.
pub(super) const TILE_ROWS: usize = 16;
pub(super) const TILE_K: usize = 32;

/// A block as half a tile: eight rows of 16 columns, two k each.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(512))]
pub(super) struct HalfTile(pub [[u16; 2 * COLUMNS]; BLOCK / 2]);

/// 16 rows of tokens, 32 k.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(1024))]
pub(super) struct TokenTile(pub [[u16; TILE_K]; TILE_ROWS]);

/// Tiles of this shape, the thread's until this is dropped. Calls of functions keep neither tiles nor their shape (so
/// the system's calling convention says), so there is nothing of a caller's to put back. Left in use, they would make
/// every switch between threads save eight kilobytes.
pub(super) struct Configured {
    of_this_thread: PhantomData<*const ()>,
}

impl Configured {
    /// Shapes this thread's tiles.
    ///
    /// # Safety
    ///
    /// The processor must have AMX and the system must have granted its use.
    pub(super) unsafe fn until_dropped() -> Self {
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
        // SAFETY: the processor has the instruction (promised by the caller); the 64 bytes read are the structure's,
        // and describe a shape that palette 1 has, so it does not fault. It sets all tiles to zero, which are declared.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &shapes, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, readonly, preserves_flags))
        }
        Self { of_this_thread: PhantomData }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: whoever made this promised that the processor has AMX. What the tiles held is not needed any more:
        // products are stored by the functions that make them. They are declared, as above.
        unsafe {
            asm!("tilerelease", out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, nomem, preserves_flags))
        }
    }
}

/// An instruction that changes a tile, and says so.
macro_rules! changing {
    (0, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm0", $($asm)*) };
    (1, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm1", $($asm)*) };
    (2, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm2", $($asm)*) };
    (3, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm3", $($asm)*) };
    (4, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm4", $($asm)*) };
    (5, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm5", $($asm)*) };
    (6, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm6", $($asm)*) };
    (7, $($asm:tt)*) => { $crate::amx::tiles::changing!(@ "tmm7", $($asm)*) };
    (@ $tile:tt, $text:expr, [$($operand:tt)*], $memory:ident) => {
        std::arch::asm!($text, $($operand)* out($tile) _, options(nostack, preserves_flags, $memory))
    };
}

/// Loads 16 rows of 64 bytes that lie together.
macro_rules! load {
    ($tile:tt, $from:expr) => {
        $crate::amx::tiles::changing!($tile, concat!("tileloadd tmm", $tile, ", [{} + {}*1]"),
            [in(reg) $from, in(reg) 64usize,], readonly)
    };
}

/// The same past L1, for what lies in the second and is not read again soon: a quarter faster from
/// there, and the expanded weights stay in the first.
macro_rules! load_past {
    ($tile:tt, $from:expr) => {
        $crate::amx::tiles::changing!($tile, concat!("tileloaddt1 tmm", $tile, ", [{} + {}*1]"),
            [in(reg) $from, in(reg) 64usize,], readonly)
    };
}

/// Stores 16 rows of 64 bytes that lie together.
macro_rules! store {
    ($tile:tt, $to:expr) => {
        std::arch::asm!(concat!("tilestored [{} + {}*1], tmm", $tile), in(reg) $to, in(reg) 64usize,
            options(nostack, preserves_flags))
    };
}

/// Asks for a line to be stored to: a hint, which faults on no address.
macro_rules! own {
    ($line:expr) => {
        std::arch::asm!("prefetchw [{}]", in(reg) $line, options(nostack, readonly, preserves_flags))
    };
}

macro_rules! zero {
    ($($tile:tt)*) => {
        $($crate::amx::tiles::changing!($tile, concat!("tilezero tmm", $tile), [], nomem);)*
    };
}

/// Adds the product of a token tile and a weight tile, of f16 or of bf16, to a tile of sums.
macro_rules! product {
    ($f16:expr, $sums:tt, $tokens:tt, $weights:tt) => {
        if $f16 {
            $crate::amx::tiles::changing!(
                $sums,
                concat!("tdpfp16ps tmm", $sums, ", tmm", $tokens, ", tmm", $weights),
                [],
                nomem
            )
        } else {
            $crate::amx::tiles::changing!(
                $sums,
                concat!("tdpbf16ps tmm", $sums, ", tmm", $tokens, ", tmm", $weights),
                [],
                nomem
            )
        }
    };
}

pub(super) use {changing, load, load_past, own, product, store, zero};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amx::Amx;
    use crate::backend::InstructionSet;

    /// Whether this thread's tiles have a shape.
    fn configured() -> bool {
        #[repr(align(64))]
        struct Shapes([u8; 64]);
        let mut shapes = Shapes([0; 64]);
        // SAFETY: called only where AMX is available; the instruction writes the structure's 64 bytes.
        unsafe { asm!("sttilecfg [{}]", in(reg) &mut shapes, options(nostack, preserves_flags)) }
        shapes.0[0] != 0
    }

    #[test]
    fn tiles_are_given_back_also_after_a_panic() {
        if Amx::available().is_err() {
            return eprintln!("not tested here: no AMX");
        }
        let panicked = std::panic::catch_unwind(|| {
            // SAFETY: AMX is available.
            let _configured = unsafe { Configured::until_dropped() };
            assert!(configured());
            std::panic::resume_unwind(Box::new("tiles in use"));
        });
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"tiles in use"));
        assert!(!configured());
    }
}
