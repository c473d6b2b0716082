//! The report of a season: what was claimed against what was measured, and everything needed to check it.
//!
//! A [`Report`] is assembled from the ledger alone, so that a season can be reported by anyone who has it. It goes out
//! as one HTML page that needs no network and no scripts, as Markdown, and as JSON.

mod board;
mod html;
mod markdown;
mod replay;
mod rewards;

use std::collections::BTreeMap;

use hammerhead::machine::Machine;
use serde::Serialize;

pub use board::board;
pub use html::html;
pub use markdown::markdown;
pub use replay::replay;
pub use rewards::Reward;

use referee::contestant::Guard;
use referee::{Correctness, DeviceReport, Scout, ShapeResult, Sitting, Speedup};

use crate::court::Baseline;
use crate::entry::Entry;
use crate::event::{Chosen, Event, InstalledWay, Judged, PitchChecked, SeasonOpened, Voted};
use crate::evidence::{Counter, KernelEvidence, PhaseShare};
use crate::history::{self, Calibration, Grave};
use crate::ledger::Record;
use crate::pitch::{Deal, Pitch, Prospect, Risk};
use crate::round::RoundKind;
use crate::tally::Tally;
use crate::verdict::{self, Verdict};
use crate::{Error, Result};

/// A season, told.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of this layout.
    pub schema: u32,
    /// The season's name.
    pub season: String,
    /// Its number in the ledger.
    pub number: u32,
    /// What it is about.
    pub context: String,
    /// What it goes by.
    pub motto: String,
    /// What is to follow from it.
    pub roadmap: Vec<String>,
    /// Rounds that were planned, in order.
    pub planned: Vec<String>,
    /// The success metric.
    pub metric: String,
    /// What was to be beaten first.
    pub baseline: String,
    /// The GPU that was not there, where all of it is a prediction.
    pub foretold: Option<String>,
    /// When it began and ended; no end where it is not finished.
    pub opened: String,
    /// When it ended.
    pub closed: Option<String>,
    /// The version of the program.
    pub version: String,
    /// The machine.
    pub machine: Machine,
    /// The judges: name, character, motto.
    pub judges: Vec<[String; 3]>,
    /// What was gained over the baseline, coronation by coronation; nothing where nobody was crowned, or a champion was
    /// wrong.
    pub gained: Option<Speedup>,
    /// How often somebody was crowned.
    pub coronations: usize,
    /// Champions that were found wrong, with what they got wrong.
    pub dethroned: Vec<(String, String)>,
    /// The champion's pitch, if the baseline was beaten.
    pub champion: Option<String>,
    /// What the champion runs.
    pub champion_entry: Entry,
    /// The baseline's times and the machine's ceilings.
    pub times: Option<Baseline>,
    /// The rounds.
    pub rounds: Vec<RoundReport>,
    /// Every attempt.
    pub attempts: Vec<AttemptReport>,
    /// What went into the tuning cache.
    pub installed: Vec<InstalledWay>,
    /// How well the contestants' claims held, over the whole ledger.
    pub contestants: BTreeMap<String, Calibration>,
    /// How well the sharks' votes held, over the whole ledger.
    pub sharks: BTreeMap<String, Calibration>,
    /// What failed, over the whole ledger.
    pub graveyard: Vec<Grave>,
    /// Records in the ledger.
    pub records: usize,
    /// The hash of its last record.
    pub head: String,
}

/// A round, told.
#[derive(Debug, Serialize)]
pub struct RoundReport {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: RoundKind,
    /// What it is about.
    pub why: String,
    /// How it ended; nothing where it has not.
    pub verdict: Option<Verdict>,
    /// In words.
    pub note: String,
    /// Its pitches.
    pub pitches: Vec<PitchReport>,
    /// Its count.
    pub tally: Option<Tally>,
    /// How each shark voted.
    pub votes: Vec<Voted>,
    /// Pitches that were taken back: the pitch, by whom, why.
    pub withdrawn: Vec<[String; 3]>,
    /// What people chose.
    pub chosen: Vec<Chosen>,
    /// What was learnt.
    pub findings: Vec<String>,
    /// Votes that did not count, with the reason.
    pub void_votes: Vec<String>,
}

/// A claim on its way from round to round: the pitch's name, the claim with its interval, and how sure its author was.
type Revision = (String, Option<(f64, f64, f64)>, Option<f64>);

