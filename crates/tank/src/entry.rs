//! What is run: the way in which a champion or a challenger computes a season's problems.
//!
//! A built-in entry names a backend and a whole configuration for every problem, so that it means the same whatever the
//! planner or the tuning cache say later. A program is anyone's, and computes every problem in its own way.

use serde::{Deserialize, Serialize};

/// How one problem is computed by a built-in entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The problem's name.
    pub problem: String,
    /// The backend.
    pub backend: String,
    /// The whole configuration, as it is written on a command line.
    pub config: String,
}

/// What a champion or a challenger is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Entry {
    /// Configurations of our own backends, one for each problem of the set, in its order.
    Builtin {
        /// The ways.
        ways: Vec<Way>,
    },
    /// A program that speaks the tank's protocol.
    Program {
        /// What builds it, program and arguments; nothing where that is empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        build: Vec<String>,
        /// What starts it, program and arguments.
        command: Vec<String>,
        /// What its files must be, from when it won: nobody else may defend its title.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sealed: Option<String>,
    },
}

impl Entry {
    /// The same, whose files, where it is a program, must be those that have this seal.
    pub(crate) fn with_seal(self, seal: Option<String>) -> Self {
        match self {
            Entry::Program { build, command, .. } => Entry::Program { build, command, sealed: seal },
            builtin => builtin,
        }
    }
}

/// What a pitch wants run: a configuration of ours, any part of one, or a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// A configuration as on a command line; what it leaves out is planned for each problem. Empty: all of it is
    /// planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The backend, where it is not the season's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// A program that speaks the tank's protocol, and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
    /// What builds that program, and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub build: Vec<String>,
    /// Configurations that are tried one after the other, each measured; the best that keeps the deal is taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sweep: Vec<String>,
    /// Which of them is kept, if it is faster by the rules, where none keeps the deal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
}
