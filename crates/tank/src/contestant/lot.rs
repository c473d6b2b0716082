//! A problem laid out in shared memory: weights of some layers, room for tokens, room for outputs.
//!
//! Three files, in a folder that only this user may enter, on a memory file system where there is one. The referee keeps
//! what it wrote for itself and computes every expected value from that, so a contestant that changes its inputs changes
//! nothing but its own results, and is found when the file is read again.
//!
//! The referee never maps these files: it reads and writes them by system calls. A contestant may shorten a file at any
//! time, and a referee that had it mapped would die of that; a short read is an error like any other. For the same reason
//! outputs are judged on a private copy: what is written after the copy was made does not count.
//!
//! A folder goes with its lot. A referee that is killed leaves its folders behind, and the next one takes them away
//! ([`sweep`]): whoever lives holds a lock on each of its folders, and a lock dies with its owner.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use hammerhead::format::{Dense, Matrix, Values};
use hammerhead::{Activations, Output, Problem, Weights};
use tempfile::TempDir;

use super::protocol::{MatrixPlace, Prepare, ProblemText, TokensPlace, WeightsPlace};
use crate::{Error, Result};

/// Where memory is a file system.
const SHARED: &str = "/dev/shm";
/// How the name of a lot's folder begins.
const PREFIX: &str = "hammerhead-tank-";
/// The files in it.
const FILES: [&str; 3] = ["weights", "tokens", "outputs"];
/// How often a folder is made anew that was swept away before it was locked.
const ATTEMPTS: usize = 8;
/// Every tensor starts at a multiple of this: a page, so that a mapping can be made of any of them.
const ALIGNMENT: u64 = 4096;

/// The weights of a layer, a group each.
pub type LayerWeights = Vec<Weights<'static>>;
/// Tokens of an input, a group each.
pub type Tokens = Vec<Activations<'static>>;

/// A problem in shared memory.
#[derive(Debug)]
pub struct Lot {
    problem: Problem,
    message: Prepare,
    weights: Region,
    tokens: Region,
    outputs: Region,
    layers: Arc<Vec<LayerWeights>>,
    inputs: Vec<Tokens>,
    /// Last: the files are closed before their folder goes.
    _folder: Folder,
}

/// A folder of this process's own. It goes when this value goes, and can be swept away by others once the process is dead.
#[derive(Debug)]
struct Folder {
    _lock: File,
    place: TempDir,
}

#[derive(Debug)]
struct Region {
    path: PathBuf,
    file: File,
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

impl Lot {
    /// Lays out a problem: its layers' weights, as many inputs as there are tokens, and so many outputs.
    pub fn new(problem: Problem, layers: Arc<Vec<LayerWeights>>, inputs: Vec<Tokens>, outputs: usize) -> Result<Self> {
        if layers.iter().flatten().any(|weights| weights.input_scale().is_some()) {
            let reason = "weights with an input scale have no words in it; judge the layer without, on tokens that are multiplied";
            return Err(Error::Protocol { reason: reason.to_owned() });
        }
        let folder = Folder::new(&root())?;
        let [weights, tokens, outputs_file] = FILES.map(|name| Region::create(folder.place.path().join(name)));
        let (weights, tokens, outputs_file) = (weights?, tokens?, outputs_file?);
        let message = Prepare {
            id: String::new(),
            problem: ProblemText::from(&problem),
            weights: weights.path.clone(),
            tokens: tokens.path.clone(),
            outputs: outputs_file.path.clone(),
            layers: weights.lay_layers(&layers)?,
            inputs: Vec::new(),
            places: outputs_file.lay_outputs(&problem, outputs)?,
        };
        let mut lot =
            Self { problem, message, weights, tokens, outputs: outputs_file, layers, inputs, _folder: folder };
        lot.message.inputs = lot.tokens.lay_inputs(&lot.inputs)?;
        Ok(lot)
    }

    /// What is computed.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The message that tells a contestant of all this, with an id of its own each time.
    pub fn message(&self, id: String) -> Prepare {
        Prepare { id, ..self.message.clone() }
    }

    /// Layers.
    pub fn layers(&self) -> &Arc<Vec<LayerWeights>> {
        &self.layers
    }

