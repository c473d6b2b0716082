//! The clock of a GPU: events around what is queued in a stream.
//!
//! What is timed lies between two events in the stream that it was queued in. Before the first the device is held back
//! with other work, so that the host has queued all of it when the first of it begins, and its launches cost nothing
//! that a loaded host would make longer. That work is a sweep through L2 where the run is to begin cold. After the
//! second the whole device is waited for: work in other streams, which the events do not see, makes that wait longer
//! ([`DeviceTime::outside`]), and is not forgotten.

use std::time::Instant;

use gpu::driver::{Context, DeviceMemory, Event, Stream};

use crate::Result;

/// Fills of a little memory that hold the device back, each for longer than it takes to queue it, and their bytes: a
/// part of L2 only.
const HOLDS: usize = 40;
const HOLD_BYTES: usize = 16 << 20;
/// Sweeps before a cold run.
const SWEEPS: usize = 4;

/// What a run took by a device's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceTime {
    /// Seconds between the events.
    pub seconds: f64,
    /// Seconds of the host's clock from when the second event was reached until the whole device had nothing left to
    /// do; of a run behind a latch, by how much longer than ever the referee's own work took before it and after it.
    pub outside: f64,
    /// Seconds of the run with all of the referee's own work around it, by the device's clock and by the host's: the
    /// second clock.
    pub whole: [f64; 2],
}

/// The clock of one device.
#[derive(Debug)]
pub struct DeviceClock {
    context: &'static Context,
    scratch: Option<DeviceMemory>,
    sweep: u64,
}

impl DeviceClock {
    /// A clock on a device.
    pub fn new(context: &'static Context) -> Self {
        Self { context, scratch: None, sweep: 0 }
    }

    /// Has the next run begin after so many bytes went through L2.
    pub fn sweep(&mut self, bytes: u64) {
        self.sweep = bytes;
    }

    /// Times what `queue` queues in a stream.
    pub fn time(&mut self, stream: &Stream, queue: impl FnOnce() -> Result<()>) -> Result<DeviceTime> {
        let began = Instant::now();
        let timed = self.between_events(stream, queue).map(|times| (times, began.elapsed().as_secs_f64()));
        // Whatever became of it: nothing may still use memory that its owner gives back next.
        let reached = Instant::now();
        let done = self.context.synchronize();
        let outside = reached.elapsed().as_secs_f64();
        let ([seconds, whole], by_host) = timed?;
        done?;
        Ok(DeviceTime { seconds, outside, whole: [whole, by_host] })
    }

    /// What is queued by the device's clock, alone and with what holds the device back.
    fn between_events(&mut self, stream: &Stream, queue: impl FnOnce() -> Result<()>) -> Result<[f64; 2]> {
        let begun = Event::record(stream)?;
        self.hold_back(stream)?;
        let before = Event::record(stream)?;
        queue()?;
        let after = Event::record(stream)?;
        Ok([before.seconds_until(&after)?, begun.seconds_until(&after)?])
    }

    fn hold_back(&mut self, stream: &Stream) -> Result<()> {
        let sweep = std::mem::take(&mut self.sweep) as usize;
        let (times, bytes) = if sweep == 0 { (HOLDS, HOLD_BYTES) } else { (SWEEPS, sweep) };
        if self.scratch.as_ref().is_none_or(|scratch| scratch.bytes() < bytes) {
            self.scratch = None;
            self.scratch = Some(DeviceMemory::new(self.context, "a sweep of its cache", bytes)?);
        }
        let Some(scratch) = &self.scratch else { return Ok(()) };
        // Lines that were asked to persist would outlive the sweep.
        self.context.reset_persisting()?;
        for _ in 0..times {
            // SAFETY: the scratch stays until `time` has waited for the whole device.
            unsafe { scratch.fill_part(0, bytes, 0, stream) }?;
        }
        Ok(())
    }
}
