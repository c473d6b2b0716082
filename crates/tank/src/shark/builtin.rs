//! The built-in sharks. They see the pitch and what the tank computed about it, and nothing else; the same evidence
//! makes the same scores, and every score says in a sentence where it comes from.
//!
//! The *skeptic* believes the least of what is claimed, predicted and possible, less what the contestant's record takes
//! off. The *pragmatist* asks what ships. The *theorist* asks whether the numbers can be true. *The Performance Oracle*
//! and *The Pragmatic Engineer* are those of the first season, with their criteria; the Oracle has others where it is
//! about being right.
//!
//! In a round about correctness *works* means that it computes the right thing: examinations, the simulator and the
//! assembler say so, and speed says nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Ballot, Criterion, Role, SecondChoice, Shark, Source, Statement, default_criteria};
use crate::evidence::Evidence;
use crate::pitch::{EvidenceKind, Kind, Level, Pitch};
use crate::round::RoundKind;
use crate::settings::Settings;

/// How far a prediction of the analytic model, or of a claim, is typically off: the standard deviation of its
/// logarithm.
const MODEL_ERROR: f64 = 0.15;
/// Points from which a criterion is a strength, and up to which it is a weakness.
const STRONG: f64 = 7.0;
const WEAK: f64 = 4.0;
/// Parts that the work has: bringing tokens into order, two products, and the gate. A kernel that does several of them
/// has to keep them apart; more kernels than parts are launches whose order has to be right as well.
const PARTS: f64 = 4.0;
/// Working memory beyond which a pragmatist begins to worry, in bytes.
const ROOMY: f64 = 16e6;

/// A built-in shark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    /// Believes the least.
    Skeptic,
    /// Asks what ships.
    Pragmatist,
    /// Asks whether it can be true.
    Theorist,
    /// The first season's first shark.
    Oracle,
    /// The first season's second shark.
    Engineer,
}

/// Points and their reason.
type Scored = (f64, String);

impl Which {
    /// Those that judge where a season names none.
    pub const ALL: [Which; 3] = [Which::Skeptic, Which::Pragmatist, Which::Theorist];
    /// Everyone that a season may name.
    pub const KNOWN: [Which; 5] = [Which::Skeptic, Which::Pragmatist, Which::Theorist, Which::Oracle, Which::Engineer];

