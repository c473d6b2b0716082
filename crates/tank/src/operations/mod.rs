//! The operations that there are, and which of them a season plays: nobody else in the game knows one from the other.
//!
//! One comes with this program and has configurations of its own. What pitches and seasons say of those, in words that
//! only it understands, is asked here.

pub mod dual_gemm;
pub mod folder;

use std::rc::Rc;

use referee::RefereeSettings;
use serde::{Deserialize, Serialize};

use self::folder::{Folder, FolderOperation};
use crate::Result;
use crate::configurations::Configurations;
use crate::court::Referee;
use crate::operation::Operation;

/// A pitch that is complete, with `NAME` for its name.
pub const EXAMPLE: &str = dual_gemm::PITCH;
/// The line of it that says what is run.
pub const EXAMPLE_RUN: &str = dual_gemm::PITCH_RUN;

/// That pitch, by this name.
pub fn example_pitch(name: &str) -> String {
    EXAMPLE.replace("name = NAME", &format!("name = {}", toml::Value::from(name)))
}
/// The season that is played when no other is named.
pub const SEASON: &str = dual_gemm::SEASON;
/// What to write where a pitch names nothing to run.
pub const RUN: &str = dual_gemm::RUN;
/// Where the words of configurations are explained.
pub const WORDS: &str = "see `hammerhead run --help` for the keys of --config";
/// What to write where a season has no problems.
pub const PROBLEM: &str = dual_gemm::PROBLEM;

/// Refuses words that are no part of a configuration.
pub fn check_words(words: &str) -> Result<()> {
    dual_gemm::check_words(words)
}

/// A problem as a season's file writes it, of the operation that comes with this program. What is in it is the
/// operation's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Problem(dual_gemm::ProblemSpec);

impl Problem {
    /// Its name in the ledger and in reports.
    pub fn name(&self) -> Result<String> {
        self.0.name()
    }
}

impl From<dual_gemm::ProblemSpec> for Problem {
    fn from(written: dual_gemm::ProblemSpec) -> Self {
        Self(written)
    }
}

/// What a season says of what it computes.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// The problems of the operation that comes with this program; none where another is played.
    pub problems: &'a [Problem],
    /// Another operation, with its problems.
    pub folder: Option<&'a Folder>,
    /// The backend, or `auto`, of an operation that has such.
    pub backend: &'a str,
    /// The threads; none for as many as this process may run on.
    pub threads: Option<usize>,
}

impl Described<'_> {
    /// The operation's name.
    pub fn name(&self) -> &str {
        self.folder.map_or(dual_gemm::NAME, |folder| &folder.about.name)
    }

    /// The names of its problems.
    pub fn problem_names(&self) -> Result<Vec<String>> {
        match self.folder {
            Some(folder) => Ok(folder.problem_names()),
            None => self.problems.iter().map(Problem::name).collect(),
        }
    }

    /// Refuses problems that are none, and words of a baseline that nobody understands.
    pub fn check(&self, baseline: Option<&str>) -> Result<()> {
        self.problems.iter().try_for_each(|problem| problem.0.problem().map(drop))?;
        match (self.folder, baseline) {
            (None, Some(words)) => check_words(words),
            _ => Ok(()),
        }
    }

    fn written(&self) -> Vec<dual_gemm::ProblemSpec> {
        self.problems.iter().map(|problem| problem.0.clone()).collect()
    }

    /// The operation with its problems.
    pub fn operation(&self) -> Result<Box<dyn Operation>> {
        Ok(match self.folder {
            Some(folder) => Box::new(FolderOperation::new(folder)?),
            None => Box::new(dual_gemm::DualGemm::new(&self.written())?),
        })
    }

    /// The configurations that it has on this machine, if it has any of its own.
    pub fn configurations(&self) -> Result<Option<Rc<dyn Configurations>>> {
        Ok(match self.folder {
            Some(_) => None,
            None => Some(Rc::new(dual_gemm::Planner::new(&self.written(), self.backend, self.threads)?)),
        })
    }

    /// A referee that predicts, where the backend is a GPU that is not there.
    pub fn foretelling(&self, settings: &RefereeSettings) -> Result<Option<Box<dyn Referee>>> {
        let foretold = dual_gemm::Foretold::of(self.written(), self.backend, self.threads, settings)?;
        Ok(foretold.map(|foretold| Box::new(foretold) as Box<dyn Referee>))
    }
}
