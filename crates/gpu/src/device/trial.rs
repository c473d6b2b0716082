//! Whether kernels compute right on a GPU that they were never seen on: a small problem, against the reference.
//!
//! Code for sm_80 should run on every later GPU. Should: so where nobody has measured it, this is done once per process before the first
//! result is handed out. Whole numbers without a gate are compared to the bit; a gated problem under the derived bound.

use format::{Dense, Matrix};
use half::f16;
use op::bound::Bounded;
use op::reference::Reference;
use op::{Activation, Activations, Alone, Config, Error, Gate, Output, Problem, Result, Shape, Team, Weights};

use super::Device;
use crate::driver::{DeviceMemory, EncodedLaunch, Stream};
use crate::family::GroupOperands;
use crate::launches::bytes_of;
use crate::pack::Codes;

/// Tokens, columns and K of the problem: each beyond the end of a tile, or of a unit.
const SHAPE: Shape = Shape { m: 19, n: 72, k: 336 };

/// Computes on a device and compares. The error says what was wrong.
pub(super) fn run(device: &'static Device) -> Result<()> {
    let codes = device.family.expansion(Activation::NvFp4).is_none();
    let ways = [(Gate::None, Output::F32), (Gate::Silu, Output::F16)];
    let ways = ways.into_iter().flat_map(|way| [Some(false), codes.then_some(true)].map(|codes| (way, codes)));
    for ((gate, output), codes) in ways.filter_map(|(way, codes)| Some((way, codes?))) {
        let activations: Activations<'_> = if codes { code_tokens()?.into() } else { tokens()?.into() };
        let weights = match gate {
            Gate::None => Weights::plain(matrix(1)?),
            _ => Weights::gated(matrix(1)?, matrix(5)?)?,
        };
        let found = compute(device, &activations, &weights, gate, output)?;
        let arithmetic = device.family.arithmetic(activations.element());
        let elements = Reference::new(&activations, &weights, gate).all();
        let wrong = elements.iter().zip(&found).position(|(element, &found)| match gate {
            Gate::None => element.value as f32 != found,
            _ => !Bounded::new(element, gate, SHAPE.k, arithmetic).accepts(found.into(), output),
        });
        if let Some(at) = wrong {
            let (row, column) = (at / SHAPE.n, at % SHAPE.n);
            let (found, expected) = (found[at].to_string(), elements[at].value.to_string());
            let what = "an element of a small problem";
            return Err(Error::Mismatch {
                group: 0,
                what,
                found: format!("{found} (row {row}, column {column})"),
                expected,
            });
        }
    }
    Ok(())
}

/// Whole numbers, so few and so small that every sum is exact.
fn tokens() -> Result<Dense<'static>> {
    let token = |i: usize| f16::from_f32(((i / SHAPE.k * 7 + i % SHAPE.k * 3) % 13) as f32 - 6.0);
    Ok(Dense::new(SHAPE.m, SHAPE.k, (0..SHAPE.m * SHAPE.k).map(token).collect::<Vec<_>>(), 1.0)?)
}

/// Every code, under a scale of 1 or −1: so is every sum of these.
fn code_tokens() -> Result<Matrix<'static>> {
    let codes: Vec<u8> = (0..SHAPE.m * SHAPE.k / 2).map(|i| (i * 29 + i / 7) as u8).collect();
    let scales: Vec<u8> = (0..SHAPE.m * SHAPE.k / 16).map(|i| if i % 5 == 0 { 0xb8 } else { 0x38 }).collect();
    Ok(Matrix::new(SHAPE.m, SHAPE.k, codes, scales, 1.0)?)
}

/// Every code, under scales from 1/64 to 1.
fn matrix(seed: usize) -> Result<Matrix<'static>> {
    let codes: Vec<u8> = (0..SHAPE.n * SHAPE.k / 2).map(|i| ((i + seed) * 37 + i / 11) as u8).collect();
    let scales: Vec<u8> = (0..SHAPE.n * SHAPE.k / 16).map(|i| 0x08 + 8 * ((i + seed) % 7) as u8).collect();
    Ok(Matrix::new(SHAPE.n, SHAPE.k, codes, scales, 1.0)?)
}

/// C as the device's kernels compute it, in the configuration that the model finds cheapest.
fn compute(
    device: &'static Device,
    activations: &Activations<'_>,
    weights: &Weights<'_>,
    gate: Gate,
    output: Output,
) -> Result<Vec<f32>> {
    let (context, family, facts) = (device.context, device.family, &device.facts);
    let problem = Problem::new(vec![SHAPE], gate, activations.element(), output)?;
    let priced = |config: Config| Some((family.cost(&problem, &config, facts).ok()?.seconds, config));
    let best = family.candidates(&problem, facts).into_iter().filter_map(priced).min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, config)) = best else {
        let (what, name) = ("configuration for this problem", problem.to_string());
        return Err(Error::UnknownName { what, name, known: family.name().to_owned() });
    };
    let stream = Stream::new(context)?;
    let hold = |bytes: &[u8]| DeviceMemory::holding(context, "a trial", bytes, &stream);
    let [values, scales] = bytes_of(activations);
    let (tokens, scales) = (hold(values)?, hold(scales)?);
    let alone = Team::new(Alone);
    let packed = weights.matrices().map(|matrix| hold(&family.pack(matrix, Codes::Halves, &alone)));
    let packed = packed.collect::<Result<Vec<_>>>()?;
    let out = DeviceMemory::new(context, "a trial", SHAPE.m * SHAPE.n * output.bytes())?;
    let workspace = DeviceMemory::new(context, "a trial", family.workspace_bytes(&problem, &config))?;
    let operands = GroupOperands {
        weights: [packed[0].address(), packed[packed.len() - 1].address()],
        tokens: tokens.address(),
        token_scales: scales.address(),
        part_bytes: 0,
        out: out.address(),
        alphas: [1.0; 2],
        biases: [0; 2],
    };
    let launches = family.launches(&problem, &config, &[operands], workspace.address(), facts.multiprocessors)?;
    for launch in &launches {
        let encoded = EncodedLaunch::new(super::function(context, &launch.kernel)?, launch)?;
        // SAFETY: the memory that the launch uses is as large as the problem says, and outlives the stream's work, which is waited for.
        unsafe { encoded.queue(&stream) }?;
    }
    let mut bytes = vec![0; SHAPE.m * SHAPE.n * output.bytes()];
    // SAFETY: the copy is waited for before anybody looks at the bytes.
    unsafe { out.read(0, &mut bytes, &stream) }?;
    stream.synchronize()?;
    Ok(match output {
        Output::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        _ => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
    })
}
