//! Operands: names and numbers as registers, literals and addresses.

use super::{Lower, Refusal, Symbol};
use crate::instr::Arith;
use crate::parse::syntax::{self, Literal};
use crate::types::{Address, Bank, Base, DataType, Operand, RegId};

impl<'t> Lower<'_, 't> {
    /// Exactly so many operands.
    pub(super) fn exactly<'o, const COUNT: usize>(
        &self,
        operands: &'o [syntax::Operand<'t>],
    ) -> Result<&'o [syntax::Operand<'t>; COUNT], Refusal> {
        operands.try_into().map_err(|_| Refusal::Other(format!("{COUNT} operands, not {}", operands.len())))
    }

    /// What an operand that is a plain name stands for.
    pub(super) fn symbol(&self, operand: &syntax::Operand<'t>) -> Result<(Symbol, i64), Refusal> {
        match operand {
            syntax::Operand::Name { name, part: None, plus } => match self.look_up(name.text) {
                Some(symbol) => Ok((symbol, *plus)),
                None => Err(self.wrong(operand.at(), name.text, "a name that is declared")),
            },
            _ => Err(Refusal::Unknown),
        }
    }

    /// A register of a bank. As a result, `_` is one that nobody reads.
    pub(super) fn register(&mut self, operand: &syntax::Operand<'t>, bank: Bank) -> Result<RegId, Refusal> {
        let found = self.any_register(operand, bank)?;
        if found.bank == bank {
            return Ok(found);
        }
        let text = self.spelled(operand);
        Err(Refusal::Other(format!("{text} to be a register of {} bits, not of {}", bank.bits(), found.bank.bits())))
    }

    /// A register of any bank, or of this one in place of a sink.
    pub(super) fn any_register(&mut self, operand: &syntax::Operand<'t>, sink: Bank) -> Result<RegId, Refusal> {
        if let syntax::Operand::Name { name, part: None, plus: 0 } = operand {
            if name.text == "_" {
                return self.fresh(sink);
            }
            if let Some(Symbol::Register(reg)) = self.look_up(name.text) {
                return Ok(reg);
            }
        }
        match self.symbol(operand) {
            Err(Refusal::Error(error)) => Err(Refusal::Error(error)),
            _ => Err(Refusal::Other(format!("a register in place of {}", self.spelled(operand)))),
        }
    }

    /// Registers in braces, or one without.
    pub(super) fn registers(&mut self, operand: &syntax::Operand<'t>, bank: Bank) -> Result<Vec<RegId>, Refusal> {
        match operand {
            syntax::Operand::Vector(parts, _) => parts.iter().map(|part| self.register(part, bank)).collect(),
            one => Ok(vec![self.register(one, bank)?]),
        }
    }

    /// Exactly so many registers in braces.
    pub(super) fn registers_of<const COUNT: usize>(
        &mut self,
        operand: &syntax::Operand<'t>,
        bank: Bank,
    ) -> Result<[RegId; COUNT], Refusal> {
        let found = self.registers(operand, bank)?;
        let count = found.len();
        found.try_into().map_err(|_| Refusal::Other(format!("{COUNT} registers in braces, not {count}")))
    }

    /// A register or a literal of a type.
    pub(super) fn value(&mut self, operand: &syntax::Operand<'t>, ty: DataType) -> Result<Operand, Refusal> {
        match operand {
            syntax::Operand::Number(literal, _) => self.literal(*literal, ty).map(Operand::Imm),
            syntax::Operand::Name { name, part: None, plus: 0 } if name.text == "WARP_SZ" => Ok(Operand::Imm(32)),
            // A special register in place of one that holds it.
            syntax::Operand::Name { name, part, .. }
                if name.text.starts_with('%') && self.look_up(name.text).is_none() =>
            {
                let which = self.special(name.text, *part, operand)?;
                let dst = self.fresh(if which.is_wide() { Bank::B64 } else { Bank::B32 })?;
                self.emit(Arith::Special { dst, which });
                Ok(Operand::Reg(dst))
            }
            _ => self.register(operand, ty.bank()).map(Operand::Reg),
        }
    }

    /// The bits of a literal that is read as a type. As in C, an integer that is too wide loses its upper bits.
    fn literal(&self, literal: Literal, ty: DataType) -> Result<u64, Refusal> {
        let mask = u64::MAX >> (64 - ty.bits());
        match (literal, ty) {
            (Literal::Single(bits), DataType::F32 | DataType::U32 | DataType::S32) => Ok(bits.into()),
            (Literal::Double(bits), DataType::F32) => Ok((f64::from_bits(bits) as f32).to_bits().into()),
            (Literal::Double(bits), DataType::F64 | DataType::U64 | DataType::S64) => Ok(bits),
            (Literal::Single(bits), DataType::F64) => Ok(f64::from(f32::from_bits(bits)).to_bits()),
            (Literal::Integer { bits, .. }, DataType::F32 | DataType::F64) if bits != 0 => {
                Err(Refusal::Other(format!("a float, such as 0f3F800000, in place of {bits}")))
            }
            (Literal::Integer { bits, .. }, _) => Ok(bits & mask),
            _ => Err(Refusal::Other(format!("a literal of type {ty:?}"))),
        }
    }

    /// The type of a move whose literal is spelled as one would be.
    pub(super) fn spelled_type(&self, operand: &syntax::Operand<'t>, ty: DataType) -> DataType {
        match (operand, ty) {
            (syntax::Operand::Number(Literal::Single(_), _), DataType::U32) => DataType::F32,
            (syntax::Operand::Number(Literal::Double(_), _), DataType::U64) => DataType::F64,
            (syntax::Operand::Number(Literal::Integer { bits, negative, decimal }, _), DataType::U32)
                if *negative || *decimal && *bits > 0xffff =>
            {
                DataType::S32
            }
            _ => ty,
        }
    }

    /// A whole number that must be written out.
    pub(super) fn constant(&self, operand: &syntax::Operand<'t>) -> Result<u64, Refusal> {
        match operand {
            syntax::Operand::Number(Literal::Integer { bits, .. }, _) => Ok(*bits),
            _ => Err(Refusal::Unknown),
        }
    }

    /// The same of 32 bits.
    pub(super) fn small(&self, operand: &syntax::Operand<'t>) -> Result<u32, Refusal> {
        u32::try_from(self.constant(operand)?).map_err(|_| Refusal::Unknown)
    }

    /// A whole number that is part of an instruction: written out, or in a register of 16 bits that holds it
    /// throughout, as compilers have it that write each register once.
    pub(super) fn selector(&mut self, operand: &syntax::Operand<'t>) -> Result<u32, Refusal> {
        if let syntax::Operand::Number(..) = operand {
            return self.small(operand);
        }
        let reg = self.register(operand, Bank::B16)?;
        let value = self.constants.get(&reg).copied().ok_or(Refusal::Unknown)?;
        self.relied_on.insert(reg, (value, operand.at()));
        u32::try_from(value).map_err(|_| Refusal::Unknown)
    }

    /// The parts of what is in brackets.
    pub(super) fn bracketed<'o>(&self, operand: &'o syntax::Operand<'t>) -> Result<&'o [syntax::Operand<'t>], Refusal> {
        match operand {
            syntax::Operand::Address(parts, _) => Ok(parts),
            other => Err(Refusal::Other(format!("an address in brackets in place of {}", self.spelled(other)))),
        }
    }

    /// An address in brackets: of 64 bits where `wide`, or of a shared variable.
    pub(super) fn address(&mut self, operand: &syntax::Operand<'t>, wide: bool) -> Result<Address, Refusal> {
        let [part] = self.bracketed(operand)? else { return Err(Refusal::Unknown) };
        self.place(part, wide)
    }

    /// The same without the brackets.
    pub(super) fn place(&mut self, part: &syntax::Operand<'t>, wide: bool) -> Result<Address, Refusal> {
        let (symbol, plus) = self.symbol(part)?;
        let (base, plus) = match symbol {
            Symbol::Register(reg) if reg.bank == if wide { Bank::B64 } else { Bank::B32 } => (Base::Reg(reg), plus),
            // A shared address in a wide register.
            Symbol::Register(reg) if !wide && reg.bank == Bank::B64 => (Base::Reg(self.low_half(reg)?), plus),
            Symbol::Shared(offset) if !wide => (Base::SharedStart, plus.saturating_add(offset.into())),
            Symbol::Variable(variable) if wide => {
                let dst = self.fresh(Bank::B64)?;
                self.emit(Arith::VariableAddress { dst, variable, offset: 0 });
                (Base::Reg(dst), plus)
            }
            _ => return Err(Refusal::Unknown),
        };
        let offset = i32::try_from(plus);
        let offset = offset.map_err(|_| self.wrong(part.at(), &plus.to_string(), "an offset of 32 bits"))?;
        Ok(Address { base, offset })
    }

    /// An address in brackets of shared memory that no word says the window of: a generic one, which must be of shared
    /// memory.
    pub(super) fn generic_shared(&mut self, operand: &syntax::Operand<'t>) -> Result<Address, Refusal> {
        let [part] = self.bracketed(operand)? else { return Err(Refusal::Unknown) };
        let (Symbol::Register(a), plus) = self.symbol(part)? else { return self.place(part, false) };
        if a.bank != Bank::B64 {
            return self.place(part, false);
        }
        let offset =
            i32::try_from(plus).map_err(|_| self.wrong(part.at(), &plus.to_string(), "an offset of 32 bits"))?;
        let dst = self.fresh(Bank::B64)?;
        self.emit(Arith::ToShared { dst, a });
        Ok(Address { base: Base::Reg(self.low_half(dst)?), offset })
    }

    /// A register in brackets, without an offset.
    pub(super) fn register_in_brackets(&mut self, operand: &syntax::Operand<'t>, bank: Bank) -> Result<RegId, Refusal> {
        match self.bracketed(operand)? {
            [one] => {
                let one = one.clone();
                self.register(&one, bank)
            }
            _ => Err(Refusal::Unknown),
        }
    }

    /// An operand for messages: its first word.
    pub(super) fn spelled(&self, operand: &syntax::Operand<'t>) -> String {
        let rest = self.text.get(operand.at() as usize..).unwrap_or_default();
        rest.split([',', ';', '\n', ']', '}']).next().unwrap_or_default().trim().to_string()
    }
}
