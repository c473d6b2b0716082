//! The tuning cache: configurations that the tank has measured to be faster on this machine than the planner's own
//! choice.
//!
//! One JSON file per machine, named by its fingerprint, in the folder that [`TUNING_VARIABLE`] names. It is a history:
//! an entry is added at the end or retired, never changed, so that the one before it can be restored. Whatever is wrong
//! with the file, or with an entry for a problem at hand, costs the tuning and nothing else: the planner then chooses
//! as if there were none, and [`Tuning::complaint`] says why.
//!
//! An entry holds for one kind of problems ([`Bucket`]) and for what was measured ([`Measured`]): a family of backends,
//! a model of a device, a version of kernels. Backends have entries beside each other; those of other kernels are kept
//! and not used. An entry got here by beating what the planner chooses when no backend is forced, so it is preferred to
//! all backends that a plan weighs beside its own. Of several, the newest is: it has beaten the ones before.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use format::Scaling;
use serde::{Deserialize, Serialize};

use crate::backends;
use crate::machine::Machine;
use op::{Backend, Config, Error, Precision, Problem, Request, Result, Shape, cache};

/// The environment variable that names the folder of the tuning cache; `off` disables it. [`op::cache`] has the rule.
pub const TUNING_VARIABLE: &str = "HAMMERHEAD_TUNING";
/// The version of the file's layout. The first one did not say which kernels were measured.
const SCHEMA: u32 = 2;

/// Problems that are alike enough to share a configuration, on so many threads: the same types, as many matrices, and
/// groups, tokens, columns and k rounded up to powers of two; of whole layers, the same that is computed behind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket(String);

impl Bucket {
    /// The bucket of a problem.
    pub fn of(problem: &Problem, threads: usize) -> Self {
        let largest = |side: fn(&Shape) -> usize| {
            problem.groups().iter().map(side).max().unwrap_or(0).checked_next_power_of_two().unwrap_or(0)
        };
        let whole = problem.whole().map_or(String::new(), |whole| {
            let invariant = if whole.batch_invariant { " invariant" } else { "" };
            let scaled = whole.scaled.map(u8::from);
            let (top, between) = (whole.top, whole.intermediate);
            let width = whole.width.next_power_of_two();
            format!(" layer of top {top} w{width} {between} scaled {}{}{invariant}", scaled[0], scaled[1])
        });
        Self(format!(
            "{}{}{}→{} ×{} g{} m{} n{} k{}{whole} t{threads}",
            problem.activation(),
            if problem.precision() == Precision::Fp8 { " as fp8" } else { "" },
            scales(problem.scaling()),
            problem.output(),
            problem.matrices(),
            problem.groups().len().next_power_of_two(),
            largest(|s| s.m),
            largest(|s| s.n),
            largest(|s| s.k),
        ))
    }
}

/// The weights' kind, where they are not NVFP4.
fn scales(scaling: Scaling) -> String {
    match scaling {
        Scaling::NvFp4 => String::new(),
        Scaling::MxFp4 | Scaling::WideMxFp4 => " by mxfp4".to_owned(),
        other => format!(" by {other}"),
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a measurement holds for, beside the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The family of backends: `cuda` for every device.
    pub backend: String,
    /// The model of the device; empty where that is the processor.
    pub device: String,
    /// The version of the kernels.
    pub kernels: String,
}

impl Measured {
    /// What a measurement of a backend would hold for today.
    pub fn of(backend: &dyn Backend) -> Self {
        let (name, device, kernels) = (backend.base_name(), backend.device_model(), backend.kernels());
        Self { backend: name.to_owned(), device: device.to_owned(), kernels: kernels.to_owned() }
    }

    /// Whether it holds for a backend.
    fn holds_for(&self, backend: &dyn Backend) -> bool {
        self.backend == backend.base_name()
            && self.kernels == backend.kernels()
            && self.device == backend.device_model()
    }

    /// Whether this program has other kernels than those.
    fn is_outdated(&self) -> bool {
        backends::by_name(&self.backend).map_or(true, |backend| backend.kernels() != self.kernels)
    }
}

/// A configuration that won, and where that is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// The bucket that it serves.
    pub bucket: String,
    /// What was measured.
    pub measured: Measured,
    /// The problem that it was measured on.
    pub problem: String,
    /// The whole configuration.
    pub config: String,
    /// How much faster it was than the planner's choice.
    pub speedup: f64,
    /// The hash of the ledger's record that says so.
    pub record: String,
    /// When it was measured, as the ledger writes time.
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

/// What every version of the file begins with.
#[derive(Debug, Deserialize)]
struct Layout {
    schema: u32,
}

/// What an entry of the history is good for today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The planner uses it.
    Champion,
    /// A newer one is used.
    Before,
    /// Somebody took it back.
    TakenBack,
    /// It was measured with other kernels than this program's.
    Outdated,
}

