//! Whether the hardware would accept a kernel.
//!
//! Each instruction is held to the rules of its family, and the kernel as a whole to the limits of a multiprocessor.
//! Only what can be decided from the kernel alone is decided here: literals, fixed shared addresses, registers that are
//! written once with a known value. What depends on the run (who arrives when, which bytes are ready) is a simulator's
//! business. Whatever is refused here would be refused by the assembler, ignored by it, or fail on the GPU.

mod arith;
mod known;
mod launch;
mod memory;
mod sync;
mod tensor_core;

pub(crate) use arith::converts;

use std::collections::HashMap;

use crate::error::Error;
use crate::instr::{Arith, Control, Instr, NarrowFloat, Op};
use crate::kernel::Kernel;
use crate::rule::{Place, Rule, Violation, bank_name};
use crate::target::Feature;
use crate::types::{Address, Bank, Base, DataType, Operand, ParamId, RegId, Scope, Space};
use known::Known;

impl Kernel {
    /// Whether the hardware accepts the kernel; if not, the first rule it breaks. [`crate::Builder::finish`] asks this,
    /// and whoever changes a finished kernel can ask again.
    pub fn check(&self) -> Result<(), Error> {
        match self.violations().into_iter().next() {
            Some(violation) => Err(Error::Illegal(Box::new(violation))),
            None => Ok(()),
        }
    }

    /// Every rule the kernel breaks, in the order of its body; those of the kernel as a whole come first.
    pub fn violations(&self) -> Vec<Violation> {
        let mut check =
            Check { kernel: self, known: Known::new(self), ranks: HashMap::new(), at: None, found: Vec::new() };
        check.launch();
        for (at, instr) in self.body.iter().enumerate() {
            check.at = Some(at);
            check.instruction(instr);
        }
        check.found
    }
}

/// The state of one pass over a kernel.
struct Check<'k> {
    kernel: &'k Kernel,
    known: Known<'k>,
    /// Coordinates of the first copy through each tensor map.
    ranks: HashMap<ParamId, usize>,
    at: Option<usize>,
    found: Vec<Violation>,
}

