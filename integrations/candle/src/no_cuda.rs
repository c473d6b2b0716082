//! What stands for `cuda.rs` where candle is built without its feature: tensors in a GPU's memory are refused.

use candle_core::{CudaStorage, Layout, Result, Shape};
use hammerhead::gpu::{DeviceOutput, DeviceTokens, Queue};

use crate::tokens::elsewhere;

/// A tensor beside the tokens: what it is called in messages, and the tensor.
pub(crate) type Beside<'a> = (&'static str, &'a CudaStorage, &'a Layout);

const PLACE: &str = "a CUDA device, for which this program was built without the feature `cuda`";

pub(crate) fn compute<const N: usize>(
    name: &'static str,
    _: (&CudaStorage, &Layout),
    _: [Beside<'_>; N],
    _: usize,
    _: impl FnOnce(&mut Queue, DeviceTokens, [u64; N], DeviceOutput) -> hammerhead::Result<()>,
) -> Result<(CudaStorage, Shape)> {
    elsewhere(name, PLACE)
}

pub(crate) fn compute_groups<const N: usize>(
    name: &'static str,
    _: (&CudaStorage, &Layout),
    _: [Beside<'_>; N],
    _: usize,
    _: &[usize],
    _: impl FnOnce(&mut Queue, &[DeviceTokens], [u64; N], &[DeviceOutput]) -> hammerhead::Result<()>,
) -> Result<(CudaStorage, Shape)> {
    elsewhere(name, PLACE)
}
