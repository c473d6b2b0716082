//! Records as they are read back: what `bench --export` writes, and what `benchmarks/beside.py` and
//! `benchmarks/h200/peers.py` write beside it.
//!
//! A record is a JSON object with a list `cases`. Of a case, `problem` is needed, and a summary of times in seconds
//! under at least one of `cold`, `warm`, `burst` and `sustained`: its `median`, and where they are known `best`, `p25`,
//! `p75`, `p10`, `p90` and `samples`. `activation`, `gate`, `output`, `backend`, `config` and `floor_seconds` say more;
//! `who` names who computed, where that is not hammerhead. `peers.py` writes a list `shapes` instead, with medians in
//! microseconds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::{Error, Result, table};

/// A record, brought to one form.
#[derive(Debug)]
pub struct Record {
    /// The name of its file without the ending, or what stands for it.
    pub name: String,
    /// On what it was measured, by what.
    pub about: String,
    /// When, by which command, and under which ceilings, as far as the record says.
    pub at: Option<String>,
    pub command: Option<String>,
    pub ceilings: Option<String>,
    pub rows: Vec<Row>,
}

/// One who computed one problem, by one clock.
#[derive(Clone, Debug)]
pub struct Row {
    pub problem: String,
    pub gate: Option<String>,
    pub output: Option<String>,
    pub who: String,
    pub config: Option<String>,
    /// With what in the caches, or after what: cold, warm, burst or sustained.
    pub clock: &'static str,
    pub times: Times,
    pub floor: Option<f64>,
}

/// A summary of times in seconds, as far as it is known.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Times {
    pub median: f64,
    pub best: Option<f64>,
    p10: Option<f64>,
    p25: Option<f64>,
    p75: Option<f64>,
    p90: Option<f64>,
    pub samples: Option<usize>,
}

impl Times {
    /// The middle half of the samples. Records of before it was kept have the middle eight tenths: then the second is
    /// false.
    pub fn range(&self) -> Option<((f64, f64), bool)> {
        let half = self.p25.zip(self.p75).map(|range| (range, true));
        half.or_else(|| self.p10.zip(self.p90).map(|range| (range, false)))
    }

    /// Whether these can be times.
    fn are_times(&self) -> bool {
        let known = [self.best, self.p10, self.p25, self.p75, self.p90].into_iter().flatten();
        known.chain([self.median]).all(|time| time.is_finite() && time >= 0.0)
    }
}

#[derive(Deserialize)]
struct Written {
    at: Option<String>,
    command: Option<String>,
    ceilings: Option<Ceilings>,
    version: Option<String>,
    torch: Option<String>,
    machine: Option<Machine>,
    threads: Option<usize>,
    device: Option<Device>,
    #[serde(default)]
    cases: Vec<Case>,
    #[serde(default)]
    shapes: Vec<Peers>,
}

#[derive(Deserialize)]
struct Machine {
    cpu: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Device {
    Name(String),
    Described { name: String },
}

#[derive(Deserialize)]
struct Ceilings {
    flops_per_second: Ceiling,
    bytes_per_second: Ceiling,
}

/// A device's is one number, a host's the middle of several samples.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ceiling {
    One(f64),
    Several { median: f64 },
}

impl Ceiling {
    fn rate(&self) -> f64 {
        match self {
            Self::One(rate) | Self::Several { median: rate } => *rate,
        }
    }
}

#[derive(Deserialize)]
struct Case {
    problem: String,
    activation: Option<String>,
    gate: Option<String>,
    output: Option<String>,
    who: Option<String>,
    backend: Option<String>,
    config: Option<String>,
    floor_seconds: Option<f64>,
    cold: Option<Times>,
    warm: Option<Times>,
    burst: Option<Times>,
    sustained: Option<Times>,
}

/// What `peers.py` has for one problem.
#[derive(Deserialize)]
struct Peers {
    problem: String,
    floor: Option<f64>,
    burst: Medians,
    sustained: Medians,
}

#[derive(Deserialize)]
struct Medians {
    microseconds: BTreeMap<String, f64>,
}

impl Record {
    /// Reads a record from a file.
    pub fn open(path: &Path) -> Result<Self> {
        let refuse = |problem: String| Error::Record { path: path.to_path_buf(), problem };
        let text = fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::read(&name, &text).map_err(refuse)
    }

    /// Reads a record, or says why it is none.
    pub fn read(name: &str, text: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let rows: Vec<Row> = written.cases.iter().flat_map(case).chain(written.shapes.iter().flat_map(peers)).collect();
        if rows.is_empty() {
            return Err("it has no timed case".to_owned());
        }
        match rows.iter().find(|row| !row.times.are_times()) {
            Some(row) => Err(format!("a {} time of {} is below zero", row.clock, row.problem)),
            None => {
                let (name, about, ceilings) = (name.to_owned(), written.about(), written.ceilings());
                Ok(Self { name, about, at: written.at, command: written.command, ceilings, rows })
            }
        }
    }
}

