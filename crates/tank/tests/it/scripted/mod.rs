//! What the tests share: a referee that reads its answers from a script, and small seasons.

use std::collections::BTreeMap;
use std::path::Path;

use referee::contestant::{Fault, Stage};
use referee::synthetic::{SyntheticCourse, World};
use referee::{
    Control, Correctness, CourseReport, Measurement, Outcome, Pairing, Precision, ShapeResult, Side, Sitting, Speedup,
    Stop, Summary, Terms, Wrong,
};
use tank::Result;
use tank::court::{Baseline, BaselineShape, Referee, Swimmer};
use tank::entry::Entry;
use tank::event::Event;
use tank::ledger::{self, Ledger, Record};
use tank::operations::dual_gemm::ProblemSpec;
use tank::pitch::{Claim, Pitch};
use tank::play::{Options, Played, Watch, play};
use tank::season::{Round, Season};
use tank::settings::Settings;
use tank::shark::builtin::Which;
use tank::verdict::Verdict;

/// What the referee finds when a pitch comes before it.
#[derive(Clone, Debug)]
pub enum Fate {
    /// This geometric mean on every problem.
    Speed(f64),
    /// Faster on the whole, too slow on one problem.
    Mixed,
    /// Nothing can be said.
    Unknown,
    /// Wrong results.
    Wrong,
    /// Right results, where the champion's are wrong.
    Rights,
    /// It does not build.
    Broken,
    /// It ends while the clock runs.
    Crash,
    /// The champion ends whenever it is timed against itself.
    ChampionFails,
    /// The controls fail this often, then this speed.
    Void(usize, f64),
    /// The environment stands in the way.
    Blocked,
    /// It stands in the way of the sitting, after an examination that found nothing wrong.
    NotTimed,
    /// It is asked of other machines, and none answers.
    Unanswered,
}

/// Answers from a script, and counts what it was asked.
#[derive(Debug, Default)]
pub struct Scripted {
    pub fates: BTreeMap<String, Fate>,
    pub problems: Vec<String>,
    /// Every answer that was given, in order: what was asked, and of whom.
    pub asked: Vec<String>,
    /// The seeds of sittings that were asked for, in order.
    pub seeds: Vec<u64>,
    /// What the files of programs had to be that were to be timed, in order.
    pub seals: Vec<Option<String>>,
    /// What is wrong with the season's baseline.
    pub wrong_baseline: Option<String>,
    /// After so many answers, die.
    pub dies_after: Option<usize>,
    pub voids: BTreeMap<String, usize>,
}

impl Scripted {
    pub fn new(season: &Season, fates: &[(&str, Fate)]) -> Self {
        let fates = fates.iter().map(|(name, fate)| (name.to_string(), fate.clone())).collect();
        let problems = season.problems.iter().map(|p| p.name().unwrap()).collect();
        Self { fates, problems, ..Self::default() }
    }

    fn fate(&self, name: &str) -> Fate {
        let before = name.trim_end_matches(" for the title");
        self.fates.get(name).or_else(|| self.fates.get(before)).cloned().unwrap_or(Fate::Speed(1.0))
    }

    fn ask(&mut self, what: &str, name: &str) {
        assert!(self.dies_after.is_none_or(|limit| self.asked.len() < limit), "killed");
        self.asked.push(format!("{what} {name}"));
    }
}

pub fn exactly(estimate: f64) -> Speedup {
    Speedup { estimate, low: estimate * 0.998, high: estimate * 1.002 }
}

fn measurement(pairing: Pairing, problems: &[String], speedups: &[f64], seed: u64) -> Measurement {
    let shape = |(problem, &speedup): (&String, &f64)| ShapeResult {
        shape: problem.clone(),
        champion_seconds: 1e-3,
        challenger_seconds: 1e-3 / speedup,
        speedup: exactly(speedup),
        quartets: vec![-speedup.ln(); 24],
    };
    let geomean = (speedups.iter().map(|s| s.ln()).sum::<f64>() / speedups.len() as f64).exp();
    let summary = Summary { geomean: exactly(geomean), shapes: problems.iter().zip(speedups).map(shape).collect() };
    Measurement {
        pairing,
        seed,
        processes: 6,
        quartets: 24,
        confidence: 0.983,
        cold: summary.clone(),
        warm: summary,
        champion: Vec::new(),
        looks: Vec::new(),
        stopped: Stop::Precise,
    }
}

