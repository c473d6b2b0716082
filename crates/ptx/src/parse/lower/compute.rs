//! What threads compute: the reverse of most of `print/compute.rs`.

use super::words::Words;
use super::{GRID_WORKSPACE, Lower, Refusal, Symbol, function_address};
use crate::instr::{
    Arith, BinaryOp, Comparison, Direction, FloatMode, FloatPair, LogicOp, NarrowFloat, PredicateOp, Rounding,
    SpecialRegister, TernaryOp, UnaryOp,
};
use crate::parse::syntax::Operand;
use crate::print;
use crate::types::{Bank, DataType, RegId};

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

/// A narrow float that some words are about.
fn narrow(words: &Words<'_>) -> Option<NarrowFloat> {
    NarrowFloat::ALL.into_iter().find(|ty| words.has(&print::narrow_pair(*ty)))
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
            "cvt" if let Some(narrow) = narrow(words) => return self.convert_narrow(narrow, words, operands),
            "cvt" => self.convert(words, operands)?,
            "cvta" => return self.address_cast(words, operands),
            "mapa" => return self.map_shared(words, operands),
            "isspacep" => self.in_window(words, operands)?,
            "createpolicy" => {
                let keep = words.pick(&[("L2::evict_first", false), ("L2::evict_last", true)]);
                let (Some(keep), true, [dst]) = (keep, words.take("fractional") && words.take("b64"), operands) else {
                    return Err(Refusal::Unknown);
                };
                Arith::Policy { dst: self.register(dst, Bank::B64)?, keep }
            }
            "add" | "addc" | "sub" | "subc" | "mad" | "madc" if opcode.ends_with('c') || words.has("cc") => {
                return self.with_carry(opcode, words, operands);
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

    /// Sums and differences of numbers in several words: what is carried from one to the next is a predicate that no
    /// name stands for.
    fn with_carry(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        use crate::types::Operand::{Imm, Reg};
        let named = words.number().filter(|ty| !ty.is_float() && ty.bits() >= 32).ok_or(Refusal::Unknown)?;
        let ty = if named.bits() == 32 { DataType::U32 } else { DataType::U64 };
        let (mode, carry_out, minus) = (FloatMode::PLAIN, words.take("cc"), opcode.starts_with("sub"));
        let (dst, a, b) = match operands {
            [dst, a, b, c] if opcode.starts_with("mad") => {
                let op = match words.pick(&[("lo", BinaryOp::Mul), ("hi", BinaryOp::MulHigh)]) {
                    Some(op) => op,
                    None => return Err(Refusal::Unknown),
                };
                let (a, b) = (self.value(a, named)?, self.value(b, named)?);
                (dst, self.computed((op, named), a, b)?, self.value(c, ty)?)
            }
            [dst, a, b] if !opcode.starts_with("mad") => (dst, self.value(a, ty)?, self.value(b, ty)?),
            _ => return Err(Refusal::Unknown),
        };
        let carry = match self.carry {
            Some(carry) => carry,
            None => {
                let carry = self.fresh(Bank::Pred)?;
                *self.carry.insert(carry)
            }
        };
        let op = if minus { BinaryOp::Sub } else { BinaryOp::Add };
        let first = self.computed((op, ty), a, b)?;
        // A sum that is less than what was added to, or less than what is taken away: one is carried.
        let less = |of: crate::types::Operand, than: crate::types::Operand, dst: RegId| Arith::Compare {
            cmp: Comparison::Lt,
            ty,
            dst,
            a: of,
            b: than,
        };
        let over = self.fresh(Bank::Pred)?;
        self.emit(if minus { less(a, b, over) } else { less(first, a, over) });
        let (mut result, mut again) = (first, None);
        if opcode.ends_with('c') {
            let one = self.fresh(ty.bank())?;
            self.emit(Arith::Select { ty, dst: one, a: Imm(1), b: Imm(0), pred: carry });
            result = self.computed((op, ty), first, Reg(one))?;
            let over = self.fresh(Bank::Pred)?;
            self.emit(if minus { less(first, Reg(one), over) } else { less(result, first, over) });
            again = Some(over);
        }
        if carry_out {
            let op = PredicateOp::Logic(LogicOp::Or, over, again.unwrap_or(over));
            self.emit(Arith::Predicate { dst: carry, op });
        }
        let dst = self.register(dst, ty.bank())?;
        self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode, dst, a: result });
        Ok(())
    }

    /// A run of ones (`bmsk`), or bits put in place of others (`bfi`): by shifts, of which those too far give nothing.
    fn bit_field(&mut self, opcode: &str, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        use crate::types::Operand::Imm;
        let (word, all) = (DataType::U32, u64::MAX);
        let ty = words.untyped().filter(|ty| ty.bits() > 16).ok_or(Refusal::Unknown)?;
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
        let ty = if bits_only { words.untyped() } else { words.number() }.ok_or(Refusal::Unknown)?;
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
        let ty = match opcode {
            _ if bitwise.is_some() => words.untyped(),
            "shr" => words.bits(),
            _ => words.number(),
        };
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
            words.untyped().filter(|ty| *ty == DataType::U32).ok_or(Refusal::Unknown)?;
            let (ty, mode, dst) = (DataType::U32, FloatMode::PLAIN, self.register(dst, Bank::B32)?);
            let [a, b, c] = [self.value(a, ty)?, self.value(b, ty)?, self.value(c, ty)?];
            return Ok(Arith::Ternary { op: TernaryOp::Lop3(table), ty, mode, dst, a, b, c });
        }
        let ty = if matches!(opcode, "prmt" | "shf") { words.untyped() } else { words.number() };
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
                [_, _] if ty.bank() == Bank::B16 => {
                    let a = self.register(a, Bank::B16)?;
                    return self.unpack_bytes(parts, a);
                }
                [_, _, _, _] if ty.bank() == Bank::B32 => {
                    let a = self.register(a, Bank::B32)?;
                    return self.unpack_bytes(parts, a);
                }
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
                [_, _] if ty.bank() == Bank::B16 => {
                    let dst = self.register(dst, Bank::B16)?;
                    return self.pack_bytes(dst, parts);
                }
                [_, _, _, _] if ty.bank() == Bank::B32 => {
                    let dst = self.register(dst, Bank::B32)?;
                    return self.pack_bytes(dst, parts);
                }
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
            (dst, Operand::Name { name, part: None, .. })
                if let Some(half) = GRID_WORKSPACE.iter().position(|half| *half == name.text) =>
            {
                let dst = self.register(dst, Bank::B32)?;
                return self.workspace_half(dst, half == 0);
            }
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
                    Symbol::Shared(_) | Symbol::Variable(_) if ty.bank() == Bank::B64 => {
                        let dst = self.register(dst, Bank::B64)?;
                        return self.wide_address(dst, a);
                    }
                    Symbol::Function(function) if ty.bank() == Bank::B64 && *plus == 0 => {
                        let (op, ty, mode, dst) =
                            (UnaryOp::Move, DataType::U64, FloatMode::PLAIN, self.register(dst, Bank::B64)?);
                        Arith::Unary { op, ty, mode, dst, a: crate::types::Operand::Imm(function_address(function)) }
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

    /// The address of a variable, in 64 bits, in its own window.
    pub(super) fn wide_address(&mut self, dst: RegId, of: &Operand<'t>) -> Result<(), Refusal> {
        let (symbol, plus) = self.symbol(of)?;
        let byte = |from: u32| u32::try_from(plus + i64::from(from)).map_err(|_| Refusal::Unknown);
        match symbol {
            Symbol::Shared(start) => {
                let (offset, near) = (byte(start)?, self.fresh(Bank::B32)?);
                self.emit(Arith::SharedAddress { dst: near, offset });
                self.extend(dst, near, false);
            }
            Symbol::Variable(variable) => self.emit(Arith::VariableAddress { dst, variable, offset: byte(0)? }),
            _ => return Err(Refusal::Unknown),
        }
        Ok(())
    }

    /// The upper or the lower half of the address that a cooperative launch has and others have not.
    fn workspace_half(&mut self, dst: RegId, upper: bool) -> Result<(), Refusal> {
        let Some(variable) = self.workspace else {
            let (op, ty, mode, a) = (UnaryOp::Move, DataType::U32, FloatMode::PLAIN, crate::types::Operand::Imm(0));
            self.emit(Arith::Unary { op, ty, mode, dst, a });
            return Ok(());
        };
        let (address, other) = (self.fresh(Bank::B64)?, self.fresh(Bank::B32)?);
        let (low, high) = if upper { (other, dst) } else { (dst, other) };
        self.emit(Arith::VariableAddress { dst: address, variable, offset: 0 });
        self.emit(Arith::Unpack { low, high, a: address });
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

    /// Two floats as narrower ones, or the other way.
    fn convert_narrow(
        &mut self,
        ty: NarrowFloat,
        words: &mut Words<'t>,
        operands: &[Operand<'t>],
    ) -> Result<(), Refusal> {
        // What it is converted to comes first.
        let from = words.number();
        words.take(&print::narrow_pair(ty));
        let relu = words.take("relu");
        let directions = [("rn", Direction::Nearest), ("rz", Direction::Zero), ("rp", Direction::Up)];
        let direction = words.pick(&directions).ok_or(Refusal::Unknown)?;
        let scale = ty == NarrowFloat::Ue8m0;
        let op = match (from, operands) {
            (Some(from), [dst, operands @ ..]) => {
                let from = match (from, operands) {
                    (DataType::F32, [high, low]) => {
                        FloatPair::Floats([self.register(low, Bank::B32)?, self.register(high, Bank::B32)?])
                    }
                    (DataType::F16x2, [a]) if matches!(ty, NarrowFloat::E4m3 | NarrowFloat::E5m2) => {
                        FloatPair::Halves(self.register(a, Bank::B32)?)
                    }
                    (DataType::Bf16x2, [a]) if scale => FloatPair::Bfloats(self.register(a, Bank::B32)?),
                    _ => return Err(Refusal::Unknown),
                };
                if !words.take("satfinite") || scale == (direction == Direction::Nearest) || scale && relu {
                    return Err(Refusal::Unknown);
                }
                Arith::ConvertNarrow { to: ty, direction, relu, dst: self.register(dst, Bank::B16)?, from }
            }
            (None, [dst, a]) => {
                let to = if scale { DataType::Bf16x2 } else { DataType::F16x2 };
                if words.number() != Some(to) || direction != Direction::Nearest || scale && relu {
                    return Err(Refusal::Unknown);
                }
                let (dst, a) = (self.register(dst, Bank::B32)?, self.register(a, Bank::B16)?);
                Arith::ConvertWide { from: ty, relu, dst, a }
            }
            _ => return Err(Refusal::Unknown),
        };
        // To the assembler those with a byte are several instructions.
        let around = if ty == NarrowFloat::E2m1 { self.branch_around() } else { None };
        self.emit(op);
        self.end_around(around);
        Ok(())
    }

    /// Bytes put together in a register of 16 or 32 bits, the first lowest.
    fn pack_bytes(&mut self, dst: RegId, parts: &[Operand<'t>]) -> Result<(), Refusal> {
        use crate::types::Operand::Imm;
        let (ty, mut halves) = (DataType::U16, Vec::new());
        for pair in parts.as_chunks::<2>().0 {
            let [low, high] = [self.value(&pair[0], ty)?, self.value(&pair[1], ty)?];
            let low = self.computed((BinaryOp::And, ty), low, Imm(255))?;
            let high = self.computed((BinaryOp::Shl, ty), high, Imm(8))?;
            halves.push(self.computed((BinaryOp::Or, ty), low, high)?);
        }
        let op = match halves[..] {
            [a] => Arith::Unary { op: UnaryOp::Move, ty, mode: FloatMode::PLAIN, dst, a },
            [low, high] => Arith::Pack { dst, low, high },
            _ => return Err(Refusal::Unknown),
        };
        self.emit(op);
        Ok(())
    }

    /// A register of 16 or 32 bits as bytes.
    fn unpack_bytes(&mut self, parts: &[Operand<'t>], a: RegId) -> Result<(), Refusal> {
        use crate::types::Operand::{Imm, Reg};
        let halves = match parts.len() {
            2 => vec![a],
            _ => {
                let [low, high] = [self.fresh(Bank::B16)?, self.fresh(Bank::B16)?];
                self.emit(Arith::Unpack { low, high, a });
                vec![low, high]
            }
        };
        let (ty, mode) = (DataType::U16, FloatMode::PLAIN);
        for (pair, half) in parts.as_chunks::<2>().0.iter().zip(halves) {
            // The second first: the register may be one of the results.
            let [low, high] = [self.register(&pair[0], Bank::B16)?, self.register(&pair[1], Bank::B16)?];
            let upper = self.computed((BinaryOp::Shr, ty), Reg(half), Imm(8))?;
            self.emit(Arith::Binary { op: BinaryOp::And, ty, mode, dst: low, a: Reg(half), b: Imm(255) });
            self.emit(Arith::Unary { op: UnaryOp::Move, ty, mode, dst: high, a: upper });
        }
        Ok(())
    }

    /// A register of a conversion: bytes may be in registers of any width.
    fn converted(&mut self, operand: &Operand<'t>, ty: DataType) -> Result<RegId, Refusal> {
        match ty.bits() {
            8 => self.any_register(operand, ty.bank()),
            _ => self.register(operand, ty.bank()),
        }
    }

    /// A word in a register of 64 bits.
    pub(super) fn extend(&mut self, dst: RegId, a: RegId, signed: bool) {
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
}
