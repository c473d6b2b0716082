//! A round with pitches, up to the choice of what is built: what is brought, checked, voted on and counted.

use super::{Choices, Play};
use crate::event::{Asked, Chosen, Event, PitchChecked, Pitched, Tallied, Voted, Withdrawn};
use crate::evidence::{Evidence, gather};
use crate::ledger::Ledger;
use crate::mortem::PostMortem;
use crate::pitch::{Deal, Pitch, Run};
use crate::round::RoundKind;
use crate::season::Season;
use crate::shark::agent::{Considered, PitchQuestion, Question, Tried, Voice, ask, ask_for_pitches};
use crate::shark::{Ballot, Shark, Source};
use crate::tally::{Tally, Vote, count};
use crate::verdict::{Judgement, Verdict};
use crate::{Error, Result, history, rules};

/// A pitch that may be built.
pub(super) struct Candidate<'a> {
    pub pitch: &'a Pitch,
    pub evidence: Evidence,
    pub deal: Deal,
}

/// A pitch's name with who brings it, and with a number where another has that name, be it in other letters: votes and
/// the ledger know pitches by their names.
fn free_name(taken: &mut Vec<String>, name: &str, whose: &str) -> String {
    let numbered = (2..).map(|number| format!("{name} {number} {whose}"));
    let mut names = std::iter::once(format!("{name} {whose}")).chain(numbered);
    let free = names.find(|name| !taken.contains(&name.to_lowercase())).unwrap_or_default();
    taken.push(free.to_lowercase());
    free
}

