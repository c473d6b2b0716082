//! Measures the speeds that the model goes by, in well under a second: each loop of each kernel on two small problems that differ
//! in their tokens, on one thread, with weights in its caches; and memory, by one thread and by all.
//!
//! The model says that a problem takes so many expansions, so many products and something else. Two problems make two
//! equations, whose solution is the loop's speed: by construction the model then predicts what was measured. Of several timings the least
//! counts, since whatever else the machine does only adds to it. A solution that is far from what the kernel's author found
//! is a disturbed measurement, and is taken only so far.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use op::{Activation, Activations, Call, Config, Gate, Output, Problem, Result, Shape, Target, Team, Weights};

use super::backend::CpuBackend;
use super::ceilings::Prober;
use super::model::{self, Loop};
use super::speeds::{Bandwidth, Speeds};
use super::threads::team;

/// Columns and K of the problems: their packed weights fit an L2 cache.
const COLUMNS: usize = 256;
const K: usize = 1024;
/// A K so short that results take a good part of the time, and the tiles of tokens that such a problem has.
const SHORT: usize = 16;
const SHORT_TILES: usize = 4;
/// How long a loop's problems are timed over and over, and how often at least.
const PATIENCE: Duration = Duration::from_millis(25);
const ROUNDS: usize = 4;
/// How many times faster or slower than stated a measured speed is believed to be.
const BELIEVED: f64 = 8.0;
/// Memory to read from, and how often.
const MEMORY: usize = 256 << 20;
const READINGS: usize = 2;

