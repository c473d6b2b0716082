//! What the ledger says: who claimed what and what came of it, who was right, and what lies in the graveyard.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::event::Event;
use crate::evidence::TrackRecord;
use crate::ledger::Record;
use crate::mortem::PostMortem;
use crate::pitch::Pitch;
use crate::round::RoundKind;
use crate::shark::Shark;
use crate::verdict::{Judgement, Verdict};

/// An attempt that came to a verdict, with the conditions under which it did.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    /// The record of the verdict.
    pub record: u64,
    /// The season's number.
    pub season: u32,
    /// The season's name.
    pub season_name: String,
    /// The round.
    pub round: String,
    /// The pitch.
    pub pitch: String,
    /// Who brought it.
    pub contestant: String,
    /// What it ran.
    pub digest: String,
    /// The claim: number, low, high.
    pub claimed: Option<(f64, f64, f64)>,
    /// The verdict.
    pub judgement: Judgement,
    /// The machine's fingerprint.
    pub machine: String,
    /// The problems.
    pub problems: Vec<String>,
    /// What was said to be new when it was pitched.
    pub new_evidence: String,
}

/// How well someone's figures held.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Calibration {
    /// Pitches that came to a verdict.
    pub judged: usize,
    /// Those that were a SUCCESS.
    pub successes: usize,
    /// Those with a figure to compare with.
    pub measured: usize,
    /// The mean of ln(said/measured): above 0 is too much promised.
    pub bias: Option<f64>,
    /// The root mean square of ln(said/measured).
    pub log_error: Option<f64>,
    /// The part of intervals that held what was measured.
    pub coverage: Option<f64>,
    /// The mean squared distance of the stated chance from what happened: 0 is perfect, ¼ is a coin.
    pub brier: Option<f64>,
}

/// Sums up pairs of a figure that was said and one that was measured, and of a chance and what happened.
#[derive(Default)]
struct Score {
    judged: usize,
    successes: usize,
    errors: Vec<f64>,
    held: Vec<bool>,
    chances: Vec<f64>,
}

impl Score {
    fn calibration(&self) -> Calibration {
        let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        let squares: Vec<f64> = self.errors.iter().map(|error| error * error).collect();
        let held: Vec<f64> = self.held.iter().map(|&held| f64::from(u8::from(held))).collect();
        Calibration {
            judged: self.judged,
            successes: self.successes,
            measured: self.errors.len(),
            bias: mean(&self.errors),
            log_error: mean(&squares).map(f64::sqrt),
            coverage: mean(&held),
            brier: mean(&self.chances),
        }
    }
}

/// Every attempt, in order. Title fights are no pitches and not among them.
pub fn attempts(records: &[Record]) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for record in records {
        let Event::Judged(judged) = &record.event else { continue };
        let Some(opened) = opened(records, record.season) else { continue };
        if round_kind(records, record.season, &judged.round) == Some(RoundKind::Title) {
            continue;
        }
        let pitch = pitched(records, record.season, &judged.pitch);
        attempts.push(Attempt {
            record: record.n,
            season: record.season,
            season_name: opened.season.name.clone(),
            round: judged.round.clone(),
            pitch: judged.pitch.clone(),
            contestant: judged.contestant.clone(),
            digest: judged.digest.clone(),
            claimed: judged.claimed,
            judgement: judged.judgement.clone(),
            machine: opened.machine.fingerprint.clone(),
            problems: opened.season.problem_names().unwrap_or_default(),
            new_evidence: pitch.map(|p| p.new_evidence.clone()).unwrap_or_default(),
        });
    }
    attempts
}

/// What the last examination of an entry found, by its digest: whether it was right, and the record.
pub fn examined(records: &[Record], digest: &str) -> Option<(bool, u64)> {
    let judged = |record: &Record| match &record.event {
        Event::Judged(judged) if judged.digest == digest => {
            Some((record.season, judged.round.clone(), judged.pitch.clone()))
        }
        _ => None,
    };
    let (season, round, pitch) = records.iter().rev().find_map(judged)?;
    records.iter().rev().filter(|record| record.season == season).find_map(|record| match &record.event {
        Event::Examined(found) if found.round == round && found.pitch == pitch => {
            found.correctness.as_ref().map(|correctness| (correctness.passed(), record.n))
        }
        _ => None,
    })
}