    /// The tokens that an input holds now.
    pub fn input(&self, input: usize) -> &Tokens {
        &self.inputs[input]
    }

    /// Outputs that there is room for.
    pub fn outputs(&self) -> usize {
        self.message.places.len()
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> u64 {
        self.layers.iter().flatten().map(|w| w.checkpoint_bytes() as u64).sum()
    }

    /// Rewrites an input in its place. The global scales stay those of before: contestants were told them.
    pub fn write_input(&mut self, input: usize, tokens: Tokens) -> Result<()> {
        for (group, place) in tokens.iter().zip(&self.message.inputs[input]) {
            self.tokens.write_tokens(group, place)?;
        }
        self.inputs[input] = tokens;
        Ok(())
    }

    /// Poisons an output.
    pub fn poison(&self, output: usize, poison: Poison) -> Result<()> {
        let bytes = vec![poison.byte(); self.output_bytes()];
        for (shape, &place) in self.problem.groups().iter().zip(&self.message.places[output]) {
            self.outputs.write(place, &bytes[..shape.m * shape.n * self.problem.output().bytes()])?;
        }
        Ok(())
    }

    fn output_bytes(&self) -> usize {
        let largest = self.problem.groups().iter().map(|s| s.m * s.n).max().unwrap_or(0);
        largest * self.problem.output().bytes()
    }

    /// A private copy of an output's bytes, a group each; [`Error::Shortened`] where a contestant cut the file off.
    pub fn read_output(&self, output: usize) -> Result<Vec<Vec<u8>>> {
        let read = |(shape, &place): (&hammerhead::Shape, &u64)| {
            self.outputs.read(place, shape.m * shape.n * self.problem.output().bytes())
        };
        self.problem.groups().iter().zip(&self.message.places[output]).map(read).collect()
    }

    /// Those bytes as matrices.
    pub fn as_results(&self, bytes: &[Vec<u8>]) -> Result<Vec<Dense<'static>>> {
        let dense = |(shape, bytes): (&hammerhead::Shape, &Vec<u8>)| {
            Ok(Dense::new(shape.m, shape.n, values(bytes, self.problem.output()), 1.0)
                .map_err(hammerhead::Error::from)?)
        };
        self.problem.groups().iter().zip(bytes).map(dense).collect()
    }

