//! Kernels that are printed and assembled: small ones that do something, and one per family of instructions that holds
//! every form the checker accepts.

mod assemble;
mod block_scaled;
mod cluster;
mod families;
mod multiply;
mod print;
mod read;
#[path = "../../same/mod.rs"]
mod same;
mod zoo;

use ptx::assemble::Assembler;
use ptx::{Error, Kernel};

/// The assembler, or a visible word that there is none. With `HAMMERHEAD_REQUIRE_PTXAS=1` that is a failure.
pub fn assembler() -> Option<Assembler> {
    match Assembler::find(None) {
        Ok(assembler) => Some(assembler),
        Err(error) => {
            let required = std::env::var("HAMMERHEAD_REQUIRE_PTXAS").is_ok_and(|value| value == "1");
            assert!(!required, "{error}");
            eprintln!("NOT RUN: {error}");
            None
        }
    }
}

/// Every kernel, by name.
pub fn all() -> Vec<(&'static str, Result<Kernel, Error>)> {
    vec![
        ("multiply", multiply::kernel()),
        ("cluster", cluster::kernel()),
        ("zoo", zoo::kernel()),
        ("block_scaled", block_scaled::kernel()),
    ]
}
