//! The court: who judges, what each says, and every vote as a grid of pitches and judges.

use page::{badge, details, escape, face, table};

use super::super::{Report, RoundReport, figure, percent};
use crate::shark::Ballot;
use crate::tally::{Standing, Tally};

/// Every judge with a face, a character and a quote.
pub fn court(report: &Report) -> String {
    let judge = |(number, [name, character, motto]): (usize, &[String; 3])| {
        let quote = if motto.is_empty() { spoken(report, name) } else { Some(motto.clone()) };
        let quote = quote.map(|quote| format!("<blockquote>“{}”</blockquote>", escape(&quote))).unwrap_or_default();
        let right = report.sharks.get(name).filter(|record| record.judged > 0).map(|record| {
            let brier = record.brier.map(|brier| format!(", Brier score {brier:.2}")).unwrap_or_default();
            format!("<p class=\"fine\">{} of its votes were put to the test{brier}.</p>", record.judged)
        });
        format!(
            "<li>{}<div><strong>{}</strong><p>{}</p>{quote}{}</div></li>\n",
            face(number),
            escape(name),
            escape(character),
            right.unwrap_or_default()
        )
    };
    let judges: String = report.judges.iter().enumerate().map(judge).collect();
    if judges.is_empty() { judges } else { format!("<ul class=\"judges\">\n{judges}</ul>\n") }
}

/// What a judge without a motto said of the pitch that it liked best.
fn spoken(report: &Report, name: &str) -> Option<String> {
    let ballots = report.rounds.iter().flat_map(|round| &round.votes).filter(|voted| voted.shark == name);
    ballots.flat_map(|voted| &voted.ballots).find_map(|ballot| {
        ballot
            .strengths
            .first()
            .or_else(|| ballot.weaknesses.first())
            .or_else(|| ballot.because.values().next())
            .cloned()
    })
}

/// Every round's grid, and what was said beside the count.
pub fn votes(report: &Report) -> String {
    let mut body = String::from(
        "<p class=\"fine\">Points from 0 to 10, the stronger the colour the more; bold is whom the vote chose. The mean decides.</p>\n",
    );
    for round in &report.rounds {
        let verdict = round.verdict.map(|verdict| badge(&report.word(verdict))).unwrap_or_default();
        body += &format!("<h3>{} {verdict}</h3>\n<p>{}</p>\n", escape(&round.name), escape(&round.why));
        body += &round.tally.as_ref().map(counted).unwrap_or_default();
        for chosen in &round.chosen {
            let voted = chosen.voted.as_deref().map_or("a tie".to_owned(), |v| format!("the vote for {}", escape(v)));
            body += &format!(
                "<p>{} chose {} beside {voted}: {}.</p>\n",
                escape(&chosen.by),
                escape(&chosen.chosen),
                escape(&chosen.reason)
            );
        }
        let spectrum: Vec<(&str, f64)> = round.safety();
        if spectrum.len() > 1 {
            body += &details("Risk, from the riskiest to the safest", &page::chart::spectrum(&spectrum));
        }
        body += &ballots(round);
        for [pitch, by, why] in &round.withdrawn {
            body += &format!("<p>{} withdrew {}: {}.</p>\n", escape(by), escape(pitch), escape(why));
        }
        body.extend(round.void_votes.iter().map(|void| format!("<p>{}.</p>\n", escape(void))));
        body.extend(round.findings.iter().map(|finding| format!("<p>Learnt: {}.</p>\n", escape(finding))));
    }
    if report.rounds.is_empty() { String::new() } else { body }
}

