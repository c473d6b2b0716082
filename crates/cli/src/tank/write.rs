//! What people write for the tank: pitches, settings, seasons.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args as ClapArgs;
use tank::pitch::Pitch;
use tank::season::{SHIPPED, Shipped};
use tank::settings::Settings;

use crate::table::Table;
use crate::{Error, Result, console};

/// Write a complete pitch to begin from
#[derive(Debug, ClapArgs)]
pub struct NewPitch {
    /// The pitch's name
    name: String,
    /// The file [default: the name with .toml]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Check that pitches are complete
#[derive(Debug, ClapArgs)]
pub struct CheckPitch {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// List the seasons that come with this program, or print the file of one, to write one's own from
#[derive(Debug, ClapArgs)]
pub struct ShowSeason {
    /// The season whose file is printed
    name: Option<String>,
}

/// Writes an example; a file that is there is left alone.
pub fn new_pitch(args: &NewPitch) -> Result<()> {
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let file_name = || {
        let name: String = args.name.chars().map(plain).collect();
        // A dash in front would be taken for an option, a dot would hide the file.
        let name = name.trim_matches(['-', '.']);
        PathBuf::from(if name.is_empty() { "pitch" } else { name }.to_owned() + ".toml")
    };
    let path = args.output.clone().unwrap_or_else(file_name);
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::AlreadyExists => Error::Destination { path: path.clone(), problem: "it is there already" },
        _ => Error::Write { path: path.clone(), cause },
    };
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    file.write_all(Pitch::example(&args.name).as_bytes()).map_err(failed)?;
    console::print(&format!("{}\n", path.display()))?;
    let name = path.display();
    console::remark(&format!(
        "edit it, then: hammerhead tank check-pitch {name}, and hammerhead tank play --pitch {name}"
    ));
    Ok(())
}

/// Says of each file whether it is complete; the first that is not ends it.
pub fn check_pitch(args: &CheckPitch) -> Result<()> {
    for path in &args.files {
        let pitch = Pitch::read_complete(path, &Settings::default())?;
        console::print(&format!("{}: '{}' is complete\n", path.display(), pitch.name))?;
    }
    Ok(())
}

/// Prints every setting.
pub fn settings() -> Result<()> {
    console::print(&Settings::default().text())
}

/// Lists the seasons that there are, or prints the file of one.
pub fn season(args: &ShowSeason) -> Result<()> {
    if let Some(name) = &args.name {
        return console::print(Shipped::by_name(name)?.text);
    }
    let mut table = Table::new(&["season", "played"]);
    for Shipped { name, about, .. } in SHIPPED {
        table.row([name.to_owned(), about.to_owned()]);
    }
    console::print(&table.text())
}
