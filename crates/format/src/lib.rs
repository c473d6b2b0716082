//! What NVFP4 bytes mean.
//!
//! NVFP4 keeps a matrix as 4-bit floats ([`e2m1`]), one 8-bit float scale ([`e4m3`]) for every [`BLOCK`] consecutive
//! elements of a row, and one f32 global scale for the whole matrix, which multiplies or divides ([`GlobalScale`]):
//!
//! ```text
//! element = e2m1(code) · e4m3(scale of its block) · global
//! ```
//!
//! This crate knows the number formats, the matrix made of them ([`Matrix`]), its ordinary counterpart ([`Dense`]), how
//! to get from one to the other ([`quantize`], [`Matrix::dequantize`]), the FP8 matrices that stand beside it in mixed
//! models ([`Fp8Matrix`]), the two layouts scales are kept in ([`scales`]), the files they come in ([`tensors`]), and
//! whole models as others write them ([`checkpoint`]). It knows nothing about computing with them.
//!
//! ```
//! use hammerhead_format::{Dense, loss, quantize};
//!
//! let weights: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin()).collect();
//! let source = Dense::new(2, 32, weights, 1.0)?;
//! let quantised = quantize(&source, None)?;
//! assert_eq!((quantised.rows(), quantised.k()), (2, 32));
//! assert!(loss(&source, &quantised)?.relative < 0.15);
//! # Ok::<(), hammerhead_format::Error>(())
//! ```

pub mod checkpoint;
mod dense;
pub mod e2m1;
pub mod e4m3;
mod error;
mod files;
mod fp8;
mod global;
mod matrix;
mod quantize;
pub mod scales;
pub mod tensors;

pub use dense::{Dense, Values};
pub use error::{Error, Result};
pub use fp8::{Fp8Matrix, Fp8Scales};
pub use global::GlobalScale;
pub use matrix::{Matrix, Scaling};
pub use quantize::{Loss, Thresholds, loss, quantize};

/// How many consecutive elements of a row share one e4m3 scale.
pub const BLOCK: usize = 16;

/// The number of consecutive elements that share one scale in MXFP4 and MXFP8.
pub const MX_BLOCK: usize = 32;
