//! What a contestant's process may take: part of the referee's settings, and kept where it is enforced.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The longest that anything is waited for, in seconds: eleven days.
pub const LONGEST_WAIT: f64 = 1e6;

/// What a contestant's process may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Seconds for its build command.
    pub build_seconds: f64,
    /// Seconds until it answers `hello`.
    pub hello_seconds: f64,
    /// Seconds until it answers `prepare`.
    pub prepare_seconds: f64,
    /// Seconds until it answers `run`.
    pub run_seconds: f64,
    /// Seconds for all answers from a start to its end: an examination asks hundreds of things, and each may take as
    /// long as it may.
    pub session_seconds: f64,
    /// Seconds to leave after `bye` before it is killed.
    pub bye_seconds: f64,
    /// Bytes of memory: of address space for each process (not where there is a GPU, whose driver reserves addresses
    /// for all memory), and of what is in use for all of them together, which is three quarters of the machine's at
    /// most.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Bytes of any file that it writes.
    pub file_bytes: u64,
    /// Bytes of the scratch folder that is its own (`TMPDIR` and `HOME`), which goes with it; of `/dev/shm`, which is
    /// its own too; and of what it writes to its standard error.
    pub scratch_bytes: u64,
    /// Whether it may use the network.
    pub network: bool,
    /// Names of the environment's variables that are passed on. Nothing else is.
    pub environment: Vec<String>,
    /// Files and folders that it may read beside the system's and its own, for example a toolchain.
    pub readable: Vec<PathBuf>,
}

/// What programs need to find their libraries, their language and their device; no secret is among it.
const ENVIRONMENT: [&str; 7] =
    ["PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

impl Default for Limits {
    fn default() -> Self {
        Self {
            build_seconds: 600.0,
            hello_seconds: 20.0,
            prepare_seconds: 120.0,
            run_seconds: 60.0,
            session_seconds: 3600.0,
            bye_seconds: 2.0,
            memory_bytes: 64 << 30,
            processes: 512,
            file_bytes: 4 << 30,
            scratch_bytes: 1 << 30,
            network: false,
            environment: ENVIRONMENT.map(str::to_owned).to_vec(),
            readable: Vec::new(),
        }
    }
}

impl Limits {
    /// Bytes that all of a contestant's processes may have in use on this machine: what it may take, and three quarters
    /// of what there is at most. The referee and the rival are here as well.
    pub(super) fn memory_here(&self) -> u64 {
        machine_bytes().map_or(self.memory_bytes, |all| self.memory_bytes.min(all / 4 * 3))
    }

    /// Refuses times that nobody can wait.
    pub fn check(&self) -> Result<()> {
        for (what, seconds) in [
            ("limits.build_seconds", self.build_seconds),
            ("limits.hello_seconds", self.hello_seconds),
            ("limits.prepare_seconds", self.prepare_seconds),
            ("limits.run_seconds", self.run_seconds),
            ("limits.session_seconds", self.session_seconds),
            ("limits.bye_seconds", self.bye_seconds),
        ] {
            if !(seconds > 0.0 && seconds <= LONGEST_WAIT) {
                let reason = format!("it is {seconds}; give a time above 0 and at most {LONGEST_WAIT}");
                return Err(Error::Settings { what, reason });
            }
        }
        Ok(())
    }
}

/// The memory of this machine, or of the part of it that this process may use.
fn machine_bytes() -> Option<u64> {
    let about = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes: u64 =
        about.lines().next()?.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let lent = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let lent = lent.iter().filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    lent.chain([kibibytes << 10]).min()
}
