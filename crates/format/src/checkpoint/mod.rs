//! Checkpoints as others write them, and the gated pairs in them.
//!
//! A [`Checkpoint`] is a model on disk: safetensors as ModelOpt, compressed-tensors, torchao, gpt-oss and DeepSeek lay
//! them out, in one file or in shards with an index, or GGUF. It is memory-mapped: opening one of a hundred gigabytes
//! reads its headers. What it found is described by [`Checkpoint::layers`]; a layer's matrices come as [`Matrix`], all
//! in the one form that this house knows, when they are asked for:
//!
//! ```no_run
//! use hammerhead_format::checkpoint::Checkpoint;
//!
//! let model = Checkpoint::open("Qwen3-30B-A3B-NVFP4")?;
//! let layer = model.layer(0)?;
//! let gate = &layer.experts[0].gate;
//! println!("{}: {} experts of {} × {}", layer.gate, layer.experts.len(), gate.rows(), gate.k());
//! # Ok::<(), hammerhead_format::Error>(())
//! ```
//!
//! What can be read in two ways is refused, with the option that settles it. The files come from strangers: whatever is
//! in them, nothing is read outside them and nothing panics. **They must not be changed while they are open.**

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::Files;
use crate::{Error, GlobalScale, Matrix, Result};

mod beside;
mod by_name;
mod coded;
mod config;
mod feed_forward;
mod folder;
mod fp8;
mod gguf;
mod json;
mod kinds;
mod layers;
mod layouts;
mod names;
mod parts;
mod patterns;
mod pre_scale;
mod routing;
mod store;
mod survey;
mod torchao;

pub use by_name::Stored;
use coded::Coded;
pub use coded::Rows;
use config::ModelConfig;
pub use config::Quantisation;
pub use feed_forward::{ExpertTable, FeedForward, Linear, Projections, Router};
pub use fp8::Fp8Linear;
pub use kinds::{Format, GateFunction, GateUpOrder, Precision};
pub use layers::{Arrangement, Content, Layer, Pair, Role};
use layouts::Recognised;
use names::Part;
use parts::{Catalogue, Parts};
pub use routing::{RoutingRule, Score};
use store::Store;
pub use survey::{BlockScales, Module, Survey};

/// What is said beside the path, to settle what a checkpoint leaves open.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whose layout the weights are in.
    pub format: Option<Format>,
    /// In which order gate and up stand where they are fused.
    pub gate_up_order: Option<GateUpOrder>,
    /// Which list of layers is meant where a model has several, such as `model.language_model.layers`.
    pub tower: Option<String>,
}

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    store: Store,
    catalogue: Catalogue,
    config: ModelConfig,
    options: Options,
    tower: String,
    others: Vec<String>,
    layers: Vec<Layer>,
}

/// One matrix of a checkpoint, not read yet.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The name that the weight had, or would have had on its own, before it was quantised: that of a tensor `[rows,
    /// K]`.
    pub name: String,
    /// The matrix's rows and K.
    pub shape: [usize; 2],
    stem: String,
    member: usize,
    rows: Rows,
}

/// A gated pair, read.
#[derive(Clone, Debug)]
pub struct Expert<'a> {
    /// What holds it, such as `model.layers.0.mlp.experts.3`.
    pub name: String,
    /// The gate matrix, `[N, K]`.
    pub gate: Matrix<'a>,
    /// The up matrix, `[N, K]`, with a global scale of its own.
    pub up: Matrix<'a>,
    /// K numbers that tokens must be multiplied with, column by column, before they meet either matrix, if the model
    /// has them (ModelOpt's `pre_quant_scale`, from AWQ).
    pub pre_scale: Option<Vec<f32>>,
}

/// What a layer computes with, read.
#[derive(Clone, Debug)]
pub struct Mlp<'a> {
    /// How gate and up are joined.
    pub gate: GateFunction,
    /// The numbered experts in order, or where there are none the layer's one pair.
    pub experts: Vec<Expert<'a>>,
    /// Pairs that see every token beside numbered experts.
    pub shared: Vec<Expert<'a>>,
    /// Whether the model adds biases to the sums, which are not read.
    pub has_bias: bool,
}

