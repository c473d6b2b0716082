//! Everything that can go wrong in the tank, each with what was found and what to do about it.

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something in the tank was refused or could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation itself refused.
    #[error(transparent)]
    Operation(#[from] hammerhead::Error),

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
        path: std::path::PathBuf,
        /// The system's word.
        source: std::io::Error,
    },

    /// The champion itself cannot be run, so nobody can be compared with it.
    #[error("the champion failed: {reason}; nobody can be measured against it, see that it runs or begin with another")]
    Champion {
        /// What it did.
        reason: String,
    },
}
