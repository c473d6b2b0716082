//! What a fuzzer calls with launch files, which say how a stranger's kernel is run. The reader is the command's own, by
//! its sources: a program has no library. Errors are fine. Panics are not, nor memory that the file does not have.

use std::path::Path;
use std::sync::OnceLock;

use ptx::Kernel;
use ptx::parse::{Module, Shape};
use sim::Buffer;

#[path = "../../crates/cli/src/check/args.rs"]
mod args;
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
    // More buffers than a file of the fuzzer's can have, without what they hold.
    static BUFFERS: [Buffer; 4096] = [Buffer { address: 1 << 40, bytes: 0 }; 4096];
    if let Err(error) = launch.invocation(kernel(), &BUFFERS) {
        said(&error);
    }
}

/// What is launched: a kernel with a pointer and a structure, read once.
fn kernel() -> &'static Kernel {
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    KERNEL.get_or_init(|| {
        let text = ".version 8.0 .target sm_80 .address_size 64
            .entry k(.param .u64 p, .param .align 64 .b8 m[512]) { ret; }";
        let module = Module::read(text);
        let shape = Shape { block: Some([32, 1, 1]), ..Shape::default() };
        module.and_then(|module| module.kernel("k", shape)).expect("the text is right")
    })
}

/// An error is one sentence.
fn said(error: &Error) {
    let Error::CannotCheck { what } = error;
    assert!(!what.is_empty() && !what.contains('\n') && what.len() < 100_000, "{what}");
}
