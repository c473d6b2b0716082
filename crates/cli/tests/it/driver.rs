//! Drivers and GPUs that are not as they should be: each is a sentence that says what to do, none a hang.
//!
//! `data/libcuda.rs` is a driver that is none, compiled here and put before the system's.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{assert_refused, command, stderr, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// A machine with such a driver.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Machine::built(&[])
    }

    fn built(options: &[&str]) -> Self {
        let machine = Machine(tempfile::tempdir().unwrap());
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/libcuda.rs");
        let mut rustc = Command::new(compiler);
        rustc.args(["--edition", "2024", "--crate-type", "cdylib"]).args(options).arg("-o").arg(machine.library());
        let built = rustc.arg(source).output().unwrap();
        assert!(built.status.success(), "{}", stderr(&built));
        machine
    }

    fn library(&self) -> std::path::PathBuf {
        self.0.path().join("libcuda.so.1")
    }

    /// A command on it, with what is wrong with the driver.
    fn command(&self, wrong: &str, arguments: &[&str]) -> Command {
        let mut command = command();
        command.args(arguments).current_dir(&self.0);
        command.env("LD_LIBRARY_PATH", self.0.path()).env("FAKE_DRIVER", wrong).env("HAMMERHEAD_CUBINS", "off");
        command.env("HAMMERHEAD_TRIALS", self.0.path()).env_remove("HAMMERHEAD_FAMILY").env_remove("HAMMERHEAD_TRIAL");
        command
    }

    fn run(&self, wrong: &str, arguments: &[&str]) -> Output {
        self.command(wrong, arguments).output().unwrap()
    }

    /// What `info` says of the GPU.
    fn info(&self, wrong: &str) -> String {
        let text = stdout(&self.run(wrong, &["info", "--json"]));
        let report: Value = serde_json::from_str(&text).unwrap();
        let cuda = report["backends"].as_array().unwrap().iter().find(|backend| backend["name"] == "cuda").unwrap();
        cuda["reason"].as_str().unwrap().to_owned()
    }

    fn report(&self) -> Option<Value> {
        let text = std::fs::read_to_string(self.0.path().join("first-contact.json")).ok()?;
        Some(serde_json::from_str(&text).expect("it is written whole or not at all"))
    }

    /// Outcomes of trials that are kept.
    fn kept(&self) -> usize {
        let files = std::fs::read_dir(&self.0).unwrap();
        files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("trial-")).count()
    }
}

#[test]
fn a_library_that_cannot_be_opened_is_no_driver() {
    let machine = Machine(tempfile::tempdir().unwrap());
    std::fs::write(machine.library(), "").unwrap();
    let said = machine.info("");
    assert!(said.contains("libcuda.so.1 cannot be opened") && said.contains("install NVIDIA's driver"), "{said}");
}

#[test]
fn a_driver_that_lacks_a_function_is_too_old() {
    let said = Machine::built(&["--cfg", "old"]).info("");
    assert!(said.contains("cuOccupancyMaxActiveClusters") && said.contains("update NVIDIA's driver to 530"), "{said}");
}

#[test]
fn a_driver_that_does_not_start_or_is_too_old_says_what_to_do() {
    let machine = Machine::new();
    for (wrong, words) in [
        ("init=802", ["CUDA_ERROR_SYSTEM_NOT_READY", "start nvidia-fabricmanager"]),
        ("init=803", ["cuInit failed with status 803", "restart the machine"]),
        ("init=100", ["CUDA_ERROR_NO_DEVICE", "nvidia-smi"]),
        ("devices=0", ["sees no GPU", "nvidia-smi"]),
        ("version=11080", ["supports CUDA 11.8 and the kernels need 12.1", "update NVIDIA's driver to 530"]),
        ("capability=75", ["compute capability 7.5", "use a GPU since Ampere"]),
    ] {
        let said = machine.info(wrong);
        assert!(words.iter().all(|word| said.contains(word)), "{wrong}: {said}");
    }
    // Kernels that every driver since 530 reads take the place of those that this one does not.
    let said = machine.info("version=12080 capability=100");
    assert!(said.contains("family sm80, since the driver is too old") && said.contains("575 or newer"), "{said}");
    assert_refused(&machine.run("", &["run", "--backend", "cuda:3"]), &["no GPU 3", "the driver sees 1"]);
}

