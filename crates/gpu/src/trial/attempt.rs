//! One trial, computed and compared with the reference.
//!
//! Whole numbers without a gate are compared to the bit; gated problems and layers under the derived bound.

use std::collections::HashMap;
use std::sync::Arc;

use format::{Dense, Matrix, Values};
use half::{bf16, f16};
use op::bound::Bounded;
use op::layer_reference::{LayerReference, value_at};
use op::operands::largest_of;
use op::reference::{Element, Reference};
use op::{
    Activation, Activations, Alone, Arithmetic, Error, ExpertWeights, Gate, Ids, MlpWeights, Output, Precision, Result,
    Routed, Shape, Team, Weights, Whole,
};

use super::{MULTIPROCESSORS, Trial};
use crate::experts::call::{Choice, LayerCall};
use crate::experts::kernels::LayerKernels;
use crate::experts::layer::{self, LayerSite};
use crate::experts::packed::{Numbers, PackedExpert};
use crate::experts::shape::LayerShape;
use crate::facts::Facts;
use crate::families::choice::illegal;
use crate::family::Family;
use crate::launch::Launch;
use crate::launches::{Site, TokenPlace, bytes_of, dense_bytes, launches, workspace_bytes};
use crate::packed::PackedGroups;

/// Every so-many-th token of a layer is compared, and the last: the reference takes its time over a layer.
const ROW_STRIDE: usize = 11;

/// Memory that launches can use, and what runs them.
pub trait Machine {
    /// Puts bytes into its memory and says where they are: at a multiple of 256.
    fn upload(&mut self, bytes: &[u8]) -> Result<u64>;

    /// Runs launches one after another, and waits for the last.
    fn run(&mut self, launches: &[Launch]) -> Result<()>;

    /// The bytes at an address that `upload` gave.
    fn download(&mut self, address: u64, bytes: &mut [u8]) -> Result<()>;
}

/// Computes trials with a family's kernels for a device, and knows what should come out.
#[derive(Debug)]
pub struct Attempts {
    family: &'static dyn Family,
    facts: Facts,
    /// The references of problems, each computed once.
    expected: HashMap<String, Arc<Vec<Vec<Element>>>>,
}

impl Attempts {
    /// For a family's kernels on a device.
    pub fn new(family: &'static dyn Family, facts: Facts) -> Self {
        Attempts { family, facts, expected: HashMap::new() }
    }

    /// Computes a trial on a machine. What went wrong is an error, or a sentence about the first element that is not as
    /// it should be.
    pub fn attempt(&mut self, machine: &mut dyn Machine, trial: &Trial) -> Result<Option<String>> {
        match trial.problem.whole() {
            None => self.products(machine, trial),
            Some(whole) => self.layer(machine, trial, whole),
        }
    }

    fn products(&mut self, machine: &mut dyn Machine, trial: &Trial) -> Result<Option<String>> {
        let Trial { problem, config, .. } = trial;
        let (family, team) = (self.family, Team::new(Alone));
        let (gate, output, precision) = (problem.gate(), problem.output(), problem.precision());
        let weights = problem.groups().iter().enumerate().map(|(group, s)| weights(gate, [s.n, s.k], group));
        let weights: Vec<Weights<'_>> = weights.collect::<Result<_>>()?;
        let tokens = problem.groups().iter().map(|shape| tokens(problem.activation(), shape.m, shape.k));
        let tokens: Vec<Activations<'_>> = tokens.collect::<Result<_>>()?;

        let packed = PackedGroups::new(family.layout(), (family, &team), &weights, |bytes| machine.upload(&bytes))?;
        let mut places = Vec::new();
        for (tokens, largest) in tokens.iter().zip(largest_of(&tokens, &team)) {
            let [values, scales] = bytes_of(tokens);
            places.push(TokenPlace::of(tokens, largest, machine.upload(values)?, machine.upload(scales)?));
        }
        // Full of NaN: what is not written shows.
        let blank = |machine: &mut dyn Machine, bytes: usize| machine.upload(&vec![0xFF; bytes]);
        let bytes = |shape: &Shape| shape.m * shape.n * output.bytes();
        let outputs = problem.groups().iter().map(|shape| blank(machine, bytes(shape)));
        let outputs: Vec<u64> = outputs.collect::<Result<_>>()?;
        let workspace = blank(machine, workspace_bytes(family, problem, config))?;
        let site = Site { family, workspace, multiprocessors: MULTIPROCESSORS };
        let source = family.expansion(problem.activation());
        let address = |address: &u64| *address;
        let launches = launches(site, problem, config, packed.groups(), address, (source, &places), &outputs)?;
        machine.run(&launches)?;

        let expected = self.expected.entry(format!("{problem:?}")).or_insert_with(|| {
            let each = tokens.iter().zip(&weights);
            Arc::new(
                each.map(|(tokens, weights)| Reference::in_precision(tokens, weights, gate, precision).all()).collect(),
            )
        });
        let arithmetic = match precision {
            Precision::Exact => family.arithmetic(problem.activation()),
            Precision::Fp8 => Arithmetic::Fp8TensorCores,
        };
        for (group, (elements, shape)) in expected.iter().zip(problem.groups()).enumerate() {
            let found = results(machine, outputs[group], shape.m * shape.n, output)?;
            for (at, element) in elements.iter().enumerate() {
                let found = value_at(&found, at);
                let bounded = Bounded::new(element, gate, shape.k, arithmetic);
                let right = match gate {
                    Gate::None => found == f64::from(element.value as f32),
                    _ => bounded.accepts(found, output),
                };
                if !right {
                    return Ok(Some(wrong((group, at / shape.n, at % shape.n), found, element.value)));
                }
            }
        }
        Ok(None)
    }

