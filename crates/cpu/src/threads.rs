//! Threads of our own: a fixed number, of which the caller's is one.

use op::{Error, Result, Team, Workers};

/// The most threads that can be asked for.
const LIMIT: usize = 4096;

/// A team of so many threads, or of as many as this process may run on (its affinity and its control group's quota count).
pub fn team(count: Option<usize>) -> Result<Team> {
    Threads::new(count).map(Team::new)
}

/// A fixed number of threads.
#[derive(Debug)]
struct Threads {
    count: usize,
    /// The others; absent when the caller works alone.
    pool: Option<rayon::ThreadPool>,
}

impl Threads {
    fn new(count: Option<usize>) -> Result<Self> {
        let count = count.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
        let refuse = |reason: String| Error::Threads { threads: count, reason };
        if count == 0 || count > LIMIT {
            return Err(refuse(format!("ask for 1 to {LIMIT}, or leave the number out")));
        }
        let others = rayon::ThreadPoolBuilder::new().num_threads(count - 1);
        let pool = match count {
            1 => None,
            _ => Some(others.build().map_err(|e| refuse(format!("{e}; ask for fewer")))?),
        };
        Ok(Self { count, pool })
    }
}

impl Workers for Threads {
    fn count(&self) -> usize {
        self.count
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        match &self.pool {
            None => work(),
            Some(pool) => pool.in_place_scope(|scope| {
                for _ in 1..self.count {
                    scope.spawn(|_| work());
                }
                work();
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn work_is_called_once_per_thread() {
        for count in [1, 2, 7] {
            let calls = AtomicUsize::new(0);
            team(Some(count)).unwrap().run(|| {
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(calls.into_inner(), count);
        }
    }

    #[test]
    fn no_threads_and_absurdly_many_are_refused() {
        for count in [0, LIMIT + 1, usize::MAX] {
            assert!(matches!(team(Some(count)), Err(Error::Threads { .. })));
        }
    }
}
