//! The threads that a run is spread over, whoever they belong to, and what runs leave behind for the next one.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Threads: a pool of ours, or the host program's.
pub trait Workers: fmt::Debug + Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Calls `work` [`count`](Workers::count) times, on as many threads as it likes, and returns when all calls have. Work is
    /// written so that one thread making all the calls, one after another, gets the same result.
    fn run(&self, work: &(dyn Fn() + Sync));
}

/// Workers, and the memory that runs on them keep.
#[derive(Debug)]
pub struct Team {
    workers: Box<dyn Workers>,
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Team {
    /// These workers, with nothing kept yet.
    pub fn new(workers: impl Workers + 'static) -> Self {
        Self { workers: Box::new(workers), kept: Mutex::default() }
    }

    /// How many calls of the work [`Team::run`] makes.
    pub fn count(&self) -> usize {
        self.workers.count()
    }

    /// Calls `work` once per worker, the caller's thread being one of them as a rule, and returns when all are done.
    pub fn run(&self, work: impl Fn() + Sync) {
        self.workers.run(&work);
    }

    /// The one `T` that runs on this team share, made at its first use. It goes when the team does.
    pub fn kept<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.iter().find_map(|each| Arc::clone(each).downcast().ok()) {
            return found;
        }
        let made = Arc::new(T::default());
        kept.push(Arc::clone(&made) as Arc<dyn Any + Send + Sync>);
        made
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug)]
    struct Alone;

    impl Workers for Alone {
        fn count(&self) -> usize {
            1
        }

        fn run(&self, work: &(dyn Fn() + Sync)) {
            work();
        }
    }

    #[test]
    fn what_is_kept_is_one_per_type_and_goes_with_the_team() {
        let team = Team::new(Alone);
        team.kept::<AtomicUsize>().store(7, Ordering::Relaxed);
        assert_eq!(team.kept::<AtomicUsize>().load(Ordering::Relaxed), 7);
        assert!(team.kept::<Mutex<Vec<u8>>>().lock().unwrap().is_empty());
        let weak = Arc::downgrade(&team.kept::<AtomicUsize>());
        drop(team);
        assert!(weak.upgrade().is_none());
    }
}
