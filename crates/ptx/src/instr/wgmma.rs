//! Hopper's tensor cores: asynchronous matrix multiplication by a warpgroup of 128 threads.

use crate::types::RegId;

/// Element type of A and B, of a warpgroup's multiplication or a warp's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixElement {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// f32 of which the tensor cores take 19 bits.
    Tf32,
    /// Eight bits with four of exponent.
    E4m3,
    /// Eight bits with five of exponent.
    E5m2,
    /// Signed integers of eight bits.
    S8,
    /// Unsigned ones.
    U8,
}

impl MatrixElement {
    /// All of them.
    pub const ALL: [MatrixElement; 7] = [
        MatrixElement::F16,
        MatrixElement::Bf16,
        MatrixElement::Tf32,
        MatrixElement::E4m3,
        MatrixElement::E5m2,
        MatrixElement::S8,
        MatrixElement::U8,
    ];

    /// Bits of an element.
    pub fn bits(self) -> u32 {
        match self {
            MatrixElement::Tf32 => 32,
            MatrixElement::F16 | MatrixElement::Bf16 => 16,
            MatrixElement::E4m3 | MatrixElement::E5m2 | MatrixElement::S8 | MatrixElement::U8 => 8,
        }
    }

    /// Elements along k of one multiplication: 32 bytes of them.
    pub fn depth(self) -> u32 {
        256 / self.bits()
    }

    /// Whether products are added up as integers.
    pub fn is_integer(self) -> bool {
        matches!(self, MatrixElement::S8 | MatrixElement::U8)
    }
}

/// Where the 64×16 matrix A comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixA {
    /// Four packed registers per thread: with r = lane/4 and c = lane%4 of warp w, rows 16w + r and 16w + r + 8 at
    /// columns 2c, 2c+1 (registers 0, 1) and at columns 2c+8, 2c+9 (registers 2, 3).
    Registers([RegId; 4]),
    /// Shared memory, by a 64-bit descriptor.
    Shared {
        /// Register with the descriptor.
        desc: RegId,
        /// M-major instead of K-major.
        transpose: bool,
    },
}

/// Whether a product is added to the accumulator or replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// D = A·B + D.
    Add,
    /// D = A·B.
    Replace,
    /// `Add` where the predicate holds. It must be the same in all threads of the warpgroup.
    If(RegId),
}

/// Warpgroup matrix multiplication. All of it is executed by whole warps, the same in each of the warpgroup's four.
#[derive(Clone, Debug, PartialEq)]
pub enum Wgmma {
    /// Orders register accesses before it against the multiplications after it. Needed before the first one and
    /// whenever the program has written an accumulator or an A register since.
    Fence,
    /// Starts D = A·B (+ D), 64 × n × [`MatrixElement::depth`], f32 accumulators.
    Mma {
        /// Columns: a multiple of 8, at most 256.
        n: u32,
        /// Type of A and B.
        element: MatrixElement,
        /// n/2 registers per thread. Register 4j + 2h + i of lane (r, c) of warp w is row 16w + r + 8h, column
        /// 8j + 2c + i.
        d: Vec<RegId>,
        /// A.
        a: MatrixA,
        /// Register with the descriptor of B in shared memory.
        b: RegId,
        /// Keep or replace D.
        accumulate: Accumulate,
        /// Use −A.
        negate_a: bool,
        /// Use −B.
        negate_b: bool,
        /// N-major B instead of K-major.
        transpose_b: bool,
    },
    /// Closes a group of the multiplications started so far.
    Commit,
    /// Waits until at most `pending` groups are unfinished. Registers of unfinished groups may not be touched.
    Wait {
        /// Groups allowed to be in flight, 0..8.
        pending: u32,
    },
}
