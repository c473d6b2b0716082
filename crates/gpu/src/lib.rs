//! The GPU: kernels as Rust functions that build instructions, and two backends that run them.
//!
//! `families` has a folder per architecture, behind one seam ([`Family`]): which configurations are legal, what they
//! should cost on a device ([`facts`]), and the launches and kernels of a problem's products. What they share stands
//! beside them: `expand` makes of tokens what the tensor cores take (`expansion` is its launches), `round` makes e4m3
//! of them where that is asked for, `join` is what two passes need besides, `phases` is what their kernels are made of,
//! and `pack` lays weights out, `fp8` those of eight bits. All kernels are plain functions from a config to a
//! [`ptx::Kernel`]. `launches` puts expansion and products together.
//!
//! Two devices run the launches: [`Cuda`] through NVIDIA's driver (`driver`, `device`; `queue` computes on memory of
//! the caller's), and `simulated` on the CPU, instruction by instruction, which needs no GPU and finds faults that a
//! GPU would hide. The simulator is behind the feature `sim`: it serves tests and the command line, and a program that
//! embeds this crate should not have to build it. `blank` is a kernel that does nothing, for whoever times others.
//!
//! Programs use the crate `hammerhead`. Here is what it loads, printed without a GPU:
//!
//! ```
//! use hammerhead_gpu::facts::Facts;
//! use hammerhead_gpu::{Family, families};
//! use op::{Activation, Error, Gate, Output, Problem, Shape}; // the crate `hammerhead-op`
//!
//! let problem = Problem::new(vec![Shape::new(128, 4096, 7168)], Gate::Silu, Activation::F16, Output::F16)?;
//! let family = families::sm90::Sm90;
//! let config = family.candidates(&problem, &Facts::h200())[0];
//! let kernels = family.kernels(&problem, &config)?;
//! assert!(kernels[0].to_ptx().contains(".target sm_90a"));
//! # Ok::<(), Error>(())
//! ```

pub mod away;
mod bell;
pub mod blank;
pub mod cuda;
pub mod device;
pub mod driver;
pub mod expand;
pub mod expansion;
pub mod experts;
pub mod facts;
pub mod families;
mod family;
pub mod foretold;
pub mod fp8;
pub mod host;
pub mod join;
mod launch;
pub mod launches;
pub mod loaded;
mod operands;
pub mod pack;
mod packed;
pub mod phases;
pub mod plan;
pub mod products;
mod queue;
pub mod round;
#[cfg(feature = "sim")]
pub mod simulated;
pub mod trial;
pub mod ways;

pub use cuda::Cuda;
pub use family::{Family, GroupOperands, Phase};
pub use foretold::Foretold;
pub use launch::{Argument, KernelSpec, Launch, Spec};
pub use operands::{DeviceOutput, DeviceTokens};
pub use queue::{LaunchQueue, Prepared};
#[cfg(feature = "sim")]
pub use simulated::Simulated;

/// The version of the kernels and of the model that prices them: the package's, and a digest of the sources by
/// `build.rs`.
pub const KERNELS: &str = env!("HAMMERHEAD_KERNELS");