/// Measures this machine: every one of these backends that it has.
pub(super) fn measure(backends: &[&'static dyn CpuBackend]) -> Result<Speeds> {
    let (alone, all) = (team(Some(1))?, team(None)?);
    let mut work = Vec::new();
    for backend in backends.iter().filter(|backend| backend.available().is_ok()) {
        for activation in [Activation::NvFp4, Activation::BF16] {
            let (kernel, _) = backend.rates(activation).kernel();
            let name = format!("{} {kernel} finish", backend.name());
            if work.iter().all(|(known, _)| *known != name) {
                measure_kernel(*backend, activation, &alone, &mut work)?;
            }
        }
    }
    let prober = Prober::with_memory(MEMORY)?;
    let best = |team: &Team| (0..READINGS).map(|_| prober.bytes(team)).fold(0.0, f64::max);
    Ok(Speeds::of(Bandwidth { thread: best(&alone), machine: best(&all) }, work))
}

/// Measures a kernel: with the loop that takes every shape, also what a result takes.
fn measure_kernel(
    backend: &'static dyn CpuBackend,
    activation: Activation,
    team: &Team,
    work: &mut Vec<(String, f64)>,
) -> Result<()> {
    let rates = backend.rates(activation);
    let (kernel, mut finish) = rates.kernel();
    let prefix = format!("{} {kernel}", backend.name());
    for Loop { name, stated, configs } in rates.loops() {
        let mut trials: Vec<Trial> =
            configs.into_iter().map(|config| Trial::new(backend, activation, config, K)).collect::<Result<_>>()?;
        if name == "walk" {
            trials.push(Trial::new(backend, activation, configs[1], SHORT)?);
        }
        let seconds = least_seconds(backend, &mut trials, team)?;
        // One equation per trial; where results are known already, the third says so.
        let mut equations: Vec<[f64; 4]> = (trials.iter().zip(seconds))
            .map(|(trial, seconds)| {
                let parts = model::parts(&trial.problem, &trial.config, &rates);
                [parts.expansions, parts.products, parts.results, seconds - parts.rest]
            })
            .collect();
        equations.resize(3, [0.0, 0.0, 1.0, finish]);
        let found = solve([equations[0], equations[1], equations[2]]);
        let believed = |found: f64, stated: f64| match found.is_nan() {
            true => stated,
            false => found.clamp(stated / BELIEVED, stated * BELIEVED),
        };
        if name == "walk" {
            finish = believed(found[2], finish);
            work.push((format!("{prefix} finish"), finish));
        }
        work.push((format!("{prefix} {name} expand"), believed(found[0], stated.expand)));
        work.push((format!("{prefix} {name} multiply"), believed(found[1], stated.multiply)));
    }
    Ok(())
}

/// The least seconds of each trial, all in turn, over and over.
fn least_seconds(backend: &'static dyn CpuBackend, trials: &mut [Trial], team: &Team) -> Result<Vec<f64>> {
    let mut least = vec![f64::INFINITY; trials.len()];
    let (begun, mut round) = (Instant::now(), 0);
    while round < ROUNDS || begun.elapsed() < PATIENCE {
        for (least, trial) in least.iter_mut().zip(&mut *trials) {
            *least = least.min(trial.seconds(backend, team)?);
        }
        round += 1;
    }
    Ok(least)
}

/// Solves three linear equations, each three factors and the sum, by Cramer's rule. Not numbers if they have no one solution.
fn solve(equations: [[f64; 4]; 3]) -> [f64; 3] {
    let column = |index: usize| equations.map(|equation| equation[index]);
    let determinant = |[a, b, c]: [[f64; 3]; 3]| {
        a[0] * (b[1] * c[2] - b[2] * c[1]) - b[0] * (a[1] * c[2] - a[2] * c[1]) + c[0] * (a[1] * b[2] - a[2] * b[1])
    };
    let columns = [0, 1, 2].map(column);
    let all = determinant(columns);
    [0, 1, 2].map(|unknown| {
        let mut replaced = columns;
        replaced[unknown] = column(3);
        if all == 0.0 { f64::NAN } else { determinant(replaced) / all }
    })
}

/// A small problem, ready to be run again and again.
struct Trial {
    problem: Problem,
    config: Config,
    weights: std::sync::Arc<dyn op::PackedWeights>,
    activations: [Activations<'static>; 1],
    result: Vec<f16>,
}

impl Trial {
    fn new(backend: &'static dyn CpuBackend, activation: Activation, config: Config, k: usize) -> Result<Self> {
        let m = config.tile.tokens * if k == SHORT { SHORT_TILES } else { 1 };
        let problem = Problem::new(vec![Shape::new(m, COLUMNS, k)], Gate::Silu, activation, Output::F16)?;
        let matrix = |rows: usize| {
            let codes = (0..rows * k / 2).map(|i| (i * 151 + i / 7) as u8).collect::<Vec<_>>();
            format::Matrix::new(rows, k, codes, vec![0x38; rows * k / format::BLOCK], 1.0 / k as f32)
        };
        let weights = backend.prepack(&[Weights::gated(matrix(COLUMNS)?, matrix(COLUMNS)?)?], &team(Some(1))?)?;
        let activations = match activation {
            Activation::NvFp4 => matrix(m)?.into(),
            _ => {
                let values = (0..m * k).map(|i| bf16::from_f32((i % 251) as f32 - 125.0)).collect::<Vec<_>>();
                format::Dense::new(m, k, values, 1.0)?.into()
            }
        };
        let result = vec![f16::ZERO; m * COLUMNS];
        Ok(Self { problem, config, weights, activations: [activations], result })
    }

    fn seconds(&mut self, backend: &'static dyn CpuBackend, team: &Team) -> Result<f64> {
        let mut targets = [Target::F16(&mut self.result)];
        let way = (backend as &dyn op::Backend, self.config);
        let call = Call::new(way, &self.problem, &*self.weights, &self.activations, &mut targets, team)?;
        let clock = Instant::now();
        call.run()?;
        Ok(clock.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_equations_are_solved() {
        let equations = [[2.0, 1.0, 0.0, 4.0], [1.0, 3.0, 1.0, 10.0], [0.0, 0.0, 2.0, 6.0]];
        assert_eq!(solve(equations), [1.0, 2.0, 3.0]);
        assert!(solve([[1.0, 1.0, 0.0, 1.0], [2.0, 2.0, 0.0, 2.0], [0.0, 0.0, 1.0, 1.0]])[0].is_nan());
    }

    #[test]
    fn every_kernel_here_gets_speeds_that_can_be_written_down() {
        let speeds = measure(crate::table()).unwrap();
        assert_eq!(Speeds::from_entries(&speeds.entries()).as_ref(), Some(&speeds));
        for backend in crate::table().iter().filter(|backend| backend.available().is_ok()) {
            for activation in Activation::ALL {
                let rates = backend.rates(activation);
                let find = |way: &str, what: &str| speeds.find([backend.name(), rates.kernel().0, way, what]);
                let stated = rates.loops();
                let measured = rates.at(backend.name(), &speeds).loops();
                for (stated, measured) in stated.iter().zip(measured) {
                    assert_eq!(find(stated.name, "expand"), Some(measured.stated.expand), "{}", backend.name());
                    assert_eq!(find(stated.name, "multiply"), Some(measured.stated.multiply), "{}", backend.name());
                }
            }
        }
    }
}