/// A pitch, told.
#[derive(Debug, Serialize)]
pub struct PitchReport {
    /// All of it.
    pub pitch: Pitch,
    /// Why it was disqualified, if it was.
    pub disqualified: Option<String>,
    /// The model's prediction.
    pub predicted: Option<f64>,
    /// What the roofline allows.
    pub possible: Option<f64>,
    /// What the simulator counted.
    pub simulated: Vec<Counter>,
    /// What the assembler made of its kernels.
    pub assembled: Vec<KernelEvidence>,
    /// Shares of its time by phase.
    pub phases: Vec<PhaseShare>,
    /// By which model.
    pub phases_by: String,
    /// Rounds that the claim has outlived.
    pub survived: usize,
    /// Everything about it that is a number, by name.
    pub figures: BTreeMap<String, f64>,
    /// The claims that it revises, oldest first: name, claim, confidence.
    pub lineage: Vec<Revision>,
}

/// An attempt, told.
#[derive(Debug, Serialize)]
pub struct AttemptReport {
    /// The round.
    pub round: String,
    /// The pitch.
    pub pitch: String,
    /// Who brought it.
    pub contestant: String,
    /// The claim: number, low, high.
    pub claimed: Option<(f64, f64, f64)>,
    /// The verdict.
    pub verdict: Verdict,
    /// Its reasons.
    pub reasons: Vec<String>,
    /// The published speedup.
    pub measured: Option<Speedup>,
    /// Each problem, at the temperature that decides.
    pub shapes: Vec<ShapeReport>,
    /// The geometric mean at the other temperature.
    pub beside: Option<Speedup>,
    /// What the examination found, where there was one.
    pub examined: Option<Correctness>,
    /// The terms it was held to, and whose they were beside its own.
    pub deal: Deal,
    /// The shark that funds it.
    pub funder: Option<String>,
    /// What stood around a stranger's process, and what did not.
    pub guards: Vec<Guard>,
    /// What a reader should know of the conditions.
    pub remarks: Vec<String>,
    /// Every sitting's controls.
    pub controls: Vec<ControlReport>,
    /// The gain that it had to show, as a fraction, where it was held to one.
    pub margin: Option<f64>,
    /// Whether it became champion.
    pub crowned: bool,
    /// How many of its sittings began and have no result.
    pub interrupted: usize,
    /// Every seed: of the examination, and of the sittings.
    pub seeds: Vec<u64>,
    /// The number and hash of the record that judges it.
    pub record: (u64, String),
}

/// One problem of an attempt.
#[derive(Debug, Serialize)]
pub struct ShapeReport {
    /// The problem.
    pub problem: String,
    /// The speedup.
    pub speedup: Speedup,
    /// The champion's median seconds.
    pub champion_seconds: f64,
    /// The challenger's median seconds.
    pub challenger_seconds: f64,
    /// How many quartets that rests on.
    pub quartets: usize,
}

/// A sitting's checks on itself.
#[derive(Debug, Serialize)]
pub struct ControlReport {
    /// The champion against itself.
    pub same: Option<Speedup>,
    /// The planted slowdown.
    pub planted: Option<Speedup>,
    /// Whether both were as they must be.
    pub passed: bool,
    /// The margin that followed.
    pub margin: f64,
    /// What the fence costs, where a stranger competed.
    pub fence: Option<Speedup>,
    /// What the budget allowed, where there was one.
    pub scout: Option<Scout>,
    /// Seconds that were waited for neighbours to go.
    pub waited_seconds: f64,
    /// The GPU whose clock decided, and how it was meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
}

impl RoundReport {
    /// Its pitches by how safe the sharks think they are, the safest first; nothing before the count.
    pub fn safety(&self) -> Vec<(&str, f64)> {
        let standings = self.tally.iter().flat_map(|tally| &tally.standings);
        let mut scored: Vec<(&str, f64)> = standings.filter_map(|s| Some((s.pitch.as_str(), s.risk?))).collect();
        scored.sort_by(|a, b| b.1.total_cmp(&a.1));
        scored
    }
}

