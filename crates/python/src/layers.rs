//! Whole layers, as Python holds them: an MLP, and experts with their router.

use std::path::PathBuf;

use hammerhead::feed_forward::{self, expert_weights, mlp_weights};
use hammerhead::format::Dense;
use hammerhead::routing::Groups;
use hammerhead::{ExpertWeights, Gate, LayerOptions, Routed, Router, SharedWeights, Target, declared_gate};
use pyo3::prelude::*;

use crate::borrowed::{BorrowedMlp, MlpParts, NumberParts};
use crate::checkpoint::Checkpoint;
use crate::dlpack::{Array, Place};
use crate::engines::Wish;
use crate::error::{Error, Result};
use crate::layer::gate_of;

/// The gate's name and its limit.
type GateParts = (String, Option<f32>);
/// What stands between the products, whether results may depend on the token alone, and the bytes that rows may take.
type HowParts = (String, bool, Option<usize>);
/// Backend, threads and configuration.
type EngineParts = (Option<String>, Option<i64>, Option<String>);
/// Scoring, experts per token, correction, groups and how many are looked into, scaling.
type RouterParts = (String, usize, Option<Vec<f32>>, Option<(usize, usize)>, f32);

fn options_of((intermediate, batch_invariant, workspace): HowParts) -> Result<LayerOptions> {
    let default = LayerOptions::default();
    let workspace_bytes = workspace.unwrap_or(default.workspace_bytes);
    Ok(LayerOptions { intermediate: intermediate.parse()?, batch_invariant, workspace_bytes })
}

fn wish_of((backend, threads, config): EngineParts) -> Result<Wish> {
    Wish::new(backend, threads, config)
}

fn router_of((scoring, top_k, correction, groups, scaling): RouterParts, experts: usize) -> Result<Router> {
    let mut router = Router::new(scoring.parse()?, experts, top_k)?.with_scaling(scaling)?;
    if let Some((count, best)) = groups {
        router = router.with_groups(Groups { count, best })?;
    }
    if let Some(correction) = correction {
        router = router.with_correction(correction)?;
    }
    Ok(router)
}

/// An array of numbers, with the name its owner has for its type.
struct Numbers {
    array: Array,
    element: String,
}

impl Numbers {
    fn borrow((object, element): NumberParts<'_>, what: &str) -> Result<Self> {
        Ok(Self { array: borrowed(&object, what)?, element })
    }

    fn dense(&self) -> Result<Dense<'_>> {
        let (rows, k) = self.array.matrix_shape()?;
        Ok(Dense::new(rows, k, self.array.values(&self.element)?, 1.0)?)
    }

    fn target(&mut self) -> Result<Target<'_>> {
        self.array.target(&self.element)
    }
}

/// An array in the CPU's memory.
fn borrowed(object: &Bound<'_, PyAny>, what: &str) -> Result<Array> {
    let array = Array::borrow(object, what, false)?;
    match array.place() {
        Place::Host => Ok(array),
        elsewhere => {
            let found = format!("it lies on {elsewhere}, and whole layers are computed from the CPU's memory");
            Err(Error::value(what, format!("{found}; move it there with .cpu()")))
        }
    }
}

/// Refuses results that would be written over what is read.
fn check_apart(written: &Array, read: &[&Array]) -> Result<()> {
    let own = written.addresses();
    let overlaps = |read: &&&Array| {
        let other = read.addresses();
        !own.is_empty() && !other.is_empty() && own.start < other.end && other.start < own.end
    };
    match read.iter().find(overlaps) {
        Some(read) => Err(Error::value(written.what(), format!("it shares memory with {}", read.what()))),
        None => Ok(()),
    }
}

/// An MLP, packed for the engine that was asked for.
#[pyclass(frozen)]
pub struct Mlp {
    mlp: hammerhead::Mlp,
    gate: Gate,
    wish: Wish,
}

