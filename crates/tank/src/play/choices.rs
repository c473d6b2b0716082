//! What a person says about a season's rounds, beside the votes.

use std::collections::BTreeMap;

use crate::season::Season;
use crate::{Error, Result};

/// What a person says about a round, round by round.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Who says it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Pitches to be built whatever the vote says.
    pub overrides: BTreeMap<String, String>,
    /// The word on ties: the pitch.
    pub words: BTreeMap<String, String>,
    /// The word on verdicts that are PARTIAL: the pitch, or `champion`.
    pub accepts: BTreeMap<String, String>,
    /// Pitches that their contestants take back before the vote.
    pub withdrawals: BTreeMap<String, String>,
}

impl Choices {
    /// Refuses a word on a round that the season does not have.
    pub(super) fn check(&self, season: &Season) -> Result<()> {
        let known = |name: &str| {
            season.rounds.iter().any(|round| round.name == name || name == format!("wild cards after {}", round.name))
        };
        let rounds =
            self.overrides.keys().chain(self.words.keys()).chain(self.accepts.keys()).chain(self.withdrawals.keys());
        match rounds.into_iter().find(|name| !known(name)) {
            None => Ok(()),
            Some(name) => {
                let rounds: Vec<&str> = season.rounds.iter().map(|round| round.name.as_str()).collect();
                Err(Error::Rules {
                    what: format!("season '{}'", season.name),
                    problem: format!("it has no round '{name}' to decide on"),
                    remedy: format!("write ROUND=PITCH with one of its rounds: {}", rounds.join(", ")),
                })
            }
        }
    }
}
