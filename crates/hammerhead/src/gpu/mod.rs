//! The GPU: kernels as Rust functions that build instructions, and two backends that run them.
//!
//! `sm90` are the products, in every strategy, and `join` is what two passes need besides; all are plain functions from a
//! config to a [`ptx::Kernel`]. `pack` lays weights out for them, `expand` makes of tokens what the tensor cores
//! take, and `gating` is the arithmetic of the gate. `multiply` cuts a problem's products into
//! launches of those kernels, `launches` puts the expansion before them, and `model` says which configurations are legal and
//! what they should cost. `queue` computes on memory of the caller's and `clock` times that.
//!
//! Two devices run the launches: `cuda` through the driver (`driver`), and `simulated` on the CPU, instruction by
//! instruction, which needs no GPU and finds faults that a GPU would hide; `mutations` proves that it does. The simulator is behind the feature `sim`: it
//! serves tests and the command line, and a program that embeds this crate should not have to build it.

pub mod clock;
pub mod cuda;
pub mod driver;
pub mod expand;
pub mod gating;
pub mod join;
mod launches;
mod model;
pub mod multiply;
#[cfg(feature = "sim")]
pub mod mutations;
pub mod pack;
mod queue;
#[cfg(feature = "sim")]
pub mod simulated;
pub mod sm90;

pub use cuda::Cuda;
pub use model::{kernel_config, kernels};
pub use pack::{PackedGroup, PackedMatrix};
pub use queue::{DeviceOutput, DeviceTokens, Queue};
#[cfg(feature = "sim")]
pub use simulated::Simulated;

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
    /// Several of them.
    Maps(Vec<TensorMap>),
    /// A table.
    Words(Vec<u32>),
}

/// One of the kernels, in one of its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The products.
    Multiply(sm90::Config),
    /// The gate over sums that went through memory.
    Join(join::Config),
    /// Tokens as the products take them.
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
    /// Which kernel.
    pub which: Which,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// One argument for each parameter.
    pub arguments: Vec<Argument>,
    /// Whether the kernel may start while the one before it still runs: it waits itself for what that one writes.
    pub overlapping: bool,
}
