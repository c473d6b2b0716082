//! The modules of the command import each other in one direction: from its commands down to what they share.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What each module imports, by name; a module inside a folder is named `folder::file`.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Reads the source of every module, without its tests.
fn sources(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            sources(&path, &format!("{stem}::"), found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = if stem == "mod" { prefix.trim_end_matches(':').to_owned() } else { format!("{prefix}{stem}") };
            let text = fs::read_to_string(&path).unwrap();
            found.insert(name, text.split("#[cfg(test)]").next().unwrap().to_owned());
        }
    }
}

/// Every path that a tree of imports such as `a::{self, b, c::D}` names.
fn paths(tree: &str) -> Vec<String> {
    let end = tree.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(tree.len());
    let (name, rest) = tree.split_at(end);
    let Some(rest) = rest.strip_prefix("::") else { return vec![name.to_owned()] };
    let inner = match rest.strip_prefix('{') {
        None => paths(rest),
        Some(list) => {
            let mut depth = 0;
            let close = list.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth < 0
            });
            let list = &list[..close.expect("braces are closed")];
            let mut depth = 0;
            let apart = |c: char| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                c == ',' && depth == 0
            };
            list.split(apart).map(str::trim).filter(|part| !part.is_empty()).flat_map(paths).collect()
        }
    };
    inner.iter().map(|path| format!("{name}::{path}")).collect()
}

/// The module that a path leads into, if it is one of ours.
fn module_of<'m>(path: &str, modules: &'m BTreeMap<String, String>) -> Option<&'m str> {
    let parts: Vec<&str> = path.split("::").collect();
    let named = |length: usize| modules.get_key_value(&parts[..length.min(parts.len())].join("::"));
    named(2).or_else(|| named(1)).map(|(name, _)| name.as_str())
}

fn arrows(modules: &BTreeMap<String, String>) -> Arrows {
    let mut arrows = Arrows::new();
    for (module, text) in modules.iter().filter(|(module, _)| *module != "main") {
        let folder = module.split_once("::").map_or("", |(folder, _)| folder);
        let reached = arrows.entry(module.clone()).or_default();
        let mut note = |path: String| {
            // The root gives the two names that every module needs another, shorter path.
            let path = if ["Error", "Result"].contains(&path.as_str()) { "error".to_owned() } else { path };
            reached.extend(module_of(&path, modules).filter(|to| to != module).map(str::to_owned));
        };
        for (at, _) in text.match_indices("crate::") {
            paths(&text[at..]).iter().for_each(|path| note(path["crate::".len()..].to_owned()));
        }
        for (at, _) in text.match_indices("super::") {
            paths(&text[at..]).iter().for_each(|path| note(format!("{folder}::{}", &path["super::".len()..])));
        }
        let children = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        children.for_each(|child| note(format!("{module}::{child}")));
    }
    arrows
}

/// A way from a module back to itself.
fn cycle(arrows: &Arrows, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
    let last = way.last().expect("a way begins somewhere").clone();
    for next in &arrows[&last] {
        let returned = way.contains(next);
        way.push(next.clone());
        if returned || (!done.contains(next) && cycle(arrows, way, done)) {
            return true;
        }
        way.pop();
    }
    done.insert(last);
    false
}

#[test]
fn no_module_imports_one_that_imports_it() {
    let mut modules = BTreeMap::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut modules);
    let arrows = arrows(&modules);
    for (from, to) in [("bench", "bench::rounds"), ("bench::rounds", "timing"), ("run", "error"), ("error", "table")] {
        assert!(arrows[from].contains(to), "{from} imports {to}, which this test should see: {:?}", arrows[from]);
    }
    let mut done = BTreeSet::new();
    for module in arrows.keys() {
        let mut way = vec![module.clone()];
        assert!(!cycle(&arrows, &mut way, &mut done), "{}", way.join(" → "));
    }
}