impl Play<'_> {
    /// One round, from its pitches to its verdict.
    pub(super) fn round(&mut self, name: &str, kind: RoundKind, context: &str, pitches: &[Pitch]) -> Result<Verdict> {
        self.open_round(name, kind, context)?;
        let pitches = [pitches.to_vec(), self.asked(name, context)?].concat();
        for pitch in &pitches {
            let pitched = Pitched { round: name.to_owned(), pitch: pitch.clone() };
            self.journal.step(|p: &Pitched| p.pitch.name == pitch.name, |_| Ok(pitched))?;
        }
        let mut candidates = self.check_pitches(name, &pitches)?;
        let withdrawn = self.withdrawn(name, &pitches)?;
        candidates.retain(|candidate| Some(&candidate.pitch.name) != withdrawn.as_ref());
        let needed = if kind == RoundKind::WildCard { 1 } else { self.season.settings.min_pitches };
        if candidates.len() < needed {
            let note = format!("valid pitches: {}; a round needs {needed}", candidates.len());
            return self.close_round(name, Verdict::Blocked, &note);
        }
        let votes = self.votes(name, kind, context, &candidates)?;
        let counted = votes.iter().filter(|vote| vote.void.is_none()).count();
        if counted < self.season.settings.min_sharks {
            let note = format!("{counted} valid votes, and a round needs {}", self.season.settings.min_sharks);
            return self.close_round(name, Verdict::Blocked, &note);
        }
        let mut tally = self.tally(name, kind, &candidates, &votes)?;
        // Until something is built it can still be taken back; the votes stay.
        if withdrawn.is_none()
            && let Some(late) = self.withdrawn(name, &pitches)?
        {
            tally = tally.without(&late);
        }
        let order = self.choose(name, kind, &tally)?;
        match order.as_slice() {
            [] if tally.research => {
                self.research(name)?;
                let below = self.season.settings.research_below;
                let note = format!("every shark gave every pitch less than {below}, so nothing was built");
                self.close_round(name, Verdict::Inconclusive, &note)
            }
            [] => self.close_round(name, Verdict::Blocked, &tally.decided_by),
            order => {
                self.refuse_late_withdrawal(name, order)?;
                self.attempts(name, order, &candidates, &votes)
            }
        }
    }

    /// Refuses to take back what is built already, or nothing that the round has. It would be ignored otherwise.
    fn refuse_late_withdrawal(&self, round: &str, order: &[String]) -> Result<()> {
        let Some(pitch) = self.options.choices.withdrawals.get(round).filter(|pitch| order.contains(pitch)) else {
            return Ok(());
        };
        Err(Error::Word {
            round: round.to_owned(),
            question: format!("'{pitch}' cannot be withdrawn any more: the round has begun to build"),
            remedy:
                "run the same command without --withdraw for this round; `hammerhead tank rollback` undoes a champion"
                    .to_owned(),
        })
    }

    /// The pitches of contestants that are commands. What one brings that is not understood is left out, and told.
    fn asked(&mut self, round: &str, context: &str) -> Result<Vec<Pitch>> {
        let Some(planned) = self.season.rounds.iter().find(|planned| planned.name == round) else {
            return Ok(Vec::new());
        };
        let mut brought: Vec<Pitch> = Vec::new();
        for asked in &planned.asks {
            let named = self.season.rounds.iter().flat_map(|planned| &planned.pitches).chain(&brought);
            let mut taken: Vec<String> = named.map(|pitch| pitch.name.to_lowercase()).collect();
            let problems = self.arena.names.clone();
            let mortems = history::post_mortems(self.records());
            let names = [self.season.name.as_str(), round, context];
            let verdicts = self.verdicts();
            let question = PitchQuestion::new(names, problems, &self.champion.entry, &self.baseline, mortems, verdicts);
            let make = |_: &Ledger| {
                let answer = ask_for_pitches(&asked.command, &question, self.season.settings.shark_seconds);
                let (pitches, talk, void) =
                    answer.map_or_else(|why| (Vec::new(), None, Some(why)), |(pitches, talk)| (pitches, talk, None));
                let own = |pitch: Pitch| Pitch {
                    name: free_name(&mut taken, &pitch.name, &format!("({round}, {})", asked.contestant)),
                    contestant: asked.contestant.clone(),
                    // A command may name configurations; programs are for people to bring, unless they say otherwise.
                    run: pitch.run.map(|run| match asked.programs {
                        true => run,
                        false => Run { program: Vec::new(), build: Vec::new(), ..run },
                    }),
                    ..pitch
                };
                let pitches = pitches.into_iter().map(own).collect();
                Ok(Asked { round: round.to_owned(), contestant: asked.contestant.clone(), pitches, void, talk })
            };
            let asked = self.journal.step(|a: &Asked| a.contestant == asked.contestant, make)?;
            if let Some(void) = &asked.void {
                self.watch.say(&format!("  {} brings nothing: {void}", asked.contestant));
            }
            // Its commands may name files of the operation's folder, and no others: what it names is read and quoted,
            // and goes back to whoever it asks.
            let fenced = |mut pitch: Pitch| {
                pitch.places.clear();
                if let Some(folder) = &self.season.operation {
                    pitch.anchor(&folder.folder);
                }
                pitch
            };
            brought.extend(asked.pitches.into_iter().map(fenced));
        }
        Ok(brought)
    }

    /// What was brought in this season, and what came of it: first what was disqualified, then what was tried.
    fn verdicts(&self) -> Vec<Tried> {
        let season = self.journal.season();
        let run = |pitch: &str| history::pitched(self.records(), season, pitch).and_then(|pitch| pitch.run.clone());
        let refused = self.records().iter().filter(|record| record.season == season).filter_map(|record| {
            let Event::PitchChecked(checked) = &record.event else { return None };
            let judgement = Judgement::because(Verdict::Blocked, checked.disqualified.clone()?);
            Some(Tried { run: run(&checked.pitch), pitch: checked.pitch.clone(), judgement })
        });
        let attempts = history::attempts(self.records()).into_iter().filter(|attempt| attempt.season == season);
        let tried = attempts.map(|attempt| Tried {
            run: run(&attempt.pitch),
            pitch: attempt.pitch,
            judgement: attempt.judgement,
        });
        refused.chain(tried).collect()
    }

    /// The pitch that its contestant takes back.
    fn withdrawn(&mut self, round: &str, pitches: &[Pitch]) -> Result<Option<String>> {
        let Choices { by, reason, withdrawals, .. } = &self.options.choices;
        let known: Vec<&str> = pitches.iter().map(|pitch| pitch.name.as_str()).collect();
        if let Some(pitch) = withdrawals.get(round).filter(|pitch| !known.contains(&pitch.as_str()))
            && self.journal.is_live()
        {
            return Err(Error::Word {
                round: round.to_owned(),
                question: format!("'{pitch}' cannot be withdrawn: the round has no such pitch"),
                remedy: format!("withdraw one of {}", known.join(", ")),
            });
        }
        let said = || {
            let pitch = withdrawals.get(round)?.clone();
            Some(Withdrawn { round: round.to_owned(), pitch, by: by.clone(), reason: reason.clone() })
        };
        let withdrawn = self.journal.step_if(|w: &Withdrawn| w.round == round, said)?;
        if let Some(Withdrawn { pitch, by, reason, .. }) = &withdrawn {
            self.watch.say(&format!("  {by} withdraws {pitch}: {reason}"));
        }
        Ok(withdrawn.map(|withdrawn| withdrawn.pitch))
    }

    fn check_pitches<'p>(&mut self, round: &str, pitches: &'p [Pitch]) -> Result<Vec<Candidate<'p>>> {
        let problems = self.arena.names.clone();
        let mut candidates: Vec<Candidate<'p>> = Vec::new();
        for pitch in pitches {
            let deal = pitch.deal.or(&self.season.deal);
            let record = history::track_record(self.records(), &pitch.contestant);
            let survived = history::survived(self.records(), self.journal.season(), &pitch.name);
            let evidence = gather(pitch, &self.arena, &self.champion.entry, &self.baseline, record);
            let examined = history::examined(self.records(), &evidence.digest);
            let evidence = Evidence { survived, examined, ..evidence };
            let earlier: Vec<(String, String)> =
                candidates.iter().map(|c| (c.pitch.name.clone(), c.evidence.digest.clone())).collect();
            let disqualified = rules::disqualify(&rules::Examined {
                pitch,
                evidence: &evidence,
                deal: &deal,
                settings: &self.season.settings,
                champion: &self.champion.entry,
                baseline: &self.baseline,
                earlier: &earlier,
                machine: &self.fingerprint,
                problems: &problems,
                records: self.records(),
            });
            let checked = PitchChecked { round: round.to_owned(), pitch: pitch.name.clone(), evidence, disqualified };
            let checked = self.journal.step(|c: &PitchChecked| c.pitch == pitch.name, |_| Ok(checked))?;
            match checked.disqualified {
                Some(reason) => self.say(&format!("  disqualified: {} ({reason})", pitch.name)),
                None => candidates.push(Candidate { pitch, evidence: checked.evidence, deal }),
            }
        }
        Ok(candidates)
    }

    fn votes(
        &mut self,
        round: &str,
        kind: RoundKind,
        context: &str,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Voted>> {
        let season = self.season;
        let mortems = history::post_mortems(self.records());
        let cast = |shark: &Shark| {
            let make = |_: &Ledger| {
                let cast = cast(season, &shark.in_round(kind), kind, [round, context], candidates, mortems.clone());
                let (Voice { ballots, statement, talk }, void) =
                    cast.map_or_else(|error| (Voice::default(), Some(error.to_string())), |voice| (voice, None));
                Ok(Voted { round: round.to_owned(), shark: shark.name.clone(), ballots, void, statement, talk })
            };
            let voted = self.journal.step(|v: &Voted| v.shark == shark.name, make)?;
            if let Some(void) = &voted.void {
                self.watch.say(&format!("  {void}"));
            }
            Ok(voted)
        };
        season.sharks.iter().map(cast).collect()
    }

    fn tally(&mut self, round: &str, kind: RoundKind, candidates: &[Candidate<'_>], voted: &[Voted]) -> Result<Tally> {
        let problems = self.arena.names.clone();
        let sharks: Vec<Shark> = self.season.sharks.iter().map(|shark| shark.in_round(kind)).collect();
        let counted: Vec<(&Shark, &Voted)> = sharks.iter().zip(voted).filter(|(_, v)| v.void.is_none()).collect();
        let votes: Vec<Vote<'_>> =
            counted.iter().map(|(shark, voted)| Vote { shark, ballots: &voted.ballots }).collect();
        let mut rulings = Vec::new();
        for (shark, voted) in &counted {
            for (ballot, veto) in voted.ballots.iter().filter_map(|b| Some((b, b.veto.as_ref()?))) {
                let Some(candidate) = candidates.iter().find(|c| c.pitch.name == ballot.pitch) else { continue };
                let examined = rules::Examined {
                    pitch: candidate.pitch,
                    evidence: &candidate.evidence,
                    deal: &candidate.deal,
                    settings: &self.season.settings,
                    champion: &self.champion.entry,
                    baseline: &self.baseline,
                    earlier: &[],
                    machine: &self.fingerprint,
                    problems: &problems,
                    records: self.records(),
                };
                rulings.push(rules::rule_on(&shark.name, veto, &examined));
            }
        }
        let names: Vec<String> = candidates.iter().map(|c| c.pitch.name.clone()).collect();
        let voters: Vec<String> = counted.iter().map(|(shark, _)| shark.name.clone()).collect();
        let weights = history::weights(self.records(), &voters);
        let tally = count(&names, &votes, rulings, weights, &self.season.settings);
        let tallied = Tallied { round: round.to_owned(), tally };
        let tally = self.journal.step(|t: &Tallied| t.round == round, |_| Ok(tallied))?.tally;
        for standing in tally.order() {
            let mean = standing.mean.unwrap_or(0.0);
            self.watch.say(&format!(
                "  {mean:5.2}  {}{}",
                standing.pitch,
                if standing.flagged { "  (flagged: abstentions)" } else { "" }
            ));
        }
        Ok(tally)
    }

    /// Who is built, in order: by the vote, unless a person's word is needed or stands against it.
    fn choose(&mut self, round: &str, kind: RoundKind, tally: &Tally) -> Result<Vec<String>> {
        let mut order: Vec<String> = tally.order().map(|s| s.pitch.clone()).collect();
        let Choices { by, reason, overrides, words, .. } = &self.options.choices;
        let chosen = |chosen: &String, overrides| Chosen {
            round: round.to_owned(),
            voted: tally.winner().map(str::to_owned),
            chosen: chosen.clone(),
            by: by.clone(),
            reason: reason.clone(),
            overrides,
        };
        let word = words.get(round).filter(|_| !tally.tied.is_empty()).map(|word| chosen(word, false));
        let said = overrides.get(round).map(|pitch| chosen(pitch, true)).or(word);
        let may_be = |c: &Chosen| match c.overrides {
            true => tally.standings.iter().any(|s| s.pitch == c.chosen),
            false => tally.tied.contains(&c.chosen),
        };
        if let Some(wrong) = said.as_ref().filter(|said| self.journal.is_live() && !may_be(said)) {
            return Err(no_such_choice(round, &wrong.chosen, tally));
        }
        if let Some(chosen) = self.journal.step_if(|c: &Chosen| c.round == round, || said)? {
            let how = if chosen.overrides { "against the vote, which stays in the ledger" } else { "to break the tie" };
            self.say(&format!("  {} chose '{}' {how}: {}", chosen.by, chosen.chosen, chosen.reason));
            order.retain(|pitch| *pitch != chosen.chosen);
            order.insert(0, chosen.chosen);
            return Ok(order);
        }
        // A wild-card round is for long shots: that nobody believes in them is no reason not to try.
        if tally.research && kind != RoundKind::WildCard {
            return Ok(Vec::new());
        }
        if !tally.tied.is_empty() && self.journal.is_live() {
            return Err(Error::Word {
                round: round.to_owned(),
                question: format!("{} are tied and no rule breaks it", tally.tied.join(", ")),
                remedy: format!("run the same command with --word '{round}=PITCH' --by NAME --because REASON"),
            });
        }
        if self.options.pause
            && self.journal.is_live()
            && let Some(winner) = order.first()
        {
            return Err(Error::Paused { round: round.to_owned(), winner: winner.clone() });
        }
        Ok(order)
    }
}

/// A choice that the round does not have.
fn no_such_choice(round: &str, chosen: &str, tally: &Tally) -> Error {
    let known: Vec<&str> = match tally.tied.as_slice() {
        [] => tally.standings.iter().map(|s| s.pitch.as_str()).collect(),
        tied => tied.iter().map(String::as_str).collect(),
    };
    Error::Word {
        round: round.to_owned(),
        question: format!("'{chosen}' cannot be chosen"),
        remedy: format!("choose one of {}", known.join(", ")),
    }
}

/// A shark's vote on a round, valid by the rules or an error.
fn cast(
    season: &Season,
    shark: &Shark,
    kind: RoundKind,
    [round, context]: [&str; 2],
    candidates: &[Candidate<'_>],
    post_mortems: Vec<PostMortem>,
) -> Result<Voice> {
    let names: Vec<String> = candidates.iter().map(|c| c.pitch.name.clone()).collect();
    let voice = match &shark.source {
        Source::Builtin { which } => {
            let ballot =
                |c: &Candidate<'_>| which.ballot(&shark.criteria, kind, c.pitch, &c.evidence, &season.settings);
            let ballots: Vec<Ballot> = candidates.iter().map(ballot).collect();
            Voice { statement: which.statement(shark, &ballots), ballots, talk: None }
        }
        Source::Ballots { ballots, statements } => {
            let this = |of: &Option<String>| of.as_deref().is_none_or(|r| r == round);
            let ballots = ballots.iter().filter(|b| this(&b.round) && names.contains(&b.pitch)).cloned().collect();
            let statement = statements.iter().find(|statement| this(&statement.round)).cloned().unwrap_or_default();
            Voice { ballots, statement, talk: None }
        }
        Source::Command { command } => {
            let pitches = candidates.iter().map(|c| Considered { pitch: c.pitch, evidence: &c.evidence }).collect();
            let question = Question::new(&season.name, round, context, shark, pitches, post_mortems);
            ask(&shark.name, command, &question, season.settings.shark_seconds)?
        }
    };
    shark.check_ballots(&voice.ballots, &names, &season.settings)?;
    Ok(voice)
}