    /// What a season's file calls it; the temperament too.
    pub fn name(self) -> &'static str {
        match self {
            Which::Skeptic => "skeptic",
            Which::Pragmatist => "pragmatist",
            Which::Theorist => "theorist",
            Which::Oracle => "oracle",
            Which::Engineer => "engineer",
        }
    }

    /// Its full name, who it is, and what it goes by.
    fn introduced(self) -> [&'static str; 3] {
        match self {
            Which::Skeptic => [
                "skeptic",
                "believes the least of what is claimed, predicted and possible",
                "show me the second measurement",
            ],
            Which::Pragmatist => {
                ["pragmatist", "asks what ships, and who will have to debug it", "what ships is what counts"]
            }
            Which::Theorist => [
                "theorist",
                "asks whether the numbers can be true before anyone measures them",
                "first the roofline, then the roof",
            ],
            Which::Oracle => [
                "The Performance Oracle",
                "judges by the clock alone; once voted three times for what turned out wrong, and says so",
                "wall-clock, nothing else",
            ],
            Which::Engineer => [
                "The Pragmatic Engineer",
                "has seen elegant theories fail to build, and prefers what can be debugged on a Friday",
                "working code beats elegant theory",
            ],
        }
    }

    /// The shark.
    pub fn shark(self) -> Shark {
        let criteria = |list: [(&str, f64, Role); 4]| {
            list.map(|(name, weight, role)| Criterion { name: name.to_owned(), weight, role }).to_vec()
        };
        let works = [
            ("probability of working", 0.40, Role::Risk),
            ("simplicity", 0.30, Role::Complexity),
            ("performance", 0.20, Role::Speedup),
            ("debugging", 0.10, Role::Other),
        ];
        let ships = [
            ("ships", 0.40, Role::Risk),
            ("debuggability", 0.25, Role::Other),
            ("simplicity", 0.20, Role::Complexity),
            ("upgrade path", 0.15, Role::Other),
        ];
        let [name, character, motto] = self.introduced().map(str::to_owned);
        Shark {
            name,
            temperament: self.name().into(),
            character,
            motto,
            criteria: match self {
                Which::Skeptic => default_criteria(),
                Which::Pragmatist | Which::Engineer => criteria(ships),
                Which::Theorist => criteria(works),
                Which::Oracle => criteria([
                    ("expected speedup", 0.40, Role::Speedup),
                    ("feasibility", 0.25, Role::Complexity),
                    ("risk", 0.20, Role::Risk),
                    ("pitch quality", 0.15, Role::Quality),
                ]),
            },
            criteria_in: match self {
                Which::Oracle | Which::Skeptic => [(RoundKind::Correctness, criteria(works))].into(),
                _ => BTreeMap::new(),
            },
            source: Source::Builtin { which: self },
        }
    }

    /// Its ballot on a pitch, by the criteria that it has in a round of this kind.
    pub fn ballot(
        self,
        criteria: &[Criterion],
        kind: RoundKind,
        pitch: &Pitch,
        evidence: &Evidence,
        settings: &Settings,
    ) -> Ballot {
        let judged = Judged { kind, pitch, evidence, settings };
        let expects = if self == Which::Skeptic { judged.least() } else { judged.middle() };
        let mut ballot = Ballot { pitch: pitch.name.clone(), ..Ballot::default() };
        for Criterion { name, .. } in criteria {
            let (points, because) = judged.score(name, &expects);
            let points = round(points.clamp(0.0, 10.0));
            if points >= STRONG {
                ballot.strengths.push(format!("{name}: {because}"));
            } else if points <= WEAK {
                ballot.weaknesses.push(format!("{name}: {because}"));
            }
            ballot.scores.insert(name.clone(), points);
            ballot.because.insert(name.clone(), because);
        }
        ballot.expects = Some(round(expects.0));
        ballot.probability = Some(round(match kind {
            RoundKind::Correctness => judged.is_right().0,
            _ => chance(expects.0, 1.0 + settings.margin()),
        }));
        ballot
    }

    /// What it says beside its ballots: why not the others, and what it would take instead.
    pub fn statement(self, shark: &Shark, ballots: &[Ballot]) -> Statement {
        let mut ranked: Vec<(f64, &Ballot)> =
            ballots.iter().filter_map(|ballot| Some((shark.total(ballot)?, ballot))).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let worst = |ballot: &Ballot| {
            let lowest = ballot.scores.iter().min_by(|a, b| a.1.total_cmp(b.1))?;
            Some((ballot.pitch.clone(), format!("{} {}: {}", lowest.0, lowest.1, ballot.because.get(lowest.0)?)))
        };
        let second = ranked.get(1).map(|(_, ballot)| SecondChoice {
            pitch: ballot.pitch.clone(),
            conditions: match ballot.weaknesses.as_slice() {
                [] => vec!["only where the first choice fails".to_owned()],
                weak => weak.iter().map(|weak| format!("only if it holds in spite of {weak}")).collect(),
            },
        });
        Statement {
            motto: shark.motto.clone(),
            why_not: ranked.iter().skip(1).filter_map(|(_, ballot)| worst(ballot)).collect(),
            second,
            ..Statement::default()
        }
    }
}

/// Three decimals, so that ballots read as what they are.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The chance that a speedup expected to be this is above a threshold, its logarithm being off by [`MODEL_ERROR`]. The
/// logistic curve is near enough to the normal one for a judge.
fn chance(expected: f64, threshold: f64) -> f64 {
    let deviations = (expected / threshold).ln() / MODEL_ERROR;
    1.0 / (1.0 + (-1.702 * deviations).exp())
}

/// A pitch before a built-in shark.
struct Judged<'a> {
    kind: RoundKind,
    pitch: &'a Pitch,
    evidence: &'a Evidence,
    settings: &'a Settings,
}