impl Check<'_> {
    fn refuse(&mut self, rule: Rule) {
        let place = self.at.map(|at| {
            let instr = &self.kernel.body[at];
            let text = self.kernel.instruction(instr);
            let line = text.trim().lines().next().unwrap_or_default();
            let short: String = line.chars().take(60).collect();
            let text = if short.len() < line.len() { format!("{short}…") } else { short };
            Place { phase: self.kernel.phase_path(instr.phase), at, text }
        });
        self.found.push(Violation { kernel: self.kernel.name.clone(), place, rule });
    }

    fn instruction(&mut self, instr: &Instr) {
        let mut undeclared = None;
        instr.registers(&mut |reg, _| {
            if reg.index >= self.kernel.register_count(reg.bank) {
                undeclared = undeclared.or(Some(reg));
            }
        });
        if let Some(found) = undeclared {
            self.refuse(Rule::Undeclared { found, declared: self.kernel.register_count(found.bank) });
        }
        if let Some(guard) = instr.guard {
            self.bank("the guard", guard.pred, Bank::Pred);
            if matches!(instr.op, Op::Control(Control::Label(_))) {
                self.refuse(Rule::GuardedLabel);
            }
            if matches!(instr.op, Op::Arith(Arith::IsCanceled { .. } | Arith::FirstBlock { .. })) {
                self.refuse(Rule::GuardedQuestion);
            }
            if let Op::Arith(Arith::ConvertNarrow { to: ty, .. } | Arith::ConvertWide { from: ty, .. }) = instr.op
                && ty == NarrowFloat::E2m1
            {
                self.refuse(Rule::GuardedBytes);
            }
        }
        match &instr.op {
            Op::Arith(op) => self.arith(op),
            Op::Memory(op) => self.memory(op),
            Op::Warp(op) => self.warp(op),
            Op::Barrier(op) => self.barrier(op),
            Op::Fence(op) => self.fence(*op),
            Op::Copy(op) => self.copy(op),
            Op::Mma(op) => self.mma(op),
            Op::Fragments(op) => self.fragments(op),
            Op::Wgmma(op) => self.wgmma(op),
            Op::Tcgen05(op) => self.tcgen05(op),
            Op::Control(op) => self.control(*op),
            Op::Unknown(op) => {
                self.refuse(Rule::NotUnderstood { opcode: op.opcode.clone(), wanted: op.wanted.clone() });
            }
        }
    }

    /// Something that only some targets have.
    fn feature(&mut self, what: &'static str, feature: Feature) {
        let found = self.kernel.target;
        if !found.has(feature) {
            self.refuse(Rule::Feature { what, feature, found });
        }
    }

    /// A window, or a scope, of which a cluster is part.
    fn reach(&mut self, space: Option<Space>, scope: Option<Scope>) {
        if space == Some(Space::Cluster) {
            self.feature("another block's shared memory", Feature::Clusters);
        }
        if scope == Some(Scope::Cluster) {
            self.feature("the scope of a cluster", Feature::Clusters);
        }
    }

    fn bank(&mut self, what: &'static str, reg: RegId, wanted: Bank) {
        if reg.bank != wanted {
            self.refuse(Rule::Bank { what, found: reg, wanted: bank_name(wanted) });
        }
    }

    fn banks(&mut self, what: &'static str, regs: &[RegId], wanted: Bank) {
        for &reg in regs {
            self.bank(what, reg, wanted);
        }
    }

    /// A source operand of type `ty`: a register of its bank, or a literal that fits.
    fn operand(&mut self, what: &'static str, operand: Operand, ty: DataType) {
        match operand {
            Operand::Reg(reg) => self.bank(what, reg, ty.bank()),
            Operand::Imm(_) if !ty.has_literals() => self.refuse(Rule::NoLiteral { ty }),
            Operand::Imm(found) if ty.bits() < 64 && found >> ty.bits() != 0 => {
                self.refuse(Rule::LiteralWidth { found, ty });
            }
            Operand::Imm(_) => {}
        }
    }

    /// An operand read as an unsigned word, which, as far as it is known, must satisfy `legal`.
    fn word(&mut self, what: &'static str, operand: Operand, wanted: &'static str, legal: impl Fn(u64) -> bool) {
        self.operand(what, operand, DataType::U32);
        if let Some(found) = self.known.constant(operand) {
            self.value(what, found, wanted, legal);
        }
    }

    fn value(&mut self, what: &'static str, found: u64, wanted: &'static str, legal: impl Fn(u64) -> bool) {
        if !legal(found) {
            self.refuse(Rule::Value { what, found, wanted });
        }
    }

    fn count(&mut self, what: &'static str, found: usize, wanted: &'static str, legal: &[usize]) {
        if !legal.contains(&found) {
            self.refuse(Rule::Count { what, found, wanted });
        }
    }

    /// An address of `bytes` bytes, to be aligned to `align`, in the given window.
    fn address(&mut self, what: &'static str, space: Space, address: Address, bytes: u32, align: u64) {
        match address.base {
            Base::Reg(reg) if space.is_wide() => self.bank(what, reg, Bank::B64),
            Base::Reg(reg) => self.bank(what, reg, Bank::B32),
            Base::SharedStart if space.is_wide() => {
                self.refuse(Rule::Window { what, found: Space::Shared, wanted: "an address of 64 bits" });
            }
            Base::SharedStart => {}
        }
        let Some(place) = self.known.shared_offset(address) else {
            let (modulus, residue) = self.known.residue_of(address);
            self.aligned(what, modulus, residue, align);
            return;
        };
        let end = place + i64::from(bytes);
        let inside = self.kernel.shared.iter().any(|region| {
            i64::from(region.offset) <= place && end <= i64::from(region.offset) + i64::from(region.bytes)
        });
        if !inside {
            self.refuse(Rule::OutOfRegion { what, start: place, end });
        } else if !place.cast_unsigned().is_multiple_of(align) {
            self.refuse(Rule::Misaligned { what, found: place.cast_unsigned() % align, wanted: align });
        } else if u64::from(self.kernel.shared_align()) < align {
            self.refuse(Rule::RegionAlignment { what, found: self.kernel.shared_align(), wanted: align });
        }
    }

    /// Refuses a value that is `residue` modulo `modulus` if that excludes every multiple of `align`.
    fn aligned(&mut self, what: &'static str, modulus: u64, residue: u64, align: u64) {
        let common = modulus.min(align);
        if !residue.is_multiple_of(common) {
            self.refuse(Rule::Misaligned { what, found: residue % common, wanted: align });
        }
    }
}
