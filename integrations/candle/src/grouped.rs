//! One matrix per expert, for models that compute gate, up and down each by itself.

use std::sync::Arc;

use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Layout, MetalStorage, Result, Shape, Tensor, bail};
use hammerhead::{Activations, Engine, Gate, Layer, Weights};

use crate::cuda;
use crate::tokens::{compute_groups, elsewhere, theirs};

/// One NVFP4 matrix per expert, all of one shape. Clones share the weights.
#[derive(Clone)]
pub struct Grouped {
    parts: Arc<Parts>,
}

struct Parts {
    engine: Arc<Engine>,
    layer: Layer,
}

/// Rows in the order of experts, so many for each.
struct Sorted {
    parts: Arc<Parts>,
    counts: Vec<usize>,
}

impl Grouped {
    /// Packs the matrices.
    pub fn new(engine: &Arc<Engine>, weights: &[Weights<'_>]) -> Result<Self> {
        let layer = engine.load(weights, Gate::None).map_err(theirs)?;
        if let Some((expert, shape)) = layer.shapes().iter().enumerate().find(|(_, shape)| **shape != layer.shapes()[0])
        {
            bail!(
                "the matrix of expert {expert} is {shape:?}, and that of expert 0 {:?}: give matrices of one shape",
                layer.shapes()[0]
            );
        }
        Ok(Self { parts: Arc::new(Parts { engine: Arc::clone(engine), layer }) })
    }

    /// Computes each row of `[rows, k]` by the matrix of its expert, `[rows]` in u32 or any other type of integers.
    pub fn forward(&self, tokens: &Tensor, experts: &Tensor) -> Result<Tensor> {
        let (ids, all) = (experts.to_dtype(DType::I64)?.to_vec1::<i64>()?, self.parts.layer.shapes().len());
        let mut counts = vec![0; all];
        for &id in &ids {
            match usize::try_from(id).ok().and_then(|id| counts.get_mut(id)) {
                Some(count) => *count += 1,
                None => bail!("hammerhead-grouped: a row asks for expert {id}, and there are {all} of them, from 0"),
            }
        }
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_by_key(|&row| ids[row as usize]);
        let mut back = vec![0u32; order.len()];
        order.iter().zip(0..).for_each(|(&row, place)| back[row as usize] = place);
        let sorted = tokens.index_select(&Tensor::new(order, tokens.device())?, 0)?;
        let results = sorted.apply_op1(Sorted { parts: Arc::clone(&self.parts), counts })?;
        results.index_select(&Tensor::new(back, tokens.device())?, 0)
    }
}

impl std::fmt::Debug for Grouped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (n, k) = self.parts.layer.shapes()[0];
        write!(f, "Grouped({} of {k} → {n}, NVFP4)", self.parts.layer.shapes().len())
    }
}

impl CustomOp1 for Sorted {
    fn name(&self) -> &'static str {
        "hammerhead-grouped"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Parts { engine, layer } = &*self.parts;
        compute_groups(self.name(), (storage, layout), layer.shapes()[0].0, &self.counts, |tokens, mut targets| {
            let tokens: Vec<Activations<'_>> = tokens.iter().map(|tokens| tokens.as_borrowed().into()).collect();
            engine.run_into(layer, &tokens, &mut targets)
        })
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let layer = &self.parts.layer;
        let (operand, width) = ((storage, layout), layer.shapes()[0].0);
        cuda::compute_groups(self.name(), operand, [], width, &self.counts, |queue, tokens, [], outputs| {
            // SAFETY: `compute_groups` gives addresses of tensors of these shapes that stay until the stream has done
            // the work.
            #[allow(unsafe_code, reason = "lends tensors by their addresses")]
            unsafe {
                queue.enqueue(layer, tokens, outputs)
            }
        })
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        elsewhere(self.name(), "a Metal device")
    }
}
