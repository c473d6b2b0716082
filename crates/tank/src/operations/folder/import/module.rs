//! KernelBench's format: a module with `Model`, `get_inputs` and `get_init_inputs`. Its shapes are its own, so that it
//! is one problem.

use std::fs;
use std::path::Path;

use super::super::{Given, Sizes};
use super::files::read;
use super::{Imported, contract, unplayable};
use crate::Result;

/// What a module's reference is read by.
const REFERENCE: &str = include_str!("reference_of_module.py");

impl Imported {
    /// Reads a module.
    pub(super) fn of_module(path: &Path) -> Result<Self> {
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
            vec![("problem.py".to_owned(), read(path)?), ("reference.py".to_owned(), REFERENCE.as_bytes().to_vec())];
        Ok(Self { name, files, benchmarks: vec![sizes], ..Self::default() })
    }
}

/// Whether a file is a module with a problem.
pub(super) fn is_module(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let model =
        text.lines().filter_map(|line| line.strip_prefix("class Model")).any(|rest| rest.trim_start().starts_with('('));
    path.extension().is_some_and(|ending| ending == "py") && model && text.contains("def get_inputs(")
}

#[cfg(test)]
mod tests {
    use super::super::tests::folder;
    use super::*;

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
}
