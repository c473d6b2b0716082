//! What a device has, and whose word counts on it.

use ptx::{Feature, Kernel};

/// Bytes of shared memory that a block costs besides its own, and the most blocks that a multiprocessor holds.
const BLOCK_SHARED: u32 = 1024;
const MOST_RESIDENTS: u32 = 32;

/// What there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of shared memory a block may have.
    pub shared_bytes: u32,
    /// Threads a block may have.
    pub threads: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers: u32,
    /// Multiprocessors: how many blocks run at the same time.
    pub multiprocessors: u32,
    /// Multiprocessors of each GPC. The blocks of a cluster are in one of them, so fewer clusters run at the same time
    /// than multiprocessors would have room for.
    pub gpcs: [u32; 8],
    /// Blocks a cluster may have.
    pub cluster_blocks: u32,
    /// Instructions, counted by warp, after which a run is given up. A GPU has no such limit; a broken kernel needs
    /// one.
    pub instructions: u64,
}

impl Limits {
    /// An H200.
    pub fn h200() -> Self {
        Limits {
            shared_bytes: 232_448,
            threads: 1024,
            registers: 65_536,
            multiprocessors: 132,
            // Sizes that have room for 66 clusters of two, 30 of four, 15 of eight and 7 of sixteen, as an H200's
            // driver says (benchmarks/h200/silicon.cu). Others of its kind may lack other multiprocessors.
            gpcs: [18, 18, 18, 18, 18, 16, 16, 10],
            cluster_blocks: 8,
            instructions: 500_000_000,
        }
    }

    /// A B200, with GPCs of sizes that nobody has published.
    pub fn b200() -> Self {
        Limits { multiprocessors: 148, gpcs: [20, 20, 20, 18, 18, 18, 18, 16], ..Limits::h200() }
    }

    /// The device that a kernel is run on where nobody names one: a B200 for what only that has, otherwise an H200.
    pub fn suiting(kernel: &Kernel) -> Self {
        if kernel.target.has(Feature::Tcgen05) { Limits::b200() } else { Limits::h200() }
    }

    /// Clusters of so many blocks that run at the same time, one block per multiprocessor; one in any case. What GPCs
    /// have beyond the multiprocessors is left out, and what they lack is a GPC of its own.
    pub(crate) fn clusters(&self, blocks: u32) -> u32 {
        let (mut left, mut clusters) = (self.multiprocessors, 0);
        for size in self.gpcs.into_iter().chain([u32::MAX]) {
            let size = size.min(left);
            (left, clusters) = (left - size, clusters + size / blocks.max(1));
        }
        clusters.max(1)
    }

    /// Blocks of a kernel that a multiprocessor can hold, by shared memory and threads. It has as much shared memory as
    /// a block may have, and what a block costs besides. Registers are the assembler's to say: what the kernel declares
    /// is what it leaves room for.
    pub(crate) fn residents(&self, kernel: &Kernel) -> u32 {
        let by_shared = (self.shared_bytes + BLOCK_SHARED) / (kernel.shared_bytes() + BLOCK_SHARED);
        let by_threads = kernel.target.resident_threads() / kernel.launch.threads.max(1);
        by_shared.min(by_threads).clamp(1, MOST_RESIDENTS)
    }

    /// Registers per thread that a kernel starts with: what its declared occupancy leaves it.
    pub(crate) fn launch_registers(&self, kernel: &Kernel) -> u32 {
        let threads = kernel.launch.threads.next_multiple_of(32).max(32) * kernel.launch.min_blocks.unwrap_or(1).max(1);
        (self.registers / threads / 8 * 8).min(256)
    }
}

/// Whose word counts where published kernels rely on more than the ISA promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Theirs. What threads have read of global memory may be overwritten by a copy without a proxy fence; and to
    /// overwrite what was read, or what another copy wrote, it is enough that it is over, told by however relaxed a
    /// barrier, of whatever scope. What threads have fenced for the whole device may be told of by any thread that they
    /// then meet at a barrier of the block. Tensor memory is allocated from its first column on, for a block that has a
    /// multiprocessor to itself, and given back by any warp behind any barrier; it needs no tcgen05 fences, scales
    /// may be copied over those that a multiplication before reads, a load whose registers were read is over, these may
    /// be written before it is waited for, and the address that an allocation leaves may be read
    /// behind any barrier, and overwritten by a copy. Barriers whose initialisation is known may be used by copies
    /// without a fence, and by threads that know it to be executed, from however relaxed a barrier. Threads may store
    /// what another one has stored there, lanes of a warp one box to one place, and matrices where the warp has loaded
    /// others. `elect.sync` elects the first lane, registers that were not written may be computed with where nothing
    /// depends on it, the warps of a warpgroup need not meet between changes of their registers, and a block may end
    /// before its stores are read.
    #[default]
    Practice,
    /// The ISA's: every access comes after those it conflicts with by release and acquire, and by a fence between
    /// proxies; barriers are published by a fence of the thread that initialised them. Tensor memory is wherever the
    /// allocation says, shared with other blocks that the multiprocessor has room for, and given back by the warp that
    /// allocated it, between the fences of every access.
    Letter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_clusters_run_at_a_time_as_an_h200_says() {
        let fit = |limits: Limits| [1, 2, 4, 8, 16].map(|blocks| limits.clusters(blocks));
        assert_eq!(fit(Limits::h200()), [132, 66, 30, 15, 7]);
        assert_eq!(Limits::b200().clusters(1), 148);
        assert!(Limits::b200().clusters(4) < 148 / 4);
        assert_eq!(fit(Limits { multiprocessors: 2, ..Limits::h200() }), [2, 1, 1, 1, 1]);
        assert_eq!(Limits { multiprocessors: 140, ..Limits::h200() }.clusters(4), 32, "eight more in a ninth");
    }
}
