//! A call of a layer: where its weights and tensors are, how tokens find their experts, and what device and host
//! exchange.

use op::Output;

use super::ALIGNMENT;
use super::adapters::AdapterPlaces;
use super::lots::Lots;
use super::route::RouteSpec;
use super::shape::LayerShape;

/// Where a layer's weights are. An expert's matrices lie one after another, and the next expert's behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerWeights {
    /// The first expert's first matrix.
    pub matrices: u64,
    /// Factors `[experts, 3, 2]`.
    pub factors: u64,
    /// Biases `[experts, inner]`, the same, and `[experts, hidden]`, if there are some.
    pub biases: [u64; 3],
    /// What the products' inputs are multiplied with, `[experts, hidden]` and `[experts, inner]`, if they are.
    pub scales: [u64; 2],
    /// The tables by which an NVFP4 intermediate is quantised, one per expert, if it is.
    pub tables: u64,
    /// The vector `[hidden]` of the only expert's own gate, if it has one.
    pub gate: u64,
    /// [Lifts](crate::phases::table::lift_word) `[experts, 3]`, if weights are rounded to e4m3.
    pub lifts: u64,
    /// The adapters, if there are some.
    pub adapters: AdapterPlaces,
}

/// How tokens find their experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// By logits.
    Logits {
        /// `[tokens, experts]`.
        logits: u64,
        /// How they are chosen.
        spec: RouteSpec,
        /// The correction `[experts]`, where there is one.
        correction: u64,
        /// What all weights are multiplied with.
        scale: f32,
    },
    /// By the caller.
    Given {
        /// `[tokens, top]`.
        ids: u64,
        /// Whether they have 64 bits, and not 32.
        wide: bool,
        /// `[tokens, top]`.
        weights: u64,
    },
    /// There is one, and it computes all of them.
    Everyone,
}

/// A call of a layer: where its tensors are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerCall {
    /// How many tokens there are.
    pub tokens: u32,
    /// Tokens `[tokens, hidden]`.
    pub x: u64,
    /// How they find their experts.
    pub choice: Choice,
    /// What is added to the sums, `[tokens, hidden]` of a type, if something is.
    pub addend: Option<(Output, u64)>,
    /// The adapter of every token, or -1: `[tokens]` of 32 bits, where the layer's shape has adapters.
    pub adapters: u64,
    /// Where experts are, if the layer's shape has not all of them: the host computes the others.
    pub placement: Option<Placement>,
    /// Results `[tokens, hidden]`.
    pub out: u64,
}

impl LayerCall {
    /// How it brings weights over, if it does.
    pub(crate) fn lots(&self) -> Option<&Lots> {
        Some(&self.placement.as_ref()?.brought.as_ref()?.lots)
    }
}

/// Where the device's memory says which experts it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Experts of the layer, wherever they are.
    pub experts: u32,
    /// The slot of each, or [`AWAY`](super::place::AWAY), or where weights are brought over the number of each; how
    /// often each was asked for.
    pub table: [u64; 2],
    /// Where the weights of all of them are, if the device brings over those that it does not hold.
    pub brought: Option<Brought>,
}

impl Placement {
    /// Whether the host computes rows.
    pub(crate) fn sends(&self) -> bool {
        self.brought.is_none()
    }
}

/// Weights that a call brings over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Brought {
    /// How experts are numbered and cut.
    pub lots: Lots,
    /// The first expert's first matrix, in the host's memory: the others lie behind it as they do on the device.
    pub matrices: u64,
}

/// What device and host exchange in a call, in memory that both reach: places in it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exchange {
    /// Experts that the host is to compute `[tokens, top]`, or [`NOBODY`](super::NOBODY).
    pub ids: usize,
    /// The entries' weights, where these multiply what experts are given.
    pub weights: usize,
    /// Tokens `[tokens, hidden]`.
    pub tokens: usize,
    /// What the host makes of them `[tokens, top, hidden]`, in single precision.
    pub rows: usize,
    /// Bytes of all of it.
    pub bytes: usize,
}

impl Exchange {
    /// The places for a call with so many tokens.
    pub fn of(shape: &LayerShape, tokens: u32) -> Self {
        let (tokens, hidden) = (tokens as usize, shape.hidden as usize);
        let entries = tokens * shape.top as usize;
        let mut bytes = 0;
        let mut take = |size: usize| {
            let at = bytes;
            bytes = (bytes + size).next_multiple_of(ALIGNMENT as usize);
            at
        };
        let mut places = Exchange {
            ids: take(4 * entries),
            weights: take(if shape.on_input { 4 * entries } else { 0 }),
            tokens: take(tokens * shape.activation.row_bytes(hidden)),
            rows: take(4 * entries * hidden),
            bytes: 0,
        };
        places.bytes = bytes;
        places
    }
}
