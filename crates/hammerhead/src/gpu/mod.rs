//! The GPU: kernels as Rust functions that build instructions, and two backends that run them.
//!
//! `sm90` is the GEMM and `join` what is made of its sums; both are plain functions from a config to a [`ptx::Kernel`].
//! `pack` lays weights out for them and `expand` (on the device) or `tokens` (on the host) makes of any activations what the
//! tensor cores take. `two_pass` cuts a problem into launches
//! of those kernels and `model` says which configurations are legal and what they should cost.
//!
//! Two devices run the launches: `cuda` through the driver (`driver`), and `simulated` on the CPU, instruction by
//! instruction, which needs no GPU and finds faults that a GPU would hide; `mutations` proves that it does. The simulator is behind the feature `sim`: it
//! serves tests and the command line, and a program that embeds this crate should not have to build it.

pub mod cuda;
pub mod driver;
pub mod expand;
pub mod join;
mod model;
#[cfg(feature = "sim")]
pub mod mutations;
pub mod pack;
#[cfg(feature = "sim")]
pub mod simulated;
pub mod sm90;
mod tokens;
mod two_pass;

pub use cuda::Cuda;
pub use model::kernels;
#[cfg(feature = "sim")]
pub use simulated::Simulated;
pub use two_pass::{PackedGroup, PackedMatrix};

use ptx::Kernel;
use ptx::tensor_map::TensorMap;

use crate::Result;

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// An address in the device's memory.
    Pointer(u64),
    /// A whole number.
    U32(u32),
    /// A large whole number.
    U64(u64),
    /// A number.
    F32(f32),
    /// A tensor in the device's memory.
    Map(TensorMap),
}

/// One of the kernels, in one of its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The GEMM.
    Multiply(sm90::Config),
    /// The gate over its sums.
    Join(join::Config),
    /// Tokens as the GEMM takes them.
    Expand(expand::Config),
}

impl Which {
    /// Builds it.
    pub fn build(self) -> Result<Kernel> {
        Ok(match self {
            Which::Multiply(config) => sm90::kernel(config)?,
            Which::Join(config) => join::kernel(config)?,
            Which::Expand(config) => expand::kernel(config)?,
        })
    }
}

/// A kernel with its grid and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The kernel.
    pub which: Which,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// One for each of its parameters.
    pub arguments: Vec<Argument>,
    /// Whether it may start before its predecessor has ended. Such a kernel waits by itself (`griddepcontrol.wait`) before it
    /// touches what others write or read.
    pub overlapping: bool,
}
