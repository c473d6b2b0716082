//! The threads that a run is spread over, whoever they belong to, and what runs leave behind for the next one.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Threads: a pool of ours, or the host program's.
pub trait Workers: fmt::Debug + Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Calls `work` [`count`](Workers::count) times, on as many threads as it likes, and returns when all calls have.
    /// Work is written so that one thread making all the calls, one after another, gets the same result.
    fn run(&self, work: &(dyn Fn() + Sync));

    /// Says that a run comes soon, for threads that sleep until there is one.
    fn wake(&self) {}
}

/// The caller's thread and no other.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Workers for Alone {
    fn count(&self) -> usize {
        1
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        work();
    }
}

/// Workers, and the memory that runs on them keep. Clones are the same team.
#[derive(Clone, Debug)]
pub struct Team {
    workers: Arc<dyn Workers>,
    kept: Arc<Mutex<Vec<Arc<dyn Any + Send + Sync>>>>,
}

impl Team {
    /// These workers, with nothing kept yet.
    pub fn new(workers: impl Workers + 'static) -> Self {
        Self { workers: Arc::new(workers), kept: Arc::default() }
    }

    /// How many calls of the work [`Team::run`] makes.
    pub fn count(&self) -> usize {
        self.workers.count()
    }

    /// Calls `work` once per worker, the caller's thread being one of them as a rule, and returns when all are done.
    pub fn run(&self, work: impl Fn() + Sync) {
        self.workers.run(&work);
    }

    /// Says that a run comes soon: threads that sleep come up while the caller prepares it.
    pub fn wake(&self) {
        self.workers.wake();
    }

    /// Calls `work` once per item. Whichever worker is free takes the next one.
    pub fn for_each<T: Send>(&self, items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
        let items = Mutex::new(items);
        // A worker that panics while it takes an item ends the run for all; the team hands the panic on.
        let next = || items.lock().ok()?.next();
        self.run(|| std::iter::from_fn(next).for_each(&work));
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

    /// Three threads, of which each is started for the run.
    #[derive(Debug)]
    struct Three;

    impl Workers for Three {
        fn count(&self) -> usize {
            3
        }

        fn run(&self, work: &(dyn Fn() + Sync)) {
            std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
        }
    }

    #[test]
    fn every_item_is_taken_once_however_many_workers_there_are() {
        for team in [Team::new(Alone), Team::new(Three)] {
            let mut counts = [0; 100];
            team.for_each(counts.iter_mut().enumerate(), |(index, count)| *count += index);
            assert!(counts.iter().enumerate().all(|(index, count)| index == *count), "{team:?}");
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
