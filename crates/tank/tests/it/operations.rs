//! Operations that folders describe: the shipped ones are played, and who computes nothing, or remembers, falls as
//! anywhere.

use std::fs;
use std::path::{Path, PathBuf};

use referee::{Correctness, RefereeSettings, Timing};
use tank::entry::Entry;
use tank::event::Event;
use tank::ledger::Ledger;
use tank::official::Official;
use tank::operation::Operation;
use tank::operations::folder::{Folder, FolderOperation, Given, Tolerance};
use tank::pitch::Pitch;
use tank::play::{Options, Watch, play};
use tank::season::Season;
use tank::verdict::Verdict;
use tempfile::TempDir;

/// Where a shipped operation lies.
fn shipped(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/operations").join(name)
}

/// A copy of a shipped operation, in which things can be built and changed.
fn copy(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(shipped(name)).unwrap().map(|file| file.unwrap().path()) {
        // `copy` keeps what may be run.
        if file.is_file() && file.extension().is_none_or(|ending| ending != "so") {
            fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
        }
    }
    folder
}

/// Three quartets, which say nothing about speed.
fn settings(of: &Folder) -> RefereeSettings {
    let timing = Timing {
        looks: vec![3],
        quartets_per_process: 1,
        resamples: 100,
        rotation: 1.0,
        most_layers: 2,
        ..Timing::default()
    };
    let mut settings = RefereeSettings { timing, limits: crate::common::limits(), ..of.about.settings.referee.clone() };
    settings.checking.held_out = 2;
    settings
}

struct Silence;

impl Watch for Silence {
    fn say(&mut self, _: &str) {}
}

fn at_most_a_hundred(size: &mut Given) {
    if let Given::Whole(size) = size {
        *size = (*size).min(100);
    }
}

fn played(name: &str, pitches: [&str; 2]) {
    let copied = copy(name);
    let mut folder = Folder::read(copied.path()).unwrap();
    folder.about.settings.referee = settings(&folder);
    folder.about.settings.void_retries = 0;
    // What is timed by so few quartets is small too.
    for problem in &mut folder.about.problem {
        problem.sizes.values_mut().for_each(at_most_a_hundred);
    }
    let pitch = |name: &str| Pitch::read(&copied.path().join(name)).unwrap();
    let season = Season::of_operation(folder, pitches.map(pitch).to_vec()).unwrap();
    let operation = season.operation().unwrap();
    let mut referee = Official::new(operation, season.settings.referee.clone(), Vec::new(), None).unwrap();
    let mut ledger = Ledger::open(&copied.path().join("ledger.jsonl")).unwrap();
    play(&season, &mut ledger, &mut referee, &Options::default(), &mut Silence).unwrap();
    let records = ledger.records();
    let found = |of: fn(&Event) -> Option<String>| records.iter().find_map(|record| of(&record.event));
    let wrong = found(|event| match event {
        Event::Examined(examined) => {
            let right = examined.correctness.as_ref().is_some_and(Correctness::passed);
            (!right).then(|| format!("{examined:?}"))
        }
        _ => None,
    });
    assert_eq!(wrong, None, "{name}");
    let blocked = found(|event| match event {
        Event::Judged(judged) if judged.judgement.verdict == Verdict::Blocked => Some(format!("{judged:?}")),
        _ => None,
    });
    assert_eq!(blocked, None, "{name}");
    let sat = records.iter().filter(|record| matches!(&record.event, Event::Sat(sat) if sat.sitting.is_some()));
    assert!(sat.count() > 0, "{name} was never timed");
}

/// A contestant's fence follows no links out of its folder: so what two folders need stands in both, and must not drift
/// apart.
#[test]
fn what_shipped_operations_have_in_common_is_the_same_in_all() {
    for (file, [one, other]) in [("tank.py", ["softmax", "sort"]), ("lent.py", ["gpu-scale", "gpu-matmul"])] {
        let [one, other] = [one, other].map(|name| fs::read_to_string(shipped(name).join(file)).unwrap());
        assert!(one == other, "{file} differs");
    }
}

/// Softmax, the other operation that is shipped, is the one that `new-operation` writes; the program's tests play it.
#[test]
fn a_sort_is_played() {
    played("sort", ["radix.toml", "shell.toml"]);
}

