//! The `hammerhead` command.
//!
//! Each command has a room of its own: what it takes, what it does, what it prints. Results go to stdout, remarks and
//! errors to stderr. The exit status is 0 for success, 1 for a failure (one line on stderr says what and what to do
//! about it) and 2 for a command line that cannot be understood, or a kernel that `check` cannot run.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod advice;
mod bench;
mod check;
mod computed;
mod console;
mod defaults;
mod dequantize;
mod doctor;
mod error;
mod explain;
mod files;
mod first_contact;
mod floor;
mod generate;
mod info;
mod inspect;
mod layer;
mod layer_file;
mod memory;
mod model;
mod options;
mod pattern;
mod predict;
mod problem_file;
mod ptx_text;
mod quantize;
mod run;
mod selection;
mod shapes;
mod simulate;
mod subject;
mod table;
mod tank;
mod timeline;
mod timing;
mod trial;
mod vectors;
mod verify;
mod whole_layer;

use defaults::Defaults;
use error::{Error, Result};

/// Exact and fast gated dual GEMMs on NVFP4 data
#[derive(Debug, Parser)]
#[command(
    name = "hammerhead",
    version,
    long_about = "Exact and fast gated dual GEMMs on NVFP4 data:\n\n    \
        C = gate(A·B1ᵀ) ∘ (A·B2ᵀ)        gate = SiLU unless said otherwise\n\n\
        for one problem or for a ragged group of them (the experts of a mixture-of-experts layer).\n\n\
        Start with `hammerhead run`: it makes problems, computes them, checks the results against a double-precision \
        reference and says how fast that was.",
    after_help = "The environment variable HAMMERHEAD_BACKEND forces a backend where --backend does not.\n\
        HAMMERHEAD_TUNING names the folder of the tuning cache, which the tank fills and the planner reads, and of the \
        processor's measured speeds; `off` disables both.\n\
        HAMMERHEAD_CONFIG names a file of defaults for options in place of hammerhead/config.toml in the folder of your \
        configuration; `off` reads none.\n\
        Exit status: 0 success, 1 failure, 2 a command line or a file of defaults that cannot be understood, or a kernel that \
        check cannot run, 130 a bench that was interrupted, with its record kept."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Verify(verify::Args),
    Bench(bench::Args),
    #[command(hide = true, disable_help_flag = true)]
    Moe(OldMoe),
    Quantize(quantize::Args),
    Dequantize(dequantize::Args),
    Inspect(inspect::Args),
    Doctor(doctor::Args),
    Info(info::Args),
    FirstContact(first_contact::Args),
    #[command(hide = true)]
    Trial(trial::Args),
    Ptx(ptx_text::Args),
    Check(check::Args),
    Sim(simulate::Args),
    Tank(tank::Args),
    Vectors(vectors::Args),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

/// What `run` does now
#[derive(Debug, clap::Args)]
struct OldMoe {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

/// What Rust says of text that is no number, and what a user can do with.
const NUMBERS: [(&str, &str); 4] = [
    ("invalid digit found in string", "a whole number is expected"),
    ("cannot parse integer from empty string", "a whole number is expected"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid float literal", "a number is expected"),
];

/// The command line, or the end of the process with a message about it.
fn parsed() -> Result<Cli, ExitCode> {
    let defaults = Defaults::read();
    let command = defaults.and_then(|defaults| match &defaults {
        Some(found) => Ok((found.applied_to(Cli::command())?, defaults)),
        None => Ok((Cli::command(), None)),
    });
    let (command, defaults) = command.map_err(|error| {
        console::complain(&error);
        ExitCode::from(2)
    })?;
    command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| {
        if error.kind() != ErrorKind::ValueValidation {
            error.exit();
        }
        let text = NUMBERS.iter().fold(error.render().to_string(), |text, (said, meant)| text.replace(said, meant));
        console::remark(text.trim_end());
        if let Some(Defaults { path, .. }) = defaults {
            console::remark(&format!("note: defaults are read from {}", path.display()));
        }
        ExitCode::from(2)
    })
}

fn main() -> ExitCode {
    trial::by_this_program();
    let cli = match parsed() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    match dispatch(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        // What a shell reports for any program whose reader went away.
        Err(Error::PipeClosed) => ExitCode::from(141),
        Err(error @ Error::Interrupted { .. }) => {
            console::complain(&error);
            ExitCode::from(bench::INTERRUPTED)
        }
        Err(error @ (Error::OldSpelling { .. } | Error::CannotCheck { .. })) => {
            console::complain(&error);
            ExitCode::from(2)
        }
        Err(error) => {
            console::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: &Command) -> Result<()> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Verify(args) => verify::verify(args),
        Command::Bench(args) => bench::bench(args),
        Command::Moe(old) => {
            let new = format!("hammerhead run {}", old.rest.join(" "));
            Err(Error::OldSpelling { old: "hammerhead moe", new: new.trim_end().to_owned() })
        }
        Command::Quantize(args) => quantize::quantize(args),
        Command::Dequantize(args) => dequantize::dequantize(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Info(args) => info::info(args),
        Command::FirstContact(args) => first_contact::first_contact(args),
        Command::Trial(args) => trial::trial(args),
        Command::Ptx(args) => ptx_text::ptx(args),
        Command::Check(args) => check::check(args),
        Command::Sim(args) => simulate::sim(args),
        Command::Tank(args) => tank::tank(args),
        Command::Vectors(args) => vectors::vectors(args),
        Command::Completions(args) => generate::completions(args, Cli::command()),
        Command::Man(args) => generate::man(args, Cli::command()),
    }
}
