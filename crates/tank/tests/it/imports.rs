//! Problems as others write them: imported from small folders in their formats, and examined with submissions that are
//! right and wrong. Where no interpreter has torch (`HAMMERHEAD_TORCH` may name one), only what needs none is tested,
//! beside the sources.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use referee::{Correctness, RefereeSettings};
use tank::entry::Entry;
use tank::official::Official;
use tank::operations::folder::import::Imported;
use tank::operations::folder::{Folder, FolderOperation};
use tank::pitch::Pitch;

/// An interpreter that has torch, and the folders that it reads.
///
/// Where none has, whoever runs the tests is told so beside the harness, which swallows what tests print; and
/// `HAMMERHEAD_TORCH`, where it is set, has to have it.
fn python() -> Option<(String, Vec<String>)> {
    let found = with_torch();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    if found.is_none() {
        assert!(std::env::var_os("HAMMERHEAD_TORCH").is_none(), "HAMMERHEAD_TORCH names no interpreter that has torch");
        let what =
            format!("SKIPPED: {test} needs torch, and python3 has none; HAMMERHEAD_TORCH may name one that has\n");
        std::io::stderr().write_all(what.as_bytes()).unwrap();
    }
    found
}

fn with_torch() -> Option<(String, Vec<String>)> {
    let named = std::env::var("HAMMERHEAD_TORCH").unwrap_or_else(|_| "python3".to_owned());
    let ask = "import sys, os, torch; print(sys.executable); print(sys.prefix); print(sys.base_prefix); print(os.path.dirname(os.path.dirname(torch.__file__)))";
    let output = Command::new(named).args(["-c", ask]).output().ok().filter(|output| output.status.success())?;
    let mut lines = String::from_utf8(output.stdout).ok()?.lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
    Some((lines.next()?, lines.filter(|folder| folder != "/usr").collect()))
}

fn problems(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/problems").join(name)
}

/// What examinations find of each submission of a problem.
fn examined(mut found: Imported, submissions: &[PathBuf]) -> Vec<(String, Correctness)> {
    let Some((python, readable)) = python() else { return Vec::new() };
    submissions.iter().for_each(|path| found.submit(path).unwrap());
    let folder = tempfile::tempdir().unwrap();
    found.write(folder.path(), &python, &readable).unwrap();
    let folder = Folder::read(folder.path()).map(|read| (read, folder)).unwrap();
    let operation = FolderOperation::new(&folder.0).unwrap();
    let settings = RefereeSettings { ..folder.0.about.settings.referee.clone() };
    let mut referee = Official::new(Box::new(operation), settings, Vec::new(), None).unwrap();
    let baseline = &folder.0.about.baseline;
    let champion = Entry::Program { build: Vec::new(), command: baseline.program.clone(), sealed: None };
    let of = |(name, _): &(String, String)| {
        let pitch = Pitch::read(&folder.0.folder.join(format!("{name}.toml"))).unwrap();
        let command = pitch.run.unwrap().program;
        let challenger = Entry::Program { build: Vec::new(), command, sealed: None };
        (name.clone(), referee.examine(("baseline", &champion), (name, &challenger), 3).unwrap())
    };
    found.submissions.iter().map(of).collect()
}

fn right(found: &[(String, Correctness)]) -> Vec<(&str, bool)> {
    for (name, correctness) in found {
        assert!(correctness.fault.is_none() && correctness.champion_wrong.is_none(), "{name}: {correctness:?}");
    }
    found.iter().map(|(name, correctness)| (name.as_str(), correctness.passed())).collect()
}

#[test]
fn a_definition_with_workloads_is_held_to_its_own_tolerances() {
    let found = Imported::read(&problems("scaled"), None).unwrap();
    assert_eq!((found.submissions.len(), found.benchmarks.len()), (3, 2));
    let found = examined(found, &[]);
    if !found.is_empty() {
        // A thousandth too much is within what all have in common, and beyond what one of the workloads asks for.
        assert_eq!(right(&found), [("coarse", false), ("returned", true), ("written", true)]);
    }
}

#[test]
fn a_module_is_compared_with_one_that_has_its_weights() {
    let of = |name: &str| problems("modules").join(name);
    let found = Imported::read(&of("gated.py"), None).unwrap();
    let submissions = ["submission_right.py", "submission_wrong.py", "submission_rounded.py"].map(of);
    let found = examined(found, &submissions);
    if !found.is_empty() {
        let expected = [("submission_right", true), ("submission_wrong", false), ("submission_rounded", false)];
        assert_eq!(right(&found), expected);
        // Within the tolerance, and it is the digits that it lacks.
        let rounded = &found[2].1;
        assert!(rounded.wrong[0].what.contains("precision was traded for speed"), "{:?}", rounded.wrong);
        assert!(rounded.champion_precision.is_some_and(|champion| champion.rms > 0.0), "{rounded:?}");
    }
}

/// A copy of the data takes time, and whoever is compared with it would gain that.
#[test]
fn a_baseline_gets_copies_only_if_it_writes_to_its_data() {
    let Some((python, readable)) = python() else { return };
    for (of, copies) in [("modules/gated.py", "False"), ("modules/in_place.py", "True"), ("scaled", "False")] {
        let folder = tempfile::tempdir().unwrap();
        Imported::read(&problems(of), None).unwrap().write(folder.path(), &python, &readable).unwrap();
        let ask = "import baseline_submission as it; print(it.custom_kernel is it.reference.ref_kernel)";
        let said = Command::new(&python).args(["-c", ask]).current_dir(folder.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), copies, "{of}: {said:?}");
    }
}

#[test]
fn a_reference_that_draws_random_numbers_is_told_so_before_anyone_is_examined() {
    let Some((python, readable)) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    Imported::read(&problems("modules/dropout.py"), None).unwrap().write(folder.path(), &python, &readable).unwrap();
    let error = FolderOperation::new(&Folder::read(folder.path()).unwrap()).map(drop).unwrap_err().to_string();
    assert!(error.contains("it draws random numbers, as dropout in training does"), "{error}");
}

#[test]
fn a_task_brings_its_own_submission() {
    let found = Imported::read(Path::new(&problems("task")), None).unwrap();
    let found = examined(found, &[]);
    if !found.is_empty() {
        assert_eq!(right(&found), [("submission", true)]);
    }
}
