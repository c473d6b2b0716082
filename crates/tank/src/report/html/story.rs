//! What happened: the gain, the way of champions, claims against findings, the roofline, and every pitch.

use std::collections::BTreeMap;

use page::chart::{self, Stop, Work};
use page::plot::{Axis, Strip};
use page::{badge, details, escape, legend, of_floor, table};
use referee::Speedup;

use super::super::{AttemptReport, PitchReport, Report, RoundReport, claim, figure, interval, seconds};
use crate::round::RoundKind;

fn bounds(speedup: &Speedup) -> (f64, f64, f64) {
    (speedup.estimate, speedup.low, speedup.high)
}

/// The headline: what was gained over the baseline, and how sure that is.
fn headline(report: &Report) -> String {
    match (&report.gained, &report.champion) {
        (Some(gained), Some(name)) => {
            let times = match report.coronations {
                1 => "one coronation".to_owned(),
                many => format!("{many} coronations"),
            };
            let how = match &report.foretold {
                Some(device) => format!("predicted for a {} and not measured", escape(device)),
                None => "measured a second time with new seeds".to_owned(),
            };
            format!(
                "<p class=\"headline\"><strong>{:.2}×</strong> the baseline’s speed{}</p>\n<p>Champion: <strong>{}</strong>. The gain lies \
                 between {:.2}× and {:.2}×, {how}; it is the product of {times}.</p>\n",
                gained.estimate,
                if report.foretold.is_some() { ", as predicted" } else { "" },
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
            "<p class=\"headline\"><strong>1×</strong>: {}</p>\n<p>Champion: <strong>the baseline</strong>, <code>{}</code>.</p>\n",
            if report.closed.is_some() { "nothing beat the baseline" } else { "nothing has beaten the baseline yet" },
            escape(&report.baseline)
        ),
    }
}

/// What stands above everything else.
pub fn summary(report: &Report) -> String {
    let ended = report.closed.as_deref().map_or("not finished".to_owned(), |at| format!("finished {at}"));
    let warning = |text: String| format!("<p class=\"warning-line\">{text}.</p>\n");
    let dethroned = report.dethroned.iter();
    let dethroned = dethroned.map(|(name, why)| warning(format!("{} was dethroned: {}", escape(name), escape(why))));
    let mut remarks: Vec<&String> = report.attempts.iter().flat_map(|attempt| &attempt.remarks).collect();
    remarks.sort();
    remarks.dedup();
    let interrupted = report.interrupted().into_iter().map(|told| warning(escape(&told)));
    let remarks = remarks.iter().map(|remark| warning(escape(remark)));
    let warnings: String = dethroned.chain(interrupted).chain(remarks).collect();
    let motto = match report.motto.as_str() {
        "" => String::new(),
        motto => format!("<p class=\"motto\">“{}”</p>\n", escape(motto)),
    };
    format!(
        "<p>{}</p>\n{motto}{}{warnings}<p class=\"fine\">Metric: {}. Baseline: <code>{}</code>. Began {}, {ended}.</p>\n",
        escape(&report.context),
        headline(report),
        escape(&report.metric),
        escape(&report.baseline),
        report.opened,
    )
}

/// The champion's way through the rounds, drawn; the road that was planned; and every round as a card.
pub fn path(report: &Report) -> String {
    if report.rounds.is_empty() {
        return "<p>No round was played yet.</p>\n".to_owned();
    }
    let found = report.found();
    let drawing = chart::steps(&stops(report), "rounds", &format!("times the baseline, {found}"));
    let keys = [
        ("champion", "the champion"),
        ("crown", "crowned"),
        ("tried failure", "tried and failed"),
        ("tried", "tried and undecided"),
    ];
    let remark = "A cross at the foot has no figure: it was not built, or not right.";
    let road: String = report.road().iter().map(|step| road_step(step)).collect();
    let road = if road.is_empty() { road } else { format!("<h3>Roadmap</h3>\n<ol class=\"road\">{road}</ol>\n") };
    let cards: String = report.rounds.iter().enumerate().map(|(at, round)| card(at, round, report)).collect();
    format!(
        "{drawing}{}{road}<h3>Round by round</h3>\n<p class=\"fine\">Bold is whom the vote chose; struck out is who was disqualified.</p>\n\
         <ol class=\"bracket\">\n{cards}</ol>\n",
        legend(&keys, remark)
    )
}

fn road_step(step: &str) -> String {
    let next = step.starts_with("then: ") || step.ends_with(": to come");
    format!("<li{}>{}</li>", if next { " class=\"next\"" } else { "" }, escape(step))
}

/// A place on the way per round: the champion when it ended, and who else was tried.
fn stops(report: &Report) -> Vec<Stop> {
    let mut height = 1.0;
    let mut champion = "baseline".to_owned();
    let stop = |label: String, champion: &str, height, crowned| Stop {
        label,
        champion: champion.to_owned(),
        height,
        crowned,
        tried: Vec::new(),
    };
    let mut stops = vec![stop("start".to_owned(), &champion, height, true)];
    // For the title, the champion meets the planner's choice: that figure is not on this scale.
    let rounds = report.rounds.iter().filter(|round| round.kind != RoundKind::Title);
    for (at, round) in rounds.enumerate() {
        let (before, mut crowned, mut tried) = (height, false, Vec::new());
        for attempt in report.attempts.iter().filter(|attempt| attempt.round == round.name) {
            let came = attempt.measured.map(|measured| before * measured.estimate);
            if attempt.crowned {
                (height, champion, crowned) = (came.unwrap_or(before), attempt.pitch.clone(), true);
            } else {
                tried.push((attempt.pitch.clone(), came, report.word(attempt.verdict)));
            }
        }
        stops.push(Stop { tried, ..stop((at + 1).to_string(), &champion, height, crowned) });
    }
    stops
}

/// A round in a few lines: who pitched, whom the vote chose, what became of it.
fn card(at: usize, round: &RoundReport, report: &Report) -> String {
    let verdict = round.verdict.map(|verdict| badge(&report.word(verdict))).unwrap_or_default();
    let winner = round.tally.as_ref().and_then(|tally| tally.winner());
    let name = |told: &PitchReport| {
        let mark = match told.mark() {
            mark if mark.is_empty() => mark,
            mark => format!(" <span class=\"survivor\">{mark}</span>"),
        };
        let name = escape(&told.pitch.name) + &mark;
        match (&told.disqualified, winner == Some(told.pitch.name.as_str())) {
            (Some(_), _) => format!("<li class=\"out\"><s>{name}</s></li>"),
            (None, true) => format!("<li class=\"won\">{name}</li>"),
            (None, false) => format!("<li>{name}</li>"),
        }
    };
    format!(
        "<li><h3>{}. {} {verdict}</h3><ul>{}</ul><p class=\"fine\">{}</p></li>\n",
        at + 1,
        escape(&round.name),
        round.pitches.iter().map(name).collect::<String>(),
        escape(&round.note)
    )
}

/// Every attempt: a strip with the claim above and what was found below. Configurations of a sweep stand behind a click
/// under the pitch that they are of.
pub fn scorecard(report: &Report) -> String {
    let claims = report.attempts.iter().filter_map(|a| a.claimed).flat_map(|(c, low, high)| [c, low, high]);
    let found = report.attempts.iter().filter_map(|a| a.measured).flat_map(|m| [m.low, m.high]);
    let axis = Axis::of(claims.chain(found));
    let word = report.found();
    let row = |a: &AttemptReport| {
        let told = a.measured.as_ref().map_or(format!("not {word}"), |m| format!("{word} {}", interval(m)));
        let label = format!("{}: claimed {}, {told}", escape(&a.pitch), claim(a.claimed));
        let strip = Strip { claimed: a.claimed, found: a.measured.as_ref().map(bounds), margin: a.margin };
        format!(
            "<div class=\"row\"><div><strong>{}</strong> {}<br><span class=\"fine\">{}</span></div>\
             <div>{}</div><div class=\"figures\">claimed {}<br>{told}</div><div class=\"why\">{}</div></div>\n",
            escape(&a.pitch),
            badge(&report.word(a.verdict)),
            escape(
                &[a.contestant.as_str(), &a.round].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", ")
            ),
            axis.strip(&label, &strip),
            claim(a.claimed),
            escape(&a.reasons.join("; ")),
        )
    };
    let mut rows = String::new();
    for (attempt, sweep) in report.by_pitch() {
        rows += &row(attempt);
        if !sweep.is_empty() {
            let summary = format!("its sweep: {} configurations", sweep.len());
            rows += &details(&summary, &sweep.into_iter().map(row).collect::<String>());
        }
    }
    if rows.is_empty() {
        return "<p>Nothing was tried yet.</p>\n".to_owned();
    }
    let mean = match report.foretold {
        Some(_) => "predicted by the model (geometric mean over the problems, with what the model may be off by)",
        None => "measured (geometric mean over the problems, with its confidence interval)",
    };
    let keys = [
        ("claimed", "claimed (80 % interval)"),
        ("found", mean),
        ("margin", "the margin: no gain inside of it counts"),
    ];
    let remark = "Times as fast as the champion before, on a logarithmic axis; dashed is 1×.";
    format!("{}{}{rows}", legend(&keys, remark), axis.labels())
}

