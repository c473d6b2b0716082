//! Whose kernels multiply in a layer of experts: Hopper's own, or those that run on every GPU since Ampere.

use ptx::Target;

use crate::device::Device;
use crate::families::sm80::{self, Sm80, kernel::WarpMultiplySpec};
use crate::families::sm90::{self, Sm90, kernel::MultiplySpec};
use crate::family::Family;
use crate::launch::{KernelSpec, Launch};
use crate::products::{ProductOperands, ProductShape};

/// The family that the products of a layer are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductFamily {
    /// Hopper's.
    Sm90,
    /// That of GPUs since Ampere, where a block has so many bytes of shared memory.
    Sm80 {
        /// Of a block.
        shared_bytes: u32,
    },
}

/// A kernel of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductKernel {
    /// Of Hopper's.
    Sm90(MultiplySpec),
    /// Of those since Ampere.
    Sm80(WarpMultiplySpec),
}

impl ProductFamily {
    /// The family for a device, if its own has kernels for layers of experts.
    pub fn of(device: &Device) -> Option<Self> {
        match device.family.name() {
            name if name == Sm90.name() => Some(ProductFamily::Sm90),
            name if name == Sm80.name() => Some(ProductFamily::Sm80 { shared_bytes: device.facts.shared_bytes as u32 }),
            _ => None,
        }
    }

    /// What its kernels are assembled for, and so those around them.
    pub fn target(self) -> Target {
        match self {
            ProductFamily::Sm90 => Sm90.target(),
            ProductFamily::Sm80 { .. } => Sm80.target(),
        }
    }

    /// The tokens of a tile, for so many entries, of which some product's are of several parts or none's.
    pub fn tile(self, entries: u32, experts: u32, wide: bool) -> u32 {
        match self {
            ProductFamily::Sm90 => sm90::experts::tile(entries, experts),
            ProductFamily::Sm80 { .. } => sm80::experts::tile(entries, experts, wide),
        }
    }

    /// The kernel with tiles of so many tokens, if there is one; for so many entries, if that is known.
    pub fn kernel(self, shape: &ProductShape, tile: u32, entries: Option<u32>) -> Option<ProductKernel> {
        match (self, entries) {
            (ProductFamily::Sm90, Some(entries)) => sm90::experts::kernel(shape, tile, entries).map(Into::into),
            (ProductFamily::Sm90, None) => sm90::experts::kernels(shape, tile).first().copied().map(Into::into),
            (ProductFamily::Sm80 { shared_bytes }, _) => {
                sm80::experts::kernel(self.target(), shape, tile, shared_bytes).map(Into::into)
            }
        }
    }
}

impl ProductKernel {
    /// Tokens of a tile.
    pub fn tokens(&self) -> u32 {
        match self {
            ProductKernel::Sm90(spec) => spec.tokens,
            ProductKernel::Sm80(spec) => spec.tokens,
        }
    }

    /// Whether some of a block's warps have different steps of k of the same columns, and add up their sums in the end.
    pub fn shares_k(&self) -> bool {
        match self {
            ProductKernel::Sm90(spec) => spec.shares_k(),
            ProductKernel::Sm80(spec) => spec.shares_k(),
        }
    }

    /// What it is assembled for.
    pub fn target(&self) -> Target {
        match self {
            ProductKernel::Sm90(_) => Sm90.target(),
            ProductKernel::Sm80(spec) => spec.target,
        }
    }

    /// Its launch over so many rows, of which the layout says which are whose.
    pub(super) fn launch(
        &self,
        shape: &ProductShape,
        operands: &ProductOperands,
        rows: u32,
        multiprocessors: u32,
    ) -> Launch {
        match *self {
            ProductKernel::Sm90(spec) => sm90::experts::launch(shape, spec, operands, rows, multiprocessors),
            ProductKernel::Sm80(spec) => sm80::experts::launch(shape, spec, operands, rows, multiprocessors),
        }
    }
}

impl From<MultiplySpec> for ProductKernel {
    fn from(spec: MultiplySpec) -> Self {
        ProductKernel::Sm90(spec)
    }
}

impl From<WarpMultiplySpec> for ProductKernel {
    fn from(spec: WarpMultiplySpec) -> Self {
        ProductKernel::Sm80(spec)
    }
}

impl From<ProductKernel> for KernelSpec {
    fn from(kernel: ProductKernel) -> Self {
        match kernel {
            ProductKernel::Sm90(spec) => spec.into(),
            ProductKernel::Sm80(spec) => spec.into(),
        }
    }
}
