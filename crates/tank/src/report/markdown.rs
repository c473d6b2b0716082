//! The report as Markdown, for places where pages are not shown.

use super::{Report, RoundReport, claim, figure, interval, percent, seconds};
use crate::entry::Entry;

/// The report as Markdown.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# The tank: season {} “{}”\n\n{}\n\n", report.number, report.season, report.context);
    if !report.motto.is_empty() {
        text += &format!("> {}\n\n", report.motto);
    }
    let ended = report.closed.as_deref().unwrap_or("not finished");
    text += &format!("{} – {ended}. Metric: {}. Baseline: `{}`.\n\n", report.opened, report.metric, report.baseline);
    if let Some(device) = &report.foretold {
        text += &format!(
            "**All of this is predicted for a {device} by the model of the kernels; nothing was measured.**\n\n"
        );
    }
    if let Some(wrong) = report.wrong_baseline() {
        text += &format!("**The baseline is wrong: {wrong}. Nothing is timed against it.**\n\n");
    }
    text.extend(report.interrupted().iter().map(|told| format!("**{told}.**\n\n")));
    let champion = report.champion.as_deref().unwrap_or("the baseline");
    let gained =
        report.gained.as_ref().map(|gained| format!(", {} over the baseline", interval(gained))).unwrap_or_default();
    let found = report.found();
    text += &format!("**Champion: {champion}{gained}**\n\n## Claimed against {found}\n\n");
    let head = ["round", "pitch", "by", "claimed", found, "verdict", "why"];
    let rows = report.attempts.iter().map(|a| {
        vec![
            a.round.clone(),
            a.pitch.clone(),
            a.contestant.clone(),
            claim(a.claimed),
            a.measured.as_ref().map_or("—".to_owned(), interval),
            report.word(a.verdict),
            a.reasons.join("; "),
        ]
    });
    text += &table(&head, rows);
    for attempt in report.attempts.iter().filter(|a| !a.shapes.is_empty()) {
        text += &format!("\n### {} ({})\n\n", attempt.pitch, report.word(attempt.verdict));
        let rows = attempt.shapes.iter().map(|s| {
            vec![
                s.problem.clone(),
                interval(&s.speedup),
                seconds(s.champion_seconds),
                seconds(s.challenger_seconds),
                // Nothing is repeated where nothing is timed.
                report.foretold.as_ref().map_or_else(|| s.quartets.to_string(), |_| "—".to_owned()),
            ]
        });
        text += &table(&["problem", "speedup", "champion", "challenger", "quartets"], rows);
        for control in &attempt.controls {
            let told = |speedup: &Option<_>| speedup.as_ref().map_or("—".to_owned(), interval);
            let passed = if control.passed { "held" } else { "failed" };
            text += &format!("\nControls {passed}: A/A {}, plant {}.\n", told(&control.same), told(&control.planted));
            if let Some(device) = &control.device {
                text += &format!("\nBy the clock of {device}.\n");
            }
        }
    }
    text += "\n## Rounds\n\n";
    let rows = report
        .rounds
        .iter()
        .map(|r| vec![r.name.clone(), r.verdict.map_or("—".to_owned(), |v| report.word(v)), r.note.clone()]);
    text += &table(&["round", "verdict", "what happened"], rows);
    text += &format!("\nRoadmap: {}.\n", report.road().join(" → "));
    text += "\n## Judges and votes\n\n";
    for [name, character, motto] in &report.judges {
        let motto = if motto.is_empty() { String::new() } else { format!(" — “{motto}”") };
        text += &format!("- {name}: {character}{motto}\n");
    }
    report.rounds.iter().for_each(|round| text += &votes(round));
    let disqualified =
        report.rounds.iter().flat_map(|r| &r.pitches).filter_map(|p| Some((p, p.disqualified.as_ref()?)));
    disqualified.for_each(|(pitch, why)| text += &format!("\nDisqualified: {} ({why}).\n", pitch.pitch.name));
    let survivors = report.rounds.iter().flat_map(|r| r.pitches.iter().map(move |p| (r, p)));
    for (round, pitch) in survivors.filter(|(_, pitch)| pitch.survived > 0) {
        text += &format!("\n{} in {}: {}.\n", pitch.pitch.name, round.name, pitch.mark());
    }
    let counted = report.rounds.iter().flat_map(|r| &r.pitches).filter(|p| !p.simulated.is_empty());
    counted.for_each(|pitch| text += &format!("\n{}: {}\n", pitch.pitch.name, pitch.counted()));
    text += "\n## Calibration\n\n";
    let everyone = report.contestants.iter().chain(&report.sharks);
    let rows = everyone.map(|(name, c)| {
        vec![
            name.clone(),
            c.judged.to_string(),
            c.successes.to_string(),
            figure(c.bias.map(f64::exp)),
            figure(c.log_error),
            percent(c.coverage),
            figure(c.brier),
        ]
    });
    text += &table(&["who", "judged", "successes", "said/measured", "log error", "interval held", "Brier"], rows);
    text += "\n## Graveyard\n\n";
    let rows = report.graveyard.iter().map(|g| {
        vec![g.attempt.pitch.clone(), g.promise.clone(), g.reality.clone(), g.assumption.clone(), g.again.clone()]
    });
    text += &table(&["pitch", "promise", "reality", "the wrong assumption", "may be tried again"], rows);
    text += "\n## What it rests on\n\n";
    let machine = &report.machine;
    text += &format!("- machine {}, {} cores, fingerprint {}\n", machine.cpu, machine.cores, machine.fingerprint);
    if let Entry::Builtin { ways } = &report.champion_entry {
        ways.iter().for_each(|w| text += &format!("- champion on {}: {} `{}`\n", w.problem, w.backend, w.config));
    }
    for way in &report.installed {
        text += &format!("- in the tuning cache for {}: `{}` ({})\n", way.problem, way.config, interval(&way.speedup));
    }
    for attempt in &report.attempts {
        let seeds: Vec<String> = attempt.seeds.iter().map(u64::to_string).collect();
        text += &format!(
            "- {}: record {} `{}`, seeds {}\n",
            attempt.pitch,
            attempt.record.0,
            attempt.record.1,
            seeds.join(", ")
        );
    }
    text + &format!("- ledger: {} records, head `{}`\n", report.records, report.head)
}

