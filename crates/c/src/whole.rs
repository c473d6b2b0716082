//! Whole layers behind the same pointers as products: MLPs, which are layers of one expert, and experts with their
//! router.

use std::ffi::{c_char, c_void};

use hammerhead::feed_forward;
use hammerhead::format::checkpoint::Checkpoint;
use hammerhead::format::{Dense, GlobalScale};
use hammerhead::routing::Groups;
use hammerhead::{
    Activations, ExpertWeights, Experts, Gate, Ids, Intermediate, LayerOptions, MlpWeights, Precision, Routed, Router,
    Scoring, SharedWeights, Streaming,
};

use crate::layer::{Engine, Layer, at, hand_out, structures};
use crate::operands::{self, Matrix, Output, Tokens, check_apart, gate_of, slice, slice_mut};
use crate::status::{Error, Result, guard};

/// What stands between the products of an MLP: the type of the tokens.
pub const HAMMERHEAD_INTERMEDIATE_TOKENS: u32 = 0;
/// Single precision.
pub const HAMMERHEAD_INTERMEDIATE_F32: u32 = 1;
/// NVFP4, with each MLP's `intermediate_scale`.
pub const HAMMERHEAD_INTERMEDIATE_NVFP4: u32 = 2;

/// The operands of both products are multiplied as they are.
pub const HAMMERHEAD_PRECISION_EXACT: u32 = 0;
/// They are rounded to e4m3, which changes results as docs/fp8.md defines, and is computed by Hopper GPUs alone.
pub const HAMMERHEAD_PRECISION_FP8: u32 = 1;

/// The largest logits; weights are the softmax over all experts.
pub const HAMMERHEAD_ROUTING_SOFTMAX: u32 = 0;
/// The same, divided by the sum over the chosen ones.
pub const HAMMERHEAD_ROUTING_SOFTMAX_RENORM: u32 = 1;
/// The largest logits; weights are the softmax of those (gpt-oss).
pub const HAMMERHEAD_ROUTING_TOPK_SOFTMAX: u32 = 2;
/// The largest sigmoids plus correction, inside the best groups; weights are the sigmoids, divided by their sum
/// (DeepSeek-V3).
pub const HAMMERHEAD_ROUTING_SIGMOID: u32 = 3;
/// The same without the division.
pub const HAMMERHEAD_ROUTING_SIGMOID_PLAIN: u32 = 4;
/// The largest logits; their sigmoids multiply the experts' inputs (Llama-4).
pub const HAMMERHEAD_ROUTING_SIGMOID_INPUT: u32 = 5;
/// As [`HAMMERHEAD_ROUTING_SIGMOID`], with the root of ln(1 + eˣ) in place of the sigmoid (DeepSeek-V4).
pub const HAMMERHEAD_ROUTING_SQRT_SOFTPLUS: u32 = 6;

const ROUTINGS: [Scoring; 7] = [
    Scoring::Softmax,
    Scoring::SoftmaxRenorm,
    Scoring::TopKSoftmax,
    Scoring::Sigmoid,
    Scoring::SigmoidPlain,
    Scoring::SigmoidInput,
    Scoring::SqrtSoftplus,
];

/// Finite numbers in single precision, or none: NULL and 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// The numbers.
    pub values: *const f32,
    /// The bytes at `values`: four per number.
    pub bytes: usize,
}

/// The weights of one MLP: down(gate(x·b1ᵀ + b1_bias, x·b2ᵀ + b2_bias)) + down_bias.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MlpMatrices {
    /// The gate matrix [n, k], or the only one where the gate takes one.
    pub b1: Matrix,
    /// The up matrix [n, k]; its pointers are NULL where the gate takes one matrix.
    pub b2: Matrix,
    /// The down projection [k, n].
    pub down: Matrix,
    /// n numbers, or none.
    pub b1_bias: Vector,
    /// n numbers, or none.
    pub b2_bias: Vector,
    /// k numbers, or none.
    pub down_bias: Vector,
    /// k numbers that tokens are multiplied with first (AWQ's pre_quant_scale), or none.
    pub input_scale: Vector,
    /// n numbers that the intermediate is multiplied with before `down`, or none.
    pub down_input_scale: Vector,
    /// The global scale of an NVFP4 intermediate; 0 for 1.
    pub intermediate_scale: f32,
}

