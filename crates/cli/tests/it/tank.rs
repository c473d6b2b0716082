//! The tank as its users meet it: what people write, what is played, what is left behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::common::{assert_refused, command, stderr, stdout};
use hammerhead::tuning::{self, Bucket, Measured, Tuned};
use hammerhead::{Activation, Gate, Output as Element, Problem, Shape, backends};
use serde_json::Value;

/// `hammerhead tank` in a folder, with a tuning cache of its own.
fn tank(folder: &Path, args: &[&str]) -> Command {
    let mut command = command();
    command.current_dir(folder).env("HAMMERHEAD_TUNING", folder.join("tuning")).arg("tank").args(args);
    command
}

fn output(folder: &Path, args: &[&str]) -> Output {
    tank(folder, args).output().unwrap()
}

fn succeed(folder: &Path, args: &[&str]) -> String {
    let output = output(folder, args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

/// A season so small that it says nothing about speed: the portable backend, tiny problems, three quartets.
const SEASON: &str = r#"
name = "tiny"
metric = "the geometric mean"
baseline = "strategy=two-pass,tile=16x32,depth=64,stages=1"
backend = "scalar"
threads = 1
problem = [{ groups = [[2, 32, 64]] }, { groups = [[3, 48, 32], [1, 48, 32]] }]

[settings]
void_retries = 0
research_below = 0

[settings.referee.timing]
looks = [3]
quartets_per_process = 1
resamples = 100
rotation = 1.0
most_layers = 1

[settings.referee.checking]
held_out = 1

[[round]]
name = "one"
pitches = ["a.toml", "b.toml"]
"#;

fn write_season(folder: &Path) {
    fs::write(folder.join("season.toml"), SEASON).unwrap();
    for (name, config) in [("a", "strategy=interleaved,tile=16x32,depth=64,stages=1"), ("b", "tile=16x16,depth=128")] {
        succeed(folder, &["new-pitch", name]);
        let path = folder.join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).unwrap().replace("\"strategy=ping-pong\"", &format!("{config:?}"));
        fs::write(&path, text).unwrap();
    }
}

#[test]
fn the_example_of_a_pitch_is_complete_and_is_not_written_over_anything() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(succeed(folder.path(), &["new-pitch", "my idea"]), "my-idea.toml\n");
    assert!(succeed(folder.path(), &["check-pitch", "my-idea.toml"]).contains("'my idea' is complete"));
    assert_refused(&output(folder.path(), &["new-pitch", "my idea"]), &["my-idea.toml"]);
    let text = fs::read_to_string(folder.path().join("my-idea.toml")).unwrap();
    fs::write(folder.path().join("typo.toml"), text.replace("solution =", "solutoin =")).unwrap();
    assert_refused(
        &output(folder.path(), &["check-pitch", "typo.toml"]),
        &["typo.toml, line", "did you mean `solution`?"],
    );
    fs::write(folder.path().join("mute.toml"), text.replace("speedup = 1.05", "")).unwrap();
    assert_refused(&output(folder.path(), &["check-pitch", "mute.toml"]), &["mute.toml, line", "lacks a number"]);
}

#[test]
fn a_pitch_s_file_has_a_name_that_no_shell_minds() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(succeed(folder.path(), &["new-pitch", "/deeper stages."]), "deeper-stages.toml\n");
    assert_eq!(succeed(folder.path(), &["new-pitch", "./."]), "pitch.toml\n");
    assert_refused(&output(folder.path(), &["new-pitch", "deeper stages"]), &["deeper-stages.toml", "there already"]);
}

#[test]
fn where_no_ledger_was_begun_one_is_told_how() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["log", "report", "graveyard", "calibration", "verify-ledger"] {
        let output = output(folder.path(), &[command]);
        assert_refused(&output, &["no ledger", "hammerhead-tank/ledger.jsonl", "hammerhead tank play", "--ledger"]);
    }
}

#[test]
fn settings_and_the_season_are_printed_as_files_that_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let settings = succeed(folder.path(), &["settings"]);
    for part in ["min_sharks = 3", "# Sharks of distinct temperaments", "[referee.timing]", "looks = [24, 48, 96]"] {
        assert!(settings.contains(part), "no {part:?}");
    }
    let season = succeed(folder.path(), &["season", "cpu"]);
    assert!(season.contains("[[round.pitch]]") && season.contains("ping-pong"));
    let listed = succeed(folder.path(), &["season"]);
    assert!(["blackwell", "cpu", "hopper"].iter().all(|name| listed.contains(name)), "{listed}");
    assert_refused(&output(folder.path(), &["play", "--season", "blackwel"]), &["unknown season", "blackwell, cpu"]);
}

