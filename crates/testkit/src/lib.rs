//! What Hammerhead is tested and measured with: for its tests, its command line and its referee, never in a user's
//! build.
//!
//! [`cases`] is one list of problems, each with its reason, and [`verify`] the one tester that every backend passes on
//! them; [`moe`] is the same for layers of experts, and [`fp8`] for plain products with FP8 weights. [`clock`] times a
//! GPU, [`counters`] counts what kernels do in the simulator, [`assembled`] says what they take of a device, and
//! [`mutations`] breaks them on purpose. [`stages`] is the `main` of the examples that check a GPU.

pub mod assembled;
pub mod cases;
pub mod clock;
pub mod counters;
pub mod experts;
pub mod fp8;
pub mod moe;
pub mod mutations;
pub mod stages;
pub mod verify;
