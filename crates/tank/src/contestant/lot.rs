//! A problem with its numbers, and the three files in which a contestant finds them.
//!
//! A [`Lot`] is what is to be laid out: weights of some layers, room for tokens, room for outputs. [`Tensors`] are a session's files,
//! of memory that has no name in any folder: only who was given a descriptor can open them, so no side sees the other's. They are
//! the same for as long as the session lives, and every `prepare` lays them out anew.
//!
//! The referee keeps what it wrote for itself and computes every expected value from that, so a contestant that changes its inputs
//! changes nothing but its own results, and is found when the file is read again.
//!
//! The referee never maps these files: it reads and writes them by system calls. A contestant may shorten a file at any
//! time, and a referee that had it mapped would die of that; a short read is an error like any other. For the same reason
//! outputs are judged on a private copy: what is written after the copy was made does not count.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use hammerhead::format::{Dense, Matrix, Values};
use hammerhead::{Activations, Output, Problem, Weights};

use super::protocol::{MatrixPlace, Prepare, ProblemText, TokensPlace, WeightsPlace};
use crate::{Error, Result};

/// Every tensor starts at a multiple of this: a page, so that a mapping can be made of any of them.
const ALIGNMENT: u64 = 4096;

/// The weights of a layer, a group each.
pub type LayerWeights = Vec<Weights<'static>>;
/// Tokens of an input, a group each.
pub type Tokens = Vec<Activations<'static>>;

/// A problem, its weights, and how many inputs and outputs there are to be room for.
#[derive(Clone, Debug)]
pub struct Lot {
    problem: Problem,
    layers: Arc<Vec<LayerWeights>>,
    /// Tokens of the sizes and the global scales that all will have. They are never shown.
    pattern: Tokens,
    inputs: usize,
    outputs: usize,
}

impl Lot {
    /// A lot with these layers, and tokens like those given.
    pub fn new(
        problem: Problem,
        layers: Arc<Vec<LayerWeights>>,
        pattern: Tokens,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        if layers.iter().flatten().any(|weights| weights.input_scale().is_some()) {
            let reason = "weights with an input scale have no words in it; judge the layer without, on tokens that are multiplied";
            return Err(Error::Protocol { reason: reason.to_owned() });
        }
        Ok(Self { problem, layers, pattern, inputs, outputs })
    }

    /// Layers.
    pub fn layers(&self) -> &Arc<Vec<LayerWeights>> {
        &self.layers
    }

    /// Places for inputs, which are as many as those for outputs or fewer.
    pub fn inputs(&self) -> usize {
        self.inputs
    }
}

/// The files of a session.
#[derive(Debug)]
pub struct Tensors {
    weights: Region,
    tokens: Region,
    outputs: Region,
    laid: Option<Laid>,
}

/// What lies in them.
#[derive(Debug)]
struct Laid {
    lot: Lot,
    message: Prepare,
    /// The tokens that each input holds now.
    inputs: Vec<Option<Tokens>>,
}

#[derive(Debug)]
struct Region {
    name: &'static str,
    file: File,
    /// What the contestant is given, for reading only where that is all it may do.
    lent: File,
}

/// Which poison fills an output: two that differ in every element, each not a number in all three output types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// All bits set.
    Ones,
    /// The bits 0111 1111 in every byte.
    Sevens,
}

impl Poison {
    /// The byte that the poison is made of.
    pub fn byte(self) -> u8 {
        match self {
            Poison::Ones => 0xFF,
            Poison::Sevens => 0x7F,
        }
    }
}

impl Tensors {
    /// Empty files.
    pub fn new() -> Result<Self> {
        Ok(Self {
            weights: Region::create("weights", false)?,
            tokens: Region::create("tokens", false)?,
            outputs: Region::create("outputs", true)?,
            laid: None,
        })
    }

    /// The descriptors that a contestant is to inherit.
    pub(super) fn lent(&self) -> Vec<RawFd> {
        [&self.weights, &self.tokens, &self.outputs].map(|region| region.lent.as_raw_fd()).to_vec()
    }

