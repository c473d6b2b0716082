//! How a contestant is made to stand still, and how that is known.
//!
//! In a pen the kernel's freezer does it, and says when the last task has stopped. Without one the process group gets a
//! stop signal, and every task of it is looked at until it stands. A process that is stopped by a signal can have
//! itself woken by another, from a timer or anything else; so what it consumed of the processors while it should have
//! rested is counted either way. The kernel's accounts are late by ticks, later on a loaded machine, so an innocent
//! rest can look busy now and then: blame needs more than ticks explain, and more often the longer a session is.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use super::cgroup::{self, Pen};
use super::signal;

/// Ticks of the kernel's clock by which its accounts of processor time may be late without anybody's doing.
const LATE_TICKS: u32 = 3;
/// Busy rests of one session that are blamed, and one more for as many rests as this. An innocent one in a thousand
/// then convicts three sessions in ten thousand, however long they are: two of 25 rests do, and three of 50 hardly
/// ever. Without the second number two of a thousand would convict one session in four. Who gains by its rests has to
/// use half of them, to move a median, and is blamed at the fifth at the latest.
const BLAMED: u32 = 2;
const RESTS: u32 = 25;
/// Busy rests that are blamed where they lie within as many rests on end as that, however quiet the session was before:
/// a contestant may be busy in one shape alone. Of an innocent's windows of 25 rests, two or three in a million have so
/// many.
const CLUSTER: usize = 3;
/// How long a contestant may take to stand still.
const LIMIT: Duration = Duration::from_secs(10);

/// What stops a contestant.
#[derive(Debug)]
pub(in crate::contestant) struct Stillness {
    #[cfg(target_os = "linux")]
    pen: Option<Pen>,
    group: u32,
    since: Option<Duration>,
    /// Rests so far, and those of them that were busier than ticks explain.
    rests: u32,
    busy: u32,
    /// Which rests the last busy ones were.
    last: VecDeque<u32>,
    /// How soon the kernel was to end it where memory runs out, when it was started.
    doom: Option<i32>,
}

impl Stillness {
    #[cfg(target_os = "linux")]
    pub(in crate::contestant) fn new(pen: Option<Pen>, group: u32) -> Self {
        Self { pen, group, since: None, rests: 0, busy: 0, last: VecDeque::new(), doom: doom(group) }
    }

    #[cfg(not(target_os = "linux"))]
    pub(in crate::contestant) fn new(group: u32) -> Self {
        Self { group, since: None, rests: 0, busy: 0, last: VecDeque::new(), doom: doom(group) }
    }

