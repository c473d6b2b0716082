//! A finished kernel: plain data that is printed, checked and simulated.
//!
//! The body is a flat list of instructions. Labels are instructions too, so removing or inserting one never disturbs
//! the branches; [`Kernel::labels`] gives the position of each. Everything a launch must know (threads, cluster, shared
//! bytes, parameters in order) is here as well, so nothing about the kernel is written down twice.
//!
//! To execute one: every thread starts at `body[0]` with undefined registers ([`Kernel::registers`] says how many of
//! each bank) and a program counter of its own. It executes `body[pc]` if the guard allows it, and goes on to `pc + 1`,
//! or to `labels()[target]` on a taken branch, until it meets `Exit`; the builder ends every kernel with one. Lanes of
//! a warp that diverged meet again when those behind catch up: run the lanes with the smallest program counter first.

use crate::error::Error;
use crate::instr::{Control, Instr, Label, Op};
use crate::rule::{Rule, Violation};
use crate::target::Target;
use crate::types::{Bank, DataType, PhaseId};

/// What a kernel parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamType {
    /// A scalar: `U32`, `S32`, `F32` or `U64`.
    Scalar(DataType),
    /// An address of global memory.
    Pointer,
    /// A 128-byte tensor map, passed by value and aligned to 64.
    TensorMap,
    /// So many tensor maps, one after another.
    TensorMaps(u32),
    /// So many 32-bit words, a table that the kernel looks things up in.
    Words(u32),
    /// So many bytes that mean what the kernel makes of them, tensor maps among them.
    Bytes {
        /// How many.
        size: u32,
        /// What their place is a multiple of.
        align: u32,
    },
}

impl ParamType {
    /// Bytes that a parameter takes, and what its place must be a multiple of.
    pub fn layout(self) -> (u64, u64) {
        match self {
            ParamType::Scalar(ty) => {
                let bytes = u64::from(ty.bank().bits().max(8) / 8);
                (bytes, bytes)
            }
            ParamType::Pointer => (8, 8),
            ParamType::TensorMap => (128, 64),
            ParamType::TensorMaps(count) => (128 * u64::from(count), 64),
            ParamType::Words(count) => (4 * u64::from(count), 16),
            ParamType::Bytes { size, align } => (size.into(), u64::from(align).max(1)),
        }
    }
}

/// A kernel parameter. Arguments are given in the order of declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What it is.
    pub ty: ParamType,
}

/// A named part of a kernel's shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// First byte, from the start of the kernel's shared memory.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
    /// What the offset is a multiple of.
    pub align: u32,
    /// Whether it is zero when a block begins, as only the system's own part is.
    pub zeroed: bool,
}

/// Where a variable is that is no register and not in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableSpace {
    /// Device memory: one for all threads.
    Global,
    /// The same, which no thread writes.
    Constant,
    /// One for each thread.
    Local,
}

/// A variable with an address of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub space: VariableSpace,
    /// Size in bytes.
    pub bytes: u32,
    /// What its address is a multiple of.
    pub align: u32,
    /// Its first bytes. Those behind them are zero, or of a local one anything.
    pub initial: Vec<u8>,
}

/// A named stretch of a kernel, within another one unless it is the outermost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// The phase around it.
    pub parent: Option<PhaseId>,
}

/// How a kernel may be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchBounds {
    /// Threads per block, exactly (one dimension).
    pub threads: u32,
    /// Blocks per cluster along x, y, z, exactly; `None` for a kernel without clusters.
    pub cluster: Option<[u32; 3]>,
    /// Blocks that should fit on a multiprocessor together, a hint for register allocation.
    pub min_blocks: Option<u32>,
}

/// A finished kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Entry point.
    pub name: String,
    /// The GPU it is for.
    pub target: Target,
    /// How it is launched.
    pub launch: LaunchBounds,
    /// Threads of a block along y and z; along x there are as many as that leaves of those that `launch` says.
    pub rows: [u32; 2],
    /// Its parameters, in order.
    pub params: Vec<Param>,
    /// Its shared memory, by rising offset.
    pub shared: Vec<Region>,
    /// Its variables elsewhere.
    pub variables: Vec<Variable>,
    /// How many registers each bank has, indexed by [`Bank::index`].
    pub registers: [u32; 4],
    /// Its phases; the first is the whole kernel.
    pub phases: Vec<Phase>,
    /// Its instructions.
    pub body: Vec<Instr>,
    /// Whether it was read from a text. Others' compilers answer for what is legal in it, which [`Kernel::check`]
    /// knows only in part.
    pub foreign: bool,
    /// Whether all blocks of a grid run at the same time, so that they may wait for each other.
    pub cooperative: bool,
}

impl Kernel {
    /// Threads of a block along x, y and z.
    pub fn block(&self) -> [u32; 3] {
        let [y, z] = self.rows;
        [self.launch.threads / y.saturating_mul(z).max(1), y, z]
    }

    /// Bytes of dynamic shared memory a launch must provide.
    pub fn shared_bytes(&self) -> u32 {
        self.shared.iter().map(|region| region.offset + region.bytes).max().unwrap_or(0)
    }

    /// What the start of shared memory must be a multiple of.
    pub fn shared_align(&self) -> u32 {
        self.shared.iter().map(|region| region.align).max().unwrap_or(16).max(16)
    }

    /// The region that holds a byte of shared memory.
    pub fn region_at(&self, offset: u32) -> Option<&Region> {
        self.shared.iter().find(|region| (region.offset..region.offset + region.bytes).contains(&offset))
    }

    /// Registers of one bank.
    pub fn register_count(&self, bank: Bank) -> u32 {
        self.registers[bank.index()]
    }

    /// For each label, by number, the position of its marker in the body: a branch continues there.
    pub fn labels(&self) -> Result<Vec<usize>, Error> {
        let mut places: Vec<Option<usize>> = Vec::new();
        let mut note = |label: Label, place: Option<usize>| {
            let number = label.0 as usize;
            if places.len() <= number {
                places.resize(number + 1, None);
            }
            places[number] = places[number].or(place);
        };
        for (at, instr) in self.body.iter().enumerate() {
            match instr.op {
                Op::Control(Control::Label(label)) => note(label, Some(at)),
                Op::Control(Control::Branch { target, .. }) => note(target, None),
                _ => {}
            }
        }
        let missing = |number: usize| {
            let rule = Rule::LabelMissing { label: number as u32 };
            Error::Illegal(Box::new(Violation { kernel: self.name.clone(), place: None, rule }))
        };
        places.into_iter().enumerate().map(|(number, place)| place.ok_or_else(|| missing(number))).collect()
    }

    /// The names of a phase and of those around it, outermost first, joined by `/`.
    pub fn phase_path(&self, phase: PhaseId) -> String {
        let mut names = Vec::new();
        let mut next = Some(phase);
        while let Some(phase) = next.and_then(|id| self.phases.get(id.0 as usize)) {
            names.push(phase.name.as_str());
            next = phase.parent;
        }
        names.reverse();
        names.join("/")
    }
}