impl Referee for Scripted {
    fn baseline(&mut self, champion: Swimmer<'_>, _: u64) -> Result<Baseline> {
        self.ask("baseline", champion.name);
        if let Some(wrong) = self.wrong_baseline.clone().filter(|_| champion.name.starts_with("baseline")) {
            return Ok(Baseline::wrong(wrong));
        }
        let shape = |problem: &String| BaselineShape {
            problem: problem.clone(),
            seconds: 1e-3,
            floor_seconds: Some(0.2e-3),
            flops: 1e6,
            bytes: 1e5,
        };
        let shapes = self.problems.iter().map(shape).collect();
        Ok(Baseline { shapes, flops_per_second: Some(5e9), bytes_per_second: Some(1e9), wrong: None })
    }

    fn examine(&mut self, _: Swimmer<'_>, challenger: Swimmer<'_>, seed: u64) -> Result<Correctness> {
        self.ask("examine", challenger.name);
        let fate = self.fate(challenger.name);
        if matches!(fate, Fate::Blocked) {
            return Err(referee::Error::Samples.into());
        }
        let wrong =
            Wrong { case: "3×33×48".into(), inputs: "realistic".into(), what: "c[0, 0] is 1, should be 2".into() };
        Ok(Correctness {
            contestant: challenger.name.to_owned(),
            seed,
            cases: 5,
            unsupported: Vec::new(),
            runs: 20,
            compared: 1000,
            precision: Precision::default(),
            champion_precision: None,
            repeated: Some(true),
            program: matches!(challenger.entry, Entry::Program { .. }).then(|| "as examined".to_owned()),
            champion_wrong: matches!(fate, Fate::Rights).then(|| Wrong {
                case: "3×33×48".into(),
                inputs: "realistic".into(),
                what: "it computes A·B".into(),
            }),
            wrong: if matches!(fate, Fate::Wrong) { vec![wrong] } else { Vec::new() },
            fault: matches!(fate, Fate::Broken).then(|| Fault::Build { reason: "no rule to make target".into() }),
        })
    }

    fn sit(&mut self, champion: Swimmer<'_>, challenger: Swimmer<'_>, terms: &Terms, seed: u64) -> Result<Sitting> {
        self.ask("sit", challenger.name);
        self.seeds.push(seed);
        if let Entry::Program { sealed, .. } = challenger.entry {
            self.seals.push(sealed.clone());
        }
        let settings = Settings::default().referee;
        let one = vec![1.0; self.problems.len()];
        let control = |pairing, speedups: &[f64], passed| Control {
            measurement: measurement(pairing, &self.problems, speedups, seed),
            passed,
            finding: String::new(),
        };
        let mut speedups = one.clone();
        let fate = self.fate(challenger.name);
        if matches!(fate, Fate::Unanswered) {
            return Err(tank::Error::Cluster { problem: "no machine answers".into() });
        }
        if matches!(fate, Fate::NotTimed) {
            return Err(referee::Error::Samples.into());
        }
        if matches!(fate, Fate::ChampionFails) {
            // What becomes of it is the referee's own to say.
            let world = World { champion_ends: Some(Pairing::Control), ..World::quiet(self.problems.len(), 0.0) };
            return Ok(referee::sit(&mut SyntheticCourse::new(world, seed), &settings, terms, seed)?);
        }
        let speed = |speed: f64| {
            let margin = terms.least_gain.unwrap_or(0.0).max(settings.timing.least_margin);
            match speed {
                s if s < 0.995 => Outcome::Slower,
                s if s > 1.0 + margin + 0.004 => Outcome::Faster,
                _ => Outcome::Inconclusive { why: "the interval does not clear the margin".into() },
            }
        };
        let outcome = match fate {
            Fate::Speed(s) => {
                speedups.fill(s);
                speed(s)
            }
            Fate::Mixed => {
                speedups.fill(1.5);
                speedups[0] = 0.8;
                Outcome::Mixed { shapes: vec![self.problems[0].clone()] }
            }
            Fate::Void(times, s) => {
                let voids = self.voids.entry(challenger.name.to_owned()).or_default();
                *voids += 1;
                speedups.fill(s);
                if *voids <= times { Outcome::Void { why: vec!["the control differs".into()] } } else { speed(s) }
            }
            Fate::Crash => {
                let fault = Fault::Crash { stage: Stage::Run, status: "signal 11".into(), words: String::new() };
                Outcome::Faulted { side: Side::Challenger, fault }
            }
            _ => Outcome::Inconclusive { why: "the interval is too wide".into() },
        };
        // As the referee does: what seems faster, on the whole or in part, is measured again.
        let promising = speedups.iter().any(|speedup| *speedup > 1.014)
            && !matches!(outcome, Outcome::Void { .. } | Outcome::Faulted { .. });
        let timed = |pairing| Some(measurement(pairing, &self.problems, &speedups, seed));
        Ok(Sitting {
            seed,
            champion: champion.name.to_owned(),
            challenger: challenger.name.to_owned(),
            course: CourseReport::default(),
            control: Some(control(Pairing::Control, &one, true)),
            plant: Some(control(Pairing::Plant, &vec![1.0 / 1.05; one.len()], true)),
            margin: settings.timing.least_margin,
            first: timed(Pairing::Duel),
            second: if promising { timed(Pairing::Duel) } else { None },
            scout: None,
            fence: None,
            roofline: Vec::new(),
            settings,
            outcome,
        })
    }
}

