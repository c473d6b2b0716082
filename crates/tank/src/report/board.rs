//! The boards as a page of their own.

use referee::Speedup;

use super::html::{escape, page, section, table};
use super::interval;
use crate::board::{Board, Reign};

/// The page.
pub fn board(boards: &[Board]) -> String {
    let item = |(index, board): (usize, &Board)| {
        format!("<li><a href=\"#board-{index}\">{} on {}</a></li>", escape(&board.operation), escape(&board.machine))
    };
    let contents: String = boards.iter().enumerate().map(item).collect();
    let head = format!(
        "<header>\n<h1>The tank: champions</h1>\n<p>Who was champion when, per operation and class of machine. Every line was measured twice, and its record \
         is in the ledger.</p>\n</header>\n<nav id=\"contents\" aria-label=\"Contents\"><ol>{contents}</ol></nav>\n"
    );
    let told = |(index, board): (usize, &Board)| {
        let figure = |speedup: &Option<Speedup>| speedup.as_ref().map_or("—".to_owned(), interval);
        let row = |reign: &Reign| {
            vec![
                escape(&reign.since),
                escape(&reign.champion),
                figure(&reign.speedup),
                figure(&reign.over_baseline),
                format!("{} “{}”", reign.season.0, escape(&reign.season.1)),
                reign.record.0.to_string(),
                format!("<code>{}</code>", reign.record.1.chars().take(12).collect::<String>()),
            ]
        };
        let rows: Vec<Vec<String>> = board.reigns.iter().map(row).collect();
        let heads = ["since", "champion", "over its predecessor", "over the baseline", "season", "record", "hash"];
        let body = format!(
            "<p>{}, class <code>{}</code>.</p>\n{}",
            escape(&board.machine),
            board.fingerprint,
            table(&heads, &rows)
        );
        section(&format!("board-{index}"), &escape(&board.operation), &body)
    };
    let body: String = boards.iter().enumerate().map(told).collect();
    page("The tank: champions", &(head + &body))
}
