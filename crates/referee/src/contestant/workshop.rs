//! Where a program is built: a copy of its folder that is nobody else's.
//!
//! A build writes beside its program, and beside it lie the programs of others: the baseline, the operation's own
//! program, which no fence holds, and what all of them import. So it is given a copy, and what it builds is started
//! from there. The copy is made anew for each referee, under a name that follows from what is built: compilers write
//! the name of their folder into what they make, and a champion is known by its bytes.

use std::fs::{self, DirBuilder, DirEntry, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::fence::find_program;
use super::seal::folder_of;
use crate::digits::hex;

/// What a folder may hold that is copied.
const MOST_BYTES: u64 = 1 << 30;
const MOST_FILES: u64 = 20_000;
/// Where programs of everyone lie, and nothing else: a build may make a link to an interpreter.
const EVERYONES: [&str; 3] = ["/usr", "/opt", "/nix/store"];
/// Levels of folders that any name reaches, of however long names they are.
const SHALLOW: usize = 12;
/// Copies of the same name that may be in use by other referees.
const MOST_COPIES: usize = 64;

/// A copy of a program's folder, which goes with this value.
#[derive(Debug)]
pub struct Workshop {
    original: PathBuf,
    copy: PathBuf,
    /// Where commands led beyond the copy before anything was built: interpreters, and links that came with it.
    beyond: Vec<PathBuf>,
    /// Bytes of the disk that it took at first.
    copied: u64,
    /// Held for as long as the copy is in use.
    _lock: File,
}

impl Workshop {
    /// A copy of the folder of what a command runs, for what builds it; none where the command names no file of its
    /// own.
    pub(super) fn new(command: &[String], build: &[String]) -> io::Result<Option<Self>> {
        let Some(original) = folder_of(command) else { return Ok(None) };
        let home = std::env::var_os("HOME").map(PathBuf::from);
        if [home, Some(std::env::temp_dir())].into_iter().flatten().any(|place| place.starts_with(&original)) {
            let problem = format!("its program lies in {}, where others have their files", original.display());
            return Err(io::Error::other(format!("{problem}; give it a folder of its own")));
        }
        let mut name = Sha256::new();
        for word in [&original.to_string_lossy().into_owned()].into_iter().chain(command).chain(build) {
            name.update((word.len() as u64).to_le_bytes());
            name.update(word);
        }
        let (copy, lock) = reserve(&hex(&name.finalize())[..16])?;
        let copy = copy.canonicalize()?;
        let mut workshop = Self { original, copy, beyond: Vec::new(), copied: 0, _lock: lock };
        let mut room = Room { of: workshop.original.clone(), bytes: MOST_BYTES, files: MOST_FILES };
        room.copy(&workshop.original, &workshop.copy)?;
        let mut all = Room { of: PathBuf::new(), bytes: u64::MAX, files: u64::MAX };
        all.count(&workshop.copy);
        workshop.copied = u64::MAX - all.bytes;
        let interpreters = [command, build].into_iter().filter_map(|words| find_program(words.first()?));
        let named = [command, build].into_iter().flat_map(|words| workshop.moved(words)).map(PathBuf::from);
        let real = interpreters.chain(named).filter_map(|path| path.canonicalize().ok());
        workshop.beyond = real.filter(|path| !path.starts_with(&workshop.copy)).collect();
        Ok(Some(workshop))
    }

    /// What a command names in the copy and is not the contestant's own, because its build made a link to what others
    /// keep. Whoever starts a file may read what lies beside it, and is known by its bytes.
    pub(super) fn stray(&self, command: &[String], readable: &[PathBuf]) -> Option<String> {
        let places = EVERYONES.map(PathBuf::from);
        let places: Vec<PathBuf> =
            places.iter().chain(readable).filter_map(|place| place.canonicalize().ok()).collect();
        let stray = |path: PathBuf| {
            let real = path.canonicalize().ok()?;
            let about = real.metadata().ok()?;
            let known = || self.beyond.contains(&real) || places.iter().any(|place| real.starts_with(place));
            if !real.starts_with(&self.copy) {
                (!known()).then(|| format!("{} is a link to {}", path.display(), real.display()))
            } else {
                let shared = about.is_file() && about.nlink() > names(&self.copy, (about.dev(), about.ino()));
                shared.then(|| format!("{} has another name outside of its folder", path.display()))
            }
        };
        let named = self.moved(command).into_iter().map(PathBuf::from);
        named.filter(|path| path.starts_with(&self.copy)).find_map(stray)
    }

    /// The copy.
    pub(super) fn folder(&self) -> &Path {
        &self.copy
    }

    /// Whether it holds more than so many bytes beside what was copied, or more files than anyone needs.
    pub(super) fn is_beyond(&self, bytes: u64) -> bool {
        let mut room = Room { of: PathBuf::new(), bytes: self.copied + bytes, files: 10 * MOST_FILES };
        room.count(&self.copy).is_none()
    }

    /// A command's words, where they name something in the folder, as they are in the copy.
    pub(super) fn moved(&self, command: &[String]) -> Vec<String> {
        let moved = |word: &String| {
            // As it was written, as it is, and where it will be once it is built: a link may lead to the folder.
            let path =
                [PathBuf::from(word), fs::canonicalize(word).unwrap_or_default(), still_to_come(Path::new(word))];
            let inside = path.iter().find_map(|path| path.strip_prefix(&self.original).ok().map(Path::to_owned));
            inside.map_or_else(|| word.clone(), |inside| self.copy.join(inside).to_string_lossy().into_owned())
        };
        command.iter().map(moved).collect()
    }
}

/// Where a file will be that is not there yet: in the first folder above it that is there, without links. Empty where
/// no absolute path names such a file.
fn still_to_come(path: &Path) -> PathBuf {
    let named = |path: &&Path| path.is_absolute() && path.file_name().is_some();
    let folder = |path: &Path| {
        path.ancestors().skip(1).find_map(|folder| Some((folder.to_owned(), folder.canonicalize().ok()?)))
    };
    let Some((written, real)) = Some(path).filter(named).and_then(folder) else { return PathBuf::new() };
    path.strip_prefix(&written).map_or_else(|_| PathBuf::new(), |rest| real.join(rest))
}

impl Drop for Workshop {
    fn drop(&mut self) {
        remove(&self.copy);
    }
}

/// How many names a file, by device and number, has in a folder.
fn names(folder: &Path, file: (u64, u64)) -> u64 {
    let named = |entry: DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => names(&entry.path(), file),
        Ok(about) => u64::from((about.dev(), about.ino()) == file),
        Err(_) => 0,
    };
    fs::read_dir(folder).into_iter().flatten().flatten().map(named).sum()
}

