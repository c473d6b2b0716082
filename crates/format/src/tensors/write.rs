//! Writing safetensors so that a reader sees the old file or the whole new one, never a part: everything
//! goes to a temporary file in the same folder, reaches the disk, and is renamed over the final name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorInfo;
use tempfile::NamedTempFile;

use super::{Dtype, MAX_HEADER, METADATA_KEY, PREFIX, Tensor};
use crate::{Error, Result};

/// Writes tensors, and what the file should say about itself, to a safetensors file.
///
/// The same tensors and metadata give the same bytes. A file that is there already is replaced; whoever
/// has it mapped keeps the old one.
///
/// # Errors
///
/// If a tensor's bytes do not fit its type and shape, if two tensors have one name, if a name is reserved,
/// or if the file cannot be written. Whatever was under the final name is then still there, unchanged, and
/// the temporary file is gone.
pub fn write(path: impl AsRef<Path>, tensors: &[Tensor<'_>], metadata: Option<HashMap<String, String>>) -> Result<()> {
    tensors.iter().try_for_each(Tensor::check_bytes)?;
    let tensors = in_file_order(tensors);
    let described = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.dtype, tensor.shape.as_slice()));
    let mut writer = Writer::new(path, described, metadata)?;
    tensors.iter().try_for_each(|tensor| writer.push(&tensor.bytes))?;
    writer.finish()
}

/// The widest types first, so that every tensor is aligned to its own elements; then by name.
fn in_file_order<'t, 'a>(tensors: &'t [Tensor<'a>]) -> Vec<&'t Tensor<'a>> {
    let mut tensors: Vec<_> = tensors.iter().collect();
    tensors.sort_by(|left, right| {
        right.dtype.bitsize().cmp(&left.dtype.bitsize()).then_with(|| left.name.cmp(&right.name))
    });
    tensors
}

/// Writes tensors that are made one after the other, so that they never have to be in memory together.
///
/// They are described first, since a file begins with their names and shapes; then their bytes are pushed in the same
/// order. Nothing stands under the final name until [`Writer::finish`].
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    out: BufWriter<NamedTempFile>,
    /// Bytes that are still to come.
    missing: usize,
}

impl Writer {
    /// Begins a file with tensors of these names, types and shapes, in this order.
    ///
    /// # Errors
    ///
    /// If two tensors have one name, if a name is reserved, if a shape is too large, or if the file cannot be written.
    pub fn new<'t>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (&'t str, Dtype, &'t [usize])>,
        metadata: Option<HashMap<String, String>>,
    ) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let (infos, missing) = described(tensors)?;
        let begin = || {
            let header = header(&infos, metadata)?;
            let mut out = BufWriter::with_capacity(1 << 20, temporary_in(folder_of(&path))?);
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(&header)?;
            Ok(out)
        };
        match begin() {
            Ok(out) => Ok(Self { path, out, missing }),
            Err(cause) => Err(Error::Write { path, cause }),
        }
    }

    /// Adds bytes, of one tensor, of several or of a part of one.
    ///
    /// # Errors
    ///
    /// If they are more than were described, or if they cannot be written.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match self.missing.checked_sub(bytes.len()) {
            Some(missing) => self.out.write_all(bytes).map(|()| self.missing = missing),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "there are more bytes than were described")),
        };
        written.map_err(|cause| Error::Write { path: self.path.clone(), cause })
    }

    /// Sees everything to the disk and gives the file its name.
    ///
    /// # Errors
    ///
    /// If bytes are missing, or if that cannot be done.
    pub fn finish(self) -> Result<()> {
        let Self { path, out, missing } = self;
        let finish = || {
            if missing > 0 {
                let problem = format!("{missing} bytes that were described are missing");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
            let temporary = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            temporary.as_file().sync_all()?;
            temporary.persist(&path)?;
            Ok(())
        };
        finish().map_err(|cause| Error::Write { path: path.clone(), cause })
    }
}

/// What the header says of every tensor, in order, and how many bytes they take together.
fn described<'t>(
    tensors: impl IntoIterator<Item = (&'t str, Dtype, &'t [usize])>,
) -> Result<(Vec<(&'t str, TensorInfo)>, usize)> {
    let (mut seen, mut infos, mut start) = (BTreeSet::new(), Vec::new(), 0usize);
    for (name, dtype, shape) in tensors {
        let problem = if name == METADATA_KEY {
            Some("the format keeps this name for metadata")
        } else {
            (!seen.insert(name)).then_some("there are two of that name")
        };
        if let Some(problem) = problem {
            return Err(Error::Name { name: name.to_owned(), problem });
        }
        let elements = shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bitsize())).filter(|bits| bits % 8 == 0);
        let Some(end) = bits.and_then(|bits| start.checked_add(bits / 8)) else {
            return Err(Error::Bytes { name: name.to_owned(), dtype, shape: shape.to_vec(), came: 0 });
        };
        infos.push((name, TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (start, end) }));
        start = end;
    }
    Ok((infos, start))
}

/// The header's JSON, padded with spaces so that the tensors begin on a multiple of eight bytes.
fn header(infos: &[(&str, TensorInfo)], metadata: Option<HashMap<String, String>>) -> io::Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(infos.len() + 1);
    if let Some(metadata) = metadata {
        let sorted: BTreeMap<_, _> = metadata.into_iter().collect();
        entries.push(format!("\"{METADATA_KEY}\":{}", serde_json::to_string(&sorted)?));
    }
    for (name, info) in infos {
        entries.push(format!("{}:{}", serde_json::to_string(name)?, serde_json::to_string(info)?));
    }
    let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(PREFIX), b' ');
    if header.len() > MAX_HEADER {
        let problem = format!("the header takes {} bytes, more than {MAX_HEADER}", header.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(header)
}

/// The folder of a file; a bare name has the empty path for its folder, which means the current one.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// A temporary file that removes itself unless it is renamed, as readable as any other new file.
fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".hammerhead-").suffix(".safetensors.partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The user's mask is applied to this, as it is to files made without ceremony.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}
