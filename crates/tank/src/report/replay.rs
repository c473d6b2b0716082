//! The first season as a page of its own: its votes counted again, its figures judged by its own terms, and what it got
//! wrong beside its sums.

use page::chart::{self, Claim};
use page::plot::{Axis, Strip};
use page::{Page, badge, escape, face, table};

use crate::replay::{Replayed, Total};

/// The page.
pub fn replay(rounds: &[Replayed]) -> String {
    let wrong = rounds.iter().flat_map(|round| &round.totals).filter(|total| total.wrong).count();
    let totals = rounds.iter().map(|round| round.totals.len()).sum::<usize>();
    let head = format!(
        "<p class=\"headline\"><strong>0</strong> of its claims held</p>\n<p>A first team tuned this kernel by pitch and vote, without a referee. \
         {wrong} of {totals} totals were stated wrong, and what was built first was slower on every problem. The idea was good; what it lacked was a \
         referee.</p>\n"
    );
    let page = Page::new("The tank: the first season, counted again", &head)
        .section("road", "The road", &road(rounds))
        .section("judges", "The judges", &judges(rounds));
    rounds.iter().fold(page, |page, round| page.section(&id(round), &round.round, &told(round))).html()
}

/// Every round with what was built and what became of it, one after another.
fn road(rounds: &[Replayed]) -> String {
    let step = |round: &Replayed| format!("<li>{}: {}</li>", escape(&round.round), escape(&round.built));
    let outcome = |round: &Replayed| {
        vec![
            escape(&round.round),
            escape(&round.built),
            round.claim.map(claimed).unwrap_or_default(),
            escape(&round.outcome),
        ]
    };
    format!(
        "<ol class=\"road\">{}</ol>\n{}",
        rounds.iter().map(step).collect::<String>(),
        table(&["round", "built", ">claimed", "what became of it"], rounds.iter().map(outcome))
    )
}

fn claimed([low, high]: [f64; 2]) -> String {
    format!("{low}–{high}×")
}

/// Everyone who judged, once, with what it went by.
fn judges(rounds: &[Replayed]) -> String {
    let mut known: Vec<&str> = Vec::new();
    let mut text = String::new();
    for judge in rounds.iter().flat_map(|round| &round.judges) {
        if !known.contains(&judge.name.as_str()) {
            text += &format!(
                "<li>{}<div><strong>{}</strong><blockquote>“{}”</blockquote></div></li>\n",
                face(known.len()),
                escape(&judge.name),
                escape(&judge.motto)
            );
            known.push(&judge.name);
        }
    }
    format!("<ul class=\"judges\">\n{text}</ul>\n")
}

fn id(round: &Replayed) -> String {
    round.round.replace(' ', "-")
}

fn told(round: &Replayed) -> String {
    let mut body = format!("<p>Built: <strong>{}</strong>; {}.</p>\n", escape(&round.built), escape(&round.outcome));
    if !round.opening.is_empty() {
        body += &format!("<p>{}.</p>\n", escape(&round.opening));
    }
    if !round.second.is_empty() {
        body +=
            &format!("<p>A second choice was named with its conditions: {}.</p>\n", escape(&round.second.join("; ")));
    }
    if !round.totals.is_empty() {
        body += &grid(round);
        body += &format!("<p>The vote builds {}.</p>\n", escape(round.winner.as_deref().unwrap_or("nobody")));
    }
    if round.safety.len() > 1 {
        let safety: Vec<(&str, f64)> = round.safety.iter().map(|(pitch, score)| (pitch.as_str(), *score)).collect();
        body += &format!("<h3>Risk spectrum</h3>\n{}", chart::spectrum(&safety));
    }
    if !round.revised.is_empty() {
        let claim = |[low, high, sure]: &[f64; 3]| {
            format!("{:.0}–{:.0} % at {:.0} %", 100.0 * (low - 1.0), 100.0 * (high - 1.0), 100.0 * sure)
        };
        let point = |(at, [low, high, sure]): (usize, &[f64; 3])| Claim {
            label: format!("round {}", at + 1),
            ends: [*low, *high],
            confidence: Some(*sure),
        };
        let claims: Vec<Claim> = round.revised.iter().enumerate().map(point).collect();
        body += &format!(
            "<h3>Lineage of {}</h3>\n{}<p>The survivor of {} rounds: its claim was {}.</p>\n",
            escape(&round.built),
            chart::lineage(&claims),
            round.revised.len() - 1,
            round.revised.iter().map(claim).collect::<Vec<_>>().join(" → ")
        );
    }
    body += &measured(round);
    if !round.physics.is_empty() {
        let rows: Vec<Vec<String>> = round.physics.iter().map(|p| vec![escape(&p.said), escape(&p.right)]).collect();
        body += &format!("<h3>Beside the sums</h3>\n{}", table(&["what was said", "what is so"], &rows));
    }
    let now = match &round.judgement {
        Some(judgement) => {
            format!("{} {}", badge(&judgement.verdict.to_string()), escape(&judgement.reasons.join("; ")))
        }
        None => escape(&round.now),
    };
    if !now.is_empty() {
        body += &format!("<p><strong>In the tank now:</strong> {now}.</p>\n");
    }
    body
}

