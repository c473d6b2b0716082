//! A problem with its numbers, and the three regions of memory in which a contestant finds them.
//!
//! A [`Lot`] is what is to be laid out: some sets of constants, room for inputs, room for outputs. [`Tensors`] are a
//! session's regions: files of memory that has no name in any folder (only who was given a descriptor can open them, so
//! no side sees the other's), or a GPU's memory. They are the same for as long as the session lives, and every
//! `prepare` lays them out anew.
//!
//! The referee keeps what it wrote for itself and computes every expected value from that, so a contestant that changes
//! its inputs changes nothing but its own results, and is found when the region is read again. Outputs are judged on a
//! private copy: what is written after the copy was made does not count.

use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gpu::driver::{Context, DeviceMemory, Stream};

use super::latch::{Latch, Passed, Run};
use super::memory::{Memory, OnDevice, Purpose, Unnamed, path_of};
use super::protocol::{DeviceFiles, Files, Job, Placed, Prepare};
use crate::task::{Bundle, Spec, Task, Tensor};
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
    /// Its constants in a file, written once for all sessions in the referee's own process.
    filed: Rc<OnceCell<Filed>>,
}

/// Constants in a file that nobody but the referee's own process reads.
struct Filed {
    region: Region,
    places: Vec<Vec<u64>>,
    /// What sessions have made of them ([`Tensors::kept`]).
    kept: RefCell<HashMap<String, Rc<dyn Any>>>,
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
        Self { task, constants, pattern, inputs, outputs, filed: Rc::default() }
    }

    /// The same with room for so many inputs and outputs.
    pub(crate) fn with_places(&self, places: usize) -> Self {
        Self { inputs: places, outputs: places, ..self.clone() }
    }

    /// The same without constants, for whoever looks at none.
    pub(crate) fn without_constants(&self) -> Self {
        Self { constants: Arc::default(), filed: Rc::default(), ..self.clone() }
    }

    /// The sets of constants.
    pub fn constants(&self) -> &Arc<Vec<Bundle>> {
        &self.constants
    }

    /// Its constants in a file. They are the same for every session, and writing them takes longer than a quartet does.
    fn filed(&self) -> Result<&Filed> {
        if self.filed.get().is_none() {
            let mut region = Region::of_file("constants", false)?;
            let places = region.write_sets(&self.constants)?;
            // It is empty: nobody else has this value meanwhile.
            let _ = self.filed.set(Filed { region, places, kept: RefCell::default() });
        }
        self.filed.get().ok_or_else(nothing_laid)
    }

    /// Bytes of one input and one output.
    pub(crate) fn job_bytes(&self) -> usize {
        let outputs = self.task.outputs();
        let outputs = outputs.iter().map(Spec::bytes);
        self.pattern.tensors.iter().map(|tensor| tensor.bytes.len()).chain(outputs).sum()
    }

    /// Places for inputs, which are as many as those for outputs or fewer.
    pub fn inputs(&self) -> usize {
        self.inputs
    }
}

/// Where tensors lie: three files, and for each set of constants, each input and each output the offsets of its
/// tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Places {
    /// The file of constants.
    pub constants_file: PathBuf,
    /// The file of inputs, rewritten before runs.
    pub inputs_file: PathBuf,
    /// The file of outputs.
    pub outputs_file: PathBuf,
    /// Offsets of each set's tensors.
    pub constants: Vec<Vec<u64>>,
    /// Offsets of each input's.
    pub inputs: Vec<Vec<u64>>,
    /// Offsets of each output's.
    pub outputs: Vec<Vec<u64>>,
}

/// The regions of a session.
pub struct Tensors {
    /// Of a session in the referee's own process none: it reads the lot's own file.
    constants: Option<Region>,
    inputs: Region,
    outputs: Region,
    laid: Option<Laid>,
    gpu: Option<Gpu>,
}

/// The GPU in whose memory they are, where another process uses them.
struct Gpu {
    context: &'static Context,
    stream: Arc<Stream>,
    /// What its cache is swept with, where the host's clock counts.
    swept: Option<DeviceMemory>,
    /// What runs are queued behind, where the device's clock does.
    latch: Option<Latch>,
}

/// What lies in them.
struct Laid {
    lot: Lot,
    places: Places,
    results: Vec<Spec>,
    /// What each input holds now.
    inputs: Vec<Option<Bundle>>,
}

