//! A pitch: what someone claims, why, and what is to be run.
//!
//! It is a TOML file that a person writes. Everything the rules require may be missing from it when it is read, because
//! a pitch without a number is not a syntax error: it is disqualified, with the reason, and that is remembered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use referee::contestant::seal;
use serde::{Deserialize, Serialize};

pub use crate::entry::Run;
use crate::settings::Settings;
use crate::{Error, Result, operations, written};

/// What kind of pitch it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An optimisation.
    #[default]
    Change,
    /// To learn something; it is measured, but never becomes champion.
    Research,
    /// A long shot: it needs no evidence.
    WildCard,
    /// The smallest change that mends something.
    MinimalFix,
}

/// A pitch as it was written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pitch {
    /// Its name, unique in a season.
    pub name: String,
    /// What kind it is.
    pub kind: Kind,
    /// Who brings it.
    pub contestant: String,
    /// What is slow now, with a number that can be measured.
    pub problem: String,
    /// What is to be done about it.
    pub solution: String,
    /// How it is undone.
    pub rollback: String,
    /// What is known now that was not when the same thing failed before; empty for a first try.
    pub new_evidence: String,
    /// The earlier pitch that this one revises, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revises: Option<String>,
    /// The claim.
    pub claim: Option<Claim>,
    /// The work it takes.
    pub complexity: Option<Complexity>,
    /// What may go wrong.
    pub risk: Vec<Risk>,
    /// Why it should be believed.
    pub evidence: Vec<EvidenceCited>,
    /// What is to be run.
    pub run: Option<Run>,
    /// The terms under which it asks to be judged, where they are stricter than the rules.
    pub deal: Deal,
    /// The folders whose files its commands may name: that of the file it was read from, and its operation's. Whoever
    /// is asked for a pitch has its operation's alone.
    #[serde(skip)]
    pub places: Vec<PathBuf>,
}

/// Folders that everyone may read.
const SYSTEM: [&str; 6] = ["/usr", "/lib", "/lib64", "/bin", "/opt", "/nix/store"];

/// A number and an interval, for the geometric mean over the problem set: above 1 is faster than the champion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Claim {
    /// The claimed speedup.
    pub speedup: Option<f64>,
    /// The lower end of its 80 % interval.
    pub low: Option<f64>,
    /// The upper end of its 80 % interval.
    pub high: Option<f64>,
    /// Why this number.
    pub reasoning: String,
    /// What must be so for it: what was wrong, if it fails.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub assumes: String,
    /// How sure its author is that the interval holds, from 0 to 1; the season's level where it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// What may come of it, with chances that sum to one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Prospect>,
}

/// One thing that may come of a pitch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prospect {
    /// In words.
    pub what: String,
    /// The speedup, where it comes to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// Its chance.
    pub probability: f64,
}

impl Claim {
    /// The number and its interval, where all three are there and make sense.
    pub fn figures(&self) -> Option<(f64, f64, f64)> {
        let (speedup, low, high) = (self.speedup?, self.low?, self.high?);
        let sensible = low > 0.0 && low <= speedup && speedup <= high && high.is_finite();
        sensible.then_some((speedup, low, high))
    }
}

/// How much work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Under two hours.
    Low,
    /// Two to six hours.
    Medium,
    /// More.
    High,
}

/// The work a pitch takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Complexity {
    /// Low, medium or high.
    pub level: Level,
    /// Hours.
    pub hours: f64,
    /// What is hard about it.
    #[serde(default)]
    pub challenges: Vec<String>,
}

/// What may go wrong, and what is done about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Risk {
    /// What may go wrong.
    pub what: String,
    /// What is done about it.
    pub mitigation: String,
    /// How likely it is, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// What it would cost.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub impact: String,
}

/// What kind of evidence it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvidenceKind {
    /// It worked elsewhere.
    PriorSuccess,
    /// A measurement of where the time goes.
    Profile,
    /// Someone published it.
    Literature,
    /// Arithmetic.
    Theory,
}

/// A reason to believe a pitch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceCited {
    /// What kind.
    pub kind: EvidenceKind,
    /// What it says.
    pub what: String,
    /// Figures of a profile, by name: shares of time by phase, registers, occupancy, bytes of shared memory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

/// A condition on a profile that has to hold before anything is built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gate {
    /// What is looked at: a figure of the tank's evidence, or of the pitch's own profile.
    pub figure: String,
    /// It must be this at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// It must be this at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

