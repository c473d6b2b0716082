//! A problem over addresses, as launches: tokens are expanded where they must be, then multiplied.
//!
//! All memory is somebody else's: operands where the caller has them, and a workspace of `workspace_bytes` for what
//! lies between the launches. Only launches come out, so the same problem can be queued again and again.

use format::{Dense, GlobalScale, Values};

use super::expand::{Float, TokenForm};
use super::expansion::{self, Segment};
use super::families;
use super::family::{Family, GroupOperands};
use super::launch::Launch;
use super::packed::PackedGroup;
use super::round::{self, Rows};
use op::{Activation, Activations, Config, Precision, Problem, Result};

/// What every part of the workspace begins at a multiple of.
const ALIGNMENT: usize = 256;

/// Where a group's tokens are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenPlace {
    pub values: u64,
    /// Where the scales are, if they are NVFP4; where the input scale is, if they must be multiplied with it.
    pub scales: u64,
    pub global: GlobalScale,
    /// Single precision is multiplied by two to this power before it is split, and the sums by its inverse.
    pub exponent: i32,
}

impl TokenPlace {
    /// Activations of which the bytes are at these addresses, and of which the largest magnitude is known if they are
    /// dense.
    pub fn of(activations: &Activations<'_>, largest: f32, values: u64, scales: u64) -> Self {
        // Brought to 1 or just above, as far as one factor can: far from where bits or sums would be lost.
        let exponent = match activations.element() {
            Activation::F32 if largest > 0.0 => (127 - (largest.to_bits() >> 23).cast_signed()).clamp(-126, 126),
            _ => 0,
        };
        TokenPlace { values, scales, global: activations.global(), exponent }
    }
}

/// Codes or values of activations, and their scales.
pub fn bytes_of<'a>(activations: &'a Activations<'_>) -> [&'a [u8]; 2] {
    match activations {
        Activations::NvFp4(matrix) => [matrix.codes(), matrix.scales()],
        Activations::Dense(dense) => [dense_bytes(dense), &[]],
    }
}

/// The bytes of dense values.
pub(super) fn dense_bytes<'a>(dense: &'a Dense<'_>) -> &'a [u8] {
    match dense.values() {
        Values::F16(values) => bytemuck::cast_slice(values),
        Values::BF16(values) => bytemuck::cast_slice(values),
        Values::F32(values) => bytemuck::cast_slice(values),
    }
}

/// Bytes that [`launches`] need to work in.
pub(super) fn workspace_bytes(family: &'static dyn Family, problem: &Problem, config: &Config) -> usize {
    let family = families::computing(family, problem);
    expanded_bytes(family, problem) + family.workspace_bytes(problem, config)
}

/// Bytes of expanded tokens: all groups one after another, so that tokens that are so too are expanded as one run.
fn expanded_bytes(family: &dyn Family, problem: &Problem) -> usize {
    if problem.precision() == Precision::Fp8 {
        let bytes = problem.groups().iter().map(|shape| round::rounded_bytes([shape.m, shape.k]).iter().sum::<usize>());
        return bytes.sum::<usize>().next_multiple_of(ALIGNMENT);
    }
    let Some(source) = family.expansion(problem.activation()) else { return 0 };
    let bytes: usize = problem.groups().iter().map(|shape| source.expanded_bytes(shape.m * shape.k)).sum();
    bytes.next_multiple_of(ALIGNMENT)
}

/// Where a problem is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    /// The kernels.
    pub family: &'static dyn Family,
    /// The address of the workspace.
    pub workspace: u64,
    /// Multiprocessors that the launches are made for.
    pub multiprocessors: u32,
}

