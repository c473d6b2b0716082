//! What the lanes of one warp do together: shuffles, votes, elections, reductions, matrix loads and stores.

use crate::types::{Address, DataType, Operand, RegId};

/// From which lane a shuffle reads, given the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShuffleMode {
    /// The lane named by the operand.
    Index,
    /// Own lane xor the operand.
    Butterfly,
    /// Own lane minus the operand.
    Up,
    /// Own lane plus the operand.
    Down,
}

/// What a vote answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VoteMode {
    /// Whether the predicate holds in all lanes.
    All,
    /// Whether it holds in any lane.
    Any,
    /// Whether it is the same in all lanes.
    Uniform,
}

/// How a warp reduction combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum.
    Add,
    /// Smallest.
    Min,
    /// Largest.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Smallest, NaN if any is (floats).
    MinNan,
    /// Largest, NaN if any is (floats).
    MaxNan,
}

impl ReduceOp {
    /// Every one.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Add,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::And,
        ReduceOp::Or,
        ReduceOp::Xor,
        ReduceOp::MinNan,
        ReduceOp::MaxNan,
    ];
}

/// Work that the lanes of a warp do together.
#[derive(Clone, Debug, PartialEq)]
pub enum Warp {
    /// Each lane reads a register of another lane (`shfl.sync.b32`). A source lane outside the segment leaves the
    /// lane's own value.
    Shuffle {
        /// Which lane is read.
        mode: ShuffleMode,
        /// 32-bit result.
        dst: RegId,
        /// Whether the source lane was in range, if wanted.
        valid: Option<RegId>,
        /// 32-bit value offered.
        a: RegId,
        /// Lane, mask or distance, by mode.
        lane: Operand,
        /// Segment mask in bits 8..13 and clamp in bits 0..5, as PTX defines them.
        clamp: Operand,
        /// Participating lanes; each must execute this instruction.
        mask: Operand,
    },
    /// A question to the participating lanes about a predicate (`vote.sync`).
    Vote {
        /// What is asked.
        mode: VoteMode,
        /// Resulting predicate.
        dst: RegId,
        /// The predicate voted on.
        pred: RegId,
        /// Participating lanes.
        mask: Operand,
    },
    /// The lanes in which the predicate holds, as bits (`vote.sync.ballot`).
    Ballot {
        /// 32-bit result.
        dst: RegId,
        /// The predicate voted on.
        pred: RegId,
        /// Participating lanes.
        mask: Operand,
    },
    /// The lanes that happen to execute this together.
    ActiveMask {
        /// 32-bit result.
        dst: RegId,
    },
    /// One lane of the mask is chosen; the predicate holds in that lane only. Hardware chooses the same lane each time.
    Elect {
        /// Receives the number of the elected lane, if wanted.
        leader: Option<RegId>,
        /// True in the elected lane.
        pred: RegId,
        /// Participating lanes.
        mask: Operand,
    },
    /// A value combined over the participating lanes (`redux.sync`).
    Reduce {
        /// What makes one value of two.
        op: ReduceOp,
        /// `U32`, `S32` or `F32`.
        ty: DataType,
        /// Result, the same in every lane.
        dst: RegId,
        /// The lane's contribution.
        a: RegId,
        /// Participating lanes.
        mask: Operand,
    },
    /// The participating lanes that hold the same value as this one (`match.any`); or all of them if they all do, and
    /// none otherwise (`match.all`).
    Match {
        /// Whether all must hold it.
        all: bool,
        /// `U32` or `U64`.
        ty: DataType,
        /// 32-bit result.
        dst: RegId,
        /// Receives whether all hold the same, if wanted.
        same: Option<RegId>,
        /// The lane's value.
        a: Operand,
        /// Participating lanes.
        mask: Operand,
    },
    /// Waits for the lanes of the mask and orders their memory accesses (`bar.warp.sync`).
    Sync {
        /// Participating lanes.
        mask: Operand,
    },
    /// Loads one, two or four 8×8 matrices of 16-bit elements from shared memory; lane `8i + r` gives the address of
    /// row `r` of matrix `i` (`ldmatrix`).
    LoadMatrix {
        /// Transpose each matrix.
        transpose: bool,
        /// One 32-bit register per matrix.
        dsts: Vec<RegId>,
        /// Row address, 16-byte aligned.
        addr: Address,
    },
    /// Stores one, two or four 8×8 matrices of 16-bit elements to shared memory (`stmatrix`).
    StoreMatrix {
        /// Transpose each matrix.
        transpose: bool,
        /// One 32-bit register per matrix.
        srcs: Vec<RegId>,
        /// Row address, 16-byte aligned.
        addr: Address,
    },
}
