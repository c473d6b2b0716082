//! What kernels of every family are made of: the same instructions, written once.
//!
//! - [`table`]: the groups of a launch that the host knows, in a table among a kernel's parameters;
//! - [`experts`]: those that only the device knows, the experts of a layer, in a layout in its memory;
//! - [`direct`]: those of so few tokens that a block finds its tiles without a layout;
//! - [`low_rank`]: what low-rank adapters add to the second product of those;
//! - `groups`, `owner`: either of them, whose a tile is, and where its operands are;
//! - [`tokens`]: what the tensor cores are given for tokens;
//! - `slices`: codes and scales as pairs of 16-bit numbers;
//! - [`route`]: which experts a token goes to, chosen from logits;
//! - [`sum`]: what they made of it, added up;
//! - `exponential`: that and the sigmoid, for gates and routings;
//! - [`gates`]: from sums to values: scale, row factor, bias, gate;
//! - `store`: from values to C.
//!
//! How products are issued, and what surrounds that (stages, barriers, who copies), is each family's own: registers
//! were tuned per kernel.

pub mod direct;
pub mod experts;
pub(crate) mod exponential;
pub mod gates;
pub(crate) mod groups;
pub mod low_rank;
pub(crate) mod owner;
pub mod route;
pub(crate) mod slices;
pub(crate) mod store;
pub mod sum;
pub mod table;
pub mod tokens;

/// The row of an entry that is nobody's.
pub const NOBODY: u32 = u32::MAX;
