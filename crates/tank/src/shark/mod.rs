//! Sharks: judges of distinct temperaments, each with weighted criteria of its own.
//!
//! A shark scores every pitch from 0 to 10 on each criterion. Built-in ones compute their scores from evidence
//! ([`builtin`]), people write theirs in a file, and agents answer over a pipe ([`agent`]). Whoever it is, the
//! same rules are applied to the ballots.
//!
//! A shark is somebody: it has a name, a character and a motto, criteria that may differ by the kind of round, and
//! beside its ballots a statement, in which it says why not the others, names a second choice with its conditions, and
//! the terms on which it funds.

pub mod agent;
pub mod builtin;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::pitch::Deal;
use crate::round::RoundKind;
use crate::settings::Settings;
use crate::{Error, Result, written};

/// How far from 1 the weights of a shark may sum because of rounding.
const WEIGHT_ROUNDING: f64 = 1e-9;

/// What a criterion is about, for breaking ties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// How fast.
    Speedup,
    /// How simple: higher is simpler.
    Complexity,
    /// How safe: higher is safer.
    Risk,
    /// How well it is pitched.
    Quality,
    /// Something else.
    #[default]
    Other,
}

/// One thing that a shark looks at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Criterion {
    /// Its name.
    pub name: String,
    /// Its part of the total.
    pub weight: f64,
    /// What it is about.
    #[serde(default)]
    pub role: Role,
}

/// The criteria and weights of a shark that brings none of its own.
pub fn default_criteria() -> Vec<Criterion> {
    let criterion = |name: &str, weight, role| Criterion { name: name.to_owned(), weight, role };
    vec![
        criterion("speedup", 0.40, Role::Speedup),
        criterion("complexity", 0.25, Role::Complexity),
        criterion("risk", 0.20, Role::Risk),
        criterion("quality", 0.15, Role::Quality),
    ]
}

/// Where a shark's ballots come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "from")]
pub enum Source {
    /// Computed from evidence.
    Builtin {
        /// By which of the built-in sharks.
        which: builtin::Which,
    },
    /// Written by a person beforehand.
    Ballots {
        /// All of them.
        ballots: Vec<Ballot>,
        /// What is said beside them, round by round.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        statements: Vec<Statement>,
    },
    /// Asked of a command.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
    },
}

impl Default for Source {
    fn default() -> Self {
        Source::Ballots { ballots: Vec::new(), statements: Vec::new() }
    }
}

/// A judge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shark {
    /// Its name.
    pub name: String,
    /// Its temperament, of which a round needs several distinct ones.
    pub temperament: String,
    /// Who it is, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub character: String,
    /// What it goes by, in a few words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub motto: String,
    /// What it looks at.
    pub criteria: Vec<Criterion>,
    /// What it looks at in rounds of other kinds: `correctness`, `research`, `wild-card`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub criteria_in: BTreeMap<RoundKind, Vec<Criterion>>,
    /// Where its ballots come from.
    pub source: Source,
}

/// A shark's word on one pitch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ballot {
    /// The round, where a file holds ballots for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<String>,
    /// The pitch.
    pub pitch: String,
    /// Why the shark abstains, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abstain: Option<String>,
    /// Points from 0 to 10 on each criterion.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, f64>,
    /// Why, criterion by criterion.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub because: BTreeMap<String, String>,
    /// The chance that this ends in SUCCESS; without it, a tenth of the total stands in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// The speedup that the shark expects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expects: Option<f64>,
    /// What speaks for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strengths: Vec<String>,
    /// What speaks against it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weaknesses: Vec<String>,
    /// A veto.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub veto: Option<Veto>,
}

/// What a shark says of a round beside its ballots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Statement {
    /// The round, where a file holds statements for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<String>,
    /// What it goes by this time.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub motto: String,
    /// Why not the others, pitch by pitch.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub why_not: BTreeMap<String, String>,
    /// What it would take instead, and on which conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<SecondChoice>,
    /// The terms on which it funds what it likes best: they are the winner's, where they are stricter than its own.
    #[serde(skip_serializing_if = "Deal::is_nothing")]
    pub deal: Deal,
}

