//! A season: a series of rounds on one set of problems, as a file writes it.

mod builtin;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(crate) use builtin::wild_card;
pub use builtin::{SHIPPED, Shipped, builtin};

use referee::digits::hex;

use crate::court::Referee;
use crate::entry::Entry;
use crate::evidence::Arena;
use crate::operation::{Operation, no_configurations};
use crate::operations::folder::Folder;
use crate::operations::{self, Described, Problem};
use crate::pitch::{Deal, Pitch};
use crate::round::RoundKind;
use crate::settings::Settings;
use crate::shark::{Shark, builtin::Which};
use crate::{Error, Result, written};

/// The baseline that is whatever the planner chooses today.
pub const PLANNED: &str = "planned";

/// How the names of backends begin that are GPUs which are not there.
const FORETOLD: &str = "foretold:";

/// The name of the round in which a season's champion meets the planner's choice.
pub(crate) const TITLE: &str = "title";

/// A round as it is planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Its name, unique in the season.
    pub name: String,
    /// What kind it is: regular, or a round for correctness.
    #[serde(default)]
    pub kind: RoundKind,
    /// What it is about.
    pub context: String,
    /// Its pitches.
    pub pitches: Vec<Pitch>,
    /// Commands that are asked for pitches of their own, with a contestant's name each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<Asked>,
}

/// A contestant that is a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Whose pitches these will be.
    pub contestant: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether it may bring programs, which are fenced as everyone's; if not, it brings configurations.
    #[serde(default)]
    pub programs: bool,
}

/// A season, with everything that its files named read in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Season {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub context: String,
    /// What it goes by.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub motto: String,
    /// What is to follow from it, step by step, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roadmap: Vec<String>,
    /// The success metric, in words.
    pub metric: String,
    /// What is to be beaten first: `planned`, or a configuration, any part of one.
    pub baseline: String,
    /// The backend, or `auto`.
    pub backend: String,
    /// The threads; none for as many as this process may run on.
    pub threads: Option<usize>,
    /// The problems of the operation that comes with this program; none where another is played.
    pub problems: Vec<Problem>,
    /// Another operation, with its problems.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Folder>,
    /// The numbers of the game.
    pub settings: Settings,
    /// Terms for pitches that bring none.
    pub deal: Deal,
    /// The judges.
    pub sharks: Vec<Shark>,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Long shots for a wild-card round.
    pub wild_cards: Vec<Pitch>,
    /// Where its sittings are held, if not here. Not a part of what is played: who goes on elsewhere plays the same
    /// season.
    #[serde(skip)]
    pub cluster: Option<Machines>,
}

/// Other machines, as `[cluster]` in a season's file names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machines {
    /// A cluster of this kind: `slurm`.
    pub kind: Option<String>,
    /// Options for it, such as a partition or a constraint.
    pub options: Vec<String>,
    /// Or a command that runs what follows it on `{host}`, such as `ssh {host}`.
    pub launch: Option<String>,
    /// The hosts that take turns.
    pub hosts: Vec<String>,
    /// The folder for jobs and answers, which all machines see under this name.
    pub shared: Option<PathBuf>,
}

/// A season's file. Pitches and sharks are files beside it, or written in it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeasonFile {
    name: String,
    #[serde(default)]
    context: String,
    #[serde(default)]
    motto: String,
    #[serde(default)]
    roadmap: Vec<String>,
    metric: String,
    #[serde(default)]
    baseline: String,
    #[serde(default = "auto")]
    backend: String,
    threads: Option<usize>,
    /// The folder of another operation, which brings its problems and its baseline.
    operation: Option<PathBuf>,
    #[serde(default)]
    problem: Vec<Problem>,
    settings: Option<Settings>,
    #[serde(default)]
    deal: Deal,
    #[serde(default = "builtin_sharks")]
    sharks: Vec<String>,
    round: Vec<RoundFile>,
    #[serde(default)]
    wild_cards: Vec<String>,
    cluster: Option<Machines>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoundFile {
    name: String,
    #[serde(default)]
    kind: RoundKind,
    #[serde(default)]
    context: String,
    #[serde(default)]
    pitches: Vec<String>,
    #[serde(default)]
    pitch: Vec<Pitch>,
    #[serde(default)]
    ask: Vec<Asked>,
}

fn auto() -> String {
    "auto".to_owned()
}

fn builtin_sharks() -> Vec<String> {
    Which::ALL.map(|which| which.name().to_owned()).to_vec()
}

impl Season {
    /// The season of a file, or one that comes with this program, by its name.
    pub fn named(name: &Path) -> Result<Self> {
        let bare = name.extension().is_none() && name.components().count() == 1;
        match name.to_str().filter(|_| bare && !name.exists()) {
            Some(name) => Shipped::by_name(name)?.season(),
            None => Self::read(name),
        }
    }

