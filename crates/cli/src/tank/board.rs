//! `hammerhead tank board`: champions over time, per operation and class of machine.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use tank::board::{Board, boards};
use tank::report;

use super::ledger;
use super::place::Where;
use crate::table::Table;
use crate::{Result, console, files};

/// Show who was champion when, per operation and class of machine
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write it as a page as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Prints the boards, and writes the page where that is asked for.
pub fn board(args: &Args) -> Result<()> {
    let boards = boards(&ledger::read(&args.place)?);
    if let Some(path) = &args.html {
        files::write_report(path, &report::board(&boards))?;
    }
    if args.json {
        return console::print_json(&boards);
    }
    console::print(&boards.iter().map(told).collect::<Vec<_>>().join("\n"))
}

fn told(board: &Board) -> String {
    let mut table =
        Table::new(&["since", "champion", ">over its predecessor", ">over the baseline", "season", ">record"]);
    for reign in &board.reigns {
        let figure = |speedup: &Option<referee::Speedup>| {
            speedup.map_or("-".to_owned(), |speedup| {
                format!("{:.3}× [{:.3}, {:.3}]", speedup.estimate, speedup.low, speedup.high)
            })
        };
        table.row([
            reign.since.clone(),
            reign.champion.clone(),
            figure(&reign.speedup),
            figure(&reign.over_baseline),
            format!("{} '{}'", reign.season.0, reign.season.1),
            reign.record.0.to_string(),
        ]);
    }
    format!("{} on {} ({})\n{}", board.operation, board.machine, board.fingerprint, table.text())
}