    /// Lays out a problem in place of the one before. There are no tokens yet.
    pub fn lay(&mut self, lot: &Lot) -> Result<()> {
        self.laid = None;
        let message = Prepare {
            id: String::new(),
            problem: ProblemText::from(&lot.problem),
            weights: self.weights.path(),
            tokens: self.tokens.path(),
            outputs: self.outputs.path(),
            layers: self.weights.lay_layers(&lot.layers)?,
            inputs: self.tokens.lay_inputs(&lot.pattern, lot.inputs)?,
            places: self.outputs.lay_outputs(&lot.problem, lot.outputs)?,
        };
        self.laid = Some(Laid { lot: lot.clone(), message, inputs: vec![None; lot.inputs] });
        Ok(())
    }

    fn laid(&self) -> Result<&Laid> {
        self.laid.as_ref().ok_or_else(nothing_laid)
    }

    /// The message that tells a contestant of all this, with an id of its own each time.
    pub fn message(&self, id: String) -> Result<Prepare> {
        Ok(Prepare { id, ..self.laid()?.message.clone() })
    }

    /// What is computed.
    pub fn problem(&self) -> Result<&Problem> {
        Ok(&self.laid()?.lot.problem)
    }

    /// The weights that are used.
    pub fn layers(&self) -> Result<&Arc<Vec<LayerWeights>>> {
        Ok(&self.laid()?.lot.layers)
    }

    /// The tokens that an input holds now.
    pub fn input(&self, input: usize) -> Result<&Tokens> {
        self.laid()?.inputs[input].as_ref().ok_or_else(nothing_laid)
    }

    /// Rewrites an input in its place. The global scales stay those of before: contestants were told them.
    pub fn write_input(&mut self, input: usize, tokens: Tokens) -> Result<()> {
        let laid = self.laid.as_mut().ok_or_else(nothing_laid)?;
        for (group, place) in tokens.iter().zip(&laid.message.inputs[input]) {
            self.tokens.write_tokens(group, place)?;
        }
        laid.inputs[input] = Some(tokens);
        Ok(())
    }

    /// Poisons an output.
    pub fn poison(&self, output: usize, poison: Poison) -> Result<()> {
        let Laid { lot, message, .. } = self.laid()?;
        for (shape, &place) in lot.problem.groups().iter().zip(&message.places[output]) {
            let bytes = vec![poison.byte(); shape.m * shape.n * lot.problem.output().bytes()];
            self.outputs.write(place, &bytes)?;
        }
        Ok(())
    }

    /// A private copy of an output's bytes, a group each; [`Error::Shortened`] where a contestant cut the file off.
    pub fn read_output(&self, output: usize) -> Result<Vec<Vec<u8>>> {
        let Laid { lot, message, .. } = self.laid()?;
        let read = |(shape, &place): (&hammerhead::Shape, &u64)| {
            self.outputs.read(place, shape.m * shape.n * lot.problem.output().bytes())
        };
        lot.problem.groups().iter().zip(&message.places[output]).map(read).collect()
    }