#[test]
fn a_season_of_which_nothing_could_be_played_does_not_end_well() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_season(folder);
    let nobody = SEASON.replace("[\"a.toml\", \"b.toml\"]", "[\"a.toml\"]").replace("scalar", "foretold:b200");
    fs::write(folder.join("season.toml"), nobody.replace(",tile=16x32,depth=64,stages=1", "")).unwrap();
    let blocked = output(folder, &["play", "--season", "season.toml", "--ledger", "l.jsonl"]);
    assert!(stdout(&blocked).contains("BLOCKED"), "{}", stdout(&blocked));
    assert_eq!(blocked.status.code(), Some(1));
    let why = stderr(&blocked);
    assert!(why.contains("error: nothing was played") && why.contains("a round needs 2"), "{why}");
    // Whose ledger is gone may begin another.
    fs::remove_file(folder.join("l.jsonl")).unwrap();
    let anew = output(folder, &["play", "--season", "season.toml", "--ledger", "l.jsonl"]);
    assert!(stderr(&anew).contains("is gone") && stdout(&anew).contains("BLOCKED"), "{}", stderr(&anew));
}

#[test]
fn the_first_season_is_counted_again() {
    let folder = tempfile::tempdir().unwrap();
    let text = succeed(folder.path(), &["replay"]);
    for part in ["8.575  WRONG", "7.575\n", "9.150\n", "now: FAILURE", "the deal reverts under 1.3×", "128 rows"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let json: Value = serde_json::from_str(&succeed(folder.path(), &["replay", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4);
}

#[test]
fn a_season_is_played_killed_gone_on_with_reported_and_found_tampered_with() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_season(folder);
    let play = ["play", "--season", "season.toml", "--ledger", "l.jsonl"];
    let mut child =
        tank(folder, &play).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let lines = || fs::read_to_string(folder.join("l.jsonl")).unwrap_or_default().lines().count();
    while lines() < 5 && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = fs::read_to_string(folder.join("l.jsonl")).unwrap();

    let told = succeed(folder, &play);
    assert!(told.contains("verdict") && told.contains("champion:") && told.contains("head "), "{told}");
    let after = fs::read_to_string(folder.join("l.jsonl")).unwrap();
    let whole = &before[..before.rfind('\n').map_or(0, |end| end + 1)];
    assert!(after.starts_with(whole), "what was written stays");
    assert_eq!(after.matches("\"kind\":\"baseline-taken\"").count(), 1, "nothing is measured twice");
    assert_eq!(after.matches("\"kind\":\"season-closed\"").count(), 1);

    let again = output(folder, &play);
    assert!(stderr(&again).contains("this season is finished"), "{}", stderr(&again));
    let rewards: Value = serde_json::from_str(&succeed(folder, &[&play[..], &["--json"]].concat())).unwrap();
    for paid in rewards.as_array().unwrap() {
        let (reward, won) = (paid["reward"].as_f64().unwrap(), paid["verdict"] == "SUCCESS");
        let low = paid["speedup"]["low"].as_f64().filter(|_| won);
        assert!((reward - low.map_or(0.0, f64::ln).max(0.0)).abs() < 1e-12, "{paid}");
    }
    assert_eq!(rewards.as_array().unwrap().len(), 2, "a reward for every pitch: {rewards}");
    assert_eq!(fs::read_to_string(folder.join("l.jsonl")).unwrap(), after);

    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("id=\"scorecard\"") && page.contains("tiny"));
    succeed(folder, &["report", "--ledger", "l.jsonl", "--export", "r.md", "--export", "r.json"]);
    let report: Value = serde_json::from_str(&fs::read_to_string(folder.join("r.json")).unwrap()).unwrap();
    assert_eq!(report["season"], "tiny");
    for command in ["log", "graveyard", "calibration"] {
        succeed(folder, &[command, "--ledger", "l.jsonl"]);
    }

    let head = report["head"].as_str().unwrap();
    assert!(succeed(folder, &["verify-ledger", "--ledger", "l.jsonl", "--head", head]).contains("every hash holds"));
    let shorter: String = after.split_inclusive('\n').take(4).collect();
    fs::write(folder.join("cut.jsonl"), shorter).unwrap();
    assert_refused(&output(folder, &["verify-ledger", "--ledger", "cut.jsonl", "--head", head]), &["cut off"]);
    let short = &head[..4];
    assert_refused(&output(folder, &["verify-ledger", "--ledger", "l.jsonl", "--head", short]), &["fewer than 16"]);
    assert!(succeed(folder, &["verify-ledger", "--ledger", "cut.jsonl"]).contains("no note of its end is known"));
    fs::write(folder.join("edited.jsonl"), after.replacen("1.05", "1.50", 1)).unwrap();
    assert_refused(
        &output(folder, &["verify-ledger", "--ledger", "edited.jsonl"]),
        &["edited.jsonl, line", "was changed"],
    );
}

#[test]
fn a_season_with_a_mistake_is_refused_with_file_line_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_season(folder);
    let play = |text: String| {
        fs::write(folder.join("bad.toml"), text).unwrap();
        output(folder, &["play", "--season", "bad.toml", "--ledger", "l.jsonl"])
    };
    assert_refused(
        &play(SEASON.replace("void_retries", "void_retrys")),
        &["bad.toml, line", "did you mean `void_retries`?"],
    );
    assert_refused(&play(SEASON.replace("looks = [3]", "looks = [2]")), &["timing.looks"]);
    assert_refused(&play(SEASON.replace("metric = \"the geometric mean\"", "metric = \"\"")), &["no success metric"]);
    assert_refused(&play(SEASON.replace("a.toml", "missing.toml")), &["missing.toml"]);
    let one = SEASON.replace("name = \"tiny\"", "name = \"tiny\"\nsharks = [\"skeptic\"]");
    assert_refused(&play(one), &["1 distinct temperaments"]);
    assert!(!folder.join("l.jsonl").exists(), "nothing is begun by mistake");
}

