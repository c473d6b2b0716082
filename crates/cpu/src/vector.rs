//! What the loops for dense tokens ask of a vector unit: f32 lanes, each a column of a panel.
//!
//! The loops (`dense`, `few`) are written once over this trait. They and its functions are inlined into functions that
//! an instruction set compiles for itself, so each of these is one or two instructions there.

use std::hint::black_box;

use format::Scaling;

pub(super) use super::pack::LANE_ORDER;
use super::pack::{CODE_BYTES, COLUMNS};

/// What e4m3 scales are smaller by in vectors than in the checkpoint; results are multiplied with it in the end.
pub(super) const SCALE_UNIT: f64 = 256.0;

/// The same of scales of any kind: powers of two are what they are.
pub(super) fn scale_unit(scaling: Scaling) -> f64 {
    if scaling.is_mx() { 1.0 } else { SCALE_UNIT }
}

/// Bytes of the codes of eight k in a full panel.
pub(super) const HALF_BLOCK: usize = CODE_BYTES / 2;

/// A vector of f32 lanes.
///
/// # Safety
///
/// Every function wants the processor to have the instructions of the vector.
pub(super) trait Vector: Copy {
    /// Lanes of a vector: a part of a panel's 16 columns.
    const LANES: usize;

    /// As many lanes of 32 bits, with the codes of one column each.
    type Codes: Copy;

    unsafe fn zero() -> Self;

    unsafe fn splat(value: f32) -> Self;

    /// Loads as many floats as there are lanes; they need no alignment.
    unsafe fn load(from: *const f32) -> Self;

    unsafe fn store(self, to: *mut f32);

    unsafe fn multiply(self, factor: Self) -> Self;

    /// `self · factor + sum`, rounded once.
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;

    /// Loads as many e4m3 scales without sign as there are lanes, each divided by [`SCALE_UNIT`]: a byte shifted into
    /// place is that number in half precision, subnormal or not.
    unsafe fn scales(from: *const u8) -> Self;

    /// Loads as many e4m3 numbers as there are lanes, each divided by [`SCALE_UNIT`].
    unsafe fn bytes(from: *const u8) -> Self;

    /// Loads as many powers of two as there are lanes, each as the exponent bits of an f32.
    unsafe fn powers(from: *const u8) -> Self;

    /// Loads the scales of a block of either kind, each divided by its [`scale_unit`].
    #[inline(always)]
    unsafe fn block_scales<const MX: bool>(from: *const u8) -> Self {
        // SAFETY: the caller promises the instructions, and as many scales as lanes.
        unsafe { if MX { Self::powers(from) } else { Self::scales(from) } }
    }

    /// Loads eight codes per lane.
    unsafe fn codes(from: *const u8) -> Self::Codes;

    /// The same without each lane's lowest code.
    unsafe fn next(codes: Self::Codes) -> Self::Codes;

    /// The value of each lane's lowest code.
    unsafe fn values(codes: Self::Codes) -> Self;

    /// The sums of a block's products without its scales, in two sums of eight at least that are then added, for
    /// `PARTS` vectors of columns: their codes stand together, those of the second eight k [`HALF_BLOCK`] bytes on, and
    /// there are 16 numbers of each token, `apart` from the next one's.
    unsafe fn block<const TOKENS: usize, const PARTS: usize>(
        codes: *const u8,
        token: *const f32,
        apart: usize,
    ) -> [[Self; PARTS]; TOKENS];
}

/// The functions of [`Vector`] that are one instruction each, under the same name but for the prefix.
#[cfg(target_arch = "x86_64")]
macro_rules! plain_instructions {
    ($zero:ident, $splat:ident, $load:ident, $store:ident, $multiply:ident, $multiply_add:ident) => {
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the processor has the instruction, as for all that follows: the caller's promise.
            unsafe { $zero() }
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: the processor has the instruction.
            unsafe { $splat(value) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the processor has the instruction, and there are as many floats to read as lanes.
            unsafe { $load(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the processor has the instruction, and there is room for as many floats as lanes.
            unsafe { $store(to, self) }
        }

        #[inline(always)]
        unsafe fn multiply(self, factor: Self) -> Self {
            // SAFETY: the processor has the instruction.
            unsafe { $multiply(self, factor) }
        }

        #[inline(always)]
        unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: the processor has the instruction.
            unsafe { $multiply_add(self, factor, sum) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use plain_instructions;

/// Does nothing but multiply and add, in as many sums as the units' latency asks for; returns the operations done.
///
/// # Safety
///
/// The processor must have the instructions of the vector.
#[inline(always)]
pub(super) unsafe fn keep_busy<V: Vector>() -> f64 {
    const ROUNDS: usize = 1 << 20;
    const SUMS: usize = 12;
    // SAFETY: the processor has the instructions (promised by the caller), and `last` has room for the widest vector.
    unsafe {
        let factor = V::splat(black_box(0.999));
        let mut sums = [factor; SUMS];
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum = V::splat(black_box(index as f32));
        }
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = sum.multiply_add(factor, factor);
            }
        }
        // All of them count, or the compiler would leave some out.
        let mut total = factor;
        for sum in sums {
            total = sum.multiply_add(factor, total);
        }
        let mut last = [0.0; COLUMNS];
        total.store(last.as_mut_ptr());
        black_box(last);
    }
    (2 * V::LANES * SUMS * ROUNDS) as f64
}
