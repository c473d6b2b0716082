//! Whose turn it was: what the scheduler says of a run, and how a contestant gets its turn soon.
//!
//! Linux counts for each thread how long it ran and how long it stood in line for a processor (`/proc/…/schedstat`),
//! whatever kept it there. The second is time that others took. It says nothing of how fast a contestant is, so a run
//! may be judged disturbed by it without looking at its time.

use std::collections::HashMap;

/// What the scheduler says of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Queued {
    /// Seconds that its threads stood in line for a processor, all of them together.
    pub seconds: f64,
    /// Threads that ran at all.
    pub threads: usize,
}

/// The accounts of some processes' threads at one moment: nanoseconds that each ran, and that it stood in line.
#[derive(Debug)]
pub struct Accounts(HashMap<(u32, u32), [u64; 2]>);

impl Accounts {
    /// The accounts of all threads of these processes. Empty where the system does not keep any.
    pub fn of(processes: impl IntoIterator<Item = u32>) -> Self {
        let threads = |process: u32| {
            let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            tasks.filter_map(move |task| {
                let thread = task.file_name().to_str()?.parse().ok()?;
                Some(((process, thread), account(&std::fs::read_to_string(task.path().join("schedstat")).ok()?)?))
            })
        };
        Self(processes.into_iter().flat_map(threads).collect())
    }

    /// What has passed since earlier accounts, of whoever is still there.
    pub fn since(&self, earlier: &Self) -> Option<Queued> {
        let mut queued = Queued::default();
        for (thread, [ran, stood]) in &self.0 {
            let [ran_before, stood_before] = earlier.0.get(thread).copied().unwrap_or_default();
            queued.seconds += 1e-9 * stood.saturating_sub(stood_before) as f64;
            queued.threads += usize::from(*ran > ran_before);
        }
        (!self.0.is_empty()).then_some(queued)
    }
}

/// The first two numbers of a thread's `schedstat`.
fn account(text: &str) -> Option<[u64; 2]> {
    let mut words = text.split_whitespace().map(str::parse);
    Some([words.next()?.ok()?, words.next()?.ok()?])
}

/// How long the calling thread, and whatever it starts, runs at a time where others want to. The scheduler takes who
/// asks for short turns sooner (Linux 6.12 and later; before, nothing comes of it). `None` is as the system has it.
#[cfg(target_os = "linux")]
pub(crate) fn set_turn(nanoseconds: Option<u64>) {
    const SELF: libc::pid_t = 0;
    // SAFETY: all zeros are a sched_attr, which lives on this stack for as long as the calls; its size is told to both
    // of them.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let size = size_of::<libc::sched_attr>() as u32;
        if libc::syscall(libc::SYS_sched_getattr, SELF, &mut attributes, size, 0) == 0
            && attributes.sched_policy == libc::SCHED_OTHER as u32
        {
            attributes.sched_runtime = nanoseconds.unwrap_or(0);
            // Where it is refused, it waits as long as everyone.
            let _ = libc::syscall(libc::SYS_sched_setattr, SELF, &attributes, 0);
        }
    }
}

/// Elsewhere turns are as the system has them.
#[cfg(not(target_os = "linux"))]
pub(crate) fn set_turn(_nanoseconds: Option<u64>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_is_the_difference_of_accounts_and_who_is_new_begins_at_nothing() {
        let at =
            |threads: &[(u32, [u64; 2])]| Accounts(threads.iter().map(|&(thread, of)| ((1, thread), of)).collect());
        let (before, after) =
            (at(&[(1, [500, 70]), (2, [10, 0])]), at(&[(1, [900, 1070]), (2, [10, 0]), (3, [5, 500])]));
        let queued = after.since(&before).unwrap();
        assert!((queued.seconds - 1.5e-6).abs() < 1e-15 && queued.threads == 2, "{queued:?}");
        assert_eq!(at(&[]).since(&before), None, "a system that keeps no accounts says nothing");
        assert_eq!((account("12 34 5\n"), account("12"), account("")), (Some([12, 34]), None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_ran_is_counted() {
        let before = Accounts::of([std::process::id()]);
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
        assert!(Accounts::of([std::process::id()]).since(&before).unwrap().threads > 0);
    }
}
