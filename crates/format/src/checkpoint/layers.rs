//! The gated pairs of a model, found by name and grouped by layer.

use std::collections::BTreeMap;

use super::coded::{MAX_STACK, Rows};
use super::layouts::Recognised;
use super::names::{self, Owner, Part, Place, Projection};
use super::{Checkpoint, Format, GateUpOrder, Precision, Weight};
use crate::{Error, Result};

/// A layer, as found.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its number in the model.
    pub index: usize,
    /// Its name, such as `model.layers.0`.
    pub name: String,
    /// Its gated pairs: experts by number, then the rest.
    pub pairs: Vec<Pair>,
}

impl Layer {
    /// The numbered experts in order, or where there are none the layer's one pair.
    pub fn experts(&self) -> Vec<&Pair> {
        let numbered: Vec<&Pair> = self.pairs.iter().filter(|pair| matches!(pair.role, Role::Expert(_))).collect();
        if numbered.is_empty() { self.pairs.iter().take(1).collect() } else { numbered }
    }

    /// Pairs beside the experts.
    pub fn shared(&self) -> Vec<&Pair> {
        let experts = self.experts().len();
        self.pairs.iter().skip(experts).collect()
    }
}

/// A gated pair, as found.
#[derive(Clone, Debug)]
pub struct Pair {
    /// What holds it, such as `model.layers.0.mlp.experts.3`.
    pub name: String,
    /// What it is to its layer.
    pub role: Role,
    /// How its matrices are stored.
    pub content: Content,
    /// Whether they are apart, and if not in which order.
    pub arrangement: Arrangement,
    /// Whether its matrices are stored as their columns.
    pub is_transposed: bool,
    /// Whether the model adds biases to its sums.
    pub has_bias: bool,
    /// Whether the model multiplies tokens with a vector first (ModelOpt's `pre_quant_scale`, from AWQ).
    pub has_pre_scale: bool,
    /// The gate matrix.
    pub gate: Weight,
    /// The up matrix.
    pub up: Weight,
    /// The matrix that takes what they make back to the tokens' K, if it is there.
    pub down: Option<Weight>,
}

/// What a gated pair is to its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The expert of this number.
    Expert(usize),
    /// All there is, or beside the experts.
    Dense,
    /// An expert that sees every token.
    Shared,
}

/// How the matrices of a pair are stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// In blocks of 4-bit floats, as this crate reads them.
    Quantised {
        /// Whose layout.
        format: Format,
        /// Which kind of blocks.
        precision: Precision,
    },
    /// In another way, in words.
    Other(String),
}

/// Where gate and up stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// In tensors of their own.
    Apart,
    /// In one tensor.
    Fused(GateUpOrder),
}

/// Kinds of models whose fused experts are known to have all of gate first.
const GATE_FIRST: [&str; 19] = [
    "llama4",
    "llama4_text",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl_moe",
    "qwen3_5_moe",
    "qwen3_omni_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "minimax_m3_vl",
    "olmoe",
    "phimoe",
];

/// The names of gate and up where a name stands for both.
pub(super) fn fused_names(name: &str) -> Option<[&'static str; 2]> {
    match name {
        "gate_up_proj" => Some(["gate_proj", "up_proj"]),
        "w13" => Some(["w1", "w3"]),
        _ => None,
    }
}

/// The rows of gate and of up.
pub(super) fn fused_rows(order: GateUpOrder) -> [Rows; 2] {
    match order {
        GateUpOrder::GateFirst => [Rows::FirstHalf, Rows::SecondHalf],
        GateUpOrder::UpFirst => [Rows::SecondHalf, Rows::FirstHalf],
        GateUpOrder::Interleaved => [Rows::Even, Rows::Odd],
    }
}

/// The last segment of a stem.
fn last_of(stem: &str) -> &str {
    stem.rsplit('.').next().unwrap_or(stem)
}

/// The stems of one pair, or of a stack of them.
#[derive(Debug, Default)]
struct Stems {
    gate: Option<String>,
    up: Option<String>,
    fused: Option<String>,
    down: Option<String>,
}

/// The pairs of a layer by owner and module, before their tensors are looked at.
type Found = BTreeMap<(Owner, String), Stems>;

/// What a stem's tensors turned out to be.
struct Side {
    content: Content,
    stack: usize,
    rows: usize,
    k: usize,
    transposed: bool,
}

