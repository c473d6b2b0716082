//! The words of the operation `C = gate(α₁·A·B1ᵀ) ∘ (α₂·A·B2ᵀ)` on NVFP4 data, and what is true of it on any machine.
//!
//! [`Problem`] says what to compute and [`Config`] how. A [`Backend`] answers which configurations are legal, lays
//! weights out and runs; [`Call`] is how it is run. [`mod@reference`] is the operation in its simplest form, in double
//! precision, and [`bound`] derives how far a backend may be from it, given its [`Arithmetic`]. No instruction set, no
//! driver and no thread lives here: a [`Team`] is whatever threads it is given.
//!
//! Programs use the crate `hammerhead`, which plans, loads and runs; this one is for those who compute.
//!
//! ```
//! use format::Matrix; // the crate `hammerhead-format`
//! use hammerhead_op::reference::Reference;
//! use hammerhead_op::{Gate, Weights};
//!
//! // Rows of 16 ones: code 2 is 1.0, two to a byte, and the scale 0x38 is 1.0 too.
//! let ones = |rows: usize| Matrix::new(rows, 16, vec![0x22; 8 * rows], vec![0x38; rows], 1.0);
//! let (tokens, weights) = (ones(3)?.into(), Weights::gated(ones(2)?, ones(2)?)?);
//! let reference = Reference::new(&tokens, &weights, Gate::Silu);
//! let element = reference.element(&reference.token(2), &reference.column(1));
//! assert_eq!(element.gate.value, 16.0);
//! # Ok::<(), hammerhead_op::Error>(())
//! ```

pub mod adapters;
pub mod arithmetic;
pub mod backend;
pub mod bound;
pub mod cache;
mod call;
mod config;
mod error;
pub mod fp8;
pub mod gate;
mod intermediate;
pub mod interrupt;
mod layer;
pub mod layer_reference;
pub mod mlp;
pub mod operands;
mod own;
pub mod precision;
mod problem;
pub mod reference;
mod request;
pub mod routing;
mod shape;
mod target;
mod team;
mod whole;

pub use adapters::{Adapted, Adapter, Adapters, LowRank, Projection};
pub use arithmetic::Arithmetic;
pub use backend::{Addend, Backend, Cost, Operands, PackedWeights, Phase};
pub use call::{Call, check_weights};
pub use config::{Config, Epilogue, Schedule, Strategy, Tile};
pub use error::{Error, Result};
pub use gate::Gate;
pub use intermediate::Intermediate;
pub use layer::{Choose, HostCall, HostRows, LayerOperands, LayerSpec, LoadedLayer, Split, Streaming};
pub use mlp::{ExpertWeights, MlpWeights, SharedWeights};
pub use operands::{Activations, Weights};
pub use own::{Own, Setting};
pub use precision::Precision;
pub use problem::{Activation, Output, Problem};
pub use request::Request;
pub use routing::{Groups, Ids, Routed, Router, Scoring};
pub use shape::Shape;
pub use target::Target;
pub use team::{Alone, Team, Workers};
pub use whole::Whole;
