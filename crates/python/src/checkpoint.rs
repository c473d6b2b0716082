//! Models on disk, as Python holds them.

use std::path::PathBuf;

use hammerhead::format;
use hammerhead::format::checkpoint;
use pyo3::prelude::*;

use crate::error::Result;

/// An open model: its files are mapped for as long as it lives.
#[pyclass(frozen)]
pub struct Checkpoint {
    pub(crate) model: checkpoint::Checkpoint,
}

#[pymethods]
impl Checkpoint {
    /// Opens a model; the options settle what it leaves open.
    #[new]
    #[pyo3(signature = (path, *, format=None, gate_up_order=None, tower=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        format: Option<&str>,
        gate_up_order: Option<&str>,
        tower: Option<String>,
    ) -> Result<Self> {
        let options = checkpoint::Options {
            format: format.map(str::parse).transpose()?,
            gate_up_order: gate_up_order.map(str::parse).transpose()?,
            tower,
        };
        let open = || -> Result<_, format::Error> { checkpoint::Checkpoint::open_with(&path, &options) };
        Ok(Self { model: py.detach(open)? })
    }

    /// Where it is.
    #[getter]
    fn path(&self) -> PathBuf {
        self.model.path().to_path_buf()
    }

    /// What it says it is, such as `qwen3_moe`.
    #[getter]
    fn model_type(&self) -> Option<&str> {
        self.model.model_type()
    }

    /// The gate it declares.
    #[getter]
    fn gate(&self) -> String {
        self.model.gate().to_string()
    }

    /// The numbers of the layers that have gated pairs.
    #[getter]
    fn layers(&self) -> Vec<usize> {
        self.model.layers().iter().map(|layer| layer.index).collect()
    }

    /// How many numbered experts a layer has, and how many MLPs that see every token beside them.
    fn experts(&self, layer: usize) -> Result<(usize, usize)> {
        let found = self.model.find_layer(layer)?;
        Ok((found.experts().len(), found.shared().len()))
    }
}