/// A conditional second choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecondChoice {
    /// The pitch.
    pub pitch: String,
    /// Only with these.
    pub conditions: Vec<String>,
}

/// A shark's wish that a pitch be not built at all. It stands only if what it cites is so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Veto {
    /// `constraint:NAME`, `rule:NAME` or `ledger:RECORD`.
    pub cites: String,
    /// Why.
    pub reason: String,
}

/// A shark as a file brings it: a person's ballots, or a command to ask.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharkFile {
    shark: String,
    temperament: String,
    #[serde(default)]
    character: String,
    #[serde(default)]
    motto: String,
    #[serde(default = "default_criteria")]
    criterion: Vec<Criterion>,
    #[serde(default)]
    criterion_in: BTreeMap<RoundKind, Vec<Criterion>>,
    #[serde(default)]
    ballot: Vec<Ballot>,
    #[serde(default)]
    statement: Vec<Statement>,
    #[serde(default)]
    command: Vec<String>,
}

impl Shark {
    /// Reads a shark from a file: a name, a temperament, optional criteria, and ballots or a command.
    pub fn read(path: &Path) -> Result<Self> {
        let text = written::read(path)?;
        let mut file: SharkFile = written::parse(path, &text)?;
        written::anchor(path.parent().unwrap_or(Path::new("")), &mut file.command);
        let refuse = |key: &str, problem: &str, remedy: &str| {
            let (line, problem, remedy) = (written::line_of(&text, key), problem.to_owned(), remedy.to_owned());
            Err(Error::Written { path: path.to_path_buf(), line, problem, remedy })
        };
        let source = match (file.ballot.is_empty(), file.command.is_empty()) {
            (false, true) => Source::Ballots { ballots: file.ballot, statements: file.statement },
            (true, false) => Source::Command { command: file.command },
            (true, true) => {
                return refuse(
                    "shark",
                    "the shark has neither ballots nor a command",
                    "write [[ballot]], or command = [\"program\"]",
                );
            }
            (false, false) => return refuse("command", "the shark has both ballots and a command", "keep one of them"),
        };
        let shark = Shark {
            name: file.shark,
            temperament: file.temperament,
            character: file.character,
            motto: file.motto,
            criteria: file.criterion,
            criteria_in: file.criterion_in,
            source,
        };
        shark.check()?;
        Ok(shark)
    }

    /// The shark as it judges rounds of a kind: with the criteria that it has for them.
    pub fn in_round(&self, kind: RoundKind) -> Self {
        let criteria = self.criteria_in.get(&kind).unwrap_or(&self.criteria).clone();
        Self { criteria, ..self.clone() }
    }

    /// Refuses weights that do not sum to one, and criteria that are none.
    pub fn check(&self) -> Result<()> {
        for criteria in [&self.criteria].into_iter().chain(self.criteria_in.values()) {
            self.check_criteria(criteria)?;
        }
        Ok(())
    }

    fn check_criteria(&self, criteria: &[Criterion]) -> Result<()> {
        let refuse = |problem: String| {
            let remedy = "give each criterion a name of its own and a weight between 0 and 1".to_owned();
            Err(Error::Rules { what: format!("shark '{}'", self.name), problem, remedy })
        };
        for (index, criterion) in criteria.iter().enumerate() {
            if !(criterion.weight.is_finite() && (0.0..=1.0).contains(&criterion.weight)) {
                return refuse(format!("criterion '{}' has the weight {}", criterion.name, criterion.weight));
            }
            if criteria[..index].iter().any(|earlier| earlier.name == criterion.name) {
                return refuse(format!("criterion '{}' is there twice", criterion.name));
            }
        }
        let sum: f64 = criteria.iter().map(|c| c.weight).sum();
        match (sum - 1.0).abs() <= WEIGHT_ROUNDING {
            true => Ok(()),
            false => Err(Error::Weights { shark: self.name.clone(), sum }),
        }
    }

