//! One launch of one kernel, as a value: what a device needs to know, and nothing of any device.

use ptx::Kernel;
use ptx::tensor_map::TensorMap;

use op::{Error, Result};

use super::families::sm90::kernel;
use super::{expand, join};

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
pub enum KernelSpec {
    /// The products.
    Multiply(kernel::MultiplySpec),
    /// The gate over sums that went through memory.
    Join(join::JoinSpec),
    /// Tokens as the products take them.
    Expand(expand::ExpandSpec),
}

impl KernelSpec {
    /// Builds it.
    pub fn build(self) -> Result<Kernel> {
        match self {
            KernelSpec::Multiply(config) => kernel::kernel(config),
            KernelSpec::Join(config) => join::kernel(config),
            KernelSpec::Expand(config) => expand::kernel(config),
        }
        .map_err(|error| Error::Kernel(error.into()))
    }
}

/// A kernel with its grid and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The kernel.
    pub kernel: KernelSpec,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// One argument for each parameter.
    pub arguments: Vec<Argument>,
    /// Whether the kernel may start while the one before it still runs: it waits itself for what that one writes.
    pub overlapping: bool,
}
