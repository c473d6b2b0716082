//! Arithmetic: which operations exist for which types, and that every operand is of its type.

use super::Check;
use crate::instr::{Arith, BinaryOp, ParamBase, PredicateOp, Rounding, SpecialRegister, TernaryOp, UnaryOp};
use crate::kernel::ParamType;
use crate::rule::Rule;
use crate::target::Feature;
use crate::types::{Bank, DataType, ParamId, RegId};

use DataType::{Bf16, Bf16x2, F16, F16x2, F32, S32, U16, U32, U64};

const INTEGERS: &[DataType] = &[U16, U32, S32, U64];
const FLOATS: &[DataType] = &[F16, Bf16, F16x2, Bf16x2, F32];
const SIGNED: &[DataType] = &[S32, F16, Bf16, F16x2, Bf16x2, F32];
const SCALARS: &[DataType] = &[U16, U32, S32, U64, F16, Bf16, F32];
const NUMBERS: &[DataType] = &[U16, U32, S32, U64, F16, Bf16, F16x2, Bf16x2, F32];

/// The types of an operation, as a list and in words.
type Types = (&'static [DataType], &'static str);

fn unary_types(op: UnaryOp) -> Types {
    match op {
        UnaryOp::Move => (NUMBERS, "every type but predicates"),
        UnaryOp::Not => (INTEGERS, "integers"),
        UnaryOp::Neg | UnaryOp::Abs => (SIGNED, "S32 and floats"),
        UnaryOp::Exp2Approx | UnaryOp::RcpApprox | UnaryOp::Exp2Flushed | UnaryOp::RcpFlushed | UnaryOp::TanhApprox => {
            (&[F32], "F32")
        }
        UnaryOp::CountOnes => (&[U32], "U32"),
    }
}

fn binary_types(op: BinaryOp) -> Types {
    match op {
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Min | BinaryOp::Max => (NUMBERS, "numbers"),
        BinaryOp::MulHigh
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Shl
        | BinaryOp::Shr
        | BinaryOp::Div
        | BinaryOp::Rem => (INTEGERS, "integers"),
    }
}

fn ternary_types(op: TernaryOp) -> Types {
    match op {
        TernaryOp::MulAdd => (INTEGERS, "integers"),
        TernaryOp::Fma => (FLOATS, "floats"),
        TernaryOp::BitExtract => (&[U32, S32], "U32 and S32"),
        TernaryOp::Lop3(_) | TernaryOp::Permute | TernaryOp::FunnelLeft | TernaryOp::FunnelRight => (&[U32], "U32"),
    }
}

/// The conversions there are; [`crate::Convert`] offers the same ones.
pub(crate) const CONVERSIONS: [(DataType, DataType, Rounding); 13] = [
    (U16, U32, Rounding::Exact),
    (U16, U64, Rounding::Exact),
    (U32, U16, Rounding::Exact),
    (U32, U64, Rounding::Exact),
    (U64, U32, Rounding::Exact),
    (U32, F32, Rounding::NearestEven),
    (S32, F32, Rounding::NearestEven),
    (F32, U32, Rounding::TowardsZero),
    (F32, S32, Rounding::NearestInteger),
    (F16, F32, Rounding::Exact),
    (Bf16, F32, Rounding::Exact),
    (F32, F16, Rounding::NearestEven),
    (F32, Bf16, Rounding::NearestEven),
];