#[test]
fn a_season_file_can_play_an_operation_whose_baseline_is_wrong() {
    let copied = copy("sort");
    let baseline = fs::read_to_string(copied.path().join("baseline.c")).unwrap();
    fs::copy(copied.path().join("baseline.c"), copied.path().join("slow.c")).unwrap();
    fs::write(copied.path().join("baseline.c"), baseline.replace("(x > y) - (x < y)", "(x < y) - (x > y)")).unwrap();
    let slow = fs::read_to_string(copied.path().join("radix.toml")).unwrap().replace("radix", "slow");
    fs::write(copied.path().join("slow.toml"), slow).unwrap();
    let text = "name = \"sorts\"\nmetric = \"time\"\noperation = \".\"\n[[round]]\nname = \"one\"\npitches = [\"slow.toml\", \"shell.toml\"]\n";
    let path = copied.path().join("season.toml");
    fs::write(&path, text).unwrap();
    let mut season = Season::read(&path).unwrap();
    season.settings.referee = settings(season.operation.as_ref().unwrap());
    let mut referee =
        Official::new(season.operation().unwrap(), season.settings.referee.clone(), Vec::new(), None).unwrap();
    let mut ledger = Ledger::open(&copied.path().join("ledger.jsonl")).unwrap();
    play(&season, &mut ledger, &mut referee, &Options::default(), &mut Silence).unwrap();
    let sat = ledger.records().iter().any(|record| matches!(record.event, Event::Sat(_)));
    let crowned =
        ledger.records().iter().any(|record| matches!(&record.event, Event::Crowned(c) if c.speedup.is_none()));
    assert!(crowned && !sat, "right beats wrong, and nothing is timed: {:?}", ledger.records());
    fs::write(&path, format!("baseline = \"planned\"\n{text}")).unwrap();
    assert!(Season::read(&path).unwrap_err().to_string().contains("brings its own"));
}

#[test]
fn an_operation_is_the_same_before_and_after_its_baseline_is_built() {
    let copied = copy("sort");
    let pitch = || Pitch::read(&copied.path().join("radix.toml")).unwrap();
    let season = || Season::of_operation(Folder::read(copied.path()).unwrap(), vec![pitch()]).unwrap().digest();
    let before = season();
    for built in ["baseline.so", "radix.so"] {
        fs::write(copied.path().join(built), "what a build makes").unwrap();
    }
    assert_eq!(season(), before, "a season that goes on is the one that was begun");
    for source in ["baseline.c", "contestant.py", "operation.py"] {
        let path = copied.path().join(source);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n")).unwrap();
        assert_ne!(season(), before, "{source} is a part of it");
        fs::write(&path, text).unwrap();
    }
}

/// Played on a GPU by hand; elsewhere it is left out with a sentence that says why.
#[test]
fn a_matrix_product_in_triton_waits_for_a_gpu() {
    let copied = copy("gpu-matmul");
    let folder = Folder::read(copied.path()).unwrap();
    let pitch = |name: &str| Pitch::read(&copied.path().join(name)).unwrap();
    let season = Season::of_operation(folder, ["square.toml", "cublas.toml"].map(pitch).to_vec()).unwrap();
    match (season.operation(), gpu::device::context(0)) {
        (Err(error), Err(missing)) => {
            let (said, missing) = (error.to_string(), missing.to_string());
            let told = said.contains("gpu-matmul") && said.contains(&missing) && said.contains("nothing was played");
            assert!(told, "{said}");
        }
        (found, there) => assert!(found.is_ok() && there.is_ok(), "a GPU is there for both or for none"),
    }
}

/// What the examination finds of a contestant in Python with this `compute`.
fn examined(compute: &str) -> Correctness {
    examined_in(&copy("softmax"), "", compute)
}

/// The same in a copy of an operation, and beside a champion whose `compute` may be another than the plain one.
fn examined_in(copied: &TempDir, champion: &str, compute: &str) -> Correctness {
    examined_by(copied, champion, compute, None).unwrap()
}

/// The same by another rule than the operation's, or why nobody can be examined.
fn examined_by(copied: &TempDir, champion: &str, compute: &str, rule: Option<Tolerance>) -> tank::Result<Correctness> {
    examined_with(copied, [champion, compute], &[], rule)
}

