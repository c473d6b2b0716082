//! Threads of our own: a fixed number of helpers beside the caller.
//!
//! A helper that has nothing to do looks for work a little longer, since a layer's products follow each other closely,
//! and then sleeps until it is called: a host's threads get the cores at once. A caller offers its run to the helpers,
//! makes the calls itself that nobody has come for, and waits only for those that were begun.
//!
//! A process that was forked has none of these threads. The first run there starts new ones.

use std::collections::VecDeque;
use std::fmt;
use std::hint::spin_loop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use op::{Error, Result, Workers};

use super::tickets::Tickets;

/// How long a helper looks for the next run, and a caller for the end of its own, before either sleeps.
///
/// Neither offers its core to others meanwhile: beside busy processes a thread that yields waits for a time slice of
/// theirs, each time. Three hundred yields took a second so (Linux 6.18).
const PATIENCE: Duration = Duration::from_micros(100);
/// Looks between two looks at the clock.
const LOOKS: usize = 16;
/// Helpers that a caller wakes itself, and each of these in turn: to wake a thread is a call of the system's, which
/// would keep a caller of many from its own share.
const WAKES: usize = 4;

/// A fixed number of threads.
pub(super) struct Pool {
    count: usize,
    /// The helpers of this process, or of the one that it was forked from.
    crew: AtomicPtr<Crew>,
}

/// The helpers of one process.
struct Crew {
    process: u32,
    board: Arc<Board>,
    helpers: Vec<JoinHandle<()>>,
}

/// Where runs are offered. Helpers that look for one do not wait for each other: a lock that one of them holds at a
/// time would keep the last of many from its work for longer than a small run takes.
#[derive(Default)]
struct Board {
    /// The runs that may have calls left.
    runs: RwLock<VecDeque<Arc<Run>>>,
    /// How often helpers were called, to a run or to be ready for one: what they look at before they sleep.
    calls: AtomicUsize,
    closed: AtomicBool,
    sleepers: Box<[Sleeper]>,
}

/// A helper, as those see it who wake it.
#[derive(Default)]
struct Sleeper {
    asleep: AtomicBool,
    /// There before it sleeps for the first time.
    thread: OnceLock<Thread>,
}

/// One run.
struct Run {
    tickets: Tickets,
    /// Helpers that may be inside the work.
    inside: AtomicUsize,
    work: Work,
    caller: Thread,
}

/// The caller's work. It is valid for as long as there are tickets left or somebody is inside.
struct Work(*const (dyn Fn() + Sync));

// SAFETY: what it leads to may be used by several threads (`Sync`), and `Run::help` says why it is there whenever it is
// used.
unsafe impl Send for Work {}
// SAFETY: as it is to be sent: the pointer itself is only read.
unsafe impl Sync for Work {}

/// Looks for something for a while; says whether it was there.
fn look_for(found: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for _ in 0..LOOKS {
            if found() {
                return true;
            }
            spin_loop();
        }
    }
    false
}

impl Run {
    /// Makes calls of this run while there are any.
    fn help(&self) {
        // Before a ticket is taken: a caller that finds all tickets gone finds whoever holds one in here.
        self.inside.fetch_add(1, Ordering::AcqRel);
        // SAFETY: this thread holds a ticket, and has been inside since before it took it. The caller does not return
        // before all tickets are gone and nobody is inside, so its work is still there.
        self.tickets.take_all(|| unsafe { (*self.work.0)() });
        if self.inside.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.caller.unpark();
        }
    }

    /// Waits for helpers that have begun. There must be no ticket left.
    fn wait(&self) {
        let left = || self.inside.load(Ordering::Acquire) == 0;
        if !look_for(left) {
            while !left() {
                // The last helper to leave wakes us, or has before.
                thread::park();
            }
        }
    }
}

impl Board {
    fn new(helpers: usize) -> Self {
        let sleepers = (0..helpers).map(|_| Sleeper::default()).collect();
        Self { runs: RwLock::default(), calls: AtomicUsize::new(0), closed: AtomicBool::new(false), sleepers }
    }