/// Every problem of every attempt that has figures; the configurations of a sweep behind a click.
pub fn problems(report: &Report) -> String {
    let all = report.attempts.iter().flat_map(|a| &a.shapes).flat_map(|s| [s.speedup.low, s.speedup.high]);
    let axis = Axis::of(all);
    let one = |attempt: &AttemptReport| {
        let mut body = format!("<h3>{} {}</h3>\n", escape(&attempt.pitch), badge(&report.word(attempt.verdict)));
        for shape in &attempt.shapes {
            let label = format!("{}: {}", escape(&shape.problem), interval(&shape.speedup));
            let strip = Strip { claimed: None, found: Some(bounds(&shape.speedup)), margin: attempt.margin };
            // Nothing is repeated where nothing is timed.
            let quartets = match report.foretold {
                Some(_) => "predicted".to_owned(),
                None => format!("{} quartets", shape.quartets),
            };
            body += &format!(
                "<div class=\"row\"><div>{}<br><span class=\"fine\">{} → {}, {quartets}</span></div><div>{}</div>\
                 <div class=\"figures\">{}</div></div>\n",
                escape(&shape.problem),
                seconds(shape.champion_seconds),
                seconds(shape.challenger_seconds),
                axis.strip(&label, &strip),
                interval(&shape.speedup),
            );
        }
        if let Some(beside) = attempt.beside.as_ref().filter(|_| report.foretold.is_none()) {
            body += &format!("<p class=\"fine\">With warm weights instead: {}.</p>\n", interval(beside));
        }
        body
    };
    let mut body = String::new();
    for (attempt, sweep) in report.by_pitch() {
        if !attempt.shapes.is_empty() {
            body += &one(attempt);
        }
        let sweep: Vec<&AttemptReport> = sweep.into_iter().filter(|attempt| !attempt.shapes.is_empty()).collect();
        if !sweep.is_empty() {
            let summary = format!("the sweep of {}: {} configurations", escape(&attempt.pitch), sweep.len());
            body += &details(&summary, &sweep.into_iter().map(one).collect::<String>());
        }
    }
    if body.is_empty() { "<p>Nothing was timed yet.</p>\n".to_owned() } else { axis.labels() + &body }
}

