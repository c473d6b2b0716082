//! The test vectors are what the command writes, and what they say is true.

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-vectors")
}

#[test]
fn the_committed_vectors_are_what_the_command_writes() {
    let committed = std::fs::read_to_string(folder().join("nvfp4.json")).unwrap();
    let remedy = "if this change is meant, run: hammerhead vectors --output test-vectors/nvfp4.json";
    assert!(crate::common::succeed(["vectors"]) == committed, "{remedy}");
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vectors.json");
    assert_eq!(crate::common::succeed(["vectors".as_ref(), "--output".as_ref(), path.as_os_str()]), "");
    assert!(std::fs::read_to_string(path).unwrap() == committed, "{remedy}");
}

fn check(path: &Path) -> Option<std::process::Output> {
    let output = Command::new("python3").arg(folder().join("check.py")).arg(path).output();
    if let Err(error) = &output {
        eprintln!("NOT CHECKED: python3 could not be started ({error}), so test-vectors/check.py was not run");
    }
    output.ok()
}

#[test]
fn an_independent_program_agrees_with_the_vectors() {
    if let Some(output) = check(&folder().join("nvfp4.json")) {
        assert!(output.status.success(), "{}", crate::common::stderr(&output));
        assert!(crate::common::stdout(&output).contains("checks passed"));
    }
}

#[test]
fn the_independent_program_notices_a_wrong_digit_in_every_section() {
    let text = std::fs::read_to_string(folder().join("nvfp4.json")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("wrong.json");
    for (right, wrong) in [
        (r#"{"code":3,"value":"3fc00000"}"#, r#"{"code":3,"value":"3fc00001"}"#),
        (r#"{"byte":127,"value":"nan"}"#, r#"{"byte":127,"value":"43f00000"}"#),
        (r#""why":"all zero""#, r#""why":"all zero","codes":"0000000000000001""#),
        ("[33,0,20]", "[33,0,21]"),
        (r#""silu":[""#, r#""silu":["1"#),
    ] {
        assert!(text.contains(right), "the vectors hold no {right}");
        std::fs::write(&path, text.replacen(right, wrong, 1)).unwrap();
        if let Some(output) = check(&path) {
            assert!(!output.status.success(), "{wrong} went unnoticed");
        }
    }
}
