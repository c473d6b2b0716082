//! What a contestant's process may take: part of the referee's settings, and kept where it is enforced.

use serde::{Deserialize, Serialize};

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
    /// Bytes of address space.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Bytes of any file that it writes.
    pub file_bytes: u64,
    /// Whether it may use the network.
    pub network: bool,
}

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
            network: false,
        }
    }
}
