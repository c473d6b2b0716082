//! The simulator as what ways are tried on, be it as the GPU that a family's kernels are for or as one that breaks a
//! rule.

use std::collections::HashMap;
use std::fmt;

use op::{Error, Result};
use ptx::Kernel;
use sim::{Buffer, Gpu, Rules};

use super::{Simulated, simulated_launches};
use crate::launch::Launch;
use crate::trial::Machine;

/// A simulated GPU that is made anew for each trial. What it breaks, it breaks in the kernels: each is changed before
/// it runs, as if the GPU did something else with it than it says.
pub struct SimulatedMachine<'b> {
    on: Simulated,
    breaks: &'b dyn Fn(&mut Kernel),
    gpu: Gpu,
    held: HashMap<u64, Buffer>,
}

impl fmt::Debug for SimulatedMachine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedMachine").field("on", &self.on).finish_non_exhaustive()
    }
}

impl<'b> SimulatedMachine<'b> {
    /// A GPU for a family's kernels, which it changes before they run.
    pub fn new(on: Simulated, breaks: &'b dyn Fn(&mut Kernel)) -> Self {
        let gpu = Gpu::new(on.limits()).with_rules(Rules::Letter);
        SimulatedMachine { on, breaks, gpu, held: HashMap::new() }
    }
}

impl Machine for SimulatedMachine<'_> {
    fn upload(&mut self, bytes: &[u8]) -> Result<u64> {
        let buffer = self.gpu.upload("a trial", bytes);
        self.held.insert(buffer.address, buffer);
        Ok(buffer.address)
    }

    fn run(&mut self, launches: &[Launch]) -> Result<()> {
        let mut launches = simulated_launches(launches)?;
        launches.iter_mut().for_each(|(kernel, _)| (self.breaks)(kernel));
        let sequence: Vec<_> = launches.iter().map(|(kernel, launch)| (kernel, launch)).collect();
        self.gpu.run_sequence(&sequence, self.on.schedule).map(drop).map_err(|fault| Error::Fault(fault))
    }

    fn download(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let Some(buffer) = self.held.get(&address) else { return Ok(()) };
        let found = self.gpu.download(*buffer).map_err(|first| Error::Unwritten { first })?;
        bytes.copy_from_slice(&found[..bytes.len()]);
        Ok(())
    }
}
