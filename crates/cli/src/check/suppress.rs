//! The suppression file: findings that are known, each with the reason why they are let pass.

use std::cell::Cell;
use std::path::Path;

use serde::Deserialize;

use super::Finding;
use crate::{Error, Result};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    allow: Vec<Allowed>,
}

/// Findings of one kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    /// The rule's name.
    rule: String,
    /// What the finding's words contain: a line of the text, an instruction, a file and line of the source.
    contains: Option<String>,
    /// Why it is let pass.
    reason: String,
    #[serde(skip)]
    used: Cell<bool>,
}

/// What is let pass.
#[derive(Debug, Default)]
pub struct Suppressions(Vec<Allowed>);

impl Suppressions {
    /// Reads a file of them.
    pub fn open(path: &Path) -> Result<Self> {
        let cannot = |what: String| Error::CannotCheck { what };
        let text = std::fs::read_to_string(path)
            .map_err(|error| cannot(format!("cannot read {path:?}: {error}; name a file of suppressions")))?;
        let file: File = toml::from_str(&text).map_err(|error| cannot(format!("{path:?}: {error}")))?;
        if let Some(empty) = file.allow.iter().find(|allowed| allowed.reason.trim().is_empty()) {
            return Err(cannot(format!("{path:?}: the rule {:?} is let pass without a reason; give one", empty.rule)));
        }
        Ok(Suppressions(file.allow))
    }

    /// Why a finding is let pass, if it is.
    pub fn reason(&self, finding: &Finding) -> Option<&str> {
        let fits = |allowed: &&Allowed| {
            let contains = allowed.contains.as_deref().is_none_or(|part| finding.message.contains(part));
            allowed.rule == finding.rule && contains
        };
        let allowed = self.0.iter().find(fits)?;
        allowed.used.set(true);
        Some(&allowed.reason)
    }

    /// Those that no finding needed, in words.
    pub fn unused(&self) -> Vec<String> {
        let idle = self.0.iter().filter(|allowed| !allowed.used.get());
        let words = |allowed: &Allowed| match &allowed.contains {
            Some(part) => format!("{} with {part:?}", allowed.rule),
            None => allowed.rule.clone(),
        };
        idle.map(words).collect()
    }
}
