//! Tensor cores by the warp: `mma.sync`, which multiplies what is in the registers of one warp, at once.
//!
//! With g = lane / 4 and c = lane % 4, the 16×8 accumulators of a lane are (row g; columns 2c, 2c + 1) and (row g + 8;
//! the same). A register of A or B holds neighbours along k, the first in its lowest bits.

use super::arith::NarrowFloat;
use super::wgmma::MatrixElement;
use crate::types::RegId;

/// What a block-scaled multiplication multiplies, and what its scales are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// e2m1, K = 64, and one ue4m3 scale per 16 of k (`kind::mxf4nvf4.block_scale.scale_vec::4X`).
    NvFp4,
    /// e2m1, K = 64, and one ue8m0 scale per 32 of k (`kind::mxf4.block_scale.scale_vec::2X`).
    MxFp4,
    /// Elements of A and of B, each in a byte of its own, K = 32, and one ue8m0 scale
    /// (`kind::mxf8f6f4.block_scale.scale_vec::1X`). e2m1 has the middle four bits of the byte.
    Mx([NarrowFloat; 2]),
}

impl Scaling {
    /// Elements along k of one multiplication.
    pub fn depth(self) -> u32 {
        if matches!(self, Scaling::Mx(_)) { 32 } else { 64 }
    }

    /// Scales of a row in one multiplication.
    pub fn scales(self) -> u32 {
        match self {
            Scaling::NvFp4 => 4,
            Scaling::MxFp4 => 2,
            Scaling::Mx(_) => 1,
        }
    }
}

/// Multiplication by a warp; all of its lanes execute it together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mma {
    /// D += A·B, 16 × 8 × [`MatrixElement::depth`]; accumulators of f32, or of 32-bit integers.
    Dense {
        /// Type of A and B.
        element: MatrixElement,
        /// Whether sums of integers stop at the ends of their range instead of wrapping around.
        saturate: bool,
        /// Accumulators.
        d: [RegId; 4],
        /// Of 32 bytes along k, the c-th four of the first sixteen in row g and in row g + 8, then the same of the
        /// last sixteen.
        a: [RegId; 4],
        /// The c-th four bytes of the first sixteen along k in column g, and of the last sixteen.
        b: [RegId; 2],
    },
    /// D += A·B, 16 × 8 × [`Scaling::depth`], with block scales and f32 accumulators.
    BlockScaled {
        /// What is multiplied.
        scaling: Scaling,
        /// Accumulators.
        d: [RegId; 4],
        /// Of e2m1 by fours of bits, (row g; k 8c..8c + 8), (row g + 8; the same), (row g; k 8c + 32..8c + 40), (row
        /// g + 8; the same); of bytes as [`Mma::Dense`] has them.
        a: [RegId; 4],
        /// (k 8c..8c + 8; column g), (k 8c + 32..8c + 40; column g); of bytes as [`Mma::Dense`] has them.
        b: [RegId; 2],
        /// Scales, from `byte_a` on one for each block along k: lane 4g + 2·`lanes_a` has those of row g, the next lane
        /// those of row g + 8.
        scale_a: RegId,
        /// Which lanes of a quad give scales of A: 0 or 1.
        lanes_a: u32,
        /// The first byte of A's scales: a multiple of how many there are.
        byte_a: u32,
        /// Scales: lane 4g + `lane_b` has those of column g.
        scale_b: RegId,
        /// Which lane of a quad gives scales of B: 0 to 3.
        lane_b: u32,
        /// The first byte of B's scales.
        byte_b: u32,
    },
}
