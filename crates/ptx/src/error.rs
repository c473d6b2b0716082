//! What can be wrong with a kernel, or with the assembler it is given to, said in the words of whoever has to put it
//! right.

use thiserror::Error;

use crate::rule::Violation;

/// Why a kernel was refused, or could not be assembled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// Two parameters or two regions of shared memory have the same name.
    #[error("kernel {kernel}: two {what} are called {name:?}; give each its own name")]
    DuplicateName {
        /// The kernel.
        kernel: String,
        /// "parameters" or "shared regions".
        what: &'static str,
        /// The name in question.
        name: String,
    },
    /// A name that PTX cannot spell.
    #[error("{name:?} is not a name PTX accepts: use letters, digits and underscores, not starting with a digit")]
    BadName {
        /// The name in question.
        name: String,
    },
    /// A region of shared memory whose alignment is no power of two, or that has no bytes.
    #[error("shared region {name:?}: {bytes} bytes aligned to {align}; it needs at least one byte and a power of two")]
    BadRegion {
        /// The region.
        name: String,
        /// Its size.
        bytes: u32,
        /// Its alignment.
        align: u32,
    },
    /// A guard inside a guard.
    #[error("phase {phase:?}: an instruction takes one guard; combine the predicates, or branch with if_")]
    NestedGuard {
        /// The phase of the kernel that has it.
        phase: String,
    },
    /// A matrix descriptor or tensor map field cannot be encoded.
    #[error("{what}: {found}; expected {wanted}")]
    Field {
        /// Which field of what.
        what: &'static str,
        /// What was asked for.
        found: u64,
        /// What it must be.
        wanted: &'static str,
    },
    /// There is no assembler, or it does not run.
    #[error(
        "{tried} does not run; install it with `pip install nvidia-cuda-nvcc==13.0.*` and set HAMMERHEAD_PTXAS to its \
         nvidia/cu13/bin/ptxas"
    )]
    NoAssembler {
        /// What was tried.
        tried: String,
    },
    /// Files around the assembler could not be written or read.
    #[error("kernel {kernel} could not be handed to the assembler: {reason}; is the temporary folder writable?")]
    AssemblerIo {
        /// The kernel.
        kernel: String,
        /// What the system says.
        reason: String,
    },
    /// The assembler refuses the kernel.
    #[error("ptxas refuses kernel {kernel}:\n{lines}")]
    Assembly {
        /// The kernel.
        kernel: String,
        /// The assembler's own words.
        lines: String,
    },
    /// The kernel needs more registers than it has.
    #[error(
        "kernel {kernel} spills {stores} bytes out and {loads} in with {registers} registers; use a smaller tile, fewer \
         live values, or a larger register budget"
    )]
    Spills {
        /// The kernel.
        kernel: String,
        /// Bytes written.
        stores: u32,
        /// Bytes read.
        loads: u32,
        /// Registers per thread.
        registers: u32,
    },
    /// The assembler gave up on running multiplications asynchronously.
    #[error("kernel {kernel} loses its overlap: {warning}")]
    Serialized {
        /// The kernel.
        kernel: String,
        /// The assembler's own words.
        warning: String,
    },
    /// A text that is no PTX, or none that is understood.
    #[error("line {line}, column {column}: found `{found}`; expected {wanted}")]
    Text {
        /// Counted from one.
        line: u32,
        /// Counted from one, in characters.
        column: u32,
        /// The offending text.
        found: String,
        /// What could stand there.
        wanted: String,
    },
    /// The kernel breaks a rule of the hardware.
    #[error("{0}")]
    Illegal(Box<Violation>),
}
