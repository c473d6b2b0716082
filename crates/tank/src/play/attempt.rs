//! What becomes of a round's winner: it is built, examined, timed and judged, and where it fails the next one is.

use std::time::{Duration, Instant};

use referee::{Correctness, Outcome, Side, Sitting, Summary};

use super::round::Candidate;
use super::{Champion, Choices, Coronation, Play};
use crate::entry::Entry;
use crate::event::{Begun, Buried, Chosen, Crowned, Dethroned, Examined, Judged, Phased, Sat, Seated, Voted};
use crate::evidence::resolve;
use crate::ledger::{Ledger, digest_of_seed};
use crate::mortem::PostMortem;
use crate::pitch::{Deal, Kind, Pitch, Run};
use crate::shark::{Ballot, Shark};
use crate::verdict::{self, Judgement, Verdict, of_examination, of_sitting};
use crate::{Error, Result};

/// What came of a trial.
pub(super) struct Tried {
    pub judgement: Judgement,
    /// The published figures, where there are any.
    pub summary: Option<Summary>,
    /// The seal of the program that was examined, where it is one.
    program: Option<String>,
    /// Whether the champion was found wrong.
    dethrones: bool,
    /// What the verdict says of sittings that have no result.
    interrupted: Option<String>,
}

impl Tried {
    fn without_times(judgement: Judgement) -> Self {
        Self { judgement, summary: None, program: None, dethrones: false, interrupted: None }
    }

    /// With sittings that were interrupted, which every verdict says.
    fn after(mut self, interrupted: Option<String>) -> Self {
        self.judgement.reasons.extend(interrupted.clone());
        Self { interrupted, ..self }
    }
}

/// A shark and the terms on which it funds.
type Funder = (String, Deal);

/// What an attempt is held to.
pub(super) struct Contract {
    pub deal: Deal,
    /// Whose terms are among them.
    pub funder: Option<String>,
}

