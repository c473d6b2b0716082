//! What can be said about a register's value without running the kernel.
//!
//! A register that is written exactly once, by a move of a literal, the address of a shared region, or simple
//! arithmetic on such registers, is known to be `residue` modulo a power of two. That is enough to hold addresses to
//! their alignment and descriptors to their fields, also where a stage index that only the run knows is part of them.

use crate::instr::{Access, Arith, BinaryOp, Op, TernaryOp, UnaryOp};
use crate::kernel::Kernel;
use crate::types::{Address, Bank, Base, DataType, Operand, ParamId, RegId};

/// A value known to be `residue` modulo `modulus`, a power of two; modulus 1 knows nothing.
type Residue = (u64, u64);

/// As good as equality: no value we follow is as large.
const EXACT: u64 = 1 << 63;
const UNKNOWN: Residue = (1, 0);

/// How far a chain of definitions is followed.
const DEPTH: u32 = 16;

/// What writes a register.
#[derive(Clone, Copy)]
enum Definition<'k> {
    /// Nothing.
    None,
    /// One instruction, of arithmetic and unguarded.
    One(&'k Arith),
    /// Several, or another one.
    Other,
}

pub(super) struct Known<'k> {
    /// By bank and register, what writes it.
    definitions: [Vec<Definition<'k>>; 4],
    shared_align: u64,
}

impl<'k> Known<'k> {
    pub(super) fn new(kernel: &'k Kernel) -> Self {
        let mut definitions = Bank::ALL.map(|bank| vec![Definition::None; kernel.register_count(bank) as usize]);
        for instr in &kernel.body {
            let arith = match &instr.op {
                Op::Arith(arith) if instr.guard.is_none() => Definition::One(arith),
                _ => Definition::Other,
            };
            instr.registers(&mut |reg, access| {
                // Registers that the kernel does not have are for others to report.
                if let Some(known) = definitions[reg.bank.index()].get_mut(reg.index as usize)
                    && access != Access::Read
                {
                    *known = if matches!(known, Definition::None) { arith } else { Definition::Other };
                }
            });
        }
        Known { definitions, shared_align: kernel.shared_align().into() }
    }

