//! A survey of a checkpoint: every weight with its scales as they are stored, without a judgement.
//!
//! [`Checkpoint`] refuses what it cannot compute with, and stops there. A survey goes on: a weight whose parts do not
//! fit together is described with the reason, scales that are NaN or zero are counted, and the rest of the model is
//! described all the same. Scales are read whole, codes only where a scale is zero. (In GGUF the scales lie among the
//! codes, so that all pages of a file are read.)

use std::path::Path;
use std::thread;

use super::feed_forward::stored_numbers;
use super::layouts::Recognised;
use super::names::{self, Part};
use super::parts::Parts;
use super::{Checkpoint, Content, Options, Quantisation};
use crate::files::Files;
use crate::{Error, GlobalScale, Result};

mod blocks;
pub use blocks::BlockScales;

/// How DeepSeek's FP8 weights name their scales, which are read as tensors of their own.
const FP8_SCALES: &str = ".weight_scale_inv";

/// A checkpoint that is open to be described.
#[derive(Debug)]
pub struct Survey {
    checkpoint: Checkpoint,
}

/// A module that has a weight, or what is left of one.
#[derive(Debug)]
pub struct Module<'a> {
    /// Its name, such as `model.layers.0.self_attn.q_proj`; modules of GGUF files have the names that other formats
    /// use.
    pub name: &'a str,
    /// The list of layers that it is in, such as `model.layers`, and its layer's number.
    pub layer: Option<(&'a str, usize)>,
    /// How its weight is stored.
    pub content: Content,
    /// Why its tensors do not make a weight.
    pub problem: Option<Error>,
    /// How many matrices are stacked, their rows and their K; zeros where the weight is no matrix.
    pub shape: [usize; 3],
    /// Whether elements of a weight are there, as codes or otherwise.
    pub has_elements: bool,
    /// Whether scales of a weight are there.
    pub has_scales: bool,
    /// Global scales as stored: one for all, one per matrix, or two per matrix in which gate and up are fused.
    pub globals: Vec<GlobalScale>,
    /// What its block scales are, if they are there.
    pub blocks: Option<BlockScales>,
    /// Scales of activations as stored, each as the factor that activations are divided by before they are rounded.
    pub input_scales: Vec<GlobalScale>,
    /// The bytes of the vector that tokens are multiplied with first (ModelOpt's `pre_quant_scale`).
    pub pre_scale: Option<&'a [u8]>,
}

