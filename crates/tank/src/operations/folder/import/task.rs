//! GPU MODE's format: `task.yml` lists problems and files, `reference.py` makes the numbers and judges.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::yaml::{self, Item};
use super::super::{Given, Sizes};
use super::files::{listed, name_of, name_of_file};
use super::{Imported, contract, unplayable};
use crate::{Error, Result, written};

/// What plays a task elsewhere.
const RUNNER: &str = "eval.py";

impl Imported {
    /// GPU MODE's format.
    pub(super) fn of_task(folder: &Path) -> Result<Self> {
        let task = Task::read(&folder.join("task.yml"))?;
        let mut found =
            Self { name: name_of(folder), tests: task.tests, benchmarks: task.benchmarks, ..Self::default() };
        for (name, source) in &task.files {
            // The runner that a task names is the community's; here the referee runs it.
            if name != RUNNER {
                found.take(folder, name, source)?;
            } else if let Ok(text) = fs::read_to_string(folder.join(source))
                && let Some(missing) = contract::OF_RUNNER.iter().find(|function| !text.contains(**function))
            {
                let why = format!("its runner {source} does not call {missing}, so that only that can play it");
                return Err(unplayable(folder, why));
            }
        }
        // What else lies there may be imported. What the task has taken from elsewhere under a name is that.
        let beside = listed(folder)?.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "py"));
        for name in beside.map(|path| name_of_file(&path)) {
            if !found.has(&name) {
                found.take(folder, &name, &name)?;
            }
        }
        if !found.has("reference.py") {
            found.take(folder, "reference.py", "reference.py")?;
        }
        let text = |name: &str| found.files.iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes.as_slice());
        let reference = String::from_utf8_lossy(text("reference.py").unwrap_or_default()).into_owned();
        if let Some(why) = contract::refusal(&reference, &contract::OF_TASK) {
            return Err(unplayable(folder, why));
        }
        for sizes in found.tests.iter().chain(&found.benchmarks) {
            let given = |name: &str| name == "seed" || sizes.contains_key(name);
            if let Some(name) = contract::not_given(&reference, "generate_input", given) {
                let why = format!("its generate_input asks for {name}, which no problem tells: its own runner does");
                return Err(unplayable(folder, why));
            }
        }
        if found.has("submission.py") {
            let name = found.free("submission", |_| None);
            found.submissions.push((name, "submission.py".to_owned()));
        }
        Ok(found)
    }
}

/// What `task.yml` lists.
#[derive(Clone, Debug, Default, PartialEq)]
struct Task {
    /// The task's own files: their names, and where they lie from the task's folder.
    files: Vec<(String, String)>,
    tests: Vec<Sizes>,
    benchmarks: Vec<Sizes>,
}

impl Task {
    /// Reads `task.yml`: of all of it, the lists of files, tests and benchmarks.
    fn read(path: &Path) -> Result<Self> {
        let text = written::read(path)?;
        let refuse = |line: usize, problem: String| Error::Written {
            path: path.to_owned(),
            line,
            problem,
            remedy:
                "write `benchmarks:` with a problem per line, what it is told by name: - {\"size\": 1024, \"seed\": 1}"
                    .to_owned(),
        };
        let problems = |key: &str| -> Result<Vec<Sizes>> {
            let of = |(line, item): Item| item.and_then(|item| sizes(&item)).map_err(|problem| refuse(line, problem));
            yaml::list(&text, key).into_iter().map(of).collect()
        };
        let files = yaml::list(&text, "files").into_iter().filter_map(|(_, item)| file(&item.ok()?)).collect();
        let task = Self { files, tests: problems("tests")?, benchmarks: problems("benchmarks")? };
        if let Some(why) = task.refusal(&text) {
            return Err(unplayable(path, why));
        }
        if task.benchmarks.is_empty() && task.tests.is_empty() {
            return Err(refuse(1, "it lists neither tests nor benchmarks".to_owned()));
        }
        Ok(task)
    }

