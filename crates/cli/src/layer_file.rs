//! A layer of experts, its tokens and their routing in a safetensors file.
//!
//! | tensor | type and shape | meaning |
//! |---|---|---|
//! | `x` | F16, BF16 or F32 `[T, K]` | tokens |
//! | `logits` | F32 `[T, E]` | the router's, with `correction` F32 `[E]` if there is that; or |
//! | `ids`, `weights` | I32 or I64, and F32, `[T, top]` | experts and weights; ids outside 0..E add nothing |
//! | `e0.b1`, `e0.b2`, `e0.down` | U8 `[rows, K/2]` | codes of gate, up and down; no `b2` where the gate takes one matrix |
//! | `…_scale`, `…_global` | F8_E4M3 `[rows, K/16]`, F32 `[]` or `[1]` | block scales; global scales that multiply, 1 if absent |
//! | `…_scale_2` | F32 `[]` or `[1]` | global scales under the names that `quantize` gives them |
//! | `…_bias` | F32, BF16 or F16 `[rows]` | added to the sums, if there are any |
//! | `e0.b1_input_scale`, `e0.down_input_scale` | F32 `[K]` of that matrix | what its tokens are multiplied with first (AWQ), if anything; `b1`'s is `b2`'s too |
//! | `e0.down_input_global` | F32 `[]` or `[1]` | the global scale of an NVFP4 intermediate, 1 if absent |
//! | `shared.…` | the same names | an expert for every token; `shared.gate` F32 `[K]` multiplies it with σ(x·v) |
//!
//! A name that is none of these is refused: a bias under a misspelt name must not be taken for absent. The result is
//! `y`, `[T, K]`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use format::tensors::{Dtype, File, Tensor};
use format::{Dense, Values};
use hammerhead::{ExpertWeights, Gate, Ids, MlpWeights, Routed, Router, Scoring, SharedWeights, Weights, routing};

use crate::problem_file::Group;
use crate::{Error, Result};

/// The names an expert may have.
const PARTS: [&str; 18] = [
    "b1",
    "b1_scale",
    "b1_scale_2",
    "b1_global",
    "b1_bias",
    "b1_input_scale",
    "b2",
    "b2_scale",
    "b2_scale_2",
    "b2_global",
    "b2_bias",
    "down",
    "down_scale",
    "down_scale_2",
    "down_global",
    "down_bias",
    "down_input_scale",
    "down_input_global",
];
/// The names that stand alone.
const ALONE: [&str; 5] = ["x", "logits", "correction", "ids", "weights"];

/// How logits are to be read.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The scoring, which a file with logits needs.
    pub scoring: Option<Scoring>,
    /// Experts per token, likewise.
    pub top_k: Option<usize>,
    /// Groups of experts.
    pub groups: Option<routing::Groups>,
    /// What weights are multiplied with.
    pub scaling: Option<f32>,
}

/// A layer, borrowing its weights from the file.
pub struct LayerFile<'a> {
    /// The weights.
    pub weights: ExpertWeights<'a>,
    /// The tokens.
    pub tokens: Dense<'a>,
    /// Their experts.
    pub routed: Routed,
    /// What chose them, if logits did.
    pub router: Option<Router>,
}

impl<'a> LayerFile<'a> {
    /// Reads a layer. Without a `gate` it is SiLU where there is a `b2`, and none where there is none.
    pub fn read(file: &'a File, gate: Option<Gate>, wish: Wish) -> Result<Self> {
        let experts = experts(file)?;
        let whole = Group { file, prefix: "" };
        let gate = gate.unwrap_or(if file.contains("e0.b2") { Gate::Silu } else { Gate::None });
        let tokens = whole.dense("x", 1.0)?;
        let mut mlps = Vec::with_capacity(experts);
        for expert in 0..experts {
            mlps.push(mlp(&Group { file, prefix: &format!("e{expert}.") }, gate, tokens.k())?);
            same_shape(file, expert, &mlps)?;
        }
        let mut weights = ExpertWeights::new(mlps, gate)?;
        if file.names().any(|name| name.starts_with("shared.")) {
            let group = Group { file, prefix: "shared." };
            let mut shared = SharedWeights::new(mlp(&group, gate, tokens.k())?);
            if file.contains("shared.gate") {
                shared = shared.with_gate(vector(&group, "gate", tokens.k(), &[Dtype::F32])?)?;
            }
            weights = weights.with_shared(shared)?;
        }
        let (routed, router) = routed(&whole, tokens.rows(), experts, wish, None)?;
        Ok(Self { weights, tokens, routed, router })
    }
}