    /// Reads a season and every file that it names.
    pub fn read(path: &Path) -> Result<Self> {
        let mut file: SeasonFile = written::parse(path, &written::read(path)?)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for round in &mut file.round {
            round.pitch.iter_mut().for_each(|pitch| pitch.anchor(folder));
            round.ask.iter_mut().for_each(|asked| written::anchor(folder, &mut asked.command));
        }
        file.operation = file.operation.map(|operation| folder.join(operation));
        Self::of(file, |name| Pitch::read(&folder.join(name)), |name| Shark::read(&folder.join(name)))
    }

    /// A season that names no other files; `path` is where it came from, for the message.
    pub fn from_text(path: &Path, text: &str) -> Result<Self> {
        let named = |name: &str| Error::Rules {
            what: format!("season {}", path.display()),
            problem: format!("it names the file {name:?}, and nothing is read beside it"),
            remedy: "write the pitch in the season, and name built-in sharks".to_owned(),
        };
        Self::of(written::parse(path, text)?, |name| Err(named(name)), |name| Err(named(name)))
    }

    /// A season from its file, and from the pitches and sharks that it names.
    fn of(
        file: SeasonFile,
        pitch: impl Fn(&str) -> Result<Pitch>,
        shark: impl Fn(&str) -> Result<Shark>,
    ) -> Result<Self> {
        let shark = |name: &String| match Which::KNOWN.into_iter().find(|which| which.name() == name) {
            Some(which) => Ok(which.shark()),
            None => shark(name),
        };
        let mut rounds = Vec::new();
        for round in file.round {
            let mut pitches = round.pitch;
            for name in &round.pitches {
                pitches.push(pitch(name)?);
            }
            rounds.push(Round { name: round.name, kind: round.kind, context: round.context, pitches, asks: round.ask });
        }
        let operation = file.operation.as_deref().map(Folder::read).transpose()?;
        let baseline = match &operation {
            Some(operation) if file.baseline.is_empty() => operation.baseline_words(),
            Some(_) => {
                return Err(Error::Rules {
                    what: format!("season '{}'", file.name),
                    problem: "it names a baseline, and its operation brings its own".to_owned(),
                    remedy: "leave `baseline` out; [baseline] in operation.toml names the program".to_owned(),
                });
            }
            None => file.baseline,
        };
        let of_operation = operation.as_ref().map(|operation| operation.about.settings.clone()).unwrap_or_default();
        let mut settings = file.settings.unwrap_or_else(|| of_operation.clone());
        // Whatever else the season's file says, contestants need what the operation's need.
        settings.referee.limits.readable.extend(of_operation.referee.limits.readable);
        let wild_cards = file.wild_cards.iter().map(|name| pitch(name)).collect::<Result<_>>()?;
        let mut season = Self {
            name: file.name,
            context: file.context,
            motto: file.motto,
            roadmap: file.roadmap,
            metric: file.metric,
            baseline,
            backend: file.backend,
            threads: file.threads,
            problems: file.problem,
            operation,
            settings,
            deal: file.deal,
            sharks: file.sharks.iter().map(shark).collect::<Result<_>>()?,
            rounds,
            wild_cards,
            cluster: file.cluster,
        };
        season.lend_the_operations_files();
        season.check()?;
        Ok(season)
    }

    /// Refuses a season that breaks the rules before it begins.
    pub fn check(&self) -> Result<()> {
        let refuse = |problem: String, remedy: &str| {
            Err(Error::Rules { what: format!("season '{}'", self.name), problem, remedy: remedy.to_owned() })
        };
        if let Some(problem) = self.settings.fault() {
            return refuse(problem, "correct it under [settings]; `hammerhead tank settings` explains each");
        }
        self.settings.referee.check()?;
        if self.metric.trim().is_empty() {
            return refuse("it has no success metric".into(), "metric = \"what is to become better\"");
        }
        if self.problems.is_empty() == self.operation.is_none() {
            return refuse("it has no problems, or those of two operations".into(), operations::PROBLEM);
        }
        if self.baseline.trim().is_empty() {
            return refuse("it has no baseline".into(), "baseline = \"planned\", or a configuration");
        }
        self.described().check(Some(self.baseline.as_str()).filter(|words| *words != PLANNED))?;
        let twice = |(index, problem): &(usize, &Problem)| self.problems[..*index].contains(problem);
        if let Some((_, problem)) = self.problems.iter().enumerate().find(twice) {
            return refuse(format!("{} is there twice", problem.name()?), "name each problem once");
        }
        self.sharks.iter().try_for_each(Shark::check)?;
        let mut temperaments: Vec<&str> = self.sharks.iter().map(|s| s.temperament.as_str()).collect();
        temperaments.sort_unstable();
        temperaments.dedup();
        if temperaments.len() < self.settings.min_sharks {
            let problem = format!("{} distinct temperaments among its sharks", temperaments.len());
            return refuse(problem, "a valid round needs three: sharks = [\"skeptic\", \"pragmatist\", \"theorist\"]");
        }
        if let Some(name) = repeated(self.sharks.iter().map(|s| s.name.as_str())) {
            return refuse(format!("two sharks are called '{name}'"), "give each a name of its own");
        }
        if self.rounds.is_empty() {
            return refuse("it has no rounds".into(), "write [[round]] with a name and pitches");
        }
        if let Some(round) = self.rounds.iter().find(|r| !matches!(r.kind, RoundKind::Regular | RoundKind::Correctness))
        {
            return refuse(
                format!("round '{}' is of a kind that the tank calls by itself", round.name),
                "write kind = \"regular\" or kind = \"correctness\"",
            );
        }
        if let Some(name) = repeated(self.rounds.iter().map(|r| r.name.as_str())) {
            return refuse(format!("two rounds are called '{name}'"), "give each a name of its own");
        }
        let taken =
            |name: &str| name == TITLE || name.starts_with("research after ") || name.starts_with("wild cards after ");
        if let Some(round) = self.rounds.iter().find(|round| taken(&round.name)) {
            return refuse(
                format!("a round is called '{}', as the tank calls its own", round.name),
                "give it another name",
            );
        }
        let pitches = self.rounds.iter().flat_map(|r| &r.pitches).chain(&self.wild_cards);
        if let Some(name) = repeated(pitches.map(|p| p.name.as_str())) {
            return refuse(format!("two pitches are called '{name}'"), "give each a name of its own");
        }
        Ok(())
    }

