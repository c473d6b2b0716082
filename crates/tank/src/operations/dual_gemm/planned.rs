//! Entries from configurations of our own backends, as the planner chooses or completes them.

use hammerhead::gpu::simulated;
use hammerhead::{Backend, Plan, Problem, Request, backends};

use super::ProblemSpec;
use crate::entry::{Entry, Way};
use crate::{Error, Result};

impl Way {
    /// The way of a plan.
    fn of(spec: &ProblemSpec, plan: &Plan) -> Result<Self> {
        let (backend, config) = (plan.backend().name().to_owned(), plan.config().to_string());
        Ok(Way { problem: spec.name()?, backend, config })
    }

    /// Whether both ways read the same weights, so that one may take the other's place.
    pub fn shares_weights_with(&self, other: &Way) -> bool {
        let weights = |way: &Way| backends::by_name(&way.backend).map(|b| (b.layout(), b.device_model())).ok();
        weights(self).is_some() && weights(self) == weights(other)
    }

    /// The plan for its problem: this backend and this configuration, or why that cannot be run here.
    pub fn plan(&self, problem: Problem, threads: usize) -> Result<Plan> {
        let request = self.config.parse::<Request>()?;
        Ok(Plan::best(problem, &[backends::by_name(&self.backend)?], &request, threads)?)
    }
}

impl Entry {
    /// The entry that a request makes of the planner's choices, problem by problem. The simulator is refused: it takes a
    /// millisecond for what takes a GPU a microsecond, so its times say nothing.
    pub fn planned(
        problems: &[ProblemSpec],
        backends: &[&'static dyn Backend],
        request: &Request,
        threads: usize,
    ) -> Result<Self> {
        if backends.iter().any(|backend| backend.name() == simulated::NAME) {
            return Err(Error::Rules {
                what: "the backend 'sim'".to_owned(),
                problem: "the simulator counts what kernels do, and its times say nothing: it is evidence, never timed"
                    .to_owned(),
                remedy: "name the backend 'cuda', and the simulator's counts stand beside the pitch as evidence"
                    .to_owned(),
            });
        }
        let way = |spec: &ProblemSpec| {
            let plan = Plan::best(spec.problem()?, backends, request, threads)?;
            Way::of(spec, &plan)
        };
        Ok(Entry::Builtin { ways: problems.iter().map(way).collect::<Result<_>>()? })
    }

    /// What the planner chooses for each of these problems, which this entry computes, if nobody forces a backend: the best among all
    /// that read the weights which this entry's backend reads. A program stands for itself.
    pub fn unforced(&self, problems: &[ProblemSpec], threads: usize) -> Result<Self> {
        let Entry::Builtin { ways } = self else { return Ok(self.clone()) };
        let mut unforced = Vec::new();
        for (way, spec) in ways.iter().zip(problems) {
            let among = backends::sharing(backends::by_name(&way.backend)?);
            let plan = Plan::best(spec.problem()?, &among, &Request::default(), threads)?;
            unforced.push(Way::of(spec, &plan)?);
        }
        Ok(Entry::Builtin { ways: unforced })
    }
}
