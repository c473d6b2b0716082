//! Ctrl-C while something is measured: what was measured until then is kept. A second one ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

/// Whether it was pressed.
static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on, Ctrl-C is a request that [`asked`] tells of.
pub fn listen() {
    #[cfg(unix)]
    {
        extern "C" fn on_interrupt(_signal: libc::c_int) {
            if ASKED.swap(true, Ordering::Relaxed) {
                // SAFETY: `_exit` may be called in a signal handler, and takes any status.
                unsafe { libc::_exit(super::INTERRUPTED.into()) }
            }
        }
        let handler: extern "C" fn(libc::c_int) = on_interrupt;
        // SAFETY: the handler has the signature that `signal` asks for, and does nothing but what a handler may do: it
        // sets an atomic flag, or ends the process.
        unsafe { libc::signal(libc::SIGINT, handler as libc::sighandler_t) };
    }
}

/// Whether to come to an end.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// An error where the measurement was ended early, with how many cases it has.
pub fn check(measured: usize) -> Result<()> {
    if asked() { Err(Error::Interrupted { measured }) } else { Ok(()) }
}
