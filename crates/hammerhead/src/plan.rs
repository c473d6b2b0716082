//! The choice: which backend and which configuration compute a problem.
//!
//! Every candidate is priced by its backend's analytic model (bytes, products, dequantisation, how evenly the tiles
//! fall on the threads) and the cheapest is taken. The list of what was considered stays with the plan, so that the
//! choice can be explained.

use crate::{Backend, Config, Cost, Error, Problem, Request, Result};

/// One way that was weighed.
#[derive(Clone, Debug)]
pub struct Considered {
    /// The backend.
    pub backend: &'static dyn Backend,
    /// The configuration.
    pub config: Config,
    /// What it was predicted to cost.
    pub cost: Cost,
}

/// A problem with a backend and a configuration that the backend has found legal.
#[derive(Clone, Debug)]
pub struct Plan {
    problem: Problem,
    considered: Vec<Considered>,
}

impl Plan {
    /// The cheapest way among these backends that grants the request.
    pub fn best(
        problem: Problem,
        backends: &[&'static dyn Backend],
        request: &Request,
        threads: usize,
    ) -> Result<Self> {
        let mut considered: Vec<Considered> = Vec::new();
        let mut refusal = None;
        for &backend in backends {
            for candidate in backend.candidates(&problem, threads) {
                let config = request.applied_to(candidate);
                if considered.iter().any(|c| c.backend.name() == backend.name() && c.config == config) {
                    continue;
                }
                match backend.check(&problem, &config, threads) {
                    Ok(cost) => considered.push(Considered { backend, config, cost }),
                    Err(error) => refusal = refusal.or(Some(error)),
                }
            }
        }
        if considered.is_empty() {
            let nothing = || Error::UnknownName {
                what: "backend for this problem",
                name: problem.to_string(),
                known: backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(", "),
            };
            return Err(refusal.unwrap_or_else(nothing));
        }
        considered.sort_by(|a, b| a.cost.seconds.total_cmp(&b.cost.seconds));
        Ok(Self { problem, considered })
    }

    /// What is computed.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Who computes it.
    pub fn backend(&self) -> &'static dyn Backend {
        self.considered[0].backend
    }

    /// How.
    pub fn config(&self) -> &Config {
        &self.considered[0].config
    }

    /// What it was predicted to cost.
    pub fn cost(&self) -> &Cost {
        &self.considered[0].cost
    }

    /// Every legal way that was weighed, cheapest first. The first is the plan.
    pub fn considered(&self) -> &[Considered] {
        &self.considered
    }
}
