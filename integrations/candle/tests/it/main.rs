//! Operations by themselves, and a whole model that is made of them.

mod operations;
mod qwen3_moe;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use candle_core::Device;
use hammerhead_candle::hammerhead::format::checkpoint::Checkpoint;
use hammerhead_candle::hammerhead::{Engine, Options};

/// Where all tests compute: with the feature `cuda` on a GPU, which must be there.
fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| if cfg!(feature = "cuda") { Device::new_cuda(0).unwrap() } else { Device::Cpu })
}

/// The engine of all tests.
fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    let backend = cfg!(feature = "cuda").then(|| "cuda".to_owned());
    ENGINE.get_or_init(|| Arc::new(Engine::new(Options { backend, ..Options::default() }).unwrap()))
}

/// A small model that the Python package's tests are held to as well.
fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/python/tests/data").join(name)
}

fn model(name: &str) -> Checkpoint {
    Checkpoint::open(folder(name)).unwrap()
}

/// The largest difference between two tensors, and the largest number of the second.
fn distance(found: &candle_core::Tensor, expected: &candle_core::Tensor) -> candle_core::Result<(f32, f32)> {
    let largest = |tensor: &candle_core::Tensor| tensor.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
    let plain = |tensor: &candle_core::Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(candle_core::DType::F32);
    let [found, expected] = [found, expected].map(plain);
    let (found, expected) = (found?, expected?);
    Ok((largest(&(found - &expected)?)?, largest(&expected)?))
}