impl Checkpoint {
    /// Finds the layers of the tower that is meant.
    pub(super) fn find_layers(&mut self) -> Result<()> {
        let mut towers: BTreeMap<String, BTreeMap<usize, Found>> = BTreeMap::new();
        for stem in self.catalogue.keys() {
            let Some(Place { tower, layer, owner, module, projection }) = names::place(stem) else { continue };
            let stems = towers.entry(tower).or_default().entry(layer).or_default().entry((owner, module)).or_default();
            *match projection {
                Projection::Gate => &mut stems.gate,
                Projection::Up => &mut stems.up,
                Projection::GateUp => &mut stems.fused,
                Projection::Down => &mut stems.down,
            } = Some(stem.clone());
        }
        // An up projection without a gate is that of an ungated layer.
        for tower in towers.values_mut() {
            tower.values_mut().for_each(|found| found.retain(|_, s| s.gate.is_some() || s.fused.is_some()));
            tower.retain(|_, found| !found.is_empty());
        }
        towers.retain(|_, tower| !tower.is_empty());
        let chosen = self.choose_tower(&towers)?;
        self.others = towers.keys().filter(|name| Some(*name) != chosen.as_ref()).cloned().collect();
        let Some((tower, layers)) = chosen.and_then(|name| towers.remove_entry(&name)) else { return Ok(()) };
        let mut read = Vec::new();
        for (index, found) in layers {
            let mut pairs = Vec::new();
            for ((owner, module), stems) in found {
                self.add_pairs(owner, &module, &stems, &mut pairs)?;
            }
            pairs.sort_by_key(|pair| pair.role);
            read.push(Layer { index, name: format!("{tower}.{index}"), pairs });
        }
        (self.tower, self.layers) = (tower, read);
        Ok(())
    }

    /// The tower that was asked for, or the only one that has quantised layers, or the only one.
    fn choose_tower(&self, towers: &BTreeMap<String, BTreeMap<usize, Found>>) -> Result<Option<String>> {
        let known = || towers.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let ambiguous = |problem: String| Error::Ambiguous {
            path: self.path().to_path_buf(),
            what: "the list of layers".to_owned(),
            problem,
            remedy: format!("choose with --tower among {}", known()),
        };
        if let Some(asked) = &self.options.tower {
            if !towers.contains_key(asked) {
                return Err(ambiguous(format!("there is none named {asked:?} with gated pairs")));
            }
            return Ok(Some(asked.clone()));
        }
        let quantised = |layers: &BTreeMap<usize, Found>| {
            let stems = layers.values().flat_map(BTreeMap::values).flat_map(|s| [&s.gate, &s.fused]).flatten();
            stems
                .map(|stem| self.side(stem))
                .filter(|side| !matches!(side, Ok(Side { content: Content::Other(_), .. })))
                .count()
        };
        let mut ranked: Vec<(usize, &String)> = towers.iter().map(|(name, layers)| (quantised(layers), name)).collect();
        ranked.sort();
        match ranked[..] {
            [] => Ok(None),
            [.., (next, second), (most, first)] if next == most => {
                Err(ambiguous(format!("{second:?} and {first:?} are equally likely")))
            }
            [.., (_, first)] => Ok(Some(first.clone())),
        }
    }

    /// Adds the pair, or the stack of pairs, that a module holds.
    fn add_pairs(&self, owner: Owner, module: &str, stems: &Stems, pairs: &mut Vec<Pair>) -> Result<()> {
        let (gate_stem, up_stem) = match stems {
            Stems { fused: Some(fused), gate: None, up: None, .. } => (fused, fused),
            Stems { fused: None, gate: Some(gate), up: Some(up), .. } => (gate, up),
            Stems { fused: None, gate: Some(gate), up: None, .. } => {
                return self.parts(gate).refuse(
                    "it has no up projection beside it".to_owned(),
                    "fetch the missing part, or look in the other shards",
                );
            }
            _ => {
                return Err(Error::Ambiguous {
                    path: self.path().to_path_buf(),
                    what: format!("module {module:?}"),
                    problem: "gate and up are there both fused and apart".to_owned(),
                    remedy: "keep one of them".to_owned(),
                });
            }
        };
        let (gate, up) = (self.side(gate_stem)?, self.side(up_stem)?);
        let both = [&gate, &up].iter().all(|side| matches!(side.content, Content::Quantised { .. }));
        if both && (gate.stack, gate.rows, gate.k) != (up.stack, up.rows, up.k) {
            let problem = format!(
                "gate is {} × {} and up {} × {}, in stacks of {} and {}",
                gate.rows, gate.k, up.rows, up.k, gate.stack, up.stack
            );
            return self
                .parts(gate_stem)
                .refuse(problem, "gate and up have the same shape: check that they belong together");
        }
        let content = match (gate.content, up.content) {
            (gate, up) if gate == up => gate,
            // Global scales may differ in every way, so of two layouts each is read in its own.
            (Content::Quantised { .. }, quantised @ Content::Quantised { .. }) => quantised,
            (Content::Other(gate), Content::Other(up)) => Content::Other(format!("gate {gate}, up {up}")),
            (_, Content::Other(other)) | (Content::Other(other), _) => Content::Other(format!("half {other}")),
        };
        let down = stems.down.as_ref().map(|stem| Ok((stem, self.side(stem)?))).transpose()?;
        // A down projection of another height than the pair's is not the pair's.
        let down = down.filter(|(_, side)| side.stack == gate.stack);
        let (arrangement, rows, names) = self.arrange(stems, &content, gate_stem, up_stem, gate.rows)?;
        for member in 0..gate.stack {
            let (role, name) = match owner {
                Owner::Stack => (Role::Expert(member), format!("{module}.{member}")),
                Owner::Expert(number) => (Role::Expert(number), module.to_owned()),
                Owner::Module => (Role::Dense, module.to_owned()),
                Owner::Shared => (Role::Shared, module.to_owned()),
            };
            let weight = |side: usize, stem: &str| Weight {
                name: format!("{name}.{}.weight", names[side]),
                shape: [rows[side].of(gate.rows), gate.k],
                stem: stem.to_owned(),
                member,
                rows: rows[side],
            };
            let has = |part| [gate_stem, up_stem].into_iter().any(|stem| self.parts(stem).has(part));
            let (has_bias, has_pre_scale) = (has(Part::Bias), has(Part::PreScale));
            let is_transposed = gate.transposed || up.transposed;
            let down = down.as_ref().map(|(stem, side)| Weight {
                name: format!("{name}.{}.weight", last_of(stem)),
                shape: [side.rows, side.k],
                stem: (*stem).clone(),
                member,
                rows: Rows::All,
            });
            let (gate, up) = (weight(0, gate_stem), weight(1, up_stem));
            pairs.push(Pair {
                role,
                content: content.clone(),
                arrangement,
                is_transposed,
                has_bias,
                has_pre_scale,
                gate,
                up,
                down,
                name,
            });
        }
        Ok(())
    }

