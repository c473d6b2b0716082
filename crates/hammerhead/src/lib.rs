#![doc = include_str!("../README.md")]
//!
//! # The modules
//!
//! [`Problem`] says what to compute and [`Config`] how; a [`Backend`] computes. They, and all other words of the
//! operation, are those of the crate `hammerhead-op`. Here is the front door: an [`Engine`] loads weights and runs
//! them, [`Experts`] and [`Mlp`] are whole layers, [`Fp8Linear`] is what stands beside them in mixed models, a [`Plan`]
//! is how, [`tuning`] is what was measured to be better than the plan, [`backends`] lists who computes, and
//! [`gpu::Queue`] computes on tensors that are on a GPU already.

pub mod backends;
mod checkpoint;
mod engine;
pub mod feed_forward;
mod fp8;
mod layers;
pub mod machine;
mod memory;
mod plan;
mod planner;
mod queue;
mod scaling;
pub mod speeds;
mod steady;
pub mod tuning;

pub use checkpoint::{ExpertSelection, declared_gate, weights_of};
pub use engine::{BACKEND_VARIABLE, Engine, Layer, Options};
pub use fp8::Fp8Linear;
pub use layers::{Experts, LayerOptions, Mlp};
pub use plan::{Basis, Considered, Plan};

pub use op::operands::expect_finite;
pub use op::{
    Activation, Activations, Adapted, Adapter, Adapters, Arithmetic, Backend, Config, Cost, Epilogue, Error,
    ExpertWeights, Gate, Ids, Intermediate, LowRank, MlpWeights, Output, Own, Precision, Problem, Request, Result,
    Routed, Router, Schedule, Scoring, Setting, Shape, SharedWeights, Strategy, Streaming, Target, Team, Tile, Weights,
    Whole, Workers, bound, interrupt, layer_reference, precision, reference, routing,
};
pub use {cpu, format};

/// Computing on tensors that are on a GPU already. The kernels and the driver are the crate `hammerhead-gpu`.
pub mod gpu {
    pub use crate::queue::Queue;
    pub use ::gpu::host::DeviceRouting;
    pub use ::gpu::loaded::DeviceAdapters;
    pub use ::gpu::trial::tried_by;
    pub use ::gpu::{Cuda, DeviceOutput, DeviceTokens};
}

/// The examples of the book's page on Rust, compiled with the others.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct BookOnRust;
