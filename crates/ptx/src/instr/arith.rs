//! Arithmetic, comparison, conversion and moves: everything that touches registers only, each lane for itself.

use super::memory::Width;
use crate::types::{DataType, Operand, ParamId, RegId};

/// Which way a float is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards infinity.
    Up,
}

/// How floats are computed with. Integers have no choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FloatMode {
    /// How results are rounded, where they are not approximate.
    pub direction: Direction,
    /// Whether subnormal operands and results become zero (`.ftz`).
    pub flush: bool,
    /// Whether results are held to 0..=1, and NaN becomes zero (`.sat`).
    pub saturate: bool,
}

impl FloatMode {
    /// To nearest, with subnormal numbers, without bounds.
    pub const PLAIN: FloatMode = FloatMode { direction: Direction::Nearest, flush: false, saturate: false };
    /// The same with subnormal numbers flushed to zero.
    pub const FLUSHED: FloatMode = FloatMode { flush: true, ..FloatMode::PLAIN };
}

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
    /// 2ˣ, approximate (f32; about 2 ulp, or a relative error of 2⁻²²·⁵ in one instruction if subnormal numbers are
    /// flushed).
    Exp2Approx,
    /// 1/x, approximate (f32; 1 ulp).
    RcpApprox,
    /// 1/x, rounded.
    Rcp,
    /// √x, approximate (f32).
    SqrtApprox,
    /// √x, rounded.
    Sqrt,
    /// 1/√x, approximate (f32).
    RsqrtApprox,
    /// log₂ x, approximate (f32).
    Log2Approx,
    /// sin x, approximate (f32).
    SinApprox,
    /// cos x, approximate (f32).
    CosApprox,
    /// tanh x, approximate (f32; relative error 2⁻¹¹).
    TanhApprox,
    /// Number of set bits, in 32 bits.
    CountOnes,
    /// Number of clear bits above the highest that is set, in 32 bits.
    LeadingZeros,
    /// The bits in reverse order.
    ReverseBits,
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
    /// Smaller of the two, NaN if either is (floats).
    MinNan,
    /// Larger of the two, NaN if either is (floats).
    MaxNan,
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
    /// Quotient. Of integers, division by zero gives an unspecified value; floats are rounded.
    Div,
    /// Quotient, approximate (f32; 2 ulp for divisors from 2⁻¹²⁶ to 2¹²⁶).
    DivApprox,
    /// Quotient, approximate (f32; 2 ulp for all divisors).
    DivFull,
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
    /// High half of a·b, plus c (integers).
    MulAddHigh,
    /// Any bitwise function of three words; bit `i` of the table is the result for inputs `a<<2 | b<<1 | c == i`.
    Lop3(u8),
    /// Four bytes picked from the eight of b:a, by the low four nibbles of c. A nibble's top bit replicates the
    /// picked byte's sign instead.
    Permute,
    /// The high word of (b:a) shifted left by c mod 32.
    FunnelLeft,
    /// The low word of (b:a) shifted right by c mod 32.
    FunnelRight,
    /// The high word of (b:a) shifted left by c, at most 32.
    FunnelLeftClamp,
    /// The low word of (b:a) shifted right by c, at most 32.
    FunnelRightClamp,
    /// `c & 0xff` bits of a, starting at bit `b & 0xff`, sign-extended if the type is signed.
    BitExtract,
}

/// How a comparison compares. Comparisons of floats are false where either side is NaN, except `Ne` and those that
/// say otherwise.
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
    /// a ≠ b, and neither is NaN (floats).
    OrderedNe,
    /// a = b, or either is NaN (floats).
    UnorderedEq,
    /// a < b, or either is NaN (floats).
    UnorderedLt,
    /// a ≤ b, or either is NaN (floats).
    UnorderedLe,
    /// a > b, or either is NaN (floats).
    UnorderedGt,
    /// a ≥ b, or either is NaN (floats).
    UnorderedGe,
    /// Neither is NaN (floats).
    Numbers,
    /// Either is NaN (floats).
    Nan,
}

