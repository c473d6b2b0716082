//! Where things are kept on disk that were expensive to find out: the one rule for all of them.
//!
//! Each kind of thing has an environment variable that names its folder, or switches it off with `off`. Without it, the
//! folder is `hammerhead` in the user's cache: `$XDG_CACHE_HOME`, else `$HOME/.cache`, else `%LOCALAPPDATA%`. Where
//! none of them is set there is no cache. An empty variable counts as none.
//!
//! A cache only ever saves time. Whoever keeps something there must do without it where it is missing, damaged or out
//! of date.

use std::ffi::OsString;
use std::path::PathBuf;

/// The folder of what a variable stands for, or nothing if it is not to be kept.
pub fn folder(variable: &str) -> Option<PathBuf> {
    choose(variable, |name| std::env::var_os(name))
}

fn choose(variable: &str, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let named = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(asked) = named(variable) {
        return (asked.as_os_str() != "off").then_some(asked);
    }
    let of_home = || named("HOME").map(|home| home.join(".cache"));
    let cache = named("XDG_CACHE_HOME").or_else(of_home).or_else(|| named("LOCALAPPDATA"));
    cache.map(|cache| cache.join("hammerhead"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder of some things in an environment.
    fn chosen(environment: &[(&str, &str)]) -> Option<PathBuf> {
        choose("HAMMERHEAD_THINGS", |name| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_folder_is_the_one_asked_for_else_in_the_users_cache() {
        let all = [("HAMMERHEAD_THINGS", "/a"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h"), ("LOCALAPPDATA", "/l")];
        for (known, expected) in [(0, "/a"), (1, "/c/hammerhead"), (2, "/h/.cache/hammerhead"), (3, "/l/hammerhead")] {
            assert_eq!(chosen(&all[known..]), Some(PathBuf::from(expected)));
        }
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn it_can_be_switched_off_and_an_empty_variable_says_nothing() {
        let with = |value| chosen(&[("HAMMERHEAD_THINGS", value), ("HOME", "/h")]);
        assert_eq!(with("off"), None);
        assert_eq!(with(""), Some(PathBuf::from("/h/.cache/hammerhead")));
    }
}
