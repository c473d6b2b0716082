//! A command of this program in a process of its own, with a time limit: what it says as JSON, or what became of it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use tempfile::NamedTempFile;

/// How often somebody looks whether it is done.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a process that was killed may take to be gone: a driver that waits for its hardware keeps it.
const END: Duration = Duration::from_secs(5);

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
    /// Runs a command of this program, and calls `meanwhile` now and then.
    pub fn run(name: &str, options: &[&str], limit: Duration, mut meanwhile: impl FnMut()) -> Self {
        let mut part = Part { command: format!("hammerhead {name} {}", options.join(" ")), ..Part::default() };
        let begun = Instant::now();
        match said(name, options, limit, &mut meanwhile) {
            Ok((said, failed)) => (part.said, part.failed) = (said, failed),
            Err(reason) => part.failed = Some(reason),
        }
        part.seconds = begun.elapsed().as_secs_f64();
        part
    }

    /// A number that it said.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.said.as_ref()?.get(name)?.as_u64()
    }
}

/// What a command writes to `--json`, and its last words if it failed.
fn said(
    name: &str,
    options: &[&str],
    limit: Duration,
    meanwhile: &mut dyn FnMut(),
) -> Result<(Option<Value>, Option<String>), String> {
    let words = |error: std::io::Error| error.to_string();
    let program = std::env::current_exe().map_err(words)?;
    // Files and no pipes: a process that has much to say must not wait for a reader.
    let [file, last_words] = [NamedTempFile::new().map_err(words)?, NamedTempFile::new().map_err(words)?];
    let mut command = Command::new(program);
    command.arg(name).args(options).stdin(Stdio::null()).stderr(last_words.reopen().map_err(words)?);
    command.arg("--json").stdout(file.reopen().map_err(words)?);
    let mut process = command.spawn().map_err(words)?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = process.try_wait().map_err(words)? {
            break status;
        }
        if begun.elapsed() > limit {
            // It may end by itself just now: then there is nothing to kill.
            let _ = process.kill();
            while matches!(process.try_wait(), Ok(None)) && begun.elapsed() < limit + END {
                std::thread::sleep(PAUSE);
            }
            return Err(format!("it did not end within {} seconds", limit.as_secs()));
        }
        meanwhile();
        std::thread::sleep(PAUSE);
    };
    let text = std::fs::read_to_string(file.path()).map_err(words)?;
    let value = serde_json::from_str(&text).ok();
    // What cannot be read is not missed: the status is there.
    let words = std::fs::read(last_words.path()).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Ok((value, (!status.success()).then(|| format!("it ended with {status}: {last}"))))
}
