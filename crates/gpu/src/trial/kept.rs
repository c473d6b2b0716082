//! What came of a GPU's trial, kept on disk: a file per device, driver, family and version of the kernels.
//!
//! A few lines of text, the last of which says that all were written. What is missing, damaged or of something else is
//! tried again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use op::cache;

use super::{Place, Tried};
use crate::driver::DeviceInfo;
use crate::ways::LeftOut;

/// The environment variable that names the folder; `off` for none. [`op::cache`] has the rule.
pub const TRIALS_VARIABLE: &str = "HAMMERHEAD_TRIALS";
/// What a file begins and ends with.
const FIRST: &str = "hammerhead trial 1";
const LAST: &str = "end";

/// What a trial's outcome depends on.
#[derive(Debug)]
pub(super) struct Key(String);

impl Key {
    pub(super) fn of(info: &DeviceInfo, family: &str) -> Self {
        let DeviceInfo { name, bus, driver, .. } = info;
        Key(format!(
            "{name} at {bus}, driver {}, CUDA {driver}, family {family}, kernels {}",
            driver_version(),
            crate::KERNELS
        ))
    }

    fn file(&self) -> Option<PathBuf> {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        Some(cache::folder(TRIALS_VARIABLE)?.join(format!("trial-{:016x}.txt", hasher.finish())))
    }
}

/// Whether anything can be kept; the error says why not.
pub fn can_be_kept() -> Result<(), String> {
    let Some(folder) = cache::folder(TRIALS_VARIABLE) else { return Err("there is no folder for it".to_owned()) };
    let beside = folder.join(format!("trial-{}.tmp", std::process::id()));
    let written =
        fs::create_dir_all(&folder).and_then(|()| fs::write(&beside, "")).and_then(|()| fs::remove_file(&beside));
    written.map_err(|error| format!("{} cannot be written to ({error})", folder.display()))
}

/// The version of the driver's kernel module, where the system tells: two drivers for the same CUDA have two compilers.
pub fn driver_version() -> String {
    let text = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let version = |word: &&str| word.split('.').count() > 1 && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(version).unwrap_or("unknown").to_owned()
}

/// What is kept, if all of it is there.
pub(super) fn read(key: &Key) -> Option<Tried> {
    parse(key, &fs::read_to_string(key.file()?).ok()?)
}

/// Keeps it, if that can be.
pub(super) fn write(key: &Key, tried: &Tried) {
    let Some(file) = key.file() else { return };
    // A cache only saves time: what cannot be written is tried again.
    let _ = file.parent().map_or(Ok(()), fs::create_dir_all);
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    if fs::write(&beside, print(key, tried)).and_then(|()| fs::rename(&beside, &file)).is_err() {
        let _ = fs::remove_file(&beside);
    }
}

/// Takes away what is kept, if anything is.
pub(super) fn forget(key: &Key) {
    let _ = key.file().map(fs::remove_file);
}

fn print(key: &Key, tried: &Tried) -> String {
    let place = match tried.place {
        Place::Apart => "apart",
        Place::Here => "here",
    };
    let mut lines = vec![FIRST.to_owned(), key.0.clone(), format!("{} of {} ways {place}", tried.right, tried.ways)];
    let flat = |text: &str| text.replace(['\n', '\t'], " ");
    lines.extend(tried.left_out.iter().map(|LeftOut { way, reason }| format!("{way}\t{}", flat(reason))));
    lines.push(LAST.to_owned());
    lines.join("\n") + "\n"
}

fn parse(key: &Key, text: &str) -> Option<Tried> {
    let lines: Vec<&str> = text.lines().collect();
    let [FIRST, of, ways, left_out @ .., LAST] = &lines[..] else { return None };
    let (ways, place) = ways.split_once(" ways ")?;
    let (right, ways) = ways.split_once(" of ")?;
    let place = match place {
        "apart" => Place::Apart,
        "here" => Place::Here,
        _ => return None,
    };
    let each = |line: &&str| {
        let (way, reason) = line.split_once('\t')?;
        Some(LeftOut { way: way.parse().ok()?, reason: reason.to_owned() })
    };
    let left_out = left_out.iter().map(each).collect::<Option<Vec<_>>>()?;
    (**of == *key.0).then_some(Tried { ways: ways.parse().ok()?, right: right.parse().ok()?, place, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_read_back_and_nothing_else_is() {
        let key = Key("B200 at 0, driver 580, family sm100".to_owned());
        let left_out =
            vec![LeftOut { way: "NVFP4 tokens, pair".parse().unwrap(), reason: "a\nfault\there".to_owned() }];
        let tried = Tried { ways: 7, right: 6, place: Place::Apart, left_out };
        let text = print(&key, &tried);
        let read = parse(&key, &text).expect("whole");
        assert_eq!((read.ways, read.right, read.place), (7, 6, Place::Apart));
        assert_eq!(read.left_out[0].way, tried.left_out[0].way);
        assert_eq!(read.left_out[0].reason, "a fault here");
        assert_eq!(parse(&Key("another".to_owned()), &text), None, "another driver");
        for cut in 0..text.len() - 1 {
            assert!(parse(&key, &text[..cut]).is_none(), "cut at {cut}");
        }
        assert_eq!(parse(&key, &text.replace("pair", "pear")), None);
    }
}