/// Takes away a copy, and last its lock, which the caller holds.
fn remove(copy: &Path) {
    let _ = clear(copy);
    let _ = fs::remove_file(copy.with_extension("lock"));
}

/// Takes away a folder, however a build has left it: what lies deeper than descriptors or names reach is brought up
/// first, and what was closed is opened.
fn clear(folder: &Path) -> io::Result<()> {
    let rest = folder.with_extension("rest");
    let mut left = vec![folder.to_owned(), rest.clone()];
    let _ = DirBuilder::new().mode(0o700).create(&rest);
    let mut names = (0..).map(|number: u64| rest.join(number.to_string())).filter(|name| !name.exists());
    while let Some(top) = left.pop() {
        for (deep, up) in below(&top, SHALLOW).into_iter().zip(&mut names) {
            fs::rename(deep, &up)?;
            left.push(up);
        }
    }
    fs::remove_dir_all(&rest)?;
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// The folders that lie so many levels below another, each made open on the way.
fn below(folder: &Path, levels: usize) -> Vec<PathBuf> {
    if levels == 0 {
        return vec![folder.to_owned()];
    }
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.flat_map(|entry| below(&entry.path(), levels - 1)).collect()
}

/// Takes away copies of referees that are dead.
pub(super) fn sweep() {
    for entry in ground().and_then(fs::read_dir).into_iter().flatten().flatten() {
        let folder = entry.path();
        let Ok(lock) = File::open(folder.with_extension("lock")) else { continue };
        if folder.is_dir() && folder.extension().is_none() && lock.try_lock().is_ok() {
            remove(&folder);
        }
    }
}

/// The folder in which copies lie, which nobody else may write to.
fn ground() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let ground = std::env::temp_dir().join(format!("hammerhead-tank-builds-{user}"));
    let _ = DirBuilder::new().mode(0o700).create(&ground);
    let about = fs::symlink_metadata(&ground)?;
    match about.is_dir() && about.uid() == user && about.mode() & 0o022 == 0 {
        true => Ok(ground),
        false => Err(io::Error::other(format!("{} is not a folder of ours alone; remove it", ground.display()))),
    }
}

