//! An operation that a folder describes: `operation.toml`, a program that makes numbers and knows what should come out
//! of them, and a baseline to be beaten.
//!
//! Which numbers and which shapes are asked is the referee's: seeds come from the operating system, every kind of
//! numbers is asked on every problem, and shapes that are in no list are drawn from the ranges that the description
//! gives.

pub mod example;
pub mod import;
mod maker;
mod tolerance;
mod yaml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use tolerance::Tolerance;

use referee::contestant::seal;
use referee::seeds::derive;
use referee::task::{Bundle, Element, Expected, Found, Spec, Task, Tensor, Timed, Work};

use self::maker::Maker;
use crate::operation::Operation;
use crate::settings::Settings;
use crate::{Error, Result, written};

/// The file that describes an operation.
pub const DESCRIPTION: &str = "operation.toml";

/// An operation's folder, read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Folder {
    /// Where it is.
    pub folder: PathBuf,
    /// What it says.
    pub about: Description,
    /// Tells the files of its program and its baseline from all others, but for what is built of them.
    pub digest: String,
}

/// What `operation.toml` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// What it is about.
    #[serde(default)]
    pub context: String,
    /// The success metric, in words.
    pub metric: String,
    /// The program that makes numbers, says what should come out and may judge.
    pub program: Vec<String>,
    /// Kinds of numbers that it can make; the first is what is timed.
    pub numbers: Vec<String>,
    /// The tensors; where there are none, the program tells them for each problem.
    #[serde(default)]
    pub tensor: Vec<TensorText>,
    /// The problems that are timed.
    pub problem: Vec<ProblemText>,
    /// Problems that are asked and not timed.
    #[serde(default)]
    pub edge: Vec<ProblemText>,
    /// From where to where each size may be, for shapes that are in no list; without it, only what is listed is asked.
    #[serde(default)]
    pub held_out: BTreeMap<String, [usize; 2]>,
    /// Whether its contestants compute on a GPU, so that nothing can be played without one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gpu: bool,
    /// How near a result must be.
    pub tolerance: Tolerance,
    /// What is to be beaten first.
    pub baseline: BaselineText,
    /// The numbers of the game.
    #[serde(default)]
    pub settings: Settings,
}

/// What a tensor is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It is there before the clock runs and may be prepared for, like weights.
    Constant,
    /// It is new in every run.
    Input,
    /// It is written.
    Output,
}

/// A tensor as it is described.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorText {
    /// Its name.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// What its numbers are.
    #[serde(rename = "type")]
    pub element: Element,
    /// Its sizes: numbers, or names of the problem's sizes.
    pub shape: Vec<Size>,
}

/// One size of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// Always the same.
    Fixed(usize),
    /// One of the problem's.
    Named(String),
}

/// A problem as it is described.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemText {
    /// Why it is there.
    pub why: String,
    /// Its sizes.
    pub sizes: Sizes,
    /// Operations that it takes at least, where that is known: nobody can be faster than they allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// Bytes that have to move, where they are not those of all tensors, for the roofline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
}

/// What a problem is told by: its sizes by name, and whatever else its program wants to know.
pub type Sizes = BTreeMap<String, Given>;

/// One of them: mostly a whole number. Tasks of others have words, yes and no, lists and mappings too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Given {
    /// A whole number; a size of a tensor is one that is not below zero.
    Whole(i64),
    /// Yes or no.
    Flag(bool),
    /// Any number.
    Real(f64),
    /// A word.
    Word(String),
    /// Some of these.
    List(Vec<Given>),
    /// Some of these by name; nothing at all where there is none, since TOML has no word for that.
    Map(Sizes),
}

impl Given {
    fn size(&self) -> Option<usize> {
        match self {
            Given::Whole(size) => usize::try_from(*size).ok(),
            _ => None,
        }
    }
}

impl std::fmt::Display for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Given::Whole(number) => write!(f, "{number}"),
            Given::Flag(flag) => write!(f, "{flag}"),
            Given::Real(number) => write!(f, "{number}"),
            Given::Word(word) => f.write_str(word),
            Given::List(parts) => {
                let parts: Vec<String> = parts.iter().map(Given::to_string).collect();
                write!(f, "[{}]", parts.join(","))
            }
            Given::Map(parts) if parts.is_empty() => f.write_str("nothing"),
            Given::Map(parts) => {
                let parts: Vec<String> = parts.iter().map(|(name, part)| format!("{name}={part}")).collect();
                write!(f, "{{{}}}", parts.join(","))
            }
        }
    }
}

/// What is to be beaten first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineText {
    /// The program, and its arguments.
    pub program: Vec<String>,
    /// What builds it.
    #[serde(default)]
    pub build: Vec<String>,
}