    fn definition(&self, reg: RegId) -> Option<&'k Arith> {
        match self.definitions[reg.bank.index()].get(reg.index as usize)? {
            Definition::One(arith) => Some(arith),
            Definition::None | Definition::Other => None,
        }
    }

    /// The operand's value, if it is always the same.
    pub(super) fn constant(&self, operand: Operand) -> Option<u64> {
        match self.residue(operand, DEPTH) {
            (EXACT, value) => Some(value),
            _ => None,
        }
    }

    /// The high word of a 64-bit register put together from two words, if it is always the same.
    pub(super) fn high_word(&self, reg: RegId) -> Option<u32> {
        match self.definition(reg)? {
            Arith::Pack { high, .. } => self.constant(*high).map(|bits| bits as u32),
            _ => self.constant(Operand::Reg(reg)).map(|bits| (bits >> 32) as u32),
        }
    }

    /// What is known of the low word of such a register.
    pub(super) fn low_word(&self, reg: RegId) -> Residue {
        match self.definition(reg) {
            Some(Arith::Pack { low, .. }) => self.residue(*low, DEPTH),
            _ => self.residue(Operand::Reg(reg), DEPTH),
        }
    }

    /// The parameter whose address a register holds.
    pub(super) fn param(&self, reg: RegId) -> Option<ParamId> {
        match self.definition(reg)? {
            Arith::ParamAddress { param, .. } => Some(*param),
            _ => None,
        }
    }

    /// Bytes from the start of the kernel's shared memory, where an address is fixed.
    pub(super) fn shared_offset(&self, address: Address) -> Option<i64> {
        let start = match address.base {
            Base::SharedStart => 0,
            Base::Reg(reg) => match self.definition(reg)? {
                Arith::SharedAddress { offset, .. } => i64::from(*offset),
                _ => return None,
            },
        };
        Some(start + i64::from(address.offset))
    }

    pub(super) fn residue_of(&self, address: Address) -> Residue {
        let base = match address.base {
            Base::SharedStart => (self.shared_align, 0),
            Base::Reg(reg) => self.residue(Operand::Reg(reg), DEPTH),
        };
        sum(base, (EXACT, i64::from(address.offset).cast_unsigned()))
    }

    /// What is known of an operand.
    pub(super) fn residue(&self, operand: Operand, depth: u32) -> Residue {
        let reg = match operand {
            Operand::Imm(bits) => return (EXACT, bits),
            Operand::Reg(reg) => reg,
        };
        let (Some(arith), Some(depth)) = (self.definition(reg), depth.checked_sub(1)) else { return UNKNOWN };
        match self.result(arith, depth) {
            (EXACT, value) if reg.bank.bits() < 64 => (EXACT, value & ((1 << reg.bank.bits()) - 1)),
            known => known,
        }
    }

    fn result(&self, arith: &Arith, depth: u32) -> Residue {
        let of = |operand: Operand| self.residue(operand, depth);
        match *arith {
            Arith::Unary { op: UnaryOp::Move, a, .. } => of(a),
            Arith::SharedAddress { offset, .. } => (self.shared_align, u64::from(offset) % self.shared_align),
            Arith::Binary { op: BinaryOp::Add, ty, a, b, .. } if is_integer(ty) => sum(of(a), of(b)),
            Arith::Binary { op: BinaryOp::Mul, ty, a, b, .. } if is_integer(ty) => product(of(a), of(b)),
            Arith::Binary { op: BinaryOp::Shl, a, b, .. } => match of(b) {
                (EXACT, count @ 0..32) => product(of(a), (EXACT, 1 << count)),
                _ => UNKNOWN,
            },
            // Or with bits that are known to be clear below what is known of the other side.
            Arith::Binary { op: BinaryOp::Or, a, b, .. } => {
                let ((m, x), (n, y)) = (of(a), of(b));
                let common = m.min(n);
                (common, (x | y) % common)
            }
            Arith::Ternary { op: TernaryOp::MulAdd, a, b, c, .. } => sum(product(of(a), of(b)), of(c)),
            Arith::Ternary { op: TernaryOp::BitExtract, ty: DataType::U32, a, b, c, .. } => field(of(a), of(b), of(c)),
            _ => UNKNOWN,
        }
    }
}

fn is_integer(ty: DataType) -> bool {
    !ty.is_float() && ty != DataType::Pred
}

fn sum((m, x): Residue, (n, y): Residue) -> Residue {
    let common = m.min(n);
    (common, x.wrapping_add(y) % common)
}

/// A factor of 2ᵏ makes the product known k bits further.
fn product((m, x): Residue, (n, y): Residue) -> Residue {
    let value = x.wrapping_mul(y);
    if m == EXACT && n == EXACT {
        return (EXACT, value % EXACT);
    }
    let gain = |modulus: u64, other: u64| match other {
        0 => EXACT,
        other => modulus.saturating_mul(1 << other.trailing_zeros()).min(EXACT),
    };
    let common = match (m, n) {
        (EXACT, n) => gain(n, x),
        (m, EXACT) => gain(m, y),
        (m, n) => m.min(n),
    };
    (common, value % common)
}

/// Bits `start..start + count` of a value.
fn field((m, x): Residue, start: Residue, count: Residue) -> Residue {
    let ((EXACT, start @ 0..32), (EXACT, count @ 1..=32)) = (start, count) else { return UNKNOWN };
    let (modulus, value) = ((m >> start).max(1), x >> start);
    if m == EXACT {
        (EXACT, value & ((1 << count) - 1))
    } else {
        (modulus.min(1 << count), value % modulus.min(1 << count))
    }
}
