//! How a stream asks the host for something: it writes one word, its *bell*, which a thread of ours looks at, and waits
//! for another, the *answer*, before it goes on.
//!
//! The driver can also call a host function from a stream, on a thread that it wakes for it. In graphs of twenty layers
//! that took 27 to 31 µs per layer beside the function's own work, and these two words 7 to 9 (H200, driver 580).
//!
//! **Looking takes a core.** The thread looks without a pause only while somebody rings, and [`EAGER`] longer, which is
//! from one layer of a model to the next. Then it naps between looks, and after [`DROWSY`] it naps longer, so that the
//! first call after a pause waits for up to [`LONG_NAP`]. Where there are no bells, it sleeps.

use std::fmt;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use op::{Error, Result};

use crate::driver::{Context, SharedWords, Stream};

/// How long the thread looks without a pause since somebody rang, and how long it takes short naps since then.
const EAGER: Duration = Duration::from_millis(2);
const DROWSY: Duration = Duration::from_millis(100);
/// Its naps.
const SHORT_NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(1);
/// Looks between two looks at the clock.
const LOOKS: usize = 64;
/// Bells of a page.
const BELLS: usize = 1024;
/// What a bell and an answer are for as long as they count.
const SET: u32 = 1;

/// Whoever answers. Nothing that it does may wait for the device.
pub(crate) trait Answer: fmt::Debug + Send + Sync {
    /// Does what the stream waits for.
    fn answer(&self);
}

/// A bell of one stream's, or of one graph's, at a time.
#[derive(Debug)]
pub(crate) struct Bell {
    page: Arc<Page>,
    place: usize,
}

impl Bell {
    /// A bell that somebody answers, for streams of a device.
    pub(crate) fn new(context: &'static Context, who: Arc<dyn Answer>) -> Result<Self> {
        static DESK: OnceLock<Desk> = OnceLock::new();
        let desk = DESK.get_or_init(Desk::default);
        desk.bell(who, || SharedWords::new(context, 2 * BELLS).map(Page::new))
    }

    /// Has a stream ring and wait.
    ///
    /// # Safety
    ///
    /// The bell must stay until the stream, or every graph of which this becomes a part, has waited for the last time,
    /// and ring for one of them at a time.
    pub(crate) unsafe fn ring(&self, stream: &Stream) -> Result<()> {
        let [bell, answer] = [self.place, BELLS + self.place].map(|place| self.page.words.address(place));
        // SAFETY: both are words of the page, which stay.
        unsafe {
            stream.write_word(bell, SET)?;
            stream.wait_for_word(answer, SET)?;
            stream.write_word(answer, 0)
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let who = self.page.answering().get_mut(self.place).and_then(Option::take);
        drop(who);
    }
}

/// The words of some bells, and who answers each.
#[derive(Debug)]
struct Page {
    /// Bells, and then their answers.
    words: SharedWords,
    /// Bells that there ever were, from the first one on.
    used: AtomicUsize,
    answering: Mutex<Vec<Option<Arc<dyn Answer>>>>,
}

impl Page {
    fn new(words: SharedWords) -> Self {
        Page { words, used: AtomicUsize::new(0), answering: Mutex::default() }
    }

    fn answering(&self) -> MutexGuard<'_, Vec<Option<Arc<dyn Answer>>>> {
        self.answering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The words of a bell, and of its answer.
    fn at(&self, place: usize) -> [&AtomicU32; 2] {
        [&self.words.host()[place], &self.words.host()[BELLS + place]]
    }

    /// A free bell, for somebody who answers, if there is one.
    fn take(&self, who: &Arc<dyn Answer>) -> Option<usize> {
        let mut answering = self.answering();
        let place = answering.iter().position(Option::is_none).unwrap_or(answering.len());
        match answering.get_mut(place) {
            Some(free) => *free = Some(Arc::clone(who)),
            None if place < BELLS => answering.push(Some(Arc::clone(who))),
            None => return None,
        }
        // Who had it before may have been cut off between a ring and its answer.
        self.at(place).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.used.fetch_max(place + 1, Ordering::Release);
        Some(place)
    }

    /// A bell that was rung.
    fn rung(&self) -> Option<usize> {
        let bells = &self.words.host()[..self.used.load(Ordering::Acquire)];
        bells.iter().position(|bell| bell.load(Ordering::Acquire) == SET)
    }

    fn is_free(&self) -> bool {
        self.answering().iter().all(Option::is_none)
    }

    /// Answers a bell that was rung.
    fn answer(&self, place: usize) {
        let [bell, answer] = self.at(place);
        bell.store(0, Ordering::Relaxed);
        let who = self.answering().get(place).cloned().flatten();
        // Let go of before the stream goes on: whoever is the last to hold what a stream uses gives memory back, which
        // may wait for streams.
        who.into_iter().for_each(|who| who.answer());
        answer.store(SET, Ordering::Release);
    }
}

/// All bells of the process, and the thread that answers them.
#[derive(Default)]
struct Desk {
    pages: RwLock<Vec<Arc<Page>>>,
    thread: Mutex<Option<Thread>>,
}

impl Desk {
    /// A bell on a page that has one left, or on a new one.
    fn bell(&'static self, who: Arc<dyn Answer>, new: impl FnOnce() -> Result<Page>) -> Result<Bell> {
        let free = |page: &Arc<Page>| Some(Bell { place: page.take(&who)?, page: Arc::clone(page) });
        let there = self.pages.read().unwrap_or_else(PoisonError::into_inner).iter().find_map(free);
        let bell = match there {
            Some(bell) => bell,
            None => {
                // Pages are not held meanwhile: the driver may wait for a stream that waits for an answer.
                let page = Arc::new(new()?);
                let bell = free(&page).ok_or(Error::Forgotten)?;
                self.pages.write().unwrap_or_else(PoisonError::into_inner).push(page);
                bell
            }
        };
        self.wake().map(|()| bell)
    }

