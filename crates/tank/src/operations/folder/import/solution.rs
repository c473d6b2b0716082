//! Solutions of a definition: what they are written in, what binds them to Python, and which of them can be run.

use std::path::Path;

use serde::Deserialize;

use super::Imported;
use super::files::read;
use crate::Result;

#[derive(Deserialize)]
pub(super) struct Solution {
    pub(super) name: String,
    pub(super) definition: String,
    pub(super) spec: Spec,
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
pub(super) struct Spec {
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

    pub(super) fn is_compiled(&self) -> bool {
        self.all().iter().any(|language| COMPILED.contains(&language.as_str()))
    }
}

impl Solution {
    /// Why it cannot be run as it is, if it cannot.
    pub(super) fn refusal(&self) -> Option<String> {
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
pub(super) fn solution_of(file: &str, bytes: &[u8]) -> Option<Solution> {
    file.ends_with(".json").then(|| serde_json::from_slice(bytes).ok()).flatten()
}

/// Where a solution's library lies that is compiled.
pub(super) fn library_of(file: &str) -> String {
    Path::new(file).with_extension("so").display().to_string()
}

impl Imported {
    /// Takes a solution that can be run as it is.
    pub(super) fn take_solution(&mut self, path: &Path, definition: &str) -> Result<()> {
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
}
