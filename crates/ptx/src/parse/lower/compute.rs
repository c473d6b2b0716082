//! What threads and warps do themselves: the reverse of `print/compute.rs`.

use super::words::Words;
use super::{DEEPEST_CALL, Lower, MOST_CALLS, MOST_INSTRUCTIONS, Refusal, Scope, Symbol};
use crate::instr::{
    Arith, AtomicOp, BinaryOp, Comparison, Control, Direction, FloatMode, Guard, Label, LoadOrder, LogicOp,
    MatrixElement, Memory, Mma, Op, ParamBase, PredicateOp, ReduceOp, RegisterChange, Rounding, ShuffleMode,
    SpecialRegister, StoreOrder, TernaryOp, UnaryOp, VoteMode, Warp, Width,
};
use crate::parse::syntax::{Function, Operand, Statement};
use crate::print;
use crate::types::{Address, Bank, Base, DataType, RegId, Space};

/// Special registers that PTX has and values cannot say.
const OTHER_SPECIALS: [&str; 11] = [
    "gridid",
    "is_explicit_cluster",
    "clock_hi",
    "globaltimer_lo",
    "globaltimer_hi",
    "tid",
    "ntid",
    "ctaid",
    "nctaid",
    "aggr_smem_size",
    "current_graph_exec",
];

/// The beginnings of the names of others.
const NUMBERED: [&str; 3] = ["envreg", "pm", "reserved_smem_offset_"];

/// Functions of one value: the word, the same with `.approx`, and rounded.
const UNARY: [(&str, Option<UnaryOp>, Option<UnaryOp>); 14] = [
    ("not", None, Some(UnaryOp::Not)),
    ("popc", None, Some(UnaryOp::CountOnes)),
    ("clz", None, Some(UnaryOp::LeadingZeros)),
    ("brev", None, Some(UnaryOp::ReverseBits)),
    ("neg", None, Some(UnaryOp::Neg)),
    ("abs", None, Some(UnaryOp::Abs)),
    ("ex2", Some(UnaryOp::Exp2Approx), None),
    ("rcp", Some(UnaryOp::RcpApprox), Some(UnaryOp::Rcp)),
    ("sqrt", Some(UnaryOp::SqrtApprox), Some(UnaryOp::Sqrt)),
    ("rsqrt", Some(UnaryOp::RsqrtApprox), None),
    ("lg2", Some(UnaryOp::Log2Approx), None),
    ("sin", Some(UnaryOp::SinApprox), None),
    ("cos", Some(UnaryOp::CosApprox), None),
    ("tanh", Some(UnaryOp::TanhApprox), None),
];

/// Logic on two predicates, by word.
const LOGIC: [(&str, LogicOp); 3] = [("and", LogicOp::And), ("or", LogicOp::Or), ("xor", LogicOp::Xor)];

const BITWISE: [(&str, BinaryOp, LogicOp); 3] =
    [("and", BinaryOp::And, LogicOp::And), ("or", BinaryOp::Or, LogicOp::Or), ("xor", BinaryOp::Xor, LogicOp::Xor)];

const BINARY: [(&str, BinaryOp); 7] = [
    ("add", BinaryOp::Add),
    ("sub", BinaryOp::Sub),
    ("min", BinaryOp::Min),
    ("max", BinaryOp::Max),
    ("div", BinaryOp::Div),
    ("rem", BinaryOp::Rem),
    ("shr", BinaryOp::Shr),
];

/// How floats are computed with, as far as words say it, and whether a direction is said.
fn mode(words: &mut Words<'_>) -> (FloatMode, bool) {
    let all = [Direction::Nearest, Direction::Zero, Direction::Down, Direction::Up];
    let direction = words.find(|word| all.into_iter().find(|direction| print::direction(*direction) == word));
    let (flush, saturate) = (words.take("ftz"), words.take("sat"));
    (FloatMode { direction: direction.unwrap_or_default(), flush, saturate }, direction.is_some())
}

/// What tells caches how to treat what is accessed, and changes nothing else.
const HINTS: [&str; 16] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::evict_first",
    "L2::evict_last",
];

/// The width of an element in memory. Bits are what is moved, whatever they are called; but signs are extended.
fn width(words: &mut Words<'_>) -> Option<Width> {
    words.last(|word| match word {
        "b8" | "u8" => Some(Width::B8),
        "s8" => Some(Width::S8),
        "b16" | "u16" | "f16" | "bf16" => Some(Width::B16),
        "s16" => Some(Width::S16),
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => Some(Width::B32),
        "b64" | "u64" | "s64" | "f64" | "f32x2" => Some(Width::B64),
        _ => None,
    })
}