#[pymethods]
impl Mlp {
    /// Packs the weights; the arrays are not needed afterwards.
    #[staticmethod]
    fn pack(
        py: Python<'_>,
        weights: MlpParts<'_>,
        gate: GateParts,
        how: HowParts,
        engine: EngineParts,
    ) -> Result<Self> {
        let (gate, options, wish) = (gate_of(&gate.0, gate.1)?, options_of(how)?, wish_of(engine)?);
        let borrowed = BorrowedMlp::new(weights, "the MLP")?;
        let weights = borrowed.weights()?;
        let mlp =
            py.detach(|| -> Result<_> { Ok(hammerhead::Mlp::new(&*wish.engine()?, &weights, gate, options)?) })?;
        Ok(Self { mlp, gate, wish })
    }

    /// Packs an MLP of a model's layer: its only one, the expert of this number, or the one that sees every token.
    #[staticmethod]
    #[pyo3(signature = (model, layer, expert, shared, gate, how, engine))]
    #[expect(clippy::too_many_arguments, reason = "they are options of one Python function")]
    fn load(
        py: Python<'_>,
        model: &Checkpoint,
        layer: usize,
        expert: Option<usize>,
        shared: bool,
        gate: Option<GateParts>,
        how: HowParts,
        engine: EngineParts,
    ) -> Result<Self> {
        let gate = gate.map(|(name, clamp)| gate_of(&name, clamp)).transpose()?;
        let (options, wish) = (options_of(how)?, wish_of(engine)?);
        py.detach(|| {
            let model = &model.model;
            let gate = gate.map_or_else(|| declared_gate(&model.gate()), Ok)?;
            let found = model.find_layer(layer)?;
            let pairs = if shared { found.shared() } else { found.experts() };
            let which = expert.unwrap_or(0);
            let pair = match (pairs.get(which), expert.is_some() || pairs.len() == 1) {
                (Some(pair), true) => pair,
                _ => {
                    let what = if shared { "MLPs that see every token" } else { "MLPs" };
                    let found = format!("layer {layer} has {} {what}", pairs.len());
                    return Err(Error::value("expert", format!("{found}; give the number of one that there is")));
                }
            };
            let mlp = hammerhead::Mlp::new(&*wish.engine()?, &mlp_weights(model.projections(pair)?)?, gate, options)?;
            Ok(Self { mlp, gate, wish })
        })
    }

    /// Maps an MLP from a file that `save` wrote.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, how: HowParts, engine: EngineParts) -> Result<Self> {
        let (options, wish) = (options_of(how)?, wish_of(engine)?);
        py.detach(|| {
            let mlp = hammerhead::Mlp::open(&*wish.engine()?, path, options)?;
            let gate = mlp.gate();
            Ok(Self { mlp, gate, wish })
        })
    }

    /// Writes the packed weights to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        py.detach(|| Ok(self.mlp.save(&*self.wish.engine()?, path)?))
    }

    /// Computes tokens into their output.
    fn run(&self, py: Python<'_>, x: NumberParts<'_>, out: NumberParts<'_>) -> Result<()> {
        let (x, mut out) = (Numbers::borrow(x, "x")?, Numbers::borrow(out, "out")?);
        check_apart(&out.array, &[&x.array])?;
        let (tokens, target) = (x.dense()?, out.target()?);
        let engine = self.wish.engine_at(py)?;
        py.detach(|| Ok(self.mlp.run_into(&engine, &tokens, target)?))
    }

    /// The width of tokens, of the intermediate and of results.
    #[getter]
    fn widths(&self) -> [usize; 3] {
        self.mlp.widths()
    }

    /// The gate's name.
    #[getter]
    fn gate(&self) -> String {
        self.gate.to_string()
    }

    /// The bytes the packed weights take.
    #[getter]
    fn packed_bytes(&self) -> usize {
        self.mlp.packed_bytes()
    }

    /// The backends that are chosen among, best first.
    #[getter]
    fn backends(&self) -> Result<Vec<&'static str>> {
        self.wish.backends()
    }

    /// The threads that are computed on.
    #[getter]
    fn threads(&self) -> Result<usize> {
        Ok(self.wish.engine()?.threads())
    }
}

