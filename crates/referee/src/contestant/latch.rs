//! A latch in a GPU's memory: how work that another process has queued is timed by the device's clock.
//!
//! A driver's events cannot be read by another process, and what the host's clock says of a run that a process was
//! woken for is mostly of the host. So a contestant has its stream wait for a word of lent memory, queues a run behind
//! that, and behind the run the writing of a second word; then its process is stopped, and nothing of a host is left in
//! what follows. One stream of the referee's does it:
//!
//! 1. It *warms up*: fills of memory that only it uses, for longer than the turn that a context has. Where the run is
//!    to begin cold it sweeps L2, after lines that somebody asked to persist there were made lines like any other.
//! 2. It notes the time, and only then copies the inputs to where the contestant reads them. Until then there is
//!    poison: a stream of the contestant's that waits for a word of its inputs, and not for the latch, starts inside
//!    the clock.
//! 3. It opens the latch by writing the first word, waits for the second, and notes the time again. That is what the
//!    run took.
//! 4. It takes a piece of every output, in an order that nobody knows, and then all of them. What was not written by
//!    then is not there, and a piece that differs from what came later was written after the end.
//! 5. It fills again.
//!
//! Two contexts take turns on a device. So whatever a contestant has there beside its run, in whatever stream, a kernel
//! that peeks at its inputs or one that works on after the end, makes fills and sweep take longer than they ever took,
//! and that is [`DeviceTime::outside`].
//!
//! The change of contexts, there and back, some 0.3 ms on an H200 and always the same, comes with the first kernel that
//! a run launches. What a kernel takes that does nothing ([`super::blank`]), with the same inputs to be copied, is
//! measured and taken off by whoever times.
//!
//! All of it, fills included, is timed by the host's clock as well: the second clock ([`DeviceTime::whole`]). NVIDIA's
//! profiling interface cannot be one, since it sees the kernels of its own process alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpu::driver::{Context, DeviceMemory, Event, Stream};

use super::DeviceTime;
use super::memory::{Memory, PAGE};
use super::protocol::{LATCH_DONE, OnGpu};
use crate::Result;
use crate::digits::hex;

/// Fills before a run and after it, and their bytes. An H200 takes 17 µs for one; a turn of a context lasts some
/// milliseconds.
const FILLS: usize = 300;
const FILL_BYTES: usize = 64 << 20;
/// Sweeps before a cold run.
const SWEEPS: usize = 4;
/// The largest piece of an output that is taken first.
const PIECE: usize = 4096;
/// How often it is looked whether a run is over.
const LOOK: Duration = Duration::from_micros(50);
/// The least that each kind of filling, of so many bytes, ever took: what it takes where nobody else is at work.
static QUIET: Mutex<BTreeMap<(Filling, usize), f64>> = Mutex::new(BTreeMap::new());

/// When memory is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Filling {
    Before,
    Sweep,
    After,
}

/// A latch.
pub(super) struct Latch {
    context: &'static Context,
    stream: Arc<Stream>,
    /// Which opens the latch where the other stream waits in vain.
    rescue: Stream,
    words: DeviceMemory,
    scratch: DeviceMemory,
    pieces: Option<DeviceMemory>,
    sweep: usize,
    value: u32,
}

/// The memory of a run, and the parts of it that its jobs use: offsets and bytes.
pub(super) struct Run<'a> {
    pub(super) inputs: &'a dyn Memory,
    pub(super) shown: Vec<(usize, usize)>,
    pub(super) outputs: &'a dyn Memory,
    pub(super) taken: Vec<(usize, usize)>,
    pub(super) limit: Duration,
}

/// What became of a run.
pub(super) enum Passed {
    /// It was over in time.
    Timed(DeviceTime),
    /// Something was written after it had said that it is over.
    Changed,
    /// It was not over in time.
    Late,
}

/// The moments of a run.
struct Moments {
    begun: Event,
    warm: Event,
    open: Event,
    done: Event,
    taken: Event,
    over: Event,
}

impl Latch {
    /// A latch whose words nobody has written yet. The stream is the one that tensors are copied in.
    pub(super) fn new(context: &'static Context, stream: &Arc<Stream>) -> Result<Self> {
        let words = DeviceMemory::new(context, "a latch", PAGE as usize)?;
        words.fill_now(0, stream)?;
        let scratch = DeviceMemory::new(context, "a sweep of its cache", FILL_BYTES)?;
        let (rescue, stream) = (Stream::new(context)?, Arc::clone(stream));
        Ok(Self { context, stream, rescue, words, scratch, pieces: None, sweep: 0, value: 0 })
    }

    /// By what a contestant opens its words.
    pub(super) fn handle(&self) -> Result<OnGpu> {
        Ok(OnGpu { handle: hex(&self.words.handle()?), bytes: self.words.bytes() as u64 })
    }

    /// Closes it: the value that both words are to have next.
    pub(super) fn close(&mut self) -> u32 {
        self.value = self.value.wrapping_add(1).max(1);
        self.value
    }

    /// Has the next run begin after so many bytes went through L2.
    pub(super) fn sweep(&mut self, bytes: u64) -> Result<()> {
        self.sweep = bytes as usize;
        if self.scratch.bytes() < self.sweep {
            self.scratch = DeviceMemory::new(self.context, "a sweep of its cache", self.sweep)?;
        }
        Ok(())
    }