impl Comparison {
    /// Every one.
    pub const ALL: [Comparison; 14] = [
        Comparison::Eq,
        Comparison::Ne,
        Comparison::Lt,
        Comparison::Le,
        Comparison::Gt,
        Comparison::Ge,
        Comparison::OrderedNe,
        Comparison::UnorderedEq,
        Comparison::UnorderedLt,
        Comparison::UnorderedLe,
        Comparison::UnorderedGt,
        Comparison::UnorderedGe,
        Comparison::Numbers,
        Comparison::Nan,
    ];

    /// Whether it is for floats alone.
    pub fn is_of_floats(self) -> bool {
        use Comparison::{Eq, Ge, Gt, Le, Lt, Ne};
        !matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }
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
    /// To a float, towards zero.
    Zero,
    /// To a float, towards minus infinity.
    Down,
    /// To a float, towards infinity.
    Up,
    /// To the nearest integer, ties to even.
    NearestInteger,
    /// To an integer, towards zero.
    TowardsZero,
    /// To an integer, towards minus infinity.
    DownInteger,
    /// To an integer, towards infinity.
    UpInteger,
}

impl Rounding {
    /// Every one.
    pub const ALL: [Rounding; 9] = [
        Rounding::Exact,
        Rounding::NearestEven,
        Rounding::Zero,
        Rounding::Down,
        Rounding::Up,
        Rounding::NearestInteger,
        Rounding::TowardsZero,
        Rounding::DownInteger,
        Rounding::UpInteger,
    ];

    /// Whether the result is a whole number.
    pub fn is_to_integer(self) -> bool {
        use Rounding::{DownInteger, NearestInteger, TowardsZero, UpInteger};
        matches!(self, NearestInteger | TowardsZero | DownInteger | UpInteger)
    }
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
    /// Threads per block along y.
    NtidY,
    /// Threads per block along z.
    NtidZ,
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
    /// Cluster index in the grid along y.
    ClusteridY,
    /// Cluster index in the grid along z.
    ClusteridZ,
    /// Clusters in the grid along x.
    NclusteridX,
    /// Clusters in the grid along y.
    NclusteridY,
    /// Clusters in the grid along z.
    NclusteridZ,
    /// Block index in the cluster along x.
    ClusterCtaidX,
    /// Block index in the cluster along y.
    ClusterCtaidY,
    /// Block index in the cluster along z.
    ClusterCtaidZ,
    /// Blocks in the cluster along x.
    ClusterNctaidX,
    /// Blocks in the cluster along y.
    ClusterNctaidY,
    /// Blocks in the cluster along z.
    ClusterNctaidZ,
    /// Rank of this block in its cluster.
    ClusterCtaRank,
    /// Blocks in the cluster.
    ClusterNctaRank,
    /// Lane in the warp.
    LaneId,
    /// Hardware slot of the warp. It may differ from the thread index divided by 32.
    WarpId,
    /// Hardware slots for warps of a multiprocessor.
    NwarpId,
    /// The multiprocessor the block runs on.
    SmId,
    /// Multiprocessors.
    NsmId,
    /// The bit of this lane.
    LanemaskEq,
    /// The bits of this lane and those below.
    LanemaskLe,
    /// The bits of the lanes below this one.
    LanemaskLt,
    /// The bits of this lane and those above.
    LanemaskGe,
    /// The bits of the lanes above this one.
    LanemaskGt,
    /// Bytes of the block's shared memory whose size the launch says.
    DynamicSharedBytes,
    /// Bytes of the block's shared memory.
    TotalSharedBytes,
    /// Cycle counter, low 32 bits.
    Clock,
    /// Cycle counter, 64 bits.
    Clock64,
    /// Nanoseconds, 64 bits.
    GlobalTimer,
}