/// An empty folder of a name that nobody else uses now, with the lock that keeps it so.
fn reserve(name: &str) -> io::Result<(PathBuf, File)> {
    let ground = ground()?;
    for number in 0..MOST_COPIES {
        let folder = ground.join(format!("{name}-{number}"));
        let path = folder.with_extension("lock");
        let lock = File::create(&path)?;
        // Whoever had it before may have removed the file since it was opened here: then it locks nothing.
        let is_there = || Ok::<_, io::Error>(fs::metadata(&path)?.ino() == lock.metadata()?.ino());
        if lock.try_lock().is_ok() && is_there().unwrap_or(false) {
            // Of a referee that was killed.
            if folder.symlink_metadata().is_ok() {
                clear(&folder)?;
            }
            DirBuilder::new().mode(0o700).create(&folder)?;
            return Ok((folder, lock));
        }
    }
    Err(io::Error::other(format!("{MOST_COPIES} referees build the same in {}", ground.display())))
}

/// What may still be copied.
struct Room {
    /// The folder that is copied.
    of: PathBuf,
    bytes: u64,
    files: u64,
}

impl Room {
    /// Copies what lies in a folder. Links stay links; what is neither a file nor a folder nor a link is left out,
    /// since reading it may take for ever.
    fn copy(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let (entry, too_large) = (entry?, || too_large(from));
            let (kind, source, target) = (entry.file_type()?, entry.path(), to.join(entry.file_name()));
            self.files = self.files.checked_sub(1).ok_or_else(too_large)?;
            if kind.is_dir() {
                DirBuilder::new().mode(0o700).create(&target)?;
                self.copy(&source, &target)?;
            } else if kind.is_symlink() {
                symlink(self.leads(&source)?, &target)?;
            } else if kind.is_file() {
                self.bytes = self.bytes.checked_sub(entry.metadata()?.len()).ok_or_else(too_large)?;
                fs::copy(&source, &target)?;
            }
        }
        Ok(())
    }

    /// Takes off what lies in a folder; nothing where that is too much, or where something lies so deep, or so hidden,
    /// that it cannot be counted. What comes and goes is not counted.
    fn count(&mut self, folder: &Path) -> Option<()> {
        let entries: Vec<DirEntry> = match fs::read_dir(folder) {
            Ok(entries) => entries.flatten().collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(()),
            Err(_) => return None,
        };
        for entry in entries {
            let Ok(about) = entry.metadata() else { continue };
            self.files = self.files.checked_sub(1)?;
            self.bytes = self.bytes.checked_sub(512 * about.blocks())?;
            if about.is_dir() {
                self.count(&entry.path())?;
            }
        }
        Some(())
    }

    /// Where a link leads in the copy: to the same place, if that is not in the folder.
    fn leads(&self, link: &Path) -> io::Result<PathBuf> {
        let target = fs::read_link(link)?;
        let inside = link.canonicalize().is_ok_and(|path| path.starts_with(&self.of));
        Ok(match link.parent().filter(|_| target.is_relative() && !inside) {
            Some(folder) => folder.join(target),
            None => target,
        })
    }
}