/// Tokens and their experts, for a layer of so many experts that was packed before, with a rule of routing if it has
/// one.
pub fn read_inputs<'a>(
    file: &'a File,
    (experts, k): (usize, usize),
    wish: Wish,
    packed: Option<Router>,
) -> Result<(Dense<'a>, Routed)> {
    let whole = Group { file, prefix: "" };
    if let Some(name) = file.names().find(|name| !ALONE.contains(name)) {
        let remedy = "leave it out, or leave out --packed; known are x, logits, correction, ids and weights";
        return whole.refuse(name, "it is none of what a packed layer is given", remedy);
    }
    let tokens = whole.dense("x", 1.0)?;
    if tokens.k() != k {
        let problem = format!("its K is {}, but that of the packed layer is {k}", tokens.k());
        return whole.refuse("x", problem, "check that they belong together");
    }
    let (routed, _) = routed(&whole, tokens.rows(), experts, wish, packed)?;
    Ok((tokens, routed))
}

/// The number of experts, numbered without gaps; and no tensor that means nothing.
fn experts(file: &File) -> Result<usize> {
    let whole = Group { file, prefix: "" };
    let mut numbers = BTreeSet::new();
    for name in file.names() {
        let (prefix, part) = name.split_once('.').unwrap_or(("", name));
        let number = prefix.strip_prefix('e').and_then(|digits| Some((digits, digits.parse::<usize>().ok()?)));
        // Only one spelling of a number, so that two names cannot mean one tensor.
        let number = number.filter(|(digits, number)| number.to_string() == *digits).map(|(_, number)| number);
        let known = match (prefix, number) {
            ("", _) => ALONE.contains(&part),
            ("shared", _) => PARTS.contains(&part) || part == "gate",
            (_, Some(_)) => PARTS.contains(&part),
            _ => false,
        };
        if !known {
            let remedy = "known are x, logits, correction, ids, weights, and e0., e1., … and shared. before b1, b2 and down, \
                each also with _scale, _global (or _scale_2) and _bias, b1_input_scale, down_input_scale, \
                down_input_global, and shared.gate";
            return whole.refuse(name, "a layer of experts has no tensor of that name", remedy);
        }
        numbers.extend(number);
    }
    match (0..numbers.len()).find(|number| !numbers.contains(number)) {
        None if numbers.is_empty() => whole.refuse("e0.b1", "it is missing", "a layer needs at least one expert"),
        None => Ok(numbers.len()),
        Some(missing) => {
            whole.refuse(&format!("e{missing}.b1"), "it is missing", "number the experts from e0 without gaps")
        }
    }
}

