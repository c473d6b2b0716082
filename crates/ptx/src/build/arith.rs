//! Arithmetic, comparison, conversion and moves.

use super::Builder;
use crate::instr::{
    Arith, BinaryOp, Comparison, Direction, FloatMode, FloatPair, LogicOp, NarrowFloat, PredicateOp, Rounding,
    SpecialRegister, TernaryOp, UnaryOp,
};
use crate::types::{
    Bank, Bf16, Bf16x2, Bool, CachePolicy, DataType, F16, F16x2, F32, Operand, Pred, Reg, S32, Type, U16, U32, U64,
    Value,
};

/// Types that add, subtract and multiply.
pub trait Number: Type {}
/// Integers, with bitwise operations and shifts.
pub trait Integer: Number {}
/// Floats, with fused multiply-add.
pub trait Float: Number {}

macro_rules! mark {
    ($kind:ident: $($ty:ident)*) => { $(impl $kind for $ty {})* };
}

mark!(Number: U16 U32 S32 U64 F16 Bf16 F16x2 Bf16x2 F32);
mark!(Integer: U16 U32 S32 U64);
mark!(Float: F16 Bf16 F16x2 Bf16x2 F32);

/// Types to which one `cvt` leads from `From`.
pub trait Convert<From: Type>: Type {
    /// How the conversion rounds.
    const ROUNDING: Rounding;
}

macro_rules! conversions {
    ($($from:ident -> $to:ident: $rounding:ident;)*) => {$(
        impl Convert<$from> for $to {
            const ROUNDING: Rounding = Rounding::$rounding;
        }
    )*};
}

conversions! {
    U16 -> U32: Exact;
    U16 -> U64: Exact;
    U32 -> U16: Exact;
    U32 -> U64: Exact;
    U64 -> U32: Exact;
    U32 -> F32: NearestEven;
    S32 -> F32: NearestEven;
    F32 -> U32: TowardsZero;
    F32 -> S32: NearestInteger;
    F16 -> F32: Exact;
    Bf16 -> F32: Exact;
    F32 -> F16: NearestEven;
    F32 -> Bf16: NearestEven;
}

/// Two 16-bit floats in one register.
pub trait PackedPair: Float {
    /// One of them.
    type Half: Type;
}

impl PackedPair for F16x2 {
    type Half = F16;
}

impl PackedPair for Bf16x2 {
    type Half = Bf16;
}

impl Builder {
    fn flushed<T: Type>(&mut self, op: UnaryOp, a: Reg<T>) -> Reg<T> {
        let dst = self.register();
        let mode = FloatMode::FLUSHED;
        self.emit(Arith::Unary { op, ty: T::DATA, mode, dst: dst.id(), a: Value::from(a).operand() });
        dst
    }

    fn unary<T: Type>(&mut self, op: UnaryOp, a: Reg<T>) -> Reg<T> {
        let dst = self.register::<T>();
        self.emit(Arith::Unary { op, ty: T::DATA, mode: FloatMode::PLAIN, dst: dst.id(), a: Value::from(a).operand() });
        dst
    }

    fn binary<T: Type>(&mut self, op: BinaryOp, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        let (dst, a) = (self.register::<T>(), Value::from(a).operand());
        let (mode, b) = (FloatMode::PLAIN, b.into().operand());
        self.emit(Arith::Binary { op, ty: T::DATA, mode, dst: dst.id(), a, b });
        dst
    }

    fn ternary<T: Type>(&mut self, op: TernaryOp, operands: [Value<T>; 3]) -> Reg<T> {
        let dst = self.register::<T>();
        let [a, b, c] = operands.map(Value::operand);
        self.emit(Arith::Ternary { op, ty: T::DATA, mode: FloatMode::PLAIN, dst: dst.id(), a, b, c });
        dst
    }

    /// A new register that starts with this value.
    pub fn variable<T: Type>(&mut self, value: impl Into<Value<T>>) -> Reg<T> {
        let dst = self.register::<T>();
        self.set(dst, value);
        dst
    }