impl Survey {
    /// Opens a model as [`Checkpoint::open_with`] does, but for its layers.
    ///
    /// # Errors
    ///
    /// If there is no model, or if a file is missing or damaged.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        Ok(Self { checkpoint: Checkpoint::catalogued(&Files::Disk, path.as_ref(), options)? })
    }

    /// What the model says it is, such as `qwen3_moe`.
    pub fn model_type(&self) -> Option<&str> {
        self.checkpoint.model_type()
    }

    /// Where it says how it was quantised: `config.json`, `hf_quant_config.json`, or both.
    pub fn declarations(&self) -> impl Iterator<Item = &Quantisation> {
        let config = &self.checkpoint.config;
        config.quantisation.iter().chain(&config.repeated)
    }

    /// Whether it says that its output projection is its embedding.
    pub fn is_tied(&self) -> bool {
        self.checkpoint.config.is_tied
    }

    /// How many layers it says it has.
    pub fn declared_layers(&self) -> Option<usize> {
        self.checkpoint.config.layers
    }

    /// Tensors that are in a shard but not in the index.
    pub fn unlisted(&self) -> Vec<&str> {
        self.checkpoint.store.unlisted()
    }

    /// The bytes of a module's unquantised weight.
    pub fn weight_bytes(&self, module: &str) -> Option<&[u8]> {
        self.checkpoint.parts(module).get(Part::Weight).ok().flatten().map(|view| view.bytes)
    }

    /// The scales of the cache of keys and values by name; NaN where a tensor is not one number.
    pub fn kv_scales(&self) -> Vec<(&str, f32)> {
        let names = self.checkpoint.store.names().filter(|name| is_kv_scale(name));
        let number = |name| match stored_numbers(&self.checkpoint.store.view(name)?).as_deref() {
            Ok(&[number]) => Some(number),
            _ => None,
        };
        names.map(|name| (name, number(name).unwrap_or(f32::NAN))).collect()
    }

    /// Every module that has a weight of at least two sides, or parts of one. Scales are read by all threads of the
    /// machine.
    pub fn modules(&self) -> Vec<Module<'_>> {
        let stems: Vec<&str> = self.checkpoint.catalogue.keys().map(String::as_str).collect();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = stems.len().div_ceil(threads).max(1);
        let describe = |stems: &[&'_ str]| stems.iter().filter_map(|stem| self.module(stem)).collect::<Vec<_>>();
        thread::scope(|scope| {
            let working: Vec<_> = stems.chunks(share).map(|share| scope.spawn(move || describe(share))).collect();
            let found = working.into_iter().map(|thread| thread.join());
            // A thread that panicked has said why; the panic goes on here.
            found.flat_map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    fn module(&self, stem: &str) -> Option<Module<'_>> {
        let parts = self.checkpoint.parts(stem);
        if is_kv_scale(parts.stem) || parts.stem.ends_with(FP8_SCALES) {
            return None;
        }
        let has = |wanted: &[Part]| wanted.iter().any(|part| parts.has(*part));
        let mut module = Module {
            name: parts.stem,
            layer: names::layer(parts.stem),
            content: Content::Other("without a weight tensor".to_owned()),
            problem: None,
            shape: [0; 3],
            has_elements: has(&[Part::Weight, Part::Packed, Part::Qdata, Part::Blocks]),
            has_scales: has(&[Part::BlockScale, Part::Exponents, Part::Multiplier, Part::Divisor, Part::InputScale])
                || self.checkpoint.catalogue.contains_key(&format!("{}{FP8_SCALES}", parts.stem)),
            globals: Vec::new(),
            blocks: None,
            input_scales: Vec::new(),
            pre_scale: None,
        };
        module.problem = self.describe(&parts, &mut module).err();
        let is_matrix = module.shape[1] > 0 || module.problem.is_some() || module.has_scales;
        is_matrix.then_some(module)
    }

    /// Fills in what can be read, up to the first part that cannot.
    fn describe<'a>(&self, parts: &Parts<'a>, module: &mut Module<'a>) -> Result<()> {
        if let Some(view) = parts.get(Part::InputScale)? {
            let divides = view.name.ends_with("global_scale");
            let kind = if divides { GlobalScale::Divides } else { GlobalScale::Multiplies };
            module.input_scales = stored_numbers(&view)?.into_iter().map(kind).collect();
        }
        module.pre_scale = parts.get(Part::PreScale)?.map(|view| view.bytes);
        match self.checkpoint.recognise(parts)? {
            Recognised::Quantised(layout) => {
                module.content = Content::Quantised { format: layout.format, precision: layout.precision };
                let coded = layout.coded(parts)?;
                module.shape = [coded.stack, coded.rows, coded.k];
                module.globals = coded.globals.stored();
                module.blocks = Some(BlockScales::of(&coded)?);
                self.checkpoint.refuse_beside(parts.stem, layout.parts(), &[])?;
            }
            Recognised::Other(words) => {
                module.content = Content::Other(words);
                module.shape = match parts.get(Part::Weight)?.or(parts.get(Part::Packed)?).map(|view| view.shape) {
                    Some(&[rows, k]) => [1, rows, k],
                    Some(&[stack, rows, k]) => [stack, rows, k],
                    _ => [0; 3],
                };
            }
        }
        Ok(())
    }
}

fn is_kv_scale(name: &str) -> bool {
    name.ends_with(".k_scale") || name.ends_with(".v_scale")
}
