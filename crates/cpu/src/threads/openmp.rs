//! The host's threads, where it has an OpenMP runtime: torch, scikit-learn and many C programs do.
//!
//! OpenMP's threads spin for milliseconds after they have worked, so a pool beside them shares their cores with them.
//! To work inside their team instead, we call the function that compilers call for a parallel region. It is looked up
//! among what the process has loaded, never opened: a second runtime would bring a second set of threads. GNU's and
//! LLVM's (Intel's) runtimes both export it.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use op::{Error, Result, Workers};

use super::tickets::Tickets;

/// `GOMP_parallel`: a region's work, its argument, the number of threads, and flags.
type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, u32, u32);

/// The team of the OpenMP runtime that is loaded into this process.
#[derive(Debug)]
pub struct OpenMp {
    count: usize,
    parallel: Parallel,
    /// The process in which it was found: a fork has none of the runtime's threads, and would wait for them.
    process: u32,
}

/// What the threads of a region share.
struct Region<'a> {
    tickets: Tickets,
    work: &'a (dyn Fn() + Sync),
    begun: Instant,
    caller: ThreadId,
    /// How long the caller found calls to make.
    busy: OnceLock<Duration>,
}

impl OpenMp {
    /// The runtime's threads, so many of them, if there is one.
    pub fn find(count: usize) -> Result<Self> {
        let count = super::checked(count)?;
        let reason = "no OpenMP runtime is loaded into this process; load one first (import torch), or use threads of the library's own";
        let parallel = lookup().ok_or_else(|| Error::Threads { threads: count, reason: reason.to_owned() })?;
        Ok(Self { count, parallel, process: std::process::id() })
    }

    /// A run, with how long its caller worked and how long it then waited for others.
    pub(super) fn run_timed(&self, work: &(dyn Fn() + Sync)) -> (Duration, Duration) {
        let begun = Instant::now();
        if self.count == 1 || self.process != std::process::id() {
            (0..self.count).for_each(|_| work());
            return (begun.elapsed(), Duration::ZERO);
        }
        let region = Region {
            tickets: Tickets::new(self.count),
            work,
            caller: thread::current().id(),
            busy: OnceLock::new(),
            begun,
        };
        // SAFETY: the runtime calls `enter` with the region on its threads and returns after all of them have left it;
        // `enter` lets no panic out. The number fits: it is at most `LIMIT`.
        unsafe { (self.parallel)(enter, (&raw const region).cast_mut().cast(), self.count as u32, 0) };
        region.tickets.finish();
        let all = begun.elapsed();
        let busy = region.busy.get().copied().unwrap_or(all);
        (busy, all.saturating_sub(busy))
    }

    /// Whether there is a runtime to join.
    pub fn is_loaded() -> bool {
        /// A runtime that was loaded stays.
        static FOUND: AtomicBool = AtomicBool::new(false);
        if !FOUND.load(Ordering::Relaxed) {
            FOUND.store(lookup().is_some(), Ordering::Relaxed);
        }
        FOUND.load(Ordering::Relaxed)
    }
}

#[cfg(target_os = "linux")]
fn lookup() -> Option<Parallel> {
    // SAFETY: the name ends with a zero byte; looking a symbol up runs no code of a library's but a resolver's.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr()) };
    // SAFETY: whoever exports this name exports the function of GNU's published interface, whose type this is; null
    // becomes none.
    unsafe { std::mem::transmute::<*mut c_void, Option<Parallel>>(found) }
}

#[cfg(not(target_os = "linux"))]
fn lookup() -> Option<Parallel> {
    None
}

/// What each of the region's threads does. Inside another region there is but one, which then makes all calls.
unsafe extern "C" fn enter(region: *mut c_void) {
    // SAFETY: `OpenMp::run` passes a region that stays until all threads have left this function, and shares it only.
    let region = unsafe { &*region.cast::<Region<'_>>() };
    region.tickets.take_all(region.work);
    if thread::current().id() == region.caller {
        region.busy.get_or_init(|| region.begun.elapsed());
    }
}

impl Workers for OpenMp {
    fn count(&self) -> usize {
        self.count
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        self.run_timed(work);
    }
}
