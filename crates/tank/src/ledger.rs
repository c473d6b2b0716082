//! The ledger: what happened, in order, for good.
//!
//! One JSON object a line. Each holds the hash of the line before it, and ends with a hash of its own over every byte
//! that stands before that; so a line that was changed, removed, inserted or moved is found, and told by its number.
//! What a chain cannot show is that its end was cut off, or that somebody who knows how has added to it: for that, the
//! head is noted in another folder ([`Ledger::open_noted`]), announced before each line is written and confirmed after,
//! and reports print it. Nor does a chain show that a sitting was held with another seed than was settled before it
//! began: the digest that was written then is held against the seed that is told afterwards ([`check_seeds`]).
//!
//! A line is written at once and synced before anything goes on. If the machine dies in the middle, the last line is
//! torn; it is cut off when the ledger is opened again, and that is recorded too. One writer at a time: the file is
//! locked.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use referee::digits::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::event::{Event, Recovered};
use crate::{Error, Result};

/// How long a lock is waited for. Of a referee that was killed, a child that was about to become a contestant may hold
/// it a moment longer.
const PARTING: Duration = Duration::from_secs(2);

/// What the first line says of the line before it.
const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// What stands between the bytes that are hashed and the hash.
const SEAM: &str = ",\"hash\":\"";

/// One line, as it is read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its number, from 1.
    pub n: u64,
    /// When it was written, in UTC.
    pub at: String,
    /// The season it belongs to, counted from 1; 0 for what belongs to none.
    pub season: u32,
    /// The hash of the line before.
    pub prev: String,
    /// What happened.
    pub event: Event,
    /// The hash of this line.
    pub hash: String,
}

/// What is hashed: all of a record but its hash.
#[derive(Serialize)]
struct Body<'a> {
    n: u64,
    at: &'a str,
    season: u32,
    prev: &'a str,
    event: &'a Event,
}

/// A ledger that is open for writing.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
    /// Where its head is noted, if it is.
    note: Option<PathBuf>,
    noted: Noted,
}

/// A ledger's end: how many records it has and the last one's hash.
type Head = (usize, String);

/// What is noted of a ledger: its end, and the one that it has if the line that was announced came to be written.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    head: Head,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    announced: Option<Head>,
}

/// Whether the end of a ledger could be held against a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// Its end is the one that was noted.
    Confirmed,
    /// No note of it is known here: nothing can be said of its end.
    Unknown,
    /// One of so many records lay here, and is gone with its file. This one begins anew; the note of the other's end
    /// was put aside.
    Anew(usize),
}

/// A ledger's text, checked from the first line to the last.
#[derive(Debug)]
pub struct Checked {
    /// The records.
    pub records: Vec<Record>,
    /// The length of the text that holds them.
    pub whole: usize,
    /// What stands after it: a line that was not finished.
    pub torn: Vec<u8>,
}

/// Reads and checks a ledger without locking it. A torn last line is left out and told.
pub fn read(path: &Path) -> Result<Checked> {
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    let checked = check(path, &bytes)?;
    check_seeds(path, &checked.records)?;
    Ok(checked)
}

/// What is written of a seed before it is told.
pub fn digest_of_seed(seed: u64) -> String {
    hex(&Sha256::digest(seed.to_string()))
}