/// The files that make an operation what it is: those of its program, of its baseline and of what builds that. What
/// comes out of the build is not there when a season begins, and is when it goes on.
fn sources(folder: &Path, about: &Description) -> Vec<String> {
    let BaselineText { program, build } = &about.baseline;
    let named = |words: &[String], word: &String| {
        let name = |word: &String| Path::new(word).file_name().map(ToOwned::to_owned);
        words.iter().any(|other| name(other) == name(word))
    };
    let run = program.iter().filter(|word| !named(build, word)).cloned();
    let built_from = build.iter().filter(|word| !named(program, word));
    let built_from = built_from.map(|word| folder.join(word).display().to_string());
    about.program.iter().cloned().chain(run).chain(built_from).collect()
}

impl Folder {
    /// Reads an operation's folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(DESCRIPTION);
        let text = written::read(&path)?;
        let mut about: Description = written::parse(&path, &text)?;
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        for command in [&mut about.program, &mut about.baseline.program, &mut about.baseline.build] {
            written::anchor(&folder, command);
        }
        if let Some((key, problem, remedy)) = about.fault() {
            let line = written::line_of(&text, key);
            return Err(Error::Written { path, line, problem, remedy: remedy.to_owned() });
        }
        let digest = seal::digest(&sources(&folder, &about));
        Ok(Self { folder, about, digest })
    }

    /// What starts its baseline.
    pub fn baseline_words(&self) -> String {
        self.about.baseline.program.join(" ")
    }

    /// The names of the problems that are timed.
    pub fn problem_names(&self) -> Vec<String> {
        self.about.problem.iter().map(|problem| name_of(&self.about.name, &problem.sizes)).collect()
    }
}

impl Description {
    /// What is missing or makes no sense, with its key and what to do.
    fn fault(&self) -> Option<(&'static str, String, &'static str)> {
        let sizes = "write [[problem]] with why = \"…\" and sizes = { rows = 64, … }";
        if self.name.trim().is_empty() || self.tensor.iter().any(|tensor| tensor.name.trim().is_empty()) {
            return Some(("name", "a name is empty".into(), "name = \"softmax\", and for each tensor name = \"x\""));
        }
        if self.problem.is_empty() {
            return Some(("problem", "there are no problems".into(), sizes));
        }
        if self.program.is_empty() || self.baseline.program.is_empty() {
            return Some(("program", "a program is missing".into(), "program = [\"./operation.py\"]"));
        }
        if self.numbers.is_empty() {
            return Some(("numbers", "there are no kinds of numbers".into(), "numbers = [\"normal\", \"large\"]"));
        }
        for (index, tensor) in self.tensor.iter().enumerate() {
            if self.tensor[..index].iter().any(|other| other.name == tensor.name) {
                return Some(("tensor", format!("two tensors are called {}", tensor.name), "give each its own name"));
            }
        }
        for (role, name) in [(Role::Input, "input"), (Role::Output, "output")] {
            if !self.tensor.is_empty() && !self.tensor.iter().any(|tensor| tensor.role == role) {
                let remedy = "write [[tensor]] with name, role, type and shape";
                return Some(("tensor", format!("no tensor has the role {name}"), remedy));
            }
        }
        if let Some(problem) = self.tolerance.fault() {
            return Some(("tolerance", problem.into(), "rule = \"close\", \"ulp\", \"exact\" or \"judge\""));
        }
        for (size, [low, high]) in &self.held_out {
            if low > high || *high == 0 {
                return Some(("held_out", format!("{size} goes from {low} to {high}"), "write size = [least, most]"));
            }
        }
        for problem in self.problem.iter().chain(&self.edge) {
            let sensible = |known: &f64| known.is_finite() && *known > 0.0;
            if let Some(known) = [problem.flops, problem.bytes].into_iter().flatten().find(|known| !sensible(known)) {
                let remedy = "write what one run takes at least, or nothing where that is not known";
                return Some(("problem", format!("{known} operations or bytes are none"), remedy));
            }
            if let Some(size) = self.held_out.keys().find(|size| !problem.sizes.contains_key(*size)) {
                return Some(("problem", format!("a problem says nothing of {size}, of which held_out does"), sizes));
            }
            let ranges = &self.held_out;
            if let Some(size) = problem.sizes.keys().find(|size| !ranges.is_empty() && !ranges.contains_key(*size)) {
                let remedy =
                    "say under [held_out] from where to where it may be: the referee draws shapes that are in no list";
                return Some(("held_out", format!("nothing is said of {size}"), remedy));
            }
            for tensor in &self.tensor {
                if let Err(size) = tensor.spec(&problem.sizes) {
                    let what = format!(
                        "{} has the size {size}, which a problem does not have as a whole number of 0 or more, or which is too large",
                        tensor.name
                    );
                    return Some(("tensor", what, "name a size of every problem, or write a number"));
                }
            }
        }
        None
    }
}