    /// Why it cannot be played here, by what `task.yml` says of its runner and its GPUs.
    fn refusal(&self, text: &str) -> Option<String> {
        let told = |key: &str| yaml::list(text, key).into_iter().filter_map(|(_, item)| item.ok());
        let several = |gpu: &Value| {
            let count: u32 = gpu.as_str()?.rsplit_once('x')?.1.parse().ok()?;
            (2..=72).contains(&count).then(|| format!("gpus: {gpu}"))
        };
        let ranks = self.tests.iter().chain(&self.benchmarks).find_map(|sizes| {
            let known = ["world_size", "num_gpus", "n_gpus"].into_iter();
            known.filter_map(|name| Some((name, sizes.get(name)?))).find(|(_, count)| **count != Given::Whole(1))
        });
        let multi = told("multi_gpu").any(|flag| flag == Value::Bool(true)).then(|| "multi_gpu: true".to_owned());
        let ranks = || ranks.map(|(name, count)| format!("{name}: {count}"));
        if let Some(what) = multi.or_else(ranks).or_else(|| told("gpus").find_map(|gpu| several(&gpu))) {
            return Some(format!("it computes on several GPUs ({what}), and a contestant has one"));
        }
        if let Some(language) = told("lang").find(|language| language != "py") {
            return Some(format!("it is in the language {language}, whose own runner alone can play it"));
        }
        let inline = || told("config").find_map(|config| Some(config.get("main")?.as_str()?.to_owned()));
        let main = yaml::word(text, "config", "main").or_else(inline).filter(|main| main != RUNNER);
        main.map(|main| format!("its runner is {main}, and not {RUNNER}, in whose place the referee can call it"))
    }
}

/// A file as an item writes it: `{"name": "utils.py", "source": "../utils.py"}`. Submissions, whose source is a word in
/// @, are none of the task's.
fn file(item: &Value) -> Option<(String, String)> {
    let value = |key: &str| Some(item.get(key)?.as_str().filter(|value| !value.starts_with('@'))?.to_owned());
    Some((value("name")?, value("source")?))
}

/// A problem as an item writes it: `{"size": 127, "seed": 4242}`. The seed is the referee's.
fn sizes(item: &Value) -> Result<Sizes, String> {
    let map = item.as_object().ok_or_else(|| format!("{item} is no problem"))?;
    let given = |(name, value): (&String, &Value)| match Given::deserialize(told(value)) {
        Ok(given) => Ok((name.clone(), given)),
        Err(_) => Err(format!("{name} is {value}, which cannot be told to a problem")),
    };
    map.iter().filter(|(name, _)| *name != "seed").map(given).collect()
}