/// Refuses a sitting whose seed is another than the one that was settled before it began, and one for which none was. A
/// sitting from before digests were written down is held against nothing: no sitting before it has one.
pub fn check_seeds(path: &Path, records: &[Record]) -> Result<()> {
    let (mut settled, mut first) = (BTreeMap::new(), None);
    let refused = |record: &Record, problem: String| {
        Err(Error::Tampered { path: path.to_path_buf(), line: record.n as usize, problem })
    };
    for record in records {
        match &record.event {
            Event::Seated(seated) => {
                first.get_or_insert(record.n);
                let key = (record.season, &seated.round, &seated.pitch);
                settled.insert(key, (record.n, &seated.seed_digest));
            }
            Event::Sat(sat) => {
                let before = settled.remove(&(record.season, &sat.round, &sat.pitch));
                if let (None, Some(first)) = (before, first) {
                    let problem = format!(
                        "the sitting of '{}' was not written down before it began, as they are since record {first}",
                        sat.pitch
                    );
                    return refused(record, problem);
                }
                let (Some((begun, digest)), Some(sitting)) = (before, &sat.sitting) else { continue };
                let told = digest_of_seed(sitting.seed);
                if told != *digest {
                    let problem = format!(
                        "the sitting of '{}' was held with a seed of the digest {told:.12}…, but record {begun} settled {digest:.12}… before it began",
                        sat.pitch
                    );
                    return refused(record, problem);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks every line of a ledger; `path` is where it came from, for the message.
pub fn check(path: &Path, bytes: &[u8]) -> Result<Checked> {
    let mut records: Vec<Record> = Vec::new();
    let mut whole = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let previous = records.last().map_or(GENESIS, |record| record.hash.as_str());
        let checked = check_line(line.strip_suffix(b"\n").unwrap_or(line), previous, records.len() as u64 + 1);
        match checked {
            Ok(record) => {
                records.push(record);
                whole += line.len();
            }
            // Only the last line can be without an end, and only a line that was not finished is.
            Err(_) if !line.ends_with(b"\n") => break,
            Err(problem) => {
                return Err(Error::Tampered { path: path.to_path_buf(), line: records.len() + 1, problem });
            }
        }
    }
    Ok(Checked { records, whole, torn: bytes[whole..].to_vec() })
}

/// One line against what must stand there.
fn check_line(line: &[u8], previous: &str, number: u64) -> Result<Record, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not text".to_owned())?;
    let seam = text.rfind(SEAM).ok_or("it has no hash")?;
    let hash = text[seam + SEAM.len()..].strip_suffix("\"}").ok_or("it does not end with its hash")?;
    let computed = hex(&Sha256::digest(&text.as_bytes()[..seam]));
    if computed != hash {
        return Err(format!("its bytes have the hash {}…, but it says {hash:.12}…", &computed[..12]));
    }
    let record: Record = serde_json::from_str(text).map_err(|error| format!("it cannot be read: {error}"))?;
    if record.prev != previous {
        return Err(format!(
            "it follows a line with the hash {:.12}…, but the line before has {previous:.12}…",
            record.prev
        ));
    }
    if record.n != number {
        return Err(format!("it is numbered {}, but stands in place {number}", record.n));
    }
    Ok(record)
}

/// The file in which a ledger's head is noted.
fn note_of(path: &Path, notes: &Path) -> PathBuf {
    let place = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    notes.join(format!("{}.head", &hex(&Sha256::digest(place.as_os_str().as_encoded_bytes()))[..32]))
}

/// The end of a ledger.
fn head_of(records: &[Record]) -> Head {
    (records.len(), records.last().map_or(GENESIS, |record| &record.hash).to_owned())
}

/// Refuses a ledger whose end is not the one that was noted in this folder, or whose note cannot be read.
pub fn check_note(path: &Path, records: &[Record], notes: &Path) -> Result<Noted> {
    let note = note_of(path, notes);
    let remedy = format!("if you know why, remove {} as well", note.display());
    let refused = |line, problem: String| {
        Err(Error::Tampered { path: path.to_path_buf(), line, problem: format!("{problem} ({remedy})") })
    };
    let text = match fs::read_to_string(&note) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Noted::Unknown),
        text => text.map_err(|error| error.to_string()),
    };
    let read = text.and_then(|text| serde_json::from_str::<Note>(&text).map_err(|error| error.to_string()));
    let (head, announced) = match read {
        Ok(Note { head, announced }) => (head, announced),
        Err(why) => return refused(records.len(), format!("the note of its end cannot be read: {why}")),
    };
    let found = head_of(records);
    if found == head || announced.as_ref() == Some(&found) {
        return Ok(Noted::Confirmed);
    }
    let (count, hash) = announced.unwrap_or(head);
    let known = count > 0 && records.get(count - 1).is_some_and(|record| record.hash == hash);
    match known {
        true => refused(count + 1, "it was added by something else than the tank".to_owned()),
        false if records.is_empty() => {
            refused(1, format!("{count} records were written here, and all of them are gone"))
        }
        false => {
            refused(records.len() + 1, format!("{count} records were written here, and the last of them is not here"))
        }
    }
}

/// Puts the note of a ledger that is gone where it stays to be read; how many records that ledger had, if it says.
fn put_aside(note: &Path) -> Result<usize> {
    let read = fs::read_to_string(note).ok().and_then(|text| serde_json::from_str::<Note>(&text).ok());
    let free = (1..).map(|number| note.with_extension(format!("gone.{number}"))).find(|place| !place.exists());
    let unwritable = |source| Error::Write { path: note.to_path_buf(), source };
    fs::rename(note, free.unwrap_or_else(|| note.with_extension("gone"))).map_err(unwritable)?;
    Ok(read.map_or(0, |note| note.head.0))
}

impl Ledger {
    /// Opens a ledger whose head is noted in a folder, and refuses one whose end is not as it was noted.
    pub fn open_noted(path: &Path, notes: &Path) -> Result<Self> {
        fs::create_dir_all(notes).map_err(|source| Error::Write { path: notes.to_path_buf(), source })?;
        Self::open_in(path, Some(notes))
    }

    /// Opens a ledger for writing, or begins one. A torn last line is cut off, and that is recorded.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_in(path, None)
    }

    /// Whether its end was held against a note when it was opened. A ledger that begins here has no end to be held
    /// against anything.
    pub fn noted(&self) -> Noted {
        self.noted
    }

    fn open_in(path: &Path, notes: Option<&Path>) -> Result<Self> {
        let unwritable = |source| Error::Write { path: path.to_path_buf(), source };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(unwritable)?;
        }
        let gone = !path.exists();
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(unwritable)?;
        let begin = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begin.elapsed() < PARTING => thread::sleep(PARTING / 40),
                Err(TryLockError::WouldBlock) => return Err(Error::Locked { path: path.to_path_buf() }),
                Err(TryLockError::Error(source)) => return Err(unwritable(source)),
            }
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
        let Checked { records, whole, torn } = check(path, &bytes)?;
        check_seeds(path, &records)?;
        let noted = match notes {
            Some(notes) if gone && note_of(path, notes).exists() => Noted::Anew(put_aside(&note_of(path, notes))?),
            Some(notes) if !records.is_empty() || note_of(path, notes).exists() => check_note(path, &records, notes)?,
            Some(_) => Noted::Confirmed,
            None => Noted::Unknown,
        };
        let note = notes.map(|notes| note_of(path, notes));
        let mut ledger = Self { path: path.to_path_buf(), file, records, note, noted };
        if whole == 0 {
            ledger.sync_folder()?;
        }
        if !torn.is_empty() {
            ledger.file.set_len(whole as u64).and_then(|()| ledger.file.sync_all()).map_err(unwritable)?;
        }
        ledger.file.seek(SeekFrom::End(0)).map_err(unwritable)?;
        if whole > 0 && bytes[whole - 1] != b'\n' {
            // All of the line is there but its end.
            ledger.write(b"\n")?;
        }
        if !torn.is_empty() {
            let text = String::from_utf8_lossy(&torn).into_owned();
            ledger.append(0, Recovered { bytes: torn.len(), text }.into())?;
        }
        // Whichever of two ends it had, from now on it is this one.
        if !ledger.records.is_empty() {
            ledger.note(None)?;
        }
        Ok(ledger)
    }

    /// A file that was just made is only there for sure when its folder has been synced too.
    fn sync_folder(&self) -> Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        #[cfg(unix)]
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|source| Error::Write { path: folder.to_path_buf(), source })?;
        #[cfg(not(unix))]
        let _ = folder;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .and_then(|()| self.file.sync_data())
            .map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    /// Adds a record. When this returns, it is on the disk.
    pub fn append(&mut self, season: u32, event: Event) -> Result<&Record> {
        let n = self.records.len() as u64 + 1;
        let (at, prev) = (now(), self.head().to_owned());
        let unwritable = |error: serde_json::Error| Error::Write { path: self.path.clone(), source: error.into() };
        let body =
            serde_json::to_string(&Body { n, at: &at, season, prev: &prev, event: &event }).map_err(unwritable)?;
        let open = body.strip_suffix('}').unwrap_or(&body);
        let hash = hex(&Sha256::digest(open.as_bytes()));
        let line = format!("{open}{SEAM}{hash}\"}}\n");
        // What cannot be read back must not be written: a number that is none would make a line that nobody can check.
        let record = serde_json::from_str(&line).map_err(unwritable)?;
        self.note(Some((self.records.len() + 1, hash)))?;
        self.write(line.as_bytes())?;
        self.records.push(record);
        self.note(None)?;
        Ok(&self.records[self.records.len() - 1])
    }

    /// Notes its end, and the one that it will have if what is about to be written gets there.
    fn note(&self, announced: Option<Head>) -> Result<()> {
        let Some(path) = &self.note else { return Ok(()) };
        let note = Note { head: head_of(&self.records), announced };
        let written =
            serde_json::to_string(&note).map_err(std::io::Error::from).and_then(|text| write_note(path, &text));
        written.map_err(|source| Error::Write { path: path.clone(), source })
    }

    /// Every record.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The hash of the last record.
    pub fn head(&self) -> &str {
        self.records.last().map_or(GENESIS, |record| &record.hash)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Replaces a note at once: whoever is killed leaves the old one or the new one.
fn write_note(note: &Path, text: &str) -> std::io::Result<()> {
    let beside = note.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    fs::rename(&beside, note)?;
    // A renaming is on the disk when the folder is.
    note.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// The time, as UTC with seconds.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    timestamp(seconds)
}

/// Seconds since 1970 as a date and a time of the Gregorian calendar.
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    // Days are counted from 1 March of the year 0, so that leap days come last in their year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year_of_era + carry;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::RolledBack;

    fn event(index: usize) -> Event {
        RolledBack { bucket: format!("bucket {index}"), by: "grace".into(), reason: "a \"test\"".into() }.into()
    }

    fn written(records: usize) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        (0..records).for_each(|index| assert!(ledger.append(1, event(index)).is_ok()));
        (folder, path)
    }

    fn tampered_line(path: &Path, lines: &[String]) -> usize {
        fs::write(path, lines.join("\n") + "\n").unwrap();
        match read(path) {
            Err(Error::Tampered { line, .. }) => line,
            other => panic!("not found: {other:?}"),
        }
    }

    #[test]
    fn what_is_written_reads_back_in_order() {
        let (_folder, path) = written(3);
        let checked = read(&path).unwrap();
        assert_eq!(checked.records.iter().map(|r| r.n).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(checked.torn.is_empty());
        let mut again = Ledger::open(&path).unwrap();
        assert_eq!(again.append(1, event(9)).unwrap().n, 4);
        assert_eq!(read(&path).unwrap().records.len(), 4);
    }

    #[test]
    fn a_changed_line_is_located() {
        let (_folder, path) = written(5);
        let lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        for changed in 0..5 {
            let mut edited = lines.clone();
            edited[changed] = edited[changed].replace("grace", "trent");
            assert_eq!(tampered_line(&path, &edited), changed + 1);
        }
    }

    #[test]
    fn a_line_that_was_removed_inserted_or_moved_is_located() {
        let (_folder, path) = written(5);
        let lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        let edited = |change: &dyn Fn(&mut Vec<String>)| {
            let mut edited = lines.clone();
            change(&mut edited);
            tampered_line(&path, &edited)
        };
        assert_eq!(edited(&|l| drop(l.remove(2))), 3);
        assert_eq!(edited(&|l| drop(l.remove(0))), 1);
        assert_eq!(edited(&|l| l.insert(3, l[1].clone())), 4);
        assert_eq!(edited(&|l| l.swap(1, 2)), 2);
        assert_eq!(edited(&|l| l[4] = String::new()), 5);
    }

    #[test]
    fn a_line_with_a_hash_made_to_fit_breaks_the_next_one() {
        let (_folder, path) = written(4);
        let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        let body = lines[1].split(SEAM).next().unwrap().replace("grace", "trent");
        lines[1] = format!("{body}{SEAM}{}\"}}", hex(&Sha256::digest(body.as_bytes())));
        assert_eq!(tampered_line(&path, &lines), 3);
    }

    #[test]
    fn a_torn_last_line_is_cut_off_and_recorded_wherever_it_was_torn() {
        let (_folder, path) = written(3);
        let whole = fs::read(&path).unwrap();
        let start = whole[..whole.len() - 1].iter().rposition(|&b| b == b'\n').unwrap() + 1;
        for cut in [start + 1, start + 40, whole.len() - 2] {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(&path).unwrap().torn.len(), cut - start, "a reader is told");
            let ledger = Ledger::open(&path).unwrap();
            let Event::Recovered(recovered) = &ledger.records()[2].event else { panic!("not recorded") };
            assert_eq!((ledger.records().len(), recovered.bytes), (3, cut - start));
            drop(ledger);
            assert!(read(&path).unwrap().torn.is_empty());
        }
    }

    #[test]
    fn zeros_that_a_crash_left_at_the_end_are_a_torn_line() {
        let (_folder, path) = written(2);
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend([0; 512]);
        fs::write(&path, bytes).unwrap();
        assert_eq!(Ledger::open(&path).unwrap().records().len(), 3);
    }

    #[test]
    fn a_last_line_that_lacks_only_its_end_is_kept() {
        let (_folder, path) = written(2);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(Ledger::open(&path).unwrap().records().len(), 2);
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn a_second_writer_is_kept_out_and_a_reader_is_not() {
        let (_folder, path) = written(1);
        let first = Ledger::open(&path).unwrap();
        assert!(matches!(Ledger::open(&path), Err(Error::Locked { .. })));
        assert_eq!(read(&path).unwrap().records.len(), 1);
        drop(first);
        assert!(Ledger::open(&path).is_ok());
    }

    #[test]
    fn where_a_ledger_is_gone_a_new_one_begins_and_the_old_note_is_kept() {
        let (folder, path) = written(0);
        let notes = folder.path().join("notes");
        let mut ledger = Ledger::open_noted(&path, &notes).unwrap();
        (0..3).for_each(|index| assert!(ledger.append(1, event(index)).is_ok()));
        drop(ledger);
        for number in 1..3 {
            fs::remove_file(&path).unwrap();
            let mut anew = Ledger::open_noted(&path, &notes).unwrap();
            assert!(matches!(anew.noted(), Noted::Anew(3 | 1)) && anew.records().is_empty(), "{:?}", anew.noted());
            anew.append(1, event(0)).unwrap();
            let kept = fs::read_dir(&notes)
                .unwrap()
                .flatten()
                .filter(|entry| entry.path().extension().is_some_and(|extension| extension != "head"));
            assert_eq!(kept.count(), number);
        }
        // A file that is there and empty is another matter.
        fs::write(&path, "").unwrap();
        assert!(matches!(Ledger::open_noted(&path, &notes), Err(Error::Tampered { line: 1, .. })));
    }

    #[test]
    fn what_was_forged_or_cut_off_at_the_end_is_found_by_the_note() {
        let (folder, path) = written(0);
        let notes = folder.path().join("notes");
        let mut ledger = Ledger::open_noted(&path, &notes).unwrap();
        (0..4).for_each(|index| assert!(ledger.append(1, event(index)).is_ok()));
        drop(ledger);
        let whole = fs::read(&path).unwrap();
        assert!(Ledger::open_noted(&path, &notes).is_ok());
        // A line that is as good as ours, by somebody who knows how.
        Ledger::open(&path).unwrap().append(1, event(9)).unwrap();
        assert!(read(&path).is_ok(), "the chain holds");
        let found = Ledger::open_noted(&path, &notes).unwrap_err();
        assert!(
            matches!(&found, Error::Tampered { line: 5, problem, .. } if problem.contains("something else")),
            "{found}"
        );
        let cut = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        fs::write(&path, &whole[..cut]).unwrap();
        assert!(matches!(Ledger::open_noted(&path, &notes), Err(Error::Tampered { line: 4, .. })), "the last is gone");
        let shorter = whole[..cut - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        fs::write(&path, &whole[..shorter]).unwrap();
        assert!(matches!(Ledger::open_noted(&path, &notes), Err(Error::Tampered { line: 3, .. })));
    }

    #[test]
    fn a_line_that_a_kill_kept_from_being_written_or_from_being_confirmed_is_nobodys_fault() {
        let (folder, path) = written(0);
        let notes = folder.path().join("notes");
        let mut ledger = Ledger::open_noted(&path, &notes).unwrap();
        ledger.append(1, event(0)).unwrap();
        let (short, first) = (fs::read(&path).unwrap(), head_of(ledger.records()));
        ledger.append(1, event(1)).unwrap();
        let (long, second) = (fs::read(&path).unwrap(), head_of(ledger.records()));
        drop(ledger);
        let announced = serde_json::to_string(&Note { head: first, announced: Some(second) }).unwrap();
        for bytes in [&short, &long] {
            fs::write(note_of(&path, &notes), &announced).unwrap();
            fs::write(&path, bytes).unwrap();
            assert_eq!(Ledger::open_noted(&path, &notes).unwrap().noted(), Noted::Confirmed);
            // From then on the other one is refused.
            fs::write(&path, if bytes == &short { &long } else { &short }).unwrap();
            assert!(matches!(Ledger::open_noted(&path, &notes), Err(Error::Tampered { .. })));
        }
    }

    #[test]
    fn a_note_that_cannot_be_read_is_refused_and_one_that_is_not_known_is_told() {
        let (folder, path) = written(2);
        let notes = folder.path().join("notes");
        assert_eq!(Ledger::open_noted(&path, &notes).unwrap().noted(), Noted::Unknown);
        assert_eq!(Ledger::open_noted(&path, &notes).unwrap().noted(), Noted::Confirmed, "it is noted from then on");
        for text in ["", "{}", "no note", "\u{0}"] {
            fs::write(note_of(&path, &notes), text).unwrap();
            let found = Ledger::open_noted(&path, &notes).unwrap_err().to_string();
            assert!(found.contains("cannot be read"), "{text:?}: {found}");
        }
    }

    #[test]
    fn a_timestamp_is_a_date_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_798_761_600, "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }
}
