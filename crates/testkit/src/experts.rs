//! Layers of experts without a pattern, as kernels take them, and how far a result may be from the reference.

use std::sync::Arc;

use format::{Dense, Scaling};
use gpu::Family;
use gpu::experts::packed::PackedExpert;
use gpu::experts::shape::LayerShape;
use gpu::pack::Codes;
use op::layer_reference::LayerReference;
use op::routing::Ids;
use op::{Activation, Alone, Arithmetic, ExpertWeights, Gate, Intermediate, Output, Precision, Result, Routed, Team};

use crate::cases::rounded;
use crate::moe::mlp;

/// A small layer without anything peculiar.
pub const PLAIN: LayerShape = LayerShape {
    experts: 6,
    top: 2,
    hidden: 144,
    inner: 80,
    gate: Gate::Silu,
    biased: false,
    on_input: false,
    gated: false,
    activation: Activation::BF16,
    intermediate: Intermediate::Tokens,
    precision: Precision::Exact,
    scaled: [false; 2],
    invariant: false,
    codes: Codes::Bfloats,
    scaling: Scaling::NvFp4,
    partial: Output::F32,
    output: Output::BF16,
    adapted: None,
};

/// Every kind of layer, by what is peculiar to it, in the sizes of a plain one: for the simulator and for GPUs.
pub fn kinds(plain: LayerShape) -> [(&'static str, LayerShape); 15] {
    let singles = LayerShape { activation: Activation::F32, output: Output::F32, ..plain };
    let halves = LayerShape {
        activation: Activation::F16,
        codes: Codes::Halves,
        output: Output::F16,
        partial: Output::F16,
        ..plain
    };
    [
        ("plain", plain),
        ("gpt-oss", LayerShape { gate: Gate::GPT_OSS, biased: true, ..halves }),
        ("relu²", LayerShape { gate: Gate::Relu2, biased: true, output: Output::F32, ..plain }),
        ("gelu", LayerShape { gate: Gate::GeluTanh, codes: Codes::Bfloats, ..halves }),
        ("on the input", LayerShape { on_input: true, biased: true, ..plain }),
        ("on the input, in half precision", LayerShape { on_input: true, biased: true, ..halves }),
        ("single precision", LayerShape { biased: true, ..singles }),
        ("single precision between", LayerShape { intermediate: Intermediate::F32, codes: Codes::Halves, ..plain }),
        ("scaled inputs", LayerShape { scaled: [true; 2], biased: true, ..plain }),
        ("a scaled input", LayerShape { scaled: [true, false], on_input: true, ..halves }),
        ("scaled, in single precision", LayerShape { scaled: [true; 2], ..singles }),
        ("scaled inputs, between too", LayerShape { scaled: [true; 2], intermediate: Intermediate::F32, ..halves }),
        ("scaled between", LayerShape { scaled: [false, true], intermediate: Intermediate::F32, ..halves }),
        ("nvfp4 between", LayerShape { intermediate: Intermediate::NvFp4, biased: true, output: Output::F32, ..plain }),
        ("nvfp4 behind a scale", LayerShape { intermediate: Intermediate::NvFp4, scaled: [true, false], ..halves }),
    ]
}

/// The same of layers whose operands are rounded to e4m3: for families that multiply those.
pub fn fp8_kinds(plain: LayerShape) -> [(&'static str, LayerShape); 8] {
    let singles = LayerShape { activation: Activation::F32, output: Output::F32, ..plain };
    let halves = LayerShape { activation: Activation::F16, output: Output::F16, partial: Output::F16, ..plain };
    let both = [true; 2];
    [
        ("fp8", plain),
        ("fp8 with biases, in half precision", LayerShape { gate: Gate::GPT_OSS, biased: true, ..halves }),
        ("fp8 of one matrix, in single precision", LayerShape { gate: Gate::Relu2, biased: true, ..singles }),
        ("fp8 behind single precision", LayerShape { intermediate: Intermediate::F32, ..halves }),
        ("fp8 on the input", LayerShape { on_input: true, biased: true, ..plain }),
        ("fp8 of scaled inputs", LayerShape { scaled: both, biased: true, on_input: true, ..plain }),
        ("fp8 of a scaled input", LayerShape { scaled: [true, false], ..singles }),
        ("fp8 scaled between", LayerShape { scaled: [false, true], intermediate: Intermediate::F32, ..halves }),
    ]
    .map(|(what, shape)| (what, shape.in_precision(Precision::Fp8)))
}

/// The same of layers with MXFP4 weights: widths are made whole blocks of 32.
pub fn mx_kinds(plain: LayerShape) -> [(&'static str, LayerShape); 7] {
    let [hidden, inner] = [plain.hidden, plain.inner].map(|width| width.next_multiple_of(32));
    let plain = LayerShape { hidden, inner, scaling: Scaling::MxFp4, ..plain };
    let singles = LayerShape { activation: Activation::F32, output: Output::F32, ..plain };
    let halves = LayerShape { activation: Activation::F16, codes: Codes::Halves, output: Output::F16, ..plain };
    [
        ("mxfp4", plain),
        ("mxfp4 of gpt-oss", LayerShape { gate: Gate::GPT_OSS, biased: true, ..plain }),
        ("mxfp4 in half precision", LayerShape { biased: true, ..halves }),
        ("mxfp4 in half precision, in order for bfloat16", LayerShape { codes: Codes::Bfloats, ..halves }),
        ("mxfp4 of one matrix, in single precision", LayerShape { gate: Gate::Relu2, ..singles }),
        ("mxfp4 of scaled inputs", LayerShape { scaled: [true; 2], on_input: true, ..plain }),
        ("mxfp4 before nvfp4", LayerShape { intermediate: Intermediate::NvFp4, output: Output::F32, ..plain }),
    ]
}

/// Some experts, of which a layer's experts are copies in turn: packing takes long, and the kernels do not know.
#[derive(Debug)]
pub struct Layer {
    /// What the layer is.
    pub shape: LayerShape,
    weights: ExpertWeights<'static>,
    packed: Vec<Arc<PackedExpert>>,
}

impl Layer {
    /// A layer of which so many experts differ, packed for a family.
    pub fn new(family: &dyn Family, shape: LayerShape, different: usize, seed: u64) -> Result<Self> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let widths = [shape.hidden, shape.inner].map(|width| width as usize);
        let expert = |_| mlp(&mut rng, shape.gate, widths, shape.biased, shape.scaled, shape.scaling);
        let experts = (0..different).map(expert).collect::<Result<Vec<_>>>()?;
        let alone = Team::new(Alone);
        let packed = experts.iter().map(|expert| PackedExpert::new((family, &alone), &shape, expert).map(Arc::new));
        let packed = packed.collect::<Result<_>>()?;
        Ok(Layer { shape, weights: ExpertWeights::new(experts, shape.gate)?, packed })
    }

    /// The same layer with other scales, if that is exact.
    pub fn in_scaling(self, family: &dyn Family, scaling: Scaling) -> Result<Self> {
        let codes = if self.shape.codes == Codes::Nibbles { Codes::Halves } else { self.shape.codes };
        let shape = LayerShape { scaling, codes, ..self.shape };
        let pack = |expert| PackedExpert::new((family, &Team::new(Alone)), &shape, expert).map(Arc::new);
        let packed = self.weights.experts().iter().map(pack).collect::<Result<_>>()?;
        Ok(Layer { shape, packed, ..self })
    }

    /// Every expert, as the kernels take it.
    pub fn packed(&self) -> impl Iterator<Item = Arc<PackedExpert>> {
        (0..self.shape.experts as usize).map(|e| Arc::clone(&self.packed[e % self.packed.len()]))
    }

    /// The experts that differ.
    pub fn weights(&self) -> &ExpertWeights<'static> {
        &self.weights
    }

    /// The worst part of what the reference allows that a token's results are off by, what is added to them besides
    /// given. `routed` are the token's experts that there are, with their weights.
    pub fn worst(&self, x: &[f32], routed: &[(u32, f32)], addend: &[f32], found: &[f32]) -> Result<f64> {
        let rows = routed.iter().map(|one| self.row(x, std::slice::from_ref(one))).collect::<Result<Vec<_>>>()?;
        let mut worst = 0f64;
        for (column, found) in found.iter().enumerate() {
            let more = addend.get(column).map_or(0.0, |&x| f64::from(x));
            let value = more + rows.iter().map(|row| row[column].0).sum::<f64>();
            let error: f64 = rows.iter().map(|row| row[column].1).sum();
            let magnitude = more.abs() + rows.iter().map(|row| row[column].0.abs()).sum::<f64>();
            // Rows rounded before they are summed, the sum of so many in single precision, and the result.
            let summing = magnitude * (unit(self.shape.partial) + (routed.len() + 2) as f64 * unit(Output::F32));
            let allowed = error + summing + (value.abs() + error) * unit(self.shape.output) + 1e-7;
            let part = (f64::from(*found) - value).abs() / allowed;
            worst = worst.max(if part.is_nan() { f64::INFINITY } else { part });
        }
        Ok(worst)
    }

    /// What the reference makes of a token, and how far a GPU may be from it.
    fn row(&self, x: &[f32], routed: &[(u32, f32)]) -> Result<Vec<(f64, f64)>> {
        let different = self.weights.experts().len();
        let ids: Vec<i32> = routed.iter().map(|(id, _)| (*id as usize % different) as i32).collect();
        let weights: Vec<f32> = routed.iter().map(|(_, weight)| *weight).collect();
        let routed = Routed::given(Ids::I32(&ids), &weights, 1, different)?;
        let routed = if self.shape.on_input { routed.on_input() } else { routed };
        let tokens = Dense::new(1, x.len(), rounded(x, self.shape.activation), 1.0)?;
        let (weights, intermediate) = (&self.weights, self.shape.intermediate);
        let precision = self.shape.precision;
        let reference = LayerReference { weights, intermediate, precision, tokens: &tokens, routed: &routed };
        let arithmetic = |activation| match activation {
            _ if precision == Precision::Fp8 => Arithmetic::Fp8TensorCores,
            Activation::F16 | Activation::NvFp4 => Arithmetic::F16_TENSOR_CORES,
            Activation::BF16 => Arithmetic::bf16_tensor_cores(1),
            Activation::F32 => Arithmetic::bf16_tensor_cores(3),
        };
        Ok(reference.row(0, &arithmetic)?.into_iter().map(|bounded| (bounded.value, bounded.error)).collect())
    }
}

/// Half a unit of a type's last place, relative.
fn unit(ty: Output) -> f64 {
    2f64.powi(match ty {
        Output::F16 => -11,
        Output::BF16 => -8,
        Output::F32 => -24,
    })
}
