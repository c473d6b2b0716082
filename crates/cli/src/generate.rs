//! `hammerhead completions` and `hammerhead man`: what a shell and a manual need to know, made from the commands
//! themselves.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Command};
use clap_complete::Shell;

use crate::{Error, Result, console, files};

/// Print completions for a shell
#[derive(Debug, ClapArgs)]
#[command(long_about = "Print completions for a shell.\n\n\
    Examples:\n  \
    hammerhead completions bash > ~/.local/share/bash-completion/completions/hammerhead\n  \
    hammerhead completions zsh > ~/.zfunc/_hammerhead\n  \
    hammerhead completions fish > ~/.config/fish/completions/hammerhead.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Write manual pages, one per command
#[derive(Debug, ClapArgs)]
#[command(long_about = "Write manual pages to a folder, one per command.\n\n\
    Example:\n  \
    hammerhead man ~/.local/share/man/man1 && man hammerhead-run")]
pub struct ManArgs {
    /// The folder, which must be there
    folder: PathBuf,
}

/// Prints the completions.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hammerhead", &mut text);
    console::print(&String::from_utf8_lossy(&text))
}

/// Writes the pages.
pub fn man(args: &ManArgs, mut command: Command) -> Result<()> {
    command.build();
    for (name, page) in pages(&command, "hammerhead") {
        let (mut text, path) = (Vec::new(), args.folder.join(format!("{name}.1")));
        let made = clap_mangen::Man::new(page).title(name).render(&mut text);
        made.map_err(|cause| Error::Write { path: path.clone(), cause })?;
        files::write_report(&path, &String::from_utf8_lossy(&text))?;
    }
    Ok(())
}

/// A command and those under it that are shown, each by its name in the manual.
fn pages(command: &Command, name: &str) -> Vec<(String, Command)> {
    let under = command.get_subcommands().filter(|under| !under.is_hide_set() && under.get_name() != "help");
    let under = under.flat_map(|under| pages(under, &format!("{name}-{}", under.get_name())));
    std::iter::once((name.to_owned(), command.clone())).chain(under).collect()
}
