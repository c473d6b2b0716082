//! The first season as a page of its own: its votes counted again, its figures judged by its own terms, and what it got
//! wrong beside its sums.

use super::figures::{Axis, strip};
use super::html::{badge, escape, page, section, table};
use crate::replay::Replayed;

/// The page.
pub fn replay(rounds: &[Replayed]) -> String {
    let wrong = rounds.iter().flat_map(|round| &round.totals).filter(|total| total.wrong).count();
    let totals = rounds.iter().map(|round| round.totals.len()).sum::<usize>();
    let head = format!(
        "<header>\n<h1>The first season, counted again</h1>\n<p class=\"headline\"><strong>0</strong> of its claims held</p>\n<p>A first team tuned this kernel by \
         pitch and vote, without a referee. {wrong} of {totals} totals were stated wrong, and what was built first was slower on every problem. The idea was \
         good; what it lacked was a referee.</p>\n</header>\n"
    );
    let item = |round: &Replayed| format!("<li><a href=\"#{}\">{}</a></li>", id(round), escape(&round.round));
    let contents = format!(
        "<nav id=\"contents\" aria-label=\"Contents\"><ol>{}</ol></nav>\n",
        rounds.iter().map(item).collect::<String>()
    );
    let body: String = rounds.iter().map(told).collect();
    page("The tank: the first season, counted again", &format!("{head}{contents}{body}"))
}

fn id(round: &Replayed) -> String {
    round.round.replace(' ', "-")
}

fn told(round: &Replayed) -> String {
    let mut body = format!("<p>Built: <strong>{}</strong>; {}.</p>\n", escape(&round.built), escape(&round.outcome));
    for judge in &round.judges {
        body += &format!("<p><strong>{}</strong>: “{}”.</p>\n", escape(&judge.name), escape(&judge.motto));
    }
    if !round.opening.is_empty() {
        body += &format!("<p>{}.</p>\n", escape(&round.opening));
    }
    if !round.second.is_empty() {
        body +=
            &format!("<p>A second choice was named with its conditions: {}.</p>\n", escape(&round.second.join("; ")));
    }
    if !round.totals.is_empty() {
        let row = |total: &crate::replay::Total| {
            let note = if total.wrong { "<strong>wrong</strong>".to_owned() } else { String::new() };
            vec![escape(&total.shark), escape(&total.pitch), escape(&total.stated), format!("{:.3}", total.right), note]
        };
        let rows: Vec<Vec<String>> = round.totals.iter().map(row).collect();
        body += &table(&["shark", "pitch", "stated", "right", ""], &rows);
        body += &format!("<p>The vote builds {}.</p>\n", escape(round.winner.as_deref().unwrap_or("nobody")));
    }
    if !round.revised.is_empty() {
        let claim = |[low, high, sure]: &[f64; 3]| {
            format!("{:.0}–{:.0} % at {:.0} %", 100.0 * (low - 1.0), 100.0 * (high - 1.0), 100.0 * sure)
        };
        body += &format!(
            "<p>The survivor of {} rounds: its claim was {}.</p>\n",
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
    section(&id(round), &escape(&round.round), &body)
}

fn measured(round: &Replayed) -> String {
    if round.speedups.is_empty() {
        return String::new();
    }
    let claims = round.claim.into_iter().flatten();
    let axis = Axis::of(round.speedups.iter().map(|(_, speedup)| *speedup).chain(claims));
    let mut text = format!(
        "<h3>Claimed against measured</h3>\n<div class=\"row head\"><div></div><div>{}</div><div></div></div>\n",
        axis.labels()
    );
    let claimed = round.claim.map(|[low, high]| ((low * high).sqrt(), low, high));
    for (problem, speedup) in &round.speedups {
        let label = format!("{}: {speedup:.3}×", escape(problem));
        text += &format!(
            "<div class=\"row\"><div>{}</div><div>{}</div><div class=\"figures\">{speedup:.3}× ({:.0} % slower)</div></div>\n",
            escape(problem),
            strip(&axis, &label, claimed, Some((*speedup, *speedup, *speedup))),
            100.0 * (1.0 / speedup - 1.0)
        );
    }
    text
}
