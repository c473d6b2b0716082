//! The first season, counted again: its votes by the tank's arithmetic, its figures by the tank's rules.

use std::path::Path;

use referee::{CourseReport, Measurement, Outcome, Pairing, ShapeResult, Sitting, Speedup, Stop, Summary};
use serde::{Deserialize, Serialize};

use crate::pitch::Deal;
use crate::settings::Settings;
use crate::shark::{Ballot, Criterion, Role, Shark, Source};
use crate::tally::{Vote, count};
use crate::verdict::{Judgement, of_sitting};
use crate::{Result, written};

/// The season as its scribes left it.
const FIRST: &str = include_str!("../seasons/first.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scribes {
    round: Vec<WrittenRound>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRound {
    name: String,
    built: String,
    outcome: String,
    #[serde(default)]
    now: String,
    pitch: Vec<WrittenPitch>,
    #[serde(default)]
    shark: Vec<WrittenShark>,
    #[serde(default)]
    deal: Deal,
    #[serde(default)]
    measured: Vec<WrittenTime>,
    #[serde(default)]
    physics: Vec<Physics>,
    /// What was said before the vote.
    #[serde(default)]
    opening: String,
    /// The conditions on which a second choice would have been taken.
    #[serde(default)]
    second: Vec<String>,
}

/// Something that was said beside the sums, and what is so.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Physics {
    /// What was said.
    pub said: String,
    /// What is so.
    pub right: String,
    /// Numbers whose product that begins with, where it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub product: Vec<f64>,
}