/// One expert.
fn mlp<'a>(group: &Group<'a, '_>, gate: Gate, k: usize) -> Result<MlpWeights<'a>> {
    match (gate.matrices(), group.contains("b2")) {
        (1, true) => {
            let problem = format!("it is there, but the gate '{gate}' has no second matrix");
            return group.refuse("b2", problem, "leave it out, or ask for another --gate");
        }
        (2, false) => {
            let problem = format!("it is missing, but the gate '{gate}' joins two matrices");
            return group.refuse("b2", problem, "add it, or ask for --gate relu2 or none");
        }
        _ => {}
    }
    let up = group.weights(gate)?;
    if up.k() != k {
        let problem = format!("its K is {}, but that of \"x\" is {k}", up.k());
        return group.refuse("b1", problem, "check that they belong together");
    }
    if !group.contains("down") {
        return group.refuse("down", "it is missing", "every expert has a down projection");
    }
    let down = group.matrix("down")?;
    if down.k() != up.n() {
        let problem = format!("its K is {}, but {:?} has {} rows", down.k(), group.name("b1"), up.n());
        return group.refuse("down", problem, "check that they belong together");
    }
    let up = dressed(group, up, &["b1_bias", "b2_bias"], "b1_input_scale")?;
    let down = dressed(group, Weights::plain(down), &["down_bias"], "down_input_scale")?;
    Ok(MlpWeights::new(up, down)?.with_intermediate_scale(group.global("down_input_global")?)?)
}

/// Weights with their biases and their input scale, if there are any. A matrix without a bias beside one with it has
/// zeros.
fn dressed<'a>(group: &Group<'a, '_>, weights: Weights<'a>, biases: &[&str], scale: &str) -> Result<Weights<'a>> {
    let (n, k, matrices) = (weights.n(), weights.k(), weights.matrices().count());
    if let Some(part) = biases[matrices.min(biases.len())..].iter().find(|part| group.contains(part)) {
        return group.refuse(part, "it is there, but its matrix is not", "leave it out, or add the matrix");
    }
    let mut dressed = weights;
    if biases.iter().any(|part| group.contains(part)) {
        let read = |part: &&str| if group.contains(part) { vector(group, part, n, &FLOATS) } else { Ok(vec![0.0; n]) };
        dressed = dressed.with_bias(biases[..matrices].iter().map(read).collect::<Result<Vec<_>>>()?)?;
    }
    if group.contains(scale) {
        dressed = dressed.with_input_scale(vector(group, scale, k, &[Dtype::F32])?)?;
    }
    Ok(dressed)
}

const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

/// A vector of so many finite numbers, widened to f32.
fn vector(group: &Group<'_, '_>, part: &str, length: usize, types: &[Dtype]) -> Result<Vec<f32>> {
    let tensor = group.tensor(part, types)?;
    if tensor.shape != [length] {
        let problem = format!("its shape is {:?}, but [{length}] was expected", tensor.shape);
        return group.refuse(part, problem, "it has one number per row of its matrix, or per column of its tokens");
    }
    let dense = Dense::new(1, length.max(1), group.values(tensor)?, 1.0)?;
    let mut values = vec![0f32; length];
    dense.row(0, &mut values);
    match values.iter().position(|x| !x.is_finite()) {
        Some(at) => group.refuse(part, format!("the number at {at} is {}", values[at]), "all must be finite"),
        None => Ok(values),
    }
}

/// Refuses an expert that is not of the first one's shape.
fn same_shape(file: &File, expert: usize, mlps: &[MlpWeights<'_>]) -> Result<()> {
    let ([k, inner, width], first) = (mlps[expert].widths(), mlps[0].widths());
    if [k, inner, width] == first {
        return Ok(());
    }
    let group = Group { file, prefix: &format!("e{expert}.") };
    let part = if inner == first[1] { "down" } else { "b1" };
    let problem = format!("the expert's widths are {k}, {inner} and {width}, but those of e0 are {first:?}");
    group.refuse(part, problem, "all experts of a layer have one shape: check that they belong together")
}

/// The experts of every token: as the caller says, or by logits, and then what chose them. A rule that was packed
/// serves where none is asked for.
fn routed(
    file: &Group<'_, '_>,
    tokens: usize,
    experts: usize,
    wish: Wish,
    packed: Option<Router>,
) -> Result<(Routed, Option<Router>)> {
    let given = ["ids", "weights"].map(|part| file.contains(part));
    match given {
        [true, true] if file.contains("logits") || wish.scoring.is_some() => {
            let problem = "it is there, and so are logits or --routing";
            file.refuse("ids", problem, "route by the one or by the other")
        }
        [true, true] => Ok((given_experts(file, tokens, experts)?, None)),
        [false, false] => {
            let router = router(file, experts, wish, packed)?;
            Ok((by_logits(file, tokens, &router)?, Some(router)))
        }
        [ids, _] => file.refuse(if ids { "weights" } else { "ids" }, "it is missing", "ids and weights go together"),
    }
}

fn by_logits(file: &Group<'_, '_>, tokens: usize, router: &Router) -> Result<Routed> {
    let (logits, experts) = (file.tensor("logits", &[Dtype::F32])?, router.experts());
    if logits.shape != [tokens, experts] {
        let problem = format!("its shape is {:?}, but [{tokens}, {experts}] was expected", logits.shape);
        return file.refuse("logits", problem, "give a row per token and a column per expert");
    }
    let logits = single(file, logits)?;
    // A logit of -∞ masks an expert; of other such numbers a file should be told.
    if let Some(at) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        let problem = format!("it has {} in row {}, column {}", logits[at], at / experts, at % experts);
        return file.refuse("logits", problem, "logits are finite, or -inf for an expert that is not to be chosen");
    }
    Ok(router.route(&logits, tokens)?)
}

