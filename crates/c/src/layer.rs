//! Engines and layers behind opaque pointers, and the calls on them.

use std::ffi::{c_char, c_void};

use hammerhead::format::checkpoint::Checkpoint;
use hammerhead::format::{self, Dense};
use hammerhead::{ExpertSelection, Experts, Options, Router};

use crate::operands::{
    self, HAMMERHEAD_EXPERTS_ALL, HAMMERHEAD_EXPERTS_ONLY, HAMMERHEAD_EXPERTS_SHARED, InputScale, Output, Tokens,
    Weights, check_apart, gate_of, numbers, slice, slice_mut,
};
use crate::status::{Error, Result, guard};

/// Backends and threads, ready to compute. Opaque.
#[derive(Debug)]
pub struct Engine(pub(crate) hammerhead::Engine);

/// Packed weights, and what is computed with them: the gated products of groups, or a whole layer of one or many
/// experts, with what chooses among them. Opaque. A layer does not need its engine to stay, only one like it to be run
/// on.
#[derive(Debug)]
pub struct Layer(Computes);

/// What a layer computes.
#[derive(Debug)]
pub(crate) enum Computes {
    /// The gated products of every group.
    Products(hammerhead::Layer),
    /// From tokens to what the layer adds to them.
    Whole(Box<Experts>, Option<Box<Router>>),
}

impl Layer {
    pub(crate) fn whole(experts: Experts, router: Option<Router>) -> Self {
        Layer(Computes::Whole(Box::new(experts), router.map(Box::new)))
    }

    /// The products, if that is what it computes.
    fn products(&self) -> Result<&hammerhead::Layer> {
        match &self.0 {
            Computes::Products(layer) => Ok(layer),
            Computes::Whole(..) => {
                let problem =
                    "is a whole layer; call hammerhead_mlp_run, hammerhead_moe_run or hammerhead_moe_run_logits";
                Err(Error::argument("the layer", problem))
            }
        }
    }

    /// Experts and what chooses among them, if it is a whole layer.
    pub(crate) fn experts(&self) -> Result<(&Experts, Option<&Router>)> {
        match &self.0 {
            Computes::Whole(experts, router) => Ok((experts, router.as_deref())),
            Computes::Products(_) => {
                let problem = "has gated products alone; load it with hammerhead_mlp_load or hammerhead_moe_load";
                Err(Error::argument("the layer", problem))
            }
        }
    }
}

/// What a pointer leads to.
///
/// # Safety
///
/// A pointer that is not null leads to a T that stays for `'a`.
pub(crate) unsafe fn at<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Error::Null { what: what.to_owned() })
}

/// Hands a new object to the caller.
///
/// # Safety
///
/// A pointer that is not null may be written.
pub(crate) unsafe fn hand_out<T>(made: T, place: *mut *mut T, what: &str) -> Result<()> {
    if place.is_null() {
        return Err(Error::Null { what: what.to_owned() });
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { place.write(Box::into_raw(Box::new(made))) };
    Ok(())
}

/// Makes an engine.
///
/// backend: a backend's name ("avx2", "cuda"), or NULL for what the environment's HAMMERHEAD_BACKEND says, else the
/// best there is. threads: how many to compute on, or 0 for as many as this process may run on. config: wishes for how
/// to compute, such as "strategy=interleaved,tile=48x16", or NULL.
///
/// # Safety
///
/// Texts are NULL or end with a zero byte; `engine` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_engine_create(
    backend: *const c_char,
    threads: usize,
    config: *const c_char,
    engine: *mut *mut Engine,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (backend, config) = unsafe { (operands::text(backend, "backend")?, operands::text(config, "config")?) };
        let made = hammerhead::Engine::new(Options {
            backend: backend.map(str::to_owned),
            threads: (threads != 0).then_some(threads),
            request: config.unwrap_or_default().parse()?,
        })?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(Engine(made), engine, "engine") }
    })
}

/// Frees an engine.
///
/// # Safety
///
/// `engine` is NULL or was made by hammerhead_engine_create and not yet freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_engine_destroy(engine: *mut Engine) {
    destroy(engine);
}

/// Sets what the runs of a layer of products round dense tokens and weights to before they multiply them: "exact"
/// (nothing, as it is loaded) or "fp8", which changes results as docs/fp8.md defines. Only Hopper GPUs compute that
/// (backend "cuda"): hammerhead_run fails elsewhere. Whole layers (MLPs, mixtures of experts) are exact only.
///
/// # Safety
///
/// `layer` was made by a load function and not yet freed, and no other call uses it; the text ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_set_precision(layer: *mut Layer, precision: *const c_char) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (layer, name) = unsafe { (layer.as_mut(), operands::text(precision, "precision")?) };
        let layer = layer.ok_or_else(|| Error::Null { what: "layer".to_owned() })?;
        let name = name.ok_or_else(|| Error::Null { what: "precision".to_owned() })?;
        layer.0 = Computes::Products(layer.products()?.clone().with_precision(name.parse()?));
        Ok(())
    })
}

