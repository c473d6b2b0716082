//! What an operation is to the game: problems that are timed, questions that are asked, and, where it has them,
//! configurations of our own.
//!
//! [`crate::operations`] has those that there are: one that comes with this program, and any that a folder describes.

use std::sync::Arc;

use referee::contestant::Contestant;
use referee::contestant::protocol::Residence;
use referee::task::Task;
use serde_json::Value;

use crate::entry::Way;
use crate::{Error, Result};

/// An operation with the problems of a season.
pub trait Operation {
    /// Its name.
    fn name(&self) -> &str;

    /// The problems that are timed, in the season's order.
    fn problems(&self) -> &[Arc<dyn Task>];

    /// What is asked in an examination: edges, the season's problems with every kind of numbers, and so many shapes
    /// that are drawn from the seed and in no list. Of edges that are of another kind than all of the season's problems
    /// one in `other_edges` is asked.
    fn questions(&self, held_out: usize, other_edges: usize, seed: u64) -> Result<Vec<Arc<dyn Task>>>;

    /// Configurations of our own as a contestant in this process.
    fn ours(&self, name: &str, _ways: &[Way], _threads: Option<usize>) -> Result<Box<dyn Contestant>> {
        Err(no_configurations(self.name(), name))
    }

    /// The GPU on which all these configurations compute, if that is what they do.
    fn device(&self, _ways: &[Way]) -> Option<usize> {
        None
    }

    /// Configurations of our own as a contestant whose inputs and outputs are in the memory of the GPU that it computes
    /// on.
    fn ours_on_device(&self, name: &str, _ways: &[Way], _device: usize) -> Result<Box<dyn Contestant>> {
        Err(no_configurations(self.name(), name))
    }

    /// Configurations of our own as a fresh process of our own is told of them, with tensors in this memory.
    fn ours_told(&self, name: &str, _ways: &[Way], _threads: Option<usize>, _memory: Residence) -> Result<Value> {
        Err(no_configurations(self.name(), name))
    }
}

/// Why a configuration cannot be run where the operation has none.
pub(crate) fn no_configurations(operation: &str, pitch: &str) -> Error {
    Error::Rules {
        what: format!("pitch '{pitch}'"),
        problem: format!("it names a configuration, and {operation} has none of its own"),
        remedy: "write [run] with program = [\"./contestant\"]".to_owned(),
    }
}
