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
}
