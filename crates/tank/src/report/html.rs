//! The report as one page: no network, no scripts, readable on a telephone and in the dark.

use super::figures::{Axis, roofline, strip};
use super::{AttemptReport, Report, RoundReport, claim, figure, interval, percent, seconds};
use crate::entry::Entry;
use crate::history::Calibration;
use crate::referee::Speedup;

const STYLE: &str = include_str!("style.css");

/// The report as HTML.
pub fn html(report: &Report) -> String {
    let body = [
        summary(report),
        scorecard(report),
        shapes(report),
        roofline_section(report),
        rounds(report),
        calibration(report),
        graveyard(report),
        controls(report),
        provenance(report),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>The tank: season {} “{}”</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
        report.number,
        escape(&report.season),
        body.concat()
    )
}

/// Text with what HTML would take for its own.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A section with its heading.
fn section(id: &str, heading: &str, body: &str) -> String {
    format!("<section id=\"{id}\">\n<h2>{heading}</h2>\n{body}</section>\n")
}

/// A table that scrolls by itself where the page is narrow. Cells are HTML already.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return "<p>Nothing yet.</p>\n".to_owned();
    }
    let head: String = head.iter().map(|h| format!("<th scope=\"col\">{h}</th>")).collect();
    let row = |cells: &Vec<String>| {
        format!("<tr>{}</tr>\n", cells.iter().map(|cell| format!("<td>{cell}</td>")).collect::<String>())
    };
    let rows: String = rows.iter().map(row).collect();
    format!("<div class=\"scroll\"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n")
}

fn badge(verdict: &str) -> String {
    format!("<span class=\"badge {}\">{verdict}</span>", verdict.to_lowercase())
}

fn bounds(speedup: &Speedup) -> (f64, f64, f64) {
    (speedup.estimate, speedup.low, speedup.high)
}

fn summary(report: &Report) -> String {
    let champion =
        match (&report.champion, report.attempts.iter().rev().find(|a| Some(&a.pitch) == report.champion.as_ref())) {
            (Some(name), Some(attempt)) => {
                let measured = attempt.measured.as_ref().map(|m| format!(", {} over its predecessor", interval(m)));
                format!("<strong>{}</strong>{}", escape(name), measured.unwrap_or_default())
            }
            (Some(name), None) => format!("<strong>{}</strong>", escape(name)),
            (None, _) => {
                format!("<strong>the baseline</strong>, <code>{}</code>: nothing beat it", escape(&report.baseline))
            }
        };
    let ended = report.closed.as_deref().map_or("not finished".to_owned(), |at| format!("finished {at}"));
    format!(
        "<header>\n<h1>The tank: season {} “{}”</h1>\n<p>{}</p>\n<p>Champion: {champion}.</p>\n\
         <p class=\"fine\">Metric: {}. Baseline: <code>{}</code>. Began {}, {ended}.</p>\n</header>\n",
        report.number,
        escape(&report.season),
        escape(&report.context),
        escape(&report.metric),
        escape(&report.baseline),
        report.opened,
    )
}

/// Every attempt: a strip with the claim above and the measurement below.
fn scorecard(report: &Report) -> String {
    let claims = report.attempts.iter().filter_map(|a| a.claimed).flat_map(|(c, low, high)| [c, low, high]);
    let measured = report.attempts.iter().filter_map(|a| a.measured).flat_map(|m| [m.low, m.high]);
    let axis = Axis::of(claims.chain(measured));
    let row = |a: &AttemptReport| {
        let told = a.measured.as_ref().map_or("not measured".to_owned(), interval);
        let label = format!("{}: claimed {}, measured {told}", escape(&a.pitch), claim(a.claimed));
        format!(
            "<div class=\"row\"><div><strong>{}</strong> {}<br><span class=\"fine\">{}, {}</span></div>\
             <div>{}</div><div class=\"figures\">claimed {}<br>measured {told}</div>\
             <div class=\"why\">{}</div></div>\n",
            escape(&a.pitch),
            badge(&a.verdict.to_string()),
            escape(&a.contestant),
            escape(&a.round),
            strip(&axis, &label, a.claimed, a.measured.as_ref().map(bounds)),
            claim(a.claimed),
            escape(&a.reasons.join("; ")),
        )
    };
    let rows: String = report.attempts.iter().map(row).collect();
    let (low, high) = axis.ends();
    let legend = format!(
        "<p class=\"fine\"><span class=\"key claimed\"></span> claimed (80 % interval) <span class=\"key measured\"></span> \
         measured (geometric mean over the problems, with its confidence interval). The axis goes from {low} to {high}, \
         logarithmic; the line is 1×.</p>\n"
    );
    let rows = if rows.is_empty() { "<p>Nothing was tried yet.</p>\n".to_owned() } else { rows };
    section("scorecard", "Claimed against measured", &format!("{legend}{rows}"))
}

