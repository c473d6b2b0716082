//! Defaults for options, from one file: `config.toml` in the folder `hammerhead` of the user's configuration, or the
//! file that `HAMMERHEAD_CONFIG` names; `off` reads none.
//!
//! A key is the long name of an option that takes a value. One at the top holds for every command that has such an
//! option; one in a table, `[bench]` or `[tank.play]`, for that command alone. What the command line says comes first,
//! then the environment, then the file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::{env, fs};

use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

use crate::{Error, Result};

/// Options for which an environment variable stands in, and which.
const ENVIRONMENT: [(&str, &str); 1] = [("backend", "HAMMERHEAD_BACKEND")];

/// The file, if there is one, and what it says.
#[derive(Debug)]
pub struct Defaults {
    pub path: PathBuf,
    table: Table,
}

impl Defaults {
    /// Reads the file. One that nobody named need not be there.
    pub fn read() -> Result<Option<Self>> {
        let named = env::var_os("HAMMERHEAD_CONFIG").filter(|name| !name.is_empty());
        if named.as_ref().is_some_and(|name| name == "off") {
            return Ok(None);
        }
        let Some(path) = named.clone().map(PathBuf::from).or_else(usual) else { return Ok(None) };
        if named.is_none() && !path.is_file() {
            return Ok(None);
        }
        let refuse = |problem: String| Error::Defaults { path: path.clone(), problem };
        let text = fs::read_to_string(&path)
            .map_err(|error| refuse(format!("{error}; HAMMERHEAD_CONFIG names a file of defaults, or is off")))?;
        let table = text.parse::<Table>().map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            refuse(format!("{line}{}; docs/command-line.md has an example", error.message()))
        })?;
        Ok(Some(Self { path, table }))
    }

    /// The command with these defaults, or why a key or value of the file cannot be one.
    pub fn applied_to(&self, command: Command) -> Result<Command> {
        let refuse = |problem| Error::Defaults { path: self.path.clone(), problem };
        check(&self.table, &command, "").map_err(refuse)?;
        Ok(apply(command, &[&self.table]))
    }
}

/// Where the file lies unless another is named.
fn usual() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let folder = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(folder.join("hammerhead").join("config.toml"))
}

/// The option of this name, if it takes a value.
fn option<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    let takes = |arg: &&Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    command.get_arguments().filter(takes).find(|arg| arg.get_long() == Some(name))
}

/// Whether a command, or one of its own, has this option.
fn has(command: &Command, name: &str) -> bool {
    option(command, name).is_some() || command.get_subcommands().any(|inner| has(inner, name))
}

/// Refuses what is no option, no command, or no value.
fn check(table: &Table, command: &Command, place: &str) -> Result<(), String> {
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                let found = command.get_subcommands().find(|found| found.get_name() == key);
                let found = found.ok_or_else(|| {
                    let known: Vec<&str> =
                        command.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name).collect();
                    format!("[{place}{key}] is no command; there are {}", known.join(", "))
                })?;
                check(inner, found, &format!("{place}{key}."))?;
            }
            _ if !has(command, key) => return Err(no_option(command, key, place)),
            _ => drop(
                words(value).ok_or_else(|| format!("{place}{key} is neither text nor a number, nor a list of them"))?,
            ),
        }
    }
    Ok(())
}

/// What is wrong with a key, and the most similar one that is right.
fn no_option(command: &Command, key: &str, place: &str) -> String {
    let mut known: Vec<&str> = Vec::new();
    gather(command, &mut known);
    let near = known.iter().map(|name| (distance(name, key), *name)).min().filter(|(apart, _)| *apart <= 2);
    let whose =
        if place.is_empty() { "no command".to_owned() } else { format!("{:?} does not", place.trim_end_matches('.')) };
    let has = if place.is_empty() { "has an option" } else { "have an option" };
    match near {
        Some((_, name)) => {
            format!("{key:?} is unknown, did you mean {name:?}? A key is the long name of an option that takes a value")
        }
        None => format!("{key:?} is unknown: {whose} {has} --{key} that takes a value"),
    }
}

fn gather<'c>(command: &'c Command, known: &mut Vec<&'c str>) {
    let names = command.get_arguments().filter_map(Arg::get_long);
    known.extend(names.filter(|name| option(command, name).is_some()));
    command.get_subcommands().for_each(|inner| gather(inner, known));
}

/// How many letters have to be changed, left out or put in to make one word of another.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let changed = before + usize::from(a != *b);
            before = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(before + 1);
        }
    }
    row[other.len()]
}

/// A value as the command line would have it.
fn words(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Integer(number) => Some(vec![number.to_string()]),
        Value::Float(number) => Some(vec![number.to_string()]),
        Value::Array(values) => Some(values.iter().map(words).collect::<Option<Vec<_>>>()?.concat()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// The command with the defaults of these tables, the last of which is the most particular.
fn apply(mut command: Command, tables: &[&Table]) -> Command {
    let options: Vec<(String, String)> = command
        .get_arguments()
        .filter_map(|arg| Some((arg.get_id().to_string(), option(&command, arg.get_long()?)?.get_long()?.to_owned())))
        .collect();
    for (id, name) in options {
        let said = tables.iter().rev().find_map(|table| table.get(&name)).and_then(words);
        // An environment variable comes before the file.
        let variable = ENVIRONMENT.iter().find(|(option, _)| *option == name);
        let set = variable.is_some_and(|(_, variable)| env::var_os(variable).is_some_and(|value| !value.is_empty()));
        if let Some(words) = said.filter(|_| !set) {
            command = command.mut_arg(id, |arg| arg.default_values(words));
        }
    }
    let inner: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    for name in inner {
        let own = tables.last().and_then(|table| table.get(&name)).and_then(Value::as_table);
        let tables: Vec<&Table> = tables.iter().copied().chain(own).collect();
        command = command.mut_subcommand(name, |inner| apply(inner, &tables));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_key_is_offered() {
        assert_eq!([distance("backend", "bakend"), distance("seed", "speed"), distance("a", "")], [1, 1, 1]);
        let values: Table = "a = 1\nb = 2.5\nc = ['x', 'y']\nd = true".parse().unwrap();
        let told: Vec<Option<Vec<String>>> = values.iter().map(|(_, value)| words(value)).collect();
        let one = |text: &str| Some(vec![text.to_owned()]);
        assert_eq!(told, [one("1"), one("2.5"), Some(vec!["x".to_owned(), "y".to_owned()]), None]);
    }
}
