//! A command brings candidates step by step: it is shown what came of those before, and is asked nothing twice.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::scripted::{Fate, Scripted, season, two};
use tank::event::Event;
use tank::ledger::{self, Record};
use tank::official::Official;
use tank::play::Options;
use tank::season::{Asked, Season};

/// A stand-in for an agent: it tries one tile after the other, and says in its claim what became of the last.
const AGENT: &str = r#"
import json, sys
question = json.load(sys.stdin)
open(sys.argv[1], "a").write("asked\n")
tried = question["verdicts"]
last = tried[-1]["judgement"]["verdict"] if tried else "nothing"
tile = ["16x16", "48x16", "48x32"][len(tried)]
pitch = dict(question["example"], name="tile " + tile, run={"config": "tile=" + tile})
pitch["claim"]["reasoning"] = "after " + last
print(json.dumps({"pitches": [pitch]}))
"#;

fn evolving(folder: &Path, steps: usize) -> Season {
    evolving_by(AGENT, folder, steps)
}

fn evolving_by(agent: &str, folder: &Path, steps: usize) -> Season {
    let script = folder.join("agent.py");
    fs::write(&script, agent).unwrap();
    let command = ["python3", script.to_str().unwrap(), folder.join("asked").to_str().unwrap()].map(str::to_owned);
    let asked = Asked { contestant: "agent".into(), command: command.to_vec(), programs: false };
    season(&[("one", two())]).evolving(&asked, steps).unwrap()
}

fn played(folder: &Path, season: &Season, options: &Options) -> Vec<Record> {
    let fates = [
        ("tile 16x16 (step 1, agent)", Fate::Speed(0.8)),
        ("tile 48x16 (step 2, agent)", Fate::Unknown),
        ("tile 48x32 (step 3, agent)", Fate::Speed(1.2)),
    ];
    let path = folder.join("ledger.jsonl");
    crate::scripted::played(season, &path, &mut Scripted::new(season, &fates), options).unwrap();
    ledger::read(&path).unwrap().records
}

#[test]
fn a_better_tile_is_found_in_three_steps_and_told_again_from_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let season = evolving(folder.path(), 3);
    let records = played(folder.path(), &season, &Options::default());
    let crowned: Vec<&str> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::Crowned(crowned) => Some(crowned.pitch.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(crowned, ["tile 48x32 (step 3, agent)"]);
    let reasons: Vec<&str> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::Pitched(pitched) => pitched.pitch.claim.as_ref().map(|claim| claim.reasoning.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, ["after nothing", "after FAILURE", "after INCONCLUSIVE"]);
    let asked = || fs::read_to_string(folder.path().join("asked")).unwrap().lines().count();
    assert_eq!(asked(), 3);
    let again = played(folder.path(), &season, &Options::default());
    assert_eq!((again.len(), asked()), (records.len(), 3), "nobody is asked twice");
}

#[test]
fn an_agent_is_told_of_what_was_disqualified() {
    let folder = tempfile::tempdir().unwrap();
    let season = evolving_by(&AGENT.replace("16x16", "16x5"), folder.path(), 2);
    let records = played(folder.path(), &season, &Options::default());
    let last = records.iter().rev().find_map(|record| match &record.event {
        Event::Pitched(pitched) => pitched.pitch.claim.as_ref().map(|claim| claim.reasoning.as_str()),
        _ => None,
    });
    assert_eq!(last, Some("after BLOCKED"), "or it would bring the same again");
}

#[test]
fn a_budget_that_is_spent_ends_it_and_that_is_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let season = evolving(folder.path(), 3);
    let spent = Options { budget: Some(Duration::ZERO), stops_at_budget: true, ..Options::default() };
    let records = played(folder.path(), &season, &spent);
    assert!(records.iter().any(|record| matches!(&record.event, Event::Spent(spent) if spent.round == "step 1")));
    assert!(!folder.path().join("asked").exists(), "nobody was asked");
    assert_eq!(played(folder.path(), &season, &Options::default()).len(), records.len(), "it is over");
}

/// An agent that names files which are not its own: as an argument, as the program, and by a build in their folder.
const SPY: &str = r#"
import json, sys
question = json.load(sys.stdin)
open(sys.argv[2], "a").write(json.dumps(question))
secret, folder = sys.argv[1], sys.argv[1].rsplit("/", 1)[0]
runs = [{"program": ["python3", "-c", "import sys; sys.exit(open(sys.argv[1]).read())", secret]}, {"program": [secret]},
        {"program": [folder + "/not-there-yet"], "build": ["sh", "-c", "cat key >&2; false"]}]
pitches = [dict(question["example"], name="spy %d" % n, run=run) for n, run in enumerate(runs)]
print(json.dumps({"pitches": pitches}))
"#;

#[test]
fn a_secret_that_an_agents_pitch_names_reaches_neither_ledger_nor_agent() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(path("theirs")).unwrap();
    fs::write(path("theirs/key"), "sesame-7f3a\n").unwrap();
    fs::write(path("agent.py"), SPY).unwrap();
    let command = ["python3", &path("agent.py"), &path("theirs/key"), &path("asked")].map(str::to_owned).to_vec();
    let asked = Asked { contestant: "agent".into(), command, programs: true };
    let season = season(&[("one", two())]).evolving(&asked, 2).unwrap();
    let ledger = folder.path().join("ledger.jsonl");
    // The referee is the real one: it would build and start what is pitched.
    let operation = season.operation().unwrap();
    let mut referee = Official::new(operation, crate::common::quick(), Vec::new(), season.threads).unwrap();
    crate::scripted::played(&season, &ledger, &mut referee, &Options::default()).unwrap();
    let [written, told] = [fs::read_to_string(&ledger).unwrap(), fs::read_to_string(path("asked")).unwrap()];
    assert!(!written.contains("sesame") && !told.contains("sesame"), "{written}");
    assert_eq!(written.matches("which is neither beside the pitch").count(), 6, "each is disqualified: {written}");
}
