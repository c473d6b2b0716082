//! Arithmetic: which operations exist for which types, and that every operand is of its type.

use super::Check;
use crate::instr::{
    Arith, BinaryOp, Direction, FloatMode, FloatPair, NarrowFloat, ParamBase, PredicateOp, Rounding, TernaryOp,
    UnaryOp, Width, Window,
};
use crate::kernel::ParamType;
use crate::rule::Rule;
use crate::target::Feature;
use crate::types::{Bank, DataType, ParamId, RegId};

use DataType::{Bf16, Bf16x2, F16, F16x2, F32, F32x2, F64, S8, S16, S32, S64, U8, U16, U32, U64};

const INTEGERS: &[DataType] = &[U16, S16, U32, S32, U64, S64];
const SUMS: &[DataType] = &[U16, S16, U32, S32, U64, S64, F16, Bf16, F16x2, Bf16x2, F32, F32x2, F64];
const SIGNED: &[DataType] = &[S16, S32, S64, F16, Bf16, F16x2, Bf16x2, F32, F64];
const SCALARS: &[DataType] = &[U16, S16, U32, S32, U64, S64, F16, Bf16, F32, F64];
const NUMBERS: &[DataType] = &[U16, S16, U32, S32, U64, S64, F16, Bf16, F16x2, Bf16x2, F32, F64];
const SINGLE_DOUBLE: &[DataType] = &[F32, F64];

/// The types of an operation, as a list and in words.
type Types = (&'static [DataType], &'static str);

fn unary_types(op: UnaryOp) -> Types {
    match op {
        UnaryOp::Move => (SUMS, "every type but predicates"),
        UnaryOp::Not => (INTEGERS, "integers"),
        UnaryOp::Neg | UnaryOp::Abs => (SIGNED, "signed integers and floats"),
        UnaryOp::Rcp | UnaryOp::Sqrt => (SINGLE_DOUBLE, "F32 and F64"),
        UnaryOp::Exp2Approx
        | UnaryOp::RcpApprox
        | UnaryOp::SqrtApprox
        | UnaryOp::RsqrtApprox
        | UnaryOp::Log2Approx
        | UnaryOp::SinApprox
        | UnaryOp::CosApprox
        | UnaryOp::TanhApprox => (&[F32], "F32"),
        UnaryOp::CountOnes | UnaryOp::LeadingZeros | UnaryOp::ReverseBits => (&[U32, U64], "U32 and U64"),
    }
}

fn binary_types(op: BinaryOp) -> Types {
    match op {
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul => (SUMS, "numbers"),
        BinaryOp::Min | BinaryOp::Max => (NUMBERS, "numbers"),
        BinaryOp::MinNan | BinaryOp::MaxNan => (&[F16, Bf16, F16x2, Bf16x2, F32], "floats of at most 32 bits"),
        BinaryOp::Div => (&[U16, S16, U32, S32, U64, S64, F32, F64], "integers, F32 and F64"),
        BinaryOp::DivApprox | BinaryOp::DivFull => (&[F32], "F32"),
        BinaryOp::MulHigh
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Shl
        | BinaryOp::Shr
        | BinaryOp::Rem => (INTEGERS, "integers"),
    }
}

fn ternary_types(op: TernaryOp) -> Types {
    match op {
        TernaryOp::MulAdd | TernaryOp::MulAddHigh => (INTEGERS, "integers"),
        TernaryOp::Fma => (&[F16, Bf16, F16x2, Bf16x2, F32, F32x2, F64], "floats"),
        TernaryOp::BitExtract => (&[U32, S32, U64, S64], "integers of 32 and 64 bits"),
        TernaryOp::Lop3(_)
        | TernaryOp::Permute
        | TernaryOp::FunnelLeft
        | TernaryOp::FunnelRight
        | TernaryOp::FunnelLeftClamp
        | TernaryOp::FunnelRightClamp => (&[U32], "U32"),
    }
}

/// Whether one `cvt` leads from a type to another; [`crate::Convert`] offers some of them.
pub(crate) fn converts(from: DataType, to: DataType, rounding: Rounding, mode: FloatMode) -> bool {
    const WHOLE: [DataType; 8] = [U8, S8, U16, S16, U32, S32, U64, S64];
    use Rounding::{Exact, NearestEven};
    let flush = !mode.flush || from == F32 || to == F32;
    if mode.direction != Direction::Nearest {
        return false;
    }
    let plain = mode == FloatMode::PLAIN;
    match (WHOLE.contains(&from), WHOLE.contains(&to)) {
        (true, true) => {
            // Only what can be too large or too small can be held.
            let room = to.bits() - u32::from(to.is_signed() && !from.is_signed());
            let fits = room >= from.bits() && (to.is_signed() || !from.is_signed());
            rounding == Exact && !mode.flush && from != to && !(mode.saturate && fits)
        }
        (true, false) => {
            let to_half = to == F16 && rounding == NearestEven;
            let rounds = !rounding.is_to_integer() && rounding != Exact;
            plain && (to_half || SINGLE_DOUBLE.contains(&to) && rounds)
        }
        (false, true) => matches!(from, F16 | F32 | F64) && rounding.is_to_integer() && flush,
        (false, false) => match (from, to) {
            (F16 | Bf16, F32) | (F16, F64) => rounding == Exact && plain,
            (F32, F64) => rounding == Exact && flush && !mode.saturate,
            (F32, F16 | Bf16) => rounding == NearestEven && plain,
            (F64, F16) => rounding == NearestEven && plain,
            (F64, F32) => !rounding.is_to_integer() && rounding != Exact && flush,
            (F32, F32) => (rounding == Exact && (mode.flush || mode.saturate) || rounding.is_to_integer()) && flush,
            (F64, F64) => rounding.is_to_integer() && !mode.flush,
            _ => false,
        },
    }
}

