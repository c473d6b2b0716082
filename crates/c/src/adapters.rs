//! Low-rank adapters (LoRA) of whole layers, of which every token of a call may have one.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use hammerhead::format::Dense;
use hammerhead::gpu::DeviceAdapters;
use hammerhead::{Adapted, Experts};

use crate::layer::{Engine, Layer, at, destroy, hand_out, structures};
use crate::operands::{Output, Tokens, numbers, slice};
use crate::queue::{Queue, expect, given_on_device, queue_at, tensors};
use crate::status::{Error, Result, guard};
use crate::whole::{Vector, given, run};

/// What an adapter adds to a matrix's product, b·(a·x) times the adapter's scaling; or nothing: a is NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LowRank {
    /// The rank, at most 64.
    pub rank: usize,
    /// HAMMERHEAD_F16, HAMMERHEAD_BF16 or HAMMERHEAD_F32, of a and b.
    pub element: u32,
    /// Numbers [rank, columns of the matrix], peft's lora_A; or NULL.
    pub a: *const c_void,
    /// The bytes at `a`.
    pub a_bytes: usize,
    /// Numbers [rows of the matrix, rank], peft's lora_B.
    pub b: *const c_void,
    /// The bytes at `b`.
    pub b_bytes: usize,
}

/// What an adapter adds to the matrices of an expert.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpertLowRanks {
    /// To the gate matrix, or the only one.
    pub b1: LowRank,
    /// To the up matrix; nothing where the gate takes one.
    pub b2: LowRank,
    /// To the down projection.
    pub down: LowRank,
}

/// One adapter of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Adapter {
    /// What all that it adds is multiplied with: peft's lora_alpha / r.
    pub scaling: f32,
    /// A structure for every expert of the layer.
    pub experts: *const ExpertLowRanks,
    /// One for the shared expert, or NULL.
    pub shared: *const ExpertLowRanks,
}

/// Adapters of a layer. Opaque. On a GPU they are put beside the layer's weights by the first call there.
#[derive(Debug)]
pub struct Adapters {
    all: Arc<hammerhead::Adapters>,
    device: Mutex<Option<Arc<DeviceAdapters>>>,
}

/// The adapter of every token.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenAdapters {
    /// The adapters.
    pub adapters: *const Adapters,
    /// The number of each token's, signed, 32 bits; -1 for none.
    pub ids: *const i32,
    /// The bytes at `ids`: four per token.
    pub ids_bytes: usize,
}

impl LowRank {
    /// The pair for a matrix [n, k], copied.
    ///
    /// # Safety
    ///
    /// As for [`slice`].
    unsafe fn copy(&self, [n, k]: [usize; 2], what: &str) -> Result<Option<hammerhead::LowRank>> {
        if self.a.is_null() {
            return Ok(None);
        }
        let of = |values, bytes, shape: [usize; 2], name: &str| {
            // SAFETY: the caller's promise.
            let values = unsafe { numbers(self.element, values, bytes, shape, &format!("{name} of {what}")) }?;
            Ok::<_, Error>(Dense::new(shape[0], shape[1], values, 1.0)?)
        };
        let (a, b) = (of(self.a, self.a_bytes, [self.rank, k], "a")?, of(self.b, self.b_bytes, [n, self.rank], "b")?);
        Ok(Some(hammerhead::LowRank::new(&a, &b)?))
    }
}

impl ExpertLowRanks {
    /// The pairs of an expert of these widths, copied.
    ///
    /// # Safety
    ///
    /// As for [`slice`], for all pointers.
    unsafe fn copy(&self, [k, inner, out]: [usize; 3], of: &str) -> Result<[Option<hammerhead::LowRank>; 3]> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok([
                self.b1.copy([inner, k], &format!("b1 of {of}"))?,
                self.b2.copy([inner, k], &format!("b2 of {of}"))?,
                self.down.copy([out, inner], &format!("down of {of}"))?,
            ])
        }
    }
}

/// Adapters of a layer, copied.
///
/// # Safety
///
/// Each has a structure for every expert, and all pointers lead to as many bytes as is said beside them.
unsafe fn copied(experts: &Experts, adapters: &[Adapter]) -> Result<hammerhead::Adapters> {
    let (mut all, mut shared, mut any_shared) = (Vec::new(), Vec::new(), false);
    let of_all = experts.shared_widths();
    for (number, adapter) in adapters.iter().enumerate() {
        let scaling = adapter.scaling;
        // SAFETY: the caller's promise.
        let pairs = unsafe { structures(adapter.experts, experts.count(), "experts of an adapter") }?;
        let expert = |(expert, pairs): (usize, &ExpertLowRanks)| {
            // SAFETY: the caller's promise.
            unsafe { pairs.copy(experts.widths(), &format!("expert {expert} of adapter {number}")) }
        };
        let own = pairs.iter().enumerate().map(expert).collect::<Result<Vec<_>>>()?;
        all.push(hammerhead::Adapter { scaling, experts: own });
        // SAFETY: the caller's promise.
        let pairs = match (unsafe { adapter.shared.as_ref() }, of_all) {
            (None, _) => [None, None, None],
            (Some(_), None) => {
                return Err(Error::argument("shared", "must be NULL, because the layer has no shared expert"));
            }
            (Some(pairs), Some(widths)) => {
                any_shared = true;
                // SAFETY: the caller's promise.
                unsafe { pairs.copy(widths, &format!("the shared expert of adapter {number}")) }?
            }
        };
        shared.push(hammerhead::Adapter { scaling, experts: vec![pairs] });
    }
    let all = hammerhead::Adapters::new(all, experts.count(), experts.widths())?;
    match of_all.filter(|_| any_shared) {
        Some(widths) => Ok(all.with_shared(hammerhead::Adapters::new(shared, 1, widths)?)?),
        None => Ok(all),
    }
}