    /// Opens it for what was queued behind it, and says what that took. Whatever happens, nothing of ours is on the
    /// device any more afterwards.
    pub(super) fn open(&mut self, run: &Run<'_>) -> Result<Passed> {
        let places = drawn(&run.taken);
        let bytes = places.iter().map(|(_, _, bytes)| bytes).sum::<usize>().max(1);
        if self.pieces.as_ref().is_none_or(|pieces| pieces.bytes() < bytes) {
            self.pieces = Some(DeviceMemory::new(self.context, "pieces of outputs", bytes)?);
        }
        let Some(pieces) = &self.pieces else { return Ok(Passed::Late) };
        run.inputs.hide(&run.shown)?;
        self.context.reset_persisting()?;
        let began = Instant::now();
        let queued = self.queue(run, pieces, &places);
        let in_time = queued.as_ref().is_ok_and(|moments| self.reaches(&moments.over, run.limit));
        let by_host = began.elapsed().as_secs_f64();
        if !in_time {
            self.rescue()?;
        }
        let done = self.stream.synchronize();
        let moments = queued?;
        done?;
        if !in_time {
            return Ok(Passed::Late);
        }
        let time = moments.time(std::mem::take(&mut self.sweep), by_host)?;
        Ok(match self.holds(pieces, &places, run.outputs)? {
            true => Passed::Timed(time),
            false => Passed::Changed,
        })
    }

    fn queue(&self, run: &Run<'_>, pieces: &DeviceMemory, places: &[(usize, usize, usize)]) -> Result<Moments> {
        let (first, second) = (self.words.address(), self.words.address() + LATCH_DONE);
        let mark = || Event::record(&self.stream);
        let begun = mark()?;
        self.fill(FILLS, FILL_BYTES)?;
        let warm = mark()?;
        self.fill(SWEEPS, self.sweep)?;
        let open = mark()?;
        // SAFETY: `open`, which alone calls this, waits for the stream before it returns, and holds all of this memory
        // until then.
        unsafe { run.inputs.queue_pass(&run.shown) }?;
        // SAFETY: both words lie in the page that this latch holds.
        unsafe { self.stream.write_word(first, self.value) }?;
        // SAFETY: as it says there, of the second word.
        unsafe { self.stream.wait_for_word(second, self.value) }?;
        let done = mark()?;
        // SAFETY: `open` holds the pieces and the outputs until the stream has done all of it.
        unsafe { run.outputs.queue_pieces(pieces, places) }?;
        // SAFETY: the outputs are held by the same caller for as long.
        unsafe { run.outputs.queue_pass(&run.taken) }?;
        let taken = mark()?;
        self.fill(FILLS, FILL_BYTES)?;
        Ok(Moments { begun, warm, open, done, taken, over: mark()? })
    }

    /// Queues fills.
    fn fill(&self, times: usize, bytes: usize) -> Result<()> {
        for _ in 0..if bytes > 0 { times } else { 0 } {
            // SAFETY: the scratch stays: whoever queues waits for the stream before it is replaced or given back.
            unsafe { self.scratch.fill_part(0, bytes, 0, &self.stream) }?;
        }
        Ok(())
    }

    /// Whether a moment comes within a limit.
    fn reaches(&self, moment: &Event, limit: Duration) -> bool {
        let start = Instant::now();
        while !moment.is_reached().unwrap_or(true) {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Opens the latch and ends the wait, so that nothing is left that waits for what does not come.
    fn rescue(&self) -> Result<()> {
        for word in [self.words.address(), self.words.address() + LATCH_DONE] {
            // SAFETY: both words lie in the page that this latch holds, and the stream is waited for.
            unsafe { self.rescue.write_word(word, self.value) }?;
        }
        Ok(self.rescue.synchronize()?)
    }

    /// Whether the pieces that were taken first are what came with the rest.
    fn holds(&self, pieces: &DeviceMemory, places: &[(usize, usize, usize)], outputs: &dyn Memory) -> Result<bool> {
        let mut first = vec![0; places.iter().map(|(_, _, bytes)| bytes).sum()];
        pieces.get(0, &mut first, &self.stream)?;
        let parts: Vec<_> = places.iter().map(|&(from, _, bytes)| (from, bytes)).collect();
        let Some(found) = outputs.read(&parts)? else { return Ok(false) };
        Ok(places.iter().zip(found).all(|(&(_, to, bytes), found)| found == first[to..to + bytes]))
    }
}

impl Moments {
    fn time(&self, swept: usize, by_host: f64) -> Result<DeviceTime> {
        let fillings = [
            (Filling::Before, FILL_BYTES, &self.begun, &self.warm),
            (Filling::Sweep, swept, &self.warm, &self.open),
            (Filling::After, FILL_BYTES, &self.taken, &self.over),
        ];
        let mut outside = 0.0;
        for (filling, bytes, from, to) in fillings {
            outside += beyond_quiet(filling, bytes, from.seconds_until(to)?);
        }
        let whole = [self.begun.seconds_until(&self.over)?, by_host];
        Ok(DeviceTime { seconds: self.open.seconds_until(&self.done)?, outside, whole })
    }
}

/// Notes what a filling took, and says how much more that is than it takes where nobody else is at work.
fn beyond_quiet(filling: Filling, bytes: usize, seconds: f64) -> f64 {
    let mut quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let least = quiet.entry((filling, bytes)).or_insert(seconds);
    *least = least.min(seconds);
    seconds - *least
}

/// A piece of each part, in an order that nobody knows: where it is there, where it goes, and its bytes.
fn drawn(parts: &[(usize, usize)]) -> Vec<(usize, usize, usize)> {
    let mut order: Vec<&(usize, usize)> = parts.iter().collect();
    fastrand::shuffle(&mut order);
    let mut end = 0;
    let piece = |&(at, bytes): &(usize, usize)| {
        let (length, start) = (bytes.min(PIECE), end);
        end += length;
        (at + fastrand::usize(..=bytes - length), start, length)
    };
    order.into_iter().map(piece).collect()
}