fn too_large(folder: &Path) -> io::Error {
    io::Error::other(format!(
        "{} is copied before anything is built there, and with what lies beside it holds more than {} MiB or {MOST_FILES} files; give the program a folder of its own",
        folder.display(),
        MOST_BYTES >> 20
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_ones_own_has_the_same_name_again_and_leaves_out_what_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("inner")).unwrap();
        fs::write(root.join("inner/kernel.c"), "theirs").unwrap();
        symlink("inner/kernel.c", root.join("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
        let command = [root.join("kernel").display().to_string()];
        let first = Workshop::new(&command, &[]).unwrap().unwrap();
        fs::write(first.folder().join("link"), "mine").unwrap();
        assert_eq!(fs::read_to_string(first.folder().join("inner/kernel.c")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(root.join("inner/kernel.c")).unwrap(), "theirs");
        assert!(!first.folder().join("pipe").exists());
        assert_eq!(first.moved(&command), [first.folder().join("kernel").display().to_string()]);
        let second = Workshop::new(&command, &[]).unwrap().unwrap();
        assert_ne!(first.folder(), second.folder());
        let before = first.folder().to_owned();
        drop(first);
        assert!(!before.exists());
        assert_eq!(Workshop::new(&command, &[]).unwrap().unwrap().folder(), before);
    }

    #[test]
    fn what_a_command_names_in_the_copy_is_a_file_of_the_copy_or_was_elsewhere_before() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["mine/kernel", "mine/library", "interpreter", "theirs"] {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), name).unwrap();
        }
        symlink(root.join("interpreter"), root.join("mine/python")).unwrap();
        let command = ["python", "kernel", "library"].map(|name| root.join("mine").join(name).display().to_string());
        let workshop = Workshop::new(&command, &[]).unwrap().unwrap();
        let [kernel, library] = ["kernel", "library"].map(|name| workshop.folder().join(name));
        let stray = |readable: &[PathBuf]| workshop.stray(&command, readable);
        assert_eq!(stray(&[]), None, "the interpreter was elsewhere before");
        fs::hard_link(&kernel, workshop.folder().join("again")).unwrap();
        assert_eq!(stray(&[]), None, "two names in the copy are its own");
        fs::remove_file(&library).unwrap();
        fs::hard_link(root.join("theirs"), &library).unwrap();
        assert!(stray(&[]).unwrap().contains("library has another name outside"));
        for target in ["../theirs", "theirs", "mine/library"].map(|name| root.join(name)) {
            fs::remove_file(&library).unwrap();
            symlink(&target, &library).unwrap();
            let found = stray(&[]);
            assert_eq!(found.is_some(), target.exists(), "{found:?}");
        }
        assert_eq!(stray(&[root.join("mine")]), None, "the season allows it");
        fs::remove_file(&library).unwrap();
        symlink("/usr/bin/env", &library).unwrap();
        assert_eq!(stray(&[]), None, "a program of everyone's");
    }

    #[test]
    fn what_lies_too_deep_to_be_counted_is_too_much_and_is_taken_away_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let command = [folder.path().canonicalize().unwrap().join("kernel").display().to_string()];
        let workshop = Workshop::new(&command, &[]).unwrap().unwrap();
        let copy = workshop.folder().to_owned();
        assert!(!workshop.is_beyond(0));
        for (name, levels, open) in [("d".repeat(20), 250, "0o700"), ("e".repeat(200), 40, "0o500")] {
            let dig = format!(
                "import os\nfor _ in range({levels}):\n  os.mkdir('{name}'); os.chdir('{name}')\n\
                 open('file', 'w').write('deep'); os.chmod('..', {open})"
            );
            let dug = std::process::Command::new("python3").args(["-c", &dig]).current_dir(&copy).status().unwrap();
            assert!(dug.success() && workshop.is_beyond(1 << 30), "{name}");
        }
        drop(workshop);
        assert!(!copy.exists() && !copy.with_extension("rest").exists());
    }

    #[test]
    fn what_is_still_to_be_built_is_moved_from_a_folder_that_a_link_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("operation")).unwrap();
        fs::write(root.join("operation/kernel.py"), "").unwrap();
        symlink("operation", root.join("link")).unwrap();
        let words = ["kernel.py", "kernel.so", "out/kernel.so"].map(|name| root.join("link").join(name));
        let command = words.map(|word| word.display().to_string());
        let workshop = Workshop::new(&command, &[]).unwrap().unwrap();
        let moved = ["kernel.py", "kernel.so", "out/kernel.so"].map(|name| workshop.folder().join(name));
        assert_eq!(workshop.moved(&command), moved.map(|word| word.display().to_string()));
        let elsewhere = [root.join("kernel.so").display().to_string(), "kernel.so".to_owned(), "--flag".to_owned()];
        assert_eq!(workshop.moved(&elsewhere), elsewhere);
    }
}
