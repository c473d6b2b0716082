//! Files that people write: TOML, read with errors that name the file, the line and the way out.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Reads a whole text file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })
}

/// Reads a value from TOML text. `path` is where it came from, for the message.
///
/// TOML has `nan` and `inf`, and the ledger's JSON has not: what holds one could be read, but not remembered. It is
/// refused.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    let misread = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        let problem = error.message().lines().collect::<Vec<_>>().join(" ");
        Error::Written { path: path.to_path_buf(), line, remedy: remedy(&problem), problem }
    };
    let read = toml::from_str(text).map_err(misread)?;
    // Fails where a field would hold an integer that TOML does not have, one beyond 63 bits.
    let table: toml::Table = toml::from_str(text).map_err(misread)?;
    match table.iter().find_map(|(key, value)| not_finite(key, value)) {
        None => Ok(read),
        Some((key, number)) => Err(Error::Written {
            path: path.to_path_buf(),
            line: line_of(text, key),
            problem: format!("`{key}` is {number}"),
            remedy: "give a finite number".to_owned(),
        }),
    }
}

/// The first number under a key that is none, with its own key.
fn not_finite<'a>(key: &'a str, value: &'a toml::Value) -> Option<(&'a str, f64)> {
    match value {
        toml::Value::Float(number) if !number.is_finite() => Some((key, *number)),
        toml::Value::Array(values) => values.iter().find_map(|value| not_finite(key, value)),
        toml::Value::Table(table) => table.iter().find_map(|(key, value)| not_finite(key, value)),
        _ => None,
    }
}

/// A command as it was written in a file of a folder: its program, and what begins with `./` or `../`, is looked for
/// there. It is the same whether that is there already or is still to be built.
pub fn anchor(folder: &Path, command: &mut [String]) {
    for (index, word) in command.iter_mut().enumerate() {
        if word.starts_with("./") || word.starts_with("../") || (index == 0 && word.contains('/')) {
            let path = folder.join(&*word);
            *word = std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned();
        }
    }
}

/// The line, from 1, of a byte of the text.
fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes().iter().take(byte).filter(|&&b| b == b'\n').count() + 1
}

/// The line, from 1, on which a key is set or a table of that name begins; the first line where there is none.
pub fn line_of(text: &str, key: &str) -> usize {
    let starts = |line: &str| {
        let line = line.trim_start().trim_start_matches('[');
        line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', ']', '.']))
    };
    text.lines().position(starts).map_or(1, |index| index + 1)
}

/// What to do about a message of the reader's.
fn remedy(problem: &str) -> String {
    let quoted = |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let names = quoted(problem);
    if problem.starts_with("unknown field") {
        let near = names.split_first().and_then(|(name, known)| nearest(name, known));
        return near.map_or_else(
            || "remove it, or see the example that `hammerhead tank new-pitch` writes".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
    }
    if problem.starts_with("missing field") {
        return format!("add {}", names.first().map_or("it".to_owned(), |name| format!("`{name} = …`")));
    }
    "correct that line; `hammerhead tank new-pitch` and `new-operation` write examples of the syntax".to_owned()
}

/// The known name that is the fewest edits away, if that is few.
pub fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    let (distance, near) = known.iter().map(|k| (edits(name, k), k)).min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.len() / 3).then_some(near)
}

/// Insertions, removals and replacements that make one name of another.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn an_unknown_key_is_told_with_its_line_and_its_neighbour() {
        let error = parse::<Settings>(Path::new("s.toml"), "min_sharks = 4\natempts = 2\n").unwrap_err().to_string();
        for part in ["s.toml, line 2", "atempts", "did you mean `attempts`?"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_with_its_line() {
        let error = parse::<Settings>(Path::new("s.toml"), "\n\nattempts = \"many\"\n").unwrap_err().to_string();
        assert!(error.contains("line 3"), "{error}");
    }

    #[test]
    fn an_integer_that_toml_has_not_hides_nothing() {
        #[derive(Debug, serde::Deserialize)]
        struct Deal {
            #[expect(dead_code, reason = "read, and not looked at")]
            bytes: u64,
        }
        let error = parse::<Deal>(Path::new("p.toml"), "hours = nan\nbytes = 9223372036854775817\n").unwrap_err();
        assert!(error.to_string().contains("p.toml, line"), "{error}");
        parse::<Deal>(Path::new("p.toml"), "bytes = 9223372036854775807\n").unwrap();
    }

    #[test]
    fn a_number_that_is_none_is_refused_wherever_it_stands() {
        for (text, line, key) in [
            ("low_hours = nan\n", 1, "low_hours"),
            ("attempts = 1\nrubric = [1.0, -inf]\n", 2, "rubric"),
            ("[referee.limits]\nrun_seconds = inf\n", 2, "run_seconds"),
        ] {
            let error = parse::<Settings>(Path::new("s.toml"), text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}")) && error.contains(key), "{error}");
        }
    }

    #[test]
    fn a_key_is_found_where_it_is_set_or_begins_a_table() {
        let text = "name = 1\n[claim]\nspeedup = 2\n[[risk]]\nwhat = 1\n";
        assert_eq!(["name", "claim", "speedup", "risk"].map(|key| line_of(text, key)), [1, 2, 3, 4]);
    }

    #[test]
    fn the_distance_of_two_names_is_the_edits_between_them() {
        assert_eq!([edits("margin", "margin"), edits("magrin", "margin"), edits("", "abc")], [0, 2, 3]);
    }
}
