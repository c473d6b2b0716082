//! Findings: how grave, which code, where, and a sentence that says what was found, why it matters and what to do.

use serde::Serialize;

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// The checkpoint is broken.
    Error,
    /// Loaders will differ.
    Warning,
    /// Good to know.
    Note,
}

impl Grade {
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// How many names of a finding are kept.
const NAMED: usize = 4;

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub grade: Grade,
    /// Stays the same from version to version.
    pub code: &'static str,
    pub says: String,
    /// The first modules, tensors or files that it concerns.
    pub names: Vec<String>,
    /// How many it concerns in all.
    pub count: usize,
}

impl Finding {
    /// The names and how many more there are.
    pub fn places(&self) -> String {
        let names = self.names.join(", ");
        match self.count - self.names.len() {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

/// The findings so far.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Adds a finding about these names, if there are any.
    pub fn add<N: Into<String>>(
        &mut self,
        grade: Grade,
        code: &'static str,
        names: impl IntoIterator<Item = N>,
        says: impl Into<String>,
    ) {
        let mut names: Vec<String> = names.into_iter().map(Into::into).collect();
        let count = names.len();
        names.truncate(NAMED);
        if count > 0 {
            self.0.push(Finding { grade, code, says: says.into(), names, count });
        }
    }

    /// Whether the checkpoint is known to be broken.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|finding| finding.grade == Grade::Error)
    }

    /// Whether there is a finding of this code.
    pub fn has(&self, code: &str) -> bool {
        self.0.iter().any(|finding| finding.code == code)
    }

    /// All of them, the gravest first.
    pub fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.grade);
        self.0
    }
}

/// A number of things in words: `1 error`, `2 errors`.
pub fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A number with three significant digits and, where it is far from one, an exponent.
pub fn number(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude != 0.0 && !(1e-2..1e4).contains(&magnitude) => format!("{value:.2e}"),
        _ => crate::table::three_digits(value),
    }
}
