//! The tuning cache: configurations that the tank has measured to be faster on this machine than the planner's own choice.
//!
//! One JSON file a machine, named by its fingerprint, in the folder that [`TUNING_VARIABLE`] names. It is a history: an
//! entry is added at the end or retired, never changed, so that the one before it can be restored. Whatever is wrong with
//! the file, or with an entry for a problem at hand, costs the tuning and nothing else: the planner then chooses as if
//! there were none, and [`Tuning::complaint`] says why.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use op::{Config, Error, Problem, Request, Result, Shape};

/// The environment variable that names the folder of the tuning cache; `off` disables it.
pub const TUNING_VARIABLE: &str = "HAMMERHEAD_TUNING";
/// The version of the file's layout.
const SCHEMA: u32 = 1;

/// Problems that are alike enough to share a configuration, on so many threads: the same types, as many matrices, and
/// groups, tokens, columns and k rounded up to powers of two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket(String);

impl Bucket {
    /// The bucket of a problem.
    pub fn of(problem: &Problem, threads: usize) -> Self {
        let largest = |side: fn(&Shape) -> usize| {
            problem.groups().iter().map(side).max().unwrap_or(0).checked_next_power_of_two().unwrap_or(0)
        };
        Self(format!(
            "{}→{} ×{} g{} m{} n{} k{} t{threads}",
            problem.activation(),
            problem.output(),
            problem.matrices(),
            problem.groups().len().next_power_of_two(),
            largest(|s| s.m),
            largest(|s| s.n),
            largest(|s| s.k),
        ))
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A configuration that won, and where that is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// The bucket that it serves.
    pub bucket: String,
    /// The problem that it was measured on.
    pub problem: String,
    /// The backend.
    pub backend: String,
    /// The whole configuration.
    pub config: String,
    /// How much faster it was than the planner's choice.
    pub speedup: f64,
    /// The hash of the ledger's record that says so.
    pub record: String,
    /// When.
    pub at: String,
    /// Whether it was taken back.
    #[serde(default)]
    pub retired: bool,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Store {
    schema: u32,
    machine: String,
    cpu: String,
    entries: Vec<Tuned>,
}

/// What is known about this machine.
#[derive(Debug, Default)]
pub struct Tuning {
    history: Vec<Tuned>,
    current: HashMap<Bucket, (Tuned, Config)>,
    complaint: Option<String>,
}

impl Tuning {
    /// What this process plans by: read once, from the folder that the environment names.
    pub fn installed() -> &'static Tuning {
        static INSTALLED: OnceLock<Tuning> = OnceLock::new();
        INSTALLED.get_or_init(|| folder().map_or_else(Tuning::default, |folder| Tuning::load(&folder)))
    }

    /// Reads a folder. What cannot be read is as good as not there, and complained about.
    pub fn load(folder: &Path) -> Self {
        let machine = Machine::detect();
        match read(&path(folder, &machine), &machine) {
            Ok(history) => Self::of(history),
            Err(complaint) => Self { complaint: Some(complaint), ..Self::default() },
        }
    }

    fn of(history: Vec<Tuned>) -> Self {
        let mut tuning = Self::default();
        for tuned in history.iter().filter(|tuned| !tuned.retired) {
            match tuned.config.parse::<Request>().ok().and_then(|request| request.complete()) {
                Some(config) => {
                    tuning.current.insert(Bucket(tuned.bucket.clone()), (tuned.clone(), config));
                }
                None => {
                    let Tuned { bucket, config, .. } = tuned;
                    tuning.complaint =
                        Some(format!("the tuning cache's entry for '{bucket}' is not a configuration: {config}"));
                }
            }
        }
        Self { history, ..tuning }
    }

    /// The configuration for a bucket, if there is one.
    pub fn find(&self, bucket: &Bucket) -> Option<&(Tuned, Config)> {
        self.current.get(bucket)
    }

    /// Kinds of problems of which something is known.
    pub fn len(&self) -> usize {
        self.current.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    /// Every entry there ever was, oldest first.
    pub fn history(&self) -> &[Tuned] {
        &self.history
    }

    /// What is wrong with the cache, if anything.
    pub fn complaint(&self) -> Option<&str> {
        self.complaint.as_deref()
    }
}

/// The folder that the environment names, or the user's own; none where it is switched off or nobody has a home.
pub fn folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match named(TUNING_VARIABLE) {
        Some(off) if off.as_os_str() == "off" => None,
        Some(folder) => Some(folder),
        None => {
            named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache"))).map(|home| home.join("hammerhead"))
        }
    }
}

fn path(folder: &Path, machine: &Machine) -> PathBuf {
    folder.join(format!("tuning-{}.json", machine.fingerprint))
}

fn read(path: &Path, machine: &Machine) -> Result<Vec<Tuned>, String> {
    let refused = |problem: String| format!("the tuning cache {} is ignored: {problem}", path.display());
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refused(error.to_string())),
    };
    let store: Store = serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    if store.schema != SCHEMA {
        return Err(refused(format!("its layout has version {}, this program knows {SCHEMA}", store.schema)));
    }
    if store.machine != machine.fingerprint {
        return Err(refused(format!("it is of another machine, {} ({})", store.machine, store.cpu)));
    }
    Ok(store.entries)
}

/// Adds entries to the cache of a folder; those that are there already, by record and bucket, are left as they are, be
/// they retired or not. A file that cannot be read is put aside, not lost.
pub fn install(folder: &Path, entries: Vec<Tuned>) -> Result<()> {
    change(folder, |history| {
        for entry in entries {
            if !history.iter().any(|old| old.record == entry.record && old.bucket == entry.bucket) {
                history.push(entry);
            }
        }
    })
}