    /// Makes it stand, and comes back when it does.
    pub(in crate::contestant) fn stop(&mut self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if let Some(pen) = &self.pen {
            return pen.freeze(LIMIT);
        }
        signal(self.group, libc::SIGSTOP)?;
        let start = Instant::now();
        while !members(self.group).into_iter().all(stands) {
            if start.elapsed() > LIMIT {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Lets it go on.
    pub(in crate::contestant) fn wake(&mut self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if let Some(pen) = &self.pen {
            return pen.thaw();
        }
        signal(self.group, libc::SIGCONT)
    }

    /// Notes what it has consumed so far. It stands still.
    pub(in crate::contestant) fn note(&mut self) {
        self.since = self.processor_time();
    }

    /// What it has consumed since the note, if that is more than ticks explain, and more often than chance does. Each
    /// rest is asked about once.
    pub(in crate::contestant) fn unrest(&mut self) -> Option<Duration> {
        let passed = self.processor_time()?.checked_sub(self.since.take()?)?;
        self.blame(passed, LATE_TICKS * tick())
    }

    fn blame(&mut self, passed: Duration, explained: Duration) -> Option<Duration> {
        self.rests += 1;
        if passed <= explained {
            return None;
        }
        self.busy += 1;
        self.last.push_back(self.rests);
        if self.last.len() > CLUSTER {
            self.last.pop_front();
        }
        let crowded = self.last.len() == CLUSTER && self.rests - self.last[0] < RESTS;
        (crowded || self.busy >= BLAMED + self.rests / RESTS).then_some(passed)
    }

    fn processor_time(&self) -> Option<Duration> {
        #[cfg(target_os = "linux")]
        if let Some(pen) = &self.pen {
            return pen.processor_time();
        }
        Some(members(self.group).into_iter().filter_map(processor_time).sum())
    }

    /// Bytes that all of it holds.
    pub(in crate::contestant) fn memory_in_use(&self) -> u64 {
        #[cfg(target_os = "linux")]
        if let Some(pen) = &self.pen {
            return pen.memory_in_use().unwrap_or_else(|| pen.members().into_iter().map(resident).sum());
        }
        members(self.group).into_iter().map(resident).sum()
    }

    /// Its processes.
    pub(in crate::contestant) fn members(&self) -> Vec<u32> {
        #[cfg(target_os = "linux")]
        if let Some(pen) = &self.pen {
            return pen.members();
        }
        members(self.group)
    }

    /// Whether any of it has put itself behind others where the kernel looks for whom to end when memory runs out.
    pub(in crate::contestant) fn is_spared(&self) -> bool {
        self.members().into_iter().filter_map(doom).any(|now| self.doom.is_some_and(|then| now < then))
    }

    /// Ends all of it.
    pub(in crate::contestant) fn kill(&self) {
        #[cfg(target_os = "linux")]
        if let Some(pen) = &self.pen {
            pen.kill();
        }
        let _ = signal(self.group, libc::SIGKILL);
    }
}

/// Takes away what dead referees have left of pens.
pub(in crate::contestant) fn sweep() {
    #[cfg(target_os = "linux")]
    cgroup::sweep();
}

/// The kernel's tick: the step of its coarse clock. 10 ms, the longest that any kernel has, where that is not told.
fn tick() -> Duration {
    const LONGEST: Duration = Duration::from_millis(10);
    #[cfg(target_os = "linux")]
    {
        let mut step = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the step lives on this stack for as long as the call.
        let told = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut step) == 0 };
        let nanoseconds = u64::try_from(step.tv_nsec).ok().filter(|&step| told && step > 0);
        nanoseconds.map_or(LONGEST, |step| Duration::from_nanos(step).min(LONGEST))
    }
    #[cfg(not(target_os = "linux"))]
    LONGEST
}

/// The fields of a process's `stat` after its name, which may hold anything.
fn fields(path: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// The processes of a group.
fn members(group: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let belongs = |process: &u32| {
        let of = fields(&format!("/proc/{process}/stat")).and_then(|fields| fields.get(2)?.parse::<u32>().ok());
        of == Some(group)
    };
    numbers.filter(belongs).collect()
}

/// Whether every task of a process is stopped, or dead.
fn stands(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut states =
        tasks.filter_map(|task| fields(&task.path().join("stat").display().to_string())?.into_iter().next());
    states.all(|state| matches!(state.as_str(), "T" | "t" | "Z" | "X"))
}

/// What a process has consumed, with all its threads, by the kernel's own clock of it.
fn processor_time(process: u32) -> Option<Duration> {
    let process = libc::pid_t::try_from(process).ok()?;
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both places live on this stack for as long as the calls; the second is made with a clock that the first
    // has named.
    let read =
        unsafe { libc::clock_getcpuclockid(process, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0 };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    read.then(|| Duration::new(seconds, nanoseconds))
}

/// How soon the kernel ends a process where memory runs out; nothing where it does not say.
fn doom(process: u32) -> Option<i32> {
    std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).ok()?.trim().parse().ok()
}

/// What a process holds in memory.
fn resident(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    fn stillness() -> Stillness {
        Stillness::new(None, 0)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn late_accounts_are_nobodys_fault_and_one_busy_rest_may_be_chance() {
        let (tick, mut stillness) = (Duration::from_millis(4), stillness());
        // What two innocents were once blamed for on a loaded machine, and a champion over Slurm.
        for late in [2.6, 4.0, 8.1, 11.9].map(|ms| Duration::from_secs_f64(ms / 1e3)) {
            assert_eq!(stillness.blame(late, LATE_TICKS * tick), None);
        }
        let burnt = Duration::from_millis(13);
        assert_eq!(stillness.blame(burnt, LATE_TICKS * tick), None, "once");
        assert_eq!(stillness.blame(Duration::ZERO, LATE_TICKS * tick), None);
        assert_eq!(stillness.blame(burnt, LATE_TICKS * tick), Some(burnt), "twice");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_long_session_is_not_blamed_for_what_chance_does_and_who_burns_its_rests_is_soon() {
        let (burnt, explained) = (Duration::from_millis(13), Duration::from_millis(12));
        // When a session is blamed whose rests are busy where `busy` says so.
        let blamed = |busy: &dyn Fn(u32) -> bool| {
            let mut stillness = stillness();
            let passed = |rest| if busy(rest) { burnt } else { Duration::ZERO };
            (1..=10_000).find(|&rest| stillness.blame(passed(rest), explained).is_some())
        };
        assert_eq!(blamed(&|rest| rest % 30 == 0), None, "one in thirty, evenly, is what a bad machine does");
        assert_eq!((blamed(&|_| true), blamed(&|rest| rest % 2 == 1)), (Some(2), Some(3)));
        assert_eq!(blamed(&|rest| rest > 1000 && rest % 2 == 0), Some(1006), "also late, in one shape");
        assert_eq!(blamed(&|rest| [1001, 1013, 1025].contains(&rest)), Some(1025), "the third of 25 rests on end");
        assert_eq!(blamed(&|rest| [1001, 1013, 1026].contains(&rest)), None, "two of 25 on end, twice");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_is_no_longer_ended_before_others_is_noticed() {
        use std::os::unix::process::CommandExt;
        let mut child = std::process::Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let doomed = |how: &str| std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), how).unwrap();
        doomed("1000");
        let stillness = Stillness::new(None, child.id());
        let first = stillness.is_spared();
        doomed("900");
        let spared = stillness.is_spared();
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!((first, spared), (false, true));
    }

    #[test]
    fn a_tick_is_one_that_kernels_have() {
        assert!((1..=10).contains(&tick().as_millis()), "{:?}", tick());
    }
}
