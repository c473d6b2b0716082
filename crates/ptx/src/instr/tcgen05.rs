//! Blackwell's tensor cores: matrix multiplication of block-scaled FP4, or of numbers without block scales, between
//! shared memory and tensor memory.

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

/// What a multiplication without block scales multiplies; its instruction descriptor says which type of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenseKind {
    /// Halves or bfloat16; K = 16.
    F16,
    /// f32 of which the tensor cores take 19 bits; K = 8.
    Tf32,
    /// Floats of eight bits or fewer; K = 32.
    F8f6f4,
}

impl DenseKind {
    /// All of them.
    pub const ALL: [DenseKind; 3] = [DenseKind::F16, DenseKind::Tf32, DenseKind::F8f6f4];
}

/// What a multiplication with block scales multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaledKind {
    /// e2m1, K = 64, one ue4m3 scale per 16 of K (`kind::mxf4nvf4.block_scale.scale_vec::4X`).
    NvFp4,
    /// e2m1, K = 64, one ue8m0 scale per 32 of K (`kind::mxf4.block_scale.scale_vec::2X`).
    MxFp4,
    /// Floats of eight bits or fewer, as the instruction descriptor says, K = 32, one ue8m0 scale
    /// (`kind::mxf8f6f4.block_scale.scale_vec::1X`).
    MxF8f6f4,
}

impl ScaledKind {
    /// All of them.
    pub const ALL: [ScaledKind; 3] = [ScaledKind::NvFp4, ScaledKind::MxFp4, ScaledKind::MxF8f6f4];

    /// Elements along K of one multiplication: of a row, 32 bytes.
    pub fn depth(self) -> u32 {
        if self == ScaledKind::MxF8f6f4 { 32 } else { 64 }
    }

    /// Scales of a row in one multiplication.
    pub fn scales(self) -> u32 {
        match self {
            ScaledKind::NvFp4 => 4,
            ScaledKind::MxFp4 => 2,
            ScaledKind::MxF8f6f4 => 1,
        }
    }
}

/// Where a multiplication has A from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorA {
    /// Shared memory: a register with the descriptor.
    Shared(RegId),
    /// Tensor memory: a register with the address. A row is a lane, and neighbours along k share a column.
    Tensor(RegId),
}

/// Which cells of tensor memory a warp's load or store reaches, and which thread has which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellShape {
    /// `32x32b`: thread i has lane i, register r column r.
    L32x32b,
    /// `16x64b`: with a = thread % 2 and b = thread / 2 % 2, lane 8a + thread / 4, column 2r + b.
    L16x64b,
    /// `16x128b`: with r = 2i + h, lane thread / 4 + 8h, column 4i + thread % 4.
    L16x128b,
    /// `16x256b`: with r = 4i + 2h + j, lane thread / 4 + 8h, column 8i + 2·(thread % 4) + j.
    L16x256b,
    /// `16x32bx2`: thread i has lane i % 16; the upper sixteen have columns so many further on.
    L16x32bx2(u32),
}

impl CellShape {
    /// The lane and the column of a thread's register, from the address on.
    pub fn cell(self, thread: u32, register: u32) -> (u32, u32) {
        match self {
            CellShape::L32x32b => (thread, register),
            CellShape::L16x64b => (thread % 2 * 8 + thread / 4, 2 * register + thread / 2 % 2),
            CellShape::L16x128b => (thread / 4 + register % 2 * 8, register / 2 * 4 + thread % 4),
            CellShape::L16x256b => {
                (thread / 4 + register / 2 % 2 * 8, register / 4 * 8 + thread % 4 * 2 + register % 2)
            }
            CellShape::L16x32bx2(split) => (thread % 16, register + thread / 16 * split),
        }
    }

    /// The stretches of columns, from the address on, that so many registers reach: the first of each, and how many.
    pub fn columns(self, registers: u32) -> Vec<(u32, u32)> {
        match self {
            CellShape::L16x32bx2(split) if split != registers => vec![(0, registers), (split, registers)],
            CellShape::L32x32b => vec![(0, registers)],
            _ => vec![(0, 2 * registers)],
        }
    }

    /// Lanes of a warp that it reaches.
    pub fn lanes(self) -> u32 {
        if self == CellShape::L32x32b { 32 } else { 16 }
    }

    /// Registers of the smallest load or store; others have 2, 4, 8 … times as many, up to 128.
    pub fn least(self) -> usize {
        match self {
            CellShape::L16x128b => 2,
            CellShape::L16x256b => 4,
            _ => 1,
        }
    }
}

/// Tensor memory and multiplication. Tensor memory has 128 lanes × 512 columns of 32 bits per block.
#[derive(Clone, Debug, PartialEq)]
pub enum Tcgen05 {
    /// One warp allocates columns of tensor memory; the address is written to shared memory. Blocks until there is
    /// room.
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
    /// D = A·B (+ D) with block scales.
    Mma {
        /// What is multiplied.
        kind: ScaledKind,
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
    /// D = A·B (+ D) without block scales.
    MmaDense {
        /// What is multiplied.
        kind: DenseKind,
        /// One block, or a pair.
        group: CtaGroup,
        /// Register with the accumulator's tensor address.
        d: RegId,
        /// A.
        a: TensorA,
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
    /// Each of four warps loads cells of its 32 lanes (`ld`).
    Load {
        /// Which cells.
        shape: CellShape,
        /// 1, 2, 4 … 128 registers.
        dsts: Vec<RegId>,
        /// Register with the tensor address.
        addr: RegId,
    },
    /// Each of four warps stores cells of its 32 lanes (`st`).
    Store {
        /// Which cells.
        shape: CellShape,
        /// Register with the tensor address.
        addr: RegId,
        /// 1, 2, 4 … 128 registers.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_that_a_shape_reaches_is_one_threads() {
        use CellShape::{L16x32bx2, L16x64b, L16x128b, L16x256b, L32x32b};
        for (shape, registers) in [(L32x32b, 8), (L16x64b, 4), (L16x128b, 4), (L16x256b, 8), (L16x32bx2(64), 16)] {
            let cells = (0..32).flat_map(|thread| (0..registers).map(move |register| shape.cell(thread, register)));
            let reached: BTreeSet<(u32, u32)> = cells.collect();
            let columns = shape.columns(registers).into_iter().flat_map(|(first, count)| first..first + count);
            let wanted = columns.flat_map(|column| (0..shape.lanes()).map(move |lane| (lane, column)));
            assert_eq!(reached, wanted.collect(), "{shape:?}");
        }
    }
}
