//! The verdict on a pitch: from what the referee found, by the rules and by the pitch's own deal terms.

use std::fmt;

use referee::contestant::Fault;
use referee::{Correctness, Outcome, Side, Sitting, Speedup, Temperature, Terms};
use serde::{Deserialize, Serialize};

use crate::pitch::Deal;
use crate::settings::Settings;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Correct, faster by more than the margin, no problem much slower, deal terms met.
    Success,
    /// Wrong, slower, or does not build.
    Failure,
    /// A rule or the environment stood in the way.
    Blocked,
    /// Mixed: a person decides.
    Partial,
    /// Not known; the champion stays.
    Inconclusive,
    /// The sitting's own controls failed.
    Void,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Success => "SUCCESS",
            Verdict::Failure => "FAILURE",
            Verdict::Blocked => "BLOCKED",
            Verdict::Partial => "PARTIAL",
            Verdict::Inconclusive => "INCONCLUSIVE",
            Verdict::Void => "VOID",
        })
    }
}

/// A verdict with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, the decisive reason first.
    pub reasons: Vec<String>,
    /// The published speedup, where there is one: the geometric mean over the problems.
    pub measured: Option<Speedup>,
}

impl Judgement {
    /// A verdict for one reason, without a figure.
    pub fn because(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self { verdict, reasons: vec![reason.into()], measured: None }
    }
}

/// What a referee is asked to hold a sitting to. The margin of the rules is in the referee's own settings.
pub fn terms(deal: &Deal, settings: &Settings) -> Terms {
    Terms {
        least_gain: deal.min_geomean.map(|least| least - 1.0),
        most_loss: deal.max_loss,
        probe_loss: deal.staged.unwrap_or(false).then_some(settings.probe_loss),
        budget_seconds: None,
    }
}

/// What an examination alone decides: a challenger that is wrong, broken or unsupported is never timed.
pub fn of_examination(examined: &Correctness) -> Option<Judgement> {
    if let Some(fault @ Fault::Unsupported { .. }) = &examined.fault {
        return Some(Judgement::because(Verdict::Blocked, fault.to_string()));
    }
    if let Some(fault) = &examined.fault {
        return Some(Judgement::because(Verdict::Failure, format!("it failed before it was timed: {fault}")));
    }
    if let Some(wrong) = examined.wrong.first() {
        let more = examined.wrong.len() - 1;
        let reason = format!("wrong on {} ({}): {}; nothing is timed", wrong.case, wrong.inputs, wrong.what);
        let reason = if more > 0 { format!("{reason}, and wrong on {more} more") } else { reason };
        return Some(Judgement::because(Verdict::Failure, reason));
    }
    (!examined.passed()).then(|| {
        let why = examined.unsupported.first().map_or("no problem could be computed", String::as_str);
        Judgement::because(Verdict::Blocked, format!("it supports none of the problems: {why}"))
    })
}

/// What a sitting decides, under the deal and with the memory that the pitch is known to need.
pub fn of_sitting(sitting: &Sitting, deal: &Deal, scratch_bytes: Option<usize>, settings: &Settings) -> Judgement {
    let temperature = sitting.settings.timing.decides;
    let measured = sitting.published().map(|m| m.at(temperature).geomean);
    let judge = |verdict, reason: String| Judgement { verdict, reasons: vec![reason], measured };
    let mut judgement = match &sitting.outcome {
        Outcome::Void { why } => Judgement { verdict: Verdict::Void, reasons: why.clone(), measured: None },
        Outcome::Faulted { side: Side::Champion, fault } => {
            judge(Verdict::Void, format!("the champion failed while the clock ran: {fault}"))
        }
        Outcome::Faulted { side: Side::Challenger, fault } => {
            judge(Verdict::Failure, format!("it failed while the clock ran: {fault}"))
        }
        Outcome::Slower => judge(Verdict::Failure, format!("slower: {}", told(measured))),
        Outcome::Stopped { shape, loss } => {
            let reason =
                format!("the quick probe found {shape} {:.1} % slower, so the rest was called off", 100.0 * loss);
            judge(Verdict::Failure, reason)
        }
        Outcome::Mixed { shapes } => {
            let reason = format!("{} on the whole, but too slow on {}", told(measured), shapes.join(", "));
            judge(Verdict::Partial, reason)
        }
        Outcome::Inconclusive { why } => judge(Verdict::Inconclusive, why.clone()),
        Outcome::Faster if sitting.course.foretold.is_some() => judge(Verdict::Success, told(measured)),
        Outcome::Faster => judge(Verdict::Success, format!("{} in the second sitting, with new seeds", told(measured))),
    };
    if let Some(device) = &sitting.course.foretold {
        judgement.reasons.insert(0, format!("predicted for a {device} by the model, not measured"));
    }
    apply_deal(&mut judgement, sitting, deal, scratch_bytes, settings);
    judgement
}

fn told(measured: Option<Speedup>) -> String {
    measured.map_or_else(|| "no figure".to_owned(), |m| m.to_string())
}

/// Deal terms bind a pitch beyond the rules: one that is faster but breaks its own word is no SUCCESS.
fn apply_deal(
    judgement: &mut Judgement,
    sitting: &Sitting,
    deal: &Deal,
    scratch_bytes: Option<usize>,
    settings: &Settings,
) {
    let Some(measured) = judgement.measured else { return };
    if let Some(revert) = deal.revert_under.filter(|revert| measured.high < *revert) {
        if judgement.verdict != Verdict::Failure {
            judgement.reasons.insert(0, "the deal's own terms revert it".to_owned());
        }
        judgement.verdict = Verdict::Failure;
        judgement.reasons.push(format!("the deal reverts under {revert}×, and {measured} is under it"));
    } else if let Some(least) = deal.min_geomean.filter(|least| measured.low < *least) {
        judgement.reasons.push(format!("the deal asks for {least}×, and {measured} does not clear it"));
        // Faster by the rules, yet not as promised: that is mixed, unless it is not even known to be faster.
        let margin = control_noise(sitting).max(settings.margin());
        if matches!(judgement.verdict, Verdict::Success | Verdict::Inconclusive) && measured.low > 1.0 + margin {
            judgement.verdict = Verdict::Partial;
        }
    }
    if let (Some(ceiling), Some(needed)) = (deal.max_scratch_bytes, scratch_bytes)
        && needed > ceiling
    {
        judgement.reasons.push(format!("the deal allows {ceiling} bytes of working memory, and it needs {needed}"));
        if judgement.verdict == Verdict::Success {
            judgement.verdict = Verdict::Partial;
        }
    }
}

/// What the champion seemed to gain or lose against itself.
fn control_noise(sitting: &Sitting) -> f64 {
    let control = sitting.control.as_ref().map(|control| &control.measurement);
    control.map_or(0.0, |m| m.at(sitting.settings.timing.decides).geomean.estimate.ln().abs())
}

/// The figures of a sitting that may be published, at the temperature that decides.
pub fn published(sitting: &Sitting) -> Option<&referee::Summary> {
    sitting.published().map(|m| m.at(sitting.settings.timing.decides))
}

/// The figures at the other temperature, for the report.
pub fn beside(sitting: &Sitting) -> Option<&referee::Summary> {
    let other = match sitting.settings.timing.decides {
        Temperature::Cold => Temperature::Warm,
        Temperature::Warm => Temperature::Cold,
    };
    sitting.published().map(|m| m.at(other))
}