/// What is known about this machine.
#[derive(Debug, Default)]
pub struct Tuning {
    history: Vec<Tuned>,
    /// The champions of a kind of problems, as places in the history, newest first; one for each thing that was
    /// measured.
    champions: HashMap<Bucket, Vec<(usize, Config)>>,
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
        for (index, tuned) in history.iter().enumerate().rev() {
            let Tuned { bucket, measured, config, .. } = tuned;
            let champions = tuning.champions.get(&Bucket(bucket.clone()));
            let beaten =
                champions.is_some_and(|known| known.iter().any(|(newer, _)| history[*newer].measured == *measured));
            if tuned.retired || beaten || measured.is_outdated() {
                continue;
            }
            match config.parse::<Request>().ok().and_then(|request| request.complete()) {
                Some(whole) => tuning.champions.entry(Bucket(bucket.clone())).or_default().push((index, whole)),
                None => {
                    let complaint = format!("the tuning cache's entry for '{bucket}' is not a configuration: {config}");
                    tuning.complaint = Some(complaint);
                }
            }
        }
        Self { history, ..tuning }
    }

    /// What is known for a kind of problems about any of these backends, newest first.
    pub fn known<'a>(
        &'a self,
        bucket: &Bucket,
        backends: &'a [&'static dyn Backend],
    ) -> impl Iterator<Item = (&'static dyn Backend, &'a Tuned, Config)> + use<'a> {
        let champions = self.champions.get(bucket).map_or(&[][..], Vec::as_slice);
        champions.iter().filter_map(|&(index, config)| {
            let tuned = &self.history[index];
            let backend = backends.iter().copied().find(|backend| tuned.measured.holds_for(*backend))?;
            Some((backend, tuned, config))
        })
    }

    /// Champions, of all kinds of problems and all backends.
    pub fn len(&self) -> usize {
        self.champions.values().map(Vec::len).sum()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.champions.is_empty()
    }

    /// What an entry of the history is good for.
    pub fn standing(&self, tuned: &Tuned) -> Standing {
        let champions = self.champions.get(&Bucket(tuned.bucket.clone())).map_or(&[][..], Vec::as_slice);
        if tuned.retired {
            Standing::TakenBack
        } else if tuned.measured.is_outdated() {
            Standing::Outdated
        } else if champions.iter().any(|(index, _)| self.history[*index] == *tuned) {
            Standing::Champion
        } else {
            Standing::Before
        }
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
    cache::folder(TUNING_VARIABLE)
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
    let Layout { schema } = serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    if schema != SCHEMA {
        return Err(refused(format!(
            "its layout has version {schema} and this program knows {SCHEMA}; the next champion puts it aside"
        )));
    }
    let store: Store = serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    if store.machine != machine.fingerprint {
        return Err(refused(format!("it is of another machine, {} ({})", store.machine, store.cpu)));
    }
    Ok(store.entries)
}

/// Adds entries to the cache of a folder; those that are there already, by record, bucket and what was measured, are
/// left as they are, be they retired or not. A file that cannot be read is put aside, not lost.
pub fn install(folder: &Path, entries: Vec<Tuned>) -> Result<()> {
    change(folder, |history| {
        for entry in entries {
            let same = |old: &Tuned| {
                (&old.record, &old.bucket, &old.measured) == (&entry.record, &entry.bucket, &entry.measured)
            };
            if !history.iter().any(same) {
                history.push(entry);
            }
        }
    })
}

