//! The tank: how an optimisation earns its place.
//!
//! A claim is written down first, judged by sharks of distinct temperaments, checked for correctness before any clock
//! starts, timed in pairs against the champion, and remembered in a ledger that says who was right.

pub mod contestant;
pub mod entry;
mod error;
pub mod referee;
pub mod sitting;

pub use error::{Error, Result};
