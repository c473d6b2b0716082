//! Hammerhead as an operation of candle: a gated layer over NVFP4 weights that a model calls like any other.
//!
//! `cargo run --manifest-path examples/candle/Cargo.toml`
//!
//! [`GatedLayer`] is what a model would take over; `main` makes a small layer and holds it against candle's own products of
//! the weights that NVFP4 stands for.

use std::error::Error;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, bail};
use hammerhead::Target;
use hammerhead::format::{Dense, Matrix, Values, quantize};
use hammerhead::{Engine, Gate, Layer, Weights};

/// `silu(x·gateᵀ) ∘ (x·upᵀ)`, over tokens `[…, k]` in f16, bf16 or f32 on the CPU; the result has the tokens' type.
///
/// All layers of a model share one engine, which owns the threads.
struct GatedLayer {
    engine: Arc<Engine>,
    layer: Layer,
}

impl GatedLayer {
    fn new(engine: &Arc<Engine>, gate: Matrix<'_>, up: Matrix<'_>) -> Result<Self, hammerhead::Error> {
        let layer = engine.load(&[Weights::gated(gate, up)?], Gate::Silu)?;
        Ok(Self { engine: Arc::clone(engine), layer })
    }

    fn forward(&self, tokens: &Tensor) -> candle_core::Result<Tensor> {
        tokens.contiguous()?.apply_op1_no_bwd(self)
    }

    /// Runs tokens into memory of the caller's.
    fn run(&self, rows: usize, k: usize, tokens: Values<'_>, target: Target<'_>) -> candle_core::Result<()> {
        let tokens = Dense::new(rows, k, tokens, 1.0).map_err(candle_core::Error::wrap)?;
        let done = self.engine.run_into(&self.layer, &[tokens.into()], &mut [target]);
        done.map_err(candle_core::Error::wrap)
    }
}

impl CustomOp1 for GatedLayer {
    fn name(&self) -> &'static str {
        "hammerhead-gated-layer"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (Some((start, end)), Some((&k, leading))) = (layout.contiguous_offsets(), layout.dims().split_last())
        else {
            bail!("{} wants contiguous tokens of at least one dimension, not {layout:?}", self.name());
        };
        let (rows, n) = (leading.iter().product(), self.layer.shapes()[0].0);
        let shape = Shape::from([leading, &[n]].concat());
        macro_rules! run {
            ($values:expr, $kind:ident) => {{
                let mut result = vec![Default::default(); rows * n];
                self.run(rows, k, $values[start..end].into(), Target::$kind(&mut result))?;
                CpuStorage::$kind(result)
            }};
        }
        let result = match storage {
            CpuStorage::F16(values) => run!(values, F16),
            CpuStorage::BF16(values) => run!(values, BF16),
            CpuStorage::F32(values) => run!(values, F32),
            other => bail!(
                "{} takes f16, bf16 and f32, not {:?}",
                self.name(),
                candle_core::backend::BackendStorage::dtype(other)
            ),
        };
        Ok((result, shape))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (n, k, device) = (96, 64, Device::Cpu);
    let random = |rows: usize| -> candle_core::Result<Vec<f32>> {
        Tensor::randn(0f32, 1f32, (rows, k), &device)?.flatten_all()?.to_vec1()
    };
    let quantised = |rows| -> Result<Matrix<'static>, Box<dyn Error>> {
        Ok(quantize(&Dense::new(rows, k, random(rows)?, 1.0)?, None)?)
    };
    let (gate, up) = (quantised(n)?, quantised(n)?);
    let [wide_gate, wide_up] = [&gate, &up].map(|matrix| Tensor::from_vec(matrix.dequantize(), (n, k), &device));
    let (wide_gate, wide_up) = (wide_gate?.t()?, wide_up?.t()?);

    let engine = Arc::new(Engine::auto()?);
    let layer = GatedLayer::new(&engine, gate, up)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let tokens = Tensor::from_vec(random(6)?, (2, 3, k), &device)?.to_dtype(dtype)?;
        let ours = layer.forward(&tokens)?;
        let exact = tokens.to_dtype(DType::F32)?;
        let gated = exact.broadcast_matmul(&wide_gate)?.silu()?;
        let expected = (gated * exact.broadcast_matmul(&wide_up)?)?;
        let largest = expected.abs()?.max_all()?.to_scalar::<f32>()?;
        let off = (ours.to_dtype(DType::F32)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        println!("{dtype:?} {:?}: off by at most {off:.1e} of {largest:.0}", ours.shape());
        let rounding = match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        if off > rounding * largest {
            return Err("candle and Hammerhead disagree".into());
        }
    }
    Ok(())
}
