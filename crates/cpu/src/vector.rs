//! What the loops for dense tokens ask of a vector unit: f32 lanes, each a column of a panel.
//!
//! The loops (`dense`) are written once over this trait. They and its functions are inlined into functions that an instruction set
//! compiles for itself, so each of these is one or two instructions there.

/// A vector of f32 lanes.
///
/// # Safety
///
/// Every function wants the processor to have the instructions of the vector.
pub(super) trait Vector: Copy {
    /// Lanes of a vector: a part of a panel's 16 columns.
    const LANES: usize;
    /// Vectors that the processor has registers for.
    const REGISTERS: usize;

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

    /// Loads as many e4m3 scales without sign as there are lanes.
    unsafe fn scales(from: *const u8) -> Self;

    /// Loads eight codes per lane.
    unsafe fn codes(from: *const u8) -> Self::Codes;

    /// The same without each lane's lowest code.
    unsafe fn next(codes: Self::Codes) -> Self::Codes;

    /// The value of each lane's lowest code.
    unsafe fn values(codes: Self::Codes) -> Self;
}