/// The opening of a season.
pub fn opened(records: &[Record], season: u32) -> Option<&crate::event::SeasonOpened> {
    records.iter().filter(|record| record.season == season).find_map(|record| match &record.event {
        Event::SeasonOpened(opened) => Some(opened.as_ref()),
        _ => None,
    })
}

fn round_kind(records: &[Record], season: u32, round: &str) -> Option<RoundKind> {
    records.iter().filter(|record| record.season == season).find_map(|record| match &record.event {
        Event::RoundOpened(opened) if opened.round == round => Some(opened.round_kind),
        _ => None,
    })
}

/// A pitch of a season as it was brought.
pub fn pitched<'a>(records: &'a [Record], season: u32, name: &str) -> Option<&'a Pitch> {
    records.iter().filter(|record| record.season == season).find_map(|record| match &record.event {
        Event::Pitched(pitched) if pitched.pitch.name == name => Some(&pitched.pitch),
        _ => None,
    })
}

/// How many sittings of an attempt began and have no result.
pub fn interrupted(records: &[Record], season: u32, round: &str, pitch: &str) -> usize {
    let (mut begun, mut lost) = (0usize, 0);
    for record in records.iter().filter(|record| record.season == season) {
        match &record.event {
            Event::Seated(seated) if seated.round == round && seated.pitch == pitch => begun += 1,
            Event::Sat(sat) if sat.round == round && sat.pitch == pitch => {
                lost += begun.saturating_sub(1);
                begun = 0;
            }
            _ => {}
        }
    }
    lost + begun
}

/// Whether a verdict says anything about the pitch. Missing data is never a score.
fn tells(verdict: Verdict) -> bool {
    !matches!(verdict, Verdict::Blocked | Verdict::Void)
}

/// How a contestant has done so far.
pub fn track_record(records: &[Record], contestant: &str) -> TrackRecord {
    let calibration = contestants(records, 0.8).remove(contestant).unwrap_or_default();
    let Calibration { judged, successes, measured, bias, .. } = calibration;
    TrackRecord { judged, successes, measured, bias: bias.unwrap_or(0.0) }
}

/// The calibration of every contestant. Their chance is the level of the intervals that they claim.
pub fn contestants(records: &[Record], level: f64) -> BTreeMap<String, Calibration> {
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    for attempt in attempts(records).into_iter().filter(|a| tells(a.judgement.verdict)) {
        let score = scores.entry(attempt.contestant).or_default();
        score.judged += 1;
        score.successes += usize::from(attempt.judgement.verdict == Verdict::Success);
        if let (Some((claimed, low, high)), Some(measured)) = (attempt.claimed, attempt.judgement.measured) {
            let held = (low..=high).contains(&measured.estimate);
            score.errors.push((claimed / measured.estimate).ln());
            score.held.push(held);
            score.chances.push((level - f64::from(u8::from(held))).powi(2));
        }
    }
    scores.into_iter().map(|(name, score)| (name, score.calibration())).collect()
}

/// The calibration of every shark: its chance of SUCCESS and the speedup it expected, on pitches that were tried.
pub fn sharks(records: &[Record]) -> BTreeMap<String, Calibration> {
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    for attempt in attempts(records).into_iter().filter(|a| tells(a.judgement.verdict)) {
        let season = opened(records, attempt.season).map(|opened| &opened.season);
        for record in records.iter().filter(|record| record.season == attempt.season) {
            let Event::Voted(voted) = &record.event else { continue };
            let kind = round_kind(records, attempt.season, &attempt.round).unwrap_or_default();
            let shark: Option<Shark> = season
                .and_then(|season| season.sharks.iter().find(|s| s.name == voted.shark))
                .map(|shark| shark.in_round(kind));
            let ballot = voted.ballots.iter().find(|b| b.pitch == attempt.pitch && voted.round == attempt.round);
            let (Some(shark), Some(ballot)) = (shark, ballot.filter(|b| b.abstain.is_none())) else { continue };
            let success = attempt.judgement.verdict == Verdict::Success;
            let score = scores.entry(voted.shark.clone()).or_default();
            score.judged += 1;
            score.successes += usize::from(success);
            let chance = ballot.probability.or_else(|| shark.total(ballot).map(|total| total / 10.0));
            score.chances.extend(chance.map(|chance| (chance - f64::from(u8::from(success))).powi(2)));
            if let (Some(expected), Some(measured)) = (ballot.expects, attempt.judgement.measured) {
                score.errors.push((expected / measured.estimate).ln());
            }
        }
    }
    scores.into_iter().map(|(name, score)| (name, score.calibration())).collect()
}

