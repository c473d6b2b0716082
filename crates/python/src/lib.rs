//! The native half of the Python package `hammerhead`.
//!
//! Its other half is `python/hammerhead`: what users call, which knows the array libraries and allocates outputs in the
//! caller's kind. What crosses the border between them are objects that speak DLPack (`dlpack`), so that this half
//! needs neither numpy nor torch, and one build serves every Python from 3.10 on. It borrows the arrays, releases
//! Python's lock, and computes on an engine that all layers share (`engines`). `_native.pyi` is its signature.

mod adapters;
mod borrowed;
mod checkpoint;
mod cuda;
mod dlpack;
mod engines;
mod error;
mod fp8;
mod interrupt;
mod layer;
mod layers;
mod simulated;

use std::ffi::OsString;
use std::io;

use hammerhead::format::{self, Dense, GlobalScale};
use hammerhead::gpu::{Cuda, tried_by};
use hammerhead::{Backend, Target};
use pyo3::prelude::*;

use crate::adapters::Adapters;
use crate::borrowed::{BorrowedMatrix, MatrixParts, NumberParts};
use crate::checkpoint::Checkpoint;
use crate::dlpack::Array;
use crate::engines::use_threads;
use crate::error::{Error, Result};
use crate::fp8::Fp8Layer;
use crate::layer::Layer;
use crate::layers::FeedForward;
use crate::simulated::simulate;

/// Quantises `values` into `codes` and `scales` and returns the global scale.
#[pyfunction]
#[pyo3(signature = (values, codes, scales, global_scale))]
fn quantize(
    py: Python<'_>,
    values: NumberParts<'_>,
    codes: Bound<'_, PyAny>,
    scales: Bound<'_, PyAny>,
    global_scale: Option<f64>,
) -> Result<f64> {
    let source = Array::borrow(&values.0, "the array to quantise", false)?;
    let mut codes = Array::borrow(&codes, "the codes", false)?;
    let mut scales = Array::borrow(&scales, "the scales", false)?;
    let (rows, k) = source.matrix_shape()?;
    let dense = Dense::new(rows, k, source.values(&values.1)?, 1.0)?;
    let quantised = py.detach(|| format::quantize(&dense, global_scale.map(GlobalScale::nearest)))?;
    fill(&mut codes, quantised.codes())?;
    fill(&mut scales, quantised.scales())?;
    Ok(quantised.global().value())
}

/// Writes the numbers that a matrix stands for into `values`, f32.
#[pyfunction]
fn dequantize(py: Python<'_>, matrix: MatrixParts<'_>, values: Bound<'_, PyAny>) -> Result<()> {
    let source = BorrowedMatrix::new(&matrix, "the matrix", false)?;
    let matrix = source.matrix()?;
    let mut values = Array::borrow(&values, "the values", false)?;
    let numbers = py.detach(|| matrix.dequantize());
    fill_numbers(&mut values, &numbers)
}

fn fill_numbers(values: &mut Array, numbers: &[f32]) -> Result<()> {
    match values.target("float32")? {
        Target::F32(target) if target.len() == numbers.len() => target.copy_from_slice(numbers),
        _ => return Err(Error::value("the values", format!("{} are needed", numbers.len()))),
    }
    Ok(())
}

/// Every backend by name, best first, and why it cannot run here if it cannot.
#[pyfunction]
fn backends(py: Python<'_>) -> Vec<(&'static str, Option<String>)> {
    let each = |backend: &&'static dyn Backend| (backend.name(), backend.available().err());
    let all: Vec<_> = py.detach(|| hammerhead::backends::all().iter().map(each).collect());
    all.into_iter().map(|(name, error)| (name, error.map(|error| error.to_string()))).collect()
}

/// Tries ways of computing on a GPU for another process, which asks for them on the standard input.
#[pyfunction]
fn serve_trials(py: Python<'_>, device: usize) -> Result<()> {
    let cuda = Cuda::on(device)?;
    let served = py.detach(|| cuda.serve_trials(io::stdout().lock()));
    served.map_err(|error| Error::value("the trials", error.to_string()))
}

/// Has this process's ways of computing on a GPU tried by another Python, if there is a program to start one with.
fn tried_by_python(py: Python<'_>) -> PyResult<()> {
    let program: Option<String> = py.import("sys")?.getattr("executable")?.extract()?;
    if let Some(program) = program.filter(|program| !program.is_empty()) {
        tried_by(program, ["-m", "hammerhead.trial"].map(OsString::from));
    }
    Ok(())
}

fn fill(target: &mut Array, bytes: &[u8]) -> Result<()> {
    let what = target.what().to_owned();
    let room = target.bytes_mut()?;
    if room.len() != bytes.len() {
        return Err(Error::value(what, format!("there is room for {}, and {} are needed", room.len(), bytes.len())));
    }
    room.copy_from_slice(bytes);
    Ok(())
}

/// The native half of the package.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{
        Adapters, Checkpoint, FeedForward, Fp8Layer, Layer, backends, dequantize, quantize, serve_trials, simulate,
        use_threads,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::engines::imported();
        super::tried_by_python(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
