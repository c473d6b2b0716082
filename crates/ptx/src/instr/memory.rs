//! Loads, stores and atomics: memory accesses by single threads through the generic proxy.

use crate::types::{Address, DataType, Operand, RegId, Scope, Space};

/// How many bytes one element of a load or store has. `B8` and `B16` in a wider register are zero-extended on loads,
/// `S8` and `S16` sign-extended; all are truncated on stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// One byte.
    B8,
    /// One byte with a sign.
    S8,
    /// Two bytes.
    B16,
    /// Two bytes with a sign.
    S16,
    /// Four bytes.
    B32,
    /// Eight bytes.
    B64,
}

impl Width {
    /// Bytes of one element.
    #[inline]
    pub fn bytes(self) -> u32 {
        match self {
            Width::B8 | Width::S8 => 1,
            Width::B16 | Width::S16 => 2,
            Width::B32 => 4,
            Width::B64 => 8,
        }
    }

    /// Whether what is loaded keeps its sign in a wider register.
    #[inline]
    pub fn is_signed(self) -> bool {
        matches!(self, Width::S8 | Width::S16)
    }
}

/// What a load promises about other threads' writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoadOrder {
    /// Nothing: the program must order it against writes by other means.
    Weak,
    /// The bytes are not written by anybody while the kernel runs; may go through the read-only cache (`.nc`).
    ReadOnly,
    /// Like `ReadOnly`, and not worth a line in L1 (`.nc.L1::no_allocate`): data streamed once.
    Streaming,
    /// A racing write may be seen, and orders nothing else.
    Relaxed(Scope),
    /// Sees everything that happened before the release it reads from.
    Acquire(Scope),
}

/// What a store promises to other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreOrder {
    /// Nothing.
    Weak,
    /// May race with reads, and orders nothing else.
    Relaxed(Scope),
    /// Everything before it is visible to whoever acquires the stored value.
    Release(Scope),
}

/// What an atomic does with the old value and the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Sum (`U32`, `U64`, `F32`).
    Add,
    /// Minimum (`U32`, `S32`).
    Min,
    /// Maximum (`U32`, `S32`).
    Max,
    /// Replace (`U32`, `U64`).
    Exchange,
    /// Bitwise and (`U32`, `U64`).
    And,
    /// Bitwise or (`U32`, `U64`).
    Or,
    /// Bitwise exclusive or (`U32`, `U64`).
    Xor,
    /// One more, or zero from the operand on (`U32`).
    Increment,
    /// One less, or the operand from zero, or from above it (`U32`).
    Decrement,
    /// The second operand, if the first is there (`U16`, `U32`, `U64`).
    CompareExchange,
}

impl AtomicOp {
    /// Every one.
    pub const ALL: [AtomicOp; 10] = [
        AtomicOp::Add,
        AtomicOp::Min,
        AtomicOp::Max,
        AtomicOp::Exchange,
        AtomicOp::And,
        AtomicOp::Or,
        AtomicOp::Xor,
        AtomicOp::Increment,
        AtomicOp::Decrement,
        AtomicOp::CompareExchange,
    ];
}

/// Memory accesses by single threads.
#[derive(Clone, Debug, PartialEq)]
pub enum Memory {
    /// Reads 1, 2 or 4 consecutive elements, aligned to their total size.
    Load {
        /// Window of the address.
        space: Space,
        /// Ordering and caching.
        order: LoadOrder,
        /// Size of each element.
        width: Width,
        /// One register per element.
        dsts: Vec<RegId>,
        /// Where from.
        addr: Address,
    },
    /// Writes 1, 2 or 4 consecutive elements, aligned to their total size.
    Store {
        /// Window of the address.
        space: Space,
        /// Ordering.
        order: StoreOrder,
        /// Size of each element.
        width: Width,
        /// One register per element.
        srcs: Vec<RegId>,
        /// Where to.
        addr: Address,
    },
    /// Atomic read-modify-write; `red` where the old value is not wanted.
    Atomic {
        /// Window of the address: global or shared.
        space: Space,
        /// What is done.
        op: AtomicOp,
        /// Type of the value.
        ty: DataType,
        /// Relaxed (false) or acquire-release (true).
        acq_rel: bool,
        /// Among whom it is atomic.
        scope: Scope,
        /// Receives the old value, if wanted.
        dst: Option<RegId>,
        /// Which value.
        addr: Address,
        /// The operand.
        a: Operand,
        /// The second operand, where there is one.
        b: Option<Operand>,
    },
}
