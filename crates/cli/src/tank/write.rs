//! What people write for the tank: pitches, settings, seasons.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use tank::pitch::Pitch;
use tank::season::BUILTIN_TEXT;
use tank::settings::Settings;

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

/// Writes an example; a file that is there is left alone.
pub fn new_pitch(args: &NewPitch) -> Result<()> {
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let file_name = || PathBuf::from(args.name.chars().map(plain).collect::<String>() + ".toml");
    let path = args.output.clone().unwrap_or_else(file_name);
    let failed = |cause| Error::Write { path: path.clone(), cause };
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    file.write_all(Pitch::example(&args.name).as_bytes()).map_err(failed)?;
    console::print(&format!("{}\n", path.display()))?;
    console::remark("edit it, then: hammerhead tank check-pitch, and hammerhead tank play --pitch");
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

/// Prints the built-in season.
pub fn season() -> Result<()> {
    console::print(BUILTIN_TEXT)
}
