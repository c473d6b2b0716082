//! Whole feed-forward layers: what stands between a token and what the layer adds to it.
//!
//! A gated pair alone is half a layer. [`Checkpoint::feed_forward`] also reads the down projections, the biases, the
//! router with what it is corrected by, and the pairs that see every token. What a checkpoint lacks is `None`; what
//! does not fit together is refused by name.
//!
//! | part | names |
//! |---|---|
//! | down projection | `down_proj`, or `w2` beside `w1` and `w3` |
//! | biases | `….bias`, of stacked experts `…_bias`, F16, BF16 or F32, one number per row |
//! | router | `mlp.gate`, `mlp.router`, `block_sparse_moe.gate`, `feed_forward.router`, `ffn.gate`; in GGUF `ffn_gate_inp` |
//! | its correction | `e_score_correction_bias` in the router or beside it; `ffn.gate.bias`; in GGUF `exp_probs_b` |
//! | a table in place of a choice | `tid2eid` in the router |
//! | gate of a shared expert | `mlp.shared_expert_gate`; in GGUF `ffn_gate_inp_shexp` |
//! | what activations are quantised with | `input_scale`, which multiplies, or `input_global_scale`, which divides |

use half::{bf16, f16};

use super::coded::Rows;
use super::layers::{Layer, Pair};
use super::names::Part;
use super::store::{Element, View};
use super::{Checkpoint, GateFunction, RoutingRule, Score, Weight, gguf};
use crate::tensors::Dtype;
use crate::{Dense, Error, GlobalScale, Matrix, Result};

/// A feed-forward layer, read.
#[derive(Clone, Debug)]
pub struct FeedForward<'a> {
    /// How gate and up are joined.
    pub gate: GateFunction,
    /// The numbered experts in order, or where there are none the layer's one MLP.
    pub experts: Vec<Projections<'a>>,
    /// MLPs that see every token beside numbered experts.
    pub shared: Vec<Projections<'a>>,
    /// K numbers: what a shared expert adds is multiplied with the sigmoid of their product with the token, if the
    /// model has that.
    pub shared_gate: Option<Vec<f32>>,
    /// What chooses the experts, if there is a choice.
    pub router: Option<Router>,
}

/// The projections of one MLP.
#[derive(Clone, Debug)]
pub struct Projections<'a> {
    /// What holds them, such as `model.layers.0.mlp.experts.3`.
    pub name: String,
    /// The gate projection, `[N, K]`.
    pub gate: Linear<'a>,
    /// The up projection, `[N, K]`.
    pub up: Linear<'a>,
    /// The down projection, `[K, N]`.
    pub down: Linear<'a>,
}

/// One projection: `(x ∘ pre_scale)·Wᵀ + bias`.
#[derive(Clone, Debug)]
pub struct Linear<'a> {
    /// The weight W, with its global scale.
    pub matrix: Matrix<'a>,
    /// What is added to every row's sum.
    pub bias: Option<Vec<f32>>,
    /// What tokens are multiplied with first, column by column (ModelOpt's `pre_quant_scale`, from AWQ).
    pub pre_scale: Option<Vec<f32>>,
    /// The global scale with which activations would be quantised, if whoever computes does that.
    pub input_scale: Option<GlobalScale>,
}

/// What chooses experts.
#[derive(Clone, Debug)]
pub struct Router {
    /// `[experts, K]`: a token's logits are its products with these rows.
    pub weight: Dense<'static>,
    /// What is added to the logits.
    pub bias: Option<Vec<f32>>,
    /// What is added to an expert's score where experts are chosen, and not to its weight.
    pub correction: Option<Vec<f32>>,
    /// What chooses experts where logits only weigh them, as in DeepSeek-V4's first layers.
    pub table: Option<ExpertTable>,
    /// How ids and weights are made of logits, as far as the model's declarations tell.
    pub rule: Option<RoutingRule>,
}

/// The experts of every token, by its number in the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertTable {
    top: usize,
    ids: Vec<u32>,
}

impl ExpertTable {
    /// Experts per token.
    pub fn top(&self) -> usize {
        self.top
    }

    /// The experts of a token, if the vocabulary has one of that number.
    pub fn experts(&self, token: usize) -> Option<&[u32]> {
        self.ids.chunks_exact(self.top).nth(token)
    }
}

