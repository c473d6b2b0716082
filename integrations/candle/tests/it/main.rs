//! Operations by themselves, and a whole model that is made of them.

mod operations;
mod qwen3_moe;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use hammerhead_candle::hammerhead::Engine;
use hammerhead_candle::hammerhead::format::checkpoint::Checkpoint;

/// The engine of all tests.
fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(|| Arc::new(Engine::auto().unwrap()))
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
    let [found, expected] = [found, expected].map(|tensor| tensor.to_dtype(candle_core::DType::F32));
    let (found, expected) = (found?, expected?);
    Ok((largest(&(found - &expected)?)?, largest(&expected)?))
}
