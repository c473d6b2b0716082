//! The GPU: kernels as Rust functions that build instructions, and two backends that run them.
//!
//! `families` has a folder per architecture with its products in every strategy; `expand` makes of tokens what the tensor cores take,
//! `join` is what two passes need besides, and `gating` is the arithmetic of the gate: all are plain functions from a
//! config to a [`ptx::Kernel`]. `pack` lays weights out for them. `choice` says which kernel a configuration means and `model` which configurations are
//! legal and what they should cost. `expansion` and `multiply` cut a problem into launches, and `launches` puts one before the other.
//!
//! Two devices run the launches: [`Cuda`] through NVIDIA's driver (`driver`, `device`; `queue` computes on memory of the caller's), and
//! `simulated` on the CPU, instruction by instruction, which needs no GPU and finds faults that a GPU would hide. The simulator is behind the
//! feature `sim`: it serves tests and the command line, and a program that embeds this crate should not have to build it.

pub mod choice;
pub mod cuda;
pub mod device;
pub mod driver;
pub mod expand;
pub mod expansion;
pub mod families;
pub mod gating;
pub mod join;
mod launch;
pub mod launches;
mod model;
pub mod multiply;
mod operands;
pub mod pack;
mod queue;
#[cfg(feature = "sim")]
pub mod simulated;

pub use cuda::Cuda;
pub use launch::{Argument, KernelSpec, Launch};
pub use model::kernels;
pub use operands::{DeviceOutput, DeviceTokens};
pub use pack::{PackedGroup, PackedMatrix};
pub use queue::{LaunchQueue, Prepared};
#[cfg(feature = "sim")]
pub use simulated::Simulated;
