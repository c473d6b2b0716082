//! Whole layers on tensors in a GPU's memory, queued in a stream of the caller's.

use std::ffi::c_void;

use hammerhead::gpu::{self, DeviceOutput, DeviceRouting, DeviceTokens};
use hammerhead::{Activation, Router};

use crate::layer::{Layer, at, destroy, hand_out};
use crate::operands::{HAMMERHEAD_BF16, HAMMERHEAD_F16, HAMMERHEAD_F32, Output, Tokens, slice, slice_mut};
use crate::status::{Error, Result, guard};
use crate::whole::Vector;

/// A stream of a GPU, and what is queued there. Opaque; one thread at a time may use it.
#[derive(Debug)]
pub struct Queue(gpu::Queue);

/// Memory on the GPU for a queued call to work in, or none (NULL and 0): then the queue uses its own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    /// Where it is, a multiple of 256.
    pub address: *mut c_void,
    /// How many bytes there are: at least what hammerhead_layer_workspace_bytes says.
    pub bytes: usize,
}

impl Workspace {
    fn lent(&self) -> Option<(u64, usize)> {
        (!self.address.is_null()).then(|| (self.address.addr() as u64, self.bytes))
    }
}

/// The types of dense tokens and results.
fn element(element: u32, what: &str) -> Result<(Activation, hammerhead::Output)> {
    match element {
        HAMMERHEAD_F16 => Ok((Activation::F16, hammerhead::Output::F16)),
        HAMMERHEAD_BF16 => Ok((Activation::BF16, hammerhead::Output::BF16)),
        HAMMERHEAD_F32 => Ok((Activation::F32, hammerhead::Output::F32)),
        other => {
            let problem = format!("{other} is neither HAMMERHEAD_F16 nor HAMMERHEAD_BF16 nor HAMMERHEAD_F32");
            Err(Error::argument(format!("the element of {what}"), problem))
        }
    }
}

/// Refuses a number of bytes that is not what is expected.
pub(crate) fn expect(what: &str, came: usize, expected: Option<usize>) -> Result<()> {
    match expected {
        Some(expected) if expected == came => Ok(()),
        Some(expected) => Err(Error::Length { what: what.to_owned(), expected, came }),
        None => Err(Error::argument(what, "cannot be so large: memory ends before")),
    }
}

/// Tokens and results in the GPU's memory.
pub(crate) fn tensors(tokens: &Tokens, output: &Output) -> Result<(DeviceTokens, DeviceOutput)> {
    let ((activation, _), (_, of_output)) =
        (element(tokens.element, "the tokens")?, element(output.element, "the output")?);
    let elements = tokens.rows.checked_mul(tokens.k);
    let size = |bytes: usize| elements.and_then(|elements| elements.checked_mul(bytes));
    let (address, bytes) = (tokens.values.addr() as u64, if activation == Activation::F32 { 4 } else { 2 });
    expect("the tokens", tokens.values_bytes, size(bytes))?;
    expect("the output", output.values_bytes, size(of_output.bytes()))?;
    let with = match activation {
        Activation::F16 => DeviceTokens::f16,
        Activation::BF16 => DeviceTokens::bf16,
        _ => DeviceTokens::f32,
    };
    let tokens = with(address, tokens.rows, tokens.k).scaled_by(tokens.global_scale);
    Ok((tokens, DeviceOutput::new(of_output, output.values.addr() as u64)))
}

/// A queue that a pointer leads to.
///
/// # Safety
///
/// A pointer that is not null leads to a queue that nobody else uses for `'a`.
pub(crate) unsafe fn queue_at<'a>(queue: *mut Queue) -> Result<&'a mut gpu::Queue> {
    // SAFETY: the caller's promise.
    let queue = unsafe { queue.as_mut() };
    queue.map(|queue| &mut queue.0).ok_or_else(|| Error::Null { what: "queue".to_owned() })
}

/// Makes a queue on a stream of a GPU.
///
/// device: the GPU's number. stream: a CUstream or cudaStream_t of its primary context, or NULL for the default stream.
///
/// # Safety
///
/// The stream exists, and lives as long as the queue; `queue` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_queue_create(device: usize, stream: *mut c_void, queue: *mut *mut Queue) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { gpu::Queue::on_stream(device, stream.addr() as u64) }?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(Queue(made), queue, "queue") }
    })
}

/// Frees a queue, once what was queued there is done.
///
/// # Safety
///
/// `queue` is NULL or was made by hammerhead_queue_create and not yet freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_queue_destroy(queue: *mut Queue) {
    destroy(queue);
}