impl Checkpoint {
    /// Opens a model: a folder, an index of shards, or a single safetensors or GGUF file.
    ///
    /// # Errors
    ///
    /// If there is no model, if a file is missing, damaged or hostile, or if what is there can be read in two ways.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Options::default())
    }

    /// Opens a model about which something is known beforehand.
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::open`], and if the options name a tower that is not there.
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        Self::open_in(&Files::Disk, path.as_ref(), options)
    }

    /// Opens a model whose files the caller holds: those of one folder, by their names.
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::open_with`].
    pub fn open_held<B: Into<Arc<[u8]>>>(
        files: impl IntoIterator<Item = (String, B)>,
        options: &Options,
    ) -> Result<Self> {
        let folder = PathBuf::from("held");
        let files = files.into_iter().map(|(name, bytes)| (folder.join(name), bytes.into())).collect();
        Self::open_in(&Files::Memory(folder.clone(), files), &folder, options)
    }

    fn open_in(files: &Files, path: &Path, options: &Options) -> Result<Self> {
        let mut checkpoint = Self::catalogued(files, path, options)?;
        checkpoint.find_layers()?;
        Ok(checkpoint)
    }

    /// Opens a model and sorts its tensors by what they belong to; its layers are not looked for.
    fn catalogued(files: &Files, path: &Path, options: &Options) -> Result<Self> {
        let found = folder::find(files, path)?;
        let (store, config) = match found.weights {
            folder::Weights::Safetensors { files: paths, index } => {
                (Store::safetensors(files, path, &paths, index.as_ref())?, ModelConfig::beside(files, &found.folder)?)
            }
            folder::Weights::Gguf { files: paths } => {
                let store = Store::gguf(files, path, &paths)?;
                let config = store.first_gguf().map(ModelConfig::from_gguf).unwrap_or_default();
                (store, config)
            }
        };
        let mut catalogue = Catalogue::new();
        for name in store.names() {
            let split = if store.first_gguf().is_some() { names::split_gguf } else { names::split };
            let (stem, part) = split(name);
            catalogue.entry(stem).or_default().push((part, name.to_owned()));
        }
        parts::separate(&mut catalogue);
        parts::join_quantised(&mut catalogue, &store);
        Ok(Self {
            store,
            catalogue,
            config,
            options: options.clone(),
            tower: String::new(),
            others: Vec::new(),
            layers: Vec::new(),
        })
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    /// The weights' files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.store.files()
    }

    /// What the model says it is, such as `qwen3_moe`.
    pub fn model_type(&self) -> Option<&str> {
        self.config.model_type.as_deref()
    }

    /// What the model says it was quantised by, in words, and in which file it says so.
    pub fn declared(&self) -> Option<(&str, &Path)> {
        self.config.quantisation.as_ref().map(|declared| (declared.summary.as_str(), declared.path.as_path()))
    }

    /// How gate and up are joined in a layer: as declared, else as the format implies, else SiLU.
    pub fn gate(&self, layer: usize) -> GateFunction {
        self.gate_and_source(Some(layer)).0
    }

    /// [`Checkpoint::gate`], and in words where that is known from. Without a layer it is that of all layers of which
    /// nothing else is declared.
    pub fn gate_and_source(&self, layer: Option<usize>) -> (GateFunction, &str) {
        let is_gpt_oss = |pair: &Pair| matches!(pair.content, Content::Quantised { format: Format::GptOss, .. });
        match &self.config.rules(layer).gate {
            Some((gate, source)) => (gate.clone(), source),
            None if self.layers.iter().flat_map(|layer| &layer.pairs).any(is_gpt_oss) => {
                (GateFunction::GptOss { clamp: 7.0 }, "the names of the tensors")
            }
            None => (GateFunction::Silu, "assumed, since nothing says"),
        }
    }

    /// How the model makes experts and weights of a router's logits, as far as its declarations tell.
    pub fn routing(&self) -> Option<RoutingRule> {
        self.config.rules(None).routing
    }

    /// The list of layers that is read, such as `model.layers`; empty where there is none.
    pub fn tower(&self) -> &str {
        &self.tower
    }

    /// Other lists of layers with gated pairs, which [`Options::tower`] can choose.
    pub fn other_towers(&self) -> &[String] {
        &self.others
    }

    /// The layers that have gated pairs, in order, as found: nothing of them is read yet.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Reads a layer.
    ///
    /// # Errors
    ///
    /// If there is no such layer, if any of it is not quantised, if experts are missing between others, or if a matrix
    /// holds what [`Matrix::new`] refuses.
    pub fn layer(&self, index: usize) -> Result<Mlp<'_>> {
        let layer = self.find_layer(index)?;
        Ok(Mlp {
            gate: self.gate(index),
            experts: self.experts(index)?,
            shared: layer.shared().into_iter().map(|pair| self.pair(pair)).collect::<Result<_>>()?,
            has_bias: layer.pairs.iter().any(|pair| pair.has_bias),
        })
    }

    /// Reads the numbered experts of a layer in order, or where there are none its one pair, and nothing beside them.
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::layer`], about these alone.
    pub fn experts(&self, index: usize) -> Result<Vec<Expert<'_>>> {
        self.numbered(self.find_layer(index)?)?.into_iter().map(|pair| self.pair(pair)).collect()
    }

    /// The experts of a layer, of which none may be missing between others.
    fn numbered<'l>(&self, layer: &'l Layer) -> Result<Vec<&'l Pair>> {
        let experts = layer.experts();
        for (expected, pair) in experts.iter().enumerate() {
            if pair.role != Role::Dense && pair.role != Role::Expert(expected) {
                return Err(self.no_expert(layer, expected));
            }
        }
        Ok(experts)
    }

    /// Reads one numbered expert of a layer, or with number 0 the pair of a layer without any.
    ///
    /// # Errors
    ///
    /// As of [`Checkpoint::layer`], about this expert alone.
    pub fn expert(&self, layer: usize, expert: usize) -> Result<Expert<'_>> {
        let layer = self.find_layer(layer)?;
        let experts = layer.experts();
        let wanted = |pair: &&&Pair| match pair.role {
            Role::Expert(number) => number == expert,
            _ => expert == 0,
        };
        match experts.iter().find(wanted) {
            Some(pair) => self.pair(pair),
            None => Err(self.no_expert(layer, expert)),
        }
    }

    /// Reads a gated pair.
    ///
    /// # Errors
    ///
    /// If it is not quantised, if a matrix holds what [`Matrix::new`] refuses, or if gate and up want different tokens.
    pub fn pair(&self, pair: &Pair) -> Result<Expert<'_>> {
        let (gate, up) = (self.matrix(&pair.gate)?, self.matrix(&pair.up)?);
        Ok(Expert { name: pair.name.clone(), gate, up, pre_scale: self.pre_scale_of_pair(pair)? })
    }

    /// Reads one matrix.
    ///
    /// # Errors
    ///
    /// If it is not quantised, or if it holds what [`Matrix::new`] refuses.
    pub fn matrix(&self, weight: &Weight) -> Result<Matrix<'_>> {
        self.coded(&weight.stem)?.matrix(weight.member, weight.rows)
    }

    /// The global scale of a matrix, as it is stored; nothing else of it is read.
    ///
    /// # Errors
    ///
    /// If it is not quantised, or if the scale is not finite.
    pub fn global(&self, weight: &Weight) -> Result<GlobalScale> {
        self.coded(&weight.stem)?.global(weight.member, weight.rows)
    }

    /// The files that hold parts of a matrix.
    pub fn files_of(&self, weight: &Weight) -> Vec<&Path> {
        let names = self.catalogue.get(&weight.stem).into_iter().flatten();
        let mut files: Vec<&Path> = names.filter_map(|(_, name)| Some(self.store.view(name)?.path)).collect();
        files.sort();
        files.dedup();
        files
    }

    /// Every quantised matrix of the checkpoint, of gated pairs and of anything else, under the name its weight had.
    /// Fused and stacked experts are taken apart: `….experts.gate_up_proj` gives `….experts.0.gate_proj.weight` and so
    /// on.
    ///
    /// # Errors
    ///
    /// If a weight's parts do not make a quantised matrix.
    pub fn weights(&self) -> Result<Vec<Weight>> {
        let mut weights = Vec::new();
        for stem in self.catalogue.keys() {
            let parts = self.parts(stem);
            if let Recognised::Quantised(layout) = self.recognise(&parts)? {
                self.list_weights(stem, &layout.coded(&parts)?, layout.format, &mut weights)?;
            }
        }
        Ok(weights)
    }

    /// The matrices of one stem.
    fn list_weights(&self, stem: &str, coded: &Coded<'_>, format: Format, out: &mut Vec<Weight>) -> Result<()> {
        for member in 0..coded.stack {
            let mut push = |name: String, rows: Rows| {
                let shape = [rows.of(coded.rows), coded.k];
                out.push(Weight { name, shape, stem: stem.to_owned(), member, rows });
            };
            match names::stacked(stem) {
                Some((experts, last)) => match layers::fused_names(last) {
                    Some(apart) => {
                        let order = self.order(stem, format, coded.rows)?;
                        for (name, rows) in apart.into_iter().zip(layers::fused_rows(order)) {
                            push(format!("{experts}.{member}.{name}.weight"), rows);
                        }
                    }
                    None => push(format!("{experts}.{member}.{last}.weight"), Rows::All),
                },
                None if coded.stack > 1 => push(format!("{stem}.{member}.weight"), Rows::All),
                None => push(self.unquantised_name(stem, format), Rows::All),
            }
        }
        Ok(())
    }

    /// The name that a matrix had before it was quantised. ModelOpt leaves its codes under that.
    fn unquantised_name(&self, stem: &str, format: Format) -> String {
        let mut names = self.catalogue.get(stem).into_iter().flatten();
        match names.find(|(part, _)| *part == Part::Weight) {
            Some((_, name)) if format == Format::ModelOpt => name.clone(),
            _ => format!("{stem}.weight"),
        }
    }

    fn parts(&self, stem: &str) -> Parts<'_> {
        let found = self.catalogue.get_key_value(stem);
        let (stem, names) = found.map_or(("", &[][..]), |(stem, names)| (stem, names));
        Parts { store: &self.store, stem, names }
    }

    fn recognise<'a>(&self, parts: &Parts<'a>) -> Result<Recognised<'a>> {
        layouts::recognise(parts, self.config.quantisation.as_ref(), self.options.format)
    }

    fn coded(&self, stem: &str) -> Result<Coded<'_>> {
        let parts = self.parts(stem);
        match self.recognise(&parts)? {
            Recognised::Quantised(layout) => {
                self.refuse_beside(stem, layout.parts(), &[])?;
                layout.coded(&parts)
            }
            Recognised::Other(came) => Err(Error::NotQuantised {
                path: self.path().to_path_buf(),
                name: stem.to_owned(),
                came,
                declared: self.config.ignores(stem),
            }),
        }
    }

    /// The layer of this number, as found.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn find_layer(&self, index: usize) -> Result<&Layer> {
        self.layers.iter().find(|layer| layer.index == index).ok_or_else(|| {
            let known = match (self.layers.first(), self.layers.last()) {
                (Some(first), Some(last)) => {
                    format!("{} has {}, from {} to {}", self.tower, self.layers.len(), first.index, last.index)
                }
                _ => "none of its tensors is named as the gate or up projection of a layer".to_owned(),
            };
            Error::NoLayer { path: self.path().to_path_buf(), layer: index, known }
        })
    }

    fn no_expert(&self, layer: &Layer, expert: usize) -> Error {
        let experts = layer.experts();
        let known = match experts.last().map(|pair| pair.role) {
            Some(Role::Expert(last)) => format!("it has {} of them, the last is {last}", experts.len()),
            _ => "it has no numbered experts, take 0 for its one pair".to_owned(),
        };
        Error::NoExpert { path: PathBuf::from(self.path()), layer: layer.index, expert, known }
    }
}
