//! The report as one page: no network, no scripts, readable on a telephone and in the dark.

use referee::Speedup;

use super::figures::{Axis, roofline, strip};
use super::{AttemptReport, Report, RoundReport, claim, figure, interval, percent, seconds};
use crate::entry::Entry;
use crate::history::Calibration;

const STYLE: &str = include_str!("style.css");

/// The sections, as the list of contents names them.
const CONTENTS: [(&str, &str); 11] = [
    ("bracket", "Rounds at a glance"),
    ("scorecard", "Claimed against measured"),
    ("problems", "Problem by problem"),
    ("roofline", "Roofline"),
    ("rounds", "Rounds and votes"),
    ("examination", "Examination and deals"),
    ("calibration", "Who was right"),
    ("graveyard", "Graveyard"),
    ("controls", "Controls"),
    ("guards", "What held the contestants"),
    ("provenance", "What it rests on"),
];

/// The report as HTML.
pub fn html(report: &Report) -> String {
    let body = [
        summary(report),
        contents(),
        bracket(report),
        scorecard(report),
        shapes(report),
        roofline_section(report),
        rounds(report),
        examination(report),
        calibration(report),
        graveyard(report),
        controls(report),
        guards(report),
        provenance(report),
    ];
    page(&format!("The tank: season {} “{}”", report.number, escape(&report.season)), &body.concat())
}

/// A page of its own: no network, no scripts.
pub(super) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn contents() -> String {
    let item = |(id, heading): (&str, &str)| format!("<li><a href=\"#{id}\">{heading}</a></li>");
    format!("<nav id=\"contents\" aria-label=\"Contents\"><ol>{}</ol></nav>\n", CONTENTS.map(item).concat())
}

/// Text with what HTML would take for its own.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A section with its heading.
pub(super) fn section(id: &str, heading: &str, body: &str) -> String {
    format!("<section id=\"{id}\">\n<h2>{heading}</h2>\n{body}</section>\n")
}

/// A table that scrolls by itself where the page is narrow. Cells are HTML already.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return "<p>Nothing yet.</p>\n".to_owned();
    }
    let head: String = head.iter().map(|h| format!("<th scope=\"col\">{h}</th>")).collect();
    // Figures with a unit; sentences that begin with one are none.
    let is_number = |cell: &str| {
        let letters = cell.chars().filter(|c| c.is_alphabetic()).count();
        letters <= 2 && cell.starts_with(|c: char| c.is_ascii_digit() || "+-—".contains(c))
    };
    let cell = |cell: &String| match is_number(cell) {
        true => format!("<td class=\"number\">{cell}</td>"),
        false => format!("<td>{cell}</td>"),
    };
    let row = |cells: &Vec<String>| format!("<tr>{}</tr>\n", cells.iter().map(cell).collect::<String>());
    let rows: String = rows.iter().map(row).collect();
    format!("<div class=\"scroll\"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n")
}

pub(super) fn badge(verdict: &str) -> String {
    let class = verdict.split(',').next().unwrap_or_default().to_lowercase();
    format!("<span class=\"badge {class}\">{verdict}</span>")
}

fn bounds(speedup: &Speedup) -> (f64, f64, f64) {
    (speedup.estimate, speedup.low, speedup.high)
}

/// The headline: what was gained over the baseline, and how sure that is.
fn headline(report: &Report) -> String {
    match (&report.gained, &report.champion) {
        (Some(gained), Some(name)) => {
            let times = if report.coronations == 1 {
                "one coronation".to_owned()
            } else {
                format!("{} coronations", report.coronations)
            };
            let how = match &report.foretold {
                Some(device) => format!("predicted for a {} and not measured", escape(device)),
                None => "measured a second time with new seeds".to_owned(),
            };
            format!(
                "<p class=\"headline\"><strong>{:.2}×</strong> the baseline’s speed</p>\n<p>Champion: <strong>{}</strong>. The gain lies between {:.2}× and \
                 {:.2}×, {how}; it is the product of {times}.</p>\n",
                gained.estimate,
                escape(name),
                gained.low,
                gained.high
            )
        }
        (None, Some(name)) => format!(
            "<p class=\"headline\"><strong>Right</strong>, where the champion before was not</p>\n<p>Champion: <strong>{}</strong>.</p>\n",
            escape(name)
        ),
        _ => format!(
            "<p class=\"headline\"><strong>1×</strong>: nothing beat the baseline</p>\n<p>Champion: <strong>the baseline</strong>, <code>{}</code>.</p>\n",
            escape(&report.baseline)
        ),
    }
}

