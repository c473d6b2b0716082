//! Problems as others write them: imported from small folders in their formats, and examined with submissions that are
//! right and wrong. Where no interpreter has torch (`HAMMERHEAD_TORCH` may name one), only what needs none is tested,
//! beside the sources.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use referee::{Correctness, RefereeSettings};
use tank::entry::Entry;
use tank::official::Official;
use tank::operations::folder::import::Imported;
use tank::operations::folder::{Folder, FolderOperation};
use tank::pitch::Pitch;
use tank::verdict::{Verdict, of_examination};

/// An interpreter that has torch, and the folders that it reads.
///
/// Where none has, whoever runs the tests is told so beside the harness, which swallows what tests print; and
/// `HAMMERHEAD_TORCH`, where it is set, has to have it.
fn python() -> Option<(String, Vec<String>)> {
    let found = with_torch();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    if found.is_none() {
        assert!(std::env::var_os("HAMMERHEAD_TORCH").is_none(), "HAMMERHEAD_TORCH names no interpreter that has torch");
        let what =
            format!("SKIPPED: {test} needs torch, and python3 has none; HAMMERHEAD_TORCH may name one that has\n");
        std::io::stderr().write_all(what.as_bytes()).unwrap();
    }
    found
}

fn with_torch() -> Option<(String, Vec<String>)> {
    let named = std::env::var("HAMMERHEAD_TORCH").unwrap_or_else(|_| "python3".to_owned());
    let ask = "import sys, os, torch; print(sys.executable); print(sys.prefix); print(sys.base_prefix); print(os.path.dirname(os.path.dirname(torch.__file__)))";
    let output = Command::new(named).args(["-c", ask]).output().ok().filter(|output| output.status.success())?;
    let mut lines = String::from_utf8(output.stdout).ok()?.lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
    Some((lines.next()?, lines.filter(|folder| folder != "/usr").collect()))
}

fn problems(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/problems").join(name)
}

/// What examinations find of each submission of a problem.
fn examined(mut found: Imported, submissions: &[PathBuf]) -> Vec<(String, Correctness)> {
    let Some((python, readable)) = python() else { return Vec::new() };
    submissions.iter().for_each(|path| found.submit(path).unwrap());
    let folder = tempfile::tempdir().unwrap();
    found.write(folder.path(), &python, &readable).unwrap();
    let folder = Folder::read(folder.path()).map(|read| (read, folder)).unwrap();
    let operation = FolderOperation::new(&folder.0).unwrap();
    let settings = RefereeSettings { ..folder.0.about.settings.referee.clone() };
    let mut referee = Official::new(Box::new(operation), settings, Vec::new(), None).unwrap();
    let baseline = &folder.0.about.baseline;
    let champion = Entry::Program { build: Vec::new(), command: baseline.program.clone(), sealed: None };
    let of = |(name, _): &(String, String)| {
        let pitch = Pitch::read(&folder.0.folder.join(format!("{name}.toml"))).unwrap();
        let run = pitch.run.unwrap();
        let challenger = Entry::Program { build: run.build, command: run.program, sealed: None };
        (name.clone(), referee.examine(("baseline", &champion), (name, &challenger), 3).unwrap())
    };
    found.submissions.iter().map(of).collect()
}

fn right(found: &[(String, Correctness)]) -> Vec<(&str, bool)> {
    for (name, correctness) in found {
        assert!(correctness.fault.is_none() && correctness.champion_wrong.is_none(), "{name}: {correctness:?}");
    }
    found.iter().map(|(name, correctness)| (name.as_str(), correctness.passed())).collect()
}

#[test]
fn a_definition_with_workloads_is_held_to_its_own_tolerances() {
    let found = Imported::read(&problems("scaled"), None).unwrap();
    assert_eq!((found.submissions.len(), found.benchmarks.len()), (3, 2));
    let found = examined(found, &[]);
    if !found.is_empty() {
        // A thousandth too much is within what all have in common, and beyond what one of the workloads asks for.
        assert_eq!(right(&found), [("coarse", false), ("returned", true), ("written", true)]);
    }
}

/// The reference is a hundredth from what is right, and by as much its own tolerance would take who is not for wrong.
#[test]
fn who_rounds_less_often_than_the_reference_is_right_and_who_rounds_more_is_not() {
    let found = examined(Imported::read(&problems("rounded"), None).unwrap(), &[]);
    if !found.is_empty() {
        assert_eq!(right(&found), [("coarse", false), ("precise", true), ("zeros", false)]);
    }
}

