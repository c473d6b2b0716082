//! Who else uses the processors: waiting until they go, and coming before them where they stay.
//!
//! It is asked while every contestant stands still and the referee itself sleeps, so what is busy then is others' work.

use std::time::{Duration, Instant};

use rustix::process::{getpriority_process, setpriority_process};

use crate::contestant::turns::set_turn;

/// How long the processors are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long is waited between looks.
const PAUSE: Duration = Duration::from_millis(450);

/// The niceness of referee and contestants while they are timed, where the system lets them have it.
const PRECEDENCE: i32 = -15;

/// The turns that they ask for, in nanoseconds: the shortest that Linux grants.
const TURN: u64 = 100_000;

/// Precedence over neighbours for the calling thread and for whatever it starts, until it is given back.
///
/// A sample takes a millisecond, and a scheduler that shares two processors among ten programs takes them away for
/// longer than that. Both sides get the same, one at a time. Where sessions are groups to the scheduler, each
/// contestant's session gets the same niceness. Turns are short besides, which everyone may ask for: who wants little
/// gets it soon.
#[derive(Debug)]
pub struct Precedence {
    before: Option<i32>,
}

impl Precedence {
    /// Takes precedence, where that is allowed.
    pub fn take() -> Self {
        let before = getpriority_process(None).ok();
        set_turn(Some(TURN));
        Self { before: before.filter(|_| setpriority_process(None, PRECEDENCE).is_ok()) }
    }

    /// What a reader should know where it is not allowed.
    pub fn remark(&self) -> Option<String> {
        let missing =
            "the referee may not raise its priority here (root may, or CAP_SYS_NICE), so neighbours disturb it more";
        self.before.is_none().then(|| missing.to_owned())
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        set_turn(None);
        if let Some(before) = self.before {
            // Whoever may come first may stand back; and if not, nothing is lost but politeness.
            let _ = setpriority_process(None, before);
        }
    }
}

/// Waits until others use less than this part of the processors, for so many seconds at most; says for how long. Where
/// the system does not tell, it does not wait.
pub(crate) fn wait(busy: f64, most: f64) -> f64 {
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < most {
        let Some(before) = times() else { break };
        std::thread::sleep(LOOK);
        let Some(after) = times() else { break };
        if used(before, after) < busy {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    if most > 0.0 { start.elapsed().as_secs_f64() } else { 0.0 }
}

/// What part of the processors was used between two looks.
fn used((busy, all): (f64, f64), (busy_later, all_later): (f64, f64)) -> f64 {
    (busy_later - busy) / (all_later - all).max(1.0)
}

/// Ticks of all processors so far: those that were used, and all.
fn times() -> Option<(f64, f64)> {
    of_text(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn of_text(text: &str) -> Option<(f64, f64)> {
    let ticks: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, waiting for disks, and so on; guests are counted as users already.
    let all: f64 = ticks.iter().take(8).sum();
    let idle: f64 = ticks.get(3)? + ticks.get(4)?;
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_what_is_not_idle() {
        let before = of_text("cpu  100 0 50 800 50 0 0 0 0 0\n").unwrap();
        let after = of_text("cpu  130 0 60 850 60 0 0 0 0 0\n").unwrap();
        assert!((used(before, after) - 0.4).abs() < 1e-12);
        assert_eq!(of_text("intr 5\n"), None);
    }

    #[test]
    fn precedence_is_given_back() {
        let before = getpriority_process(None).unwrap();
        let precedence = Precedence::take();
        let during = getpriority_process(None).unwrap();
        assert_eq!(during, if precedence.remark().is_none() { PRECEDENCE } else { before });
        drop(precedence);
        assert_eq!(getpriority_process(None).unwrap(), before);
    }

    #[test]
    fn whoever_may_not_wait_does_not() {
        assert_eq!(wait(0.0, 0.0), 0.0);
    }
}