    fn layer(&self, machine: &mut dyn Machine, trial: &Trial, whole: &Whole) -> Result<Option<String>> {
        let Trial { problem, config, .. } = trial;
        let (family, team) = (self.family, Team::new(Alone));
        let not_a_layer = || Error::Mismatch {
            group: 0,
            what: "a trial's problem",
            found: problem.to_string(),
            expected: "a layer that there are kernels for".to_owned(),
        };
        let shape = LayerShape::of_problem(problem).ok_or_else(not_a_layer)?;
        let kernels = LayerKernels::new(family, &shape, config, &self.facts).map_err(illegal(config))?;
        let Shape { n: inner, k: hidden, .. } = problem.groups()[0];
        let experts = problem.groups().len();
        let mlp = |expert: usize| {
            let down = Weights::plain(matrix([hidden, inner], 7 + expert)?);
            let mut up = weights(problem.gate(), [inner, hidden], expert)?;
            if whole.scaled[0] {
                up = up.with_input_scale((0..hidden).map(|i| [0.5, 1.0, 2.0][i % 3]).collect::<Vec<f32>>())?;
            }
            MlpWeights::new(up, down)
        };
        let experts_weights = (0..experts).map(mlp).collect::<Result<Vec<_>>>()?;

        let (mut matrices, mut numbers) = (Vec::new(), Numbers::default());
        for mlp in &experts_weights {
            let packed = PackedExpert::new((family, &team), &shape, mlp)?;
            matrices.extend_from_slice(packed.matrices());
            numbers.add(&packed);
        }
        let matrices = machine.upload(&matrices)?;
        let placed = numbers.placed(matrices, |values| machine.upload(bytemuck::cast_slice(values)))?;
        let tokens = dense(problem.activation(), whole.tokens, hidden)?;
        let entries = whole.tokens * whole.top;
        let ids: Vec<u32> = (0..entries).map(|i| ((i + i / (2 * whole.top)) % experts) as u32).collect();
        let shares: Vec<f32> = (0..entries).map(|i| [0.75, 0.25, 0.5][i % 3]).collect();
        let x = machine.upload(dense_bytes(&tokens))?;
        let given = machine.upload(bytemuck::cast_slice(&ids))?;
        let choice = Choice::Given { ids: given, wide: false, weights: machine.upload(bytemuck::cast_slice(&shares))? };
        let count = whole.tokens as u32;
        let out = machine.upload(&vec![0xFF; whole.tokens * hidden * problem.output().bytes()])?;
        let workspace = machine.upload(&vec![0xFF; layer::workspace_bytes(&shape, None, count)])?;
        let call = LayerCall { tokens: count, x, choice, addend: None, adapters: 0, placement: None, out };
        let site = LayerSite { workspace, brought: 0, exchange: 0, multiprocessors: MULTIPROCESSORS };
        machine.run(&layer::launches(&shape, &kernels, &placed, &call, site).all)?;

        let found = results(machine, out, whole.tokens * hidden, problem.output())?;
        let (experts, intermediate) = (ExpertWeights::new(experts_weights, problem.gate())?, whole.intermediate);
        let routed =
            Routed::given(Ids::I32(bytemuck::cast_slice(&ids)), &shares, whole.tokens, problem.groups().len())?;
        let (weights, precision, tokens, routed) = (&experts, problem.precision(), &tokens, &routed);
        let reference = LayerReference { weights, intermediate, precision, tokens, routed };
        // Codes times scales, exact in f16.
        let arithmetic = |activation| match activation {
            _ if precision == Precision::Fp8 => Arithmetic::Fp8TensorCores,
            Activation::NvFp4 => family.arithmetic(Activation::F16),
            other => family.arithmetic(other),
        };
        for row in (0..whole.tokens).step_by(ROW_STRIDE).chain([whole.tokens - 1]) {
            for (column, bounded) in reference.row(row, &arithmetic)?.into_iter().enumerate() {
                let found = value_at(&found, row * hidden + column);
                if !bounded.accepts(found, problem.output()) {
                    return Ok(Some(wrong((0, row, column), found, bounded.value)));
                }
            }
        }
        Ok(None)
    }
}

