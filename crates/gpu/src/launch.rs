//! One launch of one kernel, as a value: what a device needs to know, and nothing of any device.

use std::any::{Any, TypeId};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ptx::Kernel;
use ptx::tensor_map::TensorMap;

use op::{Error, Result};

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

/// Which kernel, in which of its sizes: a value that can be compared, and that builds it.
pub trait Spec: Copy + fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// Builds the kernel.
    fn kernel(self) -> Result<Kernel, ptx::Error>;
}

/// Any kernel's [`Spec`]. Nobody here knows who brings kernels: architectures and phases do, each its own.
#[derive(Clone)]
pub struct KernelSpec(Arc<dyn AnySpec>);

impl KernelSpec {
    /// Builds the kernel.
    pub fn build(&self) -> Result<Kernel> {
        self.0.build().map_err(|error| Error::Kernel(error.into()))
    }

    /// The spec, if it is of this kind.
    pub fn downcast<S: Spec>(&self) -> Option<S> {
        self.0.as_any().downcast_ref().copied()
    }
}

impl<S: Spec> From<S> for KernelSpec {
    fn from(spec: S) -> Self {
        Self(Arc::new(spec))
    }
}

impl fmt::Debug for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for KernelSpec {
    fn eq(&self, other: &Self) -> bool {
        self.0.same(other.0.as_any())
    }
}

impl Eq for KernelSpec {}

impl Hash for KernelSpec {
    fn hash<H: Hasher>(&self, mut state: &mut H) {
        self.0.hash(&mut state);
    }
}

/// [`Spec`] without its type.
trait AnySpec: fmt::Debug + Send + Sync {
    fn build(&self) -> Result<Kernel, ptx::Error>;
    fn same(&self, other: &dyn Any) -> bool;
    fn hash(&self, state: &mut dyn Hasher);
    fn as_any(&self) -> &dyn Any;
}

impl<S: Spec> AnySpec for S {
    fn build(&self) -> Result<Kernel, ptx::Error> {
        self.kernel()
    }

    fn same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }

    fn hash(&self, mut state: &mut dyn Hasher) {
        (TypeId::of::<S>(), self).hash(&mut state);
    }

    fn as_any(&self) -> &dyn Any {
        self
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
    /// Whether blocks take tiles at a stride of the grid: fewer of them compute as much, and no more are wanted than
    /// run at the same time.
    pub strided: bool,
}
