//! Problems as others write them, each made an operation: its own reference makes the numbers and judges, and a
//! submission runs as a contestant in a process of its own.
//!
//! - GPU MODE: `task.yml`, `reference.py` with `generate_input` and `check_implementation`, submissions with
//!   `custom_kernel`.
//! - FlashInfer-Bench, SOL-ExecBench: `definition.json`, `workload.jsonl`, solutions as JSON; or a whole data set of
//!   them.
//! - KernelBench: a module with `Model`, `get_inputs` and `get_init_inputs`; submissions with `ModelNew`.
//!
//! Only files of the problem's own folder are read, and Python files right beside it, where tasks of one collection
//! share some: a problem comes from anyone, and what is copied contestants can read.

mod contract;
mod data_set;
mod definition;
mod files;
mod module;
mod solution;
mod task;

use std::fs;
use std::path::{Component, Path, PathBuf};

use self::files::{listed, name_of_file, plain, read, slug};
use self::module::is_module;
use self::solution::{library_of, solution_of};
use super::{Given, Sizes};
use crate::operations::{EXAMPLE_RUN, example_pitch};
use crate::{Error, Result};

/// The problem's own reference as a submission.
const BASELINE: &str = "baseline_submission.py";

/// What compiles a solution in C++ or CUDA, once, before it is examined.
const COMPILER: &str = "compiled.py";

/// What every imported operation has beside the problem's own files.
const FILES: [(&str, &str); 10] = [
    (BASELINE, include_str!("import/baseline_submission.py")),
    ("operation.py", include_str!("import/operation.py")),
    ("contestant.py", include_str!("import/contestant.py")),
    ("submitted.py", include_str!("import/submitted.py")),
    (COMPILER, include_str!("import/compiled.py")),
    ("task_tensors.py", include_str!("import/task_tensors.py")),
    ("precision.py", include_str!("import/precision.py")),
    ("task_on_gpu.py", include_str!("import/task_on_gpu.py")),
    ("lent.py", include_str!("../../../../../examples/operations/gpu-matmul/lent.py")),
    ("tank.py", include_str!("../../../../../examples/operations/softmax/tank.py")),
];

/// A problem that was found, ready to be written as an operation's folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// Its name.
    pub name: String,
    /// Files, with their bytes.
    pub files: Vec<(String, Vec<u8>)>,
    /// What is asked.
    pub tests: Vec<Sizes>,
    /// What is timed.
    pub benchmarks: Vec<Sizes>,
    /// Submissions that came with it: a name, and the file.
    pub submissions: Vec<(String, String)>,
    /// What a reader should know that was left out.
    pub remarks: Vec<String>,
}