/// A layer of experts, packed for the engine that was asked for, and what chooses among them.
#[pyclass(frozen)]
pub struct Experts {
    experts: hammerhead::Experts,
    router: Option<Router>,
    gate: Gate,
    wish: Wish,
}

#[pymethods]
impl Experts {
    /// Packs the weights; the arrays are not needed afterwards.
    #[staticmethod]
    #[pyo3(signature = (experts, shared, shared_gate, router, gate, how, engine))]
    #[expect(clippy::too_many_arguments, reason = "they are options of one Python function")]
    fn pack(
        py: Python<'_>,
        experts: Vec<MlpParts<'_>>,
        shared: Option<MlpParts<'_>>,
        shared_gate: Option<Vec<f32>>,
        router: Option<RouterParts>,
        gate: GateParts,
        how: HowParts,
        engine: EngineParts,
    ) -> Result<Self> {
        let (gate, options, wish) = (gate_of(&gate.0, gate.1)?, options_of(how)?, wish_of(engine)?);
        let router = router.map(|router| router_of(router, experts.len())).transpose()?;
        let borrow = |(expert, parts)| BorrowedMlp::new(parts, format!("expert {expert}"));
        let borrowed = experts.into_iter().enumerate().map(borrow).collect::<Result<Vec<_>>>()?;
        let shared = shared.map(|parts| BorrowedMlp::new(parts, "the shared expert")).transpose()?;
        let mlps = borrowed.iter().map(BorrowedMlp::weights).collect::<Result<Vec<_>>>()?;
        let mut weights = ExpertWeights::new(mlps, gate)?;
        if let Some(shared) = &shared {
            let own = SharedWeights::new(shared.weights()?);
            weights = weights.with_shared(match shared_gate {
                Some(gate) => own.with_gate(gate)?,
                None => own,
            })?;
        }
        let experts =
            py.detach(|| -> Result<_> { Ok(hammerhead::Experts::new(&*wish.engine()?, &weights, options)?) })?;
        Ok(Self { experts, router, gate, wish })
    }

    /// Packs the experts of a model's layer, all or those of these numbers, with the one that sees every token or without. Without a router, the model's own is taken, if its
    /// rule is known and all experts are there.
    #[staticmethod]
    #[pyo3(signature = (model, layer, numbers, shared, router, gate, how, engine))]
    #[expect(clippy::too_many_arguments, reason = "they are options of one Python function")]
    fn load(
        py: Python<'_>,
        model: &Checkpoint,
        layer: usize,
        numbers: Option<Vec<usize>>,
        shared: bool,
        router: Option<RouterParts>,
        gate: Option<GateParts>,
        how: HowParts,
        engine: EngineParts,
    ) -> Result<Self> {
        let gate = gate.map(|(name, clamp)| gate_of(&name, clamp)).transpose()?;
        let (options, wish) = (options_of(how)?, wish_of(engine)?);
        py.detach(|| {
            let mut stored = model.model.feed_forward(layer)?;
            if !shared {
                stored.shared.clear();
            }
            if let Some(numbers) = &numbers {
                let found = stored.experts.len();
                if let Some(number) = numbers.iter().find(|number| **number >= found) {
                    return Err(Error::value("experts", format!("{number} is not among layer {layer}'s {found}")));
                }
                stored.experts = numbers.iter().map(|&number| stored.experts[number].clone()).collect();
            }
            let router = match router {
                Some(router) => Some(router_of(router, stored.experts.len())?),
                None if numbers.is_some() => None,
                None => feed_forward::router(&stored)?,
            };
            let weights = expert_weights(stored, gate)?;
            let experts = hammerhead::Experts::new(&*wish.engine()?, &weights, options)?;
            Ok(Self { experts, router, gate: weights.gate(), wish })
        })
    }

