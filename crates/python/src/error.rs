//! What can go wrong, and as which of Python's exceptions it is raised.

use std::io;

use hammerhead::format;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused or could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operation's own word.
    #[error(transparent)]
    Operation(#[from] hammerhead::Error),

    /// An argument of the right type that will not do.
    #[error("{what}: {found}")]
    Value {
        /// The argument.
        what: String,
        /// What is wrong with it, and what would do.
        found: String,
    },

    /// An argument of the wrong type.
    #[error("{what}: {found}")]
    Kind {
        /// The argument.
        what: String,
        /// What it is, and what would do.
        found: String,
    },

    /// Something that Python raised, and that is passed on as it is.
    #[error(transparent)]
    Python(#[from] PyErr),
}

impl Error {
    /// An argument that will not do.
    pub fn value(what: impl Into<String>, found: impl Into<String>) -> Self {
        Error::Value { what: what.into(), found: found.into() }
    }

    /// An argument of the wrong type.
    pub fn kind(what: impl Into<String>, found: impl Into<String>) -> Self {
        Error::Kind { what: what.into(), found: found.into() }
    }
}

impl From<format::Error> for Error {
    fn from(error: format::Error) -> Self {
        Error::Operation(error.into())
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Python(raised) => raised,
            Error::Value { .. } => PyValueError::new_err(message),
            Error::Kind { .. } => PyTypeError::new_err(message),
            Error::Operation(error) => of_operation(&error, message),
        }
    }
}

fn of_operation(error: &hammerhead::Error, message: String) -> PyErr {
    use hammerhead::Error::{
        Away, Capture, DeviceMemory, Driver, Format, Jit, Kernel, Memory, Pinned, Stream, Unavailable,
    };
    match error {
        Memory { .. } | DeviceMemory { .. } | Pinned { .. } => PyMemoryError::new_err(message),
        Unavailable { .. } | Kernel(_) | Driver { .. } | Jit { .. } | Stream { .. } | Capture { .. } | Away { .. } => {
            PyRuntimeError::new_err(message)
        }
        Format(error) => of_format(error, message),
        _ => PyValueError::new_err(message),
    }
}

/// What the system said becomes the `OSError` that Python has for it (`FileNotFoundError`, `PermissionError`, …).
fn of_format(error: &format::Error, message: String) -> PyErr {
    match error {
        format::Error::Read { cause, .. } | format::Error::Write { cause, .. } => {
            io::Error::new(cause.kind(), message).into()
        }
        format::Error::NotAFile { .. } => io::Error::new(io::ErrorKind::IsADirectory, message).into(),
        format::Error::NoModel { .. } => io::Error::new(io::ErrorKind::NotFound, message).into(),
        _ => PyValueError::new_err(message),
    }
}