impl PitchReport {
    /// The claims that it revises and its own, in words; nothing where it revises none.
    pub fn descent(&self) -> Option<String> {
        let link = |(name, claimed, confidence): &Revision| {
            let sure = confidence.map(|sure| format!(" at {:.0} %", 100.0 * sure)).unwrap_or_default();
            format!("{name} {}{sure}", claim(*claimed))
        };
        (!self.lineage.is_empty()).then(|| self.lineage.iter().map(link).collect::<Vec<_>>().join(" → "))
    }

    /// What may come of it, with chances.
    pub fn prospects(&self) -> Vec<String> {
        let told = |prospect: &Prospect| {
            let speedup = prospect.speedup.map(|speedup| format!(" ({speedup}×)")).unwrap_or_default();
            format!("{:.0} % {}{speedup}", 100.0 * prospect.probability, prospect.what)
        };
        self.pitch.claim.iter().flat_map(|claim| &claim.outcomes).map(told).collect()
    }

    /// Its risks, each with its chance and cost where they are named, and what is done about it.
    pub fn risks(&self) -> Vec<String> {
        let told = |risk: &Risk| {
            let impact = if risk.impact.is_empty() { String::new() } else { format!(", {}", risk.impact) };
            let chance = risk.probability.map(|chance| format!(" ({:.0} %{impact})", 100.0 * chance));
            format!("{}{}; {}", risk.what, chance.unwrap_or_default(), risk.mitigation)
        };
        self.pitch.risk.iter().map(told).collect()
    }
}

impl Report {
    /// What was planned, each round with how it ended, and what is to follow.
    pub fn road(&self) -> Vec<String> {
        let ended = |name: &String| {
            let round = self.rounds.iter().find(|round| round.name == *name);
            let verdict = round.and_then(|round| round.verdict).map(|verdict| self.word(verdict));
            format!("{name}: {}", verdict.unwrap_or_else(|| "to come".to_owned()))
        };
        self.planned.iter().map(ended).chain(self.roadmap.iter().map(|step| format!("then: {step}"))).collect()
    }

    /// What is wrong with the baseline, if anything is.
    pub fn wrong_baseline(&self) -> Option<&str> {
        self.dethroned
            .iter()
            .find(|(name, _)| name.starts_with("baseline"))
            .map(|(_, why)| why.as_str())
            .or_else(|| self.times.as_ref()?.wrong.as_deref())
    }

