//! The count: totals, ranking, ties, flags and vetoes, with the arithmetic shown.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::settings::Settings;
use crate::shark::{Ballot, Role, Shark};

/// Means that are nearer than this are a tie; scores have at most three decimals.
const TIE: f64 = 1e-9;

/// A shark's vote in a round.
#[derive(Clone, Debug)]
pub struct Vote<'a> {
    /// The shark.
    pub shark: &'a Shark,
    /// Its ballots, one per pitch.
    pub ballots: &'a [Ballot],
}

/// What became of a veto.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ruling {
    /// The shark that raised it.
    pub shark: String,
    /// The pitch it is against.
    pub pitch: String,
    /// What it cites.
    pub cites: String,
    /// Whether what it cites is so.
    pub stands: bool,
    /// What the tank found when it looked.
    pub finding: String,
}

/// Where a pitch stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// The pitch.
    pub pitch: String,
    /// Each shark's total, or none where it abstained.
    pub totals: Vec<(String, Option<f64>)>,
    /// The mean over the sharks that did not abstain.
    pub mean: Option<f64>,
    /// The same, each shark counting by its record.
    #[serde(default)]
    pub weighted: Option<f64>,
    /// The mean score for safety.
    pub risk: Option<f64>,
    /// The mean score for simplicity.
    pub complexity: Option<f64>,
    /// The standard deviation of the sharks' totals.
    pub deviation: f64,
    /// Whether so many abstained that it should be looked at again.
    pub flagged: bool,
    /// Whether a veto stands against it.
    pub vetoed: bool,
}

/// A round's count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Every pitch, best first; vetoed ones and those on which all abstained last.
    pub standings: Vec<Standing>,
    /// The vetoes.
    pub rulings: Vec<Ruling>,
    /// Whether every shark's total of every pitch is so low that research is due instead.
    pub research: bool,
    /// Those at the top that no rule can tell apart; a person has to.
    pub tied: Vec<String>,
    /// How the order of the first two was decided.
    pub decided_by: String,
    /// What each shark counts by its record: 1 on average.
    #[serde(default)]
    pub weights: BTreeMap<String, f64>,
    /// Whether that decides.
    #[serde(default)]
    pub by_record: bool,
}

impl Tally {
    /// Who may be built, in order.
    pub fn order(&self) -> impl Iterator<Item = &Standing> {
        self.standings.iter().filter(|s| s.mean.is_some() && !s.vetoed)
    }

    /// The same count for those who are left when one is taken back after the vote.
    pub fn without(mut self, pitch: &str) -> Self {
        self.standings.retain(|standing| standing.pitch != pitch);
        self.tied.retain(|tied| tied != pitch);
        if self.tied.len() < 2 {
            self.tied.clear();
        }
        self
    }

    /// The pitch that the vote would build.
    pub fn winner(&self) -> Option<&str> {
        self.order().next().map(|s| s.pitch.as_str()).filter(|_| self.tied.is_empty() && !self.research)
    }
}

