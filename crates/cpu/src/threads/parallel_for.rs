//! Threads of the host program, as a function that calls a task for every number below a count.

use std::fmt;

use op::{Result, Workers};

use super::tickets::Tickets;

/// A host's parallel-for, with how many threads it has.
///
/// The function is given a count and a task, calls the task once for each number below the count, in any order, on any
/// threads, and returns after all calls have. One thread that makes all calls is right too. Calls that it leaves out
/// are made by the caller of a run.
///
/// ```
/// use hammerhead_cpu::ParallelFor;
/// use op::Workers; // the crate `hammerhead-op`
///
/// let workers = ParallelFor::new(4, |count, task| (0..count).for_each(task))?;
/// workers.run(&|| ());
/// # Ok::<(), op::Error>(())
/// ```
pub struct ParallelFor<F> {
    threads: usize,
    run: F,
}

impl<F: Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync> ParallelFor<F> {
    /// So many threads, reached through this function.
    pub fn new(threads: usize, run: F) -> Result<Self> {
        Ok(Self { threads: super::checked(threads)?, run })
    }
}

impl<F: Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync> Workers for ParallelFor<F> {
    fn count(&self) -> usize {
        self.threads
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        let tickets = Tickets::new(self.threads);
        (self.run)(self.threads, &|_| {
            tickets.take(work);
        });
        tickets.take_all(work);
        tickets.finish();
    }
}

impl<F> fmt::Debug for ParallelFor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParallelFor").field("threads", &self.threads).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    /// How often work was called by a host's function for three threads.
    fn calls(run: impl Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync) -> usize {
        let calls = AtomicUsize::new(0);
        ParallelFor::new(3, run).unwrap().run(&|| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        calls.into_inner()
    }

    #[test]
    fn work_is_called_once_per_thread_whatever_the_host_makes_of_it() {
        let threads = |count, task: &(dyn Fn(usize) + Sync)| {
            thread::scope(|scope| (0..count).for_each(|number| drop(scope.spawn(move || task(number)))));
        };
        assert_eq!(calls(threads), 3);
        assert_eq!(calls(|count, task| (0..count).rev().for_each(task)), 3);
        assert_eq!(calls(|_, _| ()), 3, "a host that forgets its tasks");
        assert_eq!(calls(|count, task| (0..2 * count).for_each(task)), 3, "a host that calls too often");
    }

    #[test]
    fn no_panic_passes_through_the_host() {
        let host = |count, task: &(dyn Fn(usize) + Sync)| {
            assert!(catch_unwind(AssertUnwindSafe(|| (0..count).for_each(task))).is_ok());
        };
        let workers = ParallelFor::new(2, host).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| workers.run(&|| resume_unwind(Box::new(()))))).is_err());
    }
}