impl Judged<'_> {
    /// Points on a criterion. Whoever expects little expects it everywhere.
    fn score(&self, criterion: &str, expects: &(f64, String)) -> Scored {
        match criterion {
            "speedup" | "expected speedup" | "performance" => self.speedup(expects.clone()),
            "complexity" | "feasibility" => self.complexity(),
            "risk" => self.risk(),
            "ships" => self.ships(),
            "debuggability" | "debugging" => self.debuggability(),
            "simplicity" => self.simplicity(),
            "upgrade path" => self.upgrade_path(),
            "probability of working" => self.works(),
            _ => self.quality(),
        }
    }

    fn claim(&self) -> f64 {
        let figures = self.pitch.claim.as_ref().and_then(|claim| claim.figures());
        figures.map_or(1.0, |(speedup, ..)| speedup)
    }

    /// What is left of a claim when the contestant's record is taken off, if it has one that promises too much.
    fn discounted(&self, claim: f64) -> f64 {
        let record = &self.evidence.record;
        // A single pitch is weak evidence, so a record counts by how long it is.
        let weight = record.measured as f64 / (record.measured as f64 + 1.0);
        claim * (-weight * record.bias.max(0.0)).exp()
    }

    /// The least of what is claimed, predicted and possible, and where it comes from.
    fn least(&self) -> (f64, String) {
        let claimed = (self.discounted(self.claim()), "the claim, less what the record takes off".to_owned());
        let predicted = self.evidence.predicted.map(|p| (p, "the model's prediction".to_owned()));
        let possible = self.evidence.possible.map(|p| (p, "what the roofline allows".to_owned()));
        [Some(claimed), predicted, possible]
            .into_iter()
            .flatten()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((1.0, String::new()))
    }

    /// Halfway between claim and prediction, within what the roofline allows.
    fn middle(&self) -> (f64, String) {
        let claim = self.discounted(self.claim());
        let (value, from) = match self.evidence.predicted {
            Some(predicted) => ((claim * predicted).sqrt(), "halfway between the claim and the model's prediction"),
            // Claims of what cannot be predicted are believed by half.
            None => (claim.sqrt(), "half of the claim, which no model can predict"),
        };
        match self.evidence.possible {
            Some(possible) if possible < value => (possible, "what the roofline allows".to_owned()),
            _ => (value, from.to_owned()),
        }
    }

    fn speedup(&self, (value, from): (f64, String)) -> Scored {
        (self.settings.rubric_points(value), format!("{value:.2}× is {from}"))
    }

    fn complexity(&self) -> Scored {
        let complexity = self.pitch.complexity.as_ref();
        let hours = complexity.map_or(self.settings.medium_hours, |c| c.hours);
        let points = match complexity.map(|c| c.level) {
            Some(Level::Low) => 10.0 - hours / self.settings.low_hours,
            Some(Level::Medium) => 8.0 - hours / self.settings.medium_hours * 3.0,
            _ => (5.0 - hours / self.settings.medium_hours).max(0.0),
        };
        (points, format!("{hours} hours of work are estimated"))
    }

    /// Kernels that the simulator counts, where it is about being right: what one of them writes can be compared with
    /// the reference by itself.
    fn steps(&self) -> Option<f64> {
        let counted = self.evidence.figures.get("kernels").copied();
        counted.filter(|_| self.kind == RoundKind::Correctness)
    }

    fn simplicity(&self) -> Scored {
        // How little it changes says nothing where the champion is wrong.
        if let Some(kernels) = self.steps() {
            let further = (kernels - PARTS).max(0.0);
            let points = 4.0 + 1.25 * kernels.min(PARTS) - 0.5 * further;
            let words = if further > 0.0 {
                format!("its {PARTS} parts have a kernel each, and {further} more have to be in order")
            } else {
                format!("its {PARTS} parts are in {kernels} kernels")
            };
            return (points, words);
        }
        match self.evidence.changes {
            Some(changes) => (10.0 - 1.5 * changes as f64, format!("it changes {changes} fields of the configuration")),
            None => (4.0, "it is another program, whose size the tank cannot see".into()),
        }
    }

    /// Safe is what changes little, needs little, and whose risks have mitigations.
    fn risk(&self) -> Scored {
        let (simplicity, _) = self.simplicity();
        let memory = self.memory_points();
        let points = 0.5 * simplicity + 0.5 * memory - 0.5 * (self.pitch.risk.len().saturating_sub(1)) as f64;
        let because = format!("{} risks are named, and {}", self.pitch.risk.len(), self.memory_words());
        (points, because)
    }

    fn memory_points(&self) -> f64 {
        let bytes = self.evidence.scratch_bytes.map_or(ROOMY, |bytes| bytes as f64);
        10.0 - 2.0 * (bytes / ROOMY).max(1.0).log2()
    }

    fn memory_words(&self) -> String {
        self.evidence.scratch_bytes.map_or_else(
            || "its memory is not known".into(),
            |bytes| format!("it works in {:.1} MB", bytes as f64 / 1e6),
        )
    }

    /// Evidence of more kinds, a narrow interval and a reasoned claim make a good pitch.
    fn quality(&self) -> Scored {
        let has = |kind| self.pitch.evidence.iter().any(|e| e.kind == kind);
        let strong = [EvidenceKind::PriorSuccess, EvidenceKind::Profile].into_iter().filter(|&k| has(k)).count();
        let weak = [EvidenceKind::Literature, EvidenceKind::Theory].into_iter().filter(|&k| has(k)).count();
        let width = self.pitch.claim.as_ref().and_then(|c| c.figures()).map_or(2.0, |(_, low, high)| high / low);
        let narrow = if width < 1.3 {
            2.0
        } else if width < 2.0 {
            1.0
        } else {
            0.0
        };
        let points = 3.0 + 2.0 * strong as f64 + 1.0 * weak as f64 + narrow;
        (points, format!("{} kinds of evidence, and an interval {width:.2} wide", strong + weak))
    }

    fn ships(&self) -> Scored {
        let (chance, why) = self.chance_of_working();
        let record = &self.evidence.record;
        let shipped = (record.successes as f64 + 1.0) / (record.judged as f64 + 2.0);
        let points = 10.0 * (0.7 * chance + 0.3 * shipped);
        let because = format!(
            "a chance of {:.0} % ({why}), and {} of {} earlier pitches shipped",
            100.0 * chance,
            record.successes,
            record.judged
        );
        (points, because)
    }

    fn debuggability(&self) -> Scored {
        if let Some(kernels) = self.steps() {
            // What parts leave behind can be compared; cut any further there is nothing new to look at.
            let points = 3.0 + 1.75 * kernels.min(PARTS);
            return (points, format!("the results of {kernels} kernels can be compared one by one"));
        }
        match (&self.evidence.changes, self.pitch.kind) {
            (_, Kind::MinimalFix) => (10.0, "a minimal fix is its own explanation".into()),
            (Some(_), _) => (8.0, "one of our configurations, which the tester and the simulator know".into()),
            (None, _) => (4.0, "a program that only its author can look into".into()),
        }
    }

    fn upgrade_path(&self) -> Scored {
        match &self.evidence.changes {
            Some(_) => (8.0, "the planner can use it at once, and the tuning cache can forget it".into()),
            None => (4.0, "it would have to be written again as a backend".into()),
        }
    }

    fn works(&self) -> Scored {
        let (chance, why) = self.chance_of_working();
        (10.0 * chance, format!("{why}, so the chance is {:.0} %", 100.0 * chance))
    }

    /// The chance that it does what the round is about: that it is faster, or that it is right.
    fn chance_of_working(&self) -> (f64, String) {
        if self.kind == RoundKind::Correctness {
            return self.is_right();
        }
        let (expected, from) = self.middle();
        (chance(expected, 1.0 + self.settings.margin()), format!("{expected:.2}× is {from}"))
    }

    /// The chance that it computes the right thing, by everything that was found without a clock: an examination of
    /// this very thing, else a tile in the simulator, less what could still go wrong on silicon; of what no one has
    /// looked at, its kind.
    fn is_right(&self) -> (f64, String) {
        let Evidence { examined, simulated, simulated_wrong, changes, .. } = self.evidence;
        match (examined, simulated_wrong) {
            (Some((true, record)), _) => (0.98, format!("it was examined before and was right (record {record})")),
            (Some((false, record)), _) => (0.02, format!("it was examined before and was wrong (record {record})")),
            (None, Some(wrong)) => (0.02, format!("the simulator says: {wrong}")),
            (None, None) if !simulated.is_empty() => {
                let (left, doubts) = self.doubts_on_silicon();
                (left, format!("the simulator finds a tile right; {doubts}"))
            }
            (None, None) if changes.is_some() => {
                (0.9, "one of our configurations, which the tester asks every case".to_owned())
            }
            (None, None) => (0.5, "a program that nobody has examined".to_owned()),
        }
    }

    /// What is left of the chance that a kernel which is right in the simulator is right on silicon: every kernel that
    /// does several things between barriers has more orders in which they can happen, and one that spills or fills
    /// shared memory has no room to mend it.
    fn doubts_on_silicon(&self) -> (f64, String) {
        let figure = |name: &str| self.evidence.figures.get(name).copied().unwrap_or(0.0);
        let kernels = figure("kernels").max(1.0);
        let ordered = (figure("barriers and fences") / kernels).max(1.0);
        let mut left = 0.95 - 0.03 * ordered.log2();
        let mut doubts = vec![format!("{ordered:.0} barriers and fences per kernel")];
        for (name, most, doubt) in [("spilled bytes", 0.0, 0.1), ("shared memory", 200e3, 0.05)] {
            if figure(name) > most {
                left -= doubt;
                doubts.push(format!("{name} {:.0}", figure(name)));
            }
        }
        (left.clamp(0.1, 0.95), doubts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::TrackRecord;
    use crate::pitch::Claim;

    fn pitch() -> Pitch {
        toml::from_str(&Pitch::example("p")).unwrap()
    }

    fn claiming(speedup: f64) -> Pitch {
        let (low, high) = (Some(speedup * 0.8), Some(speedup * 1.2));
        let claim = Claim { speedup: Some(speedup), low, high, reasoning: "x".into(), ..Claim::default() };
        Pitch { claim: Some(claim), ..pitch() }
    }

    fn evidence(predicted: Option<f64>, record: TrackRecord) -> Evidence {
        Evidence {
            entry: None,
            digest: String::new(),
            refusal: None,
            shapes: Vec::new(),
            predicted,
            possible: Some(3.0),
            changes: predicted.map(|_| 2),
            scratch_bytes: Some(1 << 20),
            simulated: Vec::new(),
            simulated_wrong: None,
            examined: None,
            assembled: Vec::new(),
            phases: Vec::new(),
            phases_by: String::new(),
            survived: 0,
            figures: Default::default(),
            record,
        }
    }

    fn total(which: Which, pitch: &Pitch, evidence: &Evidence) -> f64 {
        let settings = Settings::default();
        let shark = which.shark();
        let ballot = which.ballot(&shark.criteria, RoundKind::Regular, pitch, evidence, &settings);
        shark.check().unwrap();
        shark.check_ballots(std::slice::from_ref(&ballot), std::slice::from_ref(&pitch.name), &settings).unwrap();
        assert_eq!(
            ballot,
            which.ballot(&shark.criteria, RoundKind::Regular, pitch, evidence, &settings),
            "the same evidence makes the same ballot"
        );
        assert!(ballot.scores.keys().all(|name| !ballot.because[name].is_empty()), "every score is explained");
        shark.total(&ballot).unwrap()
    }

    #[test]
    fn built_in_ballots_are_valid_and_follow_the_model() {
        for which in Which::ALL {
            let of = |predicted| total(which, &claiming(1.5), &evidence(Some(predicted), TrackRecord::default()));
            assert!(of(1.3) > of(1.0) && of(1.0) >= of(0.7), "{which:?}");
        }
    }

    #[test]
    fn the_oracle_judges_by_other_criteria_where_it_is_about_being_right() {
        let oracle = Which::Oracle.shark();
        let names = |kind| oracle.in_round(kind).criteria.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(RoundKind::Regular)[0], "expected speedup");
        assert_eq!(names(RoundKind::Correctness)[0], "probability of working");
        assert_eq!(names(RoundKind::WildCard), names(RoundKind::Regular));
    }

    #[test]
    fn where_it_is_about_being_right_speed_says_nothing_about_working() {
        let counted = |count| {
            let counter = |what: &str, count| crate::evidence::Counter { what: what.to_owned(), count };
            let simulated = vec![counter("kernels", 1), counter("barriers and fences", count)];
            let figures = simulated.iter().map(|c| (c.what.clone(), c.count as f64)).collect();
            move |predicted| Evidence {
                simulated: simulated.clone(),
                figures: Clone::clone(&figures),
                ..evidence(Some(predicted), TrackRecord::default())
            }
        };
        for (which, criterion) in [(Which::Oracle, "probability of working"), (Which::Engineer, "ships")] {
            let criteria = which.shark().in_round(RoundKind::Correctness).criteria;
            let of = |evidence: &Evidence| {
                let ballot = which.ballot(&criteria, RoundKind::Correctness, &pitch(), evidence, &Settings::default());
                (ballot.scores[criterion], ballot.probability.unwrap())
            };
            let (slow, fast) = (of(&counted(8)(0.8)), of(&counted(8)(3.0)));
            assert_eq!(slow, fast, "{which:?}");
            assert!(slow.0 > 7.0 && of(&counted(512)(3.0)).0 < slow.0, "more that can happen in another order");
            let wrong = Evidence { simulated_wrong: Some("c[0, 0] is 1, not 2".into()), ..counted(8)(3.0) };
            let examined = |right| Evidence { examined: Some((right, 7)), ..counted(512)(0.8) };
            assert!(of(&wrong).0 < 3.0 && of(&wrong).1 < 0.1);
            assert!(of(&examined(true)).0 > slow.0 && of(&examined(false)).0 < 3.0);
        }
    }

    #[test]
    fn a_kernel_per_part_is_as_simple_as_it_gets_and_more_launches_are_not_simpler() {
        let criteria = Which::Oracle.shark().in_round(RoundKind::Correctness).criteria;
        let of = |kernels: f64| {
            let figures = [("kernels".to_owned(), kernels)].into();
            let evidence = Evidence { figures, ..evidence(Some(1.0), TrackRecord::default()) };
            let ballot =
                Which::Oracle.ballot(&criteria, RoundKind::Correctness, &pitch(), &evidence, &Settings::default());
            assert!(ballot.because["simplicity"].contains("parts"), "{:?}", ballot.because);
            [ballot.scores["simplicity"], ballot.scores["debugging"]]
        };
        let (one, parts, more, many) = (of(1.0), of(4.0), of(5.0), of(12.0));
        assert!(one[0] < parts[0] && parts[0] > more[0] && more[0] > many[0], "{one:?} {parts:?} {more:?} {many:?}");
        assert!(one[1] < parts[1] && parts[1] == many[1]);
    }

    #[test]
    fn a_statement_names_a_second_choice_with_conditions_and_says_why_not_the_others() {
        let shark = Which::Engineer.shark();
        let (mut a, mut b) = (claiming(1.5), claiming(1.1));
        (a.name, b.name) = ("a".into(), "b".into());
        let ballots = [&a, &b].map(|pitch| {
            let predicted = if pitch.name == "a" { 1.4 } else { 0.9 };
            Which::Engineer.ballot(
                &shark.criteria,
                RoundKind::Regular,
                pitch,
                &evidence(Some(predicted), TrackRecord::default()),
                &Settings::default(),
            )
        });
        let said = Which::Engineer.statement(&shark, &ballots);
        let second = said.second.unwrap();
        assert_eq!((second.pitch.as_str(), said.motto.as_str()), ("b", "working code beats elegant theory"));
        assert!(!second.conditions.is_empty() && said.why_not.contains_key("b") && !said.why_not.contains_key("a"));
    }

    #[test]
    fn a_contestant_who_promises_too_much_is_believed_less() {
        let loud = claiming(2.0);
        let record = TrackRecord { judged: 4, successes: 0, measured: 4, bias: 0.7 };
        for which in Which::KNOWN {
            let fresh = total(which, &loud, &evidence(None, TrackRecord::default()));
            assert!(total(which, &loud, &evidence(None, record.clone())) < fresh, "{which:?}");
        }
    }

    #[test]
    fn nothing_is_expected_beyond_the_roofline() {
        let bound = Evidence { possible: Some(1.02), ..evidence(Some(2.0), TrackRecord::default()) };
        let (criteria, kind) = (Which::Theorist.shark().criteria, RoundKind::Regular);
        let ballot = Which::Theorist.ballot(&criteria, kind, &pitch(), &bound, &Settings::default());
        assert!(ballot.expects.unwrap() <= 1.02);
    }

    #[test]
    fn a_chance_is_half_at_the_threshold_and_grows_with_what_is_expected() {
        assert!((chance(1.01, 1.01) - 0.5).abs() < 1e-12);
        assert!(chance(1.3, 1.01) > 0.9 && chance(0.8, 1.01) < 0.1);
    }
}
