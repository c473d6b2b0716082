//! Words for people and reports for machines: results go to stdout, remarks, progress and errors to stderr.
//!
//! Nothing here panics when a stream is closed. A closed stdout ends the command; remarks that nobody can read are
//! dropped.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::{Error, Result};

/// Prints a result to stdout.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(visible(text).as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::PipeClosed,
        _ => Error::Stdout(error),
    })
}

/// Prints a report for machines to stdout.
pub fn print_json(report: &impl Serialize) -> Result<()> {
    print(&json_text(report)?)
}

/// A report as text that ends with a line break.
pub fn json_text(report: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Says something beside the result, on stderr.
pub fn remark(text: &str) {
    // Whoever closed stderr does not want to know.
    let _ = writeln!(io::stderr(), "{}", visible(text));
}

/// A text without what would move a terminal's cursor: names and last words are strangers', and could write a verdict over the one that is there.
fn visible(text: &str) -> Cow<'_, str> {
    let moves = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(moves) {
        true => Cow::Owned(text.chars().map(|c| if moves(c) { '·' } else { c }).collect()),
        false => Cow::Borrowed(text),
    }
}

/// Says on one line why the command failed.
pub fn complain(error: &Error) {
    // Names come from files and command lines, and may hold anything.
    let line: String = error.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    remark(&format!("error: {line}"));
}

/// A bar for so many steps, on stderr if that is a terminal; else it stays silent.
pub fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_moves_the_cursor() {
        assert_eq!(visible("a\tb\nc × d"), "a\tb\nc × d");
        assert_eq!(visible("x\u{1b}[2K\rSUCCESS\u{9b}"), "x·[2K·SUCCESS·");
    }
}
