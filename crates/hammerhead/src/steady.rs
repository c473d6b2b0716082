//! Ways of computing whose results depend, to the bit, on nothing but the operands: not on the number of threads and,
//! where that is asked for, not on how many tokens there are.
//!
//! What a planner chooses depends on both. Of that choice the CPU backends' results depend on two things only, the
//! backend and the depth: an element's products are added along K, one after another or a stretch of `depth` at a time;
//! tiles, stages, strategies and schedules decide who adds them and when (`testkit/tests/it/layers.rs` holds them to
//! it). So those two are settled first, as for a fixed number of threads, by the problem or by one that stands for all,
//! and the rest is planned for what is really there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use op::{Backend, Config, Problem, Request, Result, Shape};

use crate::Plan;
use crate::planner::Planner;

/// Threads for which backend and depth are settled.
const THREADS: usize = 4;
/// Tokens for which they are settled where they may not depend on tokens.
const TOKENS: usize = 16;

/// Planners of the rest, by backend and depth.
type Planners = HashMap<(&'static str, usize), Arc<Planner>>;

/// Chooses among the backends of one layout.
#[derive(Debug)]
pub(crate) struct Steady {
    first: Planner,
    request: Request,
    threads: usize,
    rest: Mutex<Planners>,
}

impl Steady {
    pub(crate) fn new(backends: Vec<&'static dyn Backend>, request: Request, threads: usize) -> Self {
        Self { first: Planner::new(backends, request, THREADS), request, threads, rest: Mutex::default() }
    }

    /// How a problem is computed; if it is to be `invariant`, with the same bits for any number of tokens.
    pub(crate) fn choose(&self, problem: &Problem, invariant: bool) -> Result<(&'static dyn Backend, Config)> {
        self.planner(problem, invariant)?.choose(problem)
    }

    /// The same with all that was weighed once backend and depth were settled.
    pub(crate) fn plan(&self, problem: &Problem, invariant: bool) -> Result<Plan> {
        self.planner(problem, invariant)?.plan(problem)
    }

    /// Who plans what is left to choose.
    fn planner(&self, problem: &Problem, invariant: bool) -> Result<Arc<Planner>> {
        let (backend, config) = match invariant {
            true => self.first.choose(&standing_for(problem)?)?,
            false => self.first.choose(problem)?,
        };
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let request = Request { depth: Some(config.depth), ..self.request };
        let made = || Arc::new(Planner::new(vec![backend], request, self.threads));
        Ok(Arc::clone(rest.entry((backend.name(), config.depth)).or_insert_with(made)))
    }
}

/// The problem that stands for all of the same weights.
fn standing_for(problem: &Problem) -> Result<Problem> {
    let Shape { n, k, .. } = problem.groups()[0];
    problem.with_groups(vec![Shape::new(TOKENS, n, k)])
}

#[cfg(test)]
mod tests {
    use op::{Activation, Gate, Output};

    use super::*;

    #[test]
    fn backend_and_depth_are_those_of_a_fixed_number_of_threads() {
        let of_cpu = |backend: &&'static dyn Backend| backend.layout() == cpu::LAYOUT && backend.available().is_ok();
        let backends: Vec<_> = crate::backends::all().iter().copied().filter(of_cpu).collect();
        let settled = |(backend, config): (&'static dyn Backend, Config)| (backend.name(), config.depth);
        let planner = |threads| Planner::new(backends.clone(), Request::default(), threads);
        let (fixed, mut told_apart) = (planner(THREADS), 0);
        for (m, (n, k)) in [1, 2, 4, 8, 16, 32, 64, 128, 256].into_iter().flat_map(|m| SIDES.map(|side| (m, side))) {
            let shape = vec![Shape::new(m, n, k)];
            let problem = Problem::new(shape, Gate::Silu, Activation::BF16, Output::F32).unwrap();
            let expected = settled(fixed.choose(&problem).unwrap());
            for threads in [1, 64] {
                let steady = Steady::new(backends.clone(), Request::default(), threads);
                assert_eq!(settled(steady.choose(&problem, false).unwrap()), expected, "{m}x{n}x{k} on {threads}");
                told_apart += usize::from(settled(planner(threads).choose(&problem).unwrap()) != expected);
            }
        }
        eprintln!("{told_apart} problems are planned otherwise by those who know the threads");
    }

    const SIDES: [(usize, usize); 4] = [(64, 1040), (528, 1040), (768, 2048), (4096, 512)];
}
