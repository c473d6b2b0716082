//! A season for a GPU that is not there: nothing is timed, and every verdict is a prediction and says so.

use std::path::Path;

use tank::event::Event;
use tank::ledger::Ledger;
use tank::play::{Options, play};
use tank::report::{Report, markdown};
use tank::season::Season;
use tank::verdict::Verdict;

use crate::scripted::Heard;

const SEASON: &str = r#"
name = "small"
metric = "predicted time"
baseline = "strategy=two-pass,tile=128x64"
backend = "foretold:b200"
sharks = ["skeptic", "pragmatist", "theorist"]

[[problem]]
groups = [[128, 4096, 1024]]

[[round]]
name = "only"
context = "small"

[[round.pitch]]
name = "interleaved"
contestant = "house"
problem = "3 launches"
solution = "one launch"
rollback = "two-pass"
claim = { speedup = 1.3, low = 1.1, high = 1.6, reasoning = "fewer launches" }
complexity = { level = "low", hours = 1 }
risk = [{ what = "none", mitigation = "none" }]
evidence = [{ kind = "theory", what = "3 launches become 1" }]
run = { config = "strategy=interleaved,tile=128x64" }

[[round.pitch]]
name = "half the rows"
contestant = "house"
problem = "128 rows"
solution = "64 rows"
rollback = "two-pass"
claim = { speedup = 1.2, low = 1.0, high = 1.5, reasoning = "twice the blocks" }
complexity = { level = "low", hours = 1 }
risk = [{ what = "none", mitigation = "none" }]
evidence = [{ kind = "theory", what = "64 rows are half of 128" }]
run = { config = "strategy=interleaved,tile=64x32" }

[[round.pitch]]
name = "stages"
contestant = "house"
problem = "2 stages"
solution = "3 stages"
rollback = "two-pass"
claim = { speedup = 1.01, low = 0.9, high = 1.1, reasoning = "more in flight" }
complexity = { level = "low", hours = 1 }
risk = [{ what = "none", mitigation = "none" }]
evidence = [{ kind = "theory", what = "3 are more than 2" }]
run = { config = "strategy=two-pass,tile=128x64,stages=3" }
"#;

/// The ledger and the report of a season that is foretold.
fn played(season: &Season) -> (Ledger, Report) {
    let mut referee = season.foretelling().unwrap().expect("the backend is foretold");
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(&folder.path().join("ledger.jsonl")).unwrap();
    let options = Options { seed: Some(1), ..Options::default() };
    play(season, &mut ledger, referee.as_mut(), &options, &mut Heard::default()).unwrap();
    let report = Report::new(ledger.records(), None).unwrap();
    (ledger, report)
}

#[test]
fn what_is_played_for_a_gpu_that_is_not_there_is_a_prediction() {
    let season = Season::from_text(Path::new("small.toml"), SEASON).unwrap();
    let (ledger, report) = played(&season);
    let attempt = &report.attempts[0];
    assert_eq!((attempt.pitch.as_str(), attempt.verdict), ("interleaved", Verdict::Success), "{:?}", attempt.reasons);
    assert!(attempt.reasons[0].contains("predicted for a b200"), "{:?}", attempt.reasons);
    assert!(attempt.examined.as_ref().is_some_and(|examined| examined.passed() && examined.compared > 0));
    let pitches = &report.rounds[0].pitches;
    let refused = pitches.iter().find(|pitch| pitch.pitch.name == "half the rows").unwrap();
    assert!(refused.disqualified.as_ref().is_some_and(|why| why.contains("no multiplication of 64 rows")));
    let counted = pitches.iter().find(|pitch| pitch.pitch.name == "interleaved").unwrap();
    assert!(!counted.simulated.is_empty(), "the simulator's counts stand beside the pitch");
    assert!(markdown(&report).contains("SUCCESS, predicted"));
    assert!(!ledger.records().iter().any(|record| matches!(record.event, Event::Installed(_))));
}

#[test]
fn whole_layers_are_pitched_for_a_gpu_that_is_not_there() {
    let text = include_str!("../../seasons/layers.toml");
    let season = Season::from_text(Path::new("layers.toml"), text).unwrap();
    let (_, report) = played(&season);
    let first = &report.attempts[0];
    let best = "tiles for a prompt";
    assert_eq!((first.pitch.as_str(), first.verdict), (best, Verdict::Success), "{:?}", first.reasons);
    assert!(first.examined.as_ref().is_some_and(|examined| examined.passed() && examined.compared > 1000));
    assert!(markdown(&report).contains("1024 tokens, 8 of 128 experts, 2048→768→2048"));
    let timed = text.replace("foretold:h200", "scalar");
    let refused = Season::from_text(Path::new("layers.toml"), &timed).and_then(|season| season.operation().map(drop));
    let reason = refused.unwrap_err().to_string();
    assert!(reason.contains("foretold, and not timed") && reason.contains("foretold:h200"), "{reason}");
    let both = text.replace("layer = {", "groups = [[1, 16, 16]]\nlayer = {");
    assert!(Season::from_text(Path::new("layers.toml"), &both).unwrap_err().to_string().contains("groups and a layer"));
}
