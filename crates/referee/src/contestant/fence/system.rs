//! The fence on Linux: what is made ready before the fork, and what the child does with it.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cgroup::Pen;
use super::filter::Sockets;
use super::landlock::{Grant, Ruleset};
use super::spaces::Spaces;
use super::{Fence, Guard, Holding, Rules, Stillness, die_with_the_referee, filter, spaces};
use crate::contestant::limits::Limits;

/// What every program may read: the system's own programs and libraries, and what describes the machine.
const READABLE: &[&str] = &[
    "/usr",
    "/lib",
    "/lib64",
    "/lib32",
    "/bin",
    "/sbin",
    "/opt",
    "/nix/store",
    "/sys",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/locale.alias",
    "/etc/OpenCL",
    "/etc/python3",
    "/etc/ssl",
];
/// Devices that every program may use.
const DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/dri", "/dev/kfd"];

/// Signals that may wait for a contestant, and files that it may have open at once.
const PENDING: u64 = 4096;
const OPEN_FILES: u64 = 4096;

/// A fence that is ready to be entered, and afterwards what is known of it.
#[derive(Debug)]
pub(in crate::contestant) struct Enclosure {
    pen: Option<Pen>,
    told: File,
    strict: bool,
    network: bool,
}

/// What the child does between fork and exec.
#[derive(Debug)]
struct Entry {
    door: Option<RawFd>,
    inherited: Vec<RawFd>,
    strict: Option<Strict>,
    /// The niceness that its session is to have, where that is not the usual.
    weight: Option<String>,
    tell: OwnedFd,
}

#[derive(Debug)]
struct Strict {
    limits: Limits,
    /// Whether there is a GPU, whose driver reserves addresses for all memory of all devices: then addresses are not
    /// what is limited.
    gpu: bool,
    spaces: Spaces,
    ruleset: Option<Ruleset>,
    filter: Vec<libc::sock_filter>,
    /// What the child grants itself once it has mounted it.
    scratch: CString,
    /// Where it starts: in the folder that it may write to, as a build, or in its scratch.
    start: CString,
}

/// Puts a fence around what a command will start. The descriptors are kept open for it.
pub(in crate::contestant) fn enclose(
    command: &mut Command,
    fence: &Fence,
    inherited: Vec<RawFd>,
) -> io::Result<Enclosure> {
    let rules = match fence {
        Fence::Ours => None,
        Fence::Strangers(rules) => Some(rules),
    };
    let pen = Pen::new(rules.map(|rules| &rules.limits));
    let (told, tell) = pipe()?;
    let entry = Entry {
        door: pen.as_ref().map(Pen::door),
        inherited,
        strict: rules.map(|rules| strict(rules)),
        weight: weight_of_its_session(),
        tell,
    };
    // SAFETY: between fork and exec only system calls are made, on memory that was set up before.
    unsafe {
        command.pre_exec(move || entry.enter());
    }
    let network = rules.is_some_and(|rules| rules.limits.network);
    Ok(Enclosure { pen, told, strict: rules.is_some(), network })
}

impl Enclosure {
    /// What stops the process that was started, and what stands around it.
    pub(in crate::contestant) fn close(mut self, group: u32) -> (Stillness, Vec<Guard>) {
        let mut byte = [0];
        // The child has told before its exec, or died before.
        let holding = match self.told.read(&mut byte) {
            Ok(1) => Holding(byte[0]),
            _ => Holding::NOTHING,
        };
        let guards = if self.strict { self.guards(holding) } else { Vec::new() };
        (Stillness::new(self.pen, group), guards)
    }

    fn guards(&self, holding: Holding) -> Vec<Guard> {
        let pen = self.pen.as_ref();
        let guard =
            |name: &str, present: bool, without: &str| Guard { name: name.into(), present, without: without.into() };
        vec![
            guard(
                "freezer (cgroup v2)",
                pen.is_some(),
                "a stopped contestant can wake itself; its processor time in rests is counted instead",
            ),
            guard(
                "memory controller (cgroup v2)",
                pen.is_some_and(|pen| pen.memory),
                "memory is limited per process, and that of all of them looked at several times a second only",
            ),
            guard(
                "process controller (cgroup v2)",
                pen.is_some_and(|pen| pen.processes),
                "processes are counted several times a second, and by a limit of the user's that root does not have",
            ),
            guard(
                "user, process and network namespaces",
                holding.has(Holding::PEOPLE),
                "other processes of the user can be seen and signalled",
            ),
            guard(
                "a /proc of its own",
                holding.has(Holding::OWN_PROC),
                "other processes and their commands can be seen",
            ),
            guard(
                "read-only mounts",
                holding.has(Holding::READ_ONLY),
                "Landlock alone keeps it from writing to files that are not its own",
            ),
            guard("a scratch of limited size", holding.has(Holding::SCRATCH), "the disk can be filled file by file"),
            guard("Landlock", holding.has(Holding::LANDLOCK), "the user's files can be read"),
            guard(
                if self.network {
                    "filter of system calls (network allowed by the season)"
                } else {
                    "filter of system calls"
                },
                holding.has(Holding::FILTER),
                "sockets, rings and tracing are open",
            ),
        ]
    }
}

/// Where every session is a group to the scheduler (`sched_autogroup`), niceness counts within a session only, and
/// whoever is to come before others needs a session that does. It is the contestant's own, and its weight ends with it.
fn weight_of_its_session() -> Option<String> {
    let niceness = rustix::process::getpriority_process(None).ok()?;
    (niceness < 0).then(|| niceness.to_string())
}

