//! Models on disk, as Python holds them.

use std::path::PathBuf;

use hammerhead::format;
use hammerhead::format::checkpoint::{self, Rows};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack::Array;
use crate::error::Result;
use crate::fill_numbers;

/// What [`Checkpoint::stored`] says of a tensor.
type StoredParts = (String, String, Vec<String>, Option<usize>, usize, usize, bool);

/// An open model: its files are mapped for as long as it lives.
#[pyclass(frozen)]
pub struct Checkpoint {
    pub(crate) model: checkpoint::Checkpoint,
    /// How it was opened; without, by name.
    options: Option<checkpoint::Options>,
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
        Ok(Self { model: py.detach(open)?, options: Some(options) })
    }

    /// Opens a model whose tensors are asked for by their whole names: no layers are looked for.
    #[staticmethod]
    fn by_name(py: Python<'_>, path: PathBuf) -> Result<Self> {
        let open = || -> Result<_, format::Error> { checkpoint::Checkpoint::open_by_name(&path) };
        Ok(Self { model: py.detach(open)?, options: None })
    }

    /// Copies share the mapped files, which do not change.
    fn __deepcopy__(this: Py<Self>, _memo: Bound<'_, PyAny>) -> Py<Self> {
        this
    }

    /// Pickled as where it is, and opened again from there.
    fn __reduce__<'py>(this: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (py, kind, own) = (this.py(), this.get_type(), this.get());
        let Some(options) = &own.options else {
            return Ok((kind.getattr("by_name")?, (own.model.path(),).into_pyobject(py)?));
        };
        let said = PyDict::new(py);
        said.set_item("format", options.format.map(|format| format.to_string()))?;
        said.set_item("gate_up_order", options.gate_up_order.map(|order| order.to_string()))?;
        said.set_item("tower", options.tower.clone())?;
        let open = py.import("functools")?.getattr("partial")?.call((kind,), Some(&said))?;
        Ok((open, (own.model.path(),).into_pyobject(py)?))
    }

    /// Every quantised tensor: stem, name before it was quantised, names of its parts, matrices of a stack if it is
    /// one, rows, k, and whether it is stored as its columns.
    fn stored(&self, py: Python<'_>) -> Result<Vec<StoredParts>> {
        let stored = py.detach(|| self.model.stored())?;
        Ok(stored.into_iter().map(|s| (s.stem, s.tensor, s.parts, s.stack, s.rows, s.k, s.is_transposed)).collect())
    }

    /// Writes one matrix as float32, columns multiplied with the model's `pre_quant_scale` if it has one.
    fn expand(&self, py: Python<'_>, stem: &str, member: usize, values: &Bound<'_, PyAny>) -> Result<()> {
        let mut values = Array::borrow(values, "values", false)?;
        let numbers = py.detach(|| -> Result<_> {
            let linear = self.model.projection(stem, member, Rows::All)?;
            let mut numbers = linear.matrix.dequantize();
            if let Some(scale) = linear.pre_scale {
                numbers
                    .chunks_exact_mut(scale.len())
                    .flat_map(|row| row.iter_mut().zip(&scale))
                    .for_each(|(x, s)| *x *= s);
            }
            Ok(numbers)
        })?;
        fill_numbers(&mut values, &numbers)
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
        self.model.gate_and_source(None).0.to_string()
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
