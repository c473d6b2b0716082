//! What a season's story rests on: the examination, the controls, the guards, the ledger's records, and how well each
//! claim and each vote held.

use std::collections::BTreeMap;

use page::{escape, table};
use referee::Speedup;

use super::super::{AttemptReport, Report, figure, interval, percent};
use crate::entry::Entry;
use crate::history::Calibration;

/// What was examined, and the terms that were agreed on.
pub fn examination(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .attempts
        .iter()
        .map(|attempt| {
            let found = attempt.examined.as_ref();
            let precision = found.map_or("—".to_owned(), |found| {
                let theirs = found
                    .champion_precision
                    .map(|p| format!(", the champion’s {:.1} %", 100.0 * p.rms))
                    .unwrap_or_default();
                format!("{:.1} %{theirs}", 100.0 * found.precision.rms)
            });
            let passed = found.map_or("not examined", |found| if found.passed() { "right" } else { "not right" });
            vec![
                escape(&attempt.pitch),
                passed.to_owned(),
                found.map_or("—".to_owned(), |found| found.cases.to_string()),
                found.map_or("—".to_owned(), |found| found.compared.to_string()),
                precision,
                escape(&deal(attempt)),
            ]
        })
        .collect();
    let about = "<p class=\"fine\">Nothing is timed that is not right. Errors are root mean squares against float64, in percent of the derived bound.</p>\n";
    let head = ["pitch", "examined", ">problems", ">elements", ">errors of the bound", "deal"];
    format!("{about}{}", table(&head, &rows))
}

/// A deal in words.
fn deal(attempt: &AttemptReport) -> String {
    let deal = &attempt.deal;
    let mut terms: Vec<String> = Vec::new();
    terms.extend(deal.min_geomean.map(|least| format!("at least {least}×")));
    terms.extend(deal.revert_under.map(|under| format!("reverted under {under}×")));
    terms.extend(deal.max_loss.map(|loss| format!("no problem more than {:.0} % slower", 100.0 * loss)));
    terms.extend(deal.max_scratch_bytes.map(|bytes| format!("at most {bytes} bytes of working memory")));
    terms.extend(deal.staged.filter(|staged| *staged).map(|_| "a quick probe first".to_owned()));
    terms.extend(deal.gates.iter().map(|gate| format!("a gate on {}", gate.figure)));
    terms.extend(attempt.funder.as_ref().map(|name| format!("funded by {name}")));
    if terms.is_empty() { "the rules".to_owned() } else { terms.join("; ") }
}

