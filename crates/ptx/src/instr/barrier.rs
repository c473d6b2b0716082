//! Barriers (in memory, named, of the cluster) and fences.

use crate::types::{Address, Operand, RegId, Scope, Space};

/// Memory ordering of an arrive or a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Semantics {
    /// Orders nothing but the barrier itself.
    Relaxed,
    /// An arrive publishes what came before it; a wait sees what was published.
    Ordered,
}

/// How an arrival differs from a plain one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// Later phases expect so many fewer (`mbarrier.arrive_drop`).
    Drop,
    /// It must not be what completes the phase (`mbarrier.arrive.noComplete`).
    NoComplete,
}

/// Barriers of every kind. A memory barrier ("mbarrier") is eight bytes of shared memory that count arrivals and bytes
/// of transactions; its phase completes when both reach zero.
#[derive(Clone, Debug, PartialEq)]
pub enum Barrier {
    /// Makes eight aligned bytes of shared memory a barrier in phase 0 that expects `count` arrivals per phase.
    Init {
        /// The barrier.
        bar: Address,
        /// Arrivals per phase, 1..=2²⁰−1.
        count: Operand,
    },
    /// Ends the barrier's life; the bytes may then be used otherwise.
    Invalidate {
        /// The barrier.
        bar: Address,
    },
    /// Raises the transaction count of the current phase, without arriving.
    ExpectTx {
        /// `Shared` for this block's barrier, `Cluster` for any block's.
        space: Space,
        /// The barrier.
        bar: Address,
        /// Bytes that asynchronous work will bring.
        bytes: Operand,
    },
    /// Arrives.
    Arrive {
        /// How it differs from a plain one, if it does.
        arrival: Option<Arrival>,
        /// `Shared` for this block's barrier, `Cluster` for any block's.
        space: Space,
        /// Release or not, at which scope. The PTX default is ordered at block scope.
        sem: Semantics,
        /// Scope of the ordering: block or cluster.
        scope: Scope,
        /// The barrier.
        bar: Address,
        /// How many arrivals this one counts for; one if `None`.
        count: Option<Operand>,
        /// Receives the phase that it arrives in, of which a wait needs the lowest bit; 64 bits. Not from other blocks.
        state: Option<RegId>,
    },
    /// Raises the transaction count, then arrives once: one instruction.
    ArriveExpectTx {
        /// `Shared` for this block's barrier, `Cluster` for any block's.
        space: Space,
        /// Release or not.
        sem: Semantics,
        /// Scope of the ordering: block or cluster.
        scope: Scope,
        /// The barrier.
        bar: Address,
        /// Bytes that asynchronous work will bring.
        bytes: Operand,
        /// As of an arrive.
        state: Option<RegId>,
    },
    /// Asks whether the phase of the given parity has completed; may sleep a while before it answers no.
    TryWait {
        /// True if the phase is complete.
        done: RegId,
        /// Acquire or not.
        sem: Semantics,
        /// Scope of the ordering: block or cluster.
        scope: Scope,
        /// The barrier, in this block's shared memory.
        bar: Address,
        /// 0 or 1.
        parity: Operand,
    },
    /// Waits until `threads` threads have arrived at the block's hardware barrier `id` (`barrier.sync`).
    NamedSync {
        /// Whether the whole warp executes it together.
        aligned: bool,
        /// 0..16.
        id: Operand,
        /// A multiple of 32; all threads of the block if `None`.
        threads: Option<Operand>,
    },
    /// Arrives at the block's hardware barrier `id` without waiting (`barrier.arrive`).
    NamedArrive {
        /// Whether the whole warp executes it together.
        aligned: bool,
        /// 0..16.
        id: Operand,
        /// A multiple of 32: all who arrive or wait.
        threads: Operand,
    },
    /// Arrives at the cluster's barrier. Every thread of the cluster arrives once, then waits once.
    ClusterArrive {
        /// Release or relaxed.
        sem: Semantics,
        /// Whether the whole warp executes it together.
        aligned: bool,
    },
    /// Waits for all threads of the cluster (acquire).
    ClusterWait {
        /// Whether the whole warp executes it together.
        aligned: bool,
    },
}

/// Ordering of memory accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Orders accesses through the generic proxy (`fence.acq_rel`).
    AcqRel(Scope),
    /// Makes generic accesses before it visible to asynchronous ones after it, in the given window only, or everywhere
    /// (`fence.proxy.async`).
    ProxyAsync(Option<Space>),
    /// Makes freshly initialised barriers visible to the cluster and to asynchronous copies
    /// (`fence.mbarrier_init.release.cluster`).
    BarrierInit,
}