/// How a router's logits become experts and weights.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// HAMMERHEAD_ROUTING_SOFTMAX or one of its kin.
    pub scoring: u32,
    /// Experts per token.
    pub top_k: usize,
    /// With sigmoids, a number per expert that is added for choosing only, or none.
    pub correction: Vector,
    /// With sigmoids, groups of experts; 0 for none.
    pub groups: usize,
    /// How many of them may be chosen from, those whose best two sum highest.
    pub best_groups: usize,
    /// What weights are multiplied with; 0 for 1.
    pub scaling: f32,
}

/// How a whole layer is computed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WholeOptions {
    /// HAMMERHEAD_INTERMEDIATE_TOKENS or one of its kin.
    pub intermediate: u32,
    /// Whether a token's result may depend on nothing but that token and the weights, to the bit: 0 or 1.
    pub batch_invariant: u32,
    /// HAMMERHEAD_PRECISION_EXACT or HAMMERHEAD_PRECISION_FP8.
    pub precision: u32,
    /// What the rows that are computed at a time may take, in bytes; 0 for 512 MiB. One token is always computed.
    pub workspace_bytes: usize,
    /// What the weights may take of a GPU's memory, where the engine computes there; 0 for all that there is. Experts
    /// beyond it stay in the host's memory, and the processor computes them while the GPU computes the others.
    pub gpu_bytes: usize,
    /// Rows (tokens times experts of each) from which on a call has the GPU compute those experts too, with weights
    /// that it brings over for the while; 0 for never. What it brings takes as much of the host's memory again as all
    /// experts do. docs/layers.md says where that pays. With batch_invariant only 0 and 1, never and in every call,
    /// will do.
    pub stream_rows: usize,
}

