//! Tasks as the GPU MODE community writes them: `task.yml`, `reference.py` with `generate_input` and `check_implementation`, and
//! submissions with `custom_kernel`. They become an operation: the task's own generator makes the numbers, its own check judges, and a submission
//! runs as a contestant in a process of its own.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{Error, Result, written};

/// The task's own reference as a submission.
pub const BASELINE: &str = "baseline_submission.py";

/// Files that are written beside the task's own.
pub const FILES: [(&str, &str); 5] = [
    (BASELINE, include_str!("import/baseline_submission.py")),
    ("operation.py", include_str!("import/operation.py")),
    ("contestant.py", include_str!("import/contestant.py")),
    ("task_tensors.py", include_str!("import/task_tensors.py")),
    ("tank.py", include_str!("../../../../../examples/operations/softmax/tank.py")),
];

/// A task's lists of problems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// The task's own files: their names, and where they lie from the task's folder.
    pub files: Vec<(String, String)>,
    /// What is asked.
    pub tests: Vec<BTreeMap<String, usize>>,
    /// What is timed.
    pub benchmarks: Vec<BTreeMap<String, usize>>,
}

impl Task {
    /// Reads `task.yml`: of all of it, the lists of tests and benchmarks, which are written a problem per line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = written::read(path)?;
        let mut task = Task::default();
        let mut list: Option<&str> = None;
        for (index, line) in text.lines().enumerate() {
            let item = line.trim();
            if !line.starts_with([' ', '-', '#']) && !item.is_empty() {
                let lists = ["tests", "benchmarks", "files"];
                list = item.split_once(':').map(|(key, _)| key).filter(|key| lists.contains(key));
            } else if let (Some("files"), Some(item)) = (list, item.strip_prefix("- ")) {
                task.files.extend(file(item));
            } else if let (Some(list), Some(item)) = (list, item.strip_prefix("- ")) {
                let sizes = sizes(item).map_err(|problem| Error::Written {
                    path: path.to_owned(),
                    line: index + 1,
                    problem,
                    remedy: "problems are whole numbers by name, a line each: - {\"size\": 1024, \"seed\": 1}"
                        .to_owned(),
                })?;
                if list == "tests" { task.tests.push(sizes) } else { task.benchmarks.push(sizes) }
            }
        }
        if task.benchmarks.is_empty() && task.tests.is_empty() {
            return Err(Error::Written {
                path: path.to_owned(),
                line: 1,
                problem: "it lists neither tests nor benchmarks".to_owned(),
                remedy: "write `benchmarks:` with a problem per line: - {\"size\": 1024, \"seed\": 1}".to_owned(),
            });
        }
        Ok(task)
    }

    /// The description of the operation, for an interpreter that can import torch, and folders of its that contestants must be able to read.
    pub fn description(&self, name: &str, python: &str, readable: &[String], baseline: &str) -> String {
        let timed = if self.benchmarks.is_empty() { &self.tests } else { &self.benchmarks };
        let text = |value: &str| toml::Value::from(value).to_string();
        let problem = |table: &str, why: &str, sizes: &BTreeMap<String, usize>| {
            let sizes: Vec<String> = sizes.iter().map(|(name, size)| format!("{} = {size}", text(name))).collect();
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

/// A file as a line writes it: `{"name": "utils.py", "source": "../utils.py"}`. Submissions, whose source is a word in @, are none of the task's.
fn file(item: &str) -> Option<(String, String)> {
    let value = |key: &str| {
        let after = item.split_once(&format!("\"{key}\""))?.1.split_once(':')?.1;
        let value = after.split([',', '}']).next()?.trim().trim_matches(['"', '\'']);
        (!value.is_empty() && !value.starts_with('@')).then(|| value.to_owned())
    };
    Some((value("name")?, value("source")?))
}

/// A problem as a line writes it: `{"size": 127, "seed": 4242}`, with or without quotes. The seed is the referee's.
fn sizes(item: &str) -> Result<BTreeMap<String, usize>, String> {
    let inner = item.trim().strip_prefix('{').and_then(|item| item.strip_suffix('}'));
    let inner = inner.ok_or_else(|| format!("{item} is no problem"))?;
    let mut sizes = BTreeMap::new();
    for pair in inner.split([',', ';']).filter(|pair| !pair.trim().is_empty()) {
        let (name, value) = pair.split_once(':').ok_or_else(|| format!("{pair} has no value"))?;
        let name = name.trim().trim_matches(['"', '\'']);
        let value =
            value.trim().parse().map_err(|_| format!("{name} is {}, which is no whole number", value.trim()))?;
        if name != "seed" {
            sizes.insert(name.to_owned(), value);
        }
    }
    Ok(sizes)
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
        assert_eq!(about.problem[0].sizes["size"], 1024);
        assert!(!about.problem[0].sizes.contains_key("seed"), "seeds are the referee's");
    }

    #[test]
    fn what_is_no_whole_number_is_refused_with_its_line() {
        let error = read(&TASK.replace("\"size\": 128", "\"size\": \"big\"")).unwrap_err().to_string();
        assert!(error.contains("line 16") && error.contains("big"), "{error}");
        assert!(read("lang: py\n").unwrap_err().to_string().contains("neither tests nor benchmarks"));
    }
}
