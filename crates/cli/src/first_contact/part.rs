//! A command of this program in a process of its own, with a time limit: what it says as JSON, or what became of it.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

/// Seconds that a part may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How often somebody looks whether it is done.
const PAUSE: Duration = Duration::from_millis(100);

/// A part of the report.
#[derive(Debug, Default, Serialize)]
pub struct Part {
    /// The command.
    pub command: String,
    /// What it said.
    pub said: Option<Value>,
    /// What went wrong, in words.
    pub failed: Option<String>,
    pub seconds: f64,
}

impl Part {
    /// A part that was not come to.
    pub fn not_yet() -> Self {
        Part { failed: Some("it was not come to".to_owned()), ..Part::default() }
    }

    /// Runs a command of this program, and calls `meanwhile` now and then with the seconds since it began.
    pub fn run<'a>(name: &str, arguments: impl Iterator<Item = &'a str>, mut meanwhile: impl FnMut(f64)) -> Self {
        let arguments: Vec<&str> = arguments.collect();
        let mut part = Part { command: format!("hammerhead {name} {}", arguments.join(" ")), ..Part::default() };
        let begun = Instant::now();
        match said(name, &arguments, &mut || meanwhile(begun.elapsed().as_secs_f64())) {
            Ok((said, failed)) => (part.said, part.failed) = (said, failed),
            Err(reason) => part.failed = Some(reason),
        }
        part.seconds = begun.elapsed().as_secs_f64();
        part
    }
}

/// What a command writes to `--json`, and its last words if it failed.
fn said(
    name: &str,
    arguments: &[&str],
    meanwhile: &mut dyn FnMut(),
) -> Result<(Option<Value>, Option<String>), String> {
    let words = |error: std::io::Error| error.to_string();
    let program = std::env::current_exe().map_err(words)?;
    let file = tempfile::NamedTempFile::new().map_err(words)?;
    let mut command = Command::new(program);
    command.arg(name).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    // `bench` writes its record to a file, `verify` to where everything goes.
    let out = file.reopen().map_err(words)?;
    match name {
        "bench" => command.arg("--json").arg(file.path()).stdout(Stdio::null()),
        _ => command.arg("--json").stdout(out),
    };
    let mut process = command.spawn().map_err(words)?;
    let mut last_words = process.stderr.take();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = process.try_wait().map_err(words)? {
            break status;
        }
        if begun.elapsed() > LIMIT {
            // It may end by itself just now: then there is nothing to kill.
            let _ = process.kill();
            let _ = process.wait();
            return Err(format!("it did not end within {} seconds", LIMIT.as_secs()));
        }
        meanwhile();
        std::thread::sleep(PAUSE);
    };
    let text = std::fs::read_to_string(file.path()).map_err(words)?;
    let value = serde_json::from_str(&text).ok();
    let mut words = String::new();
    if let Some(last_words) = &mut last_words {
        // What cannot be read is not missed: the status is there.
        let _ = last_words.read_to_string(&mut words);
    }
    let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Ok((value, (!status.success()).then(|| format!("it ended with {status}: {last}"))))
}