impl Vector {
    /// The numbers, borrowed from the caller, if there are any.
    ///
    /// # Safety
    ///
    /// As for [`slice`].
    unsafe fn borrow<'a>(&self, what: &str) -> Result<Option<&'a [f32]>> {
        if self.values.is_null() && self.bytes == 0 {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { slice(self.values, self.bytes, what) }.map(Some)
    }
}

impl MlpMatrices {
    /// The weights, borrowed from the caller. `of` names them in complaints.
    ///
    /// # Safety
    ///
    /// All pointers that are not NULL lead to as many bytes as is said beside them.
    unsafe fn borrow<'a>(&self, of: &str, gate: Gate) -> Result<MlpWeights<'a>> {
        let named = |error: hammerhead::Error| Error::argument(of, format!("will not do: {error}"));
        // SAFETY: the caller's promise, here and for every part below.
        let pair = unsafe { operands::Weights { b1: self.b1, b2: self.b2 }.borrow(of, gate) }?;
        // SAFETY: the caller's promise.
        let down = unsafe { self.down.borrow(&format!("down of {of}")) }?;
        // SAFETY: the caller's promise.
        let biases = unsafe { [self.b1_bias.borrow("b1_bias")?, self.b2_bias.borrow("b2_bias")?] };
        let mut first = pair;
        if biases.iter().any(Option::is_some) {
            let n = first.n();
            if gate.matrices() == 1 && biases[1].is_some() {
                return Err(Error::argument(
                    format!("b2_bias of {of}"),
                    "must be NULL, because this gate takes one matrix",
                ));
            }
            let all = biases[..gate.matrices()].iter().map(|bias| bias.map_or_else(|| vec![0.0; n], <[f32]>::to_vec));
            first = first.with_bias(all).map_err(named)?;
        }
        let mut second = hammerhead::Weights::plain(down);
        // SAFETY: the caller's promise.
        if let Some(bias) = unsafe { self.down_bias.borrow("down_bias") }? {
            second = second.with_bias([bias]).map_err(named)?;
        }
        // SAFETY: the caller's promise.
        if let Some(scale) = unsafe { self.input_scale.borrow("input_scale") }? {
            first = first.with_input_scale(scale).map_err(named)?;
        }
        // SAFETY: the caller's promise.
        if let Some(scale) = unsafe { self.down_input_scale.borrow("down_input_scale") }? {
            second = second.with_input_scale(scale).map_err(named)?;
        }
        let scale = if self.intermediate_scale == 0.0 { 1.0 } else { self.intermediate_scale };
        let whole =
            MlpWeights::new(first, second).and_then(|mlp| mlp.with_intermediate_scale(GlobalScale::from(scale)));
        whole.map_err(named)
    }
}

impl Routing {
    /// The router.
    ///
    /// # Safety
    ///
    /// As for [`slice`].
    unsafe fn router(&self, experts: usize) -> Result<Router> {
        let scoring = usize::try_from(self.scoring).ok().and_then(|number| ROUTINGS.get(number)).ok_or_else(|| {
            let problem = format!("{} is none; see HAMMERHEAD_ROUTING_SOFTMAX and its kin", self.scoring);
            Error::argument("scoring", problem)
        })?;
        let scaling = if self.scaling == 0.0 { 1.0 } else { self.scaling };
        let mut router = Router::new(*scoring, experts, self.top_k)?.with_scaling(scaling)?;
        if self.groups != 0 {
            router = router.with_groups(Groups { count: self.groups, best: self.best_groups })?;
        }
        // SAFETY: the caller's promise.
        if let Some(correction) = unsafe { self.correction.borrow("correction") }? {
            router = router.with_correction(correction)?;
        }
        Ok(router)
    }
}

/// The options at a pointer, or the usual ones.
///
/// # Safety
///
/// A pointer that is not null leads to options.
unsafe fn options_at(pointer: *const WholeOptions) -> Result<LayerOptions> {
    let usual = LayerOptions::default();
    // SAFETY: the caller's promise.
    let Some(asked) = (unsafe { pointer.as_ref() }) else { return Ok(usual) };
    let intermediate = match asked.intermediate {
        HAMMERHEAD_INTERMEDIATE_TOKENS => Intermediate::Tokens,
        HAMMERHEAD_INTERMEDIATE_F32 => Intermediate::F32,
        HAMMERHEAD_INTERMEDIATE_NVFP4 => Intermediate::NvFp4,
        other => {
            let problem = format!("{other} is none; see HAMMERHEAD_INTERMEDIATE_TOKENS and its kin");
            return Err(Error::argument("intermediate", problem));
        }
    };
    let precision = match asked.precision {
        HAMMERHEAD_PRECISION_EXACT => Precision::Exact,
        HAMMERHEAD_PRECISION_FP8 => Precision::Fp8,
        other => {
            let problem = format!("{other} is none; see HAMMERHEAD_PRECISION_EXACT and its kin");
            return Err(Error::argument("precision", problem));
        }
    };
    let workspace_bytes = if asked.workspace_bytes == 0 { usual.workspace_bytes } else { asked.workspace_bytes };
    let gpu_bytes = Some(asked.gpu_bytes).filter(|&bytes| bytes > 0);
    let stream = if asked.stream_rows == 0 { Streaming::Never } else { Streaming::From(asked.stream_rows) };
    let batch_invariant = asked.batch_invariant != 0;
    Ok(LayerOptions { intermediate, precision, batch_invariant, workspace_bytes, gpu_bytes, stream })
}

/// The path at a pointer.
///
/// # Safety
///
/// A pointer that is not null leads to text that ends with a zero byte.
unsafe fn path_at<'a>(path: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { operands::text(path, "path") }?.ok_or_else(|| Error::Null { what: "path".to_owned() })
}

/// Dense tokens, borrowed from the caller.
///
/// # Safety
///
/// As for [`Tokens::borrow`].
unsafe fn dense<'a>(tokens: &Tokens) -> Result<Dense<'a>> {
    // SAFETY: the caller's promise.
    match unsafe { tokens.borrow(0) }? {
        Activations::Dense(dense) => Ok(dense),
        Activations::NvFp4(_) => Err(Error::argument("the tokens", "must be f16, bf16 or f32 for a whole layer")),
    }
}

