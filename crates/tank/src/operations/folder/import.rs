//! Tasks as the GPU MODE community writes them: `task.yml`, `reference.py` with `generate_input` and `check_implementation`, and
//! submissions with `custom_kernel`. They become an operation: the task's own generator makes the numbers, its own check judges, and a submission
//! runs as a contestant in a process of its own.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::yaml::{self, Item};
use super::{Given, Sizes};
use crate::{Error, Result, written};

/// The task's own reference as a submission.
pub const BASELINE: &str = "baseline_submission.py";

/// Files that are written beside the task's own.
pub const FILES: [(&str, &str); 7] = [
    (BASELINE, include_str!("import/baseline_submission.py")),
    ("operation.py", include_str!("import/operation.py")),
    ("contestant.py", include_str!("import/contestant.py")),
    ("task_tensors.py", include_str!("import/task_tensors.py")),
    ("task_on_gpu.py", include_str!("import/task_on_gpu.py")),
    ("lent.py", include_str!("../../../../../examples/operations/gpu-matmul/lent.py")),
    ("tank.py", include_str!("../../../../../examples/operations/softmax/tank.py")),
];

/// A task's lists of problems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// The task's own files: their names, and where they lie from the task's folder.
    pub files: Vec<(String, String)>,
    /// What is asked.
    pub tests: Vec<Sizes>,
    /// What is timed.
    pub benchmarks: Vec<Sizes>,
}

impl Task {
    /// Reads `task.yml`: of all of it, the lists of files, tests and benchmarks.
    pub fn read(path: &Path) -> Result<Self> {
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
        if task.benchmarks.is_empty() && task.tests.is_empty() {
            return Err(refuse(1, "it lists neither tests nor benchmarks".to_owned()));
        }
        Ok(task)
    }

    /// The description of the operation, for an interpreter that can import torch, and folders of its that contestants must be able to read.
    pub fn description(&self, name: &str, python: &str, readable: &[String], baseline: &str) -> String {
        let timed = if self.benchmarks.is_empty() { &self.tests } else { &self.benchmarks };
        let text = |value: &str| toml::Value::from(value).to_string();
        let value = |given: &Given| toml::Value::try_from(given).map(|value| value.to_string()).unwrap_or_default();
        let problem = |table: &str, why: &str, sizes: &Sizes| {
            let sizes: Vec<String> =
                sizes.iter().map(|(name, size)| format!("{} = {}", text(name), value(size))).collect();
            format!("\n[[{table}]]\nwhy = {}\nsizes = {{ {} }}\n", text(why), sizes.join(", "))
        };
        let timed_text: String =
            timed.iter().map(|sizes| problem("problem", "a benchmark of the task", sizes)).collect();
        let asked = self.tests.iter().filter(|sizes| !timed.contains(sizes));
        let asked: String = asked.map(|sizes| problem("edge", "a test of the task", sizes)).collect();
        let readable: Vec<String> = readable.iter().map(|folder| text(folder)).collect();
        format!(
            "# Written by `hammerhead tank import-task`. docs/operations.md explains every line; the program tells the tensors.\n\n\
             name = {}\nmetric = \"the geometric mean of the times over the task's benchmarks\"\n\
             program = [{python}, \"./operation.py\"]\nnumbers = [\"the task's\"]\n{timed_text}{asked}\n\
             [tolerance]\nrule = \"judge\"\n\n\
             [baseline]\nprogram = [{python}, \"./contestant.py\", {}]\n\n\
             [settings]\nmin_pitches = 1\n\n[settings.referee.limits]\nhello_seconds = 120.0\nreadable = [{}]\n",
            text(name),
            text(baseline),
            readable.join(", "),
            python = text(python),
        )
    }
}

/// A file as an item writes it: `{"name": "utils.py", "source": "../utils.py"}`. Submissions, whose source is a word in @, are none of the task's.
fn file(item: &Value) -> Option<(String, String)> {
    let value = |key: &str| Some(item.get(key)?.as_str().filter(|value| !value.starts_with('@'))?.to_owned());
    Some((value("name")?, value("source")?))
}

/// A problem as an item writes it: `{"size": 127, "seed": 4242}`. The seed is the referee's.
fn sizes(item: &Value) -> Result<Sizes, String> {
    let map = item.as_object().ok_or_else(|| format!("{item} is no problem"))?;
    let given = |(name, value): (&String, &Value)| match Given::deserialize(value) {
        Ok(given) => Ok((name.clone(), given)),
        Err(_) => Err(format!("{name} is {value}, which is no number, no word and no list of them")),
    };
    map.iter().filter(|(name, _)| *name != "seed").map(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::folder::Description;

    const TASK: &str = "# name: vectoradd\nfiles:\n  - {\"name\": \"submission.py\", \"source\": \"@SUBMISSION@\"}\n  - {\"name\": \"utils.py\", \"source\": \"../utils.py\"}\nlang: \"py\"\ndescription: |\n  Add.\n\n  tests: none\n\n\
        config:\n  main: \"eval.py\"\n\ntests:\n  - {\"size\": 127, \"seed\": 4242}\n  - {\"size\": 128, \"seed\": 5236}\n\nbenchmarks:\n  - {\"size\": 1024, \"seed\": 31232}\n";

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
        let text = task.description("vector \"add\"", "/usr/bin/python3", &["/opt/venv".to_owned()], "./submission.py");
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
        let told: Vec<String> =
            task.tests.iter().chain(&task.benchmarks).map(|sizes| super::super::name_of("t", sizes)).collect();
        let expected =
            ["t case=a, b m=[96,128] nomask=true p=0.5", "t case=dense m=[8,16] nomask=false p=0.001", "t m=1 n=-2"];
        assert_eq!(told, expected);
        let text = task.description("t", "python3", &[], "./b.py");
        let about: Description = toml::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_eq!((&about.problem[0].sizes, &about.edge[0].sizes), (&task.benchmarks[0], &task.tests[0]));
        assert_eq!(read("tests: [{\"n\": 1}, {\"n\": 2}]\n").unwrap().tests.len(), 2);
    }

    #[test]
    fn what_is_no_problem_is_refused_with_its_line() {
        let error = read(&TASK.replace("{\"size\": 128", "{\"size\" 128")).unwrap_err().to_string();
        assert!(error.contains("line 16") && error.contains("has no value"), "{error}");
        let error = read(&TASK.replace("\"size\": 128", "\"size\": {\"n\": 1}")).unwrap_err().to_string();
        assert!(error.contains("line 16") && error.contains("size is"), "{error}");
        assert!(read("lang: py\n").unwrap_err().to_string().contains("neither tests nor benchmarks"));
    }
}