    fn offer(&self, run: &Arc<Run>) {
        self.runs.write().unwrap_or_else(PoisonError::into_inner).push_back(Arc::clone(run));
        self.call();
    }

    /// Has all helpers look for a run.
    fn call(&self) {
        // Before anybody is looked at: who is not asleep yet sees it.
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.wake(0);
    }

    /// Wakes those that a helper of this number, or a caller (0), has to wake. Where one of them is awake, those that
    /// it would have woken are this one's, too.
    fn wake(&self, number: usize) {
        for next in (WAKES * number + 1..=WAKES * (number + 1)).take_while(|&next| next <= self.sleepers.len()) {
            let Sleeper { asleep, thread } = &self.sleepers[next - 1];
            match thread.get().filter(|_| asleep.load(Ordering::SeqCst)) {
                Some(thread) => thread.unpark(),
                None => self.wake(next),
            }
        }
    }

    fn withdraw(&self, run: &Arc<Run>) {
        self.runs.write().unwrap_or_else(PoisonError::into_inner).retain(|open| !Arc::ptr_eq(open, run));
    }

    /// The life of the helper of a number, which counts from 1.
    fn serve(&self, number: usize) {
        self.sleepers[number - 1].thread.get_or_init(thread::current);
        loop {
            let calls = self.calls.load(Ordering::Acquire);
            if let Some(run) = self.find() {
                run.help();
            } else if !self.look(calls) && !self.sleep(number, calls) {
                return;
            }
        }
    }

    /// A run that has calls left.
    fn find(&self) -> Option<Arc<Run>> {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        runs.iter().find(|run| run.tickets.left()).cloned()
    }

    /// Looks for another call for a while; says whether there was one.
    fn look(&self, calls: usize) -> bool {
        look_for(|| self.calls.load(Ordering::Relaxed) != calls)
    }

    /// Sleeps until there is another call; says whether the pool is still open.
    fn sleep(&self, number: usize, calls: usize) -> bool {
        let asleep = &self.sleepers[number - 1].asleep;
        asleep.store(true, Ordering::SeqCst);
        let open = || !self.closed.load(Ordering::SeqCst);
        while open() && self.calls.load(Ordering::SeqCst) == calls {
            thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
        // Whoever saw this one asleep has left them to it.
        self.wake(number);
        open()
    }
}

impl Crew {
    /// So many helpers, or an error and none.
    fn start(helpers: usize) -> std::io::Result<Self> {
        let board = Arc::new(Board::new(helpers));
        let mut crew = Self { process: std::process::id(), board, helpers: Vec::with_capacity(helpers) };
        for number in 1..=helpers {
            let board = Arc::clone(&crew.board);
            let helper = thread::Builder::new().name(format!("hammerhead-{number}"));
            crew.helpers.push(helper.spawn(move || board.serve(number))?);
        }
        Ok(crew)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.board.closed.store(true, Ordering::SeqCst);
        self.helpers.iter().for_each(|helper| helper.thread().unpark());
        for helper in self.helpers.drain(..) {
            // A helper catches its work's panics and has none of its own.
            let _ = helper.join();
        }
    }
}

impl Pool {
    /// So many threads, of which one is the caller's.
    pub(super) fn new(count: usize) -> Result<Self> {
        let refuse = |error| Error::Threads { threads: count, reason: format!("{error}; ask for fewer") };
        let crew = match count {
            1 => ptr::null_mut(),
            _ => Box::into_raw(Box::new(Crew::start(count - 1).map_err(refuse)?)),
        };
        Ok(Self { count, crew: AtomicPtr::new(crew) })
    }