/// Takes the newest entry of a bucket for what was measured back, and says which that was and which one counts from now
/// on.
pub fn retire(folder: &Path, bucket: &str, measured: &Measured) -> Result<Option<(Tuned, Option<Tuned>)>> {
    let mut outcome = None;
    change(folder, |history| {
        let same = |t: &Tuned| t.bucket == bucket && t.measured == *measured && !t.retired;
        let current = |history: &[Tuned]| history.iter().rposition(same);
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

    fn scalar() -> Measured {
        Measured::of(backends::by_name("scalar").unwrap())
    }

    fn tuned(record: &str, config: &str) -> Tuned {
        Tuned {
            bucket: Bucket::of(&problem(16, 32), 1).to_string(),
            measured: scalar(),
            problem: "16×32×64".into(),
            config: config.into(),
            speedup: 1.1,
            record: record.into(),
            at: "2026-01-01T00:00:00Z".into(),
            retired: false,
        }
    }

    /// The records of what is known about a backend, newest first.
    fn records_of(folder: &Path, backend: &str) -> Vec<String> {
        let (tuning, backends) = (Tuning::load(folder), [backends::by_name(backend).unwrap()]);
        let known = tuning.known(&Bucket::of(&problem(16, 32), 1), &backends);
        known.map(|(_, tuned, _)| tuned.record.clone()).collect()
    }

    fn current(folder: &Path) -> Option<String> {
        records_of(folder, "scalar").first().cloned()
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
        let (gone, back) = retire(folder.path(), &bucket, &scalar()).unwrap().unwrap();
        assert_eq!((gone.record.as_str(), back.unwrap().record.as_str()), ("second", "first"));
        assert_eq!(current(folder.path()).as_deref(), Some("first"));
        install(folder.path(), vec![tuned("second", CONFIG)]).unwrap();
        assert_eq!(current(folder.path()).as_deref(), Some("first"), "what was taken back does not return by itself");
        retire(folder.path(), &bucket, &scalar()).unwrap();
        assert_eq!((current(folder.path()), retire(folder.path(), &bucket, &scalar()).unwrap()), (None, None));
    }

    #[test]
    fn an_entry_of_one_backend_does_not_hide_that_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let cuda = Measured::of(backends::by_name("cuda").unwrap());
        let other = Tuned { measured: cuda.clone(), ..tuned("cuda's", CONFIG) };
        install(folder.path(), vec![tuned("scalar's", CONFIG), other]).unwrap();
        assert_eq!(records_of(folder.path(), "scalar"), ["scalar's"]);
        assert_eq!(records_of(folder.path(), "cuda"), ["cuda's"]);
        let bucket = tuned("", "").bucket;
        assert_eq!(retire(folder.path(), &bucket, &cuda).unwrap().unwrap().0.record, "cuda's");
        assert_eq!(records_of(folder.path(), "scalar"), ["scalar's"], "and each is taken back by itself");
    }

    #[test]
    fn an_entry_serves_every_device_of_the_model_that_was_measured_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let second = Measured::of(backends::by_name("cuda:1").unwrap());
        assert_eq!(second.backend, "cuda");
        let another = Measured { device: format!("not {}", second.device), ..second.clone() };
        let entry = |record, measured| Tuned { measured, ..tuned(record, CONFIG) };
        install(folder.path(), vec![entry("here", second), entry("elsewhere", another)]).unwrap();
        assert_eq!(records_of(folder.path(), "cuda:1"), ["here"]);
    }

    #[test]
    fn what_was_measured_with_other_kernels_is_kept_and_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let old = Measured { kernels: "0.0.1-0123456789abcdef".into(), ..scalar() };
        let unknown = Measured { backend: "abacus".into(), ..scalar() };
        let entry = |record, measured| Tuned { measured, ..tuned(record, CONFIG) };
        let entries = vec![tuned("today's", CONFIG), entry("old", old), entry("unknown", unknown)];
        install(folder.path(), entries).unwrap();
        assert_eq!(records_of(folder.path(), "scalar"), ["today's"]);
        let tuning = Tuning::load(folder.path());
        let standings: Vec<Standing> = tuning.history().iter().map(|tuned| tuning.standing(tuned)).collect();
        assert_eq!(standings, [Standing::Champion, Standing::Outdated, Standing::Outdated]);
        assert_eq!((tuning.len(), tuning.complaint()), (1, None));
    }

    #[test]
    fn a_cache_of_the_first_layout_is_refused_by_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let entry =
            r#"{"bucket":"b","problem":"p","backend":"scalar","config":"c","speedup":1.1,"record":"r","at":""}"#;
        let text = format!(r#"{{"schema":1,"machine":"m","cpu":"c","entries":[{entry}]}}"#);
        fs::write(path(folder.path(), &Machine::detect()), text).unwrap();
        let tuning = Tuning::load(folder.path());
        let complaint = tuning.complaint().unwrap();
        assert!(tuning.is_empty() && complaint.contains("version 1 and this program knows 2"), "{complaint}");
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