/// Counts a round. `rulings` are the vetoes, already examined.
///
/// `weights` say what each shark counts by its record; they decide where the settings say so, and are shown either way.
pub fn count(
    pitches: &[String],
    votes: &[Vote<'_>],
    rulings: Vec<Ruling>,
    weights: BTreeMap<String, f64>,
    settings: &Settings,
) -> Tally {
    let by_record = settings.weigh_votes;
    let compare = |a: &Standing, b: &Standing| compare(a, b, by_record);
    let mut standings: Vec<Standing> =
        pitches.iter().map(|pitch| standing(pitch, votes, &rulings, &weights, settings)).collect();
    // The sort is stable, so pitches that nothing tells apart keep the order in which they were brought.
    standings.sort_by(|a, b| compare(a, b).0);
    let totals: Vec<f64> = standings.iter().flat_map(|s| s.totals.iter().filter_map(|(_, total)| *total)).collect();
    let research = !totals.is_empty() && totals.iter().all(|&total| total < settings.research_below);
    let able: Vec<&Standing> = standings.iter().filter(|s| s.mean.is_some() && !s.vetoed).collect();
    let tied: Vec<String> = match able.as_slice() {
        [first, rest @ ..] => {
            let equal = rest.iter().take_while(|s| compare(first, s).0 == Ordering::Equal);
            let names: Vec<String> = equal.map(|s| s.pitch.clone()).collect();
            if names.is_empty() { names } else { [vec![first.pitch.clone()], names].concat() }
        }
        [] => Vec::new(),
    };
    let decided_by = match able.as_slice() {
        [] => "no pitch is left to build".to_owned(),
        [_] => "it is the only pitch left".to_owned(),
        [first, second, ..] => compare(first, second).1,
    };
    Tally { tied, decided_by, research, rulings, standings, weights, by_record }
}

fn standing(
    pitch: &str,
    votes: &[Vote<'_>],
    rulings: &[Ruling],
    weights: &BTreeMap<String, f64>,
    settings: &Settings,
) -> Standing {
    let ballots: Vec<(&Shark, &Ballot)> =
        votes.iter().filter_map(|v| Some((v.shark, v.ballots.iter().find(|b| b.pitch == pitch)?))).collect();
    let totals: Vec<(String, Option<f64>)> =
        ballots.iter().map(|(shark, ballot)| (shark.name.clone(), shark.total(ballot))).collect();
    let given: Vec<f64> = totals.iter().filter_map(|(_, total)| *total).collect();
    let role = |role| mean(&ballots.iter().filter_map(|(s, b)| s.role_score(b, role)).collect::<Vec<_>>());
    let mean_total = mean(&given);
    let squares: Vec<f64> = given.iter().map(|t| (t - mean_total.unwrap_or(0.0)).powi(2)).collect();
    let abstained = ballots.iter().filter(|(_, ballot)| ballot.abstain.is_some()).count();
    Standing {
        pitch: pitch.to_owned(),
        mean: mean_total,
        weighted: weighted(&totals, weights),
        risk: role(Role::Risk),
        complexity: role(Role::Complexity),
        deviation: mean(&squares).unwrap_or(0.0).sqrt(),
        flagged: abstained >= settings.abstentions_flag,
        vetoed: rulings.iter().any(|r| r.pitch == pitch && r.stands),
        totals,
    }
}

/// The mean of the totals that were given, each by its shark's weight.
fn weighted(totals: &[(String, Option<f64>)], weights: &BTreeMap<String, f64>) -> Option<f64> {
    let weight = |shark: &str| weights.get(shark).copied().unwrap_or(1.0);
    let given: Vec<(f64, f64)> = totals.iter().filter_map(|(shark, total)| Some((weight(shark), (*total)?))).collect();
    let sum: f64 = given.iter().map(|(weight, _)| weight).sum();
    (sum > 0.0).then(|| given.iter().map(|(weight, total)| weight * total).sum::<f64>() / sum)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Which of two stands before the other, and by which rule.
fn compare(a: &Standing, b: &Standing, by_record: bool) -> (Ordering, String) {
    let able = |s: &Standing| s.mean.is_some() && !s.vetoed;
    match (able(a), able(b)) {
        (true, false) => return (Ordering::Less, "the other cannot be built".into()),
        (false, true) => return (Ordering::Greater, "the other cannot be built".into()),
        _ => {}
    }
    let higher = |x: Option<f64>, y: Option<f64>| match (x, y) {
        (Some(x), Some(y)) if (x - y).abs() > TIE => y.total_cmp(&x),
        _ => Ordering::Equal,
    };
    let or_nothing = |x: Option<f64>| x.unwrap_or(0.0);
    let (name, [x, y]) = match by_record {
        true => ("the higher mean by the sharks' records", [a.weighted, b.weighted]),
        false => ("the higher mean", [a.mean, b.mean]),
    };
    let rules = [
        (name, higher(x, y), or_nothing(x), or_nothing(y)),
        ("a tie, and the safer one by its risk score", higher(a.risk, b.risk), or_nothing(a.risk), or_nothing(b.risk)),
        (
            "a tie, and the simpler one by its complexity score",
            higher(a.complexity, b.complexity),
            or_nothing(a.complexity),
            or_nothing(b.complexity),
        ),
        (
            "a tie, and the one on which sharks differ less",
            higher(Some(-a.deviation), Some(-b.deviation)),
            a.deviation,
            b.deviation,
        ),
    ];
    let decided = rules.into_iter().find(|(_, order, ..)| *order != Ordering::Equal);
    decided.map_or_else(
        || (Ordering::Equal, "a tie that no rule breaks: a person's word is needed".to_owned()),
        |(rule, order, x, y)| (order, format!("{rule}, {x:.3} against {y:.3}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shark::default_criteria;

    fn shark(name: &str) -> Shark {
        Shark { name: name.into(), temperament: name.into(), criteria: default_criteria(), ..Shark::default() }
    }

    /// speedup, complexity, risk, quality
    fn ballot(pitch: &str, scores: [f64; 4]) -> Ballot {
        let names = ["speedup", "complexity", "risk", "quality"].map(str::to_owned);
        Ballot { pitch: pitch.into(), scores: names.into_iter().zip(scores).collect(), ..Ballot::default() }
    }

    fn abstain(pitch: &str) -> Ballot {
        Ballot { pitch: pitch.into(), abstain: Some("not my field".into()), ..Ballot::default() }
    }

    fn counted(ballots: &[[Ballot; 2]]) -> Tally {
        let sharks: Vec<Shark> = (0..ballots.len()).map(|i| shark(&format!("s{i}"))).collect();
        let votes: Vec<Vote<'_>> = sharks.iter().zip(ballots).map(|(shark, ballots)| Vote { shark, ballots }).collect();
        count(&["a".to_owned(), "b".to_owned()], &votes, Vec::new(), BTreeMap::new(), &Settings::default())
    }

    #[test]
    fn records_decide_where_the_settings_say_so_and_both_results_are_shown() {
        let sharks = [shark("s0"), shark("s1")];
        let ballots = [[ballot("a", [8.0; 4]), ballot("b", [4.0; 4])], [ballot("a", [4.0; 4]), ballot("b", [7.0; 4])]];
        let votes: Vec<Vote<'_>> =
            sharks.iter().zip(&ballots).map(|(shark, ballots)| Vote { shark, ballots }).collect();
        let weights = BTreeMap::from([("s0".to_owned(), 0.5), ("s1".to_owned(), 1.5)]);
        let of = |weigh_votes| {
            let settings = Settings { weigh_votes, ..Settings::default() };
            count(&["a".to_owned(), "b".to_owned()], &votes, Vec::new(), weights.clone(), &settings)
        };
        let (plain, weighed) = (of(false), of(true));
        assert_eq!((plain.winner(), weighed.winner()), (Some("a"), Some("b")));
        let b = plain.standings.iter().find(|standing| standing.pitch == "b").unwrap();
        let near = |found: Option<f64>, right: f64| found.is_some_and(|found| (found - right).abs() < 1e-9);
        assert!(near(b.mean, 5.5) && near(b.weighted, 6.25), "{b:?}");
        assert!(weighed.decided_by.contains("records"), "{}", weighed.decided_by);
    }

    #[test]
    fn the_highest_mean_wins() {
        let tally =
            counted(&[[ballot("a", [5.0; 4]), ballot("b", [6.0; 4])], [ballot("a", [5.0; 4]), ballot("b", [5.0; 4])]]);
        assert_eq!(tally.winner(), Some("b"));
        assert_eq!(tally.standings[0].mean, Some(5.5));
        assert!(tally.decided_by.contains("higher mean, 5.500 against 5.000"), "{}", tally.decided_by);
    }

    #[test]
    fn an_abstention_is_left_out_of_the_mean_and_two_flag_the_pitch() {
        let one = counted(&[[abstain("a"), ballot("b", [6.0; 4])], [ballot("a", [8.0; 4]), ballot("b", [6.0; 4])]]);
        assert_eq!((one.winner(), one.standings[0].mean, one.standings[0].flagged), (Some("a"), Some(8.0), false));
        let two = counted(&[
            [abstain("a"), ballot("b", [6.0; 4])],
            [abstain("a"), ballot("b", [6.0; 4])],
            [ballot("a", [8.0; 4]), ballot("b", [6.0; 4])],
        ]);
        assert!(two.standings[0].flagged && two.standings[0].pitch == "a");
    }

    #[test]
    fn a_pitch_on_which_all_abstained_has_no_score_and_cannot_win() {
        let tally = counted(&[[abstain("a"), ballot("b", [4.0; 4])], [abstain("a"), ballot("b", [4.0; 4])]]);
        assert_eq!((tally.winner(), tally.standings[1].mean), (Some("b"), None));
    }

    #[test]
    fn a_tie_goes_to_the_safer_then_to_the_simpler_then_to_the_less_disputed() {
        // .40 of speedup against .20 of risk: two points more on one are four less on the other.
        let safer = counted(&[[ballot("a", [7.0, 5.0, 5.0, 5.0]), ballot("b", [5.0, 5.0, 9.0, 5.0])]]);
        assert_eq!(safer.winner(), Some("b"));
        assert!(safer.decided_by.contains("safer"), "{}", safer.decided_by);
        // Equal in risk: .40 of speedup against .25 of complexity.
        let simpler = counted(&[[ballot("a", [7.5, 4.0, 5.0, 5.0]), ballot("b", [5.0, 8.0, 5.0, 5.0])]]);
        assert_eq!(simpler.winner(), Some("b"));
        assert!(simpler.decided_by.contains("simpler"), "{}", simpler.decided_by);
        let disputed = [
            [ballot("a", [7.0, 5.0, 5.0, 5.0]), ballot("b", [6.0, 5.0, 5.0, 5.0])],
            [ballot("a", [5.0, 5.0, 5.0, 5.0]), ballot("b", [6.0, 5.0, 5.0, 5.0])],
        ];
        let tally = counted(&disputed);
        assert_eq!(tally.winner(), Some("b"));
        assert!(tally.decided_by.contains("differ less"), "{}", tally.decided_by);
    }

    #[test]
    fn a_tie_in_everything_waits_for_a_person() {
        let tally = counted(&[[ballot("a", [5.0; 4]), ballot("b", [5.0; 4])]]);
        assert_eq!((tally.winner(), tally.tied.as_slice()), (None, &["a".to_owned(), "b".to_owned()][..]));
        assert!(tally.decided_by.contains("person's word"));
    }

    #[test]
    fn research_is_due_where_every_shark_is_below_four_on_every_pitch() {
        let low =
            counted(&[[ballot("a", [3.9; 4]), ballot("b", [1.0; 4])], [ballot("a", [3.0; 4]), ballot("b", [2.0; 4])]]);
        assert!(low.research && low.winner().is_none());
        let one_is_not =
            counted(&[[ballot("a", [4.0; 4]), ballot("b", [1.0; 4])], [ballot("a", [0.0; 4]), ballot("b", [1.0; 4])]]);
        assert!(!one_is_not.research && one_is_not.winner() == Some("a"));
    }

    #[test]
    fn a_veto_that_stands_keeps_a_pitch_from_being_built_and_one_that_does_not_changes_nothing() {
        let shark = shark("s");
        let ballots = [ballot("a", [9.0; 4]), ballot("b", [5.0; 4])];
        let ruled = |stands| {
            let ruling =
                Ruling { shark: "s".into(), pitch: "a".into(), cites: "rule:x".into(), stands, finding: String::new() };
            count(
                &["a".into(), "b".into()],
                &[Vote { shark: &shark, ballots: &ballots }],
                vec![ruling],
                BTreeMap::new(),
                &Settings::default(),
            )
        };
        assert_eq!((ruled(true).winner(), ruled(false).winner()), (Some("b"), Some("a")));
        assert_eq!(ruled(true).order().count(), 1, "a vetoed pitch is no runner-up");
    }
}
