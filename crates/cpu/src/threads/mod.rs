//! Threads to compute on: our own (`pool`), those of an OpenMP runtime that the host program has loaded (`openmp`),
//! whichever of the two is better at the time (`joined`), the host's own through a function of its (`parallel_for`), or
//! whatever else implements [`Workers`](op::Workers).
//!
//! All of them make the same promise by the same means (`tickets`): a run is so many calls of one piece of work, and
//! whoever comes takes the next. The caller comes first, so nobody is waited for who has not begun: on a busy machine a
//! run takes as long as the threads that did come need.

mod joined;
mod openmp;
mod parallel_for;
mod pool;
mod tickets;

pub use joined::Joined;
pub use openmp::OpenMp;
pub use parallel_for::ParallelFor;

use std::sync::Mutex;

use op::{Error, Result, Team};

use pool::Pool;

/// The most threads that can be asked for.
const LIMIT: usize = 4096;

/// A team of so many threads of our own, the caller's among them, or of as many as this process may run on.
pub fn team(count: Option<usize>) -> Result<Team> {
    Pool::new(checked(count.unwrap_or_else(available))?).map(Team::new)
}

/// As many threads as this process may run on: its affinity and its control group's quota count. Cheap to ask: files
/// are read again only when the affinity has changed.
pub fn available() -> usize {
    /// The size of the affinity mask, and what there was then.
    static KNOWN: Mutex<(usize, usize)> = Mutex::new((0, 0));
    let mask = mask();
    // A process that was forked while another thread was in here finds it locked for ever.
    let known = KNOWN.try_lock().map(|known| *known).unwrap_or_default();
    if known.0 == mask && mask > 0 {
        return known.1;
    }
    let count = std::thread::available_parallelism().map_or(1, Into::into);
    if let Ok(mut known) = KNOWN.try_lock() {
        *known = (mask, count);
    }
    count
}

/// How many processors the calling thread may run on; 0 where that cannot be told.
#[cfg(target_os = "linux")]
fn mask() -> usize {
    // SAFETY: all zeros is an empty set of processors.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as said, and is written.
    match unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } {
        // SAFETY: the set is read.
        0 => usize::try_from(unsafe { libc::CPU_COUNT(&set) }).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(not(target_os = "linux"))]
fn mask() -> usize {
    0
}

/// A number of threads that makes sense.
fn checked(count: usize) -> Result<usize> {
    match count {
        1..=LIMIT => Ok(count),
        _ => Err(Error::Threads { threads: count, reason: format!("ask for 1 to {LIMIT}, or leave the number out") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_threads_and_absurdly_many_are_refused() {
        for count in [0, LIMIT + 1, usize::MAX] {
            assert!(matches!(team(Some(count)), Err(Error::Threads { .. })));
            assert!(matches!(OpenMp::find(count), Err(Error::Threads { .. })));
        }
    }
}