fn shapes(report: &Report) -> String {
    let timed: Vec<&AttemptReport> = report.attempts.iter().filter(|a| !a.shapes.is_empty()).collect();
    let all = timed.iter().flat_map(|a| &a.shapes).flat_map(|s| [s.speedup.low, s.speedup.high]);
    let axis = Axis::of(all);
    let mut body = String::new();
    for attempt in timed {
        body += &format!("<h3>{} {}</h3>\n", escape(&attempt.pitch), badge(&attempt.verdict.to_string()));
        for shape in &attempt.shapes {
            let label = format!("{}: {}", escape(&shape.problem), interval(&shape.speedup));
            body += &format!(
                "<div class=\"row\"><div>{}<br><span class=\"fine\">{} → {}, {} quartets</span></div><div>{}</div>\
                 <div class=\"figures\">{}</div></div>\n",
                escape(&shape.problem),
                seconds(shape.champion_seconds),
                seconds(shape.challenger_seconds),
                shape.quartets,
                strip(&axis, &label, None, Some(bounds(&shape.speedup))),
                interval(&shape.speedup),
            );
        }
        if let Some(beside) = &attempt.beside {
            body += &format!("<p class=\"fine\">With warm weights instead: {}.</p>\n", interval(beside));
        }
    }
    let body = if body.is_empty() { "<p>Nothing was timed yet.</p>\n".to_owned() } else { body };
    section("problems", "Problem by problem", &body)
}

fn roofline_section(report: &Report) -> String {
    let Some(times) = &report.times else { return String::new() };
    let rows: Vec<Vec<String>> = times
        .shapes
        .iter()
        .map(|s| {
            let champion = report.champion_seconds(&s.problem);
            let of_floor = |seconds: Option<f64>| percent(s.floor_seconds.zip(seconds).map(|(floor, s)| floor / s));
            vec![
                escape(&s.problem),
                seconds(s.seconds),
                champion.map_or("—".to_owned(), seconds),
                s.floor_seconds.map_or("—".to_owned(), seconds),
                of_floor(Some(s.seconds)),
                of_floor(champion),
            ]
        })
        .collect();
    let head = ["problem", "baseline", "champion", "floor", "baseline reaches", "champion reaches"];
    let plot = roofline(report).unwrap_or_else(|| "<p>The machine's rates are not known.</p>\n".to_owned());
    let legend = "<p class=\"fine\"><span class=\"key baseline\"></span> baseline <span class=\"key champion\"></span> champion, \
                  under the rates that were measured on this machine. The floor is the least time that they allow.</p>\n";
    section("roofline", "Roofline", &format!("{plot}\n{legend}{}", table(&head, &rows)))
}

fn rounds(report: &Report) -> String {
    section("rounds", "Rounds and votes", &report.rounds.iter().map(round).collect::<String>())
}

