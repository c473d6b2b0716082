//! Namespaces: a view of the system in which there is nobody else, nothing to write to but a scratch of one's own, and
//! no network.
//!
//! All of it is done by the child between fork and exec, with strings that were written before: memory may not be
//! allocated there.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use super::{Holding, die_with_the_referee};

/// Whom a contestant takes itself for. Not root: whoever is that keeps its capabilities through an exec.
const USER_INSIDE: u32 = 1000;

/// Files in a scratch, at most. Empty ones take none of its size, and a kibibyte of the kernel's memory each.
const SCRATCH_FILES: u64 = 65_536;

/// What the child needs to know.
#[derive(Debug)]
pub(super) struct Spaces {
    flags: libc::c_int,
    /// Whether /proc may be written to, because something else keeps it to what is its own there: GPU drivers name
    /// their threads before anything else.
    writable_proc: bool,
    user_map: Vec<u8>,
    group_map: Vec<u8>,
    scratch: CString,
    scratch_options: CString,
    /// Folders that are covered by empty ones.
    covered: Vec<CString>,
    /// Folders that stay writable.
    writable: Vec<CString>,
}

/// What `mount_setattr` is told.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_space: u64,
}

impl Spaces {
    pub(super) fn new(
        [network, writable_proc]: [bool; 2],
        scratch: &Path,
        bytes: u64,
        covered: &[PathBuf],
        writable: &[PathBuf],
    ) -> Self {
        let network = if network { 0 } else { libc::CLONE_NEWNET };
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: neither call has conditions, and neither can fail.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        Self {
            flags: libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWPID | network,
            writable_proc,
            user_map: format!("{USER_INSIDE} {user} 1\n").into_bytes(),
            group_map: format!("{USER_INSIDE} {group} 1\n").into_bytes(),
            scratch: text(scratch),
            scratch_options: CString::new(format!("size={bytes},nr_inodes={SCRATCH_FILES},mode=0700"))
                .unwrap_or_default(),
            covered: covered.iter().map(|path| text(path)).collect(),
            writable: writable.iter().map(|path| text(path)).collect(),
        }
    }

    /// Leaves the common namespaces, if the kernel lets us, and goes on as the first process of the new ones.
    pub(super) fn enter(&self) -> io::Result<Holding> {
        // SAFETY: a plain system call with numbers. A kernel that refuses is a remark in the record, not an error.
        if unsafe { libc::unshare(self.flags) } != 0 {
            return Ok(Holding::NOTHING);
        }
        let mapped = write(c"/proc/self/setgroups", b"deny").is_ok()
            && write(c"/proc/self/gid_map", &self.group_map).is_ok()
            && write(c"/proc/self/uid_map", &self.user_map).is_ok();
        enter_process_space()?;
        let mut holding = Holding::PEOPLE;
        if mapped && self.make_private() {
            holding = self.remount(holding);
        }
        Ok(holding)
    }

    /// Nothing that is mounted from here on shows outside.
    fn make_private(&self) -> bool {
        mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)
    }

    fn remount(&self, mut holding: Holding) -> Holding {
        const OWN: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV;
        if mount(Some(c"proc"), c"/proc", Some(c"proc"), OWN | libc::MS_NOEXEC, None) {
            holding = holding.and(Holding::OWN_PROC);
        }
        // Before the rest becomes read-only: what is bound to itself is a mount of its own, which stays as it is.
        let bound = self.writable.iter().all(|path| mount(Some(path), path, None, libc::MS_BIND | libc::MS_REC, None));
        let read_only =
            bound && set_read_only(c"/", true) && self.writable.iter().all(|path| set_read_only(path, false));
        if read_only {
            holding = holding.and(Holding::READ_ONLY);
        }
        if self.writable_proc && holding.has(Holding::OWN_PROC) {
            set_read_only(c"/proc", false);
        }
        let shared = c"/dev/shm";
        let mut scratch = mount(Some(c"tmpfs"), &self.scratch, Some(c"tmpfs"), OWN, Some(&self.scratch_options));
        scratch &= mount(Some(c"tmpfs"), shared, Some(c"tmpfs"), OWN, Some(&self.scratch_options));
        if scratch {
            holding = holding.and(Holding::SCRATCH);
        }
        for path in &self.covered {
            mount(Some(c"tmpfs"), path, Some(c"tmpfs"), OWN | libc::MS_RDONLY, Some(c"size=4096,mode=0500"));
        }
        holding
    }
}

fn mount(from: Option<&CStr>, at: &CStr, kind: Option<&CStr>, flags: libc::c_ulong, options: Option<&CStr>) -> bool {
    let pointer = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: every string ends and lives for as long as the call, or is absent.
    unsafe { libc::mount(pointer(from), at.as_ptr(), pointer(kind), flags, pointer(options).cast()) == 0 }
}

/// Makes a mount, and with it all beneath, read-only or writable again.
fn set_read_only(path: &CStr, read_only: bool) -> bool {
    const READ_ONLY: u64 = 1;
    const RECURSIVE: libc::c_int = 0x8000;
    let (set, clear) = if read_only { (READ_ONLY, 0) } else { (0, READ_ONLY) };
    let attributes = MountAttributes { set, clear, propagation: 0, user_space: 0 };
    let flags = if read_only { RECURSIVE } else { 0 };
    let size = std::mem::size_of::<MountAttributes>();
    // SAFETY: path and attributes live for as long as the call, which reads `size` bytes of the latter.
    unsafe { libc::syscall(libc::SYS_mount_setattr, libc::AT_FDCWD, path.as_ptr(), flags, &attributes, size) == 0 }
}

/// Writes all of a small file at once, without allocating.
pub(super) fn write(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the path ends and lives for as long as the call; the bytes are the caller's; the descriptor is closed
    // once.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let written = libc::write(file, bytes.as_ptr().cast(), bytes.len());
        let failure = io::Error::last_os_error();
        libc::close(file);
        if written == bytes.len() as isize { Ok(()) } else { Err(failure) }
    }
}

/// A process namespace begins with the next child. That child goes on to become the contestant; this process stays
/// outside, waits for it and ends as it ended. It is the one that the referee knows, and the leader of the group that
/// both are in.
fn enter_process_space() -> io::Result<()> {
    // SAFETY: this process is itself fresh from a fork and has one thread.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(()),
        child => {
            die_with_the_referee()?;
            // Nobody in the namespace may open this process and reach out through it.
            // SAFETY: a plain system call with numbers.
            match unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) } {
                0 => stand_by(child),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

/// Waits for the contestant and ends as it did. Keeps no file open: a pipe is closed when the contestant closes it.
fn stand_by(child: libc::pid_t) -> ! {
    let mut status = 0;
    // SAFETY: plain system calls; this process has nothing else to do and owns no memory that anybody waits for.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
            (0..4096).for_each(|file| _ = libc::close(file));
        }
        while libc::waitpid(child, &mut status, 0) != child {}
        if libc::WIFSIGNALED(status) {
            libc::signal(libc::WTERMSIG(status), libc::SIG_DFL);
            libc::kill(libc::getpid(), libc::WTERMSIG(status));
        }
        libc::_exit(libc::WEXITSTATUS(status))
    }
}
