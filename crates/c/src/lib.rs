//! The C interface: a few functions over plain pointers, so that any language can call Hammerhead.
//!
//! Its documentation for users is the header, `include/hammerhead.h`, which cbindgen writes from this crate and a test
//! keeps up to date. Behind every function stands `status::guard`: it turns errors into a status and a message that the
//! thread can ask for, and lets no panic cross the border. Everything that comes in is checked here before it becomes a
//! slice; numbers that name something (elements, gates) are plain integers, since a C caller may pass any.

mod adapters;
mod layer;
mod operands;
mod queue;
mod status;
mod threads;
mod whole;

pub use adapters::*;
pub use layer::*;
pub use operands::{
    HAMMERHEAD_BF16, HAMMERHEAD_EXPERTS_ALL, HAMMERHEAD_EXPERTS_ONLY, HAMMERHEAD_EXPERTS_SHARED, HAMMERHEAD_F16,
    HAMMERHEAD_F32, HAMMERHEAD_GATE_GELU_TANH, HAMMERHEAD_GATE_GPT_OSS, HAMMERHEAD_GATE_NONE, HAMMERHEAD_GATE_SILU,
    HAMMERHEAD_NVFP4, InputScale, Matrix, Output, Tokens, Weights,
};
pub use queue::*;
pub use status::{
    HAMMERHEAD_DEVICE, HAMMERHEAD_INTERNAL, HAMMERHEAD_INVALID, HAMMERHEAD_IO, HAMMERHEAD_MEMORY, HAMMERHEAD_OK,
    HAMMERHEAD_UNAVAILABLE, hammerhead_last_error, hammerhead_version,
};
pub use threads::{Threads, hammerhead_engine_create_on};
pub use whole::*;
