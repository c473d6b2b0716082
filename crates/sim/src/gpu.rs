//! A device: limits, rules and memory, on which kernels run.

use std::sync::Arc;

use ptx::Kernel;

use crate::blocks::Findings;
use crate::branch::{self, Mutants};
use crate::error::{Fault, FaultKind};
use crate::invocation::Invocation;
use crate::limits::{Limits, Rules};
use crate::machine::{self, Machine};
use crate::memory::{Buffer, GlobalMemory};
use crate::profile::Profile;
use crate::schedule::Schedule;
use crate::timeline::{Recorder, Timeline};

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
        self.upload_beyond(name, bytes, 0)
    }

    /// The same, so many bytes beyond an address that suits every access: shows which alignment a kernel relies on.
    pub fn upload_beyond(&mut self, name: &str, bytes: &[u8], beyond: u64) -> Buffer {
        self.memory.add(name, bytes.to_vec(), true, beyond)
    }

    /// A buffer that nobody has written yet.
    pub fn alloc(&mut self, name: &str, bytes: usize) -> Buffer {
        self.alloc_beyond(name, bytes, 0)
    }

    /// The same, so many bytes beyond an address that suits every access.
    pub fn alloc_beyond(&mut self, name: &str, bytes: usize, beyond: u64) -> Buffer {
        self.memory.add(name, vec![0; bytes], false, beyond)
    }

    /// Writes bytes to a place in a buffer that holds as many, as the host would between two launches.
    pub fn write(&mut self, buffer: Buffer, at: usize, bytes: &[u8]) {
        let found = self.memory.buffers.iter_mut().find(|contents| contents.address == buffer.address);
        let place = found.and_then(|contents| Arc::make_mut(&mut contents.data).get_mut(at..at + bytes.len()));
        place.into_iter().for_each(|place| place.copy_from_slice(bytes));
    }

    /// Declares a buffer to be what the preceding grid writes: the kernel may touch it only after
    /// `griddepcontrol.wait`.
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

    /// Copies what was written of a buffer over these bytes, and leaves the others as they are.
    pub fn copy_written(&self, buffer: Buffer, to: &mut [u8]) {
        let found = self.memory.buffers.iter().find(|contents| contents.address == buffer.address);
        let Some(contents) = found else { return };
        let whole = contents.written.missing(0, contents.data.len()).is_none();
        for (at, (to, byte)) in to.iter_mut().zip(contents.data.iter()).enumerate() {
            if whole || contents.written.missing(at, 1).is_none() {
                *to = *byte;
            }
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

    /// Runs kernels of which each may begin before its predecessor has ended (programmatic dependent launch). What an
    /// earlier one has written, or still reads, may be touched only behind `griddepcontrol.wait`; and that tells of the
    /// grids before the predecessor only if the predecessor has waited, too. A predecessor whose blocks wait before
    /// they let the next grid begin tells it of the grids before itself without a wait.
    ///
    /// A kernel that runs without a fault is still one too few if [`Kernel::check`] says that no GPU would take it:
    /// that is a fault, too.
    pub fn run_sequence(
        &mut self,
        sequence: &[(&Kernel, &Invocation)],
        schedule: Schedule,
    ) -> Result<Vec<Profile>, Box<Fault>> {
        let mut grids = machine::grids(sequence, None, &self.limits, schedule)?;
        let Some(first) = grids.pop_front() else { return Ok(Vec::new()) };
        let (kept, memory) = (self.memory.buffers.len(), std::mem::take(&mut self.memory));
        let mut machine = Machine::new((first, grids), (&self.limits, self.rules), memory, schedule);
        let run = machine.run();
        self.memory = machine.core.memory;
        // Variables are gone with the kernel.
        self.memory.buffers.truncate(kept);
        run?;
        sequence.iter().try_for_each(|(kernel, _)| legal(kernel, &illegal(kernel), schedule))?;
        Ok(machine.profiles)
    }

    /// Runs a kernel to its end under a schedule, and goes on after what breaks a rule as long as there is a way to:
    /// everything that was found, once per rule and pair of instructions, and the profile of a run that came to its
    /// end.
    pub fn survey(
        &mut self,
        kernel: &Kernel,
        launch: &Invocation,
        schedule: Schedule,
    ) -> (Vec<Fault>, Option<Profile>) {
        let (found, profile, _) = self.observe((kernel, launch), schedule, None);
        (found, profile)
    }

    /// Runs a kernel as [`Gpu::survey`] does, and says what its first cluster did when.
    pub fn timeline(&mut self, kernel: &Kernel, launch: &Invocation, schedule: Schedule) -> Timeline {
        self.observe((kernel, launch), schedule, Some(Box::default())).2
    }

    fn observe(
        &mut self,
        (kernel, launch): (&Kernel, &Invocation),
        schedule: Schedule,
        recorder: Option<Box<Recorder>>,
    ) -> (Vec<Fault>, Option<Profile>, Timeline) {
        let sequence = [(kernel, launch)];
        let mut grids = match machine::grids(&sequence, None, &self.limits, schedule) {
            Ok(grids) => grids,
            Err(fault) => return (vec![*fault], None, Timeline::default()),
        };
        let Some(first) = grids.pop_front() else { return (Vec::new(), None, Timeline::default()) };
        let (kept, memory) = (self.memory.buffers.len(), std::mem::take(&mut self.memory));
        let mut machine = Machine::new((first, grids), (&self.limits, self.rules), memory, schedule);
        machine.core.findings = Some(Findings::default());
        machine.core.recorder = recorder;
        let run = machine.run().and_then(|_| legal(kernel, &illegal(kernel), schedule));
        self.memory = machine.core.memory;
        // Variables are gone with the kernel.
        self.memory.buffers.truncate(kept);
        let mut found = machine.core.findings.unwrap_or_default().all;
        let ended = run.is_ok();
        found.extend(run.err().map(|fault| *fault));
        let timeline = machine.core.recorder.map(|recorder| recorder.timeline).unwrap_or_default();
        (found, ended.then(|| machine.profiles.pop()).flatten(), timeline)
    }

    /// Runs some mutants of a kernel, by number, each as [`Gpu::run_sequence`] would, in the kernel's place in a
    /// sequence (wherever that refers to the original itself) and on a device like this; has `judge` look at the device
    /// and the profiles, or at the fault, and gives what it says of each. What mutants have in common with the original
    /// is run once for all of them.
    pub fn run_mutants<'k, T>(
        &self,
        sequence: &[(&'k Kernel, &'k Invocation)],
        (mutants, numbers): (&Mutants<'k>, &[usize]),
        schedule: Schedule,
        judge: impl Fn(Result<(&Gpu, &[Profile]), Box<Fault>>) -> T,
    ) -> Vec<T> {
        let mut found: Vec<Option<T>> = numbers.iter().map(|_| None).collect();
        let broken = |kernel: &Kernel| std::ptr::eq(kernel, mutants.original);
        if let Ok(mut grids) = machine::grids(sequence, mutants.program.as_ref(), &self.limits, schedule)
            && sequence.iter().any(|(kernel, _)| broken(kernel))
        {
            let launches: Vec<_> = sequence.iter().filter(|(kernel, _)| broken(kernel)).collect();
            let runs = |mutant: &Kernel| launches.iter().all(|(_, launch)| launch.check(mutant, &self.limits).is_ok());
            let branch = |number: &usize| mutants.all[*number].1.as_ref().filter(|_| runs(mutants.all[*number].0));
            let branches = numbers.iter().enumerate().filter_map(|(at, number)| Some((at, branch(number)?))).collect();
            if let Some(first) = grids.pop_front() {
                let device = (&self.limits, self.rules);
                let trunk = Machine::new((first, grids), device, self.memory.clone(), schedule);
                branch::run_all(trunk, branches, |at, machine, run| {
                    let memory = std::mem::take(&mut machine.core.memory);
                    let gpu = Gpu { limits: self.limits, rules: self.rules, memory };
                    let mutant = mutants.all[numbers[at]].0;
                    let illegal = || mutants.illegal[numbers[at]].get_or_init(|| illegal(mutant));
                    let run = run.and_then(|()| legal(mutant, illegal(), schedule));
                    found[at] = Some(judge(run.map(|()| (&gpu, &machine.profiles[..]))));
                    machine.core.memory = gpu.memory;
                });
            }
        }
        let alone = |mutant: &Kernel| {
            let launches = sequence.iter().map(|(kernel, launch)| match broken(kernel) {
                true => (mutant, *launch),
                false => (*kernel, *launch),
            });
            let sequence: Vec<(&Kernel, &Invocation)> = launches.collect();
            let mut gpu = self.clone();
            match gpu.run_sequence(&sequence, schedule) {
                Ok(profiles) => judge(Ok((&gpu, &profiles))),
                Err(fault) => judge(Err(fault)),
            }
        };
        let all = found.into_iter().zip(numbers);
        all.map(|(found, number)| found.unwrap_or_else(|| alone(mutants.all[*number].0))).collect()
    }

    /// Runs a kernel to its end under a schedule.
    pub fn run(&mut self, kernel: &Kernel, launch: &Invocation, schedule: Schedule) -> Result<Profile, Box<Fault>> {
        let mut profiles = self.run_sequence(&[(kernel, launch)], schedule)?;
        Ok(profiles.pop().unwrap_or_default())
    }
}

/// What a GPU would have against the kernel, if it would not take it. What depends on its values was found by running
/// it; this is asked last, since few kernels that are broken come so far; and not of kernels that were read from a
/// text, for which another compiler answers.
fn illegal(kernel: &Kernel) -> Option<String> {
    if kernel.foreign {
        return None;
    }
    kernel.check().err().map(|error| error.to_string())
}

/// That as a fault.
fn legal(kernel: &Kernel, illegal: &Option<String>, schedule: Schedule) -> Result<(), Box<Fault>> {
    let Some(what) = illegal.clone() else { return Ok(()) };
    let (kind, kernel) = (FaultKind::Illegal { what }, kernel.name.clone());
    Err(Box::new(Fault { kind, site: None, recent: Vec::new(), schedule, kernel }))
}
