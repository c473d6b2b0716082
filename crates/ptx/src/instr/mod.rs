//! Instructions as plain values.
//!
//! An [`Instr`] is an operation, an optional guard and the phase of the kernel it belongs to. Operations are grouped by
//! family, one file each: arithmetic, memory, warp, barriers, copies, tensor cores (four ways), control. Every
//! field is plain data; nothing here knows how an instruction was built, and all of it can be taken apart again.

mod arith;
mod barrier;
mod control;
mod copy;
mod fragment;
mod memory;
mod mma;
mod registers;
mod tcgen05;
mod warp;
mod wgmma;

pub use arith::{
    Arith, BinaryOp, Comparison, Direction, FloatMode, FloatPair, LogicOp, NarrowFloat, ParamBase, PredicateOp,
    Rounding, SpecialRegister, TernaryOp, UnaryOp, Window,
};
pub use barrier::{Arrival, Barrier, Fence, Semantics};
pub use control::{Control, Label, RegisterChange, Unknown};
pub use copy::AsyncCopy;
pub(crate) use fragment::dense;
pub use fragment::{Fragment, Fragments, MatrixOrder, MatrixType, Role};
pub use memory::{AtomicOp, LoadOrder, Memory, StoreOrder, Width};
pub use mma::{Mma, Scaling};
pub use registers::Access;
pub use tcgen05::{CellShape, Collector, CtaGroup, DenseKind, ScaledKind, Tcgen05, TensorA};
pub use warp::{ReduceOp, ShuffleMode, VoteMode, Warp};
pub use wgmma::{Accumulate, MatrixA, MatrixElement, Wgmma};

use crate::types::{PhaseId, RegId};

/// A predicate in front of an instruction: lanes for which it does not hold skip the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The predicate register.
    pub pred: RegId,
    /// Whether the instruction runs where the predicate is *false*.
    pub negated: bool,
}

/// One instruction of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Instr {
    /// Which lanes run it; all active ones if `None`.
    pub guard: Option<Guard>,
    /// What it does.
    pub op: Op,
    /// The phase of the kernel it was written in.
    pub phase: PhaseId,
    /// The line of the text that it was read from, counted from one, if it was.
    pub line: Option<u32>,
}

/// What an instruction does, by family.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Arithmetic, comparison, conversion and moves between registers.
    Arith(Arith),
    /// Loads, stores and atomics by single threads.
    Memory(Memory),
    /// Work that the lanes of a warp do together.
    Warp(Warp),
    /// Barriers of every kind.
    Barrier(Barrier),
    /// Ordering of memory accesses.
    Fence(Fence),
    /// Asynchronous copies.
    Copy(AsyncCopy),
    /// Tensor cores by the warp.
    Mma(Mma),
    /// Tensor cores by the warp, in other shapes and with matrices in memory.
    Fragments(Fragments),
    /// Hopper's tensor cores.
    Wgmma(Wgmma),
    /// Blackwell's tensor cores and tensor memory.
    Tcgen05(Tcgen05),
    /// Flow of control and of resources.
    Control(Control),
    /// Something in a text that is not understood. It can be carried about, and not be executed.
    Unknown(Unknown),
}

macro_rules! families {
    ($($family:ident($payload:ident)),*) => {$(
        impl From<$payload> for Op {
            fn from(op: $payload) -> Op {
                Op::$family(op)
            }
        }
    )*};
}

families!(
    Arith(Arith),
    Memory(Memory),
    Warp(Warp),
    Barrier(Barrier),
    Fence(Fence),
    Copy(AsyncCopy),
    Mma(Mma),
    Fragments(Fragments),
    Wgmma(Wgmma),
    Tcgen05(Tcgen05),
    Control(Control),
    Unknown(Unknown)
);
