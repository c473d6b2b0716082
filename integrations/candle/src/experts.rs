//! Experts, of which a few compute each token: chosen by a router's logits, or as the caller says.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, CustomOp3, DType, Layout, MetalStorage, Result, Shape, Tensor, bail,
};
use hammerhead::feed_forward::{expert_weights, router};
use hammerhead::format::checkpoint::Checkpoint;
use hammerhead::gpu::DeviceRouting;
use hammerhead::{Engine, ExpertWeights, Ids, LayerOptions, Routed, Router};

use crate::cuda::{self, Beside};
use crate::tokens::{compute, contiguous, elsewhere, theirs};

/// A layer of experts, `Σ_j w[t,j]·MLP_e(x[t])` with a shared expert if there is one. Clones share the weights.
#[derive(Clone)]
pub struct Experts {
    parts: Arc<Parts>,
}

struct Parts {
    engine: Arc<Engine>,
    experts: hammerhead::Experts,
    router: Option<Router>,
}

/// Experts and weights come from the caller.
struct Given(Arc<Parts>);

/// They come from logits.
struct FromLogits(Arc<Parts>);

impl Experts {
    /// Packs the weights. With a router's rule, [`Experts::forward`] takes logits.
    pub fn new(
        engine: &Arc<Engine>,
        weights: &ExpertWeights<'_>,
        router: Option<Router>,
        options: LayerOptions,
    ) -> Result<Self> {
        let experts = hammerhead::Experts::new(engine, weights, options).map_err(theirs)?;
        if let Some(router) = &router
            && router.experts() != experts.count()
        {
            bail!(
                "the router knows {} experts, and the weights are of {}: give one that knows as many",
                router.experts(),
                experts.count()
            );
        }
        Ok(Self { parts: Arc::new(Parts { engine: Arc::clone(engine), experts, router }) })
    }

    /// Reads and packs the experts of a model's layer, the shared one too, with the gate and the router's rule that the
    /// model declares. The product of tokens and the router's own matrix is left to the model.
    pub fn from_checkpoint(
        engine: &Arc<Engine>,
        model: &Checkpoint,
        layer: usize,
        options: LayerOptions,
    ) -> Result<Self> {
        let read = model.feed_forward(layer).map_err(theirs)?;
        let router = router(&read).map_err(theirs)?;
        Self::new(engine, &expert_weights(read, None).map_err(theirs)?, router, options)
    }

    /// How many experts there are, the shared one not counted.
    pub fn count(&self) -> usize {
        self.parts.experts.count()
    }

    /// The width of tokens, of the intermediate and of results.
    pub fn widths(&self) -> [usize; 3] {
        self.parts.experts.widths()
    }

    /// Computes tokens `[…, k]` by the experts that the rule chooses from logits `[…, experts]`.
    pub fn forward(&self, tokens: &Tensor, logits: &Tensor) -> Result<Tensor> {
        let logits = logits.to_dtype(DType::F32)?.contiguous()?;
        tokens.contiguous()?.apply_op2_arc(&logits, Arc::new(Box::new(FromLogits(Arc::clone(&self.parts)))))
    }

    /// Computes tokens `[…, k]` by the experts `ids` (u32, i32 or i64, `[…, top]`) with these weights (`[…, top]`). An
    /// expert that is not among these adds nothing.
    pub fn forward_routed(&self, tokens: &Tensor, ids: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let (ids, weights) = (ids.contiguous()?, weights.to_dtype(DType::F32)?.contiguous()?);
        tokens.contiguous()?.apply_op3_arc(&ids, &weights, Arc::new(Box::new(Given(Arc::clone(&self.parts)))))
    }
}

impl std::fmt::Debug for Experts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [k, inner, n] = self.widths();
        write!(f, "Experts({} of {k} → {inner} → {n}, NVFP4)", self.count())
    }
}

impl Parts {
    fn run(&self, name: &'static str, tokens: (&CpuStorage, &Layout), routed: &Routed) -> Result<(CpuStorage, Shape)> {
        compute(name, tokens, self.experts.widths()[2], |tokens, target| {
            self.experts.run_into(&self.engine, tokens, routed, target)
        })
    }

    /// Queues tokens in a GPU's memory, whose experts are found by tensors that lie there too.
    fn queue<'a, const N: usize>(
        &'a self,
        name: &'static str,
        tokens: (&CudaStorage, &Layout),
        beside: [Beside<'_>; N],
        routing: impl FnOnce([u64; N]) -> DeviceRouting<'a>,
    ) -> Result<(CudaStorage, Shape)> {
        self.experts.queueable().map_err(theirs)?;
        cuda::compute(name, tokens, beside, self.experts.widths()[2], |queue, tokens, addresses, output| {
            // SAFETY: `compute` gives addresses of tensors of these shapes that stay until the stream has done the
            // work.
            #[allow(unsafe_code, reason = "lends tensors by their addresses")]
            unsafe {
                queue.enqueue_experts(&self.experts, tokens, routing(addresses), output, None)
            }
        })
    }

