//! Arrays on a GPU: the work goes into the caller's own stream, and nothing is waited for.
//!
//! The array library's current stream says when tokens are there and when results are needed, as for its own kernels:
//! so no synchronisation is asked of it when it lends its memory, and memory that it reuses in that stream it may reuse
//! at once. Queues keep working memory and what they know of earlier calls, so there is one per stream, for as long as
//! the process lives. A layer that is freed waits for the streams that read it, and gives its memory back at once.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use hammerhead::gpu::{DeviceOutput, DeviceTokens, Queue};
use hammerhead::{Layer, Output};
use pyo3::prelude::*;

use crate::borrowed::{BorrowedMatrix, BorrowedTokens};
use crate::dlpack::Array;
use crate::error::{Error, Result};

/// By device and stream.
type Queues = HashMap<(usize, u64), Arc<Mutex<Queue>>>;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);

/// The queue of a stream, made when it is first used.
fn queue(device: usize, stream: u64) -> Result<Arc<Mutex<Queue>>> {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = queues.get(&(device, stream)) {
        return Ok(Arc::clone(queue));
    }
    // SAFETY: the stream is the library's current one. Libraries keep their streams as long as the process; if one were
    // destroyed all the same, its queue would be used again only once another stream has taken over its handle.
    let queue = Arc::new(Mutex::new(unsafe { Queue::on_stream(device, stream) }?));
    queues.insert((device, stream), Arc::clone(&queue));
    Ok(queue)
}

/// Has something queued in a stream of a device.
pub fn in_stream(
    py: Python<'_>,
    (device, stream): (i32, u64),
    enqueue: impl FnOnce(&mut Queue) -> hammerhead::Result<()> + Send,
) -> Result<()> {
    let device =
        usize::try_from(device).map_err(|_| Error::value("the device", format!("{device} is no number of one")))?;
    py.detach(|| {
        let queue = queue(device, stream)?;
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(enqueue(&mut queue)?)
    })
}

/// Queues every group of a layer.
pub fn run(
    py: Python<'_>,
    layer: &Layer,
    stream: (i32, u64),
    tokens: &[BorrowedTokens],
    outputs: &[(Array, String)],
) -> Result<()> {
    let tokens = tokens.iter().map(device_tokens).collect::<Result<Vec<_>>>()?;
    let columns = layer.shapes().iter().map(|&(n, _)| n);
    let outputs = outputs.iter().zip(columns).zip(&tokens);
    let outputs = outputs.map(|(((array, element), n), &(_, rows))| output(array, element, rows * n));
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    let tokens: Vec<DeviceTokens> = tokens.into_iter().map(|(tokens, _)| tokens).collect();
    // SAFETY: their owner lends arrays of these shapes and types, which share no memory, and frees memory in the order
    // of the stream.
    in_stream(py, stream, |queue| unsafe { queue.enqueue(layer, &tokens, &outputs) })
}

/// Room for so many results as the queue takes it.
pub fn output(array: &Array, element: &str, results: usize) -> Result<DeviceOutput> {
    array.expect_writable()?;
    array.expect_len(results)?;
    Ok(DeviceOutput::new(array.number(element)?, array.address()))
}

/// Dense tokens as the queue takes them, and how many there are.
pub fn dense_tokens(array: &Array, element: &str) -> Result<(DeviceTokens, usize)> {
    let (rows, k) = array.matrix_shape()?;
    let make = match array.number(element)? {
        Output::F16 => DeviceTokens::f16,
        Output::BF16 => DeviceTokens::bf16,
        Output::F32 => DeviceTokens::f32,
    };
    Ok((make(array.address(), rows, k), rows))
}

/// A group's tokens as the queue takes them, and how many there are.
fn device_tokens(tokens: &BorrowedTokens) -> Result<(DeviceTokens, usize)> {
    match tokens {
        BorrowedTokens::Dense(array, element) => dense_tokens(array, element),
        BorrowedTokens::NvFp4(matrix) => {
            let (rows, k) = matrix.shape()?;
            let BorrowedMatrix { codes, scales, global, .. } = matrix;
            codes.expect_bytes()?;
            scales.expect_bytes()?;
            if !global.is_usable() {
                return Err(Error::value(codes.what(), format!("their global scale is {global}; it must be finite")));
            }
            Ok((DeviceTokens::nvfp4(codes.address(), scales.address(), rows, k, *global), rows))
        }
    }
}