impl Play<'_> {
    /// The winner, and where it fails the runner-up.
    pub(super) fn attempts(
        &mut self,
        round: &str,
        order: &[String],
        candidates: &[Candidate<'_>],
        votes: &[Voted],
    ) -> Result<Verdict> {
        let mut told = Vec::new();
        let mut last = Verdict::Blocked;
        for name in order.iter().take(self.season.settings.attempts) {
            let Some(candidate) = candidates.iter().find(|c| c.pitch.name == *name) else { continue };
            last = self.attempt(round, candidate, funder(&self.season.sharks, votes, name))?;
            told.push(format!("{name} {last}"));
            if !matches!(last, Verdict::Failure | Verdict::Blocked) {
                break;
            }
        }
        self.close_round(round, last, &told.join(", then "))
    }

    /// Builds, examines and times one pitch, and judges it.
    fn attempt(&mut self, round: &str, candidate: &Candidate<'_>, funder: Option<Funder>) -> Result<Verdict> {
        let Candidate { pitch, evidence, deal } = candidate;
        let Some(entry) = &evidence.entry else { return Ok(Verdict::Blocked) };
        let mut challenger = Champion { name: pitch.name.clone(), entry: entry.clone() };
        let terms = Contract {
            deal: funder.as_ref().map_or(deal.clone(), |(_, own)| deal.and(own)),
            funder: funder.map(|(name, _)| name),
        };
        let gate = terms.deal.gates.iter().find_map(|gate| evidence.shut(gate));
        let sweep = pitch.run.as_ref().map(|run| run.sweep.clone()).unwrap_or_default();
        let Tried { judgement, summary, program, dethrones, .. } = match (gate, sweep.is_empty()) {
            (Some(shut), _) => {
                let reason = format!("a gate of the deal is shut, so nothing was built: {shut}");
                Tried::without_times(Judgement::because(Verdict::Blocked, reason))
            }
            (None, true) => self.trial(round, &challenger, &terms, evidence.scratch_bytes)?,
            (None, false) => {
                let (entry, tried) = self.sweep(round, pitch, &sweep, &terms)?;
                challenger.entry = entry.unwrap_or(challenger.entry);
                tried
            }
        };
        challenger.entry = challenger.entry.with_seal(program);
        let judged = Judged {
            round: round.to_owned(),
            pitch: pitch.name.clone(),
            contestant: pitch.contestant.clone(),
            digest: evidence.digest.clone(),
            claimed: pitch.claim.as_ref().and_then(|claim| claim.figures()),
            judgement,
        };
        let judgement = self.journal.step(|j: &Judged| j.pitch == pitch.name, |_| Ok(judged))?.judgement;
        self.say(&format!("  {}: {} ({})", pitch.name, judgement.verdict, judgement.reasons.join("; ")));
        if judgement.verdict == Verdict::Failure {
            let mortem = PostMortem::of(round, pitch, &judgement);
            self.journal.step(|b: &Buried| b.mortem.pitch == pitch.name, |_| Ok(Buried { mortem }))?;
        }
        let accepted = match judgement.verdict {
            Verdict::Success => true,
            Verdict::Partial => self.partial(round, pitch)?,
            _ => false,
        };
        if accepted && pitch.kind != Kind::Research && (dethrones || summary.is_some()) {
            self.crown(round, challenger, summary.as_ref())?;
        }
        Ok(judgement.verdict)
    }

    /// Every configuration of a sweep in turn, each against the champion. The fastest that keeps the deal is taken;
    /// where none does, the fallback, if it is faster by the rules alone.
    fn sweep(
        &mut self,
        round: &str,
        pitch: &Pitch,
        configs: &[String],
        terms: &Contract,
    ) -> Result<(Option<Entry>, Tried)> {
        let mut tried: Vec<(&String, Entry, Tried)> = Vec::new();
        for config in configs {
            let run = pitch.run.clone().map(|run| Run { config: Some(config.clone()), sweep: Vec::new(), ..run });
            let phase = Pitch { run, ..pitch.clone() };
            let entry = resolve(&phase, &self.arena);
            let found = match &entry {
                Err(error) => Tried::without_times(Judgement::because(Verdict::Blocked, error.to_string())),
                Ok(entry) => {
                    let challenger = Champion { name: format!("{}: {config}", pitch.name), entry: entry.clone() };
                    self.trial(round, &challenger, terms, None)?
                }
            };
            let phased = Phased {
                round: round.to_owned(),
                pitch: pitch.name.clone(),
                phase: config.clone(),
                judgement: found.judgement.clone(),
            };
            self.journal.step(|p: &Phased| p.phase == *config, |_| Ok(phased))?;
            self.say(&format!(
                "  {}: {config}: {} ({})",
                pitch.name,
                found.judgement.verdict,
                found.judgement.reasons.join("; ")
            ));
            if let Ok(entry) = entry {
                tried.push((config, entry, found));
            }
        }
        let speed = |found: &Tried| found.judgement.measured.map_or(0.0, |measured| measured.estimate);
        let best = tried
            .iter()
            .filter(|(_, _, found)| found.judgement.verdict == Verdict::Success)
            .max_by(|a, b| speed(&a.2).total_cmp(&speed(&b.2)))
            .map(|(config, ..)| (*config).clone());
        let fallback = pitch.run.as_ref().and_then(|run| run.fallback.clone()).filter(|_| best.is_none());
        let (settings, kept) = (&self.season.settings, best.clone().or(fallback));
        // The one that is kept says it of itself.
        let others = |tried: &[(&String, Entry, Tried)]| -> Vec<String> {
            let told = |(config, _, found): &(&String, Entry, Tried)| {
                found.interrupted.as_ref().map(|why| format!("{config}: {why}"))
            };
            tried.iter().filter_map(told).collect()
        };
        let Some(place) = tried.iter().position(|(config, ..)| Some(*config) == kept.as_ref()) else {
            let Some((_, entry, mut found)) = tried.pop() else {
                let nothing = Judgement::because(Verdict::Blocked, "nothing of the sweep can be run");
                return Ok((None, Tried::without_times(nothing)));
            };
            found.judgement.reasons.extend(others(&tried));
            return Ok((Some(entry), found));
        };
        let (config, entry, mut found) = tried.remove(place);
        let by_the_rules = found.summary.as_ref().is_some_and(|summary| {
            summary.geomean.low > 1.0 + settings.margin()
                && summary.shapes.iter().all(|shape| shape.speedup.low >= 1.0 - settings.max_loss())
        });
        let reason = match best {
            Some(_) => format!("{config} is the fastest of the sweep that keeps the deal"),
            None if by_the_rules => {
                found.judgement.verdict = Verdict::Success;
                format!("nothing of the sweep keeps the deal; its fallback {config} is faster by the rules")
            }
            None => format!("nothing of the sweep keeps the deal, nor is its fallback {config} faster by the rules"),
        };
        found.judgement.reasons.insert(0, reason);
        found.judgement.reasons.extend(others(&tried));
        Ok((Some(entry), found))
    }

    /// A mixed verdict: the champion stays, unless a person takes the pitch's part.
    fn partial(&mut self, round: &str, pitch: &Pitch) -> Result<bool> {
        let Choices { by, reason, accepts, .. } = &self.options.choices;
        let said = || {
            let word = accepts.get(round)?;
            let (round, by, reason) = (round.to_owned(), by.clone(), reason.clone());
            Some(Chosen { round, voted: None, chosen: word.clone(), by, reason, overrides: true })
        };
        let chosen = self.journal.step_if(|c: &Chosen| c.round == round, said)?;
        match chosen {
            Some(chosen) => Ok(chosen.chosen == pitch.name),
            None if self.season.settings.partial_waits && self.journal.is_live() => Err(Error::Word {
                round: round.to_owned(),
                question: format!("'{}' is PARTIAL: is it to be champion", pitch.name),
                remedy: format!(
                    "run the same command with --accept '{round}={}' or --accept '{round}=champion', and --by NAME --because REASON",
                    pitch.name
                ),
            }),
            None => Ok(false),
        }
    }

    /// Correctness first; then sittings, until one's controls hold or patience ends.
    pub(super) fn trial(
        &mut self,
        round: &str,
        challenger: &Champion,
        terms: &Contract,
        scratch_bytes: Option<usize>,
    ) -> Result<Tried> {
        let (pitch, champion) = (challenger.name.clone(), self.champion.clone());
        let begun = Begun {
            round: round.to_owned(),
            pitch: pitch.clone(),
            champion: champion.entry.clone(),
            deal: terms.deal.clone(),
            funder: terms.funder.clone(),
        };
        self.journal.step(|b: &Begun| b.pitch == pitch, |_| Ok(begun))?;
        if self.journal.is_live() {
            self.say(&format!("  {pitch}: checking that it is right"));
        }
        let seed = self.seed("examine")?;
        let (referee, began) = (&mut self.referee, Instant::now());
        let make = |_: &Ledger| {
            let examined = referee.examine(champion.swimmer(), challenger.swimmer(), seed);
            let seconds = since(began, referee.waited());
            let (correctness, blocked) = split(examined)?;
            Ok(Examined { round: round.to_owned(), pitch: pitch.clone(), correctness, blocked, seconds })
        };
        let examined = self.journal.step(|e: &Examined| e.pitch == pitch, make)?;
        self.taken += examined.seconds;
        if let Some(blocked) = examined.blocked {
            return Ok(Tried::without_times(Judgement::because(Verdict::Blocked, blocked)));
        }
        if let Some(judgement) = examined.correctness.as_ref().and_then(of_examination) {
            return Ok(Tried::without_times(judgement));
        }
        let correctness = examined.correctness.unwrap_or_else(|| Correctness::new(&pitch, seed));
        if let Some(wrong) = &correctness.champion_wrong {
            let why = format!("wrong on {} ({}): {}", wrong.case, wrong.inputs, wrong.what);
            return self.dethrone(round, why, correctness.program);
        }
        if let Some(wrong) = self.baseline.wrong.clone() {
            return self.dethrone(round, format!("wrong when it was to be timed alone: {wrong}"), correctness.program);
        }
        // Another machine may build it again: what is timed is what was examined.
        let entry = challenger.entry.clone().with_seal(correctness.program.clone());
        let challenger = Champion { name: pitch, entry };
        let (timed, interrupted) = self.sittings(round, &challenger, &terms.deal, scratch_bytes)?;
        let tried = match timed {
            Timed::Judged(judgement, summary) => {
                Tried { summary, program: correctness.program, ..Tried::without_times(judgement) }
            }
            Timed::ChampionFails(why) => self.dethrone(round, why, correctness.program)?,
        };
        Ok(tried.after(interrupted))
    }

    /// A challenger that was examined takes the place of a champion that is wrong, or fails by itself.
    fn dethrone(&mut self, round: &str, why: String, program: Option<String>) -> Result<Tried> {
        let champion = self.champion.name.clone();
        let dethroned = Dethroned { round: round.to_owned(), champion: champion.clone(), why: why.clone() };
        self.journal.step(|d: &Dethroned| d.champion == champion, |_| Ok(dethroned))?;
        self.say(&format!("  {champion} is dethroned: {why}"));
        let reason = format!("right, where the champion is {why}; correct but slow beats wrong");
        let judgement = Judgement::because(Verdict::Success, reason);
        Ok(Tried { program, dethrones: true, ..Tried::without_times(judgement) })
    }

    /// Sittings until one's controls hold or patience ends, and what is to be said of those that have no result.
    fn sittings(
        &mut self,
        round: &str,
        challenger: &Champion,
        deal: &Deal,
        scratch_bytes: Option<usize>,
    ) -> Result<(Timed, Option<String>)> {
        let (pitch, champion, settings) = (challenger.name.clone(), self.champion.clone(), &self.season.settings);
        let mut terms = verdict::terms(deal, settings);
        let mut judgement = Judgement::because(Verdict::Void, "no sitting was held");
        let (mut failures, mut interrupted, mut redrawn) = (Vec::new(), 0, 0);
        for attempt in 0..=settings.void_retries {
            terms.budget_seconds = self.budget_of_a_sitting();
            if self.journal.is_live() {
                let again = if attempt > 0 { " again, because the sitting's controls failed" } else { "" };
                self.say(&format!("  {pitch}: timing it against {}{again}", champion.name));
            }
            let seed = self.seed("sit")?;
            let [before, others] = self.seat(round, &pitch, seed)?;
            (interrupted, redrawn) = (interrupted + before, redrawn + others);
            let (referee, began) = (&mut self.referee, Instant::now());
            let make = |_: &Ledger| {
                let found = referee.sit(champion.swimmer(), challenger.swimmer(), &terms, seed);
                let seconds = since(began, referee.waited());
                let (sitting, blocked) = split(found)?;
                if sitting.as_ref().is_some_and(|sitting| sitting.seed != seed) {
                    let problem = format!("the sitting of '{pitch}' came back with another seed than was asked for");
                    return Err(Error::Cluster { problem });
                }
                Ok(Sat { round: round.to_owned(), pitch: pitch.clone(), sitting, blocked, seconds })
            };
            let sat = self.journal.step(|s: &Sat| s.pitch == pitch, make)?;
            self.taken += sat.seconds;
            if let Some(blocked) = sat.blocked {
                let timed = Timed::Judged(Judgement::because(Verdict::Blocked, blocked), None);
                return Ok((timed, told_of(interrupted, redrawn)));
            }
            let Some(sitting) = sat.sitting else { continue };
            failures.extend(fails_alone(&sitting));
            judgement = of_sitting(&sitting, deal, scratch_bytes, settings);
            if judgement.verdict != Verdict::Void {
                // Only what was measured a second time is crowned, whoever takes its part.
                let confirmed = sitting.second.as_ref().map(|m| m.at(sitting.settings.timing.decides).clone());
                return Ok((Timed::Judged(judgement, confirmed), told_of(interrupted, redrawn)));
            }
        }
        // Or a champion would keep its title by failing whenever it is to be timed.
        let timed = match failures.pop() {
            Some(fault) if failures.len() == settings.void_retries && settings.void_retries > 0 => {
                Timed::ChampionFails(format!("one that fails whenever it is timed against itself: {fault}"))
            }
            _ => Timed::Judged(judgement, None),
        };
        Ok((timed, told_of(interrupted, redrawn)))
    }

    /// Writes down that a sitting begins, so that nobody draws one again unseen whose course it dislikes. Says how many
    /// began before it and have no result, and how many of them had another seed: where the machine did not answer, the
    /// same one is asked again.
    fn seat(&mut self, round: &str, pitch: &str, seed: u64) -> Result<[usize; 2]> {
        let mut begun: Vec<String> = Vec::new();
        let counted = |begun: &[String], last: &str| [begun.len(), begun.iter().filter(|one| *one != last).count()];
        loop {
            let live = self.journal.is_live();
            let seated = Seated {
                round: round.to_owned(),
                pitch: pitch.to_owned(),
                seed_digest: digest_of_seed(seed),
                interrupted: begun.len(),
            };
            if live && !begun.is_empty() {
                self.say(&format!("  {pitch}: a sitting was interrupted and has no result; that is written down"));
            }
            let written = self.journal.step_if(|s: &Seated| s.pitch == pitch, || Some(seated))?;
            match written {
                // Its result follows. Ledgers from before this was written down have nothing else.
                None => {
                    let last = begun.pop().unwrap_or_default();
                    return Ok(counted(&begun, &last));
                }
                Some(written) if live => return Ok(counted(&begun, &written.seed_digest)),
                Some(written) => begun.push(written.seed_digest),
            }
        }
    }

    /// What the next sitting may take: of what is left an equal part for each round that is still to come, and one for
    /// the title.
    fn budget_of_a_sitting(&self) -> Option<f64> {
        let budget = self.options.budget?.as_secs_f64();
        let left = (budget - self.taken).max(0.0);
        Some(left / (self.rounds_left + 1) as f64)
    }

    fn crown(&mut self, round: &str, challenger: Champion, summary: Option<&Summary>) -> Result<()> {
        let crowned = Crowned {
            round: round.to_owned(),
            pitch: challenger.name.clone(),
            entry: challenger.entry.clone(),
            speedup: summary.map(|summary| summary.geomean),
        };
        let name = challenger.name.clone();
        self.journal.step(|c: &Crowned| c.pitch == name, |_| Ok(crowned))?;
        self.say(&format!("  new champion: {name}"));
        let shapes = summary.map(|summary| summary.shapes.iter().map(|s| (s.shape.clone(), s.speedup)).collect());
        self.crowned.push(Coronation { pitch: challenger.name.clone(), shapes: shapes.unwrap_or_default() });
        self.champion = challenger;
        // What the roofline still allows is counted from the champion's times.
        match summary {
            Some(summary) => {
                for (old, new) in self.baseline.shapes.iter_mut().zip(&summary.shapes) {
                    old.seconds = new.challenger_seconds;
                }
                Ok(())
            }
            None => self.take_baseline(),
        }
    }
}