/// Frees a layer.
///
/// # Safety
///
/// `layer` is NULL or was made by a load function and not yet freed, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_destroy(layer: *mut Layer) {
    destroy(layer);
}

pub(crate) fn destroy<T>(object: *mut T) {
    if object.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: all callers pass on their caller's promise that `hand_out` made it and that this is its only end.
        drop(unsafe { Box::from_raw(object) });
        Ok(())
    });
}

/// Packs the weights of `count` groups (one for a plain layer, one per expert else). They are not needed afterwards.
///
/// gate: HAMMERHEAD_GATE_SILU or one of its kin. clamp: the gate's limit; 0 is none for SiLU and the published one for
/// gpt-oss, and all other gates have none.
///
/// # Safety
///
/// `groups` leads to `count` structures whose pointers lead to as many bytes as they say; `layer` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_load(
    engine: *const Engine,
    groups: *const Weights,
    count: usize,
    gate: u32,
    clamp: f32,
    layer: *mut *mut Layer,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { loaded(engine, groups, None, count, (gate, clamp)) }?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, layer, "layer") }
    })
}

/// The same for weights whose tokens are multiplied first: `input_scales` are `count` vectors of factors, one per
/// group. Every run of the layer multiplies its tokens, which must not be NVFP4.
///
/// # Safety
///
/// As for hammerhead_layer_load, for `input_scales` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_load_scaled(
    engine: *const Engine,
    groups: *const Weights,
    input_scales: *const InputScale,
    count: usize,
    gate: u32,
    clamp: f32,
    layer: *mut *mut Layer,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { loaded(engine, groups, Some(input_scales), count, (gate, clamp)) }?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, layer, "layer") }
    })
}

/// A layer of so many groups, with input scales or without.
///
/// # Safety
///
/// All pointers lead to what the functions above say.
unsafe fn loaded(
    engine: *const Engine,
    groups: *const Weights,
    input_scales: Option<*const InputScale>,
    count: usize,
    (gate, clamp): (u32, f32),
) -> Result<Layer> {
    let gate = gate_of(gate, clamp)?;
    // SAFETY: the caller's promise.
    let (engine, groups) = unsafe { (at(engine, "engine")?, structures(groups, count, "groups")?) };
    if groups.is_empty() {
        return Err(hammerhead::Error::NoGroups.into());
    }
    // SAFETY: the caller's promise.
    let weights =
        groups.iter().enumerate().map(|(group, weights)| unsafe { weights.borrow(&format!("group {group}"), gate) });
    let mut weights = weights.collect::<Result<Vec<_>>>()?;
    if let Some(scales) = input_scales {
        // SAFETY: the caller's promise.
        let scales = unsafe { structures(scales, count, "input_scales") }?.iter().enumerate();
        // SAFETY: the caller's promise.
        let scaled = scales.zip(weights).map(|((group, scale), weights)| unsafe { scale.added_to(group, weights) });
        weights = scaled.collect::<Result<_>>()?;
    }
    Ok(Layer(Computes::Products(engine.0.load(&weights, gate)?)))
}

/// Reads gated pairs of a layer of a model on disk and packs them, one group each, with the gate that the model
/// declares.
///
/// path: a folder, an index of shards, or a single safetensors or GGUF file. number: the layer's in the model. which:
/// HAMMERHEAD_EXPERTS_ALL, HAMMERHEAD_EXPERTS_SHARED, or HAMMERHEAD_EXPERTS_ONLY for those of the `count` numbers at
/// `experts`.
///
/// # Safety
///
/// `path` ends with a zero byte; `experts` is NULL or leads to `count` numbers; `layer` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_load_checkpoint(
    engine: *const Engine,
    path: *const c_char,
    number: usize,
    which: u32,
    experts: *const usize,
    count: usize,
    layer: *mut *mut Layer,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (engine, path) = unsafe { (at(engine, "engine")?, operands::text(path, "path")?) };
        let path = path.ok_or_else(|| Error::Null { what: "path".to_owned() })?;
        // SAFETY: the caller's promise.
        let numbers = unsafe { structures(experts, count, "experts") }?;
        let experts = match which {
            HAMMERHEAD_EXPERTS_ALL => ExpertSelection::All,
            HAMMERHEAD_EXPERTS_ONLY => ExpertSelection::Only(numbers),
            HAMMERHEAD_EXPERTS_SHARED => ExpertSelection::Shared,
            _ => {
                return Err(Error::argument(
                    "which",
                    format!("{which} is none; see HAMMERHEAD_EXPERTS_ALL and its kin"),
                ));
            }
        };
        let made = engine.0.load_checkpoint(&Checkpoint::open(path)?, number, experts, None)?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(Layer(Computes::Products(made)), layer, "layer") }
    })
}

