//! The end of a season: its champion meets the planner's own choice, and what wins goes into the tuning cache.
//!
//! That choice is made among all backends of this machine that read the champion's weights, whatever the season's file
//! forces: the cache serves everyone, and to be the best on a poor backend is no title.

use referee::Speedup;

use super::attempt::{Contract, Tried};
use super::{Champion, Play};
use crate::Result;
use crate::configurations::Proof;
use crate::entry::{Entry, Way};
use crate::event::{Event, Installed, InstalledWay, Judged};
use crate::evidence::entry_digest;
use crate::ledger::Record;
use crate::pitch::Deal;
use crate::round::RoundKind;
use crate::season::TITLE;
use crate::verdict::Verdict;

impl Play<'_> {
    /// What beats the planner's own choice goes into the tuning cache. Where the season began with that choice and had
    /// one coronation, its figures say so already; otherwise the champion has to meet it now.
    pub(super) fn title(&mut self) -> Result<()> {
        let Some(last) = self.crowned.last() else { return Ok(()) };
        if self.season.foretold().is_some() {
            self.say("what is only predicted wins no title: the tuning cache stays as it is");
            return Ok(());
        }
        let (Entry::Builtin { ways }, Entry::Builtin { ways: planned }) = (&self.champion.entry, &self.opened.planned)
        else {
            self.say(
                "the champion is a program of its own, which the planner cannot run: the tuning cache stays as it is",
            );
            return Ok(());
        };
        if ways == planned {
            self.say("the champion is what the planner chooses anyway: the tuning cache stays as it is");
            return Ok(());
        }
        let Some(configurations) = &self.arena.configurations else { return Ok(()) };
        if !ways.iter().zip(planned).all(|(way, planned)| configurations.share_weights(way, planned)) {
            self.say(
                "the champion reads other weights than the season's backends do, so that no plan weighs the two: the tuning cache \
                 stays as it is; name the champion's backend in a season of its own",
            );
            return Ok(());
        }
        let (ways, pitch) = (ways.clone(), last.pitch.clone());
        let measured = !last.shapes.is_empty();
        let shapes = if measured && self.opened.champion == self.opened.planned && self.crowned.len() == 1 {
            last.shapes.clone()
        } else {
            match self.title_fight()? {
                Some(shapes) => shapes,
                None => return Ok(()),
            }
        };
        let faster = |(way, (_, speedup)): (&Way, &(String, Speedup))| {
            (speedup.low >= 1.0).then(|| InstalledWay {
                problem: way.problem.clone(),
                backend: way.backend.clone(),
                config: way.config.clone(),
                speedup: *speedup,
            })
        };
        let ways: Vec<InstalledWay> = ways.iter().zip(&shapes).filter_map(faster).collect();
        if ways.is_empty() {
            return Ok(());
        }
        let installed = Installed { pitch, ways };
        let installed = self.journal.step(|_: &Installed| true, |_| Ok(installed))?;
        self.install(&installed)
    }

    /// The champion against the planner's choice, by the referee alone: nobody votes on a title.
    fn title_fight(&mut self) -> Result<Option<Vec<(String, Speedup)>>> {
        let round = TITLE;
        self.open_round(round, RoundKind::Title, "the season's champion against the planner's own choice")?;
        self.say("title: the season's champion against the planner's own choice, for the tuning cache");
        let challenger = Champion { name: format!("{} for the title", self.champion.name), ..self.champion.clone() };
        let season_champion = std::mem::replace(
            &mut self.champion,
            Champion { name: "the planner's choice".to_owned(), entry: self.opened.planned.clone() },
        );
        let terms = Contract { deal: Deal::default(), funder: None };
        let tried = self.trial(round, &challenger, &terms, None);
        self.champion = season_champion;
        let Tried { judgement, summary, .. } = tried?;
        let judged = Judged {
            round: round.to_owned(),
            pitch: challenger.name.clone(),
            contestant: "the tank".to_owned(),
            digest: entry_digest(&challenger.entry),
            claimed: None,
            judgement,
        };
        let judgement = self.journal.step(|j: &Judged| j.round == round, |_| Ok(judged))?.judgement;
        let verdict = self.close_round(round, judgement.verdict, &judgement.reasons.join("; "))?;
        let shapes = summary.map(|s| s.shapes.into_iter().map(|s| (s.shape, s.speedup)).collect());
        Ok(shapes.filter(|_| verdict == Verdict::Success))
    }

    /// Puts the configurations where the planner looks. What is there already stays, so that this may be done again.
    fn install(&mut self, installed: &Installed) -> Result<()> {
        let Some(folder) = &self.options.tuning else {
            self.say("the tuning cache is switched off: the champion is in the ledger only");
            return Ok(());
        };
        let number = self.journal.season();
        let of_season = |r: &&Record| r.season == number && matches!(r.event, Event::Installed(_));
        let record = self.journal.past().iter().rev().find(of_season);
        let Some(record) = record else { return Ok(()) };
        let way = |way: &InstalledWay| {
            let InstalledWay { problem, backend, config, speedup } = way.clone();
            (Way { problem, backend, config }, speedup.estimate)
        };
        let proof = Proof { kernels: &self.opened.kernels, record: &record.hash, at: &record.at };
        let Some(configurations) = &self.arena.configurations else { return Ok(()) };
        configurations.install(folder, &installed.ways.iter().map(way).collect::<Vec<_>>(), &proof)?;
        let count = installed.ways.len();
        self.say(&format!("{count} configurations go into the tuning cache in {}", folder.display()));
        Ok(())
    }
}