/// What was learnt from failures, oldest first.
pub fn post_mortems(records: &[Record]) -> Vec<PostMortem> {
    let buried = records.iter().filter_map(|record| match &record.event {
        Event::Buried(buried) => Some(buried.mortem.clone()),
        _ => None,
    });
    buried.collect()
}

/// What each shark counts by its record: the better its chances were, the more; 1 on average. Whoever has no record
/// counts as a coin.
pub fn weights(records: &[Record], names: &[String]) -> BTreeMap<String, f64> {
    const COIN: f64 = 0.25;
    // So that nobody counts without end.
    const PERFECT: f64 = 0.1;
    let known = sharks(records);
    let brier = |name: &String| known.get(name).and_then(|calibration| calibration.brier).unwrap_or(COIN);
    let raw: Vec<f64> = names.iter().map(|name| 1.0 / (PERFECT + brier(name))).collect();
    let mean = raw.iter().sum::<f64>() / raw.len().max(1) as f64;
    names.iter().cloned().zip(raw.into_iter().map(|weight| weight / mean)).collect()
}

/// How a claim was revised from round to round, oldest first: the pitch, its claim, and how sure its author was.
pub fn lineage<'a>(records: &'a [Record], season: u32, pitch: &str) -> Vec<&'a Pitch> {
    let (mut line, mut next) = (Vec::new(), Some(pitch.to_owned()));
    while let Some(found) = next.and_then(|name| pitched(records, season, &name)) {
        // Whoever revises itself has no ancestors.
        if line.iter().any(|known: &&Pitch| known.name == found.name) {
            break;
        }
        next = found.revises.clone();
        line.insert(0, found);
    }
    line
}

/// Rounds that a claim has outlived: those in which an earlier form of it was brought. None where one of those failed,
/// was disqualified or was taken back: what comes from the graveyard has not survived.
pub fn survived(records: &[Record], season: u32, pitch: &str) -> usize {
    let line = lineage(records, season, pitch);
    let before: Vec<&str> = line.iter().map(|pitch| pitch.name.as_str()).filter(|name| *name != pitch).collect();
    let refuted = records.iter().filter(|record| record.season == season).any(|record| match &record.event {
        Event::Judged(judged) => {
            judged.judgement.verdict == Verdict::Failure && before.contains(&judged.pitch.as_str())
        }
        Event::PitchChecked(checked) => checked.disqualified.is_some() && before.contains(&checked.pitch.as_str()),
        Event::Withdrawn(withdrawn) => before.contains(&withdrawn.pitch.as_str()),
        _ => false,
    });
    if refuted { 0 } else { before.len() }
}

/// Something that failed, and when it may be tried again.
#[derive(Clone, Debug, Serialize)]
pub struct Grave {
    /// The attempt.
    pub attempt: Attempt,
    /// What was promised.
    pub promise: String,
    /// What was found.
    pub reality: String,
    /// What had been assumed, and was wrong.
    pub assumption: String,
    /// Why it failed.
    pub why: String,
    /// Under which conditions it may be tried again.
    pub again: String,
}

/// What failed, oldest first.
pub fn graveyard(records: &[Record]) -> Vec<Grave> {
    let failed = attempts(records).into_iter().filter(|a| a.judgement.verdict == Verdict::Failure);
    let mortem = |attempt: &Attempt| {
        let pitch = pitched(records, attempt.season, &attempt.pitch).cloned().unwrap_or_default();
        PostMortem::of(&attempt.round, &pitch, &attempt.judgement)
    };
    failed
        .map(|attempt| (mortem(&attempt), attempt))
        .map(|(PostMortem { promise, reality, assumption, .. }, attempt)| Grave {
            promise,
            reality,
            assumption,
            why: attempt.judgement.reasons.join("; "),
            again: format!(
                "with new_evidence in the pitch, on another machine than {}, for other problems, or as another program",
                attempt.machine
            ),
            attempt,
        })
        .collect()
}