struct Region {
    name: &'static str,
    memory: Box<dyn Memory>,
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
            constants: Some(Region::of_file("constants", false)?),
            inputs: Region::of_file("inputs", false)?,
            outputs: Region::of_file("outputs", true)?,
            laid: None,
            gpu: None,
        })
    }

    /// Inputs and outputs in a GPU's memory. Constants are in a file: they are prepared from there before anything is
    /// timed.
    pub fn on_device(context: &'static Context) -> Result<Self> {
        let stream = Arc::new(Stream::new(context)?);
        let region = |name| Region::on_device(name, context, &stream, Purpose::Here);
        Ok(Self { constants: None, inputs: region("inputs"), outputs: region("outputs"), laid: None, gpu: None })
    }

    /// All of it in a GPU's memory, which another process opens; with a latch for those who queue their runs behind it.
    pub fn shared_on_device(context: &'static Context, latched: bool) -> Result<Self> {
        let stream = Arc::new(Stream::new(context)?);
        let latch = latched.then(|| Latch::new(context, &stream)).transpose()?;
        let region = |name, purpose| Region::on_device(name, context, &stream, purpose);
        Ok(Self {
            constants: Some(region("constants", Purpose::Constants)),
            inputs: region("inputs", Purpose::Inputs),
            outputs: region("outputs", Purpose::Outputs),
            laid: None,
            gpu: Some(Gpu { context, stream, swept: None, latch }),
        })
    }

    /// Has so many bytes go through the cache of the GPU in whose memory the tensors lie, now or when the latch is
    /// opened next. Whether they do.
    pub(super) fn sweep(&mut self, bytes: u64) -> Result<bool> {
        let Some(gpu) = &mut self.gpu else { return Ok(false) };
        if let Some(latch) = &mut gpu.latch {
            return latch.sweep(bytes).map(|()| true);
        }
        if gpu.swept.as_ref().is_none_or(|swept| (swept.bytes() as u64) < bytes) {
            gpu.swept = Some(DeviceMemory::new(gpu.context, "a sweep of its cache", bytes as usize)?);
        }
        if let Some(swept) = &gpu.swept {
            gpu.context.reset_persisting()?;
            swept.fill_now(0, &gpu.stream)?;
        }
        Ok(true)
    }

    /// Shows a contestant the inputs of some jobs: inside the clock.
    pub(super) fn show_inputs(&self, jobs: &[Job]) -> Result<()> {
        self.inputs.memory.pass(&self.read_in(jobs))
    }

    /// Takes what a contestant has written in some jobs. What it writes later is not there.
    pub(super) fn take_outputs(&self, jobs: &[Job]) -> Result<()> {
        self.outputs.memory.pass(&self.written_in(jobs))
    }

    /// The parts of the inputs that some jobs read.
    fn read_in(&self, jobs: &[Job]) -> Vec<(usize, usize)> {
        let Some(Laid { lot, places, .. }) = &self.laid else { return Vec::new() };
        let part = |(tensor, &at): (&Tensor, &u64)| (at as usize, tensor.spec.bytes());
        jobs.iter().flat_map(|job| lot.pattern.tensors.iter().zip(&places.inputs[job.input]).map(part)).collect()
    }

    /// The parts of the outputs that some jobs write.
    fn written_in(&self, jobs: &[Job]) -> Vec<(usize, usize)> {
        let Some(Laid { places, results, .. }) = &self.laid else { return Vec::new() };
        let part = |(spec, &at): (&Spec, &u64)| (at as usize, spec.bytes());
        jobs.iter().flat_map(|job| results.iter().zip(&places.outputs[job.output]).map(part)).collect()
    }

    /// Closes the latch for a run, if there is one: what its words are to hold next.
    pub(super) fn close_latch(&mut self) -> Option<u32> {
        Some(self.gpu.as_mut()?.latch.as_mut()?.close())
    }

    /// Opens the latch for jobs that were queued behind it.
    pub(super) fn open_latch(&mut self, jobs: &[Job], limit: Duration) -> Result<Passed> {
        let (shown, taken) = (self.read_in(jobs), self.written_in(jobs));
        let (inputs, outputs) = (self.inputs.memory.as_ref(), self.outputs.memory.as_ref());
        let latch = self.gpu.as_mut().and_then(|gpu| gpu.latch.as_mut()).ok_or_else(nothing_laid)?;
        latch.open(&Run { inputs, shown, outputs, taken, limit })
    }

    /// Takes the latch away: the host's clock counts.
    pub(super) fn forget_latch(&mut self) {
        if let Some(gpu) = &mut self.gpu {
            gpu.latch = None;
        }
    }

    /// The name of the problem that is laid out.
    pub(super) fn problem(&self) -> String {
        self.laid.as_ref().map(|laid| laid.lot.task.name()).unwrap_or_default()
    }

    /// Where inputs and outputs begin in a GPU's memory, if they are there.
    pub fn addresses(&self) -> Option<(u64, u64)> {
        self.inputs.memory.address().zip(self.outputs.memory.address())
    }

    /// The descriptors that a contestant is to inherit.
    pub(super) fn lent(&self) -> Vec<RawFd> {
        let lent = |region: &Region| region.memory.lent().map(AsRawFd::as_raw_fd);
        self.regions().filter_map(lent).collect()
    }

    /// Lays out a problem in place of the one before. There is no input yet.
    pub fn lay(&mut self, lot: &Lot) -> Result<()> {
        self.laid = None;
        let results = lot.task.outputs();
        let (constants_file, constants) = match &mut self.constants {
            Some(region) => (region.path(), region.write_sets(&lot.constants)?),
            None => lot.filed().map(|filed| (filed.region.path(), filed.places.clone()))?,
        };
        let places = Places {
            constants_file,
            inputs_file: self.inputs.path(),
            outputs_file: self.outputs.path(),
            constants,
            inputs: self.inputs.lay(&vec![sizes(&lot.pattern); lot.inputs])?,
            outputs: self.outputs.lay(&vec![results.iter().map(Spec::bytes).collect(); lot.outputs])?,
        };
        self.laid = Some(Laid { lot: lot.clone(), places, results, inputs: vec![None; lot.inputs] });
        Ok(())
    }

    fn laid(&self) -> Result<&Laid> {
        self.laid.as_ref().ok_or_else(nothing_laid)
    }

    /// The message that tells a contestant of all this, with an id of its own each time.
    pub fn message(&self, id: String) -> Result<Prepare> {
        let Laid { lot, places, results, .. } = self.laid()?;
        let memory = self.device_memory()?;
        let of_bundle = |(bundle, offsets): (&Bundle, &Vec<u64>)| {
            let tensors = bundle.tensors.iter().zip(offsets);
            tensors.map(|(tensor, &offset)| Placed::at(&tensor.spec, offset)).collect()
        };
        let output = |offsets: &Vec<u64>| results.iter().zip(offsets).map(|(spec, &at)| Placed::at(spec, at)).collect();
        let files = memory.is_none().then(|| Files {
            constants: places.constants_file.clone(),
            inputs: places.inputs_file.clone(),
            outputs: places.outputs_file.clone(),
        });
        Ok(Prepare {
            id,
            operation: lot.task.operation(),
            problem: lot.task.described(),
            files,
            memory,
            constants: lot.constants.iter().zip(&places.constants).map(of_bundle).collect(),
            inputs: places.inputs.iter().map(|offsets| of_bundle((&lot.pattern, offsets))).collect(),
            outputs: places.outputs.iter().map(output).collect(),
        })
    }

    /// By what another process opens a GPU's memory, where that is where tensors lie.
    fn device_memory(&self) -> Result<Option<DeviceFiles>> {
        let Some(constants) = &self.constants else { return Ok(None) };
        let [constants, inputs, outputs] =
            [constants, &self.inputs, &self.outputs].map(|region| region.memory.handle());
        Ok(match (constants?, inputs?, outputs?) {
            (Some(constants), Some(inputs), Some(outputs)) => {
                let latch = self.gpu.as_ref().and_then(|gpu| gpu.latch.as_ref()).map(Latch::handle).transpose()?;
                Some(DeviceFiles { constants, inputs, outputs, latch })
            }
            _ => None,
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

    /// What sessions in the referee's own process make of the lot's constants under a name: by the first that asks, and
    /// kept for as long as the lot is.
    pub fn kept<T: Any>(&self, name: &str, make: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        let kept = &self.laid()?.lot.filed()?.kept;
        let known = kept.borrow().get(name).map(Rc::clone);
        if let Some(known) = known.and_then(|known| known.downcast().ok()) {
            return Ok(known);
        }
        let made = Rc::new(make()?);
        kept.borrow_mut().insert(name.to_owned(), Rc::<T>::clone(&made));
        Ok(made)
    }

    /// What an input holds now.
    pub fn input(&self, input: usize) -> Result<&Bundle> {
        self.laid()?.inputs[input].as_ref().ok_or_else(nothing_laid)
    }

    /// Writes an input for each of these jobs, and poisons their outputs.
    pub fn write(&mut self, jobs: &[Job], inputs: Vec<Bundle>, poison: Poison) -> Result<()> {
        let Laid { places, .. } = self.laid()?;
        self.inputs.write_all(jobs.iter().map(|job| &places.inputs[job.input]).zip(&inputs))?;
        self.outputs.memory.fill(&self.written_in(jobs), poison.byte())?;
        let laid = self.laid.as_mut().ok_or_else(nothing_laid)?;
        jobs.iter().zip(inputs).for_each(|(job, bundle)| laid.inputs[job.input] = Some(bundle));
        Ok(())
    }

    /// A private copy of the bytes of each job's output, a tensor each; [`Error::Shortened`] where a contestant cut the
    /// file off.
    pub fn read_outputs(&self, jobs: &[Job]) -> Result<Vec<Vec<Vec<u8>>>> {
        let (tensors, each) = (self.outputs.read(&self.written_in(jobs))?, self.laid()?.results.len());
        let mut tensors = tensors.into_iter();
        Ok(jobs.iter().map(|_| tensors.by_ref().take(each).collect()).collect())
    }

    /// Bytes that a contestant has made its files hold beyond what was laid there.
    pub(super) fn excess(&self) -> u64 {
        self.regions().map(|region| region.memory.excess()).sum()
    }

    /// Whether the inputs of these jobs still hold what was written.
    pub fn inputs_are_intact(&self, jobs: &[Job]) -> Result<bool> {
        let Some(found) = self.inputs.memory.read(&self.read_in(jobs))? else { return Ok(false) };
        let mut found = found.iter();
        for job in jobs {
            let mut tensors = self.input(job.input)?.tensors.iter();
            if !tensors.all(|tensor| found.next() == Some(&tensor.bytes)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the constants still are what was written.
    pub fn constants_are_intact(&self) -> Result<bool> {
        // The lot's own file is no contestant's.
        let Some((Laid { lot, places, .. }, region)) = self.laid.as_ref().zip(self.constants.as_ref()) else {
            return Ok(true);
        };
        for (set, offsets) in lot.constants.iter().zip(&places.constants) {
            for (Tensor { bytes, .. }, &offset) in set.tensors.iter().zip(offsets) {
                if !region.holds(offset as usize, bytes)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The regions of its own.
    fn regions(&self) -> impl Iterator<Item = &Region> {
        self.constants.iter().chain([&self.inputs, &self.outputs])
    }
}

/// Bytes of each tensor.
fn sizes(bundle: &Bundle) -> Vec<usize> {
    bundle.tensors.iter().map(|tensor| tensor.spec.bytes()).collect()
}

fn nothing_laid() -> Error {
    Error::Protocol { reason: "nothing was laid out, or an input was never written".to_owned() }
}

fn aligned(offset: u64) -> u64 {
    offset.next_multiple_of(ALIGNMENT)
}

impl Region {
    fn of_file(name: &'static str, writable: bool) -> Result<Self> {
        Ok(Self { name, memory: Box::new(Unnamed::create(name, writable)?) })
    }

    fn on_device(name: &'static str, context: &'static Context, stream: &Arc<Stream>, purpose: Purpose) -> Self {
        Self { name, memory: Box::new(OnDevice::create(name, context, stream, purpose)) }
    }

    /// Where a contestant finds it that has inherited the descriptor; nowhere where it is no file.
    fn path(&self) -> PathBuf {
        self.memory.lent().map(path_of).unwrap_or_default()
    }

    /// Places for tensors of so many bytes, in sets. What was there is forgotten; what will be there is not yet known
    /// to anyone.
    fn lay(&mut self, sets: &[Vec<usize>]) -> Result<Vec<Vec<u64>>> {
        let mut end = 0;
        let mut place = |bytes: &usize| {
            let start = aligned(end);
            end = start + *bytes as u64;
            start
        };
        let places = sets.iter().map(|set| set.iter().map(&mut place).collect()).collect();
        // At least a page, and whole pages: an empty file cannot be mapped.
        self.memory.make_room(aligned(end.max(1)))?;
        Ok(places)
    }

    /// Lays out sets of tensors, and writes them.
    fn write_sets(&mut self, sets: &[Bundle]) -> Result<Vec<Vec<u64>>> {
        let places = self.lay(&sets.iter().map(sizes).collect::<Vec<_>>())?;
        self.write_all(places.iter().zip(sets))?;
        Ok(places)
    }

    fn write_all<'b>(&self, bundles: impl Iterator<Item = (&'b Vec<u64>, &'b Bundle)>) -> Result<()> {
        let tensors = bundles.flat_map(|(offsets, bundle)| bundle.tensors.iter().zip(offsets));
        let part = |(tensor, &at): (&'b Tensor, &u64)| (at as usize, &tensor.bytes[..]);
        self.memory.write(&tensors.map(part).collect::<Vec<_>>())
    }

    fn read(&self, parts: &[(usize, usize)]) -> Result<Vec<Vec<u8>>> {
        self.memory.read(parts)?.ok_or_else(|| Error::Shortened { path: self.name.into() })
    }

    /// Whether these bytes are there; a file that became too short does not hold them.
    fn holds(&self, offset: usize, expected: &[u8]) -> Result<bool> {
        const CHUNK: usize = 1 << 20;
        for (index, expected) in expected.chunks(CHUNK).enumerate() {
            let found = self.memory.read(&[(offset + index * CHUNK, expected.len())])?;
            if found.is_none_or(|found| found[0] != expected) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
