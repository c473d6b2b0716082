//! Writing safetensors so that a reader sees the old file or the whole new one, never a part: everything
//! goes to a temporary file in the same folder, reaches the disk, and is renamed over the final name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::tensor::TensorInfo;

use super::{MAX_HEADER, METADATA_KEY, PREFIX, Tensor};
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
    let path = path.as_ref();
    check_names(tensors)?;
    tensors.iter().try_for_each(Tensor::check_bytes)?;
    let tensors = in_file_order(tensors);
    header(&tensors, metadata)
        .and_then(|header| replace(path, &header, &tensors))
        .map_err(|cause| Error::Write { path: path.to_path_buf(), cause })
}

fn check_names(tensors: &[Tensor<'_>]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for Tensor { name, .. } in tensors {
        let problem = if name == METADATA_KEY {
            "the format keeps this name for metadata"
        } else if !seen.insert(name) {
            "there are two of that name"
        } else {
            continue;
        };
        return Err(Error::Name { name: name.clone(), problem });
    }
    Ok(())
}

/// The widest types first, so that every tensor is aligned to its own elements; then by name.
fn in_file_order<'t, 'a>(tensors: &'t [Tensor<'a>]) -> Vec<&'t Tensor<'a>> {
    let mut tensors: Vec<_> = tensors.iter().collect();
    tensors.sort_by(|left, right| {
        right.dtype.bitsize().cmp(&left.dtype.bitsize()).then_with(|| left.name.cmp(&right.name))
    });
    tensors
}

/// The header's JSON, padded with spaces so that the tensors begin on a multiple of eight bytes.
fn header(tensors: &[&Tensor<'_>], metadata: Option<HashMap<String, String>>) -> io::Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(tensors.len() + 1);
    if let Some(metadata) = metadata {
        let sorted: BTreeMap<_, _> = metadata.into_iter().collect();
        entries.push(format!("\"{METADATA_KEY}\":{}", serde_json::to_string(&sorted)?));
    }
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes.len();
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
        let name = serde_json::to_string(&tensor.name)?;
        entries.push(format!("{name}:{}", serde_json::to_string(&info)?));
        start = end;
    }
    let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(PREFIX), b' ');
    if header.len() > MAX_HEADER {
        let problem = format!("the header takes {} bytes, more than {MAX_HEADER}", header.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(header)
}

/// Writes everything beside `path`, sees it to the disk, and renames it to `path`.
fn replace(path: &Path, header: &[u8], tensors: &[&Tensor<'_>]) -> io::Result<()> {
    // A bare file name has the empty path for its folder, which means the current one.
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let temporary = temporary_in(folder)?;
    let mut out = BufWriter::with_capacity(1 << 20, temporary.as_file());
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header)?;
    for tensor in tensors {
        out.write_all(&tensor.bytes)?;
    }
    out.flush()?;
    drop(out);
    temporary.as_file().sync_all()?;
    temporary.persist(path)?;
    Ok(())
}

/// A temporary file that removes itself unless it is renamed, as readable as any other new file.
fn temporary_in(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
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
