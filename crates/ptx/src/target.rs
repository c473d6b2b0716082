//! What kernels are assembled for, and what exists there.
//!
//! A target is the least that a GPU must be: code for `sm_80` runs on every later GPU, code with a letter (`sm_90a`) on
//! that chip alone, or (`f`) on its family. Instructions ask for a [`Feature`], never for a target by name.

use std::fmt;

/// What a kernel is assembled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Ampere and everything since (A100, RTX 30 and 40, L40S, and all later ones): mma.sync, cp.async.
    Sm80,
    /// Hopper alone (H100, H200): wgmma, setmaxnreg.
    Sm90a,
    /// One chip of data-centre Blackwell alone (B200): tcgen05 and tensor memory.
    Sm100a,
    /// The family of data-centre Blackwell (B200, B300): tcgen05 and tensor memory.
    Sm100f,
    /// The family of desktop Blackwell (RTX 50, DGX Spark): mma.sync with block scales.
    Sm120f,
}

/// What some targets have and others lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Asynchronous multiplication by a warpgroup.
    Wgmma,
    /// Tensor memory and multiplication between it and shared memory.
    Tcgen05,
    /// Block-scaled multiplication by a warp.
    BlockScaledMma,
    /// Budgets of registers that warps give to each other.
    SetMaxRegisters,
    /// Clusters of blocks, their barrier, and each other's shared memory.
    Clusters,
    /// Copies by the copy engine, plain or through tensor maps, and fences for them.
    BulkCopies,
    /// Clusters that take over what others of their grid would have done.
    LaunchControl,
    /// Barriers in shared memory that can be waited at.
    MemoryBarriers,
    /// Grids that begin before their predecessors end.
    GridDependency,
    /// `elect.sync`.
    Elect,
    /// `stmatrix`.
    StoreMatrix,
    /// Sums, products and comparisons of bfloat16, and its conversion to f32, as instructions of their own.
    Bf16Arithmetic,
    /// Sums and products of two singles by one instruction.
    SinglePairs,
    /// Multiplication of eight-bit floats by a warp.
    EightBitFloats,
    /// Conversion to and from floats of four and six bits, and scales of eight.
    NarrowFloats,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 5] = [Target::Sm80, Target::Sm90a, Target::Sm100a, Target::Sm100f, Target::Sm120f];

    /// As PTX and its assembler spell it.
    pub fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
            Target::Sm100a => "sm_100a",
            Target::Sm100f => "sm_100f",
            Target::Sm120f => "sm_120f",
        }
    }

    /// Whether every GPU of the target has something.
    pub fn has(self, feature: Feature) -> bool {
        match feature {
            Feature::Wgmma => self == Target::Sm90a,
            Feature::Tcgen05 => matches!(self, Target::Sm100a | Target::Sm100f),
            Feature::BlockScaledMma => self == Target::Sm120f,
            Feature::LaunchControl | Feature::SinglePairs | Feature::NarrowFloats => {
                !matches!(self, Target::Sm80 | Target::Sm90a)
            }
            Feature::SetMaxRegisters
            | Feature::Clusters
            | Feature::BulkCopies
            | Feature::MemoryBarriers
            | Feature::GridDependency
            | Feature::Elect
            | Feature::StoreMatrix
            | Feature::Bf16Arithmetic
            | Feature::EightBitFloats => self != Target::Sm80,
        }
    }

    /// Bytes of shared memory that a block can have on every GPU of the target's chip. Others that run the same code
    /// may have fewer (99 KB on RTX 30 and 40, which run code for `sm_80`) or more; those are for whoever launches to
    /// ask.
    pub fn shared_limit(self) -> u32 {
        match self {
            Target::Sm80 => 163 << 10,
            Target::Sm90a | Target::Sm100a | Target::Sm100f => 227 << 10,
            Target::Sm120f => 99 << 10,
        }
    }

    /// Threads that a multiprocessor of the target's chip holds.
    pub fn resident_threads(self) -> u32 {
        if self == Target::Sm120f { 1536 } else { 2048 }
    }

    /// The lowest version of PTX that has the target, and all that a kernel for it may hold. A driver refuses a version
    /// newer than itself, so that a text should not ask for more.
    pub(crate) fn version(self) -> (u32, u32) {
        match self {
            Target::Sm80 => (7, 0),
            Target::Sm90a | Target::Sm100a => (9, 0),
            Target::Sm100f | Target::Sm120f => (8, 8),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Feature {
    /// The targets that have it, as a list of names.
    pub(crate) fn targets(self) -> String {
        let having = Target::ALL.into_iter().filter(|target| target.has(self));
        having.map(Target::name).collect::<Vec<_>>().join(", ")
    }
}
