//! The calls that a run is made of, to be taken by whoever comes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many calls, numbered from zero.
#[derive(Debug)]
pub(super) struct Tickets {
    count: usize,
    next: AtomicUsize,
    /// What the first call that panicked said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Tickets {
    pub(super) fn new(count: usize) -> Self {
        Self { count, next: AtomicUsize::new(0), panic: Mutex::default() }
    }

    /// Makes one call if there is one left, and says whether there was. A panic is kept for [`Tickets::finish`].
    pub(super) fn take(&self, work: impl Fn()) -> bool {
        // Acquire and release: who finds no ticket left has seen everything that those did who took one before they
        // took it.
        let taken = self.next.fetch_add(1, Ordering::AcqRel) < self.count;
        if taken
            && let Err(payload) = catch_unwind(AssertUnwindSafe(work))
            && let Ok(mut panic) = self.panic.lock()
        {
            panic.get_or_insert(payload);
        }
        taken
    }

    /// Makes calls until none is left.
    pub(super) fn take_all(&self, work: impl Fn()) {
        while self.take(&work) {}
    }

    /// Whether there is a call left to make.
    pub(super) fn left(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.count
    }

    /// Panics if one of the calls did. To be called by the run's caller once all calls have returned.
    pub(super) fn finish(&self) {
        let payload = self.panic.lock().ok().and_then(|mut panic| panic.take());
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_made_once_and_a_panic_comes_out_at_the_end() {
        let (tickets, calls) = (Tickets::new(5), AtomicUsize::new(0));
        tickets.take_all(|| {
            if calls.fetch_add(1, Ordering::Relaxed) == 2 {
                resume_unwind(Box::new("the third"));
            }
        });
        assert_eq!(calls.into_inner(), 5);
        assert!(!tickets.left());
        let payload = catch_unwind(AssertUnwindSafe(|| tickets.finish())).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"the third"));
        tickets.finish();
    }
}