impl TensorText {
    /// The tensor for a problem of these sizes, or the size that is not known, or with which it could not be counted.
    fn spec(&self, sizes: &Sizes) -> Result<Spec, String> {
        let size = |size: &Size| match size {
            Size::Fixed(size) => Ok(*size),
            Size::Named(name) => sizes.get(name).and_then(Given::size).ok_or_else(|| name.clone()),
        };
        let shape: Vec<usize> = self.shape.iter().map(size).collect::<Result<_, _>>()?;
        let bytes = shape.iter().try_fold(self.element.bytes(), |bytes, size| bytes.checked_mul(*size));
        bytes.filter(|bytes| *bytes < 1 << 40).ok_or_else(|| format!("{shape:?}"))?;
        Ok(Spec::new(&self.name, self.element, shape))
    }
}

fn name_of(operation: &str, sizes: &Sizes) -> String {
    let sizes: Vec<String> = sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
    format!("{operation} {}", sizes.join(" "))
}

/// Jobs of a timed run whose outputs are compared in any case: each takes a whole reference.
const LOOKED_AT: usize = 3;
/// More of them are for as long as this, so that small problems are looked at job by job.
const LOOKING: Duration = Duration::from_millis(20);

/// The operation of a folder.
pub struct FolderOperation {
    maker: Arc<Maker>,
    about: Arc<Description>,
    problems: Vec<Arc<dyn Task>>,
}

impl FolderOperation {
    /// The operation. Its program is started if it has to tell the tensors of the problems.
    pub fn new(folder: &Folder) -> Result<Self> {
        let about = Arc::new(folder.about.clone());
        if about.gpu
            && let Err(error) = gpu::device::context(0)
        {
            return Err(Error::Rules {
                what: format!("the operation {}", about.name),
                problem: format!("its contestants compute on a GPU, and there is none here: {error}"),
                remedy: "nothing was played; play it on a machine that has one".to_owned(),
            });
        }
        let mut operation = Self { maker: Arc::new(Maker::new(folder.clone())), about, problems: Vec::new() };
        let about = Arc::clone(&operation.about);
        let timed = |problem: &ProblemText| {
            let task = operation.plain(&problem.sizes, &about.numbers[0])?;
            Ok(Arc::new(FolderTask { flops: problem.flops, least_bytes: problem.bytes, ..task }) as Arc<dyn Task>)
        };
        operation.problems = about.problem.iter().map(timed).collect::<Result<_>>()?;
        Ok(operation)
    }

    fn task(&self, sizes: &Sizes, numbers: &str) -> Result<Arc<dyn Task>> {
        Ok(Arc::new(self.plain(sizes, numbers)?))
    }

    fn plain(&self, sizes: &Sizes, numbers: &str) -> Result<FolderTask> {
        let told = match self.about.tensor.as_slice() {
            [] => self.maker.describe(sizes)?,
            written => written.to_vec(),
        };
        let spec = |tensor: &TensorText| {
            let spec = tensor.spec(sizes).map_err(|size| Error::Rules {
                what: format!("the operation '{}'", self.about.name),
                problem: format!("{} has the size {size}, which is not known or too large", tensor.name),
                remedy: "name a size of every problem, or a number".to_owned(),
            });
            Ok((tensor.role, spec?))
        };
        Ok(FolderTask {
            maker: Arc::clone(&self.maker),
            about: Arc::clone(&self.about),
            sizes: sizes.clone(),
            numbers: numbers.to_owned(),
            tensors: told.iter().map(spec).collect::<Result<_>>()?,
            flops: None,
            least_bytes: None,
        })
    }
}

impl Operation for FolderOperation {
    fn name(&self) -> &str {
        &self.about.name
    }

    fn problems(&self) -> &[Arc<dyn Task>] {
        &self.problems
    }

