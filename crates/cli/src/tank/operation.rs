//! Operations as folders: a new one to begin from, and one made of a community task.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args as ClapArgs;
use tank::operations;
use tank::operations::folder::{example, import};
use tank::pitch::Pitch;

use crate::{Error, Result, console};

/// Write a complete small operation to begin from: a folder with its description, its reference, a baseline and two contestants
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

/// Make an operation of a community task: task.yml, reference.py and submissions with `custom_kernel`
#[derive(Debug, ClapArgs)]
#[command(
    long_about = "Make an operation of a task as the GPU MODE community writes them: task.yml with tests and benchmarks, reference.py with \
    generate_input, ref_kernel and check_implementation, and submission.py with custom_kernel. The task's own generator makes the numbers, from the \
    referee's seeds, and its own check judges. Where there is no GPU, what the task wants on one it gets on the processor.\n\n\
    Examples:\n  \
    hammerhead tank import-task problems/vectoradd --into vectoradd --python ~/venv/bin/python\n  \
    hammerhead tank play --operation vectoradd --pitch vectoradd/submission.toml"
)]
pub struct Import {
    /// The task's folder
    task: PathBuf,
    /// The operation's folder [default: the task's name]
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// An interpreter that can import torch
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
}

/// Where the interpreter's modules lie, by its own word.
const FOLDERS: &str = "import sys, os, torch; print(sys.executable); [print(p) for p in sorted({sys.prefix, sys.base_prefix, *sys.path, \
                       os.path.dirname(os.path.dirname(torch.__file__))}) if p and os.path.isdir(p) and p != '/usr']";

/// Writes the operation; a folder that is there is left alone.
pub fn import(args: &Import) -> Result<()> {
    let name = args.task.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let name = name.unwrap_or_else(|| "task".to_owned());
    let folder = args.into.clone().unwrap_or_else(|| PathBuf::from(&name));
    let task = import::Task::read(&args.task.join("task.yml"))?;
    if folder.exists() {
        return Err(Error::Destination { path: folder, problem: "it is there already" });
    }
    let asked = Command::new(&args.python).args(["-c", FOLDERS]).output();
    let told = asked
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let mut lines = told.as_deref().unwrap_or_default().lines().map(str::to_owned);
    let python = lines.next().ok_or_else(|| Error::NoTorch { python: args.python.clone() })?;
    let readable: Vec<String> = lines.collect();
    let made = write(&task, &args.task, &folder, (&name, &python, &readable));
    if made.is_err() {
        // Half of it would stand in the way of the next try.
        let _ = fs::remove_dir_all(&folder);
    }
    made?;
    let shown = folder.display();
    console::print(&format!("{shown}\n"))?;
    console::remark(&format!("play it: hammerhead tank play --operation {shown} --pitch {shown}/submission.toml"));
    Ok(())
}

/// Writes the folder of an operation that is made of a task.
fn write(
    task: &import::Task,
    from: &Path,
    folder: &Path,
    (name, python, readable): (&str, &str, &[String]),
) -> Result<()> {
    let failed = |cause| Error::Write { path: folder.to_owned(), cause };
    let unread = |path, source| tank::Error::Read { path, source };
    fs::create_dir_all(folder).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|ending| ending == "py")) {
            fs::copy(&path, folder.join(name)).map_err(failed)?;
        }
    }
    for (name, source) in &task.files {
        // The runner that a task names is the community's; here the referee runs it.
        if let Some(name) = Path::new(name).file_name().filter(|_| name != "eval.py") {
            let source = from.join(source);
            fs::copy(&source, folder.join(name)).map_err(|cause| unread(source, cause))?;
        }
    }
    let reference = folder.join("reference.py");
    fs::metadata(reference).map_err(|cause| unread(from.join("reference.py"), cause))?;
    for (name, text) in import::FILES {
        fs::write(folder.join(name), text).map_err(failed)?;
    }
    let baseline = format!("./{}", import::BASELINE);
    fs::write(folder.join("operation.toml"), task.description(name, python, readable, &baseline)).map_err(failed)?;
    let run = format!("program = [{:?}, \"./contestant.py\", \"./submission.py\"]", python);
    let pitch = Pitch::example("submission").replace(operations::EXAMPLE_RUN, &run);
    fs::write(folder.join("submission.toml"), pitch).map_err(failed)?;
    Ok(())
}