/// The guards that stood around strangers.
pub fn guards(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for guard in report.attempts.iter().flat_map(|attempt| &attempt.guards) {
        let present = if guard.present { "there".to_owned() } else { "<strong>missing</strong>".to_owned() };
        let row =
            vec![escape(&guard.name), present, if guard.present { String::new() } else { escape(&guard.without) }];
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    if rows.is_empty() {
        "<p>Only configurations of our own backends competed, which are trusted code.</p>\n".to_owned()
    } else {
        table(&["guard", "", "open without it"], &rows)
    }
}

/// How well claims and votes held, over the whole ledger.
pub fn calibration(report: &Report) -> String {
    let row = |(name, c): (&String, &Calibration)| {
        vec![
            escape(name),
            c.judged.to_string(),
            c.successes.to_string(),
            figure(c.bias.map(f64::exp)),
            figure(c.log_error),
            percent(c.coverage),
            figure(c.brier),
        ]
    };
    let head = ["who", ">judged", ">successes", ">said / found", ">log error", ">intervals held", ">Brier score"];
    let rows = |of: &BTreeMap<String, Calibration>| of.iter().map(row).collect::<Vec<_>>();
    format!(
        "<p class=\"fine\">Over the whole ledger. Said over found above 1 is too much promised; intervals should hold 80 %; \
         a Brier score of 0 is perfect and 0.25 a coin.</p>\n<h3>Contestants</h3>\n{}<h3>Sharks</h3>\n{}",
        table(&head, rows(&report.contestants)),
        table(&head, rows(&report.sharks))
    )
}

/// What failed, and under which conditions it may be tried again.
pub fn graveyard(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .graveyard
        .iter()
        .map(|g| {
            let attempt = &g.attempt;
            let place = format!(
                "{} <span class=\"fine\">(season {}, record {})</span>",
                escape(&attempt.pitch),
                attempt.season,
                attempt.record
            );
            vec![place, escape(&g.promise), escape(&g.reality), escape(&g.assumption), escape(&g.again)]
        })
        .collect();
    let head = ["pitch", "promise", "reality", "the wrong assumption", "may be tried again"];
    table(&head, &rows)
}

/// Every sitting's checks on itself.
pub fn controls(report: &Report) -> String {
    let (mut rows, mut devices) = (Vec::new(), String::new());
    for attempt in &report.attempts {
        for control in &attempt.controls {
            if let Some(device) = &control.device {
                let (pitch, device) = (escape(&attempt.pitch), escape(&device.to_string()));
                devices += &format!("<p class=\"fine\">{pitch}: by the clock of {device}.</p>\n");
            }
            let told = |speedup: &Option<Speedup>| speedup.as_ref().map_or("—".to_owned(), interval);
            rows.push(vec![
                escape(&attempt.pitch),
                told(&control.same),
                told(&control.planted),
                if control.passed { "held".to_owned() } else { "<strong>failed: VOID</strong>".to_owned() },
                format!("{:.1} %", 100.0 * control.margin),
                told(&control.fence),
                control.scout.as_ref().map_or("—".to_owned(), |scout| format!("{:.1} %", 100.0 * scout.sees)),
                format!("{:.0} s", control.waited_seconds),
            ]);
        }
    }
    if let Some(device) = &report.foretold {
        let device = escape(device);
        return format!(
            "<p>Nothing was timed: a {device} is not there, so there was no sitting to be controlled.</p>\n"
        );
    }
    let about = "<p class=\"fine\">Every sitting begins with the champion against itself, which must show no difference, and with a planted \
                 slowdown of 5 %, which must be found.</p>\n";
    let head = [
        "sitting of",
        ">champion against itself",
        ">planted slowdown",
        "controls",
        ">margin",
        ">fence costs",
        ">could see",
        ">waited",
    ];
    format!("{about}{}{devices}", table(&head, &rows))
}

/// The machine, what the champion runs, seeds and records.
pub fn provenance(report: &Report) -> String {
    let machine = &report.machine;
    let mut body = format!(
        "<p>{}, {} cores, {} GiB, {} {}; {}. Fingerprint <code>{}</code>. hammerhead {}.</p>\n",
        escape(&machine.cpu),
        machine.cores,
        machine.memory_gib,
        machine.arch,
        machine.os,
        escape(&machine.caches.join(", ")),
        machine.fingerprint,
        report.version
    );
    let ways: Vec<Vec<String>> = match &report.champion_entry {
        Entry::Builtin { ways } => ways
            .iter()
            .map(|w| vec![escape(&w.problem), escape(&w.backend), format!("<code>{}</code>", escape(&w.config))])
            .collect(),
        Entry::Program { command, .. } => {
            vec![vec!["all".to_owned(), "program".to_owned(), escape(&command.join(" "))]]
        }
    };
    body += &format!("<h3>What the champion runs</h3>\n{}", table(&["problem", "backend", "configuration"], &ways));
    let installed: Vec<Vec<String>> = report
        .installed
        .iter()
        .map(|w| vec![escape(&w.problem), format!("<code>{}</code>", escape(&w.config)), interval(&w.speedup)])
        .collect();
    let head = ["problem", "configuration", ">over the planner's choice"];
    body += &format!("<h3>What went into the tuning cache</h3>\n{}", table(&head, &installed));
    let seeds: Vec<Vec<String>> = report
        .attempts
        .iter()
        .map(|a| {
            let seeds: Vec<String> = a.seeds.iter().map(u64::to_string).collect();
            vec![escape(&a.pitch), seeds.join(" "), a.record.0.to_string(), format!("<code>{}</code>", a.record.1)]
        })
        .collect();
    body += &format!("<h3>Seeds and records</h3>\n{}", table(&["pitch", "seeds", ">record", "hash"], &seeds));
    body += &format!(
        "<p>The ledger has {} records; its head is <code id=\"head\">{}</code>.</p>\n",
        report.records, report.head
    );
    body
}
