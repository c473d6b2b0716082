#![doc = include_str!("../README.md")]

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use candle_core::{D, DType, Device, Module, Result, Tensor, bail};
use hammerhead_candle::hammerhead::{Engine, Weights};
use hammerhead_candle::{Grouped, Linear};
use mistralrs_quant::{IsqType, QuantMethod, QuantMethodConfig, QuantizeOntoGuard, QuantizedSerde};

/// One NVFP4 matrix, or one per expert.
#[derive(Clone, Debug)]
pub struct NvFp4Linear {
    layer: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    One { linear: Linear, has_bias: bool },
    PerExpert(Grouped),
}

impl NvFp4Linear {
    /// Packs one matrix, with its bias if it has one.
    pub fn one(engine: &Arc<Engine>, weights: &Weights<'_>) -> Result<Self> {
        Ok(Self { layer: Kind::One { linear: Linear::new(engine, weights)?, has_bias: weights.bias(0).is_some() } })
    }

    /// Packs the matrices of experts, all of one shape: gate, up or down.
    pub fn per_expert(engine: &Arc<Engine>, weights: &[Weights<'_>]) -> Result<Self> {
        Ok(Self { layer: Kind::PerExpert(Grouped::new(engine, weights)?) })
    }
}

impl QuantMethod for NvFp4Linear {
    fn new(_: QuantMethodConfig) -> Result<Self> {
        bail!(
            "no configuration of mistral.rs describes NVFP4 weights: make the layer with NvFp4Linear::one or per_expert"
        )
    }

    /// A row of the identity picks a column of the weights, and nothing is rounded on the way.
    fn dequantize_w(&self) -> Result<Tensor> {
        match &self.layer {
            Kind::One { linear, has_bias: false } => {
                linear.forward(&Tensor::eye(linear.widths()[0], DType::F32, &Device::Cpu)?)?.t()?.contiguous()
            }
            Kind::One { .. } => {
                bail!("this layer adds its bias itself, and its weights are packed: read them from the checkpoint")
            }
            Kind::PerExpert(_) => bail!("the weights of experts are packed: read them from the checkpoint"),
        }
    }

    fn forward(&self, a: &Tensor) -> Result<Tensor> {
        match &self.layer {
            Kind::One { linear, .. } => linear.forward(a),
            Kind::PerExpert(_) => {
                bail!("these are the weights of experts: call gather_forward with the experts of each token")
            }
        }
    }

    /// Tokens `[n, 1 or top, k]` by their experts `[n, top]` to `[n, top, rows]`.
    fn gather_forward(&self, a: &Tensor, indices: &Tensor) -> Result<Tensor> {
        let Kind::PerExpert(grouped) = &self.layer else {
            bail!("this is one matrix, not one per expert: call forward");
        };
        let ((tokens, top), (_, given, k)) = (indices.dims2()?, a.dims3()?);
        let a = if given == top { a.clone() } else { a.broadcast_as((tokens, top, k))? };
        let y = grouped.forward(&a.reshape((tokens * top, k))?, &indices.flatten_all()?)?;
        y.reshape((tokens, top, y.dim(D::Minus1)?))
    }

    fn quantized_act_type(&self) -> Option<DType> {
        None
    }

    fn dtype_and_device(&self) -> (DType, Device) {
        (DType::U8, Device::Cpu)
    }

    fn add_delta_w(&self, _: &Tensor) -> Result<Arc<dyn QuantMethod>> {
        bail!(
            "NVFP4 weights are packed and do not change: keep LoRA's product beside them, or merge it before the model is quantised"
        )
    }

    fn apply_isq(
        self: Arc<Self>,
        dtype: Option<IsqType>,
        _: Device,
        _: &AtomicUsize,
        _: Option<Vec<f32>>,
        _: QuantizeOntoGuard,
    ) -> Result<Arc<dyn QuantMethod>> {
        match dtype {
            None => Ok(self),
            Some(dtype) => {
                bail!("these weights are NVFP4 already, and are not quantised to {dtype:?} on top: leave isq out")
            }
        }
    }
}

impl QuantizedSerde for NvFp4Linear {
    fn name(&self) -> &'static str {
        "nvfp4"
    }
}