fn summary(report: &Report) -> String {
    let ended = report.closed.as_deref().map_or("not finished".to_owned(), |at| format!("finished {at}"));
    let dethroned: String = report
        .dethroned
        .iter()
        .map(|(name, why)| format!("<p class=\"warning\">{} was dethroned: {}.</p>\n", escape(name), escape(why)))
        .collect();
    let mut remarks: Vec<&String> = report.attempts.iter().flat_map(|attempt| &attempt.remarks).collect();
    remarks.sort();
    remarks.dedup();
    let remarks: String =
        remarks.iter().map(|remark| format!("<p class=\"warning\">{}.</p>\n", escape(remark))).collect();
    format!(
        "<header>\n<h1>The tank: season {} “{}”</h1>\n<p>{}</p>\n{}{dethroned}{remarks}\
         <p class=\"fine\">Metric: {}. Baseline: <code>{}</code>. Began {}, {ended}.</p>\n</header>\n",
        report.number,
        escape(&report.season),
        escape(&report.context),
        headline(report),
        escape(&report.metric),
        escape(&report.baseline),
        report.opened,
    )
}

/// Every round in a line: who pitched, whom the vote chose, what became of it.
fn bracket(report: &Report) -> String {
    let round = |round: &RoundReport| {
        let verdict = round.verdict.map(|verdict| badge(&verdict.to_string())).unwrap_or_default();
        let winner = round.tally.as_ref().and_then(|tally| tally.winner());
        let mut names: Vec<String> = Vec::new();
        for told in &round.pitches {
            let mark = match told.mark() {
                mark if mark.is_empty() => mark,
                mark => format!(" <span class=\"survivor\">{mark}</span>"),
            };
            let name = escape(&told.pitch.name) + &mark;
            names.push(match (&told.disqualified, winner == Some(told.pitch.name.as_str())) {
                (Some(_), _) => format!("<li class=\"out\"><s>{name}</s></li>"),
                (None, true) => format!("<li class=\"won\">{name}</li>"),
                (None, false) => format!("<li>{name}</li>"),
            });
        }
        format!(
            "<li><h3>{} {verdict}</h3><ul>{}</ul><p class=\"fine\">{}</p></li>\n",
            escape(&round.name),
            names.concat(),
            escape(&round.note)
        )
    };
    let rounds: String = report.rounds.iter().map(round).collect();
    let about = "<p class=\"fine\">Bold is whom the vote chose; struck out is who was disqualified.</p>\n";
    let body = if rounds.is_empty() {
        "<p>No round was played yet.</p>\n".to_owned()
    } else {
        format!("{about}<ol class=\"bracket\">\n{rounds}</ol>\n")
    };
    section("bracket", "Rounds at a glance", &body)
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
            badge(&report.word(a.verdict)),
            escape(&a.contestant),
            escape(&a.round),
            strip(&axis, &label, a.claimed, a.measured.as_ref().map(bounds)),
            claim(a.claimed),
            escape(&a.reasons.join("; ")),
        )
    };
    let rows: String = report.attempts.iter().map(row).collect();
    let legend = format!(
        "<p class=\"fine\"><span class=\"key claimed\"></span> claimed (80 % interval) <span class=\"key measured\"></span> \
         measured (geometric mean over the problems, with its confidence interval). Times as fast as the champion before, on a \
         logarithmic axis; dashed is 1×.</p>\n<div class=\"row head\"><div></div><div>{}</div><div></div></div>\n",
        axis.labels()
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
        body += &format!("<h3>{} {}</h3>\n", escape(&attempt.pitch), badge(&report.word(attempt.verdict)));
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
    let head = format!("<div class=\"row head\"><div></div><div>{}</div><div></div></div>\n", axis.labels());
    let body = if body.is_empty() { "<p>Nothing was timed yet.</p>\n".to_owned() } else { format!("{head}{body}") };
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
    let judge = |[name, character, motto]: &[String; 3]| {
        format!(
            "<dt>{}</dt><dd>{}{}</dd>",
            escape(name),
            escape(character),
            if motto.is_empty() { String::new() } else { format!(" — “{}”", escape(motto)) }
        )
    };
    let judges: String = report.judges.iter().map(judge).collect();
    let rounds: String = report.rounds.iter().map(|told| round(told, report)).collect();
    let road = report.road().join(" → ");
    let road = if road.is_empty() { road } else { format!("<p>Roadmap: {}.</p>\n", escape(&road)) };
    section("rounds", "Rounds and votes", &format!("<dl class=\"judges\">{judges}</dl>\n{road}{rounds}"))
}