/// Packs an MLP. Its matrices are not needed afterwards. Gate and clamp are as for hammerhead_layer_load; options may
/// be NULL.
///
/// # Safety
///
/// `weights` leads to a structure whose pointers lead to as many bytes as is said beside them; `layer` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_mlp_load(
    engine: *const Engine,
    weights: *const MlpMatrices,
    gate: u32,
    clamp: f32,
    options: *const WholeOptions,
    layer: *mut *mut Layer,
) -> i32 {
    guard(|| {
        let gate = gate_of(gate, clamp)?;
        // SAFETY: the caller's promise.
        let (engine, weights) = unsafe { (at(engine, "engine")?, at(weights, "weights")?) };
        // SAFETY: the caller's promise.
        let (weights, options) = unsafe { (weights.borrow("the MLP", gate)?, options_at(options)?) };
        let made = Experts::new(&engine.0, &ExpertWeights::new(vec![weights], gate)?, options)?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(Layer::whole(made, None), layer, "layer") }
    })
}

/// Computes tokens [rows, k] by a layer of one expert, to [rows, k].
///
/// # Safety
///
/// `tokens` and `output` lead to a structure each, whose pointers lead to as many bytes as they say; those of the
/// output may be written, and nobody else touches them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_mlp_run(
    engine: *const Engine,
    layer: *const Layer,
    tokens: *const Tokens,
    output: *const Output,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (engine, layer) = unsafe { (at(engine, "engine")?, at(layer, "layer")?) };
        // SAFETY: the caller's promise.
        let (tokens, output) = unsafe { (at(tokens, "tokens")?, at(output, "output")?) };
        check_apart(&[*tokens], &[*output])?;
        // SAFETY: the caller's promise, and `check_apart` for what Rust asks beyond it.
        let (tokens, target) = unsafe { (dense(tokens)?, output.borrow(0)?) };
        Ok(layer.experts()?.0.run_only_into(&engine.0, &tokens, target)?)
    })
}

/// Packs a layer of `count` experts. Their matrices are not needed afterwards.
///
/// shared: an expert for every token, or NULL; its result is multiplied with sigmoid(x·shared_gate) if that is not
/// empty. routing: how logits choose experts, or NULL where ids and weights are given to every run. Gate and clamp are
/// as for hammerhead_layer_load; options may be NULL.
///
/// # Safety
///
/// `experts` leads to `count` structures, and all pointers in structures to as many bytes as is said beside them;
/// `layer` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_moe_load(
    engine: *const Engine,
    experts: *const MlpMatrices,
    count: usize,
    shared: *const MlpMatrices,
    shared_gate: Vector,
    routing: *const Routing,
    gate: u32,
    clamp: f32,
    options: *const WholeOptions,
    layer: *mut *mut Layer,
) -> i32 {
    guard(|| {
        let gate = gate_of(gate, clamp)?;
        // SAFETY: the caller's promise.
        let (engine, experts) = unsafe { (at(engine, "engine")?, structures(experts, count, "experts")?) };
        // SAFETY: the caller's promise.
        let borrow = |(expert, mlp): (usize, &MlpMatrices)| unsafe { mlp.borrow(&format!("expert {expert}"), gate) };
        let mlps = experts.iter().enumerate().map(borrow).collect::<Result<Vec<_>>>()?;
        let mut weights = ExpertWeights::new(mlps, gate)?;
        // SAFETY: the caller's promise.
        if let Some(shared) = unsafe { shared.as_ref() } {
            // SAFETY: the caller's promise.
            let (mlp, vector) =
                unsafe { (shared.borrow("the shared expert", gate)?, shared_gate.borrow("shared_gate")?) };
            let shared = SharedWeights::new(mlp);
            weights = weights.with_shared(vector.map_or(Ok(shared.clone()), |vector| shared.with_gate(vector))?)?;
        }
        // SAFETY: the caller's promise.
        let router = unsafe { routing.as_ref().map(|routing| routing.router(count)).transpose()? };
        // SAFETY: the caller's promise.
        let experts = Experts::new(&engine.0, &weights, unsafe { options_at(options) }?)?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(Layer::whole(experts, router), layer, "layer") }
    })
}