/// Takes the current entry of a bucket back, and says which that was and which one counts from now on.
pub fn retire(folder: &Path, bucket: &str) -> Result<Option<(Tuned, Option<Tuned>)>> {
    let mut outcome = None;
    change(folder, |history| {
        let current = |history: &[Tuned]| history.iter().rposition(|t| t.bucket == bucket && !t.retired);
        if let Some(index) = current(history) {
            history[index].retired = true;
            outcome = Some((history[index].clone(), current(history).map(|index| history[index].clone())));
        }
    })?;
    Ok(outcome)
}

/// Reads the history, changes it and writes it whole or not at all, alone among all processes.
fn change(folder: &Path, edit: impl FnOnce(&mut Vec<Tuned>)) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source: std::io::Error| Error::Tuning { path, source }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let lock = folder.join("tuning.lock");
    let lock = File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(failed(&lock))?;
    let machine = Machine::detect();
    let path = path(folder, &machine);
    let mut history = match read(&path, &machine) {
        Ok(history) => history,
        Err(_) => {
            fs::rename(&path, path.with_extension("json.unreadable")).map_err(failed(&path))?;
            Vec::new()
        }
    };
    edit(&mut history);
    let store = Store { schema: SCHEMA, machine: machine.fingerprint, cpu: machine.cpu, entries: history };
    let text = serde_json::to_string_pretty(&store).map_err(|error| failed(&path)(error.into()))?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed(folder))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed(&path))?;
    file.persist(&path).map_err(|error| failed(&path)(error.error))?;
    drop(lock);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use op::{Activation, Gate, Output};

    const CONFIG: &str = "strategy=interleaved,tile=16x32,depth=64,stages=1,epilogue=direct,schedule=tile";

    fn problem(m: usize, n: usize) -> Problem {
        Problem::new(vec![Shape::new(m, n, 64)], Gate::Silu, Activation::NvFp4, Output::F16).unwrap()
    }

    fn tuned(record: &str, config: &str) -> Tuned {
        Tuned {
            bucket: Bucket::of(&problem(16, 32), 1).to_string(),
            problem: "16×32×64".into(),
            backend: "scalar".into(),
            config: config.into(),
            speedup: 1.1,
            record: record.into(),
            at: "2026-01-01T00:00:00Z".into(),
            retired: false,
        }
    }

    fn current(folder: &Path) -> Option<String> {
        Tuning::load(folder).find(&Bucket::of(&problem(16, 32), 1)).map(|(tuned, _)| tuned.record.clone())
    }

    #[test]
    fn a_bucket_holds_problems_that_are_alike_and_no_others() {
        let bucket = |m, n, threads| Bucket::of(&problem(m, n), threads);
        assert_eq!(bucket(200, 100, 2), bucket(256, 128, 2));
        assert_ne!(bucket(256, 128, 2), bucket(257, 128, 2));
        assert_ne!(bucket(256, 128, 2), bucket(256, 129, 2));
        assert_ne!(bucket(256, 128, 2), bucket(256, 128, 1));
    }

    #[test]
    fn the_newest_entry_counts_and_taking_it_back_restores_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(current(folder.path()), None);
        install(folder.path(), vec![tuned("first", CONFIG)]).unwrap();
        install(folder.path(), vec![tuned("second", CONFIG), tuned("first", CONFIG)]).unwrap();
        assert_eq!(current(folder.path()).as_deref(), Some("second"));
        let bucket = tuned("", "").bucket;
        let (gone, back) = retire(folder.path(), &bucket).unwrap().unwrap();
        assert_eq!((gone.record.as_str(), back.unwrap().record.as_str()), ("second", "first"));
        assert_eq!(current(folder.path()).as_deref(), Some("first"));
        install(folder.path(), vec![tuned("second", CONFIG)]).unwrap();
        assert_eq!(current(folder.path()).as_deref(), Some("first"), "what was taken back does not return by itself");
        retire(folder.path(), &bucket).unwrap();
        assert_eq!((current(folder.path()), retire(folder.path(), &bucket).unwrap()), (None, None));
    }

    #[test]
    fn a_corrupt_cache_is_ignored_told_and_put_aside_by_the_next_entry() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), &Machine::detect());
        for text in ["", "{", "[]", "{\"schema\":99,\"machine\":\"\",\"cpu\":\"\",\"entries\":[]}"] {
            fs::write(&file, text).unwrap();
            let tuning = Tuning::load(folder.path());
            assert!(tuning.is_empty() && tuning.complaint().unwrap().contains("ignored"), "{text:?}");
        }
        install(folder.path(), vec![tuned("new", CONFIG)]).unwrap();
        assert_eq!(current(folder.path()).as_deref(), Some("new"));
        assert!(file.with_extension("json.unreadable").exists());
    }

    #[test]
    fn the_cache_of_another_machine_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), vec![tuned("x", CONFIG)]).unwrap();
        let file = path(folder.path(), &Machine::detect());
        let text = fs::read_to_string(&file).unwrap().replace(&Machine::detect().fingerprint, "0123456789abcdef");
        fs::write(&file, text).unwrap();
        assert!(Tuning::load(folder.path()).complaint().unwrap().contains("another machine"));
    }

    #[test]
    fn an_entry_that_is_no_configuration_is_left_out_and_told() {
        let folder = tempfile::tempdir().unwrap();
        install(folder.path(), vec![tuned("good", CONFIG), tuned("bad", "tile=16x32")]).unwrap();
        assert_eq!(current(folder.path()).as_deref(), Some("good"));
        assert!(Tuning::load(folder.path()).complaint().unwrap().contains("tile=16x32"));
    }
}