    /// What its figures are: a GPU that is not there is not measured.
    pub fn found(&self) -> &'static str {
        if self.foretold.is_some() { "predicted" } else { "measured" }
    }

    /// Every attempt in order, with the configurations of its sweep where it is one.
    pub fn by_pitch(&self) -> Vec<(&AttemptReport, Vec<&AttemptReport>)> {
        let own = |attempt: &&AttemptReport| {
            // A configuration of a sweep is named after its pitch.
            let of = |pitch: &AttemptReport| {
                let rest = attempt.pitch.strip_prefix(pitch.pitch.as_str());
                pitch.round == attempt.round && rest.is_some_and(|rest| rest.starts_with(": "))
            };
            self.attempts.iter().find(|pitch| of(pitch))
        };
        let whole = self.attempts.iter().filter(|attempt| own(attempt).is_none());
        let phases = |pitch: &AttemptReport| {
            let of_pitch = |attempt: &&AttemptReport| own(attempt).is_some_and(|of| std::ptr::eq(of, pitch));
            self.attempts.iter().filter(of_pitch).collect()
        };
        whole.map(|pitch| (pitch, phases(pitch))).collect()
    }

    /// Attempts of which sittings began and have no result, each in words: whoever dislikes how one goes could end it,
    /// and draw another.
    pub fn interrupted(&self) -> Vec<String> {
        let told = |attempt: &AttemptReport| {
            let sittings = if attempt.interrupted == 1 { "sitting of" } else { "sittings of" };
            format!("{} {sittings} {} began and had no result", attempt.interrupted, attempt.pitch)
        };
        self.attempts.iter().filter(|attempt| attempt.interrupted > 0).map(told).collect()
    }

    /// A verdict as it is told: one that nothing was measured for says so.
    pub fn word(&self, verdict: Verdict) -> String {
        if self.foretold.is_some() { format!("{verdict}, predicted") } else { verdict.to_string() }
    }

    /// Assembles the report of a season, the last one where none is named.
    pub fn new(records: &[Record], season: Option<u32>) -> Result<Self> {
        let nothing = |what: &str| Error::Rules {
            what: "the ledger".to_owned(),
            problem: format!("there is no {what} in it"),
            remedy: "play one with `hammerhead tank play`".to_owned(),
        };
        let last = records.iter().rev().find(|r| matches!(r.event, Event::SeasonOpened(_))).map(|r| r.season);
        let number = season.or(last).ok_or_else(|| nothing("season"))?;
        let of_season: Vec<&Record> = records.iter().filter(|r| r.season == number).collect();
        let opened = history::opened(records, number).ok_or_else(|| nothing(&format!("season {number}")))?;
        let SeasonOpened { season, machine, version, champion: first, .. } = opened.clone();
        let mut report = Self {
            schema: 2,
            season: season.name.clone(),
            number,
            context: season.context.clone(),
            motto: season.motto.clone(),
            roadmap: season.roadmap.clone(),
            planned: season.rounds.iter().map(|round| round.name.clone()).collect(),
            metric: season.metric.clone(),
            foretold: season.foretold().map(str::to_owned),
            baseline: season.baseline.clone(),
            opened: of_season.first().map(|r| r.at.clone()).unwrap_or_default(),
            closed: None,
            version,
            machine,
            judges: season.sharks.iter().map(|s| [s.name.clone(), s.character.clone(), s.motto.clone()]).collect(),
            gained: None,
            coronations: 0,
            dethroned: Vec::new(),
            champion: None,
            champion_entry: first,
            times: None,
            rounds: Vec::new(),
            attempts: Vec::new(),
            installed: Vec::new(),
            contestants: history::contestants(records, season.settings.interval_level),
            sharks: history::sharks(records),
            graveyard: history::graveyard(records),
            records: records.len(),
            head: records.last().map(|r| r.hash.clone()).unwrap_or_default(),
        };
        of_season.iter().for_each(|record| report.take(record));
        for attempt in &mut report.attempts {
            attempt.interrupted = history::interrupted(records, number, &attempt.round, &attempt.pitch);
        }
        for told in report.rounds.iter_mut().flat_map(|round| &mut round.pitches) {
            let line = history::lineage(records, number, &told.pitch.name);
            let link = |pitch: &&Pitch| {
                let claim = pitch.claim.as_ref();
                (pitch.name.clone(), claim.and_then(|c| c.figures()), claim.and_then(|c| c.confidence))
            };
            told.lineage = if line.len() > 1 { line.iter().map(link).collect() } else { Vec::new() };
        }
        Ok(report)
    }

    /// Adds what one record says.
    fn take(&mut self, record: &Record) {
        match &record.event {
            Event::BaselineTaken(taken) => self.times = Some(taken.baseline.clone()),
            Event::RoundOpened(opened) => self.rounds.push(RoundReport {
                name: opened.round.clone(),
                kind: opened.round_kind,
                why: opened.why.clone(),
                verdict: None,
                note: "not finished".to_owned(),
                pitches: Vec::new(),
                tally: None,
                votes: Vec::new(),
                withdrawn: Vec::new(),
                chosen: Vec::new(),
                findings: Vec::new(),
                void_votes: Vec::new(),
            }),
            Event::Begun(begun) => {
                let attempt = AttemptReport::begun(&begun.round, &begun.pitch, record);
                self.attempts.push(AttemptReport { deal: begun.deal.clone(), funder: begun.funder.clone(), ..attempt });
            }
            Event::Examined(examined) => {
                if let Some(attempt) = self.attempts.last_mut() {
                    attempt.seeds.extend(examined.correctness.as_ref().map(|c| c.seed));
                    attempt.examined.clone_from(&examined.correctness);
                }
            }
            Event::Phased(phased) => {
                if let Some(attempt) = self.attempts.last_mut() {
                    attempt.verdict = phased.judgement.verdict;
                    attempt.reasons.clone_from(&phased.judgement.reasons);
                    attempt.measured = phased.judgement.measured;
                }
            }
            Event::Dethroned(dethroned) => {
                self.gained = None;
                self.dethroned.push((dethroned.champion.clone(), dethroned.why.clone()));
            }
            Event::Sat(sat) => {
                if let (Some(attempt), Some(sitting)) = (self.attempts.last_mut(), &sat.sitting) {
                    attempt.take(sitting);
                }
            }
            Event::Judged(judged) => {
                // What a gate stopped, and what a sweep comes to as a whole, did not begin by itself.
                if self.attempts.last().is_none_or(|attempt| attempt.pitch != judged.pitch) {
                    self.attempts.push(AttemptReport::begun(&judged.round, &judged.pitch, record));
                }
                self.attempts.last_mut().into_iter().for_each(|attempt| attempt.judge(judged, record));
            }
            Event::Crowned(crowned) => {
                self.coronations += 1;
                self.gained = match (self.gained, crowned.speedup) {
                    (Some(so_far), Some(now)) => Some(so_far.times(&now)),
                    (None, now) if self.dethroned.is_empty() => now,
                    _ => None,
                };
                let own = self.attempts.iter_mut().rev().find(|attempt| attempt.pitch == crowned.pitch);
                own.into_iter().for_each(|attempt| attempt.crowned = true);
                self.champion = Some(crowned.pitch.clone());
                self.champion_entry = crowned.entry.clone();
            }
            Event::Installed(installed) => self.installed = installed.ways.clone(),
            Event::SeasonClosed(_) => self.closed = Some(record.at.clone()),
            other => self.rounds.last_mut().into_iter().for_each(|round| round.take(other)),
        }
    }

    /// The challenger's or the champion's time on a problem at the end of the season, for the roofline.
    pub fn champion_seconds(&self, problem: &str) -> Option<f64> {
        let crowned = self.attempts.iter().rev().find(|a| Some(&a.pitch) == self.champion.as_ref())?;
        crowned.shapes.iter().find(|s| same_problem(&s.problem, problem)).map(|s| s.challenger_seconds)
    }
}

