//! Words for people and reports for machines: results go to stdout, remarks, progress and errors to stderr.
//!
//! Nothing here panics when a stream is closed. A closed stdout ends the command; remarks that nobody can read are
//! dropped. Verdicts are coloured on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::{Error, Result};

/// Prints a result to stdout.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let text = visible(text);
    let text = if takes_colours(out.is_terminal()) { coloured(&text).into() } else { text };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
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

/// A text without what would move a terminal's cursor: names and last words are strangers', and could write a verdict
/// over the one that is there.
fn visible(text: &str) -> Cow<'_, str> {
    let moves = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(moves) {
        true => Cow::Owned(text.chars().map(|c| if moves(c) { '·' } else { c }).collect()),
        false => Cow::Borrowed(text),
    }
}

/// Whether a stream that is a terminal, or not, is to have colours.
fn takes_colours(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    terminal && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Verdicts, and how they are shown: green what is well, red what is not, yellow what was not decided.
const VERDICTS: [(&str, &str); 10] = [
    ("ok", "32"),
    ("SUCCESS", "32"),
    ("available", "32"),
    ("WRONG", "31"),
    ("FAILURE", "31"),
    ("BROKEN", "31"),
    ("CHEAT", "31"),
    ("BLOCKED", "33"),
    ("WITHDRAWN", "33"),
    ("PARTIAL", "33"),
];

/// A text with its verdicts coloured, where they stand as words.
fn coloured(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let bare = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        match VERDICTS.iter().find(|(verdict, _)| *verdict == bare) {
            Some((_, colour)) => out.push_str(&format!("\u{1b}[{colour}m{bare}\u{1b}[0m{}", &word[bare.len()..])),
            None => out.push_str(word),
        }
    }
    out
}

/// Says on one line why the command failed.
pub fn complain(error: &Error) {
    // Names come from files and command lines, and may hold anything.
    let line: String = error.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    remark(&format!("error: {line}"));
}

/// A line that says what is waited for and for how long, on stderr if that is a terminal; else it stays silent.
pub fn waiting() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{elapsed} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// A bar for so many steps, on stderr if that is a terminal; else it stays silent.
pub fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}, {eta} left  {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_coloured_where_they_stand_as_words() {
        let green = "\u{1b}[32mok\u{1b}[0m";
        assert_eq!(coloured("a  ok (all)\nbroken token ok"), format!("a  {green} (all)\nbroken token {green}"));
        assert_eq!(coloured("× WRONG, books"), "× \u{1b}[31mWRONG\u{1b}[0m, books");
        assert!(!takes_colours(false));
    }

    #[test]
    fn no_name_moves_the_cursor() {
        assert_eq!(visible("a\tb\nc × d"), "a\tb\nc × d");
        assert_eq!(visible("x\u{1b}[2K\rSUCCESS\u{9b}"), "x·[2K·SUCCESS·");
    }
}
