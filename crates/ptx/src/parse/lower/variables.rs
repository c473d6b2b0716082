//! Variables and parameters: places in memory that a function's statements name.

use std::collections::HashSet;

use super::names::own_name;
use super::{Lower, Symbol, bank, function_address};
use crate::error::Error;
use crate::instr::{Arith, Op};
use crate::kernel::{self, Kernel, Param, ParamType, Region, VariableSpace};
use crate::parse::syntax::{Function, Initial, Literal, Statement, Variable};
use crate::print;
use crate::types::{Bank, DataType, ParamId, RegId};

/// Bytes of memory that a function's variables may have.
const MOST_BYTES: u64 = 1 << 30;

/// Where what the system keeps of a block's shared memory for cooperative groups begins, and how much they count on.
const RESERVED: &str = "%reserved_smem_offset_1";
const RESERVED_BYTES: u32 = 288;

/// What is declared in a function and never referred to is none of the kernel's variables, as in the module.
pub(super) fn keep_used_variables(kernel: &mut Kernel) {
    let mut used = vec![false; kernel.variables.len()];
    let mut each = |change: &mut dyn FnMut(&mut u32)| {
        for instr in &mut kernel.body {
            if let Op::Arith(Arith::VariableAddress { variable, .. }) = &mut instr.op {
                change(variable);
            }
        }
    };
    each(&mut |variable| used[*variable as usize] = true);
    each(&mut |variable| *variable = used[..*variable as usize].iter().filter(|used| **used).count() as u32);
    let mut used = used.into_iter();
    kernel.variables.retain(|_| used.next().unwrap_or_default());
}

/// Bytes of a type in memory, by its name.
fn type_bytes(ty: &str) -> Option<u64> {
    match ty {
        "b8" | "u8" | "s8" => Some(1),
        "b128" => Some(16),
        _ => bank(ty).filter(|bank| *bank != Bank::Pred).map(|bank| u64::from(bank.bits() / 8)),
    }
}

