//! A command brings candidates step by step: it is shown what came of those before, and is asked nothing twice.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use crate::scripted::{Fate, Scripted, season, two};
use tank::event::Event;
use tank::ledger::{self, Record};
use tank::official::Official;
use tank::play::Options;
use tank::report::Report;
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

/// Killed after each of the referee's answers, and once more in each sitting; the fifth sitting is for the title.
#[test]
fn evolving_that_is_killed_again_and_again_comes_to_its_title_and_asks_nobody_twice() {
    let at = |folder: &Path| (folder.join("ledger.jsonl"), folder.join("tuning"));
    // The season's own baseline is not what the planner would choose, so that its champion has to meet that one.
    let season = |folder: &Path| Season { baseline: "planned".into(), ..evolving(folder, 3) };
    let fates = [
        ("tile 16x16 (step 1, agent)", Fate::Speed(1.2)),
        ("tile 48x16 (step 2, agent)", Fate::Speed(0.9)),
        ("tile 48x32 (step 3, agent)", Fate::Speed(1.1)),
    ];
    let play = |folder: &Path, dies_after: Option<usize>| {
        let ((path, tuning), season) = (at(folder), season(folder));
        let mut referee = Scripted { dies_after, ..Scripted::new(&season, &fates) };
        let options = Options { tuning: Some(tuning), seed: Some(5), ..Options::default() };
        let died = catch_unwind(AssertUnwindSafe(|| {
            crate::scripted::played(&season, &path, &mut referee, &options).unwrap();
        }));
        (died.is_ok(), referee.asked)
    };
    let outline = |folder: &Path| {
        let records = ledger::read(&at(folder).0).unwrap().records;
        let told = |record: &Record| match &record.event {
            Event::Installed(installed) => Some(format!("{} is installed", installed.pitch)),
            Event::Judged(judged) => Some(format!("{} {}", judged.pitch, judged.judgement.verdict)),
            Event::Crowned(crowned) => Some(format!("{} is champion", crowned.pitch)),
            _ => None,
        };
        records.iter().filter_map(told).collect::<Vec<_>>()
    };
    let (whole, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (done, expected) = play(whole.path(), None);
    assert!(done && expected.iter().any(|asked| asked.ends_with("for the title")), "{expected:?}");
    assert!(outline(whole.path()).last().unwrap().ends_with("is installed"), "{:?}", outline(whole.path()));
    let (mut asked, mut kills) = (Vec::new(), 0);
    loop {
        // It dies in the next question, and then with that one answered.
        let (done, mut answered) = play(killed.path(), Some(kills % 2));
        asked.append(&mut answered);
        if done {
            break;
        }
        kills += 1;
        assert!(kills < 100, "{asked:?}");
    }
    assert_eq!(asked, expected, "every question once, in spite of {kills} kills");
    assert_eq!(outline(killed.path()), outline(whole.path()));
    let asked = |folder: &Path| fs::read_to_string(folder.join("asked")).unwrap().lines().count();
    assert_eq!((asked(killed.path()), asked(whole.path())), (3, 3), "nor is the agent asked twice");
    let tuned = fs::read_dir(at(killed.path()).1).unwrap().count();
    assert!(tuned > 0, "the champion is in the tuning cache");
    let report = Report::new(&ledger::read(&at(killed.path()).0).unwrap().records, None).unwrap();
    assert!(report.interrupted().iter().any(|told| told.contains("for the title")), "{:?}", report.interrupted());
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
