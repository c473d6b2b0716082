//! Who was champion when: per operation and class of machine, from one ledger or several.

use std::collections::BTreeMap;

use referee::Speedup;
use serde::Serialize;

use crate::event::Event;
use crate::history;
use crate::ledger::Record;

/// One operation on one class of machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Board {
    /// The operation.
    pub operation: String,
    /// The machine, in words.
    pub machine: String,
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
    let mut boards: BTreeMap<(String, String), Board> = BTreeMap::new();
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
        let machine = &opened.machine;
        let board = boards.entry((operation.to_owned(), machine.fingerprint.clone())).or_insert_with(|| Board {
            operation: operation.to_owned(),
            machine: format!("{}, {} cores", machine.cpu, machine.cores),
            fingerprint: machine.fingerprint.clone(),
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