/// A value as problems are told it: TOML has no word for nothing, and an empty mapping stands for it.
fn told(value: &Value) -> Value {
    match value {
        Value::Null => Value::Object(Map::new()),
        Value::Array(parts) => parts.iter().map(told).collect(),
        Value::Object(parts) => parts.iter().map(|(name, part)| (name.clone(), told(part))).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::folder;
    use super::*;
    use crate::operations::folder::{Description, name_of};

    const TASK: &str = "# name: vectoradd\nfiles:\n  - {\"name\": \"submission.py\", \"source\": \"@SUBMISSION@\"}\n  - {\"name\": \"utils.py\", \"source\": \"../utils.py\"}\nlang: \"py\"\ndescription: |\n  Add.\n\n  tests: none\n\n\
        config:\n  main: \"eval.py\"\n\ntests:\n  - {\"size\": 127, \"seed\": 4242}\n  - {\"size\": 128, \"seed\": 5236}\n\nbenchmarks:\n  - {\"size\": 1024, \"seed\": 31232}\n";

    const REFERENCE: &str = "from utils import make_match\ndef generate_input(n: int, seed: int, shape=(1, 2)):\n    pass\n\
        def ref_kernel(data):\n    pass\ncheck_implementation = make_match(ref_kernel)\n";

    fn read(text: &str) -> Result<Task> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("task.yml");
        std::fs::write(&path, text).unwrap();
        Task::read(&path)
    }

    #[test]
    fn a_tasks_problems_become_an_operations() {
        let task = read(TASK).unwrap();
        assert_eq!((task.tests.len(), task.benchmarks.len()), (2, 1));
        assert_eq!(task.files, [("utils.py".to_owned(), "../utils.py".to_owned())]);
        let Task { tests, benchmarks, .. } = task;
        let found = Imported { name: "vector \"add\"".to_owned(), tests, benchmarks, ..Imported::default() };
        let text = found.description("/usr/bin/python3", &["/opt/venv".to_owned()]);
        let about: Description = toml::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_eq!((about.name.as_str(), about.problem.len(), about.edge.len()), ("vector \"add\"", 1, 2));
        assert_eq!(about.problem[0].sizes["size"], Given::Whole(1024));
        assert!(!about.problem[0].sizes.contains_key("seed"), "seeds are the referee's");
    }

    #[test]
    fn words_flags_lists_and_comments_become_what_they_mean_however_a_mapping_is_written() {
        let text = "tests:\n  - {\"m\": [96, 128], \"case\": \"a, b\", \"nomask\": True, \"p\": 0.5, \"seed\": 1} # fits\n\
                    benchmarks:\n- m: [8, 16]\n  case: dense # most\n  nomask: false\n  p: 1e-3\n  seed: 2\n- {\"m\": 1,\n   \"n\": -2}\ngpus:\n  - A100\n";
        let task = read(text).unwrap();
        let told: Vec<String> = task.tests.iter().chain(&task.benchmarks).map(|sizes| name_of("t", sizes)).collect();
        let expected =
            ["t case=a, b m=[96,128] nomask=true p=0.5", "t case=dense m=[8,16] nomask=false p=0.001", "t m=1 n=-2"];
        assert_eq!(told, expected);
        let Task { tests, benchmarks, .. } = task;
        let found = Imported { name: "t".to_owned(), tests, benchmarks, ..Imported::default() };
        let text = found.description("python3", &[]);
        let about: Description = toml::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_eq!((&about.problem[0].sizes, &about.edge[0].sizes), (&found.benchmarks[0], &found.tests[0]));
        assert_eq!(read("tests: [{\"n\": 1}, {\"n\": 2}]\n").unwrap().tests.len(), 2);
    }

    #[test]
    fn lists_mappings_nothing_and_numbers_are_read_however_they_are_written() {
        let text = "tests:\n  - {a: 1_000_000, b: 0x10, c: null, d: {m: 1, n: [2, 3]}, e: -0x1F, w: inf, s: \"a: b\"}\n\
                    benchmarks:\n  - a: 1000000\n    b: 16\n    c:\n    d:\n      m: 1\n      n:\n        - 2\n        - 3\n\
                    \x20   e: -31 # hex\n    w: inf\n    s: 'a: b'\n    seed: 3\n\
                    \x20 -\n    a: 1_0\n    d:\n    - x: 1\n      y: ~\n    - [1,\n       2]\n    v: \"it's\"\nnext: 1\n";
        let task = read(text).unwrap();
        assert_eq!(task.tests[0], task.benchmarks[0]);
        let told: Vec<String> = task.benchmarks.iter().map(|sizes| name_of("t", sizes)).collect();
        let expected = [
            "t a=1000000 b=16 c=nothing d={m=1,n=[2,3]} e=-31 s=a: b w=inf",
            "t a=10 d=[{x=1,y=nothing},[1,2]] v=it's",
        ];
        assert_eq!(told, expected);
        let found = Imported { name: "t".to_owned(), benchmarks: task.benchmarks, ..Imported::default() };
        let text = found.description("python3", &[]);
        let about: Description = toml::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let sizes: Vec<&Sizes> = about.problem.iter().map(|problem| &problem.sizes).collect();
        assert_eq!(sizes, found.benchmarks.iter().collect::<Vec<_>>(), "{text}");
    }

    #[test]
    fn benchmarks_that_differ_in_their_seed_alone_are_one_problem() {
        let task =
            "benchmarks:\n  - {\"n\": 1, \"seed\": 1}\n  - {\"n\": 2, \"seed\": 1}\n  - {\"n\": 1, \"seed\": 2}\n";
        let folder = folder(&[("task.yml", task), ("reference.py", REFERENCE)]);
        let found = Imported::read(folder.path(), None).unwrap();
        assert_eq!(found.benchmarks.len(), 2);
        assert!(found.remarks[0].starts_with("1 of its benchmarks"), "{:?}", found.remarks);
    }

    #[test]
    fn nothing_beyond_a_problems_folder_is_taken_but_python_files_beside_it() {
        let task = |source: &str| {
            format!("files:\n  - {{\"name\": \"utils.py\", \"source\": \"{source}\"}}\ntests:\n  - {{\"n\": 1}}\n")
        };
        let folder = folder(&[
            ("utils.py", "shared"),
            ("key.txt", "secret"),
            ("task/reference.py", REFERENCE),
            ("task/in/u.py", ""),
        ]);
        std::os::unix::fs::symlink(folder.path().join("key.txt"), folder.path().join("task/link.py")).unwrap();
        let taken = |source: &str| {
            fs::write(folder.path().join("task/task.yml"), task(source)).unwrap();
            Imported::read(&folder.path().join("task"), None)
        };
        fs::rename(folder.path().join("task/link.py"), folder.path().join("task/link")).unwrap();
        assert!(taken("../utils.py").unwrap().files.contains(&("utils.py".to_owned(), b"shared".to_vec())));
        assert!(taken("in/u.py").is_ok());
        for stray in ["/etc/passwd", "../key.txt", "../../../../../../etc/passwd", "link"] {
            let error = taken(stray).unwrap_err().to_string();
            assert!(error.contains("lies outside of its folder"), "{stray}: {error}");
        }
    }

    #[test]
    fn nobodys_file_is_written_over_anothers() {
        let task = "files:\n  - {\"name\": \"utils.py\", \"source\": \"in/u.py\"}\ntests:\n  - {\"n\": 1}\n";
        let folder = folder(&[
            ("task.yml", task),
            ("reference.py", REFERENCE),
            ("utils.py", "another's"),
            ("submission.py", "its own"),
            ("in/u.py", "shared"),
            ("a/fast.py", "a's"),
            ("b/Fast.py", "b's"),
            ("c/fast!.py", "c's"),
            ("a/operation.py", "called as the operation"),
            ("a/submission.py", "called as the first"),
            ("a/..py", "hidden"),
        ]);
        let mut found = Imported::read(folder.path(), None).unwrap();
        for name in ["a/fast.py", "b/Fast.py", "c/fast!.py", "a/operation.py", "a/submission.py", "a/..py"] {
            found.submit(&folder.path().join(name)).unwrap();
        }
        let names: Vec<&str> = found.submissions.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["submission", "fast", "Fast-2", "fast-3", "operation-2", "submission-2", "unnamed"]);
        assert!(found.remarks.iter().any(|remark| remark.ends_with("b/Fast.py is called Fast-2 here")));
        let written = tempfile::tempdir().unwrap();
        found.write(written.path(), "python3", &[]).unwrap();
        let text = |name: &str| fs::read_to_string(written.path().join(name)).unwrap();
        assert_eq!([text("utils.py"), text("submission-Fast-2.py")], ["shared", "b's"]);
        assert_eq!([text("submission.py"), text("submission-submission-2.py")], ["its own", "called as the first"]);
        assert!(text("operation.toml").contains("[[problem]]") && text("operation-2.toml").contains("operation-2.py"));
        let twice = |name: &str| {
            let clash = task.replace("utils.py", name);
            fs::write(folder.path().join("task.yml"), clash).unwrap();
            Imported::read(folder.path(), None).map(drop).unwrap_err().to_string()
        };
        for name in ["Reference.py", "TANK.py", "operation.toml", "contestant.py"] {
            assert!(twice(name).contains("has another with that name"), "{name}: {}", twice(name));
        }
        let of = |name: &str| Imported { name: name.to_owned(), ..Imported::default() }.folder_name();
        assert_eq!([of("../../etc/x"), of("/"), of("rms_k4")], ["etc-x", "unnamed", "rms_k4"]);
    }

    #[test]
    fn what_only_its_own_runner_can_play_is_refused_with_a_sentence() {
        const TESTS: &str = "tests:\n  - {\"n\": 1}\n";
        let of = |task: &str, reference: &str, runner: &str| {
            let task = format!("files:\n  - {{\"name\": \"eval.py\", \"source\": \"run/eval.py\"}}\n{task}{TESTS}");
            let files = [("task.yml", task.as_str()), ("reference.py", reference), ("run/eval.py", runner)];
            Imported::read(folder(&files).path(), None)
                .map(drop)
                .map_err(|error| error.to_string())
                .err()
                .unwrap_or_default()
        };
        let runner = "check_implementation(data, custom_kernel(generate_input()))";
        let known = "lang: \"py\"\nmulti_gpu: false\ngpus:\n  - MI300X\n  - rtx4090\nconfig:\n  main: \"eval.py\"\n";
        assert_eq!((of(known, REFERENCE, runner), of("", REFERENCE, runner)), (String::new(), String::new()));
        for (task, expected) in [
            ("multi_gpu: true\n", "several GPUs (multi_gpu: true)"),
            ("benchmarks:\n  - {\"n\": 1, \"world_size\": 8}\n", "several GPUs (world_size: 8)"),
            ("gpus:\n  - MI300x8\n", "several GPUs (gpus: \"MI300x8\")"),
            ("lang: cu\n", "the language \"cu\""),
            ("config:\n  more: 1\n  main: \"mine.py\"\n", "its runner is mine.py"),
            ("config: {\"main\": \"mine.py\"}\n", "its runner is mine.py"),
        ] {
            let found = of(task, REFERENCE, runner);
            assert!(found.contains(expected), "{task}: {found}");
        }
        for (old, new, expected) in [
            ("def generate_input(n", "def generate_input(\n    rank, n", "asks for rank, which no problem tells"),
            ("def generate_input(", "def generate_inputs(", "it has no generate_input"),
            ("check_implementation =", "# check_implementation =", "it has no check_implementation"),
            ("from utils", "import torch.distributed as dist\nfrom utils", "several GPUs (torch.distributed)"),
        ] {
            let found = of("", &REFERENCE.replace(old, new), runner);
            assert!(found.contains(expected), "{new}: {found}");
        }
        let elsewhere = REFERENCE.replace("def ref_kernel(data):\n    pass", "from other import (\n    ref_kernel,\n)");
        assert_eq!(of("", &elsewhere, runner), "");
        let other = of("", REFERENCE, &runner.replace("custom_kernel", "solve"));
        assert!(other.contains("run/eval.py does not call custom_kernel"), "{other}");
    }

    #[test]
    fn what_is_no_problem_is_refused_with_its_line() {
        let error = read(&TASK.replace("{\"size\": 128", "{\"size\" 128")).unwrap_err().to_string();
        assert!(error.contains("line 16") && error.contains("has no value"), "{error}");
        let error = read(&TASK.replace("{\"size\": 128, \"seed\": 5236}", "128")).unwrap_err().to_string();
        assert!(error.contains("line 16") && error.contains("128 is no problem"), "{error}");
        for mess in ["- n: 1\n      m: 2", "- n: [1", "- n:\n     - 1\n    m: 2\n   x: 3"] {
            let error = read(&format!("tests:\n  {mess}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{mess}: {error}");
        }
        assert!(read("lang: py\n").unwrap_err().to_string().contains("neither tests nor benchmarks"));
    }
}