#[test]
fn a_module_is_compared_with_one_that_has_its_weights() {
    let of = |name: &str| problems("modules").join(name);
    let found = Imported::read(&of("gated.py"), None).unwrap();
    let submissions = ["submission_right.py", "submission_wrong.py", "submission_rounded.py"].map(of);
    let found = examined(found, &submissions);
    if !found.is_empty() {
        let expected = [("submission_right", true), ("submission_wrong", false), ("submission_rounded", false)];
        assert_eq!(right(&found), expected);
        // Within the tolerance, and it is the digits that it lacks.
        let rounded = &found[2].1;
        assert!(rounded.wrong[0].what.contains("precision was traded for speed"), "{:?}", rounded.wrong);
        assert!(rounded.champion_precision.is_some_and(|champion| champion.rms > 0.0), "{rounded:?}");
    }
}

/// A copy of the data takes time, and whoever is compared with it would gain that.
#[test]
fn a_baseline_gets_copies_only_if_it_writes_to_its_data() {
    let Some((python, readable)) = python() else { return };
    for (of, copies) in [("modules/gated.py", "False"), ("modules/in_place.py", "True"), ("scaled", "False")] {
        let folder = tempfile::tempdir().unwrap();
        Imported::read(&problems(of), None).unwrap().write(folder.path(), &python, &readable).unwrap();
        let ask = "import baseline_submission as it; print(it.custom_kernel is it.reference.ref_kernel)";
        let said = Command::new(&python).args(["-c", ask]).current_dir(folder.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), copies, "{of}: {said:?}");
    }
}

#[test]
fn a_reference_that_draws_random_numbers_is_told_so_before_anyone_is_examined() {
    let Some((python, readable)) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    Imported::read(&problems("modules/dropout.py"), None).unwrap().write(folder.path(), &python, &readable).unwrap();
    let error = FolderOperation::new(&Folder::read(folder.path()).unwrap()).map(drop).unwrap_err().to_string();
    assert!(error.contains("it draws random numbers, as dropout in training does"), "{error}");
}

#[test]
fn a_task_brings_its_own_submission() {
    let found = Imported::read(Path::new(&problems("task")), None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let spoilt = ["nan", "inf"].map(|name| (folder.path().join(format!("{name}.py")), name));
    for (path, name) in &spoilt {
        std::fs::write(path, format!("def custom_kernel(data):\n    return data[0] * float('{name}')\n")).unwrap();
    }
    let found = examined(found, &spoilt.map(|(path, _)| path));
    if !found.is_empty() {
        assert_eq!(right(&found), [("submission", true), ("nan", false), ("inf", false)], "whatever its check says");
    }
}

#[test]
fn a_solution_in_cpp_is_compiled_before_it_is_examined_and_one_in_cuda_says_what_is_missing() {
    let found = Imported::read(&problems("rows"), None).unwrap();
    assert_eq!((found.submissions.len(), found.remarks.len()), (2, 0), "{:?}", found.remarks);
    let found = examined(found, &[]);
    let [(_, cpp), (_, cuda)] = found.as_slice() else { return };
    assert!(cpp.passed(), "{cpp:?}");
    if let Some(judgement) = of_examination(cuda) {
        // Not a FAILURE, which would count against whoever tries it where a compiler and a GPU are.
        assert_eq!(judgement.verdict, Verdict::Blocked, "{cuda:?}");
        let why = &judgement.reasons[0];
        assert!(
            why.contains("nvcc is not on PATH: solution-fused-cuda.json") || why.contains("torch finds no GPU"),
            "{why}"
        );
    }
}

#[test]
fn a_solution_that_does_not_compile_fails_with_the_compilers_first_error() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(problems("rows/solution_cpp.json")).unwrap();
    let path = folder.path().join("broken.json");
    std::fs::write(&path, text.replace("double sum = 0;", "double sum = nothing;")).unwrap();
    let mut found = Imported::read(&problems("rows"), None).unwrap();
    found.submissions.clear();
    let found = examined(found, &[path]);
    if let [(_, broken)] = found.as_slice() {
        let judgement = of_examination(broken).unwrap();
        assert_eq!(judgement.verdict, Verdict::Failure);
        let why = &judgement.reasons[0];
        assert!(why.contains("rows.cpp:5:") && why.contains("nothing"), "{why}");
    }
}

