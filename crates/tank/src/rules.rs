//! The rules by which a pitch is disqualified before anyone votes, and by which a veto's citation is checked.
//!
//! Each rule has a name and is one function, so that a shark can cite it and the tank can look whether it is so.

use crate::court::Baseline;
use crate::entry::Entry;
use crate::event::Event;
use crate::evidence::{Evidence, entry_digest};
use crate::history::{self, Attempt};
use crate::ledger::Record;
use crate::pitch::{Deal, Kind, Pitch};
use crate::settings::Settings;
use crate::shark::Veto;
use crate::tally::Ruling;
use crate::verdict::Verdict;

/// What a rule looks at.
#[derive(Clone, Copy, Debug)]
pub struct Examined<'a> {
    /// The pitch.
    pub pitch: &'a Pitch,
    /// What the tank computed about it.
    pub evidence: &'a Evidence,
    /// The terms it is held to.
    pub deal: &'a Deal,
    /// The numbers of the game.
    pub settings: &'a Settings,
    /// Who is to be beaten.
    pub champion: &'a Entry,
    /// The champion's times.
    pub baseline: &'a Baseline,
    /// Digests of pitches that were brought before this one in the round, with their names.
    pub earlier: &'a [(String, String)],
    /// The machine's fingerprint.
    pub machine: &'a str,
    /// The problems' names.
    pub problems: &'a [String],
    /// The ledger.
    pub records: &'a [Record],
}

