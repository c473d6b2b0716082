//! What follows when rounds fail: after three in a row nothing is built but read, and then long shots are tried.

use super::Play;
use crate::entry::Entry;
use crate::event::Researched;
use crate::evidence::entry_digest;
use crate::round::RoundKind;
use crate::verdict::Verdict;
use crate::{Result, history, research, season};

impl Play<'_> {
    /// FAILURE counts. What says nothing about the pitches, VOID and BLOCKED, leaves the count; all else ends the row.
    pub(super) fn count_failures(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Failure => self.failures += 1,
            Verdict::Void | Verdict::Blocked => {}
            Verdict::Success | Verdict::Partial | Verdict::Inconclusive => self.failures = 0,
        }
    }

    /// Three failures in a row: a research round, then a wild-card round.
    pub(super) fn after_failures(&mut self, after: &str) -> Result<()> {
        let failures = self.failures;
        self.failures = 0;
        let why = format!("{failures} rounds in a row failed");
        self.say(&format!("{why}: a research round, then a wild-card round"));
        let name = format!("research after {after}");
        self.open_round(&name, RoundKind::Research, &why)?;
        self.research(&name)?;
        self.close_round(&name, Verdict::Inconclusive, "nothing was built; the findings are in the ledger")?;
        let wild = if self.season.wild_cards.is_empty() {
            let tried = |e: &Entry| self.tried(e);
            season::wild_card(&self.arena, &self.champion.entry, tried, after).into_iter().collect()
        } else {
            self.season.wild_cards.clone()
        };
        let name = format!("wild cards after {after}");
        self.round(&name, RoundKind::WildCard, "long shots, because the safe ones failed", &wild)?;
        Ok(())
    }

    /// Whether this very thing was judged before.
    fn tried(&self, entry: &Entry) -> bool {
        let digest = entry_digest(entry);
        history::attempts(self.records()).iter().any(|attempt| attempt.digest == digest)
    }

    pub(super) fn research(&mut self, round: &str) -> Result<()> {
        let findings = research::findings(self.records(), &self.baseline, self.season.settings.interval_level);
        let researched = Researched { round: round.to_owned(), findings };
        let researched = self.journal.step(|r: &Researched| r.round == round, |_| Ok(researched))?;
        researched.findings.iter().for_each(|finding| self.watch.say(&format!("  learnt: {finding}")));
        Ok(())
    }
}
