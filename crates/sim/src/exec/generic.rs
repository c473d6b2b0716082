//! Generic addresses. Shared memory and the parameters are windows among them, and the rest is device memory; of it,
//! constants and what threads have of their own are parts.

use ptx::instr::{Memory, Width, Window};
use ptx::{RegId, Space, VariableSpace};

use super::Exec;
use crate::error::FaultKind;
use crate::lanes::{Lanes, lanes, mask_of};
use crate::memory::SharedMemory;

impl Exec<'_, '_> {
    /// Whether an address is in a window. That of the parameters is a part of the global one.
    pub(crate) fn in_window(&self, window: Window, address: u64) -> bool {
        let shared = SharedMemory::of_generic(address).map(|at| (at / SharedMemory::WINDOW) as usize);
        let of_variable = || {
            let variables = self.core.variables.iter().zip(&self.core.program.kernel.variables);
            let found = self.core.memory.find(address, 1).map(|span| self.core.memory.buffers[span.buffer].address);
            variables.into_iter().find(|(start, _)| found == Some(**start)).map(|(_, variable)| variable.space)
        };
        match window {
            Window::Shared => shared == Some(self.rank),
            Window::Cluster => shared.is_some_and(|rank| rank < self.cluster.blocks.len()),
            Window::Param => self.core.launch.is_param(address),
            Window::Constant => of_variable() == Some(VariableSpace::Constant),
            Window::Local => of_variable() == Some(VariableSpace::Local),
            Window::Global => shared.is_none() && of_variable().is_none_or(|space| space == VariableSpace::Global),
        }
    }

    /// An access by generic addresses: the lanes of each window make it together, one window after the other.
    pub(crate) fn by_windows(&mut self, op: &Memory, addresses: &Lanes) -> Result<(), FaultKind> {
        let here = self.mask;
        let shared = here & mask_of(|lane| SharedMemory::of_generic(addresses[lane]).is_some());
        let loads = matches!(op, Memory::Load { .. });
        let params = here & !shared & mask_of(|lane| loads && self.core.launch.is_param(addresses[lane]));
        if shared != 0 {
            self.mask = shared;
            let near = addresses.map(|address| SharedMemory::of_generic(address).unwrap_or_default().into());
            self.access(op, Space::Cluster, &near)?;
        }
        if let (Memory::Load { width, dsts, .. }, 1..) = (op, params) {
            self.mask = params;
            self.load_params(*width, dsts, addresses)?;
        }
        let rest = here & !shared & !params;
        if rest != 0 {
            self.mask = rest;
            if let Memory::Store { srcs, .. } = op {
                self.check_stored(srcs)?;
            }
            self.access(op, Space::Global, addresses)?;
        }
        self.mask = here;
        Ok(())
    }

    /// What was never written may be put into shared memory, and not into what outlives the block.
    pub(super) fn check_stored(&mut self, srcs: &[RegId]) -> Result<(), FaultKind> {
        for src in srcs {
            let tainted = self.warp.tainted(*src) & self.mask;
            if tainted != 0 {
                self.offend(self.core.uninitialised(self.warp.origin(*src)))?;
                self.warp.untaint(*src, tainted);
            }
        }
        Ok(())
    }

    fn load_params(&mut self, width: Width, dsts: &[RegId], addresses: &Lanes) -> Result<(), FaultKind> {
        for (dst, at) in dsts.iter().zip((0..).step_by(width.bytes() as usize)) {
            let mut values = [0; 32];
            for lane in lanes(self.mask) {
                values[lane] = self.param_part(width, addresses[lane].wrapping_add(at))?;
            }
            self.set(*dst, &values);
        }
        Ok(())
    }
}