#[cfg(test)]
mod tests {
    use hammerhead_candle::hammerhead::format::{Dense, Matrix, quantize};

    use super::*;

    const ROWS: usize = 40;
    const K: usize = 64;

    fn numbers(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.37 + seed).sin()).collect()
    }

    fn matrix(seed: f32) -> Matrix<'static> {
        quantize(&Dense::new(ROWS, K, numbers(ROWS * K, seed), 1.0).unwrap(), None).unwrap()
    }

    fn wide(matrix: &Matrix<'_>) -> Tensor {
        Tensor::from_vec(matrix.dequantize(), (ROWS, K), &Device::Cpu).unwrap()
    }

    fn largest(tensor: &Tensor) -> f32 {
        tensor.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn one_matrix_is_a_quant_method_and_gives_its_weights_back() {
        let (engine, matrix) = (Arc::new(Engine::auto().unwrap()), matrix(0.5));
        let method: Arc<dyn QuantMethod> =
            Arc::new(NvFp4Linear::one(&engine, &Weights::plain(matrix.as_borrowed())).unwrap());
        assert_eq!(method.dequantize_w().unwrap().to_vec2::<f32>().unwrap(), wide(&matrix).to_vec2::<f32>().unwrap());
        let x = Tensor::from_vec(numbers(3 * K, 0.1), (1, 3, K), &Device::Cpu).unwrap();
        let expected = x.broadcast_matmul(&wide(&matrix).t().unwrap()).unwrap();
        let y = method.forward(&x).unwrap();
        assert!(largest(&(y - &expected).unwrap()) <= 2e-6 * largest(&expected));
        assert!(method.gather_forward(&x, &Tensor::zeros((3, 1), DType::U32, &Device::Cpu).unwrap()).is_err());
    }

    #[test]
    fn experts_are_gathered_for_each_token() {
        let engine = Arc::new(Engine::auto().unwrap());
        let matrices: Vec<Matrix<'static>> = (0..4).map(|expert| matrix(expert as f32)).collect();
        let weights: Vec<Weights<'_>> = matrices.iter().map(|matrix| Weights::plain(matrix.as_borrowed())).collect();
        let method: Arc<dyn QuantMethod> = Arc::new(NvFp4Linear::per_expert(&engine, &weights).unwrap());
        let ids = [[3u32, 0], [1, 3], [3, 1]];
        // gate and up see one row per token, down one per token and expert.
        for given in [1, 2] {
            let x = Tensor::from_vec(numbers(3 * given * K, 0.1), (3, given, K), &Device::Cpu).unwrap();
            let y = method.gather_forward(&x, &Tensor::new(&ids, &Device::Cpu).unwrap()).unwrap();
            assert_eq!(y.dims(), [3, 2, ROWS]);
            for (token, of) in ids.iter().enumerate() {
                for (place, &expert) in of.iter().enumerate() {
                    let row = x.get(token).unwrap().get(place.min(given - 1)).unwrap().unsqueeze(0).unwrap();
                    let expected = row.matmul(&wide(&matrices[expert as usize]).t().unwrap()).unwrap();
                    let found = y.get(token).unwrap().get(place).unwrap().unsqueeze(0).unwrap();
                    assert!(
                        largest(&(found - &expected).unwrap()) <= 2e-6 * largest(&expected),
                        "{given} {token} {place}"
                    );
                }
            }
        }
        let beyond = Tensor::new(&[[4u32, 0], [0, 0], [0, 0]], &Device::Cpu).unwrap();
        let x = Tensor::from_vec(numbers(3 * K, 0.1), (3, 1, K), &Device::Cpu).unwrap();
        let error = method.gather_forward(&x, &beyond).unwrap_err().to_string();
        assert!(error.contains("expert 4") && error.contains("4 of them"), "{error}");
    }
}
