//! The fence around a contestant's process, and around what builds it.
//!
//! - **A pen** ([`cgroup`]): a control group in which all that it starts is frozen, timed and killed whole. Where there
//!   is none, a process group that nobody can leave, stopped by signals and watched ([`stillness`]).
//! - **Namespaces** ([`spaces`]): no other processes, no network, every file system read-only but a scratch of limited
//!   size.
//! - **Landlock** ([`landlock`]): a list of places that may be read; all else, home folders with their secrets, may not
//!   even be.
//! - **A filter of system calls** ([`filter`]): no sockets of any family, no rings, no tracing, no namespaces of one's
//!   own.
//! - **Limits** on address space, processes and the size of files; no core files. An environment that is a list.
//!
//! A kernel need not have all of them. What stands around a process is told by the process itself on its way in, and
//! goes into the record guard by guard, with what is open without it ([`Guard`]).

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(target_os = "linux")]
mod spaces;
mod stillness;
#[cfg(target_os = "linux")]
mod system;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod system;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(super) use stillness::{Stillness, sweep};
pub(super) use system::enclose;

use super::limits::Limits;

/// One of the things that hold a contestant, and whether it stood around this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// Its name.
    pub name: String,
    /// Whether it was there.
    pub present: bool,
    /// What is open where it is missing.
    pub without: String,
}

/// What is to be put around a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fence {
    /// For our own code: a pen, and nothing else. GPU drivers need more than strangers may have.
    Ours,
    /// For anyone's program.
    Strangers(Box<Rules>),
}

/// What a stranger's process is held to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rules {
    /// What it may take.
    pub(super) limits: Limits,
    /// What it may read and execute beside the system's own programs and libraries.
    pub(super) reads: Vec<PathBuf>,
    /// What it may write: the folder that it is built in.
    pub(super) writes: Vec<PathBuf>,
    /// A folder that is its own, and goes with it.
    pub(super) scratch: PathBuf,
}

/// What the child has put around itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holding(u8);

impl Holding {
    const NOTHING: Self = Self(0);
    /// User, process, network and IPC namespaces.
    const PEOPLE: Self = Self(1);
    const OWN_PROC: Self = Self(2);
    const READ_ONLY: Self = Self(4);
    const SCRATCH: Self = Self(8);
    const LANDLOCK: Self = Self(16);
    const FILTER: Self = Self(32);

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Asked for after the namespaces were left, because leaving them forgets it.
fn die_with_the_referee() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: a plain system call with numbers.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Signals a process group: stop, continue or kill it, whole.
pub(super) fn signal(group: u32, signal: libc::c_int) -> io::Result<()> {
    let group = libc::pid_t::try_from(group).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: a plain system call. The group is that of a child that was not waited for yet, so its number is not
    // another's.
    match unsafe { libc::kill(-group, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What lies beside a `bin` and belongs to what lies in it. Not the whole prefix: in a home folder there are keys
/// beside programs.
const BESIDE_PROGRAMS: [&str; 11] =
    ["bin", "lib", "lib64", "libexec", "share", "include", "shims", "version", "versions", "toolchains", "pyvenv.cfg"];

/// What a command's own files need: of each word that is a file its folder, and of a program in a `bin` what lies
/// beside that, where interpreters keep their libraries. A folder that holds the user's home would give all of it away,
/// so there it is the file alone.
pub(super) fn places_of(command: &[String]) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home != Path::new("/"));
    let gives_home_away =
        |folder: &Path| folder.parent().is_none() || home.as_ref().is_some_and(|home| home.starts_with(folder));
    let mut places = Vec::new();
    for (index, word) in command.iter().enumerate() {
        // Where the referee was started says nothing of what a contestant means by a word.
        let named = || Some(PathBuf::from(word)).filter(|path| path.is_absolute() && path.is_file());
        let found = if index == 0 { find_program(word) } else { named() };
        let Some(path) = found else { continue };
        // As it is written and as it is: a link may lead elsewhere.
        for path in [std::path::absolute(&path).ok(), path.canonicalize().ok()].into_iter().flatten() {
            let folder = path.parent().unwrap_or(Path::new("/"));
            match folder.parent().filter(|_| folder.ends_with("bin") || folder.ends_with("shims")) {
                Some(prefix) => places.extend(BESIDE_PROGRAMS.map(|name| prefix.join(name))),
                None if gives_home_away(folder) => places.push(path),
                None => places.push(folder.to_owned()),
            }
        }
    }
    places.sort();
    places.dedup();
    places.retain(|place| place.exists());
    places
}

/// Where a program is that a command names.
pub(super) fn find_program(word: &str) -> Option<PathBuf> {
    if word.contains('/') {
        return Some(PathBuf::from(word));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(word)).find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_folder_is_never_given_whole() {
        let home = PathBuf::from(std::env::var("HOME").unwrap());
        let folder = tempfile::tempdir_in(&home).unwrap();
        let (inside, beside) = (folder.path().join("kernel"), home.join(".hammerhead-test-kernel"));
        for path in [&inside, &beside] {
            std::fs::write(path, "").unwrap();
        }
        let of = |path: &Path| places_of(&[path.display().to_string()]);
        let (given_inside, given_beside) = (of(&inside), of(&beside));
        std::fs::remove_file(&beside).unwrap();
        assert_eq!(given_inside, [folder.path()]);
        assert_eq!(given_beside, [beside]);
    }

    #[test]
    fn a_program_in_a_bin_brings_its_libraries_and_not_the_keys_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let [bin, lib, keys] = ["bin", "lib", "credentials"].map(|name| folder.path().join(name));
        for path in [&bin, &lib, &keys] {
            std::fs::create_dir(path).unwrap();
        }
        std::fs::write(bin.join("python3"), "").unwrap();
        assert_eq!(places_of(&[bin.join("python3").display().to_string()]), [bin, lib]);
    }
}
