//! How much memory is free, so that a problem too large for it is refused in words before the system ends the process
//! without any.

use std::fs;

use crate::{Error, Result};

/// Bytes that this process could still take: what the system has, or what its control group leaves it; `None` where
/// that cannot be told.
pub fn free() -> Option<f64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let system = available(&meminfo)?;
    let number = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<f64>().ok();
    match (number("memory.max"), number("memory.current")) {
        (Some(limit), Some(used)) => Some(system.min((limit - used).max(0.0))),
        _ => Some(system),
    }
}

/// Refuses work that needs more than there is.
pub fn require(needed: f64, what: impl Into<String>, remedy: &'static str) -> Result<()> {
    match free() {
        Some(free) if needed > free => Err(Error::Memory { what: what.into(), needed, free, remedy }),
        _ => Ok(()),
    }
}

fn available(meminfo: &str) -> Option<f64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kib() {
        assert_eq!(available("MemTotal: 10 kB\nMemAvailable:    3 kB\n"), Some(3072.0));
        assert_eq!(available("MemTotal: 10 kB\n"), None);
    }

    #[test]
    fn more_than_any_machine_has_is_refused_where_memory_can_be_told() {
        let refused = require(1e30, "everything", "ask for less");
        assert_eq!(refused.is_err(), free().is_some());
    }
}