impl Written {
    fn ceilings(&self) -> Option<String> {
        let Ceilings { flops_per_second, bytes_per_second } = self.ceilings.as_ref()?;
        let (flops, bytes) = (flops_per_second.rate() / 1e9, bytes_per_second.rate() / 1e9);
        Some(format!("{} GFLOP/s, {} GB/s from memory", table::three_digits(flops), table::three_digits(bytes)))
    }

    fn about(&self) -> String {
        let device = self.device.as_ref().map(|device| match device {
            Device::Name(name) | Device::Described { name } => name.clone(),
        });
        let parts = [
            device.or_else(|| self.machine.as_ref().map(|machine| machine.cpu.clone())),
            self.threads.map(|threads| format!("{threads} threads")),
            self.version.as_ref().map(|version| format!("hammerhead {version}")),
            self.torch.as_ref().map(|version| format!("torch {version}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn case(case: &Case) -> Vec<Row> {
    let words = [Some("hammerhead"), case.activation.as_deref(), case.backend.as_deref()];
    let hammerhead = || words.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let who = case.who.clone().unwrap_or_else(hammerhead);
    let clocks =
        [("cold", case.cold), ("warm", case.warm), ("burst", case.burst), ("sustained", case.sustained)].into_iter();
    let row = |(clock, times): (&'static str, Option<Times>)| {
        Some(Row {
            problem: case.problem.clone(),
            gate: case.gate.clone(),
            output: case.output.clone(),
            who: who.clone(),
            config: case.config.clone(),
            clock,
            times: times?,
            floor: case.floor_seconds.filter(|floor| floor.is_finite() && *floor > 0.0),
        })
    };
    clocks.filter_map(row).collect()
}

fn peers(peers: &Peers) -> Vec<Row> {
    let medians = [("burst", &peers.burst), ("sustained", &peers.sustained)];
    let row = |clock: &'static str, who: &str, microseconds: f64| Row {
        problem: peers.problem.clone(),
        gate: None,
        output: None,
        who: who.replace("ours ", "hammerhead "),
        config: None,
        clock,
        times: Times {
            median: 1e-6 * microseconds,
            best: None,
            p10: None,
            p25: None,
            p75: None,
            p90: None,
            samples: None,
        },
        floor: peers.floor.map(|floor| 1e-6 * floor),
    };
    let of = |(clock, medians): (&'static str, &Medians)| -> Vec<Row> {
        medians.microseconds.iter().map(|(who, &microseconds)| row(clock, who, microseconds)).collect()
    };
    medians.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_on_the_h200_is_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/h200");
        let bench = Record::open(&folder.join("bench.json")).unwrap();
        assert!(bench.about.contains("NVIDIA H200") && bench.about.contains("hammerhead"), "{}", bench.about);
        let row = bench.rows.iter().find(|row| row.problem == "256×4096×7168" && row.clock == "burst").unwrap();
        assert!(row.who.starts_with("hammerhead f16") && row.gate.as_deref() == Some("silu"), "{row:?}");
        assert!(row.times.median > 1e-5 && row.times.median < 1e-3 && row.times.range().is_some(), "{row:?}");
        let peers = Record::open(&folder.join("peers.json")).unwrap();
        let one = peers.rows.iter().find(|row| row.problem == "256×4096×7168" && row.who == "one").unwrap();
        assert!(one.times.median > 1e-5 && one.times.median < 1e-3, "seconds: {one:?}");
        assert!(peers.about.contains("torch"), "{}", peers.about);
    }

    #[test]
    fn what_is_no_record_is_refused_with_the_reason() {
        let case = |times: &str| format!(r#"{{"cases": [{{"problem": "1×1×16", {times}}}]}}"#);
        for (text, reason) in [
            ("", "EOF"),
            ("[]", "expected struct"),
            (r#"{"schema": 1}"#, "no timed case"),
            (&case(r#""gate": "silu""#), "no timed case"),
            (&case(r#""cold": 3"#), "invalid type"),
            (&case(r#""cold": {"best": 1}"#), "missing field `median`"),
            (&case(r#""cold": {"median": -2}"#), "a cold time of 1×1×16 is below zero"),
            (&case(r#""warm": {"median": 1, "p25": -1}"#), "a warm time"),
        ] {
            let refused = Record::read("r", text).unwrap_err();
            assert!(refused.contains(reason), "{text:?}: {refused}");
        }
        assert_eq!(Record::read("r", &case(r#""cold": {"median": 2, "p25": 1, "p75": 3}"#)).unwrap().rows.len(), 1);
    }
}