/// The roofline, and the same in figures.
pub fn roofline(report: &Report) -> String {
    let Some(times) = &report.times else { return String::new() };
    let works: Vec<Work> = times
        .shapes
        .iter()
        .filter_map(|shape| {
            Some(Work {
                name: shape.problem.clone(),
                flops: shape.flops,
                floor: shape.floor_seconds?,
                baseline: shape.seconds,
                champion: report.champion_seconds(&shape.problem),
            })
        })
        .collect();
    let plot = times.bytes_per_second.and_then(|bytes| chart::roofline(&works, bytes));
    let plot = plot.unwrap_or_else(|| "<p>The machine's rates are not known.</p>\n".to_owned());
    let rows = works.iter().map(|work| {
        let reaches = |seconds: f64| format!("{:.0} %", of_floor(work.floor, seconds));
        vec![
            escape(&work.name),
            seconds(work.baseline),
            work.champion.map_or("—".to_owned(), seconds),
            seconds(work.floor),
            reaches(work.baseline),
            work.champion.map_or("—".to_owned(), reaches),
        ]
    });
    let head = ["problem", ">baseline", ">champion", ">floor", ">baseline reaches", ">champion reaches"];
    let rates = match &report.foretold {
        Some(device) => format!("the rates that NVIDIA states for a {}", escape(device)),
        None => match report.attempts.iter().flat_map(|attempt| &attempt.controls).find_map(|c| c.device.as_ref()) {
            Some(device) => format!("the rates that no {} exceeds", escape(&device.name)),
            None => "the best rates that were seen on this machine".to_owned(),
        },
    };
    let remark = format!(
        "Under {rates}. The floor is the least time that they allow for what must be computed and read; 100 % is at the roof. Times that \
         caches helped below it count as 100 %."
    );
    let keys = [("baseline", "baseline"), ("champion", "champion")];
    format!("{plot}{}{}", legend(&keys, &remark), table(&head, rows))
}