/// Reads all experts of a layer of a model on disk and packs them, with biases, input scales, the shared expert, the
/// gate that the model declares and its rule of routing, if that is known. Options may be NULL.
///
/// # Safety
///
/// `path` ends with a zero byte; `layer` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_moe_load_checkpoint(
    engine: *const Engine,
    path: *const c_char,
    number: usize,
    options: *const WholeOptions,
    layer: *mut *mut Layer,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (engine, path) = unsafe { (at(engine, "engine")?, path_at(path)?) };
        let model = Checkpoint::open(path)?;
        let stored = model.feed_forward(number)?;
        let router = feed_forward::router(&stored)?;
        let weights = feed_forward::expert_weights(stored, None)?;
        // SAFETY: the caller's promise.
        let experts = Experts::new(&engine.0, &weights, unsafe { options_at(options) }?)?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(Layer::whole(experts, router), layer, "layer") }
    })
}

/// Writes a packed whole layer to a file, with its rule of routing if it has one; hammerhead_layer_open maps it back
/// without packing it again. Only weights of the CPU's backends can be.
///
/// # Safety
///
/// `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_save(engine: *const Engine, layer: *const Layer, path: *const c_char) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (engine, layer, path) = unsafe { (at(engine, "engine")?, at(layer, "layer")?, path_at(path)?) };
        let (experts, router) = layer.experts()?;
        Ok(experts.save(&engine.0, path, router)?)
    })
}

/// Maps a whole layer that hammerhead_layer_save wrote, with its rule of routing. The file is read once, to see that it
/// is whole, and must not be changed while the layer lives. Options may be NULL.
///
/// # Safety
///
/// `path` ends with a zero byte; `layer` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_layer_open(
    engine: *const Engine,
    path: *const c_char,
    options: *const WholeOptions,
    layer: *mut *mut Layer,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (engine, path, options) = unsafe { (at(engine, "engine")?, path_at(path)?, options_at(options)?) };
        let (experts, router) = Experts::open(&engine.0, path, options)?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(Layer::whole(experts, router), layer, "layer") }
    })
}

/// Of a whole layer the number of experts, the elements of a token, the columns of a result, and the experts per token
/// that the routing chooses (0 without one).
///
/// # Safety
///
/// `layer` is NULL or a layer; the others are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_moe_shape(
    layer: *const Layer,
    experts: *mut usize,
    k: *mut usize,
    n: *mut usize,
    top_k: *mut usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (layer, router) = unsafe { at(layer, "layer") }?.experts()?;
        let [found_k, _, found_n] = layer.widths();
        let top = router.map_or(0, Router::top_k);
        for (place, found) in [(experts, layer.count()), (k, found_k), (n, found_n), (top_k, top)] {
            if !place.is_null() {
                // SAFETY: not null, and the caller's promise.
                unsafe { place.write(found) };
            }
        }
        Ok(())
    })
}

/// Computes tokens [rows, k] by the experts that the layer's routing chooses by their logits, [rows, experts] in single
/// precision. Refused where a table chooses them by the token's number: there, hammerhead_moe_weigh makes the weights
/// for hammerhead_moe_run.
///
/// # Safety
///
/// As for hammerhead_mlp_run, for `logits` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_moe_run_logits(
    engine: *const Engine,
    layer: *const Layer,
    tokens: *const Tokens,
    logits: Vector,
    output: *const Output,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (experts, router) = unsafe { at(layer, "layer") }?.experts()?;
        let Some(router) = router else {
            let problem = "cannot be read: the layer has no routing; load it with one, or call hammerhead_moe_run";
            return Err(Error::argument("logits", problem));
        };
        // SAFETY: the caller's promise.
        let (logits, rows) = unsafe { (slice(logits.values, logits.bytes, "logits")?, at(tokens, "tokens")?.rows) };
        let routed = router.route(logits, rows)?;
        // SAFETY: the caller's promise.
        unsafe { run(engine, experts, tokens, &routed, output) }
    })
}