#[test]
fn a_driver_that_cannot_compile_says_so_with_its_compilers_words_and_is_asked_again() {
    let machine = Machine::new();
    for (wrong, words) in [
        ("capability=120 link=209 load=222", "update NVIDIA's driver to 580"),
        ("capability=120 link=221 load=221", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
        ("capability=120 link=223 load=223", "without CUDA_DISABLE_PTX_JIT"),
    ] {
        let said = machine.info(wrong);
        assert!(said.contains(words) && said.contains("It says: ptxas fatal: says the fake compiler"), "{said}");
        assert_eq!(machine.kept(), 0, "what is soon mended is not remembered");
    }
    // A linker that does not know the target is done without: the kernel runs, and computes nothing.
    let said = machine.info("capability=120 link=209");
    assert!(said.contains("none computed right") && said.contains("came out as NaN and should be"), "{said}");
    let said = machine.info("capability=120 run=719");
    assert!(said.contains("CUDA_ERROR_LAUNCH_FAILED") && said.contains("first-contact"), "{said}");
}

#[test]
fn first_contact_with_a_gpu_that_hangs_ends_and_says_what_did_not_end() {
    let machine = Machine::new();
    let output = machine.run("capability=120 run=hangs", &["first-contact", "--limit", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = machine.report().unwrap();
    assert_eq!((&report["doing"], &report["device"]["name"]), (&Value::Null, &"Fake GPU".into()));
    let ways = report["trial"]["ways"].as_array().unwrap();
    assert!(!ways.is_empty() && ways.iter().all(|way| way["wrong"] == "it did not end within 1 seconds"), "{report}");
    let refused = report["trial"]["refused"].as_str().unwrap();
    assert!(refused.contains("none computed right") && stdout(&output).contains(refused), "{refused}");
    assert_eq!((&report["verify"], &report["bench"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    assert_eq!(machine.kept(), 1, "nobody waits for it twice");
    let said = machine.info("capability=120 run=hangs");
    assert!(said.contains("it did not end within 1 seconds") && said.contains("HAMMERHEAD_FAMILY"), "{said}");
}

#[test]
fn what_a_gpu_was_found_to_do_wrong_is_not_asked_of_it_by_a_plan_or_by_name() {
    let machine = Machine::new();
    // Something is kept, and then something else.
    let hangs = machine.run("run=hangs", &["first-contact", "--limit", "1"]);
    assert!(hangs.status.success(), "{}", stderr(&hangs));
    let files = std::fs::read_dir(&machine.0).unwrap().map(|file| file.unwrap().path());
    let kept = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "txt")).unwrap();
    let text = std::fs::read_to_string(&kept).unwrap();
    let key = text.lines().nth(1).unwrap();
    let keep = |way: &str| {
        let lines = ["hammerhead trial 1", key, "200 of 210 ways apart", &format!("{way}\ta fault"), "end\n"];
        std::fs::write(&kept, lines.join("\n")).unwrap();
    };
    let explain = |config: &[&str]| {
        let options = ["run", "--explain", "--backend", "cuda", "--shape", "256x4096x7168", "--activation", "nvfp4"];
        machine.run("", &[&options[..], config].concat())
    };
    keep("NVFP4 tokens, pair");
    let planned = stdout(&explain(&[]));
    assert!(planned.contains("tile=128x64") && !planned.contains("tile=256"), "{planned}");
    let refused = explain(&["--config", "tile=256x64"]);
    assert_refused(&refused, &["failed on this GPU", "NVFP4 tokens, pair: a fault", "HAMMERHEAD_FAMILY=sm80"]);
    keep("NVFP4 tokens");
    assert_refused(&explain(&[]), &["NVFP4 tokens: a fault", "HAMMERHEAD_FAMILY=sm80"]);
}

#[test]
fn a_first_contact_that_is_cut_leaves_what_it_has() {
    let machine = Machine::new();
    let page = machine.0.path().join("first-contact.html");
    let mut command = machine.command("capability=120 run=hangs", &["first-contact"]);
    let mut process = command.stderr(Stdio::null()).spawn().unwrap();
    let report = loop {
        match machine.report().filter(|_| page.exists()) {
            Some(report) => break report,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(process.try_wait().unwrap().is_none(), "it ended without a report");
    };
    process.kill().unwrap();
    process.wait().unwrap();
    let doing = report["doing"].as_str().unwrap();
    assert!(doing.starts_with("trying NVFP4 tokens"), "{doing}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Not finished. Written while trying") && page.contains("Fake GPU"), "{page}");
}

#[test]
fn first_contact_needs_a_place_for_what_its_parts_must_know() {
    let machine = Machine::new();
    let output = machine.command("", &["first-contact"]).env("HAMMERHEAD_TRIALS", "off").output().unwrap();
    assert_refused(&output, &["cannot be kept", "name a folder with HAMMERHEAD_TRIALS"]);
    assert_eq!(machine.report(), None);
}
