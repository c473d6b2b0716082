//! Where files come from: the disk, where they are mapped, so that opening one of any size costs nothing until its
//! bytes are looked at; or the caller's memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use memmap2::Mmap;

use crate::{Error, Result};

/// The bytes of a file.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mmap),
    Held(Arc<[u8]>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Held(bytes) => bytes,
        }
    }
}

/// Where files are looked for.
#[derive(Debug)]
pub(crate) enum Files {
    Disk,
    /// Files by their paths, all in the one folder that is held too.
    Memory(PathBuf, BTreeMap<PathBuf, Arc<[u8]>>),
}

impl Files {
    /// Whether something is there under this path.
    pub fn exists(&self, path: &Path) -> bool {
        match self {
            Self::Disk => path.exists(),
            Self::Memory(_, files) => files.contains_key(path),
        }
    }

    /// Whether a path that must be there is that of a folder.
    pub fn is_folder(&self, path: &Path) -> Result<bool> {
        let found = match self {
            Self::Disk => fs::metadata(path).map(|what| what.is_dir()),
            Self::Memory(folder, files) if !files.contains_key(path) && folder != path => Err(absent()),
            Self::Memory(folder, _) => Ok(folder == path),
        };
        found.map_err(|cause| Error::Read { path: path.to_path_buf(), cause })
    }

    /// The names of the files of a folder.
    pub fn names(&self, folder: &Path) -> Result<BTreeSet<String>> {
        // A name that is no text is none that we look for.
        match self {
            Self::Disk => {
                let failed = |cause| Error::Read { path: folder.to_path_buf(), cause };
                let entries = fs::read_dir(folder).map_err(failed)?;
                let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
                names.filter_map(io::Result::transpose).collect::<io::Result<_>>().map_err(failed)
            }
            Self::Memory(_, files) => {
                Ok(files.keys().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
            }
        }
    }

    /// Where a path leads, all links followed.
    pub fn real(&self, path: &Path) -> io::Result<PathBuf> {
        match self {
            Self::Disk => fs::canonicalize(path),
            Self::Memory(folder, files) if !files.contains_key(path) && folder != path => Err(absent()),
            Self::Memory(..) => Ok(path.to_path_buf()),
        }
    }

    /// The bytes of a regular file, or that it is shorter than `least` bytes (an empty one cannot be mapped).
    pub fn bytes(&self, path: &Path, least: usize) -> Result<Option<Bytes>> {
        let failed = |cause| Error::Read { path: path.to_path_buf(), cause };
        match self {
            Self::Disk => map(path, least, failed),
            Self::Memory(_, files) => {
                let bytes = files.get(path).ok_or_else(|| failed(absent()))?;
                Ok((bytes.len() >= least).then(|| Bytes::Held(Arc::clone(bytes))))
            }
        }
    }
}

fn absent() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no such file is held")
}

fn map(path: &Path, least: usize, failed: impl Fn(io::Error) -> Error) -> Result<Option<Bytes>> {
    // Looked at before it is opened, because opening a pipe would wait for its other end.
    let what = fs::metadata(path).map_err(&failed)?;
    if !what.is_file() {
        let what = if what.is_dir() { "a folder" } else { "no regular file" };
        return Err(Error::NotAFile { path: path.to_path_buf(), what });
    }
    let file = fs::File::open(path).map_err(&failed)?;
    if file.metadata().map_err(&failed)?.len() < least as u64 {
        return Ok(None);
    }
    // SAFETY: the map is read-only and private to the file it is part of. That nobody changes or cuts the file while it
    // is mapped cannot be enforced; it is the documented duty of whoever opens one.
    unsafe { Mmap::map(&file) }.map(|map| Some(Bytes::Mapped(map))).map_err(failed)
}
