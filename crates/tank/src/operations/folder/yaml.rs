//! As much of YAML as tasks are written in: lists at the top of a file whose items are mappings, in braces or a line
//! per key.
//!
//! Values are whole and real numbers, yes and no as YAML and Python write them, words with and without quotes, and
//! lists in brackets. What else a file has (descriptions, settings of a runner) is passed over.

use serde_json::{Map, Value};

/// An item of a list: the line that it begins in, from 1, and what it says, or what cannot be understood of it.
pub(super) type Item = (usize, Result<Value, String>);

/// The items of the list under a key at the top of a file.
pub(super) fn list(text: &str, key: &str) -> Vec<Item> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let line = without_comment(line);
        let item = line.trim_start();
        if item.is_empty() {
            continue;
        }
        if !line.starts_with([' ', '-']) {
            let rest = line.strip_prefix(key).and_then(|rest| rest.trim_start().strip_prefix(':'));
            inside = rest.is_some();
            if let Some(rest) = rest.map(str::trim).filter(|rest| !rest.is_empty()) {
                items.push((index + 1, rest.to_owned()));
            }
        } else if let (true, Some(begun)) = (inside, item.strip_prefix("- ")) {
            items.push((index + 1, begun.to_owned()));
        } else if let (true, Some((_, last))) = (inside, items.last_mut()) {
            last.push('\n');
            last.push_str(item);
        }
    }
    items.into_iter().flat_map(|(line, text)| understood(line, &text)).collect()
}

/// What an item says; of a whole list in brackets, each of its items.
fn understood(line: usize, text: &str) -> Vec<Item> {
    let mut flow = Flow { rest: text };
    if !text.starts_with(['{', '[']) {
        return vec![(line, by_lines(text))];
    }
    match flow.value().and_then(|value| flow.end().map(|()| value)) {
        Ok(Value::Array(items)) => items.into_iter().map(|item| (line, Ok(item))).collect(),
        other => vec![(line, other)],
    }
}

/// A mapping that is written a line per key.
fn by_lines(text: &str) -> Result<Value, String> {
    let mut map = Map::new();
    for line in text.lines() {
        let (key, value) = line.split_once(':').ok_or_else(|| format!("{line} has no value"))?;
        let mut flow = Flow { rest: value };
        map.insert(unquoted(key.trim()).to_owned(), flow.value().and_then(|value| flow.end().map(|()| value))?);
    }
    Ok(Value::Object(map))
}

/// A line without what follows a `#` that is not in quotes and not in the middle of a word.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '#' && before.is_whitespace() => return line[..at].trim_end(),
            _ => {}
        }
        before = c;
    }
    line.trim_end()
}

fn unquoted(word: &str) -> &str {
    word.trim_matches(['"', '\''])
}

/// What is left of a text in braces and brackets.
struct Flow<'t> {
    rest: &'t str,
}

impl Flow<'_> {
    fn skip(&mut self, c: char) -> bool {
        self.rest = self.rest.trim_start();
        let found = self.rest.strip_prefix(c);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn end(&mut self) -> Result<(), String> {
        match self.rest.trim() {
            "" => Ok(()),
            rest => Err(format!("{rest} follows, and is no part of it")),
        }
    }

    fn value(&mut self) -> Result<Value, String> {
        if self.skip('{') {
            let mut map = Map::new();
            while !self.skip('}') {
                let key = self.word(&[':', ',', '}'])?;
                if !self.skip(':') {
                    return Err(format!("{key} has no value"));
                }
                map.insert(unquoted(&key).to_owned(), self.value()?);
                self.separated('}')?;
            }
            return Ok(Value::Object(map));
        }
        for (open, close) in [('[', ']'), ('(', ')')] {
            if self.skip(open) {
                let mut list = Vec::new();
                while !self.skip(close) {
                    list.push(self.value()?);
                    self.separated(close)?;
                }
                return Ok(Value::Array(list));
            }
        }
        self.word(&[',', '}', ']', ')', '\n']).map(|word| plain(&word))
    }

    /// Goes beyond a comma or a semicolon, unless what it is in ends here.
    fn separated(&mut self, close: char) -> Result<(), String> {
        if self.skip(',') || self.skip(';') || self.rest.starts_with(close) {
            return Ok(());
        }
        Err(format!("{close} is missing before {:?}", self.rest.chars().take(20).collect::<String>()))
    }

    /// A word, in quotes or up to one of these.
    fn word(&mut self, ends: &[char]) -> Result<String, String> {
        self.rest = self.rest.trim_start();
        let quote = self.rest.chars().next().filter(|c| *c == '"' || *c == '\'');
        let end = match quote {
            Some(quote) => self.rest[1..].find(quote).map(|at| at + 2).ok_or("a quote is not closed")?,
            None => self.rest.find(ends).unwrap_or(self.rest.len()),
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start_matches([' ', '\t']);
        if word.trim().is_empty() { Err("a value is missing".to_owned()) } else { Ok(word.trim().to_owned()) }
    }
}

/// A word as what it means.
fn plain(word: &str) -> Value {
    match word {
        "true" | "True" => Value::Bool(true),
        "false" | "False" => Value::Bool(false),
        "null" | "None" | "~" => Value::Null,
        _ if word.starts_with(['"', '\'']) => Value::from(unquoted(word)),
        _ => word
            .parse::<i64>()
            .map(Value::from)
            .or_else(|_| word.parse::<f64>().map(Value::from))
            .unwrap_or(word.into()),
    }
}