impl Imported {
    /// Reads a folder, or a module's file, in whichever of the formats it is. Of a data set, `which` names the
    /// definition.
    pub fn read(path: &Path, which: Option<&str>) -> Result<Self> {
        let nothing = |remedy: &str| {
            let problem = "it is no problem that is understood".to_owned();
            Err(Error::Rules { what: path.display().to_string(), problem, remedy: remedy.to_owned() })
        };
        let mut found = if path.is_file() && path.extension().is_some_and(|ending| ending == "py") {
            Self::of_module(path)?
        } else if path.join("task.yml").exists() {
            Self::of_task(path)?
        } else if path.join("definition.json").exists() {
            let solutions = listed(path)?.into_iter().filter(|path| name_of_file(path).starts_with("solution"));
            Self::of_definition(path, "definition.json", "workload.jsonl", solutions.collect())?
        } else if path.join("definitions").is_dir() {
            Self::of_data_set(path, which)?
        } else {
            let modules: Vec<PathBuf> = listed(path)?.into_iter().filter(|path| is_module(path)).collect();
            match modules.as_slice() {
                [module] => Self::of_module(module)?,
                [] => {
                    return nothing(
                        "name a folder with task.yml, definition.json or definitions/, or a file with `Model` and `get_inputs`",
                    );
                }
                _ => return nothing("it holds several modules: name one of the files"),
            }
        };
        if found.benchmarks.is_empty() {
            found.benchmarks = std::mem::take(&mut found.tests);
        }
        found.drop_repeated();
        found.files.extend(FILES.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())));
        Ok(found)
    }

    /// Takes benchmarks out that are another's again but for the seed, which is the referee's: they would weigh twice.
    fn drop_repeated(&mut self) {
        let all = std::mem::take(&mut self.benchmarks);
        let before = all.len();
        for sizes in all {
            if !self.benchmarks.contains(&sizes) {
                self.benchmarks.push(sizes);
            }
        }
        let repeated = before - self.benchmarks.len();
        if repeated > 0 {
            let what =
                "of its benchmarks are another's again but for the seed, and are left out: seeds are the referee's";
            self.remarks.push(format!("{repeated} {what}"));
        }
    }
    fn has(&self, name: &str) -> bool {
        let name = plain(name);
        self.files.iter().any(|(known, _)| *known == name)
    }

    /// Takes a file of the problem's folder, or a Python file right beside that, under a name. Links count as what they
    /// lead to.
    fn take(&mut self, folder: &Path, name: &str, source: &str) -> Result<()> {
        let path = folder.join(source);
        let refused = |problem: &str| Error::Rules {
            what: folder.display().to_string(),
            problem: format!("it names {source:?}, {problem}"),
            remedy: "copy the file into the problem's folder, and name it from there".to_owned(),
        };
        let unread = |source| Error::Read { path: path.clone(), source };
        let (home, found) = (folder.canonicalize().map_err(unread)?, path.canonicalize().map_err(unread)?);
        let beside = found.parent() == home.parent() && found.extension().is_some_and(|ending| ending == "py");
        if !found.starts_with(&home) && !beside {
            return Err(refused("which lies outside of its folder"));
        }
        let name = plain(name);
        let inside = Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || name.is_empty() {
            return Err(refused("and would be written outside of the operation's folder"));
        }
        if self.is_taken(&name) {
            return Err(Error::Rules {
                what: folder.display().to_string(),
                problem: format!(
                    "it has a file {name:?}, and the operation has another with that name, or nearly that"
                ),
                remedy: "give the file another name, also where it is imported".to_owned(),
            });
        }
        self.files.push((name, read(&found)?));
        Ok(())
    }

    /// Whether something else is written under a name, or under one that some file systems take for the same.
    fn is_taken(&self, name: &str) -> bool {
        let own = FILES.map(|(name, _)| name).into_iter().chain([super::DESCRIPTION]).map(str::to_owned);
        let pitches = self.submissions.iter().map(|(name, _)| format!("{name}.toml"));
        let libraries = self.submissions.iter().map(|(_, file)| library_of(file));
        let mut all = self.files.iter().map(|(name, _)| name.clone()).chain(own).chain(pitches).chain(libraries);
        all.any(|taken| taken.to_lowercase() == name.to_lowercase())
    }

    /// A name for a submission under which nothing is written yet: its own, with a number if another has that. `file`
    /// says what its file would be.
    fn free(&self, name: &str, file: impl Fn(&str) -> Option<String>) -> String {
        let name = slug(name);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let is_free = |name: &String| {
            let file = file(name);
            let files = [file.as_deref().map(library_of), file, Some(format!("{name}.toml"))];
            !files.into_iter().flatten().any(|file| self.is_taken(&file))
        };
        std::iter::once(name.clone()).chain(numbered).find(is_free).unwrap_or(name)
    }

    /// Takes a submission under a name of its own.
    fn enter(&mut self, path: &Path, kind: &str, name: &str, bytes: Vec<u8>) {
        let ending = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        let file = |name: &str| format!("{kind}-{name}.{ending}");
        let free = self.free(name, |name| Some(file(name)));
        if free != slug(name) {
            self.remarks.push(format!("{} is called {free} here", path.display()));
        }
        self.files.push((file(&free), bytes));
        self.submissions.push((free.clone(), file(&free)));
    }

    /// Takes a submission of the caller's: a file with `custom_kernel` or `ModelNew`, or a solution.
    pub fn submit(&mut self, path: &Path) -> Result<()> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = read(path)?;
        if let Some(problem) = solution_of(&name_of_file(path), &bytes).and_then(|solution| solution.refusal()) {
            let (what, remedy) = (path.display().to_string(), "bring it as a program of its own".to_owned());
            return Err(Error::Rules { what, problem, remedy });
        }
        self.enter(path, "submission", &name, bytes);
        Ok(())
    }

    /// The name of a folder for it.
    pub fn folder_name(&self) -> String {
        slug(&self.name)
    }

    /// Writes the operation's folder, with a pitch for each submission.
    pub fn write(&self, folder: &Path, python: &str, readable: &[String]) -> std::io::Result<()> {
        for (name, bytes) in &self.files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, bytes)?;
        }
        fs::write(folder.join(super::DESCRIPTION), self.description(python, readable))?;
        for (name, file) in &self.submissions {
            let bytes = self.files.iter().find(|(known, _)| known == file).map(|(_, bytes)| bytes.as_slice());
            let solution = solution_of(file, bytes.unwrap_or_default());
            let run = match solution.filter(|solution| solution.spec.is_compiled()) {
                None => format!("program = [{python:?}, \"./contestant.py\", \"./{file}\"]"),
                // The library is named too, so that it is the one that was examined that is timed.
                Some(_) => {
                    let library = library_of(file);
                    let [build, program] = [COMPILER, "contestant.py"]
                        .map(|script| format!("[{python:?}, \"./{script}\", \"./{file}\", \"./{library}\"]"));
                    format!("program = {program}\nbuild = {build}")
                }
            };
            let pitch = example_pitch(name).replace(EXAMPLE_RUN, &run);
            fs::write(folder.join(format!("{name}.toml")), pitch)?;
        }
        Ok(())
    }

    /// The description of the operation, for an interpreter that can import torch, and folders of its that contestants
    /// must be able to read.
    fn description(&self, python: &str, readable: &[String]) -> String {
        let timed = &self.benchmarks;
        let text = |value: &str| toml::Value::from(value).to_string();
        let value = |given: &Given| toml::Value::try_from(given).map(|value| value.to_string()).unwrap_or_default();
        let problem = |table: &str, why: &str, sizes: &Sizes| {
            let sizes: Vec<String> =
                sizes.iter().map(|(name, size)| format!("{} = {}", text(name), value(size))).collect();
            format!("\n[[{table}]]\nwhy = {}\nsizes = {{ {} }}\n", text(why), sizes.join(", "))
        };
        let timed_text: String =
            timed.iter().map(|sizes| problem("problem", "a benchmark of the problem", sizes)).collect();
        let asked = self.tests.iter().filter(|sizes| !timed.contains(sizes));
        let asked: String = asked.map(|sizes| problem("edge", "a test of the problem", sizes)).collect();
        let readable: Vec<String> = readable.iter().map(|folder| text(folder)).collect();
        format!(
            "# Written by `hammerhead tank import`. docs/operations.md explains every line; the program tells the tensors.\n\n\
             name = {}\nmetric = \"the geometric mean of the times over the problem's benchmarks\"\n\
             program = [{python}, \"./operation.py\"]\nnumbers = [\"the problem's own\"]\n{timed_text}{asked}\n\
             [tolerance]\nrule = \"judge\"\n\n\
             [baseline]\nprogram = [{python}, \"./contestant.py\", \"./{BASELINE}\"]\n\n\
             [settings]\nmin_pitches = 1\n\n[settings.referee.limits]\nhello_seconds = 120.0\nreadable = [{}]\n",
            text(&self.name),
            readable.join(", "),
            python = text(python),
        )
    }
}

/// Refuses a problem that the referee cannot play.
fn unplayable(what: &Path, why: String) -> Error {
    let remedy = "play it with its own runner, or write an operation for one GPU (docs/operations.md)".to_owned();
    Error::Rules { what: what.display().to_string(), problem: why, remedy }
}

#[cfg(test)]
mod tests {
    /// A folder with these files.
    pub(super) fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }
}