/// Whether some barrier counts votes (`bar.red`).
fn votes(body: &[Statement<'_>]) -> bool {
    body.iter().any(|statement| match statement {
        Statement::Instruction(instruction) => {
            matches!(instruction.opcode.text, "bar" | "barrier") && instruction.modifiers.contains(&"red")
        }
        Statement::Block(inner) => votes(inner),
        _ => false,
    })
}

impl<'t> Lower<'_, 't> {
    pub(super) fn params(&mut self, function: &Function<'t>) -> Result<(), Error> {
        for param in &function.params {
            if param.name.text.is_empty() {
                return Err(self.refuse(param.name.at, param.ty, "a parameter with a name"));
            }
            let bytes = self.variable_bytes(param)?;
            let align = param.align.unwrap_or_else(|| type_bytes(param.ty).unwrap_or(1));
            let scalar = match (param.array.is_empty(), param.ty) {
                (true, "b16") => Some(DataType::U16),
                (true, "b32") => Some(DataType::U32),
                (true, "b64") => Some(DataType::U64),
                (true, name) => DataType::ALL.into_iter().find(|ty| print::suffix(*ty) == name),
                (false, _) => None,
            };
            let known = scalar.filter(|ty| u64::from(ty.bank().bits()) == 8 * bytes);
            let size = u32::try_from(bytes).ok().filter(|size| *size <= 1 << 16);
            let size = size
                .ok_or_else(|| self.refuse(param.name.at, param.name.text, "parameters of at most 65536 bytes each"))?;
            let align = u32::try_from(align).unwrap_or(1).max(1);
            let ty = known.map_or(ParamType::Bytes { size, align }, ParamType::Scalar);
            let id = ParamId(self.kernel.params.len() as u32);
            self.kernel.params.push(Param { name: own_name(param.name.text, id.0, false), ty });
            self.scope().names.insert(param.name.text, Symbol::Param(id));
        }
        Ok(())
    }

    /// Bytes of a variable in memory.
    pub(super) fn variable_bytes(&self, variable: &Variable<'t>) -> Result<u64, Error> {
        let name = variable.name;
        let element = type_bytes(variable.ty)
            .ok_or_else(|| self.refuse(name.at, variable.ty, "a type that memory can hold, such as .b8"))?;
        let align = variable.align.unwrap_or(1);
        if !align.is_power_of_two() || align > 1 << 16 {
            return Err(self.refuse(name.at, &align.to_string(), "an alignment that is a power of two up to 65536"));
        }
        let sides = variable.array.iter().map(|side| side.unwrap_or(0));
        let bytes = sides.chain([element * variable.vector]).try_fold(1u64, |product, side| product.checked_mul(side));
        bytes
            .filter(|bytes| *bytes <= MOST_BYTES)
            .ok_or_else(|| self.refuse(name.at, name.text, "a variable of at most 1 GiB"))
    }

    /// Makes a variable of global, constant or local memory one of the kernel's, if it has a size and its first value
    /// is numbers.
    pub(super) fn addressed(&mut self, variable: &Variable<'t>) -> Result<(), Error> {
        let space = match variable.space {
            "global" => VariableSpace::Global,
            "const" => VariableSpace::Constant,
            // What is handed to a function, or comes back from it, is each thread's own.
            "local" | "param" => VariableSpace::Local,
            _ => return Ok(()),
        };
        let bytes = self.variable_bytes(variable)?;
        let Some(element) = type_bytes(variable.ty).filter(|_| bytes > 0 && !variable.external) else { return Ok(()) };
        let mut initial = Vec::new();
        for value in &variable.initial {
            let bits = match value {
                Initial::Number(Literal::Integer { bits, .. } | Literal::Double(bits)) => *bits,
                Initial::Number(Literal::Single(bits)) => (*bits).into(),
                // Of functions the address is known here.
                Initial::Address { name, plus: 0, .. } => match self.scopes[0].names.get(name.text) {
                    Some(Symbol::Function(number)) => function_address(*number),
                    _ => return Ok(()),
                },
                Initial::Address { .. } => return Ok(()),
            };
            let bits = match (value, variable.ty) {
                (Initial::Number(Literal::Double(_)), "f32") => u64::from((f64::from_bits(bits) as f32).to_bits()),
                _ => bits,
            };
            initial.extend(bits.to_le_bytes().into_iter().cycle().take(element as usize));
        }
        initial.truncate(bytes as usize);
        let number = self.kernel.variables.len() as u32;
        let align = variable.align.or(type_bytes(variable.ty)).unwrap_or(1) as u32;
        let taken = self.kernel.variables.iter().any(|other| other.name == variable.name.text);
        let name = own_name(variable.name.text, number, taken);
        self.kernel.variables.push(kernel::Variable { name, space, bytes: bytes as u32, align, initial });
        self.scope().names.insert(variable.name.text, Symbol::Variable(number));
        Ok(())
    }

    /// Sets aside what the driver keeps for a cooperative launch.
    pub(super) fn grid_workspace(&mut self) {
        let (name, space, bytes) = ("grid workspace".to_string(), VariableSpace::Global, 8u32);
        self.workspace = Some(self.kernel.variables.len() as u32);
        let initial = bytes.to_le_bytes().to_vec();
        self.kernel.variables.push(kernel::Variable { name, space, bytes, align: 8, initial });
    }

    /// Lays the shared variables out that the function uses: those of a known size, then the one whose size the
    /// launch says.
    pub(super) fn shared_memory(
        &mut self,
        names: &HashSet<&'t str>,
        bodies: &[&Vec<Statement<'t>>],
        dynamic: u32,
    ) -> Result<(), Error> {
        let read = self.read;
        let shared = read.variables.iter().filter(|variable| variable.space == "shared");
        let (mut extern_align, mut dynamics) = (0, Vec::new());
        for variable in shared {
            if variable.external || variable.array.first() == Some(&None) {
                self.variable_bytes(variable)?;
                let align = variable.align.or(type_bytes(variable.ty)).unwrap_or(1);
                extern_align = extern_align.max(align as u32);
                dynamics.push(variable.name.text);
            } else if names.contains(variable.name.text) {
                self.shared_variable(variable)?;
            }
        }
        bodies.iter().try_for_each(|body| self.local_shared(body))?;
        if bodies.iter().any(|body| votes(body)) {
            let (name, offset) = ("votes".to_string(), self.kernel.shared_bytes().next_multiple_of(4));
            self.kernel.shared.push(Region { name, offset, bytes: 4, align: 4, zeroed: false });
            self.votes = Some(offset);
        }
        if names.contains(RESERVED) {
            let (name, offset) = ("reserved".to_string(), self.kernel.shared_bytes().next_multiple_of(16));
            self.kernel.shared.push(Region { name, offset, bytes: RESERVED_BYTES, align: 16, zeroed: true });
            self.scope().names.insert(RESERVED, Symbol::Shared(offset));
        }
        let align = extern_align.max(1);
        self.dynamic = self.kernel.shared_bytes().next_multiple_of(align);
        if dynamic > 0 {
            let name = dynamics.first().copied().unwrap_or("dynamic");
            // The launch's bytes must be addressable with those before them.
            let room = (MOST_BYTES as u32).saturating_sub(self.dynamic);
            let (name, offset, bytes) = (name.to_string(), self.dynamic, dynamic.min(room));
            self.kernel.shared.push(Region { name, offset, bytes, align, zeroed: false });
        }
        for name in dynamics {
            let offset = self.dynamic;
            self.scope().names.insert(name, Symbol::Shared(offset));
        }
        Ok(())
    }

    /// Sets bytes aside for the shared variables of a function's own blocks. Their names come when the block does.
    fn local_shared(&mut self, body: &[Statement<'t>]) -> Result<(), Error> {
        for statement in body {
            match statement {
                Statement::Variable(variable) if variable.space == "shared" => drop(self.shared_variable(variable)?),
                Statement::Block(inner) => self.local_shared(inner)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets bytes aside for a shared variable, under its name.
    fn shared_variable(&mut self, variable: &Variable<'t>) -> Result<(), Error> {
        let bytes = self.variable_bytes(variable)?;
        let align = variable.align.or(type_bytes(variable.ty)).unwrap_or(1) as u32;
        let offset = self.kernel.shared_bytes().next_multiple_of(align);
        if u64::from(offset) + bytes > MOST_BYTES {
            return Err(self.refuse(variable.name.at, variable.name.text, "at most 1 GiB of shared variables"));
        }
        let name = variable.name.text.to_string();
        self.kernel.shared.push(Region { name, offset, bytes: bytes as u32, align, zeroed: false });
        self.scope().names.insert(variable.name.text, Symbol::Shared(offset));
        Ok(())
    }

    pub(super) fn variable(&mut self, variable: &Variable<'t>) -> Result<(), Error> {
        let name = variable.name;
        match variable.space {
            "reg" => self.declare_registers(variable),
            // Set aside before.
            "shared" => {
                let offset = self.kernel.shared.iter().rev().find(|region| region.name == name.text);
                let symbol = offset.map_or(Symbol::Other, |region| Symbol::Shared(region.offset));
                self.scope().names.insert(name.text, symbol);
                Ok(())
            }
            _ => {
                self.variable_bytes(variable)?;
                self.scope().names.insert(name.text, Symbol::Other);
                self.addressed(variable)
            }
        }
    }

    fn declare_registers(&mut self, variable: &Variable<'t>) -> Result<(), Error> {
        let name = variable.name;
        let wide = variable.ty == "b128";
        let Some(bank) = bank(variable.ty).or(wide.then_some(Bank::B64)) else {
            return Err(self.refuse(name.at, variable.ty, "a type of registers, such as .b32"));
        };
        if variable.vector > 1 || !variable.array.is_empty() || wide && variable.numbered.is_some() {
            self.scope().names.insert(name.text, Symbol::Other);
            return Ok(());
        }
        match variable.numbered {
            Some(count) => {
                let first = self.some_registers(bank, count, name.at)?;
                self.scope().numbered.insert(name.text, (first, count as u32));
            }
            None => {
                let first = self.some_registers(bank, if wide { 2 } else { 1 }, name.at)?;
                let second = RegId { index: first.index + 1, ..first };
                let symbol = if wide { Symbol::Wide([first, second]) } else { Symbol::Register(first) };
                self.scope().names.insert(name.text, symbol);
            }
        }
        Ok(())
    }
}
