//! Measures the speeds that the model goes by, in well under a second: each loop of each kernel on small problems that
//! differ in their tokens and in K, on one thread, with weights in its caches; and memory, by one thread and by all.
//!
//! The model says that a problem takes so many expansions, so many products and something else. What a problem takes
//! more than the same with half of K is expansions and products alone: starting a run or a tile, and results, are in
//! both. So two such pairs that differ in their tokens make two equations, whose solution is the loop's speed.
//!
//! Speeds are for ranking ways, so they must have been measured under like conditions, and a machine that others use
//! changes its speed within a tenth of a second. All problems of all kernels are therefore timed in turn, over and
//! over, and of each the least time counts, since whatever else the machine does only adds to it. Where the solution is
//! nevertheless far from what the kernel's author found, their proportion of expansions to products is kept and only
//! the sum is taken from the measurement: a loop for which one of the two came out at nothing would look better than it
//! is wherever that one counts most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use op::{
    Activation, Activations, Call, Config, Gate, Output, PackedWeights, Problem, Result, Shape, Target, Team, Tile,
    Weights,
};

use super::backend::CpuBackend;
use super::ceilings::Prober;
use super::model::{self, Loop, Rates};
use super::speeds::{Bandwidth, Speed, Speeds};
use super::threads::team;

/// Columns of the problems, and their two K: packed weights of the longer one fit an L2 cache.
const COLUMNS: usize = 256;
const K: [usize; 2] = [1024, 2048];
/// A K so short that results take a good part of the time, and how many times the tokens the larger such problem has.
const SHORT: usize = 16;
const MORE_RESULTS: usize = 4;
/// How long all problems are timed over and over, and how often at least.
const PATIENCE: Duration = Duration::from_millis(400);
const ROUNDS: usize = 4;
/// How many times faster or slower than stated a measured speed is believed to be.
const BELIEVED: f64 = 8.0;
/// Memory to read from, and how often.
const MEMORY: usize = 256 << 20;
const READINGS: usize = 3;

