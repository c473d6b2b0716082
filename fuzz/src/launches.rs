//! What a fuzzer calls with launch files, which say how a stranger's kernel is run. The reader is the command's own, by
//! its sources: a program has no library. Errors are fine. Panics are not, nor memory that the file does not have.

use std::path::Path;

use ptx::parse::{Module, Shape};
use sim::Buffer;

#[path = "../../crates/cli/src/check/arrays.rs"]
#[allow(dead_code)]
mod arrays;
#[path = "../../crates/cli/src/check/launch.rs"]
#[allow(dead_code)]
mod launch;

use launch::Launch;

/// What a fuzzer calls with bytes.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 1] = [("launch", launch)];

/// As the command has it: of its reasons to give up, the one that the reader knows.
#[derive(Debug)]
pub enum Error {
    /// The launch cannot be made.
    CannotCheck {
        /// Why not.
        what: String,
    },
}

/// What the reader gives.
pub type Result<T> = std::result::Result<T, Error>;

/// The bytes are a launch file; behind a zero is what all files that it names hold.
pub fn launch(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, array) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
    let Ok(text) = std::str::from_utf8(text) else { return };
    let launch = match Launch::read(Path::new("launch.toml"), text, &|_| Ok(array.to_vec())) {
        Ok(launch) => launch,
        Err(error) => return said(&error),
    };
    let shape = Shape { block: launch.block, cluster: launch.cluster, dynamic_shared: launch.shared };
    let text = ".version 8.0 .target sm_80 .address_size 64 .entry k(.param .u64 p, .param .align 64 .b8 m[128]) { ret; }";
    let Ok(kernel) = Module::read(text).and_then(|module| module.kernel("k", shape)) else { return };
    // As many buffers as a file can have, without what they hold.
    let buffers = vec![Buffer { address: 1 << 40, bytes: 0 }; bytes.len()];
    if let Err(error) = launch.invocation(&kernel, &buffers) {
        said(&error);
    }
}

/// An error is one sentence.
fn said(error: &Error) {
    let Error::CannotCheck { what } = error;
    assert!(!what.is_empty() && !what.contains('\n') && what.len() < 100_000, "{what}");
}