/// The launches that compute a problem, in their order. `source` is how tokens are expanded, if they are: as the
/// problem's type of activation asks, or with factors by which they become that type.
pub(super) fn launches<M>(
    site: Site,
    problem: &Problem,
    config: &Config,
    weights: &[PackedGroup<M>],
    address: impl Fn(&M) -> u64,
    (source, tokens): (Option<TokenForm>, &[TokenPlace]),
    outputs: &[u64],
) -> Result<Vec<Launch>> {
    let Site { family, workspace, multiprocessors } = site;
    let family = families::computing(family, problem);
    if problem.precision() == Precision::Fp8 {
        return rounded_launches(site, problem, config, weights, address, (source, tokens), outputs);
    }
    let (mut segments, mut operands, mut next) = (Vec::new(), Vec::new(), workspace);
    for (group, shape) in problem.groups().iter().enumerate() {
        let (place, elements) = (tokens[group], shape.m * shape.k);
        let plane = 2 * elements as u64;
        let mut values = place.values;
        if let Some(source) = source {
            let (target, scales, factor) = (next, place.scales, 2f32.powi(place.exponent));
            segments.push(Segment { source: values, scales, target, plane, factor, k: shape.k, elements });
            next += source.expanded_bytes(elements) as u64;
            values = target;
        }
        let (addresses, globals) = weights[group].both(&address);
        let scale = place.global.value() * 2f64.powi(-place.exponent);
        let (tokens, out) = (values, outputs[group]);
        let alphas = globals.map(|global| global * scale);
        let (token_scales, biases) = (place.scales, weights[group].bias_addresses(&address));
        operands.push(GroupOperands {
            weights: addresses,
            tokens,
            token_scales,
            part_bytes: plane,
            out,
            alphas,
            biases,
            lifts: [0; 2],
            column_factors: weights[group].row_factors.as_ref().map_or(0, &address),
        });
    }
    let mut launches = source.map_or_else(Vec::new, |source| expansion::launches(family.target(), source, &segments));
    let workspace = workspace + expanded_bytes(family, problem) as u64;
    launches.extend(family.launches(problem, config, &operands, workspace, multiprocessors)?);
    Ok(launches)
}

/// The same where tokens and weights are rounded to e4m3: tokens as they come, or times the factors of their columns.
fn rounded_launches<M>(
    site: Site,
    problem: &Problem,
    config: &Config,
    weights: &[PackedGroup<M>],
    address: impl Fn(&M) -> u64,
    (source, tokens): (Option<TokenForm>, &[TokenPlace]),
    outputs: &[u64],
) -> Result<Vec<Launch>> {
    let Site { family, workspace, multiprocessors } = site;
    let kind = match source {
        Some(TokenForm::Scaled(float)) => (float, true),
        _ => (Float::of(problem.activation()), false),
    };
    let (mut rows, mut operands, mut next) = (Vec::new(), Vec::new(), workspace);
    for (group, shape) in problem.groups().iter().enumerate() {
        let (place, sides) = (tokens[group], [shape.m, shape.k]);
        let [bytes, factor_bytes] = round::rounded_bytes(sides).map(|bytes| bytes as u64);
        let (target, factors) = (next, next + bytes);
        next = factors + factor_bytes;
        rows.push(Rows { source: place.values, columns: place.scales, target, factors, sides });
        let (addresses, globals) = weights[group].both(&address);
        let lifts = weights[group].lifts();
        let lifted = |matrix: usize| 2f64.powi(-lifts[matrix].cast_signed());
        operands.push(GroupOperands {
            weights: addresses,
            tokens: target,
            token_scales: factors,
            lifts,
            part_bytes: 0,
            out: outputs[group],
            alphas: [0, 1].map(|matrix| globals[matrix] * place.global.value() * lifted(matrix)),
            biases: weights[group].bias_addresses(&address),
            column_factors: 0,
        });
    }
    let mut launches = round::launches(family.target(), kind, &rows);
    let workspace = workspace + expanded_bytes(family, problem) as u64;
    launches.extend(family.launches(problem, config, &operands, workspace, multiprocessors)?);
    Ok(launches)
}