impl Check<'_> {
    pub(super) fn form(&mut self, op: &dyn std::fmt::Debug, ty: DataType, (types, wanted): Types) {
        if !types.contains(&ty) {
            self.refuse(Rule::NoSuchForm { op: format!("{op:?}"), ty, wanted });
        }
    }

    pub(super) fn arith(&mut self, op: &Arith) {
        match *op {
            Arith::Unary { op, ty, dst, a } => {
                self.form(&op, ty, unary_types(op));
                // A move copies bits: any literal of the right width will do, whatever it means.
                let ty = if op == UnaryOp::Move { bits_of(ty) } else { ty };
                self.operand("the operand", a, ty);
                self.bank("the result", dst, ty.bank());
            }
            Arith::Binary { op, ty, dst, a, b } => {
                self.form(&op, ty, binary_types(op));
                if matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul) {
                    self.bfloat(ty);
                }
                let second = if matches!(op, BinaryOp::Shl | BinaryOp::Shr) { U32 } else { ty };
                self.operand("the first operand", a, ty);
                self.operand("the second operand", b, second);
                self.bank("the result", dst, ty.bank());
            }
            Arith::Ternary { op, ty, dst, a, b, c } => {
                self.form(&op, ty, ternary_types(op));
                let second = if op == TernaryOp::BitExtract { U32 } else { ty };
                self.operand("the first operand", a, ty);
                self.operand("the second operand", b, second);
                self.operand("the third operand", c, second);
                self.bank("the result", dst, ty.bank());
            }
            Arith::MulWide { dst, a, b, c } => {
                self.operand("the first factor", a, U32);
                self.operand("the second factor", b, U32);
                if let Some(c) = c {
                    self.operand("the addend", c, U64);
                }
                self.bank("the result", dst, Bank::B64);
            }
            Arith::Compare { ty, dst, a, b, .. } => {
                self.form(&"comparison", ty, (SCALARS, "scalars"));
                self.bfloat(ty);
                self.operand("the left side", a, ty);
                self.operand("the right side", b, ty);
                self.bank("the result", dst, Bank::Pred);
            }
            Arith::Select { ty, dst, a, b, pred } => {
                self.form(&"selection", ty, (NUMBERS, "every type but predicates"));
                self.operand("the first choice", a, ty);
                self.operand("the second choice", b, ty);
                self.bank("the condition", pred, Bank::Pred);
                self.bank("the result", dst, ty.bank());
            }
            Arith::Predicate { dst, op } => {
                self.bank("the result", dst, Bank::Pred);
                match op {
                    PredicateOp::Const(_) => {}
                    PredicateOp::Move(a) | PredicateOp::Not(a) => self.bank("the operand", a, Bank::Pred),
                    PredicateOp::Logic(_, a, b) => self.banks("an operand", &[a, b], Bank::Pred),
                }
            }
            Arith::Convert { to, from, rounding, dst, a } => {
                if !CONVERSIONS.contains(&(from, to, rounding)) {
                    self.refuse(Rule::NoSuchConversion { from, to });
                }
                self.bfloat(from);
                self.bank("the operand", a, from.bank());
                self.bank("the result", dst, to.bank());
            }
            Arith::ConvertPair { to, dst, low, high } => {
                self.form(&"conversion to a pair", to, (&[F16x2, Bf16x2], "F16x2 and Bf16x2"));
                self.banks("an operand", &[low, high], Bank::B32);
                self.bank("the result", dst, Bank::B32);
            }
            Arith::Pack { dst, low, high } => {
                let half = self.half_of("the result", dst);
                self.operand("the low half", low, half);
                self.operand("the high half", high, half);
            }
            Arith::Unpack { low, high, a } => {
                let half = self.half_of("the operand", a);
                self.banks("a half", &[low, high], half.bank());
            }
            Arith::IsCanceled { dst, answer } => {
                self.feature("an answer of launch control", Feature::LaunchControl);
                self.banks("a half of the answer", &answer, Bank::B64);
                self.bank("the result", dst, Bank::Pred);
            }
            Arith::FirstBlock { dsts, answer } => {
                self.feature("an answer of launch control", Feature::LaunchControl);
                self.banks("a half of the answer", &answer, Bank::B64);
                self.banks("a result", &dsts, Bank::B32);
            }
            _ => self.address_arithmetic(op),
        }
    }

    /// Arithmetic of bfloat16 other than fused multiply-add, minimum and maximum.
    fn bfloat(&mut self, ty: DataType) {
        if matches!(ty, Bf16 | Bf16x2) {
            self.feature("this arithmetic of bfloat16 (a fused multiply-add is everywhere)", Feature::Bf16Arithmetic);
        }
    }

    /// What reads parameters, special registers and addresses.
    fn address_arithmetic(&mut self, op: &Arith) {
        match *op {
            Arith::Special { dst, which } => {
                let of_cluster = matches!(
                    which,
                    SpecialRegister::ClusteridX
                        | SpecialRegister::NclusteridX
                        | SpecialRegister::ClusterCtaRank
                        | SpecialRegister::ClusterNctaRank
                );
                if of_cluster {
                    self.feature("the place in a cluster", Feature::Clusters);
                }
                self.bank("the result", dst, if which.is_wide() { Bank::B64 } else { Bank::B32 });
            }
            Arith::Param { dst, width, from, offset } => {
                self.element("the result", width, dst);
                let (bytes, wanted) = (u64::from(width.bytes()), "a multiple of what is read");
                self.value("the offset in a parameter", offset.into(), wanted, |n| n % bytes == 0);
                match from {
                    ParamBase::Param(param) => self.param_part(param, dst, u64::from(offset) + bytes),
                    ParamBase::Reg(at) => self.bank("the place", at, Bank::B64),
                }
            }
            Arith::ParamTable { dst, param } => {
                self.bank("the result", dst, Bank::B64);
                match self.param(param) {
                    Some((_, ParamType::Words(_) | ParamType::Bytes { .. })) | None => {}
                    Some((name, _)) => {
                        let (found, wanted) = ("read word by word", "to be a table of words");
                        self.refuse(Rule::ParamKind { name, found, wanted });
                    }
                }
            }
            Arith::ParamAddress { dst, param } => {
                self.feature("the address of a tensor map", Feature::BulkCopies);
                self.bank("the result", dst, Bank::B64);
                if let Some((name, ParamType::Scalar(_) | ParamType::Pointer | ParamType::Words(_))) = self.param(param)
                {
                    let (found, wanted) = ("used as a tensor map", "to be read: it is no tensor map");
                    self.refuse(Rule::ParamKind { name, found, wanted });
                }
            }
            Arith::SharedAddress { dst, offset } => {
                self.bank("the result", dst, Bank::B32);
                if offset >= self.kernel.shared_bytes() {
                    let (start, end) = (offset.into(), i64::from(offset) + 1);
                    self.refuse(Rule::OutOfRegion { what: "the address", start, end });
                }
            }
            Arith::ToGlobal { dst, a } => self.banks("an address", &[dst, a], Bank::B64),
            Arith::MapShared { dst, a, rank } => {
                self.feature("another block's shared memory", Feature::Clusters);
                self.banks("an address", &[dst, a], Bank::B32);
                let blocks = self.kernel.launch.cluster.map_or(1, |[x, y, z]| u64::from(x * y * z));
                self.word("the rank", rank, "a rank below the size of the cluster", |rank| rank < blocks);
            }
            Arith::Policy { dst, .. } => self.bank("the result", dst, Bank::B64),
            _ => {}
        }
    }

    /// A part of a parameter that ends so many bytes from its start.
    fn param_part(&mut self, param: ParamId, dst: RegId, end: u64) {
        let Some((name, ty)) = self.param(param) else { return };
        let (found, wanted) = match ty {
            ParamType::Scalar(ty) => return self.bank("the result", dst, ty.bank()),
            ParamType::Pointer => return self.bank("the result", dst, Bank::B64),
            ParamType::Bytes { size, .. } if end <= u64::from(size) => return,
            ParamType::Bytes { .. } => ("read beyond its end", "to be read inside"),
            ParamType::TensorMap | ParamType::TensorMaps(_) => {
                ("read as a scalar", "its address taken: it is a tensor map")
            }
            ParamType::Words(_) => ("read as a scalar", "to be read word by word: it is a table"),
        };
        self.refuse(Rule::ParamKind { name, found, wanted });
    }

    fn half_of(&mut self, what: &'static str, reg: RegId) -> DataType {
        match reg.bank {
            Bank::B64 => U32,
            Bank::B32 => U16,
            Bank::B16 | Bank::Pred => {
                self.refuse(Rule::Bank { what, found: reg, wanted: "a 32-bit or 64-bit register" });
                U16
            }
        }
    }

    fn param(&mut self, param: ParamId) -> Option<(String, ParamType)> {
        let found = self.kernel.params.get(param.0 as usize).map(|param| (param.name.clone(), param.ty));
        if found.is_none() {
            self.refuse(Rule::NoSuchParam { found: param.0, declared: self.kernel.params.len() });
        }
        found
    }
}

/// The integer type of the same width.
fn bits_of(ty: DataType) -> DataType {
    match ty.bank() {
        Bank::Pred => DataType::Pred,
        Bank::B16 => U16,
        Bank::B32 => U32,
        Bank::B64 => U64,
    }
}
