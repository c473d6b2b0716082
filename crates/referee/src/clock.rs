//! The referee's clock. No other clock counts: what a contestant says about time is not even read.

use std::time::Instant;

/// Something that tells time, in seconds since some moment.
pub trait Clock {
    /// The time.
    fn now(&self) -> f64;

    /// Seconds between two readings that differ: the smallest of many.
    fn resolution(&self) -> f64 {
        let tick = || {
            let start = self.now();
            // A clock that stands still has no resolution.
            let readings = std::iter::repeat_with(|| self.now()).take(1_000_000);
            readings.map(|now| now - start).find(|&passed| passed > 0.0).unwrap_or(f64::INFINITY)
        };
        (0..100).map(|_| tick()).fold(f64::INFINITY, f64::min)
    }
}

/// The monotonic clock of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Wall(Instant);

impl Wall {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for Wall {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Wall {
    fn now(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Jobs that a sample needs to be long enough for the clock, if one takes so many seconds. Twice the least, because the
/// other side may be faster than the one that was timed.
pub fn jobs_a_sample(seconds: f64, resolution: f64, least_ticks: f64, least_seconds: f64, most: usize) -> usize {
    let least = 2.0 * least_seconds.max(least_ticks * resolution);
    let jobs = (least / seconds.max(1e-9)).ceil();
    if jobs.is_finite() { (jobs as usize).clamp(1, most) } else { most }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A clock that moves by a quarter of a tick with every look at it, and shows whole ticks.
    struct Coarse(Cell<f64>, f64);

    impl Clock for Coarse {
        fn now(&self) -> f64 {
            self.0.set(self.0.get() + 0.25);
            self.0.get().floor() * self.1
        }
    }

    #[test]
    fn the_resolution_is_the_smallest_step_that_is_seen() {
        assert_eq!(Coarse(Cell::new(0.0), 0.125).resolution(), 0.125);
    }

    #[test]
    fn a_clock_that_stands_still_cannot_time_anything() {
        assert_eq!(Coarse(Cell::new(0.0), 0.0).resolution(), f64::INFINITY);
    }

    #[test]
    fn a_sample_is_long_enough_for_the_clock() {
        // 200 µs are the longer of the two with a fine clock, 1000 ticks with a coarse one.
        assert_eq!(jobs_a_sample(1e-4, 1e-9, 1000.0, 200e-6, 256), 4);
        assert_eq!(jobs_a_sample(1e-4, 1e-6, 1000.0, 200e-6, 256), 20);
        assert_eq!(jobs_a_sample(1.0, 1e-9, 1000.0, 200e-6, 256), 1);
        assert_eq!(jobs_a_sample(1e-9, f64::INFINITY, 1000.0, 200e-6, 256), 256);
    }
}