    /// Those bytes as matrices.
    pub fn as_results(&self, bytes: &[Vec<u8>]) -> Result<Vec<Dense<'static>>> {
        let problem = self.problem()?;
        let dense = |(shape, bytes): (&hammerhead::Shape, &Vec<u8>)| {
            Ok(Dense::new(shape.m, shape.n, values(bytes, problem.output()), 1.0).map_err(hammerhead::Error::from)?)
        };
        problem.groups().iter().zip(bytes).map(dense).collect()
    }

    /// Whether an input still holds what was written.
    pub fn input_is_intact(&self, input: usize) -> Result<bool> {
        for (group, place) in self.input(input)?.iter().zip(&self.laid()?.message.inputs[input]) {
            if !self.tokens.holds_tokens(group, place)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the weights still are what was written.
    pub fn weights_are_intact(&self) -> Result<bool> {
        let Some(Laid { lot, message, .. }) = &self.laid else { return Ok(true) };
        for (weights, place) in lot.layers.iter().flatten().zip(message.layers.iter().flatten()) {
            let places = [Some(place.gate), place.up].into_iter().flatten();
            for (matrix, place) in weights.matrices().zip(places) {
                if !self.weights.holds(place.codes, matrix.codes())?
                    || !self.weights.holds(place.scales, matrix.scales())?
                {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn nothing_laid() -> Error {
    Error::Protocol { reason: "nothing was laid out, or an input was never written".to_owned() }
}

fn aligned(offset: u64) -> u64 {
    offset.next_multiple_of(ALIGNMENT)
}

fn values(bytes: &[u8], output: Output) -> Values<'static> {
    match output {
        Output::F16 => bytemuck::pod_collect_to_vec::<u8, f16>(bytes).into(),
        Output::BF16 => bytemuck::pod_collect_to_vec::<u8, bf16>(bytes).into(),
        Output::F32 => bytemuck::pod_collect_to_vec::<u8, f32>(bytes).into(),
    }
}

/// A file without a name, in memory where the system has such files.
fn anonymous(name: &str) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        let name = std::ffi::CString::new(name)?;
        // SAFETY: the name ends and lives for as long as the call.
        let made = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if made >= 0 {
            // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
            return Ok(unsafe { File::from_raw_fd(made) });
        }
    }
    let _ = name;
    tempfile::tempfile()
}

/// By which path whoever holds a file open can open it again.
fn path_of(file: &File) -> PathBuf {
    let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    Path::new(folder).join(file.as_raw_fd().to_string())
}

/// The bytes of dense values.
fn bytes<'a>(values: &'a Values<'_>) -> &'a [u8] {
    match values {
        Values::F16(v) => bytemuck::cast_slice(v),
        Values::BF16(v) => bytemuck::cast_slice(v),
        Values::F32(v) => bytemuck::cast_slice(v),
    }
}

impl Region {
    fn create(name: &'static str, writable: bool) -> Result<Self> {
        let failed = |source| Error::SharedMemory { what: "make room for", path: name.into(), source };
        let file = anonymous(name).map_err(failed)?;
        // Its owner could change this back; what was changed is found by comparing.
        file.set_permissions(Permissions::from_mode(if writable { 0o600 } else { 0o400 })).map_err(failed)?;
        let lent = match writable {
            true => file.try_clone(),
            false => File::open(path_of(&file)),
        };
        Ok(Self { name, file, lent: lent.map_err(failed)? })
    }

    /// Where a contestant finds it that has inherited the descriptor.
    fn path(&self) -> PathBuf {
        path_of(&self.lent)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let failed = |source| Error::SharedMemory { what: "write", path: self.name.into(), source };
        self.file.write_all_at(bytes, offset).map_err(failed)
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Error::Shortened { path: self.name.into() })
            }
            Err(source) => Err(Error::SharedMemory { what: "read", path: self.name.into(), source }),
        }
    }

    /// Whether the file holds these bytes; a file that became too short does not.
    fn holds(&self, offset: u64, expected: &[u8]) -> Result<bool> {
        const CHUNK: usize = 1 << 20;
        let mut found = vec![0; CHUNK.min(expected.len())];
        for (index, expected) in expected.chunks(CHUNK).enumerate() {
            let found = &mut found[..expected.len()];
            match self.file.read_exact_at(found, offset + (index * CHUNK) as u64) {
                Ok(()) if found == expected => {}
                Ok(()) => return Ok(false),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(source) => return Err(Error::SharedMemory { what: "read", path: self.name.into(), source }),
            }
        }
        Ok(true)
    }

    fn lay_matrix(&self, end: &mut u64, matrix: &Matrix<'_>) -> Result<MatrixPlace> {
        let codes = aligned(*end);
        let scales = aligned(codes + matrix.codes().len() as u64);
        self.write(codes, matrix.codes())?;
        self.write(scales, matrix.scales())?;
        *end = scales + matrix.scales().len() as u64;
        Ok(MatrixPlace { codes, scales, global: matrix.global().value() })
    }

    fn lay_layers(&self, layers: &[LayerWeights]) -> Result<Vec<Vec<WeightsPlace>>> {
        self.clear()?;
        let mut end = 0;
        let mut group = |weights: &Weights<'static>| {
            let gate = self.lay_matrix(&mut end, weights.gate())?;
            let up = weights.up().map(|up| self.lay_matrix(&mut end, up)).transpose()?;
            Ok(WeightsPlace { gate, up })
        };
        let layers = layers.iter().map(|layer| layer.iter().map(&mut group).collect()).collect::<Result<Vec<_>>>()?;
        self.extend(end)?;
        Ok(layers)
    }

    /// Places for so many inputs of these sizes. What will be there is not yet known to anyone.
    fn lay_inputs(&self, pattern: &Tokens, inputs: usize) -> Result<Vec<Vec<TokensPlace>>> {
        self.clear()?;
        let mut end = 0;
        let mut group = |tokens: &Activations<'static>| match tokens {
            Activations::NvFp4(matrix) => {
                let codes = aligned(end);
                let scales = aligned(codes + matrix.codes().len() as u64);
                end = scales + matrix.scales().len() as u64;
                TokensPlace::Quantised(MatrixPlace { codes, scales, global: matrix.global().value() })
            }
            Activations::Dense(dense) => {
                let values = aligned(end);
                end = values + bytes(dense.values()).len() as u64;
                TokensPlace::Dense { values, global: dense.global().value() }
            }
        };
        let inputs = (0..inputs).map(|_| pattern.iter().map(&mut group).collect()).collect();
        self.extend(end)?;
        Ok(inputs)
    }

    fn lay_outputs(&self, problem: &Problem, outputs: usize) -> Result<Vec<Vec<u64>>> {
        self.clear()?;
        let mut end = 0;
        let mut places = Vec::new();
        for _ in 0..outputs {
            let mut groups = Vec::new();
            for shape in problem.groups() {
                groups.push(aligned(end));
                end = aligned(end) + (shape.m * shape.n * problem.output().bytes()) as u64;
            }
            places.push(groups);
        }
        self.extend(end)?;
        Ok(places)
    }

    /// Forgets everything, and gives its memory back.
    fn clear(&self) -> Result<()> {
        let failed = |source| Error::SharedMemory { what: "empty", path: self.name.into(), source };
        self.file.set_len(0).map_err(failed)
    }

    /// Makes the file at least a page long and whole pages: an empty file cannot be mapped.
    fn extend(&self, end: u64) -> Result<()> {
        let failed = |source| Error::SharedMemory { what: "extend", path: self.name.into(), source };
        self.file.set_len(aligned(end.max(1))).map_err(failed)
    }

    fn write_tokens(&self, tokens: &Activations<'_>, place: &TokensPlace) -> Result<()> {
        match (tokens, place) {
            (Activations::NvFp4(matrix), TokensPlace::Quantised(place)) => {
                self.write(place.codes, matrix.codes())?;
                self.write(place.scales, matrix.scales())
            }
            (Activations::Dense(dense), TokensPlace::Dense { values, .. }) => {
                self.write(*values, bytes(dense.values()))
            }
            _ => Ok(()),
        }
    }

    fn holds_tokens(&self, tokens: &Activations<'_>, place: &TokensPlace) -> Result<bool> {
        match (tokens, place) {
            (Activations::NvFp4(matrix), TokensPlace::Quantised(place)) => {
                Ok(self.holds(place.codes, matrix.codes())? && self.holds(place.scales, matrix.scales())?)
            }
            (Activations::Dense(dense), TokensPlace::Dense { values, .. }) => {
                self.holds(*values, bytes(dense.values()))
            }
            _ => Ok(false),
        }
    }
}