/// Modules of a layer that may hold a router.
const MODULES: [&str; 4] = ["mlp", "block_sparse_moe", "feed_forward", DEEPSEEK];
/// The module's name in DeepSeek's own files, which call the correction a bias.
const DEEPSEEK: &str = "ffn";
const ROUTERS: [&str; 2] = ["gate", "router"];
const CORRECTION: &str = "e_score_correction";
const TABLE: &str = "tid2eid";
/// The correction for tokens of images, where those have one of their own.
const IMAGE_CORRECTIONS: [&str; 2] = ["bias_vl", "e_score_correction_bias_vl"];
const SHARED_GATE: &str = "shared_expert_gate";

impl Checkpoint {
    /// Reads a whole feed-forward layer.
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::layer`]; if a down projection is missing or not quantised; if biases, router and projections
    /// have sides that do not fit; or if an MLP holds more than its projections.
    pub fn feed_forward(&self, index: usize) -> Result<FeedForward<'_>> {
        let layer = self.find_layer(index)?;
        let shared = layer.shared().into_iter().map(|pair| self.projections(pair)).collect::<Result<Vec<_>>>()?;
        self.beside(layer, shared)
    }

    /// Reads a feed-forward layer without the MLPs that see every token, which may be stored in another way:
    /// DeepSeek-V4 has them in FP8 ([`Checkpoint::fp8`]).
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::feed_forward`].
    pub fn routed_experts(&self, index: usize) -> Result<FeedForward<'_>> {
        self.beside(self.find_layer(index)?, Vec::new())
    }

    /// Reads the rest of a layer.
    fn beside<'a>(&'a self, layer: &Layer, shared: Vec<Projections<'a>>) -> Result<FeedForward<'a>> {
        let experts = self.numbered(layer)?;
        let experts = experts.into_iter().map(|pair| self.projections(pair)).collect::<Result<Vec<_>>>()?;
        let k = experts.first().map_or(0, |expert| expert.gate.matrix.k());
        if let Some(other) = experts.iter().chain(&shared).find(|other| other.gate.matrix.k() != k) {
            let problem = format!("its K is {}, but {:?} has {k}", other.gate.matrix.k(), experts[0].name);
            return self.refuse(&other.name, problem, "experts of a layer see the same tokens: check the file");
        }
        let router = self.router(layer, experts.len(), k)?;
        let shared_gate = self.shared_gate(layer, k)?;
        Ok(FeedForward { gate: self.gate(layer.index), experts, shared, shared_gate, router })
    }

    /// Reads the projections of one MLP.
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::feed_forward`], about this MLP alone.
    pub fn projections(&self, pair: &Pair) -> Result<Projections<'_>> {
        let Some(down) = &pair.down else {
            let problem = "it has no down projection, or one of another number of experts".to_owned();
            return self.refuse(&pair.name, problem, "fetch the missing part, or load its gate and up alone");
        };
        let parts =
            [&pair.gate, &pair.up, down].map(|weight| weight.stem.rsplit_once('.').unwrap_or(("", &weight.stem)));
        self.refuse_inside(parts[0].0, &parts.map(|(_, last)| last))?;
        // Both see the same tokens, and so have the same vector.
        self.pre_scale_of_pair(pair)?;
        let [gate, up] = [self.read_linear(&pair.gate)?, self.read_linear(&pair.up)?];
        let down = self.read_linear(down)?;
        let [n, k] = pair.gate.shape;
        if (down.matrix.rows(), down.matrix.k()) != (k, n) {
            let problem = format!(
                "its down projection is {} × {} where gate and up are {n} × {k}",
                down.matrix.rows(),
                down.matrix.k()
            );
            return self.refuse(&pair.name, problem, "it must be the other way round: check that they belong together");
        }
        Ok(Projections { name: pair.name.clone(), gate, up, down })
    }

    /// Reads a projection of any kind, by the name of its module, such as `model.layers.0.self_attn.q_proj`.
    ///
    /// # Errors
    ///
    /// If there is none of that name, if it is not quantised, if it is one of many matrices in a tensor, or if what
    /// belongs to it does not fit.
    pub fn linear(&self, name: &str) -> Result<Linear<'_>> {
        let linear = self.projection(name, 0, Rows::All)?;
        match self.coded(name)?.stack {
            1 => Ok(linear),
            stack => {
                let problem = format!("it is a stack of {stack} matrices");
                self.refuse(name, problem, "read a layer's experts with feed_forward")
            }
        }
    }

    pub(super) fn read_linear(&self, weight: &Weight) -> Result<Linear<'_>> {
        Ok(Linear {
            matrix: self.matrix(weight)?,
            bias: self.bias(weight)?,
            pre_scale: self.pre_scale(weight)?,
            input_scale: self.input_scale(weight)?,
        })
    }

    /// What is added to the sums of a matrix's rows, if the model has that.
    ///
    /// # Errors
    ///
    /// If there is not one finite number of type F16, BF16 or F32 per row.
    pub fn bias(&self, weight: &Weight) -> Result<Option<Vec<f32>>> {
        let Some(view) = self.parts(&weight.stem).get(Part::Bias)? else { return Ok(None) };
        let coded = self.coded(&weight.stem)?;
        let whole = numbers(&view)?;
        if whole.len() != coded.stack * coded.rows || view.shape.last() != Some(&coded.rows) {
            let problem = format!("it has shape {:?}, for {} weights of {} rows", view.shape, coded.stack, coded.rows);
            return refuse(&view, problem, "a bias has one number per row: check that it belongs to this weight");
        }
        let own = &whole[weight.member * coded.rows..][..coded.rows];
        Ok(Some(match weight.rows {
            Rows::All => own.to_vec(),
            Rows::FirstHalf => own[..coded.rows / 2].to_vec(),
            Rows::SecondHalf => own[coded.rows / 2..].to_vec(),
            Rows::Even => own.iter().step_by(2).copied().collect(),
            Rows::Odd => own.iter().skip(1).step_by(2).copied().collect(),
        }))
    }

    /// The global scale with which activations would be quantised for a matrix, if the model has one.
    ///
    /// # Errors
    ///
    /// If it is no number of type F32, or if it makes none.
    pub fn input_scale(&self, weight: &Weight) -> Result<Option<GlobalScale>> {
        let Some(view) = self.parts(&weight.stem).get(Part::InputScale)? else { return Ok(None) };
        let stack = self.coded(&weight.stem)?.stack;
        let stored = numbers(&view)?;
        let at = match stored.len() {
            1 => 0,
            count if count == stack => weight.member,
            count => {
                let problem = format!("it has {count} numbers, for {stack} weights");
                return refuse(&view, problem, "there must be one for all or one per weight");
            }
        };
        let divides = view.name.ends_with("global_scale");
        let scale = if divides { GlobalScale::Divides(stored[at]) } else { GlobalScale::Multiplies(stored[at]) };
        if scale.is_usable() && scale.value() > 0.0 {
            return Ok(Some(scale));
        }
        refuse(
            &view,
            format!("this input scale is {}", stored[at]),
            "it must be above zero and finite: the file is damaged",
        )
    }

    /// The router of a layer with so many experts, if it has one.
    fn router(&self, layer: &Layer, experts: usize, k: usize) -> Result<Option<Router>> {
        let places = MODULES.iter().flat_map(|module| ROUTERS.map(|router| (module, router)));
        let found = places.filter_map(|(module, router)| {
            let module = format!("{}.{module}", layer.name);
            let stem = format!("{module}.{router}");
            self.catalogue.contains_key(&stem).then_some((module, stem))
        });
        // A dense layer's gate projection is another thing.
        let Some((module, stem)) = found.into_iter().next() else { return Ok(None) };
        let Some(view) = self.parts(&stem).get(Part::Weight)? else { return Ok(None) };
        if view.shape != [experts, k] {
            let problem = format!("it has shape {:?}, for {experts} experts and K = {k}", view.shape);
            return refuse(&view, problem, "a router has a row per expert: check that it belongs to this layer");
        }
        let in_file = |reason| Error::InFile { path: view.path.to_path_buf(), reason: Box::new(reason) };
        let weight = Dense::new(experts, k, numbers(&view)?, 1.0).map_err(in_file)?;
        let correction = [format!("{stem}.{CORRECTION}"), format!("{module}.{CORRECTION}")];
        let correction = correction.iter().find(|stem| self.catalogue.contains_key(*stem));
        let mut correction = correction.map(|stem| self.vector(stem, Part::Bias, experts)).transpose()?.flatten();
        let mut bias = self.vector(&stem, Part::Bias, experts)?;
        if module.ends_with(DEEPSEEK) && correction.is_none() {
            correction = bias.take();
        }
        let table = self.expert_table(&format!("{stem}.{TABLE}"), experts)?;
        let rule = self.config.rules(Some(layer.index)).routing.filter(|_| {
            // Who has tokens of images knows which they are; a rule for all of them does not.
            !IMAGE_CORRECTIONS.iter().any(|name| self.store.view(&format!("{stem}.{name}")).is_some())
        });
        let Some(RoutingRule { score, top, .. }) = rule else {
            return Ok(Some(Router { weight, bias, correction, table, rule }));
        };
        match &table {
            Some(table) if table.top != top => {
                let problem = format!("its {TABLE} has {} experts per token, and {top} are declared", table.top);
                self.refuse(&stem, problem, "check that the configuration belongs to these files")
            }
            None if score == Score::SqrtSoftplus && correction.is_none() => {
                let problem =
                    format!("it has neither a bias nor a {TABLE}, so that nothing tells which experts it chooses");
                self.refuse(&stem, problem, "fetch the missing part, or look in the other shards")
            }
            // GGUF leaves out a correction that a model does not have; elsewhere one that is missing is lost.
            None if score == Score::Sigmoid && correction.is_none() && self.store.first_gguf().is_none() => {
                let problem =
                    format!("it has no {CORRECTION}_bias, which tells with its scores which experts it chooses");
                self.refuse(&stem, problem, "fetch the missing part, or look in the other shards")
            }
            _ => Ok(Some(Router { weight, bias, correction, table, rule })),
        }
    }

    /// The table of this name, of numbers of so many experts.
    fn expert_table(&self, name: &str, experts: usize) -> Result<Option<ExpertTable>> {
        let Some(view) = self.store.view(name) else { return Ok(None) };
        let ids: Vec<i64> = match view.element {
            Element::Safetensors(Dtype::I64) => {
                view.bytes.as_chunks().0.iter().map(|&id| i64::from_le_bytes(id)).collect()
            }
            Element::Safetensors(Dtype::I32) => {
                view.bytes.as_chunks().0.iter().map(|&id| i64::from(i32::from_le_bytes(id))).collect()
            }
            other => {
                return refuse(&view, format!("it has type {other}, where I32 or I64 is expected"), "convert it");
            }
        };
        let top = match *view.shape {
            [_, top] if (1..=experts).contains(&top) => top,
            _ => {
                let problem =
                    format!("it has shape {:?}, where [vocabulary, experts per token] is expected", view.shape);
                return refuse(&view, problem, "check the file");
            }
        };
        let known = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < experts);
        match ids.iter().map(known).collect() {
            Some(ids) => Ok(Some(ExpertTable { top, ids })),
            None => refuse(&view, format!("it names an expert that is none of {experts}"), "the file is damaged"),
        }
    }

    fn shared_gate(&self, layer: &Layer, k: usize) -> Result<Option<Vec<f32>>> {
        let stems = MODULES.map(|module| format!("{}.{module}.{SHARED_GATE}", layer.name));
        match stems.iter().find(|stem| self.catalogue.contains_key(*stem)) {
            Some(stem) => self.vector(stem, Part::Weight, k),
            None => Ok(None),
        }
    }

    /// A tensor of so many numbers.
    fn vector(&self, stem: &str, part: Part, length: usize) -> Result<Option<Vec<f32>>> {
        let Some(view) = self.parts(stem).get(part)? else { return Ok(None) };
        let values = numbers(&view)?;
        if values.len() == length {
            return Ok(Some(values));
        }
        refuse(&view, format!("it has shape {:?}, where {length} numbers are expected", view.shape), "check the file")
    }

    fn refuse<T>(&self, name: &str, problem: String, remedy: &'static str) -> Result<T> {
        Err(Error::Weight { path: self.path().to_path_buf(), name: name.to_owned(), problem, remedy })
    }
}

fn refuse<T>(view: &View<'_>, problem: String, remedy: &'static str) -> Result<T> {
    Err(Error::Weight { path: view.path.to_path_buf(), name: view.name.to_owned(), problem, remedy })
}

/// A tensor's numbers, all finite.
fn numbers(view: &View<'_>) -> Result<Vec<f32>> {
    let values = stored_numbers(view)?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => refuse(view, format!("its number {at} is {}", values[at]), "the file is damaged"),
        None => Ok(values),
    }
}

/// A tensor's numbers as they are stored, NaN and infinities too.
pub(super) fn stored_numbers(view: &View<'_>) -> Result<Vec<f32>> {
    let bytes = view.bytes;
    let halves = || bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    Ok(match view.element {
        Element::Safetensors(Dtype::F32) | Element::Gguf(gguf::Type::F32) => {
            bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
        }
        Element::Safetensors(Dtype::F16) | Element::Gguf(gguf::Type::F16) => {
            halves().map(|bits| f16::from_bits(bits).to_f32()).collect()
        }
        Element::Safetensors(Dtype::BF16) | Element::Gguf(gguf::Type::BF16) => {
            halves().map(|bits| bf16::from_bits(bits).to_f32()).collect()
        }
        other => {
            let problem = format!("it has type {other}, where F32, F16 or BF16 is expected");
            return refuse(view, problem, "check that this is the tensor you mean, or convert it");
        }
    })
}
