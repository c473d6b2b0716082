//! Words in memory by which threads tell each other something: strong stores and atomics, and the loads that see them.
//!
//! A strong store hands on what its thread knows, if it releases or follows a fence, to those who are in its scope and
//! have it in theirs. And it does not replace the value before it for everybody at once: who has not learnt of it may
//! see that one for a while, however much newer things it has seen elsewhere. So a flag remembers its last few values.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ptx::Scope;

use crate::clock::Knowledge;

/// Values that a flag remembers.
const MEMORY: usize = 6;
/// Old values that one thread is shown in a row: hardware has been seen to bring news at last.
const PATIENCE: u32 = 2;

/// A block of threads, for telling who is in whose scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agent {
    pub(crate) cluster: u32,
    /// Rank within the cluster.
    pub(crate) block: u32,
}

impl Agent {
    /// Whether a scope of this agent's reaches the other.
    pub(crate) fn reaches(self, scope: Scope, other: Agent) -> bool {
        match scope {
            Scope::Block => self == other,
            Scope::Cluster => self.cluster == other.cluster,
            Scope::Gpu | Scope::System => true,
        }
    }

    /// Whether operations of the two, each with its scope, are in each other's.
    pub(crate) fn mutual(self, scope: Scope, other: Agent, others: Scope) -> bool {
        self.reaches(scope, other) && other.reaches(others, self)
    }
}

/// The narrower of two scopes.
pub(crate) fn narrower(a: Scope, b: Scope) -> Scope {
    let width = |scope: Scope| match scope {
        Scope::Block => 0,
        Scope::Cluster => 1,
        Scope::Gpu => 2,
        Scope::System => 3,
    };
    if width(a) <= width(b) { a } else { b }
}

/// What a thread hands on, and to whom.
#[derive(Clone, Debug)]
pub(crate) struct Publication {
    pub(crate) by: Agent,
    pub(crate) scope: Scope,
    pub(crate) knowledge: Rc<Knowledge>,
}

/// A thread of the device, and a count of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) cluster: u32,
    pub(crate) slot: u32,
    pub(crate) count: u32,
}

/// One value of a flag.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) data: Vec<u8>,
    /// Whether anybody had written it.
    pub(crate) written: bool,
    /// Who stored it; nobody, if it was there before.
    pub(crate) writer: Option<Stamp>,
    pub(crate) published: Vec<Publication>,
}

/// What a thread has seen of a flag.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    /// Number of the newest value seen.
    newest: u64,
    /// Old values shown since.
    stale: u32,
    /// Number of the value that it has last acquired, and in which scope.
    acquired: Option<(u64, Scope)>,
}

/// The values of a flag, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Flag {
    versions: VecDeque<Version>,
    /// Number of the first one.
    first: u64,
    seen: BTreeMap<(u32, u32), Sight>,
}

impl Flag {
    /// A word that has been ordinary memory so far.
    pub(crate) fn new(before: Version) -> Self {
        Flag { versions: VecDeque::from([before]), first: 0, seen: BTreeMap::new() }
    }

    pub(crate) fn push(&mut self, version: Version) {
        self.versions.push_back(version);
        if self.versions.len() > MEMORY {
            self.versions.pop_front();
            self.first += 1;
        }
    }

    /// Whether these bytes are its newest value; if not, something else has written there.
    pub(crate) fn holds(&self, data: &[u8]) -> bool {
        self.versions.back().is_some_and(|newest| newest.data == data)
    }

    /// What the newest value publishes.
    pub(crate) fn published(&self) -> &[Publication] {
        self.versions.back().map_or(&[], |newest| &newest.published)
    }

    /// How many values, counted from the newest, a thread may see: one at least, and none older than one that it has
    /// seen or whose writer it has learnt of.
    pub(crate) fn visible(&self, thread: (u32, u32), knows: impl Fn(Stamp) -> bool) -> usize {
        let sight = self.seen.get(&thread).copied().unwrap_or_default();
        if sight.stale >= PATIENCE {
            return 1;
        }
        let known = self.versions.iter().rposition(|version| version.writer.is_none_or(&knows)).unwrap_or(0);
        let oldest = known.max(sight.newest.saturating_sub(self.first) as usize);
        self.versions.len() - oldest.min(self.versions.len() - 1)
    }

    /// The value so many steps before the newest, as a thread sees it, and what that tells it: nothing, if it has
    /// acquired the same one in the same scope before, as one that polls does. Knowledge grows.
    pub(crate) fn see(
        &mut self,
        thread: (u32, u32),
        back: usize,
        acquires: Option<Scope>,
    ) -> (&Version, &[Publication]) {
        let at = self.versions.len() - 1 - back;
        let number = self.first + at as u64;
        let sight = self.seen.entry(thread).or_default();
        let acquired = acquires.map(|scope| (number, scope));
        let known = acquired.is_some() && acquired == sight.acquired;
        sight.newest = sight.newest.max(number);
        sight.stale = if back == 0 { 0 } else { sight.stale + 1 };
        sight.acquired = acquired.or(sight.acquired);
        let version = &self.versions[at];
        (version, if known { &[] } else { &version.published })
    }
}
