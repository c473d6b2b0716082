//! The operations that can be played: the gated dual GEMM, and whatever a folder describes.

pub mod dual_gemm;
pub mod folder;
