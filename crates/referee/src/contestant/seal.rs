//! What tells a program's files from all others: a digest over their bytes, taken again at every start; and which
//! folder they lie in.
//!
//! Bytes are read again only where the file system says that something changed: who may not write to a file can change
//! neither its length nor the time of its last change.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sha2::{Digest, Sha256};

use super::fence::find_program;
use crate::digits::hex;

/// What the file system says of a file: device, number, length, and when it was changed last.
type Stamp = (u64, u64, u64, i64, i64);

/// Digests of files, with the stamps that they had.
type Digests = HashMap<PathBuf, (Stamp, Vec<u8>)>;

/// The digests of files that were read.
static KNOWN: Mutex<Option<Digests>> = Mutex::new(None);

/// The digest of a command: of every file that it names.
pub fn digest(command: &[String]) -> String {
    let mut hash = Sha256::new();
    for (index, word) in command.iter().enumerate() {
        let path = if index == 0 { find_program(word) } else { Some(PathBuf::from(word)) };
        if let Some(bytes) = path.and_then(|path| of_file(&path)) {
            hash.update(bytes);
        }
    }
    hex(&hash.finalize())
}

fn of_file(path: &Path) -> Option<Vec<u8>> {
    let about = std::fs::metadata(path).ok().filter(|about| about.is_file())?;
    let stamp = (about.dev(), about.ino(), about.len(), about.ctime(), about.ctime_nsec());
    let mut known = KNOWN.lock().ok()?;
    let known = known.get_or_insert_default();
    if let Some((seen, digest)) = known.get(path)
        && *seen == stamp
    {
        return Some(digest.clone());
    }
    let digest = of_bytes(File::open(path).ok()?).ok()?;
    known.insert(path.to_owned(), (stamp, digest.clone()));
    Some(digest)
}

/// The digest of a file, of which no more than a part is in memory at a time: a build may make as large a one as it
/// likes.
fn of_bytes(mut file: File) -> io::Result<Vec<u8>> {
    let (mut hash, mut part) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(hash.finalize().to_vec()),
            Ok(length) => hash.update(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The folder of the first file that a command names by a path and that is no interpreter in a `bin`, whether it is
/// there already or is still to be built.
pub fn folder_of(command: &[String]) -> Option<PathBuf> {
    let named = command.iter().map(Path::new).filter(|path| path.is_absolute());
    let mut folders = named.filter_map(Path::parent).filter(|folder| !is_shared(folder));
    let folder = folders.next()?.ancestors().find(|folder| folder.is_dir())?;
    folder.canonicalize().ok()
}

/// Whether programs of everyone lie in a folder.
pub fn is_shared(folder: &Path) -> bool {
    folder.ends_with("bin") || folder.ends_with("sbin") || folder.ends_with("shims")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_many_parts_has_the_digest_of_all_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for length in [0, 1 << 16, 200_001] {
            let (path, bytes) = (folder.path().join(length.to_string()), vec![7u8; length]);
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(of_file(&path).unwrap(), Sha256::digest(&bytes).to_vec());
        }
    }

    #[test]
    fn a_folder_is_that_of_the_first_file_that_is_no_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let word = |path: &str| root.join(path).display().to_string();
        let of = |command: &[String]| folder_of(command);
        std::fs::create_dir_all(root.join("venv/bin")).unwrap();
        assert_eq!(of(&[word("venv/bin/python"), "-u".into(), word("kernel.py")]), Some(root.clone()));
        assert_eq!(of(&[word("target/release/kernel")]), Some(root.clone()), "what is not built yet lies there too");
        assert_eq!(of(&["python3".into(), word("kernel.py")]), Some(root.clone()));
        assert_eq!(of(&["/usr/bin/env".into(), "python3".into()]), None);
    }
}