    /// Whether an input still holds what was written.
    pub fn input_is_intact(&self, input: usize) -> Result<bool> {
        for (group, place) in self.inputs[input].iter().zip(&self.message.inputs[input]) {
            if !self.tokens.holds_tokens(group, place)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the weights still are what was written.
    pub fn weights_are_intact(&self) -> Result<bool> {
        for (weights, place) in self.layers.iter().flatten().zip(self.message.layers.iter().flatten()) {
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

/// Where folders are made.
fn root() -> PathBuf {
    Some(PathBuf::from(SHARED)).filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir)
}

impl Folder {
    fn new(root: &Path) -> Result<Self> {
        let failed = |source| Error::SharedMemory { what: "make a folder in", path: root.to_owned(), source };
        for _ in 0..ATTEMPTS {
            let place = tempfile::Builder::new().prefix(PREFIX).tempdir_in(root).map_err(failed)?;
            // Until it is locked it looks abandoned, and another's sweep may take it away: then it is made anew.
            if let Some(lock) = own(place.path()) {
                return Ok(Self { _lock: lock, place });
            }
        }
        Err(failed(io::Error::other("every folder made there vanished at once")))
    }
}

/// The lock on a folder, if nobody alive holds it and the folder is still there.
fn own(folder: &Path) -> Option<File> {
    let lock = File::open(folder).ok()?;
    lock.try_lock().ok()?;
    lock.metadata().is_ok_and(|about| about.nlink() > 0).then_some(lock)
}

/// Takes away what referees of this user that are dead have left in shared memory.
pub fn sweep() {
    sweep_in(&root());
}

/// Takes away abandoned folders. What is locked, another user's, or holds anything that no lot has, stays; so does what
/// cannot be removed, because a place that cannot be tidied is no reason not to play.
fn sweep_in(root: &Path) {
    for folder in fs::read_dir(root).into_iter().flatten().flatten() {
        let named = folder.file_name().to_string_lossy().starts_with(PREFIX);
        // SAFETY: the call has no conditions and cannot fail.
        let user = unsafe { libc::geteuid() };
        if !named || !folder.metadata().is_ok_and(|about| about.is_dir() && about.uid() == user) {
            continue;
        }
        let Some(_lock) = own(&folder.path()) else { continue };
        let files: Vec<PathBuf> =
            fs::read_dir(folder.path()).into_iter().flatten().flatten().map(|file| file.path()).collect();
        if files.iter().all(|file| FILES.iter().any(|name| file.ends_with(name))) {
            files.iter().for_each(|file| drop(fs::remove_file(file)));
            let _ = fs::remove_dir(folder.path());
        }
    }
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

/// The bytes of dense values.
fn bytes<'a>(values: &'a Values<'_>) -> &'a [u8] {
    match values {
        Values::F16(v) => bytemuck::cast_slice(v),
        Values::BF16(v) => bytemuck::cast_slice(v),
        Values::F32(v) => bytemuck::cast_slice(v),
    }
}

impl Region {
    fn create(path: PathBuf) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let failed = |source| Error::SharedMemory { what: "create", path: path.clone(), source };
        Ok(Self { file: options.open(&path).map_err(failed)?, path: path.clone() })
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let failed = |source| Error::SharedMemory { what: "write", path: self.path.clone(), source };
        self.file.write_all_at(bytes, offset).map_err(failed)
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Error::Shortened { path: self.path.clone() })
            }
            Err(source) => Err(Error::SharedMemory { what: "read", path: self.path.clone(), source }),
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
                Err(source) => return Err(Error::SharedMemory { what: "read", path: self.path.clone(), source }),
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

    fn lay_inputs(&self, inputs: &[Tokens]) -> Result<Vec<Vec<TokensPlace>>> {
        let mut end = 0;
        let mut group = |tokens: &Activations<'static>| match tokens {
            Activations::NvFp4(matrix) => Ok(TokensPlace::Quantised(self.lay_matrix(&mut end, matrix)?)),
            Activations::Dense(dense) => {
                let values = aligned(end);
                let bytes = bytes(dense.values());
                self.write(values, bytes)?;
                end = values + bytes.len() as u64;
                Ok(TokensPlace::Dense { values, global: dense.global().value() })
            }
        };
        let inputs = inputs.iter().map(|input| input.iter().map(&mut group).collect()).collect::<Result<Vec<_>>>()?;
        self.extend(end)?;
        Ok(inputs)
    }

    fn lay_outputs(&self, problem: &Problem, outputs: usize) -> Result<Vec<Vec<u64>>> {
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

    /// Makes the file at least a page long and whole pages: an empty file cannot be mapped.
    fn extend(&self, end: u64) -> Result<()> {
        let failed = |source| Error::SharedMemory { what: "extend", path: self.path.clone(), source };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as a referee that was killed leaves it: its lock died with its owner.
    fn abandoned(root: &Path, files: &[&str]) -> PathBuf {
        let Folder { _lock: lock, place } = Folder::new(root).unwrap();
        drop(lock);
        let path = place.keep();
        files.iter().for_each(|name| fs::write(path.join(name), "bytes").unwrap());
        path
    }

    #[test]
    fn what_a_dead_referee_left_is_swept_away_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let dead = [abandoned(root.path(), &FILES), abandoned(root.path(), &[])];
        let living = Folder::new(root.path()).unwrap();
        let stranger = abandoned(root.path(), &["weights", "thesis.tex"]);
        let other = root.path().join("hammerhead-tan");
        fs::create_dir(&other).unwrap();
        sweep_in(root.path());
        assert!(dead.iter().all(|folder| !folder.exists()));
        assert!(living.place.path().exists(), "its owner lives");
        assert!(stranger.join("weights").exists() && stranger.join("thesis.tex").exists(), "no lot has such a file");
        assert!(other.exists(), "it has another name");
    }

    #[test]
    fn a_folder_goes_with_its_owner() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path()).unwrap();
        let path = folder.place.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