/// A shark of the season, as it voted in a round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judge {
    /// Its name.
    pub name: String,
    /// What it went by.
    pub motto: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPitch {
    name: String,
    claim: Option<[f64; 2]>,
    /// Its claims from round to round, each with how sure its author was.
    #[serde(default)]
    revised: Vec<[f64; 3]>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenShark {
    name: String,
    #[serde(default)]
    motto: String,
    criteria: Vec<String>,
    weights: Vec<f64>,
    ballot: Vec<WrittenBallot>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBallot {
    pitch: String,
    scores: Vec<f64>,
    stated: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTime {
    problem: String,
    before: f64,
    after: f64,
}

/// A total as it was stated and as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Total {
    /// The shark.
    pub shark: String,
    /// The pitch.
    pub pitch: String,
    /// What was written down.
    pub stated: String,
    /// What the scores and weights come to.
    pub right: f64,
    /// Whether what was written down is not even the right total rounded.
    pub wrong: bool,
}

/// A round, counted again.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// Its name.
    pub round: String,
    /// Who judged.
    pub judges: Vec<Judge>,
    /// What was said before the vote.
    pub opening: String,
    /// The conditions on which a second choice would have been taken.
    pub second: Vec<String>,
    /// Every total.
    pub totals: Vec<Total>,
    /// How safe each pitch is in the judges' mean, where that was a criterion.
    pub safety: Vec<(String, f64)>,
    /// What the vote builds.
    pub winner: Option<String>,
    /// What was built.
    pub built: String,
    /// What became of it, in the scribes' words.
    pub outcome: String,
    /// What would become of it now, where no figure decides that.
    pub now: String,
    /// What was claimed for what was built.
    pub claim: Option<[f64; 2]>,
    /// That claim from round to round, each with how sure its author was.
    pub revised: Vec<[f64; 3]>,
    /// What was said beside the sums, and what is so.
    pub physics: Vec<Physics>,
    /// Each problem's speedup.
    pub speedups: Vec<(String, f64)>,
    /// The verdict by the deal's own terms, where there are figures.
    pub judgement: Option<Judgement>,
}

/// Counts the first season again.
pub fn first_season() -> Result<Vec<Replayed>> {
    let scribes: Scribes = written::parse(Path::new("first.toml"), FIRST)?;
    scribes.round.iter().map(replay).collect()
}

fn replay(round: &WrittenRound) -> Result<Replayed> {
    let settings = Settings::default();
    let sharks: Vec<(Shark, Vec<Ballot>)> = round.shark.iter().map(shark).collect::<Result<_>>()?;
    let votes: Vec<Vote<'_>> = sharks.iter().map(|(shark, ballots)| Vote { shark, ballots }).collect();
    let names: Vec<String> = round.pitch.iter().map(|p| p.name.clone()).collect();
    let tally = count(&names, &votes, Vec::new(), Default::default(), &settings);
    let mut totals = Vec::new();
    for ((shark, ballots), written) in sharks.iter().zip(&round.shark) {
        for (ballot, WrittenBallot { stated, .. }) in ballots.iter().zip(&written.ballot) {
            let right = shark.total(ballot).unwrap_or(0.0);
            let (shark, pitch, stated) = (shark.name.clone(), ballot.pitch.clone(), stated.clone());
            totals.push(Total { shark, pitch, wrong: !is_rounded(right, &stated), stated, right });
        }
    }
    let built = round.pitch.iter().find(|p| p.name == round.built);
    let speedups: Vec<(String, f64)> = round.measured.iter().map(|t| (t.problem.clone(), t.before / t.after)).collect();
    let judgement = (!speedups.is_empty()).then(|| {
        // Whether it used too much shared memory nobody wrote down; the times decide.
        of_sitting(&sitting(&round.measured), &round.deal, None, &settings)
    });
    Ok(Replayed {
        round: round.name.clone(),
        judges: round.shark.iter().map(|s| Judge { name: s.name.clone(), motto: s.motto.clone() }).collect(),
        opening: round.opening.clone(),
        second: round.second.clone(),
        physics: round.physics.clone(),
        revised: built.map(|pitch| pitch.revised.clone()).unwrap_or_default(),
        totals,
        safety: names.iter().filter_map(|pitch| Some((pitch.clone(), safety(&sharks, pitch)?))).collect(),
        winner: tally.winner().map(str::to_owned),
        built: round.built.clone(),
        outcome: round.outcome.clone(),
        now: round.now.clone(),
        claim: built.and_then(|pitch| pitch.claim),
        speedups,
        judgement,
    })
}

/// The mean score of a pitch for `risk`, of those who scored that.
fn safety(sharks: &[(Shark, Vec<Ballot>)], pitch: &str) -> Option<f64> {
    let ballots = sharks.iter().flat_map(|(_, ballots)| ballots).filter(|ballot| ballot.pitch == pitch);
    let scores: Vec<f64> = ballots.filter_map(|ballot| ballot.scores.get("risk").copied()).collect();
    (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
}

fn shark(written: &WrittenShark) -> Result<(Shark, Vec<Ballot>)> {
    let criteria = written.criteria.iter().zip(&written.weights);
    let criteria: Vec<Criterion> =
        criteria.map(|(name, &weight)| Criterion { name: name.clone(), weight, role: Role::Other }).collect();
    let ballots: Vec<Ballot> = written
        .ballot
        .iter()
        .map(|b| Ballot {
            pitch: b.pitch.clone(),
            scores: written.criteria.iter().cloned().zip(b.scores.iter().copied()).collect(),
            ..Ballot::default()
        })
        .collect();
    let source = Source::Ballots { ballots: ballots.clone(), statements: Vec::new() };
    let (name, temperament) = (written.name.clone(), written.name.clone());
    let shark = Shark { name, temperament, criteria, source, ..Shark::default() };
    shark.check()?;
    Ok((shark, ballots))
}

/// Whether a stated number is the right one, rounded to the decimals that it has.
fn is_rounded(right: f64, stated: &str) -> bool {
    let decimals = stated.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let unit = 10f64.powi(-(decimals as i32));
    stated.parse::<f64>().is_ok_and(|stated| (stated - right).abs() <= unit / 2.0 + 1e-9)
}

/// The scribes' times as a sitting. They took one of each, so there is no interval around them.
fn sitting(times: &[WrittenTime]) -> Sitting {
    let exactly = |estimate| Speedup { estimate, low: estimate, high: estimate };
    let logs: f64 = times.iter().map(|t| (t.before / t.after).ln()).sum();
    let geomean = (logs / times.len() as f64).exp();
    let shape = |t: &WrittenTime| ShapeResult {
        shape: t.problem.clone(),
        champion_seconds: t.before * 1e-6,
        challenger_seconds: t.after * 1e-6,
        speedup: exactly(t.before / t.after),
        quartets: Vec::new(),
    };
    let summary = Summary { geomean: exactly(geomean), shapes: times.iter().map(shape).collect() };
    let first = Measurement {
        pairing: Pairing::Duel,
        seed: 0,
        processes: 1,
        quartets: 1,
        confidence: 0.0,
        cold: summary.clone(),
        warm: summary,
        champion: Vec::new(),
        looks: Vec::new(),
        stopped: Stop::LastLook,
    };
    Sitting {
        seed: 0,
        champion: "before".to_owned(),
        challenger: "after".to_owned(),
        settings: Settings::default().referee,
        course: CourseReport::default(),
        scout: None,
        control: None,
        plant: None,
        fence: None,
        margin: Settings::default().margin(),
        outcome: if geomean < 1.0 { Outcome::Slower } else { Outcome::Faster },
        first: Some(first),
        second: None,
        roofline: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    #[test]
    fn the_votes_have_the_right_totals_and_the_wrong_ones_are_flagged() {
        let rounds = first_season().unwrap();
        let totals = |round: usize| -> Vec<(f64, bool)> {
            rounds[round].totals.iter().map(|t| ((t.right * 1000.0).round() / 1000.0, t.wrong)).collect()
        };
        assert_eq!(totals(0), [(8.575, true), (7.575, false), (6.875, false), (5.25, true)]);
        assert_eq!(totals(3), [(6.4, true), (5.4, true), (7.9, false), (7.4, true), (4.7, true), (9.15, false)]);
        assert_eq!(rounds[0].winner.as_deref(), Some("pipeline stages"));
        assert_eq!(rounds[3].winner.as_deref(), Some("two-pass"));
    }

    #[test]
    fn the_sharks_keep_their_names_and_what_was_said_beside_the_sums_is_put_right() {
        let rounds = first_season().unwrap();
        let names = |round: usize| rounds[round].judges.iter().map(|judge| judge.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(0), ["The Performance Oracle"]);
        assert_eq!(names(3), ["The Performance Oracle", "The Pragmatic Engineer"]);
        assert!(rounds[3].second.len() == 3 && rounds[3].opening.contains("three wrong votes"));
        for physics in rounds[0].physics.iter().filter(|physics| !physics.product.is_empty()) {
            let product: f64 = physics.product.iter().product();
            assert!(physics.right.starts_with(&format!("{product} ")), "{product}: {}", physics.right);
        }
        let logs: f64 = rounds[0].speedups.iter().map(|(_, speedup)| -speedup.ln()).sum();
        let slower = 100.0 * ((logs / rounds[0].speedups.len() as f64).exp() - 1.0);
        let said = rounds[0].physics.iter().find(|physics| physics.said.contains("30 %")).unwrap();
        assert!(said.right.contains(&format!("{slower:.0} % slower")), "{slower}: {}", said.right);
        assert!(rounds[2].outcome.contains("offered") && rounds[2].revised.len() == 3);
    }

    #[test]
    fn round_one_is_refused_by_its_own_deal() {
        let round = &first_season().unwrap()[0];
        let judgement = round.judgement.as_ref().unwrap();
        assert_eq!(judgement.verdict, Verdict::Failure);
        assert!(judgement.reasons.iter().any(|r| r.contains("the deal reverts under 1.3×")), "{:?}", judgement.reasons);
        let slower: Vec<i64> = round.speedups.iter().map(|(_, s)| (100.0 * (1.0 / s - 1.0)).round() as i64).collect();
        assert_eq!(slower, [31, 24, 44, 46]);
    }

    #[test]
    fn a_stated_total_is_right_if_it_is_the_right_one_rounded() {
        assert!(is_rounded(7.575, "7.6") && is_rounded(6.875, "6.9") && is_rounded(9.15, "9.15"));
        assert!(!is_rounded(8.575, "8.4") && !is_rounded(7.4, "7.45") && !is_rounded(7.4, "x"));
    }
}
