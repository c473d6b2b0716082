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
    Asked, BaselineTaken, Begun, Buried, Chosen, Crowned, Dethroned, Examined, Judged, Phased, PitchChecked, Pitched,
    Researched, RoundClosed, RoundOpened, Sat, SeasonClosed, SeasonOpened, Tallied, Voted, Withdrawn,
};
use crate::evidence::{Arena, Evidence, entry_digest, gather, resolve};
use crate::ledger::{Ledger, Record};
use crate::mortem::PostMortem;
use crate::pitch::{Deal, Kind, Pitch, Run};
use crate::referee::{Correctness, Speedup, Summary, seeds};
use crate::round::RoundKind;
use crate::season::{self, Season};
use crate::shark::agent::{Considered, PitchQuestion, Question, Voice, ask, ask_for_pitches};
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
    /// Pitches that their contestants take back before the vote.
    pub withdrawals: BTreeMap<String, String>,
}

impl Choices {
    /// Refuses a word on a round that the season does not have.
    fn check(&self, season: &Season) -> Result<()> {
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
    /// Whether the champion was found wrong.
    dethrones: bool,
}

impl Tried {
    fn without_times(judgement: Judgement) -> Self {
        Self { judgement, summary: None, program: None, dethrones: false }
    }
}

/// A shark and the terms on which it funds.
type Funder = (String, Deal);

/// What an attempt is held to.
struct Contract {
    deal: Deal,
    /// Whose terms are among them.
    funder: Option<String>,
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
            let verdict = self.round(&round.name, round.kind, &round.context, &round.pitches)?;
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
        let pitches = [pitches.to_vec(), self.asked(name, context)?].concat();
        for pitch in &pitches {
            let pitched = Pitched { round: name.to_owned(), pitch: pitch.clone() };
            self.journal.step(|p: &Pitched| p.pitch.name == pitch.name, |_| Ok(pitched))?;
        }
        let mut candidates = self.check_pitches(name, &pitches)?;
        if let Some(withdrawn) = self.withdrawn(name)? {
            candidates.retain(|candidate| candidate.pitch.name != withdrawn);
        }
        let needed = if kind == RoundKind::WildCard { 1 } else { self.season.settings.min_pitches };
        if candidates.len() < needed {
            let note = format!("{} valid pitches, and a round needs {needed}", candidates.len());
            return self.close_round(name, Verdict::Blocked, &note);
        }
        let votes = self.votes(name, kind, context, &candidates)?;
        let counted = votes.iter().filter(|vote| vote.void.is_none()).count();
        if counted < self.season.settings.min_sharks {
            let note = format!("{counted} valid votes, and a round needs {}", self.season.settings.min_sharks);
            return self.close_round(name, Verdict::Blocked, &note);
        }
        let tally = self.tally(name, kind, &candidates, &votes)?;
        let order = self.choose(name, kind, &tally)?;
        match order.as_slice() {
            [] if tally.research => {
                self.research(name)?;
                let below = self.season.settings.research_below;
                let note = format!("every shark gave every pitch less than {below}, so nothing was built");
                self.close_round(name, Verdict::Inconclusive, &note)
            }
            [] => self.close_round(name, Verdict::Blocked, &tally.decided_by),
            order => self.attempts(name, order, &candidates, &votes),
        }
    }