/// A round's ballots: a table per shark, and what it says beside it.
fn ballots(round: &RoundReport) -> String {
    let mut text = String::new();
    for voted in round.votes.iter().filter(|voted| voted.void.is_none()) {
        let mut criteria: Vec<&String> = voted.ballots.iter().flat_map(|ballot| ballot.scores.keys()).collect();
        criteria.sort();
        criteria.dedup();
        let names: Vec<String> = criteria.iter().map(|name| escape(name)).collect();
        let head: Vec<&str> =
            ["pitch"].into_iter().chain(names.iter().map(String::as_str)).chain(["reasons"]).collect();
        let row = |ballot: &crate::shark::Ballot| {
            let scores = criteria
                .iter()
                .map(|name| ballot.scores.get(*name).map_or("—".to_owned(), |score| format!("{score:.1}")));
            let list = |title: &str, items: &[String]| match items {
                [] => String::new(),
                items => format!("<strong>{title}:</strong> {}. ", escape(&items.join("; "))),
            };
            let abstains = ballot.abstain.as_ref().map(|why| format!("abstains: {}", escape(why))).unwrap_or_default();
            let because: Vec<String> = ballot.because.iter().map(|(name, why)| format!("{name}: {why}")).collect();
            let spoken = format!("{abstains}{}{}", list("For", &ballot.strengths), list("Against", &ballot.weaknesses));
            let reasons = if spoken.is_empty() { escape(&because.join("; ")) } else { spoken };
            [vec![escape(&ballot.pitch)], scores.collect(), vec![reasons]].concat()
        };
        let rows: Vec<Vec<String>> = voted.ballots.iter().map(row).collect();
        text += &format!("<details><summary>Ballots of {}</summary>\n{}", escape(&voted.shark), table(&head, &rows));
        let said = &voted.statement;
        if !said.motto.is_empty() {
            text += &format!("<p>“{}”</p>\n", escape(&said.motto));
        }
        if let Some(second) = &said.second {
            text += &format!(
                "<p>Second choice: {}, {}.</p>\n",
                escape(&second.pitch),
                escape(&second.conditions.join("; "))
            );
        }
        text.extend(
            said.why_not
                .iter()
                .map(|(pitch, why)| format!("<p class=\"fine\">Why not {}: {}.</p>\n", escape(pitch), escape(why))),
        );
        if let Some(talk) = &voted.talk {
            text += &format!(
                "<p class=\"fine\">Asked {}: {} tokens read, {} written.</p>\n",
                escape(&talk.model),
                talk.tokens_in,
                talk.tokens_out
            );
        }
        text += "</details>\n";
    }
    text
}

