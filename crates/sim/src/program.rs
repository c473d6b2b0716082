//! A kernel made ready to run: branch targets, the registers of each instruction, and how finely its accesses must be told
//! apart are worked out once.

use ptx::instr::{Access, Barrier, Control, Guard, MatrixA, Memory, Wgmma};
use ptx::{Bank, Instr, Kernel, Op, RegId, Space};

use crate::error::{FaultKind, Site};

/// A kernel made ready to run.
#[derive(Debug)]
pub(crate) struct Program<'k> {
    pub(crate) kernel: &'k Kernel,
    labels: Vec<usize>,
    /// The registers of all instructions, and where each one's begin.
    registers: Vec<(RegId, Access)>,
    starts: Vec<u32>,
    /// Whether it has multiplications that own registers.
    pub(crate) multiplies: bool,
    /// Whether the instruction is a barrier wait that is repeated until it succeeds, so that its lanes may sleep.
    spins: Vec<bool>,
    /// Bytes of the smallest access to shared and to global memory, at most 16.
    pub(crate) shared_unit: u32,
    pub(crate) global_unit: u32,
}

impl<'k> Program<'k> {
    pub(crate) fn new(kernel: &'k Kernel) -> Result<Self, FaultKind> {
        let refuse = |what: String| FaultKind::BadLaunch { what, remedy: "build the kernel with ptx::Builder" };
        let labels = kernel.labels().map_err(|error| refuse(error.to_string()))?;
        let (mut registers, mut starts) = (Vec::new(), vec![0]);
        for instr in &kernel.body {
            instr.registers(&mut |reg, access| registers.push((reg, access)));
            starts.push(registers.len() as u32);
        }
        let beyond = |(reg, _): &&(RegId, Access)| reg.index >= kernel.register_count(reg.bank);
        if let Some((reg, _)) = registers.iter().find(beyond) {
            return Err(refuse(format!("register {reg} is not declared")));
        }
        let words = |instr: &'k Instr| -> (&'k [RegId], &'k [RegId]) {
            match &instr.op {
                Op::Wgmma(Wgmma::Mma { d, a: MatrixA::Registers(a), .. }) => (d, a),
                Op::Wgmma(Wgmma::Mma { d, .. }) => (d, &[]),
                _ => (&[], &[]),
            }
        };
        let mut multiplied = kernel.body.iter().map(words).flat_map(|(d, a)| d.iter().chain(a));
        if let Some(reg) = multiplied.find(|reg| reg.bank != Bank::B32) {
            return Err(refuse(format!("register {reg} is no 32-bit register, and is multiplied")));
        }
        let spins = (0..kernel.body.len()).map(|at| spins(kernel, &labels, at)).collect();
        let multiplies = kernel.body.iter().any(|instr| matches!(instr.op, Op::Wgmma(_)));
        let (shared_unit, global_unit) = (unit(kernel, false), unit(kernel, true));
        Ok(Program { kernel, labels, registers, starts, multiplies, spins, shared_unit, global_unit })
    }

    pub(crate) fn instr(&self, pc: u32) -> Option<&'k Instr> {
        self.kernel.body.get(pc as usize)
    }

    pub(crate) fn target(&self, label: ptx::Label) -> u32 {
        self.labels[label.0 as usize] as u32
    }

    pub(crate) fn registers(&self, pc: u32) -> &[(RegId, Access)] {
        &self.registers[self.starts[pc as usize] as usize..self.starts[pc as usize + 1] as usize]
    }

    pub(crate) fn spins(&self, pc: u32) -> bool {
        self.spins[pc as usize]
    }

    /// Whether a lane may come from one instruction to another.
    pub(crate) fn reaches(&self, from: u32, to: u32) -> bool {
        let mut seen = vec![false; self.kernel.body.len()];
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            if at == to {
                return true;
            }
            let Some(instr) = self.instr(at).filter(|_| !std::mem::replace(&mut seen[at as usize], true)) else {
                continue;
            };
            if let Op::Control(Control::Branch { target, .. }) = instr.op {
                next.push(self.target(target));
            }
            let goes_on = !matches!(instr.op, Op::Control(Control::Branch { .. } | Control::Exit | Control::Trap));
            if goes_on || instr.guard.is_some() {
                next.push(at + 1);
            }
        }
        false
    }

    /// An instruction of a warp, for people.
    pub(crate) fn site(&self, block: [u32; 3], warp: usize, lanes: u32, pc: u32) -> Site {
        let (instruction, phase) = match self.instr(pc) {
            Some(instr) => (self.kernel.instruction(instr).trim().to_string(), self.kernel.phase_path(instr.phase)),
            None => ("the end of the body".into(), self.kernel.name.clone()),
        };
        Site { block, warp: warp as u32, lanes, position: pc as usize, instruction, phase }
    }

    /// The name of a byte of shared memory: its region and the place within it, by number if it is an array of barriers.
    pub(crate) fn shared_name(&self, offset: u32) -> String {
        match self.kernel.region_at(offset) {
            Some(region) if region.align == 8 && region.bytes.is_multiple_of(8) && offset.is_multiple_of(8) => {
                format!("{}[{}]", region.name, (offset - region.offset) / 8)
            }
            Some(region) => format!("{}+{}", region.name, offset - region.offset),
            None => format!("byte {offset}, in no region"),
        }
    }
}

/// Whether the instruction is a wait, followed by a branch back to it while it fails.
fn spins(kernel: &Kernel, labels: &[usize], at: usize) -> bool {
    let Op::Barrier(Barrier::TryWait { done, .. }) = &kernel.body[at].op else { return false };
    let again = Some(Guard { pred: *done, negated: true });
    match kernel.body.get(at + 1) {
        Some(Instr { guard, op: Op::Control(Control::Branch { target, .. }), .. }) if *guard == again => {
            let start = labels[target.0 as usize];
            let is_label = |instr: &Instr| matches!(instr.op, Op::Control(Control::Label(_)));
            kernel.body[at].guard.is_none() && start < at && kernel.body[start..at].iter().all(is_label)
        }
        _ => false,
    }
}

fn unit(kernel: &Kernel, global: bool) -> u32 {
    let bytes = |instr: &Instr| match &instr.op {
        Op::Memory(Memory::Load { space, width, dsts: regs, .. })
        | Op::Memory(Memory::Store { space, width, srcs: regs, .. })
            if (*space == Space::Global) == global =>
        {
            Some(width.bytes() * regs.len() as u32)
        }
        Op::Memory(Memory::Atomic { space, ty, .. }) if (*space == Space::Global) == global => {
            Some(if ty.bank() == Bank::B64 { 8 } else { 4 })
        }
        Op::Copy(ptx::instr::AsyncCopy::ThreadCopy { bytes, .. }) => Some(*bytes),
        Op::Copy(ptx::instr::AsyncCopy::StoreAsync { srcs, .. }) if !global => Some(4 * srcs.len() as u32),
        Op::Barrier(Barrier::Init { .. }) if !global => Some(8),
        _ => None,
    };
    kernel.body.iter().filter_map(bytes).min().unwrap_or(16).min(16)
}
