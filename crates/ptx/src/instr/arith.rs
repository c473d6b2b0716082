//! Arithmetic, comparison, conversion and moves: everything that touches registers only, each lane for itself.

use super::memory::Width;
use crate::types::{DataType, Operand, ParamId, RegId};

/// Operations on one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// Copy (`mov`).
    Move,
    /// Bitwise complement.
    Not,
    /// Negation.
    Neg,
    /// Absolute value.
    Abs,
    /// 2ˣ, approximate (f32; about 2 ulp, subnormals kept).
    Exp2Approx,
    /// 1/x, approximate (f32; 1 ulp, subnormals kept).
    RcpApprox,
    /// 2ˣ, approximate (f32; relative error 2⁻²²·⁵), subnormal operands and results flushed to zero: one instruction.
    Exp2Flushed,
    /// 1/x, approximate (f32; 1 ulp), subnormal operands and results flushed to zero: one instruction.
    RcpFlushed,
    /// tanh x, approximate (f32; relative error 2⁻¹¹).
    TanhApprox,
    /// Number of set bits.
    CountOnes,
}

/// Operations on two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// Sum; floats round to nearest even and are never fused with a neighbouring product.
    Add,
    /// Difference, with the same rounding.
    Sub,
    /// Product: the low half for integers, rounded to nearest even for floats.
    Mul,
    /// The high half of the double-width integer product.
    MulHigh,
    /// Smaller of the two; for floats, a number wins over a NaN.
    Min,
    /// Larger of the two; for floats, a number wins over a NaN.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Shift left by the second operand (a `U32`); counts beyond the width give zero.
    Shl,
    /// Shift right by the second operand (a `U32`): logical for unsigned, arithmetic for signed.
    Shr,
    /// Integer quotient; division by zero gives an unspecified value.
    Div,
    /// Integer remainder; division by zero gives an unspecified value.
    Rem,
}

/// Operations on three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TernaryOp {
    /// Low half of a·b, plus c (integers).
    MulAdd,
    /// a·b + c, rounded once to nearest even (floats).
    Fma,
    /// Any bitwise function of three words; bit `i` of the table is the result for inputs `a<<2 | b<<1 | c == i`.
    Lop3(u8),
    /// Four bytes picked from the eight of b:a, by the low four nibbles of c. A nibble's top bit replicates the
    /// picked byte's sign instead.
    Permute,
    /// The high word of (b:a) shifted left by c mod 32.
    FunnelLeft,
    /// The low word of (b:a) shifted right by c mod 32.
    FunnelRight,
    /// `c & 0xff` bits of a, starting at bit `b & 0xff`, sign-extended if the type is signed.
    BitExtract,
}

/// How a comparison compares. Comparisons of floats are false where either side is NaN, except `Ne`, which is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// a = b.
    Eq,
    /// a ≠ b.
    Ne,
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a > b.
    Gt,
    /// a ≥ b.
    Ge,
}

/// Logic on two predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogicOp {
    /// Both.
    And,
    /// Either.
    Or,
    /// Exactly one.
    Xor,
}

/// Operations whose result is a predicate made from predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredicateOp {
    /// A constant.
    Const(bool),
    /// A copy.
    Move(RegId),
    /// The opposite.
    Not(RegId),
    /// Two combined.
    Logic(LogicOp, RegId, RegId),
}

/// How a conversion rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Nothing to round: every source value is representable, or high bits are dropped.
    Exact,
    /// To the nearest float, ties to even.
    NearestEven,
    /// To the nearest integer, ties to even.
    NearestInteger,
    /// To an integer, towards zero.
    TowardsZero,
}

