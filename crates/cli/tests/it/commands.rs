//! The commands as their users meet them: what they print, how they end, and that they mind how they are called.

use std::process::Stdio;

use crate::common::{assert_refused, backends, command, cpu_backends, hammerhead, stderr, stdout, succeed};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeed(args)).unwrap()
}

#[test]
fn info_lists_every_backend_and_which_are_there() {
    let report = json(&["info", "--json"]);
    let listed = report["backends"].as_array().unwrap();
    assert_eq!(listed.len(), hammerhead::backends::all().len());
    let here = listed.iter().filter(|b| b["available"] == true).map(|b| b["name"].as_str().unwrap());
    assert_eq!(here.collect::<Vec<_>>(), backends());
    assert!(listed.iter().all(|b| b["available"] == true || b["reason"].is_string()));
    assert_eq!(report["auto"][0], backends()[0]);
    let text = succeed(["info"]);
    assert!(backends().iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(json(&["info", "--json"])["machine"], report["machine"], "the same machine twice");
}

#[test]
fn the_environment_forces_a_backend_and_a_wrong_name_is_told() {
    let output = command().args(["info", "--json"]).env("HAMMERHEAD_BACKEND", "scalar").output().unwrap();
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&report["auto"], &report["forced_by_environment"]), (&serde_json::json!(["scalar"]), &"scalar".into()));
    let output = command().args(["run", "--suite", "edge", "--all"]).env("HAMMERHEAD_BACKEND", "abacus").output();
    assert_refused(&output.unwrap(), &["abacus", "scalar"]);
    let output = command().arg("info").env("HAMMERHEAD_BACKEND", "abacus").output().unwrap();
    assert!(output.status.success() && stdout(&output).contains("abacus"), "info still tells what there is");
}

#[test]
fn run_checks_and_times_the_cases_of_a_suite() {
    let report = json(&["run", "--suite", "edge", "--all", "--json", "--seed", "5", "--threads", "2"]);
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), testkit::cases::suite(testkit::cases::Suite::Edge).len());
    assert!(cases.iter().all(|case| case["passed"] == true && case["compared"] == case["elements"]));
    assert_eq!((report["seed"].as_u64(), report["threads"].as_u64()), (Some(5), Some(2)));
    let text = succeed(["run", "--suite", "edge", "--all", "--quiet", "--explain"]);
    for part in ["shape m×n×k", "floor", "  ok\n", "legal ways", "taken: "] {
        assert!(text.contains(part), "no {part:?}");
    }
}

#[test]
fn verify_counts_its_checks_and_takes_every_strategy() {
    let text = succeed(["verify", "--suite", "edge", "--seed", "3", "--threads", "2"]);
    let passed: usize = text.lines().last().unwrap().split_once(" passed, 0 failed").unwrap().0.parse().unwrap();
    let cases = testkit::cases::suite(testkit::cases::Suite::Edge).len();
    assert!(passed >= cases * 4 * cpu_backends().len(), "{text}");
    let mut args = vec!["verify", "--suite", "edge", "--config", "strategy=ping-pong,stages=3", "--json"];
    cpu_backends().iter().for_each(|name| args.extend(["--backend", name]));
    assert_eq!(json(&args)["passed"].as_u64(), Some((cases * cpu_backends().len()) as u64));
}

#[test]
fn verify_refuses_a_configuration_that_cannot_be_run() {
    assert_refused(&hammerhead(["verify", "--suite", "edge", "--config", "tile=16x5"]), &["5 columns"]);
}

#[test]
fn products_with_fp8_weights_are_verified_with_numbers_of_their_own() {
    let report = json(&["verify", "--suite", "fp8-weights", "--backend", "scalar", "--json"]);
    let counts = ["passed", "failed", "refused"].map(|count| report[count].as_u64().unwrap());
    assert_eq!(counts, [testkit::fp8::cases().len() as u64, 0, 0]);
    for (option, value) in [("--gate", "silu"), ("--config", "tile=16x16"), ("--seed", "3"), ("--precision", "exact")] {
        let refused = hammerhead(["verify", "--suite", "fp8-weights", "--backend", "scalar", option, value]);
        assert_refused(&refused, &[option, "fp8-weights", "leave it out"]);
    }
    assert_refused(&hammerhead(["bench", "--suite", "fp8-weights"]), &["verify --suite fp8-weights"]);
}

