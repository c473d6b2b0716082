//! The operations that there are, and which of them a season plays: nobody else in the game knows one from the other.

pub mod dual_gemm;
pub mod folder;

use std::rc::Rc;

pub use dual_gemm::ProblemSpec;

use self::folder::{Folder, FolderOperation};
use crate::Result;
use crate::configurations::Configurations;
use crate::operation::Operation;

/// What a season says of what it computes.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// The problems of the operation that comes with this program; none where another is played.
    pub problems: &'a [ProblemSpec],
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
            None => self.problems.iter().map(ProblemSpec::name).collect(),
        }
    }

    /// Refuses problems that are none, and words of a baseline that nobody understands.
    pub fn check(&self, baseline: Option<&str>) -> Result<()> {
        self.problems.iter().try_for_each(|problem| problem.problem().map(drop))?;
        match (self.folder, baseline) {
            (None, Some(words)) => dual_gemm::check_words(words),
            _ => Ok(()),
        }
    }

    /// The operation with its problems.
    pub fn operation(&self) -> Result<Box<dyn Operation>> {
        Ok(match self.folder {
            Some(folder) => Box::new(FolderOperation::new(folder)?),
            None => Box::new(dual_gemm::DualGemm::new(self.problems)?),
        })
    }

    /// The configurations that it has on this machine, if it has any of its own.
    pub fn configurations(&self) -> Result<Option<Rc<dyn Configurations>>> {
        Ok(match self.folder {
            Some(_) => None,
            None => Some(Rc::new(dual_gemm::Planner::new(self.problems, self.backend, self.threads)?)),
        })
    }
}