/// Values the hardware provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialRegister {
    /// Thread index in the block along x.
    TidX,
    /// Thread index in the block along y.
    TidY,
    /// Thread index in the block along z.
    TidZ,
    /// Threads per block along x.
    NtidX,
    /// Block index in the grid along x.
    CtaidX,
    /// Block index in the grid along y.
    CtaidY,
    /// Block index in the grid along z.
    CtaidZ,
    /// Blocks in the grid along x.
    NctaidX,
    /// Blocks in the grid along y.
    NctaidY,
    /// Blocks in the grid along z.
    NctaidZ,
    /// Cluster index in the grid along x.
    ClusteridX,
    /// Clusters in the grid along x.
    NclusteridX,
    /// Rank of this block in its cluster.
    ClusterCtaRank,
    /// Blocks in the cluster.
    ClusterNctaRank,
    /// Lane in the warp.
    LaneId,
    /// Hardware slot of the warp. It may differ from the thread index divided by 32.
    WarpId,
    /// The multiprocessor the block runs on.
    SmId,
    /// Cycle counter, low 32 bits.
    Clock,
    /// Cycle counter, 64 bits.
    Clock64,
    /// Nanoseconds, 64 bits.
    GlobalTimer,
}

impl SpecialRegister {
    /// Every one.
    pub const ALL: [SpecialRegister; 20] = [
        SpecialRegister::TidX,
        SpecialRegister::TidY,
        SpecialRegister::TidZ,
        SpecialRegister::NtidX,
        SpecialRegister::CtaidX,
        SpecialRegister::CtaidY,
        SpecialRegister::CtaidZ,
        SpecialRegister::NctaidX,
        SpecialRegister::NctaidY,
        SpecialRegister::NctaidZ,
        SpecialRegister::ClusteridX,
        SpecialRegister::NclusteridX,
        SpecialRegister::ClusterCtaRank,
        SpecialRegister::ClusterNctaRank,
        SpecialRegister::LaneId,
        SpecialRegister::WarpId,
        SpecialRegister::SmId,
        SpecialRegister::Clock,
        SpecialRegister::Clock64,
        SpecialRegister::GlobalTimer,
    ];

    /// Whether the register is 64 bits wide; the others are 32.
    pub fn is_wide(self) -> bool {
        matches!(self, SpecialRegister::Clock64 | SpecialRegister::GlobalTimer)
    }
}

/// Where a read of parameters starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamBase {
    /// A parameter's first byte.
    Param(ParamId),
    /// The place that a 64-bit register holds: [`Arith::ParamTable`]'s, or one further on.
    Reg(RegId),
}

