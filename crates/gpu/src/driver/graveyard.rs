//! Things that own memory of a device and could not be dropped where their last user let go of them.
//!
//! Memory is given back by a call of the driver, and there are two places that allow none: the driver's own callbacks,
//! and the middle of a stream's capture. What ends there is left here, and goes at the next call that may.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Something that waits to be dropped.
pub type Grave = Box<dyn Any + Send>;

static GRAVES: Mutex<Vec<Grave>> = Mutex::new(Vec::new());
/// Whether there are any, so that asking costs nothing.
static ANY: AtomicBool = AtomicBool::new(false);

/// Leaves something to be dropped later.
pub fn bury(thing: Grave) {
    GRAVES.lock().unwrap_or_else(PoisonError::into_inner).push(thing);
    ANY.store(true, Ordering::Release);
}

/// Drops all that was left. Not to be called while a stream of the caller's is captured.
pub fn sweep() {
    if ANY.swap(false, Ordering::Acquire) {
        let graves = std::mem::take(&mut *GRAVES.lock().unwrap_or_else(PoisonError::into_inner));
        drop(graves);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_buried_lives_until_the_next_sweep() {
        let thing = Arc::new(());
        bury(Box::new(Arc::clone(&thing)));
        assert_eq!(Arc::strong_count(&thing), 2);
        sweep();
        assert_eq!(Arc::strong_count(&thing), 1);
    }
}
