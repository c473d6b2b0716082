//! How fast this machine's processor is, measured once and kept.
//!
//! The planner's model counts work; how long each piece takes differs from machine to machine, so it is measured before
//! the first plan that a CPU may compute, in less than a second, and kept in a file per machine beside the tuning
//! cache. Every process plans by what the file says, so all plan alike. A file that cannot be read, or that is of
//! another machine or of other kernels, is measured anew. Where nothing can be kept, nothing is measured either: plans
//! would differ from process to process, and with them the last bits of results. Then, and where
//! [`TUNING_VARIABLE`](crate::tuning::TUNING_VARIABLE) is `off`, plans go by the speeds that the kernels' authors
//! found.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cpu::Speeds;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::tuning;

/// The version of the file's layout.
const SCHEMA: u32 = 1;

/// Where the speeds come from that plans go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// They were measured on this machine, now or earlier, and are kept in this file.
    Measured(PathBuf),
    /// They are those that the kernels' authors found, because the cache is switched off or nobody has a home.
    Off,
    /// They are those that the kernels' authors found, because of this.
    Refused(String),
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Store {
    schema: u32,
    machine: String,
    kernels: String,
    speeds: BTreeMap<String, f64>,
}

/// Sees to it that this process plans by the speeds of this machine, and says where they come from. The first call may
/// measure them; the speeds themselves are [`Speeds::installed`].
pub fn settled() -> &'static Origin {
    static SETTLED: OnceLock<Origin> = OnceLock::new();
    SETTLED.get_or_init(|| {
        let Some(folder) = tuning::folder() else { return Origin::Off };
        let path = path(&folder, &Machine::detect());
        match kept(&path, || cpu::measure().map_err(io::Error::other)) {
            Ok(speeds) if speeds.clone().install() || *Speeds::installed() == speeds => Origin::Measured(path),
            Ok(_) => Origin::Refused("there was a plan before they were known".into()),
            Err(error) => Origin::Refused(format!("{}: {error}", path.display())),
        }
    })
}

fn path(folder: &Path, machine: &Machine) -> PathBuf {
    folder.join(format!("speeds-{}.json", machine.fingerprint))
}

/// What the file says; where it says nothing for this machine and these kernels, measured and written first, by one
/// process while others wait.
fn kept(path: &Path, measure: impl FnOnce() -> io::Result<Speeds>) -> io::Result<Speeds> {
    let machine = Machine::detect().fingerprint;
    if let Some(speeds) = read(path, &machine) {
        return Ok(speeds);
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let _lock = File::create(folder.join("speeds.lock")).and_then(|file| file.lock().map(|()| file))?;
    if let Some(speeds) = read(path, &machine) {
        return Ok(speeds);
    }
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let speeds = measure()?.entries().into_iter().collect();
    let store = Store { schema: SCHEMA, machine: machine.clone(), kernels: cpu::KERNELS.to_owned(), speeds };
    file.write_all(serde_json::to_string_pretty(&store)?.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    // Read back, so that this process goes by the very numbers that the next one will.
    read(path, &machine).ok_or_else(|| io::Error::other("what was written cannot be read back"))
}

fn read(path: &Path, machine: &str) -> Option<Speeds> {
    let store: Store = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let ours = store.schema == SCHEMA && store.machine == machine && store.kernels == cpu::KERNELS;
    ours.then(|| Speeds::from_entries(&store.speeds.into_iter().collect::<Vec<_>>()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Speeds that differ from the stated ones in their first number.
    fn speeds(thread: f64) -> Speeds {
        let mut entries = Speeds::stated().entries();
        entries[0].1 = thread;
        entries.push(("amx tiles walk expand".into(), 1.25e-8));
        Speeds::from_entries(&entries).unwrap()
    }

    fn file(folder: &tempfile::TempDir) -> PathBuf {
        path(folder.path(), &Machine::detect())
    }

    #[test]
    fn speeds_are_measured_once_and_then_read() {
        let folder = tempfile::tempdir().unwrap();
        let first = kept(&file(&folder), || Ok(speeds(5e9))).unwrap();
        let entries = |speeds: &Speeds| speeds.entries().into_iter().collect::<BTreeMap<_, _>>();
        assert_eq!(entries(&first), entries(&speeds(5e9)));
        let again = kept(&file(&folder), || panic!("it was measured before")).unwrap();
        assert_eq!(again, first);
    }

    #[test]
    fn a_file_that_is_damaged_or_not_of_this_machine_and_these_kernels_is_measured_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(&folder);
        kept(&file, || Ok(speeds(5e9))).unwrap();
        let good = fs::read_to_string(&file).unwrap();
        let fingerprint = Machine::detect().fingerprint;
        let bad = [
            String::new(),
            "{".into(),
            good.replace(&fingerprint, "0123456789abcdef"),
            good.replace(cpu::KERNELS, "another"),
            good.replace("bytes thread", "bytes"),
            good.replace("1.25e-8", "-1"),
            good.replace("1.25e-8", "1e999"),
        ];
        for text in bad {
            assert_ne!(text, good);
            fs::write(&file, &text).unwrap();
            let found = kept(&file, || Ok(speeds(7e9))).unwrap();
            assert_eq!(found.entries()[0].1, 7e9, "{text}");
            assert_eq!(read(&file, &fingerprint), Some(found), "{text}");
        }
    }

    #[test]
    fn where_nothing_can_be_kept_nothing_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let not_a_folder = folder.path().join("file");
        fs::write(&not_a_folder, "").unwrap();
        assert!(kept(&not_a_folder.join("speeds.json"), || panic!("in vain")).is_err());
    }
}
