//! Runs GPU kernels without a GPU.

mod arith;
mod barrier;
mod clock;
mod deadlock;
mod error;
mod exec;
mod explore;
mod flight;
mod launch;
mod machine;
mod memory;
pub mod mutate;
mod profile;
mod program;
mod race;
mod schedule;
mod tensor_core;
mod tma;
mod warp;

pub use error::{Access, Fault, FaultKind, Place, Site, Waiting};
pub use explore::{Finding, explore};
pub use launch::{Arg, Gpu, Launch, Limits};
pub use memory::Buffer;
pub use profile::Profile;
pub use schedule::Schedule;
