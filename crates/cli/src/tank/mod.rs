//! `hammerhead tank`: optimisations earn their place by pitch, vote, referee and ledger.

mod board;
mod evolve;
mod exploits;
mod ledger;
mod operation;
mod pages;
mod place;
mod play;
mod replay;
mod rollback;
mod write;

use clap::{Args as ClapArgs, Subcommand};

use crate::Result;

/// Play the tank: pitch an optimisation, have it judged, examined and timed
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Optimisations earn their place in the tank: a claim is written down first, sharks of distinct \
    temperaments vote, the winner is checked for correctness before any clock starts, then timed in pairs against the \
    champion, and the ledger remembers who was right. What beats the planner's own choice goes into the tuning cache, \
    which every later run uses.\n\n\
    Start with `hammerhead tank play --season blackwell`: predictions for a GPU that is not there, in seconds. Without \
    a name the season for this machine's CPU is played. Killed at any point, the same command goes on where it \
    stopped.\n\n\
    Examples:\n  \
    hammerhead tank play --season blackwell\n  \
    hammerhead tank season   (lists those that there are)\n  \
    hammerhead tank new-pitch my-idea && hammerhead tank check-pitch my-idea.toml\n  \
    hammerhead tank play --pitch my-idea.toml --pitch another.toml\n  \
    hammerhead tank new-operation my-op   (any other operation, in a folder of its own)\n  \
    hammerhead tank verify-ledger"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Play(Box<play::Args>),
    NewPitch(write::NewPitch),
    NewOperation(operation::New),
    Import(operation::Import),
    CheckPitch(write::CheckPitch),
    /// Print every number of the rules with its meaning, as a file to set them anew
    Settings,
    Season(write::ShowSeason),
    Evolve(evolve::Args),
    Report(pages::Args),
    Board(board::Args),
    Exploits(exploits::Args),
    Log(ledger::Log),
    Show(ledger::Show),
    VerifyLedger(ledger::Verify),
    Graveyard(ledger::Graveyard),
    Calibration(ledger::Calibration),
    Champions(rollback::Champions),
    Rollback(rollback::Rollback),
    Replay(replay::Args),
    #[command(hide = true)]
    Serve(play::Serve),
    #[command(hide = true)]
    Answer(play::Answer),
}

/// Hands over to the command that was named.
pub fn tank(args: &Args) -> Result<()> {
    match &args.command {
        Command::Play(args) => play::play(args),
        Command::NewPitch(args) => write::new_pitch(args),
        Command::NewOperation(args) => operation::new(args),
        Command::Import(args) => operation::import(args),
        Command::CheckPitch(args) => write::check_pitch(args),
        Command::Settings => write::settings(),
        Command::Season(args) => write::season(args),
        Command::Evolve(args) => evolve::evolve(args),
        Command::Report(args) => pages::report(args),
        Command::Board(args) => board::board(args),
        Command::Exploits(args) => exploits::exploits(args),
        Command::Log(args) => ledger::log(args),
        Command::Show(args) => ledger::show(args),
        Command::VerifyLedger(args) => ledger::verify(args),
        Command::Graveyard(args) => ledger::graveyard(args),
        Command::Calibration(args) => ledger::calibration(args),
        Command::Champions(args) => rollback::champions(args),
        Command::Rollback(args) => rollback::rollback(args),
        Command::Replay(args) => replay::replay(args),
        Command::Serve(args) => play::serve(args),
        Command::Answer(args) => play::answer(args),
    }
}