/// Claims that were made again in another round, each as a line.
pub fn lineage(report: &Report) -> String {
    let mut lines: BTreeMap<&str, &PitchReport> = BTreeMap::new();
    for told in report.rounds.iter().flat_map(|round| &round.pitches).filter(|told| told.lineage.len() > 1) {
        // The longest line of a family has the others in it.
        let first = told.lineage[0].0.as_str();
        if lines.get(first).is_none_or(|known| known.lineage.len() < told.lineage.len()) {
            lines.insert(first, told);
        }
    }
    let line = |told: &&PitchReport| {
        let claims = told.lineage.iter().filter_map(|(name, claimed, confidence)| {
            let (_, low, high) = (*claimed)?;
            Some(chart::Claim { label: name.clone(), ends: [low, high], confidence: *confidence })
        });
        let claims: Vec<chart::Claim> = claims.collect();
        let drawing = if claims.len() > 1 { chart::lineage(&claims) } else { String::new() };
        let descent = told.descent().unwrap_or_default();
        format!("<h3>{}</h3>\n{drawing}<p>{}.</p>\n", escape(&told.pitch.name), escape(&descent))
    };
    lines.values().map(line).collect()
}

/// Every pitch in full, behind a click.
pub fn pitches(report: &Report) -> String {
    let mut body = String::new();
    for round in &report.rounds {
        body += &format!("<h3>{}</h3>\n", escape(&round.name));
        for told in &round.pitches {
            let why = told.disqualified.as_ref();
            let note = why.map(|why| format!(" <em>disqualified: {}</em>", escape(why))).unwrap_or_default();
            let attempt = report.attempts.iter().find(|attempt| attempt.pitch == told.pitch.name);
            let text = format!(
                "<p>{} <strong>Solution:</strong> {}</p><p>Claimed {}; the model predicts {}, the roofline allows {}. {}</p>{}\
                 <p><strong>Rollback:</strong> {}</p>",
                escape(&told.pitch.problem),
                escape(&told.pitch.solution),
                claim(told.pitch.claim.as_ref().and_then(|c| c.figures())),
                figure(told.predicted),
                figure(told.possible),
                escape(&told.counted()),
                pitch_details(told, attempt, report),
                escape(&told.pitch.rollback),
            );
            body += &details(&format!("{}{note}", escape(&told.pitch.name)), &text);
        }
    }
    body
}

/// Lineage, prospects, risks, evidence, and what an hour of work has returned.
fn pitch_details(told: &PitchReport, attempt: Option<&AttemptReport>, report: &Report) -> String {
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
        let figures = told.figures.iter().map(|(name, value)| format!("{} {value:.4}", escape(name)));
        text += &format!("<p class=\"fine\">Figures: {}.</p>", figures.collect::<Vec<_>>().join(", "));
    }
    let hours = told.pitch.complexity.as_ref().map(|complexity| complexity.hours).filter(|hours| *hours > 0.0);
    if let Some(hours) = hours {
        let returned = attempt.and_then(|attempt| attempt.measured).map(|found| {
            let percent = 100.0 * (found.estimate - 1.0) / hours;
            format!("; as {}, an hour returned {percent:+.1} %", report.found())
        });
        text += &format!("<p class=\"fine\">{hours} hours of work{}.</p>", returned.unwrap_or_default());
    }
    text
}