    /// A new register with these bits, whatever they mean: the way to half-precision constants and descriptors.
    pub fn bits<T: Type>(&mut self, bits: u64) -> Reg<T> {
        let dst = self.register::<T>();
        let ty = match T::DATA.bank() {
            Bank::Pred => {
                self.emit(Arith::Predicate { dst: dst.id(), op: PredicateOp::Const(bits & 1 == 1) });
                return dst;
            }
            Bank::B16 => DataType::U16,
            Bank::B32 => DataType::U32,
            Bank::B64 => DataType::U64,
        };
        self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode: FloatMode::PLAIN, dst: dst.id(), a: Operand::Imm(bits) });
        dst
    }

    /// Replaces a register's value.
    pub fn set<T: Type>(&mut self, dst: Reg<T>, value: impl Into<Value<T>>) {
        let a = value.into().operand();
        let dst = dst.id();
        match (T::DATA, a) {
            (DataType::Pred, Operand::Reg(a)) => {
                self.emit(Arith::Predicate { dst, op: PredicateOp::Move(a) });
            }
            (DataType::Pred, Operand::Imm(bits)) => {
                self.emit(Arith::Predicate { dst, op: PredicateOp::Const(bits == 1) });
            }
            (ty, a) => self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode: FloatMode::PLAIN, dst, a }),
        }
    }

    /// a + b.
    pub fn add<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Add, a, b)
    }

    /// a − b.
    pub fn sub<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Sub, a, b)
    }

    /// a · b; the low half for integers.
    pub fn mul<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Mul, a, b)
    }

    /// The high half of a · b.
    pub fn mul_high<T: Integer>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::MulHigh, a, b)
    }

    /// The smaller one.
    pub fn min<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Min, a, b)
    }

    /// The larger one.
    pub fn max<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Max, a, b)
    }

    /// a & b.
    pub fn and<T: Integer>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::And, a, b)
    }

    /// a | b.
    pub fn or<T: Integer>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Or, a, b)
    }

    /// a ^ b.
    pub fn xor<T: Integer>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Xor, a, b)
    }

    /// a / b, rounded down (towards zero if signed).
    pub fn div<T: Integer>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Div, a, b)
    }

    /// a mod b.
    pub fn rem<T: Integer>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Reg<T> {
        self.binary(BinaryOp::Rem, a, b)
    }

    fn shift<T: Integer>(&mut self, op: BinaryOp, a: Reg<T>, count: Value<U32>) -> Reg<T> {
        let (dst, a) = (self.register::<T>(), Value::from(a).operand());
        let (mode, b) = (FloatMode::PLAIN, count.operand());
        self.emit(Arith::Binary { op, ty: T::DATA, mode, dst: dst.id(), a, b });
        dst
    }

    /// a << count.
    pub fn shl<T: Integer>(&mut self, a: Reg<T>, count: impl Into<Value<U32>>) -> Reg<T> {
        self.shift(BinaryOp::Shl, a, count.into())
    }

    /// a >> count, arithmetic for signed types.
    pub fn shr<T: Integer>(&mut self, a: Reg<T>, count: impl Into<Value<U32>>) -> Reg<T> {
        self.shift(BinaryOp::Shr, a, count.into())
    }

    /// ~a.
    pub fn not<T: Integer>(&mut self, a: Reg<T>) -> Reg<T> {
        self.unary(UnaryOp::Not, a)
    }

    /// −a.
    pub fn neg<T: Float>(&mut self, a: Reg<T>) -> Reg<T> {
        self.unary(UnaryOp::Neg, a)
    }

    /// |a|.
    pub fn abs<T: Float>(&mut self, a: Reg<T>) -> Reg<T> {
        self.unary(UnaryOp::Abs, a)
    }

    /// Approximately 2ᵃ.
    pub fn exp2(&mut self, a: Reg<F32>) -> Reg<F32> {
        self.unary(UnaryOp::Exp2Approx, a)
    }

    /// Approximately 1/a.
    pub fn rcp(&mut self, a: Reg<F32>) -> Reg<F32> {
        self.unary(UnaryOp::RcpApprox, a)
    }

    /// Approximately √a.
    pub fn sqrt(&mut self, a: Reg<F32>) -> Reg<F32> {
        self.unary(UnaryOp::SqrtApprox, a)
    }

    /// Approximately 2ᵃ, subnormal numbers flushed to zero.
    pub fn exp2_flushed(&mut self, a: Reg<F32>) -> Reg<F32> {
        self.flushed(UnaryOp::Exp2Approx, a)
    }

    /// Approximately 1/a, subnormal numbers flushed to zero.
    pub fn rcp_flushed(&mut self, a: Reg<F32>) -> Reg<F32> {
        self.flushed(UnaryOp::RcpApprox, a)
    }

    /// Approximately tanh a.
    pub fn tanh(&mut self, a: Reg<F32>) -> Reg<F32> {
        self.unary(UnaryOp::TanhApprox, a)
    }

    /// Whether an answer to [`Builder::try_cancel`] says that a cluster was cancelled.
    pub fn is_canceled(&mut self, answer: [Reg<U64>; 2]) -> Pred {
        let dst = self.register::<Bool>();
        self.emit(Arith::IsCanceled { dst: dst.id(), answer: answer.map(Reg::id) });
        dst
    }

    /// The first block of the cluster that was cancelled, along x, y and z.
    pub fn first_block(&mut self, answer: [Reg<U64>; 2]) -> [Reg<U32>; 3] {
        let dsts = self.registers::<U32, 3>();
        self.emit(Arith::FirstBlock { dsts: dsts.map(Reg::id), answer: answer.map(Reg::id) });
        dsts
    }

    /// Number of set bits.
    pub fn count_ones(&mut self, a: Reg<U32>) -> Reg<U32> {
        self.unary(UnaryOp::CountOnes, a)
    }

    /// a · b + c, the low half (integers).
    pub fn mul_add<T: Integer>(&mut self, a: Reg<T>, b: impl Into<Value<T>>, c: impl Into<Value<T>>) -> Reg<T> {
        self.ternary(TernaryOp::MulAdd, [a.into(), b.into(), c.into()])
    }

    /// a · b + c, rounded once (floats).
    pub fn fma<T: Float>(&mut self, a: Reg<T>, b: impl Into<Value<T>>, c: impl Into<Value<T>>) -> Reg<T> {
        self.ternary(TernaryOp::Fma, [a.into(), b.into(), c.into()])
    }

    /// a · b as 64 bits.
    pub fn mul_wide(&mut self, a: Reg<U32>, b: impl Into<Value<U32>>) -> Reg<U64> {
        let (dst, a, b) = (self.register::<U64>(), Value::from(a).operand(), b.into().operand());
        self.emit(Arith::MulWide { ty: DataType::U32, dst: dst.id(), a, b, c: None });
        dst
    }

    /// a · b + c as 64 bits: the address of element a of an array at c.
    pub fn mul_wide_add(&mut self, a: Reg<U32>, b: impl Into<Value<U32>>, c: impl Into<Value<U64>>) -> Reg<U64> {
        let (dst, a, b) = (self.register::<U64>(), Value::from(a).operand(), b.into().operand());
        let c = Some(c.into().operand());
        self.emit(Arith::MulWide { ty: DataType::U32, dst: dst.id(), a, b, c });
        dst
    }

    /// The bitwise function of three words whose value for `0xf0, 0xcc, 0xaa` is `table`.
    pub fn lop3(&mut self, a: Reg<U32>, b: impl Into<Value<U32>>, c: impl Into<Value<U32>>, table: u8) -> Reg<U32> {
        self.ternary(TernaryOp::Lop3(table), [a.into(), b.into(), c.into()])
    }

    /// Four bytes of the eight in b:a, picked by the nibbles of `selector`.
    pub fn permute(&mut self, a: Reg<U32>, b: impl Into<Value<U32>>, selector: impl Into<Value<U32>>) -> Reg<U32> {
        self.ternary(TernaryOp::Permute, [a.into(), b.into(), selector.into()])
    }

    /// `count` bits of a, from bit `start` up.
    pub fn bit_extract(&mut self, a: Reg<U32>, start: impl Into<Value<U32>>, count: impl Into<Value<U32>>) -> Reg<U32> {
        self.ternary(TernaryOp::BitExtract, [a.into(), start.into(), count.into()])
    }

    /// The high word of high:low shifted left.
    pub fn funnel_left(&mut self, low: Reg<U32>, high: Reg<U32>, count: impl Into<Value<U32>>) -> Reg<U32> {
        self.ternary(TernaryOp::FunnelLeft, [low.into(), high.into(), count.into()])
    }

    /// The low word of high:low shifted right.
    pub fn funnel_right(&mut self, low: Reg<U32>, high: Reg<U32>, count: impl Into<Value<U32>>) -> Reg<U32> {
        self.ternary(TernaryOp::FunnelRight, [low.into(), high.into(), count.into()])
    }

    /// A comparison.
    pub fn compare<T: Number>(&mut self, cmp: Comparison, a: Reg<T>, b: impl Into<Value<T>>) -> Pred {
        let (dst, a) = (self.register::<Bool>(), Value::from(a).operand());
        self.emit(Arith::Compare { cmp, ty: T::DATA, dst: dst.id(), a, b: b.into().operand() });
        dst
    }

    /// a = b.
    pub fn eq<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Pred {
        self.compare(Comparison::Eq, a, b)
    }

    /// a ≠ b.
    pub fn ne<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Pred {
        self.compare(Comparison::Ne, a, b)
    }

    /// a < b.
    pub fn lt<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Pred {
        self.compare(Comparison::Lt, a, b)
    }

    /// a ≤ b.
    pub fn le<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Pred {
        self.compare(Comparison::Le, a, b)
    }

    /// a > b.
    pub fn gt<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Pred {
        self.compare(Comparison::Gt, a, b)
    }

    /// a ≥ b.
    pub fn ge<T: Number>(&mut self, a: Reg<T>, b: impl Into<Value<T>>) -> Pred {
        self.compare(Comparison::Ge, a, b)
    }

    /// `a` where `pred` holds, else `b`.
    pub fn select<T: Number>(&mut self, pred: Pred, a: impl Into<Value<T>>, b: impl Into<Value<T>>) -> Reg<T> {
        let dst = self.register::<T>();
        let (a, b) = (a.into().operand(), b.into().operand());
        self.emit(Arith::Select { ty: T::DATA, dst: dst.id(), a, b, pred: pred.id() });
        dst
    }

    fn predicate(&mut self, op: PredicateOp) -> Pred {
        let dst = self.register::<Bool>();
        self.emit(Arith::Predicate { dst: dst.id(), op });
        dst
    }

    /// Both predicates.
    pub fn both(&mut self, a: Pred, b: Pred) -> Pred {
        self.predicate(PredicateOp::Logic(LogicOp::And, a.id(), b.id()))
    }

    /// Either predicate.
    pub fn either(&mut self, a: Pred, b: Pred) -> Pred {
        self.predicate(PredicateOp::Logic(LogicOp::Or, a.id(), b.id()))
    }

    /// The opposite predicate.
    pub fn opposite(&mut self, a: Pred) -> Pred {
        self.predicate(PredicateOp::Not(a.id()))
    }

    /// The value as another type; see [`Convert`] for the pairs and their rounding.
    pub fn convert<To: Convert<From>, From: Type>(&mut self, a: Reg<From>) -> Reg<To> {
        let dst = self.register::<To>();
        let rounding = To::ROUNDING;
        let (to, from, mode) = (To::DATA, From::DATA, FloatMode::PLAIN);
        self.emit(Arith::Convert { to, from, rounding, mode, dst: dst.id(), a: a.id() });
        dst
    }

    /// Two f32 rounded into one register.
    pub fn convert_pair<T: PackedPair>(&mut self, low: Reg<F32>, high: Reg<F32>) -> Reg<T> {
        let dst = self.register::<T>();
        self.emit(Arith::ConvertPair { to: T::DATA, dst: dst.id(), low: low.id(), high: high.id() });
        dst
    }

    fn emit_e4m3(&mut self, dst: Reg<U16>, from: FloatPair) {
        let (to, direction, relu) = (NarrowFloat::E4m3, Direction::Nearest, false);
        self.emit(Arith::ConvertNarrow { to, direction, relu, dst: dst.id(), from });
    }

    /// Two halves rounded to two e4m3 numbers, in 16 bits; see [`Arith::ConvertNarrow`].
    pub fn e4m3_of_halves(&mut self, a: Reg<F16x2>) -> Reg<U16> {
        let dst = self.register::<U16>();
        self.emit_e4m3(dst, FloatPair::Halves(a.id()));
        dst
    }

    /// Two f32 rounded to two e4m3 numbers, in 16 bits; see [`Arith::ConvertNarrow`].
    pub fn e4m3_of_floats(&mut self, low: Reg<F32>, high: Reg<F32>) -> Reg<U16> {
        let dst = self.register::<U16>();
        self.emit_e4m3(dst, FloatPair::Floats([low.id(), high.id()]));
        dst
    }

    /// Two 16-bit words in one register.
    pub fn pack_halfwords(&mut self, low: Reg<U16>, high: Reg<U16>) -> Reg<U32> {
        let dst = self.register::<U32>();
        let (low, high) = (Value::from(low).operand(), Value::from(high).operand());
        self.emit(Arith::Pack { dst: dst.id(), low, high });
        dst
    }

    /// Two 16-bit floats in one register.
    pub fn pack_pair<T: PackedPair>(&mut self, low: Reg<T::Half>, high: Reg<T::Half>) -> Reg<T> {
        let dst = self.register::<T>();
        let (low, high) = (Value::from(low).operand(), Value::from(high).operand());
        self.emit(Arith::Pack { dst: dst.id(), low, high });
        dst
    }

    /// The two 16-bit floats of a register.
    pub fn unpack_pair<T: PackedPair>(&mut self, a: Reg<T>) -> [Reg<T::Half>; 2] {
        let [low, high] = self.registers::<T::Half, 2>();
        self.emit(Arith::Unpack { low: low.id(), high: high.id(), a: a.id() });
        [low, high]
    }

    /// Two words as one 64-bit value.
    pub fn pack_words(&mut self, low: impl Into<Value<U32>>, high: impl Into<Value<U32>>) -> Reg<U64> {
        let dst = self.register::<U64>();
        self.emit(Arith::Pack { dst: dst.id(), low: low.into().operand(), high: high.into().operand() });
        dst
    }

    /// The two words of a 64-bit value, low first.
    pub fn unpack_words(&mut self, a: Reg<U64>) -> [Reg<U32>; 2] {
        let [low, high] = self.registers::<U32, 2>();
        self.emit(Arith::Unpack { low: low.id(), high: high.id(), a: a.id() });
        [low, high]
    }

    /// A 32-bit special register.
    pub fn special(&mut self, which: SpecialRegister) -> Reg<U32> {
        let dst = self.register();
        self.emit(Arith::Special { dst: dst.id(), which });
        dst
    }

    /// A 64-bit special register (the clocks).
    pub fn special_wide(&mut self, which: SpecialRegister) -> Reg<U64> {
        let dst = self.register();
        self.emit(Arith::Special { dst: dst.id(), which });
        dst
    }

    /// An L2 policy for copies: evict what they touch first, or keep it longest.
    pub fn cache_policy(&mut self, keep: bool) -> Reg<CachePolicy> {
        let dst = self.register();
        self.emit(Arith::Policy { dst: dst.id(), keep });
        dst
    }

    /// The address of a byte of this block's shared memory in the block of rank `rank`.
    pub fn map_shared(&mut self, address: Reg<U32>, rank: impl Into<Value<U32>>) -> Reg<U32> {
        let dst = self.register();
        self.emit(Arith::MapShared { dst: dst.id(), a: address.id(), rank: rank.into().operand() });
        dst
    }
}
