//! Ctrl-C during a call.
//!
//! Python notes a signal when it comes, and acts on it when its main thread next runs Python code, which a long call of
//! ours keeps it from. So such a call asks Python now and then, on the thread that made it: what a handler raises
//! (`KeyboardInterrupt`, as a rule) ends the call.

use std::cell::RefCell;

use hammerhead::interrupt::interruptible;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::error::{Error, Result};

thread_local! {
    /// What a signal's handler has raised during this thread's call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Computes without Python's lock, until it is done or a signal's handler raises.
pub fn computed(py: Python<'_>, work: impl FnOnce() -> hammerhead::Result<()> + Send) -> Result<()> {
    match py.detach(|| interruptible(raised, work)) {
        Err(hammerhead::Error::Interrupted) => {
            let error = RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(()));
            Err(Error::Python(error))
        }
        done => Ok(done?),
    }
}

/// Lets Python's main thread handle the signals that have come.
fn raised() -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    })
}
