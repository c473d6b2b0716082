//! Blackwell's tensor cores: matrix multiplication of block-scaled FP4, or of 16-bit numbers, between shared memory and tensor memory.

use crate::types::{Address, Operand, RegId};

/// How many blocks share one operation: one alone, or a pair of neighbours in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtaGroup {
    /// One block.
    One,
    /// A pair of blocks.
    Two,
}

/// What becomes of the matrix A in the tensor core's collector buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collector {
    /// Read it and do not keep it.
    Discard,
    /// Read it and keep it for the next instruction.
    Fill,
    /// Use the kept one, and keep it on.
    Use,
    /// Use the kept one for the last time.
    LastUse,
}

/// Tensor memory and multiplication. Tensor memory has 128 lanes × 512 columns of 32 bits per block.
#[derive(Clone, Debug, PartialEq)]
pub enum Tcgen05 {
    /// One warp allocates columns of tensor memory; the address is written to shared memory. Blocks until there is room.
    Alloc {
        /// One block, or a pair.
        group: CtaGroup,
        /// Where in shared memory the tensor address is written.
        dst: Address,
        /// A power of two, 32..=512.
        columns: Operand,
    },
    /// One warp gives columns back.
    Dealloc {
        /// One block, or a pair.
        group: CtaGroup,
        /// Register with the tensor address.
        addr: RegId,
        /// As allocated.
        columns: Operand,
    },
    /// This block will not allocate again.
    RelinquishAllocPermit {
        /// One block, or a pair.
        group: CtaGroup,
    },
    /// Copies 32 rows of 128 bits from shared memory to four columns, repeated for each of the four warps' lanes: the
    /// form in which block scales are wanted (`cp.32x128b.warpx4`).
    CopyScales {
        /// One block, or a pair.
        group: CtaGroup,
        /// Register with the destination.
        dst: RegId,
        /// Register with the source's descriptor.
        src: RegId,
    },
    /// D = A·B (+ D) with e2m1 elements and one ue4m3 scale per 16 of K; K = 64
    /// (`kind::mxf4nvf4.block_scale.scale_vec::4X`).
    Mma {
        /// One block, or a pair.
        group: CtaGroup,
        /// Register with the accumulator's tensor address.
        d: RegId,
        /// Register with A's descriptor.
        a: RegId,
        /// Register with B's descriptor.
        b: RegId,
        /// Register with the instruction descriptor.
        shape: RegId,
        /// Register with the tensor address of A's scales.
        scale_a: RegId,
        /// Register with the tensor address of B's scales.
        scale_b: RegId,
        /// Predicate: add to D (true) or replace it (false).
        accumulate: RegId,
        /// What becomes of A.
        collector: Collector,
    },
    /// D = A·B (+ D) with 16-bit elements and f32 sums; K = 16 (`kind::f16`).
    MmaHalves {
        /// One block, or a pair.
        group: CtaGroup,
        /// Register with the accumulator's tensor address.
        d: RegId,
        /// Register with A's descriptor.
        a: RegId,
        /// Register with B's descriptor.
        b: RegId,
        /// Register with the instruction descriptor.
        shape: RegId,
        /// Predicate: add to D (true) or replace it (false).
        accumulate: RegId,
        /// What becomes of A.
        collector: Collector,
    },
    /// When all of this thread's earlier tcgen05 work is done, arrives once at a barrier.
    Commit {
        /// One block, or a pair.
        group: CtaGroup,
        /// The barrier.
        bar: Address,
        /// 16-bit register: arrive at the same offset in each block whose bit is set.
        multicast: Option<RegId>,
    },
    /// Each of four warps loads its 32 lanes, `dsts.len()` columns (`ld.32x32b.xN`).
    Load {
        /// 1, 2, 4 … 128 registers: one column each.
        dsts: Vec<RegId>,
        /// Register with the tensor address.
        addr: RegId,
    },
    /// Each of four warps stores its 32 lanes, `srcs.len()` columns (`st.32x32b.xN`).
    Store {
        /// Register with the tensor address.
        addr: RegId,
        /// 1, 2, 4 … 128 registers: one column each.
        srcs: Vec<RegId>,
    },
    /// Waits for this thread's loads from tensor memory.
    WaitLoad,
    /// Waits for this thread's stores to tensor memory.
    WaitStore,
    /// Orders earlier tcgen05 work before a following synchronisation between threads.
    FenceBeforeSync,
    /// Orders later tcgen05 work after a preceding synchronisation between threads.
    FenceAfterSync,
}
