//! Definitions with workloads and solutions, as FlashInfer-Bench and SOL-ExecBench write them: one of them in a folder
//! of its own, or a data set of many.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::{Given, Sizes};
use super::Imported;
use super::definition::{Definition, Refused};
use super::files::{below, read};
use super::solution::Solution;
use crate::{Error, Result};

/// What a definition's reference is read by.
const REFERENCE: &str = include_str!("reference_of_definition.py");

impl Imported {
    /// A definition with its workloads and solutions, by their names in a folder.
    pub(super) fn of_definition(
        folder: &Path,
        definition: &str,
        workloads: &str,
        solutions: Vec<PathBuf>,
    ) -> Result<Self> {
        let mut found = Self::default();
        found.take(folder, "definition.json", definition)?;
        found.take(folder, "workload.jsonl", workloads)?;
        found.files.push(("reference.py".to_owned(), REFERENCE.as_bytes().to_vec()));
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
    pub(super) fn of_data_set(folder: &Path, which: Option<&str>) -> Result<Self> {
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
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::name_of;
    use super::super::tests::folder;
    use super::*;

    const DEFINITION: &str = r#"{"name": "scaled", "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4}}, "inputs": {"x": {"shape": ["n"], "dtype": "float32"}}, "outputs": {}, "reference": ""}"#;

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
        let told: Vec<String> = found.benchmarks.iter().map(|sizes| name_of("s", sizes)).collect();
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
}
