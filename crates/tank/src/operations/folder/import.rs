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
mod definition;

use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use self::definition::{Definition, Refused};
use super::yaml::{self, Item};
use super::{Given, Sizes};
use crate::operations::{EXAMPLE_RUN, example_pitch};
use crate::{Error, Result, written};

/// The problem's own reference as a submission.
const BASELINE: &str = "baseline_submission.py";

/// What compiles a solution in C++ or CUDA, once, before it is examined.
const COMPILER: &str = "compiled.py";

/// What plays a task elsewhere.
const RUNNER: &str = "eval.py";

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

/// What a definition's reference is read by, and a module's.
const OF_DEFINITION: &str = include_str!("import/reference_of_definition.py");
const OF_MODULE: &str = include_str!("import/reference_of_module.py");

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

    /// GPU MODE's format.
    fn of_task(folder: &Path) -> Result<Self> {
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

    /// A definition with its workloads and solutions, by their names in a folder.
    fn of_definition(folder: &Path, definition: &str, workloads: &str, solutions: Vec<PathBuf>) -> Result<Self> {
        let mut found = Self::default();
        found.take(folder, "definition.json", definition)?;
        found.take(folder, "workload.jsonl", workloads)?;
        found.files.push(("reference.py".to_owned(), OF_DEFINITION.as_bytes().to_vec()));
        let refuse = |name: &str, line: usize, problem: String| {
            let remedy = "write it as FlashInfer-Bench and SOL-ExecBench do".to_owned();
            Error::Written { path: folder.join(name), line, problem, remedy }
        };
        let text = String::from_utf8_lossy(&found.files[0].1).into_owned();
        let about: Value =
            serde_json::from_str(&text).map_err(|error| refuse(definition, error.line(), error.to_string()))?;
        let about = Definition::read(&about).map_err(|Refused { problem, key }| {
            let line = text.lines().position(|line| line.contains(&format!("{key:?}"))).map_or(1, |before| before + 1);
            let packed =
                "; write what numbers of four bits are stored in, two to a byte: uint8, and half the last size";
            refuse(definition, line, problem + if key.contains("float4") { packed } else { "" })
        })?;
        let text = String::from_utf8_lossy(&found.files[1].1).into_owned();
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (index, (line, text)) in lines.enumerate() {
            let read: Value =
                serde_json::from_str(text).map_err(|error| refuse(workloads, line + 1, error.to_string()))?;
            let (axes, files) =
                about.workload(&read).map_err(|Refused { problem, .. }| refuse(workloads, line + 1, problem))?;
            let mut sizes: Sizes = axes.into_iter().map(|(name, size)| (name, Given::Whole(size))).collect();
            sizes.insert("workload".to_owned(), Given::Whole(index as i64));
            found.benchmarks.push(sizes);
            for path in files {
                if !found.has(&path) {
                    found.take(folder, &path, &path)?;
                }
            }
        }
        if found.benchmarks.is_empty() {
            return Err(refuse(workloads, 1, "it has no workload".to_owned()));
        }
        found.name = about.name.clone();
        for path in solutions {
            found.take_solution(&path, &about.name)?;
        }
        Ok(found)
    }

    /// A data set of definitions, of which one is taken.
    fn of_data_set(folder: &Path, which: Option<&str>) -> Result<Self> {
        let ending = |path: &PathBuf, with: &str| path.extension().is_some_and(|ending| ending == with);
        let all = |part: &str, with: &str| -> Result<Vec<PathBuf>> {
            Ok(below(&folder.join(part))?.into_iter().filter(|path| ending(path, with)).collect())
        };
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let definitions = all("definitions", "json")?;
        let chosen: Vec<&PathBuf> =
            definitions.iter().filter(|path| which.is_none_or(|which| stem(path) == which)).collect();
        let [definition] = chosen.as_slice() else {
            let names: Vec<String> = definitions.iter().map(|path| stem(path)).collect();
            return Err(Error::Rules {
                what: folder.display().to_string(),
                problem: format!("it has {} definitions that are meant", chosen.len()),
                remedy: format!("choose one with --definition: {}", names.join(", ")),
            });
        };
        let name = stem(definition);
        let workloads = all("workloads", "jsonl")?.into_iter().find(|path| stem(path) == name);
        let workloads = workloads.ok_or_else(|| Error::Rules {
            what: folder.display().to_string(),
            problem: format!("it has no workloads for {name}"),
            remedy: format!("write workloads/{name}.jsonl"),
        })?;
        let inside = |path: &Path| path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned();
        let mut solutions = Vec::new();
        for path in all("solutions", "json").unwrap_or_default() {
            let of: Option<Solution> = serde_json::from_slice(&read(&path)?).ok();
            if of.is_some_and(|solution| solution.definition == name) {
                solutions.push(path);
            }
        }
        Self::of_definition(folder, &inside(definition), &inside(&workloads), solutions)
    }

    /// KernelBench's format. Its shapes are its own, so that it is one problem.
    fn of_module(path: &Path) -> Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = String::from_utf8_lossy(&read(path)?).into_owned();
        let model = (!is_module(path)).then(|| "it has no class Model, or no get_inputs".to_owned());
        let asked = || {
            let mut functions = contract::OF_MODULE.into_iter();
            functions.find_map(|function| Some((function, contract::not_given(&text, function, |_| false)?)))
        };
        let why = model.or_else(|| contract::refusal(&text, &contract::OF_MODULE)).or_else(|| {
            asked().map(|(function, name)| format!("its {function} asks for {name}, which its own runner tells"))
        });
        if let Some(why) = why {
            return Err(unplayable(path, why));
        }
        let sizes: Sizes = [("case".to_owned(), Given::Whole(0))].into();
        let files =
            vec![("problem.py".to_owned(), read(path)?), ("reference.py".to_owned(), OF_MODULE.as_bytes().to_vec())];
        Ok(Self { name, files, benchmarks: vec![sizes], ..Self::default() })
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

    /// Takes a solution that can be run as it is.
    fn take_solution(&mut self, path: &Path, definition: &str) -> Result<()> {
        let bytes = read(path)?;
        let shown = path.display();
        match serde_json::from_slice::<Solution>(&bytes) {
            Ok(solution) if solution.definition != definition => {
                self.remarks.push(format!("{shown} is of another definition, {}", solution.definition));
            }
            Ok(solution) => {
                if let Some(problem) = solution.refusal() {
                    self.remarks.push(format!("{shown} is left out: {problem}"));
                    return Ok(());
                }
                self.enter(path, "solution", &solution.name, bytes);
            }
            Err(error) => self.remarks.push(format!("{shown} is no solution: {error}")),
        }
        Ok(())
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

#[derive(Deserialize)]
struct Solution {
    name: String,
    definition: String,
    spec: Spec,
    #[serde(default)]
    sources: Vec<Source>,
}

#[derive(Deserialize)]
struct Source {
    content: String,
}

/// What it is written in, one language or a list, and what binds it to Python.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    language: Option<String>,
    languages: Vec<String>,
    binding: Option<String>,
}

/// Languages that are Python to whoever starts them.
const IN_PYTHON: [&str; 8] = ["python", "pytorch", "triton", "gluon", "tlx", "tilelang", "cute_dsl", "cutile"];

/// Languages that [`COMPILER`] compiles.
const COMPILED: [&str; 5] = ["cuda", "cuda_cpp", "cublas", "cpp", "c++"];

/// What binds a compiled solution to Python, by torch.
const BINDING: &str = "PYBIND11_MODULE";

impl Spec {
    fn all(&self) -> Vec<String> {
        self.language.iter().chain(&self.languages).map(|language| language.to_lowercase()).collect()
    }

    fn is_compiled(&self) -> bool {
        self.all().iter().any(|language| COMPILED.contains(&language.as_str()))
    }
}

impl Solution {
    /// Why it cannot be run as it is, if it cannot.
    fn refusal(&self) -> Option<String> {
        let known = |language: &String| [&IN_PYTHON[..], &COMPILED[..]].concat().contains(&language.as_str());
        let all = self.spec.all();
        if !all.iter().all(known) {
            return Some(format!("it is written in {}, which nothing compiles here", all.join(" and ")));
        }
        let binding = self.spec.binding.as_deref().filter(|binding| *binding != "torch");
        match binding.filter(|_| self.spec.is_compiled()) {
            Some(binding) => Some(format!("it is bound to Python by {binding}, and by torch alone it could be loaded")),
            None if self.spec.is_compiled() && !self.sources.iter().any(|source| source.content.contains(BINDING)) => {
                Some(format!("none of its sources has {BINDING}, by which torch could load it"))
            }
            None => None,
        }
    }
}

/// The solution that a submission's file holds, if it is one.
fn solution_of(file: &str, bytes: &[u8]) -> Option<Solution> {
    file.ends_with(".json").then(|| serde_json::from_slice(bytes).ok()).flatten()
}

/// A name as a word that is a file's in any file system: it neither hides nor leads anywhere, and is not too long.
fn slug(name: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let word: String = name.chars().map(word).take(100).collect();
    let word = word.trim_matches(['-', '.']);
    if word.is_empty() { "unnamed".to_owned() } else { word.to_owned() }
}

/// Where a solution's library lies that is compiled.
fn library_of(file: &str) -> String {
    Path::new(file).with_extension("so").display().to_string()
}

/// A name without steps that lead nowhere: published workloads write `./blob/workloads/…`.
fn plain(name: &str) -> String {
    let parts = Path::new(name).components().filter(|part| *part != Component::CurDir);
    parts.collect::<PathBuf>().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// The files of a folder, by name.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let unread = |source| Error::Read { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).map_err(unread)?.collect::<std::io::Result<Vec<_>>>().map_err(unread)?;
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).filter(|path| path.is_file()).collect();
    paths.sort();
    Ok(paths)
}