fn pipe() -> io::Result<(File, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors, and both are taken over here and nowhere else.
    unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) {
            0 => Ok((File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn strict(rules: &Rules) -> Strict {
    let Rules { limits, reads, writes, scratch } = rules;
    let ruleset = Ruleset::new(limits.network);
    if let Some(ruleset) = &ruleset {
        READABLE.iter().for_each(|path| ruleset.grant(Path::new(path), Grant::Read));
        reads.iter().chain(&limits.readable).for_each(|path| ruleset.grant(path, Grant::Read));
        writes.iter().for_each(|path| ruleset.grant(path, Grant::All));
        DEVICES.iter().for_each(|path| ruleset.grant(Path::new(path), Grant::Use));
        for device in std::fs::read_dir("/dev").into_iter().flatten().flatten() {
            if device.file_name().to_string_lossy().starts_with("nvidia") {
                ruleset.grant(&device.path(), Grant::Use);
            }
        }
    }
    let gpu = Path::new("/dev/nvidiactl").exists();
    // What is not a process's own in /proc belongs to everyone, and root may write to it whatever namespace it is in:
    // where Landlock does not hold it, all of it is read-only. So it is where no GPU's driver has to write there.
    let shared = [limits.network, gpu && ruleset.is_some()];
    let spaces = Spaces::new(shared, scratch, limits.scratch_bytes, &covered(rules), writes);
    Strict {
        limits: limits.clone(),
        gpu,
        spaces,
        ruleset,
        filter: filter::program(Sockets::of(limits.network, gpu)),
        scratch: CString::new(scratch.as_os_str().as_bytes()).unwrap_or_default(),
        start: CString::new(writes.first().unwrap_or(scratch).as_os_str().as_bytes()).unwrap_or_default(),
    }
}

/// The home folder, unless something in it is needed.
fn covered(rules: &Rules) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir() && home.parent().is_some());
    let needed = |home: &PathBuf| {
        let places = rules.reads.iter().chain(&rules.writes).chain(&rules.limits.readable).chain([&rules.scratch]);
        places.into_iter().any(|place| place.starts_with(home))
    };
    home.filter(|home| !needed(home)).into_iter().collect()
}

impl Entry {
    /// Everything between fork and exec.
    fn enter(&self) -> io::Result<()> {
        // SAFETY: a plain system call. A process that was just forked leads no group, so that it is not refused.
        check(unsafe { libc::setsid() })?;
        if let Some(weight) = &self.weight {
            // Where sessions are no groups to the scheduler there is nothing to weigh.
            let _ = spaces::write(c"/proc/self/autogroup", weight.as_bytes());
        }
        if let Some(door) = self.door {
            // SAFETY: one byte that lives for as long as the call, to a descriptor that the referee holds open.
            let _ = unsafe { libc::write(door, b"0".as_ptr().cast(), 1) };
        }
        for file in &self.inherited {
            // SAFETY: a plain system call on a descriptor that the referee holds open.
            check(unsafe { libc::fcntl(*file, libc::F_SETFD, 0) })?;
        }
        let holding = match &self.strict {
            None => {
                die_with_the_referee()?;
                Holding::NOTHING
            }
            Some(strict) => strict.enter()?,
        };
        // SAFETY: one byte that lives for as long as the call, to a pipe that has room for it.
        unsafe { libc::write(self.tell.as_raw_fd(), (&raw const holding.0).cast(), 1) };
        Ok(())
    }
}

impl Strict {
    fn enter(&self) -> io::Result<Holding> {
        // Where memory runs out in spite of all limits, it is a contestant that is ended, not the referee. Anyone may
        // ask for that.
        let _ = spaces::write(c"/proc/self/oom_score_adj", b"1000");
        let mut holding = self.spaces.enter()?;
        let Limits { memory_bytes, file_bytes, processes, .. } = self.limits;
        limit(libc::RLIMIT_CORE, 0)?;
        if !self.gpu {
            limit(libc::RLIMIT_AS, memory_bytes)?;
        }
        limit(libc::RLIMIT_FSIZE, file_bytes)?;
        // What waits for its turn in the kernel while a contestant stands still takes the rival's time when it comes.
        limit(libc::RLIMIT_SIGPENDING, PENDING)?;
        limit(libc::RLIMIT_NOFILE, OPEN_FILES)?;
        // Nobody comes before others.
        limit(libc::RLIMIT_RTPRIO, 0)?;
        limit(libc::RLIMIT_NICE, 0)?;
        if holding.has(Holding::PEOPLE) {
            // In a user namespace of its own only its own processes are counted; outside all of the user's would be.
            limit(libc::RLIMIT_NPROC, processes)?;
        }
        die_with_the_referee()?;
        // SAFETY: a plain system call with numbers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        if let Some(ruleset) = &self.ruleset {
            ruleset.grant_here(&self.scratch, Grant::All);
            ruleset.grant_here(c"/proc", Grant::Read);
            if self.gpu {
                // Its driver names its threads there.
                ruleset.grant_here(c"/proc/self", Grant::Use);
            }
            if holding.has(Holding::SCRATCH) {
                ruleset.grant_here(c"/dev/shm", Grant::All);
            }
            // Without it all of /proc would be open.
            ruleset.bind()?;
            holding = holding.and(Holding::LANDLOCK);
        }
        // SAFETY: the path ends and lives for as long as the call. A folder that cannot be entered is found by whoever
        // writes there.
        unsafe { libc::chdir(self.start.as_ptr()) };
        if filter::bind(&self.filter).is_ok() {
            holding = holding.and(Holding::FILTER);
        }
        Ok(holding)
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lowers a limit. Where the user's own is lower already, that stays: nobody but root may raise it.
fn limit(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit lives on this stack for as long as the call.
    check(unsafe { libc::getrlimit(resource, &mut now) })?;
    let most = most.min(now.rlim_max);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the limit lives on this stack for as long as the call.
    check(unsafe { libc::setrlimit(resource, &limit) })
}
