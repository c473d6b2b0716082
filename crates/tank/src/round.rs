//! The kinds of rounds.

use serde::{Deserialize, Serialize};

/// What kind of round it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoundKind {
    /// Pitches, votes, one of them built.
    #[default]
    Regular,
    /// The champion is wrong, or thought to be: whoever is right replaces one that is not, be it slower.
    Correctness,
    /// Nothing is built; the ledger is read instead.
    Research,
    /// Long shots, after failures.
    WildCard,
    /// The season's champion against the planner's own choice, for the tuning cache.
    Title,
}