/// Terms that are the pitch's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deal {
    /// The geometric mean that must be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_geomean: Option<f64>,
    /// The geometric mean under which it failed; between this and `min_geomean` a person decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revert_under: Option<f64>,
    /// How much slower any problem may be, as a part of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_loss: Option<f64>,
    /// Working memory that may be used, in bytes; for a GPU kernel its shared memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_scratch_bytes: Option<usize>,
    /// A quick probe first, and the rest only if no problem is much slower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<bool>,
    /// What a profile must show before anything is built.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Gate>,
}

impl Deal {
    /// These terms, and where they say nothing the others'.
    pub fn or(&self, other: &Deal) -> Deal {
        Deal {
            min_geomean: self.min_geomean.or(other.min_geomean),
            revert_under: self.revert_under.or(other.revert_under),
            max_loss: self.max_loss.or(other.max_loss),
            max_scratch_bytes: self.max_scratch_bytes.or(other.max_scratch_bytes),
            staged: self.staged.or(other.staged),
            gates: [self.gates.clone(), other.gates.clone()].concat(),
        }
    }

    /// Both deals at once: of each term the stricter one.
    pub fn and(&self, other: &Deal) -> Deal {
        let highest = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        let lowest = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::min);
        let mut gates = self.gates.clone();
        gates.extend(other.gates.iter().filter(|gate| !self.gates.contains(gate)).cloned());
        Deal {
            min_geomean: highest(self.min_geomean, other.min_geomean),
            revert_under: highest(self.revert_under, other.revert_under),
            max_loss: lowest(self.max_loss, other.max_loss),
            max_scratch_bytes: self.max_scratch_bytes.into_iter().chain(other.max_scratch_bytes).min(),
            staged: self.staged.into_iter().chain(other.staged).reduce(|a, b| a || b),
            gates,
        }
    }

    /// Whether it asks for nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Deal::default()
    }
}