/// The files below a folder. Links are not followed to other folders.
fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = listed(folder)?;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for inner in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        paths.extend(below(&inner.path())?);
    }
    Ok(paths)
}

fn is_module(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let model =
        text.lines().filter_map(|line| line.strip_prefix("class Model")).any(|rest| rest.trim_start().starts_with('('));
    path.extension().is_some_and(|ending| ending == "py") && model && text.contains("def get_inputs(")
}

fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    whole.file_name().map_or_else(|| "problem".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn name_of_file(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
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
    use super::*;
    use crate::operations::folder::Description;

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
        let told: Vec<String> =
            task.tests.iter().chain(&task.benchmarks).map(|sizes| super::super::name_of("t", sizes)).collect();
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
        let told: Vec<String> = task.benchmarks.iter().map(|sizes| super::super::name_of("t", sizes)).collect();
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
    fn numbers_that_torch_does_not_have_are_refused_where_they_stand() {
        let of = |kind: &str| {
            let outputs = format!("\n\"outputs\": {{\"w\": {{\"shape\": [\"k\"], \"dtype\": \"{kind}\"}}}}");
            let definition = DEFINITION.replace(r#""outputs": {}"#, &outputs);
            let folder =
                folder(&[("definition.json", &definition), ("workload.jsonl", r#"{"axes": {"n": 1}, "inputs": {}}"#)]);
            Imported::read(folder.path(), None).map(drop).map_err(|error| error.to_string())
        };
        let refused = of("float4_e2m1").unwrap_err();
        assert!(refused.contains("line 2") && refused.contains("w has the type float4_e2m1"), "{refused}");
        assert_eq!((of("float4_e2m1fn_x2"), of("torch.float8_e4m3fn")), (Ok(()), Ok(())));
    }

    /// A folder with these files.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
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

    const DEFINITION: &str = r#"{"name": "scaled", "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}}, "inputs": {"x": {"shape": ["n"], "dtype": "float32"}}, "outputs": {}, "reference": ""}"#;

    #[test]
    fn workloads_become_problems_and_solutions_that_can_be_run_submissions() {
        let solution = |name: &str, of: &str, language: &str| {
            format!("{{\"name\": \"{name}\", \"definition\": \"{of}\", \"spec\": {{\"language\": \"{language}\"}}}}")
        };
        let workload =
            r#"{"workload": {"uuid": "a", "axes": {"n": 3}, "inputs": {"x": {"type": "random"}}}, "solution": null}"#;
        let bare = r#"{"uuid": "b", "axes": {"n": 5}, "inputs": {}}"#;
        let one = folder(&[
            ("definition.json", DEFINITION),
            ("workload.jsonl", &format!("{workload}\n\n{bare}\n")),
            ("solution.json", &solution("my fast one", "scaled", "triton")),
            ("solution_cuda.json", &solution("cuda", "scaled", "cuda")),
            ("solution_other.json", &solution("other", "another", "python")),
        ]);
        let found = Imported::read(one.path(), None).unwrap();
        let told: Vec<String> = found.benchmarks.iter().map(|sizes| super::super::name_of("s", sizes)).collect();
        assert_eq!(told, ["s n=3 workload=0", "s n=5 workload=1"]);
        assert_eq!(found.submissions, [("my-fast-one".to_owned(), "solution-my-fast-one.json".to_owned())]);
        assert!(found.remarks.len() == 2 && found.remarks[0].contains("PYBIND11_MODULE"), "{:?}", found.remarks);
        let set = folder(&[
            ("definitions/x/scaled.json", DEFINITION),
            ("definitions/x/other.json", DEFINITION),
            ("workloads/x/scaled.jsonl", workload),
            ("solutions/me/s.json", &solution("s", "scaled", "python")),
        ]);
        let unsaid = Imported::read(set.path(), None).unwrap_err().to_string();
        assert!(unsaid.contains("other, scaled"), "{unsaid}");
        assert_eq!(Imported::read(set.path(), Some("scaled")).unwrap().submissions.len(), 1);
        let stray = workload
            .replace(r#"{"type": "random"}"#, r#"{"type": "safetensors", "path": "/etc/passwd", "tensor_key": "x"}"#);
        fs::write(one.path().join("workload.jsonl"), stray).unwrap();
        assert!(Imported::read(one.path(), None).unwrap_err().to_string().contains("outside of its folder"));
        fs::write(one.path().join("workload.jsonl"), "{\"axes\": 3}").unwrap();
        assert!(Imported::read(one.path(), None).unwrap_err().to_string().contains("line 1"));
    }

    #[test]
    fn what_is_not_known_of_definitions_and_workloads_is_refused_by_its_name() {
        let workload = r#"{"workload": {"uuid": "a", "axes": {"n": 3}, "inputs": {"x": {"type": "random"}}, "tolerance": {"max_atol": 1e-3, "max_error_cap": null}}}"#;
        let of = |definition: &str, workload: &str| {
            let folder = folder(&[("definition.json", definition), ("workload.jsonl", workload)]);
            Imported::read(folder.path(), None).map(drop).map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        assert_eq!(of(DEFINITION, workload), "");
        for (old, new, expected) in [
            (r#""type": "random""#, r#""type": "ragged""#, r#"the input x is of the type "ragged""#),
            (r#"{"type": "random"}"#, "{}", "and only random, scalar, safetensors, custom are known"),
            (r#"{"type": "random"}"#, r#"{"type": "random", "std": 3}"#, "the input x has the field std"),
            (r#"{"type": "random"}"#, r#"{"type": "scalar"}"#, "the input x is of the type scalar, and says no value"),
            (r#"{"type": "random"}"#, r#"{"type": "custom"}"#, "no custom_inputs_entrypoint"),
            (r#""x""#, r#""z""#, "there is no input z"),
            (r#""n": 3"#, r#""n": 3.5"#, "the axis n is 3.5"),
            (r#""n": 3"#, r#""n": 3, "k": 5"#, "the axis k is 5"),
            (r#""n": 3"#, "", "the axis n is given no size"),
            (r#""uuid": "a""#, r#""layout": "a""#, "the workload has the field layout"),
            ("max_atol", "max_ulp", "its tolerance has the field max_ulp"),
            (r#"{"workload""#, r#"{"definition": "other", "workload""#, r#"is of the definition "other""#),
            (r#"{"workload""#, r#"{"world_size": 8, "workload""#, "the line has the field world_size"),
        ] {
            let found = of(DEFINITION, &workload.replace(old, new));
            assert!(found.contains(expected) && found.contains("workload.jsonl"), "{expected}: {found}");
        }
        for (old, new, expected) in [
            (r#""name""#, r#""mesh": 8, "name""#, "the definition has the field mesh"),
            (r#""type": "var""#, r#""type": "sum""#, r#"the axis n is of the type "sum""#),
            (r#", "value": 4"#, "", "the axis k is of the type const, and says no value"),
            (r#"["n"]"#, r#"["n", "3", "h"]"#, r#"the shape of x has "h", which is no axis"#),
            (r#""shape": ["n"]"#, r#""shape": ["n"], "strides": [2]"#, "x has the field strides"),
            ("float32", "posit16", "x has the type posit16"),
        ] {
            let found = of(&DEFINITION.replace(old, new), workload);
            assert!(found.contains(expected) && found.contains("definition.json"), "{expected}: {found}");
        }
    }

    /// As the published traces of FlashInfer-Bench lie in their folder.
    #[test]
    fn a_published_data_set_names_its_files_from_its_own_folder() {
        let workload = |uuid: &str, path: &str| {
            format!(
                r#"{{"definition": "scaled", "solution": null, "workload": {{"uuid": "{uuid}", "axes": {{"n": 3}}, "inputs": {{"x": {{"type": "safetensors", "path": "{path}", "tensor_key": "x"}}}}}}, "evaluation": null}}"#
            ) + "\n"
        };
        let blob = "blob/workloads/x/scaled/scaled_a.safetensors";
        let lines = workload("a", &format!("./{blob}")) + &workload("b", blob) + &workload("c", &format!(".//{blob}"));
        let set = folder(&[
            ("definitions/x/scaled.json", DEFINITION),
            ("workloads/x/scaled.jsonl", &lines),
            (blob, "tensors"),
        ]);
        let found = Imported::read(set.path(), None).unwrap();
        assert_eq!(found.benchmarks.len(), 3);
        let taken: Vec<&(String, Vec<u8>)> = found.files.iter().filter(|(name, _)| name.contains("blob")).collect();
        assert_eq!(taken, [&(blob.to_owned(), b"tensors".to_vec())], "once, where the workloads look for it");
        let operation = tempfile::tempdir().unwrap();
        found.write(operation.path(), "python3", &[]).unwrap();
        assert_eq!(fs::read(operation.path().join(format!("./{blob}"))).unwrap(), b"tensors");
        for stray in ["./../key", "./", "."] {
            fs::write(set.path().join("workloads/x/scaled.jsonl"), workload("a", stray)).unwrap();
            assert!(Imported::read(set.path(), None).is_err(), "{stray}");
        }
    }

    #[test]
    fn a_module_is_one_problem_and_several_have_to_be_told_apart() {
        let module = "class Model (nn.Module):\n    pass\ndef get_inputs():\n    return []\ndef get_init_inputs():\n    return []\n";
        let folder = folder(&[("1_relu.py", module), ("notes.py", "")]);
        let found = Imported::read(folder.path(), None).unwrap();
        assert_eq!((found.name.as_str(), found.benchmarks.len()), ("1_relu", 1));
        fs::write(folder.path().join("2_gelu.py"), module).unwrap();
        assert!(Imported::read(folder.path(), None).unwrap_err().to_string().contains("several modules"));
        assert_eq!(Imported::read(&folder.path().join("2_gelu.py"), None).unwrap().name, "2_gelu");
        assert!(Imported::read(&folder.path().join("nowhere"), None).is_err());
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
    fn modules_that_only_their_own_runner_can_play_are_refused_with_a_sentence() {
        const MODULE: &str = "class Model(nn.Module):\n    pass\ndef get_inputs(n=3):\n    return []\ndef get_init_inputs():\n    return []\n";
        let of = |text: &str| {
            let folder = folder(&[("1_relu.py", text)]);
            let read = Imported::read(&folder.path().join("1_relu.py"), None);
            read.map(drop).map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        assert_eq!(of(MODULE), "");
        for (old, new, expected) in [
            ("class Model(", "class Net(", "no class Model"),
            ("def get_init_inputs()", "def get_init()", "it has no get_init_inputs"),
            ("get_inputs(n=3)", "get_inputs(*, rank: int, n=3)", "its get_inputs asks for rank"),
            ("class Model(", "import torch.distributed\nclass Model(", "several GPUs (torch.distributed)"),
        ] {
            let found = of(&MODULE.replace(old, new));
            assert!(found.contains(expected), "{new}: {found}");
        }
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
