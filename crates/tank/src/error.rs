//! Everything that can go wrong in the tank, each with what was found and what to do about it.

use std::io;
use std::path::PathBuf;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something in the tank was refused or could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation itself refused.
    #[error(transparent)]
    Operation(#[from] hammerhead::Error),

    /// The referee could not judge.
    #[error(transparent)]
    Referee(#[from] referee::Error),

    /// A file that a person wrote and that cannot be taken as it is.
    #[error("{path}, line {line}: {problem}; {remedy}", path = path.display())]
    Written {
        /// The file.
        path: PathBuf,
        /// The line at fault, from 1.
        line: usize,
        /// What was found.
        problem: String,
        /// What to do.
        remedy: String,
    },

    /// A file could not be read.
    #[error("cannot read {path}: {source}; check the name and that you may read it", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },

    /// A file could not be written.
    #[error("cannot write {path}: {source}; check that its folder exists, has room, and that you may write there", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },

    /// A problem whose rule takes the results of different inputs for each other.
    #[error(
        "problem {problem} cannot be judged: by its rule the result of one input is right for another too, and so are old results, or zeros; make its tolerance a small part of its numbers, or give it inputs that change the result"
    )]
    Blind {
        /// The problem.
        problem: String,
    },

    /// A season, or a part of it, that breaks the rules before it begins.
    #[error("{what}: {problem}; {remedy}")]
    Rules {
        /// What is at fault.
        what: String,
        /// What was found.
        problem: String,
        /// What to do.
        remedy: String,
    },

    /// A shark whose weights do not sum to one.
    #[error("the weights of shark '{shark}' sum to {sum}, not to 1; correct them, nothing is rescaled silently")]
    Weights {
        /// The shark.
        shark: String,
        /// The sum.
        sum: f64,
    },

    /// A vote that breaks the rules.
    #[error("the vote of shark '{shark}' does not count: {problem}; {remedy}")]
    Vote {
        /// The shark.
        shark: String,
        /// What was found.
        problem: String,
        /// What to do.
        remedy: String,
    },

    /// A ledger that was changed after it was written.
    #[error("{path}, line {line}: {problem}; the ledger was changed after it was written, restore it from a copy or begin another", path = path.display())]
    Tampered {
        /// The ledger.
        path: PathBuf,
        /// The first line that cannot be trusted, from 1.
        line: usize,
        /// What does not fit.
        problem: String,
    },

    /// Two writers.
    #[error("another tank is writing {path}; wait until it is done, or name another ledger", path = path.display())]
    Locked {
        /// The ledger.
        path: PathBuf,
    },

    /// A season that does not continue what the ledger holds.
    #[error("the ledger, record {record}: {problem}; {remedy}")]
    Resume {
        /// The record's number.
        record: u64,
        /// What does not fit.
        problem: String,
        /// What to do.
        remedy: String,
    },

    /// Only a person can go on.
    #[error("round '{round}' waits for a person's word: {question}; {remedy}")]
    Word {
        /// The round.
        round: String,
        /// What is to be decided.
        question: String,
        /// How to answer.
        remedy: String,
    },

    /// The season stands still because it was asked to.
    #[error(
        "round '{round}' is tallied and waits, as asked: '{winner}' would be built; run the same command without --pause to go on"
    )]
    Paused {
        /// The round.
        round: String,
        /// The winner.
        winner: String,
    },

    /// The champion itself cannot be run, so nobody can be compared with it.
    #[error("the champion failed: {reason}; nobody can be measured against it, see that it runs or begin with another")]
    Champion {
        /// What it did.
        reason: String,
    },

    /// No machine did what it was asked. Nothing is known by it, so nothing is written down.
    #[error(
        "the cluster: {problem}; see to its machines, and give the same command again: it goes on where it stopped"
    )]
    Cluster {
        /// What came of it.
        problem: String,
    },

    /// Another machine found that nothing can be found there.
    #[error("on another machine: {reason}")]
    Elsewhere {
        /// What that machine says.
        reason: String,
    },
}

/// What a task of the tank's failed with, as the referee hears it.
impl From<Error> for referee::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Referee(error) => error,
            Error::Operation(error) => Self::Machine(error),
            error => Self::Task(Box::new(error)),
        }
    }
}
