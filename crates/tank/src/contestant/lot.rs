//! A problem with its numbers, and the three files in which a contestant finds them.
//!
//! A [`Lot`] is what is to be laid out: some sets of constants, room for inputs, room for outputs. [`Tensors`] are a session's files,
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

use serde_json::Value;

use super::protocol::{FIRST_VERSION, Files, Placed, Prepare, Prepared};
use crate::task::{Bundle, Places, Spec, Task, Tensor};
use crate::{Error, Result};

/// Every tensor starts at a multiple of this: a page, so that a mapping can be made of any of them.
const ALIGNMENT: u64 = 4096;

/// A problem, its constants, and how many inputs and outputs there are to be room for.
#[derive(Clone)]
pub struct Lot {
    task: Arc<dyn Task>,
    constants: Arc<Vec<Bundle>>,
    /// An input like all that will come. It is never shown.
    pattern: Bundle,
    inputs: usize,
    outputs: usize,
}

impl Lot {
    /// A lot with these constants, and inputs like the one given.
    pub fn new(
        task: Arc<dyn Task>,
        constants: Arc<Vec<Bundle>>,
        pattern: Bundle,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        Self { task, constants, pattern, inputs, outputs }
    }

    /// The sets of constants.
    pub fn constants(&self) -> &Arc<Vec<Bundle>> {
        &self.constants
    }

    /// Places for inputs, which are as many as those for outputs or fewer.
    pub fn inputs(&self) -> usize {
        self.inputs
    }
}

/// The files of a session.
pub struct Tensors {
    constants: Region,
    inputs: Region,
    outputs: Region,
    laid: Option<Laid>,
}

/// What lies in them.
struct Laid {
    lot: Lot,
    places: Places,
    results: Vec<Spec>,
    /// What each input holds now.
    inputs: Vec<Option<Bundle>>,
}

#[derive(Debug)]
struct Region {
    name: &'static str,
    file: File,
    /// What the contestant is given, for reading only where that is all it may do.
    lent: File,
}

