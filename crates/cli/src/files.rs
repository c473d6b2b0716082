//! Where output goes: checked before the work, written whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use crate::{Error, Result};

/// Refuses an output that could not be written in the end, or that is the input under this or another name.
pub fn check_output(input: &Path, output: &Path) -> Result<()> {
    if same_file(input, output) {
        return Err(Error::SameFile { path: output.to_path_buf() });
    }
    let refuse = |problem| Err(Error::Destination { path: output.to_path_buf(), problem });
    if output.is_dir() {
        return refuse("it is a folder");
    }
    if output.file_name().is_none() {
        return refuse("it names no file");
    }
    if !folder_of(output).is_dir() {
        return refuse("its folder does not exist");
    }
    Ok(())
}

/// Whether two paths lead to one file, be it by links.
fn same_file(left: &Path, right: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let place = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        place(left).is_some_and(|left| Some(left) == place(right))
    }
    #[cfg(not(unix))]
    {
        let place = |path: &Path| fs::canonicalize(path).ok();
        place(left).is_some_and(|left| Some(left) == place(right))
    }
}

/// Whether two files that need not be there yet would be one.
pub fn same_place(left: &Path, right: &Path) -> bool {
    let place = |path: &Path| Some((fs::canonicalize(folder_of(path)).ok()?, path.file_name()?.to_owned()));
    same_file(left, right) || place(left).is_some_and(|left| Some(left) == place(right))
}

/// The folder a file is in; a bare name is in the current one.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Refuses a report that could not be written in the end.
pub fn check_report(path: &Path) -> Result<()> {
    temporary_beside(path).map(drop)
}

/// Writes a report. Nothing stands under its name until all of it is there.
pub fn write_report(path: &Path, text: &str) -> Result<()> {
    let failed = |cause| Error::Write { path: path.to_path_buf(), cause };
    let mut file = temporary_beside(path)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// A file that removes itself unless it is renamed, as readable as any other new file.
fn temporary_beside(path: &Path) -> Result<NamedTempFile> {
    if path.is_dir() {
        return Err(Error::Destination { path: path.to_path_buf(), problem: "it is a folder" });
    }
    if !folder_of(path).is_dir() {
        return Err(Error::Destination { path: path.to_path_buf(), problem: "its folder does not exist" });
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".hammerhead-").suffix(".partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The user's mask is applied to this, as it is to files made without ceremony.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    // What went wrong is of interest, the temporary name is not.
    let failed = |cause: io::Error| Error::Write { path: path.to_path_buf(), cause: cause.kind().into() };
    builder.tempfile_in(folder_of(path)).map_err(failed)
}

/// A form that a report can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Csv,
    Markdown,
}

impl Form {
    /// The form that a file's ending asks for.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            Some("md") => Ok(Self::Markdown),
            _ => {
                let problem = "its ending is none of .json, .csv and .md";
                Err(Error::Destination { path: path.to_path_buf(), problem })
            }
        }
    }
}
