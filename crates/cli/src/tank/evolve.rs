//! `hammerhead tank evolve`: a command brings candidates, step by step, and learns from what becomes of them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use hammerhead::tuning;
use tank::operations::folder::Folder;
use tank::play::Options;
use tank::season::{self, Asked, Season};

use super::place::Where;
use super::{pages, play};
use crate::Result;

/// Ask a command for candidates, step by step, and play each
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Ask a command for candidates, play them, and ask again with what came of them: the champion, its times, the verdicts of the \
    season so far and the post-mortems of all failures, as JSON on its standard input (docs/tank.md). Its answer is {\"pitches\": [...]}. It ends \
    after so many steps, or when the budget is spent. Killed at any point, the same command goes on where it stopped: what was asked \
    and measured is taken from the ledger, and is not asked or measured again.\n\n\
    Examples:\n  \
    hammerhead tank evolve --steps 10 --budget 1h -- python3 agent.py\n  \
    hammerhead tank evolve --operation my-op --steps 5 -- ./agent"
)]
pub struct Args {
    /// Play this operation's folder instead of the built-in season's problems; the command may then bring programs
    #[arg(long, value_name = "FOLDER")]
    operation: Option<PathBuf>,
    /// Play this season's problems, settings and sharks: its file, or a name that `hammerhead tank season` lists
    #[arg(long, value_name = "NAME", conflicts_with = "operation")]
    season: Option<PathBuf>,
    /// How often the command is asked at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,
    /// How long all sittings together may take, for example 90s, 10m or 2h
    #[arg(long, value_name = "TIME", value_parser = play::duration, default_value = "30m")]
    budget: Duration,
    /// Whose candidates these are
    #[arg(long, value_name = "NAME", default_value = "agent")]
    contestant: String,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    elsewhere: play::Elsewhere,
    /// Where the report goes [default: report.html beside the ledger]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Plays, or goes on where an earlier play stopped.
pub fn evolve(args: &Args) -> Result<()> {
    let season = match (&args.season, &args.operation) {
        (Some(name), _) => Season::named(name)?,
        (None, Some(folder)) => Season::of_operation(Folder::read(folder)?, Vec::new())?,
        (None, None) => season::builtin()?,
    };
    let (contestant, command) = (args.contestant.clone(), args.command.clone());
    let asked = Asked { contestant, command, programs: args.operation.is_some() };
    let season = season.evolving(&asked, args.steps.into())?;
    let page = args.report.clone().unwrap_or_else(|| pages::beside(&args.place.ledger));
    let options =
        Options { budget: Some(args.budget), stops_at_budget: true, tuning: tuning::folder(), ..Options::default() };
    let report = play::run(&season, &args.place, &page, options, &args.elsewhere)?;
    play::tell(&report, &page)
}