    /// The pitches of contestants that are commands. What one brings that is not understood is left out, and told.
    fn asked(&mut self, round: &str, context: &str) -> Result<Vec<Pitch>> {
        let Some(planned) = self.season.rounds.iter().find(|planned| planned.name == round) else {
            return Ok(Vec::new());
        };
        let mut brought = Vec::new();
        for asked in &planned.asks {
            let problems = self.arena.problems.iter().map(|p| p.name()).collect::<Result<_>>()?;
            let mortems = history::post_mortems(self.records());
            let names = [self.season.name.as_str(), round, context];
            let question = PitchQuestion::new(names, problems, &self.champion.entry, &self.baseline, mortems);
            let make = |_: &Ledger| {
                let answer = ask_for_pitches(&asked.command, &question, self.season.settings.shark_seconds);
                let (pitches, talk, void) =
                    answer.map_or_else(|why| (Vec::new(), None, Some(why)), |(pitches, talk)| (pitches, talk, None));
                let own = |pitch: Pitch| Pitch {
                    name: format!("{} ({round}, {})", pitch.name, asked.contestant),
                    contestant: asked.contestant.clone(),
                    // A command may name configurations; programs are for people to bring.
                    run: pitch.run.map(|run| Run { program: Vec::new(), build: Vec::new(), ..run }),
                    ..pitch
                };
                let pitches = pitches.into_iter().map(own).collect();
                Ok(Asked { round: round.to_owned(), contestant: asked.contestant.clone(), pitches, void, talk })
            };
            let asked = self.journal.step(|a: &Asked| a.contestant == asked.contestant, make)?;
            if let Some(void) = &asked.void {
                self.watch.say(&format!("  {} brings nothing: {void}", asked.contestant));
            }
            brought.extend(asked.pitches);
        }
        Ok(brought)
    }

    /// The pitch that its contestant takes back.
    fn withdrawn(&mut self, round: &str) -> Result<Option<String>> {
        let Choices { by, reason, withdrawals, .. } = &self.options.choices;
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
                let cast = cast(season, &shark.in_round(kind), [round, context], candidates, mortems.clone());
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
        let problems: Vec<String> = self.arena.problems.iter().map(|p| p.name()).collect::<Result<_>>()?;
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

    /// The winner, and where it fails the runner-up.
    fn attempts(
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
        let Tried { judgement, summary, program, dethrones } = match (gate, sweep.is_empty()) {
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

    /// Every configuration of a sweep in turn, each against the champion. The fastest that keeps the deal is taken; where none does, the
    /// fallback, if it is faster by the rules alone.
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
        let Some(place) = tried.iter().position(|(config, ..)| Some(*config) == kept.as_ref()) else {
            let last = tried.pop().map(|(_, entry, found)| (Some(entry), found));
            let nothing = || {
                (None, Tried::without_times(Judgement::because(Verdict::Blocked, "nothing of the sweep can be run")))
            };
            return Ok(last.unwrap_or_else(nothing));
        };
        let (config, entry, mut found) = tried.swap_remove(place);
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
    fn trial(
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
        let correctness = examined.correctness.unwrap_or_else(|| Correctness::new(&pitch, seed));
        if let Some(wrong) = &correctness.champion_wrong {
            let why = format!("wrong on {} ({}): {}", wrong.case, wrong.inputs, wrong.what);
            let dethroned = Dethroned { round: round.to_owned(), champion: champion.name.clone(), why: why.clone() };
            self.journal.step(|d: &Dethroned| d.champion == champion.name, |_| Ok(dethroned))?;
            self.say(&format!("  {} is dethroned: {why}", champion.name));
            let reason = format!("right, where the champion is {why}; correct but slow beats wrong");
            let judgement = Judgement::because(Verdict::Success, reason);
            return Ok(Tried { program: correctness.program, dethrones: true, ..Tried::without_times(judgement) });
        }
        let (judgement, summary) = self.sittings(round, challenger, &terms.deal, scratch_bytes)?;
        Ok(Tried { judgement, summary, program: correctness.program, dethrones: false })
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

/// A shark's vote on a round, valid by the rules or an error.
fn cast(
    season: &Season,
    shark: &Shark,
    [round, context]: [&str; 2],
    candidates: &[Candidate<'_>],
    post_mortems: Vec<PostMortem>,
) -> Result<Voice> {
    let names: Vec<String> = candidates.iter().map(|c| c.pitch.name.clone()).collect();
    let voice = match &shark.source {
        Source::Builtin { which } => {
            let ballot = |c: &Candidate<'_>| which.ballot(&shark.criteria, c.pitch, &c.evidence, &season.settings);
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
