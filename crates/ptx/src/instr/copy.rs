//! Asynchronous copies: bulk copies of plain bytes, tensor copies through a tensor map, and remote stores that signal a
//! barrier. They are issued by one thread and done by the copy engine, through the async proxy. Copies of a few bytes
//! per thread are older than those: they go the way that loads and stores go, and only the thread that issued them can
//! wait for them.

use super::tcgen05::CtaGroup;
use crate::types::{Address, Operand, RegId};

/// Asynchronous copies.
#[derive(Clone, Debug, PartialEq)]
pub enum AsyncCopy {
    /// Global to shared memory; the bytes are counted at a barrier. With a mask, to the same offset in several blocks.
    BulkLoad {
        /// Shared destination, 16-byte aligned.
        dst: Address,
        /// Global source, 16-byte aligned.
        src: Address,
        /// A multiple of 16.
        bytes: Operand,
        /// The barrier that counts the bytes (at the same offset in each receiving block).
        bar: Address,
        /// 16-bit register: bit `r` set means block of rank `r` receives.
        multicast: Option<RegId>,
        /// L2 policy.
        policy: Option<RegId>,
    },
    /// Shared to global memory; completion is tracked by bulk groups.
    BulkStore {
        /// Global destination, 16-byte aligned.
        dst: Address,
        /// Shared source, 16-byte aligned.
        src: Address,
        /// A multiple of 16.
        bytes: Operand,
        /// L2 policy.
        policy: Option<RegId>,
    },
    /// This block's shared memory to another block's; the bytes are counted at the other block's barrier.
    BulkToCluster {
        /// Destination in the cluster window, 16-byte aligned.
        dst: Address,
        /// Shared source, 16-byte aligned.
        src: Address,
        /// A multiple of 16.
        bytes: Operand,
        /// Barrier in the destination's block.
        bar: Address,
    },
    /// Brings global bytes into L2.
    BulkPrefetch {
        /// Global source, 16-byte aligned.
        src: Address,
        /// A multiple of 16.
        bytes: Operand,
    },
    /// A box of a tensor to shared memory, laid out and bounds-checked as the tensor map says.
    TensorLoad {
        /// Shared destination; 128-byte aligned.
        dst: Address,
        /// Register with the tensor map's address.
        map: RegId,
        /// First element of the box, innermost dimension first; 1 to 5 of them.
        coords: Vec<Operand>,
        /// The barrier that counts the bytes of the whole box, out-of-bounds ones included.
        bar: Address,
        /// 16-bit register: bit `r` set means block of rank `r` receives.
        multicast: Option<RegId>,
        /// L2 policy.
        policy: Option<RegId>,
        /// On sm_100a: with `Two`, the barrier may be the other block's of a pair.
        cta_group: Option<CtaGroup>,
    },
    /// A box of shared memory to a tensor; parts out of bounds are not written. Tracked by bulk groups.
    TensorStore {
        /// Register with the tensor map's address.
        map: RegId,
        /// First element of the box, innermost dimension first; 1 to 5 of them.
        coords: Vec<Operand>,
        /// Shared source; 128-byte aligned.
        src: Address,
        /// L2 policy.
        policy: Option<RegId>,
    },
    /// Brings a box of a tensor into L2.
    TensorPrefetch {
        /// Register with the tensor map's address.
        map: RegId,
        /// First element of the box.
        coords: Vec<Operand>,
    },
    /// Brings a tensor map itself into the cache.
    PrefetchMap {
        /// Register with the tensor map's address.
        map: RegId,
    },
    /// Closes a group of this thread's bulk stores.
    CommitGroup,
    /// Waits until at most `pending` of this thread's groups are unfinished.
    WaitGroup {
        /// Groups allowed to be in flight.
        pending: u32,
        /// Wait only until the sources have been read, not until the destinations are written.
        read: bool,
    },
    /// Copies a few bytes from global to shared memory for each thread (`cp.async`), as part of its current group.
    ThreadCopy {
        /// Shared destination, aligned to the size.
        dst: Address,
        /// Global source, aligned to the size.
        src: Address,
        /// 4, 8 or 16.
        bytes: u32,
        /// How many bytes are read, at most all; zeros are written for the others.
        source_bytes: Option<Operand>,
        /// L2 policy.
        policy: Option<RegId>,
    },
    /// Closes a group of this thread's copies, empty or not (`cp.async.commit_group`).
    CommitThreadGroup,
    /// Waits until at most `pending` of this thread's groups of copies are unfinished (`cp.async.wait_group`). What
    /// they wrote is then there for this thread, and through a barrier for others.
    WaitThreadGroup {
        /// Groups allowed to be in flight.
        pending: u32,
    },
    /// Arrives at a barrier of this block when all copies that this thread has issued so far are there
    /// (`cp.async.mbarrier.arrive`).
    ArriveBehindCopies {
        /// The barrier.
        bar: Address,
        /// Whether the arrival is one of those that the barrier expects (`.noinc`), not one more.
        expected: bool,
    },
    /// Asks that a cluster of the grid which has not begun never begins, so that this one can do its work
    /// (`clusterlaunchcontrol`). The answer, 16 bytes for [`Arith::IsCanceled`](super::Arith::IsCanceled), goes to
    /// shared memory and is counted at a barrier.
    TryCancel {
        /// Where the answer goes: shared, 16-byte aligned.
        dst: Address,
        /// The barrier that counts its bytes.
        bar: Address,
        /// Whether every block of the cluster gets the answer, each at the same places.
        multicast: bool,
    },
    /// Stores 1, 2 or 4 words into a block of the cluster; the bytes are counted at a barrier of that block
    /// (`st.async`).
    StoreAsync {
        /// Destination in the cluster window.
        dst: Address,
        /// 32-bit registers.
        srcs: Vec<RegId>,
        /// Barrier in the same block as the destination.
        bar: Address,
    },
}
