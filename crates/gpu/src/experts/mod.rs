//! A layer of experts whose counts live on the device: nothing of it is read by the host, so that one captured graph serves every
//! routing of as many tokens.
//!
//! `route` chooses experts from logits, `sort` brings tokens into the order of their experts, the products are the family's with the
//! layout that `sort` leaves, and `combine` adds up what a token's experts made of it.

pub mod combine;
pub mod device;
pub mod host;
pub mod layer;
pub mod packed;
pub mod route;
pub mod sort;

/// The row of an entry that is nobody's.
pub const NOBODY: u32 = u32::MAX;