/// Measures this machine: every one of these backends that it has.
pub(super) fn measure(backends: &[&'static dyn CpuBackend]) -> Result<Speeds> {
    let (alone, all) = (team(Some(1))?, team(None)?);
    let mut kernels: Vec<KernelTrials> = Vec::new();
    let weights = TrialWeights::new(backends, &alone)?;
    for backend in backends.iter().filter(|backend| backend.available().is_ok()) {
        for activation in [Activation::NvFp4, Activation::BF16] {
            let kernel = KernelTrials::new(*backend, activation, &weights)?;
            if kernels.iter().all(|known| known.prefix != kernel.prefix) {
                kernels.push(kernel);
            }
        }
    }
    let (begun, mut round) = (Instant::now(), 0);
    while round < ROUNDS || begun.elapsed() < PATIENCE {
        kernels.iter_mut().try_for_each(|kernel| kernel.time(&alone))?;
        round += 1;
    }
    let prober = Prober::with_memory(MEMORY)?;
    let best = |team: &Team| (0..READINGS).map(|_| prober.bytes(team)).fold(0.0, f64::max);
    let bandwidth = Bandwidth { thread: best(&alone), machine: best(&all) };
    Ok(Speeds::of(bandwidth, kernels.iter().flat_map(KernelTrials::speeds).collect()))
}

/// A kernel's problems.
struct KernelTrials {
    backend: &'static dyn CpuBackend,
    rates: Rates,
    prefix: String,
    loops: Vec<LoopTrials>,
    /// Two problems with little but results, of the loop that takes every shape.
    results: [Trial; 2],
}

/// A loop's problems: few tokens and many, each with both K.
struct LoopTrials {
    name: &'static str,
    stated: Speed,
    pairs: [[Trial; 2]; 2],
}

impl KernelTrials {
    fn new(backend: &'static dyn CpuBackend, activation: Activation, weights: &TrialWeights) -> Result<Self> {
        let rates = backend.rates(activation);
        let trial = |config: Config, k: usize| Trial::new(activation, config, k, weights);
        let pair = |config: Config| -> Result<_> { Ok([trial(config, K[0])?, trial(config, K[1])?]) };
        let mut loops = Vec::new();
        for Loop { name, stated, configs: [few, many] } in rates.loops() {
            loops.push(LoopTrials { name, stated, pairs: [pair(few)?, pair(many)?] });
        }
        let some = loops[0].pairs[1][0].config;
        let more = Config { tile: Tile { tokens: MORE_RESULTS * some.tile.tokens, ..some.tile }, ..some };
        let results = [trial(some, SHORT)?, trial(more, SHORT)?];
        Ok(Self { backend, prefix: format!("{} {}", backend.name(), rates.kernel().0), rates, loops, results })
    }

    /// Times every problem once more.
    fn time(&mut self, team: &Team) -> Result<()> {
        let loops = self.loops.iter_mut().flat_map(|each| each.pairs.as_flattened_mut());
        loops.chain(&mut self.results).try_for_each(|trial| trial.time(self.backend, team))
    }

    /// The seconds of each piece of work, by name.
    fn speeds(&self) -> Vec<(String, f64)> {
        let mut speeds = Vec::new();
        for LoopTrials { name, stated, pairs } in &self.loops {
            let equations = pairs.each_ref().map(|[short, long]| {
                let (less, more) = (short.parts(&self.rates), long.parts(&self.rates));
                let seconds = (long.least - more.rest) - (short.least - less.rest);
                [more.expansions - less.expansions, more.products - less.products, seconds]
            });
            let found = speed(equations, *stated);
            if speeds.is_empty() {
                speeds.push((format!("{} finish", self.prefix), self.finish(found, *stated)));
            }
            speeds.push((format!("{} {name} expand", self.prefix), found.expand));
            speeds.push((format!("{} {name} multiply", self.prefix), found.multiply));
        }
        speeds
    }

    /// The seconds of a result, by what more tokens take beside their products.
    fn finish(&self, found: Speed, stated: Speed) -> f64 {
        let [less, more] = self.results.each_ref().map(|trial| {
            let parts = trial.parts(&self.rates);
            let rest = parts.rest + parts.expansions * found.expand + parts.products * found.multiply;
            (parts.results, trial.least - rest)
        });
        let (finish, known) = ((more.1 - less.1) / (more.0 - less.0), self.rates.kernel().1);
        if believed(finish, known) { finish } else { known * found.multiply / stated.multiply }
    }
}

fn believed(found: f64, stated: f64) -> bool {
    (stated / BELIEVED..=stated * BELIEVED).contains(&found)
}

/// The speed that two equations say, each so many expansions, so many products and their seconds; if it is not
/// believed, the stated one, so much faster or slower as both together are.
fn speed([first, second]: [[f64; 3]; 2], stated: Speed) -> Speed {
    let determinant = |column: usize, other: usize| first[column] * second[other] - first[other] * second[column];
    let all = determinant(0, 1);
    let found = Speed { expand: determinant(2, 1) / all, multiply: determinant(0, 2) / all };
    if believed(found.expand, stated.expand) && believed(found.multiply, stated.multiply) {
        return found;
    }
    let expected: f64 = [first, second].iter().map(|e| e[0] * stated.expand + e[1] * stated.multiply).sum();
    let factor = ((first[2] + second[2]) / expected).clamp(1.0 / BELIEVED, BELIEVED);
    Speed { expand: stated.expand * factor, multiply: stated.multiply * factor }
}

/// Weights for each K, which all backends read alike.
struct TrialWeights(Vec<(usize, Arc<dyn PackedWeights>)>);

impl TrialWeights {
    fn new(backends: &[&'static dyn CpuBackend], team: &Team) -> Result<Self> {
        let mut weights = Vec::new();
        for k in [SHORT, K[0], K[1]] {
            let pair = Weights::gated(matrix(COLUMNS, k)?, matrix(COLUMNS, k)?)?;
            if let Some(backend) = backends.last() {
                weights.push((k, backend.prepack(&[pair], team)?));
            }
        }
        Ok(Self(weights))
    }
}

fn matrix(rows: usize, k: usize) -> Result<format::Matrix<'static>> {
    let codes = (0..rows * k / 2).map(|i| (i * 151 + i / 7) as u8).collect::<Vec<_>>();
    Ok(format::Matrix::new(rows, k, codes, vec![0x38; rows * k / format::BLOCK], 1.0 / k as f32)?)
}

/// A small problem, ready to be run again and again, and the least seconds that it took.
struct Trial {
    problem: Problem,
    config: Config,
    weights: Arc<dyn PackedWeights>,
    activations: [Activations<'static>; 1],
    result: Vec<f16>,
    least: f64,
}

impl Trial {
    /// One tile of tokens.
    fn new(activation: Activation, config: Config, k: usize, weights: &TrialWeights) -> Result<Self> {
        let m = config.tile.tokens;
        let problem = Problem::new(vec![Shape::new(m, COLUMNS, k)], Gate::Silu, activation, Output::F16)?;
        let known = weights.0.iter().find(|(known, _)| *known == k);
        let (_, weights) = known.unwrap_or_else(|| unreachable!("no weights for K = {k}"));
        let activations = match activation {
            Activation::NvFp4 => matrix(m, k)?.into(),
            _ => {
                let values = (0..m * k).map(|i| bf16::from_f32((i % 251) as f32 - 125.0)).collect::<Vec<_>>();
                format::Dense::new(m, k, values, 1.0)?.into()
            }
        };
        let result = vec![f16::ZERO; m * COLUMNS];
        let weights = Arc::clone(weights);
        Ok(Self { problem, config, weights, activations: [activations], result, least: f64::INFINITY })
    }

    /// Runs twice: the first run brings back what other problems have pushed out of the caches.
    fn time(&mut self, backend: &'static dyn CpuBackend, team: &Team) -> Result<()> {
        for _ in 0..2 {
            let mut targets = [Target::F16(&mut self.result)];
            let way = (backend as &dyn op::Backend, self.config);
            let call = Call::new(way, &self.problem, &*self.weights, &self.activations, &mut targets, team)?;
            let clock = Instant::now();
            call.run()?;
            self.least = self.least.min(clock.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn parts(&self, rates: &Rates) -> model::Parts {
        model::parts(&self.problem, &self.config, rates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_what_two_equations_say() {
        let stated = Speed { expand: 1.0, multiply: 1.0 };
        assert_eq!(speed([[4.0, 1.0, 11.0], [4.0, 8.0, 32.0]], stated), Speed { expand: 2.0, multiply: 3.0 });
    }

    #[test]
    fn where_one_part_comes_out_at_nothing_the_stated_proportion_is_kept() {
        let stated = Speed { expand: 3.0, multiply: 2.0 };
        // Many tokens took more than eight times as long as one: nothing is left for expansions.
        for seconds in [[20.0, 170.0], [10.0, 180.0]] {
            let found = speed([[1.0, 1.0, seconds[0]], [1.0, 8.0, seconds[1]]], stated);
            assert_eq!(found.expand / found.multiply, 1.5);
            assert_eq!(found.multiply, 2.0 * 190.0 / 24.0);
        }
        // And where both took next to nothing, or too long, or no number is left.
        for (seconds, factor) in [(1e-9, 1.0 / BELIEVED), (1e9, BELIEVED)] {
            let found = speed([[1.0, 1.0, seconds], [1.0, 8.0, seconds]], stated);
            assert_eq!(found, Speed { expand: 3.0 * factor, multiply: 2.0 * factor });
        }
        assert_eq!(speed([[1.0, 1.0, 5.0], [1.0, 1.0, 5.0]], stated), stated);
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
