//! `hammerhead tank replay`: the first season, counted again.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use tank::replay::{Replayed, first_season};

use crate::table::Table;
use crate::{Result, console, files};

/// Count the first season again: its votes by the right arithmetic, its figures by its own terms
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "A first team tuned this kernel by pitch and vote, without a referee. Its scores, stated totals, claims, \
    terms and times are kept as data and counted again here: which totals were wrong, and what its own deal terms would \
    have said."
)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write it as a page of its own as well
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Counts the recorded rounds again.
pub fn replay(args: &Args) -> Result<()> {
    let rounds = first_season()?;
    if let Some(path) = &args.html {
        files::write_report(path, &tank::report::replay(&rounds))?;
    }
    if args.json {
        return console::print_json(&rounds);
    }
    console::print(&rounds.iter().map(told).collect::<Vec<_>>().join("\n"))
}

fn told(round: &Replayed) -> String {
    let claim = round.claim.map(|[low, high]| format!(", claimed {low}–{high}×")).unwrap_or_default();
    let mut text = format!("{}: {}{claim}: {}\n", round.round, round.built, round.outcome);
    for judge in &round.judges {
        text += &format!("{}: \"{}\"\n", judge.name, judge.motto);
    }
    if !round.totals.is_empty() {
        let mut table = Table::new(&["shark", "pitch", ">stated", ">right", ""]);
        for total in &round.totals {
            let note = if total.wrong { "WRONG" } else { "" };
            let right = format!("{:.3}", total.right);
            table.row([total.shark.clone(), total.pitch.clone(), total.stated.clone(), right, note.to_owned()]);
        }
        text += &table.text();
        let wrong = round.totals.iter().filter(|t| t.wrong).count();
        let winner = round.winner.as_deref().unwrap_or("nobody");
        text += &format!("the vote builds {winner}; {wrong} of {} totals were stated wrong\n", round.totals.len());
    }
    for (problem, speedup) in &round.speedups {
        text += &format!("  {problem}: {speedup:.3}× ({:.0} % slower)\n", 100.0 * (1.0 / speedup - 1.0));
    }
    for physics in &round.physics {
        text += &format!("  said: {}\n  so:   {}\n", physics.said, physics.right);
    }
    if let Some(judgement) = &round.judgement {
        text += &format!("now: {} ({})\n", judgement.verdict, judgement.reasons.join("; "));
    } else if !round.now.is_empty() {
        text += &format!("now: {}\n", round.now);
    }
    text
}