    fn rule(&self, name: &'static str) -> Result<&Router> {
        match &self.router {
            Some(router) => Ok(router),
            None => bail!(
                "{name}: this layer has no rule for logits: give a Router to Experts::new, or call forward_routed with ids and weights"
            ),
        }
    }
}

impl CustomOp3 for Given {
    fn name(&self) -> &'static str {
        "hammerhead-experts"
    }

    fn cpu_fwd(
        &self,
        tokens: &CpuStorage,
        layout: &Layout,
        ids: &CpuStorage,
        ids_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let name = self.name();
        let rows = rows_beside(name, layout, "ids", ids_layout)?;
        weight_per_id(name, ids_layout, weights_layout)?;
        let (start, end) = contiguous(name, "ids", ids_layout)?;
        let ids: Vec<i64> = match ids {
            CpuStorage::U32(ids) => ids[start..end].iter().map(|&id| id.into()).collect(),
            CpuStorage::I32(ids) => ids[start..end].iter().map(|&id| id.into()).collect(),
            CpuStorage::I64(ids) => ids[start..end].to_vec(),
            other => bail!(
                "{name} takes ids in u32, i32 or i64, and these are {:?}: convert them with to_dtype",
                other.dtype()
            ),
        };
        let weights = numbers(name, "weights", weights, weights_layout)?;
        let routed = Routed::given(Ids::I64(&ids), weights, rows, self.0.experts.count()).map_err(theirs)?;
        self.0.run(name, (tokens, layout), &routed)
    }

    fn cuda_fwd(
        &self,
        tokens: &CudaStorage,
        layout: &Layout,
        ids: &CudaStorage,
        ids_layout: &Layout,
        weights: &CudaStorage,
        weights_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let name = self.name();
        rows_beside(name, layout, "ids", ids_layout)?;
        weight_per_id(name, ids_layout, weights_layout)?;
        // A number in u32 has the bits of one in i32, and above its largest one no layer has experts.
        let wide = match ids.dtype() {
            DType::U32 | DType::I32 => false,
            DType::I64 => true,
            other => bail!("{name} takes ids in u32, i32 or i64, and these are {other:?}: convert them with to_dtype"),
        };
        let top = ids_layout.dims().last().copied().unwrap_or(0);
        let beside = [("ids", ids, ids_layout), ("weights", weights, weights_layout)];
        self.0.queue(name, (tokens, layout), beside, |[ids, weights]| DeviceRouting::Given {
            ids,
            wide,
            weights,
            top,
            on_input: false,
        })
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        elsewhere(self.name(), "a Metal device")
    }
}

impl CustomOp2 for FromLogits {
    fn name(&self) -> &'static str {
        "hammerhead-experts"
    }

    fn cpu_fwd(
        &self,
        tokens: &CpuStorage,
        layout: &Layout,
        logits: &CpuStorage,
        logits_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let name = self.name();
        let router = self.0.rule(name)?;
        let rows = rows_beside(name, layout, "logits", logits_layout)?;
        let routed = router.route(numbers(name, "logits", logits, logits_layout)?, rows).map_err(theirs)?;
        self.0.run(name, (tokens, layout), &routed)
    }

    fn cuda_fwd(
        &self,
        tokens: &CudaStorage,
        layout: &Layout,
        logits: &CudaStorage,
        logits_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let name = self.name();
        let router = self.0.rule(name)?;
        rows_beside(name, layout, "logits", logits_layout)?;
        if logits_layout.dims().last() != Some(&router.experts()) {
            bail!(
                "{name}: logits are {:?}, and there are {} experts: give one logit per expert",
                logits_layout.dims(),
                router.experts()
            );
        }
        self.0.queue(name, (tokens, layout), [("logits", logits, logits_layout)], |[logits]| DeviceRouting::Logits {
            logits,
            router,
        })
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        elsewhere(self.name(), "a Metal device")
    }
}

/// The number of tokens, if another tensor has a row for each of them.
fn rows_beside(name: &'static str, tokens: &Layout, what: &str, other: &Layout) -> Result<usize> {
    let leading = |layout: &Layout| layout.dims().split_last().map(|(_, leading)| leading.to_vec());
    match (leading(tokens), leading(other)) {
        (Some(tokens), Some(other)) if tokens == other => Ok(tokens.iter().product()),
        _ => bail!(
            "{name}: {what} are {:?} beside tokens {:?}: all dimensions but the last must agree",
            other.dims(),
            tokens.dims()
        ),
    }
}

fn weight_per_id(name: &'static str, ids: &Layout, weights: &Layout) -> Result<()> {
    if weights.dims() != ids.dims() {
        bail!("{name}: weights are {:?} and ids {:?}: give one weight per id", weights.dims(), ids.dims());
    }
    Ok(())
}

/// A tensor's numbers.
fn numbers<'a>(name: &'static str, what: &str, storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let (start, end) = contiguous(name, what, layout)?;
    Ok(&storage.as_slice::<f32>()?[start..end])
}
