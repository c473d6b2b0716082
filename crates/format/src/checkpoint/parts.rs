//! The tensors that belong to one weight.

use std::collections::BTreeMap;

use super::names::Part;
use super::store::{Store, View};
use crate::{Error, Result};

/// Of every weight, by its stem: the parts it has, and under which names.
pub(super) type Catalogue = BTreeMap<String, Vec<(Part, String)>>;

/// One weight's tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub store: &'a Store,
    pub stem: &'a str,
    pub names: &'a [(Part, String)],
}

impl<'a> Parts<'a> {
    /// The tensor that plays this part, if there is one.
    pub fn get(&self, part: Part) -> Result<Option<View<'a>>> {
        let mut found = self.names.iter().filter(|(is, _)| *is == part).map(|(_, name)| name);
        let Some(name) = found.next() else { return Ok(None) };
        if let Some(other) = found.next() {
            return self.refuse(format!("tensors {name:?} and {other:?} would play the same part"), "keep one of them");
        }
        Ok(self.store.view(name))
    }

    /// Whether a tensor plays this part.
    pub fn has(&self, part: Part) -> bool {
        self.names.iter().any(|(is, _)| *is == part)
    }

    /// An error about this weight.
    pub fn refuse<T>(&self, problem: String, remedy: &'static str) -> Result<T> {
        Err(Error::Weight { path: self.store.path().to_path_buf(), name: self.stem.to_owned(), problem, remedy })
    }
}
