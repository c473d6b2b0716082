//! Landlock: which files a process may open, whatever their owner and mode say.
//!
//! A ruleset is made before the fork, where memory may be allocated; the child adds what it has mounted itself and
//! binds itself to it. libc has the numbers of these calls and not their structures, so those are written down here as
//! the kernel's `landlock.h` has them.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// Every right of the first version: the first thirteen.
const FIRST: u64 = (1 << 13) - 1;
/// What may be granted on something that is no folder.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

/// What is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// Reading and executing.
    Read,
    /// Reading and writing what is there: devices.
    Use,
    /// Everything.
    All,
}

impl Grant {
    fn rights(self) -> u64 {
        match self {
            Grant::Read => EXECUTE | READ_FILE | READ_DIR,
            // Without truncation NVIDIA's driver gives up: it opens a file of /proc with a flag that asks for it.
            Grant::Use => READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | IOCTL_DEV,
            Grant::All => u64::MAX,
        }
    }
}

#[repr(C)]
struct RulesetAttributes {
    files: u64,
    network: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: RawFd,
}

/// What a process may open.
#[derive(Debug)]
pub(super) struct Ruleset {
    own: OwnedFd,
    handled: u64,
}

/// The version of Landlock that this kernel has.
pub(super) fn version() -> Option<u32> {
    const ASK: libc::c_ulong = 1;
    // SAFETY: with no attributes and this flag the call returns a number and touches nothing.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, ASK) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

impl Ruleset {
    /// One that allows nothing yet, if this kernel has Landlock.
    pub(super) fn new(network: bool) -> Option<Self> {
        let version = version()?;
        let mut handled = FIRST;
        for (since, right) in [(2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)] {
            handled |= if version >= since { right } else { 0 };
        }
        // TCP from version 4; abstract sockets and signals to others from version 6.
        let attributes = RulesetAttributes {
            files: handled,
            network: if version >= 4 && !network { 3 } else { 0 },
            scoped: if version >= 6 { 3 } else { 0 },
        };
        let size: usize = match version {
            ..=3 => 8,
            4..=5 => 16,
            _ => 24,
        };
        // SAFETY: the attributes live on this stack for as long as the call, which reads `size` bytes of them.
        let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &attributes, size, 0usize) };
        let descriptor = RawFd::try_from(made).ok().filter(|descriptor| *descriptor >= 0)?;
        // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
        Some(Self { own: unsafe { OwnedFd::from_raw_fd(descriptor) }, handled })
    }

    /// Grants something on a path and what lies beneath it. A path that is not there needs no grant.
    pub(super) fn grant(&self, path: &Path, grant: Grant) {
        if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
            self.grant_here(&path, grant);
        }
    }

    /// The same without allocating, for a child between fork and exec.
    pub(super) fn grant_here(&self, path: &CStr, grant: Grant) {
        // SAFETY: the path is a string that ends, for as long as the call.
        let parent = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
        if parent < 0 {
            return;
        }
        // SAFETY: all zeros are a stat, which lives on this stack for as long as the call.
        let is_folder = unsafe {
            let mut about: libc::stat = std::mem::zeroed();
            libc::fstat(parent, &mut about) == 0 && about.st_mode & libc::S_IFMT == libc::S_IFDIR
        };
        let allowed = grant.rights() & self.handled & if is_folder { u64::MAX } else { OF_FILES };
        let rule = PathBeneath { allowed, parent };
        // SAFETY: the rule lives on this stack for as long as the call; the descriptor was opened above and is closed
        // once.
        unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, self.own.as_raw_fd(), 1usize, &rule, 0usize);
            libc::close(parent);
        }
    }

    /// Binds the calling process to it, for good. Needs `no_new_privs`.
    pub(super) fn bind(&self) -> io::Result<()> {
        // SAFETY: a plain system call with numbers.
        match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.own.as_raw_fd(), 0usize) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