/// A round's count, how risky its pitches are, what each pitch says may come of it, and what was taken back.
fn votes(round: &RoundReport) -> String {
    let withdrawn = round.withdrawn.iter().map(|[pitch, by, why]| format!("\nWithdrawn: {pitch}, by {by}: {why}.\n"));
    let withdrawn: String = withdrawn.collect();
    let Some(tally) = round.tally.as_ref().filter(|tally| !tally.standings.is_empty()) else { return withdrawn };
    let sharks: Vec<&str> = tally.standings[0].totals.iter().map(|(name, _)| name.as_str()).collect();
    let total = |total: &Option<f64>| total.map_or("abstains".to_owned(), |total| format!("{total:.2}"));
    let rows = tally.standings.iter().map(|standing| {
        let totals = standing.totals.iter().map(|(_, of)| total(of)).collect();
        [vec![standing.pitch.clone()], totals, vec![figure(standing.mean)]].concat()
    });
    let head = [vec!["pitch"], sharks, vec!["mean"]].concat();
    let mut text = format!("\n### {}\n\n{}", round.name, table(&head, rows));
    let safety: Vec<String> = round.safety().iter().map(|(pitch, score)| format!("{pitch} {score:.1}")).collect();
    if !safety.is_empty() {
        text += &format!("\nRisk, the safest first: {}.\n", safety.join(" · "));
    }
    for pitch in &round.pitches {
        let name = &pitch.pitch.name;
        text.extend(pitch.descent().map(|descent| format!("\n{name} revises: {descent}.\n")));
        let prospects = pitch.prospects().join(", ");
        if !prospects.is_empty() {
            text += &format!("\nWhat may come of {name}: {prospects}.\n");
        }
        text.extend(pitch.risks().iter().map(|risk| format!("\nRisk of {name}: {risk}.\n")));
    }
    text + &withdrawn
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let escaped = |cell: String| cell.replace('|', "\\|").replace('\n', " ");
    let rows: Vec<String> = rows.map(|row| line(row.into_iter().map(escaped).collect())).collect();
    if rows.is_empty() {
        return "Nothing yet.\n".to_owned();
    }
    let head =
        line(head.iter().map(|h| h.to_string()).collect()) + &line(head.iter().map(|_| "---".to_owned()).collect());
    head + &rows.concat()
}