fn wrong((group, row, column): (usize, usize, usize), found: f64, expected: f64) -> String {
    format!(
        "of a small problem, group {group}, row {row}, column {column} came out as {found} and should be {expected}"
    )
}

/// Results at an address.
fn results(machine: &mut dyn Machine, address: u64, count: usize, output: Output) -> Result<Values<'static>> {
    Ok(match output {
        Output::F16 => {
            let mut values = vec![f16::ZERO; count];
            machine.download(address, bytemuck::cast_slice_mut(&mut values))?;
            values.into()
        }
        Output::BF16 => {
            let mut values = vec![bf16::ZERO; count];
            machine.download(address, bytemuck::cast_slice_mut(&mut values))?;
            values.into()
        }
        Output::F32 => {
            let mut values = vec![0f32; count];
            machine.download(address, bytemuck::cast_slice_mut(&mut values))?;
            values.into()
        }
    })
}

/// Tokens of a type: whole numbers, so few and so small that sums without a gate are exact.
fn tokens(activation: Activation, m: usize, k: usize) -> Result<Activations<'static>> {
    if activation != Activation::NvFp4 {
        return Ok(dense(activation, m, k)?.into());
    }
    // Every code, under a scale of 1 or −1.
    let codes: Vec<u8> = (0..m * k / 2).map(|i| (i * 29 + i / 7) as u8).collect();
    let scales: Vec<u8> = (0..m * k / 16).map(|i| if i % 5 == 0 { 0xb8 } else { 0x38 }).collect();
    Ok(Matrix::new(m, k, codes, scales, 1.0)?.into())
}

fn dense(activation: Activation, m: usize, k: usize) -> Result<Dense<'static>> {
    let value = |i: usize| ((i / k * 7 + i % k * 3) % 13) as f32 - 6.0;
    let values: Values<'static> = match activation {
        Activation::F16 => (0..m * k).map(|i| f16::from_f32(value(i))).collect::<Vec<_>>().into(),
        Activation::BF16 => (0..m * k).map(|i| bf16::from_f32(value(i))).collect::<Vec<_>>().into(),
        Activation::F32 | Activation::NvFp4 => (0..m * k).map(value).collect::<Vec<_>>().into(),
    };
    Ok(Dense::new(m, k, values, 1.0)?)
}

fn weights(gate: Gate, sides: [usize; 2], seed: usize) -> Result<Weights<'static>> {
    match gate {
        Gate::None => Ok(Weights::plain(matrix(sides, 1 + seed)?)),
        _ => Weights::gated(matrix(sides, 1 + seed)?, matrix(sides, 5 + seed)?),
    }
}

/// Every code, under scales from 1/64 to 1.
fn matrix([n, k]: [usize; 2], seed: usize) -> Result<Matrix<'static>> {
    let codes: Vec<u8> = (0..n * k / 2).map(|i| ((i + seed) * 37 + i / 11) as u8).collect();
    let scales: Vec<u8> = (0..n * k / 16).map(|i| 0x08 + 8 * ((i + seed) % 7) as u8).collect();
    Ok(Matrix::new(n, k, codes, scales, 1.0)?)
}
