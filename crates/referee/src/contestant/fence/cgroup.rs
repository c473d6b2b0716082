//! A pen: a control group of version 2 around everything that a contestant starts.
//!
//! It can be frozen, which no signal, timer or child undoes, and says when every task in it really stands still; it
//! counts the processor time of all of them, those that are gone too; and it is killed whole. Where the system lends us
//! the controllers for memory and processes, they are limited for all of them together.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::contestant::limits::Limits;

/// How the name of a pen begins; the referee's process and a number follow.
const PREFIX: &str = "hammerhead-tank-";
/// How long the end of what was killed is waited for.
const BURIAL: Duration = Duration::from_secs(5);

/// How long tasks are looked at without a pause until they stand still, and how long that pause is. They stand after
/// some microseconds, unless one of them needs the processor that looks.
const SPIN: Duration = Duration::from_micros(100);
const NAP: Duration = Duration::from_micros(10);

/// A control group of our own.
#[derive(Debug)]
pub(in crate::contestant) struct Pen {
    folder: PathBuf,
    door: File,
    freeze: File,
    events: File,
    time: File,
    /// Whether memory is limited for all tasks together.
    pub(super) memory: bool,
    /// Whether processes are.
    pub(super) processes: bool,
}

impl Pen {
    /// A new one, if the system lets us have it.
    pub(super) fn new(limits: Option<&Limits>) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = ground()?.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let pen = Self::open(&folder, limits);
        if pen.is_none() {
            let _ = fs::remove_dir(&folder);
        }
        pen
    }

    fn open(folder: &Path, limits: Option<&Limits>) -> Option<Self> {
        let writable = |name: &str| OpenOptions::new().write(true).open(folder.join(name)).ok();
        let limit = |name: &str, most: u64| fs::write(folder.join(name), most.to_string()).is_ok();
        let memory = limits.is_some_and(|limits| {
            // What is swapped out would not be counted.
            let _ = limit("memory.swap.max", 0);
            limit("memory.max", limits.memory_here())
        });
        let processes = limits.is_some_and(|limits| limit("pids.max", limits.processes));
        Some(Self {
            door: writable("cgroup.procs")?,
            freeze: writable("cgroup.freeze")?,
            events: File::open(folder.join("cgroup.events")).ok()?,
            time: File::open(folder.join("cpu.stat")).ok()?,
            folder: folder.to_owned(),
            memory,
            processes,
        })
    }

    /// What a process writes `0` to, to go in.
    pub(super) fn door(&self) -> RawFd {
        self.door.as_raw_fd()
    }

    /// Stops every task, and comes back when all of them stand still.
    pub(super) fn freeze(&self, limit: Duration) -> io::Result<()> {
        (&self.freeze).write_all(b"1")?;
        let start = Instant::now();
        while !self.says(b"frozen 1")? {
            if start.elapsed() > limit {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Whoever yields on a machine that others use gets its turn back milliseconds later: inside the clock.
            match start.elapsed() < SPIN {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(NAP),
            }
        }
        Ok(())
    }

    /// Lets them go on.
    pub(super) fn thaw(&self) -> io::Result<()> {
        (&self.freeze).write_all(b"0")
    }

    fn says(&self, words: &[u8]) -> io::Result<bool> {
        let mut text = [0; 128];
        let read = self.events.read_at(&mut text, 0)?;
        Ok(text[..read].windows(words.len()).any(|window| window == words))
    }

    /// Processor time of all tasks, those that are gone too.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        let mut text = [0; 128];
        let read = self.time.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..read]).ok()?;
        let microseconds = text.lines().next()?.strip_prefix("usage_usec ")?;
        microseconds.parse().ok().map(Duration::from_micros)
    }

    /// Bytes that all tasks hold, where they are counted.
    pub(super) fn memory_in_use(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join("memory.current")).ok()?.trim().parse().ok()
    }

    /// The processes in it.
    pub(super) fn members(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Ends every task.
    pub(super) fn kill(&self) {
        end(&self.folder);
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        self.kill();
        let start = Instant::now();
        while fs::remove_dir(&self.folder).is_err() && start.elapsed() < BURIAL {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Kills everything in a control group. Kernels before 5.14 have no word for that, and are asked process by process.
fn end(folder: &Path) {
    if fs::write(folder.join("cgroup.kill"), "1").is_err() {
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        for process in text.lines().filter_map(|line| line.parse::<libc::pid_t>().ok()) {
            // SAFETY: a plain system call; whoever is in this group was started by us.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        let _ = fs::write(folder.join("cgroup.freeze"), "0");
    }
}

/// Takes away pens of referees that are dead, with whoever still is in them.
pub(super) fn sweep() {
    let Some(ground) = ground() else { return };
    for entry in fs::read_dir(ground).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(owner) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if !Path::new("/proc").join(owner).exists() {
            end(&entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The control group that we are in ourselves, with the controllers that it can lend switched on.
fn ground() -> Option<&'static Path> {
    static GROUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
        let ours = fs::read_to_string("/proc/self/cgroup").ok()?;
        let ours = ours.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let ground = Path::new(mount).join(ours);
        // Where a controller is not ours to lend the write fails, and the record says that it is missing.
        for controller in ["+memory", "+pids"] {
            let _ = fs::write(ground.join("cgroup.subtree_control"), controller);
        }
        Some(ground)
    };
    GROUND.get_or_init(find).as_deref()
}