    /// Has the thread look, and starts it before the first time.
    fn wake(&'static self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            thread.unpark();
            return Ok(());
        }
        let started = thread::Builder::new().name("hammerhead-bells".to_owned()).spawn(|| self.serve());
        let refuse = |error| Error::Threads { threads: 1, reason: format!("{error}; it answers the GPU") };
        *thread = Some(started.map_err(refuse)?.thread().clone());
        Ok(())
    }

    /// The life of the thread.
    fn serve(&self) {
        let mut last = Instant::now();
        loop {
            let quiet = last.elapsed();
            let looks = if quiet < EAGER { LOOKS } else { 1 };
            if (0..looks).any(|_| self.look()) {
                last = Instant::now();
                continue;
            }
            match quiet {
                _ if quiet < EAGER => {}
                _ if quiet < DROWSY => thread::sleep(SHORT_NAP),
                _ if self.is_idle() => thread::park(),
                _ => thread::sleep(LONG_NAP),
            }
        }
    }

    /// Answers a bell, if one was rung.
    fn look(&self) -> bool {
        let rung = {
            let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
            pages.iter().find_map(|page| Some((page.rung()?, Arc::clone(page))))
        };
        // Not while pages are held: others may need a bell meanwhile.
        let Some((place, page)) = rung else {
            spin_loop();
            return false;
        };
        page.answer(place);
        true
    }

    /// Whether nobody has a bell.
    fn is_idle(&self) -> bool {
        self.pages.read().unwrap_or_else(PoisonError::into_inner).iter().all(|page| page.is_free())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it was asked.
    #[derive(Debug, Default)]
    struct Counter(AtomicU32);

    impl Answer for Counter {
        fn answer(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A page that no device reaches.
    fn page() -> Result<Page> {
        SharedWords::of_host(2 * BELLS).map(Page::new)
    }

    fn desk() -> &'static Desk {
        Box::leak(Box::default())
    }

    /// What a stream does.
    fn ring(bell: &Bell) {
        let [rung, answer] = bell.page.at(bell.place);
        rung.store(SET, Ordering::Release);
        while answer.load(Ordering::Acquire) != SET {
            thread::yield_now();
        }
        answer.store(0, Ordering::Release);
    }

    #[test]
    fn every_ring_is_answered_once_by_whom_the_bell_is_for() {
        let (desk, counters) = (desk(), [(); 3].map(|()| Arc::new(Counter::default())));
        let bells = counters.each_ref().map(|who| desk.bell(Arc::<Counter>::clone(who), page).unwrap());
        for (times, bell) in [5, 0, 300].into_iter().zip(&bells) {
            (0..times).for_each(|_| ring(bell));
        }
        assert_eq!(counters.each_ref().map(|who| who.0.load(Ordering::Relaxed)), [5, 0, 300]);
    }

    #[test]
    fn bells_are_answered_after_naps_and_after_all_were_given_back() {
        let (desk, who) = (desk(), Arc::new(Counter::default()));
        for pause in [Duration::ZERO, DROWSY / 10, DROWSY * 2] {
            let bell = desk.bell(Arc::<Counter>::clone(&who), page).unwrap();
            thread::sleep(pause);
            ring(&bell);
            drop(bell);
            thread::sleep(pause);
        }
        assert_eq!((who.0.load(Ordering::Relaxed), Arc::strong_count(&who)), (3, 1));
    }

    #[test]
    fn a_place_whose_answer_was_never_taken_waits_for_its_own() {
        let (desk, who) = (desk(), Arc::new(Counter::default()));
        let left = desk.bell(Arc::<Counter>::clone(&who), page).unwrap();
        left.page.at(left.place)[1].store(SET, Ordering::Release);
        drop(left);
        let bell = desk.bell(Arc::<Counter>::clone(&who), page).unwrap();
        assert_eq!(bell.page.at(bell.place).map(|word| word.load(Ordering::Acquire)), [0; 2]);
        ring(&bell);
        assert_eq!(who.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn places_are_used_again_and_more_bells_than_a_page_has_take_another() {
        let (desk, who) = (desk(), Arc::new(Counter::default()));
        let bell = || desk.bell(Arc::<Counter>::clone(&who), page).unwrap();
        let mut bells: Vec<Bell> = (0..=BELLS).map(|_| bell()).collect();
        assert_eq!((bells[BELLS].place, desk.pages.read().unwrap().len()), (0, 2));
        bells.remove(7);
        bells.push(bell());
        assert_eq!(bells[BELLS].place, 7);
        bells.iter().for_each(ring);
        assert_eq!(who.0.load(Ordering::Relaxed) as usize, BELLS + 1);
    }
}