/// Which poison fills an output: two that differ in every element, each not a number in every type that has such.
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
            constants: Region::create("constants", false)?,
            inputs: Region::create("inputs", false)?,
            outputs: Region::create("outputs", true)?,
            laid: None,
        })
    }

    /// The descriptors that a contestant is to inherit.
    pub(super) fn lent(&self) -> Vec<RawFd> {
        [&self.constants, &self.inputs, &self.outputs].map(|region| region.lent.as_raw_fd()).to_vec()
    }

    /// Lays out a problem in place of the one before. There is no input yet.
    pub fn lay(&mut self, lot: &Lot) -> Result<()> {
        self.laid = None;
        let results = lot.task.outputs();
        let specs = |bundle: &Bundle| bundle.tensors.iter().map(|tensor| tensor.spec.bytes()).collect::<Vec<_>>();
        let sets: Vec<Vec<usize>> = lot.constants.iter().map(specs).collect();
        let places = Places {
            constants_file: self.constants.path(),
            inputs_file: self.inputs.path(),
            outputs_file: self.outputs.path(),
            constants: self.constants.lay(&sets)?,
            inputs: self.inputs.lay(&vec![specs(&lot.pattern); lot.inputs])?,
            outputs: self.outputs.lay(&vec![results.iter().map(Spec::bytes).collect(); lot.outputs])?,
        };
        for (set, offsets) in lot.constants.iter().zip(&places.constants) {
            self.constants.write_all(set, offsets)?;
        }
        self.laid = Some(Laid { lot: lot.clone(), places, results, inputs: vec![None; lot.inputs] });
        Ok(())
    }

    fn laid(&self) -> Result<&Laid> {
        self.laid.as_ref().ok_or_else(nothing_laid)
    }

    /// The message that tells a contestant of all this in a version of the protocol, with an id of its own each time.
    pub(super) fn message(&self, id: String, version: u32) -> Result<Prepare> {
        let Laid { lot, places, results, .. } = self.laid()?;
        if version == FIRST_VERSION {
            return Ok(Prepare { id, prepared: Prepared::First(self.words_of_first_version()?) });
        }
        let of_bundle = |(bundle, offsets): (&Bundle, &Vec<u64>)| {
            let tensors = bundle.tensors.iter().zip(offsets);
            tensors.map(|(tensor, &offset)| Placed::at(&tensor.spec, offset)).collect()
        };
        let output = |offsets: &Vec<u64>| results.iter().zip(offsets).map(|(spec, &at)| Placed::at(spec, at)).collect();
        let files = Files {
            constants: places.constants_file.clone(),
            inputs: places.inputs_file.clone(),
            outputs: places.outputs_file.clone(),
        };
        let prepared = Prepared::Second {
            operation: lot.task.operation(),
            problem: lot.task.described(),
            files,
            constants: lot.constants.iter().zip(&places.constants).map(of_bundle).collect(),
            inputs: places.inputs.iter().map(|offsets| of_bundle((&lot.pattern, offsets))).collect(),
            outputs: places.outputs.iter().map(output).collect(),
        };
        Ok(Prepare { id, prepared })
    }

    /// The same in the first version of the protocol, for the one operation that it has words for.
    pub fn words_of_first_version(&self) -> Result<Value> {
        let Laid { lot, places, .. } = self.laid()?;
        lot.task.first_version(places, &lot.constants, &lot.pattern).ok_or_else(|| {
            let operation = lot.task.operation();
            Error::Protocol { reason: format!("version 1 has no words for {operation}; answer hello with version 2") }
        })
    }

    /// Where everything lies.
    pub fn places(&self) -> Result<&Places> {
        Ok(&self.laid()?.places)
    }

    /// The constants that are used.
    pub fn constants(&self) -> Result<&Arc<Vec<Bundle>>> {
        Ok(&self.laid()?.lot.constants)
    }

    /// What an input holds now.
    pub fn input(&self, input: usize) -> Result<&Bundle> {
        self.laid()?.inputs[input].as_ref().ok_or_else(nothing_laid)
    }

    /// Rewrites an input in its place.
    pub fn write_input(&mut self, input: usize, bundle: Bundle) -> Result<()> {
        let laid = self.laid.as_mut().ok_or_else(nothing_laid)?;
        self.inputs.write_all(&bundle, &laid.places.inputs[input])?;
        laid.inputs[input] = Some(bundle);
        Ok(())
    }

    /// Poisons an output.
    pub fn poison(&self, output: usize, poison: Poison) -> Result<()> {
        let Laid { places, results, .. } = self.laid()?;
        for (spec, &place) in results.iter().zip(&places.outputs[output]) {
            self.outputs.write(place, &vec![poison.byte(); spec.bytes()])?;
        }
        Ok(())
    }

    /// A private copy of an output's bytes, a tensor each; [`Error::Shortened`] where a contestant cut the file off.
    pub fn read_output(&self, output: usize) -> Result<Vec<Vec<u8>>> {
        let Laid { places, results, .. } = self.laid()?;
        results.iter().zip(&places.outputs[output]).map(|(spec, &at)| self.outputs.read(at, spec.bytes())).collect()
    }

    /// Whether an input still holds what was written.
    pub fn input_is_intact(&self, input: usize) -> Result<bool> {
        self.inputs.hold_all(self.input(input)?, &self.laid()?.places.inputs[input])
    }

    /// Whether the constants still are what was written.
    pub fn constants_are_intact(&self) -> Result<bool> {
        let Some(Laid { lot, places, .. }) = &self.laid else { return Ok(true) };
        for (set, offsets) in lot.constants.iter().zip(&places.constants) {
            if !self.constants.hold_all(set, offsets)? {
                return Ok(false);
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

    /// Places for tensors of so many bytes, in sets. What was there is forgotten; what will be there is not yet known to anyone.
    fn lay(&self, sets: &[Vec<usize>]) -> Result<Vec<Vec<u64>>> {
        let failed = |source| Error::SharedMemory { what: "make room in", path: self.name.into(), source };
        // Emptied first, so that its memory is given back.
        self.file.set_len(0).map_err(failed)?;
        let mut end = 0;
        let mut place = |bytes: &usize| {
            let start = aligned(end);
            end = start + *bytes as u64;
            start
        };
        let places = sets.iter().map(|set| set.iter().map(&mut place).collect()).collect();
        // At least a page, and whole pages: an empty file cannot be mapped.
        self.file.set_len(aligned(end.max(1))).map_err(failed)?;
        Ok(places)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let failed = |source| Error::SharedMemory { what: "write", path: self.name.into(), source };
        self.file.write_all_at(bytes, offset).map_err(failed)
    }

    fn write_all(&self, bundle: &Bundle, offsets: &[u64]) -> Result<()> {
        let mut tensors = bundle.tensors.iter().zip(offsets);
        tensors.try_for_each(|(Tensor { bytes, .. }, &offset)| self.write(offset, bytes))
    }

    fn hold_all(&self, bundle: &Bundle, offsets: &[u64]) -> Result<bool> {
        for (Tensor { bytes, .. }, &offset) in bundle.tensors.iter().zip(offsets) {
            if !self.holds(offset, bytes)? {
                return Ok(false);
            }
        }
        Ok(true)
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
}