/// Arithmetic, comparison, conversion, moves.
#[derive(Clone, Debug, PartialEq)]
pub enum Arith {
    /// One value in, one out.
    Unary {
        /// What is done.
        op: UnaryOp,
        /// Type of operand and result.
        ty: DataType,
        /// Result.
        dst: RegId,
        /// Operand.
        a: Operand,
    },
    /// Two values in, one out.
    Binary {
        /// What is done.
        op: BinaryOp,
        /// Type of operands and result (the second operand of a shift is always `U32`).
        ty: DataType,
        /// Result.
        dst: RegId,
        /// First operand.
        a: Operand,
        /// Second operand.
        b: Operand,
    },
    /// Three values in, one out.
    Ternary {
        /// What is done.
        op: TernaryOp,
        /// Type of operands and result.
        ty: DataType,
        /// Result.
        dst: RegId,
        /// First operand.
        a: Operand,
        /// Second operand.
        b: Operand,
        /// Third operand.
        c: Operand,
    },
    /// The 64-bit product of two unsigned 32-bit values, plus a 64-bit one (`mad.wide.u32`; `mul.wide.u32` without).
    MulWide {
        /// 64-bit result.
        dst: RegId,
        /// First 32-bit factor.
        a: Operand,
        /// Second 32-bit factor.
        b: Operand,
        /// 64-bit addend, if any.
        c: Option<Operand>,
    },
    /// Compares two values (`setp`).
    Compare {
        /// The relation.
        cmp: Comparison,
        /// Type of the operands.
        ty: DataType,
        /// Resulting predicate.
        dst: RegId,
        /// Left side.
        a: Operand,
        /// Right side.
        b: Operand,
    },
    /// `a` where the predicate holds, else `b` (`selp`).
    Select {
        /// Type of operands and result.
        ty: DataType,
        /// Result.
        dst: RegId,
        /// Value where the predicate holds.
        a: Operand,
        /// Value elsewhere.
        b: Operand,
        /// The predicate.
        pred: RegId,
    },
    /// A predicate from predicates.
    Predicate {
        /// Resulting predicate.
        dst: RegId,
        /// What is done.
        op: PredicateOp,
    },
    /// From one type to another (`cvt`). Integers extend or drop high bits; floats out of an integer's range clamp.
    Convert {
        /// Type of the result.
        to: DataType,
        /// Type of the operand.
        from: DataType,
        /// How it rounds.
        rounding: Rounding,
        /// Result.
        dst: RegId,
        /// Operand.
        a: RegId,
    },
    /// Two f32 rounded to nearest even into an `F16x2` or `Bf16x2`.
    ConvertPair {
        /// `F16x2` or `Bf16x2`.
        to: DataType,
        /// Result.
        dst: RegId,
        /// Becomes the low half.
        low: RegId,
        /// Becomes the high half.
        high: RegId,
    },
    /// Two narrower registers (or literals) joined, the first in the low half: 2×16 → 32 or 2×32 → 64.
    Pack {
        /// Result.
        dst: RegId,
        /// Low half.
        low: Operand,
        /// High half.
        high: Operand,
    },
    /// A register split in halves: 32 → 2×16 or 64 → 2×32.
    Unpack {
        /// Receives the low half.
        low: RegId,
        /// Receives the high half.
        high: RegId,
        /// Operand.
        a: RegId,
    },
    /// Whether an answer to [`TryCancel`](super::AsyncCopy::TryCancel) says that a cluster was cancelled. Cannot be guarded: it is several
    /// instructions to the assembler.
    IsCanceled {
        /// Predicate.
        dst: RegId,
        /// Two 64-bit registers: the answer.
        answer: [RegId; 2],
    },
    /// The first block of the cluster that was cancelled, along x, y and z; of an answer that says that one was. Cannot be guarded.
    FirstBlock {
        /// 32-bit results.
        dsts: [RegId; 3],
        /// Two 64-bit registers: the answer.
        answer: [RegId; 2],
    },
    /// Reads a special register.
    Special {
        /// Result.
        dst: RegId,
        /// Which one.
        which: SpecialRegister,
    },
    /// Reads a part of the parameters (`ld.param`).
    Param {
        /// Result: of the width, or wider if that is less than 32 bits.
        dst: RegId,
        /// Bytes that are read.
        width: Width,
        /// Where from.
        from: ParamBase,
        /// Bytes from there.
        offset: u32,
    },
    /// The generic address of a kernel parameter; meant for tensor maps.
    ParamAddress {
        /// 64-bit result.
        dst: RegId,
        /// Which parameter.
        param: ParamId,
    },
    /// Where a parameter starts, for reading parts of it by [`Arith::Param`].
    ParamTable {
        /// 64-bit result.
        dst: RegId,
        /// Which parameter.
        param: ParamId,
    },
    /// The address, in this block's shared window, of a byte of the kernel's shared memory.
    SharedAddress {
        /// 32-bit result.
        dst: RegId,
        /// Bytes from the start of the kernel's shared memory.
        offset: u32,
    },
    /// A generic address known to point to global memory, as a global address (`cvta.to.global`).
    ToGlobal {
        /// 64-bit result.
        dst: RegId,
        /// Generic address.
        a: RegId,
    },
    /// The address of the same shared byte in another block of the cluster (`mapa.shared::cluster`).
    MapShared {
        /// 32-bit result in the cluster window.
        dst: RegId,
        /// Address in this block's shared memory.
        a: RegId,
        /// Rank of the other block in the cluster.
        rank: Operand,
    },
    /// An L2 policy that evicts the touched lines first (`createpolicy.fractional.L2::evict_first`) or last.
    Policy {
        /// 64-bit result.
        dst: RegId,
        /// Evict last instead of first.
        keep: bool,
    },
}
