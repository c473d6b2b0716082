//! The kernels these tests print and assemble: small, and between them they use every family of instructions.

mod block_scaled;
mod cluster;
mod multiply;
mod zoo;

use ptx::{Error, Kernel};

/// Every kernel, by name.
pub fn all() -> Vec<(&'static str, Result<Kernel, Error>)> {
    vec![
        ("multiply", multiply::kernel()),
        ("cluster", cluster::kernel()),
        ("zoo", zoo::kernel()),
        ("block_scaled", block_scaled::kernel()),
    ]
}
