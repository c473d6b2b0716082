//! How a season is played: rounds, attempts, verdicts, and what follows from them.

mod journal;
mod title;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hammerhead::machine::Machine;
use hammerhead::{Backend, backends};
use sha2::{Digest, Sha256};

use self::journal::Journal;
use crate::court::{Baseline, Referee, Swimmer};
use crate::entry::Entry;
use crate::event::{
    BaselineTaken, Begun, Chosen, Crowned, Examined, Judged, PitchChecked, Pitched, Researched, RoundClosed,
    RoundOpened, Sat, SeasonClosed, SeasonOpened, Tallied, Voted,
};
use crate::evidence::{Arena, Evidence, entry_digest, gather};
use crate::ledger::{Ledger, Record};
use crate::pitch::{Deal, Kind, Pitch};
use crate::referee::{Speedup, Summary, seeds};
use crate::season::{self, RoundKind, Season};
use crate::shark::agent::{Considered, Question, ask};
use crate::shark::{Ballot, Shark, Source};
use crate::tally::{Tally, Vote, count};
use crate::verdict::{self, Judgement, Verdict, of_examination, of_sitting};
use crate::{Error, Result, history, research, rules};

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
}

impl Choices {
    /// Refuses a word on a round that the season does not have.
    fn check(&self, season: &Season) -> Result<()> {
        let known = |name: &str| {
            season.rounds.iter().any(|round| round.name == name || name == format!("wild cards after {}", round.name))
        };
        let rounds = self.overrides.keys().chain(self.words.keys()).chain(self.accepts.keys());
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

/// How a season is played.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The seed that all others are made from; drawn by the operating system where there is none.
    pub seed: Option<u64>,
    /// A person's word.
    pub choices: Choices,
    /// Whether to stop before anything is built, so that a person can look at the vote.
    pub pause: bool,
    /// Whether to begin anew where the season is finished already.
    pub again: bool,
    /// How long all sittings together may take; as long as the settings' looks take where there is none.
    pub budget: Option<Duration>,
    /// The folder of the tuning cache that champions go into; none to keep them out.
    pub tuning: Option<PathBuf>,
}

/// Who is told what happens.
pub trait Watch {
    /// Something happened.
    fn say(&mut self, line: &str);
}

/// Tells nobody.
struct Silence;

impl Watch for Silence {
    fn say(&mut self, _: &str) {}
}

/// A season that was played to its end.
#[derive(Debug)]
pub struct Played {
    /// Its number in the ledger.
    pub season: u32,
    /// Whether it was finished before and nothing was done.
    pub finished_before: bool,
}

/// Plays a season, or goes on with it where it stopped.
pub fn play(
    season: &Season,
    ledger: &mut Ledger,
    referee: &mut dyn Referee,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Played> {
    season.check()?;
    options.choices.check(season)?;
    let arena = season.arena()?;
    let machine = Machine::detect();
    let (mut journal, finished_before) = Journal::open(ledger, &season.name, &season.digest(), options.again)?;
    let number = journal.season();
    if !journal.is_live() && !finished_before {
        watch.say(&format!("going on with season {number} '{}' where it stopped", season.name));
    }
    let opened: SeasonOpened = journal.step(
        |_| true,
        |_| {
            let champion = season.baseline(&arena)?;
            let version = |b: &&'static dyn Backend| (b.base_name().to_owned(), b.kernels().to_owned());
            Ok(SeasonOpened {
                season: season.clone(),
                digest: season.digest(),
                machine: machine.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                planned: champion.unforced(&arena.problems, arena.threads)?,
                champion,
                kernels: backends::all().iter().map(version).collect(),
            })
        },
    )?;
    if opened.machine.fingerprint != machine.fingerprint && !finished_before {
        return Err(Error::Resume {
            record: 1,
            problem: format!("the season was begun on another machine ({})", opened.machine.cpu),
            remedy: "go on there, or play on this machine in a ledger of its own".to_owned(),
        });
    }
    let champion = Champion { name: format!("baseline ({})", season.baseline), entry: opened.champion.clone() };
    let baseline = Baseline { shapes: Vec::new(), flops_per_second: None, bytes_per_second: None };
    let fingerprint = machine.fingerprint;
    // A finished season is gone through once more, for the tuning cache's sake, but there is nothing to tell.
    let watch: &mut dyn Watch = if finished_before { &mut Silence } else { watch };
    let mut play = Play {
        season,
        journal,
        referee,
        options,
        watch,
        arena,
        fingerprint,
        champion,
        opened,
        baseline,
        failures: 0,
        crowned: Vec::new(),
        began: Instant::now(),
        rounds_left: season.rounds.len(),
    };
    play.all()?;
    Ok(Played { season: number, finished_before })
}

/// Who is to be beaten.
#[derive(Clone, Debug)]
struct Champion {
    name: String,
    entry: Entry,
}

impl Champion {
    fn swimmer(&self) -> Swimmer<'_> {
        Swimmer { name: &self.name, entry: &self.entry }
    }
}

/// A pitch that may be built.
struct Candidate<'a> {
    pitch: &'a Pitch,
    evidence: Evidence,
    deal: Deal,
}

