//! Operations as folders: a new one to begin from, and one made of somebody else's problem.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use clap::Args as ClapArgs;
use tank::operations::folder::example;
use tank::operations::folder::import::Imported;

use crate::{Error, Result, console};

/// Write a complete small operation to begin from: a folder with its description, its reference, a baseline and two
/// contestants
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Write a complete small operation to begin from, as a folder: operation.toml (shapes, tensors, tolerance), \
    operation.py (numbers and a reference in double precision), a baseline in C, and two contestants with their pitches. It is \
    softmax over rows; replace it by what you compute. docs/operations.md explains every part."
)]
pub struct New {
    /// The folder, and the operation's name
    folder: PathBuf,
}

/// Writes the example; a folder that is there is left alone.
pub fn new(args: &New) -> Result<()> {
    let folder = &args.folder;
    if folder.exists() {
        return Err(Error::Destination { path: folder.clone(), problem: "it is there already" });
    }
    let failed = |cause| Error::Write { path: folder.clone(), cause };
    fs::create_dir_all(folder).map_err(failed)?;
    let name = folder.file_name().map_or_else(|| "operation".to_owned(), |name| name.to_string_lossy().into_owned());
    for file in example::FILES {
        let path = folder.join(file.name);
        fs::write(&path, file.text(&name)).map_err(failed)?;
        if file.runs {
            example::make_executable(&path).map_err(failed)?;
        }
    }
    console::print(&format!("{}\n", folder.display()))?;
    let shown = folder.display();
    console::remark(&format!(
        "play it: hammerhead tank play --operation {shown} --pitch {shown}/float-exp.toml --pitch {shown}/polynomial.toml"
    ));
    Ok(())
}

/// Make an operation of a problem as others write them: GPU MODE, FlashInfer-Bench, SOL-ExecBench, KernelBench
#[derive(Debug, ClapArgs)]
#[command(long_about = "Make an operation of a problem as others write them, with a pitch for every submission:\n  \
    task.yml with reference.py (GPU MODE), submissions with custom_kernel;\n  \
    definition.json with workload.jsonl and solution.json (FlashInfer-Bench, SOL-ExecBench), or a data set with definitions/;\n  \
    a module with Model, get_inputs and get_init_inputs (KernelBench), submissions with ModelNew.\n\
    The problem's own generator makes the numbers, from the referee's seeds, and its own reference judges, by its own tolerances or stricter ones. Where there is no \
    GPU, what it wants on one it gets on the processor.\n\n\
    Examples:\n  \
    hammerhead tank import problems/vectoradd --into vectoradd --python ~/venv/bin/python\n  \
    hammerhead tank import KernelBench/level1/1_Square_matrix_multiplication_.py --submission fast.py --into square\n  \
    hammerhead tank import flashinfer-trace --definition gemm_n4096_k4096 --into gemm\n  \
    hammerhead tank play --operation vectoradd --pitch vectoradd/submission.toml --json")]
pub struct Import {
    /// The problem's folder, or a module's file
    problem: PathBuf,
    /// The operation's folder [default: the problem's name]
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// An interpreter that can import torch
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// Which definition of a data set
    #[arg(long, value_name = "NAME")]
    definition: Option<String>,
    /// A submission beside those that lie with the problem: custom_kernel, ModelNew, or a solution as JSON
    #[arg(long, value_name = "FILE")]
    submission: Vec<PathBuf>,
}

/// Asks an interpreter for its name, and for the folders that solutions read.
const READABLE: &str = include_str!("readable.py");

/// Writes the operation; a folder that is there is left alone.
pub fn import(args: &Import) -> Result<()> {
    let mut found = Imported::read(&args.problem, args.definition.as_deref())?;
    for path in &args.submission {
        found.submit(path)?;
    }
    let folder = args.into.clone().unwrap_or_else(|| PathBuf::from(found.folder_name()));
    if folder.exists() {
        return Err(Error::Destination { path: folder, problem: "it is there already" });
    }
    let asked = Command::new(&args.python).args(["-c", READABLE]).output();
    let told = asked
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let mut lines = told.as_deref().unwrap_or_default().lines().map(str::to_owned);
    let python = lines.next().ok_or_else(|| Error::NoTorch { python: args.python.clone() })?;
    let readable: Vec<String> = lines.collect();
    let made = found.write(&folder, &python, &readable);
    if made.is_err() {
        // Half of it would stand in the way of the next try.
        let _ = fs::remove_dir_all(&folder);
    }
    made.map_err(|cause| Error::Write { path: folder.clone(), cause })?;
    let shown = folder.display();
    console::print(&format!("{shown}\n"))?;
    found.remarks.iter().for_each(|remark| console::remark(remark));
    let pitches: String = found.submissions.iter().map(|(name, _)| format!(" --pitch {shown}/{name}.toml")).collect();
    console::remark(&match pitches.as_str() {
        "" => {
            format!("no submission came with it; add one by --submission, and write a pitch for {shown}/contestant.py")
        }
        pitches => format!("play it: hammerhead tank play --operation {shown}{pitches}"),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    /// What is readable where an interpreter's modules, its home folder and nvcc lie as given.
    fn readable(modules: &Path, home: &Path, nvcc: &Path) -> Vec<String> {
        fs::create_dir_all(nvcc.parent().unwrap()).unwrap();
        fs::write(nvcc, "#!/bin/sh\n").unwrap();
        fs::set_permissions(nvcc, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", nvcc.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("python3");
        command.args(["-c", READABLE]).env("PATH", path).env("HOME", home).env("PYTHONPATH", modules);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap().lines().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn a_toolkit_is_readable_and_a_home_folder_is_not_whatever_lies_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let [modules, home, toolkit] = ["modules", "home/somebody", "toolkit"].map(|name| root.join(name));
        for place in [modules.join("torch"), home.clone(), toolkit.join("include")] {
            fs::create_dir_all(place).unwrap();
        }
        fs::write(modules.join("torch/__init__.py"), "").unwrap();
        fs::write(toolkit.join("include/cuda_runtime.h"), "").unwrap();
        let has = |found: &[String], place: &Path| found.iter().any(|folder| Path::new(folder) == place);
        let found = readable(&modules, &home, &toolkit.join("bin/nvcc"));
        assert!(has(&found, &toolkit) && has(&found, &modules), "{found:?}");
        let found = readable(&modules, &home, &home.join("bin/nvcc"));
        assert!(!has(&found, &home) && has(&found, &modules), "{found:?}");
        let found = readable(&modules, &modules.join("somebody"), &home.join("bin/nvcc"));
        assert!(!has(&found, &modules), "it holds the home folder: {found:?}");
    }
}