#[test]
fn what_no_interpreter_could_load_is_left_out_and_refused_where_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(problems("rows/solution_cuda.json")).unwrap();
    for name in ["definition.json", "workload.jsonl"] {
        std::fs::copy(problems("rows").join(name), folder.path().join(name)).unwrap();
    }
    let path = folder.path().join("solution.json");
    for (old, new, expected) in [
        (r#""binding": "torch""#, r#""binding": "tvm-ffi""#, "bound to Python by tvm-ffi"),
        (r#""language": "cuda""#, r#""language": "rust""#, "written in rust"),
        ("PYBIND11_MODULE", "TVM_FFI_DLL_EXPORT_TYPED_FUNC", "none of its sources has PYBIND11_MODULE"),
    ] {
        std::fs::write(&path, text.replace(old, new)).unwrap();
        let mut found = Imported::read(folder.path(), None).unwrap();
        assert!(found.submissions.is_empty() && found.remarks[0].contains(expected), "{:?}", found.remarks);
        assert!(found.submit(&path).unwrap_err().to_string().contains(expected), "{expected}");
    }
}

/// An nvcc that compiles what has nothing for a GPU in it, and keeps what it was told.
const STAND_IN: &str = r#"#!/usr/bin/env python3
import subprocess, sys
words = sys.argv[1:]
open(sys.argv[0] + ".log", "a").write(" ".join(words) + "\n")
words = [word for word in words if word != "--expt-relaxed-constexpr" and not word.startswith("-arch=")]
words = [word.removeprefix("-Xcompiler=").replace("-Xlinker=", "-Wl,") for word in words]
words = [part for word in words for part in (("-x", "c++", word, "-x", "none") if word.endswith(".cu") else (word,))]
sys.exit(subprocess.run(["c++", *words]).returncode)
"#;

/// What runs `compiled.py` where no GPU is, as if there were one, and computes with what came of it.
const COMPILE: &str = "
import torch, compiled
torch.cuda.is_available, torch.cuda.get_device_capability = lambda: True, lambda: (9, 0)
compiled.build('solution-on-host.json', 'solution-on-host.so')
run = compiled.function('solution-on-host.so', compiled.read('solution-on-host.json')['spec'])
x, weight, y = torch.full((3, 1024), 2.0), torch.full((1024,), 5.0), torch.empty(3, 1024)
run(x, weight, 0.0, y)
print(float(y.min()), float(y.max()))
";

#[test]
fn nvcc_compiles_what_is_in_cuda_for_the_gpu_that_is_there() {
    let Some((python, readable)) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(problems("rows/solution_cpp.json")).unwrap();
    let on_host = text.replace("rows.cpp", "rows.cu").replace(r#""language": "cpp""#, r#""language": "cuda""#);
    let options = r#""compile_options": {"cuda_cflags": ["-DMORE"], "ld_flags": ["-Wl,-z,now"]}, "entry_point""#;
    let on_host = on_host.replace("fused-cpp", "on-host").replace(r#""entry_point""#, options);
    for (name, text) in [
        ("solution.json", on_host),
        ("definition.json", std::fs::read_to_string(problems("rows/definition.json")).unwrap()),
        ("workload.jsonl", std::fs::read_to_string(problems("rows/workload.jsonl")).unwrap()),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let operation = tempfile::tempdir().unwrap();
    Imported::read(folder.path(), None).unwrap().write(operation.path(), &python, &readable).unwrap();
    let nvcc = operation.path().join("nvcc");
    std::fs::write(&nvcc, STAND_IN).unwrap();
    std::fs::set_permissions(&nvcc, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", operation.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(&python);
    let said = command.args(["-c", COMPILE]).env("PATH", path).current_dir(operation.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "5.0 5.0", "{said:?}");
    let told = std::fs::read_to_string(operation.path().join("nvcc.log")).unwrap();
    let of =
        |what: &str| told.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what} in {told}"));
    assert!(of("rows.cu").contains("-arch=sm_90a -DMORE") && !of("main.cpp").contains("-arch"), "{told}");
    assert!(of("-shared").contains("-Xlinker=-z -Xlinker=now"), "{told}");
}

/// As much of torch as compiles what needs nothing of it.
const NO_TORCH: [(&str, &str); 3] = [
    ("torch/__init__.py", "compiled_with_cxx11_abi = lambda: True\n"),
    ("torch/utils/__init__.py", ""),
    ("torch/utils/cpp_extension.py", "COMMON_NVCC_FLAGS = []\ninclude_paths = library_paths = lambda: []\n"),
];

/// A module that holds where and when it was compiled, from two sources of one name.
const TELLS: [(&str, &str); 2] = [
    (
        "main.cpp",
        r#"#include <Python.h>
extern const char* more;
namespace { int hidden; }
static PyObject* run(PyObject*, PyObject*) {
    return PyUnicode_FromFormat("%s %s %s %s %d", __FILE__, __DATE__, __TIME__, more, hidden++);
}
static PyMethodDef methods[] = {{"run", run, METH_NOARGS, 0}, {0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "solution", 0, -1, methods};
PyMODINIT_FUNC PyInit_solution() { return PyModule_Create(&module); }
"#,
    ),
    ("inner/main.cpp", "extern const char* more;\nconst char* more = __FILE__ __TIMESTAMP__;\n"),
];

/// Runs a line of Python beside `compiled.py` in a new folder, with the solution [`TELLS`], a folder of its own for
/// temporary files, and as much of torch as there has to be.
fn beside_the_compiler(line: &str) -> (tempfile::TempDir, std::process::Output) {
    let (folder, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let compiler = include_str!("../../src/operations/folder/import/compiled.py");
    let sources: Vec<_> = TELLS.map(|(path, content)| serde_json::json!({"path": path, "content": content})).into();
    let spec = serde_json::json!({"language": "cpp", "entry_point": "main.cpp::run"});
    let solution = serde_json::json!({"spec": spec, "sources": sources}).to_string();
    for (name, text) in NO_TORCH.into_iter().chain([("compiled.py", compiler), ("tells.json", solution.as_str())]) {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut command = Command::new("python3");
    let said = command.args(["-c", line]).current_dir(folder.path()).env("TMPDIR", scratch.path()).output().unwrap();
    (folder, said)
}

#[test]
fn a_library_has_the_same_bytes_wherever_and_whenever_it_is_compiled() {
    let build = || {
        let (folder, said) = beside_the_compiler("import compiled; compiled.build('tells.json', 'tells.so')");
        let (error, library) = (String::from_utf8_lossy(&said.stderr), folder.path().join("tells.so"));
        assert!(said.status.success(), "{error}");
        let left = [".sources", ".objects"].map(|ending| folder.path().join(format!("tells{ending}")).exists());
        assert_eq!(left, [false; 2], "what it was compiled of is left behind");
        library.exists().then(|| std::fs::read(library).unwrap()).ok_or_else(|| error.into_owned())
    };
    match build() {
        Ok(first) => {
            // As __TIME__ would count them.
            std::thread::sleep(std::time::Duration::from_millis(1100));
            assert!(Ok(first) == build(), "the second library has other bytes");
        }
        Err(why) => assert!(why.contains("c++ is not on PATH") || why.contains("Python.h is not there"), "{why}"),
    }
}

/// Finds nvcc and a GPU, and no compiler for the processor.
const NO_HOST_COMPILER: &str = "
import shutil, torch, types, compiled
torch.cuda = types.SimpleNamespace(is_available=lambda: True)
shutil.which = {'nvcc': '/opt/nvcc'}.get
print(compiled.lacks('it', {'language': 'cuda'}))
";

#[test]
fn what_is_in_cuda_is_not_compiled_without_a_compiler_for_the_processor() {
    let (_folder, said) = beside_the_compiler(NO_HOST_COMPILER);
    let why = String::from_utf8_lossy(&said.stdout);
    assert!(why.starts_with("c++ is not on PATH: it is written in CUDA C++"), "{said:?}");
}

#[test]
fn a_library_that_lay_there_is_not_taken_for_one_that_could_not_be_compiled() {
    let line = "import shutil, compiled; shutil.which = {}.get; open('tells.so', 'w'); \
                compiled.build('tells.json', 'tells.so')";
    let (folder, said) = beside_the_compiler(line);
    assert!(String::from_utf8_lossy(&said.stderr).contains("c++ is not on PATH"), "{said:?}");
    assert!(!folder.path().join("tells.so").exists());
}