/// The same with words for the champion's command beside its own and, if there are any, a build that writes another
/// file each time; its files were others when it was examined.
fn examined_with(
    copied: &TempDir,
    [champion, compute]: [&str; 2],
    words: &[&str],
    rule: Option<Tolerance>,
) -> tank::Result<Correctness> {
    let baseline = "import math\ndef plain(problem, constants, inputs, outputs):\n    x, y, n = inputs['x'], outputs['y'], problem['columns']\n    \
                    for row in range(0, len(x), n):\n        top = max(x[row:row + n])\n        powers = [math.exp(v - top) for v in x[row:row + n]]\n        \
                    for j, p in enumerate(powers):\n            y[row + j] = p / sum(powers)\n";
    for (name, compute) in [("plain", champion), ("other", compute)] {
        let body = if compute.is_empty() { "compute = plain\n" } else { compute };
        let text =
            format!("#!/usr/bin/env python3\nimport tank\n{baseline}{body}tank.serve_contestant('x', compute)\n");
        let path = copied.path().join(format!("{name}.py"));
        fs::write(&path, text).unwrap();
        tank::operations::folder::example::make_executable(&path).unwrap();
    }
    let mut folder = Folder::read(copied.path()).unwrap();
    folder.about.tolerance = rule.unwrap_or(folder.about.tolerance);
    folder.about.problem.truncate(1);
    folder.about.problem[0].sizes =
        [("rows".to_owned(), Given::Whole(3)), ("columns".to_owned(), Given::Whole(7))].into();
    let settings = settings(&folder);
    let mut referee =
        Official::new(Box::new(FolderOperation::new(&folder).unwrap()), settings, Vec::new(), None).unwrap();
    let entry = |name: &str, words: &[&str]| {
        let command = [name].iter().chain(words).map(|word| copied.path().join(word).display().to_string()).collect();
        let build = ["sh", "-c", "date +%s.%N > made"].map(str::to_owned).into_iter().filter(|_| !words.is_empty());
        Entry::Program { build: build.collect(), command, sealed: words.first().map(|_| "others".to_owned()) }
    };
    referee.examine(("plain", &entry("plain.py", words)), ("other", &entry("other.py", &[])), 21)
}

#[test]
fn a_problem_whose_rule_lets_zeros_pass_is_not_judged() {
    let zeros = "def compute(problem, constants, inputs, outputs):\n    for j in range(len(outputs['y'])):\n        \
                 outputs['y'][j] = 0\n";
    let by = |absolute| {
        let rule = Tolerance::Close { absolute, relative: 0.0 };
        examined_by(&copy("softmax"), "", zeros, Some(rule))
    };
    let refused = by(1.0).unwrap_err().to_string();
    assert!(refused.contains("cannot be judged") && refused.contains("rows=3"), "{refused}");
    assert!(!by(1e-3).unwrap().passed());
}

#[test]
fn who_is_right_passes_and_who_computes_nothing_remembers_or_is_off_does_not() {
    let right = examined("def compute(*all):\n    plain(*all)\n");
    assert!(right.passed() && right.cases > 6, "{right:?}");
    let wrong = |compute: &str| {
        let found = examined(compute);
        assert!(found.fault.is_none(), "{found:?}");
        found.wrong.first().unwrap_or_else(|| panic!("{compute} was not caught")).what.clone()
    };
    assert!(wrong("def compute(*all):\n    pass\n").contains("never written"));
    let remembered = "known = {}\ndef compute(problem, constants, inputs, outputs):\n    key = str(problem)\n    \
                      if key not in known:\n        plain(problem, constants, inputs, outputs)\n        known[key] = list(outputs['y'])\n    \
                      for j, v in enumerate(known[key]):\n        outputs['y'][j] = v\n";
    assert!(wrong(remembered).contains("should be"));
    let off = "def compute(problem, constants, inputs, outputs):\n    plain(problem, constants, inputs, outputs)\n    \
               outputs['y'][0] *= 1.0001\n";
    assert!(wrong(off).contains("y[0] is"));
}

#[test]
fn a_champion_that_fails_when_it_is_examined_has_lost_its_title_to_one_that_is_right() {
    let found =
        examined_in(&copy("softmax"), "def compute(*all):\n    raise SystemExit('no more')\n", "compute = plain\n");
    let wrong = found.champion_wrong.as_ref().map(|wrong| wrong.what.clone()).unwrap_or_default();
    assert!(found.passed() && found.cases > 6 && wrong.contains("no more"), "{found:?}");
}

#[test]
fn a_champion_that_builds_other_files_than_were_examined_has_lost_its_title_to_one_that_is_right() {
    let by = |words: &[&str]| examined_with(&copy("softmax"), ["", "compute = plain\n"], words, None);
    let found = by(&["made"]).unwrap();
    let wrong = found.champion_wrong.as_ref().map(|wrong| wrong.what.clone()).unwrap_or_default();
    assert!(found.passed() && wrong.contains("not those that were examined"), "{found:?}");
    // What makes the other file may be missing here.
    assert!(by(&["made", "not-made"]).unwrap_err().to_string().contains("not those that were examined"));
}

#[test]
fn nothing_that_lies_beside_an_operation_is_taken_for_a_library_by_its_program() {
    let copied = copy("softmax");
    for name in ["random.py", "json.py"] {
        fs::write(copied.path().join(name), "raise SystemExit('a contestant runs without a fence')").unwrap();
    }
    let operation = FolderOperation::new(&Folder::read(copied.path()).unwrap()).unwrap();
    assert!(operation.problems()[0].input(1).is_ok());
}