/// What came of sittings.
enum Timed {
    /// A verdict, and the figures that may be crowned.
    Judged(Judgement, Option<Summary>),
    /// The champion fails by itself, every time: how.
    ChampionFails(String),
}

/// What a verdict says of sittings that were interrupted, some of them with another seed than the one after them.
fn told_of(interrupted: usize, redrawn: usize) -> Option<String> {
    let seeds = match redrawn {
        0 => "the same seed was asked again".to_owned(),
        others => format!("{others} of them had another seed than the last"),
    };
    let what = "of its sittings were interrupted, and have no result";
    (interrupted > 0).then(|| format!("{interrupted} {what}: {seeds}"))
}

/// The fault that ended a sitting while a champion was timed against itself. The challenger had been examined and may
/// have been started, and is not timed then.
fn fails_alone(sitting: &Sitting) -> Option<String> {
    match &sitting.outcome {
        Outcome::Faulted { side: Side::Champion, fault } if sitting.plant.is_none() && fault.is_its_own_doing() => {
            Some(fault.to_string())
        }
        _ => None,
    }
}

/// Seconds since a moment, less those in which nobody was at it.
pub(super) fn since(began: Instant, waited: Duration) -> f64 {
    began.elapsed().saturating_sub(waited).as_secs_f64()
}

