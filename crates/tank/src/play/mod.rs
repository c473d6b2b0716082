//! How a season is played: rounds, attempts, verdicts, and what follows from them.

mod attempt;
mod choices;
mod failures;
mod journal;
mod round;
mod title;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hammerhead::machine::Machine;
use referee::{Speedup, seeds};
use sha2::{Digest, Sha256};

use self::attempt::since;
pub use self::choices::Choices;
use self::journal::Journal;
use crate::court::{Baseline, Referee, Swimmer};
use crate::entry::Entry;
use crate::event::{BaselineTaken, RoundClosed, RoundOpened, SeasonClosed, SeasonOpened, Spent};
use crate::evidence::Arena;
use crate::ledger::{Ledger, Record};
use crate::round::RoundKind;
use crate::season::Season;
use crate::verdict::Verdict;
use crate::{Error, Result};

/// How a season is played.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The seed that all others are made from; drawn by the operating system where there is none.
    pub seed: Option<u64>,
    /// A number that nobody else knows. With it a season that goes on asks with the seed that it asked with when it
    /// stopped, which no other ledger has, so that an answer which came meanwhile is an answer to that.
    pub secret: Option<u64>,
    /// A person's word.
    pub choices: Choices,
    /// Whether to stop before anything is built, so that a person can look at the vote.
    pub pause: bool,
    /// Whether to begin anew where the season is finished already.
    pub again: bool,
    /// How long baseline, examinations and sittings may take together; as long as the settings' looks take where there
    /// is none.
    pub budget: Option<Duration>,
    /// Whether the season ends when that is spent, be there rounds left.
    pub stops_at_budget: bool,
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
            let configurations = arena.configurations.as_ref();
            Ok(SeasonOpened {
                season: season.clone(),
                digest: season.digest(),
                machine: machine.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                planned: configurations.map_or_else(|| Ok(champion.clone()), |all| all.unforced(&champion))?,
                champion,
                kernels: configurations.map(|all| all.kernels()).unwrap_or_default(),
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
    let kernels = arena.configurations.as_ref().map(|all| all.kernels()).unwrap_or_default();
    if opened.kernels != kernels {
        watch.say(
            "kernels have changed since the season began: its champions go into the tuning cache as those of other kernels, which no plan uses; \
             --again plays it with these",
        );
    }
    let champion = Champion { name: format!("baseline ({})", season.baseline), entry: opened.champion.clone() };
    let baseline = Baseline::default();
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
        taken: 0.0,
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
    /// Seconds that baseline, examinations and sittings have taken so far, for the budget: those of the ledger among
    /// them.
    taken: f64,
    /// Rounds that are still to be played, this one among them.
    rounds_left: usize,
}

impl Play<'_> {
    fn all(&mut self) -> Result<()> {
        self.take_baseline()?;
        for (index, round) in self.season.rounds.iter().enumerate() {
            if self.is_spent(&round.name)? {
                break;
            }
            let place = format!("round {} of {}", index + 1, self.season.rounds.len());
            self.say(&format!("{place}: {} ({} pitches)", round.name, round.pitches.len()));
            self.rounds_left = self.season.rounds.len() - index;
            // As long as the champion is wrong, rounds are about being right, whatever they were planned for.
            let kind = if self.baseline.wrong.is_some() { RoundKind::Correctness } else { round.kind };
            let verdict = self.round(&round.name, kind, &round.context, &round.pitches)?;
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

    /// Whether there is no time left for a round, where the budget is to end the season.
    fn is_spent(&mut self, round: &str) -> Result<bool> {
        let budget = self.options.budget.filter(|_| self.options.stops_at_budget);
        let over = budget.is_some_and(|budget| self.taken >= budget.as_secs_f64());
        let spent =
            self.journal.step_if(|s: &Spent| s.round == round, || over.then(|| Spent { round: round.to_owned() }))?;
        if spent.is_some() {
            self.say(&format!("the budget is spent before {round}"));
        }
        Ok(spent.is_some())
    }

    fn say(&mut self, line: &str) {
        self.watch.say(line);
    }

    /// A seed that nobody has seen, or one that follows from the given seed and its place.
    fn seed(&self, place: &str) -> Result<u64> {
        let past = self.journal.past();
        let text = match (self.options.seed, self.options.secret) {
            (Some(seed), _) => format!("{seed} {} {place}", past.len()),
            (None, Some(secret)) => format!("{secret} {} {place}", past.last().map_or("", |last| &last.hash)),
            (None, None) => return Ok(seeds::fresh()?),
        };
        Ok(Sha256::digest(text).iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte)))
    }

    fn take_baseline(&mut self) -> Result<()> {
        let seed = self.seed("baseline")?;
        if self.journal.is_live() {
            self.watch.say("timing the baseline and the machine's ceilings");
        }
        let (referee, champion, began) = (&mut self.referee, &self.champion, Instant::now());
        let make = |_: &Ledger| {
            let baseline = referee.baseline(champion.swimmer(), seed)?;
            Ok(BaselineTaken { baseline, seconds: since(began, Duration::ZERO) })
        };
        let BaselineTaken { baseline, seconds } = self.journal.step(|_| true, make)?;
        self.baseline = baseline;
        self.taken += seconds;
        if let Some(wrong) = &self.baseline.wrong {
            let name = &self.champion.name;
            self.watch.say(&format!("{name} is wrong: {wrong}; nothing is timed until somebody is right"));
        }
        Ok(())
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
}