/// Writes the weights, [rows, top] in single precision, that the layer's routing gives experts which something else has
/// chosen: of logits [rows, experts] and of their numbers, [rows, top], as many per token as the routing chooses.
/// id_bits is as for hammerhead_moe_run, which takes ids and weights; where the routing multiplies tokens, with
/// weights_on_input.
///
/// # Safety
///
/// `layer` is NULL or a layer; `logits` and `ids` lead to as many bytes as is said beside them, and so many may be
/// written to `weights`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_moe_weigh(
    layer: *const Layer,
    rows: usize,
    logits: Vector,
    ids: *const c_void,
    id_bits: u32,
    ids_bytes: usize,
    weights: *mut f32,
    weights_bytes: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (_, router) = unsafe { at(layer, "layer") }?.experts()?;
        let Some(router) = router else {
            return Err(Error::argument("logits", "cannot be weighed: the layer has no routing; load it with one"));
        };
        // SAFETY: the caller's promise.
        let (logits, ids) =
            unsafe { (slice(logits.values, logits.bytes, "logits")?, expert_ids(ids, id_bits, ids_bytes)?) };
        let routed = router.weigh_chosen(logits, ids, rows)?;
        let (what, expected) = ("the weights".to_owned(), 4 * routed.weights().len());
        if weights_bytes != expected {
            return Err(Error::Length { what, expected, came: weights_bytes });
        }
        // SAFETY: the caller's promise. What was read is not looked at any more, wherever it lies.
        unsafe { slice_mut(weights, weights_bytes, &what) }?.copy_from_slice(routed.weights());
        Ok(())
    })
}

/// Computes tokens [rows, k] by the experts whose numbers are given, with the weights that are given: [rows, top] each.
/// A number outside of 0 to experts−1 adds nothing, and its weight is not looked at.
///
/// id_bits: 32 or 64, signed. weights_on_input: 0, or 1 where weights multiply tokens instead of results (Llama-4).
///
/// # Safety
///
/// As for hammerhead_mlp_run, for `ids` and `weights` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hammerhead_moe_run(
    engine: *const Engine,
    layer: *const Layer,
    tokens: *const Tokens,
    ids: *const c_void,
    id_bits: u32,
    ids_bytes: usize,
    weights: Vector,
    weights_on_input: u32,
    output: *const Output,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let ((experts, _), rows) = unsafe { (at(layer, "layer")?.experts()?, at(tokens, "tokens")?.rows) };
        // SAFETY: the caller's promise.
        let routed = unsafe { given((ids, id_bits, ids_bytes), weights, weights_on_input, [rows, experts.count()]) }?;
        // SAFETY: the caller's promise.
        unsafe { run(engine, experts, tokens, &routed, output) }
    })
}

/// A routing that the caller gives, of so many tokens among so many experts.
///
/// # Safety
///
/// As for [`slice`], for ids and weights.
pub(crate) unsafe fn given(
    (ids, id_bits, ids_bytes): (*const c_void, u32, usize),
    weights: Vector,
    weights_on_input: u32,
    [rows, experts]: [usize; 2],
) -> Result<Routed> {
    // SAFETY: the caller's promise.
    let ids = unsafe { expert_ids(ids, id_bits, ids_bytes) }?;
    // SAFETY: the caller's promise.
    let weights = unsafe { slice(weights.values, weights.bytes, "weights") }?;
    let routed = Routed::given(ids, weights, rows, experts)?;
    Ok(if weights_on_input == 0 { routed } else { routed.on_input() })
}

/// Experts' numbers.
///
/// # Safety
///
/// As for [`slice`].
unsafe fn expert_ids<'a>(ids: *const c_void, bits: u32, bytes: usize) -> Result<Ids<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        match bits {
            32 => Ok(Ids::I32(slice(ids.cast(), bytes, "ids")?)),
            64 => Ok(Ids::I64(slice(ids.cast(), bytes, "ids")?)),
            other => Err(Error::argument("id_bits", format!("{other} is neither 32 nor 64"))),
        }
    }
}

/// Computes routed tokens.
///
/// # Safety
///
/// As for [`hammerhead_mlp_run`].
pub(crate) unsafe fn run(
    engine: *const Engine,
    experts: &Experts,
    tokens: *const Tokens,
    routed: &Routed,
    output: *const Output,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (engine, tokens, output) = unsafe { (at(engine, "engine")?, at(tokens, "tokens")?, at(output, "output")?) };
    check_apart(&[*tokens], &[*output])?;
    // SAFETY: the caller's promise, and `check_apart` for what Rust asks beyond it.
    let (tokens, target) = unsafe { (dense(tokens)?, output.borrow(0)?) };
    Ok(experts.run_into(&engine.0, &tokens, routed, target)?)
}
