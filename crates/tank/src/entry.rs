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
