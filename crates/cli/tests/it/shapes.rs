//! `run`, `verify` and `bench` on shapes from the command line: computed with the gate and the types that were asked
//! for, and refused in words where they cannot be.

use crate::common::{assert_refused, hammerhead, stderr, succeed};
use serde_json::Value;

const GROUP: &str = "3,0,5x40x64";

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeed(args)).unwrap()
}

/// What a report says was computed.
fn computed(case: &Value) -> [&str; 5] {
    ["suite", "problem", "gate", "activation", "output"].map(|field| case[field].as_str().unwrap())
}

#[test]
fn run_computes_shapes_with_the_gate_and_the_types_that_were_asked_for() {
    let report = json(&["run", "--shape", "17x40x64", "--shape", GROUP, "--json"]);
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2, "no suite is computed beside them");
    assert_eq!(computed(&cases[0]), ["shape", "17×40×64", "silu", "nvfp4", "f16"]);
    assert_eq!(cases[1]["groups"], serde_json::json!([[3, 40, 64], [0, 40, 64], [5, 40, 64]]));
    assert!(cases.iter().all(|case| case["passed"] == true && case["compared"] == case["elements"]));

    let asked = ["--gate", "gelu-tanh", "--activation", "bf16", "--activation", "f32", "--result", "f32"];
    let report = json(&[&["run", "--shape", "17x40x64", "--json"][..], &asked].concat());
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(computed(&cases[0]), ["shape", "17×40×64", "gelu-tanh", "bf16", "f32"]);
    assert_eq!((cases.len(), &cases[1]["activation"]), (2, &"f32".into()));
}

#[test]
fn verify_checks_shapes_in_every_strategy() {
    let args = ["verify", "--shape", GROUP, "--gate", "none", "--activation", "f16", "--result", "bf16", "--json"];
    let report = json(&[&args[..], &["--backend", "scalar"]].concat());
    assert!(report["passed"].as_u64().unwrap() >= 4 && report["failed"] == 0, "{report}");
    let doubled = json(&[&args[..], &["--backend", "scalar", "--shape", "9x16x16"]].concat());
    assert!(doubled["passed"].as_u64() > report["passed"].as_u64(), "{doubled}");
}

#[test]
fn bench_times_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    let mut args = vec!["bench", "--shape", GROUP, "--gate", "gpt-oss", "--result", "bf16", "--seconds", "0.001"];
    args.extend(["--export", path.to_str().unwrap()]);
    succeed(&args);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(computed(&report["cases"][0]), ["shape", "[3,0,5]×40×64", "gpt-oss", "nvfp4", "bf16"]);
    assert_eq!(report["cases"].as_array().unwrap().len(), 1);
}

#[test]
fn shapes_are_computed_beside_suites_that_are_named() {
    let report = json(&["run", "--suite", "edge", "--all", "--shape", GROUP, "--json"]);
    let of = |suite: &str| report["cases"].as_array().unwrap().iter().filter(|case| case["suite"] == suite).count();
    assert_eq!((of("edge"), of("shape")), (testkit::cases::suite(testkit::cases::Suite::Edge).len(), 1));
}

#[test]
fn gate_and_types_apply_to_suites_too() {
    let report = json(&["run", "--suite", "decode", "--gate", "none", "--result", "f32", "--json", "--threads", "2"]);
    let cases = report["cases"].as_array().unwrap();
    assert!(cases.iter().all(|case| case["gate"] == "none" && case["output"] == "f32" && case["passed"] == true));
}

#[test]
fn a_shape_that_cannot_be_is_refused_with_what_is_wrong_and_a_right_one() {
    for command in ["run", "verify", "bench", "ptx"] {
        for (shape, wrong) in [
            ("256x4096", "three sizes are expected, and there are 2"),
            ("256x4096x7168x2", "there are 4"),
            ("256xmanyx7168", "\"many\" is not a whole number"),
            ("80,,128x4096x7168", "number of tokens \"\""),
            ("1x1x24", "k = 24; k must be a positive multiple of 16"),
            ("1x1x0", "k = 0"),
            ("1x0x16", "no columns (n = 0)"),
            ("18446744073709551616x1x16", "larger than any"),
            ("18446744073709551615x1x16", "beyond what memory can address"),
        ] {
            let output = hammerhead([command, "--shape", shape]);
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{command} {shape}: {error}");
            for part in [wrong, "--shape", "256x4096x7168"] {
                assert!(error.contains(part), "{command} {shape}: no {part:?} in {error}");
            }
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_shape_beyond_this_machine_s_memory_is_refused_before_it_is_made() {
    for command in ["run", "verify", "bench"] {
        let output = hammerhead([command, "--shape", "1x16777216x1048576", "--backend", "scalar"]);
        assert_refused(&output, &["1×16777216×1048576", "needs", "make it smaller"]);
    }
}