/// A rule: says how it is broken, if it is.
type Rule = fn(&Examined<'_>) -> Option<String>;

/// Every rule, in the order in which they are applied.
pub const RULES: [(&str, Rule); 8] = [
    ("complete", complete),
    ("constraint", constraint),
    ("possible", possible),
    ("distinct", distinct),
    ("tried", tried),
    ("minimal", minimal),
    ("memory", memory),
    ("gate", gate),
];

/// Why a pitch is disqualified, if it is: the first rule that it breaks.
pub fn disqualify(examined: &Examined<'_>) -> Option<String> {
    RULES.iter().find_map(|(name, rule)| rule(examined).map(|reason| format!("{name}: {reason}")))
}

/// A pitch has a number, a solution and everything else that is required.
fn complete(examined: &Examined<'_>) -> Option<String> {
    let fault = examined.pitch.faults(examined.settings).into_iter().next()?;
    Some(format!("{}; {}", fault.problem, fault.remedy))
}

/// The backend can run it.
fn constraint(examined: &Examined<'_>) -> Option<String> {
    examined.evidence.refusal.clone()
}

/// It does not claim to beat the roofline.
fn possible(examined: &Examined<'_>) -> Option<String> {
    let (claimed, ..) = examined.pitch.claim.as_ref()?.figures()?;
    let possible = examined.evidence.possible? * (1.0 + examined.settings.roofline_slack);
    (claimed > possible).then(|| {
        format!(
            "{claimed}× is claimed, but at the rates measured on this machine the champion could be beaten by {possible:.2}× at most"
        )
    })
}

/// It runs something else than the champion, and than the pitches before it.
fn distinct(examined: &Examined<'_>) -> Option<String> {
    let digest = &examined.evidence.digest;
    if *digest == entry_digest(examined.champion) {
        return Some("it runs exactly what the champion runs".to_owned());
    }
    let twin = examined.earlier.iter().find(|(_, earlier)| earlier == digest);
    twin.map(|(name, _)| format!("it runs exactly what '{name}' runs"))
}

/// It did not fail before under these conditions, or there is new evidence.
fn tried(examined: &Examined<'_>) -> Option<String> {
    let same = |a: &Attempt| {
        a.digest == examined.evidence.digest
            && a.machine == examined.machine
            && a.problems == examined.problems
            && matches!(a.judgement.verdict, Verdict::Failure | Verdict::Inconclusive)
    };
    let failures: Vec<Attempt> = history::attempts(examined.records).into_iter().filter(same).collect();
    let last = failures.last()?;
    let failed = failures.iter().any(|attempt| attempt.judgement.verdict == Verdict::Failure);
    // Once may have been bad luck.
    if !failed && failures.len() < examined.settings.inconclusive_tries {
        return None;
    }
    let how = if failed { "it failed before" } else { "nothing could be found before, again and again," };
    let news = examined.pitch.new_evidence.trim();
    let known = news.is_empty() || failures.iter().any(|a| a.new_evidence.trim() == news);
    known.then(|| {
        format!(
            "{how} as '{}' (record {}: {}), and new_evidence says nothing that was not known then",
            last.pitch,
            last.record,
            last.judgement.reasons.join("; ")
        )
    })
}

/// A minimal fix is minimal.
fn minimal(examined: &Examined<'_>) -> Option<String> {
    let (changes, limit) = (examined.evidence.changes?, examined.settings.minimal_fix_changes);
    let broken = examined.pitch.kind == Kind::MinimalFix && changes > limit;
    broken
        .then(|| format!("a minimal fix that changes {changes} fields of the configuration, where {limit} may change"))
}

/// It keeps its own deal's ceiling.
fn memory(examined: &Examined<'_>) -> Option<String> {
    let (needed, ceiling) = (examined.evidence.scratch_bytes?, examined.deal.max_scratch_bytes?);
    (needed > ceiling).then(|| format!("it needs {needed} bytes of working memory, and its deal allows {ceiling}"))
}

/// What its deal wants a profile to show is shown, before anything is built.
fn gate(examined: &Examined<'_>) -> Option<String> {
    examined.deal.gates.iter().find_map(|gate| examined.evidence.shut(gate))
}

/// Looks whether what a veto cites is so.
pub fn rule_on(shark: &str, veto: &Veto, examined: &Examined<'_>) -> Ruling {
    let (stands, finding) = match veto.cites.split_once(':').map(|(kind, name)| (kind.trim(), name.trim())) {
        Some(("rule" | "constraint", name)) => cited_rule(name, examined),
        Some(("ledger", record)) => cited_record(record, examined),
        _ => (false, "it cites nothing; write rule:NAME, constraint:NAME or ledger:RECORD".to_owned()),
    };
    let (pitch, cites) = (examined.pitch.name.clone(), veto.cites.clone());
    Ruling { shark: shark.to_owned(), pitch, cites, stands, finding }
}

fn cited_rule(name: &str, examined: &Examined<'_>) -> (bool, String) {
    match RULES.iter().find(|(rule, _)| *rule == name) {
        None => {
            let known: Vec<&str> = RULES.iter().map(|(name, _)| *name).collect();
            (false, format!("there is no rule '{name}'; there are {}", known.join(", ")))
        }
        Some((_, rule)) => match rule(examined) {
            Some(reason) => (true, reason),
            None => (false, format!("the pitch does not break the rule '{name}'")),
        },
    }
}

/// A cited record must be a verdict against what this pitch runs.
fn cited_record(record: &str, examined: &Examined<'_>) -> (bool, String) {
    let Ok(number) = record.parse::<u64>() else {
        return (false, format!("'{record}' is not the number of a record"));
    };
    let Some(record) = examined.records.iter().find(|r| r.n == number) else {
        return (false, format!("the ledger has no record {number}; it ends with {}", examined.records.len()));
    };
    match &record.event {
        Event::Judged(judged) if judged.digest != examined.evidence.digest => {
            (false, format!("record {number} judges '{}', which runs something else", judged.pitch))
        }
        Event::Judged(judged) => match judged.judgement.verdict {
            Verdict::Failure | Verdict::Blocked => {
                (true, format!("record {number}: {}", judged.judgement.reasons.join("; ")))
            }
            other => (false, format!("record {number} is a {other}, not a verdict against it")),
        },
        other => (false, format!("record {number} is a {}, not a verdict", other.name())),
    }
}
