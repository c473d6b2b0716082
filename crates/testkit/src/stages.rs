//! Programs for a machine with a GPU, which check one thing after another and keep a record: `PROGRAM RESULT.json
//! [STAGE]…`.

use std::process::ExitCode;
use std::time::Instant;

use op::Result;
use serde_json::{Value, json};

/// A stage's name, and what finds something out. It has failed where `passed` in its record is false.
pub type Stage = (&'static str, fn() -> Result<Value>);

/// Runs the stages that the command line names, or all of them, until one fails. The record is written after every
/// stage, so that a hang leaves what was found before.
pub fn run(stages: &[Stage]) -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (path, wanted) = (arguments.next(), arguments.collect::<Vec<String>>());
    let known = |name: &String| stages.iter().any(|(stage, _)| stage == name);
    let Some(path) = path.filter(|_| wanted.iter().all(known)) else {
        let names: Vec<&str> = stages.iter().map(|(stage, _)| *stage).collect();
        eprintln!("usage: RESULT.json [STAGE]…, and stages are {}", names.join(", "));
        return ExitCode::from(2);
    };
    let (mut record, mut passed) = (json!({}), true);
    for (stage, run) in stages.iter().filter(|(stage, _)| wanted.is_empty() || wanted.iter().any(|name| name == stage))
    {
        println!("== {stage}");
        let begun = Instant::now();
        record[*stage] = run().unwrap_or_else(|error| {
            println!("ERROR: {error}");
            json!({"error": error.to_string(), "passed": false})
        });
        println!("   {:.1} s", begun.elapsed().as_secs_f64());
        passed &= record[*stage]["passed"] != false;
        record["passed"] = json!(passed);
        if let Err(error) = std::fs::write(&path, format!("{record:#}\n")) {
            eprintln!("cannot write {path}: {error}");
        }
        if !passed {
            println!("{}", record[*stage]);
            break;
        }
    }
    println!("{}", if passed { "PASSED" } else { "FAILED" });
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