    /// How gate and up stand, which rows each has, and what each is called.
    fn arrange<'s>(
        &self,
        stems: &Stems,
        content: &Content,
        gate: &'s str,
        up: &'s str,
        rows: usize,
    ) -> Result<(Arrangement, [Rows; 2], [&'s str; 2])> {
        if stems.fused.is_none() {
            return Ok((Arrangement::Apart, [Rows::All; 2], [last_of(gate), last_of(up)]));
        }
        // What is not read has no order that would matter.
        let order = match content {
            Content::Quantised { format, .. } => self.order(gate, *format, rows)?,
            Content::Other(_) => GateUpOrder::GateFirst,
        };
        let names = fused_names(last_of(gate)).unwrap_or(["gate_proj", "up_proj"]);
        Ok((Arrangement::Fused(order), fused_rows(order), names))
    }

    /// In which order gate and up stand in a fused weight, or that it cannot be told.
    pub(super) fn order(&self, stem: &str, format: Format, rows: usize) -> Result<GateUpOrder> {
        if !rows.is_multiple_of(2) {
            let problem = format!("gate and up are fused in it, but it has {rows} rows, which is no even number");
            return self.parts(stem).refuse(problem, "check that this is a fused weight");
        }
        if let Some(order) = self.options.gate_up_order {
            return Ok(order);
        }
        let model_type = self.config.model_type.as_deref();
        let stacked = names::stacked(stem).is_some();
        if format == Format::GptOss || stacked && model_type == Some("gpt_oss") {
            return Ok(GateUpOrder::Interleaved);
        }
        // Of fused layers that are not stacked, and of GGUF, no other order is known. `feed_forward.experts` is Llama
        // 4's.
        let gate_first = !stacked
            || format == Format::Gguf
            || stem.contains(".feed_forward.experts.")
            || model_type.is_some_and(|kind| GATE_FIRST.contains(&kind));
        if gate_first {
            return Ok(GateUpOrder::GateFirst);
        }
        let problem = match model_type {
            Some(kind) => {
                format!("gate and up are fused, and in which order models of type {kind:?} have them is not known here")
            }
            None => "gate and up are fused, and there is no config.json to tell in which order".to_owned(),
        };
        Err(Error::Ambiguous {
            path: self.path().to_path_buf(),
            what: format!("weight {stem:?}"),
            problem,
            remedy: "say it with --gate-up-order gate-first, up-first or interleaved".to_owned(),
        })
    }

    /// Looks at a stem's tensors.
    fn side(&self, stem: &str) -> Result<Side> {
        let parts = self.parts(stem);
        Ok(match self.recognise(&parts)? {
            Recognised::Quantised(layout) => {
                let coded = layout.coded(&parts)?;
                let content = Content::Quantised { format: layout.format, precision: layout.precision };
                Side { content, stack: coded.stack, rows: coded.rows, k: coded.k, transposed: coded.is_transposed() }
            }
            Recognised::Other(came) => {
                // Only for the description: what is packed otherwise may have other sides than it says. A stack that no
                // bytes stand for may claim any height.
                let weight = parts.get(Part::Weight)?;
                let (shape, bytes) = weight.map_or((&[][..], 0), |weight| (weight.shape, weight.bytes.len()));
                let (stack, rows, k) = match *shape {
                    [rows, k] => (1, rows, k),
                    [stack @ 1..=MAX_STACK, rows, k] if stack <= bytes => (stack, rows, k),
                    _ => (1, 0, 0),
                };
                Side { content: Content::Other(came), stack, rows, k, transposed: false }
            }
        })
    }
}
