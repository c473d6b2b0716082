//! FP8 linear layers, as Python holds them.

use std::borrow::Cow;

use hammerhead::Fp8Linear;
use hammerhead::format::{Dense, Fp8Matrix, Fp8Scales};
use hammerhead::gpu::Queue;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::borrowed::{NumberParts, check_apart, common_place};
use crate::checkpoint::Checkpoint;
use crate::cuda;
use crate::dlpack::{Array, Place};
use crate::engines::{EngineParts, Wish};
use crate::error::{Error, Result};
use crate::interrupt::computed;

/// Numbers, k, the exponents of MXFP8, or else scales and the sides of their blocks, and the bias.
type Parts<'py> =
    (Bound<'py, PyBytes>, usize, Option<Bound<'py, PyBytes>>, Option<Vec<f32>>, Option<[usize; 2]>, Option<Vec<f32>>);

/// A packed FP8 matrix with its bias.
#[pyclass(frozen)]
pub struct Fp8Layer {
    layer: Fp8Linear,
    wish: Wish,
}

#[pymethods]
impl Fp8Layer {
    /// Packs e4m3 bytes `[n, k]` with scales: one float32, one per row, or one per block of these sides; or the
    /// exponent bytes of MXFP8.
    #[staticmethod]
    #[pyo3(signature = (codes, scales, block, bias, backend, threads, config))]
    #[expect(clippy::too_many_arguments, reason = "they are options of one Python function")]
    fn pack(
        py: Python<'_>,
        codes: Bound<'_, PyAny>,
        scales: NumberParts<'_>,
        block: Option<[usize; 2]>,
        bias: Option<Vec<f32>>,
        backend: Option<String>,
        threads: Option<i64>,
        config: Option<String>,
    ) -> Result<Self> {
        let wish = Wish::new(backend, threads, config)?;
        let codes = Array::borrow(&codes, "the weight", false)?;
        let (rows, k) = codes.matrix_shape()?;
        let (scales, element) = (Array::borrow(&scales.0, "the scales", false)?, scales.1);
        let scales = match (element.as_str(), block) {
            ("uint8", _) => Fp8Scales::Mx(scales.bytes()?.into()),
            (_, Some(block)) => Fp8Scales::Blocks { block, scales: scales.singles()?.into() },
            (_, None) => match scales.singles()? {
                [scale] => Fp8Scales::Matrix(*scale),
                scales => Fp8Scales::Rows(scales.into()),
            },
        };
        let matrix = Fp8Matrix::new(rows, k, codes.bytes()?, scales)?;
        let layer = py.detach(|| -> Result<_> { Ok(Fp8Linear::new(&*wish.engine()?, &matrix, bias.as_deref())?) })?;
        Ok(Self { layer, wish })
    }

    /// Packs an FP8 weight of a model, with its bias if it has one, by the name of its module.
    #[staticmethod]
    #[pyo3(signature = (model, name, backend, threads, config))]
    fn load(
        py: Python<'_>,
        model: &Checkpoint,
        name: &str,
        backend: Option<String>,
        threads: Option<i64>,
        config: Option<String>,
    ) -> Result<Self> {
        let wish = Wish::new(backend, threads, config)?;
        let load = || -> Result<_> {
            let linear = model.model.fp8(name)?;
            Ok(Fp8Linear::new(&*wish.engine()?, &linear.matrix, linear.bias.as_deref())?)
        };
        let layer = py.detach(load)?;
        Ok(Self { layer, wish })
    }

    /// What it was packed from, or what is worth the same.
    fn parts<'py>(&self, py: Python<'py>) -> Result<Parts<'py>> {
        let (matrix, bias) = self.layer.unpacked()?;
        let (exponents, scales, block) = match matrix.scales() {
            Fp8Scales::Mx(exponents) => (Some(PyBytes::new(py, exponents)), None, None),
            Fp8Scales::Blocks { block, scales } => (None, Some(scales.to_vec()), Some(*block)),
            Fp8Scales::Rows(scales) => (None, Some(scales.to_vec()), None),
            Fp8Scales::Matrix(scale) => (None, Some(vec![*scale]), None),
        };
        let codes = PyBytes::new(py, matrix.codes());
        Ok((codes, matrix.k(), exponents, scales, block, bias.map(Cow::into_owned)))
    }

    /// The layer that these are the parts of.
    #[staticmethod]
    fn from_parts(py: Python<'_>, parts: Parts<'_>, options: EngineParts) -> Result<Self> {
        let (codes, k, exponents, scales, block, bias) = parts;
        let wish = Wish::new(options.0, options.1, options.2)?;
        let scales = match (&exponents, scales, block) {
            (Some(exponents), ..) => Fp8Scales::Mx(exponents.as_bytes().into()),
            (None, Some(scales), Some(block)) => Fp8Scales::Blocks { block, scales: scales.into() },
            (None, Some(scales), None) => Fp8Scales::Rows(scales.into()),
            (None, None, _) => return Err(Error::value("parts", "there are no scales")),
        };
        let codes = codes.as_bytes();
        let matrix = Fp8Matrix::new(codes.len().checked_div(k).unwrap_or(0), k, codes, scales)?;
        let layer = py.detach(|| -> Result<_> { Ok(Fp8Linear::new(&*wish.engine()?, &matrix, bias.as_deref())?) })?;
        Ok(Self { layer, wish })
    }

    /// What was asked of the engine.
    #[getter]
    fn options(&self) -> EngineParts {
        self.wish.parts()
    }

    /// Computes tokens; for arrays on a GPU, in the stream with this handle.
    #[pyo3(signature = (x, out, stream))]
    fn run(&self, py: Python<'_>, x: NumberParts<'_>, out: NumberParts<'_>, stream: Option<u64>) -> Result<()> {
        let (tokens, element) = (Array::borrow(&x.0, "x", stream.is_some())?, x.1);
        let mut room = Array::borrow(&out.0, "out", stream.is_some())?;
        check_apart(std::iter::once(&tokens), std::iter::once(&room))?;
        if let (Place::Cuda(device), Some(stream)) = (common_place([&tokens, &room].into_iter())?, stream) {
            let (tokens, rows) = cuda::dense_tokens(&tokens, &element)?;
            let output = cuda::output(&room, &out.1, rows * self.layer.shape().0)?;
            // SAFETY: their owner lends arrays of these shapes and types, which share no memory, and frees memory in
            // the order of the stream.
            let enqueue = |queue: &mut Queue| unsafe { queue.enqueue_fp8(&self.layer, tokens, output) };
            return cuda::in_stream(py, (device, stream), enqueue);
        }
        let (rows, k) = tokens.matrix_shape()?;
        let dense = Dense::new(rows, k, tokens.values(&element)?, 1.0)?;
        let target = room.target(&out.1)?;
        let engine = self.wish.engine_at(py)?;
        computed(py, || self.layer.run_into(&engine, &dense, target))
    }

    /// `(n, k)`.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        self.layer.shape()
    }

    /// The gate's name: there is none.
    #[getter]
    fn gate(&self) -> &'static str {
        "none"
    }

    /// The bytes the packed weights take.
    #[getter]
    fn packed_bytes(&self) -> usize {
        self.layer.packed_bytes()
    }

    /// The backends that are chosen among, best first.
    #[getter]
    fn backends(&self) -> Result<Vec<&'static str>> {
        self.wish.backends()
    }

    /// The threads that are computed on.
    #[getter]
    fn threads(&self) -> Result<usize> {
        Ok(self.wish.engine()?.threads())
    }
}
