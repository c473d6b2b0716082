//! Every tensor of a checkpoint by its name, in whichever of its files it lies.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use super::gguf;
use crate::files::Files;
use crate::tensors::{self, Dtype};
use crate::{Error, Result};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Element {
    Safetensors(Dtype),
    Gguf(gguf::Type),
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safetensors(dtype) => dtype.fmt(f),
            Self::Gguf(kind) => write!(f, "GGUF {kind}"),
        }
    }
}

/// A tensor as it lies in its file. Shapes are row-major: the last side is that along which rows run.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub name: &'a str,
    pub element: Element,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
    pub path: &'a Path,
}

impl View<'_> {
    /// Whether its elements have this safetensors type.
    pub fn is(&self, dtype: Dtype) -> bool {
        self.element == Element::Safetensors(dtype)
    }

    /// Whether its elements are single-precision floats, of either kind of file.
    pub fn is_f32(&self) -> bool {
        matches!(self.element, Element::Safetensors(Dtype::F32) | Element::Gguf(gguf::Type::F32))
    }
}

#[derive(Debug)]
enum Container {
    Safetensors(tensors::File),
    Gguf(gguf::File),
}

/// The open files of a checkpoint.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    files: Vec<Container>,
    /// In which file each tensor lies.
    places: BTreeMap<String, usize>,
}

impl Store {
    /// Opens safetensors files. Where an index says which file a tensor is in, that is where it must be, and tensors
    /// that it does not list do not count; without one no name may occur twice.
    pub fn safetensors(
        from: &Files,
        path: &Path,
        files: &[PathBuf],
        index: Option<&BTreeMap<String, usize>>,
    ) -> Result<Self> {
        let open = |file: &PathBuf| tensors::File::open_in(from, file);
        let files = files.iter().map(open).collect::<Result<Vec<_>>>()?;
        let places = match index {
            Some(index) => {
                for (name, &file) in index {
                    // Says which file lacks which tensor.
                    if !files[file].contains(name) {
                        files[file].tensor(name)?;
                    }
                }
                index.clone()
            }
            None => {
                let named = files.iter().enumerate().map(|(at, file)| (at, file.names(), file.path()));
                gather(named)?
            }
        };
        let files = files.into_iter().map(Container::Safetensors).collect();
        Ok(Self { path: path.to_path_buf(), files, places })
    }

    /// Opens GGUF files, of which no two may hold one name.
    pub fn gguf(from: &Files, path: &Path, files: &[PathBuf]) -> Result<Self> {
        let files = files.iter().map(|file| gguf::File::open(from, file)).collect::<Result<Vec<_>>>()?;
        let places = gather(files.iter().enumerate().map(|(at, file)| (at, file.names(), file.path())))?;
        Ok(Self { path: path.to_path_buf(), files: files.into_iter().map(Container::Gguf).collect(), places })
    }

    /// What was asked to be opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files that are open.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| match file {
            Container::Safetensors(file) => file.path(),
            Container::Gguf(file) => file.path(),
        })
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Tensors that lie in a file but do not count, because the index leaves them out.
    pub fn unlisted(&self) -> Vec<&str> {
        let mut unlisted = Vec::new();
        for (at, file) in self.files.iter().enumerate() {
            if let Container::Safetensors(file) = file {
                unlisted.extend(file.names().filter(|name| self.places.get(*name) != Some(&at)));
            }
        }
        unlisted
    }

    /// The first GGUF file, whose metadata stand for those of all.
    pub fn first_gguf(&self) -> Option<&gguf::File> {
        match self.files.first() {
            Some(Container::Gguf(file)) => Some(file),
            _ => None,
        }
    }

    /// What the safetensors file of a tensor says about itself.
    pub fn metadata(&self, name: &str) -> Option<&HashMap<String, String>> {
        match self.files.get(*self.places.get(name)?)? {
            Container::Safetensors(file) => file.metadata(),
            Container::Gguf(_) => None,
        }
    }

    /// A tensor.
    pub fn view(&self, name: &str) -> Option<View<'_>> {
        let (name, &file) = self.places.get_key_value(name)?;
        Some(match &self.files[file] {
            Container::Safetensors(file) => {
                let (dtype, shape, bytes) = file.view(name)?;
                View { name, element: Element::Safetensors(dtype), shape, bytes, path: file.path() }
            }
            Container::Gguf(file) => {
                let (kind, shape, bytes) = file.view(name)?;
                View { name, element: Element::Gguf(kind), shape, bytes, path: file.path() }
            }
        })
    }
}

/// Which file each name is in; none may be in two.
fn gather<'a>(
    files: impl Iterator<Item = (usize, impl Iterator<Item = &'a str>, &'a Path)>,
) -> Result<BTreeMap<String, usize>> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut paths = Vec::new();
    for (at, names, path) in files {
        paths.push(path);
        for name in names {
            if let Some(first) = places.insert(name.to_owned(), at) {
                let (first, second) = (paths[first].to_path_buf(), path.to_path_buf());
                return Err(Error::TwiceThere { name: name.to_owned(), first, second });
            }
        }
    }
    Ok(places)
}