/// A pitch that is complete, and runs this configuration.
pub fn pitch(name: &str, config: &str) -> Pitch {
    let mut pitch: Pitch = toml::from_str(&Pitch::example(name)).unwrap();
    pitch.contestant = format!("{name}'s author");
    pitch.run.as_mut().unwrap().config = Some(config.to_owned());
    pitch
}

pub fn claiming(mut pitch: Pitch, speedup: f64) -> Pitch {
    pitch.claim = Some(Claim {
        speedup: Some(speedup),
        low: Some(speedup * 0.95),
        high: Some(speedup * 1.05),
        reasoning: "arithmetic".into(),
        ..Claim::default()
    });
    pitch
}

/// Two small problems.
pub fn small_problems() -> [ProblemSpec; 2] {
    [ProblemSpec::single(4, 32, 64), ProblemSpec::single(16, 64, 128)]
}

/// A season of these rounds on two small problems of the portable backend.
pub fn season(rounds: &[(&str, Vec<Pitch>)]) -> Season {
    let round = |(name, pitches): &(&str, Vec<Pitch>)| Round {
        name: name.to_string(),
        pitches: pitches.clone(),
        ..Round::default()
    };
    Season {
        name: "test".into(),
        context: String::new(),
        motto: String::new(),
        roadmap: Vec::new(),
        metric: "geomean".into(),
        baseline: "strategy=two-pass,tile=16x32,depth=64,stages=1".into(),
        backend: "scalar".into(),
        threads: Some(1),
        problems: small_problems().map(Into::into).to_vec(),
        operation: None,
        settings: Settings { research_below: 0.5, ..Settings::default() },
        deal: Default::default(),
        sharks: Which::ALL.map(Which::shark).to_vec(),
        rounds: rounds.iter().map(round).collect(),
        wild_cards: Vec::new(),
        cluster: None,
    }
}

/// Two pitches that run different things, the first of which the sharks prefer.
pub fn two() -> Vec<Pitch> {
    vec![
        claiming(pitch("first", "strategy=interleaved,tile=16x32,depth=64,stages=1"), 1.5),
        claiming(pitch("second", "strategy=ping-pong,tile=48x32,depth=128,stages=4"), 1.02),
    ]
}

/// Keeps what was said.
#[derive(Debug, Default)]
pub struct Heard(pub Vec<String>);

impl Watch for Heard {
    fn say(&mut self, line: &str) {
        self.0.push(line.to_owned());
    }
}

pub fn played(season: &Season, path: &Path, referee: &mut dyn Referee, options: &Options) -> Result<Played> {
    let mut ledger = Ledger::open(path)?;
    play(season, &mut ledger, referee, options, &mut Heard::default())
}

/// Plays a season in a ledger of its own and gives its records.
pub fn records(season: &Season, fates: &[(&str, Fate)]) -> Vec<Record> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    played(season, &path, &mut Scripted::new(season, fates), &Options::default()).unwrap();
    ledger::read(&path).unwrap().records
}

/// Every verdict on a pitch, in order.
pub fn verdicts(records: &[Record]) -> Vec<(String, Verdict)> {
    let judged = records.iter().filter_map(|r| match &r.event {
        Event::Judged(judged) => Some((judged.pitch.clone(), judged.judgement.verdict)),
        _ => None,
    });
    judged.collect()
}

/// Every round's verdict, in order.
pub fn rounds(records: &[Record]) -> Vec<(String, Verdict)> {
    let closed = records.iter().filter_map(|r| match &r.event {
        Event::RoundClosed(closed) => Some((closed.round.clone(), closed.verdict)),
        _ => None,
    });
    closed.collect()
}

pub fn champion(records: &[Record]) -> Option<String> {
    records.iter().rev().find_map(|r| match &r.event {
        Event::SeasonClosed(closed) => Some(closed.champion.clone()),
        _ => None,
    })?
}
