//! The choice: which backend and which configuration compute a problem.
//!
//! Every candidate is priced by its backend's analytic model (bytes, products, dequantisation, how evenly the tiles
//! fall on the threads) and the cheapest is taken, unless the tank has measured on this machine that another one is
//! faster for problems of this kind. The list of what was considered stays with the plan, so that the choice can be
//! explained.

use crate::speeds;
use crate::tuning::{Bucket, Tuned, Tuning};
use op::{Arithmetic, Backend, Config, Cost, Error, Precision, Problem, Request, Result};

/// Whose word a plan follows.
#[derive(Clone, Debug)]
pub enum Basis {
    /// The analytic model's: the first is predicted to be the cheapest.
    Model,
    /// The tank's: it was measured on this machine.
    Tank(Tuned),
    /// The model's, because what the tank measured is not legal for this problem.
    Illegal {
        /// What the tank has measured.
        tuned: Tuned,
        /// Why it cannot be used.
        reason: String,
    },
}

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
    basis: Basis,
}

impl Plan {
    /// The best known way among these backends that grants the request: what the tank has measured on this machine,
    /// else what the model predicts to be the cheapest, at the speeds that this machine was measured to have.
    pub fn best(
        problem: Problem,
        backends: &[&'static dyn Backend],
        request: &Request,
        threads: usize,
    ) -> Result<Self> {
        if backends.iter().any(|backend| backend.layout() == cpu::LAYOUT) {
            speeds::settled();
        }
        Ok(Self::modelled(problem, backends, request, threads)?.tuned(Tuning::installed(), backends, request, threads))
    }

    /// This plan, or the newest of what the tank has measured to be faster for problems of this kind that is among
    /// these backends, grants the request and is legal.
    pub fn tuned(
        mut self,
        tuning: &Tuning,
        backends: &[&'static dyn Backend],
        request: &Request,
        threads: usize,
    ) -> Self {
        if tuning.is_empty() {
            return self;
        }
        for (backend, tuned, config) in tuning.known(&Bucket::of(&self.problem, threads), backends) {
            if request.applied_to(config, backend.settings()) != config {
                continue;
            }
            match backend.check(&self.problem, &config, threads) {
                Ok(cost) => {
                    self.considered.retain(|way| way.backend.name() != backend.name() || way.config != config);
                    self.considered.insert(0, Considered { backend, config, cost });
                    self.basis = Basis::Tank(tuned.clone());
                    return self;
                }
                Err(error) => self.basis = Basis::Illegal { tuned: tuned.clone(), reason: error.to_string() },
            }
        }
        self
    }

    /// The way that the model predicts to be the cheapest among these backends and that grants the request.
    pub fn modelled(
        problem: Problem,
        backends: &[&'static dyn Backend],
        request: &Request,
        threads: usize,
    ) -> Result<Self> {
        let mut considered: Vec<Considered> = Vec::new();
        let mut refusal = None;
        for &backend in backends {
            for candidate in backend.candidates(&problem, threads) {
                let config = request.applied_to(candidate, backend.settings());
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
            if refusal.is_none() {
                problem.check_halves()?;
            }
            if problem.precision() == Precision::Fp8 && refusal.is_none() {
                let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
                let reason = format!(
                    "{} multiply exactly only; use backend cuda on a Hopper GPU, or ask for exact",
                    names.join(", ")
                );
                return Err(Error::Fp8Tokens { reason });
            }
            let nothing = || Error::UnknownName {
                what: "backend for this problem",
                name: problem.to_string(),
                known: backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(", "),
            };
            return Err(refusal.unwrap_or_else(nothing));
        }
        considered.sort_by(|a, b| a.cost.seconds.total_cmp(&b.cost.seconds));
        Ok(Self { problem, considered, basis: Basis::Model })
    }

    /// This plan for another problem of the same kind: the cheapest there of the first few ways, with what each way
    /// costs there; none where none of those is legal.
    pub fn applied_to(mut self, problem: &Problem, threads: usize, few: usize) -> Option<Self> {
        let mut priced = Vec::with_capacity(self.considered.len());
        let mut first: Option<usize> = None;
        for (index, mut way) in self.considered.into_iter().enumerate() {
            let Ok(cost) = way.backend.check(problem, &way.config, threads) else { continue };
            way.cost = cost;
            let cheaper =
                |best: usize| priced.get(best).is_none_or(|best: &Considered| way.cost.seconds < best.cost.seconds);
            if index < few && first.is_none_or(cheaper) {
                first = Some(priced.len());
            }
            priced.push(way);
        }
        priced[..=first?].rotate_right(1);
        self.considered = priced;
        self.problem = problem.clone();
        Some(self)
    }

    /// What is computed.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Who computes it.
    pub fn backend(&self) -> &'static dyn Backend {
        self.considered[0].backend
    }

    /// How that backend adds up the problem's products.
    pub fn arithmetic(&self) -> Arithmetic {
        self.backend().arithmetic_of(&self.problem)
    }

    /// The configuration that it is computed with.
    pub fn config(&self) -> &Config {
        &self.considered[0].config
    }

    /// What it was predicted to cost.
    pub fn cost(&self) -> &Cost {
        &self.considered[0].cost
    }

    /// The plan, and then every other legal way that was weighed, cheapest first.
    pub fn considered(&self) -> &[Considered] {
        &self.considered
    }

    /// Whose word this follows.
    pub fn basis(&self) -> &Basis {
        &self.basis
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use op::{Activation, Gate, Intermediate, Output, Shape, Whole};

    use crate::backends;
    use crate::tuning::{self, Measured};

    fn problem() -> Problem {
        Problem::new(vec![Shape::new(16, 64, 128)], Gate::Silu, Activation::NvFp4, Output::F16).unwrap()
    }

    fn entry(backend: &str, config: &str, speedup: f64) -> Tuned {
        Tuned {
            bucket: Bucket::of(&problem(), 1).to_string(),
            measured: Measured::of(backends::by_name(backend).unwrap()),
            problem: problem().to_string(),
            config: config.into(),
            speedup,
            record: "r".into(),
            at: String::new(),
            retired: false,
        }
    }

    /// The model's plan for some backends, and the same with these entries in the tuning cache.
    fn planned_among(names: &[&str], entries: Vec<Tuned>, request: &Request) -> (Plan, Plan) {
        let folder = tempfile::tempdir().unwrap();
        tuning::install(folder.path(), entries).unwrap();
        let backends: Vec<_> = names.iter().map(|name| backends::by_name(name).unwrap()).collect();
        let modelled = Plan::modelled(problem(), &backends, request, 1).unwrap();
        let tuned = modelled.clone().tuned(&Tuning::load(folder.path()), &backends, request, 1);
        (modelled, tuned)
    }

    /// The same for the portable backend and one entry.
    fn planned(config: &str, request: &Request) -> (Plan, Plan) {
        planned_among(&["scalar"], vec![entry("scalar", config, 1.25)], request)
    }

    const TUNED: &str = "strategy=two-pass,tile=32x48,depth=192,stages=3,epilogue=direct,schedule=tile";

    #[test]
    fn what_the_tank_measured_is_preferred_to_what_the_model_predicts() {
        let (modelled, tuned) = planned(TUNED, &Request::default());
        assert_eq!(tuned.config().to_string(), TUNED);
        assert!(matches!(tuned.basis(), Basis::Tank(entry) if entry.speedup == 1.25));
        assert_ne!(modelled.config(), tuned.config());
        assert_eq!(tuned.considered()[1].config, *modelled.config(), "the model's choice is still listed");
    }

    #[test]
    fn a_request_that_the_tuned_configuration_does_not_grant_is_planned_by_the_model() {
        let other: Request = "strategy=interleaved".parse().unwrap();
        let (modelled, tuned) = planned(TUNED, &other);
        assert_eq!(modelled.config(), tuned.config());
        let same: Request = "stages=3".parse().unwrap();
        assert_eq!(planned(TUNED, &same).1.config().to_string(), TUNED);
    }

    #[test]
    fn an_illegal_entry_never_breaks_a_plan_and_is_told() {
        let (modelled, tuned) = planned(&TUNED.replace("32x48", "32x7"), &Request::default());
        assert_eq!(modelled.config(), tuned.config());
        assert!(matches!(tuned.basis(), Basis::Illegal { reason, .. } if reason.contains("7 columns")));
    }

    #[test]
    fn whole_layers_are_planned_and_tuned_like_products() {
        let whole = Whole {
            tokens: 64,
            top: 8,
            width: 2048,
            intermediate: Intermediate::Tokens,
            scaled: [false; 2],
            batch_invariant: false,
        };
        let layer = |whole| {
            Problem::layer(128, [2048, 768], Gate::Silu, (Activation::BF16, Output::BF16), whole).expect("a layer")
        };
        let backends = [backends::by_name("cuda").unwrap()];
        let modelled = Plan::modelled(layer(whole), &backends, &Request::default(), 1).unwrap();
        let ways = modelled.considered();
        assert!(ways.len() > 20 && ways.is_sorted_by(|one, other| one.cost.seconds <= other.cost.seconds));
        let other = ways[ways.len() / 2].config;
        let entry = Tuned {
            bucket: Bucket::of(&layer(whole), 1).to_string(),
            measured: Measured::of(backends[0]),
            problem: layer(whole).to_string(),
            ..entry("scalar", &other.to_string(), 1.1)
        };
        let folder = tempfile::tempdir().unwrap();
        tuning::install(folder.path(), vec![entry]).unwrap();
        let tuning = Tuning::load(folder.path());
        let tuned = |plan: Plan| plan.tuned(&tuning, &backends, &Request::default(), 1);
        assert_eq!(*tuned(modelled).config(), other);
        for unlike in [
            Whole { batch_invariant: true, ..whole },
            Whole { top: 4, ..whole },
            Whole { intermediate: Intermediate::F32, ..whole },
            Whole { scaled: [true, false], ..whole },
            Whole { tokens: 600, ..whole },
        ] {
            let plan = Plan::modelled(layer(unlike), &backends, &Request::default(), 1).unwrap();
            assert!(matches!(tuned(plan).basis(), Basis::Model), "{unlike:?}");
        }
        let products =
            Problem::new(layer(whole).groups().to_vec(), Gate::Silu, Activation::BF16, Output::BF16).unwrap();
        assert_ne!(Bucket::of(&products, 1), Bucket::of(&layer(whole), 1), "products alone are another thing");
        let cpu = [backends::by_name("scalar").unwrap()];
        assert!(Plan::modelled(layer(whole), &cpu, &Request::default(), 1).is_err(), "products, one by one");
    }

    const ON_GPU: &str = "strategy=interleaved,tile=128x64,depth=64,stages=4,epilogue=direct,schedule=tile";

    #[test]
    fn a_later_entry_of_a_backend_that_is_not_weighed_changes_nothing() {
        let entries = || vec![entry("scalar", TUNED, 1.25), entry("cuda", ON_GPU, 40.0)];
        let (_, tuned) = planned_among(&["scalar"], entries(), &Request::default());
        assert_eq!((tuned.backend().name(), tuned.config().to_string().as_str()), ("scalar", TUNED));
        let (_, tuned) = planned_among(&["cuda"], entries(), &Request::default());
        assert!(matches!(tuned.basis(), Basis::Tank(entry) if entry.speedup == 40.0), "{:?}", tuned.basis());
    }

    #[test]
    fn the_second_device_uses_what_was_measured_on_the_first_of_its_model() {
        let second = Measured::of(backends::by_name("cuda:1").unwrap());
        let entry = Tuned { measured: second, ..entry("cuda", ON_GPU, 1.25) };
        let (_, tuned) = planned_among(&["cuda:1"], vec![entry], &Request::default());
        assert!(matches!(tuned.basis(), Basis::Tank(_)), "{:?}", tuned.basis());
        assert_eq!((tuned.backend().name(), tuned.config().to_string().as_str()), ("cuda:1", ON_GPU));
    }

    #[test]
    fn where_the_newest_entry_is_not_legal_the_one_before_counts() {
        let (illegal, legal) = (TUNED.replace("32x48", "32x7"), "strategy=sequential,tile=16x32,depth=64,stages=1");
        let legal = format!("{legal},epilogue=direct,schedule=tile");
        let entries = vec![entry("scalar", &legal, 1.1), entry("cuda", &illegal, 1.25)];
        let (_, tuned) = planned_among(&["scalar", "cuda"], entries, &Request::default());
        assert_eq!((tuned.backend().name(), tuned.config().to_string()), ("scalar", legal));
    }
}
