//! `hammerhead trial`: the process in which another one has its ways of computing on a GPU tried. Not for people.

use std::io;

use clap::Args as ClapArgs;
use gpu::Cuda;

use crate::{Error, Result};

/// Try ways of computing on a GPU for another process, which asks for them line by line
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The device's number
    device: usize,
}

/// Has this program's own ways tried by itself.
pub fn by_this_program() {
    if let Ok(program) = std::env::current_exe() {
        gpu::trial::tried_by(program, ["trial".into()]);
    }
}

/// Answers until nobody asks any more.
pub fn trial(args: &Args) -> Result<()> {
    let served = Cuda::on(args.device)?.serve_trials(io::stdout().lock());
    served.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::PipeClosed,
        _ => Error::Stdout(error),
    })
}