#[test]
fn bench_times_cold_and_warm_and_writes_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let args = ["bench", "--suite", "edge", "--all", "--seconds", "0.001", "--threads", "1", "--export"];
    let text = succeed(args.map(std::ffi::OsStr::new).into_iter().chain([path.as_os_str()]));
    assert!(text.contains("cold") && text.contains("warm"));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(report["schema"], 1);
    let case = &report["cases"][1];
    for time in ["cold", "warm"] {
        let field = |name: &str| case[time][name].as_f64().unwrap();
        assert!(field("samples") >= 3.0 && field("best") > 0.0);
        assert!(field("best") <= field("p10") && field("p10") <= field("median") && field("median") <= field("p90"));
    }
    assert_eq!(case["cold_copies"], 128, "a small layer is copied as often as allowed");
    assert!(case["scaling"].is_null(), "nothing was compared");
}

#[test]
fn bench_compares_with_one_thread_and_with_one_group_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let args = ["bench", "--suite", "edge", "--all", "--seconds", "0.001", "--threads", "2", "--scaling", "--export"];
    let text = succeed(args.map(std::ffi::OsStr::new).into_iter().chain([path.as_os_str()]));
    assert!(text.contains("1 thread ÷ all") && text.contains("groups together ÷ one by one"));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for case in report["cases"].as_array().unwrap() {
        let with_tokens = case["groups"].as_array().unwrap().iter().filter(|group| group[0] != 0).count();
        assert!(case["scaling"]["one_thread"]["median"].as_f64().unwrap() > 0.0, "{case}");
        assert_eq!(case["scaling"]["grouped"].is_null(), with_tokens < 2, "{case}");
    }
    assert!(report["ceilings"]["over_one_thread"]["flops"]["median"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_refuses_a_report_that_could_not_be_written_before_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("no such folder/report.json");
    let output = hammerhead(["bench".as_ref(), "--export".as_ref(), nowhere.as_os_str()]);
    assert_refused(&output, &["no such folder/report.json"]);
    assert_refused(&hammerhead(["bench", "--export", "report.xls"]), &["report.xls", ".json, .csv and .md"]);
    assert_refused(&hammerhead(["bench", "--suite", "edge"]), &["edge", "--all"]);
}

#[test]
fn a_command_line_that_cannot_be_understood_ends_with_status_two() {
    for args in [
        &["run", "--input", "a"][..],
        &["run", "--output", "a"],
        &["run", "--input", "a", "--output", "b", "--suite", "dual"],
        &["run", "--result", "f64"],
        &["run", "--shape", "1x1x16", "--input", "a", "--output", "b"],
        &["run", "--activation", "f16", "--input", "a", "--output", "b"],
        &["run", "--checkpoint", "a", "--layer", "0", "--suite", "dual"],
        &["run", "--input", "a", "--output", "b", "--result", "f64"],
        &["run", "--input", "a", "--output", "b", "--gate", "relu"],
        &["run", "--backend", "abacus"],
        &["run", "--config", "colour=red"],
        &["run", "--config", "strategy=fast"],
        &["run", "--config", "tile=0x16"],
        &["run", "--threads", "0"],
        &["run", "--threads", "9999"],
        &["run", "--suite", "all"],
        &["run", "--seed", "-1"],
        &["verify", "--backend", "abacus"],
        &["verify", "--threads", "0"],
        &["bench", "--seconds", "0"],
        &["bench", "--seconds", "nan"],
        &["ptx", "--arch", "sm_70"],
        &["ptx", "--shape", "256x4096"],
        &["ptx", "--config", "colour=red"],
        &["sim", "--seeds", "-1"],
        &["quantize", "only one"],
        &["swim"],
        &[],
    ] {
        let output = hammerhead(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!stderr(&output).is_empty() && output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn the_help_of_every_command_gives_examples() {
    for name in ["run", "verify", "bench", "quantize", "info", "ptx", "sim", "vectors"] {
        let help = succeed([name, "--help"]);
        assert!(help.contains("Examples:") && help.contains(&format!("hammerhead {name}")), "{help}");
    }
    assert!(succeed(["--help"]).contains("C = gate(A·B1ᵀ) ∘ (A·B2ᵀ)"));
    assert_eq!(succeed(["--version"]), format!("hammerhead {}\n", env!("CARGO_PKG_VERSION")));
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    for args in [&["info"][..], &["vectors"], &["--help"], &["info", "--json"]] {
        let mut child = command().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(stderr(&output), "", "{args:?}");
        assert!(output.status.code().is_some(), "{args:?} was ended by a signal");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_an_error_and_behind_stderr_nobody_s_business() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command().arg("info").stdout(full()).stderr(Stdio::piped()).output().unwrap();
    assert_refused(&output, &["stdout"]);
    let status = command().args(["run", "--input", "no such file", "--output", "c"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_file_that_cannot_be_written_is_named_and_no_temporary_one() {
    let output = hammerhead(["vectors", "--output", "/no such folder/vectors.json"]);
    assert_refused(&output, &["/no such folder/vectors.json", "its folder does not exist"]);
    // Where not even root may make files.
    #[cfg(target_os = "linux")]
    {
        let output = hammerhead(["vectors", "--output", "/proc/self/fdinfo/vectors.json"]);
        assert_refused(&output, &["/proc/self/fdinfo/vectors.json"]);
        assert!(!stderr(&output).contains("partial"), "{}", stderr(&output));
    }
}

#[test]
fn a_record_and_a_page_are_not_written_to_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (folder.path().join("one.json"), folder.path().join(".").join("one.json"));
    let output =
        hammerhead(["bench".as_ref(), "--export".as_ref(), json.as_os_str(), "--html".as_ref(), html.as_os_str()]);
    assert_refused(&output, &["two results", "one.json"]);
}

#[test]
fn a_problem_without_tokens_has_no_negative_rate() {
    let text = succeed(["bench", "--shape", "0x64x64", "--seconds", "0.001"]);
    assert!(!text.contains("-0.00"), "{text}");
}

#[test]
fn tables_fit_a_hundred_columns() {
    let eight = "17,9,33,1,2,3,4,5x4096x64";
    for args in [
        &["run", "--quiet", "--suite", "edge", "--all"][..],
        &["run", "--quiet", "--shape", eight, "--activation", "nvfp4", "--gate", "gelu-tanh", "--result", "bf16"],
        &["bench", "--shape", eight, "--activation", "nvfp4", "--result", "bf16", "--seconds", "0.01"],
    ] {
        let output = command().args(args).output().unwrap();
        let wide = stdout(&output).lines().map(|line| line.chars().count()).max();
        assert!(output.status.success() && wide <= Some(100), "{args:?}: {wide:?}\n{}", stdout(&output));
    }
}

#[test]
fn shells_and_manuals_know_every_command() {
    let bash = succeed(["completions", "bash"]);
    let folder = tempfile::tempdir().unwrap();
    succeed(["man", folder.path().to_str().unwrap()]);
    for name in ["run", "bench", "tank-play", "first-contact"] {
        assert!(bash.contains(name.rsplit("tank-").next().unwrap()), "no {name}");
        let page = std::fs::read_to_string(folder.path().join(format!("hammerhead-{name}.1"))).unwrap();
        assert!(page.contains(".SH OPTIONS"), "{name}: {page}");
    }
    assert!(!folder.path().join("hammerhead-trial.1").exists(), "what is hidden has no page");
    let gone = folder.path().join("gone");
    assert_refused(&command().args(["man", gone.to_str().unwrap()]).output().unwrap(), &["gone"]);
}