    /// Tells this season from every other: two are the same if they would play the same.
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(serde_json::to_vec(self).unwrap_or_default()))
    }

    /// A season of one round with these pitches, on an operation's own problems against its own baseline.
    pub fn of_operation(operation: Folder, pitches: Vec<Pitch>) -> Result<Self> {
        let about = &operation.about;
        let context = about.context.clone();
        let mut season = Self {
            name: about.name.clone(),
            context: context.clone(),
            motto: String::new(),
            roadmap: Vec::new(),
            metric: about.metric.clone(),
            baseline: operation.baseline_words(),
            backend: auto(),
            threads: None,
            problems: Vec::new(),
            settings: about.settings.clone(),
            deal: Deal::default(),
            sharks: Which::ALL.map(|which| which.shark()).to_vec(),
            rounds: vec![Round { name: "pitches".to_owned(), context, pitches, ..Round::default() }],
            wild_cards: Vec::new(),
            cluster: None,
            operation: Some(operation),
        };
        season.lend_the_operations_files();
        season.check()?;
        Ok(season)
    }

    /// What an operation brings for its contestants, they may use from anywhere.
    fn lend_the_operations_files(&mut self) {
        let Some(folder) = self.operation.as_ref().map(|operation| operation.folder.clone()) else { return };
        let pitches = self.rounds.iter_mut().flat_map(|round| &mut round.pitches).chain(&mut self.wild_cards);
        pitches.for_each(|pitch| pitch.places.push(folder.clone()));
    }

    /// The same season with other rounds: in each of so many a command is asked for candidates, shown what came of
    /// those before. One is enough for a round, and failures are what is expected, so that they call no research.
    pub fn evolving(mut self, asked: &Asked, steps: usize) -> Result<Self> {
        let round = |step: usize| Round {
            name: format!("step {step}"),
            context: "candidates that learn from those before".to_owned(),
            asks: vec![asked.clone()],
            ..Round::default()
        };
        self.name += " (evolving)";
        self.rounds = (1..=steps).map(round).collect();
        self.settings.min_pitches = 1;
        self.settings.research_below = 0.0;
        self.settings.failures_before_research = steps + 1;
        self.check()?;
        Ok(self)
    }

    /// What it says of what it computes.
    pub fn described(&self) -> Described<'_> {
        let (problems, folder) = (self.problems.as_slice(), self.operation.as_ref());
        Described { problems, folder, backend: &self.backend, threads: self.threads }
    }

    /// The GPU for which it is played without being there, if that is how: then every verdict is a prediction.
    pub fn foretold(&self) -> Option<&str> {
        self.backend.strip_prefix(FORETOLD)
    }

    /// The referee that predicts its verdicts, if that is how.
    pub fn foretelling(&self) -> Result<Option<Box<dyn Referee>>> {
        self.described().foretelling(&self.settings.referee)
    }

    /// The names of its problems.
    pub fn problem_names(&self) -> Result<Vec<String>> {
        self.described().problem_names()
    }

    /// What is computed.
    pub fn operation(&self) -> Result<Box<dyn Operation>> {
        self.described().operation()
    }

    /// Where it is played on this machine.
    pub fn arena(&self) -> Result<Arena> {
        Ok(Arena { names: self.problem_names()?, configurations: self.described().configurations()? })
    }

    /// What is to be beaten first.
    pub fn baseline(&self, arena: &Arena) -> Result<Entry> {
        if let Some(Folder { about, .. }) = &self.operation {
            let (build, command) = (about.baseline.build.clone(), about.baseline.program.clone());
            return Ok(Entry::Program { build, command, sealed: None });
        }
        let words = if self.baseline == PLANNED { "" } else { &self.baseline };
        let none = || no_configurations(self.described().name(), "the baseline");
        arena.configurations.as_ref().ok_or_else(none)?.planned(words)
    }
}

/// The first name that is there twice.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = Vec::new();
    names.into_iter().find(|name| {
        let again = seen.contains(name);
        seen.push(*name);
        again
    })
}