/// How logits are read.
fn router(file: &Group<'_, '_>, experts: usize, wish: Wish, packed: Option<Router>) -> Result<Router> {
    if !file.contains("logits") {
        return file.refuse("logits", "it is missing", "give logits, or ids and weights");
    }
    let (Some(scoring), Some(top_k)) = (wish.scoring, wish.top_k) else {
        let remedy = "give --routing and --top-k, or ids and weights";
        return packed.map_or_else(|| file.refuse("logits", "nothing says how to read it", remedy), Ok);
    };
    let mut router = Router::new(scoring, experts, top_k)?.with_scaling(wish.scaling.unwrap_or(1.0))?;
    if file.contains("correction") {
        router = router.with_correction(vector(file, "correction", experts, &[Dtype::F32])?)?;
    }
    if let Some(groups) = wish.groups {
        router = router.with_groups(groups)?;
    }
    Ok(router)
}

/// The experts and weights that the caller gives, a row per token.
pub fn given_experts(file: &Group<'_, '_>, tokens: usize, experts: usize) -> Result<Routed> {
    let (ids, weights) = (file.tensor("ids", &[Dtype::I32, Dtype::I64])?, file.tensor("weights", &[Dtype::F32])?);
    if ids.shape.len() != 2 || ids.shape[0] != tokens {
        let problem = format!("its shape is {:?}, but \"x\" has {tokens} rows", ids.shape);
        return file.refuse("ids", problem, "give a row per token");
    }
    if weights.shape != ids.shape {
        let problem = format!("its shape is {:?}, but that of \"ids\" is {:?}", weights.shape, ids.shape);
        return file.refuse("weights", problem, "give a weight per id");
    }
    let read = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("chunks of four or eight bytes"),
    };
    let numbers: Vec<i64> = ids.bytes.chunks_exact(if ids.dtype == Dtype::I64 { 8 } else { 4 }).map(read).collect();
    Ok(Routed::given(Ids::I64(&numbers), &single(file, weights)?, tokens, experts)?)
}

/// The numbers of an F32 tensor.
fn single<'a>(file: &Group<'a, '_>, tensor: Tensor<'a>) -> Result<Cow<'a, [f32]>> {
    match file.values(tensor)? {
        Values::F32(values) => Ok(values),
        _ => unreachable!("its type was looked at"),
    }
}

/// An error of the operation, with the tensor's name where it is about one.
pub fn name_tensor(file: &File, error: hammerhead::Error) -> Error {
    match error {
        hammerhead::Error::NotFinite { row, column, value, .. } => Error::Tensor {
            path: file.path().to_path_buf(),
            name: "x".to_owned(),
            problem: format!("the element at row {row}, column {column} is {value}"),
            remedy: "tokens must be finite; find out where it came from",
        },
        other => other.into(),
    }
}
