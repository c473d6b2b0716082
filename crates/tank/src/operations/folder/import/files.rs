//! Files of a problem's folder, and names under which what comes from anyone is written down.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::{Error, Result};

/// A name as a word that is a file's in any file system: it neither hides nor leads anywhere, and is not too long.
pub(super) fn slug(name: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let word: String = name.chars().map(word).take(100).collect();
    let word = word.trim_matches(['-', '.']);
    if word.is_empty() { "unnamed".to_owned() } else { word.to_owned() }
}

/// A name without steps that lead nowhere: published workloads write `./blob/workloads/…`.
pub(super) fn plain(name: &str) -> String {
    let parts = Path::new(name).components().filter(|part| *part != Component::CurDir);
    parts.collect::<PathBuf>().to_string_lossy().into_owned()
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// The files of a folder, by name.
pub(super) fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let unread = |source| Error::Read { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).map_err(unread)?.collect::<std::io::Result<Vec<_>>>().map_err(unread)?;
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).filter(|path| path.is_file()).collect();
    paths.sort();
    Ok(paths)
}

/// The files below a folder. Links are not followed to other folders.
pub(super) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = listed(folder)?;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for inner in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        paths.extend(below(&inner.path())?);
    }
    Ok(paths)
}

pub(super) fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    whole.file_name().map_or_else(|| "problem".to_owned(), |name| name.to_string_lossy().into_owned())
}

pub(super) fn name_of_file(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
