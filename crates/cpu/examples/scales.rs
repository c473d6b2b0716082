//! MXFP4 weights as they are against the same weights as NVFP4, in turns: a gated product of gpt-oss's size.
//!
//!     cargo run --release -p hammerhead-cpu --example scales -- [threads [seconds [backend]]]
//!
//! There are ten pairs of matrices of each kind, 90 MB, so that those of one token come from memory. Both kinds are
//! computed in the configuration that is predicted to be the cheapest, and must give the same bits. Printed is the time
//! of MXFP4 as a part of NVFP4's: of the best turns, and of medians. On AVX2 some loops for a few tokens have one of
//! two speeds in a process, 7 % apart, by where the system puts its stack: several processes tell.

use std::time::Instant;

use fastrand::Rng;
use format::{Dense, Matrix, Scaling, Values};
use half::bf16;
use op::{
    Activation, Activations, Backend, Call, Config, Gate, Output, PackedWeights, Problem, Result, Shape, Target,
    Weights,
};

const SIDE: usize = 2880;
const LAYERS: usize = 10;
const TOKENS: [usize; 6] = [1, 2, 4, 16, 64, 512];
/// Turns that there are at least.
const TURNS: usize = 6;

fn matrix(rng: &mut Rng) -> Result<Matrix<'static>> {
    let codes: Vec<u8> = (0..SIDE * SIDE / 2).map(|_| rng.u8(..)).collect();
    let scales: Vec<u8> = (0..SIDE * SIDE / 32).map(|_| rng.u8(112..124)).collect();
    Ok(Matrix::mx(SIDE, SIDE, codes, &scales, 1.0 / 64.0)?)
}

fn tokens(rng: &mut Rng, activation: Activation, m: usize) -> Result<Activations<'static>> {
    if activation == Activation::NvFp4 {
        let codes: Vec<u8> = (0..m * SIDE / 2).map(|_| rng.u8(..)).collect();
        return Ok(Matrix::new(m, SIDE, codes, vec![0x38; m * SIDE / 16], 1.0)?.into());
    }
    let values: Vec<bf16> = (0..m * SIDE).map(|_| bf16::from_f32(rng.f32() - 0.5)).collect();
    Ok(Dense::new(m, SIDE, values, 1.0)?.into())
}

fn main() -> Result<()> {
    let argument = |index: usize| std::env::args().nth(index);
    let threads = argument(1).and_then(|threads| threads.parse().ok());
    let seconds = argument(2).and_then(|seconds| seconds.parse().ok()).unwrap_or(3.0);
    let team = hammerhead_cpu::team(threads)?;
    let rng = &mut Rng::with_seed(1);
    let pairs = (0..LAYERS).map(|_| Ok([matrix(rng)?, matrix(rng)?])).collect::<Result<Vec<_>>>()?;
    let asked = |backend: &&&'static dyn Backend| argument(3).is_none_or(|name| name == backend.name());
    for &backend in hammerhead_cpu::backends().iter().filter(|backend| backend.available().is_ok()).filter(asked) {
        let packed = |scaling: Scaling| {
            let pack = |[gate, up]: &[Matrix<'static>; 2]| {
                let weights = Weights::gated(gate.in_scaling(scaling)?, up.in_scaling(scaling)?)?;
                backend.prepack(&[weights], &team)
            };
            pairs.iter().map(pack).collect::<Result<Vec<_>>>()
        };
        let kinds = [packed(Scaling::MxFp4)?, packed(Scaling::NvFp4)?];
        for (activation, m) in [Activation::BF16, Activation::NvFp4].into_iter().flat_map(|a| TOKENS.map(|m| (a, m))) {
            let problem = Problem::new(vec![Shape::new(m, SIDE, SIDE)], Gate::Silu, activation, Output::BF16)?;
            let cost = |config: &Config| {
                backend.check(&problem, config, team.count()).map_or(f64::INFINITY, |cost| cost.seconds)
            };
            let configs = backend.candidates(&problem, team.count());
            let Some(config) = configs.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b))) else { continue };
            let tokens = [tokens(rng, activation, m)?];
            let timed = |weights: &dyn PackedWeights| -> Result<(f64, [Values<'static>; 1])> {
                let problem = problem.clone().with_scaling(weights.scaling()).unwrap();
                let mut c = [Values::from(vec![bf16::NAN; m * SIDE])];
                let mut targets = Target::all(&mut c);
                let call = Call::new((backend, config), &problem, weights, &tokens, &mut targets, &team)?;
                let clock = Instant::now();
                call.run()?;
                Ok((clock.elapsed().as_secs_f64(), c))
            };
            let (mut times, start) = ([Vec::new(), Vec::new()], Instant::now());
            for turn in 0.. {
                if turn >= TURNS && start.elapsed().as_secs_f64() > seconds {
                    break;
                }
                // Each kind is the first in every other round.
                let first = turn / LAYERS % 2;
                let one = timed(kinds[first][turn % LAYERS].as_ref())?;
                let other = timed(kinds[1 - first][turn % LAYERS].as_ref())?;
                let [Values::BF16(found), Values::BF16(expected)] = [&one.1[0], &other.1[0]] else { continue };
                assert!(found.iter().zip(expected.iter()).all(|(a, b)| a.to_bits() == b.to_bits()), "bits differ");
                times[first].push(one.0);
                times[1 - first].push(other.0);
            }
            times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
            let [mx, nv] = times.map(|times| [times[0], times[times.len() / 2]]);
            println!(
                "{:6} {activation:5} {m:3} tokens: {:.3} (median {:.3}) of {:.3} ms; {config}",
                backend.name(),
                mx[0] / nv[0],
                mx[1] / nv[1],
                nv[0] * 1e3
            );
        }
    }
    Ok(())
}