/// What came of a trial.
struct Tried {
    judgement: Judgement,
    /// The published figures, where there are any.
    summary: Option<Summary>,
    /// The seal of the program that was examined, where it is one.
    program: Option<String>,
}

impl Tried {
    fn without_times(judgement: Judgement) -> Self {
        Self { judgement, summary: None, program: None }
    }
}

/// A coronation, with the figures that it rests on.
struct Coronation {
    pitch: String,
    shapes: Vec<(String, Speedup)>,
}

struct Play<'a> {
    season: &'a Season,
    journal: Journal<'a>,
    referee: &'a mut dyn Referee,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    arena: Arena,
    fingerprint: String,
    champion: Champion,
    opened: SeasonOpened,
    baseline: Baseline,
    failures: usize,
    crowned: Vec<Coronation>,
    /// When this play began, for the budget.
    began: Instant,
    /// Rounds that are still to be played, this one among them.
    rounds_left: usize,
}

impl Play<'_> {
    fn all(&mut self) -> Result<()> {
        self.take_baseline()?;
        for (index, round) in self.season.rounds.iter().enumerate() {
            let place = format!("round {} of {}", index + 1, self.season.rounds.len());
            self.say(&format!("{place}: {} ({} pitches)", round.name, round.pitches.len()));
            self.rounds_left = self.season.rounds.len() - index;
            let verdict = self.round(&round.name, RoundKind::Regular, &round.context, &round.pitches)?;
            self.count_failures(verdict);
            if self.failures >= self.season.settings.failures_before_research {
                self.after_failures(&round.name)?;
            }
        }
        self.rounds_left = 0;
        self.title()?;
        let (champion, entry) = (self.crowned.last().map(|c| c.pitch.clone()), self.champion.entry.clone());
        self.journal.step(|_: &SeasonClosed| true, |_| Ok(SeasonClosed { champion, entry }))?;
        Ok(())
    }

    fn say(&mut self, line: &str) {
        self.watch.say(line);
    }

    /// A seed that nobody has seen, or one that follows from the given seed and its place.
    fn seed(&self, place: &str) -> Result<u64> {
        match self.options.seed {
            None => seeds::fresh(),
            Some(seed) => {
                let hash = Sha256::digest(format!("{seed} {} {place}", self.journal.past().len()));
                Ok(hash.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte)))
            }
        }
    }

    fn take_baseline(&mut self) -> Result<()> {
        let seed = self.seed("baseline")?;
        if self.journal.is_live() {
            self.watch.say("timing the baseline and the machine's ceilings");
        }
        let (referee, champion) = (&mut self.referee, &self.champion);
        let make = |_: &Ledger| Ok(BaselineTaken { baseline: referee.baseline(champion.swimmer(), seed)? });
        self.baseline = self.journal.step(|_| true, make)?.baseline;
        Ok(())
    }

    /// FAILURE counts. What says nothing about the pitches, VOID and BLOCKED, leaves the count; all else ends the row.
    fn count_failures(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Failure => self.failures += 1,
            Verdict::Void | Verdict::Blocked => {}
            Verdict::Success | Verdict::Partial | Verdict::Inconclusive => self.failures = 0,
        }
    }

    /// Three failures in a row: a research round, then a wild-card round.
    fn after_failures(&mut self, after: &str) -> Result<()> {
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

    /// What the ledger held when the current step was first taken: records of this season that are still to be replayed
    /// are not yet known.
    fn records(&self) -> &[Record] {
        self.journal.past()
    }

    fn open_round(&mut self, round: &str, round_kind: RoundKind, why: &str) -> Result<()> {
        let opened = RoundOpened { round: round.to_owned(), round_kind, why: why.to_owned() };
        self.journal.step(|o: &RoundOpened| o.round == round, |_| Ok(opened)).map(drop)
    }

    fn close_round(&mut self, round: &str, verdict: Verdict, note: &str) -> Result<Verdict> {
        let closed = RoundClosed { round: round.to_owned(), verdict, note: note.to_owned() };
        self.journal.step(|c: &RoundClosed| c.round == round, |_| Ok(closed))?;
        self.say(&format!("  {round}: {verdict} ({note})"));
        Ok(verdict)
    }

    fn research(&mut self, round: &str) -> Result<()> {
        let findings = research::findings(self.records(), &self.baseline, self.season.settings.interval_level);
        let researched = Researched { round: round.to_owned(), findings };
        let researched = self.journal.step(|r: &Researched| r.round == round, |_| Ok(researched))?;
        researched.findings.iter().for_each(|finding| self.watch.say(&format!("  learnt: {finding}")));
        Ok(())
    }

    /// One round, from its pitches to its verdict.
    fn round(&mut self, name: &str, kind: RoundKind, context: &str, pitches: &[Pitch]) -> Result<Verdict> {
        self.open_round(name, kind, context)?;
        for pitch in pitches {
            let pitched = Pitched { round: name.to_owned(), pitch: pitch.clone() };
            self.journal.step(|p: &Pitched| p.pitch.name == pitch.name, |_| Ok(pitched))?;
        }
        let candidates = self.check_pitches(name, pitches)?;
        let needed = if kind == RoundKind::WildCard { 1 } else { self.season.settings.min_pitches };
        if candidates.len() < needed {
            let note = format!("{} valid pitches, and a round needs {needed}", candidates.len());
            return self.close_round(name, Verdict::Blocked, &note);
        }
        let votes = self.votes(name, context, &candidates)?;
        let counted = votes.iter().filter(|vote| vote.void.is_none()).count();
        if counted < self.season.settings.min_sharks {
            let note = format!("{counted} valid votes, and a round needs {}", self.season.settings.min_sharks);
            return self.close_round(name, Verdict::Blocked, &note);
        }
        let tally = self.tally(name, &candidates, &votes)?;
        let order = self.choose(name, kind, &tally)?;
        match order.as_slice() {
            [] if tally.research => {
                self.research(name)?;
                let below = self.season.settings.research_below;
                let note = format!("every shark gave every pitch less than {below}, so nothing was built");
                self.close_round(name, Verdict::Inconclusive, &note)
            }
            [] => self.close_round(name, Verdict::Blocked, &tally.decided_by),
            order => self.attempts(name, order, &candidates),
        }
    }

    fn check_pitches<'p>(&mut self, round: &str, pitches: &'p [Pitch]) -> Result<Vec<Candidate<'p>>> {
        let problems: Vec<String> = self.arena.problems.iter().map(|p| p.name()).collect::<Result<_>>()?;
        let mut candidates: Vec<Candidate<'p>> = Vec::new();
        for pitch in pitches {
            let deal = pitch.deal.or(&self.season.deal);
            let record = history::track_record(self.records(), &pitch.contestant);
            let evidence = gather(pitch, &self.arena, &self.champion.entry, &self.baseline, record);
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

    fn votes(&mut self, round: &str, context: &str, candidates: &[Candidate<'_>]) -> Result<Vec<Voted>> {
        let season = self.season;
        let cast = |shark: &Shark| {
            let make = |_: &Ledger| {
                let cast = cast(season, shark, round, context, candidates);
                let (ballots, void) = cast.map_or_else(|error| (Vec::new(), Some(error.to_string())), |b| (b, None));
                Ok(Voted { round: round.to_owned(), shark: shark.name.clone(), ballots, void })
            };
            let voted = self.journal.step(|v: &Voted| v.shark == shark.name, make)?;
            if let Some(void) = &voted.void {
                self.watch.say(&format!("  {void}"));
            }
            Ok(voted)
        };
        season.sharks.iter().map(cast).collect()
    }

    fn tally(&mut self, round: &str, candidates: &[Candidate<'_>], voted: &[Voted]) -> Result<Tally> {
        let problems: Vec<String> = self.arena.problems.iter().map(|p| p.name()).collect::<Result<_>>()?;
        let counted: Vec<(&Shark, &Voted)> =
            self.season.sharks.iter().zip(voted).filter(|(_, v)| v.void.is_none()).collect();
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
        let tally = count(&names, &votes, rulings, &self.season.settings);
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

    /// The winner, and where it fails the runner-up.
    fn attempts(&mut self, round: &str, order: &[String], candidates: &[Candidate<'_>]) -> Result<Verdict> {
        let mut told = Vec::new();
        let mut last = Verdict::Blocked;
        for name in order.iter().take(self.season.settings.attempts) {
            let Some(candidate) = candidates.iter().find(|c| c.pitch.name == *name) else { continue };
            last = self.attempt(round, candidate)?;
            told.push(format!("{name} {last}"));
            if !matches!(last, Verdict::Failure | Verdict::Blocked) {
                break;
            }
        }
        self.close_round(round, last, &told.join(", then "))
    }

    /// Builds, examines and times one pitch, and judges it.
    fn attempt(&mut self, round: &str, candidate: &Candidate<'_>) -> Result<Verdict> {
        let Candidate { pitch, evidence, deal } = candidate;
        let Some(entry) = &evidence.entry else { return Ok(Verdict::Blocked) };
        let mut challenger = Champion { name: pitch.name.clone(), entry: entry.clone() };
        let Tried { judgement, summary, program } = self.trial(round, &challenger, deal, evidence.scratch_bytes)?;
        if let Entry::Program { sealed, .. } = &mut challenger.entry {
            *sealed = program;
        }
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
        let accepted = match judgement.verdict {
            Verdict::Success => true,
            Verdict::Partial => self.partial(round, pitch)?,
            _ => false,
        };
        if let (true, Some(summary)) = (accepted && pitch.kind != Kind::Research, summary) {
            self.crown(round, challenger, &summary)?;
        }
        Ok(judgement.verdict)
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
    fn trial(
        &mut self,
        round: &str,
        challenger: &Champion,
        deal: &Deal,
        scratch_bytes: Option<usize>,
    ) -> Result<Tried> {
        let (pitch, champion) = (challenger.name.clone(), self.champion.clone());
        let begun = Begun {
            round: round.to_owned(),
            pitch: pitch.clone(),
            champion: champion.entry.clone(),
            deal: deal.clone(),
        };
        self.journal.step(|b: &Begun| b.pitch == pitch, |_| Ok(begun))?;
        if self.journal.is_live() {
            self.say(&format!("  {pitch}: checking that it is right"));
        }
        let seed = self.seed("examine")?;
        let referee = &mut self.referee;
        let make = |_: &Ledger| {
            let examined = referee.examine(champion.swimmer(), challenger.swimmer(), seed);
            let (correctness, blocked) = split(examined);
            Ok(Examined { round: round.to_owned(), pitch: pitch.clone(), correctness, blocked })
        };
        let examined = self.journal.step(|e: &Examined| e.pitch == pitch, make)?;
        if let Some(blocked) = examined.blocked {
            return Ok(Tried::without_times(Judgement::because(Verdict::Blocked, blocked)));
        }
        if let Some(judgement) = examined.correctness.as_ref().and_then(of_examination) {
            return Ok(Tried::without_times(judgement));
        }
        let (judgement, summary) = self.sittings(round, challenger, deal, scratch_bytes)?;
        Ok(Tried { judgement, summary, program: examined.correctness.and_then(|found| found.program) })
    }

    fn sittings(
        &mut self,
        round: &str,
        challenger: &Champion,
        deal: &Deal,
        scratch_bytes: Option<usize>,
    ) -> Result<(Judgement, Option<Summary>)> {
        let (pitch, champion, settings) = (challenger.name.clone(), self.champion.clone(), &self.season.settings);
        let mut terms = verdict::terms(deal, settings);
        terms.budget_seconds = self.budget_of_a_sitting();
        let mut judgement = Judgement::because(Verdict::Void, "no sitting was held");
        for attempt in 0..=settings.void_retries {
            if self.journal.is_live() {
                let again = if attempt > 0 { " again, because the sitting's controls failed" } else { "" };
                self.say(&format!("  {pitch}: timing it against {}{again}", champion.name));
            }
            let seed = self.seed("sit")?;
            let referee = &mut self.referee;
            let make = |_: &Ledger| {
                let (sitting, blocked) = split(referee.sit(champion.swimmer(), challenger.swimmer(), &terms, seed));
                Ok(Sat { round: round.to_owned(), pitch: pitch.clone(), sitting, blocked })
            };
            let sat = self.journal.step(|s: &Sat| s.pitch == pitch, make)?;
            if let Some(blocked) = sat.blocked {
                return Ok((Judgement::because(Verdict::Blocked, blocked), None));
            }
            let Some(sitting) = sat.sitting else { continue };
            judgement = of_sitting(&sitting, deal, scratch_bytes, settings);
            if judgement.verdict != Verdict::Void {
                // Only what was measured a second time is crowned, whoever takes its part.
                let confirmed = sitting.second.as_ref().map(|m| m.at(sitting.settings.timing.decides).clone());
                return Ok((judgement, confirmed));
            }
        }
        Ok((judgement, None))
    }

    /// What the next sitting may take: of what is left an equal part for each round that is still to come, and one for the title.
    fn budget_of_a_sitting(&self) -> Option<f64> {
        let budget = self.options.budget?.as_secs_f64();
        let left = (budget - self.began.elapsed().as_secs_f64()).max(0.0);
        Some(left / (self.rounds_left + 1) as f64)
    }

    fn crown(&mut self, round: &str, challenger: Champion, summary: &Summary) -> Result<()> {
        let crowned = Crowned {
            round: round.to_owned(),
            pitch: challenger.name.clone(),
            entry: challenger.entry.clone(),
            speedup: summary.geomean,
        };
        let name = challenger.name.clone();
        self.journal.step(|c: &Crowned| c.pitch == name, |_| Ok(crowned))?;
        self.say(&format!("  new champion: {name}"));
        // What the roofline still allows is counted from the champion's times.
        for (old, new) in self.baseline.shapes.iter_mut().zip(&summary.shapes) {
            old.seconds = new.challenger_seconds;
        }
        let shapes = summary.shapes.iter().map(|s| (s.shape.clone(), s.speedup)).collect();
        self.crowned.push(Coronation { pitch: challenger.name.clone(), shapes });
        self.champion = challenger;
        Ok(())
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

/// What was found, or why the environment did not let anything be found.
fn split<T>(found: Result<T>) -> (Option<T>, Option<String>) {
    match found {
        Ok(found) => (Some(found), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

/// A shark's ballots on a round, valid by the rules or an error.
fn cast(
    season: &Season,
    shark: &Shark,
    round: &str,
    context: &str,
    candidates: &[Candidate<'_>],
) -> Result<Vec<Ballot>> {
    let names: Vec<String> = candidates.iter().map(|c| c.pitch.name.clone()).collect();
    let ballots = match &shark.source {
        Source::Builtin { which } => {
            candidates.iter().map(|c| which.ballot(c.pitch, &c.evidence, &season.settings)).collect()
        }
        Source::Ballots { ballots } => {
            let this = |b: &&Ballot| b.round.as_deref().is_none_or(|r| r == round) && names.contains(&b.pitch);
            ballots.iter().filter(this).cloned().collect()
        }
        Source::Command { command } => {
            let pitches = candidates.iter().map(|c| Considered { pitch: c.pitch, evidence: &c.evidence }).collect();
            let question = Question::new(&season.name, round, context, shark, pitches);
            ask(&shark.name, command, &question, season.settings.shark_seconds)?
        }
    };
    shark.check_ballots(&ballots, &names, &season.settings)?;
    Ok(ballots)
}
