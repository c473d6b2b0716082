//! Ways of computing whose results depend, to the bit, on nothing but the operands: not on the number of threads and, where that is asked for, not on
//! how many tokens there are.
//!
//! What a planner chooses depends on both. Of that choice the CPU backends' results depend on two things only, the backend and the depth: an element's
//! products are added along K, one after another, and vector units add up the sums of each stretch of `depth`; tiles, stages, strategies and
//! schedules decide who adds them and when (`testkit/tests/it/layers.rs` holds them to it). So those two are settled first, as for a fixed number of threads, by the problem or by one
//! that stands for all, and the rest is planned for what is really there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use op::{Backend, Config, Problem, Request, Result, Shape};

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
        let (backend, config) = match invariant {
            true => self.first.choose(&standing_for(problem)?)?,
            false => self.first.choose(problem)?,
        };
        let planner = {
            let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
            let request = Request { depth: Some(config.depth), ..self.request };
            let made = || Arc::new(Planner::new(vec![backend], request, self.threads));
            Arc::clone(rest.entry((backend.name(), config.depth)).or_insert_with(made))
        };
        planner.choose(problem)
    }
}

/// The problem that stands for all of the same weights.
fn standing_for(problem: &Problem) -> Result<Problem> {
    let Shape { n, k, .. } = problem.groups()[0];
    Problem::new(vec![Shape::new(TOKENS, n, k)], problem.gate(), problem.activation(), problem.output())
}
