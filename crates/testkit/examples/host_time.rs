//! What a call costs beside the computation: `host_time [backend]`.
//!
//! Layers of 1 to 256 groups that are so small that computing them takes next to nothing, and tokens whose numbers differ in every
//! call. Prints microseconds per call into memory of the caller's, on one thread: with tokens in every group, and with tokens in
//! eight of them. A group without tokens is not computed, so the second is what planning, checking and handing out a call of so
//! many groups takes, and eight very small products.

use std::time::Instant;

use hammerhead::format::{Dense, Matrix};
use hammerhead::{Activations, Engine, Gate, Options, Result, Target, Weights};

const N: usize = 16;
const K: usize = 64;
const CALLS: usize = 400;

/// Numbers of tokens of a call: every call another list, from 1 to 3 in as many groups as are active.
fn counts(groups: usize, active: usize, call: usize) -> Vec<usize> {
    let stride = groups.div_ceil(active);
    (0..groups)
        .map(|group| if (group + call).is_multiple_of(stride) { 1 + (group + call * 5) % 3 } else { 0 })
        .collect()
}

fn main() -> Result<()> {
    let backend = std::env::args().nth(1);
    let engine = Engine::new(Options { backend, threads: Some(1), ..Options::default() })?;
    for (groups, active) in [1, 8, 32, 128, 256].into_iter().flat_map(|groups| [(groups, groups), (groups, 8)]) {
        let matrix = || Matrix::new(N, K, vec![0x22; N * K / 2], vec![0x38; N * K / 16], 1.0);
        let weights =
            (0..groups).map(|_| Weights::gated(matrix()?, matrix()?)).collect::<Result<Vec<Weights<'static>>>>()?;
        let layer = engine.load(&weights, Gate::Silu)?;
        let values = vec![half::bf16::ONE; 3 * K];
        let mut seconds = Vec::new();
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
            let clock = Instant::now();
            engine.run_into(&layer, &tokens, &mut targets)?;
            seconds.push(clock.elapsed().as_secs_f64());
        }
        let (first, mut later) = (seconds[0], seconds.split_off(CALLS / 4));
        later.sort_by(f64::total_cmp);
        let at = |share: f64| later[(later.len() as f64 * share) as usize] * 1e6;
        println!(
            "{groups:>4} groups, {:>3} with tokens: median {:7.1} µs, tenth {:7.1} µs, nine tenths {:7.1} µs, first call {:.0} µs",
            active.min(groups),
            at(0.5),
            at(0.1),
            at(0.9),
            first * 1e6
        );
    }
    Ok(())
}
