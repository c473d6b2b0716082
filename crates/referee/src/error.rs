//! Everything that can keep a referee from judging, each with what was found and what to do about it.
//!
//! None of these is a contestant's doing: what a contestant does wrong is a [`crate::contestant::Fault`].

use std::io;
use std::path::PathBuf;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why nothing could be judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The processor or a GPU refused.
    #[error(transparent)]
    Machine(#[from] op::Error),

    /// A task could not make its numbers, or say what should come of them.
    #[error(transparent)]
    Task(Box<dyn std::error::Error + Send + Sync>),

    /// A setting that nothing can be measured by.
    #[error("the setting {what} cannot be used: {reason}")]
    Settings {
        /// The setting.
        what: &'static str,
        /// Why, and what would do.
        reason: String,
    },

    /// Samples that cannot be counted.
    #[error("a process did not yield every sample, or one took no time at all; missing data is no score, sit again")]
    Samples,

    /// The operating system gave no random numbers.
    #[error("the operating system gives no random numbers ({reason}); without a fresh seed nothing can be judged")]
    Randomness {
        /// The system's word.
        reason: String,
    },

    /// A message that cannot be said or understood.
    #[error("a message of the protocol cannot be used: {reason}")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },

    /// The files in which contestants find their tensors.
    #[error(
        "cannot {what} {path:?}: {source}; contestants find their tensors there, see that memory and rights suffice"
    )]
    SharedMemory {
        /// What was tried.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },

    /// The referee's own process on a GPU, by which it is known what is no contestant's time, does not run.
    #[error("the referee's own run of an empty kernel failed: {reason}; see that kernels can be launched on the GPU")]
    Blank {
        /// What went wrong.
        reason: String,
    },

    /// A file of tensors that became shorter than it was made.
    #[error("{path:?} was cut off; only a contestant can have done that, and the referee counts it as tampering")]
    Shortened {
        /// The file.
        path: std::path::PathBuf,
    },
}