impl SpecialRegister {
    /// Every one.
    pub const ALL: [SpecialRegister; 41] = [
        SpecialRegister::TidX,
        SpecialRegister::TidY,
        SpecialRegister::TidZ,
        SpecialRegister::NtidX,
        SpecialRegister::NtidY,
        SpecialRegister::NtidZ,
        SpecialRegister::CtaidX,
        SpecialRegister::CtaidY,
        SpecialRegister::CtaidZ,
        SpecialRegister::NctaidX,
        SpecialRegister::NctaidY,
        SpecialRegister::NctaidZ,
        SpecialRegister::ClusteridX,
        SpecialRegister::ClusteridY,
        SpecialRegister::ClusteridZ,
        SpecialRegister::NclusteridX,
        SpecialRegister::NclusteridY,
        SpecialRegister::NclusteridZ,
        SpecialRegister::ClusterCtaidX,
        SpecialRegister::ClusterCtaidY,
        SpecialRegister::ClusterCtaidZ,
        SpecialRegister::ClusterNctaidX,
        SpecialRegister::ClusterNctaidY,
        SpecialRegister::ClusterNctaidZ,
        SpecialRegister::ClusterCtaRank,
        SpecialRegister::ClusterNctaRank,
        SpecialRegister::LaneId,
        SpecialRegister::WarpId,
        SpecialRegister::NwarpId,
        SpecialRegister::SmId,
        SpecialRegister::NsmId,
        SpecialRegister::LanemaskEq,
        SpecialRegister::LanemaskLe,
        SpecialRegister::LanemaskLt,
        SpecialRegister::LanemaskGe,
        SpecialRegister::LanemaskGt,
        SpecialRegister::DynamicSharedBytes,
        SpecialRegister::TotalSharedBytes,
        SpecialRegister::Clock,
        SpecialRegister::Clock64,
        SpecialRegister::GlobalTimer,
    ];

    /// Whether it tells of the cluster.
    pub fn is_of_cluster(self) -> bool {
        use SpecialRegister as S;
        matches!(
            self,
            S::ClusteridX
                | S::ClusteridY
                | S::ClusteridZ
                | S::NclusteridX
                | S::NclusteridY
                | S::NclusteridZ
                | S::ClusterCtaidX
                | S::ClusterCtaidY
                | S::ClusterCtaidZ
                | S::ClusterNctaidX
                | S::ClusterNctaidY
                | S::ClusterNctaidZ
                | S::ClusterCtaRank
                | S::ClusterNctaRank
        )
    }

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
    /// The place that a register of 64 or 32 bits holds: [`Arith::ParamTable`]'s, or one further on.
    Reg(RegId),
}

/// A window that a generic address can be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// Device memory.
    Global,
    /// Constants.
    Constant,
    /// The memory of a thread.
    Local,
    /// The kernel's parameters.
    Param,
    /// This block's shared memory.
    Shared,
    /// The shared memory of any block of the cluster.
    Cluster,
}

impl Window {
    /// Every one.
    pub const ALL: [Window; 6] =
        [Window::Global, Window::Constant, Window::Local, Window::Param, Window::Shared, Window::Cluster];
}

/// A float of eight bits or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NarrowFloat {
    /// Four bits of exponent, three of mantissa; NaN, and no infinity.
    E4m3,
    /// Five bits of exponent, two of mantissa; NaN and infinity.
    E5m2,
    /// Six bits, two of them exponent; numbers alone.
    E2m3,
    /// Six bits, three of them exponent; numbers alone.
    E3m2,
    /// Four bits, two of them exponent; numbers alone.
    E2m1,
    /// A power of two, 2^(code − 127); NaN, no sign, and no zero.
    Ue8m0,
}

impl NarrowFloat {
    /// Every one.
    pub const ALL: [NarrowFloat; 6] = [
        NarrowFloat::E4m3,
        NarrowFloat::E5m2,
        NarrowFloat::E2m3,
        NarrowFloat::E3m2,
        NarrowFloat::E2m1,
        NarrowFloat::Ue8m0,
    ];

    /// Bits of exponent and of mantissa.
    pub fn parts(self) -> (u32, u32) {
        match self {
            NarrowFloat::E4m3 => (4, 3),
            NarrowFloat::E5m2 => (5, 2),
            NarrowFloat::E2m3 => (2, 3),
            NarrowFloat::E3m2 => (3, 2),
            NarrowFloat::E2m1 => (2, 1),
            NarrowFloat::Ue8m0 => (8, 0),
        }
    }
}