impl<'t> Lower<'_, 't> {
    pub(super) fn arith(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let op = match opcode {
            "mov" => return self.mov(words, operands),
            "and" | "or" | "xor" | "not" if words.has("pred") => self.logic(opcode, words, operands)?,
            "setp" => return self.compare(words, operands),
            "selp" => {
                let ty = words.bits().ok_or(Refusal::Unknown)?;
                let [dst, a, b, pred] = self.exactly(operands)?;
                let ty = self.spelled_type(a, self.spelled_type(b, ty));
                let (dst, pred) = (self.register(dst, ty.bank())?, self.register(pred, Bank::Pred)?);
                Arith::Select { ty, dst, a: self.value(a, ty)?, b: self.value(b, ty)?, pred }
            }
            "cvt" if words.has("tf32") && words.take("rna") && words.take("tf32") => {
                return self.tf32(words, operands);
            }
            "cvt" => self.convert(words, operands)?,
            "cvta" => return self.address_cast(words, operands),
            "mapa" => {
                if !(words.take("shared::cluster") && words.take("u32")) {
                    return Err(Refusal::Unknown);
                }
                let [dst, a, rank] = self.exactly(operands)?;
                let (dst, a) = (self.register(dst, Bank::B32)?, self.register(a, Bank::B32)?);
                Arith::MapShared { dst, a, rank: self.value(rank, DataType::U32)? }
            }
            "createpolicy" => {
                let keep = words.pick(&[("L2::evict_first", false), ("L2::evict_last", true)]);
                let (Some(keep), true, [dst]) = (keep, words.take("fractional") && words.take("b64"), operands) else {
                    return Err(Refusal::Unknown);
                };
                Arith::Policy { dst: self.register(dst, Bank::B64)?, keep }
            }
            "mad" | "mul" if words.take("wide") => {
                let ty = words.number().filter(|ty| !ty.is_float() && ty.bits() < 64).ok_or(Refusal::Unknown)?;
                let (a, b, c) = match operands {
                    [_, a, b] if opcode == "mul" => (a, b, None),
                    [_, a, b, c] if opcode == "mad" => (a, b, Some(c)),
                    _ => return Err(Refusal::Other("two factors, and an addend for mad".into())),
                };
                let dst = self.register(&operands[0], ty.twice().bank())?;
                let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
                let c = c.map(|c| self.value(c, ty.twice())).transpose()?;
                Arith::MulWide { ty, dst, a, b, c }
            }
            // How long a thread sleeps changes nothing.
            "nanosleep" => {
                words.take("u32");
                return self.exactly::<1>(operands).map(drop);
            }
            "copysign" => return self.copy_sign(words, operands),
            "bfi" | "bmsk" => return self.bit_field(opcode, words, operands),
            "bfind" => return self.highest_bit(words, operands),
            _ if UNARY.iter().any(|(name, ..)| *name == opcode) => self.unary(opcode, words, operands)?,
            "mad" | "fma" | "lop3" | "prmt" | "shf" | "bfe" => self.ternary(opcode, words, operands)?,
            _ => self.binary(opcode, words, operands)?,
        };
        self.emit(op);
        Ok(())
    }

    /// A value of two others, in a register of its own.
    fn computed(
        &mut self,
        (op, ty): (BinaryOp, DataType),
        a: crate::types::Operand,
        b: crate::types::Operand,
    ) -> Result<crate::types::Operand, Refusal> {
        let (mode, dst) = (FloatMode::PLAIN, self.fresh(ty.bank())?);
        self.emit(Arith::Binary { op, ty, mode, dst, a, b });
        Ok(crate::types::Operand::Reg(dst))
    }

    /// A run of ones (`bmsk`), or bits put in place of others (`bfi`): by shifts, of which those too far give nothing.
    fn bit_field(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        use crate::types::Operand::Imm;
        let (word, all) = (DataType::U32, u64::MAX);
        let ty = words.bits().filter(|ty| matches!(ty, DataType::U32 | DataType::U64)).ok_or(Refusal::Unknown)?;
        let (dst, fields, first, count) = match operands {
            [dst, a, b, first, count] if opcode == "bfi" => (dst, Some((a, b)), first, count),
            [dst, first, count] if opcode == "bmsk" => (dst, None, first, count),
            _ => return Err(Refusal::Unknown),
        };
        let kept = match opcode == "bmsk" && words.take("wrap") {
            true => 31,
            false if opcode == "bmsk" && !words.take("clamp") => return Err(Refusal::Unknown),
            false if opcode == "bmsk" => u64::from(u32::MAX),
            false => 255,
        };
        let (first, count) = (self.value(first, word)?, self.value(count, word)?);
        let first = self.computed((BinaryOp::And, word), first, Imm(kept))?;
        let count = self.computed((BinaryOp::And, word), count, Imm(kept))?;
        let mask = self.computed((BinaryOp::Shl, ty), Imm(1), count)?;
        let mask = self.computed((BinaryOp::Sub, ty), mask, Imm(1))?;
        let mut result = self.computed((BinaryOp::Shl, ty), mask, first)?;
        if let Some((a, b)) = fields {
            let (a, b, mask) = (self.value(a, ty)?, self.value(b, ty)?, result);
            let a = self.computed((BinaryOp::Shl, ty), a, first)?;
            let a = self.computed((BinaryOp::And, ty), a, mask)?;
            let others = self.computed((BinaryOp::Xor, ty), mask, Imm(all >> (64 - ty.bits())))?;
            let b = self.computed((BinaryOp::And, ty), b, others)?;
            result = self.computed((BinaryOp::Or, ty), a, b)?;
        }
        let (op, mode, dst) = (UnaryOp::Move, FloatMode::PLAIN, self.register(dst, ty.bank())?);
        self.emit(Arith::Unary { op, ty, mode, dst, a: result });
        Ok(())
    }

    /// The second operand with the sign of the first.
    fn copy_sign(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        use crate::types::Operand::Imm;
        let float = words.number().filter(|ty| matches!(ty, DataType::F32 | DataType::F64)).ok_or(Refusal::Unknown)?;
        let ty = if float == DataType::F32 { DataType::U32 } else { DataType::U64 };
        let [dst, sign, size] = self.exactly(operands)?;
        let (sign, size) = (self.value(sign, float)?, self.value(size, float)?);
        let top = 1 << (ty.bits() - 1);
        let sign = self.computed((BinaryOp::And, ty), sign, Imm(top))?;
        let size = self.computed((BinaryOp::And, ty), size, Imm(top - 1))?;
        let (op, mode, dst) = (BinaryOp::Or, FloatMode::PLAIN, self.register(dst, ty.bank())?);
        self.emit(Arith::Binary { op, ty, mode, dst, a: sign, b: size });
        Ok(())
    }

    /// f32 rounded to nearest with ties away from zero, to the 19 bits of tf32.
    fn tf32(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        use crate::types::Operand::Imm;
        let [dst, a] = self.exactly(operands)?;
        words.take("f32");
        let (ty, float) = (DataType::U32, DataType::F32);
        let (dst, a) = (self.register(dst, Bank::B32)?, self.value(a, float)?);
        let near = self.computed((BinaryOp::Add, ty), a, Imm(0x1000))?;
        let near = self.computed((BinaryOp::And, ty), near, Imm(0xffff_e000))?;
        let nan = self.fresh(Bank::Pred)?;
        self.emit(Arith::Compare { cmp: Comparison::Nan, ty: float, dst: nan, a, b: a });
        self.emit(Arith::Select { ty, dst, a: Imm(0x7fff_ffff), b: near, pred: nan });
        Ok(())
    }

    /// Where the highest bit is that differs from the sign; −1 if there is none.
    fn highest_bit(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        use crate::types::Operand::{Imm, Reg};
        let ty = words.number().filter(|ty| !ty.is_float() && ty.bits() >= 32).ok_or(Refusal::Unknown)?;
        let [dst, a] = self.exactly(operands)?;
        let (dst, mut a) = (self.register(dst, Bank::B32)?, self.value(a, ty)?);
        let (last, mode) = (u64::from(ty.bits()) - 1, FloatMode::PLAIN);
        if ty.is_signed() {
            let sign = self.computed((BinaryOp::Shr, ty), a, Imm(last))?;
            a = self.computed((BinaryOp::Xor, ty), a, sign)?;
        }
        let (op, zeros) = (UnaryOp::LeadingZeros, self.fresh(Bank::B32)?);
        self.emit(Arith::Unary {
            op,
            ty: if ty.bits() == 64 { DataType::U64 } else { DataType::U32 },
            mode,
            dst: zeros,
            a,
        });
        let (op, ty) = (BinaryOp::Sub, DataType::U32);
        if !words.take("shiftamt") {
            self.emit(Arith::Binary { op, ty, mode, dst, a: Imm(last), b: Reg(zeros) });
            return Ok(());
        }
        // How far to shift it to the top.
        let none = self.fresh(Bank::Pred)?;
        self.emit(Arith::Compare { cmp: Comparison::Gt, ty, dst: none, a: Reg(zeros), b: Imm(last) });
        self.emit(Arith::Select { ty, dst, a: Imm(u32::MAX.into()), b: Reg(zeros), pred: none });
        Ok(())
    }

    fn unary(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Arith, Refusal> {
        let bits_only = matches!(opcode, "not" | "popc" | "clz" | "brev");
        let ty = if bits_only { words.bits() } else { words.number() }.ok_or(Refusal::Unknown)?;
        let (mode, rounded) = mode(words);
        let (_, approx, exact) = UNARY.iter().find(|(name, ..)| *name == opcode).ok_or(Refusal::Unknown)?;
        let op = if words.take("approx") { *approx } else { *exact }.ok_or(Refusal::Unknown)?;
        let counts = matches!(op, UnaryOp::CountOnes | UnaryOp::LeadingZeros);
        if matches!(op, UnaryOp::Rcp | UnaryOp::Sqrt) != rounded || mode.saturate {
            return Err(Refusal::Unknown);
        }
        let [dst, a] = self.exactly(operands)?;
        let dst = self.register(dst, if counts { Bank::B32 } else { ty.bank() })?;
        Ok(Arith::Unary { op, ty, mode, dst, a: self.value(a, ty)? })
    }

    fn binary(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Arith, Refusal> {
        let bitwise = BITWISE.iter().find(|(name, ..)| *name == opcode).map(|(_, op, _)| *op);
        let bitwise = bitwise.or((opcode == "shl").then_some(BinaryOp::Shl));
        let ty = if bitwise.is_some() || opcode == "shr" { words.bits() } else { words.number() };
        let ty = ty.ok_or(Refusal::Unknown)?;
        // Without a direction floats are rounded to nearest, and may be fused with a neighbour, which no kernel may
        // rely on.
        let (mode, rounded) = mode(words);
        let float = ty.is_float();
        let op = match (bitwise, opcode) {
            (Some(op), _) => op,
            (None, "mul") if words.take("hi") => BinaryOp::MulHigh,
            (None, "mul") if float || words.take("lo") => BinaryOp::Mul,
            (None, "div") if words.take("approx") => BinaryOp::DivApprox,
            (None, "div") if words.take("full") => BinaryOp::DivFull,
            (None, "div") if float && !rounded => return Err(Refusal::Unknown),
            (None, "min") if words.take("NaN") => BinaryOp::MinNan,
            (None, "max") if words.take("NaN") => BinaryOp::MaxNan,
            (None, _) => BINARY.iter().find(|(name, _)| *name == opcode).ok_or(Refusal::Unknown)?.1,
        };
        let whole = matches!(op, BinaryOp::Rem | BinaryOp::MulHigh | BinaryOp::Shr | BinaryOp::Shl);
        if !float && (rounded || mode != FloatMode::PLAIN) || float && (whole || bitwise.is_some()) {
            return Err(Refusal::Unknown);
        }
        let three = matches!(op, BinaryOp::Min | BinaryOp::Max | BinaryOp::MinNan | BinaryOp::MaxNan) && float;
        // The smallest or largest of three, by way of two.
        if let ([dst, a, b, c], true) = (operands, three) {
            let (two, a, b) = (self.fresh(ty.bank())?, self.value(a, ty)?, self.value(b, ty)?);
            self.emit(Arith::Binary { op, ty, mode, dst: two, a, b });
            let (dst, a) = (self.register(dst, ty.bank())?, crate::types::Operand::Reg(two));
            return Ok(Arith::Binary { op, ty, mode, dst, a, b: self.value(c, ty)? });
        }
        let [dst, a, b] = self.exactly(operands)?;
        let second = if matches!(op, BinaryOp::Shl | BinaryOp::Shr) { DataType::U32 } else { ty };
        let dst = self.register(dst, ty.bank())?;
        Ok(Arith::Binary { op, ty, mode, dst, a: self.value(a, ty)?, b: self.value(b, second)? })
    }

    fn ternary(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Arith, Refusal> {
        if opcode == "lop3" {
            let [dst, a, b, c, table] = self.exactly(operands)?;
            let table = u8::try_from(self.constant(table)?).map_err(|_| Refusal::Unknown)?;
            words.bits().filter(|ty| *ty == DataType::U32).ok_or(Refusal::Unknown)?;
            let (ty, mode, dst) = (DataType::U32, FloatMode::PLAIN, self.register(dst, Bank::B32)?);
            let [a, b, c] = [self.value(a, ty)?, self.value(b, ty)?, self.value(c, ty)?];
            return Ok(Arith::Ternary { op: TernaryOp::Lop3(table), ty, mode, dst, a, b, c });
        }
        let ty = if matches!(opcode, "prmt" | "shf") { words.bits() } else { words.number() };
        let ty = ty.ok_or(Refusal::Unknown)?;
        let (mode, rounded) = mode(words);
        let word = ty == DataType::U32;
        let op = match opcode {
            "mad" if words.take("lo") && !ty.is_float() => TernaryOp::MulAdd,
            "mad" if words.take("hi") && !ty.is_float() => TernaryOp::MulAddHigh,
            // Of floats, mad is fma.
            "fma" | "mad" if rounded && ty.is_float() => TernaryOp::Fma,
            "prmt" if word => TernaryOp::Permute,
            "shf" if word => {
                match (words.pick(&[("l", true), ("r", false)]), words.pick(&[("wrap", true), ("clamp", false)])) {
                    (Some(true), Some(true)) => TernaryOp::FunnelLeft,
                    (Some(false), Some(true)) => TernaryOp::FunnelRight,
                    (Some(true), Some(false)) => TernaryOp::FunnelLeftClamp,
                    (Some(false), Some(false)) => TernaryOp::FunnelRightClamp,
                    _ => return Err(Refusal::Unknown),
                }
            }
            "bfe" if !ty.is_float() && ty.bits() >= 32 => TernaryOp::BitExtract,
            _ => return Err(Refusal::Unknown),
        };
        if op != TernaryOp::Fma && (rounded || mode != FloatMode::PLAIN) {
            return Err(Refusal::Unknown);
        }
        let [dst, a, b, c] = self.exactly(operands)?;
        let second = if op == TernaryOp::BitExtract { DataType::U32 } else { ty };
        let dst = self.register(dst, ty.bank())?;
        let [a, b, c] = [self.value(a, ty)?, self.value(b, second)?, self.value(c, second)?];
        Ok(Arith::Ternary { op, ty, mode, dst, a, b, c })
    }

    /// Predicates from predicates.
    fn logic(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Arith, Refusal> {
        words.take("pred");
        let (dst, op) = match (opcode, operands) {
            ("not", [dst, a]) => (dst, PredicateOp::Not(self.register(a, Bank::Pred)?)),
            (_, [dst, a, b]) => {
                let (_, _, logic) = BITWISE.iter().find(|(name, ..)| *name == opcode).ok_or(Refusal::Unknown)?;
                (dst, PredicateOp::Logic(*logic, self.register(a, Bank::Pred)?, self.register(b, Bank::Pred)?))
            }
            _ => return Err(Refusal::Other("one predicate for not, two for and, or and xor".into())),
        };
        Ok(Arith::Predicate { dst: self.register(dst, Bank::Pred)?, op })
    }

    fn mov(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let [dst, a] = self.exactly(operands)?;
        if words.take("pred") {
            let op = match a {
                Operand::Number(..) => PredicateOp::Const(self.constant(a)? != 0),
                a => PredicateOp::Move(self.register(a, Bank::Pred)?),
            };
            let dst = self.register(dst, Bank::Pred)?;
            self.emit(Arith::Predicate { dst, op });
            return Ok(());
        }
        if words.take("b128") {
            return self.move_wide(dst, a);
        }
        let ty = words.bits().ok_or(Refusal::Unknown)?;
        let half = match ty.bank() {
            Bank::B64 => DataType::U32,
            _ => DataType::U16,
        };
        let op = match (dst, a) {
            (Operand::Vector(parts, _), a) => match &parts[..] {
                [low, high] => {
                    let (low, high) = (self.register(low, half.bank())?, self.register(high, half.bank())?);
                    Arith::Unpack { low, high, a: self.register(a, ty.bank())? }
                }
                // A quarter at a time, by way of halves.
                [_, _, _, _] if ty.bank() == Bank::B64 => {
                    let [low, high] = [self.fresh(Bank::B32)?, self.fresh(Bank::B32)?];
                    let a = self.register(a, Bank::B64)?;
                    let quarters = self.registers(dst, Bank::B16)?;
                    self.emit(Arith::Unpack { low, high, a });
                    self.emit(Arith::Unpack { low: quarters[0], high: quarters[1], a: low });
                    Arith::Unpack { low: quarters[2], high: quarters[3], a: high }
                }
                _ => return Err(Refusal::Unknown),
            },
            (dst, Operand::Vector(parts, _)) => match &parts[..] {
                [low, high] => {
                    let (low, high) = (self.value(low, half)?, self.value(high, half)?);
                    Arith::Pack { dst: self.register(dst, ty.bank())?, low, high }
                }
                [a, b, c, d] if ty.bank() == Bank::B64 => {
                    let [low, high] = [self.fresh(Bank::B32)?, self.fresh(Bank::B32)?];
                    for (dst, a, b) in [(low, a, b), (high, c, d)] {
                        let (a, b) = (self.value(a, DataType::U16)?, self.value(b, DataType::U16)?);
                        self.emit(Arith::Pack { dst, low: a, high: b });
                    }
                    let [low, high] = [low, high].map(crate::types::Operand::Reg);
                    Arith::Pack { dst: self.register(dst, Bank::B64)?, low, high }
                }
                _ => return Err(Refusal::Unknown),
            },
            (dst, Operand::Name { name, part, .. })
                if name.text.starts_with('%') && self.look_up(name.text).is_none() =>
            {
                let which = self.special(name.text, *part, a)?;
                let bank = if which.is_wide() { Bank::B64 } else { Bank::B32 };
                Arith::Special { dst: self.register(dst, bank)?, which }
            }
            (dst, Operand::Name { name, part: None, plus })
                if name.text != "WARP_SZ" && !matches!(self.symbol(a)?.0, Symbol::Register(_)) =>
            {
                match self.symbol(a)?.0 {
                    Symbol::Shared(offset) if ty.bank() == Bank::B32 => {
                        let offset = u32::try_from(plus + i64::from(offset)).map_err(|_| Refusal::Unknown)?;
                        Arith::SharedAddress { dst: self.register(dst, Bank::B32)?, offset }
                    }
                    Symbol::Variable(variable) if ty.bank() == Bank::B64 => {
                        let offset = u32::try_from(*plus).map_err(|_| Refusal::Unknown)?;
                        Arith::VariableAddress { dst: self.register(dst, Bank::B64)?, variable, offset }
                    }
                    Symbol::Param(param) if ty.bits() >= 32 && *plus == 0 => {
                        Arith::ParamTable { dst: self.register(dst, ty.bank())?, param }
                    }
                    _ => return Err(Refusal::Unknown),
                }
            }
            (dst, a) => {
                let ty = self.spelled_type(a, ty);
                let (mode, dst) = (FloatMode::PLAIN, self.register(dst, ty.bank())?);
                Arith::Unary { op: UnaryOp::Move, ty, mode, dst, a: self.value(a, ty)? }
            }
        };
        self.emit(op);
        Ok(())
    }

    /// A move of 128 bits: two registers under one name, or in braces.
    fn move_wide(&mut self, dst: &Operand<'t>, a: &Operand<'t>) -> Result<(), Refusal> {
        let mut halves = |operand: &Operand<'t>| match operand {
            Operand::Vector(..) => self.registers_of::<2>(operand, Bank::B64),
            name => match self.symbol(name)? {
                (Symbol::Wide(halves), 0) => Ok(halves),
                _ => Err(Refusal::Unknown),
            },
        };
        let (dsts, sources) = (halves(dst)?, halves(a)?);
        let (op, ty, mode) = (UnaryOp::Move, DataType::U64, FloatMode::PLAIN);
        for (dst, a) in dsts.into_iter().zip(sources.map(crate::types::Operand::Reg)) {
            self.emit(Arith::Unary { op, ty, mode, dst, a });
        }
        Ok(())
    }

    /// A special register.
    pub(super) fn special(
        &self,
        name: &str,
        part: Option<&str>,
        operand: &Operand<'t>,
    ) -> Result<SpecialRegister, Refusal> {
        let plain = name.strip_prefix('%').unwrap_or_default();
        let whole = part.map_or(plain.to_string(), |part| format!("{plain}.{part}"));
        let known = SpecialRegister::ALL.into_iter().find(|which| print::special(*which) == whole);
        known.ok_or_else(|| {
            match OTHER_SPECIALS.contains(&plain) || NUMBERED.iter().any(|name| plain.starts_with(name)) {
                true => Refusal::Unknown,
                false => self.wrong(operand.at(), name, "a name that is declared"),
            }
        })
    }

    /// A comparison, perhaps combined with a predicate, and perhaps with its opposite as well.
    fn compare(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let ty = words.bits().ok_or(Refusal::Unknown)?;
        // Of unsigned numbers, some relations have names of their own.
        let unsigned = [("lo", Comparison::Lt), ("ls", Comparison::Le), ("hi", Comparison::Gt), ("hs", Comparison::Ge)];
        let named = |word: &str| {
            let all = Comparison::ALL.into_iter().filter(|cmp| ty.is_float() || !cmp.is_of_floats());
            let plain = all.into_iter().find(|cmp| print::comparison(*cmp, ty) == word);
            let other = unsigned.iter().find(|(name, _)| *name == word && !ty.is_float() && !ty.is_signed());
            plain.or(other.map(|(_, cmp)| *cmp))
        };
        let cmp = words.find(named).ok_or(Refusal::Unknown)?;
        let logic = words.pick(&LOGIC);
        let (dst, opposite) = match operands.first() {
            Some(Operand::Pair(dst, opposite)) => (&**dst, Some(&**opposite)),
            Some(dst) => (dst, None),
            None => return Err(Refusal::Unknown),
        };
        let (a, b, with) = match (operands, logic) {
            ([_, a, b], None) => (a, b, None),
            ([_, a, b, with], Some(logic)) => (a, b, Some((logic, with))),
            _ => return Err(Refusal::Other("two sides, and a predicate if it is combined with one".into())),
        };
        let dst = self.register(dst, Bank::Pred)?;
        let opposite = opposite.map(|opposite| self.register(opposite, Bank::Pred)).transpose()?;
        let (a, b) = (self.value(a, ty)?, self.value(b, ty)?);
        if with.is_none() && opposite.is_none() {
            self.emit(Arith::Compare { cmp, ty, dst, a, b });
            return Ok(());
        }
        // The results may be what it is combined with.
        let holds = self.fresh(Bank::Pred)?;
        self.emit(Arith::Compare { cmp, ty, dst: holds, a, b });
        let fails = self.fresh(Bank::Pred)?;
        self.emit(Arith::Predicate { dst: fails, op: PredicateOp::Not(holds) });
        let with = match with {
            Some((logic, Operand::Not(with))) => {
                let (with, negated) = (self.register(with, Bank::Pred)?, self.fresh(Bank::Pred)?);
                self.emit(Arith::Predicate { dst: negated, op: PredicateOp::Not(with) });
                Some((logic, negated))
            }
            Some((logic, with)) => {
                let (with, kept) = (self.register(with, Bank::Pred)?, self.fresh(Bank::Pred)?);
                self.emit(Arith::Predicate { dst: kept, op: PredicateOp::Move(with) });
                Some((logic, kept))
            }
            None => None,
        };
        for (dst, holds) in [(Some(dst), holds), (opposite, fails)] {
            let op = match with {
                Some((logic, with)) => PredicateOp::Logic(logic, holds, with),
                None => PredicateOp::Move(holds),
            };
            dst.into_iter().for_each(|dst| self.emit(Arith::Predicate { dst, op }));
        }
        Ok(())
    }

    fn convert(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Arith, Refusal> {
        let named = |word: &str| {
            Rounding::ALL.into_iter().find(|rounding| print::rounding_mode(*rounding).strip_prefix('.') == Some(word))
        };
        let rounding = words.find(named);
        let (flush, saturate) = (words.take("ftz"), words.take("sat"));
        let mode = FloatMode { flush, saturate, ..FloatMode::PLAIN };
        let from = words.number().ok_or(Refusal::Unknown)?;
        let to = words.number().ok_or(Refusal::Unknown)?;
        if matches!(to, DataType::F16x2 | DataType::Bf16x2) {
            let [dst, high, low] = self.exactly(operands)?;
            if from != DataType::F32 || rounding != Some(Rounding::NearestEven) || mode != FloatMode::PLAIN {
                return Err(Refusal::Unknown);
            }
            let (low, high) = (self.register(low, Bank::B32)?, self.register(high, Bank::B32)?);
            return Ok(Arith::ConvertPair { to, dst: self.register(dst, Bank::B32)?, low, high });
        }
        let rounding = rounding.unwrap_or(Rounding::Exact);
        if !crate::check::converts(from, to, rounding, mode) {
            return Err(Refusal::Unknown);
        }
        let [dst, a] = self.exactly(operands)?;
        let dst = self.converted(dst, to)?;
        let a = match self.symbol(a) {
            // Of a register that is too wide, the low bits are converted.
            Ok((Symbol::Register(wide), 0)) if wide.bank > from.bank() && from.bits() >= 16 && !from.is_float() => {
                let narrow = self.fresh(from.bank())?;
                let (to, from) = match (from.bank(), wide.bank) {
                    (Bank::B16, Bank::B32) => (DataType::U16, DataType::U32),
                    (Bank::B16, _) => (DataType::U16, DataType::U64),
                    _ => (DataType::U32, DataType::U64),
                };
                let (rounding, mode) = (Rounding::Exact, FloatMode::PLAIN);
                self.emit(Arith::Convert { to, from, rounding, mode, dst: narrow, a: wide });
                narrow
            }
            _ => self.converted(a, from)?,
        };
        Ok(Arith::Convert { to, from, rounding, mode, dst, a })
    }

    /// A register of a conversion: bytes may be in registers of any width.
    fn converted(&mut self, operand: &Operand<'t>, ty: DataType) -> Result<RegId, Refusal> {
        match ty.bits() {
            8 => self.any_register(operand, ty.bank()),
            _ => self.register(operand, ty.bank()),
        }
    }

    /// Addresses of one window as addresses of another.
    fn address_cast(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let [dst, a] = self.exactly(operands)?;
        let (dst, a) = (self.register(dst, Bank::B64)?, self.register(a, Bank::B64)?);
        words.take("u64");
        let to = words.take("to");
        if to && words.take("global") {
            self.emit(Arith::ToGlobal { dst, a });
            return Ok(());
        }
        // Global, constant and local memory have one window.
        if words.take("global") || words.take("const") || words.take("local") {
            let (ty, mode) = (DataType::U64, FloatMode::PLAIN);
            self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode, dst, a: crate::types::Operand::Reg(a) });
            return Ok(());
        }
        if to {
            return Err(Refusal::Unknown);
        }
        if !words.take("param") {
            return Err(Refusal::Unknown);
        }
        // The address of a parameter that was just taken becomes a generic one in its place.
        let guard = self.guard;
        if let Some(last) = self.kernel.body.last_mut()
            && let Op::Arith(Arith::ParamTable { dst: taken, param }) = last.op
            && (taken, dst, last.guard) == (a, a, guard)
        {
            last.op = Arith::ParamAddress { dst, param }.into();
            return Ok(());
        }
        // Parameters have the same addresses in their own window.
        let (ty, mode) = (DataType::U64, FloatMode::PLAIN);
        self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode, dst, a: crate::types::Operand::Reg(a) });
        Ok(())
    }

    /// A read of the parameters.
    fn param(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let signed = words.has("s32");
        let width = width(words).ok_or(Refusal::Unknown)?;
        words.pick(&[("v2", ()), ("v4", ())]);
        let [dst, from] = self.exactly(operands)?;
        let [place] = self.bracketed(from)? else { return Err(Refusal::Unknown) };
        let (symbol, plus) = self.symbol(place)?;
        if let Symbol::Variable(variable) = symbol {
            let addr = self.variable_address(variable, plus)?;
            let dsts = self.elements(dst, width)?;
            self.emit(Memory::Load { space: Space::Global, order: LoadOrder::Weak, width, dsts, addr });
            return Ok(());
        }
        let from = match symbol {
            Symbol::Param(param) => ParamBase::Param(param),
            Symbol::Register(reg) if reg.bank.bits() >= 32 && plus >= 0 => ParamBase::Reg(reg),
            // A read before the place of a register.
            Symbol::Register(reg) if reg.bank.bits() >= 32 => {
                let (op, mode, dst) = (BinaryOp::Add, FloatMode::PLAIN, self.fresh(reg.bank)?);
                let (ty, by) = match reg.bank {
                    Bank::B64 => (DataType::U64, plus.cast_unsigned()),
                    _ => (DataType::U32, u64::from(plus as u32)),
                };
                let [a, b] = [crate::types::Operand::Reg(reg), crate::types::Operand::Imm(by)];
                self.emit(Arith::Binary { op, ty, mode, dst, a, b });
                ParamBase::Reg(dst)
            }
            _ => return Err(Refusal::Unknown),
        };
        let offset = u32::try_from(plus.max(0)).map_err(|_| Refusal::Unknown)?;
        if let (Ok((Symbol::Register(wide), 0)), Width::B32) = (self.symbol(dst), width)
            && wide.bank == Bank::B64
        {
            let narrow = self.fresh(Bank::B32)?;
            self.emit(Arith::Param { dst: narrow, width, from, offset });
            self.extend(wide, narrow, signed);
            return Ok(());
        }
        let dsts = self.elements(dst, width)?;
        for (dst, part) in dsts.into_iter().zip((0..).step_by(width.bytes() as usize)) {
            self.emit(Arith::Param { dst, width, from, offset: offset + part });
        }
        Ok(())
    }

    /// Registers for elements of a width: of that, or wider if it is narrow.
    fn elements(&mut self, operand: &Operand<'t>, width: Width) -> Result<Vec<RegId>, Refusal> {
        let bank = match width.bytes() {
            1 | 2 => Bank::B16,
            4 => Bank::B32,
            _ => Bank::B64,
        };
        let mut element = |part: &Operand<'t>| match (bank, part) {
            // A literal that is stored is put into a register first.
            (_, Operand::Number(..)) => {
                let ty = [DataType::Pred, DataType::U16, DataType::U32, DataType::U64][bank.index()];
                let (mode, dst, a) = (FloatMode::PLAIN, self.fresh(bank)?, self.value(part, ty)?);
                self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode, dst, a });
                Ok(dst)
            }
            (Bank::B16, _) => match self.any_register(part, bank)? {
                RegId { bank: Bank::Pred, .. } => Err(Refusal::Unknown),
                found => Ok(found),
            },
            _ => self.register(part, bank),
        };
        match operand {
            Operand::Vector(parts, _) => parts.iter().map(element).collect(),
            one => Ok(vec![element(one)?]),
        }
    }

    pub(super) fn memory(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        if opcode == "st" && words.has("async") {
            return self.store_async(words, operands);
        }
        if opcode == "ld" && ["param", "param::entry", "param::func"].iter().any(|word| words.take(word)) {
            return self.param(words, operands);
        }
        if opcode == "st" && (words.take("param") || words.take("param::func")) {
            return self.hand(words, operands);
        }
        let space = match words.space() {
            Some(space) => space,
            None if words.take("local") || words.take("const") || self.generic => Space::Global,
            None => return Err(Refusal::Unknown),
        };
        let wide = space == Space::Global;
        if matches!(opcode, "atom" | "red") {
            return self.atomic(opcode, words, operands, space);
        }
        let signed = words.has("s32");
        let whole = words.take("b128");
        let width = if whole { Width::B64 } else { width(words).ok_or(Refusal::Unknown)? };
        let count = if whole { 2 } else { words.pick(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1) };
        let operands = match operands {
            // A policy of the cache, behind the others.
            [first @ .., _] if words.take("L2::cache_hint") => first,
            all => all,
        };
        let [first, second] = self.exactly(operands)?;
        let (regs, addr) = if opcode == "ld" { (first, second) } else { (second, first) };
        let (addr, mut extended) = (self.address(addr, wide)?, None);
        let regs = match self.symbol(regs) {
            Ok((Symbol::Wide(halves), 0)) if whole => halves.to_vec(),
            // Of a register that is too wide, the low half is stored.
            Ok((Symbol::Register(reg), 0))
                if opcode == "st" && (width, reg.bank, count) == (Width::B32, Bank::B64, 1) =>
            {
                vec![self.low_half(reg)?]
            }
            // One that is loaded is extended.
            Ok((Symbol::Register(reg), 0))
                if opcode == "ld" && (width, reg.bank, count) == (Width::B32, Bank::B64, 1) =>
            {
                extended = Some(reg);
                vec![self.fresh(Bank::B32)?]
            }
            Err(Refusal::Error(error)) => return Err(Refusal::Error(error)),
            _ => self.elements(regs, width)?,
        };
        if regs.len() != count {
            return Err(Refusal::Other(format!("{count} registers, not {}", regs.len())));
        }
        let (mut relaxed, ordered) =
            (words.take("relaxed"), words.take(if opcode == "ld" { "acquire" } else { "release" }));
        let mut scope = if relaxed || ordered { Some(words.scope().ok_or(Refusal::Unknown)?) } else { None };
        if words.take("volatile") {
            // By the ISA a volatile access is a relaxed one of the widest scope.
            (relaxed, scope) = (true, Some(crate::types::Scope::System));
        }
        words.take("weak");
        let streaming = words.take("L1::no_allocate");
        while HINTS.iter().any(|hint| words.take(hint)) {}
        if opcode == "ld" {
            let read_only = words.take("nc");
            let order = match scope {
                None if read_only && streaming => LoadOrder::Streaming,
                None if read_only => LoadOrder::ReadOnly,
                None => LoadOrder::Weak,
                Some(scope) if relaxed => LoadOrder::Relaxed(scope),
                Some(scope) => LoadOrder::Acquire(scope),
            };
            let narrow = regs.first().copied();
            self.emit(Memory::Load { space, order, width, dsts: regs, addr });
            if let (Some(dst), Some(a)) = (extended, narrow) {
                self.extend(dst, a, signed);
            }
        } else {
            let order = match scope {
                None => StoreOrder::Weak,
                Some(scope) if relaxed => StoreOrder::Relaxed(scope),
                Some(scope) => StoreOrder::Release(scope),
            };
            self.emit(Memory::Store { space, order, width, srcs: regs, addr });
        }
        Ok(())
    }

    /// A value for a function that is called, or from one.
    fn hand(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let width = width(words).ok_or(Refusal::Unknown)?;
        words.pick(&[("v2", ()), ("v4", ())]);
        let [to, value] = self.exactly(operands)?;
        let [place] = self.bracketed(to)? else { return Err(Refusal::Unknown) };
        let (Symbol::Variable(variable), plus) = self.symbol(place)? else { return Err(Refusal::Unknown) };
        let addr = self.variable_address(variable, plus)?;
        let srcs = self.elements(value, width)?;
        self.emit(Memory::Store { space: Space::Global, order: StoreOrder::Weak, width, srcs, addr });
        Ok(())
    }

    /// Where a byte of a variable is.
    fn variable_address(&mut self, variable: u32, plus: i64) -> Result<Address, Refusal> {
        let offset = u32::try_from(plus).map_err(|_| Refusal::Unknown)?;
        let dst = self.fresh(Bank::B64)?;
        self.emit(Arith::VariableAddress { dst, variable, offset });
        Ok(Address { base: Base::Reg(dst), offset: 0 })
    }

    /// A call: what is called is put in its place. Of the functions that every kernel may call, printing does nothing
    /// here, and a failed assertion ends the run.
    pub(super) fn call(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        words.take("uni");
        let (returns, callee, args) = match operands {
            [Operand::List(returns, _), Operand::Name { name, part: None, plus: 0 }, rest @ ..] => {
                (&returns[..], name, rest)
            }
            [Operand::Name { name, part: None, plus: 0 }, rest @ ..] => (&[][..], name, rest),
            _ => return Err(Refusal::Unknown),
        };
        let args = match args {
            [] => &[][..],
            [Operand::List(args, _)] => &args[..],
            _ => return Err(Refusal::Unknown),
        };
        if callee.text == "__assertfail" {
            self.emit(Control::Trap);
            return Ok(());
        }
        if callee.text == "vprintf" {
            // How many values were printed: none.
            for place in returns {
                if let (Symbol::Variable(variable), 0) = self.symbol(place)? {
                    let (addr, zero) = (self.variable_address(variable, 0)?, self.fresh(Bank::B32)?);
                    let (op, ty, mode, a) =
                        (UnaryOp::Move, DataType::U32, FloatMode::PLAIN, crate::types::Operand::Imm(0));
                    self.emit(Arith::Unary { op, ty, mode, dst: zero, a });
                    let (space, order, width) = (Space::Global, StoreOrder::Weak, Width::B32);
                    self.emit(Memory::Store { space, order, width, srcs: vec![zero], addr });
                }
            }
            return Ok(());
        }
        let read = self.read;
        let mut others = read.functions.iter().filter(|function| !function.entry && function.body.is_some());
        let found = others.find(|function| function.name.text == callee.text);
        let Some((function, body)) = found.and_then(|function| Some((function, function.body.as_ref()?))) else {
            return Err(Refusal::Other(format!("a function whose body is in the text, not {}", callee.text)));
        };
        self.inline(function, body, (returns, args))
    }

    /// Puts a function in place of a call.
    fn inline(
        &mut self,
        function: &Function<'t>,
        body: &[Statement<'t>],
        (returns, args): (&[Operand<'t>], &[Operand<'t>]),
    ) -> Result<(), Refusal> {
        self.inlined += 1;
        let endless = self.returns.len() == DEEPEST_CALL || self.inlined > MOST_CALLS;
        if endless || self.kernel.body.len() > MOST_INSTRUCTIONS {
            let wanted = format!(
                "calls at most {DEEPEST_CALL} within each other, {MOST_CALLS} in all, and {MOST_INSTRUCTIONS} instructions"
            );
            return Err(Refusal::Error(self.refuse(self.at, function.name.text, wanted)));
        }
        if (function.returns.len(), function.params.len()) != (returns.len(), args.len()) {
            return Err(Refusal::Other("as many parameters as the function has".into()));
        }
        let around = self.branch_around();
        let mut own = Scope::default();
        for (formal, actual) in function.returns.iter().zip(returns).chain(function.params.iter().zip(args)) {
            let symbol = match (formal.space, self.symbol(actual)?) {
                ("param", (symbol @ Symbol::Variable(_), 0)) => symbol,
                ("reg", (symbol @ Symbol::Register(_), 0)) => symbol,
                _ => return Err(Refusal::Unknown),
            };
            own.names.insert(formal.name.text, symbol);
        }
        // What it has in view is the module, and itself.
        let callers = self.scopes.split_off(1);
        let (at, line, phase, opcode) = (self.at, self.line, self.phase, self.opcode);
        self.scopes.push(own);
        let end = self.new_label();
        self.returns.push(end);
        (self.at, self.line) = (0, 1);
        let done = self.block(body);
        self.returns.pop();
        self.scopes.truncate(1);
        self.scopes.extend(callers);
        (self.at, self.line, self.phase, self.opcode) = (at, line, phase, opcode);
        done.map_err(Refusal::Error)?;
        self.guard = None;
        self.emit(Control::Label(end));
        self.end_around(around);
        Ok(())
    }

    /// A word in a register of 64 bits.
    fn extend(&mut self, dst: RegId, a: RegId, signed: bool) {
        let (rounding, mode) = (Rounding::Exact, FloatMode::PLAIN);
        let (to, from) = if signed { (DataType::S64, DataType::S32) } else { (DataType::U64, DataType::U32) };
        self.emit(Arith::Convert { to, from, rounding, mode, dst, a });
    }

    /// The low half of a register of 64 bits, in one of its own.
    pub(super) fn low_half(&mut self, a: RegId) -> Result<RegId, Refusal> {
        let [low, high] = [self.fresh(Bank::B32)?, self.fresh(Bank::B32)?];
        self.emit(Arith::Unpack { low, high, a });
        Ok(low)
    }

    fn atomic(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
        space: Space,
    ) -> Result<(), Refusal> {
        let op = words.find(|word| {
            AtomicOp::ALL.into_iter().find(|op| print::atomic(*op, DataType::U32).split('.').next() == Some(word))
        });
        let op = op.ok_or(Refusal::Unknown)?;
        let ty = words.bits().ok_or(Refusal::Unknown)?;
        let (acquire, release) = (words.take("acquire"), words.take("release"));
        // One that only acquires, or only releases, is no stronger than one that does both.
        let acq_rel = words.take("acq_rel") || acquire || release;
        words.take("relaxed");
        let scope = words.scope().unwrap_or(crate::types::Scope::Gpu);
        let (dst, rest) = match (opcode, operands) {
            ("atom", [dst, rest @ ..]) => (Some(self.register(dst, ty.bank())?), rest),
            _ => (None, operands),
        };
        let (addr, a, b) = match rest {
            [addr, a] => (addr, a, None),
            [addr, a, b] if op == AtomicOp::CompareExchange => (addr, a, Some(b)),
            _ => return Err(Refusal::Other("an address and an operand, two for cas".into())),
        };
        let (addr, a) = (self.address(addr, space == Space::Global)?, self.value(a, ty)?);
        let b = b.map(|b| self.value(b, ty)).transpose()?;
        // A reduction that releases is an atomic whose result nobody reads.
        let dst = match (dst, acq_rel) {
            (None, true) => Some(self.fresh(ty.bank())?),
            (dst, _) => dst,
        };
        self.emit(Memory::Atomic { space, op, ty, acq_rel, scope, dst, addr, a, b });
        Ok(())
    }

    pub(super) fn warp(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let word = DataType::U32;
        words.take("sync");
        let op = match opcode {
            "shfl" => {
                let modes = [
                    ("idx", ShuffleMode::Index),
                    ("bfly", ShuffleMode::Butterfly),
                    ("up", ShuffleMode::Up),
                    ("down", ShuffleMode::Down),
                ];
                let (mode, _) = (words.pick(&modes).ok_or(Refusal::Unknown)?, words.take("b32"));
                let [dst, a, lane, clamp, mask] = self.exactly(operands)?;
                let (dst, valid) = match dst {
                    Operand::Pair(dst, valid) => {
                        (self.register(dst, Bank::B32)?, Some(self.register(valid, Bank::Pred)?))
                    }
                    dst => (self.register(dst, Bank::B32)?, None),
                };
                let a = match self.value(a, word)? {
                    crate::types::Operand::Reg(a) => a,
                    a => {
                        let (op, mode, dst) = (UnaryOp::Move, FloatMode::PLAIN, self.fresh(Bank::B32)?);
                        self.emit(Arith::Unary { op, ty: word, mode, dst, a });
                        dst
                    }
                };
                let lane = self.value(lane, word)?;
                let (clamp, mask) = (self.value(clamp, word)?, self.value(mask, word)?);
                Warp::Shuffle { mode, dst, valid, a, lane, clamp, mask }
            }
            "vote" if words.take("ballot") => {
                words.take("b32");
                let [dst, pred, mask] = self.exactly(operands)?;
                let (dst, pred) = (self.register(dst, Bank::B32)?, self.register(pred, Bank::Pred)?);
                Warp::Ballot { dst, pred, mask: self.value(mask, word)? }
            }
            "vote" => {
                let modes = [("all", VoteMode::All), ("any", VoteMode::Any), ("uni", VoteMode::Uniform)];
                let (mode, _) = (words.pick(&modes).ok_or(Refusal::Unknown)?, words.take("pred"));
                let [dst, pred, mask] = self.exactly(operands)?;
                let (dst, pred) = (self.register(dst, Bank::Pred)?, self.register(pred, Bank::Pred)?);
                Warp::Vote { mode, dst, pred, mask: self.value(mask, word)? }
            }
            "activemask" => {
                let ([dst], _) = (self.exactly(operands)?, words.take("b32"));
                Warp::ActiveMask { dst: self.register(dst, Bank::B32)? }
            }
            "elect" => {
                let [dst, mask] = self.exactly(operands)?;
                let Operand::Pair(lane, pred) = dst else { return Err(Refusal::Unknown) };
                let leader = match &**lane {
                    Operand::Name { name, .. } if name.text == "_" => None,
                    lane => Some(self.register(lane, Bank::B32)?),
                };
                Warp::Elect { leader, pred: self.register(pred, Bank::Pred)?, mask: self.value(mask, word)? }
            }
            "redux" => {
                let ty = words.bits().ok_or(Refusal::Unknown)?;
                let float = ty == DataType::F32;
                let (nan, absolute) = (float && words.take("NaN"), float && words.take("abs"));
                let named = |op: &ReduceOp, word: &str| print::reduce(*op, ty).split('.').next() == Some(word);
                let of_nan = |op: &ReduceOp| matches!(op, ReduceOp::MinNan | ReduceOp::MaxNan) == nan;
                let op = words.find(|word| ReduceOp::ALL.into_iter().find(|op| named(op, word) && of_nan(op)));
                let [dst, a, mask] = self.exactly(operands)?;
                let of_floats = matches!(op, Some(ReduceOp::Min | ReduceOp::Max | ReduceOp::MinNan | ReduceOp::MaxNan));
                if !matches!(ty, DataType::U32 | DataType::S32 | DataType::F32) || float && !of_floats {
                    return Err(Refusal::Unknown);
                }
                let (dst, mut a) = (self.register(dst, Bank::B32)?, self.register(a, Bank::B32)?);
                if absolute {
                    let (op, mode, of) = (UnaryOp::Abs, FloatMode::PLAIN, crate::types::Operand::Reg(a));
                    a = self.fresh(Bank::B32)?;
                    self.emit(Arith::Unary { op, ty, mode, dst: a, a: of });
                }
                Warp::Reduce { op: op.ok_or(Refusal::Unknown)?, ty, dst, a, mask: self.value(mask, word)? }
            }
            _ => return self.matrix(opcode, words, operands),
        };
        self.emit(op);
        Ok(())
    }

    /// Matrices of 8 × 8 between shared memory and registers.
    fn matrix(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let count = words.pick(&[("x1", 1), ("x2", 2), ("x4", 4)]).ok_or(Refusal::Unknown)?;
        let all = words.take("aligned") && words.take("m8n8") && words.take("b16");
        if !all || words.space() != Some(Space::Shared) {
            return Err(Refusal::Unknown);
        }
        let transpose = words.take("trans");
        let [first, second] = self.exactly(operands)?;
        let (regs, addr) = if opcode == "ldmatrix" { (first, second) } else { (second, first) };
        let (regs, addr) = (self.registers(regs, Bank::B32)?, self.address(addr, false)?);
        if regs.len() != count {
            return Err(Refusal::Other(format!("{count} registers, not {}", regs.len())));
        }
        let op = match opcode {
            "ldmatrix" => Warp::LoadMatrix { transpose, dsts: regs, addr },
            _ => Warp::StoreMatrix { transpose, srcs: regs, addr },
        };
        self.emit(op);
        Ok(())
    }

    pub(super) fn mma(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        if !(words.take("sync") && words.take("aligned") && words.take("row") && words.take("col")) {
            return Err(Refusal::Unknown);
        }
        let f32_sums = words.take("f32") && words.take("f32");
        let depth: Option<u32> = words.find(|word| word.strip_prefix("m16n8k")?.parse().ok());
        if operands.len() == 4 {
            let element = element(words)?;
            let sums = if element.is_integer() { words.take("s32") && words.take("s32") } else { f32_sums };
            let saturate = element.is_integer() && words.take("satfinite");
            if !sums || depth != Some(element.depth()) {
                return Err(Refusal::Unknown);
            }
            let [d, a, b, c] = self.exactly(operands)?;
            let (d, c) = (self.registers_of(d, Bank::B32)?, self.registers_of::<4>(c, Bank::B32)?);
            let (a, b) = (self.registers_of(a, Bank::B32)?, self.registers_of(b, Bank::B32)?);
            return self.accumulated(d, c, |d| Mma::Dense { element, saturate, d, a, b });
        }
        let scaled = depth == Some(64) && words.take("kind::mxf4nvf4") && words.take("block_scale");
        let formats = words.take("scale_vec::4X") && words.take("e2m1") && words.take("e2m1") && words.take("ue4m3");
        let [d, a, b, c, scale_a, select_a, scale_b, select_b] = operands else { return Err(Refusal::Unknown) };
        let (d, c) = (self.registers_of(d, Bank::B32)?, self.registers_of::<4>(c, Bank::B32)?);
        if !scaled || !formats || !f32_sums {
            return Err(Refusal::Unknown);
        }
        let selected = |operand: &Operand<'t>| match operand {
            Operand::Vector(parts, _) => match &parts[..] {
                [byte, lane] if self.constant(byte)? == 0 => self.small(lane),
                _ => Err(Refusal::Unknown),
            },
            _ => Err(Refusal::Unknown),
        };
        let (lanes_a, lane_b) = (selected(select_a)?, selected(select_b)?);
        let (a, b) = (self.registers_of(a, Bank::B32)?, self.registers_of(b, Bank::B32)?);
        let (scale_a, scale_b) = (self.register(scale_a, Bank::B32)?, self.register(scale_b, Bank::B32)?);
        self.accumulated(d, c, |d| Mma::BlockScaled { d, a, b, scale_a, lanes_a, scale_b, lane_b })
    }

    /// A multiplication that adds to `c` and leaves its sums in `d`. Where these are not the same, it works on
    /// registers of its own, since either may be a part of A or B.
    fn accumulated(
        &mut self,
        d: [RegId; 4],
        c: [RegId; 4],
        multiply: impl Fn([RegId; 4]) -> Mma,
    ) -> Result<(), Refusal> {
        if d == c {
            self.emit(multiply(d));
            return Ok(());
        }
        let own = [self.fresh(Bank::B32)?, self.fresh(Bank::B32)?, self.fresh(Bank::B32)?, self.fresh(Bank::B32)?];
        let (op, ty, mode) = (UnaryOp::Move, DataType::U32, FloatMode::PLAIN);
        for (dst, c) in own.into_iter().zip(c) {
            self.emit(Arith::Unary { op, ty, mode, dst, a: crate::types::Operand::Reg(c) });
        }
        self.emit(multiply(own));
        for (dst, own) in d.into_iter().zip(own) {
            self.emit(Arith::Unary { op, ty, mode, dst, a: crate::types::Operand::Reg(own) });
        }
        Ok(())
    }

    pub(super) fn control(
        &mut self,
        opcode: &str,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        let op = match opcode {
            "brx" => return self.computed_branch(words, operands),
            "bra" => {
                let [target] = self.exactly(operands)?;
                Control::Branch { target: self.label(target)?, uniform: words.take("uni") }
            }
            "exit" => Control::Exit,
            "ret" => {
                let uniform = words.take("uni");
                self.returns.last().map_or(Control::Exit, |end| Control::Branch { target: *end, uniform })
            }
            "trap" => Control::Trap,
            "setmaxnreg" => {
                let changes = [("inc", RegisterChange::Increase), ("dec", RegisterChange::Decrease)];
                let change = words.pick(&changes).ok_or(Refusal::Unknown)?;
                let [count] = self.exactly(operands)?;
                let all = words.take("sync") && words.take("aligned") && words.take("u32");
                Control::SetMaxRegisters {
                    change,
                    count: self.small(count).ok().filter(|_| all).ok_or(Refusal::Unknown)?,
                }
            }
            _ if words.take("wait") => Control::GridDependencyWait,
            _ if words.take("launch_dependents") => Control::LaunchDependents,
            _ => return Err(Refusal::Unknown),
        };
        self.emit(op);
        Ok(())
    }

    /// A branch to one of several labels, by number: one comparison after the other.
    fn computed_branch(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let ([index, list], true, None) = (self.exactly(operands)?, words.take("idx"), self.guard) else {
            return Err(Refusal::Unknown);
        };
        let uniform = words.take("uni");
        let Operand::Name { name, part: None, plus: 0 } = list else { return Err(Refusal::Unknown) };
        let found = self.scopes.iter().rev().find_map(|scope| scope.targets.get(name.text).cloned());
        let targets = found.ok_or_else(|| self.wrong(name.at, name.text, "a list of labels, by .branchtargets"))?;
        let labels: Vec<Label> = targets
            .iter()
            .map(|target| self.label(&Operand::Name { name: *target, part: None, plus: 0 }))
            .collect::<Result<_, _>>()?;
        let index = self.register(index, Bank::B32)?;
        let Some((last, others)) = labels.split_last() else { return Err(Refusal::Unknown) };
        for (number, target) in (0..).zip(others) {
            let (ty, dst) = (DataType::U32, self.fresh(Bank::Pred)?);
            let [a, b] = [crate::types::Operand::Reg(index), crate::types::Operand::Imm(number)];
            self.emit(Arith::Compare { cmp: Comparison::Eq, ty, dst, a, b });
            self.guard = Some(Guard { pred: dst, negated: false });
            self.emit(Control::Branch { target: *target, uniform });
            self.guard = None;
        }
        // What is beyond the list is undefined.
        self.emit(Control::Branch { target: *last, uniform });
        Ok(())
    }

    /// A label, in the innermost block that has it.
    fn label(&self, operand: &Operand<'t>) -> Result<Label, Refusal> {
        let Operand::Name { name, part: None, plus: 0 } = operand else { return Err(Refusal::Unknown) };
        let found = self.scopes.iter().rev().find_map(|scope| scope.labels.get(name.text));
        found.copied().ok_or_else(|| self.wrong(name.at, name.text, "a label of this block or of one around it"))
    }
}

/// The type of A and B, which must be the same.
pub(super) fn element(words: &mut Words<'_>) -> Result<MatrixElement, Refusal> {
    let found = MatrixElement::ALL.into_iter().find(|element| words.take(print::element_name(*element)));
    let element = found.ok_or(Refusal::Unknown)?;
    words.take(print::element_name(element)).then_some(element).ok_or(Refusal::Unknown)
}