/// What was found, or why the environment did not let anything be found. Where nobody answered, the season stops here,
/// to go on another time.
fn split<T>(found: Result<T>) -> Result<(Option<T>, Option<String>)> {
    match found {
        Ok(found) => Ok((Some(found), None)),
        Err(error @ Error::Cluster { .. }) => Err(error),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}

/// Who funds a pitch: of the sharks that like it best of all and name terms, the one that likes it most.
fn funder(sharks: &[Shark], votes: &[Voted], pitch: &str) -> Option<Funder> {
    let total = |voted: &Voted, ballot: &Ballot| sharks.iter().find(|s| s.name == voted.shark)?.total(ballot);
    let favourite = |voted: &&Voted| {
        let best = voted.ballots.iter().filter_map(|b| Some((total(voted, b)?, b))).max_by(|a, b| a.0.total_cmp(&b.0));
        best.is_some_and(|(_, ballot)| ballot.pitch == pitch) && !voted.statement.deal.is_nothing()
    };
    let likes = |voted: &Voted| voted.ballots.iter().filter_map(|ballot| total(voted, ballot)).fold(0.0, f64::max);
    let funding = votes.iter().filter(favourite).max_by(|a, b| likes(a).total_cmp(&likes(b)))?;
    Some((funding.shark.clone(), funding.statement.deal.clone()))
}
