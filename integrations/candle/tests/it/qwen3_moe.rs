//! A small Qwen3-MoE, written twice over the same candle code: with our layers, and with candle's own over weights that
//! are expanded to f32.
//!
//! The expansion shares no code with ours: candle reads the file, and a table of sixteen numbers says what a code
//! means.

use std::collections::HashMap;

use candle_core::{D, DType, Device, IndexOp, Module, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::{Embedding, RmsNorm, rotary_emb};
use hammerhead_candle::hammerhead::LayerOptions;
use hammerhead_candle::hammerhead::format::checkpoint::Checkpoint;
use hammerhead_candle::{Experts, Linear, Mlp};

use crate::{device, distance, engine, folder, model};

// As the model's config.json says.
const LAYERS: usize = 2;
const HEADS: usize = 2;
const HEAD: usize = 32;
const EXPERTS: usize = 4;
const TOP: usize = 2;
const THETA: f32 = 10_000.0;
const EPSILON: f64 = 1e-6;

type Tensors = HashMap<String, Tensor>;

/// Who computes a model's quantised parts.
trait Parts {
    fn linear(&self, module: &str) -> Result<Box<dyn Module>>;

    /// The feed-forward layer at a place; its router is a linear layer of candle's.
    fn feed_forward(&self, layer: usize, router: Option<candle_nn::Linear>) -> Result<Box<dyn Module>>;
}

/// Ours.
struct Packed(Checkpoint);

struct Routed {
    experts: Experts,
    router: candle_nn::Linear,
}

impl Module for Routed {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.experts.forward(x, &self.router.forward(x)?)
    }
}

impl Parts for Packed {
    fn linear(&self, module: &str) -> Result<Box<dyn Module>> {
        Ok(Box::new(Linear::from_checkpoint(engine(), &self.0, module)?))
    }

    fn feed_forward(&self, layer: usize, router: Option<candle_nn::Linear>) -> Result<Box<dyn Module>> {
        let options = LayerOptions::default();
        Ok(match router {
            Some(router) => {
                Box::new(Routed { experts: Experts::from_checkpoint(engine(), &self.0, layer, options)?, router })
            }
            None => Box::new(Mlp::from_checkpoint(engine(), &self.0, layer, options)?),
        })
    }
}

/// candle's own, over expanded weights.
struct Expanded(Tensors);

struct ExpandedMlp([Box<dyn Module>; 3]);

impl Module for ExpandedMlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [gate, up, down] = &self.0;
        down.forward(&(gate.forward(x)?.silu()? * up.forward(x)?)?)
    }
}

/// Every expert computes every token; those that were not chosen count zero times.
struct ExpandedExperts {
    experts: Vec<ExpandedMlp>,
    router: candle_nn::Linear,
}

impl Module for ExpandedExperts {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let scores = softmax_last_dim(&self.router.forward(x)?)?;
        let (ordered, _) = scores.contiguous()?.sort_last_dim(false)?;
        let chosen = scores.broadcast_ge(&ordered.narrow(D::Minus1, TOP - 1, 1)?)?.to_dtype(DType::F32)?;
        let weights = (scores * chosen)?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
        let mut sum = x.zeros_like()?;
        for (number, expert) in self.experts.iter().enumerate() {
            let weight = weights.narrow(D::Minus1, number, 1)?;
            sum = (sum + expert.forward(x)?.broadcast_mul(&weight)?)?;
        }
        Ok(sum)
    }
}

impl Expanded {
    fn mlp(&self, name: &str) -> Result<ExpandedMlp> {
        let part = |part: &str| self.linear(&format!("{name}.{part}"));
        Ok(ExpandedMlp([part("gate_proj")?, part("up_proj")?, part("down_proj")?]))
    }
}

impl Parts for Expanded {
    fn linear(&self, module: &str) -> Result<Box<dyn Module>> {
        let part = |part: &str| &self.0[&format!("{module}.{part}")];
        let (codes, scales) = (part("weight"), part("weight_scale"));
        let (rows, packed) = codes.dims2()?;
        const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let value = |code: u8| if code & 8 == 0 { VALUES[code as usize] } else { -VALUES[code as usize & 7] };
        let bytes = codes.flatten_all()?.to_vec1::<u8>()?;
        let values: Vec<f32> = bytes.iter().flat_map(|byte| [value(byte & 15), value(byte >> 4)]).collect();
        let values = Tensor::from_vec(values, (rows, packed / 8, 16), &Device::Cpu)?;
        let weight = values.broadcast_mul(&scales.to_dtype(DType::F32)?.unsqueeze(2)?)?;
        let weight = weight.reshape((rows, 2 * packed))?.broadcast_mul(part("weight_scale_2"))?;
        Ok(Box::new(candle_nn::Linear::new(weight, None)))
    }

    fn feed_forward(&self, layer: usize, router: Option<candle_nn::Linear>) -> Result<Box<dyn Module>> {
        let name = format!("model.layers.{layer}.mlp");
        let Some(router) = router else { return Ok(Box::new(self.mlp(&name)?)) };
        let experts = (0..EXPERTS).map(|expert| self.mlp(&format!("{name}.experts.{expert}")));
        Ok(Box::new(ExpandedExperts { experts: experts.collect::<Result<_>>()?, router }))
    }
}

struct Attention {
    q: Box<dyn Module>,
    k: Box<dyn Module>,
    v: Box<dyn Module>,
    o: Box<dyn Module>,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
}

