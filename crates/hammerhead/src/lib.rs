#![doc = include_str!("../../../README.md")]
//!
//! # The rooms
//!
//! [`Problem`] says what to compute and [`Config`] how. A [`backend::Backend`] answers which configurations
//! are legal, lays weights out and runs. [`Plan`] chooses, and believes [`tuning`] where that knows better. [`mod@reference`] is the operation in its simplest form, [`bound`]
//! derives how far a backend may be from it, [`cases`] lists the problems on which that is checked, and [`verify`]
//! checks it.

pub mod backend;
pub mod bound;
pub mod cases;
mod checkpoint;
pub mod config;
pub mod cpu;
mod engine;
mod error;
mod gate;
pub mod gpu;
pub mod machine;
mod operands;
mod plan;
mod problem;
pub mod reference;
pub mod tuning;
pub mod verify;

pub use backend::{Backend, Cost};
pub use checkpoint::Experts;
pub use config::{Config, Epilogue, Request, Schedule, Strategy, Tile};
pub use engine::{BACKEND_VARIABLE, Engine, Layer, Options};
pub use error::{Error, Result};
pub use format;
pub use gate::Gate;
pub use operands::{Activations, Weights};
pub use plan::{Considered, Plan, Source};
pub use problem::{Activation, Output, Problem, Shape};