/// Two floats that become narrower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatPair {
    /// The two halves of an `F16x2`.
    Halves(RegId),
    /// The two halves of a `Bf16x2`.
    Bfloats(RegId),
    /// Two f32: the low one and the high one.
    Floats([RegId; 2]),
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
        /// How floats are computed with.
        mode: FloatMode,
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
        /// How floats are computed with.
        mode: FloatMode,
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
        /// How floats are computed with.
        mode: FloatMode,
        /// Result.
        dst: RegId,
        /// First operand.
        a: Operand,
        /// Second operand.
        b: Operand,
        /// Third operand.
        c: Operand,
    },
    /// The product of two integers in twice their width, plus an integer of that width (`mad.wide`; `mul.wide`
    /// without).
    MulWide {
        /// Type of the factors: an integer of 16 or 32 bits.
        ty: DataType,
        /// Result, of twice the width.
        dst: RegId,
        /// First factor.
        a: Operand,
        /// Second factor.
        b: Operand,
        /// Addend of twice the width, if any.
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
        /// Whether floats are flushed, or held to 0..=1; integers are held to what the result can be.
        mode: FloatMode,
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
    /// Two floats rounded into two narrow ones of a 16-bit register (`cvt.rn.satfinite.e4m3x2` and its like). What is
    /// too large becomes the largest; NaN stays NaN, or becomes the largest where there is none. To e2m1, of which two
    /// have eight bits, it cannot be guarded: it is several instructions to the assembler.
    ConvertNarrow {
        /// Type of the results.
        to: NarrowFloat,
        /// To nearest even; to ue8m0 towards zero or up.
        direction: Direction,
        /// Whether what is negative becomes zero.
        relu: bool,
        /// Result: the first number in the low byte, or in the low four bits.
        dst: RegId,
        /// Operands.
        from: FloatPair,
    },
    /// Two narrow floats of a 16-bit register as an `F16x2`, or from ue8m0 as a `Bf16x2` (`cvt.rn.f16x2.e4m3x2` and its
    /// like). From e2m1 it cannot be guarded.
    ConvertWide {
        /// Type of the operands.
        from: NarrowFloat,
        /// Whether what is negative becomes zero.
        relu: bool,
        /// Result.
        dst: RegId,
        /// Operands, as [`Arith::ConvertNarrow`] leaves them.
        a: RegId,
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
    /// Whether an answer to [`TryCancel`](super::AsyncCopy::TryCancel) says that a cluster was cancelled. Cannot be
    /// guarded: it is several instructions to the assembler.
    IsCanceled {
        /// Predicate.
        dst: RegId,
        /// Two 64-bit registers: the answer.
        answer: [RegId; 2],
    },
    /// The first block of the cluster that was cancelled, along x, y and z; of an answer that says that one was. Cannot
    /// be guarded.
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
        /// Result of 64 or 32 bits.
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
    /// The address of a byte of one of the kernel's [variables](crate::Kernel::variables): of a local one, of this
    /// thread's.
    VariableAddress {
        /// 64-bit result.
        dst: RegId,
        /// Which variable.
        variable: u32,
        /// Bytes from its start.
        offset: u32,
    },
    /// A generic address known to point to global memory, as a global address (`cvta.to.global`).
    ToGlobal {
        /// 64-bit result.
        dst: RegId,
        /// Generic address.
        a: RegId,
    },
    /// An address in this block's shared window, or in the cluster's, as a generic one (`cvta.shared`).
    FromShared {
        /// 64-bit result.
        dst: RegId,
        /// The shared address in 64 bits.
        a: RegId,
    },
    /// A generic address known to point to shared memory, as an address in its window (`cvta.to.shared`). Of one that
    /// does not it is an address at which there is nothing.
    ToShared {
        /// 64-bit result.
        dst: RegId,
        /// Generic address.
        a: RegId,
    },
    /// Whether a generic address is in a window (`isspacep`).
    InWindow {
        /// Resulting predicate.
        dst: RegId,
        /// Which window.
        window: Window,
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
