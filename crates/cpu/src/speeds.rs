//! How fast this machine is at what the model counts: bytes from memory, blocks expanded, blocks multiplied.
//!
//! Without a measurement the model goes by what the kernels' authors measured on their machine ([`Speeds::stated`]).
//! What [`measure`](crate::measure()) finds here can be written down as names with numbers ([`Speeds::entries`]), read
//! back, and put in place of those ([`Speeds::install`]), once per process and before its first plan: a process plans
//! by one set of speeds.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What the model goes by where nothing was measured: bytes per second that one thread reads from memory, and all
/// together.
const STATED_BANDWIDTH: Bandwidth = Bandwidth { thread: 13e9, machine: 200e9 };

/// What bandwidths are called among the entries.
const THREAD: &str = "bytes thread";
const MACHINE: &str = "bytes machine";

static INSTALLED: OnceLock<Speeds> = OnceLock::new();

/// The speeds of one machine: names with numbers, bytes per second or seconds per piece of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Speeds {
    bandwidth: Bandwidth,
    work: BTreeMap<String, f64>,
}

/// Bytes per second from memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bandwidth {
    pub thread: f64,
    pub machine: f64,
}

/// A loop's speed, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    /// To expand one block of 16 × 16.
    pub expand: f64,
    /// To multiply one group of rows with one block.
    pub multiply: f64,
}

impl Speeds {
    /// What the kernels' authors measured.
    pub fn stated() -> Self {
        Self { bandwidth: STATED_BANDWIDTH, work: BTreeMap::new() }
    }

    pub(super) fn of(bandwidth: Bandwidth, work: Vec<(String, f64)>) -> Self {
        Self { bandwidth, work: work.into_iter().collect() }
    }

    pub(super) fn bandwidth(&self) -> Bandwidth {
        self.bandwidth
    }

    /// The seconds that a piece of work takes, if they were measured; its name in words.
    pub(super) fn find<const WORDS: usize>(&self, name: [&str; WORDS]) -> Option<f64> {
        self.work.get(&name.join(" ")).copied()
    }

    /// Names and numbers that say it all.
    pub fn entries(&self) -> Vec<(String, f64)> {
        let Bandwidth { thread, machine } = self.bandwidth;
        let bandwidth = [(THREAD.to_owned(), thread), (MACHINE.to_owned(), machine)];
        bandwidth.into_iter().chain(self.work.iter().map(|(name, seconds)| (name.clone(), *seconds))).collect()
    }

    /// The same back; nothing if the bandwidth is missing or a number is no speed.
    pub fn from_entries(entries: &[(String, f64)]) -> Option<Self> {
        let find = |name: &str| entries.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        let bandwidth = Bandwidth { thread: find(THREAD)?, machine: find(MACHINE)? };
        let work = entries.iter().filter(|(name, _)| name != THREAD && name != MACHINE).cloned().collect();
        entries.iter().all(|(_, number)| number.is_normal() && *number > 0.0).then_some(Self { bandwidth, work })
    }

    /// Has every later plan of this process go by these speeds; says whether it will, which it does not if there was a
    /// plan before, or another set.
    pub fn install(self) -> bool {
        INSTALLED.set(self).is_ok()
    }

    /// What plans go by.
    pub fn installed() -> &'static Self {
        INSTALLED.get_or_init(Self::stated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds() -> Speeds {
        Speeds::of(STATED_BANDWIDTH, vec![("amx tiles walk expand".into(), 1e-8), ("amx tiles finish".into(), 2e-9)])
    }

    #[test]
    fn what_is_written_down_is_read_back() {
        assert_eq!(Speeds::from_entries(&speeds().entries()), Some(speeds()));
        assert_eq!(Speeds::from_entries(&Speeds::stated().entries()), Some(Speeds::stated()));
        assert_eq!(speeds().find(["amx", "tiles", "finish"]), Some(2e-9));
        assert_eq!(speeds().find(["amx", "tiles", "walk"]), None);
    }

    #[test]
    fn what_lacks_the_bandwidth_or_is_no_speed_is_refused() {
        let entries = speeds().entries();
        assert_eq!(Speeds::from_entries(&entries[1..]), None);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-320] {
            let mut entries = entries.clone();
            entries[3].1 = wrong;
            assert_eq!(Speeds::from_entries(&entries), None, "{wrong}");
        }
    }
}