impl Attention {
    /// One head of keys and values for both heads of queries.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        let heads = |y: Tensor, count| y.reshape((batch, length, count, HEAD))?.transpose(1, 2)?.contiguous();
        let q = self.q_norm.forward(&heads(self.q.forward(x)?, HEADS)?)?;
        let k = self.k_norm.forward(&heads(self.k.forward(x)?, 1)?)?;
        let v = heads(self.v.forward(x)?, 1)?;
        let (cos, sin) = angles(length, x.device())?;
        let (q, k) = (rotary_emb::rope(&q, &cos, &sin)?, rotary_emb::rope(&k, &cos, &sin)?);
        let scores = (q.broadcast_matmul(&k.transpose(2, 3)?)? / (HEAD as f64).sqrt())?;
        let attention = softmax_last_dim(&scores.broadcast_add(&causal(length, x.device())?)?)?;
        let mixed = attention.broadcast_matmul(&v)?.transpose(1, 2)?.reshape((batch, length, HEADS * HEAD))?;
        self.o.forward(&mixed)
    }
}

fn angles(length: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let angle = |i: usize| (i / (HEAD / 2)) as f32 / THETA.powf((i % (HEAD / 2)) as f32 / (HEAD / 2) as f32);
    let angles = Tensor::from_vec((0..length * HEAD / 2).map(angle).collect(), (length, HEAD / 2), device)?;
    Ok((angles.cos()?, angles.sin()?))
}

fn causal(length: usize, device: &Device) -> Result<Tensor> {
    let mask = |i: usize| if i % length > i / length { f32::NEG_INFINITY } else { 0.0 };
    Tensor::from_vec((0..length * length).map(mask).collect(), (length, length), device)
}

struct Layer {
    before_attention: RmsNorm,
    attention: Attention,
    before_mlp: RmsNorm,
    mlp: Box<dyn Module>,
}

struct Qwen3Moe {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: candle_nn::Linear,
    device: Device,
}

impl Qwen3Moe {
    fn new(tensors: &Tensors, parts: &dyn Parts, device: &Device) -> Result<Self> {
        let wide = |name: &str| tensors[name].to_dtype(DType::F32)?.to_device(device);
        let norm = |name: &str| Ok::<_, candle_core::Error>(RmsNorm::new(wide(&format!("{name}.weight"))?, EPSILON));
        let layer = |number: usize| {
            let name = format!("model.layers.{number}");
            let own = |part: &str| parts.linear(&format!("{name}.self_attn.{part}_proj"));
            let router = tensors.contains_key(&format!("{name}.mlp.gate.weight"));
            let router = router.then(|| wide(&format!("{name}.mlp.gate.weight"))).transpose()?;
            Ok(Layer {
                before_attention: norm(&format!("{name}.input_layernorm"))?,
                attention: Attention {
                    q: own("q")?,
                    k: own("k")?,
                    v: own("v")?,
                    o: own("o")?,
                    q_norm: norm(&format!("{name}.self_attn.q_norm"))?,
                    k_norm: norm(&format!("{name}.self_attn.k_norm"))?,
                },
                before_mlp: norm(&format!("{name}.post_attention_layernorm"))?,
                mlp: parts.feed_forward(number, router.map(|weight| candle_nn::Linear::new(weight, None)))?,
            })
        };
        let embedding = wide("model.embed_tokens.weight")?;
        Ok(Self {
            embedding: Embedding::new(embedding.clone(), embedding.dim(1)?),
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            norm: norm("model.norm")?,
            head: candle_nn::Linear::new(wide("lm_head.weight")?, None),
            device: device.clone(),
        })
    }

    /// The logits of every position, `[length, vocabulary]`.
    fn logits(&self, ids: &[u32]) -> Result<Tensor> {
        let mut x = self.embedding.forward(&Tensor::new(ids, &self.device)?.unsqueeze(0)?)?;
        for layer in &self.layers {
            x = (&x + layer.attention.forward(&layer.before_attention.forward(&x)?)?)?;
            x = (&x + layer.mlp.forward(&layer.before_mlp.forward(&x)?)?)?;
        }
        self.head.forward(&self.norm.forward(&x)?)?.squeeze(0)
    }

    /// The likeliest tokens, one by one.
    fn generate(&self, prompt: &[u32], tokens: usize) -> Result<Vec<u32>> {
        let mut ids = prompt.to_vec();
        for _ in 0..tokens {
            ids.push(self.logits(&ids)?.i(ids.len() - 1)?.argmax(0)?.to_scalar()?);
        }
        Ok(ids)
    }
}

#[test]
fn a_model_computes_what_it_does_with_its_weights_expanded() {
    let name = "modelopt_qwen3_moe";
    let tensors = candle_core::safetensors::load(folder(name).join("model.safetensors"), &Device::Cpu).unwrap();
    let ours = Qwen3Moe::new(&tensors, &Packed(model(name)), device()).unwrap();
    let expanded = Qwen3Moe::new(&tensors, &Expanded(tensors.clone()), &Device::Cpu).unwrap();

    let prompt = [3, 14, 15, 9, 26, 5, 35, 58];
    let (off, largest) = distance(&ours.logits(&prompt).unwrap(), &expanded.logits(&prompt).unwrap()).unwrap();
    assert!(off <= 1e-5 * largest && largest > 0.1, "logits are off by {off:e} of {largest}");
    assert_eq!(ours.generate(&prompt, 8).unwrap(), expanded.generate(&prompt, 8).unwrap());
}
