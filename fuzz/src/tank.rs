//! What a fuzzer calls with what strangers send the tank: pitches and seasons that people write, ledgers that people
//! hand on, and what contestants and sharks say through their pipes. Errors are fine. Panics are not, nor is anything
//! that can be read but not remembered: the ledger keeps all of it as JSON, and must give back what it was given. The
//! tests of `tank` replay the corpus through these same functions.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use referee::contestant::protocol::{Answer, Request, line, understand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tank::event::Event;
use tank::history;
use tank::ledger::{self, Record};
use tank::operations::dual_gemm::operands::Operands;
use tank::pitch::Pitch;
use tank::report::{self, Report};
use tank::season::Season;
use tank::settings::Settings;
use tank::shark::builtin::Which;
use tank::shark::{Shark, agent};

/// What a fuzzer calls with bytes.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 4] =
    [("pitch", pitch), ("season", season), ("ledger", ledger), ("contestant", contestant)];

/// The bytes are a pitch's file.
pub fn pitch(bytes: &[u8]) {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Pitch::from_text(Path::new("pitch.toml"), text) {
        Ok(pitch) => {
            let faults = pitch.faults(SETTINGS.get_or_init(Settings::default));
            assert!(faults.iter().all(|fault| !fault.problem.is_empty()));
            remembered(&pitch);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The bytes are a season's file that names no others.
pub fn season(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Season::from_text(Path::new("season.toml"), text) {
        Ok(season) => {
            let limits = &season.settings.referee.limits;
            for seconds in [season.settings.shark_seconds, limits.build_seconds, limits.run_seconds, limits.bye_seconds]
            {
                let _ = std::time::Instant::now() + Duration::from_secs_f64(seconds);
            }
            let _ = (season.digest(), season.settings.text());
            remembered(&season);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The bytes are a ledger; and again, each of its lines is the number of a season, one digit, and an event, of which a
/// chain is made that holds: nobody can be expected to guess hashes.
pub fn ledger(bytes: &[u8]) {
    let path = Path::new("ledger.jsonl");
    if let Ok(checked) = ledger::check(path, bytes) {
        assert_eq!(checked.whole + checked.torn.len(), bytes.len());
    }
    let (chained, events) = chain(bytes);
    let checked = ledger::check(path, &chained).expect("a chain that holds is accepted");
    assert_eq!((checked.records.len(), checked.torn.len()), (events, 0));
    if let Err(error) = ledger::check_seeds(path, &checked.records) {
        assert!(error.to_string().contains("settled"), "{error}");
    }
    read_all(&checked.records);
}

/// The lines as records of one chain, and how many there are. What is no event is left out.
pub fn chain(bytes: &[u8]) -> (Vec<u8>, usize) {
    let (mut chained, mut previous, mut number) = (Vec::new(), "0".repeat(64), 0);
    for event in bytes.split(|&byte| byte == b'\n').take(24) {
        let Some((season @ b'0'..=b'9', event)) = event.split_first() else { continue };
        let Ok(event) = std::str::from_utf8(event) else { continue };
        if serde_json::from_str::<Event>(event).is_err() {
            continue;
        }
        number += 1;
        let (season, at) = (season - b'0', "2026-01-01T00:00:00Z");
        let body = format!(r#"{{"n":{number},"at":"{at}","season":{season},"prev":"{previous}","event":{event}"#);
        previous = Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        chained.extend(format!("{body},\"hash\":\"{previous}\"}}\n").into_bytes());
    }
    (chained, number)
}

/// Everything that is read out of a ledger.
fn read_all(records: &[Record]) {
    let _ = (history::attempts(records), history::sharks(records), history::graveyard(records));
    let _ = (history::contestants(records, 0.8), history::track_record(records, "ada"));
    if let Ok(report) = Report::new(records, None) {
        assert!(!report::html(&report).is_empty() && !report::markdown(&report).is_empty());
    }
}

/// The bytes are lines that come through a pipe: a contestant's answers, a shark's ballots, or the referee's own
/// messages.
pub fn contestant(bytes: &[u8]) {
    for said in bytes.split_inclusive(|&byte| byte == b'\n').take(16) {
        if let Ok(answer) = understand::<Answer>(said) {
            repeated(&answer);
        }
        if let Ok(request) = understand::<Request>(said) {
            repeated(&request);
            if let Request::Prepare(message) = &request
                && let Ok(operands) = Operands::of(message)
            {
                assert_eq!(operands.globals.len(), operands.problem.groups().len());
            }
        }
        if let Ok(ballots) = agent::understand(said) {
            static SHARK: OnceLock<Shark> = OnceLock::new();
            let shark = SHARK.get_or_init(|| Which::Skeptic.shark());
            let pitches: Vec<String> = ballots.iter().map(|ballot| ballot.pitch.clone()).collect();
            if shark.check_ballots(&ballots, &pitches, &Settings::default()).is_ok() {
                assert!(
                    ballots.iter().all(|ballot| shark.total(ballot).is_none_or(|total| (0.0..=10.1).contains(&total)))
                );
                remembered(&ballots);
            }
        }
    }
}

/// What is said can be said again.
fn repeated<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T) {
    let said = line(message).expect("what was understood can be said");
    assert_eq!(understand::<T>(said.as_bytes()).as_ref(), Ok(message), "{said}");
}

/// What is read can be remembered: as JSON it comes back as it was.
fn remembered<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let text = serde_json::to_string(value).expect("it can be written");
    let again: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(&again, value, "{text}");
}