#[test]
fn a_champion_is_used_by_the_planner_shown_and_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let problem = Problem::new(vec![Shape::new(1, 40, 64)], Gate::Silu, Activation::NvFp4, Element::F16).unwrap();
    let bucket = Bucket::of(&problem, 1).to_string();
    let config = "strategy=two-pass,tile=32x48,depth=192,stages=3,epilogue=direct,schedule=tile";
    let entry = Tuned {
        bucket: bucket.clone(),
        measured: Measured::of(backends::by_name("scalar").unwrap()),
        problem: problem.to_string(),
        config: config.into(),
        speedup: 1.25,
        record: "0123456789abcdef".into(),
        at: "2026-01-01T00:00:00Z".into(),
        retired: false,
    };
    let measured = Measured { kernels: "older".into(), ..entry.measured.clone() };
    let old = Tuned { measured, record: "fedcba9876543210".into(), ..entry.clone() };
    tuning::install(&folder.join("tuning"), vec![entry, old]).unwrap();
    let explained = || {
        let mut run = command();
        run.env("HAMMERHEAD_TUNING", folder.join("tuning"));
        run.args(["run", "--suite", "edge", "--all", "--quiet", "--explain", "--backend", "scalar", "--threads", "1"]);
        stdout(&run.output().unwrap())
    };
    assert!(explained().contains("the tank measured it 1.250× as fast"));
    let listed = succeed(folder, &["champions"]);
    assert!(listed.contains(config) && listed.contains("champion") && listed.contains("other kernels"), "{listed}");
    let rollback = ["rollback", bucket.as_str(), "--by", "ada", "--because", "it was noise", "--ledger", "l.jsonl"];
    assert!(succeed(folder, &rollback).contains("the planner's own choice counts again"));
    assert!(succeed(folder, &["champions"]).contains("taken back"));
    assert!(succeed(folder, &["log", "--ledger", "l.jsonl"]).contains("by ada: it was noise"));
    assert_refused(&output(folder, &rollback), &["no champion"]);
    assert!(!explained().contains("the tank measured it"));
    let file = fs::read_dir(folder.join("tuning"))
        .unwrap()
        .flatten()
        .find(|f| f.file_name().to_string_lossy().starts_with("tuning-"));
    fs::write(file.unwrap().path(), "{").unwrap();
    let mut run = command();
    run.env("HAMMERHEAD_TUNING", folder.join("tuning")).args(["run", "--suite", "edge", "--all", "--quiet"]);
    let run = run.output().unwrap();
    assert!(run.status.success() && stderr(&run).contains("is ignored"), "{}", stderr(&run));
}