/// The referee may call a problem by its sizes alone.
fn same_problem(one: &str, other: &str) -> bool {
    let sizes = |name: &str| name.rsplit_once(' ').map_or(name.to_owned(), |(sizes, _)| sizes.to_owned());
    one == other || sizes(one) == *other || one == sizes(other)
}

impl PitchReport {
    /// What the simulator counted, what the assembler said and where the time should go, as sentences; empty for
    /// anything but a configuration.
    fn counted(&self) -> String {
        let counts: Vec<String> = self.simulated.iter().map(|c| format!("{} {}", c.count, c.what)).collect();
        let mut told = match counts.as_slice() {
            [] => String::new(),
            counts => format!("In one tile the simulator counts {}.", counts.join(", ")),
        };
        if !self.assembled.is_empty() {
            let kernels: Vec<String> = self.assembled.iter().map(KernelEvidence::to_string).collect();
            told += &format!(" As NVIDIA's assembler makes it for an H200: {}.", kernels.join("; "));
        }
        if !self.phases.is_empty() {
            let phases: Vec<String> = self.phases.iter().map(PhaseShare::to_string).collect();
            told +=
                &format!(" Where its time should go on the first problem, {}: {}.", self.phases_by, phases.join("; "));
        }
        told
    }

    /// The mark of a claim that outlived rounds; empty for others.
    fn mark(&self) -> String {
        match self.survived {
            0 => String::new(),
            1 => "survivor of a round".to_owned(),
            rounds => format!("survivor of {rounds} rounds"),
        }
    }
}

impl RoundReport {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Pitched(pitched) => self.pitches.push(PitchReport {
                pitch: pitched.pitch.clone(),
                disqualified: None,
                predicted: None,
                possible: None,
                simulated: Vec::new(),
                assembled: Vec::new(),
                phases: Vec::new(),
                phases_by: String::new(),
                survived: 0,
                figures: BTreeMap::new(),
                lineage: Vec::new(),
            }),
            Event::PitchChecked(checked) => {
                let PitchChecked { pitch, evidence, disqualified, .. } = checked.as_ref();
                if let Some(told) = self.pitches.iter_mut().find(|told| told.pitch.name == *pitch) {
                    told.disqualified = disqualified.clone();
                    (told.predicted, told.possible) = (evidence.predicted, evidence.possible);
                    told.simulated = evidence.simulated.clone();
                    told.assembled = evidence.assembled.clone();
                    told.phases = evidence.phases.clone();
                    told.phases_by = evidence.phases_by.clone();
                    told.survived = evidence.survived;
                    told.figures = evidence.figures.clone();
                }
            }
            Event::Voted(voted) => {
                self.void_votes.extend(voted.void.clone());
                self.votes.push(voted.as_ref().clone());
            }
            Event::Asked(asked) => {
                self.void_votes
                    .extend(asked.void.as_ref().map(|why| format!("{} brings nothing: {why}", asked.contestant)));
            }
            Event::Withdrawn(w) => self.withdrawn.push([w.pitch.clone(), w.by.clone(), w.reason.clone()]),
            Event::Tallied(tallied) => self.tally = Some(tallied.tally.clone()),
            Event::Chosen(chosen) => self.chosen.push(chosen.as_ref().clone()),
            Event::Researched(researched) => self.findings.clone_from(&researched.findings),
            Event::RoundClosed(closed) => {
                self.verdict = Some(closed.verdict);
                self.note.clone_from(&closed.note);
            }
            _ => {}
        }
    }
}

