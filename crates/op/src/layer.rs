//! A whole feed-forward layer as an operation: what a backend that computes layers whole is given, and what it gives
//! back.
//!
//! A gated product is the first half of a layer with the counts given. The layer goes on: rows are found by routing,
//! the products have a second one behind them, and a token's results are added up. [`crate::layer_reference`] defines
//! all of it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use format::Dense;

use crate::{Adapted, Config, ExpertWeights, Intermediate, Precision, Problem, Result, Target};

/// Whoever settles how problems are computed.
pub trait Choose: fmt::Debug + Send + Sync {
    /// The configuration for a problem: always the same for the same one.
    fn choose(&self, problem: &Problem) -> Result<Config>;
}

/// What a layer computes.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpec<'w> {
    /// Experts with gate/up and down, their biases and input scales, the gate, and an expert of every token if there is
    /// one.
    pub weights: &'w ExpertWeights<'w>,
    /// What stands between the two products.
    pub intermediate: Intermediate,
    /// What the operands of both products are rounded to.
    pub precision: Precision,
    /// Whether a token's result may depend on nothing but that token and the weights.
    pub batch_invariant: bool,
    /// What of it a device is to hold, if not all.
    pub split: Option<&'w Split>,
}

impl LayerSpec<'_> {
    /// Refuses what is not combined with a precision: fewer bits between the products, or experts in two places, of
    /// which the processor would compute some exactly.
    pub fn check(&self) -> Result<()> {
        self.precision.check_layer(self.intermediate, false)?;
        self.precision.check_places(self.split.is_some())
    }
}

/// A layer in two places: some experts in a device's memory, and the others computed by the host meanwhile.
#[derive(Clone, Debug)]
pub struct Split {
    /// The experts that the device holds, each once.
    pub resident: Vec<u32>,
    /// Who computes the others.
    pub host: Arc<dyn HostRows>,
    /// Rows (tokens times experts of each) from which on the device computes the others itself, with weights that it
    /// brings over from the host's memory; without a number it never does, and nothing is kept there for it.
    pub stream_from: Option<usize>,
}

/// When a device computes experts that it does not hold itself, with weights that it brings over from the host's
/// memory for the while. What it brings is a second copy of all experts there, in the device's layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// Never: the processor computes them, and there is no second copy.
    #[default]
    Never,
    /// In calls of at least eight rows per expert, from where on it was measured to be faster.
    Planned,
    /// In calls of at least so many rows: tokens times experts of each.
    From(usize),
}

/// Rows of experts that the host is asked for.
#[derive(Debug)]
pub struct HostCall<'a> {
    /// Tokens `[rows, hidden]`.
    pub tokens: &'a Dense<'a>,
    /// Experts `[rows, top]` that are the host's; entries of others are beyond all of them.
    pub ids: &'a [u32],
    /// The entries' weights, where these multiply what experts are given.
    pub weights: Option<&'a [f32]>,
    /// Experts of a token.
    pub top: usize,
    /// Where the rows of the host's entries go: `[rows, top, hidden]`. Others are left as they are.
    pub rows: &'a mut [f32],
}

/// Who computes rows of a layer's experts on the host, for any of them.
pub trait HostRows: fmt::Debug + Send + Sync {
    /// Computes a call. It waits for no device, and for no other layer's call: one thread answers all.
    fn compute(&self, call: HostCall<'_>) -> Result<()>;
}

/// A call of a layer on the host's memory.
#[derive(Debug)]
pub struct LayerOperands<'a> {
    /// Tokens `[rows, hidden]`.
    pub tokens: &'a Dense<'a>,
    /// Experts `[rows, top]`; those that there are not compute nothing.
    pub ids: &'a [u32],
    /// Their weights.
    pub weights: &'a [f32],
    /// Experts of a token.
    pub top: usize,
    /// Whether weights multiply what experts are given, and not what they make of it.
    pub on_input: bool,
    /// The adapters of tokens that have one.
    pub adapted: Option<&'a Adapted>,
    /// Results `[rows, hidden]`.
    pub target: Target<'a>,
}

/// A layer where its backend computes it.
pub trait LoadedLayer: Any + fmt::Debug + Send + Sync {
    /// Bytes of memory that its weights take there.
    fn bytes(&self) -> usize;

    /// The experts that are there, where the host has the others.
    fn resident(&self) -> Option<Vec<u32>> {
        None
    }

    /// Rows (tokens times experts of each) from which on a call brings over the weights of experts that are not there,
    /// and the host computes none, if calls do that; or why they do not, though they were to.
    fn streams_from(&self) -> std::result::Result<Option<usize>, String> {
        Ok(None)
    }

    /// Bytes of the host's memory that are kept to be brought over.
    fn streamed_bytes(&self) -> usize {
        0
    }

    /// Computes a call. Slices have the lengths that the sizes say, or it is refused.
    fn run(&self, operands: LayerOperands<'_>) -> Result<()>;
}