/// How many bytes a queued call of a whole layer works in, at most, for so many tokens of a type that have `top_k`
/// experts each; 0 for as many as the layer's routing chooses, or one without.
///
/// # Safety
///
/// `layer` is NULL or a layer; `bytes` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_workspace_bytes(
    layer: *const Layer,
    rows: usize,
    element_of_tokens: u32,
    top_k: usize,
    bytes: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (experts, router) = unsafe { at(layer, "layer") }?.experts()?;
        let top_k = if top_k == 0 { router.map_or(1, Router::top_k) } else { top_k };
        let needed = experts.queue_workspace_bytes(rows, element(element_of_tokens, "the tokens")?.0, top_k)?;
        // SAFETY: the caller's promise.
        unsafe { write(bytes, needed) }
    })
}

/// Which experts of a layer a GPU holds, where gpu_bytes leaves others to the processor. Writes at most `capacity` of
/// their numbers, and how many there are; none where all experts are in one place.
///
/// # Safety
///
/// `layer` is NULL or a layer; `experts` leads to room for `capacity` numbers, and `count` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_resident(
    layer: *const Layer,
    experts: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let resident = unsafe { at(layer, "layer") }?.experts()?.0.resident().unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { write_some(&resident, (experts, capacity, "experts"), count) }
    })
}

/// How often each expert of a layer in two places was asked for since it was loaded, modulo 2³²: up to `capacity` of
/// their counts, and how many there are; none where all experts are in one place. That is what to choose residents by.
///
/// # Safety
///
/// `layer` is NULL or a layer; `counts` leads to room for `capacity` numbers, and `count` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_asked(
    layer: *const Layer,
    counts: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let layer = unsafe { at(layer, "layer") }?.experts()?.0;
        let divided = layer.resident().is_some();
        let asked = if divided { layer.asked()?.unwrap_or_default() } else { Vec::new() };
        // SAFETY: the caller's promise.
        unsafe { write_some(&asked, (counts, capacity, "counts"), count) }
    })
}

/// Rows (tokens times experts of each) from which on calls bring weights over, as HammerheadWholeOptions asks for with
/// stream_rows, or 0 where none do. Where they were to and cannot, this fails, and hammerhead_last_error says why: then
/// the processor computes those experts.
///
/// # Safety
///
/// `layer` is NULL or a layer; `rows` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_streams_from(layer: *const Layer, rows: *mut usize) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let from = unsafe { at(layer, "layer") }?.experts()?.0.streams_from();
        let from = from.map_err(|reason| Error::argument("stream_rows", format!("cannot be granted: {reason}")))?;
        // SAFETY: the caller's promise.
        unsafe { write(rows, from.unwrap_or(0)) }
    })
}

/// Fails once with what went wrong in the processor's part of earlier calls of a layer in two places, whose results are
/// NaN then. The next call that is queued fails with it, too; a graph that is launched again queues none, so that a
/// program that launches graphs asks here.
///
/// # Safety
///
/// `layer` is NULL or a layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_check_host(layer: *const Layer) -> i32 {
    // SAFETY: the caller's promise.
    guard(|| Ok(unsafe { at(layer, "layer") }?.experts()?.0.check_host()?))
}

/// Writes as many numbers for the caller as there is room for, and how many there are.
///
/// # Safety
///
/// As for [`slice_mut`], and a pointer to a count that is not null may be written.
unsafe fn write_some(
    numbers: &[u32],
    (place, capacity, what): (*mut u32, usize, &str),
    count: *mut usize,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let room = unsafe { slice_mut(place, capacity.saturating_mul(size_of::<u32>()), what) }?;
    room.iter_mut().zip(numbers).for_each(|(place, &number)| *place = number);
    // SAFETY: the caller's promise.
    unsafe { write(count, numbers.len()) }
}

/// Queues the move of experts to and from the GPU: as many as hammerhead_layer_resident counts. What was queued before
/// finds the old ones there, what is queued behind it these; graphs of the layer are to be launched in this stream, or
/// in its order.
///
/// # Safety
///
/// `queue` and `layer` are NULL or such; `experts` leads to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_queue_place_experts(
    queue: *mut Queue,
    layer: *const Layer,
    experts: *const u32,
    count: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (queue, (layer, _)) = unsafe { (queue_at(queue)?, at(layer, "layer")?.experts()?) };
        // SAFETY: the caller's promise.
        let experts = unsafe { slice(experts, count.saturating_mul(size_of::<u32>()), "experts") }?;
        Ok(queue.place_experts(layer, experts)?)
    })
}

