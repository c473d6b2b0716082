//! The host's OpenMP team while it is prompt, threads of our own while it is not.
//!
//! Right after an operation of the host's its team is awake and ours would share the cores with it, so joining it costs
//! least: on a quiet machine a call then takes as long as alone, and on threads of our own up to 1.75 times as long.
//! But a parallel region ends when its last thread comes back. Where another process holds that thread's core, that
//! takes a slice of the scheduler's: 8 ms were measured where threads of our own took 2. So every region is watched,
//! and one that keeps its caller waiting sends the next runs to our own threads, for longer each time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use op::{Result, Workers};

use super::openmp::OpenMp;
use super::pool::Pool;

/// What a caller waits at most at the end of a region, if that is not a good part of its work anyway.
const PROMPT: Duration = Duration::from_millis(1);
/// Runs on our own threads after a region that was late: at first, and at most.
const FEW: u32 = 16;
const MANY: u32 = 1024;

/// Threads of the host's or of our own, whichever are better at the time.
#[derive(Debug)]
pub struct Joined {
    host: OpenMp,
    own: Pool,
    trust: Trust,
}

impl Joined {
    /// So many threads, if an OpenMP runtime is loaded.
    pub fn find(count: usize) -> Result<Self> {
        let host = OpenMp::find(count)?;
        Ok(Self { host, own: Pool::new(count)?, trust: Trust::default() })
    }
}

impl Workers for Joined {
    fn count(&self) -> usize {
        self.host.count()
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        if self.trust.withheld() {
            return self.own.run(work);
        }
        let (busy, waiting) = self.host.run_timed(work);
        self.trust.learn(busy, waiting);
    }

    fn wake(&self) {
        if self.trust.is_withheld() {
            self.own.wake();
        }
    }
}

/// How many runs the host's team is not asked for.
#[derive(Debug)]
struct Trust {
    withheld: AtomicU32,
    next: AtomicU32,
}

impl Default for Trust {
    fn default() -> Self {
        Self { withheld: AtomicU32::new(0), next: AtomicU32::new(FEW) }
    }
}

impl Trust {
    /// Whether this run is for our own threads. If several threads ask at once, a run more or less is not worth a lock.
    fn withheld(&self) -> bool {
        let left = self.withheld.load(Ordering::Relaxed);
        self.withheld.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Whether the next run is for our own threads.
    fn is_withheld(&self) -> bool {
        self.withheld.load(Ordering::Relaxed) > 0
    }

    /// A region kept its caller busy for so long, and then waiting.
    fn learn(&self, busy: Duration, waiting: Duration) {
        if waiting > PROMPT && waiting > busy / 2 {
            let runs = self.next.load(Ordering::Relaxed);
            self.withheld.store(runs, Ordering::Relaxed);
            self.next.store((2 * runs).min(MANY), Ordering::Relaxed);
        } else {
            self.next.store(FEW, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(300);
    const LONG: Duration = Duration::from_millis(6);

    /// Runs until the host's team is asked again.
    fn own_runs(trust: &Trust) -> usize {
        std::iter::from_fn(|| trust.withheld().then_some(())).count()
    }

    #[test]
    fn a_prompt_team_is_asked_every_time() {
        let trust = Trust::default();
        trust.learn(SHORT, SHORT);
        trust.learn(100 * LONG, LONG);
        assert_eq!(own_runs(&trust), 0);
    }

    #[test]
    fn a_late_team_is_left_alone_for_longer_each_time_and_forgiven_at_once() {
        let trust = Trust::default();
        let late: Vec<usize> = (0..9)
            .map(|_| {
                trust.learn(SHORT, LONG);
                own_runs(&trust)
            })
            .collect();
        assert_eq!(late, [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        trust.learn(SHORT, SHORT);
        trust.learn(SHORT, LONG);
        assert_eq!(own_runs(&trust), 16);
    }
}
