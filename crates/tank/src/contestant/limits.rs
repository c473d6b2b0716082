//! What a contestant's process may take: part of the referee's settings, and kept where it is enforced.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The longest that anything is waited for, in seconds: eleven days.
pub(crate) const LONGEST_WAIT: f64 = 1e6;

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
    /// Seconds to leave after `bye` before it is killed.
    pub bye_seconds: f64,
    /// Bytes of memory: of address space for each process (not where there is a GPU, whose driver reserves addresses for all memory), and of what is
    /// in use for all of them together.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Bytes of any file that it writes.
    pub file_bytes: u64,
    /// Bytes of the scratch folder that is its own (`TMPDIR` and `HOME`), which goes with it.
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
    /// Refuses times that nobody can wait.
    pub fn check(&self) -> Result<()> {
        for (what, seconds) in [
            ("limits.build_seconds", self.build_seconds),
            ("limits.hello_seconds", self.hello_seconds),
            ("limits.prepare_seconds", self.prepare_seconds),
            ("limits.run_seconds", self.run_seconds),
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
