//! The boards as a page of their own: champions over time as steps, and the same in figures.

use page::chart::{Stop, steps};
use page::{Page, escape, table};
use referee::Speedup;

use super::interval;
use crate::board::{Board, Reign};

/// The page.
pub fn board(boards: &[Board]) -> String {
    let about = "<p>Who was champion when, per operation and class of machine. Every line that was not predicted was measured twice, and its \
                 record is in the ledger.</p>\n";
    let page = Page::new("The tank: champions", about);
    let add = |page: Page, (index, board): (usize, &Board)| {
        page.section(&format!("board-{index}"), &format!("{} on {}", board.operation, board.machine), &told(board))
    };
    boards.iter().enumerate().fold(page, add).html()
}

/// One board.
fn told(board: &Board) -> String {
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
    let heads = ["since", "champion", ">over its predecessor", ">over the baseline", "season", ">record", "hash"];
    format!(
        "<p>Class <code>{}</code>.</p>\n{}{}",
        board.fingerprint,
        seasons(board),
        table(&heads, board.reigns.iter().map(row))
    )
}

/// The steps of every season: each has a baseline of its own, so heights compare within one alone.
fn seasons(board: &Board) -> String {
    let mut text = String::new();
    let of_season = board.reigns.chunk_by(|one, next| one.season.0 == next.season.0);
    for reigns in of_season.filter(|reigns| reigns.len() > 1) {
        let stop = |reign: &Reign| Stop {
            label: reign.since.get(..10).unwrap_or(&reign.since).to_owned(),
            // The baseline's configuration stands in the table.
            champion: reign.champion.split(" (").next().unwrap_or_default().to_owned(),
            height: reign.over_baseline.map_or(1.0, |over| over.estimate),
            crowned: true,
            tried: Vec::new(),
        };
        let stops: Vec<Stop> = reigns.iter().map(stop).collect();
        let found = if board.foretold { "predicted" } else { "measured" };
        let (number, name) = &reigns[0].season;
        text += &format!(
            "<h3>Season {number} “{}”</h3>\n{}",
            escape(name),
            steps(&stops, "champions, one after another", &format!("times the season's baseline, {found}"))
        );
    }
    text
}
