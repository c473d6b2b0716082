//! Tensors in a GPU's memory: their addresses are lent to a queue on candle's own stream, so that the work stands in it
//! like candle's, and nothing is waited for.
//!
//! The layers must have been packed on that GPU: by an engine of the backend `cuda` alone.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use candle_core::{CudaStorage, Error, Layout, Result, Shape, bail};
use hammerhead::gpu::{DeviceOutput, DeviceTokens, Queue};

use crate::tokens::{contiguous, theirs};

/// A stream of candle's and what is queued there through this crate. The stream lives as long as its queue, and both as
/// long as the process: queues keep working memory and what they know of earlier calls.
struct Queued {
    stream: Arc<CudaStream>,
    queue: Queue,
}

/// By device and the stream's handle.
type Queues = HashMap<(usize, u64), Arc<Mutex<Queued>>>;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);

/// A tensor beside the tokens: what it is called in messages, and the tensor.
pub(crate) type Beside<'a> = (&'static str, &'a CudaStorage, &'a Layout);

/// Computes contiguous tokens `[…, k]` in f16, bf16 or f32 into results `[…, width]` of the same type. `enqueue` is
/// given addresses that are valid in the queue's stream until what it queues is done, those of the tensors beside the
/// tokens in their order.
pub(crate) fn compute<const N: usize>(
    name: &'static str,
    tokens: (&CudaStorage, &Layout),
    beside: [Beside<'_>; N],
    width: usize,
    enqueue: impl FnOnce(&mut Queue, DeviceTokens, [u64; N], DeviceOutput) -> hammerhead::Result<()>,
) -> Result<(CudaStorage, Shape)> {
    let rows = tokens.1.dims().split_last().map_or(0, |(_, leading)| leading.iter().product());
    compute_groups(name, tokens, beside, width, &[rows], |queue, tokens, beside, outputs| {
        enqueue(queue, tokens[0], beside, outputs[0])
    })
}

/// The same for rows that belong to groups, so many to each.
pub(crate) fn compute_groups<const N: usize>(
    name: &'static str,
    (storage, layout): (&CudaStorage, &Layout),
    beside: [Beside<'_>; N],
    width: usize,
    counts: &[usize],
    enqueue: impl FnOnce(&mut Queue, &[DeviceTokens], [u64; N], &[DeviceOutput]) -> hammerhead::Result<()>,
) -> Result<(CudaStorage, Shape)> {
    let Some((&k, leading)) = layout.dims().split_last() else {
        bail!("{name} takes tokens [..., k], and this tensor has no dimensions: reshape it to (1, k)");
    };
    let (start, _) = contiguous(name, "tokens", layout)?;
    let device = storage.device.clone();
    let queued = queued(&device.cuda_stream())?;
    let mut queued = queued.lock().unwrap_or_else(PoisonError::into_inner);
    let Queued { stream, queue } = &mut *queued;
    let lent = beside.iter().map(|&(what, storage, layout)| address(name, what, storage, layout, stream));
    let lent = lent.collect::<Result<Vec<_>>>()?;
    let addresses = std::array::from_fn(|index| lent[index].0);
    let rows: usize = counts.iter().sum();
    macro_rules! computed {
        ($values:expr, $kind:ident, $tokens:expr, $output:expr) => {{
            let bytes = element_bytes($values);
            // SAFETY: whatever is there, the kernels that are queued below write every element before anything else in
            // the stream reads one.
            let mut results = unsafe { device.alloc(rows * width) }?;
            {
                let (from, _read) = $values.device_ptr(stream);
                let (to, _written) = results.device_ptr_mut(stream);
                let (mut given, mut room) = (from + (start * bytes) as u64, to);
                let (mut tokens, mut outputs) = (Vec::new(), Vec::new());
                for &count in counts {
                    tokens.push($tokens(given, count, k));
                    outputs.push($output(room));
                    (given, room) = (given + (count * k * bytes) as u64, room + (count * width * bytes) as u64);
                }
                if rows > 0 {
                    enqueue(queue, &tokens, addresses, &outputs)
                        .map_err(|error| Error::wrap(format!("{name}: {error}")))?;
                }
            }
            CudaStorageSlice::$kind(results)
        }};
    }
    let slice = match &storage.slice {
        CudaStorageSlice::F16(values) => computed!(values, F16, DeviceTokens::f16, DeviceOutput::f16),
        CudaStorageSlice::BF16(values) => computed!(values, BF16, DeviceTokens::bf16, DeviceOutput::bf16),
        CudaStorageSlice::F32(values) => computed!(values, F32, DeviceTokens::f32, DeviceOutput::f32),
        _ => bail!(
            "{name} takes tokens in f16, bf16 or f32, and these are {:?}: convert them with to_dtype",
            storage.dtype()
        ),
    };
    drop(lent);
    Ok((CudaStorage { slice, device }, Shape::from([leading, &[width]].concat())))
}

fn element_bytes<T>(_: &CudaSlice<T>) -> usize {
    std::mem::size_of::<T>()
}

/// The queue of a stream, made when it is first used.
fn queued(stream: &Arc<CudaStream>) -> Result<Arc<Mutex<Queued>>> {
    let (device, handle) = (stream.context().ordinal(), stream.cu_stream() as u64);
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queued) = queues.get(&(device, handle)) {
        return Ok(Arc::clone(queued));
    }
    // SAFETY: candle's stream belongs to the device's primary context; it is kept beside the queue, and dropped after
    // it or never.
    let queue = unsafe { Queue::on_stream(device, handle) }.map_err(theirs)?;
    let queued = Arc::new(Mutex::new(Queued { stream: Arc::clone(stream), queue }));
    queues.insert((device, handle), Arc::clone(&queued));
    Ok(queued)
}

/// Where a contiguous tensor begins, and what tells candle when it was read.
fn address<'a>(
    name: &'static str,
    what: &str,
    storage: &'a CudaStorage,
    layout: &Layout,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    fn of<'a, T: DeviceRepr>(values: &'a CudaSlice<T>, start: usize, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        let (address, read) = values.device_ptr(stream);
        (address + (start * std::mem::size_of::<T>()) as u64, read)
    }
    let (start, _) = contiguous(name, what, layout)?;
    Ok(match &storage.slice {
        CudaStorageSlice::U32(values) => of(values, start, stream),
        CudaStorageSlice::I32(values) => of(values, start, stream),
        CudaStorageSlice::I64(values) => of(values, start, stream),
        CudaStorageSlice::F32(values) => of(values, start, stream),
        _ => bail!("{name}: {what} are {:?}, which it does not take", storage.dtype()),
    })
}