    fn questions(&self, held_out: usize, _other_edges: usize, seed: u64) -> Result<Vec<Arc<dyn Task>>> {
        let about = &self.about;
        let mut asked = Vec::new();
        for problem in about.edge.iter().chain(&about.problem) {
            for numbers in &about.numbers {
                asked.push(self.task(&problem.sizes, numbers)?);
            }
        }
        let mut lots = Rng::with_seed(derive(seed, &[0x4e1d]));
        for _ in 0..if about.held_out.is_empty() { 0 } else { held_out } {
            let size = |(name, [low, high]): (&String, &[usize; 2])| {
                (name.clone(), Given::Whole(i64::try_from(lots.usize(*low..=*high)).unwrap_or(i64::MAX)))
            };
            let sizes = about.held_out.iter().map(size).collect();
            asked.push(self.task(&sizes, &about.numbers[lots.usize(..about.numbers.len())])?);
        }
        Ok(asked)
    }
}

#[derive(Clone)]
struct FolderTask {
    maker: Arc<Maker>,
    about: Arc<Description>,
    sizes: Sizes,
    numbers: String,
    tensors: Vec<(Role, Spec)>,
    flops: Option<f64>,
    least_bytes: Option<f64>,
}

impl FolderTask {
    fn specs(&self, role: Role) -> Vec<Spec> {
        self.tensors.iter().filter(|(of, _)| *of == role).map(|(_, spec)| spec.clone()).collect()
    }

    fn given<'b>(constants: &'b Bundle, input: &'b Bundle) -> Vec<&'b Tensor> {
        constants.tensors.iter().chain(&input.tensors).collect()
    }

    fn bundle(&self, role: Role, seed: u64) -> Result<Bundle> {
        let tensors = self.maker.generate(&self.sizes, &self.numbers, seed, self.specs(role))?;
        Ok(Bundle::new(tensors))
    }
}

impl Task for FolderTask {
    fn name(&self) -> String {
        name_of(&self.about.name, &self.sizes)
    }

    fn numbers(&self) -> String {
        self.numbers.clone()
    }

    fn operation(&self) -> String {
        self.about.name.clone()
    }

    fn work(&self) -> Work {
        let bytes = |role| self.specs(role).iter().map(|spec| spec.bytes() as f64).sum::<f64>();
        let constant_bytes = bytes(Role::Constant);
        let all = constant_bytes + bytes(Role::Input) + bytes(Role::Output);
        Work { flops: self.flops, bytes: self.least_bytes.unwrap_or(all), constant_bytes }
    }

    fn outputs(&self) -> Vec<Spec> {
        self.specs(Role::Output)
    }

    fn constants(&self, seed: u64) -> referee::Result<Bundle> {
        Ok(self.bundle(Role::Constant, seed)?)
    }

    fn input(&self, seed: u64) -> referee::Result<Bundle> {
        Ok(self.bundle(Role::Input, seed)?)
    }

    fn expected(&self, constants: &Bundle, input: &Bundle, _seed: u64) -> referee::Result<Box<dyn Expected>> {
        let task = self.clone();
        let (constants, input) = (constants.clone(), input.clone());
        let reference = match self.about.tolerance {
            Tolerance::Judge => Vec::new(),
            _ => self.maker.reference(&self.sizes, &Self::given(&constants, &input), &self.outputs())?,
        };
        Ok(Box::new(FolderExpected { task, constants, input, reference }))
    }

    /// Some jobs, each whole: a reference that is a program's cannot be asked for single elements.
    fn look(&self, run: &[Timed<'_>], elements: usize, lots: &mut Rng) -> referee::Result<Found> {
        let (mut all, began) = (Found::default(), Instant::now());
        for (index, timed) in lots.choose_multiple(run.iter(), elements).into_iter().enumerate() {
            if index >= LOOKED_AT && began.elapsed() > LOOKING {
                break;
            }
            all.add(self.expected(timed.constants, timed.input, lots.u64(..))?.check(timed.output)?);
        }
        Ok(all)
    }

    fn look_whole(&self, _: Timed<'_>) -> referee::Result<Option<String>> {
        // Every look is whole.
        Ok(None)
    }

    fn described(&self) -> Value {
        serde_json::to_value(&self.sizes).unwrap_or_default()
    }
}

struct FolderExpected {
    task: FolderTask,
    constants: Bundle,
    input: Bundle,
    reference: Vec<Vec<f64>>,
}

impl Expected for FolderExpected {
    fn check(&self, output: &[Vec<u8>]) -> referee::Result<Found> {
        let (task, outputs) = (&self.task, self.task.outputs());
        if task.about.tolerance == Tolerance::Judge {
            let given = FolderTask::given(&self.constants, &self.input);
            return Ok(task.maker.judge(&task.sizes, &given, &outputs, output)?);
        }
        let mut all = Found::default();
        for ((spec, expected), bytes) in outputs.iter().zip(&self.reference).zip(output) {
            all.add(task.about.tolerance.compare(&spec.name, spec.element, expected, &spec.element.values(bytes)));
        }
        Ok(all)
    }
}
