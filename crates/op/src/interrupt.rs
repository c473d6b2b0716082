//! Ending a call before it is done, because the program that made it was asked to stop.
//!
//! A caller gives a question, which is asked now and then on its own thread between pieces of work. Where the answer is
//! yes, no thread takes another piece, and the call ends with [`Error::Interrupted`]. A call without a question costs
//! nothing by it, and one that is shorter than 50 ms a look at a clock per piece.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// The time between two questions.
const PATIENCE: Duration = Duration::from_millis(50);

/// The call that a thread makes.
struct Asking {
    stop: Arc<AtomicBool>,
    question: fn() -> bool,
    asked: Instant,
}

thread_local! {
    static ASKING: RefCell<Option<Asking>> = const { RefCell::new(None) };
}

/// Calls `work`, in which runs end early once `question` has been answered with yes. It is asked on this thread only.
pub fn interruptible<R>(question: fn() -> bool, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Asking>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ASKING.set(self.0.take());
        }
    }
    let asking = Asking { stop: Arc::default(), question, asked: Instant::now() };
    let _restored_when_dropped = Restore(ASKING.replace(Some(asking)));
    work()
}

/// What the threads of a run look at between pieces of work.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Option<Arc<AtomicBool>>);

impl Interrupt {
    /// That of the call that this thread makes.
    pub fn of_this_call() -> Self {
        Self(ASKING.with_borrow(|asking| asking.as_ref().map(|asking| Arc::clone(&asking.stop))))
    }

    /// Whether no further piece of work is to be taken. On the caller's own thread, the question is asked if it is time
    /// to.
    pub fn is_raised(&self) -> bool {
        let Some(stop) = &self.0 else { return false };
        if let Some(question) = due()
            && question()
        {
            stop.store(true, Ordering::Relaxed);
        }
        stop.load(Ordering::Relaxed)
    }

    /// An error where work was left undone.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }
}

/// This thread's question, where it has one and has not asked it for a while. It is not asked here: what it calls may
/// compute, too.
fn due() -> Option<fn() -> bool> {
    ASKING.with_borrow_mut(|asking| {
        let asking = asking.as_mut().filter(|asking| asking.asked.elapsed() >= PATIENCE)?;
        asking.asked = Instant::now();
        Some(asking.question)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited_for(interrupt: &Interrupt) -> bool {
        let begun = Instant::now();
        while !interrupt.is_raised() {
            if begun.elapsed() > 4 * PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn a_question_that_is_answered_with_yes_ends_the_call_on_all_threads() {
        let raised = interruptible(
            || true,
            || {
                let interrupt = Interrupt::of_this_call();
                assert!(!interrupt.is_raised() && interrupt.check().is_ok(), "it is not asked at once");
                assert!(waited_for(&interrupt));
                std::thread::scope(|scope| scope.spawn(|| interrupt.is_raised()).join().unwrap())
                    && matches!(interrupt.check(), Err(Error::Interrupted))
            },
        );
        assert!(raised);
        assert!(Interrupt::of_this_call().check().is_ok(), "it was that call's");
    }

    #[test]
    fn a_question_is_its_own_threads_and_a_call_inside_another_has_its_own() {
        assert!(!waited_for(&Interrupt::of_this_call()), "nobody asks");
        interruptible(
            || false,
            || {
                let interrupt = Interrupt::of_this_call();
                assert!(!waited_for(&interrupt));
                assert!(interruptible(|| true, || waited_for(&Interrupt::of_this_call())));
                assert!(!interrupt.is_raised());
            },
        );
    }
}