/// Makes adapters of a whole layer, of which each token of a call may have one. Their numbers are copied.
///
/// # Safety
///
/// `adapters` leads to `count` structures, each of which has a structure for every expert of the layer; all pointers in
/// structures lead to as many bytes as is said beside them; `made` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_adapters_create(
    layer: *const Layer,
    adapters: *const Adapter,
    count: usize,
    made: *mut *mut Adapters,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (layer, adapters) = unsafe { (at(layer, "layer")?, structures(adapters, count, "adapters")?) };
        // SAFETY: the caller's promise.
        let all = Arc::new(unsafe { copied(layer.experts()?.0, adapters) }?);
        // SAFETY: the caller's promise.
        unsafe { hand_out(Adapters { all, device: Mutex::default() }, made, "made") }
    })
}

/// Frees adapters.
///
/// # Safety
///
/// `adapters` is NULL or was made by hammerhead_adapters_create and not yet freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_adapters_destroy(adapters: *mut Adapters) {
    destroy(adapters);
}

/// hammerhead_moe_run with an adapter beside the weights for tokens that have one. A layer of one expert takes ids that
/// are all 0, and weights of 1.
///
/// # Safety
///
/// As for hammerhead_moe_run, for `adapted` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_moe_run_adapted(
    engine: *const Engine,
    layer: *const Layer,
    tokens: *const Tokens,
    ids: *const c_void,
    id_bits: u32,
    ids_bytes: usize,
    weights: Vector,
    weights_on_input: u32,
    adapted: TokenAdapters,
    output: *const Output,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (experts, rows) = unsafe { (at(layer, "layer")?.experts()?.0, at(tokens, "tokens")?.rows) };
        // SAFETY: the caller's promise.
        let routed = unsafe { given((ids, id_bits, ids_bytes), weights, weights_on_input, [rows, experts.count()]) }?;
        // SAFETY: the caller's promise.
        let (adapters, numbers) =
            unsafe { (at(adapted.adapters, "adapters")?, slice(adapted.ids, adapted.ids_bytes, "adapted.ids")?) };
        let routed = routed.adapted(Adapted::new(Arc::clone(&adapters.all), numbers)?)?;
        // SAFETY: the caller's promise.
        unsafe { run(engine, experts, tokens, &routed, output) }
    })
}

/// hammerhead_queue_moe with an adapter beside the weights for tokens that have one: their numbers are in the GPU's
/// memory, and a number that is no adapter's means none. The queue's own workspace is taken. The first call with these
/// adapters puts them into the GPU's memory, and must not be captured.
///
/// # Safety
///
/// As for hammerhead_queue_moe, for `adapted` too, which is freed no earlier than the stream has done the work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_queue_moe_adapted(
    queue: *mut Queue,
    layer: *const Layer,
    tokens: *const Tokens,
    ids: *const c_void,
    id_bits: u32,
    ids_bytes: usize,
    weights: Vector,
    weights_on_input: u32,
    adapted: TokenAdapters,
    output: *const Output,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (queue, layer, tokens) = unsafe { (queue_at(queue)?, at(layer, "layer")?, at(tokens, "tokens")?) };
        // SAFETY: the caller's promise.
        let (adapters, output) = unsafe { (at(adapted.adapters, "adapters")?, at(output, "output")?) };
        let experts = layer.experts()?.0;
        let routing = given_on_device((ids, id_bits, ids_bytes), weights, weights_on_input, tokens.rows)?;
        expect("adapted.ids", adapted.ids_bytes, tokens.rows.checked_mul(4))?;
        let (tokens, out) = tensors(tokens, output)?;
        let mut device = adapters.device.lock().unwrap_or_else(PoisonError::into_inner);
        let there = match &*device {
            Some(there) => Arc::clone(there),
            None => Arc::clone(device.insert(experts.device_adapters(&adapters.all)?)),
        };
        let adapted = (&there, adapted.ids.addr() as u64);
        // SAFETY: the caller's promise.
        Ok(unsafe { queue.enqueue_adapted_experts(experts, tokens, routing, adapted, out) }?)
    })
}
