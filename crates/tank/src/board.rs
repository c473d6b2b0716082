//! Who was champion when: per operation and class of machine, from one ledger or several.

use std::collections::BTreeMap;

use referee::Speedup;
use serde::Serialize;

use crate::event::{Event, SeasonOpened};
use crate::history;
use crate::ledger::Record;

/// One operation on one class of machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Board {
    /// The operation.
    pub operation: String,
    /// The machine, in words: the GPU first where its clock decided, or where it was predicted for.
    pub machine: String,
    /// Whether all of it is predicted for a GPU that is not there.
    pub foretold: bool,
    /// What tells it from other classes.
    pub fingerprint: String,
    /// Its champions, oldest first.
    pub reigns: Vec<Reign>,
}

/// One champion's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reign {
    /// Since when.
    pub since: String,
    /// The season's number in its ledger, and its name.
    pub season: (u32, String),
    /// Who.
    pub champion: String,
    /// How many times as fast as its predecessor; none over one that was wrong, and none for a baseline.
    pub speedup: Option<Speedup>,
    /// How many times as fast as the baseline that its season began with.
    pub over_baseline: Option<Speedup>,
    /// The record that crowned it: its number and hash.
    pub record: (u64, String),
}

/// The boards of these records, in the order of their names.
pub fn boards(records: &[Record]) -> Vec<Board> {
    let mut boards: BTreeMap<(String, String, String), Board> = BTreeMap::new();
    let mut so_far: BTreeMap<u32, Option<Speedup>> = BTreeMap::new();
    for record in records {
        let (champion, speedup) = match &record.event {
            Event::SeasonOpened(opened) => (format!("baseline ({})", opened.season.baseline), None),
            Event::Crowned(crowned) => (crowned.pitch.clone(), crowned.speedup),
            _ => continue,
        };
        let Some(opened) = history::opened(records, record.season) else { continue };
        let described = opened.season.described();
        let operation = described.name();
        let (machine, fingerprint) = (machine(records, record.season, opened), opened.machine.fingerprint.clone());
        let key = (operation.to_owned(), machine.clone(), fingerprint.clone());
        let board = boards.entry(key).or_insert_with(|| Board {
            operation: operation.to_owned(),
            machine,
            foretold: opened.season.foretold().is_some(),
            fingerprint,
            reigns: Vec::new(),
        });
        let over_baseline = match (so_far.get(&record.season), speedup) {
            (None, _) => None,
            (Some(Some(before)), Some(now)) => Some(before.times(&now)),
            (Some(None), now) => now,
            (Some(Some(_)), None) => None,
        };
        so_far.insert(record.season, over_baseline);
        board.reigns.push(Reign {
            since: record.at.clone(),
            season: (record.season, opened.season.name.clone()),
            champion,
            speedup,
            over_baseline,
            record: (record.n, record.hash.clone()),
        });
    }
    boards.into_values().collect()
}

/// What a season was played on, in words: a GPU whose clock decided, or one that was predicted for, else the processor.
fn machine(records: &[Record], season: u32, opened: &SeasonOpened) -> String {
    let host = format!("{}, {} cores", opened.machine.cpu, opened.machine.cores);
    if let Some(device) = opened.season.foretold() {
        return format!("{} that is not there, predicted", device.to_uppercase());
    }
    let clock = records.iter().filter(|record| record.season == season).find_map(|record| match &record.event {
        Event::Sat(sat) => sat.sitting.as_ref()?.course.device.as_ref().map(|device| device.name.clone()),
        _ => None,
    });
    // Before the first sitting, the season says on what it is to be.
    let asked = (opened.season.backend == "cuda").then(|| opened.machine.gpus.first().cloned()).flatten();
    clock.or(asked).map_or(host.clone(), |gpu| format!("{gpu} ({host})"))
}
