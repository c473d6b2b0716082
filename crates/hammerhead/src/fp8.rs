//! FP8 linear layers beside the NVFP4 ones of a mixed model: C = A·Wᵀ + bias.
//!
//! The processor computes them, on the engine's threads. GPUs do not yet: there a caller expands the weight.

use cpu::Fp8Panels;
use format::{Dense, Fp8Matrix};
use op::{Backend, Error, Result, Target};

use crate::Engine;

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
    packed: Fp8Panels,
}

impl Fp8Linear {
    /// Packs a matrix and the bias of its rows, if there is one. The originals are not needed afterwards.
    ///
    /// # Errors
    ///
    /// If the engine computes on a GPU alone, if a bias has another length, or if the scales of one row span more than
    /// [`SPREAD`](op::fp8::SPREAD) powers of two.
    pub fn new(engine: &Engine, matrix: &Fp8Matrix<'_>, bias: Option<&[f32]>) -> Result<Self> {
        backend(engine, 1)?;
        Ok(Self { packed: Fp8Panels::new(matrix, bias, engine.team())? })
    }

    /// `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        self.packed.shape()
    }

    /// The bytes that it takes in memory.
    pub fn packed_bytes(&self) -> usize {
        self.packed.bytes()
    }

    /// The matrix that was packed, read back with its bias: the same numbers, and scales that are worth the same.
    ///
    /// # Errors
    ///
    /// None that a matrix that was packed gives reason for.
    pub fn unpacked(&self) -> Result<(Fp8Matrix<'static>, Option<&[f32]>)> {
        self.packed.unpacked()
    }

    /// Computes tokens `[m, k]` to `[m, n]`.
    ///
    /// # Errors
    ///
    /// If tokens or room for results do not have the layer's shape, or if the engine computes on a GPU alone.
    pub fn run_into(&self, engine: &Engine, tokens: &Dense<'_>, target: Target<'_>) -> Result<()> {
        let backend = backend(engine, tokens.rows())?;
        self.packed.run(backend.name(), &tokens.as_borrowed().into(), target, engine.team())
    }
}

/// The processor's backend that computes so many tokens: the engine's best, but AVX-512 for the fewest.
fn backend(engine: &Engine, tokens: usize) -> Result<&'static dyn Backend> {
    let ours: Vec<_> = engine.backends().into_iter().filter(|each| each.layout() == cpu::LAYOUT).collect();
    let best = match ours.as_slice() {
        [amx, vectors, ..] if amx.name() == "amx" && tokens < AMX_TOKENS => Some(*vectors),
        all => all.first().copied(),
    };
    best.ok_or_else(|| Error::Unavailable {
        backend: engine.backends().first().map_or("none", |backend| backend.name()),
        reason: "it does not compute with FP8 weights".to_owned(),
        remedy: "ask for the backend 'cpu', or expand the weight".to_owned(),
    })
}