/// Whether an operation takes a mode with a type.
fn takes_mode(rounds: bool, saturates: bool, ty: DataType, mode: FloatMode) -> bool {
    let flush = !mode.flush || ty == F32 || ty == F32x2 && rounds;
    let direction = mode.direction == Direction::Nearest || rounds && matches!(ty, F32 | F64 | F32x2);
    flush && direction && (!mode.saturate || saturates && ty == F32)
}

impl Check<'_> {
    pub(super) fn form(&mut self, op: &dyn std::fmt::Debug, ty: DataType, (types, wanted): Types) {
        if !types.contains(&ty) {
            self.refuse(Rule::NoSuchForm { op: format!("{op:?}"), ty, wanted });
        }
    }

    pub(super) fn arith(&mut self, op: &Arith) {
        match *op {
            Arith::Unary { op, ty, mode, dst, a } => {
                self.form(&op, ty, unary_types(op));
                let bits = matches!(op, UnaryOp::Move | UnaryOp::Not);
                let flushes = !bits && op != UnaryOp::TanhApprox && (ty == F32 || !mode.flush);
                let rounds = matches!(op, UnaryOp::Rcp | UnaryOp::Sqrt);
                self.mode(&op, ty, (flushes || mode == FloatMode::PLAIN) && takes_mode(rounds, false, ty, mode));
                // A move copies bits: any literal of the right width will do, whatever it means.
                let ty = if op == UnaryOp::Move { bits_of(ty) } else { ty };
                self.operand("the operand", a, ty);
                let counts = matches!(op, UnaryOp::CountOnes | UnaryOp::LeadingZeros);
                self.bank("the result", dst, if counts { Bank::B32 } else { ty.bank() });
            }
            Arith::Binary { op, ty, mode, dst, a, b } => {
                self.form(&op, ty, binary_types(op));
                let sums = matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul);
                self.mode(&op, ty, takes_mode(sums || op == BinaryOp::Div, sums, ty, mode));
                if sums {
                    self.bfloat(ty);
                    self.pairs(ty);
                }
                let second = if matches!(op, BinaryOp::Shl | BinaryOp::Shr) { U32 } else { ty };
                self.operand("the first operand", a, ty);
                self.operand("the second operand", b, second);
                self.bank("the result", dst, ty.bank());
            }
            Arith::Ternary { op, ty, mode, dst, a, b, c } => {
                self.form(&op, ty, ternary_types(op));
                let fused = op == TernaryOp::Fma;
                self.mode(&op, ty, takes_mode(fused, fused, ty, mode));
                self.pairs(ty);
                let second = if op == TernaryOp::BitExtract { U32 } else { ty };
                self.operand("the first operand", a, ty);
                self.operand("the second operand", b, second);
                self.operand("the third operand", c, second);
                self.bank("the result", dst, ty.bank());
            }
            Arith::MulWide { ty, dst, a, b, c } => {
                self.form(&"product in twice the width", ty, (&[U16, S16, U32, S32], "integers of 16 and 32 bits"));
                self.operand("the first factor", a, ty);
                self.operand("the second factor", b, ty);
                if let Some(c) = c {
                    self.operand("the addend", c, ty.twice());
                }
                self.bank("the result", dst, ty.twice().bank());
            }
            Arith::Compare { cmp, ty, dst, a, b } => {
                let types = if cmp.is_of_floats() { &[F16, Bf16, F32, F64][..] } else { SCALARS };
                self.form(&cmp, ty, (types, if cmp.is_of_floats() { "scalars of floats" } else { "scalars" }));
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
            Arith::Convert { to, from, rounding, mode, dst, a } => {
                if !converts(from, to, rounding, mode) {
                    self.refuse(Rule::NoSuchConversion { from, to });
                }
                self.bfloat(from);
                self.converted("the operand", a, from);
                self.converted("the result", dst, to);
            }
            Arith::ConvertPair { to, dst, low, high } => {
                self.form(&"conversion to a pair", to, (&[F16x2, Bf16x2], "F16x2 and Bf16x2"));
                self.banks("an operand", &[low, high], Bank::B32);
                self.bank("the result", dst, Bank::B32);
            }
            Arith::ConvertNarrow { to, direction, relu, dst, from } => {
                self.narrow(to);
                let scale = to == NarrowFloat::Ue8m0;
                let pairs = match from {
                    FloatPair::Floats(_) => true,
                    FloatPair::Halves(_) => matches!(to, NarrowFloat::E4m3 | NarrowFloat::E5m2),
                    FloatPair::Bfloats(_) => scale,
                };
                let rounds = match direction {
                    Direction::Nearest => !scale,
                    Direction::Zero | Direction::Up => scale && !relu,
                    Direction::Down => false,
                };
                let odd = u64::from(!pairs || !rounds);
                self.value("conversions to narrow floats that PTX does not have", odd, "none", |n| n == 0);
                match from {
                    FloatPair::Halves(a) | FloatPair::Bfloats(a) => self.bank("the operand", a, Bank::B32),
                    FloatPair::Floats(floats) => self.banks("an operand", &floats, Bank::B32),
                }
                self.bank("the result", dst, Bank::B16);
            }
            Arith::ConvertWide { from, relu, dst, a } => {
                self.narrow(from);
                let odd = u64::from(relu && from == NarrowFloat::Ue8m0);
                self.value("conversions of narrow floats that PTX does not have", odd, "none", |n| n == 0);
                self.bank("the operand", a, Bank::B16);
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

    /// A narrow float that the target has.
    fn narrow(&mut self, ty: NarrowFloat) {
        match ty {
            NarrowFloat::E4m3 | NarrowFloat::E5m2 => {
                self.feature("conversion of eight-bit floats", Feature::EightBitFloats);
            }
            _ => self.feature("conversion of floats of four and six bits, or of scales", Feature::NarrowFloats),
        }
    }

    /// Arithmetic of bfloat16 other than fused multiply-add, minimum and maximum.
    fn bfloat(&mut self, ty: DataType) {
        if matches!(ty, Bf16 | Bf16x2) {
            self.feature("this arithmetic of bfloat16 (a fused multiply-add is everywhere)", Feature::Bf16Arithmetic);
        }
    }

    fn mode(&mut self, op: &dyn std::fmt::Debug, ty: DataType, legal: bool) {
        if !legal {
            let (op, wanted) = (format!("{op:?} so rounded, flushed or saturated"), "the plain one, or another mode");
            self.refuse(Rule::NoSuchForm { op, ty, wanted });
        }
    }

    /// Arithmetic of two singles at once.
    fn pairs(&mut self, ty: DataType) {
        if ty == F32x2 {
            self.feature("arithmetic of two singles at once", Feature::SinglePairs);
        }
    }

    /// A register of a conversion: bytes may be in registers of any width.
    fn converted(&mut self, what: &'static str, reg: RegId, ty: DataType) {
        if ty.bits() == 8 {
            self.element(what, Width::B8, reg);
        } else {
            self.bank(what, reg, ty.bank());
        }
    }

    /// What reads parameters, special registers and addresses.
    fn address_arithmetic(&mut self, op: &Arith) {
        match *op {
            Arith::Special { dst, which } => {
                if which.is_of_cluster() {
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
                    ParamBase::Reg(at) => self.param_place("the place", at),
                }
            }
            Arith::ParamTable { dst, param } => {
                self.param_place("the result", dst);
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
            Arith::VariableAddress { dst, variable, offset } => {
                self.bank("the result", dst, Bank::B64);
                let bytes = self.kernel.variables.get(variable as usize).map_or(0, |variable| variable.bytes);
                if offset > bytes {
                    let (start, end) = (offset.into(), i64::from(offset) + 1);
                    self.refuse(Rule::OutOfRegion { what: "the address", start, end });
                }
            }
            Arith::SharedAddress { dst, offset } => {
                self.bank("the result", dst, Bank::B32);
                if offset >= self.kernel.shared_bytes() {
                    let (start, end) = (offset.into(), i64::from(offset) + 1);
                    self.refuse(Rule::OutOfRegion { what: "the address", start, end });
                }
            }
            Arith::ToGlobal { dst, a } | Arith::FromShared { dst, a } | Arith::ToShared { dst, a } => {
                self.banks("an address", &[dst, a], Bank::B64);
            }
            Arith::InWindow { dst, window, a } => {
                match window {
                    Window::Cluster => self.feature("another block's shared memory", Feature::Clusters),
                    Window::Param => self.feature("the generic address of a parameter", Feature::BulkCopies),
                    Window::Global | Window::Constant | Window::Local | Window::Shared => {}
                }
                self.bank("the result", dst, Bank::Pred);
                self.bank("an address", a, Bank::B64);
            }
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

    /// A register that holds a place among the parameters.
    fn param_place(&mut self, what: &'static str, found: RegId) {
        if !matches!(found.bank, Bank::B32 | Bank::B64) {
            self.refuse(Rule::Bank { what, found, wanted: "a 32-bit or 64-bit register" });
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