/// Pitches down, judges across: the right total in each cell, and the stated one where it was wrong.
fn grid(round: &Replayed) -> String {
    let (mut sharks, mut pitches): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for Total { shark, pitch, .. } in &round.totals {
        if !sharks.contains(&shark.as_str()) {
            sharks.push(shark);
        }
        if !pitches.contains(&pitch.as_str()) {
            pitches.push(pitch);
        }
    }
    let cell = |pitch: &str, shark: &str| {
        let total = round.totals.iter().find(|total| total.pitch == pitch && total.shark == shark);
        total.map_or("<td></td>".to_owned(), |total| {
            let stated = match total.wrong {
                true => format!("<br><s>{}</s> <strong>wrong</strong>", escape(&total.stated)),
                false => String::new(),
            };
            format!("<td class=\"score\" style=\"--heat:{:.0}\">{:.3}{stated}</td>", 4.5 * total.right, total.right)
        })
    };
    let row = |pitch: &&str| {
        let won = if round.winner.as_deref() == Some(*pitch) { " class=\"won\"" } else { "" };
        let cells: String = sharks.iter().map(|shark| cell(pitch, shark)).collect();
        format!("<tr{won}><td>{}</td>{cells}</tr>\n", escape(pitch))
    };
    let heads: String = sharks.iter().map(|shark| format!("<th scope=\"col\">{}</th>", escape(shark))).collect();
    format!(
        "<p class=\"fine\">What the scores and weights come to; struck out is what was stated instead.</p>\n<div class=\"scroll\">\
         <table class=\"grid\"><thead><tr><th scope=\"col\">pitch</th>{heads}</tr></thead>\n<tbody>\n{}</tbody></table></div>\n",
        pitches.iter().map(row).collect::<String>()
    )
}

fn measured(round: &Replayed) -> String {
    if round.speedups.is_empty() {
        return String::new();
    }
    let claims = round.claim.into_iter().flatten();
    let axis = Axis::of(round.speedups.iter().map(|(_, speedup)| *speedup).chain(claims));
    let mut text = format!("<h3>Claimed against measured</h3>\n{}", axis.labels());
    let claimed = round.claim.map(|[low, high]| ((low * high).sqrt(), low, high));
    for (problem, speedup) in &round.speedups {
        let label = format!("{}: {speedup:.3}×", escape(problem));
        let strip = Strip { claimed, found: Some((*speedup, *speedup, *speedup)), margin: None };
        text += &format!(
            "<div class=\"row\"><div>{}</div><div>{}</div><div class=\"figures\">{speedup:.3}× ({:.0} % slower)</div></div>\n",
            escape(problem),
            axis.strip(&label, &strip),
            100.0 * (1.0 / speedup - 1.0)
        );
    }
    text
}