/// What was examined, and the terms that were agreed on.
fn examination(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .attempts
        .iter()
        .map(|attempt| {
            let found = attempt.examined.as_ref();
            let precision = found.map_or("—".to_owned(), |found| {
                let theirs =
                    found.champion_precision.map(|p| format!(", the champion {:.3}", p.rms)).unwrap_or_default();
                format!("{:.3}{theirs}", found.precision.rms)
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
    let about = "<p class=\"fine\">Nothing is timed that is not right. Errors are root mean squares against float64, as parts of what is allowed.</p>\n";
    let head = ["pitch", "examined", "problems", "elements", "errors", "deal"];
    section("examination", "Examination and deals", &format!("{about}{}", table(&head, &rows)))
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
fn guards(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for guard in report.attempts.iter().flat_map(|attempt| &attempt.guards) {
        let present = if guard.present { "there".to_owned() } else { "<strong>missing</strong>".to_owned() };
        let row =
            vec![escape(&guard.name), present, if guard.present { String::new() } else { escape(&guard.without) }];
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let body = if rows.is_empty() {
        "<p>Only configurations of our own backends competed, which are trusted code.</p>\n".to_owned()
    } else {
        table(&["guard", "", "open without it"], &rows)
    };
    section("guards", "What held the contestants", &body)
}

fn round(round: &RoundReport, report: &Report) -> String {
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
                vec![escape(&s.pitch), figure(s.mean), figure(s.weighted), totals.join("<br>"), notes.join(", ")]
            })
            .collect();
        body += &table(&["pitch", "mean", "by record", "sharks", ""], &rows);
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
    body += &ballots(round);
    body.extend(
        round
            .withdrawn
            .iter()
            .map(|[pitch, by, why]| format!("<p>{} withdrew {}: {}.</p>\n", escape(by), escape(pitch), escape(why))),
    );
    body.extend(round.void_votes.iter().map(|void| format!("<p>{}.</p>\n", escape(void))));
    body.extend(round.findings.iter().map(|finding| format!("<p>Learnt: {}.</p>\n", escape(finding))));
    for told in &round.pitches {
        let note = told
            .disqualified
            .as_ref()
            .map(|why| format!(" <em>disqualified: {}</em>", escape(why)))
            .unwrap_or_default();
        let attempt = report.attempts.iter().find(|attempt| attempt.pitch == told.pitch.name);
        body += &format!(
            "<details><summary>{}{note}</summary><p>{} <strong>Solution:</strong> {}</p><p>Claimed {}; the model predicts {}, the roofline \
             allows {}. {}</p>{}<p><strong>Rollback:</strong> {}</p></details>\n",
            escape(&told.pitch.name),
            escape(&told.pitch.problem),
            escape(&told.pitch.solution),
            claim(told.pitch.claim.as_ref().and_then(|c| c.figures())),
            figure(told.predicted),
            figure(told.possible),
            escape(&told.counted()),
            pitch_details(told, attempt),
            escape(&told.pitch.rollback),
        );
    }
    if let Some(spectrum) = round.risk_spectrum() {
        body += &format!("<p>Risk, the safest first: {}.</p>\n", escape(&spectrum));
    }
    body + &format!("<p class=\"fine\">{}</p>\n", escape(&round.note))
}

/// Lineage, prospects, risks, evidence, and what an hour of work has returned.
fn pitch_details(told: &super::PitchReport, attempt: Option<&AttemptReport>) -> String {
    let mut text = String::new();
    if let Some(descent) = told.descent() {
        let mark = if told.survived > 0 { format!(" It is a {}.", told.mark()) } else { String::new() };
        text += &format!("<p>Revised: {}.{mark}</p>", escape(&descent));
    }
    let prospects = told.prospects();
    if !prospects.is_empty() {
        text += &format!("<p>What may come of it: {}.</p>", escape(&prospects.join(", ")));
    }
    text.extend(told.risks().iter().map(|risk| format!("<p>Risk: {}.</p>", escape(risk))));
    for cited in &told.pitch.evidence {
        text += &format!("<p>Evidence: {}.</p>", escape(&cited.what));
    }
    if !told.figures.is_empty() {
        let figures: Vec<String> =
            told.figures.iter().map(|(name, value)| format!("{} {value:.4}", escape(name))).collect();
        text += &format!("<p class=\"fine\">Figures: {}.</p>", figures.join(", "));
    }
    if let Some(hours) = told.pitch.complexity.as_ref().map(|complexity| complexity.hours).filter(|hours| *hours > 0.0)
    {
        let measured = attempt.and_then(|attempt| attempt.measured);
        let returned =
            measured.map(|m| format!("; measured, an hour returned {:+.1} %", 100.0 * (m.estimate - 1.0) / hours));
        text += &format!("<p class=\"fine\">{hours} hours of work{}.</p>", returned.unwrap_or_default());
    }
    text
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
            vec![place, escape(&g.promise), escape(&g.reality), escape(&g.assumption), escape(&g.again)]
        })
        .collect();
    let head = ["pitch", "promise", "reality", "the wrong assumption", "may be tried again"];
    section("graveyard", "Graveyard", &table(&head, &rows))
}

fn controls(report: &Report) -> String {
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
    let about = "<p class=\"fine\">Every sitting begins with the champion against itself, which must show no difference, and with a planted \
                 slowdown of 5 %, which must be found.</p>\n";
    let head = [
        "sitting of",
        "champion against itself",
        "planted slowdown",
        "controls",
        "margin",
        "fence costs",
        "could see",
        "waited",
    ];
    section("controls", "Controls", &format!("{about}{}{devices}", table(&head, &rows)))
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