    /// Where to offer a run in this process; nowhere if no helper can be had.
    fn board(&self) -> Option<&Board> {
        let found = self.crew.load(Ordering::Acquire);
        // SAFETY: null, or a crew that `new` or this function has made; what a pool points to is freed by its drop
        // alone.
        let crew = unsafe { found.as_ref() }?;
        if crew.process == std::process::id() {
            return Some(&crew.board);
        }
        // The crew stayed behind in the parent. Its memory is left alone: a helper may have held its lock when the
        // process was copied.
        let made = Box::into_raw(Box::new(Crew::start(self.count - 1).ok()?));
        match self.crew.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above, and freed by the pool's drop alone.
            Ok(_) => Some(unsafe { &(*made).board }),
            Err(_) => {
                // SAFETY: made above, and shown to nobody.
                drop(unsafe { Box::from_raw(made) });
                self.board()
            }
        }
    }
}

impl Workers for Pool {
    fn count(&self) -> usize {
        self.count
    }

    fn wake(&self) {
        if let Some(board) = self.board() {
            board.call();
        }
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        let Some(board) = self.board() else {
            (0..self.count).for_each(|_| work());
            return;
        };
        // SAFETY: only the lifetime changes. The pointer is used as `Run::help` says, and this function returns or
        // unwinds after that: `take_all` catches panics, and `wait` ends when nobody is inside.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
        let run = Arc::new(Run {
            tickets: Tickets::new(self.count),
            inside: AtomicUsize::new(0),
            work: Work(erased),
            caller: thread::current(),
        });
        board.offer(&run);
        run.tickets.take_all(work);
        board.withdraw(&run);
        run.wait();
        run.tickets.finish();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let crew = *self.crew.get_mut();
        // SAFETY: null, or made by `Box::into_raw` and not freed before.
        if unsafe { crew.as_ref() }.is_some_and(|crew| crew.process == std::process::id()) {
            // SAFETY: as seen, not null; nobody else has it, since the pool is being dropped.
            drop(unsafe { Box::from_raw(crew) });
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn work_is_called_once_per_thread_over_and_over() {
        for count in [1, 2, 7] {
            let (pool, calls) = (Pool::new(count).unwrap(), AtomicUsize::new(0));
            for round in 1..=100 {
                pool.run(&|| {
                    calls.fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(calls.load(Ordering::Relaxed), round * count);
            }
        }
    }

    #[test]
    fn helpers_come_if_there_is_time() {
        // Each call waits for the others: one thread alone would wait for ever.
        let (pool, barrier) = (Pool::new(3).unwrap(), Barrier::new(3));
        for _ in 0..10 {
            pool.run(&|| {
                barrier.wait();
            });
        }
    }

    #[test]
    fn helpers_that_sleep_are_woken_by_a_few_and_by_each_other() {
        let (pool, barrier) = (Pool::new(40).unwrap(), Barrier::new(40));
        let asleep = || pool.board().unwrap().sleepers.iter().filter(|each| each.asleep.load(Ordering::SeqCst)).count();
        for _ in 0..10 {
            while asleep() < 39 {
                thread::yield_now();
            }
            // Nobody is asked for yet, and whoever came up for nothing sleeps again.
            pool.wake();
            pool.run(&|| {
                barrier.wait();
            });
        }
    }

    #[test]
    fn nobody_is_waited_for_who_has_not_begun() {
        // The one helper is kept busy by another run, until long after the second one's end.
        let (pool, held) = (Pool::new(2).unwrap(), Barrier::new(3));
        thread::scope(|scope| {
            scope.spawn(|| {
                pool.run(&|| {
                    held.wait();
                    held.wait();
                });
            });
            held.wait();
            let calls = AtomicUsize::new(0);
            pool.run(&|| {
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(calls.into_inner(), 2);
            held.wait();
        });
    }

    #[test]
    fn several_callers_share_the_helpers() {
        let (pool, calls) = (Pool::new(3).unwrap(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(&|| {
                            calls.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(calls.into_inner(), 600);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| pool.run(&|| resume_unwind(Box::new("no")))));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"no"));
        let calls = AtomicUsize::new(0);
        pool.run(&|| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 3);
    }
}
