//! As much of YAML as tasks are written in: lists at the top of a file whose items are mappings, in braces or a line
//! per key, with lists and mappings in them written either way.
//!
//! Values are whole and real numbers, yes, no and nothing as YAML and Python write them, and words with and without
//! quotes. What else a file has (descriptions, settings of a runner) is passed over.

use serde_json::{Map, Value};

/// An item of a list: the line that it begins in, from 1, and what it says, or what cannot be understood of it.
pub(super) type Item = (usize, Result<Value, String>);

/// A line of an item: how far it is set in, and what it says.
type Line = (usize, String);

/// In place of how far a line is set in, for what stands behind a key: it begins no mapping of its own.
const WORD: usize = usize::MAX;

/// The word behind a key of the mapping under another key at the top of a file.
pub(super) fn word(text: &str, section: &str, key: &str) -> Option<String> {
    let mut inside = false;
    text.lines().map(without_comment).find_map(|line| {
        let (name, rest) = keyed(line.trim_start())?;
        if !line.starts_with(' ') {
            inside = name == section;
            return None;
        }
        (inside && name == key).then(|| unquoted(rest).to_owned())
    })
}

/// The items of the list under a key at the top of a file.
pub(super) fn list(text: &str, key: &str) -> Vec<Item> {
    let mut items: Vec<(usize, Vec<Line>)> = Vec::new();
    let (mut inside, mut level) = (false, None);
    for (index, line) in text.lines().enumerate() {
        let line = without_comment(line);
        let said = line.trim_start();
        let indent = line.len() - said.len();
        if said.is_empty() {
            continue;
        }
        if !line.starts_with([' ', '-']) {
            let rest = line.strip_prefix(key).and_then(|rest| rest.trim_start().strip_prefix(':'));
            (inside, level) = (rest.is_some(), None);
            if let Some(rest) = rest.map(str::trim).filter(|rest| !rest.is_empty()) {
                items.push((index + 1, vec![(indent, rest.to_owned())]));
            }
        } else if inside && is_item(said) && *level.get_or_insert(indent) == indent {
            items.push((index + 1, Vec::from_iter(Some(inner(indent, said)).filter(|(_, rest)| !rest.is_empty()))));
        } else if let (true, Some((_, lines))) = (inside, items.last_mut()) {
            lines.push((indent, said.to_owned()));
        }
    }
    items.into_iter().flat_map(|(line, lines)| understood(line, &lines)).collect()
}

/// What an item says; of a whole list in brackets, each of its items.
fn understood(line: usize, lines: &[Line]) -> Vec<Item> {
    let mut left = lines;
    match (block(&mut left), left) {
        (Ok(_), [(_, said), ..]) => vec![(line, Err(format!("{said} is no part of it")))],
        (Ok(Value::Array(items)), []) => items.into_iter().map(|item| (line, Ok(item))).collect(),
        (other, _) => vec![(line, other)],
    }
}

fn is_item(said: &str) -> bool {
    said == "-" || said.starts_with("- ")
}

/// What follows a dash, and how far that is set in.
fn inner(indent: usize, said: &str) -> Line {
    let rest = said[1..].trim_start();
    (indent + said.len() - rest.len(), rest.to_owned())
}

/// A key and what stands behind it, of a line that begins so.
fn keyed(said: &str) -> Option<(&str, &str)> {
    if said.starts_with(['{', '[']) {
        return None;
    }
    // What stands in quotes is a word, whatever it has in it.
    let from = match said.chars().next() {
        Some(quote @ ('"' | '\'')) => said[1..].find(quote)? + 2,
        _ => 0,
    };
    let ends = |at: &usize| *at >= from && (said[at + 1..].starts_with(' ') || said.len() == at + 1);
    let end = said.match_indices(':').map(|(at, _)| at).find(ends)?;
    Some((unquoted(said[..end].trim()), said[end + 1..].trim()))
}

/// The value that begins in the first of these lines, and is written a line per part, in braces or as a word. What
/// belongs to it is taken away.
fn block(lines: &mut &[Line]) -> Result<Value, String> {
    let Some((indent, first)) = lines.first().cloned() else { return Ok(Value::Null) };
    if is_item(&first) {
        let mut list = Vec::new();
        while let Some((_, said)) = lines.first().filter(|(at, said)| *at == indent && is_item(said)) {
            let rest = inner(indent, said);
            list.push(part(lines, indent, rest)?);
        }
        return Ok(Value::Array(list));
    }
    if keyed(&first).is_none() {
        return part(lines, indent, (indent, first));
    }
    let mut map = Map::new();
    while let Some((_, said)) = lines.first().filter(|(at, _)| *at == indent).cloned() {
        let (key, rest) = keyed(&said).ok_or_else(|| format!("{said} has no value"))?;
        let value = match rest {
            // A list may stand as far to the left as its key.
            "" if lines.get(1).is_some_and(|(at, said)| *at > indent || (*at == indent && is_item(said))) => {
                *lines = &lines[1..];
                block(lines)?
            }
            rest => part(lines, indent, (WORD, rest.to_owned()))?,
        };
        map.insert(key.to_owned(), value);
    }
    match lines.first() {
        Some((at, said)) if *at > indent => Err(format!("{said} is set in, and is no part of anything")),
        _ => Ok(Value::Object(map)),
    }
}

/// A part that begins in the first line, of which `rest` is left, and goes on in those that are set in further than it.
fn part(lines: &mut &[Line], indent: usize, rest: Line) -> Result<Value, String> {
    let more = lines[1..].iter().take_while(|(at, _)| *at > indent).count();
    let begun = Some(rest).filter(|(_, said)| !said.is_empty());
    let own: Vec<Line> = begun.into_iter().chain(lines[1..=more].iter().cloned()).collect();
    *lines = &lines[1 + more..];
    let Some((at, first)) = own.first() else { return Ok(Value::Null) };
    if *at != WORD && (is_item(first) || keyed(first).is_some()) {
        let mut left = &own[..];
        let value = block(&mut left)?;
        return left.first().map_or(Ok(value), |(_, said)| Err(format!("{said} is no part of it")));
    }
    let text = own.into_iter().map(|(_, said)| said).collect::<Vec<_>>().join("\n");
    let mut flow = Flow { rest: &text };
    flow.value().and_then(|value| flow.end().map(|()| value))
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
        "null" | "Null" | "None" | "~" => Value::Null,
        _ if word.starts_with(['"', '\'']) => Value::from(unquoted(word)),
        _ => number(word).unwrap_or(word.into()),
    }
}

/// A word as a number, in any of the bases that YAML has, and with bars between digits.
fn number(word: &str) -> Option<Value> {
    let digits = word.replace('_', "");
    let (sign, bare) = digits.strip_prefix('-').map_or((1, digits.as_str()), |bare| (-1, bare));
    let based = [("0x", 16), ("0o", 8), ("0b", 2)]
        .iter()
        .find_map(|(prefix, base)| i64::from_str_radix(bare.strip_prefix(prefix)?, *base).ok());
    if !bare.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let whole = based.map(|number| sign * number).or_else(|| digits.parse().ok());
    whole.map(Value::from).or_else(|| digits.parse::<f64>().ok().map(Value::from))
}
