//! Opening a checkpoint as several commands do: what may be said beside its path, and what its gate is called here.

use std::path::Path;

use clap::Args;
use format::checkpoint::{Checkpoint, Content, Format, GateUpOrder, Options};
use hammerhead::Gate;

use crate::{Error, Result};

/// What settles that which a checkpoint leaves open.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the checkpoint leaves open")]
pub struct Reading {
    /// Whose layout the weights are in, where their names do not tell: modelopt, compressed-tensors, torchao, gguf,
    /// gpt-oss or deepseek
    #[arg(long, value_name = "NAME")]
    format: Option<Format>,
    /// How gate and up stand where they are in one tensor: gate-first, up-first or interleaved
    #[arg(long, value_name = "ORDER")]
    gate_up_order: Option<GateUpOrder>,
    /// Which list of layers is meant where there are several, such as model.language_model.layers
    #[arg(long, value_name = "NAME")]
    tower: Option<String>,
}

impl Reading {
    /// Opens a model.
    pub fn open(&self, path: &Path) -> Result<Checkpoint> {
        Ok(Checkpoint::open_with(path, &self.options())?)
    }

    /// The same as the reader takes it.
    pub fn options(&self) -> Options {
        Options { format: self.format, gate_up_order: self.gate_up_order, tower: self.tower.clone() }
    }
}

/// The gate that was asked for, or the layer's own.
pub fn gate(model: &Checkpoint, layer: usize, asked: Option<Gate>) -> Result<Gate> {
    if let Some(gate) = asked {
        return Ok(gate);
    }
    let (gate, source) = model.gate_and_source(Some(layer));
    hammerhead::declared_gate(&gate).map_err(|_| Error::UnknownGate {
        path: model.path().to_path_buf(),
        name: gate.to_string(),
        told_by: source.to_owned(),
    })
}

/// How a weight is stored, in words.
pub fn stored(content: &Content) -> String {
    match content {
        Content::Quantised { format, precision } => format!("{precision} {format}"),
        Content::Other(other) => other.clone(),
    }
}
