//! Races: two accesses to the same bytes, at least one a write, of which neither is known to have happened before the
//! other.
//!
//! Every access is a [`Record`] in a log; every unit of memory (the smallest access the kernel makes, at most 16 bytes)
//! remembers the record of its last write and of the reads since. An access is checked against these with the clocks of
//! whoever makes it, so a race is reported whatever the order in which the two happened to run.
//!
//! What an asynchronous operation touches is checked and remembered when it is *issued*; until its completion is known,
//! its stamp is out of everyone's reach, so touching those bytes is a race at any time before.

mod log;
mod observer;
mod shadow;
mod unit;

pub(crate) use log::{IN_FLIGHT, Log, Proxy, Record, RecordId};
pub(crate) use observer::{ISSUED, Issued, Multiplied, Observer, Piece};
pub(crate) use shadow::Shadow;
pub(crate) use unit::{Conflict, Writers};