    /// The weighted total of a ballot, unless it abstains.
    pub fn total(&self, ballot: &Ballot) -> Option<f64> {
        let points = |c: &Criterion| ballot.scores.get(&c.name).map(|score| c.weight * score);
        if ballot.abstain.is_some() { None } else { self.criteria.iter().map(points).sum() }
    }

    /// The mean of the scores on criteria of one role, where the shark has any.
    pub fn role_score(&self, ballot: &Ballot, role: Role) -> Option<f64> {
        let scores: Vec<f64> = self
            .criteria
            .iter()
            .filter(|c| c.role == role)
            .filter_map(|c| ballot.scores.get(&c.name).copied())
            .collect();
        (ballot.abstain.is_none() && !scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// Refuses a vote that does not cover every pitch of a round by the rules.
    pub fn check_ballots(&self, ballots: &[Ballot], pitches: &[String], settings: &Settings) -> Result<()> {
        let refuse = |problem: String, remedy: &str| {
            Err(Error::Vote { shark: self.name.clone(), problem, remedy: remedy.to_owned() })
        };
        for pitch in pitches {
            match ballots.iter().filter(|b| b.pitch == *pitch).count() {
                1 => {}
                0 => return refuse(format!("there is no ballot on '{pitch}'"), "score every pitch, or abstain on one"),
                _ => return refuse(format!("there are two ballots on '{pitch}'"), "keep one of them"),
            }
        }
        for ballot in ballots {
            if !pitches.contains(&ballot.pitch) {
                let remedy = format!("the round has {}", pitches.join(", "));
                return refuse(format!("it scores '{}', which is not in the round", ballot.pitch), &remedy);
            }
            self.check_ballot(ballot)?;
        }
        let abstentions = ballots.iter().filter(|b| b.abstain.is_some()).count();
        if abstentions > settings.abstentions_per_shark {
            let remedy = format!("a shark may abstain on {} in a round", settings.abstentions_per_shark);
            return refuse(format!("it abstains on {abstentions} pitches"), &remedy);
        }
        Ok(())
    }

    fn check_ballot(&self, ballot: &Ballot) -> Result<()> {
        let refuse = |problem: String, remedy: String| {
            let problem = format!("on '{}', {problem}", ballot.pitch);
            Err(Error::Vote { shark: self.name.clone(), problem, remedy })
        };
        if ballot.abstain.is_none() {
            for Criterion { name, .. } in &self.criteria {
                match ballot.scores.get(name) {
                    None => return refuse(format!("there is no score for {name}"), "score every criterion".into()),
                    Some(score) if !(0.0..=10.0).contains(score) => {
                        return refuse(format!("the score for {name} is {score}"), "scores go from 0 to 10".into());
                    }
                    Some(_) => {}
                }
            }
        }
        if let Some(name) = ballot.scores.keys().find(|name| !self.criteria.iter().any(|c| c.name == **name)) {
            let known: Vec<String> = self.criteria.iter().map(|c| c.name.clone()).collect();
            return refuse(format!("'{name}' is scored"), format!("the shark's criteria are {}", known.join(", ")));
        }
        if ballot.probability.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
            return refuse("the probability is not one".into(), "give a number from 0 to 1".into());
        }
        if ballot.expects.is_some_and(|x| !(x.is_finite() && x > 0.0)) {
            return refuse("the expected speedup is not one".into(), "1.2 means 1.2 times as fast".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shark(weights: [f64; 4]) -> Shark {
        let mut criteria = default_criteria();
        criteria.iter_mut().zip(weights).for_each(|(criterion, weight)| criterion.weight = weight);
        Shark { name: "hammer".into(), temperament: "blunt".into(), criteria, ..Shark::default() }
    }

    fn ballot(pitch: &str, scores: [f64; 4]) -> Ballot {
        let names = ["speedup", "complexity", "risk", "quality"].map(str::to_owned);
        Ballot { pitch: pitch.into(), scores: names.into_iter().zip(scores).collect(), ..Ballot::default() }
    }

    fn refusal(ballots: &[Ballot]) -> String {
        let pitches = ["a".to_owned(), "b".to_owned()];
        let shark = shark([0.4, 0.25, 0.2, 0.15]);
        shark.check_ballots(ballots, &pitches, &Settings::default()).unwrap_err().to_string()
    }

    #[test]
    fn weights_that_do_not_sum_to_one_are_refused_with_the_sum() {
        assert!(shark([0.4, 0.25, 0.2, 0.15]).check().is_ok());
        let error = shark([0.4, 0.25, 0.2, 0.2]).check().unwrap_err();
        assert!(matches!(error, Error::Weights { sum, .. } if (sum - 1.05).abs() < 1e-12), "{error}");
        assert!(shark([1.4, -0.25, -0.1, -0.05]).check().is_err(), "negative weights sum to one too");
        assert!(shark([f64::NAN, 0.5, 0.3, 0.2]).check().is_err());
    }

    #[test]
    fn a_total_is_the_weighted_sum() {
        let total = shark([0.4, 0.25, 0.2, 0.15]).total(&ballot("a", [8.5, 9.5, 8.0, 8.0])).unwrap();
        assert!((total - 8.575).abs() < 1e-12);
        let abstained = Ballot { abstain: Some("not my field".into()), ..ballot("a", [1.0; 4]) };
        assert_eq!(shark([0.4, 0.25, 0.2, 0.15]).total(&abstained), None);
    }

    #[test]
    fn a_vote_must_cover_the_round_and_nothing_else() {
        let (a, b) = (ballot("a", [5.0; 4]), ballot("b", [5.0; 4]));
        assert!(refusal(std::slice::from_ref(&a)).contains("no ballot on 'b'"));
        assert!(refusal(&[a.clone(), a.clone(), b.clone()]).contains("two ballots on 'a'"));
        assert!(refusal(&[a.clone(), b.clone(), ballot("c", [5.0; 4])]).contains("not in the round"));
        assert!(refusal(&[a.clone(), ballot("b", [5.0, 11.0, 5.0, 5.0])]).contains("11"));
        assert!(refusal(&[a.clone(), ballot("b", [5.0, f64::NAN, 5.0, 5.0])]).contains("0 to 10"));
        let mut partial = b.clone();
        partial.scores.remove("risk");
        assert!(refusal(&[a.clone(), partial]).contains("no score for risk"));
        let unknown = Ballot { scores: [("charm".to_owned(), 3.0)].into(), abstain: Some("x".into()), ..b.clone() };
        assert!(refusal(&[a.clone(), unknown]).contains("charm"));
        assert!(refusal(&[a, Ballot { probability: Some(2.0), ..b }]).contains("probability"));
    }

    #[test]
    fn a_shark_may_abstain_once_a_round_but_not_twice() {
        let abstain =
            |pitch| Ballot { pitch: String::from(pitch), abstain: Some("conflict".into()), ..Ballot::default() };
        let pitches = ["a".to_owned(), "b".to_owned()];
        let once = [abstain("a"), ballot("b", [5.0; 4])];
        assert!(shark([0.4, 0.25, 0.2, 0.15]).check_ballots(&once, &pitches, &Settings::default()).is_ok());
        assert!(refusal(&[abstain("a"), abstain("b")]).contains("abstains on 2"));
    }

    #[test]
    fn a_shark_is_read_from_a_file_with_ballots_or_a_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Shark::read(&path)
        };
        let head = "shark = \"maria\"\ntemperament = \"calm\"\n";
        let ballot = "[[ballot]]\npitch = \"a\"\nscores = { speedup = 1, complexity = 2, risk = 3, quality = 4 }\n";
        assert_eq!(read(&format!("{head}{ballot}")).unwrap().criteria, default_criteria());
        assert!(matches!(read(&format!("{head}command = [\"x\"]")).unwrap().source, Source::Command { .. }));
        assert!(read(head).unwrap_err().to_string().contains("neither ballots nor a command"));
        let lopsided = format!("{head}command = [\"x\"]\n[[criterion]]\nname = \"charm\"\nweight = 0.9\n");
        assert!(matches!(read(&lopsided), Err(Error::Weights { .. })));
        assert!(read(&format!("{head}comand = [\"x\"]")).unwrap_err().to_string().contains("did you mean `command`?"));
    }
}
