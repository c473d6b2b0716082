//! What NVIDIA's assembler makes of a configuration's kernels for a device: evidence that needs no GPU.

use gpu::facts::Facts;
use gpu::{Family, plan};
use op::{Config, Problem};
use ptx::assemble::Assembler;

/// Registers of a multiprocessor.
const REGISTERS: u32 = 1 << 16;
/// Registers are given to warps in portions of so many.
const PORTION: u32 = 256;
/// Threads of a warp.
const WARP: u32 = 32;
/// Warps that a multiprocessor holds at once.
const WARPS: u32 = 64;
/// Blocks that a multiprocessor holds at once.
const BLOCKS: u32 = 32;
/// Bytes of shared memory that the system takes per block, and so what a multiprocessor has beyond what one block may
/// have.
const RESERVED: u32 = 1024;

/// One kernel, assembled.
#[derive(Clone, Debug, PartialEq)]
pub struct Assembled {
    /// The kernel's name.
    pub kernel: String,
    /// Registers per thread at launch.
    pub registers: u32,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
    /// Bytes of registers that are written to memory and read back for want of room, per thread.
    pub spilled_bytes: u32,
    /// Blocks that a multiprocessor holds at once.
    pub blocks: u32,
    /// The part of a multiprocessor's warps that they are.
    pub occupancy: f64,
}

/// Assembles the kernels of a family that a configuration runs for a problem on a device, or says why it cannot.
pub fn assembled(
    family: &'static dyn Family,
    facts: &Facts,
    problem: &Problem,
    config: &Config,
) -> Result<Vec<Assembled>, String> {
    let assembler = Assembler::find(None).map_err(|error| error.to_string())?;
    let kernels = plan::kernels(family, problem, config, facts).map_err(|error| error.to_string())?;
    let one = |kernel: &ptx::Kernel| {
        let report = assembler.assemble(kernel).map_err(|error| error.to_string())?;
        let warps = kernel.launch.threads.div_ceil(WARP).max(1);
        let blocks = resident(warps, report.registers, report.shared_bytes, facts.shared_bytes as u32);
        Ok(Assembled {
            kernel: kernel.name.clone(),
            registers: report.registers,
            shared_bytes: report.shared_bytes,
            spilled_bytes: report.spill_stores + report.spill_loads,
            blocks,
            occupancy: f64::from(blocks * warps) / f64::from(WARPS),
        })
    };
    kernels.iter().map(one).collect()
}

/// Blocks of so many warps that a multiprocessor holds at once, if a block may have `most_shared` bytes.
fn resident(warps: u32, registers: u32, shared_bytes: u32, most_shared: u32) -> u32 {
    let registers = warps * (registers * WARP).next_multiple_of(PORTION).max(PORTION);
    let shared = (most_shared + RESERVED) / (shared_bytes + RESERVED);
    [WARPS / warps, REGISTERS / registers, shared, BLOCKS].into_iter().min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_scarcest_says_how_many_blocks_a_multiprocessor_holds() {
        let most = Facts::h200().shared_bytes as u32;
        assert_eq!(resident(4, 32, 0, most), 16, "warps");
        assert_eq!(resident(12, 168, 0, most), 1, "registers: 12 warps of 168 take 64512 of 65536");
        assert_eq!(resident(4, 32, 113 * 1024, most), 2, "shared memory");
        assert_eq!(resident(1, 16, 0, most), 32, "blocks");
    }
}