/// A round's count: pitches down, judges across, each cell shaded by its points.
fn counted(tally: &Tally) -> String {
    let Some(first) = tally.standings.first() else { return String::new() };
    let cell = |points: Option<f64>| match points {
        Some(points) => {
            format!("<td class=\"score\" style=\"--heat:{:.0}\">{points:.2}</td>", 4.5 * points.clamp(0.0, 10.0))
        }
        None => "<td class=\"score\" style=\"--heat:0\">abstains</td>".to_owned(),
    };
    let heads = first.totals.iter().map(|(shark, _)| escape(shark)).chain(["mean".to_owned(), "by record".to_owned()]);
    let heads: String = heads.map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    let row = |standing: &Standing| {
        let notes = [(standing.flagged, " (flagged: abstentions)"), (standing.vetoed, " (vetoed)")];
        let notes: String = notes.into_iter().filter(|note| note.0).map(|note| note.1).collect();
        let won = if tally.winner() == Some(standing.pitch.as_str()) { " class=\"won\"" } else { "" };
        let points = standing.totals.iter().map(|(_, points)| cell(*points)).collect::<String>();
        let means = format!("{}<td>{}</td>", cell(standing.mean), figure(standing.weighted));
        format!("<tr{won}><td>{}{notes}</td>{points}{means}</tr>\n", escape(&standing.pitch))
    };
    let rows: String = tally.standings.iter().map(row).collect();
    let mut text = format!(
        "<div class=\"scroll\"><table class=\"grid\"><thead><tr><th scope=\"col\">pitch</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n\
         <p class=\"fine\">Decided by {}.</p>\n",
        escape(&tally.decided_by)
    );
    for ruling in &tally.rulings {
        text += &format!(
            "<p>Veto of {} against {} ({}) {}: {}.</p>\n",
            escape(&ruling.shark),
            escape(&ruling.pitch),
            escape(&ruling.cites),
            if ruling.stands { "stands" } else { "does not stand" },
            escape(&ruling.finding)
        );
    }
    text
}

/// A round's ballots: a table per shark, and what it says beside it.
fn ballots(round: &RoundReport) -> String {
    let mut text = String::new();
    for voted in round.votes.iter().filter(|voted| voted.void.is_none()) {
        let mut criteria: Vec<&String> = voted.ballots.iter().flat_map(|ballot| ballot.scores.keys()).collect();
        criteria.sort();
        criteria.dedup();
        let marked: Vec<String> = criteria.iter().map(|name| format!(">{name}")).collect();
        let head: Vec<&str> = ["pitch"]
            .into_iter()
            .chain(marked.iter().map(String::as_str))
            .chain([">chance of success", "reasons"])
            .collect();
        let row = |ballot: &Ballot| {
            let scores = criteria
                .iter()
                .map(|name| ballot.scores.get(*name).map_or("—".to_owned(), |score| format!("{score:.1}")));
            let chance = percent(ballot.probability);
            [vec![escape(&ballot.pitch)], scores.collect(), vec![chance, reasons(ballot)]].concat()
        };
        let mut body = table(&head, voted.ballots.iter().map(row));
        let said = &voted.statement;
        if !said.motto.is_empty() {
            body += &format!("<p>“{}”</p>\n", escape(&said.motto));
        }
        if let Some(second) = &said.second {
            let (pitch, conditions) = (escape(&second.pitch), escape(&second.conditions.join("; ")));
            body += &format!("<p>Second choice: {pitch}, {conditions}.</p>\n");
        }
        for (pitch, why) in &said.why_not {
            body += &format!("<p class=\"fine\">Why not {}: {}.</p>\n", escape(pitch), escape(why));
        }
        if let Some(talk) = &voted.talk {
            body += &format!(
                "<p class=\"fine\">Asked {}: {} tokens read, {} written.</p>\n",
                escape(&talk.model),
                talk.tokens_in,
                talk.tokens_out
            );
        }
        text += &details(&format!("Ballots of {}", escape(&voted.shark)), &body);
    }
    text
}

/// Why a ballot is as it is.
fn reasons(ballot: &Ballot) -> String {
    let list = |title: &str, items: &[String]| match items {
        [] => String::new(),
        items => format!("<strong>{title}:</strong> {}. ", escape(&items.join("; "))),
    };
    let abstains = ballot.abstain.as_ref().map(|why| format!("abstains: {}", escape(why))).unwrap_or_default();
    let spoken = format!("{abstains}{}{}", list("For", &ballot.strengths), list("Against", &ballot.weaknesses));
    let because: Vec<String> = ballot.because.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    if spoken.is_empty() { escape(&because.join("; ")) } else { spoken }
}
