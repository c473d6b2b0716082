//! Files as memory: mapped, so that opening one of any size costs nothing until its bytes are looked at.

use std::fs;
use std::path::Path;

use memmap2::Mmap;

use crate::{Error, Result};

/// Maps a regular file, or says that it is shorter than `least` bytes (an empty one cannot be mapped).
pub(crate) fn map(path: &Path, least: usize) -> Result<Option<Mmap>> {
    let failed = |cause| Error::Read { path: path.to_path_buf(), cause };
    // Looked at before it is opened, because opening a pipe would wait for its other end.
    let what = fs::metadata(path).map_err(failed)?;
    if !what.is_file() {
        let what = if what.is_dir() { "a folder" } else { "no regular file" };
        return Err(Error::NotAFile { path: path.to_path_buf(), what });
    }
    let file = fs::File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() < least as u64 {
        return Ok(None);
    }
    // SAFETY: the map is read-only and private to the file it is part of. That nobody changes or cuts the file while it
    // is mapped cannot be enforced; it is the documented duty of whoever opens one.
    unsafe { Mmap::map(&file) }.map(Some).map_err(failed)
}