impl AttemptReport {
    fn begun(round: &str, pitch: &str, record: &Record) -> Self {
        Self {
            round: round.to_owned(),
            pitch: pitch.to_owned(),
            contestant: String::new(),
            claimed: None,
            verdict: Verdict::Blocked,
            reasons: vec!["not finished".to_owned()],
            measured: None,
            shapes: Vec::new(),
            beside: None,
            examined: None,
            deal: Deal::default(),
            funder: None,
            guards: Vec::new(),
            remarks: Vec::new(),
            controls: Vec::new(),
            margin: None,
            crowned: false,
            interrupted: 0,
            seeds: Vec::new(),
            record: (record.n, record.hash.clone()),
        }
    }

    fn take(&mut self, sitting: &Sitting) {
        self.seeds.push(sitting.seed);
        self.seeds.extend(sitting.first.iter().chain(&sitting.second).map(|m| m.seed));
        let geomean = |control: &Option<referee::Control>| {
            control.as_ref().map(|c| c.measurement.at(sitting.settings.timing.decides).geomean)
        };
        let passed = |control: &Option<referee::Control>| control.as_ref().is_some_and(|c| c.passed);
        let controls = ControlReport {
            same: geomean(&sitting.control),
            planted: geomean(&sitting.plant),
            passed: passed(&sitting.control) && passed(&sitting.plant),
            margin: sitting.margin,
            fence: geomean(&sitting.fence),
            scout: sitting.scout.clone(),
            waited_seconds: sitting.course.waited_seconds,
            device: sitting.course.device.clone(),
        };
        // What was not timed has no controls.
        self.controls.extend(sitting.course.foretold.is_none().then_some(controls));
        self.margin = Some(sitting.margin);
        self.guards.clone_from(&sitting.course.guards);
        self.remarks.clone_from(&sitting.course.remarks);
        let shape = |s: &ShapeResult| ShapeReport {
            problem: s.shape.clone(),
            speedup: s.speedup,
            champion_seconds: s.champion_seconds,
            challenger_seconds: s.challenger_seconds,
            quartets: s.quartets.len(),
        };
        self.shapes = verdict::published(sitting).map(|s| s.shapes.iter().map(shape).collect()).unwrap_or_default();
        self.beside = verdict::beside(sitting).map(|s| s.geomean);
    }

    fn judge(&mut self, judged: &Judged, record: &Record) {
        self.contestant.clone_from(&judged.contestant);
        self.claimed = judged.claimed;
        self.verdict = judged.judgement.verdict;
        self.reasons.clone_from(&judged.judgement.reasons);
        self.measured = judged.judgement.measured;
        self.record = (record.n, record.hash.clone());
    }
}

/// A duration with three significant digits.
fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        // What would be rounded to a thousand has the larger unit.
        s if s >= 0.9995 => (s, "s"),
        s if s >= 0.9995e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    let decimals = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {unit}")
}

/// A speedup with its interval.
fn interval(speedup: &Speedup) -> String {
    format!("{:.3}× [{:.3}, {:.3}]", speedup.estimate, speedup.low, speedup.high)
}

/// A claim with its interval.
fn claim(claimed: Option<(f64, f64, f64)>) -> String {
    claimed.map_or_else(|| "—".to_owned(), |(claim, low, high)| format!("{claim:.2}× [{low:.2}, {high:.2}]"))
}

/// A figure with two decimals, or a dash.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "—".to_owned(), |value| format!("{value:.2}"))
}

/// A part of a whole in percent, or a dash.
fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "—".to_owned(), |value| format!("{:.0} %", 100.0 * value))
}
