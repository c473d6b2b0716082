//! The words of the operation `C = gate(α₁·A·B1ᵀ) ∘ (α₂·A·B2ᵀ)` on NVFP4 data, and what is true of it on any machine.
//!
//! [`Problem`] says what to compute and [`Config`] how. A [`Backend`] answers which configurations are legal, lays weights out and
//! runs; [`Call`] is how it is run. [`mod@reference`] is the operation in its simplest form, in double precision, and [`bound`] derives how far
//! a backend may be from it, given its [`Arithmetic`]. No instruction set, no driver and no thread lives here: a [`Team`] is whatever threads it is given.
//!
//! Programs use the crate `hammerhead`, which plans, loads and runs; this one is for those who compute.

pub mod arithmetic;
pub mod backend;
pub mod bound;
pub mod cache;
mod call;
mod config;
mod error;
pub mod gate;
pub mod operands;
mod problem;
pub mod reference;
mod request;
mod shape;
mod target;
mod team;

pub use arithmetic::Arithmetic;
pub use backend::{Backend, Cost, Operands, PackedWeights};
pub use call::{Call, check_weights};
pub use config::{Config, Epilogue, Schedule, Strategy, Tile};
pub use error::{Error, Result};
pub use gate::Gate;
pub use operands::{Activations, Weights};
pub use problem::{Activation, Output, Problem};
pub use request::Request;
pub use shape::Shape;
pub use target::Target;
pub use team::{Team, Workers};