/// Something that the rules require of a pitch and that it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key it concerns, for the line number.
    pub key: &'static str,
    /// What was found.
    pub problem: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Pitch {
    /// A pitch as it is written; `path` is where it came from, for the message.
    pub fn from_text(path: &Path, text: &str) -> Result<Self> {
        written::parse(path, text)
    }

    /// Reads a pitch; what the rules require of it is asked by [`Pitch::faults`].
    pub fn read(path: &Path) -> Result<Self> {
        let mut pitch = Self::from_text(path, &written::read(path)?)?;
        pitch.anchor(path.parent().unwrap_or(Path::new("")));
        Ok(pitch)
    }

    /// Reads a pitch and refuses it if anything is missing, with the line.
    pub fn read_complete(path: &Path, settings: &Settings) -> Result<Self> {
        let text = written::read(path)?;
        let mut pitch = Self::from_text(path, &text)?;
        pitch.anchor(path.parent().unwrap_or(Path::new("")));
        match pitch.faults(settings).into_iter().next() {
            None => Ok(pitch),
            Some(Fault { key, problem, remedy }) => Err(Error::Written {
                path: path.to_path_buf(),
                line: written::line_of(&text, key),
                problem,
                remedy: remedy.to_owned(),
            }),
        }
    }

    /// Programs, and files among their arguments, that are named by a path are looked for beside the file that names
    /// them.
    pub fn anchor(&mut self, folder: &Path) {
        if let Some(run) = &mut self.run {
            written::anchor(folder, &mut run.program);
            written::anchor(folder, &mut run.build);
        }
        self.places = vec![if folder == Path::new("") { PathBuf::from(".") } else { folder.to_owned() }];
    }

    /// A file beyond its places that its commands name, and a contestant could then read, with all that lies beside it.
    fn stray(&self, readable: &[PathBuf]) -> Option<PathBuf> {
        let run = self.run.as_ref()?;
        let system = SYSTEM.map(PathBuf::from);
        let allowed = self.places.iter().chain(readable).chain(&system);
        let allowed: Vec<PathBuf> = allowed.filter_map(|place| place.canonicalize().ok()).collect();
        // An interpreter or a compiler may come from wherever programs of everyone lie. A link counts as what it leads
        // to.
        let for_everyone = |index: usize, path: &Path| index == 0 && path.parent().is_some_and(seal::is_shared);
        let named = [&run.program, &run.build].into_iter().flat_map(|command| command.iter().enumerate());
        let named = named.map(|(index, word)| (index, Path::new(word)));
        let files = named.filter(|(index, path)| path.is_absolute() && path.is_file() && !for_everyone(*index, path));
        let files = files.filter_map(|(_, path)| path.canonicalize().ok());
        // What is to be built may not be there yet, and whoever builds it sees all of its folder.
        let built_in = seal::folder_of(&run.program).filter(|_| !run.build.is_empty());
        files.chain(built_in).find(|file| !allowed.iter().any(|place| file.starts_with(place)))
    }

    /// What the rules require and this pitch lacks, the gravest first.
    pub fn faults(&self, settings: &Settings) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut fault = |key, problem: String, remedy| faults.push(Fault { key, problem, remedy });
        for (key, text, remedy) in [
            ("name", &self.name, "name = \"short-name\", by which votes and the ledger call it"),
            ("contestant", &self.contestant, "contestant = \"who brings it\", whose track record this will count for"),
            ("problem", &self.problem, "problem = \"what is slow now\", with a number that can be measured"),
            ("solution", &self.solution, "solution = \"what is to be done about it\""),
            ("rollback", &self.rollback, "rollback = \"how it is undone\""),
        ] {
            if text.trim().is_empty() {
                fault(key, format!("the pitch has no {key}"), remedy);
            }
        }
        // Both are printed before verdicts, and what looks like another line, or turns the writing, would be one.
        let odd = |c: char| {
            c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        if self.name.contains(odd) || self.contestant.contains(odd) {
            let problem = "the name of the pitch or of its contestant has characters that cannot be seen";
            fault("name", problem.into(), "write names in letters, digits and signs, on one line");
        }
        if !self.problem.trim().is_empty() && !self.problem.contains(|c: char| c.is_ascii_digit()) {
            fault("problem", "the problem names no number".into(), "say what is measured, and how much it is now");
        }
        self.claim_faults(&mut fault);
        self.work_faults(settings, &mut fault);
        self.run_faults(&mut fault);
        if let Some(file) = self.stray(&settings.referee.limits.readable) {
            let problem = format!(
                "its command names {}, which is neither beside the pitch nor in its operation's folder",
                file.display()
            );
            let remedy = "a contestant may read what its command names: put a copy beside the pitch, or allow the folder by `readable` under [settings.referee.limits]";
            fault("program", problem, remedy);
        }
        self.deal_faults(settings, &mut fault);
        faults
    }

    fn claim_faults(&self, fault: &mut impl FnMut(&'static str, String, &'static str)) {
        let example = "write [claim] with speedup, low, high (an 80 % interval) and reasoning";
        let Some(claim) = &self.claim else { return fault("claim", "the pitch has no claim".into(), example) };
        if claim.speedup.is_none() || claim.low.is_none() || claim.high.is_none() {
            fault("claim", "the claim lacks a number or its interval".into(), example);
        } else if claim.figures().is_none() {
            let remedy = "0 < low ≤ speedup ≤ high, where 1.2 means 1.2 times as fast";
            fault("speedup", "the claim's numbers are not an estimate inside its interval".into(), remedy);
        }
        let chances: f64 = claim.outcomes.iter().map(|outcome| outcome.probability).sum();
        let sensible = claim.outcomes.iter().all(|outcome| (0.0..=1.0).contains(&outcome.probability));
        let whole = claim.outcomes.is_empty() || (sensible && (chances - 1.0).abs() < 1e-6);
        if !whole {
            let remedy =
                "outcomes = [{ what = \"…\", speedup = 1.1, probability = 0.3 }, …], with chances that sum to 1";
            fault("outcomes", format!("the chances of its outcomes sum to {chances}"), remedy);
        }
        if claim.confidence.is_some_and(|confidence| !(0.0..=1.0).contains(&confidence)) {
            fault("confidence", "the confidence is not a chance".into(), "give a number from 0 to 1");
        }
        if claim.reasoning.trim().is_empty() {
            fault("claim", "the claim has no reasoning".into(), "reasoning = \"why this number\"");
        }
    }

    fn work_faults(&self, settings: &Settings, fault: &mut impl FnMut(&'static str, String, &'static str)) {
        match &self.complexity {
            None => {
                fault("complexity", "the pitch has no complexity".into(), "write [complexity] with level and hours")
            }
            Some(Complexity { level, hours, challenges }) => {
                let expected = match *hours {
                    h if h < settings.low_hours => Level::Low,
                    h if h <= settings.medium_hours => Level::Medium,
                    _ => Level::High,
                };
                if !(hours.is_finite() && *hours >= 0.0) || expected != *level {
                    let problem = format!("{hours} hours of work are not of this level");
                    fault(
                        "complexity",
                        problem,
                        "low is under 2 hours, medium 2 to 6, high more, unless settings differ",
                    );
                }
                if *level != Level::Low && challenges.is_empty() {
                    fault(
                        "complexity",
                        "the complexity names no challenges".into(),
                        "challenges = [\"what is hard about it\"]",
                    );
                }
                if self.kind == Kind::MinimalFix && *level != Level::Low {
                    fault(
                        "complexity",
                        "a minimal fix is of low complexity".into(),
                        "make it smaller, or pitch it as a change",
                    );
                }
            }
        }
        if self.risk.iter().any(|risk| risk.probability.is_some_and(|chance| !(0.0..=1.0).contains(&chance))) {
            fault("risk", "a risk's probability is not one".into(), "give a number from 0 to 1");
        }
        if self.risk.is_empty() || self.risk.iter().any(|r| r.what.trim().is_empty() || r.mitigation.trim().is_empty())
        {
            fault("risk", "a risk, or its mitigation, is missing".into(), "write [[risk]] with what and mitigation");
        }
        let evidence = self.evidence.iter().any(|e| !e.what.trim().is_empty());
        if !evidence && self.kind != Kind::WildCard {
            let remedy = "write [[evidence]] with kind = prior-success, profile, literature or theory, and what";
            fault("evidence", "the pitch has no evidence".into(), remedy);
        }
    }

    fn run_faults(&self, fault: &mut impl FnMut(&'static str, String, &'static str)) {
        let fault_of = |words: &String| operations::check_words(words).err().map(|error| error.to_string());
        match &self.run {
            Some(Run { config: Some(config), program, .. }) if program.is_empty() => {
                if let Some(problem) = fault_of(config) {
                    fault("config", problem, operations::WORDS);
                }
            }
            Some(Run { config: None, program, sweep, fallback, .. }) if program.is_empty() && !sweep.is_empty() => {
                for problem in sweep.iter().filter_map(fault_of) {
                    fault("sweep", problem, operations::WORDS);
                }
                if fallback.as_ref().is_some_and(|fallback| !sweep.contains(fallback)) {
                    fault("fallback", "the fallback is not among the sweep".into(), "name one of its configurations");
                }
            }
            Some(Run { config: None, program, sweep, .. }) if !program.is_empty() && sweep.is_empty() => {}
            Some(Run { config: Some(_), .. }) => {
                fault(
                    "run",
                    "it names both a configuration and a program, or a sweep".into(),
                    "bring them as two pitches",
                );
            }
            _ => fault("run", "the pitch names nothing to run".into(), operations::RUN),
        }
    }

    fn deal_faults(&self, settings: &Settings, fault: &mut impl FnMut(&'static str, String, &'static str)) {
        let stricter = "a deal may be stricter than the rules, never looser; `hammerhead tank settings` prints them";
        if self.deal.min_geomean.is_some_and(|min| !min.is_finite() || min < 1.0 + settings.margin()) {
            fault("min_geomean", "the deal asks for less than the rules' margin".into(), stricter);
        }
        if self.deal.max_loss.is_some_and(|loss| !(0.0..=settings.max_loss()).contains(&loss)) {
            fault("max_loss", "the deal allows a greater loss than the rules".into(), stricter);
        }
        if self
            .deal
            .gates
            .iter()
            .any(|gate| gate.figure.is_empty() || (gate.at_least.is_none() && gate.at_most.is_none()))
        {
            let remedy = "gates = [{ figure = \"epilogue share\", at_least = 0.03 }]";
            fault("gates", "a gate names no figure or no limit".into(), remedy);
        }
        if let (Some(revert), Some(min)) = (self.deal.revert_under, self.deal.min_geomean)
            && (revert > min || revert.is_nan() || min.is_nan())
        {
            fault("revert_under", "the deal reverts above its own minimum".into(), "revert_under ≤ min_geomean");
        }
    }

    /// A pitch that is complete, to write one's own from.
    pub fn example(name: &str) -> String {
        operations::example_pitch(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Pitch {
        toml::from_str(&Pitch::example("mine")).unwrap()
    }

    fn problems(pitch: &Pitch) -> String {
        pitch.faults(&Settings::default()).into_iter().map(|f| f.problem + "; " + f.remedy + "\n").collect()
    }

    #[test]
    fn files_of_others_are_not_named_even_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
        for place in [&ours, &theirs] {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("key"), "").unwrap();
        }
        std::os::unix::fs::symlink(theirs.join("key"), ours.join("link")).unwrap();
        let named = |program: &[&str], build: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
            let run = Some(Run { program: words(program), build: words(build), ..Run::default() });
            let mut pitch = Pitch { run, ..example() };
            pitch.anchor(&ours);
            problems(&pitch)
        };
        assert_eq!(named(&["./kernel", "./key", "/usr/bin/env", "key"], &["cc", "./kernel.c"]), "");
        let there = theirs.join("key").display().to_string();
        for (program, build) in [
            (["./kernel", there.as_str()], ["true", ""]),
            (["./kernel", "../theirs/key"], ["true", ""]),
            (["./kernel", "./link"], ["true", ""]),
            (["./kernel", ""], ["cat", "./link"]),
            ([there.as_str(), ""], ["true", ""]),
            (["../theirs/not-there-yet", ""], ["cat", "key"]),
        ] {
            let found = named(&program, &build);
            assert!(found.contains("theirs") && found.contains("readable"), "{program:?}, {build:?}: {found}");
        }
    }

    #[test]
    fn the_example_is_complete() {
        assert_eq!(problems(&example()), "");
        assert_eq!(example().name, "mine");
        assert!(operations::EXAMPLE.contains(operations::EXAMPLE_RUN), "the line that others replace");
    }

    #[test]
    fn a_name_that_needs_quoting_makes_a_valid_example() {
        let pitch: Pitch = toml::from_str(&Pitch::example("a \"b\" \\ c")).unwrap();
        assert_eq!(pitch.name, "a \"b\" \\ c");
    }

    #[test]
    fn whatever_is_missing_is_named() {
        let missing = |change: fn(&mut Pitch), word: &str| {
            let mut pitch = example();
            change(&mut pitch);
            assert!(problems(&pitch).contains(word), "no {word:?} in {}", problems(&pitch));
        };
        missing(|p| p.name.clear(), "no name");
        missing(|p| p.name = "fast\nround 2: SUCCESS".into(), "characters that cannot be seen");
        missing(|p| p.contestant = "fast\u{1b}[2K".into(), "characters that cannot be seen");
        missing(|p| p.name = "\u{202e}tsaf".into(), "characters that cannot be seen");
        missing(|p| p.contestant.clear(), "no contestant");
        missing(|p| p.problem = "it is slow".into(), "no number");
        missing(|p| p.solution = "  ".into(), "no solution");
        missing(|p| p.rollback.clear(), "no rollback");
        missing(|p| p.claim = None, "no claim");
        missing(|p| p.claim.as_mut().unwrap().speedup = None, "lacks a number");
        missing(|p| p.claim.as_mut().unwrap().low = Some(2.0), "not an estimate inside");
        missing(|p| p.claim.as_mut().unwrap().high = Some(f64::INFINITY), "not an estimate inside");
        missing(|p| p.claim.as_mut().unwrap().reasoning.clear(), "no reasoning");
        missing(|p| p.complexity = None, "no complexity");
        missing(|p| p.complexity.as_mut().unwrap().hours = 7.0, "not of this level");
        missing(|p| p.risk.clear(), "mitigation, is missing");
        missing(|p| p.risk[0].mitigation.clear(), "mitigation, is missing");
        missing(|p| p.evidence.clear(), "no evidence");
        missing(|p| p.run = None, "nothing to run");
        missing(|p| p.run.as_mut().unwrap().config = Some("tile=1".into()), "tile=1");
        missing(|p| p.run.as_mut().unwrap().program = vec!["./x".into()], "both");
    }

    #[test]
    fn a_wild_card_needs_no_evidence() {
        let pitch = Pitch { kind: Kind::WildCard, evidence: Vec::new(), ..example() };
        assert_eq!(problems(&pitch), "");
    }

    #[test]
    fn a_deal_may_be_stricter_than_the_rules_but_not_looser() {
        let deal = |deal: Deal| problems(&Pitch { deal, ..example() });
        assert_eq!(deal(Deal { min_geomean: Some(1.4), max_loss: Some(0.0), ..Deal::default() }), "");
        assert!(deal(Deal { min_geomean: Some(1.0), ..Deal::default() }).contains("less than the rules"));
        assert!(deal(Deal { max_loss: Some(0.2), ..Deal::default() }).contains("greater loss"));
        let upside_down = Deal { min_geomean: Some(1.2), revert_under: Some(1.3), ..Deal::default() };
        assert!(deal(upside_down).contains("above its own minimum"));
    }

    #[test]
    fn a_missing_part_is_told_with_the_file_and_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        let text = Pitch::example("x").replace("speedup = 1.05", "speedup = 9.0");
        std::fs::write(&path, &text).unwrap();
        let line = text.lines().position(|l| l.starts_with("speedup")).unwrap() + 1;
        let error = Pitch::read_complete(&path, &Settings::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("p.toml, line {line}:")), "{error}");
    }
}
