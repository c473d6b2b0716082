//! A research round: nothing is built; what the ledger and the baseline already know is said in words.

use crate::court::Baseline;
use crate::history;
use crate::ledger::Record;

/// What can be learnt without building anything.
pub fn findings(records: &[Record], baseline: &Baseline, level: f64) -> Vec<String> {
    let mut findings = Vec::new();
    for shape in &baseline.shapes {
        if let Some(floor) = shape.floor_seconds.filter(|floor| *floor > 0.0) {
            let bound = match (baseline.flops_per_second, baseline.bytes_per_second) {
                (Some(flops), Some(bytes)) if shape.flops / flops > shape.bytes / bytes => "arithmetic",
                (Some(_), Some(_)) => "memory",
                _ => "the machine",
            };
            findings.push(format!(
                "{}: the baseline takes {:.3} ms, and {bound} allows {:.3} ms, so at most {:.2}× is left",
                shape.problem,
                1e3 * shape.seconds,
                1e3 * floor,
                shape.seconds / floor
            ));
        }
    }
    for (contestant, calibration) in history::contestants(records, level) {
        if let Some(bias) = calibration.bias {
            findings.push(format!(
                "{contestant}: claims were {:.2}× what was measured, over {} pitches",
                bias.exp(),
                calibration.measured
            ));
        }
    }
    let graves = history::graveyard(records);
    let slower = graves.iter().filter(|grave| grave.attempt.judgement.measured.is_some()).count();
    if !graves.is_empty() {
        let wrong = graves.len() - slower;
        findings.push(format!("of {} failures, {slower} were slower and {wrong} wrong or broken", graves.len()));
    }
    findings
}