fn round(round: &RoundReport) -> String {
    let verdict = round.verdict.map(|v| badge(&v.to_string())).unwrap_or_default();
    let mut body = format!("<h3>{} {verdict}</h3>\n<p>{}</p>\n", escape(&round.name), escape(&round.why));
    if let Some(tally) = &round.tally {
        let rows: Vec<Vec<String>> = tally
            .standings
            .iter()
            .map(|s| {
                let totals: Vec<String> = s
                    .totals
                    .iter()
                    .map(|(shark, total)| {
                        format!("{} {}", escape(shark), total.map_or("abstains".to_owned(), |t| format!("{t:.2}")))
                    })
                    .collect();
                let notes = [(s.flagged, "flagged: abstentions"), (s.vetoed, "vetoed")];
                let notes: Vec<&str> = notes.into_iter().filter(|n| n.0).map(|n| n.1).collect();
                vec![escape(&s.pitch), figure(s.mean), totals.join("<br>"), notes.join(", ")]
            })
            .collect();
        body += &table(&["pitch", "mean", "sharks", ""], &rows);
        body += &format!("<p class=\"fine\">Decided by {}.</p>\n", escape(&tally.decided_by));
        for ruling in &tally.rulings {
            let stands = if ruling.stands { "stands" } else { "does not stand" };
            body += &format!(
                "<p>Veto of {} against {} ({}) {stands}: {}.</p>\n",
                escape(&ruling.shark),
                escape(&ruling.pitch),
                escape(&ruling.cites),
                escape(&ruling.finding)
            );
        }
    }
    for chosen in &round.chosen {
        let voted = chosen.voted.as_deref().map_or("a tie".to_owned(), |v| format!("the vote for {}", escape(v)));
        body += &format!(
            "<p>{} chose {} beside {voted}: {}.</p>\n",
            escape(&chosen.by),
            escape(&chosen.chosen),
            escape(&chosen.reason)
        );
    }
    body.extend(round.void_votes.iter().map(|void| format!("<p>{}.</p>\n", escape(void))));
    body.extend(round.findings.iter().map(|finding| format!("<p>Learnt: {}.</p>\n", escape(finding))));
    for told in &round.pitches {
        let note = told
            .disqualified
            .as_ref()
            .map(|why| format!(" <em>disqualified: {}</em>", escape(why)))
            .unwrap_or_default();
        let reasons: String =
            told.reasons.iter().map(|(shark, why)| format!("<li>{}: {}</li>", escape(shark), escape(why))).collect();
        body += &format!(
            "<details><summary>{}{note}</summary><p>{} <strong>Solution:</strong> {}</p><p>Claimed {}; the model predicts {}, the roofline \
             allows {}. {}</p><ul>{reasons}</ul></details>\n",
            escape(&told.pitch.name),
            escape(&told.pitch.problem),
            escape(&told.pitch.solution),
            claim(told.pitch.claim.as_ref().and_then(|c| c.figures())),
            figure(told.predicted),
            figure(told.possible),
            escape(&told.counted()),
        );
    }
    body + &format!("<p class=\"fine\">{}</p>\n", escape(&round.note))
}

fn calibration(report: &Report) -> String {
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
    let head = ["who", "judged", "successes", "said / measured", "log error", "intervals held", "Brier score"];
    let rows = |of: &std::collections::BTreeMap<String, Calibration>| of.iter().map(row).collect::<Vec<_>>();
    let body = format!(
        "<p class=\"fine\">Over the whole ledger. Said over measured above 1 is too much promised; intervals should hold 80 %; \
         a Brier score of 0 is perfect and 0.25 a coin.</p>\n<h3>Contestants</h3>\n{}<h3>Sharks</h3>\n{}",
        table(&head, &rows(&report.contestants)),
        table(&head, &rows(&report.sharks))
    );
    section("calibration", "Who was right", &body)
}

fn graveyard(report: &Report) -> String {
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
            vec![place, escape(&g.why), escape(&g.again)]
        })
        .collect();
    section("graveyard", "Graveyard", &table(&["pitch", "why it failed", "may be tried again"], &rows))
}

fn controls(report: &Report) -> String {
    let mut rows = Vec::new();
    for attempt in &report.attempts {
        for control in &attempt.controls {
            let told = |speedup: &Option<Speedup>| speedup.as_ref().map_or("—".to_owned(), interval);
            rows.push(vec![
                escape(&attempt.pitch),
                told(&control.same),
                told(&control.planted),
                if control.passed { "held".to_owned() } else { "<strong>failed: VOID</strong>".to_owned() },
                format!("{:.1} %", 100.0 * control.margin),
            ]);
        }
    }
    let about = "<p class=\"fine\">Every sitting begins with the champion against itself, which must show no difference, and with a planted \
                 slowdown of 5 %, which must be found.</p>\n";
    let head = ["sitting of", "champion against itself", "planted slowdown", "controls", "margin"];
    section("controls", "Controls", &format!("{about}{}", table(&head, &rows)))
}

fn provenance(report: &Report) -> String {
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
    let head = ["problem", "configuration", "over the planner's choice"];
    body += &format!("<h3>What went into the tuning cache</h3>\n{}", table(&head, &installed));
    let seeds: Vec<Vec<String>> = report
        .attempts
        .iter()
        .map(|a| {
            let seeds: Vec<String> = a.seeds.iter().map(u64::to_string).collect();
            vec![escape(&a.pitch), seeds.join(" "), a.record.0.to_string(), format!("<code>{}</code>", a.record.1)]
        })
        .collect();
    body += &format!("<h3>Seeds and records</h3>\n{}", table(&["pitch", "seeds", "record", "hash"], &seeds));
    body += &format!(
        "<p>The ledger has {} records; its head is <code id=\"head\">{}</code>.</p>\n",
        report.records, report.head
    );
    section("provenance", "What it rests on", &body)
}
