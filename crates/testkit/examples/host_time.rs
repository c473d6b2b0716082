//! What a call costs beside the computation: `host_time [backend]`.
//!
//! Layers of 1 to 256 groups, and tokens whose numbers differ in every call, in every group and in eight of them. The
//! engine computes on sixteen threads, whose calls the caller's makes one after another, and clocks: what is left of a
//! call is what planning, checking, preparing tokens and handing out takes. Prints both, in microseconds per call into
//! memory of the caller's. Then one token in layers of 8 to 256 experts, of which it has eight, others in every
//! call. The last has experts of Qwen3-30B's sizes: several ways are worth weighing, and caches are cold after each
//! product.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hammerhead::format::{Dense, Matrix};
use hammerhead::{
    Activations, Engine, ExpertWeights, Experts, Gate, Ids, LayerOptions, MlpWeights, Options, Result, Routed, Target,
    Weights, Workers,
};

const N: usize = 16;
const K: usize = 64;
const CALLS: usize = 400;
const THREADS: usize = 16;

/// Numbers of tokens of a call: every call another list, from 1 to 3 in as many groups as are active.
fn counts(groups: usize, active: usize, call: usize) -> Vec<usize> {
    let stride = groups.div_ceil(active);
    (0..groups)
        .map(|group| if (group + call).is_multiple_of(stride) { 1 + (group + call * 5) % 3 } else { 0 })
        .collect()
}

/// The calling thread in place of all, and the nanoseconds that it has computed for.
#[derive(Clone, Debug, Default)]
struct Clocked(Arc<AtomicU64>);

impl Workers for Clocked {
    fn count(&self) -> usize {
        THREADS
    }

    fn run(&self, work: &(dyn Fn() + Sync)) {
        let clock = Instant::now();
        (0..THREADS).for_each(|_| work());
        self.0.fetch_add(clock.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Some shares of a list of microseconds: the median, a tenth, nine tenths.
fn spread(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [0.5, 0.1, 0.9].map(|share| times[(times.len() as f64 * share) as usize])
}

fn main() -> Result<()> {
    let backend = std::env::args().nth(1);
    let computing = Clocked::default();
    let engine = Engine::with_workers(Options { backend, ..Options::default() }, computing.clone())?;
    products(&engine, &computing)?;
    layers(&engine, &computing)
}

fn layers(engine: &Engine, computing: &Clocked) -> Result<()> {
    for (count, n, k) in [(8, N, K), (32, N, K), (128, N, K), (256, N, K), (128, 768, 2048)] {
        let matrix = |n, k| Matrix::new(n, k, vec![0x22; n * k / 2], vec![0x38; n * k / 16], 1.0);
        let expert = || MlpWeights::new(Weights::gated(matrix(n, k)?, matrix(n, k)?)?, Weights::plain(matrix(k, n)?));
        let experts = (0..count).map(|_| expert()).collect::<Result<Vec<MlpWeights<'static>>>>()?;
        let layer = Experts::new(engine, &ExpertWeights::new(experts, Gate::Silu)?, LayerOptions::default())?;
        let token = Dense::new(1, k, vec![half::bf16::ONE; k], 1.0)?;
        let mut result = vec![0f32; k];
        let (mut beside, mut products) = (Vec::new(), Vec::new());
        for call in 0..CALLS {
            let ids: Vec<i32> = (0..8).map(|j| ((call + j * count / 8) % count) as i32).collect();
            let routed = Routed::given(Ids::I32(&ids), &[0.125; 8], 1, count)?;
            computing.0.store(0, Ordering::Relaxed);
            let clock = Instant::now();
            layer.run_into(engine, &token, &routed, Target::F32(&mut result))?;
            let (all, inside) = (clock.elapsed().as_nanos() as f64, computing.0.load(Ordering::Relaxed) as f64);
            beside.push((all - inside) / 1e3);
            products.push(inside / 1e3);
        }
        let [median, tenth, nine] = spread(beside.split_off(CALLS / 4));
        println!(
            "{count:>4} experts of {k}→{n}→{k}, one token: beside the threads' work {median:6.1} µs (tenth {tenth:.1}, nine tenths {nine:.1}); that {:.1} µs",
            spread(products.split_off(CALLS / 4))[0],
        );
    }
    Ok(())
}

fn products(engine: &Engine, computing: &Clocked) -> Result<()> {
    for (groups, active) in [1, 8, 32, 128, 256].into_iter().flat_map(|groups| [(groups, groups), (groups, 8)]) {
        let matrix = || Matrix::new(N, K, vec![0x22; N * K / 2], vec![0x38; N * K / 16], 1.0);
        let weights =
            (0..groups).map(|_| Weights::gated(matrix()?, matrix()?)).collect::<Result<Vec<Weights<'static>>>>()?;
        let layer = engine.load(&weights, Gate::Silu)?;
        let values = vec![half::bf16::ONE; 3 * K];
        let (mut beside, mut products) = (Vec::new(), Vec::new());
        for call in 0..CALLS {
            let counts = counts(groups, active, call);
            let tokens = counts.iter().map(|&m| Ok(Dense::new(m, K, values[..m * K].to_vec(), 1.0)?.into()));
            let tokens = tokens.collect::<Result<Vec<Activations<'_>>>>()?;
            let mut results = vec![0f32; counts.iter().sum::<usize>() * N];
            let mut rest = &mut results[..];
            let mut targets: Vec<Target<'_>> = Vec::new();
            for m in counts {
                let (own, others) = std::mem::take(&mut rest).split_at_mut(m * N);
                targets.push(Target::F32(own));
                rest = others;
            }
            computing.0.store(0, Ordering::Relaxed);
            let clock = Instant::now();
            engine.run_into(&layer, &tokens, &mut targets)?;
            let (all, inside) = (clock.elapsed().as_nanos() as f64, computing.0.load(Ordering::Relaxed) as f64);
            beside.push((all - inside) / 1e3);
            products.push(inside / 1e3);
        }
        let (first, [median, tenth, nine]) = (beside[0], spread(beside.split_off(CALLS / 4)));
        println!(
            "{groups:>4} groups, {:>3} with tokens: beside the products {median:6.1} µs (tenth {tenth:.1}, nine tenths {nine:.1}, first call {first:.0}); products {:.1} µs",
            active.min(groups),
            spread(products.split_off(CALLS / 4))[0],
        );
    }
    Ok(())
}