/// Writes a size for the caller.
///
/// # Safety
///
/// A pointer that is not null may be written.
unsafe fn write(place: *mut usize, value: usize) -> Result<()> {
    if place.is_null() {
        return Err(Error::Null { what: "bytes".to_owned() });
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Queues a layer of one expert over tokens [rows, k] in the GPU's memory, to [rows, k] there. Returns before it is
/// computed. The layer must have been packed by an engine of the backend "cuda". In a stream that is being captured, a
/// call with as many tokens must have been made before; the graph keeps the layer.
///
/// # Safety
///
/// The pointers in `tokens`, `output` and `workspace` are addresses of that many bytes in the GPU's memory, which
/// overlap nowhere and stay until the stream has done the work. Graphs of calls that bring weights over, captured in
/// one queue and without memory that is lent, are launched one after another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_queue_mlp(
    queue: *mut Queue,
    layer: *const Layer,
    tokens: *const Tokens,
    output: *const Output,
    workspace: Workspace,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (queue, (experts, _)) = unsafe { (queue_at(queue)?, at(layer, "layer")?.experts()?) };
        // SAFETY: the caller's promise.
        let (tokens, out) = unsafe { tensors(at(tokens, "tokens")?, at(output, "output")?) }?;
        // SAFETY: the caller's promise.
        Ok(unsafe { queue.enqueue_experts(experts, tokens, DeviceRouting::Everyone, out, workspace.lent()) }?)
    })
}

/// Queues a layer of experts over tokens [rows, k] in the GPU's memory, by the experts that the layer's routing chooses
/// by logits [rows, experts] that are there, in single precision. Otherwise as hammerhead_queue_mlp; a graph serves
/// whatever logits are there when it is launched.
///
/// # Safety
///
/// As for hammerhead_queue_mlp, for `logits` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_queue_moe_logits(
    queue: *mut Queue,
    layer: *const Layer,
    tokens: *const Tokens,
    logits: Vector,
    output: *const Output,
    workspace: Workspace,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (queue, layer, given) = unsafe { (queue_at(queue)?, at(layer, "layer")?, at(tokens, "tokens")?) };
        let (experts, router) = layer.experts()?;
        let Some(router) = router else {
            let problem = "cannot be read: the layer has no routing; load it with one, or call hammerhead_queue_moe";
            return Err(Error::argument("logits", problem));
        };
        expect("logits", logits.bytes, given.rows.checked_mul(4 * experts.count()))?;
        // SAFETY: the caller's promise.
        let (tokens, out) = tensors(given, unsafe { at(output, "output") }?)?;
        let routing = DeviceRouting::Logits { logits: logits.values.addr() as u64, router };
        // SAFETY: the caller's promise.
        Ok(unsafe { queue.enqueue_experts(experts, tokens, routing, out, workspace.lent()) }?)
    })
}

/// The same by experts whose numbers are given, with the weights that are given: [rows, top] each, in the GPU's memory.
/// A number outside of 0 to experts−1 adds nothing. id_bits and weights_on_input are as for hammerhead_moe_run.
///
/// # Safety
///
/// As for hammerhead_queue_mlp, for `ids` and `weights` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_queue_moe(
    queue: *mut Queue,
    layer: *const Layer,
    tokens: *const Tokens,
    ids: *const c_void,
    id_bits: u32,
    ids_bytes: usize,
    weights: Vector,
    weights_on_input: u32,
    output: *const Output,
    workspace: Workspace,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (queue, layer, given) = unsafe { (queue_at(queue)?, at(layer, "layer")?, at(tokens, "tokens")?) };
        let experts = layer.experts()?.0;
        let routing = given_on_device((ids, id_bits, ids_bytes), weights, weights_on_input, given.rows)?;
        // SAFETY: the caller's promise.
        let (tokens, out) = tensors(given, unsafe { at(output, "output") }?)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { queue.enqueue_experts(experts, tokens, routing, out, workspace.lent()) }?)
    })
}

/// A routing of so many tokens that the caller gives in the GPU's memory.
pub(crate) fn given_on_device<'a>(
    (ids, id_bits, ids_bytes): (*const c_void, u32, usize),
    weights: Vector,
    weights_on_input: u32,
    rows: usize,
) -> Result<DeviceRouting<'a>> {
    let wide = match id_bits {
        32 => false,
        64 => true,
        other => return Err(Error::argument("id_bits", format!("{other} is neither 32 nor 64"))),
    };
    let entries = weights.bytes / 4;
    let top = entries.checked_div(rows).unwrap_or(1);
    expect("weights", weights.bytes, rows.checked_mul(4 * top))?;
    expect("ids", ids_bytes, entries.checked_mul(if wide { 8 } else { 4 }))?;
    let (ids, weights) = (ids.addr() as u64, weights.values.addr() as u64);
    Ok(DeviceRouting::Given { ids, wide, weights, top, on_input: weights_on_input != 0 })
}
