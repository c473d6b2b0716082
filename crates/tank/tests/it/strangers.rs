//! What strangers send: pitches, seasons, ledgers and messages, as the fuzzer's corpus has them, read by the fuzzer's
//! own functions.

#[path = "../../../../fuzz/src/tank.rs"]
mod targets;

use std::fs;
use std::path::{Path, PathBuf};

use tank::Error;
use tank::pitch::Pitch;
use tank::season::Season;

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(kind);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10);
    let named = |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap());
    files.into_iter().map(named).collect()
}

fn seed(kind: &str, name: &str) -> Vec<u8> {
    corpus(kind).into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {kind}/{name}")).1
}

fn text(kind: &str, name: &str) -> String {
    String::from_utf8(seed(kind, name)).unwrap()
}

#[test]
fn the_whole_corpus_is_read_without_a_panic() {
    for (kind, target) in targets::TARGETS {
        for (_, bytes) in corpus(kind) {
            target(&bytes);
        }
    }
}

#[test]
fn the_seeds_reach_what_they_are_there_for() {
    // What a fuzzer found is called by its digest, and may hold anything.
    let written = |name: &str| name.len() != 40 || !name.chars().all(|c| c.is_ascii_hexdigit());
    for (name, bytes) in corpus("ledger").into_iter().filter(|(name, _)| written(name)) {
        let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
        let events = targets::chain(&bytes).1;
        match name.as_str() {
            "no_event" | "torn" | "a_real_line" | "zeros" | "nothing" => assert_eq!(events, 0, "{name}"),
            _ => assert!(events > 0 && events == lines, "{name}: {events} events in {lines} lines"),
        }
    }
    let path = Path::new("x.toml");
    assert!(Pitch::from_text(path, &text("pitch", "whole")).unwrap().faults(&Default::default()).is_empty());
    for name in ["whole", "planned", "two_rounds"] {
        Season::from_text(path, &text("season", name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn numbers_that_nobody_can_wait_for_or_write_down_are_refused_by_name() {
    let path = Path::new("x.toml");
    for (name, fragments) in [
        ("too_long_to_wait", ["limits.run_seconds", "1000000"]),
        ("waits_backwards", ["limits.run_seconds", "-1"]),
        ("shark_that_thinks_for_ever", ["shark_seconds", "1000000"]),
        ("resamples_without_end", ["timing.resamples", "1000"]),
        ("rotation_is_none", ["rotation", "NaN"]),
        ("hours_are_none", ["low_hours", "NaN"]),
        ("names_files", ["ada.toml", "built-in"]),
    ] {
        let error = Season::from_text(path, &text("season", name)).unwrap_err().to_string();
        assert!(fragments.iter().all(|fragment| error.contains(fragment)), "{name}: {error}");
    }
    for name in ["hours_are_none", "claim_without_end"] {
        assert!(matches!(Pitch::from_text(path, &text("pitch", name)), Err(Error::Written { .. })), "{name}");
    }
}
