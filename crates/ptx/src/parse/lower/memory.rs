//! What threads read and write: parameters, variables, loads, stores and atomics. The reverse of `print/compute.rs`.

use super::words::Words;
use super::{Lower, Refusal, Symbol};
use crate::instr::{
    Arith, AtomicOp, BinaryOp, FloatMode, LoadOrder, Memory, Op, ParamBase, StoreOrder, UnaryOp, Width, Window,
};
use crate::parse::syntax::Operand;
use crate::print;
use crate::types::{Address, Bank, Base, DataType, RegId, Space};

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
    /// Addresses of one window as addresses of another.
    pub(super) fn address_cast(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let [dst, a] = self.exactly(operands)?;
        let dst = self.register(dst, Bank::B64)?;
        let a = match self.symbol(a)? {
            (Symbol::Shared(_) | Symbol::Variable(_), _) => {
                self.wide_address(dst, a)?;
                dst
            }
            _ => self.register(a, Bank::B64)?,
        };
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
        if words.space().is_some() {
            self.emit(if to { Arith::ToShared { dst, a } } else { Arith::FromShared { dst, a } });
            return Ok(());
        }
        if !(words.take("param") || words.take("param::entry")) {
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

    /// Asks in which window a generic address is.
    pub(super) fn in_window(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<Arith, Refusal> {
        let named = |word: &str| match word {
            "shared::cta" => Some(Window::Shared),
            "param::entry" => Some(Window::Param),
            word => Window::ALL.into_iter().find(|window| print::window(*window) == word),
        };
        let window = words.find(named).ok_or(Refusal::Unknown)?;
        let [dst, a] = self.exactly(operands)?;
        Ok(Arith::InWindow { dst: self.register(dst, Bank::Pred)?, window, a: self.register(a, Bank::B64)? })
    }

    /// The same byte in another block of the cluster: of a generic address, or of one in the window.
    pub(super) fn map_shared(&mut self, words: &mut Words<'t>, operands: &[Operand<'t>]) -> Result<(), Refusal> {
        let in_window = words.take("shared::cluster");
        let [dst, a, rank] = self.exactly(operands)?;
        let rank = self.value(rank, DataType::U32)?;
        if in_window && words.take("u32") {
            let (dst, a) = (self.register(dst, Bank::B32)?, self.register(a, Bank::B32)?);
            self.emit(Arith::MapShared { dst, a, rank });
            return Ok(());
        }
        if !words.take("u64") {
            return Err(Refusal::Unknown);
        }
        let (wide, mut a) = (self.register(dst, Bank::B64)?, self.register(a, Bank::B64)?);
        if !in_window {
            let dst = self.fresh(Bank::B64)?;
            self.emit(Arith::ToShared { dst, a });
            a = dst;
        }
        let (a, dst) = (self.low_half(a)?, self.fresh(Bank::B32)?);
        self.emit(Arith::MapShared { dst, a, rank });
        self.extend(wide, dst, false);
        if !in_window {
            self.emit(Arith::FromShared { dst: wide, a: wide });
        }
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
            None if words.take("local") || words.take("const") => Space::Global,
            None => Space::Generic,
        };
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
        let (addr, mut extended) = (self.address(addr, space.is_wide())?, None);
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
    pub(super) fn variable_address(&mut self, variable: u32, plus: i64) -> Result<Address, Refusal> {
        let offset = u32::try_from(plus).map_err(|_| Refusal::Unknown)?;
        let dst = self.fresh(Bank::B64)?;
        self.emit(Arith::VariableAddress { dst, variable, offset });
        Ok(Address { base: Base::Reg(dst), offset: 0 })
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
        let (addr, a) = (self.address(addr, space.is_wide())?, self.value(a, ty)?);
        let b = b.map(|b| self.value(b, ty)).transpose()?;
        // A reduction that releases is an atomic whose result nobody reads.
        let dst = match (dst, acq_rel) {
            (None, true) => Some(self.fresh(ty.bank())?),
            (dst, _) => dst,
        };
        self.emit(Memory::Atomic { space, op, ty, acq_rel, scope, dst, addr, a, b });
        Ok(())
    }
}