    /// Maps a layer from a file that `save` wrote.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, how: HowParts, engine: EngineParts) -> Result<Self> {
        let (options, wish) = (options_of(how)?, wish_of(engine)?);
        py.detach(|| {
            let (experts, router) = hammerhead::Experts::open(&*wish.engine()?, path, options)?;
            let gate = experts.gate();
            Ok(Self { experts, router, gate, wish })
        })
    }

    /// Writes the packed weights and the rule of routing to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        py.detach(|| Ok(self.experts.save(&*self.wish.engine()?, path, self.router.as_ref())?))
    }

    /// Computes tokens by the experts that the router chooses by their logits.
    fn run_logits(
        &self,
        py: Python<'_>,
        x: NumberParts<'_>,
        logits: Bound<'_, PyAny>,
        out: NumberParts<'_>,
    ) -> Result<()> {
        let Some(router) = &self.router else {
            let found = "this layer has no rule of routing; give ids and weights, or make it with routing and top_k";
            return Err(Error::value("router_logits", found));
        };
        let logits = borrowed(&logits, "router_logits")?;
        let (x, mut out) = (Numbers::borrow(x, "x")?, Numbers::borrow(out, "out")?);
        check_apart(&out.array, &[&x.array, &logits])?;
        let (tokens, logits, target) = (x.dense()?, logits.singles()?, out.target()?);
        let engine = self.wish.engine_at(py)?;
        py.detach(|| {
            let routed = router.route(logits, tokens.rows())?;
            Ok(self.experts.run_into(&engine, &tokens, &routed, target)?)
        })
    }

    /// Computes tokens by the experts that are given, with the weights that are given, which may multiply inputs.
    fn run_given(
        &self,
        py: Python<'_>,
        x: NumberParts<'_>,
        ids: Bound<'_, PyAny>,
        weights: Bound<'_, PyAny>,
        on_input: bool,
        out: NumberParts<'_>,
    ) -> Result<()> {
        let (ids, weights) = (borrowed(&ids, "ids")?, borrowed(&weights, "weights")?);
        let (x, mut out) = (Numbers::borrow(x, "x")?, Numbers::borrow(out, "out")?);
        check_apart(&out.array, &[&x.array, &ids, &weights])?;
        let (tokens, target) = (x.dense()?, out.target()?);
        let (ids, weights) = (ids.ids()?, weights.singles()?);
        let engine = self.wish.engine_at(py)?;
        py.detach(|| {
            let routed = Routed::given(ids, weights, tokens.rows(), self.experts.count())?;
            let routed = if on_input { routed.on_input() } else { routed };
            Ok(self.experts.run_into(&engine, &tokens, &routed, target)?)
        })
    }

    /// Experts that there are, the shared one not counted.
    #[getter]
    fn count(&self) -> usize {
        self.experts.count()
    }

    /// Scoring and experts per token, if there is a router.
    #[getter]
    fn routing(&self) -> Option<(String, usize)> {
        self.router.as_ref().map(|router| (router.scoring().to_string(), router.top_k()))
    }

    /// The width of tokens, of the intermediate and of results.
    #[getter]
    fn widths(&self) -> [usize; 3] {
        self.experts.widths()
    }

    /// The gate's name.
    #[getter]
    fn gate(&self) -> String {
        self.gate.to_string()
    }

    /// The bytes the packed weights take.
    #[getter]
    fn packed_bytes(&self) -> usize {
        self.experts.packed_bytes()
    }

    /// The backends that are chosen among, best first.
    #[getter]
    fn backends(&self) -> Result<Vec<&'static str>> {
        self.wish.backends()
    }

    /// The threads that are computed on.
    #[getter]
    fn threads(&self) -> Result<usize> {
        Ok(self.wish.engine()?.threads())
    }
}
