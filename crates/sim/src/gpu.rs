//! A device: limits, rules and memory, on which kernels run.

use ptx::Kernel;

use crate::error::Fault;
use crate::invocation::Invocation;
use crate::limits::{Limits, Rules};
use crate::machine;
use crate::memory::{Buffer, GlobalMemory};
use crate::profile::Profile;
use crate::schedule::Schedule;

/// A device: limits and memory. Buffers stay as a kernel left them, so kernels can follow each other.
#[derive(Clone, Debug)]
pub struct Gpu {
    limits: Limits,
    rules: Rules,
    memory: GlobalMemory,
}

impl Gpu {
    /// A device without buffers.
    pub fn new(limits: Limits) -> Self {
        Gpu { limits, rules: Rules::default(), memory: GlobalMemory::default() }
    }

    /// The same device with other rules: [`Rules::Letter`] is the strict mode.
    pub fn with_rules(self, rules: Rules) -> Self {
        Gpu { rules, ..self }
    }

    /// The same device that gives a kernel up after so many instructions.
    pub fn with_patience(mut self, instructions: u64) -> Self {
        self.limits.instructions = instructions;
        self
    }

    /// A buffer that holds these bytes.
    pub fn upload(&mut self, name: &str, bytes: &[u8]) -> Buffer {
        self.memory.add(name, bytes.to_vec(), true)
    }

    /// A buffer that nobody has written yet.
    pub fn alloc(&mut self, name: &str, bytes: usize) -> Buffer {
        self.memory.add(name, vec![0; bytes], false)
    }

    /// Declares a buffer to be what the preceding grid writes: the kernel may touch it only after `griddepcontrol.wait`.
    pub fn await_predecessor(&mut self, buffer: Buffer) {
        let found = self.memory.buffers.iter_mut().find(|contents| contents.address == buffer.address);
        found.into_iter().for_each(|contents| contents.awaited = true);
    }

    /// The bytes of a buffer, or how many of its leading bytes were written before the first that was not.
    pub fn download(&self, buffer: Buffer) -> Result<&[u8], usize> {
        let found = self.memory.buffers.iter().find(|contents| contents.address == buffer.address);
        let contents = found.ok_or(0usize)?;
        match contents.written.missing(0, contents.data.len()) {
            None => Ok(&contents.data),
            Some(first) => Err(first),
        }
    }

    /// A buffer's bytes as f32, with NaN in place of those never written.
    pub fn floats(&self, buffer: Buffer) -> Vec<f32> {
        let Some(contents) = self.memory.buffers.iter().find(|contents| contents.address == buffer.address) else {
            return Vec::new();
        };
        let word = |at: usize| [0, 1, 2, 3].map(|byte| contents.data[4 * at + byte]);
        let value = |at: usize| match contents.written.missing(4 * at, 4) {
            None => f32::from_le_bytes(word(at)),
            Some(_) => f32::NAN,
        };
        (0..contents.data.len() / 4).map(value).collect()
    }

    /// Runs kernels of which each may begin before its predecessor has ended (programmatic dependent launch). What an earlier one
    /// has written, or still reads, may be touched only behind `griddepcontrol.wait`; and that tells of the grids before the
    /// predecessor only if the predecessor has waited, too. A predecessor whose blocks wait before they let the next grid begin
    /// tells it of the grids before itself without a wait.
    pub fn run_sequence(
        &mut self,
        sequence: &[(&Kernel, &Invocation)],
        schedule: Schedule,
    ) -> Result<Vec<Profile>, Box<Fault>> {
        machine::run(sequence, (&self.limits, self.rules), &mut self.memory, schedule)
    }

    /// Runs a kernel to its end under a schedule.
    pub fn run(&mut self, kernel: &Kernel, launch: &Invocation, schedule: Schedule) -> Result<Profile, Box<Fault>> {
        let mut profiles = self.run_sequence(&[(kernel, launch)], schedule)?;
        Ok(profiles.pop().unwrap_or_default())
    }
}
