//! A file of defaults: what it may say, what comes before it, and what is said of a key that is none.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{command, stderr, stdout};

/// A file of defaults in a folder of its own.
fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

/// What `run --json` does on a small problem with such a file, and these arguments and this backend of the environment
/// beside it.
fn run(text: &str, more: &[&str], backend: Option<&str>) -> Output {
    let (_folder, path) = file(text);
    let mut command = command();
    command.env("HAMMERHEAD_CONFIG", path).args(["run", "--shape", "3x40x64", "--json"]).args(more);
    command.envs(backend.map(|name| ("HAMMERHEAD_BACKEND", name))).output().unwrap()
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).unwrap()
}

#[test]
fn the_command_line_comes_first_then_the_environment_then_the_file() {
    let text = "threads = 1\nseed = 7\nbackend = 'scalar'\n[run]\nseed = 8\n[bench]\nseed = 9\n";
    let told = report(&run(text, &[], None));
    assert_eq!((&told["threads"], &told["seed"]), (&1.into(), &8.into()), "the command's own table is nearer");
    assert_eq!(told["cases"][0]["backend"], "scalar");
    let told = report(&run(text, &["--threads", "2", "--seed", "3"], None));
    assert_eq!((&told["threads"], &told["seed"]), (&2.into(), &3.into()));
    let refused = run(text, &[], Some("no such backend"));
    assert!(
        !refused.status.success() && stderr(&refused).contains("no such backend"),
        "the environment is asked first"
    );
    let told = report(&run(text, &["--backend", "scalar"], Some("no such backend")));
    assert_eq!(told["cases"][0]["backend"], "scalar");
}

#[test]
fn what_is_no_default_is_a_sentence() {
    for (text, parts) in [
        ("bakend = 'amx'", ["bakend", "did you mean \"backend\""]),
        ("[bench]\ndevice = 'h200'", ["device", "\"bench\" does not have an option --device"]),
        ("[bensh]\nseconds = 1", ["[bensh] is no command", "bench"]),
        ("threads = true", ["threads", "neither text nor a number"]),
        ("quiet = 1", ["quiet", "that takes a value"]),
        ("threads = ", ["line 1", "docs/command-line.md"]),
        ("threads = 0", ["invalid value '0'", "defaults are read from"]),
    ] {
        let output = run(text, &[], None);
        assert_eq!(output.status.code(), Some(2), "{text:?}: {}", stderr(&output));
        for part in parts {
            assert!(stderr(&output).contains(part), "no {part:?} in {}", stderr(&output));
        }
    }
    let missing = command().env("HAMMERHEAD_CONFIG", "/no such file.toml").arg("info").output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("/no such file.toml"), "{}", stderr(&missing));
}

#[test]
fn a_file_that_nobody_named_need_not_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command();
    command.env_remove("HAMMERHEAD_CONFIG").env("XDG_CONFIG_HOME", folder.path()).args(["info", "--json"]);
    assert!(command.output().unwrap().status.success());
    std::fs::create_dir(folder.path().join("hammerhead")).unwrap();
    std::fs::write(folder.path().join("hammerhead/config.toml"), "nothing = 1").unwrap();
    assert_eq!(command.output().unwrap().status.code(), Some(2), "one that is there is read");
}

/// Whether a process has a handler for Ctrl-C, the second signal.
fn listens(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
}

#[test]
fn an_interrupted_bench_keeps_what_it_has_and_ends_with_130() {
    let arguments = ["bench", "--shape", "3x40x64", "--seconds", "600", "--json"];
    let child = command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !listens(child.id()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Long enough for a sample, most likely; nothing depends on it.
    std::thread::sleep(Duration::from_secs(2));
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("error: interrupted: "), "{}", stderr(&output));
    match stdout(&output).as_str() {
        "" => assert!(stderr(&output).contains("nothing had been measured yet"), "{}", stderr(&output)),
        text => {
            let record: Value = serde_json::from_str(text).unwrap();
            assert_eq!((&record["interrupted"], record["cases"].as_array().unwrap().len()), (&true.into(), 1));
            assert!(record["command"].as_str().unwrap().starts_with("hammerhead bench --shape 3x40x64"), "{record}");
        }
    }
}