/// The number of groups of a layer of products; 0 for NULL and for whole layers, of which hammerhead_moe_shape tells.
///
/// # Safety
///
/// `layer` is NULL or a layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_groups(layer: *const Layer) -> usize {
    // SAFETY: the caller's promise.
    let layer = unsafe { layer.as_ref() };
    layer.and_then(|layer| layer.products().ok()).map_or(0, |products| products.shapes().len())
}

/// The columns of a group's result, and the elements of its tokens.
///
/// # Safety
///
/// `layer` is NULL or a layer; `n` and `k` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_shape(
    layer: *const Layer,
    group: usize,
    n: *mut usize,
    k: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let columns = unsafe { at(layer, "layer") }?.products()?.shapes();
        let Some(&(found_n, found_k)) = columns.get(group) else {
            return Err(Error::argument("group", format!("{group} is not among the layer's {}", columns.len())));
        };
        for (place, found) in [(n, found_n), (k, found_k)] {
            if !place.is_null() {
                // SAFETY: not null, and the caller's promise.
                unsafe { place.write(found) };
            }
        }
        Ok(())
    })
}

/// Computes every group of a layer: gate(A·B1ᵀ) ∘ (A·B2ᵀ) of its tokens, to its output. `count` must be the layer's
/// number of groups.
///
/// # Safety
///
/// `tokens` and `outputs` lead to `count` structures each, whose pointers lead to as many bytes as they say; those of
/// outputs may be written, and nobody else touches them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_run(
    engine: *const Engine,
    layer: *const Layer,
    tokens: *const Tokens,
    outputs: *const Output,
    count: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (engine, layer) = unsafe { (at(engine, "engine")?, at(layer, "layer")?) };
        // SAFETY: the caller's promise.
        let (tokens, outputs) =
            unsafe { (structures(tokens, count, "tokens")?, structures(outputs, count, "outputs")?) };
        check_apart(tokens, outputs)?;
        // SAFETY: the caller's promise.
        let activations = tokens.iter().enumerate().map(|(group, tokens)| unsafe { tokens.borrow(group) });
        let activations = activations.collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller's promise, and `check_apart` for what Rust asks beyond it.
        let targets = outputs.iter().enumerate().map(|(group, output)| unsafe { output.borrow(group) });
        let mut targets = targets.collect::<Result<Vec<_>>>()?;
        Ok(engine.0.run_into(layer.products()?, &activations, &mut targets)?)
    })
}

/// Quantises [rows, k] numbers (HAMMERHEAD_F16, HAMMERHEAD_BF16 or HAMMERHEAD_F32) to NVFP4: rows·k/2 bytes of codes,
/// rows·k/16 bytes of scales, and the global scale.
///
/// # Safety
///
/// Pointers lead to as many bytes as is said beside them; those for results may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_quantize(
    element: u32,
    values: *const c_void,
    values_bytes: usize,
    rows: usize,
    k: usize,
    codes: *mut u8,
    codes_bytes: usize,
    scales: *mut u8,
    scales_bytes: usize,
    global_scale: *mut f32,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let numbers = unsafe { numbers(element, values, values_bytes, [rows, k], "values") }?;
        let quantised = format::quantize(&Dense::new(rows, k, numbers, 1.0)?, None)?;
        if global_scale.is_null() {
            return Err(Error::Null { what: "global_scale".to_owned() });
        }
        for (place, bytes, source, what) in
            [(codes, codes_bytes, quantised.codes(), "codes"), (scales, scales_bytes, quantised.scales(), "scales")]
        {
            if bytes != source.len() {
                return Err(Error::Length { what: what.to_owned(), expected: source.len(), came: bytes });
            }
            // SAFETY: the caller's promise.
            unsafe { slice_mut(place, bytes, what) }?.copy_from_slice(source);
        }
        // Exact: the scale that quantising chooses multiplies.
        let global = quantised.global().value() as f32;
        // SAFETY: not null, and the caller's promise.
        unsafe { global_scale.write(global) };
        Ok(())
    })
}

/// So many structures at a pointer.
///
/// # Safety
///
/// As for [`slice`].
pub(crate) unsafe fn structures<'a, T: Copy>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    let bytes = bytes.ok_or_else(|| Error::argument(what, format!("cannot be {count}: memory ends before")))?;
    // SAFETY: the caller's promise.
    unsafe { slice(pointer, bytes, what) }
}