#[test]
fn an_operation_of_ones_own_is_written_and_played() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert_eq!(succeed(folder, &["new-operation", "rows"]), "rows\n");
    assert_refused(&output(folder, &["new-operation", "rows"]), &["rows", "there already"]);
    let path = folder.join("rows/operation.toml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("name = \"rows\""));
    let few = "\n[settings.referee.timing]\nlooks = [3]\nquartets_per_process = 1\nresamples = 100\nrotation = 1.0\nmost_layers = 2\n";
    fs::write(&path, text.replace("held_out = 6", "held_out = 1").replace("4096", "64") + few).unwrap();
    let pitches = ["--pitch", "rows/float-exp.toml", "--pitch", "rows/polynomial.toml"];
    let told = succeed(folder, &[&["play", "--operation", "rows", "--report", "r.html"], &pitches[..]].concat());
    // Which of the two comes first, and whether the other one has its turn, is for what the clock says today.
    let named = ["float exp", "polynomial"].iter().any(|pitch| told.contains(pitch));
    assert!(named && told.contains("champion: ") && !told.contains("BLOCKED"), "{told}");
    let ledger = fs::read_to_string(folder.join("hammerhead-tank/ledger.jsonl")).unwrap();
    let sat = ledger.lines().filter(|line| line.contains("\"sat\"") && !line.contains("\"sitting\":null"));
    assert!(sat.count() > 0, "nothing was timed: {ledger}");
    let page = fs::read_to_string(folder.join("r.html")).unwrap();
    assert!(page.contains("rows columns=128 rows=64"), "the problems have names");
    assert_refused(
        &output(folder, &["play", "--operation", "nowhere", "--pitch", "rows/float-exp.toml"]),
        &["nowhere/operation.toml"],
    );
}

#[test]
fn a_community_task_wants_an_interpreter_that_has_torch() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("task")).unwrap();
    fs::write(folder.join("task/task.yml"), "tests:\n  - {\"size\": 8, \"seed\": 1}\n").unwrap();
    // It answers whatever it is asked, as an interpreter that has torch.
    let imported = || output(folder, &["import", "task", "--into", "op", "--python", "echo"]);
    assert_refused(&imported(), &["cannot read", "task/reference.py"]);
    fs::write(folder.join("task/reference.py"), "").unwrap();
    assert_refused(&imported(), &["it has no generate_input", "only its own runner"]);
    let reference = "generate_input = len\nref_kernel = len\ncheck_implementation = len\n";
    fs::write(folder.join("task/reference.py"), reference).unwrap();
    let refused = output(folder, &["import", "task", "--into", "op", "--python", "false"]);
    assert_refused(&refused, &["\"false\" cannot import torch", "--python"]);
    let listed =
        "files:\n  - {\"name\": \"utils.py\", \"source\": \"../utils.py\"}\ntests:\n  - {\"size\": 8, \"seed\": 1}\n";
    fs::write(folder.join("task/task.yml"), listed).unwrap();
    assert_refused(&imported(), &["cannot read", "utils.py"]);
    assert!(!folder.join("op").exists(), "nothing is left half done");
    assert_refused(&output(folder, &["import", "nowhere"]), &["nowhere"]);
    fs::write(folder.join("task/task.yml"), listed.replace("../utils.py", "/etc/hostname")).unwrap();
    assert_refused(&imported(), &["/etc/hostname", "outside of its folder"]);
}

#[test]
fn known_exploits_are_listed_with_where_they_are_told_of_and_one_is_played() {
    let folder = tempfile::tempdir().unwrap();
    let listed = succeed(folder.path(), &["exploits"]);
    assert!(listed.contains("late-writer") && listed.contains("reference-kernels/pull/102"), "{listed}");
    let played = succeed(folder.path(), &["exploits", "--play", "--only", "stale", "--only", "reverse"]);
    assert!(played.contains("caught") && played.contains("honest, and not blamed"), "{played}");
    assert_refused(&output(folder.path(), &["exploits", "--only", "nobody"]), &["nobody"]);
}