/// An operation whose program judges, and stumbles over what is no number.
fn judging() -> TempDir {
    let copied = copy("softmax");
    let judge = "def judge(problem, tensors, outputs):\n    worst = max(outputs['y'])\n    return None if worst <= 1.0 else f'{round(worst)} is too large', worst\n";
    for (name, old, new) in [
        (
            "operation.py",
            "tank.serve_operation(generate, reference)",
            &*format!("{judge}\n\ntank.serve_operation(generate, None, judge)"),
        ),
        ("operation.toml", "rule = \"close\"\nabsolute = 1e-7\nrelative = 1e-5", "rule = \"judge\""),
    ] {
        let path = copied.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(old), "{name}");
        fs::write(&path, text.replacen(old, new, 1)).unwrap();
    }
    copied
}

#[test]
fn what_a_judge_stumbles_over_is_wrong_and_ends_nothing() {
    let writing = |value: &str| {
        format!(
            "def compute(problem, constants, inputs, outputs):\n    for j in range(len(outputs['y'])):\n        outputs['y'][j] = float('{value}')\n"
        )
    };
    for (value, said) in
        [("nan", "cannot convert float NaN"), ("inf", "cannot convert float infinity"), ("7", "7 is too large")]
    {
        let found = examined_in(&judging(), "", &writing(value));
        let wrong = found.wrong.first().map(|wrong| wrong.what.clone()).unwrap_or_default();
        assert!(wrong.contains(said), "{value}: {found:?}");
    }
}

#[test]
fn a_reference_that_fails_says_why() {
    let copied = copy("softmax");
    let path = copied.path().join("operation.py");
    let text = fs::read_to_string(&path).unwrap();
    for (spoilt, said) in
        [("raise ValueError('no such sum')", "ValueError: no such sum"), ("raise SystemExit(5)", "exit status: 5")]
    {
        let spoilt = text.replacen(
            "def reference(problem, tensors, outputs):\n",
            &format!("def reference(problem, tensors, outputs):\n    {spoilt}\n"),
            1,
        );
        assert_ne!(spoilt, text);
        fs::write(&path, spoilt).unwrap();
        let folder = Folder::read(copied.path()).unwrap();
        let operation = FolderOperation::new(&folder).unwrap();
        let task = &operation.problems()[0];
        let (constants, input) = (task.constants(1).unwrap(), task.input(1).unwrap());
        let error = task.expected(&constants, &input, 1).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(said), "{error}");
    }
}

fn refused(change: (&str, &str)) -> String {
    let copied = copy("softmax");
    let path: &Path = &copied.path().join("operation.toml");
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(change.0), "{change:?}");
    fs::write(path, text.replacen(change.0, change.1, 1)).unwrap();
    Folder::read(copied.path()).unwrap_err().to_string()
}

#[test]
fn what_a_problem_says_that_it_takes_is_what_nobody_can_be_faster_than() {
    let copied = copy("softmax");
    let path = copied.path().join("operation.toml");
    let text = fs::read_to_string(&path).unwrap();
    let work = |text: &str| {
        fs::write(&path, text).unwrap();
        let operation = FolderOperation::new(&Folder::read(copied.path()).unwrap()).unwrap();
        operation.problems()[0].work()
    };
    let (plain, told) = (work(&text), work(&text.replacen("why = ", "flops = 5e6\nbytes = 7e5\nwhy = ", 1)));
    assert_eq!((plain.flops, told.flops, told.bytes), (None, Some(5e6), 7e5));
    assert_eq!(plain.constant_bytes, told.constant_bytes);
}

#[test]
fn what_is_missing_in_a_description_is_told_with_its_line() {
    for (change, parts) in [
        (("columns = [1, 300]", ""), ["operation.toml, line", "columns"]),
        (("rule = \"close\"", "rule = \"near\""), ["operation.toml, line", "near"]),
        (("role = \"output\"", "role = \"input\""), ["operation.toml, line", "role output"]),
        (("shape = [\"rows\", \"columns\"]", "shape = [\"lines\"]"), ["operation.toml, line", "lines"]),
        (("rows = [1, 20]", "rows = [20, 1]"), ["operation.toml, line", "from 20 to 1"]),
        (("name = \"softmax\"", "name = \"\""), ["operation.toml, line", "a name is empty"]),
        (("why = ", "flops = -1.0\nwhy = "), ["operation.toml, line", "-1 operations"]),
    ] {
        let error = refused(change);
        assert!(parts.iter().all(|part| error.contains(part)), "{change:?}: {error}");
    }
}
