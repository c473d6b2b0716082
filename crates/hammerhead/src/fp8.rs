//! FP8 linear layers beside the NVFP4 ones of a mixed model: C = A·Wᵀ + bias.
//!
//! The processor computes them on the engine's threads, and a GPU as any other plain product, from a [`Queue`] too. An
//! engine with both takes the processor: tokens are the host's then.
//!
//! [`Queue`]: crate::gpu::Queue

use std::borrow::Cow;

use cpu::Fp8Panels;
use format::{Dense, Fp8Matrix};
use op::{Backend, Error, Result, Target};

use crate::{Engine, Layer};

/// Tokens from which AMX computes what AVX-512 otherwise does: below them most rows of its tiles would be empty.
const AMX_TOKENS: usize = 8;

/// An FP8 matrix, packed once, with its bias.
///
/// ```
/// use hammerhead::format::{Dense, Fp8Matrix, Fp8Scales};
/// use hammerhead::{Engine, Fp8Linear, Options, Target};
///
/// let engine = Engine::new(Options { backend: Some("cpu".to_owned()), ..Options::default() })?;
/// // 0x38 is 1.0 in e4m3.
/// let ones = Fp8Matrix::new(4, 64, vec![0x38; 4 * 64], Fp8Scales::Rows(vec![1.0, 2.0, 3.0, 4.0].into()))?;
/// let layer = Fp8Linear::new(&engine, &ones, None)?;
/// let mut c = vec![0f32; 4];
/// layer.run_into(&engine, &Dense::new(1, 64, vec![0.5f32; 64], 1.0)?, Target::F32(&mut c))?;
/// assert_eq!(c, [32.0, 64.0, 96.0, 128.0]);
/// # Ok::<(), hammerhead::Error>(())
/// ```
#[derive(Debug)]
pub struct Fp8Linear {
    packed: Packed,
}

/// Where the weights are.
#[derive(Debug)]
enum Packed {
    Processor(Fp8Panels),
    Device(Layer, &'static dyn Backend),
}

impl Fp8Linear {
    /// Packs a matrix and the bias of its rows, if there is one: for the processor where the engine computes there,
    /// else into its device's memory. The originals are not needed afterwards.
    ///
    /// # Errors
    ///
    /// If the engine's backend does not compute with FP8 weights, if a bias has another length, or if the scales of one
    /// row span more than [`SPREAD`](op::fp8::SPREAD) powers of two.
    pub fn new(engine: &Engine, matrix: &Fp8Matrix<'_>, bias: Option<&[f32]>) -> Result<Self> {
        let packed = match (processor(engine, 1), engine.backends().first()) {
            (Err(_), Some(&device)) => Packed::Device(engine.load_fp8(device, matrix, bias)?, device),
            (found, _) => found.and_then(|_| Fp8Panels::new(matrix, bias, engine.team())).map(Packed::Processor)?,
        };
        Ok(Self { packed })
    }

    /// `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        match &self.packed {
            Packed::Processor(panels) => panels.shape(),
            Packed::Device(layer, _) => layer.shapes()[0],
        }
    }

    /// The bytes that it takes in memory.
    pub fn packed_bytes(&self) -> usize {
        match &self.packed {
            Packed::Processor(panels) => panels.bytes(),
            Packed::Device(layer, _) => layer.packed_bytes(),
        }
    }

    /// The layer in a device's memory, if it is there.
    pub(crate) fn on_device(&self) -> Result<&Layer> {
        match &self.packed {
            Packed::Device(layer, _) => Ok(layer),
            Packed::Processor(_) => {
                Err(Error::Layout { backend: "cuda", found: cpu::LAYOUT, expected: "FP8 weights in the GPU's memory" })
            }
        }
    }

    /// The matrix that was packed, read back with its bias: the same numbers, and scales that are worth the same.
    ///
    /// # Errors
    ///
    /// If a device does not answer.
    pub fn unpacked(&self) -> Result<(Fp8Matrix<'static>, Option<Cow<'_, [f32]>>)> {
        match &self.packed {
            Packed::Processor(panels) => panels.unpacked().map(|(matrix, bias)| (matrix, bias.map(Cow::Borrowed))),
            Packed::Device(layer, device) => {
                let (matrix, bias) = device.unpack_fp8(layer.packed().as_ref())?;
                Ok((matrix, bias.map(Cow::Owned)))
            }
        }
    }

    /// Computes tokens `[m, k]` to `[m, n]`.
    ///
    /// # Errors
    ///
    /// If tokens or room for results do not have the layer's shape, or if the engine does not compute where the weights
    /// are.
    pub fn run_into(&self, engine: &Engine, tokens: &Dense<'_>, target: Target<'_>) -> Result<()> {
        match &self.packed {
            Packed::Processor(panels) => {
                let backend = processor(engine, tokens.rows())?;
                panels.run(backend.name(), &tokens.as_borrowed().into(), target, engine.team())
            }
            Packed::Device(layer, _) => engine.run_into(layer, &[tokens.as_borrowed().into()], &mut [target]),
        }
    }
}

/// The processor's backend that computes so many tokens: the engine's best, but AVX-512 for the fewest.
fn processor(engine: &Engine, tokens: usize) -> Result<&'static dyn Backend> {
    let ours: Vec<_> = engine.backends().into_iter().filter(|each| each.layout() == cpu::LAYOUT).collect();
    let best = match ours.as_slice() {
        [amx, vectors, ..] if amx.name() == "amx" && tokens < AMX_TOKENS => Some(*vectors),
        all => all.first().copied(),
    };
    best.ok_or_else(|| Error::Layout {
        backend: engine.backends().first().map_or("none", |backend| backend.name()),
        found: "FP8 weights for the processor",
        expected: "those that it has packed itself",
    })
}
