//! The rules a kernel can break, and where it did. Each variant is one rule; its text says what was found and what the
//! hardware takes.

use std::fmt;

use thiserror::Error;

use crate::instr::CtaGroup;
use crate::target::{Feature, Target};
use crate::types::{Bank, DataType, RegId, Scope, Space};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Rule {
    /// An operand is in a register of the wrong width.
    #[error("{what} is {found}, a register of {} bits; it wants {wanted}", found.bank.bits())]
    Bank {
        /// Which operand.
        what: &'static str,
        /// The register.
        found: RegId,
        /// The bank, or the banks, in words.
        wanted: &'static str,
    },
    /// A register that the kernel does not declare.
    #[error("{found} is used, but the kernel declares {declared} registers of that bank")]
    Undeclared {
        /// The register.
        found: RegId,
        /// How many the bank has.
        declared: u32,
    },
    /// A literal of a type that PTX has no literals for.
    #[error("PTX has no literals of type {ty:?}; put the bits into a register with `Builder::bits`")]
    NoLiteral {
        /// The type.
        ty: DataType,
    },
    /// A literal with more bits than its type.
    #[error("the literal {found:#x} does not fit the {} bits of {ty:?}", ty.bank().bits())]
    LiteralWidth {
        /// The bits.
        found: u64,
        /// The type.
        ty: DataType,
    },
    /// An operation that does not exist for this type.
    #[error("there is no {op} for {ty:?}; it takes {wanted}")]
    NoSuchForm {
        /// The operation.
        op: String,
        /// The type asked for.
        ty: DataType,
        /// The types it has.
        wanted: &'static str,
    },
    /// A conversion that one `cvt` does not do.
    #[error("no single conversion leads from {from:?} to {to:?} with that rounding; see `Convert` for those that do")]
    NoSuchConversion {
        /// From.
        from: DataType,
        /// To.
        to: DataType,
    },
    /// A wrong number of registers or coordinates.
    #[error("{found} {what}; expected {wanted}")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        wanted: &'static str,
    },
    /// Copies through one tensor map that disagree about its dimensions.
    #[error(
        "{found} coordinates for tensor map {name:?}, which {first} coordinates address before; a map has one rank"
    )]
    MixedRanks {
        /// The parameter.
        name: String,
        /// Coordinates of the first copy through it.
        first: usize,
        /// Coordinates of this one.
        found: usize,
    },
    /// A number outside of what the hardware takes.
    #[error("{what}: {found}; expected {wanted}")]
    Value {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it may be.
        wanted: &'static str,
    },
    /// An instruction that the target does not have.
    #[error("{what} exists on {} only; this kernel is for {found}", feature.targets())]
    Feature {
        /// Which instruction.
        what: &'static str,
        /// What the target would have to have.
        feature: Feature,
        /// The kernel's target.
        found: Target,
    },
    /// A window of memory that the instruction cannot address.
    #[error("{what} cannot be in {found:?} memory; it wants {wanted}")]
    Window {
        /// Which address.
        what: &'static str,
        /// The window.
        found: Space,
        /// The windows it may be in.
        wanted: &'static str,
    },
    /// A scope that the instruction does not have.
    #[error("{what} cannot have {found:?} scope; it has block or cluster scope")]
    BarrierScope {
        /// Which instruction.
        what: &'static str,
        /// The scope.
        found: Scope,
    },
    /// An address known to be misaligned.
    #[error("{what} is at {found} modulo {wanted}; it must be a multiple of {wanted}")]
    Misaligned {
        /// Which address.
        what: &'static str,
        /// What is left over.
        found: u64,
        /// The alignment it needs.
        wanted: u64,
    },
    /// Shared memory starts at a less round address than an access needs.
    #[error(
        "{what} must be a multiple of {wanted}, but shared memory starts at a multiple of {found}; align its region"
    )]
    RegionAlignment {
        /// Which address.
        what: &'static str,
        /// What the start of shared memory is a multiple of.
        found: u32,
        /// The alignment needed.
        wanted: u64,
    },
    /// A fixed shared address outside every region.
    #[error("{what} takes shared bytes {start}..{end}, which no region holds in whole")]
    OutOfRegion {
        /// Which access.
        what: &'static str,
        /// First byte.
        start: i64,
        /// One past the last byte.
        end: i64,
    },
    /// A multiplication shape the tensor cores do not have.
    #[error("a block-scaled tile has {m} rows and {n} columns (cta_group {group:?}); expected {wanted}")]
    BlockScaledTile {
        /// One block or a pair.
        group: CtaGroup,
        /// Rows.
        m: u32,
        /// Columns.
        n: u32,
        /// What there is instead.
        wanted: &'static str,
    },
    /// The same register twice where each must be its own.
    #[error("{found} appears twice among {what}; each needs a register of its own")]
    Repeated {
        /// Among what.
        what: &'static str,
        /// The register.
        found: RegId,
    },
    /// tcgen05 instructions of both group sizes in one kernel.
    #[error("cta_group {found:?} in a kernel that uses {first:?} before; all tcgen05 instructions must agree")]
    MixedGroups {
        /// The first one met.
        first: CtaGroup,
        /// The other one.
        found: CtaGroup,
    },
    /// A pair of blocks without a cluster that has one.
    #[error("cta_group::2 pairs neighbouring blocks of a cluster; give the kernel a cluster of even size along x")]
    NoPair,
    /// `setmaxnreg` where the assembler would ignore it.
    #[error("setmaxnreg is ignored unless the registers at launch are known: set `LaunchBounds::min_blocks`")]
    UnknownBudget,
    /// A parameter that is not there.
    #[error("parameter {found} is read, but the kernel declares {declared}")]
    NoSuchParam {
        /// Its number.
        found: u32,
        /// How many there are.
        declared: usize,
    },
    /// A parameter read as something it is not.
    #[error("parameter {name:?} is {found}; it wants {wanted}")]
    ParamKind {
        /// Its name.
        name: String,
        /// What reads it.
        found: &'static str,
        /// What it wants.
        wanted: &'static str,
    },
    /// A label in two places.
    #[error("label {label} is placed twice")]
    LabelPlacedTwice {
        /// The label's number.
        label: u32,
    },
    /// A branch to a label that is nowhere in the body.
    #[error("a branch goes to label {label}, which is never placed")]
    LabelMissing {
        /// The label's number.
        label: u32,
    },
    /// A guard on a label.
    #[error("a label cannot be guarded; branch around it")]
    GuardedLabel,
    /// A guard on what is several instructions to the assembler.
    #[error("a question about an answer of launch control cannot be guarded; branch around it")]
    GuardedQuestion,
    /// A conversion to or from e2m1 with a guard.
    #[error("a conversion to or from e2m1 cannot be guarded; branch around it")]
    GuardedBytes,
    /// A body that does not end with an unguarded `exit`.
    #[error("the last instruction is not an unguarded exit; threads would run off the end")]
    NoExit,
    /// A region of shared memory that overlaps its neighbour or is not where its alignment says.
    #[error("shared region {name:?} at {offset} overlaps the one before it or is no multiple of its alignment {align}")]
    RegionPlace {
        /// The region.
        name: String,
        /// Its first byte.
        offset: u32,
        /// Its alignment.
        align: u32,
    },
    /// An instruction that was read and is not understood.
    #[error("{opcode} is not understood{}", wanted.as_ref().map(|wanted| format!(": expected {wanted}")).unwrap_or_default())]
    NotUnderstood {
        /// Its opcode with all modifiers.
        opcode: String,
        /// What would have been understood in its place, where that can be said.
        wanted: Option<String>,
    },
    /// More registers than a multiprocessor has.
    #[error("{threads} threads of {registers} registers (in steps of 8) exceed the 65536 of a multiprocessor")]
    RegisterFile {
        /// Threads that are resident together.
        threads: u32,
        /// Registers each.
        registers: u32,
    },
}

/// A bank in words, for [`Rule::Bank`].
pub(crate) fn bank_name(bank: Bank) -> &'static str {
    match bank {
        Bank::Pred => "a predicate",
        Bank::B16 => "a 16-bit register",
        Bank::B32 => "a 32-bit register",
        Bank::B64 => "a 64-bit register",
    }
}

/// An instruction of a kernel, named so that a person finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The phases around it, outermost first, joined by `/`.
    pub phase: String,
    /// Its position in the body.
    pub at: usize,
    /// The beginning of its text.
    pub text: String,
}

/// A broken rule, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The kernel's name.
    pub kernel: String,
    /// The instruction; `None` where the kernel as a whole is at fault.
    pub place: Option<Place>,
    /// The rule.
    pub rule: Rule,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(Place { phase, at, text }) => write!(f, "{phase}, instruction {at} ({text}): {}", self.rule),
            None => write!(f, "kernel {}: {}", self.kernel, self.rule),
        }
    }
}
