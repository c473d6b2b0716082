//! How calls end: a status, and a message that the calling thread can ask for.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// All went well.
pub const HAMMERHEAD_OK: i32 = 0;
/// An argument will not do.
pub const HAMMERHEAD_INVALID: i32 = 1;
/// A backend cannot run on this machine.
pub const HAMMERHEAD_UNAVAILABLE: i32 = 2;
/// Memory could not be had.
pub const HAMMERHEAD_MEMORY: i32 = 3;
/// A file could not be read.
pub const HAMMERHEAD_IO: i32 = 4;
/// The GPU or its driver failed.
pub const HAMMERHEAD_DEVICE: i32 = 5;
/// A fault in Hammerhead itself; please report it.
pub const HAMMERHEAD_INTERNAL: i32 = 6;

/// What this crate's functions return among themselves.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The operation's own word.
    #[error(transparent)]
    Operation(#[from] hammerhead::Error),

    /// A pointer that leads nowhere.
    #[error("{what} is NULL, where something is needed")]
    Null {
        /// The argument.
        what: String,
    },

    /// A buffer that is too small or too large for what it is said to hold.
    #[error("{what} has {came} bytes, where {expected} are expected; check the sizes")]
    Length {
        /// The argument.
        what: String,
        /// What would fit.
        expected: usize,
        /// What was said.
        came: usize,
    },

    /// Any other argument that will not do.
    #[error("{what} {problem}")]
    Argument {
        /// The argument.
        what: String,
        /// What is wrong with it, and what would do.
        problem: String,
    },

    /// Something panicked.
    #[error("a fault in Hammerhead itself, please report it: {message}")]
    Panic {
        /// What it said.
        message: String,
    },
}

impl Error {
    pub(crate) fn argument(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Argument { what: what.into(), problem: problem.into() }
    }

    fn status(&self) -> i32 {
        use hammerhead::Error as Operation;
        use hammerhead::format::Error as Format;
        let Error::Operation(error) = self else {
            return if matches!(self, Error::Panic { .. }) { HAMMERHEAD_INTERNAL } else { HAMMERHEAD_INVALID };
        };
        match error {
            Operation::Unavailable { .. } => HAMMERHEAD_UNAVAILABLE,
            Operation::Memory { .. } | Operation::DeviceMemory { .. } | Operation::Pinned { .. } => HAMMERHEAD_MEMORY,
            Operation::Driver { .. } | Operation::Jit { .. } | Operation::Kernel(_) | Operation::Away { .. } => {
                HAMMERHEAD_DEVICE
            }
            Operation::Format(Format::Read { .. } | Format::NotAFile { .. } | Format::NoModel { .. }) => HAMMERHEAD_IO,
            _ => HAMMERHEAD_INVALID,
        }
    }
}

impl From<hammerhead::format::Error> for Error {
    fn from(error: hammerhead::format::Error) -> Self {
        Error::Operation(error.into())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Does the work of a call: a failure's message is kept for the thread, and a panic ends here.
pub(crate) fn guard(work: impl FnOnce() -> Result<()>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    match outcome.unwrap_or_else(|panic| Err(Error::Panic { message: message_of(panic.as_ref()) })) {
        Ok(()) => HAMMERHEAD_OK,
        Err(error) => {
            let text: Vec<u8> = error.to_string().bytes().filter(|&byte| byte != 0).collect();
            LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
            error.status()
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".to_owned())
}

/// Why the last failed call of this thread failed, as UTF-8; empty if none did. Valid until the next failure on this
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn hammerhead_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// The version of the library, such as "0.1.0". Static.
#[unsafe(no_mangle)]
pub extern "C" fn hammerhead_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        assert_eq!(guard(|| panic!("the sky fell")), HAMMERHEAD_INTERNAL);
        // SAFETY: the message is valid until the next failure on this thread.
        let message = unsafe { CStr::from_ptr(hammerhead_last_error()) }.to_str().unwrap();
        assert!(message.contains("the sky fell") && message.contains("report"), "{message}");
    }
}
